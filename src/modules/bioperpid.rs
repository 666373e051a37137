//! Bytes of block I/O by process and disk. Kernel side: bpf/bioperpid.bpf.c with bpf/shared/owners.bpf.h, the table of submitters.

use super::shared::block::{self, Disks, SubmitterTable};
use crate::bpf::types;
use crate::host::{command_word, exists};
use crate::kit::*;
use crate::{metrics, module_log};
use std::collections::BTreeSet;

metrics! {
    TOTAL: u64 = 0 "proc.io.total" COUNTER BYTE "bytes read from and written to the disk by the process";
}

static TABLE: TableSpec =
    TableSpec { cluster: 1, shape: Shape::Words { max: NAMES }, metrics: METRICS, ..TableSpec::NEW };

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "bioperpid",
    summary: "block I/O by process and disk",
    overhead: Overhead::low("100 ns per request"),
    needs: "CONFIG_BLK_DEV_IO_TRACE, and Linux 6.5, fentry or kprobes (else bios are counted)",
    tables: &[&TABLE],
    hooks: &[&block::SUBMIT, &block::COMPLETE],
    maps: block::OWNER_MAPS,
    needs_to_run: &[Need::Processes],
    make: |_| Ok(Box::new(Bioperpid::new(exists, block::disk_name))),
    ..Spec::NEW
};

/// Largest number of pairs of process and disk with an instance identifier.
const NAMES: usize = 32 * 1024;

struct Bioperpid {
    owners: SubmitterTable,
    disk_name: block::DiskName,
    /// Disks without a name that were logged; each is logged once.
    nameless: BTreeSet<(u32, u32)>,
}

impl Bioperpid {
    fn new(exists: fn(u32) -> bool, disk_name: block::DiskName) -> Bioperpid {
        Bioperpid { owners: SubmitterTable::new(exists), disk_name, nameless: BTreeSet::new() }
    }
}

impl Module for Bioperpid {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        self.owners.plan(host, plan, constants);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        Running::of(*self)
            .table(&TABLE, Self::refresh)
            .tick(|module, kernel| module.owners.tick(kernel))
            .losses(|module, kernel, each| module.owners.losses(kernel, each))
            .started()
    }
}

impl Bioperpid {
    fn refresh(&mut self, kernel: &dyn Kernel, table: &mut Table) {
        let mut disks = Disks::new(self.disk_name);
        for (key, owner) in SubmitterTable::read(kernel) {
            let [reads, writes] = owner.directions;
            let bytes = reads.bytes.wrapping_add(writes.bytes);
            if bytes == 0 {
                continue;
            }
            let Some(disk) = disks.name(key.major, key.minor) else {
                if self.nameless.insert((key.major, key.minor)) {
                    module_log!(info, "disk {}:{} not found, its I/O is not shown", key.major, key.minor);
                }
                continue;
            };
            let number = format!("::{:06} ", key.pid);
            let name = [disk, number.as_bytes(), command_word(&[&owner.comm])].concat();
            table.named(&name).set(TOTAL, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::shared::block::tests::{below_1000, fake, names, owner};
    use super::*;

    fn totals(module: &mut Bioperpid, fake: &Fake) -> Vec<(String, u64)> {
        let table = fake.filled_by(&TABLE, |kernel, table| module.refresh(kernel, table));
        (0..table.len()).map(|row| (table.name(row), table.number(row, 0).unwrap())).collect()
    }

    #[test]
    fn an_instance_is_disk_process_and_command_and_both_ways_count() {
        let fake = fake();
        owner(&fake, 0, (77, 254, 0), b"dd\0\0\0\0\0\0", [[1, 4096, 9, 0], [1, 512, 9, 0]]);
        owner(&fake, 1, (0, 254, 0), &[0; 8], [[1, 100, 9, 0], [0; 4]]);
        let mut module = Bioperpid::new(below_1000, names);
        assert_eq!(
            totals(&mut module, &fake),
            [("vda::000000 (unknown)".into(), 100), ("vda::000077 dd".into(), 4608)]
        );
    }

    #[test]
    fn nameless_disks_and_idle_processes_are_not_shown() {
        let fake = fake();
        owner(&fake, 0, (77, 7, 3), b"dd\0\0\0\0\0\0", [[1, 4096, 9, 0], [0; 4]]);
        owner(&fake, 1, (78, 254, 0), b"dd\0\0\0\0\0\0", [[0; 4]; 2]);
        let mut module = Bioperpid::new(below_1000, names);
        assert!(totals(&mut module, &fake).is_empty());
    }

    #[test]
    fn an_ended_process_stays_a_minute_however_often_refreshed() {
        let fake = fake();
        owner(&fake, 8, (5000, 254, 0), b"dd\0\0\0\0\0\0", [[1, 4096, 9, 0], [0; 4]]);
        let mut module = Bioperpid::new(below_1000, names);
        for _ in 0..60 {
            module.owners.tick(&fake);
            for _client in 0..3 {
                assert_eq!(totals(&mut module, &fake), [("vda::005000 dd".into(), 4096)]);
            }
        }
        for _ in 0..8 {
            module.owners.tick(&fake);
        }
        assert!(totals(&mut module, &fake).is_empty());
    }
}
