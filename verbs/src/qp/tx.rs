//! The sending half of the data path: requests (`send_queue`) and owed answers (`read_queue`) to messages (`rdmap`), segments
//! (`ddp`), FPDUs (`mpa`) and octets for TCP (`llp`). Read from top to bottom, it is the way of one request.
//!
//! Large payloads go from registered memory by iovec; small ones, and all with Markers, are built in one piece. Memory that a
//! peer may write, and the source of a Read Response (which may legally change at any moment), is copied before its CRC is
//! computed: an FPDU's octets never change between CRC and wire.

use crate::driver::Env;
use crate::qp::message::{Message, MessageHeader, Source, tagged_write};
use crate::qp::out_queue::SendError;
use crate::qp::peer::Greeting;
use crate::qp::read_queue::{Asker, OutstandingKind, Owed, OwedKind, QuotedSegment};
use crate::qp::send_queue::{SqMode, Wqe};
use crate::qp::teardown::read_fault;
use crate::qp::{Conn, Down, Phase, QpInner};
use crate::wc::WcStatus;
use crate::wr::{Remote, SendFlags, SendOp, Sge};
use ddp::{Header, STag};
use mem::{Access, Right, Span};
use mpa::crc::Crc32c;
use mpa::startup::Rtr;
use mpa::tx::FpduTx;
use rdmap::{
    AtomicOp, AtomicRequest, AtomicResponse, Extensions, Opcode, Protection, RdmapError, ReadRequest,
};
use std::collections::VecDeque;
use std::sync::Arc;

/// Octets given to TCP in one call, about.
const BATCH: u64 = 256 << 10;
/// Pieces of memory in one call; each FPDU by iovec takes three.
const BATCH_PIECES: usize = 200;
/// Staging of one stream.
const STAGING: usize = 192 << 10;
/// Rounds of build and send in one pump: the stream's budget.
const ROUNDS: usize = 4;
/// Small requests built under one lock of the send queue: a poster waits no longer than that.
const BURST: usize = 32;
/// From this payload on an FPDU goes by iovec; below, three iovecs cost more than the copy.
const GATHER_MIN: u32 = 8 << 10;

/// Requests that one acknowledging Read covers at most while others wait behind it.
const ACK_EVERY: u32 = 16;
/// Acknowledging Reads under way.
const ACKS: u32 = 4;

/// Acknowledged completion: zero-length Reads of the engine's own behind the application's Writes and Sends. As a peer executes
/// a stream in order, the answer says that all before it was placed.
#[derive(Default)]
struct Acks {
    on: bool,
    /// Requests built behind the last acknowledging Read, and the last of them.
    uncovered: u32,
    last: u32,
    /// Acknowledging Reads under way.
    outstanding: u32,
}

/// What a stream remembers between FPDUs it sends.
pub(crate) struct Tx {
    fpdu: FpduTx,
    /// Position of the out queue at which Full Operation began.
    base: u64,
    /// Largest ULPDU.
    pub(crate) mulpdu: usize,
    /// Next MSN of queues 0 to 3.
    msn: [u32; 4],
    /// The message that is being cut into FPDUs.
    message: Option<Message>,
    /// Requests whose last octet lies at these positions: they complete when TCP has taken it.
    marks: VecDeque<(u64, u32)>,
    /// Nothing may be sent: a responder before the initiator's first FPDU.
    pub(crate) hold: bool,
    /// A zero-length Write to be sent before anything else.
    pub(crate) greeting: Option<Greeting>,
    /// A Read or Send RTR message to be sent first of all.
    pub(crate) rtr: Option<Rtr>,
    /// An RTR Read waits for its answer.
    rtr_unanswered: bool,
    /// Whose turn it is when both requests and answers are due.
    answers_turn: bool,
    acks: Acks,
    /// A Read to be sent behind all, for a queue pair that is gone.
    farewell: bool,
    spans: Vec<Span>,
}

impl Tx {
    pub(crate) fn new(crc: bool, markers: bool) -> Self {
        Self {
            fpdu: FpduTx::new(crc, markers),
            base: 0,
            mulpdu: mpa::MIN_MULPDU,
            // RFC 5041 section 5.1: the first message on each queue has MSN 1.
            msn: [1; 4],
            message: None,
            marks: VecDeque::new(),
            hold: false,
            greeting: None,
            rtr: None,
            rtr_unanswered: false,
            answers_turn: false,
            acks: Acks::default(),
            farewell: false,
            spans: Vec::new(),
        }
    }

