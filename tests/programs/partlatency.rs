//! Block I/O latency by partition. Kernel side: bpf/partlatency.bpf.c.

use super::shared::block::{disk_name, COMPLETE};
use crate::bpf::types::part_row;
use crate::kit::*;
use crate::{histograms, maps, options};

histograms! {
    "disk.part";
    tables "each partition", "each bucket of each partition", 351 352 353;
    1 "read.total" "reads by partition" "from allocation to completion" "";
    2 "write.total" "writes by partition" "from allocation to completion" "";
    with NAME: str = 0 "name" DISCRETE NONE "name of the partition, for the variables of a dashboard";
}

maps! { keyed ROWS: part_row = "part_rows"; }

options! { histograms; }

const OF_PARTITION: SeriesRows<part_row> = SeriesRows::all(ROWS, part_row::key);
static BY_PARTITION: SeriesDef = SeriesDef {
    tables: TABLES,
    histograms: &[OF_PARTITION.part(part_row::total.nth(0)), OF_PARTITION.part(part_row::total.nth(1))],
    name: Some(NAME),
    ..SeriesDef::NEW
};
const DEFS: &[&SeriesDef] = &[&BY_PARTITION];

/// The declaration.
pub const SPEC: Spec = Spec {
    name: "partlatency",
    summary: "block I/O latency by partition",
    overhead: Overhead::low("100 ns per request"),
    tables: &[&TABLE, &BY_BUCKET, &IN_SECONDS],
    options: OPTIONS,
    hooks: &[&COMPLETE],
    maps: MAPS,
    make: |setup| {
        let Options { window, buckets, prometheus } = Options::read(setup.section)?;
        Ok(NamedHistograms::module(&SPEC, DEFS, (window, buckets, prometheus), name))
    },
    ..Spec::NEW
};

fn name(key: u64) -> Option<NamedSeries> {
    let name = disk_name((key >> 20) as u32, key as u32 & 0xf_ffff)?;
    let label = SeriesLabel::Text(String::from_utf8_lossy(&name).into_owned());
    Some((name, vec![("partition", label)]))
}
