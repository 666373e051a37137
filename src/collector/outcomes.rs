//! The result of loading each module: as an error, as a word and a sentence, and as lines of the log.

use super::guard::held;
use super::loaded_module::{LoadedModule, CONFIGURATION};
use super::loaded_set::LoadedSet;
use crate::kit::{Hook, Spec, State};
use crate::loader::{Attempt, TargetOutcome};
use std::collections::BTreeMap;

/// Number of targets that a sentence names; further ones are counted.
const NAMED: usize = 3;

impl LoadedSet {
    /// Logs the targets that could not be attached, and, for debugging, each attempt to attach.
    pub fn log_attempts(&self) {
        for reach in self.kernel.targets() {
            match &reach.result {
                Ok(tier) => log::debug!("{}: {}: attached as {}", reach.module, reach.target, tier.kind),
                Err(words) => log::warn!("{}: {} cannot be attached to: {words}", reach.module, reach.target),
            }
        }
        for loaded in self.iter() {
            let name = &loaded.name;
            for (entry, reason) in &loaded.missing {
                log::warn!("{name}: {entry} is left out: {reason}");
            }
            let level = if loaded.debug { log::Level::Info } else { log::Level::Debug };
            for Attempt { hook, kind, result, .. } in self.attempts.iter().filter(|attempt| loaded.has(attempt.hook)) {
                match result {
                    Ok(()) => log::log!(level, "{name}: {hook}: loaded as {kind}"),
                    Err(refusal) => log::log!(level, "{name}: {hook}: {kind} is refused: {refusal}"),
                }
            }
        }
    }

    /// Logs a line for each module: how it is attached, or why it is not loaded. Modules that fail for the same reason share a line.
    pub fn log_outcomes(&self) {
        let mut failures: Vec<(String, Vec<&str>)> = Vec::new();
        for loaded in self.iter() {
            let (name, (_, sentence)) = (&loaded.name, self.state(loaded));
            match &loaded.running {
                Ok(_) if loaded.pair().is_some_and(|pair| pair.state == "failed") => {
                    log::error!("{name}: not loaded: {sentence}");
                }
                Ok(_) if sentence.is_empty() => log::info!("{name}: loaded, nothing to attach to yet"),
                Ok(_) => log::info!("{name}: {sentence}"),
                // The error was logged as the configuration was read, and names the section.
                Err(failure) if failure.hook == CONFIGURATION => {}
                Err(_) => match failures.iter_mut().find(|(other, _)| *other == sentence) {
                    Some((_, names)) => names.push(name),
                    None => failures.push((sentence, vec![name])),
                },
            }
        }
        for (sentence, names) in failures {
            log::error!("{}: not loaded: {sentence}", names.join(", "));
        }
    }

    /// Returns the targets that a module's section names and that it lacks, with the reason: first those that were not found, then
    /// those that cannot be attached.
    pub fn missing(&self, loaded: &LoadedModule) -> Vec<(String, String)> {
        let refused =
            self.kernel.targets().iter().filter(|reach| reach.module == loaded.spec.name).filter_map(|reach| {
                reach.result.as_ref().err().map(|said| (reach.target.to_string(), said.to_string()))
            });
        loaded.missing.iter().cloned().chain(refused).collect()
    }

    /// Returns the names of the loaded modules whose declaration satisfies `is`.
    pub fn users(&self, is: impl Fn(&Spec) -> bool) -> String {
        let users = self.iter().filter(|loaded| loaded.running.is_ok() && is(loaded.spec));
        users.map(|loaded| &*loaded.name).collect::<Vec<_>>().join(",")
    }

    /// Returns the number of a module's targets that are attached, and of those that are not.
    pub fn targets(&self, loaded: &LoadedModule) -> (u64, u64) {
        let is_attached = |reach: &&TargetOutcome| reach.module == loaded.spec.name && reach.result.is_ok();
        // Of a module that failed the loader keeps no targets.
        let missing = match loaded.running.is_err() {
            true => loaded.missing.len() + loaded.targets,
            false => self.missing(loaded).len(),
        };
        (self.kernel.targets().iter().filter(is_attached).count() as u64, missing as u64)
    }

