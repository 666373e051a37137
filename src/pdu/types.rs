//! Numbers of the protocol as newtypes with named constants, so that unknown ones can be printed and answered.

use std::fmt;

use bitflags::bitflags;

/// Type of a PDU (`PDU_*` in `libpcp.h`).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PduType(pub i32);

macro_rules! pdu_types {
    ($($name:ident = $code:literal;)*) => {
        #[allow(missing_docs)]
        impl PduType {
            $(pub const $name: PduType = PduType($code);)*

            /// Returns the name after `PDU_`, if the type is known.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

pdu_types! {
    ERROR = 0x7000;
    RESULT = 0x7001;
    PROFILE = 0x7002;
    FETCH = 0x7003;
    DESC_REQ = 0x7004;
    DESC = 0x7005;
    INSTANCE_REQ = 0x7006;
    INSTANCE = 0x7007;
    TEXT_REQ = 0x7008;
    TEXT = 0x7009;
    CONTROL_REQ = 0x700a;
    CREDS = 0x700c;
    PMNS_IDS = 0x700d;
    PMNS_NAMES = 0x700e;
    PMNS_CHILD = 0x700f;
    PMNS_TRAVERSE = 0x7010;
    ATTR = 0x7011;
    LABEL_REQ = 0x7012;
    LABEL = 0x7013;
    HIGHRES_FETCH = 0x7014;
    HIGHRES_RESULT = 0x7015;
    DESC_IDS = 0x7016;
    DESCS = 0x7017;
}

impl fmt::Display for PduType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{:#x}", self.0),
        }
    }
}

impl fmt::Debug for PduType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Class of the object that labels belong to (`PM_LABEL_*`): one bit in a request, and in the flags of each label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LabelClass(pub i32);

#[allow(missing_docs)]
impl LabelClass {
    pub const CONTEXT: LabelClass = LabelClass(1);
    pub const DOMAIN: LabelClass = LabelClass(2);
    pub const INDOM: LabelClass = LabelClass(4);
    pub const CLUSTER: LabelClass = LabelClass(8);
    pub const ITEM: LabelClass = LabelClass(16);
    pub const INSTANCES: LabelClass = LabelClass(32);
}

bitflags! {
    /// Kind of a requested help text (`PM_TEXT_*`). Unknown bits are kept.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct TextKind: i32 {
        /// The one-line text.
        const ONELINE = 1;
        /// The full text.
        const HELP = 2;
        /// The identifier is a [`crate::pcp::Pmid`].
        const PMID = 4;
        /// The identifier is an [`crate::pcp::Indom`].
        const INDOM = 8;
    }
}

/// Agreement between the two sides of a connection (`__pmVersionCred`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Creds {
    /// Protocol version: 2. Zero if no version was among the credentials.
    pub version: u8,
    /// Feature bits; pmcd checks [`Creds::AUTH`] and [`Creds::CONTAINER`].
    pub flags: u16,
}

impl Creds {
    /// `PDU_FLAG_AUTH`: send the attributes of clients.
    pub const AUTH: u16 = 0x0004;
    /// `PDU_FLAG_CONTAINER`: the same as [`Creds::AUTH`]; either bit requests all attributes.
    pub const CONTAINER: u16 = 0x0040;
    /// Type of the credential that carries version and flags (`CVERSION`).
    pub(super) const TYPE: u8 = 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_pdu_type_prints_its_number() {
        assert_eq!(PduType::PMNS_CHILD.to_string(), "PMNS_CHILD");
        assert_eq!(PduType(0x700b).to_string(), "0x700b");
    }
}
