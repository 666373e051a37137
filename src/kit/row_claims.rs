//! The agent's part in tables whose rows are claimed by programs (bpf/shared/claim.bpf.h).

use super::{Row, RowsView};
use crate::bpf::Field;

/// A row with its index.
type Place<'a, T> = (usize, Row<'a, T>);

/// Rows that were claimed but not filled in at the last look.
pub struct RowClaims<T> {
    /// Field of a row that counts the claims.
    claims: Field<T, u64>,
    left: Vec<usize>,
}

impl<T> RowClaims<T> {
    /// Makes it before the first look.
    pub fn new(claims: Field<T, u64>) -> Self {
        RowClaims { claims, left: Vec::new() }
    }

    /// Frees contested rows; to be called at each tick. Two programs that claim a row at the same time both give it up.
    /// It is freed at the second call that finds it empty, since at the first one a program may still be filling it in.
    pub fn release_contested(&mut self, rows: RowsView<'_, T>, is_empty: impl Fn(Row<'_, T>) -> bool) {
        self.release_contested_of(rows.iter().enumerate(), is_empty);
    }

    /// Frees contested rows among those known to be claimed, see [`RowClaims::release_contested`].
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
