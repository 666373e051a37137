//! Signals as a descriptor, so that the one poll of the agent sees them and no handler runs anywhere.

use super::TransportError;
use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// SIGTERM and SIGINT, which end the agent, and SIGHUP, which does not: pmcd gets one from the administrator, and one
/// can reach its children as well. SIGPIPE needs nothing here; Rust's runtime ignores it from the start.
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
}

impl Signals {
    /// Takes the signals from their default actions for this thread and all it starts later. So call it first.
    pub fn block() -> Result<Signals, TransportError> {
        let set = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
        set.thread_block().map_err(|errno| TransportError::new("cannot block signals", errno))?;
        Signals::on(&set)
    }

    fn on(set: &SigSet) -> Result<Signals, TransportError> {
        let fd = SignalFd::with_flags(set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC);
        Ok(Signals { fd: fd.map_err(|errno| TransportError::new("cannot make a signal descriptor", errno))? })
    }

    /// Waits so long for a signal to end, for ever without a time; whether one came.
    pub fn wait(&self, time: Option<Duration>) -> Result<bool, TransportError> {
        let until = time.map(|time| Instant::now() + time);
        loop {
            let left = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => PollTimeout::NONE,
                Some(left) if left.is_zero() => return Ok(false),
                // Rounded up: a poll that ends a fraction early would spin. Longer than it can say: in steps.
                Some(left) => PollTimeout::from(u16::try_from(left.as_millis()).unwrap_or(u16::MAX - 1) + 1),
            };
            match poll(&mut [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)], left) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(TransportError::new("cannot wait for a signal", errno)),
            }
            if self.take().is_some() {
                return Ok(true);
            }
        }
    }

    /// The first signal to end that is pending, if there is one.
    pub(super) fn take(&self) -> Option<i32> {
        // An error of the read is one of "none pending"; there is no other that a later read would not repeat.
        while let Ok(Some(info)) = self.fd.read_signal() {
            let signal = info.ssi_signo as i32;
            if signal != Signal::SIGHUP as i32 {
                return Some(signal);
            }
        }
        None
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
impl Signals {
    /// A descriptor that no signal reaches.
    pub(super) fn none() -> Signals {
        Signals::on(&SigSet::empty()).unwrap()
    }

    /// SIGUSR1 alone, blocked in the calling thread, for a test to send to itself.
    pub(super) fn usr1() -> Signals {
        let set = SigSet::from_iter([Signal::SIGUSR1]);
        set.thread_block().unwrap();
        Signals::on(&set).unwrap()
    }
}
