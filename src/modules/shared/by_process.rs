//! Counts by process, of the threads that bpf/shared/by_process.bpf.h counts by. Here the threads of a process are added up, and the
//! counts of ended threads are kept and their rows freed.

use super::process_counts::ProcessCounts;
use crate::bpf::types::{self, mark, thread, thread_name, thread_stat};
use crate::host::{cmdline, comm, command_word, exists, until_nul};
use crate::kit::*;
use crate::tracepoint;

/// The hook at which a thread ends, for `Spec::hooks`.
pub static EXIT: Hook = tracepoint!("sched_process_exit");
/// The hook at which a process executes a program, for `Spec::hooks`.
pub static EXEC: Hook = tracepoint!("sched_process_exec");

/// Number of rows that share a mark: 4 KB of the table. Threads that start together are neighbours in it.
const PART: usize = 128;
/// A flag of `thread.state`, set by the program: the thread has ended.
const ENDED: u64 = 1;
/// A flag of `thread.state`, set by the agent: the thread had ended at the last sweep, so its counts are final.
const SEEN: u64 = 1 << 63;

/// Returns the name of a process; `None` once it is gone.
type NameOf = fn(u32) -> Option<Vec<u8>>;

struct Process<const N: usize> {
    /// Name of the instance.
    name: Name,
    /// The command name with which the process was found at the start, before it had a thread in the table.
    found_as: Option<Vec<u8>>,
    /// Number of the process's execs when the name was read, as the kernel counts them.
    execs: u64,
    /// Counts of ended threads.
    past: [u64; N],
    /// Counts of living threads at the last sweep; most processes have none, since those that ended stay for a minute.
    live: Option<Box<[u64; N]>>,
    /// Number of threads in the table at the last sweep.
    threads: u32,
    execs_now: u64,
    /// Row of the table with the command name since the last exec.
    named_at: Option<usize>,
    /// True if the process did not let its command line be read, so that the name is the kernel's.
    is_late: bool,
}

impl<const N: usize> Default for Process<N> {
    fn default() -> Process<N> {
        Process {
            name: Name::default(),
            found_as: None,
            execs: 0,
            past: [0; N],
            live: None,
            threads: 0,
            execs_now: 0,
            named_at: None,
            is_late: false,
        }
    }
}

impl<const N: usize> Process<N> {
    /// True if it has no name, or that of an earlier program.
    fn needs_name(&self) -> bool {
        self.name.is_empty() || self.execs_now > self.execs
    }

    /// Names it after its current program: by its command line if it lives, or else by the kernel's command name.
    fn rename(&mut self, pid: u32, host: &Names, names: RowsView<'_, thread_name>) {
        let row = self.named_at.and_then(|place| names.get(place));
        let comm = row.map_or([0; 16], |row| row.bytes(thread_name::comm));
        let comm = until_nul(&comm);
        self.execs = self.execs_now;
        // A name that was handed out stays until the process executes another program.
        if self.found_as.take().is_none_or(|earlier| earlier != comm) {
            self.name(pid, host, comm);
        }
    }

    /// Names it by its command line, or else by this command name, which is in parentheses if the process lives.
    fn name(&mut self, pid: u32, host: &Names, comm: &[u8]) {
        let line = (host.name_of)(pid);
        self.is_late = line.is_none() && (host.exists)(pid);
        self.name = match (line, self.is_late) {
            (Some(line), _) => instance_name(pid, &[&line, comm]),
            (None, false) => instance_name(pid, &[comm]),
            (None, true) => instance_name(pid, &[&[b"(", command_word(&[comm]), b")"].concat()]),
        };
    }
}

/// Names of processes on this machine.
struct Names {
    name_of: NameOf,
    comm_of: NameOf,
    exists: fn(u32) -> bool,
}

