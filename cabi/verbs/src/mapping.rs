//! The program's memory: which of it is registered, whether it is there, and what the program does
//! to it.
//!
//! Nothing is pinned, so a mapping may change under a region. `libibverbs.so.1` exports the C
//! library's functions that change mappings: they take registered bytes out of their regions first
//! ([`discard`]), so that nothing that is mapped there later is written, and then call the C
//! library's. System calls that a program makes without it are not seen.
//!
//! # Registration
//!
//! `check` follows the kernel's error numbers (`ib_umem_get`, `ib_access_writable`). Pages are made
//! present by `MADV_POPULATE_READ`, or `MADV_POPULATE_WRITE` where the kernel would pin them for
//! writing (LOCAL_WRITE, REMOTE_WRITE, REMOTE_ATOMIC, MW_BIND); neither changes their content.
//! Before Linux 5.14 each page is read, and written by a compare-and-exchange of equal values.
//!
//! | memory | `errno` |
//! |---|---|
//! | length 0; address plus length beyond 2^64 | EINVAL |
//! | rights without a meaning; REMOTE_WRITE or REMOTE_ATOMIC without LOCAL_WRITE | EINVAL |
//! | no address of a program; a page that is unmapped, PROT_NONE, or of a device (VM_IO, VM_PFNMAP) | EFAULT |
//! | a read-only page, with one of the rights above | EFAULT |
//! | a read-only page, without them | registered |
//! | a page beyond the end of its file; a huge page of which there is none | EFAULT |
//! | no memory for the pages | ENOMEM |
//! | file-backed, shared, huge pages, `IBV_ACCESS_HUGETLB` | registered, whatever the file system |
//! | on-demand paging (`IBV_ACCESS_ON_DEMAND`), also of all memory (NULL, SIZE_MAX) | registered without a look at the pages |
//!
//! `RLIMIT_MEMLOCK` does not count, and an IOVA may have another offset in its page than the
//! address.
//!
//! # Changes of a mapping
//!
//! Before pages are unmapped, replaced, moved or discarded they are taken out of every region and
//! window that has them (`uiw_mem::PageState`, one bit per page; `uiw_mem::Table::discard`), and
//! the call waits until no thread uses these regions. The rest of a region stays valid; a region
//! that several threads use for 100 ms without a pause is ended as a whole. Re-registration with
//! other rights or another domain keeps the discarded pages. Allocators make these calls with their
//! locks held, on any thread, so nothing in them allocates, parks, or waits without a bound, and
//! the lock of the registered ranges is a leaf that a fork does not take: a pin or a lock that is
//! held for longer than 1.1 s is held by a thread that waits for the allocator. An access to
//! discarded bytes is refused like one with an invalid STag, or ends with a local protection error.
//! On-demand regions keep their addresses.
//!
//! # Changes of a protection
//!
//! `mprotect` and `pkey_mprotect` take nothing out of a region: an adapter, which has the pages
//! pinned, continues with them whatever the program's own rights are. The pages are marked as
//! protected for good, as one thread may protect a page while another one gives its rights back. A
//! copy that faults on a marked page is made by the kernel through `/proc/self/mem`, which
//! disregards protections and keys (`mem/src/protected.rs`); a system call that fails with EFAULT
//! is repeated with copies of the marked pages.
//!
//! | registered page | read: Send, Write from it, a peer's Read | written: receive, Read into it, a peer's Write | atomic |
//! |---|---|---|---|
//! | read-only, private mapping | in place | by the kernel | refused |
//! | PROT_NONE or a protection key, private mapping | by the kernel | by the kernel | refused |
//! | read-only, shared mapping | in place | refused | refused |
//! | PROT_NONE or a protection key, shared mapping | by the kernel | refused | refused |
//! | protected by a direct system call, or without `/proc/self/mem` | refused, unless readable | refused, unless writable | refused, unless writable |
//!
//! Refused accesses work again when the rights are back. The kernel's copies are not atomic, so an
//! atomic operation is refused rather than made by two of them. The last eight bytes of a Write
//! become visible last there, too.
//!
//! Not seen are direct system calls of a program (`syscall(2)`), those of the C library's own
//! functions (`free` of a buffer that had a mapping of its own, `shmdt`), and files that another
//! process truncates. There the recovery of copies applies, and if another mapping takes the
//! address, a peer that still has the key can write it.
//!
//! # Faults
//!
//! Copies of foreign memory are assembly without a stack frame between two symbols
//! (`mem/src/recover.rs`). The handler of SIGSEGV and SIGBUS, installed with the first region, lets
//! such a routine return "gone" to its caller, and leaves every other fault to the program's
//! handler: the exported `sigaction` and `signal` keep the program's handler in a place of their
//! own. The two signals are never blocked, because the kernel ends a process at a fault whose
//! signal is blocked: the engine's threads leave them unblocked, and the exported `pthread_sigmask`
//! and `sigprocmask` take them out of the sets. A handler that is installed by a direct system call
//! replaces this one. Copies recover on x86-64.

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
/// Allocators change mappings with their locks held, so this lock is a leaf: its holder allocates
/// nothing and frees nothing, waits for no other lock, and no thread parks at it, as parking may
/// allocate.
struct RangeTable {
    /// The thread that has the lock, or 0. A signal handler that unmaps memory on this thread finds
    /// it held.
    owner: AtomicUsize,
    /// Locked by the owner alone.
    ranges: Mutex<Ranges>,
}

