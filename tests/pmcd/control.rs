//! Who may change what runs, asked by pmstore through a real pmcd.

use crate::instance::Pmcd;
use crate::support::{lacks, told, wait_for, ALL};
use nix::unistd::{Uid, User};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

/// pmstore, run with this user id.
fn store(mut client: Command, user: Uid, order: &str) -> Output {
    client.args(["-i", "exectop", "bcc.agent.module.control", order]).uid(user.as_raw()).gid(user.as_raw());
    client.output().unwrap()
}

#[test]
fn root_and_named_users_change_what_runs_over_the_socket() {
    if lacks(&["pmstore"]) {
        return;
    }
    let config = ALL.replace("[pmda]", "[pmda]\nload_later = True\ncontrol_users = daemon");
    let Some(pmcd) = Pmcd::beside(&config, &[]) else { return };
    // Everybody may reach pmcd.
    fs::set_permissions(pmcd.home.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(pmcd.home.path("pmcd.socket"), fs::Permissions::from_mode(0o777)).unwrap();
    let user = |name: &str| User::from_name(name).unwrap().unwrap().uid;
    let local = || pmcd.local_client("pmstore");
    let is_there = || pmcd.run("pminfo", &["bcc.proc.exec.count"]).status.success();
    let refused = |output: &Output| told(output).contains("No permission to perform requested operation");

    let nobody = store(local(), user("nobody"), "stop");
    assert!(refused(&nobody) && is_there(), "{}", told(&nobody));
    let over_tcp = store(pmcd.client("pmstore"), Uid::from_raw(0), "stop");
    assert!(refused(&over_tcp) && is_there(), "{}", told(&over_tcp));
    let log = pmcd.home.log();
    assert!(log.contains("nobody (uid ") && log.contains("a client whose user pmcd does not know"), "{log}");

    let stopped = store(local(), user("daemon"), "stop");
    assert!(stopped.status.success(), "{}\n{}", told(&stopped), pmcd.home.log());
    wait_for("the metric to go", || (!is_there()).then_some(()));
    let started = store(local(), Uid::from_raw(0), "start");
    assert!(started.status.success(), "{}\n{}", told(&started), pmcd.home.log());
    wait_for("the metric to come back", || is_there().then_some(()));
    let answers = pmcd.values("bcc.agent.module.control");
    assert!(answers.contains(&("exectop".into(), "\"done\"".into())), "{answers:?}");
    wait_for("its values", || (!pmcd.values("bcc.proc.exec.count").is_empty()).then_some(()));
}
