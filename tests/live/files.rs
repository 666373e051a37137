//! ext4dist, xfsdist, btrfsdist, nfsdist and zfsdist: known numbers of operations on a file system of the test.

use crate::common::skip;
use crate::support::{alone, number, Agent, StandIns};
use corebcc::kit::SERIES_METRICS;
use corebcc::modules::find;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const O_SYNC: i32 = 0o4010000;
const O_DIRECT: i32 = if cfg!(target_arch = "aarch64") { 0o200000 } else { 0o40000 };

/// Returns the numbers of opens, reads, writes and fsyncs in the Python agent's table.
fn counts(agent: &mut Agent) -> [u64; 4] {
    let table = agent.table();
    [0, 1, 2, 3].map(|column| (0..table.len()).map(|row| number(&table, row, column)).sum())
}

/// Returns the same numbers from the tables of quantiles, of buckets and for Prometheus, after checking that their times are
/// consistent.
fn recent(module: &str, agent: &mut Agent) -> [u64; 4] {
    let [.., by_operation, by_bucket, in_seconds] = find(module).unwrap().tables else { panic!("three tables") };
    agent.tick();
    let is_first = find(module).unwrap().tables.len() == 3;
    let (table, buckets) = (if is_first { agent.table() } else { agent.other(by_operation) }, agent.other(by_bucket));
    [0, 1, 2, 3].map(|operation| {
        let cells: Vec<u64> = (0..SERIES_METRICS.len())
            .map(|metric| number(&table, 0, operation * SERIES_METRICS.len() + metric))
            .collect();
        let [count, sum, quantiles @ ..] = &cells[..] else { panic!("{cells:?}") };
        let mean = *sum as f64 / *count as f64 / 1000.0;
        println!("{module} {operation}: {count} operations, {mean:.1} us, {quantiles:?}");
        assert!(quantiles.is_sorted() && mean > 0.0 && mean <= quantiles[4] as f64 * 1.04 + 1.0, "{cells:?}");
        let by_bucket: u64 = (0..buckets.len()).map(|row| number(&buckets, row, operation)).sum();
        assert_eq!((by_bucket, agent.scraped(module, in_seconds.cluster, operation)["all"]), (*count, *count));
        *count
    })
}

/// Makes 40 opens, 100 writes (10 of them synchronous), 300 reads (20 of them direct), and 15 synchronisations.
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

/// Acts, and then ends it, even where an assertion failed.
pub fn with_end(act: impl FnOnce(), end: impl FnOnce()) {
    let acted = catch_unwind(AssertUnwindSafe(act));
    end();
    acted.unwrap_or_else(|failure| resume_unwind(failure));
}

/// A file system that shell commands make in the file $image and mount at $mount.
pub struct FileSystem {
    module: &'static str,
    size: u64,
    make: &'static str,
    end: &'static str,
    /// Number of synchronisations that its 10 synchronous writes cause.
    synchronous: u64,
}

pub const EXT4: FileSystem = FileSystem {
    module: "ext4dist",
    size: 32 << 20,
    make: "mkfs.ext4 -q -F $image && mount $image $mount",
    end: "umount $mount",
    synchronous: 10,
};

/// An overlay of two directories, in the directory `all`.
pub const OVERLAY: FileSystem = FileSystem {
    make: "mount -t tmpfs tmpfs $mount && cd $mount && mkdir lower upper work all && \
        mount -t overlay overlay -o lowerdir=$mount/lower,upperdir=$mount/upper,workdir=$mount/work $mount/all",
    end: "umount $mount/all && umount $mount",
    ..EXT4
};

impl FileSystem {
    pub const fn of_size(self, size: u64) -> FileSystem {
        FileSystem { size, ..self }
    }

    /// Mounts it while `act` runs. Prints that the test was skipped if it cannot be made.
    pub fn mounted(&self, act: impl FnOnce(&Path)) {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(self.size).unwrap();
        self.mounted_on(image.path(), act);
    }

    /// Does the same on a disk that is there.
    pub fn mounted_on(&self, image: &Path, act: impl FnOnce(&Path)) {
        let directory = tempfile::tempdir().unwrap();
        let mount = directory.path().join("mount");
        std::fs::create_dir(&mount).unwrap();
        let run = |script: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", script]).env("image", image).env("mount", &mount).output().unwrap()
        };
        let made = run(self.make);
        if !made.status.success() {
            let words = String::from_utf8_lossy(&made.stderr);
            let first = self.make.lines().next().unwrap();
            skip(&format!("{first} ({})", words.trim().replace('\n', "; ")));
            run(self.end);
            return;
        }
        let unmount = || {
            let ended = run(self.end);
            assert!(ended.status.success(), "{}: {ended:?}", mount.display());
        };
        with_end(|| act(&mount), unmount);
    }

    /// Works on the file system, and checks the counts.
    fn operations_are_counted(&self) {
        let _alone = alone();
        let mut both = None;
        self.mounted(|mount| {
            let own = format!("process = {}\nprometheus = True", std::process::id());
            both = Agent::where_possible("fexit or kprobes", self.module, &own).map(|mut agent| {
                let has_powers = find(self.module).unwrap().tables.len() > 3;
                let counts = |agent: &mut Agent| has_powers.then(|| counts(agent));
                assert!(counts(&mut agent).is_none_or(|counts| counts == [0; 4]));
                work(mount);
                (counts(&mut agent), recent(self.module, &mut agent))
            });
        });
        if let Some((counted, recent)) = both {
            assert_eq!(recent, [40, 300, 100, 15 + self.synchronous], "opens, reads, writes, fsyncs");
            assert!(counted.is_none_or(|counted| counted == recent), "{counted:?} by power of two");
        }
    }
}

