//! What a pair's YAML declares, checked as a whole: everything wrong is told with file, line and path. Keys that are not known are
//! ignored, as ebpf_exporter does.

use super::decimal::Decimal;
use super::words::{duration, UNITS};
use super::yaml::{parse, Node, Value};
use crate::config::did_you_mean;
use crate::pcp::{Sem, Units};
use regex::bytes::{Regex, RegexBuilder};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;
use thiserror::Error;

/// What is wrong in a file.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{file}: {place}: {reason}")]
pub struct PairError {
    /// The file.
    pub file: String,
    /// The line and the path of the value: `line 7: metrics.counters[0].name`; or the map or program.
    pub place: String,
    /// What was expected, and what there is.
    pub reason: String,
}

/// A pair's metrics.
#[derive(Debug, Default)]
pub struct PairConfig {
    /// The counters.
    pub counters: Vec<Counter>,
    /// The histograms.
    pub histograms: Vec<Histogram>,
    /// Kernel symbols whose addresses the programs want.
    pub kaddrs: Vec<String>,
    /// The map of the cgroups that have a matching path.
    pub cgroup_map: Option<CgroupMap>,
    /// The cgroup that `cgroup_skb` programs are attached to.
    pub cgroup: Option<String>,
    /// Whether the maps of its metrics are to outlive the agent.
    pub pin: bool,
    /// What the file asks for and is not done, a sentence each.
    pub notes: Vec<PairError>,
}

/// A counter, which is a map.
#[derive(Debug)]
pub struct Counter {
    /// Its name and the map's.
    pub name: String,
    /// One line of help.
    pub help: String,
    /// The parts of the key.
    pub labels: Vec<Label>,
    /// Of events that programs send by the map, how they are counted; none: values are in the map.
    pub events: Option<CountedEvents>,
    /// What its values are.
    pub semantics: Sem,
    /// Its units, if its name does not tell them.
    pub units: Option<Units>,
    /// Instances that are served.
    pub max_instances: usize,
    /// Where it is in the file.
    pub place: String,
}

/// How events are counted (`perf_event_array: true`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedEvents {
    /// Series without an event for so long are forgotten (`flush_interval`).
    pub forget_after: Duration,
    /// Bytes of the buffer of each CPU (`buffer_size`).
    pub buffer: usize,
}

/// A map that the agent fills: which cgroups have a path that one of the expressions matches.
#[derive(Debug)]
pub struct CgroupMap {
    /// Its name.
    pub name: String,
    /// It is a storage of cgroups, whose keys are descriptors; else a hash, whose keys are identifiers.
    pub is_storage: bool,
    /// The expressions.
    pub regexps: Vec<Regex>,
    /// Where it is in the file.
    pub place: String,
}

/// A histogram, which is a map.
#[derive(Debug)]
pub struct Histogram {
    /// Its name and the map's.
    pub name: String,
    /// One line of help.
    pub help: String,
    /// The parts of the key, without the bucket.
    pub labels: Vec<Label>,
    /// The part of the key that is the bucket.
    pub bucket: Label,
    /// The buckets.
    pub buckets: Buckets,
    /// What bounds and the sum are multiplied with.
    pub multiplier: Decimal,
    /// The units of bounds and the sum, if its name does not tell them.
    pub units: Option<Units>,
    /// Instances that are served, of series and of buckets each.
    pub max_instances: usize,
    /// The window whose quantiles are served.
    pub quantiles: Option<Duration>,
    /// Where it is in the file.
    pub place: String,
}

/// Which keys are buckets, and their bounds.
#[derive(Clone, Debug, PartialEq)]
pub enum Buckets {
    /// Key k ends at 2^k.
    Exp2(u64, u64),
    /// Key 0 is 0; others end at 2^(k-1).
    Exp2Zero(u64, u64),
    /// Key k ends at k.
    Linear(u64, u64),
    /// These keys end at themselves.
    Fixed(Vec<Decimal>),
}

