//! Maps that outlive the agent, and programs that continue to count in them: pinned in a BPF file system, with a
//! directory for each unit (a module or a pair) whose name contains the layout of the maps and the time from which they
//! count. Maps of another layout are discarded. Programs end when the next agent loads its own. The directory is used
//! by root and by one agent at a time.

use super::held;
use super::map_shape::MapShape;
use super::outcome::PinRequest;
use super::pin_state::PinState;
use crate::host::seconds_since_1970;
use crate::kit::Layout;
use libbpf_rs::query::{LinkInfo, LinkTypeInfo};
use libbpf_rs::{libbpf_sys, ErrorKind, Link, MapCore, MapHandle, MapInfo, OpenObject, Program};
use nix::fcntl::{Flock, FlockArg};
use nix::libc;
use nix::sys::statfs::{statfs, BPF_FS_MAGIC};
use nix::unistd::Uid;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fmt::Display;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Mount point of systemd's BPF file system.
const MOUNT: &str = "/sys/fs/bpf";
/// Prefix of the names of pinned programs; no map has a name like it.
const PROGRAM: &str = "program=";
/// Time for the previous agent to end.
const PATIENCE: Duration = Duration::from_secs(2);

/// A reason why nothing can be pinned, with a remedy.
#[derive(Clone, Debug, Error)]
#[error("{why}")]
struct NotPinned {
    why: String,
    /// True if another agent uses the directory, which may be about to end.
    is_busy: bool,
}

impl NotPinned {
    fn new(why: String) -> NotPinned {
        NotPinned { why, is_busy: false }
    }

    fn at(path: &Path, why: impl Display) -> NotPinned {
        NotPinned::new(format!("{}: {why}", path.display()))
    }
}

/// Everything that this agent has pinned.
#[derive(Default)]
struct Pins {
    /// Name of the directory below that of all agents; an agent without one pins nothing.
    name: Option<String>,
    /// True if pins of unknown units are removed.
    removes: bool,
    store: Option<Result<Store, NotPinned>>,
    states: BTreeMap<String, PinState>,
    /// Units whose maps are in use by programs.
    users: BTreeMap<String, Weak<()>>,
    /// Programs that were told to end.
    ending: Vec<Ending>,
    /// Programs of an earlier agent that count until their successors are attached.
    before: Vec<Before>,
    /// Units and programs of an earlier agent that counted until this one took them over.
    ran_on: BTreeSet<(String, String)>,
    /// Units to be pinned once the previous agent has ended.
    late: Vec<Late>,
}

/// A unit whose maps count while another agent uses the directory.
struct Late {
    unit: String,
    layout: Layout,
    since: u64,
    maps: Vec<(String, OwnedFd)>,
    /// Programs that are to run on without the agent.
    links: Vec<(String, OwnedFd)>,
}

/// A program of an earlier agent, which this one keeps attached.
struct Before {
    unit: String,
    program: String,
    link: Ending,
}

/// A program that was told to end.
struct Ending {
    program: u32,
    link: u32,
    /// Descriptor of the link; closing the last one detaches the program before close(2) returns.
    fd: Option<OwnedFd>,
}

impl Ending {
    fn of(link: &Link) -> libbpf_rs::Result<Ending> {
        link.info().map(|info| Ending { program: info.prog_id, link: info.id, fd: None })
    }

    /// Makes it with the link held, so that the program stays attached.
    fn held(link: &Link) -> libbpf_rs::Result<Ending> {
        let fd = link.as_fd().try_clone_to_owned()?;
        Ok(Ending { fd: Some(fd), ..Ending::of(link)? })
    }

    /// True if the program may still run. The kernel releases a deleted file's reference to the link with a short
    /// delay.
    fn may_run(&mut self) -> bool {
        self.fd = None;
        // SAFETY: it takes a number and returns a descriptor.
        match unsafe { libbpf_sys::bpf_link_get_fd_by_id(self.link) } {
            missing if missing == -libc::ENOENT => false,
            refused if refused < 0 => is_there(self.program),
            fd => {
                // SAFETY: the descriptor is new, and nobody else's.
                self.fd = Some(unsafe { OwnedFd::from_raw_fd(fd) });
                true
            }
        }
    }
}

