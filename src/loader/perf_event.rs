//! Perf events (`perf_event_open(2)`): the software CPU clock, which needs no hardware counters.

use super::refusal::Refusal;
use crate::host::cpus;
use crate::kit::Sampling;
use libbpf_rs::libbpf_sys::perf_event_attr;
use nix::libc;
use std::os::fd::{FromRawFd, OwnedFd};

/// Opens an event on each CPU, or on the requested one, disabled until a program is attached. Offline CPUs and unused
/// ids are skipped.
pub fn cpu_clock(sampling: Sampling) -> Result<Vec<OwnedFd>, Refusal> {
    let cpus = match sampling.cpu {
        Some(cpu) => cpu..cpu + 1,
        None => 0..cpus() as u32,
    };
    let mut events = Vec::new();
    let mut refused = None;
    for cpu in cpus {
        match open(sampling, cpu) {
            Ok(event) => events.push(event),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
            Err(error) => {
                let message = format!("perf_event_open on CPU {cpu}: {error}");
                refused = Some(Refusal::new(error.raw_os_error().unwrap_or(0), message));
            }
        }
    }
    match refused {
        Some(refused) if events.is_empty() => Err(refused),
        _ if events.is_empty() => Err(Refusal::missing("no CPU to sample on")),
        _ => Ok(events),
    }
}

fn open(sampling: Sampling, cpu: u32) -> std::io::Result<OwnedFd> {
    const SOFTWARE: u32 = 1;
    const CPU_CLOCK: u64 = 0;
    let mut attr = perf_event_attr { type_: SOFTWARE, config: CPU_CLOCK, ..Default::default() };
    // The union's two members share the word.
    attr.__bindgen_anon_1.sample_period = sampling.rate;
    attr.set_freq(u64::from(sampling.by_frequency));
    open_event(attr, -1, cpu as i32)
}

/// Opens an event of a process with all its threads on any CPU (-1), or of every process (-1) on a CPU. A kernel with
/// fewer attributes accepts them if the unknown ones are zero.
pub fn open_event(mut attr: perf_event_attr, process: i32, cpu: i32) -> std::io::Result<OwnedFd> {
    const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;
    attr.size = size_of::<perf_event_attr>() as u32;
    // SAFETY: the attributes are a whole `perf_event_attr` of the size they say, and outlive the call. What they point to is the
    // caller's, and the kernel copies it.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, std::ptr::from_ref(&attr), process, cpu, -1, PERF_FLAG_FD_CLOEXEC)
    };
    match i32::try_from(fd) {
        // SAFETY: the call has just made the descriptor, and nobody else knows it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(std::io::Error::last_os_error()),
    }
}
