//! Sizes of biolatency's maps.

use super::super::shared::block::starts;
use super::super::shared::groups::{cpu_shift, groups};
use crate::bpf::types::{bio_row, bio_size_row, bio_small};
use crate::kit::{table_size, Host};

/// Number of rows, and number of CPUs that share them.
#[derive(Debug, PartialEq, Eq)]
pub struct Size {
    /// Number of indices of rows in a group of CPUs: one for each disk, and the first for disks that found none.
    pub disks: usize,
    /// Binary logarithm of the number of CPUs in a group.
    pub shift: u32,
    pub groups: usize,
    /// Binary logarithm of the number of CPUs that share rows by size.
    pub size_shift: u32,
    pub size_groups: usize,
    /// Number of places for requests in flight.
    pub starts: usize,
    /// Number of places for disks that do not count.
    pub ignored: usize,
}

impl Size {
    /// Bytes of an index in a group: rows of reads and writes, of flushes and discards.
    const INDEX: usize = 2 * (size_of::<bio_row>() + size_of::<bio_small>());
    /// Bytes of an index in a group for rows by size.
    const SIZES: usize = 2 * size_of::<bio_size_row>();
    /// Number of places for requests of which a part is complete.
    pub const PARTS: usize = 1024;
    /// Number of indices that all CPUs share, for disks that come later (BIO_LATE in bpf/biolatency.bpf.c).
    const LATE: usize = 256;

    /// Returns the sizes for this machine, or those of an earlier agent, whose map of owners had `pinned` elements, if these are
    /// similar.
    pub fn of(host: &Host, pinned: Option<usize>) -> Size {
        let room = |then: usize| then + then / 8 + 4 + Size::LATE / 2;
        let suits = |then: &usize| host.disks <= room(*then) && *then <= 4 * (host.disks + 8);
        let there = pinned.and_then(disks_of).filter(suits).unwrap_or(host.disks);
        let disks = indexes(there);
        let most = (21 << 20) + there * (75 << 10);
        let shift_for = |index: usize| cpu_shift(host.cpus, disks * index, most);
        let (shift, size_shift) = (shift_for(Size::INDEX), shift_for(Size::SIZES));
        Size {
            disks,
            shift,
            groups: groups(host.cpus, shift),
            size_shift,
            size_groups: groups(host.cpus, size_shift),
            starts: starts(host),
            ignored: table_size(host.disks * 4, 256, 1 << 16),
        }
    }

    /// Returns the number of rows of each kind.
    pub fn rows(&self) -> usize {
        (self.groups * self.disks + Size::LATE) * 2
    }

    /// Returns the number of rows by size.
    pub fn size_rows(&self) -> usize {
        (self.size_groups * self.disks + Size::LATE) * 2
    }

    /// Returns the number of elements of the map of owners: one by index and one by disk.
    pub fn owners(&self) -> usize {
        2 * (self.disks + Size::LATE)
    }
}

/// Returns the number of indices for a number of disks: a quarter more, for disks to come, and so that most find their first choice.
fn indexes(disks: usize) -> usize {
    disks + disks / 4 + 8
}

/// Returns the number of disks that leads to this number of owners; `None` if none does.
fn disks_of(owners: usize) -> Option<usize> {
    let pinned = (owners / 2).checked_sub(Size::LATE)?;
    let disks = (pinned.checked_sub(8)? * 4).div_ceil(5);
    (indexes(disks) == pinned && owners.is_multiple_of(2)).then_some(disks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::types::bio_part;

    #[test]
    fn maps_are_as_large_as_pinned_ones_while_these_do() {
        let host = |disks| Host { disks, cpus: 256, ..Host::SMALL };
        for then in 0..2000 {
            let before = Size::of(&host(then), None);
            assert_eq!(disks_of(before.owners()), Some(then));
            let now = |disks| Size::of(&host(disks), Some(before.owners()));
            for disks in [then, then / 3, then + then / 8 + 4, then + 64] {
                let Size { disks: indexes, groups, size_groups, .. } = now(disks);
                assert_eq!((indexes, groups, size_groups), (before.disks, before.groups, before.size_groups));
            }
            let more = then + then / 8 + 5 + Size::LATE / 2;
            assert_eq!(now(more), Size::of(&host(more), None), "too many disks for them");
        }
        assert_eq!(Size::of(&host(1), Some(usize::MAX / 8)), Size::of(&host(1), None));
        for other in [3, Size::of(&host(1), None).owners() + 1] {
            assert_eq!(Size::of(&host(1), Some(other)), Size::of(&host(1), None));
        }
    }

    /// The test prints the table of docs/design.md.
    #[test]
    fn maps_stay_within_their_limits_on_three_machines() {
        let bytes = |cpus, disks, requests| {
            let size = Size::of(&Host { cpus, disks, requests, ..Host::SMALL }, None);
            let rows = size.rows() * (size_of::<bio_row>() + size_of::<bio_small>());
            let sizes = size.size_rows() * size_of::<bio_size_row>() + Size::PARTS * size_of::<bio_part>();
            // An element of a hash has 48 bytes of its own, a bucket 16.
            (rows + size.starts * 8 + size.owners() * 96, 1 << size.shift, sizes, 1 << size.size_shift)
        };
        let [small, middle, large] =
            [(2, 2, 512), (64, 32, 65_536), (256, 1000, 256_000)].map(|(c, d, r)| bytes(c, d, r));
        println!("{small:?} {middle:?} {large:?}: bytes, CPUs that share rows; the same by size");
        assert!(small.0 <= 9 << 20 && small.1 == 1, "{small:?}");
        assert!(middle.0 <= 32 << 20 && middle.1 <= 4, "{middle:?}");
        assert!(large.0 <= 96 << 20 && large.1 <= 128, "{large:?}");
        assert!(small.2 <= 21 << 20 && middle.2 <= 34 << 20 && large.2 <= 112 << 20, "{small:?} {middle:?} {large:?}");
    }

    /// The kernel's kmalloc goes up to this size; an array of BPF begins with up to 512 bytes of its own.
    #[test]
    fn starts_of_a_disk_with_256_requests_take_at_most_32_kb() {
        let starts = |requests| Size::of(&Host { requests, ..Host::SMALL }, None).starts;
        assert!(starts(256) * 8 + 512 <= 32 << 10);
        assert_eq!([starts(0), starts(256), starts(65_536)], [2048, 2048, 1 << 18]);
    }

    #[test]
    fn each_cpu_has_its_group_of_rows() {
        for (cpus, disks) in [(1, 0), (3, 10), (65, 100), (256, 1000), (8192, 10_000)] {
            let size = Size::of(&Host { cpus, disks, ..Host::SMALL }, None);
            assert_eq!((cpus - 1) >> size.shift, size.groups - 1, "{cpus} CPUs, {disks} disks: {size:?}");
        }
    }
}
