//! Block I/O latency. Kernel side: bpf/biolatency.bpf.c, which counts by disk.

pub mod disks;
pub mod filter;
mod rows;
mod size;
mod sizes;
mod slow;
mod slowest;
mod stacked;

use super::shared::block::{SubmitterTable, COMPLETE, ISSUE, OWNER_MAPS, SUBMIT};
use super::shared::groups::tell;
use crate::bpf::features::PLUG_CLOCK;
use crate::bpf::types::{
    self, bio_epoch, bio_ignored, bio_part, bio_row, bio_size_row, bio_slowest, bio_small, bio_stack_row, bio_waits,
    mark,
};
use crate::host::{exists, Cgroups, Controller};
use crate::kit::*;
use crate::{maps, metrics, module_log, options};
use disks::{DiskHistograms, DiskNamer};
use filter::DiskFilter;
use rows::Lost;
pub use rows::{each_row, BioRow, DiskNumber, Operation};
use size::Size;
use slow::{SlowRequests, Threshold, SLOW_MAPS};
use slowest::Slowest;
use stacked::{StackedDisks, StackedNamer};
use std::sync::LazyLock;

metrics! {
    LATENCY: u64 = 0 "disk.all.latency" | "bpf.disk.all.latency" COUNTER USEC "block I/O requests by the time they took";
}

maps! {
    rows ROWS: bio_row = "bio_rows", taken disk, marked in "bio_marks";
    rows SMALLS: bio_small = "bio_smalls", taken disk, marked in "bio_marks";
    rows MARKS: mark = "bio_marks";
    hash OWNERS: u64 = "bio_owners";
    private STARTS: u64 = "bio_starts";
    rows SIZES: bio_size_row = "bio_sizes", taken disk, marked in "bio_marks";
    rows SLOWESTS: bio_slowest = "bio_slowests", taken disk, marked in "bio_marks";
    rows EPOCHS: bio_epoch = "bio_epochs";
    rows IGNOREDS: bio_ignored = "bio_ignoreds", taken disk;
    private PARTS: bio_part = "bio_parts";
    rows STACK_ROWS: bio_stack_row = "bio_stack_rows", taken disk, marked in "bio_marks";
    private WAITING: bio_waits = "bio_waiting";
}

/// Maps with those of slow requests and of their submitters.
const ALL_MAPS: [MapDef; MAPS.len() + SLOW_MAPS.len() + OWNER_MAPS.len()] = joined(&[MAPS, &SLOW_MAPS, OWNER_MAPS]);

options! {
    /// Include the time that a request is queued: measure from its allocation, as iostat's await does, not from its issue to the device.
    /// Requests of disks whose queue/iostats in sysfs is 0 are then left out: the kernel does not keep when they were allocated.
    queued: bool = false;
    /// Take the time of issue with a program. False costs half as much and reads the time that the kernel keeps. Since 6.9 that is one time
    /// for all requests of a batch: time in the device then includes the batching, up to about 0.1 ms, and time in the queue lacks it.
    issue: bool = true;
    histograms;
    /// Regular expression for the names of the disks that count, such as ^(sd|nvme); the programs ignore the others. It may match anywhere in a
    /// name such as sda or dm-0. Stacked disks that do not match are counted, but not shown.
    devices: Pattern = Pattern::default();
    /// Show reads and writes by size too, as bcc.disk.size. Takes 12 ns more per request, and 73 KB of memory more for each disk and CPU, and
    /// 19 MB for disks that come later: at most 112 MB.
    by_size: bool = false;
    /// Fill bcc.disk.slowest, too: the slowest request of each disk in the window. 10 to 90 ns more per request.
    exemplars: bool = false;
    /// Count the bios of disks without requests, such as those of device-mapper, LVM, md and zram, in bcc.disk.stacked. Each bio of such a
    /// disk costs two programs, one of another disk a short one.
    stacked: bool = false;
    /// Show the latest requests that took at least this long, and who submitted them, as bcc.disk.slow. Costs as `exemplars`, a slow request 1 us.
    slow: Threshold = Threshold::default();
    /// Rows to show.
    process_count: RowCount = RowCount(20);
    /// Size of the ring buffer in pages.
    buffer_page_count: Pages = Pages(64);
    bpf_names;
}

