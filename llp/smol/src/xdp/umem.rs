//! Memory for frames, shared with the kernel. It consists of chunks of one size, each of which
//! belongs to one side at a time.

use std::io;
use std::ptr::NonNull;

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

/// Memory for frames, which is an anonymous mapping.
pub(super) struct Umem {
    at: NonNull<u8>,
    chunk: usize,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone. Its bytes are accessed only through `&mut self`
// of the socket that owns it, or by the kernel in chunks that it was given.
unsafe impl Send for Umem {}

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
        Ok(Self { at, chunk, len })
    }

    pub(super) fn address(&self) -> u64 {
        self.at.as_ptr() as u64
    }

    pub(super) fn len(&self) -> u64 {
        self.len as u64
    }

    /// Returns the start of the chunk that contains offset `at`.
    pub(super) fn chunk_of(&self, at: u64) -> u64 {
        at - at % self.chunk as u64
    }

    /// Returns the bytes from offset `at` on, which are in one chunk. The kernel has returned the
    /// chunk. If the kernel reports a range outside of the memory, the result is empty.
    pub(super) fn bytes(&mut self, at: u64, len: usize) -> &mut [u8] {
        let start = usize::try_from(at).unwrap_or(usize::MAX);
        let inside = start.checked_add(len).is_some_and(|end| end <= self.len);
        if !inside || len > self.chunk {
            return &mut [];
        }
        // SAFETY: the range is inside the mapping, whose bytes the kernel has zeroed. `&mut self`
        // excludes other references of ours, and the kernel does not access chunks that it has
        // returned.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr().add(start), len) }
    }

    /// Returns the address of the bytes that [`Umem::bytes`] would return, for a frame that
    /// outlives this call.
    pub(super) fn pointer(&mut self, at: u64, len: usize) -> (NonNull<u8>, usize) {
        let bytes = self.bytes(at, len);
        let len = bytes.len();
        (NonNull::from(bytes).cast(), len)
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and no reference to it exists. The socket is closed first
        // (`XdpSocket`'s field order).
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
    }
}
