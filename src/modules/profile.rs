//! Stack sampling on demand: `pmstore bcc.proc.profile start`, later `stop`, then the value is a tree of stacks. Kernel side:
//! bpf/profile.bpf.c; samples are collected by stacks.rs.

use super::shared::stacks::{Order, Run, Stacks};
use crate::bpf::{record, types, types::prof_sample, types::prof_stat};
use crate::host::{forget_symbols, in_namespace, unnamed, Watch};
use crate::kit::*;
use crate::pcp::PmErr;
use crate::{maps, metrics, options};
use thiserror::Error;

metrics! {
    PROFILE: str = 0 "proc.profile" INSTANT NONE "stack sampling: its status, and the stacks of the last run";
}

maps! {
    ring SAMPLES: prof_sample = "prof_samples";
    rows STATS: prof_stat = "prof_stats";
}

options! {
    /// Sample only the first process that matches when sampling starts; without a match it does not start.
    process: ProcessFilter = ProcessFilter::default();
    /// Leave the kernel's part of the stacks out.
    user_stacks_only: bool = false;
    /// Leave the user's part of the stacks out.
    kernel_stacks_only: bool = false;
    /// Different stacks to keep; samples of further stacks count for their command only.
    stack_storage_size: Count = Count(16384);
    /// Samples per second and CPU.
    sample_frequency: Count = Count(47);
    /// Nanoseconds of CPU time between two samples, if the frequency is 0.
    sample_period: Count = Count(1_000_000);
    /// The CPU to sample.
    cpu: Cpu = Cpu(None);
}

static SAMPLE: Hook = Hook {
    name: "cpu-clock",
    tiers: &[Tier { kind: "perf_event", programs: &["perf__profile"] }],
    needs: "perf events (CONFIG_PERF_EVENTS) and the right to open them: root or CAP_PERFMON",
};

mod by_stack {
    use super::*;

    metrics! {
        SAMPLES: u64 = 0 "proc.stacks" COUNTER COUNT "stack sampling: samples by stack, as flame graphs take them";
    }

    pub static TABLE: TableSpec =
        TableSpec { started_by: Some(&super::TABLE), ..TableSpec::numbered("each stack", 310, METRICS) };

    pub fn fill(stacks: &Stacks, table: &mut Table) {
        stacks.fill(table, SAMPLES);
    }
}

static TABLE: TableSpec = TableSpec { cluster: 14, shape: Shape::Single, metrics: METRICS, ..TableSpec::NEW };

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "profile",
    summary: "stack sampling on demand",
    overhead: Overhead::low("6 us per sample, between start and stop only"),
    needs: "CONFIG_PERF_EVENTS",
    tables: &[&TABLE, &by_stack::TABLE],
    options: OPTIONS,
    hooks: &[&SAMPLE],
    maps: MAPS,
    needs_to_run: &[Need::PerfEvents, Need::KernelSymbols, Need::FilesOfProcesses],
    make: |setup| {
        let options = Options::read(setup.section)?;
        Ok(Box::new(Profile {
            name: setup.section.name().into(),
            options,
            run: Run::new(setup.section.name()),
            stacks: Stacks::default(),
            data: None,
            unkept: 0,
        }))
    },
    ..Spec::NEW
};

/// Bytes of the ring for each CPU, of at most 16: four seconds of its samples.
const RING: usize = 512 << 10;

struct Profile {
    name: String,
    options: Options,
    run: Run,
    stacks: Stacks,
    /// The tree of the last run as JSON.
    data: Option<String>,
    /// Number of samples, in all runs, that were not kept since there were too many stacks.
    unkept: u64,
}

/// Reason why a run does not start.
#[derive(Debug, Error)]
enum StartError {
    #[error("no process to profile")]
    NoProcess,
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

impl Profile {
    fn begin(&mut self, kernel: &dyn Kernel) -> Result<(), StartError> {
        let process = if self.options.process.is_all() { 0 } else { self.find().ok_or(StartError::NoProcess)? };
        if let Some(row) = kernel.rows(STATS).get(0) {
            row.set(prof_stat::process, u64::from(process));
        }
        let (rate, by_frequency) = match self.options.sample_frequency.0 {
            0 => (self.options.sample_period.0, false),
            frequency => (frequency, true),
        };
        kernel.drain(&SAMPLES, &mut |_| {}); // what was left of the last run
        kernel.sample(&SAMPLE, Sampling { rate, by_frequency, cpu: self.options.cpu.0 })?;
        forget_symbols();
        self.stacks.begin();
        self.data = None;
        Ok(())
    }

    /// Returns the first process that the option matches.
    fn find(&self) -> Option<u32> {
        let mut found = Vec::new();
        let filter = self.options.process.clone();
        Watch::new(&self.name, filter, None).tick(&mut |pid, _| found.push(pid));
        found.sort_unstable();
        if found.len() > 1 {
            log::info!("{}: Several PIDs found, tracing the first one.", self.name);
        }
        found.first().copied()
    }

    fn end(&mut self, kernel: &dyn Kernel) {
        kernel.detach(&SAMPLE);
        self.drain(kernel);
        self.data = Some(self.stacks.take_tree());
        forget_symbols();
    }

