//! Calls that mount and unmount file systems: rows of the latest, and counts. Kernel side: bpf/mountsnoop.bpf.c.

use super::shared::latest::{Columns, EventCounts, Latest};
use crate::bpf::types::{self, mount_event, mount_row, set_numbers};
use crate::host::until_nul;
use crate::kit::*;
use crate::{latest, metrics, options};
use nix::errno::Errno;
use std::fmt::Write;

mod rows {
    use super::*;

    metrics! {
        PID: u32 = 0 "fs.mount.pid" | "bpf.mountsnoop.pid" INSTANT NONE "process that called";
        TID: u32 = 1 "fs.mount.tid" | "bpf.mountsnoop.tid" INSTANT NONE "thread that called";
        UID: u32 = 2 "fs.mount.uid" INSTANT NONE "user that the process runs as";
        COMM: str = 3 "fs.mount.comm" | "bpf.mountsnoop.comm" INSTANT NONE "command name of the process that called";
        OP: str = 4 "fs.mount.op" | "bpf.mountsnoop.op" INSTANT NONE "name of the call, in capitals";
        SOURCE: str = 5 "fs.mount.source" | "bpf.mountsnoop.source" INSTANT NONE "device or path that is mounted or moved";
        TARGET: str = 6 "fs.mount.target" | "bpf.mountsnoop.target" INSTANT NONE "path at which it is mounted, or from which it is unmounted";
        FS: str = 7 "fs.mount.fs" | "bpf.mountsnoop.fs" INSTANT NONE "type of the file system";
        FLAGS: str = 8 "fs.mount.flags" | "bpf.mountsnoop.flags" INSTANT NONE "flags of the call by name";
        DATA: str = 9 "fs.mount.data" | "bpf.mountsnoop.data" INSTANT NONE "options of the file system, without values that may be secret";
        RET: str = 10 "fs.mount.ret" | "bpf.mountsnoop.ret" INSTANT NONE "result of the call: 0, a descriptor, or the name of the error";
        LAT: u64 = 11 "fs.mount.lat" | "bpf.mountsnoop.lat" INSTANT NSEC "time from call to return";
        MNT_NS: u32 = 12 "fs.mount.mnt_ns" | "bpf.mountsnoop.mnt_ns" INSTANT NONE "number of the mount name space";
        CALL: str = 13 "fs.mount.call" | "bpf.mountsnoop.call" INSTANT NONE "the call as a line of C, with its result";
        TIME: u64 = 14 "fs.mount.time" INSTANT MSEC "when the call returned, since 1970";
        SEQ: u64 = 15 "fs.mount.seq" INSTANT NONE "number of the row, which tells a new row from one that moved";
        CGROUP_PATH: str = 16 "fs.mount.cgroup_path" INSTANT NONE "path of the cgroup of the process, in cgroup v2";
    }

    pub static TABLE: TableSpec = TableSpec::latest("the latest calls that mount and unmount", 497, METRICS);

    pub const COLUMNS: Columns = Columns { time: TIME, seq: SEQ, cgroup_path: CGROUP_PATH };

    pub fn put(row: RowMut<'_>, event: &mount_event) {
        let row = row
            .set(PID, event.pid)
            .set(TID, event.tid)
            .set(UID, event.uid)
            .text(COMM, until_nul(&event.comm))
            .set(LAT, event.ns)
            .set(MNT_NS, event.mnt_ns);
        let Some(call) = CALLS.get(event.call as usize) else { return };
        let texts = Texts::of(call, event);
        row.text(OP, call.name.to_uppercase().as_bytes())
            .text(SOURCE, texts.source.as_bytes())
            .text(TARGET, texts.target.as_bytes())
            .text(FS, texts.fs.as_bytes())
            .text(FLAGS, texts.flags.as_bytes())
            .text(DATA, texts.data.as_bytes())
            .text(RET, texts.ret.as_bytes())
            .text(CALL, texts.line(call).as_bytes());
    }
}

mod counts {
    use super::*;

    metrics! {
        ALL: u64 = 0 "fs.mounts.all.count" COUNTER COUNT "calls that mount and unmount";
        FAILED: u64 = 1 "fs.mounts.failed.count" COUNTER COUNT "calls that mount and unmount that failed";
        LOST: u64 = 2 "fs.mounts.lost.count" | "bpf.mountsnoop.lost" COUNTER COUNT "calls that mount and unmount that got no row";
    }

