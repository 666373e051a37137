//! `show` as users and programs call it: a sentence if it cannot do what it is asked for, tables, screens and records.

use crate::host::as_nobody;
use crate::own::values;
use crate::peer::Peer;
use crate::support::script::copy_program;
use crate::support::{config, lacks, lacks_bpf, lacks_host_pids, told, wait_for, Home, BINARY, ONE};
use corebcc::modules::MODULES;
use regex::Regex;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the output of `show`. Panics if it fails or writes to standard error.
#[track_caller]
fn shown(home: &Home, args: &[&str]) -> String {
    let output = show(home, args);
    assert!(output.status.success() && output.stderr.is_empty(), "{args:?}: {}", told(&output));
    text(&output.stdout)
}

fn show(home: &Home, args: &[&str]) -> Output {
    home.run(&[&["show"], args].concat())
}

/// Returns the sentence with which `show` fails.
#[track_caller]
fn refusal(home: &Home, args: &[&str]) -> String {
    let output = show(home, args);
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.len(), said.lines().count()), (Some(1), 0, 1), "{}", told(&output));
    said.trim().strip_prefix("pmdacorebcc: ").unwrap_or_else(|| panic!("{said}")).to_owned()
}

#[test]
fn what_show_cannot_do_is_said_in_one_sentence() {
    let home = Home::new(&config(&["biolatency", "execsnoop"]));
    let list = "(`pmdacorebcc show --list` lists all)";
    assert_eq!(
        refusal(&home, &["bcc.disk.all.latncy", "1"]),
        format!("no metric or module `bcc.disk.all.latncy`; did you mean bcc.disk.all.latency? {list}")
    );
    assert_eq!(
        refusal(&home, &["--list", "biolatncy"]),
        format!("no metric or module `biolatncy`; did you mean biolatency? {list}")
    );
    assert_eq!(
        refusal(&home, &["biolatency", "1", "--folded"]),
        "--folded takes stacks, such as bcc.proc.stacks; bcc.disk.all.latency is a histogram"
    );
    assert_eq!(
        refusal(&home, &["execsnoop", "1", "--heatmap"]),
        "--heatmap takes histograms, such as bcc.disk.all.latency; bcc.proc.exec.comm is none"
    );
    assert_eq!(
        refusal(&home, &["biolatency", "1", "-p", "77"]),
        "-p: the rows of bcc.disk.all.latency have no process ids"
    );
    assert_eq!(
        refusal(&home, &["execsnoop", "1", "--cgroup", "a.service"]),
        "--cgroup: the rows of bcc.proc.exec.comm have no cgroups"
    );
    assert_eq!(
        refusal(&home, &["execsnoop", "biolatency", "1", "--csv"]),
        "--csv takes the metrics of one table, and bcc.proc.exec.comm and bcc.disk.all.latency are of two; name one of them, or \
         use --json"
    );
    assert_eq!(
        refusal(&home, &["execsnoop", "1", "--sort", "pidd"]),
        "--sort pidd: no such column; did you mean pid? (columns: comm, pid, ppid, ret, args)"
    );
    assert_eq!(
        refusal(&home, &["biolatency", "1", "1", "--set", "queued=maybe"]),
        "--set queued=maybe: expected a boolean (True or False), got `maybe`"
    );
    assert!(refusal(&home, &["biolatency", "1", "--top"]).starts_with("--top takes a terminal"));
    fs::write(home.config(), "[pmda\n").unwrap();
    assert!(refusal(&home, &["biolatency", "1"]).contains("corebcc.conf:1: "));
}

