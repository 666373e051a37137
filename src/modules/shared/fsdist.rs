//! The latency of a file system's operations, for ext4dist, xfsdist, btrfsdist, nfsdist and zfsdist. Kernel side: bpf/shared/fsdist.bpf.h.

use crate::bpf::types::{fs_row, rodata};
use crate::kit::{
    by_thread, plan_set_table, EachLoss, FineHistogram, Hook, Host, Kernel, MapDef, Metric, MetricDef, Module,
    NamedHistograms, Plan, ProcessFilter, Rows, Running, SeriesDef, TableSpec,
};
use crate::pcp::{Sem, Type, Units};

/// Functions of a file system.
pub struct Functions {
    /// Name of the file system in /proc/filesystems.
    pub name: &'static str,
    /// Hooks of the functions behind open, read, write and fsync, then of further functions that open, which may be missing.
    pub hooks: &'static [&'static Hook],
}

impl Functions {
    /// Attaches all of them.
    pub fn plan(&self, plan: &mut Plan) {
        let (needed, more) = self.hooks.split_at(4);
        needed.iter().for_each(|hook| plan.attach(hook));
        more.iter().for_each(|hook| plan.attach_optional(hook));
    }
}

/// A complete module for the operations of a file system.
pub struct Operations {
    /// Functions that are timed.
    pub functions: Functions,
    /// Counters by CPU.
    pub rows: Rows<fs_row>,
    /// Map of start times.
    pub starts: MapDef,
    /// Sets the constants of the programs: the mask of the start times, and the filter.
    pub constants: fn(&mut rodata, u32, u64),
    /// Processes that count.
    pub process: ProcessFilter,
    /// The Python agent's table of requests by power of two, of file systems that it had.
    pub latency: Option<&'static TableSpec>,
    /// Histograms of the operations, and their tables.
    pub series: &'static SeriesDef,
    /// True if the table for Prometheus is asked for.
    pub prometheus: bool,
    /// Counts and windows of these histograms.
    pub histograms: NamedHistograms,
}

impl Module for Operations {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut rodata) {
        let mask = plan_set_table(plan, self.starts.name, by_thread(host));
        (self.constants)(constants, mask, plan.only(&self.process));
        self.functions.plan(plan);
        plan.entries(self.rows.def.name, host.cpus);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        let Operations { latency, rows, series, prometheus, .. } = *self;
        let running = latency.into_iter().fold(Running::of(*self), |running, latency| {
            running.at_once(latency, move |kernel, table| {
                (0..4).for_each(|operation| operation_latency(rows, operation).read(kernel, table));
            })
        });
        NamedHistograms::add_tables(running, &[series], prometheus, |module| Some(&mut module.histograms))
            .losses(Self::losses)
            .started()
    }
}

impl Operations {
    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        let rows = kernel.rows(self.rows);
        let (unmatched, displaced) = (rows.sum(fs_row::unmatched), rows.sum(fs_row::displaced));
        each("start-unseen: operations whose start was not seen", unmatched.saturating_sub(displaced));
        each("untimed: operations whose time is not known because too many threads were in one", displaced);
    }
}

