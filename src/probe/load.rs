//! Loading by trial: what the kernel refuses gives way to the next tier of its hook, a hook without a tier left takes its
//! modules out, and everything else is loaded. All modules are one BPF object, so there is one parse of the kernel's BTF.

use super::btf::Functions;
use super::each;
use super::maps::Mapping;
use super::perf;
use super::refusal::{listening, Refusal};
use super::ring::Ring;
use crate::bpf::{self, types, FEATURES, OBJECT, PROGRAMS};
use crate::kit::{Hook, Kernel, MapDef, MapKind, Plan, Sampling, Target, Tier};
use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder, ProgramInput};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd};
use std::path::Path;
use std::sync::atomic::AtomicU64;

/// A module to load.
pub struct Wanted {
    /// The stem of its files.
    pub name: &'static str,
    /// What it asks for.
    pub plan: Plan,
    /// The maps its programs use.
    pub maps: &'static [MapDef],
}

/// Why a module is not loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The hook, or `-` if it was not one that failed.
    pub hook: &'static str,
    /// The error number, positive; 0 if unknown.
    pub errno: i32,
    /// One sentence: what failed, what the kernel lacks, what to do.
    pub reason: String,
    /// The verifier's or libbpf's words.
    pub words: String,
}

/// One tier of a hook that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The hook's name.
    pub hook: &'static str,
    /// The tier's kind.
    pub kind: &'static str,
    /// Loaded and, unless it is for later, attached; else what was said.
    pub result: Result<(), String>,
}

/// A target of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The module.
    pub module: &'static str,
    /// The template.
    pub template: &'static str,
    /// The target.
    pub target: Target,
    /// Its number.
    pub number: u32,
    /// The kind of program attached, or what was said about each.
    pub result: Result<&'static str, String>,
}

/// What became of it all.
pub struct Outcome {
    /// For each module wanted, in order.
    pub modules: Vec<Result<(), Failure>>,
    /// What was tried, by hook; the last attempt at a hook is the one in force.
    pub attempts: Vec<Attempt>,
    /// The maps and links; everything is detached when it is dropped.
    pub loaded: Loaded,
}

/// Loads the modules as far as the kernel allows. `btf` is a file with the kernel's BTF, for kernels without their own.
pub fn load(wanted: &[Wanted], constants: &types::rodata, btf: Option<&Path>) -> Outcome {
    let refused = |reason: &String| Failure { hook: "-", errno: 0, reason: reason.clone(), words: String::new() };
    let mut modules: Vec<Result<(), Failure>> = wanted
        .iter()
        .map(|wanted| wanted.plan.refusal.as_ref().map_or(Ok(()), |reason| Err(refused(reason))))
        .collect();
    let mut attempts = Vec::new();
    if let Some(failure) = without_btf(btf) {
        modules.fill(Err(failure));
        return Outcome { modules, attempts, loaded: Loaded::empty() };
    }
    let all: Vec<usize> = (0..wanted.len()).collect();
    let avoid = std::env::var(AVOID).unwrap_or_default();
    let loaded = Trial { wanted, constants, btf, avoid, attempts: &mut attempts, modules: &mut modules }.settle(&all);
    super::footprint::trim();
    Outcome { modules, attempts, loaded }
}

/// Where a kernel with CONFIG_DEBUG_INFO_BTF keeps its own.
const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// Programs are relocated by the kernel's BTF.
fn without_btf(btf: Option<&Path>) -> Option<Failure> {
    let path = btf.unwrap_or(Path::new(KERNEL_BTF));
    let error = std::fs::File::open(path).err()?;
    Some(Failure {
        hook: "-",
        errno: error.raw_os_error().unwrap_or(0),
        reason: without_types(btf, &error.to_string()),
        words: String::new(),
    })
}

/// The file, what is wrong with it, what to do.
fn without_types(btf: Option<&Path>, fault: &str) -> String {
    let advice = match btf {
        Some(_) => "give --btf a file with the BTF of the running kernel",
        None => "use a kernel built with CONFIG_DEBUG_INFO_BTF, or give its BTF with --btf FILE",
    };
    format!("{}: {fault}; {advice}", btf.unwrap_or(Path::new(KERNEL_BTF)).display())
}

