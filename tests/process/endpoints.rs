//! Statement 69: the same conversation over a pipe, both loopback addresses and a Unix socket.

use crate::peer::Peer;
use crate::reference::pmcd::{self as wire, decode, names};
use crate::support::{rows::rows, skip, wait_for, Home, Proc, ONE};
use corebcc::pdu::Pdu;
use nix::sys::signal::Signal;
use nix::unistd::{chown, geteuid, Gid, Uid};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::{fs, time::Duration};

#[track_caller]
fn converse(mut peer: Peer) {
    peer.loads();
    let row = rows().find(|row| row.module == "sysfork").unwrap();
    assert_eq!(decode(&peer.ask(&wire::desc(row.pmid()))), Pdu::Desc(row.desc()));
    assert_eq!(names(&peer.ask(&wire::traverse("bcc.proc"))), [(None, row.name.to_owned())]);
    assert_eq!(wire::result(&peer.ask(&wire::fetch(&vec![row.pmid(); 5000]))).len(), 5000);
    peer.from = None;
    peer.to = None;
    assert_eq!(peer.agent.end().code(), Some(0));
}

fn agent(home: &Home, args: &[&str]) -> Proc {
    let mut command = home.agent(&[args, &["--notready"]].concat());
    Proc(command.stdout(home.create("stdout")).stderr(home.create("stderr.log")).spawn().unwrap())
}

/// Returns a port that was free a moment ago.
fn port(listener: std::io::Result<TcpListener>) -> Option<u16> {
    listener.ok().map(|listener| listener.local_addr().unwrap().port())
}

#[test]
fn c69_it_works_over_a_pipe_asked_for_or_not() {
    for args in [&["--notready"][..], &["--notready", "-p"]] {
        let home = Home::new(ONE);
        converse(Peer::start(&home, args));
    }
}

#[test]
fn c69_it_works_over_ipv4_loopback_and_only_there() {
    let home = Home::new(ONE);
    let port = port(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let agent = agent(&home, &["-i", &port.to_string()]);
    let stream = wait_for("the listener", || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok());
    assert!(TcpStream::connect((Ipv6Addr::LOCALHOST, port)).is_err());
    let peer = Peer::over(agent, stream.into());
    // One connection: the listener is closed once there is one.
    assert!(peer.readable(Duration::from_secs(5)));
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err(), "a second connection");
    converse(peer);
    assert_eq!(home.read("stdout"), "");
}

#[test]
fn c69_it_works_over_ipv6_loopback() {
    let Some(port) = port(TcpListener::bind((Ipv6Addr::LOCALHOST, 0))) else {
        return skip("an IPv6 loopback address");
    };
    let home = Home::new(ONE);
    let agent = agent(&home, &["-6", &port.to_string()]);
    let stream = wait_for("the listener", || TcpStream::connect((Ipv6Addr::LOCALHOST, port)).ok());
    converse(Peer::over(agent, stream.into()));
    assert_eq!(home.read("stdout"), "");
}

#[test]
fn c69_the_unix_socket_has_mode_0660_and_replaces_an_old_one() {
    let home = Home::new(ONE);
    let path = home.path("agent.sock");
    drop(UnixListener::bind(&path).unwrap());
    let agent = agent(&home, &["-u", path.to_str().unwrap()]);
    home.wait_for_log("waiting for pmcd on socket");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    assert!(home.log().contains("was there already"), "{}", home.log());
    converse(Peer::over(agent, UnixStream::connect(&path).unwrap().into()));
    assert_eq!(home.read("stdout"), "");
}

