//! Registered memory of the commands.

use crate::shared::fail::{Failure, Result};
use std::ops::Range;
use uiw::raw::{Access, Memory, Pd, RawMr, Remote, RemoteMr, STag, Sge};

/// Registered memory that requests name. The commands access a part of exclusive memory only while
/// none of their requests names that part. Memory that a peer may write at any time, or that several
/// receives name, is registered as shared, and the engine copies it atomically.
pub(crate) struct Buffer {
    mr: RawMr,
    /// The whole buffer. It is stored together with its address and key, which do not change, so
    /// that they need not be looked up for each message.
    whole: uiw_mem::Span,
    addr: u64,
    lkey: STag,
}

impl Buffer {
    /// Allocates memory that no peer can access, for sources, receives and destinations of Reads.
    pub(crate) fn exclusive(pd: &Pd, len: usize) -> Result<Self> {
        let buffer = Self::untouched(pd, len)?;
        buffer.clear()?;
        Ok(buffer)
    }

    /// Like [`Buffer::exclusive`], but does not touch the pages, so that a peer that sends nothing
    /// uses no memory.
    pub(crate) fn untouched(pd: &Pd, len: usize) -> Result<Self> {
        let memory = owned(len)?;
        // SAFETY: requests that place bytes into this memory name distinct parts, and the commands
        // access a part (through `read`, `write` and `first_difference`) only after they have taken
        // the completion of the request that named it.
        let memory = unsafe { memory.exclusive() };
        Self::register(pd, memory, len, Access::LOCAL_WRITE)
    }

    /// Allocates memory that peers can access with the rights `access`.
    pub(crate) fn shared(pd: &Pd, len: usize, access: Access) -> Result<Self> {
        let buffer = Self::register(pd, owned(len)?, len, access | Access::LOCAL_WRITE)?;
        buffer.clear()?;
        Ok(buffer)
    }

    fn register(pd: &Pd, memory: Memory, len: usize, access: Access) -> Result<Self> {
        let base = memory.as_ptr() as u64;
        let mr = pd.register_raw(memory, base, access)?;
        let whole = mr
            .region()
            .span(0, len)
            .map_err(|error| Failure::local("cannot access memory", error))?;
        let (addr, lkey) = (mr.addr(), mr.lkey());
        Ok(Self { mr, whole, addr, lkey })
    }

    pub(crate) fn sge(&self, range: Range<usize>) -> Sge {
        let length = u32::try_from(range.len()).unwrap_or(u32::MAX);
        Sge { addr: self.addr + range.start as u64, length, lkey: self.lkey }
    }

    pub(crate) fn whole(&self) -> Sge {
        self.sge(0..self.whole.len())
    }

    pub(crate) fn remote(&self) -> RemoteMr {
        RemoteMr { len: self.whole.len(), ..self.mr.remote() }
    }

    /// Returns the element of an inline request, with the address of `range` in this process.
    pub(crate) fn address(&self, range: Range<usize>) -> Sge {
        let length = u32::try_from(range.len()).unwrap_or(u32::MAX);
        Sge { addr: self.mr.region().as_ptr() as u64 + range.start as u64, length, lkey: STag(0) }
    }

    /// Zeroes the whole buffer, which also touches its pages.
    pub(crate) fn clear(&self) -> Result<()> {
        let zeros = [0; 64 << 10];
        let mut at = 0;
        while at < self.whole.len() {
            let len = zeros.len().min(self.whole.len() - at);
            self.write(at, &zeros[..len])?;
            at += len;
        }
        Ok(())
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.pin(offset, bytes.len())?.copy_from(offset, bytes).map_err(gone)
    }

    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.pin(offset, bytes.len())?.copy_to(offset, bytes).map_err(gone)
    }

    /// Returns the position, relative to `offset`, of the first byte that differs from `expected`.
    pub(crate) fn first_difference(&self, offset: usize, expected: &[u8]) -> Result<Option<usize>> {
        let mut block = vec![0; (64 << 10).min(expected.len())];
        for (index, want) in expected.chunks(block.len().max(1)).enumerate() {
            let at = index * block.len();
            let got = &mut block[..want.len()];
            self.read(offset + at, got)?;
            if got != want {
                let first = got.iter().zip(want).position(|(a, b)| a != b).unwrap_or_default();
                return Ok(Some(at + first));
            }
        }
        Ok(None)
    }

    pub(crate) fn stag(&self) -> STag {
        self.mr.rkey()
    }

    /// Pins the whole buffer, after checking that it contains the `len` bytes at `offset`.
    fn pin(&self, offset: usize, len: usize) -> Result<uiw_mem::PinnedSpan<'_>> {
        let failed = |why: &dyn std::fmt::Display| Failure::local("cannot access memory", why);
        if offset.saturating_add(len) > self.whole.len() {
            self.mr.region().span(offset, len).map_err(|error| failed(&error))?;
        }
        self.whole.pin().map_err(|gone| failed(&gone))
    }
}

fn gone(error: uiw_mem::MemoryGone) -> Failure {
    Failure::local("cannot access memory", error)
}

fn owned(len: usize) -> Result<Memory> {
    Memory::owned(len)
        .map_err(|error| Failure::local(format!("cannot allocate {len} bytes"), error))
}

/// Returns the place in the peer's memory that is `offset` bytes into `mr`.
pub(crate) fn remote_at(mr: RemoteMr, offset: u64) -> Remote {
    // A peer may name an address near the end of the address space. The engine refuses
    // ranges that exceed it.
    Remote { addr: mr.addr.wrapping_add(offset), rkey: mr.rkey }
}
