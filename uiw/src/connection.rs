//! Connections.

use crate::buf::{IoBuf, IoBufMut, Mr};
use crate::completions::{AnyBuffer, Completions, Request};
use crate::dispatcher::{Handle, OpDone, Ring};
use crate::error::{Error, ErrorKind, Result};
use crate::message::Message;
use crate::op::{Op, WcError};
use crate::pd::Pd;
use crate::settings::ConnectionConfig;
use arrayvec::ArrayVec;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use uiw_verbs::cm::{self, CloseReason, CmChannel, CmEvent, CmEventKind, ConnInfo};
use uiw_verbs::integration;
use uiw_verbs::{
    Access, Memory, Qp, QpCap, QpInit, Remote, RemoteMr, STag, SendFlags, SendOp, Sge, Wc, WcStatus,
};

/// [`Connection::send_copy`] posts messages of at most this many bytes inline, and registers memory for longer ones.
const COPIED_INLINE: u32 = 256;

/// A connection: a queue pair whose completions find their way back to the operations.
///
/// Clones are the same connection. When the last clone, the last message and the last operation are dropped it is closed; operations
/// that were dropped before they were over are finished first, for at most [`ConnectionConfig::detached_timeout`].
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
    pub(crate) dispatcher: Arc<Handle>,
    pd: Pd,
}

/// A queue pair with its receives posted, not connected yet.
pub(crate) struct Half {
    dispatcher: Arc<Handle>,
    pd: Pd,
}

impl Half {
    pub(crate) fn new(pd: &Pd, settings: &ConnectionConfig) -> Result<Self> {
        let device = pd.device();
        settings.check(device.limits())?;
        let completions = Completions::new(settings.send_depth);
        let depth = settings.send_depth + settings.recv_depth;
        let cq = integration::create_consumed_cq(device.as_raw(), depth, Arc::clone(&completions) as Arc<_>)?;
        let cap = QpCap {
            max_send_wr: settings.send_depth,
            max_recv_wr: settings.recv_depth,
            max_inline: COPIED_INLINE,
            ..QpCap::default()
        };
        let init = QpInit::new(&cq, &cq).cap(cap).newest_receive_first();
        let init = integration::with_long_messages(init, settings.max_message);
        let qp = pd.as_raw().create_qp(init)?;
        let len = settings.recv_depth as usize * settings.recv_size as usize;
        let memory = Memory::owned(len).map_err(Error::io("allocating receive buffers"))?;
        // SAFETY: a slot of this memory is read (through a `Message`) only while no receive names it.
        let memory = unsafe { memory.exclusive() };
        let memory = pd.as_raw().register_raw(memory, 0, Access::LOCAL_WRITE)?;
        let ring = Ring { memory, size: settings.recv_size, depth: settings.recv_depth };
        let dispatcher = Handle::new(device, qp, completions, settings, ring)?;
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
        let half = Self::new(pd, settings)?;
        let options = Arc::new(settings.options.clone());
        cm::connect(half.qp(), None, peer, &options, &settings.private_data, half.channel())?;
        Ok(half)
    }

    /// Waits until the connection stands.
    pub(crate) async fn established(self) -> Result<Connection> {
        let abandon = Abandon(Some(&self.dispatcher));
        let event = poll_fn(|cx| self.dispatcher.channel.poll_pop(cx)).await;
        match event {
            CmEvent { kind: CmEventKind::Established(info), .. } => {
                let _ = self.dispatcher.info.set(info);
            }
            CmEvent { kind: CmEventKind::Failed(error), .. } => return Err(error.into()),
            CmEvent { .. } => return Err(ErrorKind::NotConnected.into()),
        }
        abandon.forget();
        Ok(Connection { dispatcher: Arc::clone(&self.dispatcher), pd: self.pd.clone() })
    }
}

/// A connect future that is dropped gives its connection up.
struct Abandon<'a>(Option<&'a Arc<Handle>>);

