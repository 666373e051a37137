//! Names of cgroups (src/modules/shared/places.rs has histograms and counters by cgroup), and paths of those that rows show.

use super::places::{ByPlace, Names, PlacedHistograms};
use crate::host::{series_name, Cgroup, Cgroups, Controller};
use crate::kit::{Buckets, Seconds, SeriesLabels, Shape};
use std::collections::{HashMap, HashSet};

/// Shape of tables whose series are named by path; removed cgroups keep their identifiers for a day.
pub const BY_PATH: Shape = Shape::Named { max: 1 << 17 };

/// Makes counters by cgroup of v2, where there are no histograms.
pub fn counters_by_cgroup<R>(of: &'static ByPlace<R>) -> PlacedHistograms<R> {
    PlacedHistograms::new(of, Cgroups::of(Controller::Unified), Seconds(60).window(), Buckets::default())
}

/// A source of the names of cgroups.
pub trait Tree {
    /// Passes every existing cgroup to `each`.
    fn walk(&self, each: &mut dyn FnMut(Cgroup));
    /// True if the cgroup still exists.
    fn is_there(&self, cgroup: &Cgroup) -> bool;
    /// Returns the labels of a cgroup by its path.
    fn labels(&self, path: &[u8]) -> SeriesLabels;
}

impl Tree for Cgroups {
    fn walk(&self, each: &mut dyn FnMut(Cgroup)) {
        Cgroups::walk(self, each);
    }

    fn is_there(&self, cgroup: &Cgroup) -> bool {
        Cgroups::is_there(self, cgroup)
    }

    fn labels(&self, path: &[u8]) -> SeriesLabels {
        Cgroups::labels(self, path)
    }
}

impl<T: Tree> Names for T {
    fn find(&self, ids: &mut HashSet<u64>, found: &mut dyn FnMut(u64, Vec<u8>)) {
        find_all(self, ids, &mut |cgroup| found(cgroup.id, cgroup.path));
    }

    fn is_there(&self, id: u64, path: &[u8]) -> bool {
        Tree::is_there(self, &Cgroup { id, path: path.into() })
    }

    fn series(&self, id: u64, path: &[u8]) -> Vec<u8> {
        series_name(&Cgroup { id, path: path.into() })
    }

    fn labels(&self, _id: u64, path: &[u8]) -> SeriesLabels {
        Tree::labels(self, path)
    }
}

/// Passes the cgroups with these ids to `found`, and removes their ids; ids that remain belong to no cgroup. Without ids there is no
/// walk.
fn find_all(tree: &dyn Tree, ids: &mut HashSet<u64>, found: &mut dyn FnMut(Cgroup)) {
    if ids.is_empty() {
        return;
    }
    tree.walk(&mut |cgroup| {
        if ids.remove(&cgroup.id) {
            found(cgroup);
        }
    });
}

/// Paths of the cgroups that a table shows, found while they exist.
pub struct CgroupPaths {
    tree: Option<Box<dyn Tree + Send>>,
    /// Paths by id; `None` for a cgroup that was gone before it was looked for.
    paths: HashMap<u64, Option<Vec<u8>>>,
}

impl CgroupPaths {
    /// Makes an empty list. Without `tree` no cgroup has a path.
    pub fn new<T: Tree + Send + 'static>(tree: Option<T>) -> CgroupPaths {
        CgroupPaths { tree: tree.map(|tree| Box::new(tree) as Box<dyn Tree + Send>), paths: HashMap::new() }
    }

    /// Finds the paths of new ids in one walk, and forgets those of other ids. Id 0 is no cgroup.
    pub fn keep(&mut self, ids: impl Iterator<Item = u64>) {
        let Some(tree) = &self.tree else { return };
        let ids: HashSet<u64> = ids.filter(|&id| id != 0).collect();
        self.paths.retain(|id, _| ids.contains(id));
        let mut unknown: HashSet<u64> = ids.into_iter().filter(|id| !self.paths.contains_key(id)).collect();
        let paths = &mut self.paths;
        find_all(&**tree, &mut unknown, &mut |cgroup| {
            paths.insert(cgroup.id, Some(series_name(&cgroup)));
        });
        paths.extend(unknown.into_iter().map(|id| (id, None)));
    }

    /// Returns the path of a cgroup that was kept.
    pub fn path(&self, id: u64) -> Option<&[u8]> {
        self.paths.get(&id)?.as_deref()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::kit::SeriesLabel;
    use std::sync::{Arc, Mutex, MutexGuard};

    /// A tree of cgroups with their ids, which counts the walks through it.
    #[derive(Clone, Default)]
    pub struct Directories(Arc<Mutex<(Vec<Cgroup>, usize)>>);

    impl Directories {
        fn lock(&self) -> MutexGuard<'_, (Vec<Cgroup>, usize)> {
            self.0.lock().unwrap()
        }

        pub fn make(&self, id: u64, path: &str) {
            self.lock().0.push(Cgroup { id, path: path.into() });
        }

        pub fn remove(&self, id: u64) {
            self.lock().0.retain(|cgroup| cgroup.id != id);
        }

        pub fn walks(&self) -> usize {
            self.lock().1
        }
    }

    impl Tree for Directories {
        fn walk(&self, each: &mut dyn FnMut(Cgroup)) {
            self.lock().1 += 1;
            let all = self.lock().0.clone();
            all.into_iter().for_each(each);
        }

        fn is_there(&self, cgroup: &Cgroup) -> bool {
            self.lock().0.contains(cgroup)
        }

        fn labels(&self, path: &[u8]) -> SeriesLabels {
            vec![("cgroup", SeriesLabel::Text(String::from_utf8_lossy(path).into_owned()))]
        }
    }
}
