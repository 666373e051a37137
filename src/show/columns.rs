//! Tables of text: a title for each column, text aligned left and numbers right, within the width of the terminal.

use super::reading::{Reading, Value};
use crate::cli::ShowOptions;
use std::fmt::Write;

/// Blanks between two columns.
const GAP: usize = 2;

/// Draws the rows of a reading. `width` is that of the terminal, if there is one; `in_place` is true for a screen that shows all rows
/// each time.
pub fn draw(reading: &Reading<'_>, options: &ShowOptions, width: Option<usize>, in_place: bool) -> String {
    let rows = reading.rows(options, in_place);
    let mut out = heading(reading, &reading.title());
    let notes = notes(rows.lines.len(), rows.beyond, rows.zeros, in_place, options, reading);
    if !rows.lines.is_empty() {
        let has_names = rows.lines.iter().any(|line| !line.name.is_empty());
        let mut columns: Vec<Column> = Vec::new();
        if has_names {
            let cells = rows.lines.iter().map(|line| line.name.clone()).collect();
            columns.push(Column::new("instance", cells, false));
        }
        let has_value = |at: usize| rows.lines.iter().any(|line| line.values[at] != Value::None);
        for (at, head) in reading.heads(options).iter().enumerate() {
            // What an option of the module would have to switch on.
            if !has_value(at) && !options.zeros {
                continue;
            }
            let cells = rows.lines.iter().map(|line| text(&line.values[at])).collect();
            let is_text = rows.lines.iter().any(|line| matches!(line.values[at], Value::Text(_)));
            columns.push(Column::new(head, cells, !is_text));
        }
        out += &table(columns, width);
    }
    out + &notes
}

/// Draws columns side by side, within the width if there is one.
pub fn table(mut columns: Vec<Column>, width: Option<usize>) -> String {
    fit(&mut columns, width);
    let mut out = String::new();
    let height = columns.iter().map(|column| column.head.len()).max().unwrap_or(0);
    for at in 0..height {
        let cell = |column: &Column| {
            let missing = height - column.head.len();
            at.checked_sub(missing).map_or(String::new(), |at| column.head[at].clone())
        };
        line(&mut out, &columns, cell, width);
    }
    for row in 0..columns.first().map_or(0, |column| column.cells.len()) {
        line(&mut out, &columns, |column| column.cells[row].clone(), width);
    }
    out
}

/// Returns the first line of a table or histogram: its title, the time of reading, and the time that it covers.
pub fn heading(reading: &Reading<'_>, title: &str) -> String {
    let covers = match reading.span().as_secs_f64() {
        _ if !reading.counts() => String::new(),
        seconds if seconds < 10.0 => format!("  last {seconds:.1} s"),
        seconds => format!("  last {seconds:.0} s"),
    };
    format!("{title}  {}{covers}\n", reading.clock())
}

/// Returns a note on rows that are not shown, and on the option that shows them.
fn notes(
    shown: usize,
    beyond: usize,
    zeros: usize,
    in_place: bool,
    options: &ShowOptions,
    reading: &Reading<'_>,
) -> String {
    let rows = |count: u64| if count == 1 { "row".to_owned() } else { "rows".to_owned() };
    let mut out = String::new();
    if shown == 0 {
        let _ = writeln!(out, "{}", reading.nothing());
    }
    if beyond > 0 {
        let _ = writeln!(out, "({beyond} more {}, beyond -n {})", rows(beyond as u64), options.rows.unwrap_or(0));
    }
    if zeros > 0 {
        let _ = writeln!(out, "({zeros} {} of zeros; --zeros shows them)", rows(zeros as u64));
    }
    if let Some(unkept) = reading.unkept().filter(|_| !in_place) {
        let _ = writeln!(out, "({unkept})");
    }
    out
}

/// Formats a value.
pub fn text(value: &Value) -> String {
    match value {
        Value::None => "-".into(),
        Value::Whole(number) => number.to_string(),
        Value::Real(number) if number.abs() < 10.0 => format!("{number:.3}"),
        Value::Real(number) => format!("{number:.1}"),
        Value::Text(text) => text.clone(),
    }
}

/// A column: a title, and a cell for each row.
pub struct Column {
    /// The title, in one or several lines.
    head: Vec<String>,
    cells: Vec<String>,
    is_right: bool,
    width: usize,
}

impl Column {
    /// Makes a column of text, or of numbers, which are aligned right.
    pub fn new(head: &str, cells: Vec<String>, is_right: bool) -> Column {
        let mut column = Column { head: vec![head.to_owned()], cells, is_right, width: 0 };
        column.measure();
        column
    }

    fn measure(&mut self) {
        self.width = self.head.iter().chain(&self.cells).map(|cell| cell.chars().count()).max().unwrap_or(0);
    }