    /// Requests complete when the peer has placed them.
    pub(crate) fn acknowledge(&mut self) {
        self.acks.on = true;
    }

    pub(crate) fn acknowledges(&self) -> bool {
        self.acks.on
    }

    /// The queue pair is gone: what is left is one Read, behind whose answer the peer waits for nothing.
    pub(crate) fn say_farewell(&mut self) {
        self.acks = Acks::default();
        self.marks.clear();
        self.farewell = true;
    }

    pub(crate) fn ack_came(&mut self) {
        self.acks.outstanding -= 1;
    }

    pub(crate) fn rtr_answered(&self) -> bool {
        !self.rtr_unanswered
    }

    pub(crate) fn rtr_was_answered(&mut self) {
        self.rtr_unanswered = false;
    }

    fn next_msn(&mut self, qn: u32) -> u32 {
        let msn = &mut self.msn[qn as usize & 3];
        let now = *msn;
        *msn = msn.wrapping_add(1);
        now
    }

    /// Request `seq` ends at position `at`: it is over when TCP has taken it, or the peer has acknowledged it.
    fn sent_when(&mut self, at: u64, seq: u32) {
        if self.acks.on {
            self.acks.uncovered += 1;
            self.acks.last = seq;
        } else {
            self.marks.push_back((at, seq));
        }
    }

    /// Whether nothing but requests is in line.
    fn may_burst(&self) -> bool {
        self.greeting.is_none() && self.rtr.is_none() && self.acks.uncovered < ACK_EVERY
    }

    /// The header of an operation that is one message of the application's octets and needs no extension.
    fn plain_header(&mut self, op: &SendOp, flags: SendFlags) -> Option<MessageHeader> {
        let solicited = flags.contains(SendFlags::SOLICITED);
        Some(match *op {
            SendOp::Write { remote } => tagged_write(remote),
            SendOp::Send => {
                let opcode = if solicited { Opcode::SendSe } else { Opcode::Send };
                self.untagged(opcode, rdmap::QN_SEND, 0)
            }
            SendOp::SendInvalidate { stag } => {
                let opcode = if solicited { Opcode::SendSeInvalidate } else { Opcode::SendInvalidate };
                self.untagged(opcode, rdmap::QN_SEND, stag.0)
            }
            _ => return None,
        })
    }

    fn untagged(&mut self, opcode: Opcode, qn: u32, ulp32: u32) -> MessageHeader {
        MessageHeader::Untagged { opcode, qn, msn: self.next_msn(qn), ulp32 }
    }

    /// Full Operation begins behind the startup frame: Markers count from `at`.
    pub(crate) fn starts_at(&mut self, at: u64) {
        self.base = at;
    }

    /// Forgets what is not on the wire: the queue pair is in error. The stream goes on (with a Terminate) at `position`.
    pub(super) fn abandon(&mut self, position: u64) {
        self.fpdu.rewind(position.saturating_sub(self.base));
        self.message = None;
        self.acks = Acks { on: self.acks.on, ..Acks::default() };
        self.marks.clear();
        self.greeting = None;
        self.rtr = None;
    }

    fn is_idle(&self) -> bool {
        self.message.is_none()
            && self.greeting.is_none()
            && self.rtr.is_none()
            && !self.farewell
            && self.acks.uncovered == 0
    }
}

impl Conn {
    /// Sends what is due, within the stream's budget and as far as TCP takes it.
    pub(super) fn transmit(&mut self, env: &mut Env<'_>) -> Result<(), Down> {
        let open = matches!(self.phase, Phase::Open);
        let mut full = false;
        let mut more = false;
        for round in 0..ROUNDS {
            if open {
                self.build(env)?;
            }
            if self.out.is_empty() {
                break;
            }
            full = !self.out.send(&mut *self.stream).map_err(|error| match error {
                SendError::Gone => Down::Cut,
                SendError::Io(error) => Down::Lost(error),
            })?;
            self.note_sent(env)?;
            if full {
                break;
            }
            more = round + 1 == ROUNDS;
        }
        if self.out.is_empty() && self.out.staging.capacity() > 0 {
            env.pool.give(std::mem::take(&mut self.out.staging));
        }
        self.close_when_done(env)?;
        let read = self.rx.is_read() && !self.fin.received;
        self.want(read, full || more)
    }

