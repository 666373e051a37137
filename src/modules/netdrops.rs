//! Packets that the kernel drops, by reason; datagrams that a socket had no room for, by port; resets. Kernel side: bpf/netdrops.bpf.c.

use super::shared::groups::tell;
use super::shared::numbers::Numbers;
use super::shared::places::{ByPlace, Names, PlacedHistograms};
use crate::bpf::types::{self, drop_resets, drop_row, mark, place_owner};
use crate::host::btf_encoding::{enumerators, KERNEL_TYPES};
use crate::host::NamesByAddress;
use crate::kit::*;
use crate::{beyond, maps, metrics, tracepoint};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::sync::{Arc, LazyLock};

mod reasons {
    use super::*;

    metrics! {
        COUNT: u64 = 0 "net.drop.count" COUNTER COUNT "packets that the kernel dropped, by reason";
        NAME: str = 1 "net.drop.name" DISCRETE NONE "reason, for the variables of a dashboard";
    }

    pub static BY_REASON: ByPlace<drop_row> = ByPlace {
        owners: REASONS,
        rows: COUNTS,
        marks: MARKS,
        histograms: &[],
        counters: &[(COUNT, drop_row::count)],
        name: NAME,
        beyond: beyond!("table-full: packets for reasons", counted, [drop_row::count]),
    };

    pub static TABLE: TableSpec = TableSpec::named("each reason", 470, METRICS, 1 << 12);
}

mod ports {
    use super::*;

    metrics! {
        COUNT: u64 = 0 "net.udp.drop.count" COUNTER COUNT "datagrams that the socket at the local port had no room for";
        NAME: str = 1 "net.udp.drop.name" DISCRETE NONE "local port, for the variables of a dashboard";
    }

    pub static BY_PORT: ByPlace<drop_row> = ByPlace {
        owners: PORTS,
        rows: UDP,
        marks: UDP_MARKS,
        histograms: &[],
        counters: &[(COUNT, drop_row::count)],
        name: NAME,
        beyond: beyond!("ports-full: datagrams to local ports", counted, [drop_row::count]),
    };

    pub static TABLE: TableSpec = TableSpec::named("each local port of UDP", 471, METRICS, 1 << 10);
}

mod resets {
    use super::*;

    metrics! {
        SENT: u64 = 0 "net.tcp.resets.sent.count" COUNTER COUNT "resets of TCP that this machine sent";
        RECEIVED: u64 = 1 "net.tcp.resets.received.count" COUNTER COUNT "resets of TCP connections that came from others";
    }

    pub static TABLE: TableSpec = TableSpec::single("all resets", 472, METRICS);

    pub static SUMS: Sums<drop_resets> =
        Sums { rows: RESETS, cells: &[(SENT, &[drop_resets::sent]), (RECEIVED, &[drop_resets::received])] };
}

maps! {
    rows REASONS: place_owner = "drop_reasons", taken id;
    rows COUNTS: drop_row = "drop_counts", taken used, marked in "drop_marks";
    rows MARKS: mark = "drop_marks";
    rows PORTS: place_owner = "drop_ports", taken id;
    rows UDP: drop_row = "drop_udp", taken used, marked in "drop_udp_marks";
    rows UDP_MARKS: mark = "drop_udp_marks";
    rows RESETS: drop_resets = "drop_resets";
}

const NEEDS_INET: &str = "a kernel with BTF and CONFIG_INET";

/// The hook for packets that are dropped, with the reason.
static DROP: Hook = tracepoint!("kfree_skb");
/// The same on kernels before 5.17, which have no reasons.
static DROP_AT_PLACE: Hook = Hook {
    name: "kfree_skb at a place",
    tiers: &[
        Tier { kind: "tp_btf", programs: &["tp__kfree_skb___place"] },
        Tier { kind: "raw_tp", programs: &["raw__kfree_skb___place"] },
    ],
    needs: NEEDS_BTF,
};
static UDP_FULL: Hook = tracepoint!("udp_fail_queue_rcv_skb", NEEDS_INET);
static SEND_RESET: Hook = tracepoint!("tcp_send_reset", NEEDS_INET);
static RECEIVE_RESET: Hook = tracepoint!("tcp_receive_reset", NEEDS_INET);

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "netdrops",
    summary: "packets that the kernel drops by reason, full UDP sockets by port, TCP resets",
    overhead: Overhead::low("10 ns per packet that is dropped"),
    needs: "CONFIG_INET",
    tables: &[&reasons::TABLE, &ports::TABLE, &resets::TABLE],
    hooks: &[&DROP, &DROP_AT_PLACE, &UDP_FULL, &SEND_RESET, &RECEIVE_RESET],
    maps: MAPS,
    needs_to_load: &[Need::KernelSymbols],
    make: |_| Ok(Box::new(Netdrops::new(Reasons::of_kernel))),
    ..Spec::NEW
};

