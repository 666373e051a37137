//! Calls of NFS by operation, and the phases of each. Kernel side: bpf/nfs.bpf.c.

use super::shared::groups::tell;
use super::shared::numbers::name_hash;
use super::shared::places::{ByPlace, Names, PlacedHistograms};
use crate::bpf::types::{self, mark, nfs_row, place_owner};
use crate::host::btf_encoding::{member_offset, KERNEL_TYPES};
use crate::kit::*;
use crate::{beyond, histograms, maps, options, tracepoint};
use std::collections::{HashMap, HashSet};
use std::fs;

histograms! {
    "nfs.rpc";
    tables "each operation", "each bucket of each operation", 487 488 489, Shape::Named { max: 1 << 10 };
    1 "total" "calls of the operation" "from the call to its end" NOTE;
    2 "rtt" "answers to the operation" "from sending it to the answer" NOTE;
    3 "backlog" "calls of the operation" "of waiting to be sent" NOTE;
    with NAME: str = 0 "name" DISCRETE NONE "name of the operation, for the variables of a dashboard";
}

const NOTE: &str = "Operations as in /proc/self/mountstats, of NFS and other services of RPC. The instance other has operations that no mount \
                    here has, and all where there are no types of the module sunrpc.";

maps! {
    rows OPERATIONS: place_owner = "nfs_operations", taken id;
    rows CALLS: nfs_row = "nfs_calls", taken used, marked in "nfs_marks";
    rows MARKS: mark = "nfs_marks";
}

options! {
    histograms;
}

static BY_OPERATION: ByPlace<nfs_row> = ByPlace {
    owners: OPERATIONS,
    rows: CALLS,
    marks: MARKS,
    histograms: &[nfs_row::total, nfs_row::rtt, nfs_row::backlog],
    counters: &[],
    name: NAME,
    beyond: beyond!("table-full: calls of operations", timed, [nfs_row::total]),
};

const NEEDS: &str = "the module sunrpc (modprobe sunrpc), on a kernel with BTF";

static LATENCY: Hook = tracepoint!("rpc_stats_latency", NEEDS);

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "nfs",
    summary: "calls of NFS by operation: how often, and how long in queue and under way",
    overhead: Overhead::low("0.2 us per call"),
    needs: "the module sunrpc",
    kernel_modules: &["sunrpc"],
    tables: &[&TABLE, &BY_BUCKET, &IN_SECONDS],
    options: OPTIONS,
    hooks: &[&LATENCY],
    maps: MAPS,
    make: |setup| Ok(Box::new(Nfs::new(Options::read(setup.section)?, Operations))),
    ..Spec::NEW
};

/// Number of operations with counters of their own; those of version 4.2 are 70.
const PLACES: usize = 256;
/// Mark above the hash in the numbers of the programs, so that none is 0.
const NAMED: u64 = 1 << 32;
/// Statistics of mounts, which name all operations of each.
const STATISTICS: &str = "/proc/self/mountstats";
/// Types of the module.
const MODULE_TYPES: &str = "/sys/kernel/btf/sunrpc";

/// Names of operations by the numbers of the programs, from the statistics of mounts.
struct Operations;

/// Returns the names of operations in the statistics of mounts: lines `READ: 12 12 0 ...` below `per-op statistics`.
fn operations(statistics: &str) -> HashMap<u64, String> {
    let names = statistics.lines().filter_map(|line| line.trim().split_once(": "));
    let is_name =
        |name: &str| name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_');
    let names =
        names.filter(|(name, counts)| is_name(name) && counts.split(' ').all(|count| count.parse::<i64>().is_ok()));
    names.map(|(name, _)| (NAMED | u64::from(name_hash(name.as_bytes())), name.to_owned())).collect()
}

impl Names for Operations {
    fn find(&self, ids: &mut HashSet<u64>, found: &mut dyn FnMut(u64, Vec<u8>)) {
        let statistics = fs::read(STATISTICS).unwrap_or_default();
        for (id, name) in operations(&String::from_utf8_lossy(&statistics)) {
            if ids.remove(&id) {
                found(id, name.into_bytes());
            }
        }
    }

    fn labels(&self, _id: u64, name: &[u8]) -> SeriesLabels {
        vec![("operation", SeriesLabel::Text(String::from_utf8_lossy(name).into_owned()))]
    }
}

