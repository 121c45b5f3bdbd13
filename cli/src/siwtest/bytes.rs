//! Bytes of an order, and their layout in memory.

use crate::shared::fail::Result;
use crate::shared::memory::Buffer;
use std::ops::Range;
use uiw::raw::Sge;
use uiw_conform::partner::{MAX_SGES, Order, pattern_byte};

/// Number of bytes between two pieces of a message.
const GAP: usize = 8;

/// Layout of the messages of an order in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageLayout {
    /// The messages follow one another, in memory that the other end names.
    Whole,
    /// Each message has as many separate pieces as the request has elements.
    Pieces,
}

impl MessageLayout {
    fn gap(self) -> usize {
        if self == Self::Pieces { GAP } else { 0 }
    }

    fn stride(self, order: &Order) -> usize {
        order.size as usize + self.gap() * (order.sges as usize - 1)
    }

    /// Returns the length of all messages in bytes, including gaps.
    pub(super) fn len(self, order: &Order) -> usize {
        self.stride(order) * order.count as usize
    }

    /// Returns the pieces of a message: place in the buffer, offset in the message, length.
    fn pieces(self, order: &Order, message: u32) -> impl Iterator<Item = (usize, u32, u32)> {
        let (size, pieces) = (order.size, if self == Self::Pieces { order.sges } else { 1 });
        let (start, gap) = (self.stride(order) * message as usize, self.gap());
        let piece = size / pieces;
        (0..pieces).map(move |number| {
            let at = number * piece;
            let len = if number + 1 < pieces { piece } else { size - at };
            (start + at as usize + gap * number as usize, at, len)
        })
    }
}

/// Returns the bytes of a part of a message.
fn pattern(order: &Order, message: u32, part: Range<u32>) -> Vec<u8> {
    part.map(|at| pattern_byte(order.seed, message, at)).collect()
}

/// Writes the bytes of the order into `buffer`.
pub(super) fn fill(buffer: &Buffer, order: &Order, layout: MessageLayout) -> Result<()> {
    for message in 0..order.count {
        for (place, at, len) in layout.pieces(order, message) {
            buffer.write(place, &pattern(order, message, at..at + len))?;
        }
    }
    Ok(())
}

/// Returns a description of the first wrong byte in `buffer`.
pub(super) fn find_difference(
    buffer: &Buffer,
    order: &Order,
    layout: MessageLayout,
) -> Result<Option<String>> {
    for message in 0..order.count {
        for (place, at, len) in layout.pieces(order, message) {
            let expected = pattern(order, message, at..at + len);
            if let Some(first) = buffer.first_difference(place, &expected)? {
                let byte = at as usize + first;
                return Ok(Some(format!("byte {byte} of message {message} differs")));
            }
        }
    }
    Ok(None)
}

/// Returns the elements of a message. The last one is `more` bytes longer.
pub(super) fn elements(buffer: &Buffer, order: &Order, message: u32, more: usize) -> Vec<Sge> {
    let mut sges = Vec::with_capacity(MAX_SGES as usize);
    for (place, at, len) in MessageLayout::Pieces.pieces(order, message) {
        let more = if at + len == order.size { more } else { 0 };
        sges.push(buffer.sge(place..place + len as usize + more));
    }
    sges
}

#[cfg(test)]
mod tests {
    use super::*;
    use uiw_conform::partner::{Actor, Op};

    #[test]
    fn one_wrong_byte_is_found() {
        let device = uiw::raw::Device::open().unwrap();
        let buffer = Buffer::exclusive(&device.alloc_pd().unwrap(), 1 << 20).unwrap();
        let order = Order {
            op: Op::Send,
            actor: Actor::Initiator,
            size: 70_001,
            count: 3,
            sges: 3,
            seed: 9,
        };
        for layout in [MessageLayout::Whole, MessageLayout::Pieces] {
            fill(&buffer, &order, layout).unwrap();
            assert_eq!(find_difference(&buffer, &order, layout).unwrap(), None);
            let (place, at, len) = layout.pieces(&order, 2).last().unwrap();
            let mut byte = [0];
            buffer.read(place + len as usize - 1, &mut byte).unwrap();
            buffer.write(place + len as usize - 1, &[byte[0] ^ 1]).unwrap();
            let expected = format!("byte {} of message 2 differs", at + len - 1);
            assert_eq!(find_difference(&buffer, &order, layout).unwrap(), Some(expected));
            assert!(
                find_difference(&buffer, &Order { seed: 10, ..order }, layout).unwrap().is_some()
            );
        }
    }

    #[test]
    fn pieces_cover_a_message() {
        for (size, sges) in [(0, 1), (1, 1), (1, 3), (10, 3), (4096, 6)] {
            let order =
                Order { op: Op::Send, actor: Actor::Initiator, size, count: 2, sges, seed: 0 };
            for message in 0..2 {
                let mut next = 0;
                let mut end = 0;
                for (place, at, len) in MessageLayout::Pieces.pieces(&order, message) {
                    assert!(at == next && place >= end);
                    next += len;
                    end = place + len as usize;
                }
                assert_eq!(next, size);
                assert!(end <= MessageLayout::Pieces.len(&order));
            }
        }
    }
}
