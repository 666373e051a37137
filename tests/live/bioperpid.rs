//! bioperpid against /proc/PID/io, /proc/diskstats, and known amounts of I/O on loop devices of the test over files in memory.

use crate::common::lacks;
use crate::common::tracers::Completions;
use crate::support::{alone, command, python, run, settle, Agent, Disk, Script};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

/// The unit of an amount of I/O.
#[derive(Clone, Copy)]
pub enum Unit {
    Requests,
    Bytes,
}

/// Compares the counts of some work with the I/O done, except for requests that completed where no program runs.
pub fn exact(disk: &Disk, unit: Unit, work: impl FnOnce() -> (u64, u64)) {
    let completions = Completions::record();
    let (counted, done) = work();
    let completed = completions.of(disk.name());
    let unseen = match unit {
        Unit::Requests => completed.unseen,
        Unit::Bytes => completed.unseen_bytes,
    };
    assert_eq!(counted + unseen, done, "{counted} counted, {unseen} not seen, {done} done");
}

/// Returns the bytes of each process on a disk.
fn on(agent: &mut Agent, disk: &Disk) -> BTreeMap<u32, u64> {
    let prefix = format!("{}::", disk.name());
    let pid = |name: &str| name.strip_prefix(&prefix)?.split(' ').next()?.parse().ok();
    agent.named().iter().filter_map(|(name, values)| Some((pid(name)?, values[0]))).collect()
}

/// Returns the bytes read, written and discarded according to /proc/diskstats.
fn sectors(disk: &Disk) -> u64 {
    let text = std::fs::read_to_string("/proc/diskstats").unwrap();
    let line = text.lines().find(|line| line.split_whitespace().nth(2) == Some(disk.name())).unwrap();
    let number = |field: usize| line.split_whitespace().nth(field).map_or(0, |word| word.parse::<u64>().unwrap());
    (number(5) + number(9) + number(16)) * 512
}

/// Returns Python that opens the disk for direct I/O, with a page to move.
pub fn direct(disk: &Disk) -> String {
    format!("import mmap\nfd = os.open('{}', os.O_RDWR | os.O_DIRECT)\npage = mmap.mmap(-1, 65536)\n", disk.device)
}

#[test]
fn the_threads_of_a_process_count_for_it_as_in_proc_pid_io() {
    let _alone = alone();
    let disk = Disk::new(16);
    let mut agent = Agent::new("bioperpid", "");
    let source = format!(
        "{}\
         def work(at):\n\
         \x20for i in range(300): os.preadv(fd, [page], at)\n\
         \x20for i in range(40): os.pwrite(fd, memoryview(page)[:4096], at)\n\
         threads = [threading.Thread(target=work, args=(i << 20,)) for i in range(2)]\n\
         for t in threads: t.start()\n\
         for t in threads: t.join()\n\
         io = dict(line.split(': ') for line in open('/proc/self/io').read().splitlines())\n\
         step(io['read_bytes'], io['write_bytes'])\n",
        direct(&disk)
    );
    exact(&disk, Unit::Bytes, || {
        let mut script = Script::python(&source);
        let by_proc = script.numbers();
        settle();
        let counted = on(&mut agent, &disk)[&script.pid()];
        // The interpreter may have read its own files from another disk.
        assert!(by_proc[0] >= 600 * 65536 && by_proc[1] >= 80 * 4096, "{by_proc:?}");
        let pid = script.pid();
        script.end();
        for _ in 0..5 {
            agent.tick();
            assert!(on(&mut agent, &disk).contains_key(&pid), "an ended process is shown for a minute");
        }
        (counted, 2 * (300 * 65536 + 40 * 4096))
    });
    assert_eq!(agent.warnings(), [""; 0]);
}

#[test]
fn threads_of_fio_are_one_process() {
    let _alone = alone();
    if lacks(&["fio"]) {
        return;
    }
    let disk = Disk::new(16);
    let mut agent = Agent::new("bioperpid", "");
    let filename = format!("--filename={}", disk.device);
    let mut arguments = vec!["--name=x", "--minimal", "--direct=1", "--bs=8k", "--size=8m", "--allow_mounted_write=1"];
    arguments.extend([
        "--thread",
        "--numjobs=2",
        "--rw=randrw",
        "--ioengine=libaio",
        "--iodepth=16",
        "--number_ios=500",
    ]);
    arguments.push(&filename);
    exact(&disk, Unit::Bytes, || {
        let mut child = Command::new("fio").args(&arguments).stdout(Stdio::null()).spawn().unwrap();
        assert!(child.wait().unwrap().success());
        settle();
        (on(&mut agent, &disk)[&child.id()], 2 * 500 * 8192)
    });
    assert_eq!(agent.warnings(), [""; 0]);
}

