//! tcpperpid: known bytes over loopback by processes of this test only.

use crate::common::skip;
use crate::support::{alone, command, part, Agent, Script};

fn instance(script: &Script) -> String {
    format!("{:06} {}", script.pid(), command())
}

/// Returns the bytes sent and received by the script.
fn of(agent: &mut Agent, script: &Script) -> Option<(u64, u64)> {
    agent.named().get(&instance(script)).map(|values| (values[0], values[1]))
}

const SCRIPTS: &str = include_str!("../programs/tcpperpid.py");

/// Starts a script with a server.
fn served(name: &str) -> Script {
    Script::python(&(part(SCRIPTS, "server") + &part(SCRIPTS, name)))
}

#[test]
fn bytes_count_when_they_are_moved_whether_highres_or_not() {
    let _alone = alone();
    for highres in ["False", "True"] {
        let mut agent = Agent::new("tcpperpid", &format!("highres = {highres}"));
        let mut script = Script::part(SCRIPTS, "one way");
        script.line();
        assert_eq!(of(&mut agent, &script), None, "nothing moved yet");
        script.go();
        script.line();
        assert_eq!(of(&mut agent, &script), Some((100_000, 100_000)), "the session is open");
        script.end();
        assert_eq!(agent.warnings(), [""; 0]);
    }
}

#[test]
fn threads_and_both_families_are_added_up() {
    let _alone = alone();
    let mut agent = Agent::new("tcpperpid", "");
    let mut script = Script::part(SCRIPTS, "both families");
    script.line();
    assert_eq!(of(&mut agent, &script), Some((800_000, 800_000)));
    script.end();
}

#[test]
fn ports_are_asked_for_at_both_ends() {
    let _alone = alone();
    // One end has the port as its local, the other as its remote one: sent 1000 and back 30.
    for (option, expected) in [("lport", (30, 1000)), ("dport", (1000, 30))] {
        let mut script = served("two ports");
        let port = script.numbers()[0];
        let mut agent = Agent::new("tcpperpid", &format!("{option} = 1,{port}"));
        script.go();
        script.line();
        assert_eq!(of(&mut agent, &script), Some(expected), "{option}");
        script.end();
    }
}

#[test]
fn thousands_of_connections_lose_next_to_nothing_and_say_what() {
    let _alone = alone();
    let mut agent = Agent::new("tcpperpid", "");
    let mut script = served("thousands");
    let mut ends = 0;
    for round in 1..=12 {
        script.line();
        agent.tick();
        let (sent, received) = of(&mut agent, &script).unwrap();
        // A table of 8192 rows is a third full here at times: one end of a connection in a few thousand finds its eight places taken,
        // which takes its two calls, 100 bytes one way and 10 the other.
        let missing = 2 * round * 250 * 110 - (sent + received);
        assert!(missing % 110 == 0 && missing / 110 >= ends && missing / 110 < 5, "{sent} {received} in round {round}");
        ends = missing / 110;
        if round < 12 {
            script.go();
        }
    }
    let name = instance(&script);
    script.end();
    agent.tick();
    assert_eq!(agent.named()[&name].iter().sum::<u64>(), 660_000 - 110 * ends, "an ended process stays");
    // A loss is told at once, another one of the kind a minute later.
    let told: Vec<u64> =
        agent.warnings().iter().map(|line| line.strip_suffix(NO_PLACE).unwrap().parse().unwrap()).collect();
    assert!(told.len() == usize::from(ends > 0) && told.iter().all(|calls| (2..=2 * ends).contains(calls)), "{told:?}");
}

const NO_PLACE: &str = " calls on connections without a row in the table";

#[test]
fn only_the_processes_asked_for_count() {
    let _alone = alone();
    let mut scripts = [served("two ways"), served("two ways")];
    scripts.iter_mut().for_each(|script| drop(script.line()));
    let mut agent = Agent::new("tcpperpid", &format!("process = {}", scripts[1].pid()));
    for script in &mut scripts {
        script.go();
        script.line();
    }
    assert_eq!(agent.named().into_iter().collect::<Vec<_>>(), [(instance(&scripts[1]), vec![1030, 1030])]);
}

/// Threads can have names of their own; a process is named after its first thread, also if it was gone before anybody looked.
#[test]
fn a_process_that_was_never_looked_at_has_its_command_name() {
    let _alone = alone();
    let mut agent = Agent::new("tcpperpid", "");
    let mut script = served("thread with a name");
    let name = instance(&script);
    script.line();
    script.end();
    assert_eq!(agent.named()[&name], [1030, 1030]);
}

/// More connections than fitted into a table that did not grow with the memory: 8192 ends in all, and 4000 without a loss.
#[test]
fn thousands_of_open_connections_lose_nothing() {
    const CONNECTIONS: u64 = 6_500;
    let _alone = alone();
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let memory: u64 = meminfo.split_whitespace().nth(1).unwrap().parse().unwrap();
    if memory < 17 << 20 {
        return skip("17 GB of memory");
    }
    let mut agents = ["tcpperpid", "tcptop"].map(|module| Agent::new(module, ""));
    let mut script = Script::python(&part(SCRIPTS, "open").replace("CONNECTIONS", &CONNECTIONS.to_string()));
    if script.numbers()[0] < 2 * CONNECTIONS + 100 {
        return skip(&format!("descriptors for {CONNECTIONS} connections"));
    }
    script.line();
    script.go();
    script.line();
    assert_eq!(of(&mut agents[0], &script), Some((4 * CONNECTIONS, 4 * CONNECTIONS)));
    script.end();
    for agent in &mut agents {
        assert_eq!(agent.warnings(), [""; 0]);
    }
}
