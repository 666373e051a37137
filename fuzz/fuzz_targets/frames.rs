//! `fuzz/run 60 frames`, or `cargo fuzz run frames`: see ../checks.rs.
#![no_main]

#[allow(dead_code)]
#[path = "../checks.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::frames(data));
