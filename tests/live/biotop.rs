//! biotop against known amounts of I/O and against fio and /proc/diskstats, on loop devices of the test.

use crate::bioperpid::{direct, exact, Unit};
use crate::common::{lacks, loaded};
use crate::support::{self, alone, command, number, settle, Agent, Disk, Script};
use corebcc::kit::{Key, Table, TableId};
use std::process::{Command, Stdio};

/// Options with the interval `0`: rows cover the time since the last fetch, which a test knows.
const AT_FETCH: &str = "interval = 0\nprocess_count = 1000\n";

#[derive(Debug, PartialEq)]
struct Row {
    pid: u64,
    comm: String,
    direction: String,
    io: u64,
    bytes: u64,
    duration: u64,
}

/// Returns the rows of a disk.
fn rows(agent: &mut Agent, disk: &Disk) -> Vec<Row> {
    let row = |row: &support::Row| Row {
        pid: row.number(0),
        comm: row.text(1),
        direction: row.text(2),
        io: row.number(6),
        bytes: row.number(7),
        duration: row.number(8),
    };
    agent.rows().iter().filter(|row| row.text(5) == disk.name()).map(row).collect()
}

#[test]
fn requests_bytes_and_average_time_are_those_of_fio() {
    let _alone = alone();
    if lacks(&["fio"]) {
        return;
    }
    for scheduler in ["none", "mq-deadline"] {
        let disk = Disk::new(16);
        disk.set("scheduler", scheduler);
        let mut agent = Agent::new("biotop", AT_FETCH);
        let filename = format!("--filename={}", disk.device);
        let mut arguments = vec!["--name=x", "--minimal", "--direct=1", "--bs=4k", "--size=8m", "--thread"];
        arguments.extend(["--rw=randread", "--number_ios=1500", "--iodepth=1", &filename]);
        exact(&disk, Unit::Requests, || {
            rows(&mut agent, &disk);
            let child = Command::new("fio").args(&arguments).stdout(Stdio::piped()).spawn().unwrap();
            let pid = u64::from(child.id());
            let output = child.wait_with_output().unwrap();
            settle();
            let rows = rows(&mut agent, &disk);
            let terse = String::from_utf8(output.stdout).unwrap();
            let field = |at: usize| terse.split(';').nth(at).unwrap().parse::<f64>().unwrap();
            let latency = field(11) + field(15);
            println!("{scheduler}: {rows:?}, fio {latency} us");
            let row = rows.iter().find(|row| row.pid == pid).unwrap();
            assert_eq!((row.comm.as_str(), row.direction.as_str()), ("fio", "R"));
            assert_eq!(row.bytes, row.io * 4096);
            assert!(row.duration > 0 && row.duration as f64 <= latency, "{row:?}, fio {latency} us");
            (row.io, 1500)
        });
        assert_eq!(agent.warnings(), [""; 0]);
    }
}

#[test]
fn both_directions_have_their_row_and_discards_are_writes() {
    let _alone = alone();
    if lacks(&["blkdiscard"]) {
        return;
    }
    let disk = Disk::new(16);
    let mut agent = Agent::new("biotop", AT_FETCH);
    let source = format!(
        "{}\
         for i in range(30): os.preadv(fd, [page], i << 16)\n\
         for i in range(20): os.pwrite(fd, memoryview(page)[:4096], i << 12)\n\
         os.fsync(fd)\nstep('done')\n",
        direct(&disk)
    );
    exact(&disk, Unit::Bytes, || {
        rows(&mut agent, &disk);
        let mut script = Script::python(&source);
        script.line();
        let mut discard = Command::new("blkdiscard").args(["-l", "1M", &disk.device]).spawn().unwrap();
        assert!(discard.wait().unwrap().success());
        settle();
        let rows = rows(&mut agent, &disk);
        println!("{rows:?}");
        let of = |pid: u32, way: &str| {
            rows.iter()
                .find(|row| row.pid == u64::from(pid) && row.direction == way)
                .map_or((0, 0), |row| (row.io, row.bytes))
        };
        let (reads, writes, discards) = (of(script.pid(), "R"), of(script.pid(), "W"), of(discard.id(), "W"));
        assert!(reads.0 <= 30 && writes.0 <= 20, "a flush moves nothing: {rows:?}");
        (reads.1 + writes.1 + discards.1, 30 * 65536 + 20 * 4096 + (1 << 20))
    });
}

#[test]
fn a_program_has_its_own_name_after_exec() {
    let _alone = alone();
    let disk = Disk::new(16);
    let mut agent = Agent::new("biotop", AT_FETCH);
    rows(&mut agent, &disk);
    let source = format!(
        "{}os.preadv(fd, [page], 0)\n\
         os.execvp('dd', ['dd', 'if={}', 'of=/dev/null', 'bs=64k', 'count=8', 'iflag=direct', 'status=none'])\n",
        direct(&disk),
        disk.device
    );
    exact(&disk, Unit::Requests, || {
        let script = Script::python(&source);
        let pid = u64::from(script.pid());
        script.end();
        settle();
        let rows = rows(&mut agent, &disk);
        println!("{rows:?}");
        let row = rows.iter().find(|row| row.pid == pid).unwrap();
        assert_eq!((row.comm.as_str(), row.bytes), ("dd", row.io * 65536));
        (row.io, 9)
    });
}

/// If both modules are on, one of them counts for both: neither twice nor not at all.
#[test]
fn bioperpid_and_biotop_together_count_once() {
    let _alone = alone();
    let disk = Disk::new(16);
    let text = format!(
        "[pmda]\nmodules = biotop,bioperpid\n[biotop]\nmodule = biotop\ncluster = 10\n{AT_FETCH}\n\
         [bioperpid]\nmodule = bioperpid\ncluster = 1\n"
    );
    let (mut group, modules) = loaded(&text, None);
    assert!(group.outcomes().iter().all(Result::is_ok), "{:?}", group.outcomes());
    let [top_id, totals_id] = [10, 1].map(TableId::new);
    let [mut top, mut totals] = [0, 1].map(|module: usize| Table::of(modules[module].spec.tables[0]));
    group.refresh(top_id, &mut top).unwrap();
    let source = format!("{}for i in range(100): os.preadv(fd, [page], i << 12)\nstep('done')\n", direct(&disk));
    exact(&disk, Unit::Requests, || {
        let mut script = Script::python(&source);
        script.line();
        settle();
        for (id, table) in [(top_id, &mut top), (totals_id, &mut totals)] {
            group.refresh(id, table).unwrap();
        }
        let pid = u64::from(script.pid());
        let row = (0..top.len()).find(|&row| number(&top, row, 0) == pid).unwrap();
        let name = format!("{}::{pid:06} {}", disk.name(), command()).into_bytes();
        let named = |key: &Key| matches!(key, Key::Name(at) if totals.text(at) == name);
        let total = totals.keys().iter().position(named).unwrap();
        assert_eq!(number(&top, row, 7), number(&totals, total, 0));
        assert_eq!(number(&top, row, 7), number(&top, row, 6) * 65536);
        (number(&top, row, 6), 100)
    });
}
