//! Instance identifiers of names, handed out once and kept over restarts in the file that libpcp_pmda keeps
//! (`$PCP_VAR_DIR/config/pmda/DOMAIN.SERIAL`, pmdaCache(3)): line `2 MODE MAXINST`, then `ID TIME NAME` or `ID TIME [HEXKEY] NAME`
//! each. The directory is the `pcp` account's, so that nothing in the file is to be relied on.

use super::file::MAX_SIZE;
use super::Writer;
use crate::kit::{is_control, one_word};
use crate::pcp::InstId;
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A name that nobody used for this long gives its place in the file back: without it dynamic names grow the file for ever.
const FORGET: Duration = Duration::from_secs(24 * 3600);

/// When there is no room for a new name, this share of the names gives way at once, so that the search for them is rare.
const GIVE_WAY: usize = 8;

/// Bytes of names, with what each takes besides, beyond which those that are in no table give way: anybody who makes cgroups makes names.
const ROOM: usize = 8 << 20;

/// Memory of an entry beside the bytes of its name.
const ENTRY: usize = size_of::<(Vec<u8>, Entry)>() + size_of::<InstId>();

/// Seconds between two writings: a short file, with each fetch that shows a new name, so that the identifier outlives a killed agent; a
/// long one less often, by its length.
const PAUSE: RangeInclusive<u64> = 1..=10;

/// A file this long is written once a second.
const BYTES_A_SECOND: usize = 16 * 1024;

/// When names are used, this is how old the times in the file may get: less than it takes to be forgotten, whatever ends the agent.
const RENEW: Duration = Duration::from_secs(3600);

/// The highest identifier: to pmcd they are signed.
const MAX_ID: InstId = i32::MAX as InstId;

/// Identifiers that are so far above all others in the file were not handed out by anybody: a billion names come to nothing like it
/// in years.
const FAR: InstId = 1 << 30;

/// The first line of the file.
const FIRST: &[u8] = b"2 0 2147483647\n";

/// The most bytes of a line beside its name: identifier, time, key, blanks and the line's end.
const MOST_BESIDE: usize = 10 + 20 + 10 + 4;

#[derive(Clone, Debug)]
struct Entry {
    id: InstId,
    /// Seconds since 1970 when it was last in a table.
    used: u64,
    /// Number of that table; 0 for names of an earlier agent.
    table: u64,
}

/// The identifiers of one instance domain.
#[derive(Debug)]
pub struct Cache {
    path: Option<PathBuf>,
    max: usize,
    entries: HashMap<Vec<u8>, Entry>,
    ids: HashSet<InstId>,
    /// Bytes of `entries`.
    bytes: usize,
    /// The name with the highest identifier. It stays in the file, forgotten or not: the next identifier is one above it.
    last: Option<(Vec<u8>, Entry)>,
    /// Below it there is no free identifier; of interest once the highest one was handed out.
    free: InstId,
    dirty: bool,
    /// When this agent last had the file written.
    saved: u64,
    /// The writer was given what is to be written, and not asked since what became of it.
    is_given: bool,
    /// Seconds until it may do so again.
    pause: u64,
    /// When names were last forgotten.
    forgot: u64,
    /// The latest time this was told.
    now: u64,
    refused: u64,
    /// The second in which there was no name to give way: all are in use.
    full_at: Option<u64>,
    /// Number of the table that is being given its identifiers.
    table: u64,
}

impl Cache {
    /// An empty cache of at most `max` names; without a path it is not kept.
    pub fn new(path: Option<PathBuf>, max: usize) -> Cache {
        Cache {
            path,
            max,
            entries: HashMap::new(),
            ids: HashSet::new(),
            bytes: 0,
            last: None,
            free: 0,
            dirty: false,
            saved: 0,
            is_given: false,
            pause: 0,
            forgot: 0,
            now: 0,
            refused: 0,
            full_at: None,
            table: 1,
        }
    }

