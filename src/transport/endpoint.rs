//! Where pmcd is met: the descriptors it started us with, or a socket that it connects to. Reads an [`Endpoint`];
//! yields a [`Connection`] whose descriptors nobody else in the process knows.

use super::{Signals, TransportError};
use crate::pcpconf::PcpConf;
use log::{info, warn};
use nix::errno::Errno;
use nix::fcntl::{fcntl, FcntlArg, OFlag};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::unistd::{chown, dup2_stdin, dup2_stdout, Group, User};
use std::fs::{self, File, Permissions};
use std::io::{self, IsTerminal};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// How pmcd reaches the agent, as its line in `pmcd.conf` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Standard input and output.
    Pipe,
    /// A TCP port on 127.0.0.1.
    Inet(u16),
    /// A TCP port on ::1.
    Inet6(u16),
    /// A Unix-domain stream socket.
    Unix(PathBuf),
}

/// The two ways of one conversation; the same socket twice, unless it is a pipe. Neither blocks, both close on exec.
#[derive(Debug)]
pub struct Connection {
    pub(super) input: OwnedFd,
    pub(super) output: OwnedFd,
}

impl Connection {
    /// Takes over two descriptors.
    pub fn new(input: OwnedFd, output: OwnedFd) -> Result<Connection, TransportError> {
        for fd in [&input, &output] {
            let set = fcntl(fd, FcntlArg::F_GETFL)
                .and_then(|flags| fcntl(fd, FcntlArg::F_SETFL(OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK)));
            set.map_err(|errno| TransportError::new("cannot set O_NONBLOCK on the connection", errno))?;
        }
        Ok(Connection { input, output })
    }

    fn of_socket(socket: OwnedFd) -> Result<Connection, TransportError> {
        let output = socket.try_clone().map_err(|error| TransportError::new("cannot duplicate the socket", error))?;
        Connection::new(socket, output)
    }
}

/// Meets pmcd. For a socket this waits, for as long as it takes, for one connection; a signal to end ends the wait with
/// [`TransportError::Signal`].
pub fn connect(endpoint: &Endpoint, conf: &PcpConf, signals: &Signals) -> Result<Connection, TransportError> {
    match endpoint {
        Endpoint::Pipe => pipe(),
        Endpoint::Inet(port) => tcp(TcpListener::bind((Ipv4Addr::LOCALHOST, *port)), *port, signals),
        Endpoint::Inet6(port) => tcp(TcpListener::bind((Ipv6Addr::LOCALHOST, *port)), *port, signals),
        Endpoint::Unix(path) => unix(path, conf, signals),
    }
}

/// Moves the pipes away from descriptors 0 and 1. Whatever prints (a library, a panic, a child) then prints to standard
/// error, and never into the protocol.
fn pipe() -> Result<Connection, TransportError> {
    if io::stdin().is_terminal() {
        let reason =
            "standard input is a terminal, but pmcd was to be there; to try things by hand use `show` or `--check`";
        return Err(TransportError::Endpoint(reason.to_owned()));
    }
    let input = io::stdin().as_fd().try_clone_to_owned();
    let input = input.map_err(|error| TransportError::new("cannot duplicate standard input", error))?;
    let output = io::stdout().as_fd().try_clone_to_owned();
    let output = output.map_err(|error| TransportError::new("cannot duplicate standard output", error))?;
    let null = File::open("/dev/null").map_err(|error| TransportError::new("cannot open /dev/null", error))?;
    dup2_stdin(null).map_err(|errno| TransportError::new("cannot replace standard input", errno))?;
    dup2_stdout(io::stderr()).map_err(|errno| TransportError::new("cannot replace standard output", errno))?;
    Connection::new(input, output)
}

/// The standard library binds with `SO_REUSEADDR`, which lets an agent restart on its port at once.
fn tcp(bound: io::Result<TcpListener>, port: u16, signals: &Signals) -> Result<Connection, TransportError> {
    let failed = |error| TransportError::new(format!("cannot listen on loopback port {port}"), error);
    let listener = bound.map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    info!("waiting for pmcd on port {port}");
    let stream = accept(&listener, signals, || listener.accept().map(|(stream, _)| stream))?;
    // Without it the kernel may hold back the end of a reply; only speed is at stake.
    let _ = stream.set_nodelay(true);
    Connection::of_socket(stream.into())
}

fn unix(path: &Path, conf: &PcpConf, signals: &Signals) -> Result<Connection, TransportError> {
    let failed = |error| TransportError::new(format!("cannot listen on socket {}", path.display()), error);
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => {
            warn!("socket {} was there already, replacing it", path.display());
            fs::remove_file(path).map_err(failed)?;
        }
        Ok(_) => {
            let reason = format!("{} exists and is not a socket; name another path with -u", path.display());
            return Err(TransportError::Endpoint(reason));
        }
        Err(_) => {}
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    hand_over(path, conf);
    listener.set_nonblocking(true).map_err(failed)?;
    info!("waiting for pmcd on socket {}", path.display());
    let stream = accept(&listener, signals, || listener.accept().map(|(stream, _)| stream))?;
    Connection::of_socket(stream.into())
}

