//! The events that tracefs lists.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// Where the kernel's list of events is, in the newer and the older mount point of tracefs.
const LISTS: [&str; 2] = ["/sys/kernel/tracing/available_events", "/sys/kernel/debug/tracing/available_events"];

/// The kernel's events, each `category:event`.
pub struct Events {
    list: Result<Vec<String>, String>,
}

impl Events {
    /// Reads the list.
    pub fn read() -> Events {
        Events::from(&LISTS.map(Path::new))
    }

    fn from(lists: &[&Path]) -> Events {
        let mut reasons = Vec::new();
        for list in lists {
            match fs::read_to_string(list) {
                Ok(text) => return Events { list: Ok(text.lines().map(String::from).collect()) },
                Err(error) => {
                    let place = list.parent().unwrap_or(list).display();
                    reasons.push(match error.kind() {
                        ErrorKind::NotFound => format!("{place} is not mounted"),
                        _ => format!("{place} cannot be read ({error})"),
                    });
                }
            }
        }
        Events { list: Err(reasons.join(", ")) }
    }

    /// A list that is known.
    pub fn of(events: &[&str]) -> Events {
        Events { list: Ok(events.iter().map(|event| (*event).to_string()).collect()) }
    }

    /// No list, for this reason.
    pub fn unknown(reason: &str) -> Events {
        Events { list: Err(reason.into()) }
    }

    /// The events; or why they are not known.
    pub fn list(&self) -> Result<&[String], &str> {
        self.list.as_deref().map_err(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_list_that_can_be_read_counts_and_without_one_each_place_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (there, missing) = (dir.path().join("b/available_events"), dir.path().join("a/available_events"));
        fs::create_dir(dir.path().join("b")).unwrap();
        fs::write(&there, "sched:sched_switch\nirq:irq_handler_entry\n").unwrap();
        let events = Events::from(&[&missing, &there]);
        assert_eq!(events.list().unwrap(), ["sched:sched_switch", "irq:irq_handler_entry"]);
        let reason = Events::from(&[&missing]).list().unwrap_err().to_string();
        assert!(reason.ends_with("/a is not mounted"), "{reason}");
    }
}
