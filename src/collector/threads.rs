//! The collector as the thread that answers pmcd sees it: it puts jobs into a queue and takes results from another. All jobs are for
//! the thread that owns the modules. While that thread is stuck in one module, helper threads refresh the others.

use super::desired_state::{ChangeError, DesiredState, Order};
use super::engine::Engine;
use super::guard::{held, inject, Fault};
use super::modules::Modules;
use super::prepared_module::PreparedModules;
use super::status::{is_control, AgentStatus, Orders};
use crate::catalog::{Change, Collect, TableError};
use crate::kit::{excerpt, EveryMinute, Table, TableId};
use crate::loader::remove_other_pins;
use crate::pcp::PmErr;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::{BTreeSet, VecDeque};
use std::os::fd::AsFd;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Time for which a request waits for modules: pmcd gives an agent five seconds, and serves nobody else meanwhile.
const PATIENCE: Duration = Duration::from_millis(400);
/// Divisor of the next request's wait after a wait in vain, if no thread is free for that request, until a table comes back: all
/// these waits together take no longer than twice the first.
const WEARINESS: u32 = 2;
/// Largest number of stores and orders that wait; a client with one more gets an error and may try again.
const ORDERS: usize = 64;
/// Time for the thread to end when the process ends: detaching a probe from a file that thousands execute takes a second.
const LAST_PATIENCE: Duration = Duration::from_secs(2);
/// Time without a result after which a request starts a helper thread.
const STUCK: Duration = Duration::from_millis(50);
/// Largest number of helper threads at a time.
const HELPERS: usize = 3;
/// Time without a job after which a helper thread ends.
const IDLE: Duration = Duration::from_secs(10);

enum Job {
    Refresh(TableId, Table),
    /// A store: the number that its answer carries, the table, the column, and the value as text.
    Store(u64, TableId, usize, Vec<u8>),
    Change(u64, Request),
    Stop,
}

/// A client's order to change the modules that run.
enum Request {
    /// Makes the modules that run match the files.
    Reload,
    Order(String, Order),
}

impl Request {
    /// The section of the order's module; empty for the whole agent.
    fn section(&self) -> &str {
        match self {
            Request::Reload => "",
            Request::Order(section, _) => section,
        }
    }
}

/// Tables of the modules that were loaded at the start; of those that were not, the reason.
type Served = Vec<(TableId, Result<(), TableError>)>;

enum Done {
    Refreshed(Refreshed),
    Stored(u64, Result<(), TableError>),
    Changed(Change),
}

struct Refreshed {
    id: TableId,
    table: Table,
    result: Result<(), TableError>,
    took: Duration,
}

/// State that the threads share.
struct Shared {
    waiting: Mutex<VecDeque<Job>>,
    /// Wakes idle helper threads when jobs arrive.
    more: Condvar,
    finished: Mutex<Vec<Done>>,
    /// Result of loading, until it is taken. Not among `finished`: whoever fetches meanwhile takes those.
    served: Mutex<Option<Served>>,
    /// Wakes the thread that answers pmcd when the queue is empty.
    all: Condvar,
    /// Wakes the owner of the modules when jobs arrive.
    call: EventFd,
    /// Wakes the thread that answers pmcd when loading is over, when modules have come or gone, or when a thread has panicked.
    ready: Arc<EventFd>,
    modules: OnceLock<Weak<Modules>>,
    orders: Arc<Orders>,
    /// Number of stores and orders under way.
    stores: AtomicUsize,
    /// Number of helper threads, and of those that wait for a job.
    helpers: AtomicUsize,
    idle: AtomicUsize,
    /// True once a thread has ended by a panic.
    lost: AtomicBool,
    /// True once the helper threads are to end.
    over: AtomicBool,
}

impl Shared {
    fn put(&self, jobs: impl IntoIterator<Item = Job>) {
        held(&self.waiting).extend(jobs);
        let _ = self.call.write(1);
        self.more.notify_all();
    }

