//! Files for Prometheus, with promtool and with Prometheus itself.

use crate::instance::{port, Pmcd};
use crate::proxy::{encoded, page_of, Proxy, PMPROXY};
use crate::rules::write;
use crate::support::loops::Loop;
use crate::support::slow_disk::SlowDisk;
use crate::support::{config, lacks, told, wait_seconds, Proc};
use corebcc::reference::grafana;
use corebcc::reference::views::PROMETHEUS_DASHBOARD;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Command, Stdio};

/// A Prometheus of the test.
pub struct Prometheus {
    _process: Proc,
    port: u16,
}

impl Prometheus {
    /// Starts it with the configuration `prometheus.yml` of the directory of a pmcd.
    pub fn start(pmcd: &Pmcd) -> Prometheus {
        let port = port();
        let mut command = pmcd.program("prometheus");
        command.args(["--config.file=prometheus.yml", "--storage.tsdb.path=tsdb"]);
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let log = pmcd.home.create("prometheus.log");
        let process = Proc(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
        Prometheus { _process: process, port }
    }

    /// Returns its answer to a query; null until it listens.
    pub fn query(&self, what: &str) -> Value {
        if TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_err() {
            return Value::Null;
        }
        serde_json::from_str(&page_of(self.port, &format!("/api/v1/query?query={}", encoded(what)))).unwrap_or_default()
    }
}

const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/consumers/prometheus");

#[test]
fn promtool_accepts_the_files_and_runs_the_tests_of_the_rules() {
    if lacks(&["promtool"]) {
        return;
    }
    for arguments in [
        ["check", "config", "scrape.yml"],
        ["check", "rules", "corebcc.rules.yml"],
        ["test", "rules", "corebcc.test.yml"],
    ] {
        let output = Command::new("promtool").args(arguments).current_dir(FILES).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", told(&output));
    }
}

/// All metrics of the rules are scraped as scrape.yml says, the quantile of a slow disk is within the bounds of its bucket, and each query of the
/// dashboard has values.
#[test]
fn prometheus_scrapes_what_the_rules_ask_for() {
    if lacks(&["prometheus", PMPROXY]) {
        return;
    }
    let Some(slow) = SlowDisk::new(&[25]) else { return };
    let Some(written_to) = Loop::several(1).and_then(|mut loops| loops.pop()) else { return };
    let mut text = config(&["biolatency", "runqlat", "sysfork"]);
    for module in ["biolatency", "runqlat"] {
        text = text.replace(&format!("[{module}]\n"), &format!("[{module}]\nprometheus = True\n"));
    }
    let Some(pmcd) = Pmcd::beside(&text, &[]) else { return };
    let proxy = Proxy::start(&pmcd, None);
    let scrape = fs::read_to_string(format!("{FILES}/scrape.yml")).unwrap();
    assert!(scrape.contains("scrape_interval: 15s") && scrape.contains("localhost:44322"), "{scrape}");
    let of_pmcd = format!("    params:\n      hostspec: ['localhost:{}']\n", pmcd.port);
    let scrape = scrape
        .replace("    params:\n", &of_pmcd)
        .replace("15s", "1s")
        .replace("localhost:44322", &format!("127.0.0.1:{}", proxy.port));
    let head = "global:\n  evaluation_interval: 1s\nrule_files: [corebcc.rules.yml]\n";
    fs::write(pmcd.home.path("prometheus.yml"), format!("{head}{scrape}")).unwrap();
    let rules = fs::read_to_string(format!("{FILES}/corebcc.rules.yml")).unwrap();
    fs::write(pmcd.home.path("corebcc.rules.yml"), &rules).unwrap();
    let prometheus = Prometheus::start(&pmcd);
    let mut fio = slow.fio("--ioengine=psync --runtime=8 --output=/dev/null").stdout(Stdio::null()).spawn().unwrap();
    write(&written_to.path());
    assert!(fio.wait().unwrap().success());

    let word = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    let mut left: BTreeSet<&str> = rules.split(word).filter(|word| word.starts_with("bcc_")).collect();
    assert!(left.len() > 10, "{left:?}");
    let query = |what: &str| prometheus.query(what);
    wait_seconds(60, "values of all metrics in Prometheus", || {
        left.retain(|metric| query(metric)["data"]["result"].as_array().is_none_or(Vec::is_empty));
        println!("{left:?}, {}", query("up"));
        left.is_empty().then_some(())
    });
    let p99 = wait_seconds(60, "the quantile of the slow disk", || {
        let answer = query(&format!("corebcc:disk_read_seconds:p99{{disk=\"{}\"}}", slow.name()));
        answer["data"]["result"][0]["value"][1].as_str()?.parse::<f64>().ok()
    });
    assert!((0.016..0.066).contains(&p99), "{p99}");

    let panels = PROMETHEUS_DASHBOARD.panels.iter();
    let queries = panels.flat_map(|panel| grafana::queries(&grafana::PROMETHEUS, panel));
    let all = |text: &str| text.replace("$host", ".*").replace("$disk", ".*").replace("$__rate_interval", "5m");
    let mut left: Vec<String> = queries.map(|query| all(&query.expression)).collect();
    assert!(left.len() > 10, "{left:?}");
    wait_seconds(60, "values of all queries of the dashboard", || {
        left.retain(|what| query(what)["data"]["result"].as_array().is_none_or(Vec::is_empty));
        println!("{left:?}");
        left.is_empty().then_some(())
    });
    let down = query("sum(1 - bcc_agent_module_up)");
    assert_eq!(down["data"]["result"][0]["value"][1], "0", "{down}");
}
