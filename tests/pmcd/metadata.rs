//! Descriptors, instances, help texts and labels as pminfo shows them.

use crate::instance::{blocks, pipe, session, Pmcd};
use crate::support::{
    all_modules,
    rows::{added, all, original, own, Row, CORRECTED, HISTOGRAMS, INDOMS},
    skip, use_disk, wait_for, wait_seconds, Home, Proc, ALL,
};
use corebcc::kit::Shape;
use corebcc::modules::MODULES;
use corebcc::pcp::{Sem, Type};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Returns pminfo's lines about a metric with its PMID, type, instance domain, semantics and units.
fn description(row: &Row) -> [String; 3] {
    let ty = match row.ty {
        Type::U64 => "64-bit unsigned int",
        Type::U32 => "32-bit unsigned int",
        Type::I32 => "32-bit int",
        Type::I64 => "64-bit int",
        Type::STRING => "string",
        Type::DOUBLE => "double",
        other => panic!("{other:?}"),
    };
    let sem = match row.sem {
        Sem::DISCRETE => "discrete",
        Sem::COUNTER if !CORRECTED.contains(&row.name) => "counter",
        _ => "instant",
    };
    let indom = match row.instances {
        true => format!("149.{} {:#x}", row.cluster, row.desc().indom.0),
        false => "PM_INDOM_NULL 0xffffffff".into(),
    };
    [
        format!("{} PMID: 149.{}.{}", row.name, row.cluster, row.item),
        format!("    Data Type: {ty}  InDom: {indom}"),
        format!("    Semantics: {sem}  Units: {}", row.units),
    ]
}

/// All modules run at once, even those that this kernel refuses: a module that cannot be loaded keeps its metadata.
#[test]
fn every_metric_is_served_with_its_metadata_and_labels() {
    let Some(pmcd) = Pmcd::beside(&all_modules(), &[]) else { return };
    session();
    let rows: Vec<Row> = original().collect();
    assert_eq!(rows.len(), 95);

    let described = blocks(&pmcd.ask("pminfo", &["-dm", "bcc"]));
    let labelled = blocks(&pmcd.ask("pminfo", &["-l", "bcc"]));
    for row in &rows {
        let lines = described.get(row.name).unwrap_or_else(|| panic!("{} is not served", row.name));
        assert_eq!(lines[..3], description(row), "{}", row.name);
        has_labels(row, &labelled[row.name]);
    }
    let beside: Vec<Row> = own().chain(added()).collect();
    for row in &beside {
        assert_eq!(described[row.name][..3], description(row), "{}", row.name);
    }
    let known = |name: &str| rows.iter().chain(&beside).any(|row| row.name == name);
    let beyond: Vec<&String> = described.keys().filter(|name| !known(name)).collect();
    assert!(beyond.is_empty(), "not in the table: {beyond:?}");

    // What could not be loaded says so by an error instead of values.
    let values = pmcd.ask("pmprobe", &["bcc"]);
    for row in rows.iter().filter(|row| pmcd.home.log().contains(&format!("Error: {}: not loaded: ", row.module))) {
        let line = values.lines().find(|line| line.starts_with(&format!("{} ", row.name))).unwrap();
        assert!(line.contains(" -12350 "), "{line}"); // PM_ERR_APPVERSION
    }
}

#[test]
fn every_metric_and_instance_domain_has_help() {
    let Some(pmcd) = Pmcd::start() else { return };
    let blocks = blocks(&pmcd.ask("pminfo", &["-tT", "bcc"]));
    let served: BTreeSet<&str> = blocks.keys().map(String::as_str).collect();
    assert_eq!(served, all().map(|row| row.name).collect());
    for (name, lines) in blocks {
        let oneline = lines[0].split_once('[').unwrap_or_else(|| panic!("{name}: {lines:?}")).1;
        assert!(oneline.len() > 5 && oneline.ends_with(']'), "{name}: {oneline}");
        let help: usize = lines[1..].iter().map(|line| line.trim().len()).sum();
        assert!(help > 30, "{name}: {lines:?}");
    }
    for serial in INDOMS {
        for option in ["-t", "-T"] {
            let text = pmcd.ask("pminfo", &[option, "-I", &format!("149.{serial}")]);
            assert!(text.len() > 30 && !text.contains("Error"), "{option} 149.{serial}: {text}");
        }
    }
}

