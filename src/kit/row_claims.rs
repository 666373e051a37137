//! The agent's part in tables whose rows the programs claim (bpf/shared/claim.bpf.h).

use super::{Row, RowsView};
use crate::bpf::Field;

/// Rows that nobody filled in at the last look although somebody claimed them.
pub struct RowClaims<T> {
    /// The field of a row that counts the claims.
    claims: Field<T, u64>,
    left: Vec<usize>,
}

impl<T> RowClaims<T> {
    /// No look yet.
    pub fn new(claims: Field<T, u64>) -> Self {
        RowClaims { claims, left: Vec::new() }
    }

    /// To be called at each tick. Two that claimed a row at the same time both left it: it is freed, unless one is just filling
    /// it in, which is known at the next call.
    pub fn release_contested(&mut self, rows: RowsView<'_, T>, is_empty: impl Fn(Row<'_, T>) -> bool) {
        let is_left = |row: Row<'_, T>| row.get(self.claims) > 1 && is_empty(row);
        let now: Vec<usize> =
            rows.iter().enumerate().filter(|(_, row)| is_left(*row)).map(|(place, _)| place).collect();
        for row in now.iter().filter(|place| self.left.contains(place)).filter_map(|&place| rows.get(place)) {
            row.set(self.claims, 0);
        }
        self.left = now;
    }
}
