//! Tables of bytes by process and connection, which bpf/shared/flows.bpf.h fills: reads the bytes since the last look, and frees the
//! rows of idle connections.

use super::tcp::SOCKETS;
use crate::bpf::types::{flow, flow_stat, rodata};
use crate::kit::{by_thread, plan_set_table, table_size, Host, Kernel, MapDef, OwnedTable, Plan, Row, Rows, RowsView};
use std::collections::BTreeMap;

/// Rows of a module's table per CPU; machines with little memory have fewer.
const FLOWS: usize = 2048;
/// Number of rows that share a mark: 4 KB.
const PART: usize = 32;
/// Ticks (seconds) without traffic after which a connection's row is freed; one tick if the table is crowded.
const REST: u32 = 10;

/// A process and both ends of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ends {
    pub pid: u32,
    pub lport: u16,
    pub rport: u16,
    pub family: u16,
    pub laddr: [u8; 16],
    pub raddr: [u8; 16],
}

/// Bytes of a connection since the last look.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    pub ends: Ends,
    pub tx: u64,
    pub rx: u64,
    /// Command name of the process when it first used the connection.
    pub comm: [u8; 16],
    /// Number of the process's execs at that time, as the kernel counts them.
    pub execs: u64,
    /// Start time of the process.
    pub born: u64,
}

/// A row at the last look.
#[derive(Clone, Copy, Default)]
struct Seen {
    tx: u64,
    rx: u64,
    /// Number of ticks without traffic.
    rest: u32,
}

/// The table of a module.
pub struct Flows {
    map: Rows<flow>,
    stats: Rows<flow_stat>,
    /// Rows in use, by their number.
    seen: BTreeMap<usize, Seen>,
    /// Numbers of the claimed rows when `taken` was read.
    claimed: Vec<usize>,
    taken: Option<u64>,
    claims: OwnedTable<flow>,
}

impl Flows {
    /// Makes a table in which nothing was seen yet.
    pub fn new(map: Rows<flow>, stats: Rows<flow_stat>) -> Flows {
        let claims = OwnedTable::new(flow::ident, flow::claims);
        Flows { map, stats, seen: BTreeMap::new(), claimed: Vec::new(), taken: None, claims }
    }

    /// Sizes the module's maps: the table, the losses, the marks, and for kprobes the sockets that threads send on, and the reads
    /// from sockets.
    pub fn plan(&self, host: &Host, plan: &mut Plan, constants: &mut rodata, [marks, sends, reads]: [&MapDef; 3]) {
        let flows = rows(host);
        constants.flow_mask = flows as u32 - 1;
        constants.flow_sending_mask = plan_set_table(plan, sends.name, by_thread(host));
        plan.entries(self.map.def.name, flows);
        constants.flow_part_shift = PART.ilog2();
        plan.entries(marks.name, flows / PART);
        plan.entries(self.stats.def.name, host.cpus);
        constants.sock_read_mask = SOCKETS as u32 - 1;
        plan.entries(reads.name, SOCKETS);
    }

    /// Passes the bytes since the last look to `each`.
    pub fn look(&mut self, kernel: &dyn Kernel, each: &mut dyn FnMut(Moved)) {
        self.find(kernel);
        for (place, row) in claimed(&self.claimed, kernel.rows(self.map)) {
            look(row, self.seen.entry(place).or_default(), each);
        }
    }

    /// Passes the bytes since the last look to `each`, and ages rows; called once a second. Idle rows are marked, so that no program
    /// takes them any more, and freed a tick later, when no program can still be adding.
    pub fn age(&mut self, kernel: &dyn Kernel, each: &mut dyn FnMut(Moved)) {
        self.find(kernel);
        let rows = kernel.rows(self.map);
        let rest = if self.claimed.len() > rows.len() / 4 { 0 } else { REST };
        for (place, row) in claimed(&self.claimed, rows) {
            if row.get(flow::ident) == 0 {
                continue;
            }
            let seen = self.seen.entry(place).or_default();
            let moved = look(row, seen, each);
            if row.get(flow::retired) != 0 {
                self.claims.release(row);
                self.seen.remove(&place);
            } else if !moved && seen.rest >= rest {
                row.set(flow::retired, 1);
            } else if !moved {
                seen.rest += 1;
            }
        }
        self.claims.release_contested(claimed(&self.claimed, rows));
        self.claimed.retain(|&place| rows.get(place).is_some_and(is_claimed));
    }

