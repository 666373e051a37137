//! Programs of a site's own (programs.d): a pair compiled from examples/, loaded by the agent, and its counts of a known load.

use crate::own::values;
use crate::peer::Peer;
use crate::reference::pmcd::{self as wire, decode};
pub use crate::support::pairs::{compile, compiled, example, headers, roots_home, write};
use crate::support::script::part;
use crate::support::{lacks, lacks_bpf, rows::of_pairs, told, Home, ONE};
use corebcc::pcp::Pmid;
use corebcc::pdu::Pdu;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

pub const CONFIG: &str =
    "[pmda]\nmodules = sysfork\nmodule_failure_fatal = True\n[sysfork]\nmodule = sysfork\ncluster = 2\n";

pub fn home() -> Option<Home> {
    roots_home(CONFIG, "programs.d")
}

/// Makes a home with the pair of examples/. Returns `None`, and prints that, if it cannot be tried.
fn with_calls() -> Option<Home> {
    if lacks_bpf() {
        return None;
    }
    let home = home()?;
    write(&home, "calls.yaml", include_str!("../../examples/calls.yaml"));
    compile(&home, &example("calls.bpf.c"), "calls").then_some(home)
}

/// Returns the PMID of a metric.
pub fn pmid(peer: &mut Peer, name: &str) -> Pmid {
    let reply = peer.ask(&wire::lookup(name));
    let Pdu::PmnsIds { ids, .. } = decode(&reply) else { panic!("{name}") };
    ids[0]
}

pub fn sum<'a>(values: impl IntoIterator<Item = &'a String>) -> u64 {
    values.into_iter().map(|value| value.parse::<u64>().unwrap()).sum()
}

/// Runs a process of its own name with a number of system calls of a kind.
pub fn load(calls: usize) {
    load_as("pairs-load", calls);
}

/// Runs such a process under another name: tests run at the same time.
fn load_as(name: &str, calls: usize) {
    let script = format!(
        "import ctypes, os\nctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0)\nfor _ in range({calls}): os.getppid()\n"
    );
    assert!(Command::new("python3").args(["-c", &script]).stdin(Stdio::null()).status().unwrap().success());
}

/// A pair may be in any directory, as long as only root can change it.
#[test]
fn show_takes_a_pair_by_its_name_and_by_its_file() {
    let Some(home) = with_calls() else { return };
    for name in ["user.calls", "calls", "bcc.user.calls.calls_total"] {
        let output = home.run(&["show", name, "0.5", "1"]);
        let drawn = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && output.stderr.is_empty(), "{name}: {}", told(&output));
        assert!(drawn.contains("\nbcc.user.calls.calls_total  ") && drawn.contains("::"), "{name}: {drawn}");
    }
    let elsewhere = home.path("elsewhere");
    fs::rename(home.path("programs.d"), &elsewhere).unwrap();
    let file = elsewhere.join("calls.yaml").display().to_string();
    let show = || home.run(&["show", "--program", &file, "0.5", "1"]);
    assert!(show().status.success() && told(&show()).contains("\nbcc.user.calls.calls_total  "), "{}", told(&show()));
    assert!(told(&home.run(&["show", "calls", "0.5", "1"])).contains("no metric or module `calls`"));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let refused = show();
    assert!(
        !refused.status.success() && told(&refused).contains("only root may be able to change"),
        "{}",
        told(&refused)
    );
}

#[test]
fn a_pair_counts_a_known_load_exactly() {
    if lacks(&["python3"]) {
        return;
    }
    let Some(home) = with_calls() else { return };
    let mut peer = Peer::ready(&home, &[]);
    assert_eq!(values(&mut peer, "bcc.user.status.state")["calls"], "running", "{}", home.log());
    load(5000);
    let calls = values(&mut peer, "bcc.user.calls.calls_total");
    assert_eq!(calls["pairs-load::getppid"], "5000");
    let all = sum(calls.iter().filter(|(name, _)| name.starts_with("pairs-load::")).map(|(_, value)| value));
    let count = values(&mut peer, "bcc.user.calls.call_duration_seconds.count");
    assert_eq!(count["pairs-load"], all.to_string(), "the histogram has every call of the counter");
    let buckets = values(&mut peer, "bcc.user.calls.call_duration_seconds.bucket");
    assert_eq!(sum(buckets.iter().filter(|(name, _)| name.ends_with("::pairs-load")).map(|(_, value)| value)), all);
    assert!(buckets.contains_key("0-1::pairs-load") && buckets.contains_key("1-2::pairs-load"), "{buckets:?}");
    let times = values(&mut peer, "bcc.user.calls.call_duration_seconds.sum");
    assert!(times["pairs-load"].parse::<u64>().unwrap() > 0);
    // What identifies a metric is kept over restarts, and so does an instance.
    let before = pmid(&mut peer, "bcc.user.calls.call_duration_seconds.bucket");
    assert!((500..2000).contains(&before.cluster()), "{before}");
    let counter = pmid(&mut peer, "bcc.user.calls.calls_total");
    let text = peer.ask(&wire::text(counter.0, 4 | 1));
    let Pdu::Text { text, .. } = decode(&text) else { panic!() };
    assert_eq!(text, b"System calls by command and name");
    assert_eq!(peer.close().0.code(), Some(0));
    write(&home, "a.yaml", "metrics: {counters: [{name: a, help: a}]}\n");
    let mut peer = Peer::ready(&home, &[]);
    assert_eq!(pmid(&mut peer, "bcc.user.calls.call_duration_seconds.bucket"), before);
    assert_eq!(peer.close().0.code(), Some(0));
}

