//! The agent's own metrics, compared with the kernel's numbers and with known load.

use crate::examples::Disk;
use crate::peer::Peer;
use crate::reference::pmcd::{self as wire, decode, Wire};
use crate::support::script::python;
use crate::support::{
    anybody_counts_runs, bpf_of, config, counts_runs, kernel_memory, lacks, lacks_bpf, lacks_host_pids, lacks_mounts,
    skip, told, wait_for, Home, ALL, ONE,
};
use corebcc::host::{Cgroups, Controller};
use corebcc::pcp::{PmErr, IN_NULL};
use corebcc::pdu::Pdu;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::{fs, thread};

/// Returns the values of a metric by instance name; "" for one without instances. A busy machine may need several fetches.
#[track_caller]
pub fn values(peer: &mut Peer, name: &str) -> BTreeMap<String, String> {
    wait_for(name, || values_in_time(peer, name))
}

/// Returns the values as [`values`]; `None` if the agent needs more time for them or for their instances.
pub fn values_in_time(peer: &mut Peer, name: &str) -> Option<BTreeMap<String, String>> {
    let Pdu::PmnsIds { ids, .. } = decode(&peer.ask(&wire::lookup(name))) else { panic!("no {name}") };
    let reply = peer.ask(&wire::desc(ids[0]));
    let Pdu::Desc(desc) = decode(&reply) else { panic!("{name}") };
    let set = wire::result(&peer.ask(&wire::fetch(&ids))).remove(0);
    if set.numval == PmErr::AGAIN.0 {
        return None;
    }
    let mut names = BTreeMap::new();
    if set.values.iter().any(|(inst, _)| *inst != IN_NULL) {
        let reply = peer.ask(&wire::instance(desc.indom, IN_NULL, ""));
        let Pdu::Instance { entries, .. } = decode(&reply) else { return None };
        names.extend(entries.iter().map(|(id, name)| (*id, String::from_utf8_lossy(name).into_owned())));
    }
    let text = |value: &Wire| match value {
        Wire::Word(word) => word.to_string(),
        Wire::Block { ty: 2, bytes, .. } => i64::from_be_bytes(bytes[..8].try_into().unwrap()).to_string(),
        Wire::Block { ty: 3, bytes, .. } => u64::from_be_bytes(bytes[..8].try_into().unwrap()).to_string(),
        Wire::Block { bytes, .. } => String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned(),
    };
    let value = |(inst, value): &(_, Wire)| (names.get(inst).cloned().unwrap_or_default(), text(value));
    Some(set.values.iter().map(value).collect())
}

/// Returns the number of a metric without instances, or of an instance.
#[track_caller]
fn number(peer: &mut Peer, name: &str, instance: &str) -> u64 {
    values(peer, name)[instance].parse().unwrap()
}

/// Makes a home with a configuration of these modules with their defaults.
fn modules(list: &str, pmda: &str) -> Home {
    with_lines(list, pmda, &[])
}

/// Makes a home with a configuration of these modules, with lines for some of their sections.
fn with_lines(list: &str, pmda: &str, lines: &[(&str, &str)]) -> Home {
    let mut text = format!("[pmda]\nmodules = {list}\nmodule_failure_fatal = False\n{pmda}\n");
    for name in list.split(',') {
        let its = lines.iter().find(|(module, _)| *module == name).map_or("", |(_, lines)| lines);
        text += &corebcc::modules::find(name).unwrap().section(its);
    }
    Home::new(&text)
}

/// Names of the two conditions of `tests/mounts`.
const CONDITIONS: [&str; 2] = ["with", "without"];

#[test]
fn each_module_has_its_state_and_a_sentence() {
    if lacks_bpf() || lacks_host_pids() || lacks_mounts() {
        return;
    }
    CONDITIONS.iter().for_each(|condition| states_and_sentences(condition));
}

