//! Messages of one direction: assembles segments, follows MSN, MO and TO, and matches Reads with
//! their responses.
//!
//! A receiver stops at the first error. A decoder reports the error, accepts the values of the
//! peer, and continues.

use uiw_ddp::{Header, STag, Tagged, Untagged};
use uiw_rdmap::{AtomicOp, AtomicRequest, AtomicResponse, Opcode, ReadRequest};

use super::event::{Event, Message};
use super::requests::{OutstandingRequest, OutstandingRequests, PartialResponse};
use super::segment::{Parsed, has_invalidate, name};
use super::terminate;

/// Number of queues, which are numbered from 0 to 3 (RFC 5040 section 4.1, RFC 7306 section 4).
const QUEUES: usize = 4;
/// Number of bytes kept of a message. The longest RDMAP header, that of a complete Terminate, has
/// 52 bytes.
const HEAD: usize = 128;

/// Tracker of the messages of one direction.
#[derive(Debug)]
pub(super) struct Tracker {
    queues: [MessageQueue; QUEUES],
    tagged: Option<TaggedMessage>,
    terminated: bool,
}

#[derive(Debug)]
struct MessageQueue {
    /// MSN of the next message, `None` if it is not known.
    expected: Option<u32>,
    current: Option<UntaggedMessage>,
}

#[derive(Debug)]
struct UntaggedMessage {
    first: Untagged,
    /// MO that the next segment must have, `None` after missing bytes.
    next_mo: Option<u64>,
    segments: u64,
    length: u64,
    head: Vec<u8>,
}

#[derive(Debug)]
struct TaggedMessage {
    first: Tagged,
    opcode: u8,
    segments: u64,
    length: u64,
    /// True if part of the message is missing.
    partial: bool,
}

impl TaggedMessage {
    fn response(&self, last: bool) -> PartialResponse {
        PartialResponse {
            stag: self.first.stag,
            to: self.first.to,
            length: self.length,
            segments: self.segments,
            last,
            partial: self.partial,
        }
    }
}

impl Tracker {
    pub(super) fn new() -> Self {
        let queue = || MessageQueue { expected: Some(1), current: None };
        Self { queues: std::array::from_fn(|_| queue()), tagged: None, terminated: false }
    }

    /// Called when bytes of the direction are missing or cannot be trusted, so that nothing is
    /// known about the next segment.
    pub(super) fn lose(&mut self, own: &mut OutstandingRequests, peers: &mut OutstandingRequests) {
        for queue in &mut self.queues {
            queue.expected = None;
            if let Some(current) = &mut queue.current {
                current.next_mo = None;
            }
        }
        if let Some(tagged) = &mut self.tagged {
            tagged.partial = true;
        }
        own.uncertain = true;
        peers.uncertain = true;
    }

    /// Returns a description of an incomplete message, if there is one.
    pub(super) fn unfinished(&self) -> Option<String> {
        let untagged = self.queues.iter().filter_map(|queue| queue.current.as_ref());
        let untagged = untagged.map(|message| (message.first.rsvd_ulp & 0x0f, message.length));
        let tagged = self.tagged.iter().map(|message| (message.opcode, message.length));
        untagged.chain(tagged).next().map(|(opcode, length)| {
            format!("{} without its last segment, {length} bytes so far", name(opcode))
        })
    }

    /// Takes the next segment. `own` are requests of this end, `peers` those of the peer.
    pub(super) fn segment(
        &mut self,
        parsed: &Parsed<'_>,
        own: &mut OutstandingRequests,
        peers: &mut OutstandingRequests,
        out: &mut Vec<Event>,
    ) {
        if self.terminated {
            let what = format!("{} after a Terminate", name(parsed.opcode));
            out.push(Event::departure("RFC 5040 5.4", what));
        }
        match parsed.header {
            Header::Tagged(header) => self.tagged(&header, parsed, peers, out),
            Header::Untagged(header) => {
                let Some(message) = self.untagged(&header, parsed, out) else { return };
                self.terminated |= parsed.opcode == Opcode::Terminate.raw();
                report_message(parsed.opcode, &message, own, peers, out);
            }
        }
    }

