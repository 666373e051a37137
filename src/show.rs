//! `show`: a module without pmcd, drawn as people know it from bcc's tools: range, count, bar; other metrics as columns.

use crate::catalog::{Enabled, EnabledModule, ServedTable, TableError};
use crate::cli::{print, CommonOptions, PrintError, ShowOptions};
use crate::collector::{prepared_modules, ModuleSet};
use crate::config::{Config, ConfigError, Cost, Settings};
use crate::kit::{show_arguments, Key, Log2, MetricDef, Shape, Table};
use crate::modules::MODULES;
use crate::pcp::{Atom, Sem};
use crate::privilege;
use crate::transport::Signals;
use std::fmt::Write;
use std::os::fd::AsFd;
use std::time::Instant;
use thiserror::Error;

/// Width of a full bar.
const BAR: u64 = 40;

/// Why nothing can be shown.
#[derive(Debug, Error)]
pub enum ShowError {
    /// The configuration is in error.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No module has the metric.
    #[error("no metric `{metric}`; there are {known}")]
    NoMetric {
        /// The metric that was asked for.
        metric: String,
        /// The metrics that there are.
        known: String,
    },
    /// None of the modules that have the metric was loaded; with the reasons.
    #[error("{0}")]
    NotLoaded(String),
    /// The metric has no values.
    #[error(transparent)]
    NoValues(#[from] TableError),
    /// Nothing can be printed.
    #[error(transparent)]
    Print(#[from] PrintError),
}

/// Draws a metric, or all below a node, every `interval`, `count` times; without an interval once, when a signal ends it.
pub fn run(options: &ShowOptions, signals: &Signals) -> Result<(), ShowError> {
    let ShowOptions { common, metric, interval, count, folded } = options;
    let (config, settings, mut modules) = chosen(common, metric)?;
    show_arguments(settings.show_arguments);
    if modules.is_empty() {
        return Err(no_metric(metric));
    }
    let mut left_out = Vec::new();
    let prepared_modules = match prepared_modules(&config, &modules, settings.process_refresh) {
        Ok(prepared_modules) => prepared_modules,
        Err(_) => {
            // One that cannot be made costs its own metrics only.
            modules.retain(|module| {
                let made = prepared_modules(&config, std::slice::from_ref(module), settings.process_refresh);
                left_out.extend(made.as_ref().err().map(|error| (module.settings.section.clone(), error.to_string())));
                made.is_ok()
            });
            prepared_modules(&config, &modules, settings.process_refresh)?
        }
    };
    let mut set = ModuleSet::load(prepared_modules, common.btf.clone());
    if settings.drop_privileges {
        drop_privileges(&modules);
    }
    for (module, outcome) in modules.iter().zip(set.outcomes()) {
        left_out.extend(outcome.err().map(|failure| (module.settings.section.clone(), failure.to_string())));
    }
    let tables: Vec<ServedTable> = modules.iter().flat_map(EnabledModule::tables).collect();
    let mut selected = select(&tables, metric);
    selected.retain(|(table, _)| left_out.iter().all(|(name, _)| *name != table.section));
    if selected.is_empty() {
        let mut reasons: Vec<String> = Vec::new();
        for (_, reason) in left_out {
            if !reasons.contains(&reason) {
                reasons.push(reason);
            }
        }
        return Err(ShowError::NotLoaded(reasons.join("; ")));
    }
    for (name, reason) in left_out {
        eprintln!("{}: {name} is not shown: {reason}", common.program);
    }
    for table in modules.iter().filter_map(|module| module.tables().next()) {
        // What samples on demand; the others refuse.
        let _ = set.store(table.id, 0, b"start");
    }
    if interval.is_none() {
        eprintln!("Counting... Ctrl-C ends and shows.");
    }
    let mut values: Vec<(Table, Table)> =
        selected.iter().map(|(served, _)| (Table::of(served.spec), Table::of(served.spec))).collect();
    for round in 1.. {
        let until = interval.map(|interval| Instant::now() + interval);
        let ended = loop {
            match set.attend(signals.as_fd(), until) {
                false => break false,
                true if signals.take().is_some() => break true,
                true => {}
            }
        };
        for ((served, columns), (table, earlier)) in selected.iter().zip(&mut values) {
            std::mem::swap(table, earlier);
            if let Err(error) = set.refresh(served.id, table) {
                if selected.len() == 1 {
                    return Err(error.into());
                }
                continue; // the log says it
            }
            let earlier = (round > 1).then_some(&*earlier);
            let drawn = match folded {
                true => fold(served, columns, table, earlier),
                false => format!("\n{}\n", draw(served, columns, table, earlier)),
            };
            if !print(&drawn)? {
                return Ok(());
            }
        }
        if ended || interval.is_none() || *count == Some(round) {
            break;
        }
    }
    Ok(())
}

/// Gives up what nothing but loading needed.
fn drop_privileges(modules: &[EnabledModule]) {
    let dropped = privilege::hold(&privilege::to_run(modules.iter().map(|module| module.spec)))
        .map_err(|error| error.to_string());
    let limited = privilege::limit_calls().map_err(|error| error.to_string());
    if let Err(error) = dropped.and(limited) {
        log::warn!("privileges are not dropped: {error}");
    }
}

/// A configuration, its settings and, of its modules, those that have the metric or some below the node. The configuration is the
/// named one; where no module that it enables has the metric, another module is enabled for it, as its section says if it has one.
/// Without a configuration every module there is can be shown.
fn chosen(common: &CommonOptions, metric: &str) -> Result<(Config, Settings, Vec<EnabledModule>), ConfigError> {
    let every = every()?;
    let config = common.config.as_deref().map_or_else(|| Ok(every.clone()), Config::read)?;
    let (settings, enabled) = enabled_by(&config)?;
    let found = having(enabled, metric);
    if !found.is_empty() {
        return Ok((config, settings, found));
    }
    let (_, mut all) = enabled_by(&every)?;
    all.iter_mut().for_each(|module| module.settings.prefix.clone_from(&settings.prefix));
    let names: Vec<&str> = having(all, metric).iter().map(|module| module.spec.name).collect();
    if names.is_empty() {
        return Ok((config, settings, Vec::new()));
    }
    let config = config.enabling(&names, &every);
    let (settings, enabled) = enabled_by(&config)?;
    Ok((config, settings, having(enabled, metric)))
}

/// The modules of a configuration; what is wrong with one costs no other.
fn enabled_by(config: &Config) -> Result<(Settings, Vec<EnabledModule>), ConfigError> {
    let Enabled { settings, modules, faults } = Enabled::survey(config, MODULES);
    for fault in faults {
        match fault.cost {
            Cost::All => return Err(fault.error),
            _ => log::warn!("{}", fault.error),
        }
    }
    Ok((settings, modules))
}

/// Those that have the metric, or some below the node.
fn having(mut modules: Vec<EnabledModule>, metric: &str) -> Vec<EnabledModule> {
    modules.retain(|module| !select(&module.tables().collect::<Vec<_>>(), metric).is_empty());
    modules
}

fn no_metric(metric: &str) -> ShowError {
    let names: Vec<&str> = MODULES.iter().flat_map(|spec| spec.metrics()).map(|metric| metric.name).collect();
    ShowError::NoMetric { metric: metric.into(), known: names.join(", ") }
}

/// Every module there is, with its defaults and with examples where there are none.
fn every() -> Result<Config, ConfigError> {
    let names: Vec<&str> = MODULES.iter().map(|spec| spec.name).collect();
    let mut text = format!("[pmda]\nmodules = {}\n", names.join(","));
    for spec in MODULES {
        text += &spec.section("");
    }
    Config::parse("the configuration of show", text.as_bytes())
}

/// Which columns of which tables a name means: a metric, or all below a node. With or without the first component.
pub fn select<'a>(tables: &'a [ServedTable], name: &str) -> Vec<(&'a ServedTable, Vec<usize>)> {
    let mut selected = Vec::new();
    for table in tables {
        let means = |metric: &MetricDef| {
            let full = format!("{}{}", table.prefix, metric.name);
            [full.as_str(), metric.name].iter().any(|known| {
                known.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.') || name.is_empty())
            })
        };
        let columns: Vec<usize> =
            table.spec.metrics.iter().enumerate().filter(|(_, metric)| means(metric)).map(|(i, _)| i).collect();
        if !columns.is_empty() {
            selected.push((table, columns));
        }
    }
    selected
}

/// Draws columns of a table; counters show what was added since an earlier table.
pub fn draw(served: &ServedTable, columns: &[usize], table: &Table, earlier: Option<&Table>) -> String {
    match served.spec.shape {
        Shape::Log2(_) => columns.iter().map(|&column| histogram(served, column, table, earlier)).collect(),
        _ => rows(served, columns, table, earlier),
    }
}

/// A line for each instance that counted something: its name with semicolons for commas, and the count.
fn fold(served: &ServedTable, columns: &[usize], table: &Table, earlier: Option<&Table>) -> String {
    let mut out = String::new();
    for &column in columns.iter().filter(|&&column| served.spec.metrics[column].sem == Sem::COUNTER) {
        for (row, key) in table.keys().iter().enumerate() {
            let (name, count) = (name(table, key), since(table, earlier, row, column));
            if count > 0 {
                let _ = writeln!(out, "{} {count}", name.replace(',', ";"));
            }
        }
    }
    out
}

fn histogram(served: &ServedTable, column: usize, table: &Table, earlier: Option<&Table>) -> String {
    let metric = &served.spec.metrics[column];
    let counts: Vec<u64> = (0..table.len()).map(|row| since(table, earlier, row, column)).collect();
    let shown = counts.iter().rposition(|&count| count > 0).map_or(0, |highest| highest + 1);
    let mut out = format!("{}{}\n", served.prefix, metric.name);
    let highest = counts.iter().copied().max().unwrap_or(0);
    let _ = writeln!(out, "{:>23} : {:<10} distribution", "usecs", "count");
    for (slot, count) in counts.iter().take(shown).enumerate() {
        let (low, high) = Log2::bounds(slot as u32);
        let stars = (u128::from(*count) * u128::from(BAR) / u128::from(highest.max(1))) as usize;
        let _ =
            writeln!(out, "{low:>10} -> {high:<10}: {count:<10}|{:<width$}|", "*".repeat(stars), width = BAR as usize);
    }
    if shown == 0 {
        out.push_str("                        (nothing yet)\n");
    }
    let total: u64 = counts.iter().sum();
    let _ = writeln!(out, "{:>23} : {total}", "total");
    out
}

/// A counter's growth; the whole count without an earlier table.
fn since(table: &Table, earlier: Option<&Table>, row: usize, column: usize) -> u64 {
    let value = |table: &Table, row: usize| match table.value(row, column) {
        Some(Atom::U64(value)) => value,
        _ => 0,
    };
    let before = earlier.and_then(|earlier| Some(value(earlier, same(table, row, earlier)?))).unwrap_or(0);
    value(table, row).saturating_sub(before)
}

/// The row of an earlier table with the same key.
fn same(table: &Table, row: usize, earlier: &Table) -> Option<usize> {
    let name = |table: &Table, key: &Key| match key {
        Key::Single => (0, Vec::new()),
        Key::Index(index) => (*index, Vec::new()),
        Key::Name(name) => (0, table.text(name).to_vec()),
        Key::Pid(number, _) | Key::Numbered(number, _) => (*number, Vec::new()),
    };
    let wanted = name(table, table.keys().get(row)?);
    earlier.keys().iter().position(|key| name(earlier, key) == wanted)
}

fn rows(served: &ServedTable, columns: &[usize], table: &Table, earlier: Option<&Table>) -> String {
    let metrics: Vec<&MetricDef> = columns.iter().map(|&column| &served.spec.metrics[column]).collect();
    let title = format!("{}{}", served.prefix, above(&metrics));
    let mut cells = vec![std::iter::once(String::new())
        .chain(metrics.iter().map(|metric| short(metric.name, served.spec.metrics).into()))
        .collect()];
    for (row, key) in table.keys().iter().enumerate() {
        if columns.iter().all(|&column| table.value(row, column).is_none()) {
            continue;
        }
        let value = |(&column, metric): (&usize, &&MetricDef)| match table.value(row, column) {
            Some(Atom::U64(_)) if metric.sem == Sem::COUNTER => since(table, earlier, row, column).to_string(),
            Some(Atom::Str(text)) => printable(text),
            Some(Atom::U64(number)) => number.to_string(),
            Some(Atom::U32(number)) => number.to_string(),
            Some(Atom::I32(number)) => number.to_string(),
            _ => "-".into(),
        };
        cells.push(
            std::iter::once(name(table, key)).chain(columns.iter().zip(&metrics).map(value)).collect::<Vec<String>>(),
        );
    }
    let widths: Vec<usize> =
        (0..=columns.len()).map(|i| cells.iter().map(|row| row[i].chars().count()).max().unwrap_or(0)).collect();
    let mut out = title + "\n";
    for row in &cells {
        let line: Vec<String> = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
        let _ = writeln!(out, "{}", line.join("  ").trim_end());
    }
    if table.is_empty() {
        out.push_str("(nothing yet)\n");
    }
    out
}

fn name(table: &Table, key: &Key) -> String {
    match key {
        Key::Single => String::new(),
        Key::Index(index) => index.to_string(),
        Key::Name(name) | Key::Pid(_, name) | Key::Numbered(_, name) => printable(table.text(name)),
    }
}

/// The name of one metric, or the node above several.
fn above<'a>(metrics: &[&'a MetricDef]) -> &'a str {
    let Some((first, others)) = metrics.split_first() else { return "" };
    if others.is_empty() {
        return first.name;
    }
    let is_above =
        |node: &str| others.iter().all(|other| other.name.strip_prefix(node).is_some_and(|rest| rest.starts_with('.')));
    let mut nodes = first.name.rmatch_indices('.').map(|(dot, _)| &first.name[..dot]);
    nodes.find(|node| is_above(node)).unwrap_or_default()
}

