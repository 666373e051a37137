//! The rules of consumers/pmieconf, as pmieconf writes them for pmie: each is true for what it names, and for nothing else.

use crate::instance::Pmcd;
use crate::support::loops::Loop;
use crate::support::script::{python, Script};
use crate::support::slow_disk::SlowDisk;
use crate::support::{all_modules, config, lacks, skip, told};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

const PYTHON: &str = "/usr/bin/python3";
const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/consumers/pmieconf");
const PAGE: &str = include_str!("../../docs/alerts.md");
const GLOBAL: &str = "/var/lib/pcp/config/pmieconf/global";

/// Returns the names of all rules.
fn names() -> Vec<String> {
    let files = fs::read_dir(format!("{RULES}/corebcc")).unwrap();
    files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
}

/// Writes rules by pmieconf, of which these or all of these groups are enabled and evaluated every second, with these changes of a rule's variable.
fn written(pmcd: &Pmcd, enabled: &[&str], changes: &[(&str, &str, &str)]) {
    let run = |arguments: &[&str]| {
        let rules = format!("{GLOBAL}:{RULES}");
        let mut command = pmcd.program("pmieconf");
        let output = command.args(["-f", "rules", "-r", &rules]).args(arguments).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {}", told(&output));
    };
    let _ = fs::remove_file(pmcd.home.path("rules"));
    run(&["disable", "corebcc"]);
    enabled.iter().for_each(|rule| run(&["enable", rule]));
    run(&["modify", "corebcc", "delta", "1 sec"]);
    run(&["modify", "corebcc", "holdoff", "0"]);
    run(&["modify", "global", "syslog_action", "no"]);
    run(&["modify", "global", "user_action", "yes"]);
    for (rule, variable, value) in changes {
        run(&["modify", &format!("corebcc.{rule}"), variable, value]);
    }
}

/// Returns what pmie prints of each rule that is true while `act` runs: values and instances.
fn fired(pmcd: &Pmcd, act: impl FnOnce()) -> BTreeMap<String, String> {
    let mut pmie = pmcd.client("pmie");
    let out = pmcd.home.create("pmie.out");
    pmie.args(["-c", "rules"]).stdout(out.try_clone().unwrap()).stderr(out);
    let mut pmie = pmie.spawn().unwrap();
    // Two values make a rate.
    sleep(Duration::from_secs(3));
    act();
    sleep(Duration::from_secs(4));
    pmie.kill().unwrap();
    pmie.wait().unwrap();
    true_of(pmcd)
}

/// Returns what pmie has printed of each rule.
fn true_of(pmcd: &Pmcd) -> BTreeMap<String, String> {
    let said = pmcd.home.read("pmie.out");
    println!("{said}");
    let says = |name: &String| {
        let text = fs::read_to_string(format!("{RULES}/corebcc/{name}")).unwrap();
        text.split_once("string\trule\n\tdefault\t= \"").unwrap().1.split('"').next().unwrap().to_owned()
    };
    let lines =
        |name: &String| -> String { said.lines().filter_map(|line| Some(line.split_once(&says(name))?.1)).collect() };
    names().into_iter().map(|name| (name.clone(), lines(&name))).filter(|(_, lines)| !lines.is_empty()).collect()
}

/// Returns whether a rule names this instance, with a value or without.
fn says_it_of(said: &str, instance: &str) -> bool {
    said.contains(&format!("[{instance}]@")) || said.contains(&format!(" {instance}@"))
}

