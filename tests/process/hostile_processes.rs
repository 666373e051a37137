//! Processes of an unprivileged user whose files, mappings and command lines are made to harm programs that look at them. The agent,
//! whose memory is limited, answers meanwhile.

use crate::peer::{Peer, SECOND};
use crate::reference::pmcd::{self as wire};
use crate::support::script::{copy_program, part};
use crate::support::{
    config, lacks, lacks_bpf, lacks_host_pids, lacks_mounts, skip, wait_for, wait_seconds, Group, Home, Proc, BINARY,
};
use corebcc::pcp::{Indom, Pmid, IN_NULL};
use corebcc::pdu::Pdu;
use nix::fcntl::OFlag;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt, PtyMaster};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::fs::{chown, symlink, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const PYTHON: &str = "/usr/bin/python3";
const NOBODY: u32 = 65534;
const TRAFFIC: Pmid = Pmid::new(149, 40, 4);
const STACKS: Pmid = Pmid::new(149, 14, 0);
const CALLS: Pmid = Pmid::new(149, 15, 0);
const METHODS: Pmid = Pmid::new(149, 17, 1);
const MEGABYTE: u64 = 1024; // in KiB

/// Parts of the processes' Python; `begin`, which all have, reports readiness, and then sleeps.
const SCRIPTS: &str = include_str!("../programs/hostile.py");

/// Returns the command name of this test's processes, which is that of a link to Python. Other tests have other names at the same
/// time.
fn name() -> String {
    format!("hostile{:07}", nix::unistd::gettid())
}

/// Makes a home that everybody may read, with a link to Python.
fn home(config: &str) -> Home {
    let home = Home::new(config);
    fs::set_permissions(home.path(""), Permissions::from_mode(0o755)).unwrap();
    symlink(fs::canonicalize(PYTHON).unwrap(), home.path(&name())).unwrap();
    let theirs = home.path("theirs");
    fs::create_dir(&theirs).unwrap();
    chown(&theirs, Some(NOBODY), Some(NOBODY)).unwrap();
    home
}

fn is_impossible() -> bool {
    lacks_bpf() || lacks_host_pids() || lacks(&[PYTHON, "setpriv", "prlimit"])
}

/// Returns a configuration of modules with a filter for the processes of that name.
fn of_hostile(modules: &[&str]) -> String {
    let text = config(modules).replace("process = python3", &format!("process = {}", name()));
    text.replace("language = python\n", "")
        .replace("language = python", "")
        .replace("process_refresh = 60", "process_refresh = 1")
}

/// Starts an agent with four gigabytes of address space.
fn agent(home: &Home) -> Peer {
    let mut command = Command::new("prlimit");
    command.args(["--as=4294967296", BINARY, "-c"]).arg(home.config()).arg("--notready");
    Peer::ready_by(home, home.keep(&mut command))
}

/// Runs a script as nobody until it reports that it is ready; `before` are words in front of the command.
fn hostile(home: &Home, before: &[&str], script: &str, args: &[&str]) -> Proc {
    let mut command = Command::new("setpriv");
    let ids = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
    command.args(ids).args(["--clear-groups", "--inh-caps=-all"]).args(before);
    command.arg(home.path(&name())).arg("-c").arg(part(SCRIPTS, "begin") + script).args(args);
    let mut child = command.current_dir(home.path("theirs")).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    Proc(child)
}

/// Fetches a metric for a time. Checks that each answer comes at once, and that hardly any is `Try again`.
#[track_caller]
fn served(peer: &mut Peer, metric: Pmid, time: Duration) {
    let end = Instant::now() + time;
    let (mut fetches, mut again) = (0, 0);
    while Instant::now() < end {
        let began = Instant::now();
        let set = &wire::result(&peer.ask(&wire::fetch(&[metric])))[0];
        assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
        fetches += 1;
        again += i32::from(set.numval < 0);
        sleep(Duration::from_millis(20));
    }
    assert!(fetches > 5 && again * 10 <= fetches, "{again} of {fetches} without values");
}

/// Stores a word in the profile. It may be stored twice on a busy machine, which has the same result.
fn store(peer: &mut Peer, word: &[u8]) {
    wait_for("the store", || (peer.error(&wire::store_block(STACKS, IN_NULL, 6, word)) == 0).then_some(()));
}

#[track_caller]
fn is_small(peer: &Peer) {
    let most = peer.memory("VmHWM");
    println!("at most {most} KiB were resident");
    assert!(most < 64 * MEGABYTE, "{most} KiB");
}

/// Opens a terminal, and returns the path of its other side. Its master hangs up once that was opened and closed.
fn terminal() -> (PtyMaster, String) {
    let master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let path = ptsname_r(&master).unwrap();
    (master, path)
}

fn was_opened(master: &PtyMaster) -> bool {
    let mut fds = [PollFd::new(master.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).unwrap();
    fds[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
}

#[test]
fn a_terminal_shows_that_it_was_opened() {
    let (master, path) = terminal();
    assert!(!was_opened(&master));
    drop(fs::File::options().read(true).custom_flags(OFlag::O_NOCTTY.bits()).open(path).unwrap());
    assert!(was_opened(&master));
}

/// A perf map, removed when this is dropped.
struct PerfMap(PathBuf);

impl Drop for PerfMap {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn a_perf_map_is_read_if_it_is_a_file_of_the_process() {
    if is_impossible() {
        return;
    }
    let (master, device) = terminal();
    for kind in ["fifo", "sparse", device.as_str(), "foreign", "own", "shared"] {
        let home =
            home(&of_hostile(&["profile", "syscount"]).replace(
                "module = profile",
                &format!("module = profile\nprocess = {}\nsample_frequency = 199", name()),
            ));
        let process = hostile(&home, &[], &part(SCRIPTS, "own code"), &[kind]);
        let map = PerfMap(format!("/tmp/perf-{}.map", process.pid()).into());
        if kind == "foreign" {
            fs::copy(home.path("theirs/text"), home.path("text")).unwrap();
            chown(home.path("text"), Some(1), Some(1)).unwrap();
            let copied = Command::new("cp").arg("-p").arg(home.path("text")).arg(&map.0).status().unwrap();
            assert!(copied.success());
        }
        let mut peer = agent(&home);
        store(&mut peer, b"start\0");
        served(&mut peer, CALLS, 2 * SECOND);
        store(&mut peer, b"stop\0");
        let value = match &wire::result(&peer.ask(&wire::fetch(&[STACKS])))[0].values[..] {
            [(_, wire::Wire::Block { bytes, .. })] => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("{kind}: {other:?}"),
        };
        if home.log().contains("profile: not started: perf_event_open") {
            assert!(!home.log().contains("Permission denied"), "root may open perf events: {}", home.log());
            return skip("software perf events");
        }
        assert!(value.contains(&name()), "{kind}: {value}");
        let named = value.matches("hostile_x").count();
        assert_eq!(named > 0, ["own", "shared"].contains(&kind), "{kind}: {value}");
        assert!(value.len() < 100_000, "names are cut");
        is_small(&peer);
        assert_eq!(peer.close().0.code(), Some(0));
    }
    assert!(!was_opened(&master));
}

/// A user can put any file anywhere in a name space of his own.
#[test]
fn a_device_where_a_configured_file_is_expected_is_not_opened() {
    if is_impossible() || lacks(&["unshare"]) {
        return;
    }
    let (master, device) = terminal();
    let home = home("");
    let (dir, probed) = (home.path("probes"), home.path("probes/probed"));
    fs::create_dir(&dir).unwrap();
    copy_program(PYTHON, &probed);
    if corebcc::host::Elf::read(&probed).unwrap().probes().is_empty() {
        return skip("python3 with USDT probes");
    }
    let text = of_hostile(&["usdt_hits"]).replace("/usr/bin/python3:", &format!("{}:", probed.display()));
    fs::write(home.config(), text).unwrap();
    let mount = format!("mount -t tmpfs none {0} && ln -s {device} {0}/probed && exec \"$@\"", dir.display());
    let possible =
        Command::new("setpriv").args(["--reuid=65534", "--clear-groups", "unshare", "-Urm", "true"]).status();
    if !possible.is_ok_and(|status| status.success()) {
        return skip("user name spaces for everybody");
    }
    let mut peer = agent(&home);
    let process = hostile(&home, &["unshare", "-Urm", "sh", "-c", &mount, "sh"], "wait()", &[]);
    let said = format!("process {} is not counted", process.pid());
    home.wait_for_log(&said);
    assert!(home.log().contains("not a regular file"), "{}", home.log());
    assert!(!was_opened(&master));
    assert_eq!(peer.close().0.code(), Some(0));
}

/// The files are one of a terabyte whose notes are as long, one with 65,000 sections of 100 MB, and one that is mapped 30,000 times
/// after it was deleted: little of them is read, and nothing is attached.
#[test]
fn absurd_files_are_looked_at_in_no_time_and_little_memory() {
    if is_impossible() {
        return;
    }
    for script in [
        "execute(elf(1, 1 << 40, b'', 1 << 40))",
        "execute(elf(65000, 100 << 20, b'', 1 << 40))",
        "file = elf(1, 0, b'', 1 << 20); os.unlink('libjvm.so'); execute(file, times=30000)",
    ] {
        let home = home(&of_hostile(&["ustat", "ucalls", "syscount"]));
        let mut peer = agent(&home);
        let process = hostile(&home, &[], &(part(SCRIPTS, "elf") + script), &[]);
        served(&mut peer, CALLS, 4 * SECOND);
        // Looks at so many mappings are rare, and it takes some until the log is told.
        if !script.contains("times") {
            home.wait_for_log(&format!("process {} is not counted", process.pid()));
        }
        is_small(&peer);
        assert_eq!(peer.close().0.code(), Some(0));
    }
}

/// At the end each probe is detached separately, which takes the kernel a tenth of a second, and none is left in the kernel.
#[test]
fn of_fifty_thousand_probes_some_are_attached_to_meanwhile() {
    if is_impossible() || lacks(&["dmesg"]) {
        return;
    }
    let home = home(&of_hostile(&["ustat", "syscount"]));
    let mut peer = agent(&home);
    let descriptors = |peer: &Peer| fs::read_dir(format!("/proc/{}/fd", peer.agent.pid())).unwrap().count();
    let before = descriptors(&peer);
    let _process = hostile(&home, &[], &(part(SCRIPTS, "elf") + &part(SCRIPTS, "fifty thousand")), &[]);
    // An emulated processor reads the notes for half a minute.
    let left_out = "probes are left out: at most 256 of a process are attached to";
    wait_seconds(240, "probes to be left out", || home.log().contains(left_out).then_some(()));
    served(&mut peer, METHODS, 4 * SECOND);
    let attached = wait_seconds(60, "256 probes", || Some(descriptors(&peer) - before).filter(|&more| more >= 256));
    assert!(attached < 300, "{attached} descriptors");
    is_small(&peer);
    let threads: Vec<String> = fs::read_dir(format!("/proc/{}/task", peer.agent.pid()))
        .unwrap()
        .map(|thread| format!(":{} failed to unregister", thread.unwrap().file_name().to_string_lossy()))
        .collect();
    peer.to = None;
    let status = wait_seconds(180, "the kernel to take 256 probes off", || peer.agent.0.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
    let said = Command::new("dmesg").output().unwrap().stdout;
    let leaks =
        String::from_utf8_lossy(&said).lines().filter(|line| threads.iter().any(|id| line.contains(id))).count();
    assert_eq!(leaks, 0, "leaking uprobe");
}

/// Two megabytes of arguments cost a user nothing in each of his children, and prctl(2) accepts any place for them.
#[test]
fn command_lines_of_gigabytes_in_all_are_not_kept() {
    if is_impossible() {
        return;
    }
    let home = home(
        &of_hostile(&["syscount"]).replace("module = syscount", "module = syscount\nprocess = .*nobody-is-called-so"),
    );
    let long = "x".repeat(120_000);
    let args: Vec<&str> = std::iter::once("2000").chain(std::iter::repeat_n(long.as_str(), 15)).collect();
    // A session of its own, so that its children can be ended with it.
    let process = Group(hostile(&home, &["setsid"], &part(SCRIPTS, "children"), &args));
    let mut peer = agent(&home);
    served(&mut peer, CALLS, 5 * SECOND);
    is_small(&peer);
    assert_eq!(peer.close().0.code(), Some(0));
    drop(process);
}

/// A reader of the command line waits for as long as the process lives; the agent gives up, and uses the kernel's name.
#[test]
fn a_command_line_that_cannot_be_read_costs_the_agent_nothing() {
    if is_impossible() || lacks(&["unshare"]) || lacks_mounts() {
        return;
    }
    if !std::path::Path::new("/dev/fuse").exists() {
        return skip("FUSE");
    }
    let text =
        of_hostile(&["netproc", "syscount"]).replace("module = syscount", "module = syscount\nprocess = .*hostile.*");
    let home = home(&text);
    let mut command = Command::new("unshare");
    command
        .args(["-m", "setsid"])
        .arg(home.path(&name()))
        .arg("-c")
        .arg(part(SCRIPTS, "begin") + &part(SCRIPTS, "no answer"));
    let mut child = command.current_dir(home.path("theirs")).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let process = Group(Proc(child));
    if line != "ready\n" {
        return skip("a FUSE file");
    }
    let mut reader = Proc(
        Command::new("cat").arg(format!("/proc/{}/cmdline", process.0.pid())).stdout(Stdio::null()).spawn().unwrap(),
    );
    sleep(SECOND);
    if reader.0.try_wait().unwrap().is_some() {
        return skip("a kernel that holds the lock of a process's memory while a file is read");
    }
    let mut peer = agent(&home);
    served(&mut peer, CALLS, 3 * SECOND);
    let pid = process.0.pid() as u32;
    let expected = format!("{pid:06} ({})", name());
    let instances = |peer: &mut Peer| {
        peer.ask(&wire::fetch(&[TRAFFIC]));
        let answer = peer.ask(&wire::instance(Indom::new(149, 40), pid, ""));
        let Pdu::Instance { entries, .. } = wire::decode(&answer) else { return None };
        entries.first().map(|(_, name)| String::from_utf8_lossy(name).into_owned())
    };
    wait_for("the kernel's name", || instances(&mut peer).filter(|name| *name == expected));
    let datagrams = |peer: &mut Peer| {
        let set = &wire::result(&peer.ask(&wire::fetch(&[TRAFFIC])))[0];
        let its = set.values.iter().find(|(instance, _)| *instance == pid)?;
        Some(its.1.clone())
    };
    let first = datagrams(&mut peer);
    wait_for("more datagrams", || datagrams(&mut peer).filter(|now| first.as_ref() != Some(now)));
    let threads = fs::read_dir(format!("/proc/{}/task", peer.agent.pid())).unwrap().count();
    assert!(threads < 14, "{threads} threads");
    assert_eq!(home.log().matches("do not let their command lines").count(), 1, "{}", home.log());
    assert_eq!(peer.close().0.code(), Some(0));
    drop(process);
}

/// A build runs programs by the hundred, each of which the profile names once.
#[test]
fn many_programs_in_a_profile_leave_no_files_and_no_memory() {
    if is_impossible() || lacks(&["gcc"]) {
        return;
    }
    let home = home(
        &config(&["profile"])
            .replace("module = profile", "module = profile\nuser_stacks_only = True\nsample_frequency = 997"),
    );
    let source = "int main(void) { for (volatile long i = 0; i < 20000000; i++) ; }";
    fs::write(home.path("busy.c"), source).unwrap();
    let busy = home.path("busy");
    assert!(Command::new("gcc").arg("-o").arg(&busy).arg(home.path("busy.c")).status().unwrap().success());
    let mut peer = agent(&home);
    let descriptors = |peer: &Peer| fs::read_dir(format!("/proc/{}/fd", peer.agent.pid())).unwrap().count();
    let start = |peer: &mut Peer| store(peer, b"start\0");
    let stop = |peer: &mut Peer| store(peer, b"stop\0");
    // Runs as short as can be, since everything on the machine is sampled; what they have seen is dropped.
    let at_rest = |peer: &mut Peer| {
        start(peer);
        stop(peer);
        store(peer, b"clear\0");
        peer.memory("RssAnon")
    };
    let resident = at_rest(&mut peer);
    let before = descriptors(&peer);
    start(&mut peer);
    let at_work = descriptors(&peer);
    for i in 0..150 {
        let copy = home.path(&format!("busy{i}"));
        copy_program(&busy, &copy);
        assert!(Command::new(&copy).status().is_ok());
        fs::remove_file(&copy).unwrap();
    }
    let (after, most) = (descriptors(&peer), peer.memory("RssAnon"));
    assert!(after <= at_work + 2, "{at_work} descriptors, then {after}");
    stop(&mut peer);
    let value = wire::result(&peer.ask(&wire::fetch(&[STACKS])));
    let size = match &value[0].values[..] {
        [(_, wire::Wire::Block { bytes, .. })] => {
            let text = String::from_utf8_lossy(bytes);
            let named = (0..150).filter(|i| text.contains(&format!("\"busy{i}\""))).count();
            // Beside a large program of somebody else, whose names take a second to read, the ring of samples runs over.
            assert!(named >= 30, "{named} of 150 programs were sampled: {}", home.read("corebcc.log"));
            bytes.len() as u64 / 1024
        }
        other => panic!("{other:?}"),
    };
    wait_for("the descriptors to close", || (descriptors(&peer) <= before + 1).then_some(()));
    let end = at_rest(&mut peer);
    println!("resident: {resident} KiB, {most} while it ran, {end} afterwards; the value had {size}");
    is_small(&peer);
    // The table and the reply keep the room that the value took, which is large where much else runs.
    assert!(end < resident + 4 * MEGABYTE + 4 * size, "{resident} KiB, then {most} and {end}; the value had {size}");
    assert_eq!(peer.close().0.code(), Some(0));
}
