//! `pcp corebcc`, `pcp biolatency` and `pcp runqlat`: live, from archives, of fleets.

use crate::consumers::Traffic;
use crate::instance::{session, Pmcd};
use crate::support::slow_disk::SlowDisk;
use crate::support::{all_modules, config, lacks, skip, told, use_disk, wait_for, Home, Proc};
use corebcc::kit::{Buckets, Fine};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::symlink;
use std::process::{Command, Output, Stdio};

const PYTHON: &str = "/usr/bin/python3";
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/consumers/pcp/pcp-corebcc");

/// True, with a report, if this host lacks the programs that these tests need.
pub fn lacks_pcp() -> bool {
    if lacks(&["pcp", PYTHON]) {
        return true;
    }
    let has_module = Command::new(PYTHON).args(["-c", "import pcp.pmapi"]).output().unwrap().status.success();
    if !has_module {
        skip("Python's module pcp");
    }
    !has_module
}

/// Returns `pcp` with these options before the subcommand, which it finds in the home directory.
pub fn pcp(home: &Home, options: &[&str], command: &str) -> Command {
    let bin = home.path(".pcp/bin");
    if !bin.exists() {
        fs::create_dir_all(&bin).unwrap();
        for name in ["corebcc", "biolatency", "runqlat"] {
            symlink(PROGRAM, bin.join(format!("pcp-{name}"))).unwrap();
        }
    }
    let mut pcp = Command::new("pcp");
    pcp.env("HOME", home.path("")).env("PCP_TMPFILE_DIR", home.path("")).current_dir(home.path(""));
    pcp.stdin(Stdio::null()).args(options).arg(command);
    pcp
}

fn host(pmcd: &Pmcd) -> String {
    format!("localhost:{}", pmcd.port)
}

