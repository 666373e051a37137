//! The thread that starts and ends scripts, reads their output, and restarts those that die.

use super::state::SharedState;
use crate::loader::{ScriptHelper, ScriptProcess};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Largest line of output in bytes; longer ones are left out.
const MAX_LINE: usize = 4 << 20;
/// Largest output of a script in bytes per second, as in PCP's bpftrace agent.
const MAX_RATE: u64 = 2 << 20;
/// Time for which a script may exceed that rate.
const RATE_OVER: Duration = Duration::from_secs(5);
/// Delay between the end of a process and the next start: the first, and the largest after repeated failures.
const DELAYS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(600));
/// Time without output after which the probes of a process that has begun to attach them count as attached.
pub const SETTLES: Duration = Duration::from_secs(10);
/// Run time after which a process that ends is restarted with the first delay again.
const RAN_LONG: Duration = Duration::from_secs(60);

/// A script to run.
pub struct Runnable {
    /// The name of its file without `.bt`, by which the helper finds it.
    pub file: String,
    /// Its name among the modules.
    pub name: String,
    /// Its state, which the module reads.
    pub state: SharedState,
}

/// Orders for the thread, which are given by others.
pub struct Runner {
    orders: Mutex<Orders>,
    wake: EventFd,
}

#[derive(Default)]
struct Orders {
    /// Orders that the thread has not taken yet.
    next: Vec<Order>,
    /// Reason why scripts are refused, once there is one.
    failure: Option<String>,
}

enum Order {
    Run(Runnable),
    End(SharedState),
}

impl Runner {
    /// Makes an empty list of orders, for a thread that is started later.
    pub fn new() -> io::Result<Runner> {
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Runner { orders: Mutex::default(), wake })
    }

    /// Orders a script to be run.
    pub fn run(&self, script: Runnable) {
        if let Some(why) = &self.orders().failure {
            return script.state.get().refuse(why.clone());
        }
        self.order(Order::Run(script));
    }

    /// Orders the process of a script to be ended.
    pub fn end(&self, state: SharedState) {
        self.order(Order::End(state));
    }

    /// Refuses all scripts from now on, for this reason.
    pub fn fail(&self, why: &str) {
        self.orders().failure = Some(why.to_owned());
    }

    fn order(&self, order: Order) {
        self.orders().next.push(order);
        self.wake();
    }

    /// Wakes the thread, so that it looks at all scripts.
    pub fn wake(&self) {
        // It fails only once the counter runs over, and the thread is awake then.
        let _ = self.wake.write(1);
    }

    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the orders since the last call.
    fn take(&self) -> Vec<Order> {
        // There may be nothing to read.
        let _ = self.wake.read();
        std::mem::take(&mut self.orders().next)
    }
}

struct Running {
    script: Runnable,
    process: Option<Process>,
    /// Time of the next start; `None` while it runs, and once it has ended without an error.
    start_at: Option<Instant>,
    delay: Duration,
}

struct Process {
    stdout: Option<File>,
    stderr: Option<File>,
    lines: Lines,
    begin: Instant,
    /// Begin of the current measurement of the output rate, and the bytes since.
    rate: (Instant, u64),
    /// Time at which its probes count as attached.
    settles_at: Option<Instant>,
}

/// Runs scripts until the agent ends. With an expiry, the process of a script ends once its values were not fetched for that time.
pub fn run(helper: &ScriptHelper, runner: &Runner, expiry: Option<Duration>) {
    let mut scripts: Vec<Running> = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        for order in runner.take() {
            match order {
                Order::Run(script) => {
                    scripts.push(Running { script, process: None, start_at: Some(Instant::now()), delay: DELAYS.0 });
                }
                Order::End(state) => {
                    let is_meant = |script: &Running| script.script.state.is(&state);
                    scripts.iter().filter(|script| is_meant(script)).for_each(|script| script.stop(helper));
                    scripts.retain(|script| !is_meant(script));
                }
            }
        }
        for script in &mut scripts {
            script.expire(helper, expiry);
            if script.start_at.is_some_and(|at| at <= Instant::now()) {
                script.start(helper);
            }
            script.settle();
        }
        let ready = wait(&scripts, runner, expiry);
        for (number, is_output) in ready {
            let script = &mut scripts[number];
            if script.panics(|script| script.read(is_output, &mut buffer, helper)) {
                script.stop(helper);
                script.process = None;
                script.again();
            }
        }
    }
}

