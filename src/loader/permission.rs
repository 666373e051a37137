//! Reasons why a kernel refuses what it supports: capabilities, lockdown, limits, namespaces. Examined only after a
//! refusal.

use super::btf::kernel_has;
use super::refusal::Refusal;
use nix::libc::{EACCES, EPERM};
use nix::sys::resource::{getrlimit, setrlimit, Resource, RLIM_INFINITY};
use std::fs;
use std::sync::OnceLock;

/// Properties of this process and the kernel that decide whether it may load BPF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Privileges {
    /// Effective capabilities (`CapEff` of /proc/self/status).
    capabilities: u64,
    /// True if the capabilities are those of a child user namespace.
    namespace: bool,
    /// True if a seccomp filter is in force.
    seccomp: bool,
    /// Kernel lockdown: confidentiality forbids tracing, integrity does not.
    lockdown: Lockdown,
    /// Limit of locked memory in bytes, if this process cannot raise it and BPF is charged to it.
    locked: Option<u64>,
    /// Value of `kernel.unprivileged_bpf_disabled`.
    unprivileged: Option<String>,
}

/// Capability bits (linux/capability.h).
const SYS_ADMIN: u64 = 1 << 21;
const SYS_RESOURCE: u64 = 1 << 24;
const PERFMON: u64 = 1 << 38;
const BPF: u64 = 1 << 39;

/// Lockdown of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lockdown {
    /// Level in force.
    Level(&'static str),
    /// Reason why the level cannot be read.
    Unknown(String),
}

impl Lockdown {
    pub fn read() -> Lockdown {
        const FILE: &str = "/sys/kernel/security/lockdown";
        match fs::read_to_string(FILE) {
            Ok(text) => {
                let is = |level: &&str| text.contains(&format!("[{level}]"));
                Lockdown::Level(["integrity", CONFIDENTIALITY].into_iter().find(is).unwrap_or("none"))
            }
            // A kernel that cannot be locked down has no such file, but every securityfs has this one.
            Err(_) if fs::exists("/sys/kernel/security/lsm").unwrap_or(false) && !fs::exists(FILE).unwrap_or(true) => {
                Lockdown::Level("none")
            }
            Err(error) => Lockdown::Unknown(format!(
                "{FILE} cannot be read ({error}); `mount -t securityfs securityfs /sys/kernel/security` lets it be seen"
            )),
        }
    }

    /// Returns a sentence on what a lockdown forbids, if it is or may be in force.
    fn forbids(&self) -> Option<String> {
        match self {
            Lockdown::Level(CONFIDENTIALITY) => Some(LOCKED_DOWN.into()),
            Lockdown::Level(_) => None,
            Lockdown::Unknown(reason) => Some(format!(
                "a lockdown of the kernel (confidentiality) would forbid it, and whether there is one is not known: {reason}"
            )),
        }
    }
}

