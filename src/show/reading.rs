//! One reading of a table, in a form that suits all outputs.

use super::only::wants;
use super::select::Selected;
use crate::cli::{Scale, ShowOptions};
use crate::kit::{Interval, Key, MetricDef, RowCount, Shape, Table};
use crate::pcp::{Atom, Sem, Units};
use chrono::{DateTime, Local};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::Duration;

/// A table with the values of a reading.
pub struct Reading<'a> {
    /// The table and its columns that are shown.
    pub of: &'a Selected,
    /// The values.
    pub table: &'a Table,
    /// The values of the previous reading.
    pub earlier: Option<Earlier<'a>>,
    /// Number of events since the previous reading, if the rows are events.
    pub new: Option<u64>,
    /// Time of the reading.
    pub time: DateTime<Local>,
    /// Time since the previous reading.
    pub covers: Duration,
    /// A condition that is not met yet, without which the module has nothing to count.
    pub waits_for: Option<String>,
}

/// The values of an earlier reading, with an index by instance.
pub struct Earlier<'a> {
    table: &'a Table,
    rows: HashMap<(u32, &'a [u8]), usize>,
}

impl<'a> Earlier<'a> {
    /// Makes the index of a table.
    pub fn new(table: &'a Table) -> Earlier<'a> {
        let rows = table.keys().iter().enumerate().map(|(row, key)| (identity(table, key), row)).collect();
        Earlier { table, rows }
    }

    fn count(&self, key: (u32, &[u8]), column: usize) -> u64 {
        self.rows.get(&key).map_or(0, |&row| count(self.table, row, column))
    }
}

/// The content of a cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// No value.
    None,
    /// A whole number: the growth of a counter, or another value as it is.
    Whole(i128),
    /// A rate, or a time in another unit.
    Real(f64),
    /// A text that is safe to print.
    Text(String),
}

/// A row that is shown.
pub struct Line {
    /// The instance; empty if the table has none.
    pub name: String,
    /// The values of the shown columns.
    pub values: Vec<Value>,
}

/// The rows that are shown, and the numbers of those that are not.
pub struct Rows {
    /// The rows, in order.
    pub lines: Vec<Line>,
    /// Number of rows left out because they are zero.
    pub zeros: usize,
    /// Number of rows beyond the limit.
    pub beyond: usize,
    /// Number of events since the previous reading that the module did not keep.
    pub unkept: u64,
}

