//! Single stream with a virtual clock, between a host with arbitrary actions and a peer with
//! arbitrary messages. After each run, all requests must have completed exactly once or have been
//! flushed, and no secret byte may have been sent.

// Host of the stream's tests. Some of its functions are only used there.
#[allow(dead_code)]
#[path = "../../stream/tests/common/host.rs"]
mod host;

use std::time::Duration;

use uiw_ddp::{Header, STag};
use uiw_mpa::startup::{Initiator, Negotiated, Outcome, Responder, Revision, RtrKinds};
use uiw_mpa::tx::FpduTx;
use uiw_rdmap::{AtomicRequest, AtomicResponse, Opcode, ReadRequest};
use uiw_stream::{
    BatchLength, CapabilityExchange, Event, FpduSize, Op, Piece, RdmapConfig, RdmapStream, Remote,
    StableTx, Time, Transmit,
};

use crate::input::Input;
use host::{MEMORY, TestHost};

/// Maximum number of steps of a run.
const STEPS: usize = 200;
/// Length in bytes of the memory that the peer may use.
const LEN: usize = 40_000;
/// Bytes that follow each memory region. The peer never sends them.
const SECRET: [u8; 16] = *b"\xC3\x5ASECRET-BYTES\xA5\x3C";
const SINK: STag = STag(0x51_4B00);

/// Stream, its host, and the peer.
struct StreamRun {
    stream: RdmapStream<Vec<u8>>,
    host: TestHost,
    config: RdmapConfig,
    now: Time,
    /// Received bytes that the stream has not consumed.
    unread: Vec<u8>,
    eof: bool,
    /// Bytes that the stream has sent on the current connection.
    sent: Vec<u8>,
    fin: bool,
    established: bool,
    ended: bool,
    failed: bool,
    rejected: bool,
    peer: PeerState,
}

/// State of the peer, with which it can create valid FPDUs.
struct PeerState {
    initiator: Option<Initiator>,
    responder: Option<Responder>,
    negotiated: Option<Negotiated>,
    fpdu: FpduTx,
    msn: [u32; 4],
}

/// Runs an input, which consists of settings and the actions of both ends in their order.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let config = config(&mut input);
    let theirs = self::config(&mut input);
    let now = Time::from_nanos(1);
    let element = input.pick(&[1 << 20, 5000, 64]);
    let mut host = TestHost::with_memory(LEN, &SECRET);
    (host.element, host.stable) = (element, input.bool());
    host.may_invalidate = (0..=255).step_by(2).map(STag).collect();
    let (stream, initiator, responder) = match input.below(8) {
        0..4 => {
            let Ok(stream) = RdmapStream::connect(config.clone(), b"fuzz", SINK, 1, now) else {
                return;
            };
            (stream, None, Some(Responder::new(theirs.startup.clone())))
        }
        4..7 => {
            let initiator = Initiator::new(theirs.startup.clone(), b"").ok();
            (RdmapStream::listen(config.clone(), SINK, now), initiator, None)
        }
        _ => (RdmapStream::loopback(config.clone(), SINK, now), None, None),
    };
    let peer = PeerState {
        initiator,
        responder,
        negotiated: None,
        fpdu: FpduTx::new(true, false),
        msn: [1; 4],
    };
    let mut run = StreamRun {
        stream,
        host,
        config,
        now,
        unread: Vec::new(),
        eof: false,
        sent: Vec::new(),
        fin: false,
        established: false,
        ended: false,
        failed: false,
        rejected: false,
        peer,
    };
    let length = if theirs.copy_with_crc { BatchLength::Usual } else { BatchLength::Long };
    run.stream.set_batch_length(length);
    run.stream.set_emss(input.pick(&[1460, 536, 9000, 100]));
    run.stream.handle_connected(now);
    run.events(&mut input);
    if input.u8() < 230 {
        run.start_up(&theirs, &mut input);
    }
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        run.step(&mut input);
        run.events(&mut input);
    }
    run.finish(&mut input);
}

