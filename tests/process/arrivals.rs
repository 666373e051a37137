//! Processes of a filter that come and go as fast as they can, while clients fetch.

use crate::peer::Peer;
use crate::reference::pmcd::{self as wire, Wire};
use crate::support::{config, lacks, lacks_bpf, lacks_host_pids, skip, Home};
use corebcc::pcp::Pmid;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

const PYTHON: &str = "/usr/bin/python3";
/// Metrics with the numbers of system calls and of garbage collections.
const COUNTS: [Pmid; 2] = [Pmid::new(149, 15, 0), Pmid::new(149, 101, 0)];

/// Returns the values of both metrics by metric and instance. Panics if a fetch had an error.
fn values(peer: &mut Peer) -> BTreeMap<(Pmid, u32), u64> {
    let value = |value: &Wire| match value {
        Wire::Block { bytes, .. } => u64::from_be_bytes(bytes[..].try_into().unwrap()),
        other => panic!("{other:?}"),
    };
    let sets = wire::result(&peer.ask(&wire::fetch(&COUNTS)));
    let good = |set: &wire::Set| assert!(set.numval >= 0, "{}: error {}", set.pmid, set.numval);
    sets.iter()
        .inspect(|set| good(set))
        .flat_map(|set| set.values.iter().map(|(inst, its)| ((set.pmid, *inst), value(its))))
        .collect()
}

/// One module counts processes in the kernel, the other at probes in the file that they execute.
#[test]
fn values_never_step_back_while_processes_come_and_go() {
    if lacks_bpf() || lacks_host_pids() || lacks(&[PYTHON]) {
        return;
    }
    let python = std::fs::canonicalize(PYTHON).unwrap();
    if !corebcc::host::Elf::read(&python).unwrap().probes().iter().any(|probe| probe.name == "gc__start") {
        return skip("python3 with USDT probes");
    }
    let text = config(&["syscount", "usdt_hits"]).replace("process_refresh = 60", "process_refresh = 1");
    let text = text.replace("process = python3", "process = comespython").replace("python3:.*", "python3:gc__start");
    let home = Home::new(&text.replace("module = syscount", "module = syscount\nprocess = comessh, comespython"));
    // A process has the name of the link.
    let named = |program: &Path, name: &str| {
        std::os::unix::fs::symlink(program, home.path(name)).unwrap();
        home.path(name)
    };
    let programs = [
        (named(Path::new("/bin/sh"), "comessh"), ":"),
        (named(&python, "comespython"), "import gc; [gc.collect() for _ in range(20)]"),
    ];
    let mut peer = Peer::ready(&home, &[]);
    let (stop, started) = (AtomicBool::new(false), AtomicU32::new(0));
    let start = |(program, script): &(PathBuf, &str)| {
        while !stop.load(Relaxed) {
            assert!(Command::new(program).args(["-c", script]).status().unwrap().success());
            started.fetch_add(1, Relaxed);
        }
    };
    let mut last = BTreeMap::new();
    let mut fetches = 0;
    let end = Instant::now() + Duration::from_secs(4);
    thread::scope(|scope| {
        programs.iter().for_each(|program| drop(scope.spawn(|| start(program))));
        let _stop = Stop(&stop);
        while Instant::now() < end {
            peer.slot = fetches % 2; // one client, then another
            fetches += 1;
            let now = values(&mut peer);
            for (instance, before) in &last {
                assert!(now.get(instance) >= Some(before), "{instance:?}: {before} and then {:?}", now.get(instance));
            }
            last = now;
        }
    });
    let sum = |of: Pmid| last.iter().filter(|((pmid, _), _)| *pmid == of).map(|(_, value)| value).sum::<u64>();
    let (calls, collections, started) = (sum(COUNTS[0]), sum(COUNTS[1]), started.into_inner());
    println!("{fetches} fetches, {started} processes, {calls} calls, {collections} collections");
    assert!(fetches > 100 && started > 50 && calls > 1000 && collections > 100);
}

/// Makes the threads end, also if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
