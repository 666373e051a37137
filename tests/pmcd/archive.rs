//! A pmlogger archive of all metrics, and what is in it.

use crate::instance::{session, values, Pmcd};
use crate::metadata::blocks;
use crate::support::{
    all_modules, lacks,
    rows::{all, original, rows},
    told, use_disk,
};
use std::fs;

#[test]
fn an_archive_replays_descriptors_values_and_instances() {
    if lacks(&["pmlogger", "pmval"]) {
        return;
    }
    let Some(pmcd) = Pmcd::start() else { return };
    session();
    let disks = use_disk();
    fs::write(pmcd.home.path("log.conf"), "log mandatory on 200 msec { bcc }\n").unwrap();
    fs::create_dir_all(pmcd.home.path("pmlogger")).unwrap();
    let before = pmcd.values("bcc.proc.sysfork");
    let output = pmcd.client("pmlogger").args(["-c", "log.conf", "-s", "4", "-l", "logger.log", "a"]).output().unwrap();
    assert!(output.status.success(), "{}{}", told(&output), pmcd.home.read("logger.log"));
    let after = pmcd.values("bcc.proc.sysfork");

    let replay = |program: &str, args: &[&str]| {
        let output = pmcd.program(program).args(["-a", "a"]).args(args).output().unwrap();
        assert!(output.status.success(), "{program} {args:?}: {}", told(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    // All metadata is that of the living agent.
    for option in ["-dm", "-tT"] {
        let live = blocks(&pmcd.ask("pminfo", &[option, "bcc"]));
        assert_eq!(live.len(), all().count());
        assert_eq!(blocks(&replay("pminfo", &[option, "bcc"])), live, "{option}");
    }
    let labels = replay("pminfo", &["-l", "bcc.runq.latency"]);
    assert!(labels.contains(r#""bcc_module":"runqlat""#) && labels.contains(r#""lower_bound":0"#), "{labels}");
    // Values lie between those read before and after.
    let count = |values: &[(String, String)]| values[0].1.parse::<u64>().unwrap();
    let logged = count(&values(&replay("pminfo", &["-f", "bcc.proc.sysfork"])));
    assert!((count(&before)..=count(&after)).contains(&logged), "{before:?} {logged} {after:?}");
    for row in rows().filter(|row| row.module != "biolatency" || disks) {
        assert!(!values(&replay("pminfo", &["-f", row.name])).is_empty(), "{}", row.name);
    }
    let series = replay("pmval", &["-r", "-f", "0", "-t", "0.2", "bcc.proc.sysfork"]);
    let counts: Vec<u64> = series.lines().filter_map(|line| line.split_whitespace().nth(1)?.parse().ok()).collect();
    assert!(counts.len() >= 2 && counts.is_sorted(), "{series}");
    let slots = replay("pmval", &["-r", "-t", "0.2", "-i", "0-1", "bcc.runq.latency"]);
    assert!(slots.contains("0-1"), "{slots}");
}

/// Writes an archive as the Python agent's would be: the names, identifiers, types, semantics, units and domains of its own
/// table, a value each, and instances named as it named them. Arguments: table, archive, host, time zone.
const ORIGINAL: &str = "
import csv, sys
from pcp import pmi, pmapi
import cpmapi as api
table, archive, host, zone = sys.argv[1:]
log = pmi.pmiLogImport(archive)
log.pmiSetHostname(host)
log.pmiSetTimezone(zone)
types = {'32': api.PM_TYPE_32, 'U32': api.PM_TYPE_U32, 'U64': api.PM_TYPE_U64, 'STRING': api.PM_TYPE_STRING}
sems = {'counter': api.PM_SEM_COUNTER, 'instant': api.PM_SEM_INSTANT}
known = {}
for row in csv.DictReader(open(table), delimiter='\\t', quoting=csv.QUOTE_NONE):
    domain, cluster, item = map(int, row['pmid'].split('.'))
    units = log.pmiUnits(*eval(row['units_tuple']))
    indom = api.PM_INDOM_NULL
    if row['indom'] != 'PM_INDOM_NULL':
        indom = log.pmiInDom(domain, int(row['indom_serial']))
    log.pmiAddMetric(row['metric'], log.pmiID(domain, cluster, item), types[row['type']], indom, sems[row['semantics']], units)
    form = row['instance_name_form']
    name, number = ('0-1', 0) if form.startswith('LOW') else ('000001 /sbin/init', 1) if form.startswith('PID A') else ('0', 0)
    if indom != api.PM_INDOM_NULL and indom not in known:
        log.pmiAddInstance(indom, name, number)
        known[indom] = name
    log.pmiPutValue(row['metric'], known.get(indom, ''), 'text' if row['type'] == 'STRING' else '1')
log.pmiWrite(1500000000, 0)
log.pmiEnd()
";

/// The sizes of cachestat are brought to the same semantics by the rule that is shipped.
#[test]
fn archives_of_the_python_agent_and_of_this_one_are_merged() {
    const EXTRACT: &str = "/usr/lib/pcp/bin/pmlogextract";
    const REWRITE: &str = "/usr/lib/pcp/bin/pmlogrewrite";
    const PYTHON: &str = "/usr/bin/python3";
    const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/bcc-metrics.tsv");
    if lacks(&["pmlogger", "pmloglabel", EXTRACT, REWRITE, PYTHON]) {
        return;
    }
    let Some(pmcd) = Pmcd::beside(&all_modules(), &[]) else { return };
    let run = |program: &str, args: &[&str]| pmcd.program(program).args(args).output().unwrap();
    let ask = |program: &str, args: &[&str]| {
        let output = run(program, args);
        assert!(output.status.success(), "{program} {args:?}: {}", told(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    session();
    fs::write(pmcd.home.path("log.conf"), "log mandatory on 200 msec { bcc }\n").unwrap();
    fs::create_dir_all(pmcd.home.path("pmlogger")).unwrap();
    let output =
        pmcd.client("pmlogger").args(["-c", "log.conf", "-s", "2", "-l", "logger.log", "ours"]).output().unwrap();
    assert!(output.status.success(), "{}{}", told(&output), pmcd.home.read("logger.log"));
    let label = ask("pmloglabel", &["-L", "ours"]);
    let of = |start: &str| label.lines().find_map(|line| line.strip_prefix(start)).unwrap_or_else(|| panic!("{label}"));
    let (host, zone) = (of("Performance metrics from host "), of("Archive timezone: "));
    ask(PYTHON, &["-c", ORIGINAL, TABLE, "original", host, zone]);
    assert_eq!(ask("pminfo", &["-a", "original", "bcc"]).lines().count(), 95);

    let refused = run(EXTRACT, &["original", "ours", "merged"]);
    assert!(!refused.status.success() && told(&refused).contains("bcc.mem.vmstat."), "{}", told(&refused));
    let rule = concat!(env!("CARGO_MANIFEST_DIR"), "/consumers/pmlogrewrite/corebcc_cachestat.conf");
    ask(REWRITE, &["-c", rule, "original", "corrected"]);
    ask(EXTRACT, &["corrected", "ours", "merged"]);
    let ours = blocks(&ask("pminfo", &["-dm", "-a", "ours", "bcc"]));
    let merged = blocks(&ask("pminfo", &["-dm", "-a", "merged", "bcc"]));
    assert!(ours.len() > 40, "{:?}", ours.keys());
    for (name, lines) in ours.iter().filter(|(name, _)| !name.starts_with("bcc.agent.")) {
        assert_eq!(&merged[name], lines);
    }
    assert!(original().all(|row| merged.contains_key(row.name)));
}
