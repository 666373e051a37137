//! Gives back what only loading needed: pages of this program's file (the BPF object, libbpf, the command line), and the
//! allocator's free memory.

use nix::libc::{self, c_int, c_void, dl_phdr_info, madvise, size_t, MADV_DONTNEED, PF_W, PT_LOAD};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// To be called once everything is loaded, once more when what follows is over, and now and then: two megabytes that would stay resident
/// for as long as the agent runs, and what a seldom request or the end of a profile used. It takes a hundred faults of pages in memory, less
/// than a millisecond, to come by the code in use again.
pub fn trim() {
    if let Ok(mut page) = super::page() {
        // SAFETY: the function is called during this call only, with the pointer given here.
        unsafe { libc::dl_iterate_phdr(Some(forget_pages), (&raw mut page).cast()) };
    }
    give_back();
}

/// Forgets the pages of this program that nobody writes, code and constants: what is used again is read from the file again. A page
/// that is not the file's any more stays: a breakpoint of somebody's uprobe on the agent is in it. The libraries keep theirs.
///
/// # Safety
///
/// For `dl_iterate_phdr` only; `page` points to the size of a page.
unsafe extern "C" fn forget_pages(program: *mut dl_phdr_info, _size: size_t, page: *mut c_void) -> c_int {
    /// Anything but 0: the libraries come after the program (dl_iterate_phdr(3)).
    const ENOUGH: c_int = 1;
    // SAFETY: the C library describes a file that is loaded, and its table of segments, as long as the call lasts; `page` is the
    // number that `trim` passes.
    let (program, page) = unsafe { (&*program, *page.cast::<usize>()) };
    if program.dlpi_phdr.is_null() {
        return ENOUGH;
    }
    // SAFETY: as above.
    let segments = unsafe { std::slice::from_raw_parts(program.dlpi_phdr, program.dlpi_phnum.into()) };
    for segment in segments.iter().filter(|segment| segment.p_type == PT_LOAD && segment.p_flags & PF_W == 0) {
        let start = program.dlpi_addr as usize + segment.p_vaddr as usize;
        let (start, end) = (start.next_multiple_of(page), (start + segment.p_memsz as usize) / page * page);
        for (from, to) in of_file(start, end, page) {
            // SAFETY: constants and code lie there, mapped from the file and never written. A failure leaves the pages where they
            // are.
            unsafe { madvise(from as *mut c_void, to - from, MADV_DONTNEED) };
        }
    }
    ENOUGH
}

/// The parts of a range of this process's memory that are the file's: with the others a write has made a copy. None if the kernel does
/// not tell, as an agent that has changed its account (`-U`).
fn of_file(start: usize, end: usize, page: usize) -> Vec<(usize, usize)> {
    /// Of an entry of /proc/PID/pagemap: the page is there, and it is a file's.
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

/// Has all threads allocate from one arena, since [`give_back`] trims the end of the main arena only: after a run of the profile the
/// end of the collector's held up to 20 MB. To be called before there are other threads; few of them allocate at the same time.
pub fn use_one_arena() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it sets a number in the allocator, which reads it as a thread first allocates.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Gives back what the allocator has free.
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

    /// Constants of some pages, of which at least one is in no other's page.
    static CONSTANTS: [u8; 1 << 18] = [7; 1 << 18];

    /// A tracer writes as the kernel does for a uprobe: into a copy of the page.
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
