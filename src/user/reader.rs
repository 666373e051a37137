//! Reader of a pair's YAML. All errors are reported, with file, line and path. Unknown keys are ignored, as in ebpf_exporter.

use super::config::{Buckets, CgroupMap, CountedEvents, Counter, Decoder, Histogram, Label, PairConfig, PairError};
use super::decimal::Decimal;
use super::words::{duration, UNITS};
use super::yaml::{parse, Node, Value};
use crate::config::did_you_mean;
use crate::kit::excerpt;
use crate::pcp::{Sem, Units};
use regex::bytes::{Regex, RegexBuilder};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

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

/// Largest key in bytes; the kernel would allow more (`KMALLOC_MAX_SIZE`), which no known map needs.
const MAX_KEY: u64 = 4096;
/// Largest numbers of metrics of a pair, labels of a metric, decoders of a label, and expressions of a pair.
const MAX_METRICS: usize = 256;
const MAX_LABELS: usize = 64;
const MAX_DECODERS: usize = 16;
const MAX_EXPRESSIONS: usize = 256;
/// Largest number of kernel symbols of a pair.
const MAX_KADDRS: usize = 1024;
/// Largest number of instances of a metric: by default, and the highest setting.
const INSTANCES: u64 = 10_000;
const MOST_INSTANCES: u64 = 1_000_000;
/// Defaults for events: time after which a series without an event is forgotten (ebpf_exporter keeps all), and size of a CPU's buffer
/// in bytes.
const FORGET_AFTER: Duration = Duration::from_secs(3600);
const EVENT_BUFFER: u64 = 64 << 10;
/// Lengths of windows for quantiles, in seconds.
const WINDOWS: std::ops::RangeInclusive<u64> = 12..=3600;
/// Largest compiled expression in bytes.
const EXPRESSION: usize = 1 << 20;
/// Default for the kernel memory of a pair's maps, in megabytes.
const MAX_MEMORY: u64 = 512;
/// Keys of the format, and those that corebcc adds to it: of the file, a counter and a histogram.
const OF_FILE: ([&str; 4], [&str; 3]) =
    (["metrics", "kaddrs", "cgroup_id_map", "tracing"], ["cgroup", "pin", "max_memory"]);
const OF_COUNTER: ([&str; 5], [&str; 4]) = (
    ["name", "help", "labels", "perf_event_array", "flush_interval"],
    ["semantics", "units", "max_instances", "buffer_size"],
);
const OF_HISTOGRAM: ([&str; 8], [&str; 3]) = (
    ["name", "help", "labels", "bucket_type", "bucket_multiplier", "bucket_min", "bucket_max", "bucket_keys"],
    ["units", "max_instances", "quantiles"],
);
/// Largest number of buckets of a histogram.
const MAX_BUCKETS: u64 = 1024;

impl PairConfig {
    /// Reads a pair's YAML, or returns all of its errors.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<PairConfig, Vec<PairError>> {
        let error = |place: String, reason: &str| vec![PairError { file: file.into(), place, reason: reason.into() }];
        let text = std::str::from_utf8(bytes).map_err(|utf8| {
            let line = bytes[..utf8.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count() + 1;
            error(format!("line {line}"), "expected UTF-8")
        })?;
        let node = parse(text).map_err(|yaml| error("YAML".into(), &yaml.to_string()))?;
        let mut reader = Reader { file, errors: Vec::new(), notes: Vec::new(), expressions: 0 };
        let mut config = reader.config(&At { node, path: String::new() });
        config.notes.append(&mut reader.notes);
        match reader.errors.is_empty() {
            true => Ok(config),
            false => Err(reader.errors),
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
    notes: Vec<PairError>,
    expressions: usize,
}

impl Reader<'_> {
    fn error(&self, place: String, reason: String) -> PairError {
        PairError { file: self.file.into(), place, reason }
    }

    /// Adds an error: a value is not the expected one.
    fn expected(&mut self, at: &At, what: &str) {
        let reason = format!("expected {what}, got {}", at.node.shown());
        self.errors.push(self.error(at.place(), reason));
    }

    /// Adds an error: a key is missing.
    fn missing(&mut self, at: &At, key: &str, what: &str) {
        let path = if at.path.is_empty() { key.to_owned() } else { format!("{}.{key}", at.path) };
        let place = format!("line {}: {path}", at.node.line);
        self.errors.push(self.error(place, format!("expected {what}, got nothing")));
    }

    /// Adds an error for each key that looks like a misspelt one of those that corebcc adds to the format. Other unknown keys are
    /// ignored, as in ebpf_exporter.
    fn look_for_slips(&mut self, at: &At, known: &[&str], own: &[&str]) {
        let Value::Map(entries) = &at.node.value else { return };
        for (key, node) in entries.iter().filter(|(key, _)| !known.contains(&&**key) && !own.contains(&&**key)) {
            let meant = did_you_mean(key, own.iter().copied());
            if !meant.is_empty() {
                let place = At { node: Rc::clone(node), path: String::new() }.place();
                self.notes.push(self.error(place, format!("the key `{}` is ignored{meant}", excerpt(key))));
            }
        }
    }

    /// Returns the elements of a list; none if the key is missing.
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

    /// Returns a whole number in a range; `None` if the key is missing or the value wrong.
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
        self.look_for_slips(at, &OF_FILE.0, &OF_FILE.1);
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
        let memory = self.number(at, "max_memory", 1..=1 << 20, "a number of megabytes").unwrap_or(MAX_MEMORY);
        config.max_memory = memory << 20;
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

    /// Returns the value of a word, or the default if the key is missing.
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
        self.look_for_slips(at, &OF_COUNTER.0, &OF_COUNTER.1);
        let (name, help) = (self.name(at), self.text(at, "help", "a line of help"));
        let semantics = [("counter", Sem::COUNTER), ("instant", Sem::INSTANT), ("discrete", Sem::DISCRETE)];
        let semantics = self.choice(at, "semantics", &semantics, Sem::COUNTER);
        let (events, units, max_instances) = (self.events(at), self.units(at), self.max_instances(at));
        let labels = self.labels(at);
        Some(Counter { name: name?, help: help?, labels, events, semantics, units, max_instances, place: at.place() })
    }

    fn histogram(&mut self, at: &At) -> Option<Histogram> {
        self.look_for_slips(at, &OF_HISTOGRAM.0, &OF_HISTOGRAM.1);
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
            "kstack" => {
                self.look_for_slips(at, &["name"], &["below"]);
                let below = at.get("below").and_then(|_| self.text(at, "below", "the name of a function"));
                Decoder::Kstack { below }
            }
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
                let reason = format!("expected one of {known}, got `{}`{meant}", excerpt(&name));
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

/// Parses a whole number of YAML: decimal, `0x1f`, `0o17`, `0b11`.
fn number(text: &str) -> Option<u64> {
    let text = text.trim().trim_start_matches('+');
    match text.get(..2) {
        Some("0x" | "0X") => u64::from_str_radix(&text[2..], 16).ok(),
        Some("0o" | "0O") => u64::from_str_radix(&text[2..], 8).ok(),
        Some("0b" | "0B") => u64::from_str_radix(&text[2..], 2).ok(),
        _ => text.parse().ok(),
    }
}
