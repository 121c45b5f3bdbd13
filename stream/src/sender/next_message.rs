//! Chooses the next message that a stream sends, and makes its RDMAP header: messages of the stream
//! itself, responses, requests.

use super::Sender;
use super::message::{Message, MessageEnd, MessageHeader, Source, missing_extension};
use crate::error::{ConnError, RequestRefusal};
use crate::host::{StreamHost, Wait};
use crate::reads::{InboundKind, OutstandingKind, PLACEHOLDER, ReadOrigin};
use crate::request::{Op, Remote, Request};
use crate::shared::Shared;
use crate::unreliable::AnnouncedWrite;
use uiw_ddp::STag;
use uiw_mpa::startup::Rtr;
use uiw_rdmap::{AtomicOp, AtomicRequest, AtomicResponse, ImmediateData, Opcode, ReadRequest};

impl<M> Sender<M> {
    /// Begins the second message of a Write with immediate data (RFC 7306 section 6). The immediate
    /// data is in the first four of its eight bytes.
    pub(super) fn immediate<H: StreamHost>(
        &mut self,
        id: u32,
        imm: u32,
        solicited: bool,
        host: &mut H,
    ) -> Message {
        let opcode = if solicited { Opcode::ImmediateSe } else { Opcode::Immediate };
        let header = self.untagged(opcode, uiw_rdmap::QN_SEND, 0);
        let mut data = ImmediateData::default();
        data.0[..4].copy_from_slice(&imm.to_be_bytes());
        host.begun(id, header.msn());
        self.fields_message(header, &data.emit(), MessageEnd::Sent(id))
    }

    /// Returns the next message: a drain Read, the RTR message and the capability exchange first,
    /// then acknowledging Reads that are due, then responses and requests alternately.
    pub(super) fn next_message<H: StreamHost>(
        &mut self,
        shared: &mut Shared,
        host: &mut H,
    ) -> Result<Option<Message>, ConnError> {
        if self.drain_read && shared.reads.has_credit() {
            self.drain_read = false;
            return Ok(Some(self.own_read(ReadOrigin::Drain, shared)));
        }
        if shared.sending_blocked {
            // Only requests that send nothing may be handled.
            return self.take_request(shared, host);
        }
        if let Some(rtr) = self.rtr.take() {
            return Ok(Some(self.rtr_message(rtr, shared)));
        }
        if let Some(remote) = shared.caps.due.take() {
            return Ok(Some(Message::empty(MessageHeader::write(remote))));
        }
        // A due acknowledging Read is sent even before a response: after the response to a drain
        // Read, the peer reads no further acknowledging Read.
        let ack_first = shared.reads.acks.is_due() || !shared.reads.inbound.is_empty();
        if ack_first && let Some(message) = self.next_ack(shared) {
            return Ok(Some(message));
        }
        self.responses_were_first = !self.responses_were_first;
        for answer in [self.responses_were_first, !self.responses_were_first] {
            let next = match answer {
                true => self.next_answer(shared, host)?,
                false => self.take_request(shared, host)?,
            };
            if next.is_some() || self.answer_waits {
                return Ok(next);
            }
        }
        Ok(self.next_ack(shared))
    }

    /// Returns the Read whose response completes the requests that were built since the last one.
    fn next_ack(&mut self, shared: &mut Shared) -> Option<Message> {
        if !shared.reads.has_credit() {
            return None;
        }
        let upto = shared.reads.acks.begin()?;
        Some(self.own_read(ReadOrigin::Ack(upto), shared))
    }

    /// Returns the RTR message of the initiator: a zero-length Read or Send (RFC 6581 section 9.2).
    fn rtr_message(&mut self, rtr: Rtr, shared: &mut Shared) -> Message {
        if rtr == Rtr::Send {
            let header = self.untagged(Opcode::Send, uiw_rdmap::QN_SEND, 0);
            return Message::empty(header);
        }
        self.own_read(ReadOrigin::Rtr, shared)
    }

    /// Returns the Read Request for a Read of the host, and adds it to the outstanding Reads.
    fn read(
        &mut self,
        id: u32,
        remote: Remote,
        len: u32,
        invalidate: Option<STag>,
        shared: &mut Shared,
    ) -> Message {
        let sink = Remote { stag: shared.reads.sink, to: shared.reads.next_sink_to() };
        let header = self.read_header(ReadOrigin::Request(id), sink.to, len, invalidate, shared);
        self.fields_message(
            header,
            &read_request(sink, remote, len).emit(),
            MessageEnd::Answered(id),
        )
    }

