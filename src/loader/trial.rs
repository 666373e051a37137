//! Loading by trial: when the kernel refuses a tier of a hook, the next one is tried; a hook without tiers left
//! disables its modules, and everything else is loaded. libbpf creates the maps and relocates the programs of one BPF
//! object; each program is then loaded by itself, so that a refusal costs one call.

use super::btf::{near_tracepoint, Function, KernelTypes};
use super::excerpt::{excerpt, section};
use super::features;
use super::object::Loaded;
use super::outcome::{usable, Attempt, Failure, Finding, LoadRequest};
use super::permission::{lock_memory, Privileges};
use super::pins::Unit;
use super::refusal::{chain, errno, listening, Refusal};
use super::relocated::Relocated;
use super::{program, template};
use crate::bpf::{BpfObject, Constants};
use crate::host::btf_encoding::KERNEL_TYPES;
use crate::kit::{Hook, MapKind, Plan, Target, Tier, When, NEEDS_BTF};
use libbpf_rs::{libbpf_sys, AsRawLibbpf, ObjectBuilder, ProgramType};
use nix::libc::ENOENT;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// Outcome of loading.
pub struct Outcome<L = Loaded> {
    /// Results of the wanted modules, in order.
    pub modules: Vec<Result<(), Failure>>,
    /// Attempts by hook; the last attempt at a hook is the one in force.
    pub attempts: Vec<Attempt>,
    /// Findings about the kernel.
    pub findings: Vec<Finding>,
    /// Maps and links; everything is detached when it is dropped.
    pub loaded: L,
}

impl Outcome {
    /// Returns the outcome for modules that ask for nothing.
    pub fn nothing(modules: usize) -> Outcome {
        Outcome { modules: vec![Ok(()); modules], attempts: Vec::new(), findings: Vec::new(), loaded: Loaded::empty() }
    }
}

/// Loads the modules of an object as far as the kernel allows. `btf` is a file with the kernel's BTF, for kernels
/// without their own.
pub fn load(object: &BpfObject, wanted: &[LoadRequest], constants: &dyn Constants, btf: Option<&Path>) -> Outcome {
    let refused = |reason: &String| Failure { hook: "-", errno: 0, reason: reason.clone(), kernel_log: String::new() };
    let mut modules: Vec<Result<(), Failure>> = wanted
        .iter()
        .map(|wanted| wanted.plan.refusal.as_ref().map_or(Ok(()), |reason| Err(refused(reason))))
        .collect();
    let mut attempts = Vec::new();
    let known = match known(object, wanted, btf) {
        Ok(known) => Arc::new(known),
        Err(error) => {
            let failure = Failure {
                hook: "-",
                errno: error.raw_os_error().unwrap_or(0),
                reason: without_types(btf, &error.to_string()),
                kernel_log: String::new(),
            };
            let mut findings = vec![Finding::new("types", false, failure.reason.clone())];
            findings.extend(features::surroundings());
            modules.fill(Err(failure));
            return Outcome { modules, attempts, findings, loaded: Loaded::empty() };
        }
    };
    lock_memory();
    let all: Vec<usize> = (0..wanted.len()).collect();
    let avoid = std::env::var(AVOID).unwrap_or_default();
    let mut findings = known.findings();
    let mut no_ring = None;
    let mut trial = Trial {
        object,
        wanted,
        constants,
        known,
        avoid,
        no_kprobes: template::kprobes().err(),
        no_trampolines: None,
        attempts: &mut attempts,
        modules: &mut modules,
        no_ring: &mut no_ring,
        pins: true,
    };
    let no_trampolines = trial.functions().next().and_then(|function| program::trampolines(function).err());
    trial.no_trampolines = no_trampolines;
    let mut loaded = trial.converge(&all);
    loaded.pin();
    loaded.forget_code();
    findings.extend(features::ways(&attempts, loaded.reaches()));
    findings.push(features::ring(loaded.rings().next().map(|(ring, _)| ring), no_ring));
    findings.extend(features::surroundings());
    findings.extend_from_slice(&loaded.features);
    super::footprint::trim();
    Outcome { modules, attempts, findings, loaded }
}

