//! Memory that peers can access. The program gets no slice of it, because peers may change it at
//! any time: it copies bytes in and out, or uses atomics.

use crate::completions::SendRequest;
use crate::connection::Connection;
use crate::error::{Error, ErrorKind, Result};
use crate::op::{FinishFn, Op, downcast_buffer};
use crate::pd::Pd;
use arrayvec::ArrayVec;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uiw_mem::{Span, UpdateError};
use uiw_verbs::{
    Access, Bind, Memory, RawMr, RawMw, RemoteMr, STag, SendFlags, SendOp, WindowType,
};

/// Registered memory, allocated by the engine, to which peers can be given access. Clones refer to
/// the same memory.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// # let [client, server] = blocking()?;
/// use uiw::Access;
/// let counter = server.pd().share(8, Access::REMOTE_ATOMIC)?;
/// client.fetch_add(counter.remote(0..8)?, 5)?;
/// assert_eq!(counter.load_u64(0)?, 5);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SharedMr(Arc<RawMr>);

impl Pd {
    /// Allocates and registers `len` zeroed bytes, to which every peer in this domain has `access`.
    ///
    /// `access` is any combination of the `REMOTE_*` rights; local rights are implied. Without any
    /// remote right, peers can access the memory only through a [`BoundWindow`].
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the memory cannot be allocated. [`ErrorKind::Register`] if it cannot be
    /// registered.
    pub fn share(&self, len: usize, access: Access) -> Result<SharedMr> {
        let memory = Memory::owned(len).map_err(Error::io("allocating shared memory"))?;
        let access = access | Access::LOCAL_WRITE | Access::MW_BIND;
        let base = memory.as_ptr() as u64;
        Ok(SharedMr(Arc::new(self.as_raw().register_raw(memory, base, access)?)))
    }
}

impl SharedMr {
    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the memory has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks that `range` is within the memory.
    fn check(&self, range: &Range<usize>) -> Result<()> {
        if range.start <= range.end && range.end <= self.len() {
            return Ok(());
        }
        let (offset, end, len) = (range.start as u64, range.end as u64, self.len() as u64);
        Err(ErrorKind::OutOfRange { offset, end, len }.into())
    }

    fn span(&self, offset: usize, len: usize) -> Result<Span> {
        self.check(&(offset..offset.saturating_add(len)))?;
        // Cannot fail, because the range is valid and this handle keeps the region.
        self.0.region().span(offset, len).map_err(|_| ErrorKind::NotConnected.into())
    }

    /// Copies the bytes from `offset` to `dst`. If a peer writes at the same time, each byte is
    /// either the old or the new one.
    ///
    /// # Errors
    /// Returns [`ErrorKind::OutOfRange`] if the bytes are not within the memory.
    pub fn read(&self, offset: usize, dst: &mut [u8]) -> Result<()> {
        let span = self.span(offset, dst.len())?;
        // Cannot fail, because this handle keeps the region.
        let _ = span.pin().and_then(|pin| pin.copy_to(0, dst));
        Ok(())
    }

    /// Copies `src` to the bytes from `offset`. The last bytes become visible to peers last.
    ///
    /// # Errors
    /// Returns [`ErrorKind::OutOfRange`] if the bytes are not within the memory.
    pub fn write(&self, offset: usize, src: &[u8]) -> Result<()> {
        let span = self.span(offset, src.len())?;
        let _ = span.pin().and_then(|pin| pin.copy_from(0, src));
        Ok(())
    }

    /// Returns a copy of the bytes in `range`. See [`SharedMr::read`] for concurrent writes.
    ///
    /// # Errors
    /// Returns [`ErrorKind::OutOfRange`] if the range is not within the memory.
    pub fn to_vec(&self, range: Range<usize>) -> Result<Vec<u8>> {
        self.check(&range)?;
        let mut out = vec![0; range.len()];
        self.read(range.start, &mut out)?;
        Ok(out)
    }

    /// Replaces the 8-byte integer at `offset` by the result of `f`, and returns the previous
    /// value.
    ///
    /// The update is atomic with respect to peers' FetchAdd and CmpSwap. The integer is in native
    /// byte order.
    ///
    /// # Errors
    /// Returns [`ErrorKind::OutOfRange`] if the integer is not within the memory, and
    /// [`ErrorKind::Misuse`] if `offset` is not a multiple of 8.
    pub fn update_u64(&self, offset: usize, f: impl FnMut(u64) -> u64) -> Result<u64> {
        let span = self.span(offset, 8)?;
        let Ok(pin) = span.pin() else { return Err(ErrorKind::NotConnected.into()) };
        pin.atomic_u64(0, f).map_err(not_updated)
    }

