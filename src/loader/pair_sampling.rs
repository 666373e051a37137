//! Programs of a pair that run at perf events: an event on each online CPU, as CPUs come and go.

use super::pair_advice::listened;
use super::perf_event::open_event;
use super::refusal::Refusal;
use crate::host::online_cpus;
use libbpf_rs::libbpf_sys::{perf_event_attr, PERF_FORMAT_TOTAL_TIME_ENABLED};
use libbpf_rs::{Link, ProgramMut};
use nix::{libc, unistd};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, RawFd};

/// A program that runs at an event on each CPU.
pub struct Sampling {
    /// Name of the program.
    pub program: String,
    event: String,
    attributes: perf_event_attr,
    events: BTreeMap<usize, Event>,
    /// Last message about a CPU without an event.
    told: String,
}

/// Event of a CPU, at which the program runs.
struct Event {
    /// Link, which closes the event when dropped.
    _link: Link,
    event: RawFd,
    life: Life,
}

/// Time that an event was enabled, in nanoseconds, as of the last call. The kernel ends the events of a CPU that goes
/// offline: their time stands still from then on, and they do not resume with the CPU.
#[derive(Default)]
struct Life(u64);

impl Life {
    /// True if the event was enabled at any time since the last call.
    fn goes_on(&mut self, event: impl AsFd) -> bool {
        let mut read = [0; 16]; // the count, the time
        let before = self.0;
        if unistd::read(event, &mut read) == Ok(read.len()) {
            self.0 = u64::from_ne_bytes(*read.last_chunk().expect("an array of 16"));
        }
        self.0 != before
    }
}

impl Event {
    fn lives(&mut self) -> bool {
        // SAFETY: the link closes the descriptor, and goes with this.
        let event = unsafe { BorrowedFd::borrow_raw(self.event) };
        self.life.goes_on(event)
    }
}

impl Sampling {
    /// Attaches a program to an event on each online CPU.
    pub fn begin(program: &ProgramMut<'_>, event: &str) -> Result<Sampling, Refusal> {
        let mut sampling = Sampling {
            program: program.name().to_string_lossy().into_owned(),
            event: event.into(),
            attributes: attributes(event)?,
            events: BTreeMap::new(),
            told: String::new(),
        };
        sampling.attach(program, &online_cpus())?;
        match sampling.events.is_empty() {
            true => Err(Refusal::missing("no CPU has such an event")),
            false => Ok(sampling),
        }
    }

    /// Attaches events to CPUs that came online, including those that were offline briefly, and drops events of offline
    /// CPUs. Returns an error once.
    pub fn follow(&mut self, program: &ProgramMut<'_>) -> Option<Refusal> {
        let refusal = self.attach(program, &online_cpus()).err();
        let words = refusal.as_ref().map(ToString::to_string).unwrap_or_default();
        let is_new = words != self.told;
        self.told = words;
        refusal.filter(|_| is_new)
    }

    fn attach(&mut self, program: &ProgramMut<'_>, online: &BTreeSet<usize>) -> Result<(), Refusal> {
        let Sampling { event, attributes, events, .. } = self;
        follow(events, online, Event::lives, |cpu| {
            let opened = match open_event(*attributes, -1, cpu as i32) {
                // It went off line meanwhile.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                    return Err(Refusal::missing(format!("this machine has no perf event {event}")));
                }
                opened => opened?,
            };
            let link = listened(|| program.attach_perf_event(opened.as_raw_fd()))?;
            Ok(Some(Event { _link: link, event: opened.into_raw_fd(), life: Life::default() }))
        })
    }
}

/// Drops the items of CPUs that are offline and dead items, and makes missing ones; `make` returns `None` for a CPU
/// that cannot have one now.
fn follow<T, E>(
    events: &mut BTreeMap<usize, T>,
    online: &BTreeSet<usize>,
    mut lives: impl FnMut(&mut T) -> bool,
    mut make: impl FnMut(usize) -> Result<Option<T>, E>,
) -> Result<(), E> {
    events.retain(|cpu, event| online.contains(cpu) && lives(event));
    for &cpu in online {
        if !events.contains_key(&cpu) {
            events.extend(make(cpu)?.map(|event| (cpu, event)));
        }
    }
    Ok(())
}

