//! Stopping a thread of the agent at a system call, by strace.

use super::{wait_for, Home, Proc};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns the thread of an agent that loads and collects.
pub fn collector(agent: i32) -> PathBuf {
    let is_collector = |task: &PathBuf| fs::read_to_string(task.join("comm")).unwrap() == "collector\n";
    let mut tasks = fs::read_dir(format!("/proc/{agent}/task")).unwrap().flatten().map(|task| task.path());
    tasks.find(is_collector).unwrap()
}

/// Starts strace with these arguments, attached to a thread.
pub fn tracer(home: &Home, task: &Path, arguments: &[&str]) -> Proc {
    let mut strace = Command::new("strace");
    strace.args(arguments).arg("-p").arg(task.file_name().unwrap());
    strace.stdout(Stdio::null()).stderr(home.create("strace.log"));
    let strace = Proc(strace.spawn().unwrap());
    wait_for("the tracer", || home.read("strace.log").contains("attached").then_some(()));
    strace
}

/// Starts strace so that it stops only the collecting thread, for a minute, where it waits for work.
pub fn held(home: &Home, agent: i32) -> Proc {
    let task = collector(agent);
    let inject = "inject=/^p?poll$:delay_enter=60000000";
    let mut strace = tracer(home, &task, &["-e", "trace=/^p?poll$", "-e", inject]);
    let mut seen = 0;
    wait_for("the tracer to hold the thread", || {
        let status = fs::read_to_string(task.join("status")).unwrap();
        seen = if status.contains("State:\tt") { seen + 1 } else { 0 };
        assert!(strace.0.try_wait().unwrap().is_none(), "{}", home.read("strace.log"));
        (seen > 40).then_some(())
    });
    strace
}
