//! Times of the handlers of interrupts, by interrupt and handler. Kernel side: bpf/hardirqs.bpf.c.

use super::shared::groups::tell;
use super::shared::numbers::name_hash;
use super::shared::places::{ByPlace, Names, PlacedHistograms};
use crate::bpf::types::{self, hard_cpu, hard_row, mark, place_owner};
use crate::kit::*;
use crate::{beyond, histograms, maps, options, tracepoint};
use std::fs;
use std::path::PathBuf;

histograms! {
    "irq.hard";
    tables "each handler of an interrupt", "each bucket of each handler", 461 462 463, Shape::Named { max: MOST };
    1 "run" "interrupts that the handler ran for" "from entry to exit" NOTE;
    with UNHANDLED: u64 = 0 "unhandled.count" COUNTER COUNT "interrupts that the handler found to be of another device";
    with NAME: str = 1 "name" DISCRETE NONE "interrupt and handler, for the variables of a dashboard";
}

const NOTE: &str = "Series are interrupts with a line in /proc/interrupts that begins with a number, and their handlers: \"24::virtio0\". The series \
                    \"other\" has handlers that are gone. Work that a handler leaves to its thread is not part of the time.";

maps! {
    rows OWNERS: place_owner = "hard_owners", taken id;
    rows ROWS: hard_row = "hard_rows", taken used, marked in "hard_marks";
    rows MARKS: mark = "hard_marks";
    rows CPUS: hard_cpu = "hard_cpus";
}

options! {
    histograms;
}

static BY_HANDLER: ByPlace<hard_row> = ByPlace {
    owners: OWNERS,
    rows: ROWS,
    marks: MARKS,
    histograms: &[hard_row::run],
    counters: &[(UNHANDLED, hard_row::unhandled)],
    name: NAME,
    beyond: beyond!("table-full: interrupts of handlers", timed, [hard_row::run]),
};

static ENTRY: Hook = tracepoint!("irq_handler_entry");
static EXIT: Hook = tracepoint!("irq_handler_exit");

/// Largest number of handlers with counters of their own.
const MOST: usize = 1 << 12;

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "hardirqs",
    summary: "interrupts by handler: how often and how long it runs",
    overhead: Overhead::medium("140 ns per interrupt"),
    tables: &[&TABLE, &BY_BUCKET, &IN_SECONDS],
    options: OPTIONS,
    hooks: &[&ENTRY, &EXIT],
    maps: MAPS,
    make: |setup| Ok(Box::new(Hardirqs::new(Options::read(setup.section)?, Handlers::of_kernel()))),
    ..Spec::NEW
};

/// Handlers of interrupts, which the kernel lists in a folder for each interrupt.
struct Handlers(PathBuf);

impl Handlers {
    fn of_kernel() -> Handlers {
        Handlers("/sys/kernel/irq".into())
    }

    /// Returns the number of interrupts.
    fn interrupts(&self) -> usize {
        fs::read_dir(&self.0).map_or(0, Iterator::count)
    }
}

/// Returns the number of a handler in the programs.
fn number(irq: u32, handler: &[u8]) -> u64 {
    u64::from(name_hash(handler)) << 32 | u64::from(irq + 1)
}

impl Names for Handlers {
    /// The interrupt has to have the handler still.
    fn name(&self, id: u64) -> Option<Vec<u8>> {
        let irq = (id as u32).checked_sub(1)?;
        let file = self.0.join(irq.to_string()).join("actions");
        let handlers = fs::read(file).ok()?;
        let handlers = handlers.strip_suffix(b"\n").unwrap_or(&handlers);
        let handler = handlers.split(|&byte| byte == b',').find(|handler| number(irq, handler) == id)?;
        Some([irq.to_string().as_bytes(), b"::", handler].concat())
    }

    fn is_there(&self, id: u64, name: &[u8]) -> bool {
        self.name(id).is_some_and(|now| now == name)
    }

    fn labels(&self, id: u64, name: &[u8]) -> SeriesLabels {
        let name = String::from_utf8_lossy(name);
        let handler = name.split_once("::").map_or(&*name, |(_, handler)| handler);
        let mut labels = vec![("handler", SeriesLabel::Text(handler.into()))];
        labels.extend((id as u32).checked_sub(1).map(|irq| ("irq", SeriesLabel::Number(irq.into()))));
        labels
    }
}

struct Hardirqs {
    options: Options,
    /// Number of handlers that may have counters of their own.
    places: usize,
    handlers: PlacedHistograms<hard_row>,
}

