//! State that the shards of a device share: the table of STags, limits and counts, numbers, and the
//! receive memory budget.
//!
//! # Receive memory
//!
//! Bytes that connections keep between rounds (the beginning of an FPDU, everything after a Send
//! that waits for a receive) count against `Limits::max_held_bytes`. The beginning of a long FPDU
//! stays in the staging buffer into which it was read, and then the whole buffer counts. Once a
//! quarter of the budget is used, it is copied out. Once seven eighths of it are used, connections
//! that keep no more than the first bytes of an FPDU are read by whole FPDUs only: the first 512
//! bytes tell the length, and the stack reports when the FPDU is complete
//! (`StreamExtensions::readable`; SO_RCVLOWAT for kernel TCP). An eighth of the budget is reserved
//! for those Sends on such connections that wait for a receive. Connections whose peers have been
//! silent inside an FPDU for at least a second are ended, longest first, on every shard, until
//! there is room. So peers that each send the beginning of an FPDU do not block others, and each of
//! them keeps at most 1 KiB beyond the budget. Streams over TLS, whose stack cannot report what has
//! arrived, wait until there is room.

use crate::driver::services::{RX_STAGING, STAGING_LEN};
use crate::driver::trim::Trim;
use crate::error::{Error, Result};
use crate::faults::{Call, Faults};
use crate::options::{Limits, ProgressHooks};
use crate::ud::OwnSockets;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use uiw_counters::DeviceCounters;

/// Numbers of a device's objects.
#[derive(Default)]
pub(crate) struct ObjectCounts {
    pub(crate) qp: ObjectCount,
    pub(crate) cq: ObjectCount,
    pub(crate) srq: ObjectCount,
    pub(crate) pd: ObjectCount,
}

/// Number of objects of one kind.
#[derive(Default)]
pub(crate) struct ObjectCount(AtomicU32);

impl ObjectCount {
    /// Counts another object, unless there are `limit` already. `what` names the number.
    pub(crate) fn take(&self, what: &'static str, limit: u32) -> Result<()> {
        let before = self.0.fetch_add(1, Ordering::AcqRel);
        if before >= limit {
            self.release();
            let asked = u64::from(before) + 1;
            return Err(Error::Limit { what, asked, limit: limit.into() });
        }
        Ok(())
    }

    pub(crate) fn release(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Limits {
    /// Checks a quantity against its limit.
    ///
    /// # Errors
    /// [`Error::Zero`] if the quantity is zero; [`Error::Limit`] if it exceeds the limit.
    pub fn check(&self, what: &'static str, asked: u64, limit: u64) -> Result<()> {
        if asked == 0 {
            return Err(Error::Zero { what });
        }
        if asked > limit {
            return Err(Error::Limit { what, asked, limit });
        }
        Ok(())
    }
}

/// Receive memory budget of all connections of a device: bytes that connections keep between
/// rounds, such as the beginning of an FPDU, or everything after a Send that waits for a receive.
/// An eighth of it is reserved for Sends that wait on connections of which only whole FPDUs are
/// read because the rest is used up.
#[derive(Debug)]
pub(crate) struct Budget {
    held: AtomicUsize,
    of_whole: AtomicUsize,
    limit: usize,
    /// Limit of `held`, which is a part of `limit`.
    held_limit: usize,
    /// Number of bytes of incomplete long messages.
    unfinished: AtomicUsize,
    unfinished_limit: usize,
}

/// Memory of an incomplete long message, charged to a [`Budget`] until it is dropped.
pub(crate) struct MessageCharge {
    shared: Arc<Shared>,
    bytes: usize,
    /// Length of the message at which it counts as having made progress again.
    next_step: usize,
}

/// Number of bytes of a long message that count as progress. While memory is short, a peer that
/// sends less per second (`PARTIAL_TIMEOUT`) counts as silent, so that one that sends byte by byte
/// does not keep the memory from others.
const PROGRESS: usize = 64 << 10;

impl MessageCharge {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), bytes: 0, next_step: 0 }
    }

    /// Records that the message now has `len` bytes. Returns true if it has grown by at least
    /// [`PROGRESS`] bytes since the last call that returned true.
    pub(crate) fn note_progress(&mut self, len: usize) -> bool {
        let has = len >= self.next_step;
        if has {
            self.next_step = len + PROGRESS;
        }
        has
    }

    /// Charges `bytes` in all. Returns false if there is not enough room.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        let budget = &self.shared.budget;
        let more = bytes.saturating_sub(self.bytes);
        let grown =
            |all: usize| all.checked_add(more).filter(|all| *all <= budget.unfinished_limit);
        let is_charged =
            budget.unfinished.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).is_ok();
        if is_charged {
            self.bytes += more;
        }
        is_charged
    }
}

