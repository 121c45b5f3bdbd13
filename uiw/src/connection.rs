//! Connections of the async API.

use crate::buf::{IoBuf, IoBufMut, Mr};
use crate::completions::{Completions, SendRequest};
use crate::dispatcher::{ConnectionHandle, ReceiveRing};
use crate::error::{Error, ErrorKind, Result};
use crate::message::Message;
use crate::op::{BufferOp, FinishFn, Op, downcast_buffer, return_buffer};
use crate::pd::Pd;
use crate::settings::ConnectionConfig;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use uiw_verbs::cm::{self, CloseReason, CmChannel, CmEventKind, ConnInfo};
use uiw_verbs::integration;
use uiw_verbs::{
    Access, Memory, Qp, QpCap, QpInit, QpState, Remote, RemoteMr, STag, SendFlags, SendOp, Sge,
    WcStatus,
};

/// Longest message in bytes that [`Connection::send_copy`] posts inline. It registers memory for
/// longer ones.
const MAX_INLINE_COPY: u32 = 256;

/// RDMA connection to a peer, for async programs.
///
/// A connection owns a queue pair with its completion queue and its receive buffers. Methods such
/// as [`Connection::send`] post a request when they are called and return an [`Op`], a future that
/// completes with the request.
///
/// Clones refer to the same connection. It is closed when the last clone, [`Message`] and [`Op`] of
/// it are dropped. Operations that were dropped while in progress are completed first, for at most
/// [`ConnectionConfig::detached_timeout`].
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// # let [client, server] = blocking()?;
/// let (client, server) = (client.into_async(), server.into_async());
/// let device = uiw::Device::open()?;
/// device.block_on(async {
///     client.send_copy(b"good day").await?;
///     assert_eq!(server.recv().await?.as_deref(), Some(&b"good day"[..]));
///     client.disconnect().await?;
///     assert!(server.recv().await?.is_none(), "closed in order");
///     Ok::<(), AnyError>(())
/// })?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Connection {
    pub(crate) dispatcher: Arc<ConnectionHandle>,
    pd: Pd,
}

/// A queue pair with posted receives that is not connected yet.
pub(crate) struct PendingConnection {
    dispatcher: Arc<ConnectionHandle>,
    pd: Pd,
}

impl PendingConnection {
    pub(crate) fn new(pd: &Pd, settings: &ConnectionConfig) -> Result<Self> {
        let device = pd.device();
        settings.check(device.limits())?;
        let completions = Completions::new(settings.send_depth);
        let depth = settings.send_depth + settings.recv_depth;
        let cq = integration::create_consumed_cq(
            device.as_raw(),
            depth,
            Arc::clone(&completions) as Arc<_>,
        )?;
        let cap = QpCap {
            max_send_wr: settings.send_depth,
            max_recv_wr: settings.recv_depth,
            max_inline: MAX_INLINE_COPY,
            ..QpCap::default()
        };
        let init = QpInit::new(&cq, &cq).cap(cap).newest_receive_first();
        let init = integration::with_long_messages(init, settings.max_message);
        let qp = pd.as_raw().create_qp(init)?;
        let len = settings.recv_depth as usize * settings.recv_size as usize;
        let memory = Memory::owned(len).map_err(Error::io("allocating receive buffers"))?;
        // SAFETY: a slot of this memory is read (through a `Message`) only while no posted receive
        // refers to it.
        let memory = unsafe { memory.exclusive() };
        let memory = pd.as_raw().register_raw(memory, 0, Access::LOCAL_WRITE)?;
        let ring = ReceiveRing { memory, size: settings.recv_size, depth: settings.recv_depth };
        let dispatcher = ConnectionHandle::new(device, qp, completions, settings, ring)?;
        Ok(Self { dispatcher, pd: pd.clone() })
    }

    pub(crate) fn qp(&self) -> &Qp {
        self.dispatcher.qp()
    }

    pub(crate) fn channel(&self) -> &Arc<CmChannel> {
        &self.dispatcher.channel
    }

    /// Begins to connect to `peer`.
    pub(crate) fn connect(pd: &Pd, peer: SocketAddr, settings: &ConnectionConfig) -> Result<Self> {
        let pending = Self::new(pd, settings)?;
        let options = settings.raw_options();
        cm::connect(pending.qp(), None, peer, &options, &settings.private_data, pending.channel())?;
        Ok(pending)
    }

