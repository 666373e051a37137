//! logins against sessions that a program begins.

use crate::common::skip;
use crate::support::{alone, names, number, Agent, Script};

use corebcc::modules::find;

const PROGRAMS: &str = include_str!("../programs/logins.py");

const PID: usize = 0;
const UID: usize = 1;
const USER: usize = 2;
const LOGINUID: usize = 3;
const SESSION: usize = 4;
const TTY: usize = 5;
const COMM: usize = 6;
const PARENT: usize = 7;
const REMOTE: usize = 8;

/// Returns the sessions of a user: on a terminal, and others.
fn of(agent: &mut Agent, user: &str) -> [u64; 2] {
    agent.tick();
    let table = agent.other(find("logins").unwrap().tables[1]);
    let row = names(&table).iter().position(|name| name == user);
    row.map_or([0; 2], |row| [0, 1].map(|column| number(&table, row, column)))
}

#[test]
fn sessions_are_counted_once_with_who_began_them_and_where() {
    let _alone = alone();
    let mut agent = Agent::new("logins", "process_count = 100");
    let mut script = Script::part(PROGRAMS, "sessions");
    assert_eq!(script.line(), "ready");
    script.go();
    if script.line() != "allowed" {
        return skip("sessions of audit (CONFIG_AUDIT and CAP_AUDIT_CONTROL)");
    }
    script.go();
    assert_eq!((script.numbers(), of(&mut agent, "root")), (vec![5], [0, 5]));
    let rows = agent.rows();
    assert_eq!(rows.len(), 5, "the first program of a session, and no other");
    for (row, before) in rows.iter().zip(&rows[1..]) {
        assert_eq!(row.number(SESSION), before.number(SESSION) + 1);
    }
    for row in &rows {
        assert_eq!([UID, LOGINUID].map(|column| row.number(column)), [0, 65534], "{row:?}");
        let texts = [USER, TTY, COMM, PARENT, REMOTE].map(|column| row.text(column));
        assert_eq!(texts, ["root", "", "sh", "python3", "192.0.2.7"], "{row:?}");
    }
    script.go();
    let terminals: Vec<String> = script.line().split(' ').rev().map(String::from).collect();
    let rows = agent.rows();
    assert_eq!(rows[..3].iter().map(|row| row.text(TTY)).collect::<Vec<_>>(), terminals);
    assert_eq!(of(&mut agent, "root"), [3, 5]);
    script.go();
    let terminal = script.line();
    let row = &agent.rows()[0];
    assert_eq!((row.text(TTY), row.number(LOGINUID), row.text(REMOTE)), (terminal, 65534, String::new()));
    assert_eq!(of(&mut agent, "root"), [4, 5], "both at once are one");
    script.go();
    assert_eq!(script.line(), "done");
    assert_eq!((of(&mut agent, "root"), of(&mut agent, "nobody")), ([4, 5], [0, 1]));
    script.go();
    assert_eq!(script.line(), "script");
    assert_eq!((of(&mut agent, "root"), agent.rows()[0].text(PARENT)), ([5, 5], "script".into()));
    script.go();
    let parent = script.numbers()[0];
    assert_eq!(script.line(), "init");
    assert_eq!(of(&mut agent, "root"), [if parent == 1 { 5 } else { 6 }, 5], "by process {parent}");
    assert!(agent.rows().iter().all(|row| row.number(PID) > 1));
    script.end();
}

#[test]
fn a_user_with_many_sessions_does_not_hide_others() {
    let _alone = alone();
    let mut agent = Agent::new("logins", "process_count = 8");
    let mut script = Script::part(PROGRAMS, "flood");
    assert_eq!(script.line(), "ready");
    script.go();
    let mut line = String::new();
    if std::io::BufRead::read_line(&mut script.output, &mut line).unwrap() == 0 {
        return skip("sessions of audit (CONFIG_AUDIT and CAP_AUDIT_CONTROL)");
    }
    let users: Vec<u64> = agent.rows().iter().map(|row| row.number(UID)).collect();
    println!("{users:?}");
    assert!(users.contains(&0), "the one of root");
    assert_eq!((of(&mut agent, "root"), of(&mut agent, "nobody")), ([0, 1], [0, 300]));
}