/// Returns what a command wrote. Panics if it failed or wrote to standard error.
#[track_caller]
fn said(output: Output) -> String {
    assert!(output.status.success() && output.stderr.is_empty(), "{}", told(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
pub fn json(output: Output) -> Value {
    let text = said(output);
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"))
}

/// Returns the count of all buckets of a histogram.
fn total(histogram: &Value) -> u64 {
    histogram["buckets"].as_array().unwrap().iter().map(|bucket| bucket["count"].as_u64().unwrap()).sum()
}

/// Reads that the kernel counts of a disk.
fn reads(disk: &SlowDisk) -> u64 {
    let text = fs::read_to_string(format!("/sys/block/{}/stat", disk.name())).unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn a_histogram_of_a_disk_has_each_of_its_requests() {
    if lacks_pcp() {
        return;
    }
    let Some(disk) = SlowDisk::new(&[20]) else { return };
    let Some(pmcd) = Pmcd::beside(&config(&["sysfork", "biolatency", "runqlat"]), &[]) else { return };
    let fio = |time: u32| {
        let options = format!("--ioengine=psync --runtime={time} --output=/dev/null");
        assert!(disk.fio(&options).status().unwrap().success());
    };
    fio(1);
    let mut command = pcp(&pmcd.home, &["-h", &host(&pmcd)], "biolatency");
    let mut shown = Proc(command.args(["--json", "-t", "0.5", disk.name()]).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(shown.0.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    // The first interval is over, so the program has read the counts of before.
    assert_eq!(total(&next()), 0);
    let before = reads(&disk);
    fio(2);
    let done = reads(&disk) - before;
    let (mut counted, mut above) = (0, 0);
    while counted < done {
        let histogram = next();
        counted += total(&histogram);
        let buckets = histogram["buckets"].as_array().unwrap();
        let slow = buckets.iter().filter(|bucket| bucket["low_us"].as_f64().unwrap() >= 16384.0);
        above += slow.map(|bucket| bucket["count"].as_u64().unwrap()).sum::<u64>();
    }
    assert_eq!((counted, above), (done, done));
    shown.signal(Signal::SIGINT);
    assert!(shown.end().success());

    // Without an interval it is one histogram, in the form of bcc's tools, at Ctrl-C.
    let mut command = pcp(&pmcd.home, &["-h", &host(&pmcd)], "biolatency");
    let mut shown =
        Proc(command.args(["-m", disk.name()]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    wait_for("a first reading", || {
        let fds = fs::read_dir(format!("/proc/{}/fd", shown.pid())).ok()?;
        fds.flatten()
            .any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:")))
            .then_some(())
    });
    fio(2);
    shown.signal(Signal::SIGINT);
    let status = shown.end();
    let mut text = String::new();
    shown.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    let mut errors = String::new();
    shown.0.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert!(status.success() && errors.is_empty(), "{text}{errors}");
    assert!(text.contains("msecs") && text.contains("    16.384 -> 32.767    : "), "{text}");
    assert!(text.contains("p50 <= 32.767  p90 <= 32.767"), "{text}");

    // The table has the quantiles of the agent: 20 ms and the time that the disk's server takes beside it.
    let tables = json(
        pcp(&pmcd.home, &["-h", &host(&pmcd)], "corebcc")
            .args(["--json", "-t", "2", "-s", "1", "disk"])
            .output_while(&|| fio(1)),
    );
    let rows = tables["disks"].as_array().unwrap();
    let row = rows.iter().find(|row| row["disk"] == disk.name() && row["operation"] == "read");
    let p99 = row.unwrap_or_else(|| panic!("{tables}"))["p99_us"].as_f64().unwrap();
    assert!((19_000.0..100_000.0).contains(&p99), "{tables}");

    let heatmap = said(
        pcp(&pmcd.home, &["-h", &host(&pmcd), "-t", "0.2", "-s", "5"], "runqlat").arg("--heatmap").output().unwrap(),
    );
    assert!(
        heatmap.starts_with("bcc.runq.latency") && heatmap.contains(" -> ") && heatmap.contains("count . 1"),
        "{heatmap}"
    );
    let none = pcp(&pmcd.home, &["-h", &host(&pmcd), "-s", "1"], "biolatency").arg("nosuch").output().unwrap();
    assert!(!none.status.success() && told(&none).contains("no disk nosuch; there are: "), "{}", told(&none));
}

/// Runs a command, and does something again and again until it has ended.
trait OutputWhile {
    fn output_while(&mut self, work: &dyn Fn()) -> Output;
}

impl OutputWhile for Command {
    fn output_while(&mut self, work: &dyn Fn()) -> Output {
        let mut process = self.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        while process.try_wait().unwrap().is_none() {
            work();
        }
        process.wait_with_output().unwrap()
    }
}

/// Each view has rows of what runs, in 80 columns but for names; as JSON it has the same rows.
#[test]
fn each_view_has_rows_live_and_from_an_archive() {
    if lacks_pcp() || lacks(&["pmlogger"]) {
        return;
    }
    let Some(pmcd) = Pmcd::beside(&all_modules(), &[]) else { return };
    let _traffic = Traffic::steady();
    let up = pmcd.values("bcc.agent.module.up");
    let runs = |module: &str| up.contains(&(module.into(), "1".into()));
    let work = || {
        use_disk();
        session();
        assert!(Command::new("/bin/true").status().unwrap().success());
    };
    let views = [
        ("overview", "run_queue", true),
        ("disk", "disks", use_disk()),
        ("runq", "run_queue", true),
        ("cgroup", "cgroups", runs("cgroup_runq")),
        ("tcp", "traffic", true),
        ("exec", "programs", true),
        ("agent", "modules", true),
        ("fleet", "fleet", true),
    ];
    let has_rows = |view: &str, key: &str, options: &[&str], on: bool| {
        wait_for(&format!("rows of {view}"), || {
            let tables = json(pcp(&pmcd.home, options, "corebcc").args(["--json", view]).output_while(&work));
            (!on || !tables[key].as_array().unwrap().is_empty()).then_some(())
        });
        let text = said(pcp(&pmcd.home, options, "corebcc").arg(view).output().unwrap());
        println!("{text}");
        assert!(text.lines().count() >= 3, "{view}: {text}");
    };
    for (view, key, on) in views {
        has_rows(view, key, &["-h", &host(&pmcd)], on);
    }
    fs::write(pmcd.home.path("log.conf"), "log mandatory on 200 msec { bcc }\n").unwrap();
    fs::create_dir_all(pmcd.home.path("pmlogger")).unwrap();
    let mut logger = pmcd.client("pmlogger");
    let logger = logger.args(["-c", "log.conf", "-s", "10", "-l", "logger.log", "a"]).spawn().unwrap();
    wait_for("some records", || {
        work();
        let size = fs::metadata(pmcd.home.path("a.0")).map_or(0, |file| file.len());
        (size > 0).then_some(())
    });
    for _ in 0..10 {
        work();
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(logger.wait_with_output().unwrap().status.success());
    for (view, key, on) in views {
        has_rows(view, key, &["-a", "a"], on && view != "disk");
    }
    // An archive is one histogram, or one for each interval, and these are the same counts.
    let whole = json(pcp(&pmcd.home, &["-a", "a"], "runqlat").arg("--json").output().unwrap());
    let parts = said(pcp(&pmcd.home, &["-a", "a", "-t", "0.5"], "runqlat").arg("--json").output().unwrap());
    let parts: Vec<Value> = parts.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(parts.len() > 1 && total(&whole) > 0, "{whole}");
    assert_eq!(parts.iter().map(total).sum::<u64>(), total(&whole));

    for (arguments, told_so) in [
        (&["nosuch"][..], "no view `nosuch`; there are: overview, disk"),
        (&["disk", "runq"], "one argument at most"),
        (&["-a", "a", "-a", "b", "disk"], "one host or archive at a time; pcp corebcc fleet takes several"),
        (&["-a", "b", "disk"], "b: "),
    ] {
        let output = pcp(&pmcd.home, &[], "corebcc").args(arguments).output().unwrap();
        assert!(!output.status.success() && told(&output).contains(told_so), "{arguments:?}: {}", told(&output));
        assert!(!told(&output).contains("Traceback"), "{}", told(&output));
    }
}

/// Quantiles of 20 hosts are those of all their samples, within the width of a bucket, and the slow disk of one is told.
#[test]
fn a_fleets_quantiles_are_those_of_all_samples() {
    if lacks_pcp() {
        return;
    }
    for (buckets, bound) in [(Buckets::Fine, 1.0 / 16.0), (Buckets::Log2, 1.0)] {
        let home = Home::new("");
        let mut made = Command::new(PYTHON);
        made.args(["-c", include_str!("../programs/fleet_archives.py")]).arg(home.path(""));
        let mut made = made.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let names: Vec<&str> = Fine::served(buckets).iter().map(|bucket| bucket.name.as_str()).collect();
        made.stdin.take().unwrap().write_all(names.join("\n").as_bytes()).unwrap();
        let mut samples: Vec<u64> =
            said(made.wait_with_output().unwrap()).lines().map(|line| line.parse().unwrap()).collect();
        samples.sort_unstable();
        assert_eq!(samples.len(), 20 * 2 * 9 * 200);

        let names: Vec<String> = (0..20).map(|host| format!("host{host:02}")).collect();
        let archives: Vec<&str> = names.iter().flat_map(|name| ["-a", name]).collect();
        // One that is not there is told, and the others count.
        let mut command = pcp(&home, &[], "corebcc");
        let output = command.args(archives).args(["-a", "nosuch", "--json", "fleet"]).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.lines().count() == 1 && errors.contains("nosuch: "), "{errors}");
        let tables: Value = serde_json::from_slice(&output.stdout).unwrap();
        let row = &tables["fleet"][0];
        assert_eq!((&row["of"], row["count"].as_u64()), (&"disk reads".into(), Some(samples.len() as u64)), "{tables}");
        for (name, permille) in [("p50_us", 500), ("p90_us", 900), ("p99_us", 990), ("p999_us", 999)] {
            let exact = samples[(samples.len() * permille).div_ceil(1000) - 1] as f64;
            let shown = row[name].as_f64().unwrap();
            assert!((exact..=exact * (1.0 + bound) + 1.0).contains(&shown), "{name}: {exact} {shown}");
        }
        let worst = &tables["slowest"][0];
        assert_eq!((&worst["host"], &worst["series"]), (&"host07".into(), &"sdb".into()), "{tables}");
        assert!(worst["share_%"].as_f64().unwrap() > 90.0, "{tables}");
    }
}
