//! Softirqs by vector: how long they run, and how long they wait. Kernel side: bpf/softirqs.bpf.c.

use crate::bpf::types::{self, soft_row, soft_wait};
use crate::kit::*;
use crate::{maps, options, tracepoint};

mod runs {
    const NOTE: &str = "Interrupts that come while a softirq runs are part of its time.";
    crate::histograms! {
        "irq.soft";
        tables "each softirq", "each bucket of each softirq", 458 459 460, Shape::Named { max: 16 };
        1 "run" "runs of the softirq" "from entry to exit" NOTE;
        with NAME: str = 0 "name" DISCRETE NONE "name of the softirq, for the variables of a dashboard";
    }
    use super::*;

    pub static BY_VECTOR: SeriesDef = SeriesDef {
        tables: TABLES,
        histograms: &[SeriesRows::by_number(ROWS).part(soft_row::times)],
        name: Some(NAME),
        ..SeriesDef::NEW
    };
}

mod waits {
    const NOTE: &str = "With the option \"wait\" only. A softirq that is raised again after its CPU began a round of softirqs, but before it \
                        ran in that round, runs once more: this second run has no wait, so that waits may be fewer than runs.";
    crate::histograms! {
        "irq.soft";
        tables "each softirq", "each bucket of each softirq", 2008 2009 2010, Shape::Named { max: 16 }, if "wait";
        1 "wait" "waits of the softirq" "from the first raise to entry" NOTE;
    }
    use super::*;

    pub static BY_VECTOR: SeriesDef = SeriesDef {
        tables: TABLES,
        histograms: &[SeriesRows::by_number(WAITS).part(soft_wait::times)],
        ..SeriesDef::NEW
    };
}

maps! {
    rows ROWS: soft_row = "soft_rows";
    rows WAITS: soft_wait = "soft_waits";
}

options! {
    /// Time softirqs from the first raise to entry, too, as bcc.irq.soft.wait. 40 ns more per raise of a softirq.
    wait: bool = false;
    histograms;
}

static RAISE: Hook = tracepoint!("softirq_raise");
static ENTRY: Hook = tracepoint!("softirq_entry");
static EXIT: Hook = tracepoint!("softirq_exit");

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "softirqs",
    summary: "softirqs by vector: how often and how long they run, and wait",
    overhead: Overhead::medium("120 ns per softirq"),
    tables: &[&runs::TABLE, &runs::BY_BUCKET, &runs::IN_SECONDS, &waits::TABLE, &waits::BY_BUCKET, &waits::IN_SECONDS],
    options: OPTIONS,
    hooks: &[&RAISE, &ENTRY, &EXIT],
    maps: MAPS,
    make: |setup| Ok(Box::new(Softirqs::new(Options::read(setup.section)?))),
    ..Spec::NEW
};

/// Names of the vectors in the order of their numbers, as in `/proc/softirqs` (`softirq_to_name` in kernel/softirq.c).
const VECTORS: [&str; 10] =
    ["HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU"];

/// Names of vectors; their rows come again for each CPU.
struct Vectors;

impl Namer for Vectors {
    fn name(&mut self, key: u64) -> Option<NamedSeries> {
        let name = *VECTORS.get(key as usize - 1)?;
        Some((name.into(), vec![("softirq", SeriesLabel::Text(name.into()))]))
    }

    fn turn(&self) -> usize {
        VECTORS.len()
    }
}

struct Softirqs {
    options: Options,
    runs: SeriesHistograms<Vectors>,
    waits: Option<SeriesHistograms<Vectors>>,
}

impl Softirqs {
    fn new(options: Options) -> Softirqs {
        let of = |def| SeriesHistograms::new(&[def], options.window.window(), options.buckets, Vectors);
        let waits = options.wait.then(|| of(&waits::BY_VECTOR));
        Softirqs { runs: of(&runs::BY_VECTOR), waits, options }
    }
}

impl Module for Softirqs {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        plan.attach(&ENTRY);
        plan.attach(&EXIT);
        plan.entries(ROWS.def.name, host.cpus * VECTORS.len());
        if self.options.wait {
            constants.soft_waiting = true;
            plan.attach(&RAISE);
            plan.entries(WAITS.def.name, host.cpus * VECTORS.len());
        }
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        let (prometheus, wait) = (self.options.prometheus, self.waits.is_some());
        SeriesHistograms::add_tables(Running::of(*self), &[&runs::BY_VECTOR], prometheus, |module| {
            Some(&mut module.runs)
        })
        .when(wait, |running| {
            SeriesHistograms::add_tables(running, &[&waits::BY_VECTOR], prometheus, |module| module.waits.as_mut())
        })
        .losses(|_, kernel, each| {
            // The first of a vector on a CPU may have begun before the programs were attached.
            let unseen = kernel.rows(ROWS).iter().map(|row| row.get(soft_row::unseen).saturating_sub(1)).sum();
            each("start-unseen: softirqs whose beginning was not seen", unseen);
        })
        .started()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::types::fine_hist;

    fn counted(table: &Table) -> Vec<(String, u64)> {
        (0..table.len()).map(|row| (table.name(row), table.number(row, 0).unwrap())).filter(|of| of.1 > 0).collect()
    }

    #[test]
    fn vectors_are_summed_over_cpus() {
        let fake = Fake::new().with(ROWS, 20).with(WAITS, 20);
        let count = |times: Row<'_, fine_hist>, count| {
            times.set(fine_hist::buckets.nth(Fine::bucket(3000)), count);
            times.set(fine_hist::sum, 3000 * count);
        };
        for (row, times) in [(3, 5), (13, 7), (19, 1)] {
            count(fake.row(ROWS, row).part(soft_row::times), times);
        }
        count(fake.row(WAITS, 1).part(soft_wait::times), 2);
        let running = Box::new(Softirqs::new(Options { wait: true, ..Options::default() })).start(&fake);
        assert_eq!(counted(&fake.filled(&runs::TABLE, &running)), [("NET_RX".into(), 12), ("RCU".into(), 1)]);
        assert_eq!(counted(&fake.filled(&waits::TABLE, &running)), [("TIMER".into(), 2)]);
    }

    #[test]
    fn one_beginning_of_each_vector_may_be_unseen() {
        let fake = Fake::new().with(ROWS, 20);
        fake.set(ROWS, 0, soft_row::unseen, 1);
        fake.set(ROWS, 11, soft_row::unseen, 3);
        let running = Box::new(Softirqs::new(Options::default())).start(&fake);
        let mut lost = Vec::new();
        running.losses(&fake, &mut |_, count| lost.push(count));
        assert_eq!(lost, [2]);
    }
}
