//! The loop: frames in, replies out, until pmcd leaves or a signal comes. Reads are paused while a reply is pending, so
//! that a peer that asks and never reads costs one reply of memory, and signals are still noticed.

use super::replies::Replies;
use super::{Connection, Signals, TransportError};
use crate::pdu::{Deframer, Frame};
use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::signal::Signal;
use nix::unistd::read;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Amount of unsent output in bytes above which the wake descriptor is not polled.
const BACKLOG: usize = 64 << 10;

/// Time without a request after which memory of replies is given back.
const QUIET: Duration = Duration::from_secs(20);

/// The agent's part of a conversation.
pub trait Handler {
    /// Handles a request; appends whole reply PDUs, if any, to `out`.
    fn frame(&mut self, frame: Frame<'_>, out: &mut Vec<u8>);

    /// Called when the wake descriptor is readable. Must drain it, or this is called again at once.
    fn woken(&mut self, out: &mut Vec<u8>) {
        let _ = out;
    }

    /// Reads the configuration again, after SIGHUP.
    fn reload(&mut self) {}

    /// Gives back memory that only large replies needed: called when pmcd has asked nothing for a while after a reply.
    fn idle(&mut self) {}

    /// True if the agent itself wants to end the conversation: [`End::Handler`].
    fn is_over(&self) -> bool {
        false
    }

    /// Called at the end of the conversation. The connection is closed after this, upon which pmcd may start another
    /// agent.
    fn ended(&mut self, end: &End) {
        let _ = end;
    }

    /// Returns a descriptor to poll besides pmcd's, such as an `eventfd(2)`. Called before each poll.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// The reason for the end of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// pmcd closed its end, or the connection was reset, between two PDUs: the orderly end.
    Eof,
    /// SIGTERM or SIGINT.
    Signal(i32),
    /// [`Handler::is_over`] returned true.
    Handler,
    /// An error in the data or behaviour of pmcd, in words.
    Broken(String),
}

/// Sends `greeting`, then talks until the end. Replies go out in the order of the requests; each is written whole,
/// however long, unless the conversation ends.
pub fn run(
    connection: Connection,
    greeting: &[u8],
    signals: &Signals,
    handler: &mut dyn Handler,
) -> Result<End, TransportError> {
    talk(connection, greeting, signals, handler, QUIET)
}

fn talk(
    connection: Connection,
    greeting: &[u8],
    signals: &Signals,
    handler: &mut dyn Handler,
    quiet: Duration,
) -> Result<End, TransportError> {
    let (deframer, replies) = (Deframer::new(), Replies::new(greeting));
    let mut talk = Talk { connection, deframer, replies, quiet, asked: false };
    let end = loop {
        if let Err(end) = talk.answer(handler) {
            break end;
        }
        let ready = talk.wait(signals, handler)?;
        if ready.signal {
            match signals.take() {
                Some(Signal::SIGHUP) => handler.reload(),
                Some(signal) => break End::Signal(signal as i32),
                None => {}
            }
        }
        if ready.quiet {
            talk.replies.forget(&talk.connection.output);
            handler.idle();
        }
        if ready.wake {
            handler.woken(talk.replies.buffer(&talk.connection.output));
            if handler.is_over() {
                break End::Handler;
            }
        }
        if ready.input {
            if let Err(end) = talk.fill() {
                break end;
            }
        }
    };
    handler.ended(&end);
    Ok(end)
}

struct Talk {
    connection: Connection,
    deframer: Deframer,
    replies: Replies,
    /// Time without a request after which memory of replies is given back.
    quiet: Duration,
    /// True if pmcd has asked something since then.
    asked: bool,
}

#[derive(Default)]
struct Ready {
    signal: bool,
    wake: bool,
    input: bool,
    quiet: bool,
}

impl Talk {
    /// Writes pending output, then answers the buffered frames one by one, until there are none or the peer is slow.
    fn answer(&mut self, handler: &mut dyn Handler) -> Result<(), End> {
        loop {
            self.flush()?;
            if self.replies.pending() > 0 {
                return Ok(());
            }
            match self.deframer.next() {
                Ok(Some(frame)) => {
                    self.asked = true;
                    handler.frame(frame, self.replies.buffer(&self.connection.output));
                }
                Ok(None) => return Ok(()),
                Err(error) => return Err(End::Broken(format!("cannot read on after {error}"))),
            }
        }
    }

