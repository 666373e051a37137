//! The helper process that starts and ends bpftrace after the agent has dropped the privileges for it.
//!
//! It is a fork of the agent that keeps the privileges of bpftrace. It passes the output of bpftrace to the agent
//! unread. Its children end with it (PR_SET_PDEATHSIG), and it ends when the agent's end of the connection is closed,
//! however the agent ended.

use super::helper::fork_helper;
use nix::libc;
use nix::sys::memfd::{memfd_create, MFdFlags};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{setrlimit, Resource};
use nix::sys::signal::Signal;
use nix::sys::socket::{recvmsg, sendmsg, ControlMessage, ControlMessageOwned, MsgFlags};
use nix::unistd::{getpid, getppid};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Seek, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time for a process to end after it has closed its output or was told to end.
const ENDS_WITHIN: Duration = Duration::from_secs(1);
/// Time to wait for an answer. A later one is ignored.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// Size of a request before the name, in bytes: kind, length of the name, number of the request.
const REQUEST: usize = 6;
/// Size of an answer before its text, in bytes.
const HEAD: usize = 16;
/// Longest text of an answer, in bytes.
const MAX_TEXT: usize = 4096;

const START: u8 = b's';
const END: u8 = b'e';
const KILL: u8 = b'k';

/// Parameters for running bpftrace.
#[derive(Clone, Debug)]
pub struct Bpftrace {
    /// Path of the program.
    pub program: PathBuf,
    /// Limit of its data in bytes (RLIMIT_DATA).
    pub memory: u64,
}

/// Runs bpftrace with a script on its standard input, and its outputs in pipes. It ends with this process.
pub fn run_bpftrace(bpftrace: &Bpftrace, script: &[u8]) -> io::Result<Child> {
    let mut input = File::from(memfd_create(c"script", MFdFlags::MFD_CLOEXEC)?);
    input.write_all(script)?;
    input.rewind()?;
    let (parent, memory) = (getpid(), bpftrace.memory);
    let prepare = move || {
        set_pdeathsig(Signal::SIGKILL)?;
        // It may have ended before.
        if getppid() != parent {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(setrlimit(Resource::RLIMIT_DATA, memory, memory)?)
    };
    let mut command = Command::new(&bpftrace.program);
    command.args(["-f", "json", "-"]).current_dir("/").env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command.envs(std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("BPFTRACE_")));
    command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
    // SAFETY: it makes system calls only.
    unsafe { command.pre_exec(prepare) };
    command.spawn().map_err(|error| {
        let hint = if error.kind() == ErrorKind::NotFound { "; install bpftrace" } else { "" };
        io::Error::other(format!("cannot run {}: {error}{hint}", bpftrace.program.display()))
    })
}

/// A bpftrace process, from the agent's side.
#[derive(Debug)]
pub struct ScriptProcess {
    /// Process id.
    pub pid: u32,
    /// Standard output.
    pub stdout: File,
    /// Standard error.
    pub stderr: File,
}

/// The agent's end of the connection to the helper.
#[derive(Debug)]
pub struct ScriptHelper {
    connection: UnixStream,
    /// Number of the last request.
    asked: AtomicU32,
}

