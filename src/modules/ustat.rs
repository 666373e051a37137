//! Events of language runtimes by process: threads, method calls, objects, classes, exceptions, garbage collections. Kernel
//! side: bpf/ustat.bpf.c.

use super::shared::runtimes::{numbered, runtime, Event, Language, BEYOND, EVENTS};
use crate::bpf::types::{self, us_row, us_stat};
use crate::host::exists;
use crate::kit::*;
use crate::process::{NoProbes, ProcessProbes};
use crate::{maps, metrics, options, user_code};
use std::collections::BTreeMap;

metrics! {
    THREAD: u64 = 0 "proc.ustat.thread" COUNTER COUNT "threads that a runtime started";
    METHOD: u64 = 1 "proc.ustat.method" COUNTER COUNT "methods that a runtime called";
    OBJECT: u64 = 2 "proc.ustat.object" COUNTER COUNT "objects that a runtime created";
    CLASS: u64 = 3 "proc.ustat.class" COUNTER COUNT "classes or files that a runtime loaded";
    EXCEPT: u64 = 4 "proc.ustat.except" COUNTER COUNT "exceptions in a runtime";
    GC: u64 = 5 "proc.ustat.gc" COUNTER COUNT "garbage collections of a runtime";
}

maps! {
    rows ROWS: us_row = "us_rows", taken claims, lost us_stat.crowded in "us_stats";
    rows STATS: us_stat = "us_stats";
}

options! {
    /// Only these processes count. With USDT probes: if only PIDs are listed, probes are attached to those processes alone; otherwise to
    /// the executables they run.
    process: ProcessFilter = ProcessFilter::named("java");
    /// Language runtime. Default: detected from the process's executable and libraries.
    language: Language = Language::default();
}

/// Number of rows: twice the expected number of processes, so that each finds one.
const SLOTS: usize = 2048;

static SITE: Hook = user_code!("USDT probe of a runtime", "ustat");

static TABLE: TableSpec = TableSpec { cluster: 17, shape: Shape::Pids, metrics: METRICS, ..TableSpec::NEW };

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "ustat",
    summary: "events of language runtimes by process",
    overhead: Overhead::high("100 ns per event, and 880 ns for the breakpoint, in the traced process"),
    needs: "CONFIG_UPROBE_EVENTS and a runtime with USDT probes",
    tables: &[&TABLE],
    options: OPTIONS,
    hooks: &[&SITE],
    maps: MAPS,
    needs_to_run: &[Need::FilesOfProcesses, Need::UserProbes],
    make: |setup| {
        let options = Options::read(setup.section)?;
        Ok(Box::new(Ustat {
            language: options.language,
            probes: ProcessProbes::new(setup.section.name(), options.process),
            claims: OwnedTable::new(us_row::process, us_row::claims),
            seen: false,
        }))
    },
    ..Spec::NEW
};

struct Ustat {
    language: Language,
    probes: ProcessProbes,
    claims: OwnedTable<us_row>,
    /// True once there was a process to count.
    seen: bool,
}

impl Module for Ustat {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        constants.us_filter = self.probes.plan(plan, &SITE);
        constants.us_mask = SLOTS as u32 - 1;
        plan.entries(ROWS.def.name, SLOTS);
        plan.entries(STATS.def.name, host.cpus);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        Running::of(*self)
            .table(&TABLE, Self::refresh)
            .tick(Self::tick)
            .due(|module| module.probes.due())
            .waits_for(|module, _| module.probes.waits_for("events"))
            .losses(Self::losses)
            .started()
    }
}

impl Ustat {
    fn refresh(&mut self, kernel: &dyn Kernel, table: &mut Table) {
        let attached = self.probes.attached().filter(|&pid| exists(pid));
        let mut counts: BTreeMap<u32, [u64; EVENTS]> = attached.map(|pid| (pid, [0; EVENTS])).collect();
        if counts.is_empty() {
            return; // the rows may not have been touched yet
        }
        // Two rows may be one process's, whose threads claimed them at once.
        for row in kernel.rows(ROWS).iter() {
            let Some(counts) = counts.get_mut(&(row.get(us_row::process) as u32)) else { continue };
            counts.iter_mut().zip(row.words(us_row::counts)).for_each(|(sum, count)| *sum += count);
        }
        for (pid, counts) in counts {
            let cells = table.process(pid, pid.to_string().as_bytes());
            let cells = cells.set(THREAD, counts[Event::Thread as usize]).set(METHOD, counts[Event::Method as usize]);
            let cells = cells.set(OBJECT, counts[Event::Object as usize]).set(CLASS, counts[Event::Class as usize]);
            cells.set(EXCEPT, counts[Event::Except as usize]).set(GC, counts[Event::Gc as usize]);
        }
    }

