//! TCP retransmissions by connection. Kernel side: bpf/tcpretrans.bpf.c, with a row per socket; here the counts of closed sockets are
//! kept and their rows freed.

use super::shared::tcp::{address, STATE, TRAFFIC};
use crate::bpf::types::{self, mark, retrans_owners, retrans_row, retrans_stat};
use crate::kit::*;
use crate::{maps, metrics, options, tracepoint};
use std::collections::{BTreeMap, VecDeque};

metrics! {
    COUNT: u64 = 0 "io.net.tcp.retrans.count" COUNTER COUNT "segments retransmitted by connection";
}

maps! {
    rows ROWS: retrans_row = "retrans_rows", taken claims, lost retrans_stat.lost in "retrans_stats", marked in "retrans_marks";
    rows MARKS: mark = "retrans_marks";
    rows STATS: retrans_stat = "retrans_stats";
    private OWNERS: retrans_owners = "retrans_owners";
    private OPEN: u64 = "retrans_open";
}

options! {
    /// Only these processes count. A connection belongs to the process that last connected, sent or received on it.
    process: ProcessFilter = ProcessFilter::default();
    /// Also count tail loss probes that repeat a segment.
    include_tlp: bool = false;
    /// Closed connections to keep, the latest; open connections are always shown.
    flow_count: RowCount = RowCount(20);
    /// No effect: no buffer is needed.
    buffer_page_count: Pages = Pages(64);
}

static RETRANSMIT: Hook = tracepoint!("tcp_retransmit_skb", "a kernel with BTF and CONFIG_INET");

static TABLE: TableSpec =
    TableSpec { cluster: 9, shape: Shape::Named { max: NAMES }, metrics: METRICS, ..TableSpec::NEW };

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "tcpretrans",
    summary: "TCP retransmissions by connection",
    overhead: Overhead::low("300 ns per change of the state of a connection, 340 ns per retransmission"),
    needs: "CONFIG_INET",
    tables: &[&TABLE],
    options: OPTIONS,
    hooks: &[&RETRANSMIT, &STATE, &TRAFFIC],
    maps: MAPS,
    make: |setup| {
        let options = Options::read(setup.section)?;
        if setup.section.get("buffer_page_count")?.is_some() {
            setup.section.info("buffer_page_count has no effect: no buffer is needed.");
        }
        Ok(Box::new(Tcpretrans::new(options)))
    },
    ..Spec::NEW
};

/// Largest number of open connections with retransmissions.
const PLACES: usize = 4096;
/// Number of rows that share a mark: 4 KB of the table.
const PART: usize = 32;
/// Largest number of names: for all places, and twice as many closed connections as `flow_count` allows.
const NAMES: usize = 32 * 1024;

struct Tcpretrans {
    options: Options,
    /// Closed connections with their counts, the latest first.
    closed: VecDeque<(String, u64)>,
    claims: OwnedTable<retrans_row>,
    /// Number of retransmissions on sockets that closed before their owner was seen.
    ownerless: u64,
}

impl Tcpretrans {
    fn new(options: Options) -> Tcpretrans {
        let claims = OwnedTable::new(retrans_row::sk, retrans_row::claims);
        Tcpretrans { options, closed: VecDeque::new(), claims, ownerless: 0 }
    }

    /// True if the options ask for the socket's process.
    fn wants(&self, row: Row<'_, retrans_row>) -> bool {
        self.options.process.is_all() || row.get(retrans_row::wanted) != 0
    }

    /// Keeps the counts of closed sockets, and frees their rows.
    fn harvest(&mut self, kernel: &dyn Kernel) {
        for row in kernel.rows(ROWS).iter() {
            let word = |field| row.get(field);
            if word(retrans_row::sk) == 0 || word(retrans_row::closed) == 0 {
                continue;
            }
            let count = word(retrans_row::count);
            if self.wants(row) {
                self.close(flow_name(row), count);
            } else if word(retrans_row::owner) == 0 {
                self.ownerless += count;
            }
            self.claims.release(row);
        }
    }