#[test]
fn the_list_has_modules_metrics_and_which_are_on() {
    let home = Home::new(ONE);
    let all = shown(&home, &["--list"]);
    let state = |module: &str| {
        let line = all.lines().find(|line| line.split(' ').next() == Some(module));
        line.unwrap_or_else(|| panic!("{module}: {all}")).split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!((state("sysfork"), state("biolatency")), ("enabled".into(), "-".into()));
    assert!(all.contains("    bcc.proc.exec.args  "), "{all}");
    assert!(all.contains(&format!("enabled: in {}", home.config().display())) && all.contains("--check"), "{all}");
    let one = shown(&home, &["--list", "disk.all.latency"]);
    assert!(one.starts_with("biolatency ") && !one.contains("sysfork"), "{one}");
}

/// The list has the same sentences about modules as the agent.
#[test]
fn the_list_says_what_this_kernel_can_load_and_why_not() {
    if lacks_bpf() {
        return;
    }
    let all = MODULES.iter().map(|spec| spec.name).collect::<Vec<_>>();
    let home = Home::new(&config(&all));
    let list = shown(&home, &["--list"]);
    let mut peer = Peer::ready(&home, &[]);
    let (states, status) = ("bcc.agent.module.state", "bcc.agent.module.status");
    let [states, status] = [states, status].map(|metric| values(&mut peer, metric));
    // Here the others are given a process, which they have no default for.
    for module in all.into_iter().filter(|name| !name.starts_with("usdt")) {
        let mut lines = list.lines().skip_while(|line| line.split(' ').next() != Some(module));
        let mark = lines.next().unwrap().split_whitespace().nth(2);
        let reason = lines.take_while(|line| line.starts_with(' ')).find_map(|line| line.strip_prefix("    fails: "));
        let (state, status) = (&*states[module], &*status[module]);
        assert_eq!(mark, Some(if state == "failed" { "fails" } else { "loads" }), "{module}: {status}");
        assert!(reason.map_or(state != "failed", |reason| status.contains(reason)), "{reason:?}, {state}, {status}");
    }
}

#[test]
fn the_list_without_privileges_says_so_in_one_line() {
    if lacks(&["setpriv"]) {
        return;
    }
    let home = Home::new(ONE);
    let output = as_nobody(&home).args(["show", "--list"]).output().unwrap();
    let list = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let line = "\nwhat this kernel can load is not known: loading BPF is not permitted";
    assert!(list.matches("not permitted").count() == 1 && list.contains(line), "{list}");
    assert!(list.contains("\nsysfork           enabled  process and thread creation\n"), "{list}");
    let one = as_nobody(&home).args(["show", "--list", "sysfork"]).output().unwrap();
    let one = String::from_utf8(one.stdout).unwrap();
    assert!(one.contains(line) && !one.contains("fails"), "of one module, too: {one}");
}

#[test]
fn histograms_have_a_time_and_percentiles() {
    if lacks_bpf() {
        return;
    }
    let home = Home::new(&config(&["runqlat"]));
    let drawn = shown(&home, &["runqlat", "0.3", "2"]);
    let head = Regex::new(r"(?m)^bcc\.runq\.latency  \d\d:\d\d:\d\d\.\d{3}  last \d\.\d s$").unwrap();
    assert_eq!(head.find_iter(&drawn).count(), 2, "{drawn}");
    let line = Regex::new(r"(?m)^  p50 <= (\d+)  p90 <= (\d+)  p99 <= (\d+)  max <= (\d+) us$").unwrap();
    assert_eq!(line.captures_iter(&drawn).count(), 2, "{drawn}");
    for found in line.captures_iter(&drawn) {
        let bounds: Vec<u64> = (1..5).map(|at| found[at].parse().unwrap()).collect();
        assert!(bounds.is_sorted() && bounds.iter().all(|bound| (bound + 1).is_power_of_two()), "{drawn}");
    }
    let milliseconds = shown(&home, &["-m", "runqlat", "0.2", "1"]);
    assert!(milliseconds.contains("msecs") && milliseconds.contains(" ms\n"), "{milliseconds}");
    assert!(Regex::new(r"\d\.\d{3} -> \d+\.\d{3} *:").unwrap().is_match(&milliseconds), "{milliseconds}");
}

#[test]
fn several_names_are_shown_whether_metric_node_or_module() {
    if lacks_bpf() {
        return;
    }
    let home = Home::new(&config(&["sysfork", "exectop"]));
    let drawn = shown(&home, &["proc.exec.count", "runqlat", "bcc.proc.sysfork", "0.2", "1"]);
    let titles: Vec<&str> =
        drawn.lines().filter(|line| line.starts_with("bcc.")).filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(titles, ["bcc.proc.exec.count", "bcc.runq.latency", "bcc.proc.sysfork"], "{drawn}");
}

/// A node may be above metrics of modules that are not enabled.
#[test]
fn modules_that_a_node_leaves_out_are_named() {
    if lacks_bpf() {
        return;
    }
    let home = Home::new(&config(&["sysfork"]));
    let output = show(&home, &["bcc.proc", "0.2", "1"]);
    let said = text(&output.stderr);
    assert!(output.status.success() && text(&output.stdout).contains("bcc.proc.sysfork"), "{}", told(&output));
    let names = said.strip_prefix("pmdacorebcc: not enabled, not shown: ").unwrap_or_else(|| panic!("{said}"));
    assert!(names.starts_with("bioperpid, biotop, ") && names.lines().count() == 1, "{said}");
    assert!(!names.contains("sysfork") && !names.contains("biolatency"), "{said}");
}

#[test]
fn where_nothing_is_counted_the_reason_is_shown() {
    if lacks_bpf() {
        return;
    }
    let home = Home::new(&config(&["runqlat", "netproc"]));
    let drawn = shown(&home, &["runqlat", "netproc", "1.5", "1", "--set", "runqlat.process=doesnotexist"]);
    assert!(drawn.contains("(no running process is what `process = doesnotexist` means)\n"), "{drawn}");
}

/// A known number of execs contains a burst of more than the module keeps.
#[test]
fn each_event_is_shown_once_and_the_others_are_counted() {
    if lacks_bpf() {
        return;
    }
    const SLOWLY: usize = 6;
    const AT_ONCE: usize = 30;
    let home = Home::new(&config(&["execsnoop"]));
    let mark = format!("mark-{}", std::process::id());
    let pattern = format!("args={mark}");
    let mut child = home
        .agent(&["show", "--json", "execsnoop", "0.2", "--set", &pattern, "--set", "process_count=5"])
        .stdout(home.create("rows"))
        .stderr(home.create("said"))
        .spawn()
        .unwrap();
    let readings = || -> Vec<Value> {
        let text = home.read("rows");
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    wait_for("a reading", || (!readings().is_empty()).then_some(()));
    for number in 0..SLOWLY {
        let so_far = readings().len();
        assert!(Command::new("/bin/true").arg(format!("{mark}-{number}")).status().unwrap().success());
        wait_for("the next reading", || (readings().len() > so_far + 1).then_some(()));
    }
    // All in one interval, however slow the machine is.
    let show = nix::unistd::Pid::from_raw(child.id() as i32);
    let script = format!("for i in $(seq {AT_ONCE}); do /bin/true {mark}-of-burst-$i; done");
    nix::sys::signal::kill(show, nix::sys::signal::Signal::SIGSTOP).unwrap();
    assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
    nix::sys::signal::kill(show, nix::sys::signal::Signal::SIGCONT).unwrap();
    let count = |readings: &[Value]| {
        let rows: usize = readings.iter().map(|reading| reading["rows"].as_array().unwrap().len()).sum();
        let others: u64 = readings.iter().map(|reading| reading["not_shown"].as_u64().unwrap()).sum();
        (rows, others as usize)
    };
    // The shell that runs the loop has the mark among its arguments as well.
    let all = SLOWLY + AT_ONCE + 1;
    let (rows, others) = wait_for("all events", || {
        let (rows, others) = count(&readings());
        (rows + others >= all).then_some((rows, others))
    });
    nix::sys::signal::kill(show, nix::sys::signal::Signal::SIGINT).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(rows + others, all);
    assert!(others > 0, "a burst of {AT_ONCE} is more than five in some interval");
    let said = home.read("said");
    assert!(said.starts_with("pmdacorebcc: bcc.proc.exec: ") && said.contains(" more that were not kept; "), "{said}");
    let mut seen: Vec<String> = readings()
        .iter()
        .flat_map(|reading| reading["rows"].as_array().unwrap().clone())
        .map(|row| row["args"].as_str().unwrap().to_owned())
        .collect();
    let places: Vec<usize> = (0..SLOWLY)
        .map(|number| {
            let own = format!("/bin/true {mark}-{number}");
            seen.iter().position(|args| *args == own).unwrap_or_else(|| panic!("{own} is not among {seen:?}"))
        })
        .collect();
    assert!(places.is_sorted(), "in the order of the events: {seen:?}");
    seen.sort();
    let shown = seen.len();
    seen.dedup();
    assert_eq!(seen.len(), shown, "none is shown twice");
}

/// The number of rows is larger than the agent keeps for its clients.
#[test]
fn a_burst_of_events_is_shown_whole() {
    if lacks_bpf() {
        return;
    }
    const AT_ONCE: usize = 60;
    let home = Home::new(&config(&["execsnoop"]));
    let mark = format!("burst-{}", std::process::id());
    let pattern = format!("args=true {mark}");
    let mut child = home
        .agent(&["show", "--csv", "execsnoop", "0.3", "--set", &pattern])
        .stdout(home.create("rows"))
        .stderr(home.create("said"))
        .spawn()
        .unwrap();
    wait_for("a reading", || home.read("rows").contains("time").then_some(()));
    let script = format!("for i in $(seq {AT_ONCE}); do /bin/true {mark}; done");
    assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
    // The shell's own arguments match as well.
    wait_for("all events", || (home.read("rows").matches(",true,").count() >= AT_ONCE).then_some(()));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), nix::sys::signal::Signal::SIGINT).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(home.read("said"), "");
}