/// Every byte of the disk is counted for a process, whether it is queued by a scheduler, merged, written back or discarded.
#[test]
fn the_bytes_of_all_processes_are_those_of_the_disk() {
    let _alone = alone();
    if lacks(&["fio", "blkdiscard"]) {
        return;
    }
    for scheduler in ["none", "mq-deadline"] {
        let disk = Disk::new(64);
        disk.set("scheduler", scheduler);
        let mut agent = Agent::new("bioperpid", "");
        settle();
        let filename = format!("--filename={}", disk.device);
        let fio = |options: &str| {
            let mut arguments = vec!["--name=x", "--minimal", "--allow_mounted_write=1", &filename];
            arguments.extend(options.split_whitespace());
            run("fio", &arguments)
        };
        exact(&disk, Unit::Bytes, || {
            let before = (on(&mut agent, &disk).values().sum::<u64>(), sectors(&disk));
            fio("--direct=1 --rw=randrw --bs=4k --size=16m --ioengine=libaio --iodepth=32 --iodepth_batch_submit=32");
            fio("--direct=1 --rw=write --bs=4k --size=16m --ioengine=libaio --iodepth=32 --iodepth_batch_submit=32");
            fio("--rw=write --bs=64k --size=32m --end_fsync=1");
            fio("--rw=read --bs=64k --size=32m --invalidate=1");
            fio("--direct=1 --rw=randwrite --bs=4k --size=1m --fdatasync=1");
            run("blkdiscard", &["-l", "16M", &disk.device]);
            run("blkdiscard", &["-z", "-l", "1M", &disk.device]);
            settle();
            let done = sectors(&disk) - before.1;
            let after = on(&mut agent, &disk);
            println!("{scheduler}: {after:?}");
            assert!(done > 100 << 20);
            (after.values().sum::<u64>() - before.0, done)
        });
        // What is merged or begins elsewhere than it is issued has its submitter all the same.
        assert!(on(&mut agent, &disk).get(&0).is_none_or(|&bytes| bytes < 1 << 20), "{scheduler}");
    }
}

#[test]
fn a_disk_without_accounting_is_counted_all_the_same() {
    let _alone = alone();
    let disk = Disk::new(16);
    disk.set("iostats", "0");
    let mut agent = Agent::new("bioperpid", "");
    let source = format!("{}for i in range(100): os.preadv(fd, [page], i << 12)\nstep('done')\n", direct(&disk));
    exact(&disk, Unit::Bytes, || {
        let mut script = Script::python(&source);
        script.line();
        settle();
        (on(&mut agent, &disk)[&script.pid()], 100 * 65536)
    });
}

#[test]
fn requests_under_way_at_the_start_are_counted_for_process_0() {
    let _alone = alone();
    let disk = Disk::new(16);
    let source = format!(
        "{}say('begin')\nend = time.monotonic() + 3\nwhile time.monotonic() < end: os.preadv(fd, [page], 0)\n",
        direct(&disk)
    );
    let mut scripts: Vec<Script> = (0..4).map(|_| Script::python(&source)).collect();
    scripts.iter_mut().for_each(|script| drop(script.line()));
    let completions = Completions::record();
    let before = sectors(&disk);
    let mut agent = Agent::new("bioperpid", "");
    let inner = sectors(&disk);
    let pids: Vec<u32> = scripts.iter().map(Script::pid).collect();
    scripts.into_iter().for_each(Script::end);
    settle();
    let (counted, after) = (on(&mut agent, &disk), sectors(&disk));
    let sum: u64 = counted.values().sum();
    println!("{counted:?}, diskstats {} to {}", after - inner, after - before);
    let least = after - inner - completions.of(disk.name()).unseen_bytes;
    assert!((least..=after - before).contains(&sum), "{counted:?}");
    assert!(counted.keys().all(|pid| *pid == 0 || pids.contains(pid)), "{counted:?}");
    // What had begun before is at most one request of each.
    assert!(counted.get(&0).is_none_or(|&bytes| bytes <= 4 * 65536), "{counted:?}");
}

/// A process reads a program from the disk under the name that it had before; its I/O is counted under the name of the program.
#[test]
fn a_process_that_ended_has_the_name_of_its_last_program() {
    let _alone = alone();
    let disk = Disk::new(16);
    let mut agent = Agent::new("bioperpid", "");
    let programs = tempfile::tempdir().unwrap();
    let renamed = programs.path().join("renamed");
    std::os::unix::fs::symlink(python(), &renamed).unwrap();
    let read = format!("import os\n{}os.preadv(fd, [page], 0)\n", direct(&disk));
    let again = format!("{read}print('read', flush=True)\n");
    let source = format!("{read}step('read')\nos.execv('{}', ['x', '-c', '''{again}'''])\n", renamed.display());
    let mut script = Script::python(&source);
    let mut names = |pid: u32| -> Vec<String> {
        settle();
        let number = format!("{}::{pid:06}", disk.name());
        agent.named().into_keys().filter(|name| name.split(' ').next() == Some(&number)).collect()
    };
    let (pid, instance) = (script.pid(), format!("{}::{:06}", disk.name(), script.pid()));
    script.line();
    assert_eq!(names(pid), [format!("{instance} {}", command())]);
    script.go();
    script.line();
    script.end();
    assert_eq!(names(pid), [format!("{instance} renamed")]);
}
