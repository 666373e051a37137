//! Shared libraries by their short names (`c` is the libc.so.6 that the dynamic linker would take, ld.so(8)), and
//! programs by name.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Cache written by ldconfig(8), and its format (glibc, `sysdeps/generic/dl-cache.h`).
const CACHE: &str = "/etc/ld.so.cache";
const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const HEADER: usize = 48;
const ENTRY: usize = 24;

/// Directories of libraries without a cache: musl has none.
const DIRECTORIES: [&str; 6] = ["/usr/local/lib64", "/usr/local/lib", "/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// Returns the file of a program or library: an absolute path unchanged; for a name a program in the directories of
/// `PATH`, else a library.
pub fn program_or_library(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| path.is_absolute() && path.exists());
    }
    let directories = std::env::var_os("PATH").unwrap_or_default();
    let mut programs = std::env::split_paths(&directories).map(|directory| directory.join(name));
    let is_program =
        |path: &PathBuf| path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
    programs.find(is_program).or_else(|| library(name))
}

/// Returns the file of a library: a path unchanged; for a short name (`c`, `pthread`, `ssl`) a file `libNAME.so...` of
/// this machine's kind; for a file name (`libc.so.6`) the file with this name.
pub fn library(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| path.exists());
    }
    let cache = fs::read(CACHE).unwrap_or_default();
    let cached = cached(&cache).filter(|(file, _)| is(file, name)).map(|(_, path)| PathBuf::from(path));
    let triplet = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let directories = std::iter::once(triplet.as_str()).chain(DIRECTORIES);
    let listed = directories.flat_map(|directory| {
        let mut files: Vec<PathBuf> = fs::read_dir(directory)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.file_name().to_str().is_some_and(|file| is(file, name)))
            .map(|entry| entry.path())
            .collect();
        files.sort();
        files
    });
    let mut candidates = cached.chain(listed);
    candidates.find(|path| same_machine(path))
}

/// True if a file has this name, or is `libNAME.so`, with or without a version.
fn is(file: &str, name: &str) -> bool {
    if file == name {
        return true;
    }
    let rest =
        file.strip_prefix("lib").and_then(|rest| rest.strip_prefix(name)).and_then(|rest| rest.strip_prefix(".so"));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Iterates over names and paths in a cache; empty if the format is unknown. A cache in the old format can precede the
/// new one.
fn cached(cache: &[u8]) -> impl Iterator<Item = (&str, &str)> {
    let start = cache.windows(MAGIC.len()).position(|part| part == MAGIC);
    let cache = start.map_or(&[][..], |start| &cache[start..]);
    let word = |at: usize| Some(u32::from_ne_bytes(cache.get(at..at + 4)?.try_into().ok()?) as usize);
    let text = move |at: usize| std::str::from_utf8(cache.get(at..)?.split(|&byte| byte == 0).next()?).ok();
    let count = word(MAGIC.len()).unwrap_or(0).min(cache.len() / ENTRY);
    (0..count).filter_map(move |i| {
        let entry = HEADER + i * ENTRY;
        Some((text(word(entry + 4)?)?, text(word(entry + 8)?)?))
    })
}

/// True if an ELF file is for this kind of machine: libraries for others can be installed beside it.
fn same_machine(path: &Path) -> bool {
    use std::io::Read;
    let kind = |path: &Path| {
        let mut head = [0; 20];
        fs::File::open(path).and_then(|mut file| file.read_exact(&mut head)).ok()?;
        head.starts_with(b"\x7fELF").then_some((head[4], [head[18], head[19]]))
    };
    let own = kind(Path::new("/proc/self/exe"));
    own.is_some() && kind(path) == own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_library_is_found_by_short_name_or_path() {
        let libc = library("c").unwrap();
        assert!(libc.file_name().unwrap().to_str().unwrap().starts_with("libc."), "{}", libc.display());
        assert_eq!(library(libc.to_str().unwrap()), Some(libc.clone()));
        assert_eq!(library(libc.file_name().unwrap().to_str().unwrap()), Some(libc));
        assert_eq!(library(""), None);
        assert_eq!(library("no_such_library"), None);
        assert_eq!(library("/no/such/file"), None);
    }

    #[test]
    fn a_short_name_is_the_whole_of_a_librarys_name() {
        assert!(is("libc.so.6", "c") && is("libssl.so", "ssl") && is("libstdc++.so.6", "stdc++"));
        assert!(!is("libcap.so.2", "c") && !is("libc.so6", "c") && !is("c.so", "c"));
    }

    #[test]
    fn a_name_is_a_program_first_and_then_a_library() {
        let sh = program_or_library("sh").unwrap();
        assert!(sh.is_absolute() && sh.ends_with("sh"), "{}", sh.display());
        assert_eq!(program_or_library("c"), library("c"));
        assert_eq!(program_or_library(sh.to_str().unwrap()), Some(sh));
        for none in ["", "no_such_program", "/no/such/file", "src/lib.rs"] {
            assert_eq!(program_or_library(none), None, "{none}");
        }
    }

    /// Makes a cache with this library in the format of ldconfig(8).
    fn cache(file: &str, path: &str) -> Vec<u8> {
        let mut cache = MAGIC.to_vec();
        cache.extend(1u32.to_ne_bytes());
        cache.resize(HEADER, 0);
        let strings = (HEADER + ENTRY) as u32;
        for word in [3, strings, strings + file.len() as u32 + 1, 0, 0, 0] {
            cache.extend(word.to_ne_bytes());
        }
        cache.extend([file.as_bytes(), b"\0", path.as_bytes(), b"\0"].concat());
        cache
    }

    #[test]
    fn a_damaged_cache_has_no_entries() {
        let (file, path) = ("libx.so.1", "/lib/libx.so.1");
        let whole = cache(file, path);
        assert!(cached(&whole).eq([(file, path)]));
        assert!(cached(&[b"ld.so-1.7.0", &whole[..]].concat()).eq([(file, path)]), "behind an old cache");
        for length in 0..HEADER + ENTRY {
            assert_eq!(cached(&whole[..length]).count(), 0, "{length}");
        }
        for length in HEADER + ENTRY..whole.len() {
            let cut = |&(a, b): &(&str, &str)| file.starts_with(a) && path.starts_with(b);
            assert!(cached(&whole[..length]).all(|entry| cut(&entry)), "{length}");
        }
        let mut beyond = whole;
        beyond[HEADER + 4..HEADER + 8].fill(0xff);
        assert_eq!(cached(&beyond).count(), 0);
        assert_eq!(cached(b"ld.so-1.7.0").count(), 0);
    }
}
