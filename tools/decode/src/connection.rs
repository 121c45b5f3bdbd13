//! One iWARP connection: startup frames, then both directions of Full Operation.

use uiw_mpa::MAX_ULPDU;
use uiw_mpa::wire::startup::{Frame, FrameKind};
use uiw_rdmap::Opcode;

use super::event::{Crc, Event, Fpdu, Negotiated};
use super::framing::{CapturedFpdu, Framing, FramingItem};
use super::message::Tracker;
use super::reassembly::Chunk;
use super::requests::OutstandingRequests;
use super::segment::{self, Parsed};
use super::startup::{self, Agreement};

/// One of the two ends, 0 or 1. Also denotes the direction in which this end sends.
pub(super) type Side = usize;

pub(super) const fn opposite(side: Side) -> Side {
    1 - side
}

/// Maximum number of bytes kept for a direction while the startup frame of the peer is awaited.
const MAX_WAITING: usize = 1 << 20;

/// Number of bytes before a tagged payload in a ULPDU (RFC 5041 section 4.2).
const TAGGED_LEN: usize = 14;
/// Number of bytes before an untagged payload in a ULPDU (RFC 5041 section 4.3).
const UNTAGGED_LEN: usize = 18;

/// Findings with their directions.
pub(super) type Findings = Vec<(Side, Event)>;

/// A connection from its first startup frame on.
#[derive(Debug)]
pub(super) struct Connection {
    frames: [Option<Frame>; 2],
    initiator: Option<Side>,
    agreement: Option<Agreement>,
    directions: [DirectionState; 2],
    /// True if bytes of either direction are not in the capture. Rules that need both directions
    /// from their beginning are then not applied.
    lossy: bool,
}

/// State of one direction of a connection.
#[derive(Debug)]
struct DirectionState {
    phase: ConnectionPhase,
    /// Number of bytes since the beginning of the startup frame, including missing ones.
    position: u64,
    fpdus: u64,
    tracker: Tracker,
    /// Outstanding requests of the sender of this direction.
    asked: OutstandingRequests,
}

#[derive(Debug)]
enum ConnectionPhase {
    /// Bytes of a startup frame.
    Startup(Vec<u8>),
    /// The startup frame was read, or is incomplete in the capture. The following bytes wait for
    /// the frame of the peer, which determines how to read them.
    Waiting(WaitingBytes),
    Full(Framing),
    /// Nothing more of the direction can be decoded, which was reported.
    Ended,
}

/// Bytes after a startup frame, which wait until it is known how to read them.
#[derive(Debug, Default)]
struct WaitingBytes {
    chunks: Vec<Chunk>,
    bytes: usize,
    /// True if the end of the frame, which is the start of Full Operation, is not in the capture.
    headless: bool,
}

impl WaitingBytes {
    fn add(&mut self, chunk: Chunk) {
        match (&chunk, self.chunks.last_mut()) {
            // Only captured bytes count towards `MAX_WAITING`.
            (Chunk::Missing(more), Some(Chunk::Missing(bytes))) => {
                *bytes += more;
                return;
            }
            (Chunk::Missing(_), _) => {}
            (Chunk::Bytes(bytes), _) => self.bytes += bytes.len(),
        }
        self.chunks.push(chunk);
    }
}

impl Connection {
    pub(super) fn new() -> Self {
        let direction = || DirectionState {
            phase: ConnectionPhase::Startup(Vec::new()),
            position: 0,
            fpdus: 0,
            tracker: Tracker::new(),
            asked: OutstandingRequests::default(),
        };
        Self {
            frames: [None, None],
            initiator: None,
            agreement: None,
            directions: [direction(), direction()],
            lossy: false,
        }
    }