/// Major number of device-mapper disks.
static MAPPER: LazyLock<Option<u32>> = LazyLock::new(|| device_mapper(&std::fs::read_to_string("/proc/devices").ok()?));

static TABLE: TableSpec =
    TableSpec { cluster: 0, shape: Shape::Log2(Log2::MICROSECONDS), metrics: METRICS, ..TableSpec::NEW };

/// Counts requests by powers of two of microseconds, from their allocation (`queued`) or issue to completion, of all disks that count
/// but those of this major number.
fn latency(
    kernel: &dyn Kernel,
    queued: bool,
    mapper: Option<u32>,
    mut counts: impl FnMut(Option<DiskNumber>) -> bool,
) -> [u64; 32] {
    let mut fine = [0; Fine::BUCKETS];
    let mut octaves = [0u64; 32];
    each_row(kernel, |disk, _, row| {
        // Requests of device-mapper are requests of the disks below, seen again.
        if mapper.is_some() && disk.map(|disk| disk.major) == mapper || !counts(disk) {
            return;
        }
        match (row, queued) {
            (BioRow::Full(row), true) => drop(Fine::add(row.part(bio_row::total), &mut fine)),
            (BioRow::Full(row), false) => drop(Fine::add(row.part(bio_row::device), &mut fine)),
            (BioRow::Small(row), true) => drop(Fine::add(row.part(bio_small::total), &mut fine)),
            (BioRow::Small(row), false) => add(&mut octaves, row.words(bio_small::device)),
        }
    });
    add(&mut octaves, Fine::octaves(&fine).into_iter());
    octaves
}

fn add(sums: &mut [u64], counts: impl Iterator<Item = u64>) {
    sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum = sum.wrapping_add(count));
}

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "biolatency",
    summary: "block I/O latency",
    overhead: Overhead::low("160 ns per request"),
    needs: "CONFIG_BLK_DEV_IO_TRACE",
    tables: &[
        &TABLE,
        &disks::dev::TABLE,
        &disks::dev::BY_BUCKET,
        &disks::whole::TABLE,
        &disks::whole::BY_BUCKET,
        &disks::dev::IN_SECONDS,
        &disks::whole::IN_SECONDS,
        &sizes::TABLE,
        &sizes::BY_BUCKET,
        &sizes::IN_SECONDS,
        &slowest::TABLE,
        &slow::TABLE,
        &slow::counts::TABLE,
        &stacked::TABLE,
        &stacked::BY_BUCKET,
        &stacked::IN_SECONDS,
    ],
    options: OPTIONS,
    hooks: &[&COMPLETE, &ISSUE, &SUBMIT, &stacked::QUEUE, &stacked::COMPLETE],
    maps: &ALL_MAPS,
    counts: &[ROWS.def, SMALLS.def, MARKS.def, OWNERS, SIZES.def, STACK_ROWS.def],
    make: |setup| {
        let options = Options::read(setup.section)?;
        match options.queued {
            true => module_log!(info, "disk.all.latency includes time in the queue: from the allocation of a request."),
            false => module_log!(
                info,
                "disk.all.latency is without time in the queue: from the issue of a request to the device."
            ),
        }
        LazyLock::force(&MAPPER);
        Ok(Box::new(Biolatency::new(options)))
    },
    ..Spec::NEW
};

const OF_DISKS: &[&SeriesDef] = &[&disks::dev::DEF];
const OF_DISKS_AND_SIZES: &[&SeriesDef] = &[&disks::dev::DEF, &sizes::DEF];
const OF_STACKED: &[&SeriesDef] = &[&stacked::DEF];

/// Returns the histograms that have disks as their series.
fn of_disks(by_size: bool) -> &'static [&'static SeriesDef] {
    if by_size {
        OF_DISKS_AND_SIZES
    } else {
        OF_DISKS
    }
}