fn config(input: &mut Input<'_>) -> RdmapConfig {
    let bits = input.u8();
    let kinds = input.u8();
    let mut config = RdmapConfig::default();
    let startup = &mut config.startup;
    startup.revision = if bits & 1 == 0 { Revision::Two } else { Revision::One };
    startup.crc = bits & 2 == 0;
    startup.want_markers = bits & 4 != 0;
    startup.peer_to_peer = bits & 8 == 0;
    startup.rtr = RtrKinds {
        write: kinds & 1 == 0,
        read: kinds & 2 == 0,
        send: kinds & 4 == 0 || kinds & 3 == 3,
    };
    startup.ird = input.pick(&[4, 1, 0, 16, 0x3FFF]);
    startup.ord = input.pick(&[4, 1, 0, 16, 0x3FFF]);
    config.fpdu =
        input.pick(&[FpduSize::Auto, FpduSize::Segment, FpduSize::Large, FpduSize::Fixed(200)]);
    config.capabilities =
        input.pick(&[CapabilityExchange::Assume, CapabilityExchange::Off, CapabilityExchange::On]);
    config.acknowledged = bits & 16 != 0;
    config.stable_tx = input.pick(&[StableTx::Off, StableTx::Writes, StableTx::On]);
    config.copy_with_crc = bits & 32 == 0;
    config.fallback = bits & 64 == 0;
    config.no_receive_timeout = Duration::from_millis(input.pick(&[500, 0, 5000]));
    config
}

