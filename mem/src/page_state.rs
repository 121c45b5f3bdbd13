//! Records which pages of registered memory the program has discarded or protected since the
//! registration.

use core::{
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};

/// Size in bytes of the pages that a [`PageState`] tracks: no system has smaller pages, and a
/// larger system page is tracked as several of these.
pub(crate) const PAGE: usize = 4096;

/// Discarded and protected pages of one [`crate::Memory::foreign`].
///
/// Every region, window and registration of this memory shares it with the code that observes
/// changes of the program's mappings. A memory allocator may make such a change while it holds its
/// own locks, so no method allocates or waits.
#[derive(Debug)]
pub struct PageState {
    /// Number of the first page: its address divided by [`PAGE`].
    first: usize,
    /// Number of pages.
    len: usize,
    discarded: PageBits,
    protected: PageBits,
}

/// Bitmap with one bit for each page.
#[derive(Debug)]
struct PageBits {
    /// True if any bit has ever been set, so that checks of untouched memory need not read `words`.
    any: AtomicBool,
    words: Box<[AtomicU64]>,
}

impl PageBits {
    fn new(len: usize) -> Self {
        let words = (0..len.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self { any: AtomicBool::new(false), words }
    }
}

impl PageState {
    pub(crate) fn new(start: usize, len: usize) -> Self {
        let pages = pages(&(start..start.saturating_add(len)));
        let len = pages.len();
        Self {
            first: pages.start,
            len,
            discarded: PageBits::new(len),
            protected: PageBits::new(len),
        }
    }

    /// Marks all pages that overlap the addresses `range` as discarded, for good.
    ///
    /// A thread may still use a page that it has found unmarked. Such a thread holds a pin, and
    /// [`crate::Table::discard`] waits until it is released.
    pub fn discard(&self, range: &Range<usize>) {
        self.mark(&self.discarded, range);
    }

    /// Marks all pages that overlap the addresses `range` as protected: the program is about to
    /// remove access rights from them. Their content stays valid.
    ///
    /// The mark is never removed, because one thread may protect a page while another thread
    /// restores its rights.
    pub fn protect(&self, range: &Range<usize>) {
        self.mark(&self.protected, range);
    }

    /// Returns whether none of the `len` bytes at address `start` is on a discarded page.
    #[inline]
    pub(crate) fn is_present(&self, start: usize, len: usize) -> bool {
        !self.discarded.any.load(SeqCst) || self.is_unmarked(&self.discarded, start, len)
    }

    /// Returns whether any of the `len` bytes at address `start` is on a page that was ever
    /// protected, which may be the reason why an access fails.
    #[inline]
    pub(crate) fn is_protected(&self, start: usize, len: usize) -> bool {
        self.protected.any.load(SeqCst) && !self.is_unmarked(&self.protected, start, len)
    }

    fn mark(&self, bits: &PageBits, range: &Range<usize>) {
        let mut any = false;
        self.all_words(bits, range, |word, mask| {
            word.fetch_or(mask, SeqCst);
            any = true;
            true
        });
        if any {
            bits.any.store(true, SeqCst);
        }
    }

    #[cold]
    fn is_unmarked(&self, bits: &PageBits, start: usize, len: usize) -> bool {
        let range = start..start.saturating_add(len);
        self.all_words(bits, &range, |word, mask| word.load(SeqCst) & mask == 0)
    }

    /// Returns whether `f` returns true for all words of the bitmap that have pages of the
    /// addresses `range`, and stops at the first false.
    ///
    /// The second argument of `f` has the bits of these pages set. Pages outside the memory are
    /// skipped.
    fn all_words(
        &self,
        bits: &PageBits,
        range: &Range<usize>,
        mut f: impl FnMut(&AtomicU64, u64) -> bool,
    ) -> bool {
        let pages = pages(range);
        let end = pages.end.saturating_sub(self.first).min(self.len);
        let mut at = pages.start.saturating_sub(self.first);
        while at < end {
            let count = (64 - at % 64).min(end - at);
            let mask = (u64::MAX >> (64 - count)) << (at % 64);
            if !f(&bits.words[at / 64], mask) {
                return false;
            }
            at += count;
        }
        true
    }
}

/// Returns the numbers of the pages that overlap the addresses `range`.
fn pages(range: &Range<usize>) -> Range<usize> {
    if range.is_empty() { 0..0 } else { range.start / PAGE..range.end.div_ceil(PAGE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_range_gone() {
        const PAGES: usize = 200;
        let start = 1000 * PAGE + 100;
        for from in [0, 1, 62, 63, 64, 127, 128, 199] {
            for to in
                [from, from + 1, 64, 65, 130, 199, 200, 300].into_iter().filter(|to| *to >= from)
            {
                let state = PageState::new(start, PAGES * PAGE - 100);
                state.discard(&((1000 + from) * PAGE..(1000 + to) * PAGE));
                for page in 0..PAGES {
                    let gone = (from..to).contains(&page);
                    assert_eq!(
                        state.is_present((1000 + page) * PAGE + 100, 8),
                        !gone,
                        "{page} of {from}..{to}"
                    );
                    let both = gone || (from..to).contains(&(page + 1));
                    assert_eq!(
                        state.is_present((1001 + page) * PAGE - 1, 2),
                        !both,
                        "{page} of {from}..{to}"
                    );
                }
                assert_eq!(
                    state.is_present(start, PAGES * PAGE - 100),
                    from == to || from >= PAGES
                );
                assert!(state.is_present(start, 0));
            }
        }
        let state = PageState::new(start, 10);
        state.discard(&(0..1000 * PAGE));
        state.discard(&(1001 * PAGE..usize::MAX));
        assert!(state.is_present(start, 10));
        state.discard(&(0..usize::MAX));
        assert!(!state.is_present(start, 10));
    }

    #[test]
    fn only_pages_of_range_protected() {
        let state = PageState::new(1000 * PAGE, 10 * PAGE);
        let protected = |state: &PageState| {
            (0..10)
                .filter(|page| state.is_protected((1000 + page) * PAGE, PAGE))
                .collect::<Vec<_>>()
        };
        assert_eq!(protected(&state), [0usize; 0]);
        state.protect(&(1002 * PAGE..1005 * PAGE));
        assert_eq!(protected(&state), [2, 3, 4]);
        assert!(state.is_protected(1002 * PAGE - 1, 2) && !state.is_protected(1002 * PAGE - 1, 1));
        assert!(state.is_present(1000 * PAGE, 10 * PAGE));
    }
}
