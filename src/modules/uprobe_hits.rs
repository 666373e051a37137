//! Calls of functions of programs and libraries that the configuration names. Kernel side: bpf/uprobe_hits.bpf.c.

use super::shared::hits::{Finder, Found, Hits, NoTargets, TargetList};
use crate::bpf::types::{self, hit};
use crate::host::{library, Elf, HostError};
use crate::kit::*;
use crate::{maps, metrics, module_log, options, user_code};
use std::collections::HashMap;
use std::path::PathBuf;

metrics! {
    HITS: u64 = 0 "uprobe.hits" COUNTER COUNT "calls of each user function";
}

maps! {
    rows ROWS: hit = "up_hits";
}

options! {
    process;
    /// Required. Functions, each LIBRARY:SYMBOL: LIBRARY is a short name (`c` for libc.so.6) or the path of a library or program. Every
    /// caller pays for the breakpoint, whatever `process` says: 880 ns a call where the kernel emulates the first instruction of the
    /// function, 24,000 ns where it has to single-step it. Choose functions that are called some thousand times a second at most.
    uprobes: ProbeList = ProbeList::default(), for example "c:getaddrinfo,c:fork";
}

/// Largest number of functions in a configuration; each costs a program.
const MOST: usize = 4096;

static FUNCTION: Hook = user_code!("user function", "uprobe_hits");

static TABLE: TableSpec =
    TableSpec { cluster: 102, shape: Shape::Named { max: MOST }, metrics: METRICS, ..TableSpec::NEW };

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "uprobe_hits",
    summary: "calls of user functions",
    overhead: Overhead::high(
        "5 ns per call, and 880 or 24,000 ns for the breakpoint, in every process that calls the function",
    ),
    needs: "CONFIG_UPROBE_EVENTS",
    tables: &[&TABLE],
    options: OPTIONS,
    hooks: &[&FUNCTION],
    maps: MAPS,
    needs_to_load: &[Need::UserProbes],
    make: |setup| {
        let options = Options::read(setup.section)?;
        let list = options.uprobes.required(setup.section, "uprobes")?;
        let split = |entry: &String| {
            // The symbol is behind the last colon: a path may have others, a mangled name has none.
            let parts = entry.rsplit_once(':').filter(|(library, symbol)| !library.is_empty() && !symbol.is_empty());
            let parts = parts.map(|(library, symbol)| (library.to_string(), symbol.to_string()));
            parts.ok_or_else(|| setup.section.reject("uprobes", format!("expected LIBRARY:SYMBOL, got `{entry}`")))
        };
        let entries: Result<Vec<_>, SetupError> = list.entries().iter().map(split).collect();
        let finder = FunctionFinder { entries: entries?, process: options.process };
        Ok(Box::new(Hits { finder, targets: TargetList::new(&FUNCTION), rows: ROWS, table: &TABLE, count: HITS }))
    },
    ..Spec::NEW
};

struct FunctionFinder {
    /// Library and symbol of each entry.
    entries: Vec<(String, String)>,
    process: ProcessFilter,
}

/// Files that were read, or the errors of reading.
type Files = HashMap<PathBuf, Result<Elf, HostError>>;

/// Returns the function that an entry names.
fn look(files: &mut Files, name: &str, symbol: &str) -> Found {
    let path = library(name).ok_or_else(|| NoTargets::new(format_args!("no library or file `{name}`")))?;
    let elf = files.entry(path.clone()).or_insert_with(|| Elf::read(&path)).as_ref().map_err(NoTargets::new)?;
    let code = elf.function(symbol);
    let code = code.ok_or_else(|| NoTargets::new(format_args!("{}: no function `{symbol}`", path.display())))?;
    if code.is_ifunc {
        module_log!(
            warn,
            "{name}:{symbol} is an IFUNC, which selects an implementation when a program starts: only these selections count, \
             not the calls"
        );
    }
    let instance = format!("{name}::{symbol}");
    let name = instance.clone();
    Ok(vec![(instance, Target::Code { path, offset: code.offset, semaphore: 0, process: None, name })])
}

impl Finder for FunctionFinder {
    fn find(&mut self, targets: &mut TargetList, plan: &mut Plan, constants: &mut types::rodata) {
        let mut files = Files::new();
        let entry = |(name, symbol): &(String, String)| (format!("{name}:{symbol}"), look(&mut files, name, symbol));
        targets.find(plan, self.entries.iter().map(entry));
        constants.up_filter = plan.only(&self.process);
    }

    fn stride(constants: &mut types::rodata) -> &mut u32 {
        &mut constants.up_stride
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(entries: &[(&str, &str)]) -> Hits<FunctionFinder> {
        let entries = entries.iter().map(|(library, symbol)| (library.to_string(), symbol.to_string())).collect();
        let finder = FunctionFinder { entries, process: ProcessFilter::default() };
        Hits { finder, targets: TargetList::new(&FUNCTION), rows: ROWS, table: &TABLE, count: HITS }
    }

    fn plan(module: &mut Hits<FunctionFinder>) -> Plan {
        let mut plan = Plan::default();
        module.plan(&Host::SMALL, &mut plan, &mut crate::bpf::constants());
        plan
    }

    #[test]
    fn functions_are_named_as_written_with_the_colon_doubled() {
        let path = library("c").unwrap().display().to_string();
        let mut module = module(&[("c", "malloc"), (&path, "free"), ("c", "no-such.symbol@V"), ("c", "malloc")]);
        let plan = plan(&mut module);
        assert_eq!((plan.targets.len(), plan.refusal.as_deref()), (2, None));
        let [(entry, reason)] = &plan.missing[..] else { panic!("{:?}", plan.missing) };
        assert_eq!(
            (entry.as_str(), reason),
            ("c:no-such.symbol@V", &format!("{path}: no function `no-such.symbol@V`"))
        );
        let fake = Fake::new().with(ROWS, 16);
        fake.set(ROWS, 1, hit::count, 3);
        fake.set(ROWS, 9, hit::count, 4);
        let table = fake.filled(&TABLE, &Box::new(module).start(&Fake::new()));
        assert_eq!(table.names(), ["c::malloc".into(), format!("{path}::free")]);
        assert_eq!((table.number(0, 0), table.number(1, 0)), (Some(0), Some(7)));
    }

    #[test]
    fn a_module_that_finds_no_target_fails_and_names_each() {
        let plan = plan(&mut module(&[("no_such_library", "f"), ("c", "no_such_function")]));
        let reason = plan.refusal.unwrap();
        assert!(reason.contains("no library or file `no_such_library`"), "{reason}");
        assert!(reason.contains("no function `no_such_function`"), "{reason}");
    }
}
