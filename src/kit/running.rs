//! What runs: the tables that a started module yields, each with its own way to be read, and the work between requests.

use super::{Fake, HistogramTables, Kernel, MetricDef, Table, TableSpec};
use crate::pcp::PmErr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use thiserror::Error;

/// A reason why a refresh has no values: reported to clients as `PM_ERR_VALUE`, logged when it begins and when it ends.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct RefreshError(pub String);

/// State that tables and work share, behind a lock. A panic does not spoil it: panics of modules are caught.
pub struct Shared<T>(Arc<Mutex<T>>);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared(Arc::clone(&self.0))
    }
}

impl<T> Shared<T> {
    /// Puts the state behind a lock.
    pub fn new(state: T) -> Shared<T> {
        Shared(Arc::new(Mutex::new(state)))
    }

    /// Waits for the state.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the state unless another thread has it.
    pub fn idle(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// The way to read a table. It may be read at any time, by any number of clients: nothing is consumed.
pub enum Read {
    /// Adds up mapped rows, without a lock, a file or a system call: any thread may do it.
    AtOnce(ReadFn),
    /// Takes the lock of a state, and may wait with it.
    MayWait(Box<dyn Locked>),
}

/// A table behind a lock.
pub trait Locked: Send + Sync {
    /// True if another thread has the lock.
    fn is_busy(&self) -> bool;

    /// Fills the table, which is empty.
    fn read(&self, kernel: &dyn Kernel, table: &mut Table) -> Result<(), RefreshError>;

    /// Fills the table if that waits for nothing. Returns false, and leaves the table empty, otherwise.
    fn read_at_once(&self, kernel: &dyn Kernel, table: &mut Table) -> bool;
}

struct OfState<T, F, G> {
    state: Shared<T>,
    read: F,
    at_once: G,
}

impl<T, F, G, R> Locked for OfState<T, F, G>
where
    T: Send,
    F: Fn(&mut T, &dyn Kernel, &mut Table) -> R + Send + Sync,
    G: Fn(&mut T, &dyn Kernel, &mut Table) -> bool + Send + Sync,
    R: Refreshed,
{
    fn is_busy(&self) -> bool {
        self.state.idle().is_none()
    }

    fn read(&self, kernel: &dyn Kernel, table: &mut Table) -> Result<(), RefreshError> {
        (self.read)(&mut self.state.lock(), kernel, table).refreshed()
    }

    fn read_at_once(&self, kernel: &dyn Kernel, table: &mut Table) -> bool {
        self.state.idle().is_some_and(|mut state| (self.at_once)(&mut state, kernel, table))
    }
}

/// The result of a read: nothing, if it cannot fail.
pub trait Refreshed {
    /// Returns the reason why there are no values, if there is one.
    fn refreshed(self) -> Result<(), RefreshError>;
}

impl Refreshed for () {
    fn refreshed(self) -> Result<(), RefreshError> {
        Ok(())
    }
}

impl Refreshed for Result<(), RefreshError> {
    fn refreshed(self) -> Result<(), RefreshError> {
        self
    }
}

/// State of a pair (a YAML file and a BPF object of a site's own).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PairStatus {
    /// State: `running`, `partly attached` or `failed`.
    pub state: &'static str,
    /// Errors, each with file and place; empty without errors.
    pub error: String,
    /// Programs with their sections, and the reason if one is not attached.
    pub programs: Vec<(String, String, Option<String>)>,
    /// Number of maps.
    pub maps: u32,
    /// Kernel memory of maps and programs, in bytes.
    pub memory: u64,
    /// Duration of loading; zero if it was not loaded.
    pub loading: Duration,
}

impl PairStatus {
    /// Returns the number of attached programs.
    pub fn attached(&self) -> u32 {
        self.programs.iter().filter(|(_, _, refusal)| refusal.is_none()).count() as u32
    }

