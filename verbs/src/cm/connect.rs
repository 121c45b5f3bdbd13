//! Connects a queue pair.

use crate::cm::{
    CmChannel, CmEvent, CmEventKind, CmSide, ConnHandle, ConnId, check_options, connect_error,
};
use crate::conn::Conn;
use crate::driver::{Core, Slot};
use crate::error::{Error, Result};
use crate::faults::CmCall;
use crate::notify::Wakes;
use crate::options::ConnConfig;
use crate::qp::{ConnLocation, Qp, QpInner};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use uiw_ddp::STag;
use uiw_llp::{Token, TransportStack};
use uiw_mpa::startup::Initiator;
use uiw_stream::{RdmapStream, Time};

/// Connects `qp` to `peer`. The outcome is an event on `channel`:
/// [`crate::cm::CmEventKind::Established`] or [`crate::cm::CmEventKind::Failed`].
///
/// Private data is at most 512 bytes at MPA revision 1 and 508 at revision 2.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// use std::sync::Arc;
/// use uiw::raw::{ConnConfig, cm};
/// let end = End::new()?;
/// let options = Arc::new(ConnConfig::default());
/// cm::connect(&end.qp, None, "127.0.0.1:1".parse()?, &options, b"", &end.channel)?;
/// assert!(matches!(end.event(), cm::CmEventKind::Failed(uiw::raw::Error::Refused { .. })));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Startup`] for invalid options or if the private data is too long; [`Error::State`]
/// unless the queue pair is in INIT, in RTR, or in RTS without a connection;
/// [`Error::AlreadyConnected`]; [`Error::Io`] if the system cannot start a connection.
pub fn connect(
    qp: &Qp,
    local: Option<SocketAddr>,
    peer: SocketAddr,
    options: &Arc<ConnConfig>,
    private_data: &[u8],
    channel: &Arc<CmChannel>,
) -> Result<ConnHandle> {
    connect_to(qp, (local, peer), options, private_data, channel, false)
}

/// Like [`connect`], but in two steps. After the peer has answered
/// ([`crate::cm::CmEventKind::Established`] on this side), nothing is sent to it until
/// [`crate::cm::ConnHandle::establish`] is called; only then is the connection established at the
/// peer. This is how programs that change the states of their queue pairs themselves set up
/// connections on InfiniBand.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// use std::sync::Arc;
/// use uiw::raw::{ConnConfig, cm};
/// let [client, server] = [End::new()?, End::new()?];
/// let options = Arc::new(ConnConfig::default());
/// let listener = cm::Listener::bind(&server.device, "127.0.0.1:0".parse()?, 1, &options, &server.channel)?;
/// let to = listener.local_addr();
/// let connection = cm::connect_in_two_steps(&client.qp, None, to, &options, b"", &client.channel)?;
/// let cm::CmEventKind::ConnectRequest(request) = server.event() else { panic!("a request") };
/// request.accept(&server.qp, None, b"", None)?;
/// assert!(matches!(client.event(), cm::CmEventKind::Established(_)));
/// connection.establish()?;
/// assert!(matches!(server.event(), cm::CmEventKind::Established(_)));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The errors are those of [`connect`].
pub fn connect_in_two_steps(
    qp: &Qp,
    local: Option<SocketAddr>,
    peer: SocketAddr,
    options: &Arc<ConnConfig>,
    private_data: &[u8],
    channel: &Arc<CmChannel>,
) -> Result<ConnHandle> {
    connect_to(qp, (local, peer), options, private_data, channel, true)
}

fn connect_to(
    qp: &Qp,
    (local, peer): (Option<SocketAddr>, SocketAddr),
    options: &Arc<ConnConfig>,
    private_data: &[u8],
    channel: &Arc<CmChannel>,
    awaits_establish: bool,
) -> Result<ConnHandle> {
    let how =
        ConnectParameters { asked_local: local, peer, connected_note: None, awaits_establish };
    connect_by(qp, how, options, private_data, channel, move |stack, options, token| {
        stack.connect(local, peer, &options.stream, token)
    })
}

/// Like [`connect`], but uses a kernel socket that is connected to `peer`, or is connecting, and
/// over which nothing was sent. It is never connected again, whatever the options say about
/// retries. Once TCP is connected (and encrypted, with TLS), the event
/// [`crate::cm::CmEventKind::Posted`] with the number `connected` is reported.
///
/// # Errors
/// The errors of [`connect`]; [`Error::Lost`] if the device does not use the kernel's TCP.
pub fn connect_open(
    qp: &Qp,
    socket: OwnedFd,
    peer: SocketAddr,
    options: &Arc<ConnConfig>,
    private_data: &[u8],
    channel: &Arc<CmChannel>,
    connected: u64,
) -> Result<ConnHandle> {
    let mut options = ConnConfig::clone(options);
    (options.fallback, options.refused_retry_time) = (false, Duration::ZERO);
    let how = ConnectParameters {
        asked_local: None,
        peer,
        connected_note: Some(connected),
        awaits_establish: false,
    };
    connect_by(qp, how, &Arc::new(options), private_data, channel, move |stack, options, token| {
        stack.open_socket(socket, Some(peer), &options.stream, token)
    })
}

/// Settings in which the ways to start a connection differ.
struct ConnectParameters {
    /// Local address that the application has requested.
    asked_local: Option<SocketAddr>,
    peer: SocketAddr,
    connected_note: Option<u64>,
    awaits_establish: bool,
}

