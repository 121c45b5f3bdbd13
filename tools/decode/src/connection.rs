//! One iWARP connection: startup frames, then both directions of Full Operation.

use uiw_mpa::MAX_ULPDU;
use uiw_mpa::wire::startup::{Frame, FrameKind};
use uiw_rdmap::Opcode;

use super::event::{Crc, Event, Fpdu, Negotiated};
use super::framing::{CapturedFpdu, Framing, NextItem};
use super::message::Tracker;
use super::reassembly::Chunk;
use super::requests::Outstanding;
use super::segment::{self, Parsed};
use super::startup::{self, Agreement};

/// One of the two ends, 0 or 1. Also the direction that this end sends in.
pub(super) type Side = usize;

pub(super) const fn other(side: Side) -> Side {
    1 - side
}

/// Bytes kept of a direction whose peer's startup frame has not come yet.
const MAX_WAITING: usize = 1 << 20;

/// Findings with their directions.
pub(super) type Findings = Vec<(Side, Event)>;

/// A connection from its first startup frame on.
#[derive(Debug)]
pub(super) struct Connection {
    frames: [Option<Frame>; 2],
    initiator: Option<Side>,
    agreement: Option<Agreement>,
    halves: [DirectionState; 2],
    /// Bytes of either direction are not in the capture: nothing is judged that needs both from
    /// their beginning.
    lossy: bool,
}

/// One direction.
#[derive(Debug)]
struct DirectionState {
    phase: ConnectionPhase,
    /// Bytes since the direction's startup frame began, holes included.
    position: u64,
    fpdus: u64,
    tracker: Tracker,
    /// Outstanding requests of the sender of this direction.
    asked: Outstanding,
}

#[derive(Debug)]
enum ConnectionPhase {
    /// Bytes of a startup frame.
    Startup(Vec<u8>),
    /// The frame was read, or is not whole in the capture; what follows it, until the peer's frame
    /// determines how to read it.
    Waiting(WaitingBytes),
    Full(Framing),
    /// The direction ended, because nothing more can be decoded, which was reported.
    Ended,
}

/// Bytes after a start-up frame, until it is known how to read them.
#[derive(Debug, Default)]
struct WaitingBytes {
    chunks: Vec<Chunk>,
    bytes: usize,
    /// True if the end of the frame, and so the start of Full Operation, is not in the capture.
    headless: bool,
}

impl WaitingBytes {
    fn add(&mut self, chunk: Chunk) {
        if let Chunk::Bytes(bytes) = &chunk {
            self.bytes += bytes.len();
        }
        self.chunks.push(chunk);
    }
}

impl Connection {
    pub(super) fn new() -> Self {
        let half = || DirectionState {
            phase: ConnectionPhase::Startup(Vec::new()),
            position: 0,
            fpdus: 0,
            tracker: Tracker::new(),
            asked: Outstanding::default(),
        };
        Self {
            frames: [None, None],
            initiator: None,
            agreement: None,
            halves: [half(), half()],
            lossy: false,
        }
    }

    /// A connection whose start-up frames are not in the capture: an FPDU with its CRC shows what
    /// it is. There are no Markers, and which end is the initiator is unknown.
    pub(super) fn without_startup(out: &mut Findings) -> Self {
        let mut this = Self { lossy: true, ..Self::new() };
        for (side, half) in this.halves.iter_mut().enumerate() {
            half.asked.uncertain = true;
            half.phase = ConnectionPhase::Full(Framing::headless(Some(true)));
            out.push((
                side,
                Event::NotFollowed {
                    position: 0,
                    why: "the MPA Request and Reply are not in the capture".into(),
                },
            ));
        }
        this
    }

    /// Returns whether the frame that this side opened with was seen whole.
    pub(super) fn has_frame(&self, side: Side) -> bool {
        self.frames[side].is_some()
    }

