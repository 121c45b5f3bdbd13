//! One connection of a case: startup, sent frames and received frames.

use super::build;
use super::checks::{Checker, Message, Segment};
use super::deframe::{DeframeResult, Deframer};
use super::judge::Judgements;
use super::link::{Ending, Link, Network, Transcript, WaitOutcome};
use super::reply::Reply;
use super::values::{Values, Variables, hex};
use crate::partner::Order;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use uiw_cases::FrameKind;
use uiw_mpa::{FpduTx, MAX_ULPDU};

/// Sink STag of the first Read, whose response shows that the connection works. No case uses it.
pub(super) const READY_STAG: u32 = 0x5244_0001;
/// Sink STag of the Read that tests whether the listener continues. No case uses it.
pub(super) const PROBE_STAG: u32 = 0x5242_0002;
/// Time between the empty Writes that are sent while the first FPDU is unanswered. Linux siw misses
/// an FPDU that arrives before it watches its socket.
const NUDGE_INTERVAL: Duration = Duration::from_millis(50);
const MAX_NUDGES: u32 = 5;
/// Time to wait for the FIN of the listener at the end of a case.
const LINGER: Duration = Duration::from_millis(300);
/// Maximum duration of a case, in multiples of the stall timeout.
const MAX_STALLS: u32 = 100;
/// Minimum stall timeout, in round trips.
const MIN_ROUND_TRIPS: u32 = 40;

/// Settings that all cases share.
#[derive(Clone, Debug)]
pub struct Target {
    pub(super) network: &'static Network,
    pub(super) address: SocketAddr,
    /// Stall timeout: the maximum time without a received byte.
    pub(super) stall: Duration,
    /// True if the usual Request has enhanced data.
    pub(super) enhanced: bool,
}

impl Target {
    /// Returns a listener that is reached over TCP. No case waits longer than `stall` for bytes,
    /// except on slow paths.
    #[must_use]
    pub fn new(address: SocketAddr, stall: Duration) -> Self {
        Self { network: &super::link::TCP, address, stall, enhanced: true }
    }
}

/// Reason why a case stopped.
#[derive(Debug)]
pub(super) struct Stop(pub(super) String);

/// A received frame or another event.
#[derive(Debug)]
pub(super) enum Item {
    Reply(Box<Reply>),
    Segment(Box<Segment>, Option<Box<Message>>),
    End(Ending),
    /// Bytes that are not a valid frame. The reason was added to the judgements.
    Broken(String),
    /// The peer sent no byte within the stall timeout.
    Late,
}

impl Item {
    pub(super) fn describe(&self, stall: Duration) -> String {
        match self {
            Self::Reply(reply) => reply.describe(),
            Self::Segment(segment, _) => segment.describe(),
            Self::End(Ending::Fin) => "the end of the stream (FIN)".to_owned(),
            Self::End(Ending::Reset) => "the end of the stream (RST)".to_owned(),
            Self::Broken(what) => what.clone(),
            Self::Late => format!("nothing for {:.1} s", stall.as_secs_f64()),
        }
    }
}

/// State of a connection.
#[derive(Debug)]
pub(super) struct Session<'a> {
    pub(super) target: &'a Target,
    pub(super) link: Option<Link>,
    request: Values,
    pub(super) reply: Option<Reply>,
    tx: FpduTx,
    rx: Deframer,
    pub(super) checker: Checker,
    msn: BTreeMap<u32, u32>,
    held: Vec<u8>,
    /// Number of sent FPDUs.
    sent: u64,
    /// Order that has not been finished.
    pub(super) last_order: Option<Order>,
    pub(super) variables: Variables,
    pub(super) judged: Judgements,
    pub(super) transcript: Transcript,
    begun: Instant,
    /// True if the case stopped because it lasted too long, which says nothing about the listener.
    pub(super) is_overdue: bool,
}

