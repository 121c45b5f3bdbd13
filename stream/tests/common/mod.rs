//! Connects two streams directly: each has a host with memory, queues and completions. The clock is
//! virtual, and tests choose how the wire splits the bytes. There are no threads and no sockets.

// Each test binary uses only a part of this module.
#![allow(dead_code)]

mod host;

pub(crate) use host::{MEMORY, TestHost};

use std::collections::VecDeque;
use std::time::Duration;
use uiw_ddp::{Header, STag};
use uiw_mpa::startup::Negotiated;
use uiw_mpa::tx::FpduTx;
use uiw_rdmap::{Opcode, TerminateReason};
use uiw_stream::{
    ConnError, EstablishedStream, Event, Op, PeerKind, Piece, RdmapConfig, RdmapStream, Remote,
    StartupFailure, StreamEnd, Time, Transmit,
};

const SINK: STag = STag(0x51_4B00);

/// Decision of a responder about a Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Accept,
    Reject,
    Wait,
}

/// A stream, its host, and the events it has reported.
pub(crate) struct End {
    pub(crate) stream: RdmapStream<Vec<u8>>,
    pub(crate) host: TestHost,
    config: RdmapConfig,
    pub(crate) decision: Decision,
    /// Bytes in flight to this end.
    pub(crate) incoming: VecDeque<u8>,
    /// Whether the peer's FIN follows these bytes.
    pub(crate) incoming_fin: bool,
    /// Bytes that have arrived but were not consumed.
    pub(crate) unread: Vec<u8>,
    eof: bool,
    /// Every byte that this end has sent.
    pub(crate) sent: Vec<u8>,
    /// Number of sent bytes that came from the host's memory.
    pub(crate) from_memory: usize,
    pub(crate) fin_sent: bool,
    pub(crate) established: Option<EstablishedStream>,
    pub(crate) kind: Option<PeerKind>,
    pub(crate) failed: Option<StartupFailure>,
    pub(crate) ended: Option<StreamEnd>,
    pub(crate) drained: u32,
    pub(crate) reconnects: u32,
}

impl End {
    pub(crate) fn new(stream: RdmapStream<Vec<u8>>, config: RdmapConfig) -> Self {
        Self {
            stream,
            host: TestHost::new(),
            config,
            decision: Decision::Accept,
            incoming: VecDeque::new(),
            incoming_fin: false,
            unread: Vec::new(),
            eof: false,
            sent: Vec::new(),
            from_memory: 0,
            fin_sent: false,
            established: None,
            kind: None,
            failed: None,
            ended: None,
            drained: 0,
            reconnects: 0,
        }
    }

    pub(crate) fn negotiated(&self) -> Negotiated {
        self.established.as_ref().expect("established").negotiated
    }

    /// Posts a request with `payload`, or with room for an answer of its length.
    pub(crate) fn post(&mut self, op: Op, payload: &[u8]) -> u32 {
        let id = self.host.post(op, payload);
        self.stream.doorbell();
        id
    }

    pub(crate) fn error(&self) -> &ConnError {
        &self.ended.as_ref().expect("ended").error
    }

    /// Returns the reason in the Terminate that this end has received.
    pub(crate) fn terminated_by_peer(&self) -> TerminateReason {
        match self.error() {
            ConnError::Terminated(terminate, _) => terminate.reason(),
            other => panic!("no Terminate came: {other:?}"),
        }
    }

    /// Returns the reason in the Terminate that this end has sent.
    pub(crate) fn terminated(&self) -> TerminateReason {
        let ended = self.ended.as_ref().expect("ended");
        ended
            .terminate
            .as_ref()
            .unwrap_or_else(|| panic!("no Terminate: {:?}", ended.error))
            .reason()
    }

    fn take_events(&mut self, now: Time) {
        while let Some(event) = self.stream.poll_event() {
            assert!(self.ended.is_none() && self.failed.is_none(), "{event:?} behind the end");
            match event {
                Event::Requested(_) => match self.decision {
                    Decision::Accept => {
                        let accepted = self.stream.accept(self.config.clone(), b"accepted", now);
                        assert!(accepted.expect("legal settings").is_some());
                    }
                    Decision::Reject => {
                        assert!(self.stream.reject(b"rejected", now).expect("legal data"));
                    }
                    Decision::Wait => {}
                },
                Event::Established(established) => {
                    assert!(self.established.replace(*established).is_none(), "established twice");
                }
                Event::Failed(failure) => self.failed = Some(failure),
                Event::Reconnect => self.reconnects += 1,
                Event::Peer(kind) => {
                    // A late answer to the capability request still counts.
                    let before = self.kind.replace(kind);
                    assert!(matches!(before, None | Some(PeerKind::Foreign)), "decided twice");
                }
                Event::Drained => self.drained += 1,
                Event::Ended(ended) => {
                    self.host.over = true;
                    self.ended = Some(*ended);
                }
            }
        }
    }

