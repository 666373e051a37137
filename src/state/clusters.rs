//! PMID clusters of tables that are not compiled in, handed out once and kept by name over restarts: a line `CLUSTER NAME` for each.
//! The directory is the `pcp` account's, so that nothing in the file is to be relied on.

use super::Writer;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::io;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

/// The file that keeps clusters.
#[derive(Clone)]
pub struct ClusterFile {
    path: PathBuf,
    writer: Arc<Writer>,
}

impl ClusterFile {
    /// A file of this name in the writer's directory.
    pub fn new(writer: &Arc<Writer>, name: &str) -> ClusterFile {
        ClusterFile { path: writer.path(name), writer: Arc::clone(writer) }
    }

    /// The clusters that it has, as far as they are in the range; none if there is no file, or (and a line in the log) none that can be read.
    pub fn load(&self, range: RangeInclusive<u16>) -> Clusters {
        let text = self.writer.read(&self.path).unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                log::warn!("{}: {error}; clusters are handed out again", self.path.display());
            }
            Vec::new()
        });
        Clusters::read(&text, range)
    }

    /// Passes the file to the writer.
    pub fn save(&self, clusters: &Clusters) {
        self.writer.write(&self.path, clusters.text().into_bytes());
    }
}

/// The clusters of names.
#[derive(Debug)]
pub struct Clusters {
    range: RangeInclusive<u16>,
    names: BTreeMap<String, u16>,
}

impl Clusters {
    /// The clusters that the text of a file has, as far as they are in the range.
    pub fn read(text: &[u8], range: RangeInclusive<u16>) -> Clusters {
        let mut clusters = Clusters::none(range);
        let mut taken = BTreeSet::new();
        for line in String::from_utf8_lossy(text).split('\n') {
            let Some((number, name)) = line.split_once(' ') else { continue };
            let Some(number) = number.parse().ok().filter(|number| clusters.range.contains(number)) else { continue };
            if !name.is_empty() && !clusters.names.contains_key(name) && taken.insert(number) {
                clusters.names.insert(name.into(), number);
            }
        }
        clusters
    }

    /// None yet, of a range.
    pub fn none(range: RangeInclusive<u16>) -> Clusters {
        Clusters { range, names: BTreeMap::new() }
    }

    /// The clusters of these names, new ones included; `None` where there is none left. Clusters in `reserved` are somebody else's. A
    /// name that is not among these gives way once no cluster is free.
    pub fn assign(&mut self, names: &[String], reserved: &[u16]) -> Vec<Option<u16>> {
        let wanted: BTreeSet<&String> = names.iter().collect();
        self.names.retain(|_, number| !reserved.contains(number));
        let taken: BTreeSet<u16> = self.names.values().chain(reserved).copied().collect();
        let free: Vec<u16> = self.range.clone().filter(|number| !taken.contains(number)).collect();
        let mut free = free.into_iter();
        let mut assigned = Vec::new();
        for name in names {
            if !self.names.contains_key(name) {
                let free = free.next();
                let unused = || self.names.iter().find(|(other, _)| !wanted.contains(other));
                let unused = free.is_none().then(|| unused().map(|(other, number)| (other.clone(), *number))).flatten();
                if let Some((other, _)) = &unused {
                    self.names.remove(other);
                }
                if let Some(number) = free.or(unused.map(|(_, number)| number)) {
                    self.names.insert(name.clone(), number);
                }
            }
            assigned.push(self.names.get(name).copied());
        }
        assigned
    }

    /// The names that have these clusters.
    pub fn names_of(&self, clusters: &[u16]) -> Vec<String> {
        self.names.iter().filter(|(_, number)| clusters.contains(number)).map(|(name, _)| name.clone()).collect()
    }

    /// The text of the file, a line for each.
    pub fn text(&self) -> String {
        self.names.iter().fold(String::new(), |mut text, (name, number)| {
            let _ = writeln!(text, "{number} {name}");
            text
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| String::from(*name)).collect()
    }

    #[test]
    fn clusters_are_kept_by_name_over_restarts() {
        let home = tempfile::tempdir().unwrap();
        let file = ClusterFile::new(&Arc::new(Writer::new(home.path().into())), "149.programs");
        let mut clusters = file.load(500..=505);
        assert_eq!(clusters.assign(&names(&["b.x", "a.x"]), &[500]), [Some(501), Some(502)]);
        file.save(&clusters);
        let mut clusters = file.load(500..=505);
        assert_eq!(clusters.assign(&names(&["a.x", "c.x", "b.x"]), &[]), [Some(502), Some(500), Some(501)]);
    }

    #[test]
    fn the_clusters_of_names_that_are_gone_are_taken_last() {
        let mut clusters = Clusters::none(500..=501);
        clusters.assign(&names(&["gone", "b"]), &[]);
        assert_eq!(clusters.assign(&names(&["b", "c", "d"]), &[]), [Some(501), Some(500), None]);
    }

    #[test]
    fn lines_that_cannot_be_true_are_passed_over() {
        let mut clusters = Clusters::read(b"500 a\n500 b\n501 a\n301 c\nx d\n\xff\xfe\n501 e f\n", 500..=510);
        assert_eq!(clusters.assign(&names(&["a", "b", "c", "e f"]), &[]), [Some(500), Some(502), Some(503), Some(501)]);
    }
}