    /// The next piece of a direction's stream. The first one begins with the direction's startup
    /// frame.
    pub(super) fn feed(&mut self, side: Side, chunk: Chunk, out: &mut Findings) {
        let half = &mut self.halves[side];
        let position = half.position;
        match chunk {
            Chunk::Bytes(bytes) => {
                half.position += bytes.len() as u64;
                match &mut half.phase {
                    ConnectionPhase::Startup(buffer) => {
                        buffer.extend(bytes);
                        self.startup(side, out);
                    }
                    ConnectionPhase::Waiting(waiting) if waiting.bytes + bytes.len() <= MAX_WAITING => {
                        waiting.add(Chunk::Bytes(bytes));
                    }
                    ConnectionPhase::Waiting(_) => {
                        self.end(side, "the peer's startup frame is not in the capture", out);
                    }
                    ConnectionPhase::Full(framing) => {
                        framing.push(&bytes);
                        self.fpdus(side, out);
                    }
                    ConnectionPhase::Ended => {}
                }
            }
            Chunk::Missing(bytes) => {
                half.position += bytes;
                self.lossy = true;
                if !matches!(half.phase, ConnectionPhase::Ended) {
                    out.push((side, Event::Missing { position, bytes }));
                }
                self.missing(side, bytes, out);
            }
        }
    }

    /// The end of a direction, by FIN, RST or the end of the capture: `how` says which.
    pub(super) fn close(&mut self, side: Side, how: &str, out: &mut Findings) {
        let half = &self.halves[side];
        let what = match &half.phase {
            ConnectionPhase::Startup(buffer) if !buffer.is_empty() => {
                Some(format!("{how} after {} bytes of a startup frame", buffer.len()))
            }
            ConnectionPhase::Waiting(waiting) if waiting.bytes > 0 => {
                let why = format!("the peer's startup frame is not in the capture ({how})");
                self.end(side, &why, out);
                return;
            }
            ConnectionPhase::Full(framing) if framing.is_seeking() => {
                let why = format!("no FPDU behind the missing bytes can be recognised ({how})");
                self.end(side, &why, out);
                return;
            }
            ConnectionPhase::Full(framing) if framing.pending() > 0 => {
                Some(format!("{how} after {} bytes of an FPDU", framing.pending()))
            }
            ConnectionPhase::Full(_) => half.tracker.unfinished().map(|message| format!("{how}: {message}")),
            _ => None,
        };
        if let Some(what) = what {
            out.push((side, Event::Closed { what }));
        }
    }

    /// Ends the direction: nothing more of it can be decoded.
    pub(super) fn end(&mut self, side: Side, why: &str, out: &mut Findings) {
        let half = &mut self.halves[side];
        let pending = match &half.phase {
            ConnectionPhase::Startup(buffer) => buffer.len() as u64,
            ConnectionPhase::Waiting(waiting) => waiting.bytes as u64,
            ConnectionPhase::Full(framing) => framing.pending() as u64,
            ConnectionPhase::Ended => return,
        };
        let position = half.position.saturating_sub(pending);
        half.phase = ConnectionPhase::Ended;
        out.push((side, Event::NotFollowed { position, why: why.into() }));
    }

    fn missing(&mut self, side: Side, bytes: u64, out: &mut Findings) {
        let half = &mut self.halves[side];
        match &mut half.phase {
            ConnectionPhase::Startup(_) => {
                let mut waiting = WaitingBytes { headless: true, ..WaitingBytes::default() };
                waiting.add(Chunk::Missing(bytes));
                half.phase = ConnectionPhase::Waiting(waiting);
                self.agree(out);
            }
            ConnectionPhase::Waiting(waiting) => waiting.add(Chunk::Missing(bytes)),
            ConnectionPhase::Full(framing) => {
                let next = framing.push_lost(bytes);
                // What was outstanding may have been answered in the hole.
                self.halves.iter_mut().for_each(|half| half.asked.uncertain = true);
                self.next(side, next, out);
                self.fpdus(side, out);
            }
            ConnectionPhase::Ended => {}
        }
    }

    /// Reads the direction's startup frame when it is whole.
    fn startup(&mut self, side: Side, out: &mut Findings) {
        let ConnectionPhase::Startup(buffer) = &mut self.halves[side].phase else { return };
        let (frame, length) = match Frame::parse(buffer) {
            Ok(Some(found)) => found,
            Ok(None) => return,
            Err(error) => {
                self.end(side, &error.to_string(), out);
                return;
            }
        };
        let rest = buffer.split_off(length);
        let mut waiting = WaitingBytes::default();
        if !rest.is_empty() {
            waiting.add(Chunk::Bytes(rest));
        }
        self.halves[side].phase = ConnectionPhase::Waiting(waiting);
        out.push((side, Event::Startup(startup::record(&frame))));
        startup::judge(&frame, |departure| out.push((side, departure)));
        match frame.kind {
            FrameKind::Request => self.request(side, frame, out),
            FrameKind::Reply => self.reply(side, frame, out),
        }
    }

