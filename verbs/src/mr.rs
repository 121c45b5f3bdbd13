//! Memory regions and windows of a protection domain.

use crate::error::{Error, Result};
use crate::faults::Call;
use crate::pd::Pd;
use crate::wr::{Bind, FastRegister, Remote, Sge};
use std::ops::Range;
use std::sync::Arc;
use uiw_ddp::STag;
use uiw_mem::{
    Access, BindError, FastRegisterError, LocalError, Memory, PdId, Region, Rereg, StreamId, Table,
    Window, WindowType,
};

/// A peer's memory, as the peer describes it in a message of the application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteMr {
    /// Tagged offset of the first byte.
    pub addr: u64,
    /// STag.
    pub rkey: STag,
    /// Length in bytes.
    pub len: usize,
}

impl RemoteMr {
    /// Length in bytes of the encoding that [`RemoteMr::to_bytes`] returns.
    pub const LEN: usize = 20;

    /// Encodes the address, length and key for a message, all big-endian.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&self.addr.to_be_bytes());
        out[8..16].copy_from_slice(&(self.len as u64).to_be_bytes());
        out[16..].copy_from_slice(&self.rkey.0.to_be_bytes());
        out
    }

    /// Decodes bytes that [`RemoteMr::to_bytes`] has returned.
    ///
    /// # Errors
    /// [`Error::RemoteAddress`] if the number of bytes is not [`RemoteMr::LEN`]; [`Error::Limit`]
    /// if the memory is longer than this machine can address.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        if bytes.len() != Self::LEN {
            return Err(Error::RemoteAddress { given: bytes.len() });
        }
        let number = |range: Range<usize>| {
            bytes[range].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        let asked = number(8..16);
        let too_long =
            |_| Error::Limit { what: "length of remote memory", asked, limit: usize::MAX as u64 };
        let len = usize::try_from(asked).map_err(too_long)?;
        Ok(Self { addr: number(0..8), len, rkey: STag(number(16..20) as u32) })
    }

    /// Returns the part of this memory in `range`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if `range` exceeds the memory.
    pub fn slice(self, range: Range<usize>) -> Result<Self> {
        let Some(len) = range.end.checked_sub(range.start).filter(|_| range.end <= self.len) else {
            let (offset, end, len) = (range.start as u64, range.end as u64, self.len as u64);
            return Err(Error::OutOfRange { offset, end, len });
        };
        Ok(Self { addr: self.addr.wrapping_add(range.start as u64), rkey: self.rkey, len })
    }
}

impl From<RemoteMr> for Remote {
    fn from(mr: RemoteMr) -> Self {
        Self { addr: mr.addr, rkey: mr.rkey }
    }
}

/// Registered memory region (`ibv_mr`). Dropping it deregisters the memory, unless windows are still
/// bound: then it stays registered as long as the device exists.
pub struct RawMr {
    pd: Pd,
    region: Arc<Region>,
    is_deregistered: bool,
}

impl std::fmt::Debug for RawMr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawMr").field("lkey", &self.lkey()).finish_non_exhaustive()
    }
}

impl RawMr {
    /// Returns the protection domain.
    #[inline]
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Returns the region in the device's table.
    #[inline]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Returns the key for scatter/gather elements of this process.
    #[inline]
    pub fn lkey(&self) -> STag {
        self.region.stag()
    }

    /// Returns the key for peers, which is the same STag. It is of no use to them unless the region
    /// has a remote access right.
    #[inline]
    pub fn rkey(&self) -> STag {
        self.region.stag()
    }

    /// Returns the tagged offset of the first byte.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.region.base()
    }

    /// Returns the number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// Returns whether the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Describes the whole region for a peer.
    pub fn remote(&self) -> RemoteMr {
        RemoteMr { addr: self.addr(), rkey: self.rkey(), len: self.len() }
    }

    /// Changes the protection domain, the memory or the access rights (`ibv_rereg_mr`). The keys
    /// change with the memory.
    ///
    /// # Errors
    /// A [`uiw_mem::ReregError`] if the change is refused; the region is then unchanged.
    pub fn rereg(
        &mut self,
        pd: Option<&Pd>,
        memory: Option<(Memory, u64)>,
        access: Option<Access>,
    ) -> std::result::Result<(), uiw_mem::ReregError> {
        if pd.is_some_and(|pd| !Arc::ptr_eq(pd.driver(), self.pd.driver())) {
            return Err(uiw_mem::ReregError::OtherDevice);
        }
        let change = Rereg { pd: pd.map(Pd::id), memory, access };
        self.region = self.pd.driver().shared.table.rereg(self.lkey(), change)?;
        if let Some(pd) = pd {
            self.pd = pd.clone();
        }
        Ok(())
    }

    /// Deregisters the region. After it has returned, no byte of the region is accessed any more.
    ///
    /// # Errors
    /// [`Error::Deregister`] while windows are bound; the region stays registered.
    pub fn deregister(mut self) -> std::result::Result<(), (Error, Self)> {
        match self.pd.driver().shared.table.deregister(self.lkey()) {
            Ok(()) => {
                self.is_deregistered = true;
                Ok(())
            }
            Err(error) => Err((error.into(), self)),
        }
    }
}

