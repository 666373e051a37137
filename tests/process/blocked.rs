//! Statement 65: replies keep arriving within a second while initialisation or collection is blocked for ten.

use crate::peer::{Peer, SECOND};
use crate::reference::pmcd::{self as wire, frame};
use crate::support::script::copy_program;
use crate::support::tracer::{collector, held, tracer};
use crate::support::{all_modules, config, lacks, lacks_bpf, rows::rows, skip, wait_for, Home, ALL};
use corebcc::modules::MODULES;
use corebcc::pcp::{Indom, PmErr, Pmid, IN_NULL};
use corebcc::pdu::{Pdu, PduType};
use nix::sys::signal::Signal;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// The error PM_ERR_AGAIN.
const AGAIN: i32 = -12389;

/// Makes every kind of request for ten seconds, and checks that each is answered within one. Returns the results of the fetches by
/// metric.
#[track_caller]
fn ten_seconds(peer: &mut Peer, loading: bool) -> Vec<i32> {
    let pmids: Vec<_> = rows().map(|row| row.pmid()).collect();
    let until = Instant::now() + 10 * SECOND;
    peer.patience = SECOND;
    let mut said = Vec::new();
    while Instant::now() < until {
        let mut expect = |request: Vec<u8>, ty| assert_eq!(frame(&peer.ask(&request)).ty, ty);
        expect(wire::desc(pmids[0]), PduType::DESC);
        expect(wire::text(pmids[0].0, 5), PduType::TEXT);
        expect(wire::traverse("bcc"), PduType::PMNS_NAMES);
        // Rows are known whatever happens, names by their file; of other instances it is not said that there are none.
        let named = if loading { PduType::ERROR } else { PduType::INSTANCE };
        expect(wire::instance(Indom::new(149, 3), IN_NULL, ""), PduType::INSTANCE);
        expect(wire::instance(Indom::new(149, 13), IN_NULL, ""), PduType::INSTANCE);
        expect(wire::instance(Indom::new(149, 40), IN_NULL, ""), named);
        expect(wire::label(Indom::new(149, 4).0, 32), PduType::LABEL);
        said = wire::result(&peer.ask(&wire::fetch(&pmids))).iter().map(|set| set.numval).collect();
        std::thread::sleep(Duration::from_millis(100));
    }
    said
}

/// The thread that loads waits for a writer of a FIFO.
#[test]
fn c65_replies_keep_arriving_while_initialisation_is_blocked() {
    let home = Home::new(ALL);
    let fifo = home.path("btf");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let names = "2 0 2147483647\n4 1700000000 bash\n6 1600000000 long-ago\n7 1700000000 sh\n";
    fs::write(home.path("config/pmda/149.13"), names).unwrap();
    let mut peer = Peer::start(&home, &["--btf", fifo.to_str().unwrap()]);
    peer.greet();
    let known = peer.ask(&wire::instance(Indom::new(149, 13), IN_NULL, ""));
    let Pdu::Instance { entries, .. } = wire::decode(&known) else { panic!("{known:?}") };
    assert_eq!(entries, [(4, &b"bash"[..]), (7, b"sh")], "those of the latest table");
    assert_eq!(ten_seconds(&mut peer, true), vec![AGAIN; rows().count()]);
    assert!(!home.log().contains("ready: "), "{}", home.log());
    let (status, _) = peer.close();
    assert_eq!(status.code(), Some(0));
}

/// Another thread does the work of the one that is stuck.
#[test]
fn c65_replies_keep_arriving_while_collection_is_blocked() {
    if lacks_bpf() || lacks(&["strace"]) {
        return;
    }
    let home = Home::new(ALL);
    let mut peer = Peer::ready(&home, &[]);
    let mut strace = held(&home, peer.agent.pid());
    let said = ten_seconds(&mut peer, false);
    assert!(said.iter().all(|numval| *numval >= 0), "{said:?}");
    strace.signal(Signal::SIGKILL);
    strace.end();
    let pmids: Vec<_> = rows().map(|row| row.pmid()).collect();
    wait_for("values", || {
        let sets = wire::result(&peer.ask(&wire::fetch(&pmids)));
        sets.iter().all(|set| set.numval >= 0).then_some(())
    });
    assert_eq!(peer.close().0.code(), Some(0));
}

