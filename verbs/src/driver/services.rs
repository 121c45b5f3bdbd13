//! Parts of a shard that a connection uses while it is served.

use crate::cq::Cqe;
use crate::driver::{Driver, Pool, Shared, Timers};
use crate::notify::Wakes;
use crate::ud::Staging;
use std::sync::{Arc, Weak};
use uiw_counters::ShardCounters;
use uiw_stream::{BatchLength, Time};

/// Maximum number of bytes of one read.
pub(crate) const RX_STAGING: usize = 256 << 10;
/// Page size.
pub(crate) const PAGE: usize = 4096;
/// Length of the staging buffer: the bytes of one read, at any page offset.
pub(crate) const STAGING_LEN: usize = RX_STAGING + 2 * PAGE;

/// The parts of the core that a connection uses while it is served.
pub(crate) struct Services {
    pub(crate) driver: Weak<Driver>,
    pub(crate) shared: Arc<Shared>,
    /// Memory table of `shared`.
    pub(crate) table: Arc<uiw_mem::Table>,
    /// Time of the start of this round.
    pub(crate) now: Time,
    pub(crate) timers: Timers,
    pub(crate) wakes: Wakes,
    pub(crate) pool: Pool,
    /// Completions of receives, collected during one call of a stream and empty between calls.
    pub(crate) received: Vec<Cqe>,
    pub(crate) counters: ShardCounters,
    /// Staging buffers for receiving that no connection keeps.
    pub(crate) staging: Vec<Vec<u8>>,
    /// Number of reads, and of batches to send, of one connection before the next one is served.
    pub(crate) turn: usize,
    /// Maximum length of a batch of a connection whose socket has accepted its whole last batch.
    pub(crate) longest_batch: BatchLength,
    /// Number of bytes that connections have moved in this round, or since the last post began.
    pub(crate) moved: usize,
    /// Buffers in which datagrams are built and received. Allocated when first used, and taken out
    /// while they are used.
    pub(crate) datagrams: Option<Box<Staging>>,
    /// True if a connection was not read because the receive memory budget is exhausted.
    pub(crate) is_short: bool,
}

/// Number of staging buffers that are kept for reuse.
const SPARE_STAGING: usize = 2;

impl Services {
    /// Returns a buffer of [`STAGING_LEN`] bytes.
    pub(crate) fn take_staging(&mut self) -> Vec<u8> {
        self.staging.pop().unwrap_or_else(|| vec![0; STAGING_LEN])
    }

    pub(crate) fn give_staging(&mut self, staging: Vec<u8>) {
        if self.staging.len() < SPARE_STAGING {
            self.staging.push(staging);
        }
    }
}
