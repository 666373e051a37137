//! Reasons why a kernel refuses: each obstacle has its sentence, and all that it does not concern works.

use crate::common::{kernel_version, lacks, lacks_mounts, skip};
use crate::support::{alone, Agent};
use corebcc::modules::find;
use nix::libc;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Makes a configuration of these modules, with examples for required options, and lines for the section of the last module.
fn configuration(modules: &[&str], lines: &str) -> tempfile::NamedTempFile {
    let mut text = format!("[pmda]\nmodules = {}\nmodule_failure_fatal = False\n", modules.join(","));
    let (last, others) = modules.split_last().unwrap();
    others.iter().for_each(|name| text += &find(name).unwrap().section(""));
    text += &find(last).unwrap().section(lines);
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, text).unwrap();
    file
}

fn binary() -> &'static str {
    let built = env!("CARGO_BIN_EXE_pmdacorebcc");
    // In a virtual machine of tests/vm it is where programs are.
    if Path::new(built).exists() {
        built
    } else {
        "pmdacorebcc"
    }
}

/// Runs `--check` in a shell after the commands `before`. Returns the reason for each module that was not loaded. `a` is a command
/// that runs the shell, if it is not empty.
fn check(
    a: &[&str],
    before: &str,
    modules: &[&str],
    lines: &str,
    btf: Option<&Path>,
) -> BTreeMap<String, Option<String>> {
    checked(a, before, modules, lines, btf).0
}

/// Runs `--check` as [`check`]. Returns its log too.
fn checked(
    a: &[&str],
    before: &str,
    modules: &[&str],
    lines: &str,
    btf: Option<&Path>,
) -> (BTreeMap<String, Option<String>>, String) {
    let (config, binary) = (configuration(modules, lines), binary());
    let btf = btf.map_or(String::new(), |btf| format!(" --btf {}", btf.display()));
    let script = format!("{before}\nexec {binary} -l - --check={}{btf}", config.path().display());
    let mut command = Command::new(a.first().copied().unwrap_or("sh"));
    command.args(a.get(1..).unwrap_or_default());
    if !a.is_empty() {
        command.arg("sh");
    }
    said_by(command.args(["-c", &script]), modules)
}

/// Runs `--check` by this command. Returns the reason for each module that was not loaded.
fn outcomes(command: &mut Command, modules: &[&str]) -> BTreeMap<String, Option<String>> {
    said_by(command, modules).0
}

/// Runs `--check` by this command, as [`outcomes`]. Returns its log too.
fn said_by(command: &mut Command, modules: &[&str]) -> (BTreeMap<String, Option<String>>, String) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    println!("{command:?}\n{text}{log}");
    assert!(text.starts_with("MODULE"), "no table");
    let failed = |name: &str| {
        let mut lines = text.lines().filter(|line| line.split(' ').next() == Some(name));
        lines.find_map(|line| line.split_once("FAILED: ")).map(|(_, reason)| reason.trim_end().to_owned())
    };
    (modules.iter().map(|name| (name.to_string(), failed(name))).collect(), log)
}

/// Returns true, and prints that, if one of these programs or the right to load BPF is missing.
fn is_impossible(programs: &[&str]) -> bool {
    if lacks(programs) || programs.contains(&"unshare") && lacks_mounts() {
        return true;
    }
    let reason = check(&[], "", &["sysfork"], "", None).remove("sysfork").flatten();
    reason.inspect(|reason| skip(&format!("BPF ({reason})"))).is_some()
}

#[track_caller]
fn says(reason: &Option<String>, parts: &[&str]) {
    let reason = reason.as_ref().expect("it was loaded");
    for part in parts {
        assert!(reason.contains(part), "no `{part}` in {reason}");
    }
}

#[test]
fn in_a_pid_namespace_modules_with_a_filter_say_what_they_need() {
    let _alone = alone();
    if is_impossible(&["unshare"]) {
        return;
    }
    let inside = ["unshare", "--pid", "--fork", "--mount-proc"];
    let outcomes = check(&inside, "", &["sysfork", "syscount"], "process = sh", None);
    assert_eq!(outcomes["sysfork"], None);
    says(&outcomes["syscount"], &["in a PID namespace", "--pid=host"]);
}

