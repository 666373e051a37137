//! Templates and their targets: for each target the loader copies the template's program with the target's number
//! written into it, and attaches the copy. With attach cookies (`bpf_get_attach_cookie`) one program would do, but they
//! came with 5.15 for perf events and with 6.10 for raw tracepoints, and do not exist for fexit.

use super::btf::{Function, KernelTypes};
use super::immediate::LOAD_64;
use super::perf_event::open_event;
use super::program::{load_code, owned};
use super::refusal::Refusal;
use super::relocated::{Code, Relocated};
use crate::host::{Cgroups, NoCgroups, TRACEFS};
use crate::kit::Target;
use libbpf_rs::libbpf_sys::{self, perf_event_attr};
use nix::libc;
use std::collections::btree_map::{BTreeMap, Entry};
use std::ffi::{CString, OsStr};
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// Two halves of the constant in the templates (`TARGET` in bpf/shared/probe.bpf.h).
const MARK: [i32; 2] = [0x6574_2121, 0x7461_7267];

/// An attachment, which ends when this is dropped.
pub type Attached = OwnedFd;

/// Copies of templates by name of the program, number written into it, and function: targets with the same number share
/// a program.
pub type Copies = BTreeMap<(String, u64, Option<u32>), OwnedFd>;

/// Copies a template with this number, and attaches the copy to a target. The kind of the program (`each_raw`, ...) is
/// the first part of its name.
pub fn attach(
    object: &Relocated,
    template: &Code,
    target: &Target,
    number: u32,
    btf: &KernelTypes,
    copies: &mut Copies,
) -> Result<Attached, Refusal> {
    let name = template.name.clone();
    let kind = name.split("__").next().unwrap_or_default();
    let point = match (kind, target) {
        ("each_raw", Target::Tracepoint { event, .. }) => AttachPoint::Raw(event),
        ("each_event", Target::Tracepoint { category, event }) => {
            AttachPoint::Perf(Event::tracepoint(category, event)?)
        }
        ("each_fentry" | "each_fexit", Target::Function(_)) => AttachPoint::Typed,
        ("each_kprobe", Target::Function(function)) => {
            AttachPoint::Perf(Event::probe("kprobe", false, OsStr::new(function), 0)?)
        }
        ("each_kretprobe", Target::Function(function)) => {
            AttachPoint::Perf(Event::probe("kprobe", true, OsStr::new(function), 0)?)
        }
        ("each_uretprobe", Target::Code { path, offset, process, .. }) => {
            let mut event = Event::probe("uprobe", true, path.as_os_str(), *offset)?;
            event.process = *process;
            AttachPoint::Perf(event)
        }
        ("each_uprobe", Target::Code { path, offset, semaphore, process, .. }) => {
            let mut event = Event::probe("uprobe", false, path.as_os_str(), *offset)?;
            event.count_users(*semaphore)?;
            event.process = *process;
            AttachPoint::Perf(event)
        }
        _ => return Err(Refusal::new(libc::EINVAL, format!("{name} is no program for {target}"))),
    };
    let function = match target {
        Target::Function(function) => btf.function(function),
        _ => None,
    };
    let bits = match target {
        Target::Function(_) => function.map_or(64, |function| function.bits),
        _ => 0,
    };
    if matches!(point, AttachPoint::Typed) && function.is_none() {
        return Err(Refusal::missing("the function is not in the BTF of the kernel"));
    }
    let typed = function.filter(|_| matches!(point, AttachPoint::Typed));
    let number = u64::from(number) | u64::from(bits) << 32;
    let program = match copies.entry((name, number, typed.map(|function| function.id))) {
        Entry::Occupied(copy) => copy.into_mut(),
        Entry::Vacant(point) => point.insert(copy(object, template, number, typed)?),
    };
    point.attach(program)
}

/// Attaches a program to the target in its section.
pub fn attach_named(program: &Code, fd: &OwnedFd) -> Result<Attached, Refusal> {
    let point = match program.section() {
        ("tp_btf" | "fentry" | "fexit", _) => AttachPoint::Typed,
        ("raw_tp", event) => AttachPoint::Raw(event),
        ("cgroup_skb", _) => AttachPoint::Cgroups(program.attach),
        ("iter", _) => AttachPoint::Iterator,
        (kind @ ("kprobe" | "kretprobe"), function) => {
            AttachPoint::Perf(Event::probe("kprobe", kind == "kretprobe", OsStr::new(function), 0)?)
        }
        (kind, _) => return Err(Refusal::new(libc::EINVAL, format!("{kind} is no way to attach"))),
    };
    point.attach(fd)
}

