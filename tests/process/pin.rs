//! Counters that outlive the agent (`pin`) after an orderly end, a kill, or a change of layout; in a mount namespace with a BPF file
//! system. tests/vm runs those that need no compiler on other kernels too.

use crate::changes::{by_root, order, reload, FORKS, FORKS_YAML};
use crate::examples::{own_network, Disk};
use crate::own::values;
use crate::pairs::{compile, compiled, example, home, source, write};
use crate::peer::Peer;
use crate::support::bpf_mount::BpfMount;
use crate::support::loops::{open_direct, read_blocks, Loop};
use crate::support::script::copy_program;
use crate::support::tracer::tracer;
use crate::support::tracers::{Completions, Recorder};
use crate::support::{as_thread, lacks, load, wait_for, wait_seconds, Home, BINARY};
use corebcc::pcp::PmErr;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{chown, DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

const CONFIG: &str = "[pmda]\nmodules = sysfork, runqlat\n[sysfork]\nmodule = sysfork\ncluster = 2\npin = True\n\
                      [runqlat]\nmodule = runqlat\ncluster = 4\npin = True\n";

/// Starts an agent in a mount namespace, and waits until its modules are loaded.
#[track_caller]
fn agent(namespace: &BpfMount, home: &Home) -> Peer {
    let mut command = Command::new("nsenter");
    command.arg(namespace.option()).arg(format!("--wd={}", home.path("").display())).arg(BINARY);
    ready(home, &mut command)
}

#[track_caller]
fn ready(home: &Home, command: &mut Command) -> Peer {
    Peer::ready_by(home, home.keep(command).arg("-c").arg(home.config()).arg("--notready"))
}

/// Adds a pair of examples/, pinned. Returns false if something for that is missing.
fn add_pair(home: &Home, name: &str, yaml: &str) -> bool {
    write(home, &format!("{name}.yaml"), &format!("pin: true\n{yaml}"));
    compile(home, &example(&format!("{name}.bpf.c")), name)
}

/// Makes a home with the pair that counts system calls.
fn with_calls() -> Option<Home> {
    let home = home()?;
    fs::write(home.config(), CONFIG).unwrap();
    add_pair(&home, "calls", include_str!("../../examples/calls.yaml")).then_some(home)
}

fn state(peer: &mut Peer, name: &str) -> BTreeMap<String, String> {
    values(peer, &format!("bcc.agent.state.{name}")).into_iter().collect()
}

fn calls(peer: &mut Peer) -> Option<String> {
    calls_of(peer, "pairs-load")
}

fn calls_of(peer: &mut Peer, thread: &str) -> Option<String> {
    values(peer, "bcc.user.calls.calls_total").get(&format!("{thread}::getppid")).cloned()
}

/// Makes calls as [`load`], by a thread of this name: other tests count by name, too.
fn load_as(thread: &str, calls: usize) {
    as_thread(thread, move || {
        (0..calls).for_each(|_| {
            nix::unistd::getppid();
        })
    });
}

fn number(peer: &mut Peer, name: &str) -> u64 {
    values(peer, name).values().map(|value| value.parse::<u64>().unwrap()).sum()
}

fn end_agent(peer: &mut Peer, how: &str) {
    match how {
        "in order" => assert_eq!(peer.close().0.code(), Some(0)),
        _ => {
            peer.agent.signal(Signal::SIGKILL);
            peer.agent.end();
        }
    }
}

const MODULES: [&str; 2] = ["bcc.proc.sysfork", "bcc.runq.latency"];

/// Returns the kernel's own counts for MODULES: new tasks, and arrivals of tasks on a CPU, if it counts those.
fn forks_and_arrivals() -> [Option<u64>; 2] {
    [("/proc/stat", "processes"), ("/proc/schedstat", "cpu")].map(|(file, start)| {
        let text = fs::read_to_string(file).ok()?;
        let lines = text.lines().filter(|line| line.starts_with(start));
        lines.map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    })
}

#[test]
fn counts_continue_exactly_after_an_end_and_a_kill() {
    let Some(namespace) = BpfMount::new() else { return };
    let Some(home) = with_calls() else { return };
    let mut peer = agent(&namespace, &home);
    assert_eq!(state(&mut peer, "pinned").values().collect::<Vec<_>>(), ["1", "1", "1"], "{}", home.log());
    assert_eq!(namespace.units(), ["runqlat", "sysfork", "user:calls"]);
    println!("these go on without the agent: {:?}", namespace.programs());
    load(5000);
    for _ in 0..200 {
        assert!(Command::new("true").status().unwrap().success());
    }
    let since = state(&mut peer, "since");
    let mut made = 5000;
    for end in ["in order", "by SIGKILL"] {
        assert_eq!(calls(&mut peer).unwrap(), made.to_string());
        let timed = number(&mut peer, "bcc.user.calls.call_duration_seconds.count");
        let kernels_before = forks_and_arrivals();
        let counted = MODULES.map(|name| number(&mut peer, name));
        assert!(counted[0] >= 200, "{counted:?}");
        end_agent(&mut peer, end);
        // While no agent is there the programs count on.
        load(5000);
        (0..100).for_each(|_| assert!(Command::new("true").status().unwrap().success()));
        made += 5000;
        peer = agent(&namespace, &home);
        assert_eq!(calls(&mut peer).unwrap(), made.to_string(), "{end}: {}", home.log());
        let now = MODULES.map(|name| number(&mut peer, name));
        let kernels = forks_and_arrivals();
        for (i, name) in MODULES.into_iter().enumerate() {
            let (more, kernels) =
                (now[i] - counted[i], kernels[i].zip(kernels_before[i]).map(|(now, then)| now - then));
            println!("{name}: {more} more after an end {end}; of the kernel's own count {kernels:?}");
            assert!(more >= 100 && kernels.is_none_or(|kernels| more <= kernels), "{end}: {name}");
        }
        assert!(number(&mut peer, "bcc.user.calls.call_duration_seconds.count") >= timed + 5000, "{end}");
        assert_eq!(state(&mut peer, "since"), since, "{end}");
        assert!(state(&mut peer, "discarded").values().all(|count| count == "0"), "{}", home.log());
        assert!(state(&mut peer, "status")
            .values()
            .all(|status| status.ends_with("continues the counts of an agent before")));
        load(5000);
        made += 5000;
    }
    assert_eq!(calls(&mut peer).unwrap(), "25000");
    // Those of while programs are replaced are missing, and none is counted twice.
    let under_way = std::thread::spawn(|| load(2_000_000));
    assert_eq!(peer.close().0.code(), Some(0));
    peer = agent(&namespace, &home);
    under_way.join().unwrap();
    let counted = calls(&mut peer).unwrap().parse::<u64>().unwrap() - 25_000;
    assert!(counted <= 2_000_000, "{counted}");
    println!("{counted} of 2000000 calls while the agent was restarted");
    assert_eq!(peer.close().0.code(), Some(0));
    // Remove leaves nothing.
    let remove = include_str!("../../Remove").lines().find(|line| line.contains("/sys/fs/bpf")).unwrap();
    assert!(Command::new("nsenter").args([&namespace.option(), "sh", "-c", remove]).status().unwrap().success());
    assert!(!namespace.pins().exists());
}

/// Pairs of examples/, each with its metric for a number of operations, the instance, and true if programs of that kind continue
/// without the agent.
const KINDS: [(&str, &str, &str, &str, bool); 4] = [
    ("opens", include_str!("../../examples/opens.yaml"), "opens_total", "pairs-opens::opened", false),
    ("traffic", include_str!("../../examples/traffic.yaml"), "traffic_packets_total", "received::127.79.0.1", true),
    ("vfscalls", include_str!("../../examples/vfscalls.yaml"), "vfs_calls_total", "mkdir", false),
    ("xdpcount", include_str!("../../examples/xdpcount.yaml"), "xdp_packets_total", "ipv4::udp", true),
];

/// Functions that lock a pipe to write into it.
const PIPE_WRITERS: [&str; 2] = ["anon_pipe_write", "pipe_write"];

/// Programs at tracepoints and kprobes end with the agent, those at cgroups and interfaces do not; for the modules of file systems
/// and of locks it depends on whether the kernel has fexit.
#[test]
fn programs_go_on_without_the_agent_by_their_kind() {
    let Some(namespace) = BpfMount::new() else { return };
    let Some(home) = home() else { return };
    if !own_network() || !KINDS.iter().all(|(name, yaml, ..)| add_pair(&home, name, yaml)) {
        return;
    }
    const MODULES: [&str; 3] = ["ext4dist", "xfsdist", "klockstat"];
    let section = |module| corebcc::modules::find(module).unwrap().section("pin = True");
    let sections: String = MODULES.into_iter().map(section).collect();
    let sections = sections + &corebcc::modules::find("bpfstat").unwrap().section("");
    let modules = MODULES.join(",") + ",bpfstat";
    fs::write(home.config(), format!("[pmda]\nmodules = {modules}\nmodule_failure_fatal = False\n{sections}")).unwrap();
    let mut peer = agent(&namespace, &home);
    let states = values(&mut peer, "bcc.user.status.state");
    // Where there are no kprobes there are none to look at; a kernel that others use, too, makes directories of theirs.
    let kinds = || KINDS.iter().filter(|(name, ..)| *name != "vfscalls" || compiled().is_some());
    assert!(kinds().all(|(name, ..)| states[*name] == "running"), "{states:?} {}", home.log());

    let programs = namespace.programs();
    println!("these go on without the agent: {programs:?}");
    for (name, .., goes_on) in kinds() {
        assert_eq!(!programs[&format!("user:{name}")].is_empty(), *goes_on, "{name}");
    }
    let statuses = values(&mut peer, "bcc.agent.module.status");
    for module in MODULES {
        let (runs, status) = (programs.get(module), &statuses[module]);
        println!("{module}: {status}");
        assert_eq!(
            runs.is_some_and(|runs| !runs.is_empty()),
            status.contains("by fexit"),
            "{module}: {runs:?}: {status}"
        );
    }

    // What bpfstat says of the same programs; the agent holds links of its own for that.
    let (types, targets) = (values(&mut peer, "bcc.bpf.link.type"), values(&mut peer, "bcc.bpf.link.target"));
    let links: Vec<[&str; 2]> =
        targets.iter().filter_map(|(link, target)| Some([&types.get(link)?[..], &target[..]])).collect();
    println!("{links:?}, {}", statuses["bpfstat"]);
    match links[..] {
        [] => assert!(statuses["bpfstat"].contains("not attached to bpf_iter_bpf_link"), "{}", statuses["bpfstat"]),
        _ => assert!(links.contains(&["xdp", "lo"]) && links.contains(&["cgroup", "/"]), "{links:?}"),
    }

    let locks_go_on = statuses["klockstat"].contains("by fexit");
    let locks = |peer: &mut Peer| -> u64 {
        let counts = values(peer, "bcc.kernel.lock.mutex.spin.count");
        PIPE_WRITERS.iter().filter_map(|writer| counts.get(*writer)).map(|count| count.parse::<u64>().unwrap()).sum()
    };
    let work = |home: &Home| {
        let (_reader, writer) = nix::unistd::pipe().unwrap();
        (0..1000).for_each(|_| assert_eq!(nix::unistd::write(&writer, b"x"), Ok(1)));
        as_thread("pairs-opens", || (0..100).for_each(|_| drop(fs::File::open("/dev/null").unwrap())));
        let socket = std::net::UdpSocket::bind("127.79.0.1:0").unwrap();
        for number in 0..100 {
            socket.send_to(&[0; 100], socket.local_addr().unwrap()).unwrap();
            socket.recv(&mut [0; 100]).unwrap();
            fs::create_dir(home.path("made")).unwrap();
            fs::remove_dir(home.path("made")).unwrap_or_else(|error| panic!("{number}: {error}"));
        }
    };
    let counts = |peer: &mut Peer| -> Vec<u64> {
        let count = |(name, _, metric, instance, _): &(&str, _, &str, &str, _)| {
            values(peer, &format!("bcc.user.{name}.{metric}")).get(*instance).map_or(0, |count| count.parse().unwrap())
        };
        kinds().map(count).collect()
    };
    for end in ["in order", "by SIGKILL"] {
        let before = counts(&mut peer);
        work(&home);
        let counted = counts(&mut peer);
        assert!(counted.iter().zip(&before).all(|(now, then)| now - then == 100), "{counted:?} after {before:?}");
        let locked = locks(&mut peer);
        end_agent(&mut peer, end);
        work(&home);
        peer = agent(&namespace, &home);
        let more = locks(&mut peer).checked_sub(locked).expect("they continue");
        println!("{more} locks of pipes while there was no agent, which ended {end}");
        // Test and agent speak over pipes, some dozen messages.
        assert_eq!(more >= 1000, locks_go_on, "{more}");
        let continued = counts(&mut peer);
        for ((now, then), (name, .., goes_on)) in continued.iter().zip(&counted).zip(kinds()) {
            assert_eq!(now - then, if *goes_on { 100 } else { 0 }, "{name} without an agent, which ended {end}");
        }
        let statuses = state(&mut peer, "status");
        for (name, .., goes_on) in kinds() {
            let status = &statuses[&format!("user.{name}")];
            assert_eq!(status.contains("without what happened"), !goes_on, "{name}: {status}");
        }
    }
    assert_eq!(peer.close().0.code(), Some(0));
}

/// Modules whose rows describe what they count.
const BY_ROW: [&str; 3] = ["biolatency", "exectop", "syscount"];

/// Reads of a disk, execs of a command and system calls, of which there were none before the agent; also with another disk than when
/// the maps were made.
#[test]
fn counts_by_disk_command_and_system_call_continue() {
    let Some(namespace) = BpfMount::new() else { return };
    if lacks(&["losetup"]) {
        return;
    }
    let home = Home::new(CONFIG);
    let sections: String =
        BY_ROW.iter().map(|name| corebcc::modules::find(name).unwrap().section("pin = True")).collect();
    fs::write(home.config(), format!("[pmda]\nmodules = {}\nload_later = True\n{sections}", BY_ROW.join(","))).unwrap();
    let disk = Disk::over(&home, "disk");
    // It stays open, so that nobody looks at the disk after each read.
    let file = open_direct(Path::new(&disk.device));
    let command = home.path("pin-command");
    copy_program("/bin/true", &command);
    // Work of each kind 100 times; how many of the reads completed where no program runs.
    let work = || {
        let completions = Completions::record();
        for _ in 0..100 {
            read_blocks(&file, [0]);
            assert!(Command::new(&command).status().unwrap().success());
            // SAFETY: it takes a number and returns one. No other process makes this call here.
            assert_eq!(unsafe { nix::libc::sched_get_priority_min(0) }, 0);
        }
        let completed = completions.of(disk.name());
        assert!(completed.elsewhere.is_none() || completed.seen + completed.unseen == 100, "{completed:?}");
        completed.unseen
    };
    let counts = |peer: &mut Peer| {
        let of = |(metric, instance): (&str, &str)| {
            values(peer, metric).get(instance).map_or(0, |count| count.parse::<u64>().unwrap())
        };
        let call = ("bcc.proc.syscall.count", "sched_get_priority_min");
        [("bcc.disk.dev.read.total.count", disk.name()), ("bcc.proc.exec.count", "pin-command"), call].map(of)
    };
    let mut peer = agent(&namespace, &home);
    assert_eq!(namespace.units(), BY_ROW, "{}", home.log());
    let mut more_disks = Vec::new();
    let mut unseen = work();
    assert_eq!(counts(&mut peer), [100 - unseen, 100, 100]);
    for (times, end) in [(300, "in order"), (500, "by SIGKILL")] {
        end_agent(&mut peer, end);
        unseen += work();
        more_disks.push(Disk::over(&home, end));
        peer = agent(&namespace, &home);
        assert_eq!(counts(&mut peer), [times - 100 - unseen, times - 100, times - 100], "{end}: {}", home.log());
        assert!(state(&mut peer, "discarded").values().all(|count| count == "0"), "{}", home.log());
        unseen += work();
        assert_eq!(counts(&mut peer), [times - unseen, times, times], "{end}");
    }
    by_root(&mut peer);
    for module in BY_ROW {
        assert_eq!(order(&mut peer, module, "restart"), 0, "{}", home.log());
    }
    assert_eq!(counts(&mut peer), [500 - unseen, 500, 500], "restarted by pmstore");
    assert_eq!(peer.close().0.code(), Some(0));

    // With another secret a name has other places in the table.
    fs::remove_file(home.path("config/pmda/149.secret")).unwrap();
    let mut peer = agent(&namespace, &home);
    assert_eq!(counts(&mut peer)[1], 0, "{}", home.log());
    let expected = BY_ROW.map(|module| (module.into(), if module == "exectop" { "1" } else { "0" }.into()));
    assert_eq!(state(&mut peer, "discarded"), BTreeMap::from(expected), "{}", home.log());
    assert_eq!(peer.close().0.code(), Some(0));
}

/// More disks than there is room for by CPU, each read before, without and with the next agent.
#[test]
fn counts_of_disks_that_came_later_continue() {
    let Some(namespace) = BpfMount::new() else { return };
    let home = Home::new(CONFIG);
    let section = corebcc::modules::find("biolatency").unwrap().section("pin = True");
    fs::write(home.config(), format!("[pmda]\nmodules = biolatency\n{section}")).unwrap();
    let mut peer = agent(&namespace, &home);
    let Some(disks) = Loop::several(40) else { return };
    // They stay open, so that nobody looks at a disk after each read.
    let files: Vec<_> = disks.iter().map(Loop::open).collect();
    // Ten reads of each disk; how many requests of all disks completed where no program runs.
    let work = || {
        let unseen = Recorder::unseen(&["block/block_rq_complete"]);
        files.iter().for_each(|file| read_blocks(file, [0; 10]));
        unseen.map_or(0, |unseen| unseen.end().len() as u64)
    };
    // Where there is udev, it reads new disks too.
    let done = || -> Vec<u64> { disks.iter().map(Loop::completed_reads).collect() };
    let check = |peer: &mut Peer, each: u64, unseen: u64| {
        let (done, counts) = wait_for("the disks to be at rest", || {
            let before = done();
            let counts = values(peer, "bcc.disk.dev.read.total.count");
            (done() == before).then_some((before, counts))
        });
        assert!(done.iter().all(|done| *done >= each), "{done:?}");
        let count = |disk: &Loop| counts.get(&disk.name()).map_or(0, |count| count.parse::<u64>().unwrap());
        let missing: Vec<i64> = disks.iter().zip(&done).map(|(disk, done)| *done as i64 - count(disk) as i64).collect();
        let is_exact = missing.iter().all(|missing| *missing >= 0) && missing.iter().sum::<i64>() <= unseen as i64;
        assert!(is_exact, "{missing:?} of {done:?}, {unseen} not seen: {}", home.log());
    };
    let mut unseen = work();
    check(&mut peer, 10, unseen);
    end_agent(&mut peer, "by SIGKILL");
    unseen += work();
    let mut peer = agent(&namespace, &home);
    check(&mut peer, 20, unseen);
    assert!(state(&mut peer, "discarded").values().all(|count| count == "0"), "{}", home.log());
    unseen += work();
    check(&mut peer, 30, unseen);
    assert_eq!(peer.close().0.code(), Some(0));
}

/// Returns a pair that counts forks, in a map with this number of rows.
fn forks(rows: u32) -> String {
    FORKS.replace("max_entries, 1)", &format!("max_entries, {rows})"))
}

#[test]
fn another_layout_is_discarded_and_what_is_unpinned_removed() {
    let Some(namespace) = BpfMount::new() else { return };
    let Some(home) = home() else { return };
    fs::write(home.config(), CONFIG).unwrap();
    let yaml = format!("pin: true\n{FORKS_YAML}");
    if !source(&home, "forks", &forks(1), &yaml) {
        return;
    }
    let fork = || (0..300).for_each(|_| assert!(Command::new("true").status().unwrap().success()));
    let mut peer = agent(&namespace, &home);
    fork();
    let before = number(&mut peer, "bcc.proc.sysfork");
    assert!(number(&mut peer, "bcc.user.forks.forks_total") >= 300);
    assert_eq!(peer.close().0.code(), Some(0));

    // An option of runqlat changes what its counts mean; the pair's map has another size.
    fs::write(home.config(), format!("{CONFIG}per_cpu = True\n")).unwrap();
    assert!(source(&home, "forks", &forks(2), &yaml));
    let mut peer = agent(&namespace, &home);
    let discarded = state(&mut peer, "discarded");
    let expected =
        [("runqlat", "1"), ("sysfork", "0"), ("user.forks", "1")].map(|(unit, count)| (unit.into(), count.into()));
    assert_eq!(discarded, BTreeMap::from(expected), "{}", home.log());
    assert!(
        home.log().contains("user.forks: pinned maps discarded, so counts begin at 0: their layout"),
        "{}",
        home.log()
    );
    assert!(number(&mut peer, "bcc.proc.sysfork") >= before);
    assert!(state(&mut peer, "status")["runqlat"].contains("counts from this load on"));
    assert_eq!(namespace.units(), ["runqlat", "sysfork", "user:forks"], "the old ones are gone");
    for (rows, count) in [(3, "2"), (4, "3")] {
        assert!(source(&home, "forks", &forks(rows), &yaml));
        let is_counted = |peer: &mut Peer| state(peer, "discarded").get("user.forks").is_some_and(|now| now == count);
        wait_seconds(20, "another layout while the agent runs", || is_counted(&mut peer).then_some(()));
    }

    // A second agent of the same state pins nothing, and says why.
    let mut second = agent(&namespace, &home);
    assert!(state(&mut second, "status")["sysfork"].contains("another agent uses it"), "{}", home.log());
    assert!(number(&mut second, "bcc.proc.sysfork") < before);
    assert_eq!(second.close().0.code(), Some(0));
    assert_eq!(peer.close().0.code(), Some(0));

    // Nothing is left of what is not to be pinned, unless the configuration is in error.
    fs::write(home.config(), CONFIG.replace("pin = True", "pin = yes, please")).unwrap();
    assert_eq!(agent(&namespace, &home).close().0.code(), Some(0));
    assert_eq!(namespace.units(), ["runqlat", "sysfork", "user:forks"]);
    fs::write(home.config(), CONFIG.replace("pin = True", "")).unwrap();
    for file in ["forks.yaml", "forks.bpf.o"] {
        fs::remove_file(home.path(&format!("programs.d/{file}"))).unwrap();
    }
    assert_eq!(agent(&namespace, &home).close().0.code(), Some(0));
    assert_eq!(namespace.units(), Vec::<String>::new(), "{}", home.log());
}

/// The agent's own metrics that change only when modules or files do.
const STILL: &[&str] = &[
    "configuration.errors configuration.status kernel.feature lost.reason map.kind map.modules map.entries.capacity metric.status",
    "module.state module.status module.targets.attached module.targets.missing module.up program.attached program.hook",
    "program.kind program.modules state.discarded state.pinned state.since state.status summary.configuration",
    "summary.modules.failed summary.modules.off summary.modules.running",
];

fn still(peer: &mut Peer) -> BTreeMap<&'static str, BTreeMap<String, String>> {
    let names = STILL.iter().flat_map(|names| names.split(' '));
    names.map(|name| (name, values(peer, &format!("bcc.agent.{name}")).into_iter().collect())).collect()
}