/// The agent's directory, locked.
struct Store {
    path: PathBuf,
    /// True if this agent holds the programs of the previous one.
    has_programs: bool,
    _lock: Flock<File>,
}

static PINS: Mutex<Pins> = Mutex::new(Pins {
    name: None,
    removes: false,
    store: None,
    states: BTreeMap::new(),
    users: BTreeMap::new(),
    ending: Vec::new(),
    before: Vec::new(),
    ran_on: BTreeSet::new(),
    late: Vec::new(),
});

/// Maps of a unit that are to be pinned: those of an earlier agent, or none yet.
pub struct Unit {
    name: String,
    layout: Layout,
    /// Directory; `None` while another agent uses that of all units.
    directory: Option<PathBuf>,
    since: u64,
    maps: Vec<String>,
    found: BTreeMap<String, MapHandle>,
}

/// A lock on a unit's maps against a second set of programs.
pub struct PinUser {
    /// Unit.
    pub unit: String,
    directory: Option<PathBuf>,
    /// True if its maps have counts of an agent before.
    continues: bool,
    _token: Arc<()>,
}

impl PinUser {
    /// Ends programs of an earlier agent that count in the same maps.
    pub fn end_programs_before(&self) {
        held(&PINS).end_before(|unit, _| unit == self.unit);
    }

    /// Makes an attached program run on when the agent ends. Programs at perf events (tracepoints, kprobes, uprobes)
    /// end with it. The unit's status says so where the one of the agent before did not run on until now.
    pub fn let_run(&self, program: &str, link: BorrowedFd<'_>) {
        let pins = &mut *held(&PINS);
        if !pins.ran_on.remove(&(self.unit.clone(), program.to_owned())) && self.continues {
            pins.states.entry(self.unit.clone()).or_default().say_gap(&self.unit);
        }
        if !outlives(link) {
            log::info!("{}: {program} ends with the agent, as each tracepoint, kprobe and uprobe", self.unit);
            return;
        }
        let Some(directory) = &self.directory else {
            if let (Some(late), Ok(link)) = (pins.late_of(&self.unit), link.try_clone_to_owned()) {
                late.links.push((program.to_owned(), link));
            }
            return;
        };
        let path = file_of_program(directory, program);
        if let Err(error) = pin(&path, link) {
            log::warn!("{}: {program} ends with the agent: {}: {error}", self.unit, path.display());
        }
    }
}

/// Ends the programs of a unit that would run on without the agent. Those that this agent still runs, for other units,
/// stay attached.
pub fn end_pinned_programs(unit: &str, still_run: impl Fn(&str) -> bool) {
    let Pins { store, ending, late, .. } = &mut *held(&PINS);
    late.retain(|late| late.unit != unit);
    let Some(Ok(store)) = store else { return };
    for (directory, _) in store.units().into_iter().filter(|(_, named)| named.name == unit) {
        end_programs(&directory, ending, &still_run);
    }
}

/// Ends programs of modules that an earlier agent left running and whose names are replaced: their successors are
/// attached now.
pub fn end_programs_before(is_replaced: impl Fn(&str) -> bool) {
    held(&PINS).end_before(|unit, program| !is_pair(unit) && is_replaced(program));
}

/// Pins maps that could not be pinned when they were loaded, if the previous agent has ended meanwhile. Its counts are
/// lost, since those of this agent began at 0. To be called periodically.
pub fn pin_late() {
    let pins = &mut *held(&PINS);
    let Pins { name: Some(name), store, states, ending, late, .. } = pins else { return };
    if late.is_empty() {
        return;
    }
    Pins::open(name, store);
    let opened = match store {
        Some(Ok(store)) => {
            store.has_programs = true; // what comes now is of this agent
            Ok(&*store)
        }
        Some(Err(why)) if !why.is_busy => Err(why.clone()),
        _ => return,
    };
    for late in std::mem::take(late) {
        let state = states.entry(late.unit.clone()).or_default();
        match opened.clone().and_then(|store| late.pin(store, state, ending)) {
            Ok(()) => state.say_pinned(&late.unit, late.since, false),
            Err(why) => state.say_not(&late.unit, &why.why),
        }
    }
}

