//! Registered buffers for local use only: peers have no key for them.

use crate::error::{Error, ErrorKind, Result};
use crate::pd::Pd;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Range;
use uiw_verbs::{Access, Memory, RawMr, Sge};

/// Buffer whose bytes stay at the same address when the value is moved.
///
/// Implemented for vectors, boxed slices and static data. A program implements it for buffer types
/// of its own:
///
/// ```
/// use uiw::{Device, IoBuf};
///
/// /// The program's own buffer type.
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
/// * [`IoBuf::as_mut_ptr`] must return a pointer to [`IoBuf::len`] initialised bytes.
/// * The bytes must stay at that address for as long as the value lives, even if the value is
///   moved.
/// * The value must own the bytes exclusively. Only bytes that nothing ever writes may be shared;
///   such a type must not implement [`IoBufMut`].
///
/// `as_mut_ptr` is called once, before the buffer is registered. Until the region has been
/// deregistered, all accesses to the bytes go through that pointer.
pub unsafe trait IoBuf: Send + 'static {
    /// Returns a pointer to the first byte.
    ///
    /// If the buffer implements [`IoBufMut`], received data is written through this pointer, so it
    /// must be derived from the unique reference: writing through a pointer that is derived from a
    /// shared reference is undefined behaviour.
    fn as_mut_ptr(&mut self) -> *mut u8;
    /// Returns the number of bytes.
    fn len(&self) -> usize;
    /// Returns whether the buffer has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Buffer at a stable address that operations may write to, for example an RDMA Read.
///
/// # Safety
/// The requirements of [`IoBuf`] apply, and it must be sound to write the bytes through the
/// pointer.
pub unsafe trait IoBufMut: IoBuf {}

// SAFETY: a vector's heap block does not move with the vector, and the vector cannot be changed
// while it is inside an `Mr`.
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

// SAFETY: static memory does not move, and nothing writes it while shared references exist. It is
// not `IoBufMut`, so no operation writes through the pointer.
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

/// Owned buffer whose bytes are accessed only through the pointer taken at creation.
///
/// The buffer itself is not touched until it is taken out or dropped: under Rust's aliasing rules,
/// moving a box or borrowing from the buffer again would invalidate the pointer. `MaybeUninit`
/// prevents a move of this struct from having that effect.
struct HeldBuffer<B> {
    /// First of the `len` bytes of `buf`.
    at: *mut u8,
    len: usize,
    /// Initialised until `into_inner` or drop.
    buf: MaybeUninit<B>,
}

// SAFETY: the pointer points into `buf`, and `IoBuf` requires that the bytes belong to the buffer
// alone, or are never written.
unsafe impl<B: Send> Send for HeldBuffer<B> {}

// SAFETY: as above; a shared `HeldBuffer` only allows the bytes to be read.
unsafe impl<B: Sync> Sync for HeldBuffer<B> {}

impl<B: IoBuf> HeldBuffer<B> {
    fn new(buf: B) -> Self {
        let len = buf.len();
        let mut buf = MaybeUninit::new(buf);
        // SAFETY: `buf` was initialised in the line above.
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
        // SAFETY: initialised since `new`; `into_inner`, which moves the buffer out, prevents this
        // drop from running.
        unsafe { self.buf.assume_init_drop() }
    }
}

/// Registered buffer that only this program can access.
///
/// Peers have no key for it, so its bytes are available as a plain slice whenever no operation owns
/// it. An operation takes the `Mr` by value, works on the whole buffer or on the part selected by
/// [`Mr::range`], and gives the `Mr` back when it completes. Memory that peers may access is a
/// [`SharedMr`](crate::SharedMr).
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
    /// Declared before `buf`, so that the region is deregistered before its memory is freed.
    raw: RawMr,
    buf: HeldBuffer<B>,
    range: Range<usize>,
}

