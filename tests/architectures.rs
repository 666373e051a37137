//! The BPF object for each architecture: its bytes do not depend on where it is built, and every relocation that finds
//! its type in an x86-64 kernel of Debian finds it in the arm64 kernel of the same version. The kernels are fetched
//! once (tests/vm.d/fetch) and only their types are read: nothing of arm64 runs here.

#![allow(clippy::unwrap_used)]

#[path = "support/mod.rs"]
mod support;

use corebcc::bpf::OBJECT;
use libbpf_rs::btf::types::{Func, Typedef};
use libbpf_rs::btf::Btf;
use libbpf_rs::libbpf_sys::{self, bpf_insn};
use libbpf_rs::{AsRawLibbpf, ObjectBuilder, ProgramType};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::{env, fs};
use tempfile::TempDir;

/// Names of the architectures in Rust and in Debian.
const X86_64: (&str, &str) = ("x86_64", "amd64");
const AARCH64: (&str, &str) = ("aarch64", "arm64");
/// Versions of kernels: the oldest and the newest of tests/vm, and one between.
const VERSIONS: [&str; 3] = ["5.10", "6.12", "7.2"];

/// Build results for both architectures, in this order.
static BUILT: [LazyLock<TempDir>; 2] = [LazyLock::new(|| build(X86_64.0)), LazyLock::new(|| build(AARCH64.0))];
const OWN: usize = if cfg!(target_arch = "aarch64") { 1 } else { 0 };

/// Builds for an architecture like cargo, in a new directory.
fn build(architecture: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (bpf, out) = (dir.path().join("bpf"), dir.path().join("out"));
    fs::create_dir(&out).unwrap();
    for part in ["", "shared"] {
        fs::create_dir(bpf.join(part)).unwrap();
        let files = fs::read_dir(Path::new("bpf").join(part)).unwrap().map(|file| file.unwrap().path());
        for file in files.filter(|file| file.is_file()) {
            fs::copy(&file, bpf.join(part).join(file.file_name().unwrap())).unwrap();
        }
    }
    let mut build = Command::new(env!("BUILD_PROGRAM"));
    build.env("CARGO_MANIFEST_DIR", dir.path()).env("OUT_DIR", &out).env("CARGO_CFG_TARGET_ARCH", architecture);
    let done = build.current_dir(dir.path()).output().unwrap();
    assert!(done.status.success(), "{architecture}: {}", String::from_utf8_lossy(&done.stderr));
    dir
}

fn object(built: &TempDir) -> PathBuf {
    built.path().join("out/corebcc.bpf.o")
}

/// Reads the files of a directory.
fn read(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
    files.map(|file| (file.file_name().unwrap().into(), fs::read(&file).unwrap())).collect()
}

#[test]
fn what_is_built_is_the_same_in_every_directory() {
    let foreign = build([AARCH64.0, X86_64.0][OWN]);
    let mut others = [foreign.path().join("out"), foreign.path().join("out")];
    others[OWN] = env!("OUT_DIR").into();
    for (one, other) in BUILT.iter().zip(&others) {
        let one = one.path().join("out");
        let (files, same) = (read(&one), read(other));
        assert_eq!(files.keys().collect::<Vec<_>>(), same.keys().collect::<Vec<_>>());
        for (name, bytes) in &files {
            assert!(same[name] == *bytes, "{}: not the same", name.display());
            let text = String::from_utf8_lossy(bytes);
            assert!(!text.contains(one.to_str().unwrap()), "{}: names a directory", name.display());
        }
    }
}

/// Returns the directory in which tests/vm keeps its kernels.
fn kernels() -> PathBuf {
    let cache = || {
        let home = || PathBuf::from(env::var_os("HOME").unwrap_or("/root".into())).join(".cache");
        env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from).join("corebcc")
    };
    env::var_os("COREBCC_KERNELS").map_or_else(cache, PathBuf::from)
}

/// Returns the types of a Debian kernel; the error is why it is not available.
fn types(version: &str, architecture: &str) -> Result<Vec<u8>, String> {
    let name = if architecture == X86_64.1 { version.to_string() } else { format!("{version}-{architecture}") };
    let dir = kernels().join(name);
    if !dir.is_dir() {
        let list = fs::read_to_string("tests/vm").unwrap();
        let suite = list.split([' ', '(', ')']).find_map(|word| word.strip_prefix(&format!("{version}:"))).unwrap();
        // Of the suites that nobody updates any more, the one for security names packages for arm64 that are gone.
        let suite = if architecture == X86_64.1 { suite } else { suite.trim_end_matches("-security") };
        let mut fetch = Command::new("tests/vm.d/fetch");
        let done =
            fetch.args([suite, version]).arg(&dir).arg(architecture).output().map_err(|error| error.to_string())?;
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr);
            return Err(said.lines().last().unwrap_or("it cannot be fetched").to_string());
        }
    }
    let find = Command::new("find").arg(&dir).args(["-name", "vmlinuz*", "-type", "f"]).output().unwrap();
    let image = String::from_utf8(find.stdout).unwrap();
    let image = fs::read(image.lines().next().unwrap()).unwrap();
    let image = if architecture == X86_64.1 { payload(&image) } else { image };
    Ok(btf(&image).expect("a kernel with BTF").to_vec())
}

