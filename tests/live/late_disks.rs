//! Disks that come while the agent runs, each with a known number of reads and writes: loop devices, and zram for those without requests.

use crate::common::loops::Loop;
use crate::common::tracers::Recorder;
use crate::disks::{bios, row, since, table, values, Direct, Zram, BLOCK, DEV, READS, SIZE, WRITES};
use crate::support::{alone, diskstats, settle, Agent};
use std::fs;

/// Number of new disks: as many as all CPUs share rows for, and some that find a place among the rows of each CPU.
const DISKS: usize = 258;

const ENDS: [&str; 2] = ["read.total.count", "write.total.count"];

/// Each disk is read and written by two threads at once.
#[test]
fn disks_that_come_have_exact_series_of_their_own() {
    let _alone = alone();
    let mut agent = Agent::new("biolatency", "by_size = True\nexemplars = True");
    let unseen = Recorder::unseen(&["block/block_rq_complete"]);
    let Some(disks) = Loop::several(DISKS) else { return };
    for (at, disk) in disks.iter().enumerate() {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let device = Direct::open(&disk.path());
                    (0..10 + at % 7).for_each(|block| device.read(BLOCK, (block * BLOCK) as u64));
                    (0..1 + at % 3).for_each(|block| device.write(BLOCK, (block * BLOCK) as u64));
                });
            }
        });
    }
    settle();
    agent.tick();
    let unseen = unseen.map_or(0, |unseen| unseen.end().len() as u64);
    let mut missing = 0;
    for (at, disk) in disks.iter().enumerate() {
        let stats = diskstats(&disk.name(), [READS, WRITES]);
        assert!(stats[0] >= 2 * (10 + at as u64 % 7) && stats[1] >= 2 * (1 + at as u64 % 3), "{stats:?}");
        let counted = values(&mut agent, DEV, &disk.name(), ENDS);
        missing += since(stats, counted).iter().sum::<u64>();
        let sizes = values(&mut agent, SIZE, &format!("{}::4K", disk.name()), ENDS);
        assert_eq!(sizes, counted, "{}: all have 4 KB", disk.name());
    }
    assert!(missing <= unseen, "{missing} requests, of which no program can have seen {unseen}");
    assert_eq!(agent.warnings(), [""; 0]);
}

/// Bios of a disk without requests.
#[test]
fn disks_without_requests_that_come_have_series_of_their_own() {
    let _alone = alone();
    let mut agent = Agent::new("biolatency", "stacked = True");
    let Some(disks) = (0..60).map(|_| Zram::new()).collect::<Option<Vec<_>>>() else { return };
    for (at, zram) in disks.iter().enumerate() {
        let stats = diskstats(&zram.0, [READS, WRITES]);
        let device = zram.device();
        (0..1 + at % 5).for_each(|_| device.write(BLOCK, 0));
        (0..10 + at % 7).for_each(|_| device.read(BLOCK, 0));
        settle();
        let [reads, writes] = since(diskstats(&zram.0, [READS, WRITES]), stats);
        assert_eq!(bios(&mut agent, &zram.0), [reads, writes, 0, 0]);
    }
}

/// Those beyond the room are counted for all disks together.
#[test]
fn disks_beyond_the_room_are_told_as_a_loss() {
    let _alone = alone();
    // The others have twice as many places as there were disks, and some.
    let more = DISKS + 2 * fs::read_dir("/sys/block").unwrap().count() + 16;
    let mut agent = Agent::new("biolatency", "");
    let Some(disks) = Loop::several(more) else { return };
    disks.iter().for_each(|disk| Direct::open(&disk.path()).read(BLOCK, 0));
    settle();
    agent.tick();
    let (_, served) = table(&mut agent, DEV);
    let served = disks.iter().filter(|disk| row(&served, &disk.name()).is_some()).count();
    assert!((256..more).contains(&served), "{served}");
    let warnings = agent.warnings();
    assert!(warnings.len() == 1 && warnings[0].contains("disks without a row in the table"), "{warnings:?}");
}
