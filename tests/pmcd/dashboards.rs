//! The dashboards of grafana-pcp. Requests to pmproxy are those of its Vector data source (all metrics of a dashboard in one fetch,
//! names of instances only for an unknown number) and, by pmseries, those of its Valkey data source.

use crate::consumers::{Names, Traffic, HOGS as DERIVED};
use crate::instance::{port, session, Pmcd};
use crate::proxy::{encoded, Proxy, PMPROXY};
use crate::rules::UNANSWERED;
use crate::support::script::Script;
use crate::support::{config, lacks, skip, told, use_disk, wait_for, Proc};
use corebcc::modules::find;
use corebcc::reference::grafana::{self, Source};
use corebcc::reference::views::{Kind, Values, DASHBOARDS};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const HEATMAPS: [&str; 2] = ["bcc.runq.latency", "bcc.disk.all.latency"];
/// Metrics of the dashboard "Top Consumers", the first a sum of four rates that pmproxy derives; and columns of two tables.
const HOGS: &str = "proc.hog.net";
const ACTIVE: &str = "bcc.proc.io.net.tcptop";
const ACTIVE_COLUMNS: [&str; 8] = ["pid", "comm", "laddr", "lport", "daddr", "dport", "rx", "tx"];
const CLOSED: &str = "bcc.proc.io.net.tcp";
const CLOSED_COLUMNS: [&str; 9] = ["pid", "comm", "laddr", "lport", "daddr", "dport", "rx", "tx", "duration"];

/// The values of one poll, by metric and number of instance.
type Poll = BTreeMap<String, BTreeMap<u64, Value>>;

/// A data source with its context.
struct Vector<'a> {
    proxy: &'a Proxy,
    context: u64,
    /// Names of instances by metric, requested when an unknown number appears.
    names: BTreeMap<String, BTreeMap<u64, String>>,
}

impl<'a> Vector<'a> {
    fn new(proxy: &'a Proxy, pmcd: &Pmcd) -> Vector<'a> {
        let page = format!("/pmapi/context?hostspec=localhost:{}&polltimeout=30", pmcd.port);
        Vector { proxy, context: proxy.json(&page)["context"].as_u64().unwrap(), names: BTreeMap::new() }
    }

    fn ask(&self, page: &str, query: &str) -> Value {
        self.proxy.json(&format!("/pmapi/{page}?context={}&{query}", self.context))
    }

    #[track_caller]
    fn poll(&mut self, metrics: &[String]) -> Poll {
        let reply = self.ask("fetch", &format!("names={}", metrics.join(",")));
        let mut poll = Poll::new();
        for set in reply["values"].as_array().unwrap_or_else(|| panic!("{reply}")) {
            let instance = |value: &Value| (value["instance"].as_u64().unwrap(), value["value"].clone());
            let values = set["instances"].as_array().unwrap().iter().map(instance).collect();
            poll.insert(set["name"].as_str().unwrap().to_owned(), values);
        }
        // A metric that is not in the answer is an error of its panel; rates are not there the first time.
        assert!(metrics.iter().all(|name| poll.contains_key(name) || name == HOGS), "{reply}");
        for (metric, values) in &poll {
            let names = self.names.entry(metric.clone()).or_default();
            if !values.keys().all(|number| names.contains_key(number)) {
                *names = instances(&self.proxy.json(&format!("/pmapi/indom?context={}&name={metric}", self.context)));
            }
            assert!(values.keys().all(|number| names.contains_key(number)), "{metric}: {values:?} {names:?}");
        }
        poll
    }
}

fn instances(reply: &Value) -> BTreeMap<u64, String> {
    let list = reply["instances"].as_array().unwrap_or_else(|| panic!("{reply}"));
    let instance = |value: &Value| (value["instance"].as_u64().unwrap(), value["name"].as_str().unwrap().to_owned());
    list.iter().map(instance).collect()
}

fn below(node: &str, columns: &[&str]) -> Vec<String> {
    columns.iter().map(|column| format!("{node}.{column}")).collect()
}

/// Returns the rows of a table: one for each instance with a value in some column, with the last component of each metric as the
/// column's title.
fn table<'a>(poll: &'a Poll, metrics: &'a [String]) -> Vec<BTreeMap<&'a str, &'a Value>> {
    let mut rows: BTreeMap<u64, BTreeMap<&str, &Value>> = BTreeMap::new();
    for metric in metrics {
        for (number, value) in &poll[metric] {
            rows.entry(*number).or_default().insert(metric.rsplit('.').next().unwrap(), value);
        }
    }
    rows.into_values().collect()
}

