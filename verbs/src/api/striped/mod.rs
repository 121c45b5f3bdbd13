//! Striped connections: one connection over several queue pairs, which are replaced when they die. `docs/striping.md` has the rules, and
//! `uiw-striping` executes them without I/O.
//!
//! * `shared`, `round`: the connection, and the turns that drive it
//! * `state`: what the program's calls and the turns share
//! * `stripe`: one queue pair, and the set-up of another one in its place
//! * `port`, `group`: the acceptor's listener, and connections that it sets up

mod group;
mod message;
mod op;
mod port;
mod round;
mod settings;
mod shared;
mod state;
mod stripe;

pub use message::StripedMessage;
pub use op::StripedOp;
pub use settings::StripedSettings;

use crate::api::buf::{IoBuf, IoBufMut, Mr};
use crate::api::connection::Half;
use crate::api::listener::Incoming;
use crate::api::op::WcError;
use crate::cm::{ConnInfo, ConnRequest};
use crate::error::{Error, Result};
use crate::mr::RemoteMr;
use crate::pd::Pd;
use crate::wc::{Wc, WcOpcode};
use crate::wr::{SendFlags, SendOp};
use futures_util::future::try_join_all;
use port::Port;
use shared::{Handle, Parts, Shared, Side};
use state::{Body, Job};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use uiw_ddp::STag;
use uiw_striping::wire::{Join, JoinError, Kind, Request};
use uiw_striping::{Closed, Counts, End, Op};

/// One connection over several TCP connections, its *stripes*: requests are spread over them, and execute and complete in order as those of
/// one connection do. A stripe that dies is replaced.
///
/// * A completion says that the peer has it: a Send was received, a Write is in the peer's memory.
/// * Sends and Writes with immediate are delivered, and a Read starts, after everything posted before is placed. Writes are not ordered
///   among each other.
/// * After the death of a stripe, what is not known to be executed is repeated; of the Writes only those of [`Striped::write_idempotent`]. Another
///   one that is in doubt ends the connection with "connection lost".
/// * Atomics, Sends with Invalidate and bound windows are refused.
///
/// The rules are in the page "Striped connections" of uiw's book (`docs/striping.md`). Clones are the same connection. When the last clone and the
/// last operation are dropped, it is ended: [`Striped::disconnect`] ends it in order.
///
/// ```
/// use uiw_verbs::blocking::{Striped, StripedListener};
/// use uiw_verbs::{Access, Device, RemoteMr, StripedSettings};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let settings = StripedSettings::default().stripes(3);
/// let pd = Device::open()?.alloc_pd()?;
/// let listener = StripedListener::bind(&pd, "127.0.0.1:0".parse()?, &settings)?;
/// let address = listener.local_addr();
/// let server = std::thread::spawn(move || -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
///     let memory = pd.share(3 << 16, Access::REMOTE_WRITE | Access::REMOTE_READ)?;
///     let connection = listener.accept()?;
///     connection.send_copy(&memory.remote(0..3 << 16)?.to_bytes())?;
///     // Behind all Writes, on whichever stripe they came.
///     assert_eq!(connection.recv()?.as_deref(), Some(&b"written"[..]));
///     connection.disconnect()?;
///     Ok(memory.to_vec(0..3 << 16)?)
/// });
///
/// let pd = Device::open()?.alloc_pd()?;
/// let client = Striped::connect(&pd, address, &settings)?;
/// let memory = RemoteMr::from_bytes(&client.recv()?.ok_or("closed")?).ok_or("no address")?;
/// let writes = [1u8, 2, 3].map(|part| -> Result<_, uiw_verbs::Error> {
///     let at = u64::from(part - 1) << 16;
///     Ok(client.write_idempotent(pd.register(vec![part; 1 << 16])?, memory.slice(at..at + (1 << 16))?))
/// });
/// client.send_copy(b"written")?;
/// for write in writes {
///     write?.wait()?;
/// }
/// assert!(client.recv()?.is_none(), "the server has closed");
/// let written = server.join().unwrap()?;
/// assert!(written.chunks(1 << 16).zip(1..).all(|(part, byte)| part.iter().all(|at| *at == byte)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Striped {
    handle: Arc<Handle>,
}

