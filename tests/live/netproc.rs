//! netproc: known calls and bytes over loopback by processes of this test only, so that each number is exact.

use crate::support::{alone, command, part, python, Agent, Meeting, Script, IPV4, IPV6};

/// Values by metric, in the order of the items: calls and bytes each of TCP send and receive, UDP send and receive.
type Values = Vec<u64>;

fn of(agent: &mut Agent, pid: u32) -> Option<(String, Values)> {
    let number = format!("{pid:06}");
    let means = |name: &str| name.split(' ').next() == Some(&number);
    let mut rows: Vec<_> = agent.named().into_iter().filter(|(name, _)| means(name)).collect();
    assert!(rows.len() < 2, "{rows:?}");
    rows.pop()
}

fn values(agent: &mut Agent, script: &Script) -> Values {
    let (name, values) = of(agent, script.pid()).unwrap_or_else(|| (String::new(), vec![0; 8]));
    assert!(name.is_empty() || name == format!("{:06} {}", script.pid(), python()), "{name}");
    values
}

/// Lets the script do its next step. Returns its line, and the growth of the values.
fn step(agent: &mut Agent, script: &mut Script) -> (String, Values) {
    let before = values(agent, script);
    script.go();
    let line = script.line();
    let after = values(agent, script);
    (line, after.iter().zip(&before).map(|(after, before)| after - before).collect())
}

const SCRIPTS: &str = include_str!("../programs/netproc.py");

/// Starts a script on sockets of this family and address.
pub fn connected(meeting: &Meeting, name: &str) -> Script {
    let begin = format!("family, host = socket.{}, '{}'", meeting.family, meeting.connect);
    Script::python(&[begin, part(SCRIPTS, "sockets"), part(SCRIPTS, name)].join("\n"))
}

#[test]
fn every_way_to_send_and_receive_counts_exactly() {
    let _alone = alone();
    [IPV4, IPV6].iter().for_each(every_way);
}

/// Steps of the script, each with the growth of calls and bytes: TCP send and receive, UDP send and receive.
pub const EVERY_WAY: [(&str, [u64; 8]); 10] = [
    ("send", [10, 10_000, 1, 10_000, 0, 0, 0, 0]),
    ("write", [10, 1000, 1, 1000, 0, 0, 0, 0]),
    ("writev", [10, 1230, 1, 1230, 0, 0, 0, 0]),
    ("sendmsg", [10, 1000, 1, 1000, 0, 0, 0, 0]),
    ("sendfile", [1, 5000, 1, 5000, 0, 0, 0, 0]),
    ("peek", [1, 500, 1, 500, 0, 0, 0, 0]),
    ("datagrams", [0, 0, 0, 0, 10, 3000, 10, 3000]),
    ("empty", [0, 0, 0, 0, 5, 0, 5, 0]),
    // A datagram cut to the reader's buffer: what was delivered counts.
    ("cut", [0, 0, 0, 0, 1, 1000, 1, 400]),
    // The end of a stream delivers nothing.
    ("end", [0; 8]),
];

fn every_way(meeting: &Meeting) {
    let mut agent = Agent::new("netproc", "");
    let mut script = connected(meeting, "every way");
    assert_eq!(script.line(), "connected");
    for (name, counts) in EVERY_WAY {
        assert_eq!(step(&mut agent, &mut script), (name.to_string(), counts.to_vec()), "{}", meeting.family);
    }
    script.end();
    assert_eq!(agent.warnings(), [""; 0]);
}

#[test]
fn a_send_that_was_cut_short_counts_the_bytes_taken() {
    let _alone = alone();
    let mut agent = Agent::new("netproc", "");
    let mut script = connected(&IPV4, "cut short");
    script.line();
    let (line, counted) = step(&mut agent, &mut script);
    let said: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
    println!("calls and bytes {said:?}, counted {counted:?}");
    // The call that was refused is a call too.
    assert!(!said[1].is_multiple_of(1_000_000), "{said:?}");
    assert_eq!(counted[..2], said);
}

