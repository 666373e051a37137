//! bpftrace scripts of a site's own (scripts.d): their counts of a known load, and their life.

use crate::own::values;
use crate::pairs::roots_home;
use crate::peer::Peer;
use crate::reference::pmcd::{self as wire, decode};
use crate::support::{lacks, lacks_bpf, skip, wait_for, wait_seconds, Home};
use corebcc::pcp::Pmid;
use corebcc::pdu::Pdu;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

const CONFIG: &str =
    "[pmda]\nmodules = sysfork\nmodule_failure_fatal = True\n[sysfork]\nmodule = sysfork\ncluster = 2\n[scripts]\nmemory = 300\n";

/// A home with a directory of scripts; `None`, and a line, where bpftrace cannot be tried.
fn home() -> Option<Home> {
    if lacks_bpf() || lacks(&["bpftrace", "python3"]) {
        return None;
    }
    roots_home(CONFIG, "scripts.d")
}

fn write(home: &Home, name: &str, text: &str) {
    let path = home.path("scripts.d").join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
}

/// The C library of this process: a uprobe takes no mounted file system.
fn libc() -> Option<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|file| file.contains("/libc.so"));
    if libc.is_none() {
        skip("a shared C library");
    }
    libc.map(str::to_owned)
}

/// A process of its own name that makes so many calls of getppid.
fn load(calls: usize) {
    let script = format!(
        "import ctypes, os\nctypes.CDLL(None).prctl(15, b'scripts-load', 0, 0, 0)\nfor _ in range({calls}): os.getppid()\n"
    );
    assert!(Command::new("python3").args(["-c", &script]).stdin(Stdio::null()).status().unwrap().success());
}

/// The PMID of a metric, if it is served.
fn pmid(peer: &mut Peer, name: &str) -> Option<Pmid> {
    match decode(&peer.ask(&wire::lookup(name))) {
        Pdu::PmnsIds { ids, .. } => ids.first().copied().filter(|pmid| pmid.0 != u32::MAX),
        _ => None,
    }
}

fn text(peer: &mut Peer, name: &str) -> String {
    values(peer, name).remove("").unwrap_or_default()
}

/// bpftrace takes seconds on a busy machine.
fn wait_for_status(peer: &mut Peer, script: &str, status: &str) {
    let name = format!("bcc.script.{script}.status");
    wait_seconds(60, &format!("{script} to be {status}"), || (text(peer, &name) == status).then_some(()));
}

fn is_alive(pid: i32) -> bool {
    // A zombie has no memory.
    fs::read_to_string(format!("/proc/{pid}/statm")).is_ok_and(|statm| !statm.starts_with("0 "))
}