    /// Cuts messages into FPDUs until the batch is full or nothing is due.
    fn build(&mut self, env: &mut Env<'_>) -> Result<(), Down> {
        if self.out.staging.capacity() == 0 {
            self.out.staging = env.pool.take();
        }
        while self.out.waiting() < BATCH
            && self.out.pieces() < BATCH_PIECES
            && self.out.staging.len() < STAGING
        {
            if self.tx.message.is_none() {
                if self.burst(env)? {
                    continue;
                }
                self.tx.message = self.next_message(env)?;
            }
            let Some(mut message) = self.tx.message.take() else { break };
            let last = match self.run(&mut message, env)? {
                true => message.offset == message.total,
                false => self.fpdu(&mut message, env)?,
            };
            if !last {
                self.tx.message = Some(message);
            } else if let Some((seq, imm, solicited)) = message.then {
                self.tx.message = Some(self.immediate(seq, imm, solicited));
            } else if let Some(seq) = message.ends {
                self.request_built(seq);
            }
        }
        // Local requests may have finished without an octet.
        self.retire(env)
    }

    /// The second half of a Write with immediate (RFC 7306 section 6): the immediate in the first four of eight octets.
    fn immediate(&mut self, seq: u32, imm: u32, solicited: bool) -> Message {
        let opcode = if solicited { Opcode::ImmediateSe } else { Opcode::Immediate };
        let header = self.tx.untagged(opcode, rdmap::QN_SEND, 0);
        let mut octets = [0; 8];
        octets[..4].copy_from_slice(&imm.to_be_bytes());
        if let Some(qp) = &self.qp {
            qp.sq.lock().begun(seq, header.msn());
        }
        Message::octets(header, &octets, Some(seq))
    }

    /// The whole of request `seq` is queued.
    fn request_built(&mut self, seq: u32) {
        let Some(qp) = &self.qp else { return };
        let mut sq = qp.sq.lock();
        sq.advance();
        if sq.done_when_sent(seq) {
            self.tx.sent_when(self.out.queued(), seq);
        }
    }

    /// Requests of one small FPDU each, under one lock of the send queue. False when the next in line is none of them.
    fn burst(&mut self, env: &mut Env<'_>) -> Result<bool, Down> {
        let others_first = !self.reads.owed.is_empty() && !self.tx.answers_turn;
        if self.tx.hold || !self.tx.may_burst() || others_first {
            return Ok(false);
        }
        let Some(qp) = &self.qp else { return Ok(false) };
        let (table, pd) = (&env.driver.table, qp.pd.id());
        let mut sq = qp.sq.lock();
        sq.look();
        let mut built = 0;
        while built < BURST && sq.mode == SqMode::Running && self.out.staging.len() < STAGING {
            let Some((seq, wqe)) = sq.next_wqe() else { break };
            let small = (wqe.len as usize) < (GATHER_MIN as usize).min(self.tx.mulpdu - ddp::Untagged::LEN);
            if !small || wqe.flags.contains(SendFlags::FENCE) {
                break;
            }
            let Some(header) = self.tx.plain_header(&wqe.op, wqe.flags) else { break };
            let start = begin_fpdu(&mut self.out.staging, &header.segment(0, true));
            self.out.staging.extend_from_slice(&wqe.inline);
            for sge in &wqe.sges {
                let range = (sge.addr, sge.length);
                let failed = Down::Local { seq: Some(seq), status: WcStatus::LocalProtection };
                let pin =
                    table.pin_local(&mut self.recent, sge.lkey, pd, range, false).map_err(|_| failed)?;
                pin.copy_to_vec(0..pin.len(), &mut self.out.staging);
            }
            self.tx.fpdu.seal(&mut self.out.staging, start);
            self.out.push_staged(start);
            self.out.end_fpdu();
            sq.begun(seq, header.msn());
            sq.advance();
            self.tx.sent_when(self.out.queued(), seq);
            built += 1;
        }
        self.tx.answers_turn &= built == 0;
        Ok(built > 0)
    }