/// Number of reasons or places with a counter of their own; those of core and wireless networks are about 150.
const REASONS_MOST: usize = 512;
/// Number of local ports with a counter of their own.
const PORTS_MOST: usize = 256;

/// Reasons for which packets are dropped, by numbers of the programs.
enum Reasons {
    /// Reasons as the kernel has them (include/net/dropreason-core.h), whose numbers differ between kernels, and parts of the kernel that
    /// have reasons of their own, by their upper 16 bits.
    Named { core: HashMap<u32, String>, parts: HashMap<u32, String> },
    /// Functions that drop packets, for kernels without reasons.
    Places(NamesByAddress),
}

impl Reasons {
    fn of_kernel() -> Reasons {
        let types = fs::read(KERNEL_TYPES).unwrap_or_default();
        let core = enumerators(&types, "skb_drop_reason");
        if !core.is_empty() {
            return Reasons::named(core, enumerators(&types, "skb_drop_reason_subsys"));
        }
        let Ok(kallsyms) = File::open("/proc/kallsyms") else { return Reasons::Places(NamesByAddress::default()) };
        Reasons::Places(NamesByAddress::read(BufReader::new(kallsyms), |symbol, names| {
            names.push_str(if symbol.is_function { symbol.name } else { "" });
            symbol.is_function
        }))
    }

    fn named(core: Vec<(u32, String)>, parts: Vec<(u32, String)>) -> Reasons {
        let without = |names: Vec<(u32, String)>, prefix| {
            let name = |name: &str| str::strip_prefix(name, prefix).unwrap_or(name).to_owned();
            names.into_iter().map(|(number, long)| (number, name(&long))).collect()
        };
        Reasons::Named { core: without(core, "SKB_DROP_REASON_"), parts: without(parts, "SKB_DROP_REASON_SUBSYS_") }
    }

    fn text(&self, id: u64) -> Option<String> {
        match self {
            Reasons::Named { core, parts } => {
                let number = u32::try_from(id.checked_sub(1)?).ok()?;
                let (part, reason) = (number >> 16, number & 0xffff);
                let part_name = || parts.get(&part).map_or_else(|| part.to_string(), String::clone);
                match core.get(&number) {
                    Some(name) => Some(name.clone()),
                    None if part == 0 => Some(reason.to_string()),
                    None => Some(format!("{}:{reason}", part_name())),
                }
            }
            // A place is behind the call. That may be the last instruction of its function.
            Reasons::Places(functions) => {
                functions.at(id.checked_sub(1)?).filter(|&(.., is_inside)| is_inside).map(|(_, name, _)| name.into())
            }
        }
    }
}

/// Reasons that are looked up when the module is loaded.
type KnownReasons = Arc<LazyLock<Reasons, fn() -> Reasons>>;

impl Names for KnownReasons {
    fn name(&self, id: u64) -> Option<Vec<u8>> {
        self.text(id).map(String::into_bytes)
    }

    fn labels(&self, _id: u64, name: &[u8]) -> SeriesLabels {
        vec![("reason", SeriesLabel::Text(String::from_utf8_lossy(name).into_owned()))]
    }
}

struct Netdrops {
    known: KnownReasons,
    reasons: PlacedHistograms<drop_row>,
    ports: PlacedHistograms<drop_row>,
}

impl Netdrops {
    fn new(reasons: fn() -> Reasons) -> Netdrops {
        let window = Seconds(60).window();
        let known: KnownReasons = Arc::new(LazyLock::new(reasons));
        let reasons = Ok(Arc::clone(&known));
        Netdrops {
            known,
            reasons: PlacedHistograms::new(&reasons::BY_REASON, reasons, window, Buckets::default()),
            ports: PlacedHistograms::new(&ports::BY_PORT, Ok(Numbers::Ports), window, Buckets::default()),
        }
    }
}