    /// Looks for the rows in use if a row was taken since the last call: the table is large, and mostly empty.
    fn find(&mut self, kernel: &dyn Kernel) {
        let taken = Some(kernel.rows(self.stats).sum(flow_stat::taken));
        if self.taken != taken {
            self.taken = taken;
            let rows = kernel.rows(self.map).iter().enumerate();
            self.claimed.clear();
            self.claimed.extend(rows.filter(|(_, row)| is_claimed(*row)).map(|(place, _)| place));
        }
    }
}

/// Returns the number of rows of a table: a process has a row for each of its connections, in one of eight places. As long as a sixth
/// of all rows is in use, no connection in a million finds its places taken: that is 11,000 connections on a machine of 24 GB, the
/// load of a proxy. With 128 bytes a row it takes a 2,000th of the memory at most.
fn rows(host: &Host) -> usize {
    table_size((host.cpus * FLOWS).min(1 << 16).max(host.memory * 2), 8192, 1 << 18)
}

fn is_claimed(row: Row<'_, flow>) -> bool {
    row.get(flow::claims) != 0
}

/// Returns rows by their numbers.
fn claimed<'a>(places: &'a [usize], rows: RowsView<'a, flow>) -> impl Iterator<Item = (usize, Row<'a, flow>)> {
    places.iter().filter_map(move |&place| Some((place, rows.get(place)?)))
}

/// Passes the bytes of a row since the last look to `each`. Returns true if there were any.
fn look(row: Row<'_, flow>, seen: &mut Seen, each: &mut dyn FnMut(Moved)) -> bool {
    let (tx, rx) = (row.get(flow::tx), row.get(flow::rx));
    let ident = row.get(flow::ident);
    if ident == 0 || (tx == seen.tx && rx == seen.rx) {
        return false;
    }
    each(Moved {
        ends: Ends {
            pid: ident as u32,
            lport: (ident >> 32) as u16,
            rport: (ident >> 48) as u16,
            family: row.get(flow::family) as u16,
            laddr: row.bytes(flow::local),
            raddr: row.bytes(flow::remote),
        },
        tx: tx.wrapping_sub(seen.tx),
        rx: rx.wrapping_sub(seen.rx),
        comm: row.bytes(flow::comm),
        execs: row.get(flow::execs),
        born: row.get(flow::born),
    });
    *seen = Seen { tx, rx, rest: 0 };
    true
}

/// Puts a connection into its row, for tests of modules with such a table.
#[cfg(test)]
pub fn put(
    fake: &crate::kit::Fake,
    (map, stats): (Rows<flow>, Rows<flow_stat>),
    row: usize,
    ends: Ends,
    tx: u64,
    rx: u64,
) {
    if !is_claimed(fake.row(map, row)) {
        fake.set(stats, 0, flow_stat::taken, fake.row(stats, 0).get(flow_stat::taken) + 1);
    }
    let ident = u64::from(ends.pid) | u64::from(ends.lport) << 32 | u64::from(ends.rport) << 48;
    fake.set(map, row, flow::claims, 1);
    fake.set(map, row, flow::ident, ident);
    fake.set(map, row, flow::family, u64::from(ends.family));
    fake.row(map, row).set_bytes(flow::comm, b"thread");
    fake.set(map, row, flow::born, 1);
    for (end, bytes) in [(flow::local, ends.laddr), (flow::remote, ends.raddr)] {
        fake.row(map, row).set_bytes(end, &bytes);
    }
    fake.set(map, row, flow::tx, tx);
    fake.set(map, row, flow::rx, rx);
}

