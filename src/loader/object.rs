//! Everything that is loaded: maps in the agent's memory, rings, and the links of attached programs. Dropping it
//! detaches all programs.

use super::btf::KernelTypes;
use super::mapping::Mapping;
use super::outcome::{usable, Finding, LoadRequest, Refusals, TargetOutcome};
use super::pins::{end_pinned_programs, end_programs_before, wait_for_ended_programs, PinUser, Unit};
use super::refusal::Refusal;
use super::relocated::Relocated;
use super::ring::Ring;
use super::sparse::Sparse;
use super::{bpffs, held, perf_event, program, template};
use crate::bpf::{BpfObject, Feature, Part};
use crate::kit::{Attachment, Hook, Kernel, KernelError, MapDef, MapKind, PinnedObject, Sampling, Target, Tier};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};

/// Loaded programs and maps.
pub struct Loaded {
    // Links are dropped first: a program is detached before its maps go.
    pub(super) links: Mutex<BTreeMap<&'static str, Vec<(&'static str, template::Attached)>>>,
    /// Attachments to targets, by module.
    holds: Mutex<Vec<(&'static str, Hold)>>,
    /// Number of targets of each template program, as the number of shares, one in each hold.
    targets: Mutex<BTreeMap<&'static str, Arc<()>>>,
    /// Copies of templates, kept for future targets and for their statistics.
    pub(super) copies: Mutex<template::Copies>,
    pub(super) reaches: Vec<TargetOutcome>,
    /// Arrays of counters. Mapping one makes all of its pages resident (`remap_vmalloc_range`), so a table is mapped
    /// when it is first read.
    maps: BTreeMap<&'static str, Array>,
    pub(super) rings: BTreeMap<&'static str, Ring>,
    pub(super) hooks: Vec<(&'static Hook, &'static Tier)>,
    /// Programs of the hooks' tiers, by name.
    programs: Mutex<BTreeMap<&'static str, Arc<OwnedFd>>>,
    /// Answers to the modules' questions (`FEATURE` lines in bpf/).
    pub(super) features: Vec<Finding>,
    /// Pairs of modules of which the second does a part of the first one's work: its part of the programs runs as long
    /// as the first.
    helpers: Vec<(&'static str, &'static str)>,
    btf: Option<Arc<KernelTypes>>,
    /// Build-time description of the object.
    pub(super) build: Option<BpfObject>,
    /// Maps, and the code that programs are loaded from.
    pub(super) object: Option<Relocated>,
    /// Units to pin after loading.
    pub(super) units: Vec<Unit>,
    /// Pinned units.
    pins: Mutex<Vec<PinUser>>,
    /// Names of maps with counts of an earlier agent.
    continued: BTreeSet<String>,
}

/// An array of counters.
struct Array {
    /// Declaration; a caller that asks for rows may know the name only.
    def: MapDef,
    /// Size of a row in bytes.
    row: usize,
    rows: usize,
    mapped: OnceLock<Option<Mapped>>,
}

/// Mapping of an array.
enum Mapped {
    Whole(Mapping),
    Sparse(Sparse),
}

impl Array {
    fn map(&self, fd: BorrowedFd<'_>) -> nix::Result<Mapped> {
        let bytes = self.row * self.rows;
        Ok(match self.def.marks {
            None => Mapped::Whole(Mapping::new(fd, bytes, 0, true)?),
            Some(_) => {
                let own = fd.try_clone_to_owned().map_err(|_| nix::Error::EMFILE)?;
                Mapped::Sparse(Sparse::new(own, bytes, self.row, self.def.taken)?)
            }
        })
    }
}

/// An attachment of a template to a target.
struct Hold {
    _links: Vec<template::Attached>,
    _shares: Vec<Arc<()>>,
}

impl Loaded {
    pub(super) fn empty() -> Loaded {
        Loaded {
            links: Mutex::default(),
            holds: Mutex::default(),
            targets: Mutex::default(),
            copies: Mutex::default(),
            reaches: Vec::new(),
            maps: BTreeMap::new(),
            rings: BTreeMap::new(),
            hooks: Vec::new(),
            programs: Mutex::default(),
            features: Vec::new(),
            helpers: Vec::new(),
            btf: None,
            build: None,
            object: None,
            units: Vec::new(),
            pins: Mutex::default(),
            continued: BTreeSet::new(),
        }
    }