impl StreamRun {
    /// Performs the peer's part of the startup correctly.
    fn start_up(&mut self, theirs: &RdmapConfig, input: &mut Input<'_>) {
        if let Some(initiator) = self.peer.initiator.take() {
            let request = initiator.request();
            self.arrive(&request, input);
            self.transmit(usize::MAX);
            if let Ok(Some((used, Outcome::Accepted { negotiated, .. }))) =
                initiator.reply(&self.sent)
            {
                self.sent.drain(..used);
                self.peer.open(negotiated);
            }
        } else if let Some(mut responder) = self.peer.responder.take() {
            self.transmit(usize::MAX);
            let Ok(Some((_, request))) = responder.request(&self.sent) else { return };
            let Ok((reply, negotiated)) = responder.accept(&request, &theirs.startup, b"") else {
                return;
            };
            self.sent.clear();
            self.arrive(&reply, input);
            self.peer.open(negotiated);
        } else {
            let markers = self.config.startup.want_markers;
            self.peer.fpdu = FpduTx::new(self.config.startup.crc, markers);
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() {
            0..=69 => {
                let fpdu = self.peer.fpdu(self.stream.sink(), input);
                self.arrive(&fpdu, input);
            }
            70..=79 => {
                let len = input.below(64);
                let bytes = input.take(len).to_vec();
                self.arrive(&bytes, input);
            }
            80..=129 => {
                let len = input.pick(&[8, 0, 100, 3000, 20_000, 70_000]);
                let op = op(input);
                let len =
                    if matches!(op, Op::FetchAdd { .. } | Op::CmpSwap { .. }) { 8 } else { len };
                let flags = input.u8();
                self.host.post_with(op, &vec![0x50; len], |request| {
                    request.fence = flags & 1 != 0;
                    request.solicited = flags & 2 != 0;
                    request.inline = flags & 4 != 0 && !op.needs_ord();
                });
                self.stream.doorbell();
            }
            130..=149 => {
                let len = input.pick(&[100, 0, 8, 4000]) as u32;
                self.host.receives.push_back(len);
                if !self.host.over
                    && !self.host.detached
                    && self.stream.receive_posted(&mut self.host, self.now)
                {
                    self.arrive(&[], input);
                }
            }
            150..=209 => self.transmit(input.pick(&[usize::MAX, 1, 17, 700, 9000])),
            210..=219 => {
                self.now = self.now.after(Duration::from_millis(input.pick(&[60, 1, 1000, 6000])));
                if self.stream.poll_timeout() <= self.now {
                    self.stream.handle_timeout(&mut self.host, self.now);
                }
            }
            220..=223 => drop(self.stream.close(self.now)),
            224 | 225 => self.stream.abort(&mut self.host, self.now),
            226 => {
                self.stream.fail_locally(&mut self.host, uiw_stream::LocalError::GivenUp, self.now);
            }
            227..=229 => {
                if !self.host.detached {
                    self.stream.detach(&mut self.host, self.now);
                    self.events(input);
                    self.host.detached = true;
                }
            }
            230..=233 => self.end_of_file(),
            234 => self.stream.handle_lost(&mut self.host, self.now),
            235 => self.stream.abandon_startup(),
            236..=239 => self.stream.pause(),
            240..=243 => self.stream.resume(),
            244 => self.stream.set_no_receive_timeout(
                Duration::from_millis(input.pick(&[0, 50, 9000])),
                self.now,
            ),
            245 => self.deregister(),
            246 => {
                self.deregister();
                self.stream.handle_source_gone(&mut self.host, self.now);
            }
            247 => self.host.cq_full = true,
            248 => self.stream.set_emss(input.pick(&[1460, 0, 100, 9000, 100_000])),
            _ => self.transmit(usize::MAX),
        }
    }

    /// Simulates the deregistration of all memory that requests, receives and the transmit queue
    /// use.
    fn deregister(&mut self) {
        (self.host.no_local_memory, self.host.gone) = (true, true);
    }

    /// Delivers either all bytes or only a part of them to the stream, which consumes complete
    /// frames.
    fn arrive(&mut self, bytes: &[u8], input: &mut Input<'_>) {
        if self.eof {
            return;
        }
        self.unread.extend_from_slice(bytes);
        while self.stream.accepts_bytes() {
            let front = if input.u8() < 200 {
                self.unread.len()
            } else {
                input.below(self.unread.len() + 1)
            };
            let used =
                self.stream.handle_bytes(&mut self.host, &mut self.unread[..front], self.now);
            assert!(used <= front);
            self.unread.drain(..used);
            self.events(input);
            if used == 0 {
                break;
            }
        }
    }

    fn end_of_file(&mut self) {
        if !self.eof && self.stream.accepts_bytes() {
            self.eof = true;
            self.stream.handle_eof(&mut self.host, self.unread.len(), self.now);
        }
    }

    /// Lets the transport accept up to `room` bytes.
    fn transmit(&mut self, room: usize) {
        let taken = match self.stream.poll_transmit(&mut self.host, self.now) {
            None => return,
            Some(Transmit::Fin) => {
                assert!(!self.fin, "FIN twice");
                self.fin = true;
                return;
            }
            Some(Transmit::Bytes(batch)) => {
                let mut bytes = Vec::new();
                for piece in batch.pieces() {
                    match piece {
                        Piece::Bytes(own) => bytes.extend_from_slice(own),
                        Piece::Memory { memory, range } => bytes.extend_from_slice(&memory[range]),
                    }
                }
                assert_eq!(bytes.len() as u64, batch.len());
                bytes.truncate(room);
                bytes
            }
        };
        assert!(!self.fin, "bytes behind FIN");
        let secret = |window: &[u8]| window == SECRET;
        let from = self.sent.len().saturating_sub(SECRET.len());
        self.sent.extend_from_slice(&taken);
        assert!(!self.sent[from..].windows(SECRET.len()).any(secret), "a secret is sent");
        self.stream.handle_sent(&mut self.host, taken.len(), self.now);
        if self.stream.is_loopback() && !self.eof {
            self.unread.extend_from_slice(&taken);
        }
    }

    fn events(&mut self, input: &mut Input<'_>) {
        while let Some(event) = self.stream.poll_event() {
            assert!(!self.ended && !self.failed, "{event:?} behind the end");
            match event {
                Event::Requested(_) => match input.u8() {
                    0..=229 => drop(self.stream.accept(self.config.clone(), b"", self.now)),
                    230..=244 => {
                        self.rejected = self.stream.reject(b"no", self.now).unwrap_or(false);
                    }
                    _ => {}
                },
                Event::Established(_) => {
                    assert!(!std::mem::replace(&mut self.established, true), "established twice");
                }
                Event::Failed(_) => {
                    assert!(!self.established);
                    self.failed = true;
                }
                Event::Reconnect => {
                    self.stream.reconnected();
                    self.sent.clear();
                    self.unread.clear();
                    self.eof = false;
                    self.stream.handle_connected(self.now);
                }
                Event::Ended(_) => {
                    self.ended = true;
                    self.host.over = true;
                }
                Event::Peer(_) | Event::Drained => {}
            }
        }
    }

    /// Ends the run: the transport is lost, and all deadlines pass.
    fn finish(&mut self, input: &mut Input<'_>) {
        self.transmit(usize::MAX);
        self.events(input);
        self.stream.handle_lost(&mut self.host, self.now);
        self.events(input);
        assert!(self.stream.is_over(), "a stream without transport is over");
        assert!(self.ended || self.failed || self.rejected, "nothing is reported");
        assert!(
            !self.established || self.ended,
            "the end of an established stream is not reported"
        );
        self.now = self.now.after(Duration::from_secs(100));
        self.stream.handle_timeout(&mut self.host, self.now);
        assert!(
            self.stream.poll_transmit(&mut self.host, self.now).is_none() || self.stream.is_reset()
        );
        self.events(input);
        self.host.assert_guards();
        if !self.ended && self.host.built > 0 {
            self.host.assert_all_completed();
        }
    }
}

fn remote(input: &mut Input<'_>) -> Remote {
    let (stag, to) = place(input);
    Remote { stag, to }
}

/// Returns a place in the peer's memory, which is usually valid.
fn place(input: &mut Input<'_>) -> (STag, u64) {
    let stag = if input.u8() < 230 { MEMORY } else { STag(input.u32()) };
    let to = match input.u8() {
        0..=199 => input.below(LEN) as u64 & !7,
        200..=229 => input.u16().into(),
        _ => input.u64(),
    };
    (stag, to)
}

fn op(input: &mut Input<'_>) -> Op {
    match input.below(11) {
        0 => Op::Write { remote: remote(input) },
        1 => Op::WriteImm { remote: remote(input), imm: 7 },
        2 => Op::AtomicWrite { remote: remote(input) },
        3 => Op::SendInvalidate { stag: STag(input.u32()) },
        4 => Op::SendImm { imm: 9 },
        5 | 6 => Op::Read { remote: remote(input), invalidate: input.bool().then_some(STag(4)) },
        7 => Op::FetchAdd { remote: remote(input), add: 1, mask: 0 },
        8 => Op::CmpSwap {
            remote: remote(input),
            compare: 1,
            compare_mask: u64::MAX,
            swap: 2,
            swap_mask: u64::MAX,
        },
        9 => Op::Local,
        _ => Op::Send,
    }
}

impl PeerState {
    fn open(&mut self, negotiated: Negotiated) {
        self.fpdu = FpduTx::new(negotiated.crc, negotiated.markers_tx);
        self.negotiated = Some(negotiated);
    }

