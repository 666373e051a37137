//! bashreadline against lines that are typed at a shell on a terminal of the test.

use crate::common::lacks;
use crate::common::script::Script;
use crate::support::{alone, number, Agent};
use corebcc::modules::find;
use std::process::Command;

const PID: usize = 0;
const UID: usize = 1;
const COMM: usize = 2;
const LINE: usize = 3;

#[test]
fn lines_that_are_typed_have_rows() {
    let _alone = alone();
    if lacks(&["bash", "script"]) {
        return;
    }
    let Some(mut agent) = Agent::where_possible("uprobes", "bashreadline", "") else { return };
    let lines = agent.other(find("bashreadline").unwrap().tables[1]);
    let before = number(&lines, 0, 0);
    let mut shell = Script::new(Command::new("script").args(["-qec", "bash --norc -i", "/dev/null"]));
    let mark = format!("echo corebcc-{}", std::process::id());
    shell.tell(&mark);
    shell.tell("");
    shell.tell(&format!("{mark} {}", "x".repeat(300)));
    shell.tell("exit");
    shell.end();
    let rows = agent.rows();
    let own: Vec<_> = rows.iter().filter(|row| row.text(LINE).starts_with(&mark)).collect();
    let typed: Vec<String> = own.iter().map(|row| row.text(LINE)).collect();
    let long = format!("{mark} {}", "x".repeat(300));
    assert_eq!(typed, [long[..255].to_owned(), mark], "the latest first, at most 255 bytes of it");
    for row in &own {
        assert_eq!((row.text(COMM).as_str(), row.number(UID), row.number(PID)), ("bash", 0, own[0].number(PID)));
    }
    let lines = agent.other(find("bashreadline").unwrap().tables[1]);
    assert!(number(&lines, 0, 0) >= before + 4, "{rows:#?}");
    agent.assert_complete();
}