/// Releases the directory for the next agent, unless programs of this one still count in pinned maps. To be called at
/// the end.
pub fn release_pins() {
    let pins = &mut *held(&PINS);
    pins.late.clear();
    if pins.users.keys().all(|unit| !is_used(&pins.users, unit)) {
        pins.store = None;
        pins.name = None;
    }
}

/// Returns a sentence for each directory of pins that no agent uses: left by an agent with another domain or state
/// directory, or by an account that cannot pin. None if they cannot be read.
pub fn foreign_pins(domain: u32, state: &Path) -> Vec<String> {
    let own = directory_of(domain, state);
    let within = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
    let entries = within(&Path::new(MOUNT).join("corebcc"));
    let is_unused = |path: &PathBuf| {
        let lock = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(path);
        lock.is_ok_and(|lock| Flock::lock(lock, FlockArg::LockExclusiveNonblock).is_ok())
    };
    // An agent that pins nothing any more leaves its directory, which is empty.
    let is_unused = |path: &PathBuf| within(path).next().is_some() && is_unused(path);
    let paths = entries.filter(|entry| *entry.file_name() != *own).map(|entry| entry.path()).filter(is_unused);
    let said = |path: PathBuf| {
        let path = path.display();
        format!(
            "{path}: maps and programs pinned by an agent with another domain number (-d) or another PCP_VAR_DIR, which does \
             not run; to end them: rm -r {path}"
        )
    };
    paths.map(said).collect()
}

/// Waits until ended programs no longer run: the kernel detaches them with a short delay, and others that count in the
/// same maps are about to be attached.
pub fn wait_for_ended_programs() {
    let until = Instant::now() + PATIENCE;
    let mut ending = std::mem::take(&mut held(&PINS).ending);
    ending.retain_mut(Ending::may_run);
    while !ending.is_empty() {
        if Instant::now() > until {
            let programs: Vec<u32> = ending.iter().map(|ending| ending.program).collect();
            return log::warn!("programs {programs:?} of before may still run: pinned counts may be too high");
        }
        wait_for_kernel();
        ending.retain_mut(Ending::may_run);
    }
}

/// Waits until the kernel has released the references of deleted files to links; programs run on while this agent holds
/// these links. Closing one later then detaches the program at once.
fn wait_for_kernel() {
    for _ in 0..2 {
        // SAFETY: it takes numbers. It waits until what all CPUs read at its begin is not read any more.
        if unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) } != 0 {
            std::thread::sleep(Duration::from_millis(20)); // as with `nohz_full`
        }
    }
}

/// Makes this agent pin maps, in a directory of its own: agents with other state directories do not share maps.
/// `removes`: this agent knows all units, so pins of others can be removed.
pub fn pin_for(domain: u32, state: &Path, removes: bool) {
    let mut pins = held(&PINS);
    (pins.name, pins.removes) = (Some(directory_of(domain, state)), removes);
}

fn directory_of(domain: u32, state: &Path) -> String {
    format!("{domain}-{:016x}", Layout::of(state.as_os_str().as_encoded_bytes()).0)
}

/// True if a unit is a pair: a separate object, whose programs may have the names of modules' programs.
fn is_pair(unit: &str) -> bool {
    unit.starts_with("user.")
}

/// True if programs of this agent count for a unit.
fn is_used(users: &BTreeMap<String, Weak<()>>, unit: &str) -> bool {
    users.get(unit).is_some_and(|user| user.strong_count() > 0)
}

impl Pins {
    fn late_of(&mut self, unit: &str) -> Option<&mut Late> {
        self.late.iter_mut().find(|late| late.unit == unit)
    }

    /// Ends programs of an earlier agent, by unit and name.
    fn end_before(&mut self, is_meant: impl Fn(&str, &str) -> bool) {
        let ended = self.before.extract_if(.., |before| is_meant(&before.unit, &before.program));
        self.ending.extend(ended.map(|before| before.link));
    }

    /// Opens the directory; tries again if another agent used it the last time.
    fn open(name: &str, store: &mut Option<Result<Store, NotPinned>>) {
        match store {
            None => *store = Some(Store::open(name, PATIENCE)),
            Some(Err(why)) if why.is_busy => *store = Some(Store::open(name, Duration::ZERO)),
            Some(_) => {}
        }
    }
}

