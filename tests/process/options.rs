//! Effects of options that no module's own test shows, and the log meanwhile: a line for the start, each module and the end, and a
//! sentence for each option without effect.

use crate::peer::Peer;
use crate::reference::pmcd::{self as wire, names};
use crate::support::{config, Home, ONE};
use corebcc::pcp::Pmid;
use std::collections::BTreeSet;

/// Returns the texts of a log, without time and process.
fn texts(log: &str) -> Vec<String> {
    log.lines().filter_map(|line| line.split_once(") ")).map(|(_, text)| text.to_owned()).collect()
}

/// The lines for start, modules, readiness and end have the agent's own words, and there are no others.
#[test]
fn the_log_has_a_line_for_the_start_each_module_and_the_end() {
    if crate::support::lacks_bpf() {
        return;
    }
    let home = Home::new(&config(&["sysfork", "runqlat"]));
    let mut peer = Peer::ready(&home, &[]);
    let pid = peer.agent.pid();
    peer.close();
    let log = home.log();
    let texts = texts(&log);
    let [start, sysfork, runqlat, privileges, ready, end] = &texts[..] else { panic!("not six lines: {log}") };
    let version = env!("CARGO_PKG_VERSION");
    let file = home.config().display().to_string();
    assert_eq!(*start, format!("Info: version {version}, pid {pid}, configuration {file}, 2 modules enabled"));
    assert_eq!(sysfork, "Info: sysfork: attached to task_newtask by tp_btf");
    assert!(runqlat.starts_with("Info: runqlat: attached to sched_"), "{log}");
    assert_eq!(privileges, "Info: privileges dropped; kept for the modules: CAP_BPF; system calls limited");
    let took = ready.strip_prefix("Info: ready: 2 of 2 modules loaded in ").and_then(|rest| rest.strip_suffix(" s"));
    assert!(took.and_then(|took| took.parse::<f64>().ok()).is_some_and(|took| took < 60.0), "{log}");
    assert_eq!(end, "Info: pmcd closed the connection");
}

/// A module that fails has one line, with the hook, the cause, and the kernel's message once.
#[test]
fn the_log_says_once_why_a_module_is_not_loaded() {
    if crate::support::lacks_bpf() {
        return;
    }
    let home = Home::new(&config(&["sysfork", "runqlat"]));
    let mut command = home.agent(&["--notready"]);
    let mut peer = Peer::of(&home, command.env("COREBCC_AVOID", "tp__task_newtask,raw__task_newtask"));
    peer.greet();
    peer.read();
    peer.close();
    let log = home.log();
    let of_module: Vec<String> = texts(&log).into_iter().filter(|text| text.contains("sysfork")).collect();
    let [failure, ready] = &of_module[..] else { panic!("not two lines: {log}") };
    assert!(failure.starts_with("Error: sysfork: not loaded: no way to attach to task_newtask"), "{log}");
    assert_eq!(failure.matches("the kernel said: ").count(), 1, "{log}");
    assert!(ready.starts_with("Info: ready: 1 of 2 modules loaded in ") && ready.ends_with(" s, not loaded: sysfork"));
}

#[test]
fn debug_tells_of_what_was_refused_and_of_refreshes() {
    let home = Home::new(&format!("{ONE}debug = True\n"));
    let mut command = home.agent(&["--notready"]);
    let mut peer = Peer::of(&home, command.env("COREBCC_AVOID", "tp_btf"));
    peer.greet();
    home.wait_for_log("ready: ");
    peer.read();
    let pmids = crate::support::rows::rows().filter(|row| row.module == "sysfork").map(|row| row.pmid());
    peer.ask(&wire::fetch(&pmids.collect::<Vec<_>>()));
    let log = home.log();
    assert!(log.contains("sysfork: Debug logging enabled."), "{log}");
    if !crate::support::lacks_bpf() {
        assert!(log.contains("sysfork: task_newtask: tp_btf is refused: passed over"), "{log}");
        assert!(log.contains("sysfork: task_newtask: loaded as raw_tp"), "{log}");
        assert!(log.contains("Info: sysfork: attached to task_newtask by raw_tp\n"), "{log}");
        assert!(log.contains("sysfork: refreshed, 1 instances"), "{log}");
    }
    let quiet = Home::new(ONE);
    let mut peer = Peer::ready(&quiet, &[]);
    peer.unanswered();
    let log = quiet.log();
    assert!(!["refreshed", "Debug", "refused", "loaded as"].iter().any(|word| log.contains(word)), "{log}");
    if !crate::support::lacks_bpf() {
        assert!(log.contains("Info: sysfork: attached to task_newtask by tp_btf\n"), "{log}");
    }
}

