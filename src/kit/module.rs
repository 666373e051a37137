//! What a module does once it is declared: say what it wants loaded, then turn maps into a table at each refresh.

use super::{Fake, Hook, Kernel, MapDef, MetricDef, ProcessFilter, Table, TableSpec, Target};
use crate::bpf::{types, Feature, LateConstants};
use crate::config::{ConfigError, Section};
use crate::pcp::PmErr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use thiserror::Error;

/// What a module is made from.
pub struct Setup<'a> {
    /// Its section of the configuration.
    pub section: &'a Section<'a>,
    /// Time between two looks for the processes of its `process` option; `None`: only one look.
    pub process_refresh: Option<Duration>,
}

/// Why a module cannot be made from its section.
pub type SetupError = ConfigError;

/// Why a refresh has no values: reported to clients as `PM_ERR_VALUE`, logged when it begins and when it ends.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct RefreshError(pub String);

/// The machine a module sizes its maps by.
#[derive(Clone, Debug)]
pub struct Host {
    /// One more than the highest id of a CPU that may come online: rows per CPU are as many, since they are found by the id.
    pub cpus: usize,
    /// Disks (`/sys/block`).
    pub disks: usize,
    /// Threads now (the fourth field of `/proc/loadavg`).
    pub threads: usize,
    /// Requests that may be in flight on all disks (`nr_requests` of each queue).
    pub requests: usize,
    /// Megabytes of memory: how many threads and sockets there may come to be.
    pub memory: usize,
    /// Whether the agent is in a PID namespace of its own, so that its process ids are not those that the programs see.
    pub pid_namespace: bool,
}

impl Host {
    /// A small machine, for tests.
    pub const SMALL: Host = Host { cpus: 1, disks: 0, threads: 100, requests: 0, memory: 1024, pid_namespace: false };
}

/// When a hook that a module wants loaded is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At the start; without it the module does not work.
    Needed,
    /// At the start, where the kernel has it.
    Optional,
    /// At the start if the kernel has the feature, else when the module asks.
    If(Feature),
    /// When the module asks ([`Kernel::attach`], [`Kernel::sample`], [`Kernel::call`]).
    OnDemand,
}

