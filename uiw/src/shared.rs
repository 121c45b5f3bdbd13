//! Memory that peers reach: never a slice, only copies in and out and atomics.

use crate::connection::Connection;
use crate::error::{Error, ErrorKind, Result};
use crate::pd::Pd;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uiw_mem::{Span, Unaligned, UpdateError};
use uiw_verbs::{Access, Bind, Memory, RawMr, RawMw, RemoteMr, STag, SendOp, WindowType};

/// Zeroed memory of the engine's that peers may be let into.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// # let [client, server] = blocking()?;
/// use uiw::Access;
/// let counter = server.as_async().pd().share(8, Access::REMOTE_ATOMIC)?;
/// client.fetch_add(counter.remote(0..8)?, 5)?;
/// assert_eq!(counter.load_u64(0)?, 5);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SharedMr(Arc<RawMr>);

impl Pd {
    /// `len` zeroed bytes that peers may reach with `access` (any of the `REMOTE_*` rights; local ones are implied). With none,
    /// peers get in through a [`BoundWindow`] only.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] when there is no memory, [`ErrorKind::Register`].
    pub fn share(&self, len: usize, access: Access) -> Result<SharedMr> {
        let memory = Memory::owned(len).map_err(Error::io("allocating shared memory"))?;
        let access = access | Access::LOCAL_WRITE | Access::MW_BIND;
        let base = memory.as_ptr() as u64;
        Ok(SharedMr(Arc::new(self.as_raw().register_raw(memory, base, access)?)))
    }
}

impl SharedMr {
    /// Bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn check(&self, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => Ok(()),
            end => {
                Err(ErrorKind::OutOfRange { offset, end: end.unwrap_or(u64::MAX), len: self.len() }.into())
            }
        }
    }

    fn span(&self, offset: u64, len: u64) -> Result<Span> {
        self.check(offset, len)?;
        let out_of_range = ErrorKind::OutOfRange { offset, end: offset + len, len: self.len() };
        self.0.region().span(offset as usize, len as usize).map_err(|_| out_of_range.into())
    }

    /// Copies bytes out. A peer may be writing them: each byte is then the old or the new one.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`].
    pub fn read(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        let span = self.span(offset, dst.len() as u64)?;
        // Gone only with the region, of which this is a handle.
        let _ = span.pin().and_then(|pin| pin.copy_to(0, dst));
        Ok(())
    }

    /// Copies bytes in; the last ones become visible last.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`].
    pub fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        let span = self.span(offset, src.len() as u64)?;
        let _ = span.pin().and_then(|pin| pin.copy_from(0, src));
        Ok(())
    }

    /// Bytes `range`, copied out.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`].
    pub fn to_vec(&self, range: Range<u64>) -> Result<Vec<u8>> {
        if range.start > range.end {
            let (offset, end) = (range.start, range.end);
            return Err(ErrorKind::OutOfRange { offset, end, len: self.len() }.into());
        }
        self.check(range.start, range.end - range.start)?;
        let mut out = vec![0; (range.end - range.start) as usize];
        self.read(range.start, &mut out)?;
        Ok(out)
    }

    /// Replaces the eight aligned bytes at `offset` by what `f` makes of them, atomically with respect to peers' FetchAdd and
    /// CmpSwap. Returns the old value. The number is in this machine's byte order.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`]; [`ErrorKind::Misuse`] when `offset` is not a multiple of eight.
    pub fn update_u64(&self, offset: u64, f: impl FnMut(u64) -> u64) -> Result<u64> {
        let span = self.span(offset, 8)?;
        let Ok(pin) = span.pin() else { return Err(ErrorKind::NotConnected.into()) };
        pin.atomic_u64(0, f).map_err(|error| match error {
            UpdateError::Unaligned(error) => misaligned(error),
            UpdateError::Gone(_) => ErrorKind::NotConnected.into(),
        })
    }

    /// The number in the eight aligned bytes at `offset`. Nothing is written: for a program that looks until a peer has written
    /// or counted there; what that peer placed before is seen, too.
    ///
    /// # Errors
    /// As [`SharedMr::update_u64`].
    pub fn load_u64(&self, offset: u64) -> Result<u64> {
        let span = self.span(offset, 8)?;
        let Ok(pin) = span.pin() else { return Err(ErrorKind::NotConnected.into()) };
        Ok(pin.atomic_cell(0).map_err(misaligned)?.load(Ordering::SeqCst))
    }

    /// What a peer needs to reach bytes `range`: for every connection of the protection domain, with the rights given to
    /// [`Pd::share`].
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`].
    pub fn remote(&self, range: Range<u64>) -> Result<RemoteMr> {
        Ok(self.0.remote().slice(range)?)
    }
}

impl Connection {
    /// Opens bytes `range` of `memory` with `access` to the peer of this connection only. Dropping the [`BoundWindow`] closes them again; the key
    /// is of no use to other peers (RFC 5042 section 5).
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`], [`ErrorKind::Register`]; [`ErrorKind::NotConnected`] when the connection ends meanwhile.
    pub async fn bind_window(
        &self,
        memory: &SharedMr,
        range: Range<u64>,
        access: Access,
    ) -> Result<BoundWindow> {
        let remote = memory.remote(range)?;
        let window = self.pd().as_raw().alloc_window(WindowType::Two)?;
        let before = window.stag();
        let new_stag = STag::from_parts(before.index(), before.key().wrapping_add(1));
        let bind = Bind {
            window: before,
            new_stag,
            region: memory.0.rkey(),
            addr: remote.addr,
            length: remote.len,
            access,
        };
        // Window and memory stay until the request is over: a bind that meets neither any more ends the connection.
        let kept = (window, memory.clone());
        let (result, (window, memory)) = self.local_request(SendOp::Bind(bind), kept).await;
        result.map_err(|_| ErrorKind::NotConnected)?;
        Ok(BoundWindow {
            remote: RemoteMr { rkey: window.stag(), ..remote },
            _window: window,
            _memory: memory,
        })
    }
}

fn misaligned(_: Unaligned) -> Error {
    ErrorKind::Misuse("an atomic needs an offset that is a multiple of 8").into()
}

impl std::fmt::Debug for SharedMr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedMr").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// A window on shared memory for the peer of one connection. Dropping it revokes the key.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// # let [client, server] = blocking()?;
/// use uiw::{Access, RemoteMr};
/// let memory = server.as_async().pd().share(4096, Access::empty())?;
/// let window = server.bind_window(&memory, 0..64, Access::REMOTE_WRITE)?;
/// server.send_copy(&window.remote().to_bytes())?;
/// let place = RemoteMr::from_bytes(&client.recv()?.ok_or("closed")?).ok_or("not an address")?;
/// let bytes = client.as_async().pd().register(&b"placed by the peer"[..])?;
/// client.write(bytes, place.slice(0..18)?).wait()?;
/// # client.send_copy(b"done")?;
/// # server.recv()?;
/// assert_eq!(memory.to_vec(0..18)?, b"placed by the peer");
/// // The key ends with the window.
/// drop(window);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct BoundWindow {
    remote: RemoteMr,
    _window: RawMw,
    _memory: SharedMr,
}

impl BoundWindow {
    /// What the peer needs to reach the window.
    #[must_use]
    pub fn remote(&self) -> RemoteMr {
        self.remote
    }
}