    /// As [`Cache::new`], with what an earlier agent left in the file, as it was read. A file that is not there is an empty one;
    /// lines that cannot be true are passed over.
    pub fn load(path: &Path, read: io::Result<Vec<u8>>, max: usize, now: SystemTime) -> io::Result<Cache> {
        let mut cache = Cache::new(Some(path.to_path_buf()), max);
        cache.clock(now);
        let text = match read {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(cache),
            Err(error) => return Err(error),
        };
        let mut lines: Vec<Line<'_>> = text.split(|&byte| byte == b'\n').skip(1).filter_map(Line::read).collect();
        lines.sort_by_key(|line| line.id);
        let mut below = 0;
        if let Some(far) = lines.iter().position(|line| line.id - std::mem::replace(&mut below, line.id) > FAR) {
            log::warn!("{}: {} identifiers out of range are assigned again", path.display(), lines.len() - far);
            lines.truncate(far);
        }
        let highest = lines
            .last()
            .map(|line| (line.name.to_vec(), Entry { id: line.id, used: line.used.min(cache.now), table: 0 }));
        // Of too many the latest; names without a key first, so that none with one takes theirs.
        lines.sort_by_key(|line| (line.whole.is_some(), Reverse(line.used)));
        for line in lines {
            let is_known = cache.entries.contains_key(&*line.name);
            let name = if is_known { line.whole } else { Some(line.name) };
            let Some(name) = name.filter(|name| !cache.entries.contains_key(&**name)) else { continue };
            if cache.entries.len() < max && !cache.ids.contains(&line.id) {
                cache.insert(name.into_owned(), line.id, line.used.min(cache.now));
            }
        }
        if highest.as_ref().map(|(_, entry)| entry.id) > cache.last.as_ref().map(|(_, entry)| entry.id) {
            cache.last = highest;
        }
        cache.dirty = false;
        Ok(cache)
    }

    /// Begins another table: names of this one and of the one before are in use.
    pub fn begin(&mut self) {
        self.table += 1;
    }

    /// The identifier of a name, handed out now if it is new; `None` if there are too many names. It has no blanks: libpcp tells names apart
    /// by their first word only.
    pub fn id(&mut self, name: &[u8], now: SystemTime) -> Option<InstId> {
        let now = self.clock(now);
        if !self.entries.contains_key(name) {
            let is_full = self.entries.len() >= self.max;
            let has_room = if is_full || self.bytes > ROOM { self.make_room(now, is_full) } else { true };
            if is_full && !has_room {
                self.refused += 1;
                return None;
            }
            let id = self.next_id()?;
            self.insert(name.to_vec(), id, now);
        }
        let entry = self.entries.get_mut(name)?;
        (entry.used, entry.table) = (now, self.table);
        self.dirty |= now.saturating_sub(self.saved) >= RENEW.as_secs();
        Some(entry.id)
    }

    /// The names that were in the latest table, or in that of an earlier agent when it last wrote the file.
    pub fn latest(&self) -> impl Iterator<Item = (InstId, &[u8])> {
        let latest = self.entries.values().map(|entry| entry.used).max();
        let entries = self.entries.iter().filter(move |(_, entry)| Some(entry.used) == latest);
        entries.map(|(name, entry)| (entry.id, &name[..]))
    }

    /// Number of names that were refused because there were too many.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Passes the file to the writer if there is something new and the last writing is some time ago; with `at_exit`, in any case. Each fetch calls
    /// it: the writer is asked only about what it was given.
    pub fn save(&mut self, now: SystemTime, at_exit: bool, writer: &Writer) {
        let Some(path) = &self.path else { return };
        if self.is_given {
            // On a disk that takes longer than the pause there is nothing to be gained by another copy.
            if !at_exit && writer.is_busy(path) {
                return;
            }
            let has_failed = writer.has_failed(path);
            self.is_given = false;
            if has_failed {
                self.failed();
            }
        }
        if let Some(text) = self.due(now, at_exit) {
            self.is_given = true;
            if let Some(path) = &self.path {
                writer.write(path, text);
            }
        }
    }

