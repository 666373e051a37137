//! dns against a name server of the test.

use crate::support::{alone, names, number, run_again, Agent};
use corebcc::host::{Cgroups, Controller};
use corebcc::kit::TableSpec;
use corebcc::modules::find;
use std::net::UdpSocket;
use std::ops::Range;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

fn table(nth: usize) -> &'static TableSpec {
    find("dns").unwrap().tables[nth]
}

/// Returns answers and their time, questions, answers, failed, no such name, refused, other errors.
fn all(agent: &mut Agent) -> [u64; 8] {
    let table = agent.table();
    [0, 1, 7, 8, 9, 10, 11, 12].map(|column| number(&table, 0, column))
}

/// Returns questions, answers, time and time-outs of a series.
fn of_series(agent: &mut Agent, nth: usize, is: impl Fn(&str) -> bool) -> [u64; 4] {
    let table = agent.other(table(nth));
    let row = names(&table).iter().position(|name| is(name)).unwrap_or_else(|| panic!("{:?}", names(&table)));
    [0, 1, 2, 3].map(|column| number(&table, row, column))
}

/// A server that answers, delays, refuses and drops as the last digit of a question's number says.
fn serve(address: &str) -> u16 {
    let server = UdpSocket::bind((address, 0)).unwrap();
    let port = server.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut question = [0; 512];
        while let Ok((length, who)) = server.recv_from(&mut question) {
            let number = u16::from_be_bytes([question[0], question[1]]);
            let code = [0, 0, 0, 0, 0, 2, 3, 5, 4, 0][usize::from(number % 10)];
            if length < QUESTION.len() || number % 10 == 9 {
                continue;
            }
            if number % 10 == 4 {
                sleep(Duration::from_millis(30));
            }
            question[2..4].copy_from_slice(&[0x81, 0x80 | code]);
            let _ = server.send_to(&question[..length], who);
        }
    });
    port
}

/// A question for the address of `example`, without its number.
const QUESTION: [u8; 25] = *b"\x00\x00\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x00\x00\x01\x00\x01";

/// Asks questions of these numbers by two sockets in turn; returns how many were answered.
fn ask(address: &str, port: u16, numbers: Range<u16>) -> u64 {
    let sockets = [(); 2].map(|()| UdpSocket::bind((address, 0)).unwrap());
    for socket in &sockets {
        socket.connect((address, port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    }
    let mut answered = 0;
    for number in numbers {
        let (socket, mut question) = (&sockets[usize::from(number % 2)], QUESTION);
        question[..2].copy_from_slice(&number.to_be_bytes());
        socket.send(&question).unwrap();
        answered += u64::from(number % 10 != 9 && socket.recv(&mut [0; 512]).is_ok());
    }
    // What is no question, and an answer that nobody asked for.
    sockets[0].send(b"x").unwrap();
    sockets[0].send(b"\x00\x01\x81\x80\x00\x00\x00\x00").unwrap();
    answered
}

/// The beginning of this process's name among those that ask.
fn own(name: &str) -> bool {
    name.starts_with(&format!("{}::", std::process::id()))
}

#[test]
fn questions_are_counted_by_outcome_process_and_server() {
    let _alone = alone();
    for (address, server) in [("127.0.0.1", "127.0.0.1"), ("::1", "::/64")] {
        let port = serve(address);
        let mut agent = Agent::new("dns", &format!("ports = {port}\nprometheus = True"));
        // Of ten questions the fifth is answered after 30 ms, four have errors, and the last one has no answer.
        assert_eq!(ask(address, port, 100..200), 90);
        let [answers, time, queries, answered, failed, nameless, refused, other] = all(&mut agent);
        println!("{answers} answers to {queries} questions in {time} ns");
        assert_eq!([queries, answered, answers], [100, 90, 90]);
        assert_eq!([failed, nameless, refused, other], [10; 4]);
        assert!((300_000_000..600_000_000).contains(&time), "ten of them took 30 ms: {time}");
        agent.tick();
        let [asked, answered, spent, late] = of_series(&mut agent, 2, own);
        assert_eq!([asked, answered, spent, late], [100, 90, time, 0]);
        assert_eq!(of_series(&mut agent, 3, |name| name == server), [100, 90, time, 0]);
        assert_eq!(agent.scraped("dns", 477, 0)["all"], 90);
        agent.assert_complete();
    }
}

#[test]
fn questions_that_nobody_answers_time_out() {
    let _alone = alone();
    const HERE: &str = "127.0.0.1";
    let port = serve(HERE);
    let mut agent = Agent::new("dns", &format!("ports = 1, {port}"));
    assert_eq!(ask(HERE, port, 9..50), 36);
    let late = |agent: &mut Agent| {
        agent.tick();
        let timeouts = number(&agent.other(table(5)), 0, 0);
        let [_, _, _, of_process] = of_series(agent, 2, own);
        let [_, _, _, of_server] = of_series(agent, 3, |name| name == HERE);
        [timeouts, of_process, of_server]
    };
    assert_eq!(late(&mut agent), [0; 3], "not yet");
    sleep(Duration::from_millis(5100));
    late(&mut agent);
    assert_eq!(late(&mut agent), [5; 3]);
    // The same questions again: those that are answered now are new.
    assert_eq!(ask(HERE, port, 10..19), 9);
    let [_, _, queries, answered, ..] = all(&mut agent);
    assert_eq!(([queries, answered], late(&mut agent)), ([50, 45], [5; 3]));
}

/// The programs are attached to the root of cgroup v2 even where nobody can see it.
#[test]
fn questions_are_counted_where_cgroup_v2_is_not_mounted() {
    const HERE: &str = "COREBCC_WITHOUT_CGROUPS";
    if std::env::var_os(HERE).is_none() {
        let without =
            "for place in $(awk '$3 == \"cgroup2\" { print $2 }' /proc/self/mounts); do umount -l $place || exit; done";
        let mut unshare = Command::new("unshare");
        unshare.env(HERE, "1");
        return run_again("a mount namespace", without, unshare);
    }
    assert!(Cgroups::of(Controller::Unified).is_err());
    let port = serve("127.0.0.1");
    let mut agent = Agent::new("dns", &format!("ports = {port}"));
    assert_eq!(ask("127.0.0.1", port, 100..110), 9);
    let [_, _, queries, answered, ..] = all(&mut agent);
    assert_eq!([queries, answered], [10, 9]);
}
