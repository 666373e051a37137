//! tcptop: connections between known ends that move known amounts, by processes of this test only.

use crate::support::{alone, part, Agent, Meeting, Row, Script, IPV4, IPV6, MAPPED};

/// A row of the table, in the order of the items.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    pid: u64,
    comm: String,
    laddr: String,
    lport: u64,
    daddr: String,
    dport: u64,
    rx: u64,
    tx: u64,
}

fn lines(agent: &mut Agent) -> Vec<Line> {
    let line = |row: &Row| Line {
        pid: row.number(0),
        comm: row.text(1),
        laddr: row.text(2),
        lport: row.number(3),
        daddr: row.text(4),
        dport: row.number(5),
        rx: row.number(6),
        tx: row.number(7),
    };
    agent.rows().iter().map(line).collect()
}

fn of(agent: &mut Agent, script: &Script) -> Vec<Line> {
    lines(agent).into_iter().filter(|line| line.pid == u64::from(script.pid())).collect()
}

const SCRIPTS: &str = include_str!("../programs/tcptop.py");

/// Returns a script for sockets of this family and address.
fn connected(meeting: &Meeting, name: &str) -> String {
    let Meeting { family, listen, connect, .. } = meeting;
    let begin = format!("FAMILY, LISTEN, HOST = socket.{family}, '{listen}', '{connect}'");
    [begin, part(SCRIPTS, "sockets"), part(SCRIPTS, name)].join("\n")
}

fn both_ends(meeting: &Meeting) {
    let mut agent = Agent::new("tcptop", "interval = 0\nconn_count = 1000");
    let mut script = Script::python(&connected(meeting, "both ends"));
    let ports = script.numbers();
    lines(&mut agent);
    script.go();
    script.line();
    let comm = std::fs::read_to_string(format!("/proc/{}/comm", script.pid())).unwrap().trim_end().to_string();
    let line = |address: &str, lport, dport, rx, tx| Line {
        pid: script.pid().into(),
        comm: comm.clone(),
        laddr: address.into(),
        lport,
        daddr: address.into(),
        dport,
        rx,
        tx,
    };
    let connecting = line(meeting.connect, ports[0], ports[1], 77, 10_000);
    let mut expected = vec![connecting, line(meeting.accepted, ports[1], ports[0], 10_000, 77)];
    expected.sort_by_key(|line| line.lport);
    assert_eq!(of(&mut agent, &script), expected, "as many bytes each, so in the order of the ports");
    assert_eq!(of(&mut agent, &script), [], "nothing moved since");
    script.end();
    assert_eq!(agent.warnings(), [""; 0]);
}

/// IPv4 on an IPv6 socket is shown mapped.
#[test]
fn both_ends_of_a_connection_are_exact_in_each_family() {
    let _alone = alone();
    [IPV4, IPV6, MAPPED].iter().for_each(both_ends);
}

#[test]
fn the_table_of_an_interval_is_the_same_for_every_fetch() {
    let _alone = alone();
    let mut agent = Agent::new("tcptop", "conn_count = 1000");
    let mut script = Script::python(&connected(&IPV4, "two intervals"));
    let second = std::time::Duration::from_secs(1);
    for bytes in [3000, 40] {
        script.numbers();
        std::thread::sleep(second);
        agent.tick();
        script.go();
        if bytes == 40 {
            script.line();
        } else {
            // The next line comes when the first bytes have moved, and is read below.
            std::thread::sleep(second / 2);
        }
        std::thread::sleep(second);
        agent.tick();
        let once = of(&mut agent, &script);
        assert_eq!(
            once.iter().map(|line| (line.rx, line.tx)).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1)),
            (bytes, bytes)
        );
        assert_eq!(of(&mut agent, &script), once);
    }
    script.end();
}

#[test]
fn data_read_after_a_reset_still_has_its_port() {
    let _alone = alone();
    let mut agent = Agent::new("tcptop", "interval = 0\nconn_count = 1000");
    let mut script = Script::python(&connected(&IPV4, "after a reset"));
    let ports = script.numbers();
    lines(&mut agent);
    script.go();
    assert_eq!(script.numbers(), [500]);
    let found = of(&mut agent, &script);
    assert_eq!(
        found.iter().map(|line| (line.lport, line.dport, line.rx)).collect::<Vec<_>>(),
        [(ports[1], ports[0], 500)]
    );
    script.end();
}

#[test]
fn only_the_processes_asked_for_are_in_the_table() {
    let _alone = alone();
    let source = connected(&IPV4, "one way");
    let mut scripts = [Script::python(&source), Script::python(&source)];
    scripts.iter_mut().for_each(|script| drop(script.line()));
    let wanted = scripts[1].pid();
    let mut agent = Agent::new("tcptop", &format!("interval = 0\nprocess = {wanted}"));
    for script in &mut scripts {
        script.go();
        script.line();
    }
    let found = lines(&mut agent);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.iter().all(|line| line.pid == u64::from(wanted)), "{found:?}");
}
