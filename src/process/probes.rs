//! Templates attached to USDT probes of the processes that a `process` option means.
//!
//! Attaching waits for a grace period of the kernel (tens of milliseconds), longer than some programs take to their first call. So
//! where the option means processes to come (by a command name or an expression), the probes are attached to in their files, once for
//! all who execute them: the next process is counted from its first instruction, and the programs leave out those that are not in the
//! filter. Where it has ids only, each process is attached to by itself, and the others pay nothing.

use crate::host::{exists, ProbeFile, ProbeFiles};
use crate::kit::{Arrival, Arrivals, Attachment, Hook, Kernel, Plan, ProcessFilter};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A probe to attach to, and its number.
#[derive(Clone)]
pub struct Site {
    /// The file that has it.
    pub file: Arc<ProbeFile>,
    /// Its place among the file's probes.
    pub probe: usize,
    /// What the program gets.
    pub number: u32,
}

impl PartialEq for Site {
    fn eq(&self, other: &Site) -> bool {
        Arc::ptr_eq(&self.file, &other.file) && (self.probe, self.number) == (other.probe, other.number)
    }
}

/// What to attach to in a process; or what it lacks, so far: a program may load its libraries later.
pub type Sites = Result<Vec<Site>, String>;

/// A process as long as it executes one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Life {
    /// Its start time (proc(5), field 22 of stat): tells it from another that has its number later.
    born: u64,
    /// Device and inode of its program.
    program: (u64, u64),
}

impl Life {
    /// `None` if it has ended, or is a kernel thread.
    fn of(pid: u32) -> Option<Life> {
        let program = fs::metadata(format!("/proc/{pid}/exe")).ok()?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may have anything in it.
        let born = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
        Some(Life { born, program: (program.dev(), program.ino()) })
    }
}

#[derive(Default)]
struct Tracee {
    life: Option<Life>,
    sites: Vec<Site>,
    attached: Vec<Arc<Attachment>>,
    /// At what its program has to attach to, without finding it so far.
    looks: u32,
    /// When to look (again); `None`: it is found.
    due: Option<Instant>,
}

/// A site that is attached to for all who execute its file.
struct Shared {
    site: Site,
    attached: Arc<Attachment>,
    /// When a process in the filter was seen to have it; `None`: it stays, used or not.
    used: Option<Instant>,
}

/// The processes, and what is attached to each.
pub struct Tracees {
    name: String,
    filter: ProcessFilter,
    arrivals: Arrivals,
    files: ProbeFiles,
    /// Sites are attached to in their files.
    by_file: bool,
    /// Those to attach to before any process has them.
    expected: Vec<Site>,
    shared: Vec<Shared>,
    tracees: BTreeMap<u32, Tracee>,
    /// When it was looked who has ended.
    counted: Option<Instant>,
}

impl Tracees {
    /// The look after which the log says what a process lacks: three seconds after the first.
    const PATIENCE: u32 = 13;
    /// Between two looks at who has ended: less than a tick.
    const COUNTED: Duration = Duration::from_millis(500);
    /// A file that nobody executes is attached to for so long, for the next: cron's jobs come every few minutes.
    const KEPT: Duration = Duration::from_secs(3600);

    /// Nobody yet; `name` is the module's, for the log.
    pub fn new(name: &str, filter: ProcessFilter) -> Tracees {
        Tracees {
            name: name.into(),
            by_file: filter.means_new(),
            expected: Vec::new(),
            filter,
            arrivals: Arrivals::default(),
            files: ProbeFiles::default(),
            shared: Vec::new(),
            tracees: BTreeMap::new(),
            counted: None,
        }
    }

    /// What the module has to plan. Yields the filter, by which its programs leave out who executes the same files.
    pub fn plan(&self, plan: &mut Plan, template: &'static Hook) -> u64 {
        plan.load_template(template);
        plan.follow(&self.filter, &self.arrivals)
    }

    /// The sites of files that are known beforehand: where files are attached to, these are from the first tick on, for good.
    pub fn expect(&mut self, find: impl FnOnce(&mut ProbeFiles) -> Vec<Site>) {
        if self.by_file {
            self.expected = find(&mut self.files);
        }
    }