#[test]
fn each_rule_is_true_for_what_it_names_and_silent_before() {
    if lacks(&["pmie", "pmieconf"]) {
        return;
    }
    let (Some(slow), Some(fast)) = (SlowDisk::new(&[25]), SlowDisk::new(&[0])) else { return };
    let Some(written_to) = Loop::several(1).and_then(|mut loops| loops.pop()) else { return };
    let modules = [
        "biolatency",
        "runqlat",
        "sysfork",
        "exectop",
        "execsnoop",
        "cgroup_disk",
        "cgroup_runq",
        "tcpretrans",
        "netdrops",
        "dns",
        "logins",
        "ext4dist",
        "zfsdist",
    ];
    let config = config(&modules).replace("[execsnoop]\n", "[execsnoop]\nbuffer_page_count = 1\n");
    let Some(pmcd) = Pmcd::beside(&config, &[]) else { return };
    let read = |disk: &SlowDisk, seconds| {
        let options = format!("--ioengine=psync --runtime={seconds} --output=/dev/null");
        disk.fio(&options).stdout(Stdio::null()).spawn().unwrap()
    };

    written(&pmcd, &["corebcc"], &[]);
    let said = fired(&pmcd, || assert!(read(&fast, 2).wait().unwrap().success()));
    // Other tests begin sessions, execute programs and use disks meanwhile.
    assert!(
        said.keys().all(|rule| !["agent_crashed", "configuration_error", "tcp_retransmits"].contains(&&**rule)),
        "{said:?}"
    );
    assert!(said.values().all(|of| !says_it_of(of, fast.name())), "{said:?}");

    written(
        &pmcd,
        &["corebcc"],
        &[
            ("disk_read_latency", "threshold", "10"),
            ("disk_read_stalled", "threshold", "0.02"),
            ("disk_write_stalled", "threshold", "0"),
            ("disk_flush_stalled", "threshold", "0"),
            ("disk_write_latency", "threshold", "0"),
            ("cgroup_disk_read_latency", "threshold", "0"),
            ("cgroup_disk_write_latency", "threshold", "0"),
            ("ext4_latency", "threshold", "0"),
            ("runq_latency", "threshold", "0"),
            ("cgroup_runq_latency", "threshold", "0"),
            ("exec_storm", "threshold", "10"),
            ("events_lost", "threshold", "1"),
            ("tcp_retransmits", "threshold", "0"),
            ("udp_drops", "threshold", "0"),
            ("dns_timeouts", "threshold", "0"),
        ],
    );
    let mut full_port = String::new();
    let said = fired(&pmcd, || {
        let reads = [read(&slow, 4), read(&fast, 4)];
        let agent = Pid::from_raw(pmcd.agent());
        let mut unanswered = Script::python(UNANSWERED);
        full_port = unanswered.line();
        kill(agent, Signal::SIGSTOP).unwrap();
        execute();
        kill(agent, Signal::SIGCONT).unwrap();
        execute();
        let pty = "import pty; pty.spawn(['/bin/sh', '-c', 'true'])";
        assert!(Command::new(python()).args(["-c", pty]).stdin(Stdio::null()).status().unwrap().success());
        write(&written_to.path());
        reads.into_iter().for_each(|mut fio| assert!(fio.wait().unwrap().success()));
    });
    let of = |rule: &str| said.get(rule).unwrap_or_else(|| panic!("{rule} is silent: {said:?}"));
    assert!(
        says_it_of(of("disk_read_latency"), slow.name()) && !says_it_of(of("disk_read_latency"), fast.name()),
        "{said:?}"
    );
    assert!(says_it_of(of("disk_read_stalled"), slow.name()), "{said:?}");
    for rule in ["disk_write_latency", "disk_write_stalled"] {
        assert!(says_it_of(of(rule), &written_to.name()), "{said:?}");
    }
    assert!(of("events_lost").contains("[execsnoop::"), "{said:?}");
    assert!(says_it_of(of("login"), "root"), "{said:?}");
    assert!(of("udp_drops").contains(&format!("port {full_port} ")), "{said:?}");
    let down = of("module_down");
    assert!(says_it_of(down, "zfsdist"), "{said:?}");
    let again = fired(&pmcd, || {
        let text = fs::read_to_string(pmcd.home.config()).unwrap();
        fs::write(pmcd.home.config(), text + "[nonsense]\nmodule = none\n").unwrap();
        kill(Pid::from_raw(pmcd.agent()), Signal::SIGKILL).unwrap();
        pmcd.wait_for_values();
    });
    for rule in ["agent_crashed", "configuration_error"] {
        assert!(again.contains_key(rule) && !said.contains_key(rule), "{again:?}");
    }
    // The test below has these.
    let mut unseen = vec!["disk_queue", "xfs_latency", "btrfs_latency", "nfs_latency", "zfs_latency"];
    let of_modules = [
        ("ext4dist", "ext4_latency"),
        ("cgroup_disk", "cgroup_disk_read_latency"),
        ("cgroup_disk", "cgroup_disk_write_latency"),
        ("cgroup_runq", "cgroup_runq_latency"),
        ("dns", "dns_timeouts"),
    ];
    unseen.extend(of_modules.iter().filter(|(module, _)| says_it_of(down, module)).map(|(_, rule)| rule));
    let seen = |rule: &String| said.contains_key(rule) || again.contains_key(rule);
    assert_eq!(names().into_iter().filter(|rule| seen(rule) == unseen.contains(&&**rule)).collect::<Vec<_>>(), [""; 0]);
}

