//! Returns memory that only loading needed: pages of the executable (the BPF object, libbpf, the command line) and of
//! libraries, and the allocator's free memory.

use nix::libc::{self, c_int, c_void, dl_phdr_info, madvise, size_t, MADV_DONTNEED, PF_W, PT_LOAD};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Returns unused memory to the kernel: after loading, after the start, and periodically. Two megabytes would stay
/// resident as long as the agent runs, and more after rare requests or a profile. Code still in use costs about a
/// hundred minor faults, less than a millisecond.
pub fn trim() {
    // SAFETY: the function is called during this call only. The C library unloads no file meanwhile.
    unsafe { libc::dl_iterate_phdr(Some(forget_pages), std::ptr::null_mut()) };
    give_back();
}

/// Pages of code and constants of the executable and its libraries, as ranges of addresses.
pub struct FilePages(Vec<(usize, usize)>);

impl FilePages {
    /// Finds them, in a process that unloads no library before it forgets them. Reads /proc/self/pagemap.
    pub fn find() -> FilePages {
        let mut pages = FilePages(Vec::new());
        // SAFETY: the function is called during this call only, with the pointer given here.
        unsafe { libc::dl_iterate_phdr(Some(add_pages), (&raw mut pages).cast()) };
        pages
    }

    /// Returns those of one file, except pages that are no longer the file's, since they hold breakpoints of uprobes on
    /// the agent.
    fn of(program: &dl_phdr_info) -> FilePages {
        let (Ok(page), false) = (super::page(), program.dlpi_phdr.is_null()) else { return FilePages(Vec::new()) };
        // SAFETY: the C library describes a file that is loaded, and its table of segments, as long as the call lasts.
        let segments = unsafe { std::slice::from_raw_parts(program.dlpi_phdr, program.dlpi_phnum.into()) };
        let constant = segments.iter().filter(|segment| segment.p_type == PT_LOAD && segment.p_flags & PF_W == 0);
        let pages = constant.flat_map(|segment| {
            let start = program.dlpi_addr as usize + segment.p_vaddr as usize;
            of_file(start.next_multiple_of(page), (start + segment.p_memsz as usize) / page * page, page)
        });
        FilePages(pages.collect())
    }

    /// Drops those that are resident; used ones are read from their file again. Calls madvise(2) only.
    pub fn forget(&self) {
        for &(from, to) in &self.0 {
            // SAFETY: constants and code lie there, mapped from the file and never written. A failure leaves the pages where they
            // are.
            unsafe { madvise(from as *mut c_void, to - from, MADV_DONTNEED) };
        }
    }
}

/// Drops the pages of one file.
///
/// # Safety
///
/// For `dl_iterate_phdr` only.
unsafe extern "C" fn forget_pages(program: *mut dl_phdr_info, _size: size_t, _data: *mut c_void) -> c_int {
    // SAFETY: the C library describes a file that is loaded.
    FilePages::of(unsafe { &*program }).forget();
    0
}

/// Adds the pages of one file.
///
/// # Safety
///
/// For `dl_iterate_phdr` only; `pages` points to a [`FilePages`].
unsafe extern "C" fn add_pages(program: *mut dl_phdr_info, _size: size_t, pages: *mut c_void) -> c_int {
    // SAFETY: the C library describes a file that is loaded, and passes what `find` gave it.
    unsafe { (*pages.cast::<FilePages>()).0.extend(FilePages::of(&*program).0) };
    0
}

/// Returns the parts of a memory range whose pages belong to the file; other pages are copies made by a write. None if
/// the kernel does not tell, as for an agent that has changed its user (`-U`).
fn of_file(start: usize, end: usize, page: usize) -> Vec<(usize, usize)> {
    /// Bits of an entry of /proc/PID/pagemap: the page is present, it belongs to a file, it is swapped.
    const PRESENT: u64 = 1 << 63;
    const OF_FILE: u64 = 1 << 61;
    const SWAPPED: u64 = 1 << 62;
    let mut entries = vec![0; end.saturating_sub(start) / page * 8];
    let read = File::open("/proc/self/pagemap")
        .and_then(|pagemap| pagemap.read_exact_at(&mut entries, (start / page * 8) as u64));
    if read.is_err() {
        return Vec::new();
    }
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for (number, entry) in entries.as_chunks::<8>().0.iter().map(|entry| u64::from_ne_bytes(*entry)).enumerate() {
        let (from, to) = (start + number * page, start + (number + 1) * page);
        match parts.last_mut() {
            _ if entry & SWAPPED != 0 || entry & PRESENT != 0 && entry & OF_FILE == 0 => {}
            Some((_, last)) if *last == from => *last = to,
            _ => parts.push((from, to)),
        }
    }
    parts
}

/// Makes all threads allocate from one arena, since [`give_back`] trims only the end of the main arena: after a
/// profile, the collector's held up to 20 MB. To be called before other threads start; few of them allocate at the same
/// time.
pub fn use_one_arena() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it sets a number in the allocator, which reads it as a thread first allocates.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Returns the allocator's free memory to the kernel.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes the allocator's locks itself.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;

    /// Constants of several pages, at least one of which holds nothing else.
    static CONSTANTS: [u8; 1 << 18] = [7; 1 << 18];

    /// A breakpoint is written by a tracer like that of a uprobe by the kernel: into a copy of the page.
    #[test]
    fn a_breakpoint_in_the_program_stays() {
        let place = &raw const CONSTANTS[1 << 17];
        // SAFETY: it is a byte of the constants.
        let byte = || unsafe { place.read_volatile() };
        assert_eq!(byte(), 7);
        let memory = OpenOptions::new().write(true).open("/proc/self/mem").unwrap();
        memory.write_all_at(&[0xcc], place as u64).unwrap();
        trim();
        assert_eq!(byte(), 0xcc);
    }
}
