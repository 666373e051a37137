//! `fuzz/run 60 decoders`, or `cargo fuzz run decoders`: see ../checks.rs.
#![no_main]

#[allow(dead_code)]
#[path = "../checks.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::decoders(data));
