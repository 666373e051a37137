//! The tables of a script: one for its state, one for each of its maps, one for its output. They live until the agent ends, and equal
//! scripts share them.

use super::output::{Cell, Row};
use super::source::{Kind, ScriptMap, Source, OUTPUT};
use super::state::ScriptState;
use crate::kit::{Metric, MetricDef, RefreshError, SeriesLabel, Shape, Table, TableSpec};
use crate::pcp::{Sem, Type, Units};
use crate::user::{kept, leak, word};
use std::sync::Arc;
use std::time::Instant;

/// Largest number of instances of a table.
const MAX_INSTANCES: usize = 10_000;

const STATUS: Metric<str> = Metric::new(0);
const PID: Metric<u32> = Metric::new(1);
const EXIT_CODE: Metric<i32> = Metric::new(2);
const ERROR: Metric<str> = Metric::new(3);
const PROBES: Metric<u32> = Metric::new(4);
const CODE: Metric<str> = Metric::new(5);
const DATA_BYTES: Metric<u64> = Metric::new(6);
const STARTS: Metric<u64> = Metric::new(7);
const MESSAGES: Metric<str> = Metric::new(8);

/// Items, names and types as in PCP's bpftrace agent, then the number of starts and the standard error.
const LIFE: &[(u32, &str, Type, Sem, Units, &str)] = &[
    (0, "status", Type::STRING, Sem::INSTANT, Units::NONE, "stopped, starting, started or error"),
    (1, "pid", Type::U32, Sem::INSTANT, Units::NONE, "process id of bpftrace"),
    (2, "exit_code", Type::I32, Sem::INSTANT, Units::NONE, "exit code of bpftrace, or minus the signal that ended it"),
    (3, "error", Type::STRING, Sem::INSTANT, Units::NONE, "why the script does not work"),
    (4, "probes", Type::U32, Sem::INSTANT, Units::COUNT, "number of attached probes"),
    (5, "code", Type::STRING, Sem::INSTANT, Units::NONE, "the script"),
    (6, "data_bytes", Type::U64, Sem::COUNTER, Units::BYTE, "bytes of bpftrace's output"),
    (7, "starts", Type::U64, Sem::COUNTER, Units::COUNT, "number of times that bpftrace was started"),
    (8, "output", Type::STRING, Sem::INSTANT, Units::NONE, "what bpftrace wrote to its standard error"),
];

const COUNT: Metric<u64> = Metric::new(0);
const NUMBER: Metric<i64> = Metric::new(0);
const TEXT: Metric<str> = Metric::new(0);
const AVERAGE: Metric<i64> = Metric::new(1);
const TOTAL: Metric<i64> = Metric::new(2);

/// A table of a script.
pub struct ScriptTable {
    /// Its declaration.
    pub spec: &'static TableSpec,
    what: What,
}

#[derive(Debug)]
enum What {
    State,
    Map(ScriptMap),
    Output,
}

/// Returns the keys by which a script's tables keep their clusters: of its state, its maps, its output.
pub fn keys(script: &str, source: &Source) -> Vec<String> {
    let maps = source.maps.iter().map(|map| map.name.as_str());
    let data = maps.chain(source.prints.then_some(OUTPUT)).map(|map| format!("script.{script}.{map}"));
    [format!("script.{script}")].into_iter().chain(data).collect()
}

/// Declares the tables of a script with these clusters, one for each key. A table without a cluster is left out.
pub fn declare(script: &str, source: &Source, clusters: &[Option<u16>]) -> Vec<ScriptTable> {
    let maps = source.maps.iter().cloned().map(What::Map);
    let whats = [What::State].into_iter().chain(maps).chain(source.prints.then_some(What::Output));
    let table = |(what, cluster): (What, &Option<u16>)| {
        let (cluster, help) = (u32::from((*cluster)?), what.help(source));
        let spec = kept(format!("script.{script} {what:?} {cluster} {help:?}"), || spec(script, &what, cluster, help));
        Some(ScriptTable { spec, what })
    };
    whats.zip(clusters).filter_map(table).collect()
}

impl What {
    /// Returns the label `metrictype`, see [`ScriptMap::metric_type`].
    fn metric_type(&self) -> &'static str {
        match self {
            What::State => "control",
            What::Output => "output",
            What::Map(map) => map.metric_type(),
        }
    }

    /// Returns the help text that the script has for the table.
    fn help<'s>(&self, source: &'s Source) -> Option<&'s str> {
        let name = match self {
            What::State => return None,
            What::Map(map) => &map.name,
            What::Output => OUTPUT,
        };
        source.helps.get(name).map(String::as_str)
    }
}

