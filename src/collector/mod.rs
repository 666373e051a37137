//! The modules' thread: loads the BPF object, refreshes modules when asked, and drains rings and ages tables once a second. The
//! thread that answers pmcd waits for it for less than a second, so that an answer keeps coming whatever a module does. While a
//! module keeps the thread, another one refreshes the others (jobs.rs).

mod jobs;
mod prepared;
mod status;

use crate::bpf::{self, types};
use crate::catalog::EnabledModule;
use crate::config::Config;
use crate::kit::{
    fill, speaking_as, Kernel, Module, Plan, RefreshError, Setup, SetupError, Spec, Table, TableId, TableSpec,
};
use crate::loader::{self, give_back, Attempt, Failure, Finding, LoadRequest, LoadedObject, Outcome, Reach};
use crate::pcp::PmErr;
use crate::process::Filters;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use std::any::Any;
use std::collections::HashMap;
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

pub use jobs::Collector;
pub use prepared::{prepare, Configuration, Prepared};
pub use status::{status_tables, Own, STATUS};

/// Between two looks at rings, ended processes and losses.
const TICK: Duration = Duration::from_secs(1);
/// How long an end waits for a thread that may be stuck.
const MOMENT: Duration = Duration::from_millis(100);
/// Ticks between two log lines about one kind of loss.
const QUIET: u64 = 60;

/// A module with its name, to be loaded.
pub struct Member {
    name: Arc<str>,
    spec: &'static Spec,
    tables: Vec<(TableId, &'static TableSpec)>,
    /// The option `debug` of its section.
    debug: bool,
    /// The error in its section, if there is one: the module fails, with this for its reason.
    module: Result<Box<dyn Module + Send>, String>,
}

/// What stands in the place of the hook that failed, where the section is in error.
pub const CONFIGURATION: &str = "configuration";

/// The modules of a configuration, to be loaded.
pub struct Members {
    modules: Vec<Member>,
    process_refresh: Option<Duration>,
}

/// Makes the modules of a configuration; the first error is the result. Quick, since pmcd gives an agent that it has started three
/// seconds to say something: they plan when they are loaded.
pub fn members(
    config: &Config,
    modules: &[EnabledModule],
    process_refresh: Option<Duration>,
) -> Result<Members, SetupError> {
    let modules = modules.iter().map(|module| {
        let made = make(config, module, process_refresh)?;
        Ok(Member::new(module, Ok(made)))
    });
    Ok(Members { modules: modules.collect::<Result<_, _>>()?, process_refresh })
}

/// Makes the module of a section.
fn make(
    config: &Config,
    module: &EnabledModule,
    process_refresh: Option<Duration>,
) -> Result<Box<dyn Module + Send>, SetupError> {
    let name = Arc::from(module.settings.section.as_str());
    let section = config
        .section(&module.settings.section)
        .ok_or_else(|| SetupError::Missing { path: config.path().into(), reason: format!("no section [{name}]") })?;
    speaking_as(&name, || (module.spec.make)(&Setup { section: &section, process_refresh }))
}

impl Member {
    fn new(enabled: &EnabledModule, module: Result<Box<dyn Module + Send>, String>) -> Member {
        let (name, debug) = (Arc::from(enabled.settings.section.as_str()), enabled.settings.debug);
        if debug {
            log::info!("{name}: Debug logging enabled.");
        }
        let tables = enabled.tables().map(|table| (table.id, table.spec)).collect();
        Member { name, spec: enabled.spec, tables, debug, module }
    }
}

/// Loaded modules, and what the thread that owns them does for them by itself.
pub struct Group {
    modules: Arc<Modules>,
    ticks: u64,
    next_tick: Instant,
}

impl Deref for Group {
    type Target = Modules;