struct Trial<'a> {
    wanted: &'a [Wanted],
    constants: &'a types::rodata,
    btf: Option<&'a Path>,
    avoid: String,
    attempts: &'a mut Vec<Attempt>,
    modules: &'a mut Vec<Result<(), Failure>>,
}

impl Trial<'_> {
    /// Tries until what is left of these modules loads. Each round takes a tier or a module away, so it ends.
    fn settle(&mut self, among: &[usize]) -> Loaded {
        let mut tiers: BTreeMap<&'static str, usize> = BTreeMap::new();
        let tiers_of_templates =
            |&module: &usize| templates(&self.wanted[module].plan).into_iter().flat_map(|t| t.tiers);
        let mut refused: BTreeSet<&'static str> =
            among.iter().flat_map(tiers_of_templates).filter_map(|tier| avoided(tier, &self.avoid)).collect();
        loop {
            let active: Vec<usize> = among.iter().copied().filter(|&module| self.modules[module].is_ok()).collect();
            if active.is_empty() {
                return Loaded::empty();
            }
            let refusal = match self.attempt(&active, &tiers, &refused) {
                Ok(loaded) if self.all_reach(&active, &loaded) => return loaded,
                Ok(_) => continue,
                Err(refusal) => refusal,
            };
            if self.without_template(&active, &refusal, &mut refused) {
                continue;
            }
            let Some((hook, tier)) = self.hook_of(&active, &tiers, refusal.program.as_deref()) else {
                self.give_up(&active, &refusal);
                continue;
            };
            self.note(hook, tier, Err(refusal.words.clone()));
            let next = tiers.entry(hook.name).or_insert(0);
            *next += 1;
            // A hook that nobody needs stays without a tier, and the rest is loaded without it.
            if *next < hook.tiers.len() || !active.iter().any(|&module| self.needs(module, hook)) {
                continue;
            }
            tiers.remove(hook.name);
            let users: Vec<usize> = active.iter().copied().filter(|&module| self.needs(module, hook)).collect();
            match users.as_slice() {
                [module] => self.modules[*module] = Err(unattached(hook, &refusal)),
                _ => self.blame(hook, &users, &refusal),
            }
        }
    }

    /// Whether each module that has targets reaches one of them; those that do not are out.
    fn all_reach(&mut self, active: &[usize], loaded: &Loaded) -> bool {
        let mut all = true;
        for &module in active {
            let name = self.wanted[module].name;
            let mut targets = loaded.reaches.iter().filter(|reach| reach.module == name).peekable();
            let Some(&first) = targets.peek() else { continue };
            if targets.any(|reach| reach.result.is_ok()) {
                continue;
            }
            all = false;
            let count = self.wanted[module].plan.each.len();
            self.modules[module] = Err(Failure {
                hook: first.template,
                errno: 0,
                reason: match count {
                    1 => format!("{} cannot be attached to", first.target),
                    _ => format!("none of {count} targets can be attached to; the first is {}", first.target),
                },
                words: first.result.clone().err().unwrap_or_default(),
            });
        }
        all
    }

    /// The kernel refused a template: the others of its hook remain, or its module is out. False if it was none.
    fn without_template(&mut self, active: &[usize], refusal: &Refusal, refused: &mut BTreeSet<&'static str>) -> bool {
        for &module in active {
            for hook in templates(&self.wanted[module].plan) {
                let is = |program: &&&str| Some(**program) == refusal.program.as_deref();
                let hit = hook.tiers.iter().find_map(|tier| Some((tier, tier.programs.iter().find(is)?)));
                let Some((tier, &program)) = hit else { continue };
                self.note(hook, tier, Err(refusal.words.clone()));
                refused.insert(program);
                if hook.tiers.iter().all(|tier| tier.programs.iter().any(|program| refused.contains(program))) {
                    self.modules[module] = Err(unattached(hook, refusal));
                }
                return true;
            }
        }
        false
    }

    /// A program that several modules share was refused: those that fail alone are out; if none does, the last is.
    fn blame(&mut self, hook: &'static Hook, users: &[usize], refusal: &Refusal) {
        for &module in users {
            drop(self.settle(&[module]));
        }
        if let (true, Some(&last)) = (users.iter().all(|&module| self.modules[module].is_ok()), users.last()) {
            self.modules[last] = Err(unattached(hook, refusal));
        }
    }

    /// Something was refused that is no hook: a map takes its modules out, anything else all of them.
    fn give_up(&mut self, active: &[usize], refusal: &Refusal) {
        let owns = |module: usize| {
            refusal.map.as_ref().is_some_and(|map| self.wanted[module].maps.iter().any(|def| def.name == map))
        };
        let owners: Vec<usize> = active.iter().copied().filter(|&module| owns(module)).collect();
        let reason = match (&refusal.map, refusal.errno) {
            _ if refusal.words.contains("target BTF") => without_types(self.btf, "cannot be read as BTF"),
            (_, libc_eperm @ (1 | 13)) => format!(
                "loading BPF is not permitted (errno {libc_eperm}); run as root or with CAP_BPF and CAP_PERFMON, and see \
                 kernel lockdown"
            ),
            (Some(map), errno) => format!("map {map} cannot be created (errno {errno}); less memory or a smaller setting helps"),
            (None, 0) => "the BPF object cannot be loaded".to_owned(),
            (None, errno) => format!("the BPF object cannot be loaded (errno {errno})"),
        };
        for &module in if owners.is_empty() { active } else { &owners } {
            self.modules[module] =
                Err(Failure { hook: "-", errno: refusal.errno, reason: reason.clone(), words: refusal.words.clone() });
        }
    }

    fn uses(&self, module: usize, hook: &Hook) -> bool {
        self.hooks(&[module]).iter().any(|used| used.name == hook.name)
    }

    fn needs(&self, module: usize, hook: &Hook) -> bool {
        let optional = &self.wanted[module].plan.optional;
        self.uses(module, hook) && !optional.iter().any(|optional| optional.name == hook.name)
    }

    /// The hooks of modules, each once.
    fn hooks(&self, modules: &[usize]) -> Vec<&'static Hook> {
        let mut hooks: Vec<&'static Hook> = Vec::new();
        for &module in modules {
            let plan = &self.wanted[module].plan;
            let later = plan.later.iter().map(|(hook, _)| hook);
            for hook in plan.hooks.iter().chain(later).chain(&plan.optional) {
                if !hooks.iter().any(|known| known.name == hook.name) {
                    hooks.push(hook);
                }
            }
        }
        hooks
    }

    fn hook_of(
        &self,
        active: &[usize],
        tiers: &BTreeMap<&'static str, usize>,
        program: Option<&str>,
    ) -> Option<(&'static Hook, &'static Tier)> {
        self.hooks(active).into_iter().find_map(|hook| {
            let tier = hook.tiers.get(tiers.get(hook.name).copied().unwrap_or(0))?;
            tier.programs.contains(&program?).then_some((hook, tier))
        })
    }

    fn note(&mut self, hook: &'static Hook, tier: &'static Tier, result: Result<(), String>) {
        let attempt = Attempt { hook: hook.name, kind: tier.kind, result };
        if !self.attempts.contains(&attempt) {
            self.attempts.push(attempt);
        }
    }

    /// Opens, configures, loads and attaches once.
    fn attempt(
        &mut self,
        active: &[usize],
        tiers: &BTreeMap<&'static str, usize>,
        refused: &BTreeSet<&'static str>,
    ) -> Result<Loaded, Refusal> {
        let hooks: Vec<(&'static Hook, &'static Tier)> = self
            .hooks(active)
            .into_iter()
            .filter_map(|hook| Some((hook, hook.tiers.get(tiers.get(hook.name).copied().unwrap_or(0))?)))
            .collect();
        if let Some(program) = hooks.iter().find_map(|(_, tier)| avoided(tier, &self.avoid)) {
            let words = format!("passed over as {AVOID} asks");
            return Err(Refusal { program: Some(program.into()), words, ..Refusal::default() });
        }
        let templates = active.iter().flat_map(|&module| templates(&self.wanted[module].plan));
        let copied = templates.flat_map(|hook| hook.tiers).filter(|tier| usable(tier, refused));
        // Modules share hooks: what only modules that are off take part in would run for nothing.
        let busy = |program: &&&str| {
            let parts = PROGRAMS.iter().find(|(name, _)| *name == **program);
            parts.is_none_or(|(_, modules)| active.iter().any(|&module| modules.contains(&self.wanted[module].name)))
        };
        let programs: BTreeSet<&'static str> = hooks
            .iter()
            .map(|(_, tier)| *tier)
            .chain(copied)
            .flat_map(|tier| tier.programs.iter().filter(busy).copied())
            .collect();
        let mut constants = *self.constants;
        for &module in active {
            bpf::switch_on(&mut constants, self.wanted[module].name);
        }

        let (object, said) = listening(|| -> libbpf_rs::Result<Object> {
            let mut builder = ObjectBuilder::default();
            builder.name("corebcc")?;
            if let Some(btf) = self.btf {
                builder.btf_custom_path(btf)?;
            }
            let mut open = builder.open_memory(OBJECT)?;
            for mut program in open.progs_mut() {
                let name = program.name().to_string_lossy();
                let wanted = programs.contains(name.as_ref()) || name == "ask_features";
                program.set_autoload(wanted);
            }
            for mut map in open.maps_mut() {
                let name = map.name().to_string_lossy().into_owned();
                if name.ends_with(".rodata") {
                    // The section ends with its last constant, the struct with the padding behind it.
                    let length = map.initial_value().map_or(0, |value| value.len());
                    let bytes = bpf::bytes(&constants);
                    map.set_initial_value(bytes.get(..length).unwrap_or(bytes))?;
                } else if !name.ends_with(".bss") {
                    let users = active.iter().map(|&module| &self.wanted[module]);
                    let wanted = users.clone().any(|wanted| wanted.maps.iter().any(|def| def.name == name));
                    map.set_autocreate(wanted)?;
                    let entries = users.flat_map(|wanted| &wanted.plan.entries).filter(|(map, _)| *map == name);
                    if let Some(entries) = entries.map(|(_, entries)| *entries).max() {
                        map.set_max_entries(entries)?;
                    }
                }
            }
            open.load()
        });
        let object = object.map_err(|error| {
            let refusal = Refusal::read(&said, errno(&error));
            // libbpf says nothing of what fails before it looks at the object, for want of a descriptor for instance.
            let words = if refusal.words.is_empty() { chain(&error) } else { refusal.words };
            Refusal { words, ..refusal }
        })?;

        let mut loaded = Loaded::new(object, self.wanted, active, hooks, programs)?;
        let features = loaded.ask();
        let later = active.iter().flat_map(|&module| &self.wanted[module].plan.later);
        let plans = active.iter().map(|&module| &self.wanted[module].plan);
        let now = plans.flat_map(|plan| plan.hooks.iter().chain(&plan.optional)).map(|hook| hook.name);
        let now: BTreeSet<&str> =
            now.chain(later.filter(|(_, feature)| features.contains(feature)).map(|(hook, _)| hook.name)).collect();
        for &(hook, tier) in &loaded.hooks {
            if now.contains(hook.name) {
                loaded.attach_tier(hook, tier)?;
            }
            self.note(hook, tier, Ok(()));
        }
        for &module in active {
            loaded.attach_each(&self.wanted[module], refused);
        }
        Ok(loaded)
    }
}