    /// Waits until the connection is established. Dropping the future abandons the connection.
    pub(crate) async fn established(self) -> Result<Connection> {
        let abandon = AbandonOnDrop(self.qp());
        match poll_fn(|cx| self.channel().poll_pop(cx)).await.kind {
            CmEventKind::Established(info) => {
                let _ = self.dispatcher.info.set(info);
            }
            CmEventKind::Failed(error) => return Err(error.into()),
            _ => return Err(ErrorKind::NotConnected.into()),
        }
        std::mem::forget(abandon);
        Ok(Connection { dispatcher: self.dispatcher, pd: self.pd })
    }
}

/// Guard that abandons the connection when a connect future fails or is dropped.
struct AbandonOnDrop<'a>(&'a Qp);

impl Drop for AbandonOnDrop<'_> {
    fn drop(&mut self) {
        cm::abandon(self.0);
    }
}

impl Connection {
    /// Connects to `peer`.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`], [`ErrorKind::Rejected`], [`ErrorKind::TimedOut`],
    /// [`ErrorKind::PeerStartup`] and others if the connection cannot be established; the one-line
    /// message says which end is at fault. [`ErrorKind::Startup`] if the settings are invalid.
    pub async fn connect(pd: &Pd, peer: SocketAddr, settings: &ConnectionConfig) -> Result<Self> {
        PendingConnection::connect(pd, peer, settings)?.established().await
    }

    /// Sends the buffer as one message.
    pub fn send<B: IoBuf>(&self, buffer: Mr<B>) -> BufferOp<B> {
        self.submit_buffer(SendOp::Send, SendFlags::empty(), buffer)
    }

    /// Like [`Connection::send`], but raises a solicited event at the peer, if the peer has
    /// requested those events.
    pub fn send_solicited<B: IoBuf>(&self, buffer: Mr<B>) -> BufferOp<B> {
        self.submit_buffer(SendOp::Send, SendFlags::SOLICITED, buffer)
    }

    /// Sends the buffer as one message, and invalidates the peer's `stag` before the receive
    /// completes there.
    pub fn send_invalidate<B: IoBuf>(&self, buffer: Mr<B>, stag: STag) -> BufferOp<B> {
        self.submit_buffer(SendOp::SendInvalidate { stag }, SendFlags::empty(), buffer)
    }

    /// Like [`Connection::send_invalidate`], but also raises a solicited event.
    pub fn send_solicited_invalidate<B: IoBuf>(&self, buffer: Mr<B>, stag: STag) -> BufferOp<B> {
        self.submit_buffer(SendOp::SendInvalidate { stag }, SendFlags::SOLICITED, buffer)
    }

    /// Sends the buffer as one message with the immediate data `imm`. The peer must be uiw as well.
    pub fn send_imm<B: IoBuf>(&self, buffer: Mr<B>, imm: u32) -> BufferOp<B> {
        self.submit_buffer(SendOp::SendImm { imm }, SendFlags::empty(), buffer)
    }

    /// Writes the buffer into the peer's memory.
    ///
    /// The peer's application is not notified. The operation completes when TCP has accepted the
    /// data, which does not mean that the peer has received it.
    pub fn write<B: IoBuf>(&self, buffer: Mr<B>, to: RemoteMr) -> BufferOp<B> {
        self.submit_remote(buffer, to, SendFlags::empty(), |remote| SendOp::Write { remote })
    }

    /// Writes the buffer into the peer's memory, then notifies the peer with the immediate data
    /// `imm` (RFC 7306).
    pub fn write_imm<B: IoBuf>(&self, buffer: Mr<B>, to: RemoteMr, imm: u32) -> BufferOp<B> {
        self.submit_remote(buffer, to, SendFlags::empty(), |remote| SendOp::WriteImm {
            remote,
            imm,
        })
    }

    /// Like [`Connection::write_imm`], but also raises a solicited event.
    pub fn write_imm_solicited<B: IoBuf>(
        &self,
        buffer: Mr<B>,
        to: RemoteMr,
        imm: u32,
    ) -> BufferOp<B> {
        self.submit_remote(buffer, to, SendFlags::SOLICITED, |remote| SendOp::WriteImm {
            remote,
            imm,
        })
    }

    /// Reads the peer's memory into the buffer.
    pub fn read<B: IoBufMut>(&self, buffer: Mr<B>, from: RemoteMr) -> BufferOp<B> {
        let op = |remote| SendOp::Read { remote, invalidate: None };
        self.submit_remote(buffer, from, SendFlags::empty(), op)
    }