    /// Pins the units that are to outlive the agent.
    pub(super) fn pin(&mut self) {
        let Some(object) = &self.object else { return };
        if !self.units.is_empty() {
            // Hooks that this agent attaches to later, if at all.
            end_programs_before(|_| true);
        }
        for unit in std::mem::take(&mut self.units) {
            self.continued.extend(unit.continued().cloned());
            let Some(user) = unit.keep(&object.maps) else { continue };
            let links = held(&self.links);
            for (program, link) in links.values().flatten() {
                if self.build.and_then(|build| build.users(program)).is_some_and(|users| users.contains(&&*user.unit)) {
                    user.let_run(program, link.as_fd());
                }
            }
            held(&self.pins).push(user);
        }
    }

    /// Makes the maps of an object of which no program is loaded yet.
    pub(super) fn new(
        object: Relocated,
        build: BpfObject,
        wanted: &[LoadRequest],
        active: &[usize],
        btf: Arc<KernelTypes>,
    ) -> Result<Loaded, Refusal> {
        let mut loaded = Loaded { btf: Some(btf), build: Some(build), ..Loaded::empty() };
        for request in active.iter().map(|&module| &wanted[module]) {
            let others = request.depends_on.and_then(|other| wanted.get(other)).map(|other| other.name);
            let others = others.into_iter().chain(request.plan.left_to.iter().copied());
            loaded.helpers.extend(others.map(|other| (request.name, other)));
        }
        for map in &object.maps {
            let name = map.name().to_string_lossy();
            let def = active.iter().flat_map(|&module| wanted[module].maps).find(|def| def.name == name);
            let refused = |error: nix::Error| Refusal {
                map: Some(name.to_string()),
                errno: error as i32,
                message: format!("mmap: {error}"),
            };
            match def.map(|def| (def, def.kind)) {
                Some((def, MapKind::Rows)) => {
                    let row = (map.value_size() as usize).next_multiple_of(8);
                    let rows = map.max_entries() as usize;
                    loaded.maps.insert(def.name, Array { def: *def, row, rows, mapped: OnceLock::new() });
                }
                Some((def, MapKind::Ring)) => {
                    let fd = map.as_fd().try_clone_to_owned().map_err(|_| refused(nix::Error::EMFILE))?;
                    loaded.rings.insert(def.name, Ring::new(fd, map.max_entries() as usize).map_err(refused)?);
                }
                _ => {}
            }
        }
        loaded.object = Some(object);
        Ok(loaded)
    }

    /// Returns the marks of an array that is mapped in parts.
    fn marks(&self, array: &Array) -> &[AtomicU64] {
        array.def.marks.map_or(&[], |name| self.words(&MapDef::of::<u64>(name, MapKind::Rows)))
    }

    /// Forgets the code of programs that will not be loaded any more.
    pub(super) fn forget_code(&mut self) {
        self.object.iter_mut().for_each(Relocated::forget_code);
    }

    fn parts(&self) -> Result<(&Relocated, &KernelTypes), Refusal> {
        let parts = self.object.as_ref().zip(self.btf.as_deref());
        parts.ok_or_else(|| Refusal::new(0, "nothing is loaded"))
    }

    /// Returns the answers of the kernel's BTF to the modules' questions. A kernel that cannot run the program that
    /// asks (before 5.10) counts as having every feature: hooks that depend on one are then attached, which costs time
    /// but no counts. Answers to features in `opposed` are inverted.
    pub(super) fn ask(&self, opposed: impl Fn(&str) -> bool) -> Vec<Finding> {
        let Ok((object, btf)) = self.parts() else { return Vec::new() };
        let asked = program::load(object, "ask_features", btf)
            .is_ok_and(|program| program::run(program.as_fd(), &[], None).is_ok());
        let answers = data(object).and_then(|map| map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok().flatten());
        let Some(build) = self.build else { return Vec::new() };
        let answer = |(i, &Feature(feature)): (usize, &Feature)| {
            let answer = answers.as_ref().filter(|_| asked).and_then(|answers| answers.get(build.answers + i));
            let said = match (answer, opposed(feature)) {
                (None, _) => "taken for there: the program that asks the kernel's types cannot run",
                (Some(_), false) => "as the kernel's types say",
                (Some(_), true) => "the opposite of what the kernel's types say, as COREBCC_AVOID asks",
            };
            Finding::new(feature, answer.is_none_or(|&answer| answer != 0), said)
        };
        build.features.iter().enumerate().map(answer).collect()
    }

