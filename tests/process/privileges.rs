//! Privileges of the agent while it loads and afterwards; modules lose nothing when they are dropped.

use crate::host::as_nobody;
use crate::own::values;
use crate::peer::{Peer, SECOND};
use crate::reference::pmcd::{self as wire, decode};
use crate::support::{all_modules, config, lacks, lacks_bpf, lacks_host_pids, skip, wait_for, Home, Proc};
use caps::{Capability, CapsHashSet};
use corebcc::host::{Cgroups, Controller};
use corebcc::kit::Spec;
use corebcc::modules::{find, MODULES};
use corebcc::pcp::{Pmid, IN_NULL};
use corebcc::pdu::Pdu;
use corebcc::privilege::{names, to_load, to_run};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{chown, MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Instant;

const PYTHON: &str = "/usr/bin/python3";
const NOBODY: u32 = 65534;
/// The error PM_ERR_AGAIN.
const AGAIN: i32 = -12389;

/// Names of the threads that hold no capability at all.
const WITHOUT: [&str; 2] = ["state", "scripts"];

/// Returns the name of each thread of a process, with a field of its status.
fn by_thread(pid: i32, field: &str) -> Vec<(String, String)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let of = |status: &str, field: &str| -> Option<String> {
        Some(status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?.trim().into())
    };
    let named = |status: String| Some((of(&status, "Name")?, of(&status, field)?));
    tasks.filter_map(|task| named(fs::read_to_string(task.path().join("status")).ok()?)).collect()
}

/// Returns a field of the status of each thread of a process, without the threads that hold no capability.
pub fn of_threads(pid: i32, field: &str) -> Vec<String> {
    let holders = by_thread(pid, field).into_iter().filter(|(name, _)| !WITHOUT.contains(&&**name));
    holders.map(|(_, value)| value).collect()
}

fn bits(capabilities: &CapsHashSet) -> u64 {
    capabilities.iter().map(Capability::bitmask).sum()
}

/// Returns those of the capabilities that this process has.
fn had(capabilities: CapsHashSet) -> CapsHashSet {
    let permitted = caps::read(None, caps::CapSet::Permitted).unwrap();
    capabilities.intersection(&permitted).copied().collect()
}

/// Returns what differs between the limits of the threads and those that they are to have; each thread without capabilities has another
/// name than the holders of these.
fn difference(pid: i32, capabilities: &CapsHashSet) -> Option<String> {
    let expected = format!("{:016x}", bits(capabilities));
    let none = format!("{:016x}", 0);
    for (field, expected) in [("CapPrm", &*expected), ("CapEff", &*expected), ("CapInh", &*none), ("CapAmb", &*none)] {
        let found = of_threads(pid, field);
        if found.len() < 2 || found.iter().any(|found| found != expected) {
            return Some(format!("{field}: {found:?}, not {expected}"));
        }
    }
    let with_none = by_thread(pid, "CapPrm").into_iter().filter(|(name, _)| WITHOUT.contains(&&**name));
    let with_none: Vec<(String, String)> = with_none.collect();
    if with_none.is_empty() || with_none.iter().any(|(_, held)| *held != none) {
        return Some(format!("CapPrm: {with_none:?}, not {none}"));
    }
    for (field, expected) in [("NoNewPrivs", "1"), ("Seccomp", "2")] {
        let found = by_thread(pid, field);
        if found.len() < 3 || found.iter().any(|(_, found)| found != expected) {
            return Some(format!("{field}: {found:?}, not {expected}"));
        }
    }
    None
}

/// Fails where the threads come to other limits. One that was started just now has its parent's name and limits for a moment.
#[track_caller]
fn holds(peer: &Peer, capabilities: &CapsHashSet) {
    let until = Instant::now() + 10 * SECOND;
    while let Some(difference) = difference(peer.agent.pid(), capabilities) {
        assert!(Instant::now() < until, "{difference}");
        sleep(SECOND / 100);
    }
}

