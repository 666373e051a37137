//! The slowest request of each disk in the window: bcc.disk.slowest.*, with the option `exemplars`.

use super::disks::{DiskHistograms, MOST_DISKS};
use super::{Operation, EPOCHS, SLOWESTS};
use crate::bpf::types::{bio_epoch, bio_slowest};
use crate::host::{since_1970, until_nul};
use crate::kit::{Highest, Kernel, Row, Shape, Table, TableSpec, Window};
use crate::metrics;
use crate::modules::shared::cgroups::{CgroupPaths, Tree};
use std::collections::BTreeMap;

metrics! {
    TIME: u64 = 0 "disk.slowest.time" INSTANT USEC "time of the slowest recent request of the disk, from allocation to completion";
    DEVICE: u64 = 1 "disk.slowest.device" INSTANT USEC "time of that request from issue to the device to completion";
    ENDED: u64 = 2 "disk.slowest.ended" INSTANT MSEC "when that request completed, since 1970";
    PID: u32 = 3 "disk.slowest.pid" INSTANT NONE "process that submitted that request";
    COMMAND: str = 4 "disk.slowest.command" INSTANT NONE "command name of that process";
    OPERATION: str = 5 "disk.slowest.operation" INSTANT NONE "read, write, flush or discard";
    BYTES: u64 = 6 "disk.slowest.bytes" INSTANT BYTE "size of that request";
    SECTOR: u64 = 7 "disk.slowest.sector" INSTANT NONE "first sector of that request, in units of 512 bytes";
    CGROUP: u64 = 8 "disk.slowest.cgroup" INSTANT NONE "identifier of the cgroup that the request is accounted to, the inode of its directory";
    CGROUP_PATH: str = 9 "disk.slowest.cgroup_path" INSTANT NONE "path of that cgroup, as bcc.cgroup.disk has it";
}

/// Table of disks whose slowest request is known.
pub static TABLE: TableSpec = TableSpec {
    summary: "the slowest recent request of each disk",
    cluster: 337,
    options: &["exemplars"],
    shape: Shape::Named { max: MOST_DISKS },
    metrics: METRICS,
    ..TableSpec::NEW
};

/// Sector of a request without a place on the disk: a flush.
pub const NO_SECTOR: u64 = u64::MAX;

/// A request that was slow.
#[derive(Clone, Debug, PartialEq)]
struct Exemplar {
    total: u64,
    device: u64,
    /// Time of its end by the monotonic clock, in nanoseconds.
    ended: u64,
    /// Process identifier of the submitter; 0 if it is not known.
    pid: u32,
    operation: Operation,
    comm: Vec<u8>,
    bytes: u64,
    sector: u64,
    /// Id of the cgroup; 0 if it is not known.
    cgroup: u64,
}

/// The slowest requests of each disk.
pub struct Slowest {
    window: Window,
    epoch: u64,
    /// Time of the end of the last request that was taken from each row.
    taken: Vec<u64>,
    /// The slowest request of each part of the window that has one, by disk.
    disks: BTreeMap<u64, Highest<Exemplar>>,
    cgroups: CgroupPaths,
}

impl Slowest {
    /// Makes an empty list. `tree` has the cgroups that block I/O is accounted to.
    pub fn new<T: Tree + Send + 'static>(window: Window, tree: Option<T>) -> Slowest {
        Slowest { window, epoch: 0, taken: Vec::new(), disks: BTreeMap::new(), cgroups: CgroupPaths::new(tree) }
    }

    /// Takes the slowest requests into this part of the window, once a second. Programs write to the rows of one of two epochs: those
    /// of the other are left alone for a second, after which even a program that was interrupted has written.
    pub fn tick(&mut self, kernel: &dyn Kernel, part: u64) {
        self.take(kernel, part);
        self.epoch += 1;
        if let Some(epoch) = kernel.rows(EPOCHS).get(0) {
            epoch.set(bio_epoch::number, self.epoch);
        }
        self.take(kernel, part);
        self.disks.values_mut().for_each(|slowest| slowest.expire(self.window, part));
        self.cgroups.keep(self.disks.values().flat_map(Highest::iter).map(|exemplar| exemplar.cgroup));
    }

    fn take(&mut self, kernel: &dyn Kernel, part: u64) {
        let rows = kernel.rows(SLOWESTS);
        self.taken.resize(rows.len(), 0);
        for (row, taken) in rows.iter().zip(&mut self.taken) {
            if row.get(bio_slowest::ended) == *taken {
                continue;
            }
            let Some(exemplar) = read(row) else { continue };
            *taken = exemplar.ended;
            let slowest = self.disks.entry(row.get(bio_slowest::disk)).or_default();
            slowest.add(part, exemplar, |exemplar| exemplar.total);
        }
    }

    /// Fills the table with the disks that are served.
    pub fn fill(&self, disks: &DiskHistograms, table: &mut Table) {
        for (word, name, labels) in disks.served() {
            let parts = self.disks.get(&word).into_iter().flat_map(Highest::iter);
            let Some(slowest) = parts.max_by_key(|exemplar| exemplar.total) else { continue };
            let row = table.named(name).labels(labels);
            let mut row = row
                .set(TIME, slowest.total / 1000)
                .set(DEVICE, slowest.device / 1000)
                .set(ENDED, since_1970(slowest.ended))
                .text(OPERATION, slowest.operation.name().as_bytes())
                .set(BYTES, slowest.bytes);
            if slowest.sector != NO_SECTOR {
                row = row.set(SECTOR, slowest.sector);
            }
            if slowest.pid != 0 {
                row = row.set(PID, slowest.pid).text(COMMAND, &slowest.comm);
            }
            if slowest.cgroup != 0 {
                row = row.set(CGROUP, slowest.cgroup);
            }
            if let Some(path) = self.cgroups.path(slowest.cgroup) {
                row.text(CGROUP_PATH, path);
            }
        }
    }
}