    /// Breaks the title at its dots and before its unit.
    fn stack(&mut self) {
        let title = self.head.concat();
        let (name, unit) = title.find('[').map_or((title.as_str(), ""), |at| title.split_at(at));
        self.head = name.split('.').map(str::to_owned).collect();
        if !unit.is_empty() {
            self.head.push(unit.to_owned());
        }
        self.measure();
    }
}

/// Fits columns into a width: titles are broken into several lines, then the widest text is cut.
fn fit(columns: &mut [Column], width: Option<usize>) {
    let Some(width) = width else { return };
    let total = |columns: &[Column]| {
        columns.iter().map(|column| column.width).sum::<usize>() + GAP * columns.len().saturating_sub(1)
    };
    if total(columns) > width {
        columns.iter_mut().for_each(Column::stack);
    }
    let surplus = total(columns).saturating_sub(width);
    const LEAST: usize = 12;
    if let Some(widest) = columns.iter_mut().filter(|column| !column.is_right).max_by_key(|column| column.width) {
        if widest.width > LEAST {
            widest.width = widest.width.saturating_sub(surplus).max(LEAST);
        }
    }
}

fn line(out: &mut String, columns: &[Column], cell: impl Fn(&Column) -> String, width: Option<usize>) {
    let mut line = String::new();
    for (at, column) in columns.iter().enumerate() {
        let (cell, width) = (cut(cell(column), column.width), column.width);
        let gap = if at == 0 { 0 } else { GAP };
        let _ = match column.is_right {
            true => write!(line, "{:gap$}{cell:>width$}", ""),
            false => write!(line, "{:gap$}{cell:<width$}", ""),
        };
    }
    let line = cut(line.trim_end().to_owned(), width.unwrap_or(usize::MAX));
    let _ = writeln!(out, "{}", line.trim_end());
}