fn specs<'a>(modules: &'a [&'a str]) -> impl Iterator<Item = &'static Spec> + Clone + 'a {
    modules.iter().map(|module| find(module).unwrap())
}

#[test]
fn each_thread_keeps_what_the_modules_need_and_no_more() {
    if lacks_bpf() {
        return;
    }
    let all: Vec<&str> = MODULES.iter().map(|spec| spec.name).collect();
    for modules in [&["sysfork"][..], &["biolatency", "runqlat", "netproc"], &["profile", "klockstat"], &all] {
        let home = Home::new(&config(modules));
        let peer = Peer::ready(&home, &[]);
        let kept = had(to_run(specs(modules)));
        holds(&peer, &kept);
        let bounds = of_threads(peer.agent.pid(), "CapBnd");
        assert!(bounds.iter().all(|bound| *bound == format!("{:016x}", bits(&kept))), "{bounds:?}");
        let line = format!("Info: privileges dropped; kept for the modules: {}; system calls limited", names(&kept));
        assert_eq!(home.log().matches("privileges").count(), 1, "{}", home.log());
        assert!(home.log().contains(&line), "no `{line}` in {}", home.log());
    }
}

#[test]
fn privileges_stay_where_that_is_asked_for() {
    if lacks_bpf() {
        return;
    }
    let home = Home::new(&config(&["sysfork"]).replace("[pmda]\n", "[pmda]\ndrop_privileges = False\n"));
    let peer = Peer::ready(&home, &[]);
    let (pid, own) = (peer.agent.pid(), std::process::id() as i32);
    for field in ["CapPrm", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp"] {
        assert_eq!(of_threads(pid, field)[0], of_threads(own, field)[0], "{field}");
    }
    assert!(home.log().contains("Info: privileges kept: `drop_privileges = False`"), "{}", home.log());
}

/// Returns the state of each module, and the error of each metric, 0 without one.
fn answers(peer: &mut Peer) -> (BTreeMap<String, String>, BTreeMap<Pmid, i32>) {
    let pmids: Vec<Pmid> = crate::support::rows::rows().map(|row| row.pmid()).collect();
    let states = values(peer, "bcc.agent.module.state");
    let sets = wire::result(&peer.ask(&wire::fetch(&pmids)));
    (states, sets.iter().map(|set| (set.pmid, set.numval.min(0))).collect())
}

#[test]
fn nothing_is_lost_with_all_modules_on() {
    if lacks_bpf() {
        return;
    }
    let text = all_modules();
    let with = Home::new(&text.replace("[pmda]\n", "[pmda]\ndrop_privileges = False\n"));
    let without = Home::new(&text);
    let of = |home: &Home| {
        let mut peer = Peer::ready(home, &[]);
        let answers = answers(&mut peer);
        let features = values(&mut peer, "bcc.agent.kernel.feature");
        assert_eq!(peer.close().0.code(), Some(0));
        (answers, features)
    };
    let (before, after) = (of(&with), of(&without));
    assert!(before.0 .0.values().filter(|state| *state == "running").count() >= 10, "{before:?}");
    assert_eq!(before, after);
}

