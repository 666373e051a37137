//! Reads that a process can block for as long as it likes.
//!
//! `/proc/PID/cmdline`, `/proc/PID/map_files` and, before Linux 6.17, `/proc/PID/maps` take the lock of the process's memory. It is
//! held while a page of a mapped file is read, and any user can have a file system (FUSE) that never answers. So each such read
//! has a thread of its own, which is abandoned if it takes too long, and the process is left alone for a while.

use crate::kit::EveryMinute;
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Read, Result};
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// Size of the pieces in which a file is passed on, in bytes.
const CHUNK: usize = 64 << 10;
/// Number of pieces that may wait to be taken.
const CHUNKS: usize = 4;

/// State of reads that were not answered in time.
pub(super) struct Blocking {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Times at which such waits ended, the latest last.
    vain: Vec<Instant>,
    /// Abandoned threads that still wait.
    abandoned: Vec<Weak<()>>,
    /// Processes that were waited for.
    blocked: BTreeMap<u32, Blocked>,
    /// Limit for log lines about them.
    lines: EveryMinute,
}

struct Blocked {
    thread: Weak<()>,
    /// Number of such waits since the process was first noticed.
    times: u32,
    last: Instant,
}

/// Reads of this process. A thread has the capabilities that its caller had at that moment.
pub(super) static BLOCKING: Blocking = Blocking::new();

impl Blocking {
    /// Longest wait for one answer.
    const WAIT: Duration = Duration::from_millis(100);
    /// Longest wait for one file, over all answers.
    const WAITS: Duration = Duration::from_secs(1);
    /// Highest number of unanswered waits per second, over all processes.
    const VAIN: usize = 2;
    /// Highest number of threads that wait in the kernel at the same time.
    const ABANDONED: usize = 8;
    /// Time for which a process is left alone after its first unanswered wait, doubled after each further one; and the
    /// highest number of doublings.
    const PAUSE: Duration = Duration::from_secs(1);
    const DOUBLINGS: u32 = 12;

    pub(super) const fn new() -> Blocking {
        let blocked = BTreeMap::new();
        Blocking {
            state: Mutex::new(State { vain: Vec::new(), abandoned: Vec::new(), blocked, lines: EveryMinute::NEW }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a read of a process's file in a thread. An error of the kind `TimedOut`: it was not answered in time, or
    /// was not tried after others were not.
    pub(super) fn run<T: Send + 'static>(
        &self,
        pid: u32,
        read: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let mut answers = self.start(pid, 1, |answer| {
            let _ = answer(read());
        })?;
        answers.next().unwrap_or_else(|| Err(ErrorKind::UnexpectedEof.into()))
    }

    /// Reads a file of a process from beginning to end.
    pub(super) fn open<F: Read>(
        &self,
        pid: u32,
        open: impl FnOnce() -> Result<F> + Send + 'static,
    ) -> Result<Chunks<'_>> {
        let answers = self.start(pid, CHUNKS, |answer| {
            let mut file = match open() {
                Ok(file) => file,
                Err(error) => {
                    answer(Err(error));
                    return;
                }
            };
            loop {
                let mut chunk = Vec::new();
                let read = file.by_ref().take(CHUNK as u64).read_to_end(&mut chunk).map(|_| chunk);
                let is_last = read.as_ref().map_or(true, |chunk| chunk.is_empty());
                if !answer(read) || is_last {
                    return;
                }
            }
        })?;
        Ok(Chunks { answers, chunk: Vec::new(), at: 0 })
    }

    fn start<T: Send + 'static>(
        &self,
        pid: u32,
        answers: usize,
        read: impl FnOnce(&dyn Fn(Result<T>) -> bool) + Send + 'static,
    ) -> Result<Answers<'_, T>> {
        self.state().may_wait(pid, Instant::now())?;
        let (sender, receiver) = sync_channel(answers);
        let life = Arc::new(());
        let thread = Arc::downgrade(&life);
        let run = move || {
            read(&|answer| sender.send(answer).is_ok());
            drop(life);
        };
        thread::Builder::new().name("reader".into()).stack_size(128 << 10).spawn(run)?;
        Ok(Answers { blocking: self, pid, receiver, thread, left: Self::WAITS })
    }
}

impl State {
    fn may_wait(&mut self, pid: u32, now: Instant) -> Result<()> {
        let is_waiting = |thread: &Weak<()>| thread.strong_count() > 0;
        self.abandoned.retain(is_waiting);
        self.vain.retain(|end| now.saturating_duration_since(*end) < Duration::from_secs(1));
        let is_left_alone = self.blocked.get(&pid).is_some_and(|blocked| {
            let pause = Blocking::PAUSE * (1 << (blocked.times - 1).min(Blocking::DOUBLINGS));
            is_waiting(&blocked.thread) || now.saturating_duration_since(blocked.last) < pause
        });
        match is_left_alone || self.vain.len() >= Blocking::VAIN || self.abandoned.len() >= Blocking::ABANDONED {
            true => Err(late()),
            false => Ok(()),
        }
    }

    fn abandon(&mut self, pid: u32, thread: &Weak<()>, now: Instant) {
        self.vain.push(now);
        self.abandoned.push(thread.clone());
        self.blocked.retain(|pid, _| std::fs::symlink_metadata(format!("/proc/{pid}")).is_ok());
        let times = self.blocked.get(&pid).map_or(0, |blocked| blocked.times);
        let blocked = Blocked { thread: thread.clone(), times: times.saturating_add(1), last: now };
        self.blocked.insert(pid, blocked);
        if let Some(more) = self.lines.due_at(now) {
            log::warn!(
                "process {pid}, and possibly others, do not let their command lines and mappings be read: they have the \
                 kernel's names meanwhile, and no probes{more}"
            );
        }
    }
}

