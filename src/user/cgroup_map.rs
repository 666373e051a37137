//! A pair's map of the cgroups whose path matches one of its expressions (`cgroup_id_map`). The agent walks the tree of cgroups once
//! a second: a new cgroup is in the map within a second, and one that is gone is out of it.

use super::config::{CgroupMap, PairError};
use crate::host::{Cgroups, Controller};
use crate::loader::{LoadedPair, PairMap, Refusal};
use std::collections::HashSet;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;

/// A map of matching cgroups at work.
pub struct KeptCgroups {
    declared: CgroupMap,
    /// Identifiers of the cgroups in the map.
    known: HashSet<u64>,
    told: bool,
}

impl KeptCgroups {
    /// Prepares an empty map.
    pub fn new(declared: CgroupMap) -> KeptCgroups {
        KeptCgroups { declared, known: HashSet::new(), told: false }
    }

    /// The name of the map.
    pub fn name(&self) -> &str {
        &self.declared.name
    }

    /// Checks that the object has the map, with keys and values of the right size.
    pub fn check(&self, file: &str, map: Option<&PairMap>) -> Result<(), PairError> {
        let CgroupMap { name, is_storage, place, .. } = &self.declared;
        let expected = if *is_storage { (4, 8) } else { (8, 8) };
        let got = map.map(|map| (map.key_size, map.value_size));
        if got == Some(expected) {
            return Ok(());
        }
        let (key, value) = expected;
        let kind = if *is_storage { "storage of cgroups" } else { "hash" };
        let got = got.map_or("no such map".into(), |(key, value)| format!("{key} and {value}"));
        let reason = format!("expected a {kind} `{name}` with keys of {key} bytes and values of {value}, got {got}");
        Err(PairError { file: file.into(), place: place.clone(), reason })
    }

    /// Adds new cgroups that match, and removes those that are gone.
    pub fn update(&mut self, pair: &LoadedPair) -> Result<(), Refusal> {
        let CgroupMap { name, is_storage, regexps, .. } = &self.declared;
        let cgroups = Cgroups::of(Controller::Unified).map_err(|error| Refusal::missing(error.to_string()))?;
        let one = &1_u64.to_ne_bytes()[..];
        let (mut found, mut failed) = (HashSet::new(), None);
        cgroups.walk(&mut |cgroup| {
            let below = cgroup.path.strip_prefix(b"/").unwrap_or(&cgroup.path);
            let path = match below {
                b"" => cgroups.mount().to_path_buf(),
                below => cgroups.mount().join(std::ffi::OsStr::from_bytes(below)),
            };
            if !regexps.iter().any(|regexp| regexp.is_match(path.as_os_str().as_bytes())) {
                return;
            }
            let is_in = self.known.contains(&cgroup.id) || {
                let put = match is_storage {
                    true => File::open(&path)
                        .map_err(Into::into)
                        .and_then(|directory| pair.set(name, &directory.as_raw_fd().to_ne_bytes(), Some(one))),
                    false => pair.set(name, &cgroup.id.to_ne_bytes(), Some(one)),
                };
                // One that went meanwhile is no error of the map.
                put.map_err(|refusal| failed = Some(refusal).filter(|_| path.exists())).is_ok()
            };
            if is_in {
                found.insert(cgroup.id);
            }
        });
        if !is_storage {
            // The kernel clears a storage itself.
            self.known.difference(&found).for_each(|id| drop(pair.set(name, &id.to_ne_bytes(), None)));
        }
        self.known = found;
        failed.map_or(Ok(()), |refusal| Err(Refusal::new(refusal.errno, format!("map {name}: {refusal}"))))
    }

    /// Updates the map; called once a second. An error is logged once.
    pub fn tick(&mut self, pair: &LoadedPair, name: &str) {
        let result = self.update(pair);
        if let (Err(why), false) = (&result, self.told) {
            log::warn!("user.{name}: {why}");
        }
        self.told = result.is_err();
    }
}
