//! usdt_hits, usdt_jvm_threads, ustat and ucalls on real runtimes, each against work of known size.

use crate::common::{lacks, skip};
use crate::support::{alone, copy_program, part, Agent, Script};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const NEEDS: &str = "root on a kernel with CONFIG_UPROBE_EVENTS";

/// Time after which the log tells what a process lacks.
const PATIENCE: Duration = Duration::from_secs(4);

/// The distribution's Python, which has probes; others in the path may have none.
const PYTHON: &str = "/usr/bin/python3";

/// Returns a runtime that has this probe; if there is none, prints that the test was skipped.
fn with_probe(path: &str, probe: &str) -> Option<PathBuf> {
    let file = std::fs::canonicalize(path).ok();
    let probes = file.as_ref().and_then(|file| corebcc::host::Elf::read(file).ok()).map(|elf| elf.probes());
    let there = probes.is_some_and(|probes| probes.iter().any(|known| known.name == probe));
    if !there {
        skip(&format!("{path} with the USDT probe {probe}"));
    }
    file.filter(|_| there)
}

fn libjvm() -> Option<PathBuf> {
    let java = std::fs::canonicalize("/usr/bin/java").ok()?;
    Some(java.parent()?.parent()?.join("lib/server/libjvm.so"))
}

fn libruby() -> Option<PathBuf> {
    let library = ["ruby-3.1", "ruby-3.3", "ruby"].into_iter().find_map(corebcc::host::library);
    with_probe(&library.unwrap_or("libruby".into()).display().to_string(), "cmethod__entry")
}

/// Starts Python that collects garbage `n` times when told so, with automatic collections off.
fn collector(program: &Path, n: u32) -> Script {
    let source = format!(
        "import gc, sys\ngc.disable()\nprint('ready', flush=True)\nsys.stdin.readline()\n\
         for _ in range({n}): gc.collect()\nprint('done', flush=True)\nsys.stdin.readline()"
    );
    let mut script = Script::new(Command::new(program).args(["-c", &source]));
    assert_eq!(script.line(), "ready");
    script
}

fn work(script: &mut Script) {
    script.go();
    assert_eq!(script.line(), "done");
}

#[test]
fn a_probe_with_a_semaphore_counts_in_old_and_new_processes() {
    let Some(python) = with_probe(PYTHON, "gc__start") else { return };
    let _alone = alone();
    let mut running = collector(&python, 300);
    let lines = format!("usdts = {0}:gc__start,{0}:gc__(done|start),{0}:nothing", python.display());
    let Some(mut agent) = Agent::where_possible(NEEDS, "usdt_hits", &lines) else { return };
    let start = format!("{}::gc__start", python.display());
    let before = agent.numbers(0)[&start];
    work(&mut running);
    work(&mut collector(&python, 200));
    let values = agent.numbers(0);
    // Others on this machine may collect too, and each of these does at its end.
    assert!(values[&start] - before >= 500, "{values:?}");
    assert_eq!(values.len(), 2, "{values:?}");
}

#[test]
fn a_filtered_probe_counts_exactly_also_in_later_processes() {
    let Some(python) = with_probe(PYTHON, "gc__start") else { return };
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    // The process has the name of the link.
    let named = dir.path().join("chosenpython");
    std::os::unix::fs::symlink(&python, &named).unwrap();
    let (mut chosen, mut other) = (collector(&named, 300), collector(&python, 1000));
    let lines = format!("usdts = {}:gc__start\nprocess = chosenpython", python.display());
    let Some(mut agent) = Agent::watching(NEEDS, "usdt_hits", &lines) else { return };
    let start = format!("{}::gc__start", python.display());
    work(&mut chosen);
    work(&mut other);
    assert_eq!(agent.numbers(0)[&start], 300);
    // It collects as it starts, before it is told not to.
    let mut later = collector(&named, 200);
    let before = agent.numbers(0)[&start];
    assert!(before > 300, "{before}");
    work(&mut later);
    assert_eq!(agent.numbers(0)[&start], before + 200);
}

/// Parts of C: `probe` is the first of each program, `calls` has functions for both `ending` and `leaving`.
const SOURCES: &str = include_str!("../programs/usdt.c");

