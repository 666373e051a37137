//! Replies on their way to pmcd. A long one is not copied into the pipe: its pages are lent to the pipe (vmsplice(2)),
//! which saves the kernel as many of its own. Lent memory is not touched before pmcd has read it.

use nix::errno::Errno;
use nix::fcntl::{vmsplice, SpliceFFlags};
use nix::unistd::write;
use rustix::io::ioctl_fionread;
use std::io::IoSlice;
use std::mem;
use std::os::fd::OwnedFd;

/// Length in bytes from which a reply is lent: below it, the copy costs no more than the check whether it was read.
const LONG: usize = 64 << 10;

/// Largest buffer that is kept after its reply is read, in bytes.
const KEEP: usize = 1 << 20;

/// Pending output, and memory lent to the pipe.
pub(super) struct Replies {
    /// Output, of which the kernel has the first `sent` bytes.
    out: Vec<u8>,
    sent: usize,
    /// True if pages of `out` are in the pipe.
    is_lent: bool,
    /// Buffers whose pages may be in the pipe.
    lent: Vec<Vec<u8>>,
    /// True if the output is a pipe and lending works.
    lends: bool,
}

impl Replies {
    pub(super) fn new(greeting: &[u8]) -> Replies {
        Replies { out: greeting.to_vec(), sent: 0, is_lent: false, lent: Vec::new(), lends: true }
    }

    /// Returns the number of bytes that the kernel does not have yet.
    pub(super) fn pending(&self) -> usize {
        self.out.len() - self.sent
    }

    /// True if more can be appended now; always when nothing is pending.
    pub(super) fn can_grow(&self) -> bool {
        !self.is_lent
    }

    /// Returns the buffer to append the next reply to.
    pub(super) fn buffer(&mut self, output: &OwnedFd) -> &mut Vec<u8> {
        if !self.lent.is_empty() && is_read(output) {
            let mut read = mem::take(&mut self.lent);
            if let Some(buffer) = read.pop().filter(|_| self.out.is_empty()) {
                self.out = cleared(buffer);
            }
        }
        &mut self.out
    }

    /// Gives back the memory of replies that have been read. Nothing may be pending.
    pub(super) fn forget(&mut self, output: &OwnedFd) {
        if is_read(output) {
            self.lent = Vec::new();
        }
        self.out = Vec::new();
    }

    /// Passes as much to the kernel as it accepts.
    pub(super) fn flush(&mut self, output: &OwnedFd) -> Result<(), Errno> {
        while self.pending() > 0 {
            let pending = &self.out[self.sent..];
            let lends = self.lends && pending.len() >= LONG;
            let taken = match lends {
                true => vmsplice(output, &[IoSlice::new(pending)], SpliceFFlags::SPLICE_F_NONBLOCK),
                false => write(output, pending),
            };
            match taken {
                Ok(taken) => {
                    self.sent += taken;
                    self.is_lent |= lends;
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(()),
                Err(_) if lends => self.lends = false, // a socket, or a container that forbids the call
                Err(errno) => return Err(errno),
            }
        }
        let out = mem::take(&mut self.out);
        match mem::take(&mut self.is_lent) {
            true => self.lent.push(out),
            false => self.out = cleared(out),
        }
        self.sent = 0;
        Ok(())
    }
}

impl Drop for Replies {
    /// Leaks lent buffers: reused memory would change the bytes that pmcd reads.
    fn drop(&mut self) {
        mem::forget(mem::take(&mut self.lent));
        if self.is_lent {
            mem::forget(mem::take(&mut self.out));
        }
    }
}

fn cleared(mut buffer: Vec<u8>) -> Vec<u8> {
    buffer.clear();
    buffer.shrink_to(KEEP);
    buffer
}

/// True if the reader has copied all that was written into a pipe. pmcd does copy: it does not pass pages on
/// (splice(2)).
fn is_read(pipe: &OwnedFd) -> bool {
    ioctl_fionread(pipe) == Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;

    fn pipe() -> (File, OwnedFd) {
        let (reader, writer) = nix::unistd::pipe().unwrap();
        nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
        (File::from(reader), writer)
    }

    fn read(reader: &mut File, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        reader.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn reply(byte: u8, count: usize) -> Vec<u8> {
        vec![byte; count]
    }

    #[test]
    fn the_next_reply_leaves_one_alone_that_was_not_read() {
        let (mut reader, writer) = pipe();
        nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_SETPIPE_SZ(1 << 20)).unwrap();
        let mut replies = Replies::new(b"");
        for byte in 1..=3 {
            replies.buffer(&writer).extend(reply(byte, LONG));
            replies.flush(&writer).unwrap();
            assert_eq!((replies.pending(), replies.lent.len()), (0, usize::from(byte)));
        }
        replies.buffer(&writer).extend(b"short");
        replies.flush(&writer).unwrap();
        let wanted = [reply(1, LONG), reply(2, LONG), reply(3, LONG), b"short".to_vec()].concat();
        assert!(read(&mut reader, wanted.len()) == wanted);
    }

    #[test]
    fn memory_is_used_again_once_it_was_read() {
        let (mut reader, writer) = pipe();
        let mut replies = Replies::new(b"");
        let mut places = Vec::new();
        for byte in 1..=3 {
            let buffer = replies.buffer(&writer);
            buffer.extend(reply(byte, LONG));
            places.push(buffer.as_ptr());
            let mut got = Vec::new();
            while replies.pending() > 0 {
                replies.flush(&writer).unwrap();
                assert!(replies.pending() == 0 || !replies.can_grow());
                got.extend(read(&mut reader, LONG - replies.pending() - got.len()));
            }
            assert!(got == reply(byte, LONG));
        }
        assert_eq!(places, [places[0]; 3]);
        assert!(replies.buffer(&writer).is_empty() && replies.lent.is_empty());
    }

    #[test]
    fn a_reply_outlives_the_conversation() {
        let (mut reader, writer) = pipe();
        nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_SETPIPE_SZ(1 << 20)).unwrap();
        let mut replies = Replies::new(b"");
        replies.buffer(&writer).extend(reply(7, LONG));
        replies.flush(&writer).unwrap();
        drop(replies);
        let others: Vec<Vec<u8>> = (0..100).map(|_| reply(9, LONG)).collect();
        assert!(read(&mut reader, LONG) == reply(7, LONG));
        drop(others);
    }

    #[test]
    fn a_socket_is_written_to() {
        let (mut reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
        writer.set_nonblocking(true).unwrap();
        let (writer, mut replies) = (OwnedFd::from(writer), Replies::new(b"hi"));
        replies.buffer(&writer).extend(reply(1, 2 * LONG));
        let mut got = vec![0; 2 * LONG + 2];
        let mut count = 0;
        while count < got.len() {
            replies.flush(&writer).unwrap();
            count += reader.read(&mut got[count..]).unwrap();
        }
        assert!(!replies.lends && replies.lent.is_empty());
        assert!(got == [b"hi".to_vec(), reply(1, 2 * LONG)].concat());
    }
}
