//! BPF arrays that are mapped in parts: tables that are large, so that each row is near the place of its key, and
//! mostly empty.

use super::mapping::Mapping;
use super::{held, page};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Shortest interval between searches for unused pages, each of which reads all mapped pages.
const SWEEP: Duration = Duration::from_secs(20);

/// An array of which only pages of parts with rows in use are mapped; the others read as zeros. Programs claim a row
/// and then mark its part in an array with a number for each part, which only grows (bpf/shared/owned.bpf.h).
pub struct Sparse {
    array: OwnedFd,
    room: Mapping,
    page: usize,
    /// Size of the array and of a row, in bytes.
    bytes: usize,
    row: usize,
    /// Offset in a row of the word that is not 0 while the row is in use; `None` if rows are never freed.
    taken: Option<usize>,
    /// Sum of the marks in `known`; nothing has changed while it is the same.
    marked: AtomicU64,
    begun: Instant,
    /// Milliseconds from `begun` to the last search for unused pages.
    swept: AtomicU64,
    known: Mutex<Known>,
}

struct Known {
    /// Mark of each part when its pages were mapped.
    marks: Vec<u64>,
    /// True for mapped pages.
    mapped: Vec<bool>,
}

impl Sparse {
    /// Reserves an array of this many bytes; nothing is mapped yet.
    pub fn new(array: OwnedFd, bytes: usize, row: usize, taken: Option<usize>) -> nix::Result<Sparse> {
        let page = page()?;
        let room = Mapping::reserve(bytes.next_multiple_of(page))?;
        let known = Known { marks: Vec::new(), mapped: vec![false; bytes.div_ceil(page)] };
        let (marked, begun, swept, known) = (AtomicU64::new(0), Instant::now(), AtomicU64::new(0), Mutex::new(known));
        Ok(Sparse { array, room, page, bytes, row, taken, marked, begun, swept, known })
    }

    /// Returns the words of the array, including all rows whose marks are visible by now.
    pub fn words(&self, marks: &[AtomicU64]) -> &[AtomicU64] {
        let now = Instant::now();
        if sum(marks.iter().map(|mark| mark.load(Acquire))) != self.marked.load(Relaxed) || self.is_due(now) {
            self.follow(marks, now);
        }
        &self.room.words()[..self.bytes / 8]
    }

    /// True if it is time to search for unused pages.
    fn is_due(&self, now: Instant) -> bool {
        self.millis(now).saturating_sub(self.swept.load(Relaxed)) >= SWEEP.as_millis() as u64
    }

    fn millis(&self, now: Instant) -> u64 {
        now.duration_since(self.begun).as_millis() as u64
    }

    fn follow(&self, marks: &[AtomicU64], now: Instant) {
        let known = &mut *held(&self.known);
        known.marks.resize(marks.len(), 0);
        // First, so that the claim of every mark that is known has long been visible; of the others the pages are mapped below.
        if self.is_due(now) {
            self.swept.store(self.millis(now), Relaxed);
            self.give_back(&mut known.mapped);
        }
        for (part, mark) in marks.iter().enumerate() {
            let mark = mark.load(Acquire);
            if mark == known.marks[part] {
                continue;
            }
            match self.map(self.pages_of(part, marks.len()), &mut known.mapped) {
                Ok(()) => known.marks[part] = mark,
                Err(error) => log::debug!("a part of a BPF array: mmap: {error}"),
            }
        }
        self.marked.store(sum(known.marks.iter().copied()), Relaxed);
    }

    /// Returns the pages that contain rows of a part.
    fn pages_of(&self, part: usize, parts: usize) -> Range<usize> {
        let bytes = (self.bytes / self.row).div_ceil(parts) * self.row;
        let start = (part * bytes).min(self.bytes);
        start / self.page..(start + bytes).min(self.bytes).div_ceil(self.page)
    }

    /// Maps those of the pages that are not mapped yet, adjacent ones at once.
    fn map(&self, pages: Range<usize>, mapped: &mut [bool]) -> nix::Result<()> {
        let mut at = pages.start;
        for run in mapped[pages].chunk_by_mut(|one, next| one == next) {
            let bytes = at * self.page..(at + run.len()) * self.page;
            at += run.len();
            if !run[0] {
                self.room.fill(self.array.as_fd(), bytes)?;
                run.fill(true);
            }
        }
        Ok(())
    }

