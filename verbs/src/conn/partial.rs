//! Received bytes that are not yet part of a complete FPDU or start-up frame.

use crate::driver::PAGE;
use std::ops::Range;

/// Length from which on a partial FPDU stays where it was read. A shorter one is copied.
pub(crate) const LONG_PARTIAL: usize = 8 << 10;
/// Minimum number of free bytes behind a long partial FPDU for the next read.
const MIN_ROOM: usize = 128 << 10;

/// Staging buffer with received bytes.
pub(crate) struct StagedBytes {
    buffer: Vec<u8>,
    range: Range<usize>,
}

impl StagedBytes {
    /// Copies `bytes` into `buffer`. The next byte that is read will have `page_offset`.
    #[inline]
    pub(crate) fn new(mut buffer: Vec<u8>, bytes: &[u8], page_offset: usize) -> Self {
        let start = staging_start(buffer.as_ptr().addr(), page_offset, bytes.len());
        let range = start..start + bytes.len();
        if !bytes.is_empty() {
            buffer[range.clone()].copy_from_slice(bytes);
        }
        Self { buffer, range }
    }

    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.range.clone()]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.range.clone()]
    }

    /// Returns the free memory behind the bytes. Moves the bytes to the beginning of the buffer if
    /// they are few, or if there is little free memory; then the next byte that is read has
    /// `page_offset`.
    #[inline]
    pub(crate) fn free(&mut self, page_offset: usize) -> &mut [u8] {
        if self.len() < LONG_PARTIAL || self.buffer.len() - self.range.end < MIN_ROOM {
            let start = staging_start(self.buffer.as_ptr().addr(), page_offset, self.len());
            let range = start..start + self.len();
            if !range.is_empty() {
                self.buffer.copy_within(self.range.clone(), start);
            }
            self.range = range;
        }
        &mut self.buffer[self.range.end..]
    }

    /// Adds the first `count` bytes of the free memory.
    pub(crate) fn add(&mut self, count: usize) {
        self.range.end += count;
        debug_assert!(self.range.end <= self.buffer.len());
    }

    pub(crate) fn consume(&mut self, count: usize) {
        self.range.start += count;
        debug_assert!(self.range.start <= self.range.end);
    }

    pub(crate) fn into_buffer(self) -> Vec<u8> {
        self.buffer
    }
}

/// Returns the page offset to which a connection reads after it has read to the page offset `last`.
///
/// On processors with FSRM, the kernel copies several times more slowly to a page offset that is up
/// to 31 bytes above that of the source, which is not known here. The offset changes with each
/// read, because a connection with slow reads never empties its socket and would stay slow. It goes
/// through all multiples of 64 bytes within a page.
#[inline]
pub(crate) fn next_page_offset(last: usize) -> usize {
    (last + 13 * 64) % PAGE
}

/// Returns the index, in a staging buffer at `address`, for the first of `have` bytes, so that the
/// next byte that is read has this page offset.
#[inline]
fn staging_start(address: usize, page_offset: usize, have: usize) -> usize {
    let aligned = address.wrapping_neg() % PAGE;
    aligned + page_offset.wrapping_sub(have) % PAGE
}

/// Bytes that a connection keeps between rounds: the beginning of an FPDU, or all bytes after a
/// segment that waits for a receive.
///
/// Bytes are consumed from the front without moving the others.
#[derive(Default)]
pub(crate) struct PartialFpdu {
    bytes: Vec<u8>,
    range: Range<usize>,
    /// True if `bytes` is a staging buffer, all of whose memory can be used.
    is_staging: bool,
}

