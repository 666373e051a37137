//! Tables that are added and removed while the agent runs.

use super::{Controllers, ServedTable, TableError};
use crate::kit::TableId;

/// Changes of what is served. What is removed comes first: a table may be removed and added again.
#[derive(Default)]
pub struct Change {
    /// Tables that are no longer served.
    pub removed: Vec<TableId>,
    /// Tables that are served from now on, each with the reason if it has no values.
    pub added: Vec<(ServedTable, Result<(), TableError>)>,
    /// New users and groups that may give orders, if these have changed.
    pub controllers: Option<Controllers>,
}

impl Change {
    /// True if there are no changes.
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.added.is_empty() && self.controllers.is_none()
    }
}
