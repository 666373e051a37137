//! The PDU protocol between pmcd and an agent: frames to typed PDUs and back, both directions, so that tests can play
//! pmcd. No I/O. Everything is big-endian; a PDU starts with its length, its type and its sender.

mod codec;
mod fetch;
mod frame;
mod label;
mod result;
mod types;
mod value;

pub use codec::DecodeError;
pub use fetch::{Pmids, Profile, ProfileEntry};
pub use frame::{Deframer, Frame, FrameError};
pub use label::{Label, LabelSet, WireLabel};
pub use result::{ResultBuilder, ResultSet, ResultWriter};
pub use types::{Creds, LabelClass, PduType, TextKind};
pub use value::{Event, Value, ValueSet};

use crate::pcp::{Desc, Indom, InstId, Pmid};
use codec::{Reader, Wire, Writer};

/// A decoded PDU. Strings and lists borrow from the frame where possible.
#[derive(Clone, Debug, PartialEq)]
pub enum Pdu<'a> {
    /// Status: instead of a reply, as acknowledgement (0), or as a notice.
    Error {
        /// Code: a [`crate::pcp::PmErr`], or 0.
        code: i32,
    },
    /// An ERROR with one more word: pmcd's greeting to a client, never to an agent.
    Greeting {
        /// Code, as in [`Pdu::Error`].
        code: i32,
        /// Features of pmcd.
        features: u32,
    },
    /// Handshake.
    Creds(Creds),
    /// Selection of instances for the following requests.
    Profile(Profile),
    /// Request for values.
    Fetch {
        /// Number of the client's context.
        context: i32,
        /// Metrics.
        pmids: Pmids<'a>,
    },
    /// Values: a reply, or a store.
    Result(ResultSet<'a>),
    /// Request for a descriptor.
    DescReq(Pmid),
    /// A descriptor.
    Desc(Desc),
    /// Request for instances: all, the one with this number, or the one with this name.
    InstanceReq {
        /// Instance domain.
        indom: Indom,
        /// Number, or [`crate::pcp::IN_NULL`].
        inst: InstId,
        /// Name; an empty one cannot be requested.
        name: Option<&'a [u8]>,
    },
    /// Instances. The name is empty if it was requested by name; the number is [`crate::pcp::IN_NULL`] if it was
    /// requested by number.
    Instance {
        /// Instance domain.
        indom: Indom,
        /// Number and name of each instance.
        entries: Vec<(InstId, &'a [u8])>,
    },
    /// Request for a help text.
    TextReq {
        /// A metric or an instance domain.
        ident: u32,
        /// Kind of text.
        kind: TextKind,
    },
    /// A help text.
    Text {
        /// Identifier of the request. The C library sends it in host order; clients ignore it.
        ident: u32,
        /// Text, without a newline at its end.
        text: &'a [u8],
    },
    /// Metrics: the request for their names, or the reply to names.
    PmnsIds {
        /// Status, 0.
        status: i32,
        /// Metrics: one, in requests of pmcd and replies to it.
        ids: Vec<Pmid>,
    },
    /// Metric names: the request for their numbers, or the reply to the other name requests.
    PmnsNames {
        /// Status (0 leaf, 1 non-leaf) and name; all have a status or none has, as the first decides.
        names: Vec<(Option<i32>, &'a [u8])>,
    },
    /// Request for the direct children of a name.
    PmnsChild {
        /// True if the reply should tell leaves from others.
        statuses: bool,
        /// Name.
        name: &'a [u8],
    },
    /// Request for all leaves at or below a name.
    PmnsTraverse {
        /// Name.
        name: &'a [u8],
    },
    /// Attribute of the client in slot `from` (`PCP_ATTR_*`).
    Attr {
        /// Number of the attribute: 5 user name, 11 user id, 12 group id, 14 process id, 15 container; others occur.
        attribute: i32,
        /// Value without the terminating NUL of the wire format, where an empty value has none.
        value: &'a [u8],
    },
    /// Request for labels.
    LabelReq {
        /// Identifier of the labelled object, depending on the class.
        ident: u32,
        /// Class.
        class: LabelClass,
    },
    /// Labels.
    Label {
        /// Identifier of the request.
        ident: u32,
        /// Class of the request.
        class: LabelClass,
        /// Sets: none without labels; one, or one for each instance.
        sets: Vec<LabelSet<'a>>,
    },
    /// Request like [`Pdu::Fetch`], from client to pmcd only.
    HighresFetch {
        /// Context, as in [`Pdu::Fetch`].
        context: i32,
        /// Metrics, as in [`Pdu::Fetch`].
        pmids: Pmids<'a>,
    },
    /// Reply like [`Pdu::Result`], from pmcd to client only.
    HighresResult {
        /// Seconds since 1970.
        sec: i64,
        /// Nanoseconds.
        nsec: i64,
        /// Value sets, as in [`ResultSet`].
        sets: Vec<ValueSet<'a>>,
    },
    /// Request for several descriptors, from client to pmcd only.
    DescIds {
        /// Metrics.
        ids: Vec<Pmid>,
    },
    /// Descriptors, from pmcd to client only; those of bad identifiers are [`Pmid::NULL`].
    Descs {
        /// Descriptors in the requested order.
        descs: Vec<Desc>,
    },
    /// A PDU of a type that this codec does not decode.
    Other {
        /// Type.
        ty: PduType,
    },
}

impl<'a> Pdu<'a> {
    /// Decodes the body of `frame` by its type.
    pub fn decode(frame: &Frame<'a>) -> Result<Pdu<'a>, DecodeError> {
        let r = &mut Reader::body(frame.body);
        let pdu = match frame.ty {
            PduType::ERROR => error(r)?,
            PduType::RESULT => Pdu::Result(ResultSet::decode(r)?),
            PduType::PROFILE => Pdu::Profile(Profile::decode(r)?),
            PduType::FETCH => fetch(r).map(|(context, pmids)| Pdu::Fetch { context, pmids })?,
            PduType::DESC_REQ => Pdu::DescReq(Pmid::decode(r)?),
            PduType::DESC => Pdu::Desc(Desc::decode(r)?),
            PduType::INSTANCE_REQ => instance_req(r)?,
            PduType::INSTANCE => {
                let indom = Indom(r.u32("indom")?);
                let n = r.count(<(InstId, &[u8])>::MIN, "instances")?;
                Pdu::Instance { indom, entries: r.list(n)? }
            }
            PduType::TEXT_REQ => {
                Pdu::TextReq { ident: r.u32("text identifier")?, kind: TextKind::from_bits_retain(r.i32("text kind")?) }
            }
            PduType::TEXT => Pdu::Text { ident: r.u32("text identifier")?, text: r.string("text")? },
            PduType::CREDS => creds(r)?,
            PduType::PMNS_IDS => ids(r).map(|(status, ids)| Pdu::PmnsIds { status, ids })?,
            PduType::PMNS_NAMES => names(r)?,
            PduType::PMNS_CHILD => Pdu::PmnsChild { statuses: r.i32("subtype")? != 0, name: r.string("name")? },
            PduType::PMNS_TRAVERSE => {
                r.i32("subtype")?;
                Pdu::PmnsTraverse { name: r.string("name")? }
            }
            PduType::ATTR => {
                let attribute = r.i32("attribute")?;
                let value = r.rest();
                Pdu::Attr { attribute, value: value.strip_suffix(b"\0").unwrap_or(value) }
            }
            PduType::LABEL_REQ => {
                Pdu::LabelReq { ident: r.u32("label identifier")?, class: LabelClass(r.i32("label class")?) }
            }
            PduType::LABEL => {
                let (ident, class) = (r.u32("label identifier")?, LabelClass(r.i32("label class")?));
                r.u32("label padding")?;
                Pdu::Label { ident, class, sets: label::decode(r)? }
            }
            PduType::HIGHRES_FETCH => fetch(r).map(|(context, pmids)| Pdu::HighresFetch { context, pmids })?,
            PduType::HIGHRES_RESULT => {
                let n = r.i32("value sets")?;
                let (sec, nsec) = (r.i64("time stamp")?, r.i64("time stamp")?);
                let n = r.bound(n, ValueSet::MIN, "value sets")?;
                Pdu::HighresResult { sec, nsec, sets: result::decode_sets(r, n)? }
            }
            PduType::DESC_IDS => ids(r).map(|(_, ids)| Pdu::DescIds { ids })?,
            PduType::DESCS => {
                let n = r.count(Desc::MIN, "descriptors")?;
                Pdu::Descs { descs: r.list(n)? }
            }
            ty => return Ok(Pdu::Other { ty }),
        };
        r.finish(frame.ty.name().unwrap_or("pdu"))?;
        Ok(pdu)
    }

    /// Appends the whole PDU, header included, to `out`. Values that the format cannot hold become error codes: a block
    /// that is too long, an error that is not negative.
    pub fn encode(&self, from: i32, out: &mut Vec<u8>) {
        let mut w = Writer::pdu(out, self.ty(), from);
        match self {
            Pdu::Error { code } => w.i32(*code),
            Pdu::Greeting { code, features } => {
                w.i32(*code);
                w.u32(*features);
            }
            Pdu::Result(result) => return result.encode(w),
            Pdu::Profile(profile) => profile.encode(&mut w),
            Pdu::Fetch { context, pmids } | Pdu::HighresFetch { context, pmids } => {
                w.i32(*context);
                w.u64(0);
                pmids.encode(&mut w);
            }
            Pdu::DescReq(pmid) => pmid.encode(&mut w),
            Pdu::Desc(desc) => desc.encode(&mut w),
            Pdu::InstanceReq { indom, inst, name } => {
                w.u32(indom.0);
                w.u64(0);
                w.u32(*inst);
                w.string(name.unwrap_or_default());
            }
            Pdu::Instance { indom, entries } => {
                w.u32(indom.0);
                w.count(entries.len());
                w.list(entries);
            }
            Pdu::TextReq { ident, kind } => {
                w.u32(*ident);
                w.i32(kind.bits());
            }
            Pdu::Text { ident, text } => {
                w.u32(*ident);
                w.string(text);
            }
            Pdu::Creds(creds) => {
                w.count(1);
                w.u8(Creds::TYPE);
                w.u8(creds.version);
                w.u16(creds.flags);
            }
            Pdu::PmnsIds { status, ids } => {
                w.i32(*status);
                w.count(ids.len());
                w.list(ids);
            }
            Pdu::PmnsNames { names } => encode_names(&mut w, names),
            Pdu::PmnsChild { statuses, name } => {
                w.u32((*statuses).into());
                w.string(name);
            }
            Pdu::PmnsTraverse { name } => {
                w.u32(0);
                w.string(name);
            }
            Pdu::Attr { attribute, value } => {
                w.i32(*attribute);
                w.bytes(value);
                if !value.is_empty() {
                    w.u8(0);
                }
            }
            Pdu::LabelReq { ident, class } => {
                w.u32(*ident);
                w.i32(class.0);
            }
            Pdu::Label { ident, class, sets } => {
                w.u32(*ident);
                w.i32(class.0);
                w.u32(0);
                label::encode(&mut w, sets);
            }
            Pdu::HighresResult { sec, nsec, sets } => {
                w.count(sets.len());
                w.i64(*sec);
                w.i64(*nsec);
                return result::encode_sets(w, sets);
            }
            Pdu::DescIds { ids } => {
                w.i32(-1);
                w.count(ids.len());
                w.list(ids);
            }
            Pdu::Descs { descs } => {
                w.count(descs.len());
                w.list(descs);
            }
            Pdu::Other { .. } => {}
        }
        w.finish();
    }

    /// Returns its type on the wire.
    pub fn ty(&self) -> PduType {
        match self {
            Pdu::Error { .. } | Pdu::Greeting { .. } => PduType::ERROR,
            Pdu::Result(_) => PduType::RESULT,
            Pdu::Profile(_) => PduType::PROFILE,
            Pdu::Fetch { .. } => PduType::FETCH,
            Pdu::DescReq(_) => PduType::DESC_REQ,
            Pdu::Desc(_) => PduType::DESC,
            Pdu::InstanceReq { .. } => PduType::INSTANCE_REQ,
            Pdu::Instance { .. } => PduType::INSTANCE,
            Pdu::TextReq { .. } => PduType::TEXT_REQ,
            Pdu::Text { .. } => PduType::TEXT,
            Pdu::Creds(_) => PduType::CREDS,
            Pdu::PmnsIds { .. } => PduType::PMNS_IDS,
            Pdu::PmnsNames { .. } => PduType::PMNS_NAMES,
            Pdu::PmnsChild { .. } => PduType::PMNS_CHILD,
            Pdu::PmnsTraverse { .. } => PduType::PMNS_TRAVERSE,
            Pdu::Attr { .. } => PduType::ATTR,
            Pdu::LabelReq { .. } => PduType::LABEL_REQ,
            Pdu::Label { .. } => PduType::LABEL,
            Pdu::HighresFetch { .. } => PduType::HIGHRES_FETCH,
            Pdu::HighresResult { .. } => PduType::HIGHRES_RESULT,
            Pdu::DescIds { .. } => PduType::DESC_IDS,
            Pdu::Descs { .. } => PduType::DESCS,
            Pdu::Other { ty } => *ty,
        }
    }
}

fn error<'a>(r: &mut Reader<'a>) -> Result<Pdu<'a>, DecodeError> {
    let code = r.i32("error code")?;
    if r.left() == 0 {
        return Ok(Pdu::Error { code });
    }
    Ok(Pdu::Greeting { code, features: r.u32("features")? })
}

/// Decodes context, eight bytes that were a time stamp, the metrics.
fn fetch<'a>(r: &mut Reader<'a>) -> Result<(i32, Pmids<'a>), DecodeError> {
    let context = r.i32("context")?;
    r.u64("time stamp")?;
    Ok((context, Pmids::decode(r)?))
}

