//! Loop devices with high numbers, which exist during a test only.

use nix::errno::Errno;
use nix::libc::{ioctl, Ioctl, O_DIRECT};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Requests of ioctl(2) to loop devices and to /dev/loop-control (include/uapi/linux/loop.h).
const LOOP_SET_FD: Ioctl = 0x4C00;
const LOOP_CLR_FD: Ioctl = 0x4C01;
const LOOP_CTL_ADD: Ioctl = 0x4C80;
const LOOP_CTL_REMOVE: Ioctl = 0x4C81;

/// A loop device, removed when it is dropped.
pub struct Loop(u64);

impl Loop {
    /// Returns this number of devices, all over the same megabyte; `None` without loop devices, which is said.
    pub fn several(how_many: usize) -> Option<Vec<Loop>> {
        if !fs::exists("/dev/loop-control").unwrap() {
            super::skip("loop devices");
            return None;
        }
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        // Those of tests that run at the same time are others, in this program and in others.
        static USED: AtomicU64 = AtomicU64::new(0);
        let of_program = 1000 + u64::from(std::process::id()) % 1000 * 1000;
        let first = of_program + USED.fetch_add(how_many as u64, Ordering::Relaxed) % 900;
        Some((first..first + how_many as u64).map(|number| Loop::new(number, &file)).collect())
    }

    fn new(number: u64, file: &File) -> Loop {
        control("/dev/loop-control", LOOP_CTL_ADD, number).unwrap();
        let new = Loop(number);
        control(&new.path(), LOOP_SET_FD, file.as_raw_fd() as u64).unwrap();
        new
    }

    /// Name of the device, such as `loop1000`.
    pub fn name(&self) -> String {
        format!("loop{}", self.0)
    }

    /// Opens it for reads past the page cache.
    pub fn open(&self) -> File {
        open_direct(Path::new(&self.path()))
    }

    /// Reads that it has completed, by the kernel's own count.
    pub fn completed_reads(&self) -> u64 {
        let stat = fs::read_to_string(format!("/sys/block/{}/stat", self.name())).unwrap();
        stat.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Path of the device.
    pub fn path(&self) -> String {
        format!("/dev/loop{}", self.0)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // A child that another test has just forked may have it open until it executes its program.
        control(&self.path(), LOOP_CLR_FD, 0).unwrap();
        super::wait_for("the device to be free", || control("/dev/loop-control", LOOP_CTL_REMOVE, self.0).ok());
    }
}

/// Opens a disk for reads past the page cache.
pub fn open_direct(device: &Path) -> File {
    File::options().read(true).custom_flags(O_DIRECT).open(device).unwrap()
}

/// Reads blocks of 4 KB of a disk that is open past the page cache, each by a request of its own.
pub fn read_blocks(disk: &File, blocks: impl IntoIterator<Item = u64>) {
    let mut pages = [0; 8192];
    let start = pages.as_ptr().align_offset(4096);
    for block in blocks {
        disk.read_exact_at(&mut pages[start..start + 4096], block * 4096).unwrap();
    }
}

fn control(device: &str, request: Ioctl, argument: u64) -> std::io::Result<()> {
    let device = File::options().read(true).write(true).open(device)?;
    // SAFETY: these requests take a number.
    let result = unsafe { ioctl(device.as_raw_fd(), request, argument) };
    Errno::result(result).map_err(Into::into).map(drop)
}