    pub static TABLE: TableSpec = TableSpec::single("all calls that mount and unmount", 2013, METRICS);

    pub static ALL_EVENTS: EventCounts<mount_row> = EventCounts {
        table: &TABLE,
        sums: Sums { rows: ROWS, cells: &[(ALL, &[mount_row::all]), (FAILED, &[mount_row::failed])] },
        lost: LOST,
    };
}

latest! {
    "mount", mount_event, rows::COLUMNS;
    rows ROWS: mount_row = "mount_rows";
    private STARTS: set_numbers = "mount_starts";
}

options! {
    process;
    /// Rows to show.
    process_count: RowCount = RowCount(20);
    /// Size of the ring buffer in pages.
    buffer_page_count: Pages = Pages(64);
    bpf_names;
}

/// A call.
struct Call {
    name: &'static str,
    /// Its arguments as `Texts` has them, in order.
    arguments: &'static [fn(&Texts) -> String],
    flags: &'static [(u64, &'static str)],
}

/// The calls in the order of the programs (`enum mount_call`).
const CALLS: [Call; 10] = [
    Call {
        name: "mount",
        arguments: &[
            |texts| quoted(&texts.source),
            |texts| quoted(&texts.target),
            |texts| quoted(&texts.fs),
            |texts| texts.flags.clone(),
            |texts| quoted(&texts.data),
        ],
        flags: MOUNT_FLAGS,
    },
    Call {
        name: "umount",
        arguments: &[|texts| quoted(&texts.target), |texts| texts.flags.clone()],
        flags: UMOUNT_FLAGS,
    },
    Call {
        name: "fsopen",
        arguments: &[|texts| quoted(&texts.fs), |texts| texts.flags.clone()],
        flags: &[(1, "FSOPEN_CLOEXEC")],
    },
    Call { name: "fsconfig", arguments: &[|texts| texts.flags.clone(), |texts| quoted(&texts.data)], flags: &[] },
    Call { name: "fsmount", arguments: &[|texts| texts.flags.clone()], flags: ATTRIBUTES },
    Call {
        name: "move_mount",
        arguments: &[|texts| quoted(&texts.source), |texts| quoted(&texts.target), |texts| texts.flags.clone()],
        flags: MOVE_FLAGS,
    },
    Call {
        name: "open_tree",
        arguments: &[|texts| quoted(&texts.source), |texts| texts.flags.clone()],
        flags: OPEN_TREE_FLAGS,
    },
    Call { name: "pivot_root", arguments: &[|texts| quoted(&texts.source), |texts| quoted(&texts.target)], flags: &[] },
    Call {
        name: "fspick",
        arguments: &[|texts| quoted(&texts.target), |texts| texts.flags.clone()],
        flags: &[
            (1, "FSPICK_CLOEXEC"),
            (2, "FSPICK_SYMLINK_NOFOLLOW"),
            (4, "FSPICK_NO_AUTOMOUNT"),
            (8, "FSPICK_EMPTY_PATH"),
        ],
    },
    Call {
        name: "mount_setattr",
        arguments: &[|texts| quoted(&texts.target), |texts| texts.flags.clone()],
        flags: ATTRIBUTES,
    },
];
/// The number of fsconfig in `CALLS`, whose flags are a command, whose source is a key and whose data is its value.
const FSCONFIG: u32 = 3;
/// The number of mount_setattr in `CALLS`, whose flags are attributes to set and, in the upper half, to clear.
const SETATTR: u32 = 9;

