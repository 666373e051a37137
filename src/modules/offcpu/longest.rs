//! The longest wait for each reason in the window: bcc.sched.offcpu.slowest, with the option `exemplars`.

use super::{LONGEST, REASONS, STATS};
use crate::bpf::types::{ofc_longest, ofc_stat};
use crate::host::{since_1970, until_nul};
use crate::kit::*;
use crate::metrics;
use crate::modules::shared::stacks::kernel_frames;
use crate::modules::system_calls;

metrics! {
    TIME: u64 = 0 "sched.offcpu.slowest.time" INSTANT NSEC "longest recent wait for the reason";
    ENDED: u64 = 1 "sched.offcpu.slowest.ended" INSTANT MSEC "when that wait ended, since 1970";
    PID: u32 = 2 "sched.offcpu.slowest.pid" INSTANT NONE "process that waited";
    COMMAND: str = 3 "sched.offcpu.slowest.comm" INSTANT NONE "command name of the thread that waited";
    CALL: str = 4 "sched.offcpu.slowest.call" INSTANT NONE "system call in which it waited";
    STACK: str = 5 "sched.offcpu.slowest.stack" INSTANT NONE "functions of the kernel in which it waited, outermost first";
}

/// Names of the reasons (`enum ofc_reason`).
const NAMES: [&str; REASONS] = [
    "runq", "disk", "fault", "file", "net", "pipe", "tty", "stop", "lock", "cond", "poll", "timer", "child", "kernel",
    "other",
];

/// Rows of a CPU: of each reason, also of the one that there is not, the even epochs and the odd ones.
pub const ROWS_OF_CPU: usize = 2 * 16;

/// The table of reasons.
pub static TABLE: TableSpec = TableSpec {
    options: &["exemplars"],
    ..TableSpec::named("the longest recent wait for each reason", 445, METRICS, NAMES.len())
};

/// A long wait.
struct Wait {
    ns: u64,
    /// Time of its end by the monotonic clock, in nanoseconds.
    ended: u64,
    pid: u32,
    comm: Vec<u8>,
    call: Option<&'static str>,
    stack: String,
}

/// The longest waits.
pub struct Longest {
    window: Window,
    epoch: u64,
    /// The longest waits by reason.
    reasons: [Highest<Wait>; REASONS],
}

impl Longest {
    /// Makes an empty list.
    pub fn new(window: Window) -> Longest {
        Longest { window, epoch: 0, reasons: Default::default() }
    }

    /// Takes the waits of the epoch that ended a second ago into this part of the window, and begins another epoch. Each CPU writes to
    /// rows of its own, and to none of an epoch that has ended.
    pub fn tick(&mut self, kernel: &dyn Kernel, part: u64) {
        for (place, row) in kernel.rows(LONGEST).iter().enumerate() {
            let Some(longest) = self.reasons.get_mut(place % ROWS_OF_CPU / 2) else { continue };
            if row.get(ofc_longest::epoch) != self.epoch || self.epoch == 0 {
                continue;
            }
            longest.add(part, wait(row), |wait| wait.ns);
        }
        self.epoch += 1;
        if let Some(stat) = kernel.rows(STATS).get(0) {
            stat.set(ofc_stat::epoch, self.epoch);
        }
        self.reasons.iter_mut().for_each(|longest| longest.expire(self.window, part));
    }

    /// Fills the table.
    pub fn fill(&self, table: &mut Table) {
        for (name, longest) in NAMES.iter().zip(&self.reasons) {
            let Some(wait) = longest.iter().max_by_key(|wait| wait.ns) else { continue };
            let row = table.named(name.as_bytes()).set(TIME, wait.ns).set(ENDED, since_1970(wait.ended));
            let mut row = row.set(PID, wait.pid).text(COMMAND, &wait.comm);
            if let Some(call) = wait.call {
                row = row.text(CALL, call.as_bytes());
            }
            if !wait.stack.is_empty() {
                row.text(STACK, wait.stack.as_bytes());
            }
        }
    }
}

fn wait(row: Row<'_, ofc_longest>) -> Wait {
    use ofc_longest as of;
    let stack: Vec<u64> = row.words(of::stack).collect();
    let frames = usize::try_from(row.get(of::bytes) as i64).unwrap_or(0) / 8;
    let call = usize::try_from(row.get(of::call)).ok().and_then(|call| system_calls().get(call).copied().flatten());
    Wait {
        ns: row.get(of::ns),
        ended: row.get(of::ended),
        pid: row.get(of::pid) as u32,
        comm: until_nul(&row.bytes::<_, _, 16>(of::comm)).to_vec(),
        call,
        stack: kernel_frames(&stack[..frames.min(stack.len())]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcp::Atom;
    use std::time::Duration;

    const TIMER: usize = 11;

    fn longest(fake: &Fake, cpu: usize, epoch: u64, ns: u64) {
        let row = fake.row(LONGEST, cpu * ROWS_OF_CPU + 2 * TIMER + epoch as usize % 2);
        let values = [(ofc_longest::epoch, epoch + 1), (ofc_longest::ns, ns), (ofc_longest::pid, 77)];
        values.into_iter().for_each(|(field, value)| row.set(field, value));
        row.set(
            ofc_longest::call,
            system_calls().iter().position(|call| *call == Some("clock_nanosleep")).unwrap() as u64,
        );
        row.set(ofc_longest::bytes, -14i64 as u64);
        row.set_bytes(ofc_longest::comm, b"sleep");
    }

    fn filled(longest: &Longest) -> Table {
        let mut table = Table::of(&TABLE);
        longest.fill(&mut table);
        table
    }

    #[test]
    fn the_longest_wait_of_all_cpus_is_shown_for_a_window() {
        let fake = Fake::new().with(LONGEST, 2 * ROWS_OF_CPU).with(STATS, 1);
        let mut waits = Longest::new(Window(Duration::from_secs(12)));
        longest(&fake, 0, 0, 500);
        longest(&fake, 1, 0, 700);
        waits.tick(&fake, 0);
        assert_eq!(fake.row(STATS, 0).get(ofc_stat::epoch), 1);
        assert!(filled(&waits).is_empty(), "its epoch may still be written to");
        waits.tick(&fake, 1);
        let table = filled(&waits);
        assert_eq!((table.names(), table.number(0, TIME.column)), (vec!["timer".to_string()], Some(700)));
        assert_eq!(table.number(0, PID.column), Some(77));
        let text = [COMMAND.column, CALL.column, STACK.column].map(|column| table.value(0, column));
        assert_eq!(text, [Some(Atom::Str(b"sleep")), Some(Atom::Str(b"clock_nanosleep")), None]);
        longest(&fake, 0, 2, 300);
        waits.tick(&fake, 2);
        waits.tick(&fake, 3);
        assert_eq!(filled(&waits).number(0, TIME.column), Some(700));
        waits.tick(&fake, 13);
        assert_eq!(filled(&waits).number(0, TIME.column), Some(300));
        waits.tick(&fake, 16);
        assert!(filled(&waits).is_empty());
    }
}
