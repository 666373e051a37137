//! Dashboards for Grafana, with the plugin grafana-pcp or with Prometheus, in Grafana's classic JSON.

use super::views::{Choice, Dashboard, Kind, Panel, Target, Values};
use serde_json::{json, Map, Value};

/// Columns of Grafana's grid, and rows of a panel.
const WIDTH: u32 = 24;
const HEIGHT: u32 = 8;

/// A data source.
pub struct Source {
    /// Name of it in those of dashboards and tags.
    pub id: &'static str,
    title: &'static str,
    kind: &'static str,
    from: &'static str,
    refresh: &'static str,
    language: Language,
}

/// Language of a data source's queries.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Language {
    /// Metrics of one host, and expressions of derived metrics.
    Metrics,
    /// Time series of many hosts, of which one is chosen; without tables and expressions.
    Series,
    /// PromQL.
    PromQl,
}

/// The data source that asks pmproxy for what happens now.
pub const VECTOR: Source = Source {
    id: "vector",
    title: "PCP Vector",
    kind: "performancecopilot-vector-datasource",
    from: "now-5m",
    refresh: "2s",
    language: Language::Metrics,
};

/// The data source that reads the archives which pmproxy has put into Valkey, or Redis.
pub const VALKEY: Source = Source {
    id: "valkey",
    title: "PCP Valkey",
    kind: "performancecopilot-valkey-datasource",
    from: "now-6h",
    refresh: "1m",
    language: Language::Series,
};

/// Prometheus, for [`PROMETHEUS_DASHBOARD`](super::views::PROMETHEUS_DASHBOARD).
pub const PROMETHEUS: Source = Source {
    id: "prometheus",
    title: "Prometheus",
    kind: "prometheus",
    from: "now-1h",
    refresh: "30s",
    language: Language::PromQl,
};

/// A query of a panel.
pub struct Query {
    /// Metric or expression, as the data source wants it.
    pub expression: String,
    legend: &'static str,
}

/// Returns the queries of a panel; none if the data source cannot answer them.
pub fn queries(source: &Source, panel: &Panel) -> Vec<Query> {
    let expression = |target: &Target| {
        if source.language != Language::Series {
            return Some(target.expression.to_owned());
        }
        // A heat map without the choice has the buckets of all disks or cgroups.
        let is_lost = target.is_chosen() && panel.kind == Kind::HeatMap;
        (!is_lost).then(|| format!("{}{{hostname == \"$host\"}}", target.metric()))
    };
    let wanted = panel.targets.iter().filter(|_| source.language != Language::Series || panel.kind != Kind::Table);
    wanted.filter_map(|target| Some(Query { expression: expression(target)?, legend: target.legend })).collect()
}

/// Returns a dashboard for a data source.
pub fn dashboard(source: &Source, dashboard: &Dashboard) -> String {
    let mut places = Places::default();
    let shown = dashboard.panels.iter().map(|panel| (panel, queries(source, panel)));
    let shown = shown.filter(|(_, queries)| !queries.is_empty()).zip(1..);
    let panels: Vec<Value> =
        shown.map(|((shown, queries), id)| panel(source, shown, &queries, id, &mut places)).collect();
    let mut choices =
        vec![json!({ "name": "datasource", "label": "Data source", "type": "datasource", "query": source.kind })];
    if source.language == Language::PromQl {
        let of_label = |name, label: &str, metric| json!({ "name": name, "label": name, "type": "query", "datasource": named(source), "query": format!("label_values({metric}, {label})"), "refresh": 2, "multi": true, "includeAll": true, "allValue": ".*", "current": { "text": "All", "value": "$__all" } });
        choices.push(of_label("host", "instance", "bcc_agent_module_up"));
        choices.push(of_label("disk", "disk", "bcc_disk_dev_read_total_seconds_count"));
    }
    if source.language == Language::Series {
        choices.push(json!({ "name": "host", "label": "Host", "type": "query", "datasource": named(source), "query": "label_values(hostname)", "refresh": 1 }));
    }
    let of_metric = |choice: &&Choice| matches!(choice.values, Values::OfMetric(_));
    choices.extend(
        dashboard
            .choice
            .iter()
            .filter(|choice| source.language != Language::Series || !of_metric(choice))
            .map(|of| choice(source, of)),
    );
    let tag = format!("pcp-{}", source.id);
    let whole = json!({
        "uid": format!("corebcc-{}-{}", source.id, dashboard.id),
        "title": format!("{}: {}", source.title, dashboard.title),
        "tags": [tag, "corebcc"],
        "links": [{ "type": "dashboards", "title": "eBPF", "tags": ["corebcc", tag], "asDropdown": true, "includeVars": true, "keepTime": true }],
        "time": { "from": source.from, "to": "now" },
        "refresh": source.refresh,
        "schemaVersion": 39,
        "editable": true,
        "templating": { "list": choices },
        "panels": panels,
    });
    format!("{whole:#}\n")
}

