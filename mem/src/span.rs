//! Checked ranges of regions, and the pins under which their bytes may be accessed.

use core::{
    fmt,
    mem::MaybeUninit,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};
use std::sync::Arc;

use uiw_crc32c::Crc32c;
use uiw_ddp::STag;

use crate::{
    IoVec, LocalError, MemoryGone, PageState, Region, Unaligned, UpdateError, copy, iovec::check,
    protected, recover,
};

/// Block size in which shared bytes are copied for a CRC: large enough that starting the CRC does
/// not matter, and small enough to stay in the first-level cache.
const CRC_BLOCK: usize = 4096;

/// Range of a region that has passed all checks. Its bytes are accessible only through a
/// [`PinnedSpan`].
#[derive(Clone)]
pub struct Span {
    region: Arc<Region>,
    offset: usize,
    len: usize,
}

impl Span {
    pub(crate) fn new(region: Arc<Region>, offset: usize, len: usize) -> Self {
        debug_assert!(offset + len <= region.len());
        Self { region, offset, len }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the STag from which it was resolved.
    pub fn stag(&self) -> STag {
        self.region.stag()
    }

    /// Returns the region, window binding or fast registration.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Returns the address of the first byte (see [`Region::as_ptr`]).
    pub fn as_ptr(&self) -> *mut u8 {
        self.region.as_ptr().wrapping_add(self.offset)
    }

    /// Returns whether all accesses must be atomic ([`Region::is_shared`]).
    pub fn is_shared(&self) -> bool {
        self.region.is_shared()
    }

    /// Returns a part of the span.
    ///
    /// # Panics
    /// If `range` is out of bounds.
    pub fn sub(&self, range: Range<usize>) -> Self {
        check(&range, self.len);
        Self { region: self.region.clone(), offset: self.offset + range.start, len: range.len() }
    }

    /// Pins the span, so that its region does not end until the pin is dropped.
    ///
    /// Deregistration and invalidation wait for the pin. Hold it only for one copy or one
    /// non-blocking system call, and revoke nothing on the same thread meanwhile.
    ///
    /// # Errors
    /// [`MemoryGone`] if the region has ended, or some of the bytes were discarded.
    pub fn pin(&self) -> Result<PinnedSpan<'_>, MemoryGone> {
        PinnedSpan::new(&self.region, self.offset, self.len).ok_or(MemoryGone { stag: self.stag() })
    }
}

impl Region {
    /// Returns the `len` bytes at `offset`, counted from the first byte, for use by the program
    /// itself.
    ///
    /// # Errors
    /// [`LocalError::OutOfRange`] if the range exceeds the region.
    pub fn span(self: &Arc<Self>, offset: usize, len: usize) -> Result<Span, LocalError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => Ok(Span::new(self.clone(), offset, len)),
            _ => Err(LocalError::OutOfRange {
                lkey: self.stag(),
                addr: offset as u64,
                len: len as u64,
            }),
        }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span({}, {} + {})", self.region.stag(), self.offset, self.len)
    }
}

/// Pinned span, whose bytes stay valid until it is dropped. Offsets count from the beginning of the
/// span.
#[must_use]
pub struct PinnedSpan<'a> {
    region: &'a Arc<Region>,
    offset: usize,
    len: usize,
    /// True if this pin is counted. Otherwise it is a part of a counted pin that outlives it.
    counted: bool,
}

impl<'a> PinnedSpan<'a> {
    /// Pins a range that has passed all checks. Returns `None` if the region has ended, or some of
    /// the bytes were discarded.
    pub(crate) fn new(region: &'a Arc<Region>, offset: usize, len: usize) -> Option<Self> {
        debug_assert!(offset + len <= region.len());
        if !region.pin_count().enter() {
            return None;
        }
        let pinned = Self { region, offset, len, counted: true };
        region.has(offset, len).then_some(pinned)
    }

