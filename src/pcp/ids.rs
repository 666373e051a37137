//! Metric and instance domain identifiers (`pmID`, `pmInDom`; bit layouts as in `libpcp.h`).

use std::fmt;

/// An internal instance identifier: not negative and at most 31 bits, or [`IN_NULL`].
pub type InstId = u32;

/// `PM_IN_NULL`: the instance of a metric without instance domain, and "no instance given" in a request.
pub const IN_NULL: InstId = u32::MAX;

/// A metric identifier (`pmID`): domain (9 bits), cluster (12 bits), item (10 bits).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pmid(pub u32);

impl Pmid {
    /// `PM_ID_NULL`.
    pub const NULL: Pmid = Pmid(u32::MAX);
    /// The largest cluster number.
    pub const MAX_CLUSTER: u32 = 4095;
    /// The largest item number.
    pub const MAX_ITEM: u32 = 1023;

    /// `pmID_build`: numbers are truncated to their field.
    pub const fn new(domain: u32, cluster: u32, item: u32) -> Pmid {
        Pmid((domain & 511) << 22 | (cluster & Self::MAX_CLUSTER) << 10 | item & Self::MAX_ITEM)
    }

    /// `pmID_domain`.
    pub const fn domain(self) -> u32 {
        self.0 >> 22 & 511
    }

    /// `pmID_cluster`.
    pub const fn cluster(self) -> u32 {
        self.0 >> 10 & Self::MAX_CLUSTER
    }

    /// `pmID_item`.
    pub const fn item(self) -> u32 {
        self.0 & Self::MAX_ITEM
    }
}

/// `pmIDStr`: `149.0.0`.
impl fmt::Display for Pmid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.domain(), self.cluster(), self.item())
    }
}

impl fmt::Debug for Pmid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An instance domain identifier (`pmInDom`): domain (9 bits), serial (22 bits).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Indom(pub u32);

impl Indom {
    /// `PM_INDOM_NULL`: the metric has a single value.
    pub const NULL: Indom = Indom(u32::MAX);

    /// `pmInDom_build`.
    pub const fn new(domain: u32, serial: u32) -> Indom {
        Indom((domain & 511) << 22 | serial & 0x3f_ffff)
    }

    /// `pmInDom_domain`.
    pub const fn domain(self) -> u32 {
        self.0 >> 22 & 511
    }

    /// `pmInDom_serial`.
    pub const fn serial(self) -> u32 {
        self.0 & 0x3f_ffff
    }
}

/// `pmInDomStr`: `149.0`.
impl fmt::Display for Indom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Indom::NULL => f.write_str("PM_INDOM_NULL"),
            indom => write!(f, "{}.{}", indom.domain(), indom.serial()),
        }
    }
}

impl fmt::Debug for Indom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pmid_fields_land_where_libpcp_puts_them() {
        let pmid = Pmid::new(149, 2, 5);
        assert_eq!(pmid.0, 0x2540_0805);
        assert_eq!((pmid.domain(), pmid.cluster(), pmid.item()), (149, 2, 5));
        assert_eq!(pmid.to_string(), "149.2.5");
    }

    #[test]
    fn indom_prints_like_pmindomstr() {
        assert_eq!(Indom::new(149, 40).to_string(), "149.40");
        assert_eq!(Indom::NULL.to_string(), "PM_INDOM_NULL");
    }
}
