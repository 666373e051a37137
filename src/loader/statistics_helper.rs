//! The helper process that asks the kernel for program statistics after the agent has dropped CAP_SYS_ADMIN.
//!
//! It is a fork of the agent that keeps that capability and almost no system calls. It passes the descriptor on and keeps none: the
//! agent closes it, or the kernel does when the agent ends. At the end of the agent the helper reads end of file, and ends.

use super::footprint::FilePages;
use super::{held, helper::fork_helper, usage::count_runs};
use nix::libc;
use nix::sys::socket::{recvmsg, sendmsg, ControlMessage, ControlMessageOwned, MsgFlags};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::Duration;

/// The agent's end of the connection to the helper.
#[derive(Debug)]
pub struct StatisticsHelper {
    /// Connection; `None` after an unanswered request, whose late answer would be taken for the next one's.
    connection: Mutex<Option<UnixStream>>,
}

impl StatisticsHelper {
    /// Starts the helper, which calls `confine` before it serves. To be called while the process has one thread: another one could
    /// hold a lock that the fork would wait for.
    pub fn start(confine: impl FnOnce() -> io::Result<()>) -> io::Result<StatisticsHelper> {
        let agent = fork_helper(c"corebcc-stats", |agent| {
            let pages = FilePages::find();
            confine()?;
            pages.forget(); // what confining took
            serve(agent)
        })?;
        agent.set_read_timeout(Some(Duration::from_secs(1)))?;
        Ok(StatisticsHelper { connection: Mutex::new(Some(agent)) })
    }

    /// Returns the descriptor of `usage::count_runs`, called in the helper.
    pub fn count_runs(&self) -> io::Result<OwnedFd> {
        let mut connection = held(&self.connection);
        let answer = connection.as_ref().map_or_else(|| Err(gone()), ask);
        match answer {
            Ok(answer) => answer,
            // A helper that is killed with the request unread resets the connection; one that is gone before refuses it.
            Err(error) => {
                *connection = None;
                Err(if error.kind() == io::ErrorKind::ConnectionReset { gone() } else { error })
            }
        }
    }
}

fn gone() -> io::Error {
    io::Error::from_raw_os_error(libc::EPIPE)
}

/// Sends a request, a byte, and reads the answer: an error number of four bytes and, if it is 0, a descriptor.
fn ask(mut helper: &UnixStream) -> io::Result<io::Result<OwnedFd>> {
    helper.write_all(&[1])?;
    let mut code = [0; size_of::<i32>()];
    let mut space = nix::cmsg_space!(RawFd);
    let mut parts = [IoSliceMut::new(&mut code)];
    let message = recvmsg::<()>(helper.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let whole = message.bytes == size_of::<i32>();
    let descriptor = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::ScmRights(descriptors) => descriptors.first().copied(),
        _ => None,
    });
    // SAFETY: the message has just opened it, and nobody else knows of it.
    let descriptor = descriptor.map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) });
    match (whole, i32::from_ne_bytes(code), descriptor) {
        (true, 0, Some(descriptor)) => Ok(Ok(descriptor)),
        (true, code, None) if code != 0 => Ok(Err(io::Error::from_raw_os_error(code))),
        _ => Err(gone()),
    }
}

/// Serves requests until the agent's end is closed.
fn serve(mut agent: UnixStream) -> io::Result<()> {
    while agent.read(&mut [0])? == 1 {
        let opened = count_runs();
        let code = opened.as_ref().map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |_| 0).to_ne_bytes();
        let rights = opened.as_ref().map(|descriptor| [descriptor.as_raw_fd()]);
        let control = rights.as_ref().map(|rights| ControlMessage::ScmRights(rights));
        let control = control.as_ref().map_or(&[][..], std::slice::from_ref);
        sendmsg::<()>(agent.as_raw_fd(), &[IoSlice::new(&code)], control, MsgFlags::MSG_NOSIGNAL, None)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_helper_killed_with_the_request_unread_is_gone() {
        let (agent, helper) = UnixStream::pair().unwrap();
        let killed = thread::spawn(move || {
            // SAFETY: the descriptor is open and the byte is not taken.
            let read = unsafe { libc::recv(helper.as_raw_fd(), [0u8].as_mut_ptr().cast(), 1, libc::MSG_PEEK) };
            assert_eq!(read, 1);
        });
        let agent = StatisticsHelper { connection: Mutex::new(Some(agent)) };
        for _ in 0..2 {
            assert_eq!(agent.count_runs().unwrap_err().raw_os_error(), Some(libc::EPIPE));
        }
        killed.join().unwrap();
    }
}
