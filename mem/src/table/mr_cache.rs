//! What one stream found last, and holds while a batch of its segments names it repeatedly.

use std::fmt;
use std::sync::Arc;

use uiw_ddp::STag;

use super::{Table, TableSlot};
use crate::copy;
use crate::{LocalError, MemoryGone, PdId, PinnedSpan, Region, RemoteError, Right, StreamId};

/// Results of one stream's last look-ups. An STag names a region only as long as that lives, so a
/// live region with the right STag is what the table would give. It keeps no bytes of a region that
/// has ended.
///
/// A batch of segments is spared a pin each: [`Table::hold_remote`] and [`Table::hold_local`] pin
/// the region once and keep it so until [`MrCache::let_go`], another region or the end of this.
/// Ending a region waits for that: the holder lets go at the end of its batch, and before it ends a
/// region itself.
#[derive(Default)]
pub struct MrCache {
    remote: CachedRegion,
    local: CachedRegion,
}

#[derive(Default)]
struct CachedRegion {
    region: Option<Arc<Region>>,
    /// A pin of the region is ours.
    held: bool,
}

impl fmt::Debug for MrCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MrCache").field("holds", &(self.remote.held, self.local.held)).finish_non_exhaustive()
    }
}

impl MrCache {
    /// Forgets what was found.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Gives back the pins of the batch. What was found is kept.
    #[inline]
    pub fn let_go(&mut self) {
        self.remote.let_go();
        self.local.let_go();
    }
}

impl CachedRegion {
    /// The live region of this STag: the one that was found last, or what `find` gives.
    #[inline(always)]
    fn find(&mut self, stag: STag, find: impl FnOnce() -> Option<Arc<Region>>) -> Option<&Arc<Region>> {
        if !self.region.as_ref().is_some_and(|region| region.stag() == stag && region.is_live()) {
            self.let_go();
            self.region = find();
        }
        self.region.as_ref()
    }

    /// A pin within ours; takes ours first if there is none.
    #[inline(always)]
    fn hold(&mut self, offset: usize, len: usize) -> Option<PinnedSpan<'_>> {
        PinnedSpan::lent(self.hold_region()?, offset, len)
    }

    /// The region under our pin, which is taken first if there is none.
    #[inline(always)]
    fn hold_region(&mut self) -> Option<&Arc<Region>> {
        let region = self.region.as_ref()?;
        self.held = self.held || region.pin_count().enter();
        self.held.then_some(region)
    }

    #[inline]
    fn let_go(&mut self) {
        if std::mem::take(&mut self.held)
            && let Some(region) = &self.region
        {
            region.pin_count().leave();
        }
    }
}

/// A region that a [`MrCache`] keeps pinned, and that our elements may name:
/// [`Table::hold_local_region`].
pub struct HeldRegion<'a> {
    region: &'a Arc<Region>,
    /// True if the bytes are shared and stay mapped.
    is_plain: bool,
}

impl fmt::Debug for HeldRegion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldRegion").field("stag", &self.region.stag()).finish_non_exhaustive()
    }
}

