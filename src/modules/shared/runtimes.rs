//! Runtimes of languages whose USDT probes modules count: the files by which a process is recognised, and the meanings of the probes.

use crate::host::{mapped, open_regular, Probe, ProbeFile, ProbeFiles};
use crate::kit::*;
use crate::process::{NoProbes, Site};
use std::path::PathBuf;
use std::sync::Arc;

/// Events that ustat counts, in the order of its metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Thread,
    Method,
    Object,
    Class,
    Except,
    Gc,
}

/// Number of events.
pub const EVENTS: usize = Gc as usize + 1;

use Event::{Class, Except, Gc, Method, Object, Thread};

/// Probes of calls, with the numbers of the arguments (from 1) that hold names. A name without a length ends at a NUL.
pub struct Calls {
    pub entries: &'static [&'static str],
    pub returns: &'static [&'static str],
    /// Probes that are counted if calls are not timed: the entries, unless the runtime passes them too seldom.
    pub counted: &'static [&'static str],
    /// Argument with the class or its equivalent, and that with its length.
    pub class: Option<(usize, Option<usize>)>,
    /// Argument with the method, and that with its length.
    pub method: (usize, Option<usize>),
}

/// A language's runtime.
pub struct Runtime {
    pub language: &'static str,
    /// Names of its programs and libraries, without versions and `.so`.
    files: &'static [&'static str],
    /// Its probes of calls; `None` for a runtime without any, as node.
    pub calls: Option<Calls>,
    pub events: &'static [(&'static str, Event)],
}

/// All runtimes. A process with files of several belongs to the first: a runtime that embeds another comes before it.
pub static RUNTIMES: [Runtime; 7] = [
    Runtime {
        language: "java",
        files: &["libjvm"],
        calls: Some(Calls {
            entries: &["method__entry"],
            returns: &["method__return"],
            counted: &["method__entry"],
            class: Some((2, Some(3))),
            method: (4, Some(5)),
        }),
        events: &[
            ("thread__start", Thread),
            ("method__entry", Method),
            ("object__alloc", Object),
            ("class__loaded", Class),
            ("ExceptionOccurred__entry", Except),
            ("gc__begin", Gc),
            ("mem__pool__gc__begin", Gc),
        ],
    },
    Runtime { language: "node", files: &["node", "nodejs", "libnode"], calls: None, events: &[("gc__start", Gc)] },
    Runtime {
        language: "php",
        files: &["php", "php-cgi", "php-fpm", "libphp"],
        calls: Some(Calls {
            entries: &["function__entry"],
            returns: &["function__return"],
            counted: &["function__entry"],
            class: Some((4, None)),
            method: (1, None),
        }),
        events: &[("function__entry", Method), ("compile__file__entry", Class), ("exception__thrown", Except)],
    },
    Runtime {
        language: "python",
        files: &["python", "libpython"],
        calls: Some(Calls {
            entries: &["function__entry"],
            returns: &["function__return"],
            // CPython 3.11 passes function__entry only while it traces (sys.setprofile).
            counted: &["function__return"],
            class: Some((1, None)),
            method: (2, None),
        }),
        events: &[("function__return", Method), ("gc__start", Gc)],
    },
    Runtime {
        language: "ruby",
        files: &["ruby", "libruby"],
        calls: Some(Calls {
            entries: &["method__entry", "cmethod__entry"],
            returns: &["method__return", "cmethod__return"],
            counted: &["method__entry", "cmethod__entry"],
            class: Some((1, None)),
            method: (2, None),
        }),
        events: &[
            ("method__entry", Method),
            ("cmethod__entry", Method),
            ("object__create", Object),
            ("hash__create", Object),
            ("string__create", Object),
            ("array__create", Object),
            ("require__entry", Class),
            ("load__entry", Class),
            ("raise", Except),
            ("gc__mark__begin", Gc),
            ("gc__sweep__begin", Gc),
        ],
    },
    Runtime {
        language: "perl",
        files: &["perl", "libperl"],
        calls: Some(Calls {
            entries: &["sub__entry"],
            returns: &["sub__return"],
            counted: &["sub__entry"],
            class: Some((2, None)),
            method: (1, None),
        }),
        events: &[("sub__entry", Method)],
    },
    Runtime {
        language: "tcl",
        files: &["tclsh", "libtcl"],
        calls: Some(Calls {
            entries: &["proc__entry"],
            returns: &["proc__return"],
            counted: &["proc__entry"],
            class: None,
            method: (1, None),
        }),
        events: &[("proc__entry", Method), ("obj__create", Object)],
    },
];

/// The runtime of Java.
pub const JAVA: &Runtime = &RUNTIMES[0];

/// The option `language`.
#[derive(Clone, Copy, Default)]
pub struct Language(pub Option<&'static Runtime>);

impl std::fmt::Debug for Language {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.map_or("found by the files of each process", |runtime| runtime.language))
    }
}

