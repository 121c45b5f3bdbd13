//! Binding of local addresses, and the active side of a connection.

use crate::link::Link;
use crate::settings::{self, Sizes};
use crate::socket::{Phase, Socket, SocketOptions, State};
use crate::stream::{Stream, check_peer};
use crate::wire::ConnData;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use uiw_cabi_core::address;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::engine;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::ports::{self, PortReservation};
use uiw_cabi_core::settings::Settings;
use uiw_cabi_verbs::device;
use uiw_verbs::cm::{self, ConnHandle, ConnInfo};
use uiw_verbs::{ConnConfig, Error, Qp, StableTx};

/// Connection that is being established.
pub(crate) struct PendingConnection {
    link: Link,
    sizes: Sizes,
}

impl PendingConnection {
    pub(crate) fn new(link: Link, sizes: Sizes) -> Self {
        Self { link, sizes }
    }

    pub(crate) fn qp(&self) -> &Qp {
        self.link.qp()
    }
}

/// Returns the configuration of a connection or listener.
///
/// # Errors
/// EINVAL if an environment variable has an invalid value.
pub(crate) fn conn_config(set: &SocketOptions) -> Result<Arc<ConnConfig>> {
    let settings = Settings::get()?;
    // rsockets use no Reads, but rdma-core requests a depth of one on iWARP.
    let mut options = settings.conn_config(1, 1, None);
    (options.stream.tos, options.stream.v6_only) = (set.tos, set.v6_only);
    // If nothing listens on the port, the program may want to use TCP.
    options.refused_retry_time = Duration::ZERO;
    // Written data comes from the library's own buffers.
    options.stable_tx = settings.stable_tx.unwrap_or(StableTx::Off);
    // The protocol permits a message to wait for a receive.
    options.no_receive_timeout = Duration::MAX;
    Ok(Arc::new(options))
}

/// Binds the socket to a local address, which has the program's port number.
///
/// # Errors
/// EINVAL for a socket that has one; EADDRNOTAVAIL, EADDRINUSE, EACCES.
pub(crate) fn bind(socket: &Arc<Socket>, to: SocketAddr) -> Result<()> {
    let mut state = socket.lock();
    let (Phase::New(None) | Phase::Failed(None)) = &state.phase else {
        return Err(Errno::INVAL.because("rbind for an rsocket that has an address"));
    };
    let real = address::to_real(to)?;
    if !real.ip().is_unspecified() {
        device::with_address(real.ip()).map_err(|errno| {
            if errno == Errno::NODEV { Errno(libc::EADDRNOTAVAIL) } else { errno }
        })?;
    }
    let holder = Arc::as_ptr(socket).addr();
    // An IPv4 socket cannot have an IPv6 address, and an IPv6 socket can have an IPv4 address only
    // if it is mapped.
    let (bound, port) = ports::reserve(holder, real, false, state.set.reuse, state.set.v6_only)?;
    state.local = Some(bound);
    if let Phase::New(own) | Phase::Failed(own) = &mut state.phase {
        *own = Some(port);
    }
    Ok(())
}

/// Starts to connect. The events of the connection follow.
///
/// # Errors
/// EALREADY, EISCONN, EINVAL; ECONNREFUSED for port 0; and the errors of reaching the peer that are
/// known immediately.
pub(crate) fn start(socket: &Socket, state: &mut State, to: SocketAddr) -> Result<()> {
    let has_peer = state.has_peer();
    match &mut state.phase {
        Phase::New(_) => {}
        // After a failure the socket may be connected again, as with TCP. The error of a
        // non-blocking attempt is returned first.
        Phase::Failed(port) => {
            state.phase = Phase::New(port.take());
            if let Some(error) = state.error.take() {
                return Err(error);
            }
        }
        Phase::Connecting(..) if has_peer => return Err(Errno(libc::EISCONN)),
        Phase::Connecting(..) | Phase::Refused => return Err(Errno(libc::EALREADY)),
        Phase::Connected(..) | Phase::Accepting(_) | Phase::Requested(..) => {
            return Err(Errno(libc::EISCONN).because("rconnect for an rsocket that is connected"));
        }
        Phase::Listening(_) | Phase::Closed | Phase::Gone => {
            return Err(Errno::INVAL.because("rconnect for an rsocket that listens"));
        }
    }
    let peer = address::to_real(to)?;
    if peer.port() == 0 {
        return Err(Errno(libc::ECONNREFUSED).because("rconnect to port 0"));
    }
    let local = source(state, peer)?;
    // Checks that a device has the address, because otherwise there is no RDMA.
    device::with_address(local.ip())?;
    let device = engine::get()?;
    let sizes = state.set.sizes.bounded();
    let link = Link::new(&device, &sizes, settings::variant(Settings::get()?.persona))?;
    let data = link.conn_data().to_bytes();
    let options = conn_config(&state.set)?;
    cm::connect(link.qp(), Some(local), peer, &options, &data, socket.channel())?;
    let mut port = match std::mem::replace(&mut state.phase, Phase::Closed) {
        Phase::New(port) => port,
        _ => None,
    };
    // The connection uses the port now.
    drop(port.as_mut().and_then(PortReservation::unbind));
    state.error = None;
    (state.local, state.peer) = (Some(local), Some(peer));
    state.phase = Phase::Connecting(Box::new(PendingConnection { link, sizes }), port);
    Ok(())
}

/// Returns the local address of the connection.
fn source(state: &State, peer: SocketAddr) -> Result<SocketAddr> {
    let bound = match &state.phase {
        Phase::New(Some(port)) => Some(port.address()),
        _ => None,
    };
    if let Some(bound) = bound
        && !bound.ip().is_unspecified()
    {
        if bound.is_ipv4() != peer.is_ipv4() {
            return Err(Errno::INVAL.because("one address is IPv4 and the other IPv6"));
        }
        return Ok(bound);
    }
    let mut source = address::source_for(peer)?;
    source.set_port(bound.map_or(0, |bound| bound.port()));
    Ok(source)
}

/// Returns the reason why the connection could not be established. A uiw listener that refuses
/// because of the variant names its own variant.
pub(crate) fn failure(error: Error) -> Errno {
    if let Error::Rejected { private_data, .. } = &error
        && let Ok(peer) = ConnData::from_bytes(private_data)
        && let Ok(settings) = Settings::get()
    {
        // The reason is logged.
        let _ = check_peer(settings::variant(settings.persona), &peer);
    }
    error.into()
}

/// Parses the private data of a peer.
///
/// # Errors
/// EPROTO for a peer that is not an rsocket.
pub(crate) fn parse_conn_data(bytes: &[u8], peer: SocketAddr) -> Result<ConnData> {
    ConnData::from_bytes(bytes).map_err(|error| {
        tracing::warn!(%error, %peer, "the peer is not an rsocket");
        Errno(libc::EPROTO)
    })
}

/// Creates the stream after the peer has accepted.
///
/// # Errors
/// EPROTO for a peer that is not an rsocket, or with which this end cannot communicate.
pub(crate) fn established(connecting: PendingConnection, info: &ConnInfo) -> Result<Stream> {
    let peer = parse_conn_data(&info.private_data, info.peer)
        .and_then(|peer| check_peer(connecting.link.variant(), &peer).map(|()| peer))
        .inspect_err(|_| {
            // The events of the next attempt arrive in the same channel, and the end of this
            // connection must not be taken for that of the next one.
            if let Ok(connection) = ConnHandle::of(connecting.qp()) {
                connection.forget();
            }
        })?;
    Ok(Stream::new(connecting.link, &connecting.sizes, &peer))
}
