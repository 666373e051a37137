//! A disk of known latency: a loop device over a file whose reads take as long as the test chooses.

use super::{lacks, skip, Proc};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

const PYTHON: &str = "/usr/bin/python3";

/// A disk of 64 MB that reads one request at a time.
pub struct SlowDisk {
    pub device: String,
    directory: TempDir,
    _server: Proc,
}

impl SlowDisk {
    /// Makes a disk with an equal part for each time; a read takes the time of its part. `None`, with a report, if the
    /// host has no FUSE.
    pub fn new(milliseconds: &[u32]) -> Option<SlowDisk> {
        if lacks(&[PYTHON, "losetup", "fio", "chrt"]) {
            return None;
        }
        if !Path::new("/dev/fuse").exists() {
            skip("/dev/fuse");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("chrt");
        command
            .args(["-f", "50", PYTHON, "-I", "-c", include_str!("../programs/slow_file.py")])
            .arg(directory.path())
            .arg((64 << 20).to_string());
        command.args(milliseconds.iter().map(u32::to_string)).stdout(Stdio::piped());
        let mut server = Proc(command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let file = directory.path().join("disk");
        let output = Command::new("losetup").args(["-f", "--show"]).arg(file).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let device = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        let disk = SlowDisk { device, directory, _server: server };
        disk.set_scheduler("none");
        Some(disk)
    }

    /// Returns its name, such as `loop0`.
    pub fn name(&self) -> &str {
        self.device.trim_start_matches("/dev/")
    }

    /// Sets the scheduler. The setting outlives the file behind a loop device.
    pub fn set_scheduler(&self, scheduler: &str) {
        fs::write(format!("/sys/block/{}/queue/scheduler", self.name()), scheduler).unwrap();
    }

    /// Returns a command of fio that reads blocks of 4 KB at random places of it, with these options; its priority
    /// keeps other load out of its times.
    pub fn fio(&self, options: &str) -> Command {
        let mut command = Command::new("chrt");
        command.args(["-f", "50", "fio", "--name=x", "--direct=1", "--rw=randread", "--bs=4k", "--time_based"]);
        command.arg(format!("--filename={}", self.device)).args(options.split_whitespace());
        command
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        let _ = fs::write(format!("/sys/block/{}/queue/scheduler", self.name()), "none");
        let _ = Command::new("losetup").args(["-d", &self.device]).status();
        // Lazily, since the kernel gives the file back a moment later; a copy of the mount, in a mount namespace that was made meanwhile,
        // ends with the server, which is killed.
        let _ = Command::new("umount").arg("--lazy").arg(self.directory.path()).status();
    }
}