/// Reads the kernel's types that these modules use.
fn known(object: &BpfObject, wanted: &[LoadRequest], btf: Option<&Path>) -> std::io::Result<KernelTypes> {
    let (mut functions, mut tracepoints) = (BTreeSet::new(), BTreeSet::new());
    let plans = || wanted.iter().map(|wanted| &wanted.plan);
    for hook in plans().flat_map(|plan| hooks(plan).into_iter().chain(templates(plan))) {
        for program in hook.tiers.iter().flat_map(|tier| tier.programs) {
            match program.split_once("__") {
                Some(("tp", name)) => tracepoints.extend(name.split("___").next()),
                Some(("fentry" | "fexit", name)) => drop(functions.insert(name)),
                Some(("iter", _)) => drop(functions.insert(hook.name)),
                Some(("each_fentry" | "each_fexit", _)) => drop(functions.insert(TEMPLATE)),
                _ => {}
            }
        }
    }
    functions.extend(plans().flat_map(|plan| &plan.targets).filter_map(|(_, target, _)| match target {
        Target::Function(name) => Some(name.as_str()),
        _ => None,
    }));
    KernelTypes::read(&functions, &tracepoints, section(object.bytes, ".BTF").unwrap_or_default(), btf)
}

/// Function that the templates of fentry and fexit are compiled for (`bpf/`, build.rs).
const TEMPLATE: &str = "bpf_fentry_test1";

/// Formats an error about the file with types: file, fault, remedy.
fn without_types(btf: Option<&Path>, fault: &str) -> String {
    let advice = match btf {
        Some(_) => "give --btf a file with the BTF of the running kernel",
        None => "use a kernel built with CONFIG_DEBUG_INFO_BTF, or give its BTF with --btf FILE",
    };
    format!("{}: {fault}; {advice}", btf.unwrap_or(Path::new(KERNEL_TYPES)).display())
}

struct Trial<'a> {
    object: &'a BpfObject,
    wanted: &'a [LoadRequest],
    constants: &'a dyn Constants,
    known: Arc<KernelTypes>,
    avoid: String,
    /// Reason why the kernel refuses kprobes on functions, if it does.
    no_kprobes: Option<Refusal>,
    /// Reason why the kernel refuses trampolines on functions (fentry, fexit), if it does.
    no_trampolines: Option<Refusal>,
    attempts: &'a mut Vec<Attempt>,
    modules: &'a mut Vec<Result<(), Failure>>,
    /// Error of a ring that could not be created.
    no_ring: &'a mut Option<String>,
    /// True if pinned maps of an earlier agent are reused.
    pins: bool,
}

