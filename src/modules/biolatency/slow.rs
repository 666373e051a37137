//! The latest requests that took long: bcc.disk.slow.*, with the option `slow`.

use super::disks::DiskNamer;
use super::rows::DiskNumber;
use super::slowest::NO_SECTOR;
use crate::bpf::record;
use crate::bpf::types::bio_slow;
use crate::host::{until_nul, Cgroups, Controller};
use crate::kit::*;
use crate::latest;
use crate::metrics;
use crate::modules::shared::block::{disk_name, Disks};
use crate::modules::shared::latest::{Columns, Latest};

metrics! {
    PID: u32 = 0 "disk.slow.pid" | "bpf.biosnoop.pid" INSTANT NONE "process that submitted the request";
    COMM: str = 1 "disk.slow.comm" | "bpf.biosnoop.comm" INSTANT NONE "command name of the process that submitted the request";
    DISK: str = 2 "disk.slow.disk" | "bpf.biosnoop.disk" INSTANT NONE "disk of the request";
    RWBS: str = 3 "disk.slow.rwbs" | "bpf.biosnoop.rwbs" INSTANT NONE "operation and flags of the request, in the letters of blktrace";
    BYTES: u32 = 4 "disk.slow.bytes" | "bpf.biosnoop.bytes" INSTANT BYTE "size of the request";
    SECTOR: u64 = 5 "disk.slow.sector" | "bpf.biosnoop.sector" INSTANT NONE "first sector of the request, in units of 512 bytes";
    LAT: u64 = 6 "disk.slow.lat" | "bpf.biosnoop.lat" INSTANT NSEC "time of the request, from allocation to completion";
    QUEUE: u64 = 7 "disk.slow.queue" INSTANT NSEC "time of the request from allocation to its issue to the device";
    TIME: u64 = 8 "disk.slow.time" INSTANT MSEC "when the request completed, since 1970";
    SEQ: u64 = 9 "disk.slow.seq" INSTANT NONE "number of the row, which tells a new row from one that moved";
    CGROUP_PATH: str = 10 "disk.slow.cgroup_path" INSTANT NONE "path of the cgroup that the request is accounted to";
}

/// Table of slow requests.
pub static TABLE: TableSpec =
    TableSpec::latest("the latest requests that took long", 311, METRICS).with_options(&["slow"]);

/// Requests without a row.
pub mod counts {
    use super::*;

    metrics! {
        LOST: u64 = 0 "disk.slow.lost.count" | "bpf.biosnoop.lost" COUNTER COUNT "requests that took long and got no row";
    }

    /// Table of their number.
    pub static TABLE: TableSpec =
        TableSpec::single("requests that took long and got no row", 2007, METRICS).with_options(&["slow"]);

    /// Fills the table.
    pub fn fill(slow: &SlowRequests, kernel: &dyn Kernel, table: &mut Table) {
        table.single().set(LOST, slow.latest.lost(kernel));
    }
}

latest! { "slow", bio_slow, Columns { time: TIME, seq: SEQ, cgroup_path: CGROUP_PATH }; }

/// Maps of the table.
pub const SLOW_MAPS: [MapDef; 3] = [MAPS[0], MAPS[1], MAPS[2]];

/// The time from which a request is slow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Threshold(Option<u64>);

impl Threshold {
    /// Returns the time in nanoseconds; `None`: there is no table.
    pub fn nanoseconds(self) -> Option<u64> {
        self.0
    }
}

impl OptionType for Threshold {
    const EXPECTED: &'static str = "a number of milliseconds, such as 10 or 0.5; 0 for all requests";
    fn read(value: &OptionValue<'_>) -> Result<Self, SetupError> {
        const HOUR: f64 = 3_600_000.0;
        let milliseconds = value.text().parse().ok().filter(|milliseconds| (0.0..=HOUR).contains(milliseconds));
        let milliseconds: f64 = milliseconds.ok_or_else(|| value.error(Self::EXPECTED))?;
        Ok(Threshold(Some((milliseconds * 1e6) as u64)))
    }
    fn show(&self) -> String {
        self.0.map_or(String::new(), |nanoseconds| (nanoseconds as f64 / 1e6).to_string())
    }
}