/// A locked [`RangeTable`]. The fields are dropped in this order.
struct LockedTable {
    ranges: MutexGuard<'static, Ranges>,
    _owner: LockOwner,
}

/// Gives the lock back.
struct LockOwner(&'static AtomicUsize);

impl Drop for LockOwner {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

impl RangeTable {
    /// `None` if this thread has the lock.
    fn lock(&'static self) -> Option<LockedTable> {
        // No thread is 0.
        // SAFETY: has no arguments, and reads a register.
        let this = unsafe { libc::pthread_self() } as usize;
        loop {
            match self.owner.compare_exchange(0, this, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    return Some(LockedTable { ranges: self.ranges.lock(), _owner: LockOwner(&self.owner) });
                }
                Err(owner) if owner == this => return None,
                Err(_) => std::thread::yield_now(),
            }
        }
    }
}

/// Table of this process; NULL before the first registration. Never freed: a child of a fork leaves
/// its parent's alone, whose lock may be held by a thread that the child does not have.
static TABLE: AtomicPtr<RangeTable> = AtomicPtr::new(ptr::null_mut());
/// Ranges in [`TABLE`]: as long as there is none, a change of a mapping costs one load.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Fork handler with a lock other than the table's: a fork that waits for an allocator's locks
/// holds this one alone.
static FORKS: ForkSafe<ForkHandlers> = ForkSafe::new();

struct ForkHandlers;

impl ForkState for ForkHandlers {
    const NEW: Self = Self;

    /// The regions of the parent are inert here.
    fn in_child(&mut self) {
        COUNT.store(0, Ordering::SeqCst);
        TABLE.store(ptr::null_mut(), Ordering::SeqCst);
    }
}

/// The table, if anything was registered.
fn table() -> Option<&'static RangeTable> {
    // SAFETY: NULL, or a table that `table_or_new` has leaked.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }
}

fn table_or_new() -> &'static RangeTable {
    if let Some(table) = table() {
        return table;
    }
    drop(FORKS.read());
    // Of two threads that come here at once the table of one stays unused.
    let new: &RangeTable =
        Box::leak(Box::new(RangeTable { owner: AtomicUsize::new(0), ranges: Mutex::new(Ranges::new()) }));
    let shared = ptr::from_ref(new).cast_mut();
    match TABLE.compare_exchange(ptr::null_mut(), shared, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => new,
        Err(_) => table().unwrap_or(new),
    }
}

/// A registered range, until it is dropped.
pub struct RegisteredRange(Option<Key>);

impl RegisteredRange {
    /// `len` bytes at `start` are about to be registered; `page_state` is that of their memory.
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

