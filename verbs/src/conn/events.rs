//! Turns the events of a stream into completions, state changes and events of the connection
//! manager.

use super::{Conn, QpHost, StackRequest};
use crate::cm::{CloseReason, CmEventKind, ConnInfo, ConnRequest};
use crate::driver::Services;
use crate::error::Error;
use crate::event::AsyncEvent;
use crate::qp::{LocalCause, LocalDetail, QpInner, QpState, RecvSource, SendQueue, SqMode};
use crate::suspect::Suspect;
use crate::wc::{WcStatus, WireReason};
use crate::wr::SendOp;
use std::fmt;
use std::io;
use std::sync::Arc;
use uiw_counters::ConnDetails;
use uiw_mpa::startup::Negotiated;
use uiw_rdmap::{Fault, MpaFault, TerminateEncoding, TerminateReason};
use uiw_stream::{
    AffectedRequest, Capabilities, ConnError, EstablishedStream, Event, LocalError, PeerKind,
    StartupFailure, StreamEnd,
};

impl Conn {
    /// Handles all events of the stream.
    #[inline]
    pub(super) fn take_events(&mut self, services: &mut Services) {
        if self.state.failure.is_some() {
            self.fail_stream(services);
        }
        while let Some(event) = self.stream.poll_event() {
            self.on_stream_event(event, services);
        }
    }

    #[cold]
    fn fail_stream(&mut self, services: &mut Services) {
        let Some(error) = self.state.failure.take() else { return };
        let now = services.now;
        let mut host = QpHost::new(self.qp.as_deref(), &mut self.state, services);
        self.stream.fail_locally(&mut host, error, now);
    }

    #[cold]
    fn on_stream_event(&mut self, event: Event, services: &mut Services) {
        match event {
            Event::Requested(request) => self.on_request(&request, services),
            Event::Established(established) => self.on_established(*established, services),
            Event::Failed(failure) => {
                let error = self.startup_error(failure);
                self.on_startup_failed(error, services);
            }
            Event::Reconnect => {
                let peer = self.peer();
                tracing::info!(%peer, "the peer ended the connection on revision 2: trying revision 1");
                self.stack_request = StackRequest::Reconnect;
            }
            Event::Peer(PeerKind::Capable(capabilities)) => {
                tracing::debug!(peer = %self.peer(), ?capabilities, "the peer is a uiw peer");
            }
            Event::Peer(_) => {}
            Event::Drained => {
                if let Some(qp) = &self.qp {
                    qp.raise_drained(&mut services.wakes);
                }
            }
            Event::Ended(ended) => self.on_ended(&ended, services),
        }
    }

    /// Handles the Request of the initiator: the application decides about it.
    fn on_request(&mut self, request: &uiw_mpa::startup::Request, services: &mut Services) {
        let Some(driver) = services.driver.upgrade() else { return };
        let request = ConnRequest::new(
            driver,
            (self.token, self.half_open.clone()),
            self.cm.id,
            &*self.socket,
            request,
            Arc::clone(&self.options),
        );
        self.cm.report(CmEventKind::ConnectRequest(request), &mut services.wakes);
        // No data may arrive before the Reply is sent. The socket still reports a hang-up.
        let _ = self.set_interest(false, false);
    }

    fn on_established(&mut self, established: EstablishedStream, services: &mut Services) {
        let EstablishedStream { negotiated, peer_ird_ord, private_data } = established;
        if self.stream.is_initiator() {
            self.enter_rts(&negotiated, services);
        }
        let (local, peer) = (self.socket.local_addr(), self.socket.peer_addr());
        let peer_identity = self.socket.peer_identity();
        let info = ConnInfo { local, peer, negotiated, peer_ird_ord, private_data, peer_identity };
        self.cm.established(info, &mut services.wakes);
    }

