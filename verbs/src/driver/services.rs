//! The parts of a shard that a connection uses while it is served.

use crate::driver::{Driver, Pool, Shared, Timers};
use crate::notify::Wakes;
use crate::ud::Staging;
use std::sync::{Arc, Weak};
use uiw_counters::ShardCounters;
use uiw_stream::Time;

/// Bytes that one read asks for.
pub(crate) const RX_STAGING: usize = 256 << 10;
/// Page size. On processors with FSRM the kernel copies slowly to a destination whose page offset
/// is up to 31 bytes above that of the source.
pub(crate) const PAGE: usize = 4096;
/// Bytes of receive staging: those of one read, at any page offset.
pub(crate) const STAGING_LEN: usize = RX_STAGING + 2 * PAGE;

/// The parts of the core that a connection uses while it is served.
pub(crate) struct Services {
    pub(crate) driver: Weak<Driver>,
    pub(crate) shared: Arc<Shared>,
    /// Memory table of `shared`.
    pub(crate) table: Arc<uiw_mem::Table>,
    /// The time at the start of this round.
    pub(crate) now: Time,
    pub(crate) timers: Timers,
    pub(crate) wakes: Wakes,
    pub(crate) pool: Pool,
    pub(crate) counters: ShardCounters,
    /// Receive staging that all connections share.
    pub(crate) staging: Vec<u8>,
    /// Reads, and batches to send, of one connection before the next one's turn.
    pub(crate) turn: usize,
    /// Bytes that connections have moved in this round.
    pub(crate) moved: usize,
    /// Buffers in which datagrams are built and received: made at the first use, and taken out
    /// during one.
    pub(crate) datagrams: Option<Box<Staging>>,
    /// A connection was not read, as the receive memory budget has no room.
    pub(crate) is_short: bool,
}