/// Reads a row; `None` while a program writes it, or if two of them wrote at once.
fn read(row: Row<'_, bio_slowest>) -> Option<Exemplar> {
    use bio_slowest as of;
    let [epoch, total, device, ended, submitter] =
        [of::epoch, of::total, of::device, of::ended, of::submitter].map(|field| row.get(field));
    let mut comm = row.words(of::comm);
    let comm = [comm.next()?, comm.next()?];
    let [bytes, sector, cgroup] = [of::bytes, of::sector, of::cgroup].map(|field| row.get(field));
    let words = [total, device, ended, submitter, comm[0], comm[1], bytes, sector, cgroup];
    if row.get(of::check) != check(epoch, &words) {
        return None;
    }
    Some(Exemplar {
        total,
        device,
        ended,
        pid: (submitter >> 32) as u32,
        operation: Operation::of_request(submitter as u32),
        comm: until_nul(&comm.map(u64::to_ne_bytes).concat()).to_vec(),
        bytes,
        sector,
        cgroup,
    })
}

/// Returns the check sum of words, which depends on their order (bpf/biolatency.bpf.c).
fn check(epoch: u64, words: &[u64]) -> u64 {
    words.iter().fold(epoch, |check, word| check.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(*word))
}

#[cfg(test)]
mod tests {
    use super::super::disks::tests::{cell, disks, VDA};
    use super::super::{ROWS, SMALLS};
    use super::*;
    use crate::bpf::types::bio_row;
    use crate::kit::Fake;
    use crate::modules::shared::block::tests::fake as submitters;
    use crate::modules::shared::cgroups::tests::Directories;
    use crate::pcp::Atom;
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    fn slowest_of(tree: Directories) -> Slowest {
        Slowest::new(Window(Duration::from_secs(12)), Some(tree))
    }

    fn fake() -> Fake {
        let fake = submitters().with(ROWS, 8).with(SMALLS, 8).with(SLOWESTS, 8).with(EPOCHS, 1);
        fake.set(ROWS, 0, bio_row::disk, VDA);
        fake
    }

    /// Writes a row as a write of process 77 that took this number of microseconds.
    fn write(fake: &Fake, row: usize, us: u64, ended: u64) {
        let words = [us * 1000, us * 500, ended, 77 << 32 | 1, u64::from_ne_bytes(*b"postgres"), 0, 8192, 2048, 5];
        let all = [&[VDA, 0], &words[..], &[check(0, &words)]].concat();
        fake.row(SLOWESTS, row).write(&all);
    }

    fn filled(slowest: &Slowest, fake: &Fake) -> Table {
        let mut disks = disks(12);
        disks.tick(fake);
        let mut table = Table::of(&TABLE);
        slowest.fill(&disks, &mut table);
        table
    }

    fn time(slowest: &Slowest, fake: &Fake) -> Option<u64> {
        let table = filled(slowest, fake);
        (!table.is_empty()).then(|| cell(&table, 0, "disk.slowest.time", &TABLE)).flatten()
    }