/// Makes an IPv4 connection of a process from 10.0.0.1 to 10.0.0.2.
#[cfg(test)]
pub fn ends(pid: u32, lport: u16, rport: u16) -> Ends {
    let (mut laddr, mut raddr) = ([0; 16], [0; 16]);
    laddr[..4].copy_from_slice(&[10, 0, 0, 1]);
    raddr[..4].copy_from_slice(&[10, 0, 0, 2]);
    Ends { pid, lport, rport, family: 2, laddr, raddr }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::Fake;

    const MAP: Rows<flow> = Rows::new("flows");
    const STATS: Rows<flow_stat> = Rows::new("stats");

    fn moved(flows: &mut Flows, fake: &Fake, age: bool) -> Vec<(u32, u64, u64)> {
        let mut all = Vec::new();
        let mut each = |moved: Moved| all.push((moved.ends.pid, moved.tx, moved.rx));
        if age {
            flows.age(fake, &mut each);
        } else {
            flows.look(fake, &mut each);
        }
        all
    }

    fn claims(fake: &Fake, row: usize) -> u64 {
        let kernel: &dyn Kernel = fake;
        kernel.rows(MAP).get(row).expect("the map has it").get(flow::claims)
    }

    #[test]
    fn a_table_has_more_rows_where_there_is_more_memory() {
        let host = |cpus, memory| Host { cpus, memory, ..Host::SMALL };
        let sizes = [(1, 512), (2, 4_000), (2, 24_000), (64, 24_000), (64, 1_000_000)];
        assert_eq!(sizes.map(|(cpus, memory)| rows(&host(cpus, memory))), [8192, 8192, 1 << 16, 1 << 16, 1 << 18]);
    }

    #[test]
    fn each_byte_is_handed_out_once() {
        let fake = Fake::new().with(MAP, 8).with(STATS, 1);
        let mut flows = Flows::new(MAP, STATS);
        put(&fake, (MAP, STATS), 3, ends(7, 1, 2), 100, 5);
        assert_eq!(moved(&mut flows, &fake, false), [(7, 100, 5)]);
        assert_eq!(moved(&mut flows, &fake, true), []);
        put(&fake, (MAP, STATS), 3, ends(7, 1, 2), 101, 5);
        assert_eq!(moved(&mut flows, &fake, true), [(7, 1, 0)]);
    }

    /// The programs count each row that they take: the whole table is only searched after that.
    #[test]
    fn a_row_is_found_once_programs_have_counted_it() {
        let fake = Fake::new().with(MAP, 8).with(STATS, 1);
        let mut flows = Flows::new(MAP, STATS);
        assert_eq!(moved(&mut flows, &fake, true), []);
        put(&fake, (MAP, STATS), 3, ends(7, 1, 2), 100, 5);
        fake.set(STATS, 0, flow_stat::taken, 0);
        assert_eq!(moved(&mut flows, &fake, true), []);
        fake.set(STATS, 0, flow_stat::taken, 1);
        assert_eq!(moved(&mut flows, &fake, true), [(7, 100, 5)]);
        put(&fake, (MAP, STATS), 3, ends(7, 1, 2), 101, 5);
        assert_eq!(moved(&mut flows, &fake, true), [(7, 1, 0)], "a row that is known needs no count");
    }

    #[test]
    fn what_came_before_a_row_was_freed_is_not_lost() {
        let fake = Fake::new().with(MAP, 8).with(STATS, 1);
        let mut flows = Flows::new(MAP, STATS);
        put(&fake, (MAP, STATS), 3, ends(7, 1, 2), 100, 5);
        let mut ticks = 0;
        let kernel: &dyn Kernel = &fake;
        while kernel.rows(MAP).sum(flow::retired) == 0 {
            moved(&mut flows, &fake, true);
            ticks += 1;
        }
        assert!(ticks > REST, "{ticks}");
        // A program that had found the row before it was marked.
        fake.set(MAP, 3, flow::tx, 120);
        assert_eq!(moved(&mut flows, &fake, true), [(7, 20, 0)]);
        assert_eq!(claims(&fake, 3), 0);
        put(&fake, (MAP, STATS), 3, ends(8, 1, 2), 100, 0);
        assert_eq!(moved(&mut flows, &fake, true), [(8, 100, 0)]);
    }

    #[test]
    fn a_crowded_table_gives_rows_back_sooner() {
        let fake = Fake::new().with(MAP, 4).with(STATS, 1);
        let mut flows = Flows::new(MAP, STATS);
        for row in 0..3 {
            put(&fake, (MAP, STATS), row, ends(7, row as u16, 2), 1, 1);
        }
        for _ in 0..3 {
            moved(&mut flows, &fake, true);
        }
        assert!((0..3).all(|row| claims(&fake, row) == 0));
    }

    #[test]
    fn a_row_both_claimants_left_is_freed_at_the_second_look() {
        let fake = Fake::new().with(MAP, 8).with(STATS, 1);
        fake.set(MAP, 2, flow::claims, 2);
        let mut flows = Flows::new(MAP, STATS);
        moved(&mut flows, &fake, true);
        assert_eq!(claims(&fake, 2), 2);
        moved(&mut flows, &fake, true);
        assert_eq!(claims(&fake, 2), 0);
    }
}
