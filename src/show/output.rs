//! The output of readings: one below the other, on a screen of their own, or in heat maps.

use super::heatmap::Heatmap;
use super::reading::{unit, Reading};
use super::screen::{OwnScreen, Screen};
use super::{columns, folded, histogram, quantiles, records};
use crate::cli::{print, Form, PrintError, ShowOptions};
use crate::kit::Shape;
use crate::pcp::Units;

/// The output of readings.
pub enum Output {
    /// Text with one reading below the other; `head` is true once the first line of comma-separated values is written.
    Lines { head: bool },
    /// A screen of its own.
    Screen(OwnScreen),
    /// Heat maps, drawn in place if the terminal moves its cursor, else at the end. `lines` is the number of lines on the terminal.
    Maps { maps: Vec<Heatmap>, drawn: String, lines: usize },
}

impl Output {
    /// Prepares the output for a form.
    pub fn begin(options: &ShowOptions) -> Result<Output, PrintError> {
        Ok(match options.form {
            Form::Top => Output::Screen(OwnScreen::begin()?),
            Form::Heatmap => Output::Maps { maps: Vec::new(), drawn: String::new(), lines: 0 },
            _ => Output::Lines { head: false },
        })
    }

    /// Writes a reading of all tables. Returns false if the reader of standard output has gone.
    pub fn take(&mut self, readings: &[Reading<'_>], options: &ShowOptions) -> Result<bool, PrintError> {
        let screen = Screen::now();
        match self {
            Output::Lines { head } => {
                let mut text = String::new();
                for reading in readings {
                    if options.form == Form::Csv && !std::mem::replace(head, true) {
                        text += &records::csv_head(reading);
                    }
                    text += &as_lines(reading, options, screen);
                }
                let is_read = print(&text);
                if matches!(options.form, Form::Csv | Form::Json) {
                    readings.iter().for_each(|reading| warn(reading, options));
                }
                is_read
            }
            Output::Screen(own) => {
                let options =
                    ShowOptions { rows: options.rows.or(Some(share(screen, readings.len()))), ..options.clone() };
                let text: Vec<String> = readings.iter().map(|reading| draw(reading, &options, screen, true)).collect();
                own.show(&text.join("\n"), screen)
            }
            Output::Maps { maps, drawn, lines } => {
                *drawn = add_columns(maps, readings, options, screen);
                if !screen.moves {
                    return Ok(true);
                }
                let height = screen.size.map_or(24, |(_, height)| height);
                let shown: Vec<&str> = drawn.lines().take(height.saturating_sub(1)).collect();
                let back = if *lines > 0 { format!("\x1b[{lines}A\r") } else { String::new() };
                *lines = shown.len();
                print(&format!("{back}\x1b[J{}\n", shown.join("\n")))
            }
        }
    }

    /// Writes the heat maps if they are only drawn at the end.
    pub fn end(self) -> Result<(), PrintError> {
        if let Output::Maps { drawn, .. } = self {
            if !Screen::now().moves {
                print(&drawn)?;
            }
        }
        Ok(())
    }
}

/// Prints on standard error that events are missing in the records.
fn warn(reading: &Reading<'_>, options: &ShowOptions) {
    if let Some(unkept) = reading.unkept() {
        eprintln!("{}: {}: {unkept}", options.common.program, reading.title());
    }
}

/// Returns the number of rows of each table with which all tables fit on a screen, without titles and notes.
fn share(screen: Screen, tables: usize) -> usize {
    const BESIDE_ROWS: usize = 5;
    const LEAST: usize = 3;
    let height = screen.size.map_or(24, |(_, height)| height);
    (height / tables.max(1)).saturating_sub(BESIDE_ROWS).max(LEAST)
}

/// Draws a reading in the form of the options.
pub fn as_lines(reading: &Reading<'_>, options: &ShowOptions, screen: Screen) -> String {
    match options.form {
        Form::Folded => folded::draw(reading, options),
        Form::Json => records::json(reading, options),
        Form::Csv => records::csv(reading, options),
        _ => format!("\n{}", draw(reading, options, screen, false)),
    }
}

fn draw(reading: &Reading<'_>, options: &ShowOptions, screen: Screen, in_place: bool) -> String {
    match reading.of.table.spec.shape {
        Shape::Log2(_) => histogram::draw(reading, options, screen.width()),
        Shape::Named { .. } | Shape::Numbered | Shape::Single if !reading.of.table.spec.histograms.is_empty() => {
            quantiles::draw(reading, options, screen.width())
        }
        _ => columns::draw(reading, options, screen.width(), in_place),
    }
}

/// Adds a column to the heat map of each histogram, and draws them all.
pub fn add_columns(maps: &mut Vec<Heatmap>, readings: &[Reading<'_>], options: &ShowOptions, screen: Screen) -> String {
    let mut drawn = Vec::new();
    for reading in readings {
        if !reading.of.table.off.is_empty() {
            drawn.push(format!("{}\n{}\n", reading.title(), reading.nothing()));
        }
        for &column in &reading.of.columns {
            let metric = &reading.of.table.spec.metrics[column];
            let scale = match reading.of.table.spec.shape {
                Shape::Buckets { .. } => Units::USEC,
                _ => metric.units,
            };
            for (series, rows) in histogram::series(reading, options) {
                let title = format!("{}{}{series}", reading.of.table.prefix, metric.name);
                let at = maps.iter().position(|map| map.is(&title)).unwrap_or_else(|| {
                    maps.push(Heatmap::new(title, unit(scale, options.scale).to_owned()));
                    maps.len() - 1
                });
                maps[at].add(reading.clock(), rows.iter().map(|&row| reading.since(row, column)).collect());
                let bounds = |bucket: usize| histogram::row_bounds(reading, column, rows[bucket], options);
                drawn.push(maps[at].draw(screen.width().unwrap_or(200), screen.colours, &reading.nothing(), bounds));
            }
        }
    }
    drawn.join("\n")
}