    /// Passes as much to the kernel as it accepts.
    fn flush(&mut self) -> Result<(), End> {
        let flushed = self.replies.flush(&self.connection.output);
        flushed.map_err(|errno| End::Broken(format!("pmcd takes no reply: {}", errno.desc())))
    }

    fn wait(&mut self, signals: &Signals, handler: &dyn Handler) -> Result<Ready, TransportError> {
        let idle = self.replies.pending() == 0;
        let wake = handler.wake_fd().filter(|_| self.replies.pending() <= BACKLOG && self.replies.can_grow());
        let signal = || PollFd::new(signals.as_fd(), PollFlags::POLLIN);
        // One of pmcd's two descriptors, never both: a closed one would be reported whether asked about or not, and
        // the loop would spin on it while it waits for the other.
        let pmcd = match idle {
            true => PollFd::new(self.connection.input.as_fd(), PollFlags::POLLIN),
            false => PollFd::new(self.connection.output.as_fd(), PollFlags::POLLOUT),
        };
        let mut fds = [signal(), pmcd, wake.map_or_else(signal, |fd| PollFd::new(fd, PollFlags::POLLIN))];
        let used = if wake.is_some() { 3 } else { 2 };
        let quiet = Some(self.quiet).filter(|_| self.asked && idle);
        let quiet = quiet.and_then(|quiet| quiet.try_into().ok()).unwrap_or(PollTimeout::NONE);
        match poll(&mut fds[..used], quiet) {
            Ok(0) => {
                self.asked = false;
                return Ok(Ready { quiet: true, ..Ready::default() });
            }
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(Ready::default()),
            Err(errno) => return Err(TransportError::new("cannot wait for pmcd", errno)),
        }
        // Errors and hang-ups count as readiness: the read or write that follows says which it was.
        let ready = |fd: &PollFd<'_>| fd.any().unwrap_or(true);
        let (wake, input) = (used == 3 && ready(&fds[2]), idle && ready(&fds[1]));
        Ok(Ready { signal: ready(&fds[0]), wake, input, quiet: false })
    }

