//! The walks of docs/connections.md, docs/waits.md, docs/network.md and docs/virtual-machines.md, followed: their commands, while the services
//! that each describes run, say what the page says of their output.

use crate::support::slow_disk::SlowDisk;
use crate::support::{lacks, lacks_bpf, lacks_host_pids, skip, told, wait_for, Group, Home, Proc, ONE};
use corebcc::host::{Cgroups, Controller};
use nix::sys::signal::Signal;
use std::fs;
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Runs the commands of a page with `show`, some side by side, and returns the lines of each as words.
fn follow<const N: usize>(page: &str) -> [Vec<Vec<String>>; N] {
    let home = Home::new(ONE);
    let commands = page.lines().filter_map(|line| line.strip_prefix("sudo pmdacorebcc ")?.split(" | ").next());
    let commands: Vec<Vec<&str>> = commands.map(|command| command.split(' ').collect()).collect();
    // No more at once: names of stacks are found for a part of each second only.
    let some = commands.chunks(4).flat_map(|commands| {
        thread::scope(|scope| {
            let running: Vec<_> = commands.iter().map(|command| scope.spawn(|| home.run(command))).collect();
            running.into_iter().map(|command| command.join().unwrap()).collect::<Vec<Output>>()
        })
    });
    let outputs: [Output; N] = some.collect::<Vec<_>>().try_into().expect("the number of commands of the page");
    outputs.map(|output| {
        assert!(output.status.success(), "{}", told(&output));
        println!("{}", told(&output));
        let words = |line: &str| line.split_whitespace().map(String::from).collect();
        String::from_utf8_lossy(&output.stdout).lines().map(words).collect()
    })
}

/// Returns the rows of a table, below the line with its name and that of the columns.
fn rows<'a>(lines: &'a [Vec<String>], metric: &str) -> &'a [Vec<String>] {
    let begin = lines.iter().position(|line| line.first().is_some_and(|first| first == metric));
    let rows = &lines[begin.unwrap_or_else(|| panic!("no {metric}: {lines:?}")) + 2..];
    &rows[..rows.iter().position(Vec::is_empty).unwrap_or(rows.len())]
}

fn number(word: &str) -> f64 {
    word.parse().unwrap_or_else(|_| panic!("{word} is no number"))
}

/// One walk at a time: each looks at all that the machine does.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn the_walk_of_the_page_about_connections_is_true() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if lacks_bpf() || lacks_host_pids() || lacks(&["/usr/bin/python3"]) {
        return;
    }
    const PAGE: &str = include_str!("../../docs/connections.md");
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("connections.py");
    fs::write(&program, include_str!("../programs/connections.py")).unwrap();
    let mut command = Command::new("/usr/bin/python3");
    let _services = Group(Proc(command.arg(&program).arg("40").stdin(Stdio::null()).process_group(0).spawn().unwrap()));
    wait_for("the services", || TcpStream::connect("127.0.0.1:5002").ok());
    let [fails, connections, network, accepts, answers, sessions, files] = follow(PAGE);

    let both = |metric: &str| {
        let [row] = rows(&fails, metric) else { panic!("{metric}: one process has the name: {fails:?}") };
        [&row[row.len() - 2], &row[row.len() - 1]].map(|word| number(word))
    };
    let ([opened, failed], [files_opened, missing]) = (both("bcc.proc.connects"), both("bcc.proc.opens"));
    assert!(failed >= 10.0 && (opened - 3.0 * failed).abs() <= 3.0, "one in three fails");
    assert!(files_opened == missing && (missing - failed).abs() <= 2.0, "and each file");

    let shown: Vec<_> = rows(&connections, "bcc.net.tcp.connect").iter().filter(|row| row.len() == 4).collect();
    assert!(
        shown.len() >= 3 && shown.iter().all(|row| (row[1] == "5003") == (row[2] == "111")),
        "nobody listens on 5003"
    );

    let failed = rows(&network, "bcc.net.tcp.connect.peer")
        .iter()
        .find(|row| row[0] == "127.0.0.0/24" && row[1] == "peer.failed");
    assert!(number(&failed.unwrap()[2]) >= 10.0);

    let mean = |port: &str| number(&rows(&accepts, "bcc.net.tcp.accept").iter().find(|row| row[0] == port).unwrap()[3]);
    assert!(mean("5001") >= 5.0 && mean("5002") <= mean("5001") / 2.0, "stock accepts late, prices does not");

    let repeated = rows(&answers, "bcc.io.net.tcp.retrans.count");
    assert!(repeated.iter().any(|row| row[0].ends_with("::127.0.0.1:5004")), "audit does not answer");

    let shown = rows(&sessions, "bcc.proc.io.net.tcp").iter().filter(|row| row.len() == 9);
    let ends: Vec<[&str; 2]> = shown.map(|row| [&*row[6], &*row[7]]).collect();
    assert!(ends.len() >= 4 && ends.iter().all(|end| [["10", "7"], ["9", "0"]].contains(end)), "{ends:?}");
    assert!(ends.contains(&["9", "0"]), "one in four is reset");

    let row = &rows(&files, "bcc.file.open")[0];
    assert_eq!(row[1..], ["2", "shop", "/etc/shop/prices.conf"]);
}

