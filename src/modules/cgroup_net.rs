//! TCP and UDP traffic by cgroup. Kernel side: bpf/cgroup_net.bpf.c.

use super::shared::cgroups::BY_PATH;
use super::shared::groups::tell;
use super::shared::places::{ByPlace, PlacedHistograms};
use super::shared::tcp::{PACKETS, SOCKETS, TRAFFIC};
use crate::bpf::types::{self, cgn_row, mark, place_owner, sock_read};
use crate::host::{Cgroups, Controller, NoCgroups};
use crate::kit::*;
use crate::{beyond, maps, metrics, options};

metrics! {
    TCP_SEND_CALLS: u64 = 0 "cgroup.net.tcp.send.calls" COUNTER COUNT "TCP send calls by cgroup";
    TCP_SEND_BYTES: u64 = 1 "cgroup.net.tcp.send.bytes" COUNTER BYTE "bytes sent over TCP by cgroup";
    TCP_RECV_CALLS: u64 = 2 "cgroup.net.tcp.recv.calls" COUNTER COUNT "TCP receive calls that returned data, by cgroup";
    TCP_RECV_BYTES: u64 = 3 "cgroup.net.tcp.recv.bytes" COUNTER BYTE "bytes received over TCP by cgroup";
    UDP_SEND_CALLS: u64 = 4 "cgroup.net.udp.send.calls" COUNTER COUNT "UDP send calls by cgroup";
    UDP_SEND_BYTES: u64 = 5 "cgroup.net.udp.send.bytes" COUNTER BYTE "bytes sent over UDP by cgroup";
    UDP_RECV_CALLS: u64 = 6 "cgroup.net.udp.recv.calls" COUNTER COUNT "UDP datagrams received by cgroup";
    UDP_RECV_BYTES: u64 = 7 "cgroup.net.udp.recv.bytes" COUNTER BYTE "bytes received over UDP by cgroup";
    NAME: str = 8 "cgroup.net.name" DISCRETE NONE "path of the cgroup, for the variables of a dashboard";
    IN_COUNT: u64 = 9 "cgroup.net.packets.in.count" COUNTER COUNT "IP packets received, by cgroup";
    IN_BYTES: u64 = 10 "cgroup.net.packets.in.bytes" COUNTER BYTE "bytes of IP packets received, by cgroup";
    OUT_COUNT: u64 = 11 "cgroup.net.packets.out.count" COUNTER COUNT "IP packets sent, by cgroup";
    OUT_BYTES: u64 = 12 "cgroup.net.packets.out.bytes" COUNTER BYTE "bytes of IP packets sent, by cgroup";
}

maps! {
    rows OWNERS: place_owner = "cgn_owners", taken id;
    rows ROWS: cgn_row = "cgn_rows", taken used, marked in "cgn_marks";
    rows MARKS: mark = "cgn_marks";
    private READS: sock_read = "cgroup_net_sock";
}

options! {
    /// Cgroups with counters of their own; the number is rounded up to a power of two. Other cgroups are the series `other`. Each takes 128 bytes of memory for each CPU.
    max_cgroups: CgroupCount = CgroupCount(1024);
    /// Count packets, too, with their headers, retransmissions and acknowledgements. A packet costs 70 ns.
    packets: bool = false;
}

/// Send calls and receive calls, in the order of `enum net_cell`; none of them is counted twice.
const CALLS: [crate::bpf::Field<cgn_row, u64>; 4] =
    [cgn_row::calls.nth(0), cgn_row::calls.nth(1), cgn_row::calls.nth(2), cgn_row::calls.nth(3)];

static BY_CGROUP: ByPlace<cgn_row> = ByPlace { counters: COUNTERS.split_at(8).0, ..WITH_PACKETS };