    /// Returns a zero-length Read of the stream itself.
    fn own_read(&mut self, origin: ReadOrigin, shared: &mut Shared) -> Message {
        let header = self.read_header(origin, PLACEHOLDER.to, 0, None, shared);
        self.fields_message(
            header,
            &read_request(PLACEHOLDER, PLACEHOLDER, 0).emit(),
            MessageEnd::Nothing,
        )
    }

    fn read_header(
        &mut self,
        origin: ReadOrigin,
        sink_to: u64,
        len: u32,
        invalidate: Option<STag>,
        shared: &mut Shared,
    ) -> MessageHeader {
        let header = self.untagged(Opcode::ReadRequest, uiw_rdmap::QN_READ, 0);
        let kind = OutstandingKind::Read { sink_to, len, received: 0 };
        shared.reads.add(origin, header.msn(), kind, invalidate);
        header
    }

    /// Returns the response for which the peer has waited longest.
    fn next_answer<H: StreamHost>(
        &mut self,
        shared: &mut Shared,
        host: &mut H,
    ) -> Result<Option<Message>, ConnError> {
        let Some(oldest) = shared.reads.inbound.front() else { return Ok(None) };
        match oldest.kind {
            InboundKind::Read(request) => {
                let (stag, to) = (request.sink_stag, request.sink_to);
                let header = MessageHeader::Tagged { opcode: Opcode::ReadResponse, stag, to };
                let source = Remote { stag: request.source_stag, to: request.source_to };
                let source = Source::Inbound(source);
                let mut message = Message::new(header, request.len, source, MessageEnd::Nothing);
                if shared.config.divides_long_messages {
                    message.divide(shared.reads.inbound.len() == 1);
                }
                Ok(Some(message))
            }
            InboundKind::Atomic(request) => {
                // Responses are sent in the order of the requests, after earlier Reads (RFC 7306
                // section 5.4).
                let original = match host.atomic(&request) {
                    Ok(original) => original,
                    // Earlier responses are sent before the Terminate, and no further request.
                    Err(_) if !self.queue.is_empty() => {
                        self.answer_waits = true;
                        self.responses_were_first = false;
                        return Ok(None);
                    }
                    Err(error) => {
                        let fault = error.fault(request.stag, request.to);
                        return Err(ConnError::fault(fault, shared.reads.oldest_segment(0)));
                    }
                };
                shared.reads.end_inbound();
                let response = AtomicResponse { request_id: request.request_id, original };
                let header =
                    self.untagged(Opcode::AtomicResponse, uiw_rdmap::QN_ATOMIC_RESPONSE, 0);
                Ok(Some(self.fields_message(header, &response.emit(), MessageEnd::Nothing)))
            }
        }
    }

    /// Returns the next request of the host that may start.
    fn take_request<H: StreamHost>(
        &mut self,
        shared: &mut Shared,
        host: &mut H,
    ) -> Result<Option<Message>, ConnError> {
        if shared.detached || self.drained {
            return Ok(None);
        }
        while let Some(request) = host.next_request() {
            let fenced = request.fence && !shared.reads.outstanding.is_empty();
            let no_credit = request.op.needs_ord() && !shared.reads.has_credit();
            let local = request.op == Op::Local;
            if no_credit && !core::mem::replace(&mut shared.reads.lacks_credit, true) {
                host.count_wait(Wait::Credit);
            }
            let id = request.id;
            // A request that was posted before the negotiation would wait for ever.
            if no_credit && shared.reads.ord == 0 && !shared.sending_blocked {
                host.refuse(id, RequestRefusal::NoOrd)
                    .map_err(|error| ConnError::of_request(id, error))?;
                continue;
            }
            if fenced || no_credit || shared.sending_blocked && !local {
                return Ok(None);
            }
            if local {
                host.execute_local(id).map_err(|error| ConnError::of_request(id, error))?;
                continue;
            }
            if let Some(what) =
                missing_extension(&request.op, shared.caps.capabilities().extensions())
            {
                if shared.caps.is_undecided() {
                    return Ok(None);
                }
                host.refuse(id, RequestRefusal::MissingExtension(what))
                    .map_err(|error| ConnError::of_request(id, error))?;
                continue;
            }
            if host.is_unreliable()
                && self.announced.take() != Some(id)
                && let Some(announcement) = AnnouncedWrite::of_request(&request)
            {
                self.announced = Some(id);
                let header = MessageHeader::write(announcement.to_write());
                return Ok(Some(Message::empty(header)));
            }
            let awaits_answer = request.op.needs_ord();
            let mut message = self.start(&request, shared, host);
            if shared.config.divides_long_messages {
                message.divide(host.is_awaited(id));
            }
            if !awaits_answer {
                host.begun(id, message.header.msn());
            }
            return Ok(Some(message));
        }
        Ok(None)
    }

