//! vfsstat against a known number of calls.

use crate::files::EXT4;
use crate::support::{alone, number, Agent};
use corebcc::kit::{Key, Log2, Table};
use corebcc::modules::find;
use nix::libc;
use nix::sys::wait::waitpid;
use nix::unistd::{fork, pipe, ForkResult, Pid};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

const FILES: usize = 20;
const DIRECTORIES: usize = 7;

/// A process that makes its calls when it is told to. Between `fork` and its end it makes system calls only, since the other threads of the
/// test are not in it.
struct Worker {
    pid: Pid,
    go: File,
    done: File,
}

impl Worker {
    fn new(directory: &Path) -> Worker {
        let name = |name: String| CString::new(directory.join(name).into_os_string().into_encoded_bytes()).unwrap();
        let files: Vec<CString> = (0..FILES).map(|i| name(format!("file{i}"))).collect();
        let directories: Vec<CString> = (0..DIRECTORIES).map(|i| name(format!("directory{i}"))).collect();
        let none = name("none".into());
        let (go, its_go) = (pipe().unwrap(), pipe().unwrap());
        // SAFETY: as fork(2): the child has the calling thread only, and makes nothing but system calls.
        match unsafe { fork() }.unwrap() {
            // SAFETY: the buffers are as long as the calls are told, and outlive them.
            ForkResult::Child => unsafe {
                let mut byte = [0u8];
                let (from, to) = (go.0.as_raw_fd(), its_go.1.as_raw_fd());
                libc::read(from, byte.as_mut_ptr().cast(), 1);
                calls(&files, &directories, &none);
                libc::write(to, byte.as_ptr().cast(), 1);
                libc::read(from, byte.as_mut_ptr().cast(), 1);
                libc::_exit(0)
            },
            ForkResult::Parent { child } => {
                let file = |end: OwnedFd| File::from(end);
                Worker { pid: child, go: file(go.1), done: file(its_go.0) }
            }
        }
    }

    fn work(&mut self) {
        self.go.write_all(b"x").unwrap();
        self.done.read_exact(&mut [0]).unwrap();
    }
}

impl Drop for Worker {
    /// Ends it, whether it has worked or not.
    fn drop(&mut self) {
        let _ = self.go.write_all(b"xx");
        let _ = waitpid(self.pid, None);
    }
}

/// Per file: 10 writes of 4096 bytes, 5 of 100, one of a bad address, a pwrite of 20, 2 fsyncs, a fdatasync, one fsync of no file, 6 reads of
/// 8192 bytes, of which the last gets 500 bytes, one at the end, and a pread of 30 bytes. Two opens per file and one in vain.
fn calls(files: &[CString], directories: &[CString], none: &CString) {
    static DATA: [u8; 4096] = [7; 4096];
    let mut buffer = [0u8; 8192];
    // SAFETY: the buffers are as long as the calls are told, but for the bad address, which the kernel refuses.
    unsafe {
        for name in files {
            let file = libc::open(name.as_ptr(), libc::O_CREAT | libc::O_WRONLY | libc::O_EXCL, 0o600);
            for size in [4096; 10].into_iter().chain([100; 5]) {
                libc::write(file, DATA.as_ptr().cast(), size);
            }
            libc::write(file, 8 as *const libc::c_void, 100);
            libc::pwrite(file, DATA.as_ptr().cast(), 20, 0);
            libc::fsync(file);
            libc::fsync(file);
            libc::fsync(-1);
            libc::fdatasync(file);
            libc::close(file);
            let file = libc::open(name.as_ptr(), libc::O_RDONLY);
            for _ in 0..7 {
                libc::read(file, buffer.as_mut_ptr().cast(), buffer.len());
            }
            libc::pread(file, buffer.as_mut_ptr().cast(), 30, 0);
            libc::close(file);
            libc::open(none.as_ptr(), libc::O_RDONLY);
        }
        for name in files {
            libc::unlink(name.as_ptr());
        }
        for name in directories {
            libc::mkdir(name.as_ptr(), 0o700);
            libc::rmdir(name.as_ptr());
        }
    }
}

