//! Reasons why a pair or one of its programs cannot be loaded or attached, and remedies, where libbpf reports only the
//! failure.

use super::permission::Privileges;
use super::refusal::{chain, errno, listening, Refusal};
use super::template::kprobes;
use crate::host::tracefs;
use libbpf_rs::Link;

/// Sections of programs attached by kprobes.
const KPROBES: [&str; 7] =
    ["kprobe", "kretprobe", "kprobe.multi", "kretprobe.multi", "kprobe.session", "ksyscall", "kretsyscall"];

/// Sections of programs attached to functions by trampolines.
const FUNCTIONS: [&str; 5] = ["fentry", "fentry.s", "fexit", "fexit.s", "fmod_ret"];

/// Facilities of this kernel for attaching programs.
pub struct Ways {
    /// True if it has kprobes.
    pub kprobes: bool,
    /// True if tracefs is mounted.
    pub tracefs: bool,
    /// Release of the kernel.
    pub release: String,
}

impl Ways {
    /// Reads the facilities of the running kernel.
    pub fn read() -> Ways {
        let release = nix::sys::utsname::uname().map(|names| names.release().to_string_lossy().into_owned());
        Ways { kprobes: kprobes().is_ok(), tracefs: tracefs().is_some(), release: release.unwrap_or_default() }
    }

    /// Replaces the message of a program's refusal with one that names a remedy, if known.
    pub fn advised(&self, section: &str, refusal: Refusal) -> Refusal {
        match self.advice(section.trim_start_matches('?'), &refusal.message) {
            Some(message) => Refusal { message, ..refusal },
            None => refusal,
        }
    }

    fn advice(&self, section: &str, said: &str) -> Option<String> {
        let (kind, place) = section.split_once('/').unwrap_or((section, ""));
        if KPROBES.contains(&kind) && !self.kprobes {
            return Some(
                "this kernel has no kprobes: use a kernel built with CONFIG_KPROBES and CONFIG_KPROBE_EVENTS, or attach the program \
                 to a tracepoint (tp_btf/NAME, raw_tp/NAME)"
                    .into(),
            );
        }
        if said.contains("failed to find kernel BTF type ID") {
            let what = if kind == "tp_btf" { "tracepoint" } else { "function" };
            return Some(format!("the kernel has no {what} {place} in its BTF"));
        }
        if let (true, Some((_, why))) = (FUNCTIONS.contains(&kind), said.split_once("failed to load: -EPERM")) {
            return Some(format!(
                "the kernel refuses programs at functions (fentry, fexit), as a security module or another policy of the machine can: attach \
                 the program to a tracepoint (tp_btf/NAME, raw_tp/NAME){why}"
            ));
        }
        if said.contains("failed to determine tracepoint") {
            let name = place.rsplit('/').next().unwrap_or(place);
            return Some(match self.tracefs {
                true => format!("the kernel has no tracepoint {place}"),
                false => format!(
                    "tracefs is not mounted: `mount -t tracefs tracefs /sys/kernel/tracing`, or attach the program to raw_tp/{name}, which \
                     needs no tracefs"
                ),
            });
        }
        if said.contains("attaching to shared libraries without specific PID") {
            return Some(format!(
                "USDT probes of a shared library need Linux 5.15, and this kernel is {}: use a later kernel, a USDT probe of a program, or \
                 a function of the library (uprobe/LIBRARY:FUNCTION)",
                self.release
            ));
        }
        if let Some((_, file)) = said.split_once("unrecognized ELF kind 0 for '") {
            let file = file.split('\'').next().unwrap_or(file);
            return Some(format!(
                "{file} is no ELF file, but perhaps a script that starts the program: give the path of the program itself in the section"
            ));
        }
        None
    }
}

/// Replaces the message of an object's refusal with one that names a remedy, if known.
pub fn advised(refusal: Refusal) -> Refusal {
    let function =
        refusal.message.split_once("failed to find BTF for extern '").and_then(|(_, name)| name.split_once('\''));
    let Some((function, _)) = function else { return refusal };
    let message = format!(
        "it calls {function}, which is in no program of the object and is no function of the kernel for programs; if clang put the call in \
         for __builtin_{function}, use clang 15 or later, or a loop"
    );
    Refusal { message, ..refusal }
}

