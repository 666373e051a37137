//! Values of a module as of one refresh: rows of cells, one column per metric. It is cleared and filled at each
//! refresh, but keeps its memory.

use super::text::{self, Name};
use super::{Log2, Metric, Number, SeriesLabels};
use crate::pcp::Atom;
use std::ops::Range;
use std::sync::Arc;

/// Identity of a row, by the shape of the module's instance domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// The only row of a module without instance domain.
    Single,
    /// A power of two, or the index of a row.
    Index(u32),
    /// A name.
    Name(Range<usize>),
    /// A process and its name.
    Pid(u32, Range<usize>),
    /// A number with a name.
    Numbered(u32, Range<usize>),
}

#[derive(Clone, Debug, Default, PartialEq)]
enum Cell {
    #[default]
    None,
    Number(Atom<'static>),
    Text(Range<usize>),
}

/// Values of a metric, by row. As long as each row has a 64-bit number, they are in `numbers`, which takes a third of
/// the memory of cells; after that, all are in `cells`. Rows after the last have no value.
#[derive(Debug, Default)]
struct Column {
    numbers: Vec<u64>,
    cells: Vec<Cell>,
}

impl Column {
    fn clear(&mut self) {
        self.numbers.clear();
        self.cells.clear();
    }

    fn put_number(&mut self, row: usize, number: u64) {
        if self.cells.is_empty() && row == self.numbers.len() {
            self.numbers.push(number);
        } else {
            self.put(row, Cell::Number(Atom::U64(number)));
        }
    }

    fn put(&mut self, row: usize, cell: Cell) {
        match (cell, self.numbers.get_mut(row)) {
            (Cell::Number(Atom::U64(number)), Some(earlier)) => *earlier = number,
            (cell, _) => *self.cell(row) = cell,
        }
    }

    fn cell(&mut self, row: usize) -> &mut Cell {
        self.cells.extend(self.numbers.drain(..).map(|number| Cell::Number(Atom::U64(number))));
        if self.cells.len() <= row {
            self.cells.resize(row + 1, Cell::None);
        }
        &mut self.cells[row]
    }

    fn get(&self, row: usize) -> Cell {
        match self.numbers.get(row) {
            Some(number) => Cell::Number(Atom::U64(*number)),
            None => self.cells.get(row).cloned().unwrap_or_default(),
        }
    }

    fn is_empty(&self) -> bool {
        self.numbers.is_empty() && self.cells.iter().all(|cell| *cell == Cell::None)
    }
}

/// Rows of cells.
#[derive(Debug, Default)]
pub struct Table {
    /// Cluster, which distinguishes the tables of a module.
    cluster: Option<u32>,
    /// True if histograms are filled in the form of Prometheus.
    is_in_seconds: bool,
    /// True if names are one word each: blanks are written out.
    is_of_words: bool,
    columns: Vec<Column>,
    keys: Vec<Key>,
    text: Vec<u8>,
    /// Labels by row; only rows with labels are listed.
    labels: Vec<(usize, Arc<SeriesLabels>)>,
    /// Labels of buckets by row; only rows that are buckets of a histogram are listed.
    buckets: Vec<(usize, &'static SeriesLabels)>,
}

impl Table {
    /// Makes an empty table with this many metrics.
    pub fn new(columns: usize) -> Table {
        Table { columns: (0..columns).map(|_| Column::default()).collect(), ..Table::default() }
    }

    /// Makes an empty table declared with this cluster.
    pub fn numbered_by(cluster: u32, columns: usize) -> Table {
        Table { cluster: Some(cluster), ..Table::new(columns) }
    }

    /// Switches to histograms in the form of Prometheus.
    pub fn in_seconds(self) -> Table {
        Table { is_in_seconds: true, ..self }
    }

    /// Returns the same table with blanks in names written out (`\x20`).
    pub fn of_words(self) -> Table {
        Table { is_of_words: true, ..self }
    }

    /// True if histograms are filled in the form of Prometheus.
    pub fn is_in_seconds(&self) -> bool {
        self.is_in_seconds
    }

    /// Returns the cluster it is declared with.
    pub fn cluster(&self) -> Option<u32> {
        self.cluster
    }

    /// Returns the number of its metrics.
    pub fn columns(&self) -> usize {
        self.columns.len()
    }

    /// Removes all rows.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.columns.iter_mut().for_each(Column::clear);
        self.text.clear();
        self.labels.clear();
        self.buckets.clear();
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// True if there are no rows.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Adds the only row of a module without instance domain.
    pub fn single(&mut self) -> RowMut<'_> {
        self.push(Key::Single)
    }

