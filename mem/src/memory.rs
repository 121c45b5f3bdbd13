//! What a region is made of: bytes of ours, of a buffer kept alive, or of a caller that guarantees
//! them.

use core::{any::Any, fmt, ptr::NonNull};
use std::{io, sync::Arc};

use crate::page_state::PageState;

/// Bytes to register. Dropped with the last region, window or span that stands on them.
///
/// ```
/// let memory = uiw_mem::Memory::owned(4096)?;
/// assert!(!memory.as_ptr().is_null());
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Memory {
    at: NonNull<u8>,
    len: usize,
    /// In-flight buffers belong to the engine: a caller of an `unsafe` function promised it.
    exclusive: bool,
    presence: Presence,
    /// State of the pages of `Presence::Foreign`.
    page_state: Option<Arc<PageState>>,
    _keep: MemoryOwner,
}

/// Guarantee that the bytes stay mapped while a region covers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Rust's ownership, or the caller of an `unsafe` function, guarantees it.
    Guaranteed,
    /// A program may unmap them. What is given to [`crate::Table::discard`] is gone for good, as
    /// pages that an adapter has pinned are not those that are mapped there later.
    Foreign,
    /// Like `Foreign`; every access finds what is mapped there at that time: on-demand paging.
    OnDemand,
}

