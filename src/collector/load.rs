//! From modules that are made to modules that are loaded: each plans, then the kernel is asked.

use super::guard::{guarded, inject};
use super::loaded_module::{Slot, Working, CONFIGURATION};
use super::loaded_modules::LoadedModules;
use super::prepared_module::{Member, Members};
use crate::bpf;
use crate::kit::{Module, Plan};
use crate::loader::{self, Failure, LoadRequest};
use crate::process::Filters;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Instant;

/// Loads the modules as far as the kernel allows.
pub fn load(members: Members, btf: Option<PathBuf>) -> LoadedModules {
    let begin = Instant::now();
    let Members { mut modules, process_refresh } = members;
    let (host, mut constants) = (crate::host::host(), bpf::constants());
    let mut plans = Vec::new();
    for (number, member) in modules.iter_mut().enumerate() {
        let mut plan = Plan { number, ..Plan::default() };
        let planned = match &mut member.module {
            Ok(module) => guarded(&member.name, || {
                inject("plan", &member.name);
                module.plan(&host, &mut plan, &mut constants);
            }),
            Err(fault) => Err(fault.clone()),
        };
        if let Err(fault) = planned {
            plan = Plan { number, refusal: Some(fault), ..Plan::default() };
        }
        plans.push(plan);
    }
    let filtered = modules.iter().zip(&plans).map(|(member, plan)| (&*member.name, member.spec.name, plan));
    let mut filters_at = None;
    if let Some(mut filters) = Filters::of(filtered, process_refresh) {
        let mut plan = Plan::default();
        filters.plan(&host, &mut plan, &mut constants);
        plans.push(plan);
        filters_at = Some(modules.len());
        let spec = &Filters::SPEC;
        modules.push(Member {
            name: spec.name.into(),
            spec,
            tables: Vec::new(),
            debug: false,
            module: Ok(Box::new(filters)),
        });
    }
    let missing: Vec<_> = plans.iter_mut().map(|plan| std::mem::take(&mut plan.missing)).collect();
    let wanted: Vec<LoadRequest> = modules
        .iter()
        .zip(plans)
        .map(|(member, plan)| LoadRequest {
            name: member.spec.name,
            depends_on: plan.filter.as_ref().and(filters_at),
            plan,
            maps: member.spec.maps,
        })
        .collect();
    inject("load", "all");
    let outcome = loader::load(&bpf::OBJECT, &wanted, &constants, btf.as_deref());
    let slots = modules.into_iter().zip(outcome.modules).zip(missing).map(|((member, fate), missing)| Slot {
        name: member.name,
        spec: member.spec,
        tables: member.tables,
        debug: member.debug,
        module: match member.module {
            Ok(module) => fate.map(|()| Mutex::new(Working { module, losses: HashMap::new() })),
            Err(reason) => Err(Failure { hook: CONFIGURATION, errno: 0, reason, words: String::new() }),
        },
        missing,
        told: Mutex::default(),
    });
    LoadedModules {
        slots: slots.collect(),
        attempts: outcome.attempts,
        findings: outcome.findings,
        loaded: outcome.loaded,
        loading: begin.elapsed(),
    }
}
