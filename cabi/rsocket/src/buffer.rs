//! Registered memory of rsockets.

use crate::sys;
use crate::wire::Target;
use std::ops::Range;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;
use uiw_mem::Span;
use uiw_verbs::{Access, Memory, Pd, RawMr, STag, Sge};

/// Registered memory of this library, which is only accessed by copying.
pub(super) struct Buffer {
    /// Span of the whole buffer.
    span: Span,
    base: u64,
    lkey: STag,
    rkey: STag,
    /// Registration of the memory, which ends on drop.
    _mr: RawMr,
}

impl Buffer {
    /// Allocates `len` bytes that this process uses, and that peers can use according to `access`.
    ///
    /// # Errors
    /// ENOMEM.
    pub(super) fn new(pd: &Pd, len: usize, access: Access) -> Result<Self> {
        let memory = Memory::owned(len)?;
        // Most connections use only the first bytes of a long buffer, and a huge page would take 2
        // MiB for them.
        sys::use_small_pages(memory.as_ptr(), len);
        // SAFETY: the users (`Link`, `Endpoint`) access no byte that an unfinished request names.
        // They write a part of the ring or a slot for sending again only after its completion, or
        // if its request was refused, and read a receive only between its completion and its next
        // posting. Bytes that peers can access are not copied by `memcpy` anyway (`exclusive`).
        let memory = unsafe { memory.exclusive() };
        let base = memory.as_ptr() as u64;
        let mr = pd.register_raw(memory, base, Access::LOCAL_WRITE | access)?;
        let span = mr.region().span(0, len).map_err(|_| Errno::IO)?;
        Ok(Self { span, base, lkey: mr.lkey(), rkey: mr.rkey(), _mr: mr })
    }

    /// Checks that `len` bytes at `at` are inside the buffer, which the arithmetic of the users
    /// ensures.
    fn check(&self, at: usize, len: usize) -> Result<()> {
        let is_inside = at.checked_add(len).is_some_and(|end| end <= self.span.len());
        if is_inside { Ok(()) } else { Err(Errno::IO) }
    }

    /// Copies bytes out of the buffer.
    pub(super) fn read(&self, at: usize, to: &mut [u8]) -> Result<()> {
        self.check(at, to.len())?;
        self.span.pin().and_then(|pin| pin.copy_to(at, to)).map_err(|_| Errno::IO)
    }

    /// Copies bytes into the buffer.
    pub(super) fn write(&self, at: usize, from: &[u8]) -> Result<()> {
        self.check(at, from.len())?;
        self.span.pin().and_then(|pin| pin.copy_from(at, from)).map_err(|_| Errno::IO)
    }

    /// Returns the target that a peer needs to write at `at`.
    pub(super) fn target(&self, at: usize, len: u32) -> Target {
        Target { addr: self.base + at as u64, key: self.rkey.0, len }
    }

    /// Returns an element for a request.
    pub(super) fn sge(&self, range: Range<u32>) -> Sge {
        Sge {
            addr: self.base + u64::from(range.start),
            length: range.end - range.start,
            lkey: self.lkey,
        }
    }
}
