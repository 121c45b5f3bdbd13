//! Ranges of tagged offsets that refer to memory: regions, bindings of windows, fast registrations.

use core::{fmt, ops::Range, ptr::NonNull};
use std::sync::Arc;

use parking_lot::Mutex;
use uiw_ddp::STag;

use crate::{
    Access, Memory, PageState, PdId, RegisterError, StreamId, memory::Presence, pin_count::PinCount,
};

/// Memory and rights of an STag while it is valid. A region never changes: re-registering, binding
/// or fast-registering creates another region, and the old one is revoked.
pub struct Region {
    stag: STag,
    pd: PdId,
    access: Access,
    /// The only stream that may use the region; `None` allows all streams of the protection domain.
    stream: Option<StreamId>,
    /// Base that was requested, before ZERO_BASED replaced it by 0.
    origin: u64,
    /// TO of the first byte.
    base: u64,
    at: NonNull<u8>,
    len: usize,
    shared: bool,
    presence: Presence,
    /// Page state of the memory. Windows onto the region and re-registrations of the memory share
    /// it.
    page_state: Option<Arc<PageState>>,
    /// `None` once the region has ended for good, so that remaining handles keep no memory.
    memory: Mutex<Option<Arc<Memory>>>,
    /// Region to which a window is bound; `None` if this is no window.
    parent: Option<Arc<Self>>,
    pin_count: PinCount,
}

// SAFETY: `at` points into `memory`, which is `Send` and is kept until the pin count is revoked and
// drained. All other fields are `Send`.
unsafe impl Send for Region {}
// SAFETY: `&Region` gives access to the address only, never to the bytes. Pins are counted
// atomically.
unsafe impl Sync for Region {}

/// Reason why a range of tagged offsets is not within a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeError {
    Wrap,
    Bounds,
}

/// Parameters of a region with its own memory.
pub(crate) struct Plan {
    pub(crate) pd: PdId,
    pub(crate) access: Access,
    pub(crate) stream: Option<StreamId>,
    pub(crate) origin: u64,
    pub(crate) memory: Arc<Memory>,
}

impl Plan {
    /// Checks the rules of `ibv_reg_mr(3)`, and that every byte has a TO that RFC 5041 7.1 lets a
    /// peer access.
    pub(crate) fn check(&self) -> Result<(), RegisterError> {
        if self.access.changes_memory() && !self.access.contains(Access::LOCAL_WRITE) {
            return Err(RegisterError::RemoteWriteNeedsLocalWrite { access: self.access });
        }
        let (base, len) = (self.base(), self.memory.len() as u64);
        base.checked_add(len).ok_or(RegisterError::TooHigh { base, len })?;
        Ok(())
    }

    fn base(&self) -> u64 {
        if self.access.contains(Access::ZERO_BASED) { 0 } else { self.origin }
    }

    /// Creates the region, after [`Plan::check`].
    pub(crate) fn build(self, stag: STag) -> Arc<Region> {
        let at = NonNull::new(self.memory.as_ptr()).unwrap_or(NonNull::dangling());
        Arc::new(Region {
            stag,
            pd: self.pd,
            access: self.access,
            stream: self.stream,
            origin: self.origin,
            base: self.base(),
            at,
            len: self.memory.len(),
            shared: self.access.is_peer_reachable() || !self.memory.is_exclusive(),
            presence: self.memory.presence(),
            page_state: self.memory.page_state().cloned(),
            memory: Mutex::new(Some(self.memory)),
            parent: None,
            pin_count: PinCount::default(),
        })
    }
}

impl Region {
    /// Returns the STag.
    pub fn stag(&self) -> STag {
        self.stag
    }

    /// Returns the protection domain.
    pub fn pd(&self) -> PdId {
        self.pd
    }

    /// Returns the rights.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns the only stream that may use the region; `None` allows all streams of the protection
    /// domain.
    pub fn stream(&self) -> Option<StreamId> {
        self.stream
    }

