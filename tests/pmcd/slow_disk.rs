//! Rules and dashboards of docs/slow-disk.md, on a disk of known latency beside a fast one.

use crate::instance::Pmcd;
use crate::proxy::{Proxy, PMPROXY};
use crate::support::slow_disk::SlowDisk;
use crate::support::{config, lacks, told, wait_for};
use std::fs;
use std::path::Path;

const DOCUMENT: &str = include_str!("../../docs/slow-disk.md");

/// The disk is slow according to fio and the agent's quantiles, a rule names it, and a heat map has its buckets.
#[test]
fn a_rule_names_the_slow_disk_and_a_heat_map_shows_it() {
    if lacks(&[PMPROXY, "pmie"]) {
        return;
    }
    let (Some(slow), Some(fast)) = (SlowDisk::new(&[25]), SlowDisk::new(&[0])) else { return };
    let Some(pmcd) = Pmcd::beside(&config(&["biolatency", "sysfork"]), &[]) else { return };
    let read = |disk: &SlowDisk| {
        let mut command = disk.fio("--ioengine=psync --runtime=3 --output=/dev/null");
        command.spawn().unwrap()
    };
    for mut fio in [read(&slow), read(&fast)] {
        assert!(fio.wait().unwrap().success());
    }
    wait_for("quantiles of both disks", || {
        let values = pmcd.values("bcc.disk.dev.read.total.p99");
        [&slow, &fast].iter().all(|disk| values.iter().any(|(name, _)| name == disk.name())).then_some(())
    });
    rules_fire(&pmcd, &slow, &fast);
    a_row_has_its_latency(&pmcd, &slow);
    dashboards_show(&pmcd, &slow);
}

/// Checks that the rule in the document fires.
fn rules_fire(pmcd: &Pmcd, slow: &SlowDisk, fast: &SlowDisk) {
    let rules =
        DOCUMENT.lines().filter(|line| line.ends_with("| pmie -t 2")).filter_map(|line| line.split('\'').nth(1));
    let rules: String = rules.map(|rule| rule.replace("vda", slow.name()) + "\n").collect();
    fs::write(pmcd.home.path("rules"), rules).unwrap();
    let output = pmcd.client("pmie").args(["-t", "1", "-T", "3", "-c", "rules"]).output().unwrap();
    let said = told(&output);
    println!("{said}");
    let seconds = |disk: &SlowDisk| -> Option<f64> {
        let line = said.lines().find_map(|line| line.split_once(&format!(" {}: p99 of reads ", disk.name())))?;
        // A line has all disks that are slow, of which the machine's own may be one.
        Some(line.1.split(' ').next().unwrap().parse().unwrap())
    };
    assert!(seconds(slow).is_some_and(|seconds| (0.024..0.2).contains(&seconds)), "{said}");
    assert_eq!(seconds(fast), None, "{said}");
    assert!(said.contains(&format!(" {}: reads of one disk ", slow.name())), "{said}");
}

/// Checks the set that the document names.
fn a_row_has_its_latency(pmcd: &Pmcd, slow: &SlowDisk) {
    let set = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/consumers/pmrep/corebcc.conf"));
    let output = pmcd.pmrep(set, &["-s", "2", "-t", "1", ":bcc-disk"]);
    let said = told(&output);
    println!("{said}");
    let row = said.lines().rfind(|line| line.split_whitespace().any(|word| word == slow.name())).expect("its row");
    assert!(row.split_whitespace().any(|word| word.parse().is_ok_and(|us: f64| us > 24_000.0)), "{said}");
    assert!(said.lines().all(|line| line.chars().count() <= 80), "{said}");
}

/// Makes the requests of grafana-pcp's Vector data source for an expression: a derived metric, its values, and the names of
/// instances.
fn dashboards_show(pmcd: &Pmcd, slow: &SlowDisk) {
    let proxy = Proxy::start(pmcd, None);
    let context = proxy.json(&format!("/pmapi/context?hostspec=localhost:{}&polltimeout=30", pmcd.port));
    let context = context["context"].as_u64().unwrap();
    let values = |name: &str, of: &str| -> Vec<(String, u64)> {
        let expression = DOCUMENT.lines().find(|line| line.starts_with("matchinst(") && line.contains(of)).unwrap();
        let expression = expression.replace("vda", slow.name());
        let query = encoded(&expression);
        let derived = proxy.json(&format!("/pmapi/derive?context={context}&name={name}&expr={query}"));
        assert_eq!(derived["success"], true, "{expression}: {derived}");
        let fetched = proxy.json(&format!("/pmapi/fetch?context={context}&names={name}"));
        let names = proxy.json(&format!("/pmapi/indom?context={context}&name={name}"));
        let name_of = |number: &serde_json::Value| {
            let all = names["instances"].as_array().unwrap();
            let found = all.iter().find(|one| one["instance"] == *number).unwrap();
            found["name"].as_str().unwrap().to_owned()
        };
        let values = fetched["values"][0]["instances"].as_array().unwrap_or_else(|| panic!("{expression}: {fetched}"));
        values.iter().map(|one| (name_of(&one["instance"]), one["value"].as_u64().unwrap())).collect()
    };
    let buckets = values("vector.buckets", ".bucket)");
    assert_eq!(buckets.len(), 26, "{buckets:?}");
    assert!(buckets.iter().all(|(name, _)| name.ends_with(&format!("::{}", slow.name()))), "{buckets:?}");
    let most = buckets.iter().max_by_key(|(_, count)| count).unwrap();
    assert_eq!(most.0, format!("16384-32767::{}", slow.name()), "{buckets:?}");
    let quantiles = values("vector.p99", ".p99)");
    assert!(matches!(&quantiles[..], [(name, us)] if name == slow.name() && *us > 24_000), "{quantiles:?}");
}

/// Encodes an expression for an address.
fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}
