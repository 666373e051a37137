//! The latest execs, with their arguments. Kernel side: bpf/execsnoop.bpf.c, one ring record per exec.

use super::shared::latest::{Columns, Latest};
use crate::bpf::{record, types, types::exec_event};
use crate::host::{until_nul, Cgroups, Controller};
use crate::kit::*;
use crate::{latest, metrics, options, tracepoint};

metrics! {
    COMM: str = 0 "proc.exec.comm" INSTANT NONE "command name after the exec";
    PID: u32 = 1 "proc.exec.pid" INSTANT NONE "process id";
    PPID: u32 = 2 "proc.exec.ppid" INSTANT NONE "process id of the parent";
    RET: i32 = 3 "proc.exec.ret" INSTANT NONE "result of the exec: 0 or a negative error number";
    ARGS: str = 4 "proc.exec.args" INSTANT NONE "path and arguments";
}

/// The same with all that pmdabpf has, in one instance domain.
mod rows {
    use super::*;

    metrics! {
        COMM: str = 0 "proc.execs.comm" | "bpf.execsnoop.comm" INSTANT NONE "command name after the exec";
        PID: u32 = 1 "proc.execs.pid" | "bpf.execsnoop.pid" INSTANT NONE "process id";
        PPID: u32 = 2 "proc.execs.ppid" | "bpf.execsnoop.ppid" INSTANT NONE "process id of the parent";
        RET: i32 = 3 "proc.execs.ret" | "bpf.execsnoop.ret" INSTANT NONE "result of the exec: 0 or a negative error number";
        ARGS: str = 4 "proc.execs.args" | "bpf.execsnoop.args" INSTANT NONE "path and arguments";
        UID: u32 = 5 "proc.execs.uid" | "bpf.execsnoop.uid" INSTANT NONE "user that executed the program";
        TIME: u64 = 6 "proc.execs.time" INSTANT MSEC "when the program was executed, since 1970";
        SEQ: u64 = 7 "proc.execs.seq" INSTANT NONE "number of the row, which tells a new row from one that moved";
        CGROUP_PATH: str = 8 "proc.execs.cgroup_path" INSTANT NONE "path of the cgroup of the process, in cgroup v2";
    }

    pub static TABLE: TableSpec =
        TableSpec::latest("the latest execs, as pmdabpf has them", 312, METRICS).with_options(&["bpf_names"]);

    pub const COLUMNS: Columns = Columns { time: TIME, seq: SEQ, cgroup_path: CGROUP_PATH };

    pub fn put(row: RowMut<'_>, Exec { event, args }: &Exec) {
        row.text(COMM, until_nul(&event.comm))
            .set(PID, event.pid)
            .set(PPID, event.ppid)
            .set(RET, event.ret)
            .text(ARGS, args)
            .set(UID, event.uid);
    }
}

mod counts {
    use super::*;

    metrics! {
        LOST: u64 = 0 "proc.execs.lost.count" | "bpf.execsnoop.lost" COUNTER COUNT "execs that got no row";
    }

    pub static TABLE: TableSpec =
        TableSpec::single("execs that got no row", 2006, METRICS).with_options(&["bpf_names"]);

    pub fn fill(module: &mut Execsnoop, kernel: &dyn Kernel, table: &mut Table) {
        table.single().set(LOST, module.latest.lost(kernel));
    }
}

latest! { "exec", exec_event, rows::COLUMNS; }

options! {
    /// Include execs that failed. This costs every process 70 ns per system call, and needs CONFIG_FTRACE_SYSCALLS.
    include_failed: bool = false;
    /// Only execs whose command name matches.
    command: Pattern = Pattern::default();
    /// Only execs whose path and arguments match.
    args: Pattern = Pattern::default();
    /// Arguments to show, the path first; `...` are others. With `show_arguments = False` in `[pmda]`, the path only.
    max_args: Count = Count(20);
    /// Rows to show.
    process_count: RowCount = RowCount(20);
    /// Size of the ring buffer in pages. Sizes below 16 count as 16.
    buffer_page_count: Pages = Pages(64);
    bpf_names;
}

