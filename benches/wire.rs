//! Cost of a fetch in the agent itself, without kernel and pmcd: decoding, refreshing, encoding, and all three in
//! sequence. `cargo bench --bench wire`

#![allow(missing_docs)] // criterion's macros

use corebcc::agent::{Agent, Options};
use corebcc::bpf::types::{bio_row, bio_small, cgd_row, cgd_side, cgq_row, fine_hist, place_owner, tcp_session};
use corebcc::bpf::{self, record_bytes, Field};
use corebcc::catalog::{enabled_modules, Collect, EnabledModule, Help, Registry, TableError};
use corebcc::config::Config;
use corebcc::host::{Cgroup, NoCgroups};
use corebcc::kit::{
    Attachment, Buckets, Hook, Host, Kernel, KernelError, MapDef, MapKind, Metric, Pattern, Plan, Rows, Running,
    Sampling, SeriesLabels, Setup, Table, TableId, TableSpec, Target, Window, SERIES_METRICS,
};
use corebcc::modules::biolatency::disks::{dev, DiskHistograms, DiskNamer};
use corebcc::modules::biolatency::filter::DiskFilter;
use corebcc::modules::cgroups::Tree;
use corebcc::modules::places::{ByPlace, PlacedHistograms};
use corebcc::modules::{find, MODULES};
use corebcc::pcp::{Atom, Pmid};
use corebcc::pdu::{Creds, Deframer, Pdu, ResultWriter};
use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{criterion_group, criterion_main, Criterion};
use nix::time::{clock_gettime, ClockId};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Processor time of this thread, without that of others.
struct ProcessorTime;

type Bench = Criterion<ProcessorTime>;

impl ProcessorTime {
    fn now() -> Duration {
        clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("every Linux has it").into()
    }
}