#[test]
fn prefixes_are_of_all_modules_or_of_one() {
    let text = config(&["sysfork", "runqlat"]).replacen("[pmda]\n", "[pmda]\nprefix = one.\n", 1);
    let home = Home::new(&text.replace("[runqlat]\n", "[runqlat]\nprefix = two.three.\n"));
    let mut peer = Peer::ready(&home, &[]);
    let listed =
        |peer: &mut Peer, root| names(&peer.ask(&wire::traverse(root))).into_iter().map(|(_, name)| name).collect();
    let one: Vec<String> = listed(&mut peer, "one.proc");
    let two: Vec<String> = listed(&mut peer, "two.three.runq.latency");
    assert_eq!((one, two), (vec!["one.proc.sysfork".to_owned()], vec!["two.three.runq.latency".to_owned()]));
}

/// The second names belong to the same metrics, and nothing below `bpf` is served unasked.
#[test]
fn pmdabpfs_names_are_served_where_they_are_asked_for() {
    const NAME: i32 = -12357;
    let listed = |reply: &[u8]| -> Vec<String> { names(reply).into_iter().map(|(_, name)| name).collect() };
    for unasked in ["", "bpf_names = False\n"] {
        let home = Home::new(&(config(&["netproc"]) + unasked));
        let mut peer = Peer::ready(&home, &[]);
        assert_eq!(peer.error(&wire::traverse("bpf")), NAME, "{unasked}");
        assert_eq!(peer.error(&wire::lookup("bpf.proc.net.tcp.send.bytes")), NAME, "{unasked}");
    }
    let kinds = ["tcp", "udp"].iter().flat_map(|protocol| ["send", "recv"].map(|way| format!("{protocol}.{way}")));
    let metrics: Vec<String> = kinds.flat_map(|kind| ["calls", "bytes"].map(|what| format!("{kind}.{what}"))).collect();
    for (prefix, ours) in [("", "bcc"), ("prefix = own.\n", "own"), ("prefix = bpf.\n", "bpf")] {
        let home = Home::new(&format!("{}{prefix}bpf_names = True\n", config(&["netproc"])));
        let mut peer = Peer::ready(&home, &[]);
        for (item, metric) in (0..).zip(&metrics) {
            let pmid = Pmid::new(149, 40, item);
            let both =
                [format!("{ours}.proc.net.{metric}"), format!("bpf.proc.net.{}", metric.replace("calls", "packets"))];
            for name in &both {
                assert_eq!(wire::word(&peer.ask(&wire::lookup(name)), 20), pmid.0, "{name}");
            }
            let told: BTreeSet<String> = listed(&peer.ask(&wire::names_of(pmid))).into_iter().collect();
            assert_eq!(told, both.into());
        }
        let below = listed(&peer.ask(&wire::traverse("bpf.proc.net")));
        assert_eq!(below.len(), if ours == "bpf" { 12 } else { 8 }, "{below:?}");
    }
    let home = Home::new(&(config(&["netproc"]) + "bpf_names = perhaps\n"));
    assert_eq!(home.run(&["--check"]).status.code(), Some(1));
}

/// The Python agent's modules failed without a process at the start, unless they were to look again. This agent counts new processes,
/// with or without the option for that.
#[test]
fn the_log_tells_of_filters_in_the_original_agents_words() {
    if crate::support::lacks_bpf() || crate::support::lacks_host_pids() {
        return;
    }
    let modules = ["syscount", "tracepoint_hits"];
    let with = |refresh: &str, process: &str| {
        let mut text = format!("[pmda]\nmodules = {}\nprocess_refresh = {refresh}\n", modules.join(","));
        modules.iter().for_each(|module| {
            text += &corebcc::modules::find(module).unwrap().section(&format!("process = {process}"));
        });
        Home::new(&text)
    };
    let home = with("0", "no_such_process");
    let file = format!("--trycompile={}", home.config().display());
    assert_eq!(home.run(&[&file]).status.code(), Some(0), "{}", home.log());
    for said in ["Error: syscount: No process to attach found.", "Error: tracepoint_hits: No process to trace found."] {
        assert!(texts(&home.log()).iter().any(|text| text == said), "{said}: {}", home.log());
    }
    assert!(!home.log().contains("dynamic process filtering"), "{}", home.log());

    let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
    let home = with("1", &child.id().to_string());
    let mut peer = Peer::ready(&home, &[]);
    let tracing = format!("Info: syscount: Tracing PID {}: sleep 100.", child.id());
    crate::support::wait_for(&tracing, || texts(&home.log()).contains(&tracing).then_some(()));
    child.kill().unwrap();
    child.wait().unwrap();
    let gone = modules.map(|module| format!("Info: {module}: No process to trace found."));
    crate::support::wait_for(&gone.join(" "), || {
        gone.iter().all(|gone| texts(&home.log()).contains(gone)).then_some(())
    });
    peer.close();
    let starts = texts(&home.log()).into_iter().filter(|text| text.contains("Starting dynamic")).collect::<Vec<_>>();
    assert_eq!(starts, ["Info: Starting dynamic process filtering, interval 1 s."]);

    let home = with("60", "no_such_process");
    home.run(&[&format!("--trycompile={}", home.config().display())]);
    for said in ["syscount: No process to attach", "tracepoint_hits: No process to trace"] {
        let said = format!("Info: {said} found, activation postponed.");
        assert!(texts(&home.log()).contains(&said), "{said}: {}", home.log());
    }
}

