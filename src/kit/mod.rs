//! Everything that a module file imports: declarations, the table it fills, and its view of the kernel.

mod arguments;
mod declared;
mod fine;
mod histogram;
mod histogram_table;
mod hook;
mod kernel;
mod labels;
mod layout;
mod log;
mod map;
mod metric;
mod module;
mod need;
mod options;
mod owned_table;
mod readings;
mod running;
mod secret;
mod series_histograms;
mod set_table;
mod spec;
mod table;
mod table_spec;
mod text;
mod window;

pub use arguments::{in_log, show_arguments};
pub use declared::Declared;
pub use fine::Fine;
use fine::{FineCounts, ServedBucket};
pub use histogram::Log2;
use histogram_table::set_counts;
pub use histogram_table::{
    histogram_metric, series_metric, set_buckets, HistogramDef, Kept, WindowClock, SERIES_METRICS,
};
pub use hook::{Hook, Sampling, Target, Tier, NEEDS_BTF};
pub use kernel::{Attachment, Fake, Kernel, KernelError, ObjectKind, OwnRow, PinnedObject, Row, RowsView};
pub use labels::{SeriesLabel, SeriesLabels};
pub use layout::Layout;
pub use log::{current_section, excerpt, with_section, EveryMinute};
pub use map::{joined, MapDef, MapKind, Rows, KEYS};
pub use metric::{Metric, MetricDef, MetricType, Number, BPF_NAMES};
pub use module::{table_size, Arrival, Arrivals, Host, Module, Plan, Setup, SetupError, When};
pub use need::Need;
pub use options::{
    did_you_mean, unknown, Buckets, CgroupCount, Count, Cpu, Errno, Expression, Interval, IoColumn, IoOrder, Network,
    Networks, OptionDef, OptionType, OptionValue, Pages, Pattern, Ports, ProbeList, ProcessFilter, ReturnCheck,
    RowCount, Seconds, User,
};
pub use owned_table::OwnedTable;
pub use readings::{FineHistogram, PerKey, Sums};
pub use running::{loss_words, EachLoss, PairStatus, RefreshError, Running, ScriptState, Starting, State};
pub use secret::{keep_secret, secret, Secret};
pub use series_histograms::{NamedHistograms, NamedSeries, Namer, SeriesDef, SeriesHistograms, SeriesRows};
pub use set_table::{by_socket, by_thread, plan_set_table};
pub use spec::{Overhead, OverheadClass, Spec};
pub use table::{Key, RowMut, Table};
pub use table_spec::{HistogramTables, RowOrder, Shape, TableId, TableSpec};
pub use text::{capitalized, escaped, into_one_word, is_control, one_word, word, wrapped, written_out, Name};
use window::Windowed;
pub use window::{Highest, Window, QUANTILES};
