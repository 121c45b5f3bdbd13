//! What one stream found last, and holds while a batch of its segments names it again and again.

use std::sync::Arc;

use ddp::STag;

use super::Table;
use crate::{LocalError, PdId, Pinned, Region, RemoteError, Right, StreamId};

/// What one stream's last look-ups found. An STag names a region only as long as that lives, so a live region with the right
/// STag is what the table would give. It keeps no octets of a region that has ended.
///
/// A batch of segments is spared a pin each: [`Table::hold_remote`] and [`Table::hold_local`] pin the region once and keep it so
/// until [`Recent::let_go`], another region or the end of this. Ending a region waits for that: the holder lets go at the end of
/// its batch, and before it ends a region itself.
#[derive(Default)]
pub struct Recent {
    remote: Kept,
    local: Kept,
}

#[derive(Default)]
struct Kept {
    region: Option<Arc<Region>>,
    /// A pin of the region is ours.
    held: bool,
}

impl Recent {
    /// Forgets what was found.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Gives back the pins of the batch. What was found is kept.
    pub fn let_go(&mut self) {
        self.remote.let_go();
        self.local.let_go();
    }
}

impl Kept {
    /// The live region of this STag: the one that was found last, or what `find` gives.
    fn find(&mut self, stag: STag, find: impl FnOnce() -> Option<Arc<Region>>) -> Option<&Arc<Region>> {
        if !self.region.as_ref().is_some_and(|region| region.stag() == stag && region.is_live()) {
            self.let_go();
            self.region = find();
        }
        self.region.as_ref()
    }

    /// A pin within ours; takes ours first if there is none.
    fn hold(&mut self, offset: usize, len: usize) -> Option<Pinned<'_>> {
        let region = self.region.as_ref()?;
        self.held = self.held || region.gate().enter();
        self.held.then(|| Pinned::lent(region, offset, len))
    }

    fn let_go(&mut self) {
        if std::mem::take(&mut self.held)
            && let Some(region) = &self.region
        {
            region.gate().leave();
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Table {
    /// As [`Table::remote`], pinned at once; a stream that names the same STag again and again is spared the look-up.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub fn pin_remote<'a>(
        &self,
        recent: &'a mut Recent,
        stag: STag,
        by: (StreamId, PdId),
        range: (u64, u32),
        right: Right,
    ) -> Result<Pinned<'a>, RemoteError> {
        let (region, offset) = self.recent_remote(&mut recent.remote, stag, by, range, right)?;
        Pinned::new(region, offset, range.1 as usize).ok_or(RemoteError::InvalidStag { stag })
    }

    /// As [`Table::pin_remote`]; the region stays pinned until `recent` lets go.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub fn hold_remote<'a>(
        &self,
        recent: &'a mut Recent,
        stag: STag,
        by: (StreamId, PdId),
        range: (u64, u32),
        right: Right,
    ) -> Result<Pinned<'a>, RemoteError> {
        let (_, offset) = self.recent_remote(&mut recent.remote, stag, by, range, right)?;
        recent.remote.hold(offset, range.1 as usize).ok_or(RemoteError::InvalidStag { stag })
    }

    fn recent_remote<'a>(
        &self,
        kept: &'a mut Kept,
        stag: STag,
        (stream, pd): (StreamId, PdId),
        (to, len): (u64, u32),
        right: Right,
    ) -> Result<(&'a Arc<Region>, usize), RemoteError> {
        let look_up = || {
            self.shard(stag).0.read().get(&stag.index()).and_then(|slot| slot.named_by_peer(stag)).cloned()
        };
        let region = kept.find(stag, look_up).ok_or(RemoteError::InvalidStag { stag })?;
        let offset = region.check_remote(stream, pd, to, len, right)?;
        Ok((region, offset))
    }

    /// As [`Table::local`], pinned at once; elements that name the same key again and again are spared the look-up.
    ///
    /// # Errors
    /// [`LocalError`].
    pub fn pin_local<'a>(
        &self,
        recent: &'a mut Recent,
        lkey: u32,
        pd: PdId,
        range: (u64, u32),
        write: bool,
    ) -> Result<Pinned<'a>, LocalError> {
        let (region, offset) = self.recent_local(&mut recent.local, lkey, pd, range, write)?;
        Pinned::new(region, offset, range.1 as usize).ok_or(LocalError::InvalidLkey { lkey })
    }

    /// As [`Table::pin_local`]; the region stays pinned until `recent` lets go.
    ///
    /// # Errors
    /// [`LocalError`].
    pub fn hold_local<'a>(
        &self,
        recent: &'a mut Recent,
        lkey: u32,
        pd: PdId,
        range: (u64, u32),
        write: bool,
    ) -> Result<Pinned<'a>, LocalError> {
        let (_, offset) = self.recent_local(&mut recent.local, lkey, pd, range, write)?;
        recent.local.hold(offset, range.1 as usize).ok_or(LocalError::InvalidLkey { lkey })
    }

    fn recent_local<'a>(
        &self,
        kept: &'a mut Kept,
        lkey: u32,
        pd: PdId,
        (addr, len): (u64, u32),
        write: bool,
    ) -> Result<(&'a Arc<Region>, usize), LocalError> {
        let stag = STag(lkey);
        let look_up =
            || self.shard(stag).0.read().get(&stag.index()).and_then(|slot| slot.named_by_us(stag)).cloned();
        let region = kept.find(stag, look_up).ok_or(LocalError::InvalidLkey { lkey })?;
        let offset = region.check_local(pd, addr, len, write)?;
        Ok((region, offset))
    }
}
