//! Unreliable messages between two uiw peers
//! ([`StreamHost::is_unreliable`](crate::StreamHost::is_unreliable)).
//!
//! A message that cannot be delivered is discarded as a whole, so that none of it reaches memory.
//! DDP does not announce the length of a Write, nor that Immediate Data follows it. So the sender
//! announces Writes that are longer than one small segment, and those with Immediate Data, by a
//! zero-length Write before them, whose STag and TO no receiver checks (RFC 5040 section 5.2.1).
//!
//! The announcement lets the receiver check the whole range of a Write first. If the connection
//! ends because of the peer or the network, requests that were built complete with success, and the
//! queue pair waits in RTS for another connection. A Send without a receive waits for
//! `no_receive_timeout`. Once one has waited in vain, further ones are discarded at once until a
//! receive is taken.

use crate::request::{Op, Remote, Request};
use alloc::vec::Vec;
use uiw_ddp::STag;

/// STag of an announcement.
const ANNOUNCEMENT: STag = STag(0x7569_7734);
/// Bit in the TO of an announcement: Immediate Data follows the Write.
const IMMEDIATE: u64 = 1 << 48;

/// Write that is announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AnnouncedWrite {
    /// Number of bytes of all its segments.
    pub(crate) len: u32,
    /// True if Immediate Data follows, which takes a receive.
    pub(crate) immediate: bool,
}

impl AnnouncedWrite {
    /// Returns the announcement that must be sent before `request`.
    pub(crate) fn of_request(request: &Request) -> Option<Self> {
        let immediate = match request.op {
            Op::Write { .. } => false,
            Op::WriteImm { .. } => true,
            _ => return None,
        };
        (request.len > 0).then_some(Self { len: request.len, immediate })
    }

    pub(crate) fn to_write(self) -> Remote {
        let flags = if self.immediate { IMMEDIATE } else { 0 };
        Remote { stag: ANNOUNCEMENT, to: flags | u64::from(self.len) }
    }

    /// Returns the announcement in a zero-length Write, if there is one. Other bits of the TO are
    /// reserved.
    pub(crate) fn from_write(stag: STag, to: u64) -> Option<Self> {
        (stag == ANNOUNCEMENT).then_some(Self { len: to as u32, immediate: to & IMMEDIATE != 0 })
    }
}

/// Messages that the receiver discards. All fields keep their defaults on reliable streams.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Discards {
    /// True if an announced Write is due or being received, or if a Write is being discarded.
    pub(crate) tagged: bool,
    /// Announcement of the next Write.
    pub(crate) announced: Option<AnnouncedWrite>,
    /// True if Immediate Data follows the current Write.
    pub(crate) awaits_immediate: bool,
    /// True if the remaining segments of the current Write are discarded.
    pub(crate) write: bool,
    /// True if `immediate` or `send` is true.
    pub(crate) untagged: bool,
    /// True if the next Immediate Data message is discarded.
    immediate: bool,
    /// True if the rest of the current message on queue 0 is discarded.
    send: bool,
    /// True if a message has waited for a receive in vain, and no receive was taken since.
    /// Following messages do not wait.
    pub(crate) waits_no_more: bool,
}

impl Discards {
    /// Handles a zero-length Write, with or without an announcement.
    pub(crate) fn announce(&mut self, announced: Option<AnnouncedWrite>) {
        self.announced = announced;
        self.tagged = announced.is_some();
        self.write = false;
    }

    /// Records that a segment of a Write that was not announced is discarded.
    #[cold]
    pub(crate) fn discard_write(&mut self, last: bool) {
        self.write = !last;
        self.tagged = !last;
    }

    /// Handles the last segment of a Write that was announced or partly discarded.
    pub(crate) fn end_write(&mut self) {
        self.immediate = core::mem::take(&mut self.awaits_immediate) && self.write;
        self.untagged |= self.immediate;
        self.write = false;
        self.tagged = false;
    }

    /// Returns whether a message on queue 0 is to be discarded.
    pub(crate) fn takes_untagged(&self, immediate: bool) -> bool {
        self.send || immediate && self.immediate
    }

    /// Records that a segment on queue 0 is discarded, and with it the rest of its message.
    pub(crate) fn end_untagged(&mut self, last: bool) {
        self.send = !last;
        self.immediate &= !last;
        self.untagged = self.send || self.immediate;
    }
}

/// Maximum number of different STags of discarded unreliable Writes.
const MAX_REFUSED: usize = 64;

/// STags of unreliable Writes that were discarded. A program may continue to write to memory that
/// its peer has given up, but only to few regions; a peer that tries many STags is guessing them.
#[derive(Clone, Debug, Default)]
pub(crate) struct RefusedStags(Vec<STag>);

impl RefusedStags {
    /// Adds an STag. Returns false if there are too many.
    pub(crate) fn note(&mut self, stag: STag) -> bool {
        if self.0.contains(&stag) {
            return true;
        }
        let has_room = self.0.len() < MAX_REFUSED;
        if has_room {
            self.0.push(stag);
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcement_round_trips() {
        for (len, immediate) in [(1, false), (u32::MAX, true), (8 << 10, true)] {
            let announced = AnnouncedWrite { len, immediate };
            let Remote { stag, to } = announced.to_write();
            assert_eq!(AnnouncedWrite::from_write(stag, to), Some(announced));
        }
        assert_eq!(AnnouncedWrite::from_write(STag(0x7569_7731), 8), None);
    }
}