#[test]
fn in_a_pid_namespace_profile_works_without_its_process() {
    let _alone = alone();
    if is_impossible(&["unshare"]) {
        return;
    }
    let inside = ["unshare", "--pid", "--fork", "--mount-proc"];
    let (with, _) = checked(&inside, "", &["sysfork", "profile"], "process = sh", None);
    assert_eq!(with["sysfork"], None);
    says(&with["profile"], &["in a PID namespace", "--pid=host"]);
    let (without, said) = checked(&inside, "", &["profile"], "", None);
    assert_eq!(without["profile"], None);
    let warning = "profile: in a PID namespace user functions cannot be resolved";
    assert_eq!(said.matches(warning).count(), 1, "{said}");
}

#[test]
fn capabilities_that_are_missing_are_named() {
    let _alone = alone();
    if is_impossible(&["setpriv", "unshare"]) {
        return;
    }
    let modules = ["sysfork", "runqlat", "profile", "tracepoint_hits", "kprobe_hits"];
    let with = |capabilities: &str| {
        let bounding = format!("--bounding-set=-all{capabilities}");
        check(&["setpriv", &bounding, "--inh-caps=-all"], "", &modules, "", None)
    };
    for (module, reason) in with("") {
        says(&reason, &["CAP_BPF and CAP_PERFMON are missing", "run as root or with CAP_BPF and CAP_PERFMON"]);
        let sysctl = "/proc/sys/kernel/unprivileged_bpf_disabled";
        if let Ok(value) = fs::read_to_string(sysctl) {
            let value = value.trim();
            says(&reason, &[&format!("kernel.unprivileged_bpf_disabled ({value}) makes no difference")]);
        }
        assert!(!reason.unwrap().contains("BTF"), "{module}: a kernel with BTF is not what is missing");
    }
    with(",+bpf").values().for_each(|reason| says(reason, &[": CAP_PERFMON is missing; run as root"]));
    with(",+perfmon").values().for_each(|reason| says(reason, &[": CAP_BPF is missing; run as root"]));
    // What needs no more than the two works with them. Before 5.11, maps also take CAP_SYS_RESOURCE.
    for capabilities in [",+bpf,+perfmon,+sys_resource", ",+sys_admin,+sys_resource"] {
        let outcomes = with(capabilities);
        for module in ["sysfork", "runqlat", "profile"] {
            assert_eq!(outcomes[module], None, "{module} with {capabilities}");
        }
    }
    if !Command::new("unshare").args(["-Ur", "true"]).status().is_ok_and(|status| status.success()) {
        skip("a user namespace, as there is none in a chroot");
        return;
    }
    let inside = check(&["unshare", "-Ur"], "", &modules, "", None);
    inside.values().for_each(|reason| says(reason, &["runs in a user namespace", "not in a rootless container"]));
}

#[test]
fn a_limit_of_locked_memory_is_named_where_it_counts() {
    let _alone = alone();
    if is_impossible(&["setpriv", "prlimit"]) {
        return;
    }
    let counts = kernel_version() < vec![5, 11];
    let modules = ["sysfork", "runqlat", "tcplife"];
    let confined = ["setpriv", "--bounding-set=-sys_resource", "--inh-caps=-all"];
    let with = |limit: &str, then: &[&str]| check(&[&["prlimit", limit], then].concat(), "", &modules, "", None);
    let outcomes = with("--memlock=65536:65536", &confined);
    // Not even the program fits with which libbpf finds out whether it may load any.
    let none = with("--memlock=0:0", &confined);
    // With the capability libbpf lifts the limit; a hard limit that suffices is made use of without it.
    let lifted = with("--memlock=65536:65536", &[]);
    let soft = with(if counts { "--memlock=65536:1073741824" } else { "--memlock=65536:" }, &confined);
    assert!(lifted.values().chain(soft.values()).all(Option::is_none), "{lifted:?} {soft:?}");
    if counts {
        for module in ["runqlat", "tcplife"] {
            let parts = ["limited to 65536 bytes", "CAP_SYS_RESOURCE to raise it is missing", "LimitMEMLOCK=infinity"];
            says(&outcomes[module], &parts);
        }
        assert_eq!(outcomes["sysfork"], None, "its maps fit");
        none.values().for_each(|reason| says(reason, &["limited to 0 bytes", "BPF maps and programs"]));
    } else {
        assert!(outcomes.values().chain(none.values()).all(Option::is_none), "{outcomes:?} {none:?}");
    }
}