/// Decodes domain, eight bytes that were a time stamp, number, length of the name or 0, name.
fn instance_req<'a>(r: &mut Reader<'a>) -> Result<Pdu<'a>, DecodeError> {
    let indom = Indom(r.u32("indom")?);
    r.u64("time stamp")?;
    let inst = r.u32("instance")?;
    let name = Some(r.string("instance name")?).filter(|name| !name.is_empty());
    Ok(Pdu::InstanceReq { indom, inst, name })
}

/// Decodes a count, then type (8 bits) and 24 bits of content each. Only the version is used.
fn creds<'a>(r: &mut Reader<'a>) -> Result<Pdu<'a>, DecodeError> {
    let mut creds = Creds { version: 0, flags: 0 };
    for _ in 0..r.count(4, "credentials")? {
        let (ty, version, flags) = (r.u8("credential")?, r.u8("version")?, r.u16("flags")?);
        if ty == Creds::TYPE {
            creds = Creds { version, flags };
        }
    }
    Ok(Pdu::Creds(creds))
}

fn ids(r: &mut Reader<'_>) -> Result<(i32, Vec<Pmid>), DecodeError> {
    let status = r.i32("status")?;
    let n = r.count(Pmid::MIN, "pmids")?;
    Ok((status, r.list(n)?))
}