/// Completes a refusal with the missing privileges of this process that explain it.
pub fn explained(refusal: Refusal, error: &libbpf_rs::Error) -> Refusal {
    let message = match refusal.message.is_empty() {
        true => chain(error),
        false => refusal.message.clone(),
    };
    let privileges = Privileges::read().explains(&refusal);
    Refusal { message: privileges.map_or(message.clone(), |why| format!("{message}; {why}")), ..refusal }
}

/// Attaches a program; an error has libbpf's messages.
pub fn listened(attach: impl FnOnce() -> libbpf_rs::Result<Link>) -> Result<Link, Refusal> {
    let (attached, said) = listening(attach);
    attached.map_err(|error| explained(Refusal::read(&said, errno(&error)), &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(kprobes: bool, tracefs: bool, section: &str, words: &str) -> String {
        let ways = Ways { kprobes, tracefs, release: "5.10.0-31".into() };
        ways.advised(section, Refusal::new(2, words)).message
    }

    #[test]
    fn a_refused_hook_says_what_to_do() {
        for section in ["kprobe/vfs_read", "?kretprobe/vfs_read", "kprobe.multi/vfs_*", "ksyscall/read"] {
            let words = said(false, true, section, "failed to create kprobe 'vfs_read+0x0' perf event: -ENOENT");
            assert!(words.contains("CONFIG_KPROBES") && words.contains("tp_btf/NAME"), "{section}: {words}");
        }
        assert_eq!(said(true, true, "kprobe/nothing", "no such function"), "no such function");
        assert_eq!(said(false, true, "raw_tp/x", "no such tracepoint"), "no such tracepoint");
        let undetermined = "failed to determine tracepoint 'sched/sched_migrate_task' perf event ID: -ENOENT";
        let words = said(true, false, "tracepoint/sched/sched_migrate_task", undetermined);
        assert!(words.contains("mount -t tracefs") && words.contains("raw_tp/sched_migrate_task"), "{words}");
        let words = said(true, true, "tp/sched/sched_migrate_task", undetermined);
        assert_eq!(words, "the kernel has no tracepoint sched/sched_migrate_task");
        let unknown = "prog 'p': failed to find kernel BTF type ID of 'gone': -ESRCH";
        assert_eq!(said(true, true, "fentry/gone", unknown), "the kernel has no function gone in its BTF");
        assert_eq!(said(true, true, "tp_btf/gone", unknown), "the kernel has no tracepoint gone in its BTF");
        let denied = "prog 'p': BPF program load failed: -EPERM; prog 'p': failed to load: -EPERM; it lacks CAP_BPF";
        let words = said(true, true, "fexit/vfs_read", denied);
        assert!(words.contains("tp_btf/NAME") && words.ends_with("; it lacks CAP_BPF"), "{words}");
        assert_eq!(said(true, true, "tp_btf/x", denied), denied);
        let library = "usdt: attaching to shared libraries without specific PID is not supported on current kernel";
        let words = said(true, true, "usdt/libstdc++.so.6:libstdcxx:throw", library);
        assert!(words.contains("need Linux 5.15, and this kernel is 5.10.0-31"), "{words}");
        let script = "usdt: unrecognized ELF kind 0 for '/opt/shims/python3'";
        assert!(said(true, true, "usdt/python3:python:line", script).starts_with("/opt/shims/python3 is no ELF file"));
    }

    #[test]
    fn a_call_of_a_function_that_is_nowhere_says_where_it_is_from() {
        let words = advised(Refusal::new(2, "failed to find BTF for extern 'memcmp': -2")).message;
        assert!(words.starts_with("it calls memcmp") && words.contains("__builtin_memcmp, use clang 15"), "{words}");
        assert_eq!(advised(Refusal::new(1, "no")), Refusal::new(1, "no"));
    }
}
