//! Programs of a site's own: a YAML file that declares metrics, with a BPF object beside it, in the format of
//! cloudflare/ebpf_exporter.

mod cgroup_map;
mod config;
mod decimal;
mod decode;
mod directory;
mod events;
mod kaddrs;
mod module;
mod names;
mod pairs;
mod quantiles;
mod reader;
mod rows;
mod series;
mod tables;
mod watch;
mod words;
mod yaml;

pub use crate::loader::PairOptions;
pub use config::{Buckets, CgroupMap, CountedEvents, Counter, Decoder, Histogram, Label, PairConfig, PairError};
pub use decode::{covered, cut, decode, Undecoded};
pub use directory::{read_directory, read_file, read_pairs, read_trusted, PairFiles};
pub use module::PairModule;
pub use names::{Names, Pci};
pub use pairs::{is_right, pair_alone, pairs_of, section_beside, section_of, PAIR};
pub use series::{CounterSeries, HistogramSeries, Scale, Served};
pub use tables::{kept, leak, word};
pub use watch::{Changed, Watch};
