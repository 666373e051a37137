//! Loaded modules and their work between fetches: rings are drained as they fill, tables age once a second.

use super::desired_state::{ChangeError, DesiredState, Difference, Order};
use super::guard::{guarded, held};
use super::load::load;
use super::loaded_module::LoadedModule;
use super::loaded_set::LoadedSet;
use super::modules::Modules;
use super::prepared_module::PreparedModules;
use super::sets::Sets;
use super::status::AgentStatus;
use crate::bpf::{self, types};
use crate::catalog::{Change, EnabledModule, TableError};
use crate::kit::{loss_words, EveryMinute, Kernel, Table, TableId};
use crate::loader::{self, trim, Failure, LoadRequest, LoadedObject, Outcome};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval between ticks, which look for records in rings, ended processes and losses.
const TICK: Duration = Duration::from_secs(1);
/// The tick by which the work that follows loading is over.
const SETTLED: u64 = 4;
/// Ticks between two times that free memory and unused code are given back to the kernel: that of a profile that ended, of a table
/// that was large.
const GIVE_BACK: u64 = 30;
/// Longest time that `detach` waits for a thread that may be stuck.
pub const MOMENT: Duration = Duration::from_millis(100);
/// Ticks between two log lines about one kind of loss.
const QUIET: u64 = 60;

/// All loaded modules, and the work that their thread does for them between fetches.
pub struct Engine {
    /// Modules that were loaded at the start.
    first: Arc<LoadedSet>,
    pub(super) modules: Arc<Modules>,
    /// BTF file for modules that are loaded later; `None` for the running kernel's.
    btf: Option<PathBuf>,
    desired: Option<Box<dyn DesiredState>>,
    changes: Vec<Change>,
    refusals: EveryMinute,
    ticks: u64,
    next_tick: Instant,
}

impl Engine {
    /// Loads the modules as far as the kernel allows.
    pub fn load(prepared: PreparedModules, btf: Option<PathBuf>) -> Engine {
        let load = |wanted: &[LoadRequest], constants: &types::rodata| {
            loader::load(&bpf::OBJECT, wanted, constants, btf.as_deref())
        };
        let set = Engine::over(prepared, load);
        Engine { btf, ..set }
    }

