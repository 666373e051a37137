//! Loaded modules and their readings.

use super::choose::{Chosen, SetOption};
use super::error::ShowError;
use super::reading::{Earlier, Reading};
use super::select::Selected;
use super::site::OfSite;
use crate::catalog::EnabledModule;
use crate::cli::ShowOptions;
use crate::collector::{prepare, prepared_modules, survey, AgentStatus, Engine, PreparedModules};
use crate::config::{Config, ConfigError, Settings};
use crate::kit::{show_arguments, Table};
use crate::modules::MODULES;
use crate::privilege;
use crate::transport::Signals;
use chrono::Local;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Loaded modules and the tables that are shown.
pub struct Shown {
    set: Engine,
    /// Programs and scripts of the site; kept because it runs the scripts.
    _of_site: OfSite,
    selected: Vec<Selected>,
    /// Values of each table, the latest and those before, with the number of events.
    values: Vec<[(Table, Option<u64>); 2]>,
    since: Instant,
    rounds: u64,
}

impl Shown {
    /// Loads the modules. Those that cannot be loaded are reported and left out.
    pub fn load(options: &ShowOptions, chosen: Chosen) -> Result<Shown, ShowError> {
        let program = &options.common.program;
        let Chosen { config, settings, mut modules, mut of_site, mut selected, set, .. } = chosen;
        show_arguments(settings.show_arguments);
        let mut left_out = Vec::new();
        let of_agent = selected.iter().any(|selected| selected.table.section.is_empty());
        let (made, status) = match of_agent {
            true => {
                let path = config.path().to_owned();
                let config: Result<_, ConfigError> = Ok(config);
                let prepared = prepare(&config, &path, survey(&config, MODULES), MODULES);
                modules = prepared.enabled;
                (prepared.modules, Some(AgentStatus::new(prepared.configuration, settings.bpf_stats)))
            }
            false => (made(&config, &settings, &mut modules, &set, &mut left_out)?, None),
        };
        let mut set = Engine::load(made, options.common.btf.clone());
        for (module, made_of) in std::mem::take(&mut of_site.modules) {
            set.add(PreparedModules::alone(&module, made_of));
            modules.push(module);
        }
        if settings.drop_privileges {
            drop_privileges(&modules);
        }
        let is_one = |name: &str| modules.iter().any(|module| module.settings.section == name);
        for (_, loaded) in set.sets().modules().filter(|(_, loaded)| is_one(&loaded.name)) {
            let reason = loaded.running.as_ref().err().map(ToString::to_string);
            let of_pair = loaded.pair().filter(|pair| pair.state == "failed").map(|pair| pair.error);
            left_out.extend(reason.or(of_pair).map(|reason| (loaded.name.to_string(), reason)));
        }
        if let Some(status) = status {
            set.serve_status(status);
            left_out.retain(|(name, _)| selected.iter().any(|selected| selected.table.section == *name));
        }
        selected.retain(|selected| left_out.iter().all(|(name, _)| *name != selected.table.section));
        if selected.is_empty() {
            let mut reasons: Vec<String> = Vec::new();
            for (_, reason) in left_out {
                if !reasons.contains(&reason) {
                    reasons.push(reason);
                }
            }
            return Err(ShowError::NotLoaded(reasons.join("; ")));
        }
        for (name, reason) in left_out {
            eprintln!("{program}: {name} is not shown: {reason}");
        }
        for selected in &selected {
            let Some(starting) = selected.table.spec.started_by else { continue };
            let tables = modules.iter().filter(|module| module.settings.section == selected.table.section);
            for table in tables.flat_map(EnabledModule::tables).filter(|table| std::ptr::eq(table.spec, starting)) {
                // Refused where an option is off, which is said in place of the values.
                let _ = set.store(table.id, 0, b"start");
            }
        }
        let table = |selected: &Selected| (Table::of(selected.table.spec), None);
        let values = selected.iter().map(|selected| [table(selected), table(selected)]).collect();
        Ok(Shown { set, _of_site: of_site, selected, values, since: Instant::now(), rounds: 0 })
    }

    /// True if all tables are the agent's own, whose values need no wait.
    pub fn is_status(&self) -> bool {
        self.selected.iter().all(|selected| selected.table.section.is_empty())
    }

    /// Lets the modules work until a time. Returns true if a signal ended the wait.
    pub fn wait(&mut self, signals: &Signals, until: Option<Instant>) -> bool {
        loop {
            match self.set.attend(signals.as_fd(), until) {
                false => return false,
                true if signals.take_end().is_some() => return true,
                true => {}
            }
        }
    }

    /// Reads all tables. A table without values is left out, with a line in the log; if it is the only one, its error is returned.
    pub fn read(&mut self) -> Result<Vec<Reading<'_>>, ShowError> {
        let covers: Duration = self.since.elapsed();
        (self.since, self.rounds) = (Instant::now(), self.rounds + 1);
        let mut is_read = Vec::new();
        for (selected, values) in self.selected.iter().zip(&mut self.values) {
            values.swap(0, 1);
            let [(table, events), _] = values;
            let result = self.set.refresh(selected.table.id, table);
            *events = self.set.events(selected.table.id);
            // A script prints its maps once bpftrace has attached it.
            let waits_for = result.as_ref().err().filter(|_| selected.table.is_of_the_site()).map(ToString::to_string);
            is_read.push((result.is_ok() || waits_for.is_some(), waits_for));
            match result {
                Err(error) if self.selected.len() == 1 && !selected.table.is_of_the_site() => return Err(error.into()),
                _ => {}
            }
        }
        let has_earlier = self.rounds > 1;
        let mut readings = Vec::new();
        for ((of, values), (is_read, waits_for)) in self.selected.iter().zip(&self.values).zip(is_read) {
            let [(table, events), (earlier, events_before)] = values;
            let new = events.map(|events| events - events_before.unwrap_or(0).min(events));
            let earlier = has_earlier.then(|| Earlier::new(earlier));
            if is_read {
                let waits_for = waits_for.or_else(|| self.set.waits_for(of.table.id));
                readings.push(Reading { of, table, earlier, new, time: Local::now(), covers, waits_for });
            }
        }
        Ok(readings)
    }
}

/// Drops privileges that only loading needed.
fn drop_privileges(modules: &[EnabledModule]) {
    let dropped = privilege::hold(&privilege::to_run(modules.iter().map(|module| module.spec)))
        .map_err(|error| error.to_string());
    let limited = privilege::limit_calls().map_err(|error| error.to_string());
    if let Err(error) = dropped.and(limited) {
        log::warn!("privileges are not dropped: {error}");
    }
}

/// Makes the modules. An error in one costs only its own metrics, unless `--set` caused it.
fn made(
    config: &Config,
    settings: &Settings,
    modules: &mut Vec<EnabledModule>,
    set: &[SetOption],
    left_out: &mut Vec<(String, String)>,
) -> Result<PreparedModules, ShowError> {
    let error = match prepared_modules(config, modules, settings) {
        Ok(made) => return Ok(made),
        Err(error) => error,
    };
    if let Some(error) = set.iter().find_map(|option| option.blame(&error)) {
        return Err(error);
    }
    modules.retain(|module| {
        let made = prepared_modules(config, std::slice::from_ref(module), settings);
        left_out.extend(made.as_ref().err().map(|error| (module.settings.section.clone(), error.to_string())));
        made.is_ok()
    });
    Ok(prepared_modules(config, modules, settings)?)
}
