//! Values and instances of the product's modules (20 to 45).

use super::{Product, BCC, COMMANDS, FORKS, LATENCY, PROCESSES, PROFILE, SESSIONS};
use crate::reference::pmcd::{self, word};
use corebcc::pcp::{Indom, Pmid, Type, IN_NULL};

const BUCKETS: Pmid = Pmid::new(BCC, 0, 0);
const PORTS: Pmid = Pmid::new(BCC, 3, 5);
const EXECS: Pmid = Pmid::new(BCC, 13, 0);
const CALLS: Pmid = Pmid::new(BCC, 15, 0);
const SENT: Pmid = Pmid::new(BCC, 40, 1);

#[test]
fn c20_the_products_metrics_come_in_the_order_asked_for() {
    let mut product = Product::started();
    let all: Vec<Pmid> = product.descs().iter().map(|desc| desc.pmid).rev().collect();
    for n in [1, 2, 1000] {
        let asked: Vec<Pmid> = all.iter().copied().cycle().take(n).collect();
        product.fetch(&asked); // compares
    }
    let asked: Vec<Pmid> = (0..16_000).map(|i| Pmid::new(BCC, i % 16, i / 16 % 9)).collect();
    assert_eq!(product.fetch(&asked).len(), 16_000, "c33");
}

#[test]
fn c24_every_value_has_the_form_its_type_asks_for() {
    let mut product = Product::started();
    let mut with_values = 0;
    for desc in product.descs() {
        let set = product.fetch(&[desc.pmid]).remove(0);
        let Some(format) = set.format else { continue };
        let is_word = matches!(desc.ty, Type::I32 | Type::U32);
        assert_eq!(format, u32::from(!is_word), "{}", desc.pmid);
        match desc.indom {
            Indom::NULL => assert_eq!(set.insts(), [IN_NULL], "{}", desc.pmid),
            _ => assert!(set.insts().iter().all(|inst| *inst <= 0x7fff_ffff), "{}", desc.pmid),
        }
        with_values += 1;
    }
    assert!(with_values > 40, "{with_values}");
}

#[test]
fn c22_an_unknown_metric_harms_none_of_the_products() {
    let mut product = Product::started();
    let sets = product.fetch(&[Pmid::new(BCC, 299, 0), FORKS, Pmid::new(BCC, 2, 7), FORKS]);
    assert_eq!(sets.iter().map(|set| set.numval).collect::<Vec<_>>(), [-12358, 1, -12358, 1]);
    assert_eq!(sets[1].at - sets[0].at, 8);
    assert_eq!(product.numbers(FORKS), [(IN_NULL, 42)]);
    let reply = product.pmcd.ask(&pmcd::fetch(&[FORKS]));
    assert_eq!((word(&reply, 12), word(&reply, 16)), (0, 0), "c23");
}

#[test]
fn c32_the_products_counts_are_the_kernels() {
    let mut product = Product::started();
    assert_eq!(product.numbers(BUCKETS), [(0, 7), (1, 20), (2, 0), (3, 5)], "the first bucket is 0-1");
    assert_eq!(product.instances(LATENCY, 0, ""), [(IN_NULL, "0-1".into())]);
    assert_eq!(product.numbers(PORTS), [(0, 443), (1, 80)], "the latest first");
    assert_eq!(product.numbers(EXECS).iter().map(|(_, count)| *count).sum::<u64>(), 33);
    assert_eq!(product.numbers(CALLS), [(0, 11), (1, 22)]);
    let own = product.instances(PROCESSES, std::process::id(), "");
    let name = format!("{:06} ", std::process::id());
    assert!(own.len() == 1 && own[0].1.starts_with(&name), "{own:?}");
    assert!(product.numbers(SENT).contains(&(std::process::id(), 100)));
}

#[test]
fn c31_a_call_that_nobody_made_has_an_instance_and_no_value() {
    let mut product = Product::started();
    let calls = Indom::new(BCC, 15);
    assert!(product.instances(calls, IN_NULL, "").len() > 300);
    assert_eq!(product.numbers(CALLS).len(), 2);
    assert_eq!(product.fetch(&[Pmid::new(BCC, 15, 1)])[0].numval, 0, "times are not measured");
}

