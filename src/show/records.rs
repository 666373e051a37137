//! Readings for programs: JSON, with an object per line and table, and comma-separated values.

use super::histogram::{bounds, counts, is_open, quantile, QUANTILES};
use super::reading::{short, Line, Reading, Value};
use crate::cli::ShowOptions;
use crate::kit::Shape;
use crate::pcp::json_string;

/// Formats a reading as a JSON object in one line.
pub fn json(reading: &Reading<'_>, options: &ShowOptions) -> String {
    let mut members = vec![
        member("time", &json_string(&reading.time.to_rfc3339_opts(chrono::SecondsFormat::Millis, false))),
        member("seconds", &format!("{:.3}", reading.span().as_secs_f64())),
        member("table", &json_string(&reading.title())),
    ];
    let rows = records(reading, options);
    let heads = heads(reading);
    let object = |line: &Line| {
        let named = (!line.name.is_empty()).then(|| member("instance", &json_string(&line.name)));
        let values = heads.iter().zip(&line.values).map(|(head, value)| member(head, &json_value(value)));
        format!("{{{}}}", named.into_iter().chain(values).collect::<Vec<_>>().join(","))
    };
    members.push(member("rows", &format!("[{}]", rows.lines.iter().map(object).collect::<Vec<_>>().join(","))));
    if let Shape::Log2(_) = reading.of.table.spec.shape {
        let summaries: Vec<String> =
            reading.of.columns.iter().map(|&column| summary(reading, column, options)).collect();
        members.push(member("summary", &format!("{{{}}}", summaries.join(","))));
    }
    members.push(member("not_shown", &(rows.beyond as u64 + rows.zeros as u64 + rows.unkept).to_string()));
    format!("{{{}}}\n", members.join(","))
}

/// Returns the first line of comma-separated values.
pub fn csv_head(reading: &Reading<'_>) -> String {
    let mut cells = vec!["time".to_owned()];
    if has_instances(reading) {
        cells.push("instance".into());
    }
    cells.extend(heads(reading));
    cells.join(",") + "\n"
}

/// Formats the rows of a reading as comma-separated values (RFC 4180 except for line ends).
pub fn csv(reading: &Reading<'_>, options: &ShowOptions) -> String {
    let time = reading.time.to_rfc3339_opts(chrono::SecondsFormat::Millis, false);
    let line = |line: &Line| {
        let name = has_instances(reading).then(|| quoted(&line.name));
        let values = line.values.iter().map(csv_value);
        let cells: Vec<String> = [time.clone()].into_iter().chain(name).chain(values).collect();
        cells.join(",") + "\n"
    };
    records(reading, options).lines.iter().map(line).collect()
}

fn has_instances(reading: &Reading<'_>) -> bool {
    !matches!(reading.of.table.spec.shape, Shape::Single | Shape::Rows { .. } | Shape::Log2(_))
}

/// Returns the names of columns, without units; a histogram has the bounds of its buckets first.
fn heads(reading: &Reading<'_>) -> Vec<String> {
    let all = reading.of.table.spec.metrics;
    let own = reading.metrics().into_iter().map(|metric| short(metric.name, all).to_owned());
    match reading.of.table.spec.shape {
        Shape::Log2(_) => ["low".to_owned(), "high".to_owned()].into_iter().chain(own).collect(),
        _ => own.collect(),
    }
}

/// Returns the rows; for a histogram one per bucket, up to the highest with a count.
fn records(reading: &Reading<'_>, options: &ShowOptions) -> super::reading::Rows {
    if !matches!(reading.of.table.spec.shape, Shape::Log2(_)) {
        return reading.rows(options, false);
    }
    let columns: Vec<Vec<u64>> = reading.of.columns.iter().map(|&column| counts(reading, column)).collect();
    let used = columns.iter().filter_map(|counts| counts.iter().rposition(|&count| count > 0)).max();
    let line = |bucket: usize| {
        let (low, high) = bounds(reading, reading.of.columns[0], bucket, options);
        let high = if is_open(reading, bucket) { Value::None } else { number(&high) };
        let counts = columns.iter().map(|counts| reading.amount(counts[bucket], options));
        Line { name: String::new(), values: [number(&low), high].into_iter().chain(counts).collect() }
    };
    let lines = (0..used.map_or(0, |used| used + 1)).map(line).collect();
    super::reading::Rows { lines, zeros: 0, beyond: 0, unkept: 0 }
}

/// Formats the members that describe a histogram as a whole. `p50` and the others are upper bounds of buckets, null if there are
/// none.
fn summary(reading: &Reading<'_>, column: usize, options: &ShowOptions) -> String {
    let metrics = reading.of.table.spec.metrics;
    let counts = counts(reading, column);
    let mut members = vec![member("total", &counts.iter().sum::<u64>().to_string())];
    for (name, percent) in QUANTILES {
        let bucket = quantile(&counts, percent).filter(|&bucket| !is_open(reading, bucket));
        let bound = bucket.map_or("null".to_owned(), |bucket| bounds(reading, column, bucket, options).1);
        members.push(member(name, &bound));
    }
    member(short(metrics[column].name, metrics), &format!("{{{}}}", members.join(",")))
}

fn number(text: &str) -> Value {
    text.parse().map(Value::Whole).or_else(|_| text.parse().map(Value::Real)).unwrap_or(Value::None)
}

fn member(name: &str, value: &str) -> String {
    format!("{}:{value}", json_string(name))
}

fn json_value(value: &Value) -> String {
    match value {
        Value::None => "null".into(),
        Value::Text(text) => json_string(text),
        value => csv_value(value),
    }
}

fn csv_value(value: &Value) -> String {
    match value {
        Value::None => String::new(),
        Value::Whole(number) => number.to_string(),
        Value::Real(number) => format!("{number:.3}"),
        Value::Text(text) => quoted(text),
    }
}

/// Puts a cell with a comma or a quotation mark into quotation marks.
fn quoted(text: &str) -> String {
    match text.contains([',', '"']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_and_quotation_marks_do_not_break_a_cell() {
        assert_eq!(quoted("sh -c a,b"), "\"sh -c a,b\"");
        assert_eq!(quoted("echo \"x\""), "\"echo \"\"x\"\"\"");
        assert_eq!(quoted("/bin/true"), "/bin/true");
    }
}
