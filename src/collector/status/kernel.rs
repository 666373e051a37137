//! Features of the kernel, present or missing.

use super::{set_opt, AgentStatus, Sets, NAMES};
use crate::kit::{Shape, Table, TableSpec};
use crate::loader::Finding;
use crate::metrics;
use std::collections::BTreeSet;

metrics! {
    THERE: u32 = 0 "agent.kernel.feature" DISCRETE NONE "1 if the kernel has the feature, 0 if not";
    STATUS: str = 1 "agent.kernel.status" DISCRETE NONE "how the agent knows of a feature, or why it is not available";
}

pub static TABLE: TableSpec = TableSpec {
    summary: "each feature",
    cluster: 305,
    shape: Shape::Named { max: NAMES },
    metrics: METRICS,
    ..TableSpec::NEW
};

/// Features that modules look for in the kernel's types: the name in the sources, the instance, and the meaning of a 1 in an
/// administrator's words.
const QUESTIONS: [(&str, &str, &str); 4] = [
    (
        "plug_clock",
        "block_time_cached",
        "the block layer gives requests that are submitted together one time stamp (blk_plug.cur_ktime)",
    ),
    (
        "no_sched_info",
        "no_queue_time",
        "the scheduler does not note when a task is queued (no CONFIG_SCHED_INFO, task_struct.sched_info)",
    ),
    ("group_dead", "last_thread_named", "sched_process_exit says whether a thread is the last of its process (6.16)"),
    (
        "oom_task",
        "oom_victim_known",
        "mark_victim says more of its process than the id (6.8, and before in distributions)",
    ),
];

pub fn fill(sets: &Sets, status: &AgentStatus, table: &mut Table) {
    let mut told = BTreeSet::new();
    for Finding { feature, there, said } in sets.findings().chain([&status.statistics.finding()]) {
        if !told.insert(*feature) {
            continue; // a set that was loaded later says it again
        }
        let question = QUESTIONS.iter().find(|(name, ..)| name == feature);
        let (name, said) = match question {
            Some((_, name, meaning)) => (*name, format!("{meaning}: {said}")),
            None => (*feature, said.clone()),
        };
        set_opt(table.named(name.as_bytes()).text(STATUS, said.as_bytes()), THERE, there.map(u32::from));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::OBJECT;

    #[test]
    fn every_question_of_a_module_has_an_administrators_words() {
        let named: Vec<&str> = QUESTIONS.iter().map(|(name, ..)| *name).collect();
        for feature in OBJECT.features {
            assert!(named.contains(&feature.0), "{}: add it to QUESTIONS, and to BCC.305 in help", feature.0);
        }
        assert_eq!(named.len(), OBJECT.features.len());
    }
}
