//! The transcripts in docs/show.md, made by the code of `show` from tables with known content. `UPDATE=1` rewrites them.

use super::choose::choose;
use super::output::{add_columns, as_lines};
use super::reading::{Earlier, Reading};
use super::screen::Screen;
use super::{list, narrow, records, suits};
use crate::catalog::EnabledModule;
use crate::cli::{parse, Command, Form, ShowOptions};
use crate::kit::{series_metric, Buckets, Fine, Metric, Table};
use chrono::{DateTime, Local, TimeZone, Utc};
use std::path::Path;
use std::time::Duration;

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/show.md");

/// A screen whose width fits into the document.
const SCREEN: Screen = Screen { size: Some((100, 40)), moves: false, colours: false };

/// Returns the values of a module at the end of each interval, and the number of events so far.
fn values(module: &str, round: u64) -> (Vec<Table>, Option<u64>) {
    match module {
        "biolatency" => {
            let mut table = Table::new(1);
            let [fast, slow] = [21 + round * 90, round * round];
            table.log2(Metric::new(0), &[0, 0, 0, 0, 0, fast, 5 * fast, fast, 0, 0, 2 * slow, slow]);
            let mut tables = vec![table, disks(round), Table::new(8), Table::new(28), buckets(round)];
            tables.resize_with(crate::modules::find("biolatency").unwrap().tables.len(), || Table::new(10));
            (tables, None)
        }
        "execsnoop" => {
            let mut table = Table::new(5);
            for row in 0..round.min(1) + 1 {
                let pid = (4100 + 2 * round - row) as u32;
                table
                    .indexed(row as u32)
                    .text(Metric::new(0), b"sh")
                    .set(Metric::<u32>::new(1), pid)
                    .set(Metric::<u32>::new(2), 871)
                    .set(Metric::<i32>::new(3), 0)
                    .text(Metric::new(4), format!("/bin/sh -c \"job {pid}\"").as_bytes());
            }
            (
                vec![table],
                Some(match round {
                    0 => 0,
                    1 => 2,
                    _ => 7,
                }),
            )
        }
        "syscount" => {
            let mut table = Table::new(3);
            for (number, name, calls) in [(0, "read", 812), (1, "write", 407), (232, "epoll_wait", 96), (3, "close", 0)]
            {
                table
                    .numbered(number, name.as_bytes())
                    .set(Metric::<u64>::new(0), round * calls)
                    .set(Metric::<u64>::new(1), 1200 + calls)
                    .set(Metric::<u64>::new(2), round * calls * (1200 + calls));
            }
            (vec![table], None)
        }
        "netproc" => {
            let mut table = Table::new(8);
            for (pid, name, scale) in [(812, "000812 /usr/sbin/sshd", 3), (4107, "004107 /usr/bin/curl", 40)] {
                let mut row = table.process(pid, name.as_bytes());
                for column in 0..8 {
                    let count = if column < 4 { round * scale * [12, 9000, 30, 84000][column] } else { 0 };
                    row = row.set(Metric::<u64>::new(column), count);
                }
            }
            (vec![table], None)
        }
        "profile" => {
            let mut status = Table::new(1);
            status.single().text(Metric::new(0), b"{\"status\": \"started\", \"data\": null}");
            let mut stacks = Table::new(1);
            stacks.numbered(7, b"curl,main,curl::transfer,[unknown]").set(Metric::<u64>::new(0), 31 * round);
            stacks.numbered(9, b"curl,main,read,vfs_read_[k]").set(Metric::<u64>::new(0), 12 * round);
            (vec![status, stacks], None)
        }
        other => panic!("docs/show.md shows {other}, which has no values here"),
    }
}

/// The result of loading on a kernel without ZFS.
fn trial(modules: &[EnabledModule]) -> list::Trial {
    let reason = "no way to attach to zpl_open (errno 19): needs OpenZFS (modprobe zfs) and fentry or kprobes";
    modules.iter().map(|module| (module.spec.name, (module.spec.name == "zfsdist").then(|| reason.into()))).collect()
}

/// A table of two disks, one of them slow.
fn disks(round: u64) -> Table {
    let mut table = Table::new(60);
    for (name, reads, us) in [("sda", 40, 4200), ("vda", 700, 90)] {
        let mut row = table.named(name.as_bytes());
        for (phase, share) in [(0, 10), (1, 9), (2, 1)] {
            let us = us * share / 10;
            let values = [round * reads, round * reads * us * 1000, us * 9 / 10, us * 2, us * 5, us * 9, us * 11];
            for (metric, value) in values.into_iter().enumerate() {
                row = row.set(series_metric(phase, metric), value);
            }
        }
    }
    table
}

