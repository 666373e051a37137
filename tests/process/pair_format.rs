//! The format of pairs beyond maps that are read: addresses of kernel symbols, programs that run once, events, cgroups, sections that
//! libbpf does not know, and corebcc's additions to the format. Each program counts a known load.

use crate::own::values;
use crate::pairs::{home, source, sum, write};
use crate::peer::Peer;
use crate::support::script::part;
use crate::support::{lacks, lacks_bpf, skip, wait_for, Home};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Parts of C and YAML by name of the pair; every source has `begin`, where `is_load` recognises the process of [`load`].
const SOURCES: &str = include_str!("../programs/pair_format.bpf.c");
const YAML: &str = include_str!("../programs/pair_format.yaml");

/// Makes a home with a pair of these metrics and this source. Returns `None`, and prints that, if it cannot be tried.
fn with(name: &str, yaml: &str) -> Option<Home> {
    with_source(name, &part(SOURCES, name), yaml)
}

fn with_source(name: &str, text: &str, yaml: &str) -> Option<Home> {
    if lacks_bpf() || lacks(&["python3"]) {
        return None;
    }
    let home = home()?;
    source(&home, name, &whole(name, text), yaml).then_some(home)
}

/// Returns a source with its first lines. Tests run at the same time: each counts a process of its own name.
fn whole(name: &str, text: &str) -> String {
    format!("#define LOAD \"f-{name}\"\n{}{text}", part(SOURCES, "begin"))
}

/// Runs a process that a pair's programs know, with a number of calls.
fn load(name: &str, calls: usize) {
    load_in(name, calls, "");
}

/// Runs a process as [`load`], after a line of Python.
fn load_in(name: &str, calls: usize, first: &str) {
    let name = format!("ctypes.CDLL(None).prctl(15, b'f-{name}', 0, 0, 0)");
    let script = format!("import ctypes, os\n{first}\n{name}\nfor _ in range({calls}): os.getppid()\n");
    assert!(Command::new("python3").args(["-c", &script]).status().unwrap().success());
}

/// Starts the agent with the pair, and checks that the pair is in this state.
fn served(home: &Home, name: &str, state: &str) -> Peer {
    let mut peer = Peer::ready(home, &[]);
    let error = values(&mut peer, "bcc.user.status.error");
    assert_eq!(values(&mut peer, "bcc.user.status.state")[name], state, "{error:?} {}", home.log());
    peer
}

fn one(peer: &mut Peer, name: &str) -> u64 {
    values(peer, name)[""].parse().unwrap()
}

#[test]
fn post_attach_mark_runs_once_and_finds_kernel_addresses() {
    let yaml = part(YAML, "mark");
    let Some(home) = with("mark", &yaml) else { return };
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap();
    let address = |name: &str| {
        let line = symbols.lines().find(|line| line.ends_with(&format!(" {name}")))?;
        u64::from_str_radix(line.split(' ').next()?, 16).ok().filter(|address| *address != 0)
    };
    let (Some(begin), Some(end)) = (address("_stext"), address("_etext")) else {
        return skip("addresses of _stext and _etext in /proc/kallsyms");
    };
    write(&home, "none.yaml", &yaml.replace("_etext", "no_such_symbol"));
    fs::copy(home.path("programs.d/mark.bpf.o"), home.path("programs.d/none.bpf.o")).unwrap();
    let mut peer = served(&home, "mark", "running");
    let found = values(&mut peer, "bcc.user.mark.start");
    let expected = [("0", begin.to_string()), ("1", end.to_string()), ("2", "1".into())];
    assert_eq!(found, expected.map(|(key, value)| (key.to_owned(), value)).into());
    let error = &values(&mut peer, "bcc.user.status.error")["none"];
    assert!(error.contains("none.yaml: kaddrs: expected a symbol of the kernel") && error.contains("`no_such_symbol`"));
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn events_of_perf_and_ring_buffers_are_counted_or_lost() {
    let yaml = part(YAML, "events");
    let Some(home) = with("events", &yaml) else { return };
    let mut peer = served(&home, "events", "running");
    assert_eq!(one(&mut peer, "bcc.user.events.small_total"), 0);
    load("events", 5000);
    assert_eq!(values(&mut peer, "bcc.user.events.perf_total")["getppid"], "5000");
    assert_eq!(values(&mut peer, "bcc.user.events.ring_total")["getppid"], "5000");
    // A page has no room for the events of a tenth of a second. The kernel tells of those that it lost with the next one that finds room.
    assert!(one(&mut peer, "bcc.user.events.small_total") > 0);
    wait_for("events that were lost", || {
        load("events", 1);
        let lost = &values(&mut peer, "bcc.agent.lost.events")["user.events::events"];
        (lost.parse::<u64>().unwrap() > 0).then_some(())
    });
    assert_eq!(peer.close().0.code(), Some(0));
}

/// A pair of interfaces that lead to each other, removed when this is dropped.
struct Interfaces(String);

impl Interfaces {
    fn new() -> Option<Interfaces> {
        let name = format!("cbx{}", std::process::id());
        let ip = |args: &str| {
            let done = Command::new("ip").args(args.split(' ')).output();
            done.is_ok_and(|done| done.status.success())
        };
        if lacks(&["ip"]) {
            return None;
        }
        if !ip(&format!("link add {name} type veth peer name {name}p")) {
            skip("interfaces of type veth");
            return None;
        }
        let made = Interfaces(name.clone());
        assert!(ip(&format!("link set {name} up")) && ip(&format!("link set {name}p up")));
        Some(made)
    }
}

impl Drop for Interfaces {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "del", &self.0]).status();
    }
}

