//! `corebcc`: the `bcc.*` metrics of Performance Co-Pilot from CO-RE BPF programs.
//!
//! ```text
//! transport -> pdu -> agent -> kit <- modules
//!                                \-> probe (the kernel)
//! ```

pub mod kit;
pub mod pcp;
pub mod pdu;
