//! Bitmap of the descriptors that have an entry in the table of this library. The preload library
//! reads a descriptor's bit before each call.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of descriptors that can be rsockets of the preload library. It is the value of sysctl
/// `fs.nr_open` on most systems.
const DESCRIPTORS: usize = 1 << 20;
const WORD: usize = u64::BITS as usize;

/// Bitmap of descriptors.
#[repr(transparent)]
pub(crate) struct Bitmap([AtomicU64; DESCRIPTORS / WORD]);

/// Bitmap of this process. A fork copies it with the table of descriptors, to which it belongs.
pub(crate) static BITMAP: Bitmap = Bitmap([const { AtomicU64::new(0) }; DESCRIPTORS / WORD]);

impl Bitmap {
    fn place(&self, fd: RawFd) -> Option<(&AtomicU64, u64)> {
        let fd = usize::try_from(fd).ok()?;
        Some((self.0.get(fd / WORD)?, 1 << (fd % WORD)))
    }

    /// Returns whether there is a bit for the descriptor.
    pub(crate) fn has_room(&self, fd: RawFd) -> bool {
        self.place(fd).is_some()
    }

    pub(crate) fn is_set(&self, fd: RawFd) -> bool {
        self.place(fd).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
    }

    pub(crate) fn set(&self, fd: RawFd) {
        if let Some((word, bit)) = self.place(fd) {
            word.fetch_or(bit, Ordering::Release);
        }
    }

    pub(crate) fn clear(&self, fd: RawFd) {
        if let Some((word, bit)) = self.place(fd) {
            word.fetch_and(!bit, Ordering::Release);
        }
    }

    /// Returns the descriptors from `first` to `last` whose bits are set.
    pub(crate) fn each(&self, first: u32, last: u32) -> impl Iterator<Item = RawFd> {
        let last = (last as usize).min(DESCRIPTORS - 1);
        (first as usize / WORD..=last / WORD)
            .flat_map(move |index| {
                let word = self.0[index].load(Ordering::Acquire);
                (0..WORD).filter(move |bit| word >> bit & 1 == 1).map(move |bit| index * WORD + bit)
            })
            .filter(move |fd| (first as usize..=last).contains(fd))
            .map(|fd| fd as RawFd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_the_descriptors() {
        let bitmap = Box::new(Bitmap([const { AtomicU64::new(0) }; DESCRIPTORS / WORD]));
        for fd in [0, 3, 63, 64, 1000, DESCRIPTORS as RawFd - 1] {
            bitmap.set(fd);
        }
        // There are no bits for these.
        bitmap.set(-1);
        bitmap.set(DESCRIPTORS as RawFd);
        assert!(!bitmap.has_room(-1) && !bitmap.has_room(DESCRIPTORS as RawFd));
        bitmap.clear(1000);
        let all = |first, last| bitmap.each(first, last).collect::<Vec<_>>();
        assert_eq!(all(0, u32::MAX), [0, 3, 63, 64, DESCRIPTORS as RawFd - 1]);
        assert_eq!(all(3, 63), [3, 63]);
        assert_eq!(all(65, 999), []);
    }
}
