//! Finished TCP sessions, the latest first. Kernel side: bpf/tcplife.bpf.c, one ring record per session.

use super::shared::tcp::{address, note_ports, ACCEPT, STATE};
use crate::bpf::{record, types, types::tcp_births, types::tcp_session, types::tcp_stat};
use crate::host::until_nul;
use crate::kit::*;
use crate::{maps, metrics, options};
use std::collections::VecDeque;

metrics! {
    PID: u32 = 0 "proc.io.net.tcp.pid" INSTANT NONE "process that opened, accepted or closed the session";
    COMM: str = 1 "proc.io.net.tcp.comm" INSTANT NONE "command name of the process";
    LADDR: str = 2 "proc.io.net.tcp.laddr" INSTANT NONE "local address";
    LPORT: u32 = 3 "proc.io.net.tcp.lport" INSTANT NONE "local port";
    DADDR: str = 4 "proc.io.net.tcp.daddr" INSTANT NONE "remote address";
    DPORT: u32 = 5 "proc.io.net.tcp.dport" INSTANT NONE "remote port";
    TX: u64 = 6 "proc.io.net.tcp.tx" INSTANT BYTE "bytes sent and acknowledged";
    RX: u64 = 7 "proc.io.net.tcp.rx" INSTANT BYTE "bytes received";
    DURATION: u32 = 8 "proc.io.net.tcp.duration" INSTANT USEC "time from establishment to close";
}

maps! {
    ring SESSIONS: tcp_session = "tcp_sessions";
    private BIRTHS: tcp_births = "tcp_births";
    rows STATS: tcp_stat = "tcp_stats";
}

options! {
    process;
    /// Only connections with these remote or local ports.
    dport: Ports = Ports::default();
    /// Only connections with these remote or local ports.
    lport: Ports = Ports::default();
    /// Sessions to show, the latest.
    session_count: RowCount = RowCount(20);
    /// Size of the ring buffer in pages.
    buffer_page_count: Pages = Pages(64);
}

static TABLE: TableSpec = TableSpec {
    cluster: 3,
    shape: Shape::Rows { count: "session_count", order: RowOrder::Latest },
    metrics: METRICS,
    ..TableSpec::NEW
};

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "tcplife",
    summary: "finished TCP sessions",
    overhead: Overhead::low("133 ns per change of the state of a connection"),
    needs: "CONFIG_INET",
    tables: &[&TABLE],
    options: OPTIONS,
    hooks: &[&STATE, &ACCEPT],
    maps: MAPS,
    make: |setup| {
        let options = Options::read(setup.section)?;
        note_ports(setup, &options.dport, &options.lport);
        Ok(Box::new(Tcplife { options, sessions: VecDeque::new(), events: 0 }))
    },
    ..Spec::NEW
};

struct Tcplife {
    options: Options,
    /// The latest sessions, the latest first.
    sessions: VecDeque<tcp_session>,
    /// Number of sessions that were added to them so far.
    events: u64,
}

impl Tcplife {
    fn drain(&mut self, kernel: &dyn Kernel) {
        let most = self.options.session_count.0 as usize;
        kernel.drain(&SESSIONS, &mut |bytes| {
            let Some(session) = record::<tcp_session>(bytes) else { return };
            if !self.options.lport.wants(session.lport) || !self.options.dport.wants(session.rport) {
                return;
            }
            self.events += 1;
            self.sessions.push_front(session);
            self.sessions.truncate(most);
        });
    }
}

impl Module for Tcplife {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        let ring = self.options.buffer_page_count.bytes();
        constants.tcp_birth_mask = plan_set_table(plan, BIRTHS.name, by_socket(host));
        constants.tcp_filter = plan.only(&self.options.process);
        constants.tcp_wake_at = ring as u64 / 2;
        plan.attach(&STATE);
        plan.attach_optional(&ACCEPT);
        plan.entries(SESSIONS.name, ring);
        plan.entries(STATS.def.name, host.cpus);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        Running::of(*self)
            .table(&TABLE, Self::refresh)
            .woken(Self::drain)
            .events(|module| module.events)
            .losses(Self::losses)
            .started()
    }
}

