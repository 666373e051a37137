//! The agent's side of the conversation with pmcd: a request goes in, its reply comes out. No I/O and no clock; the
//! transport carries the bytes, a [`Source`] has the metrics.

mod fetch;
mod instances;
mod labels;
mod names;
mod profile;
mod source;
mod store;

use crate::{
    pcp::{Desc, Indom, PmErr, Pmid},
    pdu::{Creds, DecodeError, Frame, Pdu, PduType, Pmids, ResultWriter, TextKind},
};
pub use source::{Changes, Client, Label, LabelValue, Run, Selected, Source, Subject};

use log::{debug, warn};
use names::Names;
use profile::Profile;
use std::borrow::Cow;

/// Options of the handshake.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// True to request the attributes of clients (`PDU_FLAG_AUTH`, `PDU_FLAG_CONTAINER`): every connection of a client
    /// then costs pmcd some PDUs to this agent.
    pub attributes: bool,
    /// True if the entry in `pmcd.conf` has `notready`: pmcd waits for an announcement, see [`Agent::ready`].
    pub notready: bool,
}

/// Returns the first PDU of an agent, its CREDS. `pid` is its process id; `attributes` requests the attributes of
/// clients.
pub fn creds(pid: u32, attributes: bool) -> Vec<u8> {
    let flags = if attributes { Creds::AUTH | Creds::CONTAINER } else { 0 };
    let mut out = Vec::new();
    Pdu::Creds(Creds { version: 2, flags }).encode(pid as i32, &mut out);
    out
}

/// A conversation with pmcd (or dbpmda) about one [`Source`].
pub struct Agent<S> {
    source: S,
    options: Options,
    state: State,
    names: Names,
    profile: Profile,
    /// Changes that no fetch result has announced yet.
    changes: Changes,
    results: ResultWriter,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The agent has sent its CREDS or is about to; pmcd has not.
    AwaitCreds {
        /// True if [`Agent::ready`] was called.
        ready: bool,
    },
    /// State in which pmcd regards the agent as not ready and sends nothing.
    NotReady,
    Running,
}

impl<S: Source> Agent<S> {
    /// Makes an agent at the start of a conversation.
    pub fn new(mut source: S, options: Options) -> Agent<S> {
        source.take_changes(); // nobody has seen an earlier state
        Agent {
            names: Names::new(source.names()),
            source,
            options,
            state: State::AwaitCreds { ready: false },
            profile: Profile::default(),
            changes: Changes::empty(),
            results: ResultWriter::new(),
        }
    }

    /// Returns the first PDU of this agent, its CREDS. `pid` is its process id.
    pub fn creds(&self, pid: u32) -> Vec<u8> {
        creds(pid, self.options.attributes)
    }

    /// Ends the initialisation: appends the announcement of it, if pmcd waits for one. Only the first call counts; one
    /// before pmcd's CREDS takes effect when they arrive.
    pub fn ready(&mut self, out: &mut Vec<u8>) {
        match self.state {
            State::AwaitCreds { .. } => self.state = State::AwaitCreds { ready: true },
            State::NotReady => self.announce(out),
            State::Running => {}
        }
    }

    /// Gives back the memory of large replies and of values.
    pub fn idle(&mut self) {
        self.results = ResultWriter::new();
        self.source.idle();
    }

    /// Handles one PDU from pmcd and appends the reply, if the request has one.
    pub fn handle(&mut self, frame: &Frame<'_>, out: &mut Vec<u8>) {
        if let State::AwaitCreds { ready } = self.state {
            return self.handshake(frame, ready, out);
        }
        self.notice_changes();
        let start = out.len();
        let outcome = match Pdu::decode(frame) {
            Ok(pdu) => self.dispatch(frame, pdu, out),
            Err(err) => undecodable(frame, err),
        };
        if let Err(code) = outcome {
            out.truncate(start);
            Pdu::Error { code: code.sendable().0 }.encode(0, out);
        }
        if self.state == State::NotReady && out.len() > start {
            // Announcing readiness to a pmcd that does not wait for it would be taken for the next reply.
            warn!("{} received before readiness was announced: pmcd.conf lacks notready", frame.ty);
            self.state = State::Running;
        }
    }

    /// Returns the source of the metrics.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Returns the source of the metrics. Changes of names or labels are noticed with the next request.
    pub fn source_mut(&mut self) -> &mut S {
        &mut self.source
    }

    fn handshake(&mut self, frame: &Frame<'_>, ready: bool, out: &mut Vec<u8>) {
        match Pdu::decode(frame) {
            Ok(Pdu::Creds(creds)) => {
                debug!("pmcd introduced itself: version {}, flags {:#x}", creds.version, creds.flags);
                self.state = if self.options.notready { State::NotReady } else { State::Running };
                if ready {
                    self.ready(out);
                }
            }
            Ok(_) => warn!("{} received before pmcd's CREDS, ignored", frame.ty),
            Err(err) => warn!("{} received before pmcd's CREDS, ignored: {err}", frame.ty),
        }
    }

