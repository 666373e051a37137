//! What a load is asked for, and what became of it: plain data.

use super::refusal::Refusal;
use crate::kit::{Layout, MapDef, Plan, Target, Tier};
use std::collections::BTreeSet;
use std::fmt;
use thiserror::Error;

/// A module to load.
pub struct LoadRequest {
    /// The stem of its files.
    pub name: &'static str,
    /// What it asks for.
    pub plan: Plan,
    /// The maps its programs use.
    pub maps: &'static [MapDef],
    /// The request, by its place among them, without which this one is of no use.
    pub depends_on: Option<usize>,
    /// The maps of it that are to outlive the agent.
    pub pin: Option<PinRequest>,
}

/// Maps of a module or a pair that are to outlive the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinRequest {
    /// The module, or the section of the pair.
    pub unit: String,
    /// The layout of what gives them a meaning, beside the maps themselves.
    pub layout: Layout,
    /// Their names.
    pub maps: Vec<String>,
}

/// Why a module is not loaded.
#[derive(Clone, Debug, Default, Error, PartialEq, Eq)]
pub struct Failure {
    /// The hook, or `-` if it was not one that failed.
    pub hook: &'static str,
    /// The error number, positive; 0 if unknown.
    pub errno: i32,
    /// One sentence: what failed, what the kernel lacks, what to do.
    pub reason: String,
    /// The verifier's or libbpf's words.
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

/// One tier of a hook that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The hook's name.
    pub hook: &'static str,
    /// The tier's kind.
    pub kind: &'static str,
    /// The programs that the result is of: those of the tier, or the one that was refused.
    pub programs: Vec<&'static str>,
    /// Loaded and, unless it is for later, attached; else what was said.
    pub result: Result<(), Refusal>,
}

/// A target of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetOutcome {
    /// The module.
    pub module: &'static str,
    /// The template.
    pub template: &'static str,
    /// The target.
    pub target: Target,
    /// Its number.
    pub number: u32,
    /// The tier that took it, or what was said of each.
    pub result: Result<&'static Tier, Refusals>,
}

/// The ways to attach to a target, each with why it is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals(pub Vec<(&'static Tier, Refusal)>);

impl fmt::Display for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_each: Vec<String> = self.0.iter().map(|(tier, refusal)| format!("{}: {refusal}", tier.kind)).collect();
        f.write_str(&of_each.join("; "))
    }
}

/// What the kernel has, or has not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What, in a word.
    pub feature: &'static str,
    /// `None`: nothing asked for it.
    pub there: Option<bool>,
    /// How that is known, in a sentence.
    pub said: String,
}

impl Finding {
    /// Found out, or not.
    pub fn new(feature: &'static str, there: impl Into<Option<bool>>, said: impl Into<String>) -> Finding {
        Finding { feature, there: there.into(), said: said.into() }
    }
}

/// Whether no program of a tier was refused.
pub fn usable(tier: &Tier, refused: &BTreeSet<&'static str>) -> bool {
    !tier.programs.iter().any(|program| refused.contains(program))
}
