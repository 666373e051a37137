//! Requests to the loader and their outcomes: plain data.

use super::refusal::Refusal;
use crate::kit::{Layout, MapDef, Plan, Target, Tier};
use std::collections::BTreeSet;
use std::fmt;
use thiserror::Error;

/// A module to load.
pub struct LoadRequest {
    /// Stem of its files.
    pub name: &'static str,
    /// Plan of the module.
    pub plan: Plan,
    /// Maps that its programs use.
    pub maps: &'static [MapDef],
    /// Index of another request that this one needs.
    pub depends_on: Option<usize>,
    /// Maps of it that are to outlive the agent.
    pub pin: Option<PinRequest>,
}

/// Maps of a module or a pair that are to outlive the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinRequest {
    /// Module, or section of the pair.
    pub unit: String,
    /// Layout of everything that gives the contents a meaning, besides the maps themselves.
    pub layout: Layout,
    /// Names of the maps.
    pub maps: Vec<String>,
}

/// A reason why a module is not loaded.
#[derive(Clone, Debug, Default, Error, PartialEq, Eq)]
pub struct Failure {
    /// Hook, or `-` if something else failed.
    pub hook: &'static str,
    /// Error number, positive; 0 if unknown.
    pub errno: i32,
    /// One sentence: what failed, what the kernel lacks, what to do.
    pub reason: String,
    /// Message of the verifier or of libbpf.
    pub kernel_log: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)?;
        if self.kernel_log.is_empty() {
            return Ok(());
        }
        write!(f, "; the kernel said: {}", self.kernel_log)
    }
}

/// An attempt at one tier of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Name of the hook.
    pub hook: &'static str,
    /// Kind of the tier.
    pub kind: &'static str,
    /// Programs that the result is about: those of the tier, or the refused one.
    pub programs: Vec<&'static str>,
    /// Success if loaded and, unless it is on demand, attached; else the refusal.
    pub result: Result<(), Refusal>,
}

/// A target of a template, and the outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetOutcome {
    /// Module.
    pub module: &'static str,
    /// Template.
    pub template: &'static str,
    /// Target.
    pub target: Target,
    /// Number of the target within the module.
    pub number: u32,
    /// Tier that was attached, or the refusals of all tiers.
    pub result: Result<&'static Tier, Refusals>,
}

/// Refusals of a target by tier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals(pub Vec<(&'static Tier, Refusal)>);

impl fmt::Display for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_each: Vec<String> = self.0.iter().map(|(tier, refusal)| format!("{}: {refusal}", tier.kind)).collect();
        f.write_str(&of_each.join("; "))
    }
}

/// A fact about the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Name of the feature, in a word.
    pub feature: &'static str,
    /// True if the kernel has it; `None` if not tried.
    pub there: Option<bool>,
    /// Evidence, in a sentence.
    pub said: String,
}

impl Finding {
    /// Makes a finding.
    pub fn new(feature: &'static str, there: impl Into<Option<bool>>, said: impl Into<String>) -> Finding {
        Finding { feature, there: there.into(), said: said.into() }
    }
}

/// True if no program of a tier was refused.
pub fn usable(tier: &Tier, refused: &BTreeSet<&'static str>) -> bool {
    !tier.programs.iter().any(|program| refused.contains(program))
}
