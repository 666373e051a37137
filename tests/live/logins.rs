//! logins against sessions that a program begins.

use crate::common::{lacks, skip, wait_for, Proc};
use crate::support::{alone, names, number, Agent, Script};

use corebcc::modules::find;
use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

const PROGRAMS: &str = include_str!("../programs/logins.py");

const PID: usize = 0;
const UID: usize = 1;
const USER: usize = 2;
const LOGINUID: usize = 3;
const SESSION: usize = 4;
const TTY: usize = 5;
const COMM: usize = 6;
const PARENT: usize = 7;
const REMOTE: usize = 8;

/// Returns the sessions of a user: on a terminal, and others.
fn of(agent: &mut Agent, user: &str) -> [u64; 2] {
    agent.tick();
    let table = agent.other(find("logins").unwrap().tables[1]);
    let row = names(&table).iter().position(|name| name == user);
    row.map_or([0; 2], |row| [0, 1].map(|column| number(&table, row, column)))
}

#[test]
fn sessions_are_counted_once_with_who_began_them_and_where() {
    let _alone = alone();
    let mut agent = Agent::new("logins", "process_count = 100");
    let mut script = Script::part(PROGRAMS, "sessions");
    assert_eq!(script.line(), "ready");
    script.go();
    if script.line() != "allowed" {
        return skip("sessions of audit (CONFIG_AUDIT and CAP_AUDIT_CONTROL)");
    }
    script.go();
    assert_eq!((script.numbers(), of(&mut agent, "root")), (vec![5], [0, 5]));
    let rows = agent.rows();
    assert_eq!(rows.len(), 5, "the first program of a session, and no other");
    for (row, before) in rows.iter().zip(&rows[1..]) {
        assert_eq!(row.number(SESSION), before.number(SESSION) + 1);
    }
    for row in &rows {
        assert_eq!([UID, LOGINUID].map(|column| row.number(column)), [0, 65534], "{row:?}");
        let texts = [USER, TTY, COMM, PARENT, REMOTE].map(|column| row.text(column));
        assert_eq!(texts, ["root", "", "sh", "python3", "192.0.2.7"], "{row:?}");
    }
    script.go();
    let terminals: Vec<String> = script.line().split(' ').rev().map(String::from).collect();
    let rows = agent.rows();
    assert_eq!(rows[..3].iter().map(|row| row.text(TTY)).collect::<Vec<_>>(), terminals);
    assert_eq!(of(&mut agent, "root"), [3, 5]);
    script.go();
    let terminal = script.line();
    let row = &agent.rows()[0];
    assert_eq!((row.text(TTY), row.number(LOGINUID), row.text(REMOTE)), (terminal, 65534, String::new()));
    assert_eq!(of(&mut agent, "root"), [4, 5], "both at once are one");
    script.go();
    assert_eq!(script.line(), "done");
    assert_eq!((of(&mut agent, "root"), of(&mut agent, "nobody")), ([4, 5], [0, 1]));
    script.go();
    assert_eq!(script.line(), "script");
    assert_eq!((of(&mut agent, "root"), agent.rows()[0].text(PARENT)), ([5, 5], "script".into()));
    script.go();
    let parent = script.numbers()[0];
    assert_eq!(script.line(), "init");
    assert_eq!(of(&mut agent, "root"), [if parent == 1 { 5 } else { 6 }, 5], "by process {parent}");
    assert!(agent.rows().iter().all(|row| row.number(PID) > 1));
    script.end();
}

#[test]
fn a_user_with_many_sessions_does_not_hide_others() {
    let _alone = alone();
    let mut agent = Agent::new("logins", "process_count = 8");
    let mut script = Script::part(PROGRAMS, "flood");
    assert_eq!(script.line(), "ready");
    script.go();
    let mut line = String::new();
    if std::io::BufRead::read_line(&mut script.output, &mut line).unwrap() == 0 {
        return skip("sessions of audit (CONFIG_AUDIT and CAP_AUDIT_CONTROL)");
    }
    let users: Vec<u64> = agent.rows().iter().map(|row| row.number(UID)).collect();
    println!("{users:?}");
    assert!(users.contains(&0), "the one of root");
    assert_eq!((of(&mut agent, "root"), of(&mut agent, "nobody")), ([0, 1], [0, 300]));
}

