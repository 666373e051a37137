//! `fuzz/run 60 object`, or `cargo fuzz run object`: see ../checks.rs.
#![no_main]

#[allow(dead_code)]
#[path = "../checks.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::object(data));
