//! Errors in the configuration: each is reported with its file, its line, the text found and the text expected, by the agent's
//! metrics, in its log and by `--check`. It costs the module that it concerns, never the agent; superfluous text only causes a
//! warning.

use crate::own::values;
use crate::peer::Peer;
use crate::reference::pmcd as wire;
use crate::support::{lacks, lacks_bpf, told, Home, ALL, ONE};
use corebcc::modules::{find, MODULES};
use corebcc::pcp::{PmErr, Pmid};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Output;

/// Returns the lines about the configuration, without the stamps of the log.
fn errors(said: &str) -> Vec<String> {
    let words = |line: &str| {
        let words = [" Error: ", " Warning: "].iter().find_map(|level| Some(line.split_once(level)?.1));
        words.unwrap_or(line).to_owned()
    };
    said.lines().map(words).filter(|line| line.contains("corebcc.conf") && !line.contains(" Info: ")).collect()
}

/// Returns the standard error of a command.
fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Starts an agent whose configuration has errors with these parts, and checks that it serves, and that its metric, its log and
/// `--check` report the same.
#[track_caller]
fn wrong(config: &str, wanted: &[&[&str]]) -> (Home, Peer) {
    let home = Home::new(config);
    let (mut peer, home) = (Peer::ready(&home, &["--btf", "/nonexistent"]), home);
    let status = values(&mut peer, "bcc.agent.configuration.status").remove("").unwrap();
    assert_eq!(values(&mut peer, "bcc.agent.configuration.errors")[""], wanted.len().to_string(), "{status}");
    let check = home.run(&["--check", "--btf", "/nonexistent"]);
    assert_eq!(check.status.code(), Some(1));
    for (at, said) in [("serving", home.log()), ("--check", said(&check))] {
        let said = errors(&said).into_iter().filter(|line| !line.contains("not loaded: ")).collect::<Vec<_>>();
        assert_eq!(said.len(), wanted.len(), "{at}: {said:?}");
        for (line, parts) in said.iter().zip(wanted) {
            assert!(status.contains(line.as_str()), "{at}: `{line}` is not in {status}");
            for part in [&["corebcc.conf"], *parts].concat() {
                assert!(line.contains(part), "{at}: no `{part}` in {line}");
            }
        }
    }
    let trycompile = format!("--trycompile={}", home.config().display());
    assert_eq!(home.run(&[&trycompile, "--btf", "/nonexistent"]).status.code(), Some(1));
    (home, peer)
}

/// Starts an agent whose configuration has one error, as [`wrong`].
#[track_caller]
fn refused(config: &str, parts: &[&str]) {
    assert_eq!(wrong(config, &[parts]).1.close().0.code(), Some(0));
}

/// Returns state, sentence and the value of `up` of each module.
fn modules(peer: &mut Peer) -> BTreeMap<String, (String, String, Option<String>)> {
    let states = values(peer, "bcc.agent.module.state");
    let mut sentences = values(peer, "bcc.agent.module.status");
    let mut up = values(peer, "bcc.agent.module.up");
    let row = |(name, state): (String, String)| {
        let rest = (state, sentences.remove(&name).unwrap(), up.remove(&name));
        (name, rest)
    };
    states.into_iter().map(row).collect()
}

/// Returns the answer to a fetch of a module's first metric: the number of values, or the error.
fn answer(peer: &mut Peer, module: &str) -> i32 {
    wire::result(&peer.ask(&wire::fetch(&[Pmid::new(149, find(module).unwrap().cluster(), 0)]))).remove(0).numval
}

/// Returns the shipped configuration with this list of modules.
fn shipped(list: &str) -> String {
    let shipped = include_str!("../../corebcc.conf");
    shipped.replacen("modules = biolatency,runqlat,netproc,oomkill", &format!("modules = {list}"), 1)
}

