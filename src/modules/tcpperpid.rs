//! TCP bytes of processes. Kernel side: bpf/tcpperpid.bpf.c, which counts by connection so that ports can be selected; here the
//! connections of a process are added up.

use super::shared::flows::{Flows, Moved};
use super::shared::process_counts::ProcessCounts;
use super::shared::tcp::{note_ports, TRAFFIC};
use crate::bpf::types::{self, flow, flow_stat, mark, set_numbers, sock_read};
use crate::host::{command_word, exists, until_nul};
use crate::kit::*;
use crate::{maps, metrics, options};

metrics! {
    TX: u64 = 0 "proc.io.net.total.tx" COUNTER BYTE "bytes sent over TCP";
    RX: u64 = 1 "proc.io.net.total.rx" COUNTER BYTE "bytes received over TCP";
}

maps! {
    rows FLOWS: flow = "tcpperpid_flows", taken claims, lost flow_stat.lost in "tcpperpid_stats", marked in "tcpperpid_marks";
    rows MARKS: mark = "tcpperpid_marks";
    rows STATS: flow_stat = "tcpperpid_stats";
    private SENDS: set_numbers = "tcpperpid_sends";
    private READS: sock_read = "tcpperpid_reads";
}

options! {
    process;
    /// Only connections with these remote or local ports.
    dport: Ports = Ports::default();
    /// Only connections with these remote or local ports.
    lport: Ports = Ports::default();
    /// No effect: no buffer is needed.
    buffer_page_count: Pages = Pages(64);
    /// No effect: bytes always count when they are moved, not when their connection closes.
    highres: bool = false;
}

static TABLE: TableSpec = TableSpec { cluster: 11, shape: Shape::Pids, metrics: METRICS, ..TableSpec::NEW };

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "tcpperpid",
    summary: "TCP traffic by process",
    overhead: Overhead::medium("50 ns per send or receive"),
    needs: "CONFIG_INET, and Linux 6.3, fexit or kprobes",
    tables: &[&TABLE],
    options: OPTIONS,
    hooks: &[&TRAFFIC],
    maps: MAPS,
    needs_to_run: &[Need::Processes],
    make: |setup| {
        let options = Options::read(setup.section)?;
        for (option, why) in
            [("highres", "bytes always count when they are moved"), ("buffer_page_count", "no buffer is needed")]
        {
            if setup.section.get(option)?.is_some() {
                setup.section.info(format!("{option} has no effect: {why}."));
            }
        }
        note_ports(setup, &options.dport, &options.lport);
        Ok(Box::new(Tcpperpid::new(options, exists)))
    },
    ..Spec::NEW
};

#[derive(Default)]
struct Process {
    /// Command name of its latest program that has used a connection.
    comm: Vec<u8>,
    execs: u64,
    tx: u64,
    rx: u64,
}

struct Tcpperpid {
    options: Options,
    /// Returns true if a process exists.
    exists: fn(u32) -> bool,
    flows: Flows,
    processes: ProcessCounts<Process>,
}

impl Tcpperpid {
    fn new(options: Options, exists: fn(u32) -> bool) -> Tcpperpid {
        Tcpperpid { options, exists, flows: Flows::new(FLOWS, STATS), processes: ProcessCounts::default() }
    }

    fn add(options: &Options, processes: &mut ProcessCounts<Process>, moved: Moved) {
        if !options.lport.wants(moved.ends.lport) || !options.dport.wants(moved.ends.rport) {
            return;
        }
        if let Some(process) = processes.of(moved.ends.pid, moved.born) {
            process.tx += moved.tx;
            process.rx += moved.rx;
            if process.comm.is_empty() || moved.execs > process.execs {
                process.comm = command_word(&[until_nul(&moved.comm)]).to_vec();
                process.execs = moved.execs;
            }
        }
    }
}

impl Module for Tcpperpid {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        constants.tcpperpid_filter = plan.only(&self.options.process);
        plan.attach(&TRAFFIC);
        self.flows.plan(host, plan, constants, [&MARKS.def, &SENDS, &READS]);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        Running::of(*self).table(&TABLE, Self::refresh).tick(Self::tick).losses(Self::losses).started()
    }
}

impl Tcpperpid {
    fn refresh(&mut self, kernel: &dyn Kernel, table: &mut Table) {
        let Tcpperpid { options, flows, processes, .. } = self;
        flows.look(kernel, &mut |moved| Self::add(options, processes, moved));
        for (pid, process) in processes.iter() {
            let name = [format!("{pid:06} ").as_bytes(), &process.comm].concat();
            table.process(pid, &name).set(TX, process.tx).set(RX, process.rx);
        }
    }