    /// True if the kernel has a feature.
    pub(super) fn has(&self, feature: Feature) -> bool {
        self.features.iter().any(|known| known.feature == feature.0 && known.there == Some(true))
    }

    /// Loads a program of a hook, or a template, without attaching it.
    pub(super) fn load(&mut self, name: &'static str) -> Result<(), Refusal> {
        if self.program(name).is_none() {
            let (object, btf) = self.parts()?;
            let program = program::load(object, name, btf)?;
            held(&self.programs).insert(name, Arc::new(program));
        }
        Ok(())
    }

    /// Returns a loaded program of the hooks' tiers.
    pub(super) fn program(&self, name: &str) -> Option<Arc<OwnedFd>> {
        held(&self.programs).get(name).cloned()
    }

    /// Iterates over the loaded programs of the hooks' tiers.
    pub(super) fn loaded_programs(&self) -> impl Iterator<Item = Arc<OwnedFd>> {
        held(&self.programs).values().cloned().collect::<Vec<_>>().into_iter()
    }

    /// Attaches the loaded programs of a tier; the error names the refused one.
    pub(super) fn attach_tier(&self, hook: &'static Hook, tier: &Tier) -> Result<(), (&'static str, Refusal)> {
        // Until now those of an agent before have counted in the maps that are continued.
        if !self.units.is_empty() {
            end_programs_before(|name| hook.tiers.iter().any(|tier| tier.programs.contains(&name)));
        }
        wait_for_ended_programs();
        let mut links = Vec::new();
        // Once, whichever hooks have it: a program counts for all of its modules.
        let runs = |name| held(&self.links).values().flatten().any(|(program, _)| *program == name);
        for &name in tier.programs.iter().filter(|&&name| !runs(name)) {
            let Some(fd) = self.program(name) else { continue };
            let Some(program) = self.object.as_ref().and_then(|object| object.program(name)) else { continue };
            links.push((name, template::attach_named(program, &fd).map_err(|refusal| (name, refusal))?));
        }
        held(&self.links).insert(hook.name, links);
        Ok(())
    }

    /// Attaches a module's templates to their targets, each by the first tier that the kernel accepts.
    pub(super) fn attach_each(&mut self, wanted: &LoadRequest, refused: &BTreeSet<&'static str>) {
        for (hook, target, number) in &wanted.plan.targets {
            let mut refusals = Refusals::default();
            let mut by = None;
            for tier in hook.tiers.iter().filter(|tier| usable(tier, refused)) {
                match self.hold(tier, target, *number) {
                    Ok(hold) => {
                        held(&self.holds).push((wanted.name, hold));
                        by = Some(tier);
                        break;
                    }
                    Err(refusal) => refusals.0.push((tier, refusal)),
                }
            }
            let result = by.ok_or(refusals);
            let (module, template) = (wanted.name, hook.name);
            self.reaches.push(TargetOutcome { module, template, target: target.clone(), number: *number, result });
        }
    }

