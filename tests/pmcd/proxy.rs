//! The REST interface of pmproxy, which dashboards use.

use crate::consumers::HOGS;
use crate::instance::{port, Pmcd};
use crate::support::script::copy_program;
use crate::support::slow_disk::SlowDisk;
use crate::support::{config, lacks, rows::rows, wait_for, Proc};
use corebcc::host::{Cgroups, Controller};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::time::Duration;

pub const PMPROXY: &str = "/usr/lib/pcp/bin/pmproxy";

/// A pmproxy of the test.
pub struct Proxy {
    _process: Proc,
    pub port: u16,
}

impl Proxy {
    /// Starts pmproxy with a key server on this port, or without time series.
    pub fn start(pmcd: &Pmcd, keys: Option<u16>) -> Proxy {
        let series = keys.is_some();
        let servers = keys.map_or(String::new(), |port| format!("servers = localhost:{port}\n"));
        let conf = format!(
            "[pmproxy]\nhttp.enabled = true\npcp.enabled = false\nredis.enabled = {series}\n[redis]\n{servers}\
             [pmseries]\nenabled = {series}\n{servers}[discover]\nenabled = false\n"
        );
        fs::write(pmcd.home.path("pmproxy.conf"), conf).unwrap();
        let port = port();
        let mut command = pmcd.program(PMPROXY);
        // The directory of derived metrics is one of those that the test has of its own.
        command.env("PCP_DERIVED_CONFIG", HOGS);
        command.args(["-f", "-U", "root", "-i", "127.0.0.1", "-p", &port.to_string()]);
        command.args(["-c", "pmproxy.conf", "-l", "pmproxy.log", "-s", "pmproxy.socket"]);
        command.args(keys.map(|port| format!("-r{port}")));
        let out = pmcd.home.create("pmproxy.out.log");
        let process = Proc(command.stdout(out.try_clone().unwrap()).stderr(out).spawn().unwrap());
        wait_for("pmproxy to listen", || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok());
        Proxy { _process: process, port }
    }

    /// Returns the body of a page without white space.
    pub fn get(&self, page: &str) -> String {
        self.page(page).split_whitespace().collect()
    }

    /// Returns the body of a page as JSON.
    #[track_caller]
    pub fn json(&self, page: &str) -> serde_json::Value {
        let body = self.page(page);
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{page}: {error}: {body}"))
    }

    fn page(&self, page: &str) -> String {
        page_of(self.port, page)
    }
}

/// Returns a text as a part of an address.
pub fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

