//! Tables that come and go while the agent runs.

use super::{Controllers, ServedTable, TableError};
use crate::kit::TableId;

/// What came and went of what is served, in this order: first what is gone.
#[derive(Default)]
pub struct Change {
    /// Tables that are gone.
    pub gone: Vec<TableId>,
    /// Tables that have come, each with whether it is served, or why not.
    pub come: Vec<(ServedTable, Result<(), TableError>)>,
    /// Who may change what runs from now on.
    pub controllers: Option<Controllers>,
}

impl Change {
    /// Whether nothing came and nothing went.
    pub fn is_empty(&self) -> bool {
        self.gone.is_empty() && self.come.is_empty() && self.controllers.is_none()
    }
}
