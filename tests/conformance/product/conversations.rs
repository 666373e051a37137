//! The recorded conversations of pmcd and dbpmda, replayed with the product: unchanged, and with metrics of the product
//! in place of similar ones of the reference agent.

use super::{Product, BCC, BIO_ROWS, COMMANDS, FORKS, LATENCY};
use crate::reference::pmcd::{self, decode, frame, split};
use crate::reference::{Reference, DOMAIN, EMPTY, LAST, THREE};
use crate::served::Served;
use corebcc::agent::Source;
use corebcc::bpf::types::{bio_row, fine_hist};
use corebcc::kit::Fine;
use corebcc::pcp::{Indom, InstId, Pmid, IN_NULL};
use corebcc::pdu::{Pdu, PduType};
use std::fs;

const BUCKETS: Pmid = Pmid::new(BCC, 0, 0);
const EXECS: Pmid = Pmid::new(BCC, 13, 0);
const CALLS: Pmid = Pmid::new(BCC, 15, 0);

/// Makes a product with three instances in biolatency and none in exectop; syscount is refused.
fn product() -> Product {
    let mut product = Product::without(&["syscount"]);
    let disk = product.kernel.row(BIO_ROWS, 0);
    disk.set(bio_row::disk, 1 << 63 | 8 << 32);
    disk.set(bio_row::device.then(fine_hist::buckets).nth(Fine::bucket(4_000)), 5);
    product.fetch(&[BUCKETS]); // labels are those of the instances that were seen last
    product
}

