//! cgroup_net: known calls and bytes over loopback from a cgroup of the test.

use crate::cgroups::{hierarchy, Cgroup};
use crate::netproc::{connected, EVERY_WAY};
use crate::support::{alone, Agent, Script, IPV4, IPV6};
use corebcc::host::Controller;

/// Returns calls and bytes of a cgroup, in the order of the items.
fn values(agent: &mut Agent, cgroup: &str) -> [u64; 8] {
    std::array::from_fn(|column| agent.numbers(column).get(cgroup).copied().unwrap_or_default())
}

fn step(agent: &mut Agent, script: &mut Script, cgroup: &str) -> (String, [u64; 8]) {
    let before = values(agent, cgroup);
    script.go();
    let line = script.line();
    let after = values(agent, cgroup);
    (line, std::array::from_fn(|column| after[column] - before[column]))
}

#[test]
fn traffic_counts_for_the_cgroup_of_the_process() {
    let _alone = alone();
    let Some(cgroups) = hierarchy(Controller::Unified) else { return };
    for (number, meeting) in [IPV4, IPV6].iter().enumerate() {
        let (cgroup, other) = (Cgroup::make(&cgroups, &format!("net{number}")), Cgroup::make(&cgroups, "beside"));
        let mut agent = Agent::new("cgroup_net", "");
        let (mut script, mut beside) = (connected(meeting, "every way"), connected(meeting, "every way"));
        assert_eq!((script.line(), beside.line()), ("connected".into(), "connected".into()));
        cgroup.take(script.pid());
        other.take(beside.pid());
        for (name, numbers) in EVERY_WAY {
            let (line, grown) = step(&mut agent, &mut script, &cgroup.name);
            assert_eq!((&line[..], grown), (name, numbers), "{}", cgroup.name);
        }
        assert_eq!(values(&mut agent, &other.name), [0; 8], "it has not begun");
        let total =
            EVERY_WAY.iter().fold([0; 8], |sum: [u64; 8], (_, one)| std::array::from_fn(|at| sum[at] + one[at]));
        EVERY_WAY.iter().for_each(|_| drop((beside.go(), beside.line())));
        assert_eq!(values(&mut agent, &other.name), total, "all in one");
        assert_eq!(values(&mut agent, &cgroup.name), total);
        println!("{}: {total:?}", meeting.family);
    }
}

/// With room for fewer cgroups than there are, the sum over all is right nevertheless.
#[test]
fn cgroups_without_a_row_count_for_other() {
    let _alone = alone();
    let Some(cgroups) = hierarchy(Controller::Unified) else { return };
    let mut agent = Agent::new("cgroup_net", "max_cgroups = 8");
    let mut script = Script::python(
        "u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
         while True:\n step('sent')\n u.sendto(b'x' * 77, ('127.0.0.1', 9))",
    );
    script.line();
    let made: Vec<Cgroup> = (0..100).map(|number| Cgroup::make(&cgroups, &format!("many{number}"))).collect();
    let sums = |agent: &mut Agent| [4, 5].map(|column| agent.numbers(column).into_values().sum::<u64>());
    let before = sums(&mut agent);
    for cgroup in &made {
        cgroup.take(script.pid());
        script.go();
        script.line();
    }
    let (after, rows) = (sums(&mut agent), agent.numbers(4));
    println!("{} rows, other {:?}", rows.len(), rows.get("other"));
    assert_eq!([after[0] - before[0], after[1] - before[1]], [100, 7700], "{rows:?}");
    assert!(rows.len() <= 9 && rows["other"] >= 92, "{rows:?}");
    // A cgroup with a process in it cannot be removed.
    drop(script);
}