pub fn page_of(port: u16, page: &str) -> String {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    // In one write: pmproxy does not put the pieces of an address together.
    stream.write_all(format!("GET {page} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).unwrap();
    let mut lines = BufReader::new(stream);
    let mut line = || {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    };
    let head: Vec<String> = std::iter::from_fn(|| Some(line()).filter(|line| !line.is_empty())).collect();
    let value = |name: &str| head.iter().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let mut body = Vec::new();
    if let Some(length) = value("Content-Length:") {
        body.resize(length.parse().unwrap(), 0);
        lines.read_exact(&mut body).unwrap();
    } else {
        assert_eq!(value("Transfer-encoding:").or(value("Transfer-Encoding:")), Some("chunked"), "{head:?}");
        loop {
            let mut size = String::new();
            lines.read_line(&mut size).unwrap();
            let mut chunk = vec![0; usize::from_str_radix(size.trim_end(), 16).unwrap() + 2];
            lines.read_exact(&mut chunk).unwrap();
            if chunk.len() == 2 {
                break;
            }
            body.extend(&chunk[..chunk.len() - 2]);
        }
    }
    String::from_utf8_lossy(&body).into_owned()
}

#[test]
fn pmproxy_serves_values_instances_metadata_and_labels() {
    if lacks(&[PMPROXY]) {
        return;
    }
    let Some(pmcd) = Pmcd::start() else { return };
    let proxy = Proxy::start(&pmcd, None);
    let ask = |page: &str, query: &str| proxy.get(&format!("/pmapi/{page}?hostspec=localhost:{}&{query}", pmcd.port));

    let metrics = ask("metric", "prefix=bcc");
    for row in rows() {
        assert!(metrics.contains(&format!(r#""name":"{}""#, row.name)), "{}: {metrics}", row.name);
    }
    let metric = ask("metric", "name=bcc.runq.latency");
    for part in [
        r#""pmid":"149.4.0""#,
        r#""indom":"149.4""#,
        r#""type":"u64""#,
        r#""sem":"counter""#,
        r#""units":"microsec""#,
        r#""agent":"bcc""#,
        r#""bcc_module":"runqlat""#,
        r#""statistic":"histogram""#,
        r#""text-help""#,
    ] {
        assert!(metric.contains(part), "no {part} in {metric}");
    }
    // pmproxy 6.0.3 shows the labels of no agent's instances here.
    let instances = ask("indom", "name=bcc.runq.latency");
    for part in [r#""indom":"149.4""#, r#""instance":0,"name":"0-1""#, r#""statistic":"histogram""#] {
        assert!(instances.contains(part), "no {part} in {instances}");
    }
    let fetched = ask("fetch", "names=bcc.runq.latency,bcc.proc.sysfork");
    for part in [r#""pmid":"149.2.0""#, r#""name":"bcc.proc.sysfork""#, r#""instance":0,"value":"#] {
        assert!(fetched.contains(part), "no {part} in {fetched}");
    }
    let children = ask("children", "prefix=bcc");
    assert!(children.contains(r#""nonleaf":["agent","disk","proc","runq"]"#), "{children}");
    let store = ask("store", "name=bcc.proc.sysfork&value=1");
    assert!(store.contains(r#""success":false"#) && store.contains("Nopermission"), "{store}");
}

/// A single bad line costs Prometheus the whole scrape.
#[test]
fn names_beyond_ascii_leave_a_scrape_valid() {
    if lacks(&[PMPROXY]) || Cgroups::of(Controller::Unified).is_err() {
        return;
    }
    let config =
        config(&["sysfork", "exectop", "cgroup_runq"]).replace("[cgroup_runq]\n", "[cgroup_runq]\nprometheus = True\n");
    let Some(pmcd) = Pmcd::beside(&config, &[]) else { return };
    let proxy = Proxy::start(&pmcd, None);
    for name in ["caf\u{e9}", "a\\x2db", "a b"] {
        let path = pmcd.home.path(name);
        copy_program("/bin/true", &path);
        Command::new(&path).status().unwrap();
    }
    let cgroups = Cgroups::of(Controller::Unified).expect("cgroup v2");
    let own = cgroups.mount().join(format!("corebcc-caf\u{e9}-a\\x2db-{}.slice", std::process::id()));
    fs::create_dir(&own).unwrap();
    let script = format!("echo $$ > '{}/cgroup.procs' && sleep 0.1; sleep 0.1", own.display());
    assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
    let names = "bcc.proc.exec.count,bcc.cgroup.runq.count,bcc.cgroup.runq.sum,bcc.cgroup.runq.seconds_count";
    let page = proxy.page(&format!("/metrics?hostspec=localhost:{}&names={names}", pmcd.port));
    fs::remove_dir(&own).unwrap();
    page.lines().filter(|line| line.contains("caf")).for_each(|line| println!("{line}"));
    let names = |name: &str| samples(&page, "bcc_proc_exec_count").iter().any(|sample| sample.labels.contains(name));
    assert!(names(r#"instname="caf\\xc3\\xa9""#), "{page}");
    // Series of two instance domains join by the label.
    let groups = ["count", "sum", "seconds_count"].map(|metric| {
        let samples = samples(&page, &format!("bcc_cgroup_runq_{metric}"));
        let mut groups = samples.iter().filter_map(|sample| sample.label("cgroup"));
        groups.find(|group| group.contains("corebcc-caf")).unwrap_or_else(|| panic!("no {metric} in {page}")).to_owned()
    });
    assert!(groups[0] == groups[1] && groups[0] == groups[2], "{groups:?}");
    // What may follow a backslash.
    let escapes = page.split('\\').skip(1).step_by(2);
    assert!(
        page.is_ascii() && escapes.clone().all(|after| after.is_empty() || after.starts_with(['n', '"'])),
        "{page}"
    );
}

/// A line in Prometheus' format: labels and value.
struct Sample {
    labels: String,
    value: f64,
}

impl Sample {
    fn label(&self, name: &str) -> Option<&str> {
        let (_, after) = self.labels.split_once(&format!("{name}=\""))?;
        after.split_once('"').map(|(value, _)| value)
    }
}

/// Returns the samples of a metric in a page.
fn samples(page: &str, name: &str) -> Vec<Sample> {
    let lines = page.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once("} "));
    let sample = |(labels, value): (&str, &str)| Sample { labels: labels.into(), value: value.parse().unwrap() };
    lines.map(sample).collect()
}

/// Computes a quantile as Prometheus' function of this name: it looks for the bucket, and interpolates linearly in it.
fn histogram_quantile(quantile: f64, buckets: &[Sample]) -> f64 {
    let bound = |sample: &Sample| sample.label("le").unwrap().parse::<f64>().unwrap();
    let mut buckets: Vec<(f64, f64)> = buckets.iter().map(|sample| (bound(sample), sample.value)).collect();
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    let rank = quantile * buckets.last().unwrap().1;
    let at = buckets.iter().position(|&(_, count)| count >= rank).unwrap();
    let (low, below) = at.checked_sub(1).map_or((0.0, 0.0), |at| buckets[at]);
    let (high, count) = buckets[at];
    low + (high - low) * (rank - below) / (count - below)
}

#[test]
fn prometheus_finds_the_quantiles_that_the_agent_serves() {
    if lacks(&[PMPROXY]) {
        return;
    }
    let Some(disk) = SlowDisk::new(&[3, 3, 3, 25]) else { return };
    let config = config(&["biolatency", "runqlat", "sysfork"])
        .replace("[biolatency]\n", "[biolatency]\nprometheus = True\nbuckets = fine\nwindow = 3600\n")
        .replace("[runqlat]\n", "[runqlat]\nprometheus = True\n");
    let Some(pmcd) = Pmcd::beside(&config, &[]) else { return };
    let proxy = Proxy::start(&pmcd, None);
    let fio = disk.fio("--ioengine=psync --runtime=3 --output=/dev/null").status().unwrap();
    assert!(fio.success());
    let scrape = |name: &str| proxy.page(&format!("/metrics?hostspec=localhost:{}&names=bcc.{name}", pmcd.port));
    let of_disk = |metric: &str| {
        let page = scrape(&format!("disk.dev.read.total.{metric}"));
        let mut samples = samples(&page, &format!("bcc_disk_dev_read_total_{metric}"));
        samples.retain(|sample| sample.label("disk") == Some(disk.name()));
        samples
    };
    // The agent looks at the counters once a second.
    for (quantile, metric) in [(0.5, "p50"), (0.99, "p99")] {
        wait_for(metric, || {
            let found = histogram_quantile(quantile, &of_disk("seconds_bucket")) * 1e6;
            let own = of_disk(metric).first()?.value;
            println!("{metric}: {own} us, by histogram_quantile {found:.0} us");
            ((found - own).abs() <= own * 0.032 + 1.0 && own > 2000.0).then_some(())
        });
    }
    let (buckets, sum, count) = (of_disk("seconds_bucket"), of_disk("seconds_sum"), of_disk("seconds_count"));
    assert_eq!((buckets.len(), sum.len(), count.len()), (417, 1, 1));
    assert_eq!((sum[0].label("le"), count[0].label("le")), (None, None), "those of the whole histogram");
    let infinite = buckets.iter().find(|sample| sample.label("le") == Some("+Inf")).unwrap();
    assert_eq!(infinite.value, count[0].value);
    let mean = sum[0].value / count[0].value;
    assert!((0.003..0.1).contains(&mean), "{mean}");
    // Without series, and by powers of two.
    let all = samples(&scrape("runq.all.seconds_bucket"), "bcc_runq_all_seconds_bucket");
    let values: Vec<f64> = all.iter().map(|sample| sample.value).collect();
    assert!(values.len() == 26 && values.is_sorted() && values[25] > 0.0, "{values:?}");
    assert_eq!((all[0].label("le"), all[25].label("le")), (Some("0.000002"), Some("+Inf")));
}
