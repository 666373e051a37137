//! Instances of a module's domain: the identifiers of the rows of its table.

use crate::kit::{Key, Log2, Shape, Table};
use crate::pcp::{InstId, IN_NULL};
use crate::state::{Cache, Writer};
use std::collections::BTreeMap;
use std::time::SystemTime;

/// An instance domain in use.
pub struct Instances {
    shape: Shape,
    /// Number of instances of a table of shape `Rows`, which are there with or without data.
    rows: u32,
    cache: Option<Cache>,
    /// Identifiers by row of the table; `None` for a name that was refused.
    ids: Vec<Option<InstId>>,
}

impl Instances {
    /// Makes an instance domain. A file of this name keeps the identifiers of names over restarts.
    pub fn new(shape: Shape, rows: u32, file: Option<(&Writer, &str)>) -> Instances {
        use Shape::{Buckets, Named, Seconds, Words};
        let cache = match (shape, file) {
            (Named { max } | Words { max } | Buckets { max } | Seconds { max }, Some((writer, name))) => {
                let file = writer.path(name);
                Some(Cache::load(&file, writer.read(&file), max, SystemTime::now()).unwrap_or_else(|error| {
                    log::warn!(
                        "{}: {error}; replacing the file, instance identifiers are assigned again",
                        file.display()
                    );
                    Cache::new(Some(file), max)
                }))
            }
            (Named { max } | Words { max } | Buckets { max } | Seconds { max }, None) => Some(Cache::new(None, max)),
            _ => None,
        };
        Instances { shape, rows, cache, ids: Vec::new() }
    }

    /// Assigns an identifier to each row of a new table.
    pub fn update(&mut self, table: &Table, now: SystemTime) {
        self.ids.clear();
        if let Some(cache) = &mut self.cache {
            cache.begin();
        }
        for key in table.keys() {
            let id = match (key, &mut self.cache) {
                (Key::Single, _) => Some(IN_NULL),
                (Key::Index(index), _) => Some(*index),
                (Key::Pid(number, _) | Key::Numbered(number, _), _) => Some(*number),
                (Key::Name(name), Some(cache)) if matches!(self.shape, Shape::Words { .. }) => {
                    cache.id(table.text(name).split(|&byte| byte == b' ').next().unwrap_or_default(), now)
                }
                (Key::Name(name), Some(cache)) => cache.id(table.text(name), now),
                (Key::Name(_), None) => None,
            };
            self.ids.push(id);
        }
        if let Some(cache) = &mut self.cache {
            cache.age(now);
        }
    }

    /// Returns the identifiers, by row.
    pub fn ids(&self) -> &[Option<InstId>] {
        &self.ids
    }

    /// Passes each instance with its name to `out`. Without a table only one of shape `Rows` has instances.
    pub fn each(&self, table: Option<&Table>, out: &mut dyn FnMut(InstId, &[u8])) {
        self.each_row(table, &mut |_, id, name| out(id, name));
    }

    /// Passes the instances of the latest table to `out` without needing the table. Returns `None`, with none passed, if their names
    /// are not known: of `Words`, whose names change behind the first word, only that word is kept.
    pub fn each_known(&self, out: &mut dyn FnMut(InstId, &[u8])) -> Option<()> {
        let cache = self.cache.as_ref().filter(|_| !matches!(self.shape, Shape::Words { .. }))?;
        let known: BTreeMap<InstId, &[u8]> = cache.latest().collect();
        known.iter().for_each(|(id, name)| out(*id, name));
        (!known.is_empty()).then_some(())
    }

    /// Passes each instance with its row to `out`, see [`Instances::each`].
    pub fn each_row(&self, table: Option<&Table>, out: &mut dyn FnMut(usize, InstId, &[u8])) {
        if let Shape::Rows { .. } = self.shape {
            for row in 0..self.rows {
                out(row as usize, row, row.to_string().as_bytes());
            }
            return;
        }
        let Some(table) = table else { return };
        for (row, (key, id)) in table.keys().iter().zip(&self.ids).enumerate() {
            let Some(id) = *id else { continue };
            match key {
                Key::Index(slot) => out(row, id, Log2::name(*slot).as_bytes()),
                Key::Name(name) | Key::Pid(_, name) | Key::Numbered(_, name) => out(row, id, table.text(name)),
                Key::Single => {}
            }
        }
    }

    /// Passes new identifiers of names to the writer; unless `at_exit`, only some time after the last ones.
    pub fn save(&mut self, now: SystemTime, at_exit: bool, writer: &Writer) {
        if let Some(cache) = &mut self.cache {
            cache.save(now, at_exit, writer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(instances: &mut Instances, names: &[&str]) -> Vec<(u32, String)> {
        let mut table = Table::new(1);
        for name in names {
            table.named(name.as_bytes());
        }
        instances.update(&table, SystemTime::UNIX_EPOCH);
        let mut found = Vec::new();
        instances.each(Some(&table), &mut |id, name| found.push((id, String::from_utf8_lossy(name).into_owned())));
        found
    }

    #[test]
    fn a_word_keeps_its_identifier_over_restarts() {
        let home = tempfile::tempdir().unwrap();
        let writer = Writer::new(home.path().into());
        std::fs::write(writer.path("149.1"), "2 0 2147483647\n0 1 vda::000007\n3 1 vda::000077\n").unwrap();
        let mut instances = Instances::new(Shape::Words { max: 10 }, 0, Some((&writer, "149.1")));
        let first = named(&mut instances, &["vda::000077 sh", "vdb::000077 sh"]);
        assert_eq!(first, [(3, "vda::000077 sh".into()), (4, "vdb::000077 sh".into())]);
        assert_eq!(named(&mut instances, &["vda::000077 dd"]), [(3, "vda::000077 dd".into())]);
        instances.save(SystemTime::UNIX_EPOCH, true, &writer);
        let mut instances = Instances::new(Shape::Words { max: 10 }, 0, Some((&writer, "149.1")));
        assert_eq!(named(&mut instances, &["vdb::000077 cat"]), [(4, "vdb::000077 cat".into())]);
    }

    #[test]
    fn a_number_is_its_identifier_whatever_its_name_and_place() {
        let mut table = Table::new(1);
        table.numbered(437, b"openat2");
        table.numbered(3, b"close");
        let mut instances = Instances::new(Shape::Numbered, 0, None);
        instances.update(&table, SystemTime::UNIX_EPOCH);
        assert_eq!(instances.ids(), [Some(437), Some(3)]);
        let mut names = Vec::new();
        instances.each(Some(&table), &mut |id, name| names.push((id, String::from_utf8_lossy(name).into_owned())));
        assert_eq!(names, [(437, "openat2".into()), (3, "close".into())]);
    }
}
