//! The kernel as a module sees it, and a fake one for tests.

use super::{Hook, MapDef, Rows, Sampling, Target};
use crate::bpf::{Field, Untyped};
use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;

/// A reason why the kernel refused the request of a running module.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum KernelError {
    /// The hook or one of its programs was not loaded.
    #[error("{0} was not loaded")]
    NotLoaded(&'static str),
    /// Error text of the kernel.
    #[error("{0}")]
    Refused(String),
}

/// Loaded maps and programs.
pub trait Kernel {
    /// Returns the 64-bit words of a mapped array; empty if there is no such map.
    fn words(&self, map: &MapDef) -> &[AtomicU64];

    /// True if a map was pinned and holds counts of an earlier agent.
    fn continues(&self, _map: &MapDef) -> bool {
        false
    }

    /// Passes the waiting records of a ring to `each` and frees their space.
    fn drain(&self, ring: &MapDef, each: &mut dyn FnMut(&[u8]));

    /// Runs the program of an `ON_CALL` hook; returns its result.
    fn call(&self, hook: &'static Hook, arguments: &[u64]) -> Result<u32, KernelError>;

    /// Runs the program of an `ON_CALL` hook without arguments on this CPU; returns its result.
    fn call_on(&self, hook: &'static Hook, _cpu: u32) -> Result<u32, KernelError> {
        Err(KernelError::NotLoaded(hook.name))
    }

    /// Walks the objects of an iterator of the kernel, whose `ON_WALK` program runs for each.
    fn walk(&self, hook: &'static Hook) -> Result<(), KernelError> {
        Err(KernelError::NotLoaded(hook.name))
    }

    /// Iterates over BPF objects with a path below `/sys/fs/bpf`.
    fn pinned(&self, _each: &mut dyn FnMut(PinnedObject)) {}

    /// True if a template is attached to the target with this number.
    fn reaches(&self, template: &'static Hook, number: u32) -> bool;

    /// Attaches a perf event hook, loaded on demand, to an event on each CPU.
    fn sample(&self, hook: &'static Hook, sampling: Sampling) -> Result<(), KernelError>;

    /// Detaches a hook; does nothing if it is not attached.
    fn detach(&self, hook: &'static Hook);

    /// Attaches a hook that was loaded on demand; does nothing if it is attached. An error if the kernel accepted none
    /// of its tiers.
    fn attach(&self, hook: &'static Hook) -> Result<(), KernelError>;

    /// Attaches a template, which the plan has named ([`super::Plan::load_template`]), to one more target; its program
    /// gets the number.
    fn attach_to(&self, template: &'static Hook, target: &Target, number: u32) -> Result<Attachment, KernelError>;
}

/// A BPF object with a path (`BPF_OBJ_PIN` of bpf(2)).
pub struct PinnedObject {
    /// Kind of object.
    pub kind: ObjectKind,
    /// Identifier among the objects of its kind.
    pub id: u32,
    /// Its path.
    pub path: PathBuf,
}

/// A kind of BPF objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    /// A program.
    Program,
    /// A map.
    Map,
    /// A link, which keeps a program attached.
    Link,
}

/// An attachment of a template to a target, which ends when this is dropped.
pub struct Attachment(#[allow(dead_code)] Mutex<Box<dyn Send>>); // for its drop only

impl Attachment {
    /// Makes an attachment that ends when `what` is dropped.
    pub fn new(what: impl Send + 'static) -> Attachment {
        Attachment(Mutex::new(Box::new(what)))
    }
}

impl dyn Kernel + '_ {
    /// Returns the rows of a map of counters.
    pub fn rows<T>(&self, map: Rows<T>) -> RowsView<'_, T> {
        RowsView::new(self.words(&map.def), &map.def)
    }

    /// Returns the number of rows in use; `None` if the map's declaration does not name the field that shows it.
    pub fn taken(&self, map: &MapDef) -> Option<u64> {
        let taken = Field::<Untyped, u64>::untyped(map.taken?);
        Some(self.untyped(map).iter().filter(|row| row.get(taken) != 0).count() as u64)
    }

    /// Returns the number of events dropped because a map was full; `None` if its declaration names no counter for
    /// them.
    pub fn lost(&self, map: &MapDef, maps: &[MapDef]) -> Option<u64> {
        let (counts, field) = map.lost?;
        Some(self.untyped(maps.iter().find(|def| def.name == counts)?).sum(Field::untyped(field)))
    }

    /// Returns the rows of a map of counters whose type is not at hand.
    pub(super) fn untyped(&self, map: &MapDef) -> RowsView<'_, Untyped> {
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

    /// Iterates over the rows in order.
    pub fn iter(self) -> impl Iterator<Item = Row<'a, T>> {
        self.words.chunks_exact(self.per_row).map(Row::new)
    }

    /// Returns the row with this index.
    pub fn get(self, index: usize) -> Option<Row<'a, T>> {
        let start = index.checked_mul(self.per_row)?;
        self.words.get(start..start + self.per_row).map(Row::new)
    }

    /// Returns the number of rows.
    pub fn len(self) -> usize {
        self.words.len() / self.per_row
    }

    /// True if there are no rows.
    pub fn is_empty(self) -> bool {
        self.words.is_empty()
    }

    /// Sums one field over all rows.
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

    /// Returns the value of a field.
    pub fn get(self, field: Field<T, u64>) -> u64 {
        self.words.get(field.offset() / 8).map_or(0, |word| word.load(Relaxed))
    }

    /// Writes a field. Only for fields that the programs do not write.
    pub fn set(self, field: Field<T, u64>, value: u64) {
        self.store(field, value, Relaxed);
    }

    pub(super) fn store(self, field: Field<T, u64>, value: u64, order: Ordering) {
        if let Some(word) = self.words.get(field.offset() / 8) {
            word.store(value, order);
        }
    }

    /// Writes the first bytes of an array in the layout of C; the last word is padded with zeros.
    pub fn set_bytes<F, const N: usize>(self, field: Field<T, [F; N]>, bytes: &[u8]) {
        for (word, chunk) in self.cells(field).iter().zip(bytes.chunks(8)) {
            let byte = |i| chunk.get(i).copied().unwrap_or(0);
            word.store(u64::from_ne_bytes(std::array::from_fn(byte)), Relaxed);
        }
    }

    /// Zeroes the row. Words that are 0 are not written, since a write would allocate an unmapped page of the array.
    pub fn clear(self) {
        clear(self.words.iter());
    }

    /// Zeroes all but a field, as [`Row::clear`] does.
    pub(super) fn clear_except(self, field: Field<T, u64>) {
        clear(self.words.iter().enumerate().filter(|(at, _)| *at != field.offset() / 8).map(|(_, word)| word));
    }

    /// Writes the first words.
    pub fn write(self, values: &[u64]) {
        self.words.iter().zip(values).for_each(|(word, &value)| word.store(value, Relaxed));
    }

    /// True if every word is 0.
    pub fn is_zero(self) -> bool {
        self.words.iter().all(|word| word.load(Relaxed) == 0)
    }

    /// Iterates over the words of the row.
    pub fn all(self) -> impl Iterator<Item = u64> + 'a {
        self.words.iter().map(|word| word.load(Relaxed))
    }

    /// Iterates over the words of an array.
    pub fn words<F, const N: usize>(self, field: Field<T, [F; N]>) -> impl Iterator<Item = u64> + 'a {
        self.cells(field).iter().map(|word| word.load(Relaxed))
    }