    /// Forgets names whose time has come. To be called from time to time.
    pub fn age(&mut self, now: SystemTime) {
        let now = self.clock(now);
        if now.saturating_sub(self.forgot) >= RENEW.as_secs() {
            self.forget(now);
        }
    }

    /// Returns the content to write now, if any.
    fn due(&mut self, now: SystemTime, at_exit: bool) -> Option<Vec<u8>> {
        let now = self.clock(now);
        let due = self.dirty && now.saturating_sub(self.saved) >= self.pause;
        let (last, latest) = self.last.as_ref().filter(|_| due || at_exit)?;
        let mut kept: Vec<_> = self.entries.iter().collect();
        kept.retain(|(_, entry)| now.saturating_sub(entry.used) < FORGET.as_secs() && entry.id != latest.id);
        // The latest first: what is beyond the longest file that is read is left out.
        kept.sort_by_key(|(_, entry)| (Reverse(entry.used), entry.id));
        kept.insert(0, (last, self.entries.get(last).unwrap_or(latest)));
        let mut left = MAX_SIZE as usize - FIRST.len();
        let fits = |(name, _): &(&Vec<u8>, &Entry)| left.checked_sub(name.len() + MOST_BESIDE).map(|rest| left = rest);
        let count = kept.iter().map_while(fits).count();
        kept.truncate(count);
        kept.sort_by_key(|(_, entry)| entry.id);
        let mut text = FIRST.to_vec();
        for (name, entry) in kept {
            text.extend_from_slice(format!("{} {} ", entry.id, entry.used).as_bytes());
            if name.first() == Some(&b'[') {
                // With a key in front, a name that looks like one is still a name.
                text.extend_from_slice(format!("[{:08x}] ", entry.id).as_bytes());
            }
            text.extend_from_slice(name);
            text.push(b'\n');
        }
        self.saved = now;
        self.pause = ((text.len() / BYTES_A_SECOND) as u64).clamp(*PAUSE.start(), *PAUSE.end());
        self.dirty = false;
        Some(text)
    }

    /// The last writing came to nothing.
    fn failed(&mut self) {
        (self.dirty, self.pause) = (true, *PAUSE.end());
    }

    /// One above the last; the lowest that is free once there is none above.
    fn next_id(&mut self) -> Option<InstId> {
        let next = self.last.as_ref().map_or(0, |(_, last)| last.id + 1);
        if next <= MAX_ID {
            return Some(next);
        }
        while self.ids.contains(&self.free) {
            self.free += 1;
        }
        (self.free <= MAX_ID).then_some(self.free)
    }

    /// The time in seconds. Where the clock was set back no time stays in the future: a name from there would never give way, and
    /// the file would not be written until then.
    fn clock(&mut self, now: SystemTime) -> u64 {
        let now = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if now < self.now {
            for entry in self.entries.values_mut().chain(self.last.as_mut().map(|(_, entry)| entry)) {
                entry.used = entry.used.min(now);
            }
            self.saved = self.saved.min(now);
            self.forgot = self.forgot.min(now);
        }
        self.now = now;
        now
    }

    /// Forgets the names that were used longest ago: none of the table that is being given its identifiers, and where there may be more
    /// names, none of the table before either.
    fn make_room(&mut self, now: u64, is_full: bool) -> bool {
        // The search goes over all names: once a second, not once for each name beyond the limit.
        if self.full_at == Some(now) {
            return false;
        }
        let table = self.table;
        let is_idle = |entry: &Entry| if is_full { entry.used < now } else { entry.table + 1 < table };
        let mut idle: Vec<u64> = self.entries.values().filter(|entry| is_idle(entry)).map(|entry| entry.used).collect();
        idle.sort_unstable();
        let Some(&until) = idle.get((self.entries.len() / GIVE_WAY).min(idle.len().saturating_sub(1))) else {
            self.full_at = Some(now);
            return false;
        };
        self.retain(|entry| !is_idle(entry) || entry.used > until);
        true
    }

