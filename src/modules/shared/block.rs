//! Hooks, the table of submitters (bpf/shared/owners.bpf.h) and names of disks, for the modules of block I/O.

use crate::bpf::types::{self, io_cells, io_owner, io_slot, io_stat, mark};
use crate::host::until_nul;
use crate::kit::*;
use crate::modules::shared::ended::RowsOfProcesses;
use crate::{maps, tracepoint};
use std::collections::BTreeMap;

const NEEDS: &str = "a kernel with BTF and block layer tracepoints (CONFIG_BLK_DEV_IO_TRACE)";

/// The hook for requests that completed, in whole or in part.
pub static COMPLETE: Hook = tracepoint!("block_rq_complete", NEEDS);
/// The hook for requests issued to their device.
pub static ISSUE: Hook = tracepoint!("block_rq_issue", NEEDS);
/// The hook for new requests, in the process that submits them.
pub static SUBMIT: Hook = Hook {
    name: "block_io_start",
    tiers: &[
        Tier { kind: "tp_btf", programs: &["tp__block_io_start"] },
        Tier { kind: "raw_tp", programs: &["raw__block_io_start"] },
        Tier { kind: "fentry", programs: &["fentry____blk_account_io_start"] },
        Tier { kind: "fentry of 5.15 and before", programs: &["fentry__blk_account_io_start"] },
        Tier { kind: "kprobe", programs: &["kprobe____blk_account_io_start"] },
        Tier { kind: "kprobe of 5.15 and before", programs: &["kprobe__blk_account_io_start"] },
        Tier { kind: "tp_btf of bios", programs: &["tp__block_bio_queue"] },
        Tier { kind: "raw_tp of bios", programs: &["raw__block_bio_queue"] },
    ],
    needs: NEEDS,
};

/// Returns the number of places for requests in flight whose time of issue is kept (bpf/shared/block_times.bpf.h). They are spread by
/// a hash: a quarter full keeps collisions rare, and a request without a place has the kernel's time. It is no higher than that: the
/// kernel takes a table of up to 32 KB from its own mapping of all memory, and a larger one page by page, which costs a request 10 to
/// 20 ns more (benches/README.md).
pub fn starts(host: &Host) -> usize {
    table_size(host.requests * 4, 2048, 1 << 18)
}

maps! {
    rows OWNERS: io_owner = "io_owners", taken claims, lost io_stat.crowded in "io_stats", marked in "io_marks";
    rows MARKS: mark = "io_marks";
    private SLOTS: io_slot = "io_slots";
    rows STATS: io_stat = "io_stats";
}

/// Maps of the table of submitters.
pub const OWNER_MAPS: &[MapDef] = MAPS;

/// Number of places that share a mark: 4 KB.
const PART: usize = 32;

/// Counts of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounts {
    /// Number of completed requests.
    pub requests: u64,
    /// Bytes of these requests.
    pub bytes: u64,
    /// Nanoseconds from issue to completion, of requests with a start time.
    pub ns: u64,
    /// Number of requests without a start time.
    pub untimed: u64,
}

impl IoCounts {
    fn read(row: Row<'_, io_cells>) -> IoCounts {
        IoCounts {
            requests: row.get(io_cells::requests),
            bytes: row.get(io_cells::bytes),
            ns: row.get(io_cells::ns),
            untimed: row.get(io_cells::untimed),
        }
    }

    fn fold(self, other: IoCounts, each: impl Fn(u64, u64) -> u64) -> IoCounts {
        IoCounts {
            requests: each(self.requests, other.requests),
            bytes: each(self.bytes, other.bytes),
            ns: each(self.ns, other.ns),
            untimed: each(self.untimed, other.untimed),
        }
    }

    /// Returns the sum of both.
    pub fn plus(self, other: IoCounts) -> IoCounts {
        self.fold(other, u64::wrapping_add)
    }

