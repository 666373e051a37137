//! packaging/files, the one list of what is installed where, beside the checkout; scripts/stage, which follows it; and scripts that
//! leave a package's files alone.

#![allow(clippy::unwrap_used)] // in helpers too, which clippy.toml does not cover

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Returns the entries of packaging/files: name, class and mode.
fn entries() -> Vec<(String, String, u32)> {
    let text = fs::read_to_string(format!("{ROOT}/packaging/files")).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let entry = |line: &str| {
        let [name, class, mode] = line.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{line}") };
        (name.to_owned(), class.to_owned(), u32::from_str_radix(mode, 8).unwrap())
    };
    lines.map(entry).collect()
}

/// Returns the class of a file: that of the longest entry that is the file or a directory above it.
fn class(file: &str) -> Option<String> {
    let is_for = |name: &str| file.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let entries = entries().into_iter().filter(|(name, ..)| is_for(name));
    entries.max_by_key(|(name, ..)| name.len()).map(|(_, class, _)| class)
}

/// Returns the files of the checkout that git knows or would add, or `None` without git.
fn files() -> Option<Vec<String>> {
    let mut git = Command::new("git");
    git.args(["-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard"]).current_dir(ROOT);
    let output = git.output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).unwrap();
    Some(text.lines().filter(|file| Path::new(ROOT).join(file).exists()).map(str::to_owned).collect())
}

/// Returns all files and links below a directory, by their paths from it.
fn below(root: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut left = vec![root.to_path_buf()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                left.push(entry.path());
            } else {
                found.insert(entry.path().strip_prefix(root).unwrap().display().to_string());
            }
        }
    }
    found
}

