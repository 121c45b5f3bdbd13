//! Which pages of a program's memory were given up since it was registered.

use core::{
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};

/// Bytes of a page here: no system has smaller ones, and larger ones are several of these.
const PAGE: usize = 4096;

/// The pages of one [`crate::Memory::foreign`] that were given up. Shared by every region, window and registration of this memory, and by the code that
/// observes the program's mappings.
///
/// Pages are given up in the midst of allocators, whose locks are held then: nothing here allocates after construction, or waits.
#[derive(Debug)]
pub struct Discards {
    any: AtomicBool,
    /// Number of the first page: its address divided by the bytes of a page.
    first: usize,
    /// Pages.
    len: usize,
    /// One bit for each.
    pages: Box<[AtomicU64]>,
}

impl Discards {
    pub(crate) fn new(start: usize, len: usize) -> Self {
        let pages = pages(&(start..start.saturating_add(len)));
        let words = pages.len().div_ceil(64);
        let bits = (0..words).map(|_| AtomicU64::new(0)).collect();
        Self { any: AtomicBool::new(false), first: pages.start, len: pages.len(), pages: bits }
    }

    /// The pages that have addresses of `range` are gone for good. A thread that found them unmarked has a pin already.
    pub fn add(&self, range: &Range<usize>) {
        let mut any = false;
        self.each_word(range, |word, mask| {
            word.fetch_or(mask, SeqCst);
            any = true;
            true
        });
        if any {
            self.any.store(true, SeqCst);
        }
    }

    /// Whether none of `len` bytes at `start` is gone.
    #[inline]
    pub(crate) fn has(&self, start: usize, len: usize) -> bool {
        !self.any.load(SeqCst) || self.misses(start, len)
    }

    #[cold]
    fn misses(&self, start: usize, len: usize) -> bool {
        self.each_word(&(start..start.saturating_add(len)), |word, mask| word.load(SeqCst) & mask == 0)
    }

    /// Calls `f` with each word that has pages of `range`, and their bits, as long as it returns true; whether it always did.
    fn each_word(&self, range: &Range<usize>, mut f: impl FnMut(&AtomicU64, u64) -> bool) -> bool {
        let pages = pages(range);
        let end = pages.end.saturating_sub(self.first).min(self.len);
        let mut at = pages.start.saturating_sub(self.first);
        while at < end {
            let bits = (64 - at % 64).min(end - at);
            let mask = (u64::MAX >> (64 - bits)) << (at % 64);
            if !f(&self.pages[at / 64], mask) {
                return false;
            }
            at += bits;
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
    fn every_page_of_a_range_and_no_other_is_gone() {
        const PAGES: usize = 200;
        let start = 1000 * PAGE + 100;
        for from in [0, 1, 62, 63, 64, 127, 128, 199] {
            for to in [from, from + 1, 64, 65, 130, 199, 200, 300].into_iter().filter(|to| *to >= from) {
                let discards = Discards::new(start, PAGES * PAGE - 100);
                discards.add(&((1000 + from) * PAGE..(1000 + to) * PAGE));
                for page in 0..PAGES {
                    let gone = (from..to).contains(&page);
                    assert_eq!(discards.has((1000 + page) * PAGE + 100, 8), !gone, "{page} of {from}..{to}");
                    let both = gone || (from..to).contains(&(page + 1));
                    assert_eq!(discards.has((1001 + page) * PAGE - 1, 2), !both, "{page} of {from}..{to}");
                }
                assert_eq!(discards.has(start, PAGES * PAGE - 100), from == to || from >= PAGES);
                assert!(discards.has(start, 0));
            }
        }
        let discards = Discards::new(start, 10);
        discards.add(&(0..1000 * PAGE));
        discards.add(&(1001 * PAGE..usize::MAX));
        assert!(discards.has(start, 10));
        discards.add(&(0..usize::MAX));
        assert!(!discards.has(start, 10));
    }
}