    /// Sends a copy of `message` as one message. The caller needs no registered memory, and may
    /// reuse `message` when this returns.
    pub fn send_copy(&self, message: &[u8]) -> Op<()> {
        if message.len() <= MAX_INLINE_COPY as usize {
            let ticket = self.dispatcher.submit_copy(message);
            return Op::new(Arc::clone(&self.dispatcher), ticket, |result, _| result);
        }
        match self.pd.register(message.to_vec()) {
            Ok(copy) => {
                let request = copy.sge().map(|sge| request(SendOp::Send, SendFlags::empty(), sge));
                self.submit(request, copy, |result, _| result)
            }
            Err(refused) => self.submit(Err(refused.error), (), |result, _| result),
        }
    }

    /// Atomically adds `add` to the 8-byte integer at `at` in the peer's memory, and returns the
    /// old value (RFC 7306).
    ///
    /// The operation fails with [`ErrorKind::Misuse`] if the address is not a multiple of 8.
    pub fn fetch_add(&self, at: RemoteMr, add: u64) -> Op<u64> {
        self.atomic(at, |remote| SendOp::FetchAdd { remote, add, mask: 0 })
    }

    /// Atomically replaces the 8-byte integer at `at` in the peer's memory by `swap` if it equals
    /// `compare`, and returns the old value (RFC 7306).
    ///
    /// The operation fails with [`ErrorKind::Misuse`] if the address is not a multiple of 8.
    pub fn compare_swap(&self, at: RemoteMr, compare: u64, swap: u64) -> Op<u64> {
        let all = u64::MAX;
        self.atomic(at, |remote| SendOp::CmpSwap {
            remote,
            compare,
            compare_mask: all,
            swap,
            swap_mask: all,
        })
    }

    fn atomic(&self, at: RemoteMr, op: impl FnOnce(Remote) -> SendOp) -> Op<u64> {
        let finish: FinishFn<u64, Error> = |result, buffer| {
            result?;
            let mut bytes = [0; 8];
            bytes.copy_from_slice(downcast_buffer::<Mr<Vec<u8>>>(buffer).bytes());
            Ok(u64::from_ne_bytes(bytes))
        };
        match self.pd.register(vec![0; 8]) {
            Ok(buffer) => {
                let request = at.slice(0..8).map_err(Error::from).and_then(|target| {
                    let target = Remote::from(target);
                    // The peer would end the connection.
                    if !target.addr.is_multiple_of(8) {
                        return Err(ErrorKind::Misuse(
                            "an atomic needs an address that is a multiple of 8",
                        )
                        .into());
                    }
                    Ok(request(op(target), SendFlags::empty(), buffer.sge()?))
                });
                self.submit(request, buffer, finish)
            }
            Err(refused) => self.submit(Err(refused.error), (), finish),
        }
    }

    /// Waits for the next message. Returns `None` after an orderly close by either side.
    ///
    /// When the peer's process exits, even by a signal, its operating system sends the same FIN as
    /// for an orderly close. If your program must know that the peer has sent everything, let the
    /// peer say so in a last message, or use TLS or a [`ByteStream`](crate::ByteStream).
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: the message stays queued.
    ///
    /// # Errors
    /// [`ErrorKind::Ended`] if the connection was lost (for instance reset) or aborted.
    /// [`ErrorKind::Completed`] if a message could not be received.
    pub async fn recv(&self) -> Result<Option<Message>> {
        // A task that finds a message need not be registered.
        match self.dispatcher.take_message() {
            Some(received) => Ok(Some(Message::new(Arc::clone(&self.dispatcher), received))),
            None => self.dispatcher.received(|cx| self.poll_recv(cx)).await,
        }
    }

    pub(crate) fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<Option<Message>>> {
        if let Poll::Ready(Ok(received)) = self.dispatcher.poll_message(cx) {
            return Poll::Ready(Ok(Some(Message::new(Arc::clone(&self.dispatcher), received))));
        }
        let ending = ready!(self.dispatcher.poll_ended(cx));
        Poll::Ready(match self.dispatcher.poll_message(cx) {
            Poll::Ready(Ok(received)) => {
                Ok(Some(Message::new(Arc::clone(&self.dispatcher), received)))
            }
            Poll::Ready(Err(error)) if !is_flush(&error) => Err(error),
            // Either the receives were flushed because the connection has ended, or none was posted
            // because the program still holds all messages.
            _ if ending.is_closed() => Ok(None),
            _ => Err(self.dispatcher.end_error(ending)),
        })
    }