#[test]
fn the_walk_of_the_page_about_waits_is_true() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if lacks_bpf() || lacks_host_pids() || lacks(&["cc", "nm"]) {
        return;
    }
    const PAGE: &str = include_str!("../../docs/waits.md");
    let Some(slow) = SlowDisk::new(&[2, 2, 2, 25]) else { return };
    let place = tempfile::tempdir().unwrap();
    let [source, program] = ["service.c", "service"].map(|name| place.path().join(name));
    fs::write(&source, include_str!("../programs/service.c")).unwrap();
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", told(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    run(Command::new("cc").args(["-O1", "-no-pie", "-pthread", "-o"]).args([&program, &source]));
    let symbols = run(Command::new("nm").arg(&program));
    let lock = symbols.lines().find(|line| line.ends_with(" index_lock")).and_then(|line| line.split(' ').next());
    let lock = &lock.unwrap()[4..]; // a user address has 48 bits
    let service = Proc(Command::new(&program).arg(&slow.device).stdin(Stdio::null()).spawn().unwrap());
    let pid = format!("{:06}", service.pid());
    let [times, clients, server, locks, code, chains, disk, longest] = follow(PAGE);

    // service has four workers: while one reads, three wait for it.
    let row = rows(&times, "bcc.proc.offcpu").iter().find(|row| row[0] == pid).expect("the service");
    let [disk_time, net_time, lock_time] = [row.len() - 6, row.len() - 4, row.len() - 2].map(|at| number(&row[at]));
    assert!(
        lock_time > disk_time && disk_time > net_time,
        "lock {lock_time} ms, disk {disk_time} ms, net {net_time} ms"
    );
    let of_clients = rows(&clients, "bcc.sched.waits");
    let by_service = of_clients.iter().filter(|row| row[0].ends_with(&format!("::{pid}"))).count();
    assert_eq!(by_service, 4, "each client waits for the service");
    let by = |name: &str| rows(&server, "bcc.sched.waits").iter().find(|row| row[0] == format!("{pid}::{name}"));
    let time = |row: &Vec<String>| number(row.last().unwrap());
    assert!(by(&pid).map(time) > by("interrupt").map(time), "the service waits for itself more than for the disk");
    let [held] = rows(&locks, "bcc.proc.locks") else { panic!("one lock: {locks:?}") };
    assert_eq!(held[0], format!("{pid}::{lock}"));
    for frame in ["futex", "read"] {
        let is_shown = |line: &Vec<String>| line[0].starts_with("service;") && line[0].contains(frame);
        assert!(code.iter().any(is_shown), "{frame}: {code:?}");
    }
    for chain in
        [["futex_do_wait_[k]", "futex_wake_[k]"], ["read", "[interrupt]"], ["unix_stream_recvmsg_[k]", "client"]]
    {
        let [wait, waker] = chain;
        let is_shown = |line: &Vec<String>| {
            let ends = line[0].split_once(";--;").filter(|(wait, _)| wait.starts_with("service;"));
            ends.is_some_and(|(of, by)| of.contains(wait) && by.contains(waker))
        };
        assert!(chains.iter().any(is_shown), "{chain:?}: {chains:?}");
    }
    let of_disk = rows(&disk, "bcc.disk.dev.read.total").iter().find(|row| row[0] == slow.name());
    assert!(of_disk.is_some_and(|row| number(&row[3]) >= 5000.0), "its reads take milliseconds: {disk:?}");
    // Others may wait longer here.
    let longest = rows(&longest, "bcc.sched.offcpu.slowest").iter().find(|row| row[0] == "lock");
    assert!(longest.is_some_and(|row| row[4] != "service" || row[5] == "futex"), "{longest:?}");
}

/// A program that is told to end when it is dropped, and takes away what it has made.
struct Orderly(Proc);

