//! Counters of UD queue pairs.

use crate::counts::{Count, Directions};
use crate::layout::{conn, shard};
use std::net::SocketAddr;

/// Reason why a datagram of a queue pair was not sent or not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum DropReason {
    /// UDP refused to send it.
    Unsent = conn::UNSENT,
    /// The Q_Key does not match the queue pair.
    BadQkey = conn::UNSENT + 1,
    /// No receive was posted.
    NoReceive = conn::UNSENT + 2,
    /// The receive was too short or its memory not valid.
    BadReceive = conn::UNSENT + 3,
}

/// Reason why a received datagram was dropped that belongs to no queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum RejectReason {
    /// The CRC does not match.
    BadCrc = shard::DATAGRAMS,
    /// Another rule of the format is violated.
    Malformed = shard::DATAGRAMS + 1,
    /// The source address or port does not match the source QPN.
    BadSource = shard::DATAGRAMS + 2,
    /// No queue pair has the number, or it is not ready to receive.
    NoQueuePair = shard::DATAGRAMS + 3,
}

const _: () =
    assert!(RejectReason::NoQueuePair as usize - shard::DATAGRAMS < shard::DATAGRAM_WORDS);

/// Datagram counters of a queue pair, a shard or a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Datagrams {
    /// Messages and payload that UDP has accepted, and that completed a receive.
    pub traffic: Directions,
    /// Part of `traffic` that was sent to queue pairs of the same device or to multicast groups, or
    /// received from queue pairs of the same device.
    pub same_device: Directions,
    /// Sends that completed although UDP refused the datagram.
    pub unsent: u64,
    /// Datagrams dropped because the Q_Key does not match the queue pair.
    pub bad_qkey: u64,
    /// Datagrams dropped because no receive was posted.
    pub no_receive: u64,
    /// Datagrams not placed because the receive was too short or its memory not valid, which ends
    /// the queue pair.
    pub bad_receive: u64,
    /// Datagrams dropped because the CRC does not match. Only counted for a shard or device.
    pub bad_crc: u64,
    /// Datagrams dropped because another rule of the format is violated. Only counted for a shard
    /// or device.
    pub malformed: u64,
    /// Datagrams dropped because the source address or port does not match the source QPN. Only
    /// counted for a shard or device.
    pub bad_source: u64,
    /// Datagrams dropped because no queue pair has the number, or it is not ready to receive. Only
    /// counted for a shard or device.
    pub no_queue_pair: u64,
}

impl Datagrams {
    /// Returns the number of datagrams that arrived but were not delivered, by cause.
    #[must_use]
    pub fn dropped(&self) -> [(&'static str, u64); 7] {
        [
            ("bad_qkey", self.bad_qkey),
            ("no_receive", self.no_receive),
            ("bad_receive", self.bad_receive),
            ("bad_crc", self.bad_crc),
            ("malformed", self.malformed),
            ("bad_source", self.bad_source),
            ("no_queue_pair", self.no_queue_pair),
        ]
    }

    /// Returns the messages exchanged with queue pairs of other devices.
    #[must_use]
    pub fn with_other_devices(&self) -> Directions {
        let beside = |all: Count, part: Count| Count {
            messages: all.messages.saturating_sub(part.messages),
            bytes: all.bytes.saturating_sub(part.bytes),
        };
        Directions {
            sent: beside(self.traffic.sent, self.same_device.sent),
            received: beside(self.traffic.received, self.same_device.received),
        }
    }

    /// Adds other counters.
    pub fn add(&mut self, other: &Self) {
        for (mine, other) in
            [(&mut self.traffic, &other.traffic), (&mut self.same_device, &other.same_device)]
        {
            mine.sent.add(other.sent);
            mine.received.add(other.received);
        }
        for (mine, other) in [
            (&mut self.unsent, other.unsent),
            (&mut self.bad_qkey, other.bad_qkey),
            (&mut self.no_receive, other.no_receive),
            (&mut self.bad_receive, other.bad_receive),
            (&mut self.bad_crc, other.bad_crc),
            (&mut self.malformed, other.malformed),
            (&mut self.bad_source, other.bad_source),
            (&mut self.no_queue_pair, other.no_queue_pair),
        ] {
            *mine = mine.wrapping_add(other);
        }
    }

    /// Parses the counters of a block from [`conn::TRAFFIC`] on.
    pub(crate) fn parse(counts: &[u64; conn::COUNTS]) -> Self {
        let at = |at: usize| counts[at - conn::TRAFFIC];
        let count = |first: usize| Count { messages: at(first), bytes: at(first + 1) };
        let both = |first| Directions { sent: count(first), received: count(first + 2) };
        Self {
            traffic: both(conn::DATAGRAMS),
            same_device: both(conn::DATAGRAMS_SAME_DEVICE),
            unsent: at(DropReason::Unsent as usize),
            bad_qkey: at(DropReason::BadQkey as usize),
            no_receive: at(DropReason::NoReceive as usize),
            bad_receive: at(DropReason::BadReceive as usize),
            ..Self::default()
        }
    }
}

/// Counters of one UD queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramQueuePair {
    /// Index of the shard.
    pub shard: usize,
    /// Number of the queue pair.
    pub qp_num: u32,
    /// First address of its port.
    pub local: SocketAddr,
    /// Time of creation, in nanoseconds since 1970.
    pub began_ns: u64,
    /// Datagrams sent, received and dropped.
    pub datagrams: Datagrams,
}
