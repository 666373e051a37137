//! Exits of virtual machines of KVM, and what their processes have to do for them. Kernel side: bpf/kvm.bpf.c.

use super::shared::groups::tell;
use super::shared::places::{ByPlace, Names, PlacedHistograms};
use crate::bpf::types::{self, kvm_outside, kvm_reason, kvm_row, kvm_stat, mark, place_owner};
use crate::host::{comm, exists, guest_of};
use crate::kit::*;
use crate::{beyond, maps, metrics, tracepoint};

mod machines {
    use super::*;

    metrics! {
        EXITS: u64 = 0 "kvm.exits.count" COUNTER COUNT "exits of virtual processors from the guest, by virtual machine";
        EXIT_TIME: u64 = 1 "kvm.exits.time" COUNTER NSEC "time from exits of virtual processors until they are in the guest again";
        USER: u64 = 2 "kvm.user.all.count" COUNTER COUNT "exits to the process of the virtual machine";
        USER_TIME: u64 = 3 "kvm.user.all.time" COUNTER NSEC "time that virtual processors were with the process of the virtual machine";
        NAME: str = 4 "kvm.name" DISCRETE NONE "virtual machine, for the variables of a dashboard";
    }

    pub static BY_MACHINE: ByPlace<kvm_row> = ByPlace {
        owners: MACHINES,
        rows: ROWS,
        marks: MARKS,
        histograms: &[],
        counters: &[
            (EXITS, kvm_row::exits),
            (EXIT_TIME, kvm_row::exit_ns),
            (USER, kvm_row::user),
            (USER_TIME, kvm_row::user_ns),
        ],
        name: NAME,
        beyond: beyond!("table-full: exits of virtual machines", counted, [kvm_row::exits]),
    };

    pub static TABLE: TableSpec = TableSpec::named("each virtual machine", 490, METRICS, 1 << 12);
}

mod reasons {
    use super::*;

    metrics! {
        COUNT: u64 = 0 "kvm.user.count" COUNTER COUNT "exits to the process of the virtual machine, by reason";
        NAME: str = 1 "kvm.user.name" DISCRETE NONE "virtual machine and reason, for the variables of a dashboard";
    }

    pub static BY_REASON: ByPlace<kvm_reason> = ByPlace {
        owners: REASONS,
        rows: REASON_ROWS,
        marks: REASON_MARKS,
        histograms: &[],
        counters: &[(COUNT, kvm_reason::count)],
        name: NAME,
        beyond: beyond!("reasons-full: exits for reasons", counted, [kvm_reason::count]),
    };

    pub static TABLE: TableSpec = TableSpec::named("each virtual machine and reason", 491, METRICS, 1 << 14);
}

maps! {
    rows MACHINES: place_owner = "kvm_vms", taken id;
    rows ROWS: kvm_row = "kvm_rows", taken used, marked in "kvm_marks";
    rows MARKS: mark = "kvm_marks";
    rows REASONS: place_owner = "kvm_reasons", taken id;
    rows REASON_ROWS: kvm_reason = "kvm_reason_rows", taken used, marked in "kvm_reason_mrk";
    rows REASON_MARKS: mark = "kvm_reason_mrk";
    private OUTSIDE: kvm_outside = "kvm_outside";
    rows STATS: kvm_stat = "kvm_stats";
}

const NEEDS: &str = "KVM, built in or loaded (modprobe kvm), on a kernel with BTF";

static EXIT: Hook = tracepoint!("kvm_exit", NEEDS);
static ENTRY: Hook = tracepoint!("kvm_entry", NEEDS);
static USER_EXIT: Hook = tracepoint!("kvm_userspace_exit", NEEDS);

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "kvm",
    summary: "exits of virtual machines, and what their processes have to do for them",
    overhead: Overhead::medium("150 ns per exit"),
    needs: "KVM, built in or loaded",
    kernel_modules: &["kvm"],
    tables: &[&machines::TABLE, &reasons::TABLE],
    hooks: &[&EXIT, &ENTRY, &USER_EXIT],
    maps: MAPS,
    needs_to_run: &[Need::Processes],
    make: |_| Ok(Box::new(Kvm::new())),
    ..Spec::NEW
};

/// Number of virtual machines with counters of their own.
const PLACES: usize = 512;
/// Number of reasons of virtual machines with counters of their own.
const REASON_PLACES: usize = 4096;

/// Reasons for which a virtual machine exits to its process, by number (include/uapi/linux/kvm.h, without `KVM_EXIT_`).
const NAMES: [&str; 41] = [
    "UNKNOWN",
    "EXCEPTION",
    "IO",
    "HYPERCALL",
    "DEBUG",
    "HLT",
    "MMIO",
    "IRQ_WINDOW_OPEN",
    "SHUTDOWN",
    "FAIL_ENTRY",
    "INTR",
    "SET_TPR",
    "TPR_ACCESS",
    "S390_SIEIC",
    "S390_RESET",
    "DCR",
    "NMI",
    "INTERNAL_ERROR",
    "OSI",
    "PAPR_HCALL",
    "S390_UCONTROL",
    "WATCHDOG",
    "S390_TSCH",
    "EPR",
    "SYSTEM_EVENT",
    "S390_STSI",
    "IOAPIC_EOI",
    "HYPERV",
    "ARM_NISV",
    "X86_RDMSR",
    "X86_WRMSR",
    "DIRTY_RING_FULL",
    "AP_RESET_HOLD",
    "X86_BUS_LOCK",
    "XEN",
    "RISCV_SBI",
    "RISCV_CSR",
    "NOTIFY",
    "LOONGARCH_IOCSR",
    "MEMORY_FAULT",
    "TDX",
];
/// Numbers of the programs for what has no reason: a signal came (`KVM_RESTART`), or the call failed (`KVM_ERROR`).
const OTHERS: [(u64, &str); 2] = [(254, "RESTART"), (255, "ERROR")];

