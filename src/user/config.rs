//! The declarations in a pair's YAML.

use super::decimal::Decimal;
use crate::pcp::{Sem, Units};
use regex::bytes::Regex;
use std::collections::HashMap;
use std::time::Duration;
use thiserror::Error;

/// An error in a file.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{file}: {place}: {reason}")]
pub struct PairError {
    /// The file.
    pub file: String,
    /// The line and the path of the value: `line 7: metrics.counters[0].name`; or the map or program.
    pub place: String,
    /// The expected value and the one found.
    pub reason: String,
}

/// A pair's metrics.
#[derive(Debug, Default)]
pub struct PairConfig {
    /// The counters.
    pub counters: Vec<Counter>,
    /// The histograms.
    pub histograms: Vec<Histogram>,
    /// Kernel symbols whose addresses the programs use.
    pub kaddrs: Vec<String>,
    /// The map of the cgroups with a matching path.
    pub cgroup_map: Option<CgroupMap>,
    /// The cgroup that `cgroup_skb` programs are attached to.
    pub cgroup: Option<String>,
    /// True if the maps of its metrics outlive the agent.
    pub pin: bool,
    /// Largest kernel memory of its maps, in bytes.
    pub max_memory: u64,
    /// Settings in the file that the agent does not follow, a sentence each.
    pub notes: Vec<PairError>,
}

/// A counter; its values are in a map.
#[derive(Debug)]
pub struct Counter {
    /// Name of the counter and of its map.
    pub name: String,
    /// One line of help.
    pub help: String,
    /// The labels, which are the parts of a key.
    pub labels: Vec<Label>,
    /// Settings for counting the events that programs send by the map; `None` if the map has the values.
    pub events: Option<CountedEvents>,
    /// Semantics of its values.
    pub semantics: Sem,
    /// Units, if its name does not imply them.
    pub units: Option<Units>,
    /// Largest number of its instances.
    pub max_instances: usize,
    /// Its line and path in the file.
    pub place: String,
}

/// Settings for counting events (`perf_event_array: true`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedEvents {
    /// Time without an event after which a series is forgotten (`flush_interval`).
    pub forget_after: Duration,
    /// Size of each CPU's buffer in bytes (`buffer_size`).
    pub buffer: usize,
}

/// A map that the agent fills with the cgroups whose path matches one of the expressions.
#[derive(Debug)]
pub struct CgroupMap {
    /// Its name.
    pub name: String,
    /// True for a storage of cgroups, whose keys are descriptors; false for a hash, whose keys are identifiers.
    pub is_storage: bool,
    /// The expressions.
    pub regexps: Vec<Regex>,
    /// Its line and path in the file.
    pub place: String,
}

/// A histogram; its values are in a map.
#[derive(Debug)]
pub struct Histogram {
    /// Name of the histogram and of its map.
    pub name: String,
    /// One line of help.
    pub help: String,
    /// The labels, which are the parts of a key without the bucket.
    pub labels: Vec<Label>,
    /// The part of the key that is the bucket.
    pub bucket: Label,
    /// The buckets.
    pub buckets: Buckets,
    /// Factor for bounds and the sum.
    pub multiplier: Decimal,
    /// Units of bounds and the sum, if its name does not imply them.
    pub units: Option<Units>,
    /// Largest number of instances, for series and for buckets.
    pub max_instances: usize,
    /// Length of the window whose quantiles are served.
    pub quantiles: Option<Duration>,
    /// Its line and path in the file.
    pub place: String,
}

/// The keys that are buckets, and their bounds.
#[derive(Clone, Debug, PartialEq)]
pub enum Buckets {
    /// Keys from the first to the last; the upper bound of key k is 2^k.
    Exp2(u64, u64),
    /// Keys from the first to the last; the upper bound of key 0 is 0, that of others 2^(k-1).
    Exp2Zero(u64, u64),
    /// Keys from the first to the last; the upper bound of key k is k.
    Linear(u64, u64),
    /// A list of keys; each is its own upper bound.
    Fixed(Vec<Decimal>),
}