impl Drop for RawMr {
    fn drop(&mut self) {
        if !self.is_deregistered {
            let _ = self.pd.driver().shared.table.deregister(self.lkey());
        }
    }
}

/// Memory window (`ibv_mw`). Dropping it revokes the access that it granted.
pub struct RawMw {
    pd: Pd,
    window: Arc<Window>,
    kind: WindowType,
}

impl std::fmt::Debug for RawMw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawMw")
            .field("stag", &self.stag())
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl RawMw {
    /// Returns the protection domain.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Returns the type.
    #[must_use]
    pub fn kind(&self) -> WindowType {
        self.kind
    }

    /// Returns the current STag.
    #[must_use]
    pub fn stag(&self) -> STag {
        self.window.stag()
    }
}

impl Drop for RawMw {
    fn drop(&mut self) {
        self.pd.driver().shared.table.dealloc(&self.window);
    }
}

/// Fast-register STag. Dropping it frees the STag and ends access to the memory.
pub struct FastMr {
    pd: Pd,
    entry: Arc<uiw_mem::Entry>,
}

impl std::fmt::Debug for FastMr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FastMr").field("stag", &self.stag()).finish_non_exhaustive()
    }
}

impl FastMr {
    /// Returns the current STag.
    #[must_use]
    pub fn stag(&self) -> STag {
        self.entry.stag()
    }
}

impl Drop for FastMr {
    fn drop(&mut self) {
        self.pd.driver().shared.table.dealloc(&self.entry);
    }
}

impl Pd {
    /// Registers memory. `base` is the tagged offset of its first byte, for peers and for local
    /// elements.
    ///
    /// # Errors
    /// [`Error::Register`] if the memory cannot be registered.
    pub fn register_raw(&self, memory: Memory, base: u64, access: Access) -> Result<RawMr> {
        let shared = &self.driver().shared;
        shared.call(Call::RegMr)?;
        let region = shared.table.register(self.id(), memory, base, access)?;
        Ok(RawMr { pd: self.clone(), region, is_deregistered: false })
    }

    /// Returns the addresses of the bytes of a local element, which is to be written if `write` is
    /// true.
    ///
    /// # Errors
    /// The [`LocalError`] for which the element is invalid.
    pub fn resolve(&self, sge: Sge, write: bool) -> std::result::Result<Range<usize>, LocalError> {
        let table = &self.driver().shared.table;
        let span = table.local(sge.lkey, self.id(), sge.addr, sge.length, write)?;
        let start = span.as_ptr().addr();
        Ok(start..start + span.len())
    }

    /// Allocates a memory window that is not bound.
    ///
    /// # Errors
    /// [`Error::Register`] when the device has no STag left.
    pub fn alloc_window(&self, kind: WindowType) -> Result<RawMw> {
        let window = self.driver().shared.table.alloc_window(self.id(), kind)?;
        Ok(RawMw { pd: self.clone(), window, kind })
    }

    /// Allocates an STag for fast-register requests of at most `max_len` bytes.
    ///
    /// # Errors
    /// [`Error::Register`] when the device has no STag left.
    pub fn alloc_fast(&self, max_len: u64) -> Result<FastMr> {
        let entry = self.driver().shared.table.alloc_fast(self.id(), max_len)?;
        Ok(FastMr { pd: self.clone(), entry })
    }
}

/// Executes a bind request.
pub(crate) fn bind(
    table: &Table,
    bind: &Bind,
    pd: PdId,
    stream: StreamId,
) -> std::result::Result<STag, BindError> {
    let window = table.entry(bind.window).ok_or(BindError::NotAWindow { stag: bind.window })?;
    if window.pd() != pd {
        return Err(BindError::ProtectionDomain { window: window.pd(), region: pd });
    }
    // A window of type 1 is unbound without a region.
    if bind.length == 0
        && let Ok(stag) = table.unbind(&window)
    {
        return Ok(stag);
    }
    let region = table.region(bind.region).ok_or(BindError::NotARegion { stag: bind.region })?;
    let key = Some(bind.new_stag.key());
    table.bind(&window, &region, Some(stream), bind.addr, bind.length, bind.access, key)
}

/// Executes a fast-register request.
pub(crate) fn fast_register(
    table: &Table,
    request: &FastRegister,
    pd: PdId,
    stream: StreamId,
) -> std::result::Result<(), FastRegisterError> {
    let stag = request.stag;
    let entry = table.entry(stag).filter(|entry| entry.pd() == pd);
    let entry = entry.ok_or(FastRegisterError::NotFastRegister { stag })?;
    let len = usize::try_from(request.length).unwrap_or(usize::MAX);
    // SAFETY: the request came through `Qp::post_send`, whose caller vouches for the memory of a
    // fast-register request until its STag is invalidated or freed.
    let memory = unsafe { Memory::borrowed(request.addr as *mut u8, len) }.shared();
    table.fast_register(&entry, memory, request.base, request.access, Some(stream), stag.key())?;
    Ok(())
}