enum AttachPoint<'a> {
    Raw(&'a str),
    /// The function or tracepoint that the program was loaded for.
    Typed,
    Perf(Event),
    /// Nowhere: the program runs when the iterator is read.
    Iterator,
    /// All cgroups of v2, with this kind of attachment.
    Cgroups(libbpf_sys::bpf_attach_type),
}

impl AttachPoint<'_> {
    fn attach(self, program: &OwnedFd) -> Result<Attached, Refusal> {
        match self {
            AttachPoint::Raw(event) => raw(Some(event), program),
            AttachPoint::Typed => raw(None, program),
            AttachPoint::Perf(event) => event.open(program),
            AttachPoint::Cgroups(kind) => at_root(kind, program),
            AttachPoint::Iterator => iterator(program),
        }
    }
}

/// Loads a template's program with `number` in place of the mark; `function` is for fentry and fexit.
fn copy(object: &Relocated, template: &Code, number: u64, function: Option<&Function>) -> Result<OwnedFd, Refusal> {
    let mut code = template.insns.clone();
    let halves = [number as i32, (number >> 32) as i32];
    let mut found = false;
    for i in 1..code.len() {
        if code[i - 1].code == LOAD_64 && [code[i - 1].imm, code[i].imm] == MARK {
            (code[i - 1].imm, code[i].imm) = (halves[0], halves[1]);
            found = true;
        }
    }
    if !found {
        let message = format!("{} does not use the number of its target", template.name);
        return Err(Refusal::new(libc::EINVAL, message));
    }
    load_code(object, template, code, function)
}

/// Attaches to a raw tracepoint by name, or to the function that a trampoline program was loaded for.
fn raw(event: Option<&str>, program: &OwnedFd) -> Result<OwnedFd, Refusal> {
    let event = event.map(terminated).transpose()?;
    let name = event.as_ref().map_or(std::ptr::null(), |event| event.as_ptr());
    // SAFETY: `name` is null or a string that ends in NUL and lives until the call returns.
    let fd = unsafe { libbpf_sys::bpf_raw_tracepoint_open(name, program.as_raw_fd()) };
    owned(fd).map_err(|error| match (error.raw_os_error(), event.is_some()) {
        (Some(libc::ENOENT), true) => Refusal::missing("the kernel has no tracepoint of this name"),
        _ => Refusal::from(error),
    })
}

/// Attaches to the root of cgroup v2, beside the programs that others have there.
fn at_root(kind: libbpf_sys::bpf_attach_type, program: &OwnedFd) -> Result<OwnedFd, Refusal> {
    let root = Cgroups::open_root().map_err(|error| Refusal::missing(format!("{} ({error})", NoCgroups::Unified)))?;
    // SAFETY: both descriptors are open during the call, and there are no options.
    let fd = unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), root.as_raw_fd(), kind, std::ptr::null()) };
    Ok(owned(fd)?)
}

/// Makes an iterator's program ready to be read (`bpf_iter_create`).
fn iterator(program: &OwnedFd) -> Result<OwnedFd, Refusal> {
    // SAFETY: the descriptor is open during the call, and there are neither target nor options.
    let fd =
        unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), 0, libbpf_sys::BPF_TRACE_ITER, std::ptr::null()) };
    Ok(owned(fd)?)
}

struct Event {
    attr: perf_event_attr,
    /// Name that `config1` points to, for probes.
    name: Option<CString>,
    /// Process to count in; `None` for all.
    process: Option<u32>,
}

impl Event {
    const TRACEPOINT: u32 = 2;

    fn tracepoint(category: &str, event: &str) -> Result<Event, Refusal> {
        let file = TRACEFS
            .iter()
            .map(|root| format!("{root}/events/{category}/{event}/id"))
            .find(|file| fs::metadata(file).is_ok())
            .ok_or_else(|| Refusal::missing("tracefs does not have it"))?;
        let id = number(&file)?;
        let attr = perf_event_attr { type_: Event::TRACEPOINT, config: id, ..Default::default() };
        Ok(Event { attr, name: None, process: None })
    }

