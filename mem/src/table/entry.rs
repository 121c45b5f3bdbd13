//! STags whose memory changes: memory windows and fast-register STags.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::Arc;

use uiw_ddp::STag;

use super::{Table, TableSlot};
use crate::region::Plan;
use crate::{
    Access, BindError, FastRegisterError, Memory, PdId, Region, RegisterError, StreamId, WindowType,
};

/// Memory window or fast-register STag. It keeps its index while it is allocated, and its key byte
/// changes. [`Table::dealloc`] ends it; dropping it does nothing.
#[derive(Debug)]
pub struct Entry {
    index: u32,
    pd: PdId,
    kind: EntryKind,
    /// Written only while the shard is locked.
    key: AtomicU8,
}

/// A memory window.
pub type Window = Entry;

/// Kind of an [`Entry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A memory window.
    Window(WindowType),
    /// A fast-register STag (`IB_WR_REG_MR`).
    Fast {
        /// Maximum number of bytes to which it may refer.
        max_len: u64,
    },
}

impl Entry {
    /// Returns the current STag, which is not necessarily valid.
    pub fn stag(&self) -> STag {
        STag::from_parts(self.index, self.key.load(Relaxed))
    }

    /// Returns the protection domain.
    pub fn pd(&self) -> PdId {
        self.pd
    }

    /// Returns the kind of the entry.
    pub fn kind(&self) -> EntryKind {
        self.kind
    }

    pub(super) fn is_fast(&self) -> bool {
        matches!(self.kind, EntryKind::Fast { .. })
    }

    /// Returns a name of the kind for error messages.
    pub(super) fn what(&self) -> &'static str {
        match self.kind {
            EntryKind::Window(WindowType::One) => "type 1 memory window",
            EntryKind::Window(WindowType::Two) => "type 2 memory window",
            EntryKind::Fast { .. } => "fast-register STag shared by the streams of its PD",
        }
    }
}

impl Table {
    /// Allocates a memory window that is not bound.
    ///
    /// # Errors
    /// [`RegisterError::TooManyEntries`] if the table is full, [`RegisterError::NoEntropy`] if the
    /// random source fails.
    pub fn alloc_window(&self, pd: PdId, kind: WindowType) -> Result<Arc<Window>, RegisterError> {
        self.alloc(pd, EntryKind::Window(kind))
    }

    /// Allocates a fast-register STag for at most `max_len` bytes, in the invalid state.
    ///
    /// # Errors
    /// The errors are those of [`Table::alloc_window`].
    pub fn alloc_fast(&self, pd: PdId, max_len: u64) -> Result<Arc<Entry>, RegisterError> {
        self.alloc(pd, EntryKind::Fast { max_len })
    }

    fn alloc(&self, pd: PdId, kind: EntryKind) -> Result<Arc<Entry>, RegisterError> {
        self.insert(|index| {
            let entry = Arc::new(Entry { index, pd, kind, key: AtomicU8::new(0) });
            (TableSlot::Entry(entry.clone(), None), entry)
        })
    }

    /// Deallocates a window or a fast-register STag, after revoking it like [`Table::deregister`].
    /// Returns false if it was deallocated before.
    pub fn dealloc(&self, entry: &Entry) -> bool {
        let now = {
            let mut indexes = self.indexes.lock();
            let mut slots = self.shard(entry.stag()).0.write();
            let now = match slots.get_mut(&entry.index) {
                Some(TableSlot::Entry(found, now)) if core::ptr::eq(&**found, entry) => now.take(),
                _ => return false,
            };
            super::forget(&mut slots, &mut indexes, entry.index);
            now
        };
        self.retire(now);
        true
    }

