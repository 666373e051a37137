//! Control groups: mounts of their hierarchies, directories by id, and owners by path.

use super::processes::arguments;
use crate::kit::{written_out, SeriesLabel, SeriesLabels};
use nix::sys::stat::makedev;
use rustix::fs::{openat, Mode, OFlags};
use rustix::mount::{fsconfig_create, fsmount, fsopen, FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The source of cgroup ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// Hierarchy of cgroup v2, which contains every task.
    Unified,
    /// Hierarchy with the controller of block I/O: cgroup v2, or a hierarchy of v1 that still has it.
    BlockIo,
}

/// A mounted hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroups {
    mount: PathBuf,
    /// True for cgroup v1.
    pub is_v1: bool,
}

/// A cgroup: the inode number of its directory, which is its id in the kernel, and its path below the mount, `/` for
/// the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    /// Id.
    pub id: u64,
    /// Path: bytes chosen by the cgroup's creator.
    pub path: Vec<u8>,
}

/// A reason why there is no hierarchy.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum NoCgroups {
    /// Cgroup v2 is not mounted.
    #[error("cgroup v2 is not mounted: mount it (mount -t cgroup2 none /sys/fs/cgroup)")]
    Unified,
    /// No hierarchy has block I/O.
    #[error("no mounted hierarchy of cgroups has block I/O: boot a kernel with CONFIG_BLK_CGROUP, and mount cgroup v2 (mount -t cgroup2 none /sys/fs/cgroup)")]
    BlockIo,
}

/// Highest number of directories that a walk reads, in all and below one child of the root: the owner of a delegated
/// tree may create any number, and other cgroups must be found nevertheless.
const MOST: Bounds = Bounds { all: 1 << 17, of_each: 1 << 15 };
/// Longest name that is served in full, in bytes.
const LONGEST: usize = 255;

impl Cgroups {
    /// Finds the mounted hierarchy; an error names what is missing.
    pub fn of(controller: Controller) -> Result<Cgroups, NoCgroups> {
        let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
        let mounts = String::from_utf8_lossy(&mounts);
        let visible: Vec<&str> = mounts.lines().filter(|line| is_visible(line)).collect();
        Cgroups::among(&visible.join("\n"), controller, |mount| {
            fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default()
        })
    }