impl<'a> Session<'a> {
    pub(super) fn new(target: &'a Target) -> Self {
        Self {
            target,
            link: None,
            request: Values::default(),
            reply: None,
            tx: FpduTx::new(true, false),
            rx: Deframer::new(true, false),
            checker: Checker::default(),
            msn: BTreeMap::new(),
            held: Vec::new(),
            sent: 0,
            last_order: None,
            variables: Variables::default(),
            judged: Judgements::default(),
            transcript: Transcript::new(target.network),
            begun: (target.network.now)(),
            is_overdue: false,
        }
    }

    /// Returns the stall timeout: the configured one, but at least some round trips of this path.
    pub(super) fn stall(&self) -> Duration {
        self.target.stall.max(self.round_trip() * MIN_ROUND_TRIPS)
    }

    fn now(&self) -> Instant {
        (self.target.network.now)()
    }

    /// Opens a TCP connection.
    pub(super) fn connect(&mut self) -> Result<(), Stop> {
        let address = self.target.address;
        let link = Link::connect(self.target.network, address, self.target.stall)
            .map_err(|error| Stop(format!("no connection to {address}: {error}")))?;
        self.transcript.line(&format!(
            "connected to {address} in {:.1} ms",
            link.round_trip.as_secs_f64() * 1e3
        ));
        self.link = Some(link);
        (self.reply, self.request) = (None, Values::default());
        (self.checker, self.sent) = (Checker::default(), 0);
        self.msn.clear();
        self.held.clear();
        self.last_order = None;
        Ok(())
    }

    fn connected_link(&mut self) -> Result<&mut Link, Stop> {
        self.link.as_mut().ok_or_else(|| Stop("the case has not connected".to_owned()))
    }

    /// Sends a startup frame.
    pub(super) fn send_startup(
        &mut self,
        kind: FrameKind,
        mut fields: Values,
        cut: usize,
    ) -> Result<(), Stop> {
        let enhanced = fields.has(&["a", "b", "c", "d", "ird", "ord"]);
        fields.set_default("enhanced", u64::from(enhanced));
        fields.set_default("revision", if fields.number("enhanced", 0) != 0 { 2 } else { 1 });
        fields.set_default("crc", 1);
        let bytes = build::startup(kind, &fields);
        if kind == FrameKind::Request {
            self.request = fields;
        }
        self.send_bytes(kind.name(), &bytes, cut, false)
    }

    /// Sends raw bytes. With `hold`, they are sent together with the next bytes.
    pub(super) fn send_bytes(
        &mut self,
        what: &str,
        bytes: &[u8],
        cut: usize,
        hold: bool,
    ) -> Result<(), Stop> {
        self.transcript.frame('>', if hold { "(held)" } else { what }, bytes);
        self.held.extend_from_slice(bytes);
        if hold {
            return Ok(());
        }
        let bytes = std::mem::take(&mut self.held);
        self.connected_link()?.send(&bytes, cut);
        Ok(())
    }

    /// Sends a segment in its own FPDU.
    pub(super) fn send_segment(
        &mut self,
        kind: FrameKind,
        fields: &Values,
        cut: usize,
        hold: bool,
    ) -> Result<(), Stop> {
        let msn = &mut self.msn;
        let ulpdu = build::ulpdu(kind, fields, |qn, last| {
            let next = msn.entry(qn).or_insert(1);
            let this = *next;
            *next = next.wrapping_add(u32::from(last));
            this
        });
        if ulpdu.len() > MAX_ULPDU {
            return Err(Stop(format!(
                "a segment of {} bytes: {MAX_ULPDU} are the most",
                ulpdu.len()
            )));
        }
        self.checker.record_sent(&ulpdu);
        let bytes = build::fpdu(&mut self.tx, &ulpdu, fields);
        self.sent += 1;
        let what = super::checks::parse_segment(&ulpdu)
            .map_or_else(|| kind.name().to_owned(), |segment| segment.describe());
        self.send_bytes(&what, &bytes, cut, hold)
    }

    /// Records the segment at the front of raw bytes, which a Terminate may quote.
    pub(super) fn record_raw_bytes(&mut self, bytes: &[u8]) {
        if let Some((length, rest)) = bytes.split_first_chunk()
            && let Some(ulpdu) = rest.get(..usize::from(u16::from_be_bytes(*length)))
            && self.reply.is_some()
            && !self.tx.markers()
        {
            self.checker.record_sent(ulpdu);
        }
    }