    /// Creates the next FPDU, which is usually valid.
    fn fpdu(&mut self, sink: STag, input: &mut Input<'_>) -> Vec<u8> {
        let last = input.u8() < 220;
        let len = input.pick(&[20, 0, 1, 4, 8, 400, 1400]);
        let mut payload = vec![0x70; len];
        let tagged =
            |opcode, (stag, to)| Header::Tagged(uiw_rdmap::tagged_header(opcode, stag, to, last));
        let header = match input.below(10) {
            0 | 1 => tagged(Opcode::Write, place(input)),
            2 => {
                let (_, to) = place(input);
                let to = if input.bool() {
                    to
                } else {
                    u64::from(input.u8()) << 32 | u64::from(input.u8())
                };
                tagged(Opcode::ReadResponse, (sink, to))
            }
            3 | 4 => {
                let (source_stag, source_to) = place(input);
                let len = input.pick(&[0, 4, 1000, 30_000, u32::MAX]);
                let sink_stag = STag(1);
                let request = ReadRequest { sink_stag, sink_to: 0, len, source_stag, source_to };
                payload = request.emit().to_vec();
                self.untagged(Opcode::ReadRequest, true, input)
            }
            5 => {
                let (stag, to) = place(input);
                let request = AtomicRequest::fetch_add(1, stag, to, input.u64(), 0);
                payload = request.emit().to_vec();
                self.untagged(Opcode::AtomicRequest, true, input)
            }
            6 => {
                payload = AtomicResponse { request_id: u32::from(input.u8()), original: 1 }
                    .emit()
                    .to_vec();
                self.untagged(Opcode::AtomicResponse, true, input)
            }
            7 => {
                let opcode = input.pick(&[
                    Opcode::SendInvalidate,
                    Opcode::SendSe,
                    Opcode::Immediate,
                    Opcode::Terminate,
                    Opcode::SendImm,
                ]);
                self.untagged(opcode, last, input)
            }
            _ => self.untagged(Opcode::Send, last, input),
        };
        let header_len = header.len();
        let mut fpdu = vec![0; 2 + header_len];
        header.emit(&mut fpdu[2..]);
        fpdu.extend(payload);
        if input.u8() > 240 {
            let at = 2 + input.below(header_len);
            fpdu[at] ^= input.u8();
        }
        self.fpdu.seal(&mut fpdu, 0);
        if input.u8() > 250 {
            let at = input.below(fpdu.len());
            fpdu[at] ^= input.u8();
        }
        fpdu
    }

    fn untagged(&mut self, opcode: Opcode, last: bool, input: &mut Input<'_>) -> Header {
        let qn = opcode.queue().unwrap_or(0);
        let msn = &mut self.msn[qn as usize];
        let now = *msn;
        if last {
            *msn = msn.wrapping_add(1);
        }
        let mo = if input.u8() < 240 { 0 } else { input.u32() };
        Header::Untagged(uiw_rdmap::untagged_header(opcode, qn, now, mo, last, input.u8().into()))
    }
}
