//! Who may change what runs. pmcd tells the agent who a client is: the user and group of a local client, the name of one that has
//! logged in. Of a client on TCP that has not it tells nothing.

use crate::agent::Client;
use crate::kit::{excerpt, EveryMinute};
use nix::unistd::{Gid, Group, Uid, User};
use std::collections::HashMap;
use std::fmt;

/// `PCP_ATTR_USERNAME`, `PCP_ATTR_USERID`, `PCP_ATTR_GROUPID` (libpcp.h).
const USER_NAME: u32 = 5;
const USER_ID: u32 = 11;
const GROUP_ID: u32 = 12;

/// Users and groups that may change what runs, besides root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Controllers {
    /// Names of users.
    pub users: Vec<String>,
    /// Names of groups: members may, whichever group they are logged in with.
    pub groups: Vec<String>,
}

/// What pmcd has told of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Attributes {
    user: Option<u32>,
    group: Option<u32>,
    name: Option<String>,
}

impl fmt::Display for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, self.user) {
            (Some(name), _) => f.write_str(&excerpt(name)),
            (None, Some(user)) => match User::from_uid(Uid::from_raw(user)) {
                Ok(Some(known)) => write!(f, "{} (uid {user})", known.name),
                _ => write!(f, "uid {user}"),
            },
            (None, None) => f.write_str("a client whose user pmcd does not know"),
        }
    }
}

/// The clients of pmcd, by their slot.
#[derive(Default)]
pub struct Clients {
    /// `None`: nothing can be changed, which whoever asks is told by whoever would do it.
    controllers: Option<Controllers>,
    known: HashMap<Client, Attributes>,
    /// By who was refused, so that one user cannot hide the line about another.
    refusals: HashMap<String, EveryMinute>,
}

/// Users whose refusals are counted each alone; later ones share a line.
const MOST_REFUSED: usize = 64;

impl Clients {
    /// Root and these may change what runs from now on.
    pub fn allow(&mut self, controllers: Controllers) {
        self.controllers = Some(controllers);
    }

    /// pmcd tells something of a client.
    pub fn learn(&mut self, client: Client, attribute: u32, value: &[u8]) {
        let text = || std::str::from_utf8(value).ok();
        let number = || text()?.trim().parse().ok();
        let known = self.known.entry(client).or_default();
        match attribute {
            USER_NAME => known.name = text().filter(|name| !name.is_empty()).map(str::to_owned),
            USER_ID => known.user = number(),
            GROUP_ID => known.group = number(),
            _ => {}
        }
    }

    /// A client is gone, and another one may get its slot.
    pub fn forget(&mut self, client: Client) {
        self.known.remove(&client);
    }

    /// Clients may have gone unseen.
    pub fn forget_all(&mut self) {
        self.known.clear();
    }

    /// Whether a client may change what runs; a refusal is logged, one a minute for each user.
    pub fn may_control(&mut self, client: Client) -> bool {
        let Some(controllers) = &self.controllers else { return true };
        let attributes = self.known.get(&client).cloned().unwrap_or_default();
        let may = controllers.allow(&attributes);
        if !may {
            let mut who = attributes.to_string();
            if self.refusals.len() >= MOST_REFUSED && !self.refusals.contains_key(&who) {
                who.clear();
            }
            if let Some(more) = self.refusals.entry(who).or_default().due() {
                log::warn!(
                    "{attributes} may not change what runs: only root may, and whom `control_users` and `control_groups` in [pmda] \
                     name, over the local socket or with a login{more}"
                );
            }
        }
        may
    }
}

impl Controllers {
    fn allow(&self, client: &Attributes) -> bool {
        if client.user == Some(0) {
            return true;
        }
        let of_uid = client.user.and_then(|user| User::from_uid(Uid::from_raw(user)).ok().flatten());
        let names: Vec<String> = of_uid.map(|user| user.name).into_iter().chain(client.name.clone()).collect();
        if names.iter().any(|name| self.users.contains(name)) {
            return true;
        }
        self.groups.iter().any(|group| {
            let Ok(Some(group)) = Group::from_name(group) else { return false };
            client.group.map(Gid::from_raw) == Some(group.gid) || names.iter().any(|name| group.mem.contains(name))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may(controllers: &Controllers, told: &[(u32, &str)]) -> bool {
        let mut clients = Clients::default();
        clients.allow(controllers.clone());
        told.iter().for_each(|(attribute, value)| clients.learn(7, *attribute, value.as_bytes()));
        clients.may_control(7)
    }

    #[test]
    fn root_may_and_whom_the_configuration_names() {
        let named = Controllers { users: vec!["daemon".into(), "remote".into()], groups: vec!["bin".into()] };
        let none = Controllers::default();
        let daemon = User::from_name("daemon").unwrap().unwrap().uid.to_string();
        let bin = Group::from_name("bin").unwrap().unwrap().gid.to_string();
        assert!(may(&none, &[(11, "0")]));
        assert!(!may(&none, &[(11, &daemon)]) && may(&named, &[(11, &daemon)]));
        assert!(!may(&none, &[(11, "4711"), (12, &bin)]) && may(&named, &[(11, "4711"), (12, &bin)]));
        assert!(!may(&none, &[(5, "remote")]) && may(&named, &[(5, "remote")]));
        for told in [&[][..], &[(11, "")], &[(11, "x0")], &[(5, "")], &[(12, "0")], &[(5, "root")]] {
            assert!(!may(&named, told), "{told:?}");
        }
    }

    #[test]
    fn a_slot_that_another_client_gets_has_no_rights() {
        let mut clients = Clients::default();
        clients.allow(Controllers::default());
        clients.learn(1, USER_ID, b"0");
        clients.learn(2, USER_ID, b"0");
        assert!(clients.may_control(1) && !clients.may_control(3));
        clients.forget(1);
        assert!(!clients.may_control(1) && clients.may_control(2));
        clients.forget_all();
        assert!(!clients.may_control(2));
    }

    #[test]
    fn refusals_are_counted_for_each_user_up_to_a_limit() {
        let mut clients = Clients::default();
        clients.allow(Controllers::default());
        for user in 0..200_i32 {
            clients.learn(user, USER_ID, (4_000_000 + user).to_string().as_bytes());
            assert!(!clients.may_control(user) && !clients.may_control(user));
        }
        assert_eq!(clients.refusals.len(), MOST_REFUSED + 1);
    }
}
