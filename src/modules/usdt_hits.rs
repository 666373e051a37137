//! Hits of USDT probes that the configuration names. Kernel side: bpf/usdt_hits.bpf.c.

use super::shared::hits::{Finder, Found, Hits, NoTargets, TargetList};
use super::shared::runtimes::BEYOND;
use crate::bpf::types::{self, hit};
use crate::host::{open_regular, open_regular_of, program_or_library, Probe, ProbeFiles};
use crate::kit::*;
use crate::process::{NoProbes, ProcessProbes, Site, Sites};
use crate::{maps, metrics, options, user_code};
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

metrics! {
    HITS: u64 = 0 "usdt.hits" COUNTER COUNT "hits of each USDT probe";
}

maps! {
    rows ROWS: hit = "ud_hits";
}

options! {
    /// Only these processes count. With USDT probes: if only PIDs are listed, probes are attached to those processes alone; otherwise to
    /// the executables they run.
    process: ProcessFilter = ProcessFilter::default();
    /// Required. USDT probes, each FILE:PROBE: FILE is an absolute path, a program or the short name of a library (`c` for libc.so.6);
    /// PROBE is a regular expression that matches whole names. A process pays 880 ns whenever it runs into a probe (a nop, which x86-64
    /// kernels emulate).
    usdts: ProbeList = ProbeList::default(),
        for example "/etc/alternatives/jre/lib/server/libjvm.so:gc__begin,/etc/alternatives/jre/lib/server/libjvm.so:thread__start";
}

/// Largest number of probes; each costs a program.
const MOST: usize = 4096;

static SITE: Hook = user_code!("USDT probe", "usdt_hits");

static TABLE: TableSpec =
    TableSpec { cluster: 101, shape: Shape::Named { max: MOST }, metrics: METRICS, ..TableSpec::NEW };

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "usdt_hits",
    summary: "hits of USDT probes",
    overhead: Overhead::high("26 ns per hit, and 880 ns for the breakpoint, in the traced process"),
    needs: "CONFIG_UPROBE_EVENTS",
    tables: &[&TABLE],
    options: OPTIONS,
    hooks: &[&SITE],
    maps: MAPS,
    needs_to_run: &[Need::FilesOfProcesses, Need::UserProbes],
    make: |setup| {
        let options = Options::read(setup.section)?;
        let list = options.usdts.required(setup.section, "usdts")?;
        let entry = |entry: &String| {
            let is_path = |path: &str| path.starts_with('/') || (!path.is_empty() && !path.contains('/'));
            let parts = split(entry).filter(|(path, probe)| is_path(path) && !probe.is_empty());
            let (path, probe) = parts.ok_or_else(|| {
                let expected = "expected PATH:PROBE, the path absolute or a name";
                setup.section.reject("usdts", format!("{expected}, got `{entry}`"))
            })?;
            let names = Expression::new(&format!("^(?:{probe})$"))
                .map_err(|fault| setup.section.reject("usdts", format!("`{probe}`: {fault}")))?;
            Ok(Entry { path: path.into(), probe: probe.into(), names })
        };
        let entries: Result<Vec<_>, SetupError> = list.entries().iter().map(entry).collect();
        Ok(Box::new(hits(setup.section.name(), entries?, options.process)))
    },
    ..Spec::NEW
};

/// Splits an entry into path and expression. Both may contain a colon: the path is the longest part that exists.
fn split(entry: &str) -> Option<(&str, &str)> {
    let at = |(at, _): (usize, &str)| (&entry[..at], &entry[at + 1..]);
    let there = entry.match_indices(':').map(at).find(|(path, _)| program_or_library(path).is_some());
    there.or_else(|| entry.split_once(':'))
}

/// An entry of the configuration.
struct Entry {
    path: String,
    /// The probe as it is written.
    probe: String,
    /// The probe as an expression.
    names: Expression,
}

impl Entry {
    fn means(&self, probe: &Probe) -> bool {
        probe.name == self.probe || self.names.matches(probe.name.as_bytes())
    }
}

/// The probes by their instance names: the file, and the name in it.
type Known = HashMap<String, (PathBuf, String)>;

struct UsdtFinder {
    entries: Vec<Entry>,
    known: Known,
    /// The probes of each process, if there is a filter; without one the loader attaches to all processes.
    probes: Option<ProcessProbes>,
}

