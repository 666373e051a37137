//! Histograms over time: a column for each reading, a line for each bucket, the highest on top.

use std::collections::VecDeque;
use std::fmt::Write;

/// Characters for counts, from none to the highest shown, on terminals without colours.
const SHADES: [char; 8] = [' ', '.', ':', '-', '=', '+', '*', '#'];
/// Background colours for counts (`CSI 48;5;N m`, of 256): from blue over green to amber and red. All of them can be seen on a white
/// and on a black screen.
const COLOURS: [u8; 7] = [25, 31, 36, 70, 172, 202, 160];
/// Width of the bounds to the left of the columns.
const LABEL: usize = 23;

/// The columns of a histogram so far.
pub struct Heatmap {
    title: String,
    unit: String,
    /// Time and counts of each column, the latest last.
    columns: VecDeque<(String, Vec<u64>)>,
}

impl Heatmap {
    /// Largest number of columns that are kept, more than the width of any screen.
    const MOST: usize = 1000;

    /// Makes a heat map without columns.
    pub fn new(title: String, unit: String) -> Heatmap {
        Heatmap { title, unit, columns: VecDeque::new() }
    }

    /// True if it has this title.
    pub fn is(&self, title: &str) -> bool {
        self.title == title
    }

    /// Adds a column: the time of reading, and the counts of the buckets.
    pub fn add(&mut self, clock: String, counts: Vec<u64>) {
        self.columns.push_back((clock, counts));
        if self.columns.len() > Heatmap::MOST {
            self.columns.pop_front();
        }
    }

    /// Draws the latest columns that fit into the width. `bounds` returns the bounds of a bucket. If there are no counts at all,
    /// `nothing` is drawn instead.
    pub fn draw(
        &self,
        width: usize,
        in_colour: bool,
        nothing: &str,
        bounds: impl Fn(usize) -> (String, String),
    ) -> String {
        let most = width.saturating_sub(LABEL + 2).max(1);
        let from = self.columns.len().saturating_sub(most);
        let shown: Vec<&(String, Vec<u64>)> = self.columns.iter().skip(from).collect();
        let counted = |counts: &[u64]| counts.iter().rposition(|&count| count > 0);
        let top = shown.iter().filter_map(|(_, counts)| counted(counts)).max();
        let low = shown.iter().filter_map(|(_, counts)| counts.iter().position(|&count| count > 0)).min();
        let highest = shown.iter().flat_map(|(_, counts)| counts).copied().max().unwrap_or(0);
        let mut out = format!("{}  [{}]\n", self.title, self.unit);
        let Some((low, top)) = low.zip(top) else { return out + nothing + "\n" };
        for bucket in (low..=top).rev() {
            let (from, to) = bounds(bucket);
            let _ = write!(out, "{:>LABEL$} ", format!("{from} -> {to}"));
            for (_, counts) in &shown {
                cell(&mut out, shade(counts.get(bucket).copied().unwrap_or(0), highest), in_colour);
            }
            out.truncate(out.trim_end_matches(' ').len());
            out.push('\n');
        }
        let (first, last) = (&shown[0].0, &shown[shown.len() - 1].0);
        let gap = shown.len().saturating_sub(first.len() + last.len());
        let times = if gap > 0 { format!("{first}{:gap$}{last}", "") } else { last.clone() };
        let _ = writeln!(out, "{:>LABEL$} {times}", "");
        let _ = write!(out, "{:>LABEL$} ", "count");
        for level in 1..SHADES.len() {
            cell(&mut out, level, in_colour);
            let _ = write!(out, " {} ", least(level, highest));
        }
        let _ = writeln!(out, "to {highest}");
        out
    }
}

fn cell(out: &mut String, shade: usize, in_colour: bool) {
    match shade.checked_sub(1) {
        Some(level) if in_colour => {
            let _ = write!(out, "\x1b[48;5;{}m \x1b[0m", COLOURS[level]);
        }
        _ => out.push(SHADES[shade]),
    }
}

