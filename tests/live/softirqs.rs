//! softirqs against ftrace's records of the same events.

use crate::common::skip;
use crate::common::tracers::{Event, Readings};
use crate::support::{alone, names, number, Agent};
use corebcc::kit::Table;
use corebcc::modules::find;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const EVENTS: [&str; 3] = ["irq/softirq_raise", "irq/softirq_entry", "irq/softirq_exit"];

/// Sends messages over the loopback for a while: each raises the softirq of received packets.
fn converse() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut other = listener.accept().unwrap().0;
    let end = Instant::now() + Duration::from_millis(500);
    while Instant::now() < end {
        one.write_all(b"x").unwrap();
        other.read_exact(&mut [0]).unwrap();
    }
}

/// Returns the count of each softirq, and its time.
fn counted(table: &Table) -> BTreeMap<String, [u64; 2]> {
    let cells = |row| [0, 1].map(|column| number(table, row, column));
    names(table).into_iter().enumerate().map(|(row, name)| (name, cells(row))).collect()
}

/// Returns the number of events of a kind by softirq: `vec=3 [action=NET_RX]`.
fn by_vector(events: &[Event], kind: &str) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for event in events.iter().filter(|event| event.name == kind) {
        let name = event.text.split("action=").nth(1).unwrap().trim_end_matches(']');
        *counts.entry(name.to_owned()).or_default() += 1;
    }
    counts
}

fn runs_are_counted(mut agent: Agent) {
    let Some(readings) = Readings::record(&EVENTS) else { return skip("tracefs") };
    let before = readings.reading(|| counted(&agent.table()));
    let begin = Instant::now();
    converse();
    let after = readings.reading(|| counted(&agent.table()));
    let elapsed = begin.elapsed().as_nanos() as u64;
    let [between, around] = readings.end();
    let (least, most) = (by_vector(&between, "softirq_exit"), by_vector(&around, "softirq_exit"));
    let mut messages = 0;
    for (name, [count, sum]) in &after {
        let [count, sum] = [count - before[name][0], sum - before[name][1]];
        let bounds = [&least, &most].map(|counts| counts.get(name).copied().unwrap_or(0));
        println!("{name}: {count} of {bounds:?}, {sum} ns");
        assert!((bounds[0]..=bounds[1]).contains(&count), "{name}: {count}, {bounds:?}");
        assert!(count == 0 || (count..elapsed * 2).contains(&sum), "{name}: {sum} ns of {count}");
        messages += u64::from(name == "NET_RX") * count;
    }
    assert!(messages > 100, "{messages}");
    assert!(most.keys().all(|name| after.contains_key(name)), "{most:?}: a softirq without a name");
    agent.assert_complete();
}

#[test]
fn runs_of_softirqs_are_those_that_ftrace_records() {
    let _alone = alone();
    runs_are_counted(Agent::new("softirqs", ""));
}

#[test]
fn runs_of_softirqs_count_the_same_by_raw_tracepoints() {
    let _alone = alone();
    runs_are_counted(Agent::avoiding("tp_btf", "softirqs", ""));
}

#[test]
fn a_softirq_waits_from_its_first_raise() {
    let _alone = alone();
    let mut agent = Agent::new("softirqs", "wait = True\nprometheus = True");
    let [_, _, _, waits, ..] = find("softirqs").unwrap().tables else { panic!("six tables") };
    let begin = Instant::now();
    converse();
    let waited = counted(&agent.other(waits));
    let ran = counted(&agent.table());
    let elapsed = begin.elapsed().as_nanos() as u64;
    let ([waits, time], [runs, _]) = (waited["NET_RX"], ran["NET_RX"]);
    println!("{waits} waits of {time} ns before {runs} runs");
    // A run that follows another of the same round has no wait, and one may have begun between the readings.
    assert!((runs / 2..=runs + 1).contains(&waits) && waits > 100, "{waits} {runs}");
    assert!((waits..elapsed * 2).contains(&time), "{time}");
    assert!(agent.scraped("softirqs", 2010, 0)["NET_RX"] >= waits);
}
