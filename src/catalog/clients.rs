//! Who may change what runs. pmcd tells the agent who a client is: the user and group of a local client, the name of one that has
//! logged in. Of a client on TCP that has not it tells nothing. Names and members of groups may come from a service that does not answer
//! for a while, so a thread asks for them, once for a connection that stores.

use crate::agent::Client;
use crate::host::{Account, Group};
use crate::kit::{excerpt, EveryMinute};
use crate::pcp::PmErr;
use nix::unistd::{Gid, Uid};
use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{channel, Receiver, TryRecvError};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

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

/// Attributes of a client, as pmcd sent them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Attributes {
    user: Option<u32>,
    group: Option<u32>,
    name: Option<String>,
}

/// Result of a look-up: whether a client may change what runs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    may: bool,
    /// For the log.
    who: String,
}

/// A client that is connected.
#[derive(Default)]
struct Known {
    attributes: Attributes,
    /// `None` until it was asked for.
    answer: Option<Answer>,
}

type LookUp = dyn Fn(&Controllers, &Attributes) -> Answer + Send + Sync;

/// The clients of pmcd, by their slot.
pub struct Clients {
    /// `None`: nothing can be changed, which whoever asks is told by whoever would do it.
    controllers: Option<Controllers>,
    known: HashMap<Client, Known>,
    look_up: Arc<LookUp>,
    /// Look-ups in progress, each in a thread.
    asked: HashMap<Attributes, Receiver<Answer>>,
    /// As many more as there are threads that ask.
    threads: Arc<()>,
    /// By who was refused, so that one user cannot hide the line about another.
    refusals: HashMap<String, EveryMinute>,
    /// Lines about a name service that does not answer.
    delays: EveryMinute,
}

impl Default for Clients {
    fn default() -> Clients {
        Clients {
            controllers: None,
            known: HashMap::new(),
            look_up: Arc::new(Controllers::look_up),
            asked: HashMap::new(),
            threads: Arc::default(),
            refusals: HashMap::new(),
            delays: EveryMinute::default(),
        }
    }
}

/// Time for which a store waits for the first look-up of its user. Files and caches answer at once.
const PATIENCE: Duration = Duration::from_millis(200);
/// Threads that ask at the same time: one for each user, however often it connects.
const MOST_ASKED: usize = 16;
/// Users whose refusals are counted each alone; later ones share a line.
const MOST_REFUSED: usize = 64;

impl Clients {
    /// Root and these may change what runs from now on.
    pub fn allow(&mut self, controllers: Controllers) {
        self.controllers = Some(controllers);
        // These answers are about others.
        self.asked.clear();
        self.known.values_mut().for_each(|known| known.answer = None);
    }

