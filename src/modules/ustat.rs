//! Events of language runtimes by process: threads, method calls, objects, classes, exceptions, garbage collections. Kernel
//! side: bpf/ustat.bpf.c.

use super::runtimes::{numbered, runtime, Event, Language};
use crate::bpf::types::{self, us_row};
use crate::kit::*;
use crate::{maps, metrics, options, user_code};
use std::mem::offset_of;

metrics! {
    THREAD: u64 = 0 "proc.ustat.thread" COUNTER COUNT "threads that a runtime started";
    METHOD: u64 = 1 "proc.ustat.method" COUNTER COUNT "methods that a runtime called";
    OBJECT: u64 = 2 "proc.ustat.object" COUNTER COUNT "objects that a runtime created";
    CLASS: u64 = 3 "proc.ustat.class" COUNTER COUNT "classes or files that a runtime loaded";
    EXCEPT: u64 = 4 "proc.ustat.except" COUNTER COUNT "exceptions in a runtime";
    GC: u64 = 5 "proc.ustat.gc" COUNTER COUNT "garbage collections of a runtime";
}

maps! {
    rows ROWS: us_row = "us_rows";
}

options! {
    /// The processes (ids, command names, or regular expressions for whole command lines); nothing is attached to others.
    process: ProcessFilter = ProcessFilter::named("java");
    /// The language they are in. Without it each process is known by the files it executes.
    language: Language = Language::default();
}

/// Processes that can count at once; each costs a program per kind of event.
const MOST: usize = 1024;
/// Room for kinds in a row.
const KINDS: usize = size_of::<us_row>() / 8;

static SITE: Hook = user_code!("USDT probe of a runtime", "ustat");

/// The declaration.
pub const SPEC: Spec = Spec {
    name: "ustat",
    path: "ustat",
    summary: "events of language runtimes by process",
    cluster: 17,
    shape: Shape::Pids,
    metrics: METRICS,
    options: OPTIONS,
    hooks: &[&SITE],
    maps: MAPS,
    make: |setup| {
        let options = Options::read(setup.section)?;
        let name = setup.section.name();
        let watch = Watch::new(name, options.process, setup.process_refresh);
        Ok(Box::new(Ustat {
            language: options.language,
            files: ProbeFiles::default(),
            tracees: Tracees::new(name, watch),
            places: vec![None; MOST],
        }))
    },
};

struct Ustat {
    language: Language,
    files: ProbeFiles,
    tracees: Tracees,
    /// The process, with its start time, that each row is for.
    places: Vec<Option<(u32, u64)>>,
}

/// The row of a process: the one it has, or another, emptied of its predecessor's counts.
fn place(places: &mut [Option<(u32, u64)>], kernel: &dyn Kernel, process: (u32, u64)) -> Result<usize, String> {
    if let Some(place) = places.iter().position(|place| *place == Some(process)) {
        return Ok(place);
    }
    let place = places.iter().position(Option::is_none).ok_or_else(|| format!("more than {MOST} processes"))?;
    if let Some(row) = kernel.rows(ROWS).get(place) {
        (0..size_of::<us_row>()).step_by(8).for_each(|offset| row.set(offset, 0));
    }
    places[place] = Some(process);
    Ok(place)
}

impl Module for Ustat {
    fn plan(&mut self, _host: &Host, plan: &mut Plan, _constants: &mut types::rodata) {
        plan.template(&SITE);
        plan.entries(ROWS.def.name, MOST);
    }

    fn refresh(&mut self, kernel: &dyn Kernel, table: &mut Table) -> Result<(), RefreshError> {
        let rows = kernel.rows(ROWS);
        for process in self.tracees.attached().filter(|&(pid, _)| exists(pid)) {
            let place = self.places.iter().position(|place| *place == Some(process));
            let Some(row) = place.and_then(|place| rows.get(place)) else { continue };
            let count = |event: Event| row.word(offset_of!(us_row, counts) + 8 * event as usize);
            table
                .process(process.0, process.0.to_string().as_bytes())
                .set(THREAD, count(Event::Thread))
                .set(METHOD, count(Event::Method))
                .set(OBJECT, count(Event::Object))
                .set(CLASS, count(Event::Class))
                .set(EXCEPT, count(Event::Except))
                .set(GC, count(Event::Gc));
        }
        Ok(())
    }