/// Advice of `bcc.agent.module.status` for these modules once ended the agent.
#[test]
fn a_module_without_its_list_of_probes_fails_alone() {
    if lacks_bpf() {
        return;
    }
    const HITS: [(&str, &str); 4] = [
        ("tracepoint_hits", "tracepoints"),
        ("usdt_hits", "usdts"),
        ("uprobe_hits", "uprobes"),
        ("kprobe_hits", "kprobes"),
    ];
    let home = Home::new(&shipped("sysfork,tracepoint_hits,usdt_hits,uprobe_hits,kprobe_hits"));
    let mut peer = Peer::ready(&home, &[]);
    let modules = modules(&mut peer);
    assert_eq!(modules["sysfork"].0, "running");
    assert_eq!(answer(&mut peer, "sysfork"), 1);
    for (name, option) in HITS {
        let (state, sentence, up) = &modules[name];
        let line = 1 + home.read("corebcc.conf").lines().position(|line| line == format!("[{name}]")).unwrap();
        let wanted = format!(":{line}: [{name}] has no option `{option}`; add a line `{option} = ");
        assert!(state == "failed" && sentence.contains(&wanted), "{name}: {state}: {sentence}");
        assert_eq!(up.as_deref(), Some("0"), "{name}");
        assert_eq!(errors(&home.log()).iter().filter(|error| *error == sentence).count(), 1, "{}", home.log());
        assert_eq!(answer(&mut peer, name), PmErr::APPVERSION.0, "{name}");
    }
    assert_eq!(values(&mut peer, "bcc.agent.configuration.errors")[""], "4");
    assert_eq!(peer.close().0.code(), Some(0));
    let check = home.run(&["--check"]);
    assert_eq!((check.status.code(), errors(&said(&check)).len()), (Some(1), 4), "{}", told(&check));
}

/// A user who follows the sentence of a module that is off, to the letter, has no error in the configuration.
#[test]
fn the_advice_of_modules_that_are_off_is_true() {
    let home = Home::new(&shipped("sysfork"));
    let quoted =
        |text: &str, before: &str| text.split(before).nth(1).map(|rest| rest.split('`').next().unwrap().to_owned());
    let advice = |home: &Home| -> BTreeMap<String, String> {
        let mut peer = Peer::ready(home, &["--btf", "/nonexistent"]);
        let off = modules(&mut peer).into_iter().filter(|(_, (state, ..))| state == "off");
        off.map(|(name, (_, sentence, _))| (name, sentence)).collect()
    };
    let config = home.read("corebcc.conf");
    let off = advice(&home);
    assert_eq!(off.len(), MODULES.len() - 1);
    let (mut list, mut text) = (String::from("sysfork"), config);
    for (name, sentence) in off {
        assert!(sentence.contains(&format!("add {name} to `modules` in [pmda] of {}", home.config().display())));
        list += &format!(",{name}");
        if let Some(line) = quoted(&sentence, "add a line `") {
            text = text.replacen(&format!("\n[{name}]\n"), &format!("\n[{name}]\n{line}\n"), 1);
        }
    }
    fs::write(home.config(), text.replacen("modules = sysfork\n", &format!("modules = {list}\n"), 1)).unwrap();
    let mut peer = Peer::ready(&home, &["--btf", "/nonexistent"]);
    assert_eq!(values(&mut peer, "bcc.agent.configuration.errors")[""], "0", "{}", home.log());
    assert!(modules(&mut peer).values().all(|(state, ..)| state == "failed"), "none is off, and there are no types");

    // Where there is no section, the sentence has the whole of it; where there is one that is wrong, what is wrong with it.
    let bare = Home::new(&format!("{ONE}[b]\nmodule = biolatency\ncluster = 2\nqueued = perhaps\n"));
    let off = advice(&bare);
    let lines =
        "a section [kprobe_hits] with the lines `module = kprobe_hits`, `cluster = 103`, `kprobes = kprobe:vfs_open`";
    assert!(off["kprobe_hits"].ends_with(lines), "{}", off["kprobe_hits"]);
    assert!(off["biolatency"].contains("add b to `modules`"), "{}", off["biolatency"]);
    assert!(off["biolatency"].contains(":9: [b] cluster: 2 is the cluster of [sysfork] too"), "{}", off["biolatency"]);
    fs::write(bare.config(), bare.read("corebcc.conf").replacen("2\nqueued", "0\nqueued", 1)).unwrap();
    let sentence = &advice(&bare)["biolatency"];
    assert!(sentence.contains(":10: [b] queued: expected a boolean"), "{sentence}");
}

