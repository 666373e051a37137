//! fsslower on file systems that answer after 60 ms: each operation that waits has a row, and no other.

use crate::common::skip;
use crate::disks::Mapped;
use crate::files::{with_end, FileSystem, BTRFS, EXT4, F2FS, NFS, XFS};
use crate::support::{alone, number, settle, Agent, Disk, Row};
use corebcc::modules::find;
use nix::mount::{mount, umount2, MntFlags, MsFlags};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

const O_SYNC: i32 = 0o4010000;
const O_DIRECT: i32 = if cfg!(target_arch = "aarch64") { 0o200000 } else { 0o40000 };

/// Milliseconds that each request takes, and from which on an operation is slow: a processor that is emulated takes its time, too.
const DELAY: u64 = 60;
const SLOW: u64 = 40;

/// Writes 4 times and syncs each time, reads 8 blocks around the page cache, appends 3 times, synchronously, and reads all. Returns the letters
/// of the operations that took long, in their order, with their nanoseconds.
fn work(path: &Path) -> Vec<(char, u64)> {
    let mut times = Vec::new();
    let mut timed = |letter, operation: &mut dyn FnMut()| {
        let begin = Instant::now();
        operation();
        times.push((letter, begin.elapsed().as_nanos() as u64));
    };
    let mut file = None;
    let mut open = |timed: &mut dyn FnMut(char, &mut dyn FnMut()), options: &OpenOptions| {
        timed('O', &mut || file = Some(options.open(path).unwrap()));
        file.take().unwrap()
    };
    let mut file = open(&mut timed, OpenOptions::new().create_new(true).write(true));
    for part in 0..4 {
        timed('W', &mut || file.write_all(&[part; 8192]).unwrap());
        timed('F', &mut || file.sync_all().unwrap());
    }
    let mut file = open(&mut timed, OpenOptions::new().read(true).custom_flags(O_DIRECT));
    let mut buffer = vec![0u8; 8192];
    let at = buffer.as_ptr().align_offset(4096);
    for _ in 0..8 {
        timed('R', &mut || assert_eq!(file.read(&mut buffer[at..at + 4096]).unwrap(), 4096));
    }
    let mut file = open(&mut timed, OpenOptions::new().append(true).custom_flags(O_SYNC));
    for _ in 0..3 {
        timed('W', &mut || file.write_all(&[7; 100]).unwrap());
    }
    let mut file = open(&mut timed, OpenOptions::new().read(true));
    timed('R', &mut || assert_eq!(file.read(&mut [0; 65536]).unwrap(), 4 * 8192 + 300));
    times.retain(|(_, time)| *time >= SLOW * 1_000_000);
    times
}

const PID: usize = 0;
const OP: usize = 2;
const FS: usize = 3;
const NAME: usize = 4;
const BYTES: usize = 5;
const OFFSET: usize = 6;
const ERR: usize = 7;
const LAT: usize = 8;

/// Works in a directory of a slow file system. Its numbers are those of slow opens, reads, writes and syncs, and of syncs inside of writes.
fn each_wait_has_a_row(file_system: &str, directory: &Path, [opens, reads, writes, syncs, inside]: [usize; 5]) {
    let own = format!("process = {}\nmin_ms = {SLOW}\nprocess_count = 100", std::process::id());
    let Some(mut agent) = Agent::where_possible("fexit or kprobes", "fsslower", &own) else { return };
    let mut times = work(&directory.join("slow-file"));
    // A disk's file system has created a file before it opens it.
    times.retain(|(letter, _)| opens > 0 || *letter != 'O');
    settle();
    let mut rows = agent.rows();
    let counts = agent.other(find("fsslower").unwrap().tables[1]);
    rows.reverse();
    println!("{times:?}\n{rows:#?}");
    assert_eq!([0, 1].map(|column| number(&counts, 0, column)), [rows.len() as u64, 0]);
    assert_eq!(agent.warnings(), [""; 0]);
    let of_file = |row: &Row| row.number(PID) == u64::from(std::process::id()) && row.text(NAME) == "slow-file";
    assert!(rows.iter().all(|row| of_file(row) && row.text(FS) == file_system && row.number(ERR) == 0));
    let of = |op: &str| rows.iter().filter(|row| row.text(OP) == op).collect::<Vec<_>>();
    let [opened, read, written, synced] = ["O", "R", "W", "F"].map(of);
    let numbers = [&opened, &read, &written, &synced].map(|rows| rows.len());
    assert_eq!(numbers, [opens, reads, writes, syncs + inside], "opens, reads, writes, syncs");
    let places = |rows: &[&Row]| rows.iter().map(|row| (row.number(OFFSET), row.number(BYTES))).collect::<Vec<_>>();
    assert_eq!(
        places(&read[..reads.min(8)]),
        (0..reads.min(8) as u64).map(|block| (block * 4096, 4096)).collect::<Vec<_>>()
    );
    let appended = &written[writes - 3..];
    assert_eq!(places(appended), (0..3).map(|block| (4 * 8192 + block * 100, 100)).collect::<Vec<_>>());
    let is_inside = |row: &Row| synced[syncs..].iter().any(|inside| inside.id == row.id);
    let outside: Vec<&Row> = rows.iter().filter(|row| !is_inside(row)).collect();
    assert_eq!(outside.len(), times.len());
    for (row, (letter, time)) in outside.into_iter().zip(times) {
        let lat = row.number(LAT);
        assert_eq!(row.text(OP), letter.to_string());
        assert!((DELAY * 1_000_000..=time).contains(&lat), "{row:?} of {time} ns");
    }
}

