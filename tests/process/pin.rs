//! Counters that outlive the agent (`pin`): in order, killed, with another layout; in a mount namespace with a BPF file system.

use crate::changes::{by_root, order, FORKS, FORKS_YAML};
use crate::own::values;
use crate::pairs::{compile, example, home, load, source, write};
use crate::peer::Peer;
use crate::support::{lacks, lacks_bpf, lacks_mounts, skip, Home, Proc};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{chown, DirBuilderExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};

const CONFIG: &str = "[pmda]\nmodules = sysfork, runqlat\n[sysfork]\nmodule = sysfork\ncluster = 2\npin = True\n\
                      [runqlat]\nmodule = runqlat\ncluster = 4\npin = True\n";

/// A mount namespace with a BPF file system, which ends with this.
struct Namespace(Proc);

impl Namespace {
    fn new() -> Option<Namespace> {
        if lacks_bpf() || lacks_mounts() || lacks(&["nsenter"]) {
            return None;
        }
        // cgroup_runq wants cgroup v2, too.
        let mount = "[ -e /sys/fs/cgroup/cgroup.controllers ] || mount -t cgroup2 cgroup2 /sys/fs/cgroup; \
                     mount -t bpf -o mode=0700 bpf /sys/fs/bpf && echo mounted && exec sleep 600";
        let mut command = Command::new("unshare");
        let mut child = command.args(["--mount", "sh", "-c", mount]).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.as_mut().unwrap()), &mut said).unwrap();
        let namespace = Namespace(Proc(child));
        if said.trim() == "mounted" {
            return Some(namespace);
        }
        skip("a BPF file system that can be mounted");
        None
    }

    /// An agent in it, whose modules are loaded.
    #[track_caller]
    fn agent(&self, home: &Home) -> Peer {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.0.pid()));
        command.arg(format!("--wd={}", home.path("").display())).arg(env!("CARGO_BIN_EXE_pmdacorebcc"));
        ready(home, &mut command)
    }

    fn pins(&self) -> PathBuf {
        format!("/proc/{}/root/sys/fs/bpf/corebcc", self.0.pid()).into()
    }

    /// The names of units that are pinned, of each agent.
    fn units(&self) -> Vec<String> {
        let of_agent = |agent: fs::DirEntry| fs::read_dir(agent.path()).unwrap().flatten();
        let units = fs::read_dir(self.pins()).into_iter().flatten().flatten().flat_map(of_agent);
        let name = |unit: fs::DirEntry| unit.file_name().to_string_lossy().rsplitn(3, '-').last().unwrap().to_owned();
        let mut units: Vec<String> = units.map(name).collect();
        units.sort();
        units
    }
}

#[track_caller]
fn ready(home: &Home, command: &mut Command) -> Peer {
    home.keep(command).arg("-c").arg(home.config()).arg("--notready");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(home.create("stderr.log"));
    let mut peer = Peer::adopt(command.spawn().unwrap());
    peer.greet();
    peer.read_within(60 * crate::peer::SECOND);
    peer
}

/// A home with the pair of examples/ that counts system calls, pinned.
fn with_calls() -> Option<Home> {
    let home = home()?;
    fs::write(home.config(), CONFIG).unwrap();
    write(&home, "calls.yaml", &format!("pin: true\n{}", include_str!("../../examples/calls.yaml")));
    compile(&home, &example("calls.bpf.c"), "calls").then_some(home)
}

fn state(peer: &mut Peer, name: &str) -> BTreeMap<String, String> {
    values(peer, &format!("bcc.agent.state.{name}")).into_iter().collect()
}

fn calls(peer: &mut Peer) -> Option<String> {
    values(peer, "bcc.user.calls.calls_total").get("pairs-load::getppid").cloned()
}

fn number(peer: &mut Peer, name: &str) -> u64 {
    values(peer, name).values().map(|value| value.parse::<u64>().unwrap()).sum()
}