    #[test]
    fn the_slowest_request_of_a_disk_is_known_by_all_of_it() {
        let (fake, mut slowest) = (fake(), slowest_of(Directories::default()));
        write(&fake, 0, 300, 1_000_000);
        write(&fake, 2, 700, 2_000_000);
        slowest.tick(&fake, 0);
        let table = filled(&slowest, &fake);
        assert_eq!(table.names(), ["vda"]);
        let number = |name: &str| cell(&table, 0, &format!("disk.slowest.{name}"), &TABLE);
        assert_eq!(
            ["time", "device", "pid", "bytes", "sector", "cgroup"].map(number),
            [700, 350, 77, 8192, 2048, 5].map(Some)
        );
        let text = |column| table.value(0, column);
        assert_eq!(
            [COMMAND.column, OPERATION.column].map(text),
            [&b"postgres"[..], b"write"].map(|text| Some(Atom::Str(text)))
        );
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let ended = number("ended").unwrap();
        assert!(ended < now.as_millis() as u64 && ended > 0, "{ended}");
    }

    #[test]
    fn a_flush_has_no_sector() {
        let (fake, mut slowest) = (fake(), slowest_of(Directories::default()));
        let words = [700_000, 350_000, 1_000, 77 << 32 | 2, u64::from_ne_bytes(*b"postgres"), 0, 0, NO_SECTOR, 5];
        fake.row(SLOWESTS, 0).write(&[&[VDA, 0], &words[..], &[check(0, &words)]].concat());
        slowest.tick(&fake, 0);
        let table = filled(&slowest, &fake);
        assert_eq!(
            (table.value(0, OPERATION.column), table.value(0, SECTOR.column)),
            (Some(Atom::Str(b"flush")), None)
        );
    }

    #[test]
    fn a_slow_request_is_known_as_long_as_the_window_has_it() {
        let (fake, mut slowest) = (fake(), slowest_of(Directories::default()));
        write(&fake, 0, 700, 1_000);
        slowest.tick(&fake, 0);
        write(&fake, 1, 300, 2_000);
        slowest.tick(&fake, 3);
        assert_eq!(time(&slowest, &fake), Some(700));
        slowest.tick(&fake, 11);
        assert_eq!(time(&slowest, &fake), Some(700), "a row that is read again is no new request");
        slowest.tick(&fake, 12);
        assert_eq!(time(&slowest, &fake), Some(300));
        slowest.tick(&fake, 15);
        assert_eq!(time(&slowest, &fake), None);
        let kernel: &dyn Kernel = &fake;
        assert_eq!(kernel.rows(EPOCHS).get(0).unwrap().get(bio_epoch::number), 5, "each tick begins an epoch");
    }

    /// The path stays as long as the window has a request, though its cgroup may be gone.
    #[test]
    fn the_cgroup_of_a_slow_request_has_its_path() {
        let (fake, tree) = (fake(), Directories::default());
        tree.make(5, "/system.slice/backup.service");
        let mut slowest = slowest_of(tree.clone());
        write(&fake, 0, 700, 1_000);
        slowest.tick(&fake, 0);
        tree.remove(5);
        slowest.tick(&fake, 1);
        let path = |slowest: &Slowest| match filled(slowest, &fake).value(0, CGROUP_PATH.column) {
            Some(Atom::Str(path)) => Some(String::from_utf8(path.to_vec()).unwrap()),
            _ => None,
        };
        assert_eq!((path(&slowest).as_deref(), tree.walks()), (Some("/system.slice/backup.service"), 1));
        slowest.tick(&fake, 12);
        assert_eq!(slowest.cgroups.path(5), None, "it is forgotten with its request");
        write(&fake, 0, 900, 2_000);
        slowest.tick(&fake, 13);
        slowest.tick(&fake, 14);
        assert_eq!((path(&slowest), tree.walks()), (None, 2), "what is gone is looked for once");
    }

    /// A row is left out whichever of its words another program has overwritten.
    #[test]
    fn a_row_that_two_wrote_at_once_is_left_out() {
        for word in 1..=11 {
            let (fake, mut slowest) = (fake(), slowest_of(Directories::default()));
            write(&fake, 0, 700, 1_000);
            let row = fake.row(SLOWESTS, 0);
            let mut words =
                [VDA, 0, 700_000, 350_000, 1_000, 77 << 32 | 1, u64::from_ne_bytes(*b"postgres"), 0, 8192, 2048, 5, 0];
            words[11] = check(0, &words[2..11]);
            words[word] += 1;
            row.write(&words);
            slowest.tick(&fake, 0);
            assert_eq!(time(&slowest, &fake), None, "word {word}");
            words[word] -= 1;
            row.write(&words);
            slowest.tick(&fake, 0);
            assert_eq!(time(&slowest, &fake), Some(700), "word {word}");
        }
    }
}
