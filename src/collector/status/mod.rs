//! The agent's own metrics, `agent.*`: a summary, the states of modules and metrics, the costs of programs and maps, lost events. To
//! a client they look like a module's; they have no section in the configuration and are always served.

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

use super::guard::held;
use super::prepared::Configuration;
use super::sets::Sets;
use crate::catalog::ServedTable;
use crate::kit::{EveryMinute, Metric, Number, RowMut, Running, Starting, Table, TableId, TableSpec};
use crate::loader::{self, StatisticsHelper};
use crate::state::Restarts;
pub use orders::Orders;
use statistics::Statistics;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

/// A table of the agent itself.
pub struct StatusTable {
    /// Its declaration.
    pub spec: &'static TableSpec,
    fill: fn(&Sets, &AgentStatus, &mut Table),
}

impl StatusTable {
    /// Returns the table's identifier in the collector.
    pub fn id(&self) -> TableId {
        TableId::new(self.spec.cluster as u16)
    }
}

/// Starts the agent's own tables: they tell of these modules. One does not wait for another.
pub fn start(status: &Arc<AgentStatus>, sets: &Arc<RwLock<Sets>>) -> Running {
    let of = || (Arc::clone(status), Arc::clone(sets));
    let (own, of_modules) = of();
    let running =
        Running::of(()).store(move |(), _, metric, value| agent::store(&now(&of_modules), &own, metric, value));
    let add = |running: Starting<()>, StatusTable { spec, fill }: &'static StatusTable| {
        let (status, sets) = of();
        running.alone(spec, move |_, table| fill(&now(&sets), &status, table))
    };
    STATUS.iter().fold(running, add).started()
}

/// Returns the sets that are loaded now.
pub fn now(sets: &RwLock<Sets>) -> Sets {
    sets.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The agent's own tables: clusters 300 to 309, and 319 and 329 for scripts.
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

/// True if a column takes orders that start, stop or reload modules.
pub fn is_control(id: TableId, column: usize) -> bool {
    let is = |spec: &TableSpec| id.cluster() == spec.cluster;
    is(&agent::TABLE) && agent::is_control(column) || is(&module::TABLE) && module::is_control(column)
}

/// Largest number of instances of these tables, many times what is usual.
const NAMES: usize = 10_000;

/// Sets a metric if there is a value.
fn set_opt<T: Number>(row: RowMut<'_>, metric: Metric<T>, value: Option<T>) -> RowMut<'_> {
    match value {
        Some(value) => row.set(metric, value),
        None => row,
    }
}

/// The agent's status besides its modules, for its own tables.
pub struct AgentStatus {
    started: Instant,
    fetches: Arc<AtomicU64>,
    configuration: Mutex<Arc<Configuration>>,
    statistics: Statistics,
    /// Limits the log lines about switching statistics, which any client may do.
    switched: Mutex<EveryMinute>,
    /// The helper process that switches program statistics on, if this process cannot.
    pub statistics_helper: Option<StatisticsHelper>,
    /// Losses of each module at the last look.
    lost: Mutex<lost::Losses>,
    orders: Arc<Orders>,
    /// Number of starts before this one, if it can be known.
    pub restarts: Option<Restarts>,
}

impl AgentStatus {
    /// Begins to count the time since the start. `bpf_stats` switches program statistics on from the beginning.
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

    /// Returns the latest report on the configuration.
    pub fn configuration(&self) -> Arc<Configuration> {
        Arc::clone(&held(&self.configuration))
    }

    /// Replaces the report on the configuration, after it was read again.
    pub fn configure(&self, configuration: Configuration) {
        *held(&self.configuration) = Arc::new(configuration);
    }

    /// Returns the count of fetches, which the thread that answers pmcd increments.
    pub fn fetches(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.fetches)
    }

    /// Returns the results of orders, which the collector records.
    pub fn orders(&self) -> Arc<Orders> {
        Arc::clone(&self.orders)
    }
}

/// True for the table about pairs.
pub fn is_of_pairs(table: &ServedTable) -> bool {
    std::ptr::eq(table.spec, &pair::TABLE)
}

/// True for the tables that help to write and read scripts.
pub fn is_of_scripts(table: &ServedTable) -> bool {
    [&scripts::TABLE, &tracepoints::TABLE].iter().any(|own| std::ptr::eq(table.spec, *own))
}

/// Returns the agent's own tables as they are served.
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

    /// Width of a column of pmval(1) for counters of 64 bits, in characters.
    const SHOWN: usize = 21;

    #[test]
    fn losses_have_short_names_that_differ_where_pmval_cuts() {
        let host = Host::SMALL;
        let mut heads = BTreeSet::new();
        for spec in MODULES {
            let config = Config::parse("test", spec.section("").as_bytes()).unwrap();
            let section = config.section(spec.name).unwrap();
            let setup = Setup::new(&section);
            let mut module = (spec.make)(&setup).unwrap();
            module.plan(&host, &mut Plan::default(), &mut bpf::constants());
            module.start(&Fake::new()).losses(&Fake::new(), &mut |loss, _| {
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