fn word(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

/// Returns the kernel inside a self-extracting image (Documentation/arch/x86/boot.rst), which ends with its length.
fn payload(image: &[u8]) -> Vec<u8> {
    const SETUP_SECTORS: usize = 0x1f1;
    const OFFSET: usize = 0x248;
    let start = (usize::from(image[SETUP_SECTORS]) + 1) * 512 + word(image, OFFSET);
    let packed = &image[start..start + word(image, OFFSET + 4) - 4];
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, packed).unwrap();
    let tool = if packed.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) { "zstd" } else { "lz4" };
    let mut tool = Command::new(tool);
    let unpacked =
        tool.arg("-dc").stdin(fs::File::open(file.path()).unwrap()).stderr(Stdio::inherit()).output().unwrap();
    assert!(unpacked.status.success());
    unpacked.stdout
}

/// Returns the types in an image: its longest part with a BTF header (Documentation/bpf/btf.rst).
fn btf(image: &[u8]) -> Option<&[u8]> {
    const HEADER: usize = 24;
    let begin = [0x9f, 0xeb, 1, 0, HEADER as u8, 0, 0, 0];
    let parts = image.windows(HEADER).enumerate().filter(|(_, header)| header.starts_with(&begin));
    let parts = parts.filter_map(|(at, header)| image.get(at..at + HEADER + word(header, 16) + word(header, 20)));
    parts.max_by_key(|part| part.len())
}

/// Returns the programs of an object, relocated for these types.
fn relocated(object: &Path, types: &Path) -> Result<BTreeMap<String, Vec<bpf_insn>>, i32> {
    libbpf_rs::set_print(None);
    let mut builder = ObjectBuilder::default();
    let mut open = builder.btf_custom_path(types).unwrap().open_file(object).unwrap();
    for mut map in open.maps_mut() {
        map.set_autocreate(false).unwrap();
    }
    for mut program in open.progs_mut() {
        if program.prog_type() == ProgramType::Tracing {
            // As the loader does it: libbpf would look for the function in this kernel.
            program.set_prog_type(ProgramType::RawTracepoint);
        }
    }
    // SAFETY: the object is open and not loaded yet.
    match unsafe { libbpf_sys::bpf_object__prepare(open.as_libbpf_object().as_ptr()) } {
        0 => Ok(open
            .progs()
            .map(|program| (program.name().to_str().unwrap().into(), program.insns().to_vec()))
            .collect()),
        error => Err(-error),
    }
}

/// `BPF_JMP | BPF_CALL`
const CALL: u8 = 0x85;

/// True for an instruction that libbpf has replaced because its relocation failed: a call of a helper that does not
/// exist.
fn is_lost(code: &bpf_insn) -> bool {
    const POISON: i32 = 0x0bad_2310;
    code.code == CALL && code.imm == POISON
}

/// Returns the hooks in the types of a kernel: programs for which libbpf would find a target.
fn typed(types: &Path) -> BTreeSet<&'static str> {
    let types = Btf::from_path(types).unwrap();
    let there = |name: &str| match name.split_once("__").unwrap() {
        ("tp", name) => types.type_by_name::<Typedef<'_>>(&format!("btf_trace_{name}")).is_some(),
        ("fentry" | "fexit", name) => types.type_by_name::<Func<'_>>(name).is_some(),
        _ => false,
    };
    OBJECT.programs.iter().map(|(name, _)| *name).filter(|name| there(name)).collect()
}