/// Maps of a module that counts by process: those of bpf/shared/by_process.bpf.h, from [`crate::by_process!`].
pub struct ProcessMaps<T> {
    /// Threads that count or did.
    pub threads: Rows<thread>,
    /// Command names of their processes, in rows of the same numbers.
    pub names: Rows<thread_name>,
    /// Parts of the tables that are in use.
    pub marks: Rows<mark>,
    /// Events of threads without a row.
    pub losses: Rows<thread_stat>,
    /// Counters of threads, in rows of the same numbers.
    pub counts: Rows<T>,
}

impl<T> ProcessMaps<T> {
    /// Reports events of threads without a row.
    pub fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        let lost = kernel.rows(self.losses).sum(thread_stat::lost);
        each("table-full: events of threads without a row in the table", lost);
    }
}

/// Declares the maps of a module that counts by process, as `PROCESSES`, with its other maps, as `MAPS`: STEM and COUNTS of its C file,
/// and what [`crate::latest!`] begins with if it has a table of the latest events, too.
///
/// ```text
/// by_process! { "netproc", net_row; private READS: sock_read = "netproc_sock"; }
/// by_process! { "open", open_counts; latest "open", open_event, rows::COLUMNS; }
/// ```
#[macro_export]
macro_rules! by_process {
    ($stem:literal, $row:ty; latest $latest:literal, $event:ty, $columns:expr; $($others:tt)*) => {
        $crate::by_process!(@with latest [$latest, $event, $columns;] $stem, $row; $($others)*);
    };
    ($stem:literal, $row:ty; $($others:tt)*) => {
        $crate::by_process!(@with maps [] $stem, $row; $($others)*);
    };
    (@with $maps:ident [$($first:tt)*] $stem:literal, $row:ty; $($others:tt)*) => {
        use $crate::bpf::types::thread_stat;
        $crate::$maps! {
            $($first)*
            rows THREADS: $crate::bpf::types::thread = concat!($stem, "_threads"), taken claims,
                lost thread_stat.lost in concat!($stem, "_losses"), marked in concat!($stem, "_marks");
            rows NAMES: $crate::bpf::types::thread_name = concat!($stem, "_names"), marked in concat!($stem, "_marks");
            rows MARKS: $crate::bpf::types::mark = concat!($stem, "_marks");
            rows LOSSES: thread_stat = concat!($stem, "_losses");
            rows COUNTS: $row = concat!($stem, "_counts"), marked in concat!($stem, "_marks");
            $($others)*
        }
        static PROCESSES: $crate::modules::shared::by_process::ProcessMaps<$row> =
            $crate::modules::shared::by_process::ProcessMaps {
                threads: THREADS,
                names: NAMES,
                marks: MARKS,
                losses: LOSSES,
                counts: COUNTS,
            };
    };
}

/// Counts by process. `T` is the row of a thread's counters, of `N` words, which are the first metrics of the table in their order.
pub struct ByProcess<T: 'static, const N: usize> {
    maps: &'static ProcessMaps<T>,
    /// True if processes stay in the table after their end.
    stay: bool,
    names: Names,
    /// Processes to begin with, at zero.
    listed: Vec<u32>,
    processes: ProcessCounts<Process<N>>,
    /// Index in `processes` for each row of the threads.
    hints: Vec<u32>,
    ticks: u64,
    begun: bool,
    /// True if the threads were added up but the processes not yet named accordingly.
    is_added_up: bool,
    lost: u64,
    claims: OwnedTable<thread>,
}

