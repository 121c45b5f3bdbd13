//! Counters of messages, bytes, waits and Terminates in a snapshot.

use crate::layout::{WaitReason, conn};

/// Class of counted messages, by operation and direction.
///
/// For Reads and atomics, the responses are counted, not the requests. Bytes thus count in the
/// direction in which they travel, and the bytes sent by one end are those received by the other.
/// Writes and Reads without payload are not counted, because the protocol also uses them
/// internally. Immediate Data counts as a Send without payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum TrafficClass {
    /// Sends to the peer.
    SendSent = 0,
    /// Sends of the peer.
    SendReceived = 1,
    /// RDMA Writes to the peer.
    WriteSent = 2,
    /// RDMA Writes of the peer.
    WriteReceived = 3,
    /// Read Responses to the peer.
    ReadSent = 4,
    /// Read Responses of the peer.
    ReadReceived = 5,
    /// Atomics of the peer that this end has answered.
    AtomicSent = 6,
    /// Atomics that the peer has answered.
    AtomicReceived = 7,
}

/// Messages and their payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Complete messages.
    pub messages: u64,
    /// Bytes of payload, including those of incomplete messages.
    pub bytes: u64,
}

/// Messages in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Directions {
    /// Messages and bytes framed in FPDUs for the peer. TCP has accepted all of them except at most
    /// one batch (1 MiB).
    pub sent: Count,
    /// Messages and bytes placed at this end.
    pub received: Count,
}

/// Traffic by operation (see [`TrafficClass`] for the rules).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operations {
    /// Sends, with or without immediate.
    pub send: Directions,
    /// RDMA Writes.
    pub write: Directions,
    /// Responses to RDMA Reads.
    pub read: Directions,
    /// Responses to atomics, with eight bytes each.
    pub atomic: Directions,
}

impl Operations {
    /// Returns the traffic of each operation, with its name.
    #[must_use]
    pub fn named(&self) -> [(&'static str, Directions); 4] {
        [("send", self.send), ("write", self.write), ("read", self.read), ("atomic", self.atomic)]
    }

    /// Returns the sum over all operations.
    #[must_use]
    pub fn total(&self) -> Directions {
        let mut total = Directions::default();
        for (_, directions) in self.named() {
            total.sent.add(directions.sent);
            total.received.add(directions.received);
        }
        total
    }

    /// Parses `words`, which contains messages and bytes of each [`TrafficClass`].
    pub(crate) fn parse(words: [u64; conn::TRAFFIC_WORDS]) -> Self {
        let count = |which: TrafficClass| {
            let at = 2 * which as usize;
            Count { messages: words[at], bytes: words[at + 1] }
        };
        let both = |sent, received| Directions { sent: count(sent), received: count(received) };
        Self {
            send: both(TrafficClass::SendSent, TrafficClass::SendReceived),
            write: both(TrafficClass::WriteSent, TrafficClass::WriteReceived),
            read: both(TrafficClass::ReadSent, TrafficClass::ReadReceived),
            atomic: both(TrafficClass::AtomicSent, TrafficClass::AtomicReceived),
        }
    }

    fn each(&mut self, other: &Self, change: impl Fn(&mut u64, u64)) {
        let pairs = [
            (&mut self.send, other.send),
            (&mut self.write, other.write),
            (&mut self.read, other.read),
            (&mut self.atomic, other.atomic),
        ];
        for (mine, other) in pairs {
            for (mine, other) in
                [(&mut mine.sent, other.sent), (&mut mine.received, other.received)]
            {
                change(&mut mine.messages, other.messages);
                change(&mut mine.bytes, other.bytes);
            }
        }
    }

    /// Adds the traffic of another part.
    pub fn add(&mut self, other: &Self) {
        self.each(other, |mine, other| *mine = mine.wrapping_add(other));
    }

    /// Subtracts the traffic of an `earlier` snapshot, or of a part. Counts that would be negative
    /// are zero.
    #[must_use]
    pub fn since(mut self, earlier: &Self) -> Self {
        self.each(earlier, |mine, earlier| *mine = mine.saturating_sub(earlier));
        self
    }
}

impl Count {
    pub(crate) fn add(&mut self, other: Self) {
        self.messages = self.messages.wrapping_add(other.messages);
        self.bytes = self.bytes.wrapping_add(other.bytes);
    }
}

/// Number of times that connections waited, by reason ([`WaitReason`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitCounts {
    /// Waits for an answer while ORD allows no more outstanding Reads and atomics.
    pub credit: u64,
    /// Waits of a peer's Send for a receive.
    pub receive: u64,
    /// Waits for room in the receive memory budget.
    pub memory: u64,
}

impl WaitCounts {
    pub(crate) fn parse(words: [u64; conn::WAITS_WORDS]) -> Self {
        let of = |wait: WaitReason| words[wait as usize];
        Self {
            credit: of(WaitReason::Credit),
            receive: of(WaitReason::Receive),
            memory: of(WaitReason::Memory),
        }
    }

    /// Adds the waits of another part.
    pub fn add(&mut self, other: &Self) {
        self.credit = self.credit.wrapping_add(other.credit);
        self.receive = self.receive.wrapping_add(other.receive);
        self.memory = self.memory.wrapping_add(other.memory);
    }
}

/// Terminates of one code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminateCount {
    /// Layer, error type and error code (RFC 5040 section 4.8). `None` for all codes together for
    /// which there was no room.
    pub code: Option<(u8, u8, u8)>,
    /// Number of Terminates sent.
    pub sent: u64,
    /// Number of Terminates received.
    pub received: u64,
}
