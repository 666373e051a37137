//! Questions to name servers: outcomes and times, by process and by server. Kernel side: bpf/dns.bpf.c.

use super::shared::numbers::Numbers;
use super::shared::places::{ByPlace, Names, PlacedHistograms};
use super::shared::tcp::PACKETS;
use crate::bpf::types::{self, dns_owner, dns_row, dns_waiting, mark, place_owner};
use crate::host::{comm, exists, monotonic};
use crate::kit::*;
use crate::{beyond, maps, options};
use std::collections::HashMap;
use std::time::Duration;

mod answers {
    const NOTE: &str = "Questions of this machine over UDP. Those over TCP, TLS and HTTPS are not seen, nor what a resolver on this machine asks for others by such ways.";
    crate::histograms! {
        "net";
        tables "all questions", "each bucket", 473 474 477, Shape::Single;
        1 "dns" "answers of name servers" "from question to answer" NOTE;
        with QUERIES: u64 = 0 "dns.queries.count" COUNTER COUNT "questions to name servers";
        with ANSWERS: u64 = 1 "dns.answers.count" COUNTER COUNT "questions to name servers that were answered within 5 s";
        with SERVFAIL: u64 = 2 "dns.errors.servfail.count" COUNTER COUNT "answers that the server failed";
        with NXDOMAIN: u64 = 3 "dns.errors.nxdomain.count" COUNTER COUNT "answers that there is no such name";
        with REFUSED: u64 = 4 "dns.errors.refused.count" COUNTER COUNT "answers that the server refuses to answer";
        with OTHER: u64 = 5 "dns.errors.other.count" COUNTER COUNT "answers with other errors";
    }
    use super::*;

    const ROW: SeriesRows<dns_row> = SeriesRows::of_one(ROWS);

    pub static SERIES_OF_ONE: SeriesDef = SeriesDef {
        tables: TABLES,
        histograms: &[ROW.part(dns_row::times)],
        counters: &[
            (QUERIES, ROW.part(dns_row::queries)),
            (ANSWERS, ROW.part(dns_row::answers)),
            (SERVFAIL, ROW.part(dns_row::servfail)),
            (NXDOMAIN, ROW.part(dns_row::nxdomain)),
            (REFUSED, ROW.part(dns_row::refused)),
            (OTHER, ROW.part(dns_row::other)),
        ],
        ..SeriesDef::NEW
    };
}

mod processes {
    use super::*;

    crate::metrics! {
        QUERIES: u64 = 0 "proc.dns.queries" COUNTER COUNT "questions of the process to name servers";
        ANSWERS: u64 = 1 "proc.dns.answers" COUNTER COUNT "questions of the process that were answered within 5 s";
        TIME: u64 = 2 "proc.dns.time" COUNTER NSEC "time from questions of the process to their answers";
        TIMEOUTS: u64 = 3 "proc.dns.timeouts" COUNTER COUNT "questions of the process that nobody answered within 5 s";
        NAME: str = 4 "proc.dns.name" DISCRETE NONE "process, for the variables of a dashboard";
    }

    pub static BY_PROCESS: ByPlace<dns_owner> = ByPlace {
        owners: PROCESSES,
        rows: BY_PID,
        marks: PROCESS_MARKS,
        histograms: &[],
        counters: &[
            (QUERIES, dns_owner::queries),
            (ANSWERS, dns_owner::answers),
            (TIME, dns_owner::ns),
            (TIMEOUTS, dns_owner::timeouts),
        ],
        name: NAME,
        beyond: beyond!("table-full: questions of processes", counted, [dns_owner::queries]),
    };

    pub static TABLE: TableSpec = TableSpec::named("each process that asks", 475, METRICS, 1 << 14);
}

mod servers {
    use super::*;

