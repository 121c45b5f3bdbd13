//! The sending half of the data path: messages (`next_message`) of requests and owed answers to segments
//! (`ddp`), FPDUs (`mpa`) and octets for TCP (`llp`). Read from top to bottom, it is the way of one request.
//!
//! Large payloads go from registered memory by iovec; small ones, and all with Markers, are built in one piece. Memory that a
//! peer may write, and the source of a Read Response (which may legally change at any moment), is copied before its CRC is
//! computed: an FPDU's octets never change between CRC and wire.

use crate::driver::Env;
use crate::qp::acks::Acks;
use crate::qp::in_place::InPlace;
use crate::qp::message::{Message, MessageHeader, Source, tagged_write};
use crate::qp::next_message::missing;
use crate::qp::out_queue::SendError;
use crate::qp::peer::Greeting;
use crate::qp::send_queue::SqMode;
use crate::qp::{Conn, Down, Phase, QpInner};
use crate::wc::WcStatus;
use crate::wr::{SendFlags, SendOp, Sge};
use ddp::Header;
use mem::{Access, Right, Span};
use mpa::startup::Rtr;
use mpa::tx::FpduTx;
use rdmap::{Opcode, Protection};
use std::collections::VecDeque;
use std::ops::Range;

/// Octets given to TCP in one call, about.
pub(crate) const BATCH: u64 = 256 << 10;
/// Pieces in one call; each FPDU by iovec takes two.
const BATCH_PIECES: usize = 1000;
/// Staging of one stream.
const STAGING: usize = 192 << 10;
/// Rounds of build and send in one pump: the stream's budget.
const ROUNDS: usize = 4;
/// Small requests built under one lock of the send queue: a poster waits no longer than that.
const BURST: usize = 32;
/// From this payload on an FPDU goes by iovec; below, three iovecs cost more than the copy.
const GATHER_MIN: u32 = 8 << 10;

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
    pub(super) rtr_unanswered: bool,
    /// Whose turn it is when both requests and answers are due.
    pub(super) answers_turn: bool,
    pub(super) acks: Acks,
    /// At the last look the send queue had no more; who posts from then on rings.
    drained: bool,
    /// A Read to be sent behind all, for a queue pair that is gone.
    pub(super) farewell: bool,
    spans: Vec<Span>,
    unsigned: Unsigned,
}

/// FPDUs in staging whose CRCs are still to be computed. To read octets right behind their stores is slow (45 against 23
/// nanoseconds for 1,418), so the copies of some go before the CRCs of all.
#[derive(Default)]
struct Unsigned {
    fpdus: Vec<Range<usize>>,
}

impl Unsigned {
    /// Octets copied before their CRCs: they stay in the first-level cache.
    const MOST: usize = 16 << 10;

    /// Makes an FPDU of `staging[start..]`. To be followed by [`Unsigned::sign`] before anything is sent.
    fn frame(&mut self, fpdu: &mut FpduTx, staging: &mut Vec<u8>, start: usize) {
        fpdu.frame(staging, start);
        self.fpdus.push(start..staging.len());
        if staging.len() - self.fpdus[0].start >= Self::MOST {
            self.sign(fpdu, staging);
        }
    }

    fn sign(&mut self, fpdu: &FpduTx, staging: &mut [u8]) {
        for range in self.fpdus.drain(..) {
            fpdu.sign(&mut staging[range]);
        }
    }
}

/// What a look for small requests came to.
enum Burst {
    /// Some were built; there may be more.
    Built,
    /// The send queue has no more, whether some were built or not.
    Drained,
    /// The next in line is something else, or something else goes first.
    NotSmall,
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
            drained: false,
            farewell: false,
            spans: Vec::new(),
            unsigned: Unsigned::default(),
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

    /// There are requests to look at.
    pub(crate) fn rang(&mut self) {
        self.drained = false;
    }

    pub(crate) fn ack_came(&mut self) {
        self.acks.came();
    }

    pub(crate) fn rtr_answered(&self) -> bool {
        !self.rtr_unanswered
    }

    pub(crate) fn rtr_was_answered(&mut self) {
        self.rtr_unanswered = false;
    }

    pub(super) fn next_msn(&mut self, qn: u32) -> u32 {
        let msn = &mut self.msn[qn as usize & 3];
        let now = *msn;
        *msn = msn.wrapping_add(1);
        now
    }

    /// Request `seq` ends at position `at`: it is over when TCP has taken it, or the peer has acknowledged it.
    fn sent_when(&mut self, at: u64, seq: u32) {
        if self.acks.on {
            self.acks.built(seq);
        } else {
            self.marks.push_back((at, seq));
        }
    }

    /// Whether nothing but requests is in line.
    fn may_burst(&self) -> bool {
        self.greeting.is_none() && self.rtr.is_none() && !self.acks.is_due()
    }

