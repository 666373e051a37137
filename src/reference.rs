//! Files that are generated from the declarations: the default configuration, the man pages, the tables of modules and metrics.
//! `UPDATE=1 cargo test --test files` writes them.

mod conf;
pub mod grafana;
mod man;
pub mod pmchart;
mod roff;
pub mod views;

pub use conf::conf_page;
pub use man::man_page;

use crate::config::{Line, SettingDef, DEFAULT_MODULES, MODULE_OPTIONS, PMDA, SCRIPT_OPTIONS};
use crate::kit::{self, HistogramDef, MetricDef, Need, OptionDef, OverheadClass, Shape, Spec, TableSpec};
use crate::privilege::capabilities;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Width of the default configuration in characters.
const WIDTH: usize = 120;

/// Descriptions of values that need no sentence, since the sample suffices.
const PLAIN: &[&str] = &[
    "a boolean",
    "text",
    "a whole number from 0 to 1000000000",
    "a number of rows from 0 to 10000",
    "a number of seconds, 0 for each fetch, or a negative number for never",
];

/// Returns `corebcc.conf`: every section and option with its default or an example, in the dialect of the Python agent's `bcc.conf`.
/// Sentences that several options share stand once, above the sections.
pub fn configuration(specs: &[&Spec]) -> String {
    let mut text = String::from(
        "# Configuration of pmdacorebcc. The Python agent's bcc.conf works unchanged.\n\
         # Comments begin with # or ; on a line of their own: no comments after a value. A line `#option = value` shows the\n\
         # default, or an example of a required option. Install never overwrites this file. Packages and automation use\n\
         # conf.d/*.conf beside it: regular files that belong to root and that only root can write to. They are read after\n\
         # this file in the order of their names, and add to its sections or override their options.\n\
         # After a change run `pmdacorebcc --check-syntax`, which only reads the files, or `pmdacorebcc --check`, which also\n\
         # loads the modules (as root). Then restart pmcd or run ./Install again.\n\
         #\n\
         # Modules, and what they cost on a busy machine: low is below 1 % of one CPU, medium up to 5 %, high more. Every module\n\
         # needs a kernel with BTF (CONFIG_DEBUG_INFO_BTF). The sections say what else it needs, and the median run time of its\n\
         # programs, net of an empty program.\n",
    );
    for spec in sorted(specs) {
        let _ = writeln!(text, "#   {:16}  {:6}  {}", spec.name, class(spec.overhead.class), spec.summary);
    }
    text += "\n[pmda]\n";
    for option in PMDA {
        text += &wrapped("# ", "# ", option.doc);
        text += &match option.line {
            Some(Line::Set(value)) => format!("{} = {value}\n", option.name),
            Some(Line::Example(value)) => format!("# {} = {value}\n", option.name),
            None => String::new(),
        };
    }
    text += "\n# A section [scripts] has bpftrace run the scripts of scripts.d beside this file (docs/scripts.md). The agent\n\
             # reads the section as it starts; scripts may come, change and go later:\n";
    let listed = |option: &SettingDef, more: &str| {
        wrapped(&format!("#   {:9} ", option.name), "#             ", &format!("{}{more}", option.doc))
    };
    SCRIPT_OPTIONS.iter().for_each(|option| text += &listed(option, ""));
    text += "#\n# Options of every section:\n";
    for option in MODULE_OPTIONS {
        let more = if option.name == "pin" { format!(" {}", Spec::pinnable(specs)) } else { String::new() };
        text += &listed(option, &more);
    }
    text += "#\n# Options of several sections:\n";
    let shared = Shared::of(specs);
    for entry in &shared.entries {
        text += &wrapped("#   ", "#     ", &format!("{}: {}", entry.names.join(", "), entry.sentences.join(" ")));
    }
    for spec in sorted(specs) {
        let needs = if spec.needs.is_empty() { String::new() } else { format!("; needs {}", spec.needs) };
        text += "\n";
        text += &wrapped("# ", "# ", &format!("{}{needs}.", spec.overhead.events));
        let _ = writeln!(text, "[{}]\nmodule = {}\ncluster = {}", spec.name, spec.path(), spec.cluster());
        for option in spec.options.iter().filter(|option| option.has_line()) {
            let mut own = sentences(option);
            own.retain(|sentence| !shared.has(option.name, sentence));
            if !own.is_empty() {
                text += &wrapped("# ", "# ", &own.join(" "));
            }
            let _ = writeln!(text, "{}", format!("#{} = {}", option.name, option.sample()).trim_end());
        }
    }
    text
}

