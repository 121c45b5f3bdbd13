//! Copies of registered memory that the program has protected after registering it.
//!
//! An RDMA adapter has pinned the pages and accesses them regardless of the program's own rights,
//! for example despite the write barrier of a garbage collector. Here such copies go through the
//! process's memory file, `/proc/self/mem`. The kernel ignores protections and protection keys for
//! it: it reads all mappings and writes private ones. If the system does not allow this
//! (`proc_mem.force_override`, no `/proc`), the copy fails.

use crate::page_state::{PAGE, PageState};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd as _;

/// Number of bytes that a store writes last, so that a program that polls the end of a buffer finds
/// the rest complete.
const LAST: usize = 8;

/// Copies `len` bytes of registered memory at `src` to `dst`. Returns false if some are not mapped.
/// `plain` is tried first; it copies with the program's own rights.
///
/// # Safety
/// `dst` is private, has room for `len` bytes, and does not overlap `src`. `plain` copies as its
/// arguments (to, from, length) say, or fails.
#[cold]
pub(crate) unsafe fn load(
    state: &PageState,
    dst: *mut u8,
    src: *const u8,
    len: usize,
    plain: impl Fn(*mut u8, *const u8, usize) -> bool,
) -> bool {
    copy(state, false, dst, src, len, plain, |memory, to, from, part| {
        // SAFETY: the caller guarantees room for `part` bytes at `to`. For the kernel, `from` is only
        // a file offset.
        let got =
            unsafe { libc::pread(memory.as_raw_fd(), to.cast(), part, from.addr() as libc::off_t) };
        usize::try_from(got) == Ok(part)
    })
}

/// Copies `len` bytes at `src` to registered memory at `dst`. Returns false if some of it is not
/// mapped. `plain` is tried first; it copies with the program's own rights. The last bytes become
/// visible last.
///
/// # Safety
/// `src` is private and has `len` bytes. The program has granted write access to `dst`. `plain`
/// copies as its arguments (to, from, length) say, or fails.
#[cold]
pub(crate) unsafe fn store(
    state: &PageState,
    dst: *mut u8,
    src: *const u8,
    len: usize,
    plain: impl Fn(*mut u8, *const u8, usize) -> bool,
) -> bool {
    copy(state, true, dst, src, len, plain, |memory, to, from, part| {
        let put = |done: usize, part: usize| {
            let (to, from) = (to.wrapping_add(done), from.wrapping_add(done));
            // SAFETY: the caller guarantees `part` bytes at `from`. For the kernel, `to` is a file
            // offset; it lies in `dst`, which may be written.
            let put = unsafe {
                libc::pwrite(memory.as_raw_fd(), from.cast(), part, to.addr() as libc::off_t)
            };
            usize::try_from(put) == Ok(part)
        };
        let first = part.saturating_sub(LAST);
        (first == 0 || put(0, first)) && put(first, part - first)
    })
}

/// Copies page by page until a copy fails. Returns whether all have succeeded. With `write`, `dst`
/// is the registered memory, and otherwise `src`. `by_file` copies pages that the program has
/// protected, with the process's memory file.
fn copy(
    state: &PageState,
    write: bool,
    dst: *mut u8,
    src: *const u8,
    len: usize,
    plain: impl Fn(*mut u8, *const u8, usize) -> bool,
    by_file: impl Fn(&File, *mut u8, *const u8, usize) -> bool,
) -> bool {
    // Opened for each copy, because after a fork a descriptor of the parent would still access the
    // parent's memory.
    let Ok(memory) = OpenOptions::new().read(!write).write(write).open("/proc/self/mem") else {
        return false;
    };
    let mut done = 0;
    while done < len {
        let (to, from) = (dst.wrapping_add(done), src.wrapping_add(done));
        let at = if write { to.addr() } else { from.addr() };
        let part = (PAGE - at % PAGE).min(len - done);
        let moved = plain(to, from, part)
            || state.is_protected(at, part) && by_file(&memory, to, from, part);
        if !moved {
            return false;
        }
        done += part;
    }
    true
}

#[cfg(all(test, target_arch = "x86_64", target_os = "linux", not(miri)))]
mod tests {
    use super::*;
    use crate::recover::tests::faults;
    use crate::{Memory, recover};

    const PAGES: usize = 4;
    const ALL: usize = PAGES * PAGE;