    /// Attaches a copy of each of a tier's programs to a target.
    fn hold(&self, tier: &Tier, target: &Target, number: u32) -> Result<Hold, Refusal> {
        let (object, btf) = self.parts()?;
        let attach = |name: &&'static str| {
            let template = object.program(name);
            let template = template.ok_or_else(|| Refusal::missing(format!("no program {name} in the BPF object")))?;
            template::attach(object, template, target, number, btf, &mut held(&self.copies))
        };
        let links = tier.programs.iter().map(attach).collect::<Result<_, Refusal>>()?;
        let mut targets = held(&self.targets);
        let shares = tier.programs.iter().map(|name| Arc::clone(targets.entry(name).or_default())).collect();
        Ok(Hold { _links: links, _shares: shares })
    }

    /// Returns the number of targets that a template's program is attached to.
    pub(super) fn targets(&self, program: &str) -> usize {
        held(&self.targets).get(program).map_or(0, |shares| Arc::strong_count(shares) - 1)
    }

    /// Returns the targets of templates, with the outcome of each.
    pub fn reaches(&self) -> &[TargetOutcome] {
        &self.reaches
    }

    /// Iterates over the descriptors that become readable when a ring has records, with the ring's name.
    pub fn rings(&self) -> impl Iterator<Item = (&'static str, BorrowedFd<'_>)> {
        self.rings.iter().map(|(name, ring)| (*name, ring.fd()))
    }

    /// Returns the attached hooks, with the kind of their tier.
    pub fn attached(&self) -> Vec<(&'static str, &'static str)> {
        let links = held(&self.links);
        self.hooks
            .iter()
            .filter(|(hook, _)| links.contains_key(hook.name))
            .map(|(hook, tier)| (hook.name, tier.kind))
            .collect()
    }

    /// Detaches programs that none of these modules uses; in the other programs, disables the parts of all other
    /// modules.
    pub fn keep(&self, modules: &[&str]) {
        let part = |module: &str| match modules.contains(&module) {
            true => Part::Runs,
            false if self.helpers.iter().any(|(of, helper)| *helper == module && modules.contains(of)) => {
                Part::ForOthers
            }
            false => Part::Off,
        };
        let switched = self.switch(part);
        held(&self.holds).retain(|(module, _)| modules.contains(module));
        let is_kept = |program: &str| {
            let users = self.build.and_then(|build| build.users(program));
            users.is_none_or(|users| users.iter().any(|user| part(user) != Part::Off))
        };
        held(&self.links).values_mut().for_each(|links| links.retain(|(program, _)| is_kept(program)));
        held(&self.programs).retain(|program, _| is_kept(program));
        let links = held(&self.links);
        let still_runs = |name: &str| links.values().flatten().any(|(program, _)| *program == name);
        let stopped = |pin: &PinUser| !modules.contains(&&*pin.unit);
        let mut pins = held(&self.pins);
        pins.iter().filter(|pin| stopped(pin)).for_each(|pin| end_pinned_programs(&pin.unit, still_runs));
        match switched {
            Ok(()) => pins.retain(|pin| !stopped(pin)),
            Err(error) => log::error!("the programs count on for modules that were stopped: {error}"),
        }
    }

    /// Releases this process's pinned maps at the end of the agent, by ending all programs that count in them, so that
    /// the next agent can use them.
    pub fn let_go(&self) {
        let mut pins = held(&self.pins);
        let is_pinned = |user: &&str| pins.iter().any(|pin| pin.unit == **user);
        let counts = |program: &str| {
            self.build.and_then(|build| build.users(program)).is_some_and(|users| users.iter().any(is_pinned))
        };
        held(&self.links).values_mut().for_each(|links| links.retain(|(program, _)| !counts(program)));
        held(&self.programs).retain(|program, _| !counts(program));
        pins.clear();
    }

    /// Returns the program of an `ON_CALL` hook.
    fn called(&self, hook: &'static Hook) -> Result<Arc<OwnedFd>, KernelError> {
        let program = hook.tiers.iter().flat_map(|tier| tier.programs).find_map(|name| self.program(name));
        program.ok_or(KernelError::NotLoaded(hook.name))
    }

    /// Sets the mode of each module's part in the programs.
    fn switch(&self, part: impl Fn(&str) -> Part) -> libbpf_rs::Result<()> {
        let Some((object, build)) = self.object.as_ref().zip(self.build) else { return Ok(()) };
        let Some(map) = data(object) else { return Ok(()) };
        let key = 0u32.to_ne_bytes();
        let mut bytes = map.lookup(&key, MapFlags::ANY)?.unwrap_or_default();
        let switches = bytes.iter_mut().skip(build.switches);
        switches.zip(build.parts).for_each(|(switch, module)| *switch = part(module) as u8);
        map.update(&key, &bytes, MapFlags::ANY)
    }

    /// True if a module has a part in an attached program.
    pub fn runs(&self, module: &str) -> bool {
        let links = held(&self.links);
        self.hooks.iter().filter(|(hook, _)| links.contains_key(hook.name)).any(|(_, tier)| {
            let users = |program: &&str| self.build?.users(program);
            tier.programs.iter().filter_map(users).any(|users| users.contains(&module))
        })
    }
}

impl Kernel for Loaded {
    fn words(&self, map: &MapDef) -> &[AtomicU64] {
        let Some(array) = self.maps.get(map.name) else { return &[] };
        let mapped = || {
            let mapped = array.map(self.object.as_ref()?.map(map.name)?.as_fd());
            mapped.inspect_err(|error| log::error!("map {}: mmap: {error}", map.name)).ok()
        };
        match array.mapped.get_or_init(mapped) {
            Some(Mapped::Whole(mapping)) => mapping.words(),
            Some(Mapped::Sparse(sparse)) => sparse.words(self.marks(array)),
            None => &[],
        }
    }

