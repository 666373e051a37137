//! Signals as a descriptor, so that the poll of the agent reports them and no handler runs anywhere.

use super::TransportError;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::fd::{AsFd, BorrowedFd};

/// SIGTERM and SIGINT, which end the agent, and SIGHUP, which makes it read its configuration again: administrators
/// send it to pmcd, and it can reach the children as well. SIGPIPE needs nothing here, since Rust's runtime ignores it.
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
}

impl Signals {
    /// Blocks the signals for this thread and all that it starts later; to be called first.
    pub fn block() -> Result<Signals, TransportError> {
        let set = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
        set.thread_block().map_err(|errno| TransportError::new("cannot block signals", errno))?;
        Signals::on(&set)
    }

    fn on(set: &SigSet) -> Result<Signals, TransportError> {
        let fd = SignalFd::with_flags(set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC);
        Ok(Signals { fd: fd.map_err(|errno| TransportError::new("cannot make a signal descriptor", errno))? })
    }

    /// Returns the first pending signal, if any; termination signals come before SIGHUP.
    pub fn take(&self) -> Option<Signal> {
        let mut taken = None;
        // An error of the read is one of "none pending"; there is no other that a later read would not repeat.
        while let Ok(Some(info)) = self.fd.read_signal() {
            match Signal::try_from(info.ssi_signo as i32) {
                Ok(Signal::SIGHUP) | Err(_) => taken = Some(Signal::SIGHUP),
                Ok(signal) => return Some(signal),
            }
        }
        taken
    }

    /// Returns the first pending termination signal, if any.
    pub fn take_end(&self) -> Option<i32> {
        self.take().filter(|signal| *signal != Signal::SIGHUP).map(|signal| signal as i32)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
impl Signals {
    /// Makes a descriptor that no signal reaches.
    pub(super) fn none() -> Signals {
        Signals::on(&SigSet::empty()).unwrap()
    }

    /// Makes a descriptor for SIGUSR1, blocked in the calling thread, which a test sends to itself.
    pub(super) fn usr1() -> Signals {
        let set = SigSet::from_iter([Signal::SIGUSR1]);
        set.thread_block().unwrap();
        Signals::on(&set).unwrap()
    }
}