fn on_a_slow_disk(name: &str, megabytes: u64, file_system: &FileSystem, numbers: [usize; 5]) {
    let _alone = alone();
    let disk = Disk::new(megabytes);
    let lines = format!("0 {} delay {} 0 {DELAY}", megabytes * 2048, disk.device);
    let Some(mapped) = Mapped::new("corebcc-slow", &lines) else { return };
    let device = format!("/dev/{}", mapped.disk);
    file_system.mounted_on(Path::new(&device), |directory| each_wait_has_a_row(name, directory, numbers));
}

#[test]
fn each_operation_that_waits_for_a_slow_disk_has_a_row() {
    on_a_slow_disk("ext4", 32, &EXT4, [0, 8, 3, 4, 3]);
}

#[test]
fn each_operation_on_xfs_that_waits_has_a_row() {
    on_a_slow_disk("xfs", 320, &XFS, [0, 8, 3, 4, 3]);
}

#[test]
fn each_operation_on_btrfs_that_waits_has_a_row() {
    on_a_slow_disk("btrfs", 128, &BTRFS, [0, 8, 3, 4, 3]);
}

#[test]
fn each_operation_on_f2fs_that_waits_has_a_row() {
    on_a_slow_disk("f2fs", 128, &F2FS, [0, 8, 3, 4, 3]);
}

/// The server creates the file on its slow disk, and has in its page cache what is read.
#[test]
fn each_operation_on_nfs_that_waits_has_a_row() {
    on_a_slow_disk("nfs4", 32, &NFS, [1, 0, 3, 4, 3]);
}

/// A file system of this process with one file, which does not exist at first. It answers late, and has all reads and writes to itself.
#[test]
fn each_operation_in_user_space_that_waits_has_a_row() {
    let _alone = alone();
    let Ok(device) = OpenOptions::new().read(true).write(true).open("/dev/fuse") else {
        return skip("file systems in user space (/dev/fuse)");
    };
    let directory = tempfile::tempdir().unwrap();
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    mount(Some("corebcc"), directory.path(), Some("fuse"), MsFlags::empty(), Some(&*options)).unwrap();
    let server = spawn(move || serve(device));
    let unmount = || umount2(directory.path(), MntFlags::MNT_DETACH).unwrap();
    with_end(|| each_wait_has_a_row("fuse", directory.path(), [4, 9, 7, 4, 0]), unmount);
    server.join().unwrap();
}

/// Serves the protocol of fuse(4), version 7.31 (include/uapi/linux/fuse.h), until the file system is unmounted.
fn serve(mut device: File) {
    let number = |bytes: &[u8], at| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
    let word = |bytes: &[u8], at| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    let long = |values: &[u64]| values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<_>>();
    let short = |values: &[u32]| values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<_>>();
    let mut content: Option<Vec<u8>> = None;
    let mut request = vec![0; 1 << 18];
    while let Ok(length) = device.read(&mut request) {
        let (header, body) = request[..length].split_at(40);
        let (unique, node) = (number(header, 8), number(header, 16));
        let size = content.as_ref().map_or(0, Vec::len) as u64;
        let attributes = |node: u64| {
            let mode = if node == 1 { 0o040755 } else { 0o100644 };
            // Neither times nor owners.
            [long(&[node, size, 0, 0, 0, 0]), short(&[0, 0, 0, mode, 1, 0, 0, 0, 4096, 0])].concat()
        };
        let entry = [long(&[2, 0, 0, 0, 0]), attributes(2)].concat();
        let opened = [long(&[0]), short(&[FOPEN_DIRECT_IO, 0])].concat();
        let opcode = word(header, 4);
        if matches!(opcode, CREATE | OPEN | READ | WRITE | FSYNC) {
            sleep(Duration::from_millis(DELAY));
        }
        let answer = match opcode {
            INIT => Ok([short(&[7, 31, 0, 0, 0, 1 << 16, 1]), vec![0; 36]].concat()),
            LOOKUP if content.is_some() => Ok(entry),
            LOOKUP => Err(nix::libc::ENOENT),
            GETATTR => Ok([long(&[0, 0]), attributes(node)].concat()),
            CREATE => {
                content = Some(Vec::new());
                Ok([entry, opened].concat())
            }
            OPEN => Ok(opened),
            READ => {
                let from = number(body, 8) as usize;
                Ok(content.iter().flatten().skip(from).take(word(body, 16) as usize).copied().collect())
            }
            WRITE => {
                let (at, data) = (number(body, 8) as usize, &body[40..]);
                let content = content.as_mut().unwrap();
                content.resize(content.len().max(at + data.len()), 0);
                content[at..at + data.len()].copy_from_slice(data);
                Ok(short(&[data.len() as u32, 0]))
            }
            FSYNC | RELEASE => Ok(Vec::new()),
            FORGET | BATCH_FORGET => continue,
            _ => Err(nix::libc::ENOSYS),
        };
        let (error, answer) = answer.map_or_else(|error| (-error, Vec::new()), |answer: Vec<u8>| (0, answer));
        let head = [short(&[16 + answer.len() as u32, error as u32]), long(&[unique])].concat();
        // A request that was interrupted wants no answer any more.
        let _ = device.write(&[head, answer].concat());
    }
}

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const RELEASE: u32 = 18;
const FSYNC: u32 = 20;
const INIT: u32 = 26;
const CREATE: u32 = 35;
const BATCH_FORGET: u32 = 42;
const FOPEN_DIRECT_IO: u32 = 1;
