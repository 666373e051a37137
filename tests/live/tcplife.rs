//! tcplife: sessions of known length and traffic over loopback. `tx` is the number of bytes that the other side acknowledged and `rx`
//! of those received, by the kernel's own counts, in which SYN and FIN are a byte each: `counts_of` tells which of them an end has.

use crate::support::{self, alone, part, Agent, Meeting, Script, IPV4, IPV6, MAPPED};

#[derive(Debug)]
struct Row {
    pid: u64,
    comm: String,
    laddr: String,
    lport: u64,
    daddr: String,
    dport: u64,
    tx: u64,
    rx: u64,
    duration: u64,
}

/// Returns the rows of sessions with this port at either end, the latest first.
fn rows(agent: &mut Agent, port: u64) -> Vec<Row> {
    let row = |row: &support::Row| Row {
        pid: row.number(0),
        comm: row.text(1),
        laddr: row.text(2),
        lport: row.number(3),
        daddr: row.text(4),
        dport: row.number(5),
        tx: row.number(6),
        rx: row.number(7),
        duration: row.number(8),
    };
    agent.rows().iter().map(row).filter(|row| row.lport == port || row.dport == port).collect()
}

/// Returns the rows of the connecting and of the accepting end of a session.
fn ends(agent: &mut Agent, port: u64) -> (Row, Row) {
    let mut rows = rows(agent, port);
    assert_eq!(rows.len(), 2, "{rows:?}");
    let at = rows.iter().position(|row| row.dport == port).expect("one end has it as its remote port");
    let connecting = rows.remove(at);
    (connecting, rows.remove(0))
}

fn server(family: &str, address: &str, rest: &str) -> Script {
    Script::python(&format!(
        "open('/proc/self/comm', 'w').write('corebccserver')
s = socket.socket(socket.{family})
if s.family == socket.AF_INET6: s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
s.bind(('{address}', 0)); s.listen(200)
say(s.getsockname()[1])
{rest}
"
    ))
}

fn client(address: &str, port: u64, rest: &str) -> Script {
    Script::python(&format!(
        "open('/proc/self/comm', 'w').write('corebccclient')
c = socket.create_connection(('{address}', {port}))
say(c.getsockname()[1])
{rest}
"
    ))
}

const SCRIPTS: &str = include_str!("../programs/tcplife.py");

fn session(meeting: &Meeting) {
    let mut agent = Agent::new("tcplife", "");
    let mut server = server(meeting.family, meeting.listen, &part(SCRIPTS, "serve"));
    let port = server.numbers()[0];
    let mut client = client(meeting.connect, port, &part(SCRIPTS, "ask"));
    let local = client.numbers()[0];
    assert_eq!(client.line(), "held");
    assert!(rows(&mut agent, port).is_empty(), "a session that lasts is no row");
    std::thread::sleep(std::time::Duration::from_millis(300));
    client.go();
    assert_eq!((client.line(), server.line()), ("closed".into(), "closed".into()));
    let (connecting, accepting) = ends(&mut agent, port);
    println!("{connecting:?}\n{accepting:?}");
    assert_eq!((connecting.lport, connecting.dport, accepting.lport, accepting.dport), (local, port, port, local));
    assert_eq!((&*connecting.laddr, &*connecting.daddr), (meeting.connect, meeting.connect));
    assert_eq!((&*accepting.laddr, &*accepting.daddr), (meeting.accepted, meeting.accepted));
    assert_eq!((connecting.pid, &*connecting.comm), (client.pid().into(), "corebccclient"));
    assert_eq!((accepting.pid, &*accepting.comm), (server.pid().into(), "corebccserver"));
    for end in [&connecting, &accepting] {
        assert!((300_000..10_000_000).contains(&end.duration), "{end:?}");
    }
    // Bytes of the stream, and: the connecting end's SYN and FIN were acknowledged; each end got the other's FIN.
    assert_eq!((connecting.tx, connecting.rx), (1000 + 2, 2000 + 1));
    assert_eq!((accepting.tx, accepting.rx), (2000 + 1, 1000 + 1));
    // Reading consumes nothing.
    assert_eq!(rows(&mut agent, port).len(), 2);
}