impl Reading<'_> {
    /// Returns the metrics of the columns.
    pub fn metrics(&self) -> Vec<&'static MetricDef> {
        self.of.columns.iter().map(|&column| &self.of.table.spec.metrics[column]).collect()
    }

    /// Returns the full name of the metric, or of the node above several.
    pub fn title(&self) -> String {
        format!("{}{}", self.of.table.prefix, above(&self.metrics()))
    }

    /// True if the values were counted since the previous reading, false for states.
    pub fn counts(&self) -> bool {
        self.new.is_some()
            || self.of.interval.is_some_and(|interval| interval != Interval::Never)
            || self.metrics().iter().any(|metric| metric.sem == Sem::COUNTER)
    }

    /// Returns the time that the values cover: since the previous reading, or the module's own interval.
    pub fn span(&self) -> Duration {
        match self.of.interval {
            Some(Interval::Seconds(seconds)) => Duration::from_secs(seconds.into()),
            _ => self.covers,
        }
    }

    /// Returns a sentence about events since the previous reading that were not kept, and the option that keeps them.
    pub fn unkept(&self) -> Option<String> {
        let (_, unkept) = self.new_rows(false);
        let Shape::Rows { count, .. } = self.of.table.spec.shape else { return None };
        let wanted = unkept + self.table.len() as u64;
        let how = match wanted <= RowCount::MOST.into() {
            true => format!("--set {count}={wanted} keeps as many"),
            false => format!("a shorter INTERVAL with --set {count}={} keeps more", RowCount::MOST),
        };
        (unkept > 0).then(|| format!("{unkept} more that were not kept; {how}"))
    }

    /// Returns the time of day, with milliseconds if readings are less than a second apart.
    pub fn clock(&self) -> String {
        let format = if self.covers < Duration::from_millis(990) { "%H:%M:%S%.3f" } else { "%H:%M:%S" };
        self.time.format(format).to_string()
    }

    /// Returns the text in place of rows if there are none, with the reason as far as it is known.
    pub fn nothing(&self) -> String {
        let table = &self.of.table;
        if let Some(why) = table.why_off() {
            let set = table.off.iter().map(|option| format!("--set {}.{option}=true", table.section));
            return format!("({why}; {} shows it here)", set.collect::<Vec<_>>().join(" "));
        }
        match &self.waits_for {
            Some(what) => format!("({what})"),
            None if self.new.is_some() && self.earlier.is_some() => "(nothing new)".into(),
            None if self.earlier.is_some() && self.counts() => "(nothing in this interval)".into(),
            None => "(nothing yet)".into(),
        }
    }

    /// Returns the rows, filtered, sorted and limited as the options say.
    pub fn rows(&self, options: &ShowOptions, in_place: bool) -> Rows {
        let (mut rows, unkept) = self.new_rows(in_place);
        rows.retain(|&row| self.wants(row, options));
        let before = rows.len();
        if !options.zeros {
            rows.retain(|&row| !self.is_zero(row));
        }
        let zeros = before - rows.len();
        let mut lines: Vec<Line> = rows.into_iter().map(|row| self.line(row, options)).collect();
        let is_event = self.new.is_some();
        if let Some(order) = self.order(options) {
            lines.sort_by(|a, b| compare(a, b, order));
        }
        let beyond = lines.len().saturating_sub(options.rows.unwrap_or(usize::MAX));
        lines.truncate(lines.len() - beyond);
        if is_event && !in_place && options.sort.is_none() {
            lines.reverse(); // the latest last, as they came
        }
        Rows { lines, zeros, beyond, unkept }
    }

    /// True if a row belongs to the process, command or cgroup of the options, or if they name none.
    pub fn wants(&self, row: usize, options: &ShowOptions) -> bool {
        wants(self.of, self.table, row, || self.name(row), &options.only)
    }

    /// Returns the growth of a counter; the whole count without an earlier reading.
    pub fn since(&self, row: usize, column: usize) -> u64 {
        let key = self.table.keys().get(row).map(|key| identity(self.table, key));
        let before = self.earlier.as_ref().zip(key).map_or(0, |(earlier, key)| earlier.count(key, column));
        count(self.table, row, column).saturating_sub(before)
    }

    /// Returns a count in the form of the options: as it is, or as a rate.
    pub fn amount(&self, count: u64, options: &ShowOptions) -> Value {
        match options.rate {
            true => Value::Real(count as f64 / self.covers.as_secs_f64().max(1e-9)),
            false => Value::Whole(count.into()),
        }
    }

    /// Returns the name of a row's instance.
    pub fn name(&self, row: usize) -> String {
        match self.table.keys().get(row) {
            None | Some(Key::Single) => String::new(),
            Some(Key::Index(index)) => index.to_string(),
            Some(Key::Name(name) | Key::Pid(_, name) | Key::Numbered(_, name)) => printable(self.table.text(name)),
        }
    }

    /// Returns the titles of the columns, each a word with its unit.
    pub fn heads(&self, options: &ShowOptions) -> Vec<String> {
        let all = self.of.table.spec.metrics;
        let head = |metric: &&MetricDef| {
            let name = short(metric.name, all);
            let per = if options.rate && metric.sem == Sem::COUNTER { "/s" } else { "" };
            match unit(metric.units, options.scale) {
                "" => format!("{name}{per}"),
                unit => format!("{name}[{unit}{per}]"),
            }
        };
        self.metrics().iter().map(head).collect()
    }

    /// Returns the rows with a value; for events only those since the previous reading, and the number of those that were not kept.
    fn new_rows(&self, in_place: bool) -> (Vec<usize>, u64) {
        let all = self.table.len();
        let (count, unkept) = match self.new {
            Some(new) if !in_place => {
                let shown = self.numbered_after(new).unwrap_or(usize::try_from(new).unwrap_or(usize::MAX).min(all));
                (shown, new - shown as u64)
            }
            _ => (all, 0),
        };
        let has_value = |row: &usize| self.of.columns.iter().any(|&column| self.table.value(*row, column).is_some());
        ((0..count).filter(has_value).collect(), unkept)
    }

    /// Returns how many rows belong to the latest events, of this number, where rows bear the numbers of their events: of one process
    /// older rows may have gone first.
    fn numbered_after(&self, new: u64) -> Option<usize> {
        let column = self.of.table.spec.metrics.iter().position(|metric| metric.name.ends_with(".seq"))?;
        let number = |row| match self.table.value(row, column) {
            Some(Atom::U64(number)) => Some(number),
            _ => None,
        };
        let latest = number(0)?;
        Some((0..self.table.len()).filter_map(number).take_while(|&number| number + new > latest).count())
    }

    /// True if no counter of a row grew. The agent's own metrics are shown in any case.
    fn is_zero(&self, row: usize) -> bool {
        if self.of.table.section.is_empty() || self.of.table.spec.shape == Shape::Single {
            return false;
        }
        let counter = |column: &&usize| self.of.table.spec.metrics[**column].sem == Sem::COUNTER;
        let mut counters = self.of.columns.iter().filter(counter).peekable();
        counters.peek().is_some() && counters.all(|&column| self.since(row, column) == 0)
    }

    fn line(&self, row: usize, options: &ShowOptions) -> Line {
        // The number of a row says nothing that its place does not.
        let is_numbered = matches!(self.of.table.spec.shape, Shape::Rows { .. });
        let name = if is_numbered { String::new() } else { self.name(row) };
        let values = self.of.columns.iter().map(|&column| self.value(row, column, options)).collect();
        Line { name, values }
    }

    fn value(&self, row: usize, column: usize, options: &ShowOptions) -> Value {
        let metric = &self.of.table.spec.metrics[column];
        let number = match self.table.value(row, column) {
            None => return Value::None,
            Some(Atom::Str(text)) => return Value::Text(printable(text)),
            Some(Atom::U64(_)) if metric.sem == Sem::COUNTER => {
                let count = self.since(row, column);
                match (self.amount(count, options), scaling(metric.units, options.scale)) {
                    (Value::Real(rate), factor) => return Value::Real(rate * factor.unwrap_or(1.0)),
                    (value, None) => return value,
                    (_, Some(_)) => i128::from(count),
                }
            }
            Some(Atom::U64(number)) => number.into(),
            Some(Atom::U32(number)) => number.into(),
            Some(Atom::I32(number)) => number.into(),
            Some(_) => return Value::None,
        };
        match scaling(metric.units, options.scale) {
            Some(factor) => Value::Real(number as f64 * factor),
            None => Value::Whole(number),
        }
    }

    /// Returns the column to sort by: that of the options, or else the first counter of a table without an order of its own. 0 is the
    /// name of the instance, 1 the first column.
    fn order(&self, options: &ShowOptions) -> Option<usize> {
        if let Some(column) = options.sort.as_deref().and_then(|column| find_column(self.of, column)) {
            return Some(column);
        }
        let is_ordered = matches!(self.of.table.spec.shape, Shape::Rows { .. } | Shape::Single | Shape::Log2(_));
        if is_ordered || self.of.table.section.is_empty() {
            return None;
        }
        let is_counted = |&column: &usize| {
            self.of.table.spec.metrics[column].sem == Sem::COUNTER
                && (0..self.table.len()).any(|row| self.table.value(row, column).is_some())
        };
        self.of.columns.iter().position(is_counted).map(|at| at + 1)
    }
}

