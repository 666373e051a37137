//! Successful execs by command name. Kernel side: bpf/exectop.bpf.c.

use crate::bpf::types::{self, exec_row, exec_stat};
use crate::host::until_nul;
use crate::kit::*;
use crate::{maps, metrics, tracepoint};

metrics! {
    COUNT: u64 = 0 "proc.exec.count" COUNTER COUNT "successful execs by the new program's command name";
}

maps! {
    rows ROWS: exec_row = "exec_rows", taken claims, lost exec_stat.lost in "exec_stats";
    rows STATS: exec_stat = "exec_stats";
}

/// Names, which stay: as many as the Python agent's table held.
const NAMES: usize = 16 * 1024;

static EXEC: Hook = tracepoint!("sched_process_exec", "a kernel with BTF");

/// The declaration.
pub const SPEC: Spec = Spec {
    name: "exectop",
    path: "exectop",
    summary: "executions by command name",
    cluster: 13,
    shape: Shape::Named { max: NAMES },
    metrics: METRICS,
    addition: None,
    options: &[],
    hooks: &[&EXEC],
    maps: MAPS,
    make: |_| Ok(Box::new(Exectop { claims: RowClaims::new(exec_row::claims) })),
};

struct Exectop {
    claims: RowClaims<exec_row>,
}

impl Module for Exectop {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        constants.exec_mask = NAMES as u32 - 1;
        plan.attach(&EXEC);
        plan.entries(ROWS.def.name, NAMES);
        plan.entries(STATS.def.name, host.cpus);
    }

    fn refresh(&mut self, kernel: &dyn Kernel, table: &mut Table) -> Result<(), RefreshError> {
        for row in kernel.rows(ROWS).iter() {
            let count = row.get(exec_row::count);
            if count > 0 {
                let comm: [u8; 16] = row.bytes(exec_row::comm);
                table.named(until_nul(&comm)).set(COUNT, count);
            }
        }
        Ok(())
    }

    fn tick(&mut self, kernel: &dyn Kernel) {
        self.claims.release_contested(kernel.rows(ROWS), |row| row.words(exec_row::comm).all(|word| word == 0));
    }

    fn losses(&self, kernel: &dyn Kernel, each: &mut dyn FnMut(&'static str, u64)) {
        each("execs whose command name found no place", kernel.rows(STATS).sum(exec_stat::lost));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcp::Atom;

    fn module() -> Exectop {
        Exectop { claims: RowClaims::new(exec_row::claims) }
    }

    #[test]
    fn each_name_is_a_row() {
        let fake = Fake::new().with(ROWS, 8);
        fake.row(ROWS, 3).set_bytes(exec_row::comm, b"bash");
        fake.set(ROWS, 3, exec_row::count, 12);
        let mut table = Table::new(1);
        module().refresh(&fake, &mut table).expect("nothing can fail");
        assert_eq!(table.len(), 1);
        assert_eq!(table.value(0, 0), Some(Atom::U64(12)));
        assert!(matches!(&table.keys()[0], Key::Name(name) if table.text(name) == b"bash"));
    }

    #[test]
    fn a_place_both_claimants_left_is_freed_at_the_second_look() {
        let fake = Fake::new().with(ROWS, 8);
        fake.set(ROWS, 2, exec_row::claims, 2);
        let mut module = module();
        let kernel: &dyn Kernel = &fake;
        let claims = || kernel.rows(ROWS).get(2).map(|row| row.get(exec_row::claims));
        module.tick(kernel);
        assert_eq!(claims(), Some(2));
        module.tick(kernel);
        assert_eq!(claims(), Some(0));
    }
}
