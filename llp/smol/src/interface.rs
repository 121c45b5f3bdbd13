//! One link, one smoltcp interface, and its connections: the state behind the lock of a
//! [`super::SmolStack`].

mod conn;
mod datagrams;
mod ports;
mod setup;
mod wake;

use super::SmolConfig;
use super::flow::{Checksum, Flow, FrameClass, classify, neighbour};
use super::link::{Frame, Link, Port, Segmentation, longest_packet};
use super::mss;
use conn::{Conn, Owner};
use datagrams::Datagrams;
use ports::Ports;
use slab::Slab;
use smoltcp::iface::{Config, Interface, PollIngressSingleResult, PollResult, SocketSet};
use smoltcp::time::Instant as Tick;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr};
use std::collections::{BTreeSet, HashMap};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};
use uiw_llp::{Clock, Event, Interest, RemainingBytes};
use uiw_mem::{IoVec, IoVecMut};
use wake::Wake;

/// Factor by which smoltcp's clock runs faster here. smoltcp's clock has a resolution of
/// milliseconds, and its minimum retransmission time-out of one second is meant for wide area
/// networks. With this factor the minimum time-out is 200 ms, as in Linux, and a delayed
/// acknowledgement takes 2 ms. Times that are passed to smoltcp are multiplied by this factor.
pub(super) const CLOCK: u32 = 5;
/// Maximum number of frames that are received from the link at a time.
const FRAMES: usize = 128;
/// Maximum number of bursts of one connection at a time.
const BURSTS: usize = 64;
/// Delay after which a connection that found the link full tries again, in microseconds of
/// smoltcp's clock (see [`CLOCK`]).
const LINK_FULL: i64 = 1000;

/// Bounds of the number of connections that are being set up at a listener or wait there to be
/// accepted. The limit is the listener's backlog, clamped to this range.
pub(super) const WAITING: RangeInclusive<usize> = 128..=4096;
/// Age from which a connection that is being set up may be replaced by a new one when the limit is
/// reached. In a flood of SYNs from addresses that never answer, most pending connections are older
/// than those of peers that do answer.
const REPLACED_AFTER: Duration = Duration::from_millis(20);
/// Time limit for setting up a connection at a listener.
const SET_UP: Duration = Duration::from_secs(10);

/// Time after which listeners are told that an interface is down.
const STAYS_DOWN: Duration = Duration::from_millis(900);

/// Identifies a connection of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnId(usize);

/// Identifies a listener of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListenerId(usize);

pub(super) struct SmolInterface<L: Link> {
    link: L,
    iface: Interface,
    /// Empty set, for frames that belong to no connection.
    no_sockets: SocketSet<'static>,
    conns: Slab<Conn>,
    flows: HashMap<Flow, usize>,
    ports: Ports,
    datagrams: Datagrams,
    /// Connections that may have an event at the next poll.
    hot: Vec<usize>,
    /// Connections that frames or timers have changed, and that may have something to send.
    touched: Vec<usize>,
    /// Times at which connections have to be polled, in microseconds of smoltcp's clock.
    timers: BTreeSet<(i64, usize)>,
    time: Clock,
    base: Instant,
    wake: Wake,
    buffer: usize,
    gateways: Vec<IpAddr>,
    /// Gateways from which a neighbour discovery frame was received.
    resolved: Vec<IpAddr>,
    gone: Option<LostLink>,
}

/// Loss of the link.
struct LostLink {
    why: io::Error,
    since: Instant,
    /// True after the loss was reported to listeners.
    is_reported: bool,
}

impl LostLink {
    fn error(&self) -> io::Error {
        io::Error::new(self.why.kind(), self.why.to_string())
    }

    fn is_for_good(&self) -> bool {
        self.why.kind() == ErrorKind::NotFound
    }
}