fn choice(source: &Source, choice: &Choice) -> Value {
    let mut of = json!({ "name": choice.name, "label": choice.name });
    let more = match choice.values {
        Values::OfMetric(metric) => {
            json!({ "type": "query", "datasource": named(source), "query": metric, "refresh": 2 })
        }
        Values::Words(words) => {
            let options =
                words.iter().map(|word| json!({ "text": word, "value": word, "selected": *word == words[0] }));
            json!({ "type": "custom", "query": words.join(","), "options": options.collect::<Vec<_>>(), "current": { "text": words[0], "value": words[0] } })
        }
    };
    add(&mut of, more);
    of
}

fn named(source: &Source) -> Value {
    json!({ "type": source.kind, "uid": "${datasource}" })
}

/// Place of the next panel.
#[derive(Default)]
struct Places {
    x: u32,
    y: u32,
    /// Height of the row that is being filled.
    row: u32,
}

impl Places {
    fn next(&mut self, kind: Kind) -> Value {
        let (w, h) = match kind {
            Kind::Number => (WIDTH / 4, HEIGHT / 2),
            Kind::Table => (WIDTH, HEIGHT),
            Kind::HeatMap | Kind::Lines => (WIDTH / 2, HEIGHT),
        };
        if self.x + w > WIDTH {
            (self.x, self.y, self.row) = (0, self.y + self.row, 0);
        }
        let place = json!({ "x": self.x, "y": self.y, "w": w, "h": h });
        self.x += w;
        self.row = self.row.max(h);
        place
    }
}

fn panel(source: &Source, shown: &Panel, queries: &[Query], id: u32, places: &mut Places) -> Value {
    let (kind, format) = match shown.kind {
        Kind::HeatMap => ("heatmap", "heatmap"),
        Kind::Lines => ("timeseries", "time_series"),
        Kind::Number => ("stat", "time_series"),
        Kind::Table => ("table", "metrics_table"),
    };
    let targets = queries.iter().zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ".chars());
    let mut whole = json!({
        "id": id,
        "type": kind,
        "title": shown.title,
        "description": description(shown),
        "datasource": named(source),
        "gridPos": places.next(shown.kind),
        "targets": targets.map(|(query, letter)| target(source, shown, query, letter, format)).collect::<Vec<_>>(),
        "fieldConfig": { "defaults": defaults(shown), "overrides": [] },
    });
    let more = match shown.kind {
        Kind::HeatMap => json!({ "options": {
            "calculate": false,
            "rowsFrame": { "layout": "le" },
            "yAxis": { "unit": shown.unit.unwrap_or("µs") },
            "cellGap": 0,
            "color": { "mode": "scheme", "scheme": "Oranges", "steps": 64 },
            "filterValues": { "le": 1e-9 },
        }}),
        Kind::Number => json!({ "options": { "reduceOptions": { "calcs": ["lastNotNull"] } } }),
        Kind::Lines => {
            json!({ "options": { "legend": { "displayMode": "list", "placement": "bottom" }, "tooltip": { "mode": "multi", "sort": "desc" } } })
        }
        Kind::Table => json!({ "options": { "showHeader": true } }),
    };
    add(&mut whole, more);
    whole
}

/// Description of a panel: what it shows, and the module that has to run for it.
fn description(shown: &Panel) -> String {
    match shown.module.split_once(' ') {
        _ if shown.module.is_empty() => shown.about.into(),
        None => {
            format!("{} Needs the module {1}: pmstore -i {1} bcc.agent.module.control start", shown.about, shown.module)
        }
        Some((module, option)) => {
            format!("{} Needs the module {module} with the option {option}.", shown.about)
        }
    }
}

fn target(source: &Source, shown: &Panel, query: &Query, letter: char, format: &str) -> Value {
    if source.language == Language::PromQl {
        return json!({
            "refId": letter.to_string(),
            "datasource": named(source),
            "expr": query.expression,
            "format": format,
            "legendFormat": query.legend,
            "instant": shown.kind == Kind::Number,
            "range": shown.kind != Kind::Number,
        });
    }
    // Of a counter of time, the part of a processor.
    let is_utilization = shown.unit == Some("percentunit");
    json!({
        "refId": letter.to_string(),
        "datasource": named(source),
        "expr": query.expression,
        "format": format,
        "legendFormat": query.legend,
        "options": { "rateConversion": true, "timeUtilizationConversion": is_utilization },
    })
}

fn defaults(shown: &Panel) -> Value {
    let mut defaults = json!({});
    // A heat map's unit belongs to its axis; its cells are counts.
    if let Some(unit) = shown.unit.filter(|_| shown.kind != Kind::HeatMap) {
        add(&mut defaults, json!({ "unit": unit }));
    }
    if shown.kind == Kind::Lines {
        add(&mut defaults, json!({ "min": 0, "custom": { "fillOpacity": 10, "showPoints": "never" } }));
    }
    defaults
}

fn add(to: &mut Value, more: Value) {
    let (Value::Object(to), Value::Object(more)) = (to, more) else { unreachable!("both are objects") };
    to.extend(more.into_iter().collect::<Map<_, _>>());
}
