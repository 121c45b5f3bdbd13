//! The program's memory: which of it is registered, whether it is there, and what the program does to it.
//!
//! Nothing is pinned, so a mapping may change under a region. `libibverbs.so.1` exports the C library's functions that change
//! mappings: they take registered bytes out of their regions first ([`discard`]), so that nothing that is mapped there later is
//! written, and then call the C library's. System calls that a program makes without it are not seen.

use crate::boundary::Result;
use crate::engine;
use crate::errno::Errno;
use crate::fork::{ForkSafe, Forked};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use uiw_mem::recover;

/// Address ranges of regions, by their start; several regions may have the same.
struct Ranges {
    by_start: BTreeMap<(usize, u64), usize>,
    /// No range is longer.
    longest: usize,
}

impl Forked for Ranges {
    const NEW: Self = Self { by_start: BTreeMap::new(), longest: 0 };

    /// The regions of the parent are inert here.
    fn in_child(&mut self) {
        COUNT.store(0, Ordering::Relaxed);
        *self = Self::NEW;
    }
}

impl Ranges {
    fn overlaps(&self, range: &Range<usize>) -> bool {
        let behind = (range.end, 0);
        let near = self
            .by_start
            .range(..behind)
            .rev()
            .take_while(|((start, _), _)| start.saturating_add(self.longest) > range.start);
        near.into_iter().any(|(_, end)| *end > range.start)
    }
}

static RANGES: ForkSafe<Ranges> = ForkSafe::new();
/// Ranges in [`RANGES`]: as long as there is none, a change of a mapping costs one load.
static COUNT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// This thread changes [`RANGES`], or looks something up: an allocator that unmaps memory meanwhile is not looked at.
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as busy with [`RANGES`].
struct Busy;

impl Busy {
    /// `None` if it is already.
    fn new() -> Option<Self> {
        let free = BUSY.try_with(|busy| !busy.replace(true)).unwrap_or(false);
        free.then_some(Self)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = BUSY.try_with(|busy| busy.set(false));
    }
}

/// A registered range, until it is dropped.
pub(crate) struct Registered(Option<(usize, u64)>);

impl Registered {
    /// `len` bytes at `start` are about to be registered.
    pub(crate) fn new(start: usize, len: usize) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let _busy = Busy::new();
        let key = (start, NEXT.fetch_add(1, Ordering::Relaxed));
        let mut ranges = RANGES.write();
        ranges.by_start.insert(key, start.saturating_add(len));
        ranges.longest = ranges.longest.max(len);
        COUNT.fetch_add(1, Ordering::SeqCst);
        Self(Some(key))
    }

    /// Memory that is found anew by every access: what its mapping becomes does not matter.
    pub(crate) const fn on_demand() -> Self {
        Self(None)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let Some(key) = self.0 else { return };
        let _busy = Busy::new();
        let mut ranges = RANGES.write();
        if ranges.by_start.remove(&key).is_some() {
            COUNT.fetch_sub(1, Ordering::SeqCst);
        }
        if ranges.by_start.is_empty() {
            ranges.longest = 0;
        }
    }
}

/// The program is about to unmap `len` bytes at `start`, or to give their content up. When this returns no thread of the engine touches
/// them, and what becomes of their addresses is no part of a region.
pub fn discard(start: usize, len: usize) {
    if COUNT.load(Ordering::SeqCst) == 0 || len == 0 {
        return;
    }
    let page = page_size();
    if !start.is_multiple_of(page) {
        // The call fails.
        return;
    }
    let Some(end) = start.checked_add(len).and_then(|end| end.checked_next_multiple_of(page)) else { return };
    let range = start..end;
    let errno = Errno::last();
    let device = {
        let Some(_busy) = Busy::new() else { return };
        let overlaps = RANGES.read().overlaps(&range);
        overlaps.then(engine::opened).flatten()
    };
    if let Some(device) = device {
        device.discard_memory(range.clone());
        tracing::debug!(start = range.start, end = range.end, "registered memory was unmapped or discarded");
    }
    errno.set();
}

/// Bytes of a page.
pub fn page_size() -> usize {
    static SIZE: AtomicUsize = AtomicUsize::new(0);
    match SIZE.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: reads a number.
            let size = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
            SIZE.store(size, Ordering::Relaxed);
            size
        }
        size => size,
    }
}

/// The addresses of programs end here, on every processor that is supported.
const ADDRESSES: usize = 1 << 56;

/// Checks that `len` bytes at `start` can be read, and written if `write`, as the kernel does when it pins them: the pages are
/// made present, and what they contain does not change.
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
    // SAFETY: makes pages present, and changes nothing in them; addresses that are not mapped are an error.
    if unsafe { madvise(first, end - first, advice) } == 0 {
        return Ok(());
    }
    match Errno::last().0 {
        // No mapping, or no memory.
        libc::ENOMEM if is_mapped(first..end, page) => Err(Errno::NOMEM.because("no memory for the pages")),
        libc::ENOMEM => Err(refused("a page is unmapped")),
        libc::EINVAL => Err(refused("a page is protected, or of a device")),
        libc::EHWPOISON => Err(refused("a page is damaged")),
        _ => Err(refused("a page has no content: the file behind it ends before")),
    }
}

/// # Safety
/// The advice changes no content.
unsafe fn madvise(start: usize, len: usize, advice: i32) -> i32 {
    // Not by the C library's function, which may be the one that this library exports.
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_madvise, start, len, advice) as i32 }
}

/// Whether the kernel can make pages present (Linux 5.14).
fn has_populate(page: usize) -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let on_stack = 0u8;
        let at = (&raw const on_stack).addr() & !(page - 1);
        // SAFETY: a page of this stack, which is present.
        unsafe { madvise(at, page, libc::MADV_POPULATE_READ) == 0 }
    })
}

fn is_mapped(range: Range<usize>, page: usize) -> bool {
    const PAGES: usize = 1 << 16;
    let mut present = vec![0u8; PAGES.min(range.len() / page)];
    range.clone().step_by(PAGES * page).all(|at| {
        let len = (range.end - at).min(PAGES * page);
        // SAFETY: there is a byte for every page.
        unsafe { libc::mincore(at as *mut c_void, len, present.as_mut_ptr()) == 0 }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_overlap_whatever_their_lengths() {
        let mut ranges = Ranges::NEW;
        for (id, (start, len)) in [(1000, 10), (1000, 5000), (3000, 1), (9000, 100)].into_iter().enumerate() {
            ranges.by_start.insert((start, id as u64), start + len);
            ranges.longest = ranges.longest.max(len);
        }
        for (range, expected) in [
            (0..1000, false),
            (0..1001, true),
            (5999..6000, true),
            (6000..9000, false),
            (8999..9001, true),
            (9100..usize::MAX, false),
            (0..usize::MAX, true),
        ] {
            assert_eq!(ranges.overlaps(&range), expected, "{range:?}");
        }
    }

    #[test]
    fn what_is_there_can_be_registered() {
        let bytes = vec![0u8; 100_000];
        assert_eq!(check(bytes.as_ptr().addr(), bytes.len(), true), Ok(()));
        assert_eq!(check(8, 8, false), Err(Errno(libc::EFAULT)));
        assert_eq!(check(usize::MAX - 100, 50, false), Err(Errno(libc::EFAULT)));
        // Code may be read.
        let code = check as *const () as usize;
        assert_eq!((check(code, 8, false), check(code, 8, true)), (Ok(()), Err(Errno(libc::EFAULT))));
    }
}