/// The section may have another name than its module.
#[test]
fn modules_log_under_their_sections_and_say_their_hooks() {
    for (module, line, said) in [
        ("biolatency", "", "disk.all.latency is without time in the queue: from the issue of a request to the device."),
        (
            "biolatency",
            "queued = True",
            "disk.all.latency includes time in the queue: from the allocation of a request.",
        ),
        ("tracepoint_hits", "tracepoints = no:such.*", "no:such.* is left out: "),
        ("uprobe_hits", "uprobes = c:no_such", "c:no_such is left out: "),
        ("usdt_hits", "usdts = /no/such:x", "/no/such:x is left out: "),
        ("tcplife", "lport = 80", "Filtering on local ports: [80]."),
        ("tcplife", "", "attached to inet_sock_set_state by "),
        ("runqlat", "", "attached to sched_switch by "),
    ] {
        if said.starts_with("attached") && crate::support::lacks_bpf() {
            continue;
        }
        let section = corebcc::modules::find(module).unwrap().section(line);
        let section = section.replace(&format!("[{module}]"), "[ours]");
        let home = Home::new(&format!("[pmda]\nmodules = ours\nmodule_failure_fatal = False\n{section}"));
        home.run(&[&format!("--trycompile={}", home.config().display())]);
        let texts = texts(&home.log());
        let its =
            |text: &String| text.split_once(": ").is_some_and(|(_, text)| text.starts_with(&format!("ours: {said}")));
        assert!(texts.iter().any(its), "{module} {line}: {}", home.log());
        assert!(!home.log().contains(&format!(" {module}: ")), "{}", home.log());
    }
}

#[test]
fn an_option_without_effect_says_so() {
    for (module, line, said) in [
        ("sysfork", "pmda_indom_cache = False", "pmda_indom_cache has no effect"),
        ("tcpperpid", "highres = True", "highres has no effect"),
        ("tcpperpid", "buffer_page_count = 64", "buffer_page_count has no effect"),
        ("tcpretrans", "buffer_page_count = 64", "buffer_page_count has no effect"),
        ("tracepoint_hits", "compile_test = False", "compile_test has no effect"),
        ("syscount", "details = True", "details has no effect without process"),
        ("kprobe_hits", "details = True", "details have no effect without the option process"),
        ("tcptop", "interval = -1", "with a negative interval there are no values"),
        ("biotop", "interval = -1", "with a negative interval there are no values"),
    ] {
        let home = Home::new(&format!("{}{line}\n", config(&[module])));
        let file = format!("--trycompile={}", home.config().display());
        home.run(&[&file]);
        assert!(
            home.log().contains(&format!("{module}: {said}")) || home.log().contains(&format!("[{module}] {said}")),
            "{line}: {}",
            home.log()
        );
    }
}

/// The original's tracepoints are in no kernel since 5.18.
#[test]
fn the_shipped_example_of_tracepoints_is_there() {
    if crate::support::lacks_bpf() {
        return;
    }
    let shipped = include_str!("../../corebcc.conf").replace("\n#tracepoints = ", "\ntracepoints = ");
    let modules = shipped.lines().find(|line| line.starts_with("modules = ")).unwrap();
    let home = Home::new(&shipped.replace(modules, "modules = tracepoint_hits"));
    let output = home.run(&["--check"]);
    assert_eq!(output.status.code(), Some(0), "{}", crate::support::told(&output));
    assert!(!crate::support::told(&output).contains("left out"), "{}", crate::support::told(&output));
}
