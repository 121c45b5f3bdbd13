//! Retransmissions that smoltcp forgets, and the contents of probes, on a virtual clock.

use super::{LISTENER, address, pattern};
use crate::link::{Capabilities, Link, Segmentation};
use crate::pipe::{PipeFrame, PipeLink, pipe};
use crate::segment::segment_of;
use crate::{SmolConfig, SmolStack};
use parking_lot::Mutex;
use smoltcp::wire::TcpPacket;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uiw_llp::{Clock, Event, Token, TransportConfig, TransportStack, TransportStream};
use uiw_mem::{IoVec, IoVecMut};

/// Rules for the frames of a link.
#[derive(Default)]
struct FrameRules {
    /// Number of segments with data that are still to be lost.
    lose: usize,
    /// True if segments without data are lost.
    lose_empty: bool,
    /// Number of times that the link reports room before it reports once that it has none.
    room: Option<usize>,
    /// Payload sizes of the segments that were sent.
    payloads: Vec<usize>,
}

/// Pipe that loses frames and runs out of room as the test specifies.
struct GatedLink {
    inner: PipeLink,
    fate: Arc<Mutex<FrameRules>>,
}

impl Link for GatedLink {
    type Frame = PipeFrame;

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn receive(&mut self) -> Option<PipeFrame> {
        self.inner.receive()
    }

    fn recycle(&mut self, frame: PipeFrame) {
        self.inner.recycle(frame);
    }

    fn has_room(&mut self) -> bool {
        let mut fate = self.fate.lock();
        match &mut fate.room {
            None => true,
            Some(0) => {
                fate.room = None;
                false
            }
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }

    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8]) -> Option<Segmentation>) {
        let mut frame = vec![0; len];
        fill(&mut frame);
        if let Some((at, bytes)) = segment_of(&frame) {
            let segment = TcpPacket::new_unchecked(&frame[at..at + bytes]);
            let payload = bytes - usize::from(segment.header_len());
            let mut fate = self.fate.lock();
            fate.payloads.push(payload);
            if payload > 0 && fate.lose > 0 {
                fate.lose -= 1;
                return;
            }
            if payload == 0 && fate.lose_empty {
                return;
            }
        }
        self.inner.transmit(len, &mut |bytes| {
            bytes.copy_from_slice(&frame);
            None
        });
    }

    fn flush(&mut self) {}

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd()
    }

    fn next(&self) -> Option<Instant> {
        self.inner.next()
    }

    fn failure(&mut self, now: Instant) -> Option<io::Error> {
        self.inner.failure(now)
    }
}

struct ProbeWorld {
    clock: Clock,
    client: SmolStack<GatedLink>,
    server: SmolStack<GatedLink>,
    /// Rules for frames that the client sends. The rules for those of the server follow.
    fate: Arc<Mutex<FrameRules>>,
    servers: Arc<Mutex<FrameRules>>,
    v6: bool,
}

impl ProbeWorld {
    fn new(v6: bool) -> Self {
        let clock = Clock::virtual_time();
        let (a, b) = pipe(1500).unwrap();
        let (fate, servers) = (Arc::default(), Arc::default());
        let stack = |inner, fate: &Arc<Mutex<FrameRules>>, host| {
            let config = SmolConfig::new(address(host, v6), if v6 { 64 } else { 24 });
            SmolStack::with_clock(
                GatedLink { inner, fate: Arc::clone(fate) },
                &config,
                clock.clone(),
            )
            .unwrap()
        };
        let (client, server) = (stack(a, &fate, 1), stack(b, &servers, 2));
        Self { clock, client, server, fate, servers, v6 }
    }

    /// Runs both stacks, and advances the clock to the next deadline, by at most `most`.
    fn step(&mut self, most: Duration) -> Vec<Event> {
        let mut events = Vec::new();
        // A frame in the pipe is not a deadline, so the stacks are polled twice: the answer to an
        // answer arrives, too.
        for _ in 0..2 {
            self.client.poll(&mut events).unwrap();
            self.server.poll(&mut events).unwrap();
        }
        let next = [self.client.deadline(), self.server.deadline()].into_iter().flatten().min();
        let until =
            next.map_or(most, |at| at.saturating_duration_since(self.clock.now()).min(most));
        self.clock.advance(until);
        events
    }

    fn pair(
        &mut self,
        options: &TransportConfig,
    ) -> (Box<dyn TransportStream>, Box<dyn TransportStream>) {
        let at = SocketAddr::new(address(2, self.v6), 4791);
        let mut listener =
            self.server.listen(at, &uiw_llp::ListenConfig::default(), LISTENER).unwrap();
        let mut client = self.client.connect(None, at, options, Token(1)).unwrap();
        loop {
            self.step(Duration::from_secs(1));
            let accepted = listener.accept(Token(2));
            if let (Ok(server), Ok(true)) = (accepted, client.connect_result()) {
                return (client, server);
            }
        }
    }

