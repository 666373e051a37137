//! Tables of quantiles: a line for each series and each of its histograms, and for each counter beside them.

use super::columns::{heading, table, text, Column};
use super::reading::{scaling, unit, Reading, Value};
use crate::cli::ShowOptions;
use crate::kit::{Shape, SERIES_METRICS};
use crate::pcp::{Atom, Sem, Units};
use std::fmt::Write;

/// Draws a reading's histograms that counted something or have quantiles, and its other counters.
pub fn draw(reading: &Reading<'_>, options: &ShowOptions, width: Option<usize>) -> String {
    let spec = reading.of.table.spec;
    let mut lines: Vec<Vec<String>> = Vec::new();
    let mut zeros = 0;
    let shared = shared(&spec.histograms.iter().map(|def| def.name).collect::<Vec<_>>());
    // Bytes beside the times of each operation would be in nobody's column; asked for alone they are shown.
    let (times, mut others): (Vec<usize>, Vec<usize>) =
        reading.of.columns.iter().partition(|&&column| column < spec.histograms.len() * SERIES_METRICS.len());
    others.retain(|&column| {
        let metric = &spec.metrics[column];
        metric.sem == Sem::COUNTER && (metric.units == Units::COUNT || times.is_empty())
    });
    for row in (0..reading.table.len()).filter(|&row| reading.wants(row, options)) {
        for (histogram, def) in spec.histograms.iter().enumerate() {
            let first = histogram * SERIES_METRICS.len();
            if !times.iter().any(|column| (first..first + SERIES_METRICS.len()).contains(column)) {
                continue;
            }
            let (count, sum) = (reading.since(row, first), reading.since(row, first + 1));
            let quantiles: Vec<String> =
                (2..SERIES_METRICS.len()).map(|metric| time(reading, row, first + metric, options)).collect();
            if count == 0 && quantiles.iter().all(|quantile| quantile == "-") && !options.zeros {
                zeros += 1;
                continue;
            }
            let mean = match count {
                0 => "-".to_owned(),
                _ => scaled(sum as f64 / count as f64 / 1000.0, options),
            };
            let head = [reading.name(row), def.name[shared..].to_owned(), text(&reading.amount(count, options)), mean];
            lines.push(head.into_iter().chain(quantiles).collect());
        }
        for &column in &others {
            let metric = &spec.metrics[column];
            let count = reading.since(row, column);
            if count == 0 && !options.zeros {
                zeros += 1;
                continue;
            }
            let name = metric.name.get(shared..).unwrap_or(metric.name);
            let name = name.strip_suffix(".count").unwrap_or(name).to_owned();
            let head = [reading.name(row), name, text(&reading.amount(count, options))];
            let none = std::iter::repeat_n("-".to_owned(), SERIES_METRICS.len() - 1);
            lines.push(head.into_iter().chain(none).collect());
        }
    }
    let mut out = heading(reading, &reading.title());
    if lines.is_empty() {
        let _ = writeln!(out, "{}", reading.nothing());
    } else {
        out += &laid_out(reading, options, &lines, width);
    }
    if zeros > 0 {
        let _ = writeln!(
            out,
            "({zeros} idle {}; --zeros shows {})",
            if zeros == 1 { "row" } else { "rows" },
            if zeros == 1 { "it" } else { "them" }
        );
    }
    out
}

fn laid_out(reading: &Reading<'_>, options: &ShowOptions, lines: &[Vec<String>], width: Option<usize>) -> String {
    let of_time = |name: &str| format!("{name}[{}]", unit(Units::USEC, options.scale));
    let times = ["mean"].into_iter().chain(SERIES_METRICS[2..].iter().copied()).map(of_time);
    let count = if options.rate { "count/s" } else { "count" };
    let heads = ["instance", "operation", count].map(str::to_owned).into_iter().chain(times);
    let column =
        |(at, head): (usize, String)| Column::new(&head, lines.iter().map(|line| line[at].clone()).collect(), at > 1);
    // What has no instances has no names.
    let from = usize::from(reading.of.table.spec.shape == Shape::Single);
    table(heads.enumerate().skip(from).map(column).collect(), width)
}

/// Formats a quantile, in the unit of the options.
fn time(reading: &Reading<'_>, row: usize, column: usize, options: &ShowOptions) -> String {
    match reading.table.value(row, column) {
        Some(Atom::U64(us)) => match scaling(Units::USEC, options.scale) {
            Some(_) => scaled(us as f64, options),
            None => us.to_string(),
        },
        _ => "-".to_owned(),
    }
}

fn scaled(us: f64, options: &ShowOptions) -> String {
    text(&Value::Real(us * scaling(Units::USEC, options.scale).unwrap_or(1.0)))
}

