//! Counting of the hits of a template's targets, for all modules that count hits. Kernel side: bpf/shared/hits.bpf.h.

use crate::bpf::types::{hit, rodata};
use crate::kit::{
    EachLoss, Hook, Host, Kernel, Metric, Module, NamedSeries, Namer, Plan, Rows, Running, SeriesDef, SeriesHistograms,
    SeriesLabel, Table, TableSpec, Target,
};
use std::fmt::Display;
use std::time::Instant;
use thiserror::Error;

/// Counters in a cache line: those of one CPU fill whole lines, so that CPUs do not share one.
const LINE: usize = 8;

/// Counters by number, a row per CPU and number.
#[derive(Clone, Copy)]
pub struct Counters {
    rows: Rows<hit>,
    stride: usize,
}

impl Counters {
    /// Makes `count` counters.
    pub fn new(rows: Rows<hit>, count: usize) -> Counters {
        Counters { rows, stride: count.next_multiple_of(LINE).max(LINE) }
    }

    /// Sizes the map. Returns the number of counters per CPU, which the program has to know.
    pub fn size(self, host: &Host, plan: &mut Plan) -> u32 {
        plan.entries(self.rows.def.name, host.cpus * self.stride);
        self.stride as u32
    }

    /// Returns the count under a number on all CPUs.
    pub fn sum(self, kernel: &dyn Kernel, number: usize) -> u64 {
        let per_cpu = kernel.rows(self.rows).iter().skip(number).step_by(self.stride);
        per_cpu.map(|row| row.get(hit::count)).sum()
    }
}

/// Targets of an entry of the configuration, each with its instance name; or the reason why there are none.
pub type Found = Result<Vec<(String, Target)>, NoTargets>;

/// Reason why an entry of the configuration has no targets.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct NoTargets(String);

impl NoTargets {
    /// Makes an error with this reason.
    pub fn new(reason: impl Display) -> NoTargets {
        NoTargets(reason.to_string())
    }
}

/// Times of calls of functions, in rows for each function of each CPU.
pub type CallTimes = SeriesHistograms<TargetList>;

/// Largest number of functions with histograms; each takes 3.7 KB for each CPU.
pub const TIMED: usize = 128;

/// Targets of a template that the configuration names. Targets with the same instance name have the same number.
#[derive(Clone)]
pub struct TargetList {
    template: &'static Hook,
    /// Instance names by number.
    names: Vec<String>,
    /// True if the module attaches to processes that come and go, false if the loader attaches at the start.
    by_process: bool,
}

impl TargetList {
    /// Makes a list for targets to which the loader attaches at the start.
    pub fn new(template: &'static Hook) -> TargetList {
        TargetList { template, names: Vec::new(), by_process: false }
    }

    /// Makes a list for targets to which the module attaches in each process.
    pub fn by_process(template: &'static Hook) -> TargetList {
        TargetList { by_process: true, ..TargetList::new(template) }
    }

    /// Adds the targets of each entry of the configuration. Refuses the plan if there are none at all.
    pub fn find(&mut self, plan: &mut Plan, entries: impl Iterator<Item = (String, Found)>) {
        for (entry, found) in entries {
            match found {
                Ok(targets) => self.add(plan, targets),
                Err(reason) => plan.leave_out(entry, reason.to_string()),
            }
        }
        if self.is_empty() {
            plan.refuse_for_missing();
        }
    }

    /// Adds the targets of an entry; targets whose name an earlier entry had are attached already.
    fn add(&mut self, plan: &mut Plan, targets: Vec<(String, Target)>) {
        let earlier = self.names.len();
        for (name, target) in targets {
            let number = self.names.iter().position(|known| *known == name).unwrap_or_else(|| {
                self.names.push(name);
                self.names.len() - 1
            });
            if number >= earlier && !self.by_process {
                plan.attach_template(self.template, target, number as u32);
            }
        }
    }

    /// Returns the number of names.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// True if there are no names.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns the names with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &str)> {
        self.names.iter().map(String::as_str).enumerate()
    }

    /// Returns the names with an attached target, with their numbers. Names whose targets are attached by process are all included.
    pub fn attached<'a>(&'a self, kernel: &'a dyn Kernel) -> impl Iterator<Item = (usize, &'a str)> {
        self.iter().filter(|(number, _)| self.by_process || kernel.reaches(self.template, *number as u32))
    }
}

impl Namer for TargetList {
    fn name(&mut self, key: u64) -> Option<NamedSeries> {
        let name = self.names.get(key as usize - 1)?;
        Some((name.as_bytes().to_vec(), vec![("function", SeriesLabel::Text(name.clone()))]))
    }

    fn turn(&self) -> usize {
        self.names.len()
    }

    fn counts(&mut self, kernel: &dyn Kernel, key: u64) -> bool {
        self.by_process || kernel.reaches(self.template, key as u32 - 1)
    }
}

/// The part of a module that counts hits which differs between such modules.
pub trait Finder: Send {
    /// Finds the targets, and sets the filter of the programs.
    fn find(&mut self, targets: &mut TargetList, host: &Host, plan: &mut Plan, constants: &mut rodata);