    /// Forgets the names that the file forgets, but none of the latest table: others would stay for as long as the agent runs.
    fn forget(&mut self, now: u64) {
        self.forgot = now;
        let latest = self.entries.values().map(|entry| entry.used).max();
        let is_old = |entry: &Entry| now.saturating_sub(entry.used) >= FORGET.as_secs() && Some(entry.used) != latest;
        if self.entries.values().any(is_old) {
            self.retain(|entry| !is_old(entry));
        }
    }

    fn retain(&mut self, is_kept: impl Fn(&Entry) -> bool) {
        self.entries.retain(|_, entry| is_kept(entry));
        self.entries.shrink_to_fit();
        self.ids = self.entries.values().map(|entry| entry.id).collect();
        self.bytes = self.entries.keys().map(|name| name.len() + ENTRY).sum();
        self.free = 0;
    }

    fn insert(&mut self, name: Vec<u8>, id: InstId, used: u64) {
        self.ids.insert(id);
        let entry = Entry { id, used, table: 0 };
        if self.last.as_ref().is_none_or(|(_, last)| last.id < id) {
            self.last = Some((name.clone(), entry.clone()));
        }
        self.bytes += name.len() + ENTRY;
        self.entries.insert(name, entry);
        self.dirty = true;
    }
}

/// A line of the file.
struct Line<'a> {
    id: InstId,
    used: u64,
    /// Earlier versions wrote names with blanks.
    name: Cow<'a, [u8]>,
    /// The name with its key. Earlier versions wrote no key before a name that looks like one.
    whole: Option<Cow<'a, [u8]>>,
}

impl Line<'_> {
    fn read(line: &[u8]) -> Option<Line<'_>> {
        let mut parts = line.splitn(3, |&byte| byte == b' ');
        let id = std::str::from_utf8(parts.next()?).ok()?.parse().ok().filter(|&id: &InstId| id <= MAX_ID)?;
        let used = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
        let whole = parts.next()?;
        let name = without_key(whole);
        let is_name = !whole.is_empty() && !(0..whole.len()).any(|place| is_control(whole, place));
        is_name.then_some(Line {
            id,
            used,
            name: one_word(name.unwrap_or(whole)),
            whole: name.map(|_| one_word(whole)),
        })
    }
}