impl Hardirqs {
    fn new(options: Options, handlers: Handlers) -> Hardirqs {
        let places = (handlers.interrupts() * 2).clamp(64, MOST).next_power_of_two();
        let handlers = PlacedHistograms::new(&BY_HANDLER, Ok(handlers), options.window.window(), options.buckets);
        Hardirqs { options, places, handlers }
    }

    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        // The first of a CPU may have begun before the programs were attached.
        let unseen = kernel.rows(CPUS).iter().map(|cpu| cpu.get(hard_cpu::unseen).saturating_sub(1)).sum();
        each("start-unseen: interrupts whose beginning was not seen", unseen);
    }
}

impl Module for Hardirqs {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        let size = BY_HANDLER.plan(self.places, host, plan);
        (constants.hard_mask, constants.hard_cpu_shift) = (size.mask, size.shift);
        constants.hard_shared = size.shift > 0;
        tell(size.shift, "an interrupt", "10 ns more per interrupt");
        plan.entries(CPUS.def.name, host.cpus);
        plan.attach(&ENTRY);
        plan.attach(&EXIT);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        let prometheus = self.options.prometheus;
        PlacedHistograms::add_tables(Running::of(*self), TABLES, prometheus, |module| Some(&mut module.handlers))
            .losses(Self::losses)
            .started()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::types::fine_hist;

    /// Makes a folder with the handlers of interrupts, each a number and a list. It lives as long as what is returned first.
    fn folder(interrupts: &[(u32, &str)]) -> (tempfile::TempDir, Handlers) {
        let folder = tempfile::tempdir().unwrap();
        for (irq, handlers) in interrupts {
            fs::create_dir_all(folder.path().join(irq.to_string())).unwrap();
            fs::write(folder.path().join(irq.to_string()).join("actions"), format!("{handlers}\n")).unwrap();
        }
        let handlers = Handlers(folder.path().into());
        (folder, handlers)
    }

    #[test]
    fn a_number_says_which_handler_of_an_interrupt_it_is() {
        let (_folder, handlers) = folder(&[(9, "acpi,i2c_designware.0"), (24, "virtio0-config"), (30, "")]);
        let found = |irq, handler: &str| handlers.name(number(irq, handler.as_bytes()));
        assert_eq!(found(9, "acpi").unwrap(), b"9::acpi");
        assert_eq!(found(9, "i2c_designware.0").unwrap(), b"9::i2c_designware.0", "longer than a program reads");
        let others = [found(9, "virtio0-config"), found(24, "acpi"), found(30, "acpi"), found(31, "acpi")];
        assert_eq!(others, [None, None, None, None]);
        assert_eq!([number(0, b"timer") as u32, number(0, b"") as u32], [1, 1]);
        assert_eq!((handlers.interrupts(), handlers.name(0)), (3, None));
    }

    #[test]
    fn a_handler_has_its_times_and_those_that_were_not_its_own() {
        let fake = Fake::new().with(OWNERS, 64).with(ROWS, 65).with(MARKS, 65).with(CPUS, 2);
        let (_folder, handlers) = folder(&[(24, "virtio0")]);
        fake.set(OWNERS, 5, place_owner::id, number(24, b"virtio0"));
        fake.row(ROWS, 6).part(hard_row::run).set(fine_hist::buckets.nth(Fine::bucket(3000)), 7);
        fake.row(ROWS, 6).part(hard_row::run).set(fine_hist::sum, 21_000);
        fake.set(ROWS, 6, hard_row::unhandled, 2);
        fake.row(ROWS, 0).part(hard_row::run).set(fine_hist::buckets.nth(Fine::bucket(3000)), 1);
        fake.set(CPUS, 1, hard_cpu::unseen, 3);
        let running = Box::new(Hardirqs::new(Options::default(), handlers)).start(&fake);
        let table = fake.filled(&TABLE, &running);
        assert_eq!(table.names(), ["24::virtio0", "other"]);
        let value = |name: &str| table.number(0, TABLE.column(name));
        assert_eq!(
            ["run.count", "run.sum", "unhandled.count"].map(|name| value(&format!("irq.hard.{name}"))),
            [7, 21_000, 2].map(Some)
        );
        let labels = [("handler", SeriesLabel::Text("virtio0".into())), ("irq", SeriesLabel::Number(24))];
        assert_eq!(table.labels(0).unwrap()[..], labels);
        let mut lost = Vec::new();
        running.losses(&fake, &mut |_, count| lost.push(count));
        assert_eq!(lost, [1, 2]);
    }
}