    /// Adds the count of a closed connection to an earlier one with the same ends, if there is one.
    fn close(&mut self, name: String, count: u64) {
        let before = self.closed.iter().position(|(known, _)| *known == name);
        let before = before.and_then(|at| self.closed.remove(at)).map_or(0, |(_, count)| count);
        self.closed.push_front((name, before + count));
        self.closed.truncate(self.options.flow_count.0 as usize);
    }
}

impl Module for Tcpretrans {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        let by_process = !self.options.process.is_all();
        constants.retrans_mask = PLACES as u32 - 1;
        constants.retrans_part_shift = PART.ilog2();
        constants.retrans_owner_mask = plan_set_table(plan, OWNERS.name, if by_process { by_socket(host) } else { 1 });
        constants.retrans_filter = plan.only(&self.options.process);
        constants.retrans_tlp = self.options.include_tlp;
        plan.attach(&RETRANSMIT);
        plan.attach(&STATE);
        if by_process {
            plan.attach(&TRAFFIC);
        }
        plan.entries(ROWS.def.name, PLACES);
        plan.entries(MARKS.def.name, PLACES / PART);
        plan.entries(OPEN.name, PLACES);
        plan.entries(STATS.def.name, host.cpus);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        Running::of(*self).table(&TABLE, Self::refresh).tick(Self::tick).losses(Self::losses).started()
    }
}

impl Tcpretrans {
    fn refresh(&mut self, kernel: &dyn Kernel, table: &mut Table) {
        self.harvest(kernel);
        let mut counts: BTreeMap<String, u64> = self.closed.iter().cloned().collect();
        for row in kernel.rows(ROWS).iter() {
            let count = row.get(retrans_row::count);
            if count > 0 && self.wants(row) {
                *counts.entry(flow_name(row)).or_default() += count;
            }
        }
        for (name, count) in &counts {
            table.named(name.as_bytes()).set(COUNT, *count);
        }
    }

    fn tick(&mut self, kernel: &dyn Kernel) {
        self.harvest(kernel);
        self.claims.release_contested(kernel.rows(ROWS).iter().enumerate());
    }

    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        each(
            "table-full: retransmissions on connections without a row in the table",
            kernel.rows(STATS).sum(retrans_stat::lost),
        );
        each("process-unseen: retransmissions on connections whose process was never seen", self.ownerless);
    }
}