/// A part of a key.
#[derive(Debug)]
pub struct Label {
    /// Its name.
    pub name: String,
    /// Bytes.
    pub size: usize,
    /// Bytes to skip after them.
    pub padding: usize,
    /// What makes text of it.
    pub decoders: Vec<Decoder>,
}

/// A step from bytes to text.
#[allow(missing_docs)]
#[derive(Debug)]
pub enum Decoder {
    Cgroup,
    Dname,
    Errno,
    Hex,
    Ifname,
    InetIp,
    Ksym,
    Kstack,
    MajorMinor,
    PciClass,
    PciDevice,
    PciSubclass,
    PciVendor,
    Regexp(Vec<Regex>),
    StaticMap { map: HashMap<String, String>, allow_unknown: bool },
    String,
    Syscall,
    Uint,
}

const DECODERS: [&str; 18] = [
    "cgroup",
    "dname",
    "errno",
    "hex",
    "ifname",
    "inet_ip",
    "ksym",
    "kstack",
    "majorminor",
    "pci_class",
    "pci_device",
    "pci_subclass",
    "pci_vendor",
    "regexp",
    "static_map",
    "string",
    "syscall",
    "uint",
];

const BUCKET_TYPES: [&str; 4] = ["exp2", "exp2zero", "linear", "fixed"];

/// The largest key that the kernel can have (`KMALLOC_MAX_SIZE` is more; no map of anybody's comes near it).
const MAX_KEY: u64 = 4096;
/// Metrics of a pair, labels of a metric, decoders of a label, and expressions of a pair.
const MAX_METRICS: usize = 256;
const MAX_LABELS: usize = 64;
const MAX_DECODERS: usize = 16;
const MAX_EXPRESSIONS: usize = 256;
/// Kernel symbols of a pair.
const MAX_KADDRS: usize = 1024;
/// Instances of a metric, unless the file says another number, and the highest that it can say.
const INSTANCES: u64 = 10_000;
const MOST_INSTANCES: u64 = 1_000_000;
/// Series of events that are kept without an event, as ebpf_exporter keeps all, and bytes of a CPU's buffer.
const FORGET_AFTER: Duration = Duration::from_secs(3600);
const EVENT_BUFFER: u64 = 64 << 10;
/// Windows of quantiles, in seconds.
const WINDOWS: std::ops::RangeInclusive<u64> = 12..=3600;
/// Bytes of a compiled expression.
const EXPRESSION: usize = 1 << 20;
/// Buckets of a histogram.
const MAX_BUCKETS: u64 = 1024;

impl PairConfig {
    /// Reads a pair's YAML; the errors are all that is wrong with it.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<PairConfig, Vec<PairError>> {
        let error = |place: String, reason: &str| vec![PairError { file: file.into(), place, reason: reason.into() }];
        let text = std::str::from_utf8(bytes).map_err(|utf8| {
            let line = bytes[..utf8.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count() + 1;
            error(format!("line {line}"), "expected UTF-8")
        })?;
        let node = parse(text).map_err(|yaml| error("YAML".into(), &yaml.to_string()))?;
        let mut reader = Reader { file, errors: Vec::new(), expressions: 0 };
        let config = reader.config(&At { node, path: String::new() });
        match reader.errors.is_empty() {
            true => Ok(config),
            false => Err(reader.errors),
        }
    }
}

impl Histogram {
    /// The keys of the buckets, in the order in which they are served, each with its upper bound before it is multiplied.
    pub fn bounds(&self) -> Vec<(Option<u64>, Decimal)> {
        let power = |exponent: u64| Decimal::whole(1_u64.checked_shl(exponent as u32).unwrap_or(u64::MAX));
        match &self.buckets {
            Buckets::Exp2(min, max) => (*min..=*max).map(|key| (Some(key), power(key))).collect(),
            Buckets::Exp2Zero(min, max) => (*min..=*max)
                .map(|key| (Some(key), if key == 0 { Decimal::whole(0) } else { power(key - 1) }))
                .collect(),
            Buckets::Linear(min, max) => (*min..=*max).map(|key| (Some(key), Decimal::whole(key))).collect(),
            Buckets::Fixed(keys) => keys.iter().map(|key| (key.in_places(0), *key)).collect(),
        }
    }