/// Compiles a program with probes. Returns `None`, and prints that, without a compiler.
fn probed(dir: &Path, parts: &[&str]) -> Option<PathBuf> {
    if lacks(&["gcc"]) {
        return None;
    }
    let (source, program) = (dir.join("probed.c"), dir.join("probed"));
    let parts = ["probe"].iter().chain(parts).map(|name| part(SOURCES, name));
    std::fs::write(&source, parts.collect::<String>()).unwrap();
    let status = Command::new("gcc").args(["-pthread", "-o"]).arg(&program).arg(&source).status().unwrap();
    assert!(status.success());
    Some(program)
}

/// Several processes hit the probes of one program at once: nothing is lost between CPUs, nor because of fetches meanwhile.
#[test]
fn hits_of_many_processes_add_up_while_they_are_fetched() {
    const ROUNDS: u64 = 200;
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = probed(dir.path(), &["site"]) else { return };
    let mut scripts = [(); 4].map(|()| Script::new(&mut Command::new(&program)));
    let lines = format!("usdts = {}:site", program.display());
    let Some(mut agent) = Agent::where_possible(NEEDS, "usdt_hits", &lines) else { return };
    let mut other = Agent::new("usdt_hits", &lines);
    let name = format!("{}::site", program.display());
    let mut before = 0;
    for script in &mut scripts {
        (0..ROUNDS).for_each(|_| script.go());
        let now = agent.numbers(0)[&name];
        assert!(now >= before, "{now} after {before}");
        before = now;
    }
    for script in &mut scripts {
        (0..ROUNDS).for_each(|_| drop(script.line()));
    }
    let wanted = BTreeMap::from([(name, 4 * ROUNDS * 77)]);
    assert_eq!([agent.numbers(0), other.numbers(0), agent.numbers(0)], [wanted.clone(), wanted.clone(), wanted]);
}

#[test]
fn a_probe_of_one_name_in_two_files_counts_for_each() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let Some(one) = probed(dir.path(), &["site"]) else { return };
    // Uprobes are of files: a copy is another one.
    let two = dir.path().join("copied");
    copy_program(&one, &two);
    let mut scripts = [&one, &two].map(|program| Script::new(&mut Command::new(program)));
    let lines = format!("usdts = {}:site,{}:si.*", one.display(), two.display());
    let Some(mut agent) = Agent::where_possible(NEEDS, "usdt_hits", &lines) else { return };
    for (script, rounds) in scripts.iter_mut().zip([1, 3]) {
        for _ in 0..rounds {
            script.go();
            assert_eq!(script.line(), "2", "both sites of its own file use its semaphore");
        }
    }
    let name = |program: &Path| format!("{}::site", program.display());
    assert_eq!(agent.numbers(0), BTreeMap::from([(name(&one), 77), (name(&two), 3 * 77)]));
}

#[test]
fn a_semaphore_is_raised_where_it_counts_and_lowered_after() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = probed(dir.path(), &["site"]) else { return };
    let (mut chosen, mut other) = (Script::new(&mut Command::new(&program)), Script::new(&mut Command::new(&program)));
    let users = |script: &mut Script| {
        script.go();
        script.line()
    };
    assert_eq!(users(&mut chosen), "0");
    let lines = format!("usdts = {}:site\nprocess = {}", program.display(), chosen.pid());
    let Some(mut agent) = Agent::where_possible(NEEDS, "usdt_hits", &lines) else { return };
    // Each of the two sites is a user.
    assert_eq!((users(&mut chosen), users(&mut other)), ("2".into(), "0".into()));
    let name = format!("{}::site", program.display());
    assert_eq!(agent.numbers(0), BTreeMap::from([(name, 77)]));
    agent.detach();
    assert_eq!(users(&mut chosen), "0");
}

