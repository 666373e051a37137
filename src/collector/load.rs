//! Loading of modules: each one plans, then the loader does what all the plans request.

use super::guard::{guarded, inject};
use super::loaded_module::{kernel_modules_of, LoadedModule};
use super::loaded_set::LoadedSet;
use super::prepared_module::{PreparedModule, PreparedModules};
use crate::bpf::{self, types};
use crate::kit::{Kernel, Module, Plan};
use crate::loader::{pinned_sizes, Failure, LoadRequest, LoadedObject, Outcome, PinRequest};
use crate::process::Filters;
use std::cell::Cell;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;

/// Plans the modules and loads them by `load`: the loader, or a stand-in in tests without a kernel.
pub fn load<L: LoadedObject + 'static>(
    prepared: PreparedModules,
    load: impl FnOnce(&[LoadRequest], &types::rodata) -> Outcome<L>,
) -> LoadedSet {
    let begin = Instant::now();
    let PreparedModules { mut modules, process_refresh, stoppable, .. } = prepared;
    let (host, mut constants) = (crate::host::host(), bpf::constants());
    let mut plans = Vec::new();
    for (number, prepared) in modules.iter_mut().enumerate() {
        prepared.announce();
        let pinned = prepared.pin.as_ref().map_or_else(Vec::new, |pin| pinned_sizes(&pin.unit));
        let mut plan = Plan { number, pinned, ..Plan::default() };
        let planned = match &mut prepared.module {
            Ok(module) => guarded(&prepared.name, || {
                inject("plan", &prepared.name);
                module.plan(&host, &mut plan, &mut constants);
            })
            .map_err(|fault| fault.to_string()),
            Err(failure) => Err(failure.reason.clone()),
        };
        if let Err(reason) = planned {
            plan = Plan { number, refusal: Some(reason), ..Plan::default() };
        }
        plans.push(plan);
    }
    let filtered = modules.iter().zip(&plans).map(|(prepared, plan)| (&*prepared.name, prepared.spec.name, plan));
    let mut filters_at = None;
    if let Some(mut filters) = Filters::of(filtered, process_refresh) {
        let mut plan = Plan::default();
        filters.plan(&host, &mut plan, &mut constants);
        plans.push(plan);
        filters_at = Some(modules.len());
        let spec = &Filters::SPEC;
        modules.push(PreparedModule {
            name: spec.name.into(),
            spec,
            tables: Vec::new(),
            metrics: Vec::new(),
            debug: false,
            remarks: Vec::new(),
            pin: None,
            module: Ok(Box::new(filters)),
        });
    }
    let missing: Vec<_> = plans.iter_mut().map(|plan| std::mem::take(&mut plan.missing)).collect();
    let targets: Vec<usize> = plans.iter().map(|plan| plan.targets.len()).collect();
    let wanted: Vec<LoadRequest> = modules
        .iter()
        .zip(plans)
        .map(|(prepared, plan)| LoadRequest {
            name: prepared.spec.name,
            depends_on: plan.filter.as_ref().and(filters_at),
            maps: prepared.spec.maps,
            pin: prepared.pin.clone().map(|pin| PinRequest {
                layout: plan.counts_by.iter().fold(pin.layout, |layout, number| layout.with(number)),
                ..pin
            }),
            plan,
        })
        .collect();
    constants.stoppable = stoppable && wanted.len() > 1;
    let kernel_modules: Vec<usize> = modules.iter().map(|prepared| kernel_modules_of(prepared.spec)).collect();
    inject("load", "all");
    let outcome = load(&wanted, &constants);
    let kernel: &dyn Kernel = &outcome.loaded;
    let has_panicked = Cell::new(false);
    let start = |name: &Arc<str>, module: Box<dyn Module + Send>| {
        let begin = || {
            inject("start", name);
            module.start(kernel)
        };
        guarded(name, begin).map(RwLock::new).map_err(|fault| {
            has_panicked.set(true);
            Failure { reason: fault.to_string(), ..Failure::default() }
        })
    };
    let found = outcome.modules.into_iter().zip(missing).zip(targets).zip(kernel_modules);
    let modules =
        modules.into_iter().zip(found).map(|(prepared, (((result, missing), targets), kernel_modules))| LoadedModule {
            running: prepared.module.and_then(|module| result.and_then(|()| start(&prepared.name, module))),
            losses: Mutex::default(),
            name: prepared.name,
            spec: prepared.spec,
            tables: prepared.tables,
            metrics: prepared.metrics,
            debug: prepared.debug,
            missing,
            targets,
            kernel_modules,
            refreshes: Mutex::default(),
            stopped: AtomicBool::new(false),
            loaded_at: crate::host::seconds_since_1970(),
        });
    let modules: Vec<LoadedModule> = modules.collect();
    // What a module had attached before it panicked would count for nobody.
    if has_panicked.get() {
        let serving = modules.iter().filter(|loaded| loaded.running.is_ok() && !loaded.tables.is_empty());
        outcome.loaded.keep(&serving.map(|loaded| loaded.spec.name).collect::<Vec<_>>());
    }
    LoadedSet {
        kernel: Box::new(outcome.loaded),
        modules,
        attempts: outcome.attempts,
        findings: outcome.findings,
        loading: begin.elapsed(),
    }
}