/// Decodes the size of all names with a NUL each (pmcd allocates from it), number of statuses, number of names; then
/// the names, each after its status if there are any.
fn names<'a>(r: &mut Reader<'a>) -> Result<Pdu<'a>, DecodeError> {
    let total = r.i32("bytes of names")?;
    let statuses = r.i32("name statuses")?;
    let count = r.i32("names")?;
    if statuses != 0 && statuses != count {
        return Err(DecodeError::Illegal("number of name statuses", statuses));
    }
    let n = r.bound(count, if statuses == 0 { 4 } else { 8 }, "names")?;
    let mut names = Vec::with_capacity(n);
    let mut bytes = 0;
    for _ in 0..n {
        let status = if statuses == 0 { None } else { Some(r.i32("name status")?) };
        let name = r.string("name")?;
        bytes += name.len() + 1;
        names.push((status, name));
    }
    if usize::try_from(total).map_or(true, |total| total < bytes) {
        return Err(DecodeError::Illegal("bytes of names", total));
    }
    Ok(Pdu::PmnsNames { names })
}

fn encode_names(w: &mut Writer<'_>, names: &[(Option<i32>, &[u8])]) {
    let statuses = matches!(names.first(), Some((Some(_), _)));
    w.count(names.iter().map(|(_, name)| name.len() + 1).sum());
    w.count(if statuses { names.len() } else { 0 });
    w.count(names.len());
    for (status, name) in names {
        if statuses {
            w.i32(status.unwrap_or(0));
        }
        w.string(name);
    }
}