/// Declares the module of a file system from the parts that are its own; other names are the same in each.
#[macro_export]
macro_rules! file_system {
    (
        module: $module:literal, $(log2: $latency:ident $cluster:literal,)? by_operation: $by_operation:literal, by_bucket: $by_bucket:literal, in_seconds: $in_seconds:literal, name: $name:literal, called: $called:literal,
        needs: $needs:literal, open: $open:literal $(or $also:ident $other:literal)*, read: $read:literal, write: $write:literal, fsync: $fsync:literal,
        constants: $mask:ident, $filter:ident,
    ) => {
        use $crate::bpf::types::{fs_row, set_numbers};
        use $crate::kit::*;
        use $crate::modules::shared::fsdist::{Functions, Operations};

        $crate::options! {
            process;
            histograms;
        }

        $crate::histograms! {
            concat!("fs.", $name);
            tables concat!("all of ", $called), "each bucket", $by_operation $by_bucket $in_seconds, Shape::Single;
            1 "open" "opens of files" "from call to return" OF;
            2 "read" "reads of files" "from call to return" OF;
            3 "write" "writes of files" "from call to return" OF;
            4 "fsync" "synchronisations of files" "from call to return" OF;
        }

        const OF: &str = concat!("Of files on ", $called, ", by the functions that the module hooks.");

        static OPEN: Hook = $crate::function!($open, $needs);
        $(static $also: Hook = $crate::function!($other, $needs);)*
        static READ: Hook = $crate::function!($read, $needs);
        static WRITE: Hook = $crate::function!($write, $needs);
        static FSYNC: Hook = $crate::function!($fsync, $needs);

        /// Functions of the file system.
        pub const FUNCTIONS: Functions = Functions { name: $name, hooks: &[&OPEN, &READ, &WRITE, &FSYNC, $(&$also),*] };

        const ROWS: Rows<fs_row> = Rows::new(concat!($name, "_rows"));
        const STARTS: MapDef = MapDef::private::<set_numbers>(concat!($name, "_starts"));

        $(static $latency: TableSpec = TableSpec {
            cluster: $cluster,
            shape: Shape::Log2(Log2::MICROSECONDS),
            metrics: &[
                $crate::modules::shared::fsdist::operation_metric(
                    0,
                    concat!("fs.", $name, ".latency.open"),
                    concat!("opens of files on ", $called, " by the time they took"),
                ),
                $crate::modules::shared::fsdist::operation_metric(
                    1,
                    concat!("fs.", $name, ".latency.read"),
                    concat!("reads of files on ", $called, " by the time they took"),
                ),
                $crate::modules::shared::fsdist::operation_metric(
                    2,
                    concat!("fs.", $name, ".latency.write"),
                    concat!("writes of files on ", $called, " by the time they took"),
                ),
                $crate::modules::shared::fsdist::operation_metric(
                    3,
                    concat!("fs.", $name, ".latency.fsync"),
                    concat!("synchronisations of files on ", $called, " by the time they took"),
                ),
            ],
            ..TableSpec::NEW
        };)?

        /// Histograms of the operations.
        pub static OF_OPERATIONS: SeriesDef = SeriesDef {
            tables: TABLES,
            histograms: &[
                SeriesRows::of_one(ROWS).part(fs_row::hists.nth(0)),
                SeriesRows::of_one(ROWS).part(fs_row::hists.nth(1)),
                SeriesRows::of_one(ROWS).part(fs_row::hists.nth(2)),
                SeriesRows::of_one(ROWS).part(fs_row::hists.nth(3)),
            ],
            ..SeriesDef::NEW
        };

        /// The declaration of the module.
        pub const SPEC: Spec = Spec {
            name: $module,
            directory: "fs.",
            summary: concat!("latency of file operations on ", $called),
            overhead: Overhead::medium(concat!("190 ns per open, read, write or fsync on ", $called)),
            needs: $needs,
            kernel_modules: &[$name],
            tables: &[$(&$latency,)? &TABLE, &BY_BUCKET, &IN_SECONDS],
            options: OPTIONS,
            hooks: FUNCTIONS.hooks,
            maps: &[ROWS.def, STARTS],
            counts: &[ROWS.def],
            make: |setup| {
                let options = Options::read(setup.section)?;
                Ok(Box::new(Operations {
                    functions: FUNCTIONS,
                    rows: ROWS,
                    starts: STARTS,
                    constants: |constants, mask, filter| {
                        constants.$mask = mask;
                        constants.$filter = filter;
                    },
                    latency: None$(.or(Some(&$latency)))?,
                    series: &OF_OPERATIONS,
                    prometheus: options.prometheus,
                    histograms: NamedHistograms::of_one(&OF_OPERATIONS, options.window.window(), options.buckets),
                    process: options.process,
                }))
            },
            ..$crate::kit::Spec::NEW
        };
    };
}

/// Returns the metric of an operation; [`file_system!`] calls it. The unit is that of the Python agent's metrics.
pub const fn operation_metric(item: u32, name: &'static str, oneline: &'static str) -> MetricDef {
    MetricDef { item, name, also: &[], ty: Type::U64, sem: Sem::COUNTER, units: Units::USEC, oneline }
}

