//! Values and instances of the product's modules (20 to 45).

use super::{Product, BCC, COMMANDS, FORKS, LATENCY, PROCESSES, PROFILE, SESSIONS};
use crate::reference::pmcd;
use crate::served::Served;
use corebcc::pcp::{Indom, Pmid, IN_NULL};

const BUCKETS: Pmid = Pmid::new(BCC, 0, 0);
const PORTS: Pmid = Pmid::new(BCC, 3, 5);
const EXECS: Pmid = Pmid::new(BCC, 13, 0);
const CALLS: Pmid = Pmid::new(BCC, 15, 0);
const SENT: Pmid = Pmid::new(BCC, 40, 1);

#[test]
fn c32_the_products_counts_are_the_kernels() {
    let mut product = Product::started();
    assert_eq!(product.numbers(BUCKETS), [(0, 7), (1, 20), (2, 0), (3, 5)], "the first bucket is 0-1");
    assert_eq!(product.instances(LATENCY, 0, ""), [(IN_NULL, "0-1".into())]);
    assert_eq!(product.numbers(PORTS), [(0, 443), (1, 80)], "the latest first");
    assert_eq!(product.numbers(EXECS).iter().map(|(_, count)| *count).sum::<u64>(), 33);
    assert_eq!(product.numbers(CALLS), [(0, 11), (1, 22)]);
    let own = product.instances(PROCESSES, std::process::id(), "");
    let name = format!("{:06} ", std::process::id());
    assert!(own.len() == 1 && own[0].1.starts_with(&name), "{own:?}");
    assert!(product.numbers(SENT).contains(&(std::process::id(), 100)));
}

#[test]
fn c31_a_call_that_nobody_made_has_an_instance_and_no_value() {
    let mut product = Product::started();
    let calls = Indom::new(BCC, 15);
    assert!(product.instances(calls, IN_NULL, "").len() > 300);
    assert_eq!(product.numbers(CALLS).len(), 2);
    assert_eq!(product.fetch(&[Pmid::new(BCC, 15, 1)])[0].numval, 0, "times are not measured");
}

#[test]
fn c38_the_profile_of_a_domain_is_of_no_other() {
    let mut product = Product::started();
    let mut insts = |entries: &[(Indom, bool, &[u32])], exclude, pmid| {
        product.pmcd.tell(&pmcd::profile(exclude, entries));
        product.fetch(&[pmid])[0].insts()
    };
    assert_eq!(insts(&[(LATENCY, true, &[3, 0, 99])], false, PORTS), [0, 1]);
    for pmid in [BUCKETS, PORTS, EXECS, SENT, CALLS] {
        assert_eq!(insts(&[], true, pmid), [0; 0], "{pmid}");
    }
    assert_eq!(insts(&[(SESSIONS, false, &[])], true, PORTS), [0, 1]);
    assert_eq!(insts(&[(SESSIONS, false, &[])], true, BUCKETS), [0; 0]);
}

#[test]
fn c42_each_process_is_found_by_number_and_by_name() {
    let mut product = Product::started();
    product.pmcd.tell(&pmcd::profile(true, &[]));
    let sessions = product.instances(SESSIONS, IN_NULL, "");
    assert!(sessions.iter().map(|(_, name)| &**name).eq(["0", "1", "2"]), "one without a session too");
    for (inst, name) in product.instances(PROCESSES, IN_NULL, "") {
        assert_eq!(product.instances(PROCESSES, inst, ""), [(IN_NULL, name.clone())]);
        assert_eq!(product.instances(PROCESSES, IN_NULL, &name), [(inst, String::new())]);
    }
}

#[test]
fn c43_a_process_is_found_by_the_first_word_of_its_name() {
    let mut product = Product::started();
    let own = format!("{:06}", std::process::id());
    assert_eq!(product.instances(PROCESSES, IN_NULL, &own), [(std::process::id(), String::new())]);
    for name in [format!("{own} /nobody"), "-1".into(), "x".into()] {
        assert_eq!(product.pmcd.error(&pmcd::instance(PROCESSES, IN_NULL, &name)), -12360, "{name}");
    }
}

#[test]
fn c44_a_domain_of_the_product_may_be_empty_or_lack_a_name() {
    let mut product = Product::started();
    for (indom, name) in [(LATENCY, "1-2"), (LATENCY, "0"), (COMMANDS, "zsh"), (SESSIONS, "3")] {
        assert_eq!(product.pmcd.error(&pmcd::instance(indom, IN_NULL, name)), -12360, "{name}");
    }
    assert_eq!(product.pmcd.error(&pmcd::instance(Indom::new(BCC, 2), IN_NULL, "")), -12359, "a metric without");
    let mut idle = Product::without(&[]);
    assert_eq!(idle.instances(COMMANDS, IN_NULL, ""), []);
    assert_eq!(idle.fetch(&[EXECS])[0].numval, 0);
    assert_eq!(idle.instances(LATENCY, IN_NULL, ""), [(0, "0-1".into())], "before there was any request");
    assert_eq!(idle.numbers(BUCKETS), [(0, 0)]);
}

#[test]
fn names_keep_their_identifiers_as_others_come() {
    let mut product = Product::started();
    let before = product.instances(COMMANDS, IN_NULL, "");
    assert_eq!(before.len(), 3);
    let row = product.kernel.row(super::EXEC_ROWS, 7);
    row.set_bytes(corebcc::bpf::types::exec_row::comm, b"awk");
    row.set(corebcc::bpf::types::exec_row::count, 1);
    let four =
        |product: &mut Product| Some(product.instances(COMMANDS, IN_NULL, "")).filter(|instances| instances.len() == 4);
    let after = product.eventually(four);
    assert!(before.iter().all(|instance| after.contains(instance)), "{before:?}, then {after:?}");
}

#[test]
fn a_profiled_fetch_asks_only_the_modules_of_its_metrics() {
    let mut product = Product::started();
    product.kernel.begin("netproc_threads", super::Trouble::Panics);
    assert_eq!(product.numbers(FORKS), [(IN_NULL, 42)]);
    assert_eq!(product.fetch(&[PROFILE])[0].numval, 1);
    assert_eq!(product.fetch(&[SENT])[0].numval, -12351);
}
