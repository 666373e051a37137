//! The finished binary under pmcd and pmlogger for as long as one likes: faults on purpose (`COREBCC_FAULTS`, how many), and hours of work
//! (`COREBCC_MINUTES`, and `COREBCC_PACE`, how many times as rarely it works and looks). Without these variables both take about a minute.
//! docs/reliability.md has what longer campaigns found.

#![allow(clippy::unwrap_used)] // in helpers too, which clippy.toml does not cover

#[path = "../pmcd/instance.rs"]
#[allow(dead_code)] // tests/pmcd uses the rest
mod instance;
#[path = "../process/peer.rs"]
#[allow(dead_code)] // tests/process uses the rest
mod peer;
#[path = "../reference/mod.rs"]
mod reference;
#[path = "../support/mod.rs"]
mod support;

mod faults;
mod place;
mod soak;

/// Returns the number that an environment variable has.
fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text}: expected a number")))
}
