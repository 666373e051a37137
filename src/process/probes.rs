//! Templates attached to USDT probes of the processes that a `process` option matches.
//!
//! Attaching waits for a grace period of the kernel (tens of milliseconds), longer than some programs take to their
//! first call. So if the option can match future processes (by a command name or an expression), probes are attached in
//! their files, once for all processes that execute them: the next process is counted from its first instruction, and
//! the programs ignore processes that are not in the filter. With ids only, probes are attached in each process, and
//! other processes pay nothing.
//!
//! A user can have any number of processes and files with any number of probes. So searching, attaching and detaching
//! are done in slices, between which the collector serves others, and the number of sites is bounded per process and in
//! all; if there are too many, files that are no longer executed are dropped first, the least recently used before
//! others.

use crate::host::{exists, HostError, ProbeFile, ProbeFiles, ProcessIdentity};
use crate::kit::{excerpt, Arrival, Arrivals, Attachment, EveryMinute, Hook, Kernel, Plan, ProcessFilter};
use nix::sys::resource::{getrlimit, Resource};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;

/// A probe to attach to, and its number.
#[derive(Clone)]
pub struct Site {
    /// File that contains it.
    pub file: Arc<ProbeFile>,
    /// Index among the file's probes.
    pub probe: usize,
    /// Number that the program gets.
    pub number: u32,
}

impl PartialEq for Site {
    fn eq(&self, other: &Site) -> bool {
        Arc::ptr_eq(&self.file, &other.file) && (self.probe, self.number) == (other.probe, other.number)
    }
}

/// Sites to attach to in a process.
pub type Sites = Result<Vec<Site>, NoProbes>;

/// A reason why a process has no probes to attach to; it may change, since a program may load its libraries later.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct NoProbes(pub String);

impl From<HostError> for NoProbes {
    fn from(error: HostError) -> NoProbes {
        NoProbes(error.to_string())
    }
}

#[derive(Default)]
struct ProbedProcess {
    identity: Option<ProcessIdentity>,
    sites: Vec<Site>,
    /// Number of sites that were attached to or tried.
    tried: usize,
    attached: Vec<Arc<Attachment>>,
    /// Number of failed searches for sites in its present program.
    attempts: u32,
    /// Time of the next search; `None` if the sites are found.
    due: Option<Instant>,
}

/// A site that is attached for all processes that execute its file.
struct Shared {
    site: Site,
    attached: Arc<Attachment>,
    /// Time when a process in the filter was last seen to have it; `None`: it stays, used or not.
    used: Option<Instant>,
}

/// Processes, and the attachments of each.
pub struct ProcessProbes {
    name: String,
    filter: ProcessFilter,
    arrivals: Arrivals,
    files: ProbeFiles,
    /// True if sites are attached in their files, for all processes.
    by_file: bool,
    /// Sites to attach to before any process has them.
    preattached: VecDeque<Site>,
    shared: Vec<Shared>,
    processes: BTreeMap<u32, ProbedProcess>,
    /// Time of creation.
    made: Instant,
    /// Attachments to detach.
    leaving: Vec<Arc<Attachment>>,
    /// Time of the last check for processes that have ended.
    counted: Option<Instant>,
    /// Highest number of attached sites of a process and in all, and the number of sites beyond.
    most: usize,
    most_of_all: usize,
    beyond: u64,
    /// Limits for log lines about those sites, about processes without probes, and about refused probes: any user can
    /// cause many of each.
    left_out: EveryMinute,
    lacking: EveryMinute,
    refused: EveryMinute,
}

impl ProcessProbes {
    /// Number of failed searches after which the log names what a process lacks: three seconds after the first.
    const PATIENCE: u32 = 13;
    /// Interval between checks for processes that have ended; less than a tick.
    const COUNTED: Duration = Duration::from_millis(500);
    /// Time for which a file that is no longer executed stays attached: jobs of cron come every few minutes.
    const KEPT: Duration = Duration::from_secs(3600);
    /// Longest time of one slice of work, and the part of it that one search may take: a process with very many
    /// mappings is searched less often.
    const SLICE: Duration = Duration::from_millis(100);
    const CHEAP: Duration = Duration::from_millis(5);
    /// Highest number of sites of a process, and in all: the JVM has a few dozen of interest.
    const SITES: usize = 256;
    const SITES_OF_ALL: usize = 4096;

