//! The sending half of a connection: a ring that the program's bytes are copied to, the peer's targets that they are written to, and
//! what limits it: room in the ring, slots of the send queue, the peer's credits.
//!
//! Two uiw ends need no reserve of credits, as a Send that finds no receive waits in the stream. Stock rsockets over an iWARP driver are
//! ended by one (the protocol counts on RNR retries, which iWARP does not have), and their receives serve control messages as well as
//! data: so a part of the credits stays unused.

use crate::wire::Target;
use std::collections::VecDeque;
use std::ops::Range;

/// Room in the ring below which a program waits: rdma-core's SO_SNDLOWAT.
const LOW_WATER: u32 = 2048;
/// The longest write, and the first of a call that sends more: later ones are twice as long each, so that the peer begins early.
const LONGEST: u32 = 65536;
const FIRST: u32 = 2048;
/// Receives of the peer that data never takes: credits and the two control messages may need one each before the peer polls.
const RESERVE: u16 = 8;

/// One message in the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InFlight {
    /// Data, or a mapping: a slot, and so many bytes of the ring.
    Data(u32),
    /// Credits or a control message.
    Control,
}

/// The next bytes to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Range in the ring.
    pub(crate) staged: Range<u32>,
    /// Target in the peer's memory.
    pub(crate) to: Target,
}

pub(crate) struct Sender {
    size: u32,
    /// The next free byte of the ring.
    start: u32,
    free: u32,
    slots: u16,
    control_slots: u16,
    in_flight: VecDeque<InFlight>,
    /// Data messages sent, and those that the peer has receives for; modulo 2^16.
    sent: u16,
    limit: u16,
    reserve: u16,
    current: Target,
    /// Length of the next piece of this call, at most.
    longest: u32,
}

impl Sender {
    /// A ring of `size` bytes, `slots` messages of data and `control_slots` others in the send queue.
    pub(crate) fn new(size: u32, slots: u16, control_slots: u16, credits: u16, first: Target) -> Self {
        Self {
            size,
            start: 0,
            free: size,
            slots,
            control_slots,
            in_flight: VecDeque::new(),
            sent: 0,
            limit: credits,
            reserve: RESERVE.min(credits / 4),
            current: first,
            longest: FIRST,
        }
    }

    /// Returns whether something can be sent now.
    pub(crate) fn has_room(&self) -> bool {
        self.has_slot() && self.current.len > 0
    }

    /// Returns whether a message can be sent that has no target of the data.
    pub(crate) fn has_slot(&self) -> bool {
        let credits = self.limit.wrapping_sub(self.sent);
        self.slots > 0 && self.free >= LOW_WATER.min(self.size) && credits > self.reserve
    }

    /// A call begins to send.
    pub(crate) fn begin(&mut self) {
        self.longest = FIRST;
    }

    fn next_len(&mut self, wanted: u64, room: u32) -> u32 {
        let longest = self.longest;
        self.longest = (2 * longest).min(LONGEST);
        // A piece is consecutive in the ring.
        let most = longest.min(self.free).min(self.size - self.start).min(room);
        wanted.min(u64::from(most)) as u32
    }

    fn take(&mut self, len: u32) -> Range<u32> {
        let staged = self.start..self.start + len;
        self.start = (self.start + len) % self.size;
        self.free -= len;
        self.slots -= 1;
        self.in_flight.push_back(InFlight::Data(len));
        staged
    }

    /// Takes what up to `wanted` bytes need. Called where [`Sender::has_room`].
    pub(crate) fn next(&mut self, wanted: u64) -> Piece {
        let len = self.next_len(wanted, self.current.len);
        let to = Target { len, ..self.current };
        self.current.addr = self.current.addr.wrapping_add(len.into());
        self.current.len -= len;
        self.sent = self.sent.wrapping_add(1);
        Piece { staged: self.take(len), to }
    }

    /// Like [`Sender::next`], for bytes that go to a mapping with `room` bytes, which takes neither credit nor target.
    pub(crate) fn next_direct(&mut self, wanted: u64, room: u32) -> Range<u32> {
        let len = self.next_len(wanted, room);
        self.take(len)
    }

    /// Takes what a mapping that is published needs. Called where [`Sender::has_slot`]. It takes no credit, as the peer would never give it
    /// back: it counts data alone.
    pub(crate) fn publish(&mut self) {
        self.slots -= 1;
        self.in_flight.push_back(InFlight::Data(0));
    }

    /// Takes a slot for a control message; false when there is none.
    pub(crate) fn control(&mut self) -> bool {
        if self.control_slots == 0 {
            return false;
        }
        self.control_slots -= 1;
        self.in_flight.push_back(InFlight::Control);
        true
    }

    /// Slots that control messages can still take.
    pub(crate) fn control_slots(&self) -> u16 {
        self.control_slots
    }

    /// The oldest message has left the send queue.
    pub(crate) fn completed(&mut self) {
        match self.in_flight.pop_front() {
            Some(InFlight::Data(len)) => {
                self.free += len;
                self.slots += 1;
                // An empty ring begins anew: what was written last is in the cache.
                if self.free == self.size {
                    self.start = 0;
                }
            }
            Some(InFlight::Control) => self.control_slots += 1,
            None => {}
        }
    }

    /// The peer has given credits.
    pub(crate) fn credit(&mut self, limit: u16) {
        self.limit = limit;
    }

    /// Returns whether the current target is used up.
    pub(crate) fn needs_target(&self) -> bool {
        self.current.len == 0
    }

    /// The next target.
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
        assert_eq!((second.staged, second.to), (2048..6000, Target { addr: 3048, key: 9, len: 3952 }));
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
            sender.credit(credits.wrapping_mul(2));
            assert!(sender.has_room());
        }
    }

    #[test]
    fn control_messages_have_own_slots() {
        let mut sender = sender(384);
        assert!(sender.control() && sender.control() && !sender.control());
        sender.next(1);
        sender.completed();
        assert!(sender.control());
        // A completion more than there are messages changes nothing.
        (0..9).for_each(|_| sender.completed());
        assert_eq!((sender.slots, sender.control_slots, sender.free), (100, 2, 8192));
    }
}
