//! BPF arrays in the agent's memory (`BPF_F_MMAPABLE`, kernel 5.5): reading a counter is a load.

use nix::sys::mman::{mmap, mmap_anonymous, munmap, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

const READ_WRITE: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);
/// Flags for reserving address space only; pages that are only read share the kernel's zero page.
const RESERVED: MapFlags = MapFlags::MAP_PRIVATE.union(MapFlags::MAP_NORESERVE);

/// Memory shared with the kernel, unmapped on drop.
pub struct Mapping {
    start: NonNull<c_void>,
    bytes: usize,
}

impl Mapping {
    /// Maps this many bytes of a BPF map, from an offset that is a multiple of the page size.
    pub fn new(fd: BorrowedFd<'_>, bytes: usize, offset: usize, writable: bool) -> nix::Result<Mapping> {
        let length = NonZeroUsize::new(bytes).ok_or(nix::Error::EINVAL)?;
        let protection = if writable { READ_WRITE } else { ProtFlags::PROT_READ };
        let offset = offset.try_into().map_err(|_| nix::Error::EOVERFLOW)?;
        // SAFETY: the kernel picks the address, so nothing that exists is overlaid.
        let start = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, fd, offset)? };
        Ok(Mapping { start, bytes })
    }

    /// Reserves address space for [`Mapping::fill`], which reads as zeros and takes no memory.
    pub fn reserve(bytes: usize) -> nix::Result<Mapping> {
        let length = NonZeroUsize::new(bytes).ok_or(nix::Error::EINVAL)?;
        // SAFETY: the kernel picks the address, so nothing that exists is overlaid.
        let start = unsafe { mmap_anonymous(None, length, READ_WRITE, RESERVED)? };
        Ok(Mapping { start, bytes })
    }

    /// Maps this byte range of a BPF array, whole pages, at the same offset of a reserved range.
    pub fn fill(&self, fd: BorrowedFd<'_>, pages: Range<usize>) -> nix::Result<()> {
        let (place, length) = self.place(&pages)?;
        let offset = pages.start.try_into().map_err(|_| nix::Error::EOVERFLOW)?;
        // SAFETY: the range is inside this mapping, whose memory is only ever looked at through atomics: they find other values
        // now, as they may at any time.
        unsafe { mmap(Some(place), length, READ_WRITE, MapFlags::MAP_SHARED | MapFlags::MAP_FIXED, fd, offset)? };
        Ok(())
    }

    /// Unmaps this byte range, whole pages: it reads as zeros again and takes no memory.
    pub fn empty(&self, pages: Range<usize>) -> nix::Result<()> {
        let (place, length) = self.place(&pages)?;
        // SAFETY: as in `fill`.
        unsafe { mmap_anonymous(Some(place), length, READ_WRITE, RESERVED | MapFlags::MAP_FIXED)? };
        Ok(())
    }

    /// Returns the address and the length of a range; an error if it is not inside the mapping.
    fn place(&self, bytes: &Range<usize>) -> nix::Result<(NonZeroUsize, NonZeroUsize)> {
        let length = NonZeroUsize::new(bytes.len()).filter(|_| bytes.end <= self.bytes).ok_or(nix::Error::EINVAL)?;
        let place = self.start.addr().checked_add(bytes.start).ok_or(nix::Error::EOVERFLOW)?;
        Ok((place, length))
    }

    /// Maps a file that does not change, for reading.
    pub fn of_file(file: &std::fs::File) -> std::io::Result<Mapping> {
        let bytes = file.metadata()?.len() as usize;
        let length = NonZeroUsize::new(bytes).ok_or(nix::Error::EINVAL)?;
        // SAFETY: the kernel picks the address, so nothing that exists is overlaid.
        let start = unsafe { mmap(None, length, ProtFlags::PROT_READ, MapFlags::MAP_PRIVATE, file, 0)? };
        Ok(Mapping { start, bytes })
    }

    /// Returns the memory as words. They are atomics since the kernel writes them at any time.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page aligned and stays until `self` is dropped; a shared mapping of a BPF array does not
        // shrink. On memory mapped read-only callers only load.
        unsafe { std::slice::from_raw_parts(self.start.cast().as_ptr(), self.bytes / 8) }
    }

    /// Returns bytes that the kernel has finished writing.
    pub(super) fn bytes(&self, offset: usize, length: usize) -> &[u8] {
        let end = offset.saturating_add(length).min(self.bytes);
        let offset = offset.min(end);
        // SAFETY: the range is inside the mapping. The caller (the ring) asks for committed records only, which the kernel
        // does not write again before they are given back.
        unsafe { std::slice::from_raw_parts(self.start.cast::<u8>().as_ptr().add(offset), end - offset) }
    }
}

// SAFETY: it is memory, which belongs to no thread; what is written while it is mapped is read through atomics, or is what the kernel
// has finished writing.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the one that was mapped, and no reference into it outlives `self`.
        let _ = unsafe { munmap(self.start, self.bytes) };
    }
}