    fn tagged(
        &mut self,
        header: &Tagged,
        parsed: &Parsed<'_>,
        peers: &mut OutstandingRequests,
        out: &mut Vec<Event>,
    ) {
        let length = parsed.payload.len() as u64;
        let mut message = match self.tagged.take() {
            Some(message) if continues_message(&message, header, parsed.opcode, out) => message,
            _ => {
                let (first, opcode) = (*header, parsed.opcode);
                TaggedMessage { first, opcode, segments: 0, length: 0, partial: false }
            }
        };
        message.segments += 1;
        message.length += length;
        if parsed.opcode == Opcode::ReadResponse.raw() {
            peers.read_response(&message.response(header.last), out);
        }
        if header.last {
            let details = match message.length {
                0 => String::new(),
                length => {
                    format!(
                        "to STag {} TO {:#x}, {length} bytes",
                        message.first.stag, message.first.to
                    )
                }
            };
            out.push(Event::Message(Message {
                name: name(message.opcode),
                opcode: message.opcode,
                length: message.length,
                segments: message.segments,
                details,
                terminate: None,
            }));
        } else {
            self.tagged = Some(message);
        }
    }

    /// Adds an untagged segment. Returns the message if this was its last segment.
    fn untagged(
        &mut self,
        header: &Untagged,
        parsed: &Parsed<'_>,
        out: &mut Vec<Event>,
    ) -> Option<UntaggedMessage> {
        let queue = usize::try_from(header.qn).ok().and_then(|qn| self.queues.get_mut(qn));
        let Some(queue) = queue else {
            out.push(Event::departure("RFC 5040 4.1", format!("there is no queue {}", header.qn)));
            return None;
        };
        let mut message = match queue.current.take() {
            Some(message) if message.first.msn == header.msn => message,
            before => {
                if let Some(before) = before {
                    if before.next_mo.is_some() {
                        let (old, new) = (before.first.msn, header.msn);
                        let what = format!(
                            "MSN {new} on queue {} before the last segment of MSN {old}",
                            header.qn
                        );
                        out.push(Event::departure("RFC 5041 4.3", what));
                    }
                } else if let Some(expected) = queue.expected
                    && expected != header.msn
                {
                    let what =
                        format!("MSN {} on queue {}, {expected} is due", header.msn, header.qn);
                    out.push(Event::departure("RFC 5041 4.3", what));
                }
                let next_mo = queue.expected.map(|_| 0);
                UntaggedMessage {
                    first: *header,
                    next_mo,
                    segments: 0,
                    length: 0,
                    head: Vec::new(),
                }
            }
        };
        add_segment(&mut message, header, parsed.payload, out);
        if header.last {
            queue.expected = Some(header.msn.wrapping_add(1));
            Some(message)
        } else {
            // From here on the MSN is known again, even if bytes were missing before.
            queue.expected = Some(header.msn);
            queue.current = Some(message);
            None
        }
    }
}

/// Adds a segment to its message.
fn add_segment(
    message: &mut UntaggedMessage,
    header: &Untagged,
    payload: &[u8],
    out: &mut Vec<Event>,
) {
    let mo = u64::from(header.mo);
    if let Some(next) = message.next_mo
        && next != mo
    {
        let what = format!("MO {mo} in MSN {} on queue {}, {next} is due", header.msn, header.qn);
        out.push(Event::departure("RFC 5041 5.2", what));
    }
    let first = &message.first;
    if (first.rsvd_ulp, first.rsvd_ulp32) != (header.rsvd_ulp, header.rsvd_ulp32) {
        let what = format!(
            "RsvdULP differs between the segments of MSN {} on queue {}",
            header.msn, header.qn
        );
        out.push(Event::departure("RFC 5041 4.3", what));
    }
    let end = mo + payload.len() as u64;
    if end > u64::from(u32::MAX) {
        out.push(Event::departure(
            "RFC 5041 5.2",
            format!("a message of at least {end} bytes, 2^32 - 1 are the most"),
        ));
    }
    if mo == message.head.len() as u64 && message.head.len() < HEAD {
        message.head.extend(payload.iter().take(HEAD - message.head.len()));
    }
    message.next_mo = Some(end);
    message.segments += 1;
    message.length = end;
}

/// Returns whether a tagged segment continues the current message.
fn continues_message(
    message: &TaggedMessage,
    header: &Tagged,
    opcode: u8,
    out: &mut Vec<Event>,
) -> bool {
    if message.opcode != opcode || message.first.stag != header.stag {
        if !message.partial {
            let what = format!(
                "{} to STag {} before the last segment of the {} to STag {}",
                name(opcode),
                header.stag,
                name(message.opcode),
                message.first.stag
            );
            out.push(Event::departure("RFC 5041 4.2", what));
        }
        return false;
    }
    let due = message.first.to.wrapping_add(message.length);
    if header.to != due && !message.partial {
        let what =
            format!("TO {:#x} in a message to STag {}, {due:#x} is due", header.to, header.stag);
        out.push(Event::departure("RFC 5041 5.2", what));
    }
    true
}