fn hits(name: &str, entries: Vec<Entry>, process: ProcessFilter) -> Hits<UsdtFinder> {
    let probes = (!process.is_all()).then(|| ProcessProbes::new(name, process));
    let targets = if probes.is_some() { TargetList::by_process(&SITE) } else { TargetList::new(&SITE) };
    Hits {
        finder: UsdtFinder { entries, known: Known::new(), probes },
        targets,
        rows: ROWS,
        table: &TABLE,
        count: HITS,
    }
}

/// Returns the probes that an entry matches. Their instances are named by the path as it is written, and the probe.
fn look(files: &mut ProbeFiles, known: &mut Known, entry: &Entry) -> Found {
    let path = program_or_library(&entry.path).unwrap_or_else(|| PathBuf::from(&entry.path));
    let file = files.read(open_regular(&path), &path).map_err(NoTargets::new)?;
    let target = |probe: &Probe| {
        let instance = format!("{}::{}", entry.path, probe.name);
        known.entry(instance.clone()).or_insert_with(|| (path.clone(), probe.name.clone()));
        let (offset, semaphore, name) = (probe.offset, probe.semaphore, instance.clone());
        (instance, Target::Code { path: path.clone(), offset, semaphore, process: None, name })
    };
    let targets: Vec<_> = file.probes.iter().filter(|probe| entry.means(probe)).map(target).collect();
    if file.probes.is_empty() {
        let name = path.file_name().map_or(entry.path.as_str().into(), |name| name.to_string_lossy());
        return Err(NoTargets::new(format_args!("{name} has no USDT probes")));
    }
    if targets.is_empty() {
        return Err(NoTargets::new(format_args!("{}: no probe `{}`", entry.path, entry.probe)));
    }
    Ok(targets)
}

/// Returns the sites in the files that `open` finds: those of a process may differ from those with the same names here, in a
/// container or after an update.
fn sites(
    targets: &TargetList,
    known: &Known,
    files: &mut ProbeFiles,
    open: impl Fn(&Path) -> std::io::Result<File>,
) -> Sites {
    let mut sites = Vec::new();
    let mut faults = Vec::new();
    for (number, (path, name)) in targets.iter().filter_map(|(number, name)| Some((number, known.get(name)?))) {
        match files.read(open(path), path) {
            Ok(file) => {
                let probes = file.probes.iter().enumerate().filter(|(_, probe)| probe.name == *name);
                let site = |(probe, _)| Site { file: Arc::clone(&file), probe, number: number as u32 };
                sites.extend(probes.map(site));
            }
            Err(fault) => faults.push(fault.to_string()),
        }
    }
    faults.dedup();
    match sites.is_empty() {
        true if faults.is_empty() => Err(NoProbes("its files are of another build, without the probes".into())),
        true => Err(NoProbes(faults.join("; "))),
        false => Ok(sites),
    }
}

impl Finder for UsdtFinder {
    fn find(&mut self, targets: &mut TargetList, _host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        let UsdtFinder { entries, known, probes } = self;
        let mut files = ProbeFiles::default();
        let entry = |entry: &Entry| (format!("{}:{}", entry.path, entry.probe), look(&mut files, known, entry));
        targets.find(plan, entries.iter().map(entry));
        let Some(probes) = probes.as_mut().filter(|_| !targets.is_empty()) else { return };
        let sites = |files: &mut ProbeFiles| sites(targets, known, files, open_regular);
        probes.allow(sites(&mut files).map_or(0, |sites| sites.len()));
        probes.preattach(|files| sites(files).unwrap_or_default());
        constants.ud_filter = probes.plan(plan, &SITE);
    }

    fn stride(constants: &mut types::rodata) -> &mut u32 {
        &mut constants.ud_stride
    }

    fn tick(&mut self, targets: &TargetList, kernel: &dyn Kernel) {
        if let Some(probes) = &mut self.probes {
            let open = |pid| move |path: &Path| open_regular_of(pid, path);
            probes.tick(kernel, &SITE, &mut |files, pid| sites(targets, &self.known, files, open(pid)));
        }
    }

    fn due(&self) -> Option<Instant> {
        self.probes.as_ref()?.due()
    }

