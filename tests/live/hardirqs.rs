//! hardirqs against ftrace's records of the same events.

use crate::common::skip;
use crate::common::tracers::{Event, Readings};
use crate::support::{alone, names, number, Agent};
use corebcc::kit::Table;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::time::{Duration, Instant};

/// Writes to the disk, and to the console, for a while: one of them interrupts.
fn write() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let mut console = OpenOptions::new().write(true).open("/dev/console").ok();
    let end = Instant::now() + Duration::from_millis(500);
    while Instant::now() < end {
        file.write_all(&[0; 4096]).unwrap();
        File::sync_all(file.as_file()).unwrap();
        // A console may be one that cannot be written to.
        let _ = console.as_mut().map(|console| console.write_all(b"\r"));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the count of each handler.
fn counted(table: &Table) -> BTreeMap<String, u64> {
    names(table).into_iter().enumerate().map(|(row, name)| (name, number(table, row, 0))).collect()
}

/// Returns the number of handlers that ended, by interrupt and name: `irq=24 name=virtio0`, then `irq=24 ret=handled` on the same CPU. Only
/// interrupts with one handler have the name of it here.
fn by_handler(events: &[Event]) -> BTreeMap<String, u64> {
    let word = |event: &Event, word: &str| {
        let text = event.text.split(' ').find_map(|part| part.strip_prefix(word));
        text.unwrap_or_else(|| panic!("{event:?}")).to_owned()
    };
    let (mut handlers, mut counts) = (BTreeMap::new(), BTreeMap::new());
    for event in events {
        let irq = word(event, "irq=");
        if event.name == "irq_handler_entry" {
            handlers.insert(irq, event.text.split("name=").nth(1).unwrap().to_owned());
        } else if let Some(name) = handlers.get(&irq) {
            *counts.entry(format!("{irq}::{name}")).or_default() += 1;
        }
    }
    counts
}

fn interrupts_are_counted(mut agent: Agent) {
    let Some(readings) = Readings::record(&["irq/irq_handler_entry", "irq/irq_handler_exit"]) else {
        return skip("tracefs");
    };
    let before = readings.reading(|| counted(&agent.table()));
    write();
    let after = readings.reading(|| counted(&agent.table()));
    let [between, around] = readings.end();
    let (least, most) = (by_handler(&between), by_handler(&around));
    let mut all = 0;
    for (name, count) in after.iter().filter(|(name, _)| *name != "other") {
        let count = count - before.get(name).unwrap_or(&0);
        let bounds = [&least, &most].map(|counts| counts.get(name).copied().unwrap_or(0));
        println!("{name}: {count} of {bounds:?}");
        assert!((bounds[0]..=bounds[1]).contains(&count), "{name}: {count}, {bounds:?}");
        all += count;
    }
    assert!(all > 10, "{all}");
    assert!(least.keys().all(|name| after.contains_key(name)), "{least:?}, {after:?}");
    assert_eq!(after["other"], 0, "{after:?}");
    agent.assert_complete();
}

#[test]
fn handlers_run_as_often_as_ftrace_records() {
    let _alone = alone();
    interrupts_are_counted(Agent::new("hardirqs", "prometheus = True"));
}

#[test]
fn handlers_count_the_same_by_raw_tracepoints() {
    let _alone = alone();
    interrupts_are_counted(Agent::avoiding("tp_btf", "hardirqs", ""));
}