/// Text behind a key, two digits for each byte.
fn without_key(text: &[u8]) -> Option<&[u8]> {
    let digits = text.strip_prefix(b"[")?;
    let end = digits.iter().position(|byte| !byte.is_ascii_hexdigit())?;
    let name = digits[end..].strip_prefix(b"] ")?;
    (end > 0 && end % 2 == 0 && !name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::super::file::{read_state, replace_state};
    use super::*;
    use std::fs;

    fn load(path: &Path) -> io::Result<Cache> {
        load_at(path, 10, 1000)
    }

    fn load_at(path: &Path, max: usize, second: u64) -> io::Result<Cache> {
        Cache::load(path, read_state(path), max, at(second))
    }

    /// As [`Cache::save`], at once.
    fn save(cache: &mut Cache, now: SystemTime, at_exit: bool) -> io::Result<()> {
        let path = cache.path.clone().expect("a file");
        let written = cache.due(now, at_exit).map_or(Ok(()), |text| replace_state(&path, &text));
        written.inspect_err(|_| cache.failed())
    }

    /// A file with these lines.
    fn file(lines: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("149.13");
        fs::write(&path, format!("2 0 2147483647\n{lines}")).expect("written");
        (dir, path)
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn id(cache: &mut Cache, name: &str) -> (Option<InstId>, String) {
        let name = one_word(name.as_bytes());
        let id = cache.id(&name, at(1000));
        (id, String::from_utf8(name.into_owned()).expect("it was a string"))
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
        let names = ["node", "node_exporter", "node exporter"];
        assert_eq!(names.map(|name| id(&mut cache, name).0), [Some(0), Some(1), Some(2)]);
        // As an earlier version wrote them: the first had its blank.
        let (_dir, path) = file("3 1000 Web Content\n4 1000 Web\\x20Foo\n");
        let mut cache = load(&path).expect("loaded");
        assert_eq!(["Web Foo", "Web Content"].map(|name| id(&mut cache, name).0), [Some(4), Some(3)]);
    }

    #[test]
    fn too_many_names_are_refused_and_counted() {
        let mut cache = Cache::new(None, 1);
        id(&mut cache, "a");
        assert_eq!(id(&mut cache, "b").0, None);
        assert_eq!((id(&mut cache, "a").0, cache.refused()), (Some(0), 1));
    }

    #[test]
    fn names_are_searched_once_a_second_for_one_that_gives_way() {
        let mut cache = Cache::new(None, 1);
        cache.id(b"a", at(1000));
        assert_eq!(cache.id(b"b", at(1000)), None);
        assert_eq!(cache.full_at, Some(1000));
        assert_eq!(cache.id(b"c", at(1000)), None);
        assert_eq!((cache.id(b"d", at(1001)), cache.refused()), (Some(1), 2));
    }

    #[test]
    fn unused_names_give_way_and_their_identifiers_stay_retired() {
        let mut cache = Cache::new(None, 2);
        cache.id(b"oldest", at(1000));
        cache.id(b"old", at(1001));
        assert_eq!(cache.id(b"new", at(1002)), Some(2));
        assert_eq!(cache.id(b"old", at(1002)), Some(1));
        assert_eq!((cache.id(b"newer", at(1002)), cache.refused()), (None, 1));
        assert_eq!(cache.id(b"oldest", at(1003)), Some(3));
    }

    #[test]
    fn a_file_of_the_original_agent_keeps_its_identifiers() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("149.13");
        fs::write(&path, "2 0 2147483647\n4 1700000000 bash\n9 1700000000 [0a0b] my tool\nrubbish\n").expect("written");
        let mut cache = load(&path).expect("loaded");
        assert_eq!(id(&mut cache, "bash").0, Some(4));
        assert_eq!(id(&mut cache, "my tool").0, Some(9));
        assert_eq!(id(&mut cache, "new").0, Some(10));
        save(&mut cache, at(1005), true).expect("saved");
        let mut again = load(&path).expect("loaded again");
        assert_eq!(id(&mut again, "my tool").0, Some(9));
    }

    #[test]
    fn names_unused_for_a_day_are_forgotten_in_the_file() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("149.13");
        let mut cache = load(&path).expect("no file is an empty one");
        cache.id(b"old", at(1000));
        cache.id(b"young", at(80_000));
        save(&mut cache, at(100_000), true).expect("saved");
        assert_eq!(fs::read_to_string(&path).expect("read"), "2 0 2147483647\n1 80000 young\n");
    }

    #[test]
    fn an_old_file_keeps_used_names_and_no_identifier_comes_twice() {
        const DAY: u64 = 86_400;
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("149.13");
        fs::write(&path, "2 0 2147483647\n3 1000 used\n4 1000 idle\n7 1000 last\n").expect("written");
        let read = || fs::read_to_string(&path).expect("read");
        let mut cache = load(&path).expect("loaded");
        assert_eq!(cache.id(b"used", at(3 * DAY)), Some(3));
        save(&mut cache, at(3 * DAY), false).expect("saved");
        assert_eq!(
            read(),
            "2 0 2147483647\n3 259200 used\n7 1000 last\n",
            "the times are renewed, the next one stays 8"
        );
        let mut cache = load(&path).expect("loaded");
        assert_eq!(cache.id(b"new", at(3 * DAY + 60)), Some(8));
        // In use for two days without a new name, and then killed.
        for minute in 0..2 * 24 * 60 {
            let now = at(3 * DAY + 60 * minute);
            cache.id(b"used", now);
            save(&mut cache, now, false).expect("saved");
        }
        let mut cache = load(&path).expect("loaded");
        assert_eq!(cache.id(b"other", at(5 * DAY + 60)), Some(9));
        assert_eq!(cache.id(b"used", at(5 * DAY + 60)), Some(3));
        save(&mut cache, at(5 * DAY + 61), true).expect("saved");
        assert_eq!(read(), "2 0 2147483647\n3 432060 used\n9 432060 other\n");
    }

    #[test]
    fn the_end_renews_times_of_use_and_writes_no_empty_file() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("149.13");
        save(&mut load(&path).expect("loaded"), at(1000), true).expect("nothing to save");
        assert!(!path.exists());
        let mut cache = load(&path).expect("loaded");
        cache.id(b"a", at(5000));
        save(&mut cache, at(5000), false).expect("saved");
        cache.id(b"a", at(5500));
        save(&mut cache, at(5500), true).expect("saved");
        assert_eq!(fs::read_to_string(&path).expect("read"), "2 0 2147483647\n0 5500 a\n");
    }

    #[test]
    fn a_name_in_brackets_takes_nobodys_identifier() {
        let (_dir, path) = file("");
        let mut cache = load(&path).expect("loaded");
        let names = ["zork", "[a] zork", "[ab] zork", "[00000003] x", "[ab]", "["];
        for (number, name) in names.iter().enumerate() {
            assert_eq!(id(&mut cache, name).0, Some(number as InstId));
        }
        save(&mut cache, at(1001), true).expect("saved");
        let mut cache = load(&path).expect("loaded again");
        for (number, name) in names.iter().enumerate().rev() {
            assert_eq!(id(&mut cache, name).0, Some(number as InstId), "{name}");
        }
        // As an earlier version wrote them.
        let (_dir, path) = file("0 1000 [ab] zork\n1 1000 zork\n2 1000 [a] zork\n");
        let mut cache = load(&path).expect("loaded");
        let ids = ["zork", "[a] zork", "[ab] zork"].map(|name| id(&mut cache, name).0);
        assert_eq!(ids, [Some(1), Some(2), Some(0)]);
    }

    #[test]
    fn identifiers_far_above_all_others_are_given_anew() {
        for forged in ["2147483647", "1073741830"] {
            let (_dir, path) = file(&format!("0 1000 a\n3 1000 b\n{forged} 9 x\n"));
            let mut cache = load(&path).expect("loaded");
            let ids = ["a", "b", "new", "x"].map(|name| id(&mut cache, name).0);
            assert_eq!(ids, [Some(0), Some(3), Some(4), Some(5)]);
            save(&mut cache, at(1001), true).expect("saved");
            let text = fs::read_to_string(&path).expect("read");
            assert!(!text.lines().skip(1).any(|line| line.contains(forged)), "{text}");
        }
    }

    #[test]
    fn no_identifier_is_beyond_what_pmcd_takes_for_positive() {
        let (_dir, path) =
            file("0 1000 a\n1000000000 1000 b\n2000000000 1000 c\n2147483647 1000 d\n4000000000 1000 e\n");
        let mut cache = load(&path).expect("loaded");
        let ids = ["d", "e", "f", "g", "a"].map(|name| id(&mut cache, name).0);
        assert_eq!(ids, [Some(MAX_ID), Some(1), Some(2), Some(3), Some(0)]);
        assert_eq!(id(&mut Cache::new(None, 0), "a").0, None);
    }

    #[test]
    fn lines_that_cannot_be_true_are_passed_over() {
        let (_dir, path) =
            file("0 1000 a\n0 1000 twin\n1 1000 a\n2 1000 \n3 1000 e\x1b[2J\n-1 1000 f\n4 x g\n5\n\n\0\n6 1000 z");
        let cache = load(&path).expect("loaded");
        let mut names: Vec<_> = cache.entries.iter().map(|(name, entry)| (entry.id, name.as_slice())).collect();
        names.sort_unstable();
        assert_eq!(names, [(0, &b"a"[..]), (6, b"z")]);
    }

    #[test]
    fn of_a_file_with_too_many_names_the_latest_stay() {
        let lines: String = (0..1000).map(|number| format!("{number} {} n{number}\n", (number * 7) % 1000)).collect();
        let (_dir, path) = file(&lines);
        let mut cache = load(&path).expect("loaded");
        assert_eq!(cache.entries.len(), 10);
        assert!(cache.entries.values().all(|entry| entry.used >= 990));
        assert_eq!(id(&mut cache, "new").0, Some(1000));
    }

    #[test]
    fn times_to_come_and_a_clock_set_back_hold_nothing_up() {
        let (_dir, path) = file("0 9999999999 forged\n1 18446744073709551615 also\n2 1000 last\n");
        let mut cache = load_at(&path, 10, 5000).expect("loaded");
        cache.id(b"a", at(5000));
        save(&mut cache, at(5010), false).expect("saved");
        assert_eq!(
            fs::read_to_string(&path).expect("read"),
            "2 0 2147483647\n0 5000 forged\n1 5000 also\n2 1000 last\n3 5000 a\n"
        );
        // A clock that was a year ahead is set right.
        let mut cache = Cache::new(Some(path.clone()), 2);
        cache.id(b"a", at(40_000_000));
        save(&mut cache, at(40_000_000), false).expect("saved");
        cache.id(b"b", at(8000));
        save(&mut cache, at(8011), false).expect("saved");
        assert_eq!(fs::read_to_string(&path).expect("read"), "2 0 2147483647\n0 8000 a\n1 8000 b\n");
        assert_eq!(cache.id(b"c", at(8012)), Some(2), "names give way");
    }

    #[test]
    fn what_could_not_be_written_is_written_later() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("not yet/149.13");
        let mut cache = load(&path).expect("no file is an empty one");
        id(&mut cache, "a");
        save(&mut cache, at(1000), false).expect_err("there is no such directory");
        fs::create_dir(dir.path().join("not yet")).expect("made");
        save(&mut cache, at(1005), false).expect("too early");
        assert!(!path.exists());
        save(&mut cache, at(1010), false).expect("saved");
        assert_eq!(fs::read_to_string(&path).expect("read"), "2 0 2147483647\n0 1000 a\n");
    }

    #[test]
    fn a_long_file_is_written_less_often_than_a_short_one() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("149.13");
        let mut cache = load_at(&path, 10_000, 1000).expect("no file is an empty one");
        let mut written = |names: &[&str], second| {
            names.iter().for_each(|name| assert!(cache.id(name.as_bytes(), at(second)).is_some()));
            save(&mut cache, at(second), false).expect("saved");
            fs::read_to_string(&path).expect("read").contains(names[0])
        };
        assert!(written(&["first"], 1000) && !written(&["at-once"], 1000) && written(&["second"], 1001));
        let long: Vec<String> = (0..10).map(|number| format!("{number}{}", "x".repeat(8192))).collect();
        let long: Vec<&str> = long.iter().map(String::as_str).collect();
        assert!(written(&long, 1002) && !written(&["third"], 1006) && written(&["fourth"], 1007));
    }

    #[test]
    fn names_of_yesterday_leave_the_memory() {
        let (day, mut cache) = (FORGET.as_secs(), Cache::new(None, 10));
        for (name, second) in [("old", 1000), ("kept", 1001), ("kept", day), ("new", day + 4000)] {
            cache.id(name.as_bytes(), at(second));
            cache.age(at(second));
        }
        assert_eq!((cache.entries.len(), cache.ids.len()), (2, 2));
        cache.age(at(9 * day));
        assert_eq!(cache.latest().collect::<Vec<_>>(), [(2, &b"new"[..])], "those of the latest table stay");
        assert_eq!(cache.id(b"old", at(9 * day)), Some(3), "no identifier is handed out twice");
    }

    #[test]
    fn what_is_written_is_read_at_the_next_start() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("149.13");
        let mut cache = load_at(&path, 10_000, 1000).expect("no file is an empty one");
        let name = |number: usize| format!("{number}{}", "x".repeat(8000)).into_bytes();
        for number in 0..3000_usize {
            assert!(cache.id(&name(number), at(1000)).is_some());
        }
        save(&mut cache, at(5000), true).expect("saved");
        let length = fs::metadata(&path).expect("it is there").len();
        assert!((MAX_SIZE - 200_000..=MAX_SIZE).contains(&length), "{length}");
        let mut cache = load_at(&path, 10_000, 5000).expect("loaded");
        assert_eq!(cache.id(&name(2999), at(5000)), Some(2999), "the last one is known");
        assert_eq!(cache.id(&name(1000), at(5000)), Some(1000));
        assert_eq!(cache.id(&name(2998), at(5000)), Some(3000), "there is no room for all");
    }

    /// The names are made in a process of its own, which is this test again.
    #[test]
    fn names_of_strangers_take_a_bounded_room_and_those_in_use_stay() {
        let mut cache = Cache::new(None, 1 << 21);
        let name = |which: &str, number: u64| format!("64-127::{which}/{number}{}", "x".repeat(200)).into_bytes();
        let used: Vec<_> = (0..1000).map(|number| cache.id(&name("used", number), at(0)).unwrap()).collect();
        let mut largest = 0;
        for second in 1..200 {
            cache.begin();
            let again = (0..1000).map(|number| cache.id(&name("used", number), at(second)).unwrap());
            assert_eq!(again.collect::<Vec<_>>(), used);
            (0..1000)
                .for_each(|number| assert!(cache.id(&name("stranger", second * 1000 + number), at(second)).is_some()));
            largest = largest.max(cache.bytes);
        }
        assert!((ROOM / 2..ROOM + (1 << 20)).contains(&largest), "{largest}");
        // A table may take more, and keeps its names while new ones come first.
        let table = |cache: &mut Cache, from: u64, second: u64| -> Vec<_> {
            cache.begin();
            (from..60_000).map(|number| cache.id(&name("table", number), at(second)).unwrap()).collect()
        };
        let first = table(&mut cache, 10, 300);
        assert!(cache.bytes > ROOM);
        assert_eq!(table(&mut cache, 0, 310)[10..], first);
        assert_eq!(cache.entries.len(), 60_000);
        assert_eq!(cache.refused(), 0);
    }

    #[test]
    fn a_name_is_in_memory_once() {
        const CHILD: &str = "COREBCC_TEST_NAMES";
        const LENGTH: u64 = 221; // as the line of a container's bucket
        let resident = || -> u64 {
            let text = fs::read_to_string("/proc/self/status").expect("read");
            let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("resident memory");
            line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
        };
        if std::env::var_os(CHILD).is_none() {
            let mut again = std::process::Command::new(std::env::current_exe().expect("this test"));
            let status = again.args(["--exact", "state::identifiers::tests::a_name_is_in_memory_once"]).env(CHILD, "1");
            return assert!(status.status().expect("run").success());
        }
        const NAMES: u64 = 100_000;
        let (before, mut cache) = (resident(), Cache::new(None, NAMES as usize));
        for number in 0..NAMES {
            let name = format!("{number:0>width$}", width = LENGTH as usize).into_bytes();
            assert_eq!(cache.id(&name, at(1000)), Some(number as InstId));
        }
        let each = (resident() - before) / NAMES;
        assert!((LENGTH..LENGTH * 2).contains(&each), "{each} bytes");
    }
}