#[test]
fn rows_of_zeros_are_hidden_and_told() {
    if lacks_bpf() {
        return;
    }
    let home = Home::new(&config(&["exectop"]));
    let name = format!("zero{}", std::process::id());
    let program = home.path(&name);
    copy_program("/bin/true", &program);
    let mut child = home.agent(&["show", "exectop", "0.3", "--rate"]).stdout(home.create("shown")).spawn().unwrap();
    wait_for("a reading", || home.read("shown").contains("last").then_some(()));
    assert!(Command::new(&program).status().unwrap().success());
    let with_row = wait_for("the row", || Some(home.read("shown")).filter(|shown| shown.contains(&name)));
    let row = with_row.lines().find(|line| line.starts_with(&name)).unwrap().to_owned();
    let rate: f64 = row.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(rate > 0.0 && rate < 3.4, "once in 0.3 seconds or a little more: {row}");
    assert!(with_row.contains("count/s"), "{with_row}");
    let hidden = Regex::new(r"\n\(\d+ rows? of zeros; --zeros shows them\)\n").unwrap();
    wait_for("a reading that hides it", || {
        hidden.is_match(home.read("shown").rsplit(&name).next().unwrap_or_default()).then_some(())
    });
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), nix::sys::signal::Signal::SIGINT).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(home.read("shown").matches(&name).count(), 1);
}