    fn request(&mut self, side: Side, frame: Frame, out: &mut Findings) {
        if self.initiator.is_some() {
            let what = "both ends sent an MPA Request: two initiators";
            out.push((side, Event::departure("RFC 5044 7.1.2", what)));
            self.end(side, what, out);
            self.end(other(side), what, out);
            return;
        }
        self.initiator = Some(side);
        self.frames[side] = Some(frame);
        self.agree(out);
    }

    fn reply(&mut self, side: Side, frame: Frame, out: &mut Findings) {
        if self.initiator == Some(side) || self.frames[other(side)].as_ref().is_some_and(is_reply) {
            let what = "both ends sent an MPA Reply: two responders";
            out.push((side, Event::departure("RFC 5044 7.1.2", what)));
            self.end(side, what, out);
            self.end(other(side), what, out);
            return;
        }
        self.initiator = Some(other(side));
        self.frames[side] = Some(frame);
        self.agree(out);
    }

    /// The Reply of `side` came mid-stream and acknowledges all that its peer sent before: what the
    /// peer sends next is Full Operation, though its Request is not in the capture.
    pub(super) fn request_was_missed(&mut self, side: Side, out: &mut Findings) {
        let Some(reply) = self.frames[side].as_ref().filter(|frame| is_reply(frame)) else { return };
        let (agreement, initiator) = (Agreement::without_request(reply), other(side));
        out.push((
            initiator,
            Event::NotFollowed { position: 0, why: "the MPA Request is not in the capture".into() },
        ));
        self.initiator = Some(initiator);
        self.begin(agreement, out);
    }

    /// Determines the mode of Full Operation once both frames are there.
    fn agree(&mut self, out: &mut Findings) {
        let Some(initiator) = self.initiator else { return };
        let responder = other(initiator);
        let (Some(request), Some(reply)) = (&self.frames[initiator], &self.frames[responder]) else {
            return self.agree_with_one(initiator, out);
        };
        startup::judge_pair(request, reply, |departure| out.push((responder, departure)));
        if !reply.reject && request.private_data.starts_with(startup::RAW_TCP) {
            return self.raw_tcp(responder, out);
        }
        if reply.reject {
            // No Full Operation follows; whatever does is not iWARP.
            for side in [initiator, responder] {
                if let ConnectionPhase::Waiting(waiting) = &self.halves[side].phase
                    && waiting.bytes > 0
                {
                    let what = format!("{} bytes around a rejecting Reply", waiting.bytes);
                    out.push((side, Event::departure("RFC 5044 7.1.2", what)));
                }
                self.halves[side].phase = ConnectionPhase::Ended;
            }
            return;
        }
        let limit = |frame: &Frame| {
            frame
                .enhanced
                .map(|enhanced| enhanced.ird)
                .filter(|ird| *ird != uiw_mpa::wire::startup::NOT_NEGOTIATED)
        };
        let (of_request, of_reply) = (limit(request), limit(reply));
        if let ConnectionPhase::Waiting(waiting) = &self.halves[initiator].phase
            && waiting.bytes > 0
            && !self.lossy
        {
            let what = format!("{} bytes from the initiator before the Reply", waiting.bytes);
            out.push((initiator, Event::departure("RFC 5044 7.1.2", what)));
        }
        let agreement = Agreement::of(request, reply);
        self.halves[initiator].asked.limit = of_reply;
        self.halves[responder].asked.limit = of_request;
        self.begin(agreement, out);
    }

    /// Ends decoding, because no iWARP follows: the initiator has asked for raw TCP.
    fn raw_tcp(&mut self, side: Side, out: &mut Findings) {
        out.push((side, Event::RawTcp));
        for half in &mut self.halves {
            half.phase = ConnectionPhase::Ended;
        }
    }

