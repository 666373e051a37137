//! The pairs of examples/, all at once in one agent, against work of known size. tests/vm runs this on other kernels too, with
//! objects that were compiled here (COREBCC_EXAMPLES).

use crate::own::{values, values_in_time};
use crate::pairs::{compiled, headers, home};
use crate::peer::Peer;
use crate::support::script::copy_program;
use crate::support::{lacks, lacks_bpf, skip, told, wait_seconds, Home, BINARY};
use nix::libc;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
const WORK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/examples.cc");
const PAIRS: [&str; 15] = [
    "biolatency",
    "calls",
    "exceptions",
    "exits",
    "llcstat",
    "lookups",
    "offcpu",
    "opens",
    "packets",
    "readsizes",
    "retransmits",
    "signals",
    "traffic",
    "vfscalls",
    "xdpcount",
];

/// Makes a home with all pairs in `programs.d`, and the program that does the work.
fn with_examples() -> Option<Home> {
    if lacks_bpf() {
        return None;
    }
    if let Some(from) = compiled() {
        let home = home()?;
        for entry in fs::read_dir(from).unwrap().flatten() {
            let place = if entry.file_name() == "examples-work" { "" } else { "programs.d" };
            fs::copy(entry.path(), home.path(place).join(entry.file_name())).unwrap();
        }
        return Some(home);
    }
    if !Path::new(EXAMPLES).is_dir() {
        skip("the sources of examples/");
        return None;
    }
    if lacks(&["make", "clang", "g++", "ip", "losetup"]) {
        return None;
    }
    let (home, headers) = (home()?, headers()?);
    let made = home.path("programs.d");
    let mut make = Command::new("make");
    make.args(["--silent", "-C", EXAMPLES]).arg(format!("OUT={}", made.display())).env("CPATH", headers);
    assert!(make.status().unwrap().success());
    for entry in fs::read_dir(EXAMPLES).unwrap().flatten() {
        if entry.path().extension().is_some_and(|end| end == "yaml") {
            fs::copy(entry.path(), made.join(entry.file_name())).unwrap();
        }
    }
    for entry in fs::read_dir(&made).unwrap().flatten() {
        fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o644)).unwrap();
    }
    let built =
        Command::new("g++").args(["-O2", "-Wall", "-Werror", WORK, "-o"]).arg(home.path("examples-work")).status();
    assert!(built.unwrap().success());
    Some(home)
}

/// Moves the test into a network of its own, in which the agent and the work run. Returns false, and prints that, if it cannot be
/// had.
pub fn own_network() -> bool {
    // SAFETY: it changes the network of this thread and of what it starts, which the test is alone in.
    let is_own = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
    let up =
        is_own && Command::new("ip").args(["link", "set", "lo", "up"]).status().is_ok_and(|status| status.success());
    if !up {
        skip("a network namespace");
    }
    up
}

/// A disk that no other process uses: of the virtual machine, or a loop device.
pub struct Disk {
    pub device: String,
    is_loop: bool,
}

impl Disk {
    fn new(home: &Home) -> Disk {
        if compiled().is_some() {
            return Disk { device: "/dev/vda".into(), is_loop: false };
        }
        Disk::over(home, "disk")
    }

    /// Makes a loop device over a file of a home.
    pub fn over(home: &Home, file: &str) -> Disk {
        let file = home.path(file);
        fs::File::create(&file).unwrap().set_len(16 << 20).unwrap();
        let output = Command::new("losetup").args(["-f", "--show"]).arg(file).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Disk { device: String::from_utf8(output.stdout).unwrap().trim().to_owned(), is_loop: true }
    }

    pub fn name(&self) -> &str {
        self.device.trim_start_matches("/dev/")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_loop {
            let _ = Command::new("losetup").args(["-d", &self.device]).status();
        }
    }
}

