//! Time of tasks off a CPU, by reason. Kernel side: bpf/offcpu.bpf.c, with the times of bpf/runqlat.bpf.c.

use super::runqlat::{kernel_keeps_times, plan_times, RUNQ_MAPS, SWITCH, WAKEUP, WAKEUP_NEW};
use super::shared::by_process::{ByProcess, EXEC, EXIT};
use super::shared::cgroups::{counters_by_cgroup, BY_PATH};
use super::shared::groups::tell;
use super::shared::places::{ByPlace, PlacedHistograms};
use super::system_calls;
use crate::bpf::types::{
    self, mark, ofc_chain, ofc_counts, ofc_group, ofc_longest, ofc_pair, ofc_row, ofc_stat, place_owner, set_numbers,
    stack_row,
};
use crate::bpf::Field;
use crate::kit::*;
use crate::pcp::PmErr;
use crate::{beyond, by_process, metrics, options, tracepoint};
use longest::Longest;
use pairs::{locks, wakers, Pairs};
use stacks::WaitStacks;

mod longest;
mod pairs;
mod stacks;

/// Number of reasons (`enum ofc_reason`).
const REASONS: usize = 15;

mod waits {
    crate::histograms! {
        "sched";
        tables "all tasks", "each bucket", 442 443 449, Shape::Single;
        1 "offcpu.runq" "waits of runnable tasks for a CPU" "from becoming runnable, or from losing the CPU, to running" "";
        2 "offcpu.disk" "waits in system calls for I/O of a disk" "from leaving the CPU to becoming runnable" "In the kernel's I/O wait.";
        3 "offcpu.fault" "waits of page faults for memory or a disk" "from leaving the CPU to becoming runnable" "Outside of system calls, uninterruptible or in the kernel's I/O wait.";
        4 "offcpu.file" "other waits in system calls on files" "from leaving the CPU to becoming runnable" "For the journal, the lock of a directory, a file system in user space, but not for the kernel's I/O wait.";
        5 "offcpu.net" "waits for sockets" "from leaving the CPU to becoming runnable" "In calls of sockets, and in reads and writes of one.";
        6 "offcpu.pipe" "waits for pipes" "from leaving the CPU to becoming runnable" "In reads and writes.";
        7 "offcpu.tty" "waits for terminals" "from leaving the CPU to becoming runnable" "In reads, writes and ioctl.";
        8 "offcpu.stop" "stops of tasks" "from leaving the CPU to becoming runnable" "By a signal or a debugger.";
        9 "offcpu.lock" "waits for locks" "from leaving the CPU to becoming runnable" "Futex operations WAIT, as for a mutex of the C library, and LOCK_PI; locks of files, and semaphores of System V.";
        10 "offcpu.cond" "waits for conditions" "from leaving the CPU to becoming runnable" "Other futex operations: WAIT_BITSET, as for a condition variable of the C library, WAIT_REQUEUE_PI, and futex_waitv.";
        11 "offcpu.poll" "waits for one of several files" "from leaving the CPU to becoming runnable" "In select, poll, epoll_wait, io_uring_enter and io_getevents.";
        12 "offcpu.timer" "sleeps for a time" "from leaving the CPU to becoming runnable" "In nanosleep and clock_nanosleep.";
        13 "offcpu.child" "waits for other processes" "from leaving the CPU to becoming runnable" "In wait4 and waitid, and in vfork until the child executes a program.";
        14 "offcpu.kernel" "waits of threads of the kernel" "from leaving the CPU to becoming runnable" "Kernel threads, and workers of io_uring.";
        15 "offcpu.other" "other waits" "from leaving the CPU to becoming runnable" "In other system calls, and in those of 32-bit programs.";
    }
    use super::*;

    const ROW: SeriesRows<ofc_row> = SeriesRows::of_one(ROWS);