    /// Creates a pin under a counted one that is held for `'a`. Returns `None` if some of the bytes
    /// were discarded.
    #[inline]
    pub(crate) fn lent(region: &'a Arc<Region>, offset: usize, len: usize) -> Option<Self> {
        debug_assert!(offset + len <= region.len());
        debug_assert!(region.pins() > 0, "the lender has a pin");
        if region.has(offset, len) {
            Some(Self { region, offset, len, counted: false })
        } else {
            None
        }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Like [`Span::is_shared`].
    pub fn is_shared(&self) -> bool {
        self.region.is_shared()
    }

    #[cold]
    fn gone(&self) -> MemoryGone {
        MemoryGone { stag: self.region.stag() }
    }

    #[inline]
    fn found(&self, found: bool) -> Result<(), MemoryGone> {
        if found { Ok(()) } else { Err(self.gone()) }
    }

    /// Returns a span of the same bytes, to be pinned again later.
    pub fn to_span(&self) -> Span {
        Span { region: self.region.clone(), offset: self.offset, len: self.len }
    }

    /// Returns the address of the byte at `range.start`, after checking that `range` is within the
    /// span.
    #[inline]
    fn at(&self, range: &Range<usize>) -> *mut u8 {
        check(range, self.len);
        // SAFETY: the pinned bytes are within their region, and `range` is within these bytes.
        unsafe { self.region.as_ptr().add(self.offset + range.start) }
    }

    /// Returns the page state if the program has protected one of the pages of `len` pinned bytes
    /// at `start`.
    #[cold]
    fn protected(&self, start: *const u8, len: usize) -> Option<&PageState> {
        self.region.protected(start.addr() - self.region.as_ptr().addr(), len)
    }

    /// Returns whether the program has ever protected a page of `range`. Then a copy
    /// ([`PinnedSpan::copy_to_vec`]) may succeed although a system call with [`PinnedSpan::io_vec`]
    /// fails with EFAULT.
    ///
    /// # Panics
    /// If `range` is out of bounds.
    #[inline]
    pub fn is_protected(&self, range: &Range<usize>) -> bool {
        check(range, self.len);
        self.region.protected(self.offset + range.start, range.len()).is_some()
    }

    #[cfg(test)]
    pub(crate) fn at_for_test(&self) -> usize {
        self.at(&(0..self.len())).addr()
    }

    /// Returns the bytes of `range`, to be sent by a system call.
    ///
    /// # Panics
    /// If `range` is out of bounds.
    pub fn io_vec(&self, range: Range<usize>) -> IoVec<'_> {
        // SAFETY: the pin keeps the bytes as long as the result exists, except those that a program
        // unmaps. They are modified only atomically, or not at all if the memory is exclusive.
        unsafe { IoVec::from_raw(self.at(&range), range.len()) }
    }

    /// Fills `dst` with the bytes from `offset` on.
    ///
    /// # Errors
    /// [`MemoryGone`] if a program has unmapped some of the bytes; the contents of `dst` are then
    /// unspecified.
    ///
    /// # Panics
    /// If the bytes are out of bounds.
    #[inline]
    pub fn copy_to(&self, offset: usize, dst: &mut [u8]) -> Result<(), MemoryGone> {
        let src = self.at(&(offset..offset.saturating_add(dst.len())));
        // SAFETY: `at` has checked the range, and `dst` is a private slice.
        self.found(unsafe { self.load(dst.as_mut_ptr(), src, dst.len()) })
    }

    /// Copies out of the pinned bytes. Returns false if some are not accessible.
    ///
    /// # Safety
    /// `src` points to pinned bytes and `dst` to private ones, `len` of each.
    #[inline(always)]
    unsafe fn load(&self, dst: *mut u8, src: *const u8, len: usize) -> bool {
        // SAFETY: the caller guarantees both ranges, and the pin keeps `src` valid. If the memory
        // is exclusive, the caller of `Memory::exclusive` has excluded all other accesses.
        unsafe {
            if self.region.may_be_gone() {
                let plain = |dst, src, len| {
                    if self.is_shared() {
                        recover::load(dst, src, len)
                    } else {
                        recover::copy(dst, src, len)
                    }
                };
                return plain(dst, src, len)
                    || self
                        .protected(src, len)
                        .is_some_and(|state| protected::load(state, dst, src, len, plain));
            }
            if self.is_shared() {
                copy::load(dst, src, len);
            } else {
                copy::plain(dst, src, len);
            }
        }
        true
    }