    fn among(mounts: &str, of: Controller, controllers: impl Fn(&Path) -> String) -> Result<Cgroups, NoCgroups> {
        let mounted = |wanted: &'static str| {
            mounts.lines().filter_map(move |line| {
                let (before, after) = line.split_once(" - ")?;
                let mut after = after.split(' ');
                let (kind, options) = (after.next()?, after.nth(1)?);
                let mount = PathBuf::from(before.split(' ').nth(4)?);
                (kind == wanted).then_some((mount, options))
            })
        };
        let unified = mounted("cgroup2").next().map(|(mount, _)| Cgroups { mount, is_v1: false });
        if of == Controller::Unified {
            return unified.ok_or(NoCgroups::Unified);
        }
        let has_io = |cgroups: &Cgroups| controllers(&cgroups.mount).split_whitespace().any(|name| name == "io");
        let v1 = || {
            let mut mounts =
                mounted("cgroup").filter(|(_, options)| options.split(',').any(|option| option == "blkio"));
            mounts.next().map(|(mount, _)| Cgroups { mount, is_v1: true })
        };
        unified.filter(has_io).or_else(v1).ok_or(NoCgroups::BlockIo)
    }

    /// Opens the root of cgroup v2. Every kernel with cgroups has it; where it is not mounted, a mount of its own is made that nobody
    /// sees and that ends with the descriptor (fsmount(2), Linux 5.2).
    pub fn open_root() -> io::Result<OwnedFd> {
        if let Ok(cgroups) = Cgroups::of(Controller::Unified) {
            return Ok(File::open(cgroups.mount)?.into());
        }
        let hierarchy = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&hierarchy)?;
        let mount = fsmount(&hierarchy, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        Ok(openat(mount, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Returns the mount point.
    pub fn mount(&self) -> &Path {
        &self.mount
    }

    /// Passes every cgroup to `each`, parents first.
    pub fn walk(&self, each: &mut dyn FnMut(Cgroup)) {
        walk_below(&self.mount, each);
    }

    /// True if this cgroup still exists, as opposed to another one with its name.
    pub fn is_there(&self, cgroup: &Cgroup) -> bool {
        fs::metadata(self.directory(&cgroup.path)).is_ok_and(|about| about.ino() == cgroup.id)
    }

    /// Returns the labels that follow from a path.
    pub fn labels(&self, path: &[u8]) -> SeriesLabels {
        labels(path, &|scope| self.guest(scope))
    }

    /// Returns the name of the virtual machine in this cgroup, from qemu's `-name guest=`.
    fn guest(&self, scope: &[u8]) -> Option<String> {
        ["cgroup.procs", "libvirt/cgroup.procs", "libvirt/emulator/cgroup.threads"].iter().find_map(|file| {
            let text = fs::read_to_string(self.directory(scope).join(file)).ok()?;
            text.lines().take(16).find_map(|line| guest_name(&arguments(line.parse().ok()?)?))
        })
    }

    /// Opens the directory of the cgroup with this path.
    pub fn open(&self, path: &[u8]) -> io::Result<File> {
        File::open(self.directory(path))
    }

    fn directory(&self, path: &[u8]) -> PathBuf {
        below(&self.mount, path)
    }
}

#[derive(Clone, Copy)]
struct Bounds {
    all: usize,
    of_each: usize,
}

/// Passes every cgroup of a mounted hierarchy to `each`, level by level from the root.
pub fn walk_below(mount: &Path, each: &mut dyn FnMut(Cgroup)) {
    walk_within(mount, MOST, each);
}

fn walk_within(mount: &Path, most: Bounds, each: &mut dyn FnMut(Cgroup)) {
    let Ok(root) = fs::metadata(mount) else { return };
    each(Cgroup { id: root.ino(), path: b"/".to_vec() });
    // Of each child of the root, how many more directories below it are looked at.
    let (mut left, mut of_each) = (most.all, Vec::new());
    let mut waiting = VecDeque::from([(Vec::new(), None)]);
    while let Some((parent, branch)) = waiting.pop_front() {
        if branch.is_some_and(|branch: usize| of_each[branch] == 0) {
            continue;
        }
        let children = fs::read_dir(below(mount, &parent)).into_iter().flatten().flatten();
        for child in children.filter(|child| child.file_type().is_ok_and(|kind| kind.is_dir())) {
            let branch = branch.unwrap_or_else(|| {
                of_each.push(most.of_each);
                of_each.len() - 1
            });
            if left == 0 || of_each[branch] == 0 {
                break;
            }
            left -= 1;
            of_each[branch] -= 1;
            let path = [&parent[..], b"/", &child.file_name().into_vec()].concat();
            each(Cgroup { id: child.ino(), path: path.clone() });
            waiting.push_back((path, Some(branch)));
        }
    }
}

/// Returns the directory of a cgroup.
fn below(mount: &Path, path: &[u8]) -> PathBuf {
    mount.join(Path::new(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path))))
}

/// True if the path of a mount in `/proc/self/mountinfo` leads to it; another mount may cover it.
fn is_visible(line: &str) -> bool {
    let mut fields = line.split(' ').skip(2);
    let (Some(device), Some(mount)) = (fields.next(), fields.nth(1)) else { return false };
    let number = device.split_once(':').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    number.is_some_and(|(major, minor)| fs::metadata(mount).is_ok_and(|about| about.dev() == makedev(major, minor)))
}

/// Returns the name of a cgroup's series: its path, in which bytes that clients of PCP cannot handle are escaped like
/// systemd's (`\x20`). Long names end with the cgroup's id.
pub fn series_name(cgroup: &Cgroup) -> Vec<u8> {
    let mut name = written_out(&cgroup.path, b" ,\"'");
    if name.len() > LONGEST {
        let end = format!("...{}", cgroup.id);
        name.truncate(LONGEST - end.len());
        name += &end;
    }
    name.into_bytes()
}

/// Directories of container engines that create cgroups without systemd.
const ENGINES: [&str; 3] = ["docker", "libpod_parent", "kubepods"];

