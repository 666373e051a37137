//! The agent's own metrics, `agent.*`: what became of each module, what its programs and maps cost, what was lost. To a client
//! they are like a module's; the configuration has no section for them, and they are always there.

use super::{held, Configuration, Modules, Slot};
use crate::bpf::OBJECT;
use crate::catalog::ServedTable;
use crate::kit::{Kernel, Metric, Number, RowMut, Shape, Spec, Table, TableId, TableSpec};
use crate::loader::{self, Finding, Reach};
use crate::metrics;
use crate::state::Restarts;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Instant;

/// A table of the agent's own.
pub struct StatusTable {
    /// Its declaration.
    pub spec: &'static TableSpec,
    fill: fn(&Modules, &Own, &mut Table),
}

impl StatusTable {
    /// What the collector knows it by.
    pub fn id(&self) -> TableId {
        TableId::new(self.spec.cluster as u16)
    }
}

/// All of them: clusters 300 to 305.
pub static STATUS: [StatusTable; 6] = [
    StatusTable { spec: &agent::TABLE, fill: agent::fill },
    StatusTable { spec: &module::TABLE, fill: module::fill },
    StatusTable { spec: &program::TABLE, fill: program::fill },
    StatusTable { spec: &map::TABLE, fill: map::fill },
    StatusTable { spec: &lost::TABLE, fill: lost::fill },
    StatusTable { spec: &feature::TABLE, fill: feature::fill },
];

/// Names in one of these domains: many times what there is.
const NAMES: usize = 10_000;
/// Targets that a sentence names one by one.
const NAMED: usize = 3;

mod agent {
    use super::*;

    metrics! {
        VERSION: str = 0 "agent.version" DISCRETE NONE "version of the agent";
        RELEASE: str = 1 "agent.kernel.release" DISCRETE NONE "release of the running kernel";
        LOADING: u64 = 2 "agent.load.time" DISCRETE MSEC "time it took to load the modules";
        UPTIME: u64 = 3 "agent.uptime" INSTANT SEC "time since the agent started";
        RESIDENT: u64 = 4 "agent.memory.resident" INSTANT BYTE "memory of the agent's process";
        FETCHES: u64 = 5 "agent.fetches" COUNTER COUNT "fetches answered";
        RESTARTS: u64 = 6 "agent.restarts" COUNTER COUNT "starts of the agent since the machine's, but for the first";
        CRASHES: u64 = 7 "agent.crashes" COUNTER COUNT "restarts after an agent that did not end in order";
        CONFIGURATION: str = 8 "agent.configuration.status" DISCRETE NONE "errors in the configuration, each with file, line and remedy";
        ERRORS: u32 = 9 "agent.configuration.errors" DISCRETE COUNT "number of errors in the configuration";
    }

    pub static TABLE: TableSpec = TableSpec {
        summary: "the agent as a whole",
        cluster: 300,
        shape: Shape::Single,
        metrics: METRICS,
        ..TableSpec::NEW
    };

    pub fn fill(group: &Modules, own: &Own, table: &mut Table) {
        let kernel = nix::sys::utsname::uname().map(|names| names.release().to_os_string()).unwrap_or_default();
        let row = table
            .single()
            .text(VERSION, env!("CARGO_PKG_VERSION").as_bytes())
            .text(RELEASE, kernel.as_encoded_bytes())
            .set(LOADING, group.loading.as_millis() as u64)
            .set(UPTIME, own.started.elapsed().as_secs())
            .set(FETCHES, own.fetches.load(Relaxed))
            .text(CONFIGURATION, own.configuration.status.as_bytes())
            .set(ERRORS, own.configuration.errors.len() as u32);
        let row = some(row, RESIDENT, loader::resident());
        let row = some(row, RESTARTS, own.restarts.as_ref().map(|restarts| restarts.count));
        some(row, CRASHES, own.restarts.as_ref().map(|restarts| restarts.crashes));
    }
}