    /// Makes it without processes; `name` is the module's, for the log.
    pub fn new(name: &str, filter: ProcessFilter) -> ProcessProbes {
        ProcessProbes {
            name: name.into(),
            by_file: filter.means_new(),
            preattached: VecDeque::new(),
            filter,
            arrivals: Arrivals::default(),
            files: ProbeFiles::default(),
            shared: Vec::new(),
            processes: BTreeMap::new(),
            made: Instant::now(),
            leaving: Vec::new(),
            counted: None,
            most: ProcessProbes::SITES,
            most_of_all: ProcessProbes::SITES_OF_ALL.min(descriptors() / 2),
            beyond: 0,
            left_out: EveryMinute::default(),
            lacking: EveryMinute::default(),
            refused: EveryMinute::default(),
        }
    }

    /// Raises the highest number of sites of a process, if the configuration asks for more.
    pub fn allow(&mut self, sites: usize) {
        self.most = self.most.max(sites);
    }

    /// Returns the number of sites left out because a process, or all together, had too many; for
    /// [`crate::kit::Module::losses`].
    pub fn beyond(&self) -> u64 {
        self.beyond
    }

    /// Adds the template and the filter to the module's plan. Returns the bit of the filter, by which its programs
    /// ignore other processes that execute the same files.
    pub fn plan(&self, plan: &mut Plan, template: &'static Hook) -> u64 {
        plan.load_template(template);
        plan.follow(&self.filter, &self.arrivals)
    }

    /// Adds sites of files that are known beforehand: if sites are attached in files, these stay attached from the
    /// first tick on.
    pub fn preattach(&mut self, find: impl FnOnce(&mut ProbeFiles) -> Vec<Site>) {
        if self.by_file {
            self.preattached = find(&mut self.files).into();
            self.most_of_all = self.most_of_all.max(self.preattached.len());
        }
    }

    /// Returns the time of the next call of [`ProcessProbes::tick`], if it is before the next second.
    pub fn due(&self) -> Option<Instant> {
        let arrived = self.arrivals.waiting().first().map(|arrival| arrival.at);
        let is_open = |process: &ProbedProcess| process.tried < process.sites.len();
        let is_at_work =
            !(self.preattached.is_empty() && self.leaving.is_empty()) || self.processes.values().any(is_open);
        let at_work = is_at_work.then_some(self.made); // past: at once
        self.processes.values().filter_map(|process| process.due).chain(arrived).chain(at_work).min()
    }

    /// Attaches to new processes, detaches from those that have gone. `find` returns the sites in a process.
    pub fn tick(
        &mut self,
        kernel: &dyn Kernel,
        template: &'static Hook,
        find: &mut dyn FnMut(&mut ProbeFiles, u32) -> Sites,
    ) {
        self.tick_at(Instant::now(), kernel, template, find);
    }

    fn tick_at(
        &mut self,
        now: Instant,
        kernel: &dyn Kernel,
        template: &'static Hook,
        find: &mut dyn FnMut(&mut ProbeFiles, u32) -> Sites,
    ) {
        let until = Instant::now() + ProcessProbes::SLICE;
        let arrivals = std::mem::take(&mut *self.arrivals.waiting());
        for Arrival { pid, is, .. } in arrivals {
            if is {
                let process = self.processes.entry(pid).or_default();
                (process.attempts, process.due) = (0, Some(now));
            } else {
                self.forget(pid);
            }
        }
        let all = self.counted.is_none_or(|counted| now.saturating_duration_since(counted) >= ProcessProbes::COUNTED);
        if all {
            self.counted = Some(now);
            self.count(now);
        }
        let due = |(&pid, process): (&u32, &ProbedProcess)| Some((process.due.filter(|due| *due <= now)?, pid));
        let mut due: Vec<(Instant, u32)> = self.processes.iter().filter_map(due).collect();
        due.sort_unstable();
        for (_, pid) in due {
            self.look(now, pid, find);
            if Instant::now() >= until {
                break;
            }
        }
        while self.attach_next(now, kernel, template) && Instant::now() < until {}
        if all {
            self.trim(now);
        }
        // Each may take as long as attaching did; the others are let go in the next slices.
        while self.leaving.pop().is_some() && Instant::now() < until {}
    }