/// Returns the value of a metric in the first row of a table of the module.
fn value(table: &Table, place: usize, metric: &str) -> u64 {
    let metrics = find("vfsstat").unwrap().tables[place].metrics;
    let column = metrics.iter().position(|def| def.name == metric).unwrap_or_else(|| panic!("{metric}"));
    number(table, 0, column)
}

#[test]
fn known_calls_are_counted_once_each_with_times_and_sizes() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let mut worker = Worker::new(directory.path());
    let own = format!("process = {}\nprometheus = True", worker.pid);
    let Some(mut agent) = Agent::where_possible("fentry or kprobes", "vfsstat", &own) else { return };
    println!("by {}", agent.way_of("vfs_read"));
    let start = Instant::now();
    worker.work();
    let longest = start.elapsed().as_nanos() as u64;
    agent.tick();
    let [_, _, by_process, in_seconds, sizes] = find("vfsstat").unwrap().tables else { panic!("five tables") };
    let table = agent.table();
    let files = FILES as u64;
    // The worker was in a read when the agent came, and is in one; it wrote a byte when it was done.
    let (reads, writes) = (8 * files, 17 * files + 1);
    let (read, written) = (41490 * files, 41480 * files + 1);
    for (metric, expected) in [
        ("read.count", reads),
        ("write.count", writes),
        ("fsync.count", 3 * files),
        ("open.count", 2 * files),
        ("create.count", files),
        ("unlink.count", files),
        ("mkdir.count", DIRECTORIES as u64),
        ("rmdir.count", DIRECTORIES as u64),
        ("read.bytes", read),
        ("write.bytes", written),
    ] {
        assert_eq!(value(&table, 0, &format!("vfs.{metric}")), expected, "{metric}");
    }
    for (place, operation) in ["read", "write", "fsync", "open"].into_iter().enumerate() {
        let [sum, median, max] = ["sum", "p50", "max"].map(|end| value(&table, 0, &format!("vfs.{operation}.{end}")));
        println!("{operation}: {sum} ns, median {median} us, longest {max} us, of {longest} ns");
        assert!(sum > 0 && sum <= longest && median <= max, "{operation}");
        let count = value(&table, 0, &format!("vfs.{operation}.count"));
        assert_eq!(agent.scraped("vfsstat", in_seconds.cluster, place)["all"], count, "{operation}");
    }

    let table = agent.other(sizes);
    let of = |name: &str, column| number(&table, Log2::bucket(name).unwrap() as usize, column);
    assert_eq!(["8192-16383", "256-511", "0-1"].map(|size| of(size, 0)), [5 * files, files, files]);
    assert_eq!(["4096-8191", "64-127", "0-1"].map(|size| of(size, 1)), [10 * files, 5 * files, 1]);

    let table = agent.other(by_process);
    let is_its = |key: &Key| matches!(key, Key::Pid(pid, _) if *pid == worker.pid.as_raw() as u32);
    assert!(table.len() == 1 && is_its(&table.keys()[0]), "{:?}", table.keys());
    let cells = [0, 1, 3, 4].map(|column| number(&table, 0, column));
    assert_eq!(cells, [reads, read, writes, written]);
    assert!([2, 5].iter().all(|&column| (1..longest).contains(&number(&table, 0, column))));
    assert!(agent.warnings().is_empty(), "{:?}", agent.warnings());
}

/// A synchronous write has the synchronisation inside.
#[test]
fn a_synchronous_write_counts_as_both() {
    let _alone = alone();
    EXT4.mounted(|mount| {
        let own = format!("process = {}", std::process::id());
        let Some(mut agent) = Agent::where_possible("fentry or kprobes", "vfsstat", &own) else { return };
        let mut options = OpenOptions::new();
        let mut file = options.create(true).append(true).custom_flags(libc::O_SYNC).open(mount.join("file")).unwrap();
        let mut counts =
            || ["write", "fsync"].map(|operation| value(&agent.table(), 0, &format!("vfs.{operation}.count")));
        let before = counts();
        (0..10).for_each(|_| file.write_all(b"x").unwrap());
        let after = counts();
        // The agent, in the same process, writes to wake its threads.
        assert!(after[0] - before[0] >= 10, "{before:?} {after:?}");
        assert_eq!(after[1] - before[1], 10);
        assert!(agent.warnings().is_empty(), "{:?}", agent.warnings());
    });
}
