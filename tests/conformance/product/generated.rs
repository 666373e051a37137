//! Conversations that are generated: bytes choose what pmcd asks and what the kernel counts, and each answer is held against what the
//! statements of docs/protocol.md say of it.

use super::{Product, AGAIN, BCC, COMMANDS, FORKS, FORK_ROWS, LATENCY, PROCESSES, PROFILE, SESSIONS};
use crate::reference::pmcd::{self, decode, frame, split};
use corebcc::bpf::types::fork_row;
use corebcc::pcp::{Indom, InstId, PmErr, Pmid, IN_NULL};
use corebcc::pdu::{Pdu, PduType};

/// The bytes that are left of an input.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) % limit
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

const INDOMS: [Indom; 6] = [LATENCY, SESSIONS, COMMANDS, PROCESSES, Indom::new(BCC, 301), Indom::new(BCC, 299)];
const NAMES: [&str; 8] =
    ["", "bcc", "bcc.proc", "bcc.proc.sysfork", "bcc.disk.all.latency", "bcc.proc.", "bcc..x", "0-1"];

/// A metric: of the product, of the agent itself, or unknown.
fn metric(choices: &mut Choices<'_>) -> Pmid {
    let cluster = choices.one(&[0, 2, 3, 13, 14, 15, 40, 9, 1, 300, 301, 299, 4095]);
    Pmid::new(BCC, cluster, choices.one(&[0, 1, 2, 7, 31, 1023]))
}

/// The profile that pmcd sent last, for whichever of its clients.
#[derive(Default)]
struct Profile {
    excludes: bool,
    entries: Vec<(Indom, bool, Vec<InstId>)>,
}

impl Profile {
    fn has(&self, indom: Indom, inst: InstId) -> bool {
        match self.entries.iter().find(|(of, ..)| *of == indom) {
            Some((_, excludes, insts)) => *excludes == insts.contains(&inst),
            None => !self.excludes,
        }
    }
}

/// A product with which conversations are held one after the other: each takes it as the one before left it.
pub struct Conversations {
    product: Product,
    /// Tasks that the kernel in memory has counted.
    forks: u64,
    profile: Profile,
}

impl Default for Conversations {
    fn default() -> Conversations {
        Conversations { product: Product::started(), forks: 42, profile: Profile::default() }
    }
}

