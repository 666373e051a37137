//! What the command line and the configuration say of all pairs.

use super::held;
use std::path::PathBuf;
use std::sync::Mutex;

/// What holds for every pair that is loaded from now on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PairOptions {
    /// `--btf`: the types of the kernel, where it has none itself.
    pub btf: Option<PathBuf>,
    /// `allow_helpers`: helpers that change processes and may be called all the same.
    pub allow_helpers: Vec<String>,
}

static OPTIONS: Mutex<PairOptions> = Mutex::new(PairOptions { btf: None, allow_helpers: Vec::new() });

/// Sets the options: at the start, and when the configuration is read again.
pub fn set_pair_options(options: PairOptions) {
    *held(&OPTIONS) = options;
}

/// The options as they are now.
pub fn pair_options() -> PairOptions {
    held(&OPTIONS).clone()
}