#[test]
fn a_file_that_cannot_be_used_costs_all_modules_not_the_agent() {
    type Spoiled<'a> = (&'a str, &'a dyn Fn(&Home));
    let spoil: [Spoiled<'_>; 7] = [
        ("No such file", &|_| {}),
        ("Is a directory", &|home| fs::create_dir(home.config()).unwrap()),
        (":1: not valid UTF-8", &|home| fs::write(home.config(), [0xff, 0xfe, 0, 1, b'\n', b'[']).unwrap()),
        ("no section [pmda]", &|home| fs::write(home.config(), "").unwrap()),
        ("[pmda] has no option `modules`", &|home| fs::write(home.config(), "[pmda]\n").unwrap()),
        (":7: section [sysfork] is already above", &|home| {
            fs::write(home.config(), format!("{ONE}[sysfork]\n")).unwrap()
        }),
        ("larger than", &|home| fs::write(home.config(), vec![b'#'; 5 << 20]).unwrap()),
    ];
    for (words, spoil) in spoil {
        let home = Home::new("");
        fs::remove_file(home.config()).unwrap();
        spoil(&home);
        let mut peer = Peer::ready(&home, &[]);
        let status = values(&mut peer, "bcc.agent.configuration.status").remove("").unwrap();
        assert!(status.starts_with("1 error, no module runs: ") && status.contains(words), "{words}: {status}");
        let modules = modules(&mut peer);
        assert_eq!(modules.len(), MODULES.len());
        for (name, (state, sentence, _)) in modules {
            assert!(state == "off" && sentence.contains(words), "{name}: {state}: {sentence}");
        }
        assert_eq!(answer(&mut peer, "biolatency"), PmErr::PMID.0, "the defaults do not run in its place");
        assert!(crate::support::programs_of(peer.agent.pid()).is_empty());
        assert_eq!(peer.close().0.code(), Some(0));
        let check = home.run(&["--check"]);
        assert_eq!(check.status.code(), Some(1));
        assert!(errors(&said(&check)).len() == 1 && said(&check).contains(words), "{}", told(&check));
    }
}