    /// Returns the counts since `before`; all counts if the counters have restarted.
    pub fn since(self, before: IoCounts) -> IoCounts {
        if self.requests < before.requests || self.bytes < before.bytes {
            return self;
        }
        self.fold(before, u64::saturating_sub)
    }
}

/// A process (0 if it is not known) and a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Submitter {
    /// Process id.
    pub pid: u32,
    /// Major number of the disk.
    pub major: u32,
    /// Minor number of the disk.
    pub minor: u32,
}

impl Submitter {
    fn read(word: u64) -> Submitter {
        let disk = word as u32;
        Submitter { pid: (word >> 32) as u32, major: disk >> 20, minor: disk & 0xf_ffff }
    }
}

/// I/O of a process on a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Command name of the process when it began to submit, or since its last exec; empty for process 0.
    pub comm: Vec<u8>,
    /// Number of the process's execs at that time, as the kernel counts them.
    execs: u64,
    /// Counts of reads and of writes.
    pub directions: [IoCounts; 2],
}

/// The table of submitters. Several modules may keep one each: they write the same into the kernel's table.
pub struct SubmitterTable {
    processes: RowsOfProcesses<io_owner>,
    /// Number of ticks so far, up to the end of the start.
    ticks: u64,
    /// Requests of unknown submitters at the end of the start: they had begun before the programs ran.
    under_way: u64,
}

/// Number of ticks after which the start is over.
const START: u64 = 2;

impl SubmitterTable {
    /// Makes a table. `exists` returns true if there is a process with this identifier.
    pub fn new(exists: fn(u32) -> bool) -> SubmitterTable {
        let processes = RowsOfProcesses::new(io_owner::key, io_owner::claims, exists);
        SubmitterTable { processes, ticks: 0, under_way: 0 }
    }

    /// Adds the hooks and maps of the table to a module's plan.
    pub fn plan(&self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        plan.attach(&SUBMIT);
        plan.attach(&COMPLETE);
        self.size(host, plan, constants);
    }

    /// Sizes the maps of the table, for a module that attaches to the hooks itself.
    pub fn size(&self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        let places = table_size(host.threads * 2, 2048, 1 << 15);
        // Requests are spread by a hash: a quarter full keeps full sets rare.
        let slots = table_size(host.requests * 4, 8192, 1 << 18);
        constants.io_owner_mask = places as u32 / 4 - 1;
        constants.io_slot_mask = slots as u32 / 4 - 1;
        plan.entries(OWNERS.def.name, places);
        constants.io_part_shift = PART.ilog2();
        plan.entries(MARKS.def.name, places / PART);
        plan.entries(SLOTS.name, slots);
        plan.entries(STATS.def.name, host.cpus);
    }

    /// Reads all submitters. Two places may belong to the same one, if they were claimed at once on two CPUs: they are added up.
    pub fn read(kernel: &dyn Kernel) -> BTreeMap<Submitter, Owner> {
        let mut owners: BTreeMap<Submitter, Owner> = BTreeMap::new();
        for row in kernel.rows(OWNERS).iter() {
            let key @ 1.. = row.get(io_owner::key) else { continue };
            let owner = owners.entry(Submitter::read(key)).or_default();
            let execs = row.get(io_owner::exec);
            if owner.comm.is_empty() || execs > owner.execs {
                owner.comm = until_nul(&row.bytes::<_, _, 16>(io_owner::comm)).to_vec();
                owner.execs = execs;
            }
            for (cells, part) in owner.directions.iter_mut().zip(row.parts(io_owner::cells)) {
                *cells = cells.plus(IoCounts::read(part));
            }
        }
        owners
    }

    /// Frees the places of processes that ended some time ago. Called once a second.
    pub fn tick(&mut self, kernel: &dyn Kernel) {
        let stats = kernel.rows(STATS);
        if self.ticks < START {
            self.ticks += 1;
            self.under_way = stats.sum(io_stat::unknown);
        }
        let pid = |row: Row<'_, io_owner>| [Submitter::read(row.get(io_owner::key)).pid];
        self.processes.tick(kernel.rows(OWNERS), stats.sum(io_stat::crowded), pid);
    }

