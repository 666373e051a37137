//! The files beside the sources agree with the declarations. `UPDATE=1 cargo test --test files` rewrites the generated ones.

#![allow(clippy::unwrap_used)]

use corebcc::catalog::{enabled_modules, Help};
use corebcc::collector::{prepared_modules, STATUS};
use corebcc::config::Config;
use corebcc::kit::{OptionDef, Shape};
use corebcc::modules::{find, MODULES};
use corebcc::reference::views::{DASHBOARDS, PROMETHEUS_DASHBOARD};
use corebcc::reference::{self, grafana, pmchart};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

fn path(name: &str) -> String {
    format!("{}/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Asserts that a file has this content; rewrites it with `UPDATE=1`.
fn current(name: &str, wanted: &str) {
    if std::env::var_os("UPDATE").is_some() {
        fs::write(path(name), wanted).unwrap();
    }
    assert!(read(name) == wanted, "{name} is out of date: UPDATE=1 cargo test --test files");
}

#[test]
fn the_default_configuration_is_what_the_declarations_say() {
    current("corebcc.conf", &reference::configuration(MODULES));
}

/// A metric that no module or the agent's own status has is an error.
#[test]
fn the_dashboards_are_what_their_declarations_say() {
    let all = grafana::dashboard(&grafana::PROMETHEUS, &PROMETHEUS_DASHBOARD);
    current("consumers/grafana/prometheus/fleet.json", &all);
    for dashboard in DASHBOARDS {
        for source in [grafana::VECTOR, grafana::VALKEY] {
            let name = format!("consumers/grafana/{}/{}.json", source.id, dashboard.id);
            current(&name, &grafana::dashboard(&source, dashboard));
        }
        for (name, view) in pmchart::views(dashboard) {
            current(&format!("consumers/pmchart/{name}"), &view);
        }
        for panel in dashboard.panels {
            let module = panel.module.split(' ').next().unwrap();
            let own = STATUS.iter().flat_map(|table| table.spec.metrics).filter(|_| module.is_empty());
            let metrics: Vec<_> = find(module).into_iter().flat_map(|spec| spec.metrics()).chain(own).collect();
            for target in panel.targets {
                let metric = target.metric().replace("$fs", "ext4");
                let metric = metric.strip_prefix("bcc.").unwrap();
                assert!(
                    metrics.iter().any(|declared| declared.name == metric),
                    "{}: {metric} is not of {module:?}",
                    panel.title
                );
            }
        }
    }
}

/// Uncommenting one or all sample lines of a section gives a valid configuration.
#[test]
fn every_sample_line_of_the_configuration_works() {
    // Not the file, which another test may be writing.
    let shipped = reference::configuration(MODULES);
    let modules = shipped.lines().find(|line| line.starts_with("modules = ")).unwrap();
    for spec in MODULES {
        let shipped = shipped.replace(modules, &format!("modules = {}", spec.name));
        let begin = shipped.find(&format!("\n[{}]\n", spec.name)).unwrap() + 1;
        let end = shipped[begin..].find("\n\n").map_or(shipped.len(), |end| begin + end);
        let works = |said: &str, chosen: &dyn Fn(&OptionDef) -> bool| {
            let shown = spec.options.iter().filter(|option| option.has_line());
            let chosen: Vec<&OptionDef> = shown.filter(|option| chosen(option)).collect();
            let mut section = shipped[begin..end].to_owned();
            for option in &chosen {
                let sample = format!("\n#{} =", option.name);
                assert!(section.contains(&sample), "{}: {}", spec.name, option.name);
                section = section.replace(&sample, &sample.replace('#', ""));
            }
            let text = format!("{}{section}{}", &shipped[..begin], &shipped[end..]);
            let config = Config::parse("corebcc.conf", text.as_bytes()).unwrap();
            let made = enabled_modules(&config, MODULES)
                .and_then(|(settings, modules)| prepared_modules(&config, &modules, &settings));
            assert!(made.is_ok(), "{}: {said}: {}", spec.name, made.err().unwrap());
        };
        works("all", &|_| true);
        for one in spec.options {
            works(one.name, &|option| option.name == one.name || option.example.is_some());
        }
    }
}

fn man_page() -> String {
    let status = STATUS.iter().map(|table| table.spec);
    reference::man_page(&corebcc::cli::command("pmdacorebcc"), MODULES, status)
}

fn conf_page() -> String {
    reference::conf_page(MODULES)
}

#[test]
fn the_man_pages_are_what_the_declarations_say() {
    current("man/pmdacorebcc.1", &man_page());
    current("man/corebcc.conf.5", &conf_page());
}

#[test]
fn the_man_page_has_every_section_a_pmda_has() {
    let page = man_page();
    let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
    let wanted = "NAME|SYNOPSIS|DESCRIPTION|OPTIONS|CONFIGURATION|METRICS|PRIVILEGES|SECURITY|DIAGNOSTICS|EXIT STATUS|EXAMPLES|INSTALLATION|\
                  FILES|PCP ENVIRONMENT|SEE ALSO";
    assert_eq!(sections, wanted.split('|').collect::<Vec<_>>());
    assert!(page.lines().count() <= 900, "{} lines", page.lines().count());
    assert!(
        page.contains("\\fB\\-\\-trycompile\\fP=FILE\n") && page.contains("\\fB\\-\\-check\\fP [FILE]\n"),
        "{page}"
    );
}

/// Each metric is listed or below a listed node, and each option is in the page of the configuration.
#[test]
fn the_man_pages_lead_to_every_metric_and_option() {
    let page = man_page();
    let metrics = page.split_once(".SH METRICS\n").unwrap().1.split("\n.SH ").next().unwrap();
    let nodes: Vec<&str> =
        metrics.split("\\fB").filter_map(|part| part.split("\\fP").next()?.strip_prefix("bcc.")).collect();
    let tables = MODULES.iter().flat_map(|spec| spec.tables.iter().copied());
    for metric in tables.chain(STATUS.iter().map(|table| table.spec)).flat_map(|table| table.metrics) {
        let leads =
            |node: &&str| metric.name.strip_prefix(*node).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        assert!(nodes.iter().any(leads), "METRICS leads to no bcc.{}", metric.name);
    }
    let page = conf_page();
    for spec in MODULES {
        let section = page.split_once(&format!(".SS [{}]\n", spec.name)).unwrap().1.split(".SS ").next().unwrap();
        for option in spec.options {
            assert!(
                section.contains(&format!("\n.TP\n\\fB{}\\fP\n", option.name)),
                "[{}] lacks {}",
                spec.name,
                option.name
            );
        }
    }
}

#[test]
fn mandoc_has_nothing_to_say_of_the_man_pages() {
    for page in [man_page(), conf_page()] {
        let lint = Command::new("mandoc").args(["-T", "lint"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let Ok(mut lint) = lint else {
            println!("skipped: mandoc_has_nothing_to_say_of_the_man_pages: the package mandoc");
            return;
        };
        lint.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
        let lint = lint.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&lint.stdout), "");
        assert!(lint.status.success(), "{lint:?}");
    }
}

/// Asserts that the part between two marks of a file has this content. A file may have several such parts.
fn current_part(name: &str, what: &str, wanted: &str) {
    static ONE_WRITES: Mutex<()> = Mutex::new(());
    let _alone = ONE_WRITES.lock().unwrap_or_else(PoisonError::into_inner);
    let (begin, end) = (format!("<!-- {what}: generated, see tests/files.rs -->\n"), format!("<!-- end of {what} -->"));
    let text = read(name);
    let (before, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("{name} marks where {what} begin"));
    let (_, after) = rest.split_once(&end).unwrap_or_else(|| panic!("{name} marks where {what} end"));
    current(name, &format!("{before}{begin}{wanted}{end}{after}"));
}

#[test]
fn the_table_of_modules_is_what_the_declarations_say() {
    current_part("docs/modules.md", "modules", &reference::module_table(MODULES));
}

#[test]
fn the_table_of_clusters_is_what_the_declarations_say() {
    current_part("docs/new-module.md", "clusters", &reference::cluster_table(MODULES));
}

#[test]
fn the_table_of_agent_metrics_is_what_the_declarations_say() {
    current_part("docs/agent.md", "metrics", &reference::status_table(STATUS.iter().map(|table| table.spec)));
}

/// The anchor of a heading, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let letters = heading.trim_start_matches('#').trim().to_lowercase();
    letters.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c)).collect::<String>().replace(' ', "-")
}