    /// As many FPDUs as the batch has room for and one piece of memory has octets, built in staging: the memory is looked up,
    /// checked and pinned once for all of them. False when the next FPDU must be built alone: it needs no memory, or more than
    /// one piece, or goes by iovec.
    fn run(&mut self, message: &mut Message, env: &mut Env<'_>) -> Result<bool, Down> {
        let room = u32::try_from(self.tx.mulpdu - message.header_len()).unwrap_or(u32::MAX);
        let left = message.total - message.offset;
        let Some(qp) = &self.qp else { return Ok(false) };
        let (table, pd) = (&env.driver.table, qp.pd.id());
        let pin = match &message.source {
            Source::Request { seq, sge, sge_offset } => {
                let sq = qp.sq.lock();
                let Some(wqe) = sq.get(*seq) else { return Ok(false) };
                let Some(piece) = wqe.sges.get(*sge).copied() else { return Ok(false) };
                drop(sq);
                let range =
                    (piece.addr.wrapping_add(u64::from(*sge_offset)), left.min(piece.length - *sge_offset));
                let failed = Down::Local { seq: Some(*seq), status: WcStatus::LocalProtection };
                table.pin_local(&mut self.recent, piece.lkey, pd, range, false).map_err(|_| failed)?
            }
            Source::Owed { request, .. } if left > 0 && qp.access().contains(Access::REMOTE_READ) => {
                let range = (request.source_to.wrapping_add(u64::from(message.offset)), left);
                let stag = request.source_stag;
                let from = (self.stream_id, pd);
                // What is wrong with part of it is found, and said, with the segment that meets it.
                let Ok(pin) = table.pin_remote(&mut self.recent, stag, from, range, Right::Read) else {
                    return Ok(false);
                };
                pin
            }
            _ => return Ok(false),
        };
        let copied = pin.is_shared() || self.tx.fpdu.markers() || self.options.stable_tx;
        if room.min(left) >= GATHER_MIN && !copied {
            return Ok(false);
        }
        let mut done = 0;
        while done < pin.len() && (done == 0 || self.out.staging.len() < STAGING) {
            let len = room.min(message.total - message.offset);
            let end = done + len as usize;
            if end > pin.len() {
                break;
            }
            let start = begin_fpdu(&mut self.out.staging, &message.segment_header(len));
            pin.copy_to_vec(done..end, &mut self.out.staging);
            self.tx.fpdu.seal(&mut self.out.staging, start);
            self.out.push_staged(start);
            self.out.end_fpdu();
            message.offset += len;
            done = end;
        }
        let whole = pin.len();
        drop(pin);
        if let Source::Request { sge, sge_offset, .. } = &mut message.source {
            if done == whole && message.offset < message.total {
                (*sge, *sge_offset) = (*sge + 1, 0);
            } else {
                *sge_offset += done as u32;
            }
        }
        Ok(done > 0)
    }

    /// One FPDU of `message`. True when it was the last.
    fn fpdu(&mut self, message: &mut Message, env: &mut Env<'_>) -> Result<bool, Down> {
        let room = u32::try_from(self.tx.mulpdu - message.header_len()).unwrap_or(u32::MAX);
        let len = room.min(message.total - message.offset);
        let header = message.segment_header(len);
        let mut spans = std::mem::take(&mut self.tx.spans);
        let start = begin_fpdu(&mut self.out.staging, &header);
        self.payload(message, len, &mut spans, env)?;
        if self.by_iovec(len, &spans) {
            self.gather(start, header.len(), len, &mut spans);
        } else {
            for span in spans.drain(..) {
                let Ok(pin) = span.pin() else { return Err(self.source_gone(message)) };
                pin.copy_to_vec(0..span.len(), &mut self.out.staging);
            }
            self.tx.fpdu.seal(&mut self.out.staging, start);
            self.out.push_staged(start);
        }
        self.out.end_fpdu();
        self.tx.spans = spans;
        message.offset += len;
        Ok(message.offset == message.total)
    }

    /// Finds the next `len` octets of payload: small fixed ones go to staging, memory to `spans`.
    fn payload(
        &mut self,
        message: &mut Message,
        len: u32,
        spans: &mut Vec<Span>,
        env: &Env<'_>,
    ) -> Result<(), Down> {
        if len == 0 {
            return Ok(());
        }
        let from = message.offset as usize..(message.offset + len) as usize;
        match &mut message.source {
            Source::Empty => Ok(()),
            Source::Octets { octets } => {
                self.out.staging.extend_from_slice(&octets[from]);
                Ok(())
            }
            Source::Owed { request, asked } => {
                let to = request.source_to.wrapping_add(u64::from(message.offset));
                let memory = (request.source_stag, to, len);
                spans.push(self.owed_memory(memory, Right::Read, asked, env)?);
                Ok(())
            }
            Source::Request { seq, sge, sge_offset } => {
                let Some(qp) = &self.qp else { return Err(Down::Asked) };
                let sq = qp.sq.lock();
                let Some(wqe) = sq.get(*seq) else { return Err(Down::Asked) };
                if wqe.flags.contains(SendFlags::INLINE) {
                    self.out.staging.extend_from_slice(&wqe.inline[from]);
                    return Ok(());
                }
                let gathered = gather_spans(qp, &env.driver.table, &wqe.sges, (sge, sge_offset), len, spans);
                gathered.map_err(|_| Down::Local { seq: Some(*seq), status: WcStatus::LocalProtection })
            }
        }
    }

