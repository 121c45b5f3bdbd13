//! Table of the STags of one device.
//!
//! An STag consists of 24 random bits of index and 8 bits of key. The index selects one of a few
//! shards, and serves as its own hash there: it comes from the random source of the operating
//! system, so a peer that guesses STags cannot cause long buckets. A lookup takes one uncontended
//! read lock and one probe. The memory grows with the number of entries, not with the range of
//! indexes.

mod discard;
mod entry;
mod find;
mod index;
mod invalidate;
mod mr_cache;
#[cfg(test)]
mod tests;

use core::{
    hash::{BuildHasherDefault, Hasher},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};
use std::{collections::HashMap, sync::Arc};

use arrayvec::ArrayVec;
use parking_lot::{Mutex, RwLock};
use uiw_ddp::STag;

use crate::{
    Access, DeregisterError, LocalError, Memory, PdId, Region, RegisterError, RemoteError,
    ReregError, Right, Span, StreamId,
    pin_count::CloseError,
    recover,
    region::{Plan, RangeError},
};
pub use entry::{Entry, EntryKind, Window};
use index::Indexes;
pub use mr_cache::{MrCache, PinnedRegion};

/// Number of shards. There are more than cores that drive progress on common machines, so two
/// drivers rarely contend for one lock.
const SHARDS: usize = 32;

/// Limits of a table, fixed when it is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of STags at a time: regions, windows, fast-register STags and reserved ones
    /// together. Larger values than [`Limits::MAX_ENTRIES`] have no effect, so even in a full table
    /// a guessed index is wrong three times out of four.
    pub max_entries: u32,
}

impl Limits {
    /// Largest limit that has an effect.
    pub const MAX_ENTRIES: u32 = 1 << 22;
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_entries: 1 << 20 }
    }
}

/// Changes of a re-registration (`ibv_rereg_mr(3)`). `None` leaves a property unchanged.
#[derive(Debug, Default)]
pub struct Rereg {
    /// New protection domain.
    pub pd: Option<PdId>,
    /// New memory, and the TO of its first byte.
    pub memory: Option<(Memory, u64)>,
    /// New access rights.
    pub access: Option<Access>,
}

/// Table of all memory keys of one device.
pub struct Table {
    shards: [TableShard; SHARDS],
    /// Allocated indexes. Locked before a shard, never after one.
    indexes: Mutex<Indexes>,
    /// Indexes of the entries that are bound to each stream. Locked before a shard, never after
    /// one.
    streams: Mutex<HashMap<StreamId, Vec<u32>>>,
    /// See [`Table::set_lenient_invalidate`].
    lenient: AtomicBool,
    /// Regions that were removed while [`Table::discard`] waited for their pins. It must not free
    /// them, so the next registration does.
    discarded: Mutex<ArrayVec<Arc<Region>, MAX_DISCARDED>>,
}

/// Part of the table, in cache lines of its own, so that a lock that one core takes does not slow
/// down another core.
#[derive(Default)]
#[repr(align(128))]
struct TableShard(RwLock<Slots>);

type Slots = HashMap<u32, TableSlot, BuildHasherDefault<IndexHasher>>;

/// Number of entries for which a shard always keeps its capacity.
const FEW: usize = 64;
/// Maximum number of regions in [`Table::discarded`].
const MAX_DISCARDED: usize = 16;

/// Removes an entry and frees its index.
///
/// When most entries of a large shard have been removed, its capacity is reduced to twice the
/// number of those that remain, so that it is not reduced again soon.
fn forget(slots: &mut Slots, indexes: &mut Indexes, index: u32) {
    slots.remove(&index);
    indexes.give_back(index);
    if slots.capacity() > FEW && slots.len() * 8 <= slots.capacity() {
        slots.shrink_to(2 * slots.len());
    }
}