#[test]
fn c34_the_profile_selects_the_products_instances() {
    let mut product = Product::started();
    let insts = |product: &mut Product, pmid| product.fetch(&[pmid])[0].insts();
    let profile = |product: &mut Product, exclude, entries: &[(Indom, bool, &[u32])]| {
        product.pmcd.tell(&pmcd::profile(exclude, entries));
    };
    profile(&mut product, false, &[]);
    assert_eq!(insts(&mut product, BUCKETS), [0, 1, 2, 3]);
    profile(&mut product, false, &[(LATENCY, true, &[3, 0, 99])]);
    assert_eq!(insts(&mut product, BUCKETS), [0, 3], "c35, c40");
    assert_eq!(insts(&mut product, PORTS), [0, 1]);
    profile(&mut product, false, &[(LATENCY, false, &[0])]);
    assert_eq!(insts(&mut product, BUCKETS), [1, 2, 3], "c36");
    profile(&mut product, true, &[]);
    for pmid in [BUCKETS, PORTS, EXECS, SENT, CALLS] {
        assert_eq!(product.fetch(&[pmid])[0].numval, 0, "c37: {pmid}");
    }
    assert_eq!(insts(&mut product, FORKS), [IN_NULL], "c37");
    profile(&mut product, true, &[(SESSIONS, false, &[])]);
    assert_eq!(insts(&mut product, PORTS), [0, 1], "c38");
    assert_eq!(insts(&mut product, BUCKETS), [0; 0], "c39");
}

#[test]
fn c41_instances_are_listed_whatever_the_profile_says() {
    let mut product = Product::started();
    product.pmcd.tell(&pmcd::profile(true, &[]));
    let names = |list: Vec<(u32, String)>| list.into_iter().map(|(_, name)| name).collect::<Vec<_>>();
    assert_eq!(names(product.instances(LATENCY, IN_NULL, "")), ["0-1", "2-3", "4-7", "8-15"]);
    assert_eq!(names(product.instances(SESSIONS, IN_NULL, "")), ["0", "1", "2"], "one without a session too");
    for (inst, name) in product.instances(PROCESSES, IN_NULL, "") {
        assert_eq!(product.instances(PROCESSES, inst, ""), [(IN_NULL, name.clone())], "c42");
        assert_eq!(product.instances(PROCESSES, IN_NULL, &name), [(inst, String::new())], "c42");
    }
}

#[test]
fn c43_a_process_is_found_by_the_first_word_of_its_name() {
    let mut product = Product::started();
    let own = format!("{:06}", std::process::id());
    assert_eq!(product.instances(PROCESSES, IN_NULL, &own), [(std::process::id(), String::new())]);
    for name in [format!("{own} /nobody"), "-1".into(), "x".into()] {
        assert_eq!(product.pmcd.error(&pmcd::instance(PROCESSES, IN_NULL, &name)), -12360, "{name}");
    }
}

#[test]
fn c44_the_product_tells_unknown_instances_and_domains_apart() {
    let mut product = Product::started();
    for (indom, name) in [(LATENCY, "1-2"), (LATENCY, "0"), (COMMANDS, "zsh"), (SESSIONS, "3")] {
        assert_eq!(product.pmcd.error(&pmcd::instance(indom, IN_NULL, name)), -12360, "{name}");
    }
    assert_eq!(product.pmcd.error(&pmcd::instance(LATENCY, 40, "")), -12360);
    for indom in [Indom::new(BCC, 2), Indom::new(BCC, 299), Indom::new(BCC + 1, 0)] {
        assert_eq!(product.pmcd.error(&pmcd::instance(indom, IN_NULL, "")), -12359, "{indom:?}");
    }
    let mut idle = Product::without(&[]);
    assert_eq!(idle.instances(COMMANDS, IN_NULL, ""), []);
    assert_eq!(idle.fetch(&[EXECS])[0].numval, 0, "c30");
    assert_eq!(idle.instances(LATENCY, IN_NULL, ""), [(0, "0-1".into())], "before there was any request");
    assert_eq!(idle.numbers(BUCKETS), [(0, 0)]);
}

#[test]
fn names_keep_their_identifiers_as_others_come() {
    let mut product = Product::started();
    let before = product.instances(COMMANDS, IN_NULL, "");
    assert_eq!(before.len(), 3);
    let row = product.kernel.row(super::EXEC_ROWS, 7);
    row.set_bytes(corebcc::bpf::types::exec_row::comm, b"awk");
    row.set(corebcc::bpf::types::exec_row::count, 1);
    let four =
        |product: &mut Product| Some(product.instances(COMMANDS, IN_NULL, "")).filter(|instances| instances.len() == 4);
    let after = product.eventually(four);
    assert!(before.iter().all(|instance| after.contains(instance)), "{before:?}, then {after:?}");
}

#[test]
fn a_profiled_fetch_asks_only_the_modules_of_its_metrics() {
    let mut product = Product::started();
    product.kernel.begin("threads", super::Trouble::Panics);
    assert_eq!(product.numbers(FORKS), [(IN_NULL, 42)]);
    assert_eq!(product.fetch(&[PROFILE])[0].numval, 1);
    assert_eq!(product.fetch(&[SENT])[0].numval, -12351);
}
