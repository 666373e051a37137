//! The same checklist with the product instead of the reference agent: the registry, the collector with its threads,
//! and the shipped modules, over a kernel in memory. It needs neither root nor BPF.

mod conversations;
mod fake_kernel;
mod fetch;
mod generated;
mod metadata;
mod state;

use crate::reference::pmcd::{self, Pmcd, Set, Wire};
use crate::served::{Facts, Served};
use corebcc::agent::Options;
use corebcc::bpf::types::{bio_row, exec_row, fine_hist, fork_row, net_row, syscall_row, thread, thread_name};
use corebcc::bpf::{record_bytes, types::tcp_session};
use corebcc::catalog::{EnabledModule, Help, Registry};
use corebcc::collector::{prepare, status_tables, survey, AgentStatus, Collector, Engine, Prepared};
use corebcc::config::Config;
use corebcc::kit::{Fine, Rows};
use corebcc::modules::MODULES;
use corebcc::pcp::{Indom, InstId, Pmid, IN_NULL};
use corebcc::pdu::{Pdu, PduType};
use fake_kernel::{FakeKernel, Trouble};
#[allow(unused_imports)] // by the fuzz target
pub use generated::Conversations;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Domain of the product.
const BCC: u32 = 149;
/// Instance domains of modules.
const LATENCY: Indom = Indom::new(BCC, 0);
const SESSIONS: Indom = Indom::new(BCC, 3);
const COMMANDS: Indom = Indom::new(BCC, 13);
const PROCESSES: Indom = Indom::new(BCC, 40);
/// `bcc.proc.sysfork`, a single counter.
const FORKS: Pmid = Pmid::new(BCC, 2, 0);
/// `bcc.proc.profile`, a metric that can be stored to.
const PROFILE: Pmid = Pmid::new(BCC, 14, 0);
/// Longest time for an answer.
const SECOND: Duration = Duration::from_secs(1);
/// Longest time that a test waits for an event.
const PATIENCE: Duration = Duration::from_secs(20);
/// `PM_ERR_AGAIN`.
const AGAIN: i32 = -12389;

const CONFIG: &str = "[pmda]
modules = biolatency,sysfork,netproc,tcplife,exectop,syscount,profile,tcpretrans,bioperpid
module_failure_fatal = False
[biolatency]
module = biolatency
cluster = 0
[sysfork]
module = sysfork
cluster = 2
[tcplife]
module = tcplife
cluster = 3
session_count = 3
[exectop]
module = exectop
cluster = 13
[profile]
module = profile
cluster = 14
[syscount]
module = syscount
cluster = 15
[netproc]
module = netproc
cluster = 40
[tcpretrans]
module = tcpretrans
cluster = 9
[bioperpid]
module = bioperpid
cluster = 1
";

/// Facts about a product as [`Product::started`] makes it.
pub fn facts() -> Facts {
    let pmid = |cluster, item| Pmid::new(BCC, cluster, item);
    Facts {
        domain: BCC,
        root: "bcc",
        inner: "bcc.proc",
        leaf: "bcc.proc.sysfork",
        single: FORKS,
        many: pmid(0, 0),
        indom: LATENCY,
        instances: &[(0, "0-1"), (1, "2-3"), (2, "4-7"), (3, "8-15")],
        missing: 40,
        empty: (pmid(9, 0), Indom::new(BCC, 9)),
        unknown: [pmid(2, 1), pmid(299, 0), pmid(4095, 1023)],
        unknown_indom: Indom::new(BCC, 299),
        store: pmcd::store_block(PROFILE, IN_NULL, 6, b"start\0"),
        refused_store: pmcd::store(pmid(3, 5), 0, 1),
    }
}

/// The agent, with a pmcd and a kernel controlled by the test.
pub struct Product {
    pub pmcd: Pmcd<Registry>,
    kernel: FakeKernel,
    /// The latest answer of a generated conversation.
    reply: Vec<u8>,
}

