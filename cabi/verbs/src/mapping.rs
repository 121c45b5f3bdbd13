//! Memory of the program: which of it is registered, whether it is present, and how the program
//! changes its mapping.
//!
//! Nothing is pinned, so the mapping may change under a region. `libibverbs.so.1` exports the
//! functions of the C library that change mappings. They first remove the registered bytes from
//! their regions ([`discard`]), so that memory which is mapped there later is not written, and then
//! call the function of the C library. System calls that a program makes without the C library are
//! not detected.
//!
//! # Registration
//!
//! `check` returns the kernel's error numbers (`ib_umem_get`, `ib_access_writable`). Pages are made
//! present with `MADV_POPULATE_READ`, or with `MADV_POPULATE_WRITE` if the kernel would pin them
//! for writing (LOCAL_WRITE, REMOTE_WRITE, REMOTE_ATOMIC, MW_BIND). Neither changes the content of
//! the pages. Before Linux 5.14, each page is read, and written with a compare-and-exchange of
//! equal values.
//!
//! | memory | `errno` |
//! |---|---|
//! | length 0; address plus length beyond 2^64 | EINVAL |
//! | undefined rights; REMOTE_WRITE or REMOTE_ATOMIC without LOCAL_WRITE | EINVAL |
//! | an address that no program can have; a page that is unmapped, PROT_NONE, or of a device (VM_IO, VM_PFNMAP) | EFAULT |
//! | a read-only page, with one of the rights above | EFAULT |
//! | a read-only page, without them | registered |
//! | a page beyond the end of its file; a huge page if none is free | EFAULT |
//! | out of memory for the pages | ENOMEM |
//! | file-backed, shared, huge pages, `IBV_ACCESS_HUGETLB` | registered, for every file system |
//! | on-demand paging (`IBV_ACCESS_ON_DEMAND`), also of all memory (NULL, SIZE_MAX) | registered without checking the pages |
//!
//! `RLIMIT_MEMLOCK` does not apply, and the offset in the page may differ between IOVA and address.
//!
//! # Changes of a mapping
//!
//! Before pages are unmapped, replaced, moved or discarded, they are removed from all their regions
//! and windows (`uiw_mem::PageState`, one bit per page; `uiw_mem::Table::discard`), and the call
//! waits until no thread uses these regions. The rest of each region stays valid, but a region that
//! several threads use for 100 ms without a pause is invalidated as a whole. Re-registration with
//! other rights or another domain does not bring discarded pages back. Allocators make these calls
//! while they hold their locks, on any thread. Nothing in these calls may therefore allocate, park,
//! or wait without a bound, and the lock of the registered ranges is a leaf that a fork does not
//! take. A pin or a lock that is held for longer than 1.1 s is assumed to be held by a thread that
//! waits for the allocator. An access to discarded bytes is refused like one with an invalid STag,
//! or ends with a local protection error. On-demand regions keep their addresses.
//!
//! # Changes of a protection
//!
//! `mprotect` and `pkey_mprotect` remove nothing from a region, because an RDMA adapter, which has
//! pinned the pages, would continue to use them regardless of the program's own rights. The pages
//! are marked as protected permanently, because one thread may protect a page while another one
//! removes the protection. If a copy faults on a marked page, the kernel makes the copy through
//! `/proc/self/mem`, which disregards protections and keys (`mem/src/protected.rs`). A system call
//! that fails with EFAULT is repeated with copies of the marked pages.
//!
//! | registered page | read: Send, Write from it, a peer's Read | written: receive, Read into it, a peer's Write | atomic |
//! |---|---|---|---|
//! | read-only, private mapping | in place | by the kernel | refused |
//! | PROT_NONE or a protection key, private mapping | by the kernel | by the kernel | refused |
//! | read-only, shared mapping | in place | refused | refused |
//! | PROT_NONE or a protection key, shared mapping | by the kernel | refused | refused |
//! | protected by a direct system call, or without `/proc/self/mem` | refused, unless readable | refused, unless writable | refused, unless writable |
//!
//! Refused accesses work again when the program restores the rights. The kernel's copies are not
//! atomic, so an atomic operation is refused and not emulated with two copies. The last eight bytes
//! of a Write become visible last in this case, too.
//!
//! Some changes are not detected: direct system calls of a program (`syscall(2)`), those of the C
//! library's own functions (`free` of a buffer with its own mapping, `shmdt`), and files that
//! another process truncates. In these cases a copy that faults ends with an error. If another
//! mapping takes the address, a peer that still has the key can write to it.
//!
//! # Faults
//!
//! Copies of foreign memory are made by assembly routines without a stack frame, between two
//! symbols (`mem/src/recover.rs`). The handler of SIGSEGV and SIGBUS is installed with the first
//! region. It makes such a routine return "gone" to its caller, and passes every other fault to the
//! program's handler, which the exported `sigaction` and `signal` store separately. The two signals
//! are never blocked, because the kernel ends a process if a fault raises a blocked signal: the
//! engine's threads leave them unblocked, and the exported `pthread_sigmask` and `sigprocmask`
//! remove them from the sets. A handler that is installed by a direct system call replaces this
//! one. Copies recover on x86-64.

