//! The end of a stream, on either side and for any reason: what is sent to the peer, and what is
//! reported to the host.
//!
//! After a fault of the peer, the FPDU on the wire is finished, everything not begun is dropped,
//! and the Terminate is sent (RFC 5040 section 4.8, with the codes from `uiw_rdmap::Fault`),
//! followed by FIN. The rest of a partly sent FPDU is copied first, so that no buffer is read after
//! its request was flushed. `Event::Ended` names the request that the error is about; the host
//! completes that one or the oldest with its status, and flushes all others in order.
//!
//! The peer's Terminate is parsed in the RFC's layout or in siw's, whichever is consistent
//! (`uiw_rdmap::Terminate::parse_at`).
//!
//! An orderly close sends all posted requests and waits for outstanding responses; then each end
//! sends its FIN. If the transport hangs up while a Send waits for a receive, the host reads and
//! keeps the remaining bytes. When sending fails, the host reads the transport to its end before it
//! reports the loss: the peer's last messages may be in front of its reset.

use crate::Time;
use crate::error::{ConnError, LocalError, StartupFailure};
use crate::event::{AffectedRequest, Event, StreamEnd};
use crate::host::StreamHost;
use crate::reads::ReadOrigin;
use crate::stream::{Phase, RdmapStream};
use crate::timers::Timer;
use alloc::boxed::Box;
use core::time::Duration;
use uiw_ddp::Header;
use uiw_mpa::startup::StartupRefusal;
use uiw_rdmap::{Control, Fault, MpaFault, Opcode, Terminate, TerminateEncoding};

/// Maximum time for the last Reads of a peer after the host was detached.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

impl<M> RdmapStream<M> {
    /// Begins the orderly close (`rdma_disconnect`): posted requests are sent and answered, then
    /// each end sends its FIN. Before that, a stream with acknowledged completions makes sure that
    /// the peer has all acknowledgements of the messages that the peer has sent. Returns false if
    /// the stream is not open or is already closing.
    pub fn close(&mut self, now: Time) -> bool {
        if !self.is_open() || self.shared.fin.wanted {
            return false;
        }
        // The FIN is sent after the first FPDU.
        self.establish(now);
        self.shared.now = now;
        self.shared.fin.wanted = true;
        self.shared.timers.set(Timer::Close, now, self.shared.config.close_timeout);
        true
    }

    /// Resets an open stream that has not ended within `wait`. A stream that is closing already
    /// keeps its own deadline.
    pub fn limit_lifetime(&mut self, wait: Duration, now: Time) {
        if self.is_open() && !self.shared.fin.wanted {
            self.shared.timers.set(Timer::Close, now, wait);
        }
    }

    /// Restarts the time limit of a close that has begun, for a host that passed an earlier time in
    /// the call that ended the stream, or whose peer still acknowledges data.
    pub fn renew_close_deadline(&mut self, now: Time) {
        if self.shared.fin.wanted && !self.is_over() {
            self.shared.timers.set(Timer::Close, now, self.shared.config.close_timeout);
        }
    }

    /// Ends the stream. A Terminate tells the peer that the cause is at this end, and
    /// [`Event::Ended`] tells the host what to flush. During start-up no Terminate is sent.
    pub fn abort<H: StreamHost<Memory = M>>(&mut self, host: &mut H, now: Time) {
        self.shared.now = now;
        self.fail(ConnError::Aborted, host);
    }

    /// Like [`RdmapStream::abort`], but with a reason that the host chooses.
    pub fn fail_locally<H: StreamHost<Memory = M>>(
        &mut self,
        host: &mut H,
        error: LocalError,
        now: Time,
    ) {
        self.shared.now = now;
        self.fail(ConnError::Local { request: None, error }, host);
    }

    /// Ends start-up without a message to the peer. Has no effect after start-up.
    pub fn abandon_startup(&mut self) {
        if !self.is_established() && !self.is_over() {
            self.fail_startup(StartupFailure::Aborted);
        }
    }

    /// Detaches the host, whose queues are being destroyed. The stream closes in order if no
    /// request is in progress, and otherwise with a Terminate. After the events that are reported
    /// now, the queues of the host are not used any more; only its memory is, for the peer's Reads.
    ///
    /// A peer with acknowledged completions may still wait for responses to its last Reads, which
    /// an RNIC would send even after the queue pair is destroyed. The peer gets these responses
    /// until a Read of this end has been answered, or until a Send or Write that they would
    /// acknowledge was discarded.
    pub fn detach<H: StreamHost<Memory = M>>(&mut self, host: &mut H, now: Time) {
        self.shared.now = now;
        if (self.may_drain() || self.is_draining()) && self.receiver.is_stalled() {
            // No receive will be posted for the Send that waits for one, and acknowledging it would
            // be wrong.
            let error = self.receiver.no_receive_in_time();
            self.fail(error, host);
        } else if self.may_drain() {
            self.shared.reads.acks.clear();
            self.shared.reads.acks.on = false;
            self.shared.fin.drain_begun = true;
            self.sender.send_drain_read();
            self.limit_drain();
        } else if self.is_draining() {
            // The orderly close has progressed so far that no request of the host is in progress.
            self.limit_drain();
        } else {
            let finished = self.is_open() && self.sender.is_finished(&self.shared, host);
            self.fail(if finished { ConnError::Closed } else { ConnError::Aborted }, host);
        }
        self.shared.detached = true;
    }

