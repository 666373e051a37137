//! klockstat against operations that take one mutex each, in this process: pipes, terminals, loop devices.

use crate::common::skip;
use crate::support::{alone, Agent, Row, StandIns};
use nix::libc;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

const NEEDS: &str = "fexit or kprobes";
const TIMES: u64 = 500;

/// Loads the module for this process only.
fn agent(lines: &str) -> Option<Agent> {
    let own = format!("process = {}\n{lines}", std::process::id());
    let mut agent = Agent::where_possible(NEEDS, "klockstat", &own)?;
    agent.tick();
    Some(agent)
}

/// Sums over callers with one of these names, of which the compiler may have made several: spin and hold counts, their totals, and
/// the longest times.
#[derive(Debug, Default, PartialEq)]
struct Sums {
    counts: [u64; 2],
    totals: [u64; 2],
    longest: [u64; 2],
}

fn sums(agent: &mut Agent, names: &[&str]) -> Sums {
    let mut sums = Sums::default();
    let rows = agent.rows();
    println!("{:?}", rows.iter().map(|row| (&row.name, &row.values[1])).collect::<Vec<_>>());
    let is_one = |row: &&Row| names.iter().any(|name| row.name.split(['.', '+']).next() == Some(name));
    for row in rows.iter().filter(is_one) {
        let number = |column: usize| row.values[column].as_ref().unwrap().parse::<u64>().unwrap();
        for (kind, first) in [0, 4].into_iter().enumerate() {
            let [average, count, longest, total] = [0, 1, 2, 3].map(|column| number(first + column));
            assert_eq!(average, total.checked_div(count).unwrap_or(0), "{row:?}");
            assert!(average <= longest && longest <= total, "{row:?}");
            sums.counts[kind] += count;
            sums.totals[kind] += total;
            sums.longest[kind] = sums.longest[kind].max(longest);
        }
    }
    sums
}

const WRITERS: &[&str] = &["pipe_write", "anon_pipe_write"];
const READERS: &[&str] = &["pipe_read", "anon_pipe_read"];

/// Makes a number of writes to a pipe and as many reads.
fn use_pipe(times: u64) {
    let (mut from, mut to) = std::io::pipe().unwrap();
    for _ in 0..times {
        to.write_all(b"x").unwrap();
        from.read_exact(&mut [0]).unwrap();
    }
}

#[test]
fn each_operation_on_a_pipe_is_one_acquisition_by_its_function() {
    let _alone = alone();
    let Some(mut agent) = agent("") else { return };
    let start = Instant::now();
    use_pipe(TIMES);
    let elapsed = start.elapsed().as_nanos() as u64;
    for names in [WRITERS, READERS] {
        let sums = sums(&mut agent, names);
        agent.assert_counted(sums.counts, [TIMES, TIMES]);
        assert!(sums.totals.iter().all(|&total| total > 0 && total < elapsed), "{sums:?} in {elapsed} ns");
    }
    use_pipe(TIMES);
    let sums = sums(&mut agent, WRITERS);
    agent.assert_counted(sums.counts, [2 * TIMES, 2 * TIMES]);
    agent.assert_complete();
}

#[test]
fn longer_names_have_more_callers_and_filters_select_them() {
    let _alone = alone();
    // The kernel has the function by one of its names.
    let counted = |writer: &str| {
        let lines = format!("stack_depth = 3\nuse_caller_offset = True\ncaller_filter = {writer}");
        let agent = agent(&lines)?;
        use_pipe(TIMES);
        Some(agent)
    };
    let Some(mut agent) = counted(WRITERS[0]) else { return };
    if agent.rows().is_empty() {
        agent = counted(WRITERS[1]).unwrap();
    }
    let rows = agent.rows();
    let sums = sums(&mut agent, WRITERS);
    agent.assert_counted(sums.counts, [TIMES, TIMES]); // readers do not begin with that
    assert!(!rows.is_empty());
    for row in &rows {
        let frames: Vec<&str> = row.name.split("+0x").collect();
        assert_eq!(frames.len(), 4, "three names with a place each: {}", row.name);
        assert!(frames[1].contains("write") && frames[2].contains("write"), "{}", row.name);
    }
}

