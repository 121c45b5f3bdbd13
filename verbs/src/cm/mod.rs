//! The connection manager: listen, connect, accept, reject. Events come through a [`CmChannel`];
//! nothing blocks.

mod accept;
mod accept_open;
mod connect;
mod half_open;
mod handle;
mod id;
mod listener;
mod request;
mod sidr;

pub use crate::close_reason::CloseReason;
pub use accept_open::{AwaitedRequest, accept_open};
pub use connect::{abandon, connect, connect_in_two_steps, connect_open, connect_self};
pub(crate) use half_open::HalfOpen;
pub use handle::ConnHandle;
pub use id::{ConnId, ListenerId};
pub use listener::Listener;
pub(crate) use listener::{ListenerSlot, accept_all};
pub use request::ConnRequest;
pub(crate) use sidr::SidrSlot;
pub use sidr::{SidrHandle, SidrInfo, SidrListener, SidrRequest};

use crate::error::{Error, Result};
use crate::notify::{EventQueue, Wakes};
use crate::options::ConnConfig;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use uiw_llp::PeerIdentity;
use uiw_mpa::startup::Negotiated;

/// Destination of the events of connections: `rdma_event_channel`.
pub type CmChannel = EventQueue<CmEvent>;

/// Something that happened to a connection or a listener.
#[derive(Debug)]
pub struct CmEvent {
    /// Connection of the event; for a [`CmEventKind::ConnectRequest`], the connection-to-be.
    pub id: ConnId,
    /// Kind of the event.
    pub kind: CmEventKind,
}

/// Kind of a connection event.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// use uiw::raw::cm::CmEventKind;
/// fn describe(event: &CmEventKind) -> String {
///     match event {
///         CmEventKind::Established(info) => format!("connected to {}", info.peer),
///         CmEventKind::Failed(error) => error.to_string(),
///         CmEventKind::Disconnected(ending) => format!("ended, orderly: {}", ending.orderly),
///         other => format!("{other:?}"),
///     }
/// }
/// # describe(&CmEventKind::Posted(1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub enum CmEventKind {
    /// A connection request of a peer.
    ConnectRequest(ConnRequest),
    /// A peer asks for a UD queue pair.
    SidrRequest(SidrRequest),
    /// A peer has named its UD queue pair.
    SidrResolved(SidrInfo),
    /// The connection stands.
    Established(ConnInfo),
    /// The connection could not be set up: refused, rejected, timed out, or the peer speaks
    /// something else. Also of a request for a UD queue pair.
    Failed(Error),
    /// The connection has ended.
    Disconnected(CloseReason),
    /// No peer can connect to a listener: the interface of a TCP in this process is down or gone.
    ListenerDown {
        /// Listener that was lost.
        listener: ListenerId,
        /// [`Error::Io`] with what happened to the interface.
        error: Error,
        /// True if the listener is lost for good; otherwise it continues when the interface is up
        /// again.
        for_good: bool,
    },
    /// The program put it there itself, with [`EventQueue::post`] and a number that means something
    /// to it.
    Posted(u64),
}

impl CmEvent {
    /// An event of the program's own, for [`EventQueue::post`]: a channel carries them in order
    /// with the engine's. Its [`ConnId`] is that of no connection.
    #[must_use]
    pub const fn posted(tag: u64) -> Self {
        Self { id: ConnId(0), kind: CmEventKind::Posted(tag) }
    }
}

/// Properties of an established connection.
#[derive(Clone, Debug)]
pub struct ConnInfo {
    /// Our address.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
    /// Result of the negotiation.
    pub negotiated: Negotiated,
    /// IRD and ORD as the peer said them in its Request or Reply, where it did (RFC 6581 section
    /// 9.1).
    pub peer_ird_ord: Option<(u16, u16)>,
    /// The peer's private data.
    pub private_data: Vec<u8>,
    /// The identity of the peer, if the stack has verified it: with TLS.
    pub peer_identity: Option<Arc<PeerIdentity>>,
}

/// Destination of the events of one connection, and the events delivered so far.
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

    pub(crate) fn report(&self, kind: CmEventKind, wakes: &mut Wakes) {
        self.channel.push(CmEvent { id: self.id, kind }, wakes);
    }

    pub(crate) fn established(&mut self, info: ConnInfo, wakes: &mut Wakes) {
        self.state = CmState::Established;
        self.report(CmEventKind::Established(info), wakes);
    }

    /// Later events go to another channel. Returns the one before, to be dropped without a lock:
    /// its wakers are foreign code.
    fn migrate(&mut self, channel: &Arc<CmChannel>) -> Arc<CmChannel> {
        std::mem::replace(&mut self.channel, Arc::clone(channel))
    }

    /// Like [`Self::migrate`], and the events not taken yet go along.
    fn migrate_all(&mut self, channel: &Arc<CmChannel>, wakes: &mut Wakes) -> Arc<CmChannel> {
        let before = self.migrate(channel);
        if !Arc::ptr_eq(&before, channel) {
            before.move_to(channel, |event| event.id == self.id, wakes);
        }
        before
    }

    /// Returns whether no event has reported its outcome.
    pub(crate) fn is_undecided(&self) -> bool {
        self.state == CmState::Nothing
    }

    /// No event reports it any more.
    pub(crate) fn forget(&mut self) {
        self.state = CmState::Ended;
    }

    pub(crate) fn failed(&mut self, error: Error, wakes: &mut Wakes) {
        if self.state == CmState::Nothing {
            self.state = CmState::Ended;
            self.report(CmEventKind::Failed(error), wakes);
        }
    }

    /// The stream has ended.
    pub(crate) fn ended(&mut self, ending: CloseReason, wakes: &mut Wakes) {
        match self.state {
            CmState::Established => self.report(CmEventKind::Disconnected(ending), wakes),
            CmState::Nothing => self.report(CmEventKind::Failed(Error::NotConnected), wakes),
            CmState::Ended => {}
        }
        self.state = CmState::Ended;
    }
}

/// Converts the error of a failed TCP connect.
pub(crate) fn connect_error(peer: SocketAddr, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::ConnectionRefused => Error::Refused { peer },
        _ => Error::Lost { peer, source },
    }
}

fn check_options(max_rd_atomic: u16, options: &ConnConfig) -> Result<()> {
    for (what, asked) in [("IRD", options.ird), ("ORD", options.ord)] {
        // 0x3FFF means "not negotiated" (RFC 6581 section 9.1): legal, and bounded by the device's
        // own limit.
        if asked > max_rd_atomic && asked != 0x3FFF {
            return Err(Error::Limit { what, asked: asked.into(), limit: max_rd_atomic.into() });
        }
    }
    if options.startup_timeout.is_zero() {
        return Err(Error::Zero { what: "start-up time-out" });
    }
    Ok(())
}
