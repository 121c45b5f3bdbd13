//! UDP sockets of an interface. smoltcp sends the datagrams, because it knows neighbours and
//! routes. Received datagrams are stored here, because the kernel of a peer on the same host may
//! put several datagrams into one frame.

use super::{BURSTS, CLOCK, LINK_FULL, SmolInterface};
use crate::addr::endpoint;
use crate::flow::Flow;
use crate::link::{Link, Port};
use smoltcp::iface::{PollResult, SocketHandle, SocketSet};
use smoltcp::socket::udp::{PacketBuffer, PacketMetadata, Socket, UdpMetadata};
use smoltcp::time::Instant as Tick;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU8;
use std::ops::Range;
use uiw_llp::{DATAGRAM_BUFFER, DatagramConfig, Event, Incoming, Interest, Outgoing, Token};

/// Maximum number of datagrams of a socket that wait for a neighbour's address or for room in the
/// link.
const SEND_DATAGRAMS: usize = 64;
/// Maximum total size of these datagrams in bytes.
const SEND_BYTES: usize = 128 << 10;
/// Maximum time for which the first datagram of a socket waits for a neighbour that does not
/// answer, in microseconds of smoltcp's clock (see [`CLOCK`]). After that, it is discarded with all
/// datagrams that wait behind it. Otherwise a datagram to an address that no host has would block
/// the socket forever.
const LONGEST_WAIT: i64 = 2_000_000 * CLOCK as i64;
/// Maximum size in bytes of the datagrams that the caller has not received yet, including
/// [`OVERHEAD`]. Further datagrams are lost.
const RECEIVE_BYTES: usize = 512 << 10;
/// Number of bytes that are counted for each datagram in addition to its own.
const OVERHEAD: usize = 64;
/// Size of the UDP header in bytes.
const UDP: usize = 8;
/// Default hop limit of datagrams to groups.
const GROUP_HOPS: u8 = 1;
/// Interval, in microseconds of smoltcp's clock, at which smoltcp is polled while groups are
/// joined. It answers membership queries (IGMP, MLD) with a delay, and does not report when the
/// answer is due.
const REPORTS: i64 = 100_000 * CLOCK as i64;

/// UDP sockets of the interface.
pub(super) struct Datagrams {
    /// Sockets of smoltcp, which are only used for sending.
    senders: SocketSet<'static>,
    pub(super) sockets: slab::Slab<UdpSocket>,
    /// Time at which smoltcp has to be polled for datagrams, in microseconds of its clock.
    pub(super) timer: Option<i64>,
    /// Number of free bytes with which a sender has room for any datagram.
    room: usize,
}

pub(super) struct UdpSocket {
    local: SocketAddr,
    token: Token,
    interest: Interest,
    sender: SocketHandle,
    /// Socket for datagrams to groups, created for the first one. These datagrams do not wait for a
    /// neighbour.
    group_sender: Option<SocketHandle>,
    /// True if a datagram waits until a sender is empty, because its hop limit differs from those
    /// before it.
    changes_hop_limit: bool,
    /// Total number of bytes that were passed to `sender`.
    queued: u64,
    /// Number of these bytes that have left `sender`.
    departed: u64,
    /// Time since which the first unsent datagram waits, in microseconds of smoltcp's clock.
    waits_since: Option<i64>,
    received: VecDeque<(SocketAddr, Vec<u8>)>,
    /// Number of bytes in `received`, with [`OVERHEAD`] for each datagram.
    held: usize,
}

impl Datagrams {
    /// `longest` is the size of the largest packet.
    pub(super) fn new(longest: usize) -> Self {
        Self {
            senders: SocketSet::new(Vec::new()),
            sockets: slab::Slab::new(),
            timer: None,
            // The free bytes may be in two parts, and a datagram needs all its bytes in one.
            room: (2 * longest).min(SEND_BYTES),
        }
    }

