//! The bytes of a memory region, and who guarantees that they stay valid.

use core::{any::Any, fmt, ptr::NonNull};
use std::{io, sync::Arc};

use crate::page_state::PageState;

/// Bytes to register. They are dropped with the last region, window or span that refers to them.
///
/// ```
/// let memory = uiw_mem::Memory::owned(4096)?;
/// assert!(!memory.as_ptr().is_null());
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Memory {
    at: NonNull<u8>,
    len: usize,
    /// True if only the engine accesses buffers in flight, as the caller of an `unsafe` function has
    /// guaranteed.
    exclusive: bool,
    presence: Presence,
    /// State of the pages of `Presence::Foreign`.
    page_state: Option<Arc<PageState>>,
    _keep: MemoryOwner,
}

/// Degree to which the bytes are guaranteed to stay mapped while a region covers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Rust's ownership, or the caller of an `unsafe` function, guarantees it.
    Guaranteed,
    /// A program may unmap them. Pages that were given to [`crate::Table::discard`] stay
    /// inaccessible, because an adapter would have pinned the old pages, not those that are mapped
    /// at the same address later.
    Foreign,
    /// Like `Foreign`, but each access uses the pages that are mapped at that time (on-demand
    /// paging).
    OnDemand,
}

/// Owner of the bytes, kept only to be dropped with them.
enum MemoryOwner {
    Owned(#[expect(dead_code, reason = "kept for its drop")] AnonymousPages),
    Borrowed,
    Buffer(#[expect(dead_code, reason = "kept for its drop")] Box<dyn Any + Send>),
}

// SAFETY: `Memory` consists of an address, a length and a `Send` owner, and accesses no byte itself.
// The copies of this crate access the bytes atomically, unless the caller of `exclusive` or
// `borrowed` has guaranteed that there are no conflicting accesses.
unsafe impl Send for Memory {}
// SAFETY: `&Memory` gives access to the address and the length only; the owner is never accessed.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates `len` zeroed bytes on pages of their own.
    ///
    /// # Errors
    /// The OS error if there is not enough memory.
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

    /// Refers to the `len` bytes at `at`, which belong to the caller.
    ///
    /// The memory is exclusive unless it is registered with remote access rights, or
    /// [`Memory::shared`] is called.
    ///
    /// # Safety
    /// * All bytes stay readable, and writable if LOCAL_WRITE is granted, until the region and all
    ///   its spans and windows have been deregistered.
    /// * While an unfinished work request names some of the bytes, nothing else writes them, and
    ///   nothing else reads bytes that a receive or a Read places. If the memory is shared, such
    ///   accesses are allowed, but they are atomic.
    pub unsafe fn borrowed(at: *mut u8, len: usize) -> Self {
        Self::guaranteed(at, len, MemoryOwner::Borrowed)
    }

    /// Refers to the `len` bytes at `at` of a program that may unmap or protect them at any time.
    ///
    /// An access to bytes that are not accessible fails, without other effects, if the process has a
    /// signal handler that calls [`crate::recover::recover`]. Report unmapped ranges to
    /// [`crate::Table::discard`].
    ///
    /// # Safety
    /// The requirements of [`Memory::borrowed`] apply, except that the bytes need not stay mapped.
    /// If other memory is mapped at the same address without a call of [`crate::Table::discard`],
    /// peers can access it.
    pub unsafe fn foreign(at: *mut u8, len: usize) -> Self {
        // SAFETY: the caller guarantees all but that the bytes stay mapped. `Presence::Foreign` makes
        // every access check that.
        let memory = unsafe { Self::borrowed(at, len) };
        let page_state = Some(Arc::new(PageState::new(at.addr(), len)));
        Self { presence: Presence::Foreign, page_state, ..memory }
    }

    /// Like [`Memory::foreign`], but each access uses the pages that are mapped at that time
    /// (on-demand paging).
    ///
    /// # Safety
    /// The requirements of [`Memory::foreign`] apply.
    pub unsafe fn on_demand(at: *mut u8, len: usize) -> Self {
        // SAFETY: the caller guarantees all but that the bytes stay mapped. `Presence::OnDemand`
        // makes every access check that.
        let memory = unsafe { Self::borrowed(at, len) };
        Self { presence: Presence::OnDemand, ..memory }
    }

    /// Returns the page state of [`Memory::foreign`]: which pages were discarded or protected.
    pub fn page_state(&self) -> Option<&Arc<PageState>> {
        self.page_state.as_ref()
    }

    /// Refers to the `len` bytes at `at`, which `keep` owns and which stay at that address until
    /// `keep` is dropped.
    ///
    /// # Safety
    /// The requirements of [`Memory::borrowed`] apply, as long as `keep` lives.
    pub unsafe fn buffer(keep: Box<dyn Any + Send>, at: *mut u8, len: usize) -> Self {
        Self::guaranteed(at, len, MemoryOwner::Buffer(keep))
    }

    /// Like [`Memory::buffer`], but for a mapping that may become inaccessible, such as that of a
    /// file that is truncated. An access fails then, as with [`Memory::foreign`].
    ///
    /// # Safety
    /// The requirements of [`Memory::buffer`] apply, except that the bytes need not stay
    /// accessible.
    pub unsafe fn mapped(keep: Box<dyn Any + Send>, at: *mut u8, len: usize) -> Self {
        // SAFETY: the caller guarantees all but that the bytes stay accessible. `Presence::OnDemand`
        // makes every access check that.
        let memory = unsafe { Self::buffer(keep, at, len) };
        Self { presence: Presence::OnDemand, ..memory }
    }

    /// Creates exclusive memory of bytes that stay mapped.
    fn guaranteed(at: *mut u8, len: usize, keep: MemoryOwner) -> Self {
        let at = NonNull::new(at).unwrap_or(NonNull::dangling());
        Self {
            at,
            len,
            exclusive: true,
            presence: Presence::Guaranteed,
            page_state: None,
            _keep: keep,
        }
    }

    /// Makes all copies atomic, as if the memory were not exclusive. Use it for bytes that may be
    /// registered twice, once with remote access rights and once without, as C programs do.
    pub fn shared(mut self) -> Self {
        self.exclusive = false;
        self
    }

    /// Allows copies by `memcpy`, unless the memory is registered with remote access rights.
    ///
    /// # Safety
    /// While an unfinished work request names some of the bytes, nothing else writes them, nothing
    /// else reads bytes that a receive or a Read places, and no other unfinished work request places
    /// data into the same bytes.
    pub unsafe fn exclusive(mut self) -> Self {
        self.exclusive = true;
        self
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the first byte.
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
    /// Takes the bytes of the vector, without its spare capacity.
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

/// Returns the free pages of glibc's allocator to the system; does nothing with other allocators.
///
/// After many connections in many threads, glibc keeps some 20 KiB for each. The call visits all
/// arenas, so it is meant for the end of such a burst.
pub fn give_back_free_pages() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` is thread-safe and touches only free memory.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Makes all threads share one arena of glibc's allocator; does nothing with other allocators.
///
/// It is meant for programs with one thread per connection. glibc has up to eight arenas per
/// processor, keeps some hundred KiB in each after a bulk disconnect, and more after the next one.
/// Call it before the threads are started. Each thread keeps its own cache of small allocations.
pub fn share_arenas() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `mallopt` sets a parameter under the allocator's own lock.
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
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the kernel chooses an unused address, so no existing mapping changes.
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
            // SAFETY: `map` has made exactly this mapping, and this is its only owner.
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
