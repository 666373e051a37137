//! Hosts without kernel types or privileges, and ends that the agent cannot prepare for.

use crate::peer::Peer;
use crate::reference::pmcd::{self as wire};
use crate::support::{
    config, lacks, lacks_bpf, programs_of, rows::rows, skip, still_loaded, told, wait_for, wait_seconds, Home, Proc,
    ALL, BINARY, ONE,
};
use corebcc::pcp::{Pmid, IN_NULL};
use nix::sys::signal::Signal;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// The error PM_ERR_APPVERSION.
const APPVERSION: i32 = -12350;

/// Checks that the agent serves, that each metric answers that it is not available, and that the log has the reason for each module.
#[track_caller]
fn without_modules(mut peer: Peer, log: impl Fn() -> String, reason: &str) {
    let pmids: Vec<Pmid> = rows().map(|row| row.pmid()).collect();
    for set in wire::result(&peer.ask(&wire::fetch(&pmids))) {
        assert_eq!((set.numval, set.values.len()), (APPVERSION, 0), "{}", set.pmid);
    }
    for row in rows() {
        peer.ask(&wire::desc(row.pmid()));
        peer.ask(&wire::label(row.desc().indom.0, 32));
    }
    peer.ask(&wire::traverse("bcc"));
    assert!(peer.pending().is_empty());
    let told = format!("Error: biolatency, sysfork, tcplife, runqlat, exectop, netproc: not loaded: {reason}");
    assert_eq!(log().matches(&told).count(), 1, "{}", log());
    assert_eq!(log().matches(" Error: ").count(), 1, "the reason is told once: {}", log());
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn without_btf_the_metrics_say_so_and_the_agent_serves_on() {
    let home = Home::new(ALL);
    let peer = Peer::ready(&home, &["--btf", "/nonexistent"]);
    without_modules(peer, || home.log(), "/nonexistent: No such file or directory");
    assert!(home.log().contains("give --btf a file with the BTF of the running kernel"), "{}", home.log());
}

#[test]
fn with_garbage_for_btf_metrics_say_so_and_the_agent_serves() {
    if lacks_bpf() {
        return;
    }
    let home = Home::new(ALL);
    let garbage = home.path("garbage");
    for bytes in [&b""[..], b"garbage", &[0x9f, 0xeb, 1, 0, 24, 0, 0, 0, 0xff, 0xff, 0xff, 0xff], &[0; 4096]] {
        fs::write(&garbage, bytes).unwrap();
        let peer = Peer::ready(&home, &["--btf", garbage.to_str().unwrap()]);
        without_modules(peer, || home.log(), &format!("{}: ", garbage.display()));
    }
}

#[test]
fn a_module_that_fails_ends_the_agent_where_that_is_asked_for() {
    let home = Home::new(&ONE.replace("False", "True"));
    let mut peer = Peer::start(&home, &["--notready", "--btf", "/nonexistent"]);
    peer.greet();
    let (status, rest) = peer.rest();
    assert_eq!((status.code(), rest), (Some(1), Vec::new()), "no READY");
    let log = home.log();
    assert!(log.contains("Error: the agent ends, since sysfork could not be loaded (see above)"), "{log}");
    assert!(
        log.contains(&format!("set `module_failure_fatal = False` in [pmda] of {}", home.config().display())),
        "{log}"
    );
    assert!(!log.contains("ready: "), "{log}");
}

/// Copies the binary to a place where everybody may run it, and returns the command that runs it as nobody.
pub fn as_nobody(home: &Home) -> Command {
    let binary = home.path("pmdacorebcc");
    // By another process: a file that a thread of this one has open for writing cannot be run, and a child that another thread begins
    // meanwhile has it open, too, for a moment.
    assert!(Command::new("cp").arg(BINARY).arg(&binary).status().unwrap().success());
    for path in [home.path(""), binary.clone()] {
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]).arg(binary);
    home.keep(&mut command).arg("-c").arg(home.config());
    command
}