    pub static SERIES_OF_ONE: SeriesDef = SeriesDef {
        tables: TABLES,
        histograms: &[
            ROW.part(ofc_row::waits.nth(0)),
            ROW.part(ofc_row::waits.nth(1)),
            ROW.part(ofc_row::waits.nth(2)),
            ROW.part(ofc_row::waits.nth(3)),
            ROW.part(ofc_row::waits.nth(4)),
            ROW.part(ofc_row::waits.nth(5)),
            ROW.part(ofc_row::waits.nth(6)),
            ROW.part(ofc_row::waits.nth(7)),
            ROW.part(ofc_row::waits.nth(8)),
            ROW.part(ofc_row::waits.nth(9)),
            ROW.part(ofc_row::waits.nth(10)),
            ROW.part(ofc_row::waits.nth(11)),
            ROW.part(ofc_row::waits.nth(12)),
            ROW.part(ofc_row::waits.nth(13)),
            ROW.part(ofc_row::waits.nth(14)),
        ],
        ..SeriesDef::NEW
    };
}

mod processes {
    use super::*;

    // In the order of `struct ofc_counts`.
    metrics! {
        _: u64 = 0 "proc.offcpu.runq.time" COUNTER NSEC "time that the process waited for a CPU";
        _: u64 = 1 "proc.offcpu.runq.count" COUNTER COUNT "how often the process waited for a CPU";
        _: u64 = 2 "proc.offcpu.disk.time" COUNTER NSEC "time that the process waited in system calls for I/O of a disk";
        _: u64 = 3 "proc.offcpu.disk.count" COUNTER COUNT "how often the process waited in system calls for I/O of a disk";
        _: u64 = 4 "proc.offcpu.fault.time" COUNTER NSEC "time that the process waited in page faults";
        _: u64 = 5 "proc.offcpu.fault.count" COUNTER COUNT "how often the process waited in page faults";
        _: u64 = 6 "proc.offcpu.file.time" COUNTER NSEC "time that the process waited otherwise in system calls on files";
        _: u64 = 7 "proc.offcpu.file.count" COUNTER COUNT "how often the process waited otherwise in system calls on files";
        _: u64 = 8 "proc.offcpu.net.time" COUNTER NSEC "time that the process waited for sockets";
        _: u64 = 9 "proc.offcpu.net.count" COUNTER COUNT "how often the process waited for sockets";
        _: u64 = 10 "proc.offcpu.pipe.time" COUNTER NSEC "time that the process waited for pipes";
        _: u64 = 11 "proc.offcpu.pipe.count" COUNTER COUNT "how often the process waited for pipes";
        _: u64 = 12 "proc.offcpu.tty.time" COUNTER NSEC "time that the process waited for terminals";
        _: u64 = 13 "proc.offcpu.tty.count" COUNTER COUNT "how often the process waited for terminals";
        _: u64 = 14 "proc.offcpu.stop.time" COUNTER NSEC "time that the process waited stopped";
        _: u64 = 15 "proc.offcpu.stop.count" COUNTER COUNT "how often the process waited stopped";
        _: u64 = 16 "proc.offcpu.lock.time" COUNTER NSEC "time that the process waited for locks";
        _: u64 = 17 "proc.offcpu.lock.count" COUNTER COUNT "how often the process waited for locks";
        _: u64 = 18 "proc.offcpu.cond.time" COUNTER NSEC "time that the process waited for conditions";
        _: u64 = 19 "proc.offcpu.cond.count" COUNTER COUNT "how often the process waited for conditions";
        _: u64 = 20 "proc.offcpu.poll.time" COUNTER NSEC "time that the process waited for one of several files";
        _: u64 = 21 "proc.offcpu.poll.count" COUNTER COUNT "how often the process waited for one of several files";
        _: u64 = 22 "proc.offcpu.timer.time" COUNTER NSEC "time that the process waited for a time to pass";
        _: u64 = 23 "proc.offcpu.timer.count" COUNTER COUNT "how often the process waited for a time to pass";
        _: u64 = 24 "proc.offcpu.child.time" COUNTER NSEC "time that the process waited for other processes";
        _: u64 = 25 "proc.offcpu.child.count" COUNTER COUNT "how often the process waited for other processes";
        _: u64 = 26 "proc.offcpu.kernel.time" COUNTER NSEC "time that the process waited in threads of the kernel";
        _: u64 = 27 "proc.offcpu.kernel.count" COUNTER COUNT "how often the process waited in threads of the kernel";
        _: u64 = 28 "proc.offcpu.other.time" COUNTER NSEC "time that the process waited otherwise";
        _: u64 = 29 "proc.offcpu.other.count" COUNTER COUNT "how often the process waited otherwise";
    }

