//! Exclusive memory: registered buffers that no peer can name.

use crate::error::{Error, Result};
use crate::mr::RawMr;
use crate::pd::Pd;
use crate::wr::Sge;
use mem::{Access, Memory};
use std::ops::Range;

/// A buffer at a stable address.
///
/// # Safety
/// While the value lives, `as_ptr` gives the same address whatever is done to the value by moving it, and `len` octets there are
/// initialised and belong to it alone.
pub unsafe trait IoBuf: Send + 'static {
    /// The first octet.
    fn as_ptr(&self) -> *const u8;
    /// Octets.
    fn len(&self) -> usize;
    /// Whether it has no octets.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A buffer at a stable address that may be written.
///
/// # Safety
/// As [`IoBuf`], and the octets may be written through `as_mut_ptr`.
pub unsafe trait IoBufMut: IoBuf {
    /// The first octet.
    fn as_mut_ptr(&mut self) -> *mut u8;
}

// SAFETY: a vector's heap block does not move with the vector; nobody can change the vector while it is inside an `Mr`.
unsafe impl IoBuf for Vec<u8> {
    fn as_ptr(&self) -> *const u8 {
        self.as_slice().as_ptr()
    }
    fn len(&self) -> usize {
        self.as_slice().len()
    }
}

// SAFETY: as above; the block may be written through a unique vector.
unsafe impl IoBufMut for Vec<u8> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_slice().as_mut_ptr()
    }
}

// SAFETY: a box's heap block does not move with the box.
unsafe impl IoBuf for Box<[u8]> {
    fn as_ptr(&self) -> *const u8 {
        (**self).as_ptr()
    }
    fn len(&self) -> usize {
        (**self).len()
    }
}

// SAFETY: as above; the block may be written through a unique box.
unsafe impl IoBufMut for Box<[u8]> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        (**self).as_mut_ptr()
    }
}

// SAFETY: static memory does not move, and shared references keep everybody from writing it.
unsafe impl IoBuf for &'static [u8] {
    fn as_ptr(&self) -> *const u8 {
        (**self).as_ptr()
    }
    fn len(&self) -> usize {
        (**self).len()
    }
}

// SAFETY: static memory does not move, and shared references keep everybody from writing it.
unsafe impl IoBuf for &'static str {
    fn as_ptr(&self) -> *const u8 {
        (**self).as_bytes().as_ptr()
    }
    fn len(&self) -> usize {
        (**self).len()
    }
}

/// A registered buffer that is yours alone: no peer can reach it, so it is a plain slice whenever it is not in flight.
///
/// Operations take all of it, or the part chosen by [`Mr::range`].
pub struct Mr<B: IoBuf> {
    /// Dropped first: the region ends before its memory does.
    raw: RawMr,
    buf: B,
    range: Range<usize>,
}

impl Pd {
    /// Registers a buffer for operations of ours.
    ///
    /// # Errors
    /// [`Error::Register`] with the buffer, when the device has no STag left.
    pub fn register<B: IoBuf>(&self, buf: B) -> std::result::Result<Mr<B>, (Error, B)> {
        let len = buf.len();
        // SAFETY: `IoBuf` promises `len` octets at a stable address while `buf` lives, and `Mr` drops the region before the
        // buffer. Exclusive: the octets are given out as a slice only while the `Mr` is not inside an operation. A buffer that
        // is not `IoBufMut` is taken only by operations that read it.
        let memory = unsafe { Memory::borrowed(buf.as_ptr().cast_mut(), len) };
        match self.register_raw(memory, buf.as_ptr() as u64, Access::LOCAL_WRITE) {
            Ok(raw) => Ok(Mr { raw, buf, range: 0..len }),
            Err(error) => Err((error, buf)),
        }
    }
}

impl<B: IoBuf> Mr<B> {
    /// All octets.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `IoBuf` promises the octets; operations take the `Mr` by value, so nothing writes them now.
        unsafe { std::slice::from_raw_parts(self.buf.as_ptr(), self.buf.len()) }
    }

    /// Operations are to take only this part.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn range(mut self, range: Range<usize>) -> Result<Self> {
        let len = self.buf.len();
        if range.start > range.end || range.end > len {
            return Err(Error::OutOfRange {
                offset: range.start as u64,
                end: range.end as u64,
                len: len as u64,
            });
        }
        self.range = range;
        Ok(self)
    }

    /// Operations take all of it again.
    #[must_use]
    pub fn full(mut self) -> Self {
        self.range = 0..self.buf.len();
        self
    }

    /// Octets that operations take.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether operations take none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Deregisters; the buffer is an ordinary one again.
    pub fn into_inner(self) -> B {
        let Self { raw, buf, .. } = self;
        drop(raw);
        buf
    }

    pub(crate) fn sge(&self) -> Result<Sge> {
        let given = self.range.len() as u64;
        let length = u32::try_from(given).map_err(|_| Error::MessageTooLong { given })?;
        Ok(Sge { addr: self.raw.addr() + self.range.start as u64, length, lkey: self.raw.lkey() })
    }

    pub(crate) fn pd(&self) -> Pd {
        self.raw.pd()
    }
}

impl<B: IoBufMut> Mr<B> {
    /// All octets, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.buf.len();
        // SAFETY: as in `bytes`, and `IoBufMut` lets the octets be written through a unique buffer.
        unsafe { std::slice::from_raw_parts_mut(self.buf.as_mut_ptr(), len) }
    }
}

impl<B: IoBuf> std::fmt::Debug for Mr<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mr").field("len", &self.buf.len()).field("range", &self.range).finish_non_exhaustive()
    }
}
