//! Hits of tracepoints that the configuration names. Kernel side: bpf/tracepoint_hits.bpf.c.

use super::shared::hits::{Finder, Found, Hits, NoTargets, TargetList};
use crate::bpf::types::{self, hit};
use crate::host::Events;
use crate::kit::*;
use crate::{maps, metrics, module_log, options};

metrics! {
    HITS: u64 = 0 "tracepoint.hits" COUNTER COUNT "hits of each tracepoint";
}

maps! {
    rows ROWS: hit = "tp_hits";
}

options! {
    process;
    /// Required. Tracepoints: regular expressions that match a whole CATEGORY:EVENT of tracefs. One of raw_syscalls or syscalls sends every
    /// system call of every process along the kernel's slow path, which takes 70 ns more, whatever `process` says.
    tracepoints: ProbeList = ProbeList::default(), for example "sched:sched_process_exec,sched:sched_process_exit";
    /// No effect: tracepoints that cannot be attached to are always left out, and the log names them.
    compile_test: bool = true;
}

/// Largest number of targets, above the number of any kernel's tracepoints.
const MOST: usize = 4096;

static TRACEPOINT: Hook = Hook {
    name: "tracepoint",
    tiers: &[
        Tier { kind: "raw_tp", programs: &["each_raw__tracepoint_hits"] },
        Tier { kind: "tracepoint", programs: &["each_event__tracepoint_hits"] },
    ],
    needs: "a kernel with BPF programs at tracepoints",
};

static TABLE: TableSpec =
    TableSpec { cluster: 100, shape: Shape::Named { max: MOST }, metrics: METRICS, ..TableSpec::NEW };

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "tracepoint_hits",
    summary: "hits of tracepoints",
    overhead: Overhead::medium("67 ns per hit"),
    needs: "tracefs",
    tables: &[&TABLE],
    options: OPTIONS,
    hooks: &[&TRACEPOINT],
    maps: MAPS,
    needs_to_load: &[Need::Tracefs],
    make: |setup| {
        let options = Options::read(setup.section)?;
        if !options.compile_test {
            setup.section.info("compile_test has no effect: what cannot be attached to is always left out.");
        }
        let entries = options.tracepoints.required(setup.section, "tracepoints")?;
        let expression = |entry: &String| {
            let names = Expression::new(&format!("^(?:{entry})$"));
            let names = names.map_err(|fault| setup.section.reject("tracepoints", format!("`{entry}`: {fault}")))?;
            Ok((entry.clone(), names))
        };
        let entries: Result<Vec<_>, SetupError> = entries.entries().iter().map(expression).collect();
        let finder = TracepointFinder { entries: entries?, process: options.process };
        Ok(Box::new(Hits { finder, targets: TargetList::new(&TRACEPOINT), rows: ROWS, table: &TABLE, count: HITS }))
    },
    ..Spec::NEW
};

struct TracepointFinder {
    /// Entries as they are written, each with its expression.
    entries: Vec<(String, Expression)>,
    process: ProcessFilter,
}

impl TracepointFinder {
    fn find_among(&self, events: &Events, targets: &mut TargetList, plan: &mut Plan) {
        targets.find(plan, self.entries.iter().map(|(entry, names)| (entry.clone(), look(events, entry, names))));
        if let Err(reason) = events.list() {
            module_log!(warn, "plain names still work, regular expressions match nothing: {reason}");
        }
        if targets.is_empty() {
            let why = events.list().err().map(|reason| format!(" ({reason})")).unwrap_or_default();
            let entries: Vec<&str> = self.entries.iter().map(|(entry, _)| entry.as_str()).collect();
            let near = entries.iter().map(|entry| near(events, entry)).find(|near| !near.is_empty());
            plan.refuse(format!("no tracepoint matches {}{why}{}", entries.join(", "), near.unwrap_or_default()));
        }
    }
}

/// Returns the tracepoints that an entry matches.
fn look(events: &Events, entry: &str, names: &Expression) -> Found {
    let found: Vec<&str> = match events.list() {
        Ok(list) => list.iter().map(String::as_str).filter(|event| names.matches(event.as_bytes())).collect(),
        // A tracepoint can be attached to by its event's name alone.
        Err(_) if is_name(entry) => vec![entry],
        Err(reason) => return Err(NoTargets::new(reason)),
    };
    if found.is_empty() {
        return Err(NoTargets::new(format_args!("matches no tracepoint{}", near(events, entry))));
    }
    let target = |event: &str| {
        let (category, name) = event.split_once(':')?;
        Some((event.to_string(), Target::Tracepoint { category: category.into(), event: name.into() }))
    };
    Ok(found.into_iter().filter_map(target).collect())
}

/// Returns `; did you mean ...?` with the tracepoint whose name is most similar; empty if none is.
fn near(events: &Events, entry: &str) -> String {
    let known = events.list().unwrap_or_default().iter().map(String::as_str);
    if is_name(entry) {
        did_you_mean(entry, known)
    } else {
        String::new()
    }
}

/// True if an entry is a plain `category:event`.
fn is_name(entry: &str) -> bool {
    let word =
        |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    entry.split_once(':').is_some_and(|(category, event)| word(category) && word(event))
}

impl Finder for TracepointFinder {
    fn find(&mut self, targets: &mut TargetList, _host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        self.find_among(&Events::read(), targets, plan);
        constants.tp_filter = plan.only(&self.process);
    }