/// Modules whose identifiers deliberately follow another rule; docs/compatibility.md names them.
const RENUMBERED: [(&str, &str); 2] = [("tcpperpid", "the pid itself"), ("ustat", "the pid itself")];

/// Configured targets in their order, for rules that depend on it.
const TRACEPOINTS: [&str; 2] = ["sched:sched_process_exit", "sched:sched_process_exec"];
const FUNCTIONS: [&str; 2] = ["c::getaddrinfo", "c::fork"];
const PROBES: [&str; 2] = ["function__return", "function__entry"];

/// Instances of a module, from the values of its metrics.
type Instances = BTreeMap<u64, String>;

/// True if a name has the form of the table's line, and if the identifier fits where it depends on the name only.
fn fits(row: &Row, number: u64, name: &str) -> bool {
    let low = if number == 0 { 0 } else { 1u64 << number.min(62) };
    let form = match row.form.split([' ', ';']).next().unwrap() {
        "LOW-HIGH" => &format!("{low}-{}", (2u64 << number.min(62)) - 1),
        "ROW" => &number.to_string(),
        "DISK::PID" => r"[a-z][\w-]*::\d{6,} \S+",
        "LADDR:LPORT::RADDR:RPORT" => r"[0-9a-f.:]+:\d+::[0-9a-f.:]+:\d+",
        // What ended before anybody could ask for its program has its command name, and so has what had none.
        "PID" if row.form.starts_with("PID ARGV0") || row.form.contains("zero-padded") => r"\d{6,} \S+",
        "PID" => r"[1-9]\d*",
        "COMM" => r".{1,15}",
        "SYSCALL" => r"([1-9]\d*::)?([a-z]\w*|UNDEF\d+)",
        "CLASS.METHOD" => r"[A-Za-z0-9]\S*\.\S+",
        "FUNC[+FUNC...]" => r"[\w.]+(\+[\w.]+)*",
        "CATEGORY:EVENT" => r"\w+:\w+",
        "PATH::PROBE" => r"/\S+::\w+",
        "LIB::SYMBOL" => r"[^:]+::\w+",
        "FUNC" => r"([1-9]\d*::)?[\w.]+",
        other => panic!("{}: no form {other}", row.name),
    };
    regex::Regex::new(&format!("^(?:{form})$")).unwrap().is_match(name)
}

/// Compares the identifiers of a module's instances with the rule of its line.
fn follow(row: &Row, instances: &Instances) {
    let rule = RENUMBERED.iter().find(|(module, _)| *module == row.module).map_or(row.rule, |(_, rule)| rule);
    let numbers = instances.keys().copied();
    let dense = || assert!(numbers.clone().eq(0..instances.len() as u64), "{}: {instances:?}", row.name);
    match rule.split([',', '(']).next().unwrap().trim() {
        "slot-1" | "row number" => {} // fits() has seen to it
        "the pid itself" => {
            for (number, name) in instances {
                assert_eq!(name.split(' ').next().unwrap().parse(), Ok(*number), "{}", row.name);
            }
        }
        "cache" => dense(),
        "order of discovery" | "configuration order" => {
            dense();
            let names: Vec<&str> = instances.values().map(|name| name.rsplit('/').next().unwrap()).collect();
            match row.module {
                "tracepoint_hits" => assert_eq!(names, TRACEPOINTS),
                "uprobe_hits" => assert_eq!(names, FUNCTIONS),
                "usdt_hits" => {
                    assert!(names.iter().zip(PROBES).all(|(name, probe)| name.ends_with(probe)), "{names:?}")
                }
                _ => assert_eq!(names, ["vfs_open"]),
            }
        }
        "syscall number for the fixed part" => {
            use nix::libc::{SYS_clock_nanosleep, SYS_close, SYS_openat, SYS_read};
            let known = [
                ("clock_nanosleep", SYS_clock_nanosleep),
                ("close", SYS_close),
                ("openat", SYS_openat),
                ("read", SYS_read),
            ];
            for (number, name) in instances {
                let (process, call) =
                    name.split_once("::").map_or((0, name.as_str()), |(pid, call)| (pid.parse::<u64>().unwrap(), call));
                if let Some((_, call)) = known.iter().find(|(known, _)| *known == call) {
                    // Those by process have numbers beyond the calls' own: docs/compatibility.md.
                    assert_eq!(*number, process * 512 + *call as u64, "{name}");
                }
            }
        }
        other => panic!("{}: no rule {other}", row.name),
    }
}