/// Returns a number from a file about the thread's network: from the line of values, by the line of names before it, or from the only
/// line.
fn network(file: &str, line: &str, field: impl Fn(&str, &str) -> Option<u64>) -> u64 {
    let text = fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap();
    let lines: Vec<&str> = text.lines().filter(|text| text.trim_start().starts_with(line)).collect();
    field(lines[0], lines.last().unwrap()).unwrap()
}

fn segments_repeated() -> u64 {
    network("snmp", "Tcp:", |names, values| {
        let at = names.split_whitespace().position(|name| name == "RetransSegs")?;
        values.split_whitespace().nth(at)?.parse().ok()
    })
}

fn packets_received() -> u64 {
    network("dev", "lo:", |line, _| line.split_whitespace().nth(2)?.parse().ok())
}

fn sum_of<'a>(values: &'a BTreeMap<String, String>, is_wanted: impl Fn(&str) -> bool + 'a) -> u64 {
    values.iter().filter(|(name, _)| is_wanted(name)).map(|(_, value)| value.parse::<u64>().unwrap()).sum()
}

#[test]
fn each_example_counts_work_of_a_known_amount() {
    let Some(home) = with_examples() else { return };
    if !own_network() {
        return;
    }
    let disk = Disk::new(&home);
    let has_tracefs = Path::new("/sys/kernel/tracing/events").exists();
    let home = if has_tracefs { home } else { home.with_mounts("with") };
    let mut peer = Peer::ready(&home, &[]);
    let states = wait_seconds(60, "all pairs", || {
        let states = values(&mut peer, "bcc.user.status.state");
        PAIRS.iter().all(|pair| states.get(*pair).is_some_and(|state| !state.is_empty())).then_some(states)
    });
    let errors = values(&mut peer, "bcc.user.status.error");
    for pair in PAIRS {
        let (state, error) = (&*states[pair], &errors[pair]);
        println!("{pair}: {state}: {error}");
        let expected = match pair {
            // No PMU, no kprobes: each with its sentence.
            "llcstat" if state == "failed" => {
                error.contains("this machine has no perf event type=0,config=2,frequency=99")
            }
            "vfscalls" if state == "failed" => {
                let advice = "program vfs_read at kprobe/vfs_read, program vfs_write at kprobe/vfs_write, program vfs_open at kprobe/vfs_open \
                              and 3 more: this kernel has no kprobes: use a kernel built with CONFIG_KPROBES";
                compiled().is_none() && error.contains(advice)
            }
            "exceptions" if state == "failed" => error.contains("USDT probes of a shared library need Linux 5.15"),
            // There is no such call on this architecture.
            "opens" if cfg!(target_arch = "aarch64") => state == "partly attached" && error.contains("sys_exit_open"),
            _ => state == "running",
        };
        assert!(expected, "{pair}: {state}: {error}");
    }

    let made = |peer: &mut Peer| sum_of(&values(peer, "bcc.user.vfscalls.vfs_calls_total"), |name| name == "mkdir");
    let made_before = if states["vfscalls"] == "running" { made(&mut peer) } else { 0 };
    let work = "opens=30 reads=40 calls=50 signals=60 waits=70 lookups=80 throws=90 packets=100 exits=140";
    // Tests that run at the same time, in networks of their own, lose segments to 127.0.0.1.
    let address = format!("127.77.{}.{}", std::process::id() >> 8 & 0xff, std::process::id() & 0xff);
    let of_segments = format!("segments=10:{address}");
    let peer_address = address.replacen("127.77", "127.78", 1);
    let of_datagrams = format!("datagrams=130:{peer_address}");
    let of_files = format!("files=110:{}", home.path("").display());
    let of_disk = format!("disk=120:{}", disk.device);
    let mut command = Command::new(home.path("examples-work"));
    let done = command
        .args(work.split(' '))
        .args([of_files, of_disk, of_segments, of_datagrams])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");

    // The names of the kernel's symbols are read by the first fetch of stacks, which is answered without values if that takes long.
    let [waits, times] = ["waits_total", "wait_nanoseconds_total"].map(|metric| {
        let name = format!("bcc.user.offcpu.{metric}");
        wait_seconds(60, "stacks", || values_in_time(&mut peer, &name).filter(|values| !values.is_empty()))
    });
    let mut metric = |name: &str| values(&mut peer, &format!("bcc.user.{name}"));
    assert_eq!(metric("calls.calls_total")["work-calls::getppid"], "50");
    let opens = metric("opens.opens_total");
    assert_eq!((&*opens["work-opens::opened"], &*opens["work-opens::failed"]), ("30", "30"));
    let sizes = metric("readsizes.read_size_bytes.bucket");
    let sizes = ["0-0", "0-1", "2048-4096"].map(|bucket| sizes[&format!("{bucket}::work-reads")].clone());
    assert_eq!(sizes, ["40", "40", "40"]);
    assert_eq!(metric("readsizes.read_size_bytes.sum")["work-reads"], (40 * 4097).to_string());
    assert_eq!(metric("signals.signals_total")["54"], "60");
    let waited =
        String::from_utf8(done.stdout).unwrap().lines().find_map(|line| line.strip_prefix("waits ")?.parse().ok());
    assert_eq!(
        Some(sum_of(&waits, |name| name.starts_with("work-waits::"))),
        waited,
        "as getrusage(2) has it: {waits:#?}"
    );
    // A thread that is preempted for a millisecond before it sleeps does not sleep.
    let slept = |name: &str| name.starts_with("work-waits::") && name.contains("nanosleep");
    assert!((35..=70).contains(&sum_of(&waits, slept)) && sum_of(&times, slept) >= 1_000_000, "{waits:#?} {times:#?}");
    let is_bare = |name: &String| !["bpf_trace_run", "__schedule"].iter().any(|frame| name.contains(frame));
    assert!(waits.keys().filter(|name| slept(name)).all(is_bare), "{waits:#?}");
    assert_eq!(metric("lookups.lookup_duration_seconds.count")["work-lookups"], "80");
    if states["exceptions"] == "running" {
        let exceptions = metric("exceptions.exceptions_total");
        assert_eq!((&*exceptions["work-throws::thrown"], &*exceptions["work-throws::caught"]), ("90", "90"));
    }
    let packets = metric("xdpcount.xdp_packets_total");
    let bytes = metric("xdpcount.xdp_bytes_total");
    assert_eq!((&*packets["ipv4::udp"], &*bytes["ipv4::udp"]), ("230", "32660"), "of packets and datagrams");
    let namespace = fs::read_link("/proc/thread-self/ns/net").unwrap().display().to_string();
    let device = format!("{}::lo", namespace.trim_matches(|c: char| !c.is_ascii_digit()));
    let received = metric("packets.received_packets_total")[&device].clone();
    assert_eq!((sum_of(&packets, |_| true).to_string(), packets_received().to_string()), (received.clone(), received));
    let (exchanged, bytes) = (metric("traffic.traffic_packets_total"), metric("traffic.traffic_bytes_total"));
    for direction in ["received", "sent"] {
        let peer = format!("{direction}::{peer_address}");
        assert_eq!((&*exchanged[&peer], &*bytes[&peer]), ("130", "16640"), "{peer}");
    }
    let exits = metric("exits.exits_total");
    assert_eq!((&*exits["work-exits::7::0"], &*exits["work-exits::0::9"]), ("140", "140"));
    assert_eq!(metric("exits.exits_lost_total")[""], "0");
    // What a timer or a disk reports on top of a thread where the kernel runs no programs is counted by nobody; a virtual machine has no
    // such thread.
    let is_counted =
        |number: u64, done: u64| number == done || compiled().is_none() && (done / 2..done).contains(&number);
    let (repeated, sent) = (metric("retransmits.tcp_retransmits_total"), segments_repeated());
    let repeated = repeated.get(&address).map_or(0, |value| value.parse().unwrap());
    // An emulated machine may not have repeated the last of the ten yet.
    assert!(sent >= 5 && is_counted(repeated, sent), "{repeated} of {sent} segments");
    let latency = metric("biolatency.bio_latency_seconds.count");
    let read = latency[&format!("{}::read", disk.name())].parse().unwrap();
    assert!(is_counted(read, 120), "{latency:?}");
    if states["vfscalls"] == "running" {
        let made = made(&mut peer) - made_before;
        assert!(if compiled().is_some() { made == 110 } else { made >= 110 }, "{made} calls of vfs_mkdir");
    }
    if states["llcstat"] == "running" {
        assert!(sum_of(&values(&mut peer, "bcc.user.llcstat.llc_references_total"), |_| true) > 0);
    }
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn new_writes_a_pair_that_compiles_loads_and_counts() {
    if lacks_bpf() || lacks(&["make", "clang"]) {
        return;
    }
    let (Some(home), Some(headers)) = (home(), headers()) else { return };
    let directory = home.path("programs.d");
    let run = |program: &str, words: &[&str]| {
        let mut command = Command::new(program);
        command.args(words).current_dir(&directory).env("CPATH", &headers).output().unwrap()
    };
    let new = |name: &str| run(BINARY, &["new", name]);
    let refused = |name: &str, part: &str| {
        let output = new(name);
        assert!(output.status.code() == Some(1) && told(&output).contains(part), "{name}: {}", told(&output));
    };
    for wrong in ["", "../up", "9lives", "a-b", "é", &"a".repeat(65)] {
        refused(
            wrong,
            &format!("new expects a NAME of letters, digits and `_`, a letter first, at most 64, got `{wrong}`"),
        );
    }
    refused("status", "other than `status`");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0, "nothing is written");
    assert!(told(&run(BINARY, &["new"])).contains("new requires a NAME"));

    let made = new("starts");
    assert!(made.status.success() && told(&made).contains("starts.bpf.c, starts.yaml, Makefile\n"), "{}", told(&made));
    let source = home.read("programs.d/starts.bpf.c");
    fs::write(directory.join("starts.bpf.c"), format!("{source}// mine\n")).unwrap();
    refused("starts", "starts.bpf.c is there already");
    // Neither is half of a pair overwritten, nor a link followed.
    std::os::unix::fs::symlink("elsewhere", directory.join("other.yaml")).unwrap();
    refused("other", "other.yaml is there already");
    assert!(!directory.join("other.bpf.c").exists() && !directory.join("elsewhere").exists());
    fs::remove_file(directory.join("other.yaml")).unwrap();
    assert!(home.read("programs.d/starts.bpf.c").ends_with("// mine\n"));
    assert!(told(&new("second")).contains("second.bpf.c, second.yaml, Makefile (as it was)\n"));

    let built = run("make", &["--silent"]);
    assert!(built.status.success(), "{}", told(&built));
    for file in ["starts.bpf.o", "starts.yaml", "second.bpf.o", "second.yaml"] {
        fs::set_permissions(directory.join(file), fs::Permissions::from_mode(0o644)).unwrap();
    }
    let checked = run(BINARY, &["--check", "starts.yaml"]);
    assert!(checked.status.success() && told(&checked).contains("no errors, 1 metrics"), "{}", told(&checked));
    let mut peer = Peer::ready(&home, &[]);
    wait_seconds(60, "both pairs", || {
        let states = values(&mut peer, "bcc.user.status.state");
        (states.len() == 2 && states.values().all(|state| state == "running")).then_some(())
    });
    let command = home.path("pairs-new-load");
    copy_program("/bin/true", &command);
    for _ in 0..25 {
        assert!(Command::new(&command).status().unwrap().success());
    }
    for pair in ["starts", "second"] {
        assert_eq!(values(&mut peer, &format!("bcc.user.{pair}.execs_total"))["pairs-new-load"], "25");
    }
    assert_eq!(peer.close().0.code(), Some(0));
}
