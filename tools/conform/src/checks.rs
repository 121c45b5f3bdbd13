//! Checks of RFC 5040 and RFC 5041 that apply to every received segment, whatever the case is
//! about.

use super::deframe::judge_segment_length;
use super::judge::Judgements;
use super::terminate;
use super::values::Value;
use std::collections::{BTreeMap, VecDeque};
use uiw_cases::FrameKind;
use uiw_rdmap::ReadRequest;
use uiw_rdmap::wire::Control;

const TAGGED_HEADER_LEN: usize = 14;
const UNTAGGED_HEADER_LEN: usize = 18;
/// RDMAP opcodes.
const WRITE: u8 = 0;
const READ_REQUEST: u8 = 1;
const READ_RESPONSE: u8 = 2;
const TERMINATE: u8 = 7;
/// Highest opcode that RFC 5040 and RFC 7306 assign.
const LAST_OPCODE: u8 = 11;
/// Payload kept of a message, in bytes. The segment that exceeds it is still kept.
const MAX_KEPT_PAYLOAD: usize = 1 << 20;

/// A DDP segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) ulpdu: Vec<u8>,
    pub(super) tagged: bool,
    pub(super) last: bool,
    pub(super) control: Control,
}

impl Segment {
    fn number(&self, at: usize, bytes: usize) -> u64 {
        self.ulpdu[at..at + bytes].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    pub(super) fn payload(&self) -> &[u8] {
        &self.ulpdu[if self.tagged { TAGGED_HEADER_LEN } else { UNTAGGED_HEADER_LEN }..]
    }

    pub(super) fn stag(&self) -> u32 {
        self.number(2, 4) as u32
    }

    pub(super) fn to(&self) -> u64 {
        self.number(6, 8)
    }

    pub(super) fn qn(&self) -> u32 {
        self.number(6, 4) as u32
    }

    pub(super) fn msn(&self) -> u32 {
        self.number(10, 4) as u32
    }

    pub(super) fn mo(&self) -> u32 {
        self.number(14, 4) as u32
    }

    /// Returns the kind of the frame, as in case files.
    pub(super) fn kind(&self) -> Option<FrameKind> {
        FrameKind::from_opcode(self.control.opcode)
    }

    /// Returns the value of a field by its name in case files.
    pub(super) fn field(&self, name: &str) -> Option<Value> {
        let request = || ReadRequest::parse(self.payload()).ok();
        let number = |number: u64| Some(Value::Number(number));
        match (name, self.tagged) {
            ("tagged", tagged) => number(u64::from(tagged)),
            ("last", _) => number(u64::from(self.last)),
            ("ddp-version", _) => number(u64::from(self.ulpdu[0] & 3)),
            ("ddp-reserved", _) => number(u64::from(self.ulpdu[0] >> 2 & 15)),
            ("version", _) => number(u64::from(self.control.version)),
            ("reserved", _) => number(u64::from(self.control.rsv)),
            ("opcode", _) => number(u64::from(self.control.opcode)),
            ("length", _) => number(self.payload().len() as u64),
            ("payload", _) => Some(Value::Bytes(self.payload().to_vec())),
            ("stag", true) => number(u64::from(self.stag())),
            ("to", true) => number(self.to()),
            ("invalidate", false) => number(u64::from(self.stag())),
            ("qn", false) => number(u64::from(self.qn())),
            ("msn", false) => number(u64::from(self.msn())),
            ("mo", false) => number(u64::from(self.mo())),
            ("sink-stag", false) => number(u64::from(request()?.sink_stag.0)),
            ("sink-to", false) => number(request()?.sink_to),
            ("size", false) => number(u64::from(request()?.len)),
            ("source-stag", false) => number(u64::from(request()?.source_stag.0)),
            ("source-to", false) => number(request()?.source_to),
            ("codes", false) => terminate::codes(self.payload()).map(Value::Codes),
            ("segment-length", false) => {
                number(u64::from(terminate::segment_length(self.payload())?))
            }
            _ => None,
        }
    }

    /// Describes the frame in one line.
    pub(super) fn describe(&self) -> String {
        let name = self.kind().map_or_else(
            || format!("opcode {}", self.control.opcode),
            |kind| kind.name().to_owned(),
        );
        let last = if self.last { "" } else { " (more follows)" };
        let place = if self.tagged {
            format!("stag {:#x} to {:#x}", self.stag(), self.to())
        } else {
            format!("qn {} msn {} mo {}", self.qn(), self.msn(), self.mo())
        };
        let more = match self.kind() {
            Some(FrameKind::Terminate) if !self.tagged => match self.field("codes") {
                Some(codes) => format!(" codes {codes}"),
                None => String::new(),
            },
            Some(FrameKind::ReadRequest) if !self.tagged => ReadRequest::parse(self.payload())
                .map(|r| {
                    format!(
                        " size {} source-stag {:#x} source-to {:#x} sink-stag {:#x} sink-to {:#x}",
                        r.len, r.source_stag.0, r.source_to, r.sink_stag.0, r.sink_to
                    )
                })
                .unwrap_or_default(),
            _ => String::new(),
        };
        format!("{name} {place} length {}{more}{last}", self.payload().len())
    }
}

/// Parses a ULPDU. Returns `None` if it is too short for its header.
pub(super) fn parse_segment(ulpdu: &[u8]) -> Option<Segment> {
    let [ddp, rdmap, ..] = *ulpdu else { return None };
    let tagged = ddp & 0x80 != 0;
    let enough = ulpdu.len() >= if tagged { TAGGED_HEADER_LEN } else { UNTAGGED_HEADER_LEN };
    let segment = Segment {
        ulpdu: ulpdu.to_vec(),
        tagged,
        last: ddp & 0x40 != 0,
        control: Control::parse(rdmap),
    };
    enough.then_some(segment)
}

/// A message, complete or not.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) first: Segment,
    pub(super) payload: Vec<u8>,
    length: u64,
}

