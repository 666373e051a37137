//! exitsnoop against what waitid(2), wait4(2) and the senders of signals say.

use crate::cgroups::{hierarchy, Cgroup};
use crate::common::{kernel_version, skip};
use crate::support::{alone, number, Agent, Script};
use corebcc::host::Controller;
use corebcc::modules::find;
use std::collections::BTreeMap;

const PROGRAMS: &str = include_str!("../programs/exits.py");

const PID: usize = 0;
const SIGNAL: usize = 6;
const KILLER: usize = 8;
const CPU: usize = 11;

fn counts(agent: &mut Agent) -> Vec<u64> {
    let table = agent.other(find("exitsnoop").unwrap().tables[1]);
    (0..6).map(|column| number(&table, 0, column)).collect()
}

fn signals(agent: &mut Agent) -> BTreeMap<String, u64> {
    let table = agent.other(find("exitsnoop").unwrap().tables[2]);
    let names = table.keys().iter().map(|key| match key {
        corebcc::kit::Key::Numbered(_, name) => String::from_utf8_lossy(table.text(name)).into_owned(),
        key => panic!("{key:?}"),
    });
    names.enumerate().map(|(row, name)| (name, number(&table, row, 0))).collect()
}

fn exits_are_counted(mut agent: Agent) {
    let directory = tempfile::tempdir().unwrap();
    let source = crate::common::script::part(PROGRAMS, "ends");
    let mut script = Script::python(&format!("directory = {:?}\n{source}", directory.path()));
    assert_eq!(script.line(), "ready");
    assert_eq!(counts(&mut agent), [0; 6]);
    script.go();
    let waited = script.numbers();
    let seen = counts(&mut agent);
    println!("all, failed, signalled, coredumped, threads: waited {waited:?}, seen {seen:?}");
    assert_eq!(seen[..5], waited);
    assert_eq!(waited[0], 1000 + 200 + 50 + 50 + 3);
    script.go();
    let line = script.line();
    let words: Vec<&str> = line.split(' ').collect();
    let named = words.chunks(2).map(|pair| (pair[0].to_owned(), pair[1].parse().unwrap()));
    assert_eq!(signals(&mut agent), named.collect());
    for _ in 0..2 {
        script.go();
        let [pid, used] = script.numbers()[..] else { panic!() };
        let rows = agent.rows();
        assert_eq!(rows[0].number(PID), pid);
        let cpu = rows[0].number(CPU);
        println!("processor time: {cpu} ns of {used}");
        assert!(cpu.abs_diff(used) <= used / 100, "{cpu} ns, by rusage {used}");
    }
    script.go();
    let [fault, killed, killer] = script.numbers()[..] else { panic!() };
    let rows = agent.rows();
    let end = |row: usize| [PID, SIGNAL, KILLER].map(|column| rows[row].number(column));
    assert_eq!(end(0), [killed, 9, killer]);
    assert_eq!(rows[0].text(9), "python3");
    assert_eq!(end(1), [fault, 11, 0], "a fault has no sender");
}

#[test]
fn every_end_of_a_process_is_counted_once_as_its_parent_sees_it() {
    let _alone = alone();
    exits_are_counted(Agent::new("exitsnoop", "process = (?s:.*corebcc-exits.*)"));
}

/// Before 6.16 the tracepoint does not say whether a thread is the last.
#[test]
fn a_kernel_that_does_not_name_the_last_thread_counts_the_same() {
    let _alone = alone();
    if kernel_version() < vec![6, 16] {
        return skip(
            "a kernel that names the last thread (6.16), where the program for others can be told from its own",
        );
    }
    exits_are_counted(Agent::avoiding("group_dead", "exitsnoop", "process = (?s:.*corebcc-exits.*)"));
}

#[test]
fn a_stranger_that_starts_many_processes_does_not_hide_others() {
    let _alone = alone();
    let mut agent =
        Agent::new("exitsnoop", "process = (?s:.*corebcc-exits.*)\nprocess_count = 8\nbuffer_page_count = 1");
    let mut script = Script::part(PROGRAMS, "flood");
    assert_eq!(script.line(), "ready");
    script.go();
    assert_eq!(script.line(), "done");
    let rows = agent.rows();
    let flood = u64::from(script.pid());
    let others = rows.iter().filter(|row| row.number(2) != flood).count();
    let counts = counts(&mut agent);
    println!("{} rows, {others} of others; {counts:?}", rows.len());
    assert_eq!((rows.len(), others), (8, 5));
    assert_eq!(counts[0], 3006);
    let shown: u64 = rows[0].number(13);
    assert_eq!(shown + counts[5], 3006, "each has a number or is counted as lost");
    assert!(shown < 200, "{shown}");
}

#[test]
fn exits_of_a_cgroup_are_counted_by_its_name() {
    let _alone = alone();
    let Some(cgroups) = hierarchy(Controller::Unified) else { return };
    let cgroup = Cgroup::make(&cgroups, "exits");
    let mut agent = Agent::new("exitsnoop", "by_cgroup = True");
    // The shell ends, too, and runs the last command itself.
    cgroup.run("sh", &["-c", "(exit 0); (exit 3); (exit 4); sh -c 'kill -9 $$' 2>&1; true"]);
    agent.tick();
    let table = agent.other(find("exitsnoop").unwrap().tables[3]);
    let row =
        (0..table.len()).find(|&row| table.value(row, 4) == Some(corebcc::pcp::Atom::Str(cgroup.name.as_bytes())));
    let row = row.unwrap_or_else(|| panic!("no series {}", cgroup.name));
    assert_eq!([0, 1, 2].map(|column| number(&table, row, column)), [5, 2, 1]);
    let rows = agent.rows();
    assert!(
        rows.iter().any(|row| row.text(14) == cgroup.name),
        "{:?}",
        rows.iter().map(|row| row.text(14)).collect::<Vec<_>>()
    );
}