    /// Adds the next row of a row table, or the next bucket.
    pub fn indexed(&mut self, index: u32) -> RowMut<'_> {
        self.push(Key::Index(index))
    }

    /// Adds a row with a name. Bytes that are not printable ASCII are escaped (`\x1b`).
    pub fn named(&mut self, name: &[u8]) -> RowMut<'_> {
        let name = if self.is_of_words { text::one_word(name) } else { text::name(name) };
        let range = self.keep(&name);
        self.push(Key::Name(range))
    }

    /// Adds the row of a process; `name` is the whole instance name.
    pub fn process(&mut self, pid: u32, name: &[u8]) -> RowMut<'_> {
        let range = self.keep(&text::name(name));
        self.push(Key::Pid(pid, range))
    }

    /// Adds the row of a process whose name is already escaped.
    pub fn process_named(&mut self, pid: u32, name: &Name) -> RowMut<'_> {
        let range = self.keep(name.as_bytes());
        self.push(Key::Pid(pid, range))
    }

    /// Adds the row of a number (at most 2^31 - 1) with a name.
    pub fn numbered(&mut self, number: u32, name: &[u8]) -> RowMut<'_> {
        let range = self.keep(&text::name(name));
        self.push(Key::Numbered(number, range))
    }

    /// Adds a histogram: row i gets `counts[i]`, up to the last that is not zero. `0-1` always exists, so that a client
    /// sees the metric before the first event. Several histograms of a module share the rows.
    pub fn log2(&mut self, metric: Metric<u64>, counts: &[u64]) {
        let rows = Log2::used(counts);
        while self.keys.len() < rows {
            let row = self.keys.len();
            self.indexed(row as u32);
            // The other histograms did not reach this bucket: they counted nothing in it.
            self.columns.iter_mut().for_each(|column| column.put_number(row, 0));
        }
        for (row, &count) in counts.iter().enumerate().take(self.keys.len()) {
            self.columns[metric.column].put_number(row, count);
        }
    }

    /// Returns the keys, in the order of the rows.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// Returns the bytes of a name or text.
    pub fn text(&self, range: &Range<usize>) -> &[u8] {
        self.text.get(range.clone()).unwrap_or_default()
    }

    /// Returns a value; `None` if the cell is empty.
    pub fn value(&self, row: usize, column: usize) -> Option<Atom<'_>> {
        match self.columns.get(column)?.get(row) {
            Cell::None => None,
            Cell::Number(atom) => Some(atom),
            Cell::Text(range) => Some(Atom::Str(self.text.get(range).unwrap_or_default())),
        }
    }

    /// Iterates over the 64-bit numbers of a column, by row, up to the last that has a value.
    pub fn u64s(&self, column: usize) -> impl Iterator<Item = Option<u64>> + '_ {
        let (numbers, cells) =
            self.columns.get(column).map(|column| (&column.numbers[..], &column.cells[..])).unwrap_or_default();
        numbers.iter().map(|number| Some(*number)).chain(cells.iter().map(|cell| match cell {
            Cell::Number(Atom::U64(number)) => Some(*number),
            _ => None,
        }))
    }

    /// Returns the labels of a row.
    pub fn labels(&self, row: usize) -> Option<&SeriesLabels> {
        let at = self.labels.binary_search_by_key(&row, |(row, _)| *row).ok()?;
        Some(&self.labels[at].1)
    }

    /// Returns the labels of the bucket that a row is, which are its bounds.
    pub fn bucket(&self, row: usize) -> Option<&'static SeriesLabels> {
        let at = self.buckets.binary_search_by_key(&row, |(row, _)| *row).ok()?;
        Some(self.buckets[at].1)
    }

    /// Returns the columns without a value in any row, a bit each; columns from 64 on are left out.
    pub fn empty_columns(&self) -> u64 {
        let empty = self.columns.iter().take(64).enumerate().filter(|(_, column)| column.is_empty());
        empty.fold(0, |bits, (place, _)| bits | 1 << place)
    }

    fn keep(&mut self, text: &[u8]) -> Range<usize> {
        let start = self.text.len();
        self.text.extend_from_slice(text);
        start..self.text.len()
    }

    fn push(&mut self, key: Key) -> RowMut<'_> {
        let row = self.keys.len();
        self.keys.push(key);
        RowMut { table: self, row }
    }
}

/// A row that is being filled.
pub struct RowMut<'a> {
    table: &'a mut Table,
    row: usize,
}

