//! Dashboards for Grafana with the plugin grafana-pcp: its classic JSON, for the data source PCP Vector, which asks pmproxy.

use super::views::{Choice, Dashboard, Kind, Panel, Target, Values};
use serde_json::{json, Map, Value};

/// Type of the data source.
const VECTOR: &str = "performancecopilot-vector-datasource";
/// Columns of Grafana's grid, and rows of a panel.
const WIDTH: u32 = 24;
const HEIGHT: u32 = 8;

/// Returns a dashboard for the data source PCP Vector.
pub fn vector(dashboard: &Dashboard) -> String {
    let mut places = Places::default();
    let panels = dashboard.panels.iter().zip(1..).map(|(shown, id)| panel(shown, id, &mut places));
    let choices = dashboard.choice.iter().map(choice);
    let source = json!({ "name": "datasource", "label": "Data source", "type": "datasource", "query": VECTOR });
    let whole = json!({
        "uid": format!("corebcc-vector-{}", dashboard.id),
        "title": format!("PCP Vector: {}", dashboard.title),
        "tags": ["pcp-vector", "corebcc"],
        "links": [{ "type": "dashboards", "title": "eBPF", "tags": ["corebcc", "pcp-vector"], "asDropdown": true, "includeVars": true, "keepTime": true }],
        "time": { "from": "now-5m", "to": "now" },
        "refresh": "2s",
        "timepicker": { "refresh_intervals": ["1s", "2s", "5s", "10s"] },
        "schemaVersion": 39,
        "editable": true,
        "templating": { "list": std::iter::once(source).chain(choices).collect::<Vec<_>>() },
        "panels": panels.collect::<Vec<_>>(),
    });
    format!("{whole:#}\n")
}

fn choice(choice: &Choice) -> Value {
    let mut of = json!({ "name": choice.name, "label": choice.name });
    let more = match choice.values {
        Values::OfMetric(metric) => {
            json!({ "type": "query", "datasource": source(), "query": metric, "refresh": 2 })
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

fn source() -> Value {
    json!({ "type": VECTOR, "uid": "${datasource}" })
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

fn panel(shown: &Panel, id: u32, places: &mut Places) -> Value {
    let (kind, format) = match shown.kind {
        Kind::HeatMap => ("heatmap", "heatmap"),
        Kind::Lines => ("timeseries", "time_series"),
        Kind::Number => ("stat", "time_series"),
        Kind::Table => ("table", "metrics_table"),
    };
    let targets = shown.targets.iter().zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ".chars());
    let mut whole = json!({
        "id": id,
        "type": kind,
        "title": shown.title,
        "description": description(shown),
        "datasource": source(),
        "gridPos": places.next(shown.kind),
        "targets": targets.map(|(target, letter)| query(target, letter, format)).collect::<Vec<_>>(),
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

fn query(target: &Target, letter: char, format: &str) -> Value {
    json!({
        "refId": letter.to_string(),
        "datasource": source(),
        "expr": target.expression,
        "format": format,
        "legendFormat": target.legend,
        "options": { "rateConversion": true, "timeUtilizationConversion": false },
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