    /// Receives the next `count` bytes from the wire and consumes all that is complete. Returns
    /// whether anything happened.
    fn receive(&mut self, count: usize, now: Time) -> bool {
        if !self.stream.accepts_bytes() {
            return false;
        }
        let count = count.min(self.incoming.len());
        self.unread.extend(self.incoming.drain(..count));
        let mut moved = count > 0;
        while self.stream.accepts_bytes() {
            let used = self.stream.handle_bytes(&mut self.host, &mut self.unread, now);
            self.unread.drain(..used);
            self.take_events(now);
            moved |= used > 0;
            if used == 0 {
                break;
            }
        }
        if self.incoming.is_empty() && self.incoming_fin && !self.eof && self.stream.accepts_bytes()
        {
            self.eof = true;
            self.stream.handle_eof(&mut self.host, self.unread.len(), now);
            self.take_events(now);
            moved = true;
        }
        moved
    }

    /// Returns at most `room` bytes to be sent, in the order of the pieces, and whether there was
    /// anything to send.
    pub(crate) fn transmit(&mut self, room: usize, now: Time) -> (Vec<u8>, bool) {
        let mut bytes = Vec::new();
        let mut fin = false;
        match self.stream.poll_transmit(&mut self.host, now) {
            None => {}
            Some(Transmit::Fin) => fin = true,
            Some(Transmit::Bytes(batch)) => {
                let len = batch.len();
                for piece in batch.pieces() {
                    if bytes.len() >= room {
                        break;
                    }
                    match piece {
                        Piece::Bytes(own) => bytes.extend_from_slice(own),
                        Piece::Memory { memory, range } => {
                            self.from_memory += range.len();
                            bytes.extend_from_slice(&memory[range]);
                        }
                    }
                }
                assert!(bytes.len() as u64 == len || bytes.len() >= room);
                bytes.truncate(room);
                self.stream.handle_sent(&mut self.host, bytes.len(), now);
            }
        }
        assert!(!fin || !std::mem::replace(&mut self.fin_sent, fin), "FIN twice");
        assert!(bytes.is_empty() || !self.fin_sent, "bytes behind FIN");
        self.sent.extend_from_slice(&bytes);
        self.take_events(now);
        (bytes, fin)
    }
}

/// Source of the sizes of the next pieces that are sent and received.
pub(crate) type Cuts = Box<dyn FnMut() -> usize>;

/// Two connected streams; the first one is the initiator.
pub(crate) struct Pair {
    pub(crate) ends: [End; 2],
    pub(crate) now: Time,
    pub(crate) send_cuts: Cuts,
    pub(crate) receive_cuts: Cuts,
}

impl Pair {
    /// Creates both ends with these settings, before the first byte.
    pub(crate) fn new(initiator: RdmapConfig, responder: RdmapConfig) -> Self {
        let now = Time::from_nanos(1_000_000_000);
        let connect =
            RdmapStream::connect(initiator.clone(), b"request", SINK, 0x1234_5678_9ABC, now)
                .expect("legal");
        let mut ends = [
            End::new(connect, initiator),
            End::new(RdmapStream::listen(responder.clone(), SINK, now), responder),
        ];
        ends[0].stream.handle_connected(now);
        for end in &mut ends {
            end.stream.set_emss(1460);
        }
        Self {
            ends,
            now,
            send_cuts: Box::new(|| usize::MAX),
            receive_cuts: Box::new(|| usize::MAX),
        }
    }

    /// Creates both ends and establishes the streams, with the capability exchange decided.
    pub(crate) fn open(initiator: RdmapConfig, responder: RdmapConfig) -> Self {
        let mut pair = Self::new(initiator, responder);
        pair.run();
        pair.assert_established();
        pair
    }

    pub(crate) fn assert_established(&self) {
        for end in &self.ends {
            assert!(
                end.stream.is_open() && end.established.is_some(),
                "{:?} {:?}",
                end.failed,
                end.ended
            );
        }
    }

    /// Transfers bytes until nothing more happens without advancing the clock.
    pub(crate) fn run(&mut self) {
        for _ in 0..1_000_000 {
            let mut moved = false;
            for n in 0..2 {
                moved |= self.forward(n);
                moved |= self.ends[1 - n].receive((self.receive_cuts)(), self.now);
            }
            if !moved {
                return;
            }
        }
        panic!("the pair never comes to rest");
    }