    fn announce(&mut self, out: &mut Vec<u8>) {
        Pdu::Error { code: PmErr::PMDAREADY.0 }.encode(0, out);
        self.state = State::Running;
        // pmcd tells an agent that is not ready of no client that leaves.
        self.source.clients_unknown();
    }

    fn dispatch(&mut self, frame: &Frame<'_>, pdu: Pdu<'_>, out: &mut Vec<u8>) -> Result<(), PmErr> {
        let source = &mut self.source;
        match pdu {
            Pdu::Profile(sent) => self.profile.replace(sent),
            Pdu::Attr { attribute, value } => source.attribute(frame.from, attribute as u32, value),
            Pdu::Error { code } | Pdu::Greeting { code, .. } if code == PmErr::NOTCONN.0 => {
                source.client_gone(frame.from);
            }
            Pdu::Error { code } | Pdu::Greeting { code, .. } => {
                debug!("{} from pmcd for client {} ignored", PmErr(code), frame.from)
            }
            Pdu::Fetch { pmids, .. } => self.fetch(frame.from, &pmids, out),
            Pdu::Result(values) => {
                store::apply(source, frame.from, &values.sets)?;
                Pdu::Error { code: 0 }.encode(0, out);
            }
            Pdu::DescReq(pmid) => Pdu::Desc(Desc { pmid, ..source.desc(pmid)? }).encode(0, out),
            Pdu::InstanceReq { indom, inst, name } => instances::reply(source, indom, inst, name, out)?,
            Pdu::TextReq { ident, kind } => {
                let text = text(source, ident, kind)?;
                let text = text.as_bytes();
                Pdu::Text { ident, text }.encode(0, out);
            }
            Pdu::LabelReq { ident, class } => labels::reply(source, &self.profile, ident, class, out)?,
            Pdu::PmnsIds { .. } | Pdu::PmnsNames { .. } | Pdu::PmnsChild { .. } | Pdu::PmnsTraverse { .. } => {
                self.names.reply(&pdu, out)?;
            }
            // Without answer, as the stock agent does it: whoever sent it cannot be waiting for anything known.
            _ => warn!("unexpected {} of {} bytes from pmcd ignored", frame.ty, frame.body.len() + 12),
        }
        Ok(())
    }

    fn fetch(&mut self, client: i32, pmids: &Pmids<'_>, out: &mut Vec<u8>) {
        self.source.refresh(&mut pmids.iter());
        self.notice_changes();
        let stamp = std::mem::replace(&mut self.changes, Changes::empty()).bits();
        let mut result = self.results.begin(out, 0, stamp, pmids.len());
        fetch::values(&self.source, &self.profile, client, pmids, &mut result);
        result.finish();
    }

    /// Reads the names again if they have changed, so that a request for a new one finds it. The next fetch announces
    /// it.
    pub fn notice_changes(&mut self) {
        let changes = self.source.take_changes();
        if changes.contains(Changes::NAMES) {
            self.names = Names::new(self.source.names());
        }
        self.changes |= changes;
    }
}

/// Returns the help text of a metric or domain. Identifiers share one number space, so the kind must say which it is.
fn text(source: &impl Source, ident: u32, kind: TextKind) -> Result<Cow<'_, str>, PmErr> {
    let of = match (kind.contains(TextKind::PMID), kind.contains(TextKind::INDOM)) {
        (true, false) => Subject::Metric(Pmid(ident)),
        (false, true) => Subject::Indom(Indom(ident)),
        _ => return Err(PmErr::TEXT),
    };
    match (kind.contains(TextKind::ONELINE), kind.contains(TextKind::HELP)) {
        (oneline, full) if oneline != full => source.text(of, full),
        _ => Err(PmErr::TEXT),
    }
}

/// Returns the answer to a PDU that cannot be decoded: framing is intact, so an error answers it, but only if the
/// request has a reply. `PM_ERR_IPC`, the stock agent's answer, would cost the connection (`pmcd/src/dofetch.c`).
fn undecodable(frame: &Frame<'_>, err: DecodeError) -> Result<(), PmErr> {
    warn!("malformed {} of {} bytes from pmcd: {err}", frame.ty, frame.body.len() + 12);
    match frame.ty {
        PduType::FETCH
        | PduType::RESULT
        | PduType::DESC_REQ
        | PduType::INSTANCE_REQ
        | PduType::TEXT_REQ
        | PduType::PMNS_IDS
        | PduType::PMNS_NAMES
        | PduType::PMNS_CHILD
        | PduType::PMNS_TRAVERSE
        | PduType::LABEL_REQ => Err(PmErr::GENERIC),
        _ => Ok(()),
    }
}
