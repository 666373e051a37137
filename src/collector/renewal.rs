//! Modules that come, go and change while the agent runs.

use super::prepared::Configuration;
use super::prepared_module::PreparedModules;
use crate::catalog::{Controllers, EnabledModule};
use thiserror::Error;

/// Why nothing was changed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct RenewalError(pub String);

impl RenewalError {
    /// Modules and pairs cannot change.
    pub fn fixed() -> RenewalError {
        RenewalError(
            "modules and programs cannot be loaded while the agent runs: it gave up the privileges for that; restart the \
             agent, which keeps them if there is a directory programs.d or a line `load_later = True` in [pmda]"
                .into(),
        )
    }
}

/// What is to be done so that what runs is what the files say.
#[derive(Default)]
pub struct Renewal {
    /// Sections whose modules are stopped; those of modules that are loaded anew are among them.
    pub stop: Vec<String>,
    /// Modules that are loaded after that, each list as a set of its own.
    pub load: Vec<(Vec<EnabledModule>, PreparedModules)>,
    /// What there is to say of the configuration from now on.
    pub configuration: Option<Configuration>,
    /// Who may change what runs from now on.
    pub controllers: Option<Controllers>,
}

impl Renewal {
    /// Whether nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.stop.is_empty() && self.load.is_empty() && self.controllers.is_none()
    }

    /// Does what another one asks for, too.
    pub fn join(&mut self, other: Renewal) {
        self.stop.extend(other.stop);
        self.load.extend(other.load);
    }
}

/// What may be ordered of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Load and attach it.
    Start,
    /// Detach it; its metrics go.
    Stop,
    /// Both, so that it begins anew.
    Restart,
}

impl Order {
    /// The order that a client writes: a word.
    pub fn read(word: &[u8]) -> Option<Order> {
        match word {
            b"start" => Some(Order::Start),
            b"stop" => Some(Order::Stop),
            b"restart" => Some(Order::Restart),
            _ => None,
        }
    }
}

/// What knows which modules there are to be: the configuration, the pairs, and what was ordered since.
pub trait Supply: Send {
    /// What to do since files changed. Asked once a second.
    fn look(&mut self) -> Option<Renewal>;

    /// What to do so that all is as the files say. An error changes nothing.
    fn reload(&mut self) -> Result<Renewal, RenewalError>;

    /// What an order comes to.
    fn order(&mut self, section: &str, order: Order) -> Result<Renewal, RenewalError>;
}
