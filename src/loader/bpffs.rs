//! BPF objects with a path in a BPF file system, whoever pinned them (`BPF_OBJ_GET` of bpf(2)).

use super::fdinfo::{fdinfo, number_in};
use super::program::owned;
use crate::kit::{ObjectKind, PinnedObject};
use libbpf_rs::libbpf_sys;
use std::ffi::CString;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Usual place of the BPF file system.
pub const MOUNT: &str = "/sys/fs/bpf";
/// Most files that are looked at, and most directories in one another.
const MOST_FILES: usize = 10_000;
const DEEPEST: usize = 8;

/// Iterates over the objects below a directory of a BPF file system. Objects that this account may not open are left out, symbolic links are
/// not followed.
pub fn walk(directory: &Path, each: &mut dyn FnMut(PinnedObject)) {
    let mut left = MOST_FILES;
    below(directory, DEEPEST, &mut left, each);
}

fn below(directory: &Path, deeper: usize, left: &mut usize, each: &mut dyn FnMut(PinnedObject)) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let Some(rest) = left.checked_sub(1) else { return };
        *left = rest;
        let Ok(kind) = entry.file_type() else { continue };
        let path = entry.path();
        if kind.is_dir() && deeper > 0 {
            below(&path, deeper - 1, left, each);
        } else if kind.is_file() {
            if let Some((kind, id)) = open(&path).and_then(|object| identity(&fdinfo(object.as_fd())?)) {
                each(PinnedObject { kind, id, path });
            }
        }
    }
}

/// Opens the object that is pinned here; `None` if there is none, or it may not be opened.
fn open(path: &Path) -> Option<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: the string ends in NUL and lives until the call returns.
    owned(unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) }).ok()
}

/// Returns the kind and the identifier of an object, from its fdinfo.
fn identity(fdinfo: &str) -> Option<(ObjectKind, u32)> {
    // A link has the identifier of its program, too.
    let kinds = [("link_id:", ObjectKind::Link), ("prog_id:", ObjectKind::Program), ("map_id:", ObjectKind::Map)];
    kinds.into_iter().find_map(|(key, kind)| Some((kind, number_in(fdinfo, key)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fdinfo_of_an_object_has_its_kind_and_identifier() {
        let of = |text| identity(text);
        assert_eq!(of("pos:\t0\nprog_type:\t5\nprog_id:\t41\n"), Some((ObjectKind::Program, 41)));
        assert_eq!(of("link_type:\titer\nlink_id:\t7\nprog_tag:\tab\nprog_id:\t41\n"), Some((ObjectKind::Link, 7)));
        assert_eq!(of("map_type:\t2\nmap_id:\t9\nfrozen:\t0\n"), Some((ObjectKind::Map, 9)));
        assert_eq!(of("pos:\t0\nflags:\t02\n"), None);
    }

    #[test]
    fn files_of_other_file_systems_are_no_objects() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("file"), "").unwrap();
        fs::create_dir(directory.path().join("below")).unwrap();
        std::os::unix::fs::symlink("/", directory.path().join("below/link")).unwrap();
        walk(directory.path(), &mut |object| panic!("{}", object.path.display()));
    }
}