    /// Unmaps the pages without a row in use. A row claimed meanwhile is marked afterwards, and its page is mapped
    /// again.
    fn give_back(&self, mapped: &mut [bool]) {
        let Some(taken) = self.taken else { return };
        let words = self.room.words();
        for (at, mapped) in mapped.iter_mut().enumerate().filter(|(_, mapped)| **mapped) {
            let bytes = at * self.page..(at + 1) * self.page;
            let rows = bytes.start / self.row..bytes.end.min(self.bytes).div_ceil(self.row);
            let is_free =
                |row: usize| words.get((row * self.row + taken) / 8).is_none_or(|word| word.load(Acquire) == 0);
            *mapped = !(rows.clone().all(is_free) && self.room.empty(bytes).is_ok());
        }
    }
}

fn sum(marks: impl Iterator<Item = u64>) -> u64 {
    marks.fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{memfd_create, MFdFlags};
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    /// Makes a file that stands in for the array.
    fn array(bytes: usize, row: usize, taken: Option<usize>) -> (File, Sparse) {
        let file = File::from(memfd_create(c"array", MFdFlags::empty()).expect("the kernel has memory"));
        file.set_len(bytes as u64).expect("the file has room");
        let sparse =
            Sparse::new(file.try_clone().expect("a descriptor").into(), bytes, row, taken).expect("address space");
        (file, sparse)
    }

    fn marks(parts: usize) -> Vec<AtomicU64> {
        (0..parts).map(|_| AtomicU64::new(0)).collect()
    }

    /// Claims a row like a program.
    fn claim(file: &File, offset: usize, marks: &[AtomicU64], part: usize) {
        file.write_all_at(&7u64.to_ne_bytes(), offset as u64).expect("the array is as long");
        marks[part].fetch_add(1, Relaxed);
    }

    fn word(sparse: &Sparse, marks: &[AtomicU64], offset: usize) -> u64 {
        sparse.words(marks)[offset / 8].load(Relaxed)
    }

    fn mapped(sparse: &Sparse) -> usize {
        held(&sparse.known).mapped.iter().filter(|mapped| **mapped).count()
    }

    #[test]
    fn a_part_is_mapped_by_the_look_that_sees_its_mark() {
        let page = page().expect("a size");
        let (file, sparse) = array(16 * page, 128, Some(0));
        let marks = marks(16);
        assert_eq!((sparse.words(&marks).len(), mapped(&sparse)), (2 * page, 0));
        assert!(sparse.words(&marks).iter().all(|word| word.load(Relaxed) == 0));
        for (times, part) in [(1, 3), (2, 15)] {
            claim(&file, part * page + 128, &marks, part);
            assert_eq!((word(&sparse, &marks, part * page + 128), mapped(&sparse)), (7, times));
        }
        // Both ways, as any mapping: the agent gives rows back.
        sparse.words(&marks)[3 * page / 8].store(9, Relaxed);
        let mut written = [0; 8];
        file.read_exact_at(&mut written, (3 * page) as u64).expect("the array is as long");
        assert_eq!(u64::from_ne_bytes(written), 9);
    }

    #[test]
    fn rows_longer_than_a_page_are_mapped_whole() {
        let page = page().expect("a size");
        let row = 2 * page + page / 2;
        let (file, sparse) = array(6 * row, row, Some(0));
        let marks = marks(6);
        claim(&file, row, &marks, 1);
        file.write_all_at(&5u64.to_ne_bytes(), (2 * row - 8) as u64).expect("the array is as long");
        assert_eq!((word(&sparse, &marks, row), word(&sparse, &marks, 2 * row - 8), mapped(&sparse)), (7, 5, 3));
    }

    #[test]
    fn pages_go_once_their_rows_are_free_and_come_back() {
        let page = page().expect("a size");
        let (file, sparse) = array(4 * page, 128, Some(8));
        let marks = marks(4);
        for part in 0..3 {
            claim(&file, part * page + 128 + 8, &marks, part);
        }
        assert_eq!((word(&sparse, &marks, 128 + 8), mapped(&sparse)), (7, 3));
        sparse.words(&marks)[(128 + 8) / 8].store(0, Relaxed);
        sparse.follow(&marks, Instant::now() + SWEEP / 2);
        assert_eq!(mapped(&sparse), 3, "not yet");
        sparse.follow(&marks, Instant::now() + SWEEP);
        assert_eq!((mapped(&sparse), word(&sparse, &marks, page + 128 + 8)), (2, 7), "the others are in use");
        claim(&file, 256 + 8, &marks, 0);
        assert_eq!((word(&sparse, &marks, 256 + 8), mapped(&sparse)), (7, 3));
    }
}