/// Sentences that several options share.
struct Shared {
    entries: Vec<SharedEntry>,
}

/// Options and the sentences that they share.
struct SharedEntry {
    names: Vec<&'static str>,
    sentences: Vec<String>,
}

impl Shared {
    fn of(specs: &[&Spec]) -> Shared {
        let options = sorted(specs).into_iter().flat_map(|spec| spec.options);
        let options: Vec<&OptionDef> = options.filter(|option| option.has_effect()).collect();
        let mut entries = Vec::<SharedEntry>::new();
        for (at, option) in options.iter().enumerate() {
            for sentence in sentences(option) {
                let others = options[at + 1..].iter().filter(|other| sentences(other).contains(&sentence));
                let mut names: Vec<&str> = others.map(|other| other.name).collect();
                if names.is_empty() || entries.iter().any(|entry| entry.sentences.contains(&sentence)) {
                    continue;
                }
                names.insert(0, option.name);
                let mut seen = BTreeSet::new();
                names.retain(|name| seen.insert(*name));
                match entries.iter_mut().find(|entry| entry.names == names) {
                    Some(entry) => entry.sentences.push(sentence),
                    None => entries.push(SharedEntry { names, sentences: vec![sentence] }),
                }
            }
        }
        Shared { entries }
    }

    fn has(&self, name: &str, sentence: &String) -> bool {
        self.entries.iter().any(|entry| entry.names.contains(&name) && entry.sentences.contains(sentence))
    }
}

/// Returns the sentences of an option: its text, and a description of its values unless the sample suffices.
fn sentences(option: &OptionDef) -> Vec<String> {
    let text: Vec<&str> = option.doc.lines().map(str::trim).collect();
    let text = text.join(" ");
    let mut sentences: Vec<String> = split(&text).map(String::from).collect();
    if !PLAIN.contains(&option.expected) {
        sentences.push(format!("Values: {}.", option.expected));
    }
    sentences
}

/// Splits a text into sentences, each with its final stop.
fn split(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(". ").map(str::trim).filter(|sentence| !sentence.is_empty())
}

fn class(class: OverheadClass) -> &'static str {
    match class {
        OverheadClass::Unknown => "?",
        OverheadClass::Low => "low",
        OverheadClass::Medium => "medium",
        OverheadClass::High => "high",
    }
}

/// Returns the lines of a comment, see [`kit::wrapped`].
fn wrapped(first: &str, others: &str, text: &str) -> String {
    kit::wrapped(WIDTH, first, others, text)
}

/// Returns the table of modules in Markdown.
pub fn module_table(specs: &[&Spec]) -> String {
    let mut text = String::from("| module | metrics below `bcc.` | instances | hooks |\n| --- | --- | --- | --- |\n");
    for spec in sorted(specs) {
        let (mut metrics, mut instances) = (Vec::new(), Vec::new());
        for table in spec.tables.iter().filter(|table| !matches!(table.shape, Shape::Seconds { .. })) {
            // Those by bucket are among those of the series: `NAME.*`.
            if table.histograms.is_empty() || !matches!(table.shape, Shape::Buckets { .. }) {
                let mut names: Vec<String> = table.metrics.iter().map(|metric| listed(table, metric)).collect();
                let mut seen = BTreeSet::new();
                names.retain(|name| seen.insert(name.clone()));
                metrics.push(common(&names.iter().map(String::as_str).collect::<Vec<_>>()));
            }
            instances.push(match table.shape {
                Shape::Single => "none".into(),
                Shape::Log2(log2) => format!("power-of-two buckets in {}", log2.unit),
                Shape::Rows { order, .. } => format!("rows, {}", order.text()),
                Shape::Buckets { .. } => "buckets in microseconds".into(),
                Shape::Seconds { .. } => "buckets in seconds".into(),
                Shape::Named { .. } | Shape::Words { .. } => "names".into(),
                Shape::Pids => "processes".into(),
                Shape::Numbered => "names with fixed identifiers".into(),
            });
        }
        instances.dedup();
        let hooks: Vec<&str> = spec.hooks.iter().map(|hook| hook.name).collect();
        let star = if DEFAULT_MODULES.split(',').any(|name| name == spec.name) { " (default)" } else { "" };
        let _ = writeln!(
            text,
            "| {}{star}: {} | {} | {} | {} |",
            spec.name,
            spec.summary,
            metrics.join("; "),
            instances.join("; "),
            hooks.join(", ")
        );
    }
    text
}

