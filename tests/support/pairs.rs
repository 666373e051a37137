//! Pairs of a BPF program and a YAML file in a test's directory: compiled, or copied if there is a compiled one.

use super::{lacks, skip, Home};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the directory with the compiled pairs of examples/, for machines without a compiler (tests/vm).
pub fn compiled() -> Option<PathBuf> {
    std::env::var_os("COREBCC_EXAMPLES").map(PathBuf::from)
}

/// Makes a home with a directory below directories that only root may write to, as required for pairs and scripts.
pub fn roots_home(config: &str, directory: &str) -> Option<Home> {
    let is_roots = |path: &Path| {
        use std::os::unix::fs::MetadataExt;
        fs::symlink_metadata(path).is_ok_and(|about| about.uid() == 0 && about.mode() & 0o022 == 0)
    };
    // Both are directories of root's on every Linux machine; the root of a virtual machine's initramfs has the second alone.
    let above = ["/var/lib", "/"].map(Path::new).into_iter().find(|above| above.ancestors().all(is_roots));
    let Some(above) = above.filter(|_| nix::unistd::geteuid().is_root()) else {
        skip("root, and /var/lib or / that only root may write to");
        return None;
    };
    let home = Home::below(above, config);
    fs::create_dir(home.path(directory)).unwrap();
    Some(home)
}

/// Returns the directory of libbpf's headers: the system's, or the one that libbpf-sys has unpacked for the build.
pub fn headers() -> Option<PathBuf> {
    let build = std::env::current_exe().unwrap().parent().and_then(Path::parent).map(|target| target.join("build"));
    let unpacked = fs::read_dir(build?).ok()?.flatten().map(|entry| entry.path().join("out/include"));
    let places = [PathBuf::from("/usr/include")];
    places.into_iter().chain(unpacked).find(|place| place.join("bpf/bpf_helpers.h").is_file())
}

/// Compiles a source to `programs.d/NAME.bpf.o`, or copies the compiled one; false if something needed is missing.
pub fn compile(home: &Home, source: &Path, name: &str) -> bool {
    let file = format!("{name}.bpf.o");
    let object = home.path("programs.d").join(&file);
    if let Some(from) = compiled() {
        return fs::copy(from.join(file), object).is_ok();
    }
    if lacks(&["clang"]) {
        return false;
    }
    let Some(headers) = headers() else {
        skip("bpf/bpf_helpers.h (libbpf-dev)");
        return false;
    };
    let machine = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let compiled = Command::new("clang")
        .args(["-g", "-O2", "-Wall", "-Werror", "-mcpu=v2", "-target", "bpf", "-c"])
        .args([format!("-I{machine}"), format!("-I{}", headers.display())])
        .arg(source)
        .arg("-o")
        .arg(&object)
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    fs::set_permissions(object, fs::Permissions::from_mode(0o644)).unwrap();
    true
}

pub fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}

pub fn write(home: &Home, name: &str, text: &str) {
    let path = home.path("programs.d").join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
}
