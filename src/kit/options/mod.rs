//! Options of a module's section: parsed, documented and defaulted from one declaration.

mod errno;
mod networks;
mod pattern;
mod probe_list;
mod return_check;
use super::{Window, BPF_NAMES};
use crate::config::{ConfigError, ModuleSettings, Section, Value};
use std::ops::RangeInclusive;
use std::time::Duration;

pub use crate::config::{did_you_mean, Value as OptionValue};
pub use errno::Errno;
pub use networks::{Network, Networks};
pub use pattern::{Expression, Pattern};
pub use probe_list::ProbeList;
pub use return_check::ReturnCheck;

/// An option, for the default configuration, the man page and the check for unknown options.
pub struct OptionDef {
    /// Name.
    pub name: &'static str,
    /// Description of valid values.
    pub expected: &'static str,
    /// Default value as written in the configuration; empty: unset.
    pub default: fn() -> String,
    /// An example value, for options without a default.
    pub example: Option<&'static str>,
    /// Description: the doc comment of the declaration.
    pub doc: &'static str,
}

impl OptionDef {
    /// True unless it is only accepted, since the Python agent had it.
    pub fn has_effect(&self) -> bool {
        !self.doc.trim_start().starts_with("No effect")
    }

    /// True if the default configuration has a line for it: not for what the script bpf-names writes, nor for what has no effect.
    pub fn has_line(&self) -> bool {
        self.name != BPF_NAMES && self.has_effect()
    }

    /// Returns a value for a sample line: the example, else the default.
    pub fn sample(&self) -> String {
        self.example.map_or_else(self.default, String::from)
    }
}

/// A type an option's value can have.
pub trait OptionType: Sized {
    /// Description of valid values: the end of a sentence that begins "expected".
    const EXPECTED: &'static str;
    /// Reads a value; the error names file, line, section and option.
    fn read(value: &Value<'_>) -> Result<Self, ConfigError>;
    /// Returns the value as written in the configuration.
    fn show(&self) -> String;
}

impl OptionType for bool {
    const EXPECTED: &'static str = "a boolean";
    fn read(value: &Value<'_>) -> Result<Self, ConfigError> {
        value.bool()
    }
    fn show(&self) -> String {
        if *self { "True" } else { "False" }.into()
    }
}

/// A number of rows of a row table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowCount(pub u32);

impl RowCount {
    /// Highest number of rows: more than any client shows; each costs memory in every archive.
    pub const MOST: u32 = 10_000;
    const RANGE: RangeInclusive<u32> = 0..=RowCount::MOST;

    /// Reads a value like [`OptionType::read`], for callers besides the module: too high a value is not logged again.
    pub(crate) fn nearest(value: &Value<'_>) -> Result<u32, ConfigError> {
        value.nearest(&RowCount::RANGE)
    }
}

impl OptionType for RowCount {
    const EXPECTED: &'static str = "a number of rows from 0 to 10000";
    fn read(value: &Value<'_>) -> Result<Self, ConfigError> {
        value.clamped(RowCount::RANGE).map(RowCount)
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
}

/// Interval after which a table of the events "in the last interval" is cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interval {
    /// Seconds.
    Seconds(u32),
    /// The time between two fetches.
    AtFetch,
    /// Disabled: the table stays empty.
    Never,
}

impl OptionType for Interval {
    const EXPECTED: &'static str = "a number of seconds, 0 for each fetch, or a negative number for never";
    fn read(value: &Value<'_>) -> Result<Self, ConfigError> {
        Ok(match value.clamped(i32::MIN..=i32::MAX)? {
            0 => Interval::AtFetch,
            seconds => u32::try_from(seconds).map_or(Interval::Never, Interval::Seconds),
        })
    }
    fn show(&self) -> String {
        match self {
            Interval::Seconds(seconds) => seconds.to_string(),
            Interval::AtFetch => "0".into(),
            Interval::Never => "-1".into(),
        }
    }
}

/// Column by which rows of block I/O are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoColumn {
    /// Bytes.
    Bytes,
    /// Requests.
    Io,
    /// Average time.
    Duration,
    /// Direction: reads are less than writes.
    Rw,
}

/// Order of rows of block I/O: a column, descending with `-` before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoOrder {
    /// Column.
    pub by: IoColumn,
    /// True for highest first.
    pub descending: bool,
}