    fn deref(&self) -> &Modules {
        &self.modules
    }
}

/// Loaded modules, for any thread: each works for one thread at a time.
pub struct Modules {
    /// In the order of the configuration; the filters of their `process` options, if there are any, are the last.
    slots: Vec<Slot>,
    /// What was tried at the hooks.
    pub attempts: Vec<Attempt>,
    /// What that says of the kernel.
    findings: Vec<Finding>,
    loaded: Box<dyn LoadedObject>,
    /// How long loading took.
    loading: Duration,
    own: OnceLock<Own>,
}

/// A module, or why it is not there.
struct Slot {
    name: Arc<str>,
    spec: &'static Spec,
    tables: Vec<(TableId, &'static TableSpec)>,
    /// The option `debug` of its section.
    debug: bool,
    module: Result<Mutex<Working>, Failure>,
    /// Entries of its section that no target was found for, each with the reason.
    missing: Vec<(String, String)>,
    told: Mutex<Told>,
}

/// A module at work.
struct Working {
    module: Box<dyn Module + Send>,
    losses: HashMap<&'static str, Loss>,
}

/// What the refreshes of a module came to, to be read while it works.
#[derive(Default)]
struct Told {
    /// Why the last one had no values.
    trouble: Option<String>,
    count: u64,
    time: Duration,
}

#[derive(Default)]
struct Loss {
    count: u64,
    said_at: Option<u64>,
}

impl Slot {
    /// Whether the module can attach to the hook.
    fn has(&self, hook: &str) -> bool {
        self.spec.hooks.iter().any(|known| known.name == hook)
    }