#[test]
fn a_file_that_may_not_be_read_is_told() {
    if lacks(&["setpriv"]) {
        return;
    }
    let home = Home::new(ONE);
    let mut command = crate::host::as_nobody(&home);
    fs::set_permissions(home.config(), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let mut peer = Peer::ready_by(&home, command.args(["-l", "-", "--notready"]));
    let status = values(&mut peer, "bcc.agent.configuration.status").remove("").unwrap();
    assert!(status.contains("corebcc.conf: cannot read the configuration: Permission denied"), "{status}");
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn all_errors_are_told_at_once_and_each_costs_its_module() {
    if lacks_bpf() {
        return;
    }
    let text = "[pmda]\nmodules = sysfork,nope,,tcplife,fs.zfsdist,twin\nmodule_failure_fatal = False\nbpf_stats = maybe\nfrob = 1\n\
        [tcplife]\nmodule = tcplife\ncluster = 3\ndport = x\nsession_count = many\ndebug = x\n\
        [z]\nmodule = fs.zfsdist\ncluster = no\n[sysfork]\nmodule = sysfork\ncluster = 2\n[twin]\nmodule = sysfork\ncluster = 9\n";
    let lines = [2, 2, 4, 5, 9, 10, 11, 14, 19].map(|line| format!("corebcc.conf:{line}: "));
    let wanted: Vec<[&str; 1]> = lines.iter().map(|line| [line.as_str()]).collect();
    let wanted: Vec<&[&str]> = wanted.iter().map(|parts| &parts[..]).collect();
    let (home, peer) = wrong(text, &wanted);
    drop(peer);
    let mut peer = Peer::ready(&home, &[]);
    let modules = modules(&mut peer);
    assert_eq!(modules["sysfork"].0, "running");
    assert_eq!(answer(&mut peer, "sysfork"), 1);
    assert_eq!(answer(&mut peer, "tcplife"), PmErr::APPVERSION.0);
    for (name, parts) in [
        ("nope", &["`nope`", "remove it"][..]),
        ("tcplife", &["dport", "session_count", "debug"]),
        ("z", &["cluster"]),
        ("twin", &["runs already as [sysfork]"]),
    ] {
        let (state, sentence, up) = &modules[name];
        assert_eq!((state.as_str(), up.as_deref()), ("failed", Some("0")), "{name}");
        assert!(parts.iter().all(|part| sentence.contains(part)), "{name}: {sentence}");
    }
    assert!(!modules.contains_key("zfsdist"), "it is enabled as [z]");
    assert_eq!(peer.close().0.code(), Some(0));
}

/// `module_failure_fatal = True` asks for all modules or none. The errors can be fetched nevertheless.
#[test]
fn where_failures_are_fatal_an_error_costs_every_module() {
    for fatal in ["module_failure_fatal = True\n", ""] {
        let text = shipped("sysfork,tracepoint_hits").replacen("module_failure_fatal = False\n", fatal, 1);
        let home = Home::new(&text);
        let mut peer = Peer::ready(&home, &[]);
        let modules = modules(&mut peer);
        for name in ["sysfork", "tracepoint_hits"] {
            let (state, sentence, _) = &modules[name];
            assert_eq!(state, "failed");
            let parts = ["`module_failure_fatal = True`", "[tracepoint_hits] has no option `tracepoints`"];
            assert!(parts.iter().all(|part| sentence.contains(part)), "{name}: {sentence}");
            assert_eq!(answer(&mut peer, name), PmErr::APPVERSION.0);
        }
        let status = values(&mut peer, "bcc.agent.configuration.status").remove("").unwrap();
        assert!(status.starts_with("1 error, no module runs: "), "{status}");
        assert_eq!(peer.close().0.code(), Some(0));
    }
}

#[test]
fn a_module_may_be_enabled_by_what_its_section_says_it_is() {
    let home = Home::new(&shipped("fs.ext4dist,sysfork"));
    let mut peer = Peer::ready(&home, &["--btf", "/nonexistent"]);
    let status = values(&mut peer, "bcc.agent.configuration.status").remove("").unwrap();
    assert_eq!(status, format!("{}: no errors, 2 modules enabled", home.config().display()));
    assert!(modules(&mut peer)["ext4dist"].1.contains("/nonexistent"), "it is to be loaded");
    assert_eq!(peer.close().0.code(), Some(0));
}

#[test]
fn bad_syntax_is_told_with_its_line() {
    refused("[pmda]\nmodules = sysfork\n[sysfork\nmodule = sysfork\ncluster = 2\n", &["corebcc.conf:3"]);
    refused("modules = sysfork\n", &["corebcc.conf:1"]);
    refused("[pmda]\nmodules = sysfork\njust words\n", &["corebcc.conf:3", "just words"]);
    refused(&format!("{ONE}[sysfork]\n"), &["corebcc.conf:7", "sysfork"]);
}

#[test]
fn unknown_modules_and_sections_are_told_with_the_known() {
    refused(
        &ONE.replace("module = sysfork", "module = sysfrok"),
        &["corebcc.conf:5", "sysfrok", "netproc", "biolatency"],
    );
    refused(&ONE.replace("modules = sysfork", "modules = sysfork,other"), &["corebcc.conf:2", "other"]);
    wrong(
        &format!("{ONE}[pmda2]\n").replace("[pmda]\n", "[pmda]\nno_such = 1\n"),
        &[&["corebcc.conf:2", "no_such"], &["corebcc.conf:8", "[pmda2] has no effect", "did you mean `pmda`?"]],
    );
}

#[test]
fn absurd_values_are_told_with_what_was_expected() {
    let tcplife =
        |option: &str| format!("[pmda]\nmodules = tcplife\n[tcplife]\nmodule = tcplife\ncluster = 3\n{option}\n");
    for (config, parts) in [
        (ONE.replace("cluster = 2", "cluster = 4096"), &["corebcc.conf:6", "cluster", "4096", "4095"][..]),
        (ONE.replace("cluster = 2", "cluster = 305"), &["corebcc.conf:6", "cluster", "300 to 349", "the agent's own"]),
        (ONE.replace("[pmda]\n", "[pmda]\nbpf_stats = maybe\n"), &["corebcc.conf:2", "bpf_stats", "maybe", "boolean"]),
        (ONE.replace("cluster = 2", "cluster = -1"), &["corebcc.conf:6", "cluster", "-1"]),
        (ONE.replace("cluster = 2", "cluster ="), &["corebcc.conf:6", "cluster"]),
        (ONE.replace("= False", "= perhaps"), &["corebcc.conf:3", "module_failure_fatal", "perhaps", "boolean"]),
        (ONE.replace("[pmda]\n", "[pmda]\nprefix = 1x\n"), &["corebcc.conf:2", "prefix", "1x"]),
        (tcplife("session_count = many"), &["corebcc.conf:6", "session_count", "many"]),
        (tcplife("buffer_page_count = few"), &["corebcc.conf:6", "buffer_page_count", "few", "4096"]),
        (tcplife("dport = 70000"), &["corebcc.conf:6", "dport", "70000", "65535"]),
        (tcplife("process = (unclosed"), &["corebcc.conf:6", "process", "(unclosed"]),
    ] {
        refused(&config, parts);
    }
    let twins = ALL.replace("cluster = 4\n", "cluster = 3\n");
    refused(&twins, &["corebcc.conf:15", "cluster", "tcplife"]);
}

/// The Python agent ran with these values, from a `bcc.conf` that nobody intends to look at again.
#[test]
fn values_that_once_worked_are_warned_of_where_they_change() {
    for (module, line, said) in [
        ("tcplife", "session_count = 99999999999", "from 0 to 10000; it counts as 10000"),
        ("tcplife", "session_count = -1", "it counts as 0"),
        ("tcplife", "buffer_page_count = 8192", "from 1 to 4096; it counts as 4096"),
        ("tcplife", "buffer_page_count = 100", "no power of two; it counts as 128"),
        ("tcplife", "process = java,", "nothing between commas or behind the last"),
        ("tcplife", "process =", ""),
        ("tcplife", "process = (?!.*test).*java.*", ""),
        ("tcplife", r"process = (?<=/bin/)java\Z", ""),
        ("ucalls", "process =", ""),
        ("ucalls", "language =", ""),
        ("syscount", "errno = 0", ""),
        ("syscount", "errno =", ""),
        ("klockstat", "stack_depth = 200", "from 1 to 16; it counts as 16"),
        ("klockstat", "stack_storage_size = 1000000", "it counts as 262144"),
        ("execsnoop", r"args = (\w+) \1", ""),
        ("tracepoint_hits", "tracepoints = sched:(?!sched_switch).*", ""),
        ("usdt_hits", "usdts = c:setjmp, libc.so.6:longjmp", ""),
        ("usdt_jvm_threads", "process = java\njvm_path = lib/libjvm.so", ""),
    ] {
        let text = format!("[pmda]\nmodules = {module}\nmodule_failure_fatal = False\nprocess_refresh = 99999999999\n");
        let home = Home::new(&(text + &find(module).unwrap().section(line)));
        let output = home.run(&[&format!("--trycompile={}", home.config().display())]);
        let log = home.log();
        assert_eq!(output.status.code(), Some(0), "{line}: {log}");
        let warnings: Vec<&str> = log.lines().filter(|line| line.contains("corebcc.conf:")).collect();
        let about = |key: &str| warnings.iter().filter(|line| line.contains(&format!("] {key}: "))).count();
        assert_eq!(about("process_refresh"), 1, "{log}");
        assert_eq!(warnings.len() - 1, usize::from(!said.is_empty()), "{line}: {log}");
        assert!(
            warnings.iter().any(|line| line.contains("corebcc.conf:8: [") && line.contains(said)) || said.is_empty(),
            "{log}"
        );
    }
}

#[test]
fn an_unknown_option_is_warned_of_with_its_line() {
    let home = Home::new(&format!("{ONE}queued = yes\n"));
    let mut peer = Peer::ready(&home, &[]);
    peer.unanswered();
    let warning = home.log().lines().find(|line| line.contains(" Warning: ")).map(str::to_owned).unwrap();
    for part in ["corebcc.conf:7", "[sysfork]", "queued", "no such option"] {
        assert!(warning.contains(part), "no `{part}` in {warning}");
    }
    let errors = values(&mut peer, "bcc.agent.configuration.status").remove("").unwrap();
    assert!(errors.starts_with("1 error: ") && errors.contains("queued: no such option"), "{errors}");
    let output = home.run(&["--check"]);
    assert!(told(&output).contains("corebcc.conf:7"), "{}", told(&output));
    assert_eq!(output.status.code(), Some(1), "what is not done is no success: {}", told(&output));
    let output = home.run(&[&format!("--trycompile={}", home.config().display())]);
    assert_eq!(output.status.code(), Some(0), "as the Python agent, which passes it over: {}", told(&output));
}

#[test]
fn a_check_that_loads_everything_ends_with_0_and_a_table() {
    if lacks_bpf() {
        return;
    }
    let home = Home::new(ALL);
    for args in [vec!["--check".to_owned()], vec![format!("--check={}", home.config().display())]] {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let output = home.run(&args);
        assert_eq!(output.status.code(), Some(0), "{}", told(&output));
        let table = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(table.starts_with("MODULE "), "{table}");
        for module in ["biolatency", "sysfork", "tcplife", "runqlat", "exectop", "netproc"] {
            let row =
                table.lines().find(|line| line.starts_with(module)).unwrap_or_else(|| panic!("{module}: {table}"));
            let is_ok = |line: &str| line.ends_with("  ok") || line.contains("  ok  (");
            assert!(is_ok(row) || row.contains("refused"), "{row}");
            assert!(table.lines().any(|line| line.starts_with(module) && is_ok(line)), "{table}");
        }
        let hooks = |table: &str| -> Vec<String> {
            let words = |line: &str| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
            table.lines().map(words).collect()
        };
        let own = hooks(&table);
        let once: BTreeSet<&String> = own.iter().collect();
        assert_eq!(own.len(), once.len(), "a row for each hook: {table}");
        let verbose = home.run(&[&["--verbose"], &args[..]].concat());
        let verbose = hooks(&String::from_utf8_lossy(&verbose.stdout));
        assert!(verbose.len() >= own.len() && verbose.iter().collect::<BTreeSet<_>>() == once, "{verbose:?}");
    }
    let output = home.run(&[&format!("--trycompile={}", home.config().display())]);
    assert_eq!(output.status.code(), Some(0), "{}", told(&output));
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("Trying to compile config "), "{}", told(&output));
}

/// `--trycompile` behaves as in the old agent: an error that is not fatal is no failure.
#[test]
fn a_check_with_a_module_that_fails_ends_with_1_and_says_which() {
    for (fatal, trycompile) in [("False", 0), ("True", 1)] {
        let home = Home::new(&ONE.replace("False", fatal));
        let output = home.run(&["--check", "--btf", "/nonexistent"]);
        assert_eq!(output.status.code(), Some(1), "{}", told(&output));
        let table = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(table.lines().any(|line| line.starts_with("sysfork ") && line.ends_with("  FAILED")), "{table}");
        let said = said(&output);
        assert_eq!((said.lines().count(), said.matches("/nonexistent").count()), (1, 1), "the reason, once: {said}");
        assert!(said.starts_with("sysfork: not loaded: /nonexistent"), "as in the log: {said}");
        let file = format!("--trycompile={}", home.config().display());
        assert_eq!(home.run(&[&file, "--btf", "/nonexistent"]).status.code(), Some(trycompile));
    }
}

/// A misspelt name has a hint, and the status is 1 whether or not it costs anything.
#[test]
fn a_check_says_what_may_have_been_meant() {
    let biolatency =
        |line: &str| format!("[pmda]\nmodules = biolatency\n[biolatency]\nmodule = biolatency\ncluster = 0\n{line}\n");
    for (config, words) in [
        (biolatency("queud = True"), ":6: [biolatency] queud: no such option, it has no effect (module biolatency has queued, issue, window, buckets, prometheus, devices, by_size, exemplars, stacked, slow, process_count, buffer_page_count, bpf_names); did you mean `queued`?"),
        (biolatency("enabeld = True"), "did you mean `enabled`?"),
        (biolatency("queued = True # from the allocation"), ":6: [biolatency] queued: expected a boolean (True or False), got `True # from the allocation`; a comment needs a line of its own"),
        (biolatency("queued = on ; from the allocation"), "a comment needs a line of its own"),
        (biolatency("").replace("modules = biolatency", "modules = biolatancy"), ":2: [pmda] modules: there is no section or module `biolatancy`"),
        (biolatency("").replace("modules = biolatency", "modules = biolatancy"), "did you mean `biolatency`?"),
        (biolatency("").replace("modules = biolatency", "modules = biolatency # disks"), "a comment needs a line of its own"),
        (biolatency("").replace("modules = biolatency", "modules = biolatancy,biolatency # disks"), "remove it from `modules`; did you mean `biolatency`?"),
        (biolatency("").replace("module = biolatency", "module = bioltency"), "; did you mean `biolatency`?"),
        (biolatency("").replace("[pmda]", "[PMDA]"), ":1: [PMDA] has to be written [pmda]"),
        (biolatency("").replace("[pmda]\n", "[pmda]\nproces_refresh = 1\n"), "did you mean `process_refresh`?"),
        (biolatency("[bioltaency]\nqueued = True"), ":6: [bioltaency] has no effect: it has no option `module`, and is not enabled; did you mean `biolatency`?"),
        (biolatency("[runqlat]\nmodule = runqlat\ncluster = 4\nprocess = java # the shop"), ":9: [runqlat] process: `# the shop` counts as part of the value; a comment needs a line of its own"),
        (biolatency("[tcplife]\nmodule = tcplife\ncluster = 3\nenabled = True\nsession_count = 20000"), ":10: [tcplife] session_count: `20000` is not from 0 to 10000; it counts as 10000"),
    ] {
        let home = Home::new(&config);
        let output = home.run(&["--check-syntax"]);
        assert_eq!(output.status.code(), Some(1), "{words}: {}", told(&output));
        assert!(said(&output).contains(words), "{words}: {}", told(&output));
    }
}

/// Errors in such a section are reported before somebody enables it; options still to be added are no errors.
#[test]
fn modules_that_are_off_are_checked_and_cost_nothing() {
    if lacks_bpf() {
        return;
    }
    let off = "[tcplife]\nmodule = tcplife\ncluster = many\ndport = x\nsession_count = 20\n\
        [b]\nmodule = biolatency\nqueued = perhaps\nquiet = 1\n\
        [hits]\nmodule = tracepoint_hits\n[other]\nmodule = sysfrok\ncluster = 9\n";
    let text = format!("{ONE}{off}").replace("False", "True");
    let home = Home::new(&text);
    let mut peer = Peer::ready(&home, &[]);
    assert_eq!(modules(&mut peer)["sysfork"].0, "running", "{}", home.log());
    let told_by_agent = values(&mut peer, "bcc.agent.configuration.status").remove("").unwrap();
    assert!(told_by_agent.starts_with("5 errors: "), "no module is lost for them: {told_by_agent}");
    let output = home.run(&["--check-syntax"]);
    let lines = errors(&said(&output));
    let places: Vec<&str> = lines.iter().map(|line| line.split("corebcc.conf:").nth(1).unwrap()).collect();
    let begins = [
        "9: [tcplife] cluster: ",
        "10: [tcplife] dport: ",
        "14: [b] queued: ",
        "15: [b] quiet: ",
        "19: [other] module: ",
    ];
    assert_eq!(places.len(), begins.len(), "{lines:#?}");
    places.iter().zip(begins).for_each(|(place, begin)| assert!(place.starts_with(begin), "{place}"));
    assert_eq!(lines.join("; "), told_by_agent.split_once(": ").unwrap().1, "the same sentences");
    assert_eq!(errors(&home.log()), lines);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_file_is_checked_without_root_and_without_loading() {
    if lacks(&["setpriv"]) {
        return;
    }
    let home = Home::new(ONE);
    let output = crate::host::as_nobody(&home).arg("--check-syntax").output().unwrap();
    let wanted = format!("{}: no errors, 1 module enabled\n", home.config().display());
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned()), (Some(0), wanted));
    assert_eq!(said(&output), "");
    fs::write(home.config(), format!("{ONE}cluster = 3\nwords\n")).unwrap();
    let output = crate::host::as_nobody(&home).arg("--check-syntax").output().unwrap();
    let lines: Vec<String> = said(&output).lines().map(String::from).collect();
    let at = |line: usize| format!("{}:{line}: ", home.config().display());
    assert!(lines.len() == 2 && lines[0].starts_with(&at(7)) && lines[1].starts_with(&at(8)), "{lines:?}");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "2 errors, no module runs\n");
}