/// Returns the modules that this kernel can load with all privileges, by the capabilities that they need.
fn by_capabilities() -> BTreeMap<u64, (CapsHashSet, Vec<&'static str>)> {
    let home = Home::new(&all_modules());
    let mut peer = Peer::ready(&home, &[]);
    let states = values(&mut peer, "bcc.agent.module.state");
    // Where cgroup v2 is not mounted it mounts that, which takes CAP_SYS_ADMIN.
    let mounts = |module: &str| module == "dns" && Cgroups::of(Controller::Unified).is_err();
    let mut groups: BTreeMap<u64, (CapsHashSet, Vec<&'static str>)> = BTreeMap::new();
    let loaded = |name: &str| ["running", "postponed"].contains(&&*states[name]) && !mounts(name);
    for spec in MODULES.iter().filter(|spec| loaded(spec.name)) {
        let capabilities = to_load([*spec]);
        groups.entry(bits(&capabilities)).or_insert_with(|| (capabilities, Vec::new())).1.push(spec.name);
    }
    groups
}

/// Formats capabilities for setpriv(1).
fn for_setpriv(capabilities: &CapsHashSet) -> String {
    let each =
        |capability: &Capability| format!(",+{}", capability.to_string().trim_start_matches("CAP_").to_lowercase());
    format!("-all{}", had(capabilities.clone()).iter().map(each).collect::<String>())
}

/// Starts the agent with exactly these capabilities, as root or as an account without privileges.
pub fn with_exactly(home: &Home, capabilities: &CapsHashSet, account: &str) -> Peer {
    let set = for_setpriv(capabilities);
    let mut command = as_nobody(home);
    let program: Vec<_> =
        command.get_args().skip_while(|arg| !arg.to_string_lossy().starts_with('/')).map(Into::into).collect();
    let program: Vec<std::ffi::OsString> = program;
    command = Command::new("setpriv");
    command.arg(format!("--bounding-set={set}"));
    match account {
        "root" => command.arg("--inh-caps=-all"),
        _ => {
            chown(home.path("config/pmda"), Some(NOBODY), Some(NOBODY)).unwrap();
            chown(home.path(""), Some(NOBODY), Some(NOBODY)).unwrap();
            let ids = ["--reuid=65534", "--regid=65534", "--clear-groups"];
            command.args(ids).arg(format!("--inh-caps={set}")).arg(format!("--ambient-caps={set}"))
        }
    };
    Peer::ready_by(home, home.keep(command.args(program)).args(["-l", "-", "--notready"]))
}

#[test]
fn modules_work_with_exactly_the_capabilities_of_the_table() {
    if lacks_bpf() || lacks(&["setpriv"]) {
        return;
    }
    let groups = by_capabilities();
    assert!(groups.len() >= 4, "{:?}", groups.values().map(|(_, modules)| modules).collect::<Vec<_>>());
    for (capabilities, modules) in groups.values() {
        for account in ["root", "nobody"] {
            let home = Home::new(&config(modules));
            let mut peer = with_exactly(&home, capabilities, account);
            let case = format!("{modules:?} as {account} with {}:\n{}", names(capabilities), home.read("stderr.log"));
            let states = values(&mut peer, "bcc.agent.module.state");
            for module in modules {
                assert!(["running", "postponed"].contains(&&*states[*module]), "{module}: {}: {case}", states[*module]);
            }
            let metrics = specs(modules).flat_map(|spec| {
                let table = spec.tables[0];
                table.metrics.iter().map(|metric| Pmid::new(149, table.cluster, metric.item))
            });
            let pmids: Vec<Pmid> = metrics.collect();
            wait_for("all metrics", || {
                let sets = wire::result(&peer.ask(&wire::fetch(&pmids)));
                sets.iter().for_each(|set| assert!(set.numval >= 0 || set.numval == AGAIN, "{}: {case}", set.pmid));
                sets.iter().all(|set| set.numval >= 0).then_some(())
            });
            holds(&peer, &had(to_run(specs(modules))));
            assert_eq!(peer.close().0.code(), Some(0), "{case}");
        }
    }
}

/// Python that makes system calls and collections, and is most of the time in a function of the C library, which has a name in every
/// distribution's build, and in functions of the kernel.
const WORK: &str = "
import ctypes, gc, os
libc, size = ctypes.CDLL(None), 1 << 20
here, there = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)
while True:
 gc.collect(); os.stat('/'); os.urandom(size)
 for i in range(5): libc.swab(here, there, size)
";

/// Returns the names of profile's stacks; none while it has no values yet.
fn stacks(peer: &mut Peer) -> String {
    let Pdu::PmnsIds { ids, .. } = decode(&peer.ask(&wire::lookup("bcc.proc.stacks"))) else { panic!() };
    let Pdu::Desc(desc) = decode(&peer.ask(&wire::desc(ids[0]))) else { panic!() };
    wire::result(&peer.ask(&wire::fetch(&ids)));
    let reply = peer.ask(&wire::instance(desc.indom, IN_NULL, ""));
    let Pdu::Instance { entries, .. } = decode(&reply) else { return String::new() };
    entries.iter().map(|(_, name)| String::from_utf8_lossy(name) + "\n").collect()
}