/// The table of `bcc.agent.uptime` and others takes 1.5 seconds: it reads the file that the tracer delays.
#[test]
fn a_slow_table_costs_no_other_table_its_values() {
    const SLOW: Duration = Duration::from_millis(1500);
    if lacks_bpf() || lacks(&["strace"]) {
        return;
    }
    let home = Home::new(ALL);
    let mut peer = Peer::ready(&home, &[]);
    let inject = format!("inject=openat:delay_enter={}", SLOW.as_micros());
    let of_statm = ["-f", "-P", "/proc/self/statm", "-e", "trace=openat"];
    let resident = Pmid::new(149, 300, 4);
    let others: Vec<_> = rows().map(|row| row.pmid()).collect();
    let ask = |peer: &mut Peer, pmids: &[Pmid]| -> (Duration, Vec<i32>) {
        let begin = Instant::now();
        let sets = wire::result(&peer.ask(&wire::fetch(pmids)));
        (begin.elapsed(), sets.iter().map(|set| set.numval).collect())
    };
    // What the tracer costs by itself: each system call is a stop, and an emulated processor takes its time for one.
    let mut strace = tracer(&home, &collector(peer.agent.pid()), &of_statm);
    let mut undelayed: Vec<Duration> = (0..20).map(|_| ask(&mut peer, &others).0).collect();
    strace.signal(Signal::SIGINT);
    strace.end();
    undelayed.sort();
    if undelayed[15] > SECOND / 20 {
        return skip(&format!("a machine on which a traced fetch takes 50 ms at most (here {:?})", undelayed[15]));
    }
    let mut strace = tracer(&home, &collector(peer.agent.pid()), &[&of_statm[..], &["-e", &inject]].concat());
    let (took, said) = ask(&mut peer, &[resident]);
    assert!(took < SECOND / 2 && said == [AGAIN], "the one fetch that waits in vain: {took:?} {said:?}");
    let (mut times, mut served, mut without) = (Vec::new(), 0, 0);
    let until = Instant::now() + 10 * SECOND;
    while Instant::now() < until {
        let (took, said) = ask(&mut peer, &others);
        without += usize::from(said.iter().any(|numval| *numval < 0));
        times.push(took);
        let (took, said) = ask(&mut peer, &[&others[..], &[resident]].concat());
        without += usize::from(said[..others.len()].iter().any(|numval| *numval < 0));
        served += usize::from(said[others.len()] == 1);
        times.push(took);
        assert_eq!(ask(&mut peer, &[Pmid::new(149, 299, 0)]).1, [PmErr::PMID.0]);
        std::thread::sleep(SECOND / 20);
    }
    times.sort();
    println!(
        "{} fetches, {without} without all values of the others, median {:?}, longest {:?}, served {served}",
        times.len(),
        times[times.len() / 2],
        times.last()
    );
    // A machine that is busy elsewhere may hold one up; the slow table would cost nearly each its values.
    assert!(without * 10 <= times.len(), "{without} of {}", times.len());
    assert!(times[times.len() / 2] < SECOND / 5, "{times:?}");
    assert!((2..=7).contains(&served), "as often as it can be in ten seconds, once each time: {served}");
    strace.signal(Signal::SIGKILL);
    strace.end();
    wait_for("values", || (ask(&mut peer, &[resident]).1 == [1]).then_some(()));
    wait_for("values at once", || {
        (ask(&mut peer, &[resident]).1 == [1] && ask(&mut peer, &[resident]).1 == [1]).then_some(())
    });
    assert_eq!(peer.close().0.code(), Some(0));
}

/// A disk under load may take seconds for a file, and pmcd drops an agent that takes five.
#[test]
fn who_answers_pmcd_touches_no_file() {
    if lacks_bpf() || lacks(&["strace"]) {
        return;
    }
    let home = Home::new(&all_modules());
    let mut peer = Peer::ready(&home, &[]);
    let task = PathBuf::from(format!("/proc/{0}/task/{0}", peer.agent.pid()));
    let mut strace = tracer(&home, &task, &["-e", "trace=%file"]);
    let pmids: Vec<_> = MODULES
        .iter()
        .flat_map(|spec| spec.tables)
        .flat_map(|table| table.metrics.iter().map(|metric| Pmid::new(149, table.cluster, metric.item)))
        .chain((300..310).map(|cluster| Pmid::new(149, cluster, 0)))
        .collect();
    let program = home.path(&format!("cb{}", std::process::id() % 100_000));
    copy_program("/bin/true", &program);
    let until = Instant::now() + 3 * SECOND;
    while Instant::now() < until {
        assert!(Command::new(&program).status().unwrap().success());
        peer.ask(&wire::fetch(&pmids));
        peer.ask(&wire::instance(Indom::new(149, 13), IN_NULL, ""));
        peer.ask(&wire::text(pmids[0].0, 5));
        std::thread::sleep(SECOND / 5);
    }
    strace.signal(Signal::SIGKILL);
    strace.end();
    wait_for("names to be written", || home.path("config/pmda/149.13").exists().then_some(()));
    // A look at what is open already waits for nothing.
    let log = home.read("strace.log");
    let calls: Vec<&str> = log.lines().filter(|line| line.contains('(') && !line.contains("AT_EMPTY_PATH")).collect();
    assert!(calls.is_empty(), "{calls:#?}");
    peer.close();
}

/// The disk takes a second and a half to rename a file, like one whose journal is full. The last names are saved all the same.
#[test]
fn a_disk_that_is_slow_to_take_names_holds_up_no_answer() {
    if lacks_bpf() || lacks(&["strace"]) {
        return;
    }
    let home = Home::new(&config(&["exectop"]));
    let mut peer = Peer::ready(&home, &[]);
    let agent = PathBuf::from(format!("/proc/{}", peer.agent.pid()));
    let inject = "inject=/^rename:delay_enter=1500000";
    let mut strace = tracer(&home, &agent, &["-f", "-e", "trace=/^rename", "-e", inject]);
    peer.patience = SECOND;
    let program = |number: u32| home.path(&format!("name{number}"));
    for number in 0..20 {
        copy_program("/bin/true", &program(number));
        assert!(Command::new(program(number)).status().unwrap().success());
        peer.ask(&wire::fetch(&[Pmid::new(149, 13, 0)]));
        std::thread::sleep(SECOND / 5);
    }
    let (status, _) = peer.close();
    assert_eq!(status.code(), Some(0));
    strace.end();
    assert!(home.read("strace.log").contains("rename"), "{}", home.read("strace.log"));
    let names = home.read("config/pmda/149.13");
    assert!(names.contains(" name0\n") && names.contains(" name19\n"), "{names}");
}
