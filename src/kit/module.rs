//! The trait of modules: a plan of what to load, then a start, which yields the tables.

use super::{Hook, Kernel, MapDef, ProcessFilter, Running, Target};
use crate::bpf::{types, Feature, LateConstants};
use crate::config::{ConfigError, Section};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Parameters for making a module.
pub struct Setup<'a> {
    /// Section of the configuration.
    pub section: &'a Section<'a>,
    /// Interval between scans for processes that the option `process` matches; `None`: one scan at the start.
    pub process_refresh: Option<Duration>,
    /// False if the arguments of processes are not shown: only the program.
    pub show_arguments: bool,
}

impl<'a> Setup<'a> {
    /// Makes the parameters for a section, with defaults for the agent's own options.
    pub fn new(section: &'a Section<'a>) -> Setup<'a> {
        Setup { section, process_refresh: None, show_arguments: true }
    }
}

/// A reason why a module cannot be made from its section.
pub type SetupError = ConfigError;

/// Properties of the machine by which a module sizes its maps.
#[derive(Clone, Debug)]
pub struct Host {
    /// Highest possible CPU id plus one: the number of rows per CPU, which are indexed by that id.
    pub cpus: usize,
    /// Number of disks (`/sys/block`).
    pub disks: usize,
    /// Number of threads now (the fourth field of `/proc/loadavg`).
    pub threads: usize,
    /// Highest number of requests in flight on all disks (`nr_requests` of each queue).
    pub requests: usize,
    /// Memory in megabytes, which limits the future number of threads and sockets.
    pub memory: usize,
    /// True if the agent is in a PID namespace, where its process ids differ from those that the programs see.
    pub pid_namespace: bool,
}

impl Host {
    /// A small machine, for tests.
    pub const SMALL: Host = Host { cpus: 1, disks: 0, threads: 100, requests: 0, memory: 1024, pid_namespace: false };
}

/// The time at which a hook is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At the start; the module needs it.
    Needed,
    /// At the start, if the kernel has it.
    Optional,
    /// At the start if the kernel has the feature, else on demand.
    If(Feature),
    /// On demand of the module ([`Kernel::attach`], [`Kernel::sample`], [`Kernel::call`]).
    OnDemand,
}

