//! The TCP connections with the most traffic in the last interval. Kernel side: bpf/tcptop.bpf.c.

use super::shared::flows::{Ends, Flows, Moved};
use super::shared::tcp::{address, TRAFFIC};
use crate::bpf::types::{self, flow, flow_stat, mark, set_numbers, sock_read};
use crate::host::{comm, until_nul};
use crate::kit::*;
use crate::{maps, metrics, options};
use std::collections::BTreeMap;
use std::mem::take;
use std::time::{Duration, Instant};

metrics! {
    PID: u32 = 0 "proc.io.net.tcptop.pid" INSTANT NONE "process that used the connection";
    COMM: str = 1 "proc.io.net.tcptop.comm" INSTANT NONE "command name of the process";
    LADDR: str = 2 "proc.io.net.tcptop.laddr" INSTANT NONE "local address";
    LPORT: u32 = 3 "proc.io.net.tcptop.lport" INSTANT NONE "local port";
    DADDR: str = 4 "proc.io.net.tcptop.daddr" INSTANT NONE "remote address";
    DPORT: u32 = 5 "proc.io.net.tcptop.dport" INSTANT NONE "remote port";
    RX: u64 = 6 "proc.io.net.tcptop.rx" INSTANT BYTE "bytes received in the last interval";
    TX: u64 = 7 "proc.io.net.tcptop.tx" INSTANT BYTE "bytes sent in the last interval";
}

maps! {
    rows FLOWS: flow = "tcptop_flows", taken claims, lost flow_stat.lost in "tcptop_stats", marked in "tcptop_marks";
    rows MARKS: mark = "tcptop_marks";
    rows STATS: flow_stat = "tcptop_stats";
    private SENDS: set_numbers = "tcptop_sends";
    private READS: sock_read = "tcptop_reads";
}

options! {
    /// Seconds that the table covers; 0 = since the last fetch by any client; negative = the table stays empty.
    interval: Interval = Interval::Seconds(1);
    /// Connections to show.
    conn_count: RowCount = RowCount(20);
    /// Only these processes count.
    process: ProcessFilter = ProcessFilter::default();
}

static TABLE: TableSpec = TableSpec {
    cluster: 12,
    shape: Shape::Rows { count: "conn_count", order: RowOrder::Highest("most bytes first") },
    metrics: METRICS,
    ..TableSpec::NEW
};

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "tcptop",
    summary: "TCP connections with the most traffic",
    overhead: Overhead::medium("35 ns per send or receive"),
    needs: "CONFIG_INET, and Linux 6.3, fexit or kprobes",
    tables: &[&TABLE],
    options: OPTIONS,
    hooks: &[&TRAFFIC],
    maps: MAPS,
    needs_to_run: &[Need::Processes],
    make: |setup| {
        let options = Options::read(setup.section)?;
        if options.interval == Interval::Never {
            setup.section.warn("with a negative interval there are no values");
        }
        Ok(Box::new(Tcptop::new(options, comm)))
    },
    ..Spec::NEW
};

/// Time before its end at which an interval counts as over, since ticks come about once a second.
const EARLY: Duration = Duration::from_millis(100);

/// Returns the command name of a process; `None` once it is gone.
type NameOf = fn(u32) -> Option<Vec<u8>>;

/// Traffic of a connection in an interval, and the command name of the process when it first used the connection.
#[derive(Default)]
struct Traffic {
    tx: u64,
    rx: u64,
    comm: [u8; 16],
}

/// A row of the table.
struct Line {
    ends: Ends,
    tx: u64,
    rx: u64,
    comm: Vec<u8>,
}

struct Tcptop {
    options: Options,
    name_of: NameOf,
    flows: Flows,
    /// Traffic of the current interval.
    traffic: BTreeMap<Ends, Traffic>,
    /// Rows of the last interval, most bytes first.
    lines: Vec<Line>,
    since: Option<Instant>,
}

impl Tcptop {
    fn new(options: Options, name_of: NameOf) -> Tcptop {
        let flows = Flows::new(FLOWS, STATS);
        Tcptop { options, name_of, flows, traffic: BTreeMap::new(), lines: Vec::new(), since: None }
    }

