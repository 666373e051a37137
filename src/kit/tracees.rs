//! Templates attached to single processes, those that a `process` option means, so that other processes that execute the same
//! file pay nothing.

use super::{exists, Attachment, Hook, Kernel, Target, Watch};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// What to attach to in a process, with the numbers; or what it lacks, so far: a program may load its libraries later.
pub type Sites = Result<Vec<(Target, u32)>, String>;

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
    sites: Vec<(Target, u32)>,
    attached: Vec<Attachment>,
    /// Ticks since its program began, as far as seen.
    age: u32,
    /// Its sites are found.
    settled: bool,
}

/// The processes, and what is attached to each.
pub struct Tracees {
    name: String,
    watch: Watch,
    tracees: BTreeMap<u32, Tracee>,
}

impl Tracees {
    /// A process without sites is looked at in each of its first ticks, then in every so manieth.
    const YOUNG: u32 = 10;
    /// The look after which the log says what it lacks.
    const PATIENCE: u32 = 3;

    /// Nobody yet; `name` is the module's, for the log.
    pub fn new(name: &str, watch: Watch) -> Tracees {
        Tracees { name: name.into(), watch, tracees: BTreeMap::new() }
    }

    /// To be called once a second: attaches to the processes that came, detaches from those that went. `find` says what to
    /// attach to in a process, which it is told with its start time.
    pub fn tick(&mut self, kernel: &dyn Kernel, template: &'static Hook, find: &mut dyn FnMut(u32, u64) -> Sites) {
        let tracees = &mut self.tracees;
        self.watch.tick(&mut |pid, member| {
            if member {
                tracees.entry(pid).or_default();
            } else {
                tracees.remove(&pid);
            }
        });
        // Who has ended is forgotten: its number may be another's by the next look.
        tracees.retain(|&pid, tracee| {
            let life = Life::of(pid).filter(|life| tracee.life.is_none_or(|then| then.born == life.born));
            let Some(life) = life else { return false };
            if tracee.life.replace(life) != Some(life) {
                // In another program; what is attached stays until that is looked at, since its file may be the same.
                (tracee.age, tracee.settled) = (0, false);
            }
            tracee.age = tracee.age.saturating_add(1);
            if !tracee.settled && (tracee.age <= Tracees::YOUNG || tracee.age.is_multiple_of(Tracees::YOUNG)) {
                tracee.look(&self.name, kernel, template, pid, find(pid, life.born));
            }
            true
        });
    }

    /// The processes that something is attached to, with their start times.
    pub fn attached(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        let attached = self.tracees.iter().filter(|(_, tracee)| !tracee.attached.is_empty());
        attached.filter_map(|(&pid, tracee)| Some((pid, tracee.life?.born)))
    }
}

impl Tracee {
    fn look(&mut self, name: &str, kernel: &dyn Kernel, template: &'static Hook, pid: u32, sites: Sites) {
        self.settled = sites.is_ok();
        let sites = sites.unwrap_or_else(|missing| {
            if self.age == Tracees::PATIENCE {
                log::warn!("{name}: process {pid} is not counted: {missing}");
            }
            Vec::new()
        });
        if sites == self.sites {
            return;
        }
        self.attached.clear();
        for (target, number) in &sites {
            match kernel.attach_to(template, target, *number) {
                Ok(attachment) => self.attached.push(attachment),
                Err(_) if !exists(pid) => break,
                Err(error) => log::warn!("{name}: process {pid}: {target} cannot be attached to: {error}"),
            }
        }
        self.sites = sites;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Fake, OptionType, ProcessFilter, Tier};
    use super::*;
    use std::process::{Child, Command};

    static TEMPLATE: Hook =
        Hook { name: "t", tiers: &[Tier { kind: "uprobe", programs: &["each_uprobe__t"] }], needs: "nothing" };

    fn tracees(pid: u32) -> Tracees {
        let text = format!("[a]\nprocess = {pid}\n");
        let config = crate::config::Config::parse("test.conf", text.as_bytes()).unwrap();
        let value = config.section("a").unwrap().get("process").unwrap().unwrap();
        Tracees::new("t", Watch::new("t", ProcessFilter::read(&value).unwrap(), None))
    }

    fn target(offset: u64, pid: u32) -> Target {
        Target::Code { path: "/f".into(), offset, semaphore: 0, process: Some(pid), name: "f".into() }
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
        let (fake, mut tracees) = (Fake::new(), tracees(pid));
        tracees.tick(&fake, &TEMPLATE, &mut |_, _| Err("no library".into()));
        assert_eq!((fake.targets().len(), tracees.attached().count()), (0, 0));
        let mut find = |pid, _| Ok(vec![(target(1, pid), 7), (target(2, pid), 7)]);
        tracees.tick(&fake, &TEMPLATE, &mut find);
        assert_eq!(fake.targets(), [(target(1, pid), 7), (target(2, pid), 7)]);
        assert_eq!(tracees.attached().next().unwrap().0, pid);
        tracees.tick(&fake, &TEMPLATE, &mut |_, _| panic!("it is known"));
        ended(child);
        tracees.tick(&fake, &TEMPLATE, &mut find);
        assert_eq!((fake.targets(), tracees.attached().count()), (vec![], 0));
    }

    #[test]
    fn a_process_is_looked_at_anew_in_its_next_program_and_stays_attached_if_the_sites_are_the_same() {
        use std::io::Write;
        let mut child = shell();
        let pid = child.id();
        let (fake, mut tracees) = (Fake::new(), tracees(pid));
        let mut born = Vec::new();
        tracees.tick(&fake, &TEMPLATE, &mut |pid, at| {
            born.push(at);
            Ok(vec![(target(1, pid), 1)])
        });
        let before = Life::of(pid);
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        while Life::of(pid) == before {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        tracees.tick(&fake, &TEMPLATE, &mut |pid, at| {
            born.push(at);
            Ok(vec![(target(2, pid), 1)])
        });
        assert_eq!(fake.targets(), [(target(2, pid), 1)]);
        assert_eq!(born[0], born[1]);
        ended(child);
    }

    #[test]
    fn a_process_without_sites_is_looked_at_ever_more_seldom() {
        let child = shell();
        let (fake, mut tracees) = (Fake::new(), tracees(child.id()));
        let mut looks = 0;
        for _ in 0..40 {
            tracees.tick(&fake, &TEMPLATE, &mut |_, _| {
                looks += 1;
                Err("no probes in this build".into())
            });
        }
        assert_eq!(looks, 13);
        ended(child);
    }
}