    /// One frame is not in the capture: the other one says how Full Operation runs, as far as it
    /// does.
    fn agree_with_one(&mut self, initiator: Side, out: &mut Findings) {
        let is_headless = |side: Side| matches!(&self.halves[side].phase, ConnectionPhase::Waiting(waiting) if waiting.headless);
        let responder = other(initiator);
        match (&self.frames[initiator], &self.frames[responder]) {
            (Some(request), None)
                if is_headless(responder) && request.private_data.starts_with(startup::RAW_TCP) =>
            {
                self.raw_tcp(initiator, out);
            }
            (Some(request), None) if is_headless(responder) => {
                self.begin(Agreement::without_reply(request), out);
            }
            (None, Some(reply)) if is_headless(initiator) && !reply.reject => {
                self.begin(Agreement::without_request(reply), out);
            }
            _ => {}
        }
    }

    fn begin(&mut self, agreement: Agreement, out: &mut Findings) {
        let Some(initiator) = self.initiator else { return };
        let responder = other(initiator);
        out.push((
            responder,
            Event::Negotiated(Negotiated {
                crc: agreement.crc,
                markers_from_initiator: agreement.markers_from_initiator,
                markers_from_responder: agreement.markers_from_responder,
                rtr: agreement.rtr.iter().map(|rtr| rtr.name()).collect(),
            }),
        ));
        let mut begun = Vec::new();
        for (side, markers) in
            [(initiator, agreement.markers_from_initiator), (responder, agreement.markers_from_responder)]
        {
            let waiting = match std::mem::replace(&mut self.halves[side].phase, ConnectionPhase::Ended) {
                ConnectionPhase::Waiting(waiting) => waiting,
                ConnectionPhase::Startup(buffer) => {
                    let mut waiting = WaitingBytes::default();
                    waiting.add(Chunk::Bytes(buffer));
                    waiting
                }
                phase => {
                    self.halves[side].phase = phase;
                    continue;
                }
            };
            if waiting.headless && markers {
                self.halves[side].phase = ConnectionPhase::Waiting(waiting);
                self.end(side, "Markers cannot be found without the start-up frame in front of them", out);
                continue;
            }
            // One frame alone can say only that CRCs are on.
            let crc = (agreement.crc || !agreement.is_guess).then_some(agreement.crc);
            let mut framing = match waiting.headless || crc.is_none() {
                true => Framing::headless(crc),
                false => Framing::new(agreement.crc, markers),
            };
            framing.is_guess = agreement.is_guess;
            self.halves[side].phase = ConnectionPhase::Full(framing);
            begun.push((side, waiting.chunks));
        }
        self.agreement = Some(agreement);
        for (side, chunks) in begun {
            for chunk in chunks {
                match chunk {
                    Chunk::Bytes(bytes) => {
                        if let ConnectionPhase::Full(framing) = &mut self.halves[side].phase {
                            framing.push(&bytes);
                        }
                        self.fpdus(side, out);
                    }
                    Chunk::Missing(bytes) => self.missing(side, bytes, out),
                }
            }
        }
    }

    /// Decodes all complete FPDUs.
    fn fpdus(&mut self, side: Side, out: &mut Findings) {
        while let ConnectionPhase::Full(framing) = &mut self.halves[side].phase {
            let next = framing.next();
            if matches!(next, NextItem::Nothing) {
                return;
            }
            self.next(side, next, out);
        }
    }

    fn next(&mut self, side: Side, next: NextItem, out: &mut Findings) {
        match next {
            NextItem::Fpdu(cut) => self.fpdu(side, cut, out),
            NextItem::Nothing => {}
            NextItem::Lost(position) => {
                self.lose(side);
                out.push((side, Event::Lost { position }));
            }
            NextItem::Resumed { position, skipped } => {
                self.lose(side);
                out.push((side, Event::Resumed { position, skipped }));
            }
        }
    }

