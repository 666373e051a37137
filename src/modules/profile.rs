//! Stack sampling on demand: `pmstore bcc.proc.profile start`, later `stop`, then the value is a tree of stacks. Kernel side:
//! bpf/profile.bpf.c. Stacks are named while their processes live.

use crate::bpf::{record, types, types::prof_sample, types::prof_stat};
use crate::kit::*;
use crate::pcp::{json_string, PmErr};
use crate::{maps, metrics, options};
use std::collections::HashMap;
use std::fmt::Write;
use std::mem::offset_of;

metrics! {
    PROFILE: str = 0 "proc.profile" INSTANT NONE "stack sampling: its status, and the stacks of the last run";
}

maps! {
    ring SAMPLES: prof_sample = "prof_samples";
    rows STATS: prof_stat = "prof_stats";
}

options! {
    /// Only the first process found that this means (ids, command names, or regular expressions for whole command lines).
    /// It is looked for at each start; if there is none, nothing is started.
    process: ProcessFilter = ProcessFilter::default();
    /// Leave out the kernel's part of the stacks.
    user_stacks_only: bool = false;
    /// Leave out the user's part of the stacks.
    kernel_stacks_only: bool = false;
    /// How many different stacks to keep; samples of further ones count for their command only.
    stack_storage_size: Count = Count(16384);
    /// Samples a second and CPU.
    sample_frequency: Count = Count(47);
    /// Nanoseconds of CPU time between two samples, if the frequency is 0.
    sample_period: Count = Count(1_000_000);
    /// The CPU to sample; -1: all.
    cpu: Cpu = Cpu(None);
}

static SAMPLE: Hook = Hook {
    name: "cpu-clock",
    tiers: &[Tier { kind: "perf_event", programs: &["perf__profile"] }],
    needs: "perf events (CONFIG_PERF_EVENTS) and the right to open them: root or CAP_PERFMON",
};

/// The declaration.
pub const SPEC: Spec = Spec {
    name: "profile",
    path: "profile",
    summary: "stack sampling on demand",
    cluster: 14,
    shape: Shape::Single,
    metrics: METRICS,
    options: OPTIONS,
    hooks: &[&SAMPLE],
    maps: MAPS,
    make: |setup| {
        let options = Options::read(setup.section)?;
        Ok(Box::new(Profile {
            name: setup.section.name().into(),
            options,
            status: Status::Stopped,
            stacks: Stacks::default(),
            data: None,
        }))
    },
};

/// Four seconds of samples of a CPU; there are at most as many as 16 make.
const RING: usize = 512 << 10;

/// What the Python agent reported; the steps in between last no longer than a request here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    Stopped,
    Started,
}

struct Profile {
    name: String,
    options: Options,
    status: Status,
    stacks: Stacks,
    /// The tree of the last run as JSON.
    data: Option<String>,
}

impl Profile {
    fn start(&mut self, kernel: &dyn Kernel) -> Result<(), String> {
        let process = if self.options.process.is_all() { 0 } else { self.find()? };
        if let Some(row) = kernel.rows(STATS).get(0) {
            row.set(offset_of!(prof_stat, process), u64::from(process));
        }
        let (rate, by_frequency) = match self.options.sample_frequency.0 {
            0 => (self.options.sample_period.0, false),
            frequency => (frequency, true),
        };
        kernel.drain(&SAMPLES, &mut |_| {}); // what was left of the last run
        kernel.sample(&SAMPLE, Sampling { rate, by_frequency, cpu: self.options.cpu.0 })?;
        (self.status, self.stacks, self.data) = (Status::Started, Stacks::default(), None);
        Ok(())
    }

    /// The first process the option means.
    fn find(&self) -> Result<u32, String> {
        let mut found = Vec::new();
        let filter = self.options.process.clone();
        Watch::new(&self.name, filter, None).tick(&mut |pid, _| found.push(pid));
        found.sort_unstable();
        if found.len() > 1 {
            log::info!("{}: Several PIDs found, tracing the first one.", self.name);
        }
        found.first().copied().ok_or_else(|| "no process to profile".into())
    }

    fn stop(&mut self, kernel: &dyn Kernel) {
        kernel.detach(&SAMPLE);
        self.drain(kernel);
        self.status = Status::Stopped;
        self.data = Some(std::mem::take(&mut self.stacks).tree().json());
    }

    fn drain(&mut self, kernel: &dyn Kernel) {
        let (most, stacks) = (self.options.stack_storage_size.0 as usize, &mut self.stacks);
        kernel.drain(&SAMPLES, &mut |bytes| {
            if let Some(sample) = record::<prof_sample>(bytes) {
                stacks.add(&sample, most);
            }
        });
    }
}

