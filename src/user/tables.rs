//! Declarations that are made when a pair is read. They are as good as those that are compiled in, since they live until the agent ends:
//! one that is made again is the same.

use super::config::{Counter, Histogram};
use super::series::{counter_units, Scale};
use crate::kit::{MetricDef, Shape, TableSpec};
use crate::pcp::{Sem, Type, Units};
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

/// Instances of a table.
const MAX_INSTANCES: usize = 10_000;

/// A text that lives until the agent ends: names, helps and labels of pairs. One that is asked for again is the same.
pub fn leak(text: String) -> &'static str {
    kept(text.clone(), || text).as_str()
}

type Kept = HashMap<(TypeId, String), &'static (dyn Any + Send + Sync)>;

/// A thing that lives until the agent ends, by all that it is made of: a pair that is loaded again takes no more memory.
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

/// A text as a component of a name: letters, digits and `_`, a letter first.
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
    /// Of a counter its values, of a histogram count and sum.
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
    /// Whether it has instances.
    labelled: bool,
    /// Of a histogram, the type of its sum.
    sum: Option<Type>,
}

impl ServedMetric {
    /// A counter.
    pub fn counter(counter: &Counter) -> ServedMetric {
        ServedMetric {
            name: word(&counter.name),
            help: line(&counter.help),
            units: counter_units(&counter.name),
            semantics: if counter.is_level { Sem::INSTANT } else { Sem::COUNTER },
            labelled: !counter.labels.is_empty(),
            sum: None,
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
            sum: Some(if scale.factor.is_some() { Type::U64 } else { Type::DOUBLE }),
        }
    }

    /// The names that its tables have clusters by.
    pub fn keys(&self, pair: &str) -> Vec<String> {
        let name = format!("{pair}.{}", self.name);
        match self.sum {
            None => vec![name],
            Some(_) => vec![name.clone(), format!("{name}.bucket")],
        }
    }

    /// Declares its tables with these clusters, one for each of its keys.
    pub fn declare(&self, pair: &str, clusters: &[u32]) -> Tables {
        let path = format!("user.{pair}.{}", self.name);
        let shape = if self.labelled { Shape::Named { max: MAX_INSTANCES } } else { Shape::Single };
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
        let series = vec![
            metric(0, ".count", Type::U64, Sem::COUNTER, Units::COUNT, format!("{help}: number of values")),
            metric(1, ".sum", sum, Sem::COUNTER, self.units, format!("{help}: sum of values")),
        ];
        let bucket =
            metric(0, ".bucket", Type::U64, Sem::COUNTER, Units::COUNT, format!("{help}: number of values by bucket"));
        let named = Shape::Named { max: MAX_INSTANCES };
        Tables { series: table(clusters.first(), shape, series), buckets: table(clusters.get(1), named, vec![bucket]) }
    }
}

/// A text as a line of help.
fn line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect::<String>().trim().into()
}