#[test]
fn records_have_a_time_and_their_columns() {
    if lacks_bpf() {
        return;
    }
    let home = Home::new(&config(&["runqlat", "sysfork"]));
    let table = shown(&home, &["--csv", "runqlat", "0.2", "2"]);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines[0], "time,low,high,latency");
    assert_eq!(lines.iter().filter(|line| line.starts_with("time")).count(), 1, "{table}");
    assert!(lines[1..].iter().all(|line| line.split(',').count() == 4 && line.contains('T')), "{table}");
    let objects = shown(&home, &["--json", "runqlat", "sysfork", "0.2", "1"]);
    let objects: Vec<Value> = objects.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let tables: Vec<&str> = objects.iter().map(|object| object["table"].as_str().unwrap()).collect();
    assert_eq!(tables, ["bcc.runq.latency", "bcc.proc.sysfork"]);
    let summary = &objects[0]["summary"]["latency"];
    let rows = objects[0]["rows"].as_array().unwrap();
    let sum: u64 = rows.iter().map(|row| row["latency"].as_u64().unwrap()).sum();
    assert_eq!(summary["total"], sum);
    assert_eq!(summary["max"], rows.last().unwrap()["high"]);
    assert!(objects[1]["rows"][0]["sysfork"].is_u64(), "{:?}", objects[1]);
}

