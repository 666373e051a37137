//! Loaded modules with what they need by themselves: rings are drained as they fill, tables age once a second.

use super::guard::guarded;
use super::load::load;
use super::loaded_module::{Slot, Working};
use super::modules::Modules;
use super::prepared_module::Members;
use super::status::Own;
use crate::kit::{Kernel, Table, TableId};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two looks at rings, ended processes and losses.
const TICK: Duration = Duration::from_secs(1);
/// How long an end waits for a thread that may be stuck.
pub const MOMENT: Duration = Duration::from_millis(100);
/// Ticks between two log lines about one kind of loss.
const QUIET: u64 = 60;

/// Loaded modules, and what the thread that owns them does for them by itself.
pub struct Group {
    pub(super) modules: Arc<Modules>,
    ticks: u64,
    next_tick: Instant,
}

impl Deref for Group {
    type Target = Modules;

    fn deref(&self) -> &Modules {
        &self.modules
    }
}

impl Group {
    /// Loads the modules as far as the kernel allows.
    pub fn load(members: Members, btf: Option<PathBuf>) -> Group {
        let modules = Arc::new(Modules::new(load(members, btf)));
        let mut group = Group { modules, ticks: 0, next_tick: Instant::now() + TICK };
        group.log_attempts();
        group.tick();
        group
    }

    /// Serves the agent's own tables too.
    pub fn serve_own(&mut self, own: Own) {
        self.modules.serve_own(own);
    }

    /// Fills a table, as [`Modules::refresh`].
    pub fn refresh(&mut self, id: TableId, table: &mut Table) -> Result<(), String> {
        self.modules.refresh(id, table)
    }

    /// What is due once a second.
    pub fn tick(&mut self) {
        self.ticks += 1;
        let (now, kernel): (_, &dyn Kernel) = (self.ticks, &self.modules.loaded);
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
        let (now, kernel): (_, &dyn Kernel) = (Instant::now(), &self.modules.loaded);
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
            let rings = self.modules.loaded.rings().filter(|(ring, _)| drained(ring));
            let rings: Vec<(&str, BorrowedFd<'_>)> = rings.collect();
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