impl<T: 'static, const N: usize> ByProcess<T, N> {
    /// Makes it. Unless they are to `stay`, ended processes are dropped a minute after their last count.
    pub fn new(maps: &'static ProcessMaps<T>, stay: bool) -> Self {
        ByProcess {
            maps,
            stay,
            names: Names { name_of: cmdline, comm_of: comm, exists },
            listed: Vec::new(),
            processes: ProcessCounts::default(),
            hints: Vec::new(),
            ticks: 0,
            begun: false,
            is_added_up: false,
            lost: 0,
            claims: OwnedTable::new(thread::id, thread::claims),
        }
    }

    /// Plans the maps and attaches the hooks of the module.
    pub fn plan(&self, spec: &Spec, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        spec.hooks.iter().for_each(|hook| plan.attach(hook));
        self.plan_maps(host, plan, constants);
    }

    /// Sizes the maps; the module attaches its hooks itself.
    pub fn plan_maps(&self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        // At least so many that 5000 threads can come and go before the agent frees the places of the first.
        let places = table_size(host.threads * 4, 8192, 1 << 16);
        constants.thread_mask = places as u32 / 4 - 1;
        constants.thread_part_shift = PART.ilog2();
        let ProcessMaps { threads, names, marks, losses, counts } = self.maps;
        for (map, entries) in [
            (threads.def.name, places),
            (names.def.name, places),
            (counts.def.name, places),
            (marks.def.name, places / PART),
            (losses.def.name, host.cpus),
        ] {
            plan.entries(map, entries);
        }
    }

    /// Begins with these processes at zero, at the first fetch or a second after the start: pmlogconf(1) logs metrics only on machines
    /// where they have values.
    pub fn begin_with(&mut self, processes: Vec<u32>) {
        self.listed = processes;
    }

    /// Adds the table, the work of each second, and the events of threads without a row.
    pub fn add_table<M: Send + 'static>(
        running: Starting<M>,
        table: &'static TableSpec,
        of: fn(&mut M) -> &mut Self,
    ) -> Starting<M> {
        running
            .table_at_once_if(
                table,
                move |module, kernel, table| of(module).refresh_at_once(kernel, table),
                move |module, kernel, table| of(module).refresh(kernel, table),
            )
            .tick(move |module, kernel| of(module).tick(kernel))
            .losses_of_part(move |module, kernel, each| of(module).maps.losses(kernel, each))
    }

    /// Adds the listed processes, without waiting for their names.
    fn begin(&mut self) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        for pid in std::mem::take(&mut self.listed) {
            let Some(comm) = (self.names.comm_of)(pid).filter(|_| (self.names.exists)(pid)) else { continue };
            if let Some(process) = self.processes.of(pid, 0) {
                process.name(pid, &self.names, &comm);
                process.found_as = Some(comm);
            }
        }
    }

    /// Adds up the threads, keeps the counts of those that ended, and names processes without a current name.
    fn sweep(&mut self, kernel: &dyn Kernel) {
        if !std::mem::take(&mut self.is_added_up) {
            self.add_up(kernel);
        }
        for (pid, process) in self.processes.iter_mut().filter(|(_, process)| process.needs_name()) {
            process.rename(pid, &self.names, kernel.rows(self.maps.names));
        }
    }

    fn add_up(&mut self, kernel: &dyn Kernel) {
        for (_, process) in self.processes.iter_mut() {
            (process.threads, process.execs_now, process.named_at) = (0, 0, None);
            process.live.iter_mut().for_each(|live| live.fill(0));
        }
        let (threads, counts) = (kernel.rows(self.maps.threads), kernel.rows(self.maps.counts));
        self.hints.resize(threads.len(), 0);
        for ((place, thread), hint) in threads.iter().enumerate().zip(&mut self.hints) {
            let id = thread.get(thread::id);
            if id == 0 {
                continue;
            }
            let Some(row) = counts.get(place) else { continue };
            let born = thread.get(thread::born);
            let state = thread.get(thread::state);
            let process = self.processes.of_at(hint, (id >> 32) as u32, born);
            let cells = row.all();
            if state & (ENDED | SEEN) == ENDED | SEEN {
                if let Some(process) = process {
                    add(&mut process.past, cells);
                }
                row.clear();
                self.claims.release(thread);
                continue;
            }
            if state & ENDED != 0 {
                thread.set(thread::state, state | SEEN);
            }
            let Some(process) = process else { continue };
            add(process.live.get_or_insert_with(|| Box::new([0; N])).as_mut_slice(), cells);
            process.threads += 1;
            let execs = (state & !SEEN) >> 1;
            if process.named_at.is_none() || execs > process.execs_now {
                (process.execs_now, process.named_at) = (execs, Some(place));
            }
        }
        self.processes
            .iter_mut()
            .filter(|(_, process)| process.threads == 0)
            .for_each(|(_, process)| process.live = None);
    }

    fn fill(&self, table: &mut Table) {
        for (pid, process) in self.processes.iter() {
            let mut cells = process.past;
            add(&mut cells, process.live.iter().flat_map(|live| **live));
            table.process_named(pid, &process.name).numbers(&cells);
        }
    }

    fn refresh(&mut self, kernel: &dyn Kernel, table: &mut Table) {
        self.begin();
        self.sweep(kernel);
        self.fill(table);
    }

    /// Fills the table unless names have to be read from /proc, where another process can make the reader wait.
    fn refresh_at_once(&mut self, kernel: &dyn Kernel, table: &mut Table) -> bool {
        if !self.begun || self.is_added_up {
            return false;
        }
        self.add_up(kernel);
        // The next look gives back the places that have the names of what ended: what is without a name gets it before.
        self.is_added_up = self.processes.iter().any(|(_, process)| process.needs_name());
        if !self.is_added_up {
            self.fill(table);
        }
        !self.is_added_up
    }

    /// Takes over what has ended, and names what needs a name. To be called once a second.
    pub fn tick(&mut self, kernel: &dyn Kernel) {
        self.ticks += 1;
        if self.ticks > 1 {
            self.begin();
        }
        self.sweep(kernel);
        for (pid, process) in self.processes.iter_mut().filter(|(_, process)| process.is_late) {
            if let Some(comm) = (self.names.comm_of)(pid) {
                process.name(pid, &self.names, &comm);
            }
        }
        let exists = self.names.exists;
        self.processes.tick(
            self.stay,
            |pid, process| process.threads == 0 && !exists(pid),
            |process| {
                let live = process.live.iter().flat_map(|live| live.iter());
                process.past.iter().chain(live).fold(0, |sum, cell| sum.wrapping_add(*cell))
            },
        );
        self.claims.release_contested(kernel.rows(self.maps.threads).iter().enumerate());
        let lost = kernel.rows(self.maps.losses).sum(thread_stat::lost);
        if lost > self.lost {
            self.lost = lost;
            reclaim(kernel.rows(self.maps.threads));
        }
    }
}

