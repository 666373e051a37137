//! TCP connections that processes open: rows of the latest, how long the answer took, and counts by outcome, process and network; and how
//! long those that others open wait for accept. Kernel side: bpf/tcpconnect.bpf.c.

use super::shared::by_process::{ByProcess, EXEC, EXIT};
use super::shared::groups::tell;
use super::shared::latest::{Columns, Latest};
use super::shared::numbers::{by_network, set_networks, Numbers, NETWORKS};
use super::shared::places::{ByPlace, PlacedHistograms};
use super::shared::tcp::{address, note_ports, ACCEPT, STATE};
use crate::bpf::types::{
    self, conn_counts, conn_event, conn_listener, conn_peer, conn_queue, conn_row, conn_starts, mark, place_owner,
};
use crate::host::until_nul;
use crate::kit::*;
use crate::{beyond, by_process, metrics, options};

mod rows {
    use super::*;

    metrics! {
        PID: u32 = 0 "net.tcp.connect.pid" | "bpf.tcpconnect.pid" | "bpf.tcpconnlat.pid" INSTANT NONE "process that connected";
        UID: u32 = 1 "net.tcp.connect.uid" | "bpf.tcpconnect.uid" INSTANT NONE "user that the process runs as";
        COMM: str = 2 "net.tcp.connect.comm" | "bpf.tcpconnect.comm" | "bpf.tcpconnlat.comm" INSTANT NONE "command name of the process";
        VERSION: u32 = 3 "net.tcp.connect.ipversion" | "bpf.tcpconnect.ipversion" | "bpf.tcpconnlat.ipversion" INSTANT NONE "4 or 6, by the family of the socket";
        SADDR: str = 4 "net.tcp.connect.saddr" | "bpf.tcpconnect.saddr" | "bpf.tcpconnlat.saddr" INSTANT NONE "local address";
        LPORT: u32 = 5 "net.tcp.connect.lport" | "bpf.tcpconnlat.lport" INSTANT NONE "local port";
        DADDR: str = 6 "net.tcp.connect.daddr" | "bpf.tcpconnect.daddr" | "bpf.tcpconnlat.daddr" INSTANT NONE "remote address";
        DPORT: u32 = 7 "net.tcp.connect.dport" | "bpf.tcpconnect.dport" | "bpf.tcpconnlat.dport" INSTANT NONE "remote port";
        ERR: i32 = 8 "net.tcp.connect.err" INSTANT NONE "error number, 0 if the connection was established";
        LAT: u64 = 9 "net.tcp.connect.lat" | "bpf.tcpconnlat.lat" INSTANT NSEC "time from the first SYN to the answer or the error";
        TIME: u64 = 10 "net.tcp.connect.time" INSTANT MSEC "when the connection was established or failed, since 1970";
        SEQ: u64 = 11 "net.tcp.connect.seq" INSTANT NONE "number of the row, which tells a new row from one that moved";
        CGROUP_PATH: str = 12 "net.tcp.connect.cgroup_path" INSTANT NONE "path of the cgroup of the process, in cgroup v2";
    }

    pub static TABLE: TableSpec = TableSpec::latest("the latest connections that were opened", 413, METRICS);

    pub const COLUMNS: Columns = Columns { time: TIME, seq: SEQ, cgroup_path: CGROUP_PATH };

    pub fn put(row: RowMut<'_>, event: &conn_event) {
        let bytes = |words: [u64; 2]| words.map(u64::to_ne_bytes).concat();
        let text = |words| address(event.family as u16, bytes(words).try_into().unwrap_or_default());
        row.set(PID, event.pid)
            .set(UID, event.uid)
            .text(COMM, until_nul(&bytes(event.comm)))
            .set(VERSION, if event.family == AF_INET { 4 } else { 6 })
            .text(SADDR, text(event.local).as_bytes())
            .set(LPORT, u32::from(event.lport))
            .text(DADDR, text(event.remote).as_bytes())
            .set(DPORT, u32::from(event.rport))
            .set(ERR, event.err as i32)
            .set(LAT, event.lat);
    }
}