struct Biolatency {
    options: Options,
    /// Number of requests at the last tick whose issue was not known.
    without: u64,
    disks: DiskHistograms,
    slowest: Option<Slowest>,
    slow: Option<SlowRequests>,
    /// The submitters of requests in flight, where it matters who they are.
    submitters: Option<SubmitterTable>,
    stacked: Option<StackedDisks>,
}

impl Biolatency {
    fn new(options: Options) -> Biolatency {
        let window = options.window.window();
        let buckets = options.buckets;
        let is_above = |major| Some(major) == *MAPPER;
        let filter = DiskFilter::new(options.devices.clone(), filter::identify);
        let namer = DiskNamer { look_up: disks::look_up, filter, is_above };
        let disks = DiskHistograms::new(of_disks(options.by_size), window, buckets, namer);
        let slowest = options.exemplars.then(|| Slowest::new(window, Cgroups::of(Controller::BlockIo).ok()));
        let namer = || StackedNamer { look_up: stacked::look_up, devices: options.devices.clone() };
        let stacked = options.stacked.then(|| StackedDisks::new(OF_STACKED, window, buckets, namer()));
        let slow = options.slow.nanoseconds();
        let slow = slow.map(|_| SlowRequests::new(options.process_count, options.buffer_page_count));
        let submitters = (slowest.is_some() || slow.is_some()).then(|| SubmitterTable::new(exists));
        Biolatency { options, without: 0, disks, slowest, slow, submitters, stacked }
    }
}

impl Module for Biolatency {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        let size = Size::of(host, plan.pinned(&OWNERS));
        constants.bio_disks = size.disks as u32;
        constants.bio_last_cpu = host.cpus.saturating_sub(1) as u32;
        constants.bio_cpu_shift = size.shift;
        constants.bio_shared = size.shift > 0;
        constants.bio_start_shift = 32 - size.starts.ilog2();
        constants.bio_one_program = !self.options.issue;
        tell(
            size.shift,
            "a disk",
            "10 ns more per request, or more where they complete requests of one disk at the same time",
        );
        plan.attach(&COMPLETE);
        if self.options.issue {
            plan.attach_if(&ISSUE, PLUG_CLOCK);
        }
        plan.entries(ROWS.def.name, size.rows());
        plan.entries(SMALLS.def.name, size.rows());
        plan.entries(MARKS.def.name, size.rows());
        plan.entries(OWNERS.name, size.owners());
        plan.entries(STARTS.name, size.starts);
        if !self.options.devices.is_any() {
            constants.bio_filtered = true;
            constants.bio_ignored_shift = filter::shift(size.ignored);
            plan.entries(IGNOREDS.def.name, size.ignored);
        }
        if self.options.by_size {
            constants.bio_by_size = true;
            constants.bio_size_cpu_shift = size.size_shift;
            constants.bio_size_shared = size.size_shift > 0;
            plan.entries(SIZES.def.name, size.size_rows());
        }
        if self.slowest.is_some() {
            constants.bio_exemplars = true;
            plan.entries(SLOWESTS.def.name, size.rows());
        }
        if let (Some(slow), Some(threshold)) = (&self.slow, self.options.slow.nanoseconds()) {
            constants.bio_slow = true;
            constants.bio_slow_ns = threshold;
            constants.slow_ring = slow.plan(host, plan);
        }
        if let Some(submitters) = &self.submitters {
            plan.attach_optional(&SUBMIT);
            plan.leave_to(&["bioperpid", "biotop"]);
            submitters.size(host, plan, constants);
        }
        if self.options.by_size || self.submitters.is_some() {
            constants.bio_part_shift = 32 - Size::PARTS.ilog2();
            plan.entries(PARTS.name, Size::PARTS);
        }
        if self.options.stacked {
            stacked::plan(&size, plan, constants);
        }
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        let Options { queued, prometheus, by_size, exemplars, stacked, .. } = self.options;
        let is_filtered = !self.options.devices.is_any();
        let has_slow = self.slow.is_some();
        let running = Running::of(*self);
        let running = match is_filtered {
            false => running.at_once(&TABLE, move |kernel, table| {
                table.log2(LATENCY, &latency(kernel, queued, *MAPPER, |_| true));
            }),
            // The module knows the disks that count.
            true => running.table(&TABLE, move |module, kernel, table| {
                table.log2(LATENCY, &latency(kernel, queued, *MAPPER, |disk| module.disks.namer.shows(kernel, disk)));
            }),
        };
        DiskHistograms::add_tables(running, of_disks(by_size), prometheus, |module| Some(&mut module.disks))
            .when(exemplars, |running| {
                running.table(&slowest::TABLE, |module, kernel, table| {
                    module.disks.look_for_new(kernel);
                    module.slowest.iter().for_each(|slowest| slowest.fill(&module.disks, table));
                })
            })
            .when(has_slow, |running| {
                let running = running.table(&slow::TABLE, |module, kernel, table| {
                    module.drain(kernel);
                    module.slow.iter().for_each(|slow| slow.fill(table));
                });
                let running = running.quick(&slow::counts::TABLE, |module, kernel, table| {
                    module.slow.iter().for_each(|slow| slow::counts::fill(slow, kernel, table));
                });
                running.woken(Self::drain).events(|module| module.slow.as_ref().map_or(0, SlowRequests::events))
            })
            .when(stacked, |running| {
                let running = running.tick(|module, kernel| stacked::attach(module.stacked.as_ref(), kernel));
                StackedDisks::add_tables(running, OF_STACKED, prometheus, |module| module.stacked.as_mut())
            })
            .tick(Self::tick)
            .losses(Self::losses)
            .started()
    }
}