    /// Sends a zero-length Read, whose response shows that the listener continues.
    pub(super) fn send_empty_read(&mut self, sink: u32) -> Result<(), Stop> {
        let mut fields = Values::default();
        fields.set("sink-stag", u64::from(sink));
        self.send_segment(FrameKind::ReadRequest, &fields, 0, false)
    }

    /// Returns whether the listener accepts Reads.
    pub(super) fn allows_reads(&self) -> bool {
        let enhanced = self.reply.as_ref().and_then(|reply| reply.enhanced);
        enhanced.is_none_or(|enhanced| enhanced.ird > 0)
    }

    /// Performs the usual startup, with `fields` of the Request changed, up to the response to a
    /// first zero-length Read.
    pub(super) fn start(&mut self, fields: Values) -> Result<(), Stop> {
        self.connect()?;
        let mut request = fields;
        if self.target.enhanced && request.number("revision", 2) >= 2 {
            for (name, number) in [("a", 1), ("c", 1), ("d", 1), ("ird", 16), ("ord", 16)] {
                request.set_default(name, number);
            }
        }
        self.send_startup(FrameKind::Request, request, 0)?;
        match self.next_item(self.stall())? {
            Item::Reply(reply) if reply.rejects() => {
                Err(Stop("the listener rejected the connection".to_owned()))
            }
            Item::Reply(_) => self.begin_full_operation(),
            other => Err(Stop(format!("{} instead of a Reply", other.describe(self.stall())))),
        }
    }

    /// Sends the first FPDUs after the Reply.
    pub(super) fn begin_full_operation(&mut self) -> Result<(), Stop> {
        let enhanced = self.reply.as_ref().and_then(|reply| reply.enhanced);
        let mut read = false;
        // This end can send every type of RTR message, so it sends one that the Reply names.
        if let Some(enhanced) = enhanced.filter(|enhanced| enhanced.peer_to_peer) {
            if enhanced.rtr_write {
                self.send_segment(FrameKind::Write, &Values::default(), 0, false)?;
            } else if enhanced.rtr_read {
                self.send_empty_read(READY_STAG)?;
                read = true;
            } else if enhanced.rtr_send {
                self.send_segment(FrameKind::Send, &Values::default(), 0, false)?;
            } else {
                return Err(Stop("the Reply names no RTR message".to_owned()));
            }
        }
        if !self.allows_reads() {
            return Ok(());
        }
        if !read {
            self.send_empty_read(READY_STAG)?;
        }
        self.await_ready()
    }

    /// Waits for the response to the first Read.
    fn await_ready(&mut self) -> Result<(), Stop> {
        const IDS: [&str; 4] =
            ["RFC5040-5.2.1-04", "RFC5040-5.2.1-13", "RFC5040-5.2.1-16", "RFC5040-5.2.1-17"];
        let mut nudges = 0;
        loop {
            let wait = if nudges < MAX_NUDGES {
                NUDGE_INTERVAL.max(self.round_trip() * 2)
            } else {
                self.stall()
            };
            match self.next_item(wait)? {
                Item::Segment(segment, _) if segment.kind() == Some(FrameKind::ReadResponse) => {
                    self.judged.add_kept(&IDS[..3]);
                    self.checker.forget_sent();
                    return Ok(());
                }
                Item::Segment(segment, _) if segment.kind() == Some(FrameKind::Terminate) => {
                    let what = format!("a Read of no bytes is refused: {}", segment.describe());
                    self.judged.add_broken(&IDS, what.clone());
                    return Err(Stop(what));
                }
                Item::Late if nudges < MAX_NUDGES => {
                    nudges += 1;
                    self.send_segment(FrameKind::Write, &Values::default(), 0, false)?;
                }
                // Other segments are not the response.
                Item::Segment(..) => {}
                Item::Broken(what) => return Err(Stop(what)),
                other => {
                    let what = format!(
                        "{} instead of the answer to a Read of no bytes",
                        other.describe(self.stall())
                    );
                    // A program may accept and close, so the end of the stream says nothing.
                    if !matches!(other, Item::End(_)) {
                        self.judged.add_broken(&IDS, what.clone());
                    }
                    return Err(Stop(what));
                }
            }
        }
    }