const SOURCES: &str = include_str!("../programs/pairs.bpf.c");
const YAML: &str = include_str!("../programs/pairs.yaml");

pub fn source(home: &Home, name: &str, text: &str, yaml: &str) -> bool {
    let source = home.path(&format!("{name}.bpf.c"));
    fs::write(&source, text).unwrap();
    write(home, &format!("{name}.yaml"), yaml);
    compile(home, &source, name)
}

#[test]
fn what_is_wrong_with_a_pair_costs_that_part_only() {
    if lacks_bpf() {
        return;
    }
    let Some(home) = home() else { return };
    let one = "metrics: {counters: [{name: a, help: a}]}\n";
    if !source(&home, "mixed", &part(SOURCES, "mixed"), &part(YAML, "mixed"))
        || !source(&home, "writer", &part(SOURCES, "writer"), one)
    {
        return;
    }
    write(
        &home,
        "typo.yaml",
        &fs::read_to_string(example("calls.yaml")).unwrap().replace("name: string", "name: strng"),
    );
    write(&home, "typo.bpf.o", "");
    write(&home, "text.yaml", one);
    write(&home, "text.bpf.o", "not an object");
    write(&home, "shared.yaml", one);
    fs::set_permissions(home.path("programs.d/shared.yaml"), fs::Permissions::from_mode(0o666)).unwrap();
    write(&home, "shared.bpf.o", "");

    let mut peer = Peer::ready(&home, &[]);
    let states = values(&mut peer, "bcc.user.status.state");
    let errors = values(&mut peer, "bcc.user.status.error");
    let said = |name: &str, state: &str, parts: &[&str]| {
        assert_eq!(states[name], state, "{}", errors[name]);
        for part in parts {
            assert!(errors[name].contains(part), "{name}: no `{part}` in {}", errors[name]);
        }
    };
    said("typo", "failed", &["typo.yaml: line 9: metrics.counters[0].labels[0].decoders[0]", "did you mean `string`?"]);
    said("text", "failed", &["text.bpf.o: object: "]);
    said("writer", "failed", &["writer.bpf.o", "program change calls bpf_probe_write_user"]);
    said("shared", "failed", &["shared.yaml: file: expected owner root", "mode 0666", "chmod go-w"]);
    assert!(errors["mixed"].contains("invalid mem access"), "{}: the verifier's last words", errors["mixed"]);
    let parts = [
        "program missing at raw_tp/no_such_tracepoint",
        "program refused at raw_tp/sched_switch",
        "expected values of 8 bytes",
    ];
    said("mixed", "partly attached", &parts);
    assert_eq!(values(&mut peer, "bcc.user.status.attached")["mixed"], "1");
    assert_eq!(values(&mut peer, "bcc.user.status.programs")["mixed"], "3");
    assert_eq!(values(&mut peer, "bcc.agent.summary.modules.failed")[""], "4", "those without tables, too");
    let memory = |peer: &mut Peer, name: &str| sum(values(peer, name).values());
    let of_pairs = memory(&mut peer, "bcc.user.status.memory");
    let in_all = memory(&mut peer, "bcc.agent.summary.memory.kernel");
    assert!(0 < of_pairs && of_pairs <= in_all, "{of_pairs} of {in_all}");

    let forks = |peer: &mut Peer| values(peer, "bcc.user.mixed.forks_total")[""].parse::<u64>().unwrap();
    let before = forks(&mut peer);
    for _ in 0..20 {
        assert!(Command::new("true").status().unwrap().success());
    }
    assert!(forks(&mut peer) >= before + 20);
    let by_cpu = values(&mut peer, "bcc.user.mixed.forks_by_cpu_total");
    assert!(by_cpu.contains_key("cpu0") && sum(by_cpu.values()) >= before + 20, "{by_cpu:?}");
    for failed in ["bcc.user.mixed.short_total", "bcc.user.writer.a"] {
        let pmid = pmid(&mut peer, failed);
        assert_eq!(wire::result(&peer.ask(&wire::fetch(&[pmid])))[0].numval, corebcc::pcp::PmErr::VALUE.0, "{failed}");
    }
    assert!(values(&mut peer, "bcc.proc.sysfork")[""].parse::<u64>().unwrap() >= 20, "modules go on");
    assert_eq!(peer.close().0.code(), Some(0));

    let typo = home.path("programs.d/typo.yaml");
    let checked = home.run(&["--check", typo.to_str().unwrap()]);
    assert_eq!(checked.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&checked.stderr).contains("decoders[0]: expected one of cgroup"), "{checked:?}");
    let mixed = home.run(&["--check", home.path("programs.d/mixed.yaml").to_str().unwrap()]);
    let table = String::from_utf8_lossy(&mixed.stdout).into_owned();
    let is_ok = |line: &str| line.split_whitespace().eq(["mixed", "forked", "raw_tp/sched_process_fork", "ok"]);
    assert!(table.lines().any(is_ok), "{table}");
    let whole = home.run(&["--check"]);
    let table = String::from_utf8_lossy(&whole.stdout).into_owned();
    assert!(whole.status.code() == Some(1) && table.contains("user.typo") && table.contains("user.mixed"), "{table}");
}