impl Abandon<'_> {
    fn forget(mut self) {
        self.0 = None;
    }
}

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        if let Some(dispatcher) = self.0 {
            cm::abandon(dispatcher.qp());
        }
    }
}

impl Connection {
    /// Connects to `peer`.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`], [`ErrorKind::Rejected`], [`ErrorKind::TimedOut`], [`ErrorKind::PeerStartup`] and the like: each is one line
    /// that names the end at fault. [`ErrorKind::Startup`] for illegal settings.
    pub async fn connect(pd: &Pd, peer: SocketAddr, settings: &ConnectionConfig) -> Result<Self> {
        Half::connect(pd, peer, settings)?.established().await
    }

    /// Sends the buffer as one message.
    pub fn send<B: IoBuf>(&self, buffer: Mr<B>) -> Op<B> {
        self.start(SendOp::Send, buffer)
    }

    /// Sends the buffer as one message that raises a solicited event at a peer that asked for those.
    pub fn send_solicited<B: IoBuf>(&self, buffer: Mr<B>) -> Op<B> {
        self.start_with(SendOp::Send, SendFlags::SOLICITED, buffer)
    }

    /// Sends the buffer and invalidates `stag` of the peer's before its receive completes.
    pub fn send_invalidate<B: IoBuf>(&self, buffer: Mr<B>, stag: STag) -> Op<B> {
        self.start(SendOp::SendInvalidate { stag }, buffer)
    }

    /// Both: invalidates `stag` of the peer's and raises a solicited event.
    pub fn send_solicited_invalidate<B: IoBuf>(&self, buffer: Mr<B>, stag: STag) -> Op<B> {
        self.start_with(SendOp::SendInvalidate { stag }, SendFlags::SOLICITED, buffer)
    }

    /// Sends the buffer with an immediate: between uiw peers only.
    pub fn send_imm<B: IoBuf>(&self, buffer: Mr<B>, imm: u32) -> Op<B> {
        self.start(SendOp::SendImm { imm }, buffer)
    }

    /// Writes the buffer into the peer's memory. The peer's application learns nothing of it; completion says that TCP has it.
    pub fn write<B: IoBuf>(&self, buffer: Mr<B>, to: RemoteMr) -> Op<B> {
        self.start_remote(buffer, to, |remote| SendOp::Write { remote })
    }

    /// Writes the buffer into the peer's memory, then notifies the peer with an immediate (RFC 7306).
    pub fn write_imm<B: IoBuf>(&self, buffer: Mr<B>, to: RemoteMr, imm: u32) -> Op<B> {
        self.start_remote(buffer, to, |remote| SendOp::WriteImm { remote, imm })
    }

    /// As [`Connection::write_imm`], and raises a solicited event.
    pub fn write_imm_solicited<B: IoBuf>(&self, buffer: Mr<B>, to: RemoteMr, imm: u32) -> Op<B> {
        match to.slice(0..buffer.len() as u64) {
            Ok(remote) => {
                let op = SendOp::WriteImm { remote: remote.into(), imm };
                self.start_with(op, SendFlags::SOLICITED, buffer)
            }
            Err(error) => self.submit(SendOp::Send, SendFlags::empty(), Err(error.into()), buffer),
        }
    }

    /// Reads the peer's memory into the buffer.
    pub fn read<B: IoBufMut>(&self, buffer: Mr<B>, from: RemoteMr) -> Op<B> {
        self.start_remote(buffer, from, |remote| SendOp::Read { remote, invalidate: None })
    }

    /// Sends a copy of `message`: no registered memory needed.
    ///
    /// # Errors
    /// [`WcError`].
    pub async fn send_copy(&self, message: &[u8]) -> std::result::Result<Wc, WcError> {
        if message.len() > COPIED_INLINE as usize {
            let (wc, _) = self.send(self.pd.register(message.to_vec())?).await?;
            return Ok(wc);
        }
        let dispatcher = Arc::clone(&self.dispatcher);
        Posted { ticket: dispatcher.submit_copy(message), dispatcher, over: false }.await.0
    }

