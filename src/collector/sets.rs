//! All that is loaded at a moment: modules come and go in sets, each with programs and maps of its own.

use super::loaded_module::LoadedModule;
use super::loaded_modules::LoadedModules;
use crate::kit::TableId;
use crate::loader::{Finding, LoadedObject};
use std::slice::Iter;
use std::sync::Arc;
use std::time::Duration;

/// The sets of loaded modules at a moment. The first is that of the start, which stays.
#[derive(Clone, Default)]
pub struct Sets(pub(super) Vec<Arc<LoadedModules>>);

impl Sets {
    /// Each set.
    pub fn iter(&self) -> Iter<'_, Arc<LoadedModules>> {
        self.0.iter()
    }

    /// Each module, with its set.
    pub fn modules(&self) -> impl Iterator<Item = (&LoadedModules, &LoadedModule)> {
        self.iter().flat_map(|set| set.iter().map(move |loaded| (&**set, loaded)))
    }

    /// The set that serves a table.
    pub fn of(&self, id: TableId) -> Option<&Arc<LoadedModules>> {
        self.iter().find(|set| set.serves(id))
    }

    /// The module of a section, with its set.
    pub fn named(&self, section: &str) -> Option<(&Arc<LoadedModules>, &LoadedModule)> {
        self.iter().find_map(|set| Some((set, set.iter().find(|loaded| &*loaded.name == section)?)))
    }

    /// The objects in the kernel.
    pub fn kernels(&self) -> impl Iterator<Item = &dyn LoadedObject> {
        self.iter().map(|set| &*set.kernel)
    }

    /// What loading said of the kernel: what the first set knows comes first.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.iter().flat_map(|set| &set.findings)
    }

    /// How long loading took in all.
    pub fn loading(&self) -> Duration {
        self.iter().map(|set| set.loading).sum()
    }

    /// The name of a program or a map of a set among those of all: that of a set that was loaded later has the set's first module
    /// behind it.
    pub fn name(&self, set: &Arc<LoadedModules>, name: &str) -> String {
        let is_first = self.0.first().is_some_and(|first| Arc::ptr_eq(first, set));
        match set.modules.first().filter(|_| !is_first) {
            Some(module) => format!("{name}::{}", module.name),
            None => name.to_owned(),
        }
    }
}