    fn source_gone(&self, message: &Message) -> Down {
        match message.source {
            Source::Request { seq, .. } => Down::Local { seq: Some(seq), status: WcStatus::LocalProtection },
            Source::Owed { ref request, ref asked } => {
                let stag = request.source_stag;
                self.fault(Protection::InvalidStag { stag }.into(), Some(asked.clone()))
            }
            Source::Empty | Source::Octets { .. } => Down::Asked,
        }
    }

    fn by_iovec(&self, len: u32, spans: &[Span]) -> bool {
        len >= GATHER_MIN
            && !self.tx.fpdu.markers()
            && !self.options.stable_tx
            && spans.iter().all(|span| !span.is_shared())
    }

    /// Queues header, memory, and PAD with CRC as pieces.
    fn gather(&mut self, start: usize, header_len: usize, len: u32, spans: &mut Vec<Span>) {
        let ulpdu_len = (header_len + len as usize) as u16;
        self.out.staging[start..start + 2].copy_from_slice(&FpduTx::header(ulpdu_len));
        let mut crc = Crc32c::new();
        if self.tx.fpdu.crc_on() {
            crc = crc.update(&self.out.staging[start..]);
        }
        self.out.push_staged(start);
        for span in spans.drain(..) {
            if self.tx.fpdu.crc_on()
                && let Ok(pin) = span.pin()
            {
                // A region that goes away now is met again when the octets are sent.
                crc = pin.fold(0..span.len(), crc, Crc32c::update);
            }
            self.out.push_memory(span);
        }
        let trailer = self.tx.fpdu.trailer(ulpdu_len, crc);
        let start = self.out.staging.len();
        self.out.staging.extend_from_slice(trailer.as_slice());
        self.out.push_staged(start);
    }

    /// The next message in line: RTR and hello first, then answers and requests by turns.
    fn next_message(&mut self, env: &mut Env<'_>) -> Result<Option<Message>, Down> {
        if self.tx.farewell && self.reads.may_ask() {
            self.tx.farewell = false;
            return Ok(Some(self.ask_read(Asker::Farewell, Remote::default(), 0, None)));
        }
        if self.tx.hold {
            // Only requests that never leave this machine.
            return self.next_request(env);
        }
        if let Some(rtr) = self.tx.rtr.take() {
            return Ok(Some(self.rtr_message(rtr)));
        }
        if let Some(Greeting { stag, to }) = self.tx.greeting.take() {
            return Ok(Some(Message::empty(MessageHeader::Tagged { opcode: Opcode::Write, stag, to })));
        }
        // Before an answer, too: behind the answer to a farewell the peer hears no request for an acknowledgement.
        let now = self.tx.acks.uncovered >= ACK_EVERY || !self.reads.owed.is_empty();
        if now && let Some(message) = self.next_ack() {
            return Ok(Some(message));
        }
        self.tx.answers_turn = !self.tx.answers_turn;
        let first = if self.tx.answers_turn { self.next_answer(env)? } else { self.next_request(env)? };
        if first.is_some() {
            return Ok(first);
        }
        let second = if self.tx.answers_turn { self.next_request(env)? } else { self.next_answer(env)? };
        Ok(second.or_else(|| self.next_ack()))
    }

    /// The Read whose answer completes what was built since the last one.
    fn next_ack(&mut self) -> Option<Message> {
        let acks = &mut self.tx.acks;
        if acks.uncovered == 0 || acks.outstanding == ACKS || !self.reads.may_ask() {
            return None;
        }
        acks.uncovered = 0;
        acks.outstanding += 1;
        let upto = acks.last;
        Some(self.ask_read(Asker::Ack(upto), Remote::default(), 0, None))
    }

    /// RFC 6581 section 9.2: the initiator's zero-length Read or Send.
    fn rtr_message(&mut self, rtr: Rtr) -> Message {
        if rtr == Rtr::Send {
            let header = self.tx.untagged(Opcode::Send, rdmap::QN_SEND, 0);
            return Message::empty(header);
        }
        self.tx.rtr_unanswered = true;
        self.ask_read(Asker::Rtr, Remote::default(), 0, None)
    }

