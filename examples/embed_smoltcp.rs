//! iWARP in an existing smoltcp loop, without threads and descriptors, using the clock of the loop.
//! Two sockets of one interface communicate over a device in memory. FPDUs are processed in the
//! receive buffer of the socket, without a copy.

#[path = "embed_exchange.rs"]
mod embed_exchange;
#[path = "embed_host.rs"]
mod embed_host;

use embed_exchange::{AnyError, SINK};
use embed_host::Peer;
use smoltcp::iface::{Config as InterfaceConfig, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Loopback, Medium};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};
use std::hash::{BuildHasher, RandomState};
use uiw::stream::{RdmapConfig, RdmapStream, Time, Transmit};

/// State of the loop for one socket.
struct SocketEnd {
    socket: SocketHandle,
    stream: RdmapStream<Vec<u8>>,
    peer: Peer,
    /// Bytes that wrap around the end of the socket's ring buffer, copied to be contiguous.
    joined: Vec<u8>,
}

impl SocketEnd {
    fn new(socket: SocketHandle, stream: RdmapStream<Vec<u8>>, peer: Peer) -> Self {
        Self { socket, stream, peer, joined: Vec::new() }
    }

    /// Processes the socket. The loop calls this after each poll of the interface.
    fn step(&mut self, socket: &mut Socket<'_>, now: Time) -> Result<(), AnyError> {
        if socket.may_send() {
            self.stream.handle_connected(now);
        }
        if self.stream.poll_timeout() <= now {
            self.stream.handle_timeout(&mut self.peer, now);
        }
        while self.stream.accepts_bytes() && socket.can_recv() && self.receive(socket, now)? {
            self.take_events(now)?;
        }
        let fin = matches!(
            socket.state(),
            State::CloseWait | State::LastAck | State::Closing | State::TimeWait
        );
        if fin && self.stream.accepts_bytes() {
            let unread = socket.recv_queue() + self.joined.len();
            self.stream.handle_eof(&mut self.peer, unread, now);
        }
        self.transmit(socket, now)?;
        self.take_events(now)?;
        if self.stream.is_reset() {
            socket.abort();
        }
        Ok(())
    }

    /// Processes complete frames in the socket's receive buffer, usually in place. Returns `false`
    /// if there is none.
    fn receive(&mut self, socket: &mut Socket<'_>, now: Time) -> Result<bool, AnyError> {
        let Self { stream, peer, joined, .. } = self;
        let queued = socket.recv_queue();
        if joined.is_empty() {
            let (used, front) = socket.recv(|bytes| {
                let used = stream.handle_bytes(peer, bytes, now);
                (used, (used, bytes.len()))
            })?;
            if used > 0 || front == queued {
                return Ok(used > 0);
            }
        }
        while socket.can_recv() {
            socket.recv(|bytes| (bytes.len(), joined.extend_from_slice(bytes)))?;
        }
        let used = stream.handle_bytes(peer, joined, now);
        joined.drain(..used);
        Ok(used > 0)
    }

    fn transmit(&mut self, socket: &mut Socket<'_>, now: Time) -> Result<(), AnyError> {
        while let Some(transmit) = self.stream.poll_transmit(&mut self.peer, now) {
            let Transmit::Bytes(batch) = transmit else {
                socket.close();
                continue;
            };
            let mut bytes = Vec::new();
            batch.append_to(&mut bytes);
            let taken = socket.send_slice(&bytes)?;
            self.stream.handle_sent(&mut self.peer, taken, now);
            if taken < bytes.len() {
                break;
            }
        }
        Ok(())
    }

    fn take_events(&mut self, now: Time) -> Result<(), AnyError> {
        while let Some(event) = self.stream.poll_event() {
            self.peer.on_event(event, &mut self.stream, now)?;
        }
        Ok(())
    }
}

fn main() -> Result<(), AnyError> {
    let mut device = Loopback::new(Medium::Ethernet);
    let mut now = Instant::ZERO;
    let mac = EthernetAddress([2, 0, 0, 0, 0, 1]);
    let mut interface = Interface::new(InterfaceConfig::new(mac.into()), &mut device, now);
    let address = IpAddress::v4(127, 0, 0, 1);
    interface
        .update_ip_addrs(|list| list.push(IpCidr::new(address, 8)).expect("room for one address"));

    let ring = || SocketBuffer::new(vec![0; 64 << 10]);
    let mut sockets = SocketSet::new(Vec::new());
    let server = sockets.add(Socket::new(ring(), ring()));
    let client = sockets.add(Socket::new(ring(), ring()));
    sockets.get_mut::<Socket<'_>>(server).listen(4791)?;
    sockets.get_mut::<Socket<'_>>(client).connect(interface.context(), (address, 4791), 49_152)?;

    let start = Time::default();
    let responder = RdmapStream::listen(RdmapConfig::default(), SINK, start);
    let initiator = RdmapStream::connect(
        RdmapConfig::default(),
        b"",
        SINK,
        RandomState::new().hash_one(0),
        start,
    )?;
    let mut ends = [
        SocketEnd::new(client, initiator, Peer::default()),
        SocketEnd::new(server, responder, Peer::responder()),
    ];
    while ends.iter().any(|end| !end.stream.is_over()) {
        interface.poll(now, &mut device, &mut sockets);
        for end in &mut ends {
            let time = Time::from_nanos(now.total_micros() as u64 * 1000);
            end.step(sockets.get_mut(end.socket), time)?;
        }
        // The clock of this loop is virtual, so the loop never waits.
        now += Duration::from_millis(1);
        if now > Instant::from_secs(10) {
            return Err("nothing happens".into());
        }
    }
    embed_exchange::report(&ends[0].peer, &ends[1].peer);
    Ok(())
}