    /// Reports that loading is over.
    fn loaded(&self, served: Served) {
        *held(&self.served) = Some(served);
        let _ = self.ready.write(1);
    }

    /// Adds a result, and wakes the thread that waits for results once no job is left in the queue.
    fn finish(&self, done: Done) {
        if let Done::Stored(..) = done {
            self.stores.fetch_sub(1, Relaxed);
        }
        held(&self.finished).push(done);
        if held(&self.waiting).is_empty() {
            self.all.notify_one();
        }
    }

    fn next(&self) -> Option<Job> {
        held(&self.waiting).pop_front()
    }

    /// Takes the next table from the queue whose module is idle. Returns `None` after [`IDLE`] without one, or when helping is over.
    fn next_table(&self, modules: &Modules) -> Option<(TableId, Table)> {
        let until = Instant::now() + IDLE;
        let mut waiting = held(&self.waiting);
        while !self.over.load(Relaxed) && Instant::now() < until {
            let is_free = |job: &Job| matches!(job, Job::Refresh(id, _) if !modules.is_busy(*id));
            let free = waiting.iter().position(is_free).and_then(|at| waiting.remove(at));
            if let Some(Job::Refresh(id, table)) = free {
                return Some((id, table));
            }
            let left = until.saturating_duration_since(Instant::now());
            self.idle.fetch_add(1, Relaxed);
            waiting = self.more.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
            self.idle.fetch_sub(1, Relaxed);
        }
        None
    }

    /// Runs a thread's work. A panic that nobody caught is logged and reported to the thread that answers pmcd.
    fn run(&self, work: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            log::error!("{}", Fault::of(panic.as_ref()));
            self.lost.store(true, Relaxed);
            let _ = self.ready.write(1);
        }
    }
}

/// Reads an order from the instance (the section of a module, with blanks as `\x20`; empty for the agent) and the value that a client
/// stored. Refuses other values with `PM_ERR_BADSTORE`, and logs that at most once a minute.
fn request(instance: &[u8], value: &[u8], refusals: &mut EveryMinute) -> Result<Request, TableError> {
    let section = String::from_utf8_lossy(instance).replace(r"\x20", " ");
    match (instance.is_empty(), value, Order::read(value)) {
        (true, b"reload", _) => Ok(Request::Reload),
        (false, _, Some(order)) => Ok(Request::Order(section, order)),
        _ => {
            if let Some(more) = refusals.due() {
                log::error!(
                    "expected start, stop or restart for a module, or reload for the agent, got `{}`{more}",
                    excerpt(&String::from_utf8_lossy(value))
                );
            }
            Err(PmErr::BADSTORE.into())
        }
    }
}

fn refreshed(modules: &Modules, id: TableId, mut table: Table) -> Done {
    let begin = Instant::now();
    let result = modules.refresh(id, &mut table);
    Done::Refreshed(Refreshed { id, table, result, took: begin.elapsed() })
}

/// Reports modules that came and went, and wakes the other thread for it: a client may ask for a new name before anything else.
fn tell(engine: &mut Engine, shared: &Shared) {
    for change in engine.take_changes() {
        shared.finish(Done::Changed(change));
        let _ = shared.ready.write(1);
    }
}

/// Carries out a client's order, and reports modules that came and went before the order's result. Refusals are in the log.
fn change(engine: &mut Engine, request: &Request, shared: &Shared) -> Result<(), TableError> {
    let changed: Result<&str, ChangeError> = match request {
        Request::Reload => engine.reload(),
        Request::Order(section, order) => engine.order(section, *order),
    };
    tell(engine, shared);
    let said = changed.as_ref().map_or_else(ToString::to_string, ToString::to_string);
    shared.orders.end(request.section(), said);
    changed.map(drop).map_err(|_| PmErr::BADSTORE.into())
}

