//! Quantiles of biolatency on disks of known latency, against those of fio.

use crate::common::slow_disk::SlowDisk;
use crate::common::tracers::Recorder;
use crate::support::{alone, Agent};
use corebcc::kit::{Fine, Key, Table, TableSpec};
use corebcc::pcp::Atom;
use serde_json::Value;

const DISKS: u32 = 320;
const BUCKETS: u32 = 321;

fn spec(cluster: u32) -> &'static TableSpec {
    let tables = corebcc::modules::find("biolatency").unwrap().tables;
    tables.iter().find(|spec| spec.cluster == cluster).unwrap()
}

fn name(table: &Table, row: usize) -> String {
    match &table.keys()[row] {
        Key::Name(name) => String::from_utf8_lossy(table.text(name)).into_owned(),
        key => panic!("{key:?}"),
    }
}

/// Returns the values of `disk.dev.read.METRIC` in a table, by instance.
fn reads(agent: &mut Agent, cluster: u32, metric: &str) -> Vec<(String, u64)> {
    let spec = spec(cluster);
    let table = agent.other(spec);
    let column = spec.metrics.iter().position(|m| m.name == format!("disk.dev.read.{metric}")).unwrap();
    let value = |row: usize| match table.value(row, column)? {
        Atom::U64(value) => Some((name(&table, row), value)),
        other => panic!("{metric}: {other:?}"),
    };
    (0..table.keys().len()).filter_map(value).collect()
}

fn of_disk(agent: &mut Agent, disk: &SlowDisk, metric: &str) -> u64 {
    let values = reads(agent, DISKS, metric);
    let found = values.iter().find(|(name, _)| name == disk.name());
    found.unwrap_or_else(|| panic!("{metric} of {}: {values:?}", disk.name())).1
}

/// The reads of a fio run: their number, and their quantiles (`50.000000`) in microseconds.
struct Fio(Value);

impl Fio {
    fn run(disk: &SlowDisk, options: &str) -> Fio {
        let output = disk.fio(options).arg("--output-format=json").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        Fio(report["jobs"][0]["read"].clone())
    }

    fn count(&self) -> u64 {
        self.0["total_ios"].as_u64().unwrap()
    }

    fn quantile(&self, percent: &str) -> f64 {
        self.0["clat_ns"]["percentile"][percent].as_f64().unwrap() / 1000.0
    }
}

/// A quarter of the disk takes 10 ms, the rest 2 ms. fio's times begin before the request is allocated and end when fio runs again,
/// some 50 us in all; a bucket of the module is 6.25 % wide, one of fio 1.6 %.
#[test]
fn quantiles_of_a_disk_of_two_latencies_are_fios() {
    let _alone = alone();
    let Some(disk) = SlowDisk::new(&[2, 2, 2, 10]) else { return };
    let mut agent = Agent::new("biolatency", "buckets = fine");
    let unseen = Recorder::unseen(&["block/block_rq_complete"]);
    let fio = Fio::run(&disk, "--ioengine=psync --runtime=6");
    let unseen = unseen.map_or(0, |recorder| recorder.end().len() as u64);
    agent.tick();
    let count = of_disk(&mut agent, &disk, "total.count");
    println!("fio {} reads, {count} counted, {unseen} of all disks where no program runs", fio.count());
    // fio opens the disk, which reads its first blocks.
    assert!((fio.count().saturating_sub(unseen)..=fio.count() + 32).contains(&count), "{} {count}", fio.count());
    for (metric, percent) in [("total.p50", "50.000000"), ("total.p99", "99.000000")] {
        let (ours, theirs) = (of_disk(&mut agent, &disk, metric) as f64, fio.quantile(percent));
        println!("{metric}: {ours} us, fio {theirs} us: {:+.1} %", 100.0 * (ours / theirs - 1.0));
        assert!((ours / theirs - 1.0).abs() <= 0.05, "{metric}: {ours} us, fio {theirs} us");
    }
    for (metric, ms) in [("total.p50", 2.0), ("device.p50", 2.0), ("total.p90", 10.0), ("device.p90", 10.0)] {
        let us = of_disk(&mut agent, &disk, metric) as f64;
        assert!((ms * 1000.0 * (1.0 - Fine::ERROR)..ms * 1500.0).contains(&us), "{metric}: {us} us");
    }
    are_two_modes(&by_bucket(&mut agent, &disk));
}

/// Returns the requests of a disk by the bound of their bucket in microseconds.
fn by_bucket(agent: &mut Agent, disk: &SlowDisk) -> Vec<(f64, u64)> {
    let of_disk = |(name, count): (String, u64)| {
        let (bounds, series) = name.split_once("::").unwrap();
        (series == disk.name()).then(|| (bounds.split_once('-').unwrap().0.parse().unwrap(), count))
    };
    reads(agent, BUCKETS, "total.bucket").into_iter().filter_map(of_disk).collect()
}

/// Checks that three quarters are near 2 ms, a quarter near 10 ms, and fewer between them, as other load holds requests up.
fn are_two_modes(buckets: &[(f64, u64)]) {
    let all: u64 = buckets.iter().map(|(_, count)| count).sum();
    let share = |from: f64, to: f64| {
        let within = buckets.iter().filter(|(low, _)| (from..to).contains(low));
        within.map(|(_, count)| count).sum::<u64>() as f64 / all as f64
    };
    let (fast, between, slow) = (share(1900.0, 5000.0), share(5000.0, 9500.0), share(9500.0, 20_000.0));
    println!("of the reads {fast:.3} are fast, {slow:.3} slow, {between:.3} between");
    assert!((0.6..0.85).contains(&fast) && (0.15..0.4).contains(&slow) && between < slow / 3.0);
}

/// The device takes 128 requests at once. Further ones wait in the scheduler: the time in the queue grows, that in the device does
/// not.
#[test]
fn a_full_queue_grows_and_its_device_does_not() {
    let _alone = alone();
    let Some(disk) = SlowDisk::new(&[1]) else { return };
    disk.set_scheduler("mq-deadline");
    let medians = [1, 120, 240].map(|depth: u32| {
        let mut agent = Agent::new("biolatency", "");
        Fio::run(&disk, &format!("--ioengine=libaio --iodepth={depth} --runtime=3"));
        agent.tick();
        ["device.p50", "queue.p50"].map(|metric| of_disk(&mut agent, &disk, metric))
    });
    println!("device and queue, in microseconds, of 1, 120, 240 in flight: {medians:?}");
    let [[one, _], [full, before], [fuller, after]] = medians;
    assert!(full > 20 * one, "a device of one request at a time: {medians:?}");
    assert!(fuller < full * 3 / 2, "its device does not: {medians:?}");
    assert!(before < 1000 && after > 20_000, "the queue grows: {medians:?}");
}
