//! Help texts of histograms, made from their declarations when a client asks: there are hundreds of similar ones.

use crate::kit::{self, capitalized, HistogramDef, MetricDef, Shape, TableSpec};

const WIDTH: usize = 78;

/// Returns the full text of a metric of a table of histograms.
pub fn of_metric(table: &TableSpec, metric: &MetricDef) -> String {
    let of = |histogram: &'static HistogramDef| {
        let last = metric.name.strip_prefix(histogram.name)?.strip_prefix('.')?;
        Some(described(histogram, last))
    };
    let text = table.histograms.iter().find_map(of);
    wrapped(&text.unwrap_or_else(|| format!("{}.", capitalized(metric.oneline))))
}

/// Returns one line and the full text for the instance domain of a table of histograms; `None` if it has none.
pub fn of_domain(table: &TableSpec) -> Option<(String, String)> {
    let (oneline, full) = match table.shape {
        Shape::Single => return None,
        Shape::Buckets { .. } => (
            "buckets of a histogram".to_owned(),
            "LOW-HIGH in microseconds, both ends included, followed by :: and the name where there are several series. The last bucket is \
             open. Identifiers are kept over restarts.",
        ),
        Shape::Seconds { .. } => (
            "buckets of a histogram for Prometheus".to_owned(),
            "The upper bound of a bucket in seconds, +Inf of the last, followed by :: and the name where there are several series; the name \
             alone, or all, stands for the whole histogram. Identifiers are kept over restarts.",
        ),
        _ => (
            format!("{}s", table.summary.trim_start_matches("each ")),
            "Named as the kernel names them. Identifiers are kept over restarts, also of those that are gone.",
        ),
    };
    Some((oneline, wrapped(full)))
}

/// Returns the full text of a histogram's metric, chosen by the last component of its name.
fn described(histogram: &HistogramDef, last: &str) -> String {
    let HistogramDef { events, time, note, .. } = histogram;
    let text = match last {
        "bucket" => format!(
            "Counts {events} since the agent started by the time {time}. Instance \"64-127\" counts those that took 64 to 127 \
             microseconds. There is an instance for each bucket from the start; the last one is open. The values are counts."
        ),
        "seconds_bucket" => format!(
            "Counts {events} since the agent started, whose time {time} was not longer than the seconds in the name of the instance and in its \
             label \"le\". Each bucket contains those below it. With the option \"prometheus\" only."
        ),
        "seconds_count" => format!(
            "Number of {events} since the agent started whose time is known, the bucket +Inf. With the option \"prometheus\" only."
        ),
        "seconds_sum" => format!(
            "Sum of the times of {events} since the agent started, {time}, in seconds. With the option \"prometheus\" only."
        ),
        "count" => format!("Number of {events} since the agent started whose time is known: the sum of all buckets."),
        "sum" => format!(
            "Sum of the times of {events} since the agent started, {time}. Divided by the count of the same interval it is the \
             exact mean."
        ),
        _ => format!(
            "{} of {events}, {time}, over the option \"window\" (60 seconds). It is a sliding window, the last 55 to 60 seconds by default, \
             whoever fetches. There is no value while the window is empty. From 1 microsecond to 2 minutes the value is within 3.2 % of \
             the exact one, rounded to microseconds.",
            match last {
                "max" => "The longest time".to_owned(),
                "p50" => "The median of the times".to_owned(),
                "p999" => "The time that 99.9 % do not exceed, the 99.9th percentile,".to_owned(),
                other => format!("The time that {0} % do not exceed, the {0}th percentile,", other.trim_start_matches('p')),
            }
        ),
    };
    format!("{text} {note}")
}

fn wrapped(text: &str) -> String {
    kit::wrapped(WIDTH, "", "", text).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::MODULES;

    #[test]
    fn every_text_names_the_events_and_the_time() {
        for table in MODULES.iter().flat_map(|spec| spec.tables).filter(|table| !table.histograms.is_empty()) {
            for metric in table.metrics {
                let text = of_metric(table, metric).replace('\n', " ");
                let of = table.histograms.iter().find(|histogram| {
                    metric.name.strip_prefix(histogram.name).is_some_and(|last| last.starts_with('.'))
                });
                assert!(of.is_none_or(|histogram| text.contains(histogram.events)), "{}: {text}", metric.name);
            }
            assert_eq!(of_domain(table).is_none(), table.shape == Shape::Single);
        }
    }

    #[test]
    fn quantiles_say_which_one_they_are() {
        let text = |name| {
            let table = MODULES
                .iter()
                .flat_map(|spec| spec.tables)
                .find(|table| table.metrics.iter().any(|metric| metric.name == name));
            let table = table.unwrap();
            of_metric(table, table.metrics.iter().find(|metric| metric.name == name).unwrap()).replace('\n', " ")
        };
        assert!(text("disk.dev.read.total.p999").starts_with(
            "The time that 99.9 % do not exceed, the 99.9th percentile, of reads by disk, from allocation to completion,"
        ));
        assert!(text("disk.dev.read.total.sum").contains("exact mean"));
        assert_eq!(text("disk.dev.name"), "Name of the disk, for the variables of a dashboard.");
    }
}