impl Biolatency {
    fn drain(&mut self, kernel: &dyn Kernel) {
        if let Some(slow) = &mut self.slow {
            slow.drain(kernel, &mut self.disks.namer);
        }
    }

    /// Follows submitters and the slowest requests, and attaches the program that takes the time of issue once a device has no time
    /// stamps of requests.
    fn tick(&mut self, kernel: &dyn Kernel) {
        if let Some(submitters) = &mut self.submitters {
            submitters.tick(kernel);
        }
        if let Some(slowest) = &mut self.slowest {
            slowest.tick(kernel, self.disks.part());
        }
        self.drain(kernel);
        let Lost { unmeasured, no_issue, .. } = Lost::read(kernel);
        if self.options.issue && unmeasured + no_issue > self.without {
            self.without = unmeasured + no_issue;
            if let Err(error) = kernel.attach(&ISSUE) {
                module_log!(debug, "block_rq_issue: {error}");
            }
        }
    }

    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        let lost = Lost::read(kernel);
        each("untimed: requests without a usable start time", lost.unmeasured);
        each("other-start: requests counted from their other start time", lost.no_issue);
        each("no-total: requests of disks whose queue/iostats is 0, not in total and queue", lost.no_start);
        each("table-full: requests of disks without a row in the table, counted for all disks together", lost.others);
        if let Some(slow) = &self.slow {
            slow.losses(kernel, each);
        }
        if self.stacked.is_some() {
            stacked::losses(kernel, each);
        }
    }
}

