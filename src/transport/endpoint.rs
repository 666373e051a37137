//! The connection to pmcd: the descriptors that pmcd started the agent with, or a socket that it connects to. From an
//! [`Endpoint`] to a [`Connection`] whose descriptors nothing else in the process knows.

use super::{peer, Signals, TransportError};
use crate::host::{Account, Group};
use crate::pcpconf::PcpConf;
use log::{info, warn};
use nix::errno::Errno;
use nix::fcntl::{fcntl, renameat, AtFlags, FcntlArg, OFlag, AT_FDCWD};
use nix::libc::{O_DIRECTORY, O_NOFOLLOW};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::unistd::{dup2_stdin, dup2_stdout, fchownat, Gid, Uid};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, IsTerminal};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Endpoint of the connection, as in the agent's line of `pmcd.conf`.
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

/// Size of the pipe for replies, in bytes: a fetch of 2,000 processes with eight metrics is 320 KB, which a default
/// pipe of 64 KB would take in five pieces, each with a wake-up of the agent. An empty pipe takes no memory.
const REPLY: i32 = 1 << 20;

/// Both directions of one conversation; the same socket twice, unless it is a pipe. Non-blocking, close-on-exec.
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
        // A socket has no such size, and the limit may be lower: then long replies take several turns.
        if fcntl(&output, FcntlArg::F_GETPIPE_SZ).is_ok_and(|size| size < REPLY) {
            let _ = fcntl(&output, FcntlArg::F_SETPIPE_SZ(REPLY));
        }
        Ok(Connection { input, output })
    }

    /// Sends the greeting: a few bytes, for which a new connection has room.
    pub fn greet(&self, greeting: &[u8]) -> Result<(), TransportError> {
        let written = nix::unistd::write(&self.output, greeting);
        written.map(drop).map_err(|errno| TransportError::new("pmcd takes no reply", errno.desc()))
    }

    fn of_socket(socket: OwnedFd) -> Result<Connection, TransportError> {
        let output = socket.try_clone().map_err(|error| TransportError::new("cannot duplicate the socket", error))?;
        Connection::new(socket, output)
    }
}

/// Waits for pmcd. For a socket this blocks until there is a connection; a termination signal ends it with
/// [`TransportError::Signal`].
pub fn connect(endpoint: &Endpoint, conf: &PcpConf, signals: &Signals) -> Result<Connection, TransportError> {
    match endpoint {
        Endpoint::Pipe => pipe(),
        Endpoint::Inet(port) => tcp(TcpListener::bind((Ipv4Addr::LOCALHOST, *port)), *port, conf, signals),
        Endpoint::Inet6(port) => tcp(TcpListener::bind((Ipv6Addr::LOCALHOST, *port)), *port, conf, signals),
        Endpoint::Unix(path) => unix(path, conf, signals),
    }
}

/// Moves the pipes away from descriptors 0 and 1. Output of a library, a panic or a child then goes to standard error,
/// and never into the protocol.
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

/// Accounts that are trusted: PCP's, this process's, and root.
struct Trusted {
    user: Option<Account>,
    group: Option<Gid>,
}

impl Trusted {
    fn read(conf: &PcpConf) -> Trusted {
        let user = conf.get("PCP_USER").and_then(Account::named);
        let group = conf.get("PCP_GROUP").and_then(Group::named);
        let group = group.map(|group| group.gid).or(user.as_ref().map(|user| user.gid));
        Trusted { user, group }
    }

    fn has(&self, uid: Uid) -> bool {
        uid.is_root() || uid == Uid::effective() || self.user.as_ref().is_some_and(|user| user.uid == uid)
    }

    fn has_group(&self, gid: Gid) -> bool {
        gid.as_raw() == 0 || gid == Gid::effective() || self.group == Some(gid)
    }

    /// True if only trusted accounts can replace files in a directory.
    fn own(&self, dir: &fs::Metadata) -> bool {
        const STICKY: u32 = 0o1000;
        let open = |bits| dir.mode() & bits != 0 && dir.mode() & STICKY == 0;
        let group = self.has_group(Gid::from_raw(dir.gid()));
        self.has(Uid::from_raw(dir.uid())) && !open(0o002) && (group || !open(0o020))
    }
}