static EXEC: Hook = tracepoint!("sched_process_exec");
static RETURN: Hook = tracepoint!("sys_exit", "a kernel with BTF and CONFIG_FTRACE_SYSCALLS");

static TABLE: TableSpec = TableSpec::latest("", 8, METRICS);

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "execsnoop",
    summary: "new programs with their arguments",
    overhead: Overhead::low("1.1 us per exec"),
    tables: &[&TABLE, &rows::TABLE, &counts::TABLE],
    options: OPTIONS,
    hooks: &[&EXEC, &RETURN],
    maps: MAPS,
    make: |setup| Ok(Box::new(Execsnoop::new(Options::read(setup.section)?, setup.show_arguments))),
    ..Spec::NEW
};

/// Smallest ring in pages: a smaller one could not hold a few long command lines.
const LEAST_PAGES: Pages = Pages(16);

struct Exec {
    event: exec_event,
    args: Vec<u8>,
}

struct Execsnoop {
    options: Options,
    /// True if arguments are shown; patterns are matched against them in any case.
    shows_arguments: bool,
    latest: Latest<Exec>,
}

impl Execsnoop {
    fn new(options: Options, shows_arguments: bool) -> Execsnoop {
        let pages = Pages(options.buffer_page_count.0.max(LEAST_PAGES.0));
        let latest = Latest::new(&LATEST, options.process_count, pages, Cgroups::of(Controller::Unified).ok());
        Execsnoop { options, shows_arguments, latest }
    }

    fn drain(&mut self, kernel: &dyn Kernel) {
        let Execsnoop { options, shows_arguments, latest } = self;
        latest.drain(kernel, |bytes| {
            let event = record::<exec_event>(bytes)?;
            let block = bytes.get(size_of::<exec_event>()..).unwrap_or_default();
            let block = block.get(..event.length as usize).unwrap_or_default();
            let args = arguments(&event, block, options.max_args.0 as usize);
            if !options.command.matches(until_nul(&event.comm)) || !options.args.matches(&args) {
                return None;
            }
            let args = if *shows_arguments { args } else { arguments(&event, block, 1) };
            Some(Exec { event, args })
        });
    }
}

/// Returns the path, then the arguments from the second on, as the caller gave them: without an interpreter and its arguments, which
/// the kernel puts in front of the path (fs/binfmt_script.c).
fn arguments(event: &exec_event, block: &[u8], most: usize) -> Vec<u8> {
    let path = until_nul(&event.path);
    let block = block.strip_suffix(b"\0").unwrap_or(block);
    let all: Vec<&[u8]> = if block.is_empty() { Vec::new() } else { block.split(|&byte| byte == 0).collect() };
    let own = match all.iter().position(|arg| *arg == path) {
        Some(place) if event.interpreted != 0 => place,
        _ => 0,
    };
    let rest = all.get(own + 1..).unwrap_or_default();
    let shown = &rest[..rest.len().min(most.saturating_sub(1))];
    let mut text = Vec::new();
    for (place, word) in std::iter::once(&path).chain(shown).enumerate() {
        text.extend((place > 0).then_some(b' '));
        text.extend_from_slice(&escaped(word));
    }
    if shown.len() < rest.len() || event.cut != 0 {
        text.extend_from_slice(b" ...");
    }
    text
}

impl Module for Execsnoop {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        constants.exec_ring = self.latest.plan(host, plan);
        constants.snoop_failed = self.options.include_failed;
        plan.attach(&EXEC);
        if self.options.include_failed {
            plan.attach(&RETURN);
        }
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        let bpf_names = self.options.bpf_names;
        Running::of(*self)
            .table(&TABLE, |module, kernel, table| {
                module.drain(kernel);
                module.latest.each(table, |row, exec| {
                    row.text(COMM, until_nul(&exec.event.comm))
                        .set(PID, exec.event.pid)
                        .set(PPID, exec.event.ppid)
                        .set(RET, exec.event.ret)
                        .text(ARGS, &exec.args);
                });
            })
            .when(bpf_names, |running| {
                let running = running.table(&rows::TABLE, |module, kernel, table| {
                    module.drain(kernel);
                    module.latest.fill(table, rows::put);
                });
                running.quick(&counts::TABLE, counts::fill)
            })
            .tick(Self::drain)
            .events(|module| module.latest.events())
            .losses(|module, kernel, each| module.latest.losses(kernel, each))
            .started()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::record_bytes;
    use crate::bpf::types::latest_stat;
    use crate::config::Config;
    use crate::pcp::Atom;

