//! Which capabilities modules need, and holding no others.

use crate::kit::{Need, Spec};
use caps::Capability::*;
use caps::{CapSet, Capability, CapsHashSet};
use nix::sys::prctl::set_no_new_privs;
use nix::unistd::{setfsgid, setfsuid, Gid, Uid};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The capabilities that a need comes to.
pub fn capabilities(need: Need) -> &'static [Capability] {
    match need {
        Need::Processes => &[CAP_SYS_PTRACE],
        // Following a link in /proc/PID/map_files takes CAP_CHECKPOINT_RESTORE (proc_map_files_get_link in fs/proc/base.c).
        Need::FilesOfProcesses => &[CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_CHECKPOINT_RESTORE],
        Need::Tracefs => &[CAP_DAC_READ_SEARCH],
        Need::KernelSymbols => &[CAP_SYSLOG],
        Need::PerfEvents => &[CAP_PERFMON],
        // Attaching later loads a copy of the program. Kernels that have "perf: Revert to requiring CAP_SYS_ADMIN for uprobes"
        // (6.17, and stable releases of others) take CAP_SYS_ADMIN for the probe.
        Need::UserProbes => &[CAP_PERFMON, CAP_SYS_ADMIN],
        Need::CgroupPrograms => &[CAP_NET_ADMIN],
    }
}

/// Returns the capabilities that loading and running these modules take.
pub fn to_load<'a>(specs: impl IntoIterator<Item = &'a Spec> + Clone) -> CapsHashSet {
    // CAP_SYS_RESOURCE lifts the limit of locked memory, which counts before Linux 5.11.
    let mut capabilities = to_run(specs.clone());
    capabilities.extend([bpf(CAP_PERFMON), CAP_SYS_RESOURCE]);
    capabilities.extend(perf_events_take());
    for spec in specs {
        capabilities.extend(spec.needs_to_load.iter().flat_map(|&need| self::capabilities(need)));
    }
    capabilities
}

/// Returns the capabilities that running these modules takes once they are loaded. Reading maps takes CAP_BPF before Linux 5.19, where
/// `kernel.unprivileged_bpf_disabled` is set.
pub fn to_run<'a>(specs: impl IntoIterator<Item = &'a Spec>) -> CapsHashSet {
    let mut capabilities = CapsHashSet::from([bpf(CAP_BPF)]);
    for need in specs.into_iter().flat_map(Spec::running_needs) {
        // Names and command lines are everybody's to read, if /proc does not hide them.
        if need != Need::Processes || hides_processes(&fs::read_to_string("/proc/mounts").unwrap_or_default()) {
            capabilities.extend(self::capabilities(need).iter().map(|&capability| bpf(capability)));
        }
        if need == Need::PerfEvents {
            capabilities.extend(perf_events_take());
        }
    }
    capabilities
}

/// Returns the capability that perf_event_open(2) takes besides CAP_PERFMON on this machine.
fn perf_events_take() -> Option<Capability> {
    let level = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    restricts_perf_events(&level).then_some(CAP_SYS_ADMIN)
}

/// True if perf_event_open(2) is for CAP_SYS_ADMIN only: kernels of Debian and Ubuntu have levels of `kernel.perf_event_paranoid`
/// above 2, of which Debian's is 3.
fn restricts_perf_events(level: &str) -> bool {
    level.trim().parse::<i32>().is_ok_and(|level| level > 2)
}

/// The capability, or CAP_SYS_ADMIN where the kernel has none of that name: CAP_BPF and CAP_PERFMON came with Linux 5.8,
/// CAP_CHECKPOINT_RESTORE with 5.9.
fn bpf(capability: Capability) -> Capability {
    match caps::has_cap(None, CapSet::Bounding, capability) {
        Ok(_) => capability,
        Err(_) => CAP_SYS_ADMIN,
    }
}

/// True if /proc shows each account its own processes only (the mount option `hidepid`, proc(5)), by the lines of /proc/mounts.
fn hides_processes(mounts: &str) -> bool {
    mounts.lines().any(|line| {
        let mut fields = line.split(' ');
        let (place, options) = (fields.nth(1), fields.nth(1));
        let hides = |option: &str| option.strip_prefix("hidepid=").is_some_and(|how| !["0", "off"].contains(&how));
        place == Some("/proc") && options.is_some_and(|options| options.split(',').any(hides))
    })
}