fn has(row: &BTreeMap<&str, &Value>, ports: (u16, u16)) -> bool {
    *row["lport"] == ports.0 && *row["dport"] == ports.1
}

#[test]
fn the_four_panels_of_the_overview_fill() {
    if lacks(&[PMPROXY]) {
        return;
    }
    let Some(pmcd) = Pmcd::beside(&config(&["biolatency", "runqlat", "tcptop", "tcplife", "sysfork"]), &[]) else {
        return;
    };
    let proxy = Proxy::start(&pmcd, None);
    let mut vector = Vector::new(&proxy, &pmcd);
    let (active, closed) = (below(ACTIVE, &ACTIVE_COLUMNS), below(CLOSED, &CLOSED_COLUMNS));
    let all: Vec<String> =
        HEATMAPS.iter().map(|name| name.to_string()).chain(active.clone()).chain(closed.clone()).collect();
    let described = vector.ask("metric", &format!("names={}", all.join(",")));
    assert_eq!(described["metrics"].as_array().unwrap().len(), all.len(), "{described}");

    let first = vector.poll(&all);
    let ports = session(); // begins and ends between two polls
    let disk = use_disk();
    let second = vector.poll(&all);

    for name in HEATMAPS {
        // The field is called by what follows the dash, the vertical position is the number.
        for (number, bucket) in &vector.names[name] {
            let (low, high) = bucket.split_once('-').unwrap();
            let (low, high): (u64, u64) = (low.parse().unwrap(), high.parse().unwrap());
            assert_eq!((low, high), (if *number == 0 { 0 } else { 1 << number }, (2 << number) - 1), "{name}");
        }
        let numbers: Vec<u64> = second[name].keys().copied().collect();
        assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>(), "{name}: dense from 0");
        let rises = second[name].iter().map(|(number, value)| {
            let before = first[name].get(number).map_or(0, |value| value.as_u64().unwrap());
            value.as_u64().unwrap().checked_sub(before).unwrap_or_else(|| panic!("{name} stepped back"))
        });
        assert!(rises.sum::<u64>() > 0 || name.contains("disk") && !disk, "{name}: {first:?} {second:?}");
    }

    let rows = table(&second, &closed);
    assert!(rows.iter().all(|row| row.len() == CLOSED_COLUMNS.len()), "whole rows: {rows:?}");
    for (ports, (sent, received)) in [(ports, (1000, 500)), ((ports.1, ports.0), (500, 1000))] {
        let row = rows.iter().find(|row| has(row, ports)).unwrap_or_else(|| panic!("{ports:?} not in {rows:?}"));
        assert!((sent..=sent + 2).contains(&row["tx"].as_u64().unwrap()), "{row:?}");
        assert!((received..=received + 2).contains(&row["rx"].as_u64().unwrap()), "{row:?}");
        assert_eq!((row["laddr"].as_str(), row["daddr"].as_str()), (Some("127.0.0.1"), Some("127.0.0.1")));
        assert!(row["duration"].as_u64().is_some() && row["comm"].is_string());
    }
    let row = rows.iter().find(|row| has(row, ports)).unwrap();
    assert_eq!(*row["pid"], std::process::id(), "{row:?}");

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let ports = (client.local_addr().unwrap().port(), listener.local_addr().unwrap().port());
    wait_for("the session among the active ones", || {
        // More than the requests of this test move, each on a connection of its own.
        client.write_all(&[1; 20_000]).unwrap();
        server.read_exact(&mut [0; 20_000]).unwrap();
        let poll = vector.poll(&all);
        let rows = table(&poll, &active);
        assert!(rows.iter().all(|row| row.len() == ACTIVE_COLUMNS.len()), "whole rows: {rows:?}");
        let row = rows.into_iter().find(|row| has(row, ports))?;
        assert_eq!(*row["pid"], std::process::id(), "{row:?}");
        assert!(row["tx"].as_u64().unwrap() > 0 && row["rx"] == 0, "{row:?}");
        Some(())
    });
}

/// The instance domain is requested after the fetch, and pmproxy drops instances that are not in it.
#[test]
fn a_fetched_instance_keeps_its_name_after_its_process() {
    if lacks(&[PMPROXY]) {
        return;
    }
    for names in Names::tried(DERIVED) {
        let Some(pmcd) = names.served() else { return };
        names.copy(DERIVED, &pmcd, "derived");
        instances_have_their_names(&pmcd, &names.name("bcc.proc.net.tcp.send.bytes"));
    }
}