    /// Enters Full Operation and sends the posted requests.
    pub(super) fn enter_rts(&mut self, negotiated: &Negotiated, services: &mut Services) {
        self.half_open = None;
        self.open_counters(services);
        tracing::debug!(peer = %self.peer(), qp = self.logged_qp(), ?negotiated, "full operation");
        if self.options.acknowledged && negotiated.ord == 0 {
            let peer = self.peer();
            tracing::warn!(%peer, "completions are not acknowledged: ORD was negotiated to 0");
        }
        let Some(qp) = &self.qp else { return };
        qp.set_state(QpState::Rts);
        let mut sq = qp.sq.lock();
        sq.mode = SqMode::Running;
        sq.ord = negotiated.ord;
        drop(sq);
        let mut attrs = qp.attrs.lock();
        self.state.stream = attrs.stream;
        attrs.ird = negotiated.ird;
    }

    /// Starts the counters of the connection.
    fn open_counters(&mut self, services: &mut Services) {
        let (local, peer) = (self.socket.local_addr(), self.socket.peer_addr());
        self.was_open = true;
        self.state.counters = services.counters.open(&ConnDetails {
            qp_num: self.qp.as_ref().map_or(0, |qp| qp.num),
            local,
            peer,
            initiator: self.stream.is_initiator(),
            // Both ends have been in the set of addresses since TCP connected, which was before the
            // Request was sent.
            same_device: services.shared.has_both_ends(local, peer),
            kernel: self.socket.info().of_kernel,
        });
    }

    /// Returns the error of the connection manager for a start-up that has failed.
    fn startup_error(&self, failure: StartupFailure) -> Error {
        let peer = self.socket.peer_addr();
        match failure {
            StartupFailure::Rejected { private_data, peer_ird_ord, markers_asked } => {
                Error::Rejected { peer, private_data, peer_ird_ord, markers_asked }
            }
            StartupFailure::Frame(source) => Error::PeerStartup { peer, source },
            StartupFailure::Config(source) => Error::Startup(source),
            StartupFailure::Closed => Error::ClosedInStartup { peer },
            StartupFailure::TimedOut => Error::TimedOut {
                peer,
                awaits_reply: self.stream.is_initiator() && self.address_entry.is_some(),
                after: self.options.startup_timeout,
            },
            StartupFailure::Lost | StartupFailure::Aborted => Error::NotConnected,
        }
    }

    /// Ends a connection that was never established.
    pub(super) fn on_startup_failed(&mut self, error: Error, services: &mut Services) {
        services.counters.startup_failed();
        let peer = self.peer();
        if self.stream.is_initiator() {
            tracing::debug!(%peer, %error, "start-up failed");
            if let Some(suspect) = Suspect::of_connect(&self.options, &error) {
                tracing::warn!(%peer, "start-up failed: {suspect}");
            }
            self.cm.failed(error, &mut services.wakes);
        } else {
            tracing::warn!(%peer, %error, "start-up failed");
            // Without `half_open`, the connection comes from `accept_open` and not from a listener.
            // `accept_open` reports every outcome as an event.
            if self.half_open.is_none() {
                self.cm.failed(error, &mut services.wakes);
            }
        }
        if let Some(qp) = self.qp.take() {
            // The queue pair keeps its state, so that the application can try again with it.
            qp.set_conn(None);
        }
        self.socket.abort();
    }