    /// The module, if it is loaded and no other thread has it at work.
    fn idle(&self) -> Option<MutexGuard<'_, Working>> {
        match self.module.as_ref().ok()?.try_lock() {
            Ok(working) => Some(working),
            Err(TryLockError::Poisoned(working)) => Some(working.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn is_busy(&self) -> bool {
        self.module.is_ok() && self.idle().is_none()
    }
}

impl Group {
    /// Loads the modules as far as the kernel allows, and logs each one's fate.
    pub fn load(members: Members, btf: Option<PathBuf>) -> Group {
        Group::over(members, by_loader(btf))
    }

    /// The same for a caller that reports failed modules itself, from [`Modules::fates`]: the log does not repeat them.
    pub fn load_without_failures_logged(members: Members, btf: Option<PathBuf>) -> Group {
        Group::load_and_log(members, by_loader(btf), false)
    }

    /// Has something else than the loader load the modules: tests do without a kernel.
    pub fn over<L: LoadedObject + 'static>(
        members: Members,
        load: impl FnOnce(&[LoadRequest], &types::rodata) -> Outcome<L>,
    ) -> Group {
        Group::load_and_log(members, load, true)
    }

    fn load_and_log<L: LoadedObject + 'static>(
        members: Members,
        load: impl FnOnce(&[LoadRequest], &types::rodata) -> Outcome<L>,
        log_failures: bool,
    ) -> Group {
        log::info!("Compiling modules:");
        let begin = Instant::now();
        let Members { mut modules, process_refresh } = members;
        let (host, mut constants) = (crate::host::host(), bpf::constants());
        let mut plans = Vec::new();
        for (number, member) in modules.iter_mut().enumerate() {
            log::info!("{}", member.name);
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
        let outcome = load(&wanted, &constants);
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
        let modules = Modules {
            slots: slots.collect(),
            attempts: outcome.attempts,
            findings: outcome.findings,
            loaded: Box::new(outcome.loaded),
            loading: begin.elapsed(),
            own: OnceLock::new(),
        };
        let mut group = Group { modules: Arc::new(modules), ticks: 0, next_tick: Instant::now() + TICK };
        group.log_fates(log_failures);
        log::info!("Modules compiled.");
        log::info!("Freeing memory:");
        for slot in &group.slots {
            log::info!("{}: Compilation memory freed.", slot.name);
        }
        log::info!("Memory freed.");
        group.tick();
        group
    }

    /// Serves the agent's own metrics too: [`OWN`], numbered behind what the modules add.
    pub fn serve_own(&mut self, own: Own) {
        let _ = self.modules.own.set(own); // once
    }

    /// Fills a table, as [`Modules::refresh`].
    pub fn refresh(&mut self, id: TableId, table: &mut Table) -> Result<(), String> {
        self.modules.refresh(id, table)
    }

    /// What is due once a second.
    pub fn tick(&mut self) {
        self.ticks += 1;
        let (now, kernel): (_, &dyn Kernel) = (self.ticks, &*self.modules.loaded);
        for slot in &self.modules.slots {
            let name = &slot.name;
            let Some(mut working) = slot.idle() else { continue };
            let Working { module, losses } = &mut *working;
            let result = guarded(name, || {
                module.tick(kernel);
                module.losses(kernel, &mut |reason, count| {
                    let loss = losses.entry(reason).or_default();
                    let quiet = loss.said_at.is_some_and(|said| now - said < QUIET);
                    if count > loss.count && !quiet {
                        log::warn!("{name}: {} {reason}", count - loss.count);
                        (loss.count, loss.said_at) = (count, Some(now));
                    }
                });
            });
            if let Err(fault) = result {
                log::error!("{name}: {fault}");
            }
        }
    }

    /// Wakes the modules whose rings have records, to drain them, and those that are due.
    fn wake(&mut self, rings: &[&str]) {
        let (now, kernel): (_, &dyn Kernel) = (Instant::now(), &*self.modules.loaded);
        for slot in &self.modules.slots {
            let Slot { name, spec, .. } = slot;
            let Some(mut working) = slot.idle() else { continue };
            let module = &mut working.module;
            let is_due = module.due().is_some_and(|due| due <= now);
            if is_due || spec.maps.iter().any(|map| rings.contains(&map.name)) {
                if let Err(fault) = guarded(name, || module.woken(kernel)) {
                    log::error!("{name}: {fault}");
                }
            }
        }
    }

    /// Whether a module wants to be woken at once.
    pub fn is_due(&self) -> bool {
        let now = Instant::now();
        self.modules.slots.iter().filter_map(|slot| slot.idle()?.module.due()).any(|due| due <= now)
    }

    /// Wakes modules as their rings fill and as they are due, and ticks once a second, until the descriptor is readable (then
    /// true) or the time has come.
    pub fn attend(&mut self, fd: BorrowedFd<'_>, until: Option<Instant>) -> bool {
        loop {
            let now = Instant::now();
            if now >= self.next_tick {
                self.tick();
                self.next_tick = Instant::now() + TICK;
            }
            if until.is_some_and(|until| now >= until) {
                return false;
            }
            // One of a module that another thread has at work could not be drained: it would wake this one at once, again and again.
            let drained = |ring: &str| {
                let owner = |slot: &&Slot| slot.spec.maps.iter().any(|map| map.name == ring);
                !self.modules.slots.iter().find(owner).is_some_and(Slot::is_busy)
            };
            let mut rings = self.modules.loaded.rings();
            rings.retain(|(ring, _)| drained(ring));
            let mut fds = vec![PollFd::new(fd, PollFlags::POLLIN)];
            fds.extend(rings.iter().map(|&(_, fd)| PollFd::new(fd, PollFlags::POLLIN)));
            let due = self.modules.slots.iter().filter_map(|slot| slot.idle()?.module.due());
            let next = due.chain(until).fold(self.next_tick, Instant::min);
            // Rounded up: a poll that ends a fraction early would spin.
            let left = next.saturating_duration_since(Instant::now()).as_nanos().div_ceil(1_000_000) as u16;
            let _ = poll(&mut fds, PollTimeout::from(left));
            let is_readable = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
            let readable = rings.iter().zip(&fds[1..]).filter(|(_, fd)| is_readable(fd));
            let readable: Vec<&str> = readable.map(|((name, _), _)| *name).collect();
            let called = is_readable(&fds[0]);
            drop(fds);
            self.wake(&readable);
            if called {
                return true;
            }
        }
    }

    /// Detaches everything and says so.
    pub fn detach(self) {
        // The threads that helped out have been told to end. One that is stuck is left: the kernel detaches when the process ends.
        let until = Instant::now() + MOMENT;
        while Arc::strong_count(&self.modules) > 1 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let Some(Modules { slots, loaded, .. }) = Arc::into_inner(self.modules) else { return };
        drop(loaded);
        say_detached(&slots);
    }

    /// Leaves it to the end of the process to detach everything, and says so. Where the end of the process comes while this thread
    /// takes a probe off, the kernel gives up and keeps it ("failed to unregister, leaking uprobe").
    fn leave(self) {
        say_detached(&self.modules.slots);
        std::mem::forget(self);
    }
}

fn by_loader(btf: Option<PathBuf>) -> impl FnOnce(&[LoadRequest], &types::rodata) -> Outcome {
    move |wanted, constants| loader::load(&bpf::OBJECT, wanted, constants, btf.as_deref())
}

fn say_detached(modules: &[Slot]) {
    log::info!("Cleaning up modules:");
    for slot in modules.iter().filter(|slot| slot.module.is_ok()) {
        log::info!("{}: BPF detached.", slot.name);
    }
    log::info!("Modules cleaned up.");
}

impl Modules {
    fn log_fates(&self, log_failures: bool) {
        for reach in self.loaded.targets() {
            match &reach.result {
                Ok(tier) => log::debug!("{}: {}: attached as {}", reach.module, reach.target, tier.kind),
                Err(words) => log::warn!("{}: {} cannot be attached to: {words}", reach.module, reach.target),
            }
        }
        for slot in &self.slots {
            let name = &slot.name;
            for (entry, reason) in &slot.missing {
                log::warn!("{name}: {entry} is left out: {reason}");
            }
            let level = if slot.debug { log::Level::Info } else { log::Level::Debug };
            for Attempt { hook, kind, result, .. } in self.attempts.iter().filter(|attempt| slot.has(attempt.hook)) {
                match result {
                    Ok(()) => log::log!(level, "{name}: {hook}: loaded as {kind}"),
                    Err(refusal) => log::log!(level, "{name}: {hook}: {kind} is refused: {}", refusal.words),
                }
            }
            match &slot.module {
                Ok(_) => {
                    log::info!("{name}: Compiled.");
                    log::info!("{name}: {}", self.state(slot).1);
                }
                Err(_) if !log_failures => {}
                Err(failure) => {
                    // An error in the configuration was logged as it was read.
                    if failure.hook != CONFIGURATION {
                        log::error!("{name}: {}", failure.reason);
                    }
                    if !failure.words.is_empty() {
                        log::error!("{name}: the kernel said: {}", failure.words);
                    }
                    log::error!("{name}: Module NOT active!");
                }
            }
        }
    }