impl OptionType for Language {
    const EXPECTED: &'static str = "java, node, perl, php, python, ruby or tcl";
    fn read(value: &OptionValue<'_>) -> Result<Self, SetupError> {
        let name = value.text().trim();
        let runtime = RUNTIMES.iter().find(|runtime| runtime.language == name);
        runtime.map(|runtime| Language(Some(runtime))).ok_or_else(|| value.error(Self::EXPECTED))
    }
    fn show(&self) -> String {
        self.0.map_or(String::new(), |runtime| runtime.language.into())
    }
}

impl Runtime {
    /// True if a file belongs to the runtime, in any version: `libpython3.11.so.1.0`, `php8.2`, `php-fpm8.2`.
    fn has(&self, file: &str) -> bool {
        let version = |rest: &str| rest.replace(".so", "").bytes().all(|b| b.is_ascii_digit() || b".-_".contains(&b));
        self.files.iter().any(|stem| file.strip_prefix(stem).is_some_and(version))
    }
}

/// Description of a loss: there are more sites than [`crate::process::ProcessProbes`] attach to.
pub const BEYOND: &str = "unattached: probes that are not attached to, since a process or all together have too many";

/// Largest number of files of a runtime in a process; more of them are an attempt to keep the agent busy.
const FILES: usize = 16;

/// Returns the runtime of a process and its files with probes, or the reason why there is none.
pub fn runtime(
    files: &mut ProbeFiles,
    pid: u32,
    language: Language,
) -> Result<(&'static Runtime, Vec<Arc<ProbeFile>>), NoProbes> {
    let mut mapped = mapped(pid, |name| RUNTIMES.iter().any(|runtime| runtime.has(name)));
    let known = |runtime: &&Runtime| mapped.iter().any(|file| runtime.has(&file.name));
    let runtime = language.0.or_else(|| RUNTIMES.iter().find(known));
    let runtime =
        runtime.ok_or_else(|| NoProbes(format!("no runtime of a language that is known: {}", Language::EXPECTED)))?;
    mapped.retain(|file| runtime.has(&file.name));
    mapped.truncate(FILES);
    let mut its: Vec<_> = mapped.into_iter().map(|file| (file.open(), file.path)).collect();
    if its.is_empty() {
        // The configuration says that this program is one, whatever its name.
        let program = PathBuf::from(format!("/proc/{pid}/exe"));
        its.push((open_regular(&program), program));
    }
    let names = its.iter().map(|(_, path)| path.display().to_string()).collect::<Vec<_>>().join(", ");
    let read = its.into_iter().map(|(file, path)| files.read(file, &path)).collect::<Result<Vec<_>, _>>()?;
    let with_probes: Vec<Arc<ProbeFile>> = read.into_iter().filter(|file| !file.probes.is_empty()).collect();
    if with_probes.is_empty() {
        return Err(NoProbes(format!("no probes in this build of {} ({names})", runtime.language)));
    }
    Ok((runtime, with_probes))
}

/// Returns the sites of the probes for which `number` returns a number.
pub fn numbered(files: &[Arc<ProbeFile>], mut number: impl FnMut(&Probe) -> Option<u32>) -> Vec<Site> {
    let probes = files.iter().flat_map(|file| file.probes.iter().enumerate().map(move |probe| (file, probe)));
    let site = |(file, (probe, what)): (&Arc<ProbeFile>, (usize, &Probe))| {
        Some(Site { file: Arc::clone(file), probe, number: number(what)? })
    };
    probes.filter_map(site).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(file: &str) -> Option<&'static str> {
        RUNTIMES.iter().find(|runtime| runtime.has(file)).map(|runtime| runtime.language)
    }

    #[test]
    fn files_are_of_a_runtime_in_any_version_and_nothing_else_is() {
        for (file, language) in [
            ("libjvm.so", "java"),
            ("node", "node"),
            ("libnode.so.108", "node"),
            ("php8.2", "php"),
            ("php-fpm8.2", "php"),
            ("libphp8.2.so", "php"),
            ("python3.11", "python"),
            ("libpython3.11.so.1.0", "python"),
            ("ruby3.1", "ruby"),
            ("libruby-3.1.so.3.1", "ruby"),
            ("libruby-3.1.so.3.1.2", "ruby"),
            ("perl", "perl"),
            ("libperl.so.5.36", "perl"),
            ("tclsh8.6", "tcl"),
            ("libtcl8.6.so", "tcl"),
        ] {
            assert_eq!(of(file), Some(language), "{file}");
        }
        for file in ["libc.so.6", "nodemon", "phpunit", "perldoc", "libjvmti.so", "java", ""] {
            assert_eq!(of(file), None, "{file}");
        }
    }

    #[test]
    fn a_runtime_is_detected_or_taken_from_the_option() {
        let mut files = ProbeFiles::default();
        let pid = std::process::id();
        let fault = runtime(&mut files, pid, Language(None)).err().unwrap().to_string();
        assert!(fault.contains("no runtime"), "{fault}");
        if cfg!(target_arch = "x86_64") {
            let (runtime, files) = runtime(&mut files, pid, Language(Some(JAVA))).unwrap();
            assert_eq!(runtime.language, "java");
            let sites = numbered(&files, |probe| (probe.name == "passed__by").then_some(5));
            assert!(matches!(&sites[..], [Site { number: 5, .. }]));
        }
    }
}