    /// Returns the time until `stream` has received `bytes`, which are checked.
    fn arrive(&mut self, stream: &mut dyn TransportStream, bytes: &[u8]) -> Duration {
        let begin = self.clock.now();
        let (mut came, mut block) = (0, vec![0; 1 << 16]);
        while came < bytes.len() {
            self.step(Duration::from_millis(100));
            assert!(
                self.clock.now() - begin < Duration::from_secs(60),
                "{came} bytes came, and no more"
            );
            while let Ok(count @ 1..) = stream.recv(&mut [IoVecMut::from(&mut block[..])]) {
                assert!(block[..count] == bytes[came..came + count], "at {came}");
                came += count;
            }
        }
        self.clock.now() - begin
    }
}

/// The first segment is lost. At the third duplicate acknowledgement the link has no room, each
/// time that smoltcp asks for it.
#[test]
fn blocked_fast_retransmission_repeated() {
    for (v6, room) in [false, true].into_iter().flat_map(|v6| (0..8).map(move |room| (v6, room))) {
        let mut world = ProbeWorld::new(v6);
        let (mut client, mut server) = world.pair(&TransportConfig::default());
        // The data exceeds the initial window.
        let bytes = pattern(200_000);
        client.send(&[IoVec::from(&bytes[..])]).unwrap();
        world.arrive(&mut *server, &bytes);
        world.fate.lock().lose = 1;
        let bytes = pattern(8_000);
        client.send(&[IoVec::from(&bytes[..])]).unwrap();
        world.fate.lock().room = Some(room);
        let took = world.arrive(&mut *server, &bytes);
        assert!(took < Duration::from_secs(15), "IPv6 {v6}, room {room}: {took:?}");
    }
}

/// During minutes of silence, probes are sent without data and answered, so no end considers the
/// other one dead.
#[test]
fn probes_keep_silent_connection() {
    for v6 in [false, true] {
        let mut world = ProbeWorld::new(v6);
        let options = TransportConfig {
            dead_after: Some(Duration::from_secs(4)),
            ..TransportConfig::default()
        };
        let (mut client, mut server) = world.pair(&options);
        world.fate.lock().payloads.clear();
        let end = world.clock.now() + Duration::from_secs(120);
        while world.clock.now() < end {
            world.step(Duration::from_secs(1));
        }
        let payloads = std::mem::take(&mut world.fate.lock().payloads);
        assert!(payloads.len() >= 100, "a probe a second: {}", payloads.len());
        assert!(payloads.iter().all(|payload| *payload == 0), "{payloads:?}");
        client.send(&[IoVec::from(&b"still there"[..])]).unwrap();
        world.arrive(&mut *server, b"still there");
    }
}

/// A peer that has vanished is detected.
#[test]
fn vanished_peer_dead_despite_probes() {
    let mut world = ProbeWorld::new(false);
    let options =
        TransportConfig { dead_after: Some(Duration::from_secs(4)), ..TransportConfig::default() };
    let (mut client, _server) = world.pair(&options);
    client.send(&[IoVec::from(&b"one"[..])]).unwrap();
    let (begin, mut events) = (world.clock.now(), Vec::new());
    loop {
        events.clear();
        world.client.poll(&mut events).unwrap();
        if events.iter().any(|event| event.token == Token(1) && event.readable) {
            break;
        }
        assert!(world.clock.now() - begin < Duration::from_secs(10), "it is not found dead");
        world.clock.advance(Duration::from_millis(50));
    }
}

/// Two ends that received all data but no acknowledgement retransmit from the first byte. Neither
/// accepts a segment with old data as an acknowledgement, so the answer must have a sequence number
/// after all sent data.
#[test]
fn acknowledgements_cover_sent_bytes() {
    for v6 in [false, true] {
        let mut world = ProbeWorld::new(v6);
        let (mut client, mut server) = world.pair(&TransportConfig::default());
        let bytes = pattern(6_000);
        world.fate.lock().lose_empty = true;
        world.servers.lock().lose_empty = true;
        client.send(&[IoVec::from(&bytes[..])]).unwrap();
        server.send(&[IoVec::from(&bytes[..])]).unwrap();
        let end = world.clock.now() + Duration::from_secs(2);
        while world.clock.now() < end {
            world.step(Duration::from_millis(10));
        }
        world.fate.lock().lose_empty = false;
        world.servers.lock().lose_empty = false;
        client.send(&[IoVec::from(&b"more"[..])]).unwrap();
        server.send(&[IoVec::from(&b"more"[..])]).unwrap();
        let all = [&bytes[..], b"more"].concat();
        for stream in [&mut client, &mut server] {
            world.arrive(&mut **stream, &all);
        }
    }
}

/// The peer neither closes its end nor stops sending.
#[test]
fn dropped_stream_of_open_peer_reset() {
    let mut world = ProbeWorld::new(false);
    let (mut client, server) = world.pair(&TransportConfig::default());
    drop(server);
    let begin = world.clock.now();
    while !world.server.interface.lock().is_empty() {
        assert!(world.clock.now() - begin < Duration::from_secs(70), "the connection is kept");
        let _ = client.send(&[IoVec::from(&b"x"[..])]);
        world.step(Duration::from_secs(1));
    }
    assert!(world.clock.now() - begin >= Duration::from_secs(59));
    world.step(Duration::from_secs(1));
    let error = client.send(&[IoVec::from(&b"x"[..])]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}