/// Parses the major number in the line `253 device-mapper` of /proc/devices.
fn device_mapper(devices: &str) -> Option<u32> {
    devices.lines().find_map(|line| line.trim().strip_suffix(" device-mapper")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::types::fine_hist;

    fn module() -> Biolatency {
        Biolatency::new(Options::default())
    }

    fn start(module: Biolatency) -> Running {
        Box::new(module).start(&Fake::new())
    }

    fn disk(major: u64, minor: u64) -> u64 {
        1 << 63 | major << 32 | minor
    }

    fn fake() -> Fake {
        Fake::new().with(ROWS, 4).with(SMALLS, 4)
    }

    const OF_2_US: usize = 32;

    #[test]
    fn disks_and_cpus_are_added_up_without_device_mapper() {
        let fake = fake();
        let device = bio_row::device.then(fine_hist::buckets);
        for (row, major, count) in [(0, 8, 1), (1, 259, 10), (2, 253, 100), (3, 8, 1000)] {
            fake.set(ROWS, row, bio_row::disk, disk(major, 16));
            fake.set(ROWS, row, device.nth(OF_2_US), count);
            fake.set(ROWS, row, bio_row::total.then(fine_hist::buckets).nth(OF_2_US + 16), 2 * count);
        }
        fake.set(SMALLS, 0, bio_small::disk, disk(8, 16));
        fake.set(SMALLS, 0, bio_small::device.nth(1), 10_000);
        fake.set(SMALLS, 0, bio_small::total.then(fine_hist::buckets).nth(OF_2_US + 16), 20_000);
        assert_eq!(latency(&fake, false, Some(253), |_| true)[..3], [0, 11_011, 0]);
        assert_eq!(latency(&fake, true, Some(253), |_| true)[..3], [0, 0, 22_022]);
        assert_eq!(latency(&fake, false, None, |_| true)[1], 11_111);
        assert_eq!(fake.filled(&TABLE, &start(module())).len(), 2);
    }

    /// Each module uses its own option, whatever another module of this process has.
    #[test]
    fn a_module_has_its_table_with_time_in_the_queue_if_asked_for() {
        let fake = fake();
        fake.set(ROWS, 0, bio_row::disk, disk(8, 16));
        fake.set(ROWS, 0, bio_row::device.then(fine_hist::buckets).nth(OF_2_US), 1);
        fake.set(ROWS, 0, bio_row::total.then(fine_hist::buckets).nth(OF_2_US + 16), 1);
        let modules = [true, false].map(|queued| Biolatency::new(Options { queued, ..Options::default() }));
        let highest = modules.map(|module| {
            let (running, mut table) = (start(module), Table::of(&TABLE));
            assert!(
                running.read_at_once(&TABLE, &fake, &mut table)
                    && !running.read_at_once(&disks::dev::TABLE, &fake, &mut Table::of(&disks::dev::TABLE))
            );
            table.len() - 1
        });
        assert_eq!(highest, [2, 1], "the buckets 4-7 and 2-3");
    }

    #[test]
    fn all_latency_has_only_disks_that_match() {
        let fake = fake().with(IGNOREDS, 64);
        // A disk that sysfs does not have.
        fake.set(ROWS, 0, bio_row::disk, disk(4095, 1_048_575));
        fake.set(ROWS, 0, bio_row::device.then(fine_hist::buckets).nth(OF_2_US), 1);
        assert_eq!(fake.filled(&TABLE, &start(module())).len(), 2);
        let some = Biolatency::new(Options { devices: Pattern::of("^sd"), ..Options::default() });
        assert_eq!(fake.filled(&TABLE, &start(some)).len(), 1);
    }

    #[test]
    fn device_mapper_is_known_by_its_line() {
        let devices = "Character devices:\n  1 mem\n253 hidraw\n\nBlock devices:\n259 blkext\n252 device-mapper\n";
        assert_eq!((device_mapper(devices), device_mapper("")), (Some(252), None));
    }

    #[test]
    fn requests_without_their_allocation_are_counted_and_told() {
        let fake = fake();
        fake.set(ROWS, 0, bio_row::disk, disk(8, 0));
        fake.set(ROWS, 0, bio_row::no_start, 5);
        fake.set(ROWS, 0, bio_row::device.then(fine_hist::buckets).nth(OF_2_US), 5);
        let mut counted = 0;
        each_row(&fake, |_, _, row| counted += row.count());
        let mut lost = Vec::new();
        module().losses(&fake, &mut |text, count| lost.push((text.split(':').next().unwrap(), count)));
        assert_eq!(counted, 5);
        assert!(lost.contains(&("no-total", 5)) && lost.contains(&("other-start", 0)), "{lost:?}");
        assert_eq!((latency(&fake, true, None, |_| true)[1], latency(&fake, false, None, |_| true)[1]), (0, 5));
    }

    #[test]
    fn the_time_of_issue_is_taken_once_requests_come_without_one() {
        let fake = fake();
        let mut module = module();
        module.tick(&fake);
        assert!(fake.attached().is_empty());
        fake.set(ROWS, 0, bio_row::disk, disk(8, 0));
        fake.set(ROWS, 0, bio_row::unmeasured, 3);
        module.tick(&fake);
        assert_eq!(fake.attached(), ["block_rq_issue"]);
    }
}