/// Never read: kept for its drop.
enum MemoryOwner {
    Owned(#[expect(dead_code, reason = "kept for its drop")] AnonymousPages),
    Borrowed,
    Buffer(#[expect(dead_code, reason = "kept for its drop")] Box<dyn Any + Send>),
}

// SAFETY: `Memory` is an address, a length and a `Send` owner. It touches no byte itself; the code
// that does (the copies of this crate) uses atomic accesses, or stands under the promise of
// `exclusive`.
unsafe impl Send for Memory {}
// SAFETY: as above; `&Memory` gives away the address and nothing else (`Keep` is never looked at).
unsafe impl Sync for Memory {}

impl Memory {
    /// `len` zeroed bytes on pages of their own.
    ///
    /// # Errors
    /// The system's, if it has no memory.
    pub fn owned(len: usize) -> io::Result<Self> {
        let pages = AnonymousPages::map(len)?;
        Ok(Self {
            at: pages.at,
            len,
            exclusive: false,
            presence: Presence::Guaranteed,
            page_state: None,
            _keep: MemoryOwner::Owned(pages),
        })
    }

    /// The `len` bytes at `at`, which belong to the caller. Exclusive unless it is registered with
    /// rights that let a peer reach it, or [`Memory::shared`] is said.
    ///
    /// # Safety
    /// * All bytes stay readable, and writable if LOCAL_WRITE is granted, until the region has been
    ///   deregistered (and every span and window of it with it).
    /// * While they are in flight (an unfinished work request names them) nothing else writes them,
    ///   nor reads what a receive or a Read places, unless the region is shared; then all accesses
    ///   are atomic.
    pub unsafe fn borrowed(at: *mut u8, len: usize) -> Self {
        Self::guaranteed(at, len, MemoryOwner::Borrowed)
    }

    /// The `len` bytes at `at` of a program that may unmap them, or take rights away, at any time:
    /// an access to what is not there fails, and nothing else happens, if the process has a handler
    /// that calls [`crate::recover::recover`]. What is unmapped is to be given to
    /// [`crate::Table::discard`].
    ///
    /// # Safety
    /// The rules are those of [`Memory::borrowed`], but the bytes need not stay; where they are
    /// mapped to something else unnoticed, that is overwritten.
    pub unsafe fn foreign(at: *mut u8, len: usize) -> Self {
        // SAFETY: the caller's promise; what it leaves out, `presence` stands for.
        let memory = unsafe { Self::borrowed(at, len) };
        let page_state = Some(Arc::new(PageState::new(at.addr(), len)));
        Self { presence: Presence::Foreign, page_state, ..memory }
    }

    /// Like [`Memory::foreign`]; every access finds what is there at that time: on-demand paging.
    ///
    /// # Safety
    /// As for [`Memory::foreign`].
    pub unsafe fn on_demand(at: *mut u8, len: usize) -> Self {
        // SAFETY: as for `foreign`.
        let memory = unsafe { Self::borrowed(at, len) };
        Self { presence: Presence::OnDemand, ..memory }
    }

    /// Returns the state of the pages of [`Memory::foreign`]: which ones were given up or
    /// protected.
    pub fn page_state(&self) -> Option<&Arc<PageState>> {
        self.page_state.as_ref()
    }

    /// The `len` bytes at `at`, which `keep` owns and which live at that address until `keep` is
    /// dropped.
    ///
    /// # Safety
    /// As for [`Memory::borrowed`], as long as `keep` lives.
    pub unsafe fn buffer(keep: Box<dyn Any + Send>, at: *mut u8, len: usize) -> Self {
        Self::guaranteed(at, len, MemoryOwner::Buffer(keep))
    }

    /// Like [`Memory::buffer`] of bytes that a device may take away while they are mapped: an
    /// access fails then, as with [`Memory::foreign`].
    ///
    /// # Safety
    /// As for [`Memory::buffer`], but the bytes need not stay behind the address.
    pub unsafe fn mapped(keep: Box<dyn Any + Send>, at: *mut u8, len: usize) -> Self {
        // SAFETY: the caller's promise; what it leaves out, `presence` stands for.
        let memory = unsafe { Self::buffer(keep, at, len) };
        Self { presence: Presence::OnDemand, ..memory }
    }

    /// Describes bytes that the caller keeps mapped.
    fn guaranteed(at: *mut u8, len: usize, keep: MemoryOwner) -> Self {
        let at = NonNull::new(at).unwrap_or(NonNull::dangling());
        Self { at, len, exclusive: true, presence: Presence::Guaranteed, page_state: None, _keep: keep }
    }

    /// Takes the promise back (or never relies on it): all copies are atomic. For callers that may
    /// register the same bytes twice, once for peers and once not, as C programs do.
    pub fn shared(mut self) -> Self {
        self.exclusive = false;
        self
    }

    /// Copies of it may be plain `memcpy`, unless it is registered with rights that let a peer
    /// reach it.
    ///
    /// # Safety
    /// While an unfinished work request names bytes of it, nothing else writes these, nor reads
    /// what a receive or a Read places, and no two work requests in flight place into the same
    /// bytes.
    pub unsafe fn exclusive(mut self) -> Self {
        self.exclusive = true;
        self
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    pub(crate) fn presence(&self) -> Presence {
        self.presence
    }

    pub(crate) fn is_exclusive(&self) -> bool {
        self.exclusive
    }
}

impl From<Vec<u8>> for Memory {
    /// The vector's bytes (not its spare capacity).
    fn from(mut bytes: Vec<u8>) -> Self {
        let (at, len) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: a vector's bytes stay where they are when the vector is moved, and it has no
        // other user now.
        unsafe { Self::buffer(Box::new(bytes), at, len) }.shared()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self._keep {
            MemoryOwner::Owned(_) => "owned",
            MemoryOwner::Borrowed => "borrowed",
            MemoryOwner::Buffer(_) => "buffer",
        };
        write!(f, "{} bytes at {:p} ({kind})", self.len, self.at)
    }
}

/// Gives the allocator's free pages back to the system. glibc keeps what a burst of connections in
/// many threads has freed: some 20 KiB of each. Walks all of its arenas, so it is for the end of
/// such a burst. Elsewhere it does nothing.
pub fn give_back_free_pages() {
    #[cfg(target_env = "gnu")]
    // SAFETY: may be called by any thread at any time, and touches free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Makes all threads share one of the allocator's arenas, for programs with one thread per
/// connection: of each further arena (up to eight a processor) glibc keeps some hundred KiB after a
/// bulk disconnect, and more after the next one. To be called before the threads are there; what
/// they allocate often, each still has a store of its own for. Elsewhere it does nothing.
pub fn share_arenas() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a number in the allocator, under its own lock.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// An anonymous mapping: page-aligned, and zeroed by the kernel when first touched.
struct AnonymousPages {
    at: NonNull<u8>,
    len: usize,
}

impl AnonymousPages {
    fn map(len: usize) -> io::Result<Self> {
        if len == 0 {
            return Ok(Self { at: NonNull::dangling(), len });
        }
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice changes nothing that
        // exists.
        let at = unsafe { libc::mmap(core::ptr::null_mut(), len, prot, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { at: NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?, len })
    }
}

impl Drop for AnonymousPages {
    fn drop(&mut self) {
        if self.len != 0 {
            // SAFETY: `map` made exactly this mapping, and this is its only owner.
            unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn owned_is_page_aligned_and_zeroed() {
        let memory = Memory::owned(10_000).unwrap();
        assert_eq!(memory.as_ptr().addr() % 4096, 0);
        assert_eq!(memory.len(), 10_000);
        // SAFETY: this memory has no other user.
        let bytes = unsafe { core::slice::from_raw_parts(memory.as_ptr(), memory.len()) };
        assert!(bytes.iter().all(|&o| o == 0));
        assert!(Memory::owned(0).unwrap().is_empty());
    }

    #[test]
    #[cfg_attr(miri, ignore = "its mmap ends the program where there is no room")]
    fn more_than_there_is() {
        assert!(Memory::owned(usize::MAX / 2).is_err());
    }

    #[test]
    fn buffer_lives_with_memory() {
        let owner = Arc::new(vec![7u8; 16]);
        let weak = Arc::downgrade(&owner);
        let at = owner.as_ptr().cast_mut();
        // SAFETY: the `Arc` keeps the vector, and nothing is written.
        let memory = unsafe { Memory::buffer(Box::new(owner), at, 16) };
        assert!(weak.upgrade().is_some());
        drop(memory);
        assert!(weak.upgrade().is_none());
    }
}