    /// Returns the first bytes of an array of words in the layout of C.
    pub fn bytes<F, const N: usize, const B: usize>(self, field: Field<T, [F; N]>) -> [u8; B] {
        let mut bytes = [0; B];
        for (chunk, word) in bytes.chunks_mut(8).zip(self.words(field)) {
            chunk.copy_from_slice(&word.to_ne_bytes()[..chunk.len()]);
        }
        bytes
    }

    /// Returns a field that is a struct.
    pub fn part<F>(self, field: Field<T, F>) -> Row<'a, F> {
        Row::new(self.span(field))
    }

    /// Iterates over the elements of an array of structs.
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

fn clear<'a>(words: impl Iterator<Item = &'a AtomicU64>) {
    words.filter(|word| word.load(Relaxed) != 0).for_each(|word| word.store(0, Relaxed));
}

/// Counters kept by the agent itself, in the form of a row.
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
    /// Returns the row.
    pub fn row(&self) -> Row<'_, T> {
        Row::new(&self.words)
    }

    /// Adds each word of another row to the same word of this one.
    pub fn add(&self, row: Row<'_, T>) {
        for (sum, more) in self.words.iter().zip(row.words) {
            sum.fetch_add(more.load(Relaxed), Relaxed);
        }
    }
}

/// A kernel for tests: maps in memory, nothing attached.
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

