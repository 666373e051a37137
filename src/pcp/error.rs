//! Error codes that a client may see (`PM_ERR_*` in `pmapi.h`).

use std::fmt;

/// A negative PCP status: a `PM_ERR_*` code or `-errno`. Unknown codes are possible.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PmErr(pub i32);

macro_rules! codes {
    ($($name:ident = $code:literal $text:literal;)*) => {
        impl PmErr {
            $(#[doc = concat!("`PM_ERR_", stringify!($name), "`: ", $text, ".")]
            pub const $name: PmErr = PmErr($code);)*

            /// Returns the name after `PM_ERR_`, if the code is known.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    GENERIC = -12345 "unspecific failure";
    TEXT = -12349 "no help text";
    APPVERSION = -12350 "metric not supported by this system";
    VALUE = -12351 "value missing";
    TIMEOUT = -12353 "timeout; pmcd drops an agent that sends it";
    NAME = -12357 "unknown metric name";
    PMID = -12358 "unknown metric identifier";
    INDOM = -12359 "unknown instance domain";
    INST = -12360 "unknown instance";
    UNIT = -12361 "illegal unit specification";
    CONV = -12362 "impossible value conversion";
    TRUNC = -12363 "truncation in value conversion";
    SIGN = -12364 "negative value for an unsigned metric";
    PROFILE = -12365 "explicit instance list required";
    IPC = -12366 "protocol failure; pmcd drops an agent that sends it";
    EOF = -12368 "end of input";
    PERMISSION = -12387 "operation not permitted";
    AGAIN = -12389 "try again, not available now";
    NOTCONN = -12391 "client gone (sent by pmcd)";
    NONLEAF = -12394 "name is not a leaf";
    TYPE = -12397 "unknown or illegal type";
    NOCONTAINER = -12399 "container not found";
    BADSTORE = -12400 "value not acceptable";
    NOLABELS = -12410 "no label support";
    TOOSMALL = -12443 "list too short";
    TOOBIG = -12444 "result too big";
    PMDAREADY = -13393 "agent is ready again";
    PMDANOTREADY = -13394 "agent is not ready yet";
    NYI = -21344 "not implemented";
}

impl PmErr {
    /// Returns `-errno`.
    pub const fn errno(errno: i32) -> PmErr {
        PmErr(-errno)
    }

    /// Returns this code, or [`PmErr::GENERIC`] for codes that an agent must not send: pmcd drops the connection on
    /// `PM_ERR_IPC`, `PM_ERR_TIMEOUT` and `-EPIPE`, and takes a code that is not negative for success
    /// (`pmcd/src/dofetch.c`).
    pub const fn sendable(self) -> PmErr {
        match self {
            PmErr::IPC | PmErr::TIMEOUT | PmErr(-32) | PmErr(0..) => PmErr::GENERIC,
            code => code,
        }
    }
}

impl fmt::Display for PmErr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "PM_ERR_{name}"),
            None => write!(f, "error {}", self.0),
        }
    }
}

impl fmt::Debug for PmErr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for PmErr {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_cost_the_connection_are_not_sendable() {
        for code in [PmErr::IPC, PmErr::TIMEOUT, PmErr::errno(32), PmErr(0), PmErr(7)] {
            assert_eq!(code.sendable(), PmErr::GENERIC);
        }
        assert_eq!(PmErr::PMID.sendable(), PmErr::PMID);
        assert_eq!(PmErr::errno(12).to_string(), "error -12");
    }
}