impl Late {
    fn pin(&self, store: &Store, state: &mut PinState, ending: &mut Vec<Ending>) -> Result<(), NotPinned> {
        for (directory, _) in store.units().into_iter().filter(|(_, named)| named.name == self.unit) {
            end_programs(&directory, ending, |_| false);
            remove(&directory).map_err(|error| NotPinned::at(&directory, error))?;
            state.discarded += 1;
            log::warn!("{}: counts of the agent before are discarded, since it ended after this one began", self.unit);
        }
        let directory = store.directory(&self.unit, self.layout, self.since);
        let make = || {
            DirBuilder::new().mode(0o700).create(&directory)?;
            let maps = self.maps.iter().map(|(name, map)| (directory.join(file_of(name)), map));
            let links = self.links.iter().map(|(name, link)| (file_of_program(&directory, name), link));
            maps.chain(links).try_for_each(|(path, what)| pin(&path, what.as_fd()))
        };
        make().map_err(|error: io::Error| {
            let _ = remove(&directory);
            NotPinned::at(&directory, error)
        })
    }
}

/// Records that a unit's maps are to outlive the agent, whether they can be loaded now or not.
pub fn want_pinned(unit: &str) {
    let state = PinState { status: "not loaded".into(), ..PinState::default() };
    held(&PINS).states.entry(unit.to_owned()).or_insert(state);
}

/// Records that a unit's maps are not to outlive the agent.
pub fn forget_pinned(unit: &str) {
    held(&PINS).states.remove(unit);
}

/// Returns the state of a unit, if it is to be pinned.
pub fn pin_state(unit: &str) -> Option<PinState> {
    held(&PINS).states.get(unit).cloned()
}

/// Returns the entries of each map that an earlier agent pinned for a unit, by the map's name.
pub fn pinned_sizes(unit: &str) -> Vec<(String, usize)> {
    let mut pins = held(&PINS);
    let Pins { name: Some(name), store, .. } = &mut *pins else { return Vec::new() };
    Pins::open(name, store);
    let Some(Ok(store)) = store else { return Vec::new() };
    let own = store.units().into_iter().filter(|(_, named)| named.name == unit);
    let files = own.flat_map(|(directory, _)| fs::read_dir(directory).into_iter().flatten().flatten());
    let size = |file: fs::DirEntry| {
        let name = file.file_name().to_str().filter(|name| !name.starts_with(PROGRAM))?.to_owned();
        let map = MapHandle::from_pinned_path(file.path()).ok()?;
        Some((name, MapInfo::new(map.as_fd()).ok()?.info.max_entries as usize))
    };
    files.filter_map(size).collect()
}

/// Ends programs of an earlier agent that have no successors, and removes pins of units that are no longer to be
/// pinned. To be called once everything is loaded.
pub fn remove_other_pins() {
    let mut pins = held(&PINS);
    let Some(name) = pins.name.clone() else { return };
    if pins.states.is_empty() && !Path::new(MOUNT).join("corebcc").join(&name).exists() {
        return;
    }
    let Pins { removes, store, states, users, before, ending, .. } = &mut *pins;
    before.clear();
    Pins::open(&name, store);
    let Some(Ok(store)) = store else { return };
    for (directory, _) in store.units().into_iter().filter(|(_, unit)| !is_used(users, &unit.name)) {
        end_programs(&directory, ending, |_| false);
    }
    for (directory, unit) in store.units().into_iter().filter(|_| *removes) {
        if states.contains_key(&unit.name) {
            continue;
        }
        match remove(&directory) {
            Ok(()) => log::info!("{}: pinned counts removed, since `pin` is not set any more", unit.name),
            Err(error) => log::warn!("{}: {error}", directory.display()),
        }
    }
}