impl Trial<'_> {
    /// Tries until the remaining modules load. Each round but the last removes a module, so it ends.
    fn converge(&mut self, among: &[usize]) -> Loaded {
        let mut refused = BTreeSet::new();
        loop {
            self.drop_dependents();
            let active = self.active(among);
            if active.is_empty() {
                return Loaded::empty();
            }
            match self.attempt(&active, &mut refused) {
                Ok(loaded) if self.active(&active) == active => return loaded,
                Ok(_) => {}
                Err(refusal) => self.fail_all(&active, &refusal),
            }
        }
    }

    fn active(&self, among: &[usize]) -> Vec<usize> {
        among.iter().copied().filter(|&module| self.modules[module].is_ok()).collect()
    }

    /// Fails modules whose dependency has failed.
    fn drop_dependents(&mut self) {
        for (module, wanted) in self.wanted.iter().enumerate() {
            let failure = wanted.depends_on.and_then(|other| self.modules[other].as_ref().err().cloned());
            if let (Some(failure), true) = (failure, self.modules[module].is_ok()) {
                self.modules[module] = Err(failure);
            }
        }
    }

    /// Creates the maps and tries the hooks. After a module has failed everything is done again, since its parts are in
    /// shared programs.
    fn attempt(&mut self, active: &[usize], refused: &mut BTreeSet<&'static str>) -> Result<Loaded, Refusal> {
        self.pass_over(active, refused);
        if self.active(active) != active {
            return Ok(Loaded::empty());
        }
        let (object, units) = self.prepare(active, refused)?;
        let mut loaded = Loaded::new(object, *self.object, self.wanted, active, Arc::clone(&self.known))?;
        loaded.units = units;
        loaded.features = loaded.ask(|feature| named(&self.avoid, feature));
        let planned = active.iter().flat_map(|&module| &self.wanted[module].plan.hooks);
        let at_start = |when: &When| match when {
            When::Needed | When::Optional => true,
            When::If(feature) => loaded.has(*feature),
            When::OnDemand => false,
        };
        let now: BTreeSet<&str> = planned.filter(|(_, when)| at_start(when)).map(|(hook, _)| hook.name).collect();
        let hooks = self.hooks(active);
        let mut chosen: Vec<Option<&'static Tier>> = vec![None; hooks.len()];
        // What is likely to be refused comes first, so that little is done in vain: verifying and detaching take time.
        for ways in [Ways::Functions, Ways::Both, Ways::Tracepoints] {
            for (hook, chosen) in hooks.iter().zip(&mut chosen).filter(|(hook, _)| Ways::of(hook) == ways) {
                match self.choose(&mut loaded, active, hook, now.contains(hook.name), refused) {
                    Ok(tier) => *chosen = Some(tier),
                    Err(refusal) => self.drop_users(hook, active, &refusal, refused),
                }
            }
            for &module in active {
                let templates = templates(&self.wanted[module].plan);
                let any = templates.iter().any(|hook| Ways::of(hook) != Ways::Tracepoints);
                let then = if any { Ways::Functions } else { Ways::Tracepoints };
                if then == ways {
                    self.choose_templates(&mut loaded, module, &templates, refused);
                }
            }
            if self.active(active) != active {
                return Ok(Loaded::empty());
            }
        }
        loaded.hooks = hooks.into_iter().zip(chosen).filter_map(|(hook, tier)| Some((hook, tier?))).collect();
        Ok(loaded)
    }

    /// Iterates over the functions that hooks would attach to by trampolines.
    fn functions(&self) -> impl Iterator<Item = &Function> {
        let tiers = self.wanted.iter().flat_map(|wanted| hooks(&wanted.plan)).flat_map(|hook| hook.tiers);
        let programs = tiers.flat_map(|tier| tier.programs).filter_map(|program| program.split_once("__"));
        let typed = programs.filter(|(kind, _)| matches!(*kind, "fentry" | "fexit"));
        typed.filter_map(|(_, name)| self.known.function(name))
    }

    /// Skips tiers that are to be avoided or need features that the kernel is known to lack, before anything is loaded:
    /// a module that fails later would cost the maps and programs of all.
    fn pass_over(&mut self, active: &[usize], refused: &mut BTreeSet<&'static str>) {
        for hook in self.hooks(active) {
            let mut last = None;
            for tier in hook.tiers.iter().filter(|tier| usable(tier, refused)).collect::<Vec<_>>() {
                if let Some((program, refusal)) = self.hindrance(tier) {
                    refused.insert(program);
                    self.record(hook, tier, vec![program], Err(refusal.clone()));
                    last = Some(refusal);
                }
            }
            if let (Some(refusal), false) = (last, hook.tiers.iter().any(|tier| usable(tier, refused))) {
                self.drop_users(hook, active, &refusal, refused);
            }
        }
    }

    /// Returns the reason why a tier need not be tried, and the program it concerns.
    fn hindrance(&self, tier: &Tier) -> Option<(&'static str, Refusal)> {
        if let Some(program) = avoided(tier, &self.avoid) {
            return Some((program, by_wish()));
        }
        tier.programs.iter().find_map(|&program| match program.split_once("__") {
            Some(("kprobe" | "kretprobe", _)) => Some((program, self.no_kprobes.clone()?)),
            Some(("fentry" | "fexit", name)) if self.known.function(name).is_none() => {
                Some((program, program::unknown("function", name)))
            }
            Some(("fentry" | "fexit", _)) => Some((program, self.no_trampolines.clone()?)),
            _ => None,
        })
    }

    /// Returns the first tier of a hook that the kernel accepts.
    fn choose(
        &mut self,
        loaded: &mut Loaded,
        active: &[usize],
        hook: &'static Hook,
        now: bool,
        refused: &mut BTreeSet<&'static str>,
    ) -> Result<&'static Tier, Refusal> {
        let mut last = Refusal::default();
        for tier in hook.tiers {
            if !usable(tier, refused) {
                last = self.hindrance(tier).map_or(last, |(_, refusal)| refusal);
                continue;
            }
            match self.try_tier(loaded, active, hook, tier, now) {
                Ok(()) => {
                    let programs = tier.programs.iter().copied();
                    self.record(hook, tier, programs.filter(|name| loaded.program(name).is_some()).collect(), Ok(()));
                    return Ok(tier);
                }
                Err((program, refusal)) => {
                    refused.insert(program);
                    self.record(hook, tier, vec![program], Err(refusal.clone()));
                    last = refusal;
                }
            }
        }
        Err(last)
    }

    /// Loads the programs of a tier, and attaches them if `now`; the error names the refused one.
    fn try_tier(
        &self,
        loaded: &mut Loaded,
        active: &[usize],
        hook: &'static Hook,
        tier: &'static Tier,
        now: bool,
    ) -> Result<(), (&'static str, Refusal)> {
        for &program in tier.programs.iter().filter(|program| self.is_busy(active, program)) {
            loaded.load(program).map_err(|refusal| (program, refusal))?;
        }
        if now {
            loaded.attach_tier(hook, tier)?;
        }
        Ok(())
    }

    /// True if an active module uses the program, or no module owns it: a shared hook has programs that only inactive
    /// modules use.
    fn is_busy(&self, active: &[usize], program: &str) -> bool {
        let users = self.object.users(program);
        users.is_none_or(|users| active.iter().any(|&module| users.contains(&self.wanted[module].name)))
    }

    /// Fails the modules that need a hook without tiers left.
    fn drop_users(
        &mut self,
        hook: &'static Hook,
        active: &[usize],
        refusal: &Refusal,
        refused: &mut BTreeSet<&'static str>,
    ) {
        let users: Vec<usize> = active.iter().copied().filter(|&module| self.needs(module, hook)).collect();
        match users.as_slice() {
            [] => {}
            [module] => {
                let outcome = &mut self.modules[*module];
                *outcome = std::mem::replace(outcome, Ok(())).and_then(|()| Err(unattached(hook, refusal)));
            }
            _ => {
                self.isolate_culprit(hook, &users, refusal);
                // The others have another try.
                refused.retain(|program| !hook.tiers.iter().any(|tier| tier.programs.contains(program)));
            }
        }
    }

    /// Tries a module's templates and attaches them to their targets.
    fn choose_templates(
        &mut self,
        loaded: &mut Loaded,
        module: usize,
        templates: &[&'static Hook],
        refused: &mut BTreeSet<&'static str>,
    ) {
        for hook in templates {
            // Each tier: a target that the first does not take may be one for the second.
            let mut last = Refusal::default();
            for tier in hook.tiers {
                if !usable(tier, refused) {
                    continue;
                }
                let tried = match avoided(tier, &self.avoid) {
                    Some(program) => Err((program, by_wish())),
                    None => self.try_tier(loaded, &[module], hook, tier, false),
                };
                if let Err((program, refusal)) = tried {
                    refused.insert(program);
                    self.record(hook, tier, vec![program], Err(refusal.clone()));
                    last = refusal;
                }
            }
            if !hook.tiers.iter().any(|tier| usable(tier, refused)) {
                self.modules[module] = Err(unattached(hook, &last));
                return;
            }
        }
        loaded.attach_each(&self.wanted[module], refused);
        for &hook in &self.wanted[module].plan.templates {
            let tier = hook.tiers.iter().find(|tier| usable(tier, refused));
            tier.into_iter().for_each(|tier| self.record(hook, tier, tier.programs.into(), Ok(())));
        }
        self.must_reach(module, loaded);
    }

    /// Fails a module that has targets and reaches none of them.
    fn must_reach(&mut self, module: usize, loaded: &Loaded) {
        let name = self.wanted[module].name;
        let mut targets = loaded.reaches.iter().filter(|reach| reach.module == name).peekable();
        let Some(&first) = targets.peek() else { return };
        if targets.any(|reach| reach.result.is_ok()) {
            return;
        }
        let count = self.wanted[module].plan.targets.len();
        let said = first.result.as_ref().err().cloned().unwrap_or_default();
        let refusal = Refusal::new(0, said.to_string());
        self.attempts.extend(said.0.into_iter().map(|(tier, refusal)| Attempt {
            hook: first.template,
            kind: tier.kind,
            programs: tier.programs.into(),
            result: Err(refusal),
        }));
        let cause = Privileges::read().explains(&refusal).map_or(String::new(), |cause| format!(": {cause}"));
        self.modules[module] = Err(Failure {
            hook: first.template,
            errno: 0,
            reason: match count {
                1 => format!("{} cannot be attached to{cause}", first.target),
                _ => format!("none of {count} targets can be attached to; the first is {}{cause}", first.target),
            },
            kernel_log: refusal.message,
        });
    }

    /// Fails the module whose part makes a shared program fail: those that fail alone; if none does, the last one.
    fn isolate_culprit(&mut self, hook: &'static Hook, users: &[usize], refusal: &Refusal) {
        // Programs of the failed attempt still run: these are not to count in the same maps.
        let pins = std::mem::replace(&mut self.pins, false);
        for &module in users {
            let other = self.wanted[module].depends_on.filter(|&other| self.modules[other].is_ok());
            drop(self.converge(&other.into_iter().chain([module]).collect::<Vec<_>>()));
        }
        self.pins = pins;
        if let (true, Some(&last)) = (users.iter().all(|&module| self.modules[module].is_ok()), users.last()) {
            self.modules[last] = Err(unattached(hook, refusal));
        }
    }

    /// Fails modules for a refusal that is not a hook's: a refused map fails its modules, anything else all of them.
    fn fail_all(&mut self, active: &[usize], refusal: &Refusal) {
        let owns = |module: usize| {
            refusal.map.as_ref().is_some_and(|map| self.wanted[module].maps.iter().any(|def| def.name == map))
        };
        let owners: Vec<usize> = active.iter().copied().filter(|&module| owns(module)).collect();
        let maps = || owners.iter().flat_map(|&module| self.wanted[module].maps);
        if maps().any(|def| def.kind == MapKind::Ring && refusal.map.as_deref() == Some(def.name)) {
            *self.no_ring = Some(refusal.message.clone());
        }
        let mut kernel_log = refusal.message.clone();
        let reason = match (&refusal.map, refusal.errno) {
            (_, errno @ (1 | 13)) => match Privileges::read().explains(refusal) {
                Some(cause) => {
                    kernel_log.clear(); // it says no more than the number
                    format!("loading BPF is not permitted (errno {errno}): {cause}")
                }
                None => format!(
                    "loading BPF is not permitted (errno {errno}), and nothing that the agent knows of forbids it; see what \
                     security modules log (dmesg, the audit log)"
                ),
            },
            (Some(map), errno) => format!("map {map} cannot be created (errno {errno}); less memory or a smaller setting helps"),
            (None, 0) => "the BPF object cannot be loaded".to_owned(),
            (None, errno) => format!("the BPF object cannot be loaded (errno {errno})"),
        };
        for &module in if owners.is_empty() { active } else { &owners } {
            self.modules[module] = Err(Failure {
                hook: "-",
                errno: refusal.errno,
                reason: reason.clone(),
                kernel_log: kernel_log.clone(),
            });
        }
    }

    fn needs(&self, module: usize, hook: &Hook) -> bool {
        let mut planned = self.wanted[module].plan.hooks.iter().filter(|(planned, _)| planned.name == hook.name);
        planned.any(|(_, when)| *when != When::Optional)
    }

    /// Returns the hooks of modules without duplicates.
    fn hooks(&self, modules: &[usize]) -> Vec<&'static Hook> {
        let mut all: Vec<&'static Hook> = Vec::new();
        for hook in modules.iter().flat_map(|&module| hooks(&self.wanted[module].plan)) {
            if !all.iter().any(|known| known.name == hook.name) {
                all.push(hook);
            }
        }
        all
    }

    fn record(
        &mut self,
        hook: &'static Hook,
        tier: &'static Tier,
        programs: Vec<&'static str>,
        result: Result<(), Refusal>,
    ) {
        let attempt = Attempt { hook: hook.name, kind: tier.kind, programs, result };
        if !self.attempts.contains(&attempt) {
            self.attempts.push(attempt);
        }
    }

    /// Opens the object, configures it, creates its maps and relocates the programs that may be loaded.
    fn prepare(&self, active: &[usize], refused: &BTreeSet<&'static str>) -> Result<(Relocated, Vec<Unit>), Refusal> {
        let templates = active.iter().flat_map(|&module| templates(&self.wanted[module].plan));
        let tiers = self.hooks(active).into_iter().chain(templates).flat_map(|hook| hook.tiers);
        let programs: BTreeSet<&'static str> = tiers
            .filter(|tier| usable(tier, refused) && avoided(tier, &self.avoid).is_none())
            .flat_map(|tier| tier.programs.iter().copied().filter(|program| self.is_busy(active, program)))
            .collect();
        let on: Vec<&str> = active.iter().map(|&module| self.wanted[module].name).collect();
        let late: Vec<_> = active.iter().filter_map(|&module| self.wanted[module].plan.late).collect();
        let constants = self.constants.bytes(&on, &self.avoid.split(',').collect::<Vec<_>>(), &late);
        let is_wanted = |name: &str| name == "ask_features" || programs.contains(name);
        let excerpt = excerpt(self.object.bytes, is_wanted);
        let mut units = Vec::new();
        let (object, said) = listening(|| -> libbpf_rs::Result<Relocated> {
            let mut builder = ObjectBuilder::default();
            builder.name(self.object.name)?.btf_custom_path(self.known.types())?;
            let mut open = builder.open_memory(excerpt.as_deref().unwrap_or(self.object.bytes))?;
            let mut typed = Vec::new();
            for mut program in open.progs_mut() {
                let name = program.name();
                program.set_autoload(name.to_str().is_some_and(is_wanted));
                if program.prog_type() == ProgramType::Tracing {
                    // libbpf would read all of the kernel's types to find what it is for, which we know.
                    program.set_prog_type(ProgramType::RawTracepoint);
                    typed.push(name.to_owned());
                }
            }
            for mut map in open.maps_mut() {
                let name = map.name().to_string_lossy().into_owned();
                if name.ends_with(".rodata") {
                    // The section ends with its last constant, the struct with the padding behind it.
                    let length = map.initial_value().map_or(0, |value| value.len());
                    map.set_initial_value(constants.get(..length).unwrap_or(&constants))?;
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
            let pins = active.iter().filter(|_| self.pins).filter_map(|&module| self.wanted[module].pin.as_ref());
            units = pins.filter_map(|pin| Unit::find(pin, &open)).collect::<Vec<_>>();
            units.iter().try_for_each(|unit| unit.reuse(&mut open))?;
            // SAFETY: the object is open and not loaded yet.
            let prepared = unsafe { libbpf_sys::bpf_object__prepare(open.as_libbpf_object().as_ptr()) };
            if prepared < 0 {
                return Err(libbpf_rs::Error::from_raw_os_error(-prepared));
            }
            for mut program in open.progs_mut() {
                program.set_autoload(false);
                if typed.iter().any(|name| name == program.name()) {
                    program.set_prog_type(ProgramType::Tracing);
                }
            }
            Relocated::of(&open.load()?)
        });
        object.map(|object| (object, units)).map_err(|error| {
            let refusal = Refusal::read(&said, errno(&error));
            // libbpf says nothing of what fails before it looks at the object, for want of a descriptor for instance.
            let message = if refusal.message.is_empty() { chain(&error) } else { refusal.message };
            Refusal { message, ..refusal }
        })
    }
}

/// Returns the hooks of a plan.
fn hooks(plan: &Plan) -> Vec<&'static Hook> {
    plan.hooks.iter().map(|(hook, _)| *hook).collect()
}

