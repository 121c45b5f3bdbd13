//! Bytes received that no FPDU (or start-up frame) was made of yet.

/// Bytes that a connection keeps between rounds: the front of an FPDU, or everything behind a
/// segment that waits for a receive. Bytes are used from the front without moving the rest, however
/// many there are.
#[derive(Default)]
pub(crate) struct PartialFpdu {
    bytes: Vec<u8>,
    used: usize,
}

impl PartialFpdu {
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.used
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.used..]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.used..]
    }

    pub(crate) fn consume(&mut self, count: usize) {
        self.used += count;
        debug_assert!(self.used <= self.bytes.len());
    }

    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.used = 0;
    }

    /// Returns whether there is an allocation to give back.
    pub(crate) fn has_buffer(&self) -> bool {
        self.bytes.capacity() > 0
    }

    /// Takes an empty buffer in place of its own, which is given back.
    pub(crate) fn replace_buffer(&mut self, buffer: Vec<u8>) -> Vec<u8> {
        self.used = 0;
        std::mem::replace(&mut self.bytes, buffer)
    }
}