    fn tick(&mut self, kernel: &dyn Kernel) {
        let Ustat { language, probes, claims, seen } = self;
        probes.tick(kernel, &SITE, &mut |files, pid| {
            let (runtime, its) = runtime(files, pid, *language)?;
            let sites = numbered(&its, |probe| {
                let event = runtime.events.iter().find(|(name, _)| *name == probe.name);
                event.map(|(_, event)| *event as u32)
            });
            if sites.is_empty() {
                return Err(NoProbes(format!("no probes of {} events in its build", runtime.language)));
            }
            Ok(sites)
        });
        *seen |= probes.attached().next().is_some();
        if !*seen {
            return; // touching the rows would take memory
        }
        let rows = kernel.rows(ROWS);
        let process = |row: Row<'_, us_row>| row.get(us_row::process) as u32;
        for row in rows.iter().filter(|row| process(*row) != 0 && !exists(process(*row))) {
            claims.release(row);
        }
        claims.release_contested(rows.iter().enumerate());
    }

    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        each(BEYOND, self.probes.beyond());
        each("table-full: events of processes without a row in the table", kernel.rows(STATS).sum(us_stat::crowded));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::host::ProbeFile;
    use crate::pcp::Atom;
    use crate::process::Site;
    use std::process::Command;
    use std::time::Duration;

    fn ustat(lines: &str) -> Result<Ustat, String> {
        let config = Config::parse("test.conf", format!("[u]\n{lines}\n").as_bytes()).unwrap();
        let section = config.section("u").unwrap();
        (SPEC.make)(&Setup::new(&section)).map_err(|error| error.to_string())?;
        let options = Options::read(&section).unwrap();
        Ok(Ustat {
            language: options.language,
            probes: ProcessProbes::new("u", options.process),
            claims: OwnedTable::new(us_row::process, us_row::claims),
            seen: false,
        })
    }

    #[test]
    fn a_process_and_a_language_are_what_it_takes() {
        assert!(ustat("process = x\nlanguage = cobol").err().unwrap().contains("language: expected java, node"));
        assert_eq!(ustat("process = x\nlanguage = ruby").unwrap().language.show(), "ruby");
        assert_eq!(ustat("process =\nlanguage =").unwrap().language.show(), "");
    }

    #[test]
    fn events_add_up_and_rows_are_emptied_for_the_next_process() {
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let mut module = ustat(&format!("process = {}", child.id())).unwrap();
        let mut plan = Plan::default();
        module.probes.plan(&mut plan, &SITE);
        plan.arrivals.unwrap().tell(child.id(), true);
        let (fake, file) = (Fake::new().with(ROWS, 4).with(STATS, 1), ProbeFile::with(1));
        let site = Site { file, probe: 0, number: Event::Gc as u32 };
        module.probes.tick(&fake, &SITE, &mut |_, _| Ok(vec![site.clone()]));
        module.seen = true;
        // Two of its threads claimed rows at once; process 1 is not in the filter.
        let gc = us_row::counts.nth(Event::Gc as usize);
        for (place, process, collections) in [(0, child.id(), 3), (2, child.id(), 4), (3, 1, 9)] {
            fake.set(ROWS, place, us_row::process, process.into());
            fake.set(ROWS, place, us_row::claims, 1);
            fake.set(ROWS, place, gc, collections);
        }
        let table = fake.filled_by(&TABLE, |kernel, table| module.refresh(kernel, table));
        let name = table.keys()[0].clone();
        assert!(
            matches!(&name, Key::Pid(pid, text) if *pid == child.id() && table.text(text) == pid.to_string().as_bytes())
        );
        assert_eq!((table.len(), table.value(0, 5), table.value(0, 0)), (1, Some(Atom::U64(7)), Some(Atom::U64(0))));
        child.kill().unwrap();
        child.wait().unwrap();
        std::thread::sleep(Duration::from_secs(1)); // as ticks are
        module.tick(&fake);
        let table = fake.filled_by(&TABLE, |kernel, table| module.refresh(kernel, table));
        assert_eq!((table.len(), fake.targets().len()), (0, 0));
        let kernel: &dyn Kernel = &fake;
        let rows: Vec<[u64; 3]> = kernel
            .rows(ROWS)
            .iter()
            .map(|row| [us_row::claims, us_row::process, gc].map(|field| row.get(field)))
            .collect();
        assert_eq!(rows, [[0; 3], [0; 3], [0; 3], [1, 1, 9]]);
    }
}
