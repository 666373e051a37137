//! Loading by trial on the running kernel: a refusal costs its own module only.

#![allow(clippy::unwrap_used)]

#[path = "support/mod.rs"]
mod support;

use corebcc::bpf::types::flow;
use corebcc::bpf::{constants, OBJECT};
use corebcc::kit::{Hook, Host, Kernel, Module, Plan, ProcessFilter, Rows, Setup, Spec, Tier, When};
use corebcc::loader::{load, LoadRequest, Outcome};
use corebcc::modules::find;
use corebcc::process::Filters;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use support::skip;

const HOST: Host = Host { cpus: 64, disks: 4, threads: 500, requests: 256, memory: 1024, pid_namespace: false };

fn spec(name: &str) -> &'static Spec {
    find(name).unwrap()
}

/// Makes load requests for modules with default options, and their constants.
fn wanted(names: &[&str]) -> (Vec<LoadRequest>, corebcc::bpf::types::rodata) {
    let mut constants = constants();
    let wanted = names
        .iter()
        .map(|name| {
            let spec = spec(name);
            let text = format!("[{name}]\nmodule = {name}\n");
            let config = corebcc::config::Config::parse("test.conf", text.as_bytes()).unwrap();
            let section = config.section(name).unwrap();
            let setup = Setup::new(&section);
            let mut plan = Plan::default();
            (spec.make)(&setup).unwrap().plan(&HOST, &mut plan, &mut constants);
            LoadRequest { name: spec.name, plan, maps: spec.maps, depends_on: None, pin: None }
        })
        .collect();
    (wanted, constants)
}

/// True if programs can be loaded at all.
fn may_load() -> bool {
    let (wanted, constants) = wanted(&["sysfork"]);
    let loads = load(&OBJECT, &wanted, &constants, None).modules[0].is_ok();
    if !loads {
        skip("root, or CAP_BPF and CAP_PERFMON, on a kernel with BTF");
    }
    loads
}

fn hooks(outcome: &Outcome) -> Vec<&str> {
    outcome.loaded.attached().iter().map(|(hook, _)| *hook).collect()
}

#[test]
fn a_map_that_is_too_large_costs_its_module_only() {
    if !may_load() {
        return;
    }
    let (mut wanted, constants) = wanted(&["sysfork", "runqlat"]);
    wanted[0].plan.entries.push(("fork_rows", u32::MAX));
    let outcome = load(&OBJECT, &wanted, &constants, None);
    let failure = outcome.modules[0].clone().unwrap_err();
    assert!(failure.reason.contains("fork_rows") && failure.errno > 0, "{failure:?}");
    assert_eq!(outcome.modules[1], Ok(()));
    assert_eq!(hooks(&outcome), ["sched_switch"]);
}

/// A module without its filter would count processes that it should not.
#[test]
fn modules_that_filter_fail_with_the_filters_reason() {
    if !may_load() {
        return;
    }
    let (mut wanted, mut constants) = wanted(&["runqlat", "sysfork", "syscount"]);
    for module in [0, 2] {
        wanted[module].plan.number = module;
        wanted[module].plan.filter = Some(ProcessFilter::named("nobody"));
        wanted[module].depends_on = Some(3);
    }
    let mut filters = Filters::of(wanted.iter().map(|wanted| (wanted.name, wanted.name, &wanted.plan)), None).unwrap();
    let mut plan = Plan::default();
    filters.plan(&HOST, &mut plan, &mut constants);
    wanted.push(LoadRequest { name: Filters::SPEC.name, plan, maps: Filters::SPEC.maps, depends_on: None, pin: None });
    assert_eq!(load(&OBJECT, &wanted, &constants, None).modules, [Ok(()), Ok(()), Ok(()), Ok(())]);

    wanted[3].plan.entries.push(("filter_members", u32::MAX));
    let outcome = load(&OBJECT, &wanted, &constants, None);
    let failure = outcome.modules[3].clone().unwrap_err();
    assert!(failure.reason.contains("filter_members") && failure.errno > 0, "{failure:?}");
    assert_eq!(outcome.modules, [Err(failure.clone()), Ok(()), Err(failure.clone()), Err(failure)]);
    assert_eq!(hooks(&outcome), ["task_newtask"]);
}