/// Error of a call that took a buffer, together with that buffer.
///
/// The buffer is the one that could not be registered, or the [`Mr`] of a failed operation. The
/// contents of the buffer after a failed Read are unspecified. `BufferError` converts to [`Error`]
/// and [`std::io::Error`], so `?` works in functions that do not need the buffer.
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
    /// Reason for the failure.
    pub error: Error,
    /// Buffer that was passed to the call.
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
    /// Registers a buffer for operations that this program starts. Peers cannot access it.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Register`], with the buffer, if the device has no STag left.
    pub fn register<B: IoBuf>(&self, buf: B) -> Result<Mr<B>, BufferError<B>> {
        let buf = HeldBuffer::new(buf);
        // SAFETY: `IoBuf` promises `len` bytes at a stable address while `buf` lives, and `Mr`
        // drops the region before the buffer. The bytes are lent as a slice only while no
        // operation owns the `Mr`. Other owners of a buffer that is not `IoBufMut` only read it,
        // and so do the operations that accept it.
        let memory = unsafe { Memory::borrowed(buf.at, buf.len) };
        match self.as_raw().register_raw(memory, buf.at as u64, Access::LOCAL_WRITE) {
            Ok(raw) => Ok(Mr { raw, range: 0..buf.len, buf }),
            Err(error) => Err(BufferError { error: error.into(), buffer: buf.into_inner() }),
        }
    }
}

impl<B: IoBuf> Mr<B> {
    /// Returns all bytes of the buffer, regardless of [`Mr::range`].
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `IoBuf` guarantees that the bytes are valid; operations take the `Mr` by value,
        // so nothing writes them now.
        unsafe { std::slice::from_raw_parts(self.buf.at, self.buf.len) }
    }

    /// Restricts operations to the bytes `range`, counted from the start of the buffer. It replaces
    /// an earlier restriction.
    ///
    /// # Errors
    /// Returns [`ErrorKind::OutOfRange`] if the range is reversed or ends after the buffer.
    pub fn range(mut self, range: Range<usize>) -> Result<Self> {
        let len = self.buf.len;
        if range.start > range.end || range.end > len {
            let (offset, end) = (range.start as u64, range.end as u64);
            return Err(ErrorKind::OutOfRange { offset, end, len: len as u64 }.into());
        }
        self.range = range;
        Ok(self)
    }

    /// Lets operations use the whole buffer again, after [`Mr::range`].
    #[must_use]
    pub fn full(mut self) -> Self {
        self.range = 0..self.buf.len;
        self
    }

    /// Returns the number of bytes that an operation uses: the length of the range, not of the
    /// buffer.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Returns whether an operation would use no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Deregisters the memory and returns the buffer.
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
        self.raw.pd() == pd.as_raw()
    }
}

impl<B: IoBufMut> Mr<B> {
    /// Returns all bytes of the buffer for writing, regardless of [`Mr::range`].
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; `IoBufMut` allows writes through the pointer, and the `Mr` is
        // borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.buf.at, self.buf.len) }
    }
}

impl<B: IoBuf> std::fmt::Debug for Mr<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mr")
            .field("len", &self.buf.len)
            .field("range", &self.range)
            .finish_non_exhaustive()
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

    /// Places bytes in the region the way a receive or a Read Response does.
    fn place<B: IoBuf>(mr: &Mr<B>, bytes: &[u8]) {
        let sge = mr.sge().unwrap();
        let offset = sge.addr - mr.raw.addr();
        let span = mr.raw.region().span(offset as usize, sge.length as usize).unwrap();
        span.pin().unwrap().copy_from(0, bytes).unwrap();
    }

    /// Lets Miri check that the region's pointer stays valid for writes between other uses of the
    /// buffer.
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
        let mut mr =
            pd().register(CountingBuffer { bytes: vec![0; 8], asked: Arc::clone(&asked) }).unwrap();
        place(&mr, b"placed");
        mr.bytes_mut()[0] = b'P';
        assert_eq!(&mr.bytes()[..6], b"Placed");
        assert_eq!(
            asked.load(Ordering::Relaxed),
            1,
            "a second pointer would make the region's invalid"
        );
        assert_eq!(Arc::strong_count(&asked), 2);
        drop(mr);
        assert_eq!(Arc::strong_count(&asked), 1, "the buffer is dropped with its region");
    }
}