/// Puts a command under a seccomp filter that fails a system call with EPERM, like those of containers.
fn forbid(command: &mut Command, call: libc::c_long) -> &mut Command {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    // The number of the call is the first word that a filter sees.
    let filter = [
        libc::sock_filter { code: LOAD, jt: 0, jf: 0, k: 0 },
        libc::sock_filter { code: EQUAL, jt: 0, jf: 1, k: call as u32 },
        libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: refuse },
        libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
    ];
    let install = move || {
        let mut filter = filter;
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: the filter and what points to it live until the call returns, which copies them.
        match unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec only a system call is made, and nothing is allocated.
    unsafe { command.pre_exec(install) }
}

#[test]
fn a_seccomp_filter_is_named() {
    let _alone = alone();
    if is_impossible(&[]) {
        return;
    }
    if let Err(error) = forbid(&mut Command::new("true"), libc::SYS_bpf).status() {
        skip(&format!("a kernel with CONFIG_SECCOMP_FILTER ({error})"));
        return;
    }
    let modules = ["sysfork", "runqlat", "tracepoint_hits"];
    let config = configuration(&modules, "");
    let check = |call| {
        let mut command = Command::new(binary());
        command.args(["-l", "-", &format!("--check={}", config.path().display())]);
        outcomes(forbid(&mut command, call), &modules)
    };
    let refused = check(libc::SYS_bpf);
    refused.values().for_each(|reason| says(reason, &["loading BPF is not permitted", "a seccomp filter is in force"]));
    let others = check(libc::SYS_perf_event_open);
    assert!(others.values().all(Option::is_none), "tracepoints take no perf event: {others:?}");
}

#[test]
fn a_lockdown_that_cannot_be_read_is_named_as_possible() {
    let _alone = alone();
    if is_impossible(&["unshare"]) {
        return;
    }
    // Something is refused for a reason that the agent cannot know: by a filter, where no status says so.
    let hide = "[ ! -d /sys/kernel/security ] || mount -t tmpfs none /sys/kernel/security || exit 1\n\
        mount -o bind /dev/null /proc/$$/status || exit 1";
    let modules = ["sysfork"];
    let config = configuration(&modules, "");
    let script = format!("{hide}\nexec {} -l - --check={}", binary(), config.path().display());
    let mut command = Command::new("unshare");
    forbid(command.args(["-m", "sh", "-c", &script]), libc::SYS_bpf);
    says(&outcomes(&mut command, &modules)["sysfork"], &["lockdown", "is not known", "mount -t securityfs"]);
}

#[test]
fn types_of_the_kernel_can_come_from_a_file() {
    let _alone = alone();
    if is_impossible(&["unshare"]) {
        return;
    }
    let types = tempfile::NamedTempFile::new().unwrap();
    fs::copy("/sys/kernel/btf/vmlinux", types.path()).unwrap();
    let hide = "mount -t tmpfs none /sys/kernel/btf || exit 1";
    let modules = ["sysfork", "runqlat", "exectop", "tracepoint_hits"];
    let without = check(&["unshare", "-m"], hide, &modules, "", None);
    without.values().for_each(|reason| {
        says(
            reason,
            &["/sys/kernel/btf/vmlinux: No such file", "CONFIG_DEBUG_INFO_BTF", "give its BTF with --btf FILE"],
        )
    });
    let with = check(&["unshare", "-m"], hide, &modules, "", Some(types.path()));
    assert!(with.values().all(Option::is_none), "{with:?}");
    fs::write(types.path(), b"no types").unwrap();
    let garbage = check(&["unshare", "-m"], hide, &modules, "", Some(types.path()));
    garbage.values().for_each(|reason| says(reason, &["give --btf a file with the BTF of the running kernel"]));
}