    fn exec(pid: u32, path: &str, block: &[u8]) -> (exec_event, Vec<u8>) {
        let mut event = exec_event { pid, ppid: 1, length: block.len() as u32, ..exec_event::default() };
        event.path[..path.len()].copy_from_slice(path.as_bytes());
        let comm = path.rsplit('/').next().unwrap_or_default();
        event.comm[..comm.len()].copy_from_slice(comm.as_bytes());
        (event, block.to_vec())
    }

    fn send(fake: &Fake, (event, block): (exec_event, Vec<u8>)) {
        let mut bytes = record_bytes(&event);
        bytes.extend(block);
        bytes.resize(bytes.len() + 16, 0xff);
        fake.record(&bytes);
    }

    fn module(options: &str) -> Execsnoop {
        let config = Config::parse("t.conf", format!("[execsnoop]\n{options}\n").as_bytes()).unwrap();
        Execsnoop::new(Options::read(&config.section("execsnoop").unwrap()).unwrap(), true)
    }

    fn start(module: Execsnoop) -> Running {
        Box::new(module).start(&Fake::new())
    }

    fn shown(options: &str, event: (exec_event, Vec<u8>)) -> Option<String> {
        shown_by(module(options), event)
    }

    fn shown_by(module: Execsnoop, event: (exec_event, Vec<u8>)) -> Option<String> {
        let fake = Fake::new();
        send(&fake, event);
        let table = fake.filled(&TABLE, &start(module));
        match table.value(0, ARGS.column) {
            Some(Atom::Str(text)) => Some(String::from_utf8_lossy(text).into_owned()),
            _ => None,
        }
    }

    #[test]
    fn the_latest_exec_is_row_0_and_the_rows_are_bounded() {
        let fake = Fake::new();
        for pid in 1..=5 {
            send(&fake, exec(pid, "/bin/ls", b"ls\0-l\0"));
        }
        let module = start(module("process_count = 3"));
        let table = fake.filled(&TABLE, &module);
        assert_eq!((table.len(), module.events()), (3, Some(5)));
        assert_eq!(table.value(0, PID.column), Some(Atom::U32(5)));
        assert_eq!(table.value(2, PID.column), Some(Atom::U32(3)));
        assert_eq!(table.value(0, COMM.column), Some(Atom::Str(b"ls")));
        assert_eq!(table.value(0, RET.column), Some(Atom::I32(0)));
        assert_eq!(table.value(0, ARGS.column), Some(Atom::Str(b"/bin/ls -l")));
    }

    #[test]
    fn both_tables_have_the_same_rows() {
        let fake = Fake::new();
        for pid in 1..=3 {
            let (event, args) = exec(pid, "/bin/ls", b"ls\0-l\0");
            send(&fake, (exec_event { uid: 1000, ..event }, args));
        }
        let module = start(module("process_count = 2\nbpf_names = True"));
        let (ours, pmdabpfs) = (fake.filled(&TABLE, &module), fake.filled(&rows::TABLE, &module));
        for row in 0..2 {
            let cells = |table: &Table| [0, 1, 2, 3, 4].map(|column| format!("{:?}", table.value(row, column)));
            assert_eq!(cells(&ours), cells(&pmdabpfs));
        }
        assert_eq!([5, 7].map(|column| pmdabpfs.value(0, column)), [Atom::U32(1000), Atom::U64(3)].map(Some));
        let fake = Fake::new().with(LOST, 1);
        fake.set(LOST, 0, latest_stat::full, 5);
        assert_eq!(fake.filled(&counts::TABLE, &module).number(0, 0), Some(5));
    }

    #[test]
    fn a_second_fetch_shows_the_same_rows() {
        let fake = Fake::new();
        send(&fake, exec(7, "/bin/ls", b"ls\0"));
        let module = start(module(""));
        for _ in 0..2 {
            let table = fake.filled(&TABLE, &module);
            assert_eq!(table.value(0, PID.column), Some(Atom::U32(7)));
        }
    }

