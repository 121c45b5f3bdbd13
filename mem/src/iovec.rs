//! Scatter/gather elements for the system calls of the LLP.

use core::{fmt, marker::PhantomData, ops::Range};

use crate::{copy, recover};

/// Bytes to send: an address and a length that are valid for `'a`. A peer or the program may modify
/// the bytes during that time, so they cannot be borrowed as a slice. Bytes that a program has
/// unmapped are inaccessible: only system calls and [`IoVec::try_copy_to`] report this as an error.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct IoVec<'a> {
    raw: libc::iovec,
    _bytes: PhantomData<&'a [u8]>,
}

/// Bytes to receive into: an address and a length that are valid for `'a`.
#[repr(transparent)]
pub struct IoVecMut<'a> {
    raw: libc::iovec,
    _bytes: PhantomData<&'a mut [u8]>,
}

impl<'a> IoVec<'a> {
    /// Creates an element for the `len` bytes at `at`.
    ///
    /// # Safety
    /// The bytes are readable for `'a`, or inaccessible because a program has unmapped them. All
    /// concurrent writes are atomic or by the kernel.
    pub unsafe fn from_raw(at: *const u8, len: usize) -> Self {
        Self {
            raw: libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len },
            _bytes: PhantomData,
        }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.raw.iov_len
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.raw.iov_len == 0
    }

    /// Returns a part of the bytes.
    ///
    /// # Panics
    /// If `range` is not within the element.
    pub fn sub(&self, range: Range<usize>) -> Self {
        check(&range, self.len());
        let at: *mut u8 = self.raw.iov_base.cast();
        // SAFETY: `range` is a part of the bytes, which are valid for `'a`.
        unsafe { Self::from_raw(at.add(range.start), range.len()) }
    }

    /// Copies all bytes to the beginning of `to`.
    ///
    /// # Panics
    /// If `to` is shorter than the element.
    pub fn copy_to(&self, to: &mut [u8]) {
        assert!(to.len() >= self.len(), "{} bytes do not fit into {}", self.len(), to.len());
        // SAFETY: the bytes are readable and modified only atomically, as the caller of `from_raw`
        // has guaranteed. `to` is a private slice that is long enough.
        unsafe { copy::load(to.as_mut_ptr(), self.raw.iov_base.cast(), self.len()) }
    }

    /// Like [`IoVec::copy_to`], but returns false if a program has unmapped some of the bytes; the
    /// contents of `to` are then unspecified.
    ///
    /// # Panics
    /// If `to` is shorter than the element.
    #[must_use]
    pub fn try_copy_to(&self, to: &mut [u8]) -> bool {
        assert!(to.len() >= self.len(), "{} bytes do not fit into {}", self.len(), to.len());
        // SAFETY: the bytes are modified only atomically; if they are no longer readable, the copy
        // returns. `to` is a private slice that is long enough.
        unsafe { recover::load(to.as_mut_ptr(), self.raw.iov_base.cast(), self.len()) }
    }

    /// Appends all bytes to `to`.
    pub fn append_to(&self, to: &mut Vec<u8>) {
        // SAFETY: the bytes are readable and modified only atomically, as the caller of `from_raw`
        // has guaranteed.
        unsafe { append(to, self.raw.iov_base.cast(), self.len()) }
    }

    /// Returns a pointer to the elements, which have the layout of `libc::iovec`.
    pub fn as_libc(list: &[Self]) -> *const libc::iovec {
        list.as_ptr().cast()
    }

    /// Returns the number of bytes of all elements.
    pub fn total(list: &[Self]) -> usize {
        list.iter().map(Self::len).sum()
    }
}

impl<'a> IoVecMut<'a> {
    /// Creates an element for the `len` bytes at `at`.
    ///
    /// # Safety
    /// The bytes are writable for `'a`, and all concurrent accesses are atomic or by the kernel.
    pub unsafe fn from_raw(at: *mut u8, len: usize) -> Self {
        Self { raw: libc::iovec { iov_base: at.cast(), iov_len: len }, _bytes: PhantomData }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.raw.iov_len
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.raw.iov_len == 0
    }

