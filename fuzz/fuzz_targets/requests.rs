//! `fuzz/run 60 requests`, or `cargo fuzz run requests`: see ../checks.rs.
#![no_main]

#[allow(dead_code)]
#[path = "../checks.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::requests(data));