/// Formats the ends as `10.0.0.1:43210::10.0.0.2:443`, IPv6 without brackets, as the Python agent did.
fn flow_name(row: Row<'_, retrans_row>) -> String {
    let family = row.get(retrans_row::family) as u16;
    let ports = row.get(retrans_row::ports);
    let local = address(family, row.bytes(retrans_row::local));
    let remote = address(family, row.bytes(retrans_row::remote));
    format!("{local}:{}::{remote}:{}", (ports >> 16) as u16, ports as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn fake() -> Fake {
        Fake::new().with(ROWS, 16).with(STATS, 1)
    }

    /// Makes a socket at 10.0.0.1 that is connected to port 443 at 10.0.0.2.
    fn socket(fake: &Fake, place: usize, lport: u64, count: u64) {
        let set = |field, value| fake.set(ROWS, place, field, value);
        set(retrans_row::claims, 1);
        set(retrans_row::sk, 0x1000 + lport);
        set(retrans_row::family, 2);
        set(retrans_row::ports, lport << 16 | 443);
        fake.row(ROWS, place).set_bytes(retrans_row::local, &[10, 0, 0, 1]);
        fake.row(ROWS, place).set_bytes(retrans_row::remote, &[10, 0, 0, 2]);
        set(retrans_row::count, count);
    }

    fn close(fake: &Fake, place: usize) {
        fake.set(ROWS, place, retrans_row::closed, 1);
    }

    fn module(flow_count: u32) -> Tcpretrans {
        let options = Options { flow_count: RowCount(flow_count), ..Options::default() };
        Tcpretrans::new(options)
    }

    fn of_process(process: &str) -> Tcpretrans {
        let config = Config::parse("test.conf", format!("[a]\nprocess = {process}\n").as_bytes()).unwrap();
        let section = config.section("a").unwrap();
        Tcpretrans::new(Options::read(&section).unwrap())
    }

    fn rows(module: &mut Tcpretrans, fake: &Fake) -> Vec<(String, u64)> {
        let table = fake.filled_by(&TABLE, |kernel, table| module.refresh(kernel, table));
        (0..table.len()).map(|row| (table.name(row), table.number(row, COUNT.column).unwrap())).collect()
    }

    fn claims(fake: &Fake, place: usize) -> u64 {
        let kernel: &dyn Kernel = fake;
        kernel.rows(ROWS).get(place).expect("the map has it").get(retrans_row::claims)
    }

    #[test]
    fn a_connection_is_named_by_its_ends() {
        let fake = fake();
        socket(&fake, 3, 43210, 7);
        assert_eq!(rows(&mut module(20), &fake), [("10.0.0.1:43210::10.0.0.2:443".into(), 7)]);
        fake.set(ROWS, 3, retrans_row::family, 10);
        for end in [retrans_row::local, retrans_row::remote] {
            fake.set(ROWS, 3, end.nth(0), 0);
            fake.set(ROWS, 3, end.nth(1), 1u64.to_be());
        }
        assert_eq!(rows(&mut module(20), &fake), [("::1:43210::::1:443".into(), 7)]);
    }

    #[test]
    fn the_latest_closed_connections_stay_and_living_ones_always() {
        let fake = fake();
        let mut module = module(2);
        for lport in 1..=8 {
            socket(&fake, lport, lport as u64, 10 + lport as u64);
        }
        for place in [8, 2, 5] {
            close(&fake, place);
            module.tick(&fake);
            assert_eq!(claims(&fake, place), 0, "its place is free");
        }
        let ports = |rows: Vec<(String, u64)>| rows.into_iter().map(|(_, count)| count - 10).collect::<Vec<_>>();
        assert_eq!(ports(rows(&mut module, &fake)), [1, 2, 3, 4, 5, 6, 7], "8 closed first");
        close(&fake, 1);
        assert_eq!(ports(rows(&mut module, &fake)), [1, 3, 4, 5, 6, 7], "a fetch sees what closed since the tick");
    }

    #[test]
    fn a_connection_between_the_same_ends_goes_on_counting() {
        let fake = fake();
        let mut module = module(20);
        socket(&fake, 1, 1, 5);
        close(&fake, 1);
        assert_eq!(rows(&mut module, &fake), [("10.0.0.1:1::10.0.0.2:443".into(), 5)]);
        socket(&fake, 4, 1, 2);
        assert_eq!(rows(&mut module, &fake), [("10.0.0.1:1::10.0.0.2:443".into(), 7)]);
        close(&fake, 4);
        assert_eq!(rows(&mut module, &fake), [("10.0.0.1:1::10.0.0.2:443".into(), 7)]);
    }

    #[test]
    fn a_connection_counts_for_its_owner_from_the_beginning() {
        let fake = fake();
        let mut module = of_process("77");
        socket(&fake, 1, 1, 5);
        socket(&fake, 2, 2, 6);
        assert!(rows(&mut module, &fake).is_empty(), "nobody is known to own them");
        fake.set(ROWS, 1, retrans_row::owner, 77);
        fake.set(ROWS, 1, retrans_row::wanted, 1);
        fake.set(ROWS, 2, retrans_row::owner, 1);
        assert_eq!(rows(&mut module, &fake), [("10.0.0.1:1::10.0.0.2:443".into(), 5)]);
        close(&fake, 1);
        close(&fake, 2);
        assert_eq!(rows(&mut module, &fake), [("10.0.0.1:1::10.0.0.2:443".into(), 5)]);
    }

    #[test]
    fn with_a_filter_a_closed_ownerless_connection_is_a_loss() {
        let fake = fake();
        let mut module = of_process("1");
        socket(&fake, 1, 1, 5);
        close(&fake, 1);
        assert!(rows(&mut module, &fake).is_empty());
        let mut lost = 0;
        module.losses(&fake, &mut |_, count| lost += count);
        assert_eq!(lost, 5);
    }

    #[test]
    fn a_row_both_claimants_left_is_freed_at_the_second_look() {
        let fake = fake();
        fake.set(ROWS, 2, retrans_row::claims, 2);
        let mut module = module(20);
        module.tick(&fake);
        assert_eq!(claims(&fake, 2), 2);
        module.tick(&fake);
        assert_eq!(claims(&fake, 2), 0);
    }
}