/// The work of the thread that owns the modules: loads them, reports the result, and does jobs until `Job::Stop`.
fn collect(load: impl FnOnce() -> Engine, status: AgentStatus, shared: &Shared) {
    let mut engine = load();
    engine.modules.sets().iter().for_each(|set| set.log_outcomes());
    engine.serve_status(status);
    let _ = shared.modules.set(Arc::downgrade(&engine.modules)); // once
    shared.loaded(engine.served());
    loop {
        inject("attend", "all");
        engine.attend(shared.call.as_fd(), None);
        tell(&mut engine, shared);
        let _ = shared.call.read();
        while let Some(job) = shared.next() {
            let done = match job {
                Job::Refresh(id, table) => refreshed(&engine.modules, id, table),
                Job::Store(number, id, column, value) => Done::Stored(number, engine.store(id, column, &value)),
                Job::Change(number, request) => Done::Stored(number, change(&mut engine, &request, shared)),
                Job::Stop => return engine.leave(),
            };
            tell(&mut engine, shared);
            shared.finish(done);
        }
    }
}

/// The collector's threads, as the thread that answers pmcd sees them.
pub struct Collector {
    shared: Arc<Shared>,
    fetches: Arc<AtomicU64>,
    is_loaded: bool,
    patience: Duration,
    /// Tables whose last refresh took longer than a request waits; no request waits for them.
    slow: BTreeSet<TableId>,
    /// Tables that came back while a store was waited for.
    early: Vec<Refreshed>,
    changes: Vec<Change>,
    stores: u64,
    refusals: EveryMinute,
    thread: Option<JoinHandle<()>>,
}