/// Rules of what not each machine has, long queues and other file systems, look at an archive.
#[test]
fn rules_of_queues_and_file_systems_are_true_in_an_archive() {
    if lacks(&["pmie", "pmieconf", PYTHON]) {
        return;
    }
    let Some(pmcd) = Pmcd::start() else { return };
    if !pmcd.program(PYTHON).args(["-c", "from pcp import pmi"]).output().unwrap().status.success() {
        return skip("PCP's module pmi for Python");
    }
    // sdb works as long as its requests wait.
    let mut values = String::from(
        "bcc.disk.dev.read.queue.p99 sda 50000 150000\nbcc.disk.dev.read.device.p99 sda 1000 20000\n\
         bcc.disk.dev.read.queue.p99 sdb 50000 150000\nbcc.disk.dev.read.device.p99 sdb 1000 100000\n",
    );
    const FILE_SYSTEMS: [&str; 5] = ["ext4", "xfs", "btrfs", "nfs", "zfs"];
    for of in FILE_SYSTEMS {
        for (operation, loud) in [("read", 400_000), ("write", 400_000), ("fsync", 600_000)] {
            values += &format!("bcc.fs.{of}.{operation}.p99 - 100000 {loud}\n");
        }
    }
    let mut made = pmcd.program(PYTHON);
    made.args(["-c", include_str!("../programs/rules_archive.py"), "archive"]).stdin(Stdio::piped());
    let mut made = made.spawn().unwrap();
    made.stdin.take().unwrap().write_all(values.as_bytes()).unwrap();
    assert!(made.wait().unwrap().success());
    let expected: BTreeSet<String> =
        FILE_SYSTEMS.iter().map(|of| format!("{of}_latency")).chain(["disk_queue".into()]).collect();
    // pmie of PCP 5.2 ends where an archive lacks a metric.
    let rules: Vec<String> = expected.iter().map(|rule| format!("corebcc.{rule}")).collect();
    written(&pmcd, &rules.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    let out = pmcd.home.create("pmie.out");
    let mut pmie = pmcd.program("pmie");
    pmie.args(["-a", "archive", "-c", "rules"]).stdout(out.try_clone().unwrap()).stderr(out);
    assert!(pmie.status().unwrap().success(), "{}", pmcd.home.read("pmie.out"));
    let said = true_of(&pmcd);
    assert_eq!(said.keys().cloned().collect::<BTreeSet<_>>(), expected, "{said:?}");
    assert!(says_it_of(&said["disk_queue"], "sda") && !says_it_of(&said["disk_queue"], "sdb"), "{said:?}");
    // The first ten seconds are quiet; pmie sees each second.
    assert!(said.values().all(|lines| (9..=10).contains(&lines.matches("archive").count())), "{said:?}");
}

/// Connections to a queue that is full, whose segments are sent again after a second, questions to a name server that is not there, and
/// datagrams to a socket that nobody reads, whose port it says.
pub const UNANSWERED: &str = "
server = socket.create_server(('127.0.0.1', 0), backlog=0)
clients = [socket.socket() for _ in range(20)]
for client in clients:
 client.setblocking(False)
 client.connect_ex(server.getsockname())
resolver, full, sender = (socket.socket(type=socket.SOCK_DGRAM) for _ in range(3))
for number in range(20): resolver.sendto(struct.pack('!HHHHHH', number, 256, 1, 0, 0, 0) + bytes(5), ('127.0.0.99', 53))
full.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
full.bind(('127.0.0.1', 0))
def flood():
 while True:
  sender.sendto(bytes(100), full.getsockname())
  time.sleep(0.01)
threading.Thread(target=flood, daemon=True).start()
step(full.getsockname()[1])
";

/// Writes to a disk 200 times in two seconds.
pub fn write(disk: &str) {
    let disk = File::options().write(true).open(disk).unwrap();
    for _ in 0..200 {
        disk.write_all_at(&[1; 4096], 0).unwrap();
        disk.sync_all().unwrap();
        sleep(Duration::from_millis(10));
    }
}

/// Executes 300 programs.
fn execute() {
    let script = "i=0; while [ $i -lt 300 ]; do /bin/true; i=$((i + 1)); done";
    assert!(Command::new("sh").args(["-c", script]).status().unwrap().success());
}

#[test]
fn each_rule_has_metrics_that_exist_and_a_row_of_the_page() {
    if lacks(&["pmie", "pmieconf"]) {
        return;
    }
    let Some(pmcd) = Pmcd::beside(&all_modules(), &[]) else { return };
    written(&pmcd, &["corebcc"], &[]);
    let output = pmcd.client("pmie").args(["-C", "-c", "rules"]).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", told(&output));
    for name in names() {
        let text = fs::read_to_string(format!("{RULES}/corebcc/{name}")).unwrap();
        let predicate = text.split_once("predicate =").unwrap().1.split_once("enabled").unwrap().0;
        let metrics = predicate.split_whitespace().map(|word| word.trim_matches(['(', ')']));
        let metrics: Vec<&str> = metrics.filter(|word| word.starts_with("bcc.")).collect();
        assert!(!metrics.is_empty(), "{text}");
        pmcd.ask("pminfo", &metrics);
        let enabled = if text.contains("\tenabled\t= yes\n") { "yes" } else { "no" };
        let row = PAGE.lines().find(|line| line.starts_with(&format!("| `corebcc.{name}` |")));
        assert!(row.is_some_and(|row| row.ends_with(&format!(" {enabled} |"))), "{name}: {row:?}");
        let threshold =
            text.split_once("double\tthreshold\n\tdefault\t= ").map(|(_, rest)| rest.lines().next().unwrap());
        assert!(threshold.is_none_or(|threshold| row.unwrap().contains(&format!("| {threshold} "))), "{name}: {row:?}");
        assert!(text.starts_with("#pmieconf-rules 1\n") && text.contains(&format!("rule\tcorebcc.{name}\n")));
    }
}
