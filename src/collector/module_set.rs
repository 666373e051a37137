//! Loaded modules with what they need by themselves: rings are drained as they fill, tables age once a second.

use super::guard::guarded;
use super::load::load;
use super::loaded_module::{LoadedModule, Working};
use super::loaded_modules::LoadedModules;
use super::modules::Modules;
use super::prepared_module::PreparedModules;
use super::renewal::{Order, Renewal, RenewalError, Supply};
use super::sets::Sets;
use super::status::AgentStatus;
use crate::bpf::{self, types};
use crate::catalog::{Change, EnabledModule, TableError};
use crate::kit::{loss_words, EveryMinute, Kernel, Table, TableId};
use crate::loader::{self, trim, LoadRequest, LoadedObject, Outcome};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use std::collections::HashMap;
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two looks at rings, ended processes and losses.
const TICK: Duration = Duration::from_secs(1);
/// The tick at which what follows loading is over.
const SETTLED: u64 = 4;
/// Ticks after which memory is given back again that is free, or that nothing has used since: the end of a run of the profile, a table
/// that was large, code that only these needed.
const GIVE_BACK: u64 = 30;
/// How long an end waits for a thread that may be stuck.
pub const MOMENT: Duration = Duration::from_millis(100);
/// Ticks between two log lines about one kind of loss.
const QUIET: u64 = 60;

/// Loaded modules, and what the thread that owns them does for them by itself.
pub struct ModuleSet {
    /// What was loaded at the start.
    first: Arc<LoadedModules>,
    pub(super) modules: Arc<Modules>,
    /// What modules that come later need.
    btf: Option<PathBuf>,
    supply: Option<Box<dyn Supply>>,
    changes: Vec<Change>,
    refusals: EveryMinute,
    ticks: u64,
    next_tick: Instant,
}

impl Deref for ModuleSet {
    type Target = LoadedModules;

    fn deref(&self) -> &LoadedModules {
        &self.first
    }
}

impl ModuleSet {
    /// Loads the modules as far as the kernel allows.
    pub fn load(prepared: PreparedModules, btf: Option<PathBuf>) -> ModuleSet {
        let load = |wanted: &[LoadRequest], constants: &types::rodata| {
            loader::load(&bpf::OBJECT, wanted, constants, btf.as_deref())
        };
        let set = ModuleSet::over(prepared, load);
        ModuleSet { btf, ..set }
    }