    fn add(traffic: &mut BTreeMap<Ends, Traffic>, moved: Moved) {
        let of = traffic.entry(moved.ends).or_default();
        of.tx += moved.tx;
        of.rx += moved.rx;
        of.comm = moved.comm;
    }

    /// Ends the interval, and makes its traffic the table.
    fn swap(&mut self) {
        let mut traffic: Vec<_> = take(&mut self.traffic).into_iter().collect();
        traffic.sort_by_key(|(ends, of)| (std::cmp::Reverse(of.tx.saturating_add(of.rx)), *ends));
        traffic.truncate(self.options.conn_count.0 as usize);
        let name = |pid, comm: &[u8; 16]| (self.name_of)(pid).unwrap_or_else(|| until_nul(comm).to_vec());
        let line = |(ends, of): (Ends, Traffic)| Line { ends, tx: of.tx, rx: of.rx, comm: name(ends.pid, &of.comm) };
        self.lines = traffic.into_iter().map(line).collect();
    }

    fn tick_at(&mut self, kernel: &dyn Kernel, now: Instant) {
        let Tcptop { flows, traffic, .. } = self;
        flows.age(kernel, &mut |moved| Self::add(traffic, moved));
        match self.options.interval {
            Interval::Seconds(seconds) => {
                let length = Duration::from_secs(seconds.into()).saturating_sub(EARLY);
                if now.saturating_duration_since(*self.since.get_or_insert(now)) >= length {
                    self.swap();
                    self.since = Some(now);
                }
            }
            Interval::AtFetch => {}
            Interval::Never => self.traffic.clear(),
        }
    }
}

impl Module for Tcptop {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        constants.tcptop_filter = plan.only(&self.options.process);
        plan.attach(&TRAFFIC);
        self.flows.plan(host, plan, constants, [&MARKS.def, &SENDS, &READS]);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        Running::of(*self)
            .table(&TABLE, Self::refresh)
            .tick(|module, kernel| module.tick_at(kernel, Instant::now()))
            .losses(Self::losses)
            .started()
    }
}

impl Tcptop {
    fn refresh(&mut self, kernel: &dyn Kernel, table: &mut Table) {
        if self.options.interval == Interval::AtFetch {
            let Tcptop { flows, traffic, .. } = self;
            flows.look(kernel, &mut |moved| Self::add(traffic, moved));
            self.swap();
        }
        for (row, line) in self.lines.iter().enumerate() {
            table
                .indexed(row as u32)
                .set(PID, line.ends.pid)
                .text(COMM, &line.comm)
                .text(LADDR, address(line.ends.family, line.ends.laddr).as_bytes())
                .set(LPORT, u32::from(line.ends.lport))
                .text(DADDR, address(line.ends.family, line.ends.raddr).as_bytes())
                .set(DPORT, u32::from(line.ends.rport))
                .set(RX, line.rx)
                .set(TX, line.tx);
        }
    }

    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        each("table-full: calls on connections without a row in the table", kernel.rows(STATS).sum(flow_stat::lost));
    }
}

#[cfg(test)]
mod tests {
    use super::super::shared::flows::{ends, put};
    use super::*;
    use crate::pcp::Atom;

    fn fake() -> Fake {
        Fake::new().with(FLOWS, 16).with(STATS, 1)
    }

    fn module(interval: Interval, conn_count: u32) -> Tcptop {
        let options = Options { interval, conn_count: RowCount(conn_count), ..Options::default() };
        Tcptop::new(options, |pid| (pid < 1000).then(|| b"curl".to_vec()))
    }

    /// Reads the rows: process, bytes received, bytes sent.
    fn rows(module: &mut Tcptop, fake: &Fake) -> Vec<(u32, u64, u64)> {
        let table = fake.filled_by(&TABLE, |kernel, table| module.refresh(kernel, table));
        let number = |row, column| table.number(row, column).unwrap();
        let row = |row| (number(row, PID.column) as u32, number(row, RX.column), number(row, TX.column));
        (0..table.len()).map(row).collect()
    }