    pub static TABLE: TableSpec = TableSpec::by_process("each process", 441, METRICS);
}

mod cgroups {
    use super::*;

    // In the order of `struct ofc_group`.
    metrics! {
        _: u64 = 0 "cgroup.offcpu.runq.time" COUNTER NSEC "time that tasks of the cgroup waited for a CPU";
        _: u64 = 1 "cgroup.offcpu.runq.count" COUNTER COUNT "how often tasks of the cgroup waited for a CPU";
        _: u64 = 2 "cgroup.offcpu.disk.time" COUNTER NSEC "time that tasks of the cgroup waited in system calls for I/O of a disk";
        _: u64 = 3 "cgroup.offcpu.disk.count" COUNTER COUNT "how often tasks of the cgroup waited in system calls for I/O of a disk";
        _: u64 = 4 "cgroup.offcpu.fault.time" COUNTER NSEC "time that tasks of the cgroup waited in page faults";
        _: u64 = 5 "cgroup.offcpu.fault.count" COUNTER COUNT "how often tasks of the cgroup waited in page faults";
        _: u64 = 6 "cgroup.offcpu.file.time" COUNTER NSEC "time that tasks of the cgroup waited otherwise in system calls on files";
        _: u64 = 7 "cgroup.offcpu.file.count" COUNTER COUNT "how often tasks of the cgroup waited otherwise in system calls on files";
        _: u64 = 8 "cgroup.offcpu.net.time" COUNTER NSEC "time that tasks of the cgroup waited for sockets";
        _: u64 = 9 "cgroup.offcpu.net.count" COUNTER COUNT "how often tasks of the cgroup waited for sockets";
        _: u64 = 10 "cgroup.offcpu.pipe.time" COUNTER NSEC "time that tasks of the cgroup waited for pipes";
        _: u64 = 11 "cgroup.offcpu.pipe.count" COUNTER COUNT "how often tasks of the cgroup waited for pipes";
        _: u64 = 12 "cgroup.offcpu.tty.time" COUNTER NSEC "time that tasks of the cgroup waited for terminals";
        _: u64 = 13 "cgroup.offcpu.tty.count" COUNTER COUNT "how often tasks of the cgroup waited for terminals";
        _: u64 = 14 "cgroup.offcpu.stop.time" COUNTER NSEC "time that tasks of the cgroup waited stopped";
        _: u64 = 15 "cgroup.offcpu.stop.count" COUNTER COUNT "how often tasks of the cgroup waited stopped";
        _: u64 = 16 "cgroup.offcpu.lock.time" COUNTER NSEC "time that tasks of the cgroup waited for locks";
        _: u64 = 17 "cgroup.offcpu.lock.count" COUNTER COUNT "how often tasks of the cgroup waited for locks";
        _: u64 = 18 "cgroup.offcpu.cond.time" COUNTER NSEC "time that tasks of the cgroup waited for conditions";
        _: u64 = 19 "cgroup.offcpu.cond.count" COUNTER COUNT "how often tasks of the cgroup waited for conditions";
        _: u64 = 20 "cgroup.offcpu.poll.time" COUNTER NSEC "time that tasks of the cgroup waited for one of several files";
        _: u64 = 21 "cgroup.offcpu.poll.count" COUNTER COUNT "how often tasks of the cgroup waited for one of several files";
        _: u64 = 22 "cgroup.offcpu.timer.time" COUNTER NSEC "time that tasks of the cgroup waited for a time to pass";
        _: u64 = 23 "cgroup.offcpu.timer.count" COUNTER COUNT "how often tasks of the cgroup waited for a time to pass";
        _: u64 = 24 "cgroup.offcpu.child.time" COUNTER NSEC "time that tasks of the cgroup waited for other processes";
        _: u64 = 25 "cgroup.offcpu.child.count" COUNTER COUNT "how often tasks of the cgroup waited for other processes";
        _: u64 = 26 "cgroup.offcpu.kernel.time" COUNTER NSEC "time that tasks of the cgroup waited in threads of the kernel";
        _: u64 = 27 "cgroup.offcpu.kernel.count" COUNTER COUNT "how often tasks of the cgroup waited in threads of the kernel";
        _: u64 = 28 "cgroup.offcpu.other.time" COUNTER NSEC "time that tasks of the cgroup waited otherwise";
        _: u64 = 29 "cgroup.offcpu.other.count" COUNTER COUNT "how often tasks of the cgroup waited otherwise";
        NAME: str = 30 "cgroup.offcpu.name" DISCRETE NONE "path of the cgroup, for the variables of a dashboard";
    }

