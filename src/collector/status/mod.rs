//! The agent's own metrics, `agent.*`: a summary, what became of each module and metric, what programs and maps cost, what was lost.
//! To a client they are like a module's; the configuration has no section for them, and they are always there.

mod agent;
mod kernel;
mod lost;
mod map;
mod metric;
mod module;
mod module_states;
mod orders;
mod pair;
mod program;
mod scripts;
mod state;
mod statistics;
mod summary;
mod tracepoints;

use super::guard::{held, Fault};
use super::prepared::Configuration;
use super::sets::Sets;
use crate::catalog::{ServedTable, TableError};
use crate::kit::{EveryMinute, Metric, Number, RefreshError, RowMut, Table, TableId, TableSpec};
use crate::loader::{self, StatisticsHelper};
use crate::state::Restarts;
pub use orders::Orders;
use statistics::Statistics;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// A table of the agent's own.
pub struct StatusTable {
    /// Its declaration.
    pub spec: &'static TableSpec,
    fill: fn(&Sets, &AgentStatus, &mut Table),
}

impl StatusTable {
    /// What the collector knows it by.
    pub fn id(&self) -> TableId {
        TableId::new(self.spec.cluster as u16)
    }

    /// Fills the table; a panic costs its values.
    pub fn refresh(&self, sets: &Sets, status: &AgentStatus, table: &mut Table) -> Result<(), RefreshError> {
        catch_unwind(AssertUnwindSafe(|| (self.fill)(sets, status, table))).map_err(|panic| {
            table.clear();
            let error = RefreshError(Fault::of(panic.as_ref()).to_string());
            log::error!("{}: {error}", self.spec.summary);
            error
        })
    }

    /// Changes a value, given as text.
    pub fn store(&self, sets: &Sets, status: &AgentStatus, column: usize, value: &[u8]) -> Result<(), TableError> {
        match self.spec.cluster == agent::TABLE.cluster {
            true => agent::store(sets, status, column, value),
            false => Err(TableError::ReadOnly),
        }
    }
}

/// All of them: clusters 300 to 309, and 319 and 329 for scripts.
pub static STATUS: [StatusTable; 12] = [
    StatusTable { spec: &summary::TABLE, fill: summary::fill },
    StatusTable { spec: &agent::TABLE, fill: agent::fill },
    StatusTable { spec: &module::TABLE, fill: module::fill },
    StatusTable { spec: &metric::TABLE, fill: metric::fill },
    StatusTable { spec: &program::TABLE, fill: program::fill },
    StatusTable { spec: &map::TABLE, fill: map::fill },
    StatusTable { spec: &lost::TABLE, fill: lost::fill },
    StatusTable { spec: &kernel::TABLE, fill: kernel::fill },
    StatusTable { spec: &pair::TABLE, fill: pair::fill },
    StatusTable { spec: &state::TABLE, fill: state::fill },
    StatusTable { spec: &scripts::TABLE, fill: scripts::fill },
    StatusTable { spec: &tracepoints::TABLE, fill: tracepoints::fill },
];

/// Whether a value is an order that changes what runs.
pub fn is_control(id: TableId, column: usize) -> bool {
    let is = |spec: &TableSpec| id.cluster() == spec.cluster;
    is(&agent::TABLE) && agent::is_control(column) || is(&module::TABLE) && module::is_control(column)
}

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
    configuration: Mutex<Arc<Configuration>>,
    statistics: Statistics,
    /// Anybody may switch them.
    switched: Mutex<EveryMinute>,
    /// What switches program statistics on, if this process cannot any more.
    pub statistics_helper: Option<StatisticsHelper>,
    /// What each module had lost at the last look.
    lost: Mutex<lost::Losses>,
    orders: Arc<Orders>,
    /// The starts before this one, where they can be counted.
    pub restarts: Option<Restarts>,
}

impl AgentStatus {
    /// Begins the time since the start. `bpf_stats`: program statistics are on from the beginning.
    pub fn new(configuration: Configuration, bpf_stats: bool) -> AgentStatus {
        let statistics = Statistics::off();
        if bpf_stats && statistics.switch(true, loader::count_runs).is_err() {
            log::warn!("bpf_stats has no effect: {}", statistics.finding().said);
        }
        AgentStatus {
            started: Instant::now(),
            fetches: Arc::default(),
            configuration: Mutex::new(Arc::new(configuration)),
            statistics,
            switched: Mutex::default(),
            statistics_helper: None,
            lost: Mutex::default(),
            orders: Arc::default(),
            restarts: None,
        }
    }

    /// What there is to say of the configuration.
    pub fn configuration(&self) -> Arc<Configuration> {
        Arc::clone(&held(&self.configuration))
    }

    /// There is something else to say of the configuration: it was read again.
    pub fn configure(&self, configuration: Configuration) {
        *held(&self.configuration) = Arc::new(configuration);
    }

    /// The count of fetches, for whoever sees them.
    pub fn fetches(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.fetches)
    }

    /// What became of orders, for whoever takes them.
    pub fn orders(&self) -> Arc<Orders> {
        Arc::clone(&self.orders)
    }
}

/// Whether a table tells of pairs.
pub fn is_of_pairs(table: &ServedTable) -> bool {
    std::ptr::eq(table.spec, &pair::TABLE)
}

/// Whether a table is for whoever writes and reads scripts.
pub fn is_of_scripts(table: &ServedTable) -> bool {
    [&scripts::TABLE, &tracepoints::TABLE].iter().any(|own| std::ptr::eq(table.spec, *own))
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
        off: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf;
    use crate::config::Config;
    use crate::kit::{loss_words, Fake, Host, Plan, Setup};
    use crate::modules::MODULES;
    use std::collections::BTreeSet;

    /// The columns of pmval(1) are as wide for counters of 64 bits.
    const SHOWN: usize = 21;

    #[test]
    fn losses_have_short_names_that_differ_where_pmval_cuts() {
        let host = Host::SMALL;
        let mut heads = BTreeSet::new();
        for spec in MODULES {
            let config = Config::parse("test", spec.section("").as_bytes()).unwrap();
            let setup = Setup { section: &config.section(spec.name).unwrap(), process_refresh: None };
            let mut module = (spec.make)(&setup).unwrap();
            module.plan(&host, &mut Plan::default(), &mut bpf::constants());
            module.losses(&Fake::new(), &mut |loss, _| {
                let (short, sentence) = loss_words(loss);
                let name = lost::instance(spec.name, short);
                assert!(sentence.len() > short.len() && !name.contains(char::is_whitespace), "{loss}");
                let head: String = name.chars().take(SHOWN).collect();
                assert!(heads.insert(head.clone()), "{head}: two losses look alike");
            });
        }
        assert!(heads.len() > 10, "{heads:?}");
    }
}
