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

/// A decoded PDU. Strings and lists of the frame are borrowed from it where they can be.
#[derive(Clone, Debug, PartialEq)]
pub enum Pdu<'a> {
    /// Instead of a reply, as acknowledgement (0), or as a notice.
    Error {
        /// A [`crate::pcp::PmErr`], or 0.
        code: i32,
    },
    /// An ERROR with one more word: pmcd's greeting to a client, never to an agent.
    Greeting {
        /// As in [`Pdu::Error`].
        code: i32,
        /// The features of pmcd.
        features: u32,
    },
    /// The handshake.
    Creds(Creds),
    /// Which instances the requests that follow are about.
    Profile(Profile),
    /// Values wanted.
    Fetch {
        /// The client's own number for its context.
        context: i32,
        /// The metrics.
        pmids: Pmids<'a>,
    },
    /// Values: a reply, or a store.
    Result(ResultSet<'a>),
    /// A descriptor wanted.
    DescReq(Pmid),
    /// A descriptor.
    Desc(Desc),
    /// Instances wanted: all, the one with this number, or the one with this name.
    InstanceReq {
        /// The domain.
        indom: Indom,
        /// The number, or [`crate::pcp::IN_NULL`].
        inst: InstId,
        /// The name; an empty one cannot be asked for.
        name: Option<&'a [u8]>,
    },
    /// Instances; the name of the one asked for by name is empty, the number of the one asked for by number is [`crate::pcp::IN_NULL`].
    Instance {
        /// The domain.
        indom: Indom,
        /// Number and name of each.
        entries: Vec<(InstId, &'a [u8])>,
    },
    /// A help text wanted.
    TextReq {
        /// A metric or an instance domain.
        ident: u32,
        /// Which text.
        kind: TextKind,
    },
    /// A help text.
    Text {
        /// That of the request. The C library sends it in host order; clients ignore it.
        ident: u32,
        /// The text, no newline at its end.
        text: &'a [u8],
    },
    /// Metrics: the request for their names, or the reply to names.
    PmnsIds {
        /// 0.
        status: i32,
        /// One, from pmcd and for it.
        ids: Vec<Pmid>,
    },
    /// Metric names: the request for their numbers, or the reply to the other name requests.
    PmnsNames {
        /// Status (0 leaf, 1 non-leaf) and name; all have a status or none has, the first decides.
        names: Vec<(Option<i32>, &'a [u8])>,
    },
    /// The direct children of a name wanted.
    PmnsChild {
        /// Whether the reply should tell leaves from others.
        statuses: bool,
        /// The name.
        name: &'a [u8],
    },
    /// All leaves at or below a name wanted.
    PmnsTraverse {
        /// The name.
        name: &'a [u8],
    },
    /// An attribute of the client in slot `from` (`PCP_ATTR_*`).
    Attr {
        /// 5 user name, 11 user id, 12 group id, 14 process id, 15 container; others occur.
        attribute: i32,
        /// Without the NUL it ends with on the wire, where an empty value has none.
        value: &'a [u8],
    },
    /// Labels wanted.
    LabelReq {
        /// What about, depending on the class.
        ident: u32,
        /// One class.
        class: LabelClass,
    },
    /// Labels.
    Label {
        /// That of the request.
        ident: u32,
        /// That of the request.
        class: LabelClass,
        /// None if there are no labels; one, or one for each instance.
        sets: Vec<LabelSet<'a>>,
    },
    /// Client to pmcd only: as [`Pdu::Fetch`].
    HighresFetch {
        /// As in [`Pdu::Fetch`].
        context: i32,
        /// As in [`Pdu::Fetch`].
        pmids: Pmids<'a>,
    },
    /// pmcd to client only: as [`Pdu::Result`].
    HighresResult {
        /// Seconds since 1970.
        sec: i64,
        /// Nanoseconds.
        nsec: i64,
        /// As in [`ResultSet`].
        sets: Vec<ValueSet<'a>>,
    },
    /// Client to pmcd only: several descriptors wanted.
    DescIds {
        /// The metrics.
        ids: Vec<Pmid>,
    },
    /// pmcd to client only: descriptors, [`Pmid::NULL`] in bad ones.
    Descs {
        /// In the order asked.
        descs: Vec<Desc>,
    },
    /// A type this codec does not read.
    Other {
        /// The type.
        ty: PduType,
    },
}

impl<'a> Pdu<'a> {
    /// Reads the body of `frame` as its type says.
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

    /// Appends the whole PDU, header included, to `out`. What cannot be put on the wire becomes an error code there: a
    /// block that is too long, an error that is not negative.
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

    /// The type it goes by on the wire.
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

/// Context, eight bytes that were a time stamp, the metrics.
fn fetch<'a>(r: &mut Reader<'a>) -> Result<(i32, Pmids<'a>), DecodeError> {
    let context = r.i32("context")?;
    r.u64("time stamp")?;
    Ok((context, Pmids::decode(r)?))
}

/// Domain, eight bytes that were a time stamp, number, length of the name or 0, name.
fn instance_req<'a>(r: &mut Reader<'a>) -> Result<Pdu<'a>, DecodeError> {
    let indom = Indom(r.u32("indom")?);
    r.u64("time stamp")?;
    let inst = r.u32("instance")?;
    let name = Some(r.string("instance name")?).filter(|name| !name.is_empty());
    Ok(Pdu::InstanceReq { indom, inst, name })
}

/// Count, then type (8 bits) and 24 bits of content each. Only the version is of interest.
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

/// Bytes of all names with a NUL each (pmcd allocates from it), number of statuses, number of names; then the names, each
/// behind its status if there are any.
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
