//! The connection manager: listen, connect, accept, reject. Events come through a [`CmChannel`]; nothing blocks.

mod handle;
mod listener;
mod startup;

pub use handle::ConnHandle;
pub use listener::{ConnRequest, Listener, ListenerId};
pub(crate) use listener::{HalfOpen, ListenerSlot, accept_all};

use crate::driver::{Slot, TimerKind};
use crate::error::{Error, Result};
use crate::notify::{EventQueue, Wakes};
use crate::options::ConnOptions;
use crate::qp::{Conn, Phase, Qp, QpInner};
use crate::wc::WireReason;
use llp::{Stack, Stream, Token};
use mpa::startup::{Initiator, Negotiated};
use std::net::SocketAddr;
use std::sync::Arc;

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
    told: Told,
    /// Given when the peer's first FPDU is here: a responder in peer-to-peer mode waits for the RTR message.
    waiting: Option<ConnInfo>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Established,
    Ended,
}

impl CmSide {
    pub(crate) fn new(id: ConnId, channel: Arc<CmChannel>) -> Self {
        Self { id, channel, told: Told::Nothing, waiting: None }
    }

    pub(crate) fn tell(&self, kind: CmEventKind, wakes: &mut Wakes) {
        self.channel.push(CmEvent { id: self.id, kind }, wakes);
    }

    fn established(&mut self, info: ConnInfo, wakes: &mut Wakes) {
        self.told = Told::Established;
        self.tell(CmEventKind::Established(info), wakes);
    }

    fn established_with_first_fpdu(&mut self, info: ConnInfo) {
        self.waiting = Some(info);
    }

    pub(crate) fn first_fpdu(&mut self, wakes: &mut Wakes) {
        if let Some(info) = self.waiting.take() {
            self.established(info, wakes);
        }
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

    /// Nobody is told anything more.
    fn forget(&mut self) {
        self.told = Told::Ended;
    }

    fn failed(&mut self, error: Error, wakes: &mut Wakes) {
        if self.told == Told::Nothing {
            self.told = Told::Ended;
            self.tell(CmEventKind::Failed(error), wakes);
        }
    }

    /// The stream has ended.
    pub(crate) fn ended(&mut self, ending: Ending, wakes: &mut Wakes) {
        match self.told {
            Told::Established => self.tell(CmEventKind::Disconnected(ending), wakes),
            Told::Nothing => self.tell(CmEventKind::Failed(Error::NotConnected), wakes),
            Told::Ended => {}
        }
        self.told = Told::Ended;
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
    Initiator::new(options.mpa(), private_data)?;
    begin(inner, options, channel, |stack, token| {
        let stream = stack
            .connect(local, peer, &options.stream, token)
            .map_err(|source| startup::connect_error(peer, source))?;
        let prepare = |conn: &mut Conn| {
            conn.private_data = private_data.to_vec();
            conn.asked_local = local;
        };
        Ok((stream, prepare))
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
    begin(inner, options, channel, |stack, token| {
        let stream = stack
            .connect_self(local, &options.stream, token)
            .map_err(|source| startup::connect_error(local, source))?;
        Ok((stream, |conn: &mut Conn| conn.to_itself = true))
    })
}

/// Gives `qp` a connection in set-up, on a stream that `open` begins.
fn begin<P: FnOnce(&mut Conn)>(
    inner: &Arc<QpInner>,
    options: &Arc<ConnOptions>,
    channel: &Arc<CmChannel>,
    open: impl FnOnce(&mut dyn Stack, Token) -> Result<(Box<dyn Stream>, P)>,
) -> Result<ConnId> {
    let mut busy = inner.driver.lock();
    let (core, driver) = busy.parts();
    inner.may_connect("connecting")?;
    let sink = driver.table.reserve()?;
    let id = ConnId(driver.next_stream().0);
    let cm = CmSide::new(id, Arc::clone(channel));
    let opened = core.insert(|stack, token| {
        let (stream, prepare) = open(stack, token)?;
        let mut conn = Conn::new(token, stream, Phase::Connecting, Arc::clone(options), cm, sink);
        conn.qp = Some(Arc::clone(inner));
        prepare(&mut conn);
        Ok(Slot::Conn(Box::new(conn)))
    });
    let token = match opened {
        Ok(token) => token,
        Err(error) => {
            driver.table.release(sink);
            return Err(error);
        }
    };
    inner.set_conn(Some(token));
    core.with_conn(driver, token, |conn, env| {
        conn.set_timer(TimerKind::Startup, conn.options.startup_timeout, env);
    });
    Ok(id)
}

/// Gives up a connection that is being set up; nothing happens to one that stands. The queue pair is free again.
pub fn abandon(qp: &Qp) {
    let inner = &qp.0;
    let mut busy = inner.driver.lock();
    let (core, driver) = busy.parts();
    if let Some(token) = inner.conn() {
        core.with_conn(driver, token, |conn, env| {
            if !conn.is_established() {
                conn.give_up_startup(Error::NotConnected, env);
            }
        });
    }
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