impl<L: Link> SmolInterface<L> {
    pub(super) fn new(mut link: L, config: &SmolConfig, time: Clock) -> io::Result<Self> {
        let wrong = |why: String| io::Error::new(ErrorKind::InvalidInput, why);
        config.check().map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))?;
        let mut iface =
            seeded(&mut link, HardwareAddress::Ethernet(EthernetAddress(config.mac)), random()?);
        for (address, prefix) in &config.addresses {
            let mut full = false;
            iface.update_ip_addrs(|list| {
                full = list.push(IpCidr::new((*address).into(), *prefix)).is_err();
            });
            if full {
                return Err(wrong(format!("no room for {address}: too many addresses")));
            }
        }
        for gateway in &config.gateways {
            let added = match gateway {
                IpAddr::V4(v4) => iface.routes_mut().add_default_ipv4_route(*v4).map(drop),
                IpAddr::V6(v6) => iface.routes_mut().add_default_ipv6_route(*v6).map(drop),
            };
            added.map_err(|_| wrong(format!("no room for the route by {gateway}")))?;
        }
        let wake = Wake::new(link.fd())?;
        let datagrams = Datagrams::new(longest_packet(link.capabilities().mtu));
        Ok(Self {
            link,
            iface,
            no_sockets: SocketSet::new(Vec::new()),
            conns: Slab::new(),
            flows: HashMap::new(),
            ports: Ports::default(),
            datagrams,
            hot: Vec::new(),
            touched: Vec::new(),
            timers: BTreeSet::new(),
            base: time.now(),
            time,
            wake,
            buffer: config.buffer,
            gateways: config.gateways.clone(),
            resolved: Vec::new(),
            gone: None,
        })
    }

    pub(super) fn wait_fd(&self) -> Arc<OwnedFd> {
        self.wake.set()
    }

    fn clock(&self) -> Tick {
        self.tick_at(self.time.now())
    }

    fn tick_at(&self, time: Instant) -> Tick {
        let ticks = (time - self.base).as_micros() * u128::from(CLOCK);
        Tick::from_micros(i64::try_from(ticks).unwrap_or(i64::MAX))
    }

    /// Returns the time at which [`SmolInterface::tick`] has to be called even if no frame arrives.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let timers = self.timers.first().map(|(at, _)| *at).into_iter().chain(self.datagrams.timer);
        let timer = timers.min().and_then(|at| {
            // Rounds up, so that the call is not too early.
            let micros = u64::try_from(at).unwrap_or(0).div_ceil(u64::from(CLOCK));
            self.base.checked_add(Duration::from_micros(micros))
        });
        let watched = !self.conns.is_empty()
            || !self.ports.listeners.is_empty()
            || !self.datagrams.sockets.is_empty();
        let oldest =
            self.ports.listeners.iter().filter_map(|(_, listener)| listener.opening.front());
        let set_up = oldest.map(|id| self.conns[*id].began + SET_UP).min();
        let for_good = self.gone.as_ref().is_some_and(LostLink::is_for_good);
        let watch = if watched && !for_good { self.link.watch() } else { None };
        if self.gone.is_some() {
            // Nothing can be sent, and all other times may be in the past.
            return watch;
        }
        timer.into_iter().chain(set_up).chain(self.link.next()).chain(watch).min()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.conns.is_empty() && self.flows.is_empty()
    }

    /// Returns the number of connections, including those that are being set up.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.conns.len()
    }

    #[cfg(test)]
    pub(super) fn stretches(&self) -> Vec<super::stretch::Stretch> {
        self.conns.iter().map(|(_, conn)| conn.stretch).collect()
    }

    /// Replaces the interface by one whose random numbers the test knows.
    #[cfg(test)]
    pub(super) fn reseed(&mut self, seed: u64) {
        self.iface = self.numbering(seed);
    }

    /// Returns an interface that provides one connection with its initial sequence number.
    /// smoltcp's generator is not cryptographic: all its numbers can be computed from two of them
    /// (RFC 6528), so each connection has its own seed.
    fn fresh_numbering(&mut self) -> io::Result<Interface> {
        Ok(self.numbering(random()?))
    }

    fn numbering(&mut self, seed: u64) -> Interface {
        let mut iface = seeded(&mut self.link, self.iface.hardware_addr(), seed);
        // Both lists have the same capacity.
        iface.update_ip_addrs(|list| list.extend(self.iface.ip_addrs().iter().copied()));
        iface
    }

    pub(super) fn mtu(&self) -> usize {
        longest_packet(self.link.capabilities().mtu)
    }

    /// Returns the maximum payload of a segment in bytes. The TCP header has no options, because
    /// smoltcp sends none after the SYN.
    pub(super) fn emss(&self, v6: bool) -> usize {
        self.mtu() - if v6 { 60 } else { 40 }
    }

    /// Receives frames from the link, runs timers, and sends what is due.
    pub(super) fn tick(&mut self) {
        let time = self.time.now();
        if let Some(error) = self.link.failure(time) {
            self.mark_gone(error);
            // Frames that arrived before would keep the descriptor readable.
            for _ in 0..FRAMES {
                let Some(frame) = self.link.receive() else { break };
                self.link.recycle(frame);
            }
            return;
        }
        // If the link was gone before, it is back now. Its old connections are lost, but listeners
        // continue.
        self.gone = None;
        let now = self.tick_at(time);
        for _ in 0..FRAMES {
            let Some(mut frame) = self.link.receive() else { break };
            self.ingress(now, &mut frame);
            self.link.recycle(frame);
        }
        while let Some((at, id)) =
            self.timers.first().copied().filter(|(at, _)| *at <= now.total_micros())
        {
            self.timers.remove(&(at, id));
            self.conns[id].timer = None;
            self.touched.push(id);
        }
        if self.datagrams.timer.is_some_and(|at| at <= now.total_micros()) {
            self.egress_datagrams(now);
        }
        self.expire_set_ups(time);
        self.egress_all(now);
    }

    /// Removes connections whose set-up takes too long. Their peers get no answer, like peers whose
    /// SYN was dropped. Those that are established but found no room in the backlog are reset.
    fn expire_set_ups(&mut self, time: Instant) {
        let is_old = |conns: &Slab<Conn>, id: usize| {
            time.saturating_duration_since(conns[id].began) >= SET_UP
        };
        let mut old = Vec::new();
        for (_, listener) in &self.ports.listeners {
            old.extend(listener.opening.iter().copied().take_while(|id| is_old(&self.conns, *id)));
        }
        for id in old {
            if self.conns[id].is_established() {
                self.abort(ConnId(id));
            } else {
                self.remove(id);
            }
        }
    }

    /// Sends what is due after a call has changed a connection.
    fn egress_changed(&mut self, id: ConnId) {
        self.touched.push(id.0);
        self.egress_all(self.clock());
    }

    fn egress_all(&mut self, now: Tick) {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        for id in touched.drain(..) {
            self.egress(id, now);
        }
        self.touched = touched;
        self.link.flush();
    }

    /// Passes one frame to the connection to which it belongs.
    fn ingress(&mut self, now: Tick, frame: &mut L::Frame) {
        let checksum = match (frame.is_checked(), self.link.capabilities().partial_checksums) {
            (true, _) => Checksum::Trusted,
            (false, true) => Checksum::WholeOrBegun,
            (false, false) => Checksum::Whole,
        };
        let datagram_size = frame.datagram_size();
        let bytes = frame.bytes();
        // Interface with fresh sequence numbers, for a SYN that starts a connection.
        let mut numbering = None;
        let id = match classify(bytes, checksum) {
            // The checksum is wrong, so the frame is ignored.
            None => return,
            Some(FrameClass::Udp { flow, payload: (begin, end) }) => {
                // If no socket is bound to the destination, nothing is answered, as with a segment
                // that belongs to no connection.
                let size = datagram_size.unwrap_or(usize::MAX);
                self.datagrams.arrive(flow, &bytes[begin..end], size);
                return;
            }
            Some(FrameClass::Other) => None,
            Some(FrameClass::Tcp { flow, opens }) => match self.flows.get(&flow) {
                Some(id) => Some(*id),
                None => match self.ports.find(flow.local).filter(|_| opens) {
                    Some(port) => {
                        // A SYN without room gets no answer, so the peer repeats it.
                        let Some((id, fresh)) = self.begin(flow, port) else { return };
                        numbering = Some(fresh);
                        Some(id)
                    }
                    None => None,
                },
            },
        };
        let Some(id) = id else {
            let neighbour = neighbour(bytes);
            let gateway = neighbour.filter(|address| self.gateways.contains(address));
            if let Some(gateway) = gateway.filter(|gateway| !self.resolved.contains(gateway)) {
                self.resolved.push(gateway);
            }
            let mut port = Port { link: &mut self.link, frame: Some(bytes), sender: None };
            self.iface.poll_ingress_single(now, &mut port, &mut self.no_sockets);
            // A neighbour may have answered. Connections that wait for it continue immediately, and
            // not only with their next query.
            if let Some(neighbour) = neighbour {
                let waits = |conn: &Conn| gateway.is_some() || conn.flow.peer.ip() == neighbour;
                let waiting =
                    self.conns.iter().filter(|(_, conn)| conn.is_opening() && waits(conn));
                self.touched.extend(waiting.map(|(id, _)| id));
            }
            if self.datagrams.timer.is_some() {
                self.egress_datagrams(now);
            }
            return;
        };
        let emss = self.emss(self.conns[id].flow.peer.is_ipv6());
        let (mtu, cuts) = (self.mtu(), self.link.capabilities().segmentation.is_some());
        let conn = &mut self.conns[id];
        let is_accepted = conn.accepts(bytes);
        // The checksum was already verified.
        if cuts
            && is_accepted
            && let Some(size) = mss::limit(bytes, mtu)
        {
            conn.segmentation = Some(Segmentation { size });
        }
        self.link.send_for(conn.queue);
        let iface = numbering.as_mut().unwrap_or(&mut self.iface);
        if is_accepted && let Some(mut parts) = conn.note_received(bytes, emss, now) {
            while let Some(part) = parts.next() {
                let (sender, sockets) = conn.sender(now);
                let mut port =
                    Port { link: &mut self.link, frame: Some(part), sender: Some(sender) };
                iface.poll_ingress_single(now, &mut port, sockets);
            }
        }
        if is_accepted && let Some(mut duplicates) = conn.duplicates(bytes) {
            while duplicates.write(bytes) {
                let (sender, sockets) = conn.sender(now);
                let mut port =
                    Port { link: &mut self.link, frame: Some(&mut *bytes), sender: Some(sender) };
                iface.poll_ingress_single(now, &mut port, sockets);
            }
        }
        let (sender, sockets) = conn.sender(now);
        let mut port = Port { link: &mut self.link, frame: Some(bytes), sender: Some(sender) };
        let result = iface.poll_ingress_single(now, &mut port, sockets);
        conn.note_emss(emss);
        if result == PollIngressSingleResult::SocketStateChanged {
            self.state_changed(id);
        }
    }

    /// Returns a connection in state Listen for a SYN that has arrived, if the listener has room,
    /// and the interface that has to process the SYN.
    fn begin(&mut self, flow: Flow, port: usize) -> Option<(usize, Interface)> {
        let listener = &self.ports.listeners[port];
        if listener.ready.len() >= listener.backlog {
            tracing::debug!(%flow.peer, backlog = listener.backlog, "the backlog is full");
            return None;
        }
        let (least, most) = WAITING.into_inner();
        if listener.ready.len() + listener.opening.len() >= listener.backlog.clamp(least, most) {
            let now = self.time.now();
            let is_old =
                |id: &usize| now.saturating_duration_since(self.conns[*id].began) >= REPLACED_AFTER;
            let Some(oldest) = listener.opening.front().copied().filter(is_old) else {
                tracing::debug!(%flow.peer, "too many connections are in set-up");
                return None;
            };
            self.remove(oldest);
        }
        let numbering = self.fresh_numbering().ok()?;
        let conn =
            Conn::for_syn(flow, port, &self.ports.listeners[port].stream, self.buffer, &self.time)?;
        let id = self.conns.insert(conn);
        self.ports.listeners[port].opening.push_back(id);
        self.flows.insert(flow, id);
        Some((id, numbering))
    }

    /// Handles a possible change of a connection's state after smoltcp has processed it.
    fn state_changed(&mut self, id: usize) {
        self.touched.push(id);
        let conn = &mut self.conns[id];
        match conn.owner {
            Owner::TransportListener { port, ready: false } if conn.is_established() => {
                // If other connections have filled the backlog meanwhile, this one waits.
                if self.ports.listeners[port].ready.len() < self.ports.listeners[port].backlog {
                    self.make_ready(id, port);
                }
            }
            // The connection was reset before it was accepted, or was never established.
            Owner::TransportListener { ready: false, .. } if !conn.is_opening() => self.remove(id),
            Owner::TransportListener { .. } => {}
            Owner::TransportStream => self.heat(id),
            Owner::Nobody if conn.is_over() => self.remove(id),
            Owner::Nobody => {}
        }
    }

    /// Moves an established connection of a listener to those that can be accepted.
    fn make_ready(&mut self, id: usize, port: usize) {
        let listener = &mut self.ports.listeners[port];
        listener.opening.retain(|opening| *opening != id);
        listener.ready.push_back(id);
        self.conns[id].owner = Owner::TransportListener { port, ready: true };
    }

    /// Sends what a connection has to send, and stores the time of its next poll.
    fn egress(&mut self, id: usize, now: Tick) {
        let Some(v6) = self.conns.get(id).map(|conn| conn.flow.peer.is_ipv6()) else { return };
        let emss = self.emss(v6);
        let conn = &mut self.conns[id];
        if conn.outlasts_time_wait(now) {
            if let Some(before) = conn.timer.take() {
                self.timers.remove(&(before, id));
            }
            return;
        }
        if conn.misses_gateway(self.time.now()) {
            if !conn.gateway.is_some_and(|gateway| self.resolved.contains(&gateway)) {
                conn.end(ErrorKind::HostUnreachable);
                self.heat(id);
                return;
            }
            conn.gateway = None;
        }
        if conn.closes_by.is_some_and(|at| at <= now) {
            conn.end(ErrorKind::TimedOut);
        }
        self.link.send_for(conn.queue);
        let mut changed = false;
        for _ in 0..BURSTS {
            // smoltcp forgets a fast retransmission that finds no room.
            if !self.link.has_room() {
                break;
            }
            let (sender, sockets) = conn.sender(now);
            let mut port = Port { link: &mut self.link, frame: None, sender: Some(sender) };
            if self.iface.poll_egress(now, &mut port, sockets) == PollResult::None {
                break;
            }
            changed = true;
        }
        if conn.next_probe().is_some_and(|at| at <= now) && self.link.has_room() {
            let frame = conn.probe(now);
            self.link.transmit(frame.len(), &mut |bytes| {
                bytes.copy_from_slice(frame);
                None
            });
        }
        let queued = conn.unacknowledged();
        conn.stretch.note_all_sent(queued, emss);
        conn.note_emss(emss);
        let at = self.iface.poll_at(now, &conn.sockets);
        let at = at.into_iter().chain(conn.next_probe()).chain(conn.closes_by).min();
        let at = at.map(|at| at.total_micros());
        // A poll that is still due now found no room in the link, so it is repeated a little later.
        let at =
            at.map(|at| if at <= now.total_micros() { now.total_micros() + LINK_FULL } else { at });
        if conn.timer != at {
            if let Some(before) = std::mem::replace(&mut conn.timer, at) {
                self.timers.remove(&(before, id));
            }
            if let Some(at) = at {
                self.timers.insert((at, id));
            }
        }
        // The end of TIME-WAIT sends nothing, so it is not detected as a change.
        if conn.owner == Owner::Nobody && conn.is_over() {
            self.remove(id);
        } else if changed {
            match conn.owner {
                Owner::TransportListener { ready: false, .. }
                    if !conn.is_opening() && !conn.is_established() =>
                {
                    self.remove(id);
                }
                _ => self.heat(id),
            }
        }
    }

    fn remove(&mut self, id: usize) {
        let conn = self.conns.remove(id);
        if let Some(at) = conn.timer {
            self.timers.remove(&(at, id));
        }
        if self.flows.get(&conn.flow) == Some(&id) {
            self.flows.remove(&conn.flow);
        }
        self.hot.retain(|hot| *hot != id);
        self.touched.retain(|touched| *touched != id);
        if let Owner::TransportListener { port, .. } = conn.owner
            && let Some(listener) = self.ports.listeners.get_mut(port)
        {
            listener.opening.retain(|opening| *opening != id);
            listener.ready.retain(|ready| *ready != id);
        }
    }

    fn heat(&mut self, id: usize) {
        if let Some(conn) = self.conns.get_mut(id)
            && !std::mem::replace(&mut conn.hot, true)
        {
            self.hot.push(id);
        }
    }

    /// Records that the link is gone. An interface that is being deleted goes down first, so
    /// listeners are told that it is down only if it stays down.
    fn mark_gone(&mut self, why: io::Error) {
        let now = self.time.now();
        let (since, is_reported) = match &self.gone {
            Some(before) if before.why.kind() == why.kind() => (before.since, before.is_reported),
            Some(before) => (before.since, false),
            None => {
                self.fail(&why);
                (now, false)
            }
        };
        let mut gone = LostLink { why, since, is_reported };
        if !gone.is_reported
            && (gone.is_for_good() || now.saturating_duration_since(since) >= STAYS_DOWN)
        {
            gone.is_reported = true;
            self.ports.listeners.iter_mut().for_each(|(_, listener)| listener.is_unreported = true);
            self.wake.kick();
        }
        self.gone = Some(gone);
    }

    /// Ends all connections, because the link is gone.
    fn fail(&mut self, error: &io::Error) {
        if self.conns.is_empty() {
            tracing::debug!(%error, "the link is gone");
        } else {
            tracing::error!(%error, "the link is gone: its connections are lost");
        }
        self.timers.clear();
        for id in self.conns.iter().map(|(id, _)| id).collect::<Vec<_>>() {
            let conn = &mut self.conns[id];
            conn.timer = None;
            conn.end(ErrorKind::NetworkDown);
            match conn.owner {
                Owner::TransportStream => self.heat(id),
                Owner::TransportListener { .. } | Owner::Nobody => self.remove(id),
            }
        }
        self.wake.kick();
    }

    /// Returns an error if the link is gone.
    fn check_link(&mut self) -> io::Result<()> {
        if self.gone.is_some() {
            self.tick();
        }
        self.gone.as_ref().map_or(Ok(()), |gone| Err(gone.error()))
    }

    pub(super) fn poll(&mut self, events: &mut Vec<Event>) {
        self.tick();
        let before = events.len();
        for listener in self.ports.listeners.iter().map(|(_, listener)| listener) {
            if listener.has_answer() {
                events.push(Event { token: listener.token, readable: true, writable: false });
            }
        }
        events.extend(self.datagrams.events());
        let mut hot = std::mem::take(&mut self.hot);
        hot.retain(|id| {
            let conn = &mut self.conns[*id];
            let event = conn.event();
            conn.hot = event.is_some();
            events.extend(event);
            conn.hot
        });
        // Adds the connections that became hot in the meantime.
        hot.append(&mut self.hot);
        self.hot = hot;
        // The descriptor must be readable as long as a poll has something to report, even if all
        // frames were already taken from the link. This costs two system calls each time that this
        // state begins and ends.
        if events.len() > before || !self.hot.is_empty() {
            self.wake.kick();
        } else {
            self.wake.unkick();
        }
    }

    /// Wakes the thread that sleeps on the descriptor if frames that were received outside of a
    /// poll have caused events. Events of the connection `except` are ignored.
    fn wake_for_events(&mut self, except: Option<usize>) {
        let has_event = |id: &usize| self.conns.get(*id).is_some_and(|conn| conn.event().is_some());
        let ready = |id: &usize| Some(*id) != except && has_event(id);
        let accepts = self.ports.listeners.iter().any(|(_, listener)| listener.has_answer());
        let has_datagrams = self.datagrams.events().next().is_some();
        if accepts || has_datagrams || self.hot.iter().any(ready) {
            self.wake.kick();
        }
    }

    pub(super) fn send(&mut self, id: ConnId, bufs: &[IoVec<'_>]) -> io::Result<usize> {
        let mut taken = self.conns[id.0].fill(bufs)?;
        if taken == 0 {
            // Acknowledgements that wait in the link may free room.
            self.tick();
            taken = self.conns[id.0].fill(bufs)?;
            self.wake_for_events(None);
            if taken == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
        }
        self.egress_changed(id);
        Ok(taken)
    }

    pub(super) fn recv(&mut self, id: ConnId, bufs: &mut [IoVecMut<'_>]) -> io::Result<usize> {
        self.tick();
        let result = self.conns[id.0].drain(bufs);
        if matches!(result, Ok(1..)) {
            // The window has opened.
            self.egress_changed(id);
        }
        self.wake_for_events(None);
        result
    }

    /// Receives frames from the link, and returns how many contiguous bytes of the connection are
    /// available. Returns 0 after its end.
    pub(super) fn peek(&mut self, id: ConnId) -> io::Result<usize> {
        self.tick();
        self.wake_for_events(Some(id.0));
        self.conns[id.0].received().map(|bytes| bytes.len())
    }

    /// Wakes a sleeping thread if the connection has an event now, because of another interest or
    /// because of bytes that a peek has left.
    pub(super) fn wake_for(&mut self, id: ConnId) {
        if self.conns.get(id.0).is_some_and(|conn| conn.event().is_some()) {
            self.heat(id.0);
            self.wake.kick();
        }
    }

    /// Returns the bytes that [`SmolInterface::peek`] found.
    pub(super) fn received(&mut self, id: ConnId) -> &mut [u8] {
        self.conns[id.0].received().unwrap_or_default()
    }

    pub(super) fn can_grow(&self, id: ConnId, len: usize, used: usize) -> bool {
        self.conns[id.0].can_grow(len, used)
    }

    pub(super) fn consume(&mut self, id: ConnId, used: usize, rest: RemainingBytes) {
        self.conns[id.0].consume(used, rest == RemainingBytes::WaitForMore);
        if used > 0 {
            // The window has opened.
            self.egress_changed(id);
        }
    }

    pub(super) fn set_interest(&mut self, id: ConnId, interest: Interest) {
        self.conns[id.0].interest = interest;
        self.wake_for(id);
    }

    pub(super) fn connect_result(&mut self, id: ConnId) -> io::Result<bool> {
        let now = self.time.now();
        self.conns[id.0].connect_result(now)
    }

    pub(super) fn shutdown(&mut self, id: ConnId) -> io::Result<()> {
        self.conns[id.0].shutdown()?;
        self.egress_changed(id);
        Ok(())
    }

    pub(super) fn abort(&mut self, id: ConnId) {
        self.conns[id.0].end(ErrorKind::ConnectionAborted);
        self.egress(id.0, self.clock());
        self.link.flush();
        if self.conns.contains(id.0) {
            self.remove(id.0);
        }
    }

    /// Handles the drop of a stream: a FIN follows the sent data, and the connection has no more
    /// events.
    pub(super) fn release(&mut self, id: ConnId) {
        let now = self.clock();
        let conn = &mut self.conns[id.0];
        conn.owner = Owner::Nobody;
        conn.token = None;
        conn.extend_close(now);
        let _ = conn.shutdown();
        if conn.is_over() || self.gone.is_some() {
            self.remove(id.0);
            return;
        }
        self.egress_changed(id);
    }

    /// Closes every stream although its handle still exists, because the process ends.
    pub(super) fn close_all(&mut self) {
        for (id, conn) in &mut self.conns {
            if conn.owner == Owner::TransportStream && conn.shutdown().is_ok() {
                self.touched.push(id);
            }
        }
        self.egress_all(self.clock());
    }

    /// Returns whether a connection whose stream was dropped or shut down has data or a FIN that
    /// the peer has not acknowledged.
    pub(super) fn is_lingering(&self) -> bool {
        self.gone.is_none() && self.conns.iter().any(|(_, conn)| conn.is_unacknowledged())
    }

    pub(super) fn set_congestion(&mut self, id: ConnId, name: &str) -> io::Result<()> {
        self.conns.get_mut(id.0).ok_or(ErrorKind::NotConnected)?.set_congestion(name)
    }

    pub(super) fn set_dead_after(&mut self, id: ConnId, after: Option<Duration>) -> io::Result<()> {
        self.conns.get_mut(id.0).ok_or(ErrorKind::NotConnected)?.set_dead_after(after);
        Ok(())
    }

    /// Returns the EMSS of a connection, which changes with its path.
    pub(super) fn emss_of(&self, id: ConnId) -> Arc<AtomicUsize> {
        let conn = &self.conns[id.0];
        Arc::clone(conn.note_emss(self.emss(conn.flow.peer.is_ipv6())))
    }

    pub(super) fn congestion(&self, id: ConnId) -> Option<String> {
        self.conns.get(id.0).map(|conn| conn.congestion().to_owned())
    }
}

fn random() -> io::Result<u64> {
    getrandom::u64().map_err(|error| io::Error::other(error.to_string()))
}

/// Returns an interface without addresses.
fn seeded(link: &mut impl Link, hardware: HardwareAddress, seed: u64) -> Interface {
    let mut config = Config::new(hardware);
    config.random_seed = seed;
    Interface::new(config, &mut Port { link, frame: None, sender: None }, Tick::ZERO)
}