impl Privileges {
    /// Reads the current privileges. Unreadable values count as no hindrance.
    pub fn read() -> Privileges {
        // Of this thread, which loads: the first one has given its capabilities up by now.
        let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let field = |name: &str| status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim()));
        let ids = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let disabled = fs::read_to_string("/proc/sys/kernel/unprivileged_bpf_disabled").ok();
        let capabilities = field("CapEff:").and_then(|bits| u64::from_str_radix(bits, 16).ok()).unwrap_or(u64::MAX);
        let is_limited = |soft: u64| soft != RLIM_INFINITY && capabilities & SYS_RESOURCE == 0;
        Privileges {
            capabilities,
            namespace: !ids.is_empty() && ids.split_whitespace().collect::<Vec<_>>() != ["0", "0", "4294967295"],
            seccomp: field("Seccomp:") == Some("2"),
            lockdown: Lockdown::read(),
            locked: getrlimit(Resource::RLIMIT_MEMLOCK)
                .ok()
                .map(|(soft, _)| soft)
                .filter(|&soft| is_limited(soft) && charges()),
            unprivileged: disabled.map(|text| text.trim().to_owned()),
        }
    }

    /// Returns the missing privilege and a remedy, if it explains the refusal.
    pub fn explains(&self, refusal: &Refusal) -> Option<String> {
        // The verifier does not know the helpers that read memory (security_locked_down in kernel/trace/bpf_trace.c).
        let unread = |words: &str| {
            words.contains("bpf_probe_read") && (words.contains("unknown func") || words.contains("cannot use"))
        };
        let denied = match refusal.errno {
            EPERM => true,
            // Also what the verifier says of a program; of a map it comes from a security module.
            EACCES => refusal.map.is_some(),
            _ => refusal.message.contains("Operation not permitted"),
        };
        match () {
            () if unread(&refusal.message) => self.lockdown.forbids(),
            () if denied => self.hindrance(refusal.errno != EACCES),
            () => None,
        }
    }

    /// Returns the first hindrance. `memory`: the refusal may be one of memory.
    fn hindrance(&self, memory: bool) -> Option<String> {
        let has = |capability| self.capabilities & (capability | SYS_ADMIN) != 0;
        let missing: Vec<&str> = [(BPF, "CAP_BPF"), (PERFMON, "CAP_PERFMON")]
            .into_iter()
            .filter_map(|(capability, name)| (!has(capability)).then_some(name))
            .collect();
        if self.namespace {
            return Some(
                "the agent runs in a user namespace, whose capabilities do not count for BPF; run it as root outside of it, \
                 not in a rootless container"
                    .into(),
            );
        }
        if !missing.is_empty() {
            let are = if missing.len() == 1 { "is" } else { "are" };
            let sysctl = self.unprivileged.as_ref().map_or(String::new(), |value| {
                format!(
                    "; kernel.unprivileged_bpf_disabled ({value}) makes no difference: no value of it permits tracing"
                )
            });
            return Some(format!(
                "{} {are} missing; run as root or with CAP_BPF and CAP_PERFMON (before Linux 5.8: CAP_SYS_ADMIN){sysctl}",
                missing.join(" and ")
            ));
        }
        if self.lockdown == Lockdown::Level(CONFIDENTIALITY) {
            return self.lockdown.forbids();
        }
        if let (true, Some(bytes), 0) = (memory, self.locked, self.capabilities & SYS_RESOURCE) {
            return Some(format!(
                "memory that may be locked is limited to {bytes} bytes (RLIMIT_MEMLOCK), which on this kernel, as on those before \
                 Linux 5.11, limits BPF maps and programs, and CAP_SYS_RESOURCE to raise it is missing; give the agent \
                 CAP_SYS_RESOURCE, or pmcd LimitMEMLOCK=infinity in its systemd unit"
            ));
        }
        // What is not known for sure, all of it.
        let mut possible = Vec::from_iter(self.seccomp.then(|| SECCOMP.to_owned()));
        possible.extend(self.lockdown.forbids());
        (!possible.is_empty()).then(|| possible.join("; "))
    }
}

const CONFIDENTIALITY: &str = "confidentiality";
const SECCOMP: &str =
    "a seccomp filter is in force, as in a container; permit bpf() and perf_event_open() in its profile";
const LOCKED_DOWN: &str =
    "the kernel is locked down ([confidentiality] in /sys/kernel/security/lockdown), so that BPF may not \
    read its memory, nor functions be probed; boot with lockdown=integrity, or without lockdown";

/// True if the kernel charges maps and programs to the locked memory of their user. It then has the function that
/// charges programs, found by its types; the memory in a map's fdinfo does not tell.
fn charges() -> bool {
    static CHARGES: OnceLock<bool> = OnceLock::new();
    *CHARGES.get_or_init(|| kernel_has("__bpf_prog_charge"))
}