impl Drop for Orderly {
    fn drop(&mut self) {
        self.0.signal(Signal::SIGTERM);
        let _ = self.0 .0.wait();
    }
}

/// Returns the row of a table with these first words.
fn row<'a>(lines: &'a [Vec<String>], metric: &str, first: &[&str]) -> &'a [String] {
    let found = rows(lines, metric).iter().find(|row| row.iter().zip(first).all(|(word, wanted)| word == wanted));
    found.unwrap_or_else(|| panic!("no {first:?} in {metric}: {lines:?}"))
}

/// True once a process has this name.
fn is_running(name: &str) -> bool {
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .any(|entry| fs::read_to_string(entry.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name))
}

#[test]
fn the_walk_of_the_page_about_the_network_is_true() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if lacks_bpf() || lacks_host_pids() || lacks(&["/usr/bin/python3", "ip"]) {
        return;
    }
    if !Path::new("/dev/net/tun").exists() {
        return skip("/dev/net/tun");
    }
    const PAGE: &str = include_str!("../../docs/network.md");
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("network.py");
    fs::write(&program, include_str!("../programs/network.py")).unwrap();
    fs::write(place.path().join("delays.py"), include_str!("../programs/delays.py")).unwrap();
    let mut command = Command::new("/usr/bin/python3");
    let _services = Group(Proc(command.arg(&program).arg("60").stdin(Stdio::null()).process_group(0).spawn().unwrap()));
    wait_for("the services", || is_running("web").then_some(()));
    let [way, names, asked, drops] = follow(PAGE);

    let peer = row(&way, "bcc.net.tcp", &["10.78.0.0/24", "peer"]);
    assert!(number(&peer[2]) >= 10.0 && (20.0..60.0).contains(&number(&peer[3])), "the way takes 20 ms: {peer:?}");
    let count = |operation: &str| number(&row(&names, "bcc.net.dns", &[operation])[1]);
    let [queries, answers, failed] = ["dns.queries", "dns.answers", "dns.errors.servfail"].map(count);
    assert!(
        queries >= 20.0 && (answers - 0.9 * queries).abs() <= 3.0,
        "one in ten has no answer: {answers} of {queries}"
    );
    assert!((failed - queries / 7.0).abs() <= 5.0, "one in seven fails: {failed} of {queries}");
    assert!(number(&row(&names, "bcc.net.dns.server", &["127.0.0.77"])[1]) >= queries);
    let by = rows(&asked, "bcc.proc.dns").iter().find(|row| row[0].ends_with("::web"));
    assert!(by.is_some_and(|row| number(&row[1]) >= 20.0), "{asked:?}");
    let full = number(&row(&drops, "bcc.net.udp.drop.count", &["8125"])[1]);
    assert!(full >= 50.0, "stats reads too slowly: {full}");
    let [resets] = rows(&drops, "bcc.net.tcp.resets") else { panic!("one row: {drops:?}") };
    assert!(resets.iter().all(|count| number(count) >= 3.0), "api resets one session in four: {resets:?}");
}

#[test]
fn the_walk_of_the_page_about_guests_is_true() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if lacks_bpf() || lacks_host_pids() || lacks(&["/usr/bin/python3", "losetup"]) {
        return;
    }
    if fs::File::options().read(true).write(true).open("/dev/kvm").is_err() {
        return skip("/dev/kvm");
    }
    if let Err(none) = Cgroups::of(Controller::BlockIo) {
        return skip(&none.to_string());
    }
    const PAGE: &str = include_str!("../../docs/virtual-machines.md");
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("guests.py");
    fs::write(&program, include_str!("../programs/guests.py")).unwrap();
    let _guests =
        Orderly(Proc(Command::new("/usr/bin/python3").arg(&program).arg("60").stdin(Stdio::null()).spawn().unwrap()));
    let image = Path::new("/dev/shm/corebcc-guests");
    wait_for("the guests", || image.exists().then_some(()));
    let [cpu, disk, emulator] = follow(PAGE);
    let wait = |guest: &str| number(&row(&cpu, "bcc.cgroup.runq", &[guest, "runq"])[3]);
    assert!(wait("/machine-web") > wait("/machine-db"), "web shares its CPU: {cpu:?}");
    let writes = row(&disk, "bcc.cgroup.disk", &["/machine-db", "write.total"]);
    assert!(number(&writes[2]) >= 1000.0, "{writes:?}");
    let exits = rows(&emulator, "bcc.kvm.user.count").iter().find(|row| row[0].ends_with("::db::IO"));
    assert!(exits.is_some_and(|row| number(&row[1]) >= 1000.0), "{emulator:?}");
}
