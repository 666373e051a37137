//! The modules' thread: loads the BPF object, refreshes modules when asked, and drains rings and ages tables once a second. The
//! thread that answers pmcd waits for it for less than a second, so that an answer keeps coming whatever a module does.

mod own;
mod restarts;

use crate::bpf;
use crate::config::Config;
use crate::kit::{speaking_as, Collect, Filters, Instance, Kernel, Module, Plan, Setup, SetupError, Spec, Table};
use crate::pcp::PmErr;
use crate::probe::{self, Attempt, Failure, Finding, Loaded, Reach, Wanted};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::any::Any;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use own::{own_instances, Own, OWN};
pub use restarts::Restarts;

/// How long a fetch waits for modules: pmcd gives an agent five seconds, and serves nobody else meanwhile.
const PATIENCE: Duration = Duration::from_millis(400);
/// Between two looks at rings, ended processes and losses.
const TICK: Duration = Duration::from_secs(1);
/// Ticks between two log lines about one kind of loss.
const QUIET: u64 = 60;

/// A module with its name, to be loaded.
pub struct Member {
    name: Arc<str>,
    spec: &'static Spec,
    /// The option `debug` of its section.
    debug: bool,
    module: Box<dyn Module + Send>,
}

/// The modules of a configuration, to be loaded.
pub struct Members {
    modules: Vec<Member>,
    process_refresh: Option<Duration>,
}

/// Makes the modules of a configuration. Quick, since pmcd gives an agent that it has started three seconds to say something:
/// they plan when they are loaded.
pub fn members(
    config: &Config,
    instances: &[Instance],
    process_refresh: Option<Duration>,
) -> Result<Members, SetupError> {
    let mut modules = Vec::new();
    for instance in instances {
        let Some(section) = config.section(&instance.settings.section) else { continue };
        let (name, debug) = (Arc::from(instance.settings.section.as_str()), instance.settings.debug);
        let module = speaking_as(&name, || (instance.spec.make)(&Setup { section: &section, process_refresh }))?;
        if debug {
            log::info!("{name}: Debug logging enabled.");
        }
        modules.push(Member { name, spec: instance.spec, debug, module });
    }
    Ok(Members { modules, process_refresh })
}

/// Loaded modules in one thread.
pub struct Group {
    /// In the order of the configuration; the filters of their `process` options, if there are any, are the last.
    modules: Vec<Slot>,
    /// How many of them have metrics.
    served: usize,
    /// Those that add others, whose tables are numbered behind the modules' own.
    adding: Vec<usize>,
    /// What was tried at the hooks.
    pub attempts: Vec<Attempt>,
    /// What that says of the kernel.
    findings: Vec<Finding>,
    loaded: Loaded,
    /// How long loading took.
    loading: Duration,
    own: Option<Own>,
    ticks: u64,
    next_tick: Instant,
}

/// A module, or why it is not there.
struct Slot {
    name: Arc<str>,
    spec: &'static Spec,
    /// The option `debug` of its section.
    debug: bool,
    module: Result<Box<dyn Module + Send>, Failure>,
    /// Entries of its section that no target was found for, each with the reason.
    missing: Vec<(String, String)>,
    losses: HashMap<&'static str, Loss>,
    /// Why the last refresh had no values.
    trouble: Option<String>,
    /// Refreshes, and the time they took.
    refreshes: (u64, Duration),
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
}

