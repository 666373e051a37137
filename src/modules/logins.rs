//! Logins: rows of the latest, and counts by user. Kernel side: bpf/logins.bpf.c.

use super::shared::by_process::EXEC;
use super::shared::latest::{Columns, Latest};
use super::shared::numbers::{user_name, Numbers};
use super::shared::places::{ByPlace, PlacedHistograms};
use crate::bpf::record;
use crate::bpf::types::{self, login_counts, login_event, login_seen, mark, place_owner};
use crate::host::{latest_session, until_nul, Cgroups, Controller};
use crate::kit::*;
use crate::{beyond, latest, metrics, options};
use nix::time::{clock_gettime, ClockId};
use std::collections::HashMap;
use std::time::Duration;

mod rows {
    use super::*;

    metrics! {
        PID: u32 = 0 "proc.login.pid" INSTANT NONE "process that began the session, most often a shell";
        UID: u32 = 1 "proc.login.uid" INSTANT NONE "user that the process runs as";
        USER: str = 2 "proc.login.user" INSTANT NONE "name of the user that the process runs as";
        LOGINUID: u32 = 3 "proc.login.loginuid" INSTANT NONE "user who logged in, as audit has it";
        SESSION: u32 = 4 "proc.login.session" INSTANT NONE "session of audit";
        TTY: str = 5 "proc.login.tty" INSTANT NONE "terminal";
        COMM: str = 6 "proc.login.comm" INSTANT NONE "command name of the process";
        PARENT: str = 7 "proc.login.parent" INSTANT NONE "command name of its parent, such as sshd, login or cron";
        REMOTE: str = 8 "proc.login.remote" INSTANT NONE "address of the client of sshd";
        TIME: u64 = 9 "proc.login.time" INSTANT MSEC "when the session began, since 1970";
        SEQ: u64 = 10 "proc.login.seq" INSTANT NONE "number of the row, which tells a new row from one that moved";
        CGROUP_PATH: str = 11 "proc.login.cgroup_path" INSTANT NONE "path of the cgroup of the process, in cgroup v2";
    }

    pub static TABLE: TableSpec = TableSpec::latest("the latest logins", 484, METRICS);

    /// Returns the name below /dev of a terminal by its name in the kernel, which is `pts3` for `pts/3`.
    fn terminal(name: &[u8]) -> String {
        let name = String::from_utf8_lossy(name);
        match name.strip_prefix("pts") {
            Some(number) if number.parse::<u32>().is_ok() => format!("pts/{number}"),
            _ => name.into_owned(),
        }
    }

    pub const COLUMNS: Columns = Columns { time: TIME, seq: SEQ, cgroup_path: CGROUP_PATH };

    pub fn put(mut row: RowMut<'_>, Login { event, user }: &Login) {
        // Where nobody has logged in these are the largest number.
        if event.session != u32::MAX {
            row = row.set(LOGINUID, event.loginuid).set(SESSION, event.session);
        }
        let remote = until_nul(&event.remote);
        let address = remote.split(|&byte| byte == b' ').next().unwrap_or_default();
        row.set(PID, event.pid)
            .set(UID, event.uid)
            .text(USER, user.as_bytes())
            .text(TTY, terminal(until_nul(&event.tty)).as_bytes())
            .text(COMM, until_nul(&event.comm))
            .text(PARENT, until_nul(&event.parent))
            .text(REMOTE, &escaped(address));
    }
}

mod totals {
    use super::*;

    metrics! {
        ALL: u64 = 0 "proc.logins.all.count" COUNTER COUNT "logins and other sessions on a terminal";
        LOST: u64 = 1 "proc.logins.lost.count" COUNTER COUNT "logins and other sessions on a terminal that got no row";
    }

    pub static TABLE: TableSpec = TableSpec::single("all logins", 2004, METRICS);

    pub fn fill(module: &mut Logins, kernel: &dyn Kernel, table: &mut Table) {
        let of = |counter| module.users.sum(kernel, counter);
        let all = of(login_counts::tty).wrapping_add(of(login_counts::other));
        table.single().set(ALL, all).set(LOST, module.latest.lost(kernel));
    }
}

mod users {
    use super::*;

    metrics! {
        TTY: u64 = 0 "proc.logins.tty.count" COUNTER COUNT "sessions on a terminal, by user";
        OTHER: u64 = 1 "proc.logins.other.count" COUNTER COUNT "sessions without a terminal, by user";
        NAME: str = 2 "proc.logins.name" DISCRETE NONE "name of the user, for the variables of a dashboard";
    }

    pub static BY_USER: ByPlace<login_counts> = ByPlace {
        owners: USERS,
        rows: COUNTS,
        marks: MARKS,
        histograms: &[],
        counters: &[(TTY, login_counts::tty), (OTHER, login_counts::other)],
        name: NAME,
        beyond: beyond!("users-full: sessions of users", counted, [login_counts::tty, login_counts::other]),
    };

    pub static TABLE: TableSpec = TableSpec {
        summary: "each user",
        cluster: 485,
        shape: Shape::Named { max: 1 << 12 },
        metrics: METRICS,
        ..TableSpec::NEW
    };
}

latest! {
    "login", login_event, rows::COLUMNS;
    rows USERS: place_owner = "login_users", taken id;
    rows COUNTS: login_counts = "login_counts", taken used, marked in "login_marks";
    rows MARKS: mark = "login_marks";
    private SEEN: login_seen = "login_seen";
}

options! {
    /// Rows to show.
    process_count: RowCount = RowCount(20);
}

