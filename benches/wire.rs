//! Cost of a fetch in the agent itself, without kernel and pmcd: decoding, refreshing, encoding, and all three in
//! sequence. `cargo bench --bench wire`

#![allow(missing_docs)] // criterion's macros

use corebcc::host::NoCgroups;
use corebcc::kit::{Buckets, Table, Window};
use corebcc::modules::biolatency::disks::dev;
use corebcc::modules::find;
use corebcc::modules::places::PlacedHistograms;
use corebcc::pcp::{Atom, Pmid};
use corebcc::pdu::{Deframer, Pdu, ResultWriter};
use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{criterion_group, criterion_main, Criterion};
use fake::{
    cgroup_maps, count_in, count_in_cgroups, disk_histograms, disk_maps, fetch, modules, processor_time, receive,
    Conversation, OfModule, Services, CGROUP_DISK, CGROUP_RUNQ, DOMAIN, HOST,
};
use std::hint::black_box;
use std::time::Duration;

mod fake;

/// Processor time of this thread, without that of others.
struct ProcessorTime;

type Bench = Criterion<ProcessorTime>;

impl Measurement for ProcessorTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        processor_time()
    }

    fn end(&self, start: Duration) -> Duration {
        processor_time() - start
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

const NAMES: [&str; 6] = ["biolatency", "sysfork", "tcplife", "runqlat", "exectop", "netproc"];

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
        let (_, direct) = modules(&[name], &HOST);
        let (spec, running, maps) = direct.modules.values().next().expect("there is one");
        let mut table = Table::of(spec);
        running.read(spec, &**maps, &mut table).expect("nothing can fail");
        assert!(!table.is_empty(), "{name}: nothing to measure");
        c.bench_function(&format!("refresh {name}"), |b| {
            b.iter(|| {
                table.clear();
                running.read(spec, &**maps, &mut table).expect("nothing can fail");
                black_box(table.len())
            });
        });
    }
}

fn whole(c: &mut Bench) {
    let (enabled, direct) = modules(&NAMES, &HOST);
    let tables = || enabled.iter().flat_map(|module| module.tables().take(1));
    let clusters: Vec<(u32, u32)> = tables()
        .flat_map(|table| table.spec.metrics.iter().map(move |metric| (table.id.cluster(), metric.item)))
        .collect();
    let mut pmcd = Conversation::new(tables(), direct);

    let histograms = fetch([Pmid::new(DOMAIN, 0, 0), Pmid::new(DOMAIN, 4, 0)]);
    let processes = fetch((0..8).map(|item| Pmid::new(DOMAIN, 40, item)));
    let everything = fetch(clusters.iter().map(|&(cluster, item)| Pmid::new(DOMAIN, cluster, item)));
    let fetches = [
        ("both histograms", histograms),
        ("8 metrics of 2048 processes", processes),
        ("all metrics of six modules", everything),
    ];
    for (name, bytes) in fetches {
        let length = pmcd.ask(&bytes);
        assert!(length > 500, "{name}: {length} bytes are no values");
        c.bench_function(&format!("fetch {name}, request to reply"), |b| b.iter(|| black_box(pmcd.ask(&bytes))));
    }
}

/// Measures counts, sums and quantiles of disks with 4 operations, if all, a tenth or none have counted since the last
/// fetch; and the tick once a second.
fn disks(c: &mut Bench) {
    for count in [250, 500, 1000] {
        let maps = disk_maps(count);
        let disks = disk_histograms();
        disks.tick(&maps);
        let mut table = Table::of(&dev::TABLE);
        for (what, part) in [("all", Some(2)), ("a tenth", Some(20)), ("none", None)] {
            c.bench_function(&format!("refresh {count} disks, {what} busy"), |b| {
                b.iter_custom(|rounds| {
                    let mut spent = Duration::ZERO;
                    for _ in 0..rounds {
                        part.iter().for_each(|&part| count_in(&maps, part));
                        table.clear();
                        let start = processor_time();
                        assert!(disks.read(&dev::TABLE, &maps, &mut table).is_ok());
                        spent += processor_time() - start;
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
                    let start = processor_time();
                    disks.tick(&maps);
                    spent += processor_time() - start;
                }
                spent
            });
        });
    }
}

/// Measures counts, sums and quantiles of cgroups that have all counted since the last fetch, in two groups of CPUs;
/// and the tick once a second.
fn cgroups(c: &mut Bench) {
    for count in [125, 250, 500] {
        of_cgroups(c, count, &CGROUP_DISK);
        of_cgroups(c, count, &CGROUP_RUNQ);
    }
}

fn of_cgroups<R: 'static>(c: &mut Bench, count: usize, module: &OfModule<R>) {
    let (of, maps) = cgroup_maps(module, count, 1024);
    let name = module.name;
    let tree: Result<Services, NoCgroups> = Ok(Services(count as u64));
    let mut cgroups = PlacedHistograms::new(of, tree, Window(Duration::from_secs(60)), Buckets::default());
    (0..24).for_each(|round| count_in_cgroups(&maps, module, round));
    cgroups.tick(&maps);
    let mut table = Table::of(find(name).expect("it is a module").tables[0]);
    c.bench_function(&format!("refresh {count} busy cgroups of {name}"), |b| {
        b.iter_custom(|rounds| {
            let mut spent = Duration::ZERO;
            for round in 0..rounds {
                count_in_cgroups(&maps, module, round as usize);
                table.clear();
                let start = processor_time();
                cgroups.fill(&maps, &mut table);
                spent += processor_time() - start;
                assert_eq!(table.len(), count + 1);
            }
            spent
        });
    });
    c.bench_function(&format!("look at {count} busy cgroups of {name}"), |b| {
        b.iter_custom(|rounds| {
            let mut spent = Duration::ZERO;
            for round in 0..rounds {
                count_in_cgroups(&maps, module, round as usize);
                let start = processor_time();
                cgroups.tick(&maps);
                spent += processor_time() - start;
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