    /// For each module why it is not there.
    pub fn fates(&self) -> Vec<Result<(), Failure>> {
        self.slots.iter().map(|slot| slot.module.as_ref().map(|_| ()).map_err(Failure::clone)).collect()
    }

    /// How the attached hooks are attached.
    pub fn attached(&self) -> Vec<(&'static str, &'static str)> {
        self.loaded.attached()
    }

    /// The targets that each module goes without though its section names them, with the reason: first those that were not found,
    /// then those that cannot be attached to.
    pub fn missing_targets(&self) -> Vec<Vec<(String, String)>> {
        self.slots.iter().map(|slot| self.missing(slot)).collect()
    }

    fn missing(&self, slot: &Slot) -> Vec<(String, String)> {
        let refused =
            self.loaded.targets().iter().filter(|reach| reach.module == slot.spec.name).filter_map(|reach| {
                reach.result.as_ref().err().map(|said| (reach.target.to_string(), said.to_string()))
            });
        slot.missing.iter().cloned().chain(refused).collect()
    }

    /// The targets that the configuration names, and what became of each.
    pub fn reaches(&self) -> &[Reach] {
        self.loaded.targets()
    }

    /// Whether each table is served; a sentence for one that is not.
    fn served(&self) -> Vec<(TableId, Result<(), String>)> {
        let of_modules = self.slots.iter().flat_map(|slot| {
            let fate = slot.module.as_ref().map(drop).map_err(|failure| failure.reason.clone());
            slot.tables.iter().map(move |(id, _)| (*id, fate.clone()))
        });
        of_modules.chain(STATUS.iter().map(|table| (table.id(), Ok(())))).collect()
    }