fn add(sums: &mut [u64], cells: impl Iterator<Item = u64>) {
    for (sum, cell) in sums.iter_mut().zip(cells) {
        *sum += cell;
    }
}

/// Marks threads whose end no program saw, once the table is crowded.
fn reclaim(threads: RowsView<'_, thread>) {
    for thread in threads.iter() {
        let id = thread.get(thread::id);
        if id != 0 && !exists(id as u32) {
            let state = thread.get(thread::state);
            thread.set(thread::state, state | ENDED);
        }
    }
}

/// Makes the name of an instance: the process identifier with at least six digits, and the first of the names that is not empty, up
/// to its first blank.
fn instance_name(pid: u32, names: &[&[u8]]) -> Name {
    Name::new(&[format!("{pid:06} ").as_bytes(), command_word(names)].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::types::net_row;

    crate::by_process! { "netproc", net_row; }

    static TABLE: TableSpec = TableSpec { cluster: 40, shape: Shape::Pids, metrics: METRICS, ..TableSpec::NEW };
    crate::metrics! {
        _: u64 = 0 "calls" COUNTER COUNT "calls";
        _: u64 = 1 "bytes" COUNTER BYTE "bytes";
    }

    type Counts = ByProcess<net_row, 8>;

    #[test]
    fn every_map_bears_the_name_of_the_module() {
        assert_eq!(MAPS.len(), 5);
        assert!(MAPS.iter().all(|map| map.name.starts_with("netproc_")));
    }

    /// Column of proc.net.tcp.send.bytes.
    const TCP_SEND_BYTES: usize = 1;

    const PLACES: usize = 16;

    fn fake() -> Fake {
        Fake::new().with(THREADS, PLACES).with(NAMES, PLACES).with(COUNTS, PLACES).with(LOSSES, 1)
    }

    fn thread(fake: &Fake, place: usize, pid: u64, tid: u64, born: u64, sent: u64) {
        fake.set(THREADS, place, thread::id, pid << 32 | tid);
        fake.set(THREADS, place, thread::claims, 1);
        fake.set(THREADS, place, thread::born, born);
        fake.row(COUNTS, place).write(&[1, sent]);
    }

    fn named(fake: &Fake, place: usize, comm: &[u8; 8], execs: u64) {
        fake.row(NAMES, place).set_bytes(thread_name::comm, comm);
        fake.set(THREADS, place, thread::state, execs << 1);
    }

    fn ended(fake: &Fake, place: usize) {
        fake.set(THREADS, place, thread::state, ENDED);
    }

    /// Makes a module on a machine on which the processes below 1000 live.
    fn module() -> Counts {
        named_by(false, |pid| (pid < 1000).then(|| b"/usr/bin/curl -s x".to_vec()))
    }

    fn named_by(stay: bool, name_of: NameOf) -> Counts {
        let mut module = Counts::new(&PROCESSES, stay);
        module.names.name_of = name_of;
        module.names.exists = |pid| pid < 1000;
        module
    }

    fn sent(module: &mut Counts, fake: &Fake) -> Vec<(String, Option<u64>)> {
        let table = fake.filled_by(&TABLE, |kernel, table| module.refresh(kernel, table));
        (0..table.len()).map(|row| (table.name(row), table.number(row, TCP_SEND_BYTES))).collect()
    }

    #[test]
    fn all_threads_count_for_their_process() {
        let fake = fake();
        thread(&fake, 3, 77, 77, 1, 100);
        thread(&fake, 9, 77, 80, 1, 20);
        assert_eq!(sent(&mut module(), &fake), [("000077 /usr/bin/curl".into(), Some(120))]);
    }

    #[test]
    fn what_needs_no_name_is_filled_at_once() {
        let fake = fake();
        let (mut module, mut table) = (module(), Table::of(&TABLE));
        let mut at_once = |module: &mut Counts| module.refresh_at_once(&fake, &mut table);
        assert!(!at_once(&mut module), "nothing is listed yet");
        sent(&mut module, &fake);
        thread(&fake, 3, 1001, 1001, 1, 100);
        named(&fake, 3, b"short\0\0\0", 0);
        ended(&fake, 3);
        assert!(!at_once(&mut module), "a process to be named");
        assert_eq!(sent(&mut module, &fake), [("001001 short".into(), Some(100))]);
        assert!(at_once(&mut module));
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn counts_of_an_ended_thread_stay_and_its_place_is_freed() {
        let fake = fake();
        let mut module = module();
        thread(&fake, 3, 77, 77, 1, 100);
        thread(&fake, 9, 77, 80, 1, 20);
        ended(&fake, 9);
        for _ in 0..3 {
            assert_eq!(sent(&mut module, &fake)[0].1, Some(120));
        }
        let kernel: &dyn Kernel = &fake;
        let place = kernel.rows(THREADS).get(9).expect("the map has it");
        assert_eq!((place.get(thread::id), place.get(thread::claims)), (0, 0));
    }

    #[test]
    fn a_process_that_ended_between_fetches_stays_a_minute() {
        let fake = fake();
        let mut module = module();
        thread(&fake, 3, 1001, 1001, 1, 50);
        named(&fake, 3, b"curl\0\0\0\0", 0);
        ended(&fake, 3);
        for _ in 0..ProcessCounts::<Process<8>>::GRACE {
            module.tick(&fake);
            assert_eq!(sent(&mut module, &fake), [("001001 curl".into(), Some(50))]);
        }
        module.tick(&fake);
        module.tick(&fake);
        assert!(sent(&mut module, &fake).is_empty());
    }

    #[test]
    fn processes_that_ended_stay_where_that_is_asked_for() {
        let fake = fake();
        let mut module = named_by(true, |_| None);
        thread(&fake, 3, 1001, 1001, 1, 50);
        named(&fake, 3, b"curl\0\0\0\0", 0);
        ended(&fake, 3);
        (0..3 * ProcessCounts::<Process<8>>::GRACE).for_each(|_| module.tick(&fake));
        assert_eq!(sent(&mut module, &fake), [("001001 curl".into(), Some(50))]);
    }

    #[test]
    fn a_name_is_the_bytes_of_the_command_line_whatever_they_are() {
        let fake = fake();
        let mut module = named_by(false, |_| Some(b"/opt/caf\xc3 x".to_vec()));
        thread(&fake, 3, 77, 77, 1, 100);
        thread(&fake, 4, 78, 78, 1, 200);
        for _ in 0..2 {
            let values: Vec<_> = sent(&mut module, &fake).into_iter().map(|(_, value)| value).collect();
            assert_eq!(values, [Some(100), Some(200)]);
        }
        let table = fake.filled_by(&TABLE, |kernel, table| module.refresh(kernel, table));
        let Key::Pid(77, name) = &table.keys()[0] else { panic!("{:?}", table.keys()) };
        assert_eq!(table.text(name), br"000077 /opt/caf\xc3");
    }

    #[test]
    fn a_process_id_used_again_starts_at_zero() {
        let fake = fake();
        let mut module = module();
        thread(&fake, 3, 77, 77, 1, 100);
        sent(&mut module, &fake);
        thread(&fake, 3, 77, 77, 2, 7);
        assert_eq!(sent(&mut module, &fake)[0].1, Some(7));
    }

    #[test]
    fn an_exec_renews_the_name() {
        let fake = fake();
        let mut module = named_by(false, |_| Some(b"sh".to_vec()));
        thread(&fake, 3, 77, 77, 1, 1);
        assert_eq!(sent(&mut module, &fake)[0].0, "000077 sh");
        module.names.name_of = |_| Some(b"curl".to_vec());
        assert_eq!(sent(&mut module, &fake)[0].0, "000077 sh");
        fake.set(THREADS, 3, thread::state, 2);
        assert_eq!(sent(&mut module, &fake)[0].0, "000077 curl");
    }

    #[test]
    fn what_cannot_be_named_has_the_kernels_name_until_it_can() {
        let fake = fake();
        let mut module = named_by(false, |_| None);
        module.names.comm_of = |pid| Some(if pid == 78 { b"Web Content".to_vec() } else { b"curl".to_vec() });
        module.listed = vec![78, 1001];
        thread(&fake, 3, 77, 77, 1, 100);
        named(&fake, 3, b"curl\0\0\0\0", 0);
        let names = |module: &mut Counts| sent(module, &fake).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        for _ in 0..2 {
            module.tick(&fake);
            assert_eq!(names(&mut module), ["000077 (curl)", "000078 (Web)"]);
        }
        module.names.name_of = |pid| (pid < 1000).then(|| b"/bin/now -x".to_vec());
        assert_eq!(names(&mut module)[0], "000077 (curl)", "a fetch does not try again");
        module.tick(&fake);
        module.names.name_of = |_| Some(b"later".to_vec());
        module.tick(&fake);
        assert_eq!(names(&mut module), ["000077 /bin/now", "000078 /bin/now"]);
    }

    #[test]
    fn no_command_line_is_read_each_second() {
        static READS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let read = |_| {
            READS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Some(b"curl".to_vec())
        };
        let fake = fake();
        let mut module = named_by(false, read);
        module.names.comm_of = |_| Some(b"curl".to_vec());
        module.listed = vec![77];
        (0..5).for_each(|_| module.tick(&fake));
        assert_eq!(READS.load(std::sync::atomic::Ordering::Relaxed), 1);
    }

    #[test]
    fn a_process_that_is_gone_has_the_name_of_its_latest_program() {
        let fake = fake();
        let mut module = module();
        thread(&fake, 3, 1001, 1001, 1, 1);
        named(&fake, 3, b"sh\0\0\0\0\0\0", 4);
        thread(&fake, 5, 1001, 1002, 1, 1);
        named(&fake, 5, b"curl\0\0\0\0", 5);
        thread(&fake, 7, 1001, 1003, 1, 1);
        named(&fake, 7, b"sh\0\0\0\0\0\0", 4);
        thread(&fake, 9, 1004, 1004, 1, 1);
        let names = |module: &mut Counts| sent(module, &fake).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(&mut module), ["001001 curl", "001004 (unknown)"]);
        named(&fake, 7, b"renamed\0", 4);
        assert_eq!(names(&mut module), ["001001 curl", "001004 (unknown)"], "without an exec");
        named(&fake, 3, b"wget\0\0\0\0", 6);
        assert_eq!(names(&mut module)[0], "001001 wget");
    }

    /// A process found at the start whose traffic begins later: the command name tells whether it has executed another program since.
    #[test]
    fn a_name_handed_out_stays_until_the_process_executes_a_program() {
        for (comm, living, then) in [
            (b"nginx\0\0\0", Some("nginx: worker"), "000077 /usr/sbin/nginx"),
            (b"nginx\0\0\0", None, "000077 /usr/sbin/nginx"),
            (b"curl\0\0\0\0", Some("/bin/curl x"), "000077 /bin/curl"),
            (b"curl\0\0\0\0", None, "000077 curl"),
        ] {
            let fake = fake();
            let mut module = module();
            module.listed = vec![77, 1001];
            module.names.name_of = |pid| (pid == 77).then(|| b"/usr/sbin/nginx -g".to_vec());
            module.names.comm_of = |_| Some(b"nginx".to_vec());
            assert_eq!(sent(&mut module, &fake), [("000077 /usr/sbin/nginx".into(), Some(0))]);
            module.names.name_of = match living {
                Some("nginx: worker") => |_| Some(b"nginx: worker".to_vec()),
                Some(_) => |_| Some(b"/bin/curl x".to_vec()),
                None => |_| None,
            };
            module.names.exists = if living.is_some() { |_| true } else { |_| false };
            thread(&fake, 3, 77, 77, 1000, 100);
            named(&fake, 3, comm, 9);
            assert_eq!(sent(&mut module, &fake), [(then.into(), Some(100))], "{living:?}");
        }
    }

    #[test]
    fn a_process_that_ended_without_traffic_since_long_goes_at_once() {
        let fake = fake();
        let mut module = module();
        thread(&fake, 3, 1001, 1001, 1, 50);
        named(&fake, 3, b"curl\0\0\0\0", 0);
        (0..ProcessCounts::<Process<8>>::GRACE).for_each(|_| module.tick(&fake));
        assert_eq!(sent(&mut module, &fake).len(), 1, "it lives");
        ended(&fake, 3);
        let mut stayed = 0;
        while !sent(&mut module, &fake).is_empty() {
            module.tick(&fake);
            stayed += 1;
        }
        assert!(
            (ProcessCounts::<Process<8>>::LINGER..ProcessCounts::<Process<8>>::LINGER + 3).contains(&stayed),
            "{stayed} seconds"
        );
    }

    #[test]
    fn listed_processes_begin_at_zero() {
        let fake = fake();
        let mut module = module();
        module.begin_with(vec![77]);
        module.names.comm_of = |_| Some(b"curl".to_vec());
        module.tick(&fake);
        assert_eq!(sent(&mut module, &fake), [("000077 /usr/bin/curl".into(), Some(0))]);
        thread(&fake, 3, 77, 77, 1, 100);
        assert_eq!(sent(&mut module, &fake), [("000077 /usr/bin/curl".into(), Some(100))]);
    }

    #[test]
    fn every_metric_has_a_value_for_every_process() {
        let fake = fake();
        thread(&fake, 0, 5, 5, 1, 1);
        let table = fake.filled_by(&TABLE, |kernel, table| module().refresh(kernel, table));
        assert!((0..METRICS.len()).all(|column| table.value(0, column).is_some()));
    }
}