fn spec(script: &str, what: &What, cluster: u32, help: Option<&str>) -> TableSpec {
    let metric = |item, name: String, ty, sem, units, help: String| MetricDef {
        item,
        name: leak(format!("script.{script}.{name}")),
        also: &[],
        ty,
        sem,
        units,
        oneline: leak(help),
    };
    let (shape, metrics): (Shape, Vec<MetricDef>) = match what {
        What::State => {
            let metrics = LIFE.iter().map(|(item, name, ty, sem, units, help)| {
                metric(*item, (*name).into(), *ty, *sem, *units, format!("{help} (script {script})"))
            });
            (Shape::Single, metrics.collect())
        }
        What::Output => {
            let help = help.map_or_else(|| format!("last text that script {script} printed"), String::from);
            (Shape::Single, vec![metric(0, "data.output".into(), Type::STRING, Sem::INSTANT, Units::NONE, help)])
        }
        What::Map(map) => {
            let shape = if map.is_single() { Shape::Single } else { Shape::Named { max: MAX_INSTANCES } };
            let name = format!("data.{}", data_name(&map.name));
            let one = |ty, sem, units, words: &str| {
                vec![metric(
                    0,
                    name.clone(),
                    ty,
                    sem,
                    units,
                    help.map_or_else(|| format!("{words} of the map {} of script {script}", map.name), String::from),
                )]
            };
            // What is cleared goes back.
            let counter = if map.is_cleared { Sem::INSTANT } else { Sem::COUNTER };
            let metrics = match map.kind {
                Kind::Count => one(Type::U64, Sem::COUNTER, Units::COUNT, "count"),
                Kind::Sum => one(Type::I64, Sem::COUNTER, Units::NONE, "sum"),
                Kind::Level => one(Type::I64, Sem::INSTANT, Units::NONE, "value"),
                Kind::Text => one(Type::STRING, Sem::INSTANT, Units::NONE, "text"),
                Kind::Histogram => one(Type::U64, counter, Units::COUNT, "count by bucket"),
                Kind::Stats => {
                    let said = |word: &str| match help {
                        Some(help) => format!("{help}: {word}"),
                        None => format!("{word} of the map {} of script {script}", map.name),
                    };
                    let part = |item, word: &str, ty, sem, units| {
                        metric(item, format!("{name}.{word}"), ty, sem, units, said(word))
                    };
                    vec![
                        part(0, "count", Type::U64, counter, Units::COUNT),
                        part(1, "average", Type::I64, Sem::INSTANT, Units::NONE),
                        part(2, "total", Type::I64, counter, Units::NONE),
                    ]
                }
            };
            (shape, metrics)
        }
    };
    TableSpec {
        summary: leak(format!("script {script}")),
        cluster,
        shape,
        metrics: Vec::leak(metrics),
        metric_type: what.metric_type(),
        ..TableSpec::NEW
    }
}

/// Makes a part of a metric's name from a map's: `root` for `@`, as in PCP's bpftrace agent.
fn data_name(map: &str) -> String {
    match map.trim_start_matches('@') {
        "" => "root".into(),
        name => word(name),
    }
}

impl ScriptTable {
    /// True if the table has values that the script counts, false for the table of its state.
    pub fn is_data(&self) -> bool {
        !matches!(self.what, What::State)
    }

    /// Fills the table.
    pub fn fill(&self, state: &ScriptState, table: &mut Table) -> Result<(), RefreshError> {
        match &self.what {
            What::State => fill_state(state, table),
            What::Output => drop(table.single().text(TEXT, state.output.as_bytes())),
            What::Map(map) => {
                let rows = state.rows(map, Instant::now())?;
                rows.iter().for_each(|row| fill_row(row, table));
            }
        }
        Ok(())
    }
}

fn fill_state(state: &ScriptState, table: &mut Table) {
    let row = table
        .single()
        .text(STATUS, state.status.word().as_bytes())
        .set(EXIT_CODE, state.exit_code)
        .text(ERROR, state.failure().as_deref().unwrap_or(&state.error).trim_end().as_bytes())
        .text(MESSAGES, state.messages.trim_end().as_bytes())
        .set(PROBES, u32::try_from(state.probes()).unwrap_or(u32::MAX))
        .text(CODE, state.code.as_bytes())
        .set(DATA_BYTES, state.data_bytes)
        .set(STARTS, state.starts);
    if let Some(pid) = state.pid {
        row.set(PID, pid);
    }
}