impl Measurement for ProcessorTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        ProcessorTime::now()
    }

    fn end(&self, start: Duration) -> Duration {
        ProcessorTime::now() - start
    }

    fn add(&self, one: &Duration, other: &Duration) -> Duration {
        *one + *other
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        WallTime.to_f64(value)
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

const DOMAIN: u32 = 149;
const NAMES: [&str; 6] = ["biolatency", "sysfork", "tcplife", "runqlat", "exectop", "netproc"];
/// A server of usual size.
const HOST: Host =
    Host { cpus: 64, disks: 16, threads: 2000, requests: 16 * 256, memory: 1 << 16, pid_namespace: false };
const SESSIONS: usize = 20;

/// Maps of the sizes that the modules request, as full as on a busy machine.
struct Maps {
    maps: Vec<(&'static str, Vec<AtomicU64>)>,
    sessions: Vec<Vec<u8>>,
}

impl Maps {
    fn of(spec: &'static corebcc::kit::Spec, plan: &Plan) -> Maps {
        let map = |def: &MapDef| {
            let rows = plan.entries.iter().find(|(name, _)| *name == def.name).map_or(1, |(_, entries)| *entries);
            let words = def.value_size / 8;
            let word = |at: usize| AtomicU64::new(word(def.name, at / words, at % words));
            (def.name, (0..rows as usize * words).map(word).collect())
        };
        let session =
            record_bytes(&tcp_session { pid: 4711, family: 2, lport: 80, rport: 54321, ..Default::default() });
        Maps {
            maps: spec.maps.iter().filter(|def| def.kind == MapKind::Rows).map(map).collect(),
            sessions: vec![session; SESSIONS],
        }
    }
}

/// Returns a word of a row. Every fourth place of the table of threads is taken, each by a process of its own: 2048 of
/// them; other tables have counters and names.
fn word(map: &str, row: usize, at: usize) -> u64 {
    match (map, at) {
        ("netproc_threads", _) if !row.is_multiple_of(4) => 0,
        ("netproc_threads", 0) => (100_000 + row as u64) << 32 | (100_000 + row as u64),
        ("netproc_threads", 2) => 1,
        ("netproc_threads", 3) => 0,
        ("netproc_names", 0) => u64::from_ne_bytes(*b"command\0"),
        ("exec_rows", 0) => u64::from_ne_bytes(*b"name\0\0\0\0") + row as u64,
        ("exec_rows", 1) => 0,
        _ => (row * 7 + at) as u64 % 1000 + 1,
    }
}

impl Kernel for Maps {
    fn words(&self, map: &MapDef) -> &[AtomicU64] {
        self.maps.iter().find(|(name, _)| *name == map.name).map_or(&[], |(_, words)| words)
    }

    fn drain(&self, _ring: &MapDef, each: &mut dyn FnMut(&[u8])) {
        self.sessions.iter().for_each(|session| each(session));
    }

    fn call(&self, _hook: &'static Hook, _arguments: &[u64]) -> Result<u32, KernelError> {
        Ok(0)
    }

    fn reaches(&self, _template: &'static Hook, _number: u32) -> bool {
        true
    }

    fn sample(&self, _hook: &'static Hook, _sampling: Sampling) -> Result<(), KernelError> {
        Ok(())
    }

    fn detach(&self, _hook: &'static Hook) {}

    fn attach(&self, _hook: &'static Hook) -> Result<(), KernelError> {
        Ok(())
    }

    fn attach_to(&self, _template: &'static Hook, _target: &Target, _number: u32) -> Result<Attachment, KernelError> {
        Ok(Attachment::new(()))
    }
}

/// Modules with their maps, refreshed in the calling thread.
struct Direct {
    modules: BTreeMap<TableId, (&'static TableSpec, Running, Maps)>,
    said: bool,
}

impl Collect for Direct {
    fn loaded(&mut self) -> Option<Vec<(TableId, Result<(), TableError>)>> {
        (!std::mem::replace(&mut self.said, true)).then(|| self.modules.keys().map(|id| (*id, Ok(()))).collect())
    }

    fn stop(&mut self) {}

    fn store(&mut self, _table: TableId, _column: usize, _instance: &[u8], _value: &[u8]) -> Result<(), TableError> {
        Err(TableError::ReadOnly)
    }

    fn refresh(
        &mut self,
        tables: &mut dyn Iterator<Item = (TableId, Table)>,
        back: &mut dyn FnMut(TableId, Table, Result<(), TableError>),
    ) {
        for (id, mut table) in tables {
            let Some((spec, running, maps)) = self.modules.get(&id) else { continue };
            table.clear();
            let result = running.read(spec, maps, &mut table);
            back(id, table, result.map_err(TableError::from));
        }
    }
}

/// Makes these modules with their default configuration.
fn modules(names: &[&str]) -> (Vec<EnabledModule>, Direct) {
    let mut text = format!("[pmda]\nmodules = {}\n", names.join(","));
    for spec in MODULES.iter().filter(|spec| names.contains(&spec.name)) {
        text += &format!("[{}]\nmodule = {}\ncluster = {}\n", spec.name, spec.path(), spec.cluster());
    }
    let config = Config::parse("bench", text.as_bytes()).expect("it is written above");
    let (_, enabled) = enabled_modules(&config, MODULES).expect("it is written above");
    let modules = enabled
        .iter()
        .map(|enabled| {
            let section = config.section(&enabled.settings.section).expect("it is written above");
            let setup = Setup::new(&section);
            let mut module = (enabled.spec.make)(&setup).expect("defaults are valid");
            let mut plan = Plan::default();
            module.plan(&HOST, &mut plan, &mut bpf::constants());
            let maps = Maps::of(enabled.spec, &plan);
            let running = module.start(&maps);
            (TableId::new(enabled.settings.cluster), (enabled.spec.tables[0], running, maps))
        })
        .collect();
    (enabled, Direct { modules, said: false })
}

/// Makes a fetch of these metrics, as sent by pmcd.
fn fetch(pmids: impl IntoIterator<Item = Pmid>) -> Vec<u8> {
    let mut bytes = Vec::new();
    Pdu::Fetch { context: 0, pmids: pmids.into_iter().collect() }.encode(1, &mut bytes);
    bytes
}

/// Passes bytes to a deframer, like the transport.
fn receive(deframer: &mut Deframer, bytes: &[u8]) {
    let mut sent = 0;
    while sent < bytes.len() {
        let room = deframer.spare();
        let count = room.len().min(bytes.len() - sent);
        room[..count].copy_from_slice(&bytes[sent..sent + count]);
        deframer.filled(count);
        sent += count;
    }
}

fn decode(c: &mut Bench) {
    let bytes = fetch((0..100).map(|item| Pmid::new(DOMAIN, item / 10, item % 10)));
    let mut deframer = Deframer::new();
    c.bench_function("decode a fetch of 100 metrics", |b| {
        b.iter(|| {
            receive(&mut deframer, &bytes);
            let frame = deframer.next().expect("it is well-formed").expect("it is whole");
            let Ok(Pdu::Fetch { pmids, .. }) = Pdu::decode(&frame) else { panic!("it is a fetch") };
            pmids.iter().map(|pmid| pmid.0).fold(0u32, u32::wrapping_add)
        });
    });
}

fn encode(c: &mut Bench) {
    let (mut writer, mut out) = (ResultWriter::new(), Vec::new());
    c.bench_function("encode a result of both histograms", |b| {
        b.iter(|| {
            out.clear();
            let mut result = writer.begin(&mut out, 0, 0, 2);
            for cluster in [0, 4] {
                result.metric(Pmid::new(DOMAIN, cluster, 0));
                for slot in 0..32_u32 {
                    result.value(slot, &Atom::U64(u64::from(slot) * 1_000_003));
                }
            }
            result.finish();
            black_box(out.len())
        });
    });
}

fn refresh(c: &mut Bench) {
    for name in NAMES {
        let (_, direct) = modules(&[name]);
        let (spec, running, maps) = direct.modules.values().next().expect("there is one");
        let mut table = Table::of(spec);
        running.read(spec, maps, &mut table).expect("nothing can fail");
        assert!(!table.is_empty(), "{name}: nothing to measure");
        c.bench_function(&format!("refresh {name}"), |b| {
            b.iter(|| {
                table.clear();
                running.read(spec, maps, &mut table).expect("nothing can fail");
                black_box(table.len())
            });
        });
    }
}

fn whole(c: &mut Bench) {
    let (enabled, direct) = modules(&NAMES);
    let tables = || enabled.iter().flat_map(|module| module.tables().take(1));
    let clusters: Vec<(u32, u32)> = tables()
        .flat_map(|table| table.spec.metrics.iter().map(move |metric| (table.id.cluster(), metric.item)))
        .collect();
    let mut registry = Registry::new(DOMAIN, tables(), Help::parse(""), None, Box::new(direct));
    assert!(registry.poll(), "loaded at once");
    let mut agent = Agent::new(registry, Options::default());
    let (mut deframer, mut out) = (Deframer::new(), Vec::new());
    let mut creds = Vec::new();
    Pdu::Creds(Creds { version: 2, flags: 0 }).encode(1, &mut creds);
    receive(&mut deframer, &creds);
    agent.handle(&deframer.next().expect("it is well-formed").expect("it is whole"), &mut out);

    let histograms = fetch([Pmid::new(DOMAIN, 0, 0), Pmid::new(DOMAIN, 4, 0)]);
    let processes = fetch((0..8).map(|item| Pmid::new(DOMAIN, 40, item)));
    let everything = fetch(clusters.iter().map(|&(cluster, item)| Pmid::new(DOMAIN, cluster, item)));
    let fetches = [
        ("both histograms", histograms),
        ("8 metrics of 2048 processes", processes),
        ("all metrics of six modules", everything),
    ];
    for (name, bytes) in fetches {
        receive(&mut deframer, &bytes);
        agent.handle(&deframer.next().expect("it is well-formed").expect("it is whole"), &mut out);
        assert!(out.len() > 500, "{name}: {} bytes are no values", out.len());
        c.bench_function(&format!("fetch {name}, request to reply"), |b| {
            b.iter(|| {
                out.clear();
                receive(&mut deframer, &bytes);
                agent.handle(&deframer.next().expect("it is well-formed").expect("it is whole"), &mut out);
                black_box(out.len())
            });
        });
    }
}

/// Makes the rows of disks in two groups of CPUs, as on a machine with 256 CPUs: reads, writes, flushes and discards
/// with 24 to 40 buckets that have counted.
fn disk_maps(disks: usize) -> Maps {
    const GROUPS: usize = 2;
    let words = |size: usize, histograms: &[usize]| {
        let row = |row: usize| {
            let mut words = vec![0; size / 8];
            words[0] = 1 << 63 | (row / 2 % disks + 1) as u64;
            for (phase, histogram) in histograms.iter().enumerate() {
                words[histogram / 8] = 1_000_000;
                (0..24 + row % 17)
                    .for_each(|bucket| words[histogram / 8 + 100 + 30 * phase + 2 * bucket] = row as u64 + 7);
            }
            words.into_iter().map(AtomicU64::new)
        };
        (0..GROUPS * disks * 2).flat_map(row).collect()
    };
    let full = [bio_row::total, bio_row::device, bio_row::queue].map(|phase| phase.offset());
    Maps {
        maps: vec![
            ("bio_rows", words(size_of::<bio_row>(), &full)),
            ("bio_smalls", words(size_of::<bio_small>(), &[bio_small::total.offset()])),
        ],
        sessions: Vec::new(),
    }
}

/// Adds one to the counts of the first rows of each kind.
fn count_in(maps: &Maps, part: usize) {
    for (name, words) in &maps.maps {
        let (size, histograms) = match *name {
            "bio_rows" => {
                (size_of::<bio_row>(), [bio_row::total, bio_row::device, bio_row::queue].map(|h| h.offset()).to_vec())
            }
            _ => (size_of::<bio_small>(), vec![bio_small::total.offset()]),
        };
        for row in words.chunks(size / 8).take(words.len() / (size / 8) / part) {
            for histogram in &histograms {
                row[histogram / 8].fetch_add(100_000, Relaxed);
                row[histogram / 8 + 110].fetch_add(1, Relaxed);
            }
        }
    }
}

/// Measures counts, sums and quantiles of disks with 4 operations, if all, a tenth or none have counted since the last
/// fetch; and the tick once a second.
fn disks(c: &mut Bench) {
    assert_eq!(size_of::<fine_hist>() % 8, 0);
    for count in [250, 500, 1000] {
        let maps = disk_maps(count);
        let namer = DiskNamer {
            look_up: |number| Some((format!("sd{}", number.minor).into_bytes(), Vec::new())),
            filter: DiskFilter::new(Pattern::default(), |_| None),
            is_above: |_| false,
        };
        let disks = DiskHistograms::new(&[&dev::DEF], Window(Duration::from_secs(60)), Buckets::default(), namer);
        let disks = DiskHistograms::add_tables(Running::of(disks), &[&dev::DEF], false, |disks| Some(disks))
            .tick(DiskHistograms::tick)
            .started();
        disks.tick(&maps);
        let mut table = Table::of(&dev::TABLE);
        for (what, part) in [("all", Some(2)), ("a tenth", Some(20)), ("none", None)] {
            c.bench_function(&format!("refresh {count} disks, {what} busy"), |b| {
                b.iter_custom(|rounds| {
                    let mut spent = Duration::ZERO;
                    for _ in 0..rounds {
                        part.iter().for_each(|&part| count_in(&maps, part));
                        table.clear();
                        let start = ProcessorTime::now();
                        assert!(disks.read(&dev::TABLE, &maps, &mut table).is_ok());
                        spent += ProcessorTime::now() - start;
                        assert_eq!(table.len(), count);
                    }
                    spent
                });
            });
        }
        c.bench_function(&format!("look at {count} busy disks"), |b| {
            b.iter_custom(|rounds| {
                let mut spent = Duration::ZERO;
                for _ in 0..rounds {
                    count_in(&maps, 2);
                    let start = ProcessorTime::now();
                    disks.tick(&maps);
                    spent += ProcessorTime::now() - start;
                }
                spent
            });
        });
    }
}

/// Cgroups with ids from 1.
struct Services(u64);

impl Tree for Services {
    fn walk(&self, each: &mut dyn FnMut(Cgroup)) {
        (1..=self.0).for_each(|id| each(Cgroup { id, path: format!("/system.slice/{id}.service").into() }));
    }

    fn is_there(&self, _cgroup: &Cgroup) -> bool {
        true
    }

    fn labels(&self, _path: &[u8]) -> SeriesLabels {
        Vec::new()
    }
}

/// A module by cgroup: its table, the maps of owners and rows, and the histograms.
struct OfModule<R: 'static> {
    name: &'static str,
    maps: [&'static str; 3],
    histograms: &'static [Field<R, fine_hist>],
}

/// Measures counts, sums and quantiles of cgroups that have all counted since the last fetch, in two groups of CPUs;
/// and the tick once a second.
fn cgroups(c: &mut Bench) {
    const DISK: &[Field<cgd_row, fine_hist>] = &[
        cgd_row::read.then(cgd_side::total),
        cgd_row::read.then(cgd_side::queue),
        cgd_row::write.then(cgd_side::total),
        cgd_row::write.then(cgd_side::queue),
    ];
    const RUNQ: &[Field<cgq_row, fine_hist>] = &[cgq_row::waits];
    for count in [125, 250, 500] {
        of_cgroups(
            c,
            count,
            &OfModule { name: "cgroup_disk", maps: ["cgd_owners", "cgd_rows", "cgd_marks"], histograms: DISK },
        );
        of_cgroups(
            c,
            count,
            &OfModule { name: "cgroup_runq", maps: ["cgq_owners", "cgq_rows", "cgq_marks"], histograms: RUNQ },
        );
    }
}

fn of_cgroups<R: 'static>(c: &mut Bench, count: usize, module: &OfModule<R>) {
    const PLACES: usize = 1024;
    const GROUPS: usize = 2;
    let OfModule { name, maps: [owners, rows, marks], histograms } = module;
    let table = find(name).expect("it is a module").tables[0];
    // It lives as long as the program, as the modules' own.
    let of: &'static ByPlace<R> = Box::leak(Box::new(ByPlace {
        owners: Rows::new(owners),
        rows: Rows::new(rows),
        marks: Rows::new(marks),
        histograms,
        counters: &[],
        name: Metric::new(histograms.len() * SERIES_METRICS.len()),
    }));
    let owner = |place: usize| [if place < count { place as u64 + 1 } else { 0 }, 0].map(AtomicU64::new);
    assert_eq!(size_of::<place_owner>(), 16);
    let words = size_of::<R>() / 8;
    let maps = Maps {
        maps: vec![
            (owners, (0..PLACES).flat_map(owner).collect()),
            (rows, (0..GROUPS * (PLACES + 1) * words).map(|_| AtomicU64::new(0)).collect()),
            (marks, (0..GROUPS * (PLACES + 1)).map(|_| AtomicU64::new(1)).collect()),
        ],
        sessions: Vec::new(),
    };
    let count_in = |round: usize| {
        for row in maps.maps[1].1.chunks(words).filter(|row| row.len() == words) {
            for histogram in *histograms {
                let at = histogram.offset() / 8;
                row[at].fetch_add(100_000, Relaxed);
                row[at + 100 + 2 * (round % 24)].fetch_add(1, Relaxed);
            }
        }
    };
    let tree: Result<Services, NoCgroups> = Ok(Services(count as u64));
    let mut cgroups = PlacedHistograms::new(of, tree, Window(Duration::from_secs(60)), Buckets::default());
    (0..24).for_each(count_in);
    cgroups.tick(&maps);
    let mut table = Table::of(table);
    c.bench_function(&format!("refresh {count} busy cgroups of {name}"), |b| {
        b.iter_custom(|rounds| {
            let mut spent = Duration::ZERO;
            for round in 0..rounds {
                count_in(round as usize);
                table.clear();
                let start = ProcessorTime::now();
                cgroups.fill(&maps, &mut table);
                spent += ProcessorTime::now() - start;
                assert_eq!(table.len(), count + 1);
            }
            spent
        });
    });
    c.bench_function(&format!("look at {count} busy cgroups of {name}"), |b| {
        b.iter_custom(|rounds| {
            let mut spent = Duration::ZERO;
            for round in 0..rounds {
                count_in(round as usize);
                let start = ProcessorTime::now();
                cgroups.tick(&maps);
                spent += ProcessorTime::now() - start;
            }
            spent
        });
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .with_measurement(ProcessorTime)
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = decode, encode, refresh, whole, disks, cgroups
}
criterion_main!(benches);