#[test]
fn perf_event_xdp_and_cgroup_skb_sections_attach() {
    let metric = |name: &str| {
        format!("    - {{name: {name}, help: a, labels: [{{name: a, size: 8, decoders: [{{name: uint}}]}}]}}\n")
    };
    let metrics = ["samples", "frames", "datagrams"].map(metric).concat();
    let yaml = format!("cgroup: /\nmetrics:\n  counters:\n{metrics}");
    if lacks_bpf() || !fs::read_to_string("/proc/mounts").unwrap().contains(" cgroup2 ") {
        return skip("BPF and cgroup v2");
    }
    let Some(interfaces) = Interfaces::new() else { return };
    let text = part(SOURCES, "sections");
    let Some(home) = with_source("sections", &text.replace("INTERFACE", &interfaces.0), &yaml) else { return };
    write(&home, "nowhere.yaml", &yaml.replace("cgroup: /\n", ""));
    let elsewhere = text.replace("INTERFACE", "no-such-if0");
    assert!(source(&home, "nowhere", &whole("nowhere", &elsewhere), &yaml.replace("cgroup: /\n", "")));
    let mut peer = served(&home, "sections", "running");
    let script = include_str!("../programs/packets.py");
    assert!(Command::new("python3").args(["-c", script, &interfaces.0]).status().unwrap().success());
    assert_eq!(values(&mut peer, "bcc.user.sections.frames")["0"], "200");
    assert_eq!(values(&mut peer, "bcc.user.sections.datagrams")["0"], "300");
    wait_for("a sample", || values(&mut peer, "bcc.user.sections.samples").contains_key("0").then_some(()));
    let error = &values(&mut peer, "bcc.user.status.error")["nowhere"];
    for part in ["program frame at xdp/no-such-if0: there is no interface no-such-if0", "add a line `cgroup: /`"] {
        assert!(error.contains(part), "no `{part}` in {error}");
    }
    assert_eq!(peer.close().0.code(), Some(0));
}

/// Takes CPU 1 off line: only if that is asked for, since processes that were bound to it lose that.
#[test]
fn a_cpu_that_was_off_line_for_a_moment_is_sampled_again() {
    const ONLINE: &str = "/sys/devices/system/cpu/cpu1/online";
    if std::env::var_os("COREBCC_CPUS").is_none() || fs::read_to_string(ONLINE).ok().as_deref() != Some("1\n") {
        return skip("COREBCC_CPUS, since it changes what runs where, and a CPU 1 that can go off line");
    }
    let yaml = "metrics: {counters: [{name: samples_total, help: Samples, \
                labels: [{name: at, size: 8, decoders: [{name: uint}]}]}]}\n";
    let Some(home) = with("samples", yaml) else { return };
    let mut peer = served(&home, "samples", "running");
    let count = |peer: &mut Peer| -> u64 {
        values(peer, "bcc.user.samples.samples_total").get("1").map_or(0, |count| count.parse().unwrap())
    };
    wait_for("samples of CPU 1", || (count(&mut peer) > 10).then_some(()));
    fs::write(ONLINE, "0").unwrap();
    fs::write(ONLINE, "1").unwrap();
    let before = count(&mut peer);
    wait_for("samples of CPU 1 again", || (count(&mut peer) > before + 10).then_some(()));
    assert_eq!(peer.close().0.code(), Some(0));
}