    /// Makes a probe (`kernel/events/core.c`, perf_kprobe and perf_uprobe, 4.17).
    fn probe(kind: &str, at_return: bool, name: &OsStr, offset: u64) -> Result<Event, Refusal> {
        let ty = probe_type(kind)?;
        let mut config = 0;
        if at_return {
            let format = fs::read_to_string(format!("{DEVICES}/{kind}/format/retprobe")).unwrap_or_default();
            let bit = format.trim().strip_prefix("config:").and_then(|bit| bit.parse::<u32>().ok()).unwrap_or(0);
            config = 1 << bit.min(63);
        }
        let name = terminated(name.as_bytes())?;
        let mut attr = perf_event_attr { type_: ty as u32, config, ..Default::default() };
        attr.__bindgen_anon_4.config2 = offset;
        Ok(Event { attr, name: Some(name), process: None })
    }

    /// Makes the kernel count the users of a probe in the semaphore at this offset in its file.
    fn count_users(&mut self, semaphore: u64) -> Result<(), Refusal> {
        if semaphore != 0 {
            let format = fs::read_to_string("/sys/bus/event_source/devices/uprobe/format/ref_ctr_offset");
            self.attr.config |= semaphore_bits(semaphore, &format.unwrap_or_default())?;
        }
        Ok(())
    }

    fn open(mut self, program: &OwnedFd) -> Result<OwnedFd, Refusal> {
        if let Some(name) = &self.name {
            self.attr.__bindgen_anon_3.config1 = name.as_ptr() as u64;
        }
        // One process, with all its threads, on any CPU; or every process, CPU 0: what has a program runs on all CPUs.
        let (process, cpu) = self.process.map_or((-1, 0), |process| (process as i32, -1));
        let event = open_event(self.attr, process, cpu)?;
        run_at(&event, program)?;
        Ok(event)
    }
}

/// Directory of the kernel's kinds of perf events.
const DEVICES: &str = "/sys/bus/event_source/devices";

/// Returns the type of perf events that are kprobes or uprobes.
fn probe_type(kind: &str) -> Result<u64, Refusal> {
    let none = |_| Refusal::new(libc::ENODEV, format!("the kernel has no {kind}s"));
    number(&format!("{DEVICES}/{kind}/type")).map_err(none)
}

/// Returns an error with the reason if the kernel has no kprobes.
pub fn kprobes() -> Result<(), Refusal> {
    probe_type("kprobe").map(drop)
}

/// Returns the bits of `config` for a semaphore; `format` names the bits, if the kernel supports semaphores.
fn semaphore_bits(semaphore: u64, format: &str) -> Result<u64, Refusal> {
    let first: Option<u32> =
        format.trim().strip_prefix("config:").and_then(|bits| bits.split('-').next()?.parse().ok());
    let first = first
        .ok_or_else(|| Refusal::unsupported("the kernel does not count the users of probes (it needs Linux 4.20)"))?;
    let bits = semaphore.checked_shl(first).filter(|bits| bits >> first == semaphore);
    bits.ok_or_else(|| Refusal::missing("the probe's semaphore is too far into the file"))
}

/// Runs a program at a perf event.
pub fn run_at(event: &OwnedFd, program: &OwnedFd) -> std::io::Result<()> {
    /// `PERF_EVENT_IOC_SET_BPF` and `PERF_EVENT_IOC_ENABLE` of linux/perf_event.h.
    const SET_BPF: libc::c_ulong = 0x4004_2408;
    const ENABLE: libc::c_ulong = 0x2400;
    // SAFETY: two calls with integers, on descriptors that are open.
    let failed = unsafe {
        libc::ioctl(event.as_raw_fd(), SET_BPF as _, program.as_raw_fd()) < 0
            || libc::ioctl(event.as_raw_fd(), ENABLE as _, 0) < 0
    };
    if failed {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

fn number(file: &str) -> Result<u64, Refusal> {
    let unread = |error: std::io::Error| Refusal::new(error.raw_os_error().unwrap_or(0), format!("{file}: {error}"));
    let text = fs::read_to_string(file).map_err(unread)?;
    let expected = |_| Refusal::new(libc::EINVAL, format!("{file}: expected a number, got `{}`", text.trim()));
    text.trim().parse().map_err(expected)
}

fn terminated(name: impl Into<Vec<u8>>) -> Result<CString, Refusal> {
    CString::new(name).map_err(|_| Refusal::new(libc::EINVAL, "a name with a NUL"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_counts_no_users_of_probes_refuses_them() {
        let errno = |semaphore, format| semaphore_bits(semaphore, format).map_err(|refusal| refusal.errno);
        assert_eq!(errno(5, "config:32-63\n"), Ok(5 << 32));
        assert_eq!(errno(5, ""), Err(libc::EOPNOTSUPP));
        assert_eq!(errno(1 << 32, "config:32-63\n"), Err(libc::ENOENT), "it says nothing of other probes");
    }
}