#[test]
fn counts_continue_exactly_after_an_end_and_a_kill() {
    if lacks(&["python3"]) {
        return;
    }
    let Some(namespace) = Namespace::new() else { return };
    let Some(home) = with_calls() else { return };
    let mut peer = namespace.agent(&home);
    assert_eq!(state(&mut peer, "pinned").values().collect::<Vec<_>>(), ["1", "1", "1"], "{}", home.log());
    assert_eq!(namespace.units(), ["runqlat", "sysfork", "user:calls"]);
    load(5000);
    for _ in 0..200 {
        assert!(Command::new("true").status().unwrap().success());
    }
    let since = state(&mut peer, "since");
    let mut made = 5000;
    for end in ["in order", "by SIGKILL"] {
        assert_eq!(calls(&mut peer).unwrap(), made.to_string());
        let timed = number(&mut peer, "bcc.user.calls.call_duration_seconds.count");
        let counted = ["bcc.proc.sysfork", "bcc.runq.latency"].map(|name| number(&mut peer, name));
        assert!(counted[0] >= 200, "{counted:?}");
        match end {
            "in order" => assert_eq!(peer.close().0.code(), Some(0)),
            _ => {
                peer.agent.signal(nix::sys::signal::Signal::SIGKILL);
                peer.agent.end();
            }
        }
        // While no agent is there the programs count on.
        load(5000);
        (0..100).for_each(|_| assert!(Command::new("true").status().unwrap().success()));
        made += 5000;
        peer = namespace.agent(&home);
        assert_eq!(calls(&mut peer).unwrap(), made.to_string(), "{end}: {}", home.log());
        let now = ["bcc.proc.sysfork", "bcc.runq.latency"].map(|name| number(&mut peer, name));
        assert!(now[0] >= counted[0] + 100 && now[1] >= counted[1] + 100, "{end}: {now:?} after {counted:?}");
        assert!(number(&mut peer, "bcc.user.calls.call_duration_seconds.count") >= timed + 5000, "{end}");
        assert_eq!(state(&mut peer, "since"), since, "{end}");
        assert!(state(&mut peer, "discarded").values().all(|count| count == "0"), "{}", home.log());
        assert!(state(&mut peer, "status")["user.calls"].contains("continues the counts of an agent before"));
        load(5000);
        made += 5000;
    }
    assert_eq!(calls(&mut peer).unwrap(), "25000");
    // Those of while programs are replaced are missing, and none is counted twice.
    let under_way = std::thread::spawn(|| load(2_000_000));
    assert_eq!(peer.close().0.code(), Some(0));
    peer = namespace.agent(&home);
    under_way.join().unwrap();
    let counted = calls(&mut peer).unwrap().parse::<u64>().unwrap() - 25_000;
    assert!(counted <= 2_000_000, "{counted}");
    println!("{counted} of 2000000 calls while the agent was restarted");
    assert_eq!(peer.close().0.code(), Some(0));
    // Remove leaves nothing.
    let remove = include_str!("../../Remove").lines().find(|line| line.contains("/sys/fs/bpf")).unwrap();
    let inside = format!("--mount=/proc/{}/ns/mnt", namespace.0.pid());
    assert!(Command::new("nsenter").args([&inside, "sh", "-c", remove]).status().unwrap().success());
    assert!(!namespace.pins().exists());
}

/// Forks, in a map of so many rows.
fn forks(rows: u32) -> String {
    FORKS.replace("max_entries, 1)", &format!("max_entries, {rows})"))
}

#[test]
fn another_layout_is_discarded_and_what_is_unpinned_removed() {
    let Some(namespace) = Namespace::new() else { return };
    let Some(home) = home() else { return };
    fs::write(home.config(), CONFIG).unwrap();
    let yaml = format!("pin: true\n{FORKS_YAML}");
    if !source(&home, "forks", &forks(1), &yaml) {
        return;
    }
    let fork = || (0..300).for_each(|_| assert!(Command::new("true").status().unwrap().success()));
    let mut peer = namespace.agent(&home);
    fork();
    let before = number(&mut peer, "bcc.proc.sysfork");
    assert!(number(&mut peer, "bcc.user.forks.forks_total") >= 300);
    assert_eq!(peer.close().0.code(), Some(0));

    // An option of runqlat changes what its counts mean; the pair's map has another size.
    fs::write(home.config(), format!("{CONFIG}per_cpu = True\n")).unwrap();
    assert!(source(&home, "forks", &forks(2), &yaml));
    let mut peer = namespace.agent(&home);
    let discarded = state(&mut peer, "discarded");
    let expected =
        [("runqlat", "1"), ("sysfork", "0"), ("user.forks", "1")].map(|(unit, count)| (unit.into(), count.into()));
    assert_eq!(discarded, BTreeMap::from(expected), "{}", home.log());
    assert!(
        home.log().contains("user.forks: pinned maps discarded, so counts begin at 0: their layout"),
        "{}",
        home.log()
    );
    assert!(number(&mut peer, "bcc.proc.sysfork") >= before);
    assert!(state(&mut peer, "status")["runqlat"].contains("counts from this load on"));
    assert_eq!(namespace.units(), ["runqlat", "sysfork", "user:forks"], "the old ones are gone");

    // A second agent of the same state pins nothing, and says why.
    let mut second = namespace.agent(&home);
    assert!(state(&mut second, "status")["sysfork"].contains("another agent uses it"), "{}", home.log());
    assert!(number(&mut second, "bcc.proc.sysfork") < before);
    assert_eq!(second.close().0.code(), Some(0));
    assert_eq!(peer.close().0.code(), Some(0));

    // Nothing is left of what is not to be pinned, unless the configuration is in error.
    fs::write(home.config(), CONFIG.replace("pin = True", "pin = yes, please")).unwrap();
    assert_eq!(namespace.agent(&home).close().0.code(), Some(0));
    assert_eq!(namespace.units(), ["runqlat", "sysfork", "user:forks"]);
    fs::write(home.config(), CONFIG.replace("pin = True", "")).unwrap();
    fs::remove_file(home.path("programs.d/forks.yaml")).unwrap();
    assert_eq!(namespace.agent(&home).close().0.code(), Some(0));
    assert_eq!(namespace.units(), Vec::<String>::new(), "{}", home.log());
}