    const COUNTERS: [(Metric<u64>, Field<ofc_group, u64>); 2 * REASONS] = {
        let mut all = [(Metric::new(0), ofc_group::cells.nth(0)); 2 * REASONS];
        let mut cell = 1;
        while cell < 2 * REASONS {
            all[cell] = (Metric::new(cell), ofc_group::cells.nth(cell));
            cell += 1;
        }
        all
    };

    pub static BY_CGROUP: ByPlace<ofc_group> = ByPlace {
        owners: OWNERS,
        rows: GROUPS,
        marks: GROUP_MARKS,
        histograms: &[],
        counters: &COUNTERS,
        name: NAME,
        beyond: beyond!("table-full: arrivals of cgroups", counted, [ofc_group::cells.nth(1)]),
    };

    pub static TABLE: TableSpec = TableSpec {
        summary: "each cgroup",
        cluster: 444,
        shape: BY_PATH,
        metrics: METRICS,
        options: &["by_cgroup"],
        ..TableSpec::NEW
    };
}

by_process! {
    "offcpu", ofc_counts;
    rows ROWS: ofc_row = "ofc_rows";
    rows OWNERS: place_owner = "ofc_owners", taken id;
    rows GROUPS: ofc_group = "ofc_groups", taken used, marked in "ofc_marks";
    rows GROUP_MARKS: mark = "ofc_marks";
    rows STATS: ofc_stat = "ofc_stats";
    rows LONGEST: ofc_longest = "ofc_longest";
    rows STACKS: stack_row = "ofc_stacks", taken claims, lost ofc_stat.stackless in "ofc_stats";
    rows WAKERS: ofc_pair = "ofc_wakers", taken claims, lost ofc_stat.wakerless in "ofc_stats";
    rows LOCKS: ofc_pair = "ofc_locks", taken claims, lost ofc_stat.lockless in "ofc_stats";
    private WAKINGS: set_numbers = "ofc_wakings";
    private FUTEXES: set_numbers = "ofc_futexes";
    private SCRATCH: stack_row = "ofc_scratch";
    private PLACES: set_numbers = "ofc_places";
    rows CHAINS: ofc_chain = "ofc_chains", taken claims, lost ofc_stat.stackless in "ofc_stats";
    private WAKE_PLACES: set_numbers = "ofc_wake_places";
    private DEPARTURES: set_numbers = "ofc_departures";
}

options! {
    process;
    /// Count by cgroup of v2, too.
    by_cgroup: bool = false;
    /// Cgroups with counters of their own; the number is rounded up to a power of two. Other cgroups are the series `other`.
    max_cgroups: CgroupCount = CgroupCount(1024);
    /// Fill bcc.sched.offcpu.slowest, too: the longest wait for each reason in the window. 20 ns more per context switch.
    exemplars: bool = false;
    /// Fill bcc.sched.waits, too: waits by the process that ended them. A wake-up costs 100 ns more.
    wakers: bool = false;
    /// Fill bcc.proc.locks, too: waits for locks that are futexes.
    locks: bool = false;
    /// Fill bcc.proc.waits.stacks, too, while bcc.proc.waits.profile is started; meanwhile a wait costs 2 us more.
    stacks: bool = false;
    /// Append to each of these stacks that of the thread which ended the wait, the innermost frame first. A wake-up costs 2 us more, too.
    waker_stacks: bool = false;
    /// Different stacks to keep, 2 KB each, rounded up to a power of two.
    stack_storage_size: Count = Count(4096);
    histograms;
}