    fn forget(&mut self, pid: u32) {
        if let Some(mut process) = self.processes.remove(&pid) {
            self.leaving.extend(detached(&mut process.attached));
        }
    }

    /// Drops processes that have ended, since their ids may be reused by the next search.
    fn count(&mut self, now: Instant) {
        let mut ended = Vec::new();
        for (&pid, process) in &mut self.processes {
            let Some(then) = process.identity else { continue };
            match ProcessIdentity::of(pid).filter(|identity| identity.born == then.born) {
                None => ended.push(pid),
                Some(identity) if identity == then => {}
                // In another program; what is attached stays until that is looked at, since its file may be the same.
                Some(_) => (process.attempts, process.due) = (0, Some(now)),
            }
        }
        ended.into_iter().for_each(|pid| self.forget(pid));
    }

    fn look(&mut self, now: Instant, pid: u32, find: &mut dyn FnMut(&mut ProbeFiles, u32) -> Sites) {
        let ProcessProbes { name, files, processes, leaving, lacking, .. } = self;
        let Some(process) = processes.get_mut(&pid) else { return };
        let identity =
            ProcessIdentity::of(pid).filter(|identity| process.identity.is_none_or(|then| then.born == identity.born));
        if identity.is_none() {
            return self.forget(pid);
        }
        process.identity = identity;
        let began = Instant::now();
        let found = find(files, pid);
        let dear = began.elapsed().saturating_sub(ProcessProbes::CHEAP) * 20;
        process.due = Some(now + pause(process.attempts).max(dear));
        process.attempts += 1;
        let mut sites = match found {
            Ok(sites) => {
                process.due = None;
                sites
            }
            Err(missing) => {
                if process.attempts == ProcessProbes::PATIENCE {
                    if let Some(more) = lacking.due_at(now) {
                        log::warn!("{name}: process {pid} is not counted: {missing}{more}");
                    }
                }
                Vec::new()
            }
        };
        let beyond = sites.len().saturating_sub(self.most);
        sites.truncate(self.most);
        if sites != process.sites {
            leaving.extend(detached(&mut process.attached));
            (process.sites, process.tried) = (sites, 0);
            self.leave_out(now, pid, beyond, self.most, "of a process");
        }
    }

    /// Counts sites that are left out, and logs it at most once a minute.
    fn leave_out(&mut self, now: Instant, pid: u32, sites: usize, most: usize, of: &str) {
        self.beyond += sites as u64;
        if sites == 0 {
            return;
        }
        if let Some(more) = self.left_out.due_at(now) {
            log::warn!(
                "{}: process {pid}: {sites} probes are left out: at most {most} {of} are attached to{more}",
                self.name
            );
        }
    }

    /// Attaches to the next site, if there is one.
    fn attach_next(&mut self, now: Instant, kernel: &dyn Kernel, template: &'static Hook) -> bool {
        if let Some(site) = self.preattached.pop_front() {
            let target = site.file.target(site.probe, None);
            match kernel.attach_to(template, &target, site.number).map(Arc::new) {
                Ok(attached) => self.shared.push(Shared { site, attached, used: None }),
                Err(error) => log::warn!("{}: {target} cannot be attached to: {error}", self.name),
            }
            return true;
        }
        let Some((&pid, process)) = self.processes.iter_mut().find(|(_, process)| process.tried < process.sites.len())
        else {
            return false;
        };
        let site = process.sites[process.tried].clone();
        process.tried += 1;
        if let Some(known) = self.shared.iter().find(|known| known.site == site) {
            process.attached.push(Arc::clone(&known.attached));
            return true;
        }
        if !self.has_room() {
            self.leave_out(now, pid, 1, self.most_of_all, "in all");
            return true;
        }
        let target = site.file.target(site.probe, (!self.by_file).then_some(pid));
        let attached = kernel.attach_to(template, &target, site.number).map(Arc::new);
        let Some(process) = self.processes.get_mut(&pid) else { return true };
        match attached {
            Ok(attached) => {
                process.attached.push(Arc::clone(&attached));
                if self.by_file {
                    self.shared.push(Shared { site, attached, used: Some(now) });
                }
            }
            Err(_) if !exists(pid) => process.tried = process.sites.len(),
            Err(error) => {
                if let Some(more) = self.refused.due_at(now) {
                    let target = excerpt(&target.to_string());
                    log::warn!("{}: process {pid}: {target} cannot be attached to: {error}{more}", self.name);
                }
            }
        }
        true
    }