impl Message {
    /// Returns the value of a field by its name in case files.
    pub(super) fn field(&self, name: &str) -> Option<Value> {
        match name {
            "payload" => Some(Value::Bytes(self.payload.clone())),
            "length" => Some(Value::Number(self.length)),
            name => self.first.field(name),
        }
    }
}

/// Checker of the segments of the listener, in their order.
#[derive(Debug, Default)]
pub(super) struct Checker {
    /// Expected MSN of each queue.
    next_msn: BTreeMap<u32, u32>,
    untagged: Option<Message>,
    tagged: Option<Message>,
    /// Reads of this end without a response.
    outstanding_reads: VecDeque<ReadRequest>,
    /// Sent segments, one of which a Terminate may quote.
    sent: Vec<Vec<u8>>,
    terminated: bool,
    /// Lengths of the next Sends and Writes that were ordered.
    pub(super) expected_sizes: VecDeque<u64>,
}

impl Checker {
    /// Records a segment that this end sends.
    pub(super) fn record_sent(&mut self, ulpdu: &[u8]) {
        self.sent.push(ulpdu.to_vec());
        if let Some(segment) = parse_segment(ulpdu)
            && segment.control.opcode == READ_REQUEST
            && let Ok(request) = ReadRequest::parse(segment.payload())
        {
            self.outstanding_reads.push_back(request);
        }
    }

    /// Forgets the segments sent so far, so that the positions of quoted segments start anew.
    pub(super) fn forget_sent(&mut self) {
        self.sent.clear();
    }

    /// Returns the position of the sent segment that a Terminate quotes, starting at 1, or 0 if
    /// there is none.
    pub(super) fn quoted_position(&self, segment: &Segment) -> u64 {
        let header = terminate::quoted_header(segment.payload());
        let at =
            header.and_then(|header| self.sent.iter().position(|sent| sent.starts_with(&header)));
        at.map_or(0, |at| at as u64 + 1)
    }

    /// Checks a received segment. Its message is returned with the last segment.
    pub(super) fn receive(
        &mut self,
        ulpdu: &[u8],
        judged: &mut Judgements,
    ) -> Option<(Segment, Option<Message>)> {
        let Some(segment) = parse_segment(ulpdu) else {
            judged.add_broken(
                &["RFC5041-4.4-01"],
                format!("a ULPDU of {} bytes has no whole DDP header", ulpdu.len()),
            );
            return None;
        };
        if self.terminated {
            judged.add_broken(
                &["RFC5040-5.4-08"],
                format!("behind its Terminate: {}", segment.describe()),
            );
        }
        judge_header(&segment, judged);
        judge_segment_length(ulpdu.len(), segment.last, judged);
        let message = if segment.tagged {
            self.check_tagged(&segment, judged)
        } else {
            self.check_untagged(&segment, judged)
        };
        if segment.control.opcode == TERMINATE && !segment.tagged {
            self.terminated = true;
            terminate::judge(segment.payload(), &self.sent, judged);
        }
        Some((segment, message))
    }

