//! TCP and UDP traffic by process. Kernel side: bpf/netproc.bpf.c.

use super::shared::by_process::{ByProcess, EXEC, EXIT};
use super::shared::tcp::{SOCKETS, TRAFFIC};
use crate::bpf::types::{self, net_row, sock_read};
use crate::host::with_sockets;
use crate::kit::*;
use crate::{by_process, metrics, module_log, options};

// In the order of the cells of `struct net_row`.
metrics! {
    _: u64 = 0 "proc.net.tcp.send.calls"
        | "bpf.proc.net.tcp.send.packets" COUNTER COUNT "TCP send calls";
    _: u64 = 1 "proc.net.tcp.send.bytes"
        | "bpf.proc.net.tcp.send.bytes" COUNTER BYTE "bytes sent over TCP";
    _: u64 = 2 "proc.net.tcp.recv.calls"
        | "bpf.proc.net.tcp.recv.packets" COUNTER COUNT "TCP receive calls that returned data";
    _: u64 = 3 "proc.net.tcp.recv.bytes"
        | "bpf.proc.net.tcp.recv.bytes" COUNTER BYTE "bytes received over TCP";
    _: u64 = 4 "proc.net.udp.send.calls"
        | "bpf.proc.net.udp.send.packets" COUNTER COUNT "UDP send calls";
    _: u64 = 5 "proc.net.udp.send.bytes"
        | "bpf.proc.net.udp.send.bytes" COUNTER BYTE "bytes sent over UDP";
    _: u64 = 6 "proc.net.udp.recv.calls"
        | "bpf.proc.net.udp.recv.packets" COUNTER COUNT "UDP datagrams received";
    _: u64 = 7 "proc.net.udp.recv.bytes"
        | "bpf.proc.net.udp.recv.bytes" COUNTER BYTE "bytes received over UDP";
}

by_process! {
    "netproc", net_row;
    private READS: sock_read = "netproc_sock";
}

options! {
    /// Drop instances of ended processes, a minute after their last traffic.
    remove_stopped_processes: bool = true;
    bpf_names;
}

static TABLE: TableSpec = TableSpec { cluster: 40, shape: Shape::Pids, metrics: METRICS, ..TableSpec::NEW };

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "netproc",
    summary: "TCP and UDP traffic by process",
    overhead: Overhead::medium("50 ns per send or receive, 260 ns per exec, 150 ns per exit"),
    needs: "CONFIG_INET, and Linux 6.3, fexit or kprobes",
    tables: &[&TABLE],
    options: OPTIONS,
    hooks: &[&TRAFFIC, &EXIT, &EXEC],
    maps: MAPS,
    needs_to_load: &[Need::FilesOfProcesses],
    needs_to_run: &[Need::Processes],
    make: |setup| Ok(Box::new(Netproc::new(Options::read(setup.section)?, with_sockets))),
    ..Spec::NEW
};

struct Netproc {
    options: Options,
    with_sockets: fn() -> Vec<u32>,
    processes: ByProcess<net_row, 8>,
}

impl Netproc {
    fn new(options: Options, with_sockets: fn() -> Vec<u32>) -> Netproc {
        let processes = ByProcess::new(&PROCESSES, !options.remove_stopped_processes);
        Netproc { options, with_sockets, processes }
    }
}

impl Module for Netproc {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        if self.options.bpf_names {
            module_log!(info, "Also exporting pmdabpf's names, bpf.proc.net.");
        }
        // Before the modules are loaded: the list takes privileges that are dropped afterwards.
        self.processes.begin_with((self.with_sockets)());
        self.processes.plan(&SPEC, host, plan, constants);
        constants.sock_read_mask = SOCKETS as u32 - 1;
        plan.entries(READS.name, SOCKETS);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        ByProcess::add_table(Running::of(*self), &TABLE, |module| &mut module.processes).started()
    }
}