    /// True if one more site may be attached; if necessary, sites of a file that is no longer executed are detached.
    fn has_room(&mut self) -> bool {
        let attached = match self.by_file {
            true => self.shared.len(),
            false => self.processes.values().map(|process| process.attached.len()).sum(),
        };
        if attached + self.leaving.len() < self.most_of_all {
            return true;
        }
        let unused = |shared: &&Shared| shared.used.is_some() && Arc::strong_count(&shared.attached) == 1;
        let Some(file) = self.shared.iter().filter(unused).min_by_key(|shared| shared.used) else {
            return !self.leaving.is_empty() && self.leaving.pop().is_some();
        };
        // All sites of that file: the next process to need room is spared the search.
        let file = Arc::clone(&file.site.file);
        let (gone, kept) = std::mem::take(&mut self.shared)
            .into_iter()
            .partition(|shared| Arc::ptr_eq(&shared.site.file, &file) && unused(&shared));
        self.shared = kept;
        self.leaving.extend(Vec::<Shared>::into_iter(gone).map(|shared| shared.attached));
        self.leaving.pop().is_some()
    }

    /// Detaches from files that are no longer executed.
    fn trim(&mut self, now: Instant) {
        self.shared.retain_mut(|shared| {
            let Some(used) = &mut shared.used else { return true };
            if Arc::strong_count(&shared.attached) > 1 {
                *used = now;
            }
            let keeps = now.saturating_duration_since(*used) < ProcessProbes::KEPT;
            if !keeps {
                self.leaving.push(Arc::clone(&shared.attached));
            }
            keeps
        });
        self.files.trim();
    }

    /// Returns the text for [`crate::kit::Module::waits_for`] if no process has probes of `what`.
    pub fn waits_for(&self, what: &str) -> Option<String> {
        let is_bare = self.processes.values().all(|process| process.attached.is_empty());
        is_bare.then(|| format!("no running process that `process` means has USDT probes of {what}"))
    }

    /// Iterates over the processes with an attachment and no sites left to attach to.
    pub fn attached(&self) -> impl Iterator<Item = u32> + '_ {
        let is = |process: &ProbedProcess| !process.attached.is_empty() && process.tried == process.sites.len();
        self.processes.iter().filter(move |(_, process)| is(process)).map(|(&pid, _)| pid)
    }
}

/// Removes and returns the attachments that nothing else holds, to be detached one by one.
fn detached(attached: &mut Vec<Arc<Attachment>>) -> impl Iterator<Item = Arc<Attachment>> + '_ {
    attached.drain(..).filter(|attached| Arc::strong_count(attached) == 1)
}

/// Returns the highest number of descriptors: an attachment takes one, and a program sometimes another.
fn descriptors() -> usize {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(_, hard)| usize::try_from(hard).unwrap_or(usize::MAX))
}