mod ranges;

use once_cell::race::OnceBool;
use parking_lot::{Mutex, MutexGuard};
use ranges::{Key, NodeReserve, Range as Registration, Ranges};
use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::engine;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::fork::{ForkSafe, ForkState};
use uiw_mem::{PageState, recover};

/// The registered ranges of a process.
///
/// Allocators change mappings while they hold their locks, so this lock is a leaf: its holder
/// neither allocates nor frees memory and waits for no other lock, and no thread parks while
/// waiting for it, because parking may allocate.
struct RangeTable {
    /// Thread that has the lock, or 0. This lets a signal handler that unmaps memory on the same
    /// thread detect that the lock is held.
    owner: AtomicUsize,
    /// Locked only by the owner.
    ranges: Mutex<Ranges>,
}

/// A locked [`RangeTable`]. The fields are dropped in this order.
struct LockedTable {
    ranges: MutexGuard<'static, Ranges>,
    _owner: LockOwner,
}

/// Guard that releases the ownership on drop.
struct LockOwner(&'static AtomicUsize);

impl Drop for LockOwner {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

impl RangeTable {
    /// Locks the table. Returns `None` if this thread already has the lock.
    fn lock(&'static self) -> Option<LockedTable> {
        // No thread has the number 0.
        // SAFETY: the function takes no arguments, never fails, and returns the number of this
        // thread.
        let this = unsafe { libc::pthread_self() } as usize;
        loop {
            match self.owner.compare_exchange(0, this, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    return Some(LockedTable {
                        ranges: self.ranges.lock(),
                        _owner: LockOwner(&self.owner),
                    });
                }
                Err(owner) if owner == this => return None,
                Err(_) => std::thread::yield_now(),
            }
        }
    }
}

/// Table of this process; NULL before the first registration. It is never freed. The child of a
/// fork does not touch the table of its parent, because a thread that the child does not have may
/// hold its lock.
static TABLE: AtomicPtr<RangeTable> = AtomicPtr::new(ptr::null_mut());
/// Number of ranges in [`TABLE`]. While it is 0, a change of a mapping costs only one load.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Handlers of a fork, with a lock other than the table's. A fork that waits for an allocator's
/// locks holds only this lock.
static FORKS: ForkSafe<ForkHandlers> = ForkSafe::new();

struct ForkHandlers;

impl ForkState for ForkHandlers {
    const NEW: Self = Self;

    /// The regions of the parent are inert in the child.
    fn in_child(&mut self) {
        COUNT.store(0, Ordering::SeqCst);
        TABLE.store(ptr::null_mut(), Ordering::SeqCst);
    }
}

/// Returns the table, if anything was registered.
fn table() -> Option<&'static RangeTable> {
    // SAFETY: the pointer is NULL or one that `table_or_new` has stored, which points to an aligned
    // table that it has leaked. So the table lives forever, and only shared references to it exist.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }
}

fn table_or_new() -> &'static RangeTable {
    if let Some(table) = table() {
        return table;
    }
    drop(FORKS.read());
    // If two threads arrive here at the same time, one of the two tables stays unused.
    let new: &RangeTable = Box::leak(Box::new(RangeTable {
        owner: AtomicUsize::new(0),
        ranges: Mutex::new(Ranges::new()),
    }));
    let shared = ptr::from_ref(new).cast_mut();
    match TABLE.compare_exchange(ptr::null_mut(), shared, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => new,
        Err(_) => table().unwrap_or(new),
    }
}

