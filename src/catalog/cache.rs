//! Instance identifiers of names, handed out once and kept over restarts in the file that libpcp_pmda keeps
//! (`$PCP_VAR_DIR/config/pmda/DOMAIN.SERIAL`, pmdaCache(3)): line `2 MODE MAXINST`, then `ID TIME NAME` each.

use crate::pcp::InstId;
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io};

/// A name that nobody used for this long gives its place in the file back: without it dynamic names grow the file for ever.
const FORGET: Duration = Duration::from_secs(24 * 3600);

/// When there is no room for a new name, this share of the names gives way at once, so that the search for them is rare.
const GIVE_WAY: usize = 8;

/// Writing more often than this would follow every new name with a write.
const SAVE_EVERY: Duration = Duration::from_secs(10);

/// When names are used, this is how old the times in the file may get: less than it takes to be forgotten, whatever ends the agent.
const RENEW: Duration = Duration::from_secs(3600);

#[derive(Clone, Debug)]
struct Entry {
    id: InstId,
    /// Seconds since 1970 when it was last in a table.
    used: u64,
}

/// The identifiers of one instance domain.
#[derive(Debug)]
pub struct Cache {
    path: Option<PathBuf>,
    max: usize,
    entries: HashMap<Vec<u8>, Entry>,
    /// Names by what precedes their first blank, which libpcp takes for the whole name in comparisons.
    words: HashMap<Vec<u8>, InstId>,
    /// The name that got its identifier last. It stays in the file, forgotten or not: the next identifier is one above it.
    last: Option<(Vec<u8>, Entry)>,
    dirty: bool,
    /// When the file was written last by this agent.
    saved: u64,
    refused: u64,
}

impl Cache {
    /// An empty cache of at most `max` names; without a path it is not kept.
    pub fn new(path: Option<PathBuf>, max: usize) -> Cache {
        Cache {
            path,
            max,
            entries: HashMap::new(),
            words: HashMap::new(),
            last: None,
            dirty: false,
            saved: 0,
            refused: 0,
        }
    }

    /// As [`Cache::new`], with what an earlier agent left in the file. A file that is not there is an empty one; lines
    /// that cannot be read are passed over.
    pub fn load(path: &Path, max: usize) -> io::Result<Cache> {
        let mut cache = Cache::new(Some(path.to_path_buf()), max);
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(cache),
            Err(error) => return Err(error),
        };
        for line in text.split(|&byte| byte == b'\n').skip(1) {
            if let Some((id, used, name)) = entry(line) {
                cache.insert(name.to_vec(), id, used);
            }
        }
        cache.dirty = false;
        Ok(cache)
    }

    /// The identifier of a name, handed out now if it is new; `None` if there are too many names. `name` is changed where
    /// another name has the same first word: blanks become `_`, since libpcp tells names apart by their first word only.
    pub fn id(&mut self, name: &mut Vec<u8>, now: SystemTime) -> Option<InstId> {
        let now = seconds(now);
        if !self.entries.contains_key(name) {
            if self.words.contains_key(word(name)) {
                name.iter_mut().filter(|byte| **byte == b' ').for_each(|byte| *byte = b'_');
            }
            if !self.entries.contains_key(name) {
                if self.entries.len() >= self.max && !self.make_room(now) {
                    self.refused += 1;
                    return None;
                }
                let next = self.last.as_ref().map_or(0, |(_, last)| last.id.saturating_add(1));
                self.insert(name.clone(), next, now);
            }
        }
        let entry = self.entries.get_mut(name)?;
        entry.used = now;
        self.dirty |= now.saturating_sub(self.saved) >= RENEW.as_secs();
        Some(entry.id)
    }

    /// How often a name was refused because there were too many.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Writes the file if there is something new and the last writing is some time ago; `at_exit` writes anyway, and
    /// does not wait for the disk: there is no time for that, and what matters then is the next agent, not a crash.
    pub fn save(&mut self, now: SystemTime, at_exit: bool) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let now = seconds(now);
        let due = self.dirty && now.saturating_sub(self.saved) >= SAVE_EVERY.as_secs();
        let Some((last, latest)) = self.last.as_ref().filter(|_| due || at_exit) else { return Ok(()) };
        (self.dirty, self.saved) = (false, now);
        let mut kept: Vec<_> = self.entries.iter().collect();
        kept.retain(|(_, entry)| now.saturating_sub(entry.used) < FORGET.as_secs() && entry.id != latest.id);
        kept.push((last, self.entries.get(last).unwrap_or(latest)));
        kept.sort_by_key(|(_, entry)| entry.id);
        // A reader must never meet half a file.
        let fresh = path.with_extension(format!("{}.new", path.extension().unwrap_or_default().to_string_lossy()));
        let mut file = io::BufWriter::new(fs::File::create(&fresh)?);
        writeln!(file, "2 0 2147483647")?;
        for (name, entry) in kept {
            write!(file, "{} {} ", entry.id, entry.used)?;
            file.write_all(name)?;
            file.write_all(b"\n")?;
        }
        let file = file.into_inner()?;
        if !at_exit {
            file.sync_data()?;
        }
        fs::rename(&fresh, path)
    }

    /// Forgets the names that were used longest ago, but none of the table that is being given its identifiers.
    fn make_room(&mut self, now: u64) -> bool {
        let mut idle: Vec<u64> = self.entries.values().map(|entry| entry.used).filter(|&used| used < now).collect();
        idle.sort_unstable();
        let Some(&until) = idle.get((self.max / GIVE_WAY).min(idle.len().saturating_sub(1))) else { return false };
        self.entries.retain(|_, entry| entry.used > until);
        self.words = self.entries.iter().map(|(name, entry)| (word(name).to_vec(), entry.id)).collect();
        true
    }

    fn insert(&mut self, name: Vec<u8>, id: InstId, used: u64) {
        self.words.insert(word(&name).to_vec(), id);
        let entry = Entry { id, used };
        if self.last.as_ref().is_none_or(|(_, last)| last.id < id) {
            self.last = Some((name.clone(), entry.clone()));
        }
        self.entries.insert(name, entry);
        self.dirty = true;
    }
}