    fn on_ended(&mut self, ended: &StreamEnd, services: &mut Services) {
        if !self.discards_requests {
            self.report_all_receives(services);
        }
        match self.silent_for {
            Some(time) if matches!(ended.error, ConnError::Lost) => {
                let (peer, qp) = (self.peer(), self.logged_qp());
                tracing::warn!(%peer, qp, "the stream ends: nothing acknowledged for {time:?}");
            }
            _ => self.log_end(ended, services),
        }
        let suspect = self.find_suspect(ended);
        if let Some(suspect) = suspect {
            let peer = self.peer();
            tracing::warn!(%peer, "the peer ended the connection before it sent anything: {suspect}");
        }
        count(ended, services);
        let (peer, after) = (self.socket.peer_addr(), self.options.startup_timeout);
        let timed_out = || Error::TimedOut { peer, awaits_reply: false, after };
        if ended.idle && self.may_leave(&ended.error) {
            if matches!(ended.error, ConnError::NoFirstFpdu) {
                self.cm.failed(timed_out(), &mut services.wakes);
            }
            return self.leave(services);
        }
        if self.may_lose(&ended.error) {
            return self.lose(services);
        }
        match &ended.error {
            ConnError::Refused(refusal) => {
                self.cm.failed(Error::PeerRefusal { peer, refusal: *refusal }, &mut services.wakes);
            }
            ConnError::NoFirstFpdu => self.cm.failed(timed_out(), &mut services.wakes),
            // The initiator has accepted the Reply, and then closed the connection before its first
            // FPDU.
            ConnError::Closed if self.cm.is_undecided() => {
                let source = io::ErrorKind::ConnectionReset.into();
                self.cm.failed(Error::Lost { peer, source }, &mut services.wakes);
            }
            _ => {}
        }
        // The received bytes will never be part of an FPDU.
        self.keep_bytes(&[], services);
        let reason = wire_reason(ended);
        self.complete_all(ended, reason, services);
        self.raise(&ended.error, reason, services);
        let orderly = matches!(ended.error, ConnError::Closed | ConnError::Aborted);
        let is_lost = matches!(ended.error, ConnError::Lost);
        let silent_for = self.silent_for.filter(|_| is_lost);
        let cut = is_lost && matches!(self.tls_error, Some((io::ErrorKind::UnexpectedEof, _)));
        self.cm
            .ended(CloseReason { reason, orderly, silent_for, cut, suspect }, &mut services.wakes);
    }

    /// Logs why the stream ends, and the request or receive that caused it.
    fn log_end(&mut self, ended: &StreamEnd, services: &Services) {
        let detail = self.end_detail(ended, services);
        let (peer, qp) = (self.peer(), self.logged_qp());
        let error = match (&detail, &ended.error) {
            (Some(detail), error) => format!("{error}: {detail}"),
            (None, error @ ConnError::Lost) => match &self.tls_error {
                Some((_, cause)) => format!("{error}: {cause}"),
                None => error.to_string(),
            },
            (None, error) => error.to_string(),
        };
        if let (Some(detail), Some(inner)) = (&detail, &self.qp)
            && detail.cause != LocalCause::Remote
        {
            inner.keep_local_error(detail);
            if !inner.log_limit.permits(detail.cause) {
                tracing::debug!(%peer, qp, error, "the stream ends");
                return;
            }
        }
        match &ended.error {
            ConnError::Fault(_)
            | ConnError::Terminated(..)
            | ConnError::Lost
            | ConnError::FinInsideFpdu { .. }
            | ConnError::Refused(_)
            | ConnError::NoFirstFpdu => tracing::warn!(%peer, qp, error, "the stream ends"),
            ConnError::Local { error: LocalError::CqOverflow, .. } | ConnError::SourceGone => {
                tracing::error!(%peer, qp, error, "the stream ends");
            }
            ConnError::Local { .. } => {
                tracing::warn!(%peer, qp, error, "a local error; the stream ends");
            }
            ConnError::Closed | ConnError::Aborted => {
                tracing::debug!(%peer, qp, error, "the stream ends");
            }
        }
    }

    /// Describes the request or receive that ends the stream, with the offending value and the
    /// limit.
    fn end_detail(&mut self, ended: &StreamEnd, services: &Services) -> Option<LocalDetail> {
        if let Some(detail) = self.state.detail.take() {
            return Some(detail);
        }
        let qp = self.qp.as_ref()?;
        if let ConnError::Local { error: LocalError::CqOverflow, .. } = ended.error {
            let (send, receive) = (qp.send_cq.depth(), qp.recv_cq.depth());
            let text = format_args!(
                "the queues have room for {send} completions of requests and {receive} of receives"
            );
            return Some(LocalDetail::other(text));
        }
        let sq = qp.sq.lock();
        let remote = matches!(ended.error, ConnError::Terminated(..));
        let wqe = sq.get(find_named(&sq, ended.named)?)?;
        match ended.error {
            ConnError::Local { error: LocalError::Protection, .. } => {
                let writes = wqe.op.writes_locally();
                // The elements of a Read are stored with its response.
                let elements = if writes { self.state.oldest_sink() } else { &wqe.sges };
                let text = qp.explain_elements(&services.table, elements, writes);
                Some(LocalDetail::of_request(wqe, LocalCause::Protection, text))
            }
            ConnError::Local { .. } => {
                Some(LocalDetail::of_request(wqe, LocalCause::Other, "failed"))
            }
            _ if remote && ended.named != AffectedRequest::Oldest => {
                let text = format_args!("{} bytes{}", wqe.len, RemotePlace(&wqe.op));
                Some(LocalDetail::of_request(wqe, LocalCause::Remote, text))
            }
            _ => None,
        }
    }

