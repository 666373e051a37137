//! `fuzz/run 60 elf`, or `cargo fuzz run elf`: see ../checks.rs.
#![no_main]

#[allow(dead_code)]
#[path = "../checks.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::elf(data));
