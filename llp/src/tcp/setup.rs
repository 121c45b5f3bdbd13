//! Making sockets with their options.

use std::{io, net::SocketAddr, os::fd::OwnedFd, time::Duration};

use socket2::{Domain, Socket, TcpKeepalive, Type};

use super::congestion::Congestion;
use super::multipath::Kind;
use crate::{ListenConfig, OptionError, TransportConfig};

/// A listening socket. Accepted sockets inherit its options.
pub(super) fn listener(kind: Kind, local: SocketAddr, options: &ListenConfig) -> io::Result<Socket> {
    let socket = socket(kind, local)?;
    // A restarted server listens at once, although connections of its predecessor are in TIME-WAIT.
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

/// A socket that has begun to connect.
pub(super) fn connecting(
    kind: Kind,
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
    begin(socket, peer)
}

/// A socket that connects to its own end: TCP's simultaneous open (RFC 9293 section 3.5), with itself.
pub(super) fn connecting_to_itself(local: SocketAddr, options: &TransportConfig) -> io::Result<Socket> {
    let socket = socket(Kind::Tcp, local)?;
    apply(&socket, local, options)?;
    socket.bind(&local.into())?;
    let own = local_addr(&socket)?;
    begin(socket, own)
}

fn begin(socket: Socket, peer: SocketAddr) -> io::Result<Socket> {
    match socket.connect(&peer.into()) {
        Ok(()) => Ok(socket),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINPROGRESS | libc::EINTR)) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// A socket that the program has connected or accepted, with its addresses.
pub(super) fn open(
    socket: OwnedFd,
    options: &TransportConfig,
) -> io::Result<(Socket, SocketAddr, SocketAddr)> {
    let socket = Socket::from(socket);
    socket.set_nonblocking(true)?;
    let local = local_addr(&socket)?;
    apply(&socket, local, options)?;
    // ENOTCONN: it connects, or its peer has reset it. The stream will say so.
    let peer = peer_addr(&socket).unwrap_or(local);
    Ok((socket, local, peer))
}

/// Returns whether sockets of this kind can be made.
pub(super) fn permitted(kind: Kind) -> io::Result<()> {
    let made = Socket::new(Domain::IPV4, Type::STREAM, Some(kind.protocol())).map(drop);
    made.map_err(|error| kind.refused(error))
}

fn socket(kind: Kind, address: SocketAddr) -> io::Result<Socket> {
    // CLOEXEC is set by `new`, in the same system call.
    let made = Socket::new(Domain::for_address(address), Type::STREAM, Some(kind.protocol()));
    let socket = made.map_err(|error| kind.refused(error))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Buffers first: they decide the window scale, which is fixed when the connection is made.
fn apply(socket: &Socket, address: SocketAddr, options: &TransportConfig) -> io::Result<()> {
    if let Some(bytes) = options.send_buffer {
        socket.set_send_buffer_size(bytes)?;
    }
    if let Some(bytes) = options.recv_buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    // FPDUs are written whole; nothing that follows would be worth waiting for.
    socket.set_tcp_nodelay(true)?;
    if options.dead_after.is_some() {
        set_dead_after(socket, options.dead_after)?;
    }
    match options.tos {
        Some(tos) if address.is_ipv4() => socket.set_tos_v4(tos.into())?,
        Some(class) => socket.set_tclass_v6(class.into())?,
        None => {}
    }
    if let Some(name) = &options.interface {
        socket
            .bind_device(Some(name.as_bytes()))
            .map_err(|error| OptionError::Interface { name: name.clone(), reason: error.to_string() })?;
    }
    if let Some(name) = &options.congestion {
        Congestion::new(name).prepare(socket)?;
    }
    if let Some(bytes) = options.max_segment {
        socket.set_tcp_mss(bytes.into()).map_err(|error| match error.raw_os_error() {
            Some(libc::EOPNOTSUPP | libc::ENOPROTOOPT) => OptionError::Multipath { what: "size of segments" },
            _ => OptionError::Segment { bytes },
        })?;
    }
    Ok(())
}

/// Probes of an idle connection, the last of which is unanswered after about that time. The kernel sends none while bytes wait for an
/// acknowledgement: for them the caller uses TCP_INFO. TCP_USER_TIMEOUT is not set, as it also ends a connection whose peer keeps its
/// window closed and answers every probe.
pub(super) fn set_dead_after(socket: &Socket, after: Option<Duration>) -> io::Result<()> {
    let Some(after) = after else { return socket.set_keepalive(false) };
    let (idle, interval, retries) = probes(after);
    let second = Duration::from_secs(1);
    let probes =
        TcpKeepalive::new().with_time(second * idle).with_interval(second * interval).with_retries(retries);
    match socket.set_tcp_keepalive(&probes) {
        // MPTCP before Linux 6.10 takes SO_KEEPALIVE alone: probes at the system's times.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOPROTOOPT)) => {
            tracing::debug!(%error, "probes of an idle connection have the system's times");
            socket.set_keepalive(true)
        }
        set => set,
    }
}

/// Seconds until the first probe, seconds between probes, and their number: half of the time idle, then up to four probes.
fn probes(after: Duration) -> (u32, u32, u32) {
    // What the kernel takes.
    const LONGEST: u64 = 32_767;
    let seconds = after.as_secs().clamp(2, 2 * LONGEST) as u32;
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
            let (idle, interval, count) = probes(Duration::from_secs(seconds));
            let dead = u64::from(idle + interval * count);
            assert!(
                (seconds - seconds / 5..=seconds).contains(&dead),
                "{seconds} s: {idle} + {count} * {interval}"
            );
        }
        assert_eq!(probes(Duration::ZERO), (1, 1, 1));
        assert_eq!(probes(Duration::MAX), (32_767, 8192, 3));
    }
}