    /// Returns whether the host is detached, so that the stream ends by itself.
    #[must_use]
    pub fn is_detached(&self) -> bool {
        self.shared.detached
    }

    /// Returns whether the stream is open only for the last acknowledgements of its peer: the host
    /// is detached, or all its requests have completed and the stream is closing.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.is_open()
            && (self.shared.detached || self.shared.fin.drain_begun && !self.shared.fin.sent)
    }

    fn limit_drain(&mut self) {
        let wait = self.shared.config.close_timeout.min(DRAIN_TIMEOUT);
        self.shared.timers.set(Timer::Close, self.shared.now, wait);
    }

    /// Begins the last Read of an orderly close, when it is due.
    ///
    /// The peer may have a Send whose acknowledging Read still waits for ORD, and the local program
    /// may have disconnected because it received that Send. All other Reads of the peer are
    /// answered now, so the peer can send the acknowledging Read, and it does so before it answers
    /// the last Read of this end ([`RdmapStream::detach`]).
    pub(crate) fn begin_close_drain<H: StreamHost<Memory = M>>(&mut self, host: &mut H) {
        let fin = self.shared.fin;
        let due = fin.wanted && !fin.sent && !fin.received && !fin.drain_begun;
        if due
            && self.shared.reads.acks.on
            && !self.shared.completes_by_placement()
            && !self.shared.sending_blocked
            && !self.loopback
            && !self.receiver.is_stalled()
            && self.sender.is_finished(&self.shared, host)
        {
            self.shared.fin.drain_begun = true;
            self.sender.send_drain_read();
        }
    }

    /// Returns whether the peer may wait for acknowledgements, and supports a drain Read.
    fn may_drain(&self) -> bool {
        self.is_open()
            && self.shared.reads.acks.on
            && !self.shared.sending_blocked
            && !self.loopback
            && !self.sender.is_inside_request()
            && !self.shared.fin.wanted
            && !self.shared.fin.received
    }

    /// Handles the loss of the transport.
    pub fn handle_lost<H: StreamHost<Memory = M>>(&mut self, host: &mut H, now: Time) {
        self.shared.now = now;
        if self.is_starting() {
            self.fail_startup(StartupFailure::Lost);
        } else {
            self.fail(ConnError::Lost, host);
        }
    }

    /// Leaves Full Operation: sends the last messages, and tells the host what to flush.
    pub(crate) fn fail<H: StreamHost<Memory = M>>(&mut self, error: ConnError, host: &mut H) {
        if matches!(self.phase, Phase::Closing | Phase::Over) {
            if error.is_fatal_to_transport() {
                self.reset();
            }
            return;
        }
        let error = if self.loopback { self.as_own_peer(error) } else { error };
        let idle = self.sender.has_no_open_request(&self.shared)
            && !self.receiver.is_inside_message()
            && !self.shared.fin.wanted;
        let named = self.named_request(&error);
        let acknowledged = self.shared.reads.acks.on;
        // Before its exchange is decided, the peer would take an acknowledgement for a foreign
        // FPDU.
        let answered = self.shared.caps.due.is_none();
        // A partly sent FPDU is finished. The others refer to memory that the host is about to
        // release.
        let whole = self.sender.abandon(&mut self.shared, host);
        let terminate = if whole { self.terminate_for(&error) } else { None };
        if whole && answered {
            // Requests of the peer that were placed succeed, whatever ends the stream.
            self.shared.placement.forget_queued();
            self.sender.queue_placement_ack(&mut self.shared);
        }
        if let Some(terminate) = &terminate {
            // This is the last FPDU of the stream, after those that were begun.
            let header = uiw_rdmap::untagged_header(
                Opcode::Terminate,
                uiw_rdmap::QN_TERMINATE,
                1,
                0,
                true,
                0,
            );
            self.sender.send_control(&Header::Untagged(header), &terminate.emit());
        }
        let lost = error.is_fatal_to_transport() || !whole;
        let first = !self.shared.first_fpdu;
        let ended = StreamEnd { error, terminate, named, acknowledged, idle, first };
        self.shared.events.push_back(Event::Ended(Box::new(ended)));
        self.shared.reads.outstanding.clear();
        self.shared.reads.inbound.clear();
        self.receiver.parked = None;
        self.begin_closing();
        if lost {
            self.reset();
        }
    }

    /// Sends the queued bytes and then FIN, and waits for the peer's FIN.
    pub(crate) fn begin_closing(&mut self) {
        self.phase = Phase::Closing;
        self.pausing = false;
        self.shared.fin.wanted = true;
        self.shared.timers.set(Timer::Close, self.shared.now, self.shared.config.close_timeout);
    }

    /// Ends the transport with a reset.
    pub(crate) fn reset(&mut self) {
        self.reset = true;
        self.phase = Phase::Over;
    }

    /// Converts a fault of the peer if the peer is this stream itself: the Terminate that the
    /// stream sends to itself has arrived already.
    fn as_own_peer(&self, error: ConnError) -> ConnError {
        match (&error, self.terminate_for(&error)) {
            (ConnError::Fault(_), Some(terminate)) => {
                ConnError::Terminated(Box::new(terminate), TerminateEncoding::Rfc)
            }
            _ => error,
        }
    }

    /// Returns the Terminate for `error` (RFC 5040 section 4.8), if one may be sent.
    fn terminate_for(&self, error: &ConnError) -> Option<Terminate> {
        // RFC 5044 section 7.1.1: a responder sends no FPDU before it has validated the first FPDU
        // of the initiator. An initiator refuses a Reply even if it waits for `establish` (RFC 6581
        // section 9).
        let may_send = !self.shared.sending_blocked || matches!(error, ConnError::Refused(_));
        if !may_send || self.shared.fin.sent || !self.is_open() {
            return None;
        }
        match error {
            ConnError::Fault(fault) => {
                let (fault, segment) = &**fault;
                Some(fault.terminate(segment.as_ref().map(|segment| segment.quoted())))
            }
            ConnError::Local { .. } | ConnError::SourceGone | ConnError::Aborted => {
                Some(Fault::LocalCatastrophic.terminate(None))
            }
            ConnError::FinInsideFpdu { .. } => {
                Some(Fault::Mpa(MpaFault::LlpClosed).terminate(None))
            }
            ConnError::Refused(refusal) => {
                let fault = match refusal {
                    StartupRefusal::InsufficientIrd { .. } => Fault::InsufficientIrd,
                    StartupRefusal::NoMatchingRtr => Fault::NoMatchingRtr,
                };
                Some(fault.terminate(None))
            }
            ConnError::Terminated(..)
            | ConnError::Lost
            | ConnError::Closed
            | ConnError::NoFirstFpdu => None,
        }
    }

    /// Returns the request that has failed: the one that a Terminate names, or else the oldest that
    /// has not completed. None has failed if the Terminate quotes a response of this end.
    fn named_request(&self, error: &ConnError) -> AffectedRequest {
        match error {
            ConnError::Local { request, .. } => {
                request.map_or(AffectedRequest::Nothing, AffectedRequest::Request)
            }
            ConnError::Terminated(terminate, _) => {
                let header = terminate.ddp_header.and_then(|copy| copy.header().ok());
                header.map_or(AffectedRequest::Oldest, |header| self.request_of(&header))
            }
            ConnError::Lost
            | ConnError::NoFirstFpdu
            | ConnError::FinInsideFpdu { .. }
            | ConnError::SourceGone
            | ConnError::Fault(_) => AffectedRequest::Oldest,
            ConnError::Refused(_) | ConnError::Closed | ConnError::Aborted => {
                AffectedRequest::Nothing
            }
        }
    }

    /// Returns the request to which a segment of this end belongs.
    fn request_of(&self, header: &Header) -> AffectedRequest {
        let opcode = Opcode::from_raw(Control::parse(header.rsvd_ulp()).opcode);
        if matches!(opcode, Some(Opcode::ReadResponse | Opcode::AtomicResponse)) {
            return AffectedRequest::Nothing;
        }
        match header {
            Header::Tagged(tagged) => AffectedRequest::Write { stag: tagged.stag, to: tagged.to },
            Header::Untagged(untagged) if untagged.qn == uiw_rdmap::QN_SEND => {
                AffectedRequest::Send { msn: untagged.msn }
            }
            Header::Untagged(untagged) if untagged.qn == uiw_rdmap::QN_READ => {
                let mut outstanding = self.shared.reads.outstanding.iter();
                match outstanding.find(|read| read.msn == untagged.msn).map(|read| read.origin) {
                    Some(ReadOrigin::Request(id)) => AffectedRequest::Request(id),
                    _ => AffectedRequest::Oldest,
                }
            }
            Header::Untagged(_) => AffectedRequest::Oldest,
        }
    }
}
