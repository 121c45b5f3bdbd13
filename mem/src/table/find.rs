//! Looking up what an STag names, for work requests that carry STags instead of objects.

use std::sync::Arc;

use uiw_ddp::STag;

use super::{Entry, Table, TableSlot};
use crate::Region;

impl Table {
    /// The live region with exactly this STag; not what a window or a fast-register STag stands
    /// for.
    pub fn region(&self, stag: STag) -> Option<Arc<Region>> {
        match self.shard(stag).0.read().get(&stag.index()) {
            Some(TableSlot::Region(region)) if region.stag() == stag && region.is_live() => {
                Some(region.clone())
            }
            _ => None,
        }
    }

    /// The window or fast-register STag with this index, whatever its key byte is now.
    pub fn entry(&self, stag: STag) -> Option<Arc<Entry>> {
        match self.shard(stag).0.read().get(&stag.index()) {
            Some(TableSlot::Entry(entry, _)) => Some(entry.clone()),
            _ => None,
        }
    }
}