    /// Adds to eight bytes of the peer's; returns what they were (RFC 7306).
    ///
    /// # Errors
    /// [`WcError`].
    pub async fn fetch_add(&self, at: RemoteMr, add: u64) -> std::result::Result<u64, WcError> {
        self.atomic(at, |remote| SendOp::FetchAdd { remote, add, mask: 0 }).await
    }

    /// Replaces eight bytes of the peer's by `swap` if they are `compare`; returns what they were (RFC 7306).
    ///
    /// # Errors
    /// [`WcError`].
    pub async fn compare_swap(
        &self,
        at: RemoteMr,
        compare: u64,
        swap: u64,
    ) -> std::result::Result<u64, WcError> {
        let all = u64::MAX;
        self.atomic(at, |remote| SendOp::CmpSwap { remote, compare, compare_mask: all, swap, swap_mask: all })
            .await
    }

    async fn atomic(
        &self,
        at: RemoteMr,
        op: impl FnOnce(Remote) -> SendOp,
    ) -> std::result::Result<u64, WcError> {
        let buffer = self.pd.register(vec![0u8; 8])?;
        let (_, buffer) = self.start(op(at.slice(0..8)?.into()), buffer).await?;
        let mut bytes = [0; 8];
        bytes.copy_from_slice(buffer.bytes());
        Ok(u64::from_ne_bytes(bytes))
    }

    /// The next message; `None` when the connection was closed in order, by whichever side. Dropping the future loses nothing: the
    /// message stays queued.
    ///
    /// # Errors
    /// [`WcError`] when the connection has ended otherwise.
    pub async fn recv(&self) -> std::result::Result<Option<Message>, WcError> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    pub(crate) fn poll_recv(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<std::result::Result<Option<Message>, WcError>> {
        if let Poll::Ready(Ok(received)) = self.dispatcher.poll_message(cx) {
            return Poll::Ready(Ok(Some(Message::new(Arc::clone(&self.dispatcher), received))));
        }
        let ending = ready!(self.dispatcher.poll_ended(cx));
        let (status, reason, peer) = (WcStatus::Flushed, ending.reason, self.dispatcher.peer());
        match self.dispatcher.poll_message(cx) {
            Poll::Ready(Ok(received)) => {
                Poll::Ready(Ok(Some(Message::new(Arc::clone(&self.dispatcher), received))))
            }
            Poll::Ready(Err(error)) if !is_flush(&error) => Poll::Ready(Err(error)),
            // Either the receives were flushed because the connection has ended, or none was posted, as the program has all messages.
            _ if ending.orderly => Poll::Ready(Ok(None)),
            _ => Poll::Ready(Err(WcError::Completed { status, reason, peer, detail: None })),
        }
    }

    /// How many receives are kept posted, and the bytes of each.
    pub(crate) fn receives(&self) -> (u32, u32) {
        (self.dispatcher.ring.depth, self.dispatcher.ring.size)
    }

    /// Requests that may be under way.
    pub(crate) fn send_depth(&self) -> u32 {
        self.qp().query().cap.max_send_wr
    }

    /// What start-up agreed on, and the peer's private data.
    ///
    /// # Panics
    /// Never: a connection is made when it stands.
    #[must_use]
    pub fn info(&self) -> &ConnInfo {
        match self.dispatcher.info.get() {
            Some(info) => info,
            None => unreachable!("set before the connection is handed out"),
        }
    }

    /// The connection's protection domain.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// The queue pair underneath.
    #[must_use]
    pub fn qp(&self) -> &Qp {
        self.dispatcher.qp()
    }

    /// Closes in order: what was posted before is sent, then both sides close. Returns how it ended.
    ///
    /// # Errors
    /// [`ErrorKind::NotConnected`] when the connection is gone already.
    pub async fn disconnect(&self) -> Result<CloseReason> {
        self.dispatcher.qp().disconnect()?;
        Ok(self.ended().await)
    }

    /// Waits until the connection has ended, from whichever side.
    pub async fn ended(&self) -> CloseReason {
        poll_fn(|cx| self.poll_ended(cx)).await
    }

    /// Ready when the connection has ended.
    pub(crate) fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<CloseReason> {
        self.dispatcher.poll_ended(cx)
    }

    /// A request without memory. `kept` is what it works on: it is kept until the request is over, even if the future is dropped.
    pub(crate) async fn local_request<T: Send + 'static>(
        &self,
        op: SendOp,
        kept: T,
    ) -> (std::result::Result<Wc, WcError>, T) {
        let request = Request { op, sges: ArrayVec::new(), flags: SendFlags::empty() };
        let (result, kept) = self.post(request, Box::new(kept)).await;
        match kept.downcast::<T>() {
            Ok(kept) => (result, *kept),
            Err(_) => unreachable!("the ticket was made with a T"),
        }
    }