/// Returns the labels of a cgroup by its path, as made by systemd, Docker, Podman, containerd, CRI-O, the kubelet and
/// libvirt. Only places where these create cgroups count: in a delegated tree, a service or a container, users choose
/// the names. `guest` returns a virtual machine's name from its scope.
pub(super) fn labels(path: &[u8], guest: &dyn Fn(&[u8]) -> Option<String>) -> SeriesLabels {
    let text = String::from_utf8_lossy(path);
    let parts: Vec<&str> = text.split('/').filter(|part| !part.is_empty()).collect();
    let (top, namespace) = (parts.first().copied().unwrap_or_default(), namespace(&parts));
    let is_manager = |part: &&str| part.starts_with("user@") && part.ends_with(".service");
    let depth = parts.iter().take_while(|part| part.ends_with(".slice") || is_manager(part)).count();
    // Slices, the managers of users among them, and what systemd runs there.
    let (slices, rest) = parts.split_at(depth);
    let own = rest.first().copied().filter(|_| depth > 0 || top == "init.scope");
    let is_unit =
        |part: &&str| [".service", ".scope", ".socket", ".mount", ".swap"].iter().any(|kind| part.ends_with(kind));
    let manager = || slices.iter().rfind(|part| is_manager(part)).or(slices.last()).copied();
    let payload = || {
        let part =
            rest.get(1).filter(|part| part.starts_with("libpod-payload-") || part.contains(":cri-containerd:"))?;
        own.filter(|own| own.ends_with(".service")).and_then(|_| container(part))
    };
    let container = match ENGINES.contains(&top) || namespace.is_some() {
        true => parts.iter().find_map(|part| container(part)),
        false => own.and_then(container).or_else(payload),
    };
    let pods = if top == "kubepods" { &parts } else { slices };
    let vm = own.and_then(machine).map(|name| {
        let scope = format!("/{}", parts[..=depth].join("/"));
        guest(scope.as_bytes()).unwrap_or(name)
    });
    let found = [
        // systemd puts a `_` before a name that would be taken for a file of the kernel's
        ("unit", own.filter(is_unit).or_else(manager).map(|unit| unit.strip_prefix('_').unwrap_or(unit).to_owned())),
        ("container", container.map(str::to_owned)),
        ("pod", pods.iter().find_map(|part| pod(part))),
        ("namespace", namespace.map(str::to_owned)),
        ("vm", vm),
    ];
    let found = found.into_iter().filter_map(|(label, value)| Some((label, SeriesLabel::Text(plain(&value?)))));
    [("cgroup", SeriesLabel::Text(plain(&text)))].into_iter().chain(found).collect()
}

fn plain(text: &str) -> String {
    let mut plain: String = text.chars().map(|c| if c.is_control() { '_' } else { c }).take(LONGEST).collect();
    plain.shrink_to_fit();
    plain
}

/// True for an id of a container or of a Podman pod.
fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns the id of a container: `docker-ID.scope`, `libpod-ID.scope`, `cri-containerd-ID.scope`, `crio-ID.scope`,
/// `libpod-ID`, `PREFIX:cri-containerd:ID` and plain `ID`; not the cgroup of the process that monitors a container
/// (conmon).
fn container(part: &str) -> Option<&str> {
    let part = part.strip_suffix(".scope").unwrap_or(part);
    let (before, id) = part.rsplit_once(['-', ':']).unwrap_or(("", part));
    (is_id(id) && !before.ends_with("conmon")).then_some(id)
}

/// Returns the id of a pod: `kubepods-burstable-podUID.slice` with `_` for `-`, `podUID`, and
/// `machine-libpod_pod_ID.slice` of Podman.
fn pod(part: &str) -> Option<String> {
    let name = part.strip_suffix(".slice").unwrap_or(part);
    if let Some((_, id)) = name.rsplit_once("libpod_pod_") {
        return is_id(id).then(|| id.to_owned());
    }
    let uid = name.rsplit('-').next().and_then(|last| last.strip_prefix("pod")).or_else(|| name.strip_prefix("pod"))?;
    let uid = uid.replace('_', "-");
    let digits = uid.bytes().filter(u8::is_ascii_hexdigit).count();
    (digits == 32 && uid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')).then_some(uid)
}

/// Returns the namespace of containerd, `/NAMESPACE/ID`, if it is one used by engines; the path of a pod's namespace
/// contains none.
fn namespace<'a>(parts: &[&'a str]) -> Option<&'a str> {
    match parts {
        [namespace, id] if is_id(id) && ["default", "k8s.io", "moby", "buildkit"].contains(namespace) => {
            Some(namespace)
        }
        _ => None,
    }
}

/// Returns the machine of `machine-qemu\x2d1\x2dNAME.scope`: systemd's name of a scope, from libvirt's driver, number
/// and name.
fn machine(part: &str) -> Option<String> {
    let name = unescaped(part.strip_prefix("machine-")?.strip_suffix(".scope")?);
    let (_, rest) = ["qemu-", "lxc-", "xen-"].iter().find_map(|driver| Some((driver, name.strip_prefix(driver)?)))?;
    let (number, name) = rest.split_once('-')?;
    (number.parse::<u32>().is_ok() && !name.is_empty()).then(|| name.to_owned())
}