/// dbpmda leaves a TCP socket in this state, as does a pmcd that is killed.
#[test]
fn a_connection_that_is_reset_between_pdus_has_ended_orderly() {
    let home = Home::new(ONE);
    let port = port(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let agent = agent(&home, &["-i", &port.to_string()]);
    let stream = wait_for("the listener", || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok());
    let at_once = nix::libc::linger { l_onoff: 1, l_linger: 0 };
    nix::sys::socket::setsockopt(&stream, nix::sys::socket::sockopt::Linger, &at_once).unwrap();
    let mut peer = Peer::over(agent, stream.into());
    peer.loads();
    peer.unanswered();
    (peer.to, peer.from) = (None, None);
    assert_eq!(peer.agent.end().code(), Some(0), "{}", home.log());
    assert!(home.log().contains("pmcd closed the connection"), "{}", home.log());
}

#[test]
fn a_file_that_is_no_socket_is_not_replaced() {
    let home = Home::new(ONE);
    let path = home.path("agent.sock");
    fs::write(&path, "of somebody").unwrap();
    let output = home.run(&["-u", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(home.log().contains("exists and is not a socket; name another path with -u"), "{}", home.log());
    assert_eq!(home.read("agent.sock"), "of somebody");
}

#[test]
fn a_port_in_use_is_said_with_its_number() {
    let home = Home::new(ONE);
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let output = home.run(&["-i", &port.to_string()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(home.log().contains(&format!("cannot listen on loopback port {port}: ")), "{}", home.log());
}

#[test]
fn a_signal_ends_an_agent_that_pmcd_never_came_to() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let home = Home::new(ONE);
        let path = home.path("agent.sock");
        let mut agent = agent(&home, &["-u", path.to_str().unwrap()]);
        home.wait_for_log("waiting for pmcd on socket");
        agent.signal(Signal::SIGHUP);
        agent.signal(signal);
        assert_eq!(agent.end().code(), Some(0));
        assert!(home.log().contains("before pmcd came"), "{}", home.log());
    }
}

/// An account that is neither root nor pmcd's.
const NOBODY: u32 = 65534;

#[test]
fn a_port_is_for_root_and_pmcds_account_only() {
    if !geteuid().is_root() {
        return skip("root, to be somebody else");
    }
    let home = Home::new(ONE);
    let port = port(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let agent = agent(&home, &["-i", &port.to_string()]);
    home.wait_for_log("waiting for pmcd on port");
    // What an agent sends first is its greeting: a stranger gets the end of file.
    let stranger = |_| {
        let mut bash = Command::new("timeout");
        bash.args(["10", "bash", "-c"])
            .arg(format!("exec 3<>/dev/tcp/127.0.0.1/{port}; wc -c <&3"))
            .uid(NOBODY)
            .gid(NOBODY);
        bash.current_dir("/").stderr(Stdio::inherit()).output().unwrap()
    };
    for output in [1, 2].map(stranger) {
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "0", "{}", home.log());
    }
    let refusals = home.log().matches("refused a connection of user 65534, who is neither root nor PCP_USER").count();
    assert_eq!(refusals, 1, "{}", home.log());
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    converse(Peer::over(agent, stream.into()));
}

#[test]
fn a_socket_in_a_directory_of_everybodys_is_refused() {
    let home = Home::new(ONE);
    let dir = home.path("everybodys");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    let mut agent = agent(&home, &["-u", dir.join("agent.sock").to_str().unwrap()]);
    assert_eq!(agent.end().code(), Some(1));
    for part in
        ["accounts other than root and PCP_USER can write to directory", "name a path in another directory, such as"]
    {
        assert!(home.log().contains(part), "{}", home.log());
    }
}

/// pmcd's account, which owns its run directory, replaces the socket by a link to a file of root as soon as it exists.
#[test]
fn the_owner_of_the_directory_gets_no_other_file_by_a_link() {
    if !geteuid().is_root() || crate::support::lacks(&["python3"]) {
        return skip("root, to be somebody else");
    }
    let home = Home::new(ONE);
    let (dir, victim) = (home.path("run"), home.path("victim"));
    fs::create_dir(&dir).unwrap();
    chown(&dir, Some(Uid::from_raw(NOBODY)), Some(Gid::from_raw(NOBODY))).unwrap();
    fs::set_permissions(home.path("."), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(&victim, "precious").unwrap();
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).unwrap();
    let socket = dir.join("agent.sock");
    let source = format!(
        "import os, stat\n\
         while True:\n\
         \x20try:\n\
         \x20 if stat.S_ISSOCK(os.lstat('{0}').st_mode): os.rename('{0}', '{0}.was'); os.symlink('{1}', '{0}')\n\
         \x20except OSError: pass\n",
        socket.display(),
        victim.display()
    );
    let mut python = Command::new("python3");
    python.args(["-c", &source]).uid(NOBODY).gid(NOBODY).current_dir("/");
    let _racer = Proc(python.spawn().unwrap());
    for _ in 0..20 {
        let mut command = home.agent(&["-u", socket.to_str().unwrap()]);
        command.env("PCP_USER", "nobody").env("PCP_GROUP", "nogroup").stderr(home.create("stderr.log"));
        let mut agent = Proc(command.spawn().unwrap());
        home.wait_for_log("waiting for pmcd on socket");
        wait_for("the link", || fs::symlink_metadata(&socket).is_ok_and(|meta| meta.is_symlink()).then_some(()));
        agent.signal(Signal::SIGTERM);
        assert_eq!(agent.end().code(), Some(0));
        let meta = fs::metadata(&victim).unwrap();
        assert_eq!((meta.uid(), meta.mode() & 0o777), (0, 0o600));
        let made = fs::metadata(dir.join("agent.sock.was")).unwrap();
        assert_eq!((made.uid(), made.mode() & 0o777), (NOBODY, 0o660));
        fs::remove_file(&socket).unwrap();
        fs::remove_file(home.path("corebcc.log")).unwrap();
    }
}
