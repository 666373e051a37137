//! sysfork against the kernel's own count of tasks created (`processes` in /proc/stat).

use crate::common::tasks_created;
use crate::support::{alone, run, settle, Agent, Script};

/// Returns the module's count of some work, after comparing it with /proc/stat: the kernel counts there just before the tracepoint.
fn over(agent: &mut Agent, work: impl FnOnce()) -> u64 {
    let stat_0 = tasks_created();
    settle();
    let module_0 = agent.single();
    let stat_1 = tasks_created();
    work();
    let stat_2 = tasks_created();
    settle();
    let module_1 = agent.single();
    let stat_3 = tasks_created();
    let (counted, least, most) = (module_1 - module_0, stat_2 - stat_1, stat_3 - stat_0);
    println!("counted {counted}, /proc/stat {least} to {most}");
    assert!((least..=most).contains(&counted), "counted {counted}, /proc/stat {least} to {most}");
    counted
}

#[test]
fn every_new_task_is_counted_as_in_proc_stat() {
    let _alone = alone();
    let mut agent = Agent::new("sysfork", "");
    let counted =
        over(&mut agent, || drop(run("sh", &["-c", "for i in 1 2 3 4 5 6 7 8 9 10; do (:) & (:) ; done; wait"])));
    assert!(counted >= 21, "{counted} of 20 subshells and the shell");
}

#[test]
fn forks_vforks_and_threads_of_a_known_loop_are_all_counted() {
    let _alone = alone();
    let mut agent = Agent::new("sysfork", "");
    let mut script = Script::python(
        "step('ready')\n\
         for i in range(200):\n pid = os.fork()\n if not pid: os._exit(0)\n os.waitpid(pid, 0)\n\
         step('forked')\n\
         for i in range(50): os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)\n\
         step('spawned')\n\
         for i in range(300):\n t = threading.Thread(target=lambda: 0)\n t.start()\n t.join()\n\
         step('threads')\n",
    );
    script.line();
    for (done, count) in [("forked", 200), ("spawned", 50), ("threads", 300)] {
        let counted = over(&mut agent, || {
            script.go();
            assert_eq!(script.line(), done);
        });
        assert!(counted >= count, "{counted} of {count} {done}");
    }
}
