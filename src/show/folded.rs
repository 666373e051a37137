//! Input lines for flame graph programs.

use super::reading::Reading;
use crate::cli::ShowOptions;
use crate::pcp::Sem;
use std::fmt::Write;

/// Draws a line for each instance that counted something: its name with semicolons for commas, and the count.
pub fn draw(reading: &Reading<'_>, options: &ShowOptions) -> String {
    let metrics = reading.of.table.spec.metrics;
    let mut out = String::new();
    for &column in reading.of.columns.iter().filter(|&&column| metrics[column].sem == Sem::COUNTER) {
        for row in (0..reading.table.len()).filter(|&row| reading.wants(row, options)) {
            let count = reading.since(row, column);
            if count > 0 {
                let _ = writeln!(out, "{} {count}", reading.name(row).replace(',', ";"));
            }
        }
    }
    out
}
