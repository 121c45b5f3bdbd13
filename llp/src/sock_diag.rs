//! The kernel's state of a TCP connection of any process, by sock_diag(7). It is for monitoring
//! without the descriptor of the connection.

use crate::netlink::{self, attribute};
use crate::{StreamInfo, tcp};
use rustix::io::Errno;
use rustix::net::netlink::SOCK_DIAG;
use std::io;
use std::net::{IpAddr, SocketAddr};

/// `SOCK_DIAG_BY_FAMILY`, the type of query and answer.
const BY_FAMILY: u16 = 20;
/// `INET_DIAG_INFO`, the attribute with `struct tcp_info`.
const INFO: u16 = 2;
/// `INET_DIAG_CONG`, the attribute with the name of the congestion control.
const CONGESTION: u16 = 4;
/// Size of `struct inet_diag_msg` in bytes.
const ANSWER: usize = 72;
/// `INET_DIAG_NOCOOKIE`: any socket with these addresses.
const NO_COOKIE: [u8; 8] = [0xFF; 8];

/// Returns the state of the connection from `local` to `peer`, or `None` if there is no such
/// connection in the network namespace of the calling thread.
///
/// # Errors
/// Returns OS errors, for example if the kernel has no sock_diag.
pub fn info(local: SocketAddr, peer: SocketAddr) -> io::Result<Option<StreamInfo>> {
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // `struct inet_diag_req_v2`, which matches sockets in any state.
    let mut question =
        vec![family as u8, libc::IPPROTO_TCP as u8, 1 << (INFO - 1) | 1 << (CONGESTION - 1), 0];
    question.extend(u32::MAX.to_ne_bytes());
    question.extend(local.port().to_be_bytes());
    question.extend(peer.port().to_be_bytes());
    question.extend(address(local.ip()));
    question.extend(address(peer.ip()));
    let scope = match local {
        SocketAddr::V6(v6) => v6.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    question.extend(scope.to_ne_bytes());
    question.extend(NO_COOKIE);
    let answer = match netlink::query(Some(SOCK_DIAG), BY_FAMILY, &question, None, 0) {
        Ok(answer) => answer,
        Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => return Ok(None),
        Err(error) => return Err(error),
    };
    // The answer contains family, state, timer and retransmissions, and then the ports of the
    // socket. If there is no connection, the kernel returns a listener.
    let has_peer = answer.get(6..8) == Some(&peer.port().to_be_bytes()[..]);
    let attributes = answer.get(ANSWER..).filter(|_| has_peer).unwrap_or_default();
    let Some(info) = attribute(attributes, INFO) else { return Ok(None) };
    let congestion = attribute(attributes, CONGESTION).map(netlink::text);
    Ok(Some(tcp::stream_info(info, congestion)))
}

/// Returns the address in sixteen bytes, of which IPv4 uses the first ones.
fn address(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V6(v6) => v6.octets(),
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&v4.octets());
            bytes
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn connection_found_by_addresses() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(host) else { continue };
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, peer) = listener.accept().unwrap();
            client.write_all(&[7; 1000]).unwrap();
            server.read_exact(&mut [0; 1000]).unwrap();
            let local = client.peer_addr().unwrap();
            let received = info(local, peer).unwrap().expect("the server's end");
            assert_eq!(received.bytes_received, Some(1000));
            assert!(received.congestion.is_some_and(|name| !name.is_empty()));
            let sent = info(peer, local).unwrap().expect("the client's end");
            assert_eq!((sent.bytes_received, sent.retransmits), (Some(0), Some(0)));
            assert!(sent.rtt_us.is_some_and(|rtt| rtt > 0));
            assert_eq!(info(local, SocketAddr::new(peer.ip(), 1)).unwrap(), None);
        }
    }
}