    fn tick(&mut self, kernel: &dyn Kernel) {
        let Ustat { language, files, tracees, places } = self;
        files.trim();
        tracees.tick(kernel, &SITE, &mut |pid, born| {
            let (runtime, its) = runtime(files, pid, *language)?;
            let mut sites = numbered(&its, pid, |probe| {
                let event = runtime.events.iter().find(|(name, _)| *name == probe.name);
                event.map(|(_, event)| *event as u32)
            });
            if sites.is_empty() {
                return Err(format!("no probes of {} events in its build", runtime.language));
            }
            let place = place(places, kernel, (pid, born))?;
            sites.iter_mut().for_each(|(_, number)| *number += (place * KINDS) as u32);
            Ok(sites)
        });
        for place in places.iter_mut() {
            *place = place.filter(|process| tracees.attached().any(|attached| attached == *process));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::pcp::Atom;

    fn ustat(lines: &str) -> Result<Ustat, String> {
        let config = Config::parse("test.conf", format!("[u]\n{lines}\n").as_bytes()).unwrap();
        let section = config.section("u").unwrap();
        (SPEC.make)(&Setup { section: &section, process_refresh: None }).map_err(|error| error.to_string())?;
        let options = Options::read(&section).unwrap();
        Ok(Ustat {
            language: options.language,
            files: ProbeFiles::default(),
            tracees: Tracees::new("u", Watch::new("u", options.process, None)),
            places: vec![None; 2],
        })
    }

    #[test]
    fn a_process_and_a_language_are_what_it_takes() {
        assert!(ustat("process = x\nlanguage = cobol").err().unwrap().contains("language: expected java, node"));
        assert!(ustat("process =").err().unwrap().contains("[u] process: expected process ids"));
        assert_eq!(ustat("process = x\nlanguage = ruby").unwrap().language.show(), "ruby");
    }

    #[test]
    fn a_row_is_emptied_for_its_next_process_and_kept_for_the_same() {
        let fake = Fake::new().with(ROWS, 2);
        let mut places = vec![None; 2];
        assert_eq!(place(&mut places, &fake, (7, 1)), Ok(0));
        fake.set(ROWS, 0, 8, 5);
        assert_eq!(place(&mut places, &fake, (7, 1)), Ok(0));
        let kernel: &dyn Kernel = &fake;
        let methods = || kernel.rows(ROWS).get(0).unwrap().word(8);
        assert_eq!(methods(), 5);
        places[0] = None;
        assert_eq!(place(&mut places, &fake, (7, 2)), Ok(0));
        assert_eq!(methods(), 0);
        assert_eq!(place(&mut places, &fake, (8, 2)), Ok(1));
        assert!(place(&mut places, &fake, (9, 2)).is_err());
    }

    #[test]
    fn probes_of_one_kind_add_up_in_the_row_of_the_process_while_it_lives() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let mut module = ustat(&format!("process = {}", child.id())).unwrap();
        let fake = Fake::new().with(ROWS, 2);
        let mut find = |pid, born| {
            place(&mut module.places, &fake, (pid, born))?;
            let target =
                |offset| Target::Code { path: "/f".into(), offset, semaphore: 0, process: Some(pid), name: "f".into() };
            Ok(vec![(target(1), Event::Gc as u32), (target(2), Event::Gc as u32)])
        };
        module.tracees.tick(&fake, &SITE, &mut find);
        fake.set(ROWS, 0, 8 * Event::Gc as usize, 3);
        let mut table = Table::new(6);
        module.refresh(&fake, &mut table).unwrap();
        let name = table.keys()[0].clone();
        assert!(
            matches!(&name, Key::Pid(pid, text) if *pid == child.id() && table.text(text) == pid.to_string().as_bytes())
        );
        assert_eq!((table.value(0, 5), table.value(0, 0)), (Some(Atom::U64(3)), Some(Atom::U64(0))));
        child.kill().unwrap();
        child.wait().unwrap();
        module.tick(&fake);
        table.clear();
        module.refresh(&fake, &mut table).unwrap();
        assert_eq!((table.len(), fake.targets().len()), (0, 0));
    }
}
