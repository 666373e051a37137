//! What is loaded: maps in the agent's memory, rings, and the links by which programs run. Dropping it detaches everything.

use super::btf::Functions;
use super::each;
use super::load::{usable, Reach, Wanted};
use super::maps::Mapping;
use super::perf;
use super::refusal::{errno, listening, Refusal};
use super::ring::Ring;
use crate::bpf::{types, FEATURES, PROGRAMS};
use crate::kit::{Attachment, Hook, Kernel, MapDef, MapKind, Sampling, Target, Tier};
use libbpf_rs::{MapCore, MapFlags, Object, ProgramInput};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd};
use std::sync::atomic::AtomicU64;

/// Loaded programs and maps.
pub struct Loaded {
    // Links are dropped first: a program is detached before its maps go.
    links: RefCell<BTreeMap<&'static str, Vec<libbpf_rs::Link>>>,
    copies: Vec<each::Attached>,
    /// Copies of templates, for targets to come.
    numbered: RefCell<each::Copies>,
    pub(super) reaches: Vec<Reach>,
    maps: BTreeMap<&'static str, Mapping>,
    rings: BTreeMap<&'static str, Ring>,
    pub(super) hooks: Vec<(&'static Hook, &'static Tier)>,
    /// Programs of the hooks' tiers that were loaded.
    programs: BTreeSet<&'static str>,
    object: Option<Object>,
}

impl Loaded {
    pub(super) fn empty() -> Loaded {
        Loaded {
            links: RefCell::default(),
            copies: Vec::new(),
            numbered: RefCell::default(),
            reaches: Vec::new(),
            maps: BTreeMap::new(),
            rings: BTreeMap::new(),
            hooks: Vec::new(),
            programs: BTreeSet::new(),
            object: None,
        }
    }

