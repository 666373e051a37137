//! Names for numbers that programs report: disks, interfaces, cgroups, kernel symbols, PCI devices. A list is read at the first use,
//! and again after a while, so that a device that takes over the number of another gets its own name.

use crate::host::{walk_below, NamesByAddress};
use crate::modules::system_calls;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time for which a list of names is used.
const FRESH: Duration = Duration::from_secs(1);
/// Time for which the list of kernel symbols is used: it takes long to read, and only changes with kernel modules.
const SYMBOLS_FRESH: Duration = Duration::from_secs(60);
/// Largest number of cgroups whose names are kept after they are gone.
const REMEMBERED: usize = 10_000;

/// The names of a machine.
pub struct Names {
    root: PathBuf,
    disks: Kept<HashMap<(u32, u32), String>>,
    interfaces: Kept<HashMap<u32, String>>,
    cgroups: HashMap<u64, String>,
    cgroups_read: Option<Instant>,
    symbols: Kept<NamesByAddress>,
    system_calls: Vec<Option<&'static str>>,
    pci: Option<Option<Pci>>,
}

impl Default for Names {
    fn default() -> Names {
        Names::below(Path::new("/"))
    }
}

impl Names {
    /// Makes the names of a machine whose files are below a directory.
    pub fn below(root: &Path) -> Names {
        Names {
            root: root.into(),
            disks: Kept::default(),
            interfaces: Kept::default(),
            cgroups: HashMap::new(),
            cgroups_read: None,
            symbols: Kept::default(),
            system_calls: Vec::new(),
            pci: None,
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// Returns the name of the disk or partition with this number.
    pub fn disk(&mut self, major: u32, minor: u32) -> Option<&str> {
        let file = self.path("proc/partitions");
        self.disks
            .read(FRESH, || partitions(&fs::read_to_string(file).unwrap_or_default()))
            .get(&(major, minor))
            .map(|name| &**name)
    }

    /// Returns the name of the network interface with this index.
    pub fn interface(&mut self, index: u32) -> Option<&str> {
        let directory = self.path("sys/class/net");
        let read = || {
            let entries = fs::read_dir(directory).into_iter().flatten().flatten();
            let named = entries.filter_map(|entry| {
                let index = fs::read_to_string(entry.path().join("ifindex")).ok()?.trim().parse().ok()?;
                Some((index, entry.file_name().to_string_lossy().into_owned()))
            });
            named.collect()
        };
        self.interfaces.read(FRESH, read).get(&index).map(|name| &**name)
    }

    /// Returns the path of a cgroup, with the mount point. A cgroup that is gone keeps its name for a while.
    pub fn cgroup(&mut self, id: u64) -> Option<&str> {
        let is_old = self.cgroups_read.is_none_or(|read| read.elapsed() >= FRESH);
        if is_old && !self.cgroups.contains_key(&id) {
            if self.cgroups.len() > REMEMBERED {
                self.cgroups.clear();
            }
            let mount = self.path("sys/fs/cgroup");
            cgroups(&mount, &self.root, &mut self.cgroups);
            self.cgroups_read = Some(Instant::now());
        }
        self.cgroups.get(&id).map(|path| &**path)
    }

    /// Returns the kernel symbol that begins at an address.
    pub fn symbol(&mut self, address: u64) -> Option<&str> {
        let (start, name, _) = self.symbols().at(address)?;
        (start == address).then_some(name)
    }

    /// Returns the kernel symbol that contains an address.
    pub fn symbol_around(&mut self, address: u64) -> Option<&str> {
        self.symbols().at(address).map(|(_, name, _)| name)
    }

    fn symbols(&mut self) -> &NamesByAddress {
        let file = self.path("proc/kallsyms");
        self.symbols
            .read(SYMBOLS_FRESH, || fs::File::open(file).map(|file| symbols(BufReader::new(file))).unwrap_or_default())
    }

    /// Returns the kernel's name of the system call with this number.
    pub fn system_call(&mut self, number: u64) -> Option<&'static str> {
        if self.system_calls.is_empty() {
            self.system_calls = system_calls();
        }
        let name = (*self.system_calls.get(usize::try_from(number).ok()?)?)?;
        Some(match name {
            "pread" => "pread64",
            "pwrite" => "pwrite64",
            name => name,
        })
    }

    /// Returns the database of PCI identifiers; `None` if the machine has none.
    pub fn pci(&mut self) -> Option<&Pci> {
        let files = ["usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids"].map(|file| self.path(file));
        let read = || {
            files.iter().find_map(|file| fs::read(file).ok()).map(|bytes| Pci::read(&String::from_utf8_lossy(&bytes)))
        };
        self.pci.get_or_insert_with(read).as_ref()
    }
}

/// A value that was read, and the time of reading.
struct Kept<T>(Option<(Instant, T)>);

impl<T> Default for Kept<T> {
    fn default() -> Kept<T> {
        Kept(None)
    }
}

impl<T> Kept<T> {
    fn read(&mut self, fresh: Duration, read: impl FnOnce() -> T) -> &T {
        let kept = self.0.take().filter(|(at, _)| at.elapsed() < fresh);
        &self.0.insert(kept.unwrap_or_else(|| (Instant::now(), read()))).1
    }
}

/// Parses /proc/partitions, which has lines as `   8        1  1048576 sda1`.
fn partitions(text: &str) -> HashMap<(u32, u32), String> {
    let disk = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let number = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some((number, words.nth(1)?.to_owned()))
    };
    text.lines().filter_map(disk).collect()
}