    /// When [`Tracees::tick`] is to be called, if before the next second.
    pub fn due(&self) -> Option<Instant> {
        let arrived = self.arrivals.waiting().first().map(|arrival| arrival.at);
        let expected = (!self.expected.is_empty()).then(Instant::now);
        self.tracees.values().filter_map(|tracee| tracee.due).chain(arrived).chain(expected).min()
    }

    /// Attaches to the processes that came, detaches from those that went. `find` says what to attach to in a process.
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
        for site in self.expected.drain(..) {
            let target = site.file.target(site.probe, None);
            match kernel.attach_to(template, &target, site.number).map(Arc::new) {
                Ok(attached) => self.shared.push(Shared { site, attached, used: None }),
                Err(error) => log::warn!("{}: {target} cannot be attached to: {error}", self.name),
            }
        }
        for Arrival { pid, is, .. } in self.arrivals.waiting().drain(..) {
            if is {
                let tracee = self.tracees.entry(pid).or_default();
                (tracee.looks, tracee.due) = (0, Some(now));
            } else {
                self.tracees.remove(&pid);
            }
        }
        let all = self.counted.is_none_or(|counted| now.saturating_duration_since(counted) >= Tracees::COUNTED);
        if all {
            self.counted = Some(now);
            self.count(now);
        }
        let due: Vec<u32> = self
            .tracees
            .iter()
            .filter(|(_, tracee)| tracee.due.is_some_and(|due| due <= now))
            .map(|(&pid, _)| pid)
            .collect();
        for pid in due {
            self.look(now, pid, kernel, template, find);
        }
        if all {
            self.trim(now);
        }
    }

    /// Forgets who has ended: its number may be another's by the next look.
    fn count(&mut self, now: Instant) {
        self.tracees.retain(|&pid, tracee| {
            let Some(then) = tracee.life else { return true };
            let Some(life) = Life::of(pid).filter(|life| life.born == then.born) else { return false };
            if life != then {
                // In another program; what is attached stays until that is looked at, since its file may be the same.
                (tracee.looks, tracee.due) = (0, Some(now));
            }
            true
        });
    }

    fn look(
        &mut self,
        now: Instant,
        pid: u32,
        kernel: &dyn Kernel,
        template: &'static Hook,
        find: &mut dyn FnMut(&mut ProbeFiles, u32) -> Sites,
    ) {
        let Tracees { name, by_file, files, shared, tracees, .. } = self;
        let Some(tracee) = tracees.get_mut(&pid) else { return };
        let life = Life::of(pid).filter(|life| tracee.life.is_none_or(|then| then.born == life.born));
        let Some(life) = life else {
            tracees.remove(&pid);
            return;
        };
        tracee.life = Some(life);
        tracee.due = Some(now + pause(tracee.looks));
        tracee.looks += 1;
        let sites = match find(files, pid) {
            Ok(sites) => {
                tracee.due = None;
                sites
            }
            Err(missing) => {
                if tracee.looks == Tracees::PATIENCE {
                    log::warn!("{name}: process {pid} is not counted: {missing}");
                }
                Vec::new()
            }
        };
        if sites == tracee.sites {
            return;
        }
        tracee.attached.clear();
        let process = (!*by_file).then_some(pid);
        for site in &sites {
            let known = shared.iter().find(|known| known.site == *site);
            if let Some(known) = known {
                tracee.attached.push(Arc::clone(&known.attached));
                continue;
            }
            let target = site.file.target(site.probe, process);
            match kernel.attach_to(template, &target, site.number).map(Arc::new) {
                Ok(attached) => {
                    if *by_file {
                        shared.push(Shared { site: site.clone(), attached: Arc::clone(&attached), used: Some(now) });
                    }
                    tracee.attached.push(attached);
                }
                Err(_) if !exists(pid) => break,
                Err(error) => log::warn!("{name}: process {pid}: {target} cannot be attached to: {error}"),
            }
        }
        tracee.sites = sites;
    }

    /// Lets files go that nobody executes any more.
    fn trim(&mut self, now: Instant) {
        self.shared.retain_mut(|shared| {
            let Some(used) = &mut shared.used else { return true };
            if Arc::strong_count(&shared.attached) > 1 {
                *used = now;
            }
            now.saturating_duration_since(*used) < Tracees::KEPT
        });
        self.files.trim();
    }

    /// The processes in which something is attached to.
    pub fn attached(&self) -> impl Iterator<Item = u32> + '_ {
        self.tracees.iter().filter(|(_, tracee)| !tracee.attached.is_empty()).map(|(&pid, _)| pid)
    }
}

