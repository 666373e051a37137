//! The load of tests/vm and benches/beside, written with std only: `load DISK... [repeat-segments]` does a known number
//! of operations of each kind, prints a line `NAME NUMBER` for each number that the modules must show, then `done`, and
//! stays alive so that its row does. Started under any other name it ends at once: an exec to be counted. Nothing else
//! on that machine makes the calls that it repeats often, so that there is one right count with a filter and without.

use std::ffi::{c_int, c_long};
use std::fs::{read_to_string, File, OpenOptions};
use std::hint::black_box;
use std::io::{Error, Read, Result, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

const O_DIRECT: i32 = if cfg!(target_arch = "aarch64") { 0o200000 } else { 0o40000 };
const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;
const AT_ONCE: usize = 32;
const SENDS: u64 = 100;
const SEND: usize = 1000;
const ANSWERS: u64 = 10;
const ANSWER: usize = 500;
const DATAGRAMS: u64 = 50;
const DATAGRAM: usize = 200;
const SESSIONS: u64 = 3;
const CHILDREN: u64 = 20;
const ROUNDS: u64 = 2000;
const PASSES: u64 = 700;
const CALLS: u64 = 900;
const FAILED_CALLS: u64 = 100;
const TIMERS: u64 = 400;
const FUNCTION_CALLS: u64 = 300;

fn main() -> Result<()> {
    let mut arguments = std::env::args();
    if arguments.next().is_none_or(|name| !name.ends_with("load")) {
        return Ok(());
    }
    let (disks, more): (Vec<String>, Vec<String>) = arguments.partition(|argument| argument.starts_with('/'));
    for disk in &disks {
        read_and_write(disk)?;
    }
    for address in ["127.0.0.1:0", "[::1]:0"] {
        for _ in 0..SESSIONS {
            converse(address)?;
        }
        send_datagrams(address)?;
    }
    for _ in 0..CHILDREN {
        Command::new("/bin/counted").status()?;
        thread::spawn(|| ()).join().expect("it does nothing");
    }
    play_ping_pong();
    (0..PASSES).for_each(|_| pass_probe());
    for number in 0..FUNCTION_CALLS {
        black_box(called(number));
    }
    call_the_kernel()?;
    if more.iter().any(|word| word == "repeat-segments") {
        repeat_segments()?;
    }

    let sessions = 2 * SESSIONS;
    let requests = 2 * (BLOCKS + AT_ONCE as u64);
    println!("requests_per_disk {requests}");
    println!("bytes_per_disk {}", requests * BLOCK as u64);
    println!("sessions {}", 2 * sessions);
    println!("session_to_server {}", SENDS * SEND as u64);
    println!("session_to_client {}", ANSWERS * ANSWER as u64);
    println!("tcp_calls {}", sessions * (SENDS + ANSWERS));
    println!("tcp_bytes {}", sessions * (SENDS * SEND as u64 + ANSWERS * ANSWER as u64));
    println!("tcp_calls_of_main_thread {}", sessions * SENDS);
    println!("udp_calls {}", 2 * DATAGRAMS);
    println!("udp_bytes {}", 2 * DATAGRAMS * DATAGRAM as u64);
    println!("children {CHILDREN}");
    println!("switches {ROUNDS}");
    println!("passes {PASSES}");
    println!("calls {}", CALLS + FAILED_CALLS);
    println!("failed_calls {FAILED_CALLS}");
    println!("timers {TIMERS}");
    println!("function_calls {FUNCTION_CALLS}");
    println!("done");
    loop {
        thread::park();
    }
}

/// Reads and writes past the page cache, a request each: one at a time, then many at once, then a flush.
fn read_and_write(disk: &str) -> Result<()> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(O_DIRECT).open(disk)?;
    let mut buffer = vec![0u8; (AT_ONCE + 1) * BLOCK];
    let at = buffer.as_ptr().align_offset(BLOCK);
    let blocks = &mut buffer[at..at + AT_ONCE * BLOCK];
    for i in 0..BLOCKS {
        file.write_all_at(&blocks[..BLOCK], i * BLOCK as u64)?;
        file.read_exact_at(&mut blocks[..BLOCK], i * BLOCK as u64)?;
    }
    submit_at_once(&file, blocks, aio::PWRITE)?;
    submit_at_once(&file, blocks, aio::PREAD)?;
    file.sync_data()
}

