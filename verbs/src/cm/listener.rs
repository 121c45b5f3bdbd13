//! Listeners, and the connections that they accept.

use crate::cm::{CmChannel, CmEvent, CmEventKind, CmSide, ConnId, HalfOpenGuard, ListenerId};
use crate::conn::Conn;
use crate::driver::{Core, Driver, Slot};
use crate::error::{Error, Result};
use crate::options::ConnConfig;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use uiw_counters::Refusal;
use uiw_llp::{ListenConfig, Token};
use uiw_stream::RdmapStream;

/// Maximum number of connections that a listener accepts before other connections are served.
const ACCEPTED_PER_TURN: usize = 64;

/// Logs once per process, for the first address that is not a loopback address, that the traffic is
/// not encrypted (RFC 5042 section 5.4: IPsec is left to the configuration of the network).
fn warn_of_cleartext(local: SocketAddr) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !local.ip().is_loopback() && !SAID.swap(true, Ordering::Relaxed) {
        tracing::warn!(%local, "the wire is not encrypted: use TLS, or a tunnel, on networks you do not trust");
    }
}

/// State of a listener in its shard.
pub(crate) struct ListenerSlot {
    listener: Box<dyn uiw_llp::TransportListener>,
    options: Arc<ConnConfig>,
    channel: Arc<CmChannel>,
    /// Number of connections in setup.
    half_open: Arc<AtomicU32>,
    /// Connections that had not sent a complete Request at the last check, oldest first. The list
    /// may also contain connections that have sent one since, or have ended.
    without_request: VecDeque<Token>,
}

/// Listener on a port. Dropping it closes the port and rejects undecided requests.
pub struct Listener {
    driver: Arc<Driver>,
    token: Token,
    local: SocketAddr,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("local_addr", &self.local).finish_non_exhaustive()
    }
}

impl Listener {
    /// Listens on `local`; port 0 chooses a free one. Requests are reported on `channel`. `options`
    /// apply to every connection for which [`ConnRequest::accept`](super::ConnRequest::accept) gets
    /// no others.
    ///
    /// # Errors
    /// [`Error::Io`] if the address is not available; [`Error::Limit`] or [`Error::Zero`] if an
    /// option is out of range.
    pub fn bind(
        device: &crate::Device,
        local: SocketAddr,
        backlog: u32,
        options: &Arc<ConnConfig>,
        channel: &Arc<CmChannel>,
    ) -> Result<Self> {
        let driver = Arc::clone(device.driver());
        super::check_options(driver.limits().max_rd_atomic, options)?;
        let shard = driver.shard_for_listener();
        shard.start()?;
        let (options, channel) = (Arc::clone(options), Arc::clone(channel));
        let (token, bound) = shard.call(move |core| {
            let token = core.next_token();
            let listen = ListenConfig { backlog, stream: options.stream.clone() };
            let listener =
                core.stack.listen(local, &listen, token).map_err(Error::io("listening"))?;
            let bound = listener.local_addr();
            let slot = ListenerSlot {
                listener,
                options,
                channel,
                half_open: Arc::default(),
                without_request: VecDeque::new(),
            };
            core.fill_slot(token, Slot::Listener(slot));
            Ok::<_, Error>((token, bound))
        })?;
        driver.note_use(token);
        if !driver.shared.encrypts {
            warn_of_cleartext(bound);
        }
        Ok(Self { driver, token, local: bound })
    }

    /// Returns the local address.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns the id that requests name ([`ConnRequest::listener`](super::ConnRequest::listener)).
    #[must_use]
    pub fn id(&self) -> ListenerId {
        ListenerId(self.token.0)
    }

    /// Reports requests on another channel from now on. Pending ones are moved to it, in order
    /// (`rdma_migrate_id`).
    pub fn migrate(&self, channel: &Arc<CmChannel>) {
        let (id, token, channel) = (self.id(), self.token, Arc::clone(channel));
        let before =
            self.driver.shard(token).call(move |core| Self::migrate_on(core, token, id, &channel));
        // Dropped without a lock, because their wakers are code of the application.
        drop(before);
    }