    /// The key of the sum.
    pub fn sum_key(&self) -> Option<u64> {
        match &self.buckets {
            Buckets::Exp2(_, max) | Buckets::Exp2Zero(_, max) | Buckets::Linear(_, max) => max.checked_add(1),
            Buckets::Fixed(keys) => keys.last()?.in_places(0)?.checked_add(1),
        }
    }
}

/// A value and its path.
struct At {
    node: Rc<Node>,
    path: String,
}

impl At {
    fn get(&self, key: &str) -> Option<At> {
        let path = if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) };
        Some(At { node: Rc::clone(self.node.get(key)?), path })
    }

    fn place(&self) -> String {
        match self.path.is_empty() {
            true => format!("line {}", self.node.line),
            false => format!("line {}: {}", self.node.line, self.path),
        }
    }
}

struct Reader<'a> {
    file: &'a str,
    errors: Vec<PairError>,
    expressions: usize,
}

impl Reader<'_> {
    fn error(&self, place: String, reason: String) -> PairError {
        PairError { file: self.file.into(), place, reason }
    }

    /// Notes that something else was expected.
    fn expected(&mut self, at: &At, what: &str) {
        let reason = format!("expected {what}, got {}", at.node.shown());
        self.errors.push(self.error(at.place(), reason));
    }

    /// Notes that a key is not there.
    fn missing(&mut self, at: &At, key: &str, what: &str) {
        let path = if at.path.is_empty() { key.to_owned() } else { format!("{}.{key}", at.path) };
        let place = format!("line {}: {path}", at.node.line);
        self.errors.push(self.error(place, format!("expected {what}, got nothing")));
    }

    /// The elements of a list; none if there is no such key.
    fn list(&mut self, at: &At, key: &str, most: usize, what: &str) -> Vec<At> {
        let Some(list) = at.get(key) else { return Vec::new() };
        match &list.node.value {
            Value::List(nodes) if nodes.len() <= most => {
                let element =
                    |(i, node): (usize, &Rc<Node>)| At { node: Rc::clone(node), path: format!("{}[{i}]", list.path) };
                nodes.iter().enumerate().map(element).collect()
            }
            Value::List(_) => {
                self.expected(&list, &format!("a list of at most {most} {what}"));
                Vec::new()
            }
            _ => {
                self.expected(&list, &format!("a list of {what}"));
                Vec::new()
            }
        }
    }

    fn text(&mut self, at: &At, key: &str, what: &str) -> Option<String> {
        let Some(value) = at.get(key) else {
            self.missing(at, key, what);
            return None;
        };
        match &value.node.value {
            Value::Text(text) if !text.is_empty() => Some(text.clone()),
            _ => {
                self.expected(&value, what);
                None
            }
        }
    }

    fn flag(&mut self, at: &At, key: &str) -> bool {
        let Some(value) = at.get(key) else { return false };
        match &value.node.value {
            Value::Text(text) if matches!(&**text, "true" | "True" | "TRUE") => true,
            Value::Text(text) if matches!(&**text, "false" | "False" | "FALSE") => false,
            _ => {
                self.expected(&value, "true or false");
                false
            }
        }
    }

    /// A whole number in a range; `None` if there is none.
    fn number(&mut self, at: &At, key: &str, range: std::ops::RangeInclusive<u64>, what: &str) -> Option<u64> {
        let value = at.get(key)?;
        let number = match &value.node.value {
            Value::Text(text) => number(text).filter(|number| range.contains(number)),
            _ => None,
        };
        if number.is_none() {
            self.expected(&value, &format!("{what} from {} to {}", range.start(), range.end()));
        }
        number
    }

    fn config(&mut self, at: &At) -> PairConfig {
        let mut config = PairConfig::default();
        for symbol in self.list(at, "kaddrs", MAX_KADDRS, "kernel symbols") {
            match &symbol.node.value {
                Value::Text(name) if !name.is_empty() => config.kaddrs.push(name.clone()),
                _ => self.expected(&symbol, "the name of a kernel symbol"),
            }
        }
        config.cgroup_map = at.get("cgroup_id_map").and_then(|map| self.cgroup_map(&map));
        if at.get("cgroup").is_some() {
            config.cgroup = self.text(at, "cgroup", "a path below the mount of cgroup v2, such as /");
        }
        config.pin = self.flag(at, "pin");
        if let Some(spans) = at.get("tracing") {
            config.notes.push(self.error(spans.place(), "spans are not sent, the metrics are served".into()));
        }
        let Some(metrics) = at.get("metrics") else {
            let what = match at.get("tracing").is_some() {
                true => {
                    "counters or histograms beside `tracing`, since spans are not sent (a counter with `perf_event_array: true` counts the \
                     events of a ring buffer)"
                }
                false => "counters or histograms",
            };
            self.missing(at, "metrics", what);
            return config;
        };
        for counter in self.list(&metrics, "counters", MAX_METRICS, "counters") {
            config.counters.extend(self.counter(&counter));
        }
        for histogram in self.list(&metrics, "histograms", MAX_METRICS, "histograms") {
            config.histograms.extend(self.histogram(&histogram));
        }
        if self.errors.is_empty() && config.counters.is_empty() && config.histograms.is_empty() {
            self.expected(&metrics, "counters or histograms");
        }
        config
    }

    fn cgroup_map(&mut self, at: &At) -> Option<CgroupMap> {
        let name = self.text(at, "name", "the name of a map");
        let is_storage = self.choice(at, "type", &[("hash", false), ("cgrp_storage", true)], false);
        let regexps = self.expressions(at);
        Some(CgroupMap { name: name?, is_storage, regexps: regexps?, place: at.place() })
    }

    /// One of a few words, or what holds without one.
    fn choice<T: Copy>(&mut self, at: &At, key: &str, words: &[(&str, T)], default: T) -> T {
        let Some(value) = at.get(key) else { return default };
        let chosen = match &value.node.value {
            Value::Text(text) => words.iter().find(|(word, _)| text == word),
            _ => None,
        };
        if chosen.is_none() {
            let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.expected(&value, &format!("one of {}", known.join(", ")));
        }
        chosen.map_or(default, |(_, value)| *value)
    }

    fn units(&mut self, at: &At) -> Option<Units> {
        self.choice(at, "units", &UNITS.map(|(word, units)| (word, Some(units))), None)
    }

    fn max_instances(&mut self, at: &At) -> usize {
        self.number(at, "max_instances", 1..=MOST_INSTANCES, "a number").unwrap_or(INSTANCES) as usize
    }

    fn duration(&mut self, at: &At, key: &str) -> Option<Duration> {
        let value = at.get(key)?;
        let read = match &value.node.value {
            Value::Text(text) => duration(text),
            _ => None,
        };
        if read.is_none() {
            self.expected(&value, "a duration, such as 90s or 1h30m");
        }
        read
    }

    fn events(&mut self, at: &At) -> Option<CountedEvents> {
        let forget_after = self.duration(at, "flush_interval").unwrap_or(FORGET_AFTER);
        let buffer = self.number(at, "buffer_size", 4096..=64 << 20, "a number of bytes").unwrap_or(EVENT_BUFFER);
        self.flag(at, "perf_event_array").then_some(CountedEvents { forget_after, buffer: buffer as usize })
    }

    fn counter(&mut self, at: &At) -> Option<Counter> {
        let (name, help) = (self.name(at), self.text(at, "help", "a line of help"));
        let semantics = [("counter", Sem::COUNTER), ("instant", Sem::INSTANT), ("discrete", Sem::DISCRETE)];
        let semantics = self.choice(at, "semantics", &semantics, Sem::COUNTER);
        let (events, units, max_instances) = (self.events(at), self.units(at), self.max_instances(at));
        let labels = self.labels(at);
        Some(Counter { name: name?, help: help?, labels, events, semantics, units, max_instances, place: at.place() })
    }

    fn histogram(&mut self, at: &At) -> Option<Histogram> {
        let (name, help) = (self.name(at), self.text(at, "help", "a line of help"));
        let before = self.errors.len();
        let mut labels = self.labels(at);
        let bucket = labels.pop();
        if bucket.is_none() && self.errors.len() == before {
            self.missing(at, "labels", "at least one label, of which the last is the bucket");
        }
        let multiplier = self.multiplier(at);
        let buckets = self.buckets(at);
        let quantiles = self.duration(at, "quantiles");
        if quantiles.is_some_and(|window| !WINDOWS.contains(&window.as_secs())) {
            let window = at.get("quantiles")?;
            self.expected(&window, "a window from 12s to 1h");
        }
        Some(Histogram {
            name: name?,
            help: help?,
            labels,
            bucket: bucket?,
            buckets: buckets?,
            multiplier,
            units: self.units(at),
            max_instances: self.max_instances(at),
            quantiles,
            place: at.place(),
        })
    }

    fn name(&mut self, at: &At) -> Option<String> {
        self.text(at, "name", "the name of a metric, which is the name of its map")
    }

    fn multiplier(&mut self, at: &At) -> Decimal {
        let Some(value) = at.get("bucket_multiplier") else { return Decimal::ONE };
        let number = match &value.node.value {
            Value::Text(text) => Decimal::parse(text),
            _ => None,
        };
        if number.is_none() {
            self.expected(&value, "a number that is not negative, such as 0.000001");
        }
        number.filter(|number| !number.is_zero()).unwrap_or(Decimal::ONE)
    }

    fn buckets(&mut self, at: &At) -> Option<Buckets> {
        let kind = self.text(at, "bucket_type", "exp2, exp2zero, linear or fixed")?;
        let most = match &*kind {
            "fixed" => return self.fixed(at),
            "exp2" => 63,
            "exp2zero" => 64,
            "linear" => u64::MAX - 1,
            _ => {
                let value = at.get("bucket_type")?;
                let meant = did_you_mean(&kind, BUCKET_TYPES);
                let reason = format!("expected exp2, exp2zero, linear or fixed, got {}{meant}", value.node.shown());
                self.errors.push(self.error(value.place(), reason));
                return None;
            }
        };
        let before = self.errors.len();
        let least = self.number(at, "bucket_min", 0..=most, "a whole number").unwrap_or(0);
        let highest = self.number(at, "bucket_max", 0..=most, "a whole number").unwrap_or(0);
        if self.errors.len() > before {
            return None;
        }
        if highest <= least || highest - least >= MAX_BUCKETS {
            let value = at.get("bucket_max");
            let reason = format!(
                "expected a bucket_max above bucket_min, which is {least}, by less than {MAX_BUCKETS}, got {}",
                value.as_ref().map_or("nothing".into(), |value| value.node.shown())
            );
            let place = value.map_or_else(|| at.place(), |value| value.place());
            self.errors.push(self.error(place, reason));
            return None;
        }
        Some(match &*kind {
            "exp2" => Buckets::Exp2(least, highest),
            "exp2zero" => Buckets::Exp2Zero(least, highest),
            _ => Buckets::Linear(least, highest),
        })
    }

    fn fixed(&mut self, at: &At) -> Option<Buckets> {
        let keys = self.list(at, "bucket_keys", MAX_BUCKETS as usize, "numbers");
        let mut numbers = Vec::new();
        for key in &keys {
            let number = match &key.node.value {
                Value::Text(text) => Decimal::parse(text),
                _ => None,
            };
            match number {
                Some(number) => numbers.push(number),
                None => self.expected(key, "a number that is not negative"),
            }
        }
        if keys.is_empty() {
            self.missing(at, "bucket_keys", "a list of numbers");
        }
        (!keys.is_empty() && numbers.len() == keys.len()).then_some(Buckets::Fixed(numbers))
    }

    fn labels(&mut self, at: &At) -> Vec<Label> {
        let mut labels = Vec::new();
        for label in self.list(at, "labels", MAX_LABELS, "labels") {
            let name = self.text(&label, "name", "the name of a label");
            let size = self.number(&label, "size", 1..=MAX_KEY, "a number of bytes");
            if label.get("size").is_none() {
                self.missing(&label, "size", "a number of bytes");
            }
            let padding = self.number(&label, "padding", 0..=MAX_KEY, "a number of bytes").unwrap_or(0);
            let steps = self.list(&label, "decoders", MAX_DECODERS, "decoders");
            if label.get("decoders").is_none() {
                self.missing(&label, "decoders", "at least one decoder");
            }
            let decoders = steps.iter().filter_map(|step| self.decoder(step)).collect();
            if let (Some(name), Some(size)) = (name, size) {
                labels.push(Label { name, size: size as usize, padding: padding as usize, decoders });
            }
        }
        labels
    }

    fn decoder(&mut self, at: &At) -> Option<Decoder> {
        let name = self.text(at, "name", "the name of a decoder")?;
        Some(match &*name {
            "cgroup" => Decoder::Cgroup,
            "dname" => Decoder::Dname,
            "errno" => Decoder::Errno,
            "hex" => Decoder::Hex,
            "ifname" => Decoder::Ifname,
            "inet_ip" => Decoder::InetIp,
            "ksym" => Decoder::Ksym,
            "kstack" => Decoder::Kstack,
            "majorminor" => Decoder::MajorMinor,
            "pci_class" => Decoder::PciClass,
            "pci_device" => Decoder::PciDevice,
            "pci_subclass" => Decoder::PciSubclass,
            "pci_vendor" => Decoder::PciVendor,
            "regexp" => Decoder::Regexp(self.expressions(at)?),
            "static_map" => self.static_map(at),
            "string" => Decoder::String,
            "syscall" => Decoder::Syscall,
            "uint" => Decoder::Uint,
            _ => {
                let known = DECODERS.join(", ");
                let meant = did_you_mean(&name, DECODERS);
                let reason = format!("expected one of {known}, got `{}`{meant}", name.escape_debug());
                self.errors.push(self.error(at.place(), reason));
                return None;
            }
        })
    }

    fn static_map(&mut self, at: &At) -> Decoder {
        let allow_unknown = self.flag(at, "allow_unknown");
        let mut map = HashMap::new();
        if let Some(value) = at.get("static_map") {
            match &value.node.value {
                Value::Map(entries) => {
                    for (key, node) in entries {
                        match &node.value {
                            Value::Text(text) => drop(map.insert(key.clone(), text.clone())),
                            Value::Null => drop(map.insert(key.clone(), String::new())),
                            _ => {
                                let at = At { node: Rc::clone(node), path: format!("{}.{key}", value.path) };
                                self.expected(&at, "text");
                            }
                        }
                    }
                }
                _ => self.expected(&value, "a map from text to text"),
            }
        }
        Decoder::StaticMap { map, allow_unknown }
    }

    fn expressions(&mut self, at: &At) -> Option<Vec<Regex>> {
        let list = self.list(at, "regexps", MAX_EXPRESSIONS, "regular expressions");
        if list.is_empty() {
            self.missing(at, "regexps", "at least one regular expression");
            return None;
        }
        self.expressions += list.len();
        if self.expressions > MAX_EXPRESSIONS {
            self.expected(at, &format!("at most {MAX_EXPRESSIONS} regular expressions in the file"));
            return None;
        }
        let mut expressions = Vec::new();
        for one in &list {
            let Value::Text(text) = &one.node.value else {
                self.expected(one, "a regular expression");
                continue;
            };
            match RegexBuilder::new(text).size_limit(EXPRESSION).dfa_size_limit(EXPRESSION).build() {
                Ok(expression) => expressions.push(expression),
                Err(error) => {
                    let why = error.to_string();
                    let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ");
                    self.expected(one, &format!("a regular expression ({why})"));
                }
            }
        }
        (expressions.len() == list.len()).then_some(expressions)
    }
}