/// Runs a shell script where the records of sessions, the last logins and /run are files of this folder, and nothing of the machine's.
fn apart(folder: &Path, script: &str) -> Command {
    const APART: &str = ": >> wtmp && : >> lastlog && mkdir -p run && mount --bind wtmp /var/log/wtmp &&
        { [ ! -e /var/log/lastlog ] || mount --bind lastlog /var/log/lastlog; } && mount --bind run /run";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &format!("{APART} && {script}")]);
    command.current_dir(folder).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Returns the terminal and the user of each session in the file `wtmp` (utmp(5)).
fn of_wtmp(folder: &Path) -> Vec<[String; 2]> {
    const RECORD: usize = 384;
    const USER_PROCESS: u8 = 7;
    let records = fs::read(folder.join("wtmp")).unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap()).into_owned();
    let sessions = records.chunks_exact(RECORD).filter(|record| record[0] == USER_PROCESS);
    sessions.map(|record| [text(&record[8..40]), text(&record[44..76])]).collect()
}

#[test]
fn sessions_of_login_are_those_of_wtmp() {
    let _alone = alone();
    if lacks(&["login", "script", "unshare"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut agent = Agent::new("logins", "process_count = 100");
    let session = || {
        let mut login = apart(folder.path(), "script -qec 'login -f root' /dev/null");
        let mut login = login.stdin(Stdio::piped()).spawn().unwrap();
        login.stdin.take().unwrap().write_all(b"exit\n").unwrap();
        login.wait().unwrap();
    };
    (0..3).for_each(|_| session());
    let records = of_wtmp(folder.path());
    if records.is_empty() {
        return skip("login(1) with sessions of audit (CONFIG_AUDIT and CAP_AUDIT_CONTROL)");
    }
    agent.tick();
    let rows = agent.rows();
    let rows: Vec<[String; 2]> = rows
        .iter()
        .rev()
        .filter(|row| row.text(PARENT) == "login")
        .map(|row| [TTY, USER].map(|c| row.text(c)))
        .collect();
    assert_eq!((records.len(), rows), (3, records));
}

/// Sessions on a terminal are those of wtmp; a command without one is a session that wtmp does not have.
#[test]
fn sessions_of_ssh_are_those_of_wtmp() {
    let _alone = alone();
    if lacks(&["/usr/sbin/sshd", "ssh", "ssh-keygen", "unshare"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key).status().unwrap();
    assert!(made.success());
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let options = format!(
        "ListenAddress 127.0.0.1:{port}\nHostKey {0}\nAuthorizedKeysFile {0}.pub\nUsePAM yes\nPermitRootLogin yes\nStrictModes no\nPidFile none\n",
        key.display()
    );
    fs::write(folder.path().join("options"), options).unwrap();
    let _server = Proc(apart(folder.path(), "mkdir -p run/sshd && exec /usr/sbin/sshd -D -f options").spawn().unwrap());
    wait_for("sshd", || TcpStream::connect(("127.0.0.1", port)).ok());
    let mut agent = Agent::new("logins", "process_count = 100");
    let session = |with: &str| {
        let mut ssh = Command::new("ssh");
        ssh.args(["-F", "none", with, "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-i"]);
        ssh.arg(&key).args(["-p", &port.to_string(), "root@127.0.0.1", "exit 0"]);
        let ended = ssh.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        assert!(ended.success(), "{with}: {ended}");
    };
    ["-tt", "-T", "-tt", "-T", "-tt"].into_iter().for_each(session);
    agent.tick();
    let rows = agent.rows();
    rows.iter().for_each(|row| println!("{row:?}"));
    let of_server: Vec<_> = rows.iter().rev().filter(|row| row.text(PARENT).starts_with("sshd")).collect();
    let on_terminals = of_server.iter().filter(|row| !row.text(TTY).is_empty());
    let on_terminals: Vec<[String; 2]> = on_terminals.map(|row| [TTY, USER].map(|column| row.text(column))).collect();
    assert_eq!((on_terminals.len(), of_server.len()), (3, 5), "{of_server:?}");
    assert_eq!(on_terminals, of_wtmp(folder.path()));
}