/// A range that is registered until this value is dropped.
pub struct RegisteredRange(Option<Key>);

impl RegisteredRange {
    /// Registers `len` bytes at `start`, whose memory has the state `page_state`.
    pub(crate) fn new(start: usize, len: usize, page_state: &Arc<PageState>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let key = Key { start, id: NEXT.fetch_add(1, Ordering::Relaxed) };
        let end = start.saturating_add(len);
        let mut range = Registration { key, end, page_state: Arc::clone(page_state) };
        let table = table_or_new();
        let mut room = NodeReserve::NONE;
        loop {
            let Some(mut locked) = table.lock() else { return Self(None) };
            locked.ranges.grow(&mut room);
            match locked.ranges.insert(range) {
                Ok(()) => break,
                Err(refused) => range = refused,
            }
            let needed = locked.ranges.next_capacity();
            drop(locked);
            room = NodeReserve::new(needed);
        }
        COUNT.fetch_add(1, Ordering::SeqCst);
        Self(Some(key))
    }

    /// Returns a value for on-demand memory. Every access looks up its mapping, so changes of the
    /// mapping are irrelevant.
    pub(crate) const fn on_demand() -> Self {
        Self(None)
    }
}

impl Drop for RegisteredRange {
    fn drop(&mut self) {
        let (Some(key), Some(table)) = (self.0, table()) else { return };
        let Some(mut locked) = table.lock() else { return };
        let removed = locked.ranges.remove(key);
        drop(locked);
        if removed.is_some() {
            COUNT.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Removes `len` bytes at `start` from their regions, because the program is about to unmap or
/// discard them. When this function returns, no thread of the engine accesses the bytes, and memory
/// that is mapped there later does not belong to a region.
///
/// Allocators call this function while they hold their locks, so it allocates nothing, and its
/// waits are bounded.
pub fn discard(start: usize, len: usize) {
    let Some(range) = each_registration(start, len, PageState::discard) else { return };
    let errno = Errno::last();
    if let Some(device) = engine::get_if_open() {
        device.discard_memory(range);
    }
    errno.set();
}

/// Marks `len` bytes at `start` as protected, because the program is about to remove access rights;
/// the content stays. From now on the kernel makes the copies that the program's rights do not
/// permit, and system calls that the rights do not permit get copies of the bytes.
///
/// Unlike [`discard`], this function does not wait, because a copy that faults finds the mark.
pub fn protect(start: usize, len: usize) {
    each_registration(start, len, PageState::protect);
}

/// Calls `f` for the state of each registered memory that overlaps the `len` bytes at `start`, with
/// the range of whole pages. Returns the range if there was any such memory.
fn each_registration(
    start: usize,
    len: usize,
    f: fn(&PageState, &Range<usize>),
) -> Option<Range<usize>> {
    if COUNT.load(Ordering::SeqCst) == 0 || len == 0 {
        return None;
    }
    let page = page_size();
    if !start.is_multiple_of(page) {
        // The program's call will fail with EINVAL, so the mapping does not change.
        return None;
    }
    let range = start..start.checked_add(len)?.checked_next_multiple_of(page)?;
    let locked = table().and_then(RangeTable::lock)?;
    let mut any = false;
    locked.ranges.each_overlap(&range, &mut |registration| {
        f(&registration.page_state, &range);
        any = true;
    });
    drop(locked);
    any.then_some(range)
}

/// Returns the size of a page in bytes.
pub fn page_size() -> usize {
    static SIZE: AtomicUsize = AtomicUsize::new(0);
    match SIZE.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: the call takes an integer and uses no memory of this process.
            let size =
                usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
            SIZE.store(size, Ordering::Relaxed);
            size
        }
        size => size,
    }
}

/// Upper bound of the addresses of programs on all supported processors.
const ADDRESSES: usize = 1 << 56;

/// Checks that `len` bytes at `start` can be read, and written if `write` is set, in the same way
/// as the kernel does when it pins memory: the pages are made present, and their content does not
/// change.
///
/// # Errors
/// EFAULT if the bytes are not accessible; ENOMEM if the system has no memory for them.
pub(crate) fn check(start: usize, len: usize, write: bool) -> Result<()> {
    let page = page_size();
    let refused = |why: &str| {
        Errno(libc::EFAULT)
            .because(format_args!("{len} bytes at {start:#x} cannot be registered: {why}"))
    };
    if start >= ADDRESSES || len > ADDRESSES - start {
        return Err(refused("no program can have these addresses"));
    }
    let (first, end) = (start & !(page - 1), (start + len).next_multiple_of(page));
    if !has_populate(page) {
        let found = (first..end).step_by(page).all(|at| recover::is_accessible(at, write));
        return if found { Ok(()) } else { Err(refused("a page is unmapped or protected")) };
    }
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    if populate(first, end - first, advice) {
        return Ok(());
    }
    match Errno::last().0 {
        // There is either no mapping or no memory.
        libc::ENOMEM if is_mapped(first..end) => {
            Err(Errno::NOMEM.because("out of memory for the pages"))
        }
        libc::ENOMEM => Err(refused("a page is unmapped")),
        libc::EINVAL => Err(refused("a page is protected, or of a device")),
        libc::EHWPOISON => Err(refused("a page is damaged")),
        _ => Err(refused("a page has no content, because its file is shorter")),
    }
}

/// Makes pages present with one of the two advices for that purpose.
fn populate(start: usize, len: usize, advice: i32) -> bool {
    debug_assert!(matches!(advice, libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE));
    // The C library's function may be the one that this library exports, so the system call is made
    // directly.
    // SAFETY: the two advices, which the assertion above and all callers ensure, make pages present
    // and change no content, so they conflict with no access. Addresses that are not mapped give an
    // error.
    unsafe { libc::syscall(libc::SYS_madvise, start, len, advice) == 0 }
}

/// Returns whether the kernel can make pages present (since Linux 5.14).
fn has_populate(page: usize) -> bool {
    static KNOWN: OnceBool = OnceBool::new();
    KNOWN.get_or_init(|| {
        let on_stack = 0u8;
        let at = (&raw const on_stack).addr() & !(page - 1);
        populate(at, page, libc::MADV_POPULATE_READ)
    })
}

/// Returns whether all of the range is mapped. This uses msync(2), because seccomp filters permit
/// it (systemd's `@system-service`), unlike mincore(2).
fn is_mapped(range: Range<usize>) -> bool {
    // The direct system call is not a cancellation point.
    // SAFETY: with MS_ASYNC, the call changes nothing on Linux (msync(2)). It only checks whether
    // all of the range is mapped, and gives an error if not.
    unsafe { libc::syscall(libc::SYS_msync, range.start, range.len(), libc::MS_ASYNC) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmapped_pages_found_in_range() {
        let page = page_size();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: mmap(2) chooses addresses where nothing is mapped, so no other code knows the
        // three pages, to whose starts the offsets lead. Each page is unmapped once, and nothing
        // accesses their memory.
        unsafe {
            let start = libc::mmap(ptr::null_mut(), 3 * page, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            let first = start.addr();
            assert!(is_mapped(first..first + 3 * page));
            assert_eq!(libc::munmap(start.byte_add(page), page), 0);
            assert!(!is_mapped(first..first + 3 * page));
            assert!(
                is_mapped(first..first + page) && is_mapped(first + 2 * page..first + 3 * page)
            );
            assert_eq!(libc::munmap(start, page), 0);
            assert_eq!(libc::munmap(start.byte_add(2 * page), page), 0);
        }
    }

    #[test]
    fn mapped_memory_can_be_registered() {
        let bytes = vec![0u8; 100_000];
        assert_eq!(check(bytes.as_ptr().addr(), bytes.len(), true), Ok(()));
        assert_eq!(check(8, 8, false), Err(Errno(libc::EFAULT)));
        assert_eq!(check(usize::MAX - 100, 50, false), Err(Errno(libc::EFAULT)));
        // Code is readable.
        let code = check as *const () as usize;
        assert_eq!(
            (check(code, 8, false), check(code, 8, true)),
            (Ok(()), Err(Errno(libc::EFAULT)))
        );
    }
}