    #[test]
    fn the_interpreter_of_a_script_is_left_out() {
        let mut script = exec(1, "./run", b"/usr/bin/perl\0-w\0./run\0a\0b\0");
        script.0.interpreted = 1;
        assert_eq!(shown("", script).unwrap(), "./run a b");
        let mut lost = exec(1, "./run", b"x\0a\0");
        lost.0.interpreted = 1;
        assert_eq!(shown("", lost).unwrap(), "./run a");
    }

    #[test]
    fn dots_follow_only_when_arguments_were_left_out() {
        let three = || exec(1, "/bin/ls", b"ls\0a\0b\0");
        assert_eq!(shown("max_args = 3", three()).unwrap(), "/bin/ls a b");
        assert_eq!(shown("max_args = 2", three()).unwrap(), "/bin/ls a ...");
        assert_eq!(shown("max_args = 0", three()).unwrap(), "/bin/ls ...");
        let mut cut = three();
        cut.0.cut = 1;
        assert_eq!(shown("", cut).unwrap(), "/bin/ls a b ...");
    }

    #[test]
    fn empty_arguments_newlines_and_bytes_are_kept() {
        assert_eq!(shown("", exec(1, "sh", b"sh\0\0a\nb\0\0")).unwrap(), "sh  a\\nb ");
        assert_eq!(shown("", exec(1, "sh", b"")).unwrap(), "sh");
        assert_eq!(shown("", exec(1, "/a\nb/sh", b"sh\0-c\0")).unwrap(), "/a\\nb/sh -c");
        assert!(shown("", exec(1, "sh", b"sh\0caf\xc3\0")).unwrap().starts_with("sh caf"));
        assert_eq!(shown("", exec(1, "sh", b"sh\0\x1b]0;x\x07\0")).unwrap(), "sh \\x1b]0;x\\x07");
    }

    #[test]
    fn hidden_arguments_are_looked_at_and_not_shown() {
        let hiding = |options: &str| Execsnoop { shows_arguments: false, ..module(options) };
        let event = || exec(1, "/usr/bin/mysql", b"mysql\0-psecret\0");
        assert_eq!(shown_by(hiding(""), event()).unwrap(), "/usr/bin/mysql ...");
        assert_eq!(shown_by(hiding("args = secret"), event()).unwrap(), "/usr/bin/mysql ...");
        assert!(shown_by(hiding("args = public"), event()).is_none());
        assert_eq!(shown_by(hiding(""), exec(1, "/bin/ls", b"ls\0")).unwrap(), "/bin/ls");
    }

    #[test]
    fn patterns_are_looked_for_anywhere() {
        let event = || exec(1, "/usr/bin/python3", b"python3\0-m\0http.server\0");
        assert!(shown("command = ython", event()).is_some());
        assert!(shown("command = ^ython", event()).is_none());
        assert!(shown("args = http", event()).is_some());
        assert!(shown("args = bin/perl", event()).is_none());
    }

    #[test]
    fn half_a_record_and_a_length_beyond_the_record_do_no_harm() {
        let fake = Fake::new();
        fake.record(&[1, 2, 3]);
        let (mut event, _) = exec(1, "/bin/ls", b"");
        event.length = 1 << 30;
        fake.record(&record_bytes(&event));
        let table = fake.filled(&TABLE, &start(module("")));
        assert_eq!(table.value(0, ARGS.column), Some(Atom::Str(b"/bin/ls")));
    }

    #[test]
    fn system_calls_are_only_looked_at_for_failed_execs() {
        let host = Host { cpus: 2, ..Host::SMALL };
        for (options, hooks) in
            [("", &["sched_process_exec"][..]), ("include_failed = True", &["sched_process_exec", "sys_exit"])]
        {
            let mut plan = Plan::default();
            module(options).plan(&host, &mut plan, &mut crate::bpf::constants());
            assert_eq!(plan.hooks.iter().map(|(hook, _)| hook.name).collect::<Vec<_>>(), hooks);
        }
    }
}