    /// Returns a module's state as a word, and as a sentence with the reason and what to do.
    pub fn state(&self, loaded: &LoadedModule) -> (&'static str, String) {
        if let Err(failure) = &loaded.running {
            let said = if failure.kernel_log.is_empty() { "" } else { "; the kernel said: " };
            return ("failed", format!("{}{said}{}", failure.reason, failure.kernel_log));
        }
        match loaded.running_now().as_ref().map(|running| &running.state) {
            Some(State::Pair(pair, _)) => {
                let state = if pair.state == "failed" { "failed" } else { "running" };
                return (state, pair.sentence());
            }
            Some(State::Script(script)) => return script.state(),
            _ => {}
        }
        if let Some(error) = held(&loaded.refreshes).errors.values().next() {
            return ("no values", error.clone());
        }
        let spec = loaded.spec;
        let (mut ways, mut idle, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        let attached = self.kernel.attached();
        for hook in spec.hooks {
            let attempts = || self.attempts.iter().filter(|attempt| attempt.hook == hook.name);
            if let Some((_, kind)) = attached.iter().find(|(name, _)| *name == hook.name) {
                ways.push(way(hook, kind));
            } else if attempts().any(|attempt| attempt.result.is_ok()) {
                idle.push(hook.name);
            } else if let Some(Err(refusal)) = attempts().next_back().map(|attempt| &attempt.result) {
                missing.push(format!("{} ({refusal})", hook.name));
            }
        }
        let reaches = self.kernel.targets().iter().filter(|reach| reach.module == spec.name);
        let mut targets: BTreeMap<&str, usize> = BTreeMap::new();
        for tier in reaches.filter_map(|reach| reach.result.as_ref().ok()) {
            *targets.entry(tier.kind).or_default() += 1;
        }
        missing.extend(self.missing(loaded).into_iter().map(|(target, reason)| format!("{target} ({reason})")));
        ways.extend(
            targets
                .iter()
                .map(|(kind, count)| format!("{count} target{} by {kind}", if *count == 1 { "" } else { "s" })),
        );
        let mut parts = Vec::new();
        if !ways.is_empty() {
            parts.push(format!("attached to {}", ways.join(", ")));
        }
        if !idle.is_empty() {
            parts.push(format!("loaded, attached when needed: {}", idle.join(", ")));
        }
        if !missing.is_empty() {
            let named = missing.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
            let others = missing.len().saturating_sub(NAMED);
            let others = if others > 0 { format!(" and {others} others") } else { String::new() };
            parts.push(format!("not attached to {named}{others}"));
        }
        (if ways.is_empty() { "postponed" } else { "running" }, parts.join("; "))
    }
}

/// Describes how a hook is attached: `HOOK by KIND`, with the place in the kernel if it is not the usual one.
fn way(hook: &Hook, kind: &str) -> String {
    let Some((plain, _)) = kind.split_once(" of ") else { return format!("{} by {kind}", hook.name) };
    let programs = hook.tiers.iter().filter(|tier| tier.kind == kind).flat_map(|tier| tier.programs);
    let mut places: Vec<&str> = programs.filter_map(|program| Some(program.split_once("__")?.1)).collect();
    places.dedup();
    format!("{} by {plain} at {}", hook.name, places.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::Tier;

    #[test]
    fn a_way_names_the_places_that_stand_in_for_a_hook() {
        static HOOK: Hook = Hook {
            name: "inet_csk_accept",
            tiers: &[
                Tier { kind: "fexit", programs: &["fexit__inet_csk_accept"] },
                Tier { kind: "tp_btf of traffic", programs: &["tp__sock_send_length", "tp__sock_recv_length"] },
                Tier { kind: "fentry of 5.15", programs: &["fentry____blk_account_io_start"] },
            ],
            needs: "",
        };
        let ways = HOOK.tiers.iter().map(|tier| way(&HOOK, tier.kind)).collect::<Vec<_>>();
        let others = ["fexit", "tp_btf at sock_send_length and sock_recv_length", "fentry at __blk_account_io_start"];
        assert_eq!(ways, others.map(|other| format!("inet_csk_accept by {other}")));
    }
}