    /// Reports requests that were not counted, or not for their process.
    pub fn losses(&self, kernel: &dyn Kernel, each: &mut dyn FnMut(&'static str, u64)) {
        let stats = kernel.rows(STATS);
        each(
            "table-full: requests of processes without a row in the table, counted under process 0",
            stats.sum(io_stat::crowded),
        );
        each(
            "start-unseen: requests whose beginning was not seen, counted under process 0",
            stats.sum(io_stat::unknown).saturating_sub(self.under_way),
        );
        each("uncounted: requests that could not be counted", stats.sum(io_stat::lost));
    }
}

/// Returns the name of a disk by its major and minor number; `None` for a disk that is gone.
pub type DiskName = fn(u32, u32) -> Option<Vec<u8>>;

/// Returns the kernel's name of a disk: the last part of the link in /sys/dev/block, in which `!` stands for a slash.
pub fn disk_name(major: u32, minor: u32) -> Option<Vec<u8>> {
    let link = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    Some(link.file_name()?.to_string_lossy().replace('!', "/").into_bytes())
}

/// Names of disks, each looked up once. Each refresh begins without names, since disks come and go.
pub struct Disks {
    name: DiskName,
    known: BTreeMap<(u32, u32), Option<Vec<u8>>>,
}

impl Disks {
    /// Makes an empty list of names.
    pub fn new(name: DiskName) -> Disks {
        Disks { name, known: BTreeMap::new() }
    }