    /// Returns a part of the bytes.
    ///
    /// # Panics
    /// If `range` is not within the element.
    pub fn sub(&mut self, range: Range<usize>) -> IoVecMut<'_> {
        check(&range, self.len());
        let at: *mut u8 = self.raw.iov_base.cast();
        // SAFETY: `range` is a part of the bytes, which are valid for `'a`, and `self` is borrowed
        // while the part exists.
        unsafe { IoVecMut::from_raw(at.add(range.start), range.len()) }
    }

    /// Copies `from` to the beginning of the bytes.
    ///
    /// # Panics
    /// If `from` is longer than the element.
    pub fn copy_from(&mut self, from: &[u8]) {
        assert!(from.len() <= self.len(), "{} bytes do not fit into {}", from.len(), self.len());
        // SAFETY: the bytes are writable and otherwise accessed only atomically, as the caller of
        // `from_raw` has guaranteed. `from` is a slice.
        unsafe { copy::store(self.raw.iov_base.cast(), from.as_ptr(), from.len()) }
    }

    /// Returns the same bytes for reading.
    pub fn as_io_vec(&self) -> IoVec<'_> {
        // SAFETY: memory that may be written may also be read, and `self` is borrowed while the new
        // element exists.
        unsafe { IoVec::from_raw(self.raw.iov_base.cast(), self.len()) }
    }

    /// Returns a pointer to the elements, which have the layout of `libc::iovec`.
    pub fn as_libc(list: &mut [Self]) -> *mut libc::iovec {
        list.as_mut_ptr().cast()
    }

    /// Returns the number of bytes of all elements.
    pub fn total(list: &[Self]) -> usize {
        list.iter().map(Self::len).sum()
    }
}

impl<'a> From<&'a [u8]> for IoVec<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        // SAFETY: a borrowed slice is not modified.
        unsafe { Self::from_raw(bytes.as_ptr(), bytes.len()) }
    }
}

impl<'a> From<&'a mut [u8]> for IoVecMut<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        // SAFETY: a mutably borrowed slice has no other user.
        unsafe { Self::from_raw(bytes.as_mut_ptr(), bytes.len()) }
    }
}

impl fmt::Debug for IoVec<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoVec({} bytes)", self.len())
    }
}

impl fmt::Debug for IoVecMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoVecMut({} bytes)", self.len())
    }
}

/// Panics if `range` is not within `len` bytes.
#[inline]
pub(crate) fn check(range: &Range<usize>, len: usize) {
    assert!(range.start <= range.end && range.end <= len, "{range:?} is not inside of {len} bytes");
}

/// Appends `len` shared bytes to a vector.
///
/// # Safety
/// The requirements of [`copy::load`] apply to `from`.
pub(crate) unsafe fn append(to: &mut Vec<u8>, from: *const u8, len: usize) {
    to.reserve(len);
    let spare = to.spare_capacity_mut().as_mut_ptr();
    // SAFETY: `reserve` has made room for `len` bytes, and they are initialized before `set_len`.
    // The caller guarantees `from`.
    unsafe {
        copy::load(spare.cast(), from, len);
        to.set_len(to.len() + len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_there_and_back() {
        let source = *b"0123456789";
        let io = IoVec::from(&source[..]);
        assert_eq!((io.len(), io.is_empty()), (10, false));
        let mut out = vec![b'x'];
        io.sub(2..5).append_to(&mut out);
        assert_eq!(out, b"x234");
        let mut sink = [b'.'; 6];
        let mut to = IoVecMut::from(&mut sink[..]);
        to.sub(1..4).copy_from(b"ab");
        let mut seen = [0; 6];
        to.as_io_vec().copy_to(&mut seen);
        assert_eq!(&seen, b".ab...");
        assert_eq!(IoVec::total(&[io, io.sub(0..0), io.sub(9..10)]), 11);
    }

    #[test]
    fn layout_is_the_systems() {
        assert_eq!(size_of::<IoVec<'_>>(), size_of::<libc::iovec>());
        let bytes = [1u8, 2, 3];
        let list = [IoVec::from(&bytes[..2]), IoVec::from(&bytes[2..])];
        // SAFETY: two elements lie there.
        let raw = unsafe { core::slice::from_raw_parts(IoVec::as_libc(&list), 2) };
        assert_eq!((raw[0].iov_len, raw[1].iov_len), (2, 1));
        assert_eq!(raw[1].iov_base.addr(), bytes.as_ptr().addr() + 2);
    }

    #[test]
    #[should_panic(expected = "is not inside of 3 bytes")]
    fn no_part_beyond_the_end() {
        IoVec::from(&[1u8, 2, 3][..]).sub(1..4);
    }
}