fn states_and_sentences(condition: &'static str) {
    let lines = [
        ("kprobe_hits", "kprobes = kprobe:no_such_function"),
        ("tracepoint_hits", "tracepoints = sched:sched_switch,no:such\nprocess = nobody"),
    ];
    let home = with_lines("sysfork,profile,kprobe_hits,tracepoint_hits", "", &lines).with_mounts(condition);
    let mut peer = Peer::ready(&home, &[]);
    let states = values(&mut peer, "bcc.agent.module.state");
    let sentences = values(&mut peer, "bcc.agent.module.status");
    let up = values(&mut peer, "bcc.agent.module.up");
    let said = |name: &str, state: &str, parts: &[&str]| {
        assert_eq!(states[name], state, "{}", sentences[name]);
        for part in parts {
            assert!(sentences[name].contains(part), "{name}: no `{part}` in {}", sentences[name]);
        }
    };
    said("sysfork", "running", &["attached to task_newtask by tp_btf"]);
    said("profile", "postponed", &["cpu-clock"]);
    said("kprobe_hits", "failed", &["no_such_function"]);
    let reason =
        if condition == "with" { "(matches no tracepoint)" } else { "the kernel has no tracepoint of this name" };
    said("tracepoint_hits", "running", &["1 target by raw_tp", "not attached to no:such (", reason]);
    said("filter", "running", &["task_newtask", "sched_process_exec"]);
    said("biolatency", "off", &["not enabled", "add biolatency", home.config().to_str().unwrap()]);
    assert_eq!(states.len(), corebcc::modules::MODULES.len() + 1, "{states:?}");
    let expected =
        [("filter", "1"), ("kprobe_hits", "0"), ("profile", "1"), ("sysfork", "1"), ("tracepoint_hits", "1")];
    assert_eq!(up, expected.map(|(name, up)| (name.to_owned(), up.to_owned())).into());
    // The names of a module that failed are there; asked for, they send here.
    let cluster = corebcc::modules::find("kprobe_hits").unwrap().cluster();
    let failed = wire::result(&peer.ask(&wire::fetch(&[corebcc::pcp::Pmid::new(149, cluster, 0)]))).remove(0);
    assert_eq!(failed.numval, PmErr::APPVERSION.0);
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn a_target_that_is_missing_is_named_counted_and_fails_a_check() {
    if lacks_bpf() || lacks_mounts() {
        return;
    }
    for condition in CONDITIONS {
        let lines = [
            ("tracepoint_hits", "tracepoints = sched:no_such_thing,sched:sched_process_fork"),
            ("uprobe_hits", "uprobes = c:no_such_function,c:fork"),
        ];
        let targets = [("tracepoint_hits", "sched:no_such_thing"), ("uprobe_hits", "c:no_such_function")];
        let home = with_lines("sysfork,tracepoint_hits,uprobe_hits", "", &lines).with_mounts(condition);
        let mut peer = Peer::ready(&home, &[]);
        let mut of = |metric: &str| values(&mut peer, &format!("bcc.agent.module.{metric}"));
        let (sentences, up) = (of("status"), of("up"));
        let (attached, missing) = (of("targets.attached"), of("targets.missing"));
        assert_eq!((attached["sysfork"].as_str(), missing["sysfork"].as_str()), ("0", "0"));
        for (module, target) in targets {
            let sentence = &sentences[module];
            assert!(sentence.contains("attached to 1 target by "), "{module}: {sentence}");
            assert!(sentence.contains(&format!("not attached to {target} (")), "{module}: {sentence}");
            assert_eq!([&up, &attached, &missing].map(|metric| metric[module].as_str()), ["1"; 3], "{module}");
        }
        assert_eq!(peer.close().0.code(), Some(0));

        let output = home.run(&["--check"]);
        assert_eq!(output.status.code(), Some(1), "{}", told(&output));
        let table = String::from_utf8_lossy(&output.stdout);
        let said = String::from_utf8_lossy(&output.stderr);
        for (module, target) in targets {
            let mut rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let is_left_out = |row: Vec<&str>| row == [module, target, "-", "left", "out"];
            assert!(rows.any(is_left_out), "{module}: {table}");
            assert_eq!(said.matches(target).count(), 1, "the reason is told once: {said}");
        }
        let trial = home.run(&[&format!("--trycompile={}", home.config().display())]);
        assert_eq!(trial.status.code(), Some(0), "as the Python agent, which leaves out what is not there");

        let lines = [("tracepoint_hits", "tracepoints = sched:sched_process_fork")];
        let complete = with_lines("sysfork,tracepoint_hits", "", &lines).with_mounts(condition).run(&["--check"]);
        assert_eq!(complete.status.code(), Some(0), "{}", told(&complete));
    }
}

#[test]
fn without_btf_every_module_says_so_and_the_agent_serves_on() {
    let home = Home::new(ALL);
    let mut peer = Peer::ready(&home, &["--btf", "/nonexistent"]);
    let sentences = values(&mut peer, "bcc.agent.module.status");
    for module in ["biolatency", "sysfork", "tcplife", "runqlat", "exectop", "netproc"] {
        assert!(
            sentences[module].contains("/nonexistent: No such file or directory (os error 2); give --btf"),
            "{sentences:?}"
        );
    }
    assert_eq!(values(&mut peer, "bcc.agent.version")[""], env!("CARGO_PKG_VERSION"));
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(values(&mut peer, "bcc.agent.kernel.release")[""], release.trim());
    assert!(values(&mut peer, "bcc.agent.program.kind").is_empty());
    assert_eq!(values(&mut peer, "bcc.agent.kernel.feature")["types"], "0");
    assert!(values(&mut peer, "bcc.agent.kernel.status")["types"].contains("give --btf"));
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn what_loading_found_of_the_kernel_is_told() {
    if lacks_bpf() {
        return;
    }
    let home = modules("sysfork,tcplife,kprobe_hits,uprobe_hits", "");
    let mut peer = Peer::ready(&home, &[]);
    let found = values(&mut peer, "bcc.agent.kernel.feature");
    let said = values(&mut peer, "bcc.agent.kernel.status");
    let is = |feature: &str, there: Option<&str>, part: &str| {
        assert_eq!(found.get(feature).map(String::as_str), there, "{feature}: {said:?}");
        assert!(said[feature].contains(part), "{feature}: no `{part}` in {}", said[feature]);
    };
    is("types", Some("1"), "/sys/kernel/btf/vmlinux");
    is("tp_btf", Some("1"), "accepted for ");
    is("raw_tp", None, "not tried");
    is("perf_event", None, "not tried: nothing that is enabled asked for it");
    is("ringbuf", Some("1"), "made for tcp_sessions");
    is("bpf_stats", None, "off: `pmstore bcc.agent.program.stats 1`, or `bpf_stats = True`");
    for feature in ["block_time_cached", "no_queue_time"] {
        assert!(found.contains_key(feature) && said[feature].ends_with(": as the kernel's types say"), "{said:?}");
    }
    match fs::read_to_string("/sys/kernel/security/lockdown") {
        Ok(text) => is("lockdown", Some(if text.contains("[none]") { "0" } else { "1" }), ""),
        Err(_) => println!("no lockdown to be read: {}", said["lockdown"]),
    }
    // What the kernel refused, in its own words: the module says the same.
    let ways = ["fentry", "fexit", "kprobe", "kretprobe"];
    let with = |answer: &str| ways.iter().filter(|way| found.get(**way).is_some_and(|there| there == answer)).count();
    let outcome = &values(&mut peer, "bcc.agent.module.status")["kprobe_hits"];
    if values(&mut peer, "bcc.agent.module.state")["kprobe_hits"] == "failed" {
        assert!(with("0") > 0 && with("1") == 0, "{found:?}");
        let words = |way: &&str| said[*way].split_once(": ").is_some_and(|(_, words)| outcome.contains(words));
        assert!(ways.iter().any(words), "{outcome} {said:?}");
    } else {
        assert!(with("1") > 0, "{found:?}");
    }
    assert_eq!(peer.close().0.code(), Some(0));
}

/// Counters by cgroup take 37 MB for two CPUs.
#[test]
fn of_tables_by_cgroup_only_rows_in_use_are_resident() {
    if lacks_bpf() {
        return;
    }
    let home = Home::new(&config(&["cgroup_disk", "cgroup_runq"]));
    let mut peer = Peer::ready(&home, &[]);
    if !home.log().contains("cgroup_runq: attached") {
        return skip("cgroup v2");
    }
    for name in ["bcc.cgroup.runq.count", "bcc.cgroup.disk.read.total.count"] {
        values(&mut peer, name);
    }
    let tasks: u64 =
        values(&mut peer, "bcc.cgroup.runq.count").values().map(|count| count.parse::<u64>().unwrap()).sum();
    assert!(tasks > 0, "those that ran were seen, and so their pages");
    let smaps = fs::read_to_string(format!("/proc/{}/smaps", peer.agent.pid())).unwrap();
    let (mut is_map, mut resident) = (false, 0);
    for line in smaps.lines() {
        match line.strip_prefix("Rss:") {
            Some(size) if is_map => resident += size.trim_end_matches("kB").trim().parse::<u64>().unwrap(),
            Some(_) => {}
            None if line.contains(" rw-s ") => is_map = line.contains("bpf-map"),
            None if !line.split(' ').next().unwrap().ends_with(':') => is_map = false,
            None => {}
        }
    }
    assert!((4..4096).contains(&resident), "{resident} KiB of maps");
    assert_eq!(peer.close().0.code(), Some(0));
}

/// Python for tasks that visit cgroups, each with direct reads and waits for a CPU, until their input ends.
const VISITORS: &str = include_str!("../programs/visitors.py");

/// Anybody to whom a part of the hierarchy is delegated can make cgroups that are active.
#[test]
fn a_thousand_active_cgroups_cost_few_megabytes() {
    if lacks_bpf() || lacks(&["losetup", "python3"]) {
        return;
    }
    let unified = match Cgroups::of(Controller::Unified) {
        Ok(unified) => unified,
        Err(none) => return skip(&none.to_string()),
    };
    // A cgroup of v2 has disk I/O of its own only with the controller.
    let has_io = |root: &Cgroups| {
        root.is_v1 || fs::read_to_string(root.mount().join("cgroup.subtree_control")).unwrap().contains("io")
    };
    let disks = Cgroups::of(Controller::BlockIo).ok().filter(has_io);
    let home = Home::new(&config(&["biolatency", "runqlat", "netproc", "cgroup_disk", "cgroup_runq"]));
    let disk = Disk::over(&home, "disk");
    let mut peer = Peer::ready(&home, &[]);
    let mut visitors = Command::new(python());
    visitors.args(["-I", "-c", VISITORS, &disk.device, "1000"]);
    visitors.args([Some(&unified), disks.as_ref()].into_iter().flatten().map(Cgroups::mount));
    let mut visitors = visitors.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut rounds = BufReader::new(visitors.stdout.take().unwrap()).lines();
    rounds.next().unwrap().unwrap();
    let maps = |peer: &mut Peer| {
        values(peer, "bcc.agent.map.memory").values().map(|size| size.parse::<u64>().unwrap()).sum::<u64>()
    };
    let before = maps(&mut peer);
    rounds.nth(1).unwrap().unwrap();
    for (count, is_by_cgroup) in
        [("bcc.cgroup.disk.read.total.count", disks.is_some()), ("bcc.cgroup.runq.count", true)]
    {
        let series = values(&mut peer, count).len();
        assert!(series >= 900 || !is_by_cgroup, "{series} of {count}");
    }
    let private = peer.memory("RssAnon");
    println!("{private} KiB of its own, {} KiB resident with {} KiB of maps", peer.memory("VmRSS"), before >> 10);
    assert!(private < 16 << 10, "{private} KiB");
    // What the kernel has for maps was there from the start, read or not.
    assert_eq!(maps(&mut peer), before);
    drop(visitors.stdin.take());
    assert!(visitors.wait().unwrap().success());
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn fetches_and_refreshes_are_counted_exactly() {
    if lacks_bpf() {
        return;
    }
    let home = Home::new(ONE);
    let mut peer = Peer::ready(&home, &[]);
    let fetches = number(&mut peer, "bcc.agent.fetches", "");
    let refreshes = number(&mut peer, "bcc.agent.module.refresh.count", "sysfork");
    for _ in 0..10 {
        values(&mut peer, "bcc.proc.sysfork");
    }
    assert_eq!(number(&mut peer, "bcc.agent.module.refresh.count", "sysfork"), refreshes + 10);
    // Those two of the refreshes, and the one that counts itself.
    assert_eq!(number(&mut peer, "bcc.agent.fetches", ""), fetches + 10 + 3);
    assert!(number(&mut peer, "bcc.agent.module.refresh.time", "sysfork") > 0);
    let pages: u64 = fs::read_to_string(format!("/proc/{}/statm", peer.agent.pid()))
        .unwrap()
        .split(' ')
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    let resident = number(&mut peer, "bcc.agent.memory.resident", "");
    assert!(resident.abs_diff(pages * 4096) < 1 << 20, "{resident} {pages}");
    assert_eq!(
        peer.error(&wire::store_block(corebcc::pcp::Pmid::new(149, 300, 5), IN_NULL, 3, &[0; 8])),
        PmErr::PERMISSION.0
    );
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn runs_are_counted_if_asked_for_while_the_agent_lives() {
    if lacks_bpf() {
        return;
    }
    const PROGRAM: &str = "tp__task_newtask";
    let home = Home::new(ONE);
    let mut peer = Peer::ready(&home, &[]);
    let alone = !anybody_counts_runs();
    let runs = values(&mut peer, "bcc.agent.program.runs");
    if alone && !anybody_counts_runs() {
        assert!(runs.is_empty(), "nobody counts, but {runs:?}");
    } else {
        println!("somebody counts runs: that there are none without the option was not looked at");
    }
    assert!(!counts_runs(Path::new(&format!("/proc/{}", peer.agent.pid()))));
    assert_eq!(peer.close().0.code(), Some(0));

    let home = Home::new(&ONE.replace("[pmda]\n", "[pmda]\nbpf_stats = True\n"));
    let mut peer = Peer::ready(&home, &[]);
    if home.log().contains("bpf_stats has no effect") {
        return skip("a kernel that counts runs for a descriptor: 5.8");
    }
    let agent = format!("/proc/{}", peer.agent.pid());
    assert!(counts_runs(Path::new(&agent)));
    assert_eq!(values(&mut peer, "bcc.agent.program.hook")[PROGRAM], "task_newtask");
    assert_eq!(values(&mut peer, "bcc.agent.program.kind")[PROGRAM], "tp_btf");
    assert_eq!(values(&mut peer, "bcc.agent.program.modules")[PROGRAM], "sysfork");
    assert_eq!(values(&mut peer, "bcc.agent.program.attached")[PROGRAM], "1");
    let all =
        |peer: &mut Peer| ["runs", "time"].map(|name| number(peer, &format!("bcc.agent.program.{name}"), PROGRAM));
    let (runs, forks) = (all(&mut peer), number(&mut peer, "bcc.proc.sysfork", ""));
    for _ in 0..100 {
        thread::spawn(|| ()).join().unwrap();
    }
    let (more, forked) = (all(&mut peer), number(&mut peer, "bcc.proc.sysfork", ""));
    assert!(more[0] >= runs[0] + 100 && more[1] > runs[1], "{runs:?} {more:?}");
    // Every run counted a task: read before and after, the module's count encloses the kernel's.
    assert!(more[0] - runs[0] <= forked - forks + 100, "{runs:?} {more:?} {forks} {forked}");
    assert_eq!(number(&mut peer, "bcc.agent.program.misses", PROGRAM), 0);
    assert_eq!(peer.close().0.code(), Some(0));
    assert!(!Path::new(&agent).exists());
}

/// The metric that switches program statistics.
pub const STATISTICS: corebcc::pcp::Pmid = corebcc::pcp::Pmid::new(149, 300, 10);

/// Returns the runs of all programs of a process, according to the kernel.
fn runs_of(pid: i32) -> u64 {
    bpf_of(pid, "prog_id:", "run_cnt:").values().sum()
}

#[test]
fn program_statistics_are_switched_by_a_store() {
    const PROGRAM: &str = "tp__task_newtask";
    if lacks_bpf() {
        return;
    }
    let home = Home::new(ONE);
    let mut peer = Peer::ready(&home, &[]);
    home.wait_for_log("privileges dropped");
    let pid = peer.agent.pid();
    let agent = format!("/proc/{pid}");
    let switch = |peer: &mut Peer, on: u32| peer.error(&wire::store(STATISTICS, IN_NULL, on));
    match switch(&mut peer, 1) {
        0 => {}
        -1 => return skip("CAP_SYS_ADMIN in the first user namespace"),
        code => return skip(&format!("a kernel that counts runs for a descriptor: 5.8 (the store answers {code})")),
    }
    assert!(counts_runs(Path::new(&agent)), "the descriptor is open");
    assert_eq!(number(&mut peer, "bcc.agent.program.stats", ""), 1);
    assert_eq!(values(&mut peer, "bcc.agent.kernel.feature")["bpf_stats"], "1");
    let forks = number(&mut peer, "bcc.proc.sysfork", "");
    let (runs, kernel) = (number(&mut peer, "bcc.agent.program.runs", PROGRAM), runs_of(pid));
    for _ in 0..100 {
        thread::spawn(|| ()).join().unwrap();
    }
    let (more, more_in_kernel) = (number(&mut peer, "bcc.agent.program.runs", PROGRAM), runs_of(pid));
    let forked = number(&mut peer, "bcc.proc.sysfork", "") - forks;
    assert!((100..=forked).contains(&(more - runs)), "{runs} {more} {forked}");
    assert!(
        runs <= kernel && kernel + 100 <= more && more <= more_in_kernel,
        "{runs} {kernel} {more} {more_in_kernel}"
    );
    let [of_programs, summary] = ["bcc.agent.program.time", "bcc.agent.summary.cpu.programs"]
        .map(|name| values(&mut peer, name).values().map(|value| value.parse::<u64>().unwrap()).sum::<u64>());
    assert!(of_programs > 0 && summary >= of_programs / 1000, "{of_programs} ns, then {summary} us");

    assert_eq!(switch(&mut peer, 0), 0);
    assert!(!counts_runs(Path::new(&agent)), "the descriptor is closed");
    assert_eq!(number(&mut peer, "bcc.agent.program.stats", ""), 0);
    let is_alone = !anybody_counts_runs();
    let before = runs_of(pid);
    for _ in 0..100 {
        thread::spawn(|| ()).join().unwrap();
    }
    let after = runs_of(pid);
    if is_alone && !anybody_counts_runs() {
        // Other tests may have switched them on for a moment.
        assert!(after - before < 100, "the kernel keeps no statistics: {before} {after}");
        assert!(values(&mut peer, "bcc.agent.program.runs").is_empty());
        assert!(values(&mut peer, "bcc.agent.summary.cpu.programs").is_empty());
    } else {
        println!("somebody else counts runs: that there are none after the switch was not looked at");
    }
    assert_eq!(switch(&mut peer, 1), 0);
    assert_eq!(peer.close().0.code(), Some(0));
    assert!(!Path::new(&agent).exists(), "the descriptor has ended with the agent");
}

#[test]
fn the_summary_agrees_with_the_kernel_and_the_other_tables() {
    if lacks_bpf() {
        return;
    }
    let lines = [("tracepoint_hits", "tracepoints = sched:sched_process_exec\nprocess = nobody")];
    let home = with_lines("sysfork,netproc,tracepoint_hits,kprobe_hits", "frob = 1", &lines);
    let mut peer = Peer::ready(&home, &[]);
    let pid = peer.agent.pid();
    let kernel = kernel_memory(pid);
    assert_eq!(number(&mut peer, "bcc.agent.summary.memory.kernel", ""), kernel);

    let mut states = values(&mut peer, "bcc.agent.module.state");
    states.remove("filter").expect("tracepoint_hits has one");
    let count = |words: &[&str]| states.values().filter(|state| words.contains(&state.as_str())).count() as u64;
    let of = |peer: &mut Peer, state: &str| number(peer, &format!("bcc.agent.summary.modules.{state}"), "");
    assert_eq!(of(&mut peer, "running"), count(&["running", "postponed"]));
    assert_eq!(of(&mut peer, "failed"), count(&["failed", "no values"]));
    assert_eq!(of(&mut peer, "off"), count(&["off", "stopped"]));
    let configuration = &values(&mut peer, "bcc.agent.summary.configuration")[""];
    assert!(configuration.contains("corebcc.conf:4") && configuration.contains("frob"), "{configuration}");

    let losses = values(&mut peer, "bcc.agent.lost.events");
    let reasons = values(&mut peer, "bcc.agent.lost.reason");
    assert!(losses.keys().eq(reasons.keys()) && !losses.is_empty(), "{losses:?} {reasons:?}");
    let sum: u64 = losses.values().map(|count| count.parse::<u64>().unwrap()).sum();
    assert!(number(&mut peer, "bcc.agent.summary.losses", "") >= sum);

    // Fields 14 and 15 of stat, in hundredths of a second.
    let ticks = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let before = ticks();
    let spent = number(&mut peer, "bcc.agent.summary.cpu.agent", "") / 10_000;
    assert!((before.saturating_sub(2)..=ticks() + 2).contains(&spent), "{before} {spent} {}", ticks());
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn each_metric_tells_why_it_has_no_values() {
    if lacks_bpf() {
        return;
    }
    let lines = [("kprobe_hits", "kprobes = kprobe:no_such_function")];
    let mut text =
        String::from("[pmda]\nmodules = sysfork,syscount,kprobe_hits,twin,nonsense\nmodule_failure_fatal = False\n");
    for module in ["sysfork", "syscount", "kprobe_hits"] {
        let its = lines.iter().find(|(name, _)| *name == module).map_or("", |(_, lines)| lines);
        text += &corebcc::modules::find(module).unwrap().section(its);
    }
    text += "[twin]\nmodule = sysfork\ncluster = 250\n";
    let home = Home::new(&text);
    let mut peer = Peer::ready(&home, &[]);
    values(&mut peer, "bcc.proc.syscall.count");
    let status = values(&mut peer, "bcc.agent.metric.status");
    assert_eq!(status["bcc.proc.sysfork"], "running", "the second section of the module costs it nothing");
    assert_eq!(status["bcc.proc.syscall.count"], "running");
    assert!(
        status["bcc.proc.syscall.latency.avg"].starts_with("no value at the last fetch: attached to "),
        "{status:?}"
    );
    assert!(
        status["bcc.kprobe.hits.count"].starts_with("failed: ")
            && status["bcc.kprobe.hits.count"].contains("no_such_function")
    );
    assert!(status["bcc.runq.latency"].starts_with("off: not enabled; to have it, add runqlat"), "{status:?}");
    let missing = values(&mut peer, "bcc.agent.module.targets.missing");
    assert_eq!(missing["kprobe_hits"], "1", "of a module that failed, too");
    let all = corebcc::modules::MODULES.iter().flat_map(|spec| spec.metrics()).count();
    assert_eq!(status.len(), all, "each metric once: {status:?}");
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn the_memory_of_maps_is_what_the_kernel_says() {
    if lacks_bpf() {
        return;
    }
    let home = Home::new(ALL);
    let mut peer = Peer::ready(&home, &[]);
    let memory = values(&mut peer, "bcc.agent.map.memory");
    let held = bpf_of(peer.agent.pid(), "map_id:", "memlock:");
    assert_eq!(memory.len(), held.len(), "{memory:?} {held:?}");
    assert_eq!(memory.values().map(|bytes| bytes.parse::<u64>().unwrap()).sum::<u64>(), held.values().sum::<u64>());
    assert_eq!(values(&mut peer, "bcc.agent.map.modules")["tcp_sessions"], "tcplife");
    assert_eq!(values(&mut peer, "bcc.agent.map.kind")["tcp_sessions"], "ringbuf");
    assert_eq!(number(&mut peer, "bcc.agent.map.ring.size", "tcp_sessions"), 64 * 4096);
    let capacity = values(&mut peer, "bcc.agent.map.entries.capacity");
    assert!(!capacity.contains_key("tcp_sessions"), "a ring has no entries");
    let cpus = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap();
    let cpus: u64 = cpus.trim().rsplit(['-', ',']).next().unwrap().parse::<u64>().unwrap() + 1;
    assert_eq!(capacity["fork_rows"], cpus.to_string());
    assert_eq!(values(&mut peer, "bcc.agent.map.key.size")["fork_rows"], "4");
    assert_eq!(number(&mut peer, "bcc.agent.map.value.size", "fork_rows"), 64);
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn copies_of_a_template_are_one_program_with_the_runs_of_all() {
    if lacks_bpf() {
        return;
    }
    const PROGRAM: &str = "each_raw__tracepoint_hits";
    let home = modules("tracepoint_hits", "bpf_stats = True");
    let mut peer = Peer::ready(&home, &[]);
    if home.log().contains("bpf_stats has no effect") {
        return skip("a kernel that counts runs for a descriptor: 5.8");
    }
    assert_eq!(values(&mut peer, "bcc.agent.program.hook")[PROGRAM], "2 targets");
    assert_eq!(values(&mut peer, "bcc.agent.program.kind")[PROGRAM], "raw_tp");
    assert_eq!(values(&mut peer, "bcc.agent.program.attached")[PROGRAM], "1");
    let hits = |peer: &mut Peer| {
        values(peer, "bcc.tracepoint.hits").values().map(|hits| hits.parse::<u64>().unwrap()).sum::<u64>()
    };
    let (first, runs) = (hits(&mut peer), number(&mut peer, "bcc.agent.program.runs", PROGRAM));
    for _ in 0..20 {
        assert!(Command::new("true").status().unwrap().success());
    }
    // An exec and an exit each; read before and after, the module's count encloses the kernel's.
    let (more, last) = (number(&mut peer, "bcc.agent.program.runs", PROGRAM), hits(&mut peer));
    assert!(more - runs >= 40 && more - runs <= last - first, "{runs} {more} {first} {last}");
    assert!(number(&mut peer, "bcc.agent.program.time", PROGRAM) > 0);
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn tables_tell_how_many_rows_are_taken() {
    if lacks_bpf() {
        return;
    }
    let home = modules("exectop,execsnoop", "");
    let mut peer = Peer::ready(&home, &[]);
    for _ in 0..3 {
        assert!(Command::new("true").status().unwrap().success());
    }
    let names = values(&mut peer, "bcc.proc.exec.count").len() as u64;
    let used = number(&mut peer, "bcc.agent.map.entries.used", "exec_rows");
    assert!(used >= names.max(1) && used < number(&mut peer, "bcc.agent.map.entries.capacity", "exec_rows"), "{used}");
    let lost = values(&mut peer, "bcc.agent.map.lost");
    assert_eq!(lost, ["exec_events", "exec_rows"].map(|map| (map.to_owned(), "0".to_owned())).into());
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn a_loss_that_is_made_is_counted() {
    if lacks_bpf() {
        return;
    }
    const UNBORN: &str = "tcplife::start-unseen";
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let born_before: Vec<TcpStream> =
        (0..5).map(|_| TcpStream::connect(listener.local_addr().unwrap()).unwrap()).collect();
    let accepted: Vec<TcpStream> = (0..5).map(|_| listener.accept().unwrap().0).collect();
    let home = modules("tcplife", "");
    let mut peer = Peer::ready(&home, &[]);
    let before = number(&mut peer, "bcc.agent.lost.events", UNBORN);
    drop(born_before);
    for mut stream in accepted {
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
    wait_for("the sessions to be missed", || {
        (number(&mut peer, "bcc.agent.lost.events", UNBORN) >= before + 5).then_some(())
    });
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn the_names_follow_the_prefix() {
    let home = Home::new(&ONE.replace("[pmda]\n", "[pmda]\nprefix = my.\n"));
    let mut peer = Peer::ready(&home, &["--btf", "/nonexistent"]);
    assert_eq!(values(&mut peer, "my.agent.version")[""], env!("CARGO_PKG_VERSION"));
    assert_eq!(peer.close().0.code(), Some(0));
}

/// A fetch of a module's metric makes no system call for the agent's own.
#[test]
fn what_is_not_asked_for_costs_nothing() {
    if lacks_bpf() || lacks(&["strace"]) {
        return;
    }
    let home = Home::new(ONE);
    let mut peer = Peer::ready(&home, &[]);
    let trace = home.path("trace.txt");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-e", "trace=bpf,openat", "-o"]).arg(&trace).args(["-p", &peer.agent.pid().to_string()]);
    let strace = crate::support::Proc(strace.stderr(home.create("strace.log")).spawn().unwrap());
    home_says(&home, "strace.log", "attached");
    for _ in 0..10 {
        values(&mut peer, "bcc.proc.sysfork");
    }
    values(&mut peer, "bcc.agent.program.kind");
    strace.signal(nix::sys::signal::Signal::SIGINT);
    wait_for("strace to end", || home.read("strace.log").contains("detached").then_some(()));
    let text = home.read("trace.txt");
    let calls = text.lines().filter(|line| line.contains("bpf(")).count();
    // The program's values and then its instance's name: twice its information, and twice the switch for counting.
    assert_eq!(calls, 2, "{text}");
    assert_eq!(peer.close().0.code(), Some(0));
}

fn home_says(home: &Home, file: &str, text: &str) {
    wait_for(text, || home.read(file).contains(text).then_some(()));
}