    pub(super) fn round_trip(&self) -> Duration {
        self.link.as_ref().map_or(Duration::ZERO, |link| link.round_trip)
    }

    /// Returns the next item, if one arrives before `limit` passes without a byte.
    ///
    /// # Errors
    /// Returns an error if the case has lasted too long, which judges nothing.
    pub(super) fn next_item(&mut self, limit: Duration) -> Result<Item, Stop> {
        let bound = self.begun + self.stall() * MAX_STALLS;
        loop {
            if let Some(item) = self.parse_inbox(true) {
                return Ok(item);
            }
            let until = self.now() + limit;
            let Some(link) = self.link.as_mut() else { return Ok(Item::End(Ending::Fin)) };
            match link.receive(until.min(bound)) {
                WaitOutcome::Bytes => {}
                WaitOutcome::Late if bound < until => {
                    self.is_overdue = true;
                    let seconds = (self.now() - self.begun).as_secs_f64();
                    self.transcript.line("  the case has lasted too long");
                    return Err(Stop(format!(
                        "the case had not ended after {seconds:.1} s: try a larger --stall"
                    )));
                }
                WaitOutcome::Late => {
                    self.transcript.line(&format!("  nothing for {:.3} s", limit.as_secs_f64()));
                    // After the whole stall timeout, an incomplete frame is an error.
                    let stalled = limit >= self.stall();
                    let cut = if stalled { self.parse_inbox(false) } else { None };
                    return Ok(cut.unwrap_or(Item::Late));
                }
                WaitOutcome::Ended(ending) => {
                    self.transcript.line(if ending == Ending::Fin { "< fin" } else { "< reset" });
                    return Ok(self.parse_inbox(false).unwrap_or(Item::End(ending)));
                }
            }
        }
    }

    /// Parses the next complete frame in the inbox. `more` is true if further bytes may follow.
    fn parse_inbox(&mut self, more: bool) -> Option<Item> {
        let link = self.link.as_mut()?;
        if link.inbox.is_empty() {
            return None;
        }
        let more = more && link.ended.is_none();
        if self.reply.is_none() {
            if !Reply::may_begin(&link.inbox) {
                let what = format!("no Reply but {}", describe_bytes(&link.inbox));
                self.judged.add_broken(&["RFC5044-7.1.1-03"], what.clone());
                link.inbox.clear();
                return Some(Item::Broken(what));
            }
            let Some(reply) = Reply::parse(&link.inbox) else {
                return (!more).then(|| {
                    let what = format!("the stream ends {} bytes into a Reply", link.inbox.len());
                    self.judged.add_broken(&["RFC5044-7.1.1-17"], what.clone());
                    link.inbox.clear();
                    Item::Broken(what)
                });
            };
            link.inbox.drain(..reply.bytes.len());
            self.transcript.frame('<', &reply.describe(), &reply.bytes);
            reply.judge(&self.request, &mut self.judged);
            let crc = reply.crc() || self.request.number("crc", 1) != 0;
            self.tx = FpduTx::new(crc, reply.markers());
            self.rx = Deframer::new(crc, self.request.number("markers", 0) != 0);
            self.reply = Some(reply.clone());
            return Some(Item::Reply(Box::new(reply)));
        }
        match self.rx.next(&link.inbox, more, &mut self.judged) {
            DeframeResult::Incomplete => None,
            DeframeResult::Broken(what) => {
                self.transcript.frame('<', &what, &link.inbox);
                link.inbox.clear();
                Some(Item::Broken(what))
            }
            DeframeResult::Fpdu(whole) => {
                let raw: Vec<u8> = link.inbox.drain(..whole.consumed).collect();
                let Some((segment, message)) = self.checker.receive(&whole.ulpdu, &mut self.judged)
                else {
                    self.transcript.frame('<', "no DDP segment", &raw);
                    return Some(Item::Broken("no DDP segment".to_owned()));
                };
                self.transcript.frame('<', &segment.describe(), &raw);
                if self.sent == 0 {
                    let what = format!("before this end's first FPDU: {}", segment.describe());
                    self.judged.add_broken(&["RFC5044-7.1.2-11"], what);
                }
                self.answer_empty_read(&segment);
                Some(Item::Segment(Box::new(segment), message.map(Box::new)))
            }
        }
    }

