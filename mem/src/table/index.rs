//! Allocator of random indexes that are not reused soon.

use std::collections::VecDeque;

use crate::RegisterError;

/// Number of other indexes that must be released before an index is reused, so that an STag that a
/// peer still remembers does not soon refer to other memory. (Among 2^24 indexes, a given one is
/// drawn again by chance once in 16 million times.)
const RESTING: usize = 1024;

/// Number of random bytes that are fetched with one system call.
const POOL: usize = 256;

pub(super) struct Indexes {
    /// Number of indexes in use.
    given: u32,
    max: u32,
    /// Indexes that were released recently, oldest first.
    resting: VecDeque<u32>,
    /// Random bytes, of which the first `used` were drawn and then erased.
    pool: [u8; POOL],
    used: usize,
}

impl Indexes {
    pub(super) fn new(max: u32) -> Self {
        Self { given: 0, max, resting: VecDeque::new(), pool: [0; POOL], used: POOL }
    }

    pub(super) fn given(&self) -> u32 {
        self.given
    }

    /// Returns a random index that is neither `in_use` nor was released recently. Index 0 is never
    /// returned, because many programs interpret a key of zero as "none". RFC 5040 8.1.1 item 8:
    /// "An RNIC MUST choose the value of STags in a way difficult to predict. It is RECOMMENDED to
    /// sparsely populate them over the full available range."
    pub(super) fn take(&mut self, in_use: impl Fn(u32) -> bool) -> Result<u32, RegisterError> {
        if self.given >= self.max {
            return Err(RegisterError::TooManyEntries { max: self.max });
        }
        loop {
            let index = self.random()?;
            if index != 0 && !in_use(index) && !self.resting.contains(&index) {
                self.given += 1;
                return Ok(index);
            }
        }
    }

    pub(super) fn give_back(&mut self, index: u32) {
        self.given -= 1;
        if self.resting.len() == RESTING {
            self.resting.pop_front();
        }
        self.resting.push_back(index);
    }

    fn random(&mut self) -> Result<u32, RegisterError> {
        if self.used + 3 > POOL {
            getrandom::fill(&mut self.pool).map_err(RegisterError::NoEntropy)?;
            self.used = 0;
        }
        let bytes = &mut self.pool[self.used..self.used + 3];
        let index = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]);
        bytes.fill(0);
        self.used += 3;
        Ok(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::Cell, collections::HashSet};

    // [test:RFC5040-8.1.1-09] [test:RFC5040-8.1.1-10]
    #[test]
    #[cfg_attr(miri, ignore = "a minute of statistics")]
    fn spread_and_unpredictable() {
        let mut indexes = Indexes::new(u32::MAX);
        let taken: Vec<u32> = (0..4096).map(|_| indexes.take(|_| false).unwrap()).collect();
        // Every bit is set in about half of them (12 standard deviations of slack), and all
        // sixteenths are populated.
        for bit in 0..24 {
            let ones = taken.iter().filter(|&&i| i >> bit & 1 == 1).count();
            assert!((1664..=2432).contains(&ones), "bit {bit}: {ones} of 4096");
        }
        assert_eq!(taken.iter().map(|i| i >> 20).collect::<HashSet<_>>().len(), 16);
        // No constant step, which a counter would have.
        let steps: HashSet<u32> = taken.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
        assert!(steps.len() > 4000);
        let mut other = Indexes::new(u32::MAX);
        assert_ne!(
            taken[..16],
            (0..16).map(|_| other.take(|_| false).unwrap()).collect::<Vec<_>>()
        );
    }

    #[test]
    fn resting_and_used_indices_skipped() {
        let mut indexes = Indexes::new(8);
        indexes.used = 0;
        indexes.pool[..9].copy_from_slice(&[7, 0, 0, 8, 0, 0, 9, 0, 0]);
        indexes.given = 1;
        indexes.give_back(7);
        let asked = Cell::new(0);
        let got = indexes.take(|index| {
            asked.set(asked.get() + 1);
            index == 8
        });
        assert_eq!((got, asked.get()), (Ok(9), 3));
        assert_eq!(indexes.pool[..9], [0; 9], "what was drawn is forgotten");
    }

    #[test]
    fn rest_is_bounded() {
        let mut indexes = Indexes::new(8);
        for index in 0..2000 {
            indexes.given = 1;
            indexes.give_back(index);
        }
        assert_eq!(indexes.resting.len(), RESTING);
        assert!(!indexes.resting.contains(&(2000 - RESTING as u32 - 1)));
        assert!(indexes.resting.contains(&(2000 - RESTING as u32)));
    }

    #[test]
    fn bounded() {
        let mut indexes = Indexes::new(2);
        indexes.take(|_| false).unwrap();
        let index = indexes.take(|_| false).unwrap();
        assert_eq!(indexes.take(|_| false), Err(RegisterError::TooManyEntries { max: 2 }));
        indexes.give_back(index);
        assert!(indexes.take(|_| false).is_ok());
    }
}
