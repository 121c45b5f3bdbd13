//! The connection manager: listen, connect, accept, reject. Events come through a [`CmChannel`]; nothing blocks.

mod handle;
mod listener;

pub use handle::ConnHandle;
pub use listener::{ConnRequest, Listener, ListenerId};
pub(crate) use listener::{HalfOpen, ListenerSlot, accept_all};

use crate::conn::Conn;
use crate::driver::{Core, Slot};
use crate::error::{Error, Result};
use crate::notify::{EventQueue, Wakes};
use crate::options::ConnOptions;
use crate::qp::{Qp, QpInner};
use crate::wc::WireReason;
use ddp::STag;
use llp::{Stack, Token};
use mpa::startup::{Initiator, Negotiated};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use stream::{Stream, Time};

/// One end of one connection, for telling events apart. Never used again on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// Where the events of connections go: `rdma_event_channel`.
pub type CmChannel = EventQueue<CmEvent>;

/// Something that happened to a connection or a listener.
#[derive(Debug)]
pub struct CmEvent {
    /// Which connection; of a [`CmEventKind::ConnectRequest`], the connection-to-be.
    pub id: ConnId,
    /// What.
    pub kind: CmEventKind,
}

/// What happened.
#[derive(Debug)]
pub enum CmEventKind {
    /// A peer wants to connect.
    ConnectRequest(ConnRequest),
    /// The connection stands.
    Established(ConnInfo),
    /// The connection could not be set up: refused, rejected, timed out, or the peer speaks something else.
    Failed(Error),
    /// The connection has ended.
    Disconnected(Ending),
    /// Nobody can come to a listener: the interface of a TCP in this process is down or gone.
    Deaf {
        /// Which one.
        listener: ListenerId,
        /// [`Error::Io`] with what happened to the interface.
        error: Error,
        /// Whether it is for good; otherwise the listener goes on when the interface is up again.
        for_good: bool,
    },
    /// The program put it there itself, with [`EventQueue::post`] and a number that means something to it.
    Posted(u64),
}

impl CmEvent {
    /// An event of the program's own, for [`EventQueue::post`]: a channel carries them in order with the engine's. Its
    /// [`ConnId`] is that of no connection.
    #[must_use]
    pub const fn posted(tag: u64) -> Self {
        Self { id: ConnId(0), kind: CmEventKind::Posted(tag) }
    }
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The Terminate behind it.
    pub reason: Option<WireReason>,
    /// Whether both sides closed in order, or the application wanted it.
    pub orderly: bool,
}

/// A standing connection.
#[derive(Clone, Debug)]
pub struct ConnInfo {
    /// Our address.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
    /// What start-up agreed on.
    pub negotiated: Negotiated,
    /// IRD and ORD as the peer said them in its Request or Reply, where it did (RFC 6581 section 9.1).
    pub peer_ird_ord: Option<(u16, u16)>,
    /// The peer's private data.
    pub private_data: Vec<u8>,
}

/// Where the events of one connection go, and which were given.
pub(crate) struct CmSide {
    pub(crate) id: ConnId,
    channel: Arc<CmChannel>,
    state: CmState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CmState {
    Nothing,
    Established,
    Ended,
}

impl CmSide {
    pub(crate) fn new(id: ConnId, channel: Arc<CmChannel>) -> Self {
        Self { id, channel, state: CmState::Nothing }
    }

    pub(crate) fn tell(&self, kind: CmEventKind, wakes: &mut Wakes) {
        self.channel.push(CmEvent { id: self.id, kind }, wakes);
    }

    pub(crate) fn established(&mut self, info: ConnInfo, wakes: &mut Wakes) {
        self.state = CmState::Established;
        self.tell(CmEventKind::Established(info), wakes);
    }

    /// Later events go to another channel. Returns the one before, to be dropped without a lock: its wakers are foreign code.
    fn migrate(&mut self, channel: &Arc<CmChannel>) -> Arc<CmChannel> {
        std::mem::replace(&mut self.channel, Arc::clone(channel))
    }

    /// As [`Self::migrate`], and the events not taken yet go along.
    fn migrate_all(&mut self, channel: &Arc<CmChannel>, wakes: &mut Wakes) -> Arc<CmChannel> {
        let before = self.migrate(channel);
        if !Arc::ptr_eq(&before, channel) {
            before.move_to(channel, |event| event.id == self.id, wakes);
        }
        before
    }

    /// No event tells of it any more.
    pub(crate) fn forget(&mut self) {
        self.state = CmState::Ended;
    }

    pub(crate) fn failed(&mut self, error: Error, wakes: &mut Wakes) {
        if self.state == CmState::Nothing {
            self.state = CmState::Ended;
            self.tell(CmEventKind::Failed(error), wakes);
        }
    }

