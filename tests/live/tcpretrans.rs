//! tcpretrans between two network namespaces of the test: a false link-layer address of the neighbour loses every packet. Independent
//! counts are those of each socket (TCP_INFO) and of the namespace.

use crate::common::tracers::{Event, Recorder};
use crate::common::{lacks, skip, wait_for};
use crate::support::{alone, part, python, run, Agent, Script};
use std::process::Command;
use std::time::{Duration, Instant};

const SCRIPTS: &str = include_str!("../programs/tcpretrans.py");

/// Two namespaces, `here` with 10.77.0.1 and fd77::1, the other with 10.77.0.2 and fd77::2.
pub struct Net {
    pub here: String,
    there: String,
    /// Link-layer address of the other end.
    neighbour: String,
}

impl Net {
    /// Makes the namespaces. Returns `None`, and prints that, if namespaces or virtual links cannot be made.
    pub fn new() -> Option<Net> {
        let name = |end: &str| format!("corebcc-{end}-{}", std::process::id());
        let mut net = Net { here: name("here"), there: name("there"), neighbour: String::new() };
        for end in [&net.here, &net.there] {
            if !Command::new("ip").args(["netns", "add", end]).status().is_ok_and(|status| status.success()) {
                skip("no network namespaces (ip netns)");
                return None;
            }
        }
        let (here, there) = (net.here.clone(), net.there.clone());
        let link = ["-n", &here, "link", "add", "v", "type", "veth", "peer", "name", "v", "netns", &there];
        if !Command::new("ip").args(link).status().is_ok_and(|status| status.success()) {
            skip("no virtual links (CONFIG_VETH)");
            return None;
        }
        for (end, number) in [(&here, 1), (&there, 2)] {
            run("ip", &["-n", end, "addr", "add", &format!("10.77.0.{number}/24"), "dev", "v"]);
            run("ip", &["-n", end, "addr", "add", &format!("fd77::{number}/64"), "dev", "v", "nodad"]);
            run("ip", &["-n", end, "link", "set", "v", "up"]);
        }
        net.neighbour = run("ip", &["netns", "exec", &there, "cat", "/sys/class/net/v/address"]).trim().to_string();
        net.lose(false);
        Some(net)
    }

    /// Makes every packet to the other end get lost from now on, or none.
    pub fn lose(&self, all: bool) {
        let address = if all { "02:00:00:00:00:99" } else { &self.neighbour };
        for neighbour in ["10.77.0.2", "fd77::2"] {
            let neighbour = ["neigh", "replace", neighbour, "lladdr", address, "dev", "v", "nud", "permanent"];
            run("ip", &[&["-n", &self.here][..], &neighbour].concat());
        }
    }

    /// Makes the other end answer that it has no route to these addresses.
    pub fn route_nowhere(&self, addresses: &str) {
        run("ip", &["-n", &self.here, "route", "add", addresses, "via", "10.77.0.2"]);
        run("ip", &["-n", &self.there, "route", "add", "unreachable", addresses]);
        run("ip", &["netns", "exec", &self.there, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]);
    }

    pub fn script(&self, end: &str, source: &str) -> Script {
        let start = "import sys, os, socket, struct, time\n\
            def say(*what): print(*what, flush=True)\n\
            def step(*what):\n say(*what)\n return sys.stdin.readline().strip()\n\
            def total(c): return struct.unpack_from('I', c.getsockopt(socket.IPPROTO_TCP, 11, 104), 100)[0]\n";
        Script::new(Command::new("ip").args(["netns", "exec", end, python(), "-c", &format!("{start}{source}")]))
    }

    /// Starts a server that accepts connections at 10.77.0.2 and fd77::2, port 5000, and keeps them.
    pub fn server(&self) -> Script {
        let mut script = self.script(&self.there, &part(SCRIPTS, "server"));
        script.line();
        script
    }