/// Returns the length in bytes of the common part of histogram names, up to a dot.
fn shared(names: &[&str]) -> usize {
    let Some((first, others)) = names.split_first() else { return 0 };
    let mut ends = first.match_indices('.').map(|(dot, _)| dot + 1);
    ends.rfind(|&end| others.iter().all(|other| other.starts_with(&first[..end]))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::choose::choose;
    use super::super::reading::Earlier;
    use super::*;
    use crate::cli::{parse, Command};
    use crate::kit::{Metric, Table};
    use chrono::Local;
    use std::time::Duration;

    /// Draws reads of vda by `show` with these words; 10 were counted in the previous reading.
    fn drawn(line: &str) -> Vec<String> {
        drawn_on(line, None)
    }

    fn drawn_on(line: &str, width: Option<usize>) -> Vec<String> {
        let words = ["pmdacorebcc", "show"].into_iter().chain(line.split(' '));
        let Ok(Command::Show(options)) = parse(words.map(Into::into)) else { panic!("{line}") };
        let chosen = choose(&options).unwrap();
        let of = chosen.selected.iter().find(|selected| selected.table.spec.cluster == 320).unwrap();
        let filled = |numbers: [u64; 7]| {
            let mut table = Table::of(of.table.spec);
            let row = table.named(b"vda");
            numbers.iter().enumerate().fold(row, |row, (column, &number)| row.set(Metric::<u64>::new(column), number));
            table
        };
        let (before, now) =
            (filled([10, 1_000_000, 1, 1, 1, 1, 1]), filled([30, 5_000_000, 80, 300, 1500, 9000, 9000]));
        let (time, covers) = (Local::now(), Duration::from_secs(2));
        let (earlier, waits_for) = (Some(Earlier::new(&before)), None);
        let reading = Reading { of, table: &now, earlier, new: None, time, covers, waits_for };
        draw(&reading, &options, width).lines().map(str::to_owned).collect()
    }

    #[test]
    fn each_disk_and_operation_has_a_line_of_quantiles() {
        let lines = drawn("disk.dev");
        assert_eq!(lines[1], "instance  operation   count  mean[us]  p50[us]  p90[us]  p99[us]  p999[us]  max[us]");
        assert_eq!(lines[2], "vda       read.total     20     200.0       80      300     1500      9000     9000");
        assert_eq!(lines[3], "(7 idle rows; --zeros shows them)");
        assert_eq!(drawn("disk.dev --zeros").len(), 10);
        assert!(
            drawn("disk.dev --milliseconds")[2].ends_with("1.500     9.000    9.000"),
            "{:?}",
            drawn("disk.dev --milliseconds")
        );
    }

    #[test]
    fn titles_take_two_lines_where_the_terminal_is_narrow() {
        let lines = drawn_on("disk.dev", Some(80));
        assert_eq!(lines[1], "                              mean   p50   p90   p99  p999   max");
        assert_eq!(lines[2], "instance  operation   count   [us]  [us]  [us]  [us]  [us]  [us]");
        assert_eq!(lines[3], "vda       read.total     20  200.0    80   300  1500  9000  9000");
    }

    #[test]
    fn counters_beside_histograms_have_lines_of_their_own() {
        let Ok(Command::Show(options)) = parse(["pmdacorebcc", "show", "tcpconnect"].map(Into::into)) else { panic!() };
        let chosen = choose(&options).unwrap();
        let of = chosen.selected.iter().find(|selected| selected.table.spec.cluster == 414).unwrap();
        let filled = |numbers: &[u64]| {
            let mut table = Table::of(of.table.spec);
            let row = numbers.iter().enumerate();
            row.fold(table.single(), |row, (column, &number)| row.set(Metric::<u64>::new(column), number));
            table
        };
        let (before, now) = (filled(&[0; 13]), filled(&[3, 300_000, 80, 90, 99, 99, 99, 5, 2, 0, 0, 0, 0]));
        let (time, covers) = (Local::now(), Duration::from_secs(2));
        let (earlier, waits_for) = (Some(Earlier::new(&before)), None);
        let reading = Reading { of, table: &now, earlier, new: None, time, covers, waits_for };
        let lines: Vec<String> = draw(&reading, &options, None).lines().map(str::to_owned).collect();
        assert!(lines[2].starts_with("connect               3     100.0       80"), "{lines:?}");
        assert!(lines[3].starts_with("connects.all          5         -        -"), "{lines:?}");
        assert!(lines[4].starts_with("connects.refused      2         -        -"), "{lines:?}");
        assert_eq!(lines[5], "(4 idle rows; --zeros shows them)");
    }

    #[test]
    fn operations_are_named_by_what_tells_them_apart() {
        let rest = |names: &[&'static str]| names.iter().map(|name| &name[shared(names)..]).collect::<Vec<_>>();
        assert_eq!(rest(&["disk.dev.read.total", "disk.dev.flush.total"]), ["read.total", "flush.total"]);
        assert_eq!(rest(&["fs.ext4.open", "fs.ext4.read"]), ["open", "read"]);
        assert_eq!((rest(&["runq.all"]), rest(&["alone"]), shared(&[])), (vec!["all"], vec!["alone"], 0));
    }
}
