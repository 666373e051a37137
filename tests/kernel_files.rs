//! ext4dist, xfsdist and zfsdist on the running kernel: operations of known number on a file system made for them.

#![allow(clippy::unwrap_used)]

use corebcc::collector::{members, Group};
use corebcc::config::Config;
use corebcc::kit::{instances, Table};
use corebcc::modules::MODULES;
use corebcc::pcp::Atom;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

/// One test at a time: the operations of the process count, whichever of its threads they are by.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

const O_SYNC: i32 = 0o4010000;
const O_DIRECT: i32 = if cfg!(target_arch = "aarch64") { 0o200000 } else { 0o40000 };

fn group(module: &str, process: u32) -> Group {
    let name = module.trim_start_matches("fs.");
    let text = format!("[pmda]\nmodules = {name}\n[{name}]\nmodule = {module}\ncluster = 5\nprocess = {process}\n");
    let config = Config::parse("test.conf", text.as_bytes()).unwrap();
    let (settings, instances) = instances(&config, MODULES).unwrap();
    let (members, constants) = members(&config, &instances, settings.process_refresh).unwrap();
    Group::load(members, &constants, None)
}

/// How many opens, reads, writes and fsyncs there were.
fn counts(group: &mut Group) -> [u64; 4] {
    let mut table = Table::new(4);
    group.refresh(0, &mut table).unwrap();
    let number = |row, column| match table.value(row, column) {
        Some(Atom::U64(number)) => number,
        other => panic!("{other:?}"),
    };
    [0, 1, 2, 3].map(|column| (0..table.len()).map(|row| number(row, column)).sum())
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
    let _alone = ALONE.lock();
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
    let mut group = group(module, std::process::id());
    let fate = group.fates().swap_remove(0);
    if fate.is_ok() {
        assert_eq!(counts(&mut group), [0; 4]);
        work(&mount);
    }
    let counted = fate.is_ok().then(|| counts(&mut group));
    assert!(run("umount", &[], &[&mount]), "{}", mount.display());
    match (counted, fate) {
        (Some(counted), _) => assert_eq!(counted, [40, 300, 100, 25], "opens, reads, writes, fsyncs"),
        (None, fate) => println!("skipped: {test}: fexit or kprobes ({})", fate.unwrap_err().reason),
    }
}

#[test]
fn operations_on_ext4_are_counted_once_each() {
    operations_are_counted(
        "operations_on_ext4_are_counted_once_each",
        "fs.ext4dist",
        &["mkfs.ext4", "-q", "-F"],
        32 << 20,
    );
}

#[test]
fn operations_on_xfs_are_counted_once_each() {
    operations_are_counted(
        "operations_on_xfs_are_counted_once_each",
        "fs.xfsdist",
        &["mkfs.xfs", "-q", "-f"],
        512 << 20,
    );
}

#[test]
fn a_file_system_that_is_not_there_fails_alone_and_says_what_to_load() {
    if std::fs::read_to_string("/proc/filesystems").unwrap().contains("zfs") {
        println!("skipped: a_file_system_that_is_not_there_fails_alone: a kernel without OpenZFS");
        return;
    }
    let failure = group("fs.zfsdist", 1).fates().swap_remove(0).unwrap_err();
    assert!(failure.reason.contains("modprobe zfs") || failure.reason.contains("not permitted"), "{failure:?}");
}
