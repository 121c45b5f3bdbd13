//! Lookups for work requests that contain STags instead of objects.

use std::sync::Arc;

use uiw_ddp::STag;

use super::{Entry, Table, TableSlot};
use crate::Region;

impl Table {
    /// Returns the valid region with exactly this STag, but not the memory of a window or a
    /// fast-register STag.
    pub fn region(&self, stag: STag) -> Option<Arc<Region>> {
        match self.shard(stag).0.read().get(&stag.index()) {
            Some(TableSlot::Region(region)) if region.stag() == stag && region.is_live() => {
                Some(region.clone())
            }
            _ => None,
        }
    }

    /// Returns the window or fast-register STag with this index, whatever its current key byte is.
    pub fn entry(&self, stag: STag) -> Option<Arc<Entry>> {
        match self.shard(stag).0.read().get(&stag.index()) {
            Some(TableSlot::Entry(entry, _)) => Some(entry.clone()),
            _ => None,
        }
    }
}
