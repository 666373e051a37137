//! How a table of a module is declared.

use super::{HistogramDef, Kernel, Log2, MetricDef, Reading, Table};

/// Buckets of all series that get identifiers.
const MOST_BUCKETS: usize = 1 << 21;

/// Metrics that share an instance domain: a PMID cluster.
pub struct TableSpec {
    /// What the rows stand for, for the documentation: `each stack`.
    pub summary: &'static str,
    /// The PMID cluster, and the serial of the instance domain.
    pub cluster: u32,
    /// The instance domain.
    pub shape: Shape,
    /// The metrics, in the order of their items.
    pub metrics: &'static [MetricDef],
    /// How it is filled; none: by [`super::Module::refresh`].
    pub readings: &'static [&'static dyn Reading],
    /// The histograms whose metrics these are, for the documents and for `show`.
    pub histograms: &'static [HistogramDef],
    /// The options without which the table stays empty, for `show`.
    pub options: &'static [&'static str],
    /// The label `metrictype` of its metrics, as those of PCP's bpftrace agent have it; empty for none.
    pub metric_type: &'static str,
}

impl TableSpec {
    /// What most tables leave as it is.
    pub const NEW: TableSpec = TableSpec {
        summary: "",
        cluster: 0,
        shape: Shape::Single,
        metrics: &[],
        readings: &[],
        histograms: &[],
        options: &[],
        metric_type: "",
    };

    /// Histograms by series: the constants that [`crate::histograms!`] declares.
    pub const fn by_series(
        summary: &'static str,
        cluster: u32,
        shape: Shape,
        metrics: &'static [MetricDef],
        histograms: &'static [HistogramDef],
    ) -> TableSpec {
        TableSpec { summary, cluster, shape, metrics, histograms, ..TableSpec::NEW }
    }

    /// Their buckets, in a cluster of their own: no two instance domains are one.
    pub const fn by_bucket(
        summary: &'static str,
        cluster: u32,
        metrics: &'static [MetricDef],
        histograms: &'static [HistogramDef],
    ) -> TableSpec {
        TableSpec {
            summary,
            cluster,
            shape: Shape::Buckets { max: MOST_BUCKETS },
            metrics,
            histograms,
            ..TableSpec::NEW
        }
    }

    /// Their buckets as Prometheus has them, with the option `prometheus`.
    pub const fn in_seconds(
        summary: &'static str,
        cluster: u32,
        metrics: &'static [MetricDef],
        histograms: &'static [HistogramDef],
    ) -> TableSpec {
        TableSpec {
            shape: Shape::Seconds { max: MOST_BUCKETS },
            options: &["prometheus"],
            ..TableSpec::by_bucket(summary, cluster, metrics, histograms)
        }
    }

    /// The same table where options fill it.
    pub const fn with_options(self, options: &'static [&'static str]) -> TableSpec {
        TableSpec { options, ..self }
    }

    /// Fills a table by the declared readings.
    pub fn read(&self, kernel: &dyn Kernel, table: &mut Table) {
        self.readings.iter().for_each(|reading| reading.read(kernel, table));
    }

    /// Whether the table is nothing but sums over mapped rows ([`Reading::is_sum`]).
    pub fn is_sum(&self) -> bool {
        !self.readings.is_empty() && self.readings.iter().all(|reading| reading.is_sum())
    }
}

impl Table {
    /// An empty table as it is declared.
    pub fn of(spec: &TableSpec) -> Table {
        let table = Table::numbered_by(spec.cluster, spec.metrics.len());
        match spec.shape {
            Shape::Named { .. } | Shape::Buckets { .. } => table.of_words(),
            Shape::Seconds { .. } => table.of_words().in_seconds(),
            _ => table,
        }
    }

    /// Whether it is the one that is declared so.
    pub fn is(&self, spec: &TableSpec) -> bool {
        self.cluster() == Some(spec.cluster)
    }

    /// Whether it is one of those that are declared so.
    pub fn is_any(&self, specs: &[&TableSpec]) -> bool {
        specs.iter().any(|spec| self.is(spec))
    }

    /// Whether it has the columns of a declaration.
    pub fn fits(&self, spec: &TableSpec) -> bool {
        self.is(spec) && self.columns() == spec.metrics.len()
    }
}

/// A table as whoever serves it and whoever fills it know it: its PMID cluster, which no two tables of an agent share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(u16);

impl TableId {
    /// The table of this cluster.
    pub const fn new(cluster: u16) -> TableId {
        TableId(cluster)
    }

    /// The PMID cluster.
    pub const fn cluster(self) -> u32 {
        self.0 as u32
    }
}

/// Which row of a table comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// The latest event.
    Latest,
    /// The highest of an interval, in the words of the documents.
    Highest(&'static str),
}

impl RowOrder {
    /// The words of the documents.
    pub const fn text(self) -> &'static str {
        match self {
            RowOrder::Latest => "latest first",
            RowOrder::Highest(text) => text,
        }
    }
}

/// An instance domain's shape: it owns naming, identifiers, persistence, trimming and labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// No instance domain.
    Single,
    /// Powers of two: `0-1`, `2-3`, `4-7`, ... up to the highest that ever counted; the identifier is the bucket.
    Log2(Log2),
    /// Rows `0` to n-1, most recent or highest first; the identifier is the row. The option named here says how many.
    Rows {
        /// The option that holds the number of rows.
        count: &'static str,
        /// Which row comes first.
        order: RowOrder,
    },
    /// Any names without blanks, at most `max`: identifiers are handed out once and kept over restarts.
    Named {
        /// Names beyond it are refused, and counted.
        max: usize,
    },
    /// Buckets of histograms in microseconds: `LOW-HIGH::SERIES`, as [`Shape::Named`], or `LOW-HIGH` with a fixed identifier.
    Buckets {
        /// Names beyond it are refused, and counted.
        max: usize,
    },
    /// Histograms as Prometheus has them: `LE::SERIES` for the times up to LE seconds, and `SERIES` for count and sum; or `LE` and `all`, with
    /// fixed identifiers.
    Seconds {
        /// Names beyond it are refused, and counted.
        max: usize,
    },
    /// As [`Shape::Named`], but the first word of a name alone gets the identifier and is kept. What follows it may change.
    Words {
        /// Words beyond it are refused, and counted.
        max: usize,
    },
    /// Processes: the identifier is the process id.
    Pids,
    /// Numbers that have names: the identifier is the number.
    Numbered,
}
