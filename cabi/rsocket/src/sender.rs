//! Bookkeeping of the sending half of a connection.
//!
//! The program's bytes are copied to a ring, and from there written to targets, which are parts of
//! the peer's receive buffer. Sending is limited by the room in the ring, the slots of the send
//! queue, the current target and the peer's credits. A [`Sender`] only counts; its caller copies
//! and posts.
//!
//! Some of the credits are never used for data ([`RESERVED_CREDITS`]). The peer's receives serve
//! both data and control messages, and with stock rsockets over an iWARP driver a Send that finds
//! no receive ends the connection: the protocol relies on RNR retries, which iWARP does not have.
//! Two uiw peers would not need the reserve, because there such a Send waits in the stream until a
//! receive is posted.

use crate::wire::Target;
use std::collections::VecDeque;
use std::ops::Range;

/// Number of free bytes in the ring below which nothing is sent and the program waits (rdma-core's
/// SO_SNDLOWAT).
const LOW_WATER: u32 = 2048;
/// Maximum length of a piece in bytes.
const MAX_PIECE: u32 = 65536;
/// Maximum length in bytes of the first piece of a call. The maximum doubles with each piece up to
/// [`MAX_PIECE`], so that the peer can start early with the data of a long call.
const FIRST_PIECE: u32 = 2048;
/// Number of the peer's receives that data leaves free. Credits, SHUTDOWN and DISCONNECT may need
/// one each before the peer polls.
const RESERVED_CREDITS: u16 = 8;

/// Message in the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InFlight {
    /// Data with its length in the ring, or a published mapping with length 0. It occupies one of
    /// the data slots.
    Data(u32),
    /// Credits or a control message, in one of the control slots.
    Control,
}

/// Part of the program's data that is written with one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Range in the ring to which the caller copies the data.
    pub(crate) staged: Range<u32>,
    /// Destination in the peer's memory, of the same length.
    pub(crate) to: Target,
}

/// State of the sending half: free room in the ring, slots, credits and the current target.
pub(crate) struct Sender {
    /// Size of the ring in bytes.
    size: u32,
    /// Offset in the ring at which the next piece begins.
    start: u32,
    /// Free bytes in the ring.
    free: u32,
    /// Free slots of the send queue for data and mappings.
    slots: u16,
    /// Free slots of the send queue for credits and control messages.
    control_slots: u16,
    /// Messages in the send queue, oldest first.
    in_flight: VecDeque<InFlight>,
    /// Number of data messages sent, modulo 2^16.
    sent: u16,
    /// Number of data messages for which the peer has given credits since the connection began,
    /// modulo 2^16.
    limit: u16,
    /// Number of credits that data leaves unused: [`RESERVED_CREDITS`], or less if the peer has few
    /// receives.
    reserve: u16,
    /// Rest of the target that is filled now; its length is 0 when it is full.
    current: Target,
    /// Maximum length in bytes of the next piece of this call.
    max_piece: u32,
}

impl Sender {
    /// Creates a sender with a ring of `size` bytes and, in the send queue, `slots` for data and
    /// mappings and `control_slots` for other messages.
    ///
    /// `credits` is the number of receives that the peer has posted, and `first` the target in its
    /// private data.
    pub(crate) fn new(
        size: u32,
        slots: u16,
        control_slots: u16,
        credits: u16,
        first: Target,
    ) -> Self {
        Self {
            size,
            start: 0,
            free: size,
            slots,
            control_slots,
            in_flight: VecDeque::new(),
            sent: 0,
            limit: credits,
            reserve: RESERVED_CREDITS.min(credits / 4),
            current: first,
            max_piece: FIRST_PIECE,
        }
    }

    /// Returns whether data for the current target can be sent now.
    pub(crate) fn has_room(&self) -> bool {
        self.has_slot() && self.current.len > 0
    }

    /// Returns whether a message that needs no target can be sent now: data for a mapping, or a
    /// published mapping.
    pub(crate) fn has_slot(&self) -> bool {
        let credits = self.limit.wrapping_sub(self.sent);
        self.slots > 0 && self.free >= LOW_WATER.min(self.size) && credits > self.reserve
    }

    /// Starts a new call of the program, whose first piece is short again.
    pub(crate) fn begin_call(&mut self) {
        self.max_piece = FIRST_PIECE;
    }

    /// Returns the length of the next piece, and doubles the maximum for the following one.
    fn next_len(&mut self, wanted: u64, room: u32) -> u32 {
        let max = self.max_piece;
        self.max_piece = (2 * max).min(MAX_PIECE);
        // A piece must be contiguous in the ring.
        let max = max.min(self.free).min(self.size - self.start).min(room);
        wanted.min(u64::from(max)) as u32
    }

    /// Reserves a slot and the next `len` bytes of the ring.
    fn stage(&mut self, len: u32) -> Range<u32> {
        let staged = self.start..self.start + len;
        self.start = (self.start + len) % self.size;
        self.free -= len;
        self.slots -= 1;
        self.in_flight.push_back(InFlight::Data(len));
        staged
    }