    /// Loads the modules by a function in place of the loader: tests do without a kernel.
    pub fn over<L: LoadedObject + 'static>(
        prepared: PreparedModules,
        by: impl FnOnce(&[LoadRequest], &types::rodata) -> Outcome<L>,
    ) -> Engine {
        let first = Arc::new(load(prepared, by));
        let modules = Arc::new(Modules::new(Arc::clone(&first)));
        let next_tick = Instant::now() + TICK;
        let mut set = Engine {
            first,
            modules,
            btf: None,
            desired: None,
            changes: Vec::new(),
            refusals: EveryMinute::default(),
            ticks: 0,
            next_tick,
        };
        set.first.log_attempts();
        set.tick();
        set
    }

    /// Sets the desired state, which is compared each second with what runs. Pairs come at once.
    pub fn follow(&mut self, desired: Box<dyn DesiredState>) {
        self.desired = Some(desired);
    }

    /// Loads modules as a set of their own, without a report about their tables: nobody has asked for these yet.
    pub fn add(&mut self, prepared: PreparedModules) {
        let set = Arc::new(self.load_alone(prepared));
        set.log_attempts();
        self.tick_of(&set);
        self.modules.change(|sets| sets.0.push(set));
    }

    fn load_alone(&self, prepared: PreparedModules) -> LoadedSet {
        if prepared.of_the_site {
            return load(prepared, |wanted, _| Outcome::nothing(wanted.len()));
        }
        load(prepared.stoppable(true), |wanted, constants| {
            loader::load(&bpf::OBJECT, wanted, constants, self.btf.as_deref())
        })
    }

    /// Takes the tables that came and went since the last call.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Asks whether files have changed, and loads and stops modules accordingly.
    fn follow_files(&mut self) {
        let Some(difference) = self.desired.as_mut().and_then(|desired| desired.poll()) else { return };
        self.apply(difference);
    }

    /// Loads modules again that failed, and for whose hooks a kernel module has come since.
    fn follow_kernel(&mut self) {
        if self.desired.is_none() {
            return;
        }
        let sets = self.modules.sets();
        let worth = sets.modules().filter(|(_, loaded)| loaded.is_worth_a_retry());
        for section in worth.map(|(_, loaded)| Arc::clone(&loaded.name)) {
            let Some(difference) = self.desired.as_mut().and_then(|desired| desired.retry(&section)) else { return };
            log::info!("{section}: the kernel module that it waits for is here");
            // The log has the result.
            let _ = self.apply_logged(&section, Ok(difference));
        }
    }

    /// Reads all files again, and loads and stops modules accordingly. Returns a sentence about the result.
    pub fn reload(&mut self) -> Result<&'static str, ChangeError> {
        let difference = self.desired.as_mut().ok_or_else(ChangeError::fixed).and_then(|desired| desired.reload());
        self.apply_logged("reload", difference)
    }

    /// Starts, stops or restarts a module. Returns a sentence about the result.
    pub fn order(&mut self, section: &str, order: Order) -> Result<&'static str, ChangeError> {
        let difference =
            self.desired.as_mut().ok_or_else(ChangeError::fixed).and_then(|desired| desired.order(section, order));
        self.apply_logged(section, difference)
    }

    /// Carries out an order for a section, logs the result and returns it.
    fn apply_logged(
        &mut self,
        name: &str,
        difference: Result<Difference, ChangeError>,
    ) -> Result<&'static str, ChangeError> {
        let done = difference.and_then(|difference| {
            let said = if difference.is_empty() { "nothing has changed" } else { "done" };
            match self.apply(difference) {
                failed if failed.is_empty() => Ok(said),
                failed => Err(ChangeError(failed.join("; "))),
            }
        });
        match &done {
            Ok(said) => log::info!("{name}: {said}"),
            Err(error) if self.desired.is_some() => log::error!("{name}: {error}"),
            // Anybody may ask where nothing can change.
            Err(error) => {
                if let Some(more) = self.refusals.due() {
                    log::error!("{name}: {error}{more}");
                }
            }
        }
        done
    }

    /// Stops and loads modules. Returns a reason for each module that could not be loaded.
    fn apply(&mut self, Difference { stop, load, configuration, controllers }: Difference) -> Vec<String> {
        let mut failed = Vec::new();
        let mut change = Change { controllers, ..Change::default() };
        if let (Some(status), Some(configuration)) = (self.modules.status(), configuration) {
            status.configure(configuration);
        }
        for section in stop {
            change.removed.extend(self.stop(&section));
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
                change.added.push((table, outcome));
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

    /// Stops a module, and detaches programs that serve no other. Returns its tables.
    fn stop(&mut self, section: &str) -> Vec<TableId> {
        let sets = self.modules.sets();
        let Some((set, loaded)) = sets.named(section) else { return Vec::new() };
        loaded.stop();
        let removed = loaded.tables.iter().map(|(id, _)| *id).collect();
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
        removed
    }

    /// Starts to serve the agent's own tables.
    pub fn serve_status(&mut self, status: AgentStatus) {
        self.modules.serve_status(status);
    }

    /// Fills a table, as [`Modules::refresh`].
    pub fn refresh(&mut self, id: TableId, table: &mut Table) -> Result<(), TableError> {
        self.modules.refresh(id, table)
    }

    /// Does the work that is due once a second.
    pub fn tick(&mut self) {
        self.ticks += 1;
        loader::pin_late();
        if self.ticks == SETTLED || self.ticks.is_multiple_of(GIVE_BACK) {
            trim();
        }
        self.modules.sets().iter().for_each(|set| self.tick_of(set));
    }

    /// Ticks the modules of a set. A new set gets a tick at once, since modules count from their first look.
    fn tick_of(&self, set: &LoadedSet) {
        let (now, kernel): (_, &dyn Kernel) = (self.ticks, &*set.kernel);
        for loaded in set.iter() {
            let name = &loaded.name;
            let Some(running) = loaded.running_now() else { continue };
            let mut losses = held(&loaded.losses);
            let result = guarded(name, || {
                running.tick(kernel);
                running.losses(kernel, &mut |reason, count| {
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

    /// Wakes the modules with records in their rings, to drain them, and those that asked to be woken by now.
    fn wake(&mut self, sets: &Sets, rings: &[(usize, &str)]) {
        let now = Instant::now();
        for (number, loaded) in sets.iter().enumerate().flat_map(|(number, set)| set.iter().map(move |l| (number, l))) {
            let kernel: &dyn Kernel = &*sets.0[number].kernel;
            let LoadedModule { name, spec, .. } = loaded;
            let Some(running) = loaded.running_now() else { continue };
            let is_due = running.due().is_some_and(|due| due <= now);
            if is_due || spec.maps.iter().any(|map| rings.contains(&(number, map.name))) {
                if let Err(fault) = guarded(name, || running.woken(kernel)) {
                    log::error!("{name}: {fault}");
                }
            }
        }
    }

    /// True if a module asked to be woken by now.
    pub fn is_due(&self) -> bool {
        let now = Instant::now();
        let sets = self.modules.sets();
        let mut due = sets.modules().filter_map(|(_, loaded)| loaded.running_now()?.due());
        due.any(|due| due <= now)
    }

    /// Wakes modules as their rings fill and as they are due, and ticks once a second, until the descriptor is readable (returns
    /// true), or until the given time or a change of modules (returns false).
    pub fn attend(&mut self, fd: BorrowedFd<'_>, until: Option<Instant>) -> bool {
        loop {
            let now = Instant::now();
            if now >= self.next_tick {
                self.tick();
                self.follow_files();
                self.follow_kernel();
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
            let drained = |set: &LoadedSet, ring: &str| {
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
            let due = sets.modules().filter_map(|(_, loaded)| loaded.running_now()?.due());
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

    /// Detaches all programs.
    pub fn detach(self) {
        // The threads that helped out have been told to end. One that is stuck is left: the kernel detaches when the process ends.
        let Engine { first, modules, .. } = self;
        drop(first);
        let until = Instant::now() + MOMENT;
        while Arc::strong_count(&modules) > 1 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(Arc::into_inner(modules));
    }

    /// Returns the sets that are loaded.
    pub fn sets(&self) -> Sets {
        self.modules.sets()
    }

    /// Returns the result of loading for each module.
    pub fn outcomes(&self) -> Vec<Result<(), Failure>> {
        self.sets().modules().map(|(_, loaded)| loaded.running.as_ref().map(drop).map_err(Failure::clone)).collect()
    }

    /// Returns the attached hooks, each with its kind of attachment.
    pub fn attached(&self) -> Vec<(&'static str, &'static str)> {
        self.sets().kernels().flat_map(LoadedObject::attached).collect()
    }

    /// Returns the kinds of attachment of the targets that the configuration names and that are attached.
    pub fn reached(&self) -> Vec<&'static str> {
        let sets = self.sets();
        let targets = sets.kernels().flat_map(LoadedObject::targets);
        targets.filter_map(|reach| Some(reach.result.as_ref().ok()?.kind)).collect()
    }

    /// Returns the number of program runs that the kernel skipped; 0 before Linux 5.12, which does not count them.
    pub fn skipped_runs(&self) -> u64 {
        self.sets().kernels().flat_map(LoadedObject::programs).filter_map(|program| program.misses).sum()
    }

    /// Returns the number of events that became rows of a table so far, if its rows are events.
    pub fn events(&self, id: TableId) -> Option<u64> {
        self.modules.events(id)
    }

    /// Returns what is missing if the module of a table has nothing to count, as a process that matches.
    pub fn waits_for(&self, id: TableId) -> Option<String> {
        self.modules.waits_for(id)
    }

    /// Returns all tables, each with the reason if it is not served.
    pub fn served(&self) -> Vec<(TableId, Result<(), TableError>)> {
        self.modules.served()
    }

    /// Changes a value of a table, given as text.
    pub fn store(&self, id: TableId, column: usize, value: &[u8]) -> Result<(), TableError> {
        self.modules.store(id, column, value)
    }

    /// Leaves pinned maps and programs to the next agent, and all other programs attached until the process ends. If the process
    /// ended while this thread detached a probe, the kernel would give up and keep it ("failed to unregister, leaking uprobe").
    pub fn leave(self) {
        for set in self.modules.sets().iter() {
            set.kernel.let_go();
            set.iter().filter_map(LoadedModule::running_now).for_each(|running| running.let_go());
        }
        loader::release_pins();
        std::mem::forget(self);
    }
}