impl Tcplife {
    fn refresh(&mut self, kernel: &dyn Kernel, table: &mut Table) {
        self.drain(kernel);
        for (row, session) in self.sessions.iter().enumerate() {
            let micros = u32::try_from(session.duration_ns / 1000).unwrap_or(u32::MAX);
            table
                .indexed(row as u32)
                .set(PID, session.pid)
                .text(COMM, until_nul(&session.comm))
                .text(LADDR, address(session.family, session.laddr).as_bytes())
                .set(LPORT, u32::from(session.lport))
                .text(DADDR, address(session.family, session.raddr).as_bytes())
                .set(DPORT, u32::from(session.rport))
                .set(TX, session.tx)
                .set(RX, session.rx)
                .set(DURATION, micros);
        }
    }

    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        let stats = kernel.rows(STATS);
        each(
            "ring-full: sessions dropped because the ring buffer was full; buffer_page_count should be increased",
            stats.sum(tcp_stat::dropped),
        );
        let (unborn, displaced) = (stats.sum(tcp_stat::unborn), stats.sum(tcp_stat::displaced));
        each("start-unseen: sessions whose beginning was not seen", unborn.saturating_sub(displaced));
        each("too-many-open: sessions whose beginning was forgotten because too many were open", displaced);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::record_bytes;
    use crate::pcp::Atom;

    fn session(lport: u16, seconds: u64) -> tcp_session {
        let mut comm = [0; 16];
        comm[..4].copy_from_slice(b"curl");
        let mut laddr = [0; 16];
        laddr[..4].copy_from_slice(&[127, 0, 0, 1]);
        tcp_session {
            tx: 100,
            rx: 2000,
            duration_ns: seconds * 1_000_000_000,
            laddr,
            raddr: laddr,
            comm,
            pid: 77,
            family: 2,
            lport,
            rport: 80,
            ..tcp_session::default()
        }
    }

    fn module(options: Options) -> Running {
        Box::new(Tcplife { options, sessions: VecDeque::new(), events: 0 }).start(&Fake::new())
    }

    #[test]
    fn the_latest_session_is_row_0_and_the_rows_are_bounded() {
        let fake = Fake::new();
        for lport in 1..=5 {
            fake.record(&record_bytes(&session(lport, 1)));
        }
        let tcplife = module(Options { session_count: RowCount(3), ..Options::default() });
        let table = fake.filled(&TABLE, &tcplife);
        assert_eq!((table.len(), tcplife.events()), (3, Some(5)));
        assert_eq!(table.value(0, LPORT.column), Some(Atom::U32(5)));
        assert_eq!(table.value(2, LPORT.column), Some(Atom::U32(3)));
        assert_eq!(table.value(0, COMM.column), Some(Atom::Str(b"curl")));
        assert_eq!(table.value(0, DADDR.column), Some(Atom::Str(b"127.0.0.1")));
        assert_eq!(table.value(0, RX.column), Some(Atom::U64(2000)));
    }

    #[test]
    fn a_duration_beyond_71_minutes_saturates() {
        let fake = Fake::new();
        fake.record(&record_bytes(&session(1, 5000)));
        let table = fake.filled(&TABLE, &module(Options::default()));
        assert_eq!(table.value(0, DURATION.column), Some(Atom::U32(u32::MAX)));
    }

    #[test]
    fn a_command_name_need_not_be_text() {
        let fake = Fake::new();
        let mut named = session(1, 1);
        named.comm[..4].copy_from_slice(b"caf\xc3");
        fake.record(&record_bytes(&named));
        let table = fake.filled(&TABLE, &module(Options::default()));
        assert_eq!(table.value(0, COMM.column), Some(Atom::Str(b"caf\xc3")));
    }

    #[test]
    fn ports_filter_when_the_session_ends() {
        let fake = Fake::new();
        fake.record(&record_bytes(&session(1, 1)));
        fake.record(&record_bytes(&session(2, 1)));
        let tcplife = module(Options { lport: Ports(vec![2]), ..Options::default() });
        let table = fake.filled(&TABLE, &tcplife);
        assert_eq!(table.len(), 1);
        assert_eq!(table.value(0, LPORT.column), Some(Atom::U32(2)));
    }

    #[test]
    fn a_displaced_session_is_one_loss_and_not_an_early_one() {
        let fake = Fake::new().with(STATS, 2);
        for (at, count) in [(tcp_stat::unborn, 5), (tcp_stat::displaced, 3)] {
            fake.set(STATS, 1, at, count);
        }
        let mut lost = Vec::new();
        module(Options::default()).losses(&fake, &mut |_, count| lost.push(count));
        assert_eq!(lost, [0, 2, 3]);
    }

    #[test]
    fn half_a_record_is_passed_over() {
        let fake = Fake::new();
        fake.record(&[1, 2, 3]);
        let table = fake.filled(&TABLE, &module(Options::default()));
        assert!(table.is_empty());
    }
}
