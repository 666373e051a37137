//! Statistics of BPF programs, which the kernel keeps for all programs while any process holds a descriptor for them.

use super::super::guard::held;
use crate::loader::Finding;
use nix::libc;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

/// The agent's own descriptor for statistics. Other processes may hold one, too.
pub struct Statistics {
    switch: Mutex<Switch>,
}

struct Switch {
    descriptor: Option<OwnedFd>,
    finding: Finding,
}

impl Statistics {
    /// Makes the state in which the agent holds no descriptor.
    pub fn off() -> Statistics {
        Statistics { switch: Mutex::new(Switch { descriptor: None, finding: off() }) }
    }

    /// Opens or closes the descriptor. If that is refused, nothing changes, but the reason is kept.
    pub fn switch(&self, on: bool, open: impl FnOnce() -> io::Result<OwnedFd>) -> io::Result<()> {
        let mut switch = held(&self.switch);
        match (on, &switch.descriptor) {
            (true, Some(_)) => {}
            (true, None) => match open() {
                Ok(descriptor) => {
                    let finding = found(Some(true), "on: the kernel counts the runs of programs and their time");
                    *switch = Switch { descriptor: Some(descriptor), finding };
                }
                Err(error) => {
                    switch.finding = found(Some(false), format!("refused ({error}); {}", remedy(&error)));
                    return Err(error);
                }
            },
            (false, _) => *switch = Switch { descriptor: None, finding: off() },
        }
        Ok(())
    }

    /// True if the agent holds the descriptor.
    pub fn are_on(&self) -> bool {
        held(&self.switch).descriptor.is_some()
    }

    /// Returns the state and its reason, as a feature of the kernel.
    pub fn finding(&self) -> Finding {
        held(&self.switch).finding.clone()
    }
}

/// Returns advice for an error of the kernel or of the helper.
fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPIPE | libc::EAGAIN) => "the helper process `corebcc-stats` does not answer: restart the agent",
        _ => "it needs Linux 5.8 and an agent that is started with CAP_SYS_ADMIN",
    }
}

fn off() -> Finding {
    found(None, "off: `pmstore bcc.agent.program.stats 1`, or `bpf_stats = True` in [pmda], switches it on")
}

fn found(there: Option<bool>, said: impl Into<String>) -> Finding {
    Finding::new("bpf_stats", there, said)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn open() -> io::Result<OwnedFd> {
        Ok(File::open("/dev/null")?.into())
    }

    #[test]
    fn a_refused_switch_leaves_statistics_off_and_says_why() {
        let statistics = Statistics::off();
        let refused = statistics.switch(true, || Err(io::Error::from_raw_os_error(1)));
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(1));
        let Finding { there, said, .. } = statistics.finding();
        assert!(!statistics.are_on() && there == Some(false) && said.contains("CAP_SYS_ADMIN"), "{said}");
        let gone = statistics.switch(true, || Err(io::Error::from_raw_os_error(libc::EPIPE)));
        assert!(gone.is_err() && statistics.finding().said.contains("restart the agent"));
        statistics.switch(true, open).unwrap();
        assert!(statistics.are_on() && statistics.finding().there == Some(true));
        statistics.switch(true, || panic!("one descriptor is enough")).unwrap();
        statistics.switch(false, open).unwrap();
        assert!(!statistics.are_on() && statistics.finding().there.is_none());
    }
}
