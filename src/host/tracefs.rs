//! Events listed by tracefs.

use super::error::HostError;
use nix::libc;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// Mount points of tracefs, newer first (kernel/trace/trace.c).
pub const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Returns the mount point of tracefs.
pub fn tracefs() -> Option<&'static str> {
    TRACEFS.into_iter().find(|root| fs::exists(format!("{root}/events")).unwrap_or(false))
}

/// Lists of events, in the newer and the older mount point of tracefs.
const LISTS: [&str; 2] = ["/sys/kernel/tracing/available_events", "/sys/kernel/debug/tracing/available_events"];

/// Events of the kernel, each `category:event`.
pub struct Events {
    list: Result<Vec<String>, HostError>,
}

impl Events {
    /// Reads the list; if it cannot be read, the reason includes a remedy.
    pub fn read() -> Events {
        Events::from(&LISTS.map(Path::new))
    }

    fn from(lists: &[&Path]) -> Events {
        let mut reasons = Vec::new();
        // The newest place that is there at all decides what helps.
        let mut advice = None;
        for list in lists {
            match fs::read_to_string(list) {
                Ok(text) => return Events { list: Ok(text.lines().map(String::from).collect()) },
                Err(error) => {
                    let place = list.parent().unwrap_or(list).display();
                    reasons.push(match error.kind() {
                        ErrorKind::NotFound => format!("{place} is not mounted"),
                        _ => format!("{place} cannot be read ({error})"),
                    });
                    // Lockdown refuses it with EPERM, whoever asks (fs/tracefs/inode.c); its mode refuses others with EACCES.
                    advice = advice.or(match error.raw_os_error() {
                        Some(libc::EPERM) => Some("a kernel locked down to confidentiality does not let it be read"),
                        Some(libc::EACCES) => Some("run as root or with CAP_DAC_READ_SEARCH"),
                        _ => None,
                    });
                }
            }
        }
        let advice = advice.unwrap_or("mount it with `mount -t tracefs tracefs /sys/kernel/tracing`");
        Events::unknown(&format!("{}; {advice}", reasons.join(", ")))
    }

    /// Makes a list of these events.
    pub fn of(events: &[&str]) -> Events {
        Events { list: Ok(events.iter().map(|event| (*event).to_string()).collect()) }
    }

    /// Makes a list that could not be read for this reason.
    pub fn unknown(reason: &str) -> Events {
        Events { list: Err(HostError::NoEvents(reason.into())) }
    }

    /// Returns the events, or why they are unknown.
    pub fn list(&self) -> Result<&[String], &HostError> {
        self.list.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_readable_list_counts_else_each_path_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (there, missing) = (dir.path().join("b/available_events"), dir.path().join("a/available_events"));
        fs::create_dir(dir.path().join("b")).unwrap();
        fs::write(&there, "sched:sched_switch\nirq:irq_handler_entry\n").unwrap();
        let events = Events::from(&[&missing, &there]);
        assert_eq!(events.list().unwrap(), ["sched:sched_switch", "irq:irq_handler_entry"]);
        let reason = Events::from(&[&missing]).list().unwrap_err().to_string();
        assert!(reason.contains("/a is not mounted; mount it with `mount -t tracefs"), "{reason}");
    }
}