fn instances_have_their_names(pmcd: &Pmcd, metric: &str) {
    let proxy = Proxy::start(pmcd, None);
    let mut vector = Vector::new(&proxy, pmcd);
    let traffic = Traffic::steady();
    let (pid, instance) = (traffic.pid() as u64, traffic.instance());
    wait_for("a value for network traffic", || {
        let poll = vector.poll(&[metric.into(), HOGS.into()]);
        poll.get(HOGS)?.get(&pid)?.as_f64().filter(|value| *value > 0.0)
    });
    assert_eq!(vector.names[HOGS][&pid], instance);
    drop(traffic);
    vector.names.clear();
    let poll = vector.poll(&[metric.into()]);
    assert!(poll[metric].contains_key(&pid), "{poll:?}");
    assert_eq!(vector.names[metric][&pid], instance);
}

#[test]
fn an_instance_request_before_any_fetch_has_instances() {
    if lacks(&[PMPROXY]) {
        return;
    }
    let Some(pmcd) = Pmcd::beside(&config(&["runqlat", "exectop", "sysfork"]), &[]) else { return };
    let proxy = Proxy::start(&pmcd, None);
    let vector = Vector::new(&proxy, &pmcd);
    assert!(Command::new("true").status().unwrap().success());
    for metric in ["bcc.runq.latency", "bcc.proc.exec.count"] {
        assert!(!instances(&vector.ask("indom", &format!("name={metric}"))).is_empty(), "{metric}");
    }
}

/// Starts a key server, and pmproxy with it. Returns the port of the former, and both.
fn with_keys(pmcd: &Pmcd) -> (u16, Proc, Proxy) {
    let keys = port();
    let mut command = pmcd.program("redis-server");
    command.args(["--bind", "127.0.0.1", "--save", "", "--port", &keys.to_string()]);
    let server = Proc(command.stdout(pmcd.home.create("redis.log")).stdin(Stdio::null()).spawn().unwrap());
    wait_for("the key server", || TcpStream::connect((Ipv4Addr::LOCALHOST, keys)).ok());
    (keys, server, Proxy::start(pmcd, Some(keys)))
}

