//! Labels of instances: facts about a series besides its name.

/// Value of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeriesLabel {
    /// Text without control characters.
    Text(String),
    /// Integer.
    Number(i64),
    /// Boolean.
    Flag(bool),
}

/// Labels of a series by name.
pub type SeriesLabels = Vec<(&'static str, SeriesLabel)>;