/// Waits for output, an order or a script that is due. Returns the outputs that can be read, each with the number of its script and
/// true for the standard output.
fn wait(scripts: &[Running], runner: &Runner, expiry: Option<Duration>) -> Vec<(usize, bool)> {
    let mut outputs = Vec::new();
    let mut polled = vec![PollFd::new(runner.wake.as_fd(), PollFlags::POLLIN)];
    for (number, script) in scripts.iter().enumerate() {
        let Some(process) = &script.process else { continue };
        for (is_output, file) in [(true, &process.stdout), (false, &process.stderr)] {
            if let Some(file) = file {
                outputs.push((number, is_output));
                polled.push(PollFd::new(file.as_fd(), PollFlags::POLLIN));
            }
        }
    }
    let due = |script: &Running| script.start_at.or_else(|| script.process.as_ref()?.settles_at);
    let next = scripts.iter().filter_map(|script| due(script).into_iter().chain(script.expires_at(expiry)).min()).min();
    let timeout = next.map_or(PollTimeout::NONE, |at| {
        // A millisecond more, so that it is due when the time is over.
        let left = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
    });
    if poll(&mut polled, timeout).is_err() {
        return Vec::new(); // interrupted
    }
    let is_ready = |polled: &PollFd<'_>| polled.any().unwrap_or(true);
    outputs.into_iter().zip(&polled[1..]).filter(|(_, polled)| is_ready(polled)).map(|(output, _)| output).collect()
}

impl Running {
    fn start(&mut self, helper: &ScriptHelper) {
        self.start_at = None;
        match helper.run(&self.script.file) {
            Ok(ScriptProcess { pid, stdout, stderr }) => {
                let now = Instant::now();
                self.process = Some(Process {
                    stdout: Some(stdout),
                    stderr: Some(stderr),
                    lines: Lines::default(),
                    begin: now,
                    rate: (now, 0),
                    settles_at: None,
                });
                self.script.state.get().start(pid);
            }
            Err(error) => {
                self.script.state.get().refuse(error.to_string());
                self.again();
            }
        }
    }

    fn stop(&self, helper: &ScriptHelper) {
        if self.process.is_none() {
            return;
        }
        if let Err(error) = helper.kill(&self.script.file) {
            log::warn!("script.{}: {error}", self.script.name);
        }
    }

    fn expires_at(&self, expiry: Option<Duration>) -> Option<Instant> {
        self.script.state.get().expires_at(expiry?)
    }

    /// Ends its process if nobody fetches its values, and starts it again once somebody does.
    fn expire(&mut self, helper: &ScriptHelper, expiry: Option<Duration>) {
        let is_over = self.expires_at(expiry).is_some_and(|at| at <= Instant::now());
        if let (true, Some(expiry)) = (is_over, expiry) {
            self.stop(helper);
            self.process = None;
            self.script.state.get().expire(expiry);
            log::info!(
                "script.{}: ended, since nobody fetched its values for {} s",
                self.script.name,
                expiry.as_secs()
            );
        } else if self.script.state.get().take_wanted() {
            self.start_at = Some(Instant::now());
        }
    }

    /// Marks the probes as attached once their time is over.
    fn settle(&mut self) {
        let Some(process) = &mut self.process else { return };
        if process.settles_at.is_some_and(|at| at <= Instant::now()) {
            process.settles_at = None;
            self.script.state.get().settle();
        }
    }

    /// Runs a piece of work for the script. A panic in it is caught and becomes the script's error; returns true then.
    fn panics(&mut self, work: impl FnOnce(&mut Running)) -> bool {
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(self))) else { return false };
        let said = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let fault = format!("a fault of the agent, please report it: {}", said.unwrap_or("panic"));
        self.script.state.get().refuse(fault);
        true
    }

    /// Reads the available bytes of an output. The process is over once both of its outputs are.
    fn read(&mut self, is_output: bool, buffer: &mut [u8], helper: &ScriptHelper) {
        let Some(process) = &mut self.process else { return };
        let file = if is_output { &mut process.stdout } else { &mut process.stderr };
        let Some(open) = file else { return };
        let length = open.read(buffer).unwrap_or(0);
        if length == 0 {
            *file = None;
            if process.stdout.is_none() && process.stderr.is_none() {
                let exit_code = helper.end(&self.script.file);
                self.end(exit_code.unwrap_or(-1), None);
            }
            return;
        }
        let bytes = &buffer[..length];
        let mut state = self.script.state.get();
        if !is_output {
            return state.complain(bytes, &format!("{}.bt", self.script.file));
        }
        state.data_bytes += length as u64;
        state.unread_lines += process.lines.take(bytes, |line| state.line(line));
        process.settles_at = match state.attaches() {
            true => process.settles_at.or_else(|| Some(Instant::now() + SETTLES)),
            false => None,
        };
        drop(state);
        if let Some(rate) = process.exceeds(length as u64) {
            let exit_code = helper.kill(&self.script.file).unwrap_or(-1);
            let why =
                format!("expected at most {MAX_RATE} bytes of output a second, got {rate}; print less, or less often");
            self.end(exit_code, Some(why));
        }
    }

    fn end(&mut self, exit_code: i32, why: Option<String>) {
        let ran = self.process.take().map_or(Duration::ZERO, |process| process.begin.elapsed());
        if ran >= RAN_LONG {
            self.delay = DELAYS.0;
        }
        let is_over = exit_code == 0 && why.is_none();
        self.script.state.get().end(exit_code, why);
        match is_over {
            true => log::info!("script.{}: ended", self.script.name),
            false => self.again(),
        }
    }

    /// Logs why the script does not run, and when it will be restarted.
    fn again(&mut self) {
        let why = self.script.state.get().why.clone();
        log::warn!("script.{}: {why}; started again in {} s", self.script.name, self.delay.as_secs());
        self.start_at = Some(Instant::now() + self.delay);
        self.delay = (self.delay * 2).min(DELAYS.1);
    }
}

