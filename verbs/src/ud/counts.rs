//! Counters of datagrams.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one datagram port since it was bound: datagrams that were passed on, and datagrams
/// that were dropped, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatagramCounts {
    /// Sends that UDP has accepted.
    pub sent: u64,
    /// Sends that completed although UDP refused the datagram, because it is too long for the
    /// interface or there is no route.
    pub unsent: u64,
    /// Receives that were completed with a message.
    pub received: u64,
    /// Dropped: the CRC does not match.
    pub bad_crc: u64,
    /// Dropped: another rule of the format is violated.
    pub malformed: u64,
    /// Dropped: the source address or port does not match the source QPN.
    pub bad_source: u64,
    /// Dropped: no queue pair has the number, or it is not ready to receive.
    pub no_queue_pair: u64,
    /// Dropped: the Q_Key is not the queue pair's.
    pub bad_qkey: u64,
    /// Dropped: no receive was posted.
    pub no_receive: u64,
    /// Datagrams not placed because the receive was too short or its memory not valid, which puts
    /// the queue pair into the error state.
    pub bad_receive: u64,
}

impl DatagramCounts {
    /// Returns the number of datagrams that arrived and were dropped.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.bad_crc
            + self.malformed
            + self.bad_source
            + self.no_queue_pair
            + self.bad_qkey
            + self.no_receive
            + self.bad_receive
    }
}

/// Counter to increment.
#[derive(Clone, Copy)]
pub(super) enum Count {
    Sent,
    Unsent,
    Received,
    BadCrc,
    Malformed,
    BadSource,
    NoQueuePair,
    BadQkey,
    NoReceive,
    BadReceive,
}

/// Counters that are written only while the shard's lock is held.
#[derive(Default)]
pub(super) struct PortCounters([AtomicU64; Count::BadReceive as usize + 1]);

impl PortCounters {
    pub(super) fn add(&self, what: Count, count: u64) {
        let cell = &self.0[what as usize];
        // Only one thread at a time writes, because it holds the lock of the shard.
        cell.store(cell.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> DatagramCounts {
        let get = |what: Count| self.0[what as usize].load(Ordering::Relaxed);
        DatagramCounts {
            sent: get(Count::Sent),
            unsent: get(Count::Unsent),
            received: get(Count::Received),
            bad_crc: get(Count::BadCrc),
            malformed: get(Count::Malformed),
            bad_source: get(Count::BadSource),
            no_queue_pair: get(Count::NoQueuePair),
            bad_qkey: get(Count::BadQkey),
            no_receive: get(Count::NoReceive),
            bad_receive: get(Count::BadReceive),
        }
    }
}
