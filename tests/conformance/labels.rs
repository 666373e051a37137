//! Metadata labels (55 to 59).

use crate::{
    descs,
    reference::{
        pmcd::{self, word, Pmcd},
        pmid, Reference, DOMAIN, EMPTY, LAST, THREE,
    },
};
use corebcc::pcp::{Indom, InstId};

pub const DOMAIN_CLASS: u32 = 2;
pub const INDOM: u32 = 4;
pub const CLUSTER: u32 = 8;
pub const ITEM: u32 = 16;
pub const INSTANCES: u32 = 32;

/// A label set as in a LABEL: instance, JSON text, and name, value and flags of each label.
#[derive(Debug, PartialEq)]
pub struct Set {
    pub inst: InstId,
    pub json: String,
    pub labels: Vec<(String, String, u8)>,
}

/// Parses a LABEL strictly by its layout: sets, then their texts one after another up to the end.
#[track_caller]
pub fn sets(reply: &[u8], ident: u32, class: u32) -> Vec<Set> {
    assert_eq!([4, 12, 16, 20].map(|at| word(reply, at)), [0x7013, ident, class, 0]);
    let mut at = 28;
    let mut take = |reply, n| {
        at += n;
        word(reply, at - n)
    };
    let mut places = Vec::new();
    let mut sets = Vec::new();
    for _ in 0..word(reply, 24) {
        let [inst, count, offset, len] = [(); 4].map(|()| take(reply, 4));
        let json = &reply[offset as usize..(offset + len) as usize];
        let text = |at: u32, len: u32| String::from_utf8(json[at as usize..(at + len) as usize].to_vec()).unwrap();
        let labels = (0..count).map(|_| {
            let [name, value] = [(); 2].map(|()| take(reply, 4));
            let (name_len, flags) = (name >> 8 & 255, name as u8);
            (text(name >> 16, name_len), text(value >> 16, value & 0xffff), flags)
        });
        let labels = labels.collect();
        places.push((offset as usize, len as usize));
        sets.push(Set { inst, json: String::from_utf8(json.to_vec()).unwrap(), labels });
    }
    let mut next = at;
    for (offset, len) in places {
        assert_eq!(offset, next, "each text begins where the one before it ended");
        next += len;
    }
    assert_eq!(next, reply.len(), "the PDU ends with the last text");
    sets
}

fn ask(pmcd: &mut Pmcd, ident: u32, class: u32) -> Vec<Set> {
    sets(&pmcd.ask(&pmcd::label(ident, class)), ident, class)
}

fn owned(name: &str, value: &str, flags: u8) -> (String, String, u8) {
    (name.into(), value.into(), flags)
}

#[test]
fn c55_domain_labels_name_the_agent_and_echo_the_request() {
    let mut pmcd = Pmcd::connected();
    for ident in [DOMAIN, u32::MAX] {
        let sets = ask(&mut pmcd, ident, DOMAIN_CLASS);
        assert_eq!(sets.len(), 1);
        assert_eq!(sets[0].json, r#"{"agent":"capt"}"#);
        assert_eq!(sets[0].labels, [owned("agent", r#""capt""#, 2)]);
    }
}

#[test]
fn c56_no_labels_are_zero_sets() {
    let mut pmcd = Pmcd::connected();
    let none = [
        (EMPTY.0, INDOM),
        (pmid(2, 0).0, CLUSTER),
        (pmid(0, 1).0, ITEM),
        (EMPTY.0, INSTANCES),
        (Indom::new(DOMAIN, 9).0, INSTANCES),
        (u32::MAX, 1),
    ];
    for (ident, class) in none {
        assert_eq!(ask(&mut pmcd, ident, class), []);
        assert_eq!(pmcd.ask(&pmcd::label(ident, class)).len(), 28);
    }
    assert_eq!(pmcd.error(&pmcd::label(pmid(1, 5).0, ITEM)), -21344, "an error of the source's is passed on");
    for class in [0, 3, 64, 0x8000_0000] {
        assert_eq!(pmcd.error(&pmcd::label(THREE.0, class)), -12397, "class {class}");
    }
}

#[test]
fn c57_instance_labels_follow_profile_and_address_text() {
    let mut pmcd = Pmcd::connected();
    let set = |inst: InstId| Set {
        inst,
        json: format!(r#"{{"kind":"disk","slot":{inst}}}"#),
        labels: vec![owned("kind", r#""disk""#, 32), owned("slot", &inst.to_string(), 32)],
    };
    let last = Set { inst: LAST, json: String::new(), labels: vec![] };
    assert_eq!(ask(&mut pmcd, THREE.0, INSTANCES), [set(0), set(5), last]);
    pmcd.tell(&pmcd::profile(false, &[(THREE, true, &[5, 6])]));
    assert_eq!(ask(&mut pmcd, THREE.0, INSTANCES), [set(5)]);
    pmcd.tell(&pmcd::profile(true, &[]));
    assert_eq!(ask(&mut pmcd, THREE.0, INSTANCES), []);
}

#[test]
fn c57_labels_are_sorted_and_flagged() {
    let mut pmcd = Pmcd::connected();
    let sets = ask(&mut pmcd, pmid(0, 0).0, ITEM);
    assert_eq!(sets[0].json, r#"{"alpha.b":"c","note":true,"zeta":1}"#);
    let labels =
        [owned("alpha.b", r#""c""#, 0x10 | 0x40), owned("note", "true", 0x10 | 0x80), owned("zeta", "1", 0x10)];
    assert_eq!(sets[0].labels, labels);
}

#[test]
fn c58_the_item_of_a_cluster_request_does_not_matter() {
    let mut pmcd = Pmcd::connected();
    for item in [0, 1, 5, 1023] {
        let ident = pmid(1, item).0;
        let sets = ask(&mut pmcd, ident, CLUSTER);
        assert_eq!(sets[0].json, r#"{"cluster":"one"}"#);
    }
}

#[test]
fn c59_the_last_text_ends_the_pdu() {
    // `sets` looks at every place.
    let mut pmcd = Pmcd::connected();
    for desc in descs().iter().filter(|desc| desc.pmid != pmid(1, 5)) {
        assert!(ask(&mut pmcd, desc.pmid.0, ITEM).len() < 2);
        assert!(ask(&mut pmcd, desc.pmid.0, CLUSTER).len() < 2);
    }
    let reference = Reference {
        more_instances: (100..1100).map(|id| (id, id.to_string().into_bytes())).collect(),
        ..Reference::default()
    };
    let mut pmcd = Pmcd::with(reference, Default::default());
    assert_eq!(ask(&mut pmcd, THREE.0, INSTANCES).len(), 1003);
}