    fn tick(&mut self, kernel: &dyn Kernel) {
        let Tcpperpid { options, flows, processes, exists } = self;
        flows.age(kernel, &mut |moved| Self::add(options, processes, moved));
        processes.tick(false, |pid, _| !exists(pid), |process| process.tx.wrapping_add(process.rx));
    }

    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        each("table-full: calls on connections without a row in the table", kernel.rows(STATS).sum(flow_stat::lost));
    }
}

#[cfg(test)]
mod tests {
    use super::super::shared::flows::{ends, put};
    use super::*;

    fn fake() -> Fake {
        Fake::new().with(FLOWS, 16).with(STATS, 1)
    }

    fn module(options: Options) -> Tcpperpid {
        Tcpperpid::new(options, |pid| pid < 1000)
    }

    /// Reads the instances: name, bytes sent, bytes received.
    fn rows(module: &mut Tcpperpid, fake: &Fake) -> Vec<(String, u64, u64)> {
        let table = fake.filled_by(&TABLE, |kernel, table| module.refresh(kernel, table));
        let number = |row, column| table.number(row, column).unwrap();
        let row = |row| (table.name(row), number(row, TX.column), number(row, RX.column));
        (0..table.len()).map(row).collect()
    }

    #[test]
    fn connections_of_a_process_are_added_up_and_only_grow() {
        let fake = fake();
        let mut module = module(Options::default());
        put(&fake, (FLOWS, STATS), 1, ends(77, 1, 80), 100, 5);
        put(&fake, (FLOWS, STATS), 2, ends(77, 2, 80), 20, 1);
        put(&fake, (FLOWS, STATS), 3, ends(1_234_567, 3, 80), 1, 0);
        let wanted = [("000077 thread".into(), 120, 6), ("1234567 thread".into(), 1, 0)];
        assert_eq!(rows(&mut module, &fake), wanted);
        for _ in 0..30 {
            module.tick(&fake);
            assert_eq!(rows(&mut module, &fake), wanted, "also when the rows were given back");
        }
        put(&fake, (FLOWS, STATS), 9, ends(77, 1, 80), 1, 1);
        assert_eq!(rows(&mut module, &fake)[0], ("000077 thread".into(), 121, 7));
    }

    /// Rows are visited in any order.
    #[test]
    fn an_exec_renews_the_name_and_nothing_else_does() {
        let fake = fake();
        let mut module = module(Options::default());
        let named = |row, name: &[u8; 8], execs| {
            put(&fake, (FLOWS, STATS), row, ends(77, row as u16, 80), 1, 0);
            fake.row(FLOWS, row).set_bytes(flow::comm, name);
            fake.set(FLOWS, row, flow::execs, execs);
        };
        named(5, b"sh\0\0\0\0\0\0", 3);
        assert_eq!(rows(&mut module, &fake), [("000077 sh".into(), 1, 0)]);
        named(1, b"renamed\0", 3);
        assert_eq!(rows(&mut module, &fake)[0].0, "000077 sh");
        named(9, b"Web Cont", 4);
        named(3, b"sh\0\0\0\0\0\0", 3);
        assert_eq!(rows(&mut module, &fake), [("000077 Web".into(), 4, 0)]);
        named(2, &[0; 8], 5);
        assert_eq!(rows(&mut module, &fake)[0].0, "000077 (unknown)");
    }

    #[test]
    fn ports_are_asked_for() {
        let fake = fake();
        put(&fake, (FLOWS, STATS), 1, ends(77, 1000, 80), 100, 5);
        put(&fake, (FLOWS, STATS), 2, ends(77, 1000, 81), 20, 1);
        put(&fake, (FLOWS, STATS), 3, ends(77, 1001, 80), 3, 1);
        let mut module = module(Options { lport: Ports(vec![1000]), dport: Ports(vec![80]), ..Options::default() });
        assert_eq!(rows(&mut module, &fake), [("000077 thread".into(), 100, 5)]);
    }

    #[test]
    fn a_process_that_ended_is_shown_for_a_minute() {
        let fake = fake();
        let mut module = module(Options::default());
        put(&fake, (FLOWS, STATS), 1, ends(1001, 1, 80), 100, 5);
        for _ in 0..ProcessCounts::<Process>::GRACE {
            module.tick(&fake);
            assert_eq!(rows(&mut module, &fake), [("001001 thread".into(), 100, 5)]);
        }
        module.tick(&fake);
        assert!(rows(&mut module, &fake).is_empty());
    }

    #[test]
    fn a_process_id_used_again_starts_at_zero() {
        let fake = fake();
        let mut module = module(Options::default());
        put(&fake, (FLOWS, STATS), 1, ends(77, 1, 80), 100, 5);
        rows(&mut module, &fake);
        put(&fake, (FLOWS, STATS), 2, ends(77, 2, 80), 7, 0);
        fake.set(FLOWS, 2, flow::born, 2);
        assert_eq!(rows(&mut module, &fake), [("000077 thread".into(), 7, 0)]);
    }
}
