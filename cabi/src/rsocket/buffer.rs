//! Memory of rsockets' own that is registered.

use crate::boundary::Result;
use crate::errno::Errno;
use crate::rsocket::sys;
use crate::rsocket::wire::Target;
use std::ops::Range;
use std::sync::Arc;
use uiw_mem::Region;
use uiw_verbs::{Access, Memory, Pd, RawMr, Sge};

/// Registered memory of ours, which only copies reach.
pub(super) struct Buffer {
    region: Arc<Region>,
    mr: RawMr,
}

impl Buffer {
    /// `len` bytes that this process uses, and peers with `access`.
    ///
    /// # Errors
    /// ENOMEM
    pub(super) fn new(pd: &Pd, len: usize, access: Access) -> Result<Self> {
        let memory = Memory::owned(len)?;
        // Most connections use the first bytes of a long buffer only: a huge page would take 2 MiB for them.
        sys::use_small_pages(memory.as_ptr(), len);
        // SAFETY: the users (the ring of a stream's sending half, the slots of datagrams) give a byte to one request at a time, and do not
        // touch it before the request has completed; what peers reach is shared whatever is said here.
        let memory = unsafe { memory.exclusive() };
        let base = memory.as_ptr() as u64;
        let mr = pd.register_raw(memory, base, Access::LOCAL_WRITE | access)?;
        Ok(Self { region: mr.region(), mr })
    }

    /// Copies out of it.
    pub(super) fn read(&self, at: usize, to: &mut [u8]) -> Result<()> {
        let span = self.region.span(at, to.len()).map_err(|_| Errno::IO)?;
        span.pin().and_then(|pin| pin.copy_to(0, to)).map_err(|_| Errno::IO)
    }

    /// Copies into it.
    pub(super) fn write(&self, at: usize, from: &[u8]) -> Result<()> {
        let span = self.region.span(at, from.len()).map_err(|_| Errno::IO)?;
        span.pin().and_then(|pin| pin.copy_from(0, from)).map_err(|_| Errno::IO)
    }

    /// What a peer needs to write at `at`.
    pub(super) fn target(&self, at: usize, len: u32) -> Target {
        Target { addr: self.region.base() + at as u64, key: self.mr.rkey().0, len }
    }

    /// An element of a request.
    pub(super) fn sge(&self, range: Range<u32>) -> Sge {
        Sge {
            addr: self.region.base() + u64::from(range.start),
            length: range.end - range.start,
            lkey: self.mr.lkey(),
        }
    }
}