/// Returns the number of a shown column, from 1, by its title without the unit or by its metric; 0 for `instance`.
pub fn find_column(of: &Selected, name: &str) -> Option<usize> {
    let metrics = of.table.spec.metrics;
    let is = |metric: &MetricDef| {
        let full = format!("{}{}", of.table.prefix, metric.name);
        short(metric.name, metrics) == name || metric.name == name || full == name
    };
    // The last words of a name are enough where one column ends in them.
    let ends = |metric: &MetricDef| metric.name.strip_suffix(name).is_some_and(|rest| rest.ends_with('.'));
    let shown = || of.columns.iter().map(|&column| &metrics[column]);
    if name == "instance" {
        return Some(0);
    }
    shown()
        .position(is)
        .or_else(|| match shown().filter(|metric| ends(metric)).count() {
            1 => shown().position(ends),
            _ => None,
        })
        .map(|at| at + 1)
}

/// Returns the names of columns for `--sort`.
pub fn column_names(of: &Selected) -> Vec<&'static str> {
    let metrics = of.table.spec.metrics;
    let named = !matches!(of.table.spec.shape, Shape::Rows { .. } | Shape::Single | Shape::Log2(_));
    let columns = of.columns.iter().map(|&column| short(metrics[column].name, metrics));
    named.then_some("instance").into_iter().chain(columns).collect()
}

