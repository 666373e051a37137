//! bpftrace scripts of a site's own (scripts.d): their counts of a known load, and their life.

use crate::changes::{by_root, is_named, order, reload};
use crate::own::values;
use crate::pairs::roots_home;
use crate::peer::Peer;
use crate::reference::pmcd::{self as wire, decode};
use crate::support::{bpf_of, lacks, lacks_bpf, programs_of, skip, still_loaded, told, wait_for, wait_seconds, Home};
use corebcc::pcp::{PmErr, Pmid};
use corebcc::pdu::Pdu;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

const CONFIG: &str =
    "[pmda]\nmodules = sysfork\nmodule_failure_fatal = True\n[sysfork]\nmodule = sysfork\ncluster = 2\n[scripts]\nmemory = 300\n";

/// Makes a home with a directory of scripts. Returns `None`, and prints that, if bpftrace cannot be tried.
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

/// Returns the path of the C library of this process; prints that the test was skipped if there is none.
fn libc() -> Option<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|file| file.contains("/libc.so"));
    if libc.is_none() {
        skip("a shared C library");
    }
    libc.map(str::to_owned)
}

#[test]
fn show_takes_a_script_by_its_name() {
    let Some(home) = home() else { return };
    write(&home, "clock.bt", "interval:ms:100 { @ticks = count(); }\n");
    for name in ["script.clock", "clock"] {
        let output = home.run(&["show", name, "8", "1"]);
        let drawn = String::from_utf8_lossy(&output.stdout);
        let ticks = drawn.split("\nbcc.script.clock.data.ticks  ").nth(1).and_then(|table| table.lines().nth(2));
        let ticks = ticks.and_then(|ticks| ticks.trim().parse::<u64>().ok());
        assert!(ticks.is_some_and(|ticks| (1..=80).contains(&ticks)), "{name}: {}", told(&output));
    }
}

/// Runs a process of its own name with a number of getppid calls.
fn load(calls: usize) {
    let script = format!(
        "import ctypes, os\nctypes.CDLL(None).prctl(15, b'scripts-load', 0, 0, 0)\nfor _ in range({calls}): os.getppid()\n"
    );
    assert!(Command::new("python3").args(["-c", &script]).stdin(Stdio::null()).status().unwrap().success());
}

/// Returns the PMID of a metric, if it is served.
fn pmid(peer: &mut Peer, name: &str) -> Option<Pmid> {
    match decode(&peer.ask(&wire::lookup(name))) {
        Pdu::PmnsIds { ids, .. } => ids.first().copied().filter(|pmid| pmid.0 != u32::MAX),
        _ => None,
    }
}

fn text(peer: &mut Peer, name: &str) -> String {
    values(peer, name).remove("").unwrap_or_default()
}

/// Waits for a status of a script; bpftrace takes seconds on a busy machine.
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
    assert_eq!(text(&mut peer, "bcc.script.calls.error"), "", "what bpftrace says of its limits is no error");
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
    let sentence = values(&mut peer, "bcc.agent.module.status")["script.calls"].clone();
    assert!(sentence.starts_with("bpftrace was ended by signal 9"), "{sentence}");
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

