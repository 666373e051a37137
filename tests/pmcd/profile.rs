//! Stack sampling as users do it: pmstore begins and ends a run, and flame graphs are made from the output of pminfo.

use crate::instance::Pmcd;
use crate::support::{
    burner::{burner, Burner},
    lacks, lacks_bpf, skip, wait_for, wait_seconds, Proc, BINARY,
};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Returns a configuration with the module, and with another for which tests wait.
fn configuration(process: u32) -> String {
    format!(
        "[pmda]\nmodules = sysfork,profile\nmodule_failure_fatal = False\n[sysfork]\nmodule = sysfork\ncluster = 2\n\
         [profile]\nmodule = profile\ncluster = 14\nprocess = {process}\nsample_frequency = 99\n"
    )
}

fn busy() -> Option<Burner> {
    if lacks_bpf() {
        return None;
    }
    let burner = burner();
    if burner.is_none() {
        skip("a C compiler (cc)");
    }
    burner
}

/// Parses lines `frame;frame;frame samples`. Returns the samples of the burner's stack and of all stacks.
#[track_caller]
fn samples(text: &str) -> (u64, u64) {
    let (mut hot, mut all) = (0, 0);
    for line in text.lines() {
        let (stack, samples) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        assert!(!stack.contains([' ', ',']), "{line}");
        let samples: u64 = samples.parse().unwrap();
        if stack.starts_with("burn_test;") && stack.ends_with(";main;burn_outer;burn_cycles") {
            hot += samples;
        }
        all += samples;
    }
    (hot, all)
}

/// The command line in the help text and in the README turns instances into text for flame graphs.
#[test]
fn a_run_begun_by_pmstore_has_stacks_while_it_lasts_and_after() {
    if lacks(&["pmstore", "sed", "tr"]) {
        return;
    }
    let Some(burner) = busy() else { return };
    let Some(pmcd) = Pmcd::beside(&configuration(burner.child.id()), &[]) else { return };
    assert!(pmcd.values("bcc.proc.stacks").is_empty());
    pmcd.ask("pmstore", &["bcc.proc.profile", "start"]);
    let total = |values: &[(String, String)]| values.iter().map(|(_, samples)| samples.parse::<u64>().unwrap()).sum();
    let mut before: u64 = 0;
    for _ in 0..3 {
        before = wait_for("more samples", || Some(total(&pmcd.values("bcc.proc.stacks"))).filter(|&now| now > before));
    }
    // As many as a dull test takes.
    wait_for("fifty samples", || (total(&pmcd.values("bcc.proc.stacks")) > 50).then_some(()));
    pmcd.ask("pmstore", &["bcc.proc.profile", "stop"]);

    let help = pmcd.ask("pminfo", &["-T", "bcc.proc.stacks"]);
    let line = help.lines().find_map(|line| line.trim().strip_prefix("pminfo -f bcc.proc.stacks |"));
    let line = line.unwrap_or_else(|| panic!("no command line in {help}"));
    assert!(include_str!("../../docs/clients.md").contains(line), "{line}");
    let values = pmcd.ask("pminfo", &["-f", "bcc.proc.stacks"]);
    std::fs::write(pmcd.home.path("values"), &values).unwrap();
    let file = std::fs::File::open(pmcd.home.path("values")).unwrap();
    let folded = Command::new("sh").args(["-c", line]).stdin(file).output().unwrap();
    let (hot, all) = samples(&String::from_utf8_lossy(&folded.stdout));
    assert!(all > 50 && hot * 10 >= all * 9, "{values}");

    let tree = &pmcd.values("bcc.proc.profile")[0].1;
    let root = format!("\"name\": \"root\", \"libtype\": null, \"value\": {all},");
    let root = [root.clone(), root.replace('"', "\\\"")];
    assert!(root.iter().any(|root| tree.contains(root.as_str())), "{all} samples in {tree}");
    let before = pmcd.values("bcc.proc.stacks");
    assert_eq!(before.len(), values.matches("inst [").count(), "they stay");
    pmcd.ask("pmstore", &["bcc.proc.profile", "start"]);
    let after = pmcd.values("bcc.proc.stacks");
    for (name, samples) in &before {
        let now = after.iter().find(|(stack, _)| stack == name).map(|(_, samples)| samples.parse::<u64>().unwrap());
        assert!(now >= Some(samples.parse().unwrap()), "{name} steps back: {before:?} {after:?}");
    }
    pmcd.ask("pmstore", &["bcc.proc.profile", "stop"]);
    pmcd.ask("pmstore", &["bcc.proc.profile", "clear"]);
    assert!(pmcd.values("bcc.proc.stacks").is_empty());

    let labels = pmcd.ask("pminfo", &["-l", "bcc.proc.stacks"]);
    assert!(labels.contains(r#""bcc_module":"profile""#), "{labels}");
}

#[test]
fn show_prints_the_lines_of_a_flame_graph_without_pmcd() {
    let Some(burner) = busy() else { return };
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), configuration(burner.child.id())).unwrap();
    let mut command = Command::new(BINARY);
    command.args(["show", "--folded", "bcc.proc.stacks", "1", "2", "-c"]).arg(file.path());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    wait_seconds(60, "two readings", || child.try_wait().unwrap());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let (hot, all) = samples(&String::from_utf8_lossy(&output.stdout));
    // On a busy machine the process that is sampled has its share of a processor only.
    assert!((20..=300).contains(&all) && hot * 10 >= all * 9, "{hot} of {all} samples in two seconds at 99 Hz");
}