/// A request as it is shown.
struct Request {
    of: bio_slow,
    disk: Vec<u8>,
}

/// The latest slow requests.
pub struct SlowRequests {
    latest: Latest<Request>,
}

impl SlowRequests {
    /// Makes an empty list of at most so many requests.
    pub fn new(rows: RowCount, pages: Pages) -> SlowRequests {
        SlowRequests { latest: Latest::new(&LATEST, rows, pages, Cgroups::of(Controller::BlockIo).ok()) }
    }

    /// Sizes the maps. Returns the size of the ring in bytes.
    pub fn plan(&self, host: &Host, plan: &mut Plan) -> u64 {
        self.latest.plan(host, plan)
    }

    /// Takes the requests of disks that count from the ring.
    pub fn drain(&mut self, kernel: &dyn Kernel, namer: &mut DiskNamer) {
        let mut disks = Disks::new(disk_name);
        self.latest.drain(kernel, |bytes| {
            let of = record::<bio_slow>(bytes)?;
            let number = DiskNumber::read(of.disk)?;
            if !namer.shows(kernel, Some(number)) {
                return None;
            }
            let name = disks.name(number.major, number.minor).map(<[u8]>::to_vec);
            let disk = name.unwrap_or_else(|| format!("{}:{}", number.major, number.minor).into_bytes());
            Some(Request { of, disk })
        });
    }

    /// Returns the number of requests that became rows so far.
    pub fn events(&self) -> u64 {
        self.latest.events()
    }

    /// Fills the table.
    pub fn fill(&self, table: &mut Table) {
        self.latest.fill(table, |mut row, Request { of, disk }| {
            if of.pid != 0 {
                let comm = of.comm.map(u64::to_ne_bytes).concat();
                row = row.set(PID, of.pid).text(COMM, until_nul(&comm));
            }
            if of.sector != NO_SECTOR {
                row = row.set(SECTOR, of.sector);
            }
            row.text(DISK, disk)
                .text(RWBS, rwbs(of.operation, of.flags).as_bytes())
                .set(BYTES, u32::try_from(of.bytes).unwrap_or(u32::MAX))
                .set(LAT, of.total)
                .set(QUEUE, of.queue);
        });
    }

    /// Reports requests without a row.
    pub fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        self.latest.losses(kernel, each);
    }
}

/// Returns the letters of a request (blk_fill_rwbs in kernel/trace/blktrace.c).
fn rwbs(operation: u32, flags: u32) -> String {
    let flag = |number: u32, letter: &'static str| if flags >> number & 1 == 1 { letter } else { "" };
    let operation = match operation {
        0 => "R",
        1 => "W",
        2 => "F",
        3 => "D",
        5 => "DE",
        _ => "N",
    };
    [flag(0, "F"), operation, flag(1, "F"), flag(2, "A"), flag(3, "S"), flag(4, "M")].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_those_of_blktrace() {
        let all = [
            (0, 0, "R"),
            (0, 4, "RA"),
            (1, 8, "WS"),
            (1, 2 | 8 | 16, "WFSM"),
            (1, 1 | 8, "FWS"),
            (2, 0, "F"),
            (3, 8, "DS"),
        ];
        for (operation, flags, letters) in all {
            assert_eq!(rwbs(operation, flags), letters);
        }
    }

    #[test]
    fn a_threshold_is_in_milliseconds() {
        let read = |text: &str| {
            let config = format!("[biolatency]\nmodule = biolatency\ncluster = 0\nslow = {text}\n");
            let config = crate::config::Config::parse("t.conf", config.as_bytes()).unwrap();
            let value = config.section("biolatency").unwrap().get("slow").unwrap().unwrap();
            Threshold::read(&value).map(Threshold::nanoseconds).map_err(|error| error.to_string())
        };
        assert_eq!([read("10"), read("0.5"), read("0")], [10_000_000, 500_000, 0].map(Some).map(Ok));
        for text in ["-1", "fast", "NaN", "inf", "3600001"] {
            let error = read(text).unwrap_err();
            assert!(error.contains("t.conf:4") && error.contains("milliseconds, such as 10 or 0.5"), "{error}");
        }
        assert_eq!([Threshold(Some(500_000)), Threshold(None)].map(|threshold| threshold.show()), ["0.5", ""]);
    }
}
