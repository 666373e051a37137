//! A kernel in memory: it accepts every program, makes the maps that the modules' plans ask for, and does nothing by
//! itself. Tests write into the maps what the programs would count.

use corebcc::bpf::types;
use corebcc::kit::{Attachment, Hook, Kernel, KernelError, MapDef, MapKind, Row, Rows, Sampling, Target, When};
use corebcc::loader::{
    Attempt, Failure, Finding, LoadRequest, LoadedObject, MapUsage, Outcome, ProgramUsage, TargetOutcome,
};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Longest time that a read of a map hangs.
const HANGS: Duration = Duration::from_secs(20);

/// The kernel, shared by the agent and the test.
#[derive(Clone, Default)]
pub struct FakeKernel(Arc<State>);

#[derive(Default)]
struct State {
    maps: OnceLock<BTreeMap<&'static str, Map>>,
    attached: Mutex<BTreeMap<&'static str, &'static Hook>>,
    trouble: Mutex<BTreeMap<&'static str, Trouble>>,
    calm: Condvar,
    /// Other end of the descriptor by which the agent requests counting of runs.
    counting: Mutex<Option<UnixStream>>,
    /// Number of runs and nanoseconds by program.
    runs: Mutex<BTreeMap<&'static str, (u64, u64)>>,
}

struct Map {
    def: MapDef,
    entries: usize,
    words: Vec<AtomicU64>,
    records: Mutex<Vec<Vec<u8>>>,
    filled: EventFd,
}

/// A fault in reading a map.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// The read blocks until the fault is removed.
    Hangs,
    Panics,
}

impl FakeKernel {
    /// Loads the modules except the refused ones.
    pub fn load(&self, refused: &[&str], wanted: &[LoadRequest], _constants: &types::rodata) -> Outcome<FakeKernel> {
        let (mut modules, mut attempts, mut maps) = (Vec::new(), Vec::new(), BTreeMap::new());
        for LoadRequest { name, plan, maps: defs, .. } in wanted {
            let refusal = plan.refusal.clone().or_else(|| refused.contains(name).then(|| "refused by the test".into()));
            if let Some(reason) = refusal {
                modules.push(Err(Failure { hook: "-", errno: 1, reason, kernel_log: String::new() }));
                continue;
            }
            modules.push(Ok(()));
            for def in *defs {
                let entries = plan.entries.iter().find(|(map, _)| *map == def.name).map_or(1, |(_, entries)| *entries);
                maps.entry(def.name).or_insert_with(|| Map::new(*def, entries as usize));
            }
            for (hook, when) in &plan.hooks {
                let tier = &hook.tiers[0];
                let programs = tier.programs.to_vec();
                attempts.push(Attempt { hook: hook.name, kind: tier.kind, programs, result: Ok(()) });
                if matches!(when, When::Needed | When::Optional) {
                    self.attached().insert(hook.name, hook);
                }
            }
        }
        assert!(self.0.maps.set(maps).is_ok(), "loaded once");
        let findings = vec![Finding::new("types", true, "there are types as far as the test needs any")];
        Outcome { modules, attempts, findings, loaded: self.clone() }
    }

    /// Returns a row of a map that some module asked for.
    pub fn row<T>(&self, map: Rows<T>, row: usize) -> Row<'_, T> {
        let kernel: &dyn Kernel = self;
        kernel.rows(map).get(row).unwrap()
    }

    /// Adds a record to a ring.
    pub fn record(&self, ring: &str, bytes: &[u8]) {
        let ring = self.map(ring);
        held(&ring.records).push(bytes.to_vec());
        ring.filled.write(1).unwrap();
    }

    /// True if a ring has records that were not read.
    pub fn waits_in(&self, ring: &str) -> bool {
        !held(&self.map(ring).records).is_empty()
    }

    /// Adds a fault to a map.
    pub fn begin(&self, map: &'static str, trouble: Trouble) {
        held(&self.0.trouble).insert(map, trouble);
    }

    /// Removes all faults.
    pub fn calm(&self) {
        held(&self.0.trouble).clear();
        self.0.calm.notify_all();
    }

    /// Adds runs of a program and their nanoseconds.
    pub fn ran(&self, program: &'static str, runs: u64, time: u64) {
        held(&self.0.runs).insert(program, (runs, time));
    }

    /// True if the agent holds a descriptor to count runs.
    pub fn is_counting(&self) -> bool {
        let end = held(&self.0.counting);
        end.as_ref().is_some_and(|mut end| end.read(&mut [0]).is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock))
    }

    /// Returns the attached hooks.
    pub fn hooks(&self) -> BTreeSet<&'static str> {
        self.attached().keys().copied().collect()
    }

    fn attached(&self) -> MutexGuard<'_, BTreeMap<&'static str, &'static Hook>> {
        held(&self.0.attached)
    }

    fn map(&self, name: &str) -> &Map {
        &self.0.maps.get().unwrap()[name]
    }

    /// Reads a map for a module, with its fault; `None` if there is no such map.
    fn read(&self, name: &str) -> Option<&Map> {
        let map = self.0.maps.get().unwrap().get(name);
        let trouble = held(&self.0.trouble);
        let is_hanging = |trouble: &mut BTreeMap<&str, Trouble>| trouble.get(name) == Some(&Trouble::Hangs);
        let (trouble, _) = self.0.calm.wait_timeout_while(trouble, HANGS, is_hanging).unwrap();
        let panics = trouble.get(name) == Some(&Trouble::Panics);
        drop(trouble);
        assert!(!panics, "the test asks for it at {name}");
        map
    }
}