#[test]
fn a_script_counts_a_known_load_and_lives_with_the_agent() {
    let Some(home) = home() else { return };
    let Some(libc) = libc() else { return };
    let script = format!(
        "// include: @, @by, @two, @sizes, @lin, @st, @sum, @last\nuprobe:{libc}:getppid /comm == \"scripts-load\"/ {{\n\
         @ = count(); @by[comm] = count(); @two[comm, 7] = count(); @sizes = hist(5); @lin[comm] = lhist(15, 0, 100, 10);\n\
         @st = stats(3); @sum += 2; @last = comm; @hidden = 1; }}\n"
    );
    write(&home, "calls.bt", &script);
    let mut peer = Peer::ready(&home, &[]);
    wait_for_status(&mut peer, "calls", "started");
    assert_eq!(values(&mut peer, "bcc.agent.module.state")["script.calls"], "running");
    load(5000);
    wait_for("5,000 calls", || (text(&mut peer, "bcc.script.calls.data.root") == "5000").then_some(()));
    // All maps are printed at once, which takes a moment.
    wait_for("the last map", || (text(&mut peer, "bcc.script.calls.data.last") == "scripts-load").then_some(()));
    let one = |name: &str, value: &str| [(name.to_owned(), value.to_owned())].into();
    assert_eq!(values(&mut peer, "bcc.script.calls.data.by"), one("scripts-load", "5000"));
    assert_eq!(values(&mut peer, "bcc.script.calls.data.two"), one("scripts-load::7", "5000"));
    assert_eq!(values(&mut peer, "bcc.script.calls.data.sizes"), one("4-7", "5000"));
    assert_eq!(values(&mut peer, "bcc.script.calls.data.lin"), one("10-19::scripts-load", "5000"));
    let stats = ["count", "average", "total"].map(|part| text(&mut peer, &format!("bcc.script.calls.data.st.{part}")));
    assert_eq!(stats, ["5000", "3", "15000"]);
    assert_eq!(text(&mut peer, "bcc.script.calls.data.sum"), "10000");
    assert_eq!(pmid(&mut peer, "bcc.script.calls.data.hidden"), None, "not included");
    assert_eq!(text(&mut peer, "bcc.script.calls.probes"), "1");
    assert!(text(&mut peer, "bcc.script.calls.code").starts_with("// include: @, @by"));
    assert!(text(&mut peer, "bcc.script.calls.data_bytes").parse::<u64>().unwrap() > 100);
    let cluster = pmid(&mut peer, "bcc.script.calls.data.root").unwrap();
    assert!((500..2000).contains(&cluster.cluster()), "{cluster}");

    let pid = |peer: &mut Peer| text(peer, "bcc.script.calls.pid").parse::<i32>().unwrap();
    let first = pid(&mut peer);
    let limits = fs::read_to_string(format!("/proc/{first}/limits")).unwrap();
    let data = limits.lines().find(|line| line.starts_with("Max data size")).unwrap();
    assert_eq!(data.split_whitespace().nth(3), Some("314572800"), "{data}");

    // One that dies is started again.
    kill(Pid::from_raw(first), Signal::SIGKILL).unwrap();
    wait_for_status(&mut peer, "calls", "error");
    assert_eq!(text(&mut peer, "bcc.script.calls.exit_code"), (-9_i32 as u32).to_string());
    wait_for_status(&mut peer, "calls", "started");
    assert_eq!(text(&mut peer, "bcc.script.calls.starts"), "2");
    let second = pid(&mut peer);
    assert!(second != first && is_alive(second));

    // It ends with the agent, whatever ends that.
    peer.agent.signal(Signal::SIGKILL);
    wait_for("the end of bpftrace", || (!is_alive(second)).then_some(()));

    let mut peer = Peer::ready(&home, &[]);
    assert_eq!(pmid(&mut peer, "bcc.script.calls.data.root"), Some(cluster), "kept over restarts");
    wait_for_status(&mut peer, "calls", "started");
    let third = pid(&mut peer);
    assert_eq!(peer.close().0.code(), Some(0));
    wait_for("the end of bpftrace", || (!is_alive(third)).then_some(()));
}

/// A line of a file in /proc.
fn status(process: &str, line: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    text.lines().find_map(|known| known.strip_prefix(line)).unwrap_or_default().trim().to_owned()
}

