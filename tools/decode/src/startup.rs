//! MPA startup frames: their contents, their errors, and the agreement of both frames.

use uiw_mpa::wire::startup::{Enhanced, Frame, FrameKind, NOT_NEGOTIATED};
use uiw_rdmap::Opcode;

use super::event::{Event, Startup, hex_digits, quoted};

/// Bit in Res with which siw offers FPDUs larger than a TCP segment ("GSO expected").
const SIW_GSO: u8 = 0x08;
/// Latest revision of MPA (RFC 6581).
const LATEST_REVISION: u8 = 2;

/// Prefix of the private data of a Request for raw TCP, in all versions. `uiw perf --compare` makes
/// its raw TCP connections to the port of iWARP.
pub const RAW_TCP: &[u8] = b"uiw-slice/";

/// A kind of RTR indication (RFC 6581 section 9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rtr {
    Write,
    Read,
    Send,
}

impl Rtr {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Write => "zero-length RDMA Write",
            Self::Read => "zero-length RDMA Read",
            Self::Send => "zero-length Send",
        }
    }

    /// Returns the kind of RTR that a zero-length message with this OpCode is.
    pub(super) const fn from_opcode(opcode: Opcode) -> Option<Self> {
        match opcode {
            Opcode::Write => Some(Self::Write),
            Opcode::ReadRequest => Some(Self::Read),
            Opcode::Send => Some(Self::Send),
            _ => None,
        }
    }
}

/// Joint meaning of the two startup frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Agreement {
    pub(super) crc: bool,
    pub(super) markers_from_initiator: bool,
    pub(super) markers_from_responder: bool,
    pub(super) peer_to_peer: bool,
    pub(super) rtr: Vec<Rtr>,
    /// True if this is derived from one frame, because the other one is not in the capture.
    pub(super) is_guess: bool,
}

impl Agreement {
    /// Derives the agreement from both frames. C in either frame turns CRCs on; M in a frame
    /// applies to the other direction.
    pub(super) fn from_frames(request: &Frame, reply: &Frame) -> Self {
        let (asked, offered) =
            (request.enhanced.unwrap_or_default(), reply.enhanced.unwrap_or_default());
        let peer_to_peer = asked.peer_to_peer && offered.peer_to_peer;
        let mut rtr = Vec::new();
        if peer_to_peer {
            let in_both = |has: fn(&Enhanced) -> bool| has(&asked) && has(&offered);
            rtr.extend(in_both(|e| e.rtr_write).then_some(Rtr::Write));
            rtr.extend(in_both(|e| e.rtr_read).then_some(Rtr::Read));
            rtr.extend(in_both(|e| e.rtr_send).then_some(Rtr::Send));
        }
        Self {
            crc: request.crc || reply.crc,
            markers_from_initiator: reply.markers,
            markers_from_responder: request.markers,
            peer_to_peer,
            rtr,
            is_guess: false,
        }
    }

    /// Derives the agreement from one frame alone: its CRC flag, no Markers from its sender, no RTR
    /// expected.
    pub(super) fn from_one(frame: &Frame) -> Self {
        Self {
            crc: frame.crc,
            markers_from_initiator: frame.markers && frame.kind == FrameKind::Reply,
            markers_from_responder: frame.markers && frame.kind == FrameKind::Request,
            peer_to_peer: false,
            rtr: Vec::new(),
            is_guess: true,
        }
    }
}

pub(super) fn record(frame: &Frame) -> Startup {
    Startup {
        frame: match frame.kind {
            FrameKind::Request => "request",
            FrameKind::Reply => "reply",
        },
        revision: frame.revision,
        markers: frame.markers,
        crc: frame.crc,
        reject: frame.reject,
        enhanced: frame.enhanced.is_some(),
        reserved: frame.reserved,
        peer_to_peer: frame.enhanced.map(|enhanced| enhanced.peer_to_peer),
        rtr_send: frame.enhanced.map(|enhanced| enhanced.rtr_send),
        rtr_write: frame.enhanced.map(|enhanced| enhanced.rtr_write),
        rtr_read: frame.enhanced.map(|enhanced| enhanced.rtr_read),
        ird: frame.enhanced.map(|enhanced| enhanced.ird),
        ord: frame.enhanced.map(|enhanced| enhanced.ord),
        private_data_length: frame.private_data.len(),
        private_data: hex_digits(&frame.private_data),
        text: format!("{frame}{}", quoted(&frame.private_data)),
    }
}

/// Reports errors of a single frame.
pub(super) fn judge(frame: &Frame, mut report: impl FnMut(Event)) {
    let mut reserved = frame.reserved;
    if reserved & SIW_GSO != 0 && frame.revision >= LATEST_REVISION {
        reserved &= !SIW_GSO;
        report(Event::departure(
            "RFC 6581 6",
            "reserved bit 0x08 is set: siw's offer of large FPDUs",
        ));
    }
    if reserved != 0 {
        report(Event::departure(
            "RFC 5044 7.1.1",
            format!("reserved bits {reserved:#04x} are set"),
        ));
    }
    if frame.kind == FrameKind::Request && frame.reject {
        report(Event::departure("RFC 5044 7.1.1", "R is set in a Request"));
    }
    match frame.revision {
        0 => report(Event::departure("RFC 5044 7.1.1", "revision 0, the RDMA Consortium's")),
        1 | 2 => {}
        other => report(Event::departure("RFC 6581 6", format!("unknown revision {other}"))),
    }
    if let Some(enhanced) = &frame.enhanced
        && !enhanced.peer_to_peer
        && (enhanced.rtr_send || enhanced.rtr_write || enhanced.rtr_read)
    {
        report(Event::departure("RFC 6581 9.2", "an RTR kind is set without peer-to-peer (A)"));
    }
}

/// Reports errors of a Reply with respect to its Request.
pub(super) fn judge_pair(request: &Frame, reply: &Frame, mut report: impl FnMut(Event)) {
    if reply.revision != request.revision {
        let what = format!(
            "a Reply of revision {} to a Request of revision {}",
            reply.revision, request.revision
        );
        report(Event::departure("RFC 5044 7.1.1", what));
        // Older revisions have no S.
        return;
    }
    match (&request.enhanced, &reply.enhanced) {
        (Some(_), None) => {
            report(Event::departure("RFC 6581 10", "a Reply without S to a Request with S"));
        }
        (None, Some(_)) => {
            report(Event::departure("RFC 6581 10", "a Reply with S to a Request without S"));
        }
        (Some(asked), Some(offered)) if !reply.reject => judge_enhanced(asked, offered, report),
        _ => {}
    }
}

fn judge_enhanced(asked: &Enhanced, offered: &Enhanced, mut report: impl FnMut(Event)) {
    if asked.peer_to_peer != offered.peer_to_peer {
        let what = format!(
            "A is {} in the Request and {} in the Reply",
            asked.peer_to_peer, offered.peer_to_peer
        );
        report(Event::departure("RFC 6581 9.2", what));
    }
    if offered.peer_to_peer && !(offered.rtr_send || offered.rtr_write || offered.rtr_read) {
        report(Event::departure("RFC 6581 9.2", "a Reply with A and no RTR kind"));
    }
    let exceeds = |value: u16, limit: u16| {
        value != NOT_NEGOTIATED && limit != NOT_NEGOTIATED && value > limit
    };
    if exceeds(offered.ord, asked.ird) {
        let what = format!(
            "the responder's ORD {} is above the initiator's IRD {}",
            offered.ord, asked.ird
        );
        report(Event::departure("RFC 6581 9.1", what));
    }
}
