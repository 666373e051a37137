//! Loading by trial: what the kernel refuses gives way to the next tier of its hook, a hook without a tier left takes its
//! modules out, and everything else is loaded. All modules are one BPF object, so there is one parse of the kernel's BTF.

use super::loaded::Loaded;
use super::refusal::{chain, errno, listening, Refusal};
use crate::bpf::{self, types, OBJECT, PROGRAMS};
use crate::kit::{Hook, MapDef, Plan, Target, Tier};
use libbpf_rs::{Object, ObjectBuilder};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

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
            for hook in &self.wanted[module].plan.templates {
                let tier = hook.tiers.iter().find(|tier| usable(tier, refused));
                tier.into_iter().for_each(|tier| self.note(hook, tier, Ok(())));
            }
        }
        Ok(loaded)
    }
}

/// The templates a plan uses, each once.
fn templates(plan: &Plan) -> Vec<&'static Hook> {
    let mut templates: Vec<&'static Hook> = Vec::new();
    for hook in plan.each.iter().map(|(hook, _, _)| hook).chain(&plan.templates) {
        if !templates.contains(hook) {
            templates.push(hook);
        }
    }
    templates
}

/// Whether no program of a tier was refused.
pub(super) fn usable(tier: &Tier, refused: &BTreeSet<&'static str>) -> bool {
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