    /// The constant that has the number of counters per CPU.
    fn stride(constants: &mut rodata) -> &mut u32;

    /// Work of each second.
    fn tick(&mut self, _targets: &TargetList, _kernel: &dyn Kernel) {}

    /// Time of the next work besides.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// Times of the calls; `None`: not taken.
    fn times(&mut self) -> Option<&mut CallTimes> {
        None
    }

    /// Definition of the tables of the times, and whether Prometheus has them; `None`: there are none.
    fn tables_of_times(&self) -> Option<(&'static SeriesDef, bool)> {
        None
    }

    /// Lost events.
    fn losses(&self, _kernel: &dyn Kernel, _each: EachLoss<'_>) {}
}

/// A module that counts the hits of targets, with an instance for each target, even before its first hit.
pub struct Hits<F> {
    pub finder: F,
    pub targets: TargetList,
    /// The counters.
    pub rows: Rows<hit>,
    /// The table.
    pub table: &'static TableSpec,
    /// The metric.
    pub count: Metric<u64>,
}

impl<F> Hits<F> {
    fn counters(&self) -> Counters {
        Counters::new(self.rows, self.targets.len())
    }
}

impl<F: Finder + 'static> Module for Hits<F> {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut rodata) {
        self.finder.find(&mut self.targets, host, plan, constants);
        *F::stride(constants) = self.counters().size(host, plan);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        let table = self.table;
        let tables_of_times = self.finder.tables_of_times();
        let running = Running::of(*self).table(table, Self::refresh);
        let running = match tables_of_times {
            Some((def, prometheus)) => {
                CallTimes::add_tables(running, &[def], prometheus, |module| module.finder.times())
            }
            None => running,
        };
        running
            .tick(|module, kernel| module.finder.tick(&module.targets, kernel))
            .due(|module| module.finder.due())
            .losses(|module, kernel, each| module.finder.losses(kernel, each))
            .started()
    }
}

impl<F: Finder> Hits<F> {
    fn refresh(&mut self, kernel: &dyn Kernel, table: &mut Table) {
        for (number, name) in self.targets.attached(kernel) {
            table.named(name.as_bytes()).set(self.count, self.counters().sum(kernel, number));
        }
    }
}

/// Losses of modules that time calls: returns without a beginning, of which some are those of displaced starts.
pub fn losses_of_calls(unmatched: u64, displaced: u64, each: EachLoss<'_>) {
    each("start-unseen: returns of functions whose start was not seen", unmatched.saturating_sub(displaced));
    each("untimed: calls whose time is not known because too many threads were in such functions", displaced);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::Fake;

    static HOOK: Hook = Hook { name: "f", tiers: &[], needs: "" };

    fn code(name: &str, offset: u64) -> (String, Target) {
        let target = Target::Code { path: "/f".into(), offset, semaphore: 0, process: None, name: name.into() };
        (name.into(), target)
    }

    fn found(list: &mut TargetList, entries: Vec<(&str, Found)>) -> (Vec<(u64, u32)>, Plan) {
        let mut plan = Plan::default();
        list.find(&mut plan, entries.into_iter().map(|(entry, found)| (entry.to_string(), found)));
        let offset = |target: &Target| if let Target::Code { offset, .. } = target { *offset } else { 0 };
        (plan.targets.iter().map(|(_, target, number)| (offset(target), *number)).collect(), plan)
    }

    #[test]
    fn a_name_has_one_number_and_is_attached_to_once() {
        let mut list = TargetList::new(&HOOK);
        let entries = vec![
            ("a", Ok(vec![code("x", 1), code("y", 2), code("x", 3)])),
            ("b", Err(NoTargets::new("is not there"))),
            ("c", Ok(vec![code("y", 4), code("z", 5)])),
        ];
        let (targets, plan) = found(&mut list, entries);
        assert_eq!(targets, [(1, 0), (2, 1), (3, 0), (5, 2)]);
        assert_eq!((plan.missing, plan.refusal), (vec![("b".into(), "is not there".into())], None));
        let fake = Fake::new().out_of_reach(1);
        assert_eq!(list.attached(&fake).collect::<Vec<_>>(), [(0, "x"), (2, "z")]);
    }

    #[test]
    fn targets_by_process_are_not_attached_to_at_the_start() {
        let mut list = TargetList::by_process(&HOOK);
        let (targets, plan) = found(&mut list, vec![("a", Ok(vec![code("x", 1)]))]);
        assert_eq!((targets.len(), plan.refusal), (0, None));
        assert_eq!(list.attached(&Fake::new().out_of_reach(0)).collect::<Vec<_>>(), [(0, "x")]);
    }

    #[test]
    fn a_list_without_a_target_refuses_with_every_reason() {
        let (_, plan) = found(
            &mut TargetList::new(&HOOK),
            vec![("a", Err(NoTargets::new("one"))), ("b", Err(NoTargets::new("two")))],
        );
        assert_eq!(plan.refusal.as_deref(), Some("one; two"));
    }
}