    /// Returns a sentence for the log.
    pub fn sentence(&self) -> String {
        let attached = format!("attached {} of {} programs", self.attached(), self.programs.len());
        match (self.state, self.error.is_empty()) {
            ("failed", _) => self.error.clone(),
            (_, true) => attached,
            _ => format!("{attached}; {}", self.error),
        }
    }
}

/// Runs of a pair's programs, and their run time in nanoseconds, as far as the kernel counted them.
pub type Runs = (u64, u64);

/// State of what runs, for `agent.module.state`.
#[derive(Default)]
pub enum State {
    /// A module of the agent: its hooks and the results of its refreshes show its state.
    #[default]
    Module,
    /// A pair, as it was loaded, with a function for the runs of its programs, which has `None` while another thread uses it.
    Pair(PairStatus, AskFn<Option<Runs>>),
    /// A script, whose programs another process runs.
    Script(Box<dyn ScriptState>),
}

/// State of a script.
pub trait ScriptState: Send + Sync {
    /// Returns the state and a sentence about it.
    fn state(&self) -> (&'static str, String);

    /// Returns the script as JSON; texts that would be longer than `most` bytes are left out.
    fn json(&self, most: usize) -> String;
}

/// Receives lost events: `NAME: SENTENCE`, see [`loss_words`], and a count that only grows.
pub type EachLoss<'a> = &'a mut dyn FnMut(&'static str, u64);

type ReadFn = Box<dyn Fn(&dyn Kernel, &mut Table) + Send + Sync>;
type WorkFn = Box<dyn Fn(&dyn Kernel) + Send + Sync>;
type LossesFn = Box<dyn Fn(&dyn Kernel, EachLoss<'_>) -> bool + Send + Sync>;
type StoreFn = Box<dyn Fn(&dyn Kernel, &MetricDef, &[u8]) -> Result<(), PmErr> + Send + Sync>;
type WaitsFn = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;
type AskFn<R> = Box<dyn Fn() -> R + Send + Sync>;

/// A started module: its tables, and its work between requests. Any thread may use it; one without tables stands for a module that
/// was stopped.
#[derive(Default)]
pub struct Running {
    tables: Vec<(&'static TableSpec, Read)>,
    /// State for the agent's own metrics.
    pub state: State,
    is_busy: Option<AskFn<bool>>,
    tick: Option<WorkFn>,
    woken: Option<WorkFn>,
    due: Option<AskFn<Option<Instant>>>,
    losses: Option<LossesFn>,
    store: Option<StoreFn>,
    events: Option<AskFn<u64>>,
    waits_for: Option<WaitsFn>,
    let_go: Option<AskFn<()>>,
}

impl Running {
    /// Begins with a state, which all that is added shares.
    pub fn of<T: Send + 'static>(state: T) -> Starting<T> {
        let state = Shared::new(state);
        let own = state.clone();
        let is_busy: AskFn<bool> = Box::new(move || own.idle().is_none());
        let running = Running { is_busy: Some(is_busy), ..Running::default() };
        Starting { state, running, ticks: Vec::new(), losses: Vec::new() }
    }

    /// Returns the way to read a table; `None` if the options of the module ask for none.
    fn table(&self, spec: &TableSpec) -> Option<&Read> {
        self.tables.iter().find(|(own, _)| own.cluster == spec.cluster).map(|(_, read)| read)
    }

    /// True if there is a table of this declaration.
    pub fn yields(&self, spec: &TableSpec) -> bool {
        self.table(spec).is_some()
    }

    /// Fills an empty table.
    pub fn read(&self, spec: &TableSpec, kernel: &dyn Kernel, table: &mut Table) -> Result<(), RefreshError> {
        match self.table(spec) {
            Some(Read::AtOnce(read)) => read(kernel, table),
            Some(Read::MayWait(locked)) => locked.read(kernel, table)?,
            None => {}
        }
        Ok(())
    }

    /// Fills an empty table if that waits for nothing. Returns false, and leaves it empty, otherwise.
    pub fn read_at_once(&self, spec: &TableSpec, kernel: &dyn Kernel, table: &mut Table) -> bool {
        match self.table(spec) {
            Some(Read::MayWait(locked)) => return locked.read_at_once(kernel, table),
            Some(Read::AtOnce(read)) => read(kernel, table),
            None => {}
        }
        true
    }

    /// True if another thread has what a table has to wait for.
    pub fn is_busy_for(&self, spec: &TableSpec) -> bool {
        matches!(self.table(spec), Some(Read::MayWait(locked)) if locked.is_busy())
    }

    /// True if another thread has the state, so that work is put off.
    pub fn is_busy(&self) -> bool {
        self.is_busy.as_ref().is_some_and(|is_busy| is_busy())
    }

    /// Does periodic work, about once a second, unless another thread has the state.
    pub fn tick(&self, kernel: &dyn Kernel) {
        self.tick.iter().for_each(|tick| tick(kernel));
    }

    /// Drains a ring that has records, unless another thread has the state; also called when [`Running::due`].
    pub fn woken(&self, kernel: &dyn Kernel) {
        self.woken.as_ref().or(self.tick.as_ref()).into_iter().for_each(|woken| woken(kernel));
    }

    /// Returns the time of the next call of [`Running::woken`], with or without records; a time in the past means at once.
    pub fn due(&self) -> Option<Instant> {
        self.due.as_ref()?()
    }

    /// Reports lost events. Returns false, without a report, if another thread has the state.
    pub fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) -> bool {
        self.losses.as_ref().is_none_or(|losses| losses(kernel, each))
    }

    /// Changes the value of a metric: a string, or the digits of a number. `PmErr::PERMISSION` if the metric is read-only.
    pub fn store(&self, kernel: &dyn Kernel, metric: &MetricDef, value: &[u8]) -> Result<(), PmErr> {
        self.store.as_ref().map_or(Err(PmErr::PERMISSION), |store| store(kernel, metric, value))
    }

    /// Returns the number of events that became rows so far, if rows are the latest events: `show` derives from it which rows are
    /// new, and how many were dropped.
    pub fn events(&self) -> Option<u64> {
        self.events.as_ref().map(|events| events())
    }

    /// Returns why a section's module has nothing to count yet; `None` if it counts. `self` is that module, or the filters of all
    /// modules.
    pub fn waits_for(&self, section: &str) -> Option<String> {
        self.waits_for.as_ref()?(section)
    }

    /// Detaches programs that count in pinned maps of its own when the agent ends, if that is quick.
    pub fn let_go(&self) {
        self.let_go.iter().for_each(|let_go| let_go());
    }
}

/// A module that is being started.
pub struct Starting<T> {
    state: Shared<T>,
    running: Running,
    ticks: Vec<TickOf<T>>,
    losses: Vec<LossesOf<T>>,
}

type TickOf<T> = Box<dyn Fn(&mut T, &dyn Kernel) + Send + Sync>;
type LossesOf<T> = Box<dyn Fn(&mut T, &dyn Kernel, EachLoss<'_>) + Send + Sync>;

impl<T: Send + 'static> Starting<T> {
    /// Adds a table that only adds up mapped rows.
    pub fn at_once(
        mut self,
        spec: &'static TableSpec,
        read: impl Fn(&dyn Kernel, &mut Table) + Send + Sync + 'static,
    ) -> Self {
        self.running.tables.push((spec, Read::AtOnce(Box::new(read))));
        self
    }

    /// Adds a table that is filled from the state, and may wait.
    pub fn table<R: Refreshed + 'static>(
        self,
        spec: &'static TableSpec,
        read: impl Fn(&mut T, &dyn Kernel, &mut Table) -> R + Send + Sync + 'static,
    ) -> Self {
        self.table_at_once_if(spec, |_, _, _| false, read)
    }

    /// Adds the tables of histograms, that for Prometheus with the option `prometheus` only.
    pub fn histograms(
        self,
        tables: HistogramTables,
        prometheus: bool,
        fill: impl Fn(&mut T, &dyn Kernel, &mut Table) + Send + Sync + 'static,
        fill_buckets: impl Fn(&mut T, &dyn Kernel, &mut Table) + Copy + Send + Sync + 'static,
    ) -> Self {
        self.table(tables.by_series, fill)
            .table(tables.by_bucket, fill_buckets)
            .when(prometheus, |running| running.table(tables.in_seconds, fill_buckets))
    }

    /// Adds the tables of histograms, which are filled from the state and wait for nothing but the state.
    pub fn quick_histograms(
        self,
        tables: HistogramTables,
        prometheus: bool,
        fill: impl Fn(&mut T, &dyn Kernel, &mut Table) + Copy + Send + Sync + 'static,
        fill_buckets: impl Fn(&mut T, &dyn Kernel, &mut Table) + Copy + Send + Sync + 'static,
    ) -> Self {
        self.quick(tables.by_series, fill)
            .quick(tables.by_bucket, fill_buckets)
            .when(prometheus, |running| running.quick(tables.in_seconds, fill_buckets))
    }

    /// Adds a table that needs nothing of the state and may wait; it has a lock of its own.
    pub fn alone<R: Refreshed + 'static>(
        self,
        spec: &'static TableSpec,
        read: impl Fn(&dyn Kernel, &mut Table) -> R + Send + Sync + 'static,
    ) -> Self {
        let read = move |_: &mut (), kernel: &dyn Kernel, table: &mut Table| read(kernel, table);
        self.locked(
            spec,
            OfState { state: Shared::new(()), read, at_once: |_: &mut (), _: &dyn Kernel, _: &mut Table| false },
        )
    }