    /// Memory that is found anew by every access: what its mapping becomes does not matter.
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

/// The program is about to unmap `len` bytes at `start`, or to give their content up. When this
/// returns no thread of the engine touches them, and what becomes of their addresses is no part of
/// a region.
///
/// Allocators call this with their locks held: nothing is allocated, and what it waits for is
/// bounded.
pub fn discard(start: usize, len: usize) {
    let Some(range) = each_registration(start, len, PageState::discard) else { return };
    let errno = Errno::last();
    if let Some(device) = engine::get_if_open() {
        device.discard_memory(range);
    }
    errno.set();
}

/// The program is about to take rights away from `len` bytes at `start`, whose content stays:
/// copies that its own rights do not allow are made by the kernel from now on, and system calls
/// that they do not allow are given copies.
///
/// As [`discard`], and it waits for nothing: a copy that faults finds the note.
pub fn protect(start: usize, len: usize) {
    each_registration(start, len, PageState::protect);
}

/// Calls `f` for the state of each registered memory that has some of `len` bytes at `start`, with
/// the range of whole pages. Returns the range if there was one.
fn each_registration(start: usize, len: usize, f: fn(&PageState, &Range<usize>)) -> Option<Range<usize>> {
    if COUNT.load(Ordering::SeqCst) == 0 || len == 0 {
        return None;
    }
    let page = page_size();
    if !start.is_multiple_of(page) {
        // The call fails.
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

/// Bytes of a page.
pub fn page_size() -> usize {
    static SIZE: AtomicUsize = AtomicUsize::new(0);
    match SIZE.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: takes an integer alone.
            let size = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
            SIZE.store(size, Ordering::Relaxed);
            size
        }
        size => size,
    }
}

/// The addresses of programs end here, on every processor that is supported.
const ADDRESSES: usize = 1 << 56;

/// Checks that `len` bytes at `start` can be read, and written if `write`, as the kernel does when
/// it pins them: the pages are made present, and what they contain does not change.
///
/// # Errors
/// EFAULT where they cannot; ENOMEM where the system has no memory for them.
pub(crate) fn check(start: usize, len: usize, write: bool) -> Result<()> {
    let page = page_size();
    let refused = |why: &str| {
        Errno(libc::EFAULT).because(format_args!("{len} bytes at {start:#x} cannot be registered: {why}"))
    };
    if start >= ADDRESSES || len > ADDRESSES - start {
        return Err(refused("they are no addresses of a program"));
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
        // No mapping, or no memory.
        libc::ENOMEM if is_mapped(first..end) => Err(Errno::NOMEM.because("no memory for the pages")),
        libc::ENOMEM => Err(refused("a page is unmapped")),
        libc::EINVAL => Err(refused("a page is protected, or of a device")),
        libc::EHWPOISON => Err(refused("a page is damaged")),
        _ => Err(refused("a page has no content: the file behind it ends before")),
    }
}

/// Makes pages present by one of the two advices for that.
fn populate(start: usize, len: usize, advice: i32) -> bool {
    debug_assert!(matches!(advice, libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE));
    // Not by the C library's function, which may be the one that this library exports.
    // SAFETY: the advice changes no content; addresses that are not mapped are an error.
    unsafe { libc::syscall(libc::SYS_madvise, start, len, advice) == 0 }
}

/// Returns whether the kernel can make pages present (Linux 5.14).
fn has_populate(page: usize) -> bool {
    static KNOWN: OnceBool = OnceBool::new();
    KNOWN.get_or_init(|| {
        let on_stack = 0u8;
        let at = (&raw const on_stack).addr() & !(page - 1);
        populate(at, page, libc::MADV_POPULATE_READ)
    })
}

/// Checks the mapping by msync(2), as seccomp filters permit it (systemd's `@system-service`),
/// other than mincore(2).
fn is_mapped(range: Range<usize>) -> bool {
    // By its number it is no cancellation point.
    // SAFETY: on Linux the call changes nothing, and only looks whether all of the range is mapped.
    unsafe { libc::syscall(libc::SYS_msync, range.start, range.len(), libc::MS_ASYNC) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmapped_pages_found_in_range() {
        let page = page_size();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, of which the page in the middle is taken out; nothing else is in
        // it.
        unsafe {
            let start = libc::mmap(ptr::null_mut(), 3 * page, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            let first = start.addr();
            assert!(is_mapped(first..first + 3 * page));
            assert_eq!(libc::munmap(start.byte_add(page), page), 0);
            assert!(!is_mapped(first..first + 3 * page));
            assert!(is_mapped(first..first + page) && is_mapped(first + 2 * page..first + 3 * page));
            assert_eq!(libc::munmap(start, 3 * page), 0);
        }
    }

    #[test]
    fn mapped_memory_can_be_registered() {
        let bytes = vec![0u8; 100_000];
        assert_eq!(check(bytes.as_ptr().addr(), bytes.len(), true), Ok(()));
        assert_eq!(check(8, 8, false), Err(Errno(libc::EFAULT)));
        assert_eq!(check(usize::MAX - 100, 50, false), Err(Errno(libc::EFAULT)));
        // Code may be read.
        let code = check as *const () as usize;
        assert_eq!((check(code, 8, false), check(code, 8, true)), (Ok(()), Err(Errno(libc::EFAULT))));
    }
}