    fn check_untagged(&mut self, segment: &Segment, judged: &mut Judgements) -> Option<Message> {
        let (qn, msn) = (segment.qn(), segment.msn());
        let begun = self.untagged.take();
        let mut message = match begun {
            Some(message) => {
                judge_untagged_continuation(&message, segment, judged);
                message
            }
            None => {
                let due = self.next_msn.get(&qn).copied();
                let ids: &[&str] =
                    if due.is_some() { &["RFC5041-4.3-08"] } else { &["RFC5041-4.3-09"] };
                let due = due.unwrap_or(1);
                judged.check(msn == due, ids, || format!("MSN {msn} on queue {qn}, {due} is due"));
                judged.check(segment.mo() == 0, &["RFC5041-4.3-13"], || {
                    format!("MO {} at the front of a message", segment.mo())
                });
                Message { first: segment.clone(), payload: Vec::new(), length: 0 }
            }
        };
        self.add_payload(&mut message, segment, judged);
        if segment.last {
            self.next_msn.insert(qn, msn.wrapping_add(1));
            judged.add_kept(&["RFC5041-4.1-06"]);
            self.check_complete_message(&message, judged);
            return Some(message);
        }
        self.untagged = Some(message);
        None
    }

    fn add_payload(&self, message: &mut Message, segment: &Segment, judged: &mut Judgements) {
        let length = segment.payload().len() as u64;
        if length == 0 && !segment.last && message.length == 0 {
            judged.add_broken(
                &["RFC5041-5.2-08"],
                "a segment without payload that is not its message's last",
            );
        }
        message.length += length;
        if message.payload.len() < MAX_KEPT_PAYLOAD {
            message.payload.extend_from_slice(segment.payload());
        }
        let due = self.expected_length(message);
        if let Some(due) = due
            && !segment.last
        {
            judged.check(
                message.length < due || due == 0 && message.length == 0,
                &["RFC5041-4.1-03"],
                || format!("all {due} bytes of the message are there, and L is not set"),
            );
        }
    }

    /// Returns the length that a message must have, if it is known.
    fn expected_length(&self, message: &Message) -> Option<u64> {
        match message.first.control.opcode {
            READ_RESPONSE => self.outstanding_reads.front().map(|read| u64::from(read.len)),
            READ_REQUEST => Some(ReadRequest::LEN as u64),
            TERMINATE => None,
            // An empty Write may arrive at any time.
            WRITE if message.first.last && message.length == 0 => None,
            _ => self.expected_sizes.front().copied(),
        }
    }

    /// Checks the length of a complete message.
    fn check_complete_message(&mut self, message: &Message, judged: &mut Judgements) {
        judged.add_kept(&["RFC5041-4.1-03"]);
        if message.length == 0 {
            judged.add_kept(&["RFC5041-5.2-08"]);
        }
        let Some(due) = self.expected_length(message) else { return };
        if !matches!(message.first.control.opcode, READ_REQUEST | READ_RESPONSE) {
            self.expected_sizes.pop_front();
        }
        let (length, name) = (message.length, message.first.kind().map_or("", FrameKind::name));
        let what = || format!("a {name} of {length} bytes, {due} are due");
        // An early L bit and missing bytes cannot be told apart.
        judged.check(length >= due, &["RFC5041-4.1-04", "RFC5041-5.2-03"], what);
        if message.first.control.opcode == READ_RESPONSE {
            if due == 0 {
                judged.check(length == 0, &["RFC5040-5.2.1-17", "RFC5044-3-01"], what);
            } else {
                judged.check(length <= due, &["RFC5044-3-01"], what);
            }
        }
    }