impl Module for Netdrops {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        let size = reasons::BY_REASON.plan(REASONS_MOST, host, plan);
        (constants.drop_mask, constants.drop_shift) = (size.mask, size.shift);
        tell(size.shift, "a reason", "more per packet where CPUs drop packets for one reason at the same time");
        // All CPUs share these rows: a full socket is one lock for them already.
        constants.drop_udp_mask = ports::BY_PORT.plan(PORTS_MOST, &Host { cpus: 1, ..*host }, plan).mask;
        plan.entries(RESETS.def.name, host.cpus);
        let drop = if matches!(**self.known, Reasons::Named { .. }) { &DROP } else { &DROP_AT_PLACE };
        [drop, &UDP_FULL, &SEND_RESET, &RECEIVE_RESET].into_iter().for_each(|hook| plan.attach(hook));
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        let running =
            PlacedHistograms::add_table(Running::of(*self), &reasons::TABLE, |module| Some(&mut module.reasons));
        PlacedHistograms::add_table(running, &ports::TABLE, |module| Some(&mut module.ports))
            .at_once(&resets::TABLE, |kernel, table| {
                resets::SUMS.row(kernel, table);
            })
            .started()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named() -> Reasons {
        let core =
            [(0, "SKB_NOT_DROPPED_YET"), (2, "SKB_DROP_REASON_NOT_SPECIFIED"), (6, "SKB_DROP_REASON_SOCKET_RCVBUFF")];
        let parts = [(0, "SKB_DROP_REASON_SUBSYS_CORE"), (3, "SKB_DROP_REASON_SUBSYS_OPENVSWITCH")];
        let owned = |names: &[(u32, &str)]| names.iter().map(|&(number, name)| (number, name.to_owned())).collect();
        Reasons::named(owned(&core), owned(&parts))
    }

    #[test]
    fn a_reason_has_the_name_that_the_running_kernel_gives_it() {
        let name = |number: u32| named().text(u64::from(number) + 1).unwrap();
        assert_eq!([0, 2, 6].map(name), ["SKB_NOT_DROPPED_YET", "NOT_SPECIFIED", "SOCKET_RCVBUFF"]);
        assert_eq!([77, 3 << 16 | 4, 9 << 16 | 4].map(name), ["77", "OPENVSWITCH:4", "9:4"]);
    }

    #[test]
    fn a_place_has_the_name_of_its_function() {
        let kallsyms = b"ffffffff81000000 T tcp_v4_rcv\nffffffff81000100 D data\nffffffff81000200 t sk_stream_kill_queues\nffffffff81000300 T last\n";
        let functions = NamesByAddress::read(&kallsyms[..], |symbol, names| {
            names.push_str(symbol.name);
            symbol.is_function
        });
        let places = Reasons::Places(functions);
        assert_eq!(places.text(0xffff_ffff_8100_0010).as_deref(), Some("tcp_v4_rcv"));
        assert_eq!(places.text(0xffff_ffff_8100_0200).as_deref(), Some("tcp_v4_rcv"), "behind its last instruction");
        assert_eq!(places.text(0xffff_ffff_8100_0201).as_deref(), Some("sk_stream_kill_queues"));
        assert_eq!([places.text(5), places.text(0xffff_ffff_8100_0301)], [None, None]);
    }

    #[test]
    fn drops_and_resets_are_summed_over_cpus() {
        let fake = Fake::new().with(REASONS, 8).with(COUNTS, 18).with(PORTS, 4).with(UDP, 5).with(RESETS, 2);
        fake.set(REASONS, 3, place_owner::id, 7);
        fake.set(COUNTS, 4, drop_row::count, 5);
        fake.set(COUNTS, 9 + 4, drop_row::count, 6);
        fake.set(COUNTS, 9, drop_row::count, 1);
        fake.set(PORTS, 0, place_owner::id, 53);
        fake.set(UDP, 1, drop_row::count, 2);
        for cpu in 0..2 {
            fake.set(RESETS, cpu, drop_resets::sent, 2);
            fake.set(RESETS, cpu, drop_resets::received, 3);
        }
        let running = Box::new(Netdrops::new(named)).start(&fake);
        let table = fake.filled(&reasons::TABLE, &running);
        assert_eq!(table.names(), ["SOCKET_RCVBUFF", "other"]);
        assert_eq!([0, 1].map(|row| table.number(row, 0)), [Some(11), Some(1)]);
        let table = fake.filled(&ports::TABLE, &running);
        assert_eq!((table.names(), table.number(0, 0)), (vec!["53".into(), "other".into()], Some(2)));
        let table = fake.filled(&resets::TABLE, &running);
        assert_eq!([0, 1].map(|column| table.number(0, column)), [Some(4), Some(6)]);
        let mut lost = Vec::new();
        running.losses(&fake, &mut |_, count| lost.push(count));
        assert_eq!(lost, [1, 0]);
    }
}