impl HeldRegion<'_> {
    /// Copies out the bytes at `addr`, as many as `to` holds.
    ///
    /// # Errors
    /// [`LocalError::OutOfRange`]; [`LocalError::InvalidLkey`] if some of them are gone, and `to`
    /// has others then.
    #[inline(always)]
    pub fn copy_to(&self, addr: u64, to: &mut [u8]) -> Result<(), LocalError> {
        let offset = self.region.check_local_range(addr, to.len() as u64)?;
        if self.is_plain {
            // SAFETY: the region has these bytes, under the cache's pin; `to` is private.
            unsafe { copy::load(to.as_mut_ptr(), self.region.as_ptr().add(offset), to.len()) };
            return Ok(());
        }
        self.copy(offset, to.len(), |pin| pin.copy_to(0, to))
    }

    /// Copies `from` in at `addr`. In shared memory the last bytes become visible last.
    ///
    /// # Errors
    /// As [`HeldRegion::copy_to`]; some bytes may be written then.
    #[inline(always)]
    pub fn copy_from(&self, addr: u64, from: &[u8]) -> Result<(), LocalError> {
        let offset = self.region.check_local_range(addr, from.len() as u64)?;
        if self.is_plain {
            // SAFETY: as above; no peer reaches the slice, so they do not overlap, and other
            // accesses to shared memory are atomic.
            unsafe { copy::store(self.region.as_ptr().add(offset), from.as_ptr(), from.len()) };
            return Ok(());
        }
        self.copy(offset, from.len(), |pin| pin.copy_from(0, from))
    }

    #[inline(never)]
    fn copy(
        &self,
        offset: usize,
        len: usize,
        copy: impl FnOnce(&PinnedSpan<'_>) -> Result<(), MemoryGone>,
    ) -> Result<(), LocalError> {
        let copied = PinnedSpan::lent(self.region, offset, len).is_some_and(|pin| copy(&pin).is_ok());
        if copied { Ok(()) } else { Err(LocalError::InvalidLkey { lkey: self.region.stag() }) }
    }
}

impl Drop for CachedRegion {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Table {
    /// Like [`Table::remote`], pinned at once until `cache` lets go; a stream that names the same
    /// STag repeatedly is spared the look-up and the pin.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub fn hold_remote<'a>(
        &self,
        cache: &'a mut MrCache,
        stag: STag,
        (stream, pd): (StreamId, PdId),
        (to, len): (u64, u32),
        right: Right,
    ) -> Result<PinnedSpan<'a>, RemoteError> {
        let invalid = RemoteError::InvalidStag { stag };
        let region = cache.remote.find(stag, || self.find(stag, TableSlot::named_by_peer)).ok_or(invalid)?;
        let offset = region.check_remote(stream, pd, to, len, right)?;
        cache.remote.hold(offset, len as usize).ok_or(invalid)
    }

    /// Like [`Table::local`], pinned at once until `cache` lets go; elements that name the same key
    /// repeatedly are spared the look-up and the pin.
    ///
    /// # Errors
    /// [`LocalError`].
    // Always: a pin that is returned through memory is read back in larger pieces than it was
    // written in, which waits for the stores.
    #[inline(always)]
    pub fn hold_local<'a>(
        &self,
        cache: &'a mut MrCache,
        lkey: STag,
        pd: PdId,
        (addr, len): (u64, u32),
        write: bool,
    ) -> Result<PinnedSpan<'a>, LocalError> {
        let (stag, invalid) = (lkey, LocalError::InvalidLkey { lkey });
        let region = cache.local.find(stag, || self.find(stag, TableSlot::named_by_us)).ok_or(invalid)?;
        let offset = region.check_local(pd, addr, len, write)?;
        cache.local.hold(offset, len as usize).ok_or(invalid)
    }

    /// Like [`Table::hold_local`], for many elements that name the same key: of each, the range
    /// remains to be checked.
    ///
    /// # Errors
    /// [`LocalError`].
    pub fn hold_local_region<'a>(
        &self,
        cache: &'a mut MrCache,
        lkey: STag,
        pd: PdId,
        write: bool,
    ) -> Result<HeldRegion<'a>, LocalError> {
        let (stag, invalid) = (lkey, LocalError::InvalidLkey { lkey });
        let region = cache.local.find(stag, || self.find(stag, TableSlot::named_by_us)).ok_or(invalid)?;
        region.check_local_use(pd, write)?;
        let region = cache.local.hold_region().ok_or(invalid)?;
        Ok(HeldRegion { region, is_plain: region.is_shared() && !region.may_be_gone() })
    }

    #[cold]
    fn find(&self, stag: STag, named: fn(&TableSlot, STag) -> Option<&Arc<Region>>) -> Option<Arc<Region>> {
        self.shard(stag).0.read().get(&stag.index()).and_then(|slot| named(slot, stag)).cloned()
    }
}