/// All that a module begins after loading, it can begin with the privileges that are left.
#[test]
fn what_modules_begin_later_works_with_what_is_left() {
    if lacks_bpf() || lacks_host_pids() || lacks(&[PYTHON, "setpriv"]) {
        return;
    }
    let python = fs::canonicalize(PYTHON).unwrap();
    if !corebcc::host::Elf::read(&python).unwrap().probes().iter().any(|probe| probe.name == "gc__start") {
        return skip("python3 with USDT probes");
    }
    let modules = ["profile", "ustat", "syscount"];
    for account in ["root", "nobody"] {
        let text = config(&modules).replace("process = python3", "process = latepython");
        let text = text.replace("module = syscount", "module = syscount\nprocess = latepython");
        let home = Home::new(&text.replace("module = profile", "module = profile\nprocess = latepython"));
        // It comes later, and only its owner may read it.
        let copy = home.path("latepython");
        let mut peer = with_exactly(&home, &to_load(specs(&modules)), account);
        assert!(Command::new("cp").args([&python, &copy]).status().unwrap().success());
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o700)).unwrap();
        let _python = Proc(Command::new(&copy).args(["-c", WORK]).spawn().unwrap());
        let count =
            |peer: &mut Peer, metric: &str| values(peer, metric).values().any(|count| count != "0").then_some(());
        wait_for("system calls", || count(&mut peer, "bcc.proc.syscall.count"));
        wait_for("collections", || count(&mut peer, "bcc.proc.ustat.gc"));
        let start = wire::store_block(Pmid::new(149, 14, 0), IN_NULL, 6, b"start\0");
        let answer = wait_for("the start", || Some(peer.error(&start)).filter(|answer| *answer != AGAIN));
        assert_eq!(answer, 0);
        // Functions of the process from the files that it has mapped, and the kernel's from /proc/kallsyms.
        let named = |stacks: &str, of_kernel: bool| {
            let frames =
                stacks.lines().flat_map(|stack| stack.split(',').skip(1)).filter(|frame| !frame.contains("[unknown]"));
            frames.into_iter().any(|frame| frame.ends_with("_[k]") == of_kernel)
        };
        wait_for("functions of the process", || named(&stacks(&mut peer), false).then_some(()));
        wait_for("functions of the kernel", || named(&stacks(&mut peer), true).then_some(()));
        assert_eq!(peer.close().0.code(), Some(0), "{}", home.read("stderr.log"));
    }
}

/// The account of `-U` has the capabilities that root would keep.
#[test]
fn another_account_loads_the_default_modules_by_u() {
    if lacks_bpf() {
        return;
    }
    let modules = ["biolatency", "runqlat", "netproc"];
    let home = Home::new(&config(&modules));
    for path in ["", "config/pmda"] {
        chown(home.path(path), Some(NOBODY), None).unwrap();
    }
    let mut peer = Peer::ready(&home, &["-U", "nobody"]);
    let states = values(&mut peer, "bcc.agent.module.state");
    modules.iter().for_each(|module| assert_eq!(states[*module], "running", "{module}: {}", home.log()));
    assert!(values(&mut peer, "bcc.runq.latency").values().any(|count| count != "0"));
    let uids = of_threads(peer.agent.pid(), "Uid");
    assert!(uids.iter().all(|ids| ids.split_whitespace().all(|id| id == "65534")), "{uids:?}");
    holds(&peer, &had(to_run(specs(&modules))));
    assert_eq!(peer.close().0.code(), Some(0));
    assert_eq!(fs::metadata(home.path("corebcc.starts")).unwrap().uid(), NOBODY);
}

