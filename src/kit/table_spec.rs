//! Declaration of a module's tables.

use super::{HistogramDef, Log2, MetricDef, Table};

/// Highest number of buckets, over all series, that get identifiers.
const MOST_BUCKETS: usize = 1 << 21;

/// Metrics that share an instance domain: a PMID cluster.
pub struct TableSpec {
    /// Meaning of a row, for the documentation: `each stack`.
    pub summary: &'static str,
    /// PMID cluster, and serial of the instance domain.
    pub cluster: u32,
    /// Instance domain.
    pub shape: Shape,
    /// Metrics, in the order of their items.
    pub metrics: &'static [MetricDef],
    /// Histograms of these metrics, for the documents and for `show`.
    pub histograms: &'static [HistogramDef],
    /// Options without which the table stays empty, for `show`.
    pub options: &'static [&'static str],
    /// Table with the metric that clients store `start` to for this one to be filled, for `show`.
    pub started_by: Option<&'static TableSpec>,
    /// Label `metrictype` of its metrics, in the words of PCP's bpftrace agent; empty for none.
    pub metric_type: &'static str,
}

impl TableSpec {
    /// Returns the column of a metric. Panics if the table has none of this name.
    #[cfg(test)]
    pub fn column(&self, name: &str) -> usize {
        let column = self.metrics.iter().position(|metric| metric.name == name);
        column.unwrap_or_else(|| panic!("no {name} in cluster {}", self.cluster))
    }

    /// Default values.
    pub const NEW: TableSpec = TableSpec {
        summary: "",
        cluster: 0,
        shape: Shape::Single,
        metrics: &[],
        histograms: &[],
        options: &[],
        started_by: None,
        metric_type: "",
    };

    /// Metrics without instances.
    pub const fn single(summary: &'static str, cluster: u32, metrics: &'static [MetricDef]) -> TableSpec {
        TableSpec { summary, cluster, metrics, ..TableSpec::NEW }
    }

    /// Metrics with an instance for each name, of which there are at most `max`.
    pub const fn named(summary: &'static str, cluster: u32, metrics: &'static [MetricDef], max: usize) -> TableSpec {
        TableSpec { summary, cluster, shape: Shape::Named { max }, metrics, ..TableSpec::NEW }
    }

    /// Metrics with an instance for each number that something has, such as a CPU.
    pub const fn numbered(summary: &'static str, cluster: u32, metrics: &'static [MetricDef]) -> TableSpec {
        TableSpec { summary, cluster, shape: Shape::Numbered, metrics, ..TableSpec::NEW }
    }

    /// Rows of the latest events, the latest first, as many as the option `process_count` says.
    pub const fn latest(summary: &'static str, cluster: u32, metrics: &'static [MetricDef]) -> TableSpec {
        let shape = Shape::Rows { count: "process_count", order: RowOrder::Latest };
        TableSpec { summary, cluster, shape, metrics, ..TableSpec::NEW }
    }

    /// Metrics by process.
    pub const fn by_process(summary: &'static str, cluster: u32, metrics: &'static [MetricDef]) -> TableSpec {
        TableSpec { summary, cluster, shape: Shape::Pids, metrics, ..TableSpec::NEW }
    }

    /// Declares histograms by series, from the constants of [`crate::histograms!`].
    pub const fn by_series(
        summary: &'static str,
        cluster: u32,
        shape: Shape,
        metrics: &'static [MetricDef],
        histograms: &'static [HistogramDef],
    ) -> TableSpec {
        TableSpec { summary, cluster, shape, metrics, histograms, ..TableSpec::NEW }
    }

    /// Declares the buckets of histograms, in a cluster of their own: no two tables share an instance domain.
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

    /// Declares the buckets in the form of Prometheus, filled if the option `prometheus` is set.
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

    /// Makes the table depend on these options.
    pub const fn with_options(self, options: &'static [&'static str]) -> TableSpec {
        TableSpec { options, ..self }
    }
}

/// Three tables of histograms.
#[derive(Clone, Copy)]
pub struct HistogramTables {
    /// Counts, sums and quantiles.
    pub by_series: &'static TableSpec,
    /// Buckets.
    pub by_bucket: &'static TableSpec,
    /// Buckets for Prometheus, with the option `prometheus`.
    pub in_seconds: &'static TableSpec,
}

impl Table {
    /// Makes an empty table for this declaration.
    pub fn of(spec: &TableSpec) -> Table {
        let table = Table::numbered_by(spec.cluster, spec.metrics.len());
        match spec.shape {
            Shape::Named { .. } | Shape::Buckets { .. } => table.of_words(),
            Shape::Seconds { .. } => table.of_words().in_seconds(),
            _ => table,
        }
    }

    /// True if the table has the cluster and the columns of this declaration.
    pub fn fits(&self, spec: &TableSpec) -> bool {
        self.cluster() == Some(spec.cluster) && self.columns() == spec.metrics.len()
    }
}

/// Identity of a table between server and module: its PMID cluster, which no two tables of an agent share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(u16);

impl TableId {
    /// Returns the table of this cluster.
    pub const fn new(cluster: u16) -> TableId {
        TableId(cluster)
    }

    /// Returns the PMID cluster.
    pub const fn cluster(self) -> u32 {
        self.0 as u32
    }
}

/// The order of the rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// Latest event first.
    Latest,
    /// Highest value of an interval first; the text is for the documents.
    Highest(&'static str),
}

impl RowOrder {
    /// Returns the text for the documents.
    pub const fn text(self) -> &'static str {
        match self {
            RowOrder::Latest => "latest first",
            RowOrder::Highest(text) => text,
        }
    }
}

/// The shape of an instance domain, which determines naming, identifiers, persistence, trimming and labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// No instance domain.
    Single,
    /// Powers of two: `0-1`, `2-3`, `4-7`, ... up to the highest that ever counted; the identifier is the bucket.
    Log2(Log2),
    /// Rows `0` to n-1, most recent or highest first; the identifier is the row.
    Rows {
        /// Option that holds the number of rows.
        count: &'static str,
        /// Order of the rows.
        order: RowOrder,
    },
    /// Any names without blanks, at most `max`: identifiers are handed out once and kept over restarts.
    Named {
        /// Most names; more are refused and counted.
        max: usize,
    },
    /// Buckets of histograms in microseconds: `LOW-HIGH::SERIES`, as [`Shape::Named`], or `LOW-HIGH` with a fixed identifier.
    Buckets {
        /// Most names; more are refused and counted.
        max: usize,
    },
    /// Histograms in the form of Prometheus: `LE::SERIES` for the times up to LE seconds, and `SERIES` for count and
    /// sum; or `LE` and `all`, with fixed identifiers.
    Seconds {
        /// Most names; more are refused and counted.
        max: usize,
    },
    /// Names like those of [`Shape::Named`], but only the first word is kept and determines the identifier. The rest
    /// may change.
    Words {
        /// Most words; more are refused and counted.
        max: usize,
    },
    /// Processes: the identifier is the process id.
    Pids,
    /// Numbers with names: the identifier is the number.
    Numbered,
}
