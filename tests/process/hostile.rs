//! Attacks by accounts and processes: files that the account `pcp` may put into PCP's directories, and programs that any user may
//! run.

use crate::own::values;
use crate::peer::Peer;
use crate::reference::pmcd::{self as wire, decode};
use crate::support::script::copy_program;
use crate::support::{config, lacks, lacks_bpf, lacks_host_pids, wait_for, Home, Proc, BINARY, ONE};
use corebcc::pcp::{PmErr, IN_NULL};
use corebcc::pdu::Pdu;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{symlink, PermissionsExt};
use std::process::{Command, Stdio};

/// Options for fetches that need no BPF.
const NO_BPF: &[&str] = &["--btf", "/nonexistent"];
/// Files with the identifiers of bcc.agent.module, and with the number of starts.
const CACHE: &str = "config/pmda/149.301";
const STARTS: &str = "corebcc.starts";

/// Returns the identifiers of a metric's instances by their names.
fn identifiers(peer: &mut Peer, metric: &str) -> BTreeMap<String, u32> {
    let Pdu::PmnsIds { ids, .. } = decode(&peer.ask(&wire::lookup(metric))) else { panic!("no {metric}") };
    let reply = peer.ask(&wire::desc(ids[0]));
    let Pdu::Desc(desc) = decode(&reply) else { panic!("{metric}") };
    let reply = peer.ask(&wire::instance(desc.indom, IN_NULL, ""));
    let Pdu::Instance { entries, .. } = decode(&reply) else { panic!("{metric}") };
    entries.iter().map(|(id, name)| (String::from_utf8_lossy(name).into_owned(), *id)).collect()
}

