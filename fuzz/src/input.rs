//! Bytes of an input, which are consumed from the front as choices. After the end, all are zero.

/// Remaining bytes of an input.
#[derive(Clone, Debug)]
pub struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    /// Creates an input with all bytes.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Returns whether no choice is left.
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let n = N.min(self.bytes.len());
        let (now, later) = self.bytes.split_at(n);
        out[..n].copy_from_slice(now);
        self.bytes = later;
        out
    }

    /// Takes one byte.
    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// Takes a bit, which consumes a whole byte.
    pub fn bool(&mut self) -> bool {
        self.u8() & 1 != 0
    }

    /// Takes two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    /// Takes four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    /// Takes eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.array())
    }

    /// Takes a number below `bound`, from one byte or two. Returns 0 if `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let raw = if bound <= 256 { usize::from(self.u8()) } else { usize::from(self.u16()) };
        raw.checked_rem(bound).unwrap_or(0)
    }

    /// Selects one of the choices.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Takes `len` bytes unchanged, or fewer if the input ends.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (now, later) = self.bytes.split_at(len.min(self.bytes.len()));
        self.bytes = later;
        now
    }
}
