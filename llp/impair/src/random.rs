//! Reproducible random numbers.

/// Maximum number of bytes that a call transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Split {
    /// Does not split.
    #[default]
    Whole,
    /// This number of bytes (at least one).
    Fixed(usize),
    /// A random number of bytes for each call, from 1 to this value.
    Random(usize),
}

impl Split {
    /// Returns the maximum number of bytes for the next call.
    pub fn next(self, random: &mut Random) -> usize {
        match self {
            Self::Whole => usize::MAX,
            Self::Fixed(max) => max.max(1),
            Self::Random(max) => 1 + random.below(max.max(1)),
        }
    }
}

/// SplitMix64 generator (Steele, Lea, Flood 2014), which is small and returns the same numbers on
/// all platforms.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator. Each seed has a different sequence.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number of the sequence.
    #[expect(clippy::should_implement_trait, reason = "a sequence without end")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// Returns a number in 0..bound, with a bias of bound / 2^64.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}
