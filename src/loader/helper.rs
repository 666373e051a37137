//! Helper processes that keep a privilege for the agent: forks made before the agent drops its own.

use nix::libc;
use nix::sys::prctl::set_name;
use nix::unistd::{fork, ForkResult};
use std::ffi::CStr;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Starts a helper of this name, which serves its end of a connection and then exits. Returns the agent's end. To be
/// called while the process has one thread: another one could hold a lock that the fork would wait for.
pub fn fork_helper(name: &CStr, serve: impl FnOnce(UnixStream) -> io::Result<()>) -> io::Result<UnixStream> {
    let (agent, helper) = UnixStream::pair()?;
    // SAFETY: there is one thread, so no lock is held and no memory is half written.
    match unsafe { fork() }? {
        ForkResult::Parent { .. } => Ok(agent),
        ForkResult::Child => {
            let life = || {
                close_all_but(helper.as_raw_fd() as libc::c_uint)?;
                set_name(name)?;
                serve(helper)
            };
            // Neither the end of the service nor a panic may return into the agent's code.
            let _ = catch_unwind(AssertUnwindSafe(life));
            // SAFETY: it ends the process.
            unsafe { libc::_exit(0) }
        }
    }
}

/// Closes the descriptors of the agent except this one: pmcd's pipes and the other end of the connection must not stay
/// open here.
fn close_all_but(descriptor: libc::c_uint) -> io::Result<()> {
    let close = |first: libc::c_uint, last: libc::c_uint| {
        // SAFETY: the process does not return to code that owns one of them.
        match first > last || unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == 0 {
            true => Ok(()),
            false => Err(io::Error::last_os_error()),
        }
    };
    if descriptor > 0 {
        close(0, descriptor - 1)?;
    }
    close(descriptor + 1, libc::c_uint::MAX)
}