    /// Advances the clock by `wait`, and handles the deadlines that have passed and everything that
    /// follows from them.
    pub(crate) fn advance(&mut self, wait: Duration) {
        self.now = self.now.after(wait);
        for end in &mut self.ends {
            if end.stream.poll_timeout() <= self.now {
                end.stream.handle_timeout(&mut end.host, self.now);
                end.take_events(self.now);
            }
        }
        self.run();
    }

    /// Like [`Pair::advance`], but transfers no bytes.
    pub(crate) fn delay(&mut self, wait: Duration) {
        let until = self.now.after(wait);
        loop {
            let next =
                self.ends.iter().map(|end| end.stream.poll_timeout()).min().unwrap_or(Time::NEVER);
            self.now = next.max(self.now).min(until);
            if next > until {
                return;
            }
            for end in &mut self.ends {
                if end.stream.poll_timeout() <= self.now {
                    end.stream.handle_timeout(&mut end.host, self.now);
                    end.take_events(self.now);
                }
            }
        }
    }

    /// Calls a method of one stream and handles its events.
    pub(crate) fn call<R>(
        &mut self,
        n: usize,
        call: impl FnOnce(&mut RdmapStream<Vec<u8>>, &mut TestHost, Time) -> R,
    ) -> R {
        let end = &mut self.ends[n];
        let result = call(&mut end.stream, &mut end.host, self.now);
        end.take_events(self.now);
        result
    }

    /// Takes the next bytes that end `n` sends off the wire, and returns them and whether the end
    /// has sent its FIN instead.
    pub(crate) fn transmit(&mut self, n: usize) -> (Vec<u8>, bool) {
        self.ends[n].transmit((self.send_cuts)(), self.now)
    }

    /// Lets end `n` send once; its peer does not receive the bytes yet. Returns whether the end had
    /// anything to send.
    pub(crate) fn forward(&mut self, n: usize) -> bool {
        let (bytes, fin) = self.transmit(n);
        let moved = !bytes.is_empty() || fin;
        let peer = &mut self.ends[1 - n];
        peer.incoming.extend(bytes);
        peer.incoming_fin |= fin;
        moved
    }

    /// Delivers the next `count` bytes from the wire to end `n`.
    pub(crate) fn receive(&mut self, n: usize, count: usize) {
        self.ends[n].receive(count, self.now);
    }

    /// Detaches the host of end `n` from its stream.
    pub(crate) fn detach(&mut self, n: usize) {
        self.call(n, RdmapStream::detach);
        self.ends[n].host.detached = true;
    }

    /// Posts `count` receives of `len` bytes at end `n`.
    pub(crate) fn receives(&mut self, n: usize, count: usize, len: u32) {
        self.ends[n].host.receives.extend(std::iter::repeat_n(len, count));
        self.call(n, RdmapStream::receive_posted);
    }

    /// Injects an FPDU with a correct CRC, which arrives at end `n` after everything else.
    pub(crate) fn inject(&mut self, n: usize, header: &Header, payload: &[u8]) {
        let mut ulpdu = vec![0; header.len()];
        header.emit(&mut ulpdu);
        ulpdu.extend_from_slice(payload);
        self.inject_ulpdu(n, &ulpdu);
    }

    pub(crate) fn inject_ulpdu(&mut self, n: usize, ulpdu: &[u8]) {
        self.run();
        let mut fpdu = vec![0; 2];
        fpdu.extend_from_slice(ulpdu);
        FpduTx::new(true, false).seal(&mut fpdu, 0);
        self.ends[n].incoming.extend(fpdu);
        self.run();
    }

    /// Asserts that both streams are over and that every request was completed at most once.
    pub(crate) fn assert_over(&mut self) {
        self.run();
        for end in &self.ends {
            assert!(end.stream.is_over(), "{:?}", end.ended);
            end.host.assert_completed_at_most_once();
        }
    }
}

pub(crate) fn config_with(change: impl FnOnce(&mut RdmapConfig)) -> RdmapConfig {
    let mut config = RdmapConfig::default();
    change(&mut config);
    config
}

/// Returns a location in the memory of a host.
pub(crate) fn at(to: u64) -> Remote {
    Remote { stag: MEMORY, to }
}

/// Returns bytes that identify their origin.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|n| (n as u8).wrapping_mul(31).wrapping_add((n >> 8) as u8).wrapping_add(seed))
        .collect()
}

/// Returns a segment header on queue 0.
pub(crate) fn send_header(msn: u32, mo: u32, last: bool) -> Header {
    Header::Untagged(uiw_rdmap::untagged_header(Opcode::Send, uiw_rdmap::QN_SEND, msn, mo, last, 0))
}