/// Starts Java whose `main` runs this work when told so, with these methods in a class of this name.
fn java(dir: &Path, options: &[&str], name: &str, methods: &str, work: &str) -> Script {
    let source = format!(
        "public class {name} {{ {methods}
         public static void main(String[] a) throws Exception {{ System.out.println(\"ready\"); System.in.read();
         {work} System.out.println(\"done\"); System.in.read(); System.in.read(); }} }}"
    );
    let file = dir.join(format!("{name}.java"));
    std::fs::write(&file, source).unwrap();
    let status = Command::new("javac").arg("-d").arg(dir).arg(&file).status().unwrap();
    assert!(status.success());
    let mut script = Script::new(Command::new("/usr/bin/java").args(options).arg("-cp").arg(dir).arg(name));
    assert_eq!(script.line(), "ready");
    script
}

fn has_java() -> Option<PathBuf> {
    if lacks(&["javac"]) {
        return None;
    }
    with_probe(&libjvm().unwrap_or_default().display().to_string(), "thread__start")
}

/// Java for 100 threads, one after the other; with one garbage collector and no background compilation the JVM has few of its own.
const THREADS: &str =
    "for (int i = 0; i < 100; i++) { Thread t = new Thread(() -> {}); t.start(); t.join(); } System.in.read();";

#[test]
fn threads_of_chosen_jvms_add_up_and_never_step_back() {
    if has_java().is_none() {
        return;
    }
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let options = ["-XX:+UseSerialGC", "-Xint"];
    let mut first = java(dir.path(), &options, "Chosen", "", THREADS);
    let mut other = java(dir.path(), &options, "Other", "", THREADS);
    let lines = "process = .*java.* Chosen";
    let Some(mut agent) = Agent::watching(NEEDS, "usdt_jvm_threads", lines) else { return };
    let counts = |agent: &mut Agent| {
        let row = agent.rows().swap_remove(0);
        [0, 1].map(|column: usize| row.values[column].as_ref().unwrap().parse::<u64>().unwrap())
    };
    assert_eq!(counts(&mut agent), [0, 0]);
    first.go();
    other.go();
    first.go();
    other.go();
    assert_eq!((first.line(), other.line()), ("done".into(), "done".into()));
    let one = counts(&mut agent);
    // The probe of a thread's end may come a little after join returns; the JVM may start a thread of its own.
    assert!(one[0] >= 100 && one[0] <= 103 && one[1] >= 99 && one[1] <= one[0], "{one:?}");
    drop(first);
    agent.tick();
    let gone = counts(&mut agent);
    assert!(gone[0] >= one[0] && gone[1] >= one[1], "{gone:?}");
    let mut second = java(dir.path(), &options, "Chosen", "", THREADS);
    agent.tick();
    second.go();
    second.go();
    assert_eq!(second.line(), "done");
    let two = counts(&mut agent);
    // It counts from its first thread: those of the JVM itself are among them.
    assert!(two[0] - gone[0] > 103 && two[0] - gone[0] <= 150, "{gone:?} {two:?}");
    assert!(two[1] - gone[1] >= 99 && two[1] - gone[1] <= 103, "{gone:?} {two:?}");
}

#[test]
fn without_a_filter_threads_of_all_jvms_of_the_library_count() {
    let Some(library) = has_java() else { return };
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let lines = format!("jvm_path = {}", library.display());
    let Some(mut agent) = Agent::where_possible(NEEDS, "usdt_jvm_threads", &lines) else { return };
    let started = agent.rows()[0].values[0].clone().unwrap().parse::<u64>().unwrap();
    let mut java = java(dir.path(), &[], "Any", "", THREADS);
    java.go();
    java.go();
    assert_eq!(java.line(), "done");
    let now = agent.rows()[0].values[0].clone().unwrap().parse::<u64>().unwrap();
    assert!(now - started >= 100, "{started} {now}");
}

/// Starts a program in another language under a command name of its own; it waits for a line before its work and after it.
fn interpreted(dir: &Path, program: &Path, comm: &str, script: &str) -> Script {
    let named = dir.join(comm);
    if !named.exists() {
        std::os::unix::fs::symlink(program, &named).unwrap();
    }
    let file = dir.join(format!("{comm}.script"));
    std::fs::write(&file, script).unwrap();
    let mut script = Script::new(Command::new(&named).arg(&file).env("USE_ZEND_DTRACE", "1"));
    assert_eq!(script.line(), "ready");
    script
}

/// PHP with 177 calls of fib, 50 of a method, 7 exceptions; calls inside calls that sleep 10 ms each.
const PHP: &str = include_str!("../programs/usdt.php");

/// Returns the columns of the only row of ustat.
fn events(agent: &mut Agent, pid: u32) -> Vec<u64> {
    let named = agent.named();
    assert_eq!(named.len(), 1, "{named:?}");
    named[&pid.to_string()].clone()
}

#[test]
fn events_of_php_count_for_the_chosen_process_and_end_with_it() {
    let Some(php) = with_probe("/usr/bin/php", "function__entry") else { return };
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let mut other = interpreted(dir.path(), &php, "otherphp", PHP);
    let Some(mut agent) = Agent::watching(NEEDS, "ustat", "process = chosenphp") else { return };
    assert!(agent.named().is_empty());
    let mut chosen = interpreted(dir.path(), &php, "chosenphp", PHP);
    agent.tick();
    work(&mut chosen);
    work(&mut other);
    assert_eq!(events(&mut agent, chosen.pid()), [0, 177 + 4 + 50 + 7, 0, 0, 7, 0]);
    drop(chosen);
    agent.tick();
    assert!(agent.named().is_empty());
}

/// Once a process in a filter by name has executed a file, the next one is counted from its first call, however soon it starts; a
/// process that executes the same file under another name is not.
#[test]
fn the_first_call_of_a_new_process_counts_and_no_others() {
    let Some(php) = with_probe("/usr/bin/php", "function__entry") else { return };
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    // Not even the looks that process_refresh asks for.
    let Some(mut calls) = Agent::where_possible(NEEDS, "ucalls", "process = chosenphp") else { return };
    let Some(mut stat) = Agent::where_possible(NEEDS, "ustat", "process = chosenphp") else { return };
    let waiting = "<?php echo \"ready\\n\"; fgets(STDIN);";
    let mut first = interpreted(dir.path(), &php, "chosenphp", waiting);
    [&mut calls, &mut stat].into_iter().for_each(|agent| agent.attend(Duration::from_millis(500)));
    first.go();
    let busy = "<?php function f() {} for ($i = 0; $i < 100; $i++) f(); echo \"ready\\n\"; fgets(STDIN);";
    for run in 1..=5 {
        drop(interpreted(dir.path(), &php, "otherphp", busy));
        let mut chosen = interpreted(dir.path(), &php, "chosenphp", busy);
        stat.attend(Duration::from_millis(20));
        // Threads, calls and that of the script itself, objects, files.
        let counted = stat.named().get(&chosen.pid().to_string()).map(|events| events[..4].to_vec());
        assert_eq!(counted, Some(vec![0, 101, 0, 1]), "process {run}");
        chosen.go();
        assert_eq!(calls.numbers(0), BTreeMap::from([("f".into(), run * 100), ("main".into(), run)]));
    }
}

/// A process that is chosen by its command line counts from its first instruction, even the first such process, since the option
/// `usdts` names the file; another process that executes the same file does not count.
#[test]
fn a_process_chosen_by_command_line_counts_from_its_start() {
    let Some(php) = with_probe("/usr/bin/php", "function__entry") else { return };
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("script");
    std::fs::write(&script, "<?php function f() {} for ($i = 0; $i < 100; $i++) f();").unwrap();
    let lines = format!("usdts = {}:function__entry\nprocess = .*php.* chosen", php.display());
    let Some(mut agent) = Agent::where_possible(NEEDS, "usdt_hits", &lines) else { return };
    let entry = format!("{}::function__entry", php.display());
    for run in 1..=5 {
        for argument in ["other", "chosen"] {
            let mut command = Command::new(&php);
            command.arg(&script).arg(argument).env("USE_ZEND_DTRACE", "1");
            assert!(command.status().unwrap().success());
        }
        // The call of the script itself is one.
        assert_eq!(agent.numbers(0)[&entry], run * 101);
    }
}

/// A program that embeds a runtime may have any name: only the option `language` tells the runtime then.
#[test]
fn a_program_of_any_name_counts_where_its_language_is_told() {
    let Some(php) = with_probe("/usr/bin/php", "function__entry") else { return };
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("embedding");
    copy_program(&php, &program);
    let mut script = interpreted(dir.path(), &program, "embedding", PHP);
    let lines = "process = embedding";
    let told = format!("{lines}\nlanguage = php");
    let Some(mut untold) = Agent::watching(NEEDS, "ustat", lines) else { return };
    let Some(mut stat) = Agent::watching(NEEDS, "ustat", &told) else { return };
    let Some(mut calls) = Agent::watching(NEEDS, "ucalls", &told) else { return };
    work(&mut script);
    assert_eq!(events(&mut stat, script.pid())[1], 177 + 4 + 50 + 7);
    assert_eq!(calls.numbers(0).get("fib"), Some(&177), "{:?}", calls.numbers(0));
    assert!(untold.named().is_empty());
    untold.attend(PATIENCE);
    let said = untold.warnings().join("\n");
    assert!(said.contains("no runtime of a language that is known"), "{said}");
}

/// Two processes are in the same function at once, and values are read meanwhile: nothing is lost and nothing steps back.
#[test]
fn calls_of_many_processes_add_up_while_they_are_fetched() {
    let Some(php) = with_probe("/usr/bin/php", "function__entry") else { return };
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let script = r#"<?php
        function f() {}
        echo "ready\n"; fgets(STDIN);
        for ($i = 0; $i < 20000; $i++) f();
        echo "done\n"; fgets(STDIN);
    "#;
    let mut scripts = [(); 2].map(|()| interpreted(dir.path(), &php, "chosenphp", script));
    let lines = "process = chosenphp\nlatency = True";
    let Some(mut calls) = Agent::watching(NEEDS, "ucalls", lines) else { return };
    let Some(mut stat) = Agent::watching(NEEDS, "ustat", "process = chosenphp") else { return };
    scripts.iter_mut().for_each(Script::go);
    let mut before = [0; 3];
    for _ in 0..50 {
        let named = calls.named();
        let methods = stat.numbers(1).values().sum();
        let now = named.get("f").map_or([0, 0, methods], |values| [values[0], values[2], methods]);
        assert!(now.iter().zip(before).all(|(now, before)| *now >= before), "{now:?} after {before:?}");
        before = now;
        std::thread::yield_now();
    }
    scripts.iter_mut().for_each(|script| assert_eq!(script.line(), "done"));
    assert_eq!(calls.numbers(0)["f"], 40_000);
    assert!(calls.warnings().is_empty(), "{:?}", calls.warnings());
    let events = stat.numbers(1);
    assert_eq!(events, scripts.iter().map(|script| (script.pid().to_string(), 20_000)).collect());
}

#[test]
fn collections_of_python_and_functions_that_return_count() {
    let Some(python) = with_probe(PYTHON, "function__return") else { return };
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let script = "import gc, sys\ngc.disable()\ndef fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)\n\
        print('ready', flush=True)\nsys.stdin.readline()\nfib(10)\nfor _ in range(9): gc.collect()\n\
        print('done', flush=True)\nsys.stdin.readline()";
    let mut chosen = interpreted(dir.path(), &python, "chosenpython", script);
    let Some(mut stat) = Agent::watching(NEEDS, "ustat", "process = chosenpython\nlanguage = python") else {
        return;
    };
    let Some(mut calls) = Agent::watching(NEEDS, "ucalls", "process = chosenpython") else { return };
    work(&mut chosen);
    let events = events(&mut stat, chosen.pid());
    assert_eq!(events[5], 9);
    // What reads a line may be a function in Python too.
    assert!(events[1] >= 177 && events[1] < 200, "{events:?}");
    let file = dir.path().join("chosenpython.script").display().to_string();
    let fib = format!("{}.fib", file.replace('/', ".").trim_start_matches('.'));
    assert_eq!(calls.numbers(0).get(&fib), Some(&177), "{:?}", calls.numbers(0));
    assert!(calls.numbers(1).is_empty());
}

#[test]
fn exceptions_of_ruby_count_and_its_methods_in_c() {
    if libruby().is_none() {
        return;
    }
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let ruby = std::fs::canonicalize("/usr/bin/ruby").unwrap();
    // Methods in Ruby pass the probe only while something traces.
    let script = "$stdout.sync = true\ndef g; 1; end\nGC.disable\nputs 'ready'; gets\n\
        7.times { begin; raise 'x'; rescue; end }\n30.times { 12.gcd(18) }\n\
        trace = TracePoint.new(:call, :return) {}\ntrace.enable; 20.times { g }; trace.disable\nputs 'done'; gets\n";
    let mut chosen = interpreted(dir.path(), &ruby, "chosenruby", script.replace("gets", "STDIN.gets").as_str());
    let Some(mut stat) = Agent::watching(NEEDS, "ustat", "process = chosenruby") else { return };
    let Some(mut calls) = Agent::watching(NEEDS, "ucalls", "process = chosenruby\nlatency = True") else {
        return;
    };
    work(&mut chosen);
    let events = events(&mut stat, chosen.pid());
    assert_eq!((events[0], events[4], events[5]), (0, 7, 0), "{events:?}");
    assert!(events[1] >= 7 + 3 + 30 + 20 && events[2] >= 7, "{events:?}");
    let counts = calls.numbers(0);
    let count = |name: &str| counts.get(name).copied();
    assert_eq!(["Integer.gcd", "Integer.times", "Object.g"].map(count), [Some(30), Some(3), Some(20)], "{counts:?}");
}

#[test]
fn calls_of_php_are_timed_those_inside_themselves_too() {
    let Some(php) = with_probe("/usr/bin/php", "function__entry") else { return };
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let mut others = interpreted(dir.path(), &php, "otherphp", PHP);
    let mut chosen = [(); 2].map(|()| interpreted(dir.path(), &php, "chosenphp", PHP));
    let Some(mut agent) = Agent::watching(NEEDS, "ucalls", "process = chosenphp\nlatency = True") else { return };
    work(&mut others);
    work(&mut chosen[0]);
    let names = ["B.m", "B.thrower", "deep", "fib"].map(String::from);
    let wanted: BTreeMap<String, u64> = names.clone().into_iter().zip([50, 7, 4, 177]).collect();
    assert_eq!(agent.numbers(0), wanted);
    let (averages, totals) = (agent.numbers(1), agent.numbers(2));
    // The calls of deep sleep 10, 20, 30 and 40 ms at least.
    assert!(totals["deep"] >= 100_000, "{totals:?}");
    for name in &names {
        assert!(averages[name].abs_diff(totals[name] / wanted[name]) <= 1, "{name}: {averages:?} {totals:?}");
    }
    work(&mut chosen[1]);
    assert_eq!(agent.numbers(0), wanted.into_iter().map(|(name, calls)| (name, 2 * calls)).collect());
    assert!(agent.warnings().is_empty(), "{:?}", agent.warnings());
}

#[test]
fn threads_that_end_inside_calls_leave_nothing_to_later_ones() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = probed(dir.path(), &["calls", "ending"]) else { return };
    let mut script = Script::new(&mut Command::new(&program));
    assert_eq!(script.line(), "ready");
    let lines = format!("process = {}\nlanguage = tcl\nlatency = True", script.pid());
    let Some(mut agent) = Agent::watching(NEEDS, "ucalls", &lines) else { return };
    work(&mut script);
    // More threads than there are places, none of which returned.
    assert_eq!(agent.numbers(0), BTreeMap::from([("kept".into(), 1000)]));
    assert!(agent.warnings().is_empty(), "{:?}", agent.warnings());
    script.go();
    if script.line() == "nobody" {
        return skip("an id used again (/proc/sys/kernel/ns_last_pid)");
    }
    assert_eq!(agent.numbers(0)["again"], 2);
    let time = agent.numbers(2)["again"];
    assert!(time < 200_000, "a call of {time} us, which began in a thread of the past");
    assert!(agent.warnings().join("\n").contains("whose start was not seen"), "{:?}", agent.warnings());
}

#[test]
fn the_innermost_calls_are_timed_however_many_are_open() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = probed(dir.path(), &["calls", "leaving"]) else { return };
    let mut script = Script::new(&mut Command::new(&program));
    assert_eq!(script.line(), "ready");
    let lines = format!("process = {}\nlanguage = tcl\nlatency = True", script.pid());
    let Some(mut agent) = Agent::watching(NEEDS, "ucalls", &lines) else { return };
    work(&mut script);
    assert_eq!(agent.numbers(0), BTreeMap::from([("outer".into(), 1), ("short".into(), 1000)]));
    assert!(agent.numbers(2)["short"] > 0);
    // Of the outer one, those left, and the last short one.
    let said = agent.warnings().join("\n");
    assert!(said.contains(&format!("{} calls that were not timed, since 64 others", 1 + 1000 + 1 - 64)), "{said}");
    let start = Instant::now();
    work(&mut script);
    let most = 100 * start.elapsed().as_micros() as u64;
    // Those that were timed were open while the program slept, and none for longer than all of it took.
    let time = agent.numbers(2)["deep"];
    assert!((64 * 10_000..most).contains(&time), "{time} of {most}");
    assert_eq!((agent.numbers(0)["deep"], agent.numbers(0)["after"]), (100, 1));
    assert!(agent.numbers(2)["after"] < 10_000);
}

#[test]
fn java_methods_have_whole_names_and_java_events_count() {
    if has_java().is_none() {
        return;
    }
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let options = ["-XX:+UseSerialGC", "-Xint", "-XX:+DTraceMethodProbes", "-XX:+DTraceAllocProbes"];
    let methods = "static int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
        static class Inner { void m() {} } static class Other { void m() {} }
        static void fails() { throw new RuntimeException(); }";
    let work = "fib(10); Inner inner = new Inner(); Other other = new Other();
        for (int i = 0; i < 50; i++) inner.m(); for (int i = 0; i < 30; i++) other.m();
        for (int i = 0; i < 5; i++) { try { fails(); } catch (RuntimeException e) {} }
        for (int i = 0; i < 1000; i++) new Inner(); for (int i = 0; i < 3; i++) System.gc();
        for (int i = 0; i < 20; i++) { Thread t = new Thread(() -> {}); t.start(); t.join(); }";
    let mut java = java(dir.path(), &options, "Counted", methods, work);
    let lines = format!("process = {}", java.pid());
    let Some(mut stat) = Agent::watching(NEEDS, "ustat", &lines) else { return };
    let Some(mut calls) = Agent::watching(NEEDS, "ucalls", &format!("{lines}\nlatency = True")) else { return };
    java.go();
    assert_eq!(java.line(), "done");
    let counts = calls.numbers(0);
    let count = |name: &str| counts.get(name).copied();
    let names = ["Counted.fib", "Counted$Inner.m", "Counted$Other.m", "Counted$Inner.<init>", "Counted.fails"];
    assert_eq!(names.map(count), [Some(177), Some(50), Some(30), Some(1001), Some(5)], "{counts:?}");
    let events = events(&mut stat, java.pid());
    assert!(events[0] >= 20 && events[0] <= 23, "threads: {events:?}");
    assert!(events[1] >= 177 + 50 + 30 + 1001 && events[2] >= 1007 && events[3] >= 2, "{events:?}");
    // Each collection is one of memory pools too.
    assert!(events[5] >= 6, "{events:?}");
}

#[test]
fn runtimes_built_without_probes_are_named_in_the_log() {
    let _alone = alone();
    for (program, arguments, language) in [
        ("perl", ["-e", "sleep 100"], "perl"),
        ("node", ["-e", "setTimeout(() => {}, 100000)"], "node"),
        ("tclsh", ["-c", ""], "tcl"),
    ] {
        if lacks(&[program]) {
            continue;
        }
        let program = PathBuf::from("/usr/bin").join(program);
        let probes = std::fs::canonicalize(&program).ok().and_then(|file| corebcc::host::Elf::read(&file).ok());
        if probes.is_none_or(|elf| !elf.probes().is_empty()) {
            skip(&format!("a {language} of the distribution without probes"));
            continue;
        }
        let mut command = Command::new(&program);
        if language != "tcl" {
            command.args(arguments);
        }
        let script = Script::new(&mut command);
        let Some(mut agent) = Agent::watching(NEEDS, "ustat", &format!("process = {}", script.pid())) else {
            return;
        };
        let wanted = format!("no probes in this build of {language}");
        let end = Instant::now() + 5 * PATIENCE;
        while !agent.warnings().iter().any(|line| line.contains(&wanted)) {
            assert!(Instant::now() < end, "{:?}", agent.warnings());
            agent.attend(Duration::from_millis(100));
        }
        assert!(agent.named().is_empty());
    }
}