/// Reasons by system call, in the order of `enum ofc_reason`; calls that are in none are `other`.
const CALLS: [(u8, &str); 9] = [
    (3, FILES),
    (4, SOCKETS),
    (8, "flock fcntl semop semtimedop"),
    (9, "futex_waitv futex_wait futex_requeue"),
    (10, "select pselect6 poll ppoll epoll_wait epoll_wait_old epoll_pwait epoll_pwait2 io_uring_enter io_getevents io_pgetevents"),
    (11, "nanosleep clock_nanosleep"),
    (12, "wait4 waitid vfork clone clone3"),
    (16, "read write readv writev preadv2 pwritev2 ioctl sendfile splice tee vmsplice"),
    (17, "futex"),
];
const FILES: &str = "open openat openat2 creat close close_range stat fstat lstat newfstatat statx access faccessat faccessat2 \
    rename renameat renameat2 mkdir mkdirat rmdir unlink unlinkat link linkat symlink symlinkat readlink readlinkat mknod mknodat \
    chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes utimensat futimesat \
    fsync fdatasync sync syncfs sync_file_range msync truncate ftruncate fallocate copy_file_range readahead fadvise64 \
    getdents getdents64 getcwd chdir fchdir chroot statfs fstatfs lseek pread pwrite preadv pwritev \
    setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr \
    execve execveat mount umount2 pivot_root quotactl swapon swapoff io_submit uselib";
const SOCKETS: &str = "accept accept4 connect recvfrom recvmsg recvmmsg sendto sendmsg sendmmsg shutdown bind listen \
    getsockopt setsockopt getsockname getpeername socket socketpair";
const OTHER: u8 = 14;

static WAKING: Hook = tracepoint!("sched_waking");

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "offcpu",
    summary: "time of tasks off a CPU by reason: disk, lock, socket, timer, run queue and others",
    overhead: Overhead::medium("150 ns per context switch"),
    tables: &[
        &waits::TABLE,
        &waits::BY_BUCKET,
        &processes::TABLE,
        &cgroups::TABLE,
        &waits::IN_SECONDS,
        &longest::TABLE,
        &locks::TABLE,
        &wakers::TABLE,
        stacks::STATUS,
        &stacks::TABLE,
    ],
    options: OPTIONS,
    hooks: &[&SWITCH, &WAKEUP, &WAKEUP_NEW, &WAKING, &EXIT, &EXEC],
    maps: &joined::<{ MAPS.len() + RUNQ_MAPS.len() }>(&[MAPS, RUNQ_MAPS]),
    needs_to_run: &[Need::Processes, Need::KernelSymbols, Need::FilesOfProcesses],
    make: |setup| {
        let options = Options::read(setup.section)?;
        if options.waker_stacks && !options.stacks {
            setup.section.info("waker_stacks has no effect without stacks.");
        }
        Ok(Box::new(Offcpu::new(options, setup.section.name())))
    },
    ..Spec::NEW
};

struct Offcpu {
    options: Options,
    waits: NamedHistograms,
    processes: ByProcess<ofc_counts, { 2 * REASONS }>,
    cgroups: Option<PlacedHistograms<ofc_group>>,
    longest: Option<Longest>,
    wakers: Option<Pairs>,
    locks: Option<Pairs>,
    stacks: Option<WaitStacks>,
}

impl Offcpu {
    fn new(options: Options, section: &str) -> Offcpu {
        let waits = NamedHistograms::of_one(&waits::SERIES_OF_ONE, options.window.window(), options.buckets);
        let processes = ByProcess::new(&PROCESSES, false);
        let cgroups = options.by_cgroup.then(|| counters_by_cgroup(&cgroups::BY_CGROUP));
        let stacks = options.stacks.then(|| WaitStacks::new(section, options.waker_stacks));
        let (wakers, locks) = (options.wakers.then(Pairs::of_wakers), options.locks.then(Pairs::of_locks));
        let longest = options.exemplars.then(|| Longest::new(options.window.window()));
        Offcpu { options, waits, processes, cgroups, longest, wakers, locks, stacks }
    }
}

