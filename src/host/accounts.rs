//! Accounts and groups, by the machine's name service (nsswitch.conf(5)).
//!
//! A static program cannot ask it: the C library loads a module of the service for each name that no file has, and a module brings another C
//! library into the process, which ends it. Such a program, as releases have, knows the accounts of /etc/passwd and /etc/group.

use nix::unistd::{self, Gid, Uid};
use std::ffi::CString;
use std::fs;

/// An account (passwd(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Name with which it logs in.
    pub name: String,
    /// Its number.
    pub uid: Uid,
    /// Number of its own group.
    pub gid: Gid,
}

/// A group (group(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its number.
    pub gid: Gid,
    /// Names of accounts that are in the group besides those whose own group it is.
    pub members: Vec<String>,
}

/// True for a program that has no name service but the files.
const STATIC: bool = cfg!(target_feature = "crt-static");
/// Source of accounts, for messages.
pub const SOURCE_OF_ACCOUNTS: &str = if STATIC { "/etc/passwd" } else { "the name service" };

impl Account {
    /// Returns the account of a number.
    pub fn of(uid: Uid) -> Option<Account> {
        if STATIC {
            return in_passwd(&read("/etc/passwd"), |account| account.uid == uid);
        }
        unistd::User::from_uid(uid).ok().flatten().map(Account::from)
    }

    /// Returns the account of a name.
    pub fn named(name: &str) -> Option<Account> {
        if STATIC {
            return in_passwd(&read("/etc/passwd"), |account| account.name == name);
        }
        unistd::User::from_name(name).ok().flatten().map(Account::from)
    }

    /// Gives this process the groups of the account (initgroups(3)).
    pub fn take_groups(&self) -> nix::Result<()> {
        if !STATIC {
            return unistd::initgroups(&CString::new(self.name.as_str()).or(Err(nix::Error::EINVAL))?, self.gid);
        }
        let groups = read("/etc/group");
        let groups =
            groups.lines().filter_map(|line| Some(group(line)?.1)).filter(|group| group.members.contains(&self.name));
        unistd::setgroups(&groups.map(|group| group.gid).chain([self.gid]).collect::<Vec<_>>())
    }
}

impl From<unistd::User> for Account {
    fn from(user: unistd::User) -> Account {
        Account { name: user.name, uid: user.uid, gid: user.gid }
    }
}

impl Group {
    /// Returns the group of a name.
    pub fn named(name: &str) -> Option<Group> {
        if STATIC {
            return read("/etc/group").lines().filter_map(group).find(|(its, _)| *its == name).map(|(_, group)| group);
        }
        unistd::Group::from_name(name).ok().flatten().map(|group| Group { gid: group.gid, members: group.mem })
    }
}

/// Returns a file of accounts; an empty text if it cannot be read. What is not UTF-8 spoils its own line only.
fn read(path: &str) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// Returns the first account of a text in the format of passwd(5) that is meant.
fn in_passwd(text: &str, meant: impl Fn(&Account) -> bool) -> Option<Account> {
    let account = |line: &str| {
        let mut fields = line.split(':');
        let (name, _, uid, gid) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        Some(Account {
            name: name.into(),
            uid: Uid::from_raw(uid.parse().ok()?),
            gid: Gid::from_raw(gid.parse().ok()?),
        })
    };
    text.lines().filter_map(account).find(meant)
}

/// Returns the name and the group of a line in the format of group(5).
fn group(line: &str) -> Option<(&str, Group)> {
    let mut fields = line.split(':');
    let (name, _, gid, members) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let members = members.split(',').filter(|member| !member.is_empty()).map(String::from).collect();
    Some((name, Group { gid: Gid::from_raw(gid.parse().ok()?), members }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_those_of_the_machine() {
        let root = Account { name: "root".into(), uid: Uid::from_raw(0), gid: Gid::from_raw(0) };
        assert_eq!((Account::of(Uid::from_raw(0)), Account::named("root")), (Some(root.clone()), Some(root)));
        assert_eq!(Group::named("root").map(|group| group.gid), Some(Gid::from_raw(0)));
        // A number and names that nobody has: each source of the name service is asked.
        assert_eq!((Account::of(Uid::from_raw(3_999_999_999)), Account::named("no such account")), (None, None));
        assert_eq!(Group::named("no such group"), None);
    }

    #[test]
    fn lines_that_are_none_are_passed_over() {
        let text = "# comment\n+::::::\nroot:x:0:0:root:/root:/bin/sh\nshort:x:7\nbad:x:-1:0::/:\nann:*:1000:100:A,B:/home/ann:/bin/sh";
        let ann = Account { name: "ann".into(), uid: Uid::from_raw(1000), gid: Gid::from_raw(100) };
        assert_eq!(in_passwd(text, |account| account.name == "ann"), Some(ann.clone()));
        assert_eq!(in_passwd(text, |account| account.uid == ann.uid), Some(ann));
        for name in ["short", "bad", "+", ""] {
            assert_eq!(in_passwd(text, |account| account.name == name), None, "{name}");
        }
        let members = vec!["ann".to_string(), "bob".into()];
        assert_eq!(group("users:x:100:ann,bob"), Some(("users", Group { gid: Gid::from_raw(100), members })));
        assert_eq!(group("empty:x:101:").map(|(_, group)| group.members), Some(Vec::new()));
        assert_eq!((group("short:x:102"), group("bad:x:x:")), (None, None));
    }
}