    /// Adds a table that is filled from the state and waits for nothing but the state.
    pub fn quick(
        self,
        spec: &'static TableSpec,
        read: impl Fn(&mut T, &dyn Kernel, &mut Table) + Clone + Send + Sync + 'static,
    ) -> Self {
        let at_once = read.clone();
        let at_once = move |state: &mut T, kernel: &dyn Kernel, table: &mut Table| {
            at_once(state, kernel, table);
            true
        };
        self.table_at_once_if(spec, at_once, read)
    }

    /// Adds a table that is filled from the state. `at_once` fills it if that needs no file (such as /proc), and else returns false
    /// and leaves it empty.
    pub fn table_at_once_if<R: Refreshed + 'static>(
        self,
        spec: &'static TableSpec,
        at_once: impl Fn(&mut T, &dyn Kernel, &mut Table) -> bool + Send + Sync + 'static,
        read: impl Fn(&mut T, &dyn Kernel, &mut Table) -> R + Send + Sync + 'static,
    ) -> Self {
        let state = self.state.clone();
        self.locked(spec, OfState { state, read, at_once })
    }

    fn locked(mut self, spec: &'static TableSpec, table: impl Locked + 'static) -> Self {
        self.running.tables.push((spec, Read::MayWait(Box::new(table))));
        self
    }