/// Parses the instance in a value's line of `pminfo -f`.
fn instance(line: &str) -> Option<(u64, String)> {
    let (number, name) = line.trim().strip_prefix("inst [")?.split_once(" or \"")?;
    Some((number.parse().unwrap(), name.rsplit_once("\"]").unwrap().0.to_owned()))
}

/// A thread that repeats the operations that modules count, until it is dropped.
struct Load(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl Load {
    fn new() -> Load {
        let over = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let over = Arc::clone(&over);
            move || {
                while !over.load(Relaxed) {
                    session();
                    use_disk();
                    Command::new("true").status().unwrap();
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        });
        Load(over, Some(thread))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
        let _ = self.1.take().map(JoinHandle::join);
    }
}

/// Python for connections to a socket whose queue is full: their first packets are lost, and sent again after a second.
const UNHEARD: &str = "import socket, time
s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(0)
kept = [socket.socket() for _ in range(8)]
for c in kept: c.setblocking(False); c.connect_ex(s.getsockname())
time.sleep(120)";

const CALLS: &str = "class Thing { function work() {} } $t = new Thing; for (;;) { $t->work(); usleep(1000); }";

/// Each module that this kernel has the hooks for counts work of every kind: its instances in pminfo are compared with the columns of
/// the table about names and numbers.
#[test]
fn instances_have_the_names_and_numbers_that_go_together() {
    let php = fs::canonicalize("/usr/bin/php").unwrap_or_default();
    let probes = corebcc::host::Elf::read(&php).map(|elf| elf.probes()).unwrap_or_default();
    let has_php = probes.iter().any(|probe| probe.name == "function__entry");
    let hits = corebcc::modules::find("tracepoint_hits").unwrap();
    let mut text = all_modules()
        .replace("[syscount]\n", "[syscount]\nprocess = php\ndetails = True\n")
        .replace(&hits.section(""), &hits.section(&format!("tracepoints = {}", TRACEPOINTS.join(","))));
    if has_php {
        let [one, two] = PROBES.map(|probe| format!("{}:{probe}", php.display()));
        text = text
            .replace("process = python3\nlanguage = python\n", "process = php\nlanguage = php\n")
            .replace("process = python3\nusdts = /usr/bin/python3:.*\n", &format!("usdts = {one},{two}\n"));
    }
    let Some(pmcd) = Pmcd::beside(&text, &[]) else { return };
    let status: BTreeMap<String, String> = pmcd.values("bcc.agent.module.status").into_iter().collect();
    let states: BTreeMap<String, String> = pmcd.values("bcc.agent.module.state").into_iter().collect();
    let disks = use_disk();
    let mut children = Vec::new();
    if has_php {
        let mut command = Command::new("/usr/bin/php");
        children.push(Proc(command.args(["-r", CALLS]).env("USE_ZEND_DTRACE", "1").spawn().unwrap()));
    }
    children.extend(Command::new("python3").args(["-c", UNHEARD]).spawn().map(Proc));
    let mut expected = BTreeSet::new();
    for module in original().filter(|row| row.instances).map(|row| row.module).collect::<BTreeSet<_>>() {
        let missing = match module {
            _ if states[module].contains("failed") => Some(status[module].as_str()),
            "biolatency" | "bioperpid" | "biotop" if !disks => Some("a disk that counts its requests"),
            "ucalls" | "ustat" | "usdt_hits" | "syscount" if !has_php => {
                Some("/usr/bin/php with the probe function__entry")
            }
            "tcpretrans" if children.len() < 1 + usize::from(has_php) => Some("python3"),
            _ => None,
        };
        match missing {
            Some(missing) => skip(&format!("{module}: {missing}")),
            None => drop(expected.insert(module)),
        }
    }

    let _load = Load::new();
    let mut seen: BTreeMap<&str, Instances> = BTreeMap::new();
    wait_seconds(60, "instances of every module", || {
        let blocks = blocks(&pmcd.ask("pminfo", &["-f", "bcc"]));
        for row in original().filter(|row| expected.contains(row.module)) {
            let lines = blocks.get(row.name).unwrap_or_else(|| panic!("{} is not served", row.name));
            for (number, name) in lines.iter().filter_map(|line| instance(line)) {
                assert!(row.instances && fits(&row, number, &name), "{}: [{number}] {name} for {}", row.name, row.form);
                let known = seen.entry(row.module).or_default().entry(number).or_insert_with(|| name.clone());
                // Of bioperpid's the first word has the number: the process may execute another program.
                let part = |name: &str| {
                    name.split(' ').take(if row.module == "bioperpid" { 1 } else { 2 }).collect::<Vec<_>>().join(" ")
                };
                assert_eq!(part(known), part(&name), "{}: the name of {number} changed", row.name);
            }
        }
        let unseen: Vec<&&str> = expected.iter().filter(|module| !seen.contains_key(**module)).collect();
        println!("without an instance so far: {unseen:?}");
        unseen.is_empty().then_some(())
    });
    for row in original() {
        if let Some(instances) = seen.get(row.module) {
            let names: BTreeSet<&str> = instances.values().map(|name| name.split(' ').next().unwrap()).collect();
            assert_eq!(names.len(), instances.len(), "{}: names up to their first blank: {instances:?}", row.name);
            follow(&row, instances);
        }
    }
    println!(
        "{} of {} modules",
        seen.len(),
        MODULES.iter().filter(|spec| spec.tables[0].shape != Shape::Single).count()
    );
    if expected.contains("syscount") {
        let names = &seen["syscount"];
        let by_process = names.values().any(|name| name.ends_with("::clock_nanosleep"));
        assert!(by_process && names.values().any(|name| name == "clock_nanosleep"), "{names:?}");
    }
    // Processes are shown as the first PID namespace numbers them, whose inode is fixed (PROC_PID_INIT_INO).
    if fs::metadata("/proc/self/ns/pid").unwrap().ino() == 0xEFFF_FFFC {
        assert!(seen["netproc"].contains_key(&std::process::id().into()));
    }
    let sessions = pmcd.values("bcc.proc.io.net.tcp.laddr");
    assert!(!sessions.is_empty() && sessions.iter().all(|(_, address)| address.contains('.') || address.contains(':')));
}

/// Checks the labels of agent, module and histogram, and the bounds of each bucket.
fn has_labels(row: &Row, lines: &[String]) {
    let (of_metric, of_instances): (Vec<&String>, Vec<&String>) =
        lines[1..].iter().filter(|line| line.contains(" labels {")).partition(|line| !line.contains("inst ["));
    assert_eq!(of_metric.len(), 1, "{}: {lines:?}", row.name);
    let histogram = HISTOGRAMS.contains(&row.cluster);
    for line in of_metric.iter().chain(&of_instances) {
        assert!(line.contains(r#""agent":"bcc""#), "{}: {line}", row.name);
        assert!(line.contains(&format!(r#""bcc_module":"{}""#, row.module)), "{}: {line}", row.name);
        assert_eq!(line.contains(r#""statistic":"histogram""#), histogram, "{}: {line}", row.name);
    }
    for line in of_instances.iter().filter(|_| histogram) {
        let name = line.split('"').nth(1).unwrap();
        let (low, high) = name.split_once('-').unwrap();
        assert!(line.contains(&format!(r#""lower_bound":{low},"#)), "{name}: {line}");
        assert!(line.contains(&format!(r#""upper_bound":{high}}}"#)), "{name}: {line}");
    }
}

/// Clients need these metrics to offer scripts. Anybody may write to the directory, so the script is refused, and yet listed.
#[test]
fn scripts_and_tracepoints_are_metrics_with_help() {
    let prepare = |home: &Home| {
        fs::create_dir(home.path("scripts.d")).unwrap();
        fs::write(home.path("scripts.d/one.bt"), "BEGIN { @a = 1; }\n").unwrap();
        pipe()
    };
    let Some(pmcd) = Pmcd::serving(&format!("{ALL}\n[scripts]\n"), &[], prepare) else { return };
    let listed = wait_for("the script", || {
        let listed = pmcd.ask("pminfo", &["-fdlT", "bcc.agent.scripts", "bcc.agent.tracepoints"]);
        listed.contains(r#""script_id":"one""#).then_some(listed)
    });
    let listed = blocks(&listed);
    for (name, pmid, help) in [
        ("bcc.agent.scripts", "149.319.0", "\"script_id\", its name"),
        ("bcc.agent.tracepoints", "149.329.0", "As tracefs has them now"),
    ] {
        let said = listed[name].join("\n");
        for part in [help, "Data Type: string  InDom: PM_INDOM_NULL", "\"metrictype\":\"control\""] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(pmcd.ask("pminfo", &["-m", name]).contains(pmid));
    }
    assert!(listed["bcc.agent.scripts"].join("\n").contains(r#""status":"error""#), "{listed:?}");
}