    crate::metrics! {
        QUERIES: u64 = 0 "net.dns.server.queries" COUNTER COUNT "questions to the name server";
        COUNT: u64 = 1 "net.dns.server.count" COUNTER COUNT "questions that the name server answered within 5 s";
        TIME: u64 = 2 "net.dns.server.time" COUNTER NSEC "time from questions to the answers of the name server";
        TIMEOUTS: u64 = 3 "net.dns.server.timeouts" COUNTER COUNT "questions that the name server did not answer within 5 s";
        NAME: str = 4 "net.dns.server.name" DISCRETE NONE "name server, for the variables of a dashboard";
    }

    pub static BY_SERVER: ByPlace<dns_owner> = ByPlace {
        owners: SERVERS,
        rows: BY_ADDRESS,
        marks: SERVER_MARKS,
        histograms: &[],
        counters: &[
            (QUERIES, dns_owner::queries),
            (COUNT, dns_owner::answers),
            (TIME, dns_owner::ns),
            (TIMEOUTS, dns_owner::timeouts),
        ],
        name: NAME,
        beyond: beyond!("servers-full: questions to servers", counted, [dns_owner::queries]),
    };

    pub static TABLE: TableSpec = TableSpec::named("each name server", 476, METRICS, 1 << 12);
}

mod timeouts {
    use super::*;

    crate::metrics! {
        COUNT: u64 = 0 "net.dns.timeouts.count" COUNTER COUNT "questions to name servers that nobody answered within 5 s";
    }

    pub static TABLE: TableSpec = TableSpec::single("all questions without an answer", 2015, METRICS);

    pub fn read(processes: &PlacedHistograms<dns_owner>, kernel: &dyn Kernel, table: &mut Table) {
        table.single().set(COUNT, processes.sum(kernel, dns_owner::timeouts));
    }
}

maps! {
    rows ROWS: dns_row = "dns_rows";
    rows WAITS: dns_waiting = "dns_waits";
    rows PROCESSES: place_owner = "dns_pids", taken id;
    rows BY_PID: dns_owner = "dns_by_pid", taken used, marked in "dns_pid_marks";
    rows PROCESS_MARKS: mark = "dns_pid_marks";
    rows SERVERS: place_owner = "dns_servers", taken id;
    rows BY_ADDRESS: dns_owner = "dns_by_server", taken used, marked in "dns_srv_marks";
    rows SERVER_MARKS: mark = "dns_srv_marks";
}

options! {
    /// Ports of name servers, at most 4.
    ports: Ports = Ports(vec![53]);
    histograms;
}

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "dns",
    summary: "questions to name servers: outcomes and times, never names",
    overhead: Overhead::low("2 ns per packet that is none, 0.2 us per question"),
    needs: "CONFIG_CGROUP_BPF",
    tables: &[
        &answers::TABLE,
        &answers::BY_BUCKET,
        &processes::TABLE,
        &servers::TABLE,
        &answers::IN_SECONDS,
        &timeouts::TABLE,
    ],
    options: OPTIONS,
    hooks: &[&PACKETS],
    maps: MAPS,
    needs_to_load: &[Need::CgroupPrograms],
    needs_to_run: &[Need::Processes],
    make: |setup| {
        let mut options = Options::read(setup.section)?;
        if options.ports.0.len() > PORTS {
            setup.section.warn(format!("ports has {} ports, of which the first {PORTS} count", options.ports.0.len()));
            options.ports.0.truncate(PORTS);
        }
        if options.ports.0.is_empty() {
            options.ports = Options::default().ports;
        }
        Ok(Box::new(Dns::new(options)))
    },
    ..Spec::NEW
};

/// Number of ports that the programs know (`DNS_PORTS`).
const PORTS: usize = 4;
/// Time after which an answer is none (`DNS_PATIENCE`).
const PATIENCE: Duration = Duration::from_secs(5);
/// Sets of eight questions without an answer.
const WAITING: usize = 512;
/// Number of processes, and of servers, with counters of their own.
const PLACES: usize = 1024;

/// Names of processes by their identifiers.
struct Processes;

impl Names for Processes {
    fn name(&self, id: u64) -> Option<Vec<u8>> {
        Some([format!("{id}::").as_bytes(), &comm(id as u32)?].concat())
    }

