//! What a module sees of the kernel, and a stand-in for tests.

use super::{Hook, MapDef, Rows, Sampling, Target};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// The loaded maps.
pub trait Kernel {
    /// The 64-bit words of a mapped array; empty if the map is not there.
    fn words(&self, map: &MapDef) -> &[AtomicU64];

    /// Hands out the records waiting in a ring and frees their room.
    fn drain(&self, ring: &MapDef, each: &mut dyn FnMut(&[u8]));

    /// Runs the program of an `ON_CALL` hook; yields what it returns.
    fn call(&self, hook: &'static Hook, arguments: &[u64]) -> Result<u32, String>;

    /// Whether a template is attached to the target that has this number.
    fn reaches(&self, template: &'static Hook, number: u32) -> bool;

    /// Attaches a perf event hook that was loaded for later, to an event on each CPU.
    fn sample(&self, hook: &'static Hook, sampling: Sampling) -> Result<(), String>;

    /// Detaches a hook; not attached is fine.
    fn detach(&self, hook: &'static Hook);

    /// Attaches a hook that was loaded for later; done before is fine. An error if the kernel has it in no form.
    fn attach(&self, hook: &'static Hook) -> Result<(), String>;

    /// Attaches a template to one more target, under a number that its program gets; the plan named the template
    /// ([`super::Plan::template`]).
    fn attach_to(&self, template: &'static Hook, target: &Target, number: u32) -> Result<Attachment, String>;
}

/// Keeps a template attached to a target until it is dropped.
pub struct Attachment(#[allow(dead_code)] Mutex<Box<dyn Send>>); // for its drop only

impl Attachment {
    /// Detaches by dropping this.
    pub fn new(what: impl Send + 'static) -> Attachment {
        Attachment(Mutex::new(Box::new(what)))
    }
}

impl dyn Kernel + '_ {
    /// The rows of a map of counters.
    pub fn rows<T>(&self, map: Rows<T>) -> RowsView<'_> {
        self.view(&map.def)
    }

    fn view(&self, map: &MapDef) -> RowsView<'_> {
        RowsView { words: self.words(map), per_row: (map.value_size / 8).max(1) }
    }

    /// How many rows of a map somebody has, where its declaration says how to tell.
    pub fn taken(&self, map: &MapDef) -> Option<u64> {
        let taken = map.taken?;
        Some(self.view(map).iter().filter(|row| row.word(taken) != 0).count() as u64)
    }

    /// What found no place in a map, where its declaration says which of these maps counts it.
    pub fn lost(&self, map: &MapDef, maps: &[MapDef]) -> Option<u64> {
        let (counts, field) = map.lost?;
        Some(self.view(maps.iter().find(|def| def.name == counts)?).sum(field))
    }
}

/// The rows of a map of counters.
#[derive(Clone, Copy)]
pub struct RowsView<'a> {
    words: &'a [AtomicU64],
    per_row: usize,
}

impl<'a> RowsView<'a> {
    /// Each row, in order.
    pub fn iter(self) -> impl Iterator<Item = Row<'a>> {
        self.words.chunks_exact(self.per_row).map(|words| Row { words })
    }

    /// One row.
    pub fn get(self, index: usize) -> Option<Row<'a>> {
        let start = index.checked_mul(self.per_row)?;
        self.words.get(start..start + self.per_row).map(|words| Row { words })
    }

    /// How many rows there are.
    pub fn len(self) -> usize {
        self.words.len() / self.per_row
    }

    /// Whether there is no row.
    pub fn is_empty(self) -> bool {
        self.words.is_empty()
    }

    /// The sum of one field over all rows.
    pub fn sum(self, offset: usize) -> u64 {
        self.iter().fold(0, |sum, row| sum.wrapping_add(row.word(offset)))
    }
}

/// One row. Fields are addressed by their byte offset: `row.word(offset_of!(fork_row, threads))`.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    words: &'a [AtomicU64],
}

impl<'a> Row<'a> {
    /// A field; 0 beyond the row.
    pub fn word(self, offset: usize) -> u64 {
        self.words.get(offset / 8).map_or(0, |word| word.load(Relaxed))
    }

    /// Writes a field. The programs write too: only for fields they have left to the agent.
    pub fn set(self, offset: usize, value: u64) {
        if let Some(word) = self.words.get(offset / 8) {
            word.store(value, Relaxed);
        }
    }

    /// Writes bytes, of which there are a multiple of eight, as C lays them out.
    pub fn set_bytes(self, offset: usize, bytes: &[u8]) {
        for (i, word) in bytes.chunks_exact(8).enumerate() {
            self.set(offset + 8 * i, u64::from_ne_bytes(std::array::from_fn(|i| word[i])));
        }
    }

    /// The array of words that begins at an offset, to the end of the row.
    pub fn words(self, offset: usize) -> impl Iterator<Item = u64> + 'a {
        self.words.iter().skip(offset / 8).map(|word| word.load(Relaxed))
    }

    /// The bytes of words, as C laid them out.
    pub fn bytes<const N: usize>(self, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        for (chunk, word) in bytes.chunks_mut(8).zip(self.words(offset)) {
            chunk.copy_from_slice(&word.to_ne_bytes()[..chunk.len()]);
        }
        bytes
    }
}