    pub(super) fn new(
        object: Object,
        wanted: &[Wanted],
        active: &[usize],
        hooks: Vec<(&'static Hook, &'static Tier)>,
        programs: BTreeSet<&'static str>,
    ) -> Result<Loaded, Refusal> {
        let mut loaded = Loaded { hooks, programs, ..Loaded::empty() };
        for map in object.maps() {
            let name = map.name().to_string_lossy();
            let def = active.iter().flat_map(|&module| wanted[module].maps).find(|def| def.name == name);
            let refused = |error: nix::Error| Refusal {
                map: Some(name.to_string()),
                errno: error as i32,
                words: format!("mmap: {error}"),
                ..Refusal::default()
            };
            match def.map(|def| (def, def.kind)) {
                Some((def, MapKind::Rows)) => {
                    let bytes = (map.value_size() as usize).next_multiple_of(8) * map.max_entries() as usize;
                    let mapping = Mapping::new(map.as_fd(), bytes, 0, true).map_err(refused)?;
                    loaded.maps.insert(def.name, mapping);
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

    /// What the kernel's BTF answers to the modules' questions. A kernel that cannot run the program that asks (before
    /// 5.10) counts as having every feature: what hangs on one is then attached, which costs time and not counts.
    pub(super) fn ask(&self) -> Vec<&'static str> {
        let Some(object) = &self.object else { return Vec::new() };
        let asked = object
            .progs_mut()
            .find(|program| program.name() == "ask_features")
            .is_some_and(|program| program.test_run(ProgramInput::default()).is_ok());
        let answers = object.maps().find(|map| map.name().to_string_lossy().ends_with(".bss"));
        let answers = answers.and_then(|map| map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok().flatten());
        match answers {
            Some(answers) if asked => {
                let at = std::mem::offset_of!(types::bss, features);
                let yes = |i: usize| answers.get(at + i).is_some_and(|&answer| answer != 0);
                FEATURES.iter().enumerate().filter(|&(i, _)| yes(i)).map(|(_, &feature)| feature).collect()
            }
            _ => FEATURES.to_vec(),
        }
    }

    fn set(&self, def: &MapDef) -> Result<libbpf_rs::Map<'_>, String> {
        let object = self.object.as_ref().ok_or("nothing is loaded")?;
        object.maps().find(|map| map.name() == def.name).ok_or_else(|| format!("no map {}", def.name))
    }

    pub(super) fn attach_tier(&self, hook: &'static Hook, tier: &Tier) -> Result<(), Refusal> {
        let Some(object) = &self.object else { return Ok(()) };
        let mut links = Vec::new();
        for name in tier.programs.iter().filter(|name| self.programs.contains(*name)) {
            let (link, said) = listening(|| {
                object.progs_mut().find(|program| program.name() == *name).map(|program| program.attach())
            });
            match link {
                Some(Ok(link)) => links.push(link),
                Some(Err(error)) => {
                    let refusal = Refusal::read(&said, errno(&error));
                    return Err(Refusal { program: Some((*name).into()), map: None, ..refusal });
                }
                None => {
                    let words = format!("no program {name} in the BPF object");
                    return Err(Refusal { program: Some((*name).into()), words, ..Refusal::default() });
                }
            }
        }
        self.links.borrow_mut().insert(hook.name, links);
        Ok(())
    }

    /// Attaches a module's templates to their targets, each by the first tier that takes it.
    pub(super) fn attach_each(&mut self, wanted: &Wanted, refused: &BTreeSet<&'static str>) {
        let Some(object) = &self.object else { return };
        let btf = Functions::default();
        let mut copies = each::Copies::default();
        if !wanted.plan.each.is_empty() || !wanted.plan.templates.is_empty() {
            more_descriptors();
        }
        for (hook, target, number) in &wanted.plan.each {
            let mut words = Vec::new();
            let mut by = None;
            for tier in hook.tiers.iter().filter(|tier| usable(tier, refused)) {
                match attach_copies(object, tier, target, *number, &btf, &mut copies) {
                    Ok(copies) => {
                        self.copies.extend(copies);
                        by = Some(tier.kind);
                        break;
                    }
                    Err(error) => words.push(format!("{}: {error}", tier.kind)),
                }
            }
            let result = by.ok_or_else(|| words.join("; "));
            let (module, template) = (wanted.name, hook.name);
            self.reaches.push(Reach { module, template, target: target.clone(), number: *number, result });
        }
    }

    /// The targets of templates, and what became of each.
    pub fn reaches(&self) -> &[Reach] {
        &self.reaches
    }

    /// The descriptors that become readable when a ring wants to be drained, with the ring's name.
    pub fn rings(&self) -> impl Iterator<Item = (&'static str, BorrowedFd<'_>)> {
        self.rings.iter().map(|(name, ring)| (*name, ring.fd()))
    }

    /// The hooks that are attached and how, by hook.
    pub fn attached(&self) -> Vec<(&'static str, &'static str)> {
        let links = self.links.borrow();
        self.hooks
            .iter()
            .filter(|(hook, _)| links.contains_key(hook.name))
            .map(|(hook, tier)| (hook.name, tier.kind))
            .collect()
    }

    /// Whether a module has a part in an attached program.
    pub fn runs(&self, module: &str) -> bool {
        let links = self.links.borrow();
        self.hooks.iter().filter(|(hook, _)| links.contains_key(hook.name)).any(|(_, tier)| {
            let of = |program: &&str| PROGRAMS.iter().find(|(name, _)| name == program);
            tier.programs.iter().filter_map(of).any(|(_, modules)| modules.contains(&module))
        })
    }
}

impl Kernel for Loaded {
    fn words(&self, map: &MapDef) -> &[AtomicU64] {
        self.maps.get(map.name).map_or(&[], Mapping::words)
    }

    fn drain(&self, ring: &MapDef, each: &mut dyn FnMut(&[u8])) {
        if let Some(ring) = self.rings.get(ring.name) {
            ring.drain(each);
        }
    }

    fn admit(&self, set: &MapDef, pid: u32, member: bool) -> Result<(), String> {
        if member {
            return self.assign(set, pid, 1);
        }
        match self.set(set)?.delete(&pid.to_ne_bytes()) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => Err(error.to_string()),
            _ => Ok(()),
        }
    }

    fn reaches(&self, template: &'static Hook, number: u32) -> bool {
        let is = |reach: &Reach| reach.template == template.name && reach.number == number;
        self.reaches.iter().any(|reach| is(reach) && reach.result.is_ok())
    }

    fn sample(&self, hook: &'static Hook, sampling: Sampling) -> Result<(), String> {
        let Some(object) = &self.object else { return Err("nothing is loaded".into()) };
        let known = self.hooks.iter().find(|(known, _)| known.name == hook.name);
        let Some(&(_, tier)) = known else { return Err(format!("{} was not loaded", hook.name)) };
        let mut links = Vec::new();
        for name in tier.programs {
            let program = object.progs_mut().find(|program| program.name() == *name);
            let program = program.ok_or_else(|| format!("no program {name} in the BPF object"))?;
            for event in perf::cpu_clock(sampling)? {
                // The link owns the event from here on.
                links.push(program.attach_perf_event(event.into_raw_fd()).map_err(|error| error.to_string())?);
            }
        }
        self.links.borrow_mut().insert(hook.name, links);
        Ok(())
    }

    fn detach(&self, hook: &'static Hook) {
        self.links.borrow_mut().remove(hook.name);
    }

    fn assign(&self, set: &MapDef, pid: u32, number: u32) -> Result<(), String> {
        let updated = self.set(set)?.update(&pid.to_ne_bytes(), &number.to_ne_bytes(), MapFlags::ANY);
        updated.map_err(|error| error.to_string())
    }

    fn attach(&self, hook: &'static Hook) -> Result<(), String> {
        if self.links.borrow().contains_key(hook.name) {
            return Ok(());
        }
        match self.hooks.iter().find(|(known, _)| known.name == hook.name) {
            Some(&(hook, tier)) => self.attach_tier(hook, tier).map_err(|refusal| refusal.words),
            None => Err(format!("{} was not loaded", hook.name)),
        }
    }

    fn attach_to(&self, template: &'static Hook, target: &Target, number: u32) -> Result<Attachment, String> {
        let object = self.object.as_ref().ok_or("nothing is loaded")?;
        let loaded = |tier: &&Tier| tier.programs.iter().all(|program| self.programs.contains(program));
        let mut words = Vec::new();
        for tier in template.tiers.iter().filter(loaded) {
            match attach_copies(object, tier, target, number, &Functions::default(), &mut self.numbered.borrow_mut()) {
                Ok(attached) => return Ok(Attachment::new(attached)),
                Err(error) => words.push(format!("{}: {error}", tier.kind)),
            }
        }
        Err(if words.is_empty() { format!("{} was not loaded", template.name) } else { words.join("; ") })
    }
}

/// Attaches a copy of each of a tier's programs to a target.
fn attach_copies(
    object: &Object,
    tier: &Tier,
    target: &Target,
    number: u32,
    btf: &Functions,
    copies: &mut each::Copies,
) -> Result<Vec<each::Attached>, String> {
    let mut attach = |name: &&str| {
        let template = object.progs_mut().find(|program| program.name() == *name);
        let template = template.ok_or_else(|| format!("no program {name} in the BPF object"))?;
        let (copy, _) = listening(|| each::attach(&template, target, number, btf, copies));
        copy
    };
    tier.programs.iter().map(&mut attach).collect()
}

/// A copy of a template holds a descriptor or two, and a list may name a thousand: the soft limit is made the hard one.
fn more_descriptors() {
    use nix::sys::resource::{getrlimit, setrlimit, Resource};
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        if soft < hard {
            let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
        }
    }
}