/// Size of the ring buffer: 15 logins of one user a second, of all users 60.
const RING: Pages = Pages(4);
/// Number of users with counters of their own; all CPUs share them, since logins are rare.
const PLACES: usize = 1024;
/// Number of sessions and terminals that are known to have begun (`LOGIN_SEEN`).
const SEEN_PLACES: usize = 1024;
/// User whose first login a client must not miss.
const ROOT: u64 = 0;
/// Number of names of users that are remembered.
const NAMES: usize = 1024;

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "logins",
    summary: "logins, and other sessions on a terminal",
    overhead: Overhead::low("0.2 us per exec"),
    tables: &[&rows::TABLE, &users::TABLE, &totals::TABLE],
    options: OPTIONS,
    hooks: &[&EXEC],
    maps: MAPS,
    make: |setup| Ok(Box::new(Logins::new(&Options::read(setup.section)?))),
    ..Spec::NEW
};

/// A session that has a row.
struct Login {
    event: login_event,
    user: String,
}

struct Logins {
    latest: Latest<Login>,
    users: PlacedHistograms<login_counts>,
    names: HashMap<u32, String>,
}

impl Logins {
    fn new(options: &Options) -> Logins {
        let cgroups = Cgroups::of(Controller::Unified).ok();
        let window = Seconds(60).window();
        let mut users = PlacedHistograms::new(&users::BY_USER, Ok(Numbers::Users), window, Buckets::default());
        users.begin(ROOT + 1, user_name(ROOT as u32).as_bytes());
        Logins { latest: Latest::new(&LATEST, options.process_count, RING, cgroups), users, names: HashMap::new() }
    }

    fn take(&mut self, kernel: &dyn Kernel) {
        let Logins { latest, names, .. } = self;
        if names.len() > NAMES {
            names.clear();
        }
        latest.drain(kernel, |bytes| {
            let event = record::<login_event>(bytes)?;
            let user = names.entry(event.uid).or_insert_with(|| user_name(event.uid)).clone();
            Some(Login { event, user })
        });
    }
}

impl Module for Logins {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        let size = users::BY_USER.plan(PLACES, &Host { cpus: 1, ..*host }, plan);
        constants.login_mask = size.mask;
        constants.login_ring = self.latest.plan(host, plan);
        constants.login_session = latest_session();
        constants.login_since =
            clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |now| Duration::from(now).as_nanos() as u64);
        plan.attach(&EXEC);
        plan.entries(SEEN.name, SEEN_PLACES);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        PlacedHistograms::add_table(Running::of(*self), &users::TABLE, |module| Some(&mut module.users))
            .table(&rows::TABLE, |module, kernel, table| {
                module.take(kernel);
                module.latest.fill(table, rows::put);
            })
            .table(&totals::TABLE, totals::fill)
            .tick(Self::take)
            .woken(Self::take)
            .events(|module| module.latest.events())
            .losses(|module, kernel, each| module.latest.losses(kernel, each))
            .started()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::record_bytes;
    use crate::pcp::Atom;

    #[test]
    fn a_row_says_who_came_from_where() {
        let fake = Fake::new().with(LOST, 1).with(USERS, 1024).with(COUNTS, 1025).with(MARKS, 1025);
        let mut event = login_event { pid: 7, session: 3, loginuid: 0, ..login_event::default() };
        event.tty[..5].copy_from_slice(b"pts3\0");
        event.parent[..4].copy_from_slice(b"sshd");
        event.remote[..26].copy_from_slice(b"192.0.2.7 50000 192.0.2.1\0");
        fake.record(&record_bytes(&event));
        fake.record(&record_bytes(&login_event { session: u32::MAX, loginuid: u32::MAX, ..event }));
        let running = Box::new(Logins::new(&Options::default())).start(&fake);
        let table = fake.filled(&rows::TABLE, &running);
        let row = |row: usize| [2, 3, 5, 7, 8].map(|column| table.value(row, column));
        let texts = ["root", "pts/3", "sshd", "192.0.2.7"].map(|text| Some(Atom::Str(text.as_bytes())));
        assert_eq!(row(1), [texts[0], Some(Atom::U32(0)), texts[1], texts[2], texts[3]]);
        assert_eq!(row(0), [texts[0], None, texts[1], texts[2], texts[3]]);
    }

    #[test]
    fn users_are_counted_by_name() {
        let fake = Fake::new().with(LOST, 1).with(USERS, 1024).with(COUNTS, 1025).with(MARKS, 1025);
        fake.set(USERS, 5, place_owner::id, 1);
        fake.set(COUNTS, 6, login_counts::tty, 2);
        fake.set(COUNTS, 6, login_counts::other, 3);
        let running = Box::new(Logins::new(&Options::default())).start(&fake);
        let table = fake.filled(&users::TABLE, &running);
        assert_eq!(table.names(), ["root", "other"]);
        assert_eq!([0, 1].map(|column| table.number(0, column)), [2, 3].map(Some));
        assert_eq!(fake.filled(&totals::TABLE, &running).number(0, 0), Some(5));
    }

    #[test]
    fn root_is_there_before_a_login() {
        let fake = Fake::new().with(LOST, 1).with(USERS, 1024).with(COUNTS, 1025).with(MARKS, 1025);
        let running = Box::new(Logins::new(&Options::default())).start(&fake);
        (0..3).for_each(|_| running.tick(&fake));
        let table = fake.filled(&users::TABLE, &running);
        assert_eq!((table.names(), table.number(0, 0)), (vec!["root".into(), "other".into()], Some(0)));
    }
}