#[test]
fn a_refused_reload_leaves_no_trace() {
    let Some(namespace) = BpfMount::new() else { return };
    let Some(home) = with_calls() else { return };
    let text = format!(
        "{}[execsnoop]\nmodule = execsnoop\ncluster = 9\n",
        CONFIG.replace("runqlat\n[s", "runqlat, execsnoop\n[s")
    );
    fs::write(home.config(), &text).unwrap();
    let mut peer = agent(&namespace, &home);
    by_root(&mut peer);
    let (before, units, log) = (still(&mut peer), namespace.units(), home.log());
    let pinned = before["state.pinned"].values().filter(|pinned| *pinned == "1");
    assert_eq!(pinned.count(), 3, "{}", home.log());

    // No pins, no arguments, helpers allowed, debug lines, another prefix; and one error.
    let wrong = text.replace("pin = True", "debug = True").replace(
        "[pmda]",
        "[pmda]\nshow_arguments = False\nallow_helpers = bpf_send_signal\nprefix = other.\nprocess_refresh = 3",
    );
    fs::write(home.config(), wrong.replace("cluster = 9", "cluster = x")).unwrap();
    for _ in 0..3 {
        assert_eq!(reload(&mut peer), PmErr::BADSTORE.0);
    }
    for (name, values) in still(&mut peer) {
        assert_eq!(values, before[name], "{name}: {}", home.log());
    }
    assert_eq!(namespace.units(), units);
    let added = home.log()[log.len()..].to_owned();
    let (refusals, others): (Vec<&str>, Vec<&str>) =
        added.lines().partition(|line| line.contains("reload: nothing was changed"));
    assert!(refusals.len() == 3 && others.is_empty(), "{added}");
    assert!(Command::new("true").arg("an-argument").status().unwrap().success());
    wait_for("the arguments of a program", || {
        let arguments = values(&mut peer, "bcc.proc.exec.args");
        arguments.values().any(|arguments| arguments.contains("an-argument")).then_some(())
    });
    assert_eq!(peer.close().0.code(), Some(0));

    // The pins are there for the next agent.
    fs::write(home.config(), &text).unwrap();
    let mut peer = agent(&namespace, &home);
    let status = state(&mut peer, "status");
    assert!(["sysfork", "runqlat", "user.calls"].iter().all(|unit| status[*unit].contains("continues")), "{status:?}");
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn a_restart_by_pmstore_continues_also_in_shared_programs() {
    let Some(namespace) = BpfMount::new() else { return };
    let Some(home) = with_calls() else { return };
    // cgroup_runq has a part in the program at sched_switch, which stays when runqlat is stopped.
    let shared = CONFIG.replace("runqlat\n[s", "runqlat, cgroup_runq\n[s")
        + "[cgroup_runq]\nmodule = cgroup_runq\ncluster = 401\n";
    fs::write(home.config(), shared).unwrap();
    let mut peer = agent(&namespace, &home);
    by_root(&mut peer);
    load(5000);
    (0..200).for_each(|_| assert!(Command::new("true").status().unwrap().success()));
    let (forks, since) = (number(&mut peer, "bcc.proc.sysfork"), state(&mut peer, "since"));
    assert!(forks >= 200);
    for module in ["user.calls", "sysfork", "runqlat"] {
        assert_eq!(order(&mut peer, module, "restart"), 0, "{}", home.log());
    }
    assert_eq!(calls(&mut peer).as_deref(), Some("5000"), "{}", home.log());
    assert!(number(&mut peer, "bcc.proc.sysfork") >= forks, "{}", home.log());
    load(5000);
    assert_eq!(calls(&mut peer).as_deref(), Some("10000"), "no call is counted twice");
    assert_eq!(state(&mut peer, "since"), since);
    let status = state(&mut peer, "status");
    assert!(["sysfork", "runqlat", "user.calls"].iter().all(|unit| status[*unit].contains("continues")), "{status:?}");
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn what_keeps_maps_from_being_pinned_is_said() {
    let Some(namespace) = BpfMount::new() else { return };
    let home = Home::new(CONFIG);
    let not_pinned = |peer: &mut Peer, why: &str| {
        let status = state(peer, "status")["sysfork"].clone();
        assert!(status.starts_with("not pinned: ") && status.contains(why), "{status}");
        assert_eq!(state(peer, "pinned")["sysfork"], "0");
        assert!(state(peer, "since")["sysfork"].parse::<u64>().unwrap() > 1_700_000_000);
        assert!(home.log().contains(&status), "{}", home.log());
    };
    let without = "umount -l /sys/fs/bpf 2>/dev/null; exec \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", without, BINARY]);
    let mut peer = ready(&home, &mut command);
    not_pinned(&mut peer, "/sys/fs/bpf is no BPF file system: mount it with `mount -t bpf bpf /sys/fs/bpf`");
    assert_eq!(peer.close().0.code(), Some(0));

    fs::DirBuilder::new().mode(0o700).create(namespace.pins()).unwrap();
    for (owner, mode) in [(65534, 0o700), (0, 0o755)] {
        chown(namespace.pins(), Some(owner), None).unwrap();
        fs::set_permissions(namespace.pins(), fs::Permissions::from_mode(mode)).unwrap();
        let mut peer = agent(&namespace, &home);
        not_pinned(&mut peer, &format!("closed to others (0700), got owner {owner} and mode {mode:04o}; remove it"));
        assert_eq!(peer.close().0.code(), Some(0));
    }

    fs::write(home.config(), "[pmda]\nmodules = netproc\n[netproc]\nmodule = netproc\ncluster = 14\npin = True\n")
        .unwrap();
    let checked = home.run(&["--check-syntax"]);
    let said = String::from_utf8_lossy(&checked.stderr).into_owned() + &String::from_utf8_lossy(&checked.stdout);
    assert!(said.contains("[netproc] pin: expected False") && said.contains("sysfork"), "{said}");
    assert_eq!(checked.status.code(), Some(1));
}