struct Nfs {
    options: Options,
    operations: PlacedHistograms<nfs_row>,
}

impl Nfs {
    fn new<N: Names + Send + 'static>(options: Options, names: N) -> Nfs {
        let operations = PlacedHistograms::new(&BY_OPERATION, Ok(names), options.window.window(), options.buckets);
        Nfs { options, operations }
    }
}

/// Returns where a call has the pointer to its procedure, and that the pointer to its name. Of kernels that have these types themselves,
/// the module has them not.
fn places() -> Option<(u32, u32)> {
    let (kernel, module) = (fs::read(KERNEL_TYPES).ok()?, fs::read(MODULE_TYPES).unwrap_or_default());
    let offset = |structure, member| member_offset(&kernel, &module, structure, member);
    let procedure = offset("rpc_task", "tk_msg")? + offset("rpc_message", "rpc_proc")?;
    Some((procedure, offset("rpc_procinfo", "p_name")?))
}

impl Module for Nfs {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        let size = BY_OPERATION.plan(PLACES, host, plan);
        (constants.nfs_mask, constants.nfs_cpu_shift) = (size.mask, size.shift);
        constants.nfs_shared = size.shift > 0;
        tell(size.shift, "an operation", "10 ns more per call");
        if let Some(places) = places() {
            constants.nfs_named = true;
            (constants.nfs_procedure, constants.nfs_name) = places;
        }
        plan.attach(&LATENCY);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        let prometheus = self.options.prometheus;
        PlacedHistograms::add_tables(Running::of(*self), TABLES, prometheus, |module| Some(&mut module.operations))
            .started()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::types::fine_hist;

    const STATISTICS: &str = "device 127.0.0.1:/ mounted on /mnt with fstype nfs4 statvers=1.1\n\
        \topts:\trw,vers=4.2\n\tevents:\t1 2 3\n\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)\n\
        \txprt:\ttcp 0 0 1\n\tper-op statistics\n\t        NULL: 1 1 0 44 24 0 0 0 0\n\t        READ: 10 10 0 2000 9000 0 3 3 0\n\
        \tEXCHANGE_ID: 1 1 0 1 1 0 0 0 -1\n";

    #[test]
    fn operations_are_those_of_the_statistics_of_mounts() {
        let found = operations(STATISTICS);
        let number = |name: &str| NAMED | u64::from(name_hash(name.as_bytes()));
        let mut names: Vec<&String> = found.values().collect();
        names.sort();
        assert_eq!(names, ["EXCHANGE_ID", "NULL", "READ"]);
        assert_eq!(found.get(&number("READ")).map(String::as_str), Some("READ"));
        assert_ne!(number("READ"), number("READDIR"));
    }

    /// Names of the text above.
    struct Known;

    impl Names for Known {
        fn name(&self, id: u64) -> Option<Vec<u8>> {
            Some(operations(STATISTICS).remove(&id)?.into_bytes())
        }

        fn labels(&self, id: u64, name: &[u8]) -> SeriesLabels {
            Operations.labels(id, name)
        }
    }

    #[test]
    fn an_operation_has_three_times() {
        let fake = Fake::new().with(OPERATIONS, 4).with(CALLS, 5).with(MARKS, 5);
        fake.set(OPERATIONS, 1, place_owner::id, NAMED | u64::from(name_hash(b"READ")));
        fake.set(OPERATIONS, 2, place_owner::id, NAMED);
        for (row, count) in [(2, 3), (3, 4)] {
            for (part, ns) in [(nfs_row::total, 3000), (nfs_row::rtt, 2000), (nfs_row::backlog, 1000)] {
                fake.row(CALLS, row).part(part).set(fine_hist::buckets.nth(Fine::bucket(ns)), count);
                fake.row(CALLS, row).part(part).set(fine_hist::sum, ns * count);
            }
        }
        let running = Box::new(Nfs::new(Options::default(), Known)).start(&fake);
        let table = fake.filled(&TABLE, &running);
        assert_eq!(table.names(), ["READ", "other"]);
        assert_eq!([0, 1, 8, 15].map(|column| table.number(0, column)), [3, 9000, 6000, 3000].map(Some));
        assert_eq!(table.number(1, 0), Some(4));
    }
}