fn pmseries(pmcd: &Pmcd, keys: u16, args: &[&str]) -> String {
    let mut command = pmcd.program("pmseries");
    command.env_remove("PCP_VAR_DIR");
    let output = command.args(["-c", "pmproxy.conf", "-p", &keys.to_string()]).args(args).output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Loads the archive `a` into the key server. Returns the series of a metric in it.
fn loaded(pmcd: &Pmcd, keys: u16, metric: &str) -> String {
    let archive = pmcd.home.path("a").display().to_string();
    // Loading does nothing, without a word, while pmproxy is still setting the key server up.
    wait_for("the archive to be loaded", || {
        pmseries(pmcd, keys, &["--load", &archive]);
        Some(pmseries(pmcd, keys, &[metric])).filter(|series| !series.is_empty())
    })
}

/// pmseries of PCP 6.0.3 keeps the labels of host, domain and instance domain of all that it loads, whichever agent they come from.
#[test]
fn series_are_found_by_name_and_label_with_their_buckets() {
    if lacks(&[PMPROXY, "redis-server", "pmseries", "pmlogger"]) {
        return;
    }
    let Some(pmcd) = Pmcd::beside(&config(&["runqlat", "sysfork"]), &[]) else { return };
    let (keys, _server, proxy) = with_keys(&pmcd);
    fs::write(pmcd.home.path("log.conf"), "log mandatory on 200 msec { bcc.runq }\n").unwrap();
    fs::create_dir_all(pmcd.home.path("pmlogger")).unwrap();
    let output = pmcd.client("pmlogger").args(["-c", "log.conf", "-s", "4", "-l", "logger.log", "a"]).output().unwrap();
    assert!(output.status.success(), "{}{}", told(&output), pmcd.home.read("logger.log"));
    let pmseries = |args: &[&str]| pmseries(&pmcd, keys, args);
    let series = loaded(&pmcd, keys, "bcc.runq.latency");
    assert_eq!(series.len(), 40, "{series}");
    for (label, value, found) in [("agent", "bcc", true), ("statistic", "histogram", true), ("statistic", "x", false)] {
        let text = pmseries(&[&format!("bcc.runq.latency{{{label}==\"{value}\"}}")]);
        assert_eq!(text == series, found, "{label} {value}: {text}");
    }
    let text = pmseries(&["-a", &series]);
    for part in ["PMID: 149.4.0", "Semantics: counter  Units: microsec", r#"inst [0 or "0-1"]"#, r#"inst [1 or "2-3"]"#]
    {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    let answer = proxy.json("/series/query?expr=bcc.runq.latency");
    assert_eq!(answer, serde_json::json!([series]));
}

/// Starts a pmcd with the modules of all dashboards, with the options that these name.
fn with_all_modules() -> Option<Pmcd> {
    let panels = || DASHBOARDS.iter().flat_map(|dashboard| dashboard.panels);
    let options: BTreeSet<(&str, &str)> = panels().filter_map(|panel| panel.module.split_once(' ')).collect();
    let modules = panels().filter_map(|panel| panel.module.split(' ').next()).filter(|name| !name.is_empty());
    let mut text = config(&modules.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>());
    for (module, option) in options {
        text = text.replace(&format!("[{module}]\n"), &format!("[{module}]\n{option} = True\n"));
    }
    let pmcd = Pmcd::beside(&text, &[])?;
    pmcd.run("pmstore", &["bcc.agent.program.stats", "1"]);
    Some(pmcd)
}

/// Metrics that need more than their module.
const CONDITIONAL: [(&str, &str); 4] = [
    ("bcc.mem.vmstat.hits", "hooks in functions of the page cache"),
    ("bcc.kvm.exits.count", "a virtual machine"),
    ("bcc.kvm.user.all.count", "a virtual machine"),
    ("bcc.agent.summary.cpu.programs", "statistics of programs, which pmstore switches on"),
];

/// Metrics that take a hook where requests begin. Other kernels show the bios only.
const OF_REQUESTS: [&str; 3] = ["bcc.proc.io.perdev.duration", "bcc.disk.slowest.command", "bcc.disk.slowest.pid"];
/// Words of the agent about its hook on those kernels.
const BY_BIOS: &str = "at block_bio_queue";

/// Returns the modules that do not run.
fn down(pmcd: &Pmcd) -> BTreeSet<String> {
    let modules = pmcd.values("bcc.agent.module.up").into_iter();
    modules.filter(|(_, up)| up == "0").map(|(module, _)| module).collect()
}

/// Returns the queries of all panels with their forms, and where they stand, but for those whose module does not run here, which is said.
fn queries(source: &Source, pmcd: &Pmcd) -> BTreeMap<(String, String), Kind> {
    let down = down(pmcd);
    let disk = use_disk();
    let mut all = BTreeMap::new();
    for (id, panel) in DASHBOARDS.iter().flat_map(|of| of.panels.iter().map(|panel| (of.id, panel))) {
        let module = panel.module.split(' ').next().unwrap();
        let queries = grafana::queries(source, panel);
        if queries.is_empty() {
            continue;
        } else if down.contains(module) {
            skip(&format!("{}, for the panel {} of {id}", find(module).unwrap().needs, panel.title));
        } else if !disk && queries.iter().any(|query| query.expression.contains(".disk.")) {
            skip(&format!("a disk that counts requests, for the panel {} of {id}", panel.title));
        } else {
            for query in queries {
                let lacks =
                    |(metric, _): &&(&str, _)| query.expression.starts_with(metric) && pmcd.values(metric).is_empty();
                if let Some((_, needed)) = CONDITIONAL.iter().find(lacks) {
                    skip(&format!("{needed}, for {}", query.expression));
                    continue;
                } else if OF_REQUESTS.contains(&&*query.expression) && pmcd.home.log().contains(BY_BIOS) {
                    skip(&format!("a hook where requests begin (Linux 6.5), for {}", query.expression));
                    continue;
                } else if query.expression == "bcc.disk.slowest.cgroup_path" && down.contains("cgroup_disk") {
                    skip(&format!("cgroups with block I/O, for {}", query.expression));
                    continue;
                }
                let expression = query.expression.replace("$fs", "ext4");
                let expression = expression.replace("${disk:regex}", ".+").replace("${cgroup:regex}", ".+");
                all.insert((format!("{id}: {}", panel.title), expression), panel.kind);
            }
        }
    }
    all
}

/// Every target of every dashboard for what happens now has values, asked for as the data source asks: names by themselves, expressions as
/// metrics that pmproxy derives.
#[test]
fn every_target_of_every_dashboard_has_values() {
    if lacks(&[PMPROXY]) {
        return;
    }
    let Some(pmcd) = with_all_modules() else { return };
    let proxy = Proxy::start(&pmcd, None);
    let vector = Vector::new(&proxy, &pmcd);
    let mut unanswered = Script::python(UNANSWERED);
    unanswered.line();
    let mut left = queries(&grafana::VECTOR, &pmcd);
    let choices = DASHBOARDS.iter().filter_map(|dashboard| Some((dashboard, dashboard.choice.as_ref()?)));
    let down = down(&pmcd);
    for (dashboard, choice) in choices {
        let has = |module: &String, metric: &str| {
            find(module).unwrap().metrics().any(|declared| metric == format!("bcc.{}", declared.name))
        };
        if let Values::OfMetric(metric) = choice.values {
            if down.iter().any(|module| has(module, metric)) {
                continue;
            }
            left.insert((format!("{}: {}", dashboard.id, choice.name), metric.to_owned()), Kind::Table);
        }
    }
    let mut names = BTreeMap::new();
    for (number, (_, expression)) in left.keys().enumerate() {
        let name = if expression.contains('(') { format!("corebcc.target{number}") } else { expression.clone() };
        if name != *expression && names.insert(expression.clone(), name.clone()).is_none() {
            let derived = vector.ask("derive", &format!("name={name}&expr={}", encoded(expression)));
            assert_eq!(derived["success"], true, "{expression}");
        }
    }
    let until = Instant::now() + Duration::from_secs(600);
    while !left.is_empty() {
        assert!(Instant::now() < until, "without values: {:?}", left.keys());
        work();
        left.retain(|(_, expression), kind| {
            let name = names.get(expression).unwrap_or(expression);
            let reply = vector.ask("fetch", &format!("names={name}"));
            let values = reply["values"][0]["instances"].as_array();
            let has_values = values.is_some_and(|values| values.iter().any(|value| !value["value"].is_null()));
            let is_bucket = |name: &String| name.split("::").next().is_some_and(|range| range.contains('-'));
            let buckets = || instances(&vector.ask("indom", &format!("name={name}")));
            !has_values || *kind == Kind::HeatMap && !buckets().values().all(is_bucket)
        });
    }
}

/// Those for archives have series with values in the archive of a pmlogger that was loaded, of the host that is chosen.
#[test]
fn every_target_of_the_dashboards_of_archives_has_series() {
    if lacks(&[PMPROXY, "redis-server", "pmseries", "pmlogger"]) {
        return;
    }
    let Some(pmcd) = with_all_modules() else { return };
    let (keys, _server, proxy) = with_keys(&pmcd);
    let mut unanswered = Script::python(UNANSWERED);
    unanswered.line();
    let queries = queries(&grafana::VALKEY, &pmcd);
    let metrics = queries.keys().map(|(_, expression)| expression.split('{').next().unwrap());
    let list: Vec<&str> = metrics.collect::<BTreeSet<_>>().into_iter().collect();
    fs::write(pmcd.home.path("log.conf"), format!("log mandatory on 500 msec {{ {} }}\n", list.join("\n"))).unwrap();
    fs::create_dir_all(pmcd.home.path("pmlogger")).unwrap();
    let mut logger = pmcd.client("pmlogger");
    let mut logger = Proc(logger.args(["-c", "log.conf", "-s", "12", "-l", "logger.log", "a"]).spawn().unwrap());
    while logger.0.try_wait().unwrap().is_none() {
        work();
    }
    loaded(&pmcd, keys, "bcc.runq.all.bucket");
    let hosts = proxy.json("/series/labels?names=hostname");
    let host = hosts["hostname"][0].as_str().unwrap_or_else(|| panic!("{hosts}")).to_owned();
    let missing = queries.keys().filter(|(_, expression)| {
        let series = proxy.json(&format!("/series/query?expr={}", encoded(&expression.replace("$host", &host))));
        let Some(series) = series[0].as_str() else { return true };
        let values = proxy.json(&format!("/series/values?series={series}&samples=4"));
        values.as_array().is_none_or(|values| values.iter().all(|value| value["value"].is_null()))
    });
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&(String, String)>::new());
}

/// Does a little of all that the modules count.
fn work() {
    session();
    use_disk();
    assert!(Command::new("true").status().unwrap().success());
    // Nobody listens there.
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, 1)).is_err());
    ask_a_name_server();
    std::thread::sleep(Duration::from_millis(100));
}

/// Asks a question of a name server on an address that no real one has, which answers that there is no such name.
fn ask_a_name_server() {
    let server = UdpSocket::bind((Ipv4Addr::new(127, 0, 53, 53), 53)).unwrap();
    let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    // A header (RFC 1035, 4.1.1) with one question, which is the root's address.
    let question = *b"\x01\x02\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x01";
    client.send_to(&question, server.local_addr().unwrap()).unwrap();
    let mut answer = [0; 17];
    let (_, from) = server.recv_from(&mut answer).unwrap();
    (answer[2], answer[3]) = (0x81, 0x83);
    server.send_to(&answer, from).unwrap();
    client.recv(&mut answer).unwrap();
}