/// The output has no stamps, no words of the Python agent, and nothing twice.
#[test]
fn a_check_tells_each_failure_once_and_without_stamps() {
    if lacks_bpf() {
        return;
    }
    let text = format!("{}\nfrob = 1\n", shipped("sysfork,tracepoint_hits,nope,runqlat"));
    let home = Home::new(&text);
    let mut command = home.agent(&["--check"]);
    let output = command.env("COREBCC_AVOID", "tp__task_newtask,raw__task_newtask").output().unwrap();
    let lines: Vec<String> = said(&output).lines().map(String::from).collect();
    assert_eq!(lines.len(), 4, "{lines:#?}");
    for (line, words) in
        lines.iter().zip(["`nope`", "[tracepoint_hits] has no option", "frob", "sysfork: not loaded: "])
    {
        assert!(
            line.contains(words) && !line.contains("pmdacorebcc(") && !line.contains("aborting"),
            "{words}: {line}"
        );
    }
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(table.lines().filter(|line| line.ends_with("  FAILED")).count(), 3, "{table}");
    assert!(lines.iter().all(|line| !table.contains(line)), "{table}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn sections_say_for_themselves_whether_they_are_enabled() {
    let with = |name: &str, line: &str| (format!("\n[{name}]\n"), format!("\n[{name}]\n{line}\n"));
    let mut text = shipped("sysfork,runqlat");
    for (from, to) in
        [with("exectop", "enabled = true"), with("runqlat", "enabled = No"), with("netproc", "enabled = maybe")]
    {
        text = text.replacen(&from, &to, 1);
    }
    let home = Home::new(&text);
    let mut peer = Peer::ready(&home, &["--btf", "/nonexistent"]);
    let modules = modules(&mut peer);
    for (name, state, words) in [
        ("sysfork", "failed", "/nonexistent"),
        ("exectop", "failed", "/nonexistent"),
        ("runqlat", "off", "not enabled; to have it, write `enabled = True` in line "),
        ("netproc", "failed", "[netproc] enabled: expected a boolean"),
        ("tcplife", "off", "add tcplife to `modules`"),
    ] {
        let (is, sentence, _) = &modules[name];
        assert!(is == state && sentence.contains(words), "{name}: {is}: {sentence}");
    }
    // Nothing else is needed.
    let home = Home::new("[pmda]\n[sysfork]\nmodule = sysfork\ncluster = 2\nenabled = on\n");
    let output = home.run(&["--check-syntax"]);
    assert!(told(&output).contains("no errors, 1 module enabled"), "{}", told(&output));
}

/// Modules in files of packages in `conf.d` are enabled, and their options replace those of the site's sections.
#[test]
fn files_in_conf_d_enable_modules_and_override_options() {
    let home = Home::new(ONE);
    let part = |name: &str, text: &str| fs::write(home.path(&format!("conf.d/{name}")), text).unwrap();
    fs::create_dir(home.path("conf.d")).unwrap();
    part("10-disks.conf", "[biolatency]\nmodule = biolatency\ncluster = 0\nenabled = True\n");
    part("20-site.conf", "[pmda]\nprefix = site.\n[biolatency]\nqueued = True\n");
    part("30-old.conf.rpmsave", "no configuration\n");
    let mut peer = Peer::ready(&home, &["--btf", "/nonexistent"]);
    assert_eq!(values(&mut peer, "site.agent.configuration.errors")[""], "0", "{}", home.log());
    assert!(values(&mut peer, "site.agent.module.state")["biolatency"] == "failed", "it is to be loaded");
    assert!(home.log().contains("goes on in "), "{}", home.log());
    assert_eq!(peer.close().0.code(), Some(0));
    part("20-site.conf", "[biolatency]\n\nqueued = perhaps\n");
    let check = home.run(&["--check-syntax"]);
    let place = format!("{}:3: [biolatency] queued: ", home.path("conf.d/20-site.conf").display());
    assert!(said(&check).starts_with(&place) && check.status.code() == Some(1), "{}", told(&check));
    // Nobody but root enables modules.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o646);
    fs::set_permissions(home.path("conf.d/20-site.conf"), mode).unwrap();
    let mut peer = Peer::ready(&home, &["--btf", "/nonexistent"]);
    let status = values(&mut peer, "bcc.agent.configuration.status").remove("").unwrap();
    let wanted = "20-site.conf: cannot read the configuration: others than root can write to it: chmod go-w";
    assert!(status.starts_with("1 error, no module runs: ") && status.contains(wanted), "{status}");
    assert_eq!(peer.close().0.code(), Some(0));
}