/// A whole number as YAML has it: decimal, `0x1f`, `0o17`, `0b11`.
fn number(text: &str) -> Option<u64> {
    let text = text.trim().trim_start_matches('+');
    match text.get(..2) {
        Some("0x" | "0X") => u64::from_str_radix(&text[2..], 16).ok(),
        Some("0o" | "0O") => u64::from_str_radix(&text[2..], 8).ok(),
        Some("0b" | "0B") => u64::from_str_radix(&text[2..], 2).ok(),
        _ => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIR: &str = "
metrics:
  counters:
    - name: io_ops_total
      help: Number of operations
      unknown_key: [1, 2]
      labels:
        - name: operation
          size: 4
          padding: 4
          decoders:
            - name: uint
            - name: static_map
              static_map: {0: read, 0x1: write}
  histograms:
    - name: io_latency_seconds
      help: Latency
      bucket_type: exp2
      bucket_multiplier: 0.000001
      bucket_min: 0
      bucket_max: 27
      labels:
        - {name: device, size: 4, decoders: [{name: majorminor}]}
        - {name: bucket, size: 4, decoders: [{name: uint}]}
";

    fn errors(text: &str) -> Vec<String> {
        let errors = PairConfig::parse("x.yaml", text.as_bytes()).map(drop).unwrap_err();
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_pair_is_read_as_it_is_written() {
        let config = PairConfig::parse("x.yaml", PAIR.as_bytes()).unwrap();
        let counter = &config.counters[0];
        assert_eq!((&*counter.name, counter.labels[0].padding), ("io_ops_total", 4));
        assert_eq!((counter.semantics, counter.units, counter.max_instances), (Sem::COUNTER, None, 10_000));
        let Decoder::StaticMap { map, allow_unknown: false } = &counter.labels[0].decoders[1] else { panic!() };
        assert_eq!((map["0"].as_str(), map["0x1"].as_str()), ("read", "write"));
        let histogram = &config.histograms[0];
        assert_eq!(histogram.buckets, Buckets::Exp2(0, 27));
        assert_eq!((histogram.labels.len(), &*histogram.bucket.name, histogram.sum_key()), (1, "bucket", Some(28)));
        assert_eq!(histogram.multiplier.in_places(6), Some(1));
    }

    #[test]
    fn every_error_names_file_line_and_path() {
        let wrong = PAIR
            .replace("majorminor", "majorminro")
            .replace("exp2", "exp3")
            .replace("padding: 4", "padding: four")
            .replace("      help: Number of operations\n", "");
        assert_eq!(errors(&wrong), [
            "x.yaml: line 4: metrics.counters[0].help: expected a line of help, got nothing",
            "x.yaml: line 9: metrics.counters[0].labels[0].padding: expected a number of bytes from 0 to 4096, got `four`",
            "x.yaml: line 22: metrics.histograms[0].labels[0].decoders[0]: expected one of cgroup, dname, errno, hex, ifname, inet_ip, \
             ksym, kstack, majorminor, pci_class, pci_device, pci_subclass, pci_vendor, regexp, static_map, string, syscall, uint, got \
             `majorminro`; did you mean `majorminor`?",
            "x.yaml: line 17: metrics.histograms[0].bucket_type: expected exp2, exp2zero, linear or fixed, got `exp3`; did you mean `exp2`?",
        ]);
    }

    #[test]
    fn what_ebpf_exporter_finds_at_the_first_row_is_found_at_load() {
        let first = |from: &str, to: &str| errors(&PAIR.replace(from, to))[0].clone();
        let bucket = "        - {name: bucket, size: 4, decoders: [{name: uint}]}\n";
        let device = "        - {name: device, size: 4, decoders: [{name: majorminor}]}\n";
        assert!(first("size: 4\n", "size: 0\n").contains("labels[0].size: expected a number of bytes from 1"));
        assert!(first("          size: 4\n", "").contains("labels[0].size: expected a number of bytes, got nothing"));
        assert!(first(&format!("{device}{bucket}"), "").contains("the last is the bucket"));
        assert!(first("bucket_max: 27", "bucket_max: 0").contains("bucket_max: expected a bucket_max above bucket_min"));
        assert!(first("[{name: majorminor}]", "[{name: regexp}]").contains("at least one regular expression"));
        let expression = first("[{name: majorminor}]", "[{name: regexp, regexps: ['(']}]");
        assert!(
            expression.contains("decoders[0].regexps[0]: expected a regular expression (unclosed group)"),
            "{expression}"
        );
        assert!(first("bucket_type: exp2", "bucket_type: fixed").contains("bucket_keys: expected a list of numbers"));
        assert!(errors("metrics: {}")[0].contains("expected counters or histograms"));
        assert!(errors("kaddrs: [[x]]\n")[0].contains("line 1: kaddrs[0]: expected the name of a kernel symbol"));
        assert_eq!(errors("a: [")[0].split(':').nth(1), Some(" YAML"));
    }

    #[test]
    fn what_goes_beyond_metrics_of_maps_is_read() {
        let more = "
kaddrs: [bpf_jit_current, jiffies]
cgroup: /
pin: true
cgroup_id_map: {name: cgids, type: cgrp_storage, regexps: ['^/sys', 'slice$']}
metrics:
  counters:
    - {name: a, help: a, perf_event_array: true, flush_interval: 90s, buffer_size: 8192}
    - {name: b_bytes, help: b, perf_event_array: true, semantics: instant, units: count, max_instances: 7}
  histograms:
    - name: c
      help: c
      bucket_type: exp2
      bucket_max: 9
      units: usec
      quantiles: 60s
      labels: [{name: bucket, size: 8, decoders: [{name: uint}]}]
";
        let config = PairConfig::parse("x.yaml", more.as_bytes()).map_err(|errors| format!("{errors:?}")).unwrap();
        assert_eq!((config.kaddrs.len(), config.cgroup.as_deref()), (2, Some("/")));
        assert!(config.pin);
        let map = config.cgroup_map.unwrap();
        assert_eq!((&*map.name, map.is_storage, map.regexps.len()), ("cgids", true, 2));
        let [first, second] = &config.counters[..] else { panic!() };
        let events = CountedEvents { forget_after: Duration::from_secs(90), buffer: 8192 };
        assert_eq!(first.events, Some(events));
        assert_eq!(second.events, Some(CountedEvents { forget_after: FORGET_AFTER, buffer: 65536 }));
        assert_eq!((second.semantics, second.units, second.max_instances), (Sem::INSTANT, Some(Units::COUNT), 7));
        let histogram = &config.histograms[0];
        assert_eq!((histogram.units, histogram.quantiles), (Some(Units::USEC), Some(Duration::from_secs(60))));
        let wrong = |from: &str, to: &str| errors(&more.replace(from, to)).join("\n");
        assert!(wrong("90s", "90").contains("counters[0].flush_interval: expected a duration, such as 90s or 1h30m"));
        assert!(wrong("60s", "2h").contains("histograms[0].quantiles: expected a window from 12s to 1h, got `2h`"));
        assert!(wrong("instant", "level").contains("semantics: expected one of counter, instant, discrete"));
        assert!(wrong("pin: true", "pin: maybe").contains("pin: expected true or false, got `maybe`"));
        assert!(wrong("usec", "us").contains("units: expected one of none, count, byte, Mbyte, nsec"));
        assert!(wrong("cgrp_storage", "array").contains("type: expected one of hash, cgrp_storage, got `array`"));
        assert!(wrong("max_instances: 7", "max_instances: 0").contains("max_instances: expected a number from 1"));
    }

    #[test]
    fn spans_cost_a_note_only() {
        let config = PairConfig::parse("x.yaml", format!("{PAIR}tracing: {{spans: [a]}}\n").as_bytes()).unwrap();
        assert!(config.notes[0].to_string().contains("tracing: spans are not sent"));
        let alone = errors("tracing: {spans: [a]}\n");
        assert!(
            alone[0].contains("beside `tracing`, since spans are not sent (a counter with `perf_event_array"),
            "{alone:?}"
        );
    }
}