    /// Returns the name of a disk.
    pub fn name(&mut self, major: u32, minor: u32) -> Option<&[u8]> {
        let name = self.name;
        self.known.entry((major, minor)).or_insert_with(|| name(major, minor)).as_deref()
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::modules::shared::ended::{GRACE, TURNS};

    /// Names of disks in tests: `254:0` is `vda`.
    pub fn names(major: u32, minor: u32) -> Option<Vec<u8>> {
        ((major, minor) == (254, 0)).then(|| b"vda".to_vec())
    }

    /// True for processes below 1000, which exist in tests.
    pub fn below_1000(pid: u32) -> bool {
        pid < 1000
    }

    pub fn fake() -> Fake {
        Fake::new().with(OWNERS, 16).with(STATS, 2)
    }

    pub fn owner(
        fake: &Fake,
        place: usize,
        (pid, major, minor): (u64, u64, u64),
        comm: &[u8; 8],
        directions: [[u64; 4]; 2],
    ) {
        fake.set(OWNERS, place, io_owner::key, pid << 32 | major << 20 | minor);
        fake.set(OWNERS, place, io_owner::claims, 1);
        let row = fake.row(OWNERS, place);
        row.set_bytes(io_owner::comm, comm);
        row.parts(io_owner::cells).zip(directions).for_each(|(cells, values)| cells.write(&values));
    }

    fn pids(fake: &Fake) -> Vec<u32> {
        SubmitterTable::read(fake).keys().map(|key| key.pid).collect()
    }

    #[test]
    fn a_disk_with_large_numbers_keeps_them() {
        let fake = fake();
        owner(&fake, 3, (4_194_303, 4095, 1_048_575), b"x\0\0\0\0\0\0\0", [[1; 4]; 2]);
        let key = SubmitterTable::read(&fake).into_keys().next().unwrap();
        assert_eq!(key, Submitter { pid: 4_194_303, major: 4095, minor: 1_048_575 });
    }

    #[test]
    fn two_places_of_one_submitter_are_added_up() {
        let fake = fake();
        owner(&fake, 0, (77, 254, 0), b"dd\0\0\0\0\0\0", [[1, 512, 10, 0], [0; 4]]);
        owner(&fake, 1, (77, 254, 0), b"dd\0\0\0\0\0\0", [[2, 1024, 20, 1], [1, 1, 1, 1]]);
        let owners = SubmitterTable::read(&fake);
        let owner = owners.values().next().unwrap();
        assert_eq!((owners.len(), owner.comm.as_slice()), (1, &b"dd"[..]));
        assert_eq!(owner.directions[0], IoCounts { requests: 3, bytes: 1536, ns: 30, untimed: 1 });
        assert_eq!(owner.directions[1], IoCounts { requests: 1, bytes: 1, ns: 1, untimed: 1 });
    }

    #[test]
    fn rows_of_ended_processes_are_freed_but_never_process_0() {
        let fake = fake();
        owner(&fake, 0, (5000, 254, 0), b"dd\0\0\0\0\0\0", [[1; 4]; 2]);
        owner(&fake, 1, (77, 254, 0), b"dd\0\0\0\0\0\0", [[1; 4]; 2]);
        owner(&fake, 2, (0, 254, 0), &[0; 8], [[1; 4]; 2]);
        let mut owners = SubmitterTable::new(below_1000);
        for _ in 0..GRACE {
            owners.tick(&fake);
            assert_eq!(pids(&fake), [0, 77, 5000]);
        }
        for _ in 0..TURNS {
            owners.tick(&fake);
        }
        assert_eq!(pids(&fake), [0, 77]);
        let kernel: &dyn Kernel = &fake;
        let row = kernel.rows(OWNERS).get(0).unwrap();
        assert!(row.is_zero());
    }

    #[test]
    fn a_process_id_in_use_again_keeps_its_place() {
        let fake = fake();
        owner(&fake, 0, (5000, 254, 0), b"dd\0\0\0\0\0\0", [[1; 4]; 2]);
        let mut owners = SubmitterTable::new(below_1000);
        for _ in 0..GRACE / 2 {
            owners.tick(&fake);
        }
        owners.processes.exists = |_| true;
        for _ in 0..2 * GRACE {
            owners.tick(&fake);
        }
        assert_eq!(pids(&fake), [5000]);
    }

    #[test]
    fn a_crowded_table_frees_ended_rows_and_broken_claims_soon() {
        let fake = fake();
        owner(&fake, 0, (5000, 254, 0), b"dd\0\0\0\0\0\0", [[1; 4]; 2]);
        fake.set(OWNERS, 9, io_owner::claims, 2);
        let mut owners = SubmitterTable::new(below_1000);
        for crowded in 1..=3 {
            fake.set(STATS, 1, io_stat::crowded, crowded);
            owners.tick(&fake);
        }
        assert!(pids(&fake).is_empty());
        let kernel: &dyn Kernel = &fake;
        assert_eq!(kernel.rows(OWNERS).get(9).unwrap().get(io_owner::claims), 0);
    }

    #[test]
    fn counters_that_began_anew_count_from_zero() {
        let before = IoCounts { requests: 10, bytes: 1000, ns: 5, untimed: 0 };
        let again = IoCounts { requests: 2, bytes: 100, ns: 50, untimed: 0 };
        assert_eq!(again.since(before), again);
        assert_eq!(before.plus(again).since(before), again);
    }

    #[test]
    fn every_loss_has_its_reason() {
        let fake = fake();
        for (at, count) in [(io_stat::crowded, 1), (io_stat::unknown, 10), (io_stat::lost, 100)] {
            fake.set(STATS, 1, at, count);
        }
        let mut losses = Vec::new();
        SubmitterTable::new(below_1000).losses(&fake, &mut |_, count| losses.push(count));
        assert_eq!(losses, [1, 10, 100]);
    }

    #[test]
    fn requests_under_way_at_the_start_are_no_loss() {
        let fake = fake();
        let mut owners = SubmitterTable::new(below_1000);
        let mut unknown = |count| {
            fake.set(STATS, 1, io_stat::unknown, count);
            owners.tick(&fake);
            let mut losses = Vec::new();
            owners.losses(&fake, &mut |_, count| losses.push(count));
            losses[1]
        };
        assert_eq!([unknown(5), unknown(7), unknown(7), unknown(10)], [0, 0, 0, 3]);
    }
}
