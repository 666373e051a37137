//! A module that consists of its declaration only.

use super::{EachLoss, Host, Kernel, MapKind, Module, Plan, Running, Spec, Starting};
use crate::bpf::types;

/// Adds the tables and the work of a module that is being started.
type Add<T> = Box<dyn FnOnce(Starting<T>) -> Starting<T> + Send>;

/// A module of which everything is declared: all of its hooks are attached, its rows are per CPU, and its losses are those of its maps.
pub struct Declared<T = ()> {
    spec: &'static Spec,
    state: T,
    add: Add<T>,
}

impl Declared {
    /// Makes a module without state; `tables` adds its tables.
    pub fn new(
        spec: &'static Spec,
        tables: impl FnOnce(Starting<()>) -> Starting<()> + Send + 'static,
    ) -> Box<Declared> {
        Declared::of(spec, (), tables)
    }
}

impl<T: Send + 'static> Declared<T> {
    /// Makes a module with a state, of which `add` adds the tables and the work of each second.
    pub fn of(
        spec: &'static Spec,
        state: T,
        add: impl FnOnce(Starting<T>) -> Starting<T> + Send + 'static,
    ) -> Box<Declared<T>> {
        Box::new(Declared { spec, state, add: Box::new(add) })
    }
}

impl<T: Send + 'static> Module for Declared<T> {
    fn plan(&mut self, host: &Host, plan: &mut Plan, _constants: &mut types::rodata) {
        self.spec.hooks.iter().for_each(|hook| plan.attach(hook));
        for map in self.spec.maps.iter().filter(|map| map.kind == MapKind::Rows) {
            plan.entries(map.name, map.per_cpu.saturating_mul(host.cpus));
        }
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        let spec = self.spec;
        (self.add)(Running::of(self.state)).losses(move |_, kernel, each| losses(spec, kernel, each)).started()
    }
}

fn losses(spec: &Spec, kernel: &dyn Kernel, each: EachLoss<'_>) {
    let lost = spec.maps.iter().filter_map(|map| kernel.lost(map, spec.maps));
    if let Some(lost) = lost.reduce(u64::wrapping_add) {
        each("table-full: events whose key has no row in the table", lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::types::{exec_row, exec_stat, fork_row};
    use crate::kit::{Fake, When, KEYS};

    crate::maps! {
        rows ROWS: exec_row = "exec_rows", taken claims, lost exec_stat.lost in "exec_stats";
        rows STATS: exec_stat = "exec_stats";
        private STARTS: fork_row = "fork_starts";
    }

    static HOOK: crate::kit::Hook = crate::tracepoint!("task_newtask", "a kernel");
    static SPEC: Spec = Spec { hooks: &[&HOOK], maps: MAPS, ..Spec::NEW };

    fn module(spec: &'static Spec) -> Box<Declared> {
        Declared::new(spec, |running| running)
    }

    #[test]
    fn a_declared_module_attaches_its_hooks_and_sizes_its_rows() {
        let mut plan = Plan::default();
        module(&SPEC).plan(&Host { cpus: 4, ..Host::SMALL }, &mut plan, &mut crate::bpf::constants());
        assert_eq!(plan.hooks, [(&HOOK, When::Needed)]);
        assert_eq!(plan.entries, [(ROWS.def.name, 4), (STATS.def.name, 4)], "not {}", STARTS.name);
    }

    #[test]
    fn a_declared_module_says_what_found_no_row() {
        let fake = Fake::new().with(ROWS, 1).with(STATS, 2);
        fake.set(STATS, 1, exec_stat::lost, 5);
        let mut losses = Vec::new();
        module(&SPEC).start(&fake).losses(&fake, &mut |reason, count| losses.push((reason, count)));
        assert_eq!(losses, [("table-full: events whose key has no row in the table", 5)]);
        let unkeyed = Spec { maps: &[STARTS], ..Spec::NEW };
        module(Box::leak(Box::new(unkeyed))).start(&fake).losses(&fake, &mut |reason, _| panic!("{reason}: of no map"));
    }

    #[test]
    fn the_rows_of_a_key_are_as_many_in_the_programs() {
        let header = include_str!("../../bpf/shared/keys.bpf.h");
        assert!(header.contains(&format!("\n#define KEYS {KEYS} ")), "{KEYS}");
    }
}