impl PartialFpdu {
    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Returns the number of bytes of memory that are kept for these bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        if self.is_staging { self.bytes.len() } else { self.len() }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.range.clone()]
    }

    pub(crate) fn consume(&mut self, count: usize) {
        self.range.start += count;
        debug_assert!(self.range.start <= self.range.end);
    }

    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        if self.is_staging {
            // All of a staging buffer counts as kept, but only the bytes of any other one.
            let bytes = self.bytes().to_vec();
            self.range = 0..bytes.len();
            (self.bytes, self.is_staging) = (bytes, false);
        }
        self.bytes.truncate(self.range.end);
        self.bytes.extend_from_slice(bytes);
        self.range.end = self.bytes.len();
    }

    pub(crate) fn clear(&mut self) {
        self.range = 0..0;
    }

    /// Keeps the bytes in their staging buffer. Returns the buffer that was used before.
    pub(crate) fn keep_staged(&mut self, staged: StagedBytes) -> Vec<u8> {
        let before = self.replace_buffer(staged.buffer);
        (self.range, self.is_staging) = (staged.range, true);
        before
    }

    /// Returns the bytes together with their staging buffer, if they are in one.
    pub(crate) fn take_staged(&mut self) -> Option<StagedBytes> {
        let range = self.range.clone();
        self.is_staging.then(|| StagedBytes { buffer: self.replace_buffer(Vec::new()), range })
    }

    /// Returns whether there is an allocation to give back.
    pub(crate) fn has_buffer(&self) -> bool {
        self.bytes.capacity() > 0
    }

    /// Takes an empty buffer in place of its own, which is given back.
    pub(crate) fn replace_buffer(&mut self, buffer: Vec<u8>) -> Vec<u8> {
        (self.range, self.is_staging) = (0..0, false);
        std::mem::replace(&mut self.bytes, buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{RX_STAGING, STAGING_LEN};

    /// The range in which copies are slow is shorter than 64 bytes.
    #[test]
    fn page_offset_differs_from_last_ones() {
        let offsets: Vec<_> =
            std::iter::successors(Some(0), |last| Some(next_page_offset(*last))).take(64).collect();
        for (n, offset) in offsets.iter().enumerate() {
            assert!(
                offsets[..n].iter().all(|earlier| earlier.abs_diff(*offset) >= 64),
                "{offsets:?}"
            );
        }
    }

    #[test]
    fn next_byte_has_page_offset() {
        for address in [0x1000, 0x1010, 0x1FFF] {
            for page_offset in [0, 1, 20, 4095] {
                for have in [0, 1, 20, 4096, 5000, RX_STAGING] {
                    let start = staging_start(address, page_offset, have);
                    assert_eq!((address + start + have) % PAGE, page_offset);
                    assert!(start + RX_STAGING <= STAGING_LEN);
                }
            }
        }
    }

    /// Reads 64 KiB at a time and takes FPDUs of 60,000 bytes, as a connection does.
    #[test]
    fn staged_bytes_keep_order_and_page_offset() {
        let next = |at: usize| (at % 251) as u8;
        let (mut read, mut taken) = (0, 0);
        let mut partial = PartialFpdu::default();
        let mut spare = Some(vec![0; STAGING_LEN]);
        for _ in 0..100 {
            let mut staged = partial
                .take_staged()
                .unwrap_or_else(|| StagedBytes::new(spare.take().unwrap(), &[], read % PAGE));
            let free = staged.free(read % PAGE);
            assert!(free.len() >= MIN_ROOM);
            assert_eq!(free.as_ptr().addr() % PAGE, read % PAGE);
            (0..64 << 10).for_each(|at| free[at] = next(read + at));
            staged.add(64 << 10);
            read += 64 << 10;
            while staged.len() >= 60_000 {
                let fpdu = &staged.bytes()[..60_000];
                assert!(fpdu.iter().enumerate().all(|(at, byte)| *byte == next(taken + at)));
                staged.consume(60_000);
                taken += 60_000;
            }
            partial.keep_staged(staged);
            assert_eq!((partial.len(), partial.held_bytes()), (read - taken, STAGING_LEN));
        }
        partial.extend(b"end");
        assert_eq!((partial.len(), partial.held_bytes()), (read - taken + 3, read - taken + 3));
        assert_eq!(partial.bytes()[0], next(taken));
        assert!(partial.bytes().ends_with(b"end") && partial.take_staged().is_none());
    }
}
