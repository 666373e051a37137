//! statsnoop against the calls that a process makes.

use crate::support::{alone, number, Agent, Sleeper};
use corebcc::modules::find;
use nix::sys::statvfs::statvfs;
use std::fs;

const PID: usize = 0;
const COMM: usize = 2;
const PATH: usize = 3;
const RET: usize = 4;
const ERR: usize = 5;
const SEQ: usize = 7;

const NEEDS: &str = "fexit or kprobes";
/// A name with a control character, and how it is shown.
const NAMELESS: &str = "/no/such\tfile";
const SHOWN: &str = r"/no/such\tfile";

/// Asks 10 times for each: 6 files that are there, 3 that are not, and a file system.
fn ask(times: u32) {
    for _ in 0..times {
        for _ in 0..6 {
            fs::metadata("/proc/self/status").unwrap();
        }
        for _ in 0..3 {
            assert!(fs::symlink_metadata(NAMELESS).is_err());
        }
        statvfs("/proc").unwrap();
    }
}

/// Returns the numbers of all calls, of those that failed, and of those without a row.
fn counts(agent: &mut Agent) -> [u64; 3] {
    let table = agent.other(find("statsnoop").unwrap().tables[1]);
    [0, 1, 2].map(|column| number(&table, 0, column))
}

#[test]
fn calls_of_a_process_are_counted_and_have_rows() {
    let _alone = alone();
    let mut process = Sleeper::doing(ask);
    let options = format!("process = {}\nprocess_count = 100", process.pid());
    let Some(mut agent) = Agent::where_possible(NEEDS, "statsnoop", &options) else { return };
    process.sleep(100);
    let said = counts(&mut agent);
    agent.assert_counted([said[0], said[1]], [1000, 300]);
    let rows = agent.rows();
    assert_eq!(rows[0].number(SEQ) + said[2], said[0], "each has a number or is counted as lost");
    for row in &rows {
        assert_eq!(row.number(PID), u64::from(process.pid()), "{row:?}");
        let outcome = (row.text(PATH), row.text(RET), row.number(ERR));
        let expected = [("/proc/self/status", "0", 0), ("/proc", "0", 0), (SHOWN, "-1", 2)];
        let is = |(path, ret, err): (&str, &str, u64)| (path.to_owned(), ret.to_owned(), err) == outcome;
        assert!(expected.into_iter().any(is) && !row.text(COMM).is_empty(), "{row:?}");
    }
    assert!(rows.iter().any(|row| row.text(PATH) == "/proc"), "{rows:#?}");
}

#[test]
fn only_calls_that_fail_have_rows_where_so_chosen() {
    let _alone = alone();
    let mut process = Sleeper::doing(ask);
    let options = format!("process = {}\nfailed = True", process.pid());
    let Some(mut agent) = Agent::where_possible(NEEDS, "statsnoop", &options) else { return };
    process.sleep(5);
    let said = counts(&mut agent);
    agent.assert_counted([said[0], said[1]], [50, 15]);
    let rows = agent.rows();
    assert!(!rows.is_empty() && rows.iter().all(|row| row.text(PATH) == SHOWN), "{rows:#?}");
}