    fn is_there(&self, id: u64, _name: &[u8]) -> bool {
        exists(id as u32)
    }

    fn labels(&self, id: u64, name: &[u8]) -> SeriesLabels {
        let name = String::from_utf8_lossy(name);
        let command = name.split_once("::").map_or(&*name, |(_, command)| command);
        vec![("pid", SeriesLabel::Number(id as i64)), ("command", SeriesLabel::Text(command.into()))]
    }
}

struct Dns {
    options: Options,
    answers: NamedHistograms,
    processes: PlacedHistograms<dns_owner>,
    servers: PlacedHistograms<dns_owner>,
    /// Questions that were too old at the last tick, by their places.
    old: HashMap<(usize, usize), (u64, u64)>,
}

impl Dns {
    fn new(options: Options) -> Dns {
        let (window, buckets) = (options.window.window(), options.buckets);
        let answers = NamedHistograms::of_one(&answers::SERIES_OF_ONE, window, buckets);
        let processes = PlacedHistograms::new(&processes::BY_PROCESS, Ok(Processes), window, buckets);
        let servers = PlacedHistograms::new(&servers::BY_SERVER, Ok(Numbers::Servers), window, buckets);
        Dns { options, answers, processes, servers, old: HashMap::new() }
    }

    /// Takes away questions that nobody has answered in time, and counts them. `now` is that of the programs.
    fn expire(&mut self, kernel: &dyn Kernel, now: Duration) {
        let before = std::mem::take(&mut self.old);
        for (place, set) in kernel.rows(WAITS).iter().enumerate() {
            for way in 0..WAYS {
                let key = set.get(dns_waiting::keys.nth(way));
                if key == 0 {
                    continue;
                }
                let since = set.get(dns_waiting::since.nth(way));
                if Duration::from_nanos(since) + PATIENCE >= now {
                    continue;
                }
                // One that is being written has the time of an earlier one for a moment.
                if before.get(&(place, way)) != Some(&(key, since)) {
                    self.old.insert((place, way), (key, since));
                    continue;
                }
                set.set(dns_waiting::keys.nth(way), 0);
                count_timeout(kernel, PROCESSES, BY_PID, set.get(dns_waiting::process.nth(way)));
                count_timeout(kernel, SERVERS, BY_ADDRESS, set.get(dns_waiting::server.nth(way)));
            }
        }
    }

    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        let displaced = kernel.rows(ROWS).sum(dns_row::displaced);
        each("too-many-open: questions that were forgotten because too many had no answer", displaced);
    }
}

/// Number of questions in a set (`SET_WAYS`).
const WAYS: usize = 8;

/// Counts a question without an answer for its owner, whose row no program writes this field of; or for those without a row.
fn count_timeout(kernel: &dyn Kernel, owners: Rows<place_owner>, rows: Rows<dns_owner>, owner: u64) {
    let place = kernel.rows(owners).iter().position(|row| row.get(place_owner::id) == owner);
    if let Some(row) = kernel.rows(rows).get(place.map_or(0, |place| place + 1)) {
        row.set(dns_owner::timeouts, row.get(dns_owner::timeouts) + 1);
    }
}

impl Module for Dns {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        constants.dns_ports.iter_mut().zip(&self.options.ports.0).for_each(|(to, port)| *to = port.to_be());
        constants.dns_waits_mask = WAITING as u32 - 1;
        plan.entries(WAITS.def.name, WAITING);
        plan.entries(ROWS.def.name, host.cpus);
        let one = Host { cpus: 1, ..*host };
        constants.dns_mask = processes::BY_PROCESS.plan(PLACES, &one, plan).mask;
        servers::BY_SERVER.plan(PLACES, &one, plan);
        plan.attach(&PACKETS);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        let prometheus = self.options.prometheus;
        let running =
            NamedHistograms::add_tables(Running::of(*self), &[&answers::SERIES_OF_ONE], prometheus, |module| {
                Some(&mut module.answers)
            });
        let running = PlacedHistograms::add_table(running, &processes::TABLE, |module| Some(&mut module.processes));
        PlacedHistograms::add_table(running, &servers::TABLE, |module| Some(&mut module.servers))
            .table(&timeouts::TABLE, |module, kernel, table| timeouts::read(&module.processes, kernel, table))
            .tick(|module, kernel| module.expire(kernel, monotonic()))
            .losses(Self::losses)
            .started()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::types::fine_hist;