/// Programs of modules are verified and attached one after the other, which takes half a second; those of pairs follow.
#[test]
fn a_restart_costs_a_pinned_count_a_moment() {
    const MODULES: [&str; 7] = ["sysfork", "runqlat", "exectop", "biolatency", "syscount", "ext4dist", "klockstat"];
    const EACH: Duration = Duration::from_micros(500);
    let Some(namespace) = BpfMount::new() else { return };
    let Some(home) = with_calls() else { return };
    let section = |module| corebcc::modules::find(module).unwrap().section("pin = True");
    let sections: String = MODULES.into_iter().map(section).collect();
    let modules = MODULES.join(",");
    fs::write(home.config(), format!("[pmda]\nmodules = {modules}\nmodule_failure_fatal = False\n{sections}")).unwrap();
    let mut peer = agent(&namespace, &home);
    let is_over = Arc::new(AtomicBool::new(false));
    let until = Arc::clone(&is_over);
    let calling = move || {
        let mut made = 0_u64;
        while !until.load(Ordering::Relaxed) {
            nix::unistd::getppid();
            made += 1;
            std::thread::sleep(EACH);
        }
        made
    };
    let caller = std::thread::Builder::new().name("pairs-moment".into()).spawn(calling).unwrap();
    let calls = |peer: &mut Peer| -> Option<u64> { calls_of(peer, "pairs-moment").map(|count| count.parse().unwrap()) };
    wait_for("calls", || calls(&mut peer));
    let (begin, first) = (Instant::now(), calls(&mut peer).unwrap());
    std::thread::sleep(crate::peer::SECOND);
    let rate = (calls(&mut peer).unwrap() - first) as f64 / begin.elapsed().as_secs_f64();
    const TIMES: u32 = 3;
    for _ in 0..TIMES {
        end_agent(&mut peer, "by SIGKILL");
        peer = agent(&namespace, &home);
        assert_eq!(state(&mut peer, "pinned")["user.calls"], "1", "{}", home.log());
    }
    is_over.store(true, Ordering::Relaxed);
    let made = caller.join().unwrap();
    let counted = calls(&mut peer).unwrap();
    println!("{made} made, {counted} counted");
    let missing = (made as f64 - counted as f64) / rate / f64::from(TIMES);
    println!("{missing:.3} s of calls are missing at a restart, {rate:.0} a second");
    // 4 to 20 milliseconds on a quiet machine; the tests beside this one take their time.
    assert!(counted <= made && missing < 0.2, "{missing:.3} s; {}", home.log());
    assert_eq!(peer.close().0.code(), Some(0));
}