    /// A Read Request, and its place among the outstanding ones.
    fn ask_read(&mut self, asker: Asker, remote: Remote, len: u32, invalidate: Option<STag>) -> Message {
        let sink_to = self.reads.next_sink_to();
        let header = self.tx.untagged(Opcode::ReadRequest, rdmap::QN_READ, 0);
        let request = ReadRequest {
            sink_stag: self.reads.sink,
            sink_to,
            len,
            source_stag: STag(remote.rkey),
            source_to: remote.addr,
        };
        let kind = OutstandingKind::Read { sink_to, len, received: 0 };
        self.reads.ask(asker, header.msn(), kind, invalidate);
        Message::octets(header, &request.emit(), asker.request())
    }

    /// The answer that is owed longest. Its credit is free as soon as it is under way: the peer cannot use the credit before
    /// it has the answer.
    fn next_answer(&mut self, env: &Env<'_>) -> Result<Option<Message>, Down> {
        let Some(Owed { kind, segment: asked }) = self.reads.owed.pop_front() else { return Ok(None) };
        match kind {
            OwedKind::Read(request) => {
                let (stag, to) = (request.sink_stag, request.sink_to);
                Ok(Some(Message {
                    header: MessageHeader::Tagged { opcode: Opcode::ReadResponse, stag, to },
                    total: request.len,
                    offset: 0,
                    source: Source::Owed { request, asked },
                    ends: None,
                    then: None,
                }))
            }
            OwedKind::Atomic(request) => {
                let original = self.execute(&request, &asked, env)?;
                let response = AtomicResponse { request_id: request.request_id, original };
                let header = self.tx.untagged(Opcode::AtomicResponse, rdmap::QN_ATOMIC_RESPONSE, 0);
                Ok(Some(Message::octets(header, &response.emit(), None)))
            }
        }
    }

    /// Executes an atomic, in its turn behind earlier Reads (RFC 7306 section 5.4).
    fn execute(&self, request: &AtomicRequest, asked: &QuotedSegment, env: &Env<'_>) -> Result<u64, Down> {
        let stag = request.stag;
        let span = self.owed_memory((stag, request.to, 8), Right::Atomic, asked, env)?;
        let refuse = |fault| self.fault(fault, Some(asked.clone()));
        let pin = span.pin().map_err(|_| refuse(Protection::InvalidStag { stag }.into()))?;
        // RFC 7306 section 5.2: an address that is not 64-bit aligned is refused and the memory left alone.
        pin.atomic_u64(0, |old| request.apply(old))
            .map_err(|_| refuse(RdmapError::AtomicUnaligned { stag, to: request.to }.into()))
    }

    /// Memory that the peer asks for, if it may.
    fn owed_memory(
        &self,
        (stag, to, len): (STag, u64, u32),
        right: Right,
        asked: &QuotedSegment,
        env: &Env<'_>,
    ) -> Result<Span, Down> {
        let Some(qp) = &self.qp else { return Err(Down::Asked) };
        let needed = if matches!(right, Right::Atomic) { Access::REMOTE_ATOMIC } else { Access::REMOTE_READ };
        if !qp.access().contains(needed) {
            return Err(self.fault(Protection::AccessRights { stag }.into(), Some(asked.clone())));
        }
        env.driver
            .table
            .remote(stag, qp.stream(), qp.pd.id(), to, len, right)
            .map_err(|error| self.fault(read_fault(&error), Some(asked.clone())))
    }

    /// The next request of the send queue that may start.
    fn next_request(&mut self, env: &mut Env<'_>) -> Result<Option<Message>, Down> {
        let Some(qp) = self.qp.clone() else { return Ok(None) };
        loop {
            let mut sq = qp.sq.lock();
            sq.look();
            if sq.mode != SqMode::Running {
                return Ok(None);
            }
            let Some((seq, wqe)) = sq.next_wqe() else { return Ok(None) };
            let fenced = wqe.flags.contains(SendFlags::FENCE) && !self.reads.outstanding.is_empty();
            let no_credit = wqe.op.needs_ord() && !self.reads.may_ask();
            let held = self.tx.hold && !wqe.op.is_local();
            if fenced || no_credit || held {
                return Ok(None);
            }
            if !wqe.op.is_local() {
                if let Some(what) = missing(&wqe.op, self.peer.features().extensions()) {
                    if self.peer.is_open() {
                        return Ok(None);
                    }
                    tracing::warn!(parent: &self.span, what, "the peer does not offer what a request needs");
                    return Err(Down::Local { seq: Some(seq), status: WcStatus::LocalQpOperation });
                }
                let awaits_answer = wqe.op.needs_ord();
                let message = self.start(seq, wqe);
                sq.begun(seq, message.header.msn());
                if awaits_answer && let Some(asked) = self.reads.outstanding.back_mut() {
                    asked.sges = sq.take_sges(seq);
                }
                return Ok(Some(message));
            }
            let status = execute_local(&qp, &env.driver.table, &wqe.op);
            sq.advance();
            if status != WcStatus::Success {
                return Err(Down::Local { seq: Some(seq), status });
            }
            sq.done(seq, status);
        }
    }

