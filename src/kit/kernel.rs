//! What a module sees of the kernel, and a stand-in for tests.

use super::{Hook, MapDef, Rows, Sampling, Target};
use crate::bpf::{Field, Untyped};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;

/// Why the kernel does not do what a module at work asks for.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum KernelError {
    /// The hook, or one of its programs, was not loaded.
    #[error("{0} was not loaded")]
    NotLoaded(&'static str),
    /// The kernel's answer.
    #[error("{0}")]
    Refused(String),
}

/// The loaded maps.
pub trait Kernel {
    /// The 64-bit words of a mapped array; empty if the map is not there.
    fn words(&self, map: &MapDef) -> &[AtomicU64];

    /// Whether a map has counts of an agent before this one, since it was pinned.
    fn continues(&self, _map: &MapDef) -> bool {
        false
    }

    /// Hands out the records waiting in a ring and frees their room.
    fn drain(&self, ring: &MapDef, each: &mut dyn FnMut(&[u8]));

    /// Runs the program of an `ON_CALL` hook; yields what it returns.
    fn call(&self, hook: &'static Hook, arguments: &[u64]) -> Result<u32, KernelError>;

    /// Whether a template is attached to the target that has this number.
    fn reaches(&self, template: &'static Hook, number: u32) -> bool;

    /// Attaches a perf event hook that was loaded for later, to an event on each CPU.
    fn sample(&self, hook: &'static Hook, sampling: Sampling) -> Result<(), KernelError>;

    /// Detaches a hook; not attached is fine.
    fn detach(&self, hook: &'static Hook);

    /// Attaches a hook that was loaded for later; done before is fine. An error if the kernel has it in no form.
    fn attach(&self, hook: &'static Hook) -> Result<(), KernelError>;

    /// Attaches a template to one more target, under a number that its program gets; the plan named the template
    /// ([`super::Plan::load_template`]).
    fn attach_to(&self, template: &'static Hook, target: &Target, number: u32) -> Result<Attachment, KernelError>;
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
    pub fn rows<T>(&self, map: Rows<T>) -> RowsView<'_, T> {
        RowsView::new(self.words(&map.def), &map.def)
    }

    /// Number of rows of a map that have an owner, where its declaration says how to tell.
    pub fn taken(&self, map: &MapDef) -> Option<u64> {
        let taken = Field::<Untyped, u64>::untyped(map.taken?);
        Some(self.untyped(map).iter().filter(|row| row.get(taken) != 0).count() as u64)
    }

    /// Number of events dropped because a map was full, where its declaration says which of these maps counts them.
    pub fn lost(&self, map: &MapDef, maps: &[MapDef]) -> Option<u64> {
        let (counts, field) = map.lost?;
        Some(self.untyped(maps.iter().find(|def| def.name == counts)?).sum(Field::untyped(field)))
    }

    fn untyped(&self, map: &MapDef) -> RowsView<'_, Untyped> {
        RowsView::new(self.words(map), map)
    }
}

/// The rows of a map of counters.
pub struct RowsView<'a, T> {
    words: &'a [AtomicU64],
    per_row: usize,
    of: PhantomData<fn() -> T>,
}

impl<T> Clone for RowsView<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for RowsView<'_, T> {}

impl<'a, T> RowsView<'a, T> {
    fn new(words: &'a [AtomicU64], map: &MapDef) -> Self {
        RowsView { words, per_row: (map.value_size / 8).max(1), of: PhantomData }
    }

    /// Each row, in order.
    pub fn iter(self) -> impl Iterator<Item = Row<'a, T>> {
        self.words.chunks_exact(self.per_row).map(Row::new)
    }

    /// One row.
    pub fn get(self, index: usize) -> Option<Row<'a, T>> {
        let start = index.checked_mul(self.per_row)?;
        self.words.get(start..start + self.per_row).map(Row::new)
    }

    /// Number of rows.
    pub fn len(self) -> usize {
        self.words.len() / self.per_row
    }

    /// Whether there is no row.
    pub fn is_empty(self) -> bool {
        self.words.is_empty()
    }

    /// The sum of one field over all rows.
    pub fn sum(self, field: Field<T, u64>) -> u64 {
        self.iter().fold(0, |sum, row| sum.wrapping_add(row.get(field)))
    }
}

/// One row, or a struct inside it. Its fields are constants of the struct: `row.get(fork_row::threads)`.
pub struct Row<'a, T> {
    words: &'a [AtomicU64],
    of: PhantomData<fn() -> T>,
}