mod times {
    const OPENED: &str =
        "By a process of this machine, from the first SYN on. Connections that failed have counts, and no time here.";
    crate::histograms! {
        "net.tcp";
        tables "all connections that were opened", "each bucket", 414 415 421, Shape::Single;
        1 "connect" "TCP connections that were opened" "from the first SYN to the answer" OPENED;
        with ALL: u64 = 0 "connects.all.count" COUNTER COUNT "TCP connections that processes began to open";
        with REFUSED: u64 = 1 "connects.refused.count" COUNTER COUNT "TCP connections that were refused";
        with TIMED_OUT: u64 = 2 "connects.timedout.count" COUNTER COUNT "TCP connections that nobody answered in time";
        with UNREACHABLE: u64 = 3 "connects.unreachable.count" COUNTER COUNT "TCP connections to hosts or networks that cannot be reached";
        with OTHER: u64 = 4 "connects.other.count" COUNTER COUNT "TCP connections that failed otherwise, or were closed before the answer";
        with LOST: u64 = 5 "connects.lost.count" | "bpf.tcpconnect.lost" | "bpf.tcpconnlat.lost" COUNTER COUNT "TCP connections that got no row, of those that are to have one";
    }
    use super::*;

    pub static SERIES_OF_ONE: SeriesDef = SeriesDef {
        tables: TABLES,
        histograms: &[SeriesRows::of_one(ROWS).part(conn_row::times)],
        counters: &[
            (ALL, SeriesRows::of_one(ROWS).part(conn_row::all)),
            (REFUSED, SeriesRows::of_one(ROWS).part(conn_row::refused)),
            (TIMED_OUT, SeriesRows::of_one(ROWS).part(conn_row::timedout)),
            (UNREACHABLE, SeriesRows::of_one(ROWS).part(conn_row::unreachable)),
            (OTHER, SeriesRows::of_one(ROWS).part(conn_row::other)),
            (LOST, SeriesRows::of_one(ROWS).part(conn_row::unshown)),
        ],
        ..SeriesDef::NEW
    };
}

mod processes {
    use super::*;

    // In the order of `struct conn_counts`.
    metrics! {
        _: u64 = 0 "proc.connects.all.count" COUNTER COUNT "TCP connections that the process began to open";
        _: u64 = 1 "proc.connects.failed.count" COUNTER COUNT "TCP connections of the process that failed";
    }

    pub static TABLE: TableSpec = TableSpec::by_process("each process that connects", 416, METRICS);
}

mod peers {
    const NOTE: &str =
        "Series are networks of the remote address (option \"networks\"). The series \"other\" has connections to networks that are not in the \
                        list, and to those without a row of their own, when 1,024 have one.";
    crate::histograms! {
        "net.tcp";
        tables "each network", "each bucket of each network", 417 418 2002, Shape::Named { max: 1 << 12 }, if "networks";
        1 "connect.peer" "TCP connections to the network that were opened" "from the first SYN to the answer" NOTE;
        with FAILED: u64 = 0 "connect.peer.failed.count" COUNTER COUNT "TCP connections to the network that failed";
        with NAME: str = 1 "connect.peer.name" DISCRETE NONE "network, for the variables of a dashboard";
    }
    use super::*;

    pub static BY_NETWORK: ByPlace<conn_peer> = ByPlace {
        owners: NETS,
        rows: PEERS,
        marks: PEER_MARKS,
        histograms: &[conn_peer::times],
        counters: &[(FAILED, conn_peer::failed)],
        name: NAME,
        beyond: beyond!("networks-full: connections to networks", timed, [conn_peer::times]),
    };
}

mod accepts {
    const NOTE: &str =
        "Connections that others open, by the port they are opened to: how long they lie in the queue of the listening socket. Where neither \
                        fexit nor kprobes can be had, the time ends with the first send or receive. The series \"other\" has ports without a row of \
                        their own, when 256 have one.";
    crate::histograms! {
        "net.tcp";
        tables "each local port", "each bucket of each local port", 419 420 2003, Shape::Named { max: 1 << 10 }, if "accept";
        1 "accept" "TCP connections to the local port that were accepted" "from the end of the handshake to accept" NOTE;
        with CLOSED: u64 = 0 "accept.closed.count" COUNTER COUNT "TCP connections to the local port that were closed before they were accepted";
        with NAME: str = 1 "accept.name" DISCRETE NONE "local port, for the variables of a dashboard";
    }
    use super::*;

    pub static BY_PORT: ByPlace<conn_listener> = ByPlace {
        owners: LPORTS,
        rows: LISTENERS,
        marks: PORT_MARKS,
        histograms: &[conn_listener::accepts],
        counters: &[(CLOSED, conn_listener::closed)],
        name: NAME,
        beyond: beyond!("ports-full: connections to local ports", timed, [conn_listener::accepts]),
    };
}

