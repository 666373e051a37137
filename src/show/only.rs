//! `-p`, `--comm` and `--cgroup`: the rows of a process, of processes with a name, or of a cgroup.

use super::select::Selected;
use crate::cli::Only;
use crate::kit::{Shape, Table};
use crate::pcp::Atom;

/// The place of the process, command or cgroup in the rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// A column, shown or not.
    Column(usize),
    /// The name of the instance.
    Name,
}

/// Returns the option that does not fit a table, and what its rows lack.
pub fn lacking(of: &Selected, only: &Only) -> Option<(&'static str, &'static str)> {
    let asked = [
        (only.pid.is_some(), "-p", "process ids", process(of)),
        (only.comm.is_some(), "--comm", "command names", command(of)),
        (only.cgroup.is_some(), "--cgroup", "cgroups", cgroup(of)),
    ];
    let lacks = asked.into_iter().find(|(is_asked, .., place)| *is_asked && place.is_none());
    lacks.map(|(_, option, what, _)| (option, what))
}

/// True if a row belongs to the process, command and cgroup that the options ask for. `by_name` returns the name of its instance.
pub fn wants(of: &Selected, table: &Table, row: usize, by_name: impl Fn() -> String, only: &Only) -> bool {
    let has_pid = |pid: u32| match process(of) {
        Some(Place::Column(column)) => matches!(table.value(row, column), Some(Atom::U32(known)) if known == pid),
        Some(Place::Name) => of_process(&by_name()).is_some_and(|(known, _)| known == pid),
        None => false,
    };
    let has_comm = |comm: &String| match command(of) {
        Some(Place::Column(column)) => text(table, row, column) == comm.as_bytes(),
        Some(Place::Name) => is_command(&by_name(), of.table.spec.shape, comm),
        None => false,
    };
    let has_cgroup = |cgroup: &String| match self::cgroup(of) {
        Some(Place::Column(column)) => is_in(&String::from_utf8_lossy(text(table, row, column)), cgroup),
        // Of a bucket the path stands behind its bounds.
        Some(Place::Name) => {
            let name = by_name();
            is_in(name.split_once("::").map_or(name.as_str(), |(_, path)| path), cgroup)
        }
        None => false,
    };
    only.pid.is_none_or(has_pid)
        && only.comm.as_ref().is_none_or(has_comm)
        && only.cgroup.as_ref().is_none_or(has_cgroup)
}

fn column(of: &Selected, names: &[&str]) -> Option<Place> {
    let metrics = of.table.spec.metrics;
    let is = |name: &str| names.contains(&name.rsplit('.').next().unwrap_or(name));
    metrics.iter().position(|metric| is(metric.name)).map(Place::Column)
}

/// True if instances are named after processes: `000812 /usr/sbin/sshd`, `vda::000812 /usr/sbin/sshd`, or `000812::000077 sshd bash`.
fn has_processes(of: &Selected) -> bool {
    matches!(of.table.spec.shape, Shape::Pids | Shape::Words { .. })
}

fn process(of: &Selected) -> Option<Place> {
    column(of, &["pid"]).or(has_processes(of).then_some(Place::Name))
}

fn command(of: &Selected) -> Option<Place> {
    let is_stack = of.table.spec.summary == "each stack";
    column(of, &["comm", "command"]).or((has_processes(of) || is_stack).then_some(Place::Name))
}

fn cgroup(of: &Selected) -> Option<Place> {
    let is_by_cgroup = of.table.spec.metrics.first().is_some_and(|metric| metric.name.starts_with("cgroup."));
    column(of, &["cgroup_path"]).or(is_by_cgroup.then_some(Place::Name))
}

fn text(table: &Table, row: usize, column: usize) -> &[u8] {
    match table.value(row, column) {
        Some(Atom::Str(text)) => text,
        _ => b"",
    }
}

/// Returns the process identifier and the command line in the name of an instance; of two processes the first.
fn of_process(name: &str) -> Option<(u32, &str)> {
    let (word, line) = name.split_once(' ').unwrap_or((name, ""));
    let pid = match word.split_once("::") {
        Some((before, after)) if before.parse::<u32>().is_err() => after,
        Some((before, _)) => before,
        None => word,
    };
    Some((pid.parse().ok()?, line))
}

/// True if the name of an instance has this command: its program in any directory, or the first frame of a stack.
fn is_command(name: &str, shape: Shape, comm: &str) -> bool {
    match shape {
        Shape::Pids | Shape::Words { .. } => of_process(name).is_some_and(|(_, line)| {
            let program = line.split(' ').next().unwrap_or_default();
            line == comm || program.rsplit('/').next() == Some(comm)
        }),
        _ => name.split(',').next() == Some(comm),
    }
}

/// True if a cgroup has this path, or if `cgroup` is a component of the path.
fn is_in(path: &str, cgroup: &str) -> bool {
    path == cgroup || path.split('/').any(|part| !part.is_empty() && part == cgroup)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_found_in_the_names_of_instances() {
        assert_eq!(of_process("000812 /usr/sbin/sshd -D"), Some((812, "/usr/sbin/sshd -D")));
        assert_eq!(of_process("vda::003394 backup"), Some((3394, "backup")));
        assert_eq!(of_process("000812::000077 sshd bash"), Some((812, "sshd bash")));
        assert_eq!(of_process("4107"), Some((4107, "")));
        assert_eq!(of_process("read"), None);
        let is = |name, comm| is_command(name, Shape::Pids, comm);
        assert!(is("000812 /usr/sbin/sshd -D", "sshd") && is("000001 my name", "my name") && !is("000812 a", "b"));
        assert!(is_command("curl,main,read", Shape::Numbered, "curl"));
    }

    #[test]
    fn a_cgroup_is_meant_by_its_path_or_a_component_of_it() {
        let path = "/system.slice/backup.service";
        assert!(is_in(path, path) && is_in(path, "backup.service") && is_in(path, "system.slice"));
        assert!(!is_in(path, "backup") && !is_in(path, "/system.slice") && !is_in("/", ""));
        assert!(is_in("/", "/"));
    }
}
