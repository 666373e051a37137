//! A pmcd for an agent in memory. Requests are built word by word, not by the codec under test.

use super::Reference;
use corebcc::{
    agent::Source,
    agent::{Agent, Options},
    pcp::{Indom, InstId, Pmid},
    pdu::{Frame, Pdu, PduType},
};

/// A conversation, after the exchange of CREDS unless stated otherwise.
pub struct Pmcd<S = Reference> {
    pub agent: Agent<S>,
    /// Client slot of the requests.
    pub slot: i32,
}

impl Pmcd {
    /// Starts a conversation with the reference agent.
    pub fn connected() -> Pmcd {
        Pmcd::with(Reference::default(), Options { attributes: true, notready: false })
    }
}

impl<S: Source> Pmcd<S> {
    /// Starts a conversation with an agent serving `source`.
    pub fn with(source: S, options: Options) -> Pmcd<S> {
        let mut pmcd = Pmcd::silent(source, options);
        assert_eq!(pmcd.send(&creds(4)), b"", "CREDS are not answered");
        pmcd
    }

    /// Starts a conversation before pmcd has sent its CREDS.
    pub fn silent(source: S, options: Options) -> Pmcd<S> {
        Pmcd { agent: Agent::new(source, options), slot: 0 }
    }

    /// Sends one PDU, with `from` replaced by the slot, and returns all replies.
    pub fn send(&mut self, request: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        self.agent.handle(&frame(&for_slot(request, self.slot)), &mut out);
        out
    }

    /// Sends a request and returns the one PDU that answers it.
    #[track_caller]
    pub fn ask(&mut self, request: &[u8]) -> Vec<u8> {
        let out = self.send(request);
        assert_eq!(split(&out).len(), 1, "one reply to {}: {}", frame(request).ty, out.escape_ascii());
        assert_eq!(out[8..12], [0; 4], "`from` of a reply");
        out
    }

    /// Sends a request that is answered by an ERROR and returns its code.
    #[track_caller]
    pub fn error(&mut self, request: &[u8]) -> i32 {
        error_code(request, &self.ask(request))
    }

    /// Sends a PDU that must not be answered.
    #[track_caller]
    pub fn tell(&mut self, pdu: &[u8]) {
        let out = self.send(pdu);
        assert!(out.is_empty(), "{} answered by {}", frame(pdu).ty, out.escape_ascii());
    }
}

/// Sets the client slot of a request, its `from` word.
pub fn for_slot(request: &[u8], slot: i32) -> Vec<u8> {
    [&request[..8], &slot.to_be_bytes(), &request[12..]].concat()
}

/// Returns the code of the ERROR that answers a request.
#[track_caller]
pub fn error_code(request: &[u8], reply: &[u8]) -> i32 {
    match decode(reply) {
        Pdu::Error { code } => code,
        _ => panic!("{} answered by {}", frame(request).ty, frame(reply).ty),
    }
}

/// Returns the frame of one whole PDU.
#[track_caller]
pub fn frame(pdu: &[u8]) -> Frame<'_> {
    assert_eq!(word(pdu, 0) as usize, pdu.len(), "length word");
    Frame { ty: PduType(word(pdu, 4) as i32), from: word(pdu, 8) as i32, body: &pdu[12..] }
}

#[track_caller]
pub fn decode(pdu: &[u8]) -> Pdu<'_> {
    Pdu::decode(&frame(pdu)).unwrap_or_else(|err| panic!("{}: {err}", frame(pdu).ty))
}

/// Returns the big-endian word at an offset.
#[track_caller]
pub fn word(pdu: &[u8], offset: usize) -> u32 {
    u32::from_be_bytes(pdu[offset..offset + 4].try_into().unwrap())
}

/// Splits a stream of whole PDUs.
#[track_caller]
pub fn split(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut pdus = Vec::new();
    while !bytes.is_empty() {
        let (pdu, rest) = bytes.split_at(word(bytes, 0) as usize);
        pdus.push(pdu);
        bytes = rest;
    }
    pdus
}

