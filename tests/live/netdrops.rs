//! netdrops against datagrams and resets of known number, and against the kernel's counts in /proc/net/snmp.

use crate::support::{alone, names, number, Agent};
use corebcc::host::btf_encoding::{enumerators, KERNEL_TYPES};
use corebcc::kit::TableSpec;
use corebcc::modules::find;
use nix::sys::socket::{setsockopt, sockopt};
use std::fs;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;

fn table(nth: usize) -> &'static TableSpec {
    find("netdrops").unwrap().tables[nth]
}

/// Returns a number of /proc/net/snmp.
fn snmp(protocol: &str, name: &str) -> u64 {
    let text = fs::read_to_string("/proc/net/snmp").unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with(&format!("{protocol}: ")));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split(' ').position(|word| word == name).unwrap();
    values.split(' ').nth(at).unwrap().parse().unwrap()
}

/// Returns the count of a series, 0 if it has not counted.
fn of_series(agent: &mut Agent, nth: usize, name: &str) -> u64 {
    let table = if nth == 0 { agent.table() } else { agent.other(table(nth)) };
    names(&table).iter().position(|other| other == name).map_or(0, |row| number(&table, row, 0))
}

/// Returns the names of all series with so many counts.
fn series_with(agent: &mut Agent, count: u64) -> Vec<String> {
    let table = agent.table();
    let all = names(&table).into_iter().enumerate();
    all.filter(|&(row, _)| number(&table, row, 0) == count).map(|(_, name)| name).collect()
}

fn resets(agent: &mut Agent) -> [u64; 2] {
    let table = agent.other(table(2));
    [0, 1].map(|column| number(&table, 0, column))
}

/// Sends datagrams to a socket that nobody reads until it is full; returns its port and how many found no room.
fn overflow() -> (u16, u64) {
    const SENT: u64 = 500;
    let full = UdpSocket::bind("127.0.0.1:0").unwrap();
    setsockopt(&full, sockopt::RcvBuf, &4096).unwrap();
    let port = full.local_addr().unwrap().port();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..SENT {
        assert_eq!(sender.send_to(&[0; 100], ("127.0.0.1", port)).unwrap(), 100);
    }
    full.set_nonblocking(true).unwrap();
    let mut received = 0;
    while full.recv(&mut [0; 200]).is_ok() {
        received += 1;
    }
    (port, SENT - received)
}

/// Closes a number of connections by a reset.
fn abort(times: usize) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for _ in 0..times {
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let other = listener.accept().unwrap().0;
        let at_once = nix::libc::linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&one, sockopt::Linger, &at_once).unwrap();
        assert!(one.as_raw_fd() != other.as_raw_fd());
        drop(one);
    }
}

/// Connects to a port where nobody listens.
fn knock(times: usize) {
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    for _ in 0..times {
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "somebody listens at {port}");
    }
}

fn drops_are_counted(mut agent: Agent) {
    let reason = "SOCKET_RCVBUFF";
    let before = (snmp("Udp", "RcvbufErrors"), of_series(&mut agent, 0, reason));
    let (port, dropped) = overflow();
    let kernel = snmp("Udp", "RcvbufErrors") - before.0;
    println!("{dropped} datagrams without room, of which /proc/net/snmp has {kernel}");
    assert!(dropped > 100 && kernel == dropped, "{dropped}, {kernel}");
    let at_port = of_series(&mut agent, 1, &port.to_string());
    let of_reason = of_series(&mut agent, 0, reason) - before.1;
    agent.assert_counted([at_port], [dropped]);
    match enumerators(&fs::read(KERNEL_TYPES).unwrap(), "skb_drop_reason").is_empty() {
        false => agent.assert_counted([of_reason], [dropped]),
        true => {
            let places = series_with(&mut agent, dropped);
            assert!(places.iter().any(|place| place.contains("udp")), "{places:?}");
        }
    }
    agent.assert_complete();
}

#[test]
fn datagrams_without_room_are_counted_by_reason_and_port() {
    let _alone = alone();
    drops_are_counted(Agent::new("netdrops", ""));
}

#[test]
fn datagrams_without_room_count_the_same_with_probe_reads() {
    let _alone = alone();
    drops_are_counted(Agent::avoiding("tp_btf", "netdrops", ""));
}

#[test]
fn resets_are_those_that_the_kernel_counts() {
    const ABORTED: usize = 40;
    const REFUSED: usize = 30;
    let _alone = alone();
    let mut agent = Agent::new("netdrops", "");
    let before = (resets(&mut agent), snmp("Tcp", "OutRsts"));
    abort(ABORTED);
    let aborted = (resets(&mut agent), snmp("Tcp", "OutRsts"));
    let [sent, received] = [0, 1].map(|way| aborted.0[way] - before.0[way]);
    agent.assert_counted([sent, received, aborted.1 - before.1], [ABORTED as u64; 3]);
    knock(REFUSED);
    let refused = (resets(&mut agent), snmp("Tcp", "OutRsts"));
    let [sent, received] = [0, 1].map(|way| refused.0[way] - aborted.0[way]);
    println!(
        "{sent} resets sent and {received} received where nobody listens, by the kernel {}",
        refused.1 - aborted.1
    );
    assert_eq!(refused.1 - aborted.1, REFUSED as u64);
    // Before 6.10 the kernel does not tell of a reset that belongs to no socket.
    let told = !enumerators(&fs::read(KERNEL_TYPES).unwrap(), "sk_rst_reason").is_empty();
    agent.assert_counted([sent, received], [u64::from(told) * REFUSED as u64, REFUSED as u64]);
}