impl Group {
    /// Loads the modules as far as the kernel allows, and logs each one's fate.
    pub fn load(members: Members, btf: Option<PathBuf>) -> Group {
        log::info!("Compiling modules:");
        let begin = Instant::now();
        let Members { mut modules, process_refresh } = members;
        let served = modules.len();
        let adding = (0..served).filter(|&index| modules[index].spec.addition.is_some()).collect();
        let (host, mut constants) = (probe::host(), bpf::constants());
        let mut plans = Vec::new();
        for (number, member) in modules.iter_mut().enumerate() {
            log::info!("{}", member.name);
            let mut plan = Plan { number, ..Plan::default() };
            speaking_as(&member.name, || member.module.plan(&host, &mut plan, &mut constants));
            plans.push(plan);
        }
        let filtered = modules.iter().zip(&plans).map(|(member, plan)| (&*member.name, member.spec.name, plan));
        if let Some(mut filters) = Filters::of(filtered, process_refresh) {
            let mut plan = Plan::default();
            filters.plan(&host, &mut plan, &mut constants);
            plans.push(plan);
            let spec = &Filters::SPEC;
            modules.push(Member { name: spec.name.into(), spec, debug: false, module: Box::new(filters) });
        }
        let missing: Vec<_> = plans.iter_mut().map(|plan| std::mem::take(&mut plan.missing)).collect();
        let wanted: Vec<Wanted> = modules
            .iter()
            .zip(plans)
            .map(|(member, plan)| Wanted { name: member.spec.name, plan, maps: member.spec.maps })
            .collect();
        let outcome = probe::load(&wanted, &constants, btf.as_deref());
        let slots = modules.into_iter().zip(outcome.modules).zip(missing).map(|((member, fate), missing)| Slot {
            name: member.name,
            spec: member.spec,
            debug: member.debug,
            module: fate.map(|()| member.module),
            missing,
            losses: HashMap::new(),
            trouble: None,
            refreshes: (0, Duration::ZERO),
        });
        let mut group = Group {
            modules: slots.collect(),
            served,
            adding,
            attempts: outcome.attempts,
            findings: outcome.findings,
            loaded: outcome.loaded,
            loading: begin.elapsed(),
            own: None,
            ticks: 0,
            next_tick: Instant::now() + TICK,
        };
        group.log_fates();
        log::info!("Modules compiled.");
        log::info!("Freeing memory:");
        for slot in &group.modules {
            log::info!("{}: Compilation memory freed.", slot.name);
        }
        log::info!("Memory freed.");
        group.tick();
        group
    }