fn late() -> Error {
    Error::new(ErrorKind::TimedOut, "the process does not let it be read")
}

/// Answers of a thread, in order.
struct Answers<'a, T> {
    blocking: &'a Blocking,
    pid: u32,
    receiver: Receiver<Result<T>>,
    thread: Weak<()>,
    /// Remaining time to wait.
    left: Duration,
}

impl<T> Iterator for Answers<'_, T> {
    type Item = Result<T>;

    /// Returns the next answer; `None` after the last.
    fn next(&mut self) -> Option<Result<T>> {
        let began = Instant::now();
        let answer = self.receiver.recv_timeout(self.left.min(Blocking::WAIT));
        self.left = self.left.saturating_sub(began.elapsed());
        match answer {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                self.blocking.state().abandon(self.pid, &self.thread, Instant::now());
                Some(Err(late()))
            }
        }
    }
}

/// A file that is read by a thread.
pub(super) struct Chunks<'a> {
    answers: Answers<'a, Vec<u8>>,
    chunk: Vec<u8>,
    at: usize,
}

impl Read for Chunks<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        if self.at == self.chunk.len() {
            let Some(chunk) = self.answers.next() else { return Ok(0) };
            (self.chunk, self.at) = (chunk?, 0);
        }
        let read = (&self.chunk[self.at..]).read(buffer)?;
        self.at += read;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{channel, Sender};

    /// Makes a read that blocks until the sender is dropped, like an unanswered read in the kernel.
    fn held() -> (Sender<()>, impl FnOnce() -> Result<u32> + Send + 'static) {
        let (sender, receiver) = channel::<()>();
        (sender, move || Ok(receiver.recv().map_or(7, |()| 8)))
    }

    fn is_late<T>(read: &Result<T>) -> bool {
        read.as_ref().is_err_and(|error| error.kind() == ErrorKind::TimedOut)
    }

    /// Shifts all times as if this time had passed.
    fn later(blocking: &Blocking, by: Duration) {
        let mut state = blocking.state();
        state.vain.iter_mut().for_each(|end| *end -= by);
        state.blocked.values_mut().for_each(|blocked| blocked.last -= by);
    }

    fn wait_for_threads(blocking: &Blocking) {
        for _ in 0..6000 {
            if blocking.state().abandoned.iter().all(|thread| thread.strong_count() == 0) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("a thread has not ended for a minute");
    }

    #[test]
    fn a_process_that_blocked_is_left_alone_and_others_are_read() {
        let blocking = Blocking::new();
        let [me, other] = [std::process::id(), 1];
        let (hold, read) = held();
        assert!(is_late(&blocking.run(me, read)));
        later(&blocking, Duration::from_secs(3600));
        assert!(is_late(&blocking.run(me, || Ok(1))), "its thread waits");
        assert_eq!(blocking.state().vain.len(), 0, "it was not waited for");
        // A busy machine may be late, too.
        assert!((0..600).any(|_| {
            later(&blocking, Duration::from_secs(3600));
            matches!(blocking.run(other, || Ok(1)), Ok(1))
        }));
        drop(hold);
        wait_for_threads(&blocking);
        assert!((0..600).any(|_| {
            later(&blocking, Duration::from_secs(36_000));
            matches!(blocking.run(me, || Ok(1)), Ok(1))
        }));
    }

    #[test]
    fn two_waits_in_vain_a_second_and_eight_threads_are_all() {
        let blocking = Blocking::new();
        let mut holds = Vec::new();
        let mut block = |pid| {
            let (hold, read) = held();
            holds.push(hold);
            assert!(is_late(&blocking.run(pid, read)));
        };
        let waited = || blocking.state().vain.len();
        // In the same second, however long the waits take here.
        block(1);
        blocking.state().vain.push(Instant::now());
        assert!(is_late(&blocking.run(1 << 30, || Ok(1))));
        for pid in 2..=Blocking::ABANDONED as u32 {
            later(&blocking, Duration::from_secs(2));
            block(pid);
            assert_eq!(waited(), 1, "{pid}");
        }
        later(&blocking, Duration::from_secs(2));
        assert!(is_late(&blocking.run(1 << 30, || Ok(1))));
        assert_eq!(waited(), 0);
        drop(holds);
        wait_for_threads(&blocking);
    }

    #[test]
    fn a_process_that_blocks_again_is_left_alone_for_longer() {
        let mut state = State::default();
        let me = std::process::id();
        let mut now = Instant::now();
        for pause in [1, 2, 4, 8] {
            state.abandon(me, &Weak::new(), now);
            now += Duration::from_secs(pause) - Duration::from_millis(1);
            assert!(state.may_wait(me, now).is_err());
            now += Duration::from_millis(1);
            assert!(state.may_wait(me, now).is_ok());
        }
        (0..40).for_each(|_| state.abandon(me, &Weak::new(), now));
        assert!(state.may_wait(me, now + Duration::from_secs(3600)).is_err());
    }

    #[test]
    fn a_file_is_read_to_its_end_or_its_error() {
        let text: Vec<u8> = (0..3 * CHUNK + 5).map(|at| at as u8).collect();
        let read = |text: Vec<u8>| -> Result<Vec<u8>> {
            let mut all = Vec::new();
            Blocking::new().open(1, move || Ok(std::io::Cursor::new(text)))?.read_to_end(&mut all)?;
            Ok(all)
        };
        assert!((0..600).any(|_| read(text.clone()).is_ok_and(|all| all == text)));
        let blocking = Blocking::new();
        let mut gone = blocking.open(1, || std::fs::File::open("/proc/none")).unwrap();
        assert!(gone.read(&mut [0]).is_err());
    }
}