#[test]
fn without_privilege_the_metrics_say_so_and_the_agent_serves_on() {
    if lacks_bpf() || lacks(&["setpriv"]) {
        return;
    }
    let home = Home::new(ALL);
    let mut command = as_nobody(&home);
    let peer = Peer::ready_by(&home, command.args(["-l", "-", "--notready"]));
    without_modules(peer, || home.read("stderr.log"), "loading BPF is not permitted");
    let log = home.read("stderr.log");
    assert_eq!(log.matches("run as root or with CAP_BPF and CAP_PERFMON").count(), 1, "what to do: {log}");
    assert!(!log.contains("the kernel said") && !log.contains("RLIMIT_MEMLOCK"), "no guess of libbpf's: {log}");

    let output = as_nobody(&home).args(["show", "proc.io"]).output().unwrap();
    let said = told(&output);
    assert_eq!((output.status.code(), said.matches("is not permitted").count()), (Some(1), 1), "{said}");
    assert!(!said.contains("RLIMIT_MEMLOCK"), "{said}");
}

#[test]
fn unprivileged_checks_and_agents_that_need_all_modules_fail() {
    if lacks_bpf() || lacks(&["setpriv"]) {
        return;
    }
    let home = Home::new(&ONE.replace("False", "True"));
    let output = as_nobody(&home).arg("--check").output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    assert!(told(&output).contains("sysfork: not loaded: loading BPF is not permitted"), "{}", told(&output));

    let mut command = as_nobody(&home);
    let mut peer = Peer::of(&home, command.args(["-l", "-"]));
    peer.greet();
    let (status, rest) = peer.rest();
    assert_eq!((status.code(), rest), (Some(1), Vec::new()), "{}", home.read("stderr.log"));
}

/// The limits range from too few descriptors for a message, over enough for the connection, to enough for everything.
#[test]
fn with_few_descriptors_it_says_why_it_ends_or_serves() {
    if lacks_bpf() || lacks(&["prlimit"]) {
        return;
    }
    let (mut ended, mut served) = (0, 0);
    for most in [5, 6, 7, 8, 10, 14, 20, 28, 36, 64] {
        let home = Home::new(ALL);
        let mut command = Command::new("prlimit");
        command.args([format!("--nofile={most}"), BINARY.into()]).arg("-c").arg(home.config());
        let mut peer = Peer::of(&home, home.keep(command.args(["-l", "-", "--notready"])));
        let said = || home.read("stderr.log");
        let end = wait_for("an end or readiness", || match peer.agent.0.try_wait().unwrap() {
            Some(status) => Some(Some(status)),
            None => said().contains("ready: ").then_some(None),
        });
        if let Some(status) = end {
            ended += 1;
            assert_eq!(status.code(), Some(1), "{most}: {}", said());
            assert!(said().contains("Too many open files"), "{most}: {}", said());
            continue;
        }
        served += 1;
        peer.greet();
        peer.read();
        let pmids: Vec<Pmid> = rows().map(|row| row.pmid()).collect();
        for set in wire::result(&peer.ask(&wire::fetch(&pmids))) {
            assert!(set.numval >= 0 || set.numval == APPVERSION && said().contains(": not loaded: "), "{}", said());
        }
        assert_eq!(peer.close().0.code(), Some(0), "{most}: {}", said());
    }
    assert!(ended > 0 && served > 0, "{ended} ended, {served} served");
}

/// The files of instance numbers may contain text that no agent has written.
#[test]
fn garbage_in_the_files_of_instance_numbers_is_passed_over() {
    if lacks_bpf() {
        return;
    }
    for bytes in [&b""[..], b"\xff\xfe\0\n\n", b"2 0 2147483647\n-1 x y\n99999999999 1 a\n5 1 true\n5 1 false\n5 1\n\n"]
    {
        let home = Home::new(ALL);
        fs::write(home.path("config/pmda/149.13"), bytes).unwrap();
        let mut peer = Peer::ready(&home, &[]);
        assert!(Command::new("true").status().unwrap().success());
        let set = &wire::result(&peer.ask(&wire::fetch(&[Pmid::new(149, 13, 0)])))[0];
        let mut numbers = set.insts();
        numbers.sort_unstable();
        numbers.dedup();
        assert!(set.numval > 0 && numbers.len() == set.values.len(), "numbers of their own: {:?}", set.insts());
        assert_eq!(peer.close().0.code(), Some(0));
    }
    let home = Home::new(ALL);
    fs::remove_dir_all(home.path("config")).unwrap();
    fs::write(home.path("config"), "a file").unwrap();
    let mut peer = Peer::ready(&home, &[]);
    assert!(wire::result(&peer.ask(&wire::fetch(&[Pmid::new(149, 13, 0)])))[0].numval >= 0);
    assert_eq!(peer.close().0.code(), Some(0));
}

