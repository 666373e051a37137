//! A kernel in memory for benchmarks: maps of the sizes that modules request, and modules over them.

#![allow(dead_code)] // each benchmark uses a part of it

use corebcc::agent::{Agent, Options};
use corebcc::bpf::types::{bio_row, bio_small, cgd_row, cgd_side, cgq_row, fine_hist, place_owner, tcp_session};
use corebcc::bpf::{self, record_bytes, Field};
use corebcc::catalog::{enabled_modules, Collect, EnabledModule, Help, Registry, ServedTable, TableError};
use corebcc::config::Config;
use corebcc::host::Cgroup;
use corebcc::kit::{
    Attachment, Buckets, Hook, Host, Kernel, KernelError, MapDef, MapKind, Metric, Pattern, Plan, Rows, Running,
    Sampling, SeriesLabels, Setup, Table, TableId, TableSpec, Target, Window, SERIES_METRICS,
};
use corebcc::modules::biolatency::disks::{dev, DiskHistograms, DiskNamer};
use corebcc::modules::biolatency::filter::DiskFilter;
use corebcc::modules::cgroups::Tree;
use corebcc::modules::places::{Beyond, ByPlace};
use corebcc::modules::MODULES;
use corebcc::pcp::Pmid;
use corebcc::pdu::{Creds, Deframer, Pdu};
use nix::time::{clock_gettime, ClockId};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Duration;

pub const DOMAIN: u32 = 149;

/// Returns the processor time of this thread, without that of others.
pub fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("every Linux has it").into()
}

/// A server of usual size.
pub const HOST: Host =
    Host { cpus: 64, disks: 16, threads: 2000, requests: 16 * 256, memory: 1 << 16, pid_namespace: false };
const SESSIONS: usize = 20;

/// Maps of the sizes that the modules request, as full as on a busy machine.
pub struct Maps {
    /// Words of each map by its name.
    pub maps: Vec<(&'static str, Vec<AtomicU64>)>,
    /// Records of the ring.
    pub sessions: Vec<Vec<u8>>,
}

impl Maps {
    pub fn of(spec: &'static corebcc::kit::Spec, plan: &Plan) -> Maps {
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
pub struct Direct {
    /// Each by its table.
    pub modules: BTreeMap<TableId, (&'static TableSpec, Arc<Running>, Arc<Maps>)>,
    /// True once it was told that they are loaded.
    pub said: bool,
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
            let result = running.read(spec, &**maps, &mut table);
            back(id, table, result.map_err(TableError::from));
        }
    }
}

/// Makes these modules with their default configuration for a machine of this size.
pub fn modules(names: &[&str], host: &Host) -> (Vec<EnabledModule>, Direct) {
    let text = names.iter().map(|name| format!("[{name}]\n")).collect::<String>();
    configured(&text, host)
}

/// Makes the modules with these sections for a machine of this size, each with the tables that it has by its options.
pub fn configured(sections: &str, host: &Host) -> (Vec<EnabledModule>, Direct) {
    let names: Vec<&str> = sections.lines().filter_map(|line| line.strip_prefix('[')?.strip_suffix(']')).collect();
    let mut text = format!("[pmda]\nmodules = {}\n{sections}", names.join(","));
    for spec in MODULES.iter().filter(|spec| names.contains(&spec.name)) {
        let section = format!("[{}]\n", spec.name);
        let heading = format!("{section}module = {}\ncluster = {}\n", spec.path(), spec.cluster());
        text = text.replace(&section, &heading);
    }
    let config = Config::parse("bench", text.as_bytes()).expect("it is written above");
    let (_, enabled) = enabled_modules(&config, MODULES).expect("it is written above");
    let modules = enabled
        .iter()
        .flat_map(|enabled| {
            let section = config.section(&enabled.settings.section).expect("it is written above");
            let setup = Setup::new(&section);
            let mut module = (enabled.spec.make)(&setup).expect("defaults are valid");
            let mut plan = Plan::default();
            module.plan(host, &mut plan, &mut bpf::constants());
            let maps = Arc::new(Maps::of(enabled.spec, &plan));
            let running = Arc::new(module.start(&*maps));
            let tables = enabled.tables().filter(|table| running.yields(table.spec)).collect::<Vec<_>>();
            tables.into_iter().map(move |table| (table.id, (table.spec, Arc::clone(&running), Arc::clone(&maps))))
        })
        .collect();
    (enabled, Direct { modules, said: false })
}

/// Makes a fetch of these metrics, as sent by pmcd.
pub fn fetch(pmids: impl IntoIterator<Item = Pmid>) -> Vec<u8> {
    let mut bytes = Vec::new();
    Pdu::Fetch { context: 0, pmids: pmids.into_iter().collect() }.encode(1, &mut bytes);
    bytes
}

/// Passes bytes to a deframer, like the transport.
pub fn receive(deframer: &mut Deframer, bytes: &[u8]) {
    let mut sent = 0;
    while sent < bytes.len() {
        let room = deframer.spare();
        let count = room.len().min(bytes.len() - sent);
        room[..count].copy_from_slice(&bytes[sent..sent + count]);
        deframer.filled(count);
        sent += count;
    }
}

/// A connection of pmcd with an agent that serves modules.
pub struct Conversation {
    agent: Agent<Registry>,
    deframer: Deframer,
    /// Answer to the last request.
    pub answer: Vec<u8>,
}

impl Conversation {
    /// Connects pmcd with an agent that serves these tables of the modules.
    pub fn new(tables: impl IntoIterator<Item = ServedTable>, modules: Direct) -> Conversation {
        let mut registry = Registry::new(DOMAIN, tables, Help::parse(""), None, Box::new(modules));
        assert!(registry.poll(), "loaded at once");
        let agent = Agent::new(registry, Options::default());
        let mut connected = Conversation { agent, deframer: Deframer::new(), answer: Vec::new() };
        let mut creds = Vec::new();
        Pdu::Creds(Creds { version: 2, flags: 0 }).encode(1, &mut creds);
        connected.ask(&creds);
        connected
    }

