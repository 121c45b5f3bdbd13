//! Exclusive memory: registered buffers that no peer can name.

use crate::error::{Error, ErrorKind, Result};
use crate::pd::Pd;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Range;
use uiw_verbs::{Access, Memory, RawMr, Sge};

/// A buffer at a stable address.
///
/// ```
/// use uiw::{Device, IoBuf};
///
/// /// A vector of a program's own.
/// struct Block(Vec<u8>);
///
/// // SAFETY: a vector's heap block does not move with the vector, and nothing else has access to it.
/// unsafe impl IoBuf for Block {
///     fn as_mut_ptr(&mut self) -> *mut u8 {
///         self.0.as_mut_ptr()
///     }
///     fn len(&self) -> usize {
///         self.0.len()
///     }
/// }
///
/// let pd = Device::open()?.alloc_pd()?;
/// assert_eq!(pd.register(Block(vec![1, 2]))?.bytes(), [1, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Safety
/// `as_mut_ptr` gives the first of `len` initialised bytes, which belong to the value alone and stay at that address as long as the
/// value lives, wherever it is moved. It is asked once, before the buffer is registered; until the region has been deregistered, the
/// bytes are used through that pointer only.
pub unsafe trait IoBuf: Send + 'static {
    /// The first byte, by way of the unique buffer: what arrives is written through this pointer if the buffer is [`IoBufMut`]. A
    /// pointer that comes from a shared reference must not be written through.
    fn as_mut_ptr(&mut self) -> *mut u8;
    /// Bytes.
    fn len(&self) -> usize;
    /// Returns whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A buffer at a stable address that may be written.
///
/// # Safety
/// As [`IoBuf`], and the bytes may be written through the pointer.
pub unsafe trait IoBufMut: IoBuf {}

// SAFETY: a vector's heap block does not move with the vector, and the vector cannot be changed while it is inside an `Mr`.
unsafe impl IoBuf for Vec<u8> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        Self::as_mut_ptr(self)
    }
    fn len(&self) -> usize {
        self.len()
    }
}

// SAFETY: as above; the block may be written through a unique vector.
unsafe impl IoBufMut for Vec<u8> {}

// SAFETY: a box's heap block does not move with the box.
unsafe impl IoBuf for Box<[u8]> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        (**self).as_mut_ptr()
    }
    fn len(&self) -> usize {
        (**self).len()
    }
}

// SAFETY: as above; the block may be written through a unique box.
unsafe impl IoBufMut for Box<[u8]> {}

// SAFETY: static memory does not move, and shared references exclude writes. It is not `IoBufMut`: no operation writes
// through the pointer.
unsafe impl IoBuf for &'static [u8] {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        (**self).as_ptr().cast_mut()
    }
    fn len(&self) -> usize {
        (**self).len()
    }
}

// SAFETY: as for a static slice.
unsafe impl IoBuf for &'static str {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        (**self).as_ptr().cast_mut()
    }
    fn len(&self) -> usize {
        (**self).len()
    }
}

/// A buffer whose bytes are used through the pointer that was taken first. The buffer itself is not touched meanwhile: to move a box, or
/// to borrow from a buffer again, would claim the bytes anew and make that pointer invalid. `MaybeUninit` keeps moves from doing so.
struct HeldBuffer<B> {
    /// `len` bytes of `buf`.
    at: *mut u8,
    len: usize,
    /// Initialised until `into_inner` or drop.
    buf: MaybeUninit<B>,
}

// SAFETY: the pointer is into the buffer that is held, and `IoBuf` says that its bytes are the buffer's alone.
unsafe impl<B: Send> Send for HeldBuffer<B> {}

// SAFETY: as above; a shared `Held` lets the bytes be read only.
unsafe impl<B: Sync> Sync for HeldBuffer<B> {}

impl<B: IoBuf> HeldBuffer<B> {
    fn new(buf: B) -> Self {
        let len = buf.len();
        let mut buf = MaybeUninit::new(buf);
        // SAFETY: initialised the line before.
        let at = unsafe { buf.assume_init_mut() }.as_mut_ptr();
        Self { at, len, buf }
    }
}

impl<B> HeldBuffer<B> {
    fn into_inner(self) -> B {
        let this = ManuallyDrop::new(self);
        // SAFETY: initialised since `new`; `this` is not used again and not dropped.
        unsafe { this.buf.assume_init_read() }
    }
}