    /// Performs [`Listener::migrate`] on the shard. Returns the previous channels, for the caller
    /// to drop.
    fn migrate_on(
        core: &mut Core,
        listener: Token,
        id: ListenerId,
        channel: &Arc<CmChannel>,
    ) -> Vec<Arc<CmChannel>> {
        let Some(slot) = core.listener(listener) else { return Vec::new() };
        if Arc::ptr_eq(&slot.channel, channel) {
            return Vec::new();
        }
        let mut before = vec![std::mem::replace(&mut slot.channel, Arc::clone(channel))];
        let mut follow = core.conns(|conn| is_of(conn, listener) && conn.stream.awaits_request());
        let moved = |event: &CmEvent| match &event.kind {
            CmEventKind::ConnectRequest(request) if request.listener() == Some(id) => {
                follow.push(request.token);
                true
            }
            CmEventKind::ListenerDown { listener, .. } => *listener == id,
            _ => false,
        };
        before[0].move_to(channel, moved, &mut core.services.wakes);
        for token in follow {
            before.extend(core.with_conn(token, |conn, _| conn.cm.migrate(channel)));
        }
        before
    }
}

/// Returns whether a connection in start-up belongs to `listener`.
fn is_of(conn: &Conn, listener: Token) -> bool {
    conn.half_open.as_ref().is_some_and(|half| half.listener == listener)
}

impl Drop for Listener {
    fn drop(&mut self) {
        let (token, id) = (self.token, self.id());
        let slot = self.driver.shard(token).call(move |core| {
            let slot = core.remove(token);
            for conn in core.conns(|conn| is_of(conn, token)) {
                core.with_conn(conn, Conn::listener_closed);
            }
            slot
        });
        // The events are removed after the call, because dropping a request makes another call to
        // its shard.
        if let Some(Slot::Listener(slot)) = slot {
            drop(slot.channel.remove_if(|event| match &event.kind {
                CmEventKind::ConnectRequest(request) => request.listener() == Some(id),
                CmEventKind::ListenerDown { listener, .. } => *listener == id,
                _ => false,
            }));
        }
    }
}

/// Accepts the connections that wait at a listener, at most [`ACCEPTED_PER_TURN`]. The stack then
/// reports the others.
pub(crate) fn accept_waiting(core: &mut Core, token: Token) {
    let shared = Arc::clone(&core.services.shared);
    for _ in 0..ACCEPTED_PER_TURN {
        let limit = shared.limits.max_half_open;
        let Some(slot) = core.listener(token) else { return };
        let (options, channel) = (Arc::clone(&slot.options), Arc::clone(&slot.channel));
        let half_open = HalfOpenGuard::new(&slot.half_open, token);
        // The oldest connection without a Request is evicted for a new one, so that idle
        // connections lock out no peer.
        let oldest =
            if half_open.count() > limit { oldest_without_request(core, token) } else { None };
        if half_open.count() > limit && oldest.is_none() {
            let Some(peer) = drop_one(core, token) else { return };
            core.services.counters.refused(Refusal::SetUpLimit);
            let peer = uiw_llp::canonical(peer);
            tracing::warn!(%peer, limit, "too many connections in set-up: the newest is cut");
            continue;
        }
        let sink = match shared.table.reserve() {
            Ok(sink) => sink,
            Err(error) => {
                let Some(peer) = drop_one(core, token) else { return };
                core.services.counters.refused(Refusal::Keys);
                let peer = uiw_llp::canonical(peer);
                tracing::warn!(%peer, %error, "a connection is cut");
                continue;
            }
        };
        let id = ConnId(shared.next_stream().0);
        match accept_one(core, token, id, sink, options, channel, half_open) {
            Ok(conn) => {
                if let Some(oldest) = oldest {
                    core.services.counters.refused(Refusal::SetUpLimit);
                    core.with_conn(oldest, |conn, services| {
                        tracing::warn!(
                            peer = %conn.peer(),
                            limit,
                            "too many connections in set-up: the oldest without a Request is cut"
                        );
                        conn.fail_startup(Error::NotConnected, services);
                    });
                }
                let is_first = oldest_without_request(core, token).is_none();
                remember_without_request(core, token, conn, limit as usize);
                // Requests of a peer are reported in the order of its connections. The Request of
                // an earlier connection may have arrived after that connection was read, and is
                // then read at the event of that connection. So this connection is also left to its
                // event unless it is the first one without a Request, because events are in the
                // order of arrival.
                core.with_conn(conn, |conn, services| {
                    // Also without a read, this sets the timer for start-up.
                    if is_first {
                        conn.on_readable(services);
                    }
                });
            }
            Err(error) => {
                shared.table.release(sink);
                return on_accept_error(core, token, error);
            }
        }
    }
}

