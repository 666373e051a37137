//! Descriptors, instances, help texts and labels as pminfo shows them.

use crate::instance::{session, Pmcd};
use crate::support::{
    all_modules,
    rows::{added, all, original, own, rows, Row, CORRECTED, HISTOGRAMS, INDOMS},
    use_disk,
};
use corebcc::modules::MODULES;
use corebcc::pcp::{Sem, Type};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// The lines of each metric in the output of pminfo, blank ones left out.
pub fn blocks(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut blocks = BTreeMap::new();
    let mut name = String::new();
    for line in text.lines() {
        if line.starts_with("bcc.") {
            name = line.split(' ').next().unwrap().to_owned();
            blocks.insert(name.clone(), vec![line.to_owned()]);
        } else if let (Some(block), false) = (blocks.get_mut(&name), line.is_empty()) {
            block.push(line.to_owned());
        }
    }
    blocks
}

/// What pminfo says of a metric by name, PMID, type, instance domain, semantics and units.
fn description(row: &Row) -> [String; 3] {
    let ty = match row.ty {
        Type::U64 => "64-bit unsigned int",
        Type::U32 => "32-bit unsigned int",
        Type::I32 => "32-bit int",
        Type::STRING => "string",
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

/// All modules at once; what this kernel refuses included, since a module that cannot be loaded keeps its metadata.
#[test]
fn every_metric_of_the_table_is_served_with_its_metadata_and_labels() {
    let Some(pmcd) = Pmcd::beside(&all_modules(), &[]) else { return };
    session();
    let declared = |row: &Row| MODULES.iter().any(|spec| spec.name == row.module);
    let rows: Vec<Row> = original().filter(declared).collect();
    println!("{} of the {} metrics are in modules that there are", rows.len(), original().count());
    let modules: BTreeSet<&str> = original().map(|row| row.module).collect();
    assert!(rows.len() == 95 || modules.iter().any(|name| MODULES.iter().all(|spec| spec.name != *name)));

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
    for row in rows.iter().filter(|row| pmcd.home.log().contains(&format!("{}: Module NOT active!", row.module))) {
        let line = values.lines().find(|line| line.starts_with(&format!("{} ", row.name))).unwrap();
        assert!(line.contains(" -12350 "), "{line}"); // PM_ERR_APPVERSION
    }
}

#[test]
fn every_metric_and_instance_domain_has_help() {
    let Some(pmcd) = Pmcd::start() else { return };
    let blocks = blocks(&pmcd.ask("pminfo", &["-tT", "bcc"]));
    assert_eq!(blocks.len(), all().count());
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

#[test]
fn instances_have_the_names_and_numbers_that_go_together() {
    let Some(pmcd) = Pmcd::start() else { return };
    session();
    let disks = use_disk();
    let text = pmcd.ask("pminfo", &["-f", "bcc"]);
    let instance = |line: &str| {
        let (number, name) = line.trim().strip_prefix("inst [")?.split_once(" or \"")?;
        Some((number.parse::<u64>().unwrap(), name.split_once("\"]").unwrap().0.to_owned()))
    };
    let mut seen = BTreeMap::new();
    for (name, lines) in blocks(&text) {
        let Some(row) = rows().find(|row| row.name == name) else { continue };
        for (number, name) in lines.iter().filter_map(|line| instance(line)) {
            *seen.entry(row.module).or_insert(0) += 1;
            match row.module {
                "biolatency" | "runqlat" => {
                    let low = if number == 0 { 0 } else { 1u64 << number };
                    assert_eq!(name, format!("{low}-{}", (2u64 << number) - 1));
                }
                "tcplife" => assert_eq!(name, number.to_string()),
                "netproc" => assert_eq!(name.split(' ').next().unwrap(), format!("{number:06}")),
                "exectop" => assert!(!name.is_empty() && name.len() < 16, "{name}"),
                module => panic!("{module} has instances"),
            }
        }
    }
    for module in ["biolatency", "tcplife", "runqlat", "exectop", "netproc"] {
        assert!(seen.contains_key(module) || module == "biolatency" && !disks, "{module} has no instance: {text}");
    }
    // Processes are shown as the first PID namespace numbers them, whose inode is fixed (PROC_PID_INIT_INO).
    if fs::metadata("/proc/self/ns/pid").unwrap().ino() == 0xEFFF_FFFC {
        let own = format!("{:06}", std::process::id());
        assert!(pmcd.values("bcc.proc.net.tcp.send.bytes").iter().any(|(name, _)| name.starts_with(&own)));
    }
    let sessions = pmcd.values("bcc.proc.io.net.tcp.laddr");
    assert!(!sessions.is_empty() && sessions.iter().all(|(_, address)| address.contains('.') || address.contains(':')));
}

/// The labels of agent, module and histogram, and of each bucket its bounds.
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