/// Listens on a TCP port of the loopback interface. The standard library binds with `SO_REUSEADDR`, so that an agent
/// can restart on its port at once.
fn tcp(
    bound: io::Result<TcpListener>,
    port: u16,
    conf: &PcpConf,
    signals: &Signals,
) -> Result<Connection, TransportError> {
    let failed = |error| TransportError::new(format!("cannot listen on loopback port {port}"), error);
    let listener = bound.map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    info!("waiting for pmcd on port {port}");
    let trusted = Trusted::read(conf);
    let mut refused = false;
    let stream = accept(&listener, signals, || {
        let (stream, _) = listener.accept()?;
        let Err(reason) = admit(&trusted, &stream) else { return Ok(Some(stream)) };
        if !std::mem::replace(&mut refused, true) {
            warn!("port {port}: {reason}; further refusals are not logged");
        }
        Ok(None)
    })?;
    // Without it the kernel may hold back the end of a reply; only speed is at stake.
    let _ = stream.set_nodelay(true);
    Connection::of_socket(stream.into())
}

/// A peer that is not pmcd.
#[derive(Debug, Error)]
enum Stranger {
    #[error("refused a connection of user {0}, who is neither root nor PCP_USER")]
    User(Uid),
    #[error("refused a connection that was closed at once, or whose user is not in /proc/net/tcp")]
    Unknown,
}

/// Refuses connections of untrusted accounts, since any local account can connect to a port.
fn admit(trusted: &Trusted, stream: &TcpStream) -> Result<(), Stranger> {
    let owner = stream.peer_addr().ok().zip(stream.local_addr().ok()).and_then(|(peer, own)| peer::owner(peer, own));
    match owner {
        Some(uid) if trusted.has(uid) => Ok(()),
        Some(uid) => Err(Stranger::User(uid)),
        None => Err(Stranger::Unknown),
    }
}

fn unix(path: &Path, conf: &PcpConf, signals: &Signals) -> Result<Connection, TransportError> {
    let failed = |error| TransportError::new(format!("cannot listen on socket {}", path.display()), error);
    let trusted = Trusted::read(conf);
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !trusted.own(&fs::metadata(dir).map_err(failed)?) {
        return Err(TransportError::Endpoint(format!(
            "-u {}: accounts other than root and PCP_USER can write to directory {} and put a socket of their own in place of \
             the agent's; name a path in another directory, such as {}",
            path.display(),
            dir.display(),
            conf.path("PCP_RUN_DIR", "corebcc.socket").display()
        )));
    }
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => warn!("socket {} was there already, replacing it", path.display()),
        Ok(_) => {
            let reason = format!("{} exists and is not a socket; name another path with -u", path.display());
            return Err(TransportError::Endpoint(reason));
        }
        Err(_) => {}
    }
    let listener = bind(path, &trusted).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    info!("waiting for pmcd on socket {}", path.display());
    let stream = accept(&listener, signals, || listener.accept().map(|(stream, _)| Some(stream)))?;
    Connection::of_socket(stream.into())
}

/// Binds a socket at a path, replacing whatever was there, which only `PCP_USER` can open. It is created in a directory
/// that is closed to all others, and moved when its owner and mode are set: otherwise the owner of the parent directory
/// could replace it by a link before.
fn bind(path: &Path, trusted: &Trusted) -> io::Result<UnixListener> {
    SocketAddr::from_pathname(path)?; // the length of the path, which pmcd has to connect to
    let mut closed = path.as_os_str().to_owned();
    closed.push(format!(".{}", std::process::id()));
    let closed = PathBuf::from(closed);
    let _ = fs::remove_dir(&closed);
    DirBuilder::new().mode(0o700).create(&closed)?;
    let listener = bind_in(&closed, path, trusted);
    let _ = fs::remove_dir(&closed);
    listener
}

fn bind_in(closed: &Path, path: &Path, trusted: &Trusted) -> io::Result<UnixListener> {
    let dir = OpenOptions::new().read(true).custom_flags(O_DIRECTORY | O_NOFOLLOW).open(closed)?;
    let meta = dir.metadata()?;
    if meta.uid() != Uid::effective().as_raw() || meta.mode() & 0o077 != 0 {
        return Err(io::Error::other(format!("{} was replaced by another directory", closed.display())));
    }
    let inside = format!("/proc/self/fd/{}/socket", dir.as_raw_fd());
    let listener = UnixListener::bind(&inside)?;
    if let Some(user) = &trusted.user {
        // An agent that is not root cannot give it away, and need not if it runs under that account itself.
        let given = fchownat(&dir, "socket", Some(user.uid), trusted.group, AtFlags::AT_SYMLINK_NOFOLLOW);
        if let Err(errno) = given {
            warn!("cannot give socket {} to {}: {}", path.display(), user.name, errno.desc());
        }
    }
    let moved = fs::set_permissions(&inside, Permissions::from_mode(0o660))
        .and_then(|()| renameat(&dir, "socket", AT_FDCWD, path).map_err(io::Error::from));
    if moved.is_err() {
        let _ = fs::remove_file(&inside);
    }
    moved.map(|()| listener)
}