#[test]
fn an_unmounted_tracefs_costs_its_users_and_names_the_command() {
    let _alone = alone();
    if is_impossible(&["unshare"]) {
        return;
    }
    let unmount = "for place in /sys/kernel/tracing /sys/kernel/debug/tracing /sys/kernel/debug; do\n\
        umount -l $place 2>/dev/null\ndone";
    let modules = ["sysfork", "runqlat", "tracepoint_hits"];
    let expression = "tracepoints = sched:sched_process_ex.*";
    let without = check(&["unshare", "-m"], unmount, &modules, expression, None);
    says(
        &without["tracepoint_hits"],
        &["/sys/kernel/tracing is not mounted", "mount it with `mount -t tracefs tracefs /sys/kernel/tracing`"],
    );
    assert_eq!((&without["sysfork"], &without["runqlat"]), (&None, &None), "the others go on");
    let named = check(&["unshare", "-m"], unmount, &modules, "tracepoints = sched:sched_process_exec", None);
    assert!(named.values().all(Option::is_none), "a plain name needs no tracefs: {named:?}");
    let no_debugfs = "umount -l /sys/kernel/debug 2>/dev/null\n\
        test -e /sys/kernel/tracing/events || mount -t tracefs tracefs /sys/kernel/tracing || exit 1";
    let without = check(&["unshare", "-m"], no_debugfs, &modules, expression, None);
    assert!(without.values().all(Option::is_none), "debugfs is not needed: {without:?}");
    let mount = format!("{unmount}\nmount -t tracefs tracefs /sys/kernel/tracing || exit 1");
    let with = check(&["unshare", "-m"], &mount, &modules, expression, None);
    assert!(with.values().all(Option::is_none), "what the sentence says helps: {with:?}");
}

/// Locks this kernel down until it is booted again: only if that is asked for, in the virtual machines of tests/vm.
#[test]
fn lockdown_costs_what_it_forbids_and_is_named() {
    const FILE: &str = "/sys/kernel/security/lockdown";
    let _alone = alone();
    let asked = std::env::var_os("COREBCC_LOCK_DOWN").is_some();
    if !asked || !Path::new(FILE).exists() {
        skip(&format!("COREBCC_LOCK_DOWN, as nothing undoes it, and {FILE}"));
        return;
    }
    let modules = ["sysfork", "runqlat", "biolatency", "execsnoop", "kprobe_hits", "profile", "tracepoint_hits"];
    let lines = "tracepoints = sched:sched_process_ex.*";
    let outcomes = |level: &str| {
        fs::write(FILE, level).unwrap();
        check(&[], "", &modules, lines, None)
    };
    let before = check(&[], "", &modules, lines, None);
    assert_eq!(outcomes("integrity"), before, "integrity leaves tracing alone");
    let locked = outcomes("confidentiality");
    for module in ["sysfork", "runqlat", "biolatency", "profile"] {
        assert_eq!(locked[module], None, "{module} reads nothing through helpers");
    }
    for module in ["execsnoop", "tracepoint_hits"] {
        says(&locked[module], &["locked down", "confidentiality"]);
    }
    if locked["kprobe_hits"].is_some() {
        says(&locked["kprobe_hits"], &["locked down", "boot with lockdown=integrity"]);
    }
    // What goes on counts.
    let mut agent = Agent::new("sysfork", "");
    let before = agent.single();
    for _ in 0..100 {
        std::thread::spawn(|| ()).join().unwrap();
    }
    assert!(agent.single() >= before + 100);
}
