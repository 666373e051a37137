//! mountsnoop against the calls that a process makes.

use crate::support::{alone, number, Agent, Sleeper};
use corebcc::modules::find;
use nix::errno::Errno;
use nix::libc;
use nix::mount::{mount, umount2, MntFlags, MsFlags};
use nix::sched::{unshare, CloneFlags};
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::parent_id;
use std::path::PathBuf;
use std::time::Instant;

const PID: usize = 0;
const OP: usize = 4;
const RET: usize = 10;
const LAT: usize = 11;
const MNT_NS: usize = 12;
const CALL: usize = 13;
const SEQ: usize = 15;

/// Returns the directory of a test with this process.
fn directory(test: u32) -> PathBuf {
    std::env::temp_dir().join(format!("corebcc-mounts-{test}"))
}

/// Makes a call with these arguments, of which strings are given as texts.
fn call(number: i64, arguments: [Result<i64, &str>; 5]) -> i64 {
    let texts = arguments.map(|argument| argument.err().map(|text| CString::new(text).unwrap()));
    let words: Vec<i64> = arguments
        .iter()
        .zip(&texts)
        .map(|(argument, text)| text.as_ref().map_or(argument.unwrap_or(0), |text| text.as_ptr() as i64))
        .collect();
    // SAFETY: the strings live until the call has returned, which takes nothing else that is a pointer.
    unsafe { libc::syscall(number, words[0], words[1], words[2], words[3], words[4]) }
}

/// Mounts and unmounts in a name space of its own, by the older calls and by those of descriptors.
fn mounts(_: u32) {
    let directory = directory(parent_id());
    let path = directory.to_str().unwrap();
    let nothing: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).unwrap();
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("corebcc"), path, Some("tmpfs"), flags, Some("size=1m,mode=700")).unwrap();
    umount2(path, MntFlags::MNT_DETACH).unwrap();
    assert!(umount2(path, MntFlags::empty()).is_err());
    assert!(mount(Some("//no/such"), path, Some("nosuchfs"), MsFlags::empty(), Some("user=joe,password=x")).is_err());
    let context = call(libc::SYS_fsopen, [Err("tmpfs"), Ok(1), Ok(0), Ok(0), Ok(0)]);
    assert_eq!(call(libc::SYS_fsconfig, [Ok(context), Ok(1), Err("size"), Err("2m"), Ok(0)]), 0);
    assert_eq!(call(libc::SYS_fsconfig, [Ok(context), Ok(6), Ok(0), Ok(0), Ok(0)]), 0);
    let mounted = call(libc::SYS_fsmount, [Ok(context), Ok(1), Ok(1), Ok(0), Ok(0)]);
    assert_eq!(call(libc::SYS_move_mount, [Ok(mounted), Err(""), Ok(-100), Err(path), Ok(4)]), 0);
    let picked = call(libc::SYS_fspick, [Ok(-100), Err(path), Ok(1), Ok(0), Ok(0)]);
    set_attributes(path);
    // An open descriptor of the mount keeps it busy.
    for descriptor in [context, mounted, picked] {
        assert_eq!(call(libc::SYS_close, [Ok(descriptor), Ok(0), Ok(0), Ok(0), Ok(0)]), 0);
    }
    umount2(path, MntFlags::empty()).unwrap();
}

/// Makes a mount one whose programs are not executed, and which may be written to. Returns the error, if there is one.
fn set_attributes(path: &str) -> Option<i32> {
    const NOEXEC: u64 = 8;
    const READ_ONLY: u64 = 1;
    const AT_RECURSIVE: i64 = 0x8000;
    let attributes = [NOEXEC, READ_ONLY, 0, 0];
    let size = size_of_val(&attributes) as i64;
    let result = call(
        libc::SYS_mount_setattr,
        [Ok(-100), Err(path), Ok(AT_RECURSIVE), Ok(attributes.as_ptr() as i64), Ok(size)],
    );
    (result < 0).then(Errno::last_raw)
}

#[test]
fn calls_that_mount_have_rows_in_order() {
    let _alone = alone();
    let path = directory(std::process::id());
    let mut process = Sleeper::doing(mounts);
    let options = format!("process = {}\nprocess_count = 40", process.pid());
    let Some(mut agent) = Agent::where_possible("fexit or kprobes", "mountsnoop", &options) else { return };
    fs::create_dir_all(&path).unwrap();
    let begin = Instant::now();
    process.sleep(1);
    let elapsed = begin.elapsed().as_nanos() as u64;
    let rows = agent.rows();
    let lines: Vec<String> = rows.iter().rev().map(|row| row.text(CALL)).collect();
    let path = path.display();
    let expected = [
        r#"mount("", "/", "", MS_REC | MS_PRIVATE, "") = 0"#.into(),
        format!(r#"mount("corebcc", "{path}", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=700") = 0"#),
        format!(r#"umount("{path}", MNT_DETACH) = 0"#),
        format!(r#"umount("{path}", 0) = -EINVAL"#),
        format!(r#"mount("//no/such", "{path}", "nosuchfs", 0, "user=joe,password=***") = -ENODEV"#),
        r#"fsopen("tmpfs", FSOPEN_CLOEXEC) = FD"#.into(),
        r#"fsconfig(FSCONFIG_SET_STRING, "size=2m") = 0"#.into(),
        r#"fsconfig(FSCONFIG_CMD_CREATE, "") = 0"#.into(),
        "fsmount(MOUNT_ATTR_RDONLY) = FD".into(),
        format!(r#"move_mount("", "{path}", MOVE_MOUNT_F_EMPTY_PATH) = 0"#),
        format!(r#"fspick("{path}", FSPICK_CLOEXEC) = FD"#),
        format!(r#"mount_setattr("{path}", MOUNT_ATTR_NOEXEC | AT_RECURSIVE, clear MOUNT_ATTR_RDONLY) = 0"#),
        format!(r#"umount("{path}", 0) = 0"#),
    ];
    // Since Linux 5.12.
    let is_missing = set_attributes("/no/such") == Some(libc::ENOSYS);
    let expected: Vec<String> =
        expected.into_iter().filter(|line| !is_missing || !line.starts_with("mount_setattr")).collect();
    // A descriptor has the number that was free.
    let is = |line: &String, wanted: &String| {
        let descriptor = wanted.strip_suffix("FD").and_then(|call| line.strip_prefix(call)?.parse::<u32>().ok());
        line == wanted || descriptor.is_some_and(|number| number > 2)
    };
    let all = lines.len() == expected.len() && lines.iter().zip(&expected).all(|(line, wanted)| is(line, wanted));
    assert!(all, "{lines:#?}\n{expected:#?}");
    let space = fs::metadata(format!("/proc/{}/ns/mnt", process.pid())).unwrap().ino();
    for row in &rows {
        assert_eq!((row.number(PID), row.number(MNT_NS)), (process.pid().into(), space), "{row:?}");
        assert!((1..elapsed).contains(&row.number(LAT)), "{row:?}");
    }
    let calls = expected.len() as u64;
    let outcome = |row: usize| (rows[row].text(OP), rows[row].text(RET));
    assert_eq!(
        [outcome(0), outcome(calls as usize - 4)],
        [("UMOUNT".into(), "0".into()), ("UMOUNT".into(), "-EINVAL".into())]
    );
    let table = agent.other(find("mountsnoop").unwrap().tables[1]);
    let counts = [0, 1, 2].map(|column| number(&table, 0, column));
    assert_eq!((counts, rows[0].number(SEQ)), ([calls, 2, 0], calls));
    agent.assert_complete();
    fs::remove_dir(path.to_string()).unwrap();
}
