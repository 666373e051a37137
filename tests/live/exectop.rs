//! exectop: execs under names that no other process uses, so that the numbers are exact.

use crate::support::{alone, run, Agent, Script};
use std::os::unix::fs::symlink;

fn count(agent: &mut Agent, name: &str) -> u64 {
    agent.named().get(name).map_or(0, |numbers| numbers[0])
}

/// Makes a directory with `true` under other names.
fn copies(names: &[&str]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for name in names {
        symlink("/bin/true", directory.path().join(name)).unwrap();
    }
    directory
}

#[test]
fn as_many_execs_are_counted_as_there_were() {
    let _alone = alone();
    let mut agent = Agent::new("exectop", "");
    let directory = copies(&["corebccexecs"]);
    let path = directory.path().join("corebccexecs");
    run("sh", &["-c", &format!("for i in $(seq 250); do {}; done", path.display())]);
    assert_eq!(count(&mut agent, "corebccexecs"), 250);
    assert_eq!(agent.warnings(), [""; 0]);
}

#[test]
fn failed_execs_are_not_counted_under_either_name() {
    let _alone = alone();
    let mut agent = Agent::new("exectop", "");
    let directory = copies(&["corebccfails"]);
    let path = directory.path().join("corebccfails");
    // No execution permission, not a program, not there; the caller has a name of its own, which the original counted.
    std::fs::write(directory.path().join("rubbish"), "\x7fELF but no more").unwrap();
    run("chmod", &["644", path.to_str().unwrap()]);
    run("chmod", &["755", directory.path().join("rubbish").to_str().unwrap()]);
    let source = format!(
        "open('/proc/self/comm', 'w').write('corebcccaller')\n\
         for name in ['corebccfails', 'rubbish', 'missing'] * 20:\n\
         \x20try: os.execv('{0}/' + name, [name])\n\
         \x20except OSError: pass\n\
         os.chmod('{0}/corebccfails', 0o755)\n\
         os.execv('{0}/corebccfails', ['x'])",
        directory.path().display()
    );
    Script::python(&source).end();
    let named = agent.named();
    assert_eq!(named.get("corebccfails"), Some(&vec![1]));
    assert!(!named.contains_key("corebcccaller") && !named.contains_key("rubbish"), "{named:?}");
}

#[test]
fn names_may_share_a_first_word_and_need_not_be_text() {
    let _alone = alone();
    let mut agent = Agent::new("exectop", "");
    let directory = copies(&["corebcc one", "corebcc two"]);
    for (name, times) in [("corebcc one", 3), ("corebcc two", 4)] {
        for _ in 0..times {
            run(directory.path().join(name).to_str().unwrap(), &[]);
        }
    }
    // Cut by the kernel at 15 bytes, in the middle of a character.
    let long = "corebccexecsée";
    symlink("/bin/true", directory.path().join(long)).unwrap();
    run(directory.path().join(long).to_str().unwrap(), &[]);
    assert_eq!((count(&mut agent, r"corebcc\x20one"), count(&mut agent, r"corebcc\x20two")), (3, 4));
    assert_eq!(long.len(), 15);
    assert_eq!(count(&mut agent, r"corebccexecs\xc3\xa9e"), 1);
}

#[test]
fn more_names_than_places_are_counted_as_lost_and_not_forgotten() {
    let _alone = alone();
    let mut agent = Agent::new("exectop", "");
    // A name for each of 18000 execs, in a table of 16384 places: a program run by as many links. It only exits, since the
    // start of one with libraries takes a millisecond.
    let directory = tempfile::tempdir().unwrap();
    let exit: (u16, &[u8]) = match std::env::consts::ARCH {
        "aarch64" => (183, b"\xa8\x0b\x80\xd2\x00\x00\x80\xd2\x01\x00\x00\xd4"), // x8 = 93, x0 = 0, svc
        _ => (62, b"\xb8\x3c\x00\x00\x00\x31\xff\x0f\x05"),                      // eax = 60, edi = 0, syscall
    };
    let begin =
        format!("directory, machine, code = '{}', {}, bytes({:?})\n", directory.path().display(), exit.0, exit.1);
    Script::python(&(begin + include_str!("../programs/exec_names.py"))).end();
    let shown: u64 =
        agent.named().iter().filter(|(name, _)| name.starts_with("corebcc")).map(|(_, numbers)| numbers[0]).sum();
    let warnings = agent.warnings();
    let lost: u64 = warnings.iter().filter_map(|line| line.split(' ').next()?.parse::<u64>().ok()).sum();
    println!("{shown} shown, {lost} lost");
    assert!(warnings.iter().any(|line| line.ends_with("without a row in the table")), "{warnings:?}");
    assert!(shown > 12000 && shown + lost >= 18000, "{shown} shown, {lost} lost");
    // Others' execs can be among the lost, no more.
    assert!(shown + lost < 18500, "{shown} shown, {lost} lost");
    // A quarter of an hour later there is a place again, at the latest a minute after a name found none.
    let program = copies(&["corebcclater"]);
    for minutes in [15, 1] {
        (0..minutes * 60 + 1).for_each(|_| agent.tick());
        run(program.path().join("corebcclater").to_str().unwrap(), &[]);
    }
    assert!(count(&mut agent, "corebcclater") > 0);
}
