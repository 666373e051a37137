//! Programs and bpftrace scripts of this site that names mean, and the program of `--program`.

use super::error::ShowError;
use super::select::{means, select, Selected};
use crate::catalog::EnabledModule;
use crate::cli::{programs, scripts, CommonOptions, ShowOptions};
use crate::config::{Config, ScriptSettings, Settings};
use crate::kit::Module;
use crate::pcpconf::PcpConf;
use crate::privilege::{confine_to_scripts, hold};
use crate::script::{Others, Scripts};
use crate::user::{pairs_of, read_directory, read_file, section_of, PairFiles, PairOptions};
use caps::CapsHashSet;
use std::collections::BTreeMap;

/// Modules that have no section in the configuration.
#[derive(Default)]
pub struct OfSite {
    /// Pairs and scripts as modules.
    pub modules: Vec<(EnabledModule, Box<dyn Module + Send>)>,
    /// Names without the prefix, each with the node of metrics that it means.
    nodes: Vec<(String, String)>,
    prefix: String,
    /// The scripts, which run until this is dropped.
    scripts: Option<Scripts>,
}

impl OfSite {
    /// Finds the pairs and scripts of names that mean nothing else, and the pair of `--program`.
    pub fn find(
        options: &ShowOptions,
        config: &Config,
        settings: &Settings,
        names: &[String],
    ) -> Result<OfSite, ShowError> {
        let mut of = OfSite { prefix: settings.prefix.clone(), ..OfSite::default() };
        if names.is_empty() && options.pair.is_none() {
            return Ok(of);
        }
        let (common, conf) = (&options.common, PcpConf::load());
        let wanted: Vec<String> = names.iter().map(|name| of.local(name).to_owned()).collect();
        let (btf, allow_helpers) = (common.btf.clone(), settings.allow_helpers.clone());
        let pair_options = PairOptions { btf, allow_helpers };
        let files = if wanted.is_empty() { Vec::new() } else { read_directory(&programs(common, &conf)) };
        let mut files: Vec<PairFiles> =
            files.into_iter().filter(|files| is_one(&section_of(&files.name), "user", &wanted)).collect();
        if let Some(file) = &options.pair {
            let (own, trusted) = read_file(file);
            trusted.map_err(|error| ShowError::Pair(error.to_string()))?;
            // It counts before that of the directory which has its name.
            let section = section_of(&own.name);
            files.retain(|files| section_of(&files.name) != section);
            of.nodes.push((String::new(), section));
            files.push(own);
        }
        for (module, pair) in pairs_of(files, &pair_options, &settings.prefix, None, &[], &BTreeMap::new()) {
            if module.tables().next().is_none() {
                return Err(ShowError::NotLoaded(format!("{}: {}", module.settings.section, pair.status().error)));
            }
            of.modules.push((module, Box::new(pair)));
        }
        of.add_scripts(common, config, settings, &wanted)?;
        for name in wanted {
            let sections: Vec<&str> = of.modules.iter().map(|(module, _)| module.settings.section.as_str()).collect();
            let own = ["user", "script"].map(|kind| format!("{kind}.{name}"));
            let node = own.iter().find(|own| sections.contains(&own.as_str())).unwrap_or(&name).clone();
            of.nodes.push((name, node));
        }
        Ok(of)
    }

    /// Removes the prefix from a name.
    fn local<'a>(&self, name: &'a str) -> &'a str {
        name.strip_prefix(&self.prefix).unwrap_or(name)
    }

    /// True if a name means one of these modules.
    pub fn has(&self, name: &str) -> bool {
        let node = self.nodes.iter().find(|(known, _)| known == self.local(name)).map(|(_, node)| node);
        node.is_some_and(|node| self.modules.iter().any(|(module, _)| means(module, node)))
    }

    /// Returns the tables that the names mean.
    pub fn select(&self) -> Vec<Selected> {
        let nodes: Vec<String> = self.nodes.iter().map(|(_, node)| node.clone()).collect();
        select(self.modules.iter().map(|(module, _)| module), Vec::new(), &nodes).0
    }

    fn add_scripts(
        &mut self,
        common: &CommonOptions,
        config: &Config,
        settings: &Settings,
        names: &[String],
    ) -> Result<(), ShowError> {
        let is_pair = |name: &String| {
            let own = std::slice::from_ref(name);
            self.modules.iter().any(|(module, _)| is_one(&module.settings.section, "user", own))
        };
        let names: Vec<String> = names.iter().filter(|name| !is_pair(name)).cloned().collect();
        let directory = scripts(common, &PcpConf::load());
        if names.is_empty() || !directory.is_dir() {
            return Ok(());
        }
        // Whoever watches may do so more rarely than scripts expire.
        let script_settings = ScriptSettings { expiry: None, ..ScriptSettings::read(config).0.unwrap_or_default() };
        let mut scripts = Scripts::new(script_settings, directory, None)?;
        let tables = self.modules.iter().flat_map(|(module, _)| module.tables());
        let taken: Vec<u16> = tables.map(|table| table.id.cluster() as u16).collect();
        let others = Others { modules: &taken, pairs: &[] };
        let added = scripts.change(&settings.prefix, |section| is_one(section, "script", &names), None, &others).added;
        if added.is_empty() {
            return Ok(());
        }
        for (module, script) in added {
            self.modules.push((module, Box::new(script)));
        }
        scripts.start_helper(confine_to_scripts);
        let drops = settings.drop_privileges;
        // What it reads are pipes.
        scripts.start_thread(move || drop(drops.then(|| hold(&CapsHashSet::new()))));
        self.scripts = Some(scripts);
        Ok(())
    }
}

/// True if one of the names means a section of this kind: as its full name, a node below it, its name without the kind, or the kind.
fn is_one(section: &str, kind: &str, names: &[String]) -> bool {
    names.iter().any(|name| {
        let is_below = name.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        let is_own = section.strip_prefix(kind).and_then(|rest| rest.strip_prefix('.')) == Some(name);
        is_below || is_own || name == kind
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_has_its_name_and_those_above_and_below_it() {
        for name in ["user.calls", "calls", "user", "user.calls.total"] {
            assert!(is_one("user.calls", "user", &[name.to_owned()]), "{name}");
        }
        for name in ["user.call", "call", "user.callsx", "script.calls", "script", ""] {
            assert!(!is_one("user.calls", "user", &[name.to_owned()]), "{name}");
        }
    }
}
