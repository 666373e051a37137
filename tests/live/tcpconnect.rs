//! tcpconnect against what the calls of processes return.

use crate::support::{alone, names, number, part, Agent, Row, Script};
use crate::tcpretrans::Net;
use corebcc::kit::{Key, TableSpec};
use corebcc::modules::find;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

const PROGRAMS: &str = include_str!("../programs/connects.py");
const OWN: &str = "process = (?s:.*corebcc-connects.*)";

const PID: usize = 0;
const UID: usize = 1;
const COMM: usize = 2;
const VERSION: usize = 3;
const SADDR: usize = 4;
const LPORT: usize = 5;
const DADDR: usize = 6;
const DPORT: usize = 7;
const ERR: usize = 8;
const LAT: usize = 9;
const SEQ: usize = 11;

/// Tables by network and by local port.
const PEERS: usize = 5;
const ACCEPTS: usize = 8;

fn table(nth: usize) -> &'static TableSpec {
    find("tcpconnect").unwrap().tables[nth]
}

/// Outcomes, in their order in the table.
#[derive(Debug, PartialEq)]
struct Outcomes {
    established: u64,
    all: u64,
    refused: u64,
    timed_out: u64,
    unreachable: u64,
    other: u64,
    lost: u64,
}

fn outcomes(agent: &mut Agent) -> Outcomes {
    let table = agent.other(table(1));
    let [established, all, refused, timed_out, unreachable, other, lost] =
        [0, 7, 8, 9, 10, 11, 12].map(|column| number(&table, 0, column));
    Outcomes { established, all, refused, timed_out, unreachable, other, lost }
}

/// Returns the connections of a process, and those that failed.
fn of_process(agent: &mut Agent, pid: u64) -> [u64; 2] {
    let table = agent.other(table(3));
    let row = table.keys().iter().position(|key| matches!(key, Key::Pid(process, _) if u64::from(*process) == pid));
    let row = row.unwrap_or_else(|| panic!("no process {pid}"));
    [0, 1].map(|column| number(&table, row, column))
}

/// Returns the series of a table with histograms: name, count, sum, and the counter beside them.
fn series(agent: &mut Agent, nth: usize) -> Vec<(String, [u64; 3])> {
    let table = agent.other(table(nth));
    let cells = |row| [0, 1, 7].map(|column| number(&table, row, column));
    names(&table).into_iter().enumerate().map(|(row, name)| (name, cells(row))).collect()
}

/// Returns the networks with connections: how many were opened, and how many failed.
fn by_network(agent: &mut Agent) -> Vec<(String, u64, u64)> {
    let all = series(agent, PEERS).into_iter().map(|(name, [count, sum, failed])| {
        assert_eq!(sum > 0, count > 0, "{name}");
        (name, count, failed)
    });
    all.filter(|(_, count, failed)| count + failed > 0).collect()
}

fn ready(name: &str) -> Script {
    let mut script = Script::part(PROGRAMS, name);
    assert_eq!(script.line(), "ready");
    script
}

#[test]
fn connections_are_counted_by_outcome_and_by_process() {
    let _alone = alone();
    let mut agent = Agent::new("tcpconnect", OWN);
    let mut script = ready("outcomes");
    script.go();
    let [pid, open, closed] = script.numbers()[..] else { panic!() };
    let expected =
        Outcomes { established: 500, all: 600, refused: 100, timed_out: 0, unreachable: 0, other: 0, lost: 0 };
    let said = outcomes(&mut agent);
    assert_eq!(said, Outcomes { lost: said.lost, ..expected });
    assert_eq!(of_process(&mut agent, pid), [600, 100]);
    let rows = agent.rows();
    assert_eq!(rows[0].number(SEQ) + said.lost, 600, "each has a number or is counted as lost");
    for row in &rows {
        assert_eq!((row.number(PID), row.number(UID), row.text(COMM).as_str()), (pid, 0, "python3"), "{row:?}");
        let address = if row.number(VERSION) == 4 { "127.0.0.1" } else { "::1" };
        assert_eq!([SADDR, DADDR].map(|column| row.text(column)), [address, address], "{row:?}");
        assert!(row.number(LPORT) > 0 && row.number(LAT) > 0, "{row:?}");
    }
    let has = |version, port, err| {
        rows.iter().any(|row| [VERSION, DPORT, ERR].map(|column| row.number(column)) == [version, port, err])
    };
    assert!(has(6, closed, 111) || has(4, open, 0), "{rows:#?}");
}

