//! Which message a stream sends next, and what its RDMAP header says: the engine's own, owed answers, requests.

use crate::driver::Env;
use crate::qp::message::{Message, MessageHeader, Source, tagged_write};
use crate::qp::peer::Greeting;
use crate::qp::read_queue::{Asker, OutstandingKind, Owed, OwedKind, QuotedSegment};
use crate::qp::send_queue::{SendQueue, SqMode, Wqe};
use crate::qp::teardown::read_fault;
use crate::qp::{Conn, Down, QpInner};
use crate::wc::WcStatus;
use crate::wr::{Remote, SendFlags, SendOp};
use ddp::STag;
use mem::{Access, Right, Span};
use mpa::startup::Rtr;
use rdmap::{
    AtomicOp, AtomicRequest, AtomicResponse, Extensions, Opcode, Protection, RdmapError, ReadRequest,
};
use std::sync::Arc;

impl Conn {
    /// The second half of a Write with immediate (RFC 7306 section 6): the immediate in the first four of eight octets.
    pub(super) fn immediate(&mut self, seq: u32, imm: u32, solicited: bool) -> Message {
        let opcode = if solicited { Opcode::ImmediateSe } else { Opcode::Immediate };
        let header = self.tx.untagged(opcode, rdmap::QN_SEND, 0);
        let mut octets = [0; 8];
        octets[..4].copy_from_slice(&imm.to_be_bytes());
        if let Some(qp) = &self.qp {
            qp.sq.lock().begun(seq, header.msn());
        }
        Message::octets(header, &octets, Some(seq))
    }

    /// The next message in line: RTR and hello first, then answers and requests by turns.
    pub(super) fn next_message(&mut self, env: &mut Env<'_>) -> Result<Option<Message>, Down> {
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
        let now = self.tx.acks.is_due() || !self.reads.owed.is_empty();
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
        if !self.reads.may_ask() {
            return None;
        }
        let upto = self.tx.acks.begin()?;
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

    /// The answer that is owed longest. Its credit is free as soon as its last segment is built: the peer cannot use the credit
    /// before it has the answer.
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
    pub(super) fn owed_memory(
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
                if awaits_answer {
                    self.asked(&mut sq, seq, &message);
                } else {
                    sq.begun(seq, message.header.msn());
                }
                return Ok(Some(message));
            }
            let status = execute_local(&qp, &env.driver.table, &wqe.op);
            sq.advance();
            if status != WcStatus::Success {
                return Err(Down::Local { seq: Some(seq), status });
            }
            sq.done(seq, status);
            qp.retire(&mut sq, env.wakes)?;
        }
    }

    /// Request `seq`, a Read or atomic, is begun with `message`: its elements go where its answer is awaited.
    pub(super) fn asked(&mut self, sq: &mut SendQueue, seq: u32, message: &Message) {
        sq.begun(seq, message.header.msn());
        if let Some(asked) = self.reads.outstanding.back_mut() {
            asked.sges = sq.take_sges(seq);
        }
    }

    /// The first (mostly the only) message of a request.
    pub(super) fn start(&mut self, seq: u32, wqe: &Wqe) -> Message {
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
}

/// The extension that `op` needs and the peer does not have.
pub(super) fn missing(op: &SendOp, peer: Extensions) -> Option<&'static str> {
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