#[test]
fn threads_count_for_their_process() {
    let _alone = alone();
    let mut agent = Agent::new("netproc", "");
    let mut script = connected(&IPV4, "threads");
    script.line();
    let (_, counted) = step(&mut agent, &mut script);
    assert_eq!(counted[4..6], [2000, 20_000]);
    // Ended threads are taken over by later looks: nothing is counted twice or dropped.
    for _ in 0..3 {
        agent.tick();
        assert_eq!(values(&mut agent, &script)[4..6], [2000, 20_000]);
    }
}

#[test]
fn a_process_that_lived_between_two_refreshes_is_shown() {
    let _alone = alone();
    let mut agent = Agent::new("netproc", "");
    let mut script = Script::part(SCRIPTS, "datagram");
    let pid = script.pid();
    script.line();
    script.end();
    let (name, values) = of(&mut agent, pid).expect("the process is in the table");
    assert_eq!((name, &values[4..6]), (format!("{pid:06} {}", command()), &[1, 77][..]));
    for _ in 0..5 {
        agent.tick();
        assert_eq!(of(&mut agent, pid).unwrap().1[5], 77);
    }
}

/// The place is claimed before the exec, and nobody looks before the end.
#[test]
fn what_ended_has_the_name_of_the_program_it_executed_last() {
    let _alone = alone();
    let mut agent = Agent::new("netproc", "");
    let mut script = Script::part(SCRIPTS, "datagram, then another program");
    let pid = script.pid();
    script.line();
    script.end();
    let (name, values) = of(&mut agent, pid).expect("the process is in the table");
    assert_eq!((name, values[5]), (format!("{pid:06} sleep"), 77));
    agent.tick();
    agent.tick();
    assert_eq!(of(&mut agent, pid).unwrap().0, format!("{pid:06} sleep"), "its place is given back by now");
}

#[test]
fn an_exec_renews_the_name_and_keeps_the_counts() {
    let _alone = alone();
    for by in ["main()", "threading.Thread(target=main).start(); time.sleep(10)"] {
        let mut agent = Agent::new("netproc", "");
        let source = part(SCRIPTS, "datagrams of two programs").replace("PYTHON", python()).replace("BY", by);
        let mut script = Script::python(&source);
        script.line();
        assert_eq!(values(&mut agent, &script)[4..6], [1, 10]);
        for sent in 3..6 {
            script.go();
            assert_eq!(script.line(), "again");
            let (name, values) = of(&mut agent, script.pid()).unwrap();
            assert_eq!((name, &values[4..6]), (format!("{:06} renamed", script.pid()), &[sent, sent * 10][..]), "{by}");
            agent.tick();
            agent.tick();
        }
        script.go();
        script.end();
        assert_eq!(agent.warnings(), [""; 0]);
    }
}

#[test]
fn an_exec_of_a_process_whose_threads_all_ended_renews_the_name() {
    let _alone = alone();
    let mut agent = Agent::new("netproc", "");
    let mut script = Script::python(&part(SCRIPTS, "datagrams of three programs").replace("PYTHON", python()));
    script.line();
    assert_eq!(values(&mut agent, &script)[4..6], [1, 10]);
    agent.tick();
    agent.tick();
    for (line, name, sent) in [("first", "once", 2), ("second", "twice", 3)] {
        script.go();
        assert_eq!(script.line(), line);
        let (instance, values) = of(&mut agent, script.pid()).unwrap();
        assert_eq!((instance, values[4]), (format!("{:06} {name}", script.pid()), sent));
    }
}

#[test]
fn five_thousand_threads_lose_no_count_and_leave_no_row() {
    let _alone = alone();
    let mut agent = Agent::new("netproc", "");
    let mut script = Script::part(SCRIPTS, "ten thousand threads");
    script.line();
    for round in 1..=2 {
        let (_, counted) = step(&mut agent, &mut script);
        assert_eq!(counted[4..6], [5000, 15_000], "round {round}: {:?}", agent.warnings());
        // As in two seconds of the agent: ended threads are noticed, then taken over and their places freed.
        agent.tick();
        agent.tick();
    }
    assert_eq!(values(&mut agent, &script)[4..6], [10_000, 30_000]);
    assert_eq!(agent.warnings(), [""; 0]);
}