impl ScriptHelper {
    /// Starts the helper, which calls `confine` before it serves. `script` runs in the helper and returns the script of
    /// a name. To be called while the process has one thread.
    pub fn start(
        bpftrace: Bpftrace,
        script: impl Fn(&str) -> io::Result<Vec<u8>>,
        confine: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<ScriptHelper> {
        let connection = fork_helper(c"corebcc-scripts", |agent| {
            // Standard input and outputs, which pipes to a child must not be.
            for _ in 0..3 {
                std::mem::forget(File::options().read(true).write(true).open("/dev/null")?);
            }
            confine()?;
            serve(agent, &bpftrace, script)
        })?;
        connection.set_read_timeout(Some(ANSWERS_WITHIN))?;
        connection.set_write_timeout(Some(ANSWERS_WITHIN))?;
        Ok(ScriptHelper { connection, asked: AtomicU32::new(0) })
    }

    /// Starts the script of a name; replaces a process left by an earlier request whose answer came too late.
    pub fn run(&self, name: &str) -> io::Result<ScriptProcess> {
        let (pid, descriptors) = self.ask(START, name)?;
        let mut files = descriptors.into_iter().map(File::from);
        match (files.next(), files.next()) {
            (Some(stdout), Some(stderr)) => Ok(ScriptProcess { pid: pid as u32, stdout, stderr }),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }

    /// Waits for the process of a name that has closed its outputs; returns its exit code, or minus the number of the
    /// signal that ended it.
    pub fn end(&self, name: &str) -> io::Result<i32> {
        Ok(self.ask(END, name)?.0)
    }

    /// Kills the process of a name; returns its exit code as [`ScriptHelper::end`] does.
    pub fn kill(&self, name: &str) -> io::Result<i32> {
        Ok(self.ask(KILL, name)?.0)
    }

    fn ask(&self, what: u8, name: &str) -> io::Result<(i32, Vec<OwnedFd>)> {
        let length = u8::try_from(name.len()).map_err(|_| io::Error::other("expected a name of at most 255 bytes"))?;
        let number = self.asked.fetch_add(1, Relaxed).wrapping_add(1);
        let mut connection = &self.connection;
        let request = [&[what, length], &number.to_ne_bytes()[..], name.as_bytes()].concat();
        let answered = connection.write_all(&request).and_then(|()| loop {
            let (of, result) = answer(connection)?;
            if of == number {
                break Ok(result);
            }
        });
        answered.unwrap_or_else(|error| {
            if error.kind() == ErrorKind::WouldBlock {
                let limit = ANSWERS_WITHIN.as_secs();
                return Err(io::Error::other(format!(
                    "the helper that runs bpftrace has not answered within {limit} s"
                )));
            }
            let _ = connection.shutdown(Shutdown::Both);
            Err(io::Error::other(format!("the helper that runs bpftrace has ended ({error}); restart the agent")))
        })
    }
}

/// Content of an answer: a number and descriptors, or an error.
type Answer = io::Result<(i32, Vec<OwnedFd>)>;

/// Reads an answer: number of the request, success, a number, length of the text, descriptors, and the text of an
/// error.
fn answer(mut helper: &UnixStream) -> io::Result<(u32, Answer)> {
    let mut head = [0; HEAD];
    let mut space = nix::cmsg_space!([RawFd; 2]);
    let mut parts = [IoSliceMut::new(&mut head)];
    let message = recvmsg::<()>(helper.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(received) = control {
            // SAFETY: the message has just opened them, and nobody else knows of them.
            descriptors.extend(received.into_iter().map(|received| unsafe { OwnedFd::from_raw_fd(received) }));
        }
    }
    if message.bytes != HEAD {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let word = |at: usize| [head[at], head[at + 1], head[at + 2], head[at + 3]];
    let number = |at: usize| i32::from_ne_bytes(word(at));
    let mut text = vec![0; usize::try_from(number(12)).unwrap_or(0).min(MAX_TEXT)];
    // Half an answer would be taken for the next one's beginning.
    helper.read_exact(&mut text).map_err(|_| io::Error::from(ErrorKind::UnexpectedEof))?;
    let result = match number(4) {
        0 => Ok((number(8), descriptors)),
        _ => Err(io::Error::other(String::from_utf8_lossy(&text).into_owned())),
    };
    Ok((u32::from_ne_bytes(word(0)), result))
}

/// Serves requests until the agent's end is closed.
fn serve(mut agent: UnixStream, bpftrace: &Bpftrace, script: impl Fn(&str) -> io::Result<Vec<u8>>) -> io::Result<()> {
    let mut children: HashMap<String, Child> = HashMap::new();
    // The kernel takes thousands of probes off in seconds, which the others must not wait for.
    let mut dying: Vec<Child> = Vec::new();
    let mut head = [0; REQUEST];
    while agent.read_exact(&mut head).is_ok() {
        dying.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        let mut name = vec![0; usize::from(head[1])];
        agent.read_exact(&mut name)?;
        let name = String::from_utf8_lossy(&name).into_owned();
        let (result, outputs) = match head[0] {
            START => {
                // The agent has passed over the answer of an earlier start: nobody reads what that writes.
                if children.contains_key(&name) {
                    drop(end(&name, &mut children, &mut dying, Duration::ZERO));
                }
                match script(&name).and_then(|script| start(&name, &mut children, bpftrace, &script)) {
                    Ok((pid, outputs)) => (Ok(pid), outputs),
                    Err(error) => (Err(error), Vec::new()),
                }
            }
            END => (end(&name, &mut children, &mut dying, ENDS_WITHIN), Vec::new()),
            _ => (end(&name, &mut children, &mut dying, Duration::ZERO), Vec::new()),
        };
        let number = u32::from_ne_bytes([head[2], head[3], head[4], head[5]]);
        reply(&agent, number, result, &outputs)?;
    }
    // What is left ends with this process.
    Ok(())
}

fn start(
    name: &str,
    children: &mut HashMap<String, Child>,
    bpftrace: &Bpftrace,
    script: &[u8],
) -> io::Result<(i32, Vec<OwnedFd>)> {
    let mut child = run_bpftrace(bpftrace, script)?;
    let outputs = [child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from)];
    let pid = child.id() as i32;
    children.insert(name.into(), child);
    Ok((pid, outputs.into_iter().flatten().collect()))
}

/// Waits for the end of a process, then kills it. If it still takes long, it is left to end by itself.
fn end(
    name: &str,
    children: &mut HashMap<String, Child>,
    dying: &mut Vec<Child>,
    patience: Duration,
) -> io::Result<i32> {
    let mut child = children.remove(name).ok_or_else(|| io::Error::other("it does not run"))?;
    if let Some(status) = ended_within(&mut child, patience)? {
        return Ok(code(status));
    }
    child.kill()?;
    if let Some(status) = ended_within(&mut child, ENDS_WITHIN)? {
        return Ok(code(status));
    }
    dying.push(child);
    Ok(-(Signal::SIGKILL as i32))
}

fn ended_within(child: &mut Child, patience: Duration) -> io::Result<Option<ExitStatus>> {
    let until = Instant::now() + patience;
    loop {
        let status = child.try_wait()?;
        if status.is_some() || Instant::now() >= until {
            return Ok(status);
        }
        sleep(Duration::from_millis(10));
    }
}

fn code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| -signal)).unwrap_or(-1)
}