/// Makes a PDU with this body.
pub fn pdu(ty: PduType, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for word in [12 + body.len() as u32, ty.0 as u32, 0] {
        out.extend(word.to_be_bytes());
    }
    out.extend(body);
    out
}

/// Makes a PDU of these words.
pub fn words(ty: PduType, body: &[u32]) -> Vec<u8> {
    pdu(ty, &body.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<_>>())
}

/// Makes a PDU of these words, then a counted and padded string.
pub fn words_and_string(ty: PduType, body: &[u32], string: &[u8]) -> Vec<u8> {
    let mut body: Vec<u8> = body.iter().chain([&(string.len() as u32)]).flat_map(|word| word.to_be_bytes()).collect();
    body.extend(string);
    body.resize(body.len().next_multiple_of(4), b'~');
    pdu(ty, &body)
}

pub fn creds(flags: u16) -> Vec<u8> {
    words(PduType::CREDS, &[1, 1 << 24 | 2 << 16 | u32::from(flags)])
}

pub fn error(code: i32) -> Vec<u8> {
    words(PduType::ERROR, &[code as u32])
}

pub fn fetch(pmids: &[Pmid]) -> Vec<u8> {
    let head = [0, 0, 0, pmids.len() as u32];
    words(PduType::FETCH, &head.into_iter().chain(pmids.iter().map(|pmid| pmid.0)).collect::<Vec<_>>())
}

/// Makes a PROFILE; entries are domain, state (exclude), list.
pub fn profile(exclude: bool, entries: &[(Indom, bool, &[InstId])]) -> Vec<u8> {
    let mut body = vec![0, exclude.into(), entries.len() as u32, 0];
    for (indom, exclude, list) in entries {
        body.extend([indom.0, u32::from(*exclude), list.len() as u32, 0]);
    }
    body.extend(entries.iter().flat_map(|(_, _, list)| *list));
    words(PduType::PROFILE, &body)
}

pub fn desc(pmid: Pmid) -> Vec<u8> {
    words(PduType::DESC_REQ, &[pmid.0])
}

/// Makes an INSTANCE_REQ; an empty name is omitted.
pub fn instance(indom: Indom, inst: InstId, name: &str) -> Vec<u8> {
    words_and_string(PduType::INSTANCE_REQ, &[indom.0, 0, 0, inst], name.as_bytes())
}

/// Makes a TEXT_REQ; kinds: 1 one-line, 2 full, 4 metric, 8 instance domain.
pub fn text(ident: u32, kind: u32) -> Vec<u8> {
    words(PduType::TEXT_REQ, &[ident, kind])
}

pub fn label(ident: u32, class: u32) -> Vec<u8> {
    words(PduType::LABEL_REQ, &[ident, class])
}

pub fn names_of(pmid: Pmid) -> Vec<u8> {
    words(PduType::PMNS_IDS, &[0, 1, pmid.0])
}

pub fn lookup(name: &str) -> Vec<u8> {
    words_and_string(PduType::PMNS_NAMES, &[name.len() as u32 + 1, 0, 1], name.as_bytes())
}

pub fn children(name: &str, statuses: bool) -> Vec<u8> {
    words_and_string(PduType::PMNS_CHILD, &[statuses.into()], name.as_bytes())
}

pub fn traverse(name: &str) -> Vec<u8> {
    words_and_string(PduType::PMNS_TRAVERSE, &[0], name.as_bytes())
}

/// Makes an ATTR; the value extends to the end of the PDU.
pub fn attr(attribute: u32, value: &[u8]) -> Vec<u8> {
    pdu(PduType::ATTR, &[&attribute.to_be_bytes(), value].concat())
}

