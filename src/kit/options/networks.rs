//! Networks that tell remote addresses apart.

use super::OptionType;
use crate::config::{ConfigError, Value};
use std::cmp::Reverse;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Largest number of networks in a list (`NETWORKS`).
const LONGEST: usize = 64;
/// Number of bits of a prefix of IPv6 that are told apart: beyond them a network has its hosts.
const MOST: u32 = 64;
/// Bits of a prefix of IPv6 where only those of IPv4 are given: what a site gets.
const SITE: u32 = 48;

/// A network: an address, and the number of its bits that belong to the network. The others are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// The first address.
    pub address: IpAddr,
    /// Length of the prefix.
    pub bits: u32,
}

impl Network {
    /// Makes a network of an address that is in it.
    pub fn of(address: IpAddr, bits: u32) -> Network {
        let address = match address {
            IpAddr::V4(address) => Ipv4Addr::from(u32::from(address) & (mask(bits, 32) as u32)).into(),
            IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) & u128::from(mask(bits, MOST)) << MOST).into(),
        };
        Network { address, bits }
    }

    /// Returns the bits that its addresses have in common, and which of them those are: of the 32 of IPv4, or of the first 64 of IPv6.
    pub fn prefix(&self) -> (u64, u64) {
        match self.address {
            IpAddr::V4(address) => (u32::from(address).into(), mask(self.bits, 32)),
            IpAddr::V6(address) => ((u128::from(address) >> MOST) as u64, mask(self.bits, MOST)),
        }
    }

    /// Reads a network; its address may be that of a host in it.
    fn read(text: &str) -> Option<Network> {
        let (address, bits) = text.split_once('/')?;
        let (address, bits): (IpAddr, u32) = (address.trim().parse().ok()?, bits.trim().parse().ok()?);
        (bits <= if address.is_ipv4() { 32 } else { MOST }).then(|| Network::of(address, bits))
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// Returns the first bits of a number of so many.
const fn mask(bits: u32, of: u32) -> u64 {
    let all = if of == 64 { u64::MAX } else { (1 << of) - 1 };
    if bits == 0 {
        0
    } else {
        all >> (of - bits) << (of - bits)
    }
}

/// Ways to tell remote addresses apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Networks {
    /// Not at all.
    #[default]
    None,
    /// By this many bits of IPv4, and of IPv6.
    Bits(u32, u32),
    /// By these networks: those of IPv4 first, and within a family smaller networks before those that they are in.
    List(Vec<Network>),
}

impl Networks {
    /// Returns the masks of the prefixes of IPv4 and IPv6.
    pub fn masks(&self) -> [u64; 2] {
        match self {
            Networks::Bits(four, six) => [mask(*four, 32), mask(*six, MOST)],
            _ => [0; 2],
        }
    }

    fn parse(entries: &[&str]) -> Option<Networks> {
        let bits = |text: &str, most: u32| text.parse().ok().filter(|bits| *bits <= most);
        match entries {
            [] => Some(Networks::None),
            [four] if !four.contains('/') => Some(Networks::Bits(bits(four, 32)?, SITE)),
            [four, six] if !four.contains('/') => Some(Networks::Bits(bits(four, 32)?, bits(six, MOST)?)),
            list => {
                let mut list: Vec<Network> = list.iter().map(|text| Network::read(text)).collect::<Option<_>>()?;
                list.sort_by_key(|network| (network.address.is_ipv6(), Reverse(network.bits), network.address));
                list.dedup();
                (list.len() <= LONGEST).then_some(Networks::List(list))
            }
        }
    }
}

impl OptionType for Networks {
    const EXPECTED: &'static str =
        "a number of bits for IPv4 and one for IPv6, such as 24, 48, or at most 64 networks, such as 10.0.0.0/8, 2001:db8::/32";
    fn read(value: &Value<'_>) -> Result<Self, ConfigError> {
        Networks::parse(&value.list()).ok_or_else(|| value.error(Networks::EXPECTED))
    }
    fn show(&self) -> String {
        match self {
            Networks::None => String::new(),
            Networks::Bits(four, six) => format!("{four}, {six}"),
            Networks::List(list) => list.iter().map(Network::to_string).collect::<Vec<_>>().join(", "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_lengths_of_prefixes_or_a_list() {
        assert_eq!(Networks::parse(&[]), Some(Networks::None));
        assert_eq!(Networks::parse(&["24"]), Some(Networks::Bits(24, 48)));
        assert_eq!(Networks::parse(&["16", "32"]).unwrap().masks(), [0xffff_0000, 0xffff_ffff_0000_0000]);
        assert_eq!(Networks::Bits(0, 64).masks(), [0, u64::MAX]);
        let list = Networks::parse(&["2001:db8:1::7/32", "10.1.0.0/16", "0.0.0.0/0", "10.1.2.3/24", "10.1.2.0/24"]);
        assert_eq!(list.unwrap().show(), "10.1.2.0/24, 10.1.0.0/16, 0.0.0.0/0, 2001:db8::/32");
        for wrong in [&["33"][..], &["24", "65"], &["24", "48", "1"], &["10.0.0.0/33"], &["::/65"], &["ten/8"]] {
            assert_eq!(Networks::parse(wrong), None, "{wrong:?}");
        }
        assert_eq!(Networks::parse(&["::/0"; 65]).unwrap().show(), "::/0");
    }

    #[test]
    fn the_prefix_of_a_network_is_a_number_of_its_family() {
        let prefix = |text| Network::read(text).unwrap().prefix();
        assert_eq!(prefix("10.1.2.3/8"), (0x0a00_0000, 0xff00_0000));
        assert_eq!(prefix("2001:db8::1/32"), (0x2001_0db8_0000_0000, 0xffff_ffff_0000_0000));
    }
}
