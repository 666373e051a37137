//! Entries and memory of each BPF map.

use super::{set_opt, AgentStatus, Sets, NAMES};
use crate::kit::{Kernel, Shape, Table, TableSpec};
use crate::metrics;

metrics! {
    KIND: str = 0 "agent.map.kind" DISCRETE NONE "kind of a BPF map: array, hash, ringbuf, ...";
    MODULES: str = 1 "agent.map.modules" DISCRETE NONE "modules that use a BPF map";
    CAPACITY: u64 = 2 "agent.map.entries.capacity" DISCRETE COUNT "entries that fit into a BPF map";
    USED: u64 = 3 "agent.map.entries.used" INSTANT COUNT "entries in use of a BPF map";
    KEY: u64 = 4 "agent.map.key.size" DISCRETE BYTE "size of a key of a BPF map";
    VALUE: u64 = 5 "agent.map.value.size" DISCRETE BYTE "size of a value of a BPF map";
    MEMORY: u64 = 6 "agent.map.memory" INSTANT BYTE "kernel memory of a BPF map";
    RING_SIZE: u64 = 7 "agent.map.ring.size" DISCRETE BYTE "size of a ring buffer";
    RING_USED: u64 = 8 "agent.map.ring.used" INSTANT BYTE "bytes in a ring buffer that the agent has not read yet";
    LOST: u64 = 9 "agent.map.lost" COUNTER COUNT "events dropped because a BPF map was full";
}

pub static TABLE: TableSpec = TableSpec {
    summary: "each BPF map",
    cluster: 303,
    shape: Shape::Named { max: NAMES },
    metrics: METRICS,
    ..TableSpec::NEW
};

pub fn fill(sets: &Sets, _status: &AgentStatus, table: &mut Table) {
    for (set, map) in sets.iter().flat_map(|set| set.kernel.maps().into_iter().map(move |map| (set, map))) {
        let kernel: &dyn Kernel = &*set.kernel;
        let specs = set.iter().map(|loaded| loaded.spec);
        let def =
            specs.flat_map(|spec| spec.maps.iter().map(|def| (def, spec.maps))).find(|(def, _)| def.name == map.name);
        let taken = def.and_then(|(def, _)| kernel.taken(def));
        let users = set.users(|spec| spec.maps.iter().any(|def| def.name == map.name));
        let name = sets.name(set, &map.name);
        let row = table.named(name.as_bytes()).text(KIND, map.kind.as_bytes()).text(MODULES, users.as_bytes());
        let row = set_opt(row, MEMORY, map.memory);
        let row = set_opt(row, LOST, def.and_then(|(def, maps)| kernel.lost(def, maps)));
        if map.kind == "ringbuf" {
            set_opt(row.set(RING_SIZE, map.capacity.into()), RING_USED, map.used);
        } else {
            let row =
                row.set(CAPACITY, map.capacity.into()).set(KEY, map.key_size.into()).set(VALUE, map.value_size.into());
            set_opt(row, USED, map.used.or(taken));
        }
    }
}