/// Opens both sides of a new terminal.
fn terminal() -> Option<(File, File)> {
    let (mut master, mut slave) = (0, 0);
    let none: *mut libc::c_void = std::ptr::null_mut();
    // SAFETY: both descriptors are written before they are read, and the other arguments may be null (openpty(3)).
    let result = unsafe { libc::openpty(&mut master, &mut slave, none.cast(), none.cast(), none.cast()) };
    // SAFETY: they were just opened and belong to nobody else.
    (result == 0).then(|| unsafe { (File::from_raw_fd(master), File::from_raw_fd(slave)) })
}

/// Starts a thread that reads from a terminal, and waits until it is in the call.
fn reader(mut terminal: File) -> std::thread::JoinHandle<usize> {
    let (thread, is) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        // SAFETY: it has no arguments and cannot fail.
        thread.send(unsafe { libc::gettid() }).unwrap();
        terminal.read(&mut [0; 80]).unwrap()
    });
    let call = format!("/proc/self/task/{}/syscall", is.recv().unwrap());
    let begins = format!("{} ", libc::SYS_read);
    while !fs::read_to_string(&call).unwrap().starts_with(&begins) {
        std::thread::yield_now();
    }
    reader
}

/// A writer tries the lock (`mutex_trylock`), a reader waits interruptibly and keeps the lock until there is something to read. A try
/// that fails meanwhile is no acquisition.
#[test]
fn a_terminals_lock_counts_tries_and_waits_but_no_failures() {
    let _alone = alone();
    let Some((mut master, mut slave)) = terminal() else {
        skip("terminals (devpts)");
        return;
    };
    let path = fs::read_link(format!("/proc/self/fd/{}", slave.as_raw_fd())).unwrap();
    let Ok(mut other) = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(&path)
    else {
        skip(&format!("{} cannot be opened", path.display()));
        return;
    };
    let Some(mut agent) = agent("") else { return };
    for _ in 0..TIMES {
        slave.write_all(b"x").unwrap();
    }
    let writers = ["tty_write_lock", "iterate_tty_write", "file_tty_write", "do_tty_write", "tty_write"];
    let of_writers = sums(&mut agent, &writers);
    agent.assert_counted(of_writers.counts, [TIMES, TIMES]);

    let reader = reader(slave);
    for _ in 0..50 {
        assert_eq!(other.read(&mut [0; 80]).unwrap_err().kind(), ErrorKind::WouldBlock);
    }
    let held = Duration::from_millis(50);
    std::thread::sleep(held);
    master.write_all(b"end\n").unwrap();
    assert_eq!(reader.join().unwrap(), 4);
    let sums = sums(&mut agent, &["n_tty_read"]);
    assert_eq!(sums.counts, [1, 1], "the 50 that failed are none: {sums:?}");
    assert!(sums.longest[1] >= held.as_nanos() as u64, "{sums:?}");
}

/// A time of 2.2 s has more than 31 bits of nanoseconds. One reader keeps the lock, the other waits for it.
#[test]
fn a_long_wait_is_as_long_as_it_was() {
    let _alone = alone();
    let Some((mut master, slave)) = terminal() else {
        skip("terminals (devpts)");
        return;
    };
    let Some(mut agent) = agent("") else { return };
    let start = Instant::now();
    let readers = [slave.try_clone().unwrap(), slave].map(reader);
    let waited = Duration::from_millis(2200);
    std::thread::sleep(waited);
    for _ in &readers {
        master.write_all(b"end\n").unwrap();
    }
    let read: usize = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
    assert_eq!(read, 8);
    let (sums, elapsed) = (sums(&mut agent, &["n_tty_read"]), start.elapsed().as_nanos() as u64);
    assert_eq!(sums.counts, [2, 2], "{sums:?}");
    let waited = waited.as_nanos() as u64;
    assert!(sums.longest.iter().all(|&longest| longest >= waited && longest < elapsed), "{sums:?} in {elapsed} ns");
}

