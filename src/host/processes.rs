//! Processes by their names, from procfs.

use super::blocking::BLOCKING;
use crate::kit::{in_log, ProcessFilter};
use rustix::fs::{getxattr, open, readlinkat_raw, Dir, Mode, OFlags};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Returns the bytes before the first NUL, as of a C string.
pub fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// Longest command line that is read, in bytes: several times the longest class path; a process may have gigabytes.
const LINE: u64 = 32 << 10;

/// Returns the arguments of a process, each followed by NUL: the first 32 KB. `None` if it is gone or cannot be read.
pub(super) fn arguments(pid: u32) -> Option<Vec<u8>> {
    let read = move || {
        let mut line = Vec::new();
        fs::File::open(format!("/proc/{pid}/cmdline"))?.take(LINE).read_to_end(&mut line)?;
        Ok(line)
    };
    BLOCKING.run(pid, read).ok()
}

/// Returns the command line of a process, cut to 32 KB: arguments joined with single blanks, `(comm)` for a kernel
/// thread. `None` if it is gone or cannot be read ([`exists`] tells which).
pub fn cmdline(pid: u32) -> Option<Vec<u8>> {
    let mut line = arguments(pid)?;
    while line.last() == Some(&0) {
        line.pop();
    }
    if line.is_empty() {
        return Some([b"(", comm(pid)?.as_slice(), b")"].concat());
    }
    line.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b' ');
    Some(line)
}

/// Returns the word after the number in the instance name of a process: the first word of the first of these names that
/// has something visible. There is always one, since PCP's Python programs take the second word of every such name.
pub fn command_word<'a>(names: &[&'a [u8]]) -> &'a [u8] {
    let mut words = names.iter().filter_map(|name| name.split(|&byte| byte == b' ').next());
    words.find(|word| word.iter().any(|byte| byte.is_ascii_graphic() || !byte.is_ascii())).unwrap_or(b"(unknown)")
}

/// Returns the command name of a process.
pub fn comm(pid: u32) -> Option<Vec<u8>> {
    fs::read(format!("/proc/{pid}/comm")).ok().map(|comm| comm.trim_ascii_end().to_vec())
}

/// Returns the user id of a process, which it began with, unless it has changed that: the real one.
pub fn user_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_ascii_whitespace().next()?.parse().ok()
}

/// True if a process (not a thread of one) exists, including as a zombie.
pub fn exists(pid: u32) -> bool {
    fs::metadata(format!("/proc/{pid}")).is_ok()
}

/// True if this process is in a PID namespace, so that its process ids differ from those that the programs see.
pub fn in_namespace() -> bool {
    // PROC_PID_INIT_INO (include/linux/proc_ns.h)
    fs::read_link("/proc/self/ns/pid").is_ok_and(|ns| ns.as_os_str() != "pid:[4026531836]")
}

/// Highest number of descriptors read per process, and the time for all processes: any user can have any number of
/// them.
const DESCRIPTORS: usize = 1000;
const LOOKING: Duration = Duration::from_secs(2);

/// Returns the processes with an open TCP or UDP socket, in any network namespace, among their first `DESCRIPTORS`,
/// as far as found within `LOOKING`. For the start only.
pub fn with_sockets() -> Vec<u32> {
    with_sockets_until(Instant::now() + LOOKING)
}

fn with_sockets_until(until: Instant) -> Vec<u32> {
    all()
        .into_iter()
        .flatten()
        .take_while(|_| Instant::now() < until)
        .filter(|&pid| has_socket(Path::new(&format!("/proc/{pid}/fd"))).unwrap_or(false))
        .collect()
}