    fn log_fates(&self) {
        for reach in self.loaded.reaches() {
            match &reach.result {
                Ok(tier) => log::debug!("{}: {}: attached as {}", reach.module, reach.target, tier.kind),
                Err(words) => log::warn!("{}: {} cannot be attached to: {words}", reach.module, reach.target),
            }
        }
        for slot in &self.modules {
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
                Err(failure) => {
                    log::error!("{name}: {}", failure.reason);
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
        self.modules.iter().map(|slot| slot.module.as_ref().map(|_| ()).map_err(Failure::clone)).collect()
    }

    /// How the attached hooks are attached.
    pub fn attached(&self) -> Vec<(&'static str, &'static str)> {
        self.loaded.attached()
    }

    /// The targets that each module goes without though its section names them, with the reason: first those that were not found,
    /// then those that cannot be attached to.
    pub fn missing_targets(&self) -> Vec<Vec<(String, String)>> {
        self.modules.iter().map(|slot| self.missing(slot)).collect()
    }

    fn missing(&self, slot: &Slot) -> Vec<(String, String)> {
        let refused =
            self.loaded.reaches().iter().filter(|reach| reach.module == slot.spec.name).filter_map(|reach| {
                reach.result.as_ref().err().map(|said| (reach.target.to_string(), said.to_string()))
            });
        slot.missing.iter().cloned().chain(refused).collect()
    }

    /// The targets that the configuration names, and what became of each.
    pub fn reaches(&self) -> &[Reach] {
        self.loaded.reaches()
    }

    /// Serves the agent's own metrics too: [`OWN`], numbered behind what the modules add.
    pub fn serve_own(&mut self, own: Own) {
        self.own = Some(own);
    }

    /// Fills a table. A module that panics costs its own values, no more.
    pub fn refresh(&mut self, index: usize, table: &mut Table) -> Result<(), String> {
        table.clear();
        let behind = index.checked_sub(self.served);
        let adds = behind.and_then(|behind| self.adding.get(behind));
        let index = match (behind, adds) {
            (None, _) => index,
            (_, Some(&index)) => index,
            (Some(behind), None) => return self.refresh_own(behind - self.adding.len(), table),
        };
        let begin = Instant::now();
        let Some(Slot { name, debug, module: Ok(module), trouble, refreshes: (count, time), .. }) =
            self.modules.get_mut(index)
        else {
            return Err("not loaded".into());
        };
        let kernel: &dyn Kernel = &self.loaded;
        let result = guarded(name, || match adds {
            None => module.refresh(kernel, table),
            Some(_) => module.refresh_addition(kernel, table),
        })
        .unwrap_or_else(|fault| Err(crate::kit::RefreshError(fault)))
        .map_err(|error| error.to_string());
        (*count, *time) = (*count + 1, *time + begin.elapsed());
        match (&result, std::mem::replace(trouble, result.clone().err())) {
            (Err(error), None) => log::error!("{name}: no values: {error}"),
            (Ok(()), Some(_)) => log::info!("{name}: values again"),
            _ => {}
        }
        if *debug {
            log::info!("{name}: refreshed, {} instances", table.len());
        }
        result
    }

    /// Changes a string of a module.
    pub fn store(&mut self, index: usize, column: usize, value: &[u8]) -> Result<(), PmErr> {
        let (name, module) = match self.modules.get_mut(index) {
            Some(Slot { name, module: Ok(module), .. }) => (name, module),
            Some(_) => return Err(PmErr::APPVERSION),
            None => return Err(PmErr::PERMISSION),
        };
        let kernel: &dyn Kernel = &self.loaded;
        guarded(name, || module.store(kernel, column, value)).unwrap_or_else(|fault| {
            log::error!("{name}: {fault}");
            Err(PmErr::GENERIC)
        })
    }

    /// What is due once a second.
    pub fn tick(&mut self) {
        self.ticks += 1;
        let (now, kernel): (_, &dyn Kernel) = (self.ticks, &self.loaded);
        for Slot { name, module, losses, .. } in &mut self.modules {
            let Ok(module) = module else { continue };
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
        let (now, kernel): (_, &dyn Kernel) = (Instant::now(), &self.loaded);
        for Slot { name, spec, module, .. } in &mut self.modules {
            let Ok(module) = module else { continue };
            let is_due = module.due().is_some_and(|due| due <= now);
            if is_due || spec.maps.iter().any(|map| rings.contains(&map.name)) {
                if let Err(fault) = guarded(name, || module.woken(kernel)) {
                    log::error!("{name}: {fault}");
                }
            }
        }
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
            let rings: Vec<(&str, BorrowedFd<'_>)> = self.loaded.rings().collect();
            let mut fds = vec![PollFd::new(fd, PollFlags::POLLIN)];
            fds.extend(rings.iter().map(|&(_, fd)| PollFd::new(fd, PollFlags::POLLIN)));
            let due = self.modules.iter().filter_map(|slot| slot.module.as_ref().ok()?.due());
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
        log::info!("Cleaning up modules:");
        let Group { modules, loaded, .. } = self;
        drop(loaded);
        for slot in modules.iter().filter(|slot| slot.module.is_ok()) {
            log::info!("{}: BPF detached.", slot.name);
        }
        log::info!("Modules cleaned up.");
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

enum Job {
    Refresh(Vec<(usize, Table)>),
    Store(usize, usize, Vec<u8>),
    Stop,
}

enum Done {
    Loaded(Vec<Result<(), String>>),
    Refreshed(Vec<(usize, Table, Result<(), String>)>),
    Stored(Result<(), PmErr>),
}

/// The thread, seen from the one that answers pmcd.
pub struct Collector {
    jobs: Sender<Job>,
    done: Receiver<Done>,
    /// Tells the thread of a job.
    call: Arc<EventFd>,
    /// Tells the other side that loading is over.
    ready: Arc<EventFd>,
    loaded: Option<Vec<Result<(), String>>>,
    fetches: Arc<AtomicU64>,
    /// Jobs whose answer is outstanding.
    away: usize,
    thread: Option<JoinHandle<()>>,
}

impl Collector {
    /// Starts the thread, which begins to load.
    pub fn start(members: Members, btf: Option<PathBuf>, own: Own) -> std::io::Result<Collector> {
        let event = || EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map(Arc::new);
        let (call, ready) = (event()?, event()?);
        let (jobs, inbox) = channel();
        let (outbox, done) = channel();
        let fetches = own.fetches();
        let thread = std::thread::Builder::new().name("collector".into()).spawn({
            let (call, ready) = (Arc::clone(&call), Arc::clone(&ready));
            move || {
                let mut group = Group::load(members, btf);
                group.serve_own(own);
                let fates = group.fates().into_iter().map(|fate| fate.map_err(|failure| failure.reason));
                let fates: Vec<Result<(), String>> = fates.take(group.served).collect();
                let adding = group.adding.iter().map(|&index| fates[index].clone());
                let own = OWN.iter().map(|_| Ok(()));
                let _ = outbox.send(Done::Loaded(fates.iter().cloned().chain(adding).chain(own).collect()));
                let _ = ready.write(1);
                work(group, &call, &inbox, &outbox);
            }
        })?;
        Ok(Collector { jobs, done, call, ready, loaded: None, fetches, away: 0, thread: Some(thread) })
    }

    /// Readable once loading is over, until it is read.
    pub fn ready(&self) -> Arc<EventFd> {
        Arc::clone(&self.ready)
    }

    fn take(&mut self, done: Done, back: &mut dyn FnMut(usize, Table, Result<(), String>)) {
        match done {
            Done::Loaded(fates) => self.loaded = Some(fates),
            Done::Stored(_) => {} // came too late for whoever asked
            Done::Refreshed(tables) => {
                self.away -= 1;
                for (index, table, result) in tables {
                    back(index, table, result);
                }
            }
        }
    }
}

impl Collect for Collector {
    fn fetch_begins(&mut self) {
        self.fetches.fetch_add(1, Relaxed);
    }

    /// Ends the thread too, unless it is stuck: the kernel detaches when the process ends.
    fn stop(&mut self) {
        let _ = self.jobs.send(Job::Stop);
        let _ = self.call.write(1);
        let until = Instant::now() + PATIENCE;
        if let Some(thread) = self.thread.take() {
            while !thread.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn loaded(&mut self) -> Option<Vec<Result<(), String>>> {
        if self.loaded.is_none() && self.away == 0 {
            if let Ok(Done::Loaded(fates)) = self.done.try_recv() {
                self.loaded = Some(fates);
            }
        }
        self.loaded.take()
    }

    fn store(&mut self, module: usize, column: usize, value: &[u8]) -> Result<(), PmErr> {
        if self.away > 0 || self.jobs.send(Job::Store(module, column, value.to_vec())).is_err() {
            return Err(PmErr::AGAIN);
        }
        let _ = self.call.write(1);
        match self.done.recv_timeout(PATIENCE) {
            Ok(Done::Stored(result)) => result,
            _ => Err(PmErr::AGAIN),
        }
    }

    fn refresh(
        &mut self,
        tables: &mut dyn Iterator<Item = (usize, Table)>,
        back: &mut dyn FnMut(usize, Table, Result<(), String>),
    ) {
        let tables: Vec<(usize, Table)> = tables.collect();
        if !tables.is_empty() {
            self.away += 1;
            if self.jobs.send(Job::Refresh(tables)).is_err() {
                self.away -= 1;
                return;
            }
            let _ = self.call.write(1);
        }
        let until = Instant::now() + PATIENCE;
        while self.away > 0 {
            match self.done.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(done) => self.take(done, back),
                Err(_) => return,
            }
        }
    }
}

/// The thread's loop: jobs, and between them what the modules need.
fn work(mut group: Group, call: &EventFd, inbox: &Receiver<Job>, outbox: &Sender<Done>) {
    loop {
        group.attend(call.as_fd(), None);
        let _ = call.read();
        for job in inbox.try_iter() {
            match job {
                Job::Refresh(tables) => {
                    let refreshed = tables
                        .into_iter()
                        .map(|(index, mut table)| {
                            let result = group.refresh(index, &mut table);
                            (index, table, result)
                        })
                        .collect();
                    if outbox.send(Done::Refreshed(refreshed)).is_err() {
                        return group.detach();
                    }
                }
                Job::Store(index, column, value) => {
                    if outbox.send(Done::Stored(group.store(index, column, &value))).is_err() {
                        return group.detach();
                    }
                }
                Job::Stop => return group.detach(),
            }
        }
    }
}