impl Collector {
    /// Starts the thread. It loads the modules, then each pair alone, calls `afterwards`, and only then takes jobs; from then on it
    /// follows the desired state, if there is one.
    pub fn start(
        prepared: PreparedModules,
        pairs: Vec<PreparedModules>,
        btf: Option<PathBuf>,
        status: AgentStatus,
        desired: Option<Box<dyn DesiredState>>,
        afterwards: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<Collector> {
        let load = move || {
            let mut engine = Engine::load(prepared, btf);
            pairs.into_iter().for_each(|pair| engine.add(pair));
            remove_other_pins();
            afterwards();
            desired.into_iter().for_each(|desired| engine.follow(desired));
            engine
        };
        Collector::over(load, status)
    }

    /// Starts the thread, which calls `load` for the modules.
    pub fn over(load: impl FnOnce() -> Engine + Send + 'static, status: AgentStatus) -> std::io::Result<Collector> {
        let mut collector = Collector::new(status.fetches(), status.orders())?;
        let thread = Builder::new().name("collector".into()).spawn({
            let shared = Arc::clone(&collector.shared);
            move || shared.run(|| collect(load, status, &shared))
        })?;
        collector.thread = Some(thread);
        Ok(collector)
    }

    /// Makes a collector whose thread is not started yet.
    fn new(fetches: Arc<AtomicU64>, orders: Arc<Orders>) -> std::io::Result<Collector> {
        let event = || EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let shared = Shared {
            waiting: Mutex::default(),
            more: Condvar::new(),
            finished: Mutex::default(),
            served: Mutex::default(),
            all: Condvar::new(),
            call: event()?,
            ready: Arc::new(event()?),
            modules: OnceLock::new(),
            orders,
            stores: AtomicUsize::new(0),
            helpers: AtomicUsize::new(0),
            idle: AtomicUsize::new(0),
            lost: AtomicBool::new(false),
            over: AtomicBool::new(false),
        };
        Ok(Collector {
            shared: Arc::new(shared),
            fetches,
            is_loaded: false,
            patience: PATIENCE,
            slow: BTreeSet::new(),
            early: Vec::new(),
            changes: Vec::new(),
            stores: 0,
            refusals: EveryMinute::default(),
            thread: None,
        })
    }

    /// An event that is readable once loading is over, when modules have come or gone, or when a thread has panicked, until it is
    /// read.
    pub fn ready(&self) -> Arc<EventFd> {
        Arc::clone(&self.shared.ready)
    }

    /// Returns the job for an order, and marks the order as under way.
    fn wanted(&mut self, request: Request) -> Job {
        self.shared.orders.begin(request.section());
        Job::Change(self.next_store(), request)
    }

    fn next_store(&mut self) -> u64 {
        self.shared.stores.fetch_add(1, Relaxed);
        self.stores += 1;
        self.stores
    }

    /// Starts another helper thread, unless one is idle or there are [`HELPERS`] already.
    fn help(&self) {
        let shared = Arc::clone(&self.shared);
        let Some(modules) = shared.modules.get().and_then(Weak::upgrade) else { return };
        if shared.idle.load(Relaxed) > 0 || shared.helpers.load(Relaxed) >= HELPERS {
            return;
        }
        shared.helpers.fetch_add(1, Relaxed); // nobody else does
        let helper = Builder::new().name("helper".into()).spawn(move || {
            shared.run(|| {
                while let Some((id, table)) = shared.next_table(&modules) {
                    shared.finish(refreshed(&modules, id, table));
                }
            });
            drop(modules);
            shared.helpers.fetch_sub(1, Relaxed);
        });
        match helper {
            Ok(_) => log::debug!("a thread helps out, since the modules' own is busy"),
            Err(error) => {
                self.shared.helpers.fetch_sub(1, Relaxed);
                log::warn!("cannot start another thread, slow modules delay others: {error}");
            }
        }
    }

    /// Returns the results that have arrived, and waits for the first until a time. Starts a helper thread if none arrives for
    /// [`STUCK`].
    fn receive(&mut self, until: Instant) -> Vec<Done> {
        let some = |time: Duration| {
            let until = Instant::now() + time;
            let mut finished = held(&self.shared.finished);
            while finished.is_empty() && Instant::now() < until {
                let left = until.saturating_duration_since(Instant::now());
                finished = self.shared.all.wait_timeout(finished, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            std::mem::take(&mut *finished)
        };
        let left = || until.saturating_duration_since(Instant::now());
        let mut done = some(left().min(STUCK));
        if done.is_empty() {
            self.help();
            done = some(left());
        }
        let is_hopeless = done.is_empty() && self.shared.idle.load(Relaxed) == 0;
        self.patience = if is_hopeless { self.patience / WEARINESS } else { PATIENCE };
        done
    }

    /// Notes the duration of a refresh; returns true if it took longer than a request waits.
    fn note(&mut self, done: &Refreshed) -> bool {
        let is_slow = done.took > PATIENCE;
        if is_slow {
            self.slow.insert(done.id);
        } else {
            self.slow.remove(&done.id);
        }
        is_slow
    }
}

impl Collect for Collector {
    fn fetch_begins(&mut self) {
        self.fetches.fetch_add(1, Relaxed);
    }

    /// Ends the threads, except those that are stuck; for these the kernel detaches programs when the process ends.
    fn stop(&mut self) {
        self.shared.over.store(true, Relaxed);
        self.shared.put([Job::Stop]);
        let until = Instant::now() + LAST_PATIENCE;
        if let Some(thread) = self.thread.take() {
            while !thread.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn is_lost(&self) -> bool {
        self.shared.lost.load(Relaxed)
    }

    fn loaded(&mut self) -> Option<Served> {
        let served = held(&self.shared.served).take();
        self.is_loaded |= served.is_some();
        served
    }

    fn changes(&mut self) -> Vec<Change> {
        if !self.is_loaded {
            return Vec::new();
        }
        let mut finished = held(&self.shared.finished);
        for done in std::mem::take(&mut *finished) {
            match done {
                Done::Changed(change) => self.changes.push(change),
                done => finished.push(done),
            }
        }
        std::mem::take(&mut self.changes)
    }

    fn reload(&mut self) {
        let job = self.wanted(Request::Reload);
        self.shared.put([job]);
    }

    fn is_control(&self, table: TableId, column: usize) -> bool {
        is_control(table, column)
    }

    fn store(&mut self, table: TableId, column: usize, instance: &[u8], value: &[u8]) -> Result<(), TableError> {
        let is_order = is_control(table, column);
        let request = is_order.then(|| request(instance, value, &mut self.refusals)).transpose()?;
        // Where one waits, its module is stuck or an order takes its time: pmcd is not to wait for each that follows.
        let most = if is_order { ORDERS } else { 1 };
        if self.shared.stores.load(Relaxed) >= most {
            return Err(TableError::Late);
        }
        let job = match request {
            Some(request) => self.wanted(request),
            None => Job::Store(self.next_store(), table, column, value.to_vec()),
        };
        self.shared.put([job]);
        let until = Instant::now() + self.patience;
        loop {
            let done = self.receive(until);
            if done.is_empty() {
                // An order is accepted; its metric tells what becomes of it.
                return if is_order { Ok(()) } else { Err(TableError::Late) };
            }
            let mut answer = None;
            for done in done {
                match done {
                    Done::Stored(number, result) if number == self.stores => answer = Some(result),
                    Done::Refreshed(refreshed) => self.early.push(refreshed),
                    Done::Changed(change) => self.changes.push(change),
                    _ => {} // came too late for whoever asked
                }
            }
            if let Some(result) = answer {
                return result;
            }
        }
    }

    fn late(&mut self, back: &mut dyn FnMut(TableId, Table, Result<(), TableError>, bool)) {
        let mut early = std::mem::take(&mut self.early);
        for done in std::mem::take(&mut *held(&self.shared.finished)) {
            self.patience = PATIENCE;
            match done {
                Done::Refreshed(refreshed) => early.push(refreshed),
                Done::Changed(change) => self.changes.push(change),
                _ => {}
            }
        }
        for done in early {
            let is_slow = self.note(&done);
            back(done.id, done.table, done.result, is_slow);
        }
    }

    fn refresh(
        &mut self,
        tables: &mut dyn Iterator<Item = (TableId, Table)>,
        back: &mut dyn FnMut(TableId, Table, Result<(), TableError>),
    ) {
        let modules = self.shared.modules.get().and_then(Weak::upgrade);
        // Here and now where nobody has to be waited for: to hand a table over and back costs more than most tables.
        let mut others = Vec::new();
        for (id, mut table) in tables {
            match modules.as_ref().and_then(|modules| modules.refresh_at_once(id, &mut table)) {
                Some(result) => back(id, table, result),
                None => others.push((id, table)),
            }
        }
        let (slow, quick): (Vec<_>, Vec<_>) = others.into_iter().partition(|(id, _)| self.slow.contains(id));
        let mut awaited: BTreeSet<TableId> = quick.iter().map(|(id, _)| *id).collect();
        let jobs: Vec<Job> = quick.into_iter().chain(slow).map(|(id, table)| Job::Refresh(id, table)).collect();
        if !jobs.is_empty() {
            self.shared.put(jobs);
        }
        let until = Instant::now() + self.patience;
        while !awaited.is_empty() {
            let done = self.receive(until);
            if done.is_empty() {
                return;
            }
            for done in done {
                let done = match done {
                    Done::Refreshed(done) => done,
                    Done::Changed(change) => {
                        self.changes.push(change);
                        continue;
                    }
                    _ => continue,
                };
                self.note(&done);
                awaited.remove(&done.id);
                back(done.id, done.table, done.result);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::engine::MOMENT;
    use super::*;

    const ZERO: TableId = TableId::new(0);
    const SLOW: TableId = TableId::new(7);

    #[test]
    fn an_order_is_for_the_section_that_the_instance_stands_for() {
        let request = request(br"my\x20disks", b"stop", &mut EveryMinute::default()).expect("an order");
        assert_eq!(request.section(), "my disks");
    }

    fn ask(collector: &mut Collector, tables: &[TableId]) -> (Vec<TableId>, Duration) {
        let (mut back, begin) = (Vec::new(), Instant::now());
        let mut tables = tables.iter().map(|&id| (id, Table::new(1)));
        collector.refresh(&mut tables, &mut |id, _, _| back.push(id));
        (back, begin.elapsed())
    }

    /// Finishes the next table of the queue as if its refresh had taken this time.
    fn done(shared: &Shared, took: Duration) {
        let Some(Job::Refresh(id, table)) = shared.next() else { panic!("nothing waits") };
        shared.finish(Done::Refreshed(Refreshed { id, table, result: Ok(()), took }));
    }

    #[test]
    fn waits_for_what_is_stuck_get_shorter_until_something_comes() {
        let mut collector = Collector::new(Arc::default(), Arc::default()).unwrap();
        let waits: Vec<Duration> = (0..20).map(|table| ask(&mut collector, &[TableId::new(table)]).1).collect();
        assert!(waits[0] >= PATIENCE && waits.iter().sum::<Duration>() < 3 * PATIENCE, "{waits:?}");
        assert!(ask(&mut collector, &[]).1 < MOMENT);
        assert!(collector.store(ZERO, 0, b"", b"start") == Err(TableError::Late));
        let begin = Instant::now();
        assert!((0..100).all(|_| collector.store(ZERO, 0, b"", &[b'x'; 60_000]) == Err(TableError::Late)));
        assert!(
            begin.elapsed() < PATIENCE && held(&collector.shared.waiting).len() == 21,
            "one store waits, and nobody for it"
        );

        done(&collector.shared, Duration::ZERO);
        let mut late = Vec::new();
        collector.late(&mut |id, _, _, is_slow| late.push((id, is_slow)));
        assert_eq!((late, collector.patience), (vec![(ZERO, false)], PATIENCE));
    }

    /// A client may fetch and store in the moment in which loading ends.
    #[test]
    fn the_end_of_loading_is_not_missed_by_who_asks_meanwhile() {
        let mut collector = Collector::new(Arc::default(), Arc::default()).unwrap();
        collector.shared.loaded(vec![(ZERO, Ok(()))]);
        collector.late(&mut |_, _, _, _| panic!("nothing was refreshed"));
        assert!(ask(&mut collector, &[SLOW]).0.is_empty());
        assert_eq!(collector.store(ZERO, 0, b"", b"start"), Err(TableError::Late));
        assert_eq!((collector.loaded(), collector.loaded()), (Some(vec![(ZERO, Ok(()))]), None));
    }

    #[test]
    fn a_module_that_was_slow_is_asked_last_and_not_waited_for() {
        let mut collector = Collector::new(Arc::default(), Arc::default()).unwrap();
        let shared = Arc::clone(&collector.shared);
        assert!(ask(&mut collector, &[SLOW]).0.is_empty());
        done(&shared, 2 * PATIENCE);
        let mut late = Vec::new();
        collector.late(&mut |id, _, _, is_slow| late.push((id, is_slow)));
        assert_eq!(late, [(SLOW, true)]);
        assert!(ask(&mut collector, &[SLOW]).1 < MOMENT, "alone");
        assert!(matches!(shared.next(), Some(Job::Refresh(SLOW, _))));
        let worker = std::thread::spawn(move || {
            let waits = || !held(&shared.waiting).is_empty();
            while !waits() {
                std::thread::yield_now();
            }
            done(&shared, Duration::ZERO);
            std::thread::sleep(2 * PATIENCE);
            done(&shared, 2 * PATIENCE);
        });
        let (back, took) = ask(&mut collector, &[SLOW, ZERO]);
        assert_eq!(back, [ZERO]);
        assert!(took < PATIENCE, "{took:?}");
        worker.join().unwrap();
    }
}