by_process! {
    "conn", conn_counts;
    latest "conn", conn_event, rows::COLUMNS;
    rows ROWS: conn_row = "conn_rows";
    private STARTS: conn_starts = "conn_starts";
    private QUEUE: conn_queue = "conn_queue";
    rows NETS: place_owner = "conn_nets", taken id;
    rows PEERS: conn_peer = "conn_peers", taken used, marked in "conn_peer_marks";
    rows PEER_MARKS: mark = "conn_peer_marks";
    rows LPORTS: place_owner = "conn_lports", taken id;
    rows LISTENERS: conn_listener = "conn_listeners", taken used, marked in "conn_port_marks";
    rows PORT_MARKS: mark = "conn_port_marks";
}

options! {
    process;
    /// Only this user counts; -1: all users.
    uid: User = User(None);
    /// Only connections with these remote or local ports. At most 16 count.
    dport: Ports = Ports::default();
    /// Rows only of connections that took at least so many microseconds.
    min_us: Count = Count(0);
    /// Count by remote network, too, as bcc.net.tcp.connect.peer: by prefix, or those of a list.
    networks: Networks = Networks::default();
    /// Time connections that others open until they are accepted, too, as bcc.net.tcp.accept by local port. 0.3 us per connection.
    accept: bool = false;
    /// Rows to show.
    process_count: RowCount = RowCount(20);
    /// Size of the ring buffer in pages.
    buffer_page_count: Pages = Pages(64);
    histograms;
    bpf_names;
}

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "tcpconnect",
    summary: "TCP connections that processes open: outcome and time",
    overhead: Overhead::low("1 us per connection"),
    needs: "CONFIG_INET",
    tables: &[
        &rows::TABLE,
        &times::TABLE,
        &times::BY_BUCKET,
        &processes::TABLE,
        &times::IN_SECONDS,
        &peers::TABLE,
        &peers::BY_BUCKET,
        &peers::IN_SECONDS,
        &accepts::TABLE,
        &accepts::BY_BUCKET,
        &accepts::IN_SECONDS,
    ],
    options: OPTIONS,
    hooks: &[&STATE, &EXIT, &EXEC, &ACCEPT],
    maps: MAPS,
    needs_to_run: &[Need::Processes],
    make: |setup| {
        let mut options = Options::read(setup.section)?;
        if options.dport.0.len() > PORTS {
            setup.section.warn(format!("dport has {} ports, of which the first {PORTS} count", options.dport.0.len()));
            options.dport.0.truncate(PORTS);
        }
        note_ports(setup, &options.dport, &Ports::default());
        Ok(Box::new(Tcpconnect::new(options)))
    },
    ..Spec::NEW
};

/// The address family of IPv4.
const AF_INET: u32 = 2;
/// Number of ports that the programs know (`CONN_PORTS`).
const PORTS: usize = 16;

struct Tcpconnect {
    options: Options,
    latest: Latest<conn_event>,
    times: NamedHistograms,
    processes: ByProcess<conn_counts, 2>,
    peers: Option<PlacedHistograms<conn_peer>>,
    accepts: Option<PlacedHistograms<conn_listener>>,
}

impl Tcpconnect {
    fn new(options: Options) -> Tcpconnect {
        let latest = Latest::of_records(&LATEST, options.process_count, options.buffer_page_count);
        let times = NamedHistograms::of_one(&times::SERIES_OF_ONE, options.window.window(), options.buckets);
        let (window, buckets) = (options.window.window(), options.buckets);
        let peers = by_network(&peers::BY_NETWORK, &options.networks, window, buckets);
        let accepts =
            options.accept.then(|| PlacedHistograms::new(&accepts::BY_PORT, Ok(Numbers::Ports), window, buckets));
        Tcpconnect { options, latest, times, processes: ByProcess::new(&PROCESSES, false), peers, accepts }
    }

    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        let rows = kernel.rows(ROWS);
        each("start-unseen: connections whose beginning was not seen", rows.sum(conn_row::unseen));
        each(
            "too-many-open: connections whose beginning was forgotten because too many had no answer",
            rows.sum(conn_row::displaced),
        );
        if self.accepts.is_some() {
            each(
                "too-many-queued: connections whose beginning was forgotten because too many waited for accept",
                rows.sum(conn_row::unqueued),
            );
        }
    }
}