/// True if a process has a TCP or UDP socket among its descriptors (`/proc/PID/fd`). Links are read relative to the
/// open directory, since a path from the root is resolved component by component each time.
fn has_socket(folder: &Path) -> rustix::io::Result<bool> {
    let mut descriptors = Dir::new(open(folder, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)?;
    let mut left = DESCRIPTORS;
    while let Some(descriptor) = descriptors.read() {
        let descriptor = descriptor?;
        let number = descriptor.file_name();
        if number.to_bytes().first() == Some(&b'.') {
            continue;
        }
        let Some(fewer) = left.checked_sub(1) else { return Ok(false) };
        left = fewer;
        // A file is not touched: a network file system may not answer.
        let mut link = [0; b"socket:".len()];
        let read = readlinkat_raw(descriptors.fd()?, number, &mut link[..]);
        if read.is_ok() && link == *b"socket:" && is_tcp_or_udp(&folder.join(OsStr::from_bytes(number.to_bytes()))) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// True if a descriptor (`/proc/PID/fd/N`) is a TCP or UDP socket: every socket has the name of its protocol as an
/// attribute (`sockfs_xattr_get` in net/socket.c). /proc/net/tcp lists inodes, but the kernel walks its whole hash
/// table for that, twice.
fn is_tcp_or_udp(descriptor: &Path) -> bool {
    let mut name = [0; 32];
    let read = getxattr(descriptor, "system.sockprotoname", &mut name);
    read.is_ok() && [&b"TCP"[..], b"TCPv6", b"UDP", b"UDPv6"].contains(&until_nul(&name))
}

/// A process as the option `process` sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Command name.
    pub comm: Vec<u8>,
    /// Command line; the command name in parentheses while the command line cannot be read.
    pub line: Vec<u8>,
    /// True if the command line could not be read.
    pub is_late: bool,
}

impl Process {
    /// Reads a process; `None` if it is gone.
    pub fn read(pid: u32) -> Option<Process> {
        let (comm, line) = (comm(pid)?, cmdline(pid));
        let is_late = line.is_none();
        if is_late && !exists(pid) {
            return None;
        }
        let line = line.unwrap_or_else(|| [b"(", comm.as_slice(), b")"].concat());
        Some(Process { pid, comm, line, is_late })
    }

    /// Iterates over all processes, reading each in turn: their command lines together may exceed the memory. An error
    /// if they cannot be listed.
    pub fn all() -> std::io::Result<impl Iterator<Item = Process>> {
        Ok(all()?.filter_map(Process::read))
    }
}

/// Iterates over the ids of all processes.
fn all() -> std::io::Result<impl Iterator<Item = u32>> {
    Ok(fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()))
}

/// Highest number of new processes logged per scan, since any user can start many.
const LOGGED: usize = 50;

/// A periodic scan for the processes that the option `process` matches.
pub struct Watch {
    filter: ProcessFilter,
    /// Section, for the log.
    name: String,
    /// Word for the log, such as `trace`: the action on the processes.
    pub(crate) verb: &'static str,
    /// Interval between scans in ticks (seconds); `None`: one scan only.
    every: Option<u64>,
    ticks: u64,
    members: BTreeSet<u32>,
}

impl Watch {
    /// Makes a scan for the processes of a filter at this interval.
    pub fn new(name: &str, filter: ProcessFilter, every: Option<Duration>) -> Watch {
        let every = every.map(|every| every.as_secs().max(1));
        Watch { filter, name: name.into(), verb: "attach", every, ticks: 0, members: BTreeSet::new() }
    }

    /// True if there is a filter; without one all processes count.
    pub fn is_filtering(&self) -> bool {
        !self.filter.is_all()
    }

    /// Returns the filter.
    pub fn filter(&self) -> &ProcessFilter {
        &self.filter
    }

    /// Scans when due; to be called once a second. `change` gets each process that appeared (true) or disappeared
    /// (false).
    pub fn tick(&mut self, change: &mut dyn FnMut(u32, bool)) {
        if self.is_due() && self.is_filtering() {
            match Process::all() {
                Ok(all) => {
                    let wanted = all.filter(|process| self.filter.wants(process.pid, &process.comm, &process.line));
                    let found = wanted.map(|process| process.pid).collect();
                    self.found(found, change);
                }
                Err(error) => log::error!("{}: /proc: {error}", self.name),
            }
        }
    }

    /// Counts the calls as seconds; returns true when a scan is due.
    pub fn is_due(&mut self) -> bool {
        let due = match self.every {
            Some(every) => self.ticks.is_multiple_of(every),
            None => self.ticks == 0,
        };
        self.ticks += 1;
        due
    }

    /// True before the first tick.
    pub fn is_first(&self) -> bool {
        self.ticks == 0
    }

    /// Returns the section.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True if the last scan found no process.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// True if the last scan found this process.
    pub fn has(&self, pid: u32) -> bool {
        self.members.contains(&pid)
    }

    /// Handles the result of a scan of all processes.
    pub fn found(&mut self, found: BTreeSet<u32>, change: &mut dyn FnMut(u32, bool)) {
        let mut come = 0;
        for &pid in found.difference(&self.members) {
            if come < LOGGED {
                let line = cmdline(pid).unwrap_or_default();
                log::info!("{}: Tracing PID {pid}: {}.", self.name, in_log(&line));
            }
            come += 1;
            change(pid, true);
        }
        if come > LOGGED {
            log::info!("{}: Tracing {} more processes.", self.name, come - LOGGED);
        }
        for &gone in self.members.difference(&found) {
            change(gone, false);
        }
        let Watch { name, verb, .. } = self;
        match self.every {
            _ if !found.is_empty() => {}
            _ if !self.members.is_empty() => log::info!("{name}: No process to trace found."),
            Some(_) if self.ticks == 1 => log::info!("{name}: No process to {verb} found, activation postponed."),
            None if self.ticks == 1 => log::error!("{name}: No process to {verb} found."),
            _ => {}
        }
        self.members = found;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a command line; retries, since on a busy machine a read may time out.
    fn line_of(pid: u32) -> Vec<u8> {
        let mut pauses = (0..3000).map(|_| std::thread::sleep(Duration::from_millis(20)));
        cmdline(pid).or_else(|| pauses.find_map(|()| cmdline(pid))).expect("it lives")
    }

    #[test]
    fn this_process_has_a_command_line() {
        let line = line_of(std::process::id());
        assert!(line.windows(7).any(|part| part == b"corebcc"), "{}", String::from_utf8_lossy(&line));
        assert!(exists(std::process::id()));
    }

    /// A child with the longest possible argument.
    #[test]
    fn a_command_line_is_read_and_logged_up_to_a_bound() {
        let long = "x".repeat(100_000);
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "read go", "sh", &long]).stdin(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        // Until it has executed the shell.
        let line = (0..1000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(20));
            cmdline(child.id()).filter(|line| line.starts_with(b"sh -c"))
        });
        let all = (0..600).find_map(|_| {
            let all = Process::all().unwrap().map(|process| process.line.len()).max();
            all.filter(|&most| most as u64 == LINE)
        });
        child.kill().unwrap();
        child.wait().unwrap();
        let line = line.unwrap();
        assert_eq!((line.len() as u64, all), (LINE, Some(LINE as usize)));
    }

    #[test]
    fn a_kernel_thread_is_named_in_parentheses() {
        // Unless in a process namespace without kernel threads.
        if exists(2) && comm(2).is_some_and(|comm| comm == b"kthreadd") {
            assert_eq!(line_of(2), b"(kthreadd)");
        }
    }

    fn filter(text: &str) -> ProcessFilter {
        let text = format!("[a]\nprocess = {text}\n");
        let config = crate::config::Config::parse("test.conf", text.as_bytes()).unwrap();
        let value = config.section("a").unwrap().get("process").unwrap().unwrap();
        crate::kit::OptionType::read(&value).unwrap()
    }

    #[test]
    fn a_watch_finds_this_process_and_lets_it_go_with_the_filter() {
        let me = std::process::id();
        let mut watch = Watch::new("test", filter(&me.to_string()), Some(Duration::from_secs(2)));
        let mut changes = Vec::new();
        watch.tick(&mut |pid, member| changes.push((pid, member)));
        assert_eq!(changes, [(me, true)]);
        watch.filter = filter("no_such_process");
        watch.tick(&mut |pid, member| changes.push((pid, member)));
        assert_eq!(changes.len(), 1, "the next look is two ticks later");
        watch.tick(&mut |pid, member| changes.push((pid, member)));
        assert_eq!(changes[1..], [(me, false)]);
    }

    #[test]
    fn a_process_with_a_socket_is_found() {
        let _listener = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(with_sockets().contains(&std::process::id()));
    }

    #[test]
    fn of_many_descriptors_the_first_are_looked_at() {
        let _socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        // Duplicates fill the numbers of a process of its own.
        let script = format!(
            "import os, socket, sys\nimport resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (2000, 2000))\n\
             for _ in range({}): os.dup(0)\nkept = socket.socket()\nprint('ready', flush=True)\nsys.stdin.read()",
            DESCRIPTORS
        );
        let child = std::process::Command::new("python3")
            .args(["-c", &script])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn();
        let Ok(mut child) = child else {
            return println!("skipped: of_many_descriptors_the_first_are_looked_at: python3");
        };
        let mut ready = [0; 6];
        child.stdout.take().unwrap().read_exact(&mut ready).unwrap();
        let found = has_socket(Path::new(&format!("/proc/{}/fd", child.id()))).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!found);
        assert!(with_sockets().contains(&std::process::id()), "others are found");
        assert!(with_sockets_until(Instant::now()).is_empty(), "no time");
    }

    #[test]
    fn tcp_and_udp_are_told_from_other_descriptors() {
        use std::os::fd::AsRawFd;
        let is = |of: &dyn AsRawFd| is_tcp_or_udp(&Path::new("/proc/self/fd").join(of.as_raw_fd().to_string()));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(is(&listener) && is(&stream) && is(&accepted) && is(&udp));
        if let Ok(six) = std::net::UdpSocket::bind("[::1]:0") {
            assert!(is(&six));
        }
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(!is(&one) && !is(&other) && !is(&fs::File::open("/proc/self/exe").unwrap()));
    }

    #[test]
    fn entries_are_ids_names_or_anchored_expressions() {
        let filter = filter(r"77, java, node_exporter, .*nginx.*");
        assert!(filter.wants(77, b"sh", b"sh"));
        assert!(filter.wants(1, b"java", b"java -jar x"));
        assert!(!filter.wants(1, b"javac", b"java"));
        assert!(filter.wants(1, b"node_exporter", b"/usr/bin/node_exporter --web"));
        assert!(filter.wants(1, b"x", b"nginx: worker"));
        assert!(!filter.wants(1, b"x", b"apache"));
    }

    #[test]
    fn the_word_of_a_process_is_never_empty() {
        assert_eq!(command_word(&[b"/usr/bin/curl -s x", b"curl"]), b"/usr/bin/curl");
        assert_eq!(command_word(&[b" -s", b"Web Content"]), b"Web");
        assert_eq!(command_word(&[b"caf\xc3 x"]), b"caf\xc3");
        for nothing in [&b""[..], b" x", b"\t", b"\x01\n y"] {
            assert_eq!(command_word(&[nothing, b""]), b"(unknown)", "{}", nothing.escape_ascii());
        }
        assert_eq!(command_word(&[]), b"(unknown)");
    }

    #[test]
    fn a_string_ends_at_its_first_nul() {
        assert_eq!(until_nul(b"bash\0junk"), b"bash");
        assert_eq!(until_nul(b"full"), b"full");
    }
}