impl Product {
    /// Makes a loaded product with counts in each module.
    pub fn started() -> Product {
        let product = Product::without(&[]);
        product.count();
        product
    }

    /// Makes a loaded product in which these modules are refused.
    fn without(refused: &'static [&'static str]) -> Product {
        let (mut product, load) = Product::loading(refused);
        drop(load);
        product.wait();
        product
    }

    /// Makes a product that loads until the second value is dropped.
    fn loading(refused: &'static [&'static str]) -> (Product, mpsc::Sender<()>) {
        let config = Config::parse("test.conf", CONFIG.as_bytes());
        let Prepared { settings, enabled, modules, configuration } =
            prepare(&config, "test.conf", survey(&config, MODULES), MODULES);
        assert!(configuration.errors.is_empty(), "{:?}", configuration.errors);
        let kernel = FakeKernel::default();
        let (hold, held) = mpsc::channel();
        let load = {
            let kernel = kernel.clone();
            move || {
                let _ = held.recv(); // ends when it is dropped
                Engine::over(modules, |wanted, constants| kernel.load(refused, wanted, constants))
            }
        };
        let collector = Collector::over(load, AgentStatus::new(configuration, false)).unwrap();
        let tables = enabled.iter().flat_map(EnabledModule::tables).chain(status_tables(&settings.prefix));
        let help = Help::parse(include_str!("../../../help"));
        let registry = Registry::new(BCC, tables, help, None, Box::new(collector));
        (Product { pmcd: Pmcd::with(registry, Options::default()), kernel, reply: Vec::new() }, hold)
    }

    /// Waits until it is loaded.
    fn wait(&mut self) {
        self.eventually(|product| product.pmcd.agent.source_mut().poll().then_some(()));
    }

    /// Sets counts like the programs in the kernel.
    fn count(&self) {
        let kernel = &self.kernel;
        let disk = kernel.row(BIO_ROWS, 0);
        disk.set(bio_row::disk, 1 << 63 | 8 << 32);
        for (bucket, count) in [(0, 7), (1, 20), (3, 5)] {
            disk.set(bio_row::device.then(fine_hist::buckets).nth(Fine::bucket(1000 << bucket)), count);
        }
        kernel.row(FORK_ROWS, 0).set(fork_row::processes, 40);
        kernel.row(FORK_ROWS, 0).set(fork_row::threads, 2);
        for (place, comm) in [&b"bash"[..], b"cron job", b"ls"].into_iter().enumerate() {
            let row = kernel.row(EXEC_ROWS, place);
            row.set_bytes(exec_row::comm, comm);
            row.set(exec_row::claims, 1);
            row.set(exec_row::count, 10 + place as u64);
        }
        kernel.row(SYSCALL_ROWS, 0).write(&[11, 0, 0, 22, 0, 0]); // the first two calls
        let pid = std::process::id();
        kernel.row(THREADS, 9).set(thread::id, u64::from(pid) << 32 | u64::from(pid));
        kernel.row(THREADS, 9).set(thread::claims, 1);
        kernel.row(THREADS, 9).set(thread::born, 1);
        kernel.row(THREAD_NAMES, 9).set_bytes(thread_name::comm, b"own");
        kernel.row(NET_ROWS, 9).write(&[1, 100]);
        for port in [80, 443] {
            self.session(port);
        }
    }

    /// Adds a TCP session that has ended.
    fn session(&self, rport: u16) {
        let mut session = tcp_session { rport, family: 2, lport: 50_000, pid: 4711, tx: 5, ..Default::default() };
        session.comm[..4].copy_from_slice(b"curl");
        self.kernel.record("tcp_sessions", &record_bytes(&session));
    }

    /// Returns the answer, asking again while a module delays it: on a busy machine any may.
    #[track_caller]
    pub fn answer(&mut self, request: &[u8]) -> Vec<u8> {
        let is_late = |reply: &[u8]| match pmcd::frame(reply).ty {
            PduType::RESULT => pmcd::result(reply).iter().any(|set| set.numval == AGAIN),
            _ => reply == pmcd::error(AGAIN),
        };
        self.eventually(|product| Some(product.pmcd.ask(request)).filter(|reply| !is_late(reply)))
    }

    /// Returns the value sets of these metrics from a single fetch.
    #[track_caller]
    fn fetch_now(&mut self, pmids: &[Pmid]) -> Vec<Set> {
        let sets = pmcd::result(&self.pmcd.ask(&pmcd::fetch(pmids)));
        assert_eq!(sets.iter().map(|set| set.pmid).collect::<Vec<_>>(), pmids);
        sets
    }

    /// Repeats `look` until it returns a value.
    #[track_caller]
    fn eventually<T>(&mut self, look: impl Fn(&mut Product) -> Option<T>) -> T {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            assert!(Instant::now() < until, "nothing in {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the 64-bit values of a metric by instance; empty for an error.
    #[track_caller]
    fn numbers(&mut self, pmid: Pmid) -> Vec<(InstId, u64)> {
        let number = |(inst, value): &(InstId, Wire)| match value {
            Wire::Block { bytes, .. } => (*inst, u64::from_be_bytes(bytes[..].try_into().unwrap())),
            Wire::Word(word) => (*inst, u64::from(*word)),
        };
        self.fetch(&[pmid])[0].values.iter().map(number).collect()
    }

    /// Returns the strings of a metric by instance.
    #[track_caller]
    fn strings(&mut self, pmid: Pmid) -> Vec<(InstId, String)> {
        let string = |(inst, value): &(InstId, Wire)| match value {
            Wire::Block { bytes, .. } => (*inst, String::from_utf8(bytes[..bytes.len() - 1].to_vec()).unwrap()),
            Wire::Word(word) => panic!("{word}"),
        };
        self.fetch(&[pmid])[0].values.iter().map(string).collect()
    }

    /// Returns the instances of a domain: all, the one with a number, or the one with a name.
    #[track_caller]
    fn instances(&mut self, indom: Indom, inst: InstId, name: &str) -> Vec<(InstId, String)> {
        let reply = self.answer(&pmcd::instance(indom, inst, name));
        match pmcd::decode(&reply) {
            Pdu::Instance { indom: of, entries } => {
                assert_eq!(of, indom);
                entries.iter().map(|(inst, name)| (*inst, String::from_utf8(name.to_vec()).unwrap())).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    /// Returns the agent's metrics about a module: its state, and the sentence.
    #[track_caller]
    fn state(&mut self, module: &str) -> (String, String) {
        let indom = Indom::new(BCC, 301);
        let inst = self.instances(indom, IN_NULL, module)[0].0;
        let [state, status] = [0, 1].map(|item| {
            let of_all = self.strings(Pmid::new(BCC, 301, item));
            of_all.into_iter().find(|(of, _)| *of == inst).unwrap().1
        });
        (state, status)
    }

    fn store(&mut self, value: &[u8]) -> i32 {
        self.pmcd.error(&pmcd::store_block(PROFILE, IN_NULL, 6, &[value, b"\0"].concat()))
    }
}

impl Drop for Product {
    fn drop(&mut self) {
        self.kernel.calm();
        self.pmcd.agent.source_mut().stop();
    }
}

const BIO_ROWS: Rows<bio_row> = Rows::new("bio_rows");
const FORK_ROWS: Rows<fork_row> = Rows::new("fork_rows");
const EXEC_ROWS: Rows<exec_row> = Rows::new("exec_rows");
const SYSCALL_ROWS: Rows<syscall_row> = Rows::new("syscall_rows");
const THREADS: Rows<thread> = Rows::new("netproc_threads");
const THREAD_NAMES: Rows<thread_name> = Rows::new("netproc_names");
const NET_ROWS: Rows<net_row> = Rows::new("netproc_counts");
