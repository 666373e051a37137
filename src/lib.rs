//! `corebcc`: the `bcc.*` metrics of Performance Co-Pilot from CO-RE BPF programs.
//!
//! ```text
//! transport -> pdu -> agent -> kit <- modules
//!                                \-> probe (the kernel)
//! ```

pub mod agent;
pub mod config;
pub mod kit;
pub mod logging;
pub mod pcp;
pub mod pcpconf;
pub mod pdu;