/// Returns the shade of a count, 0 for none. The scale is logarithmic, so that a few slow requests are visible beside many fast ones.
fn shade(count: u64, highest: u64) -> usize {
    (1..SHADES.len()).rev().find(|&level| count > 0 && count >= least(level, highest)).unwrap_or(0)
}

/// Returns the lowest count of a shade.
fn least(level: usize, highest: u64) -> u64 {
    // The root by halves: powf would bring in the pages of libm.
    let (levels, power) = (SHADES.len() as i32 - 1, (highest as f64).powi(level as i32 - 1));
    let (mut low, mut high) = (1, highest.max(1));
    while low < high {
        let middle = low + (high - low) / 2;
        match (middle as f64).powi(levels) < power {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(bucket: usize) -> (String, String) {
        ((1 << bucket).to_string(), ((2 << bucket) - 1).to_string())
    }

    fn drawn(width: usize, in_colour: bool) -> String {
        let mut map = Heatmap::new("bcc.x".into(), "us".into());
        map.add("10:00:01".into(), vec![0, 1, 0]);
        map.add("10:00:02".into(), vec![0, 0, 100, 0]);
        map.draw(width, in_colour, "", bounds)
    }

    #[test]
    fn each_reading_is_a_column_and_each_bucket_a_line() {
        let drawn = drawn(80, false);
        let lines: Vec<&str> = drawn.lines().collect();
        assert_eq!(lines[0], "bcc.x  [us]");
        assert_eq!(lines[1], "                 4 -> 7  #", "the highest bucket is on top: {drawn}");
        assert_eq!(lines[2], "                 2 -> 3 .");
        assert_eq!(lines[3].trim(), "10:00:02");
        assert!(lines[4].ends_with("to 100"), "{drawn}");
        assert!(!drawn.contains('\x1b'));
    }

    #[test]
    fn colours_are_backgrounds_that_end_in_each_cell() {
        let drawn = drawn(80, true);
        assert!(drawn.contains("\x1b[48;5;160m \x1b[0m"), "{drawn:?}");
        assert_eq!(drawn.matches("\x1b[48").count(), drawn.matches("\x1b[0m").count());
    }

    /// The contrast of these colours of xterm's cube to white and black, as WCAG 2.1 defines it.
    #[test]
    fn colours_are_seen_on_white_and_on_black() {
        for colour in COLOURS {
            let cube = f64::from(colour - 16);
            let steps = [(cube / 36.0).floor(), (cube / 6.0).floor() % 6.0, cube % 6.0];
            let linear = steps.map(|step| if step > 0.0 { (step * 40.0 + 55.0) / 255.0 } else { 0.0 }).map(|value| {
                if value > 0.04 {
                    ((value + 0.055) / 1.055).powf(2.4)
                } else {
                    value / 12.92
                }
            });
            let luminance: f64 = linear.iter().zip([0.2126, 0.7152, 0.0722]).map(|(value, share)| value * share).sum();
            let (on_white, on_black) = (1.05 / (luminance + 0.05), (luminance + 0.05) / 0.05);
            assert!(on_white > 2.5 && on_black > 2.5, "{colour}: {on_white:.1} on white, {on_black:.1} on black");
        }
    }

    #[test]
    fn the_latest_columns_are_those_that_fit() {
        let drawn = drawn(LABEL + 3, false);
        let lines: Vec<&str> = drawn.lines().collect();
        assert_eq!(lines[1], "                 4 -> 7 #", "{drawn}");
        assert!(!drawn.contains("2 -> 3"), "{drawn}");
        assert!(Heatmap::new(String::new(), String::new()).draw(0, false, "(nothing)", bounds).contains("(nothing)"));
    }

    #[test]
    fn a_few_show_beside_many() {
        let levels: Vec<usize> = [0, 1, 3, 1000, 1_000_000].map(|count| shade(count, 1_000_000)).to_vec();
        assert_eq!(levels, [0, 1, 1, 4, 7].map(|level| level.min(SHADES.len() - 1)).to_vec());
        assert_eq!((shade(1, 1), shade(u64::MAX, u64::MAX)), (7, 7));
    }
}
