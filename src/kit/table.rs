//! The values of a module as of one refresh: rows of cells, one column per metric. Filled anew each time; it keeps its memory.

use super::{text, Log2, Metric, Number, SeriesLabels};
use crate::pcp::Atom;
use std::ops::Range;
use std::sync::Arc;

/// What a row stands for, by the shape of the module's instance domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// The one row of a module without instance domain.
    Single,
    /// A power of two, or the number of a row.
    Index(u32),
    /// A name.
    Name(Range<usize>),
    /// A process and its name.
    Pid(u32, Range<usize>),
    /// A number that has a name.
    Numbered(u32, Range<usize>),
}

#[derive(Clone, Debug, Default, PartialEq)]
enum Cell {
    #[default]
    None,
    Number(Atom<'static>),
    Text(Range<usize>),
}

/// Rows of cells.
#[derive(Debug, Default)]
pub struct Table {
    /// What tells the tables of a module apart.
    cluster: Option<u32>,
    columns: usize,
    keys: Vec<Key>,
    cells: Vec<Cell>,
    text: Vec<u8>,
    /// The labels of rows that have some, by row.
    labels: Vec<(usize, Arc<SeriesLabels>)>,
}

impl Table {
    /// An empty table for so many metrics.
    pub fn new(columns: usize) -> Table {
        Table { columns, ..Table::default() }
    }

    /// An empty table that is declared with this cluster.
    pub fn numbered_by(cluster: u32, columns: usize) -> Table {
        Table { cluster: Some(cluster), columns, ..Table::default() }
    }

    /// The cluster it is declared with.
    pub fn cluster(&self) -> Option<u32> {
        self.cluster
    }

    /// The number of its metrics.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Removes all rows.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.cells.clear();
        self.text.clear();
        self.labels.clear();
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The one row of a module without instance domain.
    pub fn single(&mut self) -> RowMut<'_> {
        self.push(Key::Single)
    }

    /// The next row of a row table, or the next bucket.
    pub fn indexed(&mut self, index: u32) -> RowMut<'_> {
        self.push(Key::Index(index))
    }

    /// A row with a name. Control characters in the names of rows become `_`.
    pub fn named(&mut self, name: &[u8]) -> RowMut<'_> {
        let range = self.keep(&text::name(name));
        self.push(Key::Name(range))
    }

    /// The row of a process; the name is the whole instance name.
    pub fn process(&mut self, pid: u32, name: &[u8]) -> RowMut<'_> {
        let range = self.keep(&text::name(name));
        self.push(Key::Pid(pid, range))
    }

    /// The row of a number (at most 2^31 - 1) that has a name.
    pub fn numbered(&mut self, number: u32, name: &[u8]) -> RowMut<'_> {
        let range = self.keep(&text::name(name));
        self.push(Key::Numbered(number, range))
    }

    /// A histogram: row i gets `counts[i]`, up to the last that is not zero. `0-1` is always there, so that a client
    /// sees the metric before the first event. Several histograms of a module share the rows.
    pub fn log2(&mut self, metric: Metric<u64>, counts: &[u64]) {
        let rows = Log2::used(counts);
        while self.keys.len() < rows {
            let index = self.keys.len() as u32;
            let earlier = self.cells.len();
            self.indexed(index);
            // The other histograms did not reach this bucket: they counted nothing in it.
            self.cells[earlier..].fill(Cell::Number(Atom::U64(0)));
        }
        for (row, &count) in counts.iter().enumerate().take(self.keys.len()) {
            self.cells[row * self.columns + metric.column] = Cell::Number(Atom::U64(count));
        }
    }

    /// The keys, in the order of the rows.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// The bytes of a name or of text.
    pub fn text(&self, range: &Range<usize>) -> &[u8] {
        self.text.get(range.clone()).unwrap_or_default()
    }

    /// A value.
    pub fn value(&self, row: usize, column: usize) -> Option<Atom<'_>> {
        match self.cells.get(row * self.columns + column)? {
            Cell::None => None,
            Cell::Number(atom) => Some(*atom),
            Cell::Text(range) => Some(Atom::Str(self.text(range))),
        }
    }

    /// The 64-bit numbers of a column, by row.
    pub fn u64s(&self, column: usize) -> impl Iterator<Item = Option<u64>> + '_ {
        self.cells.iter().skip(column).step_by(self.columns.max(1)).map(|cell| match cell {
            Cell::Number(Atom::U64(number)) => Some(*number),
            _ => None,
        })
    }

    /// The labels of a row.
    pub fn labels(&self, row: usize) -> Option<&SeriesLabels> {
        let at = self.labels.binary_search_by_key(&row, |(row, _)| *row).ok()?;
        Some(&self.labels[at].1)
    }

    /// The columns without a value in any row, a bit each; those beyond 64 are left out.
    pub fn empty_columns(&self) -> u64 {
        let is_set =
            |column: usize| self.cells.iter().skip(column).step_by(self.columns).any(|cell| *cell != Cell::None);
        (0..self.columns.min(64)).filter(|&column| !is_set(column)).fold(0, |bits, column| bits | 1 << column)
    }

    fn keep(&mut self, text: &[u8]) -> Range<usize> {
        let start = self.text.len();
        self.text.extend_from_slice(text);
        start..self.text.len()
    }

    fn push(&mut self, key: Key) -> RowMut<'_> {
        self.keys.push(key);
        let start = self.cells.len();
        self.cells.resize(start + self.columns, Cell::None);
        RowMut { table: self, start }
    }
}