/// Addresses of an IPv4 session of an IPv6 socket are mapped.
#[test]
fn a_session_is_shown_in_full_for_both_ends_in_each_family() {
    let _alone = alone();
    [IPV4, IPV6, MAPPED].iter().for_each(session);
}

#[test]
fn an_exit_closes_for_the_process_that_exits() {
    let _alone = alone();
    let mut agent = Agent::new("tcplife", "");
    let mut server = server("AF_INET", "127.0.0.1", "d, _ = s.accept()\nd.sendall(b'bye')\nos._exit(0)");
    let port = server.numbers()[0];
    let mut client = client("127.0.0.1", port, "while c.recv(10): pass\nsay('end')\nos._exit(0)");
    client.line();
    assert_eq!(client.line(), "end");
    let (of_client, of_server) = (client.pid(), server.pid());
    client.end();
    server.end();
    let (connecting, accepting) = ends(&mut agent, port);
    assert_eq!((connecting.pid, accepting.pid), (of_client.into(), of_server.into()));
    assert_eq!((&*connecting.comm, &*accepting.comm), ("corebccclient", "corebccserver"));
    assert_eq!((accepting.tx, connecting.rx), (4, 4));
}

#[test]
fn a_reset_ends_both_ends_and_the_one_that_reset_is_known() {
    let _alone = alone();
    let mut agent = Agent::new("tcplife", "");
    let rest =
        "d, _ = s.accept()\nd.recv(5)\nd.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))\n\
        d.close()\nstep('reset')";
    let mut server = server("AF_INET", "127.0.0.1", rest);
    let port = server.numbers()[0];
    let rest = "c.sendall(b'hello')\ntry: c.recv(1)\nexcept ConnectionResetError: step('reset')";
    let mut client = client("127.0.0.1", port, rest);
    client.line();
    assert_eq!((client.line(), server.line()), ("reset".into(), "reset".into()));
    let (connecting, accepting) = ends(&mut agent, port);
    println!("{connecting:?}\n{accepting:?}");
    assert_eq!((connecting.pid, accepting.pid), (client.pid().into(), server.pid().into()));
    assert_eq!((connecting.tx, connecting.rx, accepting.tx, accepting.rx), (5 + 1, 0, 0, 5));
}

/// The session closes in an interrupt, during any process.
#[test]
fn a_reset_session_belongs_to_who_accepted_it() {
    let _alone = alone();
    // The kernel shows no return of a call that had begun before.
    let rest = "step('listens')\nd, _ = s.accept()\nassert d.recv(5) == b'hello'\nstep('sleeps')";
    let mut server = server("AF_INET", "127.0.0.1", rest);
    let port = server.numbers()[0];
    let mut agents =
        [format!("lport = {port}"), format!("process = {}", server.pid()), "process = corebccserver".into()]
            .map(|options| Agent::new("tcplife", &options));
    assert_eq!(server.line(), "listens");
    server.go();
    let rest = "c.sendall(b'hello')\nstep('sent')\n\
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))\nc.close()\nstep('reset')";
    let mut client = client("127.0.0.1", port, rest);
    client.line();
    assert_eq!((client.line(), server.line()), ("sent".into(), "sleeps".into()));
    client.go();
    client.line();
    for agent in &mut agents {
        let rows = rows(agent, port);
        println!("{rows:?}");
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].pid, &*rows[0].comm), (server.pid().into(), "corebccserver"));
        assert_eq!((rows[0].tx, rows[0].rx), (0, 5));
    }
}

