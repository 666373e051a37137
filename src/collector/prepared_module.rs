//! Modules that are made and ready to be loaded.

use crate::catalog::{EnabledModule, ServedTable};
use crate::config::{Config, Notes, Settings};
use crate::kit::{with_section, Layout, Module, Setup, SetupError, Spec, TableId, TableSpec};
use crate::loader::{forget_pinned, want_pinned, Failure, PinRequest};
use log::Level;
use std::sync::Arc;
use std::time::Duration;

/// A module with its name, ready to be loaded.
pub struct PreparedModule {
    pub name: Arc<str>,
    pub spec: &'static Spec,
    pub tables: Vec<(TableId, &'static TableSpec)>,
    pub metrics: Vec<ServedMetric>,
    /// The option `debug` of its section.
    pub debug: bool,
    /// Remarks of the module on its section, for the log.
    pub remarks: Vec<(Level, String)>,
    /// Maps of the module that outlive the agent, if its section says so.
    pub pin: Option<PinRequest>,
    /// The module, or the error in its section for which it fails.
    pub module: Result<Box<dyn Module + Send>, Failure>,
}

/// A metric under its name for clients.
pub struct ServedMetric {
    /// The complete name.
    pub name: String,
    /// Cluster of its table as declared.
    pub cluster: u32,
    /// Its column in the table.
    pub column: usize,
    /// Reason why it has no values, if it needs an option that is off.
    pub off: Option<String>,
}

impl ServedMetric {
    /// Returns its bit in a set of columns, as [`crate::kit::Table::empty_columns`].
    pub fn bit(&self) -> u64 {
        1_u64.checked_shl(self.column as u32).unwrap_or(0)
    }
}

/// The modules of a configuration, ready to be loaded.
pub struct PreparedModules {
    pub(super) modules: Vec<PreparedModule>,
    pub(super) process_refresh: Option<Duration>,
    /// True if some of these modules may be stopped while others run.
    pub(super) stoppable: bool,
    /// True if these modules are a pair or a script, with no part in the agent's own programs.
    pub(super) of_the_site: bool,
}

impl PreparedModules {
    /// Makes a set of one module that has no section in the configuration and has programs of its own: a pair, a script.
    pub fn alone(enabled: &EnabledModule, module: Box<dyn Module + Send>) -> PreparedModules {
        PreparedModules {
            modules: vec![PreparedModule::new(enabled, Ok(module), Notes::default())],
            process_refresh: None,
            stoppable: false,
            of_the_site: true,
        }
    }

    /// Returns the modules of some sections, without the others.
    pub fn of(self, is_wanted: impl Fn(&str) -> bool) -> PreparedModules {
        let modules = self.modules.into_iter().filter(|module| is_wanted(&module.name)).collect();
        PreparedModules { modules, ..self }
    }

    /// Returns these modules with `stoppable` set: if true, shared programs get a switch for each module.
    pub fn stoppable(self, stoppable: bool) -> PreparedModules {
        PreparedModules { stoppable, ..self }
    }
}

/// Makes the modules of a configuration, or returns the first error. It is quick, since pmcd gives an agent three seconds to say
/// something: modules plan only when they are loaded.
pub fn prepared_modules(
    config: &Config,
    modules: &[EnabledModule],
    settings: &Settings,
) -> Result<PreparedModules, SetupError> {
    let modules = modules.iter().map(|module| {
        let notes = Notes::default();
        let made = make(config, module, settings, &notes)?;
        Ok(PreparedModule::new(module, Ok(made), notes))
    });
    let (modules, process_refresh) = (modules.collect::<Result<_, _>>()?, settings.process_refresh);
    Ok(PreparedModules { modules, process_refresh, stoppable: false, of_the_site: false })
}

/// Makes the module of a section. Nothing but its result and the notes is changed.
pub fn make(
    config: &Config,
    module: &EnabledModule,
    settings: &Settings,
    notes: &Notes,
) -> Result<Box<dyn Module + Send>, SetupError> {
    let name = Arc::from(module.settings.section.as_str());
    let section = config
        .section(&module.settings.section)
        .ok_or_else(|| SetupError::Missing { path: config.path().into(), reason: format!("no section [{name}]") })?;
    let section = section.noted_in(notes);
    let Settings { process_refresh, show_arguments, .. } = *settings;
    with_section(&name, || (module.spec.make)(&Setup { section: &section, process_refresh, show_arguments }))
}

impl PreparedModule {
    pub fn new(
        enabled: &EnabledModule,
        module: Result<Box<dyn Module + Send>, Failure>,
        notes: Notes,
    ) -> PreparedModule {
        let (name, debug) = (Arc::from(enabled.settings.section.as_str()), enabled.settings.debug);
        let mut remarks = notes.take_remarks();
        if debug {
            remarks.insert(0, (Level::Info, "Debug logging enabled.".into()));
        }
        let tables = enabled.tables().map(|table| (table.id, table.spec)).collect();
        let served = |table: ServedTable| {
            let off = table.why_off();
            let metric = |(name, column)| ServedMetric { name, cluster: table.spec.cluster, column, off: off.clone() };
            table.names().into_iter().map(metric).collect::<Vec<_>>()
        };
        let metrics = enabled.tables().flat_map(served).collect();
        let pin = enabled.settings.pin.as_ref().map(|said| {
            let layout = said.iter().fold(Layout::begin(), |layout, (key, value)| layout.with(key).with(value));
            let maps = enabled.spec.counts.iter().map(|map| map.name.to_owned()).collect();
            PinRequest { unit: enabled.spec.name.to_owned(), layout, maps }
        });
        PreparedModule { name, spec: enabled.spec, tables, metrics, debug, remarks, pin, module }
    }

    /// Logs the remarks and records whether the maps are to outlive the agent: the module is about to be loaded.
    pub fn announce(&self) {
        for (level, remark) in &self.remarks {
            log::log!(*level, "{}: {remark}", self.name);
        }
        match &self.pin {
            Some(pin) => want_pinned(&pin.unit),
            None if !self.spec.counts.is_empty() => forget_pinned(self.spec.name),
            None => {} // a pair, which declares no counts, says itself what it keeps
        }
    }
}
