//! How the agent grows with the machine: a fetch of all metrics of a table, request to reply, over a kernel in memory with more and more
//! disks, cgroups and processes, each of them busy. `cargo bench --bench scale` writes a line of CSV for each; docs/costs.md draws them.
//!
//! Times are processor time, the least of several rounds. Memory is what the agent allocates, without the maps. A record of pmlogger with all
//! these metrics has the bytes of the reply.

use corebcc::kit::{Buckets, Host, Running, Table, TableSpec, Window};
use corebcc::modules::biolatency::disks::dev;
use corebcc::modules::find;
use corebcc::modules::places::PlacedHistograms;
use corebcc::pcp::Pmid;
use fake::{
    cgroup_maps, count_in, count_in_cgroups, disk_histograms, disk_maps, fetch, modules, processor_time, Conversation,
    Direct, Maps, OfModule, Services, CGROUP_DISK, CGROUP_RUNQ, DOMAIN, HOST,
};
use nix::libc;
use std::collections::BTreeMap;
use std::hint::black_box;
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

/// Measures one table of a module over maps, and prints the line. `count` makes all of its instances busy.
fn measure(
    number: usize,
    (module, spec): (&'static str, &'static TableSpec),
    maps: Maps,
    make: impl FnOnce(&Maps) -> Running,
    count: impl Fn(&Maps),
) {
    let maps = Arc::new(maps);
    let before = allocated();
    let running = make(&maps);
    let look = least(|| count(&maps), || running.tick(&*maps));
    let (enabled, _) = modules(&[module], &HOST);
    let tables = || enabled.iter().flat_map(|module| module.tables()).filter(|table| std::ptr::eq(table.spec, spec));
    let id = tables().next().expect("the module has this table").id;
    let direct = Direct { modules: BTreeMap::from([(id, (spec, running, Arc::clone(&maps)))]), said: false };
    let mut pmcd = Conversation::new(tables(), direct);
    let request = fetch(spec.metrics.iter().map(|metric| Pmid::new(DOMAIN, id.cluster(), metric.item)));
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
    measure(number, (module.name, spec), maps, make, |maps| count_in_cgroups(maps, module, 7));
}

/// Processes of netproc: a fourth of the places for threads are taken, each by a process.
fn of_processes(threads: usize) {
    let host = Host { threads, ..HOST };
    let (enabled, direct) = modules(&["netproc"], &host);
    let spec = enabled[0].spec.tables[0];
    let (_, running, maps) = direct.modules.into_values().next().expect("it is there");
    let mut table = Table::of(spec);
    running.read(spec, &*maps, &mut table).expect("nothing can fail");
    let processes = table.len();
    let maps = Arc::into_inner(maps).expect("nobody else has it");
    measure(processes, ("netproc", spec), maps, |_| running, |_| ());
}

fn main() {
    println!("of,number,fetch_us,look_us,memory_kB,record_bytes");
    for disks in [10, 32, 100, 316, 1000] {
        let table = ("biolatency", &dev::TABLE);
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
}
