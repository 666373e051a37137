//! A pmcd for the finished binary, over pipes or a socket. All that the agent sends has to be whole PDUs that an agent may send:
//! statements 9, 10 and 66 of the conformance checklist hold in every test that has a `Peer`.

use crate::reference::pmcd::{self as wire, decode, frame};
use crate::support::{status_of, wait_for, Home, Proc};
use corebcc::pdu::{Pdu, PduType};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use std::{
    fs::File,
    io::{Read, Write},
    os::fd::{AsFd, OwnedFd},
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

pub const SECOND: Duration = Duration::from_secs(1);
/// Longer than the 5 s after which pmcd drops an agent: tests run beside others, and on emulated machines.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest time for loading modules: on an emulated processor all of them take half a minute, and on a busy host several times that.
const LOADING: Duration = Duration::from_secs(240);

pub struct Peer {
    pub agent: Proc,
    /// The way to the agent; `None` once it is closed.
    pub to: Option<File>,
    pub from: Option<File>,
    /// The client slot that requests are made for.
    pub slot: i32,
    /// Longest time for a reply.
    pub patience: Duration,
}

impl Peer {
    /// Starts the agent on pipes, before the handshake.
    pub fn start(home: &Home, args: &[&str]) -> Peer {
        Peer::of(home, &mut home.agent(args))
    }

    /// Starts the agent, or another program that begins it, on pipes and with its messages in `stderr.log`, before the handshake.
    pub fn of(home: &Home, command: &mut Command) -> Peer {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(home.create("stderr.log"));
        let mut child = command.spawn().unwrap();
        let to = OwnedFd::from(child.stdin.take().unwrap()).into();
        let from = OwnedFd::from(child.stdout.take().unwrap()).into();
        Peer { agent: Proc(child), to: Some(to), from: Some(from), slot: 0, patience: PATIENCE }
    }

    /// Talks to an agent over a socket, on which it listens.
    pub fn over(agent: Proc, socket: OwnedFd) -> Peer {
        Peer {
            agent,
            from: Some(socket.try_clone().unwrap().into()),
            to: Some(socket.into()),
            slot: 0,
            patience: PATIENCE,
        }
    }

    /// Exchanges CREDS.
    #[track_caller]
    pub fn greet(&mut self) {
        let creds = self.read();
        assert_eq!(frame(&creds).ty, PduType::CREDS);
        // An agent that has ended meanwhile is seen to have by what follows.
        let _ = self.to.as_mut().unwrap().write_all(&wire::creds(0));
    }

    /// Starts an agent, and waits until its modules are loaded, after the handshake and its announcement.
    #[track_caller]
    pub fn ready(home: &Home, args: &[&str]) -> Peer {
        let mut peer = Peer::start(home, &[args, &["--notready"]].concat());
        peer.loads();
        peer
    }

    /// Starts the agent, whose arguments have `--notready`, by another program, and waits until its modules are loaded.
    #[track_caller]
    pub fn ready_by(home: &Home, command: &mut Command) -> Peer {
        let mut peer = Peer::of(home, command);
        peer.loads();
        peer
    }

    /// Exchanges CREDS, and waits until the modules of an agent with `--notready` are loaded.
    #[track_caller]
    pub fn loads(&mut self) {
        self.greet();
        assert_eq!(decode(&self.read_within(LOADING)), Pdu::Error { code: -13393 }, "READY");
    }

    /// Sends a PDU on behalf of the slot.
    pub fn send(&mut self, request: &[u8]) {
        self.write(&wire::for_slot(request, self.slot));
    }

    /// Writes bytes as they are.
    pub fn write(&mut self, bytes: &[u8]) {
        self.to.as_mut().unwrap().write_all(bytes).unwrap();
    }

    #[track_caller]
    pub fn ask(&mut self, request: &[u8]) -> Vec<u8> {
        self.send(request);
        let reply = self.read();
        if matches!(decode(&reply), Pdu::Error { code: 0 }) {
            assert_eq!(frame(request).ty, PduType::RESULT, "only a store is answered by ERROR 0");
        }
        reply
    }

    /// Returns the code of the ERROR that answers a request.
    #[track_caller]
    pub fn error(&mut self, request: &[u8]) -> i32 {
        wire::error_code(request, &self.ask(request))
    }

    /// Returns the next PDU.
    #[track_caller]
    pub fn read(&mut self) -> Vec<u8> {
        self.read_within(self.patience)
    }

    #[track_caller]
    pub fn read_within(&mut self, time: Duration) -> Vec<u8> {
        assert!(self.readable(time), "nothing from the agent within {time:?}");
        let mut pdu = vec![0; 12];
        let from = self.from.as_mut().unwrap();
        from.read_exact(&mut pdu).unwrap();
        let len = wire::word(&pdu, 0) as usize;
        assert!((12..1 << 26).contains(&len), "not a PDU: {}", pdu.escape_ascii());
        pdu.resize(len, 0);
        from.read_exact(&mut pdu[12..]).unwrap();
        lawful(&pdu);
        pdu
    }

    /// True if something, even the end of file, can be read within this time.
    pub fn readable(&self, time: Duration) -> bool {
        let fd = PollFd::new(self.from.as_ref().unwrap().as_fd(), PollFlags::POLLIN);
        poll(&mut [fd], PollTimeout::try_from(time).unwrap()).unwrap() > 0
    }

    /// Returns the replies to all unanswered requests, up to that to a request which echoes a number of its own.
    #[track_caller]
    pub fn pending(&mut self) -> Vec<Vec<u8>> {
        const ECHO: u32 = 0x00ab_cdef;
        self.send(&wire::label(ECHO, 2));
        let mut replies = Vec::new();
        loop {
            let reply = self.read();
            if frame(&reply).ty == PduType::LABEL && wire::word(&reply, 12) == ECHO {
                return replies;
            }
            replies.push(reply);
        }
    }

    #[track_caller]
    pub fn unanswered(&mut self) {
        let replies = self.pending();
        assert!(replies.is_empty(), "{:?}", replies.iter().map(|reply| frame(reply).ty).collect::<Vec<_>>());
    }

    /// Closes the way to the agent, reads the rest, and waits for its end.
    #[track_caller]
    pub fn close(&mut self) -> (ExitStatus, Vec<u8>) {
        self.to = None;
        self.rest()
    }

    /// Waits for the agent's end, and returns the bytes that it wrote until then.
    #[track_caller]
    pub fn rest(&mut self) -> (ExitStatus, Vec<u8>) {
        let status = self.agent.end();
        let mut rest = Vec::new();
        self.from.as_mut().unwrap().read_to_end(&mut rest).unwrap();
        (status, rest)
    }

    /// Returns a line of `/proc/PID/status` in KiB.
    pub fn memory(&self, line: &str) -> u64 {
        status_of(self.agent.pid(), line)
    }

    /// Waits until the agent sleeps in its poll, with no work left.
    pub fn settle(&self) {
        let path = format!("/proc/{}/stat", self.agent.pid());
        let sleeps = || std::fs::read_to_string(&path).is_ok_and(|stat| stat.contains(") S "));
        wait_for("the agent to sleep", || sleeps().then_some(()));
    }
}

/// Checks statements 9 and 66: the PDUs that an agent may send.
#[track_caller]
fn lawful(pdu: &[u8]) {
    let frame = frame(pdu);
    assert!(frame.from == 0 || frame.ty == PduType::CREDS, "{} has `from` {}", frame.ty, frame.from);
    let lawful = [
        PduType::ERROR,
        PduType::RESULT,
        PduType::DESC,
        PduType::INSTANCE,
        PduType::TEXT,
        PduType::CREDS,
        PduType::PMNS_IDS,
        PduType::PMNS_NAMES,
        PduType::LABEL,
    ];
    assert!(lawful.contains(&frame.ty), "{} from an agent", frame.ty);
    if let Pdu::Error { code } = decode(pdu) {
        // PM_ERR_IPC, PM_ERR_TIMEOUT, -EPIPE.
        assert!(code <= 0 && ![-12366, -12353, -32].contains(&code), "ERROR {code} from an agent");
    }
}