    /// Returns the number of receive buffers and the size of each in bytes.
    pub(crate) fn recv_depth_and_size(&self) -> (u32, u32) {
        (self.dispatcher.ring.depth, self.dispatcher.ring.size)
    }

    /// Returns the maximum number of requests in progress.
    pub(crate) fn send_depth(&self) -> u32 {
        self.qp().query().cap.max_send_wr
    }

    /// Returns the addresses of both ends, the parameters negotiated during start-up, and the
    /// peer's private data.
    #[must_use]
    pub fn info(&self) -> &ConnInfo {
        match self.dispatcher.info.get() {
            Some(info) => info,
            None => unreachable!("set before the connection is handed out"),
        }
    }

    /// Returns the connection's protection domain.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Returns the queue pair underneath, for queries with the [raw layer](crate::raw).
    ///
    /// Nothing may be posted there: the connection takes every completion for one of its own
    /// requests and receives.
    #[must_use]
    pub fn qp(&self) -> &Qp {
        self.dispatcher.qp()
    }

    /// Begins an orderly close: requests posted before it are sent, then both sides close.
    ///
    /// The close begins with the call, even if the future is never polled. The future waits until
    /// both sides have closed, and returns how the connection ended.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] or [`ErrorKind::Ended`] if the connection had already ended.
    pub fn disconnect(&self) -> impl Future<Output = Result<CloseReason>> + Send + use<> {
        let begun = self.dispatcher.close();
        let connection = self.clone();
        async move {
            let ending = connection.ended().await;
            begun.map(|()| ending).map_err(|_| connection.dispatcher.end_error(ending))
        }
    }

    /// Ends the connection at once, without waiting for the peer.
    ///
    /// A Terminate notifies the peer if it can still be sent, and operations in progress fail with
    /// [`ErrorKind::Ended`]. The connection is aborted by the call, even if the future is never
    /// polled. The future returns how the connection ended; it may have ended earlier for another
    /// reason.
    pub fn abort(&self) -> impl Future<Output = CloseReason> + Send + use<> {
        // This fails only after the queue pair was reset, which has already ended the connection.
        let _ = self.dispatcher.qp().modify(QpState::Err);
        let connection = self.clone();
        async move { connection.ended().await }
    }

    /// Waits until either side has ended the connection, and returns how it ended.
    pub async fn ended(&self) -> CloseReason {
        self.dispatcher.ended().await
    }

    /// Posts `request`, and keeps `memory`, which it uses, until the request is complete, even if
    /// the operation is dropped. If `request` is an error, returns an operation that fails with it.
    pub(crate) fn submit<K: Send + 'static, T, E>(
        &self,
        request: Result<SendRequest>,
        memory: K,
        finish: FinishFn<T, E>,
    ) -> Op<T, E> {
        let ticket = match request {
            Ok(request) => self.dispatcher.submit(request, Box::new(memory)),
            Err(error) => self.dispatcher.submit_failed(error, Box::new(memory)),
        };
        Op::new(Arc::clone(&self.dispatcher), ticket, finish)
    }

    /// Posts `op` with `buffer`, which must belong to the connection's protection domain.
    fn submit_buffer<B: IoBuf>(&self, op: SendOp, flags: SendFlags, buffer: Mr<B>) -> BufferOp<B> {
        let request = if buffer.is_in(&self.pd) {
            buffer.sge().map(|sge| request(op, flags, sge))
        } else {
            Err(ErrorKind::Foreign { what: "buffer", of: "protection domain" }.into())
        };
        self.submit(request, buffer, return_buffer)
    }

    /// Like [`Connection::submit_buffer`], for an operation on the first `buffer.len()` bytes of
    /// `remote`.
    fn submit_remote<B: IoBuf>(
        &self,
        buffer: Mr<B>,
        remote: RemoteMr,
        flags: SendFlags,
        op: impl FnOnce(Remote) -> SendOp,
    ) -> BufferOp<B> {
        match remote.slice(0..buffer.len()) {
            Ok(remote) => self.submit_buffer(op(remote.into()), flags, buffer),
            Err(error) => self.submit(Err(error.into()), buffer, return_buffer),
        }
    }
}

fn request(op: SendOp, flags: SendFlags, sge: Sge) -> SendRequest {
    SendRequest { op, sges: [sge].into_iter().collect(), flags }
}

/// Returns whether a receive was flushed because the connection ended, and did not fail itself.
fn is_flush(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Completed { status: WcStatus::Flushed, .. })
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("info", &self.dispatcher.info.get())
            .finish_non_exhaustive()
    }
}
