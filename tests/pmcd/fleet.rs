//! A fleet: hosts in network namespaces, each with a name, a pmcd, an agent and a disk, asked together.

use crate::instance::Pmcd;
use crate::prometheus::Prometheus;
use crate::proxy::{Proxy, PMPROXY};
use crate::subcommands::{json, lacks_pcp, pcp};
use crate::support::loops::{open_direct, read_blocks, Loop};
use crate::support::slow_disk::SlowDisk;
use crate::support::{config, lacks, skip, wait_for, wait_seconds};
use nix::sched::{unshare, CloneFlags};
use nix::unistd::{gettid, sethostname};
use serde_json::Value;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const HOSTS: u8 = 20;
/// The host with the slow disk.
const SLOW: usize = 7;
/// Reads of each disk: half of those of the slow one take 20 ms, the others 200 ms.
const READS: u64 = 50;

/// Runs `ip` with these words. Panics if it fails.
#[track_caller]
fn ip(words: &str) {
    assert!(Command::new("ip").args(words.split_whitespace()).status().unwrap().success(), "ip {words}");
}

/// Gives this thread, and what it starts, a network and a host name of its own. False, with a report, where that is not possible.
fn is_host_of_its_own() -> bool {
    if unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWUTS).is_err() {
        skip("namespaces of networks and host names");
        return false;
    }
    ip("link set lo up");
    true
}

/// Starts a pmcd in a host of its own, connected to the network of the thread `centre`, whose agent counts this disk only.
fn host(number: u8, disk: &str, centre: i32) -> Option<Pmcd> {
    if !is_host_of_its_own() {
        return None;
    }
    sethostname(format!("host{number:02}")).unwrap();
    let address = Ipv4Addr::new(10, 64, number, 2);
    ip(&format!("link add eth0 type veth peer name host{number} netns {centre}"));
    ip(&format!("address add {address}/24 dev eth0"));
    ip("link set eth0 up");
    let config = config(&["sysfork", "biolatency"]);
    let options = format!("[biolatency]\ndevices = ^{disk}$\nprometheus = True\n");
    Pmcd::of_host(address, &config.replace("[biolatency]\n", &options))
}