/// Waits for one connection that `take` does not refuse (`None`). The caller drops the listener right after.
fn accept<S>(
    listener: &impl AsFd,
    signals: &Signals,
    mut take: impl FnMut() -> io::Result<Option<S>>,
) -> Result<S, TransportError> {
    loop {
        let mut fds =
            [PollFd::new(listener.as_fd(), PollFlags::POLLIN), PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(TransportError::new("cannot wait for pmcd", errno)),
        }
        if let Some(signal) = signals.take_end() {
            return Err(TransportError::Signal(signal));
        }
        match take() {
            Ok(Some(stream)) => return Ok(stream),
            Ok(None) => {}
            // Also what Linux reports for a connection that broke before it was accepted (accept(2)).
            Err(error) if [io::ErrorKind::WouldBlock, io::ErrorKind::ConnectionAborted].contains(&error.kind()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(TransportError::new("cannot accept pmcd's connection", error)),
        }
    }
}

/// A reason why a text is not a port.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PortError {
    /// A number out of range.
    #[error("expected a port number from 1 to 65535, got `{0}`")]
    Number(String),
    /// A word that is not the name of a service.
    #[error("`{0}` is no port number and no TCP service in /etc/services")]
    Service(String),
}

/// Parses a port number, or the name of a TCP service in `services(5)`.
pub fn port(text: &str) -> Result<u16, PortError> {
    named_port(text, || fs::read_to_string("/etc/services").unwrap_or_default())
}

fn named_port(text: &str, services: impl Fn() -> String) -> Result<u16, PortError> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        let port = text.parse().ok().filter(|&port| port > 0);
        return port.ok_or_else(|| PortError::Number(text.into()));
    }
    let of_line = |line: &str| {
        let mut words = line.split('#').next()?.split_whitespace();
        let name = words.next()?;
        let port = words.next()?.strip_suffix("/tcp")?.parse().ok()?;
        (name == text || words.any(|alias| alias == text)).then_some(port)
    };
    services().lines().find_map(of_line).ok_or_else(|| PortError::Service(text.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
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
    fn a_directory_others_can_write_to_has_to_be_sticky() {
        let dir = tempfile::tempdir().unwrap();
        let trusted = Trusted { user: None, group: None };
        let mode = |mode| {
            fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
            trusted.own(&fs::metadata(dir.path()).unwrap())
        };
        assert_eq!([0o755, 0o775, 0o1777, 0o777, 0o757].map(mode), [true, true, true, false, false]);
        if !Uid::effective().is_root() {
            return println!("skipped: a_directory_others_can_write_to_has_to_be_sticky: root");
        }
        let owned = |user, group| {
            nix::unistd::chown(dir.path(), Some(Uid::from_raw(user)), Some(Gid::from_raw(group))).unwrap();
            [0o755, 0o775, 0o1777].map(mode)
        };
        assert_eq!(owned(65534, 0), [false, false, false]);
        assert_eq!(owned(0, 65534), [true, false, true]);
    }

    #[test]
    fn a_path_too_long_to_connect_to_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s".repeat(120));
        let error = bind(&path, &Trusted { user: None, group: None }).unwrap_err();
        assert!(error.to_string().contains("path must be shorter"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let endpoint = Endpoint::Unix(file.path().to_owned());
        let message = connect(&endpoint, &PcpConf::default(), &Signals::none()).unwrap_err().to_string();
        assert!(message.ends_with("exists and is not a socket; name another path with -u"), "{message}");
        assert!(file.path().exists());
    }

    /// The first peer is accepted as pmcd, and the listener is closed after it.
    fn serves_on(address: SocketAddr, endpoint: fn(u16) -> Endpoint) {
        let client = std::thread::spawn(move || retry(|| TcpStream::connect(address)));
        let connection = connect(&endpoint(address.port()), &PcpConf::default(), &Signals::none()).unwrap();
        client.join().unwrap().write_all(b"hello").unwrap();
        let mut text = String::new();
        File::from(connection.input).read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
        assert!(TcpStream::connect(address).is_err());
    }

    #[test]
    fn the_ipv4_loopback_address_can_be_listened_on() {
        let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).unwrap();
        serves_on(address, Endpoint::Inet);
    }

    #[test]
    fn the_ipv6_loopback_address_can_be_listened_on() {
        match TcpListener::bind("[::1]:0").and_then(|free| free.local_addr()) {
            Ok(address) => serves_on(address, Endpoint::Inet6),
            Err(error) => println!("skipped: the_ipv6_loopback_address_can_be_listened_on: ::1 ({error})"),
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