impl Striped {
    /// Connects all stripes to `peer`, at the same time.
    ///
    /// # Errors
    /// As [`Connection::connect`](crate::Connection::connect), of whichever stripe failed first; [`Error::StripeRejected`] with the peer's
    /// reason, [`Error::PeerStripe`] where it accepts ordinary connections, [`Error::Unsupported`] where its IRD is 0; [`Error::Limit`] and [`Error::Zero`] for settings.
    pub async fn connect(pd: &Pd, peer: SocketAddr, settings: &StripedSettings) -> Result<Self> {
        settings.check(pd.device().limits())?;
        let mut token = [0; 16];
        let no_random = |source: getrandom::Error| {
            Error::io("drawing a token")(std::io::Error::other(source.to_string()))
        };
        getrandom::fill(&mut token).map_err(no_random)?;
        let stripes = settings.stripes;
        let begin = |index| {
            let request = Join::Request(Request { stripes, index, generation: 0, token, delivered: 0 });
            let private_data = if index == 0 { &settings.conn.private_data[..] } else { &[] };
            Half::connect(pd, peer, &settings.of_stripe(index, request.emit(private_data)))
        };
        // All have begun before one is waited for.
        let halves = (0..stripes).map(begin).collect::<Result<Vec<_>>>()?;
        let connected = try_join_all(halves.into_iter().map(Half::established)).await;
        let connections = connected.map_err(|error| with_reason(error, peer))?;
        let mut info: Option<ConnInfo> = None;
        for (connection, index) in connections.iter().zip(0u8..) {
            settings::check_acknowledged(connection)?;
            let own = connection.info();
            let private_data = match Join::parse(&own.private_data) {
                Ok((Join::Reply(reply), rest)) if (reply.stripes, reply.index) == (stripes, index) => {
                    rest.to_vec()
                }
                Ok(_) => return Err(Error::PeerStripe { peer, source: JoinError::Foreign }),
                Err(source) => return Err(Error::PeerStripe { peer, source }),
            };
            match &info {
                None => info = Some(ConnInfo { private_data, ..own.clone() }),
                Some(first) if first.peer_identity == own.peer_identity => {}
                Some(_) => {
                    return Err(Error::StripeRejected { peer, reason: uiw_striping::wire::Reason::Identity });
                }
            }
        }
        let Some(info) = info else { return Err(Error::Zero { what: "number of stripes" }) };
        let (settings, side) = (settings.clone(), Side::Initiator { peer });
        let shared = Shared::new(Parts { pd: pd.clone(), settings, side, token, connections, info })?;
        shared.turn();
        Ok(Self { handle: Arc::new(Handle { shared, device: pd.device().to_handle() }) })
    }

    /// Sends the buffer as one message.
    pub fn send<B: IoBuf>(&self, buffer: Mr<B>) -> StripedOp<B> {
        self.start_message(Kind::Send, SendFlags::empty(), buffer)
    }

    /// Sends the buffer as one message that raises a solicited event at a peer that asked for those.
    pub fn send_solicited<B: IoBuf>(&self, buffer: Mr<B>) -> StripedOp<B> {
        self.start_message(Kind::Send, SendFlags::SOLICITED, buffer)
    }

    /// Sends the buffer with an immediate.
    pub fn send_imm<B: IoBuf>(&self, buffer: Mr<B>, imm: u32) -> StripedOp<B> {
        self.start_message(Kind::SendImm(imm), SendFlags::empty(), buffer)
    }

    /// Sends a copy of `message`: no registered memory needed.
    ///
    /// # Errors
    /// [`WcError`].
    pub async fn send_copy(&self, message: &[u8]) -> std::result::Result<Wc, WcError> {
        let (wc, _) = self.send(self.pd().register(message.to_vec())?).await?;
        Ok(wc)
    }

    /// Writes the buffer into the peer's memory. If it is in doubt after the death of a stripe, it fails with "connection lost", and
    /// the connection ends.
    pub fn write<B: IoBuf>(&self, buffer: Mr<B>, to: RemoteMr) -> StripedOp<B> {
        self.start_remote(Op::Write { idempotent: false }, buffer, to, None)
    }

    /// Writes the buffer into the peer's memory, also more than once: until it completes, nothing else changes these bytes.
    pub fn write_idempotent<B: IoBuf>(&self, buffer: Mr<B>, to: RemoteMr) -> StripedOp<B> {
        self.start_remote(Op::Write { idempotent: true }, buffer, to, None)
    }

