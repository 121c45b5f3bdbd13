//! What a program did to the pages of its memory since it was registered: which it gave up, and which it protected.

use core::{
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};

/// Bytes of a page here: no system has smaller ones, and larger ones are several of these.
pub(crate) const PAGE: usize = 4096;

/// The pages of one [`crate::Memory::foreign`] that were given up, and those that were protected. Shared by every region, window and registration of
/// this memory, and by the code that observes the program's mappings.
///
/// Allocators change mappings with their locks held: nothing here allocates after construction, or waits.
#[derive(Debug)]
pub struct PageState {
    /// Number of the first page: its address divided by the bytes of a page.
    first: usize,
    /// Pages.
    len: usize,
    given_up: PageBits,
    protected: PageBits,
}

/// One bit for each page.
#[derive(Debug)]
struct PageBits {
    /// True once a bit was set.
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
        Self { first: pages.start, len, given_up: PageBits::new(len), protected: PageBits::new(len) }
    }

    /// The pages that have addresses of `range` are gone for good. A thread that found them unmarked has a pin already.
    pub fn discard(&self, range: &Range<usize>) {
        self.set(&self.given_up, range);
    }

    /// The program is about to take rights away from the pages that have addresses of `range`. Their content stays.
    ///
    /// There is no way back: another thread may protect them at the time at which one gives the rights back.
    pub fn protect(&self, range: &Range<usize>) {
        self.set(&self.protected, range);
    }

    /// Returns whether none of `len` bytes at `start` is gone.
    #[inline]
    pub(crate) fn has(&self, start: usize, len: usize) -> bool {
        !self.given_up.any.load(SeqCst) || self.misses(&self.given_up, start, len)
    }

    /// Returns whether a page of `len` bytes at `start` was protected: an access that fails may do so by that.
    #[inline]
    pub(crate) fn is_protected(&self, start: usize, len: usize) -> bool {
        self.protected.any.load(SeqCst) && !self.misses(&self.protected, start, len)
    }

    fn set(&self, bits: &PageBits, range: &Range<usize>) {
        let mut any = false;
        self.each_word(bits, range, |word, mask| {
            word.fetch_or(mask, SeqCst);
            any = true;
            true
        });
        if any {
            bits.any.store(true, SeqCst);
        }
    }

    #[cold]
    fn misses(&self, bits: &PageBits, start: usize, len: usize) -> bool {
        let range = start..start.saturating_add(len);
        self.each_word(bits, &range, |word, mask| word.load(SeqCst) & mask == 0)
    }

    /// Calls `f` with each word that has pages of `range`, and their bits, as long as it returns true; whether it always did.
    fn each_word(
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

/// The numbers of the pages that have addresses of `range`.
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
            for to in [from, from + 1, 64, 65, 130, 199, 200, 300].into_iter().filter(|to| *to >= from) {
                let state = PageState::new(start, PAGES * PAGE - 100);
                state.discard(&((1000 + from) * PAGE..(1000 + to) * PAGE));
                for page in 0..PAGES {
                    let gone = (from..to).contains(&page);
                    assert_eq!(state.has((1000 + page) * PAGE + 100, 8), !gone, "{page} of {from}..{to}");
                    let both = gone || (from..to).contains(&(page + 1));
                    assert_eq!(state.has((1001 + page) * PAGE - 1, 2), !both, "{page} of {from}..{to}");
                }
                assert_eq!(state.has(start, PAGES * PAGE - 100), from == to || from >= PAGES);
                assert!(state.has(start, 0));
            }
        }
        let state = PageState::new(start, 10);
        state.discard(&(0..1000 * PAGE));
        state.discard(&(1001 * PAGE..usize::MAX));
        assert!(state.has(start, 10));
        state.discard(&(0..usize::MAX));
        assert!(!state.has(start, 10));
    }

    #[test]
    fn only_pages_of_range_protected() {
        let state = PageState::new(1000 * PAGE, 10 * PAGE);
        let protected = |state: &PageState| {
            (0..10).filter(|page| state.is_protected((1000 + page) * PAGE, PAGE)).collect::<Vec<_>>()
        };
        assert_eq!(protected(&state), [0usize; 0]);
        state.protect(&(1002 * PAGE..1005 * PAGE));
        assert_eq!(protected(&state), [2, 3, 4]);
        assert!(state.is_protected(1002 * PAGE - 1, 2) && !state.is_protected(1002 * PAGE - 1, 1));
        assert!(state.has(1000 * PAGE, 10 * PAGE));
    }
}
