//! Arbitrary PDUs for the round trip through the codec. Borrowed parts are leaked: a test is short.

use corebcc::{
    pcp::{Desc, Indom, PmErr, Pmid, Sem, Type, Units},
    pdu::{Creds, Deframer, LabelClass, LabelSet, Pdu, PduType, Profile, ProfileEntry, ResultSet, TextKind, WireLabel},
    pdu::{Value, ValueSet},
};
use proptest::{collection::vec, prelude::*};

type Bytes = &'static [u8];

fn bytes(len: std::ops::Range<usize>) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), len).prop_map(|v| &*v.leak())
}

fn pmid() -> impl Strategy<Value = Pmid> + Clone {
    any::<u32>().prop_map(Pmid)
}

fn code() -> impl Strategy<Value = PmErr> {
    (i32::MIN..0).prop_map(PmErr)
}

fn desc() -> impl Strategy<Value = Desc> {
    any::<(u32, i32, u32, i32, u32)>().prop_map(|(pmid, ty, indom, sem, units)| Desc {
        pmid: Pmid(pmid),
        ty: Type(ty),
        indom: Indom(indom),
        sem: Sem(sem),
        units: Units(units),
    })
}

fn profile() -> impl Strategy<Value = Profile> {
    let entry = any::<(u32, bool, Vec<u32>)>().prop_map(|(indom, exclude, insts)| ProfileEntry {
        indom: Indom(indom),
        exclude,
        insts,
    });
    (any::<(i32, bool)>(), vec(entry, 0..5)).prop_map(|((context, exclude), entries)| Profile {
        context,
        exclude,
        entries,
    })
}

fn value_set() -> impl Strategy<Value = ValueSet<'static>> {
    let insitu = vec((any::<u32>(), any::<u32>().prop_map(Value::Insitu)), 0..5);
    let block = (0..256i32, bytes(0..10)).prop_map(|(ty, bytes)| Value::Block { ty: Type(ty), bytes });
    let blocks = vec((any::<u32>(), block), 1..5);
    let values = prop_oneof![insitu.prop_map(Ok), blocks.prop_map(Ok), code().prop_map(Err)];
    (pmid(), values).prop_map(|(pmid, values)| ValueSet::new(pmid, values))
}

fn label_set() -> impl Strategy<Value = LabelSet<'static>> {
    let label = any::<(u16, u8, u8, u16, u16)>().prop_map(|(name, name_len, flags, value, value_len)| WireLabel {
        name,
        name_len,
        flags,
        value,
        value_len,
    });
    let labels = prop_oneof![vec(label, 0..4).prop_map(Ok), code().prop_map(Err)];
    (any::<u32>(), labels, bytes(0..20)).prop_map(|(inst, labels, json)| LabelSet { inst, labels, json: json.into() })
}

fn names() -> impl Strategy<Value = Vec<(Option<i32>, Bytes)>> {
    let plain = (Just(None), bytes(0..9));
    let status = (any::<i32>().prop_map(Some), bytes(0..9));
    prop_oneof![vec(plain, 0..6), vec(status, 0..6)]
}

fn request() -> impl Strategy<Value = Pdu<'static>> {
    let pmids = vec(pmid(), 0..9);
    prop_oneof![
        profile().prop_map(Pdu::Profile),
        (any::<i32>(), pmids.clone())
            .prop_map(|(context, pmids)| Pdu::Fetch { context, pmids: pmids.into_iter().collect() }),
        (any::<i32>(), pmids.clone())
            .prop_map(|(context, pmids)| Pdu::HighresFetch { context, pmids: pmids.into_iter().collect() }),
        pmids.prop_map(|ids| Pdu::DescIds { ids }),
        pmid().prop_map(Pdu::DescReq),
        (any::<(u32, u32)>(), prop::option::of(bytes(1..9))).prop_map(|((indom, inst), name)| Pdu::InstanceReq {
            indom: Indom(indom),
            inst,
            name
        }),
        any::<(u32, i32)>().prop_map(|(ident, kind)| Pdu::TextReq { ident, kind: TextKind::from_bits_retain(kind) }),
        (any::<bool>(), bytes(0..9)).prop_map(|(statuses, name)| Pdu::PmnsChild { statuses, name }),
        bytes(0..9).prop_map(|name| Pdu::PmnsTraverse { name }),
        (any::<i32>(), bytes(0..9))
            .prop_filter("an empty value has no NUL", |(_, value)| *value != b"\0")
            .prop_map(|(attribute, value)| Pdu::Attr { attribute, value }),
        any::<(u32, i32)>().prop_map(|(ident, class)| Pdu::LabelReq { ident, class: LabelClass(class) }),
        (0x7018..i32::MAX).prop_map(|ty| Pdu::Other { ty: PduType(ty) }),
    ]
}

fn reply() -> impl Strategy<Value = Pdu<'static>> {
    let sets = || vec(value_set(), 0..5);
    prop_oneof![
        any::<i32>().prop_map(|code| Pdu::Error { code }),
        any::<(i32, u32)>().prop_map(|(code, features)| Pdu::Greeting { code, features }),
        any::<(u8, u16)>().prop_map(|(version, flags)| Pdu::Creds(Creds { version, flags })),
        (any::<[i32; 2]>(), sets()).prop_map(|(stamp, sets)| Pdu::Result(ResultSet { stamp, sets })),
        (any::<(i64, i64)>(), sets()).prop_map(|((sec, nsec), sets)| Pdu::HighresResult { sec, nsec, sets }),
        desc().prop_map(Pdu::Desc),
        vec(desc(), 0..4).prop_map(|descs| Pdu::Descs { descs }),
        (any::<u32>(), vec((any::<u32>(), bytes(0..9)), 0..5))
            .prop_map(|(indom, entries)| Pdu::Instance { indom: Indom(indom), entries }),
        (any::<u32>(), bytes(0..99)).prop_map(|(ident, text)| Pdu::Text { ident, text }),
        (any::<i32>(), vec(pmid(), 0..5)).prop_map(|(status, ids)| Pdu::PmnsIds { status, ids }),
        names().prop_map(|names| Pdu::PmnsNames { names }),
        (any::<(u32, i32)>(), vec(label_set(), 0..4)).prop_map(|((ident, class), sets)| Pdu::Label {
            ident,
            class: LabelClass(class),
            sets
        }),
    ]
}

proptest! {
    #[test]
    fn any_pdu_comes_back_from_the_wire(pdu in prop_oneof![request(), reply()], from: i32, before in bytes(0..9)) {
        let mut out = before.to_vec();
        pdu.encode(from, &mut out);
        let mut deframer = Deframer::new();
        deframer.spare()[..out.len() - before.len()].copy_from_slice(&out[before.len()..]);
        deframer.filled(out.len() - before.len());
        let frame = deframer.next().unwrap().unwrap();
        prop_assert_eq!(frame.from, from);
        prop_assert_eq!(frame.ty, pdu.ty());
        prop_assert_eq!(Pdu::decode(&frame), Ok(pdu));
    }
}