/// Makes sure that files can be replaced in these directories later, as a member of the directory's group if that will do. Yields the owner
/// and the group of the first for which it will not: a thread has to [`write_as`] them. In PCP's directories the account `pcp` and its group
/// may write.
pub fn to_write(directories: &[&Path]) -> Option<(Uid, Gid)> {
    let mut others = None;
    for directory in directories {
        let Ok(about) = fs::metadata(directory) else { continue };
        let (owner, group, mode) = (Uid::from_raw(about.uid()), Gid::from_raw(about.gid()), about.mode());
        let may = match () {
            () if owner == Uid::effective() => mode & 0o200 != 0,
            () if mode & 0o020 != 0 => join(group).is_ok(),
            () => mode & 0o002 != 0,
        };
        if !may {
            others = others.or(Some((owner, group)));
        }
    }
    others
}

/// Gives this thread, and no other one, the rights of an account to files. It stays root to signals and all else, so that the account gains
/// no hold on the agent.
pub fn write_as((owner, group): (Uid, Gid)) -> io::Result<()> {
    setfsgid(group);
    setfsuid(owner);
    // They yield what was before, and no error.
    match (setfsuid(owner), setfsgid(group)) == (owner, group) {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "cannot write files as uid {owner} and gid {group}: CAP_SETUID and CAP_SETGID"
        ))),
    }
}

/// Makes the process a member of a group. To be called before there is another thread.
fn join(group: Gid) -> nix::Result<()> {
    let mut groups = nix::unistd::getgroups()?;
    if group == Gid::effective() || groups.contains(&group) {
        return Ok(());
    }
    groups.push(group);
    nix::unistd::setgroups(&groups)
}

/// Limits this thread, and those that it starts, to these capabilities, as far as it has them, and gain none by executing a
/// program. Yields those that it holds.
pub fn hold(capabilities: &CapsHashSet) -> io::Result<CapsHashSet> {
    let limit = || -> Result<CapsHashSet, caps::errors::CapsError> {
        let permitted = caps::read(None, CapSet::Permitted)?;
        let kept: CapsHashSet = permitted.intersection(capabilities).copied().collect();
        // After a change of the account none is effective.
        caps::set(None, CapSet::Effective, &permitted)?;
        if permitted.contains(&CAP_SETPCAP) {
            for capability in caps::runtime::thread_all_supported().difference(&kept) {
                caps::drop(None, CapSet::Bounding, *capability)?;
            }
        }
        caps::clear(None, CapSet::Ambient)?;
        caps::clear(None, CapSet::Inheritable)?;
        caps::set(None, CapSet::Effective, &kept)?;
        caps::set(None, CapSet::Permitted, &kept)?;
        Ok(kept)
    };
    let kept = limit().map_err(|error| io::Error::other(error.to_string()))?;
    set_no_new_privs()?;
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::{find, MODULES};

    fn needed(module: &str) -> CapsHashSet {
        to_run(find(module))
    }

    #[test]
    fn a_module_keeps_what_it_does_later_takes() {
        assert_eq!(needed("sysfork"), CapsHashSet::from([CAP_BPF]));
        assert_eq!(needed("uprobe_hits"), CapsHashSet::from([CAP_BPF]), "its probes are attached as it is loaded");
        assert!(needed("ustat").is_superset(&CapsHashSet::from([CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN])));
        assert!(needed("profile").is_superset(&CapsHashSet::from([CAP_BPF, CAP_PERFMON, CAP_SYSLOG])));
        for spec in MODULES {
            assert!(to_load([*spec]).is_superset(&to_run([*spec])), "{}", spec.name);
        }
    }

    #[test]
    fn modules_with_the_option_process_look_at_processes() {
        for spec in MODULES {
            let filters = spec.section("").contains("process") || spec.options.iter().any(|o| o.name == "process");
            assert!(!filters || spec.running_needs().contains(&Need::Processes), "{}", spec.name);
        }
        assert!(find("tcplife").unwrap().running_needs().contains(&Need::Processes));
        assert!(find("sysfork").unwrap().running_needs().is_empty());
    }

    #[test]
    fn a_level_above_2_restricts_perf_events() {
        assert!(["3\n", "4\n"].iter().all(|level| restricts_perf_events(level)));
        assert!(["2\n", "-1\n", "", "x"].iter().all(|level| !restricts_perf_events(level)));
    }

    #[test]
    fn processes_are_hidden_where_proc_is_mounted_so() {
        assert!(!hides_processes("proc /proc proc rw,nosuid,nodev,noexec,relatime 0 0\n"));
        assert!(!hides_processes("proc /proc proc rw,hidepid=off 0 0\n"));
        assert!(!hides_processes("proc /mnt/proc proc rw,hidepid=2 0 0\n"));
        for how in ["1", "2", "noaccess", "invisible", "ptraceable"] {
            assert!(hides_processes(&format!("/dev/sda / ext4 rw 0 0\nproc /proc proc rw,hidepid={how},gid=4 0 0\n")));
        }
    }
}
