//! The agent's own metrics, `agent.*`: what became of each module, what its programs and maps cost, what was lost. To a client
//! they are like a module's; the configuration has no section for them, and they are always there.

mod agent;
mod kernel;
mod lost;
mod map;
mod module;
mod program;

use super::guard::Fault;
use super::loaded_modules::LoadedModules;
use super::prepared::Configuration;
use crate::catalog::ServedTable;
use crate::kit::{Metric, Number, RefreshError, RowMut, Table, TableId, TableSpec};
use crate::loader::{self, Finding};
use crate::state::Restarts;
use std::os::fd::OwnedFd;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::AtomicU64;
use std::sync::Arc;
use std::time::Instant;

/// A table of the agent's own.
pub struct StatusTable {
    /// Its declaration.
    pub spec: &'static TableSpec,
    fill: fn(&LoadedModules, &AgentStatus, &mut Table),
}

impl StatusTable {
    /// What the collector knows it by.
    pub fn id(&self) -> TableId {
        TableId::new(self.spec.cluster as u16)
    }

    /// Fills the table; a panic costs its values.
    pub fn refresh(
        &self,
        modules: &LoadedModules,
        status: &AgentStatus,
        table: &mut Table,
    ) -> Result<(), RefreshError> {
        catch_unwind(AssertUnwindSafe(|| (self.fill)(modules, status, table))).map_err(|panic| {
            table.clear();
            let error = RefreshError(Fault::of(panic.as_ref()).to_string());
            log::error!("{}: {error}", self.spec.summary);
            error
        })
    }
}

/// All of them: clusters 300 to 305.
pub static STATUS: [StatusTable; 6] = [
    StatusTable { spec: &agent::TABLE, fill: agent::fill },
    StatusTable { spec: &module::TABLE, fill: module::fill },
    StatusTable { spec: &program::TABLE, fill: program::fill },
    StatusTable { spec: &map::TABLE, fill: map::fill },
    StatusTable { spec: &lost::TABLE, fill: lost::fill },
    StatusTable { spec: &kernel::TABLE, fill: kernel::fill },
];

/// Names in one of these domains: many times what there is.
const NAMES: usize = 10_000;

/// A number if there is one.
fn set_opt<T: Number>(row: RowMut<'_>, metric: Metric<T>, value: Option<T>) -> RowMut<'_> {
    match value {
        Some(value) => row.set(metric, value),
        None => row,
    }
}

/// What the metrics about the agent need to know besides the modules' thread.
pub struct AgentStatus {
    started: Instant,
    fetches: Arc<AtomicU64>,
    configuration: Configuration,
    /// Held as long as the kernel is to count runs.
    runs: Option<OwnedFd>,
    /// Whether it does.
    counting: Finding,
    /// The starts before this one, where they can be counted.
    pub restarts: Option<Restarts>,
}

impl AgentStatus {
    /// Begins the time since the start. `bpf_stats`: let the kernel count the runs of programs.
    pub fn new(configuration: Configuration, bpf_stats: bool) -> AgentStatus {
        let found = |there, said: String| Finding::new("bpf_stats", there, said);
        let (runs, counting) = match bpf_stats.then(loader::count_runs).transpose() {
            Ok(None) => (None, found(None, "not tried: [pmda] has no `bpf_stats = True`".into())),
            Ok(runs) => (runs, found(Some(true), "the kernel counts runs of programs and their time".into())),
            Err(error) => {
                let reason = format!("the kernel refuses to count runs ({error}); it needs Linux 5.8 and root");
                log::warn!("bpf_stats has no effect: {reason}");
                (None, found(Some(false), reason))
            }
        };
        AgentStatus { started: Instant::now(), fetches: Arc::default(), configuration, runs, counting, restarts: None }
    }

    /// The count of fetches, for whoever sees them.
    pub fn fetches(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.fetches)
    }
}

/// The agent's own tables as they are served.
pub fn status_tables(prefix: &str) -> impl Iterator<Item = ServedTable> + '_ {
    STATUS.iter().map(move |table| ServedTable {
        id: table.id(),
        spec: table.spec,
        section: String::new(),
        prefix: prefix.into(),
        rows: 0,
        bpf_names: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf;
    use crate::config::Config;
    use crate::kit::{Fake, Host, Plan, Setup};
    use crate::modules::MODULES;
    use std::collections::BTreeSet;

    #[test]
    fn losses_have_names_of_their_own_without_blanks() {
        assert_eq!(lost::instance("a", "b c; d should be e"), "a::b-c");
        let host = Host::SMALL;
        let mut names = BTreeSet::new();
        for spec in MODULES {
            let config = Config::parse("test", spec.section("").as_bytes()).unwrap();
            let setup = Setup { section: &config.section(spec.name).unwrap(), process_refresh: None };
            let mut module = (spec.make)(&setup).unwrap();
            module.plan(&host, &mut Plan::default(), &mut bpf::constants());
            module.losses(&Fake::new(), &mut |reason, _| {
                let name = lost::instance(spec.name, reason);
                assert!(!name.contains(char::is_whitespace) && name.len() < 100, "{name}");
                assert!(names.insert(name), "{reason}: the same up to its first comma as another of {}", spec.name);
            });
        }
        assert!(names.len() > 10, "{names:?}");
    }
}
