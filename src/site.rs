//! The modules that are to run at this site according to files and orders: those of the configuration, the pairs of `programs.d`, and
//! the scripts of `scripts.d`. It finds the modules to stop and to load when these change; all others keep counting.

use crate::catalog::{enabled_module, Controllers, EnabledModule};
use crate::cli::{configuration, programs, scripts, CommonOptions};
use crate::collector::{
    prepare, survey, ChangeError, Configuration, DesiredState, Difference, Order, Prepared, PreparedModules,
};
use crate::config::{Config, ConfigError, ModuleSettings, ScriptSettings, Settings, SCRIPTS};
use crate::kit::show_arguments;
use crate::modules::MODULES;
use crate::pcpconf::PcpConf;
use crate::script::{Others, ScriptChanges, Scripts};
use crate::state::{ClusterFile, Writer};
use crate::user::{
    is_right, pairs_of, read_directory, read_pairs, section_beside, section_of, Changed, PairFiles, PairOptions, Watch,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

/// Options that a module was loaded with; it is loaded again when they change.
type Said = Vec<(String, String)>;

/// The files, the orders since the start, and the modules that run accordingly.
pub struct Site {
    common: CommonOptions,
    conf: PcpConf,
    directory: PathBuf,
    /// File with the clusters of pairs.
    clusters: ClusterFile,
    watch: Watch,
    config: Result<Config, ConfigError>,
    settings: Settings,
    configuration: Configuration,
    /// Modules that run, by section, with their options and clusters.
    modules: BTreeMap<String, (Said, Vec<u16>)>,
    /// Pairs that run, by section, with the names of their files.
    pairs: BTreeMap<String, String>,
    /// Hashes of the files of the loaded pairs, by their names.
    contents: BTreeMap<String, u64>,
    /// Clusters of pairs, by section.
    of_pairs: BTreeMap<String, Vec<u16>>,
    /// The scripts, if there was a section for them at the start.
    scripts: Option<Scripts>,
    /// True if there is a section for scripts now.
    runs_scripts: bool,
    /// True if modules and pairs may be loaded while the agent runs. Scripts always may: they need no privilege of the agent.
    loads_later: bool,
    /// Sections that were ordered to run (true) or to stop (false), whatever the configuration says.
    orders: BTreeMap<String, bool>,
}

/// A module that is loaded as a set of its own.
type Alone = (EnabledModule, PreparedModules);

fn alone(modules: Vec<Alone>) -> Vec<(Vec<EnabledModule>, PreparedModules)> {
    modules.into_iter().map(|(enabled, prepared)| (vec![enabled], prepared)).collect()
}

impl Site {
    /// Makes the site at the start of the agent, which loads these modules next.
    pub fn new(
        common: &CommonOptions,
        conf: &PcpConf,
        config: Result<Config, ConfigError>,
        settings: Settings,
        configuration: Configuration,
        enabled: &[EnabledModule],
        writer: &Arc<Writer>,
    ) -> Site {
        let directory = programs(common, conf);
        let mut site = Site {
            common: common.clone(),
            conf: conf.clone(),
            clusters: ClusterFile::new(writer, &format!("{}.programs", common.domain)),
            watch: Watch::pairs(directory.clone()),
            directory,
            config,
            settings,
            configuration,
            modules: BTreeMap::new(),
            pairs: BTreeMap::new(),
            contents: BTreeMap::new(),
            of_pairs: BTreeMap::new(),
            scripts: None,
            runs_scripts: false,
            loads_later: false,
            orders: BTreeMap::new(),
        };
        site.modules = enabled.iter().map(|module| site.running(module)).collect();
        site.loads_later = site.settings.loads_later(&site.directory);
        if let Some(settings) = site.config.as_ref().ok().and_then(|config| ScriptSettings::read(config).0) {
            let made = Scripts::new(settings, scripts(common, conf), Some(site.clusters.clone()));
            site.scripts = made.map_err(|error| log::error!("no script is run: {error}")).ok();
            site.runs_scripts = true;
        }
        site
    }

    /// True if modules and programs may be loaded while the agent runs.
    pub fn loads_later(&self) -> bool {
        self.loads_later
    }

    /// True if there may be pairs.
    pub fn may_have_pairs(&self) -> bool {
        self.loads_later || self.directory.is_dir()
    }

    /// Returns the scripts, for starting their helper and thread.
    pub fn scripts(&mut self) -> Option<&mut Scripts> {
        self.scripts.as_mut()
    }

    /// Returns the users and groups that may give orders.
    pub fn controllers(&self) -> Controllers {
        let Settings { control_users, control_groups, .. } = &self.settings;
        Controllers { users: control_users.clone(), groups: control_groups.clone() }
    }

    /// Makes modules of all pairs.
    pub fn all_pairs(&mut self) -> Vec<Alone> {
        self.made(read_directory(&self.directory))
    }

    /// Makes modules of all scripts.
    pub fn all_scripts(&mut self) -> Vec<Alone> {
        self.changed_scripts(None)
            .load
            .into_iter()
            .flat_map(|(enabled, prepared)| enabled.into_iter().next().map(|enabled| (enabled, prepared)))
            .collect()
    }

    fn pair_options(&self) -> PairOptions {
        PairOptions { btf: self.common.btf.clone(), allow_helpers: self.settings.allow_helpers.clone() }
    }

    fn running(&self, module: &EnabledModule) -> (String, (Said, Vec<u16>)) {
        let section = module.settings.section.clone();
        let of_section = self.config.as_ref().ok().and_then(|config| config.section(&section));
        let mut said = of_section.map_or_else(Said::new, |section| section.said());
        let shared = (&self.settings.prefix, self.settings.process_refresh, self.settings.show_arguments);
        said.push(("[pmda]".into(), format!("{shared:?}")));
        let clusters = module.tables().map(|table| table.id.cluster() as u16).collect();
        (section, (said, clusters))
    }

    /// Makes modules of pairs that do not run yet.
    fn made(&mut self, files: Vec<PairFiles>) -> Vec<Alone> {
        let names: Vec<(String, Option<u64>)> =
            files.iter().map(|files| (files.name.clone(), files.contents())).collect();
        let others: Vec<u16> = self.modules.values().flat_map(|(_, clusters)| clusters).copied().collect();
        let pairs =
            pairs_of(files, &self.pair_options(), &self.settings.prefix, Some(&self.clusters), &others, &self.pairs);
        let alone = |(enabled, pair): (EnabledModule, _)| {
            let prepared = PreparedModules::alone(&enabled, Box::new(pair));
            (enabled, prepared)
        };
        for ((enabled, pair), (name, contents)) in pairs.iter().zip(names) {
            if let (Some(contents), false) = (contents, pair.status().state == "failed") {
                self.contents.insert(name.clone(), contents);
            }
            self.pairs.insert(enabled.settings.section.clone(), name);
            let clusters = enabled.tables().map(|table| table.id.cluster() as u16).collect();
            self.of_pairs.insert(enabled.settings.section.clone(), clusters);
        }
        pairs.into_iter().map(alone).collect()
    }

    /// Returns the changes that follow from the files of scripts and the orders. `restart` is the section of a script to be restarted.
    fn changed_scripts(&mut self, restart: Option<&str>) -> Difference {
        let Some(scripts) = &mut self.scripts else { return Difference::default() };
        let clusters = |(section, clusters): (&String, &Vec<u16>)| match self.pairs.contains_key(section) {
            true => clusters.clone(),
            false => Vec::new(),
        };
        let of_pairs: Vec<u16> = self.of_pairs.iter().flat_map(clusters).collect();
        let of_modules: Vec<u16> = self.modules.values().flat_map(|(_, clusters)| clusters).copied().collect();
        let is_meant = |section: &str| self.runs_scripts && self.orders.get(section) != Some(&false);
        let others = Others { modules: &of_modules, pairs: &of_pairs };
        let ScriptChanges { removed, added } = scripts.change(&self.settings.prefix, is_meant, restart, &others);
        let load = added.into_iter().map(|(enabled, script)| {
            let prepared = PreparedModules::alone(&enabled, Box::new(script));
            (vec![enabled], prepared)
        });
        Difference { stop: removed, load: load.collect(), ..Difference::default() }
    }

    /// Returns true if a configuration has a section for scripts. Fails if its options have changed: the helper that runs bpftrace
    /// has its options from the start.
    fn said_of_scripts(&self, config: &Result<Config, ConfigError>) -> Result<bool, ChangeError> {
        let Ok(config) = config else { return Ok(self.runs_scripts) };
        let settings = ScriptSettings::read(config).0;
        match (&settings, &self.scripts) {
            (None, _) => Ok(false),
            (Some(settings), Some(scripts)) if settings == scripts.settings() => Ok(true),
            _ => Err(ChangeError(format!(
                "nothing was changed: {}: [{SCRIPTS}] is read at the start only, since the process that runs bpftrace has its options \
                 from then; restart the agent, or undo the change of that section",
                config.path()
            ))),
        }
    }

    /// Forgets running pairs by the names of their files. Returns their sections.
    fn forget(&mut self, names: &[String]) -> Vec<String> {
        let is_one = |(_, name): &(&String, &String)| names.contains(name);
        let sections: Vec<String> = self.pairs.iter().filter(is_one).map(|(section, _)| section.clone()).collect();
        sections.iter().for_each(|section| drop(self.pairs.remove(section)));
        self.contents.retain(|name, _| !names.contains(name));
        sections
    }

    /// Returns the changes that load pairs again, or for the first time.
    fn renewed(&mut self, names: &[String]) -> Difference {
        let names = self.meant(names);
        let stop = self.forget(&names);
        let load = self.made(read_pairs(&self.directory, &names, self.pairs.len()));
        Difference { stop, load: alone(load), ..Difference::default() }
    }

    /// Returns the changes that follow from changed files. Pairs with equal contents keep running, as do pairs whose new files have
    /// errors.
    fn changed(&mut self, names: &[String]) -> Difference {
        let names = self.meant(names);
        let others = self.pairs.values().filter(|name| !names.contains(name)).count();
        let (mut stop, mut files) = (Vec::new(), Vec::new());
        for pair in read_pairs(&self.directory, &names, others) {
            let name = pair.name.clone();
            let (before, now) = (self.contents.get(&name), pair.contents());
            let is_same = before.is_some() && before.copied() == now;
            if is_same || before.is_some() && !is_right(&pair, &self.pair_options()) {
                let beside = section_beside(&name);
                stop.extend(self.pairs.remove(&beside).map(|_| beside));
            } else {
                stop.extend(self.forget(&[name]));
            }
            if !is_same {
                files.push(pair);
            }
        }
        Difference { stop, load: alone(self.made(files)), ..Difference::default() }
    }

    /// Returns the names of those pairs that were not stopped by an order.
    fn meant(&self, names: &[String]) -> Vec<String> {
        let is_meant = |name: &&String| self.orders.get(&section_of(name)) != Some(&false);
        names.iter().filter(is_meant).cloned().collect()
    }

    /// Prepares the modules that follow from a configuration and the orders.
    fn wanted(&self, config: &Result<Config, ConfigError>, path: &str) -> Prepared {
        let mut enabled = survey(config, MODULES);
        enabled.modules.retain(|module| self.orders.get(&module.settings.section) != Some(&false));
        let ordered = self.orders.iter().filter(|(_, runs)| **runs).map(|(section, _)| section);
        for section in ordered {
            let is_there = enabled.modules.iter().any(|module| module.settings.section == *section);
            let of_section = config.as_ref().ok().and_then(|config| Some((config, config.section(section)?)));
            let Some((config, of_section)) = of_section.filter(|_| !is_there) else { continue };
            let (settings, _) = ModuleSettings::read(of_section, &enabled.settings.prefix);
            let known: Vec<ModuleSettings> = enabled.modules.iter().map(|module| module.settings.clone()).collect();
            let settings = settings.filter(|settings| settings.stands_alone(of_section, &known).is_ok());
            let made = settings.and_then(|settings| enabled_module(config, &settings, MODULES, &enabled.modules).ok());
            enabled.modules.extend(made);
        }
        let mut prepared = prepare(config, path, enabled, MODULES);
        for section in self.orders.iter().filter(|(_, runs)| !**runs).map(|(section, _)| section) {
            tell_stopped(&mut prepared, section, config.as_ref().ok());
        }
        prepared
    }

    /// Takes over prepared modules. Returns the changes that lead to them.
    fn take(&mut self, prepared: Prepared) -> Difference {
        let Prepared { settings, enabled, modules, configuration } = prepared;
        let controllers = self.controllers();
        let prefix = std::mem::replace(&mut self.settings, settings).prefix;
        show_arguments(self.settings.show_arguments);
        let controllers = Some(self.controllers()).filter(|now| *now != controllers);
        let wanted: BTreeMap<String, (Said, Vec<u16>)> = enabled.iter().map(|module| self.running(module)).collect();
        let is_kept = |section: &str, by: &BTreeMap<String, (Said, Vec<u16>)>, other: &BTreeMap<_, _>| {
            by.get(section) == other.get(section)
        };
        let stop = self.modules.keys().filter(|section| !is_kept(section, &self.modules, &wanted)).cloned().collect();
        let changed: Vec<String> =
            wanted.keys().filter(|section| !is_kept(section, &wanted, &self.modules)).cloned().collect();
        let is_new = |section: &str| changed.iter().any(|new| new == section);
        let enabled: Vec<EnabledModule> =
            enabled.into_iter().filter(|module| is_new(&module.settings.section)).collect();
        let load = if enabled.is_empty() { Vec::new() } else { vec![(enabled, modules.of(is_new))] };
        self.modules = wanted;
        self.configuration = configuration.clone();
        let mut difference = Difference { stop, load, configuration: Some(configuration), controllers };
        if prefix != self.settings.prefix {
            let names: BTreeSet<String> = self.pairs.values().cloned().collect();
            difference.join(self.renewed(&Vec::from_iter(names)));
        }
        difference
    }

    fn order_module(&mut self, section: &str, order: Order) -> Result<Difference, ChangeError> {
        if order == Order::Stop && !self.modules.contains_key(section) {
            return Ok(Difference::default());
        }
        let before = self.orders.get(section).copied();
        self.orders.insert(section.to_owned(), order != Order::Stop);
        let (prepared, path) = self.wanted_still();
        let served = prepared.enabled.iter().any(|module| module.settings.section == section);
        if served == (order == Order::Stop) || prepared.configuration.halted {
            match before {
                Some(before) => self.orders.insert(section.to_owned(), before),
                None => self.orders.remove(section),
            };
            let errors: Vec<&str> = prepared.configuration.errors.iter().map(|(_, error)| error.as_str()).collect();
            return Err(ChangeError(match errors.is_empty() {
                true => format!("expected the section of a module in {path}, got `{section}`"),
                false => errors.join("; "),
            }));
        }
        if order == Order::Restart {
            self.forget_module(section);
        }
        Ok(self.take(prepared))
    }

    /// Takes a module for one that is not as its section says, so that it is loaded again.
    fn forget_module(&mut self, section: &str) {
        if let Some((said, _)) = self.modules.get_mut(section) {
            said.clear(); // no module is loaded by that
        }
    }

    /// Returns what is wanted by the configuration that was read last, and its path.
    fn wanted_still(&self) -> (Prepared, String) {
        let path = self.config.as_ref().map_or_else(|error| error.to_string(), |config| config.path().to_owned());
        (self.wanted(&self.config, &path), path)
    }

    fn order_pair(&mut self, section: &str, order: Order) -> Result<Difference, ChangeError> {
        let files = read_directory(&self.directory).into_iter().map(|files| files.name);
        let name =
            self.pairs.get(section).cloned().or_else(|| files.into_iter().find(|name| section_of(name) == section));
        let name = name
            .ok_or_else(|| ChangeError(format!("expected a pair of {}, got `{section}`", self.directory.display())))?;
        if order == Order::Start && self.pairs.contains_key(section) {
            return Ok(Difference::default());
        }
        self.orders.insert(section.to_owned(), order != Order::Stop);
        let mut difference = match order {
            Order::Stop => Difference { stop: self.forget(&[name]), ..Difference::default() },
            Order::Start | Order::Restart => self.renewed(&[name]),
        };
        self.tell(section, order, &mut difference);
        Ok(difference)
    }

    fn order_script(&mut self, section: &str, order: Order) -> Result<Difference, ChangeError> {
        let Some(scripts) = self.scripts.as_mut().filter(|_| self.runs_scripts) else {
            return Err(ChangeError(format!(
                "expected a section [{SCRIPTS}] in the configuration, without which no script runs; add it and restart the agent"
            )));
        };
        if !scripts.has(section) {
            scripts.read();
        }
        if !scripts.has(section) {
            let directory = scripts.directory().display();
            return Err(ChangeError(format!("expected a script of {directory}, got `{section}`")));
        }
        if order == Order::Start && scripts.serves(section) {
            return Ok(Difference::default());
        }
        self.orders.insert(section.to_owned(), order != Order::Stop);
        let mut difference = self.changed_scripts((order == Order::Restart).then_some(section));
        self.tell(section, order, &mut difference);
        Ok(difference)
    }

    /// Updates the report on the configuration after an order to start or stop a pair or script.
    fn tell(&mut self, section: &str, order: Order, difference: &mut Difference) {
        let stopped = &mut self.configuration.stopped;
        stopped.retain(|(name, _)| name != section);
        if order == Order::Stop {
            stopped.push((section.to_owned(), how_to_start(section)));
        }
        difference.configuration = Some(self.configuration.clone());
    }
}

/// Describes how to start a stopped module, pair or script.
fn how_to_start(section: &str) -> String {
    format!("stopped; `pmstore -i {section} bcc.agent.module.control start` starts it")
}

/// Reports a module as stopped, in place of the advice how to enable it.
fn tell_stopped(prepared: &mut Prepared, section: &str, config: Option<&Config>) {
    let how = how_to_start(section);
    let module = config.and_then(|config| ModuleSettings::named(config.section(section)?));
    let spec = module.and_then(|module| MODULES.iter().find(|spec| spec.is_named(&module.module)));
    let Configuration { off, unserved, stopped, .. } = &mut prepared.configuration;
    if let Some(spec) = spec {
        off.retain(|(name, _)| name != spec.name);
        let names: Vec<String> =
            spec.metrics().map(|metric| format!("{}{}", prepared.settings.prefix, metric.name)).collect();
        for metric in unserved.iter_mut().filter(|metric| names.contains(&metric.name)) {
            (metric.state, metric.why) = ("stopped", how.clone());
        }
    }
    stopped.push((section.to_owned(), how));
}

impl DesiredState for Site {
    fn poll(&mut self) -> Option<Difference> {
        let has_changed = self.scripts.as_mut().is_some_and(Scripts::scan);
        let of_scripts = if has_changed { self.changed_scripts(None) } else { Difference::default() };
        let Changed { removed, mut new } = match self.loads_later {
            true => self.watch.scan(SystemTime::now()),
            false => Changed::default(),
        };
        let mut stop = self.forget(&removed);
        // A section that is free again is that of a pair that was refused for it.
        let is_free = |name: &&String| stop.contains(&section_of(name)) && !new.contains(name);
        let freed: Vec<String> = self.pairs.values().filter(is_free).cloned().collect();
        new.extend(freed);
        let mut difference = self.changed(&new);
        difference.stop.append(&mut stop);
        difference.join(of_scripts);
        (!difference.is_empty()).then_some(difference)
    }

    fn reload(&mut self) -> Result<Difference, ChangeError> {
        if !self.loads_later {
            self.scripts.iter_mut().for_each(Scripts::read);
            let difference = self.changed_scripts(None);
            return if difference.is_empty() { Err(ChangeError::fixed()) } else { Ok(difference) };
        }
        let (config, path) = configuration(&self.common, &self.conf);
        let runs_scripts = self.said_of_scripts(&config)?;
        let prepared = self.wanted(&config, &path);
        if prepared.configuration.is_costly() {
            let errors: Vec<String> = prepared.configuration.errors.iter().map(|(_, error)| error.clone()).collect();
            let errors = errors.join("; ");
            return Err(ChangeError(format!("nothing was changed: {errors}")));
        }
        self.config = config;
        self.runs_scripts = runs_scripts;
        let mut difference = self.take(prepared);
        self.scripts.iter_mut().for_each(Scripts::read);
        difference.join(self.changed_scripts(None));
        Ok(difference)
    }

    fn retry(&mut self, section: &str) -> Option<Difference> {
        if !self.loads_later {
            return None;
        }
        self.forget_module(section);
        let (prepared, _) = self.wanted_still();
        Some(self.take(prepared))
    }

    fn order(&mut self, section: &str, order: Order) -> Result<Difference, ChangeError> {
        match section.split_once('.') {
            Some(("script", _)) => self.order_script(section, order),
            _ if !self.loads_later => Err(ChangeError::fixed()),
            Some(("user", _)) => self.order_pair(section, order),
            _ => self.order_module(section, order),
        }
    }
}
