//! Groups of pmlogconf as pmlogger gets them at boot, their size in an archive, and the labels of the agent's own tables.

use crate::instance::{pipe, Pmcd};
use crate::shipped::Placed;
use crate::support::{config, lacks, told, wait_for};
use nix::sys::signal::Signal;
use std::fs;

/// Returns what pmlogconf writes with the shipped groups.
fn configured(pmcd: &Pmcd) -> String {
    let placed = Placed::new();
    let mut command = pmcd.client("pmlogconf");
    command.args(["-c", "-q", "-d"]).arg(placed.path("var/config/pmlogconf"));
    let _ = fs::remove_file(pmcd.home.path("logger.conf"));
    let output = command.arg("logger.conf").output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    pmcd.home.read("logger.conf")
}

/// Returns the groups of a configuration that are logged.
fn chosen(text: &str) -> Vec<&str> {
    let groups = text.lines().filter_map(|line| line.strip_prefix("#+ corebcc/"));
    groups.filter_map(|group| group.split_once(":y:")).map(|(name, _)| name).collect()
}

/// At boot pmlogger often starts before the modules are loaded, and its configuration is never looked at again.
#[test]
fn groups_of_modules_are_logged_that_are_still_loading() {
    if lacks(&["pmlogconf", "strace"]) {
        return;
    }
    let Some(mut pmcd) = Pmcd::serving(&config(&["sysfork", "biolatency", "runqlat", "netproc"]), &[], |_| pipe())
    else {
        return;
    };
    let loaded = configured(&pmcd);
    let all = chosen(&loaded);
    for group in ["agent", "biolatency", "biolatency-buckets", "netproc", "runqlat", "status"] {
        assert!(all.contains(&group), "{all:?}");
    }
    let strace = "pipe binary\t/usr/bin/strace -f -qq -o /dev/null -e trace=bpf -e inject=bpf:delay_enter=500000 ";
    let lines = pmcd.home.read("pmcd.conf").replace("pipe binary\t", strace);
    fs::write(pmcd.home.path("pmcd.conf"), lines).unwrap();
    pmcd.again(Signal::SIGTERM);
    let is_loading = |pmcd: &Pmcd| told(&pmcd.run("pminfo", &["-f", "bcc.runq.latency"])).contains("Try again");
    wait_for("the agent to load", || is_loading(&pmcd).then_some(()));
    let loading = configured(&pmcd);
    assert!(is_loading(&pmcd), "the test was too slow");
    assert_eq!(chosen(&loading), all);
}

#[test]
fn what_is_logged_unasked_is_small() {
    if lacks(&["pmlogconf", "pmlogger"]) {
        return;
    }
    let Some(pmcd) = Pmcd::beside(&config(&["sysfork", "biolatency", "runqlat", "netproc"]), &[]) else { return };
    let text = configured(&pmcd);
    assert!(text.contains("#+ corebcc/metric-status:n:"), "{text}");
    let status = text.split("#----").find(|part| part.contains("#+ corebcc/status:y:")).unwrap();
    fs::write(pmcd.home.path("status.conf"), status).unwrap();
    fs::create_dir_all(pmcd.home.path("pmlogger")).unwrap();
    let arguments = ["-c", "status.conf", "-T", "1sec", "-l", "logger.log", "small"];
    let output = pmcd.client("pmlogger").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}{}", told(&output), pmcd.home.read("logger.log"));
    let bytes = fs::metadata(pmcd.home.path("small.0")).unwrap().len();
    println!("a record of corebcc/status: {bytes} bytes");
    assert!((500..16_000).contains(&bytes), "{bytes} bytes a record of corebcc/status");
}

#[test]
fn states_and_losses_have_labels_of_module_and_reason() {
    let Some(pmcd) = Pmcd::start() else { return };
    let labels = pmcd.ask("pminfo", &["-l", "bcc.agent.module.up"]);
    let line = labels.lines().find(|line| line.contains("\"sysfork\"] labels")).unwrap_or_else(|| panic!("{labels}"));
    assert!(line.contains(r#""module":"sysfork""#), "{line}");
    let labels = pmcd.ask("pminfo", &["-l", "bcc.agent.lost.events"]);
    let mut lines = labels.lines().filter(|line| line.contains("inst [")).peekable();
    assert!(lines.peek().is_some(), "{labels}");
    for line in lines {
        let (module, reason) = line.split('"').nth(1).unwrap().split_once("::").unwrap();
        assert!(line.contains(&format!(r#""module":"{module}""#)), "{line}");
        assert!(line.contains(&format!(r#""reason":"{reason}""#)), "{line}");
    }
}