    /// Answers a zero-length Read that a listener sends on its own.
    fn answer_empty_read(&mut self, segment: &Segment) {
        let number = |name| match segment.field(name) {
            Some(super::values::Value::Number(number)) => number,
            _ => 0,
        };
        if segment.kind() != Some(FrameKind::ReadRequest) || segment.tagged || number("size") != 0 {
            return;
        }
        let mut fields = Values::default();
        fields.set("stag", number("sink-stag"));
        fields.set("to", number("sink-to"));
        let _ = self.send_segment(FrameKind::ReadResponse, &fields, 0, false);
    }

    /// Expects silence for `time`. Returns the bytes that arrive nevertheless, if any.
    pub(super) fn receive_unexpected(&mut self, time: Duration) -> Result<Option<Vec<u8>>, Stop> {
        let until = self.now() + time;
        let now = self.target.network.now;
        let link = self.connected_link()?;
        if !link.inbox.is_empty() || link.receive(until) == WaitOutcome::Bytes {
            // Wait for further bytes, so that the message shows what arrived.
            let _ = link.receive(now() + NUDGE_INTERVAL);
            let bytes = std::mem::take(&mut link.inbox);
            self.transcript.frame('<', "bytes", &bytes);
            return Ok(Some(bytes));
        }
        match link.ended {
            Some(ending) => {
                let item = Item::End(ending);
                Err(Stop(format!("{} where nothing should come", item.describe(time))))
            }
            None => {
                self.transcript.line(&format!("  nothing for {:.3} s", time.as_secs_f64()));
                Ok(None)
            }
        }
    }

    /// Returns whether bytes after the Reply begin with an FPDU or a Marker, and are not a part of
    /// the Reply.
    pub(super) fn begins_fpdu(&self, bytes: &[u8]) -> bool {
        let mut judged = Judgements::default();
        let markers = self.request.number("markers", 0) != 0;
        let mut rx = Deframer::new(true, markers);
        matches!(rx.next(bytes, false, &mut judged), DeframeResult::Fpdu(_)) || bytes == [0; 4]
    }

    /// Ends the connection as a well-behaved initiator does. Because some listeners have trouble
    /// with a FIN directly after their Reply, Full Operation begins first, unless the case stopped
    /// early (`complete` is false).
    pub(super) fn end_connection(&mut self, complete: bool) {
        let accepted = self.reply.as_ref().is_some_and(|reply| !reply.rejects());
        let is_open = self.link.as_ref().is_some_and(|link| link.ended.is_none());
        if !is_open
            || complete && accepted && self.sent == 0 && self.begin_full_operation().is_err()
        {
            return;
        }
        let _ = self.fin();
        let limit = self.stall().min(LINGER.max(self.round_trip() * 4));
        while matches!(self.next_item(limit), Ok(Item::Segment(..))) {}
    }

    /// Sends a FIN.
    pub(super) fn fin(&mut self) -> Result<(), Stop> {
        self.transcript.line("> fin");
        self.connected_link()?.fin();
        Ok(())
    }

    pub(super) fn reset(&mut self) -> Result<(), Stop> {
        self.transcript.line("> reset");
        let link = self.link.take().ok_or_else(|| Stop("the case has not connected".to_owned()))?;
        link.reset();
        Ok(())
    }
}

/// Formats bytes in hexadecimal for messages.
pub(super) fn describe_bytes(bytes: &[u8]) -> String {
    let more = if bytes.len() > 32 { ".." } else { "" };
    format!("{} bytes {}{more}", bytes.len(), hex(&bytes[..bytes.len().min(32)]))
}
