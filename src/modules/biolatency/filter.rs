//! The option `devices`, which selects disks. The programs count a disk until the agent has found that it does not match; the agent
//! shows a disk once it has found that it does.

use super::{DiskNumber, IGNOREDS};
use crate::bpf::types::bio_ignored;
use crate::kit::{Kernel, Pattern};
use std::collections::BTreeMap;
use std::fs;

/// Returns the name of a disk, and the number that no other disk has had (sysfs: diskseq; 0 before Linux 5.15); `None` if it is gone.
pub type Identify = fn(DiskNumber) -> Option<(Vec<u8>, u64)>;

/// The filter of disks.
pub struct DiskFilter {
    devices: Pattern,
    identify: Identify,
    found: BTreeMap<u64, Found>,
}

/// The result for a disk.
#[derive(Clone, Copy)]
struct Found {
    counts: bool,
    sequence: u64,
}

impl DiskFilter {
    /// Makes a filter that knows no disk yet.
    pub fn new(devices: Pattern, identify: Identify) -> DiskFilter {
        DiskFilter { devices, identify, found: BTreeMap::new() }
    }

    /// True if a disk counts, by the word of its rows. A disk that is gone keeps its result; disks without a row of their own do not
    /// count.
    pub fn counts(&mut self, kernel: &dyn Kernel, disk: u64) -> bool {
        if self.devices.is_any() {
            return true;
        }
        if !self.found.contains_key(&disk) {
            self.look(kernel, disk);
        }
        self.found.get(&disk).is_some_and(|found| found.counts)
    }

    /// Looks up disks again, once a second, since another disk may have the numbers by now: with `all` every disk, else those without
    /// a sequence number. Programs tell disks with one apart and count a new disk at once, so it need not be found quickly.
    pub fn tick(&mut self, kernel: &dyn Kernel, all: bool) {
        let due: Vec<u64> =
            self.found.iter().filter(|(_, found)| all || found.sequence == 0).map(|(&disk, _)| disk).collect();
        due.into_iter().for_each(|disk| self.look(kernel, disk));
    }

    fn look(&mut self, kernel: &dyn Kernel, disk: u64) {
        let before = self.found.get(&disk).copied();
        let now = DiskNumber::read(disk).and_then(self.identify);
        let now = now.map(|(name, sequence)| Found { counts: self.devices.matches(&name), sequence });
        match now {
            Some(Found { counts: false, sequence }) => ignore(kernel, disk, Some(sequence)),
            Some(_) => ignore(kernel, disk, None),
            // The next disk with these numbers may count.
            None if before.is_some_and(|before| !before.counts) => ignore(kernel, disk, None),
            None => {}
        }
        if let Some(now) = now {
            self.found.insert(disk, now);
        }
    }
}

/// Makes the programs ignore this disk, or count it again. If two disks share a place, one of them is counted and not shown.
fn ignore(kernel: &dyn Kernel, disk: u64, sequence: Option<u64>) {
    let places = kernel.rows(IGNOREDS);
    let hash = ((disk >> 32) as u32) << 20 ^ disk as u32;
    let at = u64::from(hash.wrapping_mul(0x9e37_79b1)) >> shift(places.len()).min(63);
    let Some(place) = places.get(at as usize) else { return };
    match sequence {
        Some(sequence) if place.get(bio_ignored::disk) != disk || place.get(bio_ignored::sequence) != sequence => {
            place.set(bio_ignored::disk, 0);
            place.set(bio_ignored::sequence, sequence);
            place.set(bio_ignored::disk, disk);
        }
        None if place.get(bio_ignored::disk) == disk => place.set(bio_ignored::disk, 0),
        _ => {}
    }
}

/// Returns the number of bits by which the hash of a disk is shifted for a number of places, a power of two.
pub fn shift(places: usize) -> u32 {
    32 - places.max(1).ilog2()
}

/// Reads the name and the sequence number of a disk from sysfs.
pub fn identify(number: DiskNumber) -> Option<(Vec<u8>, u64)> {
    let DiskNumber { major, minor } = number;
    let sequence = || {
        let text = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/diskseq")).ok();
        text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    };
    let before = sequence();
    let name = super::super::shared::block::disk_name(major, minor)?;
    // Another disk may have come in between.
    (before == sequence()).then_some((name, before))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::Fake;
    use std::cell::Cell;

    const SDA: u64 = 1 << 63 | 8 << 32;
    const LOOP: u64 = 1 << 63 | 7 << 32;

    thread_local!(static OF_LOOP: Cell<Option<(&'static str, u64)>> = const { Cell::new(Some(("loop0", 5))) });

    fn identify(number: DiskNumber) -> Option<(Vec<u8>, u64)> {
        match number.major {
            8 => Some((b"sda".to_vec(), 3)),
            7 => OF_LOOP.get().map(|(name, sequence)| (name.into(), sequence)),
            _ => None,
        }
    }

    fn ignored(fake: &Fake) -> Vec<(u64, u64)> {
        let kernel: &dyn Kernel = fake;
        let all = kernel.rows(IGNOREDS).iter().map(|row| (row.get(bio_ignored::disk), row.get(bio_ignored::sequence)));
        all.filter(|(disk, _)| *disk != 0).collect()
    }

    #[test]
    fn programs_ignore_disks_that_do_not_match() {
        let fake = Fake::new().with(IGNOREDS, 64);
        let mut filter = DiskFilter::new(Pattern::of("^(sd|nvme)"), identify);
        assert_eq!([SDA, LOOP, 1 << 62].map(|disk| filter.counts(&fake, disk)), [true, false, false]);
        assert_eq!(ignored(&fake), [(LOOP, 5)]);
        let mut all = DiskFilter::new(Pattern::default(), identify);
        assert_eq!([SDA, LOOP, 1 << 62].map(|disk| all.counts(&fake, disk)), [true; 3]);
    }

    /// The programs tell disks apart by the sequence number only.
    #[test]
    fn another_disk_with_the_numbers_is_found_anew() {
        let fake = Fake::new().with(IGNOREDS, 64);
        let mut filter = DiskFilter::new(Pattern::of("^nvme"), identify);
        assert!(!filter.counts(&fake, LOOP));
        OF_LOOP.set(Some(("nvme0n1", 6)));
        filter.tick(&fake, false);
        assert!(!filter.counts(&fake, LOOP), "the programs count it: there is time");
        filter.tick(&fake, true);
        assert!(filter.counts(&fake, LOOP) && ignored(&fake).is_empty());
        OF_LOOP.set(None);
        filter.tick(&fake, true);
        assert!(filter.counts(&fake, LOOP), "it is gone, what it did is not");
        OF_LOOP.set(Some(("loop0", 0)));
        filter.tick(&fake, true);
        assert_eq!((filter.counts(&fake, LOOP), ignored(&fake)), (false, vec![(LOOP, 0)]));
        OF_LOOP.set(None);
        filter.tick(&fake, false);
        assert!(ignored(&fake).is_empty(), "without a sequence each tick looks");
    }
}