/// Returns the table of the clusters of modules that the Python agent did not have, in Markdown.
pub fn cluster_table(specs: &[&Spec]) -> String {
    let mut taken = BTreeMap::new();
    for spec in specs {
        let clusters = spec.tables.iter().map(|table| table.cluster).filter(|&cluster| cluster >= 400);
        taken.extend(clusters.map(|cluster| (cluster, spec.name)));
    }
    let mut text = String::from("| cluster | module |\n| --- | --- |\n");
    for (cluster, module) in taken {
        let _ = writeln!(text, "| {cluster} | {module} |");
    }
    text
}

/// Returns the table of the agent's own metrics in Markdown.
pub fn status_table<'a>(tables: impl Iterator<Item = &'a TableSpec>) -> String {
    let mut text = String::from("| metric below `bcc.` | by | what it is |\n| --- | --- | --- |\n");
    for table in tables {
        let by = if table.shape == Shape::Single { "" } else { table.summary.trim_start_matches("each ") };
        for metric in table.metrics {
            let _ = writeln!(text, "| `{}` | {by} | {} |", metric.name, metric.oneline);
        }
    }
    text
}

/// Returns the table of capabilities of modules in Markdown: beyond CAP_BPF and CAP_PERFMON for loading, and beyond CAP_BPF
/// afterwards.
pub fn capability_table(specs: &[&Spec]) -> String {
    let mut rows: Vec<([String; 2], Vec<&str>)> = Vec::new();
    for spec in sorted(specs) {
        let afterwards = spec.running_needs();
        let loading = [spec.needs_to_load, &afterwards].concat();
        let cells = [needed(&loading, &["CAP_PERFMON"]), needed(&afterwards, &[])];
        match rows.iter_mut().find(|(others, _)| *others == cells) {
            Some((_, modules)) => modules.push(spec.name),
            None => rows.push((cells, vec![spec.name])),
        }
    }
    let mut table = "| modules | while loading | afterwards |\n| --- | --- | --- |\n".to_owned();
    for ([loading, afterwards], modules) in rows {
        let _ = writeln!(table, "| {} | {loading} | {afterwards} |", modules.join(", "));
    }
    table
}

/// Returns the capabilities that needs amount to, without some.
fn needed(needs: &[Need], without: &[&str]) -> String {
    let names = |needs: &mut dyn Iterator<Item = &Need>| -> BTreeSet<String> {
        needs.flat_map(|&need| capabilities(need)).map(ToString::to_string).collect()
    };
    let always = names(&mut needs.iter().filter(|need| **need != Need::Processes));
    let hidden = names(&mut needs.iter().filter(|need| **need == Need::Processes));
    let always_cells = always.iter().filter(|name| !without.contains(&name.as_str())).map(|name| format!("`{name}`"));
    let hidden_cells = hidden.difference(&always).map(|name| format!("`{name}` with `hidepid`"));
    let cells: Vec<String> = always_cells.chain(hidden_cells).collect();
    if cells.is_empty() {
        "-".into()
    } else {
        cells.join(", ")
    }
}

fn sorted<'a>(specs: &[&'a Spec]) -> Vec<&'a Spec> {
    let mut specs = specs.to_vec();
    specs.sort_by_key(|spec| spec.cluster());
    specs
}