#[test]
fn where_no_pair_can_be_there_is_no_name_of_one() {
    let home = Home::new(ONE);
    let mut peer = Peer::ready(&home, &[]);
    for row in of_pairs() {
        assert_eq!(peer.error(&wire::desc(row.pmid())), corebcc::pcp::PmErr::PMID.0, "{}", row.name);
    }
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn limits_of_rows_and_of_memory_hold() {
    if lacks_bpf() || lacks(&["python3"]) {
        return;
    }
    let Some(home) = home() else { return };
    let [many, nowhere] = ["many", "nowhere"].map(|name| part(SOURCES, name));
    let many = many.replace("GETPPID", &nix::libc::SYS_getppid.to_string());
    let one = "metrics: {counters: [{name: a, help: a}]}\n";
    let huge = nowhere.replace("max_entries, 1)", "max_entries, 1000000000)");
    let pairs = [("many", &*many, &*part(YAML, "many")), ("nowhere", &nowhere, one), ("huge", &huge, one)];
    if !pairs.iter().all(|(name, text, yaml)| source(&home, name, text, yaml)) {
        return;
    }
    let mut peer = Peer::ready(&home, &[]);
    for row in of_pairs() {
        assert_eq!(decode(&peer.ask(&wire::desc(row.pmid()))), Pdu::Desc(row.desc()), "{}", row.name);
    }
    assert_eq!(values(&mut peer, "bcc.user.status.state")["nowhere"], "failed");
    assert_eq!(values(&mut peer, "bcc.user.status.memory")["nowhere"], "0");
    let error = &values(&mut peer, "bcc.user.status.error")["huge"];
    let reason =
        "huge.bpf.o: maps: expected maps of at most 512 MB of kernel memory, got 7630 MB, of which `a` has 7630;";
    assert!(error.contains(reason) && error.contains("add a line `max_memory: 7630` to "), "{error}");
    let checked = home.run(&["--check", home.path("programs.d/huge.yaml").to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&checked.stderr).contains(reason), "{checked:?}");
    load_as("many-load", 40);
    let names = |peer: &mut Peer| values(peer, "bcc.user.many.many").into_keys().collect::<Vec<_>>();
    let first = names(&mut peer);
    assert_eq!(first.len(), 40);
    let lost = |peer: &mut Peer| values(peer, "bcc.agent.lost.events")["user.many::series"].parse::<u64>().unwrap();
    assert_eq!(lost(&mut peer), 0);
    load_as("many-load", 5000);
    let then = names(&mut peer);
    assert!(then.len() == 50 && first.iter().all(|name| then.contains(name)), "{first:?} {then:?}");
    assert!(lost(&mut peer) >= 4990);
    assert_eq!(names(&mut peer), then);
    assert_eq!(peer.close().0.code(), Some(0));
}