    /// Reads available bytes, up to the free room.
    fn fill(&mut self) -> Result<(), End> {
        match read(&self.connection.input, self.deframer.spare()) {
            Ok(0) if self.deframer.is_empty() => Err(End::Eof),
            // A TCP peer that ends without lingering, as dbpmda and a pmcd that is killed do.
            Err(Errno::ECONNRESET) if self.deframer.is_empty() => Err(End::Eof),
            Ok(0) => Err(End::Broken("end of file inside a PDU".to_owned())),
            Ok(count) => {
                self.deframer.filled(count);
                Ok(())
            }
            Err(Errno::EINTR | Errno::EAGAIN) => Ok(()),
            Err(errno) => Err(End::Broken(format!("cannot read from pmcd: {}", errno.desc()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::eventfd::{EfdFlags, EventFd};
    use nix::sys::signal::Signal;
    use nix::unistd::write;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::thread;

    /// Answers each frame with itself, `times` over, and a wake with one byte.
    struct Echo {
        times: usize,
        wake: Option<EventFd>,
        seen: usize,
        /// Number of times that memory was given back.
        idle: usize,
        /// Number of polls.
        waits: std::cell::Cell<usize>,
    }

    impl Handler for Echo {
        fn frame(&mut self, frame: Frame<'_>, out: &mut Vec<u8>) {
            self.seen += 1;
            for _ in 0..self.times {
                out.extend(pdu(frame.ty.0, frame.body));
            }
        }

        fn idle(&mut self) {
            self.idle += 1;
        }

        fn woken(&mut self, out: &mut Vec<u8>) {
            self.wake.as_ref().unwrap().read().unwrap();
            out.push(b'!');
        }

        fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
            self.waits.set(self.waits.get() + 1);
            self.wake.as_ref().map(AsFd::as_fd)
        }
    }

    fn echo(times: usize) -> Echo {
        Echo { times, wake: None, seen: 0, idle: 0, waits: Default::default() }
    }

    fn pdu(ty: i32, body: &[u8]) -> Vec<u8> {
        let words = [12 + body.len() as i32, ty, 0];
        words.iter().flat_map(|word| word.to_be_bytes()).chain(body.iter().copied()).collect()
    }

    /// Runs `handler` against a peer on another thread; returns the conversation's end and the peer's result.
    fn talk<R: Send>(mut handler: Echo, peer: impl FnOnce(UnixStream) -> R + Send) -> (End, R) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let ours = Connection::new(ours.try_clone().unwrap().into(), ours.into()).unwrap();
        thread::scope(|scope| {
            let peer = scope.spawn(|| peer(theirs));
            let end = run(ours, b"hi", &Signals::none(), &mut handler).unwrap();
            (end, peer.join().unwrap())
        })
    }

    /// Sends `bytes` in pieces, shuts down the sending side, and reads to the end.
    fn send(bytes: Vec<u8>, piece: usize) -> impl FnOnce(UnixStream) -> Vec<u8> + Send {
        move |mut stream| {
            for piece in bytes.chunks(piece) {
                stream.write_all(piece).unwrap();
            }
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut got = Vec::new();
            stream.read_to_end(&mut got).unwrap();
            got
        }
    }

    #[test]
    fn the_greeting_is_first_and_eof_between_pdus_is_orderly() {
        assert_eq!(talk(echo(1), send(Vec::new(), 1)), (End::Eof, b"hi".to_vec()));
    }

    #[test]
    fn requests_split_or_joined_are_answered_in_order() {
        let requests = (0..50).flat_map(|ty| pdu(ty, &vec![7; ty as usize])).collect::<Vec<_>>();
        for piece in [1, requests.len()] {
            let (end, got) = talk(echo(1), send(requests.clone(), piece));
            assert_eq!(end, End::Eof);
            assert_eq!(got.split_at(2), (&b"hi"[..], &requests[..]));
        }
    }

    #[test]
    fn a_reply_beyond_the_pipe_buffer_reaches_a_slow_reader_whole() {
        let request = pdu(5, &[1; 1000]);
        let (end, got) = talk(echo(2000), {
            let request = request.clone();
            move |mut stream| {
                stream.write_all(&request.repeat(3)).unwrap();
                let mut got = Vec::<u8>::new();
                let mut room = [0; 777];
                while got.len() < 2 + request.len() * 6000 {
                    let count = stream.read(&mut room).unwrap();
                    got.extend(&room[..count]);
                    thread::yield_now();
                }
                got
            }
        });
        assert_eq!(end, End::Eof);
        assert!(got[2..] == request.repeat(6000));
    }

    #[test]
    fn broken_framing_ends_the_conversation_with_a_reason() {
        let broken = |bytes: &[u8]| match talk(echo(1), send(bytes.to_vec(), bytes.len())) {
            (End::Broken(reason), got) => {
                assert_eq!(got, b"hi", "no reply");
                reason
            }
            other => panic!("{other:?}"),
        };
        let whole = pdu(1, b"abcd");
        for cut in 1..whole.len() {
            assert_eq!(broken(&whole[..cut]), "end of file inside a PDU", "{cut}");
        }
        let short = [11i32, 1, 0].iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<_>>();
        assert!(broken(&short).contains("11"), "{}", broken(&short));
        let typed = pdu(-1, b"");
        assert!(broken(&typed).contains("type 0xffffffff"), "{}", broken(&typed));
    }

    #[test]
    fn a_peer_that_takes_no_reply_any_more_ends_the_conversation() {
        let (end, ()) = talk(echo(1), |stream| {
            stream.shutdown(std::net::Shutdown::Read).unwrap();
            let _ = (&stream).write_all(&pdu(1, b"")); // too late where the greeting was refused
        });
        assert_eq!(end, End::Broken("pmcd takes no reply: Broken pipe".into()));
    }

    #[test]
    fn a_peer_that_goes_with_the_greeting_unread_ends_orderly() {
        let (end, ()) = talk(echo(1), |stream| {
            poll(&mut [PollFd::new(stream.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE).unwrap();
        });
        assert_eq!(end, End::Eof);
    }

    #[test]
    fn a_wake_is_answered_between_requests() {
        let wake = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK).unwrap();
        let poke = wake.as_fd().try_clone_to_owned().unwrap();
        let (end, got) = talk(Echo { wake: Some(wake), ..echo(1) }, move |mut stream| {
            let mut got = [0; 3];
            stream.read_exact(&mut got[..2]).unwrap();
            write(&poke, &1u64.to_ne_bytes()).unwrap();
            stream.read_exact(&mut got[2..]).unwrap();
            got
        });
        assert_eq!((end, &got), (End::Eof, b"hi!"));
    }

    #[test]
    fn a_signal_ends_it_though_the_peer_does_not_read() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let ours = Connection::new(ours.try_clone().unwrap().into(), ours.into()).unwrap();
        theirs.write_all(&pdu(1, &[0; 1000]).repeat(10)).unwrap();
        let signals = Signals::usr1();

        /// A handler that raises a signal in its own thread once the first reply cannot be written.
        struct Raise(Echo);
        impl Handler for Raise {
            fn frame(&mut self, frame: Frame<'_>, out: &mut Vec<u8>) {
                self.0.frame(frame, out);
                nix::sys::signal::raise(Signal::SIGUSR1).unwrap();
            }
        }
        let mut handler = Raise(echo(5000));
        let end = run(ours, b"", &signals, &mut handler).unwrap();
        assert_eq!(end, End::Signal(Signal::SIGUSR1 as i32));
        assert_eq!(handler.0.seen, 1);
    }

    /// A profile of a thousand instances and its fetch arrive at once.
    #[test]
    fn requests_that_come_together_are_read_together() {
        let (input, ask) = nix::unistd::pipe().unwrap();
        let (answer, output) = nix::unistd::pipe().unwrap();
        let requests = [pdu(2, &[7; 4 * 1000]), pdu(3, &[7; 20])].concat();
        write(&ask, &requests).unwrap();
        let mut handler = echo(1);
        let connection = Connection::new(input, output).unwrap();
        let end = thread::scope(|scope| {
            let peer = scope.spawn(|| {
                let mut got = vec![0; requests.len()];
                let mut answer = std::fs::File::from(answer);
                answer.read_exact(&mut got).unwrap();
                drop(ask);
                assert_eq!(got, requests);
            });
            let end = run(connection, b"", &Signals::none(), &mut handler).unwrap();
            peer.join().unwrap();
            end
        });
        assert_eq!((end, handler.seen, handler.waits.get()), (End::Eof, 2, 2), "once for both, once for the end");
    }

    #[test]
    fn memory_of_replies_is_given_back_once_after_each_rush() {
        let (mut peer, ours) = UnixStream::pair().unwrap();
        let ours = Connection::new(ours.try_clone().unwrap().into(), ours.into()).unwrap();
        let mut handler = echo(1000);
        let (quiet, pause) = (Duration::from_millis(20), Duration::from_millis(200));
        let end = thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..2 {
                    peer.write_all(&pdu(3, &[7; 988])).unwrap();
                    peer.read_exact(&mut vec![0; 1_000_000]).unwrap();
                    thread::sleep(pause);
                }
            });
            super::talk(ours, b"", &Signals::none(), &mut handler, quiet).unwrap()
        });
        assert_eq!((end, handler.seen, handler.idle), (End::Eof, 2, 2));
    }

