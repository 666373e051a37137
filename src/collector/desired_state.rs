//! Modules that come, go and change while the agent runs.

use super::prepared::Configuration;
use super::prepared_module::PreparedModules;
use crate::catalog::{Controllers, EnabledModule};
use thiserror::Error;

/// Reason why nothing was changed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct ChangeError(pub String);

impl ChangeError {
    /// Returns the error of an agent that cannot change its modules.
    pub fn fixed() -> ChangeError {
        ChangeError(
            "modules and programs cannot be loaded while the agent runs: it gave up the privileges for that; restart the \
             agent, which keeps them if there is a directory programs.d or a line `load_later = True` in [pmda]"
                .into(),
        )
    }
}

/// Modules to stop and to load, so that what runs matches the files.
#[derive(Default)]
pub struct Difference {
    /// Sections whose modules are stopped, including those that are loaded again.
    pub stop: Vec<String>,
    /// Modules to load afterwards, each list as a set of its own.
    pub load: Vec<(Vec<EnabledModule>, PreparedModules)>,
    /// The new report on the configuration, if that has changed.
    pub configuration: Option<Configuration>,
    /// The new clients that may give orders, if these have changed.
    pub controllers: Option<Controllers>,
}

impl Difference {
    /// True if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.stop.is_empty() && self.load.is_empty() && self.controllers.is_none()
    }

    /// Adds the changes of another difference.
    pub fn join(&mut self, other: Difference) {
        self.stop.extend(other.stop);
        self.load.extend(other.load);
    }
}

/// An order for a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Loads and attaches it.
    Start,
    /// Detaches it; its metrics go.
    Stop,
    /// Stops and starts it, so that it counts from zero.
    Restart,
}

impl Order {
    /// Reads an order from the word that a client stores.
    pub fn read(word: &[u8]) -> Option<Order> {
        match word {
            b"start" => Some(Order::Start),
            b"stop" => Some(Order::Stop),
            b"restart" => Some(Order::Restart),
            _ => None,
        }
    }
}

/// The modules that there are to be, from the configuration, the programs and scripts of the site, and the orders so far.
pub trait DesiredState: Send {
    /// Returns the changes that follow from changed files. Called once a second.
    fn poll(&mut self) -> Option<Difference>;

    /// Returns the changes after which all matches the files. An error changes nothing.
    fn reload(&mut self) -> Result<Difference, ChangeError>;

    /// Returns the changes after which a module that failed is loaded once more; `None` where nothing can be loaded.
    fn retry(&mut self, section: &str) -> Option<Difference>;

    /// Returns the changes that follow from an order. An error changes nothing.
    fn order(&mut self, section: &str, order: Order) -> Result<Difference, ChangeError>;
}
