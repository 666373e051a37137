//! tty on pseudo-terminals that the test reads and writes itself.

use crate::common::Proc;
use crate::support::{alone, names, number, run, Agent};
use corebcc::kit::SeriesLabel;
use nix::fcntl::{fcntl, FcntlArg, OFlag};
use nix::pty::openpty;
use nix::sys::termios::{cfmakeraw, tcgetattr, tcsetattr, SetArg};
use std::fs::{read_link, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Returns the name of an open terminal below /dev.
fn name(terminal: &File) -> String {
    let path = read_link(format!("/proc/self/fd/{}", terminal.as_raw_fd())).unwrap();
    path.strip_prefix("/dev").unwrap_or(&path).to_string_lossy().into_owned()
}

/// Makes a terminal pass on each byte as it is.
fn raw(terminal: &File) {
    let mut attributes = tcgetattr(terminal).unwrap();
    cfmakeraw(&mut attributes);
    tcsetattr(terminal, SetArg::TCSANOW, &attributes).unwrap();
}

/// Reads and writes of a terminal with their bytes, and its labels.
type Of = ([u64; 4], Vec<(&'static str, SeriesLabel)>);

fn of(agent: &mut Agent, terminal: &str) -> Of {
    agent.tick();
    let table = agent.table();
    let rows = names(&table);
    let row = rows.iter().position(|name| name == terminal).unwrap_or_else(|| panic!("{terminal}: {rows:?}"));
    ([0, 1, 2, 3].map(|column| number(&table, row, column)), table.labels(row).cloned().unwrap_or_default())
}

/// Five writes of 10 bytes and three reads of 20 in all, and one that finds nothing.
fn converse(master: &mut File, terminal: &mut File) {
    for _ in 0..5 {
        terminal.write_all(b"0123456789").unwrap();
    }
    master.write_all(&[b'k'; 20]).unwrap();
    let mut moved = 0;
    for _ in 0..3 {
        moved += terminal.read(&mut [0; 8]).unwrap();
    }
    assert_eq!(moved, 20);
    fcntl(&*terminal, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    assert!(terminal.read(&mut [0; 8]).is_err());
    let mut moved = 0;
    while moved < 50 {
        moved += master.read(&mut [0; 100]).unwrap();
    }
}

#[test]
fn bytes_of_a_terminal_are_those_read_from_it_and_written_to_it() {
    let _alone = alone();
    let Some(mut agent) = Agent::where_possible("fexit or kprobes", "tty", "") else { return };
    let pair = openpty(None, None).unwrap();
    let (mut master, mut terminal) = (File::from(pair.master), File::from(pair.slave));
    raw(&terminal);
    converse(&mut master, &mut terminal);
    let tty = name(&terminal);
    let label = |text: &str| SeriesLabel::Text(text.into());
    assert_eq!(of(&mut agent, &tty), ([3, 20, 5, 50], vec![("tty", label(&tty))]));

    // A session on the same terminal: its leader writes 3 times 7 bytes.
    let mut command = Command::new("sh");
    command.args(["-c", "dd if=/dev/zero bs=7 count=3 2>/dev/null; read line; exit 3"]);
    let output = terminal.try_clone().unwrap();
    command.stdin(terminal.try_clone().unwrap()).stdout(output).stderr(Stdio::null());
    // SAFETY: only system calls are made.
    unsafe {
        command.pre_exec(|| {
            nix::unistd::setsid()?;
            match nix::libc::ioctl(0, nix::libc::TIOCSCTTY, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    fcntl(&terminal, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    let mut leader = Proc(command.spawn().unwrap());
    let mut moved = 0;
    while moved < 21 {
        moved += master.read(&mut [0; 100]).unwrap();
    }
    let (counts, labels) = of(&mut agent, &tty);
    assert_eq!(counts, [3, 20, 8, 71]);
    let session = SeriesLabel::Number(leader.0.id().into());
    // The virtual machines have no accounts.
    let root = if Path::new("/etc/passwd").exists() { "root" } else { "0" };
    assert_eq!(labels, [("tty", label(&tty)), ("session", session), ("user", label(root))]);
    master.write_all(b"\n").unwrap();
    assert_eq!(leader.0.wait().unwrap().code(), Some(3));
    assert_eq!(agent.warnings(), Vec::<String>::new());
}

#[test]
fn terminals_of_another_devpts_have_names_of_their_own() {
    let _alone = alone();
    let Some(mut agent) = Agent::where_possible("fexit or kprobes", "tty", "") else { return };
    let place = tempfile::tempdir().unwrap();
    let at = place.path().to_str().unwrap();
    run("mount", &["-t", "devpts", "-o", "newinstance,ptmxmode=0666", "devpts", at]);
    let open = |name: &str| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(nix::libc::O_NOCTTY)
            .open(place.path().join(name))
            .unwrap()
    };
    let mut master = open("ptmx");
    // SAFETY: the number is read, and nothing else.
    assert_eq!(unsafe { nix::libc::ioctl(master.as_raw_fd(), nix::libc::TIOCSPTLCK, &0i32) }, 0);
    let mut terminal = open("0");
    raw(&terminal);
    converse(&mut master, &mut terminal);
    let device = terminal.metadata().unwrap().dev();
    let (counts, _) = of(&mut agent, &format!("pts/0@{}", nix::sys::stat::minor(device)));
    drop((master, terminal));
    run("umount", &[at]);
    assert_eq!(counts, [3, 20, 5, 50]);
}