/// Returns the name of a reason.
fn reason(number: u64) -> String {
    let other = || OTHERS.iter().find(|(other, _)| *other == number).map(|(_, name)| *name);
    let name = NAMES.get(number as usize).copied().or_else(other);
    name.map_or_else(|| number.to_string(), str::to_owned)
}

/// Names of virtual machines by their processes, and of their reasons.
struct Machines {
    by_reason: bool,
}

impl Machines {
    fn process(&self, id: u64) -> u32 {
        (if self.by_reason { id >> 8 } else { id }) as u32
    }
}

impl Names for Machines {
    /// The name that the process was given for its guest, or else its command, is behind the number of the process.
    fn name(&self, id: u64) -> Option<Vec<u8>> {
        let process = self.process(id);
        let name = guest_of(process).map(String::into_bytes).or_else(|| comm(process))?;
        let name = [format!("{process}::").as_bytes(), &name].concat();
        let reason = self.by_reason.then(|| format!("::{}", reason(id & 0xff)));
        Some([&name, reason.unwrap_or_default().as_bytes()].concat())
    }

    fn is_there(&self, id: u64, _name: &[u8]) -> bool {
        exists(self.process(id))
    }

    fn labels(&self, id: u64, name: &[u8]) -> SeriesLabels {
        let text = |text: &str| SeriesLabel::Text(text.into());
        let name = String::from_utf8_lossy(name);
        let machine = name.split_once("::").map_or(&*name, |(_, machine)| machine);
        let mut labels = vec![("pid", SeriesLabel::Number(self.process(id).into()))];
        match machine.rsplit_once("::").filter(|_| self.by_reason) {
            Some((machine, reason)) => labels.extend([("vm", text(machine)), ("reason", text(reason))]),
            None => labels.push(("vm", text(machine))),
        }
        labels
    }
}

struct Kvm {
    machines: PlacedHistograms<kvm_row>,
    reasons: PlacedHistograms<kvm_reason>,
}

impl Kvm {
    fn new() -> Kvm {
        let window = Seconds(60).window();
        let names = |by_reason| Ok(Machines { by_reason });
        Kvm {
            machines: PlacedHistograms::new(&machines::BY_MACHINE, names(false), window, Buckets::default()),
            reasons: PlacedHistograms::new(&reasons::BY_REASON, names(true), window, Buckets::default()),
        }
    }

    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        let displaced = kernel.rows(STATS).sum(kvm_stat::displaced);
        each(
            "untimed: exits whose time is not known because too many virtual processors were out at a time",
            displaced,
        );
    }
}

impl Module for Kvm {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        let size = machines::BY_MACHINE.plan(PLACES, host, plan);
        (constants.kvm_mask, constants.kvm_cpu_shift) = (size.mask, size.shift);
        constants.kvm_shared = size.shift > 0;
        tell(size.shift, "a virtual machine", "10 ns more per exit");
        let one = Host { cpus: 1, ..*host };
        constants.kvm_reason_mask = reasons::BY_REASON.plan(REASON_PLACES, &one, plan).mask;
        constants.kvm_outside_mask = plan_set_table(plan, OUTSIDE.name, by_thread(host));
        plan.entries(STATS.def.name, host.cpus);
        [&EXIT, &ENTRY, &USER_EXIT].into_iter().for_each(|hook| plan.attach(hook));
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        let running =
            PlacedHistograms::add_table(Running::of(*self), &machines::TABLE, |module| Some(&mut module.machines));
        PlacedHistograms::add_table(running, &reasons::TABLE, |module| Some(&mut module.reasons))
            .losses(Self::losses)
            .started()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_its_exits_and_their_reasons() {
        let fake = Fake::new().with(MACHINES, 4).with(ROWS, 5).with(MARKS, 5).with(STATS, 2);
        let fake = fake.with(REASONS, 4).with(REASON_ROWS, 5).with(REASON_MARKS, 5);
        let me = u64::from(std::process::id());
        fake.set(MACHINES, 1, place_owner::id, me);
        for (field, value) in [kvm_row::exits, kvm_row::exit_ns, kvm_row::user, kvm_row::user_ns].into_iter().zip(1..) {
            fake.set(ROWS, 2, field, value);
        }
        fake.set(ROWS, 0, kvm_row::exits, 9);
        for (place, number) in [(0, 2), (1, 254)] {
            fake.set(REASONS, place, place_owner::id, me << 8 | number);
            fake.set(REASON_ROWS, place + 1, kvm_reason::count, number);
        }
        fake.set(STATS, 1, kvm_stat::displaced, 3);
        let running = Box::new(Kvm::new()).start(&fake);
        let name = String::from_utf8(comm(me as u32).unwrap()).unwrap();
        let table = fake.filled(&machines::TABLE, &running);
        assert_eq!(table.names(), [format!("{me}::{name}"), "other".into()]);
        assert_eq!([0, 1, 2, 3].map(|column| table.number(0, column)), [1, 2, 3, 4].map(Some));
        let table = fake.filled(&reasons::TABLE, &running);
        assert_eq!(table.names()[..2], [format!("{me}::{name}::IO"), format!("{me}::{name}::RESTART")]);
        assert_eq!(table.labels(0).unwrap()[2], ("reason", SeriesLabel::Text("IO".into())));
        let mut lost = Vec::new();
        running.losses(&fake, &mut |_, count| lost.push(count));
        assert_eq!(lost, [9, 0, 3]);
    }

    #[test]
    fn a_reason_without_a_name_is_a_number() {
        assert_eq!([0, 40, 41, 255].map(reason), ["UNKNOWN", "TDX", "41", "ERROR"]);
    }
}