impl<B> Drop for HeldBuffer<B> {
    fn drop(&mut self) {
        // SAFETY: initialised since `new`; `into_inner` keeps what it took from being dropped here.
        unsafe { self.buf.assume_init_drop() }
    }
}

/// A registered buffer that is yours alone: no peer can reach it, so it is a plain slice whenever it is not in flight.
///
/// Operations take all of it, or the part chosen by [`Mr::range`].
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// # let [client, server] = blocking()?;
/// let memory = client.pd().register(vec![0, 1, 2, 3])?.range(1..3)?;
/// let memory = client.send(memory).wait()?;
/// assert_eq!(server.recv()?.as_deref(), Some(&[1, 2][..]));
/// assert_eq!(memory.into_inner(), [0, 1, 2, 3]);
/// # Ok(())
/// # }
/// ```
pub struct Mr<B: IoBuf> {
    /// Dropped first: the region ends before its memory does.
    raw: RawMr,
    buf: HeldBuffer<B>,
    range: Range<usize>,
}

/// An error, with the buffer that the failed call was given: a buffer that could not be registered, or the [`Mr`] of an operation. What a Read
/// that failed leaves in its buffer is unspecified.
///
/// It converts to [`Error`] and [`std::io::Error`], so that `?` works where the buffer is not needed.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// # let [client, server] = blocking()?;
/// use uiw::{RemoteMr, STag};
/// let nowhere = RemoteMr { addr: 0, len: 4, rkey: STag(0x1234_5678) };
/// let failed = client.read(client.pd().register(vec![0; 4])?, nowhere).wait().unwrap_err();
/// assert!(failed.error.to_string().contains("the peer refused access"));
/// assert_eq!(failed.buffer.into_inner().len(), 4);
/// # Ok(())
/// # }
/// ```
pub struct BufferError<T> {
    /// Reason.
    pub error: Error,
    /// The buffer.
    pub buffer: T,
}

impl<T> std::fmt::Debug for BufferError<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BufferError").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<T> std::fmt::Display for BufferError<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> std::error::Error for BufferError<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl<T> From<BufferError<T>> for Error {
    fn from(error: BufferError<T>) -> Self {
        error.error
    }
}

impl<T> From<BufferError<T>> for std::io::Error {
    fn from(error: BufferError<T>) -> Self {
        error.error.into()
    }
}

impl Pd {
    /// Registers a buffer for operations of ours.
    ///
    /// # Errors
    /// [`ErrorKind::Register`] with the buffer, when the device has no STag left.
    pub fn register<B: IoBuf>(&self, buf: B) -> Result<Mr<B>, BufferError<B>> {
        let buf = HeldBuffer::new(buf);
        // SAFETY: `IoBuf` promises `len` bytes at a stable address while `buf` lives, and `Mr` drops the region before the
        // buffer. Exclusive: the bytes are given out as a slice only while the `Mr` is not inside an operation. A buffer that
        // is not `IoBufMut` is taken only by operations that read it.
        let memory = unsafe { Memory::borrowed(buf.at, buf.len) };
        match self.as_raw().register_raw(memory, buf.at as u64, Access::LOCAL_WRITE) {
            Ok(raw) => Ok(Mr { raw, range: 0..buf.len, buf }),
            Err(error) => Err(BufferError { error: error.into(), buffer: buf.into_inner() }),
        }
    }
}

impl<B: IoBuf> Mr<B> {
    /// Returns all bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `IoBuf` promises the bytes; operations take the `Mr` by value, so nothing writes them now.
        unsafe { std::slice::from_raw_parts(self.buf.at, self.buf.len) }
    }

    /// Operations are to take only this part.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`].
    pub fn range(mut self, range: Range<usize>) -> Result<Self> {
        let len = self.buf.len;
        if range.start > range.end || range.end > len {
            let (offset, end) = (range.start as u64, range.end as u64);
            return Err(ErrorKind::OutOfRange { offset, end, len: len as u64 }.into());
        }
        self.range = range;
        Ok(self)
    }

    /// Operations take all of it again.
    #[must_use]
    pub fn full(mut self) -> Self {
        self.range = 0..self.buf.len;
        self
    }

    /// Bytes that operations take.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Returns whether operations take none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Deregisters; the buffer is an ordinary one again.
    pub fn into_inner(self) -> B {
        let Self { raw, buf, .. } = self;
        drop(raw);
        buf.into_inner()
    }

    pub(crate) fn sge(&self) -> Result<Sge> {
        let given = self.range.len() as u64;
        let length = u32::try_from(given).map_err(|_| ErrorKind::MessageTooLong { given })?;
        Ok(Sge { addr: self.raw.addr() + self.range.start as u64, length, lkey: self.raw.lkey() })
    }

    pub(crate) fn is_in(&self, pd: &Pd) -> bool {
        self.raw.pd() == *pd.as_raw()
    }
}