#[test]
fn a_refused_tier_gives_way_and_the_last_names_its_hook() {
    static NEVER: Hook = Hook {
        name: "nowhere",
        tiers: &[Tier { kind: "tp_btf", programs: &["tp__nowhere"] }],
        needs: "a kernel that does not exist",
    };
    static THEN: Hook = Hook {
        name: "somewhere",
        tiers: &[
            Tier { kind: "tp_btf", programs: &["tp__nowhere"] },
            Tier { kind: "raw_tp", programs: &["raw__task_newtask"] },
        ],
        needs: "nothing",
    };
    if !may_load() {
        return;
    }
    let (mut wanted, constants) = wanted(&["sysfork", "runqlat"]);
    wanted[0].plan.hooks = vec![(&THEN, When::Needed)];
    let outcome = load(&OBJECT, &wanted, &constants, None);
    assert_eq!(outcome.modules, [Ok(()), Ok(())]);
    assert!(outcome.loaded.attached().contains(&("somewhere", "raw_tp")), "{:?}", outcome.loaded.attached());
    let refused = outcome.attempts.iter().find(|attempt| attempt.result.is_err()).unwrap();
    assert_eq!((refused.hook, refused.kind), ("somewhere", "tp_btf"));

    wanted[0].plan.hooks = vec![(&NEVER, When::Needed)];
    let outcome = load(&OBJECT, &wanted, &constants, None);
    let failure = outcome.modules[0].clone().unwrap_err();
    assert_eq!(failure.hook, "nowhere");
    assert!(failure.reason.ends_with("needs a kernel that does not exist"), "{failure:?}");
    assert_eq!(outcome.modules[1], Ok(()));
}

#[test]
fn a_refused_program_is_left_out_with_the_verifiers_words() {
    static FUNCTION: Hook = Hook {
        name: "tcp_sendmsg",
        tiers: &[Tier { kind: "fexit", programs: &["fexit__tcp_sendmsg"] }],
        needs: "fexit",
    };
    if !may_load() {
        return;
    }
    let (mut wanted, constants) = wanted(&["netproc", "exectop"]);
    wanted[0].plan.hooks[0] = (&FUNCTION, When::Needed);
    let outcome = load(&OBJECT, &wanted, &constants, None);
    let Err(failure) = &outcome.modules[0] else {
        skip("a kernel that refuses fexit");
        return;
    };
    assert_eq!((failure.hook, failure.errno > 0), ("tcp_sendmsg", true));
    assert!(!failure.kernel_log.is_empty());
    // The other module shares a program with the one that failed, and has it to itself now.
    assert_eq!(outcome.modules[1], Ok(()));
    assert_eq!(hooks(&outcome), ["sched_process_exec"]);
    assert!(outcome.loaded.runs("exectop"));
}

#[test]
fn a_hook_that_a_module_can_do_without_costs_it_nothing_else() {
    static NEVER: Hook = Hook {
        name: "nowhere",
        tiers: &[
            Tier { kind: "tp_btf", programs: &["tp__nowhere"] },
            Tier { kind: "raw_tp", programs: &["raw__nowhere"] },
        ],
        needs: "a kernel that does not exist",
    };
    static ALSO: Hook = Hook {
        name: "somewhere",
        tiers: &[
            Tier { kind: "tp_btf", programs: &["tp__nowhere"] },
            Tier { kind: "tp_btf", programs: &["tp__sched_process_exec"] },
        ],
        needs: "nothing",
    };
    if !may_load() {
        return;
    }
    let (mut wanted, constants) = wanted(&["sysfork", "runqlat"]);
    wanted[0].plan.attach_optional(&NEVER);
    wanted[0].plan.attach_optional(&ALSO);
    let outcome = load(&OBJECT, &wanted, &constants, None);
    assert_eq!(outcome.modules, [Ok(()), Ok(())]);
    assert_eq!(hooks(&outcome), ["task_newtask", "somewhere", "sched_switch"]);
    outcome.loaded.attach(&ALSO).unwrap();
    let error = outcome.loaded.attach(&NEVER).unwrap_err();
    assert!(error.to_string().contains("nowhere"), "{error}");
}

#[test]
fn maps_of_modules_that_are_off_are_not_created() {
    if !may_load() {
        return;
    }
    let (wanted, constants) = wanted(&["sysfork"]);
    let outcome = load(&OBJECT, &wanted, &constants, None);
    let kernel: &dyn Kernel = &outcome.loaded;
    assert_eq!(kernel.words(&spec("sysfork").maps[0]).len(), 64 * 8);
    for def in spec("runqlat").maps {
        assert!(kernel.words(def).is_empty(), "{}", def.name);
    }
}

#[test]
fn without_btf_one_sentence_says_what_is_missing_and_what_to_do() {
    let (wanted, constants) = wanted(&["sysfork", "runqlat"]);
    let outcome = load(&OBJECT, &wanted, &constants, Some(Path::new("/nonexistent/btf")));
    for outcome in outcome.modules {
        let failure = outcome.unwrap_err();
        assert!(failure.reason.contains("/nonexistent/btf") && failure.reason.contains("--btf"), "{failure:?}");
    }
}

