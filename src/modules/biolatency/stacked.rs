//! Latency of disks without requests, such as those of device-mapper, md and zram: bcc.disk.stacked.*, with the option `stacked`. Kernel
//! side: bpf/shared/stacked.bpf.h.

use super::disks::{self, LookUp};
use super::{DiskNumber, Size, STACK_ROWS, WAITING};
use crate::bpf::types::{self, bio_stack_row};
use crate::kit::{
    Fine, Hook, Kernel, NamedSeries, Namer, Pattern, Plan, SeriesDef, SeriesHistograms, SeriesLabel, SeriesRows, Shape,
    Tier,
};
use crate::{module_log, tracepoint};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const NEEDS: &str = "a kernel with BTF and block layer tracepoints (CONFIG_BLK_DEV_IO_TRACE)";

/// The hook for submitted bios, with a program of its own, since bioperpid and biotop may fall back to theirs.
pub static QUEUE: Hook = Hook {
    name: "block_bio_queue",
    tiers: &[
        Tier { kind: "tp_btf", programs: &["tp__block_bio_queue___stacked"] },
        Tier { kind: "raw_tp", programs: &["raw__block_bio_queue___stacked"] },
    ],
    needs: NEEDS,
};
/// The hook for completed bios of disks without requests.
pub static COMPLETE: Hook = tracepoint!("block_bio_complete", NEEDS);

/// Number of bios in a set of `bio_waiting`, as in bpf/shared/set_table.bpf.h.
const WAYS: usize = 8;

const NOTE: &str = "A bio of a disk without requests, such as one of device-mapper, LVM, md or zram, counts once, even if it is split. The label \
    \"below\" names the disks directly under this one, which have the same I/O again: do not add them up. A disk that hands its bios down as \
    they are has none: linear md, RAID 0 before Linux 5.14. Needs the option \"stacked\".";
crate::histograms! {
    "disk.stacked";
    tables "each disk without requests", "each bucket of each disk without requests", 330 347 433, Shape::Named { max: disks::MOST_DISKS }, if "stacked";
    1 "read.total" "reads by stacked disk" "from submission to completion" NOTE;
    2 "write.total" "writes by stacked disk" "from submission to completion" NOTE;
    3 "flush.total" "flushes by stacked disk" "from submission to completion" NOTE;
    4 "discard.total" "discards by stacked disk" "from submission to completion" NOTE;
    with NAME: str = 0 "name" DISCRETE NONE "name of the stacked disk, for the variables of a dashboard";
}

/// Adds the hooks and maps of the option to the module's plan.
pub fn plan(size: &Size, plan: &mut Plan, constants: &mut types::rodata) {
    let sets = size.starts / WAYS;
    constants.bio_waiting_mask = sets as u32 - 1;
    plan.attach_optional(&QUEUE);
    plan.attach_optional(&COMPLETE);
    plan.entries(STACK_ROWS.def.name, size.rows());
    plan.entries(WAITING.name, sets);
}

/// Rows of reads and writes, and of flushes and discards.
const EVEN: SeriesRows<bio_stack_row> = SeriesRows::each(STACK_ROWS, bio_stack_row::disk, 0, 2);
const ODD: SeriesRows<bio_stack_row> = SeriesRows::each(STACK_ROWS, bio_stack_row::disk, 1, 2);

/// Histograms of disks without requests.
pub static DEF: SeriesDef = SeriesDef {
    tables: TABLES,
    histograms: &[
        EVEN.part(bio_stack_row::total.nth(0)),
        EVEN.part(bio_stack_row::total.nth(1)),
        ODD.part(bio_stack_row::total.nth(0)),
        ODD.part(bio_stack_row::total.nth(1)),
    ],
    name: Some(NAME),
    ..SeriesDef::NEW
};

/// Owner of the rows for disks that found none (BIO_OTHERS).
const OTHERS: u64 = 1 << 62;

/// Histograms of disks without requests, with their windows.
pub type StackedDisks = SeriesHistograms<StackedNamer>;

/// Names of the disks that are shown.
pub struct StackedNamer {
    /// Source of names and labels.
    pub look_up: LookUp,
    /// The option `devices`.
    pub devices: Pattern,
}

impl Namer for StackedNamer {
    fn name(&mut self, disk: u64) -> Option<NamedSeries> {
        DiskNumber::read(disk).and_then(self.look_up).filter(|(name, _)| self.devices.matches(name))
    }
}

/// Attaches the programs before the first tick of their table.
pub fn attach(disks: Option<&StackedDisks>, kernel: &dyn Kernel) {
    if disks.is_none_or(StackedDisks::has_ticked) {
        return;
    }
    for hook in [&QUEUE, &COMPLETE] {
        if let Err(error) = kernel.attach(hook) {
            module_log!(warn, "{}: {error}: bcc.disk.stacked has no values.", hook.name);
        }
    }
}

