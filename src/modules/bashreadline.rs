//! Lines that people type at bash: rows of the latest. Kernel side: bpf/bashreadline.bpf.c.

use super::shared::hits::NoTargets;
use super::shared::latest::{Columns, EventCounts, Latest};
use crate::bpf::types::{self, bash_event, bash_row};
use crate::host::{library, program_or_library, until_nul, Elf};
use crate::kit::*;
use crate::{latest, metrics, options};
use std::path::PathBuf;

mod rows {
    use super::*;

    metrics! {
        PID: u32 = 0 "shell.bash.pid" | "bpf.bashreadline.pid" INSTANT NONE "process of the shell";
        UID: u32 = 1 "shell.bash.uid" INSTANT NONE "user that the shell runs as";
        COMM: str = 2 "shell.bash.comm" INSTANT NONE "command name of the shell";
        LINE: str = 3 "shell.bash.line" | "bpf.bashreadline.comm" INSTANT NONE "line that was typed";
        TIME: u64 = 4 "shell.bash.time" INSTANT MSEC "when the line was ended, since 1970";
        SEQ: u64 = 5 "shell.bash.seq" INSTANT NONE "number of the row, which tells a new row from one that moved";
        CGROUP_PATH: str = 6 "shell.bash.cgroup_path" INSTANT NONE "path of the cgroup of the shell, in cgroup v2";
    }

    pub static TABLE: TableSpec = TableSpec::latest("the latest lines that were typed at bash", 498, METRICS);

    pub const COLUMNS: Columns = Columns { time: TIME, seq: SEQ, cgroup_path: CGROUP_PATH };

    pub fn put(row: RowMut<'_>, event: &bash_event) {
        row.set(PID, event.pid)
            .set(UID, event.uid)
            .text(COMM, until_nul(&event.comm))
            .text(LINE, until_nul(&event.line));
    }
}

mod counts {
    use super::*;

    metrics! {
        ALL: u64 = 0 "shell.bash.lines.count" COUNTER COUNT "lines that were typed at bash";
        LOST: u64 = 1 "shell.bash.lost.count" | "bpf.bashreadline.lost" COUNTER COUNT "lines that were typed at bash and got no row";
    }

    pub static TABLE: TableSpec = TableSpec::single("all lines that were typed at bash", 2014, METRICS);

    pub static ALL_EVENTS: EventCounts<bash_row> =
        EventCounts { table: &TABLE, sums: Sums { rows: ROWS, cells: &[(ALL, &[bash_row::all])] }, lost: LOST };
}

latest! {
    "bash", bash_event, rows::COLUMNS;
    rows ROWS: bash_row = "bash_rows";
}

options! {
    process;
    /// Rows to show.
    process_count: RowCount = RowCount(20);
    /// Size of the ring buffer in pages.
    buffer_page_count: Pages = Pages(16);
    bpf_names;
}

static READLINE: Hook = Hook {
    name: "readline",
    tiers: &[Tier { kind: "uretprobe", programs: &["each_uretprobe__bashreadline"] }],
    needs: "a kernel with CONFIG_UPROBE_EVENTS",
};

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "bashreadline",
    summary: "lines that people type at bash",
    overhead: Overhead::low("3 us per line"),
    needs: "bash, and CONFIG_UPROBE_EVENTS",
    tables: &[&rows::TABLE, &counts::TABLE],
    options: OPTIONS,
    hooks: &[&READLINE],
    maps: MAPS,
    needs_to_load: &[Need::UserProbes],
    make: |setup| Ok(Box::new(Bashreadline::new(Options::read(setup.section)?))),
    ..Spec::NEW
};

struct Bashreadline {
    options: Options,
    latest: Latest<bash_event>,
}

impl Bashreadline {
    fn new(options: Options) -> Bashreadline {
        let latest = Latest::of_records(&LATEST, options.process_count, options.buffer_page_count);
        Bashreadline { options, latest }
    }
}

/// Returns the file with the function that reads a line for bash, and its place there: bash itself, or the library where bash is built to
/// use that.
fn readline() -> Result<Target, NoTargets> {
    const NAME: &str = "readline";
    let bash = program_or_library("bash").ok_or_else(|| NoTargets::new("there is no bash on this machine"))?;
    let of = |path: PathBuf| -> Result<Target, NoTargets> {
        let code = Elf::read(&path).map_err(NoTargets::new)?.function(NAME);
        let code = code.ok_or_else(|| NoTargets::new(format_args!("{}: no function `{NAME}`", path.display())))?;
        Ok(Target::Code { path, offset: code.offset, semaphore: 0, process: None, name: NAME.into() })
    };
    of(bash).or_else(|error| of(library(NAME).ok_or(error)?))
}

impl Module for Bashreadline {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        constants.bash_filter = plan.only(&self.options.process);
        constants.bash_ring = self.latest.plan(host, plan);
        plan.entries(ROWS.def.name, host.cpus);
        match readline() {
            Ok(target) => plan.attach_template(&READLINE, target, 0),
            Err(none) => plan.refuse(none.to_string()),
        }
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        Latest::add_tables(
            Running::of(*self),
            &rows::TABLE,
            &counts::ALL_EVENTS,
            |module| &mut module.latest,
            rows::put,
        )
        .started()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::record_bytes;
    use crate::pcp::Atom;

    #[test]
    fn a_line_has_a_row() {
        let fake = Fake::new().with(ROWS, 2).with(LOST, 2);
        let mut event = bash_event { pid: 7, uid: 5, ..bash_event::default() };
        event.comm[..4].copy_from_slice(b"bash");
        event.line[..7].copy_from_slice(b"ls -l /");
        fake.record(&record_bytes(&event));
        (0..2).for_each(|cpu| fake.set(ROWS, cpu, bash_row::all, 3));
        fake.set(LOST, 0, latest_stat::crowded, 5);
        let running = Box::new(Bashreadline::new(Options::default())).start(&fake);
        let table = fake.filled(&rows::TABLE, &running);
        assert_eq!((table.number(0, 0), table.value(0, 3)), (Some(7), Some(Atom::Str(b"ls -l /"))));
        let table = fake.filled(&counts::TABLE, &running);
        assert_eq!([0, 1].map(|column| table.number(0, column)), [6, 5].map(Some));
    }
}