    /// The first (mostly the only) message of a request.
    fn start(&mut self, seq: u32, wqe: &Wqe) -> Message {
        if let Some(header) = self.tx.plain_header(&wqe.op, wqe.flags) {
            return Message::of_request(header, seq, wqe, true);
        }
        let solicited = wqe.flags.contains(SendFlags::SOLICITED);
        match wqe.op {
            SendOp::AtomicWrite { remote } => Message::of_request(tagged_write(remote), seq, wqe, true),
            SendOp::WriteImm { remote, imm } => {
                let mut write = Message::of_request(tagged_write(remote), seq, wqe, false);
                write.then = Some((seq, imm, solicited));
                write
            }
            SendOp::SendImm { imm } => {
                let msn = self.tx.next_msn(rdmap::QN_SEND);
                Message::of_request(MessageHeader::SendImm { msn, imm, solicited }, seq, wqe, true)
            }
            SendOp::Read { remote, invalidate } => {
                self.ask_read(Asker::Request(seq), remote, wqe.len, invalidate)
            }
            SendOp::FetchAdd { remote, add, mask } => {
                let op = (AtomicOp::FetchAdd, add, mask, 0, u64::MAX);
                self.ask_atomic(seq, remote, op)
            }
            SendOp::CmpSwap { remote, compare, compare_mask, swap, swap_mask } => {
                let op = (AtomicOp::CmpSwap, swap, swap_mask, compare, compare_mask);
                self.ask_atomic(seq, remote, op)
            }
            SendOp::Write { .. } | SendOp::Send | SendOp::SendInvalidate { .. } => {
                unreachable!("these have a plain header")
            }
            SendOp::LocalInvalidate { .. } | SendOp::Bind(_) | SendOp::FastRegister(_) => {
                unreachable!("local requests send nothing")
            }
        }
    }

    fn ask_atomic(
        &mut self,
        seq: u32,
        remote: Remote,
        (op, data, mask, compare, compare_mask): (AtomicOp, u64, u64, u64, u64),
    ) -> Message {
        let request_id = self.reads.next_request_id();
        let header = self.tx.untagged(Opcode::AtomicRequest, rdmap::QN_READ, 0);
        let request = AtomicRequest {
            op,
            request_id,
            stag: STag(remote.rkey),
            to: remote.addr,
            data,
            mask,
            compare,
            compare_mask,
        };
        let kind = OutstandingKind::Atomic { request_id };
        self.reads.ask(Asker::Request(seq), header.msn(), kind, None);
        Message::octets(header, &request.emit(), Some(seq))
    }

    /// TCP has taken octets: requests whose last one it was are done.
    fn note_sent(&mut self, env: &mut Env<'_>) -> Result<(), Down> {
        let sent = self.out.sent();
        if self.tx.marks.front().is_none_or(|(end, _)| *end > sent) {
            return Ok(());
        }
        let Some(qp) = self.qp.clone() else { return Ok(()) };
        let mut sq = qp.sq.lock();
        while let Some((_, seq)) = self.tx.marks.front().copied().filter(|(end, _)| *end <= sent) {
            sq.done(seq, WcStatus::Success);
            self.tx.marks.pop_front();
        }
        drop(sq);
        self.retire(env)
    }

    /// Completes the requests that are over.
    pub(super) fn retire(&mut self, env: &mut Env<'_>) -> Result<(), Down> {
        let Some(qp) = &self.qp else { return Ok(()) };
        let mut room = true;
        qp.sq.lock().retire(None, |cqe| room &= qp.send_cq.push(cqe, env.wakes));
        if room { Ok(()) } else { Err(Down::CqOverflow) }
    }