    /// Reserves a slot, a credit, and room in the ring and in the target for the next piece of at
    /// most `wanted` bytes.
    ///
    /// The caller has checked [`Sender::has_room`].
    pub(crate) fn next(&mut self, wanted: u64) -> Piece {
        let len = self.next_len(wanted, self.current.len);
        let to = Target { len, ..self.current };
        self.current.addr = self.current.addr.wrapping_add(len.into());
        self.current.len -= len;
        self.sent = self.sent.wrapping_add(1);
        Piece { staged: self.stage(len), to }
    }

    /// Like [`Sender::next`], but for data that is written to a mapping with `room` bytes. It needs
    /// neither a credit nor a target.
    ///
    /// The caller has checked [`Sender::has_slot`].
    pub(crate) fn next_direct(&mut self, wanted: u64, room: u32) -> Range<u32> {
        let len = self.next_len(wanted, room);
        self.stage(len)
    }

    /// Takes a slot for the message that publishes a mapping. The caller has checked
    /// [`Sender::has_slot`].
    ///
    /// It takes no credit, because the peer counts only data messages and would never give the
    /// credit back.
    pub(crate) fn take_mapping_slot(&mut self) {
        self.slots -= 1;
        self.in_flight.push_back(InFlight::Data(0));
    }

    /// Takes a slot for credits or a control message. Returns false if no slot is free.
    pub(crate) fn take_control_slot(&mut self) -> bool {
        if self.control_slots == 0 {
            return false;
        }
        self.control_slots -= 1;
        self.in_flight.push_back(InFlight::Control);
        true
    }

    /// Returns the number of free slots for credits and control messages.
    pub(crate) fn control_slots(&self) -> u16 {
        self.control_slots
    }

    /// Frees the slot and the room of the oldest message, which has left the send queue.
    pub(crate) fn completed(&mut self) {
        match self.in_flight.pop_front() {
            Some(InFlight::Data(len)) => {
                self.free += len;
                self.slots += 1;
                // Start again at the beginning of an empty ring: the memory used most recently is
                // in the cache.
                if self.free == self.size {
                    self.start = 0;
                }
            }
            Some(InFlight::Control) => self.control_slots += 1,
            None => {}
        }
    }

    /// Applies credits from the peer: `limit` is the number of data messages, modulo 2^16, that may
    /// be sent in total.
    pub(crate) fn set_credit_limit(&mut self, limit: u16) {
        self.limit = limit;
    }

    /// Returns whether the current target is full.
    pub(crate) fn needs_target(&self) -> bool {
        self.current.len == 0
    }

    /// Replaces the target when the current one is full.
    pub(crate) fn set_target(&mut self, target: Target) {
        self.current = target;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender(credits: u16) -> Sender {
        Sender::new(8192, 100, 2, credits, Target { addr: 1000, key: 9, len: 6000 })
    }

    #[test]
    fn pieces_grow_and_follow_each_other() {
        let mut sender = sender(384);
        let first = sender.next(100_000);
        assert_eq!((first.staged, first.to), (0..2048, Target { addr: 1000, key: 9, len: 2048 }));
        let second = sender.next(100_000);
        assert_eq!(
            (second.staged, second.to),
            (2048..6000, Target { addr: 3048, key: 9, len: 3952 })
        );
        assert!(sender.needs_target() && !sender.has_room() && sender.has_slot());
        sender.set_target(Target { addr: 0, key: 8, len: 65536 });
        sender.completed();
        let third = sender.next(100_000);
        assert_eq!(third.staged, 6000..8192, "up to the end of the ring");
        let fourth = sender.next(100_000);
        assert_eq!((fourth.staged, fourth.to.addr), (0..2048, 2192));
        assert!(!sender.has_room(), "the ring is full");
        (0..3).for_each(|_| sender.completed());
        assert_eq!(sender.free, 8192);
    }

    #[test]
    fn credits_reserved_for_control_messages() {
        for (credits, usable) in [(384u16, 376u16), (16, 12), (4, 3), (1, 1)] {
            let mut sender = sender(credits);
            let mut sent = 0;
            while sender.has_room() {
                sender.next(1);
                sender.completed();
                sent += 1;
            }
            assert_eq!(sent, usable, "{credits}");
            sender.set_credit_limit(credits.wrapping_mul(2));
            assert!(sender.has_room());
        }
    }

    #[test]
    fn control_messages_have_own_slots() {
        let mut sender = sender(384);
        assert!(
            sender.take_control_slot() && sender.take_control_slot() && !sender.take_control_slot()
        );
        sender.next(1);
        sender.completed();
        assert!(sender.take_control_slot());
        // Completions without a message in flight change nothing.
        (0..9).for_each(|_| sender.completed());
        assert_eq!((sender.slots, sender.control_slots, sender.free), (100, 2, 8192));
    }
}