    fn check_tagged(&mut self, segment: &Segment, judged: &mut Judgements) -> Option<Message> {
        let mut message = match self.tagged.take() {
            Some(message) => {
                judge_tagged_continuation(&message, segment, judged);
                message
            }
            None => {
                if segment.control.opcode == READ_RESPONSE {
                    self.judge_read_response(segment, judged);
                }
                Message { first: segment.clone(), payload: Vec::new(), length: 0 }
            }
        };
        self.add_payload(&mut message, segment, judged);
        if !segment.last {
            self.tagged = Some(message);
            return None;
        }
        self.check_complete_message(&message, judged);
        if segment.control.opcode == READ_RESPONSE {
            self.outstanding_reads.pop_front();
        }
        Some(message)
    }

    /// Checks the first segment of a Read Response.
    fn judge_read_response(&mut self, segment: &Segment, judged: &mut Judgements) {
        let fits =
            |read: &ReadRequest| (read.sink_stag.0, read.sink_to) == (segment.stag(), segment.to());
        let Some(due) = self.outstanding_reads.front() else {
            judged.add_broken(&["RFC5040-5.2-01"], "a Read Response that answers no Read");
            return;
        };
        judged.add_kept(&["RFC5040-5.2-01"]);
        const ORDER: [&str; 3] = ["RFC5040-5.2.1-09", "RFC5040-5.2.2-06", "RFC5040-5.5-16a"];
        if fits(due) {
            judged.add_kept(&[
                "RFC5040-4.4-01",
                "RFC5040-4.4-02",
                "RFC5040-5.2.2-08",
                "RFC5041-4.2-01",
            ]);
            if self.outstanding_reads.len() > 1 {
                judged.add_kept(&ORDER);
            }
            return;
        }
        let (stag, to) = (due.sink_stag.0, due.sink_to);
        let what = format!(
            "a Read Response to {:#x}:{:#x}, {stag:#x}:{to:#x} is due",
            segment.stag(),
            segment.to()
        );
        let swapped = [&to.to_be_bytes()[..], &stag.to_be_bytes()[..]].concat();
        let source = (due.source_stag.0, due.source_to) == (segment.stag(), segment.to());
        if let Some(at) = self.outstanding_reads.iter().position(fits) {
            judged.add_broken(&ORDER, what);
            // The Read becomes the one that is due, so that its further segments are judged on
            // their own.
            let read = self.outstanding_reads.remove(at);
            read.into_iter().for_each(|read| self.outstanding_reads.push_front(read));
        } else if segment.ulpdu[2..TAGGED_HEADER_LEN] == swapped {
            judged.add_broken(&["RFC5041-4.2-01"], what + ": TO stands in front of STag");
        } else if source {
            judged.add_broken(&["RFC5040-4.4-01", "RFC5040-4.4-02"], what + ": that is the source");
        } else {
            judged.add_broken(&["RFC5040-4.4-02"], what);
        }
    }
}