/// An attached target of a [`Fake`], removed from its list when dropped.
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
    /// Makes a kernel without maps.
    pub fn new() -> Fake {
        Fake::default()
    }

    /// Adds a map with this many rows of zeros.
    pub fn with<T>(mut self, map: Rows<T>, rows: usize) -> Fake {
        let words = rows * map.def.value_size / 8;
        self.maps.push((map.def.name, (0..words).map(|_| AtomicU64::new(0)).collect()));
        self
    }

    /// Makes attaching this hook fail, as on a kernel that lacks it.
    pub fn without(mut self, hook: &'static Hook) -> Fake {
        self.missing.push(hook.name);
        self
    }

    /// Adds a waiting record to the ring.
    pub fn record(&self, bytes: &[u8]) {
        self.records.borrow_mut().push(bytes.to_vec());
    }

    /// Makes all maps hold counts of an earlier agent.
    pub fn continuing(self) -> Fake {
        Fake { continues: true, ..self }
    }

    /// Returns a row of a map that the test has added.
    pub fn row<T>(&self, map: Rows<T>, row: usize) -> Row<'_, T> {
        let kernel: &dyn Kernel = self;
        kernel.rows(map).get(row).expect("the test gave the map this row")
    }

    /// Sets a word of a row.
    pub fn set<T>(&self, map: Rows<T>, row: usize, field: Field<T, u64>, value: u64) {
        self.row(map, row).set(field, value);
    }

    /// Makes the target with this number impossible to attach.
    pub fn out_of_reach(mut self, number: u32) -> Fake {
        self.unreached.push(number);
        self
    }

    /// Returns and removes the recorded calls of a hook's program, as lists of arguments.
    pub fn calls(&self, hook: &'static Hook) -> Vec<Vec<u64>> {
        let mut calls = self.calls.borrow_mut();
        let (of, others) = calls.drain(..).partition(|(name, _)| *name == hook.name);
        *calls = others;
        let of: Vec<(&str, Vec<u64>)> = of;
        of.into_iter().map(|(_, arguments)| arguments).collect()
    }

    /// Returns the targets that templates are attached to, with their numbers.
    pub fn targets(&self) -> Vec<(Target, u32)> {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the names of the hooks attached later.
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

    /// Records the call; returns 0.
    fn call(&self, hook: &'static Hook, arguments: &[u64]) -> Result<u32, KernelError> {
        self.calls.borrow_mut().push((hook.name, arguments.to_vec()));
        Ok(0)
    }

    /// Records the call, with the number of the CPU; returns 1.
    fn call_on(&self, hook: &'static Hook, cpu: u32) -> Result<u32, KernelError> {
        self.calls.borrow_mut().push((hook.name, vec![cpu.into()]));
        Ok(1)
    }

    /// Records a call without arguments.
    fn walk(&self, hook: &'static Hook) -> Result<(), KernelError> {
        self.calls.borrow_mut().push((hook.name, Vec::new()));
        match self.missing.contains(&hook.name) {
            true => Err(KernelError::NotLoaded(hook.name)),
            false => Ok(()),
        }
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