    /// Returns the TO of the first byte.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the first byte. The caller must ensure that the memory exists, and
    /// handle races with peers.
    pub fn as_ptr(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    /// Returns whether all accesses must be atomic, because a peer can access the memory or
    /// exclusive use was not guaranteed.
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// Returns whether the memory may be inaccessible.
    #[inline]
    pub(crate) fn may_be_gone(&self) -> bool {
        self.presence != Presence::Guaranteed
    }

    /// Returns whether none of the bytes was discarded. Must be called with a pin held:
    /// [`crate::Table::discard`] waits for pins that were taken before.
    #[inline]
    pub(crate) fn has(&self, offset: usize, len: usize) -> bool {
        self.page_state
            .as_ref()
            .is_none_or(|state| state.is_present(self.at.addr().get() + offset, len))
    }

    /// Returns the page state if one of the bytes is on a page that the program has ever protected.
    #[inline]
    pub(crate) fn protected(&self, offset: usize, len: usize) -> Option<&PageState> {
        self.page_state
            .as_deref()
            .filter(|state| state.is_protected(self.at.addr().get() + offset, len))
    }

    /// Discards the bytes at addresses of `range` for good. Returns whether the region contains
    /// some of them.
    pub(crate) fn discard(&self, range: &Range<usize>) -> bool {
        let start = self.at.addr().get();
        let overlaps = self.presence == Presence::Foreign
            && self.is_live()
            && start < range.end
            && range.start - start.min(range.start) < self.len;
        // The page state belongs to the parent, but the caller may know only the window.
        if overlaps && let Some(state) = &self.page_state {
            state.discard(range);
        }
        overlaps
    }

    /// Returns false after deregistration, invalidation or another binding.
    #[inline]
    pub fn is_live(&self) -> bool {
        self.pin_count.is_open()
    }

    /// Returns the current number of pins, for diagnostics.
    pub fn pins(&self) -> u32 {
        self.pin_count.pins()
    }

    /// Returns the offset of the first byte. RFC 5041 7.1: "The TO falls in the range of legal
    /// offsets registered for the STag", also with the length added, and "a 64-bit unsigned sum
    /// [..] does not wrap".
    pub(crate) fn locate(&self, to: u64, len: u64) -> Result<usize, RangeError> {
        let end = to.checked_add(len).ok_or(RangeError::Wrap)?;
        let offset = to.checked_sub(self.base).ok_or(RangeError::Bounds)?;
        // `base + len` does not wrap, as `Plan::check` has verified.
        if end > self.base + self.len as u64 {
            return Err(RangeError::Bounds);
        }
        Ok(offset as usize)
    }

    /// Creates a window onto `len` bytes at `offset` of this region.
    pub(crate) fn window(
        self: &Arc<Self>,
        stag: STag,
        stream: Option<StreamId>,
        offset: usize,
        len: usize,
        access: Access,
    ) -> Arc<Self> {
        assert!(
            offset <= self.len && len <= self.len - offset,
            "the range was checked by `locate`"
        );
        let origin = self.base + offset as u64;
        // SAFETY: `offset` is within the region, or at its end.
        let at = unsafe { self.at.add(offset) };
        Arc::new(Self {
            stag,
            pd: self.pd,
            access,
            stream,
            origin,
            base: if access.contains(Access::ZERO_BASED) { 0 } else { origin },
            at,
            len,
            shared: true,
            presence: self.presence,
            page_state: self.page_state.clone(),
            memory: Mutex::new(self.memory.lock().clone()),
            parent: Some(self.clone()),
            pin_count: PinCount::default(),
        })
    }

    /// Returns the memory that a re-registration keeps; `None` if the region has ended for good.
    pub(crate) fn plan(&self) -> Option<Plan> {
        Some(Plan {
            pd: self.pd,
            access: self.access,
            stream: self.stream,
            origin: self.origin,
            memory: self.memory.lock().clone()?,
        })
    }

    /// Releases the memory. The pin count must be revoked and drained, and the STag will not be
    /// valid again.
    pub(crate) fn give_back(&self) {
        debug_assert!(!self.is_live(), "only what was revoked is given back");
        drop(self.memory.lock().take());
    }

    pub(crate) fn pin_count(&self) -> &PinCount {
        &self.pin_count
    }

    /// Revokes the binding of a window or a fast registration, and waits for its pins. No window can
    /// be bound to these, and each is removed from the table only once.
    pub(crate) fn retire(&self) {
        // `Table::discard` may have revoked it.
        self.pin_count.revoke();
        self.pin_count.drain();
        self.give_back();
        if let Some(parent) = &self.parent {
            parent.pin_count.remove_window();
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("stag", &self.stag)
            .field("pd", &self.pd.0)
            .field("access", &self.access)
            .field("stream", &self.stream)
            .field("base", &format_args!("{:#x}", self.base))
            .field("len", &self.len)
            .field("shared", &self.shared)
            .field("live", &self.is_live())
            .finish_non_exhaustive()
    }
}