impl Map {
    fn new(def: MapDef, entries: usize) -> Map {
        let words = if def.kind == MapKind::Rows { entries * def.value_size / 8 } else { 0 };
        Map {
            def,
            entries,
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
            records: Mutex::default(),
            filled: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).unwrap(),
        }
    }
}

impl Kernel for FakeKernel {
    fn words(&self, map: &MapDef) -> &[AtomicU64] {
        self.read(map.name).map_or(&[], |map| &map.words)
    }

    fn drain(&self, ring: &MapDef, each: &mut dyn FnMut(&[u8])) {
        let Some(ring) = self.read(ring.name) else { return };
        let _ = ring.filled.read(); // fails while nothing waits
        let records = std::mem::take(&mut *held(&ring.records));
        records.iter().for_each(|record| each(record));
    }

    fn call(&self, _hook: &'static Hook, _arguments: &[u64]) -> Result<u32, KernelError> {
        Ok(0)
    }

    fn reaches(&self, _template: &'static Hook, _number: u32) -> bool {
        true
    }

    fn sample(&self, hook: &'static Hook, _sampling: Sampling) -> Result<(), KernelError> {
        self.attach(hook)
    }

    fn detach(&self, hook: &'static Hook) {
        self.attached().remove(hook.name);
    }

    fn attach(&self, hook: &'static Hook) -> Result<(), KernelError> {
        self.attached().insert(hook.name, hook);
        Ok(())
    }

    fn attach_to(&self, _template: &'static Hook, _target: &Target, _number: u32) -> Result<Attachment, KernelError> {
        Ok(Attachment::new(()))
    }
}

impl LoadedObject for FakeKernel {
    fn rings(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        let rings = self.0.maps.get().unwrap().values().filter(|map| map.def.kind == MapKind::Ring);
        rings.map(|map| (map.def.name, map.filled.as_fd())).collect()
    }

    fn attached(&self) -> Vec<(&'static str, &'static str)> {
        self.attached().values().map(|hook| (hook.name, hook.tiers[0].kind)).collect()
    }

    fn targets(&self) -> &[TargetOutcome] {
        &[]
    }

    fn programs(&self) -> Vec<ProgramUsage> {
        let attached = self.attached();
        let programs = attached.values().flat_map(|hook| hook.tiers[0].programs.iter().map(move |name| (hook, name)));
        let runs = held(&self.0.runs);
        let usage = programs.map(|(hook, name)| {
            let (runs, time) = runs.get(name).copied().unwrap_or_default();
            let (kind, hook) = (hook.tiers[0].kind.into(), Some(hook.name.into()));
            ProgramUsage { name: (*name).into(), kind, hook, attached: true, runs, time, misses: None }
        });
        usage.collect()
    }

    fn maps(&self) -> Vec<MapUsage> {
        let usage = self.0.maps.get().unwrap().values().map(|map| MapUsage {
            name: map.def.name.into(),
            kind: if map.def.kind == MapKind::Ring { "ringbuf" } else { "array" }.into(),
            key_size: 4,
            value_size: map.def.value_size as u32,
            capacity: map.entries as u32,
            used: None,
            memory: None,
        });
        usage.collect()
    }

    fn memory(&self) -> u64 {
        self.0.maps.get().unwrap().values().map(|map| 8 * map.words.len() as u64).sum()
    }

    fn keep(&self, modules: &[&str]) {
        let is_used = |hook: &&'static Hook| {
            let spec = |module: &&str| corebcc::modules::find(module);
            modules.iter().filter_map(spec).any(|spec| spec.hooks.iter().any(|own| own.name == hook.name))
        };
        self.attached().retain(|_, hook| is_used(&&**hook));
    }

    fn count_runs(&self) -> io::Result<OwnedFd> {
        let (ours, agents) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        *held(&self.0.counting) = Some(ours);
        Ok(agents.into())
    }

    fn counts_runs(&self) -> bool {
        false
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