/// The process of an agent with hundreds of probes exists for tens of seconds after its end.
#[test]
fn an_agent_that_ends_slowly_leaves_its_counts_at_once() {
    let Some(namespace) = BpfMount::new() else { return };
    let Some(home) = with_calls().filter(|_| !lacks(&["strace"])) else { return };
    let mut first = agent(&namespace, &home);
    load_as("pairs-slow", 5000);
    let slow = Path::new("/proc").join(first.agent.pid().to_string());
    let arguments = ["-f", "-e", "trace=exit_group", "-e", "inject=exit_group:delay_enter=20000000"];
    let mut strace = tracer(&home, &slow, &arguments);
    first.to = None;
    wait_for("its end", || home.read("strace.log").contains("exit_group").then_some(()));
    let mut peer = agent(&namespace, &home);
    assert!(state(&mut peer, "pinned").values().all(|pinned| pinned == "1"), "{}", home.log());
    load_as("pairs-slow", 5000);
    assert_eq!(calls_of(&mut peer, "pairs-slow").as_deref(), Some("10000"), "each is counted once: {}", home.log());
    assert!(first.agent.0.try_wait().unwrap().is_none(), "it is still there");
    strace.signal(Signal::SIGKILL);
    strace.end();
    assert_eq!(peer.close().0.code(), Some(0));
}

