//! Segmentation of messages (RFC 5041 section 5.2).

use core::iter::FusedIterator;

/// Part of a message that one segment carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Offset in the message in bytes: the MO of an untagged segment, or the distance of a tagged
    /// segment's TO from the TO of the first segment of its message.
    pub offset: u32,
    /// Length of the payload in bytes.
    pub len: u32,
    /// The L bit: this is the last segment of the message.
    pub last: bool,
}

/// Iterator over the segments of a message, in the order of their offsets. See [`segments`].
#[derive(Clone, Debug)]
pub struct Segments {
    total: u32,
    max_payload: u32,
    /// Offset of the next segment; `None` after the last.
    next: Option<u32>,
}

/// Splits a message of `total` bytes into segments with at most `max_payload` bytes each. An empty
/// message is one segment.
///
/// A `max_payload` of 0 is treated as 1.
///
/// ```
/// # use uiw_ddp::{Segment, segments};
/// let cut: Vec<_> = segments(10, 4).map(|s| (s.offset, s.len, s.last)).collect();
/// assert_eq!(cut, [(0, 4, false), (4, 4, false), (8, 2, true)]);
/// assert_eq!(segments(0, 4).count(), 1);
/// ```
#[must_use]
pub const fn segments(total: u32, max_payload: u32) -> Segments {
    let max_payload = if max_payload == 0 { 1 } else { max_payload };
    Segments { total, max_payload, next: Some(0) }
}

impl Iterator for Segments {
    type Item = Segment;

    #[inline]
    fn next(&mut self) -> Option<Segment> {
        let offset = self.next?;
        let left = self.total - offset;
        let last = left <= self.max_payload;
        let len = left.min(self.max_payload);
        self.next = if last { None } else { Some(offset + len) };
        Some(Segment { offset, len, last })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let count =
            self.next.map_or(0, |offset| (self.total - offset).div_ceil(self.max_payload).max(1) as usize);
        (count, Some(count))
    }
}

impl ExactSizeIterator for Segments {}
impl FusedIterator for Segments {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_message_is_one_segment() {
        let mut cut = segments(0, 1400);
        assert_eq!(cut.len(), 1);
        assert_eq!(cut.next(), Some(Segment { offset: 0, len: 0, last: true }));
        assert_eq!(cut.next(), None);
    }

    #[test]
    fn segments_cover_message_in_order() {
        // Miri is slow, so it tests only some of the cases.
        let step = if cfg!(miri) { 13 } else { 1 };
        for total in (0..300).step_by(step) {
            for max_payload in (1..40).step_by(step) {
                let (mut expected_offset, mut ended) = (0, false);
                let cut = segments(total, max_payload);
                assert_eq!(cut.len(), cut.clone().count());
                for segment in cut {
                    assert!(!ended, "nothing after the last");
                    assert_eq!(segment.offset, expected_offset);
                    assert!(segment.len <= max_payload);
                    expected_offset += segment.len;
                    ended = segment.last;
                }
                assert!(ended && expected_offset == total);
            }
        }
    }

    #[test]
    fn longest_message() {
        let cut = segments(u32::MAX, 64_750);
        assert_eq!(cut.len(), 66_332);
        let (mut sum, mut last) = (0u64, None);
        for segment in cut {
            sum += u64::from(segment.len);
            last = Some(segment);
        }
        assert_eq!(sum, u64::from(u32::MAX));
        assert!(last.is_some_and(|segment| segment.last && segment.len == 35_045));
        assert_eq!(segments(u32::MAX, u32::MAX).len(), 1);
    }

    #[test]
    fn remaining_bytes_counted() {
        let mut cut = segments(10, 4);
        for left in [3, 2, 1] {
            assert_eq!(cut.size_hint(), (left, Some(left)));
            cut.next();
        }
        assert_eq!(cut.size_hint(), (0, Some(0)));
    }

    #[test]
    fn zero_maximum_does_not_loop() {
        assert_eq!(segments(3, 0).count(), 3);
    }
}