impl Module for Tcpconnect {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        let Options { uid, min_us, ref dport, .. } = self.options;
        constants.conn_filter = plan.only(&self.options.process);
        (constants.conn_by_uid, constants.conn_uid) = (uid.0.is_some(), uid.0.unwrap_or_default());
        constants.conn_ports = dport.0.len() as u32;
        constants.conn_port.iter_mut().zip(&dport.0).for_each(|(to, port)| *to = *port);
        constants.conn_min = min_us.0 * 1000;
        constants.conn_ring = self.latest.plan(host, plan);
        constants.conn_mask = plan_set_table(plan, STARTS.name, CONNECTING);
        plan.entries(ROWS.def.name, host.cpus);
        self.processes.plan(&SPEC, host, plan, constants);
        if let Some(peers) = &self.peers {
            let Some(size) = peers.plan(NETWORKS, host, plan) else { return };
            constants.conn_by_net = true;
            (constants.conn_net_mask, constants.conn_net_shift) = (size.mask, size.shift);
            constants.conn_net_shared = size.shift > 0;
            tell(size.shift, "a network", "10 ns more per connection");
            set_networks(&self.options.networks, &mut constants.conn_networks);
        }
        if let Some(accepts) = &self.accepts {
            let Some(size) = accepts.plan(LISTENERS_MOST, host, plan) else { return };
            constants.conn_accepts = true;
            (constants.conn_lport_mask, constants.conn_lport_shift) = (size.mask, size.shift);
            constants.conn_lport_shared = size.shift > 0;
            tell(size.shift, "a local port", "10 ns more per connection");
            constants.conn_queue_mask = plan_set_table(plan, QUEUE.name, CONNECTING);
            plan.attach(&ACCEPT);
        }
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        let prometheus = self.options.prometheus;
        let (has_peers, by_port) = (self.peers.is_some(), self.accepts.is_some());
        let running = Latest::add_table(Running::of(*self), &rows::TABLE, |module| &mut module.latest, rows::put);
        let running = NamedHistograms::add_tables(running, &[&times::SERIES_OF_ONE], prometheus, |module| {
            Some(&mut module.times)
        });
        ByProcess::add_table(running, &processes::TABLE, |module| &mut module.processes)
            .when(has_peers, |running| {
                PlacedHistograms::add_tables(running, peers::TABLES, prometheus, |module| module.peers.as_mut())
            })
            .when(by_port, |running| {
                PlacedHistograms::add_tables(running, accepts::TABLES, prometheus, |module| module.accepts.as_mut())
            })
            .losses(Self::losses)
            .started()
    }
}

/// Number of connections without an answer that have a place, and of those that wait for accept: a scanner has thousands.
const CONNECTING: usize = 1 << 14;
const LISTENERS_MOST: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::record_bytes;
    use crate::pcp::Atom;

    #[test]
    fn rows_have_addresses_of_both_families() {
        let fake = Fake::new().with(ROWS, 1).with(LOST, 1);
        let local = u64::from_ne_bytes([127, 0, 0, 1, 0, 0, 0, 0]);
        let four =
            conn_event { family: 2, local: [local, 0], remote: [local, 0], rport: 80, lat: 7, ..conn_event::default() };
        let loopback = [0, u64::from_ne_bytes([0, 0, 0, 0, 0, 0, 0, 1])];
        let six = conn_event { family: 10, local: loopback, remote: loopback, err: 111, ..conn_event::default() };
        for event in [four, six] {
            fake.record(&record_bytes(&event));
        }
        let running = Box::new(Tcpconnect::new(Options::default())).start(&fake);
        let table = fake.filled(&rows::TABLE, &running);
        let row = |row: usize| [3, 4, 6, 7, 8].map(|column| table.value(row, column).unwrap());
        let local = Atom::Str(b"127.0.0.1");
        assert_eq!(row(1), [Atom::U32(4), local, local, Atom::U32(80), Atom::I32(0)]);
        assert_eq!(row(0), [Atom::U32(6), Atom::Str(b"::1"), Atom::Str(b"::1"), Atom::U32(0), Atom::I32(111)]);
    }

    #[test]
    fn outcomes_are_summed_over_cpus() {
        let fake = Fake::new().with(ROWS, 2).with(LOST, 2);
        for cpu in 0..2 {
            for (at, field) in [
                conn_row::all,
                conn_row::refused,
                conn_row::timedout,
                conn_row::unreachable,
                conn_row::other,
                conn_row::unshown,
            ]
            .into_iter()
            .enumerate()
            {
                fake.set(ROWS, cpu, field, at as u64 + 1);
            }
        }
        let running = Box::new(Tcpconnect::new(Options::default())).start(&fake);
        let table = fake.filled(&times::TABLE, &running);
        assert_eq!((7..13).map(|column| table.number(0, column).unwrap()).collect::<Vec<_>>(), [2, 4, 6, 8, 10, 12]);
    }
}