/// Raises the limit of locked memory as far as possible without a capability; libbpf tries to remove it altogether.
pub fn lock_memory() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_MEMLOCK) {
        if soft < hard {
            let _ = setrlimit(Resource::RLIMIT_MEMLOCK, hard, hard);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Privileges = Privileges {
        capabilities: u64::MAX,
        namespace: false,
        seccomp: false,
        lockdown: Lockdown::Level("none"),
        locked: None,
        unprivileged: None,
    };

    fn refused(errno: i32, words: &str) -> Refusal {
        Refusal::new(errno, words)
    }

    #[track_caller]
    fn says(standing: Privileges, parts: &[&str]) {
        let map = Refusal { map: Some("rows".into()), errno: EPERM, ..Refusal::default() };
        let sentence = standing.explains(&map).expect("an explanation");
        for part in parts {
            assert!(sentence.contains(part), "no `{part}` in {sentence}");
        }
    }

    #[test]
    fn each_hindrance_has_its_own_sentence() {
        let nobody = Privileges { capabilities: 0, unprivileged: Some("2".into()), ..FREE };
        says(nobody.clone(), &["CAP_BPF and CAP_PERFMON are missing", "run as root", "unprivileged_bpf_disabled (2)"]);
        says(Privileges { capabilities: BPF, ..FREE }, &["CAP_PERFMON is missing", "before Linux 5.8: CAP_SYS_ADMIN"]);
        says(Privileges { capabilities: PERFMON, ..FREE }, &["CAP_BPF is missing"]);
        says(Privileges { namespace: true, ..nobody }, &["user namespace"]);
        says(Privileges { lockdown: Lockdown::Level(CONFIDENTIALITY), ..FREE }, &["locked down", "lockdown=integrity"]);
        let limited = Privileges { capabilities: SYS_ADMIN, locked: Some(65536), ..FREE };
        let parts = ["65536 bytes", "maps and programs", "CAP_SYS_RESOURCE", "LimitMEMLOCK=infinity"];
        says(limited.clone(), &parts);
        for program in [refused(EPERM, ""), refused(0, "kprobe: the program is refused: Operation not permitted")] {
            assert!(limited.explains(&program).is_some_and(|sentence| sentence.contains("65536 bytes")));
        }
        says(Privileges { lockdown: Lockdown::Level(CONFIDENTIALITY), ..limited }, &["locked down"]);
        says(Privileges { seccomp: true, ..FREE }, &["seccomp"]);
        let unknown = Privileges { lockdown: Lockdown::Unknown("no securityfs".into()), ..FREE };
        says(unknown.clone(), &["whether there is one is not known: no securityfs"]);
        says(Privileges { seccomp: true, ..unknown }, &["seccomp", "is not known: no securityfs"]);
    }

    #[test]
    fn what_nothing_here_explains_is_left_to_the_hook() {
        assert_eq!(FREE.explains(&refused(EPERM, "")), None);
        let nobody = Privileges { capabilities: 0, ..FREE };
        assert_eq!(nobody.explains(&refused(nix::libc::ENOENT, "no such function")), None);
        assert_eq!(nobody.explains(&refused(EACCES, "R0 invalid mem access 'scalar'")), None, "the verifier's");
        let limited = Privileges { locked: Some(65536), ..FREE };
        assert_eq!(limited.hindrance(true), None, "root may raise it");
        let limited = Privileges { capabilities: SYS_ADMIN, ..limited };
        let map = Refusal { map: Some("rows".into()), ..refused(EACCES, "") };
        assert_eq!(limited.explains(&map), None, "want of memory is not EACCES");
    }

    #[test]
    fn a_helper_under_lockdown_is_told_from_a_missing_one() {
        let words = "85: (85) call bpf_probe_read#4; unknown func bpf_probe_read#4";
        let locked = Privileges { lockdown: Lockdown::Level(CONFIDENTIALITY), ..FREE };
        assert_eq!(locked.explains(&refused(22, words)).as_deref(), Some(LOCKED_DOWN));
        assert_eq!(FREE.explains(&refused(22, words)), None);
        let unknown = Privileges { lockdown: Lockdown::Unknown("no securityfs".into()), ..FREE };
        assert!(unknown.explains(&refused(22, words)).is_some());
        let fault = "85: (85) call bpf_probe_read_kernel#113; R2 unbounded memory access";
        assert_eq!(unknown.explains(&refused(22, fault)), None);
        assert_eq!(locked.explains(&refused(22, "unknown func bpf_get_func_ret#184")), None);
    }
}
