//! Fine buckets (bpf/shared/fine.bpf.h) on the running kernel: their numbers against the agent's bounds.

use crate::common::{lacks, lacks_bpf};
use corebcc::kit::{Fine, Log2};
use libbpf_rs::libbpf_sys::API_HEADERS;
use libbpf_rs::{ObjectBuilder, ProgramInput};
use std::path::Path;
use std::process::Command;

const PROGRAM: &str = r#"
#include "shared/fine.bpf.h"
char LICENSE[] SEC("license") = "GPL";
SEC("raw_tp/test") int bucket_of(const __u64 *arguments) { return fine_bucket(arguments[0]); }
SEC("raw_tp/test") int octave_of(const __u64 *arguments) { return usec_bucket(arguments[0]); }
"#;

/// Compiles the header by itself, as build.rs compiles it with the modules.
fn object(dir: &Path) -> Vec<u8> {
    let (source, object, headers) = (dir.join("fine.bpf.c"), dir.join("fine.bpf.o"), dir.join("bpf"));
    std::fs::write(&source, PROGRAM).unwrap();
    std::fs::create_dir(&headers).unwrap();
    for (name, text) in API_HEADERS {
        std::fs::write(headers.join(name), text).unwrap();
    }
    let done = Command::new("clang")
        .args(["-target", "bpf", "-mcpu=v2", "-O2", "-g", "-D__TARGET_ARCH_x86", "-Wall", "-Ibpf", "-I"])
        .args([dir, Path::new("-c"), Path::new("-o"), &object, &source])
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    std::fs::read(object).unwrap()
}

#[test]
fn the_kernels_bucket_is_the_one_with_these_bounds() {
    if lacks_bpf() || lacks(&["clang"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let object = ObjectBuilder::default().open_memory(&object(dir.path())).unwrap().load().unwrap();
    let by_name = |name: &str, ns: u64| {
        let program = object.progs_mut().find(|program| program.name() == name).unwrap();
        let mut arguments = ns.to_ne_bytes();
        let input = ProgramInput { context_in: Some(&mut arguments), ..ProgramInput::default() };
        program.test_run(input).unwrap().return_value as usize
    };
    let check = |ns: u64| {
        let (fine, octave) = (by_name("bucket_of", ns), by_name("octave_of", ns));
        assert_eq!(fine, Fine::bucket(ns), "{ns} ns");
        assert_eq!(Fine::octave(fine), octave, "{ns} ns");
    };
    for bucket in 0..Fine::USED {
        let (low, high) = Fine::bounds(bucket);
        for ns in [low.saturating_sub(1), low, low + 1, high.saturating_sub(1), high, high.saturating_add(1)] {
            check(ns);
        }
    }
    for octave in 0..64 {
        let ns = Log2::bounds(octave).0.saturating_mul(1000);
        [ns.saturating_sub(1), ns, ns.saturating_add(1)].into_iter().for_each(&check);
    }
    (0..100_000u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (n % 64)).for_each(check);
}
