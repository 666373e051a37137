//! What a module does once it is declared: say what it wants loaded, then turn maps into a table at each refresh.

use super::{Arrivals, Hook, Kernel, ProcessFilter, Table, Target};
use crate::bpf::types;
use crate::config::{ConfigError, Section};
use crate::pcp::PmErr;
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
    /// CPUs that may come online (`/sys/devices/system/cpu/possible`): rows per CPU are as many.
    pub cpus: usize,
    /// Disks (`/sys/block`).
    pub disks: usize,
    /// Threads now (the fourth field of `/proc/loadavg`).
    pub threads: usize,
    /// Requests that may be in flight on all disks (`nr_requests` of each queue).
    pub requests: usize,
    /// Megabytes of memory: how many threads and sockets there may come to be.
    pub memory: usize,
}

/// What a module wants loaded.
#[derive(Default)]
pub struct Plan {
    /// Hooks to attach at start.
    pub hooks: Vec<&'static Hook>,
    /// Hooks to load: attached at start if the feature of this name is there, else only when the module asks.
    pub later: Vec<(&'static Hook, &'static str)>,
    /// Templates to attach, once per target; the number tells the targets of a module apart. A target that cannot be
    /// attached is left out; with none left the module does not work.
    pub each: Vec<(&'static Hook, Target, u32)>,
    /// Entries of the configuration that no target was found for, each with the reason.
    pub missing: Vec<(String, String)>,
    /// Templates to load, for targets that come and go while the module works ([`Kernel::attach_to`]).
    pub templates: Vec<&'static Hook>,
    /// Hooks to attach at start where the kernel has them.
    pub optional: Vec<&'static Hook>,
    /// Entries of maps; a ring's size in bytes.
    pub entries: Vec<(&'static str, u32)>,
    /// Why the module cannot work on this machine, if it can tell already.
    pub refusal: Option<String>,
    /// The processes that count, if not all do.
    pub filter: Option<ProcessFilter>,
    /// Where the module is told of them.
    pub arrivals: Option<Arrivals>,
    /// The number of the module among those of the configuration, which is that of its filter.
    pub number: usize,
}

impl Plan {
    /// Attach to this hook, or the module does not work.
    pub fn hook(&mut self, hook: &'static Hook) {
        self.hooks.push(hook);
    }

    /// Load for this hook; attach if the kernel has the feature (a `FEATURE` line of the module's C file).
    pub fn hook_if(&mut self, hook: &'static Hook, feature: &'static str) {
        self.later.push((hook, feature));
    }

    /// Attach the template to this target, under a number that its programs get (`ON_EACH_*`).
    pub fn each(&mut self, template: &'static Hook, target: Target, number: u32) {
        self.each.push((template, target, number));
    }

    /// Go on without this entry of the configuration: nothing was found for it, for this reason.
    pub fn leave_out(&mut self, entry: impl Into<String>, reason: impl Into<String>) {
        self.missing.push((entry.into(), reason.into()));
    }

    /// The module cannot work here: nothing was found for any entry.
    pub fn refuse_for_missing(&mut self) {
        let reasons: Vec<&str> = self.missing.iter().map(|(_, reason)| reason.as_str()).collect();
        self.refuse(reasons.join("; "));
    }

    /// Load the template: the module attaches it to targets when it finds them.
    pub fn template(&mut self, template: &'static Hook) {
        self.templates.push(template);
    }

    /// The module cannot work here, for this reason.
    pub fn refuse(&mut self, reason: String) {
        self.refusal = Some(reason);
    }

    /// The module cannot work where processes have other numbers than the programs see.
    pub fn tell_processes(&mut self) {
        if super::in_namespace() {
            self.refuse(
                "in a PID namespace it cannot be told which processes the option process means: the agent has to be in the \
                 host's (--pid=host, hostPID: true)"
                    .into(),
            );
        }
    }

    /// Attach to this hook, or do without it: [`Kernel::attach`] tells which.
    pub fn hook_or_none(&mut self, hook: &'static Hook) {
        self.optional.push(hook);
    }

    /// Only these processes count. Yields the filter as the programs know it (bpf/filter.bpf.h); 0 for all processes.
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

/// The next power of two within bounds that are powers of two: for tables indexed with a mask.
pub fn table_size(wanted: usize, least: usize, most: usize) -> usize {
    wanted.max(1).checked_next_power_of_two().unwrap_or(most).clamp(least, most)
}

/// A module at work. It lives in the collector's thread and knows no PDUs.
pub trait Module {
    /// Says what to load, and sets the constants of its programs.
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata);

    /// Fills the table (empty on entry) with the values as of now. May be called at any time after loading, by any
    /// number of clients: nothing is consumed by reading.
    fn refresh(&mut self, kernel: &dyn Kernel, table: &mut Table) -> Result<(), RefreshError>;

    /// The same for the table of what it adds ([`super::Spec::addition`]).
    fn refresh_addition(&mut self, _kernel: &dyn Kernel, _table: &mut Table) -> Result<(), RefreshError> {
        Ok(())
    }

    /// Called about once a second.
    fn tick(&mut self, _kernel: &dyn Kernel) {}

    /// Called when a ring of the module has records: drain it. And when the module is [`Module::due`].
    fn woken(&mut self, kernel: &dyn Kernel) {
        self.tick(kernel);
    }

    /// When it wants to be woken, records or not; a time that is past means at once.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// Changes the value of the metric in this column, which is a string; `PmErr::PERMISSION` where nothing can be changed.
    fn store(&mut self, _kernel: &dyn Kernel, _column: usize, _value: &[u8]) -> Result<(), PmErr> {
        Err(PmErr::PERMISSION)
    }

    /// What was seen but could not be counted, by reason. Only ever grows.
    fn losses(&self, _kernel: &dyn Kernel, _each: &mut dyn FnMut(&'static str, u64)) {}
}
