//! Rows of owned tables (bpf/shared/owned.bpf.h) that belong to processes: they are released some time after those ended.

use crate::bpf::Field;
use crate::kit::{OwnedTable, Row, RowsView};
use std::collections::BTreeMap;

/// Ticks (seconds) for which an ended process keeps its counts, more than the usual interval between two fetches.
pub const GRACE: u64 = 60;
/// Ticks for which an ended process keeps its counts while the table is crowded, so that all modules that share it see the last
/// counts.
const SHORT_GRACE: u64 = 2;
/// Number of ticks after which each process is checked again.
pub const TURNS: usize = 8;

/// A table whose rows belong to processes.
pub struct RowsOfProcesses<T> {
    /// Returns true if there is a process with this identifier.
    pub exists: fn(u32) -> bool,
    key: Field<T, u64>,
    claims: OwnedTable<T>,
    /// Rows whose process has ended: by place, the key with the tick at which that was found.
    ended: BTreeMap<usize, (u64, u64)>,
    ticks: u64,
    crowded: u64,
}

impl<T> RowsOfProcesses<T> {
    /// Makes it before the first tick, for rows with these fields.
    pub fn new(key: Field<T, u64>, claims: Field<T, u64>, exists: fn(u32) -> bool) -> Self {
        let claims = OwnedTable::new(key, claims);
        RowsOfProcesses { exists, key, claims, ended: BTreeMap::new(), ticks: 0, crowded: 0 }
    }

    /// Releases a row that no program finds or counts in any more.
    pub fn release(&mut self, place: usize, row: Row<'_, T>) {
        self.ended.remove(&place);
        self.claims.release(row);
    }

    /// Releases the rows of processes that ended some time ago, sooner if the number of events that found no row has grown. To be
    /// called once a second. `processes` returns those of a row; 0: none.
    pub fn tick<const N: usize>(
        &mut self,
        rows: RowsView<'_, T>,
        crowded: u64,
        processes: impl Fn(Row<'_, T>) -> [u32; N],
    ) {
        self.ticks += 1;
        let now = self.ticks;
        let hurry = std::mem::replace(&mut self.crowded, crowded) < crowded;
        let grace = if hurry { SHORT_GRACE } else { GRACE };
        self.claims.release_contested(rows.iter().enumerate());
        for (place, row) in rows.iter().enumerate() {
            let key @ 1.. = row.get(self.key) else { continue };
            if hurry || place % TURNS == now as usize % TURNS {
                if processes(row).into_iter().all(|pid| pid == 0 || (self.exists)(pid)) {
                    self.ended.remove(&place);
                } else if self.ended.get(&place).is_none_or(|(ended, _)| *ended != key) {
                    self.ended.insert(place, (key, now));
                }
            }
            if self.ended.get(&place).is_some_and(|&(ended, since)| ended == key && now - since >= grace) {
                self.release(place, row);
            }
        }
    }
}