/// Returns the PDUs of a recording: true for those sent to the agent, and the bytes.
fn recorded(name: &str) -> Vec<(bool, Vec<u8>)> {
    let path = format!("{}/tests/vectors/conversations/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(path).unwrap();
    let unhex =
        |hex: &str| (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect();
    let lines = text.lines().filter_map(|line| match line.split_once(' ') {
        Some((">", hex)) => Some((true, unhex(hex))),
        Some(("<", hex)) => Some((false, unhex(hex))),
        _ => None,
    });
    lines.collect()
}

/// True if the request has an answer.
fn is_answered(request: &[u8]) -> bool {
    !matches!(frame(request).ty, PduType::CREDS | PduType::PROFILE | PduType::ATTR | PduType::ERROR)
}

/// The requests are about domains, metrics and names that the product lacks; it answers nevertheless.
#[test]
fn c71_the_product_answers_every_recorded_request_once() {
    let mut answered = 0;
    for name in ["pmcd-ref", "pmcd-ref-restart", "pmcd-ref-notready", "dbpmda-ref", "dbpmda-simple"] {
        let mut product = product();
        for (_, request) in recorded(name).into_iter().filter(|(is_request, _)| *is_request) {
            let out = product.pmcd.send(&request);
            let replies = split(&out).len();
            assert_eq!(replies, usize::from(is_answered(&request)), "{name}: {}", frame(&request).ty);
            answered += replies;
        }
    }
    assert!(answered > 250, "{answered}");
}

#[test]
fn c71_the_product_answers_like_the_recorded_agent() {
    let mut compared = 0;
    for name in ["pmcd-ref", "pmcd-ref-restart", "pmcd-ref-notready", "dbpmda-ref"] {
        let mut product = product();
        let mut asked: Option<(Vec<u8>, Vec<u8>)> = None;
        for (is_request, bytes) in recorded(name) {
            if !is_request {
                let Some((request, ask)) = asked.take() else { continue };
                let reply = product.answer(&ask);
                assert_alike(&request, &reply, &bytes);
                compared += 1;
                continue;
            }
            match translated(&bytes) {
                Some(request) if is_answered(&request) => asked = Some((bytes, request)),
                Some(request) => product.pmcd.tell(&request),
                None => {}
            }
        }
    }
    assert!(compared > 150, "{compared}");
}

/// Returns the metric of the product for one of the reference agent: it has as many instances, or the same error.
fn metric(pmid: Pmid) -> Pmid {
    match (Reference::default().desc(pmid), pmid.cluster(), pmid.item()) {
        (Err(_), _, item) => Pmid::new(BCC, 299, item),
        (_, 1, 4) | (_, 0, 11) => CALLS,
        (_, 1, 0..=3) => BUCKETS,
        (_, 2, _) => EXECS,
        _ => FORKS,
    }
}

/// True for metrics that the product has an equivalent of: not those with some values missing, or with no values at the
/// moment.
fn is_like(pmid: Pmid) -> bool {
    !matches!((pmid.cluster(), pmid.item()), (1, 2 | 3 | 5))
}

fn domain(indom: Indom) -> Indom {
    match indom {
        THREE => LATENCY,
        EMPTY => COMMANDS,
        other => Indom::new(BCC, 349 + other.serial()),
    }
}

fn instance(inst: InstId) -> InstId {
    match inst {
        0 | IN_NULL => inst,
        5 => 1,
        LAST => 2,
        _ => 99,
    }
}

fn name(of: &[u8]) -> String {
    let of = String::from_utf8(of.to_vec()).unwrap();
    let names = Reference::default().names();
    if let Some((_, pmid)) = names.iter().find(|(name, _)| *name == of) {
        let own = [(BUCKETS, "bcc.disk.all.latency"), (EXECS, "bcc.proc.exec.count"), (FORKS, "bcc.proc.sysfork")];
        let own = own.iter().find(|(own, _)| *own == metric(*pmid));
        return own.map_or("bcc.proc.syscall.count", |(_, name)| name).into();
    }
    let is_inner = of != "capt" && names.iter().any(|(name, _)| name.starts_with(&format!("{of}.")));
    if is_inner {
        "bcc.proc".into()
    } else {
        of.replacen("capt", "bcc", 1)
    }
}

/// Returns the same request about the product; `None` for stores, texts, and labels of single metrics, whose answers
/// differ.
fn translated(request: &[u8]) -> Option<Vec<u8>> {
    Some(match decode(request) {
        Pdu::Creds(_) | Pdu::Attr { .. } | Pdu::Error { .. } => request.to_vec(),
        Pdu::Profile(profile) => {
            let entries: Vec<_> = profile
                .entries
                .iter()
                .map(|entry| (domain(entry.indom), entry.exclude, entry.insts.iter().map(|i| instance(*i)).collect()))
                .collect::<Vec<(Indom, bool, Vec<InstId>)>>();
            let entries: Vec<_> = entries.iter().map(|(indom, exclude, list)| (*indom, *exclude, &list[..])).collect();
            pmcd::profile(profile.exclude, &entries)
        }
        Pdu::Fetch { pmids, .. } => pmcd::fetch(&pmids.iter().map(metric).collect::<Vec<_>>()),
        Pdu::DescReq(pmid) => pmcd::desc(metric(pmid)),
        Pdu::PmnsIds { ids, .. } => pmcd::names_of(metric(ids[0])),
        Pdu::PmnsNames { names } => pmcd::lookup(&name(names[0].1)),
        Pdu::PmnsChild { statuses, name: of } => pmcd::children(&name(of), statuses),
        Pdu::PmnsTraverse { name: of } => pmcd::traverse(&name(of)),
        Pdu::InstanceReq { indom, inst, name } => {
            let name = match name.unwrap_or_default() {
                b"bin-100" => "0-1",
                b"sda" | b"sda 8:0" => "2-3",
                b"last" => "4-7",
                b"" => "",
                _ => "nobody",
            };
            pmcd::instance(domain(indom), instance(inst), name)
        }
        Pdu::LabelReq { ident: DOMAIN, class } => pmcd::label(BCC, class.0 as u32),
        Pdu::LabelReq { ident, class } if class.0 == 32 => pmcd::label(domain(Indom(ident)).0, 32),
        _ => return None,
    })
}

/// Asserts the same type or error, and for equivalent metrics the same instances.
#[track_caller]
fn assert_alike(request: &[u8], reply: &[u8], expected: &[u8]) {
    let what = format!("{} {}", frame(request).ty, request.escape_ascii());
    assert_eq!(frame(reply).ty, frame(expected).ty, "{what}");
    match (decode(reply), decode(expected)) {
        (Pdu::Error { code }, Pdu::Error { code: expected }) => assert_eq!(code, expected, "{what}"),
        (Pdu::Result(_), _) => {
            let (sets, expected) = (pmcd::result(reply), pmcd::result(expected));
            assert_eq!(sets.len(), expected.len(), "{what}");
            for (set, expected) in sets.iter().zip(expected).filter(|(_, expected)| is_like(expected.pmid)) {
                assert_eq!(set.pmid, metric(expected.pmid));
                assert_eq!(set.numval, expected.numval, "{what}: {}", expected.pmid);
                assert_eq!(set.insts(), expected.insts().into_iter().map(instance).collect::<Vec<_>>(), "{what}");
            }
        }
        (Pdu::Instance { entries, .. }, Pdu::Instance { entries: expected, .. }) => {
            let ids = |entries: &[(InstId, &[u8])]| entries.iter().map(|(inst, _)| *inst).collect::<Vec<_>>();
            assert_eq!(ids(&entries), ids(&expected).into_iter().map(instance).collect::<Vec<_>>(), "{what}");
        }
        (Pdu::Label { sets, .. }, Pdu::Label { sets: expected, .. }) => {
            assert_eq!(sets.len(), expected.len(), "{what}")
        }
        (Pdu::PmnsIds { ids, .. }, Pdu::PmnsIds { ids: expected, .. }) => {
            assert_eq!(ids[0], metric(expected[0]), "{what}")
        }
        _ => {}
    }
}
