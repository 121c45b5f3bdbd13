//! Checks of received segments before their payload is placed (RFC 5041 section 7.1).
//!
//! TCP is an ordered LLP, so segments arrive in the order in which they were sent. A segment of a
//! queue is valid only if it continues the message in progress at its next byte or, between
//! messages, begins the next one.

use crate::STag;
use crate::wire::Untagged;

/// Receive state of one untagged queue of a stream: the next expected message and its next byte.
///
/// For each segment, call [`check`](Self::check), place the payload, then call
/// [`placed`](Self::placed).
///
/// ```
/// # use uiw_ddp::{DeliveredMessage, Untagged, UntaggedRx};
/// let mut queue = UntaggedRx::new(1);
/// let first = Untagged { last: false, rsvd_ulp: 0x43, rsvd_ulp32: 0, qn: 0, msn: 1, mo: 0 };
/// assert_eq!(queue.check(&first, 100, Some(150)), Ok(0));
/// assert_eq!(queue.placed(&first, 100), None);
/// let second = Untagged { last: true, mo: 100, ..first };
/// assert_eq!(queue.check(&second, 50, Some(150)), Ok(100));
/// assert_eq!(queue.placed(&second, 50), Some(DeliveredMessage { msn: 1, len: 150 }));
/// ```
#[derive(Clone, Debug)]
pub struct UntaggedRx {
    msn: u32,
    /// Message in progress; `None` between messages.
    message: Option<OpenMessage>,
}

/// Message of which not all segments have arrived.
#[derive(Clone, Copy, Debug)]
struct OpenMessage {
    /// Number of bytes placed so far.
    received: u32,
    rsvd_ulp: u8,
}

/// Completely received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveredMessage {
    /// Message Sequence Number.
    pub msn: u32,
    /// Length in bytes.
    pub len: u32,
}

impl UntaggedRx {
    /// Creates a queue that expects the message `first_msn` first. On a new stream that is 1.
    #[must_use]
    pub const fn new(first_msn: u32) -> Self {
        Self { msn: first_msn, message: None }
    }

    /// Returns the MSN of the message in progress or, between messages, of the next one.
    #[must_use]
    pub const fn expected_msn(&self) -> u32 {
        self.msn
    }

    /// Returns whether a message has begun and is not complete.
    #[must_use]
    pub const fn in_progress(&self) -> bool {
        self.message.is_some()
    }

    /// Returns the number of bytes of the message in progress that were placed so far.
    #[must_use]
    #[inline]
    pub fn received(&self) -> u32 {
        self.message.map_or(0, |message| message.received)
    }

    /// Checks whether a segment with `len` bytes of payload may be placed into the message's buffer
    /// of `buffer` bytes, and returns its offset there. `buffer` is `None` if no buffer is posted. An
    /// empty message needs a buffer as well.
    ///
    /// # Errors
    /// Returns the first violation, in the order MSN, buffer, MO, RsvdULP, length.
    #[inline]
    pub fn check(
        &self,
        header: &Untagged,
        len: u32,
        buffer: Option<u32>,
    ) -> Result<u32, UntaggedError> {
        if header.msn != self.msn {
            return Err(UntaggedError::MsnRange { expected: self.msn, got: header.msn });
        }
        let Some(buffer) = buffer else { return Err(UntaggedError::NoBuffer { msn: header.msn }) };
        let received = self.received();
        if header.mo != received {
            return Err(UntaggedError::Mo { expected: received, got: header.mo });
        }
        // Only this byte is compared, which has the opcode of the message. The other 32 bits of
        // RsvdULP must be ignored for most messages.
        if let Some(OpenMessage { rsvd_ulp, .. }) = self.message
            && rsvd_ulp != header.rsvd_ulp
        {
            return Err(UntaggedError::RsvdUlpChanged { was: rsvd_ulp, got: header.rsvd_ulp });
        }
        let end =
            received.checked_add(len).ok_or(UntaggedError::MessageTooLong { mo: received, len })?;
        if end > buffer {
            return Err(UntaggedError::TooLong { message: end, buffer });
        }
        Ok(received)
    }

    /// Counts the payload of a checked segment as placed. Returns the message if this completes it.
    #[inline]
    pub fn placed(&mut self, header: &Untagged, len: u32) -> Option<DeliveredMessage> {
        let received = self.received().wrapping_add(len);
        if !header.last {
            self.message = Some(OpenMessage { received, rsvd_ulp: header.rsvd_ulp });
            return None;
        }
        let delivered = DeliveredMessage { msn: self.msn, len: received };
        self.message = None;
        self.msn = self.msn.wrapping_add(1);
        Some(delivered)
    }
}

