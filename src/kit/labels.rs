//! Labels of instances: what is known of a series besides its name.

/// The value of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeriesLabel {
    /// Text without control characters.
    Text(String),
    /// A whole number.
    Number(i64),
    /// Yes or no.
    Flag(bool),
}

/// The labels of a series, each with its name.
pub type SeriesLabels = Vec<(&'static str, SeriesLabel)>;