impl IoOrder {
    const COLUMNS: [(&'static str, IoColumn); 4] =
        [("bytes", IoColumn::Bytes), ("io", IoColumn::Io), ("duration", IoColumn::Duration), ("rw", IoColumn::Rw)];
}

impl OptionType for IoOrder {
    const EXPECTED: &'static str = "`bytes`, `io`, `duration` or `rw`, with `-` before it for the highest first";
    fn read(value: &Value<'_>) -> Result<Self, ConfigError> {
        let text = value.text().trim();
        let (descending, column) = text.strip_prefix('-').map_or((false, text), |column| (true, column));
        let known = IoOrder::COLUMNS.iter().find(|(name, _)| *name == column);
        known.map(|&(_, by)| IoOrder { by, descending }).ok_or_else(|| value.error(Self::EXPECTED))
    }
    fn show(&self) -> String {
        let name = IoOrder::COLUMNS.iter().find(|(_, by)| *by == self.by).map_or("", |(name, _)| name);
        format!("{}{name}", if self.descending { "-" } else { "" })
    }
}

/// Length of a window in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seconds(pub u32);

impl Seconds {
    /// Returns the window.
    pub fn window(self) -> Window {
        Window(Duration::from_secs(self.0.into()))
    }
}

impl OptionType for Seconds {
    const EXPECTED: &'static str = "a number of seconds from 10 to 3600";
    fn read(value: &Value<'_>) -> Result<Self, ConfigError> {
        value.clamped(10..=3600).map(Seconds)
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
}

/// Buckets of a log-linear histogram to serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Buckets {
    /// Powers of two.
    #[default]
    Log2,
    /// Four to each power of two.
    Quarters,
    /// All buckets.
    Fine,
}

impl OptionType for Buckets {
    const EXPECTED: &'static str = "`log2`, `quarters` or `fine`";
    fn read(value: &Value<'_>) -> Result<Self, ConfigError> {
        match value.text().trim() {
            "log2" => Ok(Buckets::Log2),
            "quarters" => Ok(Buckets::Quarters),
            "fine" => Ok(Buckets::Fine),
            _ => Err(value.error(Self::EXPECTED)),
        }
    }
    fn show(&self) -> String {
        match self {
            Buckets::Log2 => "log2".into(),
            Buckets::Quarters => "quarters".into(),
            Buckets::Fine => "fine".into(),
        }
    }
}

/// Highest number of cgroups with counters of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupCount(pub u32);

impl CgroupCount {
    /// Returns the number of places for cgroups, a power of two.
    pub fn places(self) -> usize {
        self.0.next_power_of_two() as usize
    }
}

impl OptionType for CgroupCount {
    const EXPECTED: &'static str = "a number of cgroups from 1 to 65536";
    fn read(value: &Value<'_>) -> Result<Self, ConfigError> {
        value.clamped(1..=65536).map(CgroupCount)
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
}

/// A whole number from 0 up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub u64);

impl OptionType for Count {
    const EXPECTED: &'static str = "a whole number from 0 to 1000000000";
    fn read(value: &Value<'_>) -> Result<Self, ConfigError> {
        value.clamped(0..=1_000_000_000).map(Count)
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
}

impl OptionType for String {
    const EXPECTED: &'static str = "text";
    fn read(value: &Value<'_>) -> Result<Self, ConfigError> {
        Ok(value.text().trim().into())
    }
    fn show(&self) -> String {
        self.clone()
    }
}

/// A CPU, or all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu(pub Option<u32>);

impl OptionType for Cpu {
    const EXPECTED: &'static str = "the number of a CPU, or -1 for all";
    fn read(value: &Value<'_>) -> Result<Self, ConfigError> {
        value.int_in(-1..=i64::from(u16::MAX)).map(|cpu| Cpu(u32::try_from(cpu).ok()))
    }
    fn show(&self) -> String {
        self.0.map_or("-1".into(), |cpu| cpu.to_string())
    }
}

/// A user, or all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User(pub Option<u32>);

impl OptionType for User {
    const EXPECTED: &'static str = "the number of a user, or -1 for all";
    fn read(value: &Value<'_>) -> Result<Self, ConfigError> {
        value.int_in(-1..=i64::from(u32::MAX - 1)).map(|user| User(u32::try_from(user).ok()))
    }
    fn show(&self) -> String {
        self.0.map_or("-1".into(), |user| user.to_string())
    }
}

/// Size of a ring buffer in pages of 4096 bytes, a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages(pub u32);

impl Pages {
    /// Largest size, 16 MiB: enough for more than a minute of any burst.
    const MOST: u32 = 4096;

    /// Returns the size in bytes.
    pub fn bytes(self) -> usize {
        self.0 as usize * 4096
    }
}

impl OptionType for Pages {
    const EXPECTED: &'static str = "a power of two from 1 to 4096";
    fn read(value: &Value<'_>) -> Result<Self, ConfigError> {
        let pages = value.clamped(1..=Pages::MOST)?;
        let rounded = pages.next_power_of_two();
        if rounded != pages {
            value.warn(format_args!("{pages} is no power of two; it counts as {rounded}"));
        }
        Ok(Pages(rounded))
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
}

/// A list of ports; empty means all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports(pub Vec<u16>);

impl Ports {
    /// True if the list contains the port or is empty.
    pub fn wants(&self, port: u16) -> bool {
        self.0.is_empty() || self.0.contains(&port)
    }
}

impl OptionType for Ports {
    const EXPECTED: &'static str = "ports from 0 to 65535 separated by commas";
    fn read(value: &Value<'_>) -> Result<Self, ConfigError> {
        let ports: Result<Vec<u16>, _> = value.list().iter().map(|port| port.parse()).collect();
        ports.map(Ports).map_err(|_| value.error(Ports::EXPECTED))
    }
    fn show(&self) -> String {
        self.0.iter().map(u16::to_string).collect::<Vec<_>>().join(",")
    }
}

/// Longest command name in bytes: the kernel cuts longer ones (`TASK_COMM_LEN`), so a longer entry is not a name.
const COMM: usize = 15;

/// True if an entry is a single plain word, which can be a command name.
fn is_name(text: &str) -> bool {
    text.len() <= COMM && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
}

/// A filter for processes: each entry is a process id, an exact command name, or a regular expression that has to match
/// the whole command line. Empty means all.
#[derive(Clone, Debug, Default)]
pub struct ProcessFilter {
    entries: Vec<(String, Option<Expression>)>,
}

impl ProcessFilter {
    /// Makes a filter for this command name, which is alphanumeric.
    pub fn named(comm: &str) -> ProcessFilter {
        ProcessFilter { entries: vec![(comm.into(), None)] }
    }

    /// True if it selects all processes.
    pub fn is_all(&self) -> bool {
        self.entries.is_empty()
    }

    /// True if it selects this process. `cmdline` is its arguments joined with single blanks; `(comm)` for a kernel
    /// thread.
    pub fn wants(&self, pid: u32, comm: &[u8], cmdline: &[u8]) -> bool {
        self.has_name(comm) || self.has_id(pid) || self.has_line(cmdline)
    }

    /// True if an entry is this command name.
    pub fn has_name(&self, comm: &[u8]) -> bool {
        self.entries.iter().any(|(literal, _)| literal.as_bytes() == comm)
    }

    /// True if an entry is this process id.
    pub fn has_id(&self, pid: u32) -> bool {
        self.entries.iter().any(|(literal, _)| literal.parse() == Ok(pid))
    }

    /// True if an entry matches this command line.
    pub fn has_line(&self, cmdline: &[u8]) -> bool {
        self.entries.iter().filter_map(|(_, regex)| regex.as_ref()).any(|regex| regex.matches(cmdline))
    }

    /// Iterates over entries that are short enough for a command name.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.entries.iter().map(|(literal, _)| literal.as_bytes()).filter(|literal| literal.len() <= COMM)
    }

    /// True if it can match future processes: it has a command name or an expression, not only ids.
    pub fn means_new(&self) -> bool {
        self.entries.iter().any(|(text, _)| text.parse::<u32>().is_err())
    }

    /// Iterates over the expressions to match with command lines of new processes. Plain words are left out: a process
    /// whose whole command line is that word also has it as its name.
    pub fn expressions(&self) -> impl Iterator<Item = &Expression> {
        self.entries.iter().filter(|(text, _)| !is_name(text)).filter_map(|(_, regex)| regex.as_ref())
    }
}

impl OptionType for ProcessFilter {
    const EXPECTED: &'static str =
        "process ids, command names or regular expressions for whole command lines, separated by commas";
    fn read(value: &Value<'_>) -> Result<Self, ConfigError> {
        let entry = |entry: &str| -> Result<_, ConfigError> {
            // A purely alphanumeric entry is never an expression: `java` must not match every command line that is `java`.
            let regex = if entry.chars().all(char::is_alphanumeric) {
                None
            } else {
                // Alternatives are anchored as written, without parentheses, as the Python agent did: `a|b` is "starts with
                // a, or ends with b".
                Some(Expression::read(value, &format!("^{entry}$"))?)
            };
            Ok((entry.to_string(), regex))
        };
        let mut list = value.list();
        let written = list.len();
        list.retain(|entry| !entry.is_empty());
        if list.len() < written {
            let all = if list.is_empty() { ": all processes are meant" } else { "" };
            value.warn(format_args!("there is nothing between commas or behind the last: left out{all}"));
        }
        let entries: Result<Vec<_>, _> = list.into_iter().map(entry).collect();
        Ok(ProcessFilter { entries: entries? })
    }
    fn show(&self) -> String {
        self.entries.iter().map(|(text, _)| text.as_str()).collect::<Vec<_>>().join(",")
    }
}

/// Returns options of a section that the module does not have. They are only a warning, since the configuration may be
/// for an older or newer agent.
pub fn unknown<'a>(section: &Section<'a>, options: &[OptionDef]) -> Vec<&'a str> {
    let is_known = |key: &str| ModuleSettings::KEYS.contains(&key) || options.iter().any(|option| option.name == key);
    section.keys().filter(|key| !is_known(key)).collect()
}

/// Declares a module's options: `Options`, which reads itself from a section, and `OPTIONS`. The doc comment is the
/// text of the default configuration and of the man page. An option that must be given has an example instead of a
/// default. The option `process`, which most modules have, is declared by its name alone, and first; `bpf_names` so, and last. The
/// word `histograms` declares `window`, `buckets` and `prometheus`.
///
/// ```text
/// options! {
///     process;
///     /// Include the time a request was queued in the operating system.
///     queued: bool = false;
///     /// The kernel functions.
///     kprobes: ProbeList = ProbeList::default(), for example "kprobe:vfs_open";
/// }
/// ```
#[macro_export]
macro_rules! options {
    (process; $($others:tt)*) => {
        $crate::options! {
            /// Only these processes count.
            process: $crate::kit::ProcessFilter = $crate::kit::ProcessFilter::default();
            $($others)*
        }
    };
    ($($(#[doc = $doc:expr])+ $name:ident: $ty:ty = $default:expr $(, for example $example:literal)?;)* histograms; $($others:tt)*) => {
        $crate::options! {
            $($(#[doc = $doc])+ $name: $ty = $default $(, for example $example)?;)*
            /// Seconds that quantiles, the metrics p50 to max of a histogram, cover. They move on by a twelfth of it.
            window: $crate::kit::Seconds = $crate::kit::Seconds(60);
            /// Instances of the metrics bucket: powers of two, four times as many, or all buckets that the programs count, 16 times as many.
            buckets: $crate::kit::Buckets = $crate::kit::Buckets::Log2;
            /// Serve histograms as Prometheus has them too: the metrics seconds_bucket (with the label le), seconds_sum and seconds_count.
            prometheus: bool = false;
            $($others)*
        }
    };
    ($($(#[doc = $doc:expr])+ $name:ident: $ty:ty = $default:expr;)* bpf_names;) => {
        $crate::options! {
            $($(#[doc = $doc])+ $name: $ty = $default;)*
            /// Also export the metrics under pmdabpf's names, below bpf., for clients of PCP 6.2 and later. The script bpf-names sets it and tells pmcd.
            bpf_names: bool = false;
        }
    };
    ($($(#[doc = $doc:expr])+ $name:ident: $ty:ty = $default:expr $(, for example $example:literal)?;)*) => {
        #[derive(Debug)]
        struct Options {
            $($(#[doc = $doc])+ $name: $ty,)*
        }

        impl Default for Options {
            fn default() -> Options {
                Options { $($name: $default,)* }
            }
        }

        impl Options {
            fn read(section: &$crate::config::Section<'_>) -> Result<Options, $crate::config::ConfigError> {
                #[allow(unused_mut)]
                let (mut options, mut errors) = (Options::default(), $crate::config::Errors::default());
                $(
                    let value = errors.take($crate::options!(@get section, $name $(, $example)?)).flatten();
                    if let Some((value, read)) = value.and_then(|value| {
                        let read = errors.take(<$ty as $crate::kit::OptionType>::read(&value))?;
                        Some((value, read))
                    }) {
                        value.note_comment();
                        options.$name = read;
                    }
                )*
                errors.end().map(|()| options)
            }
        }

        const OPTIONS: &[$crate::kit::OptionDef] = &[$($crate::kit::OptionDef {
            name: stringify!($name),
            expected: <$ty as $crate::kit::OptionType>::EXPECTED,
            default: || $crate::kit::OptionType::show(&Options::default().$name),
            example: $crate::options!(@example $($example)?),
            doc: concat!($($doc, "\n"),+),
        },)*];
    };
    (@get $section:ident, $name:ident) => { $section.get(stringify!($name)) };
    (@get $section:ident, $name:ident, $example:literal) => {
        $section.require(stringify!($name), $example).map(Some)
    };
    (@example) => { None };
    (@example $example:literal) => { Some($example) };
}