    /// Like [`PinnedSpan::load`], but continues `crc` over the copied bytes.
    ///
    /// # Safety
    /// The requirements of [`PinnedSpan::load`] apply.
    #[inline]
    unsafe fn load_with_crc(
        &self,
        dst: *mut u8,
        src: *const u8,
        len: usize,
        crc: &mut Crc32c,
    ) -> bool {
        // SAFETY: the caller guarantees both ranges, and the pin keeps `src` valid. `load` has
        // filled `dst`.
        unsafe {
            if recover::load_crc(dst, src, len, crc) == Some(true) {
                return true;
            }
            // The processor has no such instructions, or a page is protected or gone.
            let found = self.load(dst, src, len);
            if found {
                *crc = crc.update(core::slice::from_raw_parts(dst, len));
            }
            found
        }
    }

    /// Appends the bytes of `range` to `dst`.
    ///
    /// # Errors
    /// [`MemoryGone`] if a program has unmapped some of the bytes; `dst` is then unchanged.
    ///
    /// # Panics
    /// If `range` is out of bounds.
    #[inline]
    pub fn copy_to_vec(&self, range: Range<usize>, dst: &mut Vec<u8>) -> Result<(), MemoryGone> {
        let (src, len) = (self.at(&range), range.len());
        dst.reserve(len);
        // SAFETY: `at` has checked the range. `reserve` has made room, which becomes a part of the
        // vector only after it was filled.
        unsafe {
            let found = self.load(dst.spare_capacity_mut().as_mut_ptr().cast(), src, len);
            if found {
                dst.set_len(dst.len() + len);
            }
            self.found(found)
        }
    }

    /// Like [`PinnedSpan::copy_to_vec`], but also returns `crc` continued over the bytes that were
    /// appended. If the processor can, each byte is read only once for both.
    ///
    /// # Errors
    /// The errors of [`PinnedSpan::copy_to_vec`].
    ///
    /// # Panics
    /// If `range` is out of bounds.
    #[inline]
    pub fn copy_to_vec_with_crc(
        &self,
        range: Range<usize>,
        dst: &mut Vec<u8>,
        crc: Crc32c,
    ) -> Result<Crc32c, MemoryGone> {
        let (src, len) = (self.at(&range), range.len());
        dst.reserve(len);
        let mut crc = crc;
        // SAFETY: `at` has checked the range. `reserve` has made room, which becomes a part of the
        // vector only after it was filled.
        unsafe {
            let found = self.load_with_crc(
                dst.spare_capacity_mut().as_mut_ptr().cast(),
                src,
                len,
                &mut crc,
            );
            self.found(found)?;
            dst.set_len(dst.len() + len);
        }
        Ok(crc)
    }

    /// Copies `src` to `offset`. In shared memory the last bytes become visible last.
    ///
    /// # Errors
    /// [`MemoryGone`] if a program has unmapped some of the bytes; others may have been written.
    ///
    /// # Panics
    /// If `src` does not fit.
    #[inline]
    pub fn copy_from(&self, offset: usize, src: &[u8]) -> Result<(), MemoryGone> {
        let dst = self.at(&(offset..offset.saturating_add(src.len())));
        let (from, len) = (src.as_ptr(), src.len());
        // SAFETY: `at` has checked the range, and the pin keeps it valid. `src` is a slice, so no
        // peer can access it, and the ranges do not overlap. If the memory is exclusive, the caller
        // of `Memory::exclusive` has excluded all other accesses.
        unsafe {
            if self.region.may_be_gone() {
                let plain = |dst, from, len| {
                    if self.is_shared() {
                        recover::store(dst, from, len)
                    } else {
                        recover::copy(dst, from, len)
                    }
                };
                return self.found(
                    plain(dst, from, len)
                        || self
                            .protected(dst, len)
                            .is_some_and(|state| protected::store(state, dst, from, len, plain)),
                );
            }
            if self.is_shared() {
                copy::store(dst, from, len);
            } else {
                copy::plain(dst, from, len);
            }
        }
        Ok(())
    }