/// Undoes systemd's escapes (`\x2d`).
fn unescaped(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, after @ ..] = rest {
        let byte = after
            .strip_prefix(b"x")
            .and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex.get(..2)?).ok()?, 16).ok());
        match (first, byte) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the name of the virtual machine that a process runs, from qemu's `-name guest=`.
pub fn guest_of(pid: u32) -> Option<String> {
    guest_name(&arguments(pid)?)
}

/// Returns NAME of `-name guest=NAME,...` or `-name NAME`, in a command line of NUL-terminated arguments; a comma in it
/// is doubled.
pub(super) fn guest_name(cmdline: &[u8]) -> Option<String> {
    let mut arguments = cmdline.split(|&byte| byte == 0);
    arguments.find(|&argument| argument == b"-name")?;
    let value = String::from_utf8_lossy(arguments.next()?).into_owned();
    let value = value.strip_prefix("guest=").unwrap_or(&value);
    let name = value.replace(",,", "\0");
    let name = name.split(',').next()?.replace('\0', ",");
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::{major, minor};

    const ID: &str = "4f0a3d9c1be2875604f0a3d9c1be2875604f0a3d9c1be2875604f0a3d9c1be28";
    const UID: &str = "0d4a9f6e-61a2-4f0b-9a3e-5a1c7f5e2b10";

    fn found(path: &str) -> Vec<(&'static str, String)> {
        let text = |label| if let SeriesLabel::Text(text) = label { text } else { panic!("{label:?}") };
        let all = labels(path.as_bytes(), &|_| None).into_iter().map(|(name, label)| (name, text(label)));
        let all: Vec<_> = all.collect();
        assert_eq!(all[0], ("cgroup", path.to_owned()));
        all[1..].to_vec()
    }

    #[track_caller]
    fn check(path: &str, expected: &[(&'static str, &str)]) {
        let expected: Vec<_> = expected.iter().map(|&(name, value)| (name, value.to_owned())).collect();
        assert_eq!(found(path), expected, "{path}");
    }

    #[test]
    fn many_cgroups_of_one_tree_hide_no_others() {
        let home = tempfile::tempdir().unwrap();
        for number in 0..100 {
            fs::create_dir_all(home.path().join(format!("user.slice/delegated/{number}/below"))).unwrap();
        }
        for path in ["system.slice/nginx.service/payload", "zone.slice/a.service/b/c/d"] {
            fs::create_dir_all(home.path().join(path)).unwrap();
        }
        let mut paths = Vec::new();
        walk_within(home.path(), Bounds { all: 60, of_each: 20 }, &mut |cgroup| {
            paths.push(String::from_utf8(cgroup.path).unwrap());
        });
        for path in ["/", "/user.slice/delegated", "/system.slice/nginx.service/payload", "/zone.slice/a.service/b/c/d"]
        {
            assert!(paths.iter().any(|known| known == path), "{path}: {paths:?}");
        }
        assert_eq!(paths.iter().filter(|path| path.starts_with("/user.slice")).count(), 20);
        assert!(paths.is_sorted_by_key(|path| path.trim_start_matches('/').split('/').count()), "{paths:?}");
        let mut count = 0;
        walk_within(home.path(), Bounds { all: 10, of_each: 20 }, &mut |_| count += 1);
        assert_eq!(count, 11, "and the root");
    }

    #[test]
    fn paths_of_systemd_tell_the_unit() {
        check("/", &[]);
        check("/system.slice", &[("unit", "system.slice")]);
        check("/system.slice/nginx.service", &[("unit", "nginx.service")]);
        check("/system.slice/system-getty.slice/getty@tty1.service", &[("unit", "getty@tty1.service")]);
        check("/user.slice/user-1000.slice/session-3.scope", &[("unit", "session-3.scope")]);
        check("/user.slice/user-1000.slice/user@1000.service/app.slice/dbus.service", &[("unit", "dbus.service")]);
        check("/system.slice/_cpu.service/payload", &[("unit", "cpu.service")]);
    }

    #[test]
    fn paths_of_engines_tell_the_container() {
        for (before, after) in
            [("/docker/", ""), ("/libpod_parent/libpod-", ""), ("/libpod_parent/libpod-", "/container")]
        {
            check(&format!("{before}{ID}{after}"), &[("container", ID)]);
        }
        for (slice, prefix) in [("system.slice", "docker-"), ("machine.slice", "libpod-"), ("system.slice", "nerdctl-")]
        {
            let scope = format!("{prefix}{ID}.scope");
            check(&format!("/{slice}/{scope}"), &[("unit", &scope), ("container", ID)]);
        }
        let (user, scope) = ("/user.slice/user-1000.slice/user@1000.service/user.slice", format!("libpod-{ID}.scope"));
        check(&format!("{user}/{scope}/container"), &[("unit", &scope), ("container", ID)]);
        check(&format!("/default/{ID}"), &[("container", ID), ("namespace", "default")]);
        let conmon = format!("libpod-conmon-{ID}.scope");
        check(&format!("/machine.slice/{conmon}"), &[("unit", &conmon)]);
        check("/docker/not-an-id", &[]);
    }

    #[test]
    fn names_in_trees_of_others_tell_nothing() {
        let scope = format!("docker-{ID}.scope");
        for path in ["/delegated", "/delegated/system.slice", "/delegated/docker", "/libpod"] {
            check(&format!("{path}/{scope}"), &[]);
            check(&format!("{path}/{ID}"), &[]);
            check(&format!("{path}/kubepods-pod{UID}.slice/{scope}"), &[]);
            check(&format!("{path}/nginx.service"), &[]);
            check(&format!("{path}/machine-qemu\\x2d1\\x2dweb.scope"), &[]);
        }
        let own = "/system.slice/own.service";
        for below in [&*scope, "nginx.service", "machine-qemu\\x2d1\\x2dweb.scope", &format!("docker/{ID}")] {
            check(&format!("{own}/{below}"), &[("unit", "own.service")]);
        }
        let other = ID.replace('4', "5");
        check(&format!("/docker/{ID}/docker/{other}"), &[("container", ID)]);
        check(&format!("/system.slice/{scope}/docker-{other}.scope"), &[("unit", &scope), ("container", ID)]);
        check(&format!("{own}/libpod-payload-{ID}"), &[("unit", "own.service"), ("container", ID)]);
        let manager = "/user.slice/user-1000.slice/user@1000.service";
        check(&format!("{manager}/app.slice"), &[("unit", "user@1000.service")]);
        check("/init.scope", &[("unit", "init.scope")]);
    }

    #[test]
    fn paths_of_kubernetes_tell_pod_and_container() {
        let uid = UID.replace('-', "_");
        for engine in ["cri-containerd", "crio", "docker"] {
            for (class, parent) in
                [("burstable-", "kubepods-burstable.slice/"), ("besteffort-", "kubepods-besteffort.slice/"), ("", "")]
            {
                let scope = format!("{engine}-{ID}.scope");
                let path = format!("/kubepods.slice/{parent}kubepods-{class}pod{uid}.slice/{scope}");
                check(&path, &[("unit", &scope), ("container", ID), ("pod", UID)]);
            }
        }
        check(&format!("/kubepods/burstable/pod{UID}/{ID}"), &[("container", ID), ("pod", UID)]);
        check(&format!("/kubepods/pod{UID}"), &[("pod", UID)]);
        let prefixed =
            format!("/system.slice/containerd.service/kubepods-burstable-pod{uid}.slice:cri-containerd:{ID}");
        assert!(found(&prefixed).contains(&("container", ID.to_owned())));
        let of_podman = format!("/machine.slice/machine-libpod_pod_{ID}.slice");
        check(&of_podman, &[("unit", &format!("machine-libpod_pod_{ID}.slice")), ("pod", ID)]);
    }

    #[test]
    fn paths_of_libvirt_tell_the_machine() {
        let scope = "machine-qemu\\x2d12\\x2dweb\\x2d01.scope";
        check(&format!("/machine.slice/{scope}"), &[("unit", scope), ("vm", "web-01")]);
        check(&format!("/machine.slice/{scope}/libvirt/vcpu0"), &[("unit", scope), ("vm", "web-01")]);
        let asked = std::cell::RefCell::new(Vec::new());
        let guest = |scope: &[u8]| {
            asked.borrow_mut().push(scope.to_vec());
            Some("Web 01".to_owned())
        };
        let path = format!("/machine.slice/{scope}/libvirt/emulator");
        assert!(labels(path.as_bytes(), &guest).contains(&("vm", SeriesLabel::Text("Web 01".into()))));
        assert_eq!(*asked.borrow(), [format!("/machine.slice/{scope}").into_bytes()]);
        check("/machine.slice/machine-other.scope", &[("unit", "machine-other.scope")]);
    }

    #[test]
    fn a_guest_has_the_name_of_its_command_line() {
        let name = |line: &str| guest_name(line.replace(' ', "\0").as_bytes());
        assert_eq!(name("qemu-system-x86_64 -name guest=web-01,debug-threads=on -S"), Some("web-01".into()));
        assert_eq!(name("qemu-kvm -name guest=a,,b"), Some("a,b".into()));
        assert_eq!(name("qemu-kvm -name old -m 1"), Some("old".into()));
        assert_eq!([name("qemu-kvm -name"), name("qemu-kvm -m 1"), name("")], [None, None, None]);
    }

    #[test]
    fn names_are_what_clients_can_take() {
        let name = |path: &[u8]| String::from_utf8(series_name(&Cgroup { id: 77, path: path.to_vec() })).unwrap();
        assert_eq!(name(b"/system.slice/system-getty.slice"), "/system.slice/system-getty.slice");
        assert_eq!(name(b"/a b,c\n\xff\"d"), "/a\\x20b\\x2cc\\x0a\\xff\\x22d");
        assert_eq!(name("/caf\u{e9}".as_bytes()), r"/caf\xc3\xa9");
        let long = name(&[b'\xff'; 4000]);
        assert!(long.len() <= LONGEST && long.ends_with("...77"), "{long}");
        let wide = name("\u{e9}".repeat(400).as_bytes());
        assert!(wide.len() <= LONGEST && wide.ends_with("...77"), "{wide}");
    }

    #[test]
    fn the_hierarchy_with_block_io_is_found() {
        let v1 = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                  38 31 0:35 / /sys/fs/cgroup/blkio rw,relatime - cgroup cgroup rw,blkio\n";
        let hybrid = format!("{v1}41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n");
        let unified = "41 31 0:38 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let of = |mounts: &str, controllers: &'static str, of| {
            Cgroups::among(mounts, of, |_| controllers.to_owned()).map(|found| (found.mount, found.is_v1))
        };
        let at = |mount: &str, is_v1| Ok((PathBuf::from(mount), is_v1));
        assert_eq!(of(unified, "cpuset cpu io memory\n", Controller::BlockIo), at("/sys/fs/cgroup", false));
        assert_eq!(of(unified, "cpuset cpu memory\n", Controller::BlockIo), Err(NoCgroups::BlockIo));
        assert_eq!(of(&hybrid, "hugetlb\n", Controller::BlockIo), at("/sys/fs/cgroup/blkio", true));
        assert_eq!(of(&hybrid, "hugetlb\n", Controller::Unified), at("/sys/fs/cgroup/unified", false));
        assert_eq!(of(v1, "", Controller::Unified), Err(NoCgroups::Unified));
        assert_eq!(of("", "", Controller::BlockIo), Err(NoCgroups::BlockIo));
    }

    #[test]
    fn a_mount_that_another_one_hides_is_passed_over() {
        let proc = fs::metadata("/proc").unwrap().dev();
        let line = |minor| format!("41 31 {}:{minor} / /proc rw - proc proc rw", major(proc));
        assert!(is_visible(&line(minor(proc))));
        assert!(
            !is_visible(&line(minor(proc) + 1)) && !is_visible(&line(minor(proc)).replace("/proc rw", "/nowhere rw"))
        );
        assert!(["", "41 31", "41 31 x / /proc rw"].iter().all(|line| !is_visible(line)));
    }

    #[test]
    fn a_walk_finds_each_directory_with_its_number() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("a/b")).unwrap();
        fs::write(root.path().join("a/file"), "").unwrap();
        let cgroups = Cgroups { mount: root.path().to_path_buf(), is_v1: false };
        let mut found = Vec::new();
        cgroups.walk(&mut |cgroup| found.push(cgroup));
        let paths: Vec<&[u8]> = found.iter().map(|cgroup| &cgroup.path[..]).collect();
        assert_eq!(paths, [&b"/"[..], b"/a", b"/a/b"]);
        assert!(found.iter().all(|cgroup| cgroups.is_there(cgroup)));
        fs::remove_dir(root.path().join("a/b")).unwrap();
        assert!(!cgroups.is_there(&found[2]));
        assert!(!cgroups.is_there(&Cgroup { id: 1, ..found[1].clone() }), "another one of its name");
    }
}