    /// As [`Striped::write`], then notifies the peer with an immediate.
    pub fn write_imm<B: IoBuf>(&self, buffer: Mr<B>, to: RemoteMr, imm: u32) -> StripedOp<B> {
        self.start_remote(Op::Write { idempotent: false }, buffer, to, Some(imm))
    }

    /// As [`Striped::write_idempotent`], then notifies the peer with an immediate, once.
    pub fn write_imm_idempotent<B: IoBuf>(&self, buffer: Mr<B>, to: RemoteMr, imm: u32) -> StripedOp<B> {
        self.start_remote(Op::Write { idempotent: true }, buffer, to, Some(imm))
    }

    /// Reads the peer's memory into the buffer.
    pub fn read<B: IoBufMut>(&self, buffer: Mr<B>, from: RemoteMr) -> StripedOp<B> {
        self.start_remote(Op::Read, buffer, from, None)
    }

    /// Refused: it is not known after the death of a stripe whether an atomic was executed, and repeating it would execute it twice.
    ///
    /// # Errors
    /// [`Error::NotRepeatable`], always.
    pub fn fetch_add(&self, _at: RemoteMr, _add: u64) -> Result<u64> {
        Err(Error::NotRepeatable { what: "an atomic" })
    }

    /// Refused, as [`Striped::fetch_add`].
    ///
    /// # Errors
    /// [`Error::NotRepeatable`], always.
    pub fn compare_swap(&self, _at: RemoteMr, _compare: u64, _swap: u64) -> Result<u64> {
        Err(Error::NotRepeatable { what: "an atomic" })
    }

    /// Refused: a key that was invalidated once cannot be invalidated again.
    ///
    /// # Errors
    /// [`Error::NotRepeatable`], always; the buffer is dropped.
    pub fn send_invalidate<B: IoBuf>(&self, _buffer: Mr<B>, _stag: STag) -> Result<StripedOp<B>> {
        Err(Error::NotRepeatable { what: "a Send with Invalidate" })
    }

    /// The next message; `None` when the connection was closed in order, by whichever side. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`WcError`] with [`Error::StripedEnded`] or [`Error::StripedLost`] when the connection has ended otherwise.
    pub async fn recv(&self) -> std::result::Result<Option<StripedMessage>, WcError> {
        let shared = &self.handle.shared;
        let message = poll_fn(|cx| shared.state.lock().poll_message(cx)).await;
        if message.is_some() {
            return Ok(message);
        }
        let state = shared.state.lock();
        match state.endpoint.ended() {
            Some(end) if end != End::Closed && !state.endpoint.peer_has_closed() => {
                let peer = shared.info.peer;
                let error = match state.endpoint.lost_for() {
                    Some(lost_for) => {
                        let lost_for = Duration::from_millis(lost_for.as_millis() as u64);
                        let cause = state.cause.as_ref();
                        let cause = cause.map(|cause| format!("; the last stripe ended with: {cause}"));
                        let why = format!("{end}, for {lost_for:?}{}", cause.unwrap_or_default()).into();
                        Error::StripedLost { peer, lost_for, why }
                    }
                    None => Error::StripedEnded { peer, end },
                };
                Err(error.into())
            }
            _ => Ok(None),
        }
    }

    /// Closes in order: everything that was posted before is executed, the peer's program gets the end behind it, and the peer closes too.
    /// Nothing can be posted any more. Returns how the connection ended.
    ///
    /// # Errors
    /// [`Error::NotConnected`] when it has ended already.
    pub async fn disconnect(&self) -> Result<End> {
        {
            let mut state = self.handle.shared.state.lock();
            if state.endpoint.ended().is_some() {
                return Err(Error::NotConnected);
            }
            state.endpoint.close();
        }
        self.handle.shared.turn();
        Ok(self.ended().await)
    }

    /// Waits until the connection has ended, from whichever side, and no stripe of it is left.
    pub async fn ended(&self) -> End {
        let shared = &self.handle.shared;
        poll_fn(|cx| {
            let mut state = shared.state.lock();
            match (state.poll_over(cx), state.endpoint.ended()) {
                (Poll::Ready(()), Some(end)) => Poll::Ready(end),
                _ => Poll::Pending,
            }
        })
        .await
    }

    /// What start-up of stripe 0 agreed on, and the private data of the peer's program.
    #[must_use]
    pub fn info(&self) -> &ConnInfo {
        &self.handle.shared.info
    }