pub const XFS: FileSystem = FileSystem {
    module: "xfsdist",
    size: 512 << 20,
    make: "mkfs.xfs -q -f $image && mount $image $mount",
    end: "umount $mount",
    synchronous: 10,
};

pub const BTRFS: FileSystem = FileSystem {
    module: "btrfsdist",
    size: 128 << 20,
    make: "mkfs.btrfs -q $image && mount $image $mount",
    end: "umount $mount",
    synchronous: 10,
};

/// Debian's kernels for clouds do not have it.
pub const F2FS: FileSystem = FileSystem { make: "mkfs.f2fs -q -f $image && mount -t f2fs $image $mount", ..EXT4 };

/// The kernel serves version 4.2 to itself. Its caches are told what mountd would answer: the client, and what the root of all exports is
/// (flags: any port, no check of subtrees, fsid). The first open waits for the end of the server's grace period. A machine that is a server
/// already is left alone.
pub const NFS: FileSystem = FileSystem {
    module: "nfsdist",
    size: 64 << 20,
    make: r#"modprobe -a nfsd nfsv4 && cd /proc/fs/nfsd && test ! -e threads && mkdir $mount.server &&
        mkfs.ext4 -q -F $image && mount $image $mount.server &&
        mount -t nfsd nfsd /proc/fs/nfsd && cd /proc/net/rpc &&
        echo nfsd 127.0.0.1 2147483647 all >auth.unix.ip/channel &&
        echo all $mount.server 2147483647 9218 65534 65534 0 >nfsd.export/channel &&
        echo 'all 1 \x00000000 2147483647' $mount.server >nfsd.fh/channel &&
        cd /proc/fs/nfsd && echo -2 -3 +4 +4.2 >versions && echo 10 >nfsv4leasetime && echo 10 >nfsv4gracetime &&
        echo tcp 2049 >portlist && echo 2 >threads &&
        mount -t nfs4 -o vers=4.2,proto=tcp,addr=127.0.0.1,clientaddr=127.0.0.1 127.0.0.1:/ $mount"#,
    end: "umount $mount; echo 0 >/proc/fs/nfsd/threads; umount /proc/fs/nfsd; umount $mount.server",
    synchronous: 10,
};

#[test]
fn operations_on_ext4_are_counted_once_each() {
    EXT4.operations_are_counted();
}

#[test]
fn operations_on_xfs_are_counted_once_each() {
    XFS.operations_are_counted();
}

#[test]
fn operations_on_btrfs_are_counted_once_each() {
    BTRFS.operations_are_counted();
}

#[test]
fn operations_on_nfs_are_counted_once_each() {
    NFS.operations_are_counted();
}

/// The kernel's module is removed afterwards unless others need it: a test below is for a kernel without it.
#[test]
fn operations_on_zfs_are_counted_once_each() {
    let zfs = FileSystem {
        module: "zfsdist",
        size: 128 << 20,
        make: "command -v zpool >/dev/null && modprobe zfs && zpool create -o cachefile=none -m $mount corebcc_test $image",
        end: "zpool destroy corebcc_test && { modprobe -r zfs || :; }",
        // The log is written within the write.
        synchronous: 0,
    };
    zfs.operations_are_counted();
}

/// OpenZFS has no operation inside another of the same thread; the functions that stand in for its own do.
#[test]
fn an_operation_inside_another_on_zfs_has_its_own_start() {
    let Some(zfs) = StandIns::of(&["zpl_open", "zpl_iter_read", "zpl_iter_write", "zpl_fsync"]) else { return };
    let mut agent = Agent::new("zfsdist", &format!("process = {}", std::process::id()));
    let mut rest = || std::thread::sleep(Duration::from_millis(20));
    let mut synchronous = || {
        zfs.call("zpl_fsync", 0, &mut rest, 0);
        rest();
    };
    zfs.call("zpl_iter_write", 0, &mut synchronous, 1);
    assert_eq!(counts(&mut agent), [0, 0, 1, 1]);
    let table = agent.table();
    let slot = |column| (0..table.len()).find(|&row| number(&table, row, column) > 0).unwrap();
    // Slot 14 begins at 16 ms, the next at 33.
    assert!(slot(2) >= 15 && slot(3) >= 14, "write {}, fsync {}", slot(2), slot(3));
    assert!(agent.warnings().is_empty(), "{:?}", agent.warnings());
}

#[test]
fn a_missing_file_system_fails_alone_and_says_what_to_load() {
    if std::fs::read_to_string("/proc/filesystems").unwrap().contains("zfs") {
        skip("a kernel without OpenZFS");
        return;
    }
    let failure = Agent::try_new("zfsdist", "").err().unwrap();
    assert!(failure.reason.contains("modprobe zfs") || failure.reason.contains("not permitted"), "{failure:?}");
}