/// pmcd runs as `PCP_USER` and has to open the socket; nobody else has. An agent that is not root cannot give it away,
/// and need not if it runs under that account itself.
fn hand_over(path: &Path, conf: &PcpConf) {
    let user = conf.get("PCP_USER").and_then(|name| User::from_name(name).ok().flatten());
    let group = conf.get("PCP_GROUP").and_then(|name| Group::from_name(name).ok().flatten());
    if let Some(user) = user {
        let group = group.map_or(user.gid, |group| group.gid);
        if let Err(errno) = chown(path, Some(user.uid), Some(group)) {
            warn!("cannot give socket {} to {}: {}", path.display(), user.name, errno.desc());
        }
    }
    if let Err(error) = fs::set_permissions(path, Permissions::from_mode(0o660)) {
        warn!("cannot set the mode of socket {}: {error}", path.display());
    }
}

/// Waits for one connection. The caller's listener closes when it leaves scope, right after.
fn accept<S>(
    listener: &impl AsFd,
    signals: &Signals,
    mut take: impl FnMut() -> io::Result<S>,
) -> Result<S, TransportError> {
    loop {
        let mut fds =
            [PollFd::new(listener.as_fd(), PollFlags::POLLIN), PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(TransportError::new("cannot wait for pmcd", errno)),
        }
        if let Some(signal) = signals.take() {
            return Err(TransportError::Signal(signal));
        }
        match take() {
            Ok(stream) => return Ok(stream),
            // Also what Linux reports for a connection that broke before it was accepted (accept(2)).
            Err(error) if [io::ErrorKind::WouldBlock, io::ErrorKind::ConnectionAborted].contains(&error.kind()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(TransportError::new("cannot accept pmcd's connection", error)),
        }
    }
}

/// A port by number, or by its name in `services(5)`.
pub fn port(text: &str) -> Result<u16, String> {
    named_port(text, || fs::read_to_string("/etc/services").unwrap_or_default())
}

fn named_port(text: &str, services: impl Fn() -> String) -> Result<u16, String> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        let port = text.parse().ok().filter(|&port| port > 0);
        return port.ok_or_else(|| format!("expected a port number from 1 to 65535, got `{text}`"));
    }
    let of_line = |line: &str| {
        let mut words = line.split('#').next()?.split_whitespace();
        let name = words.next()?;
        let port = words.next()?.strip_suffix("/tcp")?.parse().ok()?;
        (name == text || words.any(|alias| alias == text)).then_some(port)
    };
    services()
        .lines()
        .find_map(of_line)
        .ok_or_else(|| format!("`{text}` is no port number and no TCP service in /etc/services"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    #[test]
    fn ports_are_numbers_or_services() {
        let services = || "# none 1/tcp\npmcd 44321/udp\npmcd\t44321/tcp # PCP\nx 7/tcp y z\n".to_owned();
        assert_eq!(named_port("4321", services), Ok(4321));
        assert_eq!(named_port("pmcd", services), Ok(44321));
        assert_eq!(named_port("z", services), Ok(7));
        for bad in ["", "0", "65536", "-1", "none", "#", "7/tcp"] {
            assert!(named_port(bad, services).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_unix_socket_replaces_an_old_one_and_is_for_the_group_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        let client = std::thread::spawn({
            let path = path.clone();
            move || {
                // An old socket refuses, so this is the new one.
                let mut stream = retry(|| UnixStream::connect(&path));
                stream.write_all(b"hello").unwrap();
            }
        });
        let connection = connect(&Endpoint::Unix(path.clone()), &PcpConf::default(), &Signals::none()).unwrap();
        client.join().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        let mut text = String::new();
        File::from(connection.input).read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
        assert!(UnixStream::connect(&path).is_err(), "nobody listens after the first");
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let endpoint = Endpoint::Unix(file.path().to_owned());
        let message = connect(&endpoint, &PcpConf::default(), &Signals::none()).unwrap_err().to_string();
        assert!(message.ends_with("exists and is not a socket; name another path with -u"), "{message}");
        assert!(file.path().exists());
    }

    #[test]
    fn both_loopback_addresses_can_be_listened_on() {
        for (address, endpoint) in
            [("127.0.0.1:0", Endpoint::Inet as fn(u16) -> Endpoint), ("[::1]:0", Endpoint::Inet6)]
        {
            let address = TcpListener::bind(address).and_then(|free| free.local_addr());
            let Ok(address) = address else {
                eprintln!("no address {address:?} on this host: that half of the test has not run");
                continue;
            };
            let client = std::thread::spawn(move || retry(|| TcpStream::connect(address)));
            connect(&endpoint(address.port()), &PcpConf::default(), &Signals::none()).unwrap();
            client.join().unwrap();
        }
    }

    fn retry<T>(mut step: impl FnMut() -> io::Result<T>) -> T {
        for _ in 0..1000 {
            match step() {
                Ok(done) => return done,
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        panic!("gave up after five seconds");
    }
}