    /// pmcd tells something of a client.
    pub fn learn(&mut self, client: Client, attribute: u32, value: &[u8]) {
        let text = || std::str::from_utf8(value).ok();
        let number = || text()?.trim().parse().ok();
        let Known { attributes, answer } = self.known.entry(client).or_default();
        *answer = None;
        match attribute {
            USER_NAME => attributes.name = text().filter(|name| !name.is_empty()).map(str::to_owned),
            USER_ID => attributes.user = number(),
            GROUP_ID => attributes.group = number(),
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

    /// Checks that a client may change what runs: `PmErr::PERMISSION` if not, `PmErr::AGAIN` as long as that is not known. Either is logged,
    /// a refusal once a minute for each user.
    pub fn may_control(&mut self, client: Client) -> Result<(), PmErr> {
        let Some(controllers) = self.controllers.clone() else { return Ok(()) };
        self.take_answers();
        let (attributes, answer) = match self.known.get(&client) {
            Some(Known { attributes, answer }) => (attributes.clone(), answer.clone()),
            None => Default::default(),
        };
        if attributes.user == Some(0) {
            return Ok(());
        }
        let Some(Answer { may, who }) = answer.or_else(|| self.ask(controllers, &attributes)) else {
            if let Some(more) = self.delays.due() {
                log::warn!("the name service has not yet told who may change what runs; to be tried again{more}");
            }
            return Err(PmErr::AGAIN);
        };
        if let Some(known) = self.known.get_mut(&client) {
            known.answer = Some(Answer { may, who: who.clone() });
        }
        if may {
            return Ok(());
        }
        let is_one_more = self.refusals.len() >= MOST_REFUSED && !self.refusals.contains_key(&who);
        let key = if is_one_more { String::new() } else { who.clone() };
        if let Some(more) = self.refusals.entry(key).or_default().due() {
            log::warn!(
                "{who} may not change what runs: only root may, and whom `control_users` and `control_groups` in [pmda] \
                 name, over the local socket or with a login{more}"
            );
        }
        Err(PmErr::PERMISSION)
    }

    /// Starts a look-up in a thread and waits a moment for its answer; later calls for the same user do not wait.
    fn ask(&mut self, controllers: Controllers, attributes: &Attributes) -> Option<Answer> {
        if self.asked.contains_key(attributes) || Arc::strong_count(&self.threads) > MOST_ASKED {
            return None;
        }
        let (sender, answer) = channel();
        let (look_up, of, thread) = (Arc::clone(&self.look_up), attributes.clone(), Arc::clone(&self.threads));
        let run = move || {
            let _ = sender.send(look_up(&controllers, &of));
            drop(thread);
        };
        let started: io::Result<_> = thread::Builder::new().name("names".into()).spawn(run);
        if let Err(error) = started {
            log::warn!("cannot start a thread: {error}");
            return None;
        }
        let waited = answer.recv_timeout(PATIENCE).ok();
        if waited.is_none() {
            self.asked.insert(attributes.clone(), answer);
        }
        waited
    }

    /// Notes what came late, for the clients that are there.
    fn take_answers(&mut self) {
        let Clients { known, asked, .. } = self;
        asked.retain(|attributes, answer| match answer.try_recv() {
            Ok(answer) => {
                let meant = known.values_mut().filter(|known| known.attributes == *attributes);
                meant.for_each(|known| known.answer = Some(answer.clone()));
                false
            }
            Err(TryRecvError::Empty) => true,
            Err(TryRecvError::Disconnected) => false,
        });
    }
}

impl Controllers {
    /// Asks the name service about a client, which may take as long as it likes.
    fn look_up(&self, client: &Attributes) -> Answer {
        let of_uid = client.user.and_then(|user| Account::of(Uid::from_raw(user)));
        let who = match (&client.name, client.user, &of_uid) {
            (Some(name), _, _) => excerpt(name),
            (None, Some(user), Some(known)) => format!("{} (uid {user})", known.name),
            (None, Some(user), None) => format!("uid {user}"),
            (None, None, _) => "a client whose user pmcd does not know".into(),
        };
        let names: Vec<String> = of_uid.map(|user| user.name).into_iter().chain(client.name.clone()).collect();
        let is_of = |group: &String| {
            let Some(group) = Group::named(group) else { return false };
            client.group.map(Gid::from_raw) == Some(group.gid) || names.iter().any(|name| group.members.contains(name))
        };
        let may = names.iter().any(|name| self.users.contains(name)) || self.groups.iter().any(is_of);
        Answer { may, who }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::Mutex;

    fn may(controllers: &Controllers, told: &[(u32, &str)]) -> bool {
        let mut clients = Clients::default();
        clients.allow(controllers.clone());
        told.iter().for_each(|(attribute, value)| clients.learn(7, *attribute, value.as_bytes()));
        clients.may_control(7).is_ok()
    }

    #[test]
    fn root_may_and_whom_the_configuration_names() {
        let named = Controllers { users: vec!["daemon".into(), "remote".into()], groups: vec!["bin".into()] };
        let none = Controllers::default();
        let daemon = Account::named("daemon").unwrap().uid.to_string();
        let bin = Group::named("bin").unwrap().gid.to_string();
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
        assert!(clients.may_control(1).is_ok() && clients.may_control(3).is_err());
        clients.forget(1);
        assert!(clients.may_control(1).is_err() && clients.may_control(2).is_ok());
        clients.forget_all();
        assert!(clients.may_control(2).is_err());
    }

    #[test]
    fn refusals_are_counted_for_each_user_up_to_a_limit() {
        let mut clients = Clients::default();
        clients.allow(Controllers::default());
        for user in 0..200_i32 {
            clients.learn(user, USER_ID, (4_000_000 + user).to_string().as_bytes());
            assert_eq!([0, 1].map(|_| clients.may_control(user)), [Err(PmErr::PERMISSION); 2]);
        }
        assert_eq!(clients.refusals.len(), MOST_REFUSED + 1);
    }

    #[test]
    fn a_name_service_that_does_not_answer_stops_nobody_else() {
        let (answer, gate) = channel::<()>();
        let gate = Mutex::new(gate);
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let look_up = move |_: &Controllers, client: &Attributes| {
            count.fetch_add(1, Ordering::SeqCst);
            if client.user == Some(1) {
                let _ = gate.lock().unwrap().recv();
            }
            Answer { may: client.user != Some(3), who: String::new() }
        };
        let mut clients = Clients { look_up: Arc::new(look_up), ..Clients::default() };
        clients.allow(Controllers::default());
        // A connection of each user, root's among them, and three of the one that the service knows nothing of.
        let users = [0, 1, 2, 3, 1, 1];
        users.iter().zip(0..).for_each(|(user, client)| clients.learn(client, USER_ID, user.to_string().as_bytes()));
        let may = |clients: &mut Clients| (0..6).map(|client| clients.may_control(client)).collect::<Vec<_>>();
        let (again, refused) = (Err(PmErr::AGAIN), Err(PmErr::PERMISSION));
        for _ in 0..3 {
            assert_eq!(may(&mut clients), [Ok(()), again, Ok(()), refused, again, again]);
        }
        assert_eq!(asked.load(Ordering::SeqCst), 3, "each user once");
        drop(answer);
        while clients.may_control(1) == again {
            thread::yield_now();
        }
        assert_eq!(may(&mut clients), vec![Ok(()), Ok(()), Ok(()), refused, Ok(()), Ok(())]);
        // Another connection may find another answer, and so may others than those that were allowed.
        clients.forget(2);
        clients.learn(2, USER_ID, b"2");
        assert_eq!((clients.may_control(2), asked.load(Ordering::SeqCst)), (Ok(()), 4));
        clients.allow(Controllers::default());
        assert_eq!((clients.may_control(2), asked.load(Ordering::SeqCst)), (Ok(()), 5));
    }

    #[test]
    fn threads_that_wait_for_the_name_service_are_bounded() {
        let (answer, gate) = channel::<()>();
        let gate = Mutex::new(gate);
        let look_up = move |_: &Controllers, _: &Attributes| {
            let _ = gate.lock().unwrap().recv();
            Answer { may: true, who: String::new() }
        };
        let mut clients = Clients { look_up: Arc::new(look_up), ..Clients::default() };
        clients.allow(Controllers::default());
        for user in 0..MOST_ASKED as i32 + 9 {
            clients.learn(user, USER_ID, (user + 1).to_string().as_bytes());
            assert_eq!(clients.may_control(user), Err(PmErr::AGAIN));
        }
        assert_eq!((clients.asked.len(), Arc::strong_count(&clients.threads)), (MOST_ASKED, MOST_ASKED + 1));
        drop(answer);
    }
}