/// Pages of docs/; its pictures are not among them.
fn pages() -> impl Iterator<Item = String> {
    let names = fs::read_dir(path("docs")).unwrap().map(|page| page.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".md")).map(|name| format!("docs/{name}"))
}

#[test]
fn links_of_the_pages_lead_somewhere() {
    let others = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "benches/README.md", "consumers/README.md"];
    let mut links = 0;
    for page in pages().chain(others.map(String::from)) {
        let directory = Path::new(&page).parent().unwrap().to_owned();
        let text = read(&page);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { directory.join(file).to_str().unwrap().to_owned() };
            assert!(Path::new(&path(&target)).exists(), "{page}: there is no {link}");
            if !heading.is_empty() {
                let there = read(&target).lines().any(|line| line.starts_with('#') && anchor(line) == heading);
                assert!(there, "{page}: {target} has no heading #{heading}");
            }
            links += 1;
        }
    }
    assert!(links > 100, "{links}");
}

/// `tests/commands.sh` runs the command.
#[test]
fn prometheus_is_told_to_ask_for_what_curl_shows() {
    let page = read("docs/clients.md");
    let after = |mark: &str| page.split_once(mark).unwrap().1.split_once('\'').unwrap().0.to_owned();
    assert_eq!(after("/metrics?names="), after("names: ['"));
}