#[test]
fn a_restart_by_pmstore_continues_also_in_shared_programs() {
    let Some(namespace) = Namespace::new() else { return };
    let Some(home) = with_calls() else { return };
    // cgroup_runq has a part in the program at sched_switch, which stays when runqlat is stopped.
    let shared = CONFIG.replace("runqlat\n[s", "runqlat, cgroup_runq\n[s")
        + "[cgroup_runq]\nmodule = cgroup_runq\ncluster = 401\n";
    fs::write(home.config(), shared).unwrap();
    let mut peer = namespace.agent(&home);
    by_root(&mut peer);
    load(5000);
    (0..200).for_each(|_| assert!(Command::new("true").status().unwrap().success()));
    let (forks, since) = (number(&mut peer, "bcc.proc.sysfork"), state(&mut peer, "since"));
    assert!(forks >= 200);
    for module in ["user.calls", "sysfork", "runqlat"] {
        assert_eq!(order(&mut peer, module, "restart"), 0, "{}", home.log());
    }
    assert_eq!(calls(&mut peer).as_deref(), Some("5000"), "{}", home.log());
    assert!(number(&mut peer, "bcc.proc.sysfork") >= forks, "{}", home.log());
    load(5000);
    assert_eq!(calls(&mut peer).as_deref(), Some("10000"), "no call is counted twice");
    assert_eq!(state(&mut peer, "since"), since);
    let status = state(&mut peer, "status");
    assert!(["sysfork", "runqlat", "user.calls"].iter().all(|unit| status[*unit].contains("continues")), "{status:?}");
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn what_keeps_maps_from_being_pinned_is_said() {
    let Some(namespace) = Namespace::new() else { return };
    let home = Home::new(CONFIG);
    let not_pinned = |peer: &mut Peer, why: &str| {
        let status = state(peer, "status")["sysfork"].clone();
        assert!(status.starts_with("not pinned: ") && status.contains(why), "{status}");
        assert_eq!(state(peer, "pinned")["sysfork"], "0");
        assert!(state(peer, "since")["sysfork"].parse::<u64>().unwrap() > 1_700_000_000);
        assert!(home.log().contains(&status), "{}", home.log());
    };
    let without = "umount -l /sys/fs/bpf 2>/dev/null; exec \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", without, env!("CARGO_BIN_EXE_pmdacorebcc")]);
    let mut peer = ready(&home, &mut command);
    not_pinned(&mut peer, "/sys/fs/bpf is no BPF file system: mount it with `mount -t bpf bpf /sys/fs/bpf`");
    assert_eq!(peer.close().0.code(), Some(0));

    fs::DirBuilder::new().mode(0o700).create(namespace.pins()).unwrap();
    for (owner, mode) in [(65534, 0o700), (0, 0o755)] {
        chown(namespace.pins(), Some(owner), None).unwrap();
        fs::set_permissions(namespace.pins(), fs::Permissions::from_mode(mode)).unwrap();
        let mut peer = namespace.agent(&home);
        not_pinned(&mut peer, &format!("closed to others (0700), got owner {owner} and mode {mode:04o}; remove it"));
        assert_eq!(peer.close().0.code(), Some(0));
    }

    fs::write(home.config(), "[pmda]\nmodules = exectop\n[exectop]\nmodule = exectop\ncluster = 13\npin = True\n")
        .unwrap();
    let checked = home.run(&["--check-syntax"]);
    let said = String::from_utf8_lossy(&checked.stderr).into_owned() + &String::from_utf8_lossy(&checked.stdout);
    assert!(said.contains("[exectop] pin: expected False") && said.contains("sysfork"), "{said}");
    assert_eq!(checked.status.code(), Some(1));
}