    /// Returns the first message of a request, which is usually the only one.
    pub(super) fn start<H: StreamHost>(
        &mut self,
        request: &Request,
        shared: &mut Shared,
        host: &mut H,
    ) -> Message {
        let (id, solicited) = (request.id, request.solicited);
        if let Some(header) = self.plain_header(&request.op, solicited) {
            return Message::of_request(header, request, MessageEnd::Sent(id));
        }
        let message = match request.op {
            Op::AtomicWrite { remote } => {
                return Message::of_request(
                    MessageHeader::write(remote),
                    request,
                    MessageEnd::Sent(id),
                );
            }
            Op::WriteImm { remote, imm } => {
                let end = MessageEnd::Immediate { id, imm, solicited };
                return Message::of_request(MessageHeader::write(remote), request, end);
            }
            Op::SendImm { imm } => {
                let msn = self.next_msn(uiw_rdmap::QN_SEND);
                let header = MessageHeader::SendImm { msn, imm, solicited };
                return Message::of_request(header, request, MessageEnd::Sent(id));
            }
            Op::Read { remote, invalidate } => {
                self.read(id, remote, request.len, invalidate, shared)
            }
            Op::FetchAdd { remote: Remote { stag, to }, add, mask } => {
                self.atomic(id, AtomicRequest::fetch_add(0, stag, to, add, mask), shared)
            }
            Op::CmpSwap { remote: Remote { stag, to }, compare, compare_mask, swap, swap_mask } => {
                let (op, request_id) = (AtomicOp::CmpSwap, 0);
                let (data, mask) = (swap, swap_mask);
                let request =
                    AtomicRequest { op, request_id, stag, to, data, mask, compare, compare_mask };
                self.atomic(id, request, shared)
            }
            Op::Write { .. } | Op::Send | Op::SendInvalidate { .. } => {
                unreachable!("these have a plain header")
            }
            Op::Local => unreachable!("local requests send nothing"),
        };
        host.begun(id, message.header.msn());
        message
    }

    /// Returns the message of an atomic, whose request identifier is chosen here.
    fn atomic(&mut self, id: u32, request: AtomicRequest, shared: &mut Shared) -> Message {
        let request_id = shared.reads.next_request_id();
        let header = self.untagged(Opcode::AtomicRequest, uiw_rdmap::QN_READ, 0);
        let request = AtomicRequest { request_id, ..request };
        let kind = OutstandingKind::Atomic { request_id };
        shared.reads.add(ReadOrigin::Request(id), header.msn(), kind, None);
        self.fields_message(header, &request.emit(), MessageEnd::Answered(id))
    }

    /// Returns the header for an operation that is a single message of the host's bytes and needs
    /// no extension.
    #[inline(always)]
    pub(super) fn plain_header(&mut self, op: &Op, solicited: bool) -> Option<MessageHeader> {
        Some(match *op {
            Op::Write { remote } => MessageHeader::write(remote),
            Op::Send => {
                let opcode = if solicited { Opcode::SendSe } else { Opcode::Send };
                self.untagged(opcode, uiw_rdmap::QN_SEND, 0)
            }
            Op::SendInvalidate { stag } => {
                let opcode =
                    if solicited { Opcode::SendSeInvalidate } else { Opcode::SendInvalidate };
                self.untagged(opcode, uiw_rdmap::QN_SEND, stag.0)
            }
            _ => return None,
        })
    }

    /// Begins a message that consists of `fields`.
    fn fields_message(&mut self, header: MessageHeader, fields: &[u8], end: MessageEnd) -> Message {
        self.fields[..fields.len()].copy_from_slice(fields);
        Message::new(header, fields.len() as u32, Source::Fields, end)
    }

    fn untagged(&mut self, opcode: Opcode, qn: u32, ulp32: u32) -> MessageHeader {
        MessageHeader::Untagged { opcode, qn, msn: self.next_msn(qn), ulp32 }
    }
}

fn read_request(sink: Remote, source: Remote, len: u32) -> ReadRequest {
    ReadRequest {
        sink_stag: sink.stag,
        sink_to: sink.to,
        len,
        source_stag: source.stag,
        source_to: source.to,
    }
}