    /// Creates a connection whose startup frames are not in the capture, and which was recognised
    /// by an FPDU with its CRC. Assumes that there are no Markers. The initiator is unknown.
    pub(super) fn without_startup(out: &mut Findings) -> Self {
        let mut this = Self { lossy: true, ..Self::new() };
        for (side, direction) in this.directions.iter_mut().enumerate() {
            direction.asked.uncertain = true;
            direction.phase = ConnectionPhase::Full(Framing::without_startup(Some(true)));
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

    /// Returns whether the startup frame of this side was read.
    pub(super) fn has_frame(&self, side: Side) -> bool {
        self.frames[side].is_some()
    }

    /// Takes the next piece of a direction's stream. The first one begins with the startup frame.
    pub(super) fn feed(&mut self, side: Side, chunk: Chunk, out: &mut Findings) {
        let direction = &mut self.directions[side];
        let position = direction.position;
        match chunk {
            Chunk::Bytes(bytes) => {
                direction.position += bytes.len() as u64;
                match &mut direction.phase {
                    ConnectionPhase::Startup(buffer) => {
                        buffer.extend(bytes);
                        self.read_startup(side, out);
                    }
                    ConnectionPhase::Waiting(waiting)
                        if waiting.bytes + bytes.len() <= MAX_WAITING =>
                    {
                        waiting.add(Chunk::Bytes(bytes));
                    }
                    ConnectionPhase::Waiting(_) => {
                        self.stop_following(
                            side,
                            "the peer's startup frame is not in the capture",
                            out,
                        );
                    }
                    ConnectionPhase::Full(framing) => {
                        framing.push(&bytes);
                        self.decode_fpdus(side, out);
                    }
                    ConnectionPhase::Ended => {}
                }
            }
            Chunk::Missing(bytes) => {
                direction.position += bytes;
                self.lossy = true;
                if !matches!(direction.phase, ConnectionPhase::Ended) {
                    out.push((side, Event::Missing { position, bytes }));
                }
                self.on_missing(side, bytes, out);
            }
        }
    }

    /// Ends a direction. `how` is the reason: FIN, RST or the end of the capture.
    pub(super) fn close(&mut self, side: Side, how: &str, out: &mut Findings) {
        let direction = &self.directions[side];
        let what = match &direction.phase {
            ConnectionPhase::Startup(buffer) if !buffer.is_empty() => {
                Some(format!("{how} after {} bytes of a startup frame", buffer.len()))
            }
            ConnectionPhase::Waiting(waiting) if waiting.bytes > 0 => {
                let why = format!("the peer's startup frame is not in the capture ({how})");
                self.stop_following(side, &why, out);
                return;
            }
            ConnectionPhase::Full(framing) if framing.is_seeking() => {
                let why = format!("no FPDU behind the missing bytes can be recognised ({how})");
                self.stop_following(side, &why, out);
                return;
            }
            ConnectionPhase::Full(framing) if framing.pending() > 0 => {
                Some(format!("{how} after {} bytes of an FPDU", framing.pending()))
            }
            ConnectionPhase::Full(_) => {
                direction.tracker.unfinished().map(|message| format!("{how}: {message}"))
            }
            _ => None,
        };
        if let Some(what) = what {
            out.push((side, Event::Closed { what }));
        }
    }

    /// Ends a direction of which nothing more can be decoded.
    pub(super) fn stop_following(&mut self, side: Side, why: &str, out: &mut Findings) {
        let direction = &mut self.directions[side];
        let pending = match &direction.phase {
            ConnectionPhase::Startup(buffer) => buffer.len() as u64,
            ConnectionPhase::Waiting(waiting) => waiting.bytes as u64,
            ConnectionPhase::Full(framing) => framing.pending() as u64,
            ConnectionPhase::Ended => return,
        };
        let position = direction.position.saturating_sub(pending);
        direction.phase = ConnectionPhase::Ended;
        out.push((side, Event::NotFollowed { position, why: why.into() }));
    }

    fn on_missing(&mut self, side: Side, bytes: u64, out: &mut Findings) {
        let direction = &mut self.directions[side];
        match &mut direction.phase {
            ConnectionPhase::Startup(_) => {
                let mut waiting = WaitingBytes { headless: true, ..WaitingBytes::default() };
                waiting.add(Chunk::Missing(bytes));
                direction.phase = ConnectionPhase::Waiting(waiting);
                self.agree(out);
            }
            ConnectionPhase::Waiting(waiting) => waiting.add(Chunk::Missing(bytes)),
            ConnectionPhase::Full(framing) => {
                let next = framing.push_lost(bytes);
                // The missing bytes may contain responses to outstanding requests.
                self.directions.iter_mut().for_each(|direction| direction.asked.uncertain = true);
                self.handle_item(side, next, out);
                self.decode_fpdus(side, out);
            }
            ConnectionPhase::Ended => {}
        }
    }

    /// Reads the startup frame of a direction once it is complete.
    fn read_startup(&mut self, side: Side, out: &mut Findings) {
        let ConnectionPhase::Startup(buffer) = &mut self.directions[side].phase else { return };
        let (frame, length) = match Frame::parse(buffer) {
            Ok(Some(found)) => found,
            Ok(None) => return,
            Err(error) => {
                self.stop_following(side, &error.to_string(), out);
                return;
            }
        };
        let rest = buffer.split_off(length);
        let mut waiting = WaitingBytes::default();
        if !rest.is_empty() {
            waiting.add(Chunk::Bytes(rest));
        }
        self.directions[side].phase = ConnectionPhase::Waiting(waiting);
        out.push((side, Event::Startup(startup::record(&frame))));
        startup::judge(&frame, |departure| out.push((side, departure)));
        let peer = opposite(side);
        let (initiator, is_second, what) = match frame.kind {
            FrameKind::Request => {
                (side, self.initiator.is_some(), "both ends sent an MPA Request: two initiators")
            }
            FrameKind::Reply => {
                let is_second = self.initiator == Some(side)
                    || self.frames[peer].as_ref().is_some_and(is_reply);
                (peer, is_second, "both ends sent an MPA Reply: two responders")
            }
        };
        if is_second {
            out.push((side, Event::departure("RFC 5044 7.1.2", what)));
            self.stop_following(side, what, out);
            self.stop_following(peer, what, out);
            return;
        }
        self.initiator = Some(initiator);
        self.frames[side] = Some(frame);
        self.agree(out);
    }

    /// Begins Full Operation if the Request is not in the capture. The Reply of `side` acknowledges
    /// everything that the peer sent before, so the peer's next bytes belong to Full Operation.
    pub(super) fn request_was_missed(&mut self, side: Side, out: &mut Findings) {
        let Some(reply) = self.frames[side].as_ref().filter(|frame| is_reply(frame)) else {
            return;
        };
        let (agreement, initiator) = (Agreement::from_one(reply), opposite(side));
        out.push((
            initiator,
            Event::NotFollowed { position: 0, why: "the MPA Request is not in the capture".into() },
        ));
        self.initiator = Some(initiator);
        self.begin_full_operation(agreement, out);
    }

    /// Determines the mode of Full Operation once both frames were read.
    fn agree(&mut self, out: &mut Findings) {
        let Some(initiator) = self.initiator else { return };
        let responder = opposite(initiator);
        let (Some(request), Some(reply)) = (&self.frames[initiator], &self.frames[responder])
        else {
            return self.agree_with_one(initiator, out);
        };
        startup::judge_pair(request, reply, |departure| out.push((responder, departure)));
        if !reply.reject && request.private_data.starts_with(startup::RAW_TCP) {
            return self.switch_to_raw_tcp(responder, out);
        }
        if reply.reject {
            // No Full Operation follows a rejection, so further bytes are not iWARP.
            for side in [initiator, responder] {
                if let ConnectionPhase::Waiting(waiting) = &self.directions[side].phase
                    && waiting.bytes > 0
                {
                    let what = format!("{} bytes around a rejecting Reply", waiting.bytes);
                    out.push((side, Event::departure("RFC 5044 7.1.2", what)));
                }
                self.directions[side].phase = ConnectionPhase::Ended;
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
        if let ConnectionPhase::Waiting(waiting) = &self.directions[initiator].phase
            && waiting.bytes > 0
            && !self.lossy
        {
            let what = format!("{} bytes from the initiator before the Reply", waiting.bytes);
            out.push((initiator, Event::departure("RFC 5044 7.1.2", what)));
        }
        let agreement = Agreement::from_frames(request, reply);
        self.directions[initiator].asked.limit = of_reply;
        self.directions[responder].asked.limit = of_request;
        self.begin_full_operation(agreement, out);
    }

    /// Ends decoding, because the initiator has asked for raw TCP.
    fn switch_to_raw_tcp(&mut self, side: Side, out: &mut Findings) {
        out.push((side, Event::RawTcp));
        for direction in &mut self.directions {
            direction.phase = ConnectionPhase::Ended;
        }
    }

    /// Determines the mode of Full Operation, as far as possible, from one frame if the other one
    /// is not in the capture.
    fn agree_with_one(&mut self, initiator: Side, out: &mut Findings) {
        let is_headless = |side: Side| matches!(&self.directions[side].phase, ConnectionPhase::Waiting(waiting) if waiting.headless);
        let responder = opposite(initiator);
        match (&self.frames[initiator], &self.frames[responder]) {
            (Some(request), None)
                if is_headless(responder) && request.private_data.starts_with(startup::RAW_TCP) =>
            {
                self.switch_to_raw_tcp(initiator, out);
            }
            (Some(request), None) if is_headless(responder) => {
                self.begin_full_operation(Agreement::from_one(request), out);
            }
            (None, Some(reply)) if is_headless(initiator) && !reply.reject => {
                self.begin_full_operation(Agreement::from_one(reply), out);
            }
            _ => {}
        }
    }

    fn begin_full_operation(&mut self, agreement: Agreement, out: &mut Findings) {
        let Some(initiator) = self.initiator else { return };
        let responder = opposite(initiator);
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
        for (side, markers) in [
            (initiator, agreement.markers_from_initiator),
            (responder, agreement.markers_from_responder),
        ] {
            let waiting =
                match std::mem::replace(&mut self.directions[side].phase, ConnectionPhase::Ended) {
                    ConnectionPhase::Waiting(waiting) => waiting,
                    ConnectionPhase::Startup(buffer) => {
                        let mut waiting = WaitingBytes::default();
                        waiting.add(Chunk::Bytes(buffer));
                        waiting
                    }
                    phase => {
                        self.directions[side].phase = phase;
                        continue;
                    }
                };
            if waiting.headless && markers {
                self.directions[side].phase = ConnectionPhase::Waiting(waiting);
                self.stop_following(
                    side,
                    "Markers cannot be found without the start-up frame in front of them",
                    out,
                );
                continue;
            }
            // One frame can show that CRCs are on, but not that they are off.
            let crc = (agreement.crc || !agreement.is_guess).then_some(agreement.crc);
            let mut framing = match waiting.headless || crc.is_none() {
                true => Framing::without_startup(crc),
                false => Framing::new(agreement.crc, markers),
            };
            framing.is_guess = agreement.is_guess;
            self.directions[side].phase = ConnectionPhase::Full(framing);
            begun.push((side, waiting.chunks));
        }
        self.agreement = Some(agreement);
        for (side, chunks) in begun {
            for chunk in chunks {
                match chunk {
                    Chunk::Bytes(bytes) => {
                        if let ConnectionPhase::Full(framing) = &mut self.directions[side].phase {
                            framing.push(&bytes);
                        }
                        self.decode_fpdus(side, out);
                    }
                    Chunk::Missing(bytes) => self.on_missing(side, bytes, out),
                }
            }
        }
    }

    /// Decodes all complete FPDUs.
    fn decode_fpdus(&mut self, side: Side, out: &mut Findings) {
        while let ConnectionPhase::Full(framing) = &mut self.directions[side].phase {
            let next = framing.next();
            if matches!(next, FramingItem::Nothing) {
                return;
            }
            self.handle_item(side, next, out);
        }
    }

    fn handle_item(&mut self, side: Side, next: FramingItem, out: &mut Findings) {
        match next {
            FramingItem::Fpdu(cut) => self.decode_fpdu(side, cut, out),
            FramingItem::Nothing => {}
            FramingItem::Lost(position) => {
                self.lose(side);
                out.push((side, Event::Lost { position }));
            }
            FramingItem::Resumed { position, skipped } => {
                self.lose(side);
                out.push((side, Event::Resumed { position, skipped }));
            }
        }
    }

    fn decode_fpdu(&mut self, side: Side, cut: CapturedFpdu, out: &mut Findings) {
        self.judge_turn(side, out);
        let mut departures = cut.departures;
        if cut.ulpdu.len() > MAX_ULPDU {
            let what = format!("a ULPDU of {} bytes, {MAX_ULPDU} are the most", cut.ulpdu.len());
            departures.push(Event::departure("RFC 5044 4.1", what));
        }
        // Bytes that are not in the capture are zero here, and must not be decoded. They were
        // reported as missing.
        let known = cut.unknown.as_ref().map_or(cut.ulpdu.len(), |unknown| unknown.start);
        let complete = known == cut.ulpdu.len();
        let is_tagged = cut.ulpdu.first().is_some_and(|first| first & 0x80 != 0);
        let header_len = if is_tagged { TAGGED_LEN } else { UNTAGGED_LEN };
        let parsed = if complete || known >= header_len {
            segment::parse(&cut.ulpdu, &mut departures).map(Some)
        } else {
            Ok(None)
        };
        let record = Fpdu {
            position: cut.position,
            ulpdu_length: u16::try_from(cut.ulpdu.len()).unwrap_or(u16::MAX),
            markers: cut.markers,
            crc: cut.crc,
            crc_field: cut.crc_field,
            segment: parsed.as_ref().ok().and_then(Option::as_ref).map(Parsed::record),
        };
        out.push((side, Event::Fpdu(record)));
        out.extend(departures.into_iter().map(|departure| (side, departure)));
        match parsed {
            Ok(Some(parsed))
                if (cut.crc != Crc::Bad || is_siws_refusal(&cut.ulpdu, &parsed, cut.crc_field))
                    && (complete || !parsed.has_own_header()) =>
            {
                self.judge_rtr(side, &parsed, out);
                self.track_segment(side, &parsed, out);
            }
            Ok(_) => self.lose(side),
            Err(departure) => {
                out.push((side, departure));
                self.lose(side);
            }
        }
        self.directions[side].fpdus += 1;
    }

    fn track_segment(&mut self, side: Side, parsed: &Parsed<'_>, out: &mut Findings) {
        let mut events = Vec::new();
        let (direction, peer) = self.direction_and_peer(side);
        direction.tracker.segment(parsed, &mut direction.asked, &mut peer.asked, &mut events);
        out.extend(events.into_iter().map(|event| (side, event)));
    }

    fn lose(&mut self, side: Side) {
        let (direction, peer) = self.direction_and_peer(side);
        direction.tracker.lose(&mut direction.asked, &mut peer.asked);
    }

    fn direction_and_peer(&mut self, side: Side) -> (&mut DirectionState, &mut DirectionState) {
        let [zero, one] = &mut self.directions;
        if side == 0 { (zero, one) } else { (one, zero) }
    }

    /// Checks that the responder has received an FPDU before it sends one.
    fn judge_turn(&self, side: Side, out: &mut Findings) {
        let Some(initiator) = self.initiator else { return };
        let first = self.directions[side].fpdus == 0;
        let silent = self.directions[initiator].fpdus == 0
            && matches!(self.directions[initiator].phase, ConnectionPhase::Full(_));
        if side != initiator && first && silent && !self.lossy {
            let what = "the responder's first FPDU comes before the initiator's first one";
            out.push((side, Event::departure("RFC 5044 7.1.2", what)));
        }
    }

    /// Checks that in the peer-to-peer model the initiator's first FPDU is a zero-length message of
    /// an agreed kind.
    fn judge_rtr(&self, side: Side, parsed: &Parsed<'_>, out: &mut Findings) {
        let Some(agreement) = &self.agreement else { return };
        let first = self.directions[side].fpdus == 0 && !self.lossy;
        if self.initiator != Some(side) || !first || !agreement.peer_to_peer {
            return;
        }
        let opcode = Opcode::from_raw(parsed.opcode);
        if opcode == Some(Opcode::Terminate) {
            return;
        }
        let sent = opcode.filter(|_| parsed.is_zero_length()).and_then(startup::Rtr::from_opcode);
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

/// Returns whether this is a Terminate with which siw refuses a Reply (2/0/6, 2/0/7). Its CRC field
/// is 0 although CRCs are on. It is decoded nevertheless, because it contains the reason.
fn is_siws_refusal(ulpdu: &[u8], parsed: &Parsed<'_>, crc_field: u32) -> bool {
    let refusal = |control: &[u8]| matches!(control, [0x20 | 0x02, 6 | 7, ..]);
    crc_field == 0
        && parsed.opcode == Opcode::Terminate.raw()
        && refusal(&ulpdu[parsed.header.len()..])
}

fn is_reply(frame: &Frame) -> bool {
    frame.kind == FrameKind::Reply
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A capture can lack any number of bytes behind a startup frame.
    #[test]
    fn waiting_missing_bytes_merged() {
        let mut waiting = WaitingBytes::default();
        for chunk in
            [Chunk::Missing(1), Chunk::Missing(2), Chunk::Bytes(vec![0]), Chunk::Missing(3)]
        {
            waiting.add(chunk);
        }
        assert_eq!(waiting.chunks, [Chunk::Missing(3), Chunk::Bytes(vec![0]), Chunk::Missing(3)]);
    }
}