mod module {
    use super::*;

    metrics! {
        STATE: str = 0 "agent.module.state" INSTANT NONE "running, postponed, no values, failed or off";
        STATUS: str = 1 "agent.module.status" INSTANT NONE "a sentence: how the module is attached, or why it is not";
        UP: u32 = 2 "agent.module.up" INSTANT NONE "1 if an enabled module is loaded and has values, else 0";
        REFRESHES: u64 = 3 "agent.module.refresh.count" COUNTER COUNT "refreshes of the module's values";
        TIME: u64 = 4 "agent.module.refresh.time" COUNTER NSEC "time that refreshes of the module's values took";
        ATTACHED: u64 = 5 "agent.module.targets.attached" INSTANT COUNT "configured targets that the module is attached to";
        MISSING: u64 = 6 "agent.module.targets.missing" INSTANT COUNT "configured targets that the module works without";
    }

    pub static TABLE: TableSpec = TableSpec {
        summary: "each module",
        cluster: 301,
        shape: Shape::Named { max: NAMES },
        metrics: METRICS,
        ..TableSpec::NEW
    };

    pub fn fill(group: &Modules, own: &Own, table: &mut Table) {
        for slot in &group.slots {
            let (state, status) = group.state(slot);
            let (count, time) = {
                let told = held(&slot.told);
                (told.count, told.time)
            };
            let (attached, missing) = group.targets(slot);
            table
                .named(slot.name.as_bytes())
                .text(STATE, state.as_bytes())
                .text(STATUS, status.as_bytes())
                .set(UP, u32::from(!matches!(state, "failed" | "no values")))
                .set(REFRESHES, count)
                .set(TIME, time.as_nanos() as u64)
                .set(ATTACHED, attached)
                .set(MISSING, missing);
        }
        for (name, why) in &own.configuration.lost {
            table.named(name.as_bytes()).text(STATE, b"failed").text(STATUS, why.as_bytes()).set(UP, 0);
        }
        for (name, how) in &own.configuration.off {
            table.named(name.as_bytes()).text(STATE, b"off").text(STATUS, how.as_bytes());
        }
    }
}

mod program {
    use super::*;

    metrics! {
        HOOK: str = 0 "agent.program.hook" DISCRETE NONE "where a BPF program is attached";
        KIND: str = 1 "agent.program.kind" DISCRETE NONE "kind of a BPF program: tp_btf, raw_tp, fentry, kprobe, ...";
        MODULES: str = 2 "agent.program.modules" DISCRETE NONE "the modules that a BPF program serves";
        ATTACHED: u32 = 3 "agent.program.attached" INSTANT NONE "1 if a BPF program is attached, else 0";
        RUNS: u64 = 4 "agent.program.runs" COUNTER COUNT "runs of a BPF program";
        TIME: u64 = 5 "agent.program.time" COUNTER NSEC "time that the runs of a BPF program took";
        MISSES: u64 = 6 "agent.program.misses" COUNTER COUNT "runs of a BPF program that the kernel left out";
    }

    pub static TABLE: TableSpec = TableSpec {
        summary: "each BPF program",
        cluster: 302,
        shape: Shape::Named { max: NAMES },
        metrics: METRICS,
        ..TableSpec::NEW
    };

    pub fn fill(group: &Modules, own: &Own, table: &mut Table) {
        let counting = own.runs.is_some() || loader::counts_runs();
        for program in group.loaded.programs() {
            let modules = OBJECT.users(&program.name).unwrap_or_default();
            let row = table
                .named(program.name.as_bytes())
                .text(KIND, program.kind.as_bytes())
                .text(MODULES, group.users(|spec| modules.contains(&spec.name)).as_bytes())
                .set(ATTACHED, u32::from(program.attached));
            let row = match &program.hook {
                Some(hook) => row.text(HOOK, hook.as_bytes()),
                None => row,
            };
            // A zero would look like a program that never ran.
            let counted = counting || program.runs > 0;
            let row = some(row, RUNS, counted.then_some(program.runs));
            let row = some(row, TIME, counted.then_some(program.time));
            some(row, MISSES, program.misses);
        }
    }
}