/// Reason why a segment must not be placed into an Untagged Buffer (RFC 5041 section 7.2, type 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UntaggedError {
    /// Code 2: the message has no buffer.
    #[error("no buffer for message {msn}")]
    NoBuffer {
        /// MSN of the segment.
        msn: u32,
    },
    /// Code 3: the segment does not belong to the expected message.
    #[error("MSN {got} where {expected} is due")]
    MsnRange {
        /// Expected MSN.
        expected: u32,
        /// MSN of the segment.
        got: u32,
    },
    /// Code 4: the segment does not start at the expected byte.
    #[error("MO {got} where {expected} is due")]
    Mo {
        /// Number of bytes of the message that were placed so far.
        expected: u32,
        /// MO of the segment.
        got: u32,
    },
    /// Code 5: the message does not fit its buffer.
    #[error("message of at least {message} bytes for a buffer of {buffer}")]
    TooLong {
        /// Length of the message up to and including this segment, in bytes.
        message: u32,
        /// Length of the buffer in bytes.
        buffer: u32,
    },
    /// The segments of a message have different values of RsvdULP, and so different opcodes
    /// (section 4.3). DDP has no code for this error.
    #[error("RsvdULP {got:#04x} in a message that began with {was:#04x}")]
    RsvdUlpChanged {
        /// RsvdULP\[0:7\] of the earlier segments.
        was: u8,
        /// RsvdULP\[0:7\] of the segment.
        got: u8,
    },
    /// Code 5, too: the message has 2^32 bytes or more, which is not allowed (section 5.2).
    #[error("message of 2^32 bytes or more: {len} at MO {mo}")]
    MessageTooLong {
        /// MO of the segment.
        mo: u32,
        /// Bytes of its payload.
        len: u32,
    },
}

