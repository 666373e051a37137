//! The modules' thread: loads the BPF object, refreshes modules when asked, and drains rings and ages tables once a second. The
//! thread that answers pmcd waits for it for less than a second, so that an answer keeps coming whatever a module does.

use crate::bpf;
use crate::config::Config;
use crate::kit::{Collect, Instance, Kernel, Module, Plan, Setup, SetupError, Spec, Table};
use crate::pcp::PmErr;
use crate::probe::{self, Attempt, Failure, Loaded, Reach, Wanted};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::any::Any;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a fetch waits for modules: pmcd gives an agent five seconds, and serves nobody else meanwhile.
const PATIENCE: Duration = Duration::from_millis(400);
/// Between two looks at rings, ended processes and losses.
const TICK: Duration = Duration::from_secs(1);
/// Ticks between two log lines about one kind of loss.
const QUIET: u64 = 60;

/// A module with its name, ready to be loaded.
pub struct Member {
    /// The section's name, for the log.
    pub name: String,
    spec: &'static Spec,
    module: Box<dyn Module + Send>,
    /// The option `debug` of its section.
    debug: bool,
}

/// Makes the modules of a configuration, and the constants of their programs, which are set when they are loaded. Quick, since
/// pmcd gives an agent that it has started three seconds to say something.
pub fn members(
    config: &Config,
    instances: &[Instance],
    process_refresh: Option<Duration>,
) -> Result<(Vec<Member>, bpf::types::rodata), SetupError> {
    let mut members = Vec::new();
    for instance in instances {
        let Some(section) = config.section(&instance.settings.section) else { continue };
        let module = (instance.spec.make)(&Setup { section: &section, process_refresh })?;
        let (name, debug) = (instance.settings.section.clone(), instance.settings.debug);
        if debug {
            log::info!("{name}: Debug logging enabled.");
        }
        members.push(Member { name, spec: instance.spec, module, debug });
    }
    Ok((members, bpf::constants()))
}

/// Loaded modules in one thread.
pub struct Group {
    names: Vec<String>,
    /// Of each module, the hooks that it wants, if its section says `debug`.
    debug: Vec<Option<Vec<&'static str>>>,
    modules: Vec<Result<Box<dyn Module + Send>, Failure>>,
    /// What was tried at the hooks.
    pub attempts: Vec<Attempt>,
    loaded: Loaded,
    losses: HashMap<(usize, &'static str), Loss>,
    troubled: Vec<bool>,
    ticks: u64,
}

#[derive(Default)]
struct Loss {
    count: u64,
    said_at: Option<u64>,
}

impl Group {
    /// Loads the modules as far as the kernel allows, and logs each one's fate.
    pub fn load(members: Vec<Member>, constants: &bpf::types::rodata, btf: Option<PathBuf>) -> Group {
        log::info!("Compiling modules:");
        let (mut names, mut wanted, mut modules, mut debug) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (host, mut constants) = (probe::host(), *constants);
        for mut member in members {
            log::info!("{}", member.name);
            let mut plan = Plan::default();
            member.module.plan(&host, &mut plan, &mut constants);
            names.push(member.name);
            debug.push(member.debug.then(|| plan.hooks.iter().map(|hook| hook.name).collect()));
            wanted.push(Wanted { name: member.spec.name, plan, maps: member.spec.maps });
            modules.push(member.module);
        }
        let outcome = probe::load(&wanted, &constants, btf.as_deref());
        let mut group = Group {
            troubled: vec![false; names.len()],
            names,
            debug,
            modules: modules.into_iter().zip(outcome.modules).map(|(module, fate)| fate.map(|()| module)).collect(),
            attempts: outcome.attempts,
            loaded: outcome.loaded,
            losses: HashMap::new(),
            ticks: 0,
        };
        group.log_fates();
        log::info!("Modules compiled.");
        log::info!("Freeing memory:");
        for name in &group.names {
            log::info!("{name}: Compilation memory freed.");
        }
        log::info!("Memory freed.");
        group.tick();
        group
    }