#[test]
fn connections_that_nobody_answers_have_their_errors_and_times() {
    let _alone = alone();
    let Some(net) = Net::new() else { return };
    let mut agent =
        Agent::new("tcpconnect", &format!("{OWN}\nmin_us = 900000\nprocess_count = 100\nnetworks = 10.77.0.0/24"));
    let _server = net.server();
    net.route_nowhere("10.88.0.0/16");
    let mut script = net.script(&net.here, &part(PROGRAMS, "unanswered"));
    assert_eq!(script.line(), "ready");
    script.go();
    assert_eq!(script.numbers(), [5, 1]);
    net.lose(true);
    script.go();
    assert_eq!(script.numbers(), [20, 1]);
    let pid = u64::from(script.pid());
    assert_eq!(
        outcomes(&mut agent),
        Outcomes { established: 0, all: 28, refused: 0, timed_out: 20, unreachable: 5, other: 3, lost: 0 }
    );
    assert_eq!(of_process(&mut agent, pid), [28, 28]);
    let rows = agent.rows();
    let of = |err| rows.iter().filter(|row| row.number(ERR) == err).collect::<Vec<&Row>>();
    assert_eq!(of(110).len(), 20, "{rows:#?}");
    assert!(rows.iter().all(|row| row.number(LAT) >= 900_000_000), "{rows:#?}");
    // The first SYN is repeated after a second, and given up two seconds after that.
    assert!(of(110).iter().all(|row| (2_900_000_000..4_500_000_000).contains(&row.number(LAT))), "{rows:#?}");
    script.go();
    assert_eq!(script.line(), "sent");
    net.lose(false);
    script.go();
    let [established, took] = script.numbers()[..] else { panic!() };
    assert_eq!((established, outcomes(&mut agent).established), (1, 1));
    let lat = agent.rows()[0].number(LAT);
    println!("answered after {lat} ns, by the process's clock {took} ns");
    assert!((900_000_000..=took).contains(&lat), "{lat} of {took}");
    let sum = number(&agent.other(table(1)), 0, 1);
    assert_eq!(sum, lat, "the histogram has that of the row");
    assert_eq!(series(&mut agent, PEERS), [("10.77.0.0/24".into(), [1, lat, 23]), ("other".into(), [0, 0, 5])]);
}

#[test]
fn connections_count_by_prefix_or_by_the_networks_of_a_list() {
    let _alone = alone();
    let prefixes = [("127.0.0.0/24", 30, 0), ("127.0.1.0/24", 27, 5), ("::/48", 10, 0)];
    let listed = [("127.0.0.0/8", 30, 0), ("127.0.1.0/24", 27, 5), ("other", 10, 0)];
    for (networks, expected) in [("24, 48", prefixes), ("127.0.0.0/8, 2001:db8::/32, 127.0.1.0/24", listed)] {
        let mut agent = Agent::new("tcpconnect", &format!("{OWN}\nnetworks = {networks}"));
        let mut script = ready("networks");
        script.go();
        assert_eq!(script.line(), "done");
        assert_eq!(by_network(&mut agent), expected.map(|(name, opened, failed)| (name.into(), opened, failed)));
    }
}

#[test]
fn connections_that_wait_for_accept_are_timed_by_port() {
    let _alone = alone();
    let mut agent = Agent::new("tcpconnect", "accept = True");
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses = [0, 1].map(|at: usize| listeners[at].local_addr().unwrap());
    let [served, left] = listeners;
    let begin = Instant::now();
    let clients: Vec<_> = (0..20).map(|_| TcpStream::connect(addresses[0]).unwrap()).collect();
    let _unserved: Vec<_> = (0..3).map(|_| TcpStream::connect(addresses[1]).unwrap()).collect();
    sleep(Duration::from_millis(30));
    for _ in &clients {
        served.accept().unwrap().0.write_all(b"x").unwrap();
    }
    let took = begin.elapsed().as_nanos() as u64;
    drop(left);
    let said = series(&mut agent, ACCEPTS);
    let of = |at: usize| said.iter().find(|(name, _)| *name == addresses[at].port().to_string()).unwrap().1;
    let [accepted, sum, closed] = of(0);
    println!("{accepted} in {sum} ns, at most {took} ns each");
    assert_eq!([accepted, closed], [20, 0]);
    assert!((20 * 30_000_000..=20 * took).contains(&sum));
    assert_eq!(of(1), [0, 0, 3], "nobody accepted those");
}

#[test]
fn connections_of_one_user_to_some_ports_are_counted_alone() {
    let _alone = alone();
    let mut script = Script::part(PROGRAMS, "users");
    let port = script.numbers()[0];
    let mut agent = Agent::new("tcpconnect", &format!("{OWN}\nuid = 65534\ndport = 1, {port}"));
    script.go();
    assert_eq!(script.line(), "done");
    let Outcomes { established, all, .. } = outcomes(&mut agent);
    assert_eq!((established, all), (30, 30));
    assert!(agent.rows().iter().all(|row| row.number(UID) == 65534 && row.number(DPORT) == port));
}

#[test]
fn a_stranger_with_many_connections_does_not_hide_others() {
    let _alone = alone();
    let mut agent = Agent::new("tcpconnect", &format!("{OWN}\nprocess_count = 8\nbuffer_page_count = 1"));
    let mut script = ready("flood");
    script.go();
    let flood = script.numbers()[0];
    let rows = agent.rows();
    let others: Vec<u64> = rows.iter().filter(|row| row.number(PID) != flood).map(|row| row.number(ERR)).collect();
    let said = outcomes(&mut agent);
    println!("{others:?} {said:?}");
    assert_eq!(others, [0], "the one that another process opened");
    assert_eq!((said.all, said.refused, said.established), (10_001, 10_000, 1));
    assert_eq!(rows[0].number(SEQ) + said.lost, 10_001);
}