/// Returns the time until the next search after this many failed ones. A runtime maps its libraries within
/// milliseconds; a program that embeds one may do so at any time.
fn pause(attempts: u32) -> Duration {
    match attempts {
        0..=9 => Duration::from_millis(1 << attempts),
        10..=19 => Duration::from_secs(1),
        _ => Duration::from_secs(10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::{Fake, KernelError, OptionType, Target, Tier};
    use std::process::{Child, Command};

    static TEMPLATE: Hook =
        Hook { name: "t", tiers: &[Tier { kind: "uprobe", programs: &["each_uprobe__t"] }], needs: "nothing" };

    fn probes(process: &str) -> ProcessProbes {
        let text = format!("[a]\nprocess = {process}\n");
        let config = crate::config::Config::parse("test.conf", text.as_bytes()).unwrap();
        let value = config.section("a").unwrap().get("process").unwrap().unwrap();
        ProcessProbes::new("t", ProcessFilter::read(&value).unwrap())
    }

    /// Makes probes with one process that has arrived.
    fn probes_of(pid: u32) -> ProcessProbes {
        let probes = probes(&pid.to_string());
        probes.arrivals.tell(pid, true);
        probes
    }

    fn sites(file: &Arc<ProbeFile>, probes: &[usize]) -> Vec<Site> {
        probes.iter().map(|&probe| Site { file: Arc::clone(file), probe, number: 7 }).collect()
    }

    /// Returns the offsets of the attached probes, each with its process.
    fn attached(fake: &Fake) -> Vec<(u64, Option<u32>)> {
        let code = |(target, _)| match target {
            Target::Code { offset, process, .. } => (offset, process),
            other => panic!("{other}"),
        };
        fake.targets().into_iter().map(code).collect()
    }

    /// Starts a shell that executes another program on request.
    fn shell() -> Child {
        Command::new("sh").args(["-c", "read go; exec sleep 100"]).stdin(std::process::Stdio::piped()).spawn().unwrap()
    }

    fn ended(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_is_attached_to_from_its_sites_to_its_end() {
        let child = shell();
        let pid = child.id();
        let (fake, mut probes, file) = (Fake::new(), probes_of(pid), ProbeFile::with(3));
        let now = Instant::now();
        assert!(probes.due().is_some(), "it is there");
        probes.tick_at(now, &fake, &TEMPLATE, &mut |_, _| Err(NoProbes("no library".into())));
        assert_eq!((attached(&fake).len(), probes.attached().count()), (0, 0));
        let due = probes.due().unwrap();
        assert_eq!(due - now, Duration::from_millis(1));
        let mut find = |_: &mut ProbeFiles, _| Ok(sites(&file, &[1, 2]));
        probes.tick_at(due, &fake, &TEMPLATE, &mut find);
        assert_eq!(probes.due(), None, "it is known");
        assert_eq!(attached(&fake), [(1, Some(pid)), (2, Some(pid))]);
        assert!(probes.attached().eq([pid]));
        probes.tick_at(now + ProcessProbes::COUNTED, &fake, &TEMPLATE, &mut |_, _| panic!("it is known"));
        ended(child);
        probes.tick_at(now + 2 * ProcessProbes::COUNTED, &fake, &TEMPLATE, &mut find);
        assert_eq!((attached(&fake), probes.attached().count()), (vec![], 0));
    }

    #[test]
    fn a_process_that_leaves_the_filter_is_detached_from() {
        let child = shell();
        let (fake, mut probes, file) = (Fake::new(), probes_of(child.id()), ProbeFile::with(3));
        probes.tick(&fake, &TEMPLATE, &mut |_, _| Ok(sites(&file, &[1])));
        probes.arrivals.tell(child.id(), false);
        probes.tick(&fake, &TEMPLATE, &mut |_, _| panic!("it is gone"));
        assert_eq!((attached(&fake), probes.attached().count()), (vec![], 0));
        ended(child);
    }

    #[test]
    fn expected_files_are_attached_for_good_unless_ids_are_given() {
        let file = ProbeFile::with(3);
        let mut now = Instant::now();
        for (process, wanted) in
            [("sh", vec![(1, None), (2, None)]), (".*x.*", vec![(1, None), (2, None)]), ("77", vec![])]
        {
            let (fake, mut probes) = (Fake::new(), probes(process));
            probes.preattach(|_| sites(&file, &[1, 2]));
            assert_eq!(probes.due().is_some(), !wanted.is_empty());
            for _ in 0..3 {
                probes.tick_at(now, &fake, &TEMPLATE, &mut |_, _| panic!("nobody is there"));
                assert_eq!(attached(&fake), wanted, "{process}");
                now += 2 * ProcessProbes::KEPT;
            }
            let child = shell();
            probes.arrivals.tell(child.id(), true);
            probes.tick_at(now, &fake, &TEMPLATE, &mut |_, _| Ok(sites(&file, &[1, 2])));
            assert_eq!(attached(&fake).len(), 2, "who has it needs no more");
            ended(child);
        }
    }

    #[test]
    fn files_stay_attached_for_filters_of_processes_to_come() {
        let children = [shell(), shell()];
        let (fake, mut probes, file) = (Fake::new(), probes("s.*h,77"), ProbeFile::with(3));
        let mut now = Instant::now();
        for child in &children {
            probes.arrivals.tell(child.id(), true);
            probes.tick_at(now, &fake, &TEMPLATE, &mut |_, _| Ok(sites(&file, &[1, 2])));
            assert_eq!(attached(&fake), [(1, None), (2, None)], "once for both");
        }
        assert_eq!(probes.attached().count(), 2);
        children.into_iter().for_each(ended);
        let mut later = |probes: &mut ProcessProbes, time| {
            now += time;
            probes.tick_at(now, &fake, &TEMPLATE, &mut |_, _| panic!("nobody is left"));
            attached(&fake).len()
        };
        assert_eq!(later(&mut probes, ProcessProbes::COUNTED), 2);
        assert_eq!(later(&mut probes, ProcessProbes::KEPT - 2 * ProcessProbes::COUNTED), 2);
        assert_eq!(probes.attached().count(), 0);
        assert_eq!(later(&mut probes, ProcessProbes::COUNTED), 0);
    }

    #[test]
    fn after_an_exec_equal_sites_stay_attached() {
        use std::io::Write;
        let mut child = shell();
        let pid = child.id();
        let (fake, mut probes, file) = (Fake::new(), probes_of(pid), ProbeFile::with(3));
        let now = Instant::now();
        probes.tick_at(now, &fake, &TEMPLATE, &mut |_, _| Ok(sites(&file, &[1])));
        let before = ProcessIdentity::of(pid);
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        while ProcessIdentity::of(pid) == before {
            std::thread::sleep(Duration::from_millis(5));
        }
        probes.tick(&fake, &TEMPLATE, &mut |_, _| panic!("not yet due"));
        let later = Instant::now() + ProcessProbes::COUNTED;
        probes.tick_at(later, &fake, &TEMPLATE, &mut |_, _| Ok(sites(&file, &[1, 2])));
        assert_eq!(attached(&fake), [(1, Some(pid)), (2, Some(pid))]);
        ended(child);
    }

    #[test]
    fn of_too_many_sites_only_so_many_are_attached_to() {
        let child = shell();
        let (fake, mut probes, file) = (Fake::new(), probes_of(child.id()), ProbeFile::with(5000));
        let all: Vec<usize> = (0..5000).collect();
        probes.tick(&fake, &TEMPLATE, &mut |_, _| Ok(sites(&file, &all)));
        assert_eq!(
            (attached(&fake).len(), probes.beyond()),
            (ProcessProbes::SITES, 5000 - ProcessProbes::SITES as u64)
        );
        probes.allow(300);
        probes.arrivals.tell(child.id(), true);
        probes.tick(&fake, &TEMPLATE, &mut |_, _| Ok(sites(&file, &all)));
        assert_eq!(attached(&fake).len(), 300, "as configured");
        ended(child);
    }

    #[test]
    fn files_that_nobody_executes_give_way_the_least_used_first() {
        let files = [ProbeFile::with(2), ProbeFile::with(2), ProbeFile::with(2)];
        let (fake, mut probes) = (Fake::new(), probes("s.*h"));
        probes.most_of_all = 4;
        let mut now = Instant::now();
        let mut execute = |file: &Arc<ProbeFile>, end: bool| {
            let child = shell();
            now += 2 * ProcessProbes::COUNTED;
            probes.arrivals.tell(child.id(), true);
            probes.tick_at(now, &fake, &TEMPLATE, &mut |_, _| Ok(sites(file, &[0, 1])));
            if end {
                ended(child);
                now += 2 * ProcessProbes::COUNTED;
                probes.tick_at(now, &fake, &TEMPLATE, &mut |_, _| panic!("nobody is left"));
                return None;
            }
            Some(child)
        };
        execute(&files[0], true);
        execute(&files[1], true);
        let second = execute(&files[2], false);
        let third = execute(&files[1], false);
        let fourth = execute(&files[0], false);
        assert_eq!((attached(&fake).len(), probes.beyond()), (4, 2), "both that are left are executed");
        let kept = |file| probes.shared.iter().filter(|shared| Arc::ptr_eq(&shared.site.file, file)).count();
        assert_eq!(files.iter().map(kept).collect::<Vec<_>>(), [0, 2, 2]);
        [second, third, fourth].into_iter().flatten().for_each(ended);
    }

    #[test]
    fn attaching_takes_a_slice_at_a_time() {
        struct Slow(Fake);
        impl Kernel for Slow {
            fn words(&self, map: &crate::kit::MapDef) -> &[std::sync::atomic::AtomicU64] {
                self.0.words(map)
            }
            fn drain(&self, _: &crate::kit::MapDef, _: &mut dyn FnMut(&[u8])) {}
            fn call(&self, _: &'static Hook, _: &[u64]) -> Result<u32, KernelError> {
                Ok(0)
            }
            fn reaches(&self, _: &'static Hook, _: u32) -> bool {
                false
            }
            fn sample(&self, _: &'static Hook, _: crate::kit::Sampling) -> Result<(), KernelError> {
                Ok(())
            }
            fn detach(&self, _: &'static Hook) {}
            fn attach(&self, _: &'static Hook) -> Result<(), KernelError> {
                Ok(())
            }
            fn attach_to(
                &self,
                template: &'static Hook,
                target: &Target,
                number: u32,
            ) -> Result<Attachment, KernelError> {
                std::thread::sleep(ProcessProbes::SLICE / 4);
                self.0.attach_to(template, target, number)
            }
        }
        let child = shell();
        let (slow, mut probes, file) = (Slow(Fake::new()), probes_of(child.id()), ProbeFile::with(20));
        let all: Vec<usize> = (0..20).collect();
        let mut slices = 0;
        while probes.due().is_some() {
            let began = Instant::now();
            probes.tick(&slow, &TEMPLATE, &mut |_, _| Ok(sites(&file, &all)));
            assert!(began.elapsed() < 2 * ProcessProbes::SLICE, "{:?}", began.elapsed());
            let is_whole = attached(&slow.0).len() == 20;
            assert_eq!((probes.attached().count() == 1, probes.due().is_none()), (is_whole, is_whole));
            assert!(probes.due().is_none_or(|due| due <= began), "at once");
            slices += 1;
        }
        assert!(slices >= 5 && attached(&slow.0).len() == 20, "{slices}");
        ended(child);
    }

    #[test]
    fn probes_that_are_refused_have_one_line_a_minute() {
        let (child, now) = (shell(), Instant::now());
        let (mut probes, file) = (probes_of(child.id()), ProbeFile::with(100));
        let (all, fake): (Vec<usize>, _) = ((0..100).collect(), Fake::new().without(&TEMPLATE));
        while probes.due().is_some() {
            probes.tick_at(now, &fake, &TEMPLATE, &mut |_, _| Ok(sites(&file, &all)));
        }
        let next = probes.refused.due_at(now + Duration::from_secs(60));
        assert_eq!(next, Some(" (and 99 more since the last line of this kind)".into()));
        ended(child);
    }

    #[test]
    fn a_process_without_sites_is_looked_at_ever_more_seldom() {
        let child = shell();
        let (fake, mut probes) = (Fake::new(), probes_of(child.id()));
        let mut attempts = 0;
        let mut now = Instant::now();
        let after = now + Duration::from_secs(60);
        while now < after {
            probes.tick_at(now, &fake, &TEMPLATE, &mut |_, _| {
                attempts += 1;
                Err(NoProbes("no probes in this build".into()))
            });
            now = probes.due().unwrap();
        }
        // In the first second, in the next ten, and afterwards.
        assert_eq!(attempts, 10 + 10 + 5);
        ended(child);
    }
}
