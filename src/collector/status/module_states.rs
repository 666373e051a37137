//! The state of each module, in the order of what an administrator has to see first.

use super::super::loaded_module::LoadedModule;
use super::super::loaded_modules::LoadedModules;
use super::super::prepared::Configuration;
use super::Sets;

/// A module and its state, enabled or not.
pub struct ModuleState<'a> {
    /// Its section, or the name that this would have.
    pub name: &'a str,
    /// `failed`, `no values`, `running`, `postponed`, `stopped` or `off`.
    pub state: &'static str,
    /// How it is attached, or why it is not.
    pub sentence: String,
    /// The module, unless the configuration makes none of it.
    pub loaded: Option<(&'a LoadedModules, &'a LoadedModule)>,
}

impl ModuleState<'_> {
    /// Whether it is enabled and has no values.
    pub fn has_failed(&self) -> bool {
        matches!(self.state, "failed" | "no values")
    }

    /// Whether it is not to run: nobody enabled it, or somebody stopped it.
    pub fn is_off(&self) -> bool {
        matches!(self.state, "off" | "stopped")
    }
}

/// Failed modules come first, those that are off last; else they keep the order of the configuration.
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

/// The place of a state among the others.
pub fn rank(state: &str) -> usize {
    const ORDER: [&str; 5] = ["failed", "no values", "running", "postponed", "stopped"];
    ORDER.iter().position(|known| *known == state).unwrap_or(ORDER.len())
}