    fn continues(&self, map: &MapDef) -> bool {
        self.continued.contains(map.name)
    }

    fn drain(&self, ring: &MapDef, each: &mut dyn FnMut(&[u8])) {
        if let Some(ring) = self.rings.get(ring.name) {
            ring.drain(each);
        }
    }

    fn call(&self, hook: &'static Hook, arguments: &[u64]) -> Result<u32, KernelError> {
        Ok(program::run(self.called(hook)?.as_fd(), arguments, None).map_err(Refusal::from)?)
    }

    fn call_on(&self, hook: &'static Hook, cpu: u32) -> Result<u32, KernelError> {
        Ok(program::run(self.called(hook)?.as_fd(), &[], Some(cpu)).map_err(Refusal::from)?)
    }

    fn walk(&self, hook: &'static Hook) -> Result<(), KernelError> {
        let links = held(&self.links);
        let (_, link) =
            links.get(hook.name).and_then(|links| links.first()).ok_or(KernelError::NotLoaded(hook.name))?;
        let link = link.try_clone().map_err(Refusal::from)?;
        drop(links);
        Ok(program::walk(link.as_fd()).map_err(Refusal::from)?)
    }

    fn pinned(&self, each: &mut dyn FnMut(PinnedObject)) {
        bpffs::walk(Path::new(bpffs::MOUNT), each);
    }

    fn reaches(&self, template: &'static Hook, number: u32) -> bool {
        let is = |reach: &TargetOutcome| reach.template == template.name && reach.number == number;
        self.reaches.iter().any(|reach| is(reach) && reach.result.is_ok())
    }

    fn sample(&self, hook: &'static Hook, sampling: Sampling) -> Result<(), KernelError> {
        let known = self.hooks.iter().find(|(known, _)| known.name == hook.name);
        let &(_, tier) = known.ok_or(KernelError::NotLoaded(hook.name))?;
        let mut links = Vec::new();
        for name in tier.programs {
            let program = self.program(name).ok_or(KernelError::NotLoaded(name))?;
            for event in perf_event::cpu_clock(sampling)? {
                template::run_at(&event, &program).map_err(Refusal::from)?;
                links.push((*name, event));
            }
        }
        held(&self.links).insert(hook.name, links);
        Ok(())
    }

    fn detach(&self, hook: &'static Hook) {
        held(&self.links).remove(hook.name);
    }

    fn attach(&self, hook: &'static Hook) -> Result<(), KernelError> {
        if held(&self.links).contains_key(hook.name) {
            return Ok(());
        }
        let known = self.hooks.iter().find(|(known, _)| known.name == hook.name);
        let &(hook, tier) = known.ok_or(KernelError::NotLoaded(hook.name))?;
        self.attach_tier(hook, tier).map_err(|(_, refusal)| refusal.into())
    }

    fn attach_to(&self, template: &'static Hook, target: &Target, number: u32) -> Result<Attachment, KernelError> {
        let loaded = |tier: &&Tier| tier.programs.iter().all(|program| self.program(program).is_some());
        let mut refusals = Refusals::default();
        for tier in template.tiers.iter().filter(loaded) {
            match self.hold(tier, target, number) {
                Ok(hold) => return Ok(Attachment::new(hold)),
                Err(refusal) => refusals.0.push((tier, refusal)),
            }
        }
        Err(match refusals.0.is_empty() {
            true => KernelError::NotLoaded(template.name),
            false => KernelError::Refused(refusals.to_string()),
        })
    }
}

/// Returns the map with an object's writable data (`.bss`).
fn data(object: &Relocated) -> Option<&MapHandle> {
    object.maps.iter().find(|map| map.name().to_string_lossy().ends_with(".bss"))
}

/// Raises the soft limit of descriptors to the hard one: a pair takes one for each map, program and link, a target up
/// to four, and there may be hundreds of either. Child processes inherit it.
pub fn allow_descriptors() {
    use nix::sys::resource::{getrlimit, setrlimit, Resource};
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        if soft < hard {
            let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
        }
    }
}
