//! References to the last-level cache and misses. The processors count; there is no kernel side: src/host/cpu_counters.rs has the
//! perf events.

use crate::host::{series_name, Cgroup, Cgroups, Controller, Counts, CpuCounters};
use crate::kit::*;
use crate::{metrics, options};
use perf_event::events::Hardware;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

mod cpu {
    use super::*;

    metrics! {
        REFERENCES: u64 = 0 "hw.llc.references.count" COUNTER COUNT "references to the last-level cache, by CPU";
        MISSES: u64 = 1 "hw.llc.misses.count" COUNTER COUNT "references that the last-level cache did not have, by CPU";
    }

    pub static TABLE: TableSpec = TableSpec::numbered("each CPU", 482, METRICS);

    pub fn put(row: RowMut<'_>, counts: Counts) {
        row.set(REFERENCES, counts[0]).set(MISSES, counts[1]);
    }
}

mod cgroup {
    use super::*;

    metrics! {
        REFERENCES: u64 = 0 "cgroup.hw.llc.references.count" COUNTER COUNT "references of a cgroup's tasks to the last-level cache";
        MISSES: u64 = 1 "cgroup.hw.llc.misses.count" COUNTER COUNT "references of a cgroup's tasks that the last-level cache did not have";
    }

    pub static TABLE: TableSpec = TableSpec {
        summary: "each cgroup of the option \"cgroups\"",
        cluster: 483,
        shape: Shape::Named { max: MOST_CGROUPS },
        metrics: METRICS,
        options: &["cgroups"],
        ..TableSpec::NEW
    };

    pub fn put(row: RowMut<'_>, counts: Counts) {
        row.set(REFERENCES, counts[0]).set(MISSES, counts[1]);
    }
}

options! {
    /// Cgroups of v2 to count separately, with those below them: paths such as /system.slice/db.service. Each takes two descriptors for each CPU.
    cgroups: Paths = Paths(Vec::new());
}

/// Highest number of cgroups, since the kernel switches counters whenever a task of another cgroup runs.
const MOST_CGROUPS: usize = 32;

/// Paths of cgroups below the mount.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Paths(Vec<String>);

impl OptionType for Paths {
    const EXPECTED: &'static str =
        "at most 32 paths that begin with / and have no . or .. in them, separated by commas";
    fn read(value: &OptionValue<'_>) -> Result<Self, SetupError> {
        let paths: Vec<String> = value.list().iter().map(|path| path.to_string()).collect();
        let is_path = |path: &String| path.starts_with('/') && !path.split('/').any(|part| part == "." || part == "..");
        if paths.len() > MOST_CGROUPS || !paths.iter().all(is_path) {
            return Err(value.error(Self::EXPECTED));
        }
        Ok(Paths(paths))
    }
    fn show(&self) -> String {
        self.0.join(",")
    }
}

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "llcstat",
    summary: "references to the last-level cache and misses, by CPU and by cgroup",
    overhead: Overhead::low("0 ns per reference, which the processor counts, and with cgroups a change of counters per switch to a task of another one"),
    needs: "counters of the processor (a PMU), which most virtual machines lack",
    tables: &[&cpu::TABLE, &cgroup::TABLE],
    options: OPTIONS,
    needs_to_run: &[Need::PerfEvents],
    make: |setup| Ok(Box::new(Llcstat::new(Options::read(setup.section)?))),
    ..Spec::NEW
};

const EVENTS: [Hardware; 2] = [Hardware::CACHE_REFERENCES, Hardware::CACHE_MISSES];

struct Llcstat {
    cgroups: Vec<Followed>,
    mount: Option<Cgroups>,
    all: Option<CpuCounters<Hardware>>,
    log: EveryMinute,
}

/// A cgroup of the option, which may be removed and made again.
struct Followed {
    path: String,
    running: Option<(Cgroup, CpuCounters<Hardware>)>,
    labels: Arc<SeriesLabels>,
    /// Counts of cgroups that had this path before.
    before: Counts,
}

impl Llcstat {
    fn new(options: Options) -> Llcstat {
        let follow = |path| Followed { path, running: None, labels: Arc::default(), before: [0; 2] };
        let cgroups = options.cgroups.0.into_iter().map(follow).collect();
        Llcstat { cgroups, mount: None, all: None, log: EveryMinute::default() }
    }

