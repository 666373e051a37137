//! Words of a pair's YAML that stand for values: durations as Go writes them, and PCP's units.

use crate::pcp::Units;
use std::time::Duration;

/// Words for units.
pub const UNITS: [(&str, Units); 8] = [
    ("none", Units::NONE),
    ("count", Units::COUNT),
    ("byte", Units::BYTE),
    ("Mbyte", Units::MBYTE),
    ("nsec", Units::NSEC),
    ("usec", Units::USEC),
    ("msec", Units::MSEC),
    ("sec", Units::SEC),
];

/// Parses a duration above zero in Go's notation (`time.ParseDuration`): `90s`, `1h30m`, `1.5h`.
pub fn duration(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let unit = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let each = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" | "μs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        seconds += number.parse::<f64>().ok()? * each;
        rest = after;
    }
    // What Go has room for, in nanoseconds.
    (seconds > 0.0 && seconds < 9.2e9).then(|| Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        let seconds = |text: &str| duration(text).map(|duration| duration.as_secs_f64());
        assert_eq!(["90s", "1h30m", "1.5h", "300ms"].map(seconds), [Some(90.0), Some(5400.0), Some(5400.0), Some(0.3)]);
        assert_eq!(["", "0s", "1", "h", "-1s", "1d", "1e3s", ".s", "9999999999h"].map(duration), [None; 9]);
    }
}