/// Maps without a kernel.
#[derive(Default)]
pub struct Fake {
    maps: Vec<(&'static str, Vec<AtomicU64>)>,
    records: std::cell::RefCell<Vec<Vec<u8>>>,
    attached: std::cell::RefCell<Vec<&'static str>>,
    unreached: Vec<u32>,
    calls: std::cell::RefCell<Vec<(&'static str, Vec<u64>)>>,
    missing: Vec<&'static str>,
    targets: Arc<Mutex<Vec<(Target, u32)>>>,
}

/// One of a fake's targets.
struct FakeTarget(Arc<Mutex<Vec<(Target, u32)>>>, (Target, u32));

impl Drop for FakeTarget {
    fn drop(&mut self) {
        let mut targets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = targets.iter().position(|target| *target == self.1) {
            targets.remove(at);
        }
    }
}

impl Fake {
    /// No maps at all.
    pub fn new() -> Fake {
        Fake::default()
    }

    /// With a map of so many rows of zeros.
    pub fn with<T>(mut self, map: Rows<T>, rows: usize) -> Fake {
        let words = rows * map.def.value_size / 8;
        self.maps.push((map.def.name, (0..words).map(|_| AtomicU64::new(0)).collect()));
        self
    }

    /// Of a kernel that lacks a hook.
    pub fn without(mut self, hook: &'static Hook) -> Fake {
        self.missing.push(hook.name);
        self
    }

    /// With a record waiting in the ring.
    pub fn record(&self, bytes: &[u8]) {
        self.records.borrow_mut().push(bytes.to_vec());
    }

    /// Sets a word of a row.
    pub fn set<T>(&self, map: Rows<T>, row: usize, offset: usize, value: u64) {
        let kernel: &dyn Kernel = self;
        kernel.rows(map).get(row).expect("the test gave the map this row").set(offset, value);
    }

    /// Where the target with this number could not be attached.
    pub fn out_of_reach(mut self, number: u32) -> Fake {
        self.unreached.push(number);
        self
    }

    /// The calls of a hook's program since the last look: their arguments.
    pub fn calls(&self, hook: &'static Hook) -> Vec<Vec<u64>> {
        let mut calls = self.calls.borrow_mut();
        let (of, others) = calls.drain(..).partition(|(name, _)| *name == hook.name);
        *calls = others;
        let of: Vec<(&str, Vec<u64>)> = of;
        of.into_iter().map(|(_, arguments)| arguments).collect()
    }

    /// The targets that templates are attached to, with their numbers.
    pub fn targets(&self) -> Vec<(Target, u32)> {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The hooks attached later.
    pub fn attached(&self) -> Vec<&'static str> {
        self.attached.borrow().clone()
    }
}

impl Kernel for Fake {
    fn words(&self, map: &MapDef) -> &[AtomicU64] {
        self.maps.iter().find(|(name, _)| *name == map.name).map_or(&[], |(_, words)| words)
    }

    fn drain(&self, _ring: &MapDef, each: &mut dyn FnMut(&[u8])) {
        for record in self.records.borrow_mut().drain(..) {
            each(&record);
        }
    }

    /// Yields 0.
    fn call(&self, hook: &'static Hook, arguments: &[u64]) -> Result<u32, String> {
        self.calls.borrow_mut().push((hook.name, arguments.to_vec()));
        Ok(0)
    }

    fn reaches(&self, _template: &'static Hook, number: u32) -> bool {
        !self.unreached.contains(&number)
    }

    fn sample(&self, hook: &'static Hook, _sampling: Sampling) -> Result<(), String> {
        self.attach(hook)
    }

    fn detach(&self, hook: &'static Hook) {
        self.attached.borrow_mut().retain(|name| *name != hook.name);
    }

    fn attach(&self, hook: &'static Hook) -> Result<(), String> {
        if self.missing.contains(&hook.name) {
            return Err(format!("{} was not loaded", hook.name));
        }
        self.attached.borrow_mut().push(hook.name);
        Ok(())
    }

    fn attach_to(&self, template: &'static Hook, target: &Target, number: u32) -> Result<Attachment, String> {
        if self.missing.contains(&template.name) {
            return Err(format!("{} was not loaded", template.name));
        }
        self.targets.lock().unwrap_or_else(PoisonError::into_inner).push((target.clone(), number));
        Ok(Attachment::new(FakeTarget(Arc::clone(&self.targets), (target.clone(), number))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::types::{exec_row, exec_stat};
    use std::mem::offset_of;

    crate::maps! {
        rows ROWS: exec_row = "exec_rows", taken claims, lost exec_stat.lost in "exec_stats";
        rows STATS: exec_stat = "exec_stats";
    }

    #[test]
    fn a_map_tells_what_is_taken_of_it_and_what_found_no_place() {
        let fake = Fake::new().with(ROWS, 8).with(STATS, 2);
        fake.set(ROWS, 3, offset_of!(exec_row, claims), 1);
        fake.set(ROWS, 7, offset_of!(exec_row, claims), 2);
        fake.set(STATS, 0, offset_of!(exec_stat, lost), 5);
        fake.set(STATS, 1, offset_of!(exec_stat, lost), 6);
        let kernel: &dyn Kernel = &fake;
        assert_eq!(MAPS.iter().map(|def| kernel.taken(def)).collect::<Vec<_>>(), [Some(2), None]);
        assert_eq!(MAPS.iter().map(|def| kernel.lost(def, MAPS)).collect::<Vec<_>>(), [Some(11), None]);
    }

    #[test]
    fn what_counts_the_losses_of_a_map_is_a_map_beside_it() {
        for spec in crate::modules::MODULES.iter().copied().chain([&crate::process::Filters::SPEC]) {
            for (counts, _) in spec.maps.iter().filter_map(|def| def.lost) {
                assert!(spec.maps.iter().any(|def| def.name == counts), "{}: {counts}", spec.name);
            }
        }
    }
}