    fn losses(&self, _kernel: &dyn Kernel, each: EachLoss<'_>) {
        self.probes.iter().for_each(|probes| each(BEYOND, probes.beyond()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::pcp::Atom;
    use std::fs;

    fn make(lines: &str) -> Result<Plan, String> {
        let config = Config::parse("test.conf", format!("[u]\n{lines}\n").as_bytes()).unwrap();
        let section = config.section("u").unwrap();
        let setup = Setup::new(&section);
        let mut module = (SPEC.make)(&setup).map_err(|error| error.to_string())?;
        let (mut plan, mut constants) = (Plan::default(), crate::bpf::constants());
        module.plan(&Host { cpus: 2, ..Host::SMALL }, &mut plan, &mut constants);
        Ok(plan)
    }

    #[test]
    fn a_path_is_what_exists_and_the_rest_is_the_probe() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a:b");
        fs::write(&path, "").unwrap();
        let (path, directory) = (path.to_str().unwrap(), dir.path().to_str().unwrap());
        assert_eq!(split(&format!("{path}:(?:x|y)")), Some((path, "(?:x|y)")));
        assert_eq!(split(&format!("{directory}/no:(?:x|y)")), Some((format!("{directory}/no").as_str(), "(?:x|y)")));
        assert_eq!(split("c:(?:x|y)"), Some(("c", "(?:x|y)")));
        assert_eq!(split("x"), None);
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_line() {
        for (lines, wanted) in [
            (
                "usdts = /usr/bin/env:",
                "[u] usdts: expected PATH:PROBE, the path absolute or a name, got `/usr/bin/env:`",
            ),
            ("usdts = bin/env:x", "got `bin/env:x`"),
            ("usdts = /usr/bin/env:a(b", "[u] usdts: `a(b`"),
            ("usdts =", "[u] usdts: there is no value; write `usdts = "),
            ("", "[u] has no option `usdts`; add a line `usdts = "),
        ] {
            let error = make(lines).err().unwrap();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn a_module_that_finds_no_target_fails_and_names_each() {
        let exe = std::env::current_exe().unwrap().display().to_string();
        let plan = make(&format!("usdts = /no/such/file:x,{exe}:no_such_probe,/etc/passwd:x")).unwrap();
        let reason = plan.refusal.unwrap();
        let reason = reason + &make("usdts = no_such_program:x, sh:x").unwrap().refusal.unwrap();
        for wanted in [
            "no_such_program: No such file",
            "sh has no USDT probes",
            "/no/such/file: No such file",
            "no probe `no_such_probe`",
            "/etc/passwd: not a 64-bit ELF file",
        ] {
            assert!(reason.contains(wanted), "{reason}");
        }
        assert_eq!(make("usdts = sh:x, sh:y").unwrap().refusal.unwrap(), "sh has no USDT probes", "once");
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn each_probe_is_an_instance_and_a_filter_attaches_by_process() {
        let exe = std::env::current_exe().unwrap().display().to_string();
        let pid = std::process::id();
        let plan = make(&format!("usdts = {exe}:passed_.*,{exe}:passed__by,{exe}:gone")).unwrap();
        assert_eq!(plan.missing, [(format!("{exe}:gone"), format!("{exe}: no probe `gone`"))]);
        let [(_, Target::Code { path, semaphore, process, .. }, 0)] = plan.targets.as_slice() else {
            panic!("{:?}", plan.targets)
        };
        assert_eq!((path.to_str().unwrap(), *process), (exe.as_str(), None));
        assert_ne!(*semaphore, 0);

        let config = Config::parse("test.conf", format!("[u]\nprocess = {pid}\n").as_bytes()).unwrap();
        let value = config.section("u").unwrap().get("process").unwrap().unwrap();
        let process = ProcessFilter::read(&value).unwrap();
        let names = Expression::new("passed__by").unwrap();
        let mut module = hits("u", vec![Entry { path: exe.clone(), probe: "x".into(), names }], process);
        let mut plan = Plan::default();
        module.plan(&Host::SMALL, &mut plan, &mut crate::bpf::constants());
        assert_eq!((plan.targets.len(), plan.templates.len()), (0, 1));
        plan.arrivals.unwrap().tell(pid, true);
        let fake = Fake::new().with(ROWS, 16);
        fake.set(ROWS, 0, hit::count, 3);
        fake.set(ROWS, 8, hit::count, 4);
        let module = Box::new(module).start(&fake);
        module.tick(&fake);
        let [(Target::Code { process, .. }, 0)] = fake.targets()[..] else { panic!("{:?}", fake.targets()) };
        assert_eq!(process, Some(pid));
        let table = fake.filled(&TABLE, &module);
        let Key::Name(name) = &table.keys()[0] else { panic!() };
        assert_eq!(table.text(name), format!("{exe}::passed__by").as_bytes());
        assert_eq!(table.value(0, 0), Some(Atom::U64(7)));
    }
}
