//! A BPF file system for a single test.

use super::{lacks, lacks_bpf, lacks_mounts, skip, Proc};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A mount namespace with a BPF file system, removed on drop.
pub struct BpfMount(Proc);

impl BpfMount {
    pub fn new() -> Option<BpfMount> {
        if lacks_bpf() || lacks_mounts() || lacks(&["nsenter"]) {
            return None;
        }
        // cgroup_runq wants cgroup v2, too, and programs at tracepoints want tracefs.
        let mount = "[ -e /sys/fs/cgroup/cgroup.controllers ] || mount -t cgroup2 cgroup2 /sys/fs/cgroup; \
                     [ -e /sys/kernel/tracing/events ] || mount -t tracefs tracefs /sys/kernel/tracing; \
                     mount -t bpf -o mode=0700 bpf /sys/fs/bpf && echo mounted && exec sleep 600";
        let mut command = Command::new("unshare");
        let mut child = command.args(["--mount", "sh", "-c", mount]).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        let namespace = BpfMount(Proc(child));
        if said.trim() == "mounted" {
            return Some(namespace);
        }
        skip("a BPF file system that can be mounted");
        None
    }

    /// Returns the option by which nsenter runs a program in the namespace.
    pub fn option(&self) -> String {
        format!("--mount=/proc/{}/ns/mnt", self.0.pid())
    }

    /// Returns the directory of all agents.
    pub fn pins(&self) -> PathBuf {
        format!("/proc/{}/root/sys/fs/bpf/corebcc", self.0.pid()).into()
    }

    /// Returns the pinned programs of all agents by unit; these run on without the agents.
    pub fn programs(&self) -> BTreeMap<String, Vec<String>> {
        let entries = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let programs = |unit: PathBuf| {
            let program = |path: PathBuf| Some(name(&path).strip_prefix("program=")?.to_owned());
            (name(&unit).rsplitn(3, '-').last().unwrap().to_owned(), entries(unit).filter_map(program).collect())
        };
        entries(self.pins()).flat_map(entries).map(programs).collect()
    }

    /// Returns the names of pinned units.
    pub fn units(&self) -> Vec<String> {
        self.programs().into_keys().collect()
    }
}
