//! Memory that a program is about to unmap.

use core::ops::Range;
use core::time::Duration;
use std::sync::Arc;

use super::{Slot, Table};
use crate::Region;

/// The longest wait for a moment in which no thread uses a region. Pins last for one copy or system call, so a region that is
/// pinned for so long is pinned by several threads in turn.
const LONGEST_WAIT: Duration = Duration::from_millis(100);

impl Table {
    /// Takes the bytes at addresses of `range` out of every region of [`crate::Memory::foreign`] memory, with the windows bound to it: an
    /// access to them fails from now on, also when something else is mapped there; the rest of the region stays. When this
    /// returns, no thread touches these bytes any more. The calling thread must hold no pin.
    ///
    /// A region that several threads use without a pause is ended as a whole.
    pub fn discard(&self, range: Range<usize>) {
        let mut found: Vec<Arc<Region>> = Vec::new();
        for shard in &self.shards {
            let slots = shard.0.read();
            let regions = slots.values().filter_map(|slot| match slot {
                Slot::Region(region) | Slot::Entry(_, Some(region)) => Some(region),
                _ => None,
            });
            found.extend(regions.filter(|region| region.discard(&range)).cloned());
        }
        for region in found {
            if !region.pin_count().wait_unpinned(LONGEST_WAIT) {
                region.pin_count().revoke();
                region.pin_count().drain();
            }
        }
    }
}