#[test]
fn the_table_of_capabilities_is_what_the_declarations_say() {
    current_part("docs/agent.md", "capabilities", &reference::capability_table(MODULES));
}

/// Text that `UPDATE=1` inserts for a missing one.
const TODO: &str = "TODO:";

/// Returns the heads of the entries in the file `help`, such as `bcc.proc.sysfork tasks created`. Histograms are not in
/// it.
fn wanted_help() -> Vec<String> {
    let mut heads = Vec::new();
    let of_modules = MODULES.iter().flat_map(|spec| spec.tables.iter().copied());
    for table in of_modules.chain(STATUS.iter().map(|table| table.spec)) {
        if !table.histograms.is_empty() {
            continue;
        }
        heads.extend(table.metrics.iter().map(|metric| format!("bcc.{} {}", metric.name, metric.oneline)));
        if table.shape != Shape::Single {
            heads.push(format!("BCC.{} {}", table.cluster, table.summary));
        }
    }
    heads
}

#[test]
fn every_metric_and_domain_has_its_help_and_no_other() {
    let text = read("help");
    let first = |text: &str| text.split(' ').next().unwrap_or_default().to_owned();
    let entries: BTreeSet<String> = Help::parse(text.clone().leak()).names().map(String::from).collect();
    let missing: Vec<String> = wanted_help().into_iter().filter(|head| !entries.contains(&first(head))).collect();
    if std::env::var_os("UPDATE").is_some() {
        let begun = missing.iter().map(|head| format!("\n@ {head}\n{TODO} what is counted, when, and what is not\n"));
        fs::write(path("help"), text + &begun.collect::<String>()).unwrap();
    }
    let help = Help::parse(read("help").leak());
    for head in wanted_help() {
        let (name, oneline) = head.split_once(' ').unwrap();
        let entry = format!("the entry `@ {head}` of the file `help`, which UPDATE=1 begins");
        if name.starts_with("bcc.") {
            assert_eq!(help.get(name, false), Some(oneline), "expected {entry}");
        } else {
            assert!(help.get(name, false).is_some(), "expected {entry}");
        }
        let full = help.get(name, true).unwrap_or_else(|| panic!("expected a text in {entry}"));
        assert!(!full.starts_with(TODO), "expected a text instead of `{TODO}` in {entry}");
        assert!(!full.ends_with('\n') && (full.len() > oneline.len() / 2 || name.starts_with("BCC.")), "{name}");
    }
    let wanted: BTreeSet<String> = wanted_help().iter().map(|head| first(head)).collect();
    let there: BTreeSet<String> = help.names().map(String::from).collect();
    assert_eq!(there, wanted, "entries in help");
}