impl Process {
    /// Adds bytes to the output rate. Returns it, in bytes per second, if it was too high for [`RATE_OVER`].
    fn exceeds(&mut self, bytes: u64) -> Option<u64> {
        let (since, read) = &mut self.rate;
        *read += bytes;
        let passed = since.elapsed();
        if passed < RATE_OVER {
            return None;
        }
        let rate = (*read as f64 / passed.as_secs_f64()) as u64;
        self.rate = (Instant::now(), 0);
        (rate > MAX_RATE).then_some(rate)
    }
}

/// A splitter of bytes into lines.
#[derive(Default)]
struct Lines {
    begun: Vec<u8>,
    /// True while the rest of a line that is too long is skipped.
    skips: bool,
}

impl Lines {
    /// Passes whole lines to `line`. Returns the number of lines that were too long.
    fn take(&mut self, bytes: &[u8], mut line: impl FnMut(&[u8])) -> u64 {
        let mut skipped = 0;
        let mut parts = bytes.split(|&byte| byte == b'\n');
        let begun = parts.next_back().unwrap_or_default();
        for part in parts {
            match (std::mem::take(&mut self.skips), self.begun.is_empty()) {
                (true, _) => {}
                (false, true) => line(part),
                (false, false) => {
                    self.begun.extend_from_slice(part);
                    line(&self.begun);
                }
            }
            self.begun = Vec::new();
        }
        if !self.skips {
            self.begun.extend_from_slice(begun);
        }
        if self.begun.len() > MAX_LINE {
            self.begun = Vec::new();
            self.skips = true;
            skipped += 1;
        }
        skipped
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::ScriptState;
    use super::*;

    #[test]
    fn output_is_cut_into_lines_however_it_comes() {
        let text = b"one\n\ntwo three\nfour";
        for size in 1..text.len() {
            let (mut lines, mut seen) = (Lines::default(), Vec::new());
            for part in text.chunks(size) {
                assert_eq!(lines.take(part, |line| seen.push(line.to_vec())), 0);
            }
            assert_eq!(seen, [&b"one"[..], b"", b"two three"], "{size}");
        }
    }

    #[test]
    fn a_script_may_write_much_for_a_moment_only() {
        let now = Instant::now();
        let process =
            |rate| Process { stdout: None, stderr: None, lines: Lines::default(), begin: now, rate, settles_at: None };
        assert_eq!(process((now, 100 * MAX_RATE)).exceeds(1), None, "not for long");
        let earlier = now.checked_sub(2 * RATE_OVER).unwrap();
        assert_eq!(process((earlier, 9 * MAX_RATE)).exceeds(1), None);
        let mut process = process((earlier, 100 * MAX_RATE));
        assert!(process.exceeds(1).is_some_and(|rate| rate > 9 * MAX_RATE));
        assert_eq!(process.exceeds(1), None, "the next while");
    }

    #[test]
    fn a_panic_is_the_error_of_its_script() {
        let state = SharedState::new(ScriptState::default());
        let script = Runnable { file: "x".into(), name: "x".into(), state: state.clone() };
        let mut script = Running { script, process: None, start_at: None, delay: DELAYS.0 };
        assert!(!script.panics(|_| ()));
        assert!(script.panics(|script| {
            let _held = script.script.state.get();
            panic!("for the test")
        }));
        let shown = state.get().summary();
        assert_eq!(shown, ("failed", "a fault of the agent, please report it: for the test".into()));
    }

    #[test]
    fn a_line_that_is_too_long_is_passed_over() {
        let (mut lines, mut seen, mut skipped) = (Lines::default(), Vec::new(), 0);
        for part in vec![b'x'; MAX_LINE + 10].chunks(1 << 16).chain([&b"rest\nnext\n"[..]]) {
            skipped += lines.take(part, |line| seen.push(line.to_vec()));
        }
        assert_eq!((skipped, seen), (1, vec![b"next".to_vec()]));
    }
}