/// Makes a store of one 32-bit value.
pub fn store(pmid: Pmid, inst: InstId, value: u32) -> Vec<u8> {
    words(PduType::RESULT, &[0xbb70_ff65, 0xdead, 1, pmid.0, 1, 0, inst, value])
}

/// Makes a store of one value block, with type and bytes.
pub fn store_block(pmid: Pmid, inst: InstId, ty: u32, bytes: &[u8]) -> Vec<u8> {
    store_blocks(pmid, &[inst], ty, bytes)
}

/// Makes a store of the same value to several instances, each with a block of its own.
pub fn store_blocks(pmid: Pmid, insts: &[InstId], ty: u32, bytes: &[u8]) -> Vec<u8> {
    let words = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_be_bytes()).collect() };
    let mut block = words(&[ty << 24 | (4 + bytes.len() as u32)]);
    block.extend(bytes);
    block.resize(block.len().next_multiple_of(4), b'~');
    let mut body = words(&[0xbb70_ff65, 0xdead, 1, pmid.0, insts.len() as u32, 1]);
    let first = 12 + body.len() + 8 * insts.len();
    for (n, inst) in insts.iter().enumerate() {
        body.extend(words(&[*inst, ((first + n * block.len()) / 4) as u32]));
    }
    body.extend(block.repeat(insts.len()));
    pdu(PduType::RESULT, &body)
}

/// A value in a RESULT: the word itself, or the block's type and bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Wire {
    Word(u32),
    Block { at: usize, ty: u8, bytes: Vec<u8> },
}

/// A value set of a RESULT: number of values or error, value format, values.
#[derive(Clone, Debug, PartialEq)]
pub struct Set {
    pub pmid: Pmid,
    pub numval: i32,
    pub format: Option<u32>,
    pub values: Vec<(InstId, Wire)>,
    pub at: usize,
}

impl Set {
    pub fn insts(&self) -> Vec<InstId> {
        self.values.iter().map(|(inst, _)| *inst).collect()
    }
}

/// Parses a RESULT strictly by its layout: sets, then blocks, in order, without gaps, up to the end.
#[track_caller]
pub fn result(reply: &[u8]) -> Vec<Set> {
    assert_eq!(frame(reply).ty, PduType::RESULT);
    let mut at = 24;
    let mut take = || {
        at += 4;
        (at - 4, word(reply, at - 4))
    };
    let mut sets: Vec<Set> = Vec::new();
    for _ in 0..word(reply, 20) {
        let (at, pmid) = take();
        let numval = take().1 as i32;
        let format = (numval > 0).then(|| take().1);
        let values = (0..numval.max(0)).map(|_| (take().1, Wire::Word(take().1))).collect();
        sets.push(Set { pmid: Pmid(pmid), numval, format, values, at });
    }
    let mut next = at;
    for (_, value) in sets.iter_mut().filter(|set| set.format != Some(0)).flat_map(|set| &mut set.values) {
        let Wire::Word(index) = *value else { unreachable!() };
        assert_eq!(index as usize * 4, next, "each block begins where the one before it ended");
        let (ty, len) = (reply[next], (word(reply, next) & 0xff_ffff) as usize);
        *value = Wire::Block { at: next, ty, bytes: reply[next + 4..next + len].to_vec() };
        next += len.next_multiple_of(4);
    }
    assert_eq!(next, reply.len(), "the PDU ends with the last block");
    sets
}

/// Returns the names of a PMNS_NAMES reply and their statuses, sorted.
#[track_caller]
pub fn names(reply: &[u8]) -> Vec<(Option<i32>, String)> {
    let Pdu::PmnsNames { names } = decode(reply) else { panic!("{} instead of names", frame(reply).ty) };
    let mut names: Vec<_> = names.iter().map(|(s, name)| (*s, String::from_utf8(name.to_vec()).unwrap())).collect();
    names.sort_by(|(_, a), (_, b)| a.cmp(b));
    names
}