/// Everything that a module asks the loader for.
#[derive(Default)]
pub struct Plan {
    /// Hooks to load, each with the time to attach it.
    pub hooks: Vec<(&'static Hook, When)>,
    /// Templates to attach, once per target; the number identifies the target within the module. A target that cannot
    /// be attached is left out; if none is left, the module fails.
    pub targets: Vec<(&'static Hook, Target, u32)>,
    /// Entries of the configuration without a target, each with the reason.
    pub missing: Vec<(String, String)>,
    /// Templates to load, for targets that come and go while the module runs ([`Kernel::attach_to`]).
    pub templates: Vec<&'static Hook>,
    /// Sizes of maps by name: entries, or bytes of a ring.
    pub entries: Vec<(&'static str, u32)>,
    /// Entries of the maps that an earlier agent pinned for this module; counts continue only in maps of the same size.
    pub pinned: Vec<(String, usize)>,
    /// Number on which the meaning of pinned counts depends, such as the seed of a hash; none if they have no such number.
    pub counts_by: Option<u64>,
    /// A reason why the module cannot work on this machine, if known before loading.
    pub refusal: Option<String>,
    /// Sets constants that take long to determine; called after all checks that could keep the module from loading.
    pub late: Option<LateConstants>,
    /// The processes to count; `None`: all.
    pub filter: Option<ProcessFilter>,
    /// Modules that, where enabled, do a part of this module's work in the kernel. That work goes on when they are
    /// stopped.
    pub left_to: Vec<&'static str>,
    /// Queue that tells the module which processes enter and leave its filter.
    pub arrivals: Option<Arrivals>,
    /// Index of the module in the configuration, and of its filter.
    pub number: usize,
}

impl Plan {
    /// Attaches this hook at the start; the module needs it.
    pub fn attach(&mut self, hook: &'static Hook) {
        self.hooks.push((hook, When::Needed));
    }

    /// Attaches this hook at the start if the kernel has it, which [`Kernel::attach`] tells later.
    pub fn attach_optional(&mut self, hook: &'static Hook) {
        self.hooks.push((hook, When::Optional));
    }

    /// Loads this hook; attaches it at the start if the kernel has the feature.
    pub fn attach_if(&mut self, hook: &'static Hook, feature: Feature) {
        self.hooks.push((hook, When::If(feature)));
    }

    /// Loads this hook, which the module attaches, samples or calls later.
    pub fn load_on_demand(&mut self, hook: &'static Hook) {
        self.hooks.push((hook, When::OnDemand));
    }

    /// Attaches the template to this target; its programs get the number (`ON_EACH_*`).
    pub fn attach_template(&mut self, template: &'static Hook, target: Target, number: u32) {
        self.targets.push((template, target, number));
    }

    /// Leaves out this entry of the configuration, for which no target was found.
    pub fn leave_out(&mut self, entry: impl Into<String>, reason: impl Into<String>) {
        self.missing.push((entry.into(), reason.into()));
    }

    /// Refuses if no target was found for any entry.
    pub fn refuse_for_missing(&mut self) {
        let mut reasons: Vec<&str> = Vec::new();
        for (_, reason) in &self.missing {
            if !reasons.contains(&reason.as_str()) {
                reasons.push(reason);
            }
        }
        self.refuse(reasons.join("; "));
    }

    /// Loads the template, which the module attaches to targets as it finds them.
    pub fn load_template(&mut self, template: &'static Hook) {
        self.templates.push(template);
    }

    /// Returns the entries of a map that an earlier agent pinned.
    pub fn pinned(&self, map: &MapDef) -> Option<usize> {
        self.pinned.iter().find(|(name, _)| name == map.name).map(|(_, entries)| *entries)
    }

    /// Makes pinned counts continue only under an agent with the same number, on which the place of a row in the module's maps depends.
    pub fn counts_by(&mut self, number: u64) {
        self.counts_by = Some(number);
    }

    /// Leaves work in the kernel to these modules where they are enabled: their parts of the programs run as long as
    /// this module does.
    pub fn leave_to(&mut self, modules: &[&'static str]) {
        self.left_to.extend_from_slice(modules);
    }

    /// Refuses: the module cannot work on this machine.
    pub fn refuse(&mut self, reason: String) {
        self.refusal = Some(reason);
    }

    /// Refuses if the agent's process ids are not those that the programs see.
    pub fn require_host_pid_namespace(&mut self, host: &Host) {
        if host.pid_namespace {
            self.refuse(
                "in a PID namespace the option process cannot match the host's processes: run the agent in the host's PID \
                 namespace (--pid=host, hostPID: true)"
                    .into(),
            );
        }
    }

    /// Counts only these processes. Returns the bit of the filter for the programs (bpf/shared/filter.bpf.h); 0 for all
    /// processes.
    pub fn only(&mut self, filter: &ProcessFilter) -> u64 {
        if filter.is_all() {
            return 0;
        }
        self.filter = Some(filter.clone());
        self.filter_bit()
    }

    /// Counts only these processes, like [`Plan::only`], and reports to `arrivals` when a process enters or leaves the
    /// filter.
    pub fn follow(&mut self, filter: &ProcessFilter, arrivals: &Arrivals) -> u64 {
        self.arrivals = Some(arrivals.clone());
        self.only(filter)
    }

    /// Returns the bit of the module's filter.
    pub fn filter_bit(&self) -> u64 {
        1 << (self.number % 64)
    }

    /// Sets the number of entries of a map.
    pub fn entries(&mut self, map: &'static str, entries: usize) {
        self.entries.push((map, u32::try_from(entries).unwrap_or(u32::MAX)));
    }
}

/// A queue of processes that entered or left a filter, until the module handles them.
#[derive(Clone, Default)]
pub struct Arrivals(Arc<Mutex<Vec<Arrival>>>);

/// A process that entered or left a filter.
pub struct Arrival {
    /// Time of the change.
    pub at: Instant,
    /// Process id.
    pub pid: u32,
    /// True if it entered, false if it left.
    pub is: bool,
}

impl Arrivals {
    /// Reports that a process is in the filter or is not; again after it has executed another program.
    pub fn tell(&self, pid: u32, is: bool) {
        self.waiting().push(Arrival { at: Instant::now(), pid, is });
    }

    /// Returns the queue of unhandled changes.
    pub fn waiting(&self) -> MutexGuard<'_, Vec<Arrival>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the next power of two, within bounds that are powers of two: for tables indexed with a mask.
pub fn table_size(wanted: usize, least: usize, most: usize) -> usize {
    wanted.max(1).checked_next_power_of_two().unwrap_or(most).clamp(least, most)
}

/// A module that is to run. It knows no PDUs.
pub trait Module {
    /// Plans what to load, and sets the constants of the programs.
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata);

    /// Starts the module, once loading is over. It yields exactly the tables that its options ask for; others stay empty.
    fn start(self: Box<Self>, kernel: &dyn Kernel) -> Running;
}