/// `ID TIME NAME` or `ID TIME [HEXKEY] NAME`.
fn entry(line: &[u8]) -> Option<(InstId, u64, &[u8])> {
    let mut parts = line.splitn(3, |&byte| byte == b' ');
    let id = std::str::from_utf8(parts.next()?).ok()?.parse().ok().filter(|&id: &InstId| id < 1 << 31)?;
    let used = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
    let mut name = parts.next()?;
    if name.first() == Some(&b'[') {
        let end = name.windows(2).position(|pair| pair == b"] ")?;
        name = &name[end + 2..];
    }
    (!name.is_empty()).then_some((id, used, name))
}

fn word(name: &[u8]) -> &[u8] {
    name.split(|&byte| byte == b' ').next().unwrap_or_default()
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn id(cache: &mut Cache, name: &str) -> (Option<InstId>, String) {
        let mut bytes = name.as_bytes().to_vec();
        let id = cache.id(&mut bytes, at(1000));
        (id, String::from_utf8(bytes).expect("it was a string"))
    }

    #[test]
    fn identifiers_are_handed_out_once_in_order() {
        let mut cache = Cache::new(None, 10);
        assert_eq!(id(&mut cache, "bash").0, Some(0));
        assert_eq!(id(&mut cache, "sh").0, Some(1));
        assert_eq!(id(&mut cache, "bash").0, Some(0));
    }

    #[test]
    fn names_with_one_first_word_are_told_apart() {
        let mut cache = Cache::new(None, 10);
        assert_eq!(id(&mut cache, "Web Content"), (Some(0), "Web Content".into()));
        assert_eq!(id(&mut cache, "Web Foo"), (Some(1), "Web_Foo".into()));
        assert_eq!(id(&mut cache, "Web Content"), (Some(0), "Web Content".into()));
        assert_eq!(id(&mut cache, "Web Foo"), (Some(1), "Web_Foo".into()));
    }

    #[test]
    fn too_many_names_are_refused_and_counted() {
        let mut cache = Cache::new(None, 1);
        id(&mut cache, "a");
        assert_eq!(id(&mut cache, "b").0, None);
        assert_eq!((id(&mut cache, "a").0, cache.refused()), (Some(0), 1));
    }

    #[test]
    fn names_no_longer_used_give_way_and_their_identifiers_are_not_used_again() {
        let mut cache = Cache::new(None, 2);
        cache.id(&mut b"oldest".to_vec(), at(1000));
        cache.id(&mut b"old".to_vec(), at(1001));
        assert_eq!(cache.id(&mut b"new".to_vec(), at(1002)), Some(2));
        assert_eq!(cache.id(&mut b"old".to_vec(), at(1002)), Some(1));
        assert_eq!((cache.id(&mut b"newer".to_vec(), at(1002)), cache.refused()), (None, 1));
        assert_eq!(cache.id(&mut b"oldest".to_vec(), at(1003)), Some(3));
    }

    #[test]
    fn a_file_of_the_original_agent_keeps_its_identifiers() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("149.13");
        fs::write(&path, "2 0 2147483647\n4 1700000000 bash\n9 1700000000 [0a0b] my tool\nrubbish\n").expect("written");
        let mut cache = Cache::load(&path, 10).expect("loaded");
        assert_eq!(id(&mut cache, "bash").0, Some(4));
        assert_eq!(id(&mut cache, "my tool").0, Some(9));
        assert_eq!(id(&mut cache, "new").0, Some(10));
        cache.save(at(1005), true).expect("saved");
        let mut again = Cache::load(&path, 10).expect("loaded again");
        assert_eq!(id(&mut again, "my tool").0, Some(9));
    }

    #[test]
    fn names_unused_for_a_day_are_forgotten_in_the_file() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("149.13");
        let mut cache = Cache::load(&path, 10).expect("no file is an empty one");
        cache.id(&mut b"old".to_vec(), at(1000));
        cache.id(&mut b"young".to_vec(), at(80_000));
        cache.save(at(100_000), true).expect("saved");
        assert_eq!(fs::read_to_string(&path).expect("read"), "2 0 2147483647\n1 80000 young\n");
    }

    #[test]
    fn an_old_file_keeps_what_is_used_and_no_identifier_is_handed_out_twice() {
        const DAY: u64 = 86_400;
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("149.13");
        fs::write(&path, "2 0 2147483647\n3 1000 used\n4 1000 idle\n7 1000 last\n").expect("written");
        let read = || fs::read_to_string(&path).expect("read");
        let mut cache = Cache::load(&path, 10).expect("loaded");
        assert_eq!(cache.id(&mut b"used".to_vec(), at(3 * DAY)), Some(3));
        cache.save(at(3 * DAY), false).expect("saved");
        assert_eq!(
            read(),
            "2 0 2147483647\n3 259200 used\n7 1000 last\n",
            "the times are renewed, the next one stays 8"
        );
        let mut cache = Cache::load(&path, 10).expect("loaded");
        assert_eq!(cache.id(&mut b"new".to_vec(), at(3 * DAY + 60)), Some(8));
        // In use for two days without a new name, and then killed.
        for minute in 0..2 * 24 * 60 {
            let now = at(3 * DAY + 60 * minute);
            cache.id(&mut b"used".to_vec(), now);
            cache.save(now, false).expect("saved");
        }
        let mut cache = Cache::load(&path, 10).expect("loaded");
        assert_eq!(cache.id(&mut b"other".to_vec(), at(5 * DAY + 60)), Some(9));
        assert_eq!(cache.id(&mut b"used".to_vec(), at(5 * DAY + 60)), Some(3));
        cache.save(at(5 * DAY + 61), true).expect("saved");
        assert_eq!(read(), "2 0 2147483647\n3 432060 used\n9 432060 other\n");
    }

    #[test]
    fn the_end_renews_the_times_of_what_was_used_and_makes_no_file_of_nothing() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("149.13");
        Cache::load(&path, 10).expect("loaded").save(at(1000), true).expect("nothing to save");
        assert!(!path.exists());
        let mut cache = Cache::load(&path, 10).expect("loaded");
        cache.id(&mut b"a".to_vec(), at(5000));
        cache.save(at(5000), false).expect("saved");
        cache.id(&mut b"a".to_vec(), at(5500));
        cache.save(at(5500), true).expect("saved");
        assert_eq!(fs::read_to_string(&path).expect("read"), "2 0 2147483647\n0 5500 a\n");
    }
}
