//! The format of pairs beyond maps that are read: addresses of kernel symbols, programs that run once, events, cgroups, sections that
//! libbpf does not know, and corebcc's additions to the format. Each program counts a known load.

use crate::own::values;
use crate::pairs::{home, source, sum, write};
use crate::peer::Peer;
use crate::support::{lacks, lacks_bpf, skip, wait_for, Home};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// First lines of every source. `is_load` recognises the process of [`load`].
const BEGIN: &str = r#"
#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>
char LICENSE[] SEC("license") = "GPL";
#define MAP(NAME, TYPE, ENTRIES, KEY) \
	struct { __uint(type, TYPE); __uint(max_entries, ENTRIES); __type(key, KEY); __type(value, __u64); } NAME SEC(".maps")
#define EVENTS(NAME, TYPE, SIZE) struct { __uint(type, TYPE); SIZE } NAME SEC(".maps")
static __always_inline __attribute__((unused)) void add(void *map, __u64 key, __u64 more)
{
	__u64 *value = bpf_map_lookup_elem(map, &key);
	if (!value) {
		__u64 zero = 0;
		bpf_map_update_elem(map, &key, &zero, BPF_NOEXIST);
		value = bpf_map_lookup_elem(map, &key);
	}
	if (value)
		__sync_fetch_and_add(value, more);
}
static __always_inline __attribute__((unused)) int is_load(void)
{
	char comm[16] = {}, wanted[] = LOAD;
	bpf_get_current_comm(comm, sizeof(comm));
	for (unsigned long i = 0; i < sizeof(wanted); i++)
		if (comm[i] != wanted[i])
			return 0;
	return 1;
}
/* The first argument of raw_tp/sys_enter points to the registers, the second is the number: getppid. */
static __always_inline __attribute__((unused)) int is_call(struct bpf_raw_tracepoint_args *ctx)
{
	return (ctx->args[1] == 110 || ctx->args[1] == 173) && is_load();
}
"#;

/// Makes a home with a pair of these metrics and this source. Returns `None`, and prints that, if it cannot be tried.
fn with(name: &str, text: &str, yaml: &str) -> Option<Home> {
    if lacks_bpf() || lacks(&["python3"]) {
        return None;
    }
    let home = home()?;
    source(&home, name, &whole(name, text), yaml).then_some(home)
}