impl Unit {
    /// Finds the pinned maps of a unit that an object has; those with another layout, or incomplete ones, are
    /// discarded. `None`: nothing is pinned, and the unit's state has the reason.
    pub fn find(request: &PinRequest, object: &OpenObject) -> Option<Unit> {
        let PinRequest { unit, layout, maps } = request;
        let mut pins = held(&PINS);
        let Pins { name, store, states, users, before, ran_on, .. } = &mut *pins;
        Pins::open(name.as_ref()?, store);
        let state = states.entry(unit.clone()).or_default();
        if is_used(users, unit) {
            let why = "programs that were loaded before still count in the pinned maps, which the next start of the agent continues";
            state.say_not(unit, why);
            return None;
        }
        let maps = MapShape::of(object, maps);
        let layout = maps.iter().fold(*layout, |layout, map| map.add_to(layout));
        match store.as_mut()? {
            Ok(store) => {
                if !std::mem::replace(&mut store.has_programs, true) {
                    *before = store.take_programs();
                    ran_on.extend(before.iter().map(|before| (before.unit.clone(), before.program.clone())));
                }
                let found = store.find(unit, layout, &maps, state);
                let programs: BTreeSet<String> =
                    object.progs().map(|program| program.name().to_string_lossy().into_owned()).collect();
                pins.end_before(|of, program| of == unit && !programs.contains(program));
                Some(found)
            }
            Err(why) => {
                state.say_not(unit, &why.why);
                let names = maps.iter().map(|map| map.name.clone()).collect();
                let (since, found) = (seconds_since_1970(), BTreeMap::new());
                why.is_busy.then(|| Unit { name: unit.clone(), layout, directory: None, since, maps: names, found })
            }
        }
    }

    /// Replaces the maps that an object would create by those of an earlier agent.
    pub fn reuse(&self, object: &mut OpenObject) -> libbpf_rs::Result<()> {
        for mut map in object.maps_mut() {
            let pinned = self.found.get(&*map.name().to_string_lossy());
            pinned.map_or(Ok(()), |pinned| map.reuse_fd(pinned.as_fd()))?;
        }
        Ok(())
    }

    /// Iterates over the names of its maps with counts of an earlier agent.
    pub fn continued(&self) -> impl Iterator<Item = &String> {
        self.found.keys()
    }

    /// Pins the unit's maps of a loaded object, unless they are pinned already. Nothing else uses them as long as the
    /// returned value lives.
    pub fn keep(self, maps: &[impl MapCore]) -> Option<PinUser> {
        let continues = !self.found.is_empty();
        let pinned = match &self.directory {
            Some(directory) if !continues => self.pin(directory, maps),
            _ => Ok(()),
        };
        let mut pins = held(&PINS);
        let Pins { states, users, late, .. } = &mut *pins;
        let state = states.entry(self.name.clone()).or_default();
        match (&self.directory, pinned) {
            (Some(directory), Err(error)) => {
                let _ = remove(directory);
                state.say_not(&self.name, &format!("{}: {error}", directory.display()));
                return None;
            }
            (Some(_), Ok(())) => state.say_pinned(&self.name, self.since, continues),
            (None, _) => {
                let own = maps.iter().filter(|map| self.has(&map.name().to_string_lossy()));
                let own =
                    own.map(|map| Some((map.name().to_str()?.to_owned(), map.as_fd().try_clone_to_owned().ok()?)));
                let (unit, maps, links) = (self.name.clone(), own.collect::<Option<_>>()?, Vec::new());
                late.push(Late { unit, layout: self.layout, since: self.since, maps, links });
            }
        }
        let token = Arc::new(());
        users.insert(self.name.clone(), Arc::downgrade(&token));
        Some(PinUser { unit: self.name, directory: self.directory, continues, _token: token })
    }

    fn has(&self, map: &str) -> bool {
        self.maps.iter().any(|own| *own == map)
    }

    fn pin(&self, directory: &Path, maps: &[impl MapCore]) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(directory)?;
        for map in maps {
            let name = map.name().to_string_lossy();
            if self.has(&name) {
                pin(&directory.join(file_of(&name)), map.as_fd())?;
            }
        }
        Ok(())
    }
}

/// Contents of the name of a unit's directory.
struct Named {
    name: String,
    layout: Layout,
    since: u64,
}

impl Named {
    /// Parses `UNIT-LAYOUT-SINCE`; a BPF file system allows no dots in names.
    fn read(name: &str) -> Option<Named> {
        let mut parts = name.rsplitn(3, '-');
        let since = parts.next()?.parse().ok()?;
        let layout = Layout(u64::from_str_radix(parts.next()?, 16).ok()?);
        Some(Named { name: parts.next()?.replace(':', "."), layout, since })
    }