/// Stages a form with a program that only makes completions, and returns the directory.
fn staged(form: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    fs::write(&program, "#!/bin/sh\necho $1 of $2\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut stage = Command::new("scripts/stage");
    let output = stage.arg(form).arg(dir.path().join("root")).arg(program).current_dir(ROOT).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    dir
}

#[test]
fn every_file_of_the_checkout_has_a_class() {
    let Some(files) = files() else {
        println!("skipped: every_file_of_the_checkout_has_a_class: no git, or no checkout");
        return;
    };
    let without: Vec<_> = files.iter().filter(|file| class(file).is_none()).collect();
    assert!(without.is_empty(), "packaging/files says nothing of {without:?}");
    // These two are made.
    for (name, ..) in entries().iter().filter(|(name, ..)| !["pmdacorebcc", "THIRD-PARTY"].contains(&&**name)) {
        let is_there = files.iter().any(|file| file.strip_prefix(&**name).is_some_and(|rest| !rest.starts_with('.')));
        assert!(is_there, "packaging/files names {name}, which is not there");
    }
}

#[test]
fn each_form_has_the_files_of_its_classes() {
    let Some(files) = files() else {
        println!("skipped: each_form_has_the_files_of_its_classes: no git, or no checkout");
        return;
    };
    for (form, left_out) in
        [("pmda", &["source", "setup"][..]), ("release", &["source"]), ("package", &["source", "setup"])]
    {
        let dir = staged(form);
        let there = below(&dir.path().join("root"));
        let last = |file: &str| file.rsplit('/').next().unwrap().to_owned();
        let names: BTreeSet<String> = there.iter().map(|file| last(file)).collect();
        for file in files.iter().filter(|file| **file != "LICENSE") {
            let is_installed = !left_out.contains(&class(file).unwrap().as_str());
            let name =
                if file == "corebcc.conf" && form != "release" { "corebcc.conf.default".into() } else { last(file) };
            assert!(!is_installed || names.contains(&name), "{form}: {file} is not installed");
            assert!(is_installed || !there.contains(file), "{form}: {file} is installed");
        }
        assert!(there.iter().any(|file| file.ends_with("pmdacorebcc")), "{form}");
        for (name, _, mode) in entries().iter().filter(|(_, class, _)| class == "script") {
            let place = there.iter().find(|file| last(file) == last(name)).unwrap();
            let meta = dir.path().join("root").join(place).symlink_metadata().unwrap();
            assert!(meta.is_symlink() || meta.permissions().mode() & 0o777 == *mode, "{form}: {place}");
        }
    }
}

/// Links lead to files of the package, and tmpfiles.d makes the same ones where /var is not part of the image.
#[test]
fn links_of_a_package_lead_into_it() {
    let dir = staged("package");
    let root = dir.path().join("root");
    let mut links = BTreeSet::new();
    for name in below(&root) {
        let Ok(target) = fs::read_link(root.join(&name)) else { continue };
        let inside: PathBuf = root.join(target.strip_prefix("/").unwrap());
        assert!(inside.is_file(), "{name} leads to {}", target.display());
        links.insert(format!("L /{name} - - - - {}", target.display()));
    }
    let text = fs::read_to_string(root.join("usr/lib/tmpfiles.d/pcp-pmda-corebcc.conf")).unwrap();
    let made: BTreeSet<String> = text.lines().filter(|line| line.starts_with('L')).map(str::to_owned).collect();
    assert!(made.len() > 8 && made.is_subset(&links), "{made:?}");
    let agents = links.iter().filter(|link| link.starts_with("L /var/lib/pcp/pmdas/"));
    assert_eq!(agents.count(), made.len());
}

/// A package's files stay where Install and Remove of an agent from a package run, and nothing is put over them.
#[test]
fn files_of_packages_are_left_alone() {
    let dir = staged("pmda");
    let agent = dir.path().join("root");
    let run = |functions: &str| -> Output {
        let mut command = Command::new("sh");
        command.args(["-euc", &format!(". ./registration.sh; {functions}")]).current_dir(&agent).stdin(Stdio::null());
        for (name, place) in [
            ("SYSCONF", "etc"),
            ("VAR", "var"),
            ("BIN", "bin"),
            ("BINADM", "pcp"),
            ("MAN", "man"),
            ("SHARE", "usr/share/pcp"),
        ] {
            command.env(format!("PCP_{name}_DIR"), dir.path().join("own").join(place));
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{functions}: {output:?}");
        output
    };
    let own = dir.path().join("own");
    fs::create_dir_all(own.join("bin")).unwrap();
    let packages = [
        "etc/pmrep/corebcc.conf",
        "etc/pmlogconf/corebcc/runqlat",
        "var/config/pmlogconf/corebcc/runqlat",
        "etc/pmieconf/corebcc/disk_queue",
        "var/config/pmieconf/corebcc/disk_queue",
    ];
    for name in packages {
        fs::create_dir_all(own.join(name).parent().unwrap()).unwrap();
        fs::write(own.join(name), "of a package").unwrap();
    }
    fs::write(agent.join(".packaged"), "").unwrap();
    run("place_consumers; write_completions; place_commands");
    run("take_consumers; take_commands");
    assert_eq!(below(&own), packages.map(str::to_owned).into());
    assert!(packages.iter().all(|name| fs::read_to_string(own.join(name)).unwrap() == "of a package"));
    // Without the mark they are put there.
    fs::remove_file(agent.join(".packaged")).unwrap();
    run("place_consumers; write_completions; place_commands");
    assert!(below(&own).len() > 20 && fs::read_to_string(own.join(packages[0])).unwrap() != "of a package");
}

#[test]
fn mandoc_has_nothing_to_say_of_the_pages_by_hand() {
    let Ok(output) = Command::new("mandoc")
        .args(["-T", "lint", "-W", "warning", "man/bpf-names.8", "man/pcp-corebcc.1"])
        .current_dir(ROOT)
        .output()
    else {
        println!("skipped: mandoc_has_nothing_to_say_of_the_pages_by_hand: the package mandoc");
        return;
    };
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
}

/// The policy module of the rpms.
const POLICY: &str = include_str!("../packaging/selinux/corebcc.cil");

/// Returns what a rule of the policy module gives the agent of a class.
fn permitted(class: &str) -> BTreeSet<String> {
    let rule = POLICY.lines().filter_map(|line| line.trim().strip_prefix("(allow pcp_pmcd_t self "));
    let of_class = rule.filter_map(|rule| rule.strip_prefix(&format!("({class} (")));
    of_class.flat_map(|list| list.trim_end_matches(')').split(' ')).map(str::to_owned).collect()
}

/// SELinux is asked for what the agent takes at most: to load its modules and scripts' helpers, and to hold no more.
#[test]
fn the_policy_module_gives_the_capabilities_that_modules_take() {
    let taken = corebcc::privilege::to_load(corebcc::modules::MODULES.iter().copied());
    let names = corebcc::privilege::names(&taken).to_lowercase();
    let names = names.split(", ").map(|name| name.trim_start_matches("cap_").to_owned());
    let to_give_up = ["setgid", "setpcap", "setuid"].map(String::from);
    let all: BTreeSet<String> = permitted("capability").into_iter().chain(permitted("capability2")).collect();
    assert_eq!(all, names.chain(to_give_up).collect());
}

/// The policy compiles in a policy with PCP's domain, also in one of a kernel without some of the classes.
#[test]
fn the_policy_module_compiles() {
    let classes = |bpf: &str| {
        let list = |class: &str| permitted(class).into_iter().collect::<Vec<_>>().join(" ");
        format!(
            "(class capability ({}))(class dir (add_name create getattr open read remove_name rename rmdir search setattr write))\
             (class file (create getattr open read rename setattr unlink write)){bpf}",
            list("capability"),
        ) + &if bpf.is_empty() {
            "(class capability2 (syslog))(classorder (capability dir file capability2))".to_owned()
        } else {
            format!(
                "(class capability2 ({}))(class bpf ({}))(class perf_event ({}))\
                 (classorder (capability dir file capability2 bpf perf_event))",
                list("capability2"),
                list("bpf"),
                list("perf_event")
            )
        }
    };
    for with_bpf in ["; all classes\n", ""] {
        let dir = tempfile::tempdir().unwrap();
        let base = format!(
            "(mls false)(handleunknown allow){}(sid kernel)(sidorder (kernel))(user u)(role r)(typeattribute cil_gen_require)(type t)(type pcp_pmcd_t)(type bpf_t)\
             (sensitivity s0)(sensitivityorder (s0))(level l (s0))(userlevel u l)(userrange u (l l))(userrole u r)(roletype r t)\
             (allow t self (file (read)))(sidcontext kernel (u r t (l l)))",
            classes(with_bpf)
        );
        fs::write(dir.path().join("base.cil"), base).unwrap();
        fs::write(dir.path().join("corebcc.cil"), POLICY).unwrap();
        let mut secilc = Command::new("secilc");
        secilc.args(["-o", "policy", "-f", "contexts", "base.cil", "corebcc.cil"]).current_dir(dir.path());
        let Ok(output) = secilc.output() else {
            println!("skipped: the_policy_module_compiles: the package secilc");
            return;
        };
        assert!(output.status.success(), "{output:?}");
    }
}

/// The crates have licences that packaging/about.toml lists, from which packaging/release writes THIRD-PARTY.
#[test]
fn crates_have_licences_that_go_with_ours() {
    let arguments =
        ["metadata", "--locked", "--offline", "--format-version", "1", "--filter-platform", "x86_64-unknown-linux-gnu"];
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(ROOT).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = fs::read_to_string(format!("{ROOT}/packaging/about.toml")).unwrap();
    let list = text.split_once("accepted = [").unwrap().1.split_once(']').unwrap().0;
    let accepted: BTreeSet<&str> = list.split('"').skip(1).step_by(2).collect();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 50);
    for package in packages {
        let licence = package["license"].as_str().unwrap_or("none");
        // Of alternatives one is enough; of what goes together each counts.
        let alternative = |text: &str| {
            let text = text.trim_matches(['(', ')', ' ']);
            accepted.contains(text.split(" WITH ").next().unwrap())
        };
        let fits = |part: &str| part.replace('/', " OR ").split(" OR ").any(alternative);
        assert!(licence.split(" AND ").all(fits), "{}: {licence}", package["name"]);
    }
}
