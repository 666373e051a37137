//! The sets of loaded modules: modules come and go in sets, each with programs and maps of its own.

use super::loaded_module::LoadedModule;
use super::loaded_set::LoadedSet;
use crate::kit::TableId;
use crate::loader::{Finding, LoadedObject};
use std::slice::Iter;
use std::sync::Arc;
use std::time::Duration;

/// The sets of loaded modules at a moment. The first is that of the start, which stays.
#[derive(Clone, Default)]
pub struct Sets(pub(super) Vec<Arc<LoadedSet>>);

impl Sets {
    /// Each set.
    pub fn iter(&self) -> Iter<'_, Arc<LoadedSet>> {
        self.0.iter()
    }

    /// Each module, with its set.
    pub fn modules(&self) -> impl Iterator<Item = (&LoadedSet, &LoadedModule)> {
        self.iter().flat_map(|set| set.iter().map(move |loaded| (&**set, loaded)))
    }

    /// The set that serves a table.
    pub fn of(&self, id: TableId) -> Option<&Arc<LoadedSet>> {
        self.iter().find(|set| set.serves(id))
    }

    /// The module of a section, with its set.
    pub fn named(&self, section: &str) -> Option<(&Arc<LoadedSet>, &LoadedModule)> {
        self.iter().find_map(|set| Some((set, set.iter().find(|loaded| &*loaded.name == section)?)))
    }

    /// The objects in the kernel.
    pub fn kernels(&self) -> impl Iterator<Item = &dyn LoadedObject> {
        self.iter().map(|set| &*set.kernel)
    }

    /// Returns the features of the kernel that loading found present or missing, those of the first set first.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.iter().flat_map(|set| &set.findings)
    }

    /// Returns the time that loading took in total.
    pub fn loading(&self) -> Duration {
        self.iter().map(|set| set.loading).sum()
    }

    /// Returns the name of a set's program or map, unique among all sets: in sets that were loaded later it ends with the name of the
    /// set's first module.
    pub fn name(&self, set: &Arc<LoadedSet>, name: &str) -> String {
        let is_first = self.0.first().is_some_and(|first| Arc::ptr_eq(first, set));
        match set.modules.first().filter(|_| !is_first) {
            Some(module) => format!("{name}::{}", module.name),
            None => name.to_owned(),
        }
    }
}
