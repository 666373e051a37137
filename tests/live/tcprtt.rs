//! tcprtt against connections over links with a known delay.

use crate::common::{lacks, skip};
use crate::support::{alone, names, number, part, Agent, Script};
use corebcc::kit::TableSpec;
use corebcc::modules::find;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

const PROGRAMS: &str = include_str!("../programs/delays.py");

fn table(nth: usize) -> &'static TableSpec {
    find("tcprtt").unwrap().tables[nth]
}

/// Returns counts and sums of all sessions, of their least times, and how many had none.
fn all(agent: &mut Agent) -> [u64; 5] {
    agent.tick();
    let table = agent.table();
    [0, 1, 7, 8, 14].map(|column| number(&table, 0, column))
}

/// Returns the networks: round trips, their time, sessions, segments sent again.
fn by_network(agent: &mut Agent) -> Vec<(String, [u64; 4])> {
    let table = agent.other(table(2));
    let cells = |row| [0, 1, 7, 8].map(|column| number(&table, row, column));
    names(&table).into_iter().enumerate().map(|(row, name)| (name, cells(row))).collect()
}

/// Opens connections of the loopback with an answer each, and closes both ends.
fn converse(address: &str, times: usize) {
    let listener = TcpListener::bind((address, 0)).unwrap();
    for _ in 0..times {
        let mut one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut other = listener.accept().unwrap().0;
        one.write_all(b"ping").unwrap();
        other.read_exact(&mut [0; 4]).unwrap();
    }
}

fn sessions_are_counted(mut agent: Agent) {
    let before = all(&mut agent);
    converse("127.0.0.1", 50);
    converse("127.0.1.1", 20);
    converse("::1", 10);
    let after = all(&mut agent);
    let [rtt, time, least, least_time, untimed] = [0, 1, 2, 3, 4].map(|column| after[column] - before[column]);
    println!("{rtt} sessions of {time} ns, {least} of at least {least_time} ns, {untimed} without");
    // Each connection is two sessions of this machine: one from each end.
    agent.assert_counted([rtt + untimed], [160]);
    assert!(rtt >= 80 && least == rtt && least_time <= time && time > 0, "{rtt} {least} {least_time} {time}");
    let networks = by_network(&mut agent);
    let sessions =
        |name: &str| networks.iter().find(|(of, _)| of == name).unwrap_or_else(|| panic!("{networks:?}")).1[2];
    agent.assert_counted(["127.0.0.0/24", "127.0.1.0/24", "::/48"].map(sessions), [120, 20, 20]);
    agent.assert_complete();
}

#[test]
fn sessions_are_counted_when_they_close_in_all_and_by_network() {
    let _alone = alone();
    sessions_are_counted(Agent::new("tcprtt", "networks = 24, 48\nprometheus = True"));
}

#[test]
fn sessions_count_the_same_with_probe_reads() {
    let _alone = alone();
    sessions_are_counted(Agent::avoiding("tp_btf", "tcprtt", "networks = 24, 48"));
}

/// The delay is on the way to the server only, which is what a round trip takes.
#[test]
fn round_trips_take_as_long_as_the_link_delays_them() {
    let _alone = alone();
    if lacks(&["ip"]) {
        return;
    }
    if !Path::new("/dev/net/tun").exists() {
        return skip("/dev/net/tun (CONFIG_TUN)");
    }
    for samples in ["session", "segment"] {
        let mut agent = Agent::new("tcprtt", &format!("samples = {samples}\nnetworks = 10.78.0.0/24"));
        let mut script = Script::python(&["link", "sessions"].map(|name| part(PROGRAMS, name)).concat());
        assert_eq!(script.line(), "ready");
        for (delay, times) in [(5, 20), (50, 5)] {
            let before = by_network(&mut agent);
            script.tell(&format!("{delay} {times}"));
            let took = script.numbers()[0];
            std::thread::sleep(std::time::Duration::from_millis(200)); // the last acknowledgements
            let after = by_network(&mut agent);
            let grown = |column: usize| {
                let of = |networks: &[(String, [u64; 4])]| {
                    networks.iter().find(|(name, _)| name == "10.78.0.0/24").map_or(0, |(_, cells)| cells[column])
                };
                of(&after) - of(&before)
            };
            let [round_trips, time, sessions, retrans] = [0, 1, 2, 3].map(grown);
            let mean = time / round_trips.max(1);
            println!(
                "{samples} {delay} ms: {round_trips} of {mean} ns in {sessions} sessions, {retrans} again; {took} ns"
            );
            assert_eq!((sessions, retrans), (2 * times, 0));
            assert!(round_trips >= times, "{round_trips}");
            // Of the two ends of a session both see the delay, and it is part of what each exchange takes.
            let delay = delay * 1_000_000;
            assert!((delay..delay * 3 / 2 + 3_000_000).contains(&mean), "{mean} ns");
        }
    }
}
