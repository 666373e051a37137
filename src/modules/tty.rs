//! Bytes that processes read from terminals and write to them, by terminal. Kernel side: bpf/tty.bpf.c.

use super::shared::numbers::user_name;
use super::shared::places::{ByPlace, Names, PlacedHistograms};
use crate::bpf::types::{self, mark, place_owner, set_numbers, tty_counts, tty_stat};
use crate::host::{exists, user_of};
use crate::kit::*;
use crate::{beyond, function_return, maps, metrics};
use nix::sys::stat::minor;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

metrics! {
    READS: u64 = 0 "tty.read.count" COUNTER COUNT "reads from the terminal";
    READ_BYTES: u64 = 1 "tty.read.bytes" COUNTER BYTE "bytes that reads from the terminal returned";
    WRITES: u64 = 2 "tty.write.count" COUNTER COUNT "writes to the terminal";
    WRITE_BYTES: u64 = 3 "tty.write.bytes" COUNTER BYTE "bytes that were written to the terminal";
    NAME: str = 4 "tty.name" DISCRETE NONE "name of the terminal, for the variables of a dashboard";
}

static TABLE: TableSpec = TableSpec {
    summary: "each terminal",
    cluster: 486,
    shape: Shape::Named { max: 1 << 12 },
    metrics: METRICS,
    ..TableSpec::NEW
};

maps! {
    rows OWNERS: place_owner = "tty_owners", taken id;
    rows COUNTS: tty_counts = "tty_counts", taken used, marked in "tty_marks";
    rows MARKS: mark = "tty_marks";
    rows STATS: tty_stat = "tty_stats";
    private CALLS: set_numbers = "tty_calls";
}

static BY_TERMINAL: ByPlace<tty_counts> = ByPlace {
    owners: OWNERS,
    rows: COUNTS,
    marks: MARKS,
    histograms: &[],
    counters: &[
        (READS, tty_counts::calls.nth(0)),
        (READ_BYTES, tty_counts::bytes.nth(0)),
        (WRITES, tty_counts::calls.nth(1)),
        (WRITE_BYTES, tty_counts::bytes.nth(1)),
    ],
    name: NAME,
    beyond: beyond!(
        "table-full: reads and writes of terminals",
        counted,
        [tty_counts::calls.nth(0), tty_counts::calls.nth(1)]
    ),
};

const NEEDS: &str = "fentry or kprobes, on a kernel with BTF";

static READ: Hook = function_return!("tty_read", NEEDS);
static WRITE: Hook = function_return!("tty_write", NEEDS);

/// Number of sessions on terminals with counters of their own; all CPUs share them, since people type slowly.
const PLACES: usize = 1024;

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "tty",
    summary: "reads and writes of terminals: counts and bytes, never contents",
    overhead: Overhead::low("0.4 us per read or write of a terminal"),
    needs: NEEDS,
    needs_to_run: &[Need::Processes],
    tables: &[&TABLE],
    hooks: &[&READ, &WRITE],
    maps: MAPS,
    make: |_| Ok(Box::new(Tty::new(Terminals::new()))),
    ..Spec::NEW
};

/// A terminal and the process that leads the session on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Terminal {
    /// 0 where it is nobody's controlling terminal.
    session: u32,
    device: Device,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Device {
    /// A pseudo-terminal: of an instance of devpts, which each container has, a number.
    Pseudo {
        instance: u64,
        number: u64,
    },
    Other {
        major: u64,
        minor: u64,
    },
}

impl Terminal {
    /// Returns the terminal with a number of the programs (`tty_number`).
    fn of(id: u64) -> Terminal {
        const MINORS: u64 = 0xfffff;
        let (upper, lower) = (id >> 21 & MINORS, id >> 1 & MINORS);
        let device = match id & 1 {
            1 => Device::Pseudo { instance: upper, number: lower },
            _ => Device::Other { major: upper, minor: lower },
        };
        Terminal { session: (id >> 41) as u32, device }
    }
}

/// Names of terminals by their numbers.
struct Terminals {
    /// Number of the instance of devpts that is mounted here.
    devpts: Option<u64>,
}

impl Terminals {
    fn new() -> Terminals {
        Terminals { devpts: fs::metadata("/dev/pts").ok().map(|about| minor(about.dev())) }
    }

    fn is_here(&self, instance: u64) -> bool {
        self.devpts.is_none_or(|devpts| devpts == instance)
    }

    fn text(&self, device: Device) -> String {
        match device {
            Device::Pseudo { instance, number } if self.is_here(instance) => format!("pts/{number}"),
            Device::Pseudo { instance, number } => format!("pts/{number}@{instance}"),
            Device::Other { major, minor } => {
                let link = fs::read_link(format!("/sys/dev/char/{major}:{minor}")).ok();
                let name = link.as_deref().and_then(Path::file_name);
                name.map_or_else(|| format!("{major}:{minor}"), |name| name.to_string_lossy().into_owned())
            }
        }
    }
}

