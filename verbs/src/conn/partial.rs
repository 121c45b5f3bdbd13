//! Received bytes that are not yet part of a complete FPDU or start-up frame.

/// Bytes that a connection keeps between rounds: the beginning of an FPDU, or all bytes after a
/// segment that waits for a receive.
///
/// Bytes are consumed from the front without moving the others.
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
