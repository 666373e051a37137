//! Stores, and modules that are not loaded, slow, or at fault (60 to 66).

use super::fake_kernel::FakeKernel;
use super::{
    Product, Trouble, AGAIN, BCC, BIO_ROWS, COMMANDS, CONFIG, FORKS, FORK_ROWS, LATENCY, PROFILE, SECOND, SESSIONS,
};
use crate::reference::pmcd::{self, frame};
use crate::served::Served;
use corebcc::bpf::types::{bio_row, fine_hist, fork_row, io_stat};
use corebcc::collector::{prepare, survey, Engine};
use corebcc::config::Config;
use corebcc::kit::{Fine, Table, TableId};
use corebcc::modules::MODULES;
use corebcc::pcp::{Indom, Pmid, IN_NULL};
use std::time::Instant;

const APPVERSION: i32 = -12350;
const VALUE: i32 = -12351;
const SENT: Pmid = Pmid::new(BCC, 40, 1);
const CALLS: Pmid = Pmid::new(BCC, 15, 0);
const STATISTICS: Pmid = Pmid::new(BCC, 300, 10);
const PORTS: Pmid = Pmid::new(BCC, 3, 5);
const DISKS: Pmid = Pmid::new(BCC, 0, 0);
const EXECS: Pmid = Pmid::new(BCC, 13, 0);
const READERS: Pmid = Pmid::new(BCC, 1, 0);
const FLOWS: Pmid = Pmid::new(BCC, 9, 0);

#[test]
fn c60_only_two_metrics_of_the_product_can_be_stored() {
    let mut product = Product::started();
    assert_eq!(product.pmcd.error(&pmcd::store_block(FORKS, IN_NULL, 3, &[0; 8])), -12387);
    assert_eq!(product.pmcd.error(&pmcd::store(PORTS, 0, 1)), -12387);
    let version = Pmid::new(BCC, 300, 0);
    assert_eq!(product.pmcd.error(&pmcd::store_block(version, IN_NULL, 6, b"2.0\0")), -12387);
    assert_eq!(product.pmcd.error(&pmcd::store_block(Pmid::new(BCC, 299, 0), IN_NULL, 6, b"x\0")), -12358);
    assert_eq!(product.pmcd.error(&pmcd::store(STATISTICS, IN_NULL, 2)), -12400);
    assert_eq!(product.store(b"pause"), -12400);
    assert_eq!(product.numbers(FORKS), [(IN_NULL, 42)]);
}