/// Reason why a segment must not be placed into a Tagged Buffer (RFC 5041 section 7.2, type 1).
///
/// A segment without payload never causes these errors, because its STag and TO are not checked
/// (section 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaggedError {
    /// Code 0: the Tagged Buffer does not exist, or does not exist any more.
    #[error("invalid STag {stag}")]
    InvalidStag {
        /// STag of the segment.
        stag: STag,
    },
    /// Code 0, because this error has no code of its own: the Tagged Buffer does not allow
    /// placement (the second check of section 7.1).
    #[error("STag {stag} gives no right to write")]
    AccessRights {
        /// STag of the segment.
        stag: STag,
    },
    /// Code 1: the payload is not completely within the Tagged Buffer.
    #[error("TO {to:#x} with {len} bytes is outside STag {stag}")]
    BaseOrBounds {
        /// STag of the segment.
        stag: STag,
        /// TO of the segment.
        to: u64,
        /// Bytes of its payload.
        len: u32,
    },
    /// Code 2: the Tagged Buffer belongs to another stream.
    #[error("STag {stag} is not associated with this stream")]
    NotAssociated {
        /// STag of the segment.
        stag: STag,
    },
    /// Code 3: the sum of TO and length exceeds 64 bits.
    #[error("TO {to:#x} with {len} bytes wraps")]
    ToWrap {
        /// STag of the segment.
        stag: STag,
        /// TO of the segment.
        to: u64,
        /// Bytes of its payload.
        len: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEND: Untagged =
        Untagged { last: true, rsvd_ulp: 0x43, rsvd_ulp32: 0, qn: 0, msn: 1, mo: 0 };

    /// Returns a queue that has received `bytes` bytes of a message.
    fn amid(msn: u32, bytes: u32) -> UntaggedRx {
        let mut queue = UntaggedRx::new(msn);
        queue.placed(&Untagged { last: false, msn, ..SEND }, bytes);
        queue
    }

    // [test:RFC5041-4.3-08] [test:RFC5041-4.3-09] [test:RFC5041-4.3-10]
    #[test]
    fn msn_counts_messages_and_wraps_to_zero() {
        let mut queue = UntaggedRx::new(0xFFFF_FFFE);
        for msn in [0xFFFF_FFFE, 0xFFFF_FFFF, 0, 1] {
            let segment = Untagged { msn, ..SEND };
            assert_eq!(queue.expected_msn(), msn);
            assert_eq!(queue.check(&segment, 5, Some(5)), Ok(0));
            assert_eq!(queue.placed(&segment, 5), Some(DeliveredMessage { msn, len: 5 }));
        }
        assert_eq!(UntaggedRx::new(1).check(&SEND, 5, Some(5)), Ok(0));
    }

    // [test:RFC5041-7.1-10] [test:RFC5041-5.3-06]
    #[test]
    fn only_next_msn_accepted() {
        let queue = UntaggedRx::new(7);
        for got in [0, 1, 6, 8, 0xFFFF_FFFF] {
            let error = queue.check(&Untagged { msn: got, ..SEND }, 5, Some(64));
            assert_eq!(error, Err(UntaggedError::MsnRange { expected: 7, got }));
        }
        let duplicate = queue.check(&Untagged { msn: 6, ..SEND }, 0, None);
        assert_eq!(
            duplicate,
            Err(UntaggedError::MsnRange { expected: 7, got: 6 }),
            "even without bytes"
        );
    }

    // [test:RFC5041-7.1-03] [test:RFC5040-5.3-10]
    #[test]
    fn message_without_buffer_rejected() {
        let queue = UntaggedRx::new(1);
        assert_eq!(queue.check(&SEND, 5, None), Err(UntaggedError::NoBuffer { msn: 1 }));
        assert_eq!(queue.check(&SEND, 0, None), Err(UntaggedError::NoBuffer { msn: 1 }));
        assert_eq!(queue.check(&SEND, 0, Some(0)), Ok(0));
    }

    // [test:RFC5041-7.1-08]
    #[test]
    fn mo_equals_received_length() {
        let queue = amid(1, 100);
        for got in [0, 99, 101, u32::MAX] {
            let error = queue.check(&Untagged { mo: got, ..SEND }, 5, Some(64_000));
            assert_eq!(error, Err(UntaggedError::Mo { expected: 100, got }));
        }
        assert_eq!(queue.check(&Untagged { mo: 100, ..SEND }, 5, Some(105)), Ok(100));
        let late_start = UntaggedRx::new(1).check(&Untagged { mo: 4, ..SEND }, 5, Some(64));
        assert_eq!(late_start, Err(UntaggedError::Mo { expected: 0, got: 4 }));
    }

    // [test:RFC5041-7.1-09] [test:RFC5040-5.3-04]
    #[test]
    fn message_beyond_buffer_rejected() {
        let queue = amid(1, 100);
        let segment = Untagged { mo: 100, ..SEND };
        assert!(queue.check(&segment, 28, Some(128)).is_ok());
        assert!(queue.check(&segment, 28, Some(4096)).is_ok());
        let error = queue.check(&segment, 29, Some(128));
        assert_eq!(error, Err(UntaggedError::TooLong { message: 129, buffer: 128 }));
    }

    // [test:RFC5041-5.2-02]
    #[test]
    fn message_limited_to_4_gib() {
        let queue = amid(1, u32::MAX - 3);
        let segment = Untagged { mo: u32::MAX - 3, ..SEND };
        assert_eq!(queue.check(&segment, 3, Some(u32::MAX)), Ok(u32::MAX - 3));
        let error = queue.check(&segment, 4, Some(u32::MAX));
        assert_eq!(error, Err(UntaggedError::MessageTooLong { mo: u32::MAX - 3, len: 4 }));
        assert_eq!(
            amid(1, u32::MAX - 3).placed(&segment, 3),
            Some(DeliveredMessage { msn: 1, len: u32::MAX })
        );
    }

    #[test]
    fn segments_of_message_must_agree() {
        let queue = amid(1, 100);
        let error = queue.check(&Untagged { mo: 100, rsvd_ulp: 0x45, ..SEND }, 5, Some(128));
        assert_eq!(error, Err(UntaggedError::RsvdUlpChanged { was: 0x43, got: 0x45 }));
        let ignored = queue.check(&Untagged { mo: 100, rsvd_ulp32: 9, ..SEND }, 5, Some(128));
        assert!(ignored.is_ok());
    }

    /// DDP only reports the error and leaves the stream to its ULP: a refused segment changes no
    /// state.
    // [test:RFC5041-6.2-01] [test:RFC5041-6.2.2-07]
    #[test]
    fn rejected_segment_changes_nothing() {
        let mut queue = amid(7, 100);
        let good = Untagged { mo: 100, msn: 7, ..SEND };
        for (bad, len) in [
            (Untagged { msn: 8, ..good }, 5),
            (Untagged { mo: 99, ..good }, 5),
            (Untagged { rsvd_ulp: 0x45, ..good }, 5),
            (good, 500),
        ] {
            assert!(queue.check(&bad, len, Some(128)).is_err());
            assert!(queue.check(&good, 5, None).is_err());
            assert_eq!(
                (queue.expected_msn(), queue.received(), queue.in_progress()),
                (7, 100, true)
            );
            assert_eq!(queue.check(&good, 5, Some(128)), Ok(100));
        }
        assert_eq!(queue.placed(&good, 5), Some(DeliveredMessage { msn: 7, len: 105 }));
    }

    // [test:RFC5041-5.4-02] [test:RFC5041-5.4-06]
    #[test]
    fn delivery_with_last_segment_only() {
        let mut queue = UntaggedRx::new(1);
        for mo in [0, 10, 20] {
            let segment = Untagged { mo, last: false, ..SEND };
            assert_eq!(queue.check(&segment, 10, Some(64)), Ok(mo));
            assert_eq!(queue.placed(&segment, 10), None);
            assert!(queue.in_progress());
        }
        // An empty last segment is unusual, but legal.
        let end = Untagged { mo: 30, ..SEND };
        assert!(queue.check(&end, 0, Some(64)).is_ok());
        assert_eq!(queue.placed(&end, 0), Some(DeliveredMessage { msn: 1, len: 30 }));
        assert!(!queue.in_progress());
        assert_eq!((queue.received(), queue.expected_msn()), (0, 2));
    }
}