    /// The header of an operation that is one message of the application's octets and needs no extension.
    pub(super) fn plain_header(&mut self, op: &SendOp, flags: SendFlags) -> Option<MessageHeader> {
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

    pub(super) fn untagged(&mut self, opcode: Opcode, qn: u32, ulp32: u32) -> MessageHeader {
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
        self.acks.forget();
        self.farewell = false;
        self.marks.clear();
        self.greeting = None;
        self.rtr = None;
    }

    /// Whether a Read Response is half built.
    pub(super) fn is_answering(&self) -> bool {
        self.message.as_ref().is_some_and(|message| matches!(message.source, Source::Owed { .. }))
    }

    fn is_idle(&self) -> bool {
        self.message.is_none()
            && self.greeting.is_none()
            && self.rtr.is_none()
            && !self.farewell
            && self.acks.covers_all()
    }
}

impl Conn {
    /// Sends what is due, within the stream's budget and as far as TCP takes it.
    pub(super) fn transmit(&mut self, env: &mut Env<'_>) -> Result<(), Down> {
        let open = matches!(self.phase, Phase::Open);
        let mut full = false;
        let mut more = false;
        for round in 0..ROUNDS {
            let all = !open || self.build(env)?;
            if self.out.is_empty() {
                break;
            }
            full = !self.out.send(&mut *self.stream).map_err(|error| match error {
                SendError::Gone => Down::Cut,
                SendError::Io(error) => Down::Lost(error),
            })?;
            self.note_sent(env)?;
            if full || all {
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

    /// Cuts messages into FPDUs until the batch is full or nothing is due. True when nothing more is.
    fn build(&mut self, env: &mut Env<'_>) -> Result<bool, Down> {
        if self.out.staging.capacity() == 0 {
            self.out.staging = env.pool.take();
        }
        self.choose_mulpdu(self.tx.fpdu.markers());
        while self.out.waiting() < BATCH
            && self.out.pieces() < BATCH_PIECES
            && self.out.staging.len() < STAGING
        {
            if self.tx.message.is_none() {
                match self.burst(env)? {
                    Burst::Built => continue,
                    Burst::Drained if self.tx.is_idle() && self.reads.owed.is_empty() => return Ok(true),
                    Burst::Drained | Burst::NotSmall => {}
                }
                self.tx.message = self.next_message(env)?;
            }
            let Some(mut message) = self.tx.message.take() else { return Ok(true) };
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
        Ok(false)
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

    /// Requests of one small FPDU each, under one lock of the send queue.
    fn burst(&mut self, env: &mut Env<'_>) -> Result<Burst, Down> {
        // Lent for the time: another count of it would cost more than all of this.
        let qp = self.qp.take();
        let built = match &qp {
            Some(qp) => self.build_burst(qp, env),
            None => Ok(Burst::NotSmall),
        };
        self.qp = qp;
        self.tx.unsigned.sign(&self.tx.fpdu, &mut self.out.staging);
        self.recent.let_go();
        built
    }

    fn build_burst(&mut self, qp: &QpInner, env: &mut Env<'_>) -> Result<Burst, Down> {
        let others_first = !self.reads.owed.is_empty() && !self.tx.answers_turn;
        if self.tx.hold || !self.tx.may_burst() || others_first {
            return Ok(Burst::NotSmall);
        }
        let offered = self.peer.features().extensions();
        let (table, pd) = (&env.driver.table, qp.pd.id());
        let mut sq = qp.sq.lock();
        sq.look();
        let mut built = 0;
        let mut drained = false;
        while built < BURST
            && sq.mode == SqMode::Running
            && self.out.staging.len() < STAGING
            && !self.tx.acks.is_due()
        {
            let Some((seq, wqe)) = sq.next_wqe() else {
                drained = true;
                break;
            };
            if wqe.flags.contains(SendFlags::FENCE) || missing(&wqe.op, offered).is_some() {
                break;
            }
            if wqe.op.needs_ord() {
                if !self.reads.may_ask() {
                    break;
                }
                let message = self.start(seq, wqe);
                let start = begin_fpdu(&mut self.out.staging, &message.segment_header(message.total));
                self.out.staging.extend_from_slice(message.own_octets());
                self.queue_small(start);
                self.asked(&mut sq, seq, &message);
                sq.advance();
                built += 1;
                continue;
            }
            let small = (wqe.len as usize) < (GATHER_MIN as usize).min(self.tx.mulpdu - ddp::Untagged::LEN);
            if !small {
                break;
            }
            // Behind every reason to stop: it counts the message.
            let Some(header) = self.tx.plain_header(&wqe.op, wqe.flags) else { break };
            let start = begin_fpdu(&mut self.out.staging, &header.segment(0, true));
            self.out.staging.extend_from_slice(&wqe.inline);
            for sge in &wqe.sges {
                let range = (sge.addr, sge.length);
                let failed = Down::Local { seq: Some(seq), status: WcStatus::LocalProtection };
                let pin =
                    table.hold_local(&mut self.recent, sge.lkey, pd, range, false).map_err(|_| failed)?;
                pin.copy_to_vec(0..pin.len(), &mut self.out.staging);
            }
            self.queue_small(start);
            sq.begun(seq, header.msn());
            sq.advance();
            self.tx.sent_when(self.out.queued(), seq);
            built += 1;
        }
        self.tx.answers_turn &= built == 0;
        self.tx.drained = drained;
        Ok(match (drained, built) {
            (true, _) => Burst::Drained,
            (false, 0) => Burst::NotSmall,
            (false, _) => Burst::Built,
        })
    }

    /// Queues the FPDU that stands in staging from `start` on; its CRC is still to be computed.
    fn queue_small(&mut self, start: usize) {
        self.tx.unsigned.frame(&mut self.tx.fpdu, &mut self.out.staging, start);
        self.out.push_staged(start);
        self.out.end_fpdu();
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
                table.hold_local(&mut self.recent, piece.lkey, pd, range, false).map_err(|_| failed)?
            }
            Source::Owed { request, .. } if left > 0 && qp.access().contains(Access::REMOTE_READ) => {
                let range = (request.source_to.wrapping_add(u64::from(message.offset)), left);
                let stag = request.source_stag;
                let from = (self.stream_id, pd);
                // What is wrong with part of it is found, and said, with the segment that meets it.
                let Ok(pin) = table.hold_remote(&mut self.recent, stag, from, range, Right::Read) else {
                    return Ok(false);
                };
                pin
            }
            _ => return Ok(false),
        };
        let in_place = room.min(left) >= GATHER_MIN
            && !pin.is_shared()
            && !self.tx.fpdu.markers()
            && !self.options.stable_tx;
        let mut memory = None;
        let mut done = 0;
        while done < pin.len()
            && self.out.staging.len() < STAGING
            && self.out.pieces() < BATCH_PIECES
            && self.out.waiting() < BATCH
        {
            let len = room.min(message.total - message.offset);
            let end = done + len as usize;
            if end > pin.len() {
                break;
            }
            let header = message.segment_header(len);
            let start = begin_fpdu(&mut self.out.staging, &header);
            if in_place {
                let memory = *memory.get_or_insert_with(|| self.out.add_memory(pin.to_span()));
                let mut fpdu = InPlace::begin(&mut self.tx.fpdu, &mut self.out, start, len);
                fpdu.memory(memory, &pin, done..end);
                fpdu.end();
            } else {
                pin.copy_to_vec(done..end, &mut self.out.staging);
                self.tx.unsigned.frame(&mut self.tx.fpdu, &mut self.out.staging, start);
                self.out.push_staged(start);
            }
            self.out.end_fpdu();
            message.offset += len;
            done = end;
        }
        self.tx.unsigned.sign(&self.tx.fpdu, &mut self.out.staging);
        let whole = pin.len();
        drop(pin);
        self.recent.let_go();
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
            let mut fpdu = InPlace::begin(&mut self.tx.fpdu, &mut self.out, start, len);
            for span in spans.drain(..) {
                fpdu.span(span);
            }
            fpdu.end();
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

    /// TCP has taken octets: requests whose last one it was are done.
    fn note_sent(&mut self, env: &mut Env<'_>) -> Result<(), Down> {
        let sent = self.out.sent();
        if self.tx.marks.front().is_none_or(|(end, _)| *end > sent) {
            return Ok(());
        }
        let Some(qp) = &self.qp else { return Ok(()) };
        let mut sq = qp.sq.lock();
        while let Some((_, seq)) = self.tx.marks.front().copied().filter(|(end, _)| *end <= sent) {
            sq.done(seq, WcStatus::Success);
            self.tx.marks.pop_front();
        }
        qp.retire(&mut sq, env.wakes)
    }

    /// Completes the requests that are over.
    pub(super) fn retire(&mut self, env: &mut Env<'_>) -> Result<(), Down> {
        let Some(qp) = &self.qp else { return Ok(()) };
        qp.retire(&mut qp.sq.lock(), env.wakes)
    }

    /// Whether there is nothing to send unless something happens: a post, an arrival that lets a waiting request go, room.
    pub(super) fn sends_nothing(&self) -> bool {
        self.out.is_empty()
            && self.tx.is_idle()
            && self.reads.owed.is_empty()
            && self.interest == llp::Interest { read: self.rx.is_read(), write: false }
    }

    /// As [`Conn::sends_nothing`], and no request or close waits for an arrival.
    pub(super) fn waits_for_posts(&self) -> bool {
        self.sends_nothing() && self.tx.drained && !self.fin.wanted && !self.draining
    }

    /// Whether a request is half built.
    pub(super) fn is_inside_request(&self) -> bool {
        self.tx.message.as_ref().is_some_and(|m| m.ends.is_some() || m.then.is_some())
    }

    /// Whether every request that was begun is over: SQD is reached.
    pub(super) fn has_no_request_open(&self) -> bool {
        !self.is_inside_request()
            && self.tx.marks.is_empty()
            && self.tx.acks.covers_all()
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
    let mut front = [0; 2 + ddp::Untagged::LEN];
    let len = header.emit(&mut front[2..]);
    staging.extend_from_slice(&front[..2 + len]);
    start
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