/// A row being filled.
pub struct RowMut<'a> {
    table: &'a mut Table,
    start: usize,
}

impl RowMut<'_> {
    /// Sets a number.
    pub fn set<T: Number>(self, metric: Metric<T>, value: T) -> Self {
        self.table.cells[self.start + metric.column] = Cell::Number(value.atom());
        self
    }

    /// Sets the first columns, which are 64-bit numbers.
    pub fn numbers(self, numbers: &[u64]) -> Self {
        for (cell, number) in self.table.cells[self.start..].iter_mut().zip(numbers) {
            *cell = Cell::Number(Atom::U64(*number));
        }
        self
    }

    /// Sets the labels of the row.
    pub fn labels(self, labels: &Arc<SeriesLabels>) -> Self {
        let row = self.table.keys.len() - 1;
        self.table.labels.push((row, Arc::clone(labels)));
        self
    }

    /// Sets a string: bytes, which need not be UTF-8. Control characters are written out (`\n`, `\x1b`).
    pub fn text(self, metric: Metric<str>, value: &[u8]) -> Self {
        let range = self.table.keep(&text::escaped(value));
        self.table.cells[self.start + metric.column] = Cell::Text(range);
        self
    }
}

/// What tests read.
#[cfg(test)]
impl Table {
    /// A cell's number; `None` if the cell has no value.
    #[track_caller]
    pub fn number(&self, row: usize, column: usize) -> Option<u64> {
        match self.value(row, column)? {
            Atom::U32(number) => Some(number.into()),
            Atom::U64(number) => Some(number),
            other => panic!("row {row}, column {column}: {other:?}"),
        }
    }

    /// The name of a row.
    #[track_caller]
    pub fn name(&self, row: usize) -> String {
        match &self.keys()[row] {
            Key::Name(name) | Key::Pid(_, name) | Key::Numbered(_, name) => {
                String::from_utf8_lossy(self.text(name)).into_owned()
            }
            other => panic!("row {row}: {other:?}"),
        }
    }

    /// The names of all rows.
    pub fn names(&self) -> Vec<String> {
        (0..self.len()).map(|row| self.name(row)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Metric<u64> = Metric::new(0);
    const B: Metric<u64> = Metric::new(1);
    const NAME: Metric<str> = Metric::new(0);

    #[test]
    fn a_histogram_ends_at_its_highest_count() {
        let mut table = Table::new(1);
        table.log2(A, &[0, 3, 0, 9, 0, 0]);
        assert_eq!(table.len(), 4);
        assert_eq!(table.value(3, 0), Some(Atom::U64(9)));
        assert_eq!(table.value(2, 0), Some(Atom::U64(0)));
    }

    #[test]
    fn an_empty_histogram_has_its_first_bucket() {
        let mut table = Table::new(1);
        table.log2(A, &[0; 32]);
        assert_eq!((table.len(), table.value(0, 0)), (1, Some(Atom::U64(0))));
    }

    #[test]
    fn histograms_of_one_module_share_the_widest_range() {
        let mut table = Table::new(2);
        table.log2(A, &[1]);
        table.log2(B, &[0, 0, 5]);
        assert_eq!(table.len(), 3);
        assert_eq!(table.value(2, 0), Some(Atom::U64(0)));
        assert_eq!(table.value(2, 1), Some(Atom::U64(5)));
        assert_eq!(table.value(0, 0), Some(Atom::U64(1)));
    }

    #[test]
    fn text_is_bytes_and_a_cell_not_set_has_no_value() {
        let mut table = Table::new(2);
        table.indexed(0).text(NAME, b"caf\xc3");
        assert_eq!(table.value(0, 0), Some(Atom::Str(b"caf\xc3")));
        assert_eq!(table.value(0, 1), None);
        assert_eq!(table.value(7, 0), None);
    }

    #[test]
    fn columns_without_a_value_in_any_row_are_known() {
        let mut table = Table::new(3);
        assert_eq!(table.empty_columns(), 0b111);
        table.indexed(0);
        table.indexed(1).set(B, 0);
        assert_eq!(table.empty_columns(), 0b101);
    }

    #[test]
    fn no_control_character_gets_into_names_and_values() {
        let mut table = Table::new(1);
        table.named(b"\n2147483647 9 x").text(NAME, b"a\x1b[2J\n");
        table.process(7, b"000007 a\rb");
        table.numbered(7, b"sh;\x07");
        let names: Vec<&[u8]> = table
            .keys()
            .iter()
            .map(|key| match key {
                Key::Name(name) | Key::Pid(_, name) | Key::Numbered(_, name) => table.text(name),
                _ => b"",
            })
            .collect();
        assert_eq!(names, [&b"_2147483647 9 x"[..], b"000007 a_b", b"sh;_"]);
        assert_eq!(table.value(0, 0), Some(Atom::Str(b"a\\x1b[2J\\n")));
    }
}