/// Submits every other block of the disk in one call: the requests wait in the task's plug until all are there, and the
/// disk may complete several in one interrupt. None is next to another, so that none are merged.
fn submit_at_once(file: &File, blocks: &mut [u8], operation: u16) -> Result<()> {
    let requests: Vec<aio::Request> = (blocks.chunks_exact_mut(BLOCK).enumerate())
        .map(|(i, block)| aio::Request {
            operation,
            file: file.as_raw_fd(),
            buffer: block.as_mut_ptr() as u64,
            bytes: BLOCK as u64,
            offset: 2 * i as u64 * BLOCK as u64,
            ..aio::Request::default()
        })
        .collect();
    let pointers: Vec<*const aio::Request> = requests.iter().map(|request| request as _).collect();
    let mut done = [aio::Event::default(); AT_ONCE];
    let mut context: u64 = 0;
    let all = |returned: c_long| (returned == AT_ONCE as c_long).then_some(()).ok_or_else(Error::last_os_error);
    // SAFETY: what the kernel reads and writes lives until all requests are done, which the third call waits for.
    unsafe {
        if aio::syscall(aio::SETUP, AT_ONCE as c_long, &mut context) != 0 {
            return Err(Error::last_os_error());
        }
        all(aio::syscall(aio::SUBMIT, context, AT_ONCE as c_long, pointers.as_ptr()))?;
        all(aio::syscall(aio::GETEVENTS, context, AT_ONCE as c_long, AT_ONCE as c_long, done.as_mut_ptr(), 0usize))?;
        aio::syscall(aio::DESTROY, context);
    }
    assert!(done.iter().all(|event| event.result == BLOCK as i64), "a request failed");
    Ok(())
}

/// Asynchronous I/O of the kernel (linux/aio_abi.h).
mod aio {
    use std::ffi::c_long;

    pub const PREAD: u16 = 0;
    pub const PWRITE: u16 = 1;
    const X86_64: bool = cfg!(target_arch = "x86_64");
    pub const SETUP: c_long = if X86_64 { 206 } else { 0 };
    pub const DESTROY: c_long = if X86_64 { 207 } else { 1 };
    pub const SUBMIT: c_long = if X86_64 { 209 } else { 2 };
    pub const GETEVENTS: c_long = if X86_64 { 208 } else { 4 };

    #[repr(C)]
    #[derive(Default)]
    pub struct Request {
        pub data: u64,
        pub key: [u32; 2],
        pub operation: u16,
        pub priority: i16,
        pub file: i32,
        pub buffer: u64,
        pub bytes: u64,
        pub offset: u64,
        pub rest: [u64; 2],
    }

    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    pub struct Event {
        request: [u64; 2],
        pub result: i64,
        second_result: i64,
    }

    extern "C" {
        pub fn syscall(number: c_long, ...) -> c_long;
    }
}

/// Runs a TCP session: the client sends all its data, the server answers, the client closes first.
fn converse(address: &str) -> Result<()> {
    let listener = TcpListener::bind(address)?;
    let address = listener.local_addr()?;
    let server = thread::spawn(move || -> Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.read_exact(&mut vec![0; SENDS as usize * SEND])?;
        for _ in 0..ANSWERS {
            stream.write_all(&[0; ANSWER])?;
        }
        stream.read_to_end(&mut Vec::new())?;
        Ok(())
    });
    let mut stream = TcpStream::connect(address)?;
    for _ in 0..SENDS {
        stream.write_all(&[0; SEND])?;
    }
    stream.read_exact(&mut vec![0; ANSWERS as usize * ANSWER])?;
    drop(stream);
    server.join().expect("it does not panic")
}

fn send_datagrams(address: &str) -> Result<()> {
    let (from, to) = (UdpSocket::bind(address)?, UdpSocket::bind(address)?);
    from.connect(to.local_addr()?)?;
    for _ in 0..DATAGRAMS {
        from.send(&[0; DATAGRAM])?;
        to.peek(&mut [0; DATAGRAM])?;
        to.recv(&mut [0; DATAGRAM])?;
    }
    Ok(())
}