// include/uapi/linux/mount.h
const MOUNT_FLAGS: &[(u64, &str)] = &[
    (1, "MS_RDONLY"),
    (1 << 1, "MS_NOSUID"),
    (1 << 2, "MS_NODEV"),
    (1 << 3, "MS_NOEXEC"),
    (1 << 4, "MS_SYNCHRONOUS"),
    (1 << 5, "MS_REMOUNT"),
    (1 << 6, "MS_MANDLOCK"),
    (1 << 7, "MS_DIRSYNC"),
    (1 << 8, "MS_NOSYMFOLLOW"),
    (1 << 10, "MS_NOATIME"),
    (1 << 11, "MS_NODIRATIME"),
    (1 << 12, "MS_BIND"),
    (1 << 13, "MS_MOVE"),
    (1 << 14, "MS_REC"),
    (1 << 15, "MS_SILENT"),
    (1 << 16, "MS_POSIXACL"),
    (1 << 17, "MS_UNBINDABLE"),
    (1 << 18, "MS_PRIVATE"),
    (1 << 19, "MS_SLAVE"),
    (1 << 20, "MS_SHARED"),
    (1 << 21, "MS_RELATIME"),
    (1 << 23, "MS_I_VERSION"),
    (1 << 24, "MS_STRICTATIME"),
    (1 << 25, "MS_LAZYTIME"),
];
const UMOUNT_FLAGS: &[(u64, &str)] = &[(1, "MNT_FORCE"), (2, "MNT_DETACH"), (4, "MNT_EXPIRE"), (8, "UMOUNT_NOFOLLOW")];
const MOVE_FLAGS: &[(u64, &str)] = &[
    (0x1, "MOVE_MOUNT_F_SYMLINKS"),
    (0x2, "MOVE_MOUNT_F_AUTOMOUNTS"),
    (0x4, "MOVE_MOUNT_F_EMPTY_PATH"),
    (0x10, "MOVE_MOUNT_T_SYMLINKS"),
    (0x20, "MOVE_MOUNT_T_AUTOMOUNTS"),
    (0x40, "MOVE_MOUNT_T_EMPTY_PATH"),
    (0x100, "MOVE_MOUNT_SET_GROUP"),
    (0x200, "MOVE_MOUNT_BENEATH"),
];
const OPEN_TREE_FLAGS: &[(u64, &str)] = &[
    (1, "OPEN_TREE_CLONE"),
    (0x8_0000, "OPEN_TREE_CLOEXEC"),
    (0x100, "AT_SYMLINK_NOFOLLOW"),
    (0x800, "AT_NO_AUTOMOUNT"),
    (0x1000, "AT_EMPTY_PATH"),
    (0x8000, "AT_RECURSIVE"),
];
const ATTRIBUTES: &[(u64, &str)] = &[
    (1, "MOUNT_ATTR_RDONLY"),
    (2, "MOUNT_ATTR_NOSUID"),
    (4, "MOUNT_ATTR_NODEV"),
    (8, "MOUNT_ATTR_NOEXEC"),
    (0x10, "MOUNT_ATTR_NOATIME"),
    (0x20, "MOUNT_ATTR_STRICTATIME"),
    (0x80, "MOUNT_ATTR_NODIRATIME"),
    (0x8000, "AT_RECURSIVE"),
    (0x10_0000, "MOUNT_ATTR_IDMAP"),
    (0x20_0000, "MOUNT_ATTR_NOSYMFOLLOW"),
];
/// Commands of fsconfig, by number.
const COMMANDS: [&str; 9] = [
    "FSCONFIG_SET_FLAG",
    "FSCONFIG_SET_STRING",
    "FSCONFIG_SET_BINARY",
    "FSCONFIG_SET_PATH",
    "FSCONFIG_SET_PATH_EMPTY",
    "FSCONFIG_SET_FD",
    "FSCONFIG_CMD_CREATE",
    "FSCONFIG_CMD_RECONFIGURE",
    "FSCONFIG_CMD_CREATE_EXCL",
];
/// The mark in the upper half of the flags of mount that old programs set (`MS_MGC_VAL`).
const MAGIC: u64 = 0xc0ed_0000;
/// Parts of names of options whose values are not shown.
const SECRET: [&str; 6] = ["pass", "cred", "secret", "key", "token", "pwd"];

/// The texts of a row.
#[derive(Debug, Default)]
struct Texts {
    source: String,
    target: String,
    fs: String,
    flags: String,
    data: String,
    ret: String,
}

impl Texts {
    fn of(call: &Call, event: &mount_event) -> Texts {
        let text = |bytes: &[u8]| String::from_utf8_lossy(until_nul(bytes)).into_owned();
        let ret = match i32::try_from(event.ret) {
            Ok(error @ -4095..0) => format!("-{:?}", Errno::from_raw(-error)),
            _ => event.ret.to_string(),
        };
        let (source, data) = (text(&event.source), text(&event.data));
        let texts = Texts { target: text(&event.target), fs: text(&event.fstype), ret, ..Texts::default() };
        if event.call == FSCONFIG {
            let command = COMMANDS.get(event.flags as usize);
            let option = if data.is_empty() { source } else { format!("{source}={data}") };
            let flags = command.map_or_else(|| event.flags.to_string(), |name| (*name).into());
            return Texts { flags, data: without_secrets(&option), ..texts };
        }
        let flags = match event.call {
            SETATTR => attributes(event.flags),
            _ if event.flags & 0xffff_0000 == MAGIC => names(event.flags & 0xffff, call.flags),
            _ => names(event.flags, call.flags),
        };
        Texts { source, flags, data: without_secrets(&data), ..texts }
    }