/// Returns the name under which a metric is listed: all metrics of a histogram have one.
fn listed(table: &TableSpec, metric: &MetricDef) -> String {
    let is_of =
        |histogram: &&HistogramDef| metric.name.strip_prefix(histogram.name).is_some_and(|rest| rest.starts_with('.'));
    table.histograms.iter().find(is_of).map_or(metric.name.into(), |histogram| format!("{}.*", histogram.name))
}

/// Joins names to `a.b.{c,d}`, with their common beginning once.
fn common(names: &[&str]) -> String {
    let [first, rest @ ..] = names else { return String::new() };
    if rest.is_empty() {
        return format!("`{first}`");
    }
    let shared = (0..first.len())
        .rev()
        .find(|&end| first[..end].ends_with('.') && rest.iter().all(|name| name.starts_with(&first[..end])))
        .unwrap_or(0);
    let tails: Vec<&str> = names.iter().map(|name| &name[shared..]).collect();
    format!("`{}{{{}}}`", &first[..shared], tails.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_rows_are_described_by_the_order_they_have() {
        let table = module_table(crate::modules::MODULES);
        let order = |module: &str| {
            let line = table.lines().find(|line| line.starts_with(&format!("| {module}: "))).unwrap();
            line.split(" | ").nth(2).unwrap().to_owned()
        };
        assert_eq!(order("tcplife"), "rows, latest first");
        assert_eq!(order("execsnoop"), "rows, latest first; none", "and a table without instances");
        assert_eq!(order("tcptop"), "rows, most bytes first");
        assert_eq!(order("biotop"), "rows, most bytes first or as `sort` orders them");
    }

    #[test]
    fn every_module_has_its_class_of_overhead() {
        for spec in crate::modules::MODULES {
            assert_ne!(spec.overhead.class, OverheadClass::Unknown, "{}: add `overhead: Overhead::low(..)`", spec.name);
            let events = spec.overhead.events;
            let is_measured = events.starts_with(|c: char| c.is_ascii_digit()) && events.contains(" per ");
            assert!(is_measured && !events.ends_with('.'), "{}: `160 ns per request`, not `{events}`", spec.name);
        }
    }

    #[test]
    fn the_configuration_says_no_sentence_twice() {
        let text = configuration(crate::modules::MODULES);
        let comments = text.lines().map(|line| match line.strip_prefix("# ") {
            Some(words) => words.trim(),
            None => "\n",
        });
        let comments = comments.collect::<Vec<_>>().join(" ");
        let sentences = comments.split('\n').flat_map(split).filter(|sentence| sentence.contains(' '));
        let mut seen = BTreeSet::new();
        let repeated: Vec<&str> = sentences.filter(|sentence| !seen.insert(*sentence)).collect();
        assert!(repeated.is_empty(), "{repeated:#?}");
        assert!(seen.len() > 100, "{}", seen.len());
    }

    #[test]
    fn the_configuration_lists_the_modules_and_fits_the_page() {
        let text = configuration(crate::modules::MODULES);
        let (top, sections) = text.split_once("\n[pmda]\n").unwrap();
        for spec in crate::modules::MODULES {
            let line = top.lines().find(|line| line.starts_with(&format!("#   {} ", spec.name))).unwrap();
            assert!(line.contains(class(spec.overhead.class)) && line.ends_with(spec.summary), "{line}");
            assert!(sections.contains(spec.overhead.events.split(' ').next().unwrap()), "{}", spec.name);
        }
        // An example may be longer.
        let wide: Vec<&str> = text.lines().filter(|line| line.len() > WIDTH && line.starts_with("# ")).collect();
        assert!(wide.is_empty(), "{wide:#?}");
        // What several modules have is told once; an option of one module is a line, and mostly one that says what it does.
        let (lines, modules) = (text.lines().count(), crate::modules::MODULES.len());
        assert!(lines < 110 + 13 * modules, "{lines} lines for {modules} modules");
    }

    #[test]
    fn names_share_what_they_have_in_common() {
        assert_eq!(common(&["a.b.c", "a.b.d"]), "`a.b.{c,d}`");
        assert_eq!(common(&["a.b.c"]), "`a.b.c`");
        assert_eq!(common(&["x.y", "a.b"]), "`{x.y,a.b}`");
    }
}