    /// Continues `crc` over the bytes of `range`. Bytes that may change or become inaccessible are
    /// copied for it, block by block.
    ///
    /// # Errors
    /// [`MemoryGone`] if a program has unmapped some of the bytes.
    ///
    /// # Panics
    /// If `range` is out of bounds.
    pub fn update_crc(&self, range: Range<usize>, mut crc: Crc32c) -> Result<Crc32c, MemoryGone> {
        let src = self.at(&range);
        if !self.is_shared() && !self.region.may_be_gone() {
            // SAFETY: `at` has checked the range, the pin keeps it valid, and exclusive memory in
            // flight is not written.
            return Ok(crc.update(unsafe { core::slice::from_raw_parts(src, range.len()) }));
        }
        let mut block = [const { MaybeUninit::<u8>::uninit() }; CRC_BLOCK];
        let mut done = 0;
        while done < range.len() {
            let len = CRC_BLOCK.min(range.len() - done);
            // SAFETY: `done + len` is within the range, and the block has room for `len` bytes.
            let found = unsafe {
                self.load_with_crc(block.as_mut_ptr().cast(), src.add(done), len, &mut crc)
            };
            self.found(found)?;
            done += len;
        }
        Ok(crc)
    }

    /// Replaces the eight bytes at `offset`, a number in the byte order of this machine, by the
    /// result of `f`, atomically for all threads of this process. `f` may be called several times.
    /// Returns the previous number.
    ///
    /// # Errors
    /// An [`UpdateError`]; nothing has changed then (RFC 7306 5.1.1, 5.1.2).
    ///
    /// # Panics
    /// If the eight bytes are out of bounds.
    pub fn atomic_u64(
        &self,
        offset: usize,
        mut f: impl FnMut(u64) -> u64,
    ) -> Result<u64, UpdateError> {
        let at = self.aligned(offset)?;
        if self.region.may_be_gone() {
            // SAFETY: the address is aligned. Other accesses are atomic, or excluded if the memory
            // is exclusive.
            return Ok(unsafe { recover::update(at, self.region.stag(), f) }?);
        }
        // SAFETY: the address is aligned and within the pinned bytes, which are accessible and which
        // the pin keeps valid. Other accesses are atomic, or excluded if the memory is exclusive.
        let cell = unsafe { AtomicU64::from_ptr(at) };
        // Sequentially consistent, so that it is ordered with other atomics, and with the copies
        // before and after it in this stream.
        Ok(cell
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |old| Some(f(old)))
            .unwrap_or_else(|old| old))
    }

    /// Returns the eight bytes at `offset` as an atomic number, coherent with the atomic operations
    /// of peers.
    ///
    /// # Errors
    /// An [`UpdateError`]. Memory that a program may unmap counts as gone.
    ///
    /// # Panics
    /// If the eight bytes are out of bounds.
    pub fn atomic_cell(&self, offset: usize) -> Result<&AtomicU64, UpdateError> {
        let at = self.aligned(offset)?;
        if self.region.may_be_gone() {
            return Err(self.gone().into());
        }
        // SAFETY: the address is aligned and within the pinned bytes, which are accessible and which
        // the pin keeps valid as long as the result exists. Other accesses are atomic, or excluded
        // if the memory is exclusive.
        Ok(unsafe { AtomicU64::from_ptr(at) })
    }

    /// Returns the address of the eight bytes at `offset`.
    #[inline]
    fn aligned(&self, offset: usize) -> Result<*mut u64, Unaligned> {
        let at: *mut u64 = self.at(&(offset..offset.saturating_add(8))).cast();
        if at.is_aligned() { Ok(at) } else { Err(Unaligned { address: at.addr() }) }
    }
}

impl Drop for PinnedSpan<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.counted {
            self.region.pin_count().leave();
        }
    }
}

impl fmt::Debug for PinnedSpan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({}, {} + {})", self.region.stag(), self.offset, self.len)
    }
}