/// Records another accepted connection. Connections that have sent a Request since are removed from
/// time to time.
fn remember_without_request(core: &mut Core, listener: Token, conn: Token, limit: usize) {
    let Some(slot) = core.listener(listener) else { return };
    slot.without_request.push_back(conn);
    if slot.without_request.len() > 2 * limit + 64 {
        let mut waiting = std::mem::take(&mut slot.without_request);
        waiting.retain(|token| core.conn(*token).is_some_and(|conn| conn.stream.awaits_request()));
        if let Some(slot) = core.listener(listener) {
            slot.without_request = waiting;
        }
    }
}

/// Returns the oldest connection without a complete Request. Those before it that have sent one are
/// removed.
fn oldest_without_request(core: &mut Core, listener: Token) -> Option<Token> {
    loop {
        let token = *core.listener(listener)?.without_request.front()?;
        if core.conn(token).is_some_and(|conn| conn.stream.awaits_request()) {
            return Some(token);
        }
        core.listener(listener)?.without_request.pop_front();
    }
}

/// Closes the next waiting connection, and returns the address of its peer. Returns `None` if there
/// is none; then an error was reported.
fn drop_one(core: &mut Core, listener: Token) -> Option<SocketAddr> {
    match core.listener(listener)?.listener.accept(Token(u64::MAX)) {
        Ok(mut stream) => {
            stream.abort();
            Some(stream.peer_addr())
        }
        Err(error) => {
            on_accept_error(core, listener, error);
            None
        }
    }
}

fn on_accept_error(core: &mut Core, token: Token, error: io::Error) {
    if matches!(error.kind(), io::ErrorKind::NetworkDown | io::ErrorKind::NotFound) {
        // Peers cannot connect, for now or for ever.
        let Some(slot) = core.listener(token) else { return };
        let channel = Arc::clone(&slot.channel);
        let for_good = error.kind() == io::ErrorKind::NotFound;
        let (listener, error) = (ListenerId(token.0), Error::io("listening")(error));
        let kind = CmEventKind::ListenerDown { listener, error, for_good };
        channel.push(CmEvent { id: ConnId(0), kind }, &mut core.services.wakes);
    } else if error.kind() != io::ErrorKind::WouldBlock {
        core.services.counters.refused(Refusal::System);
        // No descriptors are left, or the peer has gone already. The listener continues.
        tracing::warn!(%error, "accepting failed");
    }
}

fn accept_one(
    core: &mut Core,
    listener: Token,
    id: ConnId,
    sink: uiw_ddp::STag,
    options: Arc<ConnConfig>,
    channel: Arc<CmChannel>,
    half_open: HalfOpenGuard,
) -> io::Result<Token> {
    let token = core.next_token();
    let socket = match core.listener(listener) {
        Some(slot) => slot.listener.accept(token)?,
        None => return Err(io::ErrorKind::WouldBlock.into()),
    };
    let stream = RdmapStream::listen(options.stream_config(), sink, core.services.now);
    let mut conn =
        Conn::new(token, socket, stream, options, CmSide::new(id, channel), &core.services);
    conn.register_addresses(&core.services.shared);
    core.services.counters.accepted();
    conn.half_open = Some(Arc::new(half_open));
    core.fill_slot(token, Slot::Conn(Box::new(conn)));
    Ok(token)
}