/// Reports a complete untagged message: decodes its RDMAP header, and records Reads and Atomics.
fn report_message(
    opcode: u8,
    message: &UntaggedMessage,
    own: &mut OutstandingRequests,
    peers: &mut OutstandingRequests,
    out: &mut Vec<Event>,
) {
    let known = Opcode::from_raw(opcode);
    if let Some(expected) = known.and_then(fixed_length)
        && message.length != expected
    {
        let what = format!("{} of {} bytes, it has {expected}", name(opcode), message.length);
        out.push(Event::departure("RFC 5040 4.2", what));
    }
    let mut terminate = None;
    let details = match known {
        Some(Opcode::ReadRequest) => read_request(&message.head, own, out),
        Some(Opcode::AtomicRequest) => atomic_request(&message.head, own, out),
        Some(Opcode::AtomicResponse) => atomic_response(&message.head, peers, out),
        Some(Opcode::Terminate) => {
            let (details, meaning) = terminate::describe(&message.head, out);
            terminate = meaning;
            details
        }
        Some(Opcode::Immediate | Opcode::ImmediateSe) => {
            let bytes = message.head.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            format!("data {bytes}")
        }
        Some(Opcode::SendImm) => format!("immediate {:#010x}", message.first.rsvd_ulp32),
        _ if has_invalidate(opcode) => {
            format!("invalidates STag {}", STag(message.first.rsvd_ulp32))
        }
        _ => String::new(),
    };
    let (length, segments) = (message.length, message.segments);
    out.push(Event::Message(Message {
        name: name(opcode),
        opcode,
        length,
        segments,
        details,
        terminate,
    }));
}

/// Returns the length in bytes of messages that consist of an RDMAP header only.
fn fixed_length(opcode: Opcode) -> Option<u64> {
    match opcode {
        Opcode::ReadRequest => Some(ReadRequest::LEN as u64),
        Opcode::AtomicRequest => Some(AtomicRequest::LEN as u64),
        Opcode::AtomicResponse => Some(AtomicResponse::LEN as u64),
        Opcode::Immediate | Opcode::ImmediateSe => Some(8),
        _ => None,
    }
}

fn read_request(head: &[u8], own: &mut OutstandingRequests, out: &mut Vec<Event>) -> String {
    let Ok(request) = ReadRequest::parse(head) else { return "not whole".into() };
    let ReadRequest { sink_stag, sink_to, len, source_stag, source_to } = request;
    own.add(OutstandingRequest::Read { sink_stag, sink_to, len }, out);
    format!(
        "{len} bytes from STag {source_stag} TO {source_to:#x} to STag {sink_stag} TO {sink_to:#x}"
    )
}

fn atomic_request(head: &[u8], own: &mut OutstandingRequests, out: &mut Vec<Event>) -> String {
    let request = match AtomicRequest::parse(head) {
        Ok(request) => request,
        Err(error) => {
            out.push(Event::departure("RFC 7306 5", error.to_string()));
            return "unreadable".into();
        }
    };
    own.add(OutstandingRequest::Atomic { request_id: request.request_id }, out);
    let (id, stag, to) = (request.request_id, request.stag, request.to);
    if to % 8 != 0 {
        out.push(Event::departure(
            "RFC 7306 5",
            format!("an Atomic at TO {to:#x}, not a multiple of 8"),
        ));
    }
    match request.op {
        AtomicOp::FetchAdd => {
            format!("FetchAdd {id} at STag {stag} TO {to:#x}: adds {:#x}", request.data)
        }
        AtomicOp::CmpSwap => {
            format!(
                "CmpSwap {id} at STag {stag} TO {to:#x}: {:#x} to {:#x}",
                request.compare, request.data
            )
        }
    }
}

fn atomic_response(head: &[u8], peers: &mut OutstandingRequests, out: &mut Vec<Event>) -> String {
    let Ok(response) = AtomicResponse::parse(head) else { return "not whole".into() };
    let id = response.request_id;
    peers.atomic_response(id, out);
    format!("to request {id}: the value was {:#x}", response.original)
}