/// Returns a source with its first lines. Tests run at the same time: each counts a process of its own name.
fn whole(name: &str, text: &str) -> String {
    format!("#define LOAD \"f-{name}\"\n{BEGIN}{text}")
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

const MARK: &str = r#"
const volatile __u64 kaddr__stext = 0;
const volatile __u64 kaddr__etext = 0;
MAP(start, BPF_MAP_TYPE_HASH, 4, __u64);
SEC("uprobe//proc/self/exe:post_attach_mark") int mark(void *ctx)
{
	add(&start, 0, kaddr__stext);
	add(&start, 1, kaddr__etext);
	add(&start, 2, 1);
	return 0;
}
"#;

#[test]
fn post_attach_mark_runs_once_and_finds_kernel_addresses() {
    let yaml = "
kaddrs: [_stext, _etext]
metrics:
  counters:
    - name: start
      help: Values at the start
      semantics: instant
      labels: [{name: what, size: 8, decoders: [{name: uint}]}]
";
    let Some(home) = with("mark", MARK, yaml) else { return };
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

const EVENTS: &str = r#"
EVENTS(perf_total, BPF_MAP_TYPE_PERF_EVENT_ARRAY, __uint(key_size, 4); __uint(value_size, 4););
EVENTS(small_total, BPF_MAP_TYPE_PERF_EVENT_ARRAY, __uint(key_size, 4); __uint(value_size, 4););
EVENTS(ring_total, BPF_MAP_TYPE_RINGBUF, __uint(max_entries, 1 << 20););
SEC("raw_tp/sys_enter") int call(struct bpf_raw_tracepoint_args *ctx)
{
	struct { __u64 number; char more[240]; } event = { .number = ctx->args[1] };
	if (!is_call(ctx))
		return 0;
	bpf_perf_event_output(ctx, &perf_total, BPF_F_CURRENT_CPU, &event, 8);
	bpf_perf_event_output(ctx, &small_total, BPF_F_CURRENT_CPU, &event, sizeof(event));
	bpf_ringbuf_output(&ring_total, &event, 8, 0);
	return 0;
}
"#;

#[test]
fn events_of_perf_and_ring_buffers_are_counted_or_lost() {
    let yaml = "
metrics:
  counters:
    - name: perf_total
      help: Calls
      perf_event_array: true
      buffer_size: 1048576
      labels: [{name: call, size: 8, decoders: [{name: uint}, {name: syscall}]}]
    - {name: small_total, help: Calls, perf_event_array: true, buffer_size: 4096}
    - name: ring_total
      help: Calls
      perf_event_array: true
      labels: [{name: call, size: 8, decoders: [{name: uint}, {name: syscall}]}]
";
    let Some(home) = with("events", EVENTS, yaml) else { return };
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

const SECTIONS: &str = r#"
MAP(samples, BPF_MAP_TYPE_HASH, 4, __u64);
MAP(frames, BPF_MAP_TYPE_HASH, 4, __u64);
MAP(datagrams, BPF_MAP_TYPE_HASH, 4, __u64);
SEC("perf_event/type=0x1,config=0,frequency=99") int sample(void *ctx)
{
	add(&samples, 0, 1);
	return 0;
}
SEC("xdp/INTERFACE") int frame(struct xdp_md *ctx)
{
	unsigned char *data = (void *)(long)ctx->data;
	if (data + 14 <= (unsigned char *)(long)ctx->data_end && data[12] == 0x88 && data[13] == 0xb5)
		add(&frames, 0, 1);
	return XDP_PASS;
}
SEC("cgroup_skb/egress") int datagram(struct __sk_buff *skb)
{
	unsigned char header[24];
	if (bpf_skb_load_bytes(skb, 0, header, sizeof(header)) == 0 && header[9] == IPPROTO_UDP && header[22] == 0xba &&
	    header[23] == 0xc7)
		add(&datagrams, 0, 1);
	return 1;
}
"#;

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
    let Some(home) = with("sections", &SECTIONS.replace("INTERFACE", &interfaces.0), &yaml) else { return };
    write(&home, "nowhere.yaml", &yaml.replace("cgroup: /\n", ""));
    let elsewhere = SECTIONS.replace("INTERFACE", "no-such-if0");
    assert!(source(&home, "nowhere", &whole("nowhere", &elsewhere), &yaml.replace("cgroup: /\n", "")));
    let mut peer = served(&home, "sections", "running");
    let script = "
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind((sys.argv[1] + 'p', 0))
for _ in range(200): s.send(bytes(12) + b'\\x88\\xb5' + bytes(50))
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(300): u.sendto(b'x', ('127.0.0.1', 0xbac7))
";
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

const SAMPLES: &str = r#"
MAP(samples_total, BPF_MAP_TYPE_HASH, 1024, __u64);
SEC("perf_event/type=1,config=0,frequency=99") int sample(void *ctx)
{
	add(&samples_total, bpf_get_smp_processor_id(), 1);
	return 0;
}
"#;

/// Takes CPU 1 off line: only if that is asked for, since processes that were bound to it lose that.
#[test]
fn a_cpu_that_was_off_line_for_a_moment_is_sampled_again() {
    const ONLINE: &str = "/sys/devices/system/cpu/cpu1/online";
    if std::env::var_os("COREBCC_CPUS").is_none() || fs::read_to_string(ONLINE).ok().as_deref() != Some("1\n") {
        return skip("COREBCC_CPUS, since it changes what runs where, and a CPU 1 that can go off line");
    }
    let yaml = "metrics: {counters: [{name: samples_total, help: Samples, \
                labels: [{name: at, size: 8, decoders: [{name: uint}]}]}]}\n";
    let Some(home) = with("samples", SAMPLES, yaml) else { return };
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

const CGROUPS: &str = r#"
MAP(cgids, BPF_MAP_TYPE_HASH, 1024, __u64);
MAP(calls_total, BPF_MAP_TYPE_HASH, 1024, __u64);
SEC("raw_tp/sys_enter") int call(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 id = bpf_get_current_cgroup_id();
	if (is_call(ctx) && bpf_map_lookup_elem(&cgids, &id))
		add(&calls_total, id, 1);
	return 0;
}
"#;

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
    let yaml = "
cgroup_id_map: {name: cgids, regexps: ['/corebcc-format-in-[0-9]+(-later)?$']}
metrics:
  counters:
    - name: cgids
      help: Cgroups that count
      semantics: discrete
      labels: [{name: path, size: 8, decoders: [{name: uint}, {name: cgroup}]}]
    - name: calls_total
      help: Calls
      labels: [{name: path, size: 8, decoders: [{name: uint}, {name: cgroup}]}]
";
    let Some(home) = with("cgroups", CGROUPS, yaml) else { return };
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

const HELPERS: &str = r#"
MAP(a, BPF_MAP_TYPE_HASH, 4, __u64);
SEC("raw_tp/sched_process_exec") int signals(void *ctx)
{
	if (is_load())
		bpf_send_signal(10);
	add(&a, 0, 1);
	return 0;
}
"#;

#[test]
fn a_helper_that_changes_processes_takes_a_word() {
    let yaml = "metrics: {counters: [{name: a, help: a, labels: [{name: a, size: 8, decoders: [{name: uint}]}]}]}\n";
    let Some(home) = with("helpers", HELPERS, yaml) else { return };
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

const RELOCATED: &str = r#"
struct task_struct { int pid; } __attribute__((preserve_access_index));
MAP(a, BPF_MAP_TYPE_HASH, 4, __u64);
SEC("raw_tp/sched_process_exec") int executed(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (void *)ctx->args[0];
	int pid = 0;
	bpf_probe_read_kernel(&pid, sizeof(pid), &task->pid);
	add(&a, 0, pid > 0);
	return 0;
}
"#;

#[test]
fn types_of_the_kernel_come_from_the_file_of_btf() {
    let yaml = "metrics: {counters: [{name: a, help: a, labels: [{name: a, size: 8, decoders: [{name: uint}]}]}]}\n";
    let Some(home) = with("relocated", RELOCATED, yaml) else { return };
    let yaml = home.path("programs.d/relocated.yaml");
    let check = |btf: &str, status| {
        let checked = home.run(&["--check", yaml.to_str().unwrap(), "--btf", btf]);
        assert_eq!(checked.status.code(), Some(status), "{checked:?}");
    };
    check("/sys/kernel/btf/vmlinux", 0);
    // A file, but no types.
    check("/proc/version", 1);
}

const LATENCY: &str = r#"
MAP(latency_seconds, BPF_MAP_TYPE_HASH, 64, __u64);
MAP(many_total, BPF_MAP_TYPE_HASH, 64, __u64);
MAP(queue, BPF_MAP_TYPE_HASH, 64, __u64);
__u64 calls;
SEC("raw_tp/sys_enter") int call(struct bpf_raw_tracepoint_args *ctx)
{
	if (!is_call(ctx))
		return 0;
	/* Of 1,000 calls, 500 in bucket 1, 400 in 2, 90 in 3, 9 in 4 and one in 5. */
	__u64 n = calls++;
	add(&latency_seconds, n < 500 ? 1 : n < 900 ? 2 : n < 990 ? 3 : n < 999 ? 4 : 5, 1);
	add(&many_total, n % 10, 1);
	add(&queue, 0, 1);
	return 0;
}
"#;

#[test]
fn extensions_of_the_format_shape_metrics() {
    let label = "labels: [{name: a, size: 8, decoders: [{name: uint}]}]";
    let yaml = format!(
        "
metrics:
  counters:
    - {{name: many_total, help: a, max_instances: 3, {label}}}
    - {{name: queue, help: a, semantics: instant, units: msec, {label}}}
  histograms:
    - name: latency_seconds
      help: Latency
      bucket_type: exp2
      bucket_multiplier: 0.000001
      bucket_min: 0
      bucket_max: 20
      quantiles: 60s
      {label}
"
    );
    let Some(home) = with("latency", LATENCY, &yaml) else { return };
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

const DELETING: &str = r#"
MAP(rows_total, BPF_MAP_TYPE_HASH, 4096, __u64);
MAP(all_total, BPF_MAP_TYPE_HASH, 4, __u64);
__u64 calls;
SEC("raw_tp/sys_enter") int call(struct bpf_raw_tracepoint_args *ctx)
{
	if (!is_call(ctx))
		return 0;
	__u64 n = __sync_fetch_and_add(&calls, 1), key = n % 1024, old = (n + 512) % 1024;
	/* The total first: it is never behind the rows. */
	add(&all_total, 0, 1);
	add(&rows_total, key, 1);
	bpf_map_delete_elem(&rows_total, &old);
	return 0;
}
"#;

#[test]
fn keys_deleted_under_a_walk_never_show_more_than_there_was() {
    let label = "labels: [{name: a, size: 8, decoders: [{name: uint}]}]";
    let yaml = format!(
        "metrics: {{counters: [{{name: rows_total, help: a, {label}}}, {{name: all_total, help: a, {label}}}]}}\n"
    );
    let Some(home) = with("deleting", &DELETING.replace("n = __sync_fetch_and_add(&calls, 1)", "n = calls++"), &yaml)
    else {
        return;
    };
    let mut peer = served(&home, "deleting", "running");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                load("deleting", 20_000);
            }
        });
        let (mut most, mut reads) = (0, 0);
        while reads < 200 || most == 0 {
            let rows = values(&mut peer, "bcc.user.deleting.rows_total");
            assert!(rows.values().all(|value| value == "1"), "no key was added to itself: {rows:?}");
            let rows = sum(rows.values());
            let all = sum(values(&mut peer, "bcc.user.deleting.all_total").values());
            // Half of the keys are there at a time, each with one call.
            assert!(rows <= all, "{rows} of {all}");
            most = most.max(rows);
            reads += 1;
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(most <= 1024, "{most}");
    });
    assert_eq!(peer.close().0.code(), Some(0));
}
