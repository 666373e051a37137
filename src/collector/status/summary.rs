//! The agent's summary: states of modules, errors, losses.

use super::module_states::{module_states, ModuleState};
use super::{lost, program, set_opt, AgentStatus, Sets};
use crate::kit::{Table, TableSpec};
use crate::loader::{self, LoadedObject};
use crate::metrics;

metrics! {
    VERSION: str = 0 "agent.summary.version" DISCRETE NONE "version of the agent";
    RUNNING: u32 = 1 "agent.summary.modules.running" INSTANT COUNT "modules that are loaded and have values";
    FAILED: u32 = 2 "agent.summary.modules.failed" INSTANT COUNT "modules that are enabled and have no values";
    OFF: u32 = 3 "agent.summary.modules.off" INSTANT COUNT "modules that are not enabled or were stopped";
    LOSSES: u64 = 4 "agent.summary.losses" COUNTER COUNT "events that modules saw and could not count";
    MEMORY: u64 = 5 "agent.summary.memory.kernel" INSTANT BYTE "kernel memory of the BPF maps and programs of modules and pairs";
    AGENT: u64 = 6 "agent.summary.cpu.agent" COUNTER USEC "CPU time of the agent's process";
    PROGRAMS: u64 = 7 "agent.summary.cpu.programs" COUNTER USEC "CPU time of the modules' BPF programs, with program statistics on";
    CONFIGURATION: str = 8 "agent.summary.configuration" DISCRETE NONE "what is wrong with the configuration";
}

pub static TABLE: TableSpec = TableSpec::single("the agent at a glance", 306, METRICS);

pub fn fill(sets: &Sets, status: &AgentStatus, table: &mut Table) {
    let configuration = status.configuration();
    // The filter of processes is no module that anybody enables. A pair that failed has no tables.
    let is_module = |module: &ModuleState<'_>| {
        module.loaded.is_none_or(|(_, loaded)| loaded.pair().is_some() || !loaded.tables.is_empty())
    };
    let states: Vec<ModuleState<'_>> = module_states(sets, &configuration).into_iter().filter(is_module).collect();
    let count = |is: &dyn Fn(&ModuleState<'_>) -> bool| states.iter().filter(|module| is(module)).count() as u32;
    let (failed, off) = (count(&|module| module.has_failed()), count(&|module| module.is_off()));
    let of_pairs = sets.modules().filter_map(|(_, loaded)| loaded.pair()).map(|pair| pair.memory);
    let memory: u64 = sets.kernels().map(LoadedObject::memory).chain(of_pairs).sum();
    let row = table
        .single()
        .text(VERSION, env!("CARGO_PKG_VERSION").as_bytes())
        .set(RUNNING, states.len() as u32 - failed - off)
        .set(FAILED, failed)
        .set(OFF, off)
        .set(LOSSES, lost::total(sets, status))
        .set(MEMORY, memory)
        .text(CONFIGURATION, configuration.status.as_bytes());
    let row = set_opt(row, AGENT, loader::cpu_time().map(|time| time.as_micros() as u64));
    set_opt(row, PROGRAMS, program::time(sets, status).map(|nanoseconds| nanoseconds / 1000));
}