impl<T> Clone for Row<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Row<'_, T> {}

impl<'a, T> Row<'a, T> {
    fn new(words: &'a [AtomicU64]) -> Self {
        Row { words, of: PhantomData }
    }

    /// The value of a field.
    pub fn get(self, field: Field<T, u64>) -> u64 {
        self.words.get(field.offset() / 8).map_or(0, |word| word.load(Relaxed))
    }

    /// Writes a field. The programs write too: only for fields they have left to the agent.
    pub fn set(self, field: Field<T, u64>, value: u64) {
        if let Some(word) = self.words.get(field.offset() / 8) {
            word.store(value, Relaxed);
        }
    }

    /// Writes the first bytes of an array, as C lays them out; the last word is filled up with zeros.
    pub fn set_bytes<F, const N: usize>(self, field: Field<T, [F; N]>, bytes: &[u8]) {
        for (word, chunk) in self.cells(field).iter().zip(bytes.chunks(8)) {
            let byte = |i| chunk.get(i).copied().unwrap_or(0);
            word.store(u64::from_ne_bytes(std::array::from_fn(byte)), Relaxed);
        }
    }

    /// Zeroes this field and those that follow it.
    pub fn clear_from<F>(self, first: Field<T, F>) {
        let words = self.words.get(first.offset() / 8..).unwrap_or_default();
        words.iter().for_each(|word| word.store(0, Relaxed));
    }

    /// Zeroes all of it. What is 0 is left alone: writing there would take memory where a page of the array is not mapped.
    pub fn clear(self) {
        self.words.iter().filter(|word| word.load(Relaxed) != 0).for_each(|word| word.store(0, Relaxed));
    }

    /// Writes the first words.
    pub fn write(self, values: &[u64]) {
        self.words.iter().zip(values).for_each(|(word, &value)| word.store(value, Relaxed));
    }

    /// Whether every word is 0.
    pub fn is_zero(self) -> bool {
        self.words.iter().all(|word| word.load(Relaxed) == 0)
    }

    /// The words of an array.
    pub fn words<F, const N: usize>(self, field: Field<T, [F; N]>) -> impl Iterator<Item = u64> + 'a {
        self.cells(field).iter().map(|word| word.load(Relaxed))
    }

    /// The first bytes of an array of words, as C laid them out.
    pub fn bytes<F, const N: usize, const B: usize>(self, field: Field<T, [F; N]>) -> [u8; B] {
        let mut bytes = [0; B];
        for (chunk, word) in bytes.chunks_mut(8).zip(self.words(field)) {
            chunk.copy_from_slice(&word.to_ne_bytes()[..chunk.len()]);
        }
        bytes
    }

    /// A field that is a struct.
    pub fn part<F>(self, field: Field<T, F>) -> Row<'a, F> {
        Row::new(self.span(field))
    }

    /// Each element of an array of structs.
    pub fn parts<F, const N: usize>(self, field: Field<T, [F; N]>) -> impl Iterator<Item = Row<'a, F>> {
        self.cells(field).chunks_exact((size_of::<F>() / 8).max(1)).map(Row::new)
    }

    fn cells<F, const N: usize>(self, field: Field<T, [F; N]>) -> &'a [AtomicU64] {
        self.span(field)
    }

    fn span<F>(self, field: Field<T, F>) -> &'a [AtomicU64] {
        let start = field.offset() / 8;
        self.words.get(start..start.saturating_add(size_of::<F>() / 8)).unwrap_or_default()
    }
}

/// Counters of the agent's own in the form of a row.
pub struct OwnRow<T> {
    words: Vec<AtomicU64>,
    of: PhantomData<fn() -> T>,
}

impl<T> Default for OwnRow<T> {
    fn default() -> Self {
        let words = (0..size_of::<T>() / 8).map(|_| AtomicU64::new(0)).collect();
        OwnRow { words, of: PhantomData }
    }
}