/// Object at an index.
enum TableSlot {
    Region(Arc<Region>),
    /// A window or a fast-register STag, and the region to which it refers now; `None` in the
    /// invalid state.
    Entry(Arc<Entry>, Option<Arc<Region>>),
    /// STag that refers to no memory.
    Reserved,
    /// A region between its old and its new registration.
    Changing,
}

impl TableSlot {
    /// Returns the valid region to which `stag` refers in a message of a peer.
    fn named_by_peer(&self, stag: STag) -> Option<&Arc<Region>> {
        match self {
            Self::Region(region) | Self::Entry(_, Some(region))
                if region.stag() == stag && region.is_live() =>
            {
                Some(region)
            }
            _ => None,
        }
    }

    /// Returns the valid region to which `stag` refers in a local element, where windows are not
    /// allowed.
    fn named_by_us(&self, stag: STag) -> Option<&Arc<Region>> {
        match self {
            Self::Region(region) if region.stag() == stag && region.is_live() => Some(region),
            Self::Entry(entry, Some(region)) if entry.is_fast() && region.stag() == stag => {
                Some(region)
            }
            _ => None,
        }
    }
}

impl Region {
    /// Returns the offset of `to`, if a peer on `stream` may access `len` bytes there.
    fn check_remote(
        &self,
        stream: StreamId,
        pd: PdId,
        to: u64,
        len: u32,
        right: Right,
    ) -> Result<usize, RemoteError> {
        let stag = self.stag();
        if self.pd() != pd || self.stream().is_some_and(|only| only != stream) {
            return Err(RemoteError::NotAssociated { stag, stream, pd });
        }
        let offset = self.locate(to, u64::from(len)).map_err(|error| match error {
            RangeError::Wrap => RemoteError::ToWrap { stag, to, len },
            RangeError::Bounds => RemoteError::BaseOrBounds { stag, to, len },
        })?;
        if !self.access().contains(right.flag()) {
            return Err(RemoteError::AccessRights { stag, right, access: self.access() });
        }
        Ok(offset)
    }

    /// Returns the offset of `addr`, if a local element may refer to `len` bytes there.
    #[inline]
    fn check_local(&self, pd: PdId, addr: u64, len: u32, write: bool) -> Result<usize, LocalError> {
        self.check_local_use(pd, write)?;
        self.check_local_range(addr, len.into())
    }

    /// Checks whether a local element of protection domain `pd` may refer to the region.
    #[inline(always)]
    fn check_local_use(&self, pd: PdId, write: bool) -> Result<(), LocalError> {
        let lkey = self.stag();
        if self.pd() != pd {
            return Err(LocalError::ProtectionDomain { lkey, owner: self.pd(), pd });
        }
        if write && !self.access().contains(Access::LOCAL_WRITE) {
            return Err(LocalError::NotWritable { lkey });
        }
        Ok(())
    }

    /// Returns the offset of `addr`, if the region has `len` bytes there.
    #[inline(always)]
    fn check_local_range(&self, addr: u64, len: u64) -> Result<usize, LocalError> {
        if len == 0 {
            return Ok(0);
        }
        self.locate(addr, len).map_err(|_| LocalError::OutOfRange { lkey: self.stag(), addr, len })
    }
}

/// Hasher for indexes. They are random already; a multiplication spreads them over the bits that
/// the map uses.
#[derive(Default)]
struct IndexHasher(u64);