/// Returns a line of a file in /proc.
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
    let sentence = values(&mut peer, "bcc.agent.module.status")["script.bad"].clone();
    assert!(sentence.starts_with("bpftrace ended with exit code 1: bad.bt:1:14-20: ERROR"), "{sentence}");
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

    // In a directory that others may write to: no advice to take the directory away from them.
    let elsewhere = tempfile::tempdir().unwrap();
    let mine = elsewhere.path().join("mine.bt");
    fs::write(&mine, "BEGIN { @x = 1; }\n").unwrap();
    let tried = home.run(&["--check", mine.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&tried.stderr);
    assert_eq!(tried.status.code(), Some(2), "{said}");
    assert!(said.contains("not tried: only root may") && said.contains("install -D -m 644 -t "), "{said}");
    assert!(!said.contains("chmod") && !said.contains("chown"), "{said}");
    let syntax = home.run(&["--check-syntax", mine.to_str().unwrap()]);
    assert!(syntax.status.success() && syntax.stderr.is_empty(), "{}", String::from_utf8_lossy(&syntax.stderr));

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

/// A script that counts seconds, so that values show whether its process is another one.
const SECONDS: &str = "interval:s:1 { @seconds = count(); }\n";

fn pid_of(peer: &mut Peer, script: &str) -> i32 {
    text(peer, &format!("bcc.script.{script}.pid")).parse().unwrap_or(0)
}

fn state_of(peer: &mut Peer, script: &str) -> Option<String> {
    values(peer, "bcc.agent.module.state").remove(&format!("script.{script}"))
}

fn wait_for_end(pid: i32) {
    assert!(pid > 0);
    wait_seconds(20, "the end of bpftrace", || (!is_alive(pid)).then_some(()));
}

fn wait_for_value(peer: &mut Peer, name: &str, value: &str) {
    wait_seconds(60, &format!("{name} to be {value}"), || (text(peer, name) == value).then_some(()));
}

#[test]
fn scripts_come_change_and_go_and_no_other_is_touched() {
    let Some(home) = home() else { return };
    write(&home, "kept.bt", SECONDS);
    let mut peer = Peer::ready(&home, &[]);
    wait_for_status(&mut peer, "kept", "started");
    let kept = pid_of(&mut peer, "kept");

    assert!(!is_named(&mut peer, "bcc.script.two.status"));
    write(&home, "two.bt", "// help: @x The first number\nBEGIN { @x = 1; }\n");
    wait_for("the script", || is_named(&mut peer, "bcc.script.two.data.x").then_some(()));
    wait_for_value(&mut peer, "bcc.script.two.data.x", "1");
    let (first, number) = (pid_of(&mut peer, "two"), pmid(&mut peer, "bcc.script.two.data.x").unwrap());
    let help = |peer: &mut Peer| match decode(&peer.ask(&wire::text(number.0, 4 | 1))) {
        Pdu::Text { text, .. } => String::from_utf8_lossy(text).into_owned(),
        _ => String::new(),
    };
    assert_eq!(help(&mut peer), "The first number");

    write(&home, "two.bt", "// help: @x Another number\nBEGIN { @x = 2; @y[1] = count(); }\n");
    wait_for_value(&mut peer, "bcc.script.two.data.x", "2");
    wait_for_end(first);
    assert_eq!(pmid(&mut peer, "bcc.script.two.data.x"), Some(number), "it keeps its identifier");
    assert_eq!(help(&mut peer), "Another number");
    assert!(is_named(&mut peer, "bcc.script.two.data.y"));

    // What may not be run says so, and is run once it may.
    let second = pid_of(&mut peer, "two");
    fs::set_permissions(home.path("scripts.d/two.bt"), fs::Permissions::from_mode(0o666)).unwrap();
    wait_for_status(&mut peer, "two", "error");
    wait_for_end(second);
    assert!(values(&mut peer, "bcc.agent.module.status")["script.two"].contains("mode 0666"));
    fs::set_permissions(home.path("scripts.d/two.bt"), fs::Permissions::from_mode(0o644)).unwrap();
    wait_for_status(&mut peer, "two", "started");

    let third = pid_of(&mut peer, "two");
    fs::remove_file(home.path("scripts.d/two.bt")).unwrap();
    wait_for("its end", || (!is_named(&mut peer, "bcc.script.two.status")).then_some(()));
    wait_for_end(third);
    assert_eq!(state_of(&mut peer, "two"), None);
    assert_eq!((pid_of(&mut peer, "kept"), text(&mut peer, "bcc.script.kept.starts").as_str()), (kept, "1"));
    let seconds = |peer: &mut Peer| text(peer, "bcc.script.kept.data.seconds").parse::<u64>().unwrap_or(0);
    assert!(seconds(&mut peer) > 1, "it counts on");
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn a_script_that_nobody_reads_ends_and_a_fetch_starts_it() {
    let Some(home) = home() else { return };
    fs::write(home.config(), format!("{CONFIG}expiry = 10\n")).unwrap();
    write(&home, "one.bt", SECONDS);
    write(&home, "named.bt", "// name: kept\ninterval:s:1 { @seconds = count(); }\n");
    let mut peer = Peer::ready(&home, &[]);
    wait_for_status(&mut peer, "kept", "started");
    wait_for_status(&mut peer, "one", "started");
    let (first, kept) = (pid_of(&mut peer, "one"), pid_of(&mut peer, "kept"));
    // Who reads of its life only does not keep it.
    wait_for_status(&mut peer, "one", "stopped");
    wait_for_end(first);
    assert_eq!(state_of(&mut peer, "one").as_deref(), Some("postponed"));
    let sentence = values(&mut peer, "bcc.agent.module.status")["script.one"].clone();
    assert!(sentence.starts_with("ended, since nobody fetched its values for 10 s"), "{sentence}");
    assert!(is_named(&mut peer, "bcc.script.one.data.seconds") && text(&mut peer, "bcc.script.one.starts") == "1");
    assert_eq!(pid_of(&mut peer, "kept"), kept, "it has a name of its own");
    assert_eq!(text(&mut peer, "bcc.script.one.data.seconds"), "", "this fetch starts it");
    wait_seconds(60, "a value", || {
        text(&mut peer, "bcc.script.one.data.seconds").parse::<u64>().is_ok_and(|seconds| seconds > 12).then_some(())
    });
    assert_eq!(text(&mut peer, "bcc.script.one.starts"), "2", "who reads it keeps it");
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn scripts_and_tracepoints_are_listed() {
    let Some(home) = home() else { return };
    let home = home.with_mounts("with");
    let code = "// include: @x\nBEGIN { @x[\"a\"] = hist(3); }\n";
    write(&home, "one.bt", code);
    write(&home, "two.bt", "BEGIN { @x = 1; printf(\"y\"); }\n");
    let mut peer = Peer::ready(&home, &[]);
    wait_for_status(&mut peer, "one", "started");
    let list: serde_json::Value = serde_json::from_str(&text(&mut peer, "bcc.agent.scripts")).unwrap();
    let names: Vec<&str> = list.as_array().unwrap().iter().map(|one| one["script_id"].as_str().unwrap()).collect();
    assert_eq!(names, ["one", "two"]);
    assert_eq!((list[0]["code"].as_str(), list[0]["state"]["status"].as_str()), (Some(code), Some("started")));
    assert_eq!(list[0]["variables"]["@x"]["metrictype"], "histogram");
    let tracepoints = text(&mut peer, "bcc.agent.tracepoints");
    let events: Vec<&str> = tracepoints.split(',').collect();
    for event in ["tracepoint:sched:sched_switch", "tracepoint:syscalls:sys_enter_getppid"] {
        assert!(events.contains(&event), "{event}: {tracepoints}");
    }
    assert_eq!(peer.close().0.code(), Some(0));

    // Without the section there is nothing to list.
    fs::write(home.config(), CONFIG.split("[scripts]").next().unwrap()).unwrap();
    let mut peer = Peer::ready(&home, &[]);
    assert!(["scripts", "tracepoints"].iter().all(|name| !is_named(&mut peer, &format!("bcc.agent.{name}"))));
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn orders_for_scripts_need_no_privilege_of_the_agent() {
    let Some(home) = home() else { return };
    write(&home, "one.bt", SECONDS);
    write(&home, "over.bt", "BEGIN { @x = 1; exit(); }\n");
    let mut peer = Peer::ready(&home, &[]);
    wait_for_status(&mut peer, "one", "started");
    assert_eq!(order(&mut peer, "script.one", "stop"), PmErr::PERMISSION.0, "nobody knows who asks");
    by_root(&mut peer);
    let first = pid_of(&mut peer, "one");
    assert_eq!(order(&mut peer, "script.one", "start"), 0, "it runs already");
    assert_eq!(order(&mut peer, "script.one", "stop"), 0, "{}", home.log());
    wait_for_end(first);
    assert!(!is_named(&mut peer, "bcc.script.one.status"));
    assert_eq!(state_of(&mut peer, "one").as_deref(), Some("stopped"));
    let how = values(&mut peer, "bcc.agent.module.status")["script.one"].clone();
    assert!(how.contains("pmstore -i script.one bcc.agent.module.control start"), "{how}");
    assert_eq!(order(&mut peer, "script.one", "start"), 0, "{}", home.log());
    wait_for_status(&mut peer, "one", "started");
    let second = pid_of(&mut peer, "one");
    assert_eq!(order(&mut peer, "script.one", "restart"), 0);
    wait_for_status(&mut peer, "one", "started");
    wait_for_end(second);
    assert_ne!(pid_of(&mut peer, "one"), second);

    // One that is over restarts.
    wait_for_status(&mut peer, "over", "stopped");
    wait_for_value(&mut peer, "bcc.script.over.data.x", "1");
    assert_eq!(order(&mut peer, "script.over", "restart"), 0);
    wait_for_value(&mut peer, "bcc.script.over.starts", "1");

    // Modules and pairs take privileges that this agent has given up.
    assert_eq!(order(&mut peer, "sysfork", "stop"), PmErr::BADSTORE.0);
    assert_eq!(reload(&mut peer), PmErr::BADSTORE.0);
    let said = text(&mut peer, "bcc.agent.control");
    assert!(
        said.contains(
            "restart the agent, which keeps them if there is a directory programs.d or a line `load_later = True`"
        ),
        "{said}"
    );
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn a_reload_starts_and_ends_scripts_and_says_what_it_cannot() {
    let Some(home) = home() else { return };
    let config = CONFIG.replace("[pmda]\n", "[pmda]\nload_later = True\n");
    fs::write(home.config(), &config).unwrap();
    write(&home, "kept.bt", SECONDS);
    let mut peer = Peer::ready(&home, &[]);
    by_root(&mut peer);
    wait_for_status(&mut peer, "kept", "started");
    let kept = pid_of(&mut peer, "kept");
    write(&home, "new.bt", "BEGIN { @x = 1; }\n");
    assert_eq!(reload(&mut peer), 0, "{}", home.log());
    assert!(is_named(&mut peer, "bcc.script.new.data.x"));
    wait_for_status(&mut peer, "new", "started");
    let new = pid_of(&mut peer, "new");

    fs::write(home.config(), config.replace("memory = 300", "memory = 400")).unwrap();
    assert_eq!(reload(&mut peer), PmErr::BADSTORE.0);
    let said = text(&mut peer, "bcc.agent.control");
    assert!(
        said.starts_with("nothing was changed: ") && said.contains("[scripts] is read at the start only"),
        "{said}"
    );
    home.wait_for_log("[scripts] is read at the start only");
    assert_eq!((pid_of(&mut peer, "kept"), pid_of(&mut peer, "new")), (kept, new), "the old state");

    fs::write(home.config(), &config).unwrap();
    fs::remove_file(home.path("scripts.d/new.bt")).unwrap();
    peer.agent.signal(Signal::SIGHUP);
    wait_for("its end", || (!is_named(&mut peer, "bcc.script.new.status")).then_some(()));
    wait_for_end(new);
    assert_eq!(text(&mut peer, "bcc.script.kept.starts"), "1");

    // Without the section no script runs, and with it again all do.
    fs::write(home.config(), config.split("[scripts]").next().unwrap()).unwrap();
    assert_eq!(reload(&mut peer), 0, "{}", home.log());
    wait_for_end(kept);
    assert!(!is_named(&mut peer, "bcc.script.kept.status"));
    fs::write(home.config(), &config).unwrap();
    assert_eq!(reload(&mut peer), 0, "{}", home.log());
    wait_for_status(&mut peer, "kept", "started");
    assert!(values(&mut peer, "bcc.proc.sysfork").contains_key(""), "modules go on");
    assert_eq!(peer.close().0.code(), Some(0));
}

fn descriptors(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Returns the number of a process's children, including those that have ended and were not waited for.
fn children(parent: i32) -> usize {
    let processes =
        fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    processes.filter(|process| status(process, "PPid:") == parent.to_string()).count()
}

#[test]
fn twenty_starts_and_stops_of_a_script_leave_nothing_behind() {
    let Some(home) = home() else { return };
    write(&home, "kept.bt", SECONDS);
    write(&home, "one.bt", SECONDS);
    let mut peer = Peer::ready(&home, &[]);
    by_root(&mut peer);
    wait_for_status(&mut peer, "kept", "started");
    let helper: i32 = status(&pid_of(&mut peer, "kept").to_string(), "PPid:").parse().unwrap();
    let agent = peer.agent.pid();
    let (mut programs, mut maps, mut held) = (Vec::new(), Vec::new(), None);
    for round in 0..20 {
        // Some are stopped while bpftrace compiles them.
        if round % 3 == 0 {
            wait_for_status(&mut peer, "one", "started");
        } else {
            wait_for("its process", || (pid_of(&mut peer, "one") > 0).then_some(()));
        }
        let (pid, pipes) = (pid_of(&mut peer, "one"), descriptors(agent));
        programs.extend(programs_of(pid));
        maps.extend(bpf_of(pid, "map_id:", "map_id:").into_keys());
        assert_eq!(order(&mut peer, "script.one", "stop"), 0, "{}", home.log());
        wait_for_end(pid);
        wait_seconds(20, "the helper to wait for it", || (children(helper) == 1).then_some(()));
        wait_seconds(20, "the agent to close its pipes", || (descriptors(agent) == pipes - 2).then_some(()));
        let now = (descriptors(agent), descriptors(helper), programs_of(agent).len());
        assert_eq!(*held.get_or_insert(now), now, "round {round}");
        assert_eq!(order(&mut peer, "script.one", "start"), 0, "{}", home.log());
    }
    assert_eq!(order(&mut peer, "script.one", "stop"), 0, "{}", home.log());
    assert!(!programs.is_empty() && !maps.is_empty());
    wait_seconds(20, "the kernel to free programs", || still_loaded(&programs).is_empty().then_some(()));
    let is_left = |id: &u64| libbpf_rs::query::MapInfoIter::default().any(|info| u64::from(info.id) == *id);
    wait_seconds(20, "the kernel to free maps", || (!maps.iter().any(is_left)).then_some(()));
    assert_eq!(text(&mut peer, "bcc.script.kept.starts"), "1");
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn a_map_that_is_not_printed_is_logged_once() {
    let Some(home) = home() else { return };
    write(&home, "one.bt", "// custom-output-block\nBEGIN { @x = 1; @never = 2; }\ninterval:s:1 { print(@x); }\n");
    let mut peer = Peer::ready(&home, &[]);
    wait_for_value(&mut peer, "bcc.script.one.data.x", "1");
    for _ in 0..20 {
        assert_eq!(text(&mut peer, "bcc.script.one.data.never"), "");
        assert_eq!(text(&mut peer, "bcc.script.one.data.x"), "1");
    }
    let log = home.log();
    let lines = |of: &str| log.lines().filter(|line| line.contains(of)).count();
    assert_eq!(lines("no values: @never was not printed yet"), 1, "{log}");
    assert!(lines("has values again") <= 1, "{log}");
    assert_eq!(peer.close().0.code(), Some(0));
}

/// A stand-in for bpftrace with its output on a kernel without kprobes, and its end there if only one hook is asked for.
const SKIPS: &str = include_str!("../programs/bpftrace_skips.sh");

#[test]
fn a_script_without_its_hooks_has_failed() {
    let Some(home) = home() else { return };
    let bpftrace = home.path("bpftrace");
    fs::write(&bpftrace, SKIPS).unwrap();
    fs::set_permissions(&bpftrace, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(home.config(), format!("{CONFIG}bpftrace = {}\n", bpftrace.display())).unwrap();
    write(&home, "all.bt", "BEGIN { }\nkprobe:vfs_open,\nkprobe:vfs_read { @[func] = count(); }\nEND { }\n");
    write(&home, "one.bt", "kprobe:only { @ = count(); }\n");
    let check = |name: &str| {
        let file = home.path("scripts.d").join(name);
        let output = home.run(&["--check", file.to_str().unwrap()]);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = check("all.bt");
    assert!(code == Some(2) && said.contains("attached to none of its 2 hooks: kprobe:vfs_open"), "{code:?} {said}");
    let (code, said) = check("one.bt");
    assert!(code == Some(1) && said.contains("Error attaching probe: 'kprobe:only'"), "{code:?} {said}");
    assert_eq!(home.run(&["--check"]).status.code(), Some(1));

    let mut peer = Peer::ready(&home, &[]);
    wait_for_status(&mut peer, "all", "started");
    wait_for("its state", || (state_of(&mut peer, "all").as_deref() == Some("failed")).then_some(()));
    let error = text(&mut peer, "bcc.script.all.error");
    assert!(error.starts_with("attached to none of its 2 hooks: kprobe:vfs_open, kprobe:vfs_read"), "{error}");
    assert!(text(&mut peer, "bcc.script.all.output").contains("WARNING: could not attach probe kprobe:vfs_open"));
    assert_eq!(text(&mut peer, "bcc.script.all.probes"), "2");
    wait_for_status(&mut peer, "one", "error");
    assert_eq!(peer.close().0.code(), Some(0));
}