    /// Returns the suspected cause in the peer, if the first FPDU of the peer was a Terminate, or
    /// if this end has rejected its Reply.
    fn find_suspect(&self, ended: &StreamEnd) -> Option<Suspect> {
        let peer = self.socket.peer_addr();
        match &ended.error {
            ConnError::Terminated(terminate, _) if ended.first => {
                let codes = (terminate.layer, terminate.etype, terminate.code);
                let (negotiated, initiator) =
                    (self.stream.negotiated()?, self.stream.is_initiator());
                let suspect =
                    Suspect::of_first_terminate(&self.options, negotiated, initiator, codes)?;
                // A Terminate that quotes another segment refers to that one.
                let is_other = match ended.named {
                    AffectedRequest::Write { stag, .. } => !Capabilities::is_request(stag),
                    AffectedRequest::Send { .. } => true,
                    _ => false,
                };
                (suspect != Suspect::CapabilityExchange || !is_other).then_some(suspect)
            }
            ConnError::Refused(refusal) => {
                Suspect::of_connect(&self.options, &Error::PeerRefusal { peer, refusal: *refusal })
            }
            _ => None,
        }
    }

    /// Returns whether the queue pair continues without this connection and waits for another one.
    /// Requests that were posted before stay in its queues.
    ///
    /// This is the case if the peer has closed the connection while nothing was in progress, if the
    /// peer's queue pair has entered the error state, or if the peer has gone after the Reply of
    /// this end and before its own first FPDU. A queue pair in SQD does not continue, because its
    /// requests wait for the program.
    fn may_leave(&self, error: &ConnError) -> bool {
        let closed = matches!(error, ConnError::Closed) || is_local_error_of_peer(error);
        let gone = matches!(
            error,
            ConnError::Lost | ConnError::NoFirstFpdu | ConnError::FinInsideFpdu { .. }
        );
        let undecided = self.cm.is_undecided();
        self.options.outlives_peer
            && (closed || gone && undecided)
            && self.qp.as_ref().is_some_and(|qp| {
                let sq = qp.sq.lock();
                qp.state() == QpState::Rts
                    && sq.mode == SqMode::Running
                    && (undecided || !sq.has_next())
            })
    }

    /// Returns whether the queue pair continues without this connection because it is unreliable:
    /// it is then affected only by errors of this end, and not by its peer or the loss of the
    /// connection.
    fn may_lose(&self, error: &ConnError) -> bool {
        let own =
            matches!(error, ConnError::Local { .. } | ConnError::Aborted | ConnError::SourceGone);
        !own && self.options.outlives_peer
            && !self.cm.is_undecided()
            && self.qp.as_ref().is_some_and(|qp| qp.unreliable && qp.state() == QpState::Rts)
    }

    /// Ends the connection of an unreliable queue pair. Messages in progress are lost, and the
    /// queue pair waits for another connection.
    fn lose(&mut self, services: &mut Services) {
        self.keep_bytes(&[], services);
        if let Some(qp) = &self.qp {
            qp.complete_unreliable(&mut services.wakes);
            if let Some(receive) = self.state.take_unfilled_receive() {
                qp.put_back(receive);
            }
        }
        self.leave(services);
    }

