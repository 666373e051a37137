//! Readings: the usual ways to fill a table from maps.

use super::{text, Declared, Fine, Kernel, Metric, Row, RowMut, Rows, Spec, Table, TableSpec};
use crate::bpf::types::fine_hist;
use crate::bpf::Field;
use std::collections::BTreeMap;

/// A metric and the fields that add up to it.
pub type Sum<T> = (Metric<u64>, &'static [Field<T, u64>]);

/// Single values, each the sum of fields over all rows.
pub struct Sums<T: 'static> {
    /// Counters, a row per CPU.
    pub rows: Rows<T>,
    /// Metrics, each with its fields.
    pub cells: &'static [Sum<T>],
}

impl<T> Sums<T> {
    /// Fills its columns with the values as of now.
    pub fn read(&self, kernel: &dyn Kernel, table: &mut Table) {
        self.row(kernel, table);
    }

    /// Fills its columns, and returns the row for others.
    pub fn row<'a>(&self, kernel: &dyn Kernel, table: &'a mut Table) -> RowMut<'a> {
        let rows = kernel.rows(self.rows);
        self.cells.iter().fold(table.single(), |cells, (metric, fields)| {
            let sum = fields.iter().fold(0u64, |sum, &field| sum.wrapping_add(rows.sum(field)));
            cells.set(*metric, sum)
        })
    }
}

/// A histogram of powers of two from a fine one (bpf/shared/fine.bpf.h), summed over all rows. Several of a table share
/// its instances.
pub struct FineHistogram<T: 'static> {
    /// Metric.
    pub metric: Metric<u64>,
    /// Counters, a row per CPU or per CPU and key.
    pub rows: Rows<T>,
    /// Histogram of a row.
    pub histogram: Field<T, fine_hist>,
    /// True if the first bucket exists before the first event.
    pub from_start: bool,
}

impl<T> FineHistogram<T> {
    /// Fills its columns with the values as of now.
    pub fn read(&self, kernel: &dyn Kernel, table: &mut Table) {
        let (counts, _) = Fine::total(kernel.rows(self.rows).iter().map(|row| row.part(self.histogram)));
        if self.from_start || counts.iter().any(|&count| count > 0) {
            table.log2(self.metric, &Fine::octaves(&counts));
        }
    }
}

/// Adds counters to their sums.
fn add(sums: &mut [u64], counts: impl Iterator<Item = u64>) {
    for (sum, count) in sums.iter_mut().zip(counts) {
        *sum = sum.wrapping_add(count);
    }
}

/// An instance per key (process, disk, name). Rows of the same key are added up.
pub struct PerKey<T: 'static> {
    /// Counters, a row per key, or per key and CPU.
    pub rows: Rows<T>,
    /// Returns the instance name of a row's key; `None` for a row without an owner.
    pub name: fn(Row<'_, T>) -> Option<Vec<u8>>,
    /// Metrics, each with the field that adds up to it.
    pub cells: &'static [(Metric<u64>, Field<T, u64>)],
}

impl<T> PerKey<T> {
    /// Makes the module of which this is all: its table waits for nothing but the names.
    pub fn module(&'static self, spec: &'static Spec, table: &'static TableSpec) -> Box<Declared> {
        Declared::new(spec, move |running| running.alone(table, |kernel, table| self.read(kernel, table)))
    }

