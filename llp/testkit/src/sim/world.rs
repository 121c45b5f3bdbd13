//! State behind the lock of a network: the clock, packets in transit, and the establishment and end
//! of connections.

mod datagrams;
mod single;
mod transfer;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use super::link::Link;
use uiw_impair::Random;
use uiw_llp::{Interest, Token};

/// Number of an end or listener. Numbers are assigned in the order of creation, which is also the
/// order of events.
pub(super) type EndId = u64;
pub(super) type ListenerId = u64;
/// Time since the creation of the network.
type Time = Duration;

const FIRST_EPHEMERAL_PORT: u16 = 49_152;

pub(super) struct World {
    began: Instant,
    time: Time,
    random: Random,
    pub(super) default: Link,
    pub(super) links: HashMap<(IpAddr, IpAddr), Link>,
    stacks: u32,
    next_id: u64,
    next_port: u16,
    ends: BTreeMap<EndId, SimulatedEnd>,
    listeners: BTreeMap<ListenerId, ListeningPort>,
    /// Datagram sockets.
    sockets: BTreeMap<u64, datagrams::Socket>,
    /// Connection requests in transit, oldest first for each link.
    requests: Vec<ConnectAttempt>,
}

struct ListeningPort {
    stack: u32,
    token: Token,
    local: SocketAddr,
    backlog: usize,
    /// Ends that wait to be accepted. For some of them the last ACK has not arrived yet.
    queue: VecDeque<EndId>,
}

struct ConnectAttempt {
    due: Time,
    client: EndId,
    to: SocketAddr,
}