    /// Detaches the queue pair, which then waits for another connection.
    fn leave(&mut self, services: &mut Services) {
        self.stop_waiting();
        let Some(qp) = self.qp.take() else { return };
        qp.sq.lock().mode = SqMode::Waiting;
        services.table.unbind_stream(qp.stream());
        qp.set_conn(None);
        qp.forget_connection();
        self.cm.ended(
            CloseReason {
                reason: None,
                orderly: true,
                silent_for: None,
                cut: false,
                suspect: None,
            },
            &mut services.wakes,
        );
    }

    /// Completes the failed request and flushes all others, in order.
    fn complete_all(
        &mut self,
        ended: &StreamEnd,
        reason: Option<WireReason>,
        services: &mut Services,
    ) {
        self.state.forget_reads();
        let Some(qp) = &self.qp else { return };
        let wakes = &mut services.wakes;
        qp.set_state(QpState::Err);
        if self.discards_requests {
            // Also releases the memory of a long message.
            let _ = self.state.take_receive();
            if let RecvSource::Shared(srq) = &qp.rq {
                srq.stop_waiting(self.token);
            }
            services.table.unbind_stream(qp.stream());
            return;
        }
        {
            let mut sq = qp.sq.lock();
            let oldest = sq.oldest_open();
            let found = find_named(&sq, ended.named);
            if let Some(id) = found
                && ended.named != AffectedRequest::Oldest
                && ended.acknowledged
                && matches!(ended.error, ConnError::Terminated(..))
            {
                // The peer has executed everything before the request that failed.
                sq.acknowledge(id.wrapping_sub(1));
            }
            let fallback = if ended.named == AffectedRequest::Nothing { None } else { oldest };
            if let (Some(id), Some(status)) = (found.or(fallback), status_of(ended)) {
                sq.done(id, status);
            }
            qp.flush_sends(&mut sq, reason, wakes);
        }
        if let Some(wr_id) = self.state.take_receive() {
            qp.complete_recv(wr_id, WcStatus::Flushed, reason, wakes);
        }
        match &qp.rq {
            RecvSource::Own(rq) => qp.flush_receives(&mut rq.lock(), reason, wakes),
            RecvSource::Shared(srq) => {
                srq.stop_waiting(self.token);
                qp.raise(AsyncEvent::LastWqeReached { qp_num: qp.num }, wakes);
            }
        }
        services.table.unbind_stream(qp.stream());
    }

    fn raise(&self, error: &ConnError, reason: Option<WireReason>, services: &mut Services) {
        let Some(qp) = &self.qp else { return };
        let qp_num = qp.num;
        let event = match error {
            ConnError::Fault(fault) if is_access(&fault.0) => {
                AsyncEvent::QpAccessError { qp_num, reason }
            }
            ConnError::Fault(_) => AsyncEvent::QpRequestError { qp_num, reason },
            ConnError::Closed | ConnError::Aborted => return,
            _ => AsyncEvent::QpFatal { qp_num, reason },
        };
        qp.raise(event, &mut services.wakes);
    }
}

impl QpInner {
    /// Enters the error state without a connection, and flushes everything that was posted.
    pub(crate) fn flush_unconnected(&self, wakes: &mut crate::notify::Wakes) {
        let is_new = self.state() != QpState::Err;
        self.set_state(QpState::Err);
        self.flush_sends(&mut self.sq.lock(), None, wakes);
        match &self.rq {
            RecvSource::Own(rq) => self.flush_receives(&mut rq.lock(), None, wakes),
            RecvSource::Shared(_) if is_new => {
                self.raise(AsyncEvent::LastWqeReached { qp_num: self.num }, wakes);
            }
            RecvSource::Shared(_) => {}
        }
    }
}

/// Counts a Terminate of either end, or a wrong CRC.
fn count(ended: &StreamEnd, services: &Services) {
    let codes =
        |terminate: &uiw_rdmap::Terminate| (terminate.layer, terminate.etype, terminate.code);
    if let Some(terminate) = &ended.terminate {
        services.counters.terminate(codes(terminate), true);
    }
    match &ended.error {
        ConnError::Terminated(terminate, _) => services.counters.terminate(codes(terminate), false),
        ConnError::Fault(fault) if fault.0 == Fault::Mpa(MpaFault::Crc) => {
            services.counters.crc_error();
        }
        _ => {}
    }
}