impl Drop for MessageCharge {
    fn drop(&mut self) {
        self.shared.budget.unfinished.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Bytes of a [`Budget`] that one connection keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldBytes {
    /// Bytes of a connection whose socket is read without restriction.
    pub(crate) held: usize,
    /// Bytes of a connection of which only whole FPDUs are read.
    pub(crate) of_whole: usize,
}

impl Budget {
    pub(crate) fn new(limit: usize, unfinished_limit: usize) -> Self {
        Self {
            held: AtomicUsize::new(0),
            of_whole: AtomicUsize::new(0),
            limit,
            // A connection may be read while no other one keeps bytes, also if the budget has room
            // for one read only.
            held_limit: (limit - limit / 8).max(limit.min(RX_STAGING)),
            unfinished: AtomicUsize::new(0),
            unfinished_limit,
        }
    }

    /// Returns whether long messages use more than three quarters of their memory, so that those
    /// whose peers are silent must be ended.
    pub(crate) fn is_short_of_messages(&self) -> bool {
        self.unfinished.load(Ordering::Relaxed) > self.unfinished_limit / 4 * 3
    }

    /// Returns whether a connection whose socket is read without restriction may keep another
    /// `bytes`.
    #[inline]
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.held.load(Ordering::Relaxed) + bytes <= self.held_limit
    }

    /// Returns whether a connection of which only whole FPDUs are read may keep another `bytes`.
    pub(crate) fn has_room_for_whole(&self, bytes: usize) -> bool {
        self.of_whole.load(Ordering::Relaxed) + bytes <= self.limit / 8
    }

    /// Returns whether a connection, which keeps `own` bytes so far, may keep a staging buffer with
    /// its partial FPDU. A few thousand bytes from a peer are enough to have a whole buffer kept, so
    /// three quarters of the budget remain for others.
    pub(crate) fn has_room_for_staging(&self, own: usize) -> bool {
        let others = self.held.load(Ordering::Relaxed).saturating_sub(own);
        others + STAGING_LEN <= self.limit / 4
    }

    /// Returns whether enough is free that connections with partial FPDUs need no longer be ended:
    /// room for two reads or, of a small budget, three quarters and room for one read.
    pub(crate) fn is_relieved(&self) -> bool {
        self.has_room(2 * RX_STAGING)
            || self.has_room(RX_STAGING) && self.held.load(Ordering::Relaxed) <= self.limit / 4
    }

    /// Updates the bytes that one connection keeps.
    pub(crate) fn count(&self, before: HeldBytes, after: HeldBytes) {
        for (total, before, after) in [
            (&self.held, before.held, after.held),
            (&self.of_whole, before.of_whole, after.of_whole),
        ] {
            if before < after {
                total.fetch_add(after - before, Ordering::Relaxed);
            } else if before > after {
                total.fetch_sub(before - after, Ordering::Relaxed);
            }
        }
    }
}

/// Entry for one connection in the set of addresses of a device's connections ([`Shared::ends`]).
/// Dropping it removes the entry.
pub(crate) struct AddressEntry {
    shared: Arc<Shared>,
    addresses: (SocketAddr, SocketAddr),
}

impl AddressEntry {
    /// Adds the addresses. Returns `None` if another connection of the device has the same ones.
    pub(crate) fn new(shared: &Arc<Shared>, local: SocketAddr, peer: SocketAddr) -> Option<Self> {
        let addresses = (local, peer);
        let added = shared.ends.lock().insert(addresses);
        added.then(|| Self { shared: Arc::clone(shared), addresses })
    }
}

impl Drop for AddressEntry {
    fn drop(&mut self) {
        self.shared.ends.lock().remove(&self.addresses);
    }
}

/// State that all shards of a device use.
pub(crate) struct Shared {
    pub(crate) table: Arc<uiw_mem::Table>,
    pub(crate) counts: ObjectCounts,
    pub(crate) limits: Limits,
    /// Numbers of existing queue pairs.
    pub(crate) qps: Mutex<HashSet<u32>>,
    pub(crate) budget: Budget,
    pub(crate) progress_hooks: Option<ProgressHooks>,
    pub(crate) trim: Arc<Trim>,
    pub(crate) counters: DeviceCounters,
    /// Faults to inject, if any.
    pub(crate) faults: Option<Arc<Faults>>,
    /// True if the wire is encrypted.
    pub(crate) encrypts: bool,
    /// Addresses of TCP connections, local one first. Shows which connections end at this device.
    ends: Mutex<HashSet<(SocketAddr, SocketAddr)>>,
    /// Sockets of the device's datagram ports. Shows which datagrams stay within the device.
    pub(crate) datagram_sockets: OwnSockets,
    next_num: AtomicU32,
    next_stream: AtomicU64,
}

impl Shared {
    pub(crate) fn new(
        limits: Limits,
        progress_hooks: Option<ProgressHooks>,
        counters: DeviceCounters,
        faults: Option<Arc<Faults>>,
        encrypts: bool,
    ) -> Self {
        Self {
            table: uiw_mem::Table::new(uiw_mem::Limits { max_entries: limits.max_mr }),
            counts: ObjectCounts::default(),
            budget: Budget::new(limits.max_held_bytes, limits.max_unfinished_bytes),
            limits,
            qps: Mutex::default(),
            progress_hooks,
            trim: Arc::default(),
            counters,
            faults,
            encrypts,
            ends: Mutex::default(),
            datagram_sockets: OwnSockets::default(),
            next_num: AtomicU32::new(1),
            next_stream: AtomicU64::new(1),
        }
    }

    /// Applies injected faults to a call of the application.
    ///
    /// # Errors
    /// [`Error::Injected`] if the plan makes the call fail.
    pub(crate) fn call(&self, call: Call) -> Result<()> {
        self.faults.as_ref().map_or(Ok(()), |faults| faults.call(call))
    }

    /// Returns a number for an object, which has no meaning on the wire.
    pub(crate) fn next_num(&self) -> u32 {
        self.next_num.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns whether the other end of the connection belongs to this device as well.
    pub(crate) fn has_both_ends(&self, local: SocketAddr, peer: SocketAddr) -> bool {
        local == peer || self.ends.lock().contains(&(peer, local))
    }

    /// Returns the identifier of a stream, which is never reused.
    pub(crate) fn next_stream(&self) -> uiw_mem::StreamId {
        uiw_mem::StreamId(self.next_stream.fetch_add(1, Ordering::Relaxed))
    }
}