    fn write(&self) -> String {
        format!("{}-{:016x}-{}", self.name.replace('.', ":"), self.layout.0, self.since)
    }
}

impl Store {
    /// Opens the directory, creating it if necessary. The text of an error includes a remedy.
    fn open(name: &str, patience: Duration) -> Result<Store, NotPinned> {
        let mount = Path::new(MOUNT);
        let kind = statfs(mount).map_err(|error| NotPinned::at(mount, error))?.filesystem_type();
        if kind != BPF_FS_MAGIC {
            return Err(NotPinned::new(format!(
                "{MOUNT} is no BPF file system: mount it with `mount -t bpf bpf {MOUNT}`, or into the container, and restart the agent"
            )));
        }
        let about = fs::symlink_metadata(mount).map_err(|error| NotPinned::at(mount, error))?;
        let (is_shared, is_sticky) = (about.mode() & 0o022 != 0, about.mode() & 0o1000 != 0);
        if about.uid() != 0 || is_shared && !is_sticky {
            let expected = "expected a directory of root's that is writable by nobody else, or sticky";
            return Err(NotPinned::at(mount, expected));
        }
        let all = mount.join("corebcc");
        let path = all.join(name);
        for directory in [&all, &path] {
            own_directory(directory)?;
        }
        let lock = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(&path);
        let used = |error| {
            let why =
                format!("another agent uses it ({error}); counts begin at 0, and are pinned once that one has ended");
            NotPinned { is_busy: true, ..NotPinned::at(&path, why) }
        };
        let lock = locked(lock.map_err(|error| NotPinned::at(&path, error))?, patience).map_err(used)?;
        Ok(Store { path, has_programs: false, _lock: lock })
    }

    /// Takes over the programs of the previous agent, each of which can serve several units. Their files are removed,
    /// and they stay attached.
    fn take_programs(&self) -> Vec<Before> {
        let mut taken = Vec::new();
        for (directory, Named { name: unit, .. }) in self.units() {
            for (path, program) in programs_in(&directory) {
                let link = Link::open(&path).and_then(|link| Ending::held(&link)).map_err(io::Error::other);
                match link.and_then(|link| fs::remove_file(&path).map(|()| link)) {
                    Ok(link) => taken.push(Before { unit: unit.clone(), program, link }),
                    Err(error) => log::error!("{}: {error}: its counts are wrong; remove it", path.display()),
                }
            }
        }
        if !taken.is_empty() {
            wait_for_kernel();
        }
        taken
    }

    fn directory(&self, unit: &str, layout: Layout, since: u64) -> PathBuf {
        self.path.join(Named { name: unit.into(), layout, since }.write())
    }

    fn units(&self) -> Vec<(PathBuf, Named)> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        entries.filter_map(|entry| Some((entry.path(), Named::read(entry.file_name().to_str()?)?))).collect()
    }

    fn find(&self, unit: &str, layout: Layout, maps: &[MapShape], state: &mut PinState) -> Unit {
        let names = || maps.iter().map(|map| map.name.clone()).collect();
        for (directory, named) in self.units().into_iter().filter(|(_, named)| named.name == unit) {
            let found = (named.layout == layout).then(|| found(&directory, maps)).flatten();
            if let Some(found) = found {
                let (directory, since) = (Some(directory), named.since);
                return Unit { name: unit.into(), layout, directory, since, maps: names(), found };
            }
            state.discarded += 1;
            let why =
                if named.layout == layout { "some are missing" } else { "their layout or options are others now" };
            let removed =
                remove(&directory).map_or_else(|error| format!("not removed: {error}"), |()| "removed".into());
            log::warn!("{unit}: pinned maps discarded, so counts begin at 0: {why}; {} {removed}", directory.display());
        }
        let since = seconds_since_1970();
        let (directory, found) = (Some(self.directory(unit, layout, since)), BTreeMap::new());
        Unit { name: unit.into(), layout, directory, since, maps: names(), found }
    }
}

/// Returns all maps of a directory, if they are as expected.
fn found(directory: &Path, maps: &[MapShape]) -> Option<BTreeMap<String, MapHandle>> {
    let open = |shape: &MapShape| {
        let map = MapHandle::from_pinned_path(directory.join(file_of(&shape.name))).ok()?;
        shape.is_of(&map).then(|| (shape.name.clone(), map))
    };
    maps.iter().map(open).collect()
}

