//! Gives back what only loading needed: pages of this program's file (the BPF object, libbpf, the command line), and the
//! allocator's free memory.

use nix::libc::{self, c_int, c_void, dl_phdr_info, madvise, size_t, MADV_DONTNEED, PF_W, PT_LOAD};

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

/// Forgets the pages of this program that nobody writes, code and constants: what is used again is read from the file again. The
/// libraries keep theirs, in which probes of others may be.
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
        if start < end {
            // SAFETY: constants and code lie there, mapped from the file and never written. A failure leaves the pages where they
            // are.
            unsafe { madvise(start as *mut c_void, end - start, MADV_DONTNEED) };
        }
    }
    ENOUGH
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
