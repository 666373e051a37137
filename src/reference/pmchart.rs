//! Views of pmchart(1). It has no tables and numbers, which are left out, and no choices: instead of chosen disks and cgroups all are shown,
//! and each file system has a view of its own.

use super::views::{Dashboard, Kind, Panel, Values};
use crate::config::DEFAULT_MODULES;

/// Modules with more instances than a legend has room for.
const MANY: [&str; 3] = ["exectop", "syscount", "tcpretrans"];

/// Colours of lines in a view with a scheme.
const LINES: [&str; 6] = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b"];

/// Colours of buckets, from the fastest to the slowest, one for each power of two microseconds: green below 32 us, yellow at one millisecond,
/// red from 131 ms.
fn colours() -> String {
    let shade = |power: u32| {
        let heat = power.clamp(4, 17) - 4;
        let (red, green) = ((heat * 40).min(255), 255 - heat.saturating_sub(6) * 36);
        format!(" #{red:02x}{green:02x}40")
    };
    (0..24).map(shade).collect()
}

/// Views of a dashboard, by the name of their file.
pub fn views(dashboard: &Dashboard) -> Vec<(String, String)> {
    let (first, rest) = dashboard.id.split_at(1);
    let name = format!("Bcc.{}{rest}", first.to_uppercase());
    match dashboard.choice.as_ref().map(|choice| (choice.name, &choice.values)) {
        Some((variable, Values::Words(words))) => words
            .iter()
            .map(|word| (format!("{name}.{word}"), view(dashboard, &format!("${variable}"), word)))
            .collect(),
        _ => vec![(name, view(dashboard, "", ""))],
    }
}

/// Returns the view in which `variable` is this word.
fn view(dashboard: &Dashboard, variable: &str, word: &str) -> String {
    let panels: Vec<(&Panel, &str)> =
        dashboard.panels.iter().filter_map(|panel| Some((panel, style(panel)?))).collect();
    let any = |is: &dyn Fn(&Panel) -> bool| panels.iter().any(|(panel, _)| is(panel));
    // A scheme is for all charts behind it. Lines have colours of their own then, which those of many instances cannot have.
    let scheme = any(&|panel| panel.kind == Kind::HeatMap)
        && !any(&|panel| panel.targets.iter().any(|target| target.legend.contains("$instance")));
    let mut text = "#kmchart\nversion 1\n".to_owned();
    if scheme {
        text += &format!("\nscheme Latency{}\n", colours());
    }
    let of = if word.is_empty() { String::new() } else { format!(": {word}") };
    text += &format!("\n# {}{of}\n", dashboard.title);
    let charts = panels.iter().map(|(panel, style)| chart(panel, style, scheme).replace(variable, word));
    text + &charts.collect::<Vec<_>>().join("\n")
}

/// Returns the style of a panel's chart, if it can have one.
fn style(panel: &Panel) -> Option<&'static str> {
    match panel.kind {
        Kind::Lines if MANY.contains(&panel.module) => Some("plot legend off"),
        Kind::Lines => Some("plot"),
        // Buckets of all disks or cgroups on top of each other say nothing.
        Kind::HeatMap if panel.targets.iter().any(|target| target.is_chosen()) => None,
        // A legend of all buckets is larger than the chart.
        Kind::HeatMap => Some("stacking legend off"),
        Kind::Number | Kind::Table => None,
    }
}

fn chart(panel: &Panel, style: &str, scheme: bool) -> String {
    // The agent's own metrics, and those of modules that run by default, are there.
    let is_there = panel.module.is_empty() || DEFAULT_MODULES.split(',').any(|module| module == panel.module);
    let plot = if is_there { "plot" } else { "optional-plot" };
    let mut lines = format!("chart title \"{} [%h]\" style {style}\n", panel.title);
    for (target, colour) in panel.targets.iter().zip(LINES.iter().cycle()) {
        let legend = if target.legend.is_empty() { "%i" } else { &target.legend.replace("$instance", "%i") };
        let colour = if scheme && panel.kind == Kind::Lines { format!(" color {colour}") } else { String::new() };
        lines += &format!("\t{plot} legend \"{legend}\"{colour} metric {}\n", target.metric());
    }
    lines
}