impl Module for Offcpu {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        if let Some(cgroups) = &self.cgroups {
            let Some(size) = cgroups.plan(self.options.max_cgroups.places(), host, plan) else { return };
            constants.ofc_by_cgroup = true;
            constants.ofc_mask = size.mask;
            constants.ofc_cpu_shift = size.shift;
            constants.ofc_shared = size.shift > 0;
            tell(size.shift, "a cgroup", "20 ns more per context switch");
        }
        constants.ofc_departure_mask = plan_set_table(plan, DEPARTURES.name, by_thread(host));
        let sets = constants.ofc_departure_mask as usize + 1;
        plan.entries(STATS.def.name, 1);
        if self.longest.is_some() {
            constants.ofc_exemplars = true;
            plan.entries(LONGEST.def.name, host.cpus * longest::ROWS_OF_CPU);
        }
        for pairs in self.wakers.iter().chain(&self.locks) {
            pairs.plan(sets, host, plan, constants);
        }
        if self.wakers.is_some() || self.stacks.as_ref().is_some_and(|stacks| stacks.by_waker) {
            Pairs::plan_wake_ups(plan, constants);
        }
        if let Some(stacks) = &self.stacks {
            stacks.plan(self.options.stack_storage_size.0, sets, host, plan, constants);
        }
        self.processes.plan_maps(host, plan, constants);
        plan.attach(&EXIT);
        plan.attach(&EXEC);
        constants.ofc_filter = plan.only(&self.options.process);
        constants.ofc_calls = reasons_of_calls();
        plan_times(kernel_keeps_times(), host, plan, constants);
        plan.entries(ROWS.def.name, host.cpus);
        plan.leave_to(&["runqlat", "cgroup_runq"]);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        let Options { prometheus, by_cgroup, exemplars, wakers, locks, stacks, .. } = self.options;
        let running = NamedHistograms::add_tables(Running::of(*self), &[&waits::SERIES_OF_ONE], prometheus, |module| {
            Some(&mut module.waits)
        });
        ByProcess::add_table(running, &processes::TABLE, |module| &mut module.processes)
            .when(by_cgroup, |running| {
                PlacedHistograms::add_table(running, &cgroups::TABLE, |module| module.cgroups.as_mut())
            })
            .when(exemplars, |running| {
                running.table(&longest::TABLE, |module, _, table| {
                    module.longest.iter().for_each(|longest| longest.fill(table));
                })
            })
            .when(wakers, |running| running.at_once(&wakers::TABLE, wakers::fill))
            .when(locks, |running| running.at_once(&locks::TABLE, locks::fill))
            .when(stacks, |running| {
                running
                    .table(stacks::STATUS, |module, _, table| {
                        module.stacks.iter_mut().for_each(|stacks| stacks.fill_status(table));
                    })
                    .table(&stacks::TABLE, |module, kernel, table| {
                        module.stacks.iter_mut().for_each(|stacks| stacks.fill(kernel, table));
                    })
                    .store(Self::store)
            })
            .tick(|module, kernel| {
                let part = module.waits.part();
                module.longest.iter_mut().for_each(|longest| longest.tick(kernel, part));
                module.wakers.iter_mut().chain(&mut module.locks).for_each(|pairs| pairs.tick(kernel));
                module.stacks.iter_mut().for_each(|stacks| stacks.tick(kernel));
            })
            .losses(Self::losses)
            .started()
    }
}

impl Offcpu {
    fn store(&mut self, kernel: &dyn Kernel, metric: &MetricDef, value: &[u8]) -> Result<(), PmErr> {
        match &mut self.stacks {
            Some(stacks) if metric.name == stacks::STATUS.metrics[0].name => stacks.store(kernel, value),
            _ => Err(PmErr::PERMISSION),
        }
    }

    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        each(
            "displaced: waits whose time is not known because too many threads slept",
            kernel.rows(ROWS).sum(ofc_row::displaced),
        );
        each(
            "unseen: waits that count for the run queue only, since their beginning was not seen",
            kernel.rows(ROWS).sum(ofc_row::unseen),
        );
        for (loss, count) in [
            (
                "stacks-full: waits that count for no stack, since there were too many different ones; stack_storage_size should be increased",
                ofc_stat::stackless,
            ),
            ("wakers-full: waits that count for no waker, since too many processes woke others", ofc_stat::wakerless),
            ("locks-full: waits that count for no lock, since processes waited for too many", ofc_stat::lockless),
            (
                "threads-full: waits that count for no stack, waker or lock, since too many threads slept",
                ofc_stat::displaced,
            ),
        ] {
            each(loss, kernel.rows(STATS).sum(count));
        }
    }
}

