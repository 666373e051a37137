//! Changes while the agent runs: pairs that come and go, modules that are started and stopped, a configuration that is read again.

use crate::own::{values, values_in_time};
use crate::pairs::{compile, example, home, pmid, source, sum, write, CONFIG};
use crate::peer::Peer;
use crate::reference::pmcd as wire;
use crate::support::{
    config, lacks, lacks_bpf, lacks_host_pids, lacks_own_machine, programs_of, skip, still_loaded, use_disk,
    wait_seconds, Home,
};
use corebcc::bpf::types::runq_row;
use corebcc::pcp::{Indom, InstId, PmErr, IN_NULL};
use corebcc::pdu::Pdu;
use libbpf_rs::query::{MapInfoIter, ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const USER_ID: u32 = 11;
const STRING: u32 = 6;

/// A pair that counts forks since it was loaded.
pub const FORKS: &str = include_str!("../programs/forks.bpf.c");
pub const FORKS_YAML: &str = "metrics: {counters: [{name: forks_total, help: Forks}]}\n";

/// Makes a home in which modules and pairs may be loaded later.
fn later(config: &str) -> Option<Home> {
    if lacks_bpf() {
        return None;
    }
    let home = home()?;
    fs::write(home.config(), config).unwrap();
    Some(home)
}

fn fork(times: usize) {
    for _ in 0..times {
        assert!(Command::new("true").status().unwrap().success());
    }
}

fn number(peer: &mut Peer, name: &str) -> u64 {
    values(peer, name)[""].parse().unwrap()
}

/// Adds kernel modules to the kernel, or takes them out.
#[track_caller]
fn kernel_modules(program: &str, names: &[&str]) {
    assert!(Command::new(program).args(names).status().unwrap().success(), "{program} {names:?}");
}

/// A module that failed since its hooks are in a kernel module is loaded again when that comes, without an order.
#[test]
fn a_module_runs_once_its_kernel_module_is_loaded() {
    if lacks_own_machine() {
        return;
    }
    kernel_modules("rmmod", &["kvm_amd"]);
    kernel_modules("rmmod", &["kvm"]);
    let text = config(&["sysfork", "kvm"]);
    let home = Home::new(&text.replacen("[pmda]\n", "[pmda]\nload_later = True\n", 1));
    let mut peer = Peer::ready(&home, &[]);
    // It has none while it is loaded again.
    let state = |peer: &mut Peer| values(peer, "bcc.agent.module.state").remove("kvm");
    assert_eq!(state(&mut peer).as_deref(), Some("failed"));
    assert!(is_named(&mut peer, "bcc.kvm.exits.count"));
    kernel_modules("modprobe", &["kvm_amd"]);
    wait_seconds(60, "the module to run", || (state(&mut peer)? == "running").then_some(()));
    let exits = values(&mut peer, "bcc.kvm.exits.count");
    assert!(exits.values().all(|count| count == "0"), "no guest ran: {exits:?}");
    assert_eq!(home.log().matches("kvm: the kernel module that it waits for is here").count(), 1, "{}", home.log());
}

/// True if a name is served.
pub fn is_named(peer: &mut Peer, name: &str) -> bool {
    let reply = peer.ask(&wire::lookup(name));
    matches!(wire::decode(&reply), Pdu::PmnsIds { .. })
}

pub fn by_root(peer: &mut Peer) {
    peer.send(&wire::attr(USER_ID, b"0\0"));
}

/// Gives an order, and returns the answer, `0` if it was carried out.
pub fn order(peer: &mut Peer, module: &str, order: &str) -> i32 {
    let instance = instance_of(peer, module);
    outcome(peer, "bcc.agent.module.control", module, instance, order)
}

pub fn reload(peer: &mut Peer) -> i32 {
    outcome(peer, "bcc.agent.control", "", IN_NULL, "reload")
}

/// Gives an order, and returns its result, which is in the metric if the order is answered before it is carried out.
fn outcome(peer: &mut Peer, metric: &str, module: &str, instance: InstId, order: &str) -> i32 {
    let control = pmid(peer, metric);
    let answer = peer.error(&wire::store_block(control, instance, STRING, format!("{order}\0").as_bytes()));
    if answer != 0 {
        return answer;
    }
    let said = wait_seconds(60, "an order", || {
        values_in_time(peer, metric)?.remove(module).filter(|said| said != "under way")
    });
    if ["done", "nothing has changed"].contains(&said.as_str()) {
        0
    } else {
        PmErr::BADSTORE.0
    }
}

/// Returns the identifier of a module among the instances of the agent's own metrics.
fn instance_of(peer: &mut Peer, module: &str) -> InstId {
    let indom = Indom::new(149, 301);
    let reply = peer.ask(&wire::instance(indom, IN_NULL, module));
    let Pdu::Instance { entries, .. } = wire::decode(&reply) else { panic!("{module}") };
    entries[0].0
}

#[test]
fn a_pair_comes_changes_and_goes_and_nothing_else_moves() {
    let Some(home) = later(CONFIG) else { return };
    if !source(&home, "kept", FORKS, FORKS_YAML) {
        return;
    }
    let mut peer = Peer::ready(&home, &[]);
    fork(10);
    let (kept, forks) = (number(&mut peer, "bcc.user.kept.forks_total"), number(&mut peer, "bcc.proc.sysfork"));
    assert!(kept >= 10 && forks >= 10);
    let programs = programs_of(peer.agent.pid());

    assert!(!is_named(&mut peer, "bcc.user.calls.calls_total"));
    let begin = Instant::now();
    write(&home, "calls.yaml", include_str!("../../examples/calls.yaml"));
    assert!(compile(&home, &example("calls.bpf.c"), "calls"));
    let compiled = Instant::now();
    wait_seconds(20, "the pair", || is_named(&mut peer, "bcc.user.calls.calls_total").then_some(()));
    assert!(compiled.elapsed() < Duration::from_secs(5), "{:?} since {:?}", compiled.elapsed(), begin.elapsed());
    assert_eq!(values(&mut peer, "bcc.user.status.state")["calls"], "running", "{}", home.log());
    let loaded_at = values(&mut peer, "bcc.user.status.loaded_at");
    let [kept_at, calls_at] = ["kept", "calls"].map(|pair| loaded_at[pair].parse::<u64>().unwrap());
    assert!(0 < kept_at && kept_at <= calls_at, "{loaded_at:?}");
    assert!(sum(values(&mut peer, "bcc.user.calls.calls_total").values()) > 0);

    // Another help is another file: that pair alone restarts.
    let text = fs::read_to_string(example("calls.yaml")).unwrap().replace("System calls by", "Calls by");
    let before = pmid(&mut peer, "bcc.user.calls.calls_total");
    write(&home, "calls.yaml", &text);
    let help = |peer: &mut Peer| match wire::decode(&peer.ask(&wire::text(before.0, 4 | 1))) {
        Pdu::Text { text, .. } => String::from_utf8_lossy(text).into_owned(),
        _ => String::new(),
    };
    wait_seconds(20, "the other help", || help(&mut peer).starts_with("Calls by").then_some(()));
    assert_eq!(pmid(&mut peer, "bcc.user.calls.calls_total"), before, "a metric keeps its identifier");

    fs::remove_file(home.path("programs.d/calls.yaml")).unwrap();
    wait_seconds(20, "its end", || (!is_named(&mut peer, "bcc.user.calls.calls_total")).then_some(()));
    assert!(!values(&mut peer, "bcc.user.status.state").contains_key("calls"));
    assert_eq!(programs_of(peer.agent.pid()), programs, "what was there is there, and nothing else");
    fork(10);
    assert!(number(&mut peer, "bcc.user.kept.forks_total") >= kept + 10, "it counts on");
    assert!(number(&mut peer, "bcc.proc.sysfork") >= forks + 10, "it counts on");
    assert_eq!(peer.close().0.code(), Some(0));
}

const TWO: &str = "[pmda]\nmodules = sysfork, exectop\n[sysfork]\nmodule = sysfork\ncluster = 2\n\
                   [exectop]\nmodule = exectop\ncluster = 13\n[biotop]\nmodule = biotop\ncluster = 5\n";

fn entries(reply: &[u8]) -> usize {
    match wire::decode(reply) {
        Pdu::Instance { entries, .. } => entries.len(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_unknown_client_may_change_nothing() {
    let Some(home) = later(TWO) else { return };
    let mut peer = Peer::ready(&home, &[]);
    assert_eq!(order(&mut peer, "sysfork", "stop"), PmErr::PERMISSION.0, "nobody knows who asks");
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn an_order_for_a_pair_that_fails_is_not_done() {
    let Some(home) = later(CONFIG) else { return };
    write(&home, "bad.yaml", "metrics: {counters: [x");
    write(&home, "bad.bpf.o", "no object");
    let mut peer = Peer::ready(&home, &[]);
    by_root(&mut peer);
    let state = |peer: &mut Peer| values(peer, "bcc.agent.module.state").remove("user.bad");
    wait_seconds(60, "the pair", || state(&mut peer).filter(|state| state == "failed"));
    assert_eq!(order(&mut peer, "user.bad", "restart"), PmErr::BADSTORE.0, "{}", home.log());
    let said = values(&mut peer, "bcc.agent.module.control").remove("user.bad").unwrap();
    assert!(said.starts_with("user.bad failed: ") && said.contains("bad.yaml"), "{said}");
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn modules_are_started_stopped_and_restarted_by_root() {
    let Some(home) = later(TWO) else { return };
    let mut peer = Peer::ready(&home, &[]);
    let state = |peer: &mut Peer, module: &str| values(peer, "bcc.agent.module.state").get(module).cloned();
    peer.send(&wire::attr(USER_ID, b"65534\0"));
    assert_eq!(order(&mut peer, "sysfork", "stop"), PmErr::PERMISSION.0);
    home.wait_for_log("(uid 65534) may not change what runs: only root may, and whom `control_users`");
    by_root(&mut peer);
    let control = pmid(&mut peer, "bcc.agent.module.control");
    let instances = ["sysfork", "exectop"].map(|module| instance_of(&mut peer, module));
    let many = wire::store_blocks(control, &instances, STRING, b"restart\0");
    assert_eq!(peer.error(&many), PmErr::BADSTORE.0, "`pmstore` without -i");
    fork(10);
    let forks = number(&mut peer, "bcc.proc.sysfork");

    assert_eq!(order(&mut peer, "exectop", "stop"), 0, "{}", home.log());
    assert!(!is_named(&mut peer, "bcc.proc.exec.count"));
    // pmlogger asks for the instances of what it has just fetched, and ends at an error.
    let instances = |serial| wire::instance(Indom::new(149, serial), IN_NULL, "");
    assert_eq!(entries(&peer.ask(&instances(13))), 0);
    assert_eq!(peer.error(&instances(14)), PmErr::INDOM.0, "it never was");
    assert_eq!(state(&mut peer, "exectop").as_deref(), Some("stopped"));
    assert!(values(&mut peer, "bcc.agent.module.status")["exectop"].contains("control start"));
    let programs = programs_of(peer.agent.pid());
    assert_eq!(order(&mut peer, "exectop", "start"), 0, "{}", home.log());
    assert_eq!(state(&mut peer, "exectop").as_deref(), Some("running"));
    fork(5);
    assert!(!values(&mut peer, "bcc.proc.exec.count").is_empty());
    assert_eq!(order(&mut peer, "exectop", "restart"), 0);
    assert_eq!(order(&mut peer, "exectop", "stop"), 0);
    assert_eq!(programs_of(peer.agent.pid()), programs, "nothing is left of it");

    assert_eq!(order(&mut peer, "biotop", "stop"), 0, "it is off: nothing has changed");
    assert_eq!(state(&mut peer, "biotop").as_deref(), Some("off"));
    assert_eq!(order(&mut peer, "biotop", "start"), 0, "a section that is not enabled: {}", home.log());
    assert!(is_named(&mut peer, "bcc.proc.io.perdev.pid"));
    assert_eq!(order(&mut peer, "biotop", "fly"), PmErr::BADSTORE.0);
    assert_eq!(reload(&mut peer), 0, "what was ordered stays");
    assert_eq!(state(&mut peer, "biotop").as_deref(), Some("running"));
    assert!(number(&mut peer, "bcc.proc.sysfork") >= forks + 5, "the others count on");
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn a_reload_changes_what_has_changed_and_no_more() {
    let Some(home) = later(TWO) else { return };
    let mut peer = Peer::ready(&home, &[]);
    by_root(&mut peer);
    fork(10);
    let forks = number(&mut peer, "bcc.proc.sysfork");
    fs::write(home.config(), TWO.replace("sysfork, exectop", "sysfork, biotop")).unwrap();
    peer.agent.signal(Signal::SIGHUP);
    wait_seconds(20, "exectop to go", || (!is_named(&mut peer, "bcc.proc.exec.count")).then_some(()));
    assert_eq!(values(&mut peer, "bcc.agent.module.state")["biotop"], "running", "{}", home.log());

    fs::write(home.config(), TWO.replace("cluster = 13", "cluster = x")).unwrap();
    assert_eq!(reload(&mut peer), PmErr::BADSTORE.0);
    let said = values(&mut peer, "bcc.agent.control")[""].clone();
    assert!(said.starts_with("nothing was changed: ") && said.contains("corebcc.conf:8: [exectop] cluster"), "{said}");
    assert_eq!(values(&mut peer, "bcc.agent.module.state")["biotop"], "running", "the old state");

    // Another option loads that module again; a user of the configuration may order from now on.
    let text = TWO.replace("sysfork, exectop", "sysfork, biotop").replace("[pmda]", "[pmda]\ncontrol_users = daemon");
    fs::write(home.config(), text.replace("cluster = 5", "cluster = 5\ninterval = 10")).unwrap();
    let reloaded = programs_of(peer.agent.pid());
    assert_eq!(reload(&mut peer), 0, "{}", home.log());
    assert_ne!(programs_of(peer.agent.pid()), reloaded, "biotop's programs are others");
    let daemon = nix::unistd::User::from_name("daemon").unwrap().unwrap().uid;
    peer.send(&wire::attr(USER_ID, format!("{daemon}\0").as_bytes()));
    assert_eq!(order(&mut peer, "biotop", "stop"), 0, "{}", home.log());
    assert!(number(&mut peer, "bcc.proc.sysfork") >= forks, "it counts on");
    assert_eq!(peer.close().0.code(), Some(0));
}

/// Returns the numbers of descriptors, of KB of mapped memory, and of programs of the agent.
fn held(peer: &Peer) -> (usize, u64, usize) {
    let pid = peer.agent.pid();
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    (descriptors, peer.memory("VmRSS"), programs_of(pid).len())
}

#[test]
fn a_hundred_starts_and_stops_leave_nothing_behind() {
    let Some(home) = later(TWO) else { return };
    if !source(&home, "forks", FORKS, FORKS_YAML) {
        return;
    }
    let mut peer = Peer::ready(&home, &[]);
    by_root(&mut peer);
    let rounds = |peer: &mut Peer, count: usize| {
        for round in 0..count {
            let module = if round % 2 == 0 { "exectop" } else { "user.forks" };
            for (word, state) in [("stop", "stopped"), ("start", "running")] {
                assert_eq!(order(peer, module, word), 0, "{}", home.log());
                let is_so = |peer: &mut Peer| values(peer, "bcc.agent.module.state")[module] == state;
                wait_seconds(60, "an order", || is_so(peer).then_some(()));
            }
        }
    };
    rounds(&mut peer, 10);
    let ids = programs_of(peer.agent.pid());
    let (descriptors, resident, programs) = held(&peer);
    let before = number(&mut peer, "bcc.proc.sysfork");
    fork(1);
    rounds(&mut peer, 90);
    fork(1);
    assert!(number(&mut peer, "bcc.proc.sysfork") >= before + 2);
    let (more, after, left) = held(&peer);
    assert_eq!((more, left), (descriptors, programs));
    assert!(after < resident + 1024, "{resident} KB became {after} KB");
    let others: Vec<u32> = ids.into_iter().filter(|id| !programs_of(peer.agent.pid()).contains(id)).collect();
    wait_seconds(20, "the kernel to free programs", || still_loaded(&others).is_empty().then_some(()));
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn without_the_privileges_orders_say_what_to_set() {
    if lacks_bpf() {
        return;
    }
    let home = Home::new(TWO);
    let mut peer = Peer::ready(&home, &[]);
    by_root(&mut peer);
    let control = pmid(&mut peer, "bcc.agent.control");
    let refused = peer.error(&wire::store_block(control, IN_NULL, STRING, b"reload\0"));
    assert_eq!(refused, PmErr::BADSTORE.0);
    let said = values(&mut peer, "bcc.agent.control")[""].clone();
    assert!(
        said.contains(
            "restart the agent, which keeps them if there is a directory programs.d or a line `load_later = True`"
        ),
        "{said}"
    );
    assert_eq!(peer.close().0.code(), Some(0));
}

/// Returns the kernel's information on the agent's descriptors.
fn descriptors(peer: &Peer) -> Vec<String> {
    let all = fs::read_dir(format!("/proc/{}/fdinfo", peer.agent.pid())).unwrap().flatten();
    all.map(|entry| fs::read_to_string(entry.path()).unwrap_or_default()).collect()
}

/// Returns the number of the agent's attached programs.
fn attached(peer: &Peer) -> usize {
    descriptors(peer).iter().filter(|text| text.contains("link_id:")).count()
}

/// Returns the identifiers of the agent's maps by name, as far as the kernel keeps it.
fn maps(peer: &Peer) -> BTreeMap<String, u32> {
    let descriptors = descriptors(peer);
    let lines = descriptors.iter().flat_map(|text| text.lines());
    let ids: Vec<u32> = lines.filter_map(|line| line.strip_prefix("map_id:")?.trim().parse().ok()).collect();
    let own = MapInfoIter::default().filter(|map| ids.contains(&map.id));
    own.map(|map| (map.name.to_string_lossy().into_owned(), map.id)).collect()
}

/// Reads the rows of an array from the kernel.
fn rows(id: u32) -> Vec<Vec<u8>> {
    let map = MapHandle::from_map_id(id).unwrap();
    let row = |index: u32| map.lookup(&index.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
    (0..map.max_entries()).map(row).collect()
}

/// A script that does an operation for each line that it is sent, and answers with a line.
struct Worker(Child, BufReader<std::process::ChildStdout>);

impl Worker {
    fn python(script: &str) -> Worker {
        let mut python = Command::new("python3");
        let mut child = python
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("lacks() has looked");
        let answers = BufReader::new(child.stdout.take().unwrap());
        Worker(child, answers)
    }

    fn go(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    }

    fn wait(&mut self) {
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        assert_eq!(line, "done\n");
    }

    fn work(&mut self) {
        self.go();
        self.wait();
    }

    /// Returns the value of the process in a metric by process.
    fn of(&self, peer: &mut Peer, metric: &str) -> u64 {
        let pid = format!("{:06} ", self.0.id());
        let own = values(peer, metric).into_iter().find(|(name, _)| name.starts_with(&pid));
        own.map_or(0, |(_, value)| value.parse().unwrap())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.0.stdin.take()); // the end of its input is its end
        let _ = self.0.wait();
    }
}

/// Python that moves 100,000 bytes over TCP for each line.
const MOVES: &str = include_str!("../programs/moves.py");

#[test]
fn a_stopped_module_does_nothing_in_programs_that_go_on() {
    if lacks(&["python3"]) {
        return;
    }
    let Some(home) = later(&config(&["netproc", "tcpperpid"])) else { return };
    let mut peer = Peer::ready(&home, &[]);
    by_root(&mut peer);
    let [calls, bytes] = ["bcc.proc.net.tcp.send.calls", "bcc.proc.io.net.total.tx"];
    let mut worker = Worker::python(MOVES);
    worker.work();
    if worker.of(&mut peer, calls) == 0 {
        return skip("a kernel that shows the length of sends: 6.3, or fexit");
    }
    assert_eq!((worker.of(&mut peer, calls), worker.of(&mut peer, bytes)), (100, 100_000));

    assert_eq!(order(&mut peer, "tcpperpid", "stop"), 0, "{}", home.log());
    let stopped: Vec<u32> =
        maps(&peer).into_iter().filter_map(|(name, id)| name.starts_with("tcpperpid").then_some(id)).collect();
    let before: Vec<_> = stopped.iter().copied().map(rows).collect();
    assert!(before.iter().flatten().flatten().any(|byte| *byte > 0), "it has counted");
    worker.work();
    assert_eq!(worker.of(&mut peer, calls), 200, "the other counts on");
    assert!(before == stopped.iter().copied().map(rows).collect::<Vec<_>>(), "its maps rest");

    assert_eq!(order(&mut peer, "tcpperpid", "start"), 0, "{}", home.log());
    worker.work();
    assert_eq!((worker.of(&mut peer, calls), worker.of(&mut peer, bytes)), (300, 100_000), "from now on");
    assert_eq!(order(&mut peer, "netproc", "stop"), 0, "{}", home.log());
    worker.work();
    assert_eq!(worker.of(&mut peer, bytes), 200_000);
    assert!(before == stopped.iter().copied().map(rows).collect::<Vec<_>>(), "nothing is left that could write");
    assert_eq!(peer.close().0.code(), Some(0));
}

/// Python that makes a thousand task switches for each line.
const SLEEPS: &str = "
import sys, time
for line in sys.stdin:
 for i in range(1000): time.sleep(0.0001)
 print('done', flush=True)
";

#[test]
fn what_a_stopped_module_does_for_another_goes_on() {
    if lacks(&["python3"]) {
        return;
    }
    let names = ["runqlat", "cgroup_runq", "oncpu", "bioperpid", "biotop"];
    let Some(home) = later(&config(&names)) else { return };
    let mut peer = Peer::ready(&home, &[]);
    by_root(&mut peer);
    let states = values(&mut peer, "bcc.agent.module.state");
    if names.iter().any(|name| states[*name] != "running") {
        return skip("cgroup v2, and block I/O tracepoints");
    }
    for name in ["runqlat", "bioperpid"] {
        assert_eq!(order(&mut peer, name, "stop"), 0, "{}", home.log());
    }
    let maps = maps(&peer);
    let arrivals = || -> Vec<Vec<u8>> {
        let counters = std::mem::offset_of!(runq_row, waits)..;
        rows(maps["runq_rows"]).into_iter().map(|row| row[counters.clone()].to_vec()).collect()
    };
    let by_cgroup = |peer: &mut Peer| sum(values(peer, "bcc.cgroup.runq.count").values());
    let turns = |peer: &mut Peer| sum(values(peer, "bcc.sched.oncpu.count").values());
    let (before, counted, turned) = (arrivals(), by_cgroup(&mut peer), turns(&mut peer));
    let mut worker = Worker::python(SLEEPS);
    worker.work();
    assert!(by_cgroup(&mut peer) >= counted + 900, "its times are found by runqlat's part");
    assert!(turns(&mut peer) >= turned + 900, "so are those of oncpu");
    assert!(arrivals() == before, "which counts no more for itself");
    assert_eq!(order(&mut peer, "cgroup_runq", "stop"), 0, "{}", home.log());
    let turned = turns(&mut peer);
    worker.work();
    assert!(turns(&mut peer) >= turned + 900, "as long as anybody needs them");
    assert!(arrivals() == before, "and nobody else counts");
    let owners = rows(maps["io_owners"]);
    if use_disk() {
        wait_seconds(20, "requests that bioperpid's part counts for biotop", || {
            (rows(maps["io_owners"]) != owners).then_some(())
        });
    }
    assert_eq!(peer.close().0.code(), Some(0));
}

/// Python that makes a call for each line, which waits for the next one.
const READS: &str = "
import os
while os.read(0, 3): os.write(1, b'done\\n')
";

#[test]
fn a_call_from_before_a_stop_is_not_timed_after_the_start() {
    if lacks_host_pids() || lacks(&["python3"]) {
        return;
    }
    let text = config(&["syscount", "execsnoop"])
        .replace("module = syscount", "module = syscount\nlatency = True\nprocess = switchread")
        .replace("module = execsnoop", "module = execsnoop\ninclude_failed = True");
    let Some(home) = later(&text) else { return };
    let mut peer = Peer::ready(&home, &[]);
    by_root(&mut peer);
    let script = format!("open('/proc/self/comm', 'w').write('switchread'){READS}");
    let mut worker = Worker::python(&script);
    worker.work();
    for (word, state) in [("stop", "stopped"), ("start", "running")] {
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(order(&mut peer, "syscount", word), 0, "{}", home.log());
        assert_eq!(values(&mut peer, "bcc.agent.module.state")["syscount"], state);
    }
    worker.work(); // the read that began before the stop
    let time = |peer: &mut Peer| -> u64 {
        values(peer, "bcc.proc.syscall.latency.cml").get("read").map_or(0, |time| time.parse().unwrap())
    };
    assert!(time(&mut peer) < 500_000_000, "{} ns", time(&mut peer));
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn a_filter_is_detached_with_the_last_module_that_uses_it() {
    if lacks_host_pids() {
        return;
    }
    let text = config(&["syscount", "sysfork"]).replace("module = syscount", "module = syscount\nprocess = nobody");
    let Some(home) = later(&text) else { return };
    let mut peer = Peer::ready(&home, &[]);
    by_root(&mut peer);
    let both = attached(&peer);
    assert_eq!(order(&mut peer, "syscount", "stop"), 0, "{}", home.log());
    let left = attached(&peer);
    assert_eq!(peer.close().0.code(), Some(0));
    fs::write(home.config(), config(&["sysfork"])).unwrap();
    let mut alone = Peer::ready(&home, &[]);
    assert!(left < both && left == attached(&alone), "{both} became {left}: {}", home.log());
    assert_eq!(alone.close().0.code(), Some(0));
}

/// Returns the number of programs with access to the switches that the agent may change while they run.
fn with_switch(home: &Home) -> usize {
    let mut peer = Peer::ready(home, &[]);
    let ids = programs_of(peer.agent.pid());
    let data = maps(&peer).into_iter().find(|(name, _)| name.ends_with(".bss")).unwrap().1;
    let programs = ProgInfoIter::with_query_opts(ProgInfoQueryOptions::default().include_map_ids(true));
    let with = programs.filter(|program| ids.contains(&program.id) && program.map_ids.contains(&data)).count();
    assert_eq!(peer.close().0.code(), Some(0));
    with
}

#[test]
fn programs_have_switches_only_where_modules_may_stop() {
    let text = config(&["netproc", "tcpperpid"]);
    let Some(home) = later(&text) else { return };
    let programs = with_switch(&home);
    assert!(programs > 0, "{}", home.log());
    assert_eq!(with_switch(&Home::new(&text)), 0);
}

#[test]
fn the_same_files_again_and_a_wrong_edit_end_no_pair() {
    let Some(home) = later(CONFIG) else { return };
    if !source(&home, "kept", FORKS, FORKS_YAML) {
        return;
    }
    let mut peer = Peer::ready(&home, &[]);
    fork(10);
    let forks = number(&mut peer, "bcc.user.kept.forks_total");
    let programs = programs_of(peer.agent.pid());
    let states = |peer: &mut Peer| values_in_time(peer, "bcc.user.status.state");

    write(&home, "kept.yaml", "metrics: {counters: [x");
    let both = wait_seconds(20, "the wrong edit", || states(&mut peer).filter(|states| states.len() == 2));
    assert_eq!((&*both["kept"], &*both["kept.yaml"]), ("running", "failed"));
    let error = &values(&mut peer, "bcc.user.status.error")["kept.yaml"];
    assert!(error.contains("YAML: ") && error.contains("the pair runs on as it was before"), "{error}");
    assert_eq!(values(&mut peer, "bcc.agent.summary.modules.failed")[""], "1");
    write(&home, "kept.yaml", FORKS_YAML);
    wait_seconds(20, "the file as it was", || states(&mut peer).filter(|states| states.len() == 1));
    assert_eq!(programs_of(peer.agent.pid()), programs);
    assert!(number(&mut peer, "bcc.user.kept.forks_total") >= forks, "it counts on");

    // Files that are no pair have a row each.
    for (name, reason) in [("alone.bpf.o", "alone.yaml: file: No such file"), ("m.yml", "m.yml; rename it")] {
        write(&home, name, "x");
        let named = |states: &BTreeMap<String, String>| states.keys().any(|row| name.starts_with(&**row));
        wait_seconds(20, name, || states(&mut peer).filter(named));
        let errors = values(&mut peer, "bcc.user.status.error");
        assert!(errors.values().any(|error| error.contains(reason)), "{errors:?}");
        fs::remove_file(home.path("programs.d").join(name)).unwrap();
        wait_seconds(20, "its end", || states(&mut peer).filter(|states| states.len() == 1));
    }
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn pairs_of_one_name_have_a_row_each() {
    let Some(home) = later(CONFIG) else { return };
    if !source(&home, "a-b", FORKS, FORKS_YAML) || !source(&home, "a_b", FORKS, FORKS_YAML) {
        return;
    }
    let mut peer = Peer::ready(&home, &[]);
    let states = |peer: &mut Peer| values_in_time(peer, "bcc.user.status.state");
    let both = states(&mut peer).unwrap();
    assert_eq!((both.len(), &*both["a_b"], &*both["a_b.yaml"]), (2, "running", "failed"), "{both:?}");
    let error = &values(&mut peer, "bcc.user.status.error")["a_b.yaml"];
    assert!(error.contains("expected a name that is free, got `a_b`"), "{error}");
    let programs = programs_of(peer.agent.pid());
    let remove = |name: &str| {
        fs::remove_file(home.path(&format!("programs.d/{name}.yaml"))).unwrap();
        fs::remove_file(home.path(&format!("programs.d/{name}.bpf.o"))).unwrap();
    };
    remove("a-b");
    let one = wait_seconds(60, "the other pair", || states(&mut peer).filter(|states| states.len() == 1));
    assert_eq!(one["a_b"], "running");
    fork(3);
    assert!(number(&mut peer, "bcc.user.a_b.forks_total") >= 3);
    wait_seconds(60, "the end of the first", || (still_loaded(&programs) != programs).then_some(()));
    remove("a_b");
    wait_seconds(60, "no pair", || states(&mut peer).filter(BTreeMap::is_empty));
    assert_eq!(peer.close().0.code(), Some(0));
}
