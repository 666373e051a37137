//! Maps that outlive the agent, and programs that count in them meanwhile: pinned in a BPF file system, a directory for each unit (a
//! module or a pair) whose name has the layout of the maps and since when they count. Maps of another layout are discarded. Programs end
//! when the next agent loads its own. Only root and one agent at a time use the directory.

use super::held;
use super::map_shape::MapShape;
use super::outcome::PinRequest;
use crate::host::seconds_since_1970;
use crate::kit::Layout;
use libbpf_rs::query::{LinkInfo, LinkTypeInfo};
use libbpf_rs::{libbpf_sys, ErrorKind, Link, MapCore, MapHandle, MapInfo, Object, OpenObject, Program};
use nix::fcntl::{Flock, FlockArg};
use nix::libc;
use nix::sys::statfs::{statfs, BPF_FS_MAGIC};
use nix::unistd::Uid;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fmt::Display;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Where systemd mounts a BPF file system.
const MOUNT: &str = "/sys/fs/bpf";
/// What the names of pinned programs begin with; no map has a name like it.
const PROGRAM: &str = "program=";
/// How long the agent before may take to end.
const PATIENCE: Duration = Duration::from_secs(2);

/// What there is to say of a unit whose maps are to outlive the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PinState {
    /// Since when its maps count, in seconds since 1970; 0: they are not loaded.
    pub since: u64,
    /// Whether its maps are pinned.
    pub is_pinned: bool,
    /// Sets of maps that this agent discarded, since their layout was another one.
    pub discarded: u64,
    /// A sentence on it.
    pub status: String,
}

/// Why nothing can be pinned, and what to do.
#[derive(Clone, Debug, Error)]
#[error("{0}")]
struct NotPinned(String);

impl NotPinned {
    fn at(path: &Path, why: impl Display) -> NotPinned {
        NotPinned(format!("{}: {why}", path.display()))
    }
}

/// All that is pinned by this agent.
#[derive(Default)]
struct Pins {
    /// The directory's name below that of all agents; an agent without one pins nothing.
    name: Option<String>,
    /// Whether what is pinned of other units is removed.
    removes: bool,
    store: Option<Result<Store, NotPinned>>,
    states: BTreeMap<String, PinState>,
    /// Units whose maps programs count in.
    users: BTreeMap<String, Weak<()>>,
    /// The numbers of programs that were ended.
    ending: Vec<u32>,
}

/// The agent's directory, which is locked.
struct Store {
    path: PathBuf,
    /// The programs of the agent before were told to end.
    has_ended_programs: bool,
    _lock: Flock<File>,
}

static PINS: Mutex<Pins> = Mutex::new(Pins {
    name: None,
    removes: false,
    store: None,
    states: BTreeMap::new(),
    users: BTreeMap::new(),
    ending: Vec::new(),
});

/// The maps of a unit that are to be pinned: those of an agent before, or none yet.
pub struct Unit {
    name: String,
    directory: PathBuf,
    since: u64,
    maps: Vec<String>,
    found: BTreeMap<String, MapHandle>,
}

/// Keeps a unit's maps from being used by a second set of programs.
pub struct PinUser {
    /// The unit.
    pub unit: String,
    directory: PathBuf,
    _token: Arc<()>,
}

impl PinUser {
    /// Has an attached program go on when the agent ends. One that hangs on a perf event (tracepoints, kprobes, uprobes) ends with it.
    pub fn let_run(&self, program: &str, link: BorrowedFd<'_>) {
        if !outlives(link) {
            log::info!("{}: {program} ends with the agent, as each tracepoint, kprobe and uprobe", self.unit);
            return;
        }
        let path = self.directory.join(format!("{PROGRAM}{}", file_of(program)));
        if let Err(error) = pin(&path, link) {
            log::warn!("{}: {program} ends with the agent: {}: {error}", self.unit, path.display());
        }
    }
}

/// Ends the programs of a unit that would go on without the agent. Those that this agent still runs, for other units, stay attached.
pub fn end_pinned_programs(unit: &str, still_run: impl Fn(&str) -> bool) {
    let Pins { store: Some(Ok(store)), ending, .. } = &mut *held(&PINS) else { return };
    for (directory, _) in store.units().into_iter().filter(|(_, named)| named.name == unit) {
        end_programs(&directory, ending, &still_run);
    }
}

/// Waits until the programs that were ended do not run any more: the kernel detaches them a moment later, and others that count in the
/// same maps are to be attached.
pub fn wait_for_ended_programs() {
    let until = Instant::now() + PATIENCE;
    let mut ending = std::mem::take(&mut held(&PINS).ending);
    ending.retain(|program| is_there(*program));
    while !ending.is_empty() {
        if Instant::now() > until {
            return log::warn!("programs {ending:?} of before may still run: pinned counts may be too high");
        }
        std::thread::sleep(Duration::from_millis(1));
        ending.retain(|program| is_there(*program));
    }
}