/// Targets of the tiers of a hook or template: functions, which not every kernel can attach to, or tracepoints, which
/// hardly ever fail, or both.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ways {
    Functions,
    Both,
    Tracepoints,
}

impl Ways {
    fn of(hook: &Hook) -> Ways {
        let kind = |program: &&str| program.trim_start_matches("each_").split("__").next().map(str::to_owned);
        let is_function = |kind: String| matches!(kind.as_str(), "fentry" | "fexit" | "kprobe" | "kretprobe");
        let mut are = hook.tiers.iter().flat_map(|tier| tier.programs).filter_map(kind).map(is_function);
        match (are.clone().any(|is| is), are.all(|is| is)) {
            (_, true) => Ways::Functions,
            (true, false) => Ways::Both,
            (false, false) => Ways::Tracepoints,
        }
    }
}

/// Returns the templates of a plan without duplicates.
fn templates(plan: &Plan) -> Vec<&'static Hook> {
    let mut templates: Vec<&'static Hook> = Vec::new();
    for hook in plan.targets.iter().map(|(hook, _, _)| hook).chain(&plan.templates) {
        if !templates.contains(hook) {
            templates.push(hook);
        }
    }
    templates
}

/// Environment variable with kinds of attachment to avoid, separated by commas: kinds (`tp_btf`) or programs
/// (`tp__sched_switch`). tests/vm reaches later tiers with it, on kernels that would accept the first. A feature (a
/// `FEATURE` line in bpf/) in it is inverted for all that depends on it.
const AVOID: &str = "COREBCC_AVOID";

