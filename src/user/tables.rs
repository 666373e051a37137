//! Declarations that are made when a pair is read. They live until the agent ends, as those that are compiled in, and equal
//! declarations are the same object.

use super::config::{Counter, Histogram};
use super::series::{counter_units, Scale};
use crate::kit::{MetricDef, Shape, TableSpec, SERIES_METRICS};
use crate::pcp::{Sem, Type, Units};
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

/// Returns a text that lives until the agent ends: names, helps and labels of pairs. Equal texts are the same object.
pub fn leak(text: String) -> &'static str {
    kept(text.clone(), || text).as_str()
}

type Kept = HashMap<(TypeId, String), &'static (dyn Any + Send + Sync)>;

/// Returns an object that lives until the agent ends. `of` describes all that it is made of: for an equal description, as of a pair
/// that is loaded again, the same object is returned.
pub fn kept<T: Any + Send + Sync>(of: String, make: impl FnOnce() -> T) -> &'static T {
    static KEPT: LazyLock<Mutex<Kept>> = LazyLock::new(Mutex::default);
    let key = (TypeId::of::<T>(), of);
    let known = KEPT.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied();
    let known = known.unwrap_or_else(|| {
        // What it is made of may be kept, too.
        let made: &'static (dyn Any + Send + Sync) = Box::leak(Box::new(make()));
        KEPT.lock().unwrap_or_else(PoisonError::into_inner).insert(key, made);
        made
    });
    // The type is a part of what it is found by.
    known.downcast_ref().expect("a thing of its type")
}

/// Turns a text into a component of a name: letters, digits and `_`, a letter first.
pub fn word(text: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let word: String = text.chars().map(|c| if is_word(c) { c } else { '_' }).collect();
    if word.starts_with(|c: char| c.is_ascii_alphabetic()) {
        word
    } else {
        format!("x{word}")
    }
}

/// The tables of a metric.
#[derive(Clone, Copy, Default)]
pub struct Tables {
    /// The values of a counter, or the counts and sums of a histogram.
    pub series: Option<&'static TableSpec>,
    /// The buckets of a histogram.
    pub buckets: Option<&'static TableSpec>,
}

/// A metric to be served.
pub struct ServedMetric {
    /// Its name below the pair's.
    pub name: String,
    help: String,
    units: Units,
    semantics: Sem,
    /// True if it has instances.
    labelled: bool,
    max_instances: usize,
    /// Type of the sum of a histogram.
    sum: Option<Type>,
    /// Type of a histogram's quantiles, and their window in seconds.
    quantiles: Option<(Type, u64)>,
}

impl ServedMetric {
    /// A counter.
    pub fn counter(counter: &Counter) -> ServedMetric {
        ServedMetric {
            name: word(&counter.name),
            help: line(&counter.help),
            units: counter.units.unwrap_or_else(|| counter_units(&counter.name)),
            semantics: counter.semantics,
            labelled: !counter.labels.is_empty(),
            max_instances: counter.max_instances,
            sum: None,
            quantiles: None,
        }
    }

    /// A histogram.
    pub fn histogram(histogram: &Histogram, scale: &Scale) -> ServedMetric {
        ServedMetric {
            name: word(&histogram.name),
            help: line(&histogram.help),
            units: scale.units,
            semantics: Sem::COUNTER,
            labelled: !histogram.labels.is_empty(),
            max_instances: histogram.max_instances,
            sum: Some(number(scale.factor.is_some())),
            quantiles: histogram.quantiles.map(|window| (number(scale.is_whole), window.as_secs())),
        }
    }

    /// Returns the keys by which its tables keep their clusters.
    pub fn keys(&self, pair: &str) -> Vec<String> {
        let name = format!("{pair}.{}", self.name);
        match self.sum {
            None => vec![name],
            Some(_) => vec![name.clone(), format!("{name}.bucket")],
        }
    }

    /// Declares its tables with these clusters, one for each key.
    pub fn declare(&self, pair: &str, clusters: &[u32]) -> Tables {
        let path = format!("user.{pair}.{}", self.name);
        let shape = if self.labelled { Shape::Named { max: self.max_instances } } else { Shape::Single };
        let table = |cluster: Option<&u32>, shape, metrics: Vec<MetricDef>| {
            let (cluster, summary) = (*cluster?, format!("series of {}", self.name));
            let spec = |metrics| TableSpec { summary: leak(summary), cluster, shape, metrics, ..TableSpec::NEW };
            let of = format!("{cluster} {shape:?} {metrics:?}");
            Some(kept(of.clone(), || spec(kept(of, || metrics))))
        };
        let metric = |item: u32, last: &str, ty: Type, sem: Sem, units: Units, help: String| MetricDef {
            item,
            name: leak(format!("{path}{last}")),
            also: &[],
            ty,
            sem,
            units,
            oneline: leak(help),
        };
        let Some(sum) = self.sum else {
            let metrics = vec![metric(0, "", Type::U64, self.semantics, self.units, self.help.clone())];
            return Tables { series: table(clusters.first(), shape, metrics), buckets: None };
        };
        let help = &self.help;
        let mut series = vec![
            metric(0, ".count", Type::U64, Sem::COUNTER, Units::COUNT, format!("{help}: number of values")),
            metric(1, ".sum", sum, Sem::COUNTER, self.units, format!("{help}: sum of values")),
        ];
        if let Some((ty, window)) = self.quantiles {
            for (item, name) in SERIES_METRICS.iter().enumerate().skip(2) {
                let help = format!(
                    "{help}: {} of the last {window} seconds, rounded up to the bound of its bucket",
                    match *name {
                        "p50" => "median",
                        "p90" => "90th percentile",
                        "p99" => "99th percentile",
                        "p999" => "99.9th percentile",
                        _ => "highest value",
                    }
                );
                series.push(metric(item as u32, leak(format!(".{name}")), ty, Sem::INSTANT, self.units, help));
            }
        }
        let bucket =
            metric(0, ".bucket", Type::U64, Sem::COUNTER, Units::COUNT, format!("{help}: number of values by bucket"));
        let named = Shape::Named { max: self.max_instances };
        Tables { series: table(clusters.first(), shape, series), buckets: table(clusters.get(1), named, vec![bucket]) }
    }
}

fn number(is_whole: bool) -> Type {
    if is_whole {
        Type::U64
    } else {
        Type::DOUBLE
    }
}

/// Turns a text into a line of help: at most 200 characters, without control characters.
fn line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect::<String>().trim().into()
}
