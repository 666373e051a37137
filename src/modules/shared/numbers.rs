//! Names of what programs count by as a number: remote networks (bpf/shared/networks.bpf.h), local ports, users.

use super::places::{ByPlace, Names, PlacedHistograms};
use crate::bpf::types;
use crate::host::Account;
use crate::kit::{Buckets, Network, Networks, SeriesLabel, SeriesLabels, Window};
use nix::unistd::Uid;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Number of the network of IPv4 whose prefix is 0 (`NETWORK_IPV4`).
const IPV4: u64 = 1 << 40;
/// Number of the network of IPv6 whose prefix is 0 (`NETWORK_ZERO`).
const ZERO: u64 = 1 << 41;

/// Tells the programs of a module how to find the network of an address.
pub fn set_networks(networks: &Networks, constant: &mut types::networks) {
    constant.prefixes = networks.masks();
    let Networks::List(list) = networks else { return };
    constant.all = list.len() as u32;
    constant.ipv4 = list.iter().filter(|network| network.address.is_ipv4()).count() as u32;
    for (at, network) in list.iter().enumerate() {
        (constant.bits[at], constant.masks[at]) = network.prefix();
    }
}

/// Returns the hash of a name in the programs (`name_hash` of bpf/shared/places.bpf.h).
pub fn name_hash(name: &[u8]) -> u32 {
    /// Bytes that a program reads, the last of which is 0.
    const READ: usize = 16;
    let mut words = [0; READ];
    let read = name.len().min(READ - 1);
    words[..read].copy_from_slice(&name[..read]);
    let number = u128::from_le_bytes(words);
    let hash = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ ((number >> 64) as u64).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    (hash >> 32) as u32
}

/// Number of networks with counters of their own.
pub const NETWORKS: usize = 1024;

/// Makes histograms by network, if networks are asked for.
pub fn by_network<R>(
    of: &'static ByPlace<R>,
    networks: &Networks,
    window: Window,
    buckets: Buckets,
) -> Option<PlacedHistograms<R>> {
    let names = (*networks != Networks::None).then(|| Numbers::Networks(networks.clone()))?;
    let peers = PlacedHistograms::new(of, Ok(names), window, buckets);
    Some(if matches!(networks, Networks::Bits(..)) { peers } else { peers.of_a_list() })
}

/// Names of what programs count by as a number that says all about it.
pub enum Numbers {
    /// Networks, by how they are told apart.
    Networks(Networks),
    /// Addresses of IPv4, and the networks of 64 bits that addresses of IPv6 are in.
    Servers,
    /// Ports.
    Ports,
    /// Users: ids, and one.
    Users,
}

/// Returns the name of a user; the id of one without.
pub fn user_name(id: u32) -> String {
    Account::of(Uid::from_raw(id)).map_or_else(|| id.to_string(), |account| account.name)
}

impl Numbers {
    fn text(&self, id: u64) -> Option<String> {
        match self {
            Numbers::Networks(Networks::List(list)) => {
                Some(list.get(usize::try_from(id).ok()?.checked_sub(1)?)?.to_string())
            }
            Numbers::Servers => {
                let name = Numbers::Networks(Networks::Bits(32, 64)).text(id)?;
                Some(name.strip_suffix("/32").map_or(name.clone(), str::to_owned))
            }
            Numbers::Networks(Networks::Bits(four, six)) => {
                let (address, bits): (IpAddr, u32) = match id {
                    IPV4..ZERO => (Ipv4Addr::from((id - IPV4) as u32).into(), *four),
                    ZERO => (Ipv6Addr::UNSPECIFIED.into(), *six),
                    _ => (Ipv6Addr::from(u128::from(id) << 64).into(), *six),
                };
                Some(Network::of(address, bits).to_string())
            }
            Numbers::Networks(Networks::None) => None,
            Numbers::Ports => Some(id.to_string()),
            Numbers::Users => Some(user_name(u32::try_from(id.checked_sub(1)?).ok()?)),
        }
    }
}

impl Names for Numbers {
    fn name(&self, id: u64) -> Option<Vec<u8>> {
        self.text(id).map(String::into_bytes)
    }

    fn labels(&self, _id: u64, name: &[u8]) -> SeriesLabels {
        let label = match self {
            Numbers::Networks(_) => "network",
            Numbers::Servers => "server",
            Numbers::Ports => "port",
            Numbers::Users => "user",
        };
        vec![(label, SeriesLabel::Text(String::from_utf8_lossy(name).into_owned()))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_says_which_network_it_is() {
        let bits = Numbers::Networks(Networks::Bits(24, 48));
        let named = |names: &Numbers, ids: &[u64]| {
            let (mut left, mut found) = (ids.iter().copied().collect(), Vec::new());
            names.find(&mut left, &mut |_, name| found.push(String::from_utf8(name).unwrap()));
            found.sort();
            (found, left.len())
        };
        let (found, left) = named(&bits, &[IPV4 | 0x0a58_0000, ZERO, 0x2001_0db8_0001_0000]);
        assert_eq!((found.join(" "), left), ("10.88.0.0/24 2001:db8:1::/48 ::/48".into(), 0));
        let network = |address: &str, bits| Network::of(address.parse().unwrap(), bits);
        let list = Networks::List(vec![network("10.0.0.0", 8), network("2001:db8::", 32)]);
        let (found, left) = named(&Numbers::Networks(list.clone()), &[1, 2, 3]);
        assert_eq!((found.join(" "), left), ("10.0.0.0/8 2001:db8::/32".into(), 1));
        let mut constant = crate::bpf::constants().conn_networks;
        set_networks(&list, &mut constant);
        assert_eq!((constant.ipv4, constant.all), (1, 2));
        assert_eq!(constant.bits[..2], [0x0a00_0000, 0x2001_0db8_0000_0000]);
        let (found, _) = named(&Numbers::Servers, &[IPV4 | 0x0a58_0001, 0x2001_0db8_0001_0000]);
        assert_eq!(found.join(" "), "10.88.0.1 2001:db8:1::/64");
        assert_eq!(named(&Numbers::Ports, &[443]).0, ["443"]);
        assert_eq!(named(&Numbers::Users, &[1, 4_000_000_000]).0.join(" "), "3999999999 root");
    }
}
