//! The page cache: accesses, misses, pages dirtied, and its size. Kernel side: bpf/cachestat.bpf.c; the size comes from
//! /proc/meminfo.

use crate::bpf::types::{self, cache_row};
use crate::kit::*;
use crate::{maps, metrics, module_log, tracepoint};

metrics! {
    TOTAL: u64 = 0 "mem.vmstat.total" COUNTER COUNT "pages accessed in the page cache";
    MISSES: u64 = 1 "mem.vmstat.misses" COUNTER COUNT "pages accessed that were not in the page cache";
    HITS: u64 = 2 "mem.vmstat.hits" COUNTER COUNT "pages accessed that were in the page cache";
    DIRTIED: u64 = 3 "mem.vmstat.dirtied" COUNTER COUNT "blocks dirtied in the page cache";
    BUFFERS: u64 = 4 "mem.vmstat.buffers" INSTANT MBYTE "size of the buffer cache";
    CACHED: u64 = 5 "mem.vmstat.cached" INSTANT MBYTE "size of the page cache";
}

maps! {
    rows ROWS: cache_row = "cache_rows";
}

const NEEDS: &str = "a kernel with BTF";

static ADDED: Hook = tracepoint!("mm_filemap_add_to_page_cache", NEEDS);
static DIRTIED_PAGE: Hook = Hook {
    name: "writeback_dirty_folio",
    tiers: &[
        Tier { kind: "tp_btf", programs: &["tp__writeback_dirty_folio"] },
        Tier { kind: "tp_btf of pages", programs: &["tp__writeback_dirty_page"] },
        Tier { kind: "raw_tp", programs: &["raw__writeback_dirty_folio"] },
        Tier { kind: "raw_tp of pages", programs: &["raw__writeback_dirty_page"] },
    ],
    needs: NEEDS,
};
static DIRTIED_BUFFER: Hook =
    tracepoint!("block_dirty_buffer", "a kernel with BTF and block devices (CONFIG_BUFFER_HEAD)");
static ACCESSED: Hook = Hook {
    name: "folio_mark_accessed",
    tiers: &[
        Tier { kind: "fentry", programs: &["fentry__folio_mark_accessed"] },
        Tier { kind: "fentry of pages", programs: &["fentry__mark_page_accessed"] },
        Tier { kind: "kprobe", programs: &["kprobe__folio_mark_accessed"] },
        Tier { kind: "kprobe of pages", programs: &["kprobe__mark_page_accessed"] },
    ],
    needs: "fentry or kprobes",
};

static TABLE: TableSpec = TableSpec { cluster: 30, shape: Shape::Single, metrics: METRICS, ..TableSpec::NEW };

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "cachestat",
    summary: "page cache hits and misses",
    overhead: Overhead::medium("59 ns per page access, 8 ns per page added"),
    needs: "fentry or kprobes for hits and totals",
    tables: &[&TABLE],
    hooks: &[&ADDED, &DIRTIED_PAGE, &DIRTIED_BUFFER, &ACCESSED],
    maps: MAPS,
    make: |_| Ok(Box::new(Cachestat::new(meminfo))),
    ..Spec::NEW
};

/// Counts of the BPF programs.
#[derive(Clone, Copy, Default)]
struct Counts {
    added: u64,
    accessed: u64,
    dirtied_pages: u64,
    dirtied_buffers: u64,
}

impl Counts {
    fn read(kernel: &dyn Kernel) -> Counts {
        let rows = kernel.rows(ROWS);
        Counts {
            added: rows.sum(cache_row::added),
            accessed: rows.sum(cache_row::accessed),
            dirtied_pages: rows.sum(cache_row::dirtied_pages),
            dirtied_buffers: rows.sum(cache_row::dirtied_buffers),
        }
    }
}

/// Reads the sizes of buffers and page cache in megabytes; `None` if the file cannot be read.
type Sizes = fn() -> Option<(u64, u64)>;

struct Cachestat {
    sizes: Sizes,
    /// True if accesses are counted; `None` before the first attempt to attach.
    sees_accesses: Option<bool>,
    before: Counts,
    total: u64,
    misses: u64,
    hits: u64,
    dirtied: u64,
}

impl Cachestat {
    fn new(sizes: Sizes) -> Cachestat {
        Cachestat { sizes, sees_accesses: None, before: Counts::default(), total: 0, misses: 0, hits: 0, dirtied: 0 }
    }

    /// Attaches the counting of accesses, once. Returns false if that failed: there are no hits and no total without it.
    fn ask(&mut self, kernel: &dyn Kernel) -> bool {
        *self.sees_accesses.get_or_insert_with(|| match kernel.attach(&ACCESSED) {
            Ok(()) => true,
            Err(error) => {
                module_log!(
                    warn,
                    "accesses cannot be counted ({error}): no values for total and hits, only for the others; \
                     needs {}",
                    ACCESSED.needs
                );
                false
            }
        })
    }
}

impl Module for Cachestat {
    fn plan(&mut self, host: &Host, plan: &mut Plan, _constants: &mut types::rodata) {
        plan.attach(&ADDED);
        plan.attach(&DIRTIED_PAGE);
        plan.attach(&DIRTIED_BUFFER);
        plan.attach_optional(&ACCESSED);
        plan.entries(ROWS.def.name, host.cpus);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        Running::of(*self).table(&TABLE, Self::refresh).tick(Self::tick).started()
    }
}