#[test]
fn eight_thousand_sessions_open_at_once_all_become_rows() {
    const SESSIONS: usize = 8000;
    let _alone = alone();
    let mut script = Script::python(&part(SCRIPTS, "open at once").replace("SESSIONS", &SESSIONS.to_string()));
    let port = script.numbers()[0];
    let mut agent = Agent::new("tcplife", &format!("lport = {port}\nsession_count = 10000\nbuffer_page_count = 1024"));
    script.go();
    assert_eq!(script.line(), "open");
    script.go();
    assert_eq!(script.line(), "closed");
    let rows = rows(&mut agent, port);
    assert_eq!(rows.len(), SESSIONS);
    assert!(rows.iter().all(|row| row.pid == u64::from(script.pid())));
    assert!(agent.warnings().iter().all(|line| line.contains("not seen")), "of others: {:?}", agent.warnings());
}

#[test]
fn a_refused_connection_leaves_no_wrong_row() {
    let _alone = alone();
    let mut agent = Agent::new("tcplife", "");
    let mut script = Script::part(SCRIPTS, "refused");
    let port = script.numbers()[0];
    let rows = rows(&mut agent, port);
    let ends: Vec<_> = rows.iter().map(|row| (row.pid, row.dport, row.tx, row.rx)).collect();
    assert_eq!(ends, [(script.pid().into(), port, 0, 0)], "the end that connected, and no other: {rows:?}");
}

/// Starts a script that runs a number of sessions one after the other.
fn many(orders: &str) -> Script {
    Script::python(&(part(SCRIPTS, "many") + orders))
}

#[test]
fn a_burst_beyond_the_ring_counts_as_dropped_and_rows_remain() {
    let _alone = alone();
    let mut agent = Agent::new("tcplife", "buffer_page_count = 1\nsession_count = 10000");
    let mut script = many("sessions(300)\nstep('done')");
    let port = script.numbers()[0];
    script.go();
    script.line();
    let kept = rows(&mut agent, port).len() as u64;
    let warnings = agent.warnings();
    let dropped: u64 = warnings.iter().filter_map(|line| line.split(' ').next()?.parse::<u64>().ok()).sum();
    println!("{kept} kept, {dropped} dropped: {warnings:?}");
    assert!(warnings.iter().any(|line| line.contains("buffer_page_count should be increased")), "{warnings:?}");
    // 4 KB have room for some 40 records; others' sessions can be among either.
    let page = corebcc::host::page_size() / 4096;
    assert!((20 * page..=50 * page).contains(&kept), "{kept}");
    assert!((600..620).contains(&(kept + dropped)), "{kept} and {dropped}");
    // There is room again.
    drop(script);
    let mut script = many("sessions(3)\nstep('done')");
    let port = script.numbers()[0];
    script.go();
    script.line();
    assert_eq!(rows(&mut agent, port).len(), 6);
}

#[test]
fn the_rows_are_the_latest_sessions() {
    let _alone = alone();
    let mut script = many("step(*sessions(20))");
    let port = script.numbers()[0];
    let mut agent = Agent::new("tcplife", &format!("session_count = 5\nlport = {port}"));
    script.go();
    let mut clients = script.numbers();
    clients.reverse();
    let shown: Vec<u64> = rows(&mut agent, port).iter().map(|row| row.dport).collect();
    assert_eq!(shown, clients[..5], "of the accepting ends, the latest first");
    assert_eq!(agent.table().len(), 5);
}

#[test]
fn ports_and_processes_filter() {
    let _alone = alone();
    let mut script = many("sessions(4)\nstep('done')");
    let port = script.numbers()[0];
    let options = [
        (format!("lport = {port}"), 4),
        (format!("dport = {port}"), 4),
        (format!("lport = {port}\ndport = {port}"), 0),
        (format!("process = {}", script.pid()), 8),
        ("process = 1".to_string(), 0),
    ];
    let mut agents: Vec<_> = options.iter().map(|(text, rows)| (Agent::new("tcplife", text), text, *rows)).collect();
    script.go();
    script.line();
    for (agent, text, expected) in &mut agents {
        agent.tick();
        assert_eq!(rows(agent, port).len(), *expected, "{text}");
    }
}