const COUNTERS: &[(Metric<u64>, crate::bpf::Field<cgn_row, u64>)] = &[
    (TCP_SEND_CALLS, CALLS[0]),
    (TCP_SEND_BYTES, cgn_row::bytes.nth(0)),
    (TCP_RECV_CALLS, CALLS[1]),
    (TCP_RECV_BYTES, cgn_row::bytes.nth(1)),
    (UDP_SEND_CALLS, CALLS[2]),
    (UDP_SEND_BYTES, cgn_row::bytes.nth(2)),
    (UDP_RECV_CALLS, CALLS[3]),
    (UDP_RECV_BYTES, cgn_row::bytes.nth(3)),
    (IN_COUNT, cgn_row::packets.nth(0)),
    (IN_BYTES, cgn_row::packet_bytes.nth(0)),
    (OUT_COUNT, cgn_row::packets.nth(1)),
    (OUT_BYTES, cgn_row::packet_bytes.nth(1)),
];

const WITH_PACKETS: ByPlace<cgn_row> = ByPlace {
    owners: OWNERS,
    rows: ROWS,
    marks: MARKS,
    histograms: &[],
    counters: COUNTERS,
    name: NAME,
    beyond: beyond!("table-full: calls of cgroups", counted, CALLS),
};

/// The same with packets; without them these metrics have no values.
static BY_CGROUP_WITH_PACKETS: ByPlace<cgn_row> = WITH_PACKETS;

static TABLE: TableSpec =
    TableSpec { summary: "each cgroup", cluster: 464, shape: BY_PATH, metrics: METRICS, ..TableSpec::NEW };

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "cgroup_net",
    summary: "TCP and UDP traffic by cgroup: services, containers, pods, virtual machines",
    overhead: Overhead::medium("36 ns per send or receive"),
    needs: "cgroup v2, CONFIG_INET, and Linux 6.3, fexit or kprobes",
    tables: &[&TABLE],
    options: OPTIONS,
    hooks: &[&TRAFFIC, &PACKETS],
    maps: MAPS,
    needs_to_load: &[Need::CgroupPrograms],
    make: |setup| Ok(Box::new(CgroupNet::new(Options::read(setup.section)?, Cgroups::of(Controller::Unified)))),
    ..Spec::NEW
};

struct CgroupNet {
    options: Options,
    cgroups: PlacedHistograms<cgn_row>,
}

impl CgroupNet {
    fn new(options: Options, cgroups: Result<Cgroups, NoCgroups>) -> CgroupNet {
        let by = if options.packets { &BY_CGROUP_WITH_PACKETS } else { &BY_CGROUP };
        let cgroups = PlacedHistograms::new(by, cgroups, Seconds(60).window(), Buckets::default());
        CgroupNet { options, cgroups }
    }
}

impl Module for CgroupNet {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        let Some(size) = self.cgroups.plan(self.options.max_cgroups.places(), host, plan) else { return };
        constants.cgn_mask = size.mask;
        constants.cgn_cpu_shift = size.shift;
        constants.cgn_shared = size.shift > 0;
        tell(
            size.shift,
            "a cgroup",
            "10 ns more per send or receive, or more where tasks of one cgroup do so at the same time",
        );
        constants.sock_read_mask = SOCKETS as u32 - 1;
        plan.attach(&TRAFFIC);
        if self.options.packets {
            constants.cgn_packets = true;
            plan.attach(&PACKETS);
        }
        plan.entries(READS.name, SOCKETS);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        PlacedHistograms::add_table(Running::of(*self), &TABLE, |module| Some(&mut module.cgroups)).started()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_bytes_are_in_their_columns() {
        let fake = Fake::new().with(OWNERS, 4).with(ROWS, 5).with(MARKS, 5);
        for cell in 0..4 {
            fake.set(ROWS, 0, cgn_row::calls.nth(cell), 1 + cell as u64);
            fake.set(ROWS, 0, cgn_row::bytes.nth(cell), 100 * (1 + cell as u64));
        }
        let running = Box::new(CgroupNet::new(Options::default(), Err(NoCgroups::Unified))).start(&fake);
        let table = fake.filled(&TABLE, &running);
        assert_eq!(table.names(), ["other"]);
        let cells: Vec<_> = (0..8).map(|column| table.number(0, column)).collect();
        assert_eq!(cells, [1, 100, 2, 200, 3, 300, 4, 400].map(Some));
        let mut losses = Vec::new();
        running.losses(&fake, &mut |_, count| losses.push(count));
        assert_eq!(losses, [1 + 2 + 3 + 4]);
    }
}