    /// Returns the events that a poll reports.
    pub(super) fn events(&self) -> impl Iterator<Item = Event> + '_ {
        self.sockets.iter().filter_map(|(_, socket)| {
            let readable = socket.interest.read && !socket.received.is_empty();
            let has_room = |sender| {
                let sender = self.senders.get::<Socket<'_>>(sender);
                let is_roomy = SEND_BYTES - sender.send_queue() >= self.room && sender.can_send();
                if socket.changes_hop_limit { sender.send_queue() == 0 } else { is_roomy }
            };
            let room =
                || [Some(socket.sender), socket.group_sender].into_iter().flatten().all(has_room);
            let writable = socket.interest.write && room();
            (readable || writable).then_some(Event { token: socket.token, readable, writable })
        })
    }

    /// Delivers datagrams that arrived in one frame. They have `size` bytes each, except the last
    /// one. A group may have several sockets; any other address has one.
    pub(super) fn arrive(&mut self, flow: Flow, bytes: &[u8], size: usize) {
        for (_, socket) in self.sockets.iter_mut().filter(|(_, socket)| socket.local == flow.local)
        {
            socket.arrive(flow.peer, bytes, size);
        }
    }

    /// Returns whether a socket is bound to the group, with any port.
    fn has_group(&self, group: IpAddr) -> bool {
        self.sockets.iter().any(|(_, socket)| socket.local.ip() == group)
    }

    fn has_groups(&self) -> bool {
        self.sockets.iter().any(|(_, socket)| socket.local.ip().is_multicast())
    }
}

impl UdpSocket {
    fn arrive(&mut self, peer: SocketAddr, bytes: &[u8], size: usize) {
        // A datagram may have no payload.
        let empty = bytes.is_empty().then_some(bytes);
        for datagram in bytes.chunks(size.max(1)).chain(empty) {
            if self.held + datagram.len() + OVERHEAD > RECEIVE_BYTES {
                return;
            }
            self.held += datagram.len() + OVERHEAD;
            self.received.push_back((peer, datagram.to_vec()));
        }
    }

    /// Passes a datagram to `sender`. smoltcp has one hop limit for all datagrams of a socket, so a
    /// datagram with another one waits until the socket is empty.
    fn queue(
        &mut self,
        sender: &mut Socket<'_>,
        (peer, hop_limit): (SocketAddr, Option<u8>),
        bytes: &[u8],
    ) -> io::Result<()> {
        self.changes_hop_limit = sender.hop_limit() != hop_limit && sender.send_queue() > 0;
        if self.changes_hop_limit {
            return Err(ErrorKind::WouldBlock.into());
        }
        sender.set_hop_limit(hop_limit);
        let sent = sender.send_slice(bytes, UdpMetadata::from(endpoint(peer)));
        sent.map_err(|_| ErrorKind::WouldBlock.into())
    }

    /// Discards waiting datagrams if none was sent for [`LONGEST_WAIT`].
    fn give_up(&mut self, senders: &mut SocketSet<'static>, now: i64) {
        let sender = senders.get_mut::<Socket<'_>>(self.sender);
        let departed = self.queued - sender.send_queue() as u64;
        if departed == self.queued {
            self.waits_since = None;
        } else if departed > self.departed || self.waits_since.is_none() {
            self.waits_since = Some(now);
        } else if self.waits_since.is_some_and(|since| now - since >= LONGEST_WAIT) {
            tracing::debug!(local = %self.local, "datagrams are discarded, because their neighbour does not answer");
            sender.close();
            let bound = sender.bind(endpoint(self.local));
            debug_assert!(bound.is_ok(), "it was bound there before");
            self.waits_since = None;
            self.departed = self.queued;
            return;
        }
        self.departed = departed;
    }
}

impl<L: Link> SmolInterface<L> {
    pub(crate) fn bind_datagrams(
        &mut self,
        local: SocketAddr,
        options: &DatagramConfig,
        token: Token,
    ) -> io::Result<(usize, SocketAddr)> {
        self.check_link()?;
        let ip = local.ip().to_canonical();
        let is_group = ip.is_multicast();
        let own = if is_group { member(ip, options)? } else { ip };
        if !self.iface.has_ip_addr(smoltcp::wire::IpAddress::from(own)) {
            return Err(ErrorKind::AddrNotAvailable.into());
        }
        let taken = |port| {
            let at = SocketAddr::new(ip, port);
            self.datagrams.sockets.iter().any(|(_, socket)| socket.local == at)
        };
        let port = match local.port() {
            0 => self.ports.ephemeral(taken)?,
            port if taken(port) && !is_group => return Err(ErrorKind::AddrInUse.into()),
            port => port,
        };
        let local = SocketAddr::new(ip, port);
        let sender = if is_group { silent() } else { sender(local)? };
        if is_group && !self.datagrams.has_group(ip) {
            self.join(ip)?;
        }
        let socket = UdpSocket {
            local,
            token,
            interest: Interest::NONE,
            sender: self.datagrams.senders.add(sender),
            group_sender: None,
            changes_hop_limit: false,
            queued: 0,
            departed: 0,
            waits_since: None,
            received: VecDeque::new(),
            held: 0,
        };
        let id = self.datagrams.sockets.insert(socket);
        self.report_groups();
        Ok((id, local))
    }

