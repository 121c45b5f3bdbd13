//! Creation and configuration of the kernel sockets of [`TcpStack`](super::TcpStack).

use std::{io, net::SocketAddr, os::fd::OwnedFd, time::Duration};

use socket2::{Domain, Socket, TcpKeepalive, Type};

use super::congestion::Congestion;
use super::multipath::TcpVariant;
use crate::{ListenConfig, OptionError, TransportConfig};

/// Creates a listening socket. Accepted sockets inherit its options.
pub(super) fn listener(
    kind: TcpVariant,
    local: SocketAddr,
    options: &ListenConfig,
) -> io::Result<Socket> {
    let socket = socket(kind, local)?;
    // A restarted server can listen at once, even if connections of its predecessor are still in
    // TIME-WAIT.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(options.stream.reuse_port)?;
    if local.is_ipv6() {
        socket.set_only_v6(options.stream.v6_only)?;
    }
    apply(&socket, local, &options.stream)?;
    socket.bind(&local.into())?;
    socket.listen(options.backlog.min(i32::MAX as u32) as i32)?;
    Ok(socket)
}

/// Creates a socket and starts to connect it to `peer`, without waiting for the result.
pub(super) fn connect_to_peer(
    kind: TcpVariant,
    local: Option<SocketAddr>,
    peer: SocketAddr,
    options: &TransportConfig,
) -> io::Result<Socket> {
    let socket = socket(kind, peer)?;
    apply(&socket, peer, options)?;
    if let Some(local) = local {
        socket.set_reuse_address(local.port() != 0)?;
        socket.bind(&local.into())?;
    }
    start_connect(socket, peer)
}

/// Creates a socket and connects it to its own address: a simultaneous open (RFC 9293 section 3.5)
/// in which the socket is its own peer.
pub(super) fn connect_to_self(local: SocketAddr, options: &TransportConfig) -> io::Result<Socket> {
    let socket = socket(TcpVariant::Tcp, local)?;
    apply(&socket, local, options)?;
    socket.bind(&local.into())?;
    let own = local_addr(&socket)?;
    start_connect(socket, own)
}

fn start_connect(socket: Socket, peer: SocketAddr) -> io::Result<Socket> {
    match socket.connect(&peer.into()) {
        Ok(()) => Ok(socket),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINPROGRESS | libc::EINTR)) => {
            Ok(socket)
        }
        Err(error) => Err(error),
    }
}

/// Configures a socket that the program has connected or accepted. Returns it with its local and
/// its peer address.
pub(super) fn from_fd(
    socket: OwnedFd,
    options: &TransportConfig,
) -> io::Result<(Socket, SocketAddr, SocketAddr)> {
    let socket = Socket::from(socket);
    socket.set_nonblocking(true)?;
    let local = local_addr(&socket)?;
    apply(&socket, local, options)?;
    // ENOTCONN: the socket is still connecting, or the peer has reset the connection. Later calls
    // on the stream report which.
    let peer = peer_addr(&socket).unwrap_or(local);
    Ok((socket, local, peer))
}

/// Checks that the kernel allows sockets of this kind, by creating one.
pub(super) fn check_supported(kind: TcpVariant) -> io::Result<()> {
    let made = Socket::new(Domain::IPV4, Type::STREAM, Some(kind.protocol())).map(drop);
    made.map_err(|error| kind.refused(error))
}