impl RowMut<'_> {
    /// Sets a number.
    pub fn set<T: Number>(self, metric: Metric<T>, value: T) -> Self {
        let column = &mut self.table.columns[metric.column];
        match value.atom() {
            Atom::U64(number) => column.put_number(self.row, number),
            atom => column.put(self.row, Cell::Number(atom)),
        }
        self
    }

    /// Sets the first columns, which are 64-bit numbers.
    #[inline]
    pub fn numbers(self, numbers: &[u64]) -> Self {
        for (column, number) in self.table.columns.iter_mut().zip(numbers) {
            column.put_number(self.row, *number);
        }
        self
    }

    /// Sets the labels of the row.
    pub fn labels(self, labels: &Arc<SeriesLabels>) -> Self {
        self.table.labels.push((self.row, Arc::clone(labels)));
        self
    }

    /// Sets the labels of the bucket that the row is.
    pub fn bucket(self, labels: &'static SeriesLabels) -> Self {
        self.table.buckets.push((self.row, labels));
        self
    }

    /// Sets a string: bytes, which need not be UTF-8. Control characters are escaped (`\x0a`, `\x1b`).
    pub fn text(self, metric: Metric<str>, value: &[u8]) -> Self {
        let range = self.table.keep(&text::escaped(value));
        self.table.columns[metric.column].put(self.row, Cell::Text(range));
        self
    }
}

/// Accessors for tests.
#[cfg(test)]
impl Table {
    /// Returns a cell's number; `None` if the cell is empty.
    #[track_caller]
    pub fn number(&self, row: usize, column: usize) -> Option<u64> {
        match self.value(row, column)? {
            Atom::U32(number) => Some(number.into()),
            Atom::U64(number) => Some(number),
            other => panic!("row {row}, column {column}: {other:?}"),
        }
    }

    /// Returns the name of a row.
    #[track_caller]
    pub fn name(&self, row: usize) -> String {
        match &self.keys()[row] {
            Key::Name(name) | Key::Pid(_, name) | Key::Numbered(_, name) => {
                String::from_utf8_lossy(self.text(name)).into_owned()
            }
            other => panic!("row {row}: {other:?}"),
        }
    }

    /// Returns the names of all rows.
    pub fn names(&self) -> Vec<String> {
        (0..self.len()).map(|row| self.name(row)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Shape, TableSpec};
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
    fn a_column_of_numbers_takes_gaps_and_text_too() {
        let mut table = Table::new(3);
        let values = |table: &Table, column| (0..4).map(|row| table.number(row, column)).collect::<Vec<_>>();
        table.process_named(7, &Name::new(b"a\n")).numbers(&[1, 2, 3]);
        table.indexed(1).set(B, 20).set(B, 21);
        table.indexed(2).numbers(&[4, 5]);
        table.indexed(3);
        assert_eq!(table.name(0), r"a\x0a");
        assert_eq!(values(&table, 0), [Some(1), None, Some(4), None]);
        assert_eq!(values(&table, 1), [Some(2), Some(21), Some(5), None]);
        assert_eq!(values(&table, 2), [Some(3), None, None, None]);
        assert!(table.u64s(0).eq([Some(1), None, Some(4)]));
        assert!(table.u64s(1).eq([Some(2), Some(21), Some(5)]));
        table.indexed(4).text(NAME, b"x").set(B, 6);
        assert_eq!((table.value(4, 0), table.number(0, 0)), (Some(Atom::Str(b"x")), Some(1)));
        table.clear();
        table.indexed(0).numbers(&[8]);
        assert_eq!((table.number(0, 0), table.value(0, 1), table.empty_columns()), (Some(8), None, 0b110));
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
        assert_eq!(names, [&br"\x0a2147483647 9 x"[..], br"000007 a\x0db", br"sh;\x07"]);
        assert_eq!(table.value(0, 0), Some(Atom::Str(b"a\\x1b[2J\\n")));
    }

    #[test]
    fn names_are_one_word_whoever_came_first() {
        let named = |shape, names: &[&str]| {
            let mut table = Table::of(&TableSpec { shape, ..TableSpec::NEW });
            for name in names {
                table.named(name.as_bytes());
            }
            table.names()
        };
        let max = 9;
        assert_eq!(named(Shape::Named { max }, &["Web Foo", "Web Content"]), [r"Web\x20Foo", r"Web\x20Content"]);
        assert_eq!(named(Shape::Named { max }, &["Web Content"]), [r"Web\x20Content"]);
        assert_eq!(named(Shape::Words { max }, &["sda::000001 dd x"]), ["sda::000001 dd x"]);
    }
}