/// Fetches that a host's agent has answered; that of this count is the next one.
fn fetches(host: &str) -> u64 {
    let output = Command::new("pminfo").args(["-h", host, "-f", "bcc.agent.fetches"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split("value ").nth(1).unwrap_or_else(|| panic!("{text}")).trim().parse().unwrap()
}

/// Reads all of these disks, and returns the sorted times in microseconds as a reader sees them.
fn read(disks: &[File]) -> Vec<u64> {
    let read = |disk: &File, block: u64| {
        let start = Instant::now();
        read_blocks(disk, [block]);
        start.elapsed().as_micros() as u64
    };
    // Blocks of both halves of the slow disk's 64 MB; the others have one megabyte.
    let block = |disk: usize, number: u64| if disk == SLOW { number % 2 * 8192 + number } else { number };
    let mut times: Vec<u64> = (0..READS)
        .flat_map(|number| disks.iter().enumerate().map(move |(of, disk)| read(disk, block(of, number))))
        .collect();
    times.sort_unstable();
    times
}

/// Twenty hosts are one fleet: all reads count once, its quantiles are those of all reads, and one query of PCP or of Prometheus tells which
/// host and which disk is slow.
#[test]
fn twenty_hosts_with_a_disk_each_are_one_fleet() {
    if lacks_pcp() || lacks(&["ip", "prometheus", PMPROXY]) {
        return;
    }
    let Some(slow) = SlowDisk::new(&[20, 200]) else { return };
    let Some(fast) = Loop::several(usize::from(HOSTS) - 1) else { return };
    if !is_host_of_its_own() {
        return;
    }
    let mut names: Vec<String> = fast.iter().map(Loop::name).collect();
    names.insert(SLOW, slow.name().into());
    let centre = gettid().as_raw();
    let started: Option<Vec<Pmcd>> = std::thread::scope(|threads| {
        let started: Vec<_> =
            (0..HOSTS).zip(&names).map(|(number, disk)| threads.spawn(move || host(number, disk, centre))).collect();
        started.into_iter().map(|host| host.join().unwrap()).collect()
    });
    let Some(pmcds) = started else { return };
    for number in 0..HOSTS {
        ip(&format!("address add 10.64.{number}.1/24 dev host{number}"));
        ip(&format!("link set host{number} up"));
    }
    let hosts: Vec<String> =
        pmcds.iter().enumerate().map(|(number, pmcd)| format!("10.64.{number}.2:{}", pmcd.port)).collect();
    let disks: Vec<File> = names.iter().map(|name| open_direct(&Path::new("/dev").join(name))).collect();

    let last = hosts.last().unwrap();
    let (before, mut own) = (fetches(last), 0);
    let options: Vec<&str> = hosts.iter().flat_map(|host| ["-h", host]).collect();
    let mut command = pcp(&pmcds[0].home, &[], "corebcc");
    let command = command.args(options).args(["-t", "20", "-s", "1", "--json", "fleet"]);
    let mut shown = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("the first reading of all hosts", || {
        assert!(shown.try_wait().unwrap().is_none());
        own += 1;
        (fetches(last) > before + own).then_some(())
    });
    let times = read(&disks);
    let tables = json(shown.wait_with_output().unwrap());
    let row = &tables["fleet"][0];
    assert_eq!((&row["of"], row["count"].as_u64()), (&"disk reads".into(), Some(times.len() as u64)), "{tables}");
    for (name, permille) in [("p50_us", 500), ("p90_us", 900), ("p99_us", 990), ("p999_us", 999)] {
        // A reader's time is longer than the disk's by some microseconds, and a bound of a bucket is less than twice as long.
        let reader = times[(times.len() * permille).div_ceil(1000) - 1] as f64;
        let least = if permille < 990 { 1.0 } else { 200_000.0 };
        let shown = row[name].as_f64().unwrap();
        assert!((least..=reader * 2.0).contains(&shown), "{name}: {reader} {tables}");
    }
    let worst = &tables["slowest"][0];
    assert_eq!((&worst["host"], &worst["series"]), (&"host07".into(), &slow.name().into()), "{tables}");
    assert_eq!(worst["count"].as_u64(), Some(READS), "{tables}");
    // A pause of the machine can make some reads of another disk as slow.
    assert!(worst["share_%"].as_f64().unwrap() > 50.0, "{tables}");

    // One pmproxy reads all hosts for Prometheus, as docs/fleet.md has it.
    let proxy = Proxy::start(&pmcds[0], None);
    let page = include_str!("../../docs/fleet.md");
    let scrape = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let scrape = scrape
        .replace("['host00:44321', 'host01:44321']", &format!("{hosts:?}"))
        .replace("15s", "1s")
        .replace("localhost:44322", &format!("127.0.0.1:{}", proxy.port));
    fs::write(pmcds[0].home.path("prometheus.yml"), scrape).unwrap();
    let prometheus = Prometheus::start(&pmcds[0]);
    let query = |what: &str| prometheus.query(what)["data"]["result"].as_array().cloned().unwrap_or_default();
    let buckets = "rate(bcc_disk_dev_read_total_seconds_bucket[1m])";
    wait_seconds(60, "all hosts in Prometheus", || {
        println!("{:?}", query("up"));
        (query("count by (instance) (bcc_disk_dev_read_total_seconds_count)").len() == hosts.len()).then_some(())
    });
    let end = Instant::now() + Duration::from_secs(60);
    let answer = loop {
        read(&disks);
        let answer = query(&format!("topk(1, histogram_quantile(0.99, sum by (le, instance, disk) ({buckets})))"));
        if answer.first().is_some_and(|top| top["metric"]["disk"] == slow.name()) || Instant::now() > end {
            break answer;
        }
    };
    assert_eq!(answer[0]["metric"]["disk"], slow.name(), "{answer:?}");
    assert_eq!(answer[0]["metric"]["instance"], Value::from(hosts[SLOW].as_str()), "{answer:?}");
    let p99: f64 = answer[0]["value"][1].as_str().unwrap().parse().unwrap();
    assert!((0.2..0.4).contains(&p99), "{answer:?}");
}

/// Two pmcds of one host that are asked live are one fleet.
#[test]
fn a_fleet_of_two_pmcds_adds_their_counts() {
    if lacks_pcp() {
        return;
    }
    let Some(pmcds) =
        (0..2).map(|_| Pmcd::beside(&config(&["sysfork", "runqlat"]), &[])).collect::<Option<Vec<Pmcd>>>()
    else {
        return;
    };
    let mut command = pcp(&pmcds[0].home, &[], "corebcc");
    for pmcd in &pmcds {
        command.args(["-h", &format!("localhost:{}", pmcd.port)]);
    }
    let tables = json(command.args(["--json", "fleet"]).output().unwrap());
    let counts: Vec<u64> =
        tables["slowest"].as_array().unwrap().iter().map(|row| row["count"].as_u64().unwrap()).collect();
    assert_eq!(counts.len(), 2, "{tables}");
    assert_eq!(tables["fleet"][0]["count"].as_u64(), Some(counts.iter().sum()), "{tables}");
}