    /// The connection's protection domain.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.handle.shared.pd
    }

    /// How many stripes it has.
    #[must_use]
    pub fn stripes(&self) -> u8 {
        self.handle.shared.state.lock().endpoint.stripes()
    }

    /// How often stripes died and were replaced, and requests repeated, so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.handle.shared.state.lock().endpoint.counts()
    }

    fn start_message<B: IoBuf>(&self, kind: Kind, flags: SendFlags, buffer: Mr<B>) -> StripedOp<B> {
        self.post(WcOpcode::Send, buffer, |state, job| {
            let number = state.endpoint.post(Op::Message, job.sge.map_or(0, |sge| sge.length.into()))?;
            state.add_job(number, Job { body: Body::Message { kind, flags }, ..job });
            Ok(())
        })
    }

    fn start_remote<B: IoBuf>(&self, op: Op, buffer: Mr<B>, at: RemoteMr, imm: Option<u32>) -> StripedOp<B> {
        let len = buffer.len();
        let remote = match at.slice(0..len as u64) {
            Ok(remote) => remote.into(),
            Err(error) => return self.refuse(error.into(), buffer),
        };
        let (opcode, request) = match op {
            Op::Read => (WcOpcode::Read, SendOp::Read { remote, invalidate: None }),
            _ => (WcOpcode::Write, SendOp::Write { remote }),
        };
        self.post(opcode, buffer, |state, job| {
            let job = Job { body: Body::Other(request), ..job };
            match (op, imm) {
                (Op::Write { idempotent }, Some(imm)) => {
                    let number = state.endpoint.post_write_notice(idempotent, len as u64)?;
                    let kind = Kind::WriteNotice { imm, len: len as u32 };
                    let body = Body::Message { kind, flags: SendFlags::empty() };
                    state.add_job(number + 1, Job { body, sge: None, buffer: None, op: job.op });
                    state.add_job(number, job);
                }
                _ => {
                    let number = state.endpoint.post(op, len as u64)?;
                    state.add_job(number, job);
                }
            }
            Ok(())
        })
    }

    /// Posts the job of a buffer; `add` gives it its number and body.
    fn post<B: IoBuf>(
        &self,
        opcode: WcOpcode,
        buffer: Mr<B>,
        add: impl FnOnce(&mut state::State, Job) -> std::result::Result<(), Closed>,
    ) -> StripedOp<B> {
        let sge = if buffer.pd() == *self.pd() {
            buffer.sge()
        } else {
            Err(Error::Foreign { what: "buffer", of: "protection domain" })
        };
        let sge = match sge {
            Ok(sge) => sge,
            Err(error) => return self.refuse(error.into(), buffer),
        };
        let shared = &self.handle.shared;
        let mut state = shared.state.lock();
        if state.endpoint.is_closing() {
            drop(state);
            return self.refuse(Error::NotConnected.into(), buffer);
        }
        let op = state.add_op(opcode, sge.length);
        let body = Body::Message { kind: Kind::Send, flags: SendFlags::empty() };
        let job = Job { body, sge: Some(sge), buffer: Some(Box::new(buffer)), op: Some(op) };
        let added = add(&mut state, job);
        debug_assert_eq!(added, Ok(()), "it is not closing");
        drop(state);
        shared.turn();
        StripedOp::new(Arc::clone(&self.handle), op)
    }

    /// An operation that failed before it was posted.
    fn refuse<B: IoBuf>(&self, error: WcError, buffer: Mr<B>) -> StripedOp<B> {
        let len = buffer.len() as u32;
        let mut state = self.handle.shared.state.lock();
        let op = state.add_op(WcOpcode::Send, len);
        state.refuse(op, error, Box::new(buffer));
        drop(state);
        StripedOp::new(Arc::clone(&self.handle), op)
    }
}

impl std::fmt::Debug for Striped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Striped").field("info", self.info()).finish_non_exhaustive()
    }
}

/// With the peer's reason, where it has rejected a stripe with one.
fn with_reason(error: Error, peer: SocketAddr) -> Error {
    match &error {
        Error::Rejected { private_data, .. } => match Join::parse(private_data) {
            Ok((Join::Rejection(reason), _)) => Error::StripeRejected { peer, reason },
            _ => error,
        },
        _ => error,
    }
}

