//! Gives back what only loading needed: pages of this program's file (the BPF object, libbpf, the command line), and the
//! allocator's free memory.

use nix::libc::{madvise, MADV_DONTNEED};
use std::ffi::c_void;

extern "C" {
    /// Where the program begins, and where its code ends: names that the linker defines (`ld(1)`, default script).
    static __executable_start: u8;
    static etext: u8;
}

/// To be called once everything is loaded: two megabytes that would stay resident for as long as the agent runs.
pub fn trim() {
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4096) as usize;
    let (start, end) = (&raw const __executable_start as usize, &raw const etext as usize);
    let (start, end) = (start.next_multiple_of(page), end / page * page);
    if start < end {
        // SAFETY: constants and code lie there, mapped from the program's file and never written; what is used again is read
        // from the file again. Data, which is written, begins behind `etext`. A failure leaves the pages where they are.
        unsafe { madvise(start as *mut c_void, end - start, MADV_DONTNEED) };
    }
    give_back();
}

/// Has all threads allocate from one arena, since [`give_back`] trims the end of the main arena only: after a run of the profile the
/// end of the collector's held up to 20 MB. To be called before there are other threads; few of them allocate at the same time.
pub fn use_one_arena() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it sets a number in the allocator, which reads it as a thread first allocates.
    unsafe {
        nix::libc::mallopt(nix::libc::M_ARENA_MAX, 1);
    }
}

/// Gives back what the allocator has free.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes the allocator's locks itself.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}