    fn fpdu(&mut self, side: Side, cut: CapturedFpdu, out: &mut Findings) {
        self.judge_turn(side, out);
        let mut departures = cut.departures;
        if cut.ulpdu.len() > MAX_ULPDU {
            let what = format!("a ULPDU of {} bytes, {MAX_ULPDU} are the most", cut.ulpdu.len());
            departures.push(Event::departure("RFC 5044 4.1", what));
        }
        // What the capture lacks is zero here: it must not be taken for what was sent.
        let known = cut.unknown.as_ref().map_or(cut.ulpdu.len(), |unknown| unknown.start);
        let headers = cut.ulpdu.get(..known).unwrap_or_default();
        let complete = known == cut.ulpdu.len();
        let parsed = match segment::parse(&cut.ulpdu, &mut Vec::new()) {
            Ok(parsed) if headers.len() >= parsed.header.len() => segment::parse(&cut.ulpdu, &mut departures),
            Ok(_) => Err(Event::departure("capture", "the DDP header of this FPDU is not in the capture")),
            Err(departure) => Err(departure),
        };
        let record = Fpdu {
            position: cut.position,
            ulpdu_length: u16::try_from(cut.ulpdu.len()).unwrap_or(u16::MAX),
            markers: cut.markers,
            crc: cut.crc,
            crc_field: cut.crc_field,
            segment: parsed.as_ref().ok().map(Parsed::record),
        };
        out.push((side, Event::Fpdu(record)));
        out.extend(departures.into_iter().map(|departure| (side, departure)));
        match parsed {
            Ok(parsed)
                if (cut.crc != Crc::Bad || is_siws_refusal(&cut.ulpdu, &parsed, cut.crc_field))
                    && (complete || !parsed.has_own_header()) =>
            {
                self.judge_rtr(side, &parsed, out);
                self.message(side, &parsed, out);
            }
            Ok(_) => self.lose(side),
            Err(departure) => {
                out.push((side, departure));
                self.lose(side);
            }
        }
        self.halves[side].fpdus += 1;
    }

    fn message(&mut self, side: Side, parsed: &Parsed<'_>, out: &mut Findings) {
        let mut events = Vec::new();
        let (half, peer) = self.both(side);
        half.tracker.segment(parsed, &mut half.asked, &mut peer.asked, &mut events);
        out.extend(events.into_iter().map(|event| (side, event)));
    }

    fn lose(&mut self, side: Side) {
        let (half, peer) = self.both(side);
        half.tracker.lose(&mut half.asked, &mut peer.asked);
    }

    fn both(&mut self, side: Side) -> (&mut DirectionState, &mut DirectionState) {
        let [zero, one] = &mut self.halves;
        if side == 0 { (zero, one) } else { (one, zero) }
    }

    /// The responder must have received an FPDU before it sends one.
    fn judge_turn(&self, side: Side, out: &mut Findings) {
        let Some(initiator) = self.initiator else { return };
        let first = self.halves[side].fpdus == 0;
        let silent = self.halves[initiator].fpdus == 0
            && matches!(self.halves[initiator].phase, ConnectionPhase::Full(_));
        if side != initiator && first && silent && !self.lossy {
            let what = "the responder's first FPDU comes before the initiator's first one";
            out.push((side, Event::departure("RFC 5044 7.1.2", what)));
        }
    }

    /// Checks that in the peer-to-peer model the initiator's first FPDU is a zero-length message of
    /// an agreed kind.
    fn judge_rtr(&self, side: Side, parsed: &Parsed<'_>, out: &mut Findings) {
        let Some(agreement) = &self.agreement else { return };
        let first = self.halves[side].fpdus == 0 && !self.lossy;
        if self.initiator != Some(side) || !first || !agreement.peer_to_peer {
            return;
        }
        let opcode = Opcode::from_raw(parsed.opcode);
        if opcode == Some(Opcode::Terminate) {
            return;
        }
        let sent = opcode.filter(|_| parsed.is_zero_length()).and_then(startup::Rtr::of);
        if !sent.is_some_and(|rtr| agreement.rtr.contains(&rtr)) {
            let agreed: Vec<_> = agreement.rtr.iter().map(|rtr| rtr.name()).collect();
            let what = format!(
                "the initiator's first FPDU is a {} with {} bytes; agreed as RTR: {}",
                segment::name(parsed.opcode),
                parsed.payload.len(),
                if agreed.is_empty() { "nothing".into() } else { agreed.join(", ") }
            );
            out.push((side, Event::departure("RFC 6581 9.2", what)));
        }
    }
}

/// siw's Terminate to a Reply that it cannot accept (2/0/6, 2/0/7) has 0 for its CRC where CRCs are
/// on: it is read all the same, as it has the reason.
fn is_siws_refusal(ulpdu: &[u8], parsed: &Parsed<'_>, crc_field: u32) -> bool {
    let refusal = |control: &[u8]| matches!(control, [0x20 | 0x02, 6 | 7, ..]);
    crc_field == 0 && parsed.opcode == Opcode::Terminate.raw() && refusal(&ulpdu[parsed.header.len()..])
}

fn is_reply(frame: &Frame) -> bool {
    frame.kind == FrameKind::Reply
}