    /// Opens counters for what has appeared since the last call: CPUs, and cgroups with a path of the option.
    fn follow(&mut self) {
        let mut refused = None;
        if let Some(all) = &mut self.all {
            refused = all.follow_cpus().err().map(|error| ("all tasks".to_string(), error));
        }
        let Some(mount) = &self.mount else { return };
        for cgroup in &mut self.cgroups {
            if let Err(error) = cgroup.follow(mount) {
                refused = Some((format!("the cgroup {}", cgroup.path), error));
            }
        }
        if let Some((whose, error)) = refused {
            if let Some(more) = self.log.due() {
                crate::module_log!(warn, "counters of {whose} cannot be opened: {error}{more}");
            }
        }
    }
}

impl Followed {
    fn follow(&mut self, mount: &Cgroups) -> io::Result<()> {
        let directory = mount.open(self.path.as_bytes());
        let id = directory.as_ref().ok().and_then(|directory| Some(directory.metadata().ok()?.ino()));
        if self.running.as_ref().map(|(cgroup, _)| cgroup.id) == id {
            return self.running.as_mut().map_or(Ok(()), |(_, counters)| counters.follow_cpus());
        }
        self.before = self.counts();
        self.running = None;
        let (Some(id), Ok(directory)) = (id, directory) else { return Ok(()) };
        let cgroup = Cgroup { id, path: self.path.clone().into_bytes() };
        self.labels = Arc::new(mount.labels(&cgroup.path));
        self.running = Some((cgroup, CpuCounters::open(EVENTS, Some(directory))?));
        Ok(())
    }

    fn counts(&mut self) -> Counts {
        let running = self.running.iter_mut().flat_map(|(_, counters)| counters.read());
        running.fold(self.before, |sum, (_, counts)| [0, 1].map(|event| sum[event] + counts[event]))
    }

    /// Adds the cgroup's row. A cgroup that never existed has none.
    fn fill(&mut self, table: &mut Table) {
        let counts = self.counts();
        let cgroup = self.running.as_ref().map(|(cgroup, _)| series_name(cgroup));
        let gone = || (counts != [0; 2]).then(|| series_name(&Cgroup { id: 0, path: self.path.clone().into_bytes() }));
        if let Some(name) = cgroup.or_else(gone) {
            cgroup::put(table.named(&name).labels(&self.labels), counts);
        }
    }
}

impl Module for Llcstat {
    fn plan(&mut self, _host: &Host, plan: &mut Plan, _constants: &mut crate::bpf::types::rodata) {
        match CpuCounters::open(EVENTS, None) {
            Ok(counters) => self.all = Some(counters),
            Err(error) => return plan.refuse(refusal(&error)),
        }
        if !self.cgroups.is_empty() {
            match Cgroups::of(Controller::Unified) {
                Ok(mount) => self.mount = Some(mount),
                Err(error) => self.cgroups.iter().for_each(|cgroup| plan.leave_out(&cgroup.path, error.to_string())),
            }
        }
        self.follow();
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        let by_cgroup = !self.cgroups.is_empty();
        Running::of(*self)
            .table(&cpu::TABLE, |module, _, table| {
                for (cpu, counts) in module.all.iter_mut().flat_map(CpuCounters::read) {
                    cpu::put(table.numbered(cpu as u32, format!("cpu{cpu}").as_bytes()), counts);
                }
            })
            .when(by_cgroup, |running| {
                running.table(&cgroup::TABLE, |module, _, table| {
                    module.cgroups.iter_mut().for_each(|cgroup| cgroup.fill(table));
                })
            })
            .tick(|module, _| module.follow())
            .started()
    }
}

/// Returns the sentence about counters that perf_event_open(2) refused.
fn refusal(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            format!("counters of the processor need root or CAP_PERFMON, and a kernel that allows them: perf_event_open: {error}")
        }
        _ => format!(
            "the processor shows no counters of its cache: perf_event_open: {error}; a virtual machine has them if its hypervisor \
             passes the PMU on (QEMU: -cpu host,pmu=on)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_without_counters_is_told_so() {
        let missing = refusal(&io::Error::from_raw_os_error(2));
        assert!(
            missing.starts_with("the processor shows no counters of its cache: perf_event_open: No such"),
            "{missing}"
        );
        let refused = refusal(&io::Error::from_raw_os_error(13));
        assert!(refused.contains("need root or CAP_PERFMON"), "{refused}");
    }
}