impl<B: IoBufMut> Mr<B> {
    /// Returns all bytes, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `IoBufMut` lets the bytes be written through the pointer; the `Mr` is borrowed uniquely.
        unsafe { std::slice::from_raw_parts_mut(self.buf.at, self.buf.len) }
    }
}

impl<B: IoBuf> std::fmt::Debug for Mr<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mr").field("len", &self.buf.len).field("range", &self.range).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::{DeviceConfig, Progress};
    use std::net::Ipv4Addr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn pd() -> Pd {
        let stack = uiw_testkit::sim::Network::new(1).stack(Ipv4Addr::LOCALHOST);
        let options = DeviceConfig::default().progress(Progress::Manual);
        Device::with_stack(Box::new(stack), options).unwrap().alloc_pd().unwrap()
    }

    /// Places bytes as a receive or the answer to a Read does.
    fn place<B: IoBuf>(mr: &Mr<B>, bytes: &[u8]) {
        let sge = mr.sge().unwrap();
        let offset = sge.addr - mr.raw.addr();
        let span = mr.raw.region().span(offset as usize, sge.length as usize).unwrap();
        span.pin().unwrap().copy_from(0, bytes).unwrap();
    }

    /// Checks for miri that the region may still write the buffer, whatever is done to it in between.
    fn is_written_repeatedly<B: IoBufMut + AsRef<[u8]> + std::fmt::Debug>(buf: B) {
        let mut mr = pd().register(buf).unwrap();
        place(&mr, b"one");
        assert_eq!(&mr.bytes()[..4], b"one\0");
        place(&mr, b"two");
        mr.bytes_mut()[0] = b'T';
        assert_eq!(&mr.bytes()[..4], b"Two\0");
        place(&mr, b"ton");
        let moved = std::hint::black_box(Box::new(mr));
        place(&moved, b"six");
        let mr = moved.range(1..4).unwrap();
        place(&mr, b"ten");
        assert_eq!(&mr.bytes()[..5], b"sten\0");
        assert_eq!(&mr.into_inner().as_ref()[..5], b"sten\0");
    }

    #[test]
    fn placed_bytes_are_in_buffer() {
        is_written_repeatedly(vec![0; 8]);
        is_written_repeatedly(vec![0; 8].into_boxed_slice());
        let fixed = pd().register(&b"fixed"[..]).unwrap();
        assert_eq!(fixed.bytes(), b"fixed");
        assert_eq!(pd().register("text").unwrap().into_inner(), "text");
    }

    /// A buffer that counts how often it is asked for its bytes.
    #[derive(Debug)]
    struct CountingBuffer {
        bytes: Vec<u8>,
        asked: Arc<AtomicUsize>,
    }

    // SAFETY: as for the vector.
    unsafe impl IoBuf for CountingBuffer {
        fn as_mut_ptr(&mut self) -> *mut u8 {
            self.asked.fetch_add(1, Ordering::Relaxed);
            self.bytes.as_mut_ptr()
        }
        fn len(&self) -> usize {
            self.bytes.len()
        }
    }

    // SAFETY: as for the vector.
    unsafe impl IoBufMut for CountingBuffer {}

    #[test]
    fn accesses_through_unique_buffer_pointer() {
        let asked = Arc::<AtomicUsize>::default();
        let mut mr = pd().register(CountingBuffer { bytes: vec![0; 8], asked: Arc::clone(&asked) }).unwrap();
        place(&mr, b"placed");
        mr.bytes_mut()[0] = b'P';
        assert_eq!(&mr.bytes()[..6], b"Placed");
        assert_eq!(asked.load(Ordering::Relaxed), 1, "a second pointer would make the region's invalid");
        assert_eq!(Arc::strong_count(&asked), 2);
        drop(mr);
        assert_eq!(Arc::strong_count(&asked), 1, "the buffer is dropped with its region");
    }
}