fn reply(mut agent: &UnixStream, request: u32, result: io::Result<i32>, outputs: &[OwnedFd]) -> io::Result<()> {
    let (failed, number, text) = match result {
        Ok(number) => (0_i32, number, String::new()),
        Err(error) => (1, 0, error.to_string()),
    };
    let text = &text.as_bytes()[..text.len().min(MAX_TEXT)];
    let head = [request as i32, failed, number, text.len() as i32].map(i32::to_ne_bytes).concat();
    let rights: Vec<RawFd> = outputs.iter().map(AsRawFd::as_raw_fd).collect();
    let control = [ControlMessage::ScmRights(&rights)];
    let control = if rights.is_empty() { &control[..0] } else { &control[..] };
    sendmsg::<()>(agent.as_raw_fd(), &[IoSlice::new(&head)], control, MsgFlags::MSG_NOSIGNAL, None)?;
    agent.write_all(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_answer_is_passed_over() {
        let (connection, mut helper) = UnixStream::pair().unwrap();
        connection.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let agent = ScriptHelper { connection, asked: AtomicU32::new(0) };
        let late = agent.run("one").unwrap_err().to_string();
        assert_eq!(late, "the helper that runs bpftrace has not answered within 10 s");
        agent.connection.set_read_timeout(Some(Duration::from_secs(600))).unwrap();
        let mut requests = [0; 2 * REQUEST + 6];
        let answers = std::thread::spawn(move || {
            helper.read_exact(&mut requests).unwrap();
            let outputs = ["/dev/null"; 2].map(|file| OwnedFd::from(File::open(file).unwrap()));
            reply(&helper, 1, Ok(17), &outputs).unwrap();
            reply(&helper, 2, Err(io::Error::other("no")), &[]).unwrap();
            helper
        });
        assert_eq!(agent.end("two").unwrap_err().to_string(), "no");
        drop(answers.join().unwrap());
        assert!(agent.end("two").unwrap_err().to_string().contains("has ended"), "its end is closed");
    }
}