fn socket(kind: TcpVariant, address: SocketAddr) -> io::Result<Socket> {
    // CLOEXEC is set by `new`, in the same system call.
    let made = Socket::new(Domain::for_address(address), Type::STREAM, Some(kind.protocol()));
    let socket = made.map_err(|error| kind.refused(error))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Sets the options of a socket that is not connected yet.
///
/// The buffer sizes come first: they determine the window scale, which is fixed when the connection
/// is established.
fn apply(socket: &Socket, address: SocketAddr, options: &TransportConfig) -> io::Result<()> {
    if let Some(bytes) = options.send_buffer {
        socket.set_send_buffer_size(bytes)?;
    }
    if let Some(bytes) = options.recv_buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    // FPDUs are written whole, so delaying a short segment (Nagle's algorithm) would gain nothing.
    socket.set_tcp_nodelay(true)?;
    if options.dead_after.is_some() {
        configure_keepalive(socket, options.dead_after)?;
    }
    match options.tos {
        Some(tos) if address.is_ipv4() => socket.set_tos_v4(tos.into())?,
        Some(class) => {
            socket.set_tclass_v6(class.into())?;
            // For packets to IPv4 peers of an IPv6 socket. One that cannot have such peers may refuse it.
            let _ = socket.set_tos_v4(class.into());
        }
        None => {}
    }
    if let Some(name) = &options.interface {
        socket.bind_device(Some(name.as_bytes())).map_err(|error| OptionError::Interface {
            name: name.clone(),
            reason: error.to_string(),
        })?;
    }
    if let Some(name) = &options.congestion {
        Congestion::new(name).prepare(socket)?;
    }
    if let Some(bytes) = options.max_segment {
        socket.set_tcp_mss(bytes.into()).map_err(|error| match error.raw_os_error() {
            Some(libc::EOPNOTSUPP | libc::ENOPROTOOPT) => {
                OptionError::Multipath { what: "size of segments" }.into()
            }
            Some(libc::EINVAL) => OptionError::Segment { bytes }.into(),
            _ => error,
        })?;
    }
    Ok(())
}

/// Configures keep-alive probes so that the kernel gives up an idle connection after about `after`
/// without an answer. `None` turns the probes off.
///
/// The kernel sends no such probes while data waits for an acknowledgement; the caller detects that
/// case with TCP_INFO. TCP_USER_TIMEOUT is not set, because it would also end a connection whose
/// peer keeps its window closed but answers every probe.
pub(super) fn configure_keepalive(socket: &Socket, after: Option<Duration>) -> io::Result<()> {
    let Some(after) = after else { return socket.set_keepalive(false) };
    let (idle, interval, retries) = keepalive_times(after);
    let second = Duration::from_secs(1);
    let keepalive = TcpKeepalive::new()
        .with_time(second * idle)
        .with_interval(second * interval)
        .with_retries(retries);
    match socket.set_tcp_keepalive(&keepalive) {
        // Before Linux 6.10, MPTCP supports only SO_KEEPALIVE, so probes are sent at the intervals
        // that the system is configured with.
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOPROTOOPT)) =>
        {
            tracing::debug!(%error, "probes of an idle connection have the system's times");
            socket.set_keepalive(true)
        }
        set => set,
    }
}

/// Returns the keep-alive parameters for a connection that is dead after `after`: the seconds until
/// the first probe, the seconds between probes, and the number of probes.
///
/// The first probe is sent after half of the time, and up to four probes share the other half.
fn keepalive_times(after: Duration) -> (u32, u32, u32) {
    // The largest value in seconds that the kernel accepts (MAX_TCP_KEEPIDLE).
    const MAX_SECONDS: u64 = 32_767;
    let seconds = after.as_secs().clamp(2, 2 * MAX_SECONDS) as u32;
    let idle = seconds / 2;
    let interval = (seconds - idle).div_ceil(4);
    (idle, interval, (seconds - idle) / interval)
}

pub(super) fn local_addr(socket: &Socket) -> io::Result<SocketAddr> {
    socket.local_addr()?.as_socket().ok_or_else(not_ip)
}

pub(super) fn peer_addr(socket: &Socket) -> io::Result<SocketAddr> {
    socket.peer_addr()?.as_socket().ok_or_else(not_ip)
}

fn not_ip() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not an IP address")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_probe_unanswered_in_time() {
        for seconds in [2, 3, 5, 10, 19, 20, 60, 900, 65_534] {
            let (idle, interval, count) = keepalive_times(Duration::from_secs(seconds));
            let dead = u64::from(idle + interval * count);
            assert!(
                (seconds - seconds / 5..=seconds).contains(&dead),
                "{seconds} s: {idle} + {count} * {interval}"
            );
        }
        assert_eq!(keepalive_times(Duration::ZERO), (1, 1, 1));
        assert_eq!(keepalive_times(Duration::MAX), (32_767, 8192, 3));
    }
}