    /// The stream has ended.
    pub(crate) fn ended(&mut self, ending: Ending, wakes: &mut Wakes) {
        match self.state {
            CmState::Established => self.tell(CmEventKind::Disconnected(ending), wakes),
            CmState::Nothing => self.tell(CmEventKind::Failed(Error::NotConnected), wakes),
            CmState::Ended => {}
        }
        self.state = CmState::Ended;
    }
}

/// Connects `qp` to `peer`. The outcome is an event on `channel`: [`CmEventKind::Established`] or [`CmEventKind::Failed`].
///
/// Private data is at most 512 octets at MPA revision 1 and 508 at revision 2.
///
/// # Errors
/// [`Error::Startup`] for illegal options or private data that is too long, [`Error::State`] unless the queue pair is in INIT,
/// RTR or an RTS that waits for its connection, [`Error::AlreadyConnected`], [`Error::Io`] when no connection can be begun.
pub fn connect(
    qp: &Qp,
    local: Option<SocketAddr>,
    peer: SocketAddr,
    options: &Arc<ConnOptions>,
    private_data: &[u8],
    channel: &Arc<CmChannel>,
) -> Result<ConnId> {
    let inner = &qp.0;
    check_options(inner.driver.limits().max_rd_atomic, options)?;
    Initiator::new(options.startup(), private_data)?;
    let (stream_options, private_data) = (Arc::clone(options), private_data.to_vec());
    begin(inner, options, channel, move |stack, token, sink, now| {
        let options = stream_options;
        let socket = stack
            .connect(local, peer, &options.stream, token)
            .map_err(|source| connect_error(peer, source))?;
        let nonce = getrandom::u64().unwrap_or(token.0);
        let stream = Stream::connect(options.stream_config(), &private_data, sink, nonce, now)?;
        Ok((socket, stream, local))
    })
}

/// Connects `qp` to itself, by a stream from `local` (port 0: any) to the same address: it receives what it sends, and reads and
/// writes its own domain's memory. Nothing is negotiated; both ends have `options`, and a smaller one of IRD and ORD counts for
/// both. The outcome is an event on `channel`, as of [`connect`]. A fault that the stream finds in itself ends the request that
/// it is about with the status that a peer's Terminate would give it.
///
/// # Errors
/// As for [`connect`]; [`Error::Lost`] where the device's stack has no such streams.
pub fn connect_self(
    qp: &Qp,
    local: SocketAddr,
    options: &Arc<ConnOptions>,
    channel: &Arc<CmChannel>,
) -> Result<ConnId> {
    let inner = &qp.0;
    check_options(inner.driver.limits().max_rd_atomic, options)?;
    let (stream_options, limit) = (Arc::clone(options), inner.driver.limits().max_rd_atomic);
    begin(inner, options, channel, move |stack, token, sink, now| {
        let options = stream_options;
        let socket = stack
            .connect_self(local, &options.stream, token)
            .map_err(|source| connect_error(local, source))?;
        let mut config = options.stream_config();
        (config.startup.ird, config.startup.ord) = (options.ird.min(limit), options.ord.min(limit));
        Ok((socket, Stream::loopback(config, sink, now), None))
    })
}

/// How a failed TCP connect is reported.
pub(crate) fn connect_error(peer: SocketAddr, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::ConnectionRefused => Error::Refused { peer },
        _ => Error::Lost { peer, source },
    }
}

/// What a connection is begun with: the socket, the stream, and the local address that the application asked for.
type Opened = (Box<dyn llp::Stream>, Stream<mem::Span>, Option<SocketAddr>);

/// Gives `qp` a connection in start-up, which `open` begins.
fn begin(
    inner: &Arc<QpInner>,
    options: &Arc<ConnOptions>,
    channel: &Arc<CmChannel>,
    open: impl FnOnce(&mut dyn Stack, Token, STag, Time) -> Result<Opened> + Send + 'static,
) -> Result<ConnId> {
    let driver = &inner.driver;
    let shard = driver.shard_at(inner.recv_cq.shard());
    shard.start()?;
    let (qp, options, channel) = (Arc::clone(inner), Arc::clone(options), Arc::clone(channel));
    let (token, id) = shard.call(move |core| begin_on(core, &qp, &options, &channel, open))?;
    driver.note_use(token);
    Ok(id)
}

fn begin_on(
    core: &mut Core,
    inner: &Arc<QpInner>,
    options: &Arc<ConnOptions>,
    channel: &Arc<CmChannel>,
    open: impl FnOnce(&mut dyn Stack, Token, STag, Time) -> Result<Opened>,
) -> Result<(Token, ConnId)> {
    let shared = Arc::clone(&core.services.shared);
    let control = inner.control();
    inner.may_connect("connecting")?;
    let sink = shared.table.reserve()?;
    let id = ConnId(shared.next_stream().0);
    let cm = CmSide::new(id, Arc::clone(channel));
    let opened = core.insert(|stack, services, token| {
        let (socket, stream, asked_local) = open(stack, token, sink, services.now)?;
        let mut conn = Conn::new(token, socket, stream, Arc::clone(options), cm);
        conn.qp = Some(Arc::clone(inner));
        conn.asked_local = asked_local;
        Ok(Slot::Conn(Box::new(conn)))
    });
    let token = match opened {
        Ok(token) => token,
        Err(error) => {
            shared.table.release(sink);
            return Err(error);
        }
    };
    inner.set_conn(Some(token));
    drop(control);
    // The time for start-up gets its timer.
    core.with_conn(token, |_, _| ());
    Ok((token, id))
}

/// Gives up a connection that is being set up; nothing happens to one that stands. The queue pair is free again.
pub fn abandon(qp: &Qp) {
    let Some(token) = qp.0.conn() else { return };
    qp.0.driver.shard(token).call(move |core| {
        core.with_conn(token, |conn, services| {
            if !conn.is_established() {
                conn.fail_startup(Error::NotConnected, services);
            }
        });
    });
}

fn check_options(max_rd_atomic: u16, options: &ConnOptions) -> Result<()> {
    for (what, asked) in [("IRD", options.ird), ("ORD", options.ord)] {
        // 0x3FFF means "not negotiated" (RFC 6581 section 9.1): legal, and bounded by the device's own limit.
        if asked > max_rd_atomic && asked != 0x3FFF {
            return Err(Error::Limit { what, asked: asked.into(), limit: max_rd_atomic.into() });
        }
    }
    if options.startup_timeout.is_zero() {
        return Err(Error::Zero { what: "start-up time-out" });
    }
    Ok(())
}