fn connect_by(
    qp: &Qp,
    how: ConnectParameters,
    options: &Arc<ConnConfig>,
    private_data: &[u8],
    channel: &Arc<CmChannel>,
    connect: impl FnOnce(
        &mut dyn TransportStack,
        &ConnConfig,
        Token,
    ) -> io::Result<Box<dyn uiw_llp::TransportStream>>
    + Send
    + 'static,
) -> Result<ConnHandle> {
    let ConnectParameters { asked_local, peer, connected_note, awaits_establish } = how;
    let inner = &qp.0;
    check_options(inner.driver.limits().max_rd_atomic, options)?;
    let shared = &inner.driver.shared;
    if let Some(fault) = shared.faults.as_ref().and_then(|faults| faults.cm(CmCall::Connect)) {
        let id = ConnId(shared.next_stream().0);
        let mut wakes = Wakes::default();
        let kind = CmEventKind::Failed(fault.error(peer, options.startup_timeout));
        channel.push(CmEvent { id, kind }, &mut wakes);
        wakes.give();
        return Ok(ConnHandle::new(Arc::clone(&inner.driver), None, id));
    }
    Initiator::new(options.startup(), private_data)?;
    let (stream_options, private_data) = (Arc::clone(options), private_data.to_vec());
    begin(inner, options, channel, move |stack, token, sink, now| {
        let options = stream_options;
        let socket =
            connect(stack, &options, token).map_err(|source| connect_error(peer, source))?;
        let nonce = getrandom::u64().unwrap_or(token.0);
        let config = uiw_stream::RdmapConfig { awaits_establish, ..options.stream_config() };
        let stream = RdmapStream::connect(config, &private_data, sink, nonce, now)?;
        Ok(NewConnection { socket, stream, asked_local, connected_note })
    })
}

/// Connects `qp` to itself, by a stream from `local` to the same address; port 0 selects a free
/// port. The queue pair receives what it sends, and reads and writes memory of its own protection
/// domain.
///
/// Nothing is negotiated. Both directions use `options`, and the smaller one of IRD and ORD applies
/// to both. The outcome is an event on `channel`, as for [`connect`]. A violation that the stream
/// detects ends the request that caused it, with the status that the Terminate of a peer would give
/// it.
///
/// # Errors
/// The errors of [`connect`]; [`Error::Lost`] if the stack of the device does not support this.
pub fn connect_self(
    qp: &Qp,
    local: SocketAddr,
    options: &Arc<ConnConfig>,
    channel: &Arc<CmChannel>,
) -> Result<ConnHandle> {
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
        let stream = RdmapStream::loopback(config, sink, now);
        Ok(NewConnection { socket, stream, asked_local: None, connected_note: None })
    })
}

/// Parameters of a connection that is being started.
struct NewConnection {
    socket: Box<dyn uiw_llp::TransportStream>,
    stream: RdmapStream<uiw_mem::Span>,
    /// Local address that the application has requested.
    asked_local: Option<SocketAddr>,
    connected_note: Option<u64>,
}

/// Assigns a connection in start-up, which `open` starts, to `qp`.
fn begin(
    inner: &Arc<QpInner>,
    options: &Arc<ConnConfig>,
    channel: &Arc<CmChannel>,
    open: impl FnOnce(&mut dyn TransportStack, Token, STag, Time) -> Result<NewConnection>
    + Send
    + 'static,
) -> Result<ConnHandle> {
    let driver = Arc::clone(&inner.driver);
    let shard = driver.shard_at(inner.recv_cq.shard());
    shard.start()?;
    let (qp, options, channel) = (Arc::clone(inner), Arc::clone(options), Arc::clone(channel));
    // The queue pair is not used after this: another thread may have taken the events of the
    // connection and dropped the queue pair.
    let (token, id, location) =
        shard.call(move |core| begin_on(core, &qp, &options, &channel, open))?;
    driver.note_use(token);
    Ok(ConnHandle::new(driver, Some(location), id))
}

fn begin_on(
    core: &mut Core,
    inner: &Arc<QpInner>,
    options: &Arc<ConnConfig>,
    channel: &Arc<CmChannel>,
    open: impl FnOnce(&mut dyn TransportStack, Token, STag, Time) -> Result<NewConnection>,
) -> Result<(Token, ConnId, Arc<ConnLocation>)> {
    let shared = Arc::clone(&core.services.shared);
    let control = inner.control();
    inner.may_connect("connecting")?;
    let sink = shared.table.reserve()?;
    let id = ConnId(shared.next_stream().0);
    let cm = CmSide::new(id, Arc::clone(channel));
    let token = core.next_token();
    let opened = open(&mut *core.stack, token, sink, core.services.now);
    let NewConnection { socket, stream, asked_local, connected_note } =
        opened.inspect_err(|_| _ = shared.table.release(sink))?;
    let mut conn = Conn::new(token, socket, stream, Arc::clone(options), cm, &core.services);
    conn.set_qp(inner);
    let location = Arc::clone(&conn.location);
    (conn.asked_local, conn.connected_note) = (asked_local, connected_note);
    core.fill_slot(token, Slot::Conn(Box::new(conn)));
    inner.set_conn(Some(token));
    drop(control);
    // This also sets the timer for start-up.
    core.with_conn(token, |_, _| ());
    Ok((token, id, location))
}

/// Gives up a connection that is being set up, so that the queue pair can be used again. Has no
/// effect on an established connection.
pub fn abandon(qp: &Qp) {
    let Some(token) = qp.0.conn() else { return };
    qp.0.driver.shard(token).call(move |core| {
        core.with_conn(token, |conn, services| {
            if !conn.stream.is_established() {
                conn.fail_startup(Error::NotConnected, services);
            }
        });
    });
}