/// Returns the reason for which a thread waits in a system call, by the number of the call.
fn reasons_of_calls() -> [u8; CALLS_IN_ALL] {
    let mut reasons = [OTHER; CALLS_IN_ALL];
    for (reason, name) in reasons.iter_mut().zip(system_calls()) {
        let is_in = |names: &str| name.is_some_and(|name| names.split_whitespace().any(|of| of == name));
        if let Some((of, _)) = CALLS.iter().find(|(_, names)| is_in(names)) {
            *reason = *of;
        }
    }
    reasons
}

/// Number of system calls that the programs know (`OFC_CALLS`).
const CALLS_IN_ALL: usize = 512;

#[cfg(test)]
mod tests {
    use super::super::syscount::of_all_architectures;
    use super::*;
    use crate::bpf::types::fine_hist;
    use std::collections::BTreeSet;

    #[test]
    fn each_reason_has_its_histogram() {
        let fake = Fake::new().with(ROWS, 2).with(LOSSES, 2);
        for cpu in 0..2 {
            for reason in 0..REASONS {
                let times = fake.row(ROWS, cpu).part(ofc_row::waits.nth(reason));
                times.set(fine_hist::buckets.nth(Fine::bucket(3000)), 1 + reason as u64);
            }
        }
        let table = fake.filled(&waits::TABLE, &Box::new(Offcpu::new(Options::default(), "offcpu")).start(&fake));
        let columns = waits::TABLE.metrics.iter().enumerate();
        let counts = columns.filter(|(_, metric)| metric.name.ends_with(".count"));
        let counts: Vec<_> = counts.map(|(column, _)| table.number(0, column).unwrap()).collect();
        assert_eq!(counts, (1..=REASONS as u64).map(|count| 2 * count).collect::<Vec<_>>());
    }

    #[test]
    fn times_and_counts_by_cgroup_are_in_their_columns() {
        let fake = Fake::new().with(ROWS, 1).with(OWNERS, 4).with(GROUPS, 5).with(GROUP_MARKS, 5).with(LOSSES, 1);
        for reason in 0..REASONS {
            fake.set(GROUPS, 0, ofc_group::cells.nth(2 * reason), 100 + reason as u64);
            fake.set(GROUPS, 0, ofc_group::cells.nth(2 * reason + 1), 1 + reason as u64);
        }
        let options = Options { by_cgroup: true, ..Options::default() };
        let table = fake.filled(&cgroups::TABLE, &Box::new(Offcpu::new(options, "offcpu")).start(&fake));
        let value = |name: &str| {
            let column = cgroups::TABLE.column(name);
            table.number(0, column)
        };
        assert_eq!((value("cgroup.offcpu.lock.time"), value("cgroup.offcpu.lock.count")), (Some(108), Some(9)));
        assert_eq!((value("cgroup.offcpu.other.time"), value("cgroup.offcpu.runq.count")), (Some(114), Some(1)));
    }

    #[test]
    fn calls_have_the_reason_for_which_they_wait() {
        let (reasons, names) = (reasons_of_calls(), system_calls());
        let of = |call: &str| reasons[names.iter().position(|name| *name == Some(call)).unwrap()];
        let wanted = [("openat", 3), ("fsync", 3), ("recvfrom", 4), ("clock_nanosleep", 11), ("wait4", 12)];
        for (call, reason) in
            wanted.into_iter().chain([("read", 16), ("futex", 17), ("mmap", OTHER), ("getpid", OTHER)])
        {
            assert_eq!(of(call), reason, "{call}");
        }
    }

    /// A name that no architecture has is a slip of the pen.
    #[test]
    fn calls_are_named_as_the_kernel_names_them() {
        let known: BTreeSet<&str> = of_all_architectures().collect();
        let names = CALLS.iter().flat_map(|(_, names)| names.split_whitespace());
        let unknown: Vec<&str> = names.filter(|name| !known.contains(name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}