/// Returns the name of the file of a pinned map.
fn file_of(map: &str) -> String {
    map.replace('.', ":")
}

fn file_of_program(directory: &Path, program: &str) -> PathBuf {
    directory.join(format!("{PROGRAM}{}", file_of(program)))
}

/// Creates a directory that only root may use, or accepts an existing one.
fn own_directory(path: &Path) -> Result<(), NotPinned> {
    let failed = |error: io::Error| NotPinned::at(path, format!("{error}; only root can pin"));
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    let about = fs::symlink_metadata(path).map_err(failed)?;
    let is_own = about.uid() == Uid::effective().as_raw() && about.is_dir() && about.mode() & 0o077 == 0;
    is_own.then_some(()).ok_or_else(|| {
        let (owner, mode) = (about.uid(), about.mode() & 0o7777);
        let expected = "expected a directory of the agent's account that is closed to others (0700)";
        NotPinned::at(
            path,
            format!("{expected}, got owner {owner} and mode {mode:04o}; remove it and restart the agent"),
        )
    })
}

/// Locks a directory. An agent that is ending holds the lock a little longer.
fn locked(mut file: File, patience: Duration) -> Result<Flock<File>, nix::Error> {
    let until = Instant::now() + patience;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((_, error)) if Instant::now() >= until => return Err(error),
            Err((again, _)) => file = again,
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// True if a program stays attached by its pinned link when the process exits: closing the link of a perf event
/// disables the event.
fn outlives(link: BorrowedFd<'_>) -> bool {
    use LinkTypeInfo::{Cgroup, RawTracepoint, Tracing, Xdp};
    // Before 5.15 a perf event's is no link.
    LinkInfo::from_fd(link).is_ok_and(|link| matches!(link.info, RawTracepoint(_) | Tracing(_) | Cgroup(_) | Xdp(_)))
}

/// Pins a map or a link.
fn pin(path: &Path, what: BorrowedFd<'_>) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_encoded_bytes())?;
    // SAFETY: the path ends with a zero, and the descriptor is open.
    match unsafe { libbpf_sys::bpf_obj_pin(what.as_raw_fd(), path.as_ptr()) } {
        0 => Ok(()),
        failed => Err(io::Error::from_raw_os_error(-failed)),
    }
}

/// Returns the programs pinned in a unit's directory: path and name.
fn programs_in(directory: &Path) -> Vec<(PathBuf, String)> {
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    files.filter_map(|file| Some((file.path(), file.file_name().to_str()?.strip_prefix(PROGRAM)?.to_owned()))).collect()
}

/// Ends the programs of a unit's directory, left running by an earlier agent or this one. Those that do not run for
/// other units are added to `ending`.
fn end_programs(directory: &Path, ending: &mut Vec<Ending>, still_run: impl Fn(&str) -> bool) {
    for (path, program) in programs_in(directory) {
        let link = Link::open(&path).and_then(|link| Ending::of(&link)).map_err(io::Error::other);
        match link.and_then(|link| fs::remove_file(&path).map(|()| link)) {
            Ok(link) if !still_run(&program) => ending.push(link),
            Ok(_) => {}
            Err(error) => log::error!("{}: {error}: its counts are wrong; remove it", path.display()),
        }
    }
}

/// True if the kernel has a program with this id.
fn is_there(program: u32) -> bool {
    !Program::fd_from_id(program).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// Removes the directory of a unit.
fn remove(directory: &Path) -> io::Result<()> {
    for file in fs::read_dir(directory)?.flatten() {
        fs::remove_file(file.path())?;
    }
    fs::remove_dir(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_names_unit_layout_and_start() {
        let named = Named { name: "user.calls-by_name".into(), layout: Layout(0xab), since: 1_700_000_000 };
        let text = named.write();
        assert_eq!(text, "user:calls-by_name-00000000000000ab-1700000000");
        let read = Named::read(&text).unwrap();
        assert_eq!((read.name, read.layout, read.since), (named.name, named.layout, named.since));
        for wrong in ["", "calls", "calls-ab", "calls-xy-1", "calls-ab-x"] {
            assert!(Named::read(wrong).is_none(), "{wrong}");
        }
    }
}