mod map {
    use super::*;

    metrics! {
        KIND: str = 0 "agent.map.kind" DISCRETE NONE "kind of a BPF map: array, hash, ringbuf, ...";
        MODULES: str = 1 "agent.map.modules" DISCRETE NONE "the modules that use a BPF map";
        CAPACITY: u64 = 2 "agent.map.entries.capacity" DISCRETE COUNT "entries that a BPF map has room for";
        USED: u64 = 3 "agent.map.entries.used" INSTANT COUNT "entries in a BPF map that can have fewer than its capacity";
        KEY: u64 = 4 "agent.map.key.size" DISCRETE BYTE "size of a key of a BPF map";
        VALUE: u64 = 5 "agent.map.value.size" DISCRETE BYTE "size of a value of a BPF map";
        MEMORY: u64 = 6 "agent.map.memory" INSTANT BYTE "memory of a BPF map in the kernel";
        RING_SIZE: u64 = 7 "agent.map.ring.size" DISCRETE BYTE "size of a ring buffer";
        RING_USED: u64 = 8 "agent.map.ring.used" INSTANT BYTE "records in a ring buffer that the agent has not read yet";
        LOST: u64 = 9 "agent.map.lost" COUNTER COUNT "what found no place in a BPF map";
    }

    pub static TABLE: TableSpec = TableSpec {
        summary: "each BPF map",
        cluster: 303,
        shape: Shape::Named { max: NAMES },
        metrics: METRICS,
        ..TableSpec::NEW
    };

    pub fn fill(group: &Modules, _own: &Own, table: &mut Table) {
        let kernel: &dyn Kernel = &*group.loaded;
        for map in group.loaded.maps() {
            let specs = group.slots.iter().map(|slot| slot.spec);
            let def = specs
                .flat_map(|spec| spec.maps.iter().map(|def| (def, spec.maps)))
                .find(|(def, _)| def.name == map.name);
            let taken = def.and_then(|(def, _)| kernel.taken(def));
            let users = group.users(|spec| spec.maps.iter().any(|def| def.name == map.name));
            let row = table.named(map.name.as_bytes()).text(KIND, map.kind.as_bytes()).text(MODULES, users.as_bytes());
            let row = some(row, MEMORY, map.memory);
            let row = some(row, LOST, def.and_then(|(def, maps)| kernel.lost(def, maps)));
            if map.kind == "ringbuf" {
                some(row.set(RING_SIZE, map.capacity.into()), RING_USED, map.used);
            } else {
                let row = row
                    .set(CAPACITY, map.capacity.into())
                    .set(KEY, map.key_size.into())
                    .set(VALUE, map.value_size.into());
                some(row, USED, map.used.or(taken));
            }
        }
    }
}

mod lost {
    use super::*;

    metrics! {
        EVENTS: u64 = 0 "agent.lost.events" COUNTER COUNT "what a module saw but could not count, by reason";
    }

    pub static TABLE: TableSpec = TableSpec {
        summary: "each kind of loss",
        cluster: 304,
        shape: Shape::Named { max: NAMES },
        metrics: METRICS,
        ..TableSpec::NEW
    };

    pub fn fill(group: &Modules, _own: &Own, table: &mut Table) {
        let kernel: &dyn Kernel = &*group.loaded;
        for slot in &group.slots {
            let name = &slot.name;
            // One that is at work is not waited for.
            let Some(working) = slot.idle() else { continue };
            working.module.losses(kernel, &mut |reason, count| {
                table.named(instance(name, reason).as_bytes()).set(EVENTS, count);
            });
        }
    }