/// One end of a connection.
struct SimulatedEnd {
    stack: u32,
    token: Token,
    interest: Interest,
    local: SocketAddr,
    peer: SocketAddr,
    state: WorldState,
    /// True while a stream holds this end, or while it may still be accepted.
    held: bool,
    /// True if `token` is valid. An end at a listener gets its token when it is accepted.
    named: bool,
    other: Option<EndId>,
    /// Packets in transit to this end, in the order of their arrival.
    inbound: VecDeque<(Time, SimPacket)>,
    received: VecDeque<u8>,
    peer_fin: bool,
    fin_sent: bool,
    /// Number of bytes sent.
    sent: u64,
    taken: u64,
    /// Number of sent bytes that the other end has not read.
    unread: usize,
    /// Number of bytes that the last call of
    /// [`StreamExtensions::readable`](uiw_llp::StreamExtensions::readable) has requested. The other
    /// end may send that many even if the capacity of the link is smaller.
    wanted: usize,
    /// Due time of the last packet from this end, because packets do not overtake each other.
    last_due: Time,
    /// Arrival time of the last packet from this end.
    arrived: Time,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WorldState {
    Connecting,
    Made,
    Failed(ErrorKind),
    Closed,
}

enum SimPacket {
    Established,
    Refused,
    Bytes(Vec<u8>),
    Fin,
    Reset,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            began: Instant::now(),
            time: Time::ZERO,
            random: Random::new(seed),
            default: Link::default(),
            links: HashMap::new(),
            stacks: 0,
            next_id: 0,
            next_port: FIRST_EPHEMERAL_PORT,
            ends: BTreeMap::new(),
            listeners: BTreeMap::new(),
            sockets: BTreeMap::new(),
            requests: Vec::new(),
        }
    }

    pub(super) fn new_stack(&mut self) -> u32 {
        self.stacks += 1;
        self.stacks
    }

    pub(super) fn link(&self, from: IpAddr, to: IpAddr) -> &Link {
        self.links.get(&(from, to)).unwrap_or(&self.default)
    }

    // ---- the clock ----

    pub(super) fn now(&self) -> Instant {
        self.instant(self.time)
    }

    pub(super) fn instant(&self, time: Time) -> Instant {
        self.began + time
    }

    pub(super) fn advance(&mut self, by: Duration) {
        let target = self.time + by;
        while let Some(due) = self.next_due(None).filter(|&due| due <= target) {
            self.time = self.time.max(due);
            self.process_due();
        }
        self.time = target;
    }

    pub(super) fn step(&mut self) -> bool {
        let Some(due) = self.next_due(None) else { return false };
        self.time = self.time.max(due);
        self.process_due();
        true
    }

    /// Returns the time of the next event of `stack`, or of all stacks if it is `None`.
    pub(super) fn next_due(&self, stack: Option<u32>) -> Option<Time> {
        let packets = self
            .ends
            .values()
            .filter(|end| stack.is_none_or(|stack| end.stack == stack))
            .filter(|end| !self.link(end.peer.ip(), end.local.ip()).stalled)
            .filter_map(|end| end.inbound.front().map(|&(due, _)| due));
        let requests = self
            .requests
            .iter()
            .filter(|request| !self.request_stalled(request))
            .filter(|request| {
                stack.is_none_or(|s| self.listener_at(request.to).is_some_and(|l| l.1.stack == s))
            })
            .map(|request| request.due);
        let datagrams = self
            .sockets
            .values()
            .filter(|socket| stack.is_none_or(|stack| socket.stack == stack))
            .filter_map(|socket| socket.next_due(self.time));
        packets.chain(requests).chain(datagrams).min()
    }

    fn request_stalled(&self, request: &ConnectAttempt) -> bool {
        self.ends
            .get(&request.client)
            .is_some_and(|c| self.link(c.local.ip(), request.to.ip()).stalled)
    }

    /// Processes everything that is due.
    fn process_due(&mut self) {
        let mut waiting = Vec::new();
        for request in std::mem::take(&mut self.requests) {
            if request.due > self.time || self.request_stalled(&request) {
                waiting.push(request);
            } else {
                self.answer(&request);
            }
        }
        self.requests.append(&mut waiting);
        for id in self.ends.keys().copied().collect::<Vec<_>>() {
            self.arrive(id);
        }
    }

    /// Processes all packets that are due at one end.
    fn arrive(&mut self, id: EndId) {
        loop {
            let Some(end) = self.ends.get(&id) else { return };
            if self.link(end.peer.ip(), end.local.ip()).stalled {
                return;
            }
            let time = self.time;
            let Some(end) = self.ends.get_mut(&id) else { return };
            if end.inbound.front().is_none_or(|(due, _)| *due > time) {
                return;
            }
            let Some((due, packet)) = end.inbound.pop_front() else { return };
            let other = end.other;
            if let Some(other) = other.and_then(|other| self.ends.get_mut(&other)) {
                other.arrived = other.arrived.max(due);
            }
            let Some(end) = self.ends.get_mut(&id) else { return };
            match packet {
                SimPacket::Established if end.state == WorldState::Connecting => {
                    end.state = WorldState::Made;
                }
                SimPacket::Refused if end.state == WorldState::Connecting => {
                    end.state = WorldState::Failed(ErrorKind::ConnectionRefused);
                }
                SimPacket::Established | SimPacket::Refused => {}
                // A reset socket takes nothing more.
                SimPacket::Bytes(_) if matches!(end.state, WorldState::Failed(_)) => {}
                SimPacket::Bytes(bytes) if end.held => end.received.extend(bytes),
                SimPacket::Bytes(_) => {
                    // The receiving end is closed, so TCP answers with a RST.
                    end.state = WorldState::Closed;
                    self.post(id, SimPacket::Reset);
                }
                SimPacket::Fin => end.peer_fin = true,
                SimPacket::Reset if end.state != WorldState::Closed => {
                    end.state = WorldState::Failed(ErrorKind::ConnectionReset);
                }
                SimPacket::Reset => {}
            }
        }
    }

    /// Sends a packet from `from` to its other end.
    fn post(&mut self, from: EndId, packet: SimPacket) {
        let Some(end) = self.ends.get(&from) else { return };
        let due = (self.time + self.link(end.local.ip(), end.peer.ip()).latency).max(end.last_due);
        self.post_at(from, due, packet);
    }

    fn post_at(&mut self, from: EndId, due: Time, packet: SimPacket) {
        let Some(end) = self.ends.get_mut(&from) else { return };
        end.last_due = due;
        if let Some(other) = end.other.and_then(|other| self.ends.get_mut(&other)) {
            other.inbound.push_back((due, packet));
        }
    }

    // ---- connections ----

    pub(super) fn listen(
        &mut self,
        stack: u32,
        local: SocketAddr,
        backlog: u32,
        token: Token,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        let local = self.with_port(local);
        if self.listener_at(local).is_some() {
            return Err(ErrorKind::AddrInUse.into());
        }
        let backlog = backlog.max(1) as usize;
        let id = self.id();
        self.listeners
            .insert(id, ListeningPort { stack, token, local, backlog, queue: VecDeque::new() });
        Ok((id, local))
    }

    pub(super) fn stop_listening(&mut self, id: ListenerId) {
        if let Some(listening) = self.listeners.remove(&id) {
            // Like the kernel, resets the connections that were not accepted.
            for end in listening.queue {
                self.abort(end);
                self.close(end);
            }
        }
    }

    pub(super) fn connect(
        &mut self,
        stack: u32,
        local: SocketAddr,
        peer: SocketAddr,
        token: Token,
    ) -> io::Result<(EndId, SocketAddr)> {
        let local = self.with_port(local);
        let uses = |end: &SimulatedEnd| {
            end.held && end.state != WorldState::Closed && end.local == local && end.peer == peer
        };
        if self.ends.values().any(uses) {
            return Err(ErrorKind::AddrInUse.into());
        }
        let client = self.id();
        self.ends.insert(
            client,
            SimulatedEnd {
                named: true,
                ..SimulatedEnd::new(stack, token, Interest::WRITE, local, peer)
            },
        );
        let due = self.time + self.link(local.ip(), peer.ip()).latency;
        self.requests.push(ConnectAttempt { due, client, to: peer });
        Ok((client, local))
    }

    /// Starts to connect a stream to itself.
    pub(super) fn connect_self(
        &mut self,
        stack: u32,
        local: SocketAddr,
        token: Token,
    ) -> io::Result<(EndId, SocketAddr)> {
        let local = self.with_port(local);
        if self.listener_at(local).is_some()
            || self.ends.values().any(|end| end.held && end.local == local)
        {
            return Err(ErrorKind::AddrInUse.into());
        }
        let id = self.id();
        let due = self.time + self.link(local.ip(), local.ip()).latency;
        let inbound = VecDeque::from([(due, SimPacket::Established)]);
        let end = SimulatedEnd::new(stack, token, Interest::WRITE, local, local);
        self.ends.insert(
            id,
            SimulatedEnd { named: true, other: Some(id), inbound, last_due: due, ..end },
        );
        Ok((id, local))
    }

    /// Handles the arrival of a connection request at its destination.
    fn answer(&mut self, request: &ConnectAttempt) {
        // If the attempt has ended meanwhile, TCP resets the connection before it is established.
        let is_pending = |end: &&SimulatedEnd| end.held && end.state == WorldState::Connecting;
        let Some(client) = self.ends.get(&request.client).filter(is_pending) else { return };
        let (from, to) = (client.local, request.to);
        let there = self.link(from.ip(), to.ip()).latency;
        let back = self.link(to.ip(), from.ip()).latency;
        let listener = self.listener_at(to).filter(|(_, l)| l.queue.len() < l.backlog);
        let listener = listener.map(|(id, l)| (id, l.stack));
        let answered = request.due + back;
        let Some((listener, stack)) = listener else {
            if let Some(client) = self.ends.get_mut(&request.client) {
                client.inbound.push_back((answered, SimPacket::Refused));
            }
            return;
        };
        let server = self.id();
        let mut end = SimulatedEnd::new(stack, Token(0), Interest::READ, to, from);
        end.other = Some(request.client);
        end.last_due = answered;
        end.inbound.push_back((answered + there, SimPacket::Established));
        self.ends.insert(server, end);
        if let Some(client) = self.ends.get_mut(&request.client) {
            client.other = Some(server);
            client.last_due = answered + there;
            client.inbound.push_back((answered, SimPacket::Established));
        }
        if let Some(listening) = self.listeners.get_mut(&listener) {
            listening.queue.push_back(server);
        }
    }

    pub(super) fn accept(
        &mut self,
        listener: ListenerId,
        token: Token,
    ) -> io::Result<(EndId, SocketAddr, SocketAddr)> {
        self.process_due();
        let Some(listening) = self.listeners.get_mut(&listener) else {
            return Err(ErrorKind::NotConnected.into());
        };
        let ends = &self.ends;
        let is_made =
            |id: &EndId| ends.get(id).is_some_and(|end| end.state != WorldState::Connecting);
        let ready = listening.queue.iter().position(is_made);
        let id = ready.and_then(|at| listening.queue.remove(at)).ok_or(ErrorKind::WouldBlock)?;
        let end = self.end(id)?;
        (end.token, end.named) = (token, true);
        Ok((id, end.local, end.peer))
    }

    pub(super) fn connect_result(&mut self, id: EndId) -> io::Result<bool> {
        self.process_due();
        match self.end(id)?.state {
            WorldState::Connecting => Ok(false),
            WorldState::Made => Ok(true),
            WorldState::Failed(kind) => Err(kind.into()),
            WorldState::Closed => Err(ErrorKind::NotConnected.into()),
        }
    }

    pub(super) fn shutdown(&mut self, id: EndId) -> io::Result<()> {
        self.arrive(id);
        let end = self.end(id)?;
        if end.state != WorldState::Made {
            return Err(ErrorKind::NotConnected.into());
        }
        if !std::mem::replace(&mut end.fin_sent, true) {
            self.post(id, SimPacket::Fin);
        }
        Ok(())
    }

    pub(super) fn abort(&mut self, id: EndId) {
        if let Some(end) = self.ends.get_mut(&id)
            && end.state != WorldState::Closed
        {
            // A failed stream has no connection any more, and sends nothing.
            let had_failed = matches!(end.state, WorldState::Failed(_));
            end.state = WorldState::Closed;
            if !had_failed {
                self.post(id, SimPacket::Reset);
            }
        }
    }

    /// Handles the drop of the stream.
    pub(super) fn close(&mut self, id: EndId) {
        let Some(end) = self.ends.get_mut(&id) else { return };
        end.held = false;
        let other = end.other;
        match end.state {
            // Like the kernel, sends a RST if received data is discarded, and a FIN otherwise.
            WorldState::Made if end.received.is_empty() => {
                if !std::mem::replace(&mut end.fin_sent, true) {
                    self.post(id, SimPacket::Fin);
                }
            }
            WorldState::Made | WorldState::Connecting => self.abort(id),
            WorldState::Failed(_) | WorldState::Closed => {}
        }
        // When the second end is dropped, both are removed. Until then, the end that was dropped
        // first still answers packets that arrive.
        let other_held =
            other.and_then(|other| self.ends.get(&other)).is_some_and(|other| other.held);
        if !other_held {
            self.ends.remove(&id);
            if let Some(other) = other {
                self.ends.remove(&other);
            }
        }
    }

    pub(super) fn cut(&mut self, a: IpAddr, b: IpAddr) {
        for end in self.ends.values_mut() {
            let pair = (end.local.ip(), end.peer.ip());
            if (pair == (a, b) || pair == (b, a))
                && matches!(end.state, WorldState::Made | WorldState::Connecting)
            {
                end.state = WorldState::Failed(ErrorKind::ConnectionReset);
                end.inbound.clear();
            }
        }
    }

    // ---- small functions ----

    #[cfg(test)]
    pub(super) fn ends(&self) -> usize {
        self.ends.len()
    }

    fn end(&mut self, id: EndId) -> io::Result<&mut SimulatedEnd> {
        self.ends.get_mut(&id).ok_or_else(|| ErrorKind::NotConnected.into())
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn listener_at(&self, local: SocketAddr) -> Option<(ListenerId, &ListeningPort)> {
        self.listeners.iter().find(|(_, l)| l.local == local).map(|(&id, l)| (id, l))
    }

    fn with_port(&mut self, mut address: SocketAddr) -> SocketAddr {
        while address.port() == 0 {
            let port = self.next_port;
            self.next_port = port.checked_add(1).unwrap_or(FIRST_EPHEMERAL_PORT);
            let candidate = SocketAddr::new(address.ip(), port);
            if self.listener_at(candidate).is_none()
                && !self.ends.values().any(|e| e.local == candidate)
            {
                address = candidate;
            }
        }
        address
    }
}

impl SimulatedEnd {
    fn new(
        stack: u32,
        token: Token,
        interest: Interest,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Self {
        Self {
            stack,
            token,
            interest,
            local,
            peer,
            state: WorldState::Connecting,
            held: true,
            named: false,
            other: None,
            inbound: VecDeque::new(),
            received: VecDeque::new(),
            peer_fin: false,
            fin_sent: false,
            sent: 0,
            taken: 0,
            unread: 0,
            wanted: 0,
            last_due: Time::ZERO,
            arrived: Time::ZERO,
        }
    }
}