    /// Binds a window to `len` bytes at tagged offset `to` of `region`, with the remote rights
    /// `access` (`ibv_bind_mw(3)`). Returns the new STag.
    ///
    /// A window of type 1 ignores `stream` and `key`, and its key byte is incremented. Its previous
    /// binding is revoked; `len` 0 only revokes it. A window of type 2 is bound to `stream`; `key`
    /// is the new key byte, and `None` increments it.
    ///
    /// # Errors
    /// A [`BindError`]; nothing has changed then.
    #[expect(
        clippy::too_many_arguments,
        reason = "a bind has that many attributes, as in struct ibv_mw_bind_info"
    )]
    pub fn bind(
        &self,
        window: &Window,
        region: &Arc<Region>,
        stream: Option<StreamId>,
        to: u64,
        len: u64,
        access: Access,
        key: Option<u8>,
    ) -> Result<STag, BindError> {
        let stag = window.stag();
        let (stream, key) = match (window.kind, len) {
            (EntryKind::Fast { .. }, _) => return Err(BindError::NotAWindow { stag }),
            (EntryKind::Window(WindowType::One), 0) => return self.unbind(window),
            (EntryKind::Window(WindowType::One), _) => (None, None),
            (EntryKind::Window(WindowType::Two), 0) => return Err(BindError::ZeroLength { stag }),
            (EntryKind::Window(WindowType::Two), _) => {
                (Some(stream.ok_or(BindError::StreamMissing { stag })?), key)
            }
        };
        let offset = check_bind(window, region, to, len, access)?;
        self.hold_for_window(region)?;
        let bound = self.set(window, key, stream, |slot, new| {
            let TableSlot::Entry(_, now) = slot else { return Err(BindError::NotAWindow { stag }) };
            if now.is_some() && window.kind == EntryKind::Window(WindowType::Two) {
                return Err(BindError::AlreadyBound { stag });
            }
            Ok(now.replace(region.window(new, stream, offset, len as usize, access)))
        });
        match bound.unwrap_or(Err(BindError::NotAWindow { stag })) {
            Ok((new, before)) => {
                self.retire(before);
                Ok(new)
            }
            Err(error) => {
                region.pin_count().remove_window();
                Err(error)
            }
        }
    }

    /// Makes a fast-register STag valid: it then refers to `memory` from TO `base` on, with the
    /// rights `access` and the key byte `key`. With `stream`, it may be used, and invalidated by a
    /// peer, on that stream only. Without, it may be used in the whole protection domain, and no
    /// peer may invalidate it (RFC 5040 8.1.1 item 7).
    ///
    /// # Errors
    /// A [`FastRegisterError`]; nothing has changed then.
    pub fn fast_register(
        &self,
        entry: &Entry,
        memory: Memory,
        base: u64,
        access: Access,
        stream: Option<StreamId>,
        key: u8,
    ) -> Result<Arc<Region>, FastRegisterError> {
        let stag = entry.stag();
        let len = memory.len() as u64;
        match entry.kind {
            EntryKind::Window(_) => return Err(FastRegisterError::NotFastRegister { stag }),
            EntryKind::Fast { max_len } if len > max_len => {
                return Err(FastRegisterError::TooLong { stag, len, max: max_len });
            }
            EntryKind::Fast { .. } => {}
        }
        // Windows are bound only to regions.
        let access = access.difference(Access::MW_BIND);
        let plan = Plan { pd: entry.pd, access, stream, origin: base, memory: Arc::new(memory) };
        plan.check()?;
        let set = self.set(entry, Some(key), stream, |slot, new| match slot {
            TableSlot::Entry(_, now @ None) => Ok(now.insert(plan.build(new)).clone()),
            _ => Err(FastRegisterError::AlreadyValid { stag }),
        });
        let (_, region) = set.unwrap_or(Err(FastRegisterError::NotFastRegister { stag }))?;
        Ok(region)
    }

    /// Invalidates everything that is bound to a stream that has ended: type 2 windows, and fast
    /// registrations for this stream.
    pub fn unbind_stream(&self, stream: StreamId) {
        let mut streams = self.streams.lock();
        let take = |index| match self.shard(STag::from_parts(index, 0)).0.write().get_mut(&index) {
            Some(TableSlot::Entry(_, now)) => now.take_if(|region| region.stream() == Some(stream)),
            _ => None,
        };
        let bound: Vec<_> =
            streams.remove(&stream).unwrap_or_default().into_iter().filter_map(take).collect();
        // Pins are waited for without the lock, so that other streams can bind meanwhile.
        drop(streams);
        for region in bound {
            region.retire();
        }
    }

    /// Revokes the binding of a type 1 window, and increments the key byte.
    ///
    /// # Errors
    /// [`BindError::NotAWindow`] for other entries, and if the window was deallocated.
    pub fn unbind(&self, window: &Window) -> Result<STag, BindError> {
        let stag = window.stag();
        if window.kind != EntryKind::Window(WindowType::One) {
            return Err(BindError::NotAWindow { stag });
        }
        let set = self.set(window, None, None, |slot, _| match slot {
            TableSlot::Entry(_, now) => Ok(now.take()),
            _ => Err(BindError::NotAWindow { stag }),
        });
        let (new, before) = set.unwrap_or(Err(BindError::NotAWindow { stag }))?;
        self.retire(before);
        Ok(new)
    }

    /// Calls `change` with the slot of `entry` and its next STag. If `change` succeeds, this becomes
    /// its STag, and the entry is recorded as bound to `stream`. Returns `None` if the entry was
    /// deallocated.
    fn set<T, E>(
        &self,
        entry: &Entry,
        key: Option<u8>,
        stream: Option<StreamId>,
        change: impl FnOnce(&mut TableSlot, STag) -> Result<T, E>,
    ) -> Option<Result<(STag, T), E>> {
        // Locked until the slot has changed, so that whoever finds the entry bound to the stream
        // finds its record as well.
        let streams = stream.map(|stream| (stream, self.streams.lock()));
        let mut slots = self.shard(entry.stag()).0.write();
        let slot = slots.get_mut(&entry.index)?;
        if !matches!(slot, TableSlot::Entry(found, _) if core::ptr::eq(&**found, entry)) {
            return None;
        }
        let key = key.unwrap_or(entry.key.load(Relaxed).wrapping_add(1));
        let new = STag::from_parts(entry.index, key);
        Some(change(slot, new).map(|made| {
            entry.key.store(key, Relaxed);
            if let Some((stream, mut streams)) = streams {
                streams.entry(stream).or_default().push(entry.index);
            }
            (new, made)
        }))
    }

    /// Prevents `region` from being deregistered, if it is a plain valid region of this table.
    fn hold_for_window(&self, region: &Arc<Region>) -> Result<(), BindError> {
        let stag = region.stag();
        let slots = self.shard(stag).0.read();
        match slots.get(&stag.index()) {
            Some(TableSlot::Region(found))
                if Arc::ptr_eq(found, region) && region.pin_count().add_window() =>
            {
                Ok(())
            }
            _ => Err(BindError::NotARegion { stag }),
        }
    }

    /// Revokes a region that was taken out of a slot, waits until its pins are released, and
    /// removes it from the list of its stream.
    pub(super) fn retire(&self, region: Option<Arc<Region>>) {
        let Some(region) = region else { return };
        region.retire();
        if let Some(stream) = region.stream() {
            let mut streams = self.streams.lock();
            if let Some(bound) = streams.get_mut(&stream) {
                if let Some(at) = bound.iter().position(|&index| index == region.stag().index()) {
                    bound.swap_remove(at);
                }
                if bound.is_empty() {
                    streams.remove(&stream);
                }
            }
        }
    }
}

/// Checks the rules of `ibv_bind_mw(3)` about the window, the region and the range. Returns the
/// offset in the region.
fn check_bind(
    window: &Window,
    region: &Region,
    to: u64,
    len: u64,
    access: Access,
) -> Result<usize, BindError> {
    let stag = region.stag();
    if region.pd() != window.pd {
        return Err(BindError::ProtectionDomain { window: window.pd, region: region.pd() });
    }
    if !region.access().contains(Access::MW_BIND) {
        return Err(BindError::NoBindRight { stag });
    }
    if !Access::REMOTE.union(Access::ZERO_BASED).contains(access) {
        return Err(BindError::Access { access });
    }
    if access.changes_memory() && !region.access().contains(Access::LOCAL_WRITE) {
        return Err(BindError::RegionNotWritable { stag, access });
    }
    region.locate(to, len).map_err(|_| BindError::OutOfRange { stag, to, len })
}