#[test]
fn runqlat_counts_by_wake_ups_where_the_kernel_keeps_no_times() {
    use corebcc::bpf::types::{fine_hist, runq_row};
    use corebcc::kit::Rows;
    if !may_load() {
        return;
    }
    let (wanted, mut constants) = wanted(&["runqlat"]);
    constants.runq_by_wakeup = true;
    let outcome = load(&OBJECT, &wanted, &constants, None);
    assert_eq!(outcome.modules, [Ok(())]);
    assert_eq!(hooks(&outcome), ["sched_switch"], "this kernel keeps the times");
    for hook in &spec("runqlat").hooks[1..] {
        outcome.loaded.attach(hook).unwrap();
    }
    let kernel: &dyn Kernel = &outcome.loaded;
    let rows = kernel.rows(Rows::<runq_row>::new("runq_rows"));
    let counted = || rows.iter().flat_map(|row| row.part(runq_row::waits).words(fine_hist::buckets)).sum::<u64>();
    let unmeasured = || rows.sum(runq_row::unmeasured);
    let before = (counted(), unmeasured());
    let (mut ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let echo = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let mut byte = [0];
        while theirs.read(&mut byte).unwrap() == 1 {
            theirs.write_all(&byte).unwrap();
        }
    });
    for _ in 0..1000 {
        use std::io::{Read, Write};
        ours.write_all(&[1]).unwrap();
        ours.read_exact(&mut [0]).unwrap();
    }
    drop(ours);
    echo.join().unwrap();
    let (counted, unmeasured) = (counted() - before.0, unmeasured() - before.1);
    assert!(counted >= 2000, "two arrivals a round trip: {counted}");
    // Tasks that were queued before the programs ran have no time, each once.
    assert!(unmeasured < counted / 20, "{unmeasured} of {counted}");
}

/// A table of connections has only the pages with connections in memory, and every byte is counted nevertheless.
#[test]
fn of_a_large_table_pages_in_use_are_mapped_and_no_others() {
    if !may_load() {
        return;
    }
    let (wanted, constants) = wanted(&["tcptop"]);
    let outcome = load(&OBJECT, &wanted, &constants, None);
    if let Err(failure) = &outcome.modules[0] {
        return skip(&failure.to_string());
    }
    let kernel: &dyn Kernel = &outcome.loaded;
    let table = &spec("tcptop").maps[0];
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let sent = || {
        let rows = kernel.rows(Rows::<flow>::new("tcptop_flows"));
        assert_eq!(rows.len(), 1 << 16);
        let of_clients = rows.iter().filter(|row| row.get(flow::ident) >> 48 == u64::from(address.port()));
        of_clients.map(|row| row.get(flow::tx)).sum::<u64>()
    };
    assert_eq!(sent(), 0);
    let mut connections = Vec::new();
    for round in 1..=8 {
        let mut client = std::net::TcpStream::connect(address).unwrap();
        client.write_all(&[0; 1000]).unwrap();
        connections.push((client, listener.accept().unwrap()));
        assert_eq!(sent(), round * 1000);
    }
    // Two connections may be on one page. The machine's others have pages too, of which those that have ended are given back later.
    let rows = kernel.rows(Rows::<flow>::new("tcptop_flows"));
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).unwrap().unwrap() as usize;
    let bytes = kernel.words(table).len() * 8;
    let row = bytes / rows.len();
    let in_use = rows.iter().enumerate().filter(|(_, row)| row.get(flow::ident) != 0);
    let least = in_use.map(|(at, _)| at * row / page).collect::<BTreeSet<usize>>().len();
    let resident = resident(kernel.words(table)) as usize * 1024 / page;
    let marks = kernel.words(spec("tcptop").maps.iter().find(|map| map.name == "tcptop_marks").unwrap());
    let (part, marked) = (bytes / marks.len(), marks.iter().filter(|mark| mark.load(Relaxed) != 0).count());
    println!(
        "{resident} pages of {} are resident, {least} in use, {marked} parts of {} marked",
        bytes / page,
        marks.len()
    );
    assert!((8..marks.len()).contains(&marked));
    assert!((least..=marked * part.div_ceil(page)).contains(&resident));
}

/// Returns how many KiB of this memory are resident.
fn resident(words: &[AtomicU64]) -> u64 {
    let of = words.as_ptr_range();
    let (mut inside, mut kib) = (false, 0);
    for line in std::fs::read_to_string("/proc/self/smaps").unwrap().lines() {
        let start = line.split_once('-').and_then(|(start, _)| usize::from_str_radix(start, 16).ok());
        if let Some(start) = start {
            inside = (of.start.addr()..of.end.addr()).contains(&start);
        } else if let Some(rss) = line.strip_prefix("Rss:").filter(|_| inside) {
            kib += rss.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
        }
    }
    kib
}
