//! What a module file imports, and the registry that serves modules to the agent.

mod cache;
mod errno;
mod help;
mod hook;
mod instances;
mod kernel;
mod log2;
mod module;
mod options;
mod pattern;
mod processes;
mod registry;
mod source;
mod spec;
mod table;

pub use cache::Cache;
pub use errno::Errno;
pub use help::Help;
pub use hook::{Hook, Sampling, Tier};
pub use kernel::{Fake, Kernel, Row, RowsView};
pub use log2::Log2;
pub use module::{table_size, Host, Module, Plan, RefreshError, Setup, SetupError};
pub use options::{
    unknown, Count, Cpu, Interval, IoColumn, IoOrder, OptionDef, OptionType, Pages, Ports, ProcessFilter, RowCount,
};
pub use pattern::Pattern;
pub use processes::{cmdline, comm, exists, until_nul, with_sockets, Watch};
pub use registry::{instances, Collect, Instance, Registry};
pub use source::{Changes, Client, Label, LabelValue, Source, Subject, Wanted};
pub use spec::{MapDef, MapKind, Metric, MetricDef, MetricType, Number, Rows, Shape, Spec};
pub use table::{Key, RowMut, Table};
