//! Placement acknowledgements: empty Writes in which a uiw peer reports how much of the stream it
//! has placed.
//!
//! A peer asks for them in the capability exchange. They are sent as soon as a message is placed,
//! so they have left before the program can see the message and exit. Between uiw peers they
//! replace the zero-length Reads of [`crate::acks`].

use uiw_ddp::STag;

/// STag of an empty Write that carries an acknowledgement.
pub(crate) const STAG: STag = STag(0x7569_7733);

/// Number of lower bits of TO that are a position in the stream. The upper bits are a check value
/// that both ends derive from the nonce of the capability exchange. So an empty Write of a program
/// that happens to name [`STAG`] is not taken for an acknowledgement.
const POSITION_BITS: u32 = 48;
const POSITION_MASK: u64 = (1 << POSITION_BITS) - 1;

/// Returns the TO that acknowledges everything before `position`.
pub(crate) fn encode(position: u64, check: u16) -> u64 {
    u64::from(check) << POSITION_BITS | position & POSITION_MASK
}

/// Returns the lower 48 bits of the acknowledged position, or `None` if the check value belongs to
/// another stream.
pub(crate) fn decode(to: u64, check: u16) -> Option<u64> {
    (to >> POSITION_BITS == u64::from(check)).then_some(to & POSITION_MASK)
}

/// Returns the position with these lower 48 bits at or after `base`.
pub(crate) fn extend(base: u64, low: u64) -> u64 {
    base + (low.wrapping_sub(base) & POSITION_MASK)
}

/// Acknowledgements that this end has to send.
#[derive(Debug, Default)]
pub(crate) struct PlacementAcks {
    /// Number of bytes of FPDUs that were placed since Full Operation began.
    placed: u64,
    /// True if a message was placed after the last acknowledgement was built.
    due: bool,
    /// Acknowledgement in the transmit queue. There is at most one, so that a peer that does not
    /// read cannot make the queue grow.
    queued: Option<QueuedAck>,
    /// Number of messages passed to the host for which the peer expects an acknowledgement. It
    /// wraps.
    received: u32,
    /// Number of those messages whose acknowledgement was sent. It wraps.
    acknowledged: u32,
    /// Value of `acknowledged` at the last [`PlacementAcks::take_acknowledged`].
    reported: u32,
}

#[derive(Debug)]
struct QueuedAck {
    /// End position in the transmit queue.
    end: u64,
    /// Value of [`PlacementAcks::received`] that it covers.
    received: u32,
}

impl PlacementAcks {
    /// Records that FPDUs of `bytes` in all were placed.
    #[inline]
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.placed += bytes as u64;
    }

    /// Records that a message was placed for which the peer expects an acknowledgement.
    #[cold]
    pub(crate) fn message_placed(&mut self) {
        self.due = true;
    }

    /// Like [`PlacementAcks::message_placed`], for a message that completes a receive.
    #[cold]
    pub(crate) fn message_received(&mut self) {
        self.due = true;
        self.received = self.received.wrapping_add(1);
    }

    /// Returns whether an acknowledgement is due that was not built yet.
    #[inline]
    pub(crate) fn is_owed(&self) -> bool {
        self.due
    }

    /// Returns the position to acknowledge, if an acknowledgement can be built now.
    #[inline]
    pub(crate) fn next(&self) -> Option<u64> {
        (self.due && self.queued.is_none()).then_some(self.placed)
    }

    /// Records that the acknowledgement of [`PlacementAcks::next`] was queued, and ends at this
    /// position of the transmit queue.
    pub(crate) fn queued(&mut self, end: u64) {
        self.due = false;
        self.queued = Some(QueuedAck { end, received: self.received });
    }

    /// Records that TCP has accepted the transmit queue up to `sent`.
    #[inline]
    pub(crate) fn handle_sent(&mut self, sent: u64) {
        if let Some(ack) = &self.queued
            && ack.end <= sent
        {
            self.acknowledged = ack.received;
            self.queued = None;
        }
    }

    /// Records that the transmit queue was truncated at `end`.
    pub(crate) fn truncate(&mut self, end: u64) {
        if self.queued.as_ref().is_some_and(|ack| ack.end > end) {
            self.queued = None;
            self.due = true;
        }
    }

    /// Returns whether an acknowledgement is due or in the transmit queue.
    pub(crate) fn is_waiting(&self) -> bool {
        self.due || self.queued.is_some()
    }

    /// Allows one more acknowledgement after the one in the queue, because the stream ends.
    pub(crate) fn forget_queued(&mut self) {
        self.queued = None;
    }

    /// Returns the number of received messages whose acknowledgement was sent since the last call.
    pub(crate) fn take_acknowledged(&mut self) -> u32 {
        let count = self.acknowledged.wrapping_sub(self.reported);
        // After `forget_received`, the acknowledgement in the queue may cover less than was
        // reported.
        if count > u32::MAX / 2 {
            return 0;
        }
        self.reported = self.acknowledged;
        count
    }

    /// Records that the host has reported all received messages without waiting any longer.
    pub(crate) fn forget_received(&mut self) {
        self.reported = self.received;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_survives_encoding() {
        for (base, position) in [(0, 0), (0, 20), (5, 5), (POSITION_MASK - 1, POSITION_MASK + 7)] {
            let low = decode(encode(position, 0x1234), 0x1234).unwrap();
            assert_eq!(extend(base, low), position);
        }
        assert_eq!(decode(encode(20, 0x1234), 0x1235), None);
    }

    #[test]
    fn one_ack_queued_at_a_time() {
        let mut acks = PlacementAcks::default();
        assert_eq!(acks.next(), None);
        acks.message_received();
        acks.advance(100);
        assert_eq!(acks.next(), Some(100));
        acks.queued(20);
        acks.message_received();
        acks.advance(100);
        assert!(acks.is_owed() && acks.next().is_none());
        acks.handle_sent(19);
        assert_eq!(acks.take_acknowledged(), 0);
        acks.handle_sent(20);
        assert_eq!((acks.take_acknowledged(), acks.take_acknowledged()), (1, 0));
        assert_eq!(acks.next(), Some(200));
    }

    #[test]
    fn forgotten_receives_not_reported_again() {
        let mut acks = PlacementAcks::default();
        acks.message_received();
        acks.queued(20);
        acks.message_received();
        acks.forget_received();
        acks.handle_sent(20);
        assert_eq!(acks.take_acknowledged(), 0);
        acks.queued(40);
        acks.message_received();
        acks.handle_sent(40);
        assert_eq!(acks.take_acknowledged(), 0);
        acks.queued(60);
        acks.handle_sent(60);
        assert_eq!(acks.take_acknowledged(), 1);
    }

    #[test]
    fn truncated_ack_due_again() {
        let mut acks = PlacementAcks::default();
        acks.message_placed();
        acks.advance(8);
        acks.queued(30);
        acks.truncate(30);
        assert_eq!(acks.next(), None);
        acks.truncate(10);
        assert_eq!(acks.next(), Some(8));
    }
}