    fn seconds(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn rows_are_in_the_order_of_both_directions_together() {
        let fake = fake();
        put(&fake, (FLOWS, STATS), 1, ends(1, 1, 80), 10_000, 1);
        put(&fake, (FLOWS, STATS), 2, ends(2, 2, 80), 100, 9_000);
        put(&fake, (FLOWS, STATS), 3, ends(3, 3, 80), 20_000, 0);
        let (mut module, start) = (module(Interval::Seconds(1), 2), Instant::now());
        module.tick_at(&fake, start);
        module.tick_at(&fake, seconds(start, 1));
        assert_eq!(rows(&mut module, &fake), [(3, 0, 20_000), (1, 1, 10_000)]);
    }

    #[test]
    fn a_table_shows_one_interval_until_the_next_is_over() {
        let fake = fake();
        let (mut module, start) = (module(Interval::Seconds(2), 20), Instant::now());
        module.tick_at(&fake, start);
        put(&fake, (FLOWS, STATS), 1, ends(1, 1, 80), 100, 0);
        module.tick_at(&fake, seconds(start, 1));
        assert!(rows(&mut module, &fake).is_empty());
        put(&fake, (FLOWS, STATS), 1, ends(1, 1, 80), 150, 7);
        module.tick_at(&fake, seconds(start, 2));
        for _ in 0..3 {
            assert_eq!(rows(&mut module, &fake), [(1, 7, 150)], "one fetch takes nothing from the next");
        }
        put(&fake, (FLOWS, STATS), 1, ends(1, 1, 80), 151, 7);
        module.tick_at(&fake, seconds(start, 3));
        assert_eq!(rows(&mut module, &fake), [(1, 7, 150)]);
        module.tick_at(&fake, seconds(start, 4));
        assert_eq!(rows(&mut module, &fake), [(1, 0, 1)]);
    }

    #[test]
    fn interval_0_shows_what_was_moved_since_the_fetch_before() {
        let fake = fake();
        let mut module = module(Interval::AtFetch, 20);
        put(&fake, (FLOWS, STATS), 1, ends(1, 1, 80), 100, 0);
        module.tick_at(&fake, Instant::now());
        put(&fake, (FLOWS, STATS), 1, ends(1, 1, 80), 130, 0);
        assert_eq!(rows(&mut module, &fake), [(1, 0, 130)]);
        assert!(rows(&mut module, &fake).is_empty());
    }

    #[test]
    fn a_negative_interval_leaves_the_table_empty() {
        let fake = fake();
        let mut module = module(Interval::Never, 20);
        put(&fake, (FLOWS, STATS), 1, ends(1, 1, 80), 100, 0);
        module.tick_at(&fake, Instant::now());
        assert!(rows(&mut module, &fake).is_empty());
    }

    #[test]
    fn two_rows_of_one_connection_are_one_line() {
        let fake = fake();
        put(&fake, (FLOWS, STATS), 1, ends(1, 1, 80), 100, 1);
        put(&fake, (FLOWS, STATS), 2, ends(1, 1, 80), 10, 2);
        assert_eq!(rows(&mut module(Interval::AtFetch, 20), &fake), [(1, 3, 110)]);
    }

    #[test]
    fn a_process_that_ended_keeps_the_name_its_traffic_had() {
        let fake = fake();
        put(&fake, (FLOWS, STATS), 1, ends(1, 1, 80), 20, 0);
        put(&fake, (FLOWS, STATS), 2, ends(1001, 2, 80), 10, 0);
        let table = fake.filled_by(&TABLE, |kernel, table| module(Interval::AtFetch, 20).refresh(kernel, table));
        assert_eq!(table.value(0, COMM.column), Some(Atom::Str(b"curl")));
        assert_eq!(table.value(1, COMM.column), Some(Atom::Str(b"thread")));
        assert_eq!(table.value(1, LADDR.column), Some(Atom::Str(b"10.0.0.1")));
        assert_eq!(table.value(1, DADDR.column), Some(Atom::Str(b"10.0.0.2")));
        assert_eq!(table.value(1, LPORT.column), Some(Atom::U32(2)));
        assert_eq!(table.value(1, DPORT.column), Some(Atom::U32(80)));
    }
}