    fn log_fates(&self) {
        for (hook, kind) in self.loaded.attached() {
            log::debug!("{hook}: attached as {kind}");
        }
        for reach in self.loaded.reaches() {
            match &reach.result {
                Ok(kind) => log::debug!("{}: {}: attached as {kind}", reach.module, reach.target),
                Err(words) => log::warn!("{}: {} cannot be attached to: {words}", reach.module, reach.target),
            }
        }
        for (name, hooks) in self.names.iter().zip(&self.debug) {
            for (hook, kind) in
                self.loaded.attached().iter().filter(|(hook, _)| hooks.iter().flatten().any(|h| h == hook))
            {
                log::info!("{name}: {hook}: attached as {kind}");
            }
        }
        for (name, fate) in self.names.iter().zip(&self.modules) {
            match fate {
                Ok(_) => log::info!("{name}: Compiled."),
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
        self.modules.iter().map(|module| module.as_ref().map(|_| ()).map_err(Failure::clone)).collect()
    }

    /// How the attached hooks are attached.
    pub fn attached(&self) -> Vec<(&'static str, &'static str)> {
        self.loaded.attached()
    }

    /// The targets that the configuration names, and what became of each.
    pub fn reaches(&self) -> &[Reach] {
        self.loaded.reaches()
    }

    /// Fills a table. A module that panics costs its own values, no more.
    pub fn refresh(&mut self, index: usize, table: &mut Table) -> Result<(), String> {
        table.clear();
        let Some(Ok(module)) = self.modules.get_mut(index) else { return Err("not loaded".into()) };
        let kernel: &dyn Kernel = &self.loaded;
        let result = catch_unwind(AssertUnwindSafe(|| module.refresh(kernel, table)))
            .unwrap_or_else(|panic| Err(crate::kit::RefreshError(message(panic.as_ref()))))
            .map_err(|error| error.to_string());
        match (&result, std::mem::replace(&mut self.troubled[index], result.is_err())) {
            (Err(error), false) => log::error!("{}: no values: {error}", self.names[index]),
            (Ok(()), true) => log::info!("{}: values again", self.names[index]),
            _ => {}
        }
        if self.debug[index].is_some() {
            log::info!("{}: refreshed, {} instances", self.names[index], table.len());
        }
        result
    }

    /// Changes a string of a module.
    pub fn store(&mut self, index: usize, column: usize, value: &[u8]) -> Result<(), PmErr> {
        let Some(Ok(module)) = self.modules.get_mut(index) else { return Err(PmErr::APPVERSION) };
        let kernel: &dyn Kernel = &self.loaded;
        catch_unwind(AssertUnwindSafe(|| module.store(kernel, column, value))).unwrap_or_else(|panic| {
            log::error!("{}: {}", self.names[index], message(panic.as_ref()));
            Err(PmErr::GENERIC)
        })
    }

    /// What is due once a second.
    pub fn tick(&mut self) {
        self.ticks += 1;
        let kernel: &dyn Kernel = &self.loaded;
        for (index, module) in self.modules.iter_mut().enumerate() {
            let Ok(module) = module else { continue };
            let losses = &mut self.losses;
            let (name, now) = (&self.names[index], self.ticks);
            let result = catch_unwind(AssertUnwindSafe(|| {
                module.tick(kernel);
                module.losses(kernel, &mut |reason, count| {
                    let loss = losses.entry((index, reason)).or_default();
                    let quiet = loss.said_at.is_some_and(|said| now - said < QUIET);
                    if count > loss.count && !quiet {
                        log::warn!("{name}: {} {reason}", count - loss.count);
                        (loss.count, loss.said_at) = (count, Some(now));
                    }
                });
            }));
            if let Err(panic) = result {
                log::error!("{name}: {}", message(panic.as_ref()));
            }
        }
    }

    /// Detaches everything and says so.
    pub fn detach(self) {
        log::info!("Cleaning up modules:");
        let Group { names, modules, loaded, .. } = self;
        drop(loaded);
        for (name, module) in names.iter().zip(&modules) {
            if module.is_ok() {
                log::info!("{name}: BPF detached.");
            }
        }
        log::info!("Modules cleaned up.");
    }
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
    /// Jobs whose answer is outstanding.
    away: usize,
    thread: Option<JoinHandle<()>>,
}

impl Collector {
    /// Starts the thread, which begins to load.
    pub fn start(
        members: Vec<Member>,
        constants: bpf::types::rodata,
        btf: Option<PathBuf>,
    ) -> std::io::Result<Collector> {
        let event = || EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map(Arc::new);
        let (call, ready) = (event()?, event()?);
        let (jobs, inbox) = channel();
        let (outbox, done) = channel();
        let thread = std::thread::Builder::new().name("collector".into()).spawn({
            let (call, ready) = (Arc::clone(&call), Arc::clone(&ready));
            move || {
                let group = Group::load(members, &constants, btf);
                let fates = group.fates().into_iter().map(|fate| fate.map_err(|failure| failure.reason)).collect();
                let _ = outbox.send(Done::Loaded(fates));
                let _ = ready.write(1);
                work(group, &call, &inbox, &outbox);
            }
        })?;
        Ok(Collector { jobs, done, call, ready, loaded: None, away: 0, thread: Some(thread) })
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

/// The thread's loop: jobs, rings that want to be drained, the tick.
fn work(mut group: Group, call: &EventFd, inbox: &Receiver<Job>, outbox: &Sender<Done>) {
    let mut next = Instant::now() + TICK;
    loop {
        let rings: Vec<BorrowedFd<'_>> = group.loaded.rings().map(|(_, fd)| fd).collect();
        let mut fds = vec![PollFd::new(call.as_fd(), PollFlags::POLLIN)];
        fds.extend(rings.into_iter().map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        // Rounded up: a poll that ends a fraction early would spin.
        let left = next.saturating_duration_since(Instant::now()).as_millis() as u16 + 1;
        let _ = poll(&mut fds, PollTimeout::from(left));
        let ring_full = fds[1..].iter().any(|fd| fd.any().unwrap_or(false));
        drop(fds);

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
        if ring_full || Instant::now() >= next {
            group.tick();
        }
        if Instant::now() >= next {
            next = Instant::now() + TICK;
        }
    }
}
