//! Options of the command line and the configuration that apply to all pairs.

use std::path::PathBuf;

/// Options for the pairs that are loaded together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PairOptions {
    /// `--btf`: file with the types of the kernel, for kernels without BTF.
    pub btf: Option<PathBuf>,
    /// `allow_helpers`: helpers that change processes but may be called.
    pub allow_helpers: Vec<String>,
}