/// The templates a plan uses, each once.
fn templates(plan: &Plan) -> Vec<&'static Hook> {
    let mut templates: Vec<&'static Hook> = Vec::new();
    for (hook, _, _) in &plan.each {
        if !templates.contains(hook) {
            templates.push(hook);
        }
    }
    templates
}

fn usable(tier: &Tier, refused: &BTreeSet<&'static str>) -> bool {
    !tier.programs.iter().any(|program| refused.contains(program))
}

/// The environment variable that names ways to attach which are not to be tried, separated by commas: kinds (`tp_btf`) or
/// programs (`tp__sched_switch`). tests/kernels reaches the later tiers with it, on kernels that would accept the first.
const AVOID: &str = "COREBCC_AVOID";

/// The program of a tier that is to be avoided.
fn avoided(tier: &Tier, avoid: &str) -> Option<&'static str> {
    let named = |name: &str| avoid.split(',').any(|avoided| avoided == name);
    tier.programs.iter().copied().find(|program| named(program) || named(tier.kind))
}

fn unattached(hook: &'static Hook, refusal: &Refusal) -> Failure {
    Failure {
        hook: hook.name,
        errno: refusal.errno,
        reason: format!("no way to attach to {} (errno {}): needs {}", hook.name, refusal.errno, hook.needs),
        words: refusal.words.clone(),
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn errno(error: &libbpf_rs::Error) -> i32 {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = source {
        if let Some(io) = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error) {
            return io;
        }
        source = error.source();
    }
    match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => 1,
        libbpf_rs::ErrorKind::NotFound => 2,
        libbpf_rs::ErrorKind::AlreadyExists => 17,
        libbpf_rs::ErrorKind::InvalidInput => 22,
        _ => 0,
    }
}

