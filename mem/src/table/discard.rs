//! Memory that a program is about to unmap.

use core::ops::Range;
use core::time::Duration;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use arrayvec::ArrayVec;
use parking_lot::RwLockReadGuard;

use super::{Slots, Table, TableShard, TableSlot};
use crate::Region;

/// The longest wait for a moment in which no thread uses a region. Pins last for one copy or system
/// call, so a region that is pinned for so long is pinned by several threads in turn, or by one
/// that waits for the calling thread.
const LONGEST_WAIT: Duration = Duration::from_millis(100);
/// The longest wait for the pins of a region that was ended.
const LONGEST_DRAIN: Duration = Duration::from_secs(1);
/// Regions of one shard that are waited for without its lock. Several have the same bytes seldom.
const FEW: usize = 16;

impl Table {
    /// Takes the pages that have addresses of `range` out of every region of
    /// [`crate::Memory::foreign`] memory, with the windows bound to it: an access to them fails
    /// from now on, also when something else is mapped there; the rest of the region stays. When
    /// this returns, no thread touches these bytes any more.
    ///
    /// A region that several threads use without a pause is ended as a whole.
    ///
    /// Allocators unmap memory with their locks held, on any thread, also on one that has a lock of
    /// this table or a pin. So this allocates nothing, parks nowhere, and waits for a bounded time:
    /// a lock, or a pin, that is held for longer is held by this thread, or by one that waits for
    /// the allocator.
    pub fn discard(&self, range: Range<usize>) {
        for shard in &self.shards {
            let Some(slots) = read(shard) else { continue };
            let mut found = ArrayVec::<Arc<Region>, FEW>::new();
            let regions = slots.values().filter_map(|slot| match slot {
                TableSlot::Region(region) | TableSlot::Entry(_, Some(region)) => Some(region),
                _ => None,
            });
            for region in regions.filter(|region| region.discard(&range)) {
                if found.try_push(Arc::clone(region)).is_err() {
                    wait_unused(region);
                }
            }
            drop(slots);
            for region in found {
                wait_unused(&region);
            }
        }
    }
}

fn wait_unused(region: &Region) {
    if !region.pin_count().wait_unpinned(LONGEST_WAIT) {
        region.pin_count().revoke();
        region.pin_count().wait_unpinned(LONGEST_DRAIN);
    }
}

/// The shard, unless its lock is held for long.
fn read(shard: &TableShard) -> Option<RwLockReadGuard<'_, Slots>> {
    let mut deadline = None;
    loop {
        if let Some(slots) = shard.0.try_read() {
            return Some(slots);
        }
        if *deadline.get_or_insert_with(|| Instant::now() + LONGEST_WAIT) <= Instant::now() {
            return None;
        }
        thread::yield_now();
    }
}
