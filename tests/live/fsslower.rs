//! fsslower on a file system over a disk that takes 60 ms: each operation that waits for it has a row, and no other.

use crate::disks::Mapped;
use crate::support::{alone, number, run, settle, Agent, Disk, Row};
use corebcc::modules::find;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

const O_SYNC: i32 = 0o4010000;
const O_DIRECT: i32 = if cfg!(target_arch = "aarch64") { 0o200000 } else { 0o40000 };

/// Milliseconds that each request takes, and from which on an operation is slow: a processor that is emulated takes its time, too.
const DELAY: u64 = 60;
const SLOW: u64 = 40;

/// Syncs the file 4 times, reads 8 blocks of it around the page cache, and appends 3 times, synchronously. Returns the nanoseconds of each
/// operation that waits for the disk, with its letter, in their order.
fn work(path: &Path) -> Vec<(char, u64)> {
    let mut times = Vec::new();
    let mut timed = |letter, operation: &mut dyn FnMut()| {
        let begin = Instant::now();
        operation();
        times.push((letter, begin.elapsed().as_nanos() as u64));
    };
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).open(path).unwrap();
    for part in 0..4 {
        file.write_all(&[part; 8192]).unwrap();
        timed('F', &mut || file.sync_all().unwrap());
    }
    let mut file = OpenOptions::new().read(true).custom_flags(O_DIRECT).open(path).unwrap();
    let mut buffer = vec![0u8; 8192];
    let at = buffer.as_ptr().align_offset(4096);
    for _ in 0..8 {
        timed('R', &mut || assert_eq!(file.read(&mut buffer[at..at + 4096]).unwrap(), 4096));
    }
    let mut file = OpenOptions::new().append(true).custom_flags(O_SYNC).open(path).unwrap();
    for _ in 0..3 {
        timed('W', &mut || file.write_all(&[7; 100]).unwrap());
    }
    // From the page cache.
    let mut file = File::open(path).unwrap();
    while file.read(&mut [0; 4096]).unwrap() > 0 {}
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

#[test]
fn each_operation_that_waits_for_a_slow_disk_has_a_row() {
    let _alone = alone();
    let disk = Disk::new(32);
    let lines = format!("0 65536 delay {} 0 {DELAY}", disk.device);
    let Some(mapped) = Mapped::new("corebcc-slow", &lines) else { return };
    let (device, mount) = (format!("/dev/{}", mapped.disk), tempfile::tempdir().unwrap());
    let mount = mount.path().to_str().unwrap();
    run("mkfs.ext4", &["-q", "-F", &device]);
    run("mount", &["-t", "ext4", &device, mount]);
    let own = format!("process = {}\nmin_ms = {SLOW}\nprocess_count = 100", std::process::id());
    let seen = Agent::where_possible("fexit or kprobes", "fsslower", &own).map(|mut agent| {
        let times = work(&Path::new(mount).join("slow-file"));
        settle();
        let rows = agent.rows();
        let counts = agent.other(find("fsslower").unwrap().tables[1]);
        (times, rows, [0, 1].map(|column| number(&counts, 0, column)), agent.warnings())
    });
    run("umount", &[mount]);
    let Some((times, mut rows, [all, lost], warnings)) = seen else { return };
    rows.reverse();
    println!("{times:?}\n{rows:#?}");
    assert_eq!((all, lost, warnings), (rows.len() as u64, 0, Vec::<String>::new()));
    let of_file = |row: &Row| row.number(PID) == u64::from(std::process::id()) && row.text(NAME) == "slow-file";
    assert!(rows.iter().all(|row| of_file(row) && row.text(FS) == "ext4" && row.number(ERR) == 0));
    // A synchronous write has a sync inside, which ends before it.
    let of = |op: &str| rows.iter().filter(|row| row.text(OP) == op).collect::<Vec<_>>();
    let [reads, writes, syncs, opens] = ["R", "W", "F", "O"].map(of);
    assert_eq!((reads.len(), writes.len(), syncs.len(), opens.len()), (8, 3, 4 + 3, 0));
    let places = |rows: &[&Row]| rows.iter().map(|row| (row.number(OFFSET), row.number(BYTES))).collect::<Vec<_>>();
    assert_eq!(places(&reads), (0..8).map(|block| (block * 4096, 4096)).collect::<Vec<_>>());
    assert_eq!(places(&writes), (0..3).map(|block| (4 * 8192 + block * 100, 100)).collect::<Vec<_>>());
    let outside = rows.iter().filter(|row| row.text(OP) != "F" || syncs[4..].iter().all(|inside| inside.id != row.id));
    for (row, (letter, time)) in outside.zip(times) {
        let lat = row.number(LAT);
        assert_eq!(row.text(OP), letter.to_string());
        assert!((DELAY * 1_000_000..=time).contains(&lat), "{row:?} of {time} ns");
    }
}
