//! Hooks of the TCP modules, so that the loader sees one of each, and the format of addresses.

use crate::kit::{Hook, Ports, Setup, Tier};
use crate::tracepoint;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The hook for every send and receive on a socket, with its length. UDP's functions in the last tier belong to netproc only.
pub static TRAFFIC: Hook = Hook {
    name: "sock_send_length+sock_recv_length",
    tiers: &[
        Tier { kind: "tp_btf", programs: &["tp__sock_send_length", "tp__sock_recv_length"] },
        Tier { kind: "raw_tp", programs: &["raw__sock_send_length", "raw__sock_recv_length"] },
        Tier {
            kind: "fexit",
            programs: &["fexit__inet_sendmsg", "fexit__inet6_sendmsg", "fexit__inet_recvmsg", "fexit__inet6_recvmsg"],
        },
        Tier {
            kind: "kretprobe+kprobe",
            programs: &[
                "kprobe__tcp_sendmsg",
                "kretprobe__tcp_sendmsg",
                "kretprobe__udp_sendmsg",
                "kretprobe__udpv6_sendmsg",
                "kprobe__tcp_cleanup_rbuf",
                "kprobe__skb_consume_udp",
            ],
        },
    ],
    needs:
        "the tracepoints sock_send_length and sock_recv_length (kernel 6.3), or fexit, or kprobes, on a kernel with BTF",
};

/// The hook for packets of sockets, by programs at the root of v2: each one runs for the sockets of all cgroups.
pub static PACKETS: Hook = Hook {
    name: "packets",
    tiers: &[Tier { kind: "cgroup_skb", programs: &["skb__ingress", "skb__egress"] }],
    needs: "a kernel with CONFIG_CGROUP_BPF",
};

/// Number of sockets, a power of two, for whose reads a module has places at a time on kernels with kprobes only.
pub const SOCKETS: usize = 1024;

/// The hook for changes of a TCP socket's state.
pub static STATE: Hook = tracepoint!("inet_sock_set_state", "a kernel with BTF and CONFIG_INET");

/// The hook for the moment at which a process gets a connection that it did not open: at its accept, or else at its first send or
/// receive.
pub static ACCEPT: Hook = Hook {
    name: "inet_csk_accept",
    tiers: &[
        Tier { kind: "fexit", programs: &["fexit__inet_csk_accept"] },
        Tier { kind: "kretprobe", programs: &["kretprobe__inet_csk_accept"] },
        Tier { kind: "tp_btf of traffic", programs: &["tp__sock_send_length", "tp__sock_recv_length"] },
        Tier { kind: "raw_tp of traffic", programs: &["raw__sock_send_length", "raw__sock_recv_length"] },
    ],
    needs:
        "fexit, kprobes, or the tracepoints sock_send_length and sock_recv_length (kernel 6.3), on a kernel with BTF",
};

/// The address family of IPv4 sockets.
const AF_INET: u16 = 2;

/// Formats an address as the Python agent did: IPv6 in standard text form, mapped addresses as `::ffff:a.b.c.d`.
pub fn address(family: u16, bytes: [u8; 16]) -> String {
    let [a, b, c, d, ..] = bytes;
    if family == AF_INET {
        Ipv4Addr::new(a, b, c, d).to_string()
    } else {
        Ipv6Addr::from(bytes).to_string()
    }
}

/// Adds a remark about the ports to which a module is restricted.
pub fn note_ports(setup: &Setup<'_>, remote: &Ports, local: &Ports) {
    for (which, ports) in [("remote", remote), ("local", local)] {
        if !ports.0.is_empty() {
            setup.section.info(format!("Filtering on {which} ports: {:?}.", ports.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_addresses_keep_their_form() {
        let mut bytes = [0; 16];
        bytes[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 1]);
        assert_eq!(address(10, bytes), "::ffff:10.0.0.1");
        assert_eq!(address(2, [10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), "10.0.0.1");
    }
}