/// Until the next look after so many. A runtime maps its libraries within milliseconds; a program that embeds one may do so
/// whenever it likes.
fn pause(looks: u32) -> Duration {
    match looks {
        0..=9 => Duration::from_millis(1 << looks),
        10..=19 => Duration::from_secs(1),
        _ => Duration::from_secs(10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::{Fake, OptionType, Target, Tier};
    use std::process::{Child, Command};

    static TEMPLATE: Hook =
        Hook { name: "t", tiers: &[Tier { kind: "uprobe", programs: &["each_uprobe__t"] }], needs: "nothing" };

    fn tracees(process: &str) -> Tracees {
        let text = format!("[a]\nprocess = {process}\n");
        let config = crate::config::Config::parse("test.conf", text.as_bytes()).unwrap();
        let value = config.section("a").unwrap().get("process").unwrap().unwrap();
        Tracees::new("t", ProcessFilter::read(&value).unwrap())
    }

    /// With one arrival.
    fn tracees_of(pid: u32) -> Tracees {
        let tracees = tracees(&pid.to_string());
        tracees.arrivals.tell(pid, true);
        tracees
    }

    fn sites(file: &Arc<ProbeFile>, probes: &[usize]) -> Vec<Site> {
        probes.iter().map(|&probe| Site { file: Arc::clone(file), probe, number: 7 }).collect()
    }

    /// The places of the probes that are attached to, and in which process.
    fn attached(fake: &Fake) -> Vec<(u64, Option<u32>)> {
        let code = |(target, _)| match target {
            Target::Code { offset, process, .. } => (offset, process),
            other => panic!("{other}"),
        };
        fake.targets().into_iter().map(code).collect()
    }

    /// A shell that becomes another program when it is told so.
    fn shell() -> Child {
        Command::new("sh").args(["-c", "read go; exec sleep 100"]).stdin(std::process::Stdio::piped()).spawn().unwrap()
    }

    fn ended(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_is_attached_to_once_its_sites_are_there_and_until_it_ends() {
        let child = shell();
        let pid = child.id();
        let (fake, mut tracees, file) = (Fake::new(), tracees_of(pid), ProbeFile::with(3));
        let now = Instant::now();
        assert!(tracees.due().is_some(), "it is there");
        tracees.tick_at(now, &fake, &TEMPLATE, &mut |_, _| Err("no library".into()));
        assert_eq!((attached(&fake).len(), tracees.attached().count()), (0, 0));
        let due = tracees.due().unwrap();
        assert_eq!(due - now, Duration::from_millis(1));
        let mut find = |_: &mut ProbeFiles, _| Ok(sites(&file, &[1, 2]));
        tracees.tick_at(due, &fake, &TEMPLATE, &mut find);
        assert_eq!(tracees.due(), None, "it is known");
        assert_eq!(attached(&fake), [(1, Some(pid)), (2, Some(pid))]);
        assert!(tracees.attached().eq([pid]));
        tracees.tick_at(now + Tracees::COUNTED, &fake, &TEMPLATE, &mut |_, _| panic!("it is known"));
        ended(child);
        tracees.tick_at(now + 2 * Tracees::COUNTED, &fake, &TEMPLATE, &mut find);
        assert_eq!((attached(&fake), tracees.attached().count()), (vec![], 0));
    }

    #[test]
    fn a_process_that_leaves_the_filter_is_detached_from() {
        let child = shell();
        let (fake, mut tracees, file) = (Fake::new(), tracees_of(child.id()), ProbeFile::with(3));
        tracees.tick(&fake, &TEMPLATE, &mut |_, _| Ok(sites(&file, &[1])));
        tracees.arrivals.tell(child.id(), false);
        tracees.tick(&fake, &TEMPLATE, &mut |_, _| panic!("it is gone"));
        assert_eq!((attached(&fake), tracees.attached().count()), (vec![], 0));
        ended(child);
    }

    #[test]
    fn what_is_expected_is_attached_to_before_anyone_has_it_and_for_good_unless_there_are_ids_only() {
        let file = ProbeFile::with(3);
        let mut now = Instant::now();
        for (process, wanted) in
            [("sh", vec![(1, None), (2, None)]), (".*x.*", vec![(1, None), (2, None)]), ("77", vec![])]
        {
            let (fake, mut tracees) = (Fake::new(), tracees(process));
            tracees.expect(|_| sites(&file, &[1, 2]));
            assert_eq!(tracees.due().is_some(), !wanted.is_empty());
            for _ in 0..3 {
                tracees.tick_at(now, &fake, &TEMPLATE, &mut |_, _| panic!("nobody is there"));
                assert_eq!(attached(&fake), wanted, "{process}");
                now += 2 * Tracees::KEPT;
            }
            let child = shell();
            tracees.arrivals.tell(child.id(), true);
            tracees.tick_at(now, &fake, &TEMPLATE, &mut |_, _| Ok(sites(&file, &[1, 2])));
            assert_eq!(attached(&fake).len(), 2, "who has it needs no more");
            ended(child);
        }
    }

    #[test]
    fn where_the_filter_means_processes_to_come_files_are_attached_to_and_stay_so() {
        let children = [shell(), shell()];
        let (fake, mut tracees, file) = (Fake::new(), tracees("s.*h,77"), ProbeFile::with(3));
        let mut now = Instant::now();
        for child in &children {
            tracees.arrivals.tell(child.id(), true);
            tracees.tick_at(now, &fake, &TEMPLATE, &mut |_, _| Ok(sites(&file, &[1, 2])));
            assert_eq!(attached(&fake), [(1, None), (2, None)], "once for both");
        }
        assert_eq!(tracees.attached().count(), 2);
        children.into_iter().for_each(ended);
        let mut later = |tracees: &mut Tracees, time| {
            now += time;
            tracees.tick_at(now, &fake, &TEMPLATE, &mut |_, _| panic!("nobody is left"));
            attached(&fake).len()
        };
        assert_eq!(later(&mut tracees, Tracees::COUNTED), 2);
        assert_eq!(later(&mut tracees, Tracees::KEPT - 2 * Tracees::COUNTED), 2);
        assert_eq!(tracees.attached().count(), 0);
        assert_eq!(later(&mut tracees, Tracees::COUNTED), 0);
    }

    #[test]
    fn a_process_is_looked_at_anew_in_its_next_program_and_stays_attached_if_the_sites_are_the_same() {
        use std::io::Write;
        let mut child = shell();
        let pid = child.id();
        let (fake, mut tracees, file) = (Fake::new(), tracees_of(pid), ProbeFile::with(3));
        let now = Instant::now();
        tracees.tick_at(now, &fake, &TEMPLATE, &mut |_, _| Ok(sites(&file, &[1])));
        let before = Life::of(pid);
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        while Life::of(pid) == before {
            std::thread::sleep(Duration::from_millis(5));
        }
        tracees.tick(&fake, &TEMPLATE, &mut |_, _| panic!("not yet due"));
        let later = Instant::now() + Tracees::COUNTED;
        tracees.tick_at(later, &fake, &TEMPLATE, &mut |_, _| Ok(sites(&file, &[1, 2])));
        assert_eq!(attached(&fake), [(1, Some(pid)), (2, Some(pid))]);
        ended(child);
    }

    #[test]
    fn a_process_without_sites_is_looked_at_ever_more_seldom() {
        let child = shell();
        let (fake, mut tracees) = (Fake::new(), tracees_of(child.id()));
        let mut looks = 0;
        let mut now = Instant::now();
        let after = now + Duration::from_secs(60);
        while now < after {
            tracees.tick_at(now, &fake, &TEMPLATE, &mut |_, _| {
                looks += 1;
                Err("no probes in this build".into())
            });
            now = tracees.due().unwrap();
        }
        // In the first second, in the next ten, and afterwards.
        assert_eq!(looks, 10 + 10 + 5);
        ended(child);
    }
}