/// A port on which peers may connect striped connections, and replace their stripes.
///
/// Dropping it ends set-ups and refuses new connections; the port stays open for the stripes of those that stand.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// use uiw_verbs::{Device, Striped, StripedListener, StripedSettings};
/// let device = Device::open()?;
/// let (pd, settings) = (device.alloc_pd()?, StripedSettings::default());
/// let listener = StripedListener::bind(&pd, "127.0.0.1:0".parse()?, &settings)?;
/// let client = Striped::connect(&pd, listener.local_addr(), &settings);
/// let (client, server) = device.block_on(async { futures_util::future::join(client, listener.accept()).await });
/// assert_eq!((client?.stripes(), server?.stripes()), (4, 4));
/// # Ok(())
/// # }
/// ```
pub struct StripedListener {
    port: Arc<Port>,
}

impl StripedListener {
    /// Listens on `local`; a port of 0 takes a free one, an unspecified address all of them.
    ///
    /// # Errors
    /// As [`Listener::bind`](crate::Listener::bind).
    pub fn bind(pd: &Pd, local: SocketAddr, settings: &StripedSettings) -> Result<Self> {
        Ok(Self { port: Port::bind(pd, local, settings)? })
    }

    /// A listener without a port of its own, for a program whose [`cm::Listener`](crate::cm::Listener) at `local` has ordinary connections too. The program gives
    /// it the Requests of striped ones ([`StripedListener::offer`]), also those that replace stripes, so it lives as long as the connections. TCP
    /// connections are made with the options of the program's listener.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
    /// # fn main() -> Result<(), AnyError> {
    /// use uiw_verbs::cm::{self, CmEventKind};
    /// use uiw_verbs::{Device, Striped, StripedListener, StripedSettings};
    /// let end = End::new()?;
    /// let (any, options) = ("127.0.0.1:0".parse()?, Default::default());
    /// let port = cm::Listener::bind(&end.device, any, 16, &options, &end.channel)?;
    /// let to = port.local_addr();
    /// let settings = StripedSettings::default().stripes(2);
    /// let client = std::thread::spawn(move || -> Result<Striped, AnyError> {
    ///     let device = Device::open()?;
    ///     let pd = device.alloc_pd()?;
    ///     Ok(device.block_on(Striped::connect(&pd, to, &StripedSettings::default().stripes(2)))?)
    /// });
    /// let listener = StripedListener::beside(&end.pd, to, &settings)?;
    /// // A Request for each stripe.
    /// for _ in 0..2 {
    ///     let CmEventKind::ConnectRequest(request) = end.event() else { return Err("no request".into()) };
    ///     assert!(listener.offer(request).is_none());
    /// }
    /// let connection = end.device.block_on(listener.accept())?;
    /// assert_eq!(connection.stripes(), 2);
    /// # client.join().map_err(|_| "the client panicked")??;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Limit`] and [`Error::Zero`] for settings that no connection can be made with.
    pub fn beside(pd: &Pd, local: SocketAddr, settings: &StripedSettings) -> Result<Self> {
        Ok(Self { port: Port::beside(pd, local, settings)? })
    }

    /// Whether a Request is that of a striped connection, of whatever version.
    #[must_use]
    pub fn is_striped(request: &ConnRequest) -> bool {
        !matches!(Join::parse(request.private_data()), Err(JoinError::Foreign))
    }

    /// Takes a Request of a striped connection that came to the program's listener. Another one is returned, to be accepted as an ordinary
    /// connection.
    pub fn offer(&self, request: ConnRequest) -> Option<ConnRequest> {
        if !Self::is_striped(&request) {
            return Some(request);
        }
        self.port.give(Incoming::new(request));
        None
    }

    /// The address it listens on.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.port.local_addr()
    }

    /// The next peer of which all stripes are established. Peers that fail are logged and counted ([`StripedListener::failures`]).
    ///
    /// # Errors
    /// As [`Listener::incoming`](crate::Listener::incoming).
    pub async fn accept(&self) -> Result<Striped> {
        let handle = poll_fn(|cx| self.port.poll_accept(cx)).await?;
        Ok(Striped { handle })
    }

    /// How many peers began a connection and did not complete it.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.port.failures()
    }
}

impl Drop for StripedListener {
    fn drop(&mut self) {
        self.port.close();
    }
}

impl std::fmt::Debug for StripedListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StripedListener").field("local_addr", &self.local_addr()).finish_non_exhaustive()
    }
}
