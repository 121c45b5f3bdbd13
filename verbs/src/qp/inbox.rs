//! Octets received that no FPDU (or startup frame) was made of yet.

/// What a stream keeps between pumps: the front of an FPDU, or everything behind a segment that waits for a receive. Octets are
/// used from the front without moving the rest, however many there are.
#[derive(Default)]
pub(crate) struct Inbox {
    octets: Vec<u8>,
    used: usize,
}

impl Inbox {
    pub(crate) fn len(&self) -> usize {
        self.octets.len() - self.used
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn octets(&self) -> &[u8] {
        &self.octets[self.used..]
    }

    pub(crate) fn octets_mut(&mut self) -> &mut [u8] {
        &mut self.octets[self.used..]
    }

    pub(crate) fn consume(&mut self, count: usize) {
        self.used += count;
        debug_assert!(self.used <= self.octets.len());
    }

    pub(crate) fn extend(&mut self, octets: &[u8]) {
        self.octets.extend_from_slice(octets);
    }

    pub(crate) fn clear(&mut self) {
        self.octets.clear();
        self.used = 0;
    }

    /// Whether there is an allocation to give back.
    pub(crate) fn has_buffer(&self) -> bool {
        self.octets.capacity() > 0
    }

    /// Takes an empty buffer in place of its own, which is given back.
    pub(crate) fn replace_buffer(&mut self, buffer: Vec<u8>) -> Vec<u8> {
        self.used = 0;
        std::mem::replace(&mut self.octets, buffer)
    }
}
