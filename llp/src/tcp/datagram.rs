//! The kernel's UDP: non-blocking sockets in the epoll set of their stack.

mod syscall;

use super::{data, flags, setup};
use crate::{DATAGRAM_BUFFER, DatagramConfig, DatagramSocket, Incoming, Interest, Outgoing, Token};
use rustix::event::epoll;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use syscall::{MAX_MESSAGES, OutgoingMessage};

/// Requested size of the kernel's buffer for unread datagrams, in bytes. The kernel limits it to
/// `net.core.rmem_max`.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Maximum number of datagrams in one message with UDP_SEGMENT: UDP_MAX_SEGMENTS in newer kernels
/// (seen in 6.18).
const MAX_SEGMENTS: usize = 128;
/// UDP_MAX_SEGMENTS in the first kernels with UDP_SEGMENT.
const FEWER_SEGMENTS: usize = 64;
/// Maximum number of bytes in one message with UDP_SEGMENT.
const MAX_SEGMENTED: usize = 65_000;

pub(super) struct KernelDatagrams {
    socket: OwnedFd,
    epoll: Arc<OwnedFd>,
    token: Token,
    interest: Interest,
    local: SocketAddr,
    /// Maximum number of datagrams to one peer that are passed to the kernel as one message. It is
    /// reduced, down to 1, after the kernel has refused a message.
    max_segments: usize,
    messages: Vec<OutgoingMessage>,
}

/// Binds a socket.
pub(super) fn bind(
    local: SocketAddr,
    options: &DatagramConfig,
    epoll: &Arc<OwnedFd>,
    token: Token,
) -> io::Result<KernelDatagrams> {
    let socket = Socket::new(Domain::for_address(local), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    // The kernel may grant less.
    let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER);
    if local.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    syscall::set_unfragmented(&socket, local.is_ipv6())?;
    // Older kernels deliver every datagram separately.
    let _ = syscall::set_gro(&socket);
    if local.ip().is_multicast() {
        // SO_REUSEPORT is not used. With it, Linux chooses one of the group's sockets by the
        // sender's port, even if only another socket is a member at the interface (seen in 6.18).
        socket.set_reuse_address(true)?;
        socket.bind(&local.into())?;
        join(&socket, local.ip(), options)?;
    } else {
        socket.bind(&local.into())?;
        send_to_groups(&socket, local)?;
    }
    let local = setup::local_addr(&socket)?;
    epoll::add(epoll, &socket, data(token), flags(Interest::NONE))?;
    tracing::debug!(%local, "bound for datagrams");
    Ok(KernelDatagrams {
        socket: socket.into(),
        epoll: Arc::clone(epoll),
        token,
        interest: Interest::NONE,
        local,
        max_segments: MAX_SEGMENTS,
        messages: Vec::new(),
    })
}

/// Joins a group. Datagrams of groups that only other sockets have joined are not received.
fn join(socket: &Socket, group: IpAddr, options: &DatagramConfig) -> io::Result<()> {
    match (group, options.member) {
        (IpAddr::V4(group), Some(IpAddr::V4(member))) => {
            socket.set_multicast_all_v4(false)?;
            socket.join_multicast_v4(&group, &member)
        }
        (IpAddr::V6(group), Some(IpAddr::V6(_))) => {
            socket.set_multicast_all_v6(false)?;
            // With IPv6 the kernel does not check the interface of a membership, so the socket is
            // bound to the interface. Before Linux 5.7 this needs a privilege.
            let _ = syscall::bind_to_interface(socket, options.interface);
            socket.join_multicast_v6(&group, options.interface)
        }
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a group is joined at an address of its family",
        )),
    }
}

/// Makes datagrams to groups leave through the interface of the socket's address.
fn send_to_groups(socket: &Socket, local: SocketAddr) -> io::Result<()> {
    match local {
        SocketAddr::V4(local) => socket.set_multicast_if_v4(local.ip()),
        SocketAddr::V6(local) => match syscall::interface_of(*local.ip(), local.scope_id()) {
            0 => Ok(()),
            index => socket.set_multicast_if_v6(index),
        },
    }
}

