//! Programs of a site's own: a YAML file that declares metrics, with a BPF object beside it, as cloudflare/ebpf_exporter has them.

mod config;
mod decimal;
mod decode;
mod directory;
mod module;
mod names;
mod pairs;
mod series;
mod tables;
mod watch;
mod yaml;

pub use config::{Buckets, Counter, Decoder, Histogram, Label, PairConfig, PairError};
pub use decode::{covered, cut, decode, Undecoded};
pub use directory::{read_directory, read_file, read_pairs, read_trusted, PairFiles};
pub use module::PairModule;
pub use names::{Names, Pci};
pub use pairs::{pair_alone, pairs_of, section_of, CLUSTERS, PAIR};
pub use series::{CounterSeries, HistogramSeries, Scale};
pub use tables::{leak, word};
pub use watch::{Changed, Watch};