    fn stride(constants: &mut types::rodata) -> &mut u32 {
        &mut constants.tp_stride
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcp::Atom;

    fn module(entries: &[&str]) -> Hits<TracepointFinder> {
        let entry = |entry: &&str| ((*entry).to_string(), Expression::new(&format!("^(?:{entry})$")).unwrap());
        let entries = entries.iter().map(entry).collect();
        let finder = TracepointFinder { entries, process: ProcessFilter::default() };
        Hits { finder, targets: TargetList::new(&TRACEPOINT), rows: ROWS, table: &TABLE, count: HITS }
    }

    impl Hits<TracepointFinder> {
        fn find(&mut self, events: &Events, plan: &mut Plan) {
            self.finder.find_among(events, &mut self.targets, plan);
        }
    }

    fn found(entries: &[&str], events: &Events) -> (Vec<String>, Option<String>) {
        let mut plan = Plan::default();
        module(entries).find(events, &mut plan);
        (plan.targets.iter().map(|(_, target, _)| target.to_string()).collect(), plan.refusal)
    }

    #[test]
    fn expressions_match_whole_names_and_no_tracepoint_stands_twice() {
        let events = Events::of(&["sched:sched_switch", "sched:sched_wakeup", "sched:sched_wakeup_new", "irq:x"]);
        let (all, refusal) = found(&["sched:sched_wakeup", "sched:sched_.*|irq:y", "irq:"], &events);
        assert_eq!(all, ["sched:sched_wakeup", "sched:sched_switch", "sched:sched_wakeup_new"]);
        assert_eq!(refusal, None);
        let (none, refusal) = found(&["irq:"], &events);
        assert_eq!((none.len(), refusal.as_deref()), (0, Some("no tracepoint matches irq:")));
    }

    #[test]
    fn an_entry_without_a_tracepoint_is_missing_with_its_reason() {
        let entries = ["sched:sched_switch", "irq:.*", "no:such"];
        let missing = |events: &Events| {
            let mut plan = Plan::default();
            module(&entries).find(events, &mut plan);
            (plan.missing, plan.refusal)
        };
        let missing_for = |reason: &str, entries: &[&str]| {
            (entries.iter().map(|entry| (entry.to_string(), reason.to_string())).collect::<Vec<_>>(), None)
        };
        let known = missing(&Events::of(&["sched:sched_switch"]));
        assert_eq!(known, missing_for("matches no tracepoint", &entries[1..]));
        let misspelt = found(&["sched:sched_swich"], &Events::of(&["sched:sched_switch", "irq:x"])).1.unwrap();
        let wanted = "no tracepoint matches sched:sched_swich; did you mean `sched:sched_switch`?";
        assert_eq!(misspelt, wanted);
        // What is a name is tried, and then the loader says whether it is there.
        assert_eq!(missing(&Events::unknown("not mounted")), missing_for("not mounted", &entries[1..2]));
    }

    #[test]
    fn a_name_of_any_length_is_the_instance_as_it_is_written() {
        let long = format!("{}:{}", "category".repeat(10), "event".repeat(30));
        let mut module = module(&[".*"]);
        let mut plan = Plan::default();
        module.find(&Events::of(&[&long]), &mut plan);
        assert_eq!(plan.targets[0].1.to_string(), long);
        let table = Fake::new().with(ROWS, 8).filled(&TABLE, &Box::new(module).start(&Fake::new()));
        let names: Vec<&[u8]> =
            table.keys().iter().map(|key| if let Key::Name(name) = key { table.text(name) } else { b"" }).collect();
        assert_eq!(names, [long.as_bytes()]);
    }

    #[test]
    fn without_tracefs_names_are_tried_expressions_match_none() {
        let events = Events::unknown("/sys/kernel/tracing is not mounted");
        let (all, refusal) = found(&["sched:sched_switch", "irq:.*"], &events);
        assert_eq!((all, refusal), (vec!["sched:sched_switch".to_string()], None));
        let (_, refusal) = found(&["irq:.*"], &events);
        assert!(refusal.unwrap().contains("/sys/kernel/tracing is not mounted"));
    }

    #[test]
    fn every_tracepoint_counts_and_one_never_hit_has_zero() {
        let mut module = module(&["a:.*"]);
        let events: Vec<String> = (0..9).map(|i| format!("a:e{i}")).collect();
        let events: Vec<&str> = events.iter().map(String::as_str).collect();
        let mut plan = Plan::default();
        module.find(&Events::of(&events), &mut plan);
        // Two CPUs of 16 counters; the last tracepoint could not be attached to.
        let fake = Fake::new().with(ROWS, 32).out_of_reach(8);
        fake.set(ROWS, 0, hit::count, 5);
        fake.set(ROWS, 16, hit::count, 2);
        fake.set(ROWS, 16 + 7, hit::count, 9);
        let table = fake.filled(&TABLE, &Box::new(module).start(&Fake::new()));
        let value = |row| table.value(row, 0);
        assert_eq!(table.len(), 8);
        assert_eq!((value(0), value(1), value(7)), (Some(Atom::U64(7)), Some(Atom::U64(0)), Some(Atom::U64(9))));
        assert!(matches!(&table.keys()[7], Key::Name(name) if table.text(name) == b"a:e7"));
    }
}
