//! Programs of a pair that run at perf events: an event on each CPU that is on line, as CPUs come and go.

use super::pair_advice::listened;
use super::perf_event::open_event;
use super::refusal::Refusal;
use crate::host::online_cpus;
use libbpf_rs::libbpf_sys::perf_event_attr;
use libbpf_rs::{Link, ProgramMut};
use nix::libc;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsRawFd, IntoRawFd};

/// A program that runs at an event on each CPU.
pub struct Sampling {
    /// The name of the program.
    pub program: String,
    event: String,
    attributes: perf_event_attr,
    links: BTreeMap<usize, Link>,
    /// What was said of a CPU that got no event.
    told: String,
}

impl Sampling {
    /// Attaches a program to an event on each CPU that is on line.
    pub fn begin(program: &ProgramMut<'_>, event: &str) -> Result<Sampling, Refusal> {
        let mut sampling = Sampling {
            program: program.name().to_string_lossy().into_owned(),
            event: event.into(),
            attributes: attributes(event)?,
            links: BTreeMap::new(),
            told: String::new(),
        };
        sampling.attach(program, &online_cpus())?;
        match sampling.links.is_empty() {
            true => Err(Refusal::missing("no CPU has such an event")),
            false => Ok(sampling),
        }
    }

    /// Gives CPUs that came on line an event, and lets those go that are off line. What went wrong is said once.
    pub fn follow(&mut self, program: &ProgramMut<'_>) -> Option<Refusal> {
        let refusal = self.attach(program, &online_cpus()).err();
        let words = refusal.as_ref().map(ToString::to_string).unwrap_or_default();
        let is_new = words != self.told;
        self.told = words;
        refusal.filter(|_| is_new)
    }

    fn attach(&mut self, program: &ProgramMut<'_>, online: &BTreeSet<usize>) -> Result<(), Refusal> {
        let Sampling { event, attributes, links, .. } = self;
        follow(links, online, |cpu| {
            let opened = match open_event(*attributes, -1, cpu as i32) {
                // It went off line meanwhile.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                    return Err(Refusal::missing(format!("this machine has no perf event {event}")));
                }
                opened => opened?,
            };
            let link = listened(|| program.attach_perf_event(opened.as_raw_fd()))?;
            // The link closes it.
            let _ = opened.into_raw_fd();
            Ok(Some(link))
        })
    }
}

/// Drops what CPUs have that are not on line, and makes it for those that have none; `None` is a CPU that cannot have it now.
fn follow<L, E>(
    links: &mut BTreeMap<usize, L>,
    online: &BTreeSet<usize>,
    mut make: impl FnMut(usize) -> Result<Option<L>, E>,
) -> Result<(), E> {
    links.retain(|cpu, _| online.contains(cpu));
    for &cpu in online {
        if !links.contains_key(&cpu) {
            links.extend(make(cpu)?.map(|link| (cpu, link)));
        }
    }
    Ok(())
}

/// `type=0,config=2,frequency=1`, decimal or hexadecimal; `period=` instead of `frequency=`.
fn attributes(event: &str) -> Result<perf_event_attr, Refusal> {
    let mut attributes = perf_event_attr::default();
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
        let mut links = BTreeMap::new();
        let mut made = Vec::new();
        let mut now = |online: &[usize], links: &mut BTreeMap<usize, std::rc::Rc<()>>| {
            let online = online.iter().copied().collect();
            let result = follow(links, &online, |cpu| {
                made.push(cpu);
                match cpu {
                    // It goes off line before its event is made, as CPU 9 does; CPU 8 is refused.
                    9 => Ok(None),
                    8 => Err("refused"),
                    _ => Ok(Some(std::rc::Rc::new(()))),
                }
            });
            (result, std::mem::take(&mut made))
        };
        assert_eq!(now(&[0, 1], &mut links), (Ok(()), vec![0, 1]));
        let gone = std::rc::Rc::downgrade(&links[&1]);
        assert_eq!(now(&[0, 1], &mut links), (Ok(()), vec![]), "each has its event");
        assert_eq!(now(&[0], &mut links), (Ok(()), vec![]));
        assert!(gone.upgrade().is_none() && links.keys().eq(&[0]), "the event of a CPU that is off line is closed");
        assert_eq!(now(&[0, 1, 2], &mut links), (Ok(()), vec![1, 2]), "one that is back, and a new one");
        assert_eq!(now(&[0, 1, 9], &mut links), (Ok(()), vec![9]));
        assert_eq!(now(&[0, 1, 9], &mut links), (Ok(()), vec![9]), "it is tried again");
        assert_eq!(now(&[0, 8], &mut links).0, Err("refused"));
        assert!(links.keys().eq(&[0]));
    }
}
