//! Tables that come and go while the agent runs.

use super::{Controllers, ServedTable, TableError};
use crate::kit::TableId;

/// Changes of what is served. `gone` comes first: a table may come back in `come`.
#[derive(Default)]
pub struct Change {
    /// Tables that are no longer served.
    pub gone: Vec<TableId>,
    /// Tables that are served from now on, each with the reason if it has no values.
    pub come: Vec<(ServedTable, Result<(), TableError>)>,
    /// New users and groups that may give orders, if these have changed.
    pub controllers: Option<Controllers>,
}

impl Change {
    /// True if there are no changes.
    pub fn is_empty(&self) -> bool {
        self.gone.is_empty() && self.come.is_empty() && self.controllers.is_none()
    }
}