/// A cgroup of v2, removed when this is dropped.
struct TestCgroup(PathBuf);

impl TestCgroup {
    fn new(name: &str) -> Option<TestCgroup> {
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let mount = mounts.lines().find(|line| line.contains(" cgroup2 ")).and_then(|line| line.split(' ').nth(1));
        let path = PathBuf::from(mount.unwrap_or("/nonexistent")).join(name);
        if fs::create_dir(&path).is_err() {
            skip("cgroup v2 that can be written to");
            return None;
        }
        Some(TestCgroup(path))
    }
}

impl Drop for TestCgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn cgroups_with_a_matching_path_are_in_their_map() {
    let yaml = part(YAML, "cgroups");
    let Some(home) = with("cgroups", &yaml) else { return };
    let pid = std::process::id();
    let Some(inside) = TestCgroup::new(&format!("corebcc-format-in-{pid}")) else { return };
    let Some(outside) = TestCgroup::new(&format!("corebcc-format-out-{pid}")) else { return };
    let mut peer = served(&home, "cgroups", "running");
    let known = |peer: &mut Peer| values(peer, "bcc.user.cgroups.cgids");
    let path = |cgroup: &TestCgroup| cgroup.0.display().to_string();
    assert_eq!(known(&mut peer), [(path(&inside), "1".to_owned())].into());
    let later = TestCgroup::new(&format!("corebcc-format-in-{pid}-later")).unwrap();
    wait_for("the later cgroup", || (known(&mut peer).len() == 2).then_some(()));
    for (cgroup, calls) in [(&inside, 100), (&outside, 200), (&later, 300)] {
        let enter = format!("open('{}/cgroup.procs', 'w').write(str(os.getpid()))", cgroup.0.display());
        load_in("cgroups", calls, &enter);
    }
    let counted = [(path(&inside), "100".to_owned()), (path(&later), "300".to_owned())];
    assert_eq!(values(&mut peer, "bcc.user.cgroups.calls_total"), counted.into());
    let gone = path(&later);
    drop(later);
    wait_for("the map without it", || (!known(&mut peer).contains_key(&gone)).then_some(()));
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn a_helper_that_changes_processes_takes_a_word() {
    let yaml = "metrics: {counters: [{name: a, help: a, labels: [{name: a, size: 8, decoders: [{name: uint}]}]}]}\n";
    let Some(home) = with("helpers", yaml) else { return };
    let mut peer = served(&home, "helpers", "failed");
    let error = &values(&mut peer, "bcc.user.status.error")["helpers"];
    for part in
        ["helpers.bpf.o: object: program signals calls bpf_send_signal,", "`allow_helpers = bpf_send_signal` in [pmda]"]
    {
        assert!(error.contains(part), "no `{part}` in {error}");
    }
    assert_eq!(peer.close().0.code(), Some(0));
    let yaml = home.path("programs.d/helpers.yaml");
    let check = |status| {
        let checked = home.run(&["--check", yaml.to_str().unwrap()]);
        assert_eq!(checked.status.code(), Some(status), "{checked:?}");
    };
    check(1);
    let config = fs::read_to_string(home.config()).unwrap();
    let allowed = config.replace("[pmda]\n", "[pmda]\nallow_helpers = bpf_send_signal\n");
    fs::write(home.config(), &allowed).unwrap();
    check(0);
    assert_eq!(served(&home, "helpers", "running").close().0.code(), Some(0));
    fs::write(home.config(), allowed.replace("bpf_send_signal", "bpf_sent_signal")).unwrap();
    let checked = home.run(&["--check-syntax"]);
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(
        said.contains("allow_helpers: expected helpers of bpf_probe_write_user") && said.contains("did you mean"),
        "{said}"
    );
}

#[test]
fn types_of_the_kernel_come_from_the_file_of_btf() {
    let yaml = "metrics: {counters: [{name: a, help: a, labels: [{name: a, size: 8, decoders: [{name: uint}]}]}]}\n";
    let Some(home) = with("relocated", yaml) else { return };
    let yaml = home.path("programs.d/relocated.yaml");
    let check = |btf: &str, status| {
        let checked = home.run(&["--check", yaml.to_str().unwrap(), "--btf", btf]);
        assert_eq!(checked.status.code(), Some(status), "{checked:?}");
    };
    check("/sys/kernel/btf/vmlinux", 0);
    // A file, but no types.
    check("/proc/version", 1);
}

#[test]
fn extensions_of_the_format_shape_metrics() {
    let yaml = part(YAML, "latency");
    let Some(home) = with("latency", &yaml) else { return };
    let mut peer = served(&home, "latency", "running");
    load("latency", 1000);
    assert_eq!(one(&mut peer, "bcc.user.latency.latency_seconds.count"), 1000);
    let p50 = "bcc.user.latency.latency_seconds.p50";
    wait_for("a look at the histogram", || values(&mut peer, p50).contains_key("").then_some(()));
    for (quantile, high) in [("p50", 2), ("p90", 4), ("p99", 8), ("p999", 16), ("max", 32)] {
        let name = format!("bcc.user.latency.latency_seconds.{quantile}");
        wait_for("all calls in the window", || (one(&mut peer, &name) == high).then_some(()));
    }
    let many = values(&mut peer, "bcc.user.latency.many_total");
    assert!(many.len() == 3 && many.values().all(|value| value == "100"), "{many:?}");
    assert_eq!(values(&mut peer, "bcc.user.latency.queue")["0"], "1000");
    let info = |peer: &mut Peer, name: &str| {
        use crate::reference::pmcd::{self as wire, decode};
        let pmid = crate::pairs::pmid(peer, name);
        let reply = peer.ask(&wire::desc(pmid));
        let corebcc::pdu::Pdu::Desc(desc) = decode(&reply) else { panic!("{name}") };
        (desc.sem, desc.units)
    };
    use corebcc::pcp::{Sem, Units};
    assert_eq!(info(&mut peer, "bcc.user.latency.queue"), (Sem::INSTANT, Units::MSEC));
    assert_eq!(info(&mut peer, p50), (Sem::INSTANT, Units::USEC));
    assert_eq!(peer.close().0.code(), Some(0));
}

/// Something that is done when this goes, also by a panic.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
fn keys_deleted_under_a_walk_never_show_more_than_there_was() {
    let label = "labels: [{name: a, size: 8, decoders: [{name: uint}]}]";
    let yaml = format!(
        "metrics: {{counters: [{{name: rows_total, help: a, {label}}}, {{name: all_total, help: a, {label}}}]}}\n"
    );
    let Some(home) = with("deleting", &yaml) else { return };
    let mut peer = served(&home, "deleting", "running");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                load("deleting", 20_000);
            }
        });
        // A failure below must not leave the load running, for whose end the scope waits.
        let _end = OnDrop(|| stop.store(true, std::sync::atomic::Ordering::Relaxed));
        let (mut most, mut reads) = (0, 0);
        while reads < 200 || most == 0 {
            let rows = values(&mut peer, "bcc.user.deleting.rows_total");
            // The program makes a key with 0 and then counts its call.
            assert!(rows.values().all(|value| value == "0" || value == "1"), "no key was added to itself: {rows:?}");
            let rows = sum(rows.values());
            let all = sum(values(&mut peer, "bcc.user.deleting.all_total").values());
            // Half of the keys are there at a time, each with one call.
            assert!(rows <= all, "{rows} of {all}");
            most = most.max(rows);
            reads += 1;
        }
        assert!(most <= 1024, "{most}");
    });
    assert_eq!(peer.close().0.code(), Some(0));
}