/// If the agent before is stuck, this one counts from 0, and its counts are those that continue at the next start.
#[test]
fn what_another_agent_held_is_pinned_once_it_ends() {
    let Some(namespace) = BpfMount::new() else { return };
    let Some(home) = with_calls() else { return };
    assert_eq!(agent(&namespace, &home).close().0.code(), Some(0));
    load_as("pairs-late", 1000);
    let own = fs::read_dir(namespace.pins()).unwrap().next().unwrap().unwrap().path();
    let held = Flock::lock(fs::File::open(own).unwrap(), FlockArg::LockExclusiveNonblock).unwrap();
    let mut peer = agent(&namespace, &home);
    let status = state(&mut peer, "status")["user.calls"].clone();
    assert!(status.contains("another agent uses it") && status.contains("pinned once that one has ended"), "{status}");
    load_as("pairs-late", 5000);
    drop(held);
    wait_for("the maps to be pinned", || state(&mut peer, "pinned").values().all(|pinned| pinned == "1").then_some(()));
    assert_eq!(state(&mut peer, "discarded")["user.calls"], "1", "{}", home.log());
    end_agent(&mut peer, "by SIGKILL");
    load_as("pairs-late", 5000);
    peer = agent(&namespace, &home);
    assert_eq!(calls_of(&mut peer, "pairs-late").as_deref(), Some("10000"), "{}", home.log());
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn pins_of_an_agent_that_is_gone_are_named() {
    let Some(namespace) = BpfMount::new() else { return };
    let home = Home::new(CONFIG);
    let foreign = namespace.pins().join("77-00000000000000ab");
    fs::DirBuilder::new().mode(0o700).recursive(true).create(foreign.join("sysfork")).unwrap();
    fs::create_dir(namespace.pins().join("77-00000000000000ac")).unwrap(); // of one that pins nothing
    let named = "rm -r /sys/fs/bpf/corebcc/77-00000000000000ab";
    let lock = Flock::lock(fs::File::open(&foreign).unwrap(), FlockArg::LockExclusiveNonblock).unwrap();
    assert_eq!(agent(&namespace, &home).close().0.code(), Some(0));
    assert!(!home.log().contains(named), "it is in use: {}", home.log());
    drop(lock);
    assert_eq!(agent(&namespace, &home).close().0.code(), Some(0));
    assert!(home.log().contains(named) && home.log().matches("rm -r").count() == 1, "{}", home.log());
    let mut check = Command::new("nsenter");
    check.arg(namespace.option()).arg(format!("--wd={}", home.path("").display())).arg(BINARY);
    let output = home.keep(&mut check).arg("-c").arg(home.config()).arg("--check-syntax").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains(named), "{output:?}");
}