/// What a module wants loaded.
#[derive(Default)]
pub struct Plan {
    /// Hooks to load, and when to attach each.
    pub hooks: Vec<(&'static Hook, When)>,
    /// Templates to attach, once per target; the number tells the targets of a module apart. A target that cannot be
    /// attached is left out; with none left the module does not work.
    pub targets: Vec<(&'static Hook, Target, u32)>,
    /// Entries of the configuration that no target was found for, each with the reason.
    pub missing: Vec<(String, String)>,
    /// Templates to load, for targets that come and go while the module works ([`Kernel::attach_to`]).
    pub templates: Vec<&'static Hook>,
    /// Entries of maps; a ring's size in bytes.
    pub entries: Vec<(&'static str, u32)>,
    /// Entries of maps that an agent before pinned for this module: only maps as large can continue its counts.
    pub pinned: Vec<(String, usize)>,
    /// A number without which what an agent before pinned means nothing.
    pub counts_by: Option<u64>,
    /// Why the module cannot work on this machine, if it can tell already.
    pub refusal: Option<String>,
    /// Sets the constants that take long to find, once nothing that can be told beforehand keeps the module from loading.
    pub late: Option<LateConstants>,
    /// The processes that count, if not all do.
    pub filter: Option<ProcessFilter>,
    /// Modules that do a part of this one's work in the kernel where they are on: it must go on when they are stopped.
    pub left_to: Vec<&'static str>,
    /// Where the module is told of them.
    pub arrivals: Option<Arrivals>,
    /// The number of the module among those of the configuration, which is that of its filter.
    pub number: usize,
}

impl Plan {
    /// Attaches to this hook at the start; without it the module does not work.
    pub fn attach(&mut self, hook: &'static Hook) {
        self.hooks.push((hook, When::Needed));
    }

    /// Attaches to this hook at the start where the kernel has it: [`Kernel::attach`] tells whether.
    pub fn attach_optional(&mut self, hook: &'static Hook) {
        self.hooks.push((hook, When::Optional));
    }

    /// Loads for this hook, and attaches at the start if the kernel has the feature.
    pub fn attach_if(&mut self, hook: &'static Hook, feature: Feature) {
        self.hooks.push((hook, When::If(feature)));
    }

    /// Loads for this hook, which the module attaches, samples or calls later.
    pub fn load_on_demand(&mut self, hook: &'static Hook) {
        self.hooks.push((hook, When::OnDemand));
    }

    /// Attaches the template to this target, under a number that its programs get (`ON_EACH_*`).
    pub fn attach_template(&mut self, template: &'static Hook, target: Target, number: u32) {
        self.targets.push((template, target, number));
    }

    /// Goes on without this entry of the configuration: nothing was found for it, for this reason.
    pub fn leave_out(&mut self, entry: impl Into<String>, reason: impl Into<String>) {
        self.missing.push((entry.into(), reason.into()));
    }

    /// Refuses: nothing was found for any entry.
    pub fn refuse_for_missing(&mut self) {
        let mut reasons: Vec<&str> = Vec::new();
        for (_, reason) in &self.missing {
            if !reasons.contains(&reason.as_str()) {
                reasons.push(reason);
            }
        }
        self.refuse(reasons.join("; "));
    }

    /// Loads the template: the module attaches it to targets when it finds them.
    pub fn load_template(&mut self, template: &'static Hook) {
        self.templates.push(template);
    }

    /// Entries of a map that an agent before pinned.
    pub fn pinned(&self, map: &MapDef) -> Option<usize> {
        self.pinned.iter().find(|(name, _)| name == map.name).map(|(_, entries)| *entries)
    }

    /// Where a row is in the module's maps depends on this number: only an agent with the same one can continue the counts.
    pub fn counts_by(&mut self, number: u64) {
        self.counts_by = Some(number);
    }

    /// Leaves work in the kernel to these modules where they are on: their parts of the programs run as long as this module does.
    pub fn leave_to(&mut self, modules: &[&'static str]) {
        self.left_to.extend_from_slice(modules);
    }

    /// The module cannot work here, for this reason.
    pub fn refuse(&mut self, reason: String) {
        self.refusal = Some(reason);
    }

    /// Refuses where the process ids of the agent are not those that the programs see.
    pub fn require_host_pid_namespace(&mut self, host: &Host) {
        if host.pid_namespace {
            self.refuse(
                "in a PID namespace the option process cannot match the host's processes: run the agent in the host's PID \
                 namespace (--pid=host, hostPID: true)"
                    .into(),
            );
        }
    }

    /// Only these processes count. Yields the filter as the programs know it (bpf/shared/filter.bpf.h); 0 for all processes.
    pub fn only(&mut self, filter: &ProcessFilter) -> u64 {
        if filter.is_all() {
            return 0;
        }
        self.filter = Some(filter.clone());
        self.filter_bit()
    }

    /// As [`Plan::only`]; the module is told of each of these processes as it begins, and when it is none of them any more.
    pub fn follow(&mut self, filter: &ProcessFilter, arrivals: &Arrivals) -> u64 {
        self.arrivals = Some(arrivals.clone());
        self.only(filter)
    }

    /// The bit that a filter of the module has.
    pub fn filter_bit(&self) -> u64 {
        1 << (self.number % 64)
    }

    /// The number of entries of a map.
    pub fn entries(&mut self, map: &'static str, entries: usize) {
        self.entries.push((map, u32::try_from(entries).unwrap_or(u32::MAX)));
    }
}

/// The processes that came into a filter, or left it, until the module takes note.
#[derive(Clone, Default)]
pub struct Arrivals(Arc<Mutex<Vec<Arrival>>>);

/// A process that came or left.
pub struct Arrival {
    /// When.
    pub at: Instant,
    /// The process.
    pub pid: u32,
    /// It came; else it left.
    pub is: bool,
}

impl Arrivals {
    /// A process is in the filter, or is not; again if it has executed another program.
    pub fn tell(&self, pid: u32, is: bool) {
        self.waiting().push(Arrival { at: Instant::now(), pid, is });
    }

    /// Those that the module has not taken note of.
    pub fn waiting(&self) -> MutexGuard<'_, Vec<Arrival>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The next power of two within bounds that are powers of two: for tables indexed with a mask.
pub fn table_size(wanted: usize, least: usize, most: usize) -> usize {
    wanted.max(1).checked_next_power_of_two().unwrap_or(most).clamp(least, most)
}

/// What became of a pair: a YAML file and a BPF object of a site's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PairStatus {
    /// `running`, `partly attached` or `failed`.
    pub state: &'static str,
    /// What is wrong, each with file and place; empty: nothing.
    pub error: String,
    /// The programs with their sections, and why one is not attached.
    pub programs: Vec<(String, String, Option<String>)>,
    /// The number of maps.
    pub maps: u32,
    /// Bytes of kernel memory of maps and programs.
    pub memory: u64,
    /// How long loading took; nothing if it was not loaded.
    pub loading: Duration,
    /// Runs of the programs and their time in nanoseconds, as far as the kernel counted these.
    pub runs: u64,
    /// See [`PairStatus::runs`].
    pub time: u64,
}

impl PairStatus {
    /// The number of programs that are attached.
    pub fn attached(&self) -> u32 {
        self.programs.iter().filter(|(_, _, refusal)| refusal.is_none()).count() as u32
    }

    /// A sentence for the log.
    pub fn sentence(&self) -> String {
        let attached = format!("attached {} of {} programs", self.attached(), self.programs.len());
        match (self.state, self.error.is_empty()) {
            ("failed", _) => self.error.clone(),
            (_, true) => attached,
            _ => format!("{attached}; {}", self.error),
        }
    }
}

/// A module at work. It lives in the collector's thread and knows no PDUs.
pub trait Module {
    /// Says what to load, and sets the constants of its programs.
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata);

    /// The declaration of a table, or another one of the same cluster and metrics where an option decides how it is filled.
    fn declared(&self, table: &'static TableSpec) -> &'static TableSpec {
        table
    }

    /// Fills a table (empty on entry) that declares no readings with the values as of now. May be called at any time after
    /// loading, by any number of clients: nothing is consumed by reading. A module with several such tables asks which it is
    /// ([`Table::is`]).
    fn refresh(&mut self, _kernel: &dyn Kernel, _table: &mut Table) -> Result<(), RefreshError> {
        Ok(())
    }

    /// The same where it waits for nothing but memory: neither for a file, /proc among them, nor for a lock. `None`, with the table left
    /// empty, has the collector's thread do it. It is the thread that answers pmcd which calls this.
    fn refresh_at_once(&mut self, _kernel: &dyn Kernel, _table: &mut Table) -> Option<Result<(), RefreshError>> {
        None
    }

    /// The number of events that became rows so far, for a module whose rows are its latest events: `show` tells by it which rows
    /// are new, and how many were not kept.
    fn events(&self) -> Option<u64> {
        None
    }

    /// What the module of a section has nothing to count for want of, if that is so: said of itself, or by the filters of the others.
    fn waits_for(&self, _section: &str) -> Option<String> {
        None
    }

    /// What became of a pair, for the module that serves one; complete once [`Module::plan`] has loaded it.
    fn pair(&self) -> Option<PairStatus> {
        None
    }

    /// Its state now and a sentence about it (`agent.module.state` and `.status`), for a module whose programs somebody else runs.
    fn life(&self) -> Option<(&'static str, String)> {
        None
    }

    /// Called about once a second.
    fn tick(&mut self, _kernel: &dyn Kernel) {}

    /// The end of the agent: what counts in pinned maps of the module's own is detached, if that takes a moment only.
    fn let_go(&mut self) {}

    /// Called when a ring of the module has records: drain it. And when the module is [`Module::due`].
    fn woken(&mut self, kernel: &dyn Kernel) {
        self.tick(kernel);
    }

    /// When it wants to be woken, records or not; a time that is past means at once.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// Changes the value of a metric, a string or the digits of a number; `PmErr::PERMISSION` where nothing can be changed.
    fn store(&mut self, _kernel: &dyn Kernel, _metric: &MetricDef, _value: &[u8]) -> Result<(), PmErr> {
        Err(PmErr::PERMISSION)
    }

    /// What was seen but could not be counted: `NAME: SENTENCE`, as [`loss_words`] takes apart, and a count that only ever grows.
    fn losses(&self, _kernel: &dyn Kernel, _each: &mut dyn FnMut(&'static str, u64)) {}
}

/// The two parts of a loss: a name, which is short since pmval(1) shows 21 characters of `MODULE::NAME`, and the sentence for the log.
pub fn loss_words(loss: &'static str) -> (&'static str, &'static str) {
    loss.split_once(": ").unwrap_or((loss, loss))
}

/// Fills a table: as it is declared, else by its module.
pub fn fill(
    spec: &TableSpec,
    module: &mut dyn Module,
    kernel: &dyn Kernel,
    table: &mut Table,
) -> Result<(), RefreshError> {
    if spec.readings.is_empty() {
        return module.refresh(kernel, table);
    }
    spec.read(kernel, table);
    Ok(())
}

impl Fake {
    /// A table of a module, filled from these maps.
    pub fn filled(&self, spec: &TableSpec, module: &mut dyn Module) -> Table {
        let mut table = Table::of(spec);
        fill(spec, module, self, &mut table).expect("the test gave the module what it needs");
        table
    }
}