/// Datagrams that were not passed to the kernel yet.
struct UnsentItems<'a> {
    items: &'a [Outgoing],
    /// Number of datagrams of the first item that were already used.
    used: usize,
    /// Offset of the next datagram in the buffer.
    at: usize,
}

impl<'a> UnsentItems<'a> {
    fn new(items: &'a [Outgoing]) -> Self {
        Self { items, used: 0, at: 0 }
    }

    /// Takes up to `max` datagrams from the front that the kernel can send as one message: they
    /// have the same peer, hop limit and length, except that the last one may be shorter.
    fn take(&mut self, max: usize) -> Option<OutgoingMessage> {
        while self.items.first().is_some_and(|item| item.count == 0) {
            self.items = &self.items[1..];
        }
        let first = self.items.first()?;
        // The kernel creates no segments without bytes.
        let max = if first.len == 0 { 1 } else { max };
        let (mut count, mut len, mut ends) = (0, 0, false);
        while !ends
            && let Some(item) = self.items.first()
            && (item.peer, item.hop_limit) == (first.peer, first.hop_limit)
            && item.len <= first.len
            && (item.len > 0 || count == 0)
        {
            ends = item.len < first.len && item.count > 0;
            let room = (max - count).min(MAX_SEGMENTED.saturating_sub(len) / item.len.max(1));
            let room = if count == 0 { room.max(1) } else { room };
            let now = (item.count - self.used).min(if ends { room.min(1) } else { room });
            (count, len, self.used) = (count + now, len + now * item.len, self.used + now);
            if self.used < item.count {
                break;
            }
            (self.items, self.used) = (&self.items[1..], 0);
        }
        let segment = if count > 1 { u16::try_from(first.len).unwrap_or(0) } else { 0 };
        let message = OutgoingMessage {
            peer: first.peer,
            hop_limit: first.hop_limit,
            at: self.at,
            len,
            segment,
            count,
        };
        self.at += len;
        Some(message)
    }
}

impl KernelDatagrams {
    /// Collects as many messages as one call can send.
    fn collect_messages(&mut self, datagrams: &[Outgoing], max: usize) {
        let mut rest = UnsentItems::new(datagrams);
        self.messages.clear();
        self.messages.extend(std::iter::from_fn(|| rest.take(max)).take(MAX_MESSAGES));
    }

    /// Returns the number of datagrams in the first `messages` messages.
    fn count_datagrams(&self, messages: usize) -> usize {
        self.messages[..messages].iter().map(|message| message.count).sum()
    }
}

impl DatagramSocket for KernelDatagrams {
    fn send(&mut self, bytes: &[u8], datagrams: &[Outgoing]) -> io::Result<usize> {
        let (mut max, mut refusal) = (self.max_segments, None::<io::Error>);
        loop {
            self.collect_messages(datagrams, max);
            let error = match syscall::send(self.socket.as_fd(), bytes, &self.messages) {
                Ok(sent) => {
                    let is_of_segments = |error: &io::Error| {
                        matches!(
                            error.raw_os_error(),
                            Some(libc::EINVAL | libc::EIO | libc::EOPNOTSUPP)
                        )
                    };
                    if let Some(error) = refusal.filter(is_of_segments) {
                        tracing::debug!(%error, max, "datagrams are sent in shorter runs");
                        self.max_segments = max;
                    }
                    return Ok(self.count_datagrams(sent));
                }
                Err(error) => error,
            };
            let count = self.messages.first().map_or(0, |message| message.count);
            if count <= 1 || error.kind() == io::ErrorKind::WouldBlock {
                return Err(error);
            }
            // The error may concern the datagrams, for example their peer, the number of segments
            // (EINVAL), or segmentation itself. In the last two cases shorter messages, or single
            // datagrams, are sent.
            let is_of_count = error.raw_os_error() == Some(libc::EINVAL) && count > FEWER_SEGMENTS;
            max = if is_of_count { FEWER_SEGMENTS } else { 1 };
            refusal = Some(error);
        }
    }

    fn recv(&mut self, buffer: &mut [u8], datagrams: &mut Vec<Incoming>) -> io::Result<()> {
        syscall::recv(self.socket.as_fd(), buffer, DATAGRAM_BUFFER, datagrams)
    }

