//! The agent's part in tables whose rows the programs claim (bpf/shared/claim.bpf.h).

use super::{Row, RowsView};
use crate::bpf::Field;

/// A row with its number.
type Place<'a, T> = (usize, Row<'a, T>);

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
        self.release_contested_of(rows.iter().enumerate(), is_empty);
    }

    /// As [`RowClaims::release_contested`], where the rows that somebody claimed are known.
    pub fn release_contested_of<'a>(
        &mut self,
        claimed: impl Iterator<Item = Place<'a, T>>,
        is_empty: impl Fn(Row<'_, T>) -> bool,
    ) where
        T: 'a,
    {
        let is_left = |row: Row<'_, T>| row.get(self.claims) > 1 && is_empty(row);
        let now: Vec<Place<'a, T>> = claimed.filter(|(_, row)| is_left(*row)).collect();
        for (_, row) in now.iter().filter(|(place, _)| self.left.contains(place)) {
            row.set(self.claims, 0);
        }
        self.left = now.into_iter().map(|(place, _)| place).collect();
    }
}
