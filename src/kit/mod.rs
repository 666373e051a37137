//! What a module file imports, and the registry that serves modules to the agent.

mod automaton;
mod cache;
mod claims;
mod elf;
mod errno;
mod filter;
mod help;
mod hits;
mod hook;
mod instances;
mod kernel;
mod libraries;
mod lives;
mod log2;
mod mapped;
mod module;
mod operations;
mod options;
mod pattern;
mod probe_list;
mod processes;
mod registry;
mod returned;
mod source;
mod spec;
mod symbols;
mod table;
mod tracees;
mod tracefs;
mod usdt;
mod voice;
mod ways;

pub use automaton::Automaton;
pub use cache::Cache;
pub use claims::Claims;
pub use elf::{Code, Elf};
pub use errno::Errno;
pub use filter::{Filters, Places};
pub use help::Help;
pub use hits::{Counters, Hits};
pub use hook::{Hook, Sampling, Target, Tier};
pub use kernel::{Attachment, Fake, Kernel, Row, RowsView};
pub use libraries::{library, program_or_library};
pub use lives::Lives;
pub use log2::Log2;
pub use mapped::{mapped, Mapped, ProbeFile, ProbeFiles};
pub use module::{table_size, Host, Module, Plan, RefreshError, Setup, SetupError};
pub use operations::{operation_metric, Operations, OPERATION_SLOTS};
pub use options::{
    unknown, Count, Cpu, Interval, IoColumn, IoOrder, OptionDef, OptionType, OptionValue, Pages, Ports, ProcessFilter,
    RowCount,
};
pub use pattern::{Expression, Pattern};
pub use probe_list::ProbeList;
pub use processes::{cmdline, comm, command_word, exists, in_namespace, until_nul, with_sockets, Process, Watch};
pub use registry::{additions, instances, Collect, Instance, Registry};
pub use returned::ReturnCheck;
pub use source::{Changes, Client, Label, LabelValue, Source, Subject, Wanted};
pub use spec::{MapDef, MapKind, Metric, MetricDef, MetricType, Number, Rows, Shape, Spec, BPF_NAMES};
pub use symbols::{kernel_function, symbols, CodeOf, Symbol};
pub use table::{Key, RowMut, Table};
pub use tracees::{Arrivals, Site, Sites, Tracees};
pub use tracefs::Events;
pub use usdt::{Argument, Place, Probe};
pub use voice::{speaker, speaking_as};
pub use ways::{by_socket, by_thread, ways};