/// Returns the offsets in its context that a program reads, as far as it keeps the context's address in a register or
/// on its stack.
fn context(code: &[bpf_insn]) -> BTreeSet<i16> {
    const MOVE: u8 = 0xbf;
    const LOAD: u8 = 0x79;
    const STORE: u8 = 0x7b;
    const STACK: u8 = 10;
    const LOADS: u8 = 1;
    // What libbpf puts in the place of the address of a map that was not made.
    const NO_MAP: i32 = 2_001_000_000;
    let mut contexts = BTreeSet::from([1]);
    let (mut kept, mut places) = (BTreeSet::new(), BTreeSet::new());
    let mut of_map = false;
    for code in code {
        // What is loaded through right behind a map's address has that.
        if std::mem::take(&mut of_map) && code.code & 7 == LOADS {
            contexts.remove(&code.src_reg());
        }
        let (to, of_context) = (code.dst_reg(), contexts.contains(&code.src_reg()));
        if code.code == LOAD && of_context {
            places.insert(code.off);
        }
        match code.code {
            STORE if to == STACK && of_context => drop(kept.insert(code.off)),
            LOAD if code.src_reg() == STACK && kept.contains(&code.off) => drop(contexts.insert(to)),
            MOVE if of_context => drop(contexts.insert(to)),
            CALL if code.imm >= NO_MAP => of_map = true,
            CALL => contexts.retain(|register| (6..10).contains(register)),
            // Arithmetic, and loads.
            code if matches!(code & 7, LOADS | 0 | 4 | 7) => drop(contexts.remove(&to)),
            _ => {}
        }
    }
    places
}

/// Offsets in `struct pt_regs` of a kprobe's first argument and a kretprobe's return value: di and ax of x86-64, x0 of
/// arm64.
const ARGUMENTS: [(&str, [i16; 2]); 2] = [("kprobe__tcp_sendmsg", [112, 0]), ("kretprobe__tcp_sendmsg", [80, 0])];

/// True for functions that only one of two kernels has built in, the other in a module, whose types are separate.
fn is_of_a_module(program: &str) -> bool {
    ["ext4_", "xfs_", "zpl_"].iter().any(|prefix| program.contains(&format!("__{prefix}")))
}

/// True for a static function that Debian's 5.10 for arm64 has no type for: its compiler may have inlined it. Their modules do without, or have
/// kprobes, which need no types.
fn may_have_no_type(program: &str) -> bool {
    let functions = ["__oom_kill_process", "__do_sys_openat2", "__tty_read", "__tty_write", "__vfs_statx"];
    functions.iter().any(|function| program.ends_with(function))
}

/// Programs of a kernel, and its hooks.
struct Relocated {
    programs: BTreeMap<String, Vec<bpf_insn>>,
    typed: BTreeSet<&'static str>,
}

impl Relocated {
    fn new(object: &Path, types: &[u8]) -> Result<Relocated, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, types).unwrap();
        let programs = relocated(object, file.path()).map_err(|error| format!("root (libbpf: error {error})"))?;
        Ok(Relocated { programs, typed: typed(file.path()) })
    }

    fn lost(&self, program: &str) -> usize {
        self.programs[program].iter().filter(|code| is_lost(code)).count()
    }
}

#[test]
fn what_x86_64_finds_in_a_kernel_arm64_finds_in_its_own() {
    let mut absent = Vec::new();
    for version in VERSIONS {
        let kernel = |(built, (_, architecture)): (&LazyLock<TempDir>, (&str, &str))| {
            Relocated::new(&object(built), &types(version, architecture)?)
        };
        let kernels: Result<Vec<Relocated>, String> = BUILT.iter().zip([X86_64, AARCH64]).map(kernel).collect();
        let [x86_64, aarch64] = match kernels.map(<[Relocated; 2]>::try_from) {
            Ok(both) => both.ok().unwrap(),
            Err(missing) => {
                absent.push(format!("kernel {version} ({missing})"));
                continue;
            }
        };
        assert!(x86_64.programs.keys().eq(aarch64.programs.keys()), "the same programs");
        let mut faults = Vec::new();
        for name in aarch64.programs.keys() {
            // Some are lost on both: fields of other versions, behind a question whether they exist.
            let (here, there) = (aarch64.lost(name), x86_64.lost(name));
            if here > there {
                faults.push(format!("{name}: {here} relocations find nothing, on x86-64 {there}"));
            }
        }
        let unhooked = x86_64
            .typed
            .difference(&aarch64.typed)
            .filter(|program| !is_of_a_module(program) && !may_have_no_type(program))
            // The function of a system call has the architecture in its name.
            .filter(|program| !aarch64.typed.contains(program.replace("__x64_sys_", "__arm64_sys_").as_str()));
        faults.extend(unhooked.map(|program| format!("{program}: no such hook")));
        assert!(faults.is_empty(), "arm64 {version}:\n{}", faults.join("\n"));
        assert!(aarch64.typed.len() > 30, "{:?}", aarch64.typed);
        for (program, places) in ARGUMENTS {
            let found = [&x86_64, &aarch64].map(|kernel| context(&kernel.programs[program]));
            assert_eq!(found, places.map(|place| BTreeSet::from([place])), "{version}: {program}");
        }
    }
    if !absent.is_empty() {
        support::skip(&absent.join(", "));
    }
}
