//! The agent as a whole.

use super::{held, set_opt, AgentStatus, Sets};
use crate::kit::{MetricDef, Table, TableSpec};
use crate::loader::{self, LoadedObject};
use crate::metrics;
use crate::pcp::PmErr;
use std::sync::atomic::Ordering::Relaxed;

metrics! {
    VERSION: str = 0 "agent.version" DISCRETE NONE "version of the agent";
    RELEASE: str = 1 "agent.kernel.release" DISCRETE NONE "release of the running kernel";
    LOADING: u64 = 2 "agent.load.time" DISCRETE MSEC "time spent loading the modules";
    UPTIME: u64 = 3 "agent.uptime" INSTANT SEC "time since the agent started";
    RESIDENT: u64 = 4 "agent.memory.resident" INSTANT BYTE "resident memory of the agent's process";
    FETCHES: u64 = 5 "agent.fetches" COUNTER COUNT "fetches answered";
    RESTARTS: u64 = 6 "agent.restarts" COUNTER COUNT "agent restarts since boot";
    CRASHES: u64 = 7 "agent.crashes" COUNTER COUNT "unclean agent exits since boot";
    CONFIGURATION: str = 8 "agent.configuration.status" DISCRETE NONE "errors in the configuration, each with file, line and remedy";
    ERRORS: u32 = 9 "agent.configuration.errors" DISCRETE COUNT "number of errors in the configuration";
    STATISTICS: u32 = 10 "agent.program.stats" INSTANT NONE "1 if program statistics are on, else 0; pmstore changes it";
    CONTROL: str = 11 "agent.control" INSTANT NONE "what became of the last order; pmstore takes reload";
}

pub static TABLE: TableSpec = TableSpec::single("the agent as a whole", 300, METRICS);

pub fn fill(sets: &Sets, status: &AgentStatus, table: &mut Table) {
    let kernel = nix::sys::utsname::uname().map(|names| names.release().to_os_string()).unwrap_or_default();
    let configuration = status.configuration();
    let row = table
        .single()
        .text(VERSION, env!("CARGO_PKG_VERSION").as_bytes())
        .text(RELEASE, kernel.as_encoded_bytes())
        .set(LOADING, sets.loading().as_millis() as u64)
        .set(UPTIME, status.started.elapsed().as_secs())
        .set(FETCHES, status.fetches.load(Relaxed))
        .text(CONFIGURATION, configuration.status.as_bytes())
        .set(ERRORS, configuration.errors.len() as u32)
        .set(STATISTICS, u32::from(status.statistics.are_on()))
        .text(CONTROL, status.orders.said("").as_bytes());
    let row = set_opt(row, RESIDENT, loader::resident());
    let row = set_opt(row, RESTARTS, status.restarts.as_ref().map(|restarts| restarts.count));
    set_opt(row, CRASHES, status.restarts.as_ref().map(|restarts| restarts.crashes));
}

/// True for the column that takes orders.
pub fn is_control(column: usize) -> bool {
    column == CONTROL.column
}

/// Switches program statistics on (`1`) and off (`0`); other columns cannot be changed.
pub fn store(sets: &Sets, status: &AgentStatus, metric: &MetricDef, value: &[u8]) -> Result<(), PmErr> {
    if !std::ptr::eq(metric, &METRICS[STATISTICS.column]) {
        return Err(PmErr::PERMISSION);
    }
    let on = match value {
        b"0" => false,
        b"1" => true,
        _ => return Err(PmErr::BADSTORE),
    };
    let open = || match &status.statistics_helper {
        Some(helper) => helper.count_runs(),
        None => sets.kernels().next().map_or_else(loader::count_runs, LoadedObject::count_runs),
    };
    let switched = status.statistics.switch(on, open);
    if let Some(more) = held(&status.switched).due() {
        let level = if switched.is_ok() { log::Level::Info } else { log::Level::Error };
        log::log!(level, "program statistics: {}{more}", status.statistics.finding().said);
    }
    switched.map_err(|error| PmErr::errno(error.raw_os_error().unwrap_or(0).max(1)))
}