    /// The module of a table, and the table as it is declared.
    fn slot(&self, id: TableId) -> Option<(&Slot, &'static TableSpec)> {
        self.slots.iter().find_map(|slot| {
            let (_, spec) = slot.tables.iter().find(|(own, _)| *own == id)?;
            Some((slot, *spec))
        })
    }

    /// Fills a table. A module that panics costs its own values, no more.
    pub fn refresh(&self, id: TableId, table: &mut Table) -> Result<(), String> {
        table.clear();
        let Some((slot, spec)) = self.slot(id) else { return self.refresh_status(id, table) };
        let begin = Instant::now();
        let Slot { name, debug, module: Ok(module), told, .. } = slot else {
            return Err("not loaded".into());
        };
        let kernel: &dyn Kernel = &*self.loaded;
        let module = &mut *held(module).module;
        let result = guarded(name, || fill(spec, module, kernel, table))
            .unwrap_or_else(|fault| Err(RefreshError(fault)))
            .map_err(|error| error.to_string());
        let before = {
            let mut told = held(told);
            (told.count, told.time) = (told.count + 1, told.time + begin.elapsed());
            std::mem::replace(&mut told.trouble, result.clone().err())
        };
        match (&result, before) {
            (Err(error), None) => log::error!("{name}: no values: {error}"),
            (Ok(()), Some(_)) => log::info!("{name}: values again"),
            _ => {}
        }
        if *debug {
            log::info!("{name}: refreshed, {} instances", table.len());
        }
        result
    }

    /// Changes a string of a table.
    pub fn store(&self, id: TableId, column: usize, value: &[u8]) -> Result<(), PmErr> {
        let (slot, spec) = self.slot(id).ok_or(PmErr::PERMISSION)?;
        let metric = spec.metrics.get(column).ok_or(PmErr::PMID)?;
        let Slot { name, module: Ok(module), .. } = slot else { return Err(PmErr::APPVERSION) };
        let kernel: &dyn Kernel = &*self.loaded;
        let module = &mut held(module).module;
        let stored = guarded(name, || module.store(kernel, metric, value)).unwrap_or_else(|fault| {
            log::error!("{name}: {fault}");
            Err(PmErr::GENERIC)
        });
        give_back(); // what the end of a run left
        stored
    }

    /// Whether the module of a table is at work already, so that whoever asks it has to wait.
    fn is_busy(&self, id: TableId) -> bool {
        self.slot(id).is_some_and(|(slot, _)| slot.is_busy())
    }
}

/// Has a module of a section do something; if it panics, yields what to say of it.
fn guarded<R>(section: &Arc<str>, work: impl FnOnce() -> R) -> Result<R, String> {
    speaking_as(section, || catch_unwind(AssertUnwindSafe(work))).map_err(|panic| message(panic.as_ref()))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("a fault of the agent, please report it: {}", text.unwrap_or("panic"))
}

/// For tests: panics where the environment variable names this place, as `plan:sysfork`. Not in what is installed.
fn inject(place: &str, module: &str) {
    const PANIC: &str = "COREBCC_PANIC";
    let is_named = |named: String| named.split_once(':') == Some((place, module));
    assert!(!cfg!(debug_assertions) || !std::env::var(PANIC).is_ok_and(is_named), "{PANIC} asks for it");
}

/// What a mutex guards, also after a panic: those of modules are caught.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