fn fill_row(row: &Row, table: &mut Table) {
    let made = match row.name.as_str() {
        "" => table.single(),
        name => {
            let text = row.key.chars().map(|c| if c == '\n' { ';' } else { c }).filter(|c| !c.is_control());
            let labels = Arc::new(vec![("key", SeriesLabel::Text(text.collect()))]);
            let made = table.named(name.as_bytes());
            if row.key.is_empty() {
                made
            } else {
                made.labels(&labels)
            }
        }
    };
    match &row.cell {
        Cell::Count(count) => drop(made.set(COUNT, *count)),
        Cell::Number(number) => drop(made.set(NUMBER, *number)),
        Cell::Text(text) => drop(made.text(TEXT, text.as_bytes())),
        Cell::Stats(count, average, total) => drop(made.set(COUNT, *count).set(AVERAGE, *average).set(TOTAL, *total)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_has_a_table_for_its_state_and_each_map() {
        let code = "BEGIN { @ = count(); @by[comm] = sum(1); @h = hist(1); @s = stats(1); printf(\"x\"); }";
        let source = Source::parse(code);
        let keys = keys("x", &source);
        assert_eq!(keys, ["script.x", "script.x.@", "script.x.@by", "script.x.@h", "script.x.@s", "script.x.@output"]);
        let clusters: Vec<Option<u16>> = (0..6).map(|number| (number != 3).then_some(500 + number)).collect();
        let tables = declare("x", &source, &clusters);
        let names: Vec<&str> = tables.iter().flat_map(|table| table.spec.metrics).map(|metric| metric.name).collect();
        assert_eq!(names[..3], ["script.x.status", "script.x.pid", "script.x.exit_code"]);
        let data =
            ["root", "by", "s.count", "s.average", "s.total", "output"].map(|name| format!("script.x.data.{name}"));
        assert_eq!(names[LIFE.len()..], data, "@h has no cluster");
        let again = declare("x", &source, &clusters);
        let same = |(one, other): (&ScriptTable, &ScriptTable)| std::ptr::eq(one.spec, other.spec);
        assert!(tables.iter().zip(&again).all(same), "made once");
        let told = Source::parse(&format!("// help: @by Calls by command\n// help: @s Sizes\n{code}"));
        let helps = declare("x", &told, &clusters)
            .iter()
            .flat_map(|table| table.spec.metrics)
            .map(|m| m.oneline)
            .collect::<Vec<_>>();
        assert_eq!(helps[LIFE.len()..][..3], ["count of the map @ of script x", "Calls by command", "Sizes: count"]);
        let kinds: Vec<&str> = tables.iter().map(|table| table.spec.metric_type).collect();
        assert_eq!(kinds, ["control", "", "", "", "output"], "@h has no cluster");
        let source =
            Source::parse("profile:hz:99 { @h = hist(1); @s[comm, kstack(3)] = count(); @t[ustack] = count(); }");
        let clusters: Vec<Option<u16>> = (600..604).map(Some).collect();
        let kinds: Vec<&str> = declare("y", &source, &clusters).iter().map(|table| table.spec.metric_type).collect();
        assert_eq!(kinds, ["control", "histogram", "stacks", "stacks"]);
        let source = Source::parse(code);
        assert_eq!(tables[2].spec.shape, Shape::Named { max: MAX_INSTANCES });

        let mut state = ScriptState::new(code.into(), source);
        let mut table = Table::of(tables[2].spec);
        assert!(tables[2].fill(&state, &mut table).is_err(), "nothing is printed yet");
        state.line(br#"{"type": "map", "data": {"@by": {"bash": 7}}}"#);
        tables[2].fill(&state, &mut table).unwrap();
        assert_eq!((table.names(), table.value(0, 0)), (vec!["bash".into()], Some(crate::pcp::Atom::I64(7))));
        let mut table = Table::of(tables[0].spec);
        tables[0].fill(&state, &mut table).unwrap();
        assert_eq!(table.value(0, 0), Some(crate::pcp::Atom::Str(b"stopped")));
        assert_eq!(table.value(0, 1), None, "no process");
    }
}