    fn fake() -> Fake {
        let places = Fake::new().with(PROCESSES, 4).with(BY_PID, 5).with(SERVERS, 4).with(BY_ADDRESS, 5);
        places.with(ROWS, 2).with(WAITS, 2).with(PROCESS_MARKS, 5).with(SERVER_MARKS, 5)
    }

    #[test]
    fn answers_and_errors_are_summed_over_cpus() {
        let fake = fake();
        for cpu in 0..2 {
            let row = fake.row(ROWS, cpu);
            row.part(dns_row::times).set(fine_hist::buckets.nth(Fine::bucket(3000)), 5);
            let fields = [
                dns_row::queries,
                dns_row::answers,
                dns_row::servfail,
                dns_row::nxdomain,
                dns_row::refused,
                dns_row::other,
                dns_row::displaced,
            ];
            fields.into_iter().zip(1..).for_each(|(field, value)| row.set(field, value));
        }
        let running = Box::new(Dns::new(Options::default())).start(&fake);
        let table = fake.filled(&answers::TABLE, &running);
        assert_eq!(
            (table.number(0, 0), [7, 8, 9, 10, 11, 12].map(|at| table.number(0, at))),
            (Some(10), [2, 4, 6, 8, 10, 12].map(Some))
        );
        let mut lost = Vec::new();
        running.losses(&fake, &mut |_, count| lost.push(count));
        assert_eq!(lost, [0, 0, 14]);
    }

    #[test]
    fn a_question_that_stays_old_is_a_timeout_of_its_process() {
        const SECOND: u64 = 1_000_000_000;
        let fake = fake();
        let me = u64::from(std::process::id());
        let server = 1 << 40 | 0x0a00_0002;
        fake.set(PROCESSES, 2, place_owner::id, me);
        fake.set(SERVERS, 1, place_owner::id, server);
        let ask = |way: usize, key: u64, since: u64, process: u64| {
            fake.set(WAITS, 1, dns_waiting::keys.nth(way), key);
            fake.set(WAITS, 1, dns_waiting::since.nth(way), since);
            fake.set(WAITS, 1, dns_waiting::process.nth(way), process);
            fake.set(WAITS, 1, dns_waiting::server.nth(way), server);
        };
        ask(0, 7, SECOND, me);
        ask(3, 8, SECOND, 999);
        ask(4, 9, 5 * SECOND, me);
        let mut module = Dns::new(Options::default());
        module.expire(&fake, Duration::from_secs(7));
        // Meanwhile a new question takes the way of an old one.
        ask(3, 10, 7 * SECOND, me);
        module.expire(&fake, Duration::from_secs(8));
        let keys = (0..8).map(|way| fake.row(WAITS, 1).get(dns_waiting::keys.nth(way)));
        assert_eq!(keys.collect::<Vec<_>>(), [0, 0, 0, 10, 9, 0, 0, 0]);
        let running = Box::new(module).start(&fake);
        let table = fake.filled(&processes::TABLE, &running);
        let name = String::from_utf8(comm(me as u32).unwrap()).unwrap();
        assert_eq!((table.names()[0].clone(), table.number(0, 3)), (format!("{me}::{name}"), Some(1)));
        let table = fake.filled(&servers::TABLE, &running);
        assert_eq!((table.names()[0].as_str(), table.number(0, 3)), ("10.0.0.2", Some(1)));
        assert_eq!(fake.filled(&timeouts::TABLE, &running).number(0, 0), Some(1));
    }
}