/// Compares lines: numbers descending, text ascending, lines without a value last.
fn compare(a: &Line, b: &Line, order: usize) -> Ordering {
    let number = |value: &Value| match value {
        Value::Whole(number) => Some(*number as f64),
        Value::Real(number) => Some(*number),
        _ => None,
    };
    let Some(column) = order.checked_sub(1) else { return a.name.cmp(&b.name) };
    match (&a.values[column], &b.values[column]) {
        (Value::Text(a), Value::Text(b)) => a.cmp(b),
        (a, b) => number(b).partial_cmp(&number(a)).unwrap_or(Ordering::Equal),
    }
}

fn count(table: &Table, row: usize, column: usize) -> u64 {
    match table.value(row, column) {
        Some(Atom::U64(value)) => value,
        _ => 0,
    }
}

/// Returns the part of an instance that is equal in all readings: its number, or else its name.
fn identity<'a>(table: &'a Table, key: &Key) -> (u32, &'a [u8]) {
    match key {
        Key::Single => (0, b""),
        Key::Index(index) => (*index, b""),
        Key::Name(name) => (0, table.text(name)),
        Key::Pid(number, _) | Key::Numbered(number, _) => (*number, b""),
    }
}

/// Returns the unit of a metric for a column's title; empty for counts and values without a unit.
pub fn unit(units: Units, scale: Option<Scale>) -> &'static str {
    match (units, scale) {
        (Units::NSEC | Units::USEC | Units::MSEC | Units::SEC, Some(Scale::Milliseconds)) => "ms",
        (Units::NSEC | Units::USEC | Units::MSEC | Units::SEC, Some(Scale::Microseconds)) => "us",
        (Units::NSEC, None) => "ns",
        (Units::USEC, None) => "us",
        (Units::MSEC, None) => "ms",
        (Units::SEC, None) => "s",
        (Units::BYTE, _) => "B",
        (Units::MBYTE, _) => "MB",
        _ => "",
    }
}

/// Returns the factor from times of a metric to the unit of the options; `None` if they stay as they are.
pub fn scaling(units: Units, scale: Option<Scale>) -> Option<f64> {
    let nanoseconds = match units {
        Units::NSEC => 1.0,
        Units::USEC => 1e3,
        Units::MSEC => 1e6,
        Units::SEC => 1e9,
        _ => return None,
    };
    let factor = match scale? {
        Scale::Milliseconds => nanoseconds / 1e6,
        Scale::Microseconds => nanoseconds / 1e3,
    };
    (factor != 1.0).then_some(factor)
}

/// Returns the name of the metric, or the node above several.
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

/// Returns the shortest end of a metric's name that is unique in its table, of whole components: `tcp.send.bytes`, `pid`.
pub fn short<'a>(name: &'a str, all: &[MetricDef]) -> &'a str {
    let is_of =
        |end: &str, name: &str| name.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    let mut ends = name.rmatch_indices('.').map(|(at, dot)| &name[at + dot.len()..]);
    ends.find(|end| all.iter().filter(|metric| is_of(end, metric.name)).count() == 1).unwrap_or(name)
}

/// Replaces control characters in a name from the kernel, which can hold any bytes: a terminal must not get them.
fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::MODULES;

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
    fn times_are_shown_in_the_unit_that_is_asked_for() {
        assert_eq!(scaling(Units::NSEC, Some(Scale::Milliseconds)), Some(1e-6));
        assert_eq!(scaling(Units::USEC, Some(Scale::Microseconds)), None, "as it is");
        assert_eq!(scaling(Units::BYTE, Some(Scale::Milliseconds)), None);
        assert_eq!((unit(Units::USEC, None), unit(Units::SEC, Some(Scale::Microseconds))), ("us", "us"));
        assert_eq!((unit(Units::COUNT, Some(Scale::Milliseconds)), unit(Units::MBYTE, None)), ("", "MB"));
    }
}