/// tee(2) takes the locks of both pipes in the order of their addresses and gives back that of the first pipe first, so that in one
/// of the two directions the lock taken first is given back first.
#[test]
fn locks_given_back_in_either_order_are_each_ended_once() {
    let _alone = alone();
    let Some(mut agent) = agent("") else { return };
    let mut pipes = [(); 2].map(|()| std::io::pipe().unwrap());
    pipes.iter_mut().for_each(|(_, to)| to.write_all(b"x").unwrap());
    let start = Instant::now();
    for i in 0..2 * TIMES as usize {
        let (from, to) = (&pipes[i % 2].0, &pipes[(i + 1) % 2].1);
        // SAFETY: both descriptors are open, and no memory is involved.
        let copied = unsafe { libc::tee(from.as_raw_fd(), to.as_raw_fd(), 1, libc::SPLICE_F_NONBLOCK) };
        assert_eq!(copied, 1, "{}", std::io::Error::last_os_error());
        // What was copied is behind what was there.
        pipes[(i + 1) % 2].0.read_exact(&mut [0]).unwrap();
    }
    let elapsed = start.elapsed().as_nanos() as u64;
    // It jumps to the function of the second lock where it can: then that one's caller is its own.
    let callers =
        ["pipe_double_lock", "link_pipe", "do_tee", "__do_sys_tee", "__se_sys_tee", "__x64_sys_tee", "__arm64_sys_tee"];
    let sums = sums(&mut agent, &callers);
    agent.assert_counted(sums.counts, [4 * TIMES, 4 * TIMES]);
    assert!(sums.totals[1] < 2 * elapsed, "{sums:?} in {elapsed} ns");
    agent.assert_complete();
}

/// `loop_get_status` takes the lock killably, whether or not the device has a file.
#[test]
fn a_function_of_a_module_is_named_and_its_killable_locks_count() {
    let _alone = alone();
    let Ok(device) = OpenOptions::new().read(true).open("/dev/loop7") else {
        skip("/dev/loop7");
        return;
    };
    let Some(mut agent) = agent("") else { return };
    const LOOP_GET_STATUS64: libc::Ioctl = 0x4C05;
    let mut status = [0u8; 1024];
    for _ in 0..TIMES {
        // SAFETY: the kernel writes a `struct loop_info64`, which is shorter than the buffer.
        unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, status.as_mut_ptr()) };
    }
    let names = ["loop_get_status", "loop_get_status64", "lo_ioctl"];
    let sums = sums(&mut agent, &names);
    agent.assert_counted(sums.counts, [TIMES, TIMES]);
}

#[test]
fn where_functions_cannot_be_hooked_it_says_what_is_needed() {
    let _alone = alone();
    match Agent::try_new("klockstat", "") {
        Ok(_) => skip("a kernel without fexit and kprobes"),
        Err(failure) => assert!(failure.reason.contains("kprobes (CONFIG_KPROBE_EVENTS)"), "{failure:?}"),
    }
}

/// Checks locks that are taken and given back, and once tried in vain; no other function of the kernel can be attached to.
fn locks_of_a_kernel_with_lock_debugging(killable: &str, trylock: &str) {
    let others = ["mutex_lock_nested", "mutex_lock_interruptible_nested", "mutex_lock_io_nested"];
    let functions = [&others[..], &[killable, trylock, "mutex_unlock"]].concat();
    let Some(kernel) = StandIns::of(&functions) else { return };
    let mut agent = Agent::new("klockstat", &format!("process = {}", std::process::id()));
    agent.tick();
    let mut nothing = || ();
    for (name, lock) in functions[..5].iter().zip(1..) {
        for _ in 0..TIMES {
            kernel.call(name, lock, &mut nothing, i64::from(*name == trylock));
            kernel.call("mutex_unlock", lock, &mut nothing, 0);
        }
    }
    kernel.call(trylock, 9, &mut nothing, 0);
    let rows = agent.rows();
    let [spins, holds] = [1, 5].map(|column| agent.numbers(column).values().sum::<u64>());
    assert_eq!((spins, holds), (5 * TIMES, 5 * TIMES), "{rows:?}");
    agent.assert_complete();
}

#[test]
fn the_lock_functions_of_a_kernel_with_lock_debugging_count() {
    locks_of_a_kernel_with_lock_debugging("mutex_lock_killable_nested", "mutex_trylock");
}

#[test]
fn those_that_lock_debugging_has_since_6_16_count() {
    locks_of_a_kernel_with_lock_debugging("_mutex_lock_killable", "_mutex_trylock_nest_lock");
}