/// Runs two threads that wait for each other: each round is at least one arrival of a thread on a CPU.
fn play_ping_pong() {
    let ((ping, pinged), (pong, ponged)) = (channel(), channel());
    let other = thread::spawn(move || pinged.iter().try_for_each(|()| pong.send(())));
    for _ in 0..ROUNDS {
        let answered = ping.send(()).is_ok() && ponged.recv().is_ok();
        assert!(answered, "the other thread ended early");
    }
    drop(ping);
    let _ = other.join();
}

extern "C" {
    fn sched_rr_get_interval(process: c_int, interval: *mut [c_long; 2]) -> c_int;
    fn setitimer(which: c_int, new: *const [c_long; 4], old: *mut [c_long; 4]) -> c_int;
    fn listen(socket: c_int, backlog: c_int) -> c_int;
}

/// Makes system calls, some of which fail, and some with a tracepoint in each.
fn call_the_kernel() -> Result<()> {
    const ITIMER_VIRTUAL: c_int = 1;
    let mut interval = [0; 2];
    let all = |returned: bool| returned.then_some(()).ok_or_else(Error::last_os_error);
    // SAFETY: they read and write what is given to them; a timer of 0 never ends.
    unsafe {
        (0..CALLS).try_for_each(|_| all(sched_rr_get_interval(0, &mut interval) == 0))?;
        (0..FAILED_CALLS).try_for_each(|_| all(sched_rr_get_interval(-1, &mut interval) == -1))?;
        (0..TIMERS).try_for_each(|_| all(setitimer(ITIMER_VIRTUAL, &[0; 4], std::ptr::null_mut()) == 0))
    }
}

/// Function for uprobe_hits.
#[no_mangle]
#[inline(never)]
pub extern "C" fn called(number: u64) -> u64 {
    black_box(number) + 1
}

/// Connects, over IPv4 and IPv6 at once, to listeners with full queues: they drop the SYN, which is repeated a second
/// later, and a second after that the connection is given up. The kernel itself reports how many were repeated.
fn repeat_segments() -> Result<()> {
    let mut full = Vec::new();
    for (name, address) in [("full_port_ipv4", "127.0.0.1:0"), ("full_port_ipv6", "[::1]:0")] {
        let listener = TcpListener::bind(address)?;
        // SAFETY: the descriptor lives; a listener that listens again has another limit.
        if unsafe { listen(listener.as_raw_fd(), 0) } != 0 {
            return Err(Error::last_os_error());
        }
        let address = listener.local_addr()?;
        println!("{name} {}", address.port());
        full.push((address, TcpStream::connect(address)?, listener));
    }
    let before = segments_repeated()?;
    let give_up = |address: SocketAddr| TcpStream::connect_timeout(&address, Duration::from_secs(2)).is_err();
    let given_up = full.iter().map(|&(address, ..)| thread::spawn(move || give_up(address))).collect::<Vec<_>>();
    let all = given_up.into_iter().all(|thread| thread.join().expect("it does not panic"));
    assert!(all, "a full listener took a connection");
    println!("repeated_segments {}", segments_repeated()? - before);
    Ok(())
}

fn segments_repeated() -> Result<u64> {
    let text = read_to_string("/proc/net/snmp")?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp:")).map(str::split_whitespace);
    let (names, values) = (lines.next().into_iter().flatten(), lines.next().into_iter().flatten());
    let found = names.zip(values).find(|(name, _)| *name == "RetransSegs").and_then(|(_, value)| value.parse().ok());
    found.ok_or_else(|| Error::other("/proc/net/snmp has no RetransSegs"))
}

/// Semaphore: above 0 while somebody is attached to the probe.
#[no_mangle]
#[link_section = ".probes"]
static LOAD_PROBE_USERS: AtomicU16 = AtomicU16::new(0);

/// Hits the USDT probe load:passed, like code of sys/sdt.h, if it is in use.
fn pass_probe() {
    if LOAD_PROBE_USERS.load(Relaxed) == 0 {
        return;
    }
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    // SAFETY: it does nothing; the note is for those who read the file.
    unsafe {
        std::arch::asm!(
            "990: nop",
            r#".pushsection .note.stapsdt,"","note""#,
            ".balign 4",
            ".4byte 992f-991f, 994f-993f, 3",
            r#"991: .asciz "stapsdt""#,
            "992: .balign 4",
            "993: .8byte 990b, 0, LOAD_PROBE_USERS",
            r#".asciz "load", "passed", """#,
            "994: .balign 4",
            ".popsection",
        );
    }
}