/// Parses `type=0,config=2,frequency=1`, decimal or hexadecimal; `period=` instead of `frequency=`.
fn attributes(event: &str) -> Result<perf_event_attr, Refusal> {
    let mut attributes =
        perf_event_attr { read_format: PERF_FORMAT_TOTAL_TIME_ENABLED.into(), ..perf_event_attr::default() };
    for pair in event.split(',') {
        let wrong = || {
            let expected = "type=NUMBER, config=NUMBER, and frequency=NUMBER or period=NUMBER";
            Refusal::new(libc::EINVAL, format!("expected {expected}, got `{pair}`"))
        };
        let (key, value) = pair.split_once('=').ok_or_else(wrong)?;
        let number = match value.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => value.parse(),
        };
        let number = number.map_err(|_| wrong())?;
        match key {
            "type" => attributes.type_ = u32::try_from(number).map_err(|_| wrong())?,
            "config" => attributes.config = number,
            "frequency" | "period" => {
                attributes.set_freq((key == "frequency").into());
                attributes.__bindgen_anon_1.sample_period = number;
            }
            _ => return Err(wrong()),
        }
    }
    Ok(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    #[test]
    fn an_event_is_declared_by_its_section() {
        let event = attributes("type=0,config=0x2,frequency=7").unwrap();
        assert_eq!((event.type_, event.config, event.freq()), (0, 2, 1));
        // SAFETY: both members of the union are numbers of the same size.
        assert_eq!(unsafe { event.__bindgen_anon_1.sample_freq }, 7);
        assert_eq!(attributes("type=1,config=0,period=5").unwrap().freq(), 0);
        for wrong in ["", "type", "type=x", "type=0,cpu=1", "type=0x1ffffffff"] {
            assert!(attributes(wrong).err().unwrap().message.contains("expected type=NUMBER"), "{wrong}");
        }
    }

    #[test]
    fn events_follow_the_cpus_that_are_on_line() {
        let mut events = BTreeMap::new();
        let mut made = Vec::new();
        let mut now = |online: &[usize], events: &mut BTreeMap<usize, Rc<Cell<bool>>>| {
            let online = online.iter().copied().collect();
            let lives = |event: &mut Rc<Cell<bool>>| event.get();
            let result = follow(events, &online, lives, |cpu| {
                made.push(cpu);
                match cpu {
                    // It goes off line before its event is made, as CPU 9 does; CPU 8 is refused.
                    9 => Ok(None),
                    8 => Err("refused"),
                    _ => Ok(Some(Rc::new(Cell::new(true)))),
                }
            });
            (result, std::mem::take(&mut made))
        };
        assert_eq!(now(&[0, 1], &mut events), (Ok(()), vec![0, 1]));
        let gone = Rc::downgrade(&events[&1]);
        assert_eq!(now(&[0, 1], &mut events), (Ok(()), vec![]), "each has its event");
        assert_eq!(now(&[0], &mut events), (Ok(()), vec![]));
        assert!(gone.upgrade().is_none() && events.keys().eq(&[0]), "the event of a CPU that is off line is closed");
        assert_eq!(now(&[0, 1, 2], &mut events), (Ok(()), vec![1, 2]), "one that is back, and a new one");
        events[&2].set(false);
        assert_eq!(now(&[0, 1, 2], &mut events), (Ok(()), vec![2]), "one that was off line in between");
        assert_eq!(now(&[0, 1, 9], &mut events), (Ok(()), vec![9]));
        assert_eq!(now(&[0, 1, 9], &mut events), (Ok(()), vec![9]), "it is tried again");
        assert_eq!(now(&[0, 8], &mut events).0, Err("refused"));
        assert!(events.keys().eq(&[0]));
    }

    /// An event is disabled here as by the kernel when its CPU goes offline.
    #[test]
    fn the_time_of_an_event_that_is_over_stands_still() {
        let opened = open_event(attributes("type=1,config=0,frequency=1").unwrap(), -1, 0);
        let event = match opened {
            Ok(event) => event,
            Err(error) => {
                println!("skipped: the_time_of_an_event_that_is_over_stands_still: a perf event ({error})");
                return;
            }
        };
        let mut life = Life::default();
        assert!(life.goes_on(&event) && life.goes_on(&event));
        const PERF_EVENT_IOC_DISABLE: libc::Ioctl = 0x2401;
        // SAFETY: the call takes no argument but the flags.
        assert_eq!(unsafe { libc::ioctl(event.as_raw_fd(), PERF_EVENT_IOC_DISABLE, 0) }, 0);
        assert!(life.goes_on(&event) && !life.goes_on(&event), "until it ended, and no longer");
        assert!(!life.goes_on(std::fs::File::open("/dev/null").unwrap()), "nor that of what cannot be read");
    }
}