    /// Sends a request, and keeps the answer, whose length it returns.
    pub fn ask(&mut self, request: &[u8]) -> usize {
        self.answer.clear();
        receive(&mut self.deframer, request);
        let frame = self.deframer.next().expect("it is well-formed").expect("it is whole");
        self.agent.handle(&frame, &mut self.answer);
        self.answer.len()
    }
}

/// Makes the rows of disks in two groups of CPUs, as on a machine with 256 CPUs: reads, writes, flushes and discards
/// with 24 to 40 buckets that have counted.
pub fn disk_maps(disks: usize) -> Maps {
    const GROUPS: usize = 2;
    assert_eq!(size_of::<fine_hist>() % 8, 0);
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
pub fn count_in(maps: &Maps, part: usize) {
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

/// Makes the module's table of disks.
pub fn disk_histograms() -> Running {
    let namer = DiskNamer {
        look_up: |number| Some((format!("sd{}", number.minor).into_bytes(), Vec::new())),
        filter: DiskFilter::new(Pattern::default(), |_| None),
        is_above: |_| false,
    };
    let disks = DiskHistograms::new(&[&dev::DEF], Window(Duration::from_secs(60)), Buckets::default(), namer);
    DiskHistograms::add_tables(Running::of(disks), &[&dev::DEF], false, |disks| Some(disks))
        .tick(DiskHistograms::tick)
        .started()
}

/// Cgroups with ids from 1.
pub struct Services(pub u64);

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
pub struct OfModule<R: 'static> {
    /// Name of the module.
    pub name: &'static str,
    /// Names of the maps of owners, rows and marks.
    pub maps: [&'static str; 3],
    /// Histograms of a row.
    pub histograms: &'static [Field<R, fine_hist>],
}

/// cgroup_disk.
pub const CGROUP_DISK: OfModule<cgd_row> = OfModule {
    name: "cgroup_disk",
    maps: ["cgd_owners", "cgd_rows", "cgd_marks"],
    histograms: &[
        cgd_row::read.then(cgd_side::total),
        cgd_row::read.then(cgd_side::queue),
        cgd_row::write.then(cgd_side::total),
        cgd_row::write.then(cgd_side::queue),
    ],
};
/// cgroup_runq.
pub const CGROUP_RUNQ: OfModule<cgq_row> =
    OfModule { name: "cgroup_runq", maps: ["cgq_owners", "cgq_rows", "cgq_marks"], histograms: &[cgq_row::waits] };

/// Makes the maps of a module by cgroup with this number of places, of which so many are taken, in two groups of CPUs.
pub fn cgroup_maps<R: 'static>(module: &OfModule<R>, taken: usize, places: usize) -> (&'static ByPlace<R>, Maps) {
    const GROUPS: usize = 2;
    let OfModule { maps: [owners, rows, marks], histograms, .. } = module;
    // It lives as long as the program, as the modules' own.
    let of: &'static ByPlace<R> = Box::leak(Box::new(ByPlace {
        owners: Rows::new(owners),
        rows: Rows::new(rows),
        marks: Rows::new(marks),
        histograms,
        counters: &[],
        name: Metric::new(histograms.len() * SERIES_METRICS.len()),
        beyond: Beyond { loss: "", counted: &[], timed: &[] },
    }));
    let owner = |place: usize| [if place < taken { place as u64 + 1 } else { 0 }, 0].map(AtomicU64::new);
    assert_eq!(size_of::<place_owner>(), 16);
    let words = size_of::<R>() / 8;
    let maps = Maps {
        maps: vec![
            (owners, (0..places).flat_map(owner).collect()),
            (rows, (0..GROUPS * (places + 1) * words).map(|_| AtomicU64::new(0)).collect()),
            (marks, (0..GROUPS * (places + 1)).map(|_| AtomicU64::new(1)).collect()),
        ],
        sessions: Vec::new(),
    };
    (of, maps)
}

/// Adds one to each histogram of all cgroups, in a bucket of this round.
pub fn count_in_cgroups<R>(maps: &Maps, module: &OfModule<R>, round: usize) {
    let words = size_of::<R>() / 8;
    for row in maps.maps[1].1.chunks(words).filter(|row| row.len() == words) {
        for histogram in module.histograms {
            let at = histogram.offset() / 8;
            row[at].fetch_add(100_000, Relaxed);
            row[at + 100 + 2 * (round % 24)].fetch_add(1, Relaxed);
        }
    }
}