impl Names for Terminals {
    fn name(&self, id: u64) -> Option<Vec<u8>> {
        Some(self.text(Terminal::of(id).device).into_bytes())
    }

    fn is_there(&self, id: u64, _name: &[u8]) -> bool {
        match Terminal::of(id) {
            Terminal { session: 0, device: Device::Pseudo { instance, number } } => {
                self.is_here(instance) && Path::new(&format!("/dev/pts/{number}")).exists()
            }
            Terminal { session: 0, .. } => true,
            Terminal { session, .. } => exists(session),
        }
    }

    fn labels(&self, id: u64, name: &[u8]) -> SeriesLabels {
        let mut labels = vec![("tty", SeriesLabel::Text(String::from_utf8_lossy(name).into_owned()))];
        let session = Terminal::of(id).session;
        if session != 0 {
            labels.push(("session", SeriesLabel::Number(session.into())));
        }
        if let Some(user) = user_of(session) {
            labels.push(("user", SeriesLabel::Text(user_name(user))));
        }
        labels
    }
}

struct Tty {
    terminals: PlacedHistograms<tty_counts>,
}

impl Tty {
    fn new(terminals: Terminals) -> Tty {
        let window = Seconds(60).window();
        Tty { terminals: PlacedHistograms::new(&BY_TERMINAL, Ok(terminals), window, Buckets::default()) }
    }

    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        let unreturned = kernel.rows(STATS).sum(tty_stat::unreturned);
        each("return-unseen: reads and writes whose return was not seen", unreturned);
    }
}

impl Module for Tty {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        constants.tty_mask = BY_TERMINAL.plan(PLACES, &Host { cpus: 1, ..*host }, plan).mask;
        constants.tty_calls_mask = plan_set_table(plan, CALLS.name, by_thread(host));
        plan.entries(STATS.def.name, host.cpus);
        plan.attach(&READ);
        plan.attach(&WRITE);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        PlacedHistograms::add_table(Running::of(*self), &TABLE, |module| Some(&mut module.terminals))
            .losses(Self::losses)
            .started()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of a session on a pseudo-terminal.
    fn pseudo(session: u64, instance: u64, number: u64) -> u64 {
        session << 41 | instance << 21 | number << 1 | 1
    }

    #[test]
    fn a_number_says_the_terminal_and_its_session() {
        let terminals = Terminals { devpts: Some(24) };
        let device = Device::Pseudo { instance: 24, number: 3 };
        assert_eq!(Terminal::of(pseudo(4_194_303, 24, 3)), Terminal { session: 4_194_303, device });
        assert_eq!(terminals.text(device), "pts/3");
        assert_eq!(terminals.text(Device::Pseudo { instance: 52, number: 0 }), "pts/0@52");
        let null = Terminal::of(1 << 21 | 3 << 1);
        assert_eq!((null.session, terminals.text(null.device)), (0, "null".into()));
        assert_eq!(terminals.text(Device::Other { major: 4095, minor: 7 }), "4095:7");
        assert!(terminals.is_there(1 << 21 | 3 << 1, b"null"), "a device that is nobody's terminal");
    }

    #[test]
    fn counts_go_on_in_the_next_session_on_a_terminal() {
        let fake = Fake::new().with(OWNERS, 1024).with(COUNTS, 1025).with(MARKS, 1025).with(STATS, 1);
        let running = Box::new(Tty::new(Terminals { devpts: Some(24) })).start(&fake);
        let ours = u64::from(std::process::id());
        for (place, session, calls) in [(5, 1, 2), (9, ours, 3)] {
            fake.set(OWNERS, place, place_owner::id, pseudo(session, 24, 0));
            fake.set(COUNTS, place + 1, tty_counts::calls.nth(0), calls);
            fake.set(COUNTS, place + 1, tty_counts::bytes.nth(0), calls * 10);
            running.tick(&fake);
        }
        let table = fake.filled(&TABLE, &running);
        assert_eq!(table.names(), ["pts/0", "other"]);
        assert_eq!([0, 1, 2].map(|column| table.number(0, column)), [5, 50, 0].map(Some));
        let labels = table.labels(0).unwrap();
        let user = user_name(nix::unistd::getuid().as_raw());
        let expected = [SeriesLabel::Number(ours as i64), SeriesLabel::Text(user)];
        assert_eq!(labels[1..].iter().map(|(_, value)| value.clone()).collect::<Vec<_>>(), expected);
    }
}
