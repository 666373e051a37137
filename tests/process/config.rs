//! Bad days of the configuration: each is told with its file, its line, what stands there and what was expected, and the
//! agent ends before it serves a wrong value; what is only superfluous is warned of.

use crate::peer::Peer;
use crate::support::{lacks_bpf, told, Home, ALL, ONE};
use std::time::Duration;

/// What the agent says about a configuration that it does not run, in its log and on standard error with `--check`.
#[track_caller]
fn refused(config: &str, parts: &[&str]) {
    let home = Home::new(config);
    let mut peer = Peer::start(&home, &[]);
    let (status, rest) = peer.rest();
    assert_eq!((status.code(), rest), (Some(1), Vec::new()), "{config}\n{}", home.log());
    assert!(home.log().trim_end().lines().last().unwrap().starts_with("Log finished "), "{}", home.log());
    for (at, said) in [("serving", home.log()), ("--check", told(&home.run(&["--check"])))] {
        let complaints: Vec<&str> = said.lines().filter(|line| line.contains(" Error: ")).collect();
        assert_eq!(complaints.len(), 1, "{at}: one complaint: {said}");
        for part in [&["corebcc.conf", "aborting."], parts].concat() {
            assert!(complaints[0].contains(part), "{at}: no `{part}` in {}", complaints[0]);
        }
    }
    assert_eq!(home.run(&["--check"]).status.code(), Some(1));
    assert_eq!(home.run(&[&format!("--trycompile={}", home.config().display())]).status.code(), Some(1));
}

#[test]
fn a_missing_file_is_named() {
    let home = Home::new(ONE);
    std::fs::remove_file(home.config()).unwrap();
    let (status, rest) = Peer::start(&home, &[]).rest();
    assert_eq!((status.code(), rest), (Some(1), Vec::new()));
    assert!(home.log().contains("corebcc.conf") && home.log().contains("No such file"), "{}", home.log());
    let output = home.run(&["--check"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(told(&output).contains("corebcc.conf"), "{}", told(&output));
}

#[test]
fn a_directory_or_bytes_instead_of_a_file_are_refused() {
    let home = Home::new(ONE);
    std::fs::remove_file(home.config()).unwrap();
    std::fs::create_dir(home.config()).unwrap();
    assert_eq!(Peer::start(&home, &[]).rest().0.code(), Some(1));
    assert!(home.log().contains("corebcc.conf"), "{}", home.log());
    std::fs::remove_dir(home.config()).unwrap();
    std::fs::write(home.config(), [0xff, 0xfe, 0, 1, b'\n', b'[']).unwrap();
    assert_eq!(home.run(&["--check"]).status.code(), Some(1));
    std::fs::write(home.config(), "").unwrap();
    let output = home.run(&["--check"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(told(&output).contains("no section [pmda]"), "{}", told(&output));
}

#[test]
fn bad_syntax_is_told_with_its_line() {
    refused("[pmda]\nmodules = sysfork\n[sysfork\nmodule = sysfork\ncluster = 2\n", &["corebcc.conf:3"]);
    refused("modules = sysfork\n", &["corebcc.conf:1"]);
    refused("[pmda]\nmodules = sysfork\njust words\n", &["corebcc.conf:3", "just words"]);
    refused(&format!("{ONE}[sysfork]\n"), &["corebcc.conf:7", "sysfork"]);
}

#[test]
fn unknown_modules_and_sections_are_told_with_the_ones_there_are() {
    refused(
        &ONE.replace("module = sysfork", "module = sysfrok"),
        &["corebcc.conf:5", "sysfrok", "netproc", "biolatency"],
    );
    refused(&ONE.replace("modules = sysfork", "modules = sysfork,other"), &["corebcc.conf:2", "other"]);
    refused(
        &format!("{ONE}[pmda2]\n").replace("prefix", "x").replace("[pmda]\n", "[pmda]\nno_such = 1\n"),
        &["corebcc.conf:2", "no_such"],
    );
}

#[test]
fn absurd_values_are_told_with_what_was_expected() {
    let tcplife =
        |option: &str| format!("[pmda]\nmodules = tcplife\n[tcplife]\nmodule = tcplife\ncluster = 3\n{option}\n");
    for (config, parts) in [
        (ONE.replace("cluster = 2", "cluster = 4096"), &["corebcc.conf:6", "cluster", "4096", "4095"][..]),
        (ONE.replace("cluster = 2", "cluster = 305"), &["corebcc.conf:6", "cluster", "300 to 319", "the agent's own"]),
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

/// What the Python agent ran with, in the words of a `bcc.conf` that nobody means to look at again.
#[test]
fn values_that_once_worked_end_no_agent_and_are_warned_of_where_they_are_changed() {
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
        let home = Home::new(&(text + &corebcc::modules::find(module).unwrap().section(line)));
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
fn an_option_that_no_module_has_is_warned_of_with_its_line_and_the_rest_runs() {
    let home = Home::new(&format!("{ONE}queued = yes\n"));
    let mut peer = Peer::ready(&home, &[]);
    peer.unanswered();
    let warning = home.log().lines().find(|line| line.contains(" Warning: ")).map(str::to_owned).unwrap();
    for part in ["corebcc.conf:7", "[sysfork]", "queued", "no such option"] {
        assert!(warning.contains(part), "no `{part}` in {warning}");
    }
    let output = home.run(&["--check"]);
    assert!(told(&output).contains("corebcc.conf:7"), "{}", told(&output));
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
            assert!(row.ends_with("ok") || row.contains("refused"), "{row}");
            assert!(table.lines().any(|line| line.starts_with(module) && line.ends_with("ok")), "{table}");
        }
    }
    let output = home.run(&[&format!("--trycompile={}", home.config().display())]);
    assert_eq!(output.status.code(), Some(0), "{}", told(&output));
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("Trying to compile config "), "{}", told(&output));
}

/// `--trycompile` has the old agent's manners: what fails without being fatal is no failure.
#[test]
fn a_check_with_a_module_that_fails_ends_with_1_and_says_which() {
    for (fatal, trycompile) in [("False", 0), ("True", 1)] {
        let home = Home::new(&ONE.replace("False", fatal));
        let output = home.run(&["--check", "--btf", "/nonexistent"]);
        assert_eq!(output.status.code(), Some(1), "{}", told(&output));
        let table = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(table.contains("sysfork") && table.contains("FAILED: /nonexistent"), "{table}");
        let file = format!("--trycompile={}", home.config().display());
        assert_eq!(home.run(&[&file, "--btf", "/nonexistent"]).status.code(), Some(trycompile));
    }
}

#[test]
fn nothing_of_a_wrong_configuration_reaches_the_protocol_before_the_end() {
    let home = Home::new("[pmda]\nmodules = sysfork\n[sysfork\n");
    let peer = Peer::start(&home, &[]);
    assert!(peer.readable(Duration::from_secs(20)), "neither output nor end");
}