#[test]
fn the_profiler_is_started_for_its_stacks_only() {
    if lacks_bpf() || lacks_host_pids() {
        return;
    }
    let home = Home::new(&config(&["profile"]));
    let status = shown(&home, &["proc.profile", "0.3", "1"]);
    assert!(status.contains(r#"{"status": "stopped", "data": null}"#), "{status}");
    let both = shown(&home, &["profile", "0.3", "1"]);
    assert!(both.contains(r#"{"status": "started", "data": null}"#), "{both}");
}

#[test]
fn the_agent_tells_of_itself_without_pmcd() {
    if lacks_bpf() {
        return;
    }
    let home = Home::new(&config(&["sysfork", "kprobe_hits"]));
    let config = fs::read_to_string(home.config()).unwrap().replace("\nkprobes = ", "\n#kprobes = ");
    fs::write(home.config(), config).unwrap();
    let status = shown(&home, &["bcc.agent.module.up"]);
    let up = |module: &str| {
        let line = status.lines().find(|line| line.starts_with(module)).unwrap_or_else(|| panic!("{status}"));
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!((up("sysfork"), up("kprobe_hits")), ("1".into(), "0".into()));
    let status = shown(&home, &["bcc.agent.configuration.status", "0.1", "1"]);
    assert!(status.contains("has no option `kprobes`"), "{status}");
}

/// Returns the output of a command on a terminal of this width.
fn on_terminal(home: &Home, columns: u32, environment: &str, line: &str) -> Output {
    let mut command = Command::new("script");
    let config = home.config();
    let line = format!("stty cols {columns} rows 24; {environment} {BINARY} -c {} {line}", config.display());
    command.args(["-qec", &line, "/dev/null"]).env_remove("NO_COLOR").env("TERM", "xterm-256color");
    home.keep(&mut command).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn tables_fit_into_the_terminal() {
    if lacks_bpf() || lacks(&["script", "stty"]) {
        return;
    }
    let home = Home::new(&config(&["netproc", "runqlat", "syscount"]));
    for columns in [60, 80, 200] {
        let output = on_terminal(&home, columns, "", "show --zeros netproc runqlat syscount 0.3 1");
        let drawn = text(&output.stdout);
        assert!(output.status.success() && drawn.contains("bcc.runq.latency"), "{drawn}");
        let widest = drawn.lines().map(|line| line.trim_end().chars().count()).max().unwrap();
        assert!(widest <= columns as usize, "{widest} of {columns} columns:\n{drawn}");
        assert!(widest > columns as usize / 2 || columns == 200, "{widest} of {columns} columns:\n{drawn}");
    }
}

#[test]
fn a_screen_is_given_back_at_the_end() {
    if lacks_bpf() || lacks(&["script", "stty", "timeout"]) {
        return;
    }
    let home = Home::new(ONE);
    for (environment, line) in [("timeout -s INT 3", "show --top sysfork 0.2"), ("", "show --top sysfork 0.2 2")] {
        let output = on_terminal(&home, 80, environment, line);
        let drawn = text(&output.stdout);
        assert!(drawn.starts_with("\x1b[?1049h\x1b[?25l"), "{drawn:?}");
        assert!(drawn.trim_end().ends_with("\x1b[?25h\x1b[?1049l"), "{drawn:?}");
        assert!(drawn.matches("\x1b[H").count() >= 2 && drawn.contains("bcc.proc.sysfork"), "{drawn:?}");
        // timeout itself ends with 124 though what it started ended in order.
        assert_eq!(output.status.code(), Some(if environment.is_empty() { 0 } else { 124 }), "{drawn:?}");
    }
}

#[test]
fn a_heat_map_has_colour_only_where_it_is_wanted() {
    if lacks_bpf() || lacks(&["script", "stty"]) {
        return;
    }
    let home = Home::new(&config(&["runqlat"]));
    let plain = shown(&home, &["--heatmap", "runqlat", "0.2", "3"]);
    assert!(!plain.contains('\x1b') && plain.starts_with("bcc.runq.latency  [us]\n"), "{plain}");
    assert_eq!(plain.matches("bcc.runq.latency").count(), 1, "once, at the end: {plain}");
    let line = "show --heatmap runqlat 0.2 3";
    let drawn = |environment: &str| text(&on_terminal(&home, 80, environment, line).stdout);
    let colour = drawn("");
    assert!(colour.contains("\x1b[48;5;") && Regex::new(r"\x1b\[\d+A").unwrap().is_match(&colour), "{colour:?}");
    let without = drawn("NO_COLOR=1");
    assert!(!without.contains("\x1b[48") && without.contains('#'), "{without:?}");
    let dumb = drawn("TERM=dumb");
    assert!(!dumb.contains('\x1b') && dumb.contains('#'), "{dumb:?}");
}

#[test]
fn a_shell_completes_commands_options_and_names() {
    let home = Home::new(ONE);
    let output = home.run(&["completions", "bash"]);
    assert!(output.status.success(), "{}", told(&output));
    fs::write(home.path("completions"), &output.stdout).unwrap();
    let complete = |words: &str, current: &str| {
        let script = format!(
            ". ./completions; COMP_WORDS=({words} '{current}'); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             $(complete -p pmdacorebcc | sed 's/.*-F \\([^ ]*\\).*/\\1/') pmdacorebcc '{current}' ''; echo \"${{COMPREPLY[*]}}\""
        );
        let output = home.keep(Command::new("bash").args(["-c", &script])).output().unwrap();
        assert!(output.stderr.is_empty(), "{}", told(&output));
        text(&output.stdout).trim().to_owned()
    };
    assert_eq!(complete("pmdacorebcc", "sh"), "show");
    let first = complete("pmdacorebcc", "");
    assert_eq!(first.split(' ').collect::<Vec<_>>().len(), 3, "{first}");
    assert!(first.contains("show") && complete("pmdacorebcc", "--che").contains("--check-syntax"), "{first}");
    let nodes = complete("pmdacorebcc show", "disk.dev.read");
    assert!(nodes.starts_with("disk.dev.read disk.dev.read.bytes "), "{nodes}");
    assert!(text(&output.stdout).contains("compopt -o nospace"), "no file is a value of --set");
    assert_eq!(complete("pmdacorebcc show", "--heat"), "--heatmap");
    assert_eq!(complete("pmdacorebcc show", "biol"), "biolatency");
    assert!(complete("pmdacorebcc show", "bcc.disk").contains("bcc.disk.all.latency"));
    for shell in ["zsh", "fish"] {
        let output = home.run(&["completions", shell]);
        assert!(output.status.success() && text(&output.stdout).contains("bcc.disk.all.latency"), "{}", told(&output));
    }
}

/// A function in place of the agent prints the arguments after completion.
#[test]
fn zsh_completes_commands_options_and_names() {
    if lacks(&["zsh", "script"]) {
        return;
    }
    let home = Home::new(ONE);
    let output = home.run(&["completions", "zsh"]);
    fs::write(home.path("completions"), &output.stdout).unwrap();
    let mut shell = Command::new("script");
    shell.args(["-qec", "zsh -f -i", "/dev/null"]).current_dir(home.path("")).env("HOME", home.path(""));
    let mut shell = shell.env("TERM", "dumb").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut typed = "autoload -Uz compinit; compinit -u -D; . ./completions\n\
        pmdacorebcc() { print -r -- \"got: $*.\" }\n"
        .to_owned();
    for words in ["sh", "show --heat", "show biol", "show bcc.disk.all.lat", "completions fi"] {
        typed += &format!("pmdacorebcc {words}\t\n");
    }
    shell.stdin.take().unwrap().write_all((typed + "exit\n").as_bytes()).unwrap();
    let told = text(&shell.wait_with_output().unwrap().stdout);
    let got: Vec<&str> = told.lines().filter_map(|line| line.trim().strip_prefix("got: ")).collect();
    let expected = ["show.", "show --heatmap.", "show biolatency.", "show bcc.disk.all.latency.", "completions fish."];
    assert_eq!(got, expected, "{told}");
}

#[test]
fn fish_completes_commands_options_and_names() {
    if lacks(&["fish"]) {
        return;
    }
    let home = Home::new(ONE);
    let output = home.run(&["completions", "fish"]);
    fs::write(home.path("completions"), &output.stdout).unwrap();
    let complete = |words: &str| {
        let script = format!("source ./completions; complete -C 'pmdacorebcc {words}'");
        let mut shell = Command::new("fish");
        let output =
            shell.args(["-c", &script]).current_dir(home.path("")).env("HOME", home.path("")).output().unwrap();
        assert!(output.status.success(), "{}", told(&output));
        let names = text(&output.stdout);
        names.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(complete("sh"), ["show"]);
    assert_eq!(complete("show --heat"), ["--heatmap"]);
    assert_eq!(complete("show biol"), ["biolatency"]);
    assert_eq!(complete("show bcc.disk.all.lat"), ["bcc.disk.all.latency"]);
    assert_eq!(complete("completions fi"), ["fish"]);
}