impl<T> OwnRow<T> {
    /// The row.
    pub fn row(&self) -> Row<'_, T> {
        Row::new(&self.words)
    }

    /// Adds all words of another row, each to its own.
    pub fn add(&self, row: Row<'_, T>) {
        for (sum, more) in self.words.iter().zip(row.words) {
            sum.fetch_add(more.load(Relaxed), Relaxed);
        }
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
    continues: bool,
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

    /// With counts of an agent before in all maps.
    pub fn continuing(self) -> Fake {
        Fake { continues: true, ..self }
    }

    /// A row, which the test gave the map.
    pub fn row<T>(&self, map: Rows<T>, row: usize) -> Row<'_, T> {
        let kernel: &dyn Kernel = self;
        kernel.rows(map).get(row).expect("the test gave the map this row")
    }

    /// Sets a word of a row.
    pub fn set<T>(&self, map: Rows<T>, row: usize, field: Field<T, u64>, value: u64) {
        self.row(map, row).set(field, value);
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

    fn continues(&self, _map: &MapDef) -> bool {
        self.continues
    }

    fn drain(&self, _ring: &MapDef, each: &mut dyn FnMut(&[u8])) {
        for record in self.records.borrow_mut().drain(..) {
            each(&record);
        }
    }

    /// Yields 0.
    fn call(&self, hook: &'static Hook, arguments: &[u64]) -> Result<u32, KernelError> {
        self.calls.borrow_mut().push((hook.name, arguments.to_vec()));
        Ok(0)
    }

    fn reaches(&self, _template: &'static Hook, number: u32) -> bool {
        !self.unreached.contains(&number)
    }

    fn sample(&self, hook: &'static Hook, _sampling: Sampling) -> Result<(), KernelError> {
        self.attach(hook)
    }

    fn detach(&self, hook: &'static Hook) {
        self.attached.borrow_mut().retain(|name| *name != hook.name);
    }

    fn attach(&self, hook: &'static Hook) -> Result<(), KernelError> {
        if self.missing.contains(&hook.name) {
            return Err(KernelError::NotLoaded(hook.name));
        }
        self.attached.borrow_mut().push(hook.name);
        Ok(())
    }

    fn attach_to(&self, template: &'static Hook, target: &Target, number: u32) -> Result<Attachment, KernelError> {
        if self.missing.contains(&template.name) {
            return Err(KernelError::NotLoaded(template.name));
        }
        self.targets.lock().unwrap_or_else(PoisonError::into_inner).push((target.clone(), number));
        Ok(Attachment::new(FakeTarget(Arc::clone(&self.targets), (target.clone(), number))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::types::{exec_row, exec_stat};

    crate::maps! {
        rows ROWS: exec_row = "exec_rows", taken claims, lost exec_stat.lost in "exec_stats";
        rows STATS: exec_stat = "exec_stats";
    }

    #[test]
    fn a_map_tells_what_is_taken_of_it_and_what_found_no_place() {
        let fake = Fake::new().with(ROWS, 8).with(STATS, 2);
        fake.set(ROWS, 3, exec_row::claims, 1);
        fake.set(ROWS, 7, exec_row::claims, 2);
        fake.set(STATS, 0, exec_stat::lost, 5);
        fake.set(STATS, 1, exec_stat::lost, 6);
        let kernel: &dyn Kernel = &fake;
        assert_eq!(MAPS.iter().map(|def| kernel.taken(def)).collect::<Vec<_>>(), [Some(2), None]);
        assert_eq!(MAPS.iter().map(|def| kernel.lost(def, MAPS)).collect::<Vec<_>>(), [Some(11), None]);
    }

    #[test]
    fn what_counts_losses_and_marks_of_a_map_is_beside_it() {
        for spec in crate::modules::MODULES.iter().copied().chain([&crate::process::Filters::SPEC]) {
            let counts = spec.maps.iter().filter_map(|def| Some(def.lost?.0));
            for counts in counts.chain(spec.maps.iter().filter_map(|def| def.marks)) {
                assert!(spec.maps.iter().any(|def| def.name == counts), "{}: {counts}", spec.name);
            }
        }
    }
}
