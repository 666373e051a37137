//! Options of the command line and the configuration that apply to all pairs.

use super::held;
use std::path::PathBuf;
use std::sync::Mutex;

/// Options for every pair that is loaded from now on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PairOptions {
    /// `--btf`: file with the types of the kernel, for kernels without BTF.
    pub btf: Option<PathBuf>,
    /// `allow_helpers`: helpers that change processes but may be called.
    pub allow_helpers: Vec<String>,
}

static OPTIONS: Mutex<PairOptions> = Mutex::new(PairOptions { btf: None, allow_helpers: Vec::new() });

/// Sets the options: at the start, and when the configuration is read again.
pub fn set_pair_options(options: PairOptions) {
    *held(&OPTIONS) = options;
}

/// Returns the current options.
pub fn pair_options() -> PairOptions {
    held(&OPTIONS).clone()
}