    /// Fills its columns with the values as of now.
    pub fn read(&self, kernel: &dyn Kernel, table: &mut Table) {
        let mut sums: BTreeMap<Vec<u8>, Vec<u64>> = BTreeMap::new();
        for row in kernel.rows(self.rows).iter() {
            if let Some(name) = (self.name)(row) {
                // By the name that is served: two keys may come to one.
                let sums = sums.entry(text::into_one_word(name)).or_insert_with(|| vec![0; self.cells.len()]);
                add(sums, self.cells.iter().map(|(_, field)| row.get(*field)));
            }
        }
        for (name, sums) in &sums {
            let cells = table.named(name);
            self.cells.iter().zip(sums).fold(cells, |cells, ((metric, _), &sum)| cells.set(*metric, sum));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::types::{exec_row, fork_row, runq_row};
    use crate::kit::Fake;
    use crate::pcp::Atom;

    const A: Metric<u64> = Metric::new(0);
    const B: Metric<u64> = Metric::new(1);
    const FORKS: Rows<fork_row> = Rows::new("forks");
    const WAITS: Rows<runq_row> = Rows::new("waits");
    const EXECS: Rows<exec_row> = Rows::new("execs");

    #[test]
    fn sums_are_over_rows_and_fields() {
        let fake = Fake::new().with(FORKS, 2);
        fake.set(FORKS, 0, fork_row::processes, 1);
        fake.set(FORKS, 1, fork_row::vforks, 10);
        fake.set(FORKS, 1, fork_row::threads, 100);
        let mut table = Table::new(2);
        let cells: &[(_, &[_])] = &[(A, &[fork_row::processes, fork_row::vforks]), (B, &[fork_row::threads])];
        Sums { rows: FORKS, cells }.read(&fake, &mut table);
        assert_eq!([0, 1].map(|column| table.value(0, column)), [Some(Atom::U64(11)), Some(Atom::U64(100))]);
    }

    #[test]
    fn a_histogram_may_be_there_from_its_first_event_only() {
        let fake = Fake::new().with(WAITS, 2);
        let len = |from_start: bool| {
            let mut table = Table::new(1);
            let histogram = runq_row::waits;
            FineHistogram { metric: A, rows: WAITS, histogram, from_start }.read(&fake, &mut table);
            table.len()
        };
        assert_eq!((len(true), len(false)), (1, 0));
        fake.set(WAITS, 1, runq_row::waits.then(fine_hist::buckets).nth(Fine::bucket(5_000)), 1);
        assert_eq!((len(true), len(false)), (3, 3));
    }

    #[test]
    fn rows_of_one_key_are_one_instance() {
        let fake = Fake::new().with(EXECS, 3);
        for (row, comm) in [(0, b"sh"), (2, b"sh")] {
            fake.row(EXECS, row).set_bytes(exec_row::comm, comm);
            fake.set(EXECS, row, exec_row::count, 4);
        }
        let name = |row: Row<'_, exec_row>| {
            let comm: [u8; 2] = row.bytes(exec_row::comm);
            (comm[0] != 0).then(|| comm.to_vec())
        };
        let mut table = Table::new(1);
        PerKey { rows: EXECS, name, cells: &[(A, exec_row::count)] }.read(&fake, &mut table);
        assert_eq!((table.names(), table.value(0, 0)), (vec!["sh".into()], Some(Atom::U64(8))));
    }

    #[test]
    fn a_key_with_blanks_takes_no_other_keys_name() {
        let fake = Fake::new().with(EXECS, 3);
        let names: [&[u8]; 3] = [b"a_b", b"a b", b"a\\x20b"];
        for (row, comm) in names.into_iter().enumerate() {
            fake.row(EXECS, row).set_bytes(exec_row::comm, comm);
            fake.set(EXECS, row, exec_row::count, 1 << row);
        }
        let name = |row: Row<'_, exec_row>| {
            let comm: [u8; 16] = row.bytes(exec_row::comm);
            Some(comm.into_iter().take_while(|&byte| byte != 0).collect())
        };
        let mut table = Table::new(1);
        PerKey { rows: EXECS, name, cells: &[(A, exec_row::count)] }.read(&fake, &mut table);
        assert_eq!(table.names(), ["a\\x20b", "a_b"]);
        assert_eq!([0, 1].map(|row| table.value(row, 0)), [Some(Atom::U64(6)), Some(Atom::U64(1))]);
    }
}
