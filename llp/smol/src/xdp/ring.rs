//! Rings shared with the kernel. One side produces and the other one consumes, and each side writes
//! its own index.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Ring of `T`, whose other side is the kernel.
pub(super) struct Ring<T> {
    map: NonNull<u8>,
    map_len: usize,
    offsets: libc::xdp_ring_offset,
    mask: u32,
    /// Our index.
    own: u32,
    /// Index of the other side when it was last read.
    other: u32,
    entries: PhantomData<T>,
}

// SAFETY: on our side the mapping belongs to this value alone.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Maps a ring of `size` entries (a power of two) of socket `fd`, at `page_offset`.
    pub(super) fn map(
        fd: BorrowedFd<'_>,
        page_offset: i64,
        offsets: libc::xdp_ring_offset,
        size: u32,
    ) -> io::Result<Self> {
        debug_assert!(size.is_power_of_two());
        let map_len = offsets.desc as usize + size as usize * size_of::<T>();
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping of the socket's ring does not affect existing memory.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                map_len,
                protection,
                flags,
                fd.as_raw_fd(),
                page_offset,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let map = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { map, map_len, offsets, mask: size - 1, own: 0, other: 0, entries: PhantomData })
    }

    fn index(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: the kernel reports offsets of aligned 32-bit numbers inside the mapping, which
        // lives as long as `self`. Both sides access them atomically.
        unsafe { AtomicU32::from_ptr(self.map.as_ptr().add(offset as usize).cast()) }
    }

    fn entry(&self, at: u32) -> *mut T {
        let place = (at & self.mask) as usize;
        // SAFETY: the mapping has `mask + 1` entries from `desc` on.
        unsafe { self.map.as_ptr().add(self.offsets.desc as usize).cast::<T>().add(place) }
    }

    /// Returns, for the producer, whether `count` more entries fit.
    pub(super) fn has_room(&mut self, count: u32) -> bool {
        let free = |ring: &Self| ring.mask + 1 - ring.own.wrapping_sub(ring.other);
        if free(self) < count {
            self.other = self.index(self.offsets.consumer).load(Ordering::Acquire);
        }
        free(self) >= count
    }

    /// Appends an entry for the producer, not visible to the kernel before [`Ring::publish`].
    /// Returns false if the ring is full.
    pub(super) fn push(&mut self, entry: T) -> bool {
        if !self.has_room(1) {
            return false;
        }
        // SAFETY: the entry is ours until it is published, because the kernel has consumed it
        // (`has_room`).
        unsafe { self.entry(self.own).write(entry) };
        self.own = self.own.wrapping_add(1);
        true
    }

    /// Makes the entries pushed by the producer visible to the kernel.
    pub(super) fn publish(&self) {
        self.index(self.offsets.producer).store(self.own, Ordering::Release);
    }

    /// Returns, for the producer, the number of entries that the kernel has not taken.
    pub(super) fn pending(&self) -> u32 {
        self.own.wrapping_sub(self.index(self.offsets.consumer).load(Ordering::Acquire))
    }

    /// Removes the next entry for the consumer.
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.own == self.other {
            self.other = self.index(self.offsets.producer).load(Ordering::Acquire);
            if self.own == self.other {
                return None;
            }
        }
        // SAFETY: the kernel has produced this entry and does not write it again before it is
        // consumed.
        let entry = unsafe { self.entry(self.own).read() };
        self.own = self.own.wrapping_add(1);
        self.index(self.offsets.consumer).store(self.own, Ordering::Release);
        Some(entry)
    }

    /// Returns whether the kernel needs a system call to proceed.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.index(self.offsets.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // A ring that stays mapped would keep the socket, and therefore the queue, busy forever.
        // SAFETY: the mapping is ours and no reference to it exists.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.map_len) };
    }
}
