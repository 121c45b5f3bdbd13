//! Caches the regions that a stream uses, and keeps them pinned during a batch of segments.

use std::fmt;
use std::sync::Arc;

use uiw_ddp::STag;

use super::{Table, TableSlot};
use crate::copy;
use crate::{LocalError, MemoryGone, PdId, PinnedSpan, Region, RemoteError, Right, StreamId};

/// Results of a stream's last lookups. As long as a region is valid, the table would return it for
/// its STag, so a cached region is used until it becomes invalid. The cache keeps no memory of a
/// region that has ended.
///
/// It also saves a pin for each segment of a batch: [`Table::pin_remote`] and
/// [`Table::pin_local`] pin the region once, until [`MrCache::unpin`], a lookup of another
/// region, or the drop of the cache. The end of a region waits for that pin, so the holder must
/// release it at the end of its batch, and before it ends a region itself.
#[derive(Default)]
pub struct MrCache {
    remote: CachedRegion,
    local: CachedRegion,
}

#[derive(Default)]
struct CachedRegion {
    region: Option<Arc<Region>>,
    /// True if the cache holds a pin of the region.
    pinned: bool,
}

impl fmt::Debug for MrCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MrCache")
            .field("pinned", &(self.remote.pinned, self.local.pinned))
            .finish_non_exhaustive()
    }
}

impl MrCache {
    /// Removes all results.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns whether the cache pins a region.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.remote.pinned || self.local.pinned
    }

    /// Releases the pins of the batch. The results are kept.
    #[inline]
    pub fn unpin(&mut self) {
        self.remote.unpin();
        self.local.unpin();
    }
}

impl CachedRegion {
    /// Returns the valid region with this STag: the cached one, or the result of `find`.
    #[inline(always)]
    fn find(
        &mut self,
        stag: STag,
        find: impl FnOnce() -> Option<Arc<Region>>,
    ) -> Option<&Arc<Region>> {
        if !self.region.as_ref().is_some_and(|region| region.stag() == stag && region.is_live()) {
            self.unpin();
            self.region = find();
        }
        self.region.as_ref()
    }

    /// Returns a pin under that of the cache, which is taken first if necessary.
    #[inline(always)]
    fn pin(&mut self, offset: usize, len: usize) -> Option<PinnedSpan<'_>> {
        PinnedSpan::lent(self.pin_region()?, offset, len)
    }

    /// Returns the region under the pin of the cache, which is taken first if necessary.
    #[inline(always)]
    fn pin_region(&mut self) -> Option<&Arc<Region>> {
        let region = self.region.as_ref()?;
        self.pinned = self.pinned || region.pin_count().enter();
        self.pinned.then_some(region)
    }

    #[inline]
    fn unpin(&mut self) {
        if std::mem::take(&mut self.pinned)
            && let Some(region) = &self.region
        {
            region.pin_count().leave();
        }
    }
}

/// Region that a [`MrCache`] keeps pinned, for local elements ([`Table::pin_local_region`]).
pub struct PinnedRegion<'a> {
    region: &'a Arc<Region>,
    /// True if the memory is shared and stays mapped, so that its bytes can be copied without a
    /// span.
    is_plain: bool,
}

impl fmt::Debug for PinnedRegion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedRegion").field("stag", &self.region.stag()).finish_non_exhaustive()
    }
}