/// Reports bios that could not be counted, or not under their disk.
pub fn losses(kernel: &dyn Kernel, each: &mut dyn FnMut(&'static str, u64)) {
    let others = kernel.rows(STACK_ROWS).iter().filter(|row| row.get(bio_stack_row::disk) == OTHERS);
    let without = others.flat_map(|row| row.parts(bio_stack_row::total)).map(Fine::count).sum();
    each("bio-table-full: bios of disks without a row in the table, not counted", without);
    let displaced = kernel.rows(STACK_ROWS).sum(bio_stack_row::displaced);
    each("bio-displaced: bios of stacked disks in flight beyond what can be remembered, not counted", displaced);
}

/// Reads the name and labels of a disk from sysfs, with the disks below it.
pub fn look_up(number: DiskNumber) -> Option<NamedSeries> {
    let (name, mut labels) = disks::look_up(number)?;
    let disk = format!("/sys/dev/block/{}:{}", number.major, number.minor);
    labels.extend(below(Path::new(&disk)).map(|names| ("below", SeriesLabel::Text(names))));
    Some((name, labels))
}

/// Returns the names of the disks directly below a disk, as bcc.disk.dev and bcc.disk.stacked have them; `None` without any.
fn below(disk: &Path) -> Option<String> {
    let name = |entry: fs::DirEntry| {
        let slave = fs::canonicalize(entry.path()).ok()?;
        // The directory of a partition is in that of its disk.
        let disk = if slave.join("partition").exists() { slave.parent()? } else { &slave };
        Some(disk.file_name()?.to_string_lossy().replace('!', "/"))
    };
    let names: BTreeSet<String> = fs::read_dir(disk.join("slaves")).ok()?.flatten().filter_map(name).collect();
    (!names.is_empty()).then(|| names.into_iter().collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::types::fine_hist;
    use crate::kit::{Buckets, Fake, Table, TableSpec, Window};
    use crate::pcp::Atom;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    const DM: u64 = 1 << 63 | 253 << 32;
    const GONE: u64 = 1 << 63 | 9 << 32 | 127;

    fn known(number: DiskNumber) -> Option<NamedSeries> {
        let labels = vec![("below", SeriesLabel::Text("sda,sdb".into()))];
        (number.major == 253).then(|| (b"dm-0".to_vec(), labels))
    }

    fn stacked(window: u64) -> StackedDisks {
        stacked_with(window, Pattern::default())
    }

    fn stacked_with(window: u64, devices: Pattern) -> StackedDisks {
        let namer = StackedNamer { look_up: known, devices };
        StackedDisks::new(&[&DEF], Window(Duration::from_secs(window)), Buckets::default(), namer)
    }

    fn fake() -> Fake {
        Fake::new().with(STACK_ROWS, 8)
    }

    /// Counts bios with a time in microseconds in the row of a disk: reads or writes in even rows, flushes or discards in odd ones.
    fn count(fake: &Fake, row: usize, disk: u64, operation: usize, us: u64, bios: u64) {
        fake.set(STACK_ROWS, row, bio_stack_row::disk, disk);
        let part = fake.row(STACK_ROWS, row).part(bio_stack_row::total.nth(operation % 2));
        let bucket = fine_hist::buckets.nth(Fine::bucket(us * 1000));
        part.set(bucket, part.get(bucket) + bios);
        part.set(fine_hist::sum, part.get(fine_hist::sum) + bios * us * 1000);
    }

    fn filled(stacked: &mut StackedDisks, fake: &Fake, spec: &'static TableSpec) -> Table {
        stacked.filled(fake, spec)
    }

    fn look_ten_times(stacked: &mut StackedDisks, fake: &Fake) {
        (0..10).for_each(|_| stacked.look(fake, Duration::ZERO));
    }

    fn cell(table: &Table, spec: &TableSpec, row: usize, name: &str) -> Option<u64> {
        let name = format!("disk.stacked.{name}");
        table.number(row, spec.column(&name))
    }

    #[test]
    fn bios_count_by_disk_and_operation_with_what_is_below() {
        let (fake, mut stacked) = (fake(), stacked(60));
        for (row, operation, us, bios) in [(2, 0, 100, 5), (6, 0, 100, 5), (2, 1, 50, 3), (3, 2, 900, 2), (3, 3, 7, 1)]
        {
            count(&fake, row, DM, operation, us, bios);
        }
        count(&fake, 4, GONE, 0, 10, 1);
        stacked.look(&fake, Duration::ZERO);
        let table = filled(&mut stacked, &fake, &TABLE);
        assert_eq!(table.names(), ["dm-0"], "the other disk is gone");
        let of = |name: &str| cell(&table, &TABLE, 0, name);
        let counts = ["read", "write", "flush", "discard"].map(|name| of(&format!("{name}.total.count")));
        assert_eq!(counts, [Some(10), Some(3), Some(2), Some(1)]);
        assert_eq!((of("read.total.sum"), of("flush.total.sum")), (Some(1_000_000), Some(1_800_000)));
        assert!(of("read.total.p50").unwrap().abs_diff(100) <= 4);
        assert_eq!(table.value(0, SERIES.len() - 1), Some(Atom::Str(b"dm-0")));
        assert_eq!(table.labels(0), Some(&vec![("below", SeriesLabel::Text("sda,sdb".into()))]));
    }

    #[test]
    fn stacked_disks_that_do_not_match_are_not_shown() {
        let fake = fake();
        count(&fake, 2, DM, 0, 100, 5);
        for (devices, names) in [("^dm-", vec!["dm-0"]), ("^sd", vec![])] {
            let mut stacked = stacked_with(60, Pattern::of(devices));
            look_ten_times(&mut stacked, &fake);
            assert_eq!(filled(&mut stacked, &fake, &TABLE).names(), names, "{devices}");
        }
    }

    #[test]
    fn a_stacked_disk_has_the_buckets_of_all_its_operations() {
        let (fake, mut stacked) = (fake(), stacked(60));
        count(&fake, 0, DM, 1, 100, 10);
        count(&fake, 1, DM, 3, 100, 4);
        let table = filled(&mut stacked, &fake, &BY_BUCKET);
        assert_eq!((table.len(), table.name(6)), (26, "64-127::dm-0".into()));
        let of = |name: &str| cell(&table, &BY_BUCKET, 6, name);
        assert_eq!((of("read.total.bucket"), of("write.total.bucket")), (Some(0), Some(10)));
        assert_eq!((of("flush.total.bucket"), of("discard.total.bucket")), (Some(0), Some(4)));
    }

    #[test]
    fn quantiles_of_bios_end_with_their_window() {
        let (fake, mut stacked) = (fake(), stacked(12));
        count(&fake, 0, DM, 0, 100, 10);
        stacked.look(&fake, Duration::ZERO);
        stacked.look(&fake, Duration::from_secs(13));
        let table = filled(&mut stacked, &fake, &TABLE);
        assert_eq!(cell(&table, &TABLE, 0, "read.total.p99"), None);
        assert_eq!(cell(&table, &TABLE, 0, "read.total.count"), Some(10));
    }

    #[test]
    fn a_stacked_disk_that_comes_back_is_served_again() {
        let (fake, mut stacked) = (fake(), stacked(60));
        count(&fake, 0, DM, 0, 100, 10);
        stacked.look(&fake, Duration::ZERO);
        for (look_up, names) in [((|_| None) as LookUp, vec![]), (known, vec!["dm-0"])] {
            stacked.namer.look_up = look_up;
            look_ten_times(&mut stacked, &fake);
            assert_eq!(filled(&mut stacked, &fake, &TABLE).names(), names);
        }
    }

    #[test]
    fn bios_without_a_row_or_remembered_no_more_are_lost() {
        let fake = fake();
        count(&fake, 0, OTHERS, 0, 100, 10);
        count(&fake, 1, OTHERS, 3, 100, 4);
        fake.set(STACK_ROWS, 0, bio_stack_row::displaced, 3);
        let mut lost = Vec::new();
        losses(&fake, &mut |_, count| lost.push(count));
        assert_eq!(lost, [14, 3]);
    }

    #[test]
    fn disks_below_are_whole_disks_each_once() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        for disk in ["sda", "sda/sda1", "sda/sda2", "cciss!c0d0", "dm-0/slaves"] {
            fs::create_dir_all(path(disk)).unwrap();
        }
        assert_eq!((below(&path("dm-0")), below(&path("sda"))), (None, None));
        for partition in ["sda1", "sda2"] {
            fs::write(path("sda").join(partition).join("partition"), "1").unwrap();
            symlink(path("sda").join(partition), path("dm-0/slaves").join(partition)).unwrap();
        }
        symlink(path("cciss!c0d0"), path("dm-0/slaves/cciss!c0d0")).unwrap();
        assert_eq!(below(&path("dm-0")).as_deref(), Some("cciss/c0d0,sda"));
    }

    #[test]
    fn nothing_is_loaded_for_stacked_disks_unless_asked_for() {
        use super::super::{Biolatency, Options};
        use crate::kit::{Host, Module};
        for stacked in [false, true] {
            let (mut plan, mut constants) = (Plan::default(), crate::bpf::constants());
            Biolatency::new(Options { stacked, ..Options::default() }).plan(&Host::SMALL, &mut plan, &mut constants);
            let is_planned = |hook| plan.hooks.iter().any(|(planned, _)| *planned == hook);
            assert_eq!([is_planned(&QUEUE), is_planned(&COMPLETE)], [stacked; 2]);
            assert_eq!(plan.entries.iter().any(|(map, _)| *map == STACK_ROWS.def.name), stacked);
        }
    }
}