    /// `MODULE::reason` up to its first comma or the like, without blanks, since libpcp takes what precedes the first for the name.
    pub fn instance(module: &str, reason: &str) -> String {
        let short = reason.split([',', ';', ':', '(']).next().unwrap_or(reason).trim();
        format!("{module}::{}", short.replace(' ', "-"))
    }
}

mod feature {
    use super::*;

    metrics! {
        THERE: u32 = 0 "agent.kernel.feature" DISCRETE NONE "1 if the kernel has the feature, 0 if not";
        STATUS: str = 1 "agent.kernel.status" DISCRETE NONE "how a feature of the kernel showed, or why it is not there";
    }

    pub static TABLE: TableSpec = TableSpec {
        summary: "each feature",
        cluster: 305,
        shape: Shape::Named { max: NAMES },
        metrics: METRICS,
        ..TableSpec::NEW
    };

    pub fn fill(group: &Modules, own: &Own, table: &mut Table) {
        for Finding { feature, there, said } in group.findings.iter().chain([&own.counting]) {
            let row = table.named(feature.as_bytes()).text(STATUS, said.as_bytes());
            some(row, THERE, there.map(u32::from));
        }
    }
}

/// A number if there is one.
fn some<T: Number>(row: RowMut<'_>, metric: Metric<T>, value: Option<T>) -> RowMut<'_> {
    match value {
        Some(value) => row.set(metric, value),
        None => row,
    }
}

/// What the metrics about the agent need to know besides the modules' thread.
pub struct Own {
    started: Instant,
    fetches: Arc<AtomicU64>,
    configuration: Configuration,
    /// Held as long as the kernel is to count runs.
    runs: Option<OwnedFd>,
    /// Whether it does.
    counting: Finding,
    /// The starts before this one, where they can be counted.
    pub restarts: Option<Restarts>,
}

impl Own {
    /// Begins the time since the start. `bpf_stats`: let the kernel count the runs of programs.
    pub fn new(configuration: Configuration, bpf_stats: bool) -> Own {
        let found = |there, said: String| Finding::new("bpf_stats", there, said);
        let (runs, counting) = match bpf_stats.then(loader::count_runs).transpose() {
            Ok(None) => (None, found(None, "not tried: [pmda] has no `bpf_stats = True`".into())),
            Ok(runs) => (runs, found(Some(true), "the kernel counts runs of programs and their time".into())),
            Err(error) => {
                let reason = format!("the kernel refuses to count runs ({error}); it needs Linux 5.8 and root");
                log::warn!("bpf_stats has no effect: {reason}");
                (None, found(Some(false), reason))
            }
        };
        Own { started: Instant::now(), fetches: Arc::default(), configuration, runs, counting, restarts: None }
    }

    /// The count of fetches, for whoever sees them.
    pub fn fetches(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.fetches)
    }
}

/// The agent's own tables as they are served.
pub fn status_tables(prefix: &str) -> impl Iterator<Item = ServedTable> + '_ {
    STATUS.iter().map(move |table| ServedTable {
        id: table.id(),
        spec: table.spec,
        section: String::new(),
        prefix: prefix.into(),
        rows: 0,
        bpf_names: false,
    })
}

impl Modules {
    /// Fills one of the tables of [`STATUS`].
    pub(super) fn refresh_status(&self, id: TableId, table: &mut Table) -> Result<(), String> {
        let status = STATUS.iter().find(|status| status.id() == id);
        let (Some(status), Some(own)) = (status, self.own.get()) else { return Err("not served".into()) };
        catch_unwind(AssertUnwindSafe(|| (status.fill)(self, own, table))).map_err(|panic| {
            table.clear();
            let error = super::message(panic.as_ref());
            log::error!("{}: {error}", status.spec.summary);
            error
        })
    }

