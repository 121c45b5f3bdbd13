//! Memory for frames, shared with the kernel. It consists of chunks of one size, each of which
//! belongs to one side at a time.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// Number of bytes that the kernel leaves free before a frame (XDP_PACKET_HEADROOM).
const HEADROOM: usize = 256;
/// Number of chunks. One half is for receiving and the other half for sending; each half exceeds a
/// window of segments.
pub(super) const CHUNKS: u32 = 4096;

/// Layout of frames in the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Size of a chunk in bytes: 2048 or 4096.
    pub(super) chunk: usize,
    /// True if a frame may need several chunks.
    pub(super) several: bool,
}

impl Layout {
    /// Computes the layout for frames of at most `len` bytes.
    pub(super) fn for_frames(len: usize) -> Self {
        let chunk = if len + HEADROOM <= 2048 { 2048 } else { 4096 };
        Self { chunk, several: len + HEADROOM > chunk }
    }
}

/// Memory for frames.
pub(super) struct Umem {
    mapping: Arc<Mapping>,
    chunk: usize,
}

/// Anonymous mapping.
struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

/// Bytes of a chunk that the kernel has returned. It keeps the memory, since it may outlive its
/// socket.
pub(super) struct Chunk {
    mapping: Arc<Mapping>,
    /// Offset of the first byte in the memory.
    at: u64,
    len: usize,
}

impl Chunk {
    /// Returns the bytes. If the kernel has reported a range outside of the memory, the result is
    /// empty.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        let Some(at) = self.mapping.pointer(self.at, self.len) else { return &mut [] };
        // SAFETY: the range is inside the mapping, whose bytes the kernel has zeroed. `&mut self`
        // excludes other references, because the socket calls `Umem::take` once for each chunk that
        // the kernel returns, and gives the chunk to the kernel after `Umem::give_back` only.
        unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), self.len) }
    }
}

// SAFETY: a mapping may be removed on any thread.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference gives no access to the bytes. They are accessed through `&mut` of the
// `Chunk` or the `Umem`, or by the kernel in chunks that it was given.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Returns the address of the byte at offset `at`, or `None` if fewer than `len` bytes follow.
    fn pointer(&self, at: u64, len: usize) -> Option<NonNull<u8>> {
        let at = usize::try_from(at).ok()?;
        // SAFETY: the offset is inside the mapping.
        (at.checked_add(len)? <= self.len).then(|| unsafe { self.at.add(at) })
    }
}

impl Umem {
    pub(super) fn new(chunk: usize, chunks: u32) -> io::Result<Self> {
        let len = chunk * chunks as usize;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping does not affect existing memory.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { mapping: Arc::new(Mapping { at, len }), chunk })
    }

    pub(super) fn address(&self) -> u64 {
        self.mapping.at.as_ptr() as u64
    }

    pub(super) fn len(&self) -> u64 {
        self.mapping.len as u64
    }

    /// Returns the start of the chunk that contains offset `at`.
    pub(super) fn chunk_of(&self, at: u64) -> u64 {
        at - at % self.chunk as u64
    }

    /// Returns the bytes from offset `at` on, which are in one chunk that is free or that the kernel
    /// has returned. If the range is outside of the memory, the result is empty.
    pub(super) fn bytes(&mut self, at: u64, len: usize) -> &mut [u8] {
        let len = len.min(self.chunk);
        let Some(at) = self.mapping.pointer(at, len) else { return &mut [] };
        // SAFETY: the range is inside the mapping, whose bytes the kernel has zeroed. `&mut self`
        // excludes other references, because no `Chunk` has this range: each chunk is either free,
        // with the kernel, or returned.
        unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), len) }
    }

    /// Like [`Umem::bytes`], for a chunk that the kernel has just returned, until
    /// [`Umem::give_back`].
    pub(super) fn take(&mut self, at: u64, len: usize) -> Chunk {
        Chunk { mapping: Arc::clone(&self.mapping), at, len: len.min(self.chunk) }
    }

    /// Returns the start of a chunk that the kernel may fill again, or `None` if the chunk is of
    /// another memory.
    pub(super) fn give_back(&mut self, chunk: Chunk) -> Option<u64> {
        Arc::ptr_eq(&chunk.mapping, &self.mapping).then(|| self.chunk_of(chunk.at))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and neither the `Umem` nor a frame refers to it any more. A
        // socket that is still open has its own references to the pages.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_outlives_socket_memory() {
        let (mut first, mut second) = (Umem::new(2048, 2).unwrap(), Umem::new(2048, 2).unwrap());
        first.bytes(2058, 3).copy_from_slice(b"abc");
        let (mut kept, returned) = (first.take(2058, 3), first.take(300, 100));
        assert_eq!(first.give_back(returned), Some(0));
        drop(first);
        assert_eq!(kept.bytes(), b"abc");
        assert_eq!(second.give_back(kept), None, "the chunk of another memory");
    }

    #[test]
    fn ranges_outside_are_empty() {
        let mut umem = Umem::new(2048, 2).unwrap();
        for (at, len) in [(4096, 1), (4095, 2), (u64::MAX, 1)] {
            assert!(
                umem.bytes(at, len).is_empty() && umem.take(at, len).bytes().is_empty(),
                "{at}, {len}"
            );
        }
        assert_eq!(umem.bytes(4095, 1), [0]);
    }
}