    fn drain(&mut self, kernel: &dyn Kernel) {
        let (most, stacks, unkept) = (self.options.stack_storage_size.0 as usize, &mut self.stacks, &mut self.unkept);
        kernel.drain(&SAMPLES, &mut |bytes| {
            let Some(sample) = record::<prof_sample>(bytes) else { return };
            if !stacks.add(&sample, most) {
                *unkept += 1;
            }
        });
    }
}

impl Module for Profile {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        if !self.options.process.is_all() {
            plan.require_host_pid_namespace(host);
        } else if in_namespace() && !self.options.kernel_stacks_only {
            log::warn!("{}: in a PID namespace user functions cannot be resolved", self.name);
        }
        let ring = table_size(host.cpus * RING, 2 * RING, 16 * RING);
        constants.prof_no_kernel = self.options.user_stacks_only;
        constants.prof_no_user = self.options.kernel_stacks_only;
        constants.prof_wake_at = ring as u64 / 2;
        plan.load_on_demand(&SAMPLE);
        plan.entries(SAMPLES.name, ring);
        plan.entries(STATS.def.name, 1);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        Running::of(*self)
            .table(&TABLE, Self::fill)
            .table(&by_stack::TABLE, Self::fill_stacks)
            .woken(Self::drain)
            .store(Self::store)
            .losses(Self::losses)
            .started()
    }
}

impl Profile {
    fn fill_stacks(&mut self, kernel: &dyn Kernel, table: &mut Table) {
        if self.run.is_on() {
            self.drain(kernel);
        }
        by_stack::fill(&self.stacks, table);
    }

    fn fill(&mut self, _kernel: &dyn Kernel, table: &mut Table) {
        let (status, data) = (self.run.state(), self.data.as_deref().unwrap_or("null"));
        table.single().text(PROFILE, format!("{{\"status\": \"{status}\", \"data\": {data}}}").as_bytes());
    }

    fn store(&mut self, kernel: &dyn Kernel, _metric: &MetricDef, value: &[u8]) -> Result<(), PmErr> {
        match self.run.order(value)? {
            Some(Order::Start) => {
                if let Err(error) = self.begin(kernel) {
                    self.run.failed(error);
                }
            }
            Some(Order::Stop) => self.end(kernel),
            Some(Order::Clear) => (self.stacks, self.data) = (Stacks::default(), None),
            None => {}
        }
        Ok(())
    }

    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        each("ring-full: samples dropped because the ring buffer was full", kernel.rows(STATS).sum(prof_stat::dropped));
        each(
            "files-unread: files that were not read for names of functions, since it would have taken too long",
            unnamed(),
        );
        each(
            "stacks-full: samples that count for their command only, since there were too many different stacks",
            self.unkept,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::shared::stacks::tests::{named, sample};
    use super::*;
    use crate::bpf::record_bytes;
    use crate::pcp::Atom;

    fn module() -> Running {
        let module = Profile {
            name: "profile".into(),
            options: Options::default(),
            run: Run::new("profile"),
            stacks: Stacks::default(),
            data: None,
            unkept: 0,
        };
        Box::new(module).start(&Fake::new())
    }

    fn value(module: &Running, fake: &Fake) -> String {
        let table = fake.filled(&TABLE, module);
        match table.value(0, 0) {
            Some(Atom::Str(text)) => String::from_utf8_lossy(text).into_owned(),
            other => panic!("{other:?}"),
        }
    }

    fn stacks(module: &Running, fake: &Fake) -> Vec<(String, u64)> {
        named(&fake.filled(&by_stack::TABLE, module))
    }

    #[test]
    fn a_run_is_started_and_stopped_by_stores() {
        let fake = Fake::new().with(STATS, 1);
        let module = module();
        assert_eq!(value(&module, &fake), r#"{"status": "stopped", "data": null}"#);
        assert_eq!(module.store(&fake, &METRICS[0], b"start"), Ok(()));
        assert_eq!(fake.attached(), ["cpu-clock"]);
        assert_eq!(value(&module, &fake), r#"{"status": "started", "data": null}"#);
        assert_eq!(module.store(&fake, &METRICS[0], b"start"), Ok(()));
        fake.record(&record_bytes(&sample(b"sh", 0)));
        assert_eq!(stacks(&module, &fake), [("sh".into(), 1)], "while it runs");
        fake.record(&record_bytes(&sample(b"sh", -17)));
        assert_eq!(module.store(&fake, &METRICS[0], b"stop"), Ok(()));
        assert!(fake.attached().is_empty());
        assert_eq!(
            value(&module, &fake),
            r#"{"status": "stopped", "data": {"name": "root", "libtype": null, "value": 2, "children": [{"name": "sh", "libtype": "user", "value": 2, "children": [{"name": "[Missed Kernel Stack]", "libtype": "kernel", "value": 1, "children": []}]}]}}"#
        );
        assert_eq!(stacks(&module, &fake), [("sh".into(), 1), ("sh,[Missed_Kernel_Stack]_[k]".into(), 1)]);
        assert_eq!(module.store(&fake, &METRICS[0], b"stop"), Ok(()));
        assert_eq!(module.store(&fake, &METRICS[0], b"pause"), Err(PmErr::BADSTORE));
        assert_eq!(module.store(&fake, &METRICS[0], b"start"), Ok(()));
        fake.record(&record_bytes(&sample(b"sh", 0)));
        assert_eq!(
            stacks(&module, &fake),
            [("sh".into(), 2), ("sh,[Missed_Kernel_Stack]_[k]".into(), 1)],
            "a counter does not step back"
        );
        assert_eq!(module.store(&fake, &METRICS[0], b"clear"), Ok(()));
        assert_eq!(stacks(&module, &fake).len(), 2, "not while it runs");
        assert_eq!(module.store(&fake, &METRICS[0], b"stop"), Ok(()));
        assert!(value(&module, &fake).contains(r#""name": "root", "libtype": null, "value": 1"#), "of this run");
        assert_eq!(module.store(&fake, &METRICS[0], b"clear"), Ok(()));
        assert!(stacks(&module, &fake).is_empty());
        assert_eq!(value(&module, &fake), r#"{"status": "stopped", "data": null}"#);
    }
}
