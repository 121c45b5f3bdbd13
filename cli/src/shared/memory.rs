//! Registered memory of the commands.

use crate::shared::fail::{Failure, Result};
use std::ops::Range;
use uiw::raw::{Access, Memory, Pd, RawMr, Remote, RemoteMr, STag, Sge};

/// Bytes of the engine's that requests name. The commands copy in and out of a part only while no
/// request of theirs names it; what a peer may write at any time is registered shared and copied
/// atomically by the engine.
pub(crate) struct Buffer {
    mr: RawMr,
    /// All of it, and what requests call it: the same as long as it is registered, so that no
    /// message asks again.
    whole: uiw_mem::Span,
    addr: u64,
    lkey: STag,
}

impl Buffer {
    /// Memory that no peer reaches: sources, and places of receives and Reads.
    pub(crate) fn exclusive(pd: &Pd, len: usize) -> Result<Self> {
        let buffer = Self::untouched(pd, len)?;
        buffer.clear()?;
        Ok(buffer)
    }

    /// Like [`Buffer::exclusive`], without a page until something is placed there: what a peer that
    /// sends nothing costs.
    pub(crate) fn untouched(pd: &Pd, len: usize) -> Result<Self> {
        let memory = owned(len)?;
        // SAFETY: requests that place into it name distinct parts, and the commands look at a part
        // (through `read`, `write` and `differs`) only after they have taken the completion of the
        // request that named it.
        let memory = unsafe { memory.exclusive() };
        Self::register(pd, memory, len, Access::LOCAL_WRITE)
    }

    /// Memory that peers reach with `access`.
    pub(crate) fn shared(pd: &Pd, len: usize, access: Access) -> Result<Self> {
        let buffer = Self::register(pd, owned(len)?, len, access | Access::LOCAL_WRITE)?;
        buffer.clear()?;
        Ok(buffer)
    }

    fn register(pd: &Pd, memory: Memory, len: usize, access: Access) -> Result<Self> {
        let base = memory.as_ptr() as u64;
        let mr = pd.register_raw(memory, base, access)?;
        let whole =
            mr.region().span(0, len).map_err(|error| Failure::local("cannot access memory", error))?;
        let (addr, lkey) = (mr.addr(), mr.lkey());
        Ok(Self { mr, whole, addr, lkey })
    }

    pub(crate) fn sge(&self, range: Range<usize>) -> Sge {
        let length = u32::try_from(range.len()).unwrap_or(u32::MAX);
        Sge { addr: self.addr + range.start as u64, length, lkey: self.lkey }
    }

    pub(crate) fn remote(&self) -> RemoteMr {
        RemoteMr { len: self.whole.len(), ..self.mr.remote() }
    }

    /// Bytes `range` by our own address: for inline requests.
    pub(crate) fn address(&self, range: Range<usize>) -> Sge {
        let length = u32::try_from(range.len()).unwrap_or(u32::MAX);
        Sge { addr: self.mr.region().as_ptr() as u64 + range.start as u64, length, lkey: STag(0) }
    }

    /// Zeroes all of it (and touches its pages).
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

    /// Where bytes from `offset` on differ from `expected`, counted from there.
    pub(crate) fn differs(&self, offset: usize, expected: &[u8]) -> Result<Option<usize>> {
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

    /// All of it, if the `len` bytes from `offset` on are inside.
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
    Memory::owned(len).map_err(|error| Failure::local(format!("cannot allocate {len} bytes"), error))
}

/// A place in the peer's memory, `offset` bytes into `mr`.
pub(crate) fn at(mr: RemoteMr, offset: u64) -> Remote {
    // A peer may name an address near the end of all: the engine refuses what goes beyond.
    Remote { addr: mr.addr.wrapping_add(offset), rkey: mr.rkey }
}
