//! Parts that several modules share.

pub mod block;
pub mod by_process;
pub mod cgroups;
pub mod ended;
pub mod flows;
pub mod fsdist;
pub mod groups;
pub mod hits;
pub mod latest;
pub mod numbers;
pub mod places;
pub mod process_counts;
pub mod runtimes;
pub mod stacks;
pub mod tcp;