/// Cuts a text to a width; dots replace the rest.
fn cut(text: String, width: usize) -> String {
    if text.chars().count() <= width {
        return text;
    }
    let kept: String = text.chars().take(width.saturating_sub(3)).collect();
    kept + "..."
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

    /// Draws a table by `show` with these words.
    fn drawn(line: &str, table: &Table, earlier: Option<&Table>, new: Option<u64>) -> Vec<String> {
        let words = ["pmdacorebcc", "show"].into_iter().chain(line.split(' '));
        let Ok(Command::Show(options)) = parse(words.map(Into::into)) else { panic!("{line}") };
        let chosen = choose(&options).unwrap();
        let (time, covers) = (Local::now(), Duration::from_secs(2));
        let earlier = earlier.map(Earlier::new);
        let reading = Reading { of: &chosen.selected[0], table, earlier, new, time, covers, waits_for: None };
        draw(&reading, &options, None, false).lines().map(str::to_owned).collect()
    }

    fn processes(bytes: &[(u32, u64)]) -> Table {
        let mut table = Table::new(8);
        for (pid, bytes) in bytes {
            let row = table.process(*pid, format!("{pid:06} a").as_bytes());
            row.set(Metric::<u64>::new(1), *bytes);
        }
        table
    }

    #[test]
    fn a_table_is_headed_by_its_metric_or_the_node_above_them() {
        let table = processes(&[(77, 5)]);
        let title = |names: &str| drawn(names, &table, None, None)[0].split(' ').next().unwrap().to_owned();
        assert_eq!(title("bcc.proc.net.tcp.send.bytes"), "bcc.proc.net.tcp.send.bytes");
        assert_eq!(title("bcc.proc.net.tcp.send"), "bcc.proc.net.tcp.send");
        assert_eq!(title("bcc.proc.net.tcp"), "bcc.proc.net.tcp");
        assert_eq!(title("netproc"), "bcc.proc.net");
    }

    #[test]
    fn numbers_end_below_each_other_and_titles_have_units() {
        let table = processes(&[(77, 5), (8, 12345)]);
        let lines = drawn("proc.net.tcp.send", &table, None, None);
        let lines: Vec<&str> = lines[1..].iter().map(String::as_str).collect();
        assert_eq!(
            lines,
            ["instance  tcp.send.bytes[B]", "000008 a              12345", "000077 a                  5"]
        );
        let all = drawn("proc.net.tcp.send --zeros", &table, None, None);
        assert_eq!(
            all[1], "instance  tcp.send.calls  tcp.send.bytes[B]",
            "what has no value is shown, too, if asked for"
        );
        assert!(drawn("netproc", &table, None, None)[0].ends_with("  last 2.0 s"));
    }

    #[test]
    fn rows_are_sorted_by_the_first_counter_and_cut() {
        let table = processes(&[(77, 5), (8, 12345), (9, 70)]);
        let first = |line: &str| -> Vec<String> {
            let lines = drawn(line, &table, None, None);
            lines[2..].iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
        };
        assert_eq!(first("proc.net.tcp.send.bytes"), ["000008", "000009", "000077"]);
        assert_eq!(first("proc.net.tcp.send.bytes --sort instance"), ["000008", "000009", "000077"]);
        assert_eq!(first("netproc --sort tcp.send.bytes -n 1"), ["000008", "(2"]);
        assert_eq!(first("netproc --sort bcc.proc.net.tcp.send.bytes -n 2"), ["000008", "000009", "(1"]);
    }

    #[test]
    fn rows_of_one_process_or_of_a_name_are_shown_alone() {
        let table = processes(&[(77, 5), (8, 12345), (9, 70)]);
        let rows = |line: &str| drawn(line, &table, None, None)[2..].to_vec();
        assert_eq!(rows("proc.net.tcp.send.bytes -p 9"), ["000009 a                 70"]);
        assert_eq!(
            rows("proc.net.tcp.send.bytes --comm a -n 1"),
            ["000008 a              12345", "(2 more rows, beyond -n 1)"]
        );
        assert_eq!(drawn("proc.net.tcp.send.bytes --comm b", &table, None, None)[1], "(nothing yet)");
        let mut table = Table::new(9);
        for (row, comm) in [(0, b"curl"), (1, b"wget")] {
            table.indexed(row).set(Metric::<u32>::new(0), 70 + row).text(Metric::new(1), comm);
        }
        let rows = |line: &str| drawn(line, &table, None, None)[2..].to_vec();
        assert_eq!(rows("tcplife -p 71"), [" 71  wget"]);
        assert_eq!(rows("proc.io.net.tcp.pid --comm curl"), [" 70"], "by a column that is not shown");
    }

    #[test]
    fn what_did_not_count_in_the_interval_is_hidden() {
        let (earlier, table) = (processes(&[(8, 100), (77, 5)]), processes(&[(77, 5), (8, 300)]));
        let lines = drawn("proc.net.tcp.send.bytes", &table, Some(&earlier), None);
        assert_eq!(lines[2..], ["000008 a                200", "(1 row of zeros; --zeros shows them)"]);
        let none = drawn("proc.net.tcp.send.bytes", &processes(&[]), Some(&earlier), None);
        assert_eq!(none[1..], ["(nothing in this interval)"]);
        let lines = drawn("proc.net.tcp.send.bytes --rate --zeros", &table, Some(&earlier), None);
        assert_eq!(
            lines[1..],
            ["instance  tcp.send.bytes[B/s]", "000008 a                100.0", "000077 a                0.000"]
        );
    }

    #[test]
    fn a_table_of_an_interval_is_headed_by_its_length() {
        let mut table = Table::new(9);
        table.indexed(0).set(Metric::<u32>::new(0), 77);
        let head = |line: &str| drawn(line, &table, None, None)[0].split_once(':').unwrap().1.to_owned();
        assert!(head("biotop").ends_with("  last 2.0 s"), "as long as the reading: {}", head("biotop"));
        assert!(head("biotop --set interval=30").ends_with("  last 30 s"));
        assert!(!head("tcptop --set interval=-1").contains("last"), "stays empty");
    }

    #[test]
    fn of_events_those_are_shown_that_are_new() {
        let mut table = Table::new(9);
        for row in 0..3u32 {
            table.indexed(row).set(Metric::<u32>::new(0), 100 - row);
        }
        let pids = |new| -> Vec<String> {
            let lines = drawn("proc.io.net.tcp.pid", &table, Some(&Table::new(9)), Some(new));
            lines[1..].iter().map(|line| line.trim().to_owned()).collect()
        };
        assert_eq!(pids(0), ["(nothing new)"]);
        assert_eq!(pids(2), ["pid", "99", "100"]);
        assert_eq!(
            pids(5),
            ["pid", "98", "99", "100", "(2 more that were not kept; --set session_count=5 keeps as many)"]
        );
        let most = pids(20_000).pop().unwrap();
        assert!(most.contains("19997 more") && most.contains("a shorter INTERVAL"), "{most}");
    }

    #[test]
    fn of_numbered_events_none_is_shown_twice() {
        let mut table = Table::new(15);
        for seq in [9u64, 8, 5, 2] {
            table.indexed(0).set(Metric::<u32>::new(0), seq as u32).set(Metric::<u64>::new(13), seq);
        }
        let lines = drawn("proc.exit.pid", &table, Some(&Table::new(15)), Some(4));
        assert_eq!(lines[1], "pid");
        assert_eq!(lines[2..4].iter().map(|line| line.trim()).collect::<Vec<_>>(), ["8", "9"], "5 is an earlier one's");
        assert!(lines[4].starts_with("(2 more that were not kept"), "{lines:?}");
    }

    #[test]
    fn control_characters_of_names_are_not_printed() {
        let mut table = Table::new(8);
        table.process(77, b"000077 a\x1bb").set(Metric::<u64>::new(1), 5);
        let lines = drawn("netproc", &table, None, None);
        assert!(lines[2].starts_with(r"000077 a\x1bb  "), "{lines:?}");
    }
}