    /// Returns the 8-byte integer at `offset`, in native byte order, without writing to the memory.
    ///
    /// A program can poll an integer with this until a peer has changed it. Data that the peer
    /// placed before the change is then visible as well.
    ///
    /// # Errors
    /// The errors are those of [`SharedMr::update_u64`].
    pub fn load_u64(&self, offset: usize) -> Result<u64> {
        let span = self.span(offset, 8)?;
        let Ok(pin) = span.pin() else { return Err(ErrorKind::NotConnected.into()) };
        Ok(pin.atomic_cell(0).map_err(not_updated)?.load(Ordering::SeqCst))
    }

    /// Returns the address and key that a peer needs to access the bytes in `range`.
    ///
    /// The key is valid on every connection of the protection domain, with the rights that were
    /// given to [`Pd::share`].
    ///
    /// # Errors
    /// Returns [`ErrorKind::OutOfRange`] if the range is not within the memory.
    pub fn remote(&self, range: Range<usize>) -> Result<RemoteMr> {
        Ok(self.0.remote().slice(range)?)
    }
}

impl Connection {
    /// Gives the peer of this connection, and no other peer, `access` to the bytes `range` of
    /// `memory`.
    ///
    /// Other peers cannot use the key (RFC 5042 section 5). Dropping the [`BoundWindow`] ends the
    /// access.
    ///
    /// # Errors
    /// The operation fails with [`ErrorKind::OutOfRange`], with [`ErrorKind::Register`] if no
    /// window can be allocated, or with [`ErrorKind::Foreign`] if `memory` belongs to another
    /// protection domain.
    pub fn bind_window(
        &self,
        memory: &SharedMr,
        range: Range<usize>,
        access: Access,
    ) -> Op<BoundWindow> {
        let finish: FinishFn<BoundWindow, Error> = |result, window| {
            result?;
            let (remote, window, memory) = downcast_buffer::<PendingBind>(window);
            let remote = RemoteMr { rkey: window.stag(), ..remote };
            Ok(BoundWindow { remote, _window: window, _memory: memory })
        };
        match self.prepare_window(memory, range, access) {
            // The operation keeps the window and the memory until the request completes, because a
            // bind that no longer finds them ends the connection.
            Ok((request, binding)) => self.submit(Ok(request), binding, finish),
            Err(error) => self.submit(Err(error), (), finish),
        }
    }

    /// Allocates a window and builds the request that binds it.
    fn prepare_window(
        &self,
        memory: &SharedMr,
        range: Range<usize>,
        access: Access,
    ) -> Result<(SendRequest, PendingBind)> {
        if memory.0.pd() != self.pd().as_raw() {
            return Err(ErrorKind::Foreign { what: "memory", of: "protection domain" }.into());
        }
        let remote = memory.remote(range)?;
        let window = self.pd().as_raw().alloc_window(WindowType::Two)?;
        let before = window.stag();
        let bind = Bind {
            window: before,
            new_stag: STag::from_parts(before.index(), before.key().wrapping_add(1)),
            region: memory.0.rkey(),
            addr: remote.addr,
            length: remote.len as u64,
            access,
        };
        let request = SendRequest {
            op: SendOp::Bind(bind),
            sges: ArrayVec::new(),
            flags: SendFlags::empty(),
        };
        Ok((request, (remote, window, memory.clone())))
    }
}

/// State of a bind in progress: the remote address (still without the window's key), the window,
/// and the memory.
type PendingBind = (RemoteMr, RawMw, SharedMr);

fn not_updated(error: UpdateError) -> Error {
    match error {
        UpdateError::Unaligned(_) => {
            ErrorKind::Misuse("an atomic needs an offset that is a multiple of 8").into()
        }
        UpdateError::Gone(_) => ErrorKind::NotConnected.into(),
    }
}

impl std::fmt::Debug for SharedMr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedMr").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// Memory window through which the peer of one connection can access part of a [`SharedMr`].
/// Dropping it revokes the key.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// # let [client, server] = blocking()?;
/// use uiw::{Access, RemoteMr};
/// let memory = server.pd().share(4096, Access::empty())?;
/// let window = server.bind_window(&memory, 0..64, Access::REMOTE_WRITE)?;
/// server.send_copy(&window.remote().to_bytes())?;
/// let place = RemoteMr::from_bytes(&client.recv()?.ok_or("closed")?)?;
/// let bytes = client.pd().register(&b"placed by the peer"[..])?;
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
    /// Returns the address and key that the peer needs to access the window.
    #[must_use]
    pub fn remote(&self) -> RemoteMr {
        self.remote
    }
}
