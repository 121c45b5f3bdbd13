//! Removes memory that a program is about to unmap.

use core::ops::Range;
use core::time::Duration;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use arrayvec::ArrayVec;
use parking_lot::RwLockReadGuard;

use super::{Slots, Table, TableShard, TableSlot};
use crate::Region;

/// Maximum time to wait for a moment in which no thread uses a region. A pin lasts for one copy or
/// system call, so a region that stays pinned for longer is used by several threads in turn, or by
/// a thread that waits for the calling one.
const LONGEST_WAIT: Duration = Duration::from_millis(100);
/// Maximum time to wait for the pins of a region that was ended.
const LONGEST_DRAIN: Duration = Duration::from_secs(1);
/// Maximum number of regions of a shard that are waited for after its lock was released; for others
/// the lock is held meanwhile. Regions rarely share bytes.
const FEW: usize = 16;

impl Table {
    /// Removes the pages that overlap the addresses `range` from all regions of
    /// [`crate::Memory::foreign`] memory and the windows bound to them. Accesses to these pages
    /// fail from now on, even if other memory is mapped there; the rest of a region stays
    /// accessible. When this returns, no thread accesses the pages any more.
    ///
    /// A region that several threads use continuously is ended as a whole.
    ///
    /// Allocators unmap memory while they hold their own locks, on any thread, even one that holds
    /// a lock of this table or a pin. So this function neither allocates, frees nor parks, and waits
    /// for a limited time: a lock or pin that is held for longer is held by this thread, or by a
    /// thread that waits for the allocator. The regions of a shard whose lock is held for longer are
    /// left out. Callers that must prevent later accesses to them mark the pages beforehand with
    /// [`PageState::discard`](crate::PageState::discard), which takes no lock.
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
            for region in &found {
                wait_unused(region);
            }
            let slots = if found.is_empty() { None } else { read(shard) };
            for region in found {
                let index = region.stag().index();
                match slots.as_ref().and_then(|slots| slots.get(&index)) {
                    // The table has another reference, as long as the shard is locked.
                    Some(TableSlot::Region(now) | TableSlot::Entry(_, Some(now)))
                        if Arc::ptr_eq(now, &region) => {}
                    _ => self.keep(region),
                }
            }
        }
    }

    /// Keeps a reference, which may be the last one, until the next registration. Without room for
    /// it, the region is leaked.
    fn keep(&self, region: Arc<Region>) {
        match self.discarded.try_lock() {
            Some(mut discarded) if !discarded.is_full() => discarded.push(region),
            _ => std::mem::forget(region),
        }
    }
}

fn wait_unused(region: &Region) {
    if !region.pin_count().wait_unpinned(LONGEST_WAIT) {
        region.pin_count().revoke();
        region.pin_count().wait_unpinned(LONGEST_DRAIN);
    }
}

/// Locks the shard, unless its lock is held for long.
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
