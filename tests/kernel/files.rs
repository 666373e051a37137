//! ext4dist, xfsdist and zfsdist: operations of known number on a file system made for them.

use crate::support::{alone, number, Agent};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

const O_SYNC: i32 = 0o4010000;
const O_DIRECT: i32 = if cfg!(target_arch = "aarch64") { 0o200000 } else { 0o40000 };

/// How many opens, reads, writes and fsyncs there were.
fn counts(agent: &mut Agent) -> [u64; 4] {
    let table = agent.table();
    [0, 1, 2, 3].map(|column| (0..table.len()).map(|row| number(&table, row, column)).sum())
}

/// 40 opens, 100 writes (10 of them synchronous), 300 reads (20 of them direct), 25 synchronisations.
fn work(directory: &Path) {
    let path = directory.join("file");
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).open(&path).unwrap();
    for i in 0..90 {
        file.write_all(&[1; 4096]).unwrap();
        if i % 6 == 0 {
            file.sync_all().unwrap();
        }
    }
    let mut file = OpenOptions::new().append(true).custom_flags(O_SYNC).open(&path).unwrap();
    for _ in 0..10 {
        file.write_all(b"x").unwrap();
    }
    let mut file = File::open(&path).unwrap();
    for _ in 0..280 {
        file.rewind().unwrap();
        assert_eq!(file.read(&mut [0; 512]).unwrap(), 512);
    }
    let mut file = OpenOptions::new().read(true).custom_flags(O_DIRECT).open(&path).unwrap();
    let mut buffer = vec![0u8; 8192];
    let at = buffer.as_ptr().align_offset(4096);
    for _ in 0..20 {
        assert_eq!(file.read(&mut buffer[at..at + 4096]).unwrap(), 4096);
    }
    for _ in 0..36 {
        File::open(&path).unwrap();
    }
}

/// Makes a file system in a file, mounts it, and lets the work be counted.
fn operations_are_counted(test: &str, module: &str, make: &[&str], size: u64) {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let (image, mount) = (directory.path().join("image"), directory.path().join("mount"));
    std::fs::create_dir(&mount).unwrap();
    File::create(&image).unwrap().set_len(size).unwrap();
    let run = |program: &str, arguments: &[&str], path: &[&Path]| {
        Command::new(program).args(arguments).args(path).output().is_ok_and(|output| output.status.success())
    };
    let mounted = run(make[0], &make[1..], &[&image]) && run("mount", &["-o", "loop"], &[&image, &mount]);
    if !mounted {
        println!("skipped: {test}: {} and mounting it through a loop device", make[0]);
        return;
    }
    let own = format!("process = {}", std::process::id());
    let counted = Agent::where_possible(test, "fexit or kprobes", module, &own).map(|mut agent| {
        assert_eq!(counts(&mut agent), [0; 4]);
        work(&mount);
        counts(&mut agent)
    });
    assert!(run("umount", &[], &[&mount]), "{}", mount.display());
    if let Some(counted) = counted {
        assert_eq!(counted, [40, 300, 100, 25], "opens, reads, writes, fsyncs");
    }
}

#[test]
fn operations_on_ext4_are_counted_once_each() {
    operations_are_counted(
        "operations_on_ext4_are_counted_once_each",
        "ext4dist",
        &["mkfs.ext4", "-q", "-F"],
        32 << 20,
    );
}

#[test]
fn operations_on_xfs_are_counted_once_each() {
    operations_are_counted("operations_on_xfs_are_counted_once_each", "xfsdist", &["mkfs.xfs", "-q", "-f"], 512 << 20);
}

#[test]
fn a_file_system_that_is_not_there_fails_alone_and_says_what_to_load() {
    if std::fs::read_to_string("/proc/filesystems").unwrap().contains("zfs") {
        println!("skipped: a_file_system_that_is_not_there_fails_alone: a kernel without OpenZFS");
        return;
    }
    let failure = Agent::try_new("zfsdist", "").err().unwrap();
    assert!(failure.reason.contains("modprobe zfs") || failure.reason.contains("not permitted"), "{failure:?}");
}