#[test]
fn only_the_helper_keeps_what_bpftrace_takes() {
    let Some(home) = home() else { return };
    write(&home, "one.bt", "BEGIN { @x = 1; }\n");
    let mut peer = Peer::ready(&home, &[]);
    wait_for_status(&mut peer, "one", "started");
    let (agent, bpftrace) = (peer.agent.pid(), text(&mut peer, "bcc.script.one.pid"));
    let tasks = fs::read_dir(format!("/proc/{agent}/task")).unwrap().flatten();
    let tasks: Vec<String> = tasks.map(|task| format!("{agent}/task/{}", task.file_name().to_string_lossy())).collect();
    let thread = tasks.iter().find(|task| status(task, "Name:") == "scripts").expect("the thread that reads");
    assert_eq!(status(thread, "CapPrm:"), "0000000000000000");
    let helper = status(&bpftrace, "PPid:");
    assert_eq!((status(&helper, "Name:").as_str(), status(&helper, "PPid:")), ("corebcc-scripts", agent.to_string()));
    let kept = u64::from_str_radix(&status(&bpftrace, "CapPrm:"), 16).unwrap();
    let (admin, net_admin, setuid) = (1 << 21, 1 << 12, 1 << 7);
    assert_eq!((kept & admin, kept & net_admin, kept & setuid), (admin, 0, 0), "{kept:x}");

    // Without its helper no process remains, and the status says so.
    kill(Pid::from_raw(helper.parse().unwrap()), Signal::SIGKILL).unwrap();
    wait_for("the end of bpftrace", || (!is_alive(bpftrace.parse().unwrap())).then_some(()));
    let error = || {
        let error = text(&mut peer, "bcc.script.one.error");
        error.contains("the helper that runs bpftrace has ended").then_some(())
    };
    wait_for("the reason", error);
    assert!(values(&mut peer, "bcc.proc.sysfork").contains_key(""), "modules go on");
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn a_script_that_fails_says_why_in_the_words_of_bpftrace() {
    let Some(home) = home() else { return };
    write(&home, "bad.bt", "BEGIN { @x = nosuch; }\n");
    write(&home, "once.bt", "BEGIN { @x = 42; printf(\"over\\n\"); exit(); }\n");
    write(&home, "named.bt", "// name: 1st\nBEGIN { @x = 1; }\n");
    write(&home, "other.bt", "BEGIN { @x = 1; }\n");
    fs::set_permissions(home.path("scripts.d/other.bt"), fs::Permissions::from_mode(0o666)).unwrap();
    let mut peer = Peer::ready(&home, &[]);
    wait_for_status(&mut peer, "bad", "error");
    let error = text(&mut peer, "bcc.script.bad.error");
    assert!(error.contains("bad.bt:1:14-20: ERROR: Unknown identifier: 'nosuch'"), "{error}");
    assert_eq!(text(&mut peer, "bcc.script.bad.exit_code"), "1");
    assert_eq!(values(&mut peer, "bcc.agent.module.up")["script.bad"], "0");
    let error = text(&mut peer, "bcc.script.other.error");
    assert!(error.contains("other.bt: file: expected owner root") && error.contains("mode 0666"), "{error}");
    let error = text(&mut peer, "bcc.script.x1st.error");
    assert!(error.contains("named.bt: `// name:`: expected letters"), "{error}");
    wait_for_status(&mut peer, "once", "stopped");
    wait_for("its end", || (text(&mut peer, "bcc.script.once.starts") == "1").then_some(()));
    wait_for("its last value", || (text(&mut peer, "bcc.script.once.data.x") == "42").then_some(()));
    assert_eq!(text(&mut peer, "bcc.script.once.data.output"), "over\\n");
    assert!(values(&mut peer, "bcc.proc.sysfork").contains_key(""), "modules go on");
    for delay in ["1 s", "2 s"] {
        home.wait_for_log(&format!("ERROR: Unknown identifier: 'nosuch'; started again in {delay}"));
    }
    assert_eq!(peer.close().0.code(), Some(0));

    let check = |name: &str, args: &[&str]| {
        let file = home.path("scripts.d").join(name);
        let file = file.to_str().unwrap().to_owned();
        let output = home.run(&[args, &[file.as_str()]].concat());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, _, stderr) = check("bad.bt", &["--check"]);
    assert!(code == Some(1) && stderr.contains("bad.bt:1:14-20: ERROR"), "{stderr}");
    let (code, stdout, _) = check("once.bt", &["--check"]);
    assert!(
        code == Some(0) && stdout.contains("attached 1 probes") && stdout.contains("bcc.script.once.data.x"),
        "{stdout}"
    );
    let (code, stdout, _) = check("bad.bt", &["--check-syntax"]);
    assert!(code == Some(0) && stdout.contains("not run"), "{stdout}");

    let whole = home.run(&["--check"]);
    let said = String::from_utf8_lossy(&whole.stdout);
    assert!(
        whole.status.code() == Some(1) && said.contains("bad.bt: errors") && said.contains("other.bt: not run"),
        "{said}"
    );

    // Without the section nothing runs.
    fs::write(home.config(), CONFIG.split("[scripts]").next().unwrap()).unwrap();
    let mut peer = Peer::ready(&home, &[]);
    assert_eq!(pmid(&mut peer, "bcc.script.once.status"), None);
    assert_eq!(peer.close().0.code(), Some(0));
    assert!(Path::new(&home.path("scripts.d/once.bt")).exists());
}
