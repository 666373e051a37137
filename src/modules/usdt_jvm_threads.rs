//! Threads that Java virtual machines start and stop. Kernel side: bpf/usdt_jvm_threads.bpf.c.

use super::shared::hits::Counters;
use super::shared::runtimes::{numbered, runtime, Language, BEYOND, JAVA};
use crate::bpf::types::{self, hit};
use crate::host::{open_regular, Probe, ProbeFiles};
use crate::kit::*;
use crate::process::{NoProbes, ProcessProbes, Sites};
use crate::{maps, metrics, options, user_code};
use std::path::PathBuf;

metrics! {
    START: u64 = 0 "usdt.jvm.threads.start" COUNTER COUNT "threads that JVMs started";
    STOP: u64 = 1 "usdt.jvm.threads.stop" COUNTER COUNT "threads of JVMs that ended";
}

maps! {
    rows ROWS: hit = "jt_hits";
}

options! {
    /// Only these processes count. With USDT probes: if only PIDs are listed, probes are attached to those processes alone; otherwise to
    /// the executables they run.
    process: ProcessFilter = ProcessFilter::default();
    /// The JVM's library: without `process`, all processes that use it count.
    jvm_path: FilePath = FilePath(PathBuf::from("/etc/alternatives/jre/lib/server/libjvm.so"));
}

/// The path of a file.
#[derive(Clone, Debug)]
struct FilePath(PathBuf);

impl OptionType for FilePath {
    const EXPECTED: &'static str = "the absolute path of a file";
    fn read(value: &OptionValue<'_>) -> Result<Self, SetupError> {
        Ok(FilePath(value.text().trim().into()))
    }
    fn show(&self) -> String {
        self.0.display().to_string()
    }
}

static SITE: Hook = user_code!("USDT probe of threads", "usdt_jvm_threads");

/// Names of the probes; the index of each is its number.
const PROBES: [&str; 2] = ["thread__start", "thread__stop"];

static TABLE: TableSpec = TableSpec { cluster: 110, shape: Shape::Single, metrics: METRICS, ..TableSpec::NEW };

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "usdt_jvm_threads",
    summary: "threads of Java virtual machines",
    overhead: Overhead::low(
        "36 ns per start or end of a thread, and 880 ns for the breakpoint, in the virtual machine",
    ),
    needs: "CONFIG_UPROBE_EVENTS and a JVM with USDT probes",
    tables: &[&TABLE],
    options: OPTIONS,
    hooks: &[&SITE],
    maps: MAPS,
    needs_to_run: &[Need::FilesOfProcesses, Need::UserProbes],
    make: |setup| {
        let options = Options::read(setup.section)?;
        if options.process.is_all() && options.jvm_path.0.is_relative() {
            return Err(setup.section.reject("jvm_path", format!("expected {}", FilePath::EXPECTED)));
        }
        let probes = (!options.process.is_all()).then(|| ProcessProbes::new(setup.section.name(), options.process));
        Ok(Box::new(JvmThreads { path: options.jvm_path.0, probes, seen: false }))
    },
    ..Spec::NEW
};

struct JvmThreads {
    path: PathBuf,
    /// The probes of each process, if there is a filter; without one the loader attaches to all processes.
    probes: Option<ProcessProbes>,
    /// True once there was a process to count.
    seen: bool,
}

fn number(probe: &Probe) -> Option<u32> {
    PROBES.iter().position(|name| probe.name == *name).map(|number| number as u32)
}

fn find(files: &mut ProbeFiles, pid: u32) -> Sites {
    let (_, its) = runtime(files, pid, Language(Some(JAVA)))?;
    match numbered(&its, number) {
        sites if sites.is_empty() => Err(NoProbes("no probes of threads in this build of java".into())),
        sites => Ok(sites),
    }
}

impl JvmThreads {
    /// Plans to attach to all processes that use the library.
    fn everywhere(&mut self, plan: &mut Plan) {
        let file = match ProbeFiles::default().read(open_regular(&self.path), &self.path) {
            Ok(file) => file,
            Err(fault) => return plan.refuse(format!("{fault}; set the option jvm_path, or process")),
        };
        for probe in &file.probes {
            let Some(number) = number(probe) else { continue };
            let target = Target::Code {
                path: self.path.clone(),
                offset: probe.offset,
                semaphore: probe.semaphore,
                process: None,
                name: probe.name.clone(),
            };
            plan.attach_template(&SITE, target, number);
        }
        if plan.targets.is_empty() {
            plan.refuse(format!("{}: no probes of threads in this build", self.path.display()));
        }
    }
}

fn counters() -> Counters {
    Counters::new(ROWS, PROBES.len())
}

impl Module for JvmThreads {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        match &self.probes {
            Some(probes) => constants.jt_filter = probes.plan(plan, &SITE),
            None => self.everywhere(plan),
        }
        constants.jt_stride = counters().size(host, plan);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        Running::of(*self)
            .table(&TABLE, Self::refresh)
            .tick(Self::tick)
            .due(|module| module.probes.as_ref()?.due())
            .waits_for(|module, _| module.probes.as_ref()?.waits_for("threads"))
            .losses(|module, _, each| module.probes.iter().for_each(|probes| each(BEYOND, probes.beyond())))
            .started()
    }
}

impl JvmThreads {
    fn refresh(&mut self, kernel: &dyn Kernel, table: &mut Table) {
        if self.probes.is_none() || self.seen {
            table.single().set(START, counters().sum(kernel, 0)).set(STOP, counters().sum(kernel, 1));
        }
    }

    fn tick(&mut self, kernel: &dyn Kernel) {
        if let Some(probes) = &mut self.probes {
            probes.tick(kernel, &SITE, &mut find);
            self.seen |= probes.attached().next().is_some();
        }
    }
}
