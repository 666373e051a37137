//! Orders by pmstore through a real pmcd: clients that may give them and others, over its socket, over TCP, and over TCP with a
//! login.

use crate::instance::{pipe, Pmcd};
use crate::support::{lacks, skip, told, wait_for, Home, ALL};
use nix::unistd::{Uid, User};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

/// Runs pmstore with this user id.
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

/// Lets these users log in to a pmcd that is started next, with the password "secret". The file is one of Berkeley DB, as saslpasswd2
/// writes it; that program's package would bring other versions of the libraries that pmcd uses.
fn let_in(home: &Home, users: &[&str]) {
    fs::create_dir(home.path("sasl2")).unwrap();
    let passwords = home.path("passwords.db");
    let lines = format!("mech_list: plain\npwcheck_method: auxprop\nsasldb_path: {}\n", passwords.display());
    fs::write(home.path("sasl2/pmcd.conf"), lines).unwrap();
    let write = "import dbm.ndbm, socket, sys\n\
                 db = dbm.ndbm.open(sys.argv[1], 'n')\n\
                 for user in sys.argv[2:]:\n\
                 \x20   for realm in socket.gethostname(), socket.getfqdn():\n\
                 \x20       db['\\0'.join((user, realm.lower(), 'userPassword'))] = 'secret'\n\
                 db.close()\n";
    let written =
        Command::new(PYTHON).args(["-c", write]).arg(passwords.with_extension("")).args(users).output().unwrap();
    assert!(written.status.success() && passwords.exists(), "{}", told(&written));
}

/// Debian's Python; others may lack Berkeley DB.
const PYTHON: &str = "/usr/bin/python3";

/// Returns true, and prints that, if nobody could log in to a pmcd here.
fn lacks_logins() -> bool {
    let dirs = |path: &str| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let plain = |dir: std::path::PathBuf| dir.join("sasl2/libplain.so").exists();
    if !["/usr/lib", "/usr/lib64"].into_iter().any(|path| plain(path.into()) || dirs(path).any(plain)) {
        skip("SASL's mechanism PLAIN (Debian's libsasl2-modules)");
        return true;
    }
    let berkeley =
        Command::new(PYTHON).args(["-c", "import dbm.ndbm as d; assert d.library == 'Berkeley DB'"]).output();
    if !berkeley.is_ok_and(|output| output.status.success()) {
        skip("a Python whose dbm.ndbm is Berkeley DB, to write a file of passwords");
        return true;
    }
    false
}

#[test]
fn a_login_over_tcp_is_who_it_says_and_no_more() {
    if lacks(&["pmstore"]) || lacks_logins() {
        return;
    }
    let config = "[pmda]\nmodules = sysfork, exectop\nload_later = True\ncontrol_users = daemon\n\
                  [sysfork]\nmodule = sysfork\ncluster = 2\n[exectop]\nmodule = exectop\ncluster = 13\n";
    let Some(pmcd) = Pmcd::serving(config, &[], |home| {
        let_in(home, &["daemon", "nobody", "root"]);
        pipe()
    }) else {
        return;
    };
    let store = |user, password, order| store(pmcd.logged_in("pmstore", user, password), Uid::from_raw(0), order);
    let is_there = || pmcd.run("pminfo", &["bcc.proc.exec.count"]).status.success();

    let not_named = store("nobody", "secret", "stop");
    assert!(told(&not_named).contains("No permission to perform requested operation"), "{}", told(&not_named));
    let wrong = store("daemon", "guess", "stop");
    assert!(told(&wrong).contains("authentication failure") && is_there(), "{}", told(&wrong));
    let log = pmcd.home.log();
    assert!(log.contains("nobody may not change what runs: only root may, and whom `control_users`"), "{log}");
    assert!(!log.contains("daemon"), "pmcd has refused the wrong password, and the agent saw nothing of it: {log}");

    let named = store("daemon", "secret", "stop");
    assert!(named.status.success(), "{}\n{}", told(&named), pmcd.home.log());
    wait_for("the metric to go", || (!is_there()).then_some(()));
    let root = store("root", "secret", "start");
    assert!(root.status.success(), "{}\n{}", told(&root), pmcd.home.log());
    wait_for("the metric to come back", || is_there().then_some(()));
}