/// Loaded programs and maps.
pub struct Loaded {
    // Links are dropped first: a program is detached before its maps go.
    links: RefCell<BTreeMap<&'static str, Vec<libbpf_rs::Link>>>,
    copies: Vec<each::Attached>,
    reaches: Vec<Reach>,
    maps: BTreeMap<&'static str, Mapping>,
    rings: BTreeMap<&'static str, Ring>,
    hooks: Vec<(&'static Hook, &'static Tier)>,
    /// Programs of the hooks' tiers that were loaded.
    programs: BTreeSet<&'static str>,
    object: Option<Object>,
}

impl Loaded {
    fn empty() -> Loaded {
        Loaded {
            links: RefCell::default(),
            copies: Vec::new(),
            reaches: Vec::new(),
            maps: BTreeMap::new(),
            rings: BTreeMap::new(),
            hooks: Vec::new(),
            programs: BTreeSet::new(),
            object: None,
        }
    }

    fn new(
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
    fn ask(&self) -> Vec<&'static str> {
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

    fn attach_tier(&self, hook: &'static Hook, tier: &Tier) -> Result<(), Refusal> {
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
    fn attach_each(&mut self, wanted: &Wanted, refused: &BTreeSet<&'static str>) {
        let Some(object) = &self.object else { return };
        let btf = Functions::default();
        if !wanted.plan.each.is_empty() {
            more_descriptors();
        }
        for (hook, target, number) in &wanted.plan.each {
            let mut words = Vec::new();
            let mut by = None;
            for tier in hook.tiers.iter().filter(|tier| usable(tier, refused)) {
                let copy = |name: &&str| {
                    let template = object.progs_mut().find(|program| program.name() == *name);
                    let template = template.ok_or_else(|| format!("no program {name} in the BPF object"))?;
                    let (copy, _) = listening(|| each::attach(&template, target, *number, &btf));
                    copy
                };
                match tier.programs.iter().map(copy).collect::<Result<Vec<_>, String>>() {
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
        let is = |reach: &&Reach| reach.template == template.name && reach.number == number;
        self.reaches.iter().find(is).is_some_and(|reach| reach.result.is_ok())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_is_avoided_by_its_kind_or_by_one_of_its_programs() {
        let tier = Tier { kind: "fexit+fentry", programs: &["fexit__a", "fentry__b"] };
        assert_eq!(avoided(&tier, ""), None);
        assert_eq!(avoided(&tier, "fexit,fentry__bb"), None);
        assert_eq!(avoided(&tier, "tp_btf,fexit+fentry"), Some("fexit__a"));
        assert_eq!(avoided(&tier, "fentry__b"), Some("fentry__b"));
    }
}