impl Conversations {
    /// Holds a conversation that the bytes choose. Panics where an answer is wrong.
    pub fn hold(&mut self, data: &[u8]) {
        let mut choices = Choices(data);
        while !choices.0.is_empty() {
            self.step(&mut choices);
        }
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        let Conversations { product, forks, profile } = self;
        product.pmcd.slot = choices.below(3) as i32;
        match choices.below(13) {
            0 => {
                let pmids: Vec<Pmid> = (0..choices.below(9)).map(|_| metric(choices)).collect();
                check_values(&product.pmcd.ask(&pmcd::fetch(&pmids)), &pmids, profile);
            }
            1 => {
                let sets = pmcd::result(&product.pmcd.ask(&pmcd::fetch(&[FORKS])));
                if sets[0].numval != AGAIN {
                    let value = &sets[0].values;
                    let pmcd::Wire::Block { bytes, .. } = &value[0].1 else { panic!("{value:?}") };
                    assert_eq!(u64::from_be_bytes(bytes[..].try_into().unwrap()), *forks);
                }
            }
            2 => {
                let row = product.kernel.row(FORK_ROWS, 0);
                let more = u64::from(choices.byte());
                row.set(fork_row::processes, *forks - 2 + more);
                *forks += more;
            }
            3 => product.session(u16::from(choices.byte())),
            4 => {
                let mut entries: Vec<(Indom, bool, Vec<InstId>)> = Vec::new();
                for _ in 0..choices.below(3) {
                    let (indom, excludes) = (choices.one(&INDOMS), choices.byte() & 1 == 1);
                    let insts = (0..choices.below(4)).map(|_| choices.byte().into()).collect();
                    if entries.iter().all(|(of, ..)| *of != indom) {
                        entries.push((indom, excludes, insts));
                    }
                }
                *profile = Profile { excludes: choices.byte() & 1 == 1, entries };
                let entries: Vec<_> =
                    profile.entries.iter().map(|(of, excludes, insts)| (*of, *excludes, &insts[..])).collect();
                product.pmcd.tell(&pmcd::profile(profile.excludes, &entries));
            }
            5 => {
                let pmid = metric(choices);
                let reply = product.pmcd.ask(&pmcd::desc(pmid));
                match decode(&reply) {
                    Pdu::Desc(desc) => assert_eq!((desc.pmid, reply.len()), (pmid, 32)),
                    Pdu::Error { code } => assert!(code < 0),
                    other => panic!("{other:?}"),
                }
            }
            6 => {
                let request = match choices.below(3) {
                    0 => pmcd::instance(choices.one(&INDOMS), IN_NULL, ""),
                    1 => pmcd::instance(choices.one(&INDOMS), choices.byte().into(), ""),
                    _ => pmcd::instance(choices.one(&INDOMS), IN_NULL, choices.one(&NAMES)),
                };
                if let Pdu::Instance { entries, .. } = expect(product, &request, PduType::INSTANCE) {
                    let mut ids: Vec<InstId> = entries.iter().map(|(inst, _)| *inst).collect();
                    ids.sort_unstable();
                    ids.dedup();
                    assert_eq!(ids.len(), entries.len(), "identifiers that two instances have");
                }
            }
            7 => {
                let ident = choices.one(&[FORKS.0, LATENCY.0, COMMANDS.0, BCC, 0, u32::MAX]);
                expect(product, &pmcd::text(ident, u32::from(choices.byte())), PduType::TEXT);
            }
            8 => {
                let ident = choices.one(&[FORKS.0, LATENCY.0, SESSIONS.0, BCC, 0, u32::MAX]);
                expect(product, &pmcd::label(ident, 1 << choices.below(7)), PduType::LABEL);
            }
            9 => {
                let name = choices.one(&NAMES);
                let (request, ty) = match choices.below(4) {
                    0 => (pmcd::lookup(name), PduType::PMNS_IDS),
                    1 => (pmcd::children(name, choices.byte() & 1 == 1), PduType::PMNS_NAMES),
                    2 => (pmcd::traverse(name), PduType::PMNS_NAMES),
                    _ => (pmcd::names_of(metric(choices)), PduType::PMNS_NAMES),
                };
                expect(product, &request, ty);
            }
            10 => {
                let value = choices.one(&[&b"start\0"[..], b"stop\0", b"dump\0", b"\xff\0", b""]);
                let pmid = choices.one(&[PROFILE, FORKS, Pmid::new(BCC, 301, 5), Pmid::new(BCC, 299, 0)]);
                let reply = product.pmcd.ask(&pmcd::store_block(pmid, IN_NULL, 6, value));
                let Pdu::Error { code } = decode(&reply) else { panic!("{}", frame(&reply).ty) };
                assert!(code <= 0);
            }
            11 => product.pmcd.tell(&pmcd::error(PmErr::NOTCONN.0)),
            _ => {
                // A request that is cut or bent has at most one answer, and the next one is served.
                let whole = pmcd::profile(false, &[(LATENCY, true, &[1, 2])]);
                let mut bent =
                    choices.one(&[&pmcd::fetch(&[FORKS, PROFILE])[..], &pmcd::lookup("bcc.proc"), &whole]).to_vec();
                let ty = frame(&bent).ty;
                bent.truncate(12 + choices.below(bent.len() - 11));
                if bent.len() > 12 {
                    let at = 12 + choices.below(bent.len() - 12);
                    bent[at] ^= choices.byte();
                }
                let length = bent.len() as u32;
                bent[..4].copy_from_slice(&length.to_be_bytes());
                assert!(split(&product.pmcd.send(&bent)).len() == usize::from(ty != PduType::PROFILE));
                // Such a profile may have been taken.
                if ty == PduType::PROFILE {
                    *profile = Profile::default();
                    product.pmcd.tell(&pmcd::profile(false, &[]));
                }
            }
        }
    }
}

/// Returns the answer, which has this type or is an error.
fn expect<'a>(product: &'a mut Product, request: &[u8], ty: PduType) -> Pdu<'a> {
    product.reply = product.pmcd.ask(request);
    match decode(&product.reply) {
        Pdu::Error { code } if code < 0 => Pdu::Error { code },
        other => {
            assert_eq!(frame(&product.reply).ty, ty);
            other
        }
    }
}

/// Statements 20 to 31: a set for each metric in its order, and no instance that the profile leaves out.
fn check_values(reply: &[u8], pmids: &[Pmid], profile: &Profile) {
    if pmids.is_empty() && frame(reply).ty == PduType::ERROR {
        return;
    }
    let sets = pmcd::result(reply);
    assert_eq!(sets.iter().map(|set| set.pmid).collect::<Vec<_>>(), pmids);
    for set in &sets {
        let of = Indom::new(BCC, set.pmid.cluster());
        for inst in set.insts().into_iter().filter(|inst| *inst != IN_NULL) {
            // Metrics of these clusters have the domain of their cluster's number.
            assert!(![0, 3, 13, 40].contains(&set.pmid.cluster()) || profile.has(of, inst), "{}: {inst}", set.pmid);
        }
    }
}

#[test]
fn conversations_that_are_generated_have_right_answers() {
    use proptest::prelude::*;
    let bytes = prop::collection::vec(any::<u8>(), 0..400);
    let held = std::cell::RefCell::new(Conversations::default());
    proptest!(ProptestConfig::with_cases(256), |(data in bytes)| held.borrow_mut().hold(&data));
}

#[test]
fn the_corpus_of_generated_conversations_holds() {
    let corpus = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/conversation")).unwrap();
    let mut conversations = Conversations::default();
    let held = corpus.map(|file| conversations.hold(&std::fs::read(file.unwrap().path()).unwrap())).count();
    assert!(held >= 4);
}