/// Returns the request that the end of a stream refers to.
fn find_named(sq: &SendQueue, named: AffectedRequest) -> Option<u32> {
    match named {
        AffectedRequest::Nothing => None,
        AffectedRequest::Oldest => sq.oldest_open(),
        AffectedRequest::Request(id) => Some(id),
        AffectedRequest::Write { stag, to } => sq.find_write(stag, to),
        AffectedRequest::Send { msn } => sq.find_send(msn),
    }
}

/// Formats the peer's memory to which a request refers, if any.
struct RemotePlace<'a>(&'a SendOp);

impl fmt::Display for RemotePlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            SendOp::Write { remote }
            | SendOp::WriteImm { remote, .. }
            | SendOp::AtomicWrite { remote }
            | SendOp::Read { remote, .. }
            | SendOp::FetchAdd { remote, .. }
            | SendOp::CmpSwap { remote, .. } => {
                write!(f, " at {:#x} of the peer's rkey {}", remote.addr, remote.rkey)
            }
            _ => Ok(()),
        }
    }
}

/// Returns the reason that completions and events carry.
fn wire_reason(ended: &StreamEnd) -> Option<WireReason> {
    let (terminate, from_peer, encoding) = match &ended.error {
        ConnError::Terminated(terminate, encoding) => (&**terminate, true, *encoding),
        _ => (ended.terminate.as_ref()?, false, TerminateEncoding::Rfc),
    };
    let (layer, etype, code) = (terminate.layer, terminate.etype, terminate.code);
    Some(WireReason { from_peer, layer, etype, code, encoding })
}

/// Returns the status of the request that the error is about.
fn status_of(ended: &StreamEnd) -> Option<WcStatus> {
    match &ended.error {
        ConnError::Local { error, .. } => match error {
            LocalError::Protection => Some(WcStatus::LocalProtection),
            LocalError::WindowBind => Some(WcStatus::MwBind),
            LocalError::Refused(_) => Some(WcStatus::LocalQpOperation),
            LocalError::CqOverflow | LocalError::ReceiveMemory | LocalError::GivenUp => None,
        },
        ConnError::Terminated(terminate, _) => {
            Some(status_of_terminate(terminate.reason(), ended.acknowledged))
        }
        ConnError::Lost | ConnError::NoFirstFpdu | ConnError::FinInsideFpdu { .. } => {
            Some(WcStatus::RetryExceeded)
        }
        ConnError::SourceGone => Some(WcStatus::LocalProtection),
        ConnError::Fault(_) => Some(WcStatus::Fatal),
        ConnError::Refused(_) | ConnError::Closed | ConnError::Aborted => None,
    }
}

/// Returns the status of the request that a Terminate of the peer refers to. With completion by
/// placement (`placed`), it is known that the peer was executing this request when it failed.
fn status_of_terminate(reason: TerminateReason, placed: bool) -> WcStatus {
    match reason.codes() {
        (0, 1, _) | (1, 1, _) => WcStatus::RemoteAccess,
        (1, 2, 2) => WcStatus::RnrRetryExceeded,
        (1, 2, _) | (0, 2, 5 | 6) => WcStatus::RemoteInvalidRequest,
        (0, 2, _) => WcStatus::RemoteOperation,
        (0 | 1, 0, _) if placed => WcStatus::RemoteOperation,
        (0 | 1, 0, _) => WcStatus::RemoteAborted,
        _ => WcStatus::Fatal,
    }
}

/// Returns whether the error is a Terminate that does not refer to a request of this end: the
/// program at the peer has moved its queue pair to the error state, or one of the peer's own
/// requests has failed there.
fn is_local_error_of_peer(error: &ConnError) -> bool {
    matches!(error, ConnError::Terminated(terminate, _) if terminate.reason() == TerminateReason::LocalCatastrophic)
}

fn is_access(fault: &Fault) -> bool {
    matches!(fault, Fault::RemoteProtection(_) | Fault::Ddp(uiw_rdmap::DdpFault::Tagged(_)))
}
