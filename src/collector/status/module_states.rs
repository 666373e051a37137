//! The states of all modules, those first that an administrator has to see first.

use super::super::loaded_module::LoadedModule;
use super::super::loaded_set::LoadedSet;
use super::super::prepared::Configuration;
use super::Sets;

/// A module and its state, whether it is enabled or not.
pub struct ModuleState<'a> {
    /// Its section; for a module without one, the name that the section would have.
    pub name: &'a str,
    /// `failed`, `no values`, `running`, `postponed`, `stopped` or `off`.
    pub state: &'static str,
    /// A sentence about how it is attached, or why it is not.
    pub sentence: String,
    /// The module and its set, unless it has none: an entry that makes no module, or a module that is off.
    pub loaded: Option<(&'a LoadedSet, &'a LoadedModule)>,
}

impl ModuleState<'_> {
    /// True if the module is enabled and has no values.
    pub fn has_failed(&self) -> bool {
        matches!(self.state, "failed" | "no values")
    }

    /// True if the module is not to run: it is not enabled, or was stopped.
    pub fn is_off(&self) -> bool {
        matches!(self.state, "off" | "stopped")
    }
}

/// Returns the states of all modules: those that failed first, those that are off last, otherwise in the order of the configuration.
pub fn module_states<'a>(sets: &'a Sets, configuration: &'a Configuration) -> Vec<ModuleState<'a>> {
    let mut states: Vec<ModuleState<'a>> = sets
        .modules()
        .map(|(set, loaded)| {
            let (state, sentence) = set.state(loaded);
            ModuleState { name: &loaded.name, state, sentence, loaded: Some((set, loaded)) }
        })
        .collect();
    let absent = [("failed", &configuration.lost), ("stopped", &configuration.stopped), ("off", &configuration.off)];
    for (state, absent) in absent {
        states.extend(absent.iter().map(|(name, why)| ModuleState {
            name,
            state,
            sentence: why.clone(),
            loaded: None,
        }));
    }
    states.sort_by_key(|module| rank(module.state));
    states
}

/// Returns the place of a state in the order of [`module_states`].
pub fn rank(state: &str) -> usize {
    const ORDER: [&str; 5] = ["failed", "no values", "running", "postponed", "stopped"];
    ORDER.iter().position(|known| *known == state).unwrap_or(ORDER.len())
}