    /// Adds work of each second, behind the work that was added before. A part of a module, such as its histograms, adds its own
    /// with its tables.
    pub fn tick(mut self, tick: impl Fn(&mut T, &dyn Kernel) + Send + Sync + 'static) -> Self {
        self.ticks.push(Box::new(tick));
        self
    }

    /// Sets the work at records in a ring, and at the time of [`Starting::due`]; without it that is the work of each second.
    pub fn woken(mut self, woken: impl Fn(&mut T, &dyn Kernel) + Send + Sync + 'static) -> Self {
        self.running.woken = Some(self.if_idle(woken));
        self
    }

    fn if_idle(&self, work: impl Fn(&mut T, &dyn Kernel) + Send + Sync + 'static) -> WorkFn {
        let state = self.state.clone();
        Box::new(move |kernel| {
            if let Some(mut state) = state.idle() {
                work(&mut state, kernel);
            }
        })
    }

    /// Sets the time of the next work, with or without records.
    pub fn due(mut self, due: impl Fn(&T) -> Option<Instant> + Send + Sync + 'static) -> Self {
        let state = self.state.clone();
        self.running.due = Some(Box::new(move || due(&*state.idle()?)));
        self
    }

    /// Adds a report of lost events, behind those of parts that were added before.
    pub fn losses(self, losses: impl Fn(&T, &dyn Kernel, EachLoss<'_>) + Send + Sync + 'static) -> Self {
        self.losses_of_part(move |state, kernel, each| losses(state, kernel, each))
    }

    /// Adds the report of the lost events of a part.
    pub fn losses_of_part(
        mut self,
        losses: impl Fn(&mut T, &dyn Kernel, EachLoss<'_>) + Send + Sync + 'static,
    ) -> Self {
        self.losses.push(Box::new(losses));
        self
    }

    /// Makes metrics writable.
    pub fn store(
        mut self,
        store: impl Fn(&mut T, &dyn Kernel, &MetricDef, &[u8]) -> Result<(), PmErr> + Send + Sync + 'static,
    ) -> Self {
        let state = self.state.clone();
        self.running.store =
            Some(Box::new(move |kernel, metric, value| store(&mut state.lock(), kernel, metric, value)));
        self
    }

    /// Sets the number of events that became rows.
    pub fn events(mut self, events: impl Fn(&mut T) -> u64 + Send + Sync + 'static) -> Self {
        let state = self.state.clone();
        self.running.events = Some(Box::new(move || events(&mut state.lock())));
        self
    }

    /// Sets the reason why a section's module has nothing to count yet.
    pub fn waits_for(mut self, waits_for: impl Fn(&T, &str) -> Option<String> + Send + Sync + 'static) -> Self {
        let state = self.state.clone();
        self.running.waits_for = Some(Box::new(move |section| waits_for(&state.lock(), section)));
        self
    }

    /// Sets what is detached when the agent ends.
    pub fn let_go(mut self, let_go: impl Fn(&mut T) + Send + Sync + 'static) -> Self {
        let state = self.state.clone();
        self.running.let_go = Some(Box::new(move || state.idle().iter_mut().for_each(|state| let_go(state))));
        self
    }

    /// Sets the state for the agent's own metrics, made from the module's.
    pub fn state(mut self, of: impl FnOnce(&Shared<T>) -> State) -> Self {
        self.running.state = of(&self.state);
        self
    }

    /// Adds more if that is so, such as the tables of an option.
    pub fn when(self, is: bool, add: impl FnOnce(Self) -> Self) -> Self {
        if is {
            add(self)
        } else {
            self
        }
    }

    /// Returns what runs.
    pub fn started(mut self) -> Running {
        let (ticks, losses) = (std::mem::take(&mut self.ticks), std::mem::take(&mut self.losses));
        if !ticks.is_empty() {
            let all = move |state: &mut T, kernel: &dyn Kernel| ticks.iter().for_each(|tick| tick(state, kernel));
            self.running.tick = Some(self.if_idle(all));
        }
        if !losses.is_empty() {
            let state = self.state;
            self.running.losses = Some(Box::new(move |kernel, each| {
                let Some(mut state) = state.idle() else { return false };
                losses.iter().for_each(|losses| losses(&mut state, kernel, each));
                true
            }));
        }
        self.running
    }
}

/// Returns the two parts of a loss: the name, short since pmval(1) shows 21 characters of `MODULE::NAME`, and the
/// sentence for the log.
pub fn loss_words(loss: &'static str) -> (&'static str, &'static str) {
    loss.split_once(": ").unwrap_or((loss, loss))
}

impl Fake {
    /// Returns a table of a module that runs over these maps.
    pub fn filled(&self, spec: &TableSpec, running: &Running) -> Table {
        assert!(running.yields(spec), "the module yields no table {}", spec.cluster);
        let mut table = Table::of(spec);
        running.read(spec, self, &mut table).expect("the test gave the module what it needs");
        table
    }

    /// Returns a table, filled over these maps from a state that the test keeps.
    pub fn filled_by(&self, spec: &TableSpec, fill: impl FnOnce(&dyn Kernel, &mut Table)) -> Table {
        let mut table = Table::of(spec);
        fill(self, &mut table);
        table
    }
}
