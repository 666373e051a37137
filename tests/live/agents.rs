//! Properties that all modules have: reading consumes nothing, two agents count the same, a refresh makes no bpf() call, and nothing
//! is left in the kernel afterwards.

use crate::common::lacks;
use crate::support::{alone, settle, since, Agent, Disk, Script};
use std::process::{Command, Stdio};

#[test]
fn two_agents_count_the_same() {
    let _alone = alone();
    let (mut one, mut two) = (Agent::new("netproc", ""), Agent::new("netproc", ""));
    let mut script = Script::python(
        "u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nfor i in range(100): u.sendto(b'x', ('127.0.0.1', 9))\nstep()",
    );
    script.line();
    let mine = format!("{:06}", script.pid());
    let of = |agent: &mut Agent| {
        agent.named().into_iter().find(|(name, _)| name.starts_with(&mine)).map(|(_, values)| values)
    };
    let counted = of(&mut one);
    assert_eq!(counted.as_ref().map(|values| values[4]), Some(100));
    assert_eq!(counted, of(&mut two));

    let (mut one, mut two) = (Agent::new("exectop", ""), Agent::new("exectop", ""));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("corebcctwo");
    std::os::unix::fs::symlink("/bin/true", &path).unwrap();
    for _ in 0..10 {
        assert!(Command::new(&path).status().unwrap().success());
    }
    assert_eq!(one.named().get("corebcctwo"), Some(&vec![10]));
    assert_eq!(two.named().get("corebcctwo"), Some(&vec![10]));
}

#[test]
fn a_thousand_refreshes_change_nothing() {
    let _alone = alone();
    let mut agent = Agent::new("exectop", "");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("corebccread");
    std::os::unix::fs::symlink("/bin/true", &path).unwrap();
    assert!(Command::new(&path).status().unwrap().success());
    for _ in 0..1000 {
        assert_eq!(agent.named().get("corebccread"), Some(&vec![1]));
    }
    let mut histogram = Agent::new("runqlat", &format!("process = {}", std::process::id()));
    let mut before = histogram.histogram();
    let begin: u64 = before.iter().sum();
    for _ in 0..1000 {
        // This process runs meanwhile, so that slots grow; none shrinks, or `since` would overflow.
        std::thread::sleep(std::time::Duration::from_micros(10));
        let now = histogram.histogram();
        since(&now, &before);
        before = now;
    }
    assert!(before.iter().sum::<u64>() > begin + 500, "it came to a CPU after each rest: {begin}, then {before:?}");
}

#[test]
fn between_two_refreshes_of_histograms_there_is_no_bpf_call() {
    let _alone = alone();
    if lacks(&["strace"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace");
    let show = |metric: &str, count: &str| {
        let status = Command::new("strace")
            .args(["-f", "-qq", "-e", "trace=bpf", "-o"])
            .arg(&trace)
            .args([env!("CARGO_BIN_EXE_pmdacorebcc"), "show", metric, "0.1", count])
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success(), "show {metric}: {status}");
        std::fs::read_to_string(&trace).unwrap().lines().filter(|line| line.contains("bpf(")).count()
    };
    for metric in ["disk.all.latency", "runq.latency"] {
        let (few, many) = (show(metric, "1"), show(metric, "20"));
        println!("{metric}: {few} bpf() calls with 1 refresh, {many} with 20");
        assert!(few > 0);
        assert_eq!(few, many, "{metric}");
    }
}

/// Returns the number of this agent's programs in the kernel, by file descriptors of this process: none of them must stay.
fn descriptors() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    open.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().contains("bpf"))).count()
}

#[test]
fn detaching_leaves_nothing_behind() {
    let _alone = alone();
    let before = descriptors();
    let agents: Vec<Agent> = ["biolatency", "sysfork", "tcplife", "runqlat", "exectop", "netproc"]
        .iter()
        .map(|module| Agent::new(module, ""))
        .collect();
    assert!(descriptors() > before + 10);
    agents.into_iter().for_each(Agent::detach);
    settle();
    assert_eq!(descriptors(), before);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains("bpf-map"), "{maps}");
}

#[test]
fn disks_that_come_later_are_counted() {
    let _alone = alone();
    let mut agent = Agent::new("biolatency", "");
    let before = agent.total();
    let disk = Disk::new(16);
    let source = format!(
        "import mmap\nfd = os.open('{}', os.O_RDWR | os.O_DIRECT)\npage = mmap.mmap(-1, 4096)\n\
         for i in range(50): os.pwrite(fd, page, i * 4096)",
        disk.device
    );
    Script::python(&source).end();
    assert!(agent.total() - before >= 50);
}
