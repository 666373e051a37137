//! oomkill against the kernel's own counts, with a cgroup whose memory is limited.

use crate::cgroups::{hierarchy, Cgroup};
use crate::common::skip;
use crate::support::{alone, number, run, Agent, Row};
use corebcc::host::Controller;
use corebcc::modules::find;
use std::fs;
use std::path::{Path, PathBuf};

/// A cgroup whose processes may have 32 MB: of v2, or of v1 where that has the controller.
pub struct Limited {
    pub directory: PathBuf,
    /// The file with its count of kills, and the word before the count.
    kills: (PathBuf, &'static str),
}

impl Limited {
    pub fn make(unified: &Path) -> Option<Limited> {
        let name = format!("corebcc-{}-oom", std::process::id());
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let (mount, limits, kills) = match v1.join("cgroup.procs").exists() {
            true => (v1, &["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"][..], "memory.oom_control"),
            false => (unified, &["memory.max", "memory.swap.max"][..], "memory.events"),
        };
        if mount == unified && fs::write(unified.join("cgroup.subtree_control"), "+memory").is_err() {
            skip("no hierarchy of cgroups limits memory");
            return None;
        }
        let directory = mount.join(name);
        fs::create_dir(&directory).unwrap();
        let limited = Limited { kills: (directory.join(kills), "oom_kill"), directory };
        fs::write(limited.directory.join(limits[0]), "32M").unwrap();
        // Without swap there is nothing to limit.
        let _ = fs::write(limited.directory.join(limits[1]), if mount == unified { "0" } else { "32M" });
        Some(limited)
    }

    fn kills(&self) -> u64 {
        word_of(&self.kills.0, self.kills.1)
    }

    /// Runs a process that wants more memory than it may have.
    fn exceed(&self, beside: &Path) {
        let enter = |directory: &Path| format!("echo $$ > {}/cgroup.procs; ", directory.display());
        let work = enter(&self.directory) + &enter(beside) + "exec dd if=/dev/zero of=/dev/null bs=64M count=1";
        run("sh", &["-c", "sh -c \"$1\" 2>&1; true", "sh", &work]);
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.directory);
    }
}

/// Returns the number behind a word at the beginning of a line.
fn word_of(file: &Path, word: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap();
    text.lines().find_map(|line| line.strip_prefix(word)?.trim().parse().ok()).unwrap_or(0)
}

fn all_kills() -> u64 {
    word_of(Path::new("/proc/vmstat"), "oom_kill ")
}

const PROCESS: usize = 2;
const COMMAND: usize = 3;
const PAGES: usize = 5;

#[test]
fn kills_are_those_that_the_kernel_counts_and_each_has_a_row() {
    let _alone = alone();
    let Some(cgroups) = hierarchy(Controller::Unified) else { return };
    let Some(limited) = Limited::make(cgroups.mount()) else { return };
    let beside = Cgroup::make(&cgroups, "victims");
    let mut agent = Agent::new("oomkill", "");
    let tables = find("oomkill").unwrap().tables;
    let before = (all_kills(), limited.kills());
    let v1 = Path::new("/sys/fs/cgroup/memory");
    // Where v2 limits memory, a process is in one cgroup only.
    let (directory, name) = match limited.directory.starts_with(v1) {
        true => (cgroups.mount().join(&beside.name[1..]), beside.name.clone()),
        false => (limited.directory.clone(), format!("/{}", limited.directory.file_name().unwrap().to_string_lossy())),
    };
    (0..20).for_each(|_| limited.exceed(&directory));
    let rows: Vec<Row> = agent.rows();
    let kills = number(&agent.other(tables[1]), 0, 0);
    let counted = (all_kills() - before.0, limited.kills() - before.1);
    println!("{kills} kills, vmstat {}, of the cgroup {}", counted.0, counted.1);
    assert_eq!((counted.1, kills), (20, counted.0));
    assert_eq!(rows.len(), 20);
    for row in &rows {
        assert_eq!(row.text(COMMAND), "dd", "{:?}", row.values);
        assert_eq!((row.text(10), row.number(4)), (name.clone(), 0));
        let rss = row.number(7);
        assert!((16 << 10..64 << 10).contains(&rss), "{rss} KB resident, of which 32 MB count for the limit");
        // Without fentry and kprobes they are not known.
        if agent.is_attached("oom_kill_process") {
            assert_eq!((row.number(PAGES), row.number(6)), (32 << 20 >> 12, 1), "{:?}", row.values);
        }
    }
    let processes: std::collections::BTreeSet<u64> = rows.iter().map(|row| row.number(PROCESS)).collect();
    assert_eq!(processes.len(), 20);
    agent.tick();
    let table = agent.other(tables[2]);
    let names: Vec<_> = (0..table.len()).map(|row| (table.value(row, 1), number(&table, row, 0))).collect();
    assert!(names.contains(&(Some(corebcc::pcp::Atom::Str(name.as_bytes())), 20)), "{names:?}");
}
