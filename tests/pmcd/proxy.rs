//! pmproxy's REST interface, which dashboards use.

use crate::consumers::HOGS;
use crate::instance::{port, Pmcd};
use crate::support::{lacks, rows::rows, wait_for, Proc};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

pub const PMPROXY: &str = "/usr/lib/pcp/bin/pmproxy";

/// A pmproxy of a test's own.
pub struct Proxy {
    _process: Proc,
    port: u16,
}

impl Proxy {
    /// With a key server on this port, or without time series.
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

    /// The body of a page, without white space.
    pub fn get(&self, page: &str) -> String {
        self.page(page).split_whitespace().collect()
    }

    /// The body of a page as JSON.
    #[track_caller]
    pub fn json(&self, page: &str) -> serde_json::Value {
        let body = self.page(page);
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{page}: {error}: {body}"))
    }

    fn page(&self, page: &str) -> String {
        page_of(self.port, page)
    }
}

fn page_of(port: u16, page: &str) -> String {
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
    assert!(children.contains(r#""nonleaf":["agent","disk","proc","runq","user"]"#), "{children}");
    let store = ask("store", "name=bcc.proc.sysfork&value=1");
    assert!(store.contains(r#""success":false"#) && store.contains("Nopermission"), "{store}");
}