impl PinnedRegion<'_> {
    /// Fills `to` with the bytes at `addr`.
    ///
    /// # Errors
    /// [`LocalError::OutOfRange`] if the region does not have these bytes;
    /// [`LocalError::InvalidLkey`] if some of them are no longer accessible, and the contents of
    /// `to` are then unspecified.
    #[inline(always)]
    pub fn copy_to(&self, addr: u64, to: &mut [u8]) -> Result<(), LocalError> {
        let offset = self.region.check_local_range(addr, to.len() as u64)?;
        if self.is_plain {
            // SAFETY: the region has these bytes, which are pinned by the cache. `to` is private.
            unsafe { copy::load(to.as_mut_ptr(), self.region.as_ptr().add(offset), to.len()) };
            return Ok(());
        }
        self.copy(offset, to.len(), |pin| pin.copy_to(0, to))
    }

    /// Copies `from` to `addr`. In shared memory the last bytes become visible last.
    ///
    /// # Errors
    /// The errors of [`PinnedRegion::copy_to`]; some bytes may have been written.
    #[inline(always)]
    pub fn copy_from(&self, addr: u64, from: &[u8]) -> Result<(), LocalError> {
        let offset = self.region.check_local_range(addr, from.len() as u64)?;
        if self.is_plain {
            // SAFETY: the region has these bytes, which are pinned by the cache. No peer can access
            // the slice, so they do not overlap, and all other accesses to shared memory are
            // atomic.
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
        let copied =
            PinnedSpan::lent(self.region, offset, len).is_some_and(|pin| copy(&pin).is_ok());
        if copied { Ok(()) } else { Err(LocalError::InvalidLkey { lkey: self.region.stag() }) }
    }
}

impl Drop for CachedRegion {
    fn drop(&mut self) {
        self.unpin();
    }
}

impl Table {
    /// Like [`Table::remote`], but pins the range at once, until `cache` releases it. A stream that
    /// uses the same STag repeatedly saves the lookup and the pin.
    ///
    /// # Errors
    /// The [`RemoteError`] for which the access is refused.
    // Always inlined, because a pin that is returned through memory is read in larger pieces than
    // it was written in, and has to wait for the stores.
    #[inline(always)]
    pub fn pin_remote<'a>(
        &self,
        cache: &'a mut MrCache,
        stag: STag,
        (stream, pd): (StreamId, PdId),
        (to, len): (u64, u32),
        right: Right,
    ) -> Result<PinnedSpan<'a>, RemoteError> {
        let invalid = RemoteError::InvalidStag { stag };
        let region =
            cache.remote.find(stag, || self.find(stag, TableSlot::named_by_peer)).ok_or(invalid)?;
        let offset = region.check_remote(stream, pd, to, len, right)?;
        cache.remote.pin(offset, len as usize).ok_or(invalid)
    }

    /// Like [`Table::local`], but pins the range at once, until `cache` releases it. Elements that
    /// use the same key repeatedly save the lookup and the pin.
    ///
    /// # Errors
    /// The [`LocalError`] for which the element is invalid.
    // Always inlined, like `pin_remote`.
    #[inline(always)]
    pub fn pin_local<'a>(
        &self,
        cache: &'a mut MrCache,
        lkey: STag,
        pd: PdId,
        (addr, len): (u64, u32),
        write: bool,
    ) -> Result<PinnedSpan<'a>, LocalError> {
        let (stag, invalid) = (lkey, LocalError::InvalidLkey { lkey });
        let region =
            cache.local.find(stag, || self.find(stag, TableSlot::named_by_us)).ok_or(invalid)?;
        let offset = region.check_local(pd, addr, len, write)?;
        cache.local.pin(offset, len as usize).ok_or(invalid)
    }

    /// Like [`Table::pin_local`], for many elements with the same key. The range of each element
    /// must still be checked.
    ///
    /// # Errors
    /// The [`LocalError`] for which the element is invalid.
    pub fn pin_local_region<'a>(
        &self,
        cache: &'a mut MrCache,
        lkey: STag,
        pd: PdId,
        write: bool,
    ) -> Result<PinnedRegion<'a>, LocalError> {
        let (stag, invalid) = (lkey, LocalError::InvalidLkey { lkey });
        let region =
            cache.local.find(stag, || self.find(stag, TableSlot::named_by_us)).ok_or(invalid)?;
        region.check_local_use(pd, write)?;
        let region = cache.local.pin_region().ok_or(invalid)?;
        Ok(PinnedRegion { region, is_plain: region.is_shared() && !region.may_be_gone() })
    }

    #[cold]
    fn find(
        &self,
        stag: STag,
        named: fn(&TableSlot, STag) -> Option<&Arc<Region>>,
    ) -> Option<Arc<Region>> {
        self.shard(stag).0.read().get(&stag.index()).and_then(|slot| named(slot, stag)).cloned()
    }
}
