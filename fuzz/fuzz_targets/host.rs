//! `fuzz/run 60 host`, or `cargo fuzz run host`: see ../checks.rs.
#![no_main]

#[allow(dead_code)]
#[path = "../checks.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::host(data));