    /// Maps pages, protects those in `protected`, and registers all of them.
    fn pages(
        flags: libc::c_int,
        protection: libc::c_int,
        protected: &[usize],
    ) -> (*mut u8, Memory) {
        faults::install();
        let both = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the mapping is new, only these tests use it, and it is never unmapped.
        unsafe {
            let at =
                libc::mmap(std::ptr::null_mut(), ALL, both, flags | libc::MAP_ANONYMOUS, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            let at: *mut u8 = at.cast();
            for i in 0..ALL {
                at.add(i).write((i / 7) as u8);
            }
            let memory = Memory::foreign(at, ALL);
            for page in protected {
                let start = at.add(page * PAGE);
                memory.page_state().unwrap().protect(&(start.addr()..start.addr() + PAGE));
                assert_eq!(libc::mprotect(start.cast(), PAGE, protection), 0);
            }
            (at, memory)
        }
    }

    fn plain_load(to: *mut u8, from: *const u8, len: usize) -> bool {
        // SAFETY: the tests below copy only inside of their pages and vectors.
        unsafe { recover::load(to, from, len) }
    }

    fn plain_store(to: *mut u8, from: *const u8, len: usize) -> bool {
        // SAFETY: as in `plain_load`.
        unsafe { recover::store(to, from, len) }
    }

    #[test]
    fn private_pages_accessed_despite_protection() {
        for protection in [libc::PROT_NONE, libc::PROT_READ] {
            let (at, memory) = pages(libc::MAP_PRIVATE, protection, &[1, 3]);
            let state = memory.page_state().unwrap();
            for (start, len) in
                [(0, ALL), (PAGE, 1), (PAGE + 5, 3), (PAGE - 3, PAGE + 6), (ALL - 8, 8)]
            {
                let mut got = vec![0u8; len];
                // SAFETY: `got` has `len` bytes, and so have the pages from `start` on.
                assert!(unsafe { load(state, got.as_mut_ptr(), at.add(start), len, plain_load) });
                assert!(got.iter().enumerate().all(|(i, byte)| *byte == ((start + i) / 7) as u8));
                let put: Vec<u8> = got.iter().map(|byte| !byte).collect();
                // SAFETY: `put` has `len` bytes, and so have the pages from `start` on.
                assert!(unsafe { store(state, at.add(start), put.as_ptr(), len, plain_store) });
                let mut all = vec![0u8; ALL];
                // SAFETY: `all` has as many bytes as the pages.
                assert!(unsafe { load(state, all.as_mut_ptr(), at, ALL, plain_load) });
                for (i, byte) in all.iter().enumerate() {
                    let inside = (start..start + len).contains(&i);
                    assert_eq!(*byte, if inside { !((i / 7) as u8) } else { (i / 7) as u8 }, "{i}");
                }
                // SAFETY: `got` has `len` bytes, and so have the pages from `start` on.
                assert!(unsafe { store(state, at.add(start), got.as_ptr(), len, plain_store) });
            }
        }
    }

    /// The kernel writes no shared mapping that the program may not write.
    #[test]
    fn shared_pages_read_only() {
        let (at, memory) = pages(libc::MAP_SHARED, libc::PROT_READ, &[2]);
        let state = memory.page_state().unwrap();
        let mut got = vec![0u8; ALL];
        // SAFETY: a vector of all bytes of the pages.
        unsafe {
            assert!(load(state, got.as_mut_ptr(), at, ALL, plain_load));
            assert!(!store(state, at.add(2 * PAGE), got.as_ptr(), PAGE, plain_store));
            assert_eq!(at.add(2 * PAGE).read(), (2 * PAGE / 7) as u8);
        }
    }

    #[test]
    fn unmapped_pages_not_accessed() {
        let (at, memory) = pages(libc::MAP_PRIVATE, libc::PROT_NONE, &[1]);
        let state = memory.page_state().unwrap();
        let mut bytes = vec![0u8; PAGE];
        // SAFETY: a page of this test's own, and a vector of its length.
        unsafe {
            assert_eq!(libc::munmap(at.add(PAGE).cast(), PAGE), 0);
            assert!(!load(state, bytes.as_mut_ptr(), at.add(PAGE), PAGE, plain_load));
            assert!(!store(state, at.add(PAGE), bytes.as_ptr(), PAGE, plain_store));
        }
    }
}