/// As many of a metric's last components as tell it from the others of its module: `tcp.send.bytes`, `pid`.
fn short<'a>(name: &'a str, all: &[MetricDef]) -> &'a str {
    let is_of =
        |end: &str, name: &str| name.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    let mut ends = name.rmatch_indices('.').map(|(at, dot)| &name[at + dot.len()..]);
    ends.find(|end| all.iter().filter(|metric| is_of(end, metric.name)).count() == 1).unwrap_or(name)
}

/// A name from the kernel can hold any bytes; a terminal must not get them.
fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::enabled_modules;
    use crate::config::Config;
    use crate::kit::Metric;
    use crate::modules::MODULES;

    fn tables(config: &Config) -> Vec<ServedTable> {
        enabled_modules(config, MODULES).unwrap().1.iter().flat_map(EnabledModule::tables).collect()
    }

    fn configured() -> Vec<ServedTable> {
        let text = "[pmda]\nmodules = biolatency,netproc\n[biolatency]\nmodule = biolatency\ncluster = 0\n\
            [netproc]\nmodule = netproc\ncluster = 40\n";
        let config = Config::parse("test.conf", text.as_bytes()).unwrap();
        tables(&config)
    }

    #[test]
    fn a_histogram_shows_what_was_added_since_the_last() {
        let tables = configured();
        let latency = Metric::new(0);
        let (mut earlier, mut table) = (Table::new(1), Table::new(1));
        earlier.log2(latency, &[0, 5]);
        table.log2(latency, &[0, 7, 4]);
        let drawn = draw(&tables[0], &[0], &table, Some(&earlier));
        assert!(drawn.contains("         2 -> 3         : 2         |********************"), "{drawn}");
        assert!(
            drawn.contains("         4 -> 7         : 4         |****************************************|"),
            "{drawn}"
        );
        assert!(drawn.contains("total : 6"), "{drawn}");
    }

    #[test]
    fn names_have_the_prefix_or_not_and_may_be_nodes() {
        let tables = configured();
        let columns = |name| select(&tables, name).iter().map(|(_, columns)| columns.len()).sum::<usize>();
        assert_eq!(columns("disk.all.latency"), 1);
        assert_eq!(columns("bcc.disk.all.latency"), 1);
        assert_eq!(columns("bcc.proc.net"), 8);
        assert_eq!(columns("proc.net.tcp"), 4);
        assert_eq!(columns("proc.ne"), 0);
    }

    #[test]
    fn a_column_is_named_by_what_tells_it_from_the_others() {
        let heads = |module: &str| -> Vec<&str> {
            let spec = MODULES.iter().find(|spec| spec.name == module).unwrap();
            let metrics = spec.tables[0].metrics;
            metrics.iter().map(|metric| short(metric.name, metrics)).collect()
        };
        assert_eq!(heads("klockstat")[3..5], ["spin.total", "hold.avg"]);
        assert_eq!(heads("kprobe_hits"), ["count", "fail", "avg", "cml"]);
        assert_eq!(heads("netproc")[0], "tcp.send.calls");
    }

    #[test]
    fn a_table_is_headed_by_its_metric_or_the_node_above_them() {
        let tables = configured();
        let mut table = Table::new(8);
        table.process(77, b"000077 a").set(Metric::<u64>::new(1), 5);
        let title = |columns: &[usize]| draw(&tables[1], columns, &table, None).lines().next().unwrap().to_owned();
        assert_eq!(title(&[1]), "bcc.proc.net.tcp.send.bytes");
        assert_eq!(title(&[0, 1]), "bcc.proc.net.tcp.send");
        assert_eq!(title(&[0, 1, 2, 3]), "bcc.proc.net.tcp");
        assert_eq!(title(&[0, 7]), "bcc.proc.net");
    }

    /// A section of the file that is not enabled counts, with an example where something has to be given and is not.
    #[test]
    fn a_module_that_is_not_enabled_is_as_its_section_says() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "[pmda]\nmodules = sysfork\nprefix = x.\n[sysfork]\nmodule = sysfork\ncluster = 2\n\
            [biotop]\nmodule = biotop\ncluster = 210\nprocess_count = 3\n[kprobe_hits]\nmodule = kprobe_hits\nkprobes =\ncluster = 7\n";
        std::fs::write(file.path(), text).unwrap();
        let parsed = crate::cli::parse(["pmdacorebcc", "show", "x"].map(Into::into)).unwrap();
        let crate::cli::Command::Show(options) = parsed else { unreachable!("it was asked for") };
        let common = CommonOptions { config: Some(file.path().into()), ..options.common };
        let of = |metric: &str| {
            let (config, _, instances) = chosen(&common, metric).unwrap();
            let names = instances.iter().map(|instance| instance.settings.section.clone()).collect::<Vec<_>>();
            (config, instances, names)
        };
        assert_eq!(of("x").2, ["sysfork"]);
        let (_, instances, names) = of("x.proc.io.perdev");
        assert_eq!((names, instances[0].rows, instances[0].settings.cluster), (vec!["biotop".into()], 3, 210));
        let (config, instances, names) = of("kprobe.hits.count");
        assert_eq!((names, instances[0].settings.cluster), (vec!["kprobe_hits".to_owned()], 7));
        assert!(config.section("kprobe_hits").unwrap().get("kprobes").unwrap().is_some());
        assert_eq!(of("x.proc.net").2, ["netproc"]);
        assert!(of("bcc.proc.net").2.is_empty() && of("x.no").2.is_empty());
    }

    #[test]
    fn folded_lines_are_what_was_added_since_the_last() {
        let all = tables(&every().unwrap());
        let stacks = all.iter().find(|table| table.spec.metrics[0].name == "proc.stacks").unwrap();
        let samples = Metric::<u64>::new(0);
        let (mut earlier, mut table) = (Table::new(1), Table::new(1));
        earlier.numbered(7, b"sh,main").set(samples, 3);
        table.numbered(7, b"sh,main").set(samples, 3);
        table.numbered(9, b"sh,main,read_[k]").set(samples, 4);
        assert_eq!(fold(stacks, &[0], &table, Some(&earlier)), "sh;main;read_[k] 4\n");
        assert_eq!(fold(stacks, &[0], &table, None), "sh;main 3\nsh;main;read_[k] 4\n");
    }

    #[test]
    fn processes_are_rows_and_control_characters_are_not_printed() {
        let tables = configured();
        let mut table = Table::new(8);
        table.process(77, b"000077 a\x1bb").set(Metric::<u64>::new(1), 5);
        let drawn = draw(&tables[1], &[0, 1], &table, None);
        assert!(drawn.contains("tcp.send.calls  tcp.send.bytes"), "{drawn}");
        assert!(drawn.contains("000077 a_b  -               5"), "{drawn}");
    }
}
