//! Loaded modules with what they need by themselves: rings are drained as they fill, tables age once a second.

use super::guard::guarded;
use super::load::load;
use super::loaded_module::{LoadedModule, Working};
use super::modules::Modules;
use super::prepared_module::PreparedModules;
use super::status::AgentStatus;
use crate::bpf::{self, types};
use crate::catalog::TableError;
use crate::kit::{loss_words, Kernel, Table, TableId};
use crate::loader::{self, trim, LoadRequest, LoadedObject, Outcome};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
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
    pub(super) modules: Arc<Modules>,
    ticks: u64,
    next_tick: Instant,
}

impl Deref for ModuleSet {
    type Target = Modules;

    fn deref(&self) -> &Modules {
        &self.modules
    }
}

impl ModuleSet {
    /// Loads the modules as far as the kernel allows.
    pub fn load(prepared: PreparedModules, btf: Option<PathBuf>) -> ModuleSet {
        ModuleSet::over(prepared, |wanted, constants| loader::load(&bpf::OBJECT, wanted, constants, btf.as_deref()))
    }

    /// Has something else than the loader load the modules: tests do without a kernel.
    pub fn over<L: LoadedObject + 'static>(
        prepared: PreparedModules,
        by: impl FnOnce(&[LoadRequest], &types::rodata) -> Outcome<L>,
    ) -> ModuleSet {
        let modules = Arc::new(Modules::new(load(prepared, by)));
        let mut set = ModuleSet { modules, ticks: 0, next_tick: Instant::now() + TICK };
        set.log_attempts();
        set.tick();
        set
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
        if self.ticks == SETTLED || self.ticks.is_multiple_of(GIVE_BACK) {
            trim();
        }
        let (now, kernel): (_, &dyn Kernel) = (self.ticks, &*self.modules.kernel);
        for loaded in self.modules.iter() {
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
    fn wake(&mut self, rings: &[&str]) {
        let (now, kernel): (_, &dyn Kernel) = (Instant::now(), &*self.modules.kernel);
        for loaded in self.modules.iter() {
            let LoadedModule { name, spec, .. } = loaded;
            let Some(mut working) = loaded.idle() else { continue };
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
        self.modules.iter().filter_map(|loaded| loaded.idle()?.module.due()).any(|due| due <= now)
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
                let owner = |loaded: &&LoadedModule| loaded.spec.maps.iter().any(|map| map.name == ring);
                !self.modules.iter().find(owner).is_some_and(LoadedModule::is_busy)
            };
            let mut rings = self.modules.kernel.rings();
            rings.retain(|(ring, _)| drained(ring));
            let mut fds = vec![PollFd::new(fd, PollFlags::POLLIN)];
            fds.extend(rings.iter().map(|&(_, fd)| PollFd::new(fd, PollFlags::POLLIN)));
            let due = self.modules.iter().filter_map(|loaded| loaded.idle()?.module.due());
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

    /// Detaches everything.
    pub fn detach(self) {
        // The threads that helped out have been told to end. One that is stuck is left: the kernel detaches when the process ends.
        let until = Instant::now() + MOMENT;
        while Arc::strong_count(&self.modules) > 1 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(Arc::into_inner(self.modules));
    }

    /// Leaves it to the end of the process to detach everything. Where the end of the process comes while this thread takes a probe
    /// off, the kernel gives up and keeps it ("failed to unregister, leaking uprobe").
    pub fn leave(self) {
        std::mem::forget(self);
    }
}