    /// Reads a counter of the namespace `here`, by its name in /proc/net/netstat.
    fn counter(&self, name: &str) -> u64 {
        let text = run("ip", &["netns", "exec", &self.here, "cat", "/proc/net/netstat"]);
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("TcpExt:")).collect();
        let at = lines[0].split(' ').position(|word| word == name).unwrap_or_else(|| panic!("no counter {name}"));
        lines[1].split(' ').nth(at).unwrap().parse().unwrap()
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for end in [&self.here, &self.there] {
            let _ = Command::new("ip").args(["netns", "del", end]).status();
        }
    }
}

/// Starts a client that connects; told `send` it sends two segments, told `total` it prints its number of retransmissions.
fn client(net: &Net, host: &str) -> Script {
    net.script(&net.here, &part(SCRIPTS, "client").replace("HOST", host))
}

fn told(script: &mut Script, word: &str) -> u64 {
    script.tell(word);
    script.numbers()[0]
}

fn of(agent: &mut Agent, name: &str) -> u64 {
    agent.named().get(name).map_or(0, |values| values[0])
}

/// Waits until the socket has retransmitted at least so often. Returns the counts of the socket and of the agent at one moment,
/// between two equal readings of the socket's.
fn when(script: &mut Script, least: u64, count: &mut dyn FnMut() -> u64) -> (u64, u64) {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let before = told(script, "total");
        if before >= least {
            let counted = count();
            if told(script, "total") == before {
                return (before, counted);
            }
        }
        assert!(Instant::now() < until, "{before} retransmissions, {least} were to come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Recorder of retransmissions whose timer fires where no program runs.
struct Unseen(Option<Recorder>);

impl Unseen {
    fn record() -> Unseen {
        Unseen(Recorder::unseen(&["tcp/tcp_retransmit_skb"]))
    }

    /// Ends the recording. Returns a function with the number of these retransmissions from a local port.
    fn end(self) -> impl Fn(u64) -> u64 {
        let events = self.0.map_or_else(Vec::new, Recorder::end);
        move |port| {
            let is_ours = |event: &&Event| event.text.contains(&format!(" sport={port} "));
            events.iter().filter(is_ours).count() as u64
        }
    }
}

/// Checks that the module counted all retransmissions, except some that no program saw.
fn same(counted: u64, expected: u64, unseen: u64, name: &str) {
    let range = expected - unseen.min(expected)..=expected;
    assert!(range.contains(&counted), "{name}: {counted} of {expected}, {unseen} not seen");
}

#[test]
fn every_retransmission_counts_and_loss_probes_if_asked_for() {
    let _alone = alone();
    let Some(net) = Net::new() else {
        return;
    };
    let _server = net.server();
    for (include_tlp, host, local) in [(true, "10.77.0.2", "10.77.0.1"), (false, "fd77::2", "fd77::1")] {
        let mut agent = Agent::new("tcpretrans", &format!("include_tlp = {include_tlp}"));
        let mut script = client(&net, host);
        let port = script.numbers()[0];
        let name = format!("{local}:{port}::{host}:5000");
        assert_eq!(of(&mut agent, &name), 0);
        let unseen = Unseen::record();
        let probes = net.counter("TCPLossProbes");
        net.lose(true);
        told(&mut script, "send");
        let (total, counted) = when(&mut script, 4, &mut || of(&mut agent, &name));
        net.lose(false);
        let probes = net.counter("TCPLossProbes") - probes;
        println!("{name}: {total} retransmissions, {probes} of them loss probes, counted {counted}");
        assert_eq!(probes, 1, "the kernel sends one probe before its timeout");
        same(counted, if include_tlp { total } else { total - probes }, unseen.end()(port), &name);
        assert_eq!(agent.warnings(), [""; 0]);
    }
}

#[test]
fn repeated_syn_segments_count() {
    let _alone = alone();
    let Some(net) = Net::new() else { return };
    let mut agent = Agent::new("tcpretrans", "");
    let unseen = Unseen::record();
    net.lose(true);
    let mut script = net.script(&net.here, &part(SCRIPTS, "connecting"));
    let port = script.numbers()[0];
    let name = format!("10.77.0.1:{port}::10.77.0.2:5000");
    script.go();
    script.line();
    let (total, counted) = when(&mut script, 2, &mut || of(&mut agent, &name));
    same(counted, total, unseen.end()(port), &name);
}

#[test]
fn retransmissions_that_fail_do_not_count() {
    let _alone = alone();
    let Some(net) = Net::new().filter(|_| !lacks(&["tc"])) else { return };
    let _server = net.server();
    let mut agent = Agent::new("tcpretrans", "include_tlp = True");
    let mut script = client(&net, "10.77.0.2");
    let name = format!("10.77.0.1:{}::10.77.0.2:5000", script.numbers()[0]);
    net.lose(true);
    told(&mut script, "send");
    when(&mut script, 2, &mut || 0);
    // A queue without room for a packet refuses each.
    run("tc", &["-n", &net.here, "qdisc", "add", "dev", "v", "root", "pfifo", "limit", "0"]);
    let counted = of(&mut agent, &name);
    assert_ne!(counted, 0);
    let until = Instant::now() + Duration::from_secs(20);
    while net.counter("TCPRetransFail") < 2 {
        assert!(Instant::now() < until, "no retransmission failed");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(of(&mut agent, &name), counted);
}

#[test]
fn only_the_latest_closed_connection_stays_with_the_living() {
    let _alone = alone();
    let Some(net) = Net::new() else { return };
    let _server = net.server();
    let mut agent = Agent::new("tcpretrans", "flow_count = 1\ninclude_tlp = True");
    let mut scripts: Vec<Script> = (0..3).map(|_| client(&net, "10.77.0.2")).collect();
    let ports: Vec<u64> = scripts.iter_mut().map(|script| script.numbers()[0]).collect();
    net.lose(true);
    for (script, port) in scripts.iter_mut().zip(&ports) {
        told(script, "send");
        wait_for("a retransmission", || {
            (of(&mut agent, &format!("10.77.0.1:{port}::10.77.0.2:5000")) > 0).then_some(())
        });
    }
    let mut there = || -> Vec<bool> {
        let named = agent.named();
        let name = |port| format!("10.77.0.1:{port}::10.77.0.2:5000");
        ports.iter().map(|port| named.contains_key(&name(port))).collect()
    };
    assert_eq!(there(), [true, true, true]);
    for (close, left) in [(1, [true, true, true]), (0, [true, false, true])] {
        told(&mut scripts[close], "close");
        assert_eq!(there(), left);
    }
}

#[test]
fn a_retransmission_counts_for_who_connected_or_accepted() {
    let _alone = alone();
    let Some(net) = Net::new() else { return };
    let _server = net.server();
    // Owned since before the agent came, of a process not asked for, and connected under its eyes.
    let mut before = client(&net, "10.77.0.2");
    let other = client(&net, "10.77.0.2");
    let mut accepting = net.script(&net.here, &part(SCRIPTS, "accepting"));
    accepting.line();
    let wanted = format!("process = {},{}\ninclude_tlp = True", before.pid(), accepting.pid());
    let mut agent = Agent::new("tcpretrans", &wanted);
    accepting.go();
    let mut connecting = net.script(&net.there, "c = socket.create_connection(('10.77.0.1', 6000))\nstep()\n");
    connecting.line();
    let ports = [6000, before.numbers()[0]];
    let mut names = [
        format!("10.77.0.1:6000::10.77.0.2:{}", accepting.numbers()[0]),
        format!("10.77.0.1:{}::10.77.0.2:5000", ports[1]),
    ];
    let mut other = other;
    other.numbers();
    let unseen = Unseen::record();
    net.lose(true);
    accepting.go();
    accepting.line();
    told(&mut other, "send");
    told(&mut before, "send");
    let [accepted, connected] = [(&mut accepting, &names[0]), (&mut before, &names[1])]
        .map(|(script, name)| when(script, 2, &mut || of(&mut agent, name)));
    when(&mut other, 2, &mut || 0);
    let unseen = unseen.end();
    for (((total, counted), name), port) in [accepted, connected].into_iter().zip(&names).zip(ports) {
        same(counted, total, unseen(port), name);
    }
    names.sort();
    assert_eq!(agent.named().into_keys().collect::<Vec<_>>(), names);
    assert_eq!(agent.warnings(), [""; 0]);
}