impl Hasher for IndexHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    fn write_u32(&mut self, index: u32) {
        self.0 = (self.0 ^ u64::from(index)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

impl Table {
    /// Creates an empty table.
    pub fn new(limits: Limits) -> Arc<Self> {
        recover::prepare();
        Arc::new(Self {
            shards: Default::default(),
            indexes: Mutex::new(Indexes::new(limits.max_entries.min(Limits::MAX_ENTRIES))),
            streams: Mutex::default(),
            lenient: AtomicBool::new(false),
            discarded: Mutex::default(),
        })
    }

    /// Sets whether a peer may invalidate the STags that RFC 5040 8.1.1 item 7 protects (regions
    /// and PD-wide fast-register STags), as the Linux siw driver allows. The default is false.
    pub fn set_lenient_invalidate(&self, on: bool) {
        self.lenient.store(on, Relaxed);
    }

    /// Returns the number of allocated STags.
    pub fn len(&self) -> usize {
        self.indexes.lock().given() as usize
    }

    /// Returns whether no STag is allocated.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Registers memory. `base` is the TO of its first byte, and has no effect with
    /// [`Access::ZERO_BASED`]. The STag has a random index and key byte 0.
    ///
    /// # Errors
    /// A [`RegisterError`] if the arguments are invalid, or no STag is available.
    pub fn register(
        &self,
        pd: PdId,
        memory: Memory,
        base: u64,
        access: Access,
    ) -> Result<Arc<Region>, RegisterError> {
        let plan = Plan { pd, access, stream: None, origin: base, memory: Arc::new(memory) };
        plan.check()?;
        // Freed without the lock, because that may call `discard`.
        let discarded = std::mem::take(&mut *self.discarded.lock());
        drop(discarded);
        self.insert(|index| {
            let region = plan.build(STag::from_parts(index, 0));
            (TableSlot::Region(region.clone()), region)
        })
    }

    /// Changes the protection domain, the memory or the access rights of a region.
    ///
    /// If the memory changes, or after an invalidation, the key byte is incremented and the old
    /// STag becomes invalid. Otherwise the STag stays the same, as programs expect from
    /// `ibv_rereg_mr`. Waits until no pin of the old region is held.
    ///
    /// # Errors
    /// A [`ReregError`]; the region is then unchanged.
    pub fn rereg(&self, stag: STag, change: Rereg) -> Result<Arc<Region>, ReregError> {
        let invalid = ReregError::InvalidStag { stag };
        let shard = self.shard(stag);
        let (old, plan, same) = {
            let mut slots = shard.0.write();
            let slot = slots.get_mut(&stag.index()).ok_or(invalid)?;
            let TableSlot::Region(old) = slot else { return Err(invalid) };
            if old.stag() != stag {
                return Err(invalid);
            }
            let mut plan = old.plan().ok_or(invalid)?;
            let mut same = change.memory.is_none();
            plan.pd = change.pd.unwrap_or(plan.pd);
            plan.access = change.access.unwrap_or(plan.access);
            if let Some((memory, base)) = change.memory {
                (plan.memory, plan.origin) = (Arc::new(memory), base);
            }
            plan.check()?;
            match old.pin_count().close() {
                Ok(()) => {}
                // A peer has invalidated the region (lenient). Registering it again makes it valid.
                Err(CloseError::Closed) => same = false,
                Err(CloseError::WindowsBound(windows)) => {
                    return Err(ReregError::WindowsBound { stag, windows });
                }
            }
            let old = old.clone();
            *slot = TableSlot::Changing;
            (old, plan, same)
        };
        old.pin_count().drain();
        old.give_back();
        let key = if same { stag.key() } else { stag.key().wrapping_add(1) };
        let new = plan.build(STag::from_parts(stag.index(), key));
        shard.0.write().insert(stag.index(), TableSlot::Region(new.clone()));
        Ok(new)
    }

    /// Deregisters a region or a fast-register STag. Waits until no pin is held; afterwards none of
    /// its bytes is accessed. The calling thread must hold no pin of it.
    ///
    /// # Errors
    /// A [`DeregisterError`]; nothing has changed then.
    pub fn deregister(&self, stag: STag) -> Result<(), DeregisterError> {
        let invalid = DeregisterError::InvalidStag { stag };
        let region = {
            let mut indexes = self.indexes.lock();
            let mut slots = self.shard(stag).0.write();
            match slots.get(&stag.index()) {
                Some(TableSlot::Region(region)) if region.stag() == stag => {
                    match region.pin_count().close() {
                        Ok(()) | Err(CloseError::Closed) => {}
                        Err(CloseError::WindowsBound(windows)) => {
                            return Err(DeregisterError::WindowsBound { stag, windows });
                        }
                    }
                    let region = region.clone();
                    forget(&mut slots, &mut indexes, stag.index());
                    region
                }
                Some(TableSlot::Entry(entry, _)) if entry.stag() == stag && entry.is_fast() => {
                    let entry = entry.clone();
                    drop((slots, indexes));
                    return if self.dealloc(&entry) { Ok(()) } else { Err(invalid) };
                }
                _ => return Err(invalid),
            }
        };
        region.pin_count().drain();
        region.give_back();
        Ok(())
    }

    /// Reserves an STag that refers to no memory, for the sinks of local Reads. The stream matches
    /// their responses with the requests itself.
    ///
    /// # Errors
    /// Returns [`RegisterError::TooManyEntries`] if the table is full, and
    /// [`RegisterError::NoEntropy`] if the random source fails.
    pub fn reserve(&self) -> Result<STag, RegisterError> {
        self.insert(|index| (TableSlot::Reserved, STag::from_parts(index, 0)))
    }

    /// Releases an STag of [`Table::reserve`]. Returns false if `stag` is not reserved.
    pub fn release(&self, stag: STag) -> bool {
        let mut indexes = self.indexes.lock();
        let mut slots = self.shard(stag).0.write();
        let reserved = matches!(slots.get(&stag.index()), Some(TableSlot::Reserved));
        if reserved {
            forget(&mut slots, &mut indexes, stag.index());
        }
        reserved
    }

    /// Returns the `len` bytes at `to`, if the peer of `stream` in protection domain `pd` may
    /// access them.
    ///
    /// The checks have the order of RFC 5041 7.1: validity, association, wrap, range; then the
    /// access right (RFC 5040 7). A segment without payload must not be checked (RFC 5041 5.2), so
    /// do not call this for one.
    ///
    /// # Errors
    /// The [`RemoteError`] of the first check that fails.
    pub fn remote(
        &self,
        stag: STag,
        stream: StreamId,
        pd: PdId,
        to: u64,
        len: u32,
        right: Right,
    ) -> Result<Span, RemoteError> {
        let slots = self.shard(stag).0.read();
        let region = slots.get(&stag.index()).and_then(|slot| slot.named_by_peer(stag));
        let region = region.ok_or(RemoteError::InvalidStag { stag })?;
        let offset = region.check_remote(stream, pd, to, len, right)?;
        Ok(Span::new(region.clone(), offset, len as usize))
    }

    /// Returns the bytes of a local scatter/gather element: `len` bytes at `addr`, to be written if
    /// `write` is true. If `len` is 0, the key is checked, but not the address.
    ///
    /// # Errors
    /// The [`LocalError`] for which the element is invalid.
    pub fn local(
        &self,
        lkey: STag,
        pd: PdId,
        addr: u64,
        len: u32,
        write: bool,
    ) -> Result<Span, LocalError> {
        let stag = lkey;
        let slots = self.shard(stag).0.read();
        let region = slots.get(&stag.index()).and_then(|slot| slot.named_by_us(stag));
        let region = region.ok_or(LocalError::InvalidLkey { lkey })?;
        let offset = region.check_local(pd, addr, len, write)?;
        Ok(Span::new(region.clone(), offset, len as usize))
    }

    fn shard(&self, stag: STag) -> &TableShard {
        &self.shards[stag.index() as usize % SHARDS]
    }

    /// Inserts the object that `make` creates, at a new random index.
    fn insert<T>(&self, make: impl FnOnce(u32) -> (TableSlot, T)) -> Result<T, RegisterError> {
        let mut indexes = self.indexes.lock();
        let index = indexes
            .take(|index| self.shard(STag::from_parts(index, 0)).0.read().contains_key(&index))?;
        let (slot, made) = make(index);
        self.shard(STag::from_parts(index, 0)).0.write().insert(index, slot);
        Ok(made)
    }
}

impl core::fmt::Debug for Table {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Table").field("given", &self.len()).finish_non_exhaustive()
    }
}