/// Returns the program of a tier that is to be avoided.
fn avoided(tier: &Tier, avoid: &str) -> Option<&'static str> {
    tier.programs.iter().copied().find(|program| named(avoid, program) || named(avoid, tier.kind))
}

fn by_wish() -> Refusal {
    Refusal::new(0, format!("passed over as {AVOID} asks"))
}

fn named(avoid: &str, name: &str) -> bool {
    avoid.split(',').any(|avoided| avoided == name)
}

fn unattached(hook: &'static Hook, refusal: &Refusal) -> Failure {
    let is_tracepoint = hook.tiers.iter().any(|tier| tier.kind == "raw_tp");
    let said = match refusal.errno == ENOENT && is_tracepoint {
        true => format!("{}{}", refusal.message, near_tracepoint(hook.name)),
        false => refusal.message.clone(),
    };
    let (cause, kernel_log) = match Privileges::read().explains(refusal) {
        Some(cause) => (cause, said),
        // It has BTF, or nothing at all would have been loaded.
        None if refusal.errno == ENOENT && hook.needs == NEEDS_BTF => (said, String::new()),
        None => (format!("needs {}", hook.needs), said),
    };
    let reason = format!("no way to attach to {} (errno {}): {cause}", hook.name, refusal.errno);
    Failure { hook: hook.name, errno: refusal.errno, reason, kernel_log }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tracepoint_that_the_kernel_lacks_is_said_to_be_missing() {
        static PLAIN: Hook = crate::tracepoint!("task_newtsk");
        static INET: Hook = crate::tracepoint!("task_newtsk", "a kernel with BTF and CONFIG_INET");
        let said = |hook, refusal| unattached(hook, &refusal).to_string();
        let missing = || Refusal::missing("the kernel has no tracepoint of this name");
        let near = near_tracepoint("task_newtsk");
        let none = format!("the kernel has no tracepoint of this name{near}");
        assert_eq!(said(&PLAIN, missing()), format!("no way to attach to task_newtsk (errno 2): {none}"));
        let needs = "needs a kernel with BTF and CONFIG_INET; the kernel said:";
        assert_eq!(said(&INET, missing()), format!("no way to attach to task_newtsk (errno 2): {needs} {none}"));
        let other = said(&PLAIN, Refusal::new(22, "no such argument"));
        let needs = "needs a kernel with BTF; the kernel said: no such argument";
        assert_eq!(other, format!("no way to attach to task_newtsk (errno 22): {needs}"));
    }

    #[test]
    fn a_tier_is_avoided_by_its_kind_or_by_one_of_its_programs() {
        let tier = Tier { kind: "fexit+fentry", programs: &["fexit__a", "fentry__b"] };
        assert_eq!(avoided(&tier, ""), None);
        assert_eq!(avoided(&tier, "fexit,fentry__bb"), None);
        assert_eq!(avoided(&tier, "tp_btf,fexit+fentry"), Some("fexit__a"));
        assert_eq!(avoided(&tier, "fentry__b"), Some("fentry__b"));
    }
}