/// Adds the directories below a mount point by their inode numbers, which are the identifiers of cgroups.
fn cgroups(mount: &Path, root: &Path, out: &mut HashMap<u64, String>) {
    let shown = |path: &Path| Path::new("/").join(path.strip_prefix(root).unwrap_or(path));
    walk_below(mount, &mut |cgroup| {
        let path = match &cgroup.path[..] {
            b"/" => mount.to_path_buf(),
            path => mount.join(Path::new(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path)))),
        };
        out.insert(cgroup.id, shown(&path).to_string_lossy().into_owned());
    });
}

/// Reads the kernel's symbols. The name of one in a module is followed by a tab and `[MODULE]`.
fn symbols(kallsyms: impl BufRead) -> NamesByAddress {
    NamesByAddress::read(kallsyms, |symbol, names| {
        names.push_str(symbol.name);
        symbol.module.iter().for_each(|module| names.extend(["\t", module]));
        true
    })
}

/// Names of PCI vendors, devices and classes (`pci.ids`).
#[derive(Default)]
pub struct Pci {
    vendors: HashMap<u32, String>,
    devices: HashMap<(u32, u32), String>,
    classes: HashMap<u32, String>,
    subclasses: HashMap<(u32, u32), String>,
}

impl Pci {
    /// Parses pci.ids: `8086  Intel Corporation`, below it `\t1237  440FX`; `C 01  Mass storage controller`, below it `\t06  SATA
    /// controller`.
    fn read(text: &str) -> Pci {
        let mut pci = Pci::default();
        let (mut above, mut is_class) = (None, false);
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.starts_with("\t\t")) {
            let entry = |text: &str| {
                let (number, name) = text.split_once("  ")?;
                Some((u32::from_str_radix(number, 16).ok()?, name.trim().to_owned()))
            };
            if let Some(below) = line.strip_prefix('\t') {
                let (Some(above), Some((number, name))) = (above, entry(below)) else { continue };
                let names = if is_class { &mut pci.subclasses } else { &mut pci.devices };
                names.insert((above, number), name);
            } else {
                let class = line.strip_prefix("C ");
                is_class = class.is_some();
                let found = entry(class.unwrap_or(line));
                above = found.as_ref().map(|(number, _)| *number);
                let names = if is_class { &mut pci.classes } else { &mut pci.vendors };
                names.extend(found);
            }
        }
        pci
    }

    /// Returns the vendor with this number.
    pub fn vendor(&self, number: u32) -> Option<&str> {
        self.vendors.get(&number).map(|name| &**name)
    }

    /// Returns the device of a vendor.
    pub fn device(&self, vendor: u32, number: u32) -> Option<&str> {
        self.devices.get(&(vendor, number)).map(|name| &**name)
    }

    /// Returns the class with this number.
    pub fn class(&self, number: u32) -> Option<&str> {
        self.classes.get(&number).map(|name| &**name)
    }

    /// Returns the subclass of a class.
    pub fn subclass(&self, class: u32, number: u32) -> Option<&str> {
        self.subclasses.get(&(class, number)).map(|name| &**name)
    }
}