#[test]
fn c61_a_store_starts_the_profile_and_the_next_fetch_shows_it() {
    let mut product = Product::started();
    let value = |product: &mut Product| product.strings(PROFILE)[0].1.clone();
    assert_eq!(value(&mut product), r#"{"status": "stopped", "data": null}"#);
    assert_eq!(product.store(b"start"), 0);
    assert_eq!(value(&mut product), r#"{"status": "started", "data": null}"#);
    assert!(product.kernel.hooks().contains("cpu-clock"));
    assert_eq!(product.store(b"stop"), 0);
    assert!(value(&mut product).starts_with(r#"{"status": "stopped", "data": {"name": "root""#));
    assert!(!product.kernel.hooks().contains("cpu-clock"));
    assert_eq!(product.store(b"clear"), 0);
    assert_eq!(value(&mut product), r#"{"status": "stopped", "data": null}"#);
}

#[test]
fn c61_a_store_switches_program_statistics_on_and_off() {
    const RUNS: Pmid = Pmid::new(BCC, 302, 4);
    const TIME: Pmid = Pmid::new(BCC, 306, 7);
    let mut product = Product::started();
    product.kernel.ran("tp__task_newtask", 7, 21_500);
    let counts = |product: &mut Product| {
        [STATISTICS, RUNS, TIME].map(|pmid| product.numbers(pmid).iter().map(|(_, value)| *value).collect::<Vec<_>>())
    };
    for _ in 0..2 {
        assert_eq!(counts(&mut product), [vec![0], vec![], vec![]]);
        assert!(!product.kernel.is_counting());
        assert_eq!(product.pmcd.error(&pmcd::store(STATISTICS, IN_NULL, 1)), 0);
        let [on, mut runs, time] = counts(&mut product);
        runs.retain(|runs| *runs > 0);
        assert_eq!([on, runs, time], [[1], [7], [21]]);
        assert!(product.kernel.is_counting());
        assert_eq!(product.pmcd.error(&pmcd::store(STATISTICS, IN_NULL, 0)), 0);
    }
    assert_eq!(counts(&mut product), [vec![0], vec![], vec![]]);
}

#[test]
fn c65_the_product_answers_while_it_loads() {
    let (mut product, load) = Product::loading(&[]);
    let sets = product.fetch_now(&[FORKS, SENT, Pmid::new(BCC, 299, 0)]);
    assert_eq!(sets.iter().map(|set| set.numval).collect::<Vec<_>>(), [AGAIN, AGAIN, -12358]);
    assert_eq!(product.store(b"start"), AGAIN);
    assert_eq!(product.pmcd.error(&pmcd::instance(LATENCY, IN_NULL, "")), AGAIN);
    assert_eq!(product.instances(SESSIONS, IN_NULL, "").len(), 3, "known before");
    product.pmcd.ask(&pmcd::desc(FORKS));
    product.pmcd.ask(&pmcd::text(FORKS.0, 5));
    product.pmcd.ask(&pmcd::traverse("bcc"));
    drop(load);
    product.wait();
    product.count();
    assert_eq!(product.numbers(FORKS), [(IN_NULL, 42)]);
}

#[test]
fn c65_a_slow_module_of_the_product_costs_only_itself() {
    let mut product = Product::started();
    assert_eq!(product.fetch(&[EXECS, FORKS])[1].numval, 1);
    let commands = product.instances(COMMANDS, IN_NULL, "");
    product.kernel.begin("exec_rows", Trouble::Hangs);
    let in_time = |product: &mut Product| {
        let begin = Instant::now();
        let sets = product.fetch_now(&[EXECS, FORKS, CALLS, PORTS]);
        assert_eq!(sets[0].numval, AGAIN);
        let others: Vec<i32> = sets[1..].iter().map(|set| set.numval).collect();
        (begin.elapsed() < SECOND && others == [1, 2, 2]).then_some(())
    };
    for _ in 0..5 {
        product.eventually(in_time);
    }
    assert_eq!(product.instances(COMMANDS, IN_NULL, ""), commands, "not the empty domain");
    product.session(8080);
    product.eventually(|product| (product.numbers(PORTS)[0] == (0, 8080)).then_some(()));
    product.kernel.calm();
    assert!(product.fetch(&[EXECS])[0].numval > 0);
    product.eventually(|product| (product.store(b"start") == 0).then_some(()));
}

/// All threads of the collector are stuck in modules.
#[test]
fn what_waits_for_nobody_is_served_while_all_threads_are_stuck() {
    let mut product = Product::started();
    product.fetch(&[READERS, FLOWS, PORTS, EXECS]);
    for map in ["io_owners", "retrans_rows", "tcp_sessions", "exec_rows"] {
        product.kernel.begin(map, Trouble::Hangs);
    }
    for stuck in [READERS, FLOWS, PORTS, EXECS] {
        assert_eq!(product.fetch_now(&[stuck])[0].numval, AGAIN);
    }
    let readers = pmcd::instance(Indom::new(BCC, 1), IN_NULL, "");
    assert_eq!(product.pmcd.error(&readers), AGAIN, "of these only first words are known: not the empty domain");
    let sets = product.fetch_now(&[FORKS, EXECS, DISKS, CALLS]);
    assert_eq!(sets.iter().map(|set| set.numval).collect::<Vec<_>>(), [1, AGAIN, 4, 2]);
    product.kernel.row(FORK_ROWS, 0).set(fork_row::threads, 3);
    assert_eq!(product.numbers(FORKS), [(IN_NULL, 43)], "as of now");
    product.kernel.calm();
    assert!(product.fetch(&[EXECS])[0].numval > 0);
}

/// Two kernels have the same counters: one product serves them, the modules of the other are refreshed by their own
/// thread.
#[test]
fn a_sum_has_the_values_that_the_modules_thread_reads() {
    const SUMS: [Pmid; 2] = [FORKS, DISKS];
    let config = Config::parse("test.conf", CONFIG.as_bytes());
    let modules = prepare(&config, "test.conf", survey(&config, MODULES), MODULES).modules;
    let (mut product, kernel) = (Product::started(), FakeKernel::default());
    let mut set = Engine::over(modules, |wanted, constants| kernel.load(&[], wanted, constants));
    for kernel in [&product.kernel, &kernel] {
        kernel.row(FORK_ROWS, 0).set(fork_row::vforks, 1 << 40);
        for (row, disk) in [(0, 8 << 32), (1, 8 << 32 | 16), (2, 8 << 32)] {
            kernel.row(BIO_ROWS, row).set(bio_row::disk, 1 << 63 | disk);
            for bucket in 0..31 - row {
                let time = bio_row::device.then(fine_hist::buckets).nth(Fine::bucket(1000 << bucket));
                kernel.row(BIO_ROWS, row).set(time, u64::MAX / (bucket + 1) as u64 - row as u64);
            }
        }
        kernel.row(FORK_ROWS, 0).set(fork_row::processes, 40);
        kernel.row(FORK_ROWS, 0).set(fork_row::threads, 2);
    }
    let read = move || {
        SUMS.map(|pmid| {
            let spec = MODULES.iter().flat_map(|spec| spec.tables).find(|spec| spec.cluster == pmid.cluster()).unwrap();
            let mut table = Table::of(spec);
            set.refresh(TableId::new(pmid.cluster() as u16), &mut table).unwrap();
            table.u64s(0).flatten().collect::<Vec<_>>()
        })
    };
    let there = std::thread::spawn(read).join().unwrap();
    let here = SUMS.map(|pmid| product.numbers(pmid).into_iter().map(|(_, number)| number).collect::<Vec<_>>());
    assert_eq!(here, there);
    assert_eq!((&here[0], here[1].len()), (&vec![(1 << 40) + 42], 31));
}

/// The panic is in the thread that answers pmcd.
#[test]
fn a_sum_of_the_product_that_panics_costs_its_own_values() {
    let mut product = Product::started();
    product.kernel.begin("fork_rows", Trouble::Panics);
    for _ in 0..2 {
        let sets = product.fetch(&[FORKS, DISKS, CALLS]);
        assert_eq!(sets.iter().map(|set| set.numval).collect::<Vec<_>>(), [VALUE, 4, 2]);
    }
    let (state, status) = product.state("sysfork");
    assert_eq!(state, "no values");
    assert!(status.contains("a fault of the agent") && status.contains("fork_rows"), "{status}");
    assert_eq!(product.state("biolatency").0, "running");
    product.kernel.calm();
    assert_eq!(product.numbers(FORKS), [(IN_NULL, 42)]);
    assert_eq!(product.state("sysfork").0, "running");
}

#[test]
fn c65_a_store_stuck_behind_a_module_is_to_be_tried_again() {
    let mut product = Product::started();
    product.kernel.begin("netproc_threads", Trouble::Hangs);
    assert_eq!(product.fetch_now(&[SENT])[0].numval, AGAIN);
    let begin = Instant::now();
    assert_eq!(product.store(b"start"), AGAIN);
    assert!(begin.elapsed() < SECOND, "{:?}", begin.elapsed());
    assert_eq!(product.numbers(FORKS), [(IN_NULL, 42)]);
}

#[test]
fn a_module_of_the_product_that_panics_costs_its_own_values() {
    let mut product = Product::started();
    product.kernel.begin("syscall_rows", Trouble::Panics);
    let sets = product.fetch(&[CALLS, FORKS, SENT]);
    assert_eq!((sets[0].numval, sets[1].numval), (VALUE, 1));
    assert!(sets[2].numval > 0);
    let (state, status) = product.state("syscount");
    assert_eq!(state, "no values");
    assert!(status.contains("a fault of the agent") && status.contains("syscall_rows"), "{status}");
    assert_eq!(product.state("sysfork").0, "running");
    product.kernel.calm();
    product.eventually(|product| (product.numbers(CALLS) == [(0, 11), (1, 22)]).then_some(()));
    assert_eq!(product.state("syscount").0, "running");
}

#[test]
fn a_module_that_is_refused_keeps_its_names_and_has_no_values() {
    let mut product = Product::without(&["exectop", "profile"]);
    let sets = product.fetch(&[EXECS, FORKS, PROFILE]);
    assert_eq!(sets.iter().map(|set| set.numval).collect::<Vec<_>>(), [APPVERSION, 1, APPVERSION]);
    product.pmcd.ask(&pmcd::desc(EXECS));
    product.pmcd.ask(&pmcd::lookup("bcc.proc.exec.count"));
    assert_eq!(product.store(b"start"), APPVERSION);
    assert_eq!(product.state("exectop"), ("failed".into(), "refused by the test".into()));
    assert_eq!(product.state("sysfork"), ("running".into(), "attached to task_newtask by tp_btf".into()));
    assert_eq!(product.state("profile").0, "failed");
}

#[test]
fn the_agents_metrics_tell_of_modules_programs_and_maps() {
    let mut product = Product::started();
    product.fetch(&[FORKS]);
    let names = |product: &mut Product, cluster| -> Vec<String> {
        let indom = Indom::new(BCC, cluster);
        product.instances(indom, IN_NULL, "").into_iter().map(|(_, name)| name).collect()
    };
    let modules = names(&mut product, 301);
    for module in ["biolatency", "sysfork", "netproc", "tcplife", "exectop", "syscount", "profile"] {
        assert!(modules.iter().any(|name| name == module), "{modules:?}");
    }
    assert_eq!(product.state("profile").0, "postponed");
    assert_eq!(product.state("runqlat").0, "off");
    assert!(names(&mut product, 302).contains(&"tp__task_newtask".to_string()));
    assert!(names(&mut product, 303).contains(&"exec_rows".to_string()));
    assert!(names(&mut product, 304).iter().any(|name| name.starts_with("netproc::")));
    assert_eq!(names(&mut product, 305)[0], "types");
    let fetches = product.numbers(Pmid::new(BCC, 300, 5))[0].1;
    assert_eq!(product.numbers(Pmid::new(BCC, 300, 5))[0].1, fetches + 1);
}

#[test]
fn the_summary_comes_first_and_counts_modules_and_losses() {
    const LOST: corebcc::kit::Rows<io_stat> = corebcc::kit::Rows::new("io_stats");
    let summary = |item| Pmid::new(BCC, 306, item);
    let mut product = Product::without(&["exectop", "profile"]);
    product.kernel.row(LOST, 0).set(io_stat::lost, 5);
    for (request, first) in [
        (pmcd::children("bcc.agent", false), "summary"),
        (pmcd::traverse("bcc.agent"), "bcc.agent.summary.configuration"),
    ] {
        let reply = product.pmcd.ask(&request);
        let corebcc::pdu::Pdu::PmnsNames { names } = pmcd::decode(&reply) else { panic!("no names") };
        assert_eq!(names[0].1, first.as_bytes());
    }
    assert!(pmcd::names(&product.pmcd.ask(&pmcd::traverse("bcc.agent"))).len() > 40);
    assert!(pmcd::names(&product.pmcd.ask(&pmcd::traverse("bcc.agent.summary"))).len() <= 10);
    assert_eq!(product.strings(summary(0))[0].1, env!("CARGO_PKG_VERSION"));
    let states = [1, 2, 3].map(|item| product.numbers(summary(item))[0].1);
    assert_eq!(states, [7, 2, MODULES.len() as u64 - 9]);
    assert_eq!(product.numbers(summary(4)), [(IN_NULL, 5)]);
    assert!(product.numbers(summary(5))[0].1 > 0 && product.numbers(summary(6))[0].1 > 0);
    assert_eq!(product.strings(summary(8))[0].1, "test.conf: no errors, 9 modules enabled");
    // While a module is at work its losses are not to be had, but what is known of them stays.
    let by_kind = Pmid::new(BCC, 304, 0);
    let losses = product.numbers(by_kind);
    product.kernel.begin("io_owners", Trouble::Hangs);
    assert_eq!(product.fetch_now(&[READERS])[0].numval, AGAIN);
    assert_eq!(product.numbers(summary(4)), [(IN_NULL, 5)]);
    assert_eq!(product.numbers(by_kind), losses);
}

#[test]
fn what_failed_comes_first_among_modules_and_metrics() {
    let mut product = Product::without(&["exectop", "profile"]);
    let names = |product: &mut Product, cluster| -> Vec<String> {
        let indom = Indom::new(BCC, cluster);
        product.instances(indom, IN_NULL, "").into_iter().map(|(_, name)| name).collect()
    };
    assert_eq!(names(&mut product, 301)[..2], ["exectop", "profile"]);
    product.fetch(&[FORKS, CALLS]);
    let (names, values) = (names(&mut product, 307), product.strings(Pmid::new(BCC, 307, 0)));
    let rows: Vec<(&str, &str)> =
        names.iter().map(String::as_str).zip(values.iter().map(|(_, v)| v.as_str())).collect();
    assert_eq!(rows[..3].iter().map(|(name, _)| *name).collect::<Vec<_>>(), FAILED);
    assert!(rows[..3].iter().all(|(_, status)| *status == "failed: refused by the test"), "{rows:?}");
    let of = |name: &str| rows.iter().find(|(known, _)| *known == name).unwrap().1;
    assert_eq!(of("bcc.proc.sysfork"), "running");
    assert_eq!(of("bcc.disk.all.latency"), "running", "not fetched yet");
    assert_eq!(of("bcc.proc.syscall.latency.avg"), "no value at the last fetch: attached to sys_enter by tp_btf");
    let off = "off: set exemplars = True in [biolatency] of the configuration";
    assert_eq!(of("bcc.disk.slowest.time"), off, "fetched or not");
    assert!(of("bcc.runq.latency").starts_with("off: not enabled; to have it, add"), "{}", of("bcc.runq.latency"));
    let (last, all) = (rows.last().unwrap().1, MODULES.iter().flat_map(|spec| spec.metrics()).count());
    assert!(last.starts_with("off: ") && rows.len() == all, "{} of {all} metrics, {last} last", rows.len());
}

const FAILED: [&str; 3] = ["bcc.proc.exec.count", "bcc.proc.profile", "bcc.proc.stacks"];

/// A ring is drained as it fills, without a fetch: its room is small.
#[test]
fn a_ring_of_the_product_is_drained_without_a_fetch() {
    let mut product = Product::started();
    for port in 1..=5 {
        product.session(port);
    }
    product.eventually(|product| (!product.kernel.waits_in("tcp_sessions")).then_some(()));
    assert_eq!(product.numbers(PORTS), [(0, 5), (1, 4), (2, 3)]);
}

#[test]
fn c66_a_store_that_is_cut_short_changes_nothing() {
    let mut product = Product::started();
    let store = pmcd::store_block(PROFILE, IN_NULL, 6, b"start\0");
    for cut in 0..store.len() - 12 {
        product.pmcd.send(&pmcd::pdu(frame(&store).ty, &store[12..12 + cut]));
    }
    assert_eq!(product.strings(PROFILE)[0].1, r#"{"status": "stopped", "data": null}"#);
}