/// A process that sleeps is nowhere in the stacks of a profiler, and has its time in those of waits.
#[test]
fn stacks_of_waits_are_begun_by_pmstore_and_by_show() {
    if lacks_bpf() || lacks(&["pmstore", "tail"]) {
        return;
    }
    let mut sleeps = Command::new("tail");
    let sleeps = Proc(sleeps.args(["-f", "-s", "0.05", "---disable-inotify", "/dev/null"]).spawn().unwrap());
    let configuration = format!(
        "[pmda]\nmodules = sysfork,offcpu\nmodule_failure_fatal = False\n[sysfork]\nmodule = sysfork\ncluster = 2\n\
         [offcpu]\nmodule = offcpu\ncluster = 442\nstacks = True\nprocess = {}\n",
        sleeps.pid()
    );
    let Some(pmcd) = Pmcd::beside(&configuration, &[]) else { return };
    // A busy agent has its values a moment later.
    let state = || wait_for("the state", || Some(pmcd.values("bcc.proc.waits.profile").first()?.1.clone()));
    assert_eq!(state(), "\"stopped\"");
    assert!(pmcd.values("bcc.proc.waits.stacks").is_empty());
    pmcd.ask("pmstore", &["bcc.proc.waits.profile", "start"]);
    assert_eq!(state(), "\"started\"");
    let time = || -> u64 {
        let values = pmcd.values("bcc.proc.waits.stacks");
        let sleeps = values.iter().filter(|(name, _)| name.starts_with("tail,") && name.contains("nanosleep_[k]"));
        sleeps.map(|(_, time)| time.parse::<u64>().unwrap()).sum()
    };
    wait_for("ten sleeps", || (time() >= 10 * 50_000_000).then_some(()));
    pmcd.ask("pmstore", &["bcc.proc.waits.profile", "stop"]);
    // Stacks without a name have none until the next second.
    let stopped = wait_for("the names of all stacks", || {
        let before = time();
        std::thread::sleep(Duration::from_millis(1100));
        (time() == before).then_some(before)
    });
    assert_eq!((state(), time()), ("\"stopped\"".into(), stopped), "they stay");
    pmcd.ask("pmstore", &["bcc.proc.waits.profile", "clear"]);
    assert_eq!(time(), 0);

    let mut show = Command::new(BINARY);
    show.args(["show", "--folded", "--set", "stacks=true", "bcc.proc.waits.stacks", "1", "2", "-c"]);
    let mut child = show.arg(pmcd.home.path("corebcc.conf")).stdout(Stdio::piped()).spawn().unwrap();
    wait_seconds(60, "two readings", || child.try_wait().unwrap());
    let output = child.wait_with_output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    let is_sleep = |line: &str| line.starts_with("tail;") && line.contains("nanosleep_[k];");
    assert!(output.status.success() && shown.lines().any(is_sleep), "{shown}");
}
