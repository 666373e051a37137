//! How the agent grows with the machine: a fetch of all metrics of a table, request to reply, over a kernel in memory with more and more
//! disks, cgroups, processes and CPUs, each of them busy. `cargo bench --bench scale` writes a line of CSV for each; docs/costs.md draws them.
//!
//! Times are processor time, the least of several rounds. Memory is what the agent allocates, without the maps. A record of pmlogger with all
//! these metrics has the bytes of the reply.

use corebcc::catalog::ServedTable;
use corebcc::kit::{Buckets, Host, Running, Table, TableSpec, Window};
use corebcc::modules::biolatency::disks::dev;
use corebcc::modules::find;
use corebcc::modules::places::PlacedHistograms;
use corebcc::pcp::Pmid;
use fake::{
    cgroup_maps, configured, count_in, count_in_cgroups, disk_histograms, disk_maps, fetch, modules, processor_time,
    Conversation, Direct, Maps, OfModule, Services, CGROUP_DISK, CGROUP_RUNQ, DOMAIN, HOST,
};
use nix::libc;
use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use std::time::Duration;

mod fake;

const ROUNDS: usize = 5;

/// Returns the bytes that the program has allocated.
fn allocated() -> usize {
    // SAFETY: it reads numbers of the allocator.
    let all = unsafe { libc::mallinfo2() };
    all.uordblks + all.hblkhd
}

/// Returns the least processor time of some rounds, before each of which something counts.
fn least(mut count: impl FnMut(), mut work: impl FnMut()) -> Duration {
    let round = |_| {
        count();
        let start = processor_time();
        work();
        processor_time() - start
    };
    (0..ROUNDS).map(round).min().unwrap_or_default()
}

/// Measures one table of a module over maps, or all that it yields, and prints the line. `count` makes all instances busy.
fn measure(
    number: usize,
    (module, table): (&'static str, Option<&'static TableSpec>),
    maps: Maps,
    make: impl FnOnce(&Maps) -> Running,
    count: impl Fn(&Maps),
) {
    let maps = Arc::new(maps);
    let before = allocated();
    let running = Arc::new(make(&maps));
    let look = least(|| count(&maps), || running.tick(&*maps));
    let (enabled, _) = modules(&[module], &HOST);
    let is_asked = |spec| table.map_or(running.yields(spec), |table| std::ptr::eq(table, spec));
    let tables = || enabled.iter().flat_map(|module| module.tables()).filter(|table| is_asked(table.spec));
    let of_table = |table: ServedTable| (table.id, (table.spec, Arc::clone(&running), Arc::clone(&maps)));
    let direct = Direct { modules: tables().map(of_table).collect(), said: false };
    let mut pmcd = Conversation::new(tables(), direct);
    let pmids = |table: ServedTable| {
        table.spec.metrics.iter().map(move |metric| Pmid::new(DOMAIN, table.id.cluster(), metric.item))
    };
    let request = fetch(tables().flat_map(pmids));
    let reply = least(|| count(&maps), || _ = black_box(pmcd.ask(&request)));
    let memory = allocated() - before;
    println!("{module},{number},{},{},{},{}", reply.as_micros(), look.as_micros(), memory / 1024, pmcd.answer.len());
}

fn of_cgroups<R: 'static>(number: usize, module: &'static OfModule<R>) {
    let (of, maps) = cgroup_maps(module, number, number);
    let spec = find(module.name).expect("it is a module").tables[0];
    let make = |maps: &Maps| {
        let tree = Ok(Services(number as u64));
        let cgroups = PlacedHistograms::new(of, tree, Window(Duration::from_secs(60)), Buckets::default());
        let running = Running::of(cgroups)
            .table(spec, |cgroups, kernel, table| cgroups.fill(kernel, table))
            .tick(|cgroups, kernel| cgroups.tick(kernel))
            .started();
        (0..24).for_each(|round| count_in_cgroups(maps, module, round));
        running
    };
    measure(number, (module.name, Some(spec)), maps, make, |maps| count_in_cgroups(maps, module, 7));
}

/// Takes the only module, with its maps.
fn only(direct: Direct) -> (Running, Maps) {
    let (_, running, maps) = direct.modules.into_values().next().expect("there is one");
    let others = "its other tables are dropped";
    (Arc::into_inner(running).expect(others), Arc::into_inner(maps).expect(others))
}

/// Processes of netproc: a fourth of the places for threads are taken, each by a process.
fn of_processes(threads: usize) {
    let host = Host { threads, ..HOST };
    let (enabled, direct) = modules(&["netproc"], &host);
    let spec = enabled[0].spec.tables[0];
    let (running, maps) = only(direct);
    let mut table = Table::of(spec);
    running.read(spec, &maps, &mut table).expect("nothing can fail");
    let processes = table.len();
    measure(processes, ("netproc", Some(spec)), maps, |_| running, |_| ());
}

/// A module with rows by CPU, with an option, on a machine with so many CPUs.
fn of_cpus(cpus: usize, module: &'static str, option: &str) {
    let (_, direct) = configured(&format!("[{module}]\n{option}\n"), &Host { cpus, ..HOST });
    let (running, maps) = only(direct);
    let count = |maps: &Maps| {
        let words = maps.maps.iter().flat_map(|(_, words)| words);
        words.for_each(|word| _ = word.fetch_add(1, Relaxed));
    };
    measure(cpus, (module, None), maps, |_| running, count);
}

fn main() {
    println!("of,number,fetch_us,look_us,memory_kB,record_bytes");
    for disks in [10, 32, 100, 316, 1000] {
        let table = ("biolatency", Some(&dev::TABLE));
        measure(disks, table, disk_maps(disks), |_| disk_histograms(), |maps| count_in(maps, 1));
    }
    for cgroups in [64, 512, 4096, 16384, 65536] {
        of_cgroups(cgroups, &CGROUP_RUNQ);
    }
    for cgroups in [64, 512, 4096, 16384] {
        of_cgroups(cgroups, &CGROUP_DISK);
    }
    for threads in [1000, 2500, 5000, 10_000] {
        of_processes(threads);
    }
    for (module, option) in [("runqlat", "per_cpu = True"), ("syscount", "latency = True"), ("softirqs", "wait = True")]
    {
        for cpus in [4, 16, 64, 256] {
            of_cpus(cpus, module, option);
        }
    }
}