    /// The modules, those that failed left out, of which this holds.
    fn users(&self, is: impl Fn(&Spec) -> bool) -> String {
        let users = self.slots.iter().filter(|slot| slot.module.is_ok() && is(slot.spec));
        users.map(|slot| &*slot.name).collect::<Vec<_>>().join(",")
    }

    /// The number of configured targets that a module is attached to, and of those that it works without.
    fn targets(&self, slot: &Slot) -> (u64, u64) {
        let is_attached = |reach: &&Reach| reach.module == slot.spec.name && reach.result.is_ok();
        (self.loaded.targets().iter().filter(is_attached).count() as u64, self.missing(slot).len() as u64)
    }

    /// A module's state in a word, and in a sentence that says why and what to do.
    pub(super) fn state(&self, slot: &Slot) -> (&'static str, String) {
        if let Err(failure) = &slot.module {
            return ("failed", failure.to_string());
        }
        if let Some(error) = &held(&slot.told).trouble {
            return ("no values", error.clone());
        }
        let spec = slot.spec;
        let (mut ways, mut idle, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        let attached = self.loaded.attached();
        for hook in spec.hooks {
            let attempts = || self.attempts.iter().filter(|attempt| attempt.hook == hook.name);
            if let Some((_, kind)) = attached.iter().find(|(name, _)| *name == hook.name) {
                ways.push(format!("{} by {kind}", hook.name));
            } else if attempts().any(|attempt| attempt.result.is_ok()) {
                idle.push(hook.name);
            } else if let Some(Err(refusal)) = attempts().next_back().map(|attempt| &attempt.result) {
                missing.push(format!("{} ({})", hook.name, refusal.words));
            }
        }
        let reaches = self.loaded.targets().iter().filter(|reach| reach.module == spec.name);
        let mut targets: BTreeMap<&str, usize> = BTreeMap::new();
        for tier in reaches.filter_map(|reach| reach.result.as_ref().ok()) {
            *targets.entry(tier.kind).or_default() += 1;
        }
        missing.extend(self.missing(slot).into_iter().map(|(target, reason)| format!("{target} ({reason})")));
        ways.extend(
            targets
                .iter()
                .map(|(kind, count)| format!("{count} target{} by {kind}", if *count == 1 { "" } else { "s" })),
        );
        let mut parts = Vec::new();
        if !ways.is_empty() {
            parts.push(format!("attached to {}", ways.join(", ")));
        }
        if !idle.is_empty() {
            parts.push(format!("loaded, attached when needed: {}", idle.join(", ")));
        }
        if !missing.is_empty() {
            let named = missing.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
            let others = missing.len().saturating_sub(NAMED);
            let others = if others > 0 { format!(" and {others} others") } else { String::new() };
            parts.push(format!("not attached to {named}{others}"));
        }
        (if ways.is_empty() { "postponed" } else { "running" }, parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf;
    use crate::config::Config;
    use crate::kit::{Fake, Host, Plan, Setup};
    use crate::modules::MODULES;
    use std::collections::BTreeSet;

    #[test]
    fn losses_have_names_of_their_own_without_blanks() {
        assert_eq!(lost::instance("a", "b c; d should be e"), "a::b-c");
        let host = Host::SMALL;
        let mut names = BTreeSet::new();
        for spec in MODULES {
            let config = Config::parse("test", spec.section("").as_bytes()).unwrap();
            let setup = Setup { section: &config.section(spec.name).unwrap(), process_refresh: None };
            let mut module = (spec.make)(&setup).unwrap();
            module.plan(&host, &mut Plan::default(), &mut bpf::constants());
            module.losses(&Fake::new(), &mut |reason, _| {
                let name = lost::instance(spec.name, reason);
                assert!(!name.contains(char::is_whitespace) && name.len() < 100, "{name}");
                assert!(names.insert(name), "{reason}: the same up to its first comma as another of {}", spec.name);
            });
        }
        assert!(names.len() > 10, "{names:?}");
    }
}