    #[test]
    fn a_pipe_takes_a_long_reply_at_once() {
        let (input, ask) = nix::unistd::pipe().unwrap();
        let (answer, output) = nix::unistd::pipe().unwrap();
        write(&ask, &pdu(3, &[7; 988])).unwrap();
        drop(ask);
        let mut handler = echo(400);
        let connection = Connection::new(input, output).unwrap();
        let read = thread::scope(|scope| {
            let peer = scope.spawn(|| std::io::copy(&mut std::fs::File::from(answer), &mut std::io::sink()).unwrap());
            assert_eq!(run(connection, b"", &Signals::none(), &mut handler).unwrap(), End::Eof);
            peer.join().unwrap()
        });
        assert_eq!((read, handler.waits.get()), (400_000, 2), "once for the request, once for the end");
    }

    #[test]
    fn pipes_serve_as_well_as_sockets() {
        let (input, ask) = nix::unistd::pipe().unwrap();
        let (answer, output) = nix::unistd::pipe().unwrap();
        let request = pdu(3, b"abcdefgh");
        write(&ask, &request).unwrap();
        drop(ask);
        let end = run(Connection::new(input, output).unwrap(), b"", &Signals::none(), &mut echo(1)).unwrap();
        let mut got = Vec::new();
        std::fs::File::from(answer).read_to_end(&mut got).unwrap();
        assert_eq!((end, got), (End::Eof, request));
    }
}