    /// Whether a request is half built.
    pub(super) fn is_inside_request(&self) -> bool {
        self.tx.message.as_ref().is_some_and(|m| m.ends.is_some() || m.then.is_some())
    }

    /// Whether every request that was begun is over: SQD is reached.
    pub(super) fn has_no_request_open(&self) -> bool {
        !self.is_inside_request()
            && self.tx.marks.is_empty()
            && self.tx.acks.uncovered == 0
            && self.reads.outstanding.is_empty()
    }

    /// A segment of the engine's own, queued behind everything.
    pub(super) fn send_control(&mut self, header: &Header, payload: &[u8]) {
        let start = begin_fpdu(&mut self.out.staging, header);
        self.out.staging.extend_from_slice(payload);
        self.tx.fpdu.seal(&mut self.out.staging, start);
        self.out.push_staged(start);
        self.out.end_fpdu();
    }

    /// Whether all that was asked for is sent and answered.
    pub(super) fn is_drained(&self) -> bool {
        let sends_left = self.qp.as_ref().is_some_and(|qp| {
            let sq = qp.sq.lock();
            sq.mode == SqMode::Running && sq.has_next()
        });
        !sends_left
            && self.tx.is_idle()
            && self.tx.marks.is_empty()
            && self.out.is_empty()
            && self.reads.outstanding.is_empty()
            && self.reads.owed.is_empty()
    }

    /// Whether the peer, which has closed its half, has got every answer.
    pub(super) fn owes_nothing(&self) -> bool {
        self.reads.owed.is_empty() && self.tx.message.is_none() && self.out.is_empty()
    }
}

/// Room for ULPDU_Length, and the DDP header behind it. Gives the FPDU's first octet.
fn begin_fpdu(staging: &mut Vec<u8>, header: &Header) -> usize {
    let start = staging.len();
    let at = start + 2;
    staging.resize(at + header.len(), 0);
    header.emit(&mut staging[at..]);
    start
}

/// The extension that `op` needs and the peer does not have.
fn missing(op: &SendOp, peer: Extensions) -> Option<&'static str> {
    match op {
        SendOp::WriteImm { .. } if !peer.immediate => Some("immediate data (RFC 7306)"),
        SendOp::FetchAdd { .. } | SendOp::CmpSwap { .. } if !peer.atomic => Some("atomics (RFC 7306)"),
        SendOp::AtomicWrite { .. } if !peer.send_imm => Some("atomic writes (a promise of uiw peers)"),
        SendOp::SendImm { .. } if !peer.send_imm => Some("Send with immediate (a uiw extension)"),
        _ => None,
    }
}

/// Requests that touch only the table of STags.
fn execute_local(qp: &Arc<QpInner>, table: &mem::Table, op: &SendOp) -> WcStatus {
    let pd = qp.pd.id();
    match op {
        SendOp::LocalInvalidate { stag } => match table.invalidate_local(*stag, qp.stream(), pd) {
            Ok(()) => WcStatus::Success,
            Err(_) => WcStatus::LocalProtection,
        },
        SendOp::Bind(bind) => match crate::mr::bind(table, bind, pd, qp.stream()) {
            Ok(_) => WcStatus::Success,
            Err(_) => WcStatus::MwBind,
        },
        SendOp::FastRegister(reg) => match crate::mr::fast_register(table, reg, pd, qp.stream()) {
            Ok(()) => WcStatus::Success,
            Err(_) => WcStatus::LocalProtection,
        },
        _ => WcStatus::LocalQpOperation,
    }
}

/// The next `len` octets of a request's elements, from where the last segment ended.
fn gather_spans(
    qp: &QpInner,
    table: &mem::Table,
    sges: &[Sge],
    (at, at_offset): (&mut usize, &mut u32),
    len: u32,
    spans: &mut Vec<Span>,
) -> Result<(), mem::LocalError> {
    let mut left = len;
    while left > 0 {
        let Some(sge) = sges.get(*at) else { break };
        let take = left.min(sge.length - *at_offset);
        let addr = sge.addr.wrapping_add(u64::from(*at_offset));
        spans.push(table.local(sge.lkey, qp.pd.id(), addr, take, false)?);
        left -= take;
        *at_offset += take;
        if *at_offset == sge.length {
            *at += 1;
            *at_offset = 0;
        }
    }
    Ok(())
}

#[cfg(test)]
impl Tx {
    /// As after so many messages on each queue.
    pub(crate) fn at_msn(&mut self, msn: u32) {
        self.msn = [msn; 4];
    }
}