    /// Posts a request whose elements lie in `buffer`, which comes back with its outcome.
    pub(crate) fn post(&self, request: Request, buffer: AnyBuffer) -> Posted {
        let dispatcher = Arc::clone(&self.dispatcher);
        Posted { ticket: dispatcher.submit(request, buffer), dispatcher, over: false }
    }

    fn start<B: IoBuf>(&self, op: SendOp, buffer: Mr<B>) -> Op<B> {
        self.start_with(op, SendFlags::empty(), buffer)
    }

    fn start_with<B: IoBuf>(&self, op: SendOp, flags: SendFlags, buffer: Mr<B>) -> Op<B> {
        let sge = if buffer.is_in(&self.pd) {
            buffer.sge()
        } else {
            Err(ErrorKind::Foreign { what: "buffer", of: "protection domain" }.into())
        };
        self.submit(op, flags, sge, buffer)
    }

    fn start_remote<B: IoBuf>(
        &self,
        buffer: Mr<B>,
        remote: RemoteMr,
        op: impl FnOnce(Remote) -> SendOp,
    ) -> Op<B> {
        match remote.slice(0..buffer.len() as u64) {
            Ok(remote) => self.start(op(remote.into()), buffer),
            Err(error) => self.submit(SendOp::Send, SendFlags::empty(), Err(error.into()), buffer),
        }
    }

    fn submit<B: IoBuf>(&self, op: SendOp, flags: SendFlags, sge: Result<Sge>, buffer: Mr<B>) -> Op<B> {
        let buffer: AnyBuffer = Box::new(buffer);
        let ticket = match sge {
            Ok(sge) => {
                let sges = [sge].into_iter().collect();
                self.dispatcher.submit(Request { op, sges, flags }, buffer)
            }
            Err(error) => self.dispatcher.submit_failed(error, buffer),
        };
        Op::new(Arc::clone(&self.dispatcher), ticket)
    }
}

/// Whether a receive ended without a fault of its own.
fn is_flush(error: &WcError) -> bool {
    matches!(error, WcError::Completed { status: WcStatus::Flushed, reason: None, .. })
}

/// A request of the engine's own that a future waits for. Dropping it detaches the request.
pub(crate) struct Posted {
    dispatcher: Arc<Handle>,
    ticket: u64,
    over: bool,
}

impl Future for Posted {
    type Output = OpDone;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<OpDone> {
        let done = self.dispatcher.poll_op(self.ticket, cx);
        self.over = done.is_ready();
        done
    }
}

impl Drop for Posted {
    fn drop(&mut self) {
        if !self.over {
            self.dispatcher.detach(self.ticket);
        }
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("info", &self.dispatcher.info.get()).finish_non_exhaustive()
    }
}