/// The buckets of reads of both disks.
fn buckets(round: u64) -> Table {
    let mut table = Table::new(4);
    for bucket in Fine::served(Buckets::Log2) {
        let count = match bucket.id {
            5 => 70,
            6 => 550,
            7 => 80,
            11 => 9,
            12 => 31,
            13 => (round % 7) * 3,
            _ => 0,
        };
        table.numbered(bucket.id, bucket.name.as_bytes()).set(Metric::<u64>::new(0), round * count);
    }
    table
}

/// Returns the output of a command: its reading `COUNT`, or all readings in a heat map.
fn transcript(command: &str) -> String {
    let words = command.split(' ').skip_while(|word| *word != "pmdacorebcc");
    let words = words.take_while(|word| *word != "|").map(|word| word.trim_matches('\'').into());
    let mut options = match parse(words) {
        Ok(Command::Show(options)) => options,
        other => panic!("{command}: {other:?}"),
    };
    if options.form == Form::List {
        return list::list(&options, SCREEN.width(), |modules| Ok(trial(modules))).unwrap();
    }
    let chosen = choose(&options).and_then(|mut chosen| {
        narrow(&options, &mut chosen.selected);
        suits(&options, &chosen.selected).map(|()| chosen)
    });
    let chosen = match chosen {
        Ok(chosen) => chosen,
        Err(error) => return format!("pmdacorebcc: {error}\n"),
    };
    let rounds = options.count.take().unwrap_or(1);
    let (mut out, mut maps) = (String::new(), Vec::new());
    for round in 1..=rounds {
        let mut tables = Vec::new();
        for selected in &chosen.selected {
            let module =
                chosen.modules.iter().find(|module| module.settings.section == selected.table.section).unwrap();
            let place = module.tables().position(|table| table.id == selected.table.id).unwrap();
            let [(mut before, events_before), (mut now, events)] =
                [round - 1, round].map(|round| values(module.spec.name, round));
            let new = events.zip(events_before).map(|(events, before)| events - before);
            tables.push((selected, before.swap_remove(place), now.swap_remove(place), new));
        }
        let readings: Vec<Reading<'_>> = tables
            .iter()
            .map(|(of, before, now, new)| Reading {
                of,
                table: now,
                earlier: Some(Earlier::new(before)),
                new: *new,
                time: clock(round, &options),
                covers: options.interval.unwrap(),
                waits_for: None,
            })
            .collect();
        match options.form {
            Form::Heatmap => out = add_columns(&mut maps, &readings, &options, SCREEN),
            _ => {
                if options.form == Form::Csv && round == 1 {
                    out += &records::csv_head(&readings[0]);
                }
                readings.iter().for_each(|reading| out += &as_lines(reading, &options, SCREEN));
            }
        }
    }
    out
}

/// Returns ten o'clock in the local time zone of the test, plus a number of intervals.
fn clock(round: u64, options: &ShowOptions) -> DateTime<Local> {
    let start = Local.from_local_datetime(&Utc.with_ymd_and_hms(2026, 3, 2, 10, 0, 0).unwrap().naive_utc()).unwrap();
    start + Duration::from_secs_f64(options.interval.unwrap().as_secs_f64() * round as f64)
}

/// Replaces the output in each block marked `text` that begins with a prompt and a command. The prompt of commands that fail is `#`:
/// tests/commands.sh runs the others.
fn with_transcripts(page: &str) -> String {
    let zone = clock(0, &ShowOptions { interval: Some(Duration::ZERO), ..some_options() }).format("%:z").to_string();
    let mut parts = page.split("```text\n");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (block, after) = part.split_once("```\n").expect("a block ends");
        let command = block.lines().next().unwrap_or_default();
        out += "```text\n";
        match command.starts_with(['$', '#']) {
            true => {
                let printed = transcript(command).replace(&zone, "+01:00");
                assert_eq!(command.starts_with('#'), printed.starts_with("pmdacorebcc: "), "{command}");
                out += &format!("{command}\n{}```\n{after}", printed.trim_start());
            }
            false => out += part,
        }
    }
    out
}

fn some_options() -> ShowOptions {
    match parse(["pmdacorebcc", "show", "x"].map(Into::into)) {
        Ok(Command::Show(options)) => options,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_document_has_what_the_commands_print() {
    let page = std::fs::read_to_string(DOCUMENT).unwrap();
    let wanted = with_transcripts(&page);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(Path::new(DOCUMENT), &wanted).unwrap();
    }
    assert!(
        page.matches("```text\n$ ").count() > 8 && page.matches("```text\n# ").count() == 2,
        "the document shows the forms"
    );
    assert_eq!(std::fs::read_to_string(DOCUMENT).unwrap(), wanted, "UPDATE=1 rewrites docs/show.md");
}