/// Has this agent pin maps, in a directory of its own: agents with other directories of state do not share maps. `removes`: it knows
/// all units, so that what is pinned of others can be removed.
pub fn pin_for(domain: u32, state: &Path, removes: bool) {
    let name = format!("{domain}-{:016x}", Layout::of(state.as_os_str().as_encoded_bytes()).0);
    let mut pins = held(&PINS);
    (pins.name, pins.removes) = (Some(name), removes);
}

/// Notes that a unit's maps are to outlive the agent, whether they can be loaded now or not.
pub fn want_pinned(unit: &str) {
    let state = PinState { status: "not loaded".into(), ..PinState::default() };
    held(&PINS).states.entry(unit.to_owned()).or_insert(state);
}

/// Notes that a unit's maps are not to outlive the agent.
pub fn forget_pinned(unit: &str) {
    held(&PINS).states.remove(unit);
}

/// What there is to say of a unit, if it is to be pinned.
pub fn pin_state(unit: &str) -> Option<PinState> {
    held(&PINS).states.get(unit).cloned()
}

/// The entries of each map that an agent before pinned of a unit, by the map's name.
pub fn pinned_sizes(unit: &str) -> Vec<(String, usize)> {
    let mut pins = held(&PINS);
    let Pins { name: Some(name), store, .. } = &mut *pins else { return Vec::new() };
    let Ok(store) = store.get_or_insert_with(|| Store::open(name)) else { return Vec::new() };
    let own = store.units().into_iter().filter(|(_, named)| named.name == unit);
    let files = own.flat_map(|(directory, _)| fs::read_dir(directory).into_iter().flatten().flatten());
    let size = |file: fs::DirEntry| {
        let name = file.file_name().to_str().filter(|name| !name.starts_with(PROGRAM))?.to_owned();
        let map = MapHandle::from_pinned_path(file.path()).ok()?;
        Some((name, MapInfo::new(map.as_fd()).ok()?.info.max_entries as usize))
    };
    files.filter_map(size).collect()
}

/// Removes what is pinned of units that are not to be pinned any more.
pub fn remove_other_pins() {
    let mut pins = held(&PINS);
    let Some(name) = pins.name.clone().filter(|_| pins.removes) else { return };
    if pins.states.is_empty() && !Path::new(MOUNT).join("corebcc").join(&name).exists() {
        return;
    }
    let Pins { store, states, .. } = &mut *pins;
    let Ok(store) = store.get_or_insert_with(|| Store::open(&name)) else { return };
    for (directory, unit) in store.units() {
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
    /// Finds the maps of a unit that an object has; those of another layout, or that are not complete, are discarded. `None`: nothing is
    /// pinned, and the unit's state says why.
    pub fn find(request: &PinRequest, object: &OpenObject) -> Option<Unit> {
        let PinRequest { unit, layout, maps } = request;
        let mut pins = held(&PINS);
        let Pins { name, store, states, users, ending, .. } = &mut *pins;
        let name = name.as_ref()?;
        let store = store.get_or_insert_with(|| Store::open(name));
        let state = states.entry(unit.clone()).or_default();
        if users.get(unit).is_some_and(|user| user.strong_count() > 0) {
            let why = "programs that were loaded before still count in the pinned maps, which the next start of the agent continues";
            state.say_not(unit, why);
            return None;
        }
        match store {
            Ok(store) => {
                store.end_all_programs(ending);
                let maps = MapShape::of(object, maps);
                let layout = maps.iter().fold(*layout, |layout, map| map.add_to(layout));
                Some(store.find(unit, layout, &maps, state))
            }
            Err(why) => {
                state.say_not(unit, &why.0);
                None
            }
        }
    }

    /// Puts the maps of an agent before in the place of those that an object would create.
    pub fn reuse(&self, object: &mut OpenObject) -> libbpf_rs::Result<()> {
        for mut map in object.maps_mut() {
            let pinned = self.found.get(&*map.name().to_string_lossy());
            pinned.map_or(Ok(()), |pinned| map.reuse_fd(pinned.as_fd()))?;
        }
        Ok(())
    }

    /// The names of its maps that have counts of an agent before.
    pub fn continued(&self) -> impl Iterator<Item = &String> {
        self.found.keys()
    }

    /// Pins its maps of a loaded object, unless they are pinned already. Nothing else uses them as long as the user lives.
    pub fn keep(self, object: &Object) -> Option<PinUser> {
        let continues = !self.found.is_empty();
        let pinned = if continues { Ok(()) } else { self.pin(object) };
        let mut pins = held(&PINS);
        let Pins { states, users, .. } = &mut *pins;
        let state = states.entry(self.name.clone()).or_default();
        if let Err(error) = pinned {
            let _ = remove(&self.directory);
            state.say_not(&self.name, &format!("{}: {error}", self.directory.display()));
            return None;
        }
        (state.since, state.is_pinned) = (self.since, true);
        state.status = match continues {
            true => "pinned; continues the counts of an agent before".into(),
            false => "pinned; counts from this load on".into(),
        };
        log::info!("{}: {}", self.name, state.status);
        let token = Arc::new(());
        users.insert(self.name.clone(), Arc::downgrade(&token));
        Some(PinUser { unit: self.name, directory: self.directory, _token: token })
    }

    fn pin(&self, object: &Object) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(&self.directory)?;
        for map in object.maps() {
            let name = map.name().to_string_lossy();
            if self.maps.iter().any(|own| *own == name) {
                pin(&self.directory.join(file_of(&name)), map.as_fd())?;
            }
        }
        Ok(())
    }
}