    /// Returns the call as a line of C.
    fn line(&self, call: &Call) -> String {
        let arguments: Vec<String> = call.arguments.iter().map(|argument| argument(self)).collect();
        format!("{}({}) = {}", call.name, arguments.join(", "), self.ret)
    }
}

fn quoted(text: &str) -> String {
    format!("{text:?}")
}

/// Returns the names of flags, and in hexadecimal those that have none.
fn names(flags: u64, all: &[(u64, &str)]) -> String {
    let mut left = flags;
    let mut text = String::new();
    for (flag, name) in all.iter().filter(|(flag, _)| flags & flag != 0) {
        left &= !flag;
        let _ = write!(text, "{}{name}", if text.is_empty() { "" } else { " | " });
    }
    match (left, text.is_empty()) {
        (0, false) => text,
        (0, true) => "0".into(),
        (_, true) => format!("{left:#x}"),
        (_, false) => format!("{text} | {left:#x}"),
    }
}

/// Returns the attributes that mount_setattr sets, and those that it clears.
fn attributes(flags: u64) -> String {
    let [set, clear] = [flags & u64::from(u32::MAX), flags >> 32].map(|part| names(part, ATTRIBUTES));
    if flags >> 32 == 0 {
        set
    } else {
        format!("{set}, clear {clear}")
    }
}

/// Returns options, `NAME=VALUE,...`, with `***` in place of values that may be secret.
fn without_secrets(options: &str) -> String {
    let shown = |option: &str| match option.split_once('=') {
        Some((name, _)) if SECRET.iter().any(|secret| name.to_ascii_lowercase().contains(secret)) => {
            format!("{name}=***")
        }
        _ => option.to_owned(),
    };
    options.split(',').map(shown).collect::<Vec<_>>().join(",")
}

/// Both ends of a call; its function is the target.
static CALL: Hook = Hook {
    name: "system calls that mount",
    tiers: &[
        Tier { kind: "fexit", programs: &["each_fentry__mountsnoop", "each_fexit__mountsnoop"] },
        Tier { kind: "kretprobe", programs: &["each_kprobe__mountsnoop", "each_kretprobe__mountsnoop"] },
    ],
    needs: "fexit or kprobes, on a kernel with BTF",
};

/// Beginning of the names of functions behind system calls.
const PREFIX: &str = if cfg!(target_arch = "aarch64") { "__arm64_sys_" } else { "__x64_sys_" };

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "mountsnoop",
    summary: "calls that mount and unmount: source, target, options, error",
    overhead: Overhead::low("3 us per mount or unmount"),
    needs: "fexit or kprobes",
    tables: &[&rows::TABLE, &counts::TABLE],
    options: OPTIONS,
    hooks: &[&CALL],
    maps: MAPS,
    make: |setup| Ok(Box::new(Mountsnoop::new(Options::read(setup.section)?))),
    ..Spec::NEW
};

struct Mountsnoop {
    options: Options,
    latest: Latest<mount_event>,
}

impl Mountsnoop {
    fn new(options: Options) -> Mountsnoop {
        let latest = Latest::of_records(&LATEST, options.process_count, options.buffer_page_count);
        Mountsnoop { options, latest }
    }

    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        each("start-unseen: calls whose beginning was not seen", kernel.rows(ROWS).sum(mount_row::unseen));
    }
}

impl Module for Mountsnoop {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        constants.mount_filter = plan.only(&self.options.process);
        constants.mount_ring = self.latest.plan(host, plan);
        constants.mount_starts_mask = plan_set_table(plan, STARTS.name, by_thread(host));
        plan.entries(ROWS.def.name, host.cpus);
        for (number, call) in CALLS.iter().enumerate() {
            plan.attach_template(&CALL, Target::Function(format!("{PREFIX}{}", call.name)), number as u32);
        }
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        Latest::add_tables(
            Running::of(*self),
            &rows::TABLE,
            &counts::ALL_EVENTS,
            |module| &mut module.latest,
            rows::put,
        )
        .losses(Self::losses)
        .started()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::record_bytes;