#[test]
fn the_namespace_is_one_dynamic_node_of_the_domain() {
    assert_eq!(read("pmns").split_whitespace().collect::<Vec<_>>(), ["bcc", "BCC:*:*"]);
    assert!(read("domain.h").contains("#define BCC 149"));
}

/// Returns all occurrences of `FILE.rs::TEST` in a text.
fn tests_named_in(text: &str) -> Vec<(String, String)> {
    let words = text.split(|c: char| c.is_whitespace() || c == '`' || c == ',');
    words.filter_map(|word| word.split_once(".rs::")).map(|(file, test)| (format!("{file}.rs"), test.into())).collect()
}

fn assert_is_test(file: &str, test: &str) {
    let text = read(file);
    let at = text.find(&format!("fn {test}()")).unwrap_or_else(|| panic!("{file} has no test {test}"));
    let before = text[..at].lines().rev().take_while(|line| !line.ends_with('}')).collect::<Vec<_>>();
    assert!(before.iter().any(|line| line.trim() == "#[test]"), "{file}: {test} is no test");
}

/// The tables that name a test for each defect and option name existing tests.
#[test]
fn every_test_that_a_table_names_is_there() {
    let of_defects = tests_named_in(&read("docs/defects.md"));
    let of_options = tests_named_in(&read("tests/data/bcc-options.tsv"));
    assert!(of_defects.len() > 80 && of_options.len() > 60, "{} and {}", of_defects.len(), of_options.len());
    for (file, test) in of_defects.iter().chain(&of_options) {
        assert_is_test(file, test);
    }
}

/// `tests/run` leaves out programs, modules and tests by these names, and runs some modules twice.
#[test]
fn what_tests_run_names_is_there() {
    let text = read("tests/run");
    let list = |name: &str| -> Vec<&str> {
        let (_, rest) = text.split_once(&format!("\n{name}=(")).unwrap_or_else(|| panic!("tests/run has no {name}"));
        rest.split_once(')').unwrap().0.split_whitespace().collect()
    };
    let (files, tests) = (sources_below("tests"), tests_below("tests"));
    for program in list("long_programs") {
        assert!(files.contains(&format!("tests/{program}.rs")), "{program}");
    }
    for named in [list("long_tests"), list("about_mounts")].concat() {
        let is_there = match named.strip_suffix("::") {
            Some(module) => files.iter().any(|file| file.ends_with(&format!("/{module}.rs"))),
            None => tests.iter().any(|(_, test)| test == named),
        };
        assert!(is_there, "{named}");
    }
}

/// Returns every `.rs` file below a directory, by its path from the root of the project.
fn sources_below(dir: &str) -> Vec<String> {
    let entries = fs::read_dir(path(dir)).unwrap().map(|entry| entry.unwrap());
    let below = entries.flat_map(|entry| {
        let name = format!("{dir}/{}", entry.file_name().to_string_lossy());
        match entry.file_type().unwrap().is_dir() {
            true => sources_below(&name),
            false => vec![name],
        }
    });
    below.filter(|name| name.ends_with(".rs")).collect()
}

/// Returns the number that a test is named after: `c20_...`.
fn statement_of(test: &str) -> Option<usize> {
    let (number, _) = test.strip_prefix('c')?.split_once('_')?;
    (number.len() == 2).then(|| number.parse().ok())?
}

#[test]
fn every_conformance_statement_is_written_down_with_its_tests() {
    let text = read("docs/protocol.md");
    let mut named = BTreeSet::new();
    let mut numbers = Vec::new();
    for line in text.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let (Some(Ok(number)), [_, _, statement, shown, _]) = (cells.get(1).map(|cell| cell.parse()), &cells[..])
        else {
            continue;
        };
        assert!(statement.ends_with('.'), "{number}: {statement}");
        assert!(shown.starts_with("`tests/"), "{number} is shown by nothing");
        for file in shown.split(['`', ',', ' ']).filter(|word| word.starts_with("tests/")) {
            read(file.split("::").next().unwrap());
        }
        for (file, test) in tests_named_in(shown) {
            assert_is_test(&file, &test);
            named.insert((number, file, test));
        }
        numbers.push(number);
    }
    assert_eq!(numbers, (1..=72).collect::<Vec<usize>>());
    for file in ["tests/conformance", "tests/process", "tests/pmcd"].into_iter().flat_map(sources_below) {
        let code = read(&file);
        for test in code.split("fn ").skip(1).filter_map(|rest| rest.split_once("()")).map(|(test, _)| test) {
            let Some(number) = statement_of(test) else { continue };
            let entry = (number, file.clone(), test.to_owned());
            assert!(named.contains(&entry), "docs/protocol.md: statement {number} does not name {file}::{test}");
        }
    }
}