/// The owners of sockets cannot be read any more once the modules are loaded.
#[test]
fn processes_with_sockets_are_listed_before_the_drop() {
    if lacks_bpf() || lacks(&["setpriv", PYTHON]) {
        return;
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", PYTHON, "-I", "-c"]);
    command.arg("import socket, time; s = socket.create_server(('127.0.0.1', 0)); print(flush=True); time.sleep(100)");
    let mut idle = Proc(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(idle.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let home = Home::new(&config(&["netproc"]));
    let mut peer = Peer::ready(&home, &[]);
    home.wait_for_log("privileges dropped");
    let instance = format!("{:06} ", idle.pid());
    let calls = values(&mut peer, "bcc.proc.net.tcp.send.calls");
    assert!(calls.keys().any(|name| name.starts_with(&instance)), "no {instance} in {calls:?}");
    assert_eq!(peer.close().0.code(), Some(0));
}

/// Capabilities of the file give them to an account that has none.
#[test]
fn another_account_loads_the_modules_by_file_capabilities() {
    if lacks_bpf() || lacks(&["setpriv", "setcap"]) {
        return;
    }
    let modules = ["biolatency", "runqlat", "netproc"];
    let home = Home::new(&config(&modules));
    for path in ["", "config/pmda"] {
        chown(home.path(path), Some(NOBODY), None).unwrap();
    }
    let mut command = as_nobody(&home);
    let set = format!("{}+ep", names(&had(to_load(specs(&modules)))).to_lowercase().replace(' ', ""));
    let binary = home.path("pmdacorebcc");
    assert!(Command::new("setcap").arg(&set).arg(&binary).status().unwrap().success(), "{set} {}", binary.display());
    let mut peer = Peer::ready_by(&home, home.keep(&mut command).args(["-l", "-", "--notready"]));
    let states = values(&mut peer, "bcc.agent.module.state");
    modules.iter().for_each(|module| assert_eq!(states[*module], "running", "{module}: {}", home.read("stderr.log")));
    holds(&peer, &had(to_run(specs(&modules))));
    assert_eq!(peer.close().0.code(), Some(0));
}

/// PCP's directories belong to the account `pcp`: root writes there as a member of its group, or else one thread does as that
/// account.
#[test]
fn state_files_are_written_without_the_right_to_write_all() {
    if lacks_bpf() {
        return;
    }
    for (mode, writes_as) in [(0o775, 0), (0o755, NOBODY)] {
        let home = Home::new(&(config(&["exectop"]) + "[scripts]\n"));
        fs::create_dir(home.path("scripts.d")).unwrap();
        for path in ["", "config/pmda"] {
            chown(home.path(path), Some(NOBODY), Some(NOBODY)).unwrap();
            fs::set_permissions(home.path(path), fs::Permissions::from_mode(mode)).unwrap();
        }
        let mut peer = Peer::ready(&home, &[]);
        assert!(Command::new("true").status().unwrap().success());
        assert!(values(&mut peer, "bcc.proc.exec.count").contains_key("true"));
        holds(&peer, &to_run(specs(&["exectop"])));
        // Of the four user ids the last is for files.
        let of_thread = |name: &str| {
            let all = by_thread(peer.agent.pid(), "Uid");
            all.into_iter()
                .find(|(thread, _)| thread == name)
                .unwrap()
                .1
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(of_thread("state"), format!("0 0 0 {writes_as}"));
        assert_eq!(of_thread("pmdacorebcc"), "0 0 0 0");
        // A script that comes later has clusters, though the directory is not root's.
        fs::write(home.path("scripts.d/one.bt"), "BEGIN { @x = 1; }\n").unwrap();
        wait_for("clusters", || home.read("config/pmda/149.programs").contains("script.one").then_some(()));
        assert_eq!(peer.close().0.code(), Some(0));
        assert!(home.read("config/pmda/149.13").contains("true"), "{mode:o}: {}", home.log());
        assert!(home.read("corebcc.starts").contains("ended"), "{mode:o}: {}", home.log());
        for file in ["config/pmda/149.13", "config/pmda/149.programs", "corebcc.starts"] {
            assert_eq!(fs::metadata(home.path(file)).unwrap().uid(), writes_as, "{mode:o}: {file}");
        }
    }
}