impl Module for Profile {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        let ring = table_size(host.cpus * RING, 2 * RING, 16 * RING);
        constants.prof_no_kernel = self.options.user_stacks_only;
        constants.prof_no_user = self.options.kernel_stacks_only;
        constants.prof_wake_at = ring as u64 / 2;
        plan.hook_if(&SAMPLE, "only when it is stored");
        plan.entries(SAMPLES.name, ring);
        plan.entries(STATS.def.name, 1);
    }

    fn refresh(&mut self, _kernel: &dyn Kernel, table: &mut Table) -> Result<(), RefreshError> {
        let status = match self.status {
            Status::Stopped => "stopped",
            Status::Started => "started",
        };
        let data = self.data.as_deref().unwrap_or("null");
        table.single().text(PROFILE, format!("{{\"status\": \"{status}\", \"data\": {data}}}").as_bytes());
        Ok(())
    }

    fn woken(&mut self, kernel: &dyn Kernel) {
        self.drain(kernel);
    }

    /// As the Python agent did, a start while it runs and a stop while it does not are only logged.
    fn store(&mut self, kernel: &dyn Kernel, _column: usize, value: &[u8]) -> Result<(), PmErr> {
        match (value, self.status) {
            (b"start", Status::Stopped) => {
                if let Err(error) = self.start(kernel) {
                    log::error!("{}: not started: {error}", self.name);
                }
            }
            (b"stop", Status::Started) => self.stop(kernel),
            (b"start", _) => log::error!("{}: started already", self.name),
            (b"stop", _) => log::error!("{}: not started", self.name),
            _ => return Err(PmErr::BADSTORE),
        }
        Ok(())
    }

    fn losses(&self, kernel: &dyn Kernel, each: &mut dyn FnMut(&'static str, u64)) {
        each(
            "samples dropped because the ring buffer was full",
            kernel.rows(STATS).sum(offset_of!(prof_stat, dropped)),
        );
    }
}