/// Checks the header of a segment.
fn judge_header(segment: &Segment, judged: &mut Judgements) {
    let (ddp, rdmap) = (segment.ulpdu[0], segment.ulpdu[1]);
    judged.add_kept(&["RFC5041-4.4-01"]);
    judged.check(ddp & 3 == 1, &["RFC5041-4.1-11", "RFC5041-4.1-12", "RFC5044-C.1-01"], || {
        format!("DV is {}, 1 is due", ddp & 3)
    });
    judged.check(ddp & 0x3C == 0, &["RFC5041-4.1-10"], || {
        format!("the reserved bits of DDP are {:#x}", ddp >> 2 & 15)
    });
    let Control { version, rsv, opcode } = segment.control;
    let turned = Control::parse(rdmap.rotate_left(4));
    if version != 1 && (turned.version, turned.rsv) == (1, 0) {
        let what = format!(
            "the control field of RDMAP is {rdmap:#04x}: its bits stand in the wrong order"
        );
        judged.add_broken(&["RFC5040-4.1-01", "RFC5040-4.1-02"], what);
        return;
    }
    judged.add_kept(&["RFC5040-4.1-01", "RFC5040-4.1-02"]);
    judged.check(version == 1, &["RFC5040-4.1-09", "RFC5044-C.1-01"], || {
        format!("RV is {version}, 1 is due")
    });
    judged.check(rsv == 0, &["RFC5040-4.1-10"], || format!("the reserved bits of RDMAP are {rsv}"));
    judged.check(opcode <= LAST_OPCODE, &["RFC5040-4.1-06", "RFC5040-6.1-01"], || {
        format!("no opcode {opcode}")
    });
    let (references, queue): (&[&str], &[&str]) = match opcode {
        WRITE => (&["RFC5040-5.1-01", "RFC5040-5.1-02"], &[]),
        READ_REQUEST => {
            (&["RFC5040-5.2.1-01", "RFC5040-5.2.1-02"], &["RFC5040-5.2.1-06", "RFC5040-5.2.1-07"])
        }
        READ_RESPONSE => (&["RFC5040-5.2.2-01", "RFC5040-5.2.2-02"], &[]),
        3..=6 => (&["RFC5040-5.3-01", "RFC5040-5.3-02"], &["RFC5040-5.3-07"]),
        TERMINATE => (&["RFC5040-5.4-01", "RFC5040-5.4-02"], &["RFC5040-5.4-03"]),
        _ => return,
    };
    let tagged = matches!(opcode, WRITE | READ_RESPONSE);
    let name = segment.kind().map_or("", FrameKind::name);
    let what = || format!("the Tagged flag of a {name} is {}", u8::from(segment.tagged));
    judged.check(segment.tagged == tagged, references, what);
    judged.check(segment.tagged == tagged, &["RFC5040-4.1-05"], what);
    if segment.tagged || tagged {
        return;
    }
    let due = match opcode {
        READ_REQUEST => 1,
        TERMINATE => 2,
        _ => 0,
    };
    let qn = segment.qn();
    if qn != due && segment.msn() == due && qn == 1 {
        judged.add_broken(&["RFC5041-4.3-01"], format!("a {name} has its MSN in front of its QN"));
        return;
    }
    judged.add_kept(&["RFC5041-4.3-01"]);
    judged.check(qn == due, queue, || format!("a {name} on queue {qn}, {due} is due"));
    judged
        .check(qn == due, &["RFC5040-4.1-07"], || format!("a {name} on queue {qn}, {due} is due"));
    if !matches!(opcode, 4 | 6) {
        judged.check(segment.stag() == 0, &["RFC5040-4.1-13"], || {
            format!("the Invalidate STag of a {name} is {:#x}", segment.stag())
        });
    }
}

/// Checks a further segment of an untagged message.
fn judge_untagged_continuation(message: &Message, segment: &Segment, judged: &mut Judgements) {
    let first = &message.first;
    let (qn, msn, mo) = (segment.qn(), segment.msn(), u64::from(segment.mo()));
    judged.check(qn == first.qn(), &["RFC5041-4.3-06a", "RFC5041-4.3-07"], || {
        format!("QN {qn} in a message of queue {}", first.qn())
    });
    judged.check(msn == first.msn(), &["RFC5041-4.3-11", "RFC5041-4.3-12"], || {
        format!("MSN {msn} in message {}", first.msn())
    });
    let same = (segment.ulpdu[1], segment.stag()) == (first.ulpdu[1], first.stag());
    judged.check(same, &["RFC5041-4.3-04"], || {
        "RsvdULP differs between the segments of a message".to_owned()
    });
    judged.check(mo == message.length, &["RFC5041-5.2-05"], || {
        format!("MO {mo}, {} is due", message.length)
    });
    if segment.last && mo < message.length {
        judged.add_broken(
            &["RFC5041-4.1-06"],
            format!("the last segment has MO {mo}, one before it had more"),
        );
    }
}

/// Checks a further segment of a tagged message.
fn judge_tagged_continuation(message: &Message, segment: &Segment, judged: &mut Judgements) {
    let first = &message.first;
    let (stag, to, due) = (segment.stag(), segment.to(), first.to().wrapping_add(message.length));
    judged.check(segment.ulpdu[1] == first.ulpdu[1], &["RFC5041-4.2-04", "RFC5041-4.2-05"], || {
        "RsvdULP differs between the segments of a message".to_owned()
    });
    let what = || format!("STag {stag:#x} in a message to {:#x}", first.stag());
    judged.check(
        stag == first.stag(),
        &["RFC5041-4.2-07", "RFC5041-4.2-09a", "RFC5041-4.2-10"],
        what,
    );
    if first.control.opcode == READ_RESPONSE {
        judged.check(stag == first.stag(), &["RFC5040-5.2.2-08"], what);
    }
    judged.check(to == due, &["RFC5041-5.2-07"], || format!("TO {to:#x}, {due:#x} is due"));
}