/// Serves one fetch and ends without an error.
#[track_caller]
fn serves(home: &Home) {
    let mut peer = Peer::ready(home, NO_BPF);
    assert_eq!(values(&mut peer, "bcc.agent.module.up")["sysfork"], "0");
    assert_eq!(identifiers(&mut peer, "bcc.agent.module.state").len(), corebcc::modules::MODULES.len());
    assert!(peer.memory("VmHWM") < 200 << 10, "{} KiB", peer.memory("VmHWM"));
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn links_in_the_place_of_state_files_are_not_followed() {
    let home = Home::new(ONE);
    for file in [CACHE, STARTS] {
        let victim = format!("{}.victim", file.replace('/', "."));
        fs::write(home.path(&victim), "precious\n").unwrap();
        symlink(home.path(&victim), home.path(file)).unwrap();
        symlink(home.path(&victim), home.path(&format!("{file}.new"))).unwrap();
    }
    serves(&home);
    for file in [CACHE, STARTS] {
        assert_eq!(home.read(&format!("{}.victim", file.replace('/', "."))), "precious\n");
        assert!(fs::symlink_metadata(home.path(file)).unwrap().is_file(), "{file}");
        assert!(!home.path(&format!("{file}.new")).exists());
    }
    assert!(home.read(CACHE).contains(" sysfork\n") && home.read(STARTS).starts_with("0 0 ended "));
}

#[test]
fn pipes_in_the_place_of_state_files_hold_nothing_up() {
    let home = Home::new(ONE);
    for file in [CACHE, STARTS] {
        mkfifo(&home.path(file), Mode::S_IRWXU).unwrap();
        mkfifo(&home.path(&format!("{file}.new")), Mode::S_IRWXU).unwrap();
    }
    serves(&home);
    assert!(home.read(CACHE).contains(" sysfork\n") && home.read(STARTS).starts_with("0 0 ended "));
}

#[test]
fn state_files_of_any_size_and_content_are_survived() {
    let home = Home::new(ONE);
    for (file, text) in [
        (301, "2 0 2147483647\n0 9999999999 /tmp/e.so\n2147483647 9 x\n1 18446744073709551615 sysfork\n"),
        (302, ""),
        (303, "\0\0\0"),
    ] {
        fs::write(home.path(&format!("config/pmda/149.{file}")), text).unwrap();
    }
    File::create(home.path("config/pmda/149.304")).unwrap().set_len(1 << 30).unwrap();
    File::create(home.path(STARTS)).unwrap().set_len(1 << 30).unwrap();
    fs::create_dir(home.path("config/pmda/149.305")).unwrap();
    serves(&home);
    assert!(home.log().contains("149.304: larger than 16777216 bytes"), "{}", home.log());
    let mut peer = Peer::ready(&home, NO_BPF);
    let ids = identifiers(&mut peer, "bcc.agent.module.state");
    assert_eq!(ids["sysfork"], 1);
    assert!(ids.values().all(|id| *id < 100), "{ids:?}");
    assert_eq!(peer.close().0.code(), Some(0));
    let cache = home.read(CACHE);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    for line in cache.lines().skip(1) {
        let used: u64 = line.split(' ').nth(1).unwrap().parse().unwrap();
        assert!(used <= now, "{line}");
    }
}

/// The agent's end waits for the files that are being written.
#[test]
fn writing_identifiers_waits_for_no_disk() {
    if lacks(&["strace"]) {
        return;
    }
    let home = Home::new(ONE);
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-e", "trace=rename,fsync,fdatasync,sync_file_range", "-o"])
        .arg(home.path("trace.txt"))
        .arg(BINARY);
    home.keep(strace.arg("-c").arg(home.config()).arg("--notready").args(NO_BPF));
    let mut peer = Peer::ready_by(&home, &mut strace);
    identifiers(&mut peer, "bcc.agent.module.state");
    peer.close();
    let trace = home.read("trace.txt");
    assert!(trace.contains("149.301") && !trace.contains("sync"), "{trace}");
}

/// pmcd gives up an agent that is late with an answer, and starts another, while the first one continues.
#[test]
fn a_dropped_agent_leaves_the_files_of_its_successor() {
    let home = Home::new(ONE);
    let mut late = Peer::ready(&home, NO_BPF);
    let first = identifiers(&mut late, "bcc.agent.module.state");
    let written = || wait_for("names to be written", || home.path(CACHE).exists().then_some(()));
    written();
    late.agent.signal(Signal::SIGSTOP);
    late.send(&wire::lookup("bcc.agent.version"));
    (late.to, late.from) = (None, None);
    let mut successor = Peer::ready(&home, NO_BPF);
    assert_eq!(values(&mut successor, "bcc.agent.crashes")[""], "1");
    fs::remove_file(home.path(CACHE)).unwrap();
    identifiers(&mut successor, "bcc.agent.module.state");
    written();
    // Whatever is there now is the successor's.
    fs::write(home.path(CACHE), "2 0 2147483647\n77 1000 of_the_successor\n").unwrap();
    let starts = home.read(STARTS);
    assert!(starts.starts_with("1 1 running"), "{starts}");
    late.agent.signal(Signal::SIGCONT);
    assert_eq!(late.agent.end().code(), Some(1), "{}", home.log());
    assert_eq!(home.read(STARTS), starts);
    assert!(home.read(CACHE).contains("77 1000 of_the_successor"), "{}", home.read(CACHE));
    assert_eq!(successor.close().0.code(), Some(0));
    assert!(home.read(STARTS).starts_with("1 1 ended "), "{}", home.read(STARTS));
    assert!(home.read(CACHE).contains(&format!("{} ", first["sysfork"])), "{}", home.read(CACHE));
}

#[test]
fn an_agent_that_was_dropped_did_not_end_in_order() {
    let home = Home::new(ONE);
    let mut late = Peer::ready(&home, NO_BPF);
    late.agent.signal(Signal::SIGSTOP);
    late.send(&wire::lookup("bcc.agent.version"));
    (late.to, late.from) = (None, None);
    late.agent.signal(Signal::SIGCONT);
    assert_eq!(late.agent.end().code(), Some(1), "{}", home.log());
    let mut successor = Peer::ready(&home, NO_BPF);
    assert_eq!(values(&mut successor, "bcc.agent.crashes")[""], "1");
    assert_eq!(successor.close().0.code(), Some(0));
}

/// Runs a program that does nothing under a name.
fn run_as(home: &Home, name: &str) {
    let path = home.path(name);
    copy_program("/bin/true", &path);
    Command::new(&path).status().unwrap();
    fs::remove_file(path).unwrap();
}

#[test]
fn names_with_newlines_and_brackets_take_nobodys_identifier() {
    if lacks_bpf() {
        return;
    }
    const COUNT: &str = "bcc.proc.exec.count";
    let home = Home::new(&config(&["exectop"]));
    let mut peer = Peer::ready(&home, &[]);
    for name in ["\n2147483647 9 x", "zork", "[ab] zork", "esc\x1b[2J"] {
        run_as(&home, name);
    }
    let before = identifiers(&mut peer, COUNT);
    let names = [r"\x0a2147483647\x209\x20x", "zork", r"[ab]\x20zork", r"esc\x1b[2J"];
    let ids = names.map(|name| before[name]);
    assert_eq!(peer.close().0.code(), Some(0));

    let mut peer = Peer::ready(&home, &[]);
    for name in ["[ab] zork", "zork", "esc\x1b[2J", "after_all", "\n2147483647 9 x"] {
        run_as(&home, name);
    }
    let after = identifiers(&mut peer, COUNT);
    assert_eq!(names.map(|name| after[name]), ids);
    assert!(after["after_all"] > *before.values().max().unwrap() && after.values().all(|id| *id < 10_000), "{after:?}");
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn refused_orders_do_not_fill_the_log() {
    const STRING: u32 = 6;
    let home = Home::new(ONE);
    let mut peer = Peer::ready(&home, NO_BPF);
    let Pdu::PmnsIds { ids, .. } = decode(&peer.ask(&wire::lookup("bcc.agent.control"))) else { panic!("no control") };
    let order = "\u{200b}".repeat(20_000);
    for order in [order.as_str(), "reload"] {
        for _ in 0..300 {
            let stored = peer.error(&wire::store_block(ids[0], IN_NULL, STRING, order.as_bytes()));
            assert_eq!(stored, PmErr::BADSTORE.0, "{}", home.log());
        }
    }
    let log = home.log();
    assert!(log.contains("expected start, stop or restart for a module") && log.contains("reload: "), "{log}");
    assert!(log.len() < 20_000, "{} bytes", log.len());
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn a_pipe_in_the_place_of_the_log_holds_nothing_up() {
    let home = Home::new(ONE);
    let log = home.path("pipe");
    mkfifo(&log, Mode::S_IRWXU).unwrap();
    let mut peer = Peer::ready(&home, &[NO_BPF, &["-l", log.to_str().unwrap()]].concat());
    assert_eq!(values(&mut peer, "bcc.agent.module.up")["sysfork"], "0");
    assert_eq!(peer.close().0.code(), Some(0));
    assert!(home.read("stderr.log").contains("cannot open log file"), "{}", home.read("stderr.log"));
}

#[test]
fn arguments_are_shown_or_hidden_in_values_and_in_the_log() {
    if lacks_bpf() || lacks_host_pids() {
        return;
    }
    const SECRET: &str = "--password=hunter2";
    for shown in [true, false] {
        let section = |module: &str, line: &str| corebcc::modules::find(module).unwrap().section(line);
        let home = Home::new(&format!(
            "[pmda]\nmodules = execsnoop,syscount\nprocess_refresh = 1\nshow_arguments = {shown}\n{}{}",
            section("execsnoop", "command = corebcc_victim"),
            section("syscount", "process = .*corebcc_victim.*")
        ));
        let mut peer = Peer::ready(&home, &[]);
        let script = home.path("corebcc_victim");
        fs::write(&script, "#!/bin/sh\nread end\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = Command::new(&script);
        command.args([SECRET, "\x1b[2J", &"0".repeat(3000)]).stdin(Stdio::piped());
        let victim = Proc(command.spawn().unwrap());
        let tracing = format!("Tracing PID {}: ", victim.pid());
        home.wait_for_log(&tracing);
        let log = home.log();
        let line = log.lines().find(|line| line.contains(&tracing)).unwrap();
        let args = values(&mut peer, "bcc.proc.exec.args").remove("0").unwrap();
        let program = script.display();
        if shown {
            assert!(line.contains(SECRET) && line.ends_with("000....") && line.len() < 400, "{line}");
            assert!(args.starts_with(&format!("{program} {SECRET} \\x1b[2J 000")), "{args}");
        } else {
            assert!(line.ends_with(": /bin/sh."), "{line}");
            assert_eq!(args, format!("{program} ..."));
            assert!(!log.contains("hunter2"), "{log}");
        }
        drop(victim);
        assert_eq!(peer.close().0.code(), Some(0));
    }
}