    /// Joins a group that has no socket yet.
    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        let is_first = !self.datagrams.has_groups();
        if is_first && let Some(fd) = self.link.start_groups()? {
            self.wake.watch(fd)?;
        }
        let joined = self.iface.join_multicast_group(smoltcp::wire::IpAddress::from(group));
        if is_first && joined.is_err() {
            self.link.stop_groups();
        }
        joined.map_err(|error| io::Error::other(format!("{group}: {error}")))
    }

    /// Reports joined and left groups to neighbours.
    fn report_groups(&mut self) {
        let now = self.clock();
        let mut port = Port { link: &mut self.link, frame: None, sender: None };
        self.iface.poll_egress(now, &mut port, &mut self.no_sockets);
        self.egress_datagrams(now);
        self.link.flush();
    }

    pub(crate) fn close_datagrams(&mut self, id: usize) {
        let socket = self.datagrams.sockets.remove(id);
        // Datagrams that wait for a neighbour are lost with the socket.
        for sender in [Some(socket.sender), socket.group_sender].into_iter().flatten() {
            self.datagrams.senders.remove(sender);
        }
        let ip = socket.local.ip();
        if ip.is_multicast() && !self.datagrams.has_group(ip) {
            // The group was joined, so leaving it cannot fail.
            let _ = self.iface.leave_multicast_group(smoltcp::wire::IpAddress::from(ip));
            if self.gone.is_none() {
                self.report_groups();
            }
            if !self.datagrams.has_groups() {
                self.link.stop_groups();
            }
        }
    }

    pub(crate) fn set_datagram_interest(&mut self, id: usize, interest: Interest) {
        self.datagrams.sockets[id].interest = interest;
        if self.datagrams.events().next().is_some() {
            self.wake.kick();
        }
    }

    pub(crate) fn send_datagrams(
        &mut self,
        id: usize,
        bytes: &[u8],
        datagrams: &[Outgoing],
    ) -> io::Result<usize> {
        self.check_link()?;
        let mut sent = self.queue_datagrams(id, bytes, datagrams);
        if matches!(&sent, Err(error) if error.kind() == ErrorKind::WouldBlock) {
            // The link may have room again after it has sent frames.
            self.tick();
            sent = self.queue_datagrams(id, bytes, datagrams);
            self.wake_for_events(None);
        }
        let now = self.clock();
        self.egress_datagrams(now);
        self.link.flush();
        sent
    }

    fn queue_datagrams(
        &mut self,
        id: usize,
        bytes: &[u8],
        datagrams: &[Outgoing],
    ) -> io::Result<usize> {
        let mut taken = 0;
        for (to, datagram) in Outgoing::each(datagrams, bytes) {
            match self.queue_datagram(id, to, datagram) {
                Ok(()) => taken += 1,
                Err(error) if taken == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(taken)
    }

    fn queue_datagram(&mut self, id: usize, outgoing: &Outgoing, bytes: &[u8]) -> io::Result<()> {
        let peer = SocketAddr::new(outgoing.peer.ip().to_canonical(), outgoing.peer.port());
        let hop_limit = outgoing.hop_limit.map(NonZeroU8::get);
        let ip_header = if peer.is_ipv4() { 20 } else { 40 };
        if bytes.len() + UDP + ip_header > self.mtu() {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        let local = self.datagrams.sockets[id].local;
        let goes_nowhere =
            peer.ip().is_unspecified() || peer.port() == 0 || local.ip().is_multicast();
        if peer.is_ipv4() != local.is_ipv4() || goes_nowhere {
            return Err(ErrorKind::InvalidInput.into());
        }
        if peer.ip().is_multicast() {
            return self.queue_for_group(id, peer, hop_limit.unwrap_or(GROUP_HOPS), bytes);
        }
        if !self.has_route(peer.ip()) {
            return Err(ErrorKind::NetworkUnreachable.into());
        }
        let Datagrams { senders, sockets, .. } = &mut self.datagrams;
        let socket = &mut sockets[id];
        socket.queue(senders.get_mut(socket.sender), (peer, hop_limit), bytes)?;
        socket.queued += bytes.len() as u64;
        Ok(())
    }

    /// Sends a datagram to a group. Members at this interface receive it as well.
    fn queue_for_group(
        &mut self,
        id: usize,
        group: SocketAddr,
        hop_limit: u8,
        bytes: &[u8],
    ) -> io::Result<()> {
        let Datagrams { senders, sockets, .. } = &mut self.datagrams;
        let local = sockets[id].local;
        let handle = match sockets[id].group_sender {
            Some(handle) => handle,
            None => *sockets[id].group_sender.insert(senders.add(sender(local)?)),
        };
        sockets[id].queue(senders.get_mut(handle), (group, Some(hop_limit)), bytes)?;
        self.datagrams.arrive(Flow { local: group, peer: local }, bytes, usize::MAX);
        self.wake_for_events(None);
        Ok(())
    }

    pub(crate) fn recv_datagrams(
        &mut self,
        id: usize,
        buffer: &mut [u8],
        datagrams: &mut Vec<Incoming>,
    ) -> io::Result<()> {
        self.tick();
        let socket = &mut self.datagrams.sockets[id];
        let (mut at, before) = (0, datagrams.len());
        while at + DATAGRAM_BUFFER <= buffer.len()
            && let Some((peer, bytes)) = socket.received.pop_front()
        {
            socket.held -= bytes.len() + OVERHEAD;
            let range: Range<usize> = at..at + bytes.len();
            buffer[range.clone()].copy_from_slice(&bytes);
            at = range.end;
            datagrams.push(Incoming::one(peer, range));
        }
        self.wake_for_events(None);
        if datagrams.len() > before { Ok(()) } else { Err(ErrorKind::WouldBlock.into()) }
    }

    /// Sends waiting datagrams whose neighbours are known, if the link has room.
    pub(super) fn egress_datagrams(&mut self, now: Tick) {
        if self.datagrams.sockets.is_empty() {
            self.datagrams.timer = None;
            return;
        }
        let Datagrams { senders, sockets, .. } = &mut self.datagrams;
        for _ in 0..BURSTS {
            let mut port = Port { link: &mut self.link, frame: None, sender: None };
            if self.iface.poll_egress(now, &mut port, senders) == PollResult::None {
                break;
            }
        }
        let at = self.iface.poll_at(now, senders).map(|at| at.total_micros());
        for (_, socket) in sockets {
            socket.give_up(senders, now.total_micros());
        }
        // A poll that is still due now found no room in the link, so it is repeated a little later.
        let at =
            at.map(|at| if at <= now.total_micros() { now.total_micros() + LINK_FULL } else { at });
        let reports = self.datagrams.has_groups().then(|| now.total_micros() + REPORTS);
        self.datagrams.timer = at.into_iter().chain(reports).min();
    }
}

/// Returns the address at which a group is joined.
fn member(group: IpAddr, options: &DatagramConfig) -> io::Result<IpAddr> {
    let member = options
        .member
        .map(|member| member.to_canonical())
        .filter(|member| member.is_ipv4() == group.is_ipv4());
    member.ok_or_else(|| {
        io::Error::new(ErrorKind::InvalidInput, "a group is joined at an address of its family")
    })
}

/// Returns a smoltcp socket that sends from `local`.
fn sender(local: SocketAddr) -> io::Result<Socket<'static>> {
    let none = PacketBuffer::new(Vec::new(), Vec::new());
    let out = PacketBuffer::new(vec![PacketMetadata::EMPTY; SEND_DATAGRAMS], vec![0; SEND_BYTES]);
    let mut sender = Socket::new(none, out);
    sender.bind(endpoint(local)).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(sender)
}

/// Returns a smoltcp socket that sends nothing.
fn silent() -> Socket<'static> {
    let none = || PacketBuffer::new(Vec::new(), Vec::new());
    Socket::new(none(), none())
}