/// A label: a part of a key.
#[derive(Debug)]
pub struct Label {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size: usize,
    /// Number of bytes to skip after it.
    pub padding: usize,
    /// The decoders that turn it into text, in this order.
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
    /// Frames of a stack, the innermost first; with `below` only the callers of that function, the outermost first.
    Kstack {
        below: Option<String>,
    },
    MajorMinor,
    PciClass,
    PciDevice,
    PciSubclass,
    PciVendor,
    Regexp(Vec<Regex>),
    StaticMap {
        map: HashMap<String, String>,
        allow_unknown: bool,
    },
    String,
    Syscall,
    Uint,
}

impl Histogram {
    /// Returns the buckets in the order in which they are served: the key and the upper bound before multiplication of each.
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

    /// Returns the key under which the map has the sum.
    pub fn sum_key(&self) -> Option<u64> {
        match &self.buckets {
            Buckets::Exp2(_, max) | Buckets::Exp2Zero(_, max) | Buckets::Linear(_, max) => max.checked_add(1),
            Buckets::Fixed(keys) => keys.last()?.in_places(0)?.checked_add(1),
        }
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
max_memory: 600
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
        assert!(config.pin && config.max_memory == 600 << 20);
        let map = config.cgroup_map.unwrap();
        assert_eq!((&*map.name, map.is_storage, map.regexps.len()), ("cgids", true, 2));
        let [first, second] = &config.counters[..] else { panic!() };
        let events = CountedEvents { forget_after: Duration::from_secs(90), buffer: 8192 };
        assert_eq!(first.events, Some(events));
        assert_eq!(second.events, Some(CountedEvents { forget_after: Duration::from_secs(3600), buffer: 65536 }));
        assert_eq!((second.semantics, second.units, second.max_instances), (Sem::INSTANT, Some(Units::COUNT), 7));
        let histogram = &config.histograms[0];
        assert_eq!((histogram.units, histogram.quantiles), (Some(Units::USEC), Some(Duration::from_secs(60))));
        let wrong = |from: &str, to: &str| errors(&more.replace(from, to)).join("\n");
        assert!(wrong("90s", "90").contains("counters[0].flush_interval: expected a duration, such as 90s or 1h30m"));
        assert!(wrong("60s", "2h").contains("histograms[0].quantiles: expected a window from 12s to 1h, got `2h`"));
        assert!(wrong("instant", "level").contains("semantics: expected one of counter, instant, discrete"));
        assert!(wrong("pin: true", "pin: maybe").contains("pin: expected true or false, got `maybe`"));
        assert!(wrong("y: 600", "y: 0").contains("max_memory: expected a number of megabytes from 1 to 1048576"));
        assert!(wrong("usec", "us").contains("units: expected one of none, count, byte, Mbyte, nsec"));
        assert!(wrong("cgrp_storage", "array").contains("type: expected one of hash, cgrp_storage, got `array`"));
        assert!(wrong("max_instances: 7", "max_instances: 0").contains("max_instances: expected a number from 1"));
    }

    #[test]
    fn a_key_of_corebccs_that_is_misspelt_is_noted() {
        let slips = format!("pinn: true\nprograms: []\n{PAIR}")
            .replace("unknown_key: [1, 2]", "semantic: instant\n      unit: count")
            .replace("help: Latency", "help: Latency\n      max_instance: 9");
        let config = PairConfig::parse("x.yaml", slips.as_bytes()).unwrap();
        let notes: Vec<String> = config.notes.iter().map(ToString::to_string).collect();
        assert_eq!(
            notes,
            [
                "x.yaml: line 1: the key `pinn` is ignored; did you mean `pin`?",
                "x.yaml: line 8: the key `semantic` is ignored; did you mean `semantics`?",
                "x.yaml: line 9: the key `unit` is ignored; did you mean `units`?",
                "x.yaml: line 21: the key `max_instance` is ignored; did you mean `max_instances`?",
            ]
        );
        assert!(PairConfig::parse("x.yaml", PAIR.as_bytes()).unwrap().notes.is_empty());
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