/// A frame's name and where it runs.
type Frame = (String, &'static str);

/// What tells two stacks apart.
#[derive(PartialEq, Eq, Hash)]
struct Stack {
    pid: u32,
    comm: [u8; 16],
    user: Vec<u64>,
    kernel: Vec<u64>,
    user_missed: bool,
    kernel_missed: bool,
}

/// Samples by stack, and the names of the stacks.
#[derive(Default)]
struct Stacks {
    counts: HashMap<Stack, (u64, Vec<Frame>)>,
    /// Samples whose stack was one too many, by command.
    beyond: HashMap<[u8; 16], u64>,
}

impl Stacks {
    fn add(&mut self, sample: &prof_sample, most: usize) {
        let part = |bytes: i32, stack: &[u64]| {
            let frames = usize::try_from(bytes).unwrap_or(0) / 8;
            stack[..frames.min(stack.len())].to_vec()
        };
        let key = Stack {
            pid: sample.pid,
            comm: sample.comm,
            user: part(sample.user_bytes, &sample.user),
            kernel: part(sample.kernel_bytes, &sample.kernel),
            user_missed: missed(sample.user_bytes),
            kernel_missed: missed(sample.kernel_bytes),
        };
        if let Some((count, _)) = self.counts.get_mut(&key) {
            *count += 1;
        } else if self.counts.len() < most {
            let frames = key.frames();
            self.counts.insert(key, (1, frames));
        } else {
            *self.beyond.entry(sample.comm).or_default() += 1;
        }
    }

    fn tree(self) -> Node {
        let mut root = Node { name: "root".into(), ..Node::default() };
        for (stack, (count, frames)) in self.counts {
            root.add(command(&stack.comm), &frames, count);
        }
        for (comm, count) in self.beyond {
            root.add(command(&comm), &[], count);
        }
        root.sort();
        root
    }
}

impl Stack {
    /// Named, outermost first.
    fn frames(&self) -> Vec<Frame> {
        let mut frames = names(&self.user, CodeOf::Process(self.pid), "user");
        if self.user_missed {
            frames.push(("[Missed User Stack]".into(), "user"));
        }
        frames.extend(names(&self.kernel, CodeOf::Kernel, "kernel"));
        if self.kernel_missed {
            frames.push(("[Missed Kernel Stack]".into(), "kernel"));
        }
        frames
    }
}

/// `bpf_get_stack` failed, but not because there is no such stack (`-EFAULT`: a kernel thread has no user stack).
fn missed(bytes: i32) -> bool {
    const EFAULT: i32 = 14;
    bytes < 0 && bytes != -EFAULT
}

fn command(comm: &[u8; 16]) -> Frame {
    (String::from_utf8_lossy(until_nul(comm)).into_owned(), "user")
}

/// The names of a stack's frames, outermost first; the programs give the innermost first.
fn names(stack: &[u64], of: CodeOf, libtype: &'static str) -> Vec<Frame> {
    let name = |symbol: Option<Symbol>| symbol.map_or_else(|| "[unknown]".into(), |symbol| symbol.name);
    symbols(stack, of).into_iter().rev().map(|symbol| (name(symbol), libtype)).collect()
}

#[derive(Default)]
struct Node {
    name: String,
    /// Empty at the root.
    libtype: &'static str,
    value: u64,
    children: Vec<Node>,
}

impl Node {
    fn add(&mut self, command: Frame, frames: &[Frame], count: u64) {
        self.value += count;
        let mut node = self;
        for (name, libtype) in std::iter::once(&command).chain(frames) {
            let known = node.children.iter().position(|child| child.name == *name && child.libtype == *libtype);
            let at = known.unwrap_or_else(|| {
                node.children.push(Node { name: name.clone(), libtype, ..Node::default() });
                node.children.len() - 1
            });
            node = &mut node.children[at];
            node.value += count;
        }
    }

    fn sort(&mut self) {
        self.children.sort_by(|a, b| a.name.cmp(&b.name));
        self.children.iter_mut().for_each(Node::sort);
    }

    /// Stacks are at most 254 frames deep, so recursion is bounded.
    fn json(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) {
        let libtype = if self.libtype.is_empty() { "null".into() } else { json_string(self.libtype) };
        let _ = write!(
            out,
            "{{\"name\": {}, \"libtype\": {libtype}, \"value\": {}, \"children\": [",
            json_string(&self.name),
            self.value
        );
        for (i, child) in self.children.iter().enumerate() {
            if i > 0 {
                out.push_str(", ");
            }
            child.write(out);
        }
        out.push_str("]}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::record_bytes;
    use crate::pcp::Atom;

    fn module() -> Profile {
        Profile {
            name: "profile".into(),
            options: Options::default(),
            status: Status::Stopped,
            stacks: Stacks::default(),
            data: None,
        }
    }

    fn value(module: &mut Profile, fake: &Fake) -> String {
        let mut table = Table::new(1);
        module.refresh(fake, &mut table).expect("nothing can fail");
        match table.value(0, 0) {
            Some(Atom::Str(text)) => String::from_utf8_lossy(text).into_owned(),
            other => panic!("{other:?}"),
        }
    }

    fn sample(comm: &[u8], kernel_bytes: i32) -> prof_sample {
        let mut name = [0; 16];
        name[..comm.len()].copy_from_slice(comm);
        prof_sample { pid: 0, kernel_bytes, user_bytes: -14, pad: 0, comm: name, kernel: [0; 127], user: [0; 127] }
    }

    #[test]
    fn a_run_is_started_and_stopped_by_stores() {
        let fake = Fake::new().with(STATS, 1);
        let mut module = module();
        assert_eq!(value(&mut module, &fake), r#"{"status": "stopped", "data": null}"#);
        assert_eq!(module.store(&fake, 0, b"start"), Ok(()));
        assert_eq!(fake.attached(), ["cpu-clock"]);
        assert_eq!(value(&mut module, &fake), r#"{"status": "started", "data": null}"#);
        assert_eq!(module.store(&fake, 0, b"start"), Ok(()));
        fake.record(&record_bytes(&sample(b"sh", 0)));
        fake.record(&record_bytes(&sample(b"sh", -17)));
        assert_eq!(module.store(&fake, 0, b"stop"), Ok(()));
        assert!(fake.attached().is_empty());
        assert_eq!(
            value(&mut module, &fake),
            r#"{"status": "stopped", "data": {"name": "root", "libtype": null, "value": 2, "children": [{"name": "sh", "libtype": "user", "value": 2, "children": [{"name": "[Missed Kernel Stack]", "libtype": "kernel", "value": 1, "children": []}]}]}}"#
        );
        assert_eq!(module.store(&fake, 0, b"stop"), Ok(()));
        assert_eq!(module.store(&fake, 0, b"pause"), Err(PmErr::BADSTORE));
    }

    #[test]
    fn stacks_beyond_the_limit_count_for_their_command() {
        let mut stacks = Stacks::default();
        for i in 0..3 {
            stacks.add(&prof_sample { pid: i, ..sample(b"sh", 0) }, 1);
        }
        let tree = stacks.tree();
        assert_eq!((tree.value, tree.children.len(), tree.children[0].value), (3, 1, 3));
    }
}
