//! nfs against the kernel's own statistics of a mount (/proc/self/mountstats), over a server on this machine.

use crate::files::NFS;
use crate::support::{alone, names, number, Agent};
use nix::libc::O_DIRECT;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// A page that begins where direct I/O wants it.
#[repr(align(4096))]
struct Page([u8; 4096]);

const PAGES: u64 = 40;
const FILES: u64 = 20;

/// Writes and reads a file without the page cache, which from 6.12 on may go to a server on this machine without a call, and makes and
/// removes files, which may not.
fn work(directory: &Path) {
    let mut open = OpenOptions::new();
    let file = open.read(true).write(true).create(true).truncate(true).custom_flags(O_DIRECT);
    let (file, mut page) = (file.open(directory.join("file")).unwrap(), Page([7; 4096]));
    for nth in 0..PAGES {
        file.write_all_at(&page.0, nth * 4096).unwrap();
    }
    for nth in 0..PAGES {
        file.read_exact_at(&mut page.0, nth * 4096).unwrap();
    }
    for nth in 0..FILES {
        let path = directory.join(format!("file{nth}"));
        fs::write(&path, "x").unwrap();
        fs::remove_file(&path).unwrap();
    }
}

/// Returns what the kernel has of each operation on a mount: calls, and milliseconds waiting, under way, in all.
fn kept(directory: &Path) -> BTreeMap<String, [u64; 4]> {
    let text = fs::read_to_string("/proc/self/mountstats").unwrap();
    let of_mount = text.split("\ndevice ").find(|of| of.contains(&format!(" mounted on {} ", directory.display())));
    let operations = of_mount.unwrap().split_once("per-op statistics").unwrap().1;
    let operation = |line: &str| {
        let (name, numbers) = line.trim().split_once(": ")?;
        let numbers: Vec<u64> = numbers.split(' ').map_while(|number| number.parse().ok()).collect();
        Some((name.to_owned(), [*numbers.first()?, *numbers.get(5)?, *numbers.get(6)?, *numbers.get(7)?]))
    };
    operations.lines().filter_map(operation).collect()
}

/// Returns the same from the module: calls, and nanoseconds waiting, under way, in all; and those of all operations under one name.
fn counted(agent: &mut Agent) -> BTreeMap<String, [u64; 4]> {
    agent.tick();
    let table = agent.table();
    let cells = |row| [0, 15, 8, 1].map(|column| number(&table, row, column));
    names(&table).into_iter().enumerate().map(|(row, name)| (name, cells(row))).collect()
}

#[test]
fn calls_are_those_of_the_kernels_statistics_of_the_mount() {
    let _alone = alone();
    NFS.mounted(|directory| {
        let Some(mut agent) = Agent::where_possible("the module sunrpc", "nfs", "prometheus = True") else { return };
        let before = (kept(directory), counted(&mut agent));
        work(directory);
        let after = (kept(directory), counted(&mut agent));
        let grown = |later: &BTreeMap<String, [u64; 4]>, earlier: &BTreeMap<String, [u64; 4]>, name: &str| {
            let of = |counts: &BTreeMap<String, [u64; 4]>| counts.get(name).copied().unwrap_or_default();
            let (later, earlier) = (of(later), of(earlier));
            [0, 1, 2, 3].map(|at| later[at] - earlier[at])
        };
        let named: Vec<&String> = after.0.keys().filter(|name| after.1.contains_key(*name)).collect();
        if named.is_empty() && !Path::new("/sys/kernel/btf/sunrpc").exists() {
            // Without types of the module no operation has a name.
            let [calls, _, under_way, all] = grown(&after.1, &before.1, "other");
            println!("{calls} calls without a name");
            assert!(calls >= 2 * FILES && (1..=all).contains(&under_way), "{calls} {under_way} {all}");
            return;
        }
        let mut compared = 0;
        // The kernel keeps its lease by calls of its own.
        for name in after.0.keys().filter(|name| !["SEQUENCE", "RENEW", "NULL"].contains(&name.as_str())) {
            let [calls, waiting, under_way, all] = grown(&after.1, &before.1, name);
            let [kept_calls, kept_waiting, kept_under_way, kept_all] = grown(&after.0, &before.0, name);
            if calls == 0 && kept_calls == 0 {
                continue;
            }
            println!("{name}: {calls} of {kept_calls}, {waiting} {under_way} {all} ns of {kept_waiting} {kept_under_way} {kept_all} ms");
            agent.assert_counted([calls], [kept_calls]);
            // The kernel adds up times that it has cut to milliseconds, or adds them up first and then cuts.
            for (ns, ms) in [(waiting, kept_waiting), (under_way, kept_under_way), (all, kept_all)] {
                let least = (ms * 1_000_000).saturating_sub(1_000_000);
                assert!((least..=(ms + calls + 1) * 1_000_000).contains(&ns), "{name}: {ns} ns, {ms} ms");
            }
            compared += calls;
        }
        assert!(compared >= 2 * FILES, "{compared}");
        agent.assert_complete();
    });
}