impl PinState {
    fn say_not(&mut self, unit: &str, why: &str) {
        self.status = format!("not pinned: {why}");
        (self.since, self.is_pinned) = (seconds_since_1970(), false);
        log::warn!("{unit}: {}", self.status);
    }
}

/// What the name of a unit's directory says.
struct Named {
    name: String,
    layout: Layout,
    since: u64,
}

impl Named {
    /// `UNIT-LAYOUT-SINCE`; dots are not allowed in names of a BPF file system.
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
    /// Opens the directory, and makes it if it is not there. The sentence of an error says what to do.
    fn open(name: &str) -> Result<Store, NotPinned> {
        let mount = Path::new(MOUNT);
        let kind = statfs(mount).map_err(|error| NotPinned::at(mount, error))?.filesystem_type();
        if kind != BPF_FS_MAGIC {
            return Err(NotPinned(format!(
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
        let used =
            |error| NotPinned::at(&path, format!("another agent uses it ({error}); stop that one and restart this"));
        let lock = locked(lock.map_err(|error| NotPinned::at(&path, error))?).map_err(used)?;
        Ok(Store { path, has_ended_programs: false, _lock: lock })
    }

    /// Once, when the agent is about to load its own: ends all programs of the agent before, since one can be that of several units.
    fn end_all_programs(&mut self, ending: &mut Vec<u32>) {
        if !std::mem::replace(&mut self.has_ended_programs, true) {
            self.units().iter().for_each(|(directory, _)| end_programs(directory, ending, |_| false));
        }
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
                return Unit { name: unit.into(), directory, since: named.since, maps: names(), found };
            }
            state.discarded += 1;
            let why =
                if named.layout == layout { "some are missing" } else { "their layout or options are others now" };
            let removed =
                remove(&directory).map_or_else(|error| format!("not removed: {error}"), |()| "removed".into());
            log::warn!("{unit}: pinned maps discarded, so counts begin at 0: {why}; {} {removed}", directory.display());
        }
        let named = Named { name: unit.into(), layout, since: seconds_since_1970() };
        let (directory, found) = (self.path.join(named.write()), BTreeMap::new());
        Unit { name: unit.into(), directory, since: named.since, maps: names(), found }
    }
}

/// All maps of a directory, if they are what is expected.
fn found(directory: &Path, maps: &[MapShape]) -> Option<BTreeMap<String, MapHandle>> {
    let open = |shape: &MapShape| {
        let map = MapHandle::from_pinned_path(directory.join(file_of(&shape.name))).ok()?;
        shape.is_of(&map).then(|| (shape.name.clone(), map))
    };
    maps.iter().map(open).collect()
}

/// The file that a map is pinned at.
fn file_of(map: &str) -> String {
    map.replace('.', ":")
}

/// Makes a directory that only root may use, or takes it if it is one.
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

/// Locks a directory. An agent that ends holds it a little longer.
fn locked(mut file: File) -> Result<Flock<File>, nix::Error> {
    let until = Instant::now() + PATIENCE;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((_, error)) if Instant::now() > until => return Err(error),
            Err((again, _)) => file = again,
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether what a link attaches stays when the process ends in order: closing a perf event's link switches the event off.
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

/// Ends the programs of a unit's directory, which an agent before or this one let run. Those that do not run for others are ending.
fn end_programs(directory: &Path, ending: &mut Vec<u32>, still_run: impl Fn(&str) -> bool) {
    for file in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = file.file_name();
        let Some(program) = name.to_str().and_then(|name| name.strip_prefix(PROGRAM)) else { continue };
        let link = Link::open(file.path()).and_then(|link| link.info()).map_err(io::Error::other);
        match link.and_then(|link| fs::remove_file(file.path()).map(|()| link.prog_id)) {
            Ok(number) if !still_run(program) => ending.push(number),
            Ok(_) => {}
            Err(error) => log::error!("{}: {error}: its counts are wrong; remove it", file.path().display()),
        }
    }
}

/// Whether the kernel has a program of this number.
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
