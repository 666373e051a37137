//! Counters of events that programs send by a perf event array or a ring buffer: each event adds 1 to the series of its labels.

use super::config::{CountedEvents, Counter};
use super::decode::covered;
use super::names::Names;
use super::series::{texts, Skipped, Texts};
use crate::loader::{EventReader, Events};
use std::collections::BTreeMap;
use std::time::Instant;

/// The series of a counter of events.
pub struct EventSeries {
    declared: CountedEvents,
    /// The reader of the events, once the pair is loaded.
    pub reader: Option<EventReader>,
    values: BTreeMap<Texts, (u64, Instant)>,
    /// Number of events that found no room in a CPU's buffer.
    pub lost: u64,
    /// Number of events that would have begun a series beyond the counter's `max_instances`.
    pub cut: u64,
}

impl EventSeries {
    /// Makes a counter without events.
    pub fn new(declared: CountedEvents) -> EventSeries {
        EventSeries { declared, reader: None, values: BTreeMap::new(), lost: 0, cut: 0 }
    }

    /// Returns the size of a CPU's buffer in bytes.
    pub fn buffer(&self) -> usize {
        self.declared.buffer
    }

    /// Counts the events since the last call. Returns those that are in no series.
    pub fn read(&mut self, counter: &Counter, names: &mut Names) -> Skipped {
        let events = self.reader.as_ref().map(EventReader::read).unwrap_or_default();
        self.count(counter, &events, names, Instant::now())
    }

    fn count(&mut self, counter: &Counter, events: &Events, names: &mut Names, now: Instant) -> Skipped {
        let mut skipped = Skipped::short(events.short);
        self.lost += events.lost;
        let size = covered(&counter.labels);
        let labels: Vec<_> = counter.labels.iter().collect();
        for i in 0..events.count {
            let event = events.bytes.get(i * size..(i + 1) * size).unwrap_or_default();
            match texts(&labels, event, names) {
                Ok(texts) => {
                    let has_room = self.values.len() < counter.max_instances;
                    match self.values.get_mut(&texts) {
                        Some((value, latest)) => (*value, *latest) = (value.wrapping_add(1), now),
                        None if has_room => drop(self.values.insert(texts, (1, now))),
                        None => self.cut += 1,
                    }
                }
                Err(why) => skipped.note(why),
            }
        }
        // A counter must not go back: a series goes as a whole, when nobody has seen it change for long. One without labels is the metric.
        let forget_after = self.declared.forget_after;
        self.values.retain(|texts, (_, latest)| texts.is_empty() || now.duration_since(*latest) < forget_after);
        if counter.labels.is_empty() {
            self.values.entry(Texts::new()).or_insert((0, now));
        }
        skipped
    }

    /// Returns the series and their values.
    pub fn values(&self) -> impl Iterator<Item = (&Texts, u64)> {
        self.values.iter().map(|(texts, (value, _))| (texts, *value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::user::PairConfig;
    use std::time::Duration;

    fn counter(more: &str) -> Counter {
        let text = format!(
            "metrics: {{counters: [{{name: a, help: a, perf_event_array: true, flush_interval: 60s, {more}}}]}}"
        );
        PairConfig::parse("x.yaml", text.as_bytes()).expect("it is right").counters.remove(0)
    }

    fn events(keys: &[u32]) -> Events {
        let bytes = keys.iter().flat_map(|key| key.to_ne_bytes()).collect();
        Events { bytes, count: keys.len(), ..Events::default() }
    }

    #[test]
    fn events_add_up_and_old_series_go_as_a_whole() {
        let counter = counter("max_instances: 2, labels: [{name: id, size: 4, decoders: [{name: uint}]}]");
        let mut series = EventSeries::new(counter.events.expect("it counts events"));
        let mut names = Names::default();
        let start = Instant::now();
        let shown = |series: &EventSeries| -> Vec<(String, u64)> {
            let text = |texts: &Texts| String::from_utf8_lossy(&texts[0]).into_owned();
            series.values().map(|(texts, value)| (text(texts), value)).collect()
        };
        series.count(&counter, &Events { lost: 3, short: 1, ..events(&[1, 2, 1, 7]) }, &mut names, start);
        assert_eq!(shown(&series), [("1".into(), 2), ("2".into(), 1)]);
        assert_eq!((series.lost, series.cut), (3, 1), "7 is one instance too many");
        series.count(&counter, &events(&[2]), &mut names, start + Duration::from_secs(59));
        assert_eq!(shown(&series), [("1".into(), 2), ("2".into(), 2)]);
        series.count(&counter, &events(&[]), &mut names, start + Duration::from_secs(60));
        assert_eq!(shown(&series), [("2".into(), 2)], "nobody saw 1 change for a minute");
    }

    #[test]
    fn a_counter_of_events_without_labels_never_goes() {
        let counter = counter("units: count");
        let mut series = EventSeries::new(counter.events.expect("it counts events"));
        let start = Instant::now();
        series.count(&counter, &Events { count: 2, ..Events::default() }, &mut Names::default(), start);
        series.count(&counter, &events(&[]), &mut Names::default(), start + Duration::from_secs(600));
        assert_eq!(series.values().map(|(_, value)| value).collect::<Vec<_>>(), [2]);
    }
}
