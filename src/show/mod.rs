//! `show`: metrics without pmcd, drawn in the form of bcc's tools, or as records for programs.

mod choose;
mod columns;
mod error;
mod folded;
mod heatmap;
mod histogram;
mod list;
mod only;
mod output;
mod quantiles;
mod reading;
mod records;
mod screen;
mod select;
mod shown;
mod site;

pub use choose::names;
pub use error::ShowError;

use crate::catalog::EnabledModule;
use crate::cli::{print, Form, ShowOptions};
use crate::kit::Shape;
use crate::pcp::Sem;
use crate::transport::Signals;
use choose::choose;
use output::Output;
use reading::{column_names, find_column};
use screen::Screen;
use select::{did_you_mean, Selected};
use shown::Shown;
use std::time::Instant;

/// Shows metrics every `interval`, `count` times; without an interval once, when a signal ends the wait.
pub fn run(options: &ShowOptions, signals: &Signals) -> Result<(), ShowError> {
    if options.form == Form::List {
        let load = |modules: &[EnabledModule]| list::try_to_load(modules, options.common.btf.clone());
        print(&list::list(options, Screen::now().width(), load)?)?;
        return Ok(());
    }
    let mut chosen = choose(options)?;
    narrow(options, &mut chosen.selected);
    suits(options, &chosen.selected)?;
    if !chosen.left_out.is_empty() {
        let (program, left_out) = (&options.common.program, chosen.left_out.join(", "));
        eprintln!("{program}: not enabled, not shown: {left_out} (name one, and it is)");
    }
    let mut shown = Shown::load(options, chosen)?;
    let is_status = shown.is_status();
    if options.interval.is_none() && !is_status {
        eprintln!("Counting... Ctrl-C ends and shows.");
    }
    let mut output = Output::begin(options)?;
    for round in 1.. {
        let until = match options.interval {
            None if is_status => Some(Instant::now()),
            interval => interval.map(|interval| Instant::now() + interval),
        };
        let ended = shown.wait(signals, until);
        if !output.take(&shown.read()?, options)? {
            return Ok(());
        }
        if ended || options.interval.is_none() || options.count == Some(round) {
            break;
        }
    }
    Ok(output.end()?)
}

/// Keeps one of a histogram's two tables: a heat map needs the buckets, other forms the quantiles, unless only the buckets were asked
/// for.
fn narrow(options: &ShowOptions, selected: &mut Vec<Selected>) {
    let is_bucket = |selected: &Selected| matches!(selected.table.spec.shape, Shape::Buckets { .. });
    let histogram = |selected: &Selected| selected.table.spec.histograms.first().map(|histogram| histogram.name);
    let of: Vec<Option<&str>> =
        selected.iter().filter(|one| is_bucket(one) == (options.form == Form::Heatmap)).map(histogram).collect();
    selected.retain(|one| {
        let is_kept = is_bucket(one) == (options.form == Form::Heatmap);
        is_kept || histogram(one).is_none() || !of.contains(&histogram(one))
    });
}

/// Checks that the form can show these tables, and that one of them has the column to sort by.
fn suits(options: &ShowOptions, selected: &[Selected]) -> Result<(), ShowError> {
    let title = |selected: &Selected| {
        let metric = selected.table.spec.metrics[selected.columns[0]].name;
        format!("{}{metric}", selected.table.prefix)
    };
    let is_histogram =
        |selected: &&Selected| matches!(selected.table.spec.shape, Shape::Log2(_) | Shape::Buckets { .. });
    let is_counter = |selected: &&Selected| {
        selected.columns.iter().any(|&column| selected.table.spec.metrics[column].sem == Sem::COUNTER)
    };
    let refusal = match options.form {
        Form::Folded => selected.iter().find(|selected| is_histogram(selected) || !is_counter(selected)).map(|other| {
            let what = if is_histogram(&other) { "a histogram" } else { "not a counter" };
            format!("--folded takes stacks, such as bcc.proc.stacks; {} is {what}", title(other))
        }),
        Form::Heatmap => selected
            .iter()
            .find(|selected| !is_histogram(selected))
            .map(|other| format!("--heatmap takes histograms, such as bcc.disk.all.latency; {} is none", title(other))),
        Form::Csv if selected.len() > 1 => Some(format!(
            "--csv takes the metrics of one table, and {} and {} are of two; name one of them, or use --json",
            title(&selected[0]),
            title(&selected[1])
        )),
        Form::Top if !Screen::now().moves => {
            Some("--top takes a terminal; without the option, tables are printed one after another".to_owned())
        }
        _ => None,
    };
    let lacking = || {
        let (selected, (option, what)) =
            selected.iter().find_map(|selected| Some((selected, only::lacking(selected, &options.only)?)))?;
        Some(format!("{option}: the rows of {} have no {what}", title(selected)))
    };
    if let Some(refusal) = refusal.or_else(lacking) {
        return Err(ShowError::Form(refusal));
    }
    let Some(column) = &options.sort else { return Ok(()) };
    if selected.iter().any(|selected| find_column(selected, column).is_some()) {
        return Ok(());
    }
    let known: Vec<&str> = selected.iter().flat_map(column_names).collect();
    let near = did_you_mean(column, known.iter().copied());
    Err(ShowError::NoColumn { column: column.clone(), near, known: known.join(", ") })
}

#[cfg(test)]
mod transcripts;
