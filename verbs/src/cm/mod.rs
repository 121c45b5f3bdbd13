//! Connection manager: listens, connects, accepts and rejects. Outcomes are reported on a
//! [`CmChannel`]; no call blocks.

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
pub(crate) use half_open::HalfOpenGuard;
pub use handle::ConnHandle;
pub use id::{ConnId, ListenerId};
pub use listener::Listener;
pub(crate) use listener::{ListenerSlot, accept_waiting};
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

/// Destination of connection events (`rdma_event_channel`).
pub type CmChannel = EventQueue<CmEvent>;

/// Event of a connection or a listener.
#[derive(Debug)]
pub struct CmEvent {
    /// Connection of the event. For a [`CmEventKind::ConnectRequest`], the identifier that the
    /// connection will have.
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
    /// A peer has requested a UD queue pair.
    SidrRequest(SidrRequest),
    /// A peer has announced its UD queue pair.
    SidrResolved(SidrInfo),
    /// The connection is established.
    Established(ConnInfo),
    /// The connection could not be set up: it was refused or rejected, timed out, or the peer does
    /// not use MPA. A failed request for a UD queue pair is reported by this event as well.
    Failed(Error),
    /// The connection has ended.
    Disconnected(CloseReason),
    /// Peers cannot connect to a listener, because the network interface of a TCP stack in this
    /// process is down or was removed.
    ListenerDown {
        /// Listener that was lost.
        listener: ListenerId,
        /// [`Error::Io`] with the state of the interface.
        error: Error,
        /// True if the listener is lost for good; otherwise it continues when the interface is up
        /// again.
        for_good: bool,
    },
    /// The program has added the event itself, with [`EventQueue::post`]. The meaning of the number
    /// is up to the program.
    Posted(u64),
}

impl CmEvent {
    /// Creates an event of the program's own for [`EventQueue::post`]. A channel keeps it in order
    /// with the events of the engine. Its [`ConnId`] belongs to no connection.
    #[must_use]
    pub const fn posted(tag: u64) -> Self {
        Self { id: ConnId(0), kind: CmEventKind::Posted(tag) }
    }
}

/// Properties of an established connection.
#[derive(Clone, Debug)]
pub struct ConnInfo {
    /// Local address.
    pub local: SocketAddr,
    /// Address of the peer.
    pub peer: SocketAddr,
    /// Result of the negotiation.
    pub negotiated: Negotiated,
    /// IRD and ORD that the peer has sent in its Request or Reply, if it has (RFC 6581 section
    /// 9.1).
    pub peer_ird_ord: Option<(u16, u16)>,
    /// Private data of the peer.
    pub private_data: Vec<u8>,
    /// Identity of the peer, if the stack has verified it (with TLS).
    pub peer_identity: Option<Arc<PeerIdentity>>,
}

/// Destination of the events of one connection, and the events that were reported.
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

    /// Reports later events on another channel. Returns the previous channel, which must be dropped
    /// while no lock is held, because its wakers are code of the application.
    fn migrate(&mut self, channel: &Arc<CmChannel>) -> Arc<CmChannel> {
        std::mem::replace(&mut self.channel, Arc::clone(channel))
    }

    /// Like [`Self::migrate`], but also moves pending events.
    fn migrate_all(&mut self, channel: &Arc<CmChannel>, wakes: &mut Wakes) -> Arc<CmChannel> {
        let before = self.migrate(channel);
        if !Arc::ptr_eq(&before, channel) {
            before.move_to(channel, |event| event.id == self.id, wakes);
        }
        before
    }

    /// Returns whether the outcome was not reported yet.
    pub(crate) fn is_undecided(&self) -> bool {
        self.state == CmState::Nothing
    }

    /// Reports no further events.
    pub(crate) fn forget(&mut self) {
        self.state = CmState::Ended;
    }

    pub(crate) fn failed(&mut self, error: Error, wakes: &mut Wakes) {
        if self.state == CmState::Nothing {
            self.state = CmState::Ended;
            self.report(CmEventKind::Failed(error), wakes);
        }
    }

    /// Reports that the stream has ended.
    pub(crate) fn ended(&mut self, ending: CloseReason, wakes: &mut Wakes) {
        match self.state {
            CmState::Established => self.report(CmEventKind::Disconnected(ending), wakes),
            CmState::Nothing => self.report(CmEventKind::Failed(Error::NotConnected), wakes),
            CmState::Ended => {}
        }
        self.state = CmState::Ended;
    }
}

/// Converts the error of a failed TCP connection attempt.
pub(crate) fn connect_error(peer: SocketAddr, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::ConnectionRefused => Error::Refused { peer },
        _ => Error::Lost { peer, source },
    }
}

fn check_options(max_rd_atomic: u16, options: &ConnConfig) -> Result<()> {
    for (what, asked) in [("IRD", options.ird), ("ORD", options.ord)] {
        // 0x3FFF means "not negotiated" (RFC 6581 section 9.1). It is valid; the limit of the
        // device bounds it.
        if asked > max_rd_atomic && asked != 0x3FFF {
            return Err(Error::Limit { what, asked: asked.into(), limit: max_rd_atomic.into() });
        }
    }
    if options.startup_timeout.is_zero() {
        return Err(Error::Zero { what: "start-up time-out" });
    }
    Ok(())
}