/// Returns the functions behind `#[test]` in the sources below a directory.
fn tests_below(directory: &str) -> Vec<(String, String)> {
    let mut tests = Vec::new();
    for entry in fs::read_dir(path(directory)).unwrap().map(|entry| entry.unwrap().path()) {
        let file = format!("{directory}/{}", entry.file_name().unwrap().to_str().unwrap());
        if entry.is_dir() {
            tests.extend(tests_below(&file));
        } else if file.ends_with(".rs") {
            let text = read(&file);
            let functions =
                text.split("#[test]\n").skip(1).filter_map(|rest| rest.split_once("fn ")?.1.split_once('('));
            tests.extend(functions.map(|(name, _)| (file.clone(), name.to_string())));
        }
    }
    tests
}

/// Phrases that user texts must not contain, since they hang on a pronoun, invert the sentence or avoid the usual term;
/// each with a replacement.
const PHRASES: &[(&str, &str)] = &[
    ("is said", "is documented in, is reported by"),
    ("are said", "are documented in, are reported by"),
    ("as they are.", "unchanged"),
    ("two looks", "is rescanned every"),
    ("need no look", "are matched when they start"),
    ("options mean", "that match the option"),
    ("option \"process\" means", "that match the option \"process\""),
    ("that this means", "that match"),
    ("have to be some", "Required."),
    ("none behind a value", "no comments after a value"),
    ("found no place", "was dropped because the map was full"),
    ("since the machine's", "since boot"),
    ("did not end in order", "unclean exit"),
    ("anew", "again; restarts"),
    ("if nobody has", "if necessary"),
    ("tells of itself", "the agent's own"),
    ("is to be had", "is available"),
    ("for good", "for ever"),
    ("at each hook beyond an empty one", "net of an empty program"),
];

#[test]
fn user_texts_avoid_the_worst_phrases() {
    let others =
        ["README.md", "CONTRIBUTING.md", "consumers/README.md", "man/pmdacorebcc.1", "man/corebcc.conf.5", "help"]
            .map(String::from);
    for name in pages().chain(others) {
        let text = read(&name).split_whitespace().collect::<Vec<_>>().join(" ");
        for (phrase, better) in PHRASES {
            assert!(!text.contains(phrase), "{name}: `{phrase}`; write: {better}");
        }
    }
}

/// First words of doc comments that do not name the item: such a comment cannot be understood without its neighbours.
const RIDDLES: &[&str] = &["What", "How", "Where", "Of", "Has", "Whether", "Since"];

#[test]
fn doc_comments_begin_with_the_noun_they_document() {
    let sources = ["src", "tests", "benches"].into_iter().flat_map(sources_below).chain(["build.rs".into()]);
    for file in sources {
        let text = read(&file);
        let mut before = "";
        for (number, line) in text.lines().map(str::trim).enumerate() {
            let first = line.strip_prefix("/// ").filter(|_| !before.starts_with("///")).unwrap_or_default();
            let first = first.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
            assert!(!RIDDLES.contains(&first), "{file}:{}: begin with the noun instead of `{first}`", number + 1);
            before = line;
        }
    }
}

#[test]
fn test_names_have_at_most_60_letters() {
    let tests = [tests_below("src"), tests_below("tests")].concat();
    assert!(tests.len() > 700, "{}", tests.len());
    let long: Vec<_> = tests.iter().filter(|(_, name)| name.len() > 60).collect();
    assert!(long.is_empty(), "{long:?}");
}
