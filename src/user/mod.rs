//! Programs of a site's own: a YAML file that declares metrics, with a BPF object beside it, as cloudflare/ebpf_exporter has them.

mod config;
mod decimal;
mod decode;
mod names;
mod series;
mod yaml;

pub use config::{Buckets, Counter, Decoder, Histogram, Label, PairConfig, PairError};
pub use decode::{covered, cut, decode, Undecoded};
pub use names::Names;
pub use series::{CounterSeries, HistogramSeries, Scale, Skipped};