    fn set_interest(&mut self, interest: Interest) -> io::Result<()> {
        if self.interest != interest {
            epoll::modify(&self.epoll, &self.socket, data(self.token), flags(interest))?;
            self.interest = interest;
        }
        Ok(())
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

impl Drop for KernelDatagrams {
    fn drop(&mut self) {
        // A copy of the descriptor would stay in the set, as with a listener.
        let _ = epoll::delete(&self.epoll, &self.socket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::num::NonZeroU8;
    use std::process::Command;
    use std::time::Duration;
    use uiw_interop::stock::Network;

    /// Returns the messages that are passed to the kernel, as numbers of datagrams and bytes.
    fn messages(datagrams: &[Outgoing]) -> Vec<(usize, usize)> {
        let mut rest = UnsentItems::new(datagrams);
        let mut at = 0;
        let taken: Vec<_> = std::iter::from_fn(|| rest.take(MAX_SEGMENTS)).collect();
        for message in &taken {
            assert_eq!(message.at, at);
            assert_eq!(message.segment != 0, message.count > 1);
            at += message.len;
        }
        assert_eq!(at, datagrams.iter().map(|item| item.count * item.len).sum::<usize>());
        taken.iter().map(|message| (message.count, message.len)).collect()
    }

    #[test]
    fn messages_share_peer_hop_limit_length() {
        let to = |port: u16, len| Outgoing::new(([127, 0, 0, 1], port).into(), len);
        let run = |count, len| Outgoing { count, ..to(1, len) };
        assert_eq!(messages(&[]), []);
        assert_eq!(messages(&[run(0, 9)]), []);
        assert_eq!(messages(&[Outgoing { count: 0, ..to(2, 9) }, to(1, 100)]), [(1, 100)]);
        assert_eq!(messages(&[to(1, 100)]), [(1, 100)]);
        assert_eq!(messages(&[run(0, 9), to(1, 100), run(0, 9), to(1, 100)]), [(2, 200)]);
        let shorter = [(3, 260), (1, 60)];
        assert_eq!(messages(&[to(1, 100), to(1, 100), to(1, 60), to(1, 60)]), shorter);
        assert_eq!(messages(&[run(2, 100), run(2, 60)]), shorter, "the last one may be shorter");
        assert_eq!(messages(&[to(1, 100), to(1, 101)]), [(1, 100), (1, 101)]);
        assert_eq!(messages(&[to(1, 100), to(2, 100)]), [(1, 100), (1, 100)]);
        let far = Outgoing { hop_limit: NonZeroU8::new(9), ..to(1, 100) };
        assert_eq!(messages(&[to(1, 100), far]), [(1, 100), (1, 100)]);
        assert_eq!(messages(&[far, far, to(1, 100)]), [(2, 200), (1, 100)]);
        for many in [&[to(1, 100); 164][..], &[run(164, 100)], &[run(30, 100), run(134, 100)]] {
            assert_eq!(messages(many), [(MAX_SEGMENTS, 12_800), (36, 3600)]);
        }
        assert_eq!(messages(&[run(128, 100), to(1, 60)]), [(128, 12_800), (1, 60)]);
        let long = MAX_SEGMENTED / 4000;
        assert_eq!(
            messages(&[run(20, 4000)]),
            [(long, long * 4000), (20 - long, (20 - long) * 4000)]
        );
        assert_eq!(
            messages(&[run(2, 65_507)]),
            [(1, 65_507); 2],
            "longer than a message with segments may be"
        );
        assert_eq!(messages(&[run(2, 0)]), [(1, 0); 2]);
        assert_eq!(messages(&[to(1, 9), to(1, 0)]), [(1, 9), (1, 0)], "no segment is empty");
    }

    /// Returns the hop limits of UDP datagrams that arrive in this namespace, as many as there are
    /// `ports`. Datagrams to other ports are ignored.
    fn arriving(socket: &Socket, ports: &[u16]) -> Vec<(u16, u8)> {
        let mut bytes = [0; 2048];
        let mut found = Vec::new();
        while found.len() < ports.len() {
            let len = (&*socket).read(&mut bytes).expect("a packet within the time");
            let packet = &bytes[..len];
            let (hops, udp) = match packet[0] >> 4 {
                4 if packet[9] == 17 => (packet[8], &packet[20..]),
                6 if packet[6] == 17 => (packet[7], &packet[40..]),
                _ => continue,
            };
            let port = u16::from_be_bytes([udp[2], udp[3]]);
            if ports.contains(&port) {
                found.push((port, hops));
            }
        }
        found
    }

    #[test]
    fn datagrams_have_their_hop_limits() {
        let Some(network) = Network::veth() else { return };
        for (at, address) in
            [(Network::server as fn(&_, _) -> _, "fd77::1/64"), (Network::client, "fd77::2/64")]
        {
            let mut command = Command::new("ip");
            command.args(["address", "add", address, "dev", "veth0", "nodad"]);
            assert!(at(&network, command).status().unwrap().success());
        }
        let wire = network.inside_server(|| {
            let every = i32::from((libc::ETH_P_ALL as u16).to_be());
            Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(every))).unwrap()
        });
        wire.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let hops = NonZeroU8::new;
        for [own, peer, group] in
            [["10.77.0.2", "10.77.0.1", "239.77.0.1"], ["fd77::2", "fd77::1", "ff15::77:1"]]
        {
            let to = |ip: &str, port, hop_limit| Outgoing {
                hop_limit,
                ..Outgoing::new(SocketAddr::new(ip.parse().unwrap(), port), 8)
            };
            network.inside_client(|| {
                let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
                let own = SocketAddr::new(own.parse().unwrap(), 0);
                let mut socket = bind(own, &DatagramConfig::default(), &epoll, Token(1)).unwrap();
                let datagrams = [
                    to(peer, 9001, None),
                    to(peer, 9002, hops(1)),
                    // These are segments of one message.
                    to(peer, 9003, hops(255)),
                    to(peer, 9003, hops(255)),
                    to(group, 9004, None),
                    to(group, 9005, hops(7)),
                    to(peer, 9006, None),
                ];
                assert_eq!(socket.send(&[7; 56], &datagrams).unwrap(), 7);
            });
            let mut arrived = arriving(&wire, &[9001, 9002, 9003, 9004, 9005, 9006]);
            arrived.sort_unstable();
            assert_eq!(
                arrived,
                [(9001, 64), (9002, 1), (9003, 255), (9004, 1), (9005, 7), (9006, 64)]
            );
        }
    }

    /// If the kernel refuses a message because of its peer, segmentation is still used.
    #[test]
    fn unreachable_peer_keeps_segmentation() {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
        let local = (std::net::Ipv4Addr::LOCALHOST, 0).into();
        let mut socket = bind(local, &DatagramConfig::default(), &epoll, Token(1)).unwrap();
        let to = |peer| [Outgoing::new(peer, 8); 4];
        assert!(socket.send(&[7; 32], &to((std::net::Ipv4Addr::LOCALHOST, 0).into())).is_err());
        assert!(socket.send(&[7; 32], &to(([255, 255, 255, 255], 9).into())).is_err());
        assert_eq!(socket.max_segments, MAX_SEGMENTS, "segmentation is given up");
        assert_eq!(socket.send(&[7; 32], &to(socket.local)).unwrap(), 4);
    }

    /// There are more segments than any kernel accepts: 6.18 refuses more than 128, in the same way
    /// as older kernels refuse more than 64.
    #[test]
    fn refused_runs_shortened() {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
        let local = (std::net::Ipv4Addr::LOCALHOST, 0).into();
        let mut socket = bind(local, &DatagramConfig::default(), &epoll, Token(1)).unwrap();
        let run = [Outgoing { count: 3000, ..Outgoing::new(socket.local, 8) }];
        socket.max_segments = 3000;
        assert_eq!(socket.send(&[7; 8 * 3000], &run).unwrap(), 3000);
        assert_eq!(socket.max_segments, FEWER_SEGMENTS);
        let (mut buffer, mut received) = (vec![0; DATAGRAM_BUFFER * 16], Vec::new());
        let mut count = 0;
        while socket.recv(&mut buffer, &mut received).is_ok() {
            let datagrams = received.drain(..).flat_map(|run| run.each());
            count += datagrams.inspect(|bytes| assert_eq!(bytes.len(), 8)).count();
        }
        assert_eq!(count, 3000);
    }
}