impl Cachestat {
    fn refresh(&mut self, kernel: &dyn Kernel, table: &mut Table) {
        let sees_accesses = self.ask(kernel);
        let mut row = table.single().set(MISSES, self.misses).set(DIRTIED, self.dirtied);
        if sees_accesses {
            row = row.set(TOTAL, self.total).set(HITS, self.hits);
        }
        if let Some((buffers, cached)) = (self.sizes)() {
            row.set(BUFFERS, buffers).set(CACHED, cached);
        }
    }

    /// Computes hits and misses. An access is a hit if no page came in for it. Pages that come in to be written, and buffers dirtied
    /// on the way, are no accesses. Accesses and their corrections belong to the same second, so differences are made here and not at
    /// a fetch.
    fn tick(&mut self, kernel: &dyn Kernel) {
        let sees_accesses = self.ask(kernel);
        let now = Counts::read(kernel);
        let before = std::mem::replace(&mut self.before, now);
        let added = now.added - before.added;
        let accessed = now.accessed - before.accessed;
        let dirtied_buffers = now.dirtied_buffers - before.dirtied_buffers;
        let mut misses = added.saturating_sub(now.dirtied_pages - before.dirtied_pages);
        if sees_accesses {
            let total = accessed.saturating_sub(dirtied_buffers);
            misses = misses.min(total);
            self.total += total;
            self.hits += total - misses;
        }
        self.misses += misses;
        self.dirtied += dirtied_buffers;
    }
}

fn meminfo() -> Option<(u64, u64)> {
    sizes(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

/// Parses the lines `Buffers:   1234 kB` and `Cached:   1234 kB` of /proc/meminfo, and returns megabytes.
fn sizes(meminfo: &str) -> Option<(u64, u64)> {
    let line =
        |name: &str| meminfo.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
    let megabytes = |kilobytes: u64| kilobytes / 1024;
    Some((megabytes(line("Buffers:")?), megabytes(line("Cached:")?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fake() -> Fake {
        Fake::new().with(ROWS, 2)
    }

    /// Sets the counts since the start on both CPUs: pages added, accessed, dirtied, buffers dirtied.
    fn counts(fake: &Fake, [added, accessed, dirtied_pages, dirtied_buffers]: [u64; 4]) {
        fake.set(ROWS, 0, cache_row::added, added);
        fake.set(ROWS, 1, cache_row::accessed, accessed / 2);
        fake.set(ROWS, 0, cache_row::accessed, accessed - accessed / 2);
        fake.set(ROWS, 1, cache_row::dirtied_pages, dirtied_pages);
        fake.set(ROWS, 1, cache_row::dirtied_buffers, dirtied_buffers);
    }

    fn values(module: &mut Cachestat, fake: &Fake) -> Vec<Option<u64>> {
        let table = fake.filled_by(&TABLE, |kernel, table| module.refresh(kernel, table));
        (0..METRICS.len()).map(|column| table.number(0, column)).collect()
    }

    fn module() -> Cachestat {
        Cachestat::new(|| Some((3, 500)))
    }

    #[test]
    fn reads_are_hits_or_misses_and_writes_are_neither() {
        let (fake, mut module) = (fake(), module());
        module.tick(&fake);
        counts(&fake, [100, 400, 0, 0]);
        module.tick(&fake);
        assert_eq!(values(&mut module, &fake), [400, 100, 300, 0, 3, 500].map(Some));
        counts(&fake, [150, 450, 50, 50]);
        module.tick(&fake);
        assert_eq!(values(&mut module, &fake), [400, 100, 300, 50, 3, 500].map(Some));
    }

    #[test]
    fn values_do_not_depend_on_how_often_they_are_fetched() {
        let (fake, mut often, mut seldom) = (fake(), module(), module());
        for step in 1..=5 {
            counts(&fake, [100 * step, 50 * step, 0, 10 * step]);
            often.tick(&fake);
            seldom.tick(&fake);
            for _client in 0..step {
                values(&mut often, &fake);
            }
        }
        assert_eq!(values(&mut often, &fake), values(&mut seldom, &fake));
        assert_eq!(values(&mut often, &fake)[..4], [200, 200, 0, 50].map(Some));
    }

    #[test]
    fn without_accesses_there_are_misses_and_no_hits() {
        let (fake, mut module) = (fake().without(&ACCESSED), module());
        counts(&fake, [100, 0, 30, 20]);
        module.tick(&fake);
        assert_eq!(values(&mut module, &fake), [None, Some(70), None, Some(20), Some(3), Some(500)]);
    }

    #[test]
    fn sizes_are_as_of_now_and_have_no_value_where_unknown() {
        let fake = fake();
        let mut module = Cachestat::new(|| None);
        assert_eq!(values(&mut module, &fake)[4..], [None, None]);
        let text = "MemTotal:  9 kB\nBuffers:      5120 kB\nCached:       2049 kB\nSwapCached:  1 kB\n";
        assert_eq!(sizes(text), Some((5, 2)));
        assert_eq!(sizes("Buffers: x kB"), None);
    }
}