/// Returns the histogram of an operation. It has no values before the first operation of any kind.
fn operation_latency(rows: Rows<fs_row>, operation: usize) -> FineHistogram<fs_row> {
    FineHistogram { metric: Metric::new(operation), rows, histogram: fs_row::hists.nth(operation), from_start: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::types::fine_hist;
    use crate::kit::{Buckets, Fake, Fine, Seconds, Table, SERIES_METRICS};
    use crate::modules::find;
    use crate::modules::zfsdist::OF_OPERATIONS;
    use crate::pcp::Atom;

    const ROWS: Rows<fs_row> = Rows::new("zfs_rows");
    static HOOK: Hook = Hook { name: "f", tiers: &[], needs: "" };
    static HOOKS: [&Hook; 4] = [&HOOK; 4];

    fn table(at: usize) -> &'static TableSpec {
        find("zfsdist").unwrap().tables[at]
    }

    fn module() -> Running {
        let module = Operations {
            functions: Functions { name: "zfs", hooks: &HOOKS },
            rows: ROWS,
            starts: MapDef::private::<[u64; 2]>("test_starts"),
            constants: |_, _, _| (),
            process: ProcessFilter::default(),
            latency: Some(table(0)),
            series: &OF_OPERATIONS,
            prometheus: false,
            histograms: NamedHistograms::of_one(&OF_OPERATIONS, Seconds(60).window(), Buckets::default()),
        };
        Box::new(module).start(&Fake::new())
    }

    fn filled(fake: &Fake) -> Table {
        fake.filled(table(0), &module())
    }

    #[test]
    fn there_is_no_instance_before_the_first_operation() {
        assert!(filled(&Fake::new().with(ROWS, 2)).is_empty());
    }

    #[test]
    fn operations_have_own_buckets_and_share_the_widest_range() {
        let fake = Fake::new().with(ROWS, 2);
        let bucket = |operation: usize, us: u64| {
            fs_row::hists.nth(operation).then(fine_hist::buckets).nth(Fine::bucket(us * 1000))
        };
        fake.set(ROWS, 0, bucket(0, 2), 5);
        fake.set(ROWS, 1, bucket(0, 3), 6);
        fake.set(ROWS, 1, bucket(3, 1 << 31), 7);
        let table = filled(&fake);
        assert_eq!(table.len(), 32);
        assert_eq!(table.value(1, 0), Some(Atom::U64(11)));
        assert_eq!(table.value(31, 3), Some(Atom::U64(7)));
        assert_eq!(table.value(31, 1), Some(Atom::U64(0)), "a bucket that another operation reached");
    }

    #[test]
    fn returns_without_a_start_are_losses() {
        let fake = Fake::new().with(ROWS, 1);
        fake.set(ROWS, 0, fs_row::unmatched, 3);
        fake.set(ROWS, 0, fs_row::displaced, 2);
        let mut lost = Vec::new();
        module().losses(&fake, &mut |_, count| lost.push(count));
        assert_eq!(lost, [1, 2], "each once: an operation whose start was displaced has none when it returns");
    }

    #[test]
    fn operations_have_counts_sums_and_quantiles() {
        let (fake, module) = (Fake::new().with(ROWS, 2), module());
        for (cpu, operation, us, count) in [(0, 1, 3, 98), (1, 1, 700, 2), (1, 3, 9000, 1)] {
            let histogram = fake.row(ROWS, cpu).part(fs_row::hists.nth(operation));
            histogram.set(fine_hist::buckets.nth(Fine::bucket(us * 1000)), count);
            histogram.set(fine_hist::sum, us * 1000 * count);
        }
        module.tick(&fake);
        let filled = fake.filled(table(1), &module);
        let cell = |name: &str| {
            let metrics = table(1).metrics;
            filled.number(0, metrics.iter().position(|metric| metric.name == format!("fs.zfs.{name}")).unwrap())
        };
        assert_eq!((cell("read.count"), cell("read.sum")), (Some(100), Some(98 * 3_000 + 2 * 700_000)));
        assert_eq!((cell("fsync.count"), cell("open.count"), cell("open.p50")), (Some(1), Some(0), None));
        assert_eq!(cell("read.p50"), Some(3));
        let (p99, max) = (cell("read.p99").unwrap() as f64, cell("fsync.max").unwrap() as f64);
        assert!((p99 / 700.0 - 1.0).abs() < Fine::ERROR && (max / 9000.0 - 1.0).abs() < Fine::ERROR, "{p99} {max}");
        let buckets = fake.filled(table(2), &module);
        assert_eq!((buckets.len(), buckets.name(9)), (26, "512-1023".into()));
        assert_eq!([1, 3].map(|operation| buckets.number(9, operation)), [Some(2), Some(0)]);
        assert_eq!(table(1).metrics.len(), 4 * SERIES_METRICS.len());
    }
}