    fn event(call: u32, ret: i64, flags: u64, texts: [&str; 4]) -> mount_event {
        let mut event = mount_event { call, ret, flags, pid: 7, ns: 5, mnt_ns: 9, ..mount_event::default() };
        let [source, target, fs, data] = texts.map(str::as_bytes);
        event.source[..source.len()].copy_from_slice(source);
        event.target[..target.len()].copy_from_slice(target);
        event.fstype[..fs.len()].copy_from_slice(fs);
        event.data[..data.len()].copy_from_slice(data);
        event
    }

    fn line(event: &mount_event) -> String {
        let call = &CALLS[event.call as usize];
        Texts::of(call, event).line(call)
    }

    #[test]
    fn a_call_is_a_line_of_c() {
        let mount = event(0, 0, MAGIC | 0b110, ["tmpfs", "/mnt", "tmpfs", "size=1m,mode=700"]);
        assert_eq!(line(&mount), r#"mount("tmpfs", "/mnt", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=700") = 0"#);
        assert_eq!(line(&event(1, -16, 2, ["", "/mnt", "", ""])), r#"umount("/mnt", MNT_DETACH) = -EBUSY"#);
        assert_eq!(line(&event(2, 3, 0, ["", "", "ext4", ""])), r#"fsopen("ext4", 0) = 3"#);
        assert_eq!(line(&event(3, 0, 1, ["size", "", "", "1m"])), r#"fsconfig(FSCONFIG_SET_STRING, "size=1m") = 0"#);
        assert_eq!(line(&event(3, 0, 6, [""; 4])), r#"fsconfig(FSCONFIG_CMD_CREATE, "") = 0"#);
        assert_eq!(line(&event(4, 4, 0x41, [""; 4])), "fsmount(MOUNT_ATTR_RDONLY | 0x40) = 4");
        assert_eq!(
            line(&event(5, -2, 4, ["", "/a\nb", "", ""])),
            r#"move_mount("", "/a\nb", MOVE_MOUNT_F_EMPTY_PATH) = -ENOENT"#
        );
        assert_eq!(line(&event(7, 0, 0, ["/new", "/old", "", ""])), r#"pivot_root("/new", "/old") = 0"#);
        assert_eq!(line(&event(8, 3, 1, ["", "/mnt", "", ""])), r#"fspick("/mnt", FSPICK_CLOEXEC) = 3"#);
        assert_eq!(
            line(&event(9, 0, 8 << 32 | 0x8001, ["", "/mnt", "", ""])),
            r#"mount_setattr("/mnt", MOUNT_ATTR_RDONLY | AT_RECURSIVE, clear MOUNT_ATTR_NOEXEC) = 0"#
        );
        assert_eq!(line(&event(9, 0, 8, ["", "/mnt", "", ""])), r#"mount_setattr("/mnt", MOUNT_ATTR_NOEXEC) = 0"#);
    }

    #[test]
    fn what_may_be_secret_is_not_shown() {
        let cifs = event(0, 0, 0, ["//server/share", "/mnt", "cifs", "user=joe,Password=p=w,credentials=/root/c,ro"]);
        assert_eq!(Texts::of(&CALLS[0], &cifs).data, "user=joe,Password=***,credentials=***,ro");
        assert_eq!(Texts::of(&CALLS[3], &event(3, 0, 1, ["password", "", "", "hunter2"])).data, "password=***");
    }

    #[test]
    fn rows_and_counts_are_of_all_cpus() {
        let fake = Fake::new().with(ROWS, 2).with(LOST, 2);
        fake.record(&record_bytes(&event(1, 0, 0, ["", "/mnt", "", ""])));
        fake.record(&record_bytes(&event(99, 0, 0, [""; 4])));
        for cpu in 0..2 {
            fake.set(ROWS, cpu, mount_row::all, 3);
            fake.set(ROWS, cpu, mount_row::failed, 1);
            fake.set(ROWS, cpu, mount_row::unseen, 2);
        }
        let running = Box::new(Mountsnoop::new(Options::default())).start(&fake);
        let table = fake.filled(&rows::TABLE, &running);
        assert_eq!([0, 11, 12].map(|column| table.number(1, column)), [7, 5, 9].map(Some));
        assert_eq!((table.value(1, 4), table.value(0, 4)), (Some(crate::pcp::Atom::Str(b"UMOUNT")), None));
        let table = fake.filled(&counts::TABLE, &running);
        assert_eq!([0, 1, 2].map(|column| table.number(0, column)), [6, 2, 0].map(Some));
    }
}