/// All programs of an agent are detached when it ends, in whatever way.
#[test]
fn its_programs_are_detached_however_it_ends() {
    if lacks_bpf() {
        return;
    }
    for signal in [None, Some(Signal::SIGTERM), Some(Signal::SIGINT), Some(Signal::SIGKILL)] {
        let home = Home::new(ALL);
        let mut peer = Peer::ready(&home, &[]);
        let programs = programs_of(peer.agent.pid());
        assert!(programs.len() >= 6, "{programs:?}");
        assert_eq!(still_loaded(&programs).len(), programs.len());
        match signal {
            Some(signal) => peer.agent.signal(signal),
            None => peer.to = None,
        }
        let (status, rest) = peer.rest();
        let expected = if signal == Some(Signal::SIGKILL) { None } else { Some(0) };
        assert_eq!((status.code(), rest), (expected, Vec::new()), "{signal:?}");
        wait_for("the programs to go", || still_loaded(&programs).is_empty().then_some(()));
        if signal != Some(Signal::SIGKILL) {
            let end = signal
                .map_or("pmcd closed the connection".into(), |signal| format!("ended by signal {}", signal as i32));
            assert!(home.log().contains(&format!(" Info: {end}\n\nLog finished ")), "{end}: {}", home.log());
        }
    }
}

/// A run that nobody stops continues in the kernel as long as somebody holds its events.
#[test]
fn sampling_that_nobody_stopped_ends_with_the_agent() {
    if lacks_bpf() {
        return;
    }
    let profile = Pmid::new(149, 14, 0);
    for signal in [None, Some(Signal::SIGTERM), Some(Signal::SIGKILL)] {
        let home = Home::new(&config(&["profile"]));
        let mut peer = Peer::ready(&home, &[]);
        assert_eq!(peer.error(&wire::store_block(profile, IN_NULL, 6, b"start\0")), 0);
        // On a busy machine a fetch can be told to come again, for longer where the processor is emulated.
        let value =
            wait_seconds(60, "a value", || match &wire::result(&peer.ask(&wire::fetch(&[profile])))[0].values[..] {
                [(_, wire::Wire::Block { bytes, .. })] => Some(String::from_utf8_lossy(bytes).into_owned()),
                _ => None,
            });
        if !value.contains("started") {
            assert!(!home.log().contains("Permission denied"), "root may open perf events: {}", home.log());
            return skip("software perf events");
        }
        let programs = programs_of(peer.agent.pid());
        assert!(!programs.is_empty());
        match signal {
            Some(signal) => peer.agent.signal(signal),
            None => peer.to = None,
        }
        peer.rest();
        wait_for("the programs to go", || still_loaded(&programs).is_empty().then_some(()));
    }
}

#[test]
fn two_agents_beside_each_other_count_the_same() {
    if lacks_bpf() {
        return;
    }
    let homes = [Home::new(ALL), Home::new(ALL)];
    let mut peers = [Peer::ready(&homes[0], &[]), Peer::ready(&homes[1], &[])];
    let sysfork = [Pmid::new(149, 2, 0)];
    let count = |peer: &mut Peer| match &wire::result(&peer.ask(&wire::fetch(&sysfork)))[0].values[..] {
        [(_, wire::Wire::Block { bytes, .. })] => u64::from_be_bytes(bytes[..].try_into().unwrap()),
        other => panic!("{other:?}"),
    };
    // Forks of others come between two fetches: the second agent is bracketed by the first.
    let before = [count(&mut peers[0]), count(&mut peers[1]), count(&mut peers[0])];
    for _ in 0..50 {
        drop(Proc(Command::new("true").spawn().unwrap()));
    }
    let after = [count(&mut peers[0]), count(&mut peers[1]), count(&mut peers[0])];
    assert!(after[1] - before[1] >= 50, "{before:?} {after:?}");
    assert!((after[0] - before[2]..=after[2] - before[0]).contains(&(after[1] - before[1])), "{before:?} {after:?}");
}
