//! The system calls that a loaded agent makes; the kernel answers any other with ENOSYS (seccomp(2)).
//!
//! ENOSYS is what a kernel without the call answers: the C library and Rust's then do without, where they can. Debug builds are
//! killed instead (SIGSYS), so that tests find what is missing here.

use nix::libc;
use seccompiler::{
    apply_filter_all_threads, BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;

/// Calls that are allowed whatever their arguments are, on all architectures.
const CALLS: &[libc::c_long] = &[
    // BPF and perf events
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_ioctl,
    // files
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_vmsplice,
    libc::SYS_pwrite64,
    libc::SYS_lseek,
    libc::SYS_fcntl,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
    libc::SYS_mkdirat,
    libc::SYS_flock,
    libc::SYS_ftruncate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_fadvise64,
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
    // the connection to pmcd, syslog, waiting
    libc::SYS_connect,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_ppoll,
    libc::SYS_pipe2,
    libc::SYS_eventfd2,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    // memory
    libc::SYS_mmap,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_brk,
    libc::SYS_membarrier,
    libc::SYS_memfd_create,
    // threads, signals, time
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigpending,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    // the process and the machine
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getgroups,
    libc::SYS_capget,
    libc::SYS_getrusage,
    libc::SYS_prlimit64,
    libc::SYS_getrandom,
    libc::SYS_getcpu,
    libc::SYS_uname,
    libc::SYS_sysinfo,
];

/// Their older forms, which x86-64 has besides.
#[cfg(target_arch = "x86_64")]
const OLDER_CALLS: &[libc::c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_unlink,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_dup2,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_epoll_wait,
    libc::SYS_getrlimit,
    libc::SYS_setrlimit,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER_CALLS: &[libc::c_long] = &[];

/// `PR_SET_VMA` (linux/prctl.h): the C library names its memory.
const PR_SET_VMA: u64 = 0x5356_4d41;

/// A rule for the value of an argument: its bits in the mask are these.
fn argument(index: u8, mask: u64, bits: u64) -> Result<SeccompRule, Error> {
    let is = SeccompCmpOp::MaskedEq(mask);
    Ok(SeccompRule::new(vec![SeccompCondition::new(index, SeccompCmpArgLen::Dword, is, bits)?])?)
}

/// Allowed system calls, each with its rules, of which one has to hold if there are any.
fn allowed() -> Result<BTreeMap<i64, Vec<SeccompRule>>, Error> {
    const ALL: u64 = u32::MAX as u64;
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        CALLS.iter().chain(OLDER_CALLS).map(|&call| (call, Vec::new())).collect();
    // Threads, but no processes.
    let thread = libc::CLONE_THREAD as u64;
    rules.insert(libc::SYS_clone, vec![argument(0, thread, thread)?]);
    rules.insert(libc::SYS_socket, vec![argument(0, ALL, libc::AF_UNIX as u64)?]);
    rules.insert(libc::SYS_prctl, vec![argument(0, ALL, libc::PR_SET_NAME as u64)?, argument(0, ALL, PR_SET_VMA)?]);
    Ok(rules)
}

/// Action at any other call.
fn beyond() -> SeccompAction {
    match cfg!(debug_assertions) {
        true => SeccompAction::KillProcess,
        false => SeccompAction::Errno(libc::ENOSYS as u32),
    }
}

/// The filters, in the order in which they are installed. `clone3` has its arguments in memory, where a filter cannot see them: the C
/// library takes `clone` if there is none, and would not know what to do in a debug build.
fn filters() -> Result<[BpfProgram; 2], Error> {
    let refuse = SeccompAction::Errno(libc::ENOSYS as u32);
    let architecture = std::env::consts::ARCH.try_into()?;
    let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let mut rules = allowed()?;
    rules.extend(clone3.clone());
    Ok([
        SeccompFilter::new(clone3, SeccompAction::Allow, refuse, architecture)?.try_into()?,
        SeccompFilter::new(rules, beyond(), SeccompAction::Allow, architecture)?.try_into()?,
    ])
}

/// Limits the system calls of all threads, for good.
pub fn limit_calls() -> Result<(), Error> {
    filters()?.iter().try_for_each(|filter| apply_filter_all_threads(filter))
}

/// `BPF_ENABLE_STATS` (linux/bpf.h).
const BPF_ENABLE_STATS: u64 = 32;

/// System calls of the helper for program statistics: requests from the agent, descriptors from the kernel, memory for both.
fn statistics_calls() -> Result<BTreeMap<i64, Vec<SeccompRule>>, Error> {
    const CALLS: &[libc::c_long] = &[
        libc::SYS_read,
        libc::SYS_recvfrom,
        libc::SYS_sendmsg,
        libc::SYS_close,
        libc::SYS_restart_syscall,
        libc::SYS_exit_group,
        libc::SYS_brk,
        libc::SYS_mmap,
        libc::SYS_munmap,
        libc::SYS_madvise,
    ];
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = CALLS.iter().map(|&call| (call, Vec::new())).collect();
    rules.insert(libc::SYS_bpf, vec![argument(0, u32::MAX.into(), BPF_ENABLE_STATS)?]);
    // libbpf moves descriptors above those of standard input and output; debug builds ask whether one is open before they close it.
    let commands = [libc::F_DUPFD_CLOEXEC, libc::F_GETFD];
    let commands = commands.into_iter().map(|command| argument(1, u32::MAX.into(), command as u64));
    rules.insert(libc::SYS_fcntl, commands.collect::<Result<_, _>>()?);
    Ok(rules)
}

/// Limits the system calls of this process to those of the helper for program statistics, for good.
pub fn limit_calls_to_statistics() -> Result<(), Error> {
    let architecture = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(statistics_calls()?, beyond(), SeccompAction::Allow, architecture)?;
    let filter: BpfProgram = filter.try_into()?;
    apply_filter_all_threads(&filter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    const CHILD: &str = "COREBCC_TEST_CALLS";

    /// The calls are given up in a process of its own, which is this test again.
    #[test]
    fn threads_go_on_and_other_calls_are_refused() {
        let Ok(call) = std::env::var(CHILD) else {
            for (call, allowed) in
                [("thread", true), ("unix", true), ("inet", false), ("exec", false), ("chroot", false)]
            {
                let mut again = Command::new(std::env::current_exe().unwrap());
                let name = "privilege::calls::tests::threads_go_on_and_other_calls_are_refused";
                let output = again.args(["--exact", name]).env(CHILD, call).output().unwrap();
                let status = output.status;
                match allowed || !cfg!(debug_assertions) {
                    true => assert!(status.success(), "{call}: {status}"),
                    false => assert_eq!(status.signal(), Some(libc::SIGSYS), "{call}: {status}"),
                }
            }
            return;
        };
        limit_calls().unwrap();
        let refused =
            |error: Option<std::io::Error>| error.and_then(|error| error.raw_os_error()) == Some(libc::ENOSYS);
        assert!(match &*call {
            "thread" => std::thread::spawn(|| true).join().unwrap(),
            "unix" => UnixDatagram::unbound().is_ok(),
            "inet" => refused(std::net::UdpSocket::bind("127.0.0.1:0").err()),
            "exec" => refused(Command::new("true").status().err()),
            _ => nix::unistd::chroot(".") == Err(nix::errno::Errno::ENOSYS),
        });
    }
}