    /// Has something else than the loader load the modules: tests do without a kernel.
    pub fn over<L: LoadedObject + 'static>(
        prepared: PreparedModules,
        by: impl FnOnce(&[LoadRequest], &types::rodata) -> Outcome<L>,
    ) -> ModuleSet {
        let first = Arc::new(load(prepared, by));
        let modules = Arc::new(Modules::new(Arc::clone(&first)));
        let next_tick = Instant::now() + TICK;
        let mut set = ModuleSet {
            first,
            modules,
            btf: None,
            supply: None,
            changes: Vec::new(),
            refusals: EveryMinute::default(),
            ticks: 0,
            next_tick,
        };
        set.log_attempts();
        set.tick();
        set
    }

    /// Has something say which modules come and go. Pairs come at once.
    pub fn follow(&mut self, supply: Box<dyn Supply>) {
        self.supply = Some(supply);
    }

    /// Loads modules as sets of their own, without a word about their tables: nobody has asked for any yet.
    pub fn add(&mut self, prepared: PreparedModules) {
        let set = Arc::new(self.load_alone(prepared));
        set.log_attempts();
        self.tick_of(&set);
        self.modules.change(|sets| sets.0.push(set));
    }

    fn load_alone(&self, prepared: PreparedModules) -> LoadedModules {
        if prepared.are_of_the_site() {
            return load(prepared, |wanted, _| Outcome::nothing(wanted.len()));
        }
        load(prepared.stoppable(true), |wanted, constants| {
            loader::load(&bpf::OBJECT, wanted, constants, self.btf.as_deref())
        })
    }

    /// What came and went since the last call.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Has the supply look whether files changed, and does what follows from it.
    fn look(&mut self) {
        let Some(renewal) = self.supply.as_mut().and_then(|supply| supply.look()) else { return };
        self.renew(renewal);
    }

    /// Reads all files again, and changes what has changed in them. Yields what became of that.
    pub fn reload(&mut self) -> Result<&'static str, RenewalError> {
        let renewal = self.supply.as_mut().ok_or_else(RenewalError::fixed).and_then(|supply| supply.reload());
        self.obey("reload", renewal)
    }

    /// Starts, stops or restarts a module. Yields what became of that.
    pub fn order(&mut self, section: &str, order: Order) -> Result<&'static str, RenewalError> {
        let renewal =
            self.supply.as_mut().ok_or_else(RenewalError::fixed).and_then(|supply| supply.order(section, order));
        self.obey(section, renewal)
    }

    /// Does what an order comes to.
    fn obey(&mut self, name: &str, renewal: Result<Renewal, RenewalError>) -> Result<&'static str, RenewalError> {
        let done = renewal.and_then(|renewal| {
            let said = if renewal.is_empty() { "nothing has changed" } else { "done" };
            match self.renew(renewal) {
                failed if failed.is_empty() => Ok(said),
                failed => Err(RenewalError(failed.join("; "))),
            }
        });
        match &done {
            Ok(said) => log::info!("{name}: {said}"),
            Err(error) if self.supply.is_some() => log::error!("{name}: {error}"),
            // Anybody may ask where nothing can change.
            Err(error) => {
                if let Some(more) = self.refusals.due() {
                    log::error!("{name}: {error}{more}");
                }
            }
        }
        done
    }

    /// Does what follows from files or an order. Yields why modules that were to be loaded were not.
    fn renew(&mut self, Renewal { stop, load, configuration, controllers }: Renewal) -> Vec<String> {
        let mut failed = Vec::new();
        let mut change = Change { controllers, ..Change::default() };
        if let (Some(status), Some(configuration)) = (self.modules.status(), configuration) {
            status.configure(configuration);
        }
        for section in stop {
            change.gone.extend(self.stop(&section));
        }
        for (enabled, prepared) in load {
            let set = Arc::new(self.load_alone(prepared));
            set.log_attempts();
            set.log_outcomes();
            failed.extend(set.iter().filter_map(|loaded| {
                let (state, reason) = set.state(loaded);
                (state == "failed").then(|| format!("{} failed: {reason}", loaded.name))
            }));
            let mut outcomes: HashMap<TableId, _> = set.iter().flat_map(LoadedModule::served).collect();
            for table in enabled.iter().flat_map(EnabledModule::tables) {
                let outcome = outcomes.remove(&table.id).unwrap_or(Err(TableError::Loading));
                change.come.push((table, outcome));
            }
            self.tick_of(&set);
            self.modules.change(|sets| sets.0.push(set));
        }
        if !change.is_empty() {
            self.changes.push(change);
            loader::give_back();
        }
        failed
    }

    /// Stops a module; what serves nothing any more is detached. Yields its tables.
    fn stop(&mut self, section: &str) -> Vec<TableId> {
        let sets = self.modules.sets();
        let Some((set, loaded)) = sets.named(section) else { return Vec::new() };
        loaded.stop();
        let gone = loaded.tables.iter().map(|(id, _)| *id).collect();
        // The filters of `process` options have no tables: they run for the others.
        let serving = set.iter().filter(|loaded| !loaded.tables.is_empty());
        let running: Vec<&str> = serving.map(|loaded| loaded.spec.name).collect();
        match running.is_empty() && !Arc::ptr_eq(set, &self.first) {
            true => {
                self.modules.change(|sets| sets.0.retain(|other| !Arc::ptr_eq(other, set)));
                loader::end_pinned_programs(loaded.spec.name, |_| false);
            }
            false => set.kernel.keep(&running),
        }
        log::info!("{section}: stopped");
        gone
    }

    /// Serves the agent's own tables too.
    pub fn serve_status(&mut self, status: AgentStatus) {
        self.modules.serve_status(status);
    }

    /// Fills a table, as [`Modules::refresh`].
    pub fn refresh(&mut self, id: TableId, table: &mut Table) -> Result<(), TableError> {
        self.modules.refresh(id, table)
    }

    /// What is due once a second.
    pub fn tick(&mut self) {
        self.ticks += 1;
        loader::pin_late();
        if self.ticks == SETTLED || self.ticks.is_multiple_of(GIVE_BACK) {
            trim();
        }
        self.modules.sets().iter().for_each(|set| self.tick_of(set));
    }

    /// The same for the modules of a set: once it is loaded, since what they count with begins with their first look.
    fn tick_of(&self, set: &LoadedModules) {
        let (now, kernel): (_, &dyn Kernel) = (self.ticks, &*set.kernel);
        for loaded in set.iter() {
            let name = &loaded.name;
            let Some(mut working) = loaded.idle() else { continue };
            let Working { module, losses } = &mut *working;
            let result = guarded(name, || {
                module.tick(kernel);
                module.losses(kernel, &mut |reason, count| {
                    let loss = losses.entry(reason).or_default();
                    let quiet = loss.logged_at.is_some_and(|said| now - said < QUIET);
                    if count > loss.count && !quiet {
                        log::warn!("{name}: {} {}", count - loss.count, loss_words(reason).1);
                        (loss.count, loss.logged_at) = (count, Some(now));
                    }
                });
            });
            if let Err(fault) = result {
                log::error!("{name}: {fault}");
            }
        }
    }

    /// Wakes the modules whose rings have records, to drain them, and those that are due.
    fn wake(&mut self, sets: &Sets, rings: &[(usize, &str)]) {
        let now = Instant::now();
        for (number, loaded) in sets.iter().enumerate().flat_map(|(number, set)| set.iter().map(move |l| (number, l))) {
            let kernel: &dyn Kernel = &*sets.0[number].kernel;
            let LoadedModule { name, spec, .. } = loaded;
            let Some(mut working) = loaded.idle() else { continue };
            let module = &mut working.module;
            let is_due = module.due().is_some_and(|due| due <= now);
            if is_due || spec.maps.iter().any(|map| rings.contains(&(number, map.name))) {
                if let Err(fault) = guarded(name, || module.woken(kernel)) {
                    log::error!("{name}: {fault}");
                }
            }
        }
    }

    /// Whether a module wants to be woken at once.
    pub fn is_due(&self) -> bool {
        let now = Instant::now();
        let sets = self.modules.sets();
        let mut due = sets.modules().filter_map(|(_, loaded)| loaded.idle()?.module.due());
        due.any(|due| due <= now)
    }

    /// Wakes modules as their rings fill and as they are due, and ticks once a second, until the descriptor is readable (then
    /// true) or the time has come.
    pub fn attend(&mut self, fd: BorrowedFd<'_>, until: Option<Instant>) -> bool {
        loop {
            let now = Instant::now();
            if now >= self.next_tick {
                self.tick();
                self.look();
                self.next_tick = Instant::now() + TICK;
            }
            if !self.changes.is_empty() {
                return false;
            }
            if until.is_some_and(|until| now >= until) {
                return false;
            }
            // One of a module that another thread has at work could not be drained: it would wake this one at once, again and again.
            let sets = self.modules.sets();
            let drained = |set: &LoadedModules, ring: &str| {
                let owner = |loaded: &&LoadedModule| loaded.spec.maps.iter().any(|map| map.name == ring);
                !set.iter().find(owner).is_none_or(LoadedModule::is_busy)
            };
            let mut rings = Vec::new();
            for (number, set) in sets.iter().enumerate() {
                let own = set.kernel.rings().into_iter().filter(|(ring, _)| drained(set, ring));
                rings.extend(own.map(|(ring, fd)| ((number, ring), fd)));
            }
            let mut fds = vec![PollFd::new(fd, PollFlags::POLLIN)];
            fds.extend(rings.iter().map(|&(_, fd)| PollFd::new(fd, PollFlags::POLLIN)));
            let due = sets.modules().filter_map(|(_, loaded)| loaded.idle()?.module.due());
            let next = due.chain(until).fold(self.next_tick, Instant::min);
            // Rounded up: a poll that ends a fraction early would spin.
            let left = next.saturating_duration_since(Instant::now()).as_nanos().div_ceil(1_000_000) as u16;
            let _ = poll(&mut fds, PollTimeout::from(left));
            let is_readable = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
            let readable = rings.iter().zip(&fds[1..]).filter(|(_, fd)| is_readable(fd));
            let readable: Vec<(usize, &str)> = readable.map(|((ring, _), _)| *ring).collect();
            let called = is_readable(&fds[0]);
            drop(fds);
            self.wake(&sets, &readable);
            if called {
                return true;
            }
        }
    }

    /// Detaches everything.
    pub fn detach(self) {
        // The threads that helped out have been told to end. One that is stuck is left: the kernel detaches when the process ends.
        let ModuleSet { first, modules, .. } = self;
        drop(first);
        let until = Instant::now() + MOMENT;
        while Arc::strong_count(&modules) > 1 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(Arc::into_inner(modules));
    }

    /// Whether each table is served, or why not.
    pub fn served(&self) -> Vec<(TableId, Result<(), TableError>)> {
        self.modules.served()
    }

    /// Changes a value of a table, given as text.
    pub fn store(&self, id: TableId, column: usize, value: &[u8]) -> Result<(), TableError> {
        self.modules.store(id, column, value)
    }

    /// Lets the next agent have what is pinned, and leaves it to the end of the process to detach everything else. Where the end of the process comes while this thread takes a probe
    /// off, the kernel gives up and keeps it ("failed to unregister, leaking uprobe").
    pub fn leave(self) {
        for set in self.modules.sets().iter() {
            set.kernel.let_go();
            set.iter().filter_map(LoadedModule::idle).for_each(|mut working| working.module.let_go());
        }
        loader::release_pins();
        std::mem::forget(self);
    }
}
