//! How a connection ends, from either side and for whatever reason: what the wire is told, what completes how, what flushes.

use crate::cm::Ending;
use crate::driver::{Env, TimerKind};
use crate::error::{Error, Result};
use crate::event::AsyncEvent;
use crate::notify::Wakes;
use crate::qp::handle::RecvSource;
use crate::qp::read_queue::QuotedSegment;
use crate::qp::{Conn, Phase, QpInner, QpState, SqMode};
use crate::wc::{WcStatus, WireReason};
use ddp::{Header, TaggedError};
use mem::RemoteError;
use mpa::rx::FpduError;
use rdmap::{Fault, MpaFault, Origin, Protection, Quoted, Terminate, TerminateReason};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Longest time for a farewell.
const FAREWELL: Duration = Duration::from_secs(1);

/// Why a stream leaves Full Operation.
pub(crate) enum Down {
    /// The peer broke a rule; it is told.
    Fault(Box<(Fault, Option<QuotedSegment>)>),
    /// A request of ours cannot be executed; the peer is told that it is not its fault.
    Local { seq: Option<u32>, status: WcStatus },
    /// The peer sent a Terminate.
    Terminated(Box<Terminate>, Origin),
    /// TCP is lost.
    Lost(io::Error),
    /// The peer closed inside an FPDU.
    FinInsideFpdu { octets: usize },
    /// Both sides have closed in order.
    Closed,
    /// A completion queue overflowed.
    CqOverflow,
    /// An FPDU cannot be finished: its memory is gone.
    Cut,
    /// The application wants it: the transition to ERR or RESET.
    Asked,
    /// The start-up ended in a refusal that only a Terminate can say (RFC 6581 section 9).
    Refused(Fault),
}

impl Conn {
    pub(super) fn fault(&self, fault: Fault, quoted: Option<QuotedSegment>) -> Down {
        Down::Fault(Box::new((fault, quoted)))
    }

    /// Ends the stream: tells the peer what it may be told, completes and flushes, raises the event.
    pub(crate) fn fall(&mut self, down: Down, env: &mut Env<'_>) {
        if matches!(self.phase, Phase::Closing | Phase::Over) {
            if matches!(down, Down::Lost(_) | Down::Cut) {
                self.phase = Phase::Over;
            }
            return;
        }
        let span = self.span.clone();
        let _entered = span.enter();
        self.log(&down);
        let down = if self.to_itself { self.as_its_own_peer(down) } else { down };
        if matches!(down, Down::Closed) && self.may_leave() {
            self.leave(env);
            return;
        }
        // What is half on the wire is finished; the rest refers to memory that is about to be given back.
        let whole = self.out.keep_started();
        self.tx.abandon(self.out.queued());
        let terminate = if whole { self.terminate_for(&down) } else { None };
        let reason = wire_reason(&down, terminate.as_ref());
        let named = self.named_request(&down);
        self.complete_all(named, reason, env);
        self.raise(&down, reason, env);
        self.phase = Phase::Closing;
        self.cm.ended(Ending { reason, orderly: matches!(down, Down::Closed | Down::Asked) }, env.wakes);
        if let Some(terminate) = terminate {
            self.queue_terminate(&terminate);
        }
        self.rx.drop_parked();
        match down {
            Down::Lost(_) | Down::Cut => self.cut(env),
            _ if !whole => self.cut(env),
            _ => self.finish(env),
        }
    }

    /// What the fault of a peer is where the peer is this very stream: the Terminate that it sends itself has come already.
    fn as_its_own_peer(&self, down: Down) -> Down {
        match (&down, self.terminate_for(&down)) {
            (Down::Fault(_), Some(terminate)) => Down::Terminated(Box::new(terminate), Origin::Rfc),
            _ => down,
        }
    }

    /// Whether the queue pair goes on without this stream, which the peer has closed.
    fn may_leave(&self) -> bool {
        self.options.outlives_peer
            && !self.fin.wanted
            && self.has_no_request_open()
            && !self.rx.is_receiving()
            && self.qp.as_ref().is_some_and(|qp| {
                let sq = qp.sq.lock();
                sq.mode == SqMode::Running && !sq.has_next()
            })
    }

    /// Lets the queue pair go: it waits for another connection.
    fn leave(&mut self, env: &mut Env<'_>) {
        let Some(qp) = self.qp.take() else { return };
        qp.sq.lock().mode = SqMode::Waiting;
        match &qp.rq {
            RecvSource::Own(rq) => rq.lock().waiting.retain(|token| *token != self.token),
            RecvSource::Shared(srq) => srq.forget(self.token),
        }
        env.driver.table.unbind_stream(qp.stream());
        qp.set_conn(None);
        qp.attrs.lock().stream = env.driver.next_stream();
        self.phase = Phase::Closing;
        self.cm.ended(Ending { reason: None, orderly: true }, env.wakes);
        self.finish(env);
    }

    /// Sends the rest, then FIN, and waits for the peer's.
    pub(crate) fn finish(&mut self, env: &mut Env<'_>) {
        self.fin.wanted = true;
        self.set_timer(TimerKind::Close, self.options.close_timeout, env);
        if let Err(Down::Lost(_) | Down::Cut) = self.transmit(env) {
            self.cut(env);
        }
    }

    /// Ends TCP with a reset.
    pub(crate) fn cut(&mut self, env: &mut Env<'_>) {
        if matches!(self.phase, Phase::Open) {
            self.fall(Down::Lost(io::ErrorKind::TimedOut.into()), env);
        }
        self.stream.abort();
        self.phase = Phase::Over;
    }

    fn log(&self, down: &Down) {
        match down {
            Down::Fault(fault) => tracing::warn!(reason = %fault.0, "the peer broke a rule; terminating"),
            Down::Local { status, .. } => tracing::warn!(%status, "a request failed locally; terminating"),
            Down::Terminated(terminate, origin) => {
                tracing::warn!(reason = %terminate.reason(), ?origin, "the peer terminated the stream");
            }
            Down::Lost(error) => tracing::warn!(%error, "connection lost"),
            Down::FinInsideFpdu { octets } => tracing::warn!(octets, "the peer closed inside an FPDU"),
            Down::Closed => tracing::debug!("closed in order"),
            Down::CqOverflow => tracing::error!("completion queue overflow; terminating"),
            Down::Cut => tracing::error!("memory of a half-sent FPDU was deregistered; connection cut"),
            Down::Asked => tracing::debug!("ended by the application"),
            Down::Refused(fault) => tracing::warn!(reason = %fault, "the Reply cannot be accepted"),
        }
    }

    /// The Terminate that `down` asks for (RFC 5040 section 4.8), if one may be sent.
    fn terminate_for(&self, down: &Down) -> Option<Terminate> {
        // RFC 5044 section 7.1.1: a responder sends no FPDU before it has validated the initiator's first.
        if self.tx.hold || self.fin.sent || !matches!(self.phase, Phase::Open) {
            return None;
        }
        match down {
            Down::Fault(fault) => {
                let (fault, quoted) = &**fault;
                Some(fault.terminate(quoted.as_ref().map(|segment| Quoted {
                    segment_len: segment.segment_len(),
                    header: segment.header(),
                    read_request: segment.read_request(),
                })))
            }
            Down::Local { .. } | Down::CqOverflow | Down::Asked => {
                Some(Fault::LocalCatastrophic.terminate(None))
            }
            Down::FinInsideFpdu { .. } => Some(Fault::Mpa(MpaFault::LlpClosed).terminate(None)),
            Down::Refused(fault) => Some(fault.terminate(None)),
            Down::Terminated(..) | Down::Lost(_) | Down::Closed | Down::Cut => None,
        }
    }

    /// The Terminate goes behind what is started, as the last FPDU of the stream.
    fn queue_terminate(&mut self, terminate: &Terminate) {
        let header = rdmap::untagged_header(rdmap::Opcode::Terminate, rdmap::QN_TERMINATE, 1, 0, true, 0);
        self.send_control(&Header::Untagged(header), &terminate.emit());
    }

    /// The request that failed, and how: the one a Terminate names, else the oldest without an end.
    fn named_request(&self, down: &Down) -> Option<(u32, WcStatus)> {
        let qp = self.qp.as_ref()?;
        let oldest = || qp.sq.lock().oldest_open();
        match down {
            Down::Local { seq, status } => Some(((*seq)?, *status)),
            Down::Terminated(terminate, _) => {
                let named = terminate.ddp_header.and_then(|copy| copy.header().ok());
                let named = named.and_then(|header| self.request_of(qp, &header));
                if self.tx.acknowledges()
                    && let Some(seq) = named
                {
                    // The peer executed everything in front of what it stumbled over.
                    qp.sq.lock().acknowledge(seq.wrapping_sub(1));
                }
                named.or_else(oldest).map(|seq| (seq, status_of(terminate.reason(), self.tx.acknowledges())))
            }
            Down::Lost(_) | Down::FinInsideFpdu { .. } => oldest().map(|seq| (seq, WcStatus::RetryExceeded)),
            Down::Fault(_) => oldest().map(|seq| (seq, WcStatus::Fatal)),
            Down::Refused(_) | Down::Closed | Down::CqOverflow | Down::Cut | Down::Asked => None,
        }
    }

    /// The open request that a segment of ours belonged to.
    fn request_of(&self, qp: &QpInner, header: &Header) -> Option<u32> {
        match header {
            Header::Tagged(tagged) => qp.sq.lock().find_write(tagged.stag, tagged.to),
            Header::Untagged(untagged) if untagged.qn == rdmap::QN_SEND => {
                qp.sq.lock().find_send(untagged.msn)
            }
            Header::Untagged(untagged) if untagged.qn == rdmap::QN_READ => {
                self.reads.outstanding.iter().find(|o| o.msn == untagged.msn)?.asker.request()
            }
            Header::Untagged(_) => None,
        }
    }

    /// Completes the request that failed and flushes every other, in order, once. Nothing is reported afterwards.
    fn complete_all(
        &mut self,
        named: Option<(u32, WcStatus)>,
        reason: Option<WireReason>,
        env: &mut Env<'_>,
    ) {
        let Some(qp) = self.qp.clone() else { return };
        qp.set_state(QpState::Err);
        let wakes = &mut *env.wakes;
        {
            let mut sq = qp.sq.lock();
            if let Some((seq, status)) = named {
                sq.done(seq, status);
            }
            qp.flush_sends(&mut sq, reason, wakes);
        }
        if let Some(wr_id) = self.rx.take_recv() {
            qp.complete_recv(wr_id, WcStatus::Flushed, reason, wakes);
        }
        flush_receive_queue(&qp, self.token, reason, env);
        self.reads.outstanding.clear();
        self.reads.owed.clear();
        env.driver.table.unbind_stream(qp.stream());
    }

    fn raise(&self, down: &Down, reason: Option<WireReason>, env: &mut Env<'_>) {
        let Some(qp) = &self.qp else { return };
        let qp_num = qp.num;
        let event = match down {
            Down::Fault(fault) if is_access(&fault.0) => AsyncEvent::QpAccessError { qp_num, reason },
            Down::Fault(_) => AsyncEvent::QpRequestError { qp_num, reason },
            Down::Closed | Down::Asked => return,
            _ => AsyncEvent::QpFatal { qp_num, reason },
        };
        qp.raise(event, env.wakes);
    }

    /// Whether the peer may wait for acknowledgements, and can be asked.
    fn may_say_farewell(&self) -> bool {
        matches!(self.phase, Phase::Open)
            && self.tx.acknowledges()
            && !self.tx.hold
            && !self.to_itself
            && !self.is_inside_request()
            && !self.fin.wanted
            && !self.fin.received
    }

    /// The queue pair is gone. A peer of acknowledged completions may still wait for an answer to its last Reads, as it would be
    /// answered by a card that outlives its queue pairs: it gets them until a Read of ours has been to it and back.
    fn say_farewell(&mut self, env: &mut Env<'_>) {
        self.tx.say_farewell();
        self.set_timer(TimerKind::Close, self.options.close_timeout.min(FAREWELL), env);
        self.serve_sends(env);
    }

    /// Moves an orderly close on: FIN when all is sent, the end when both FINs are through.
    pub(super) fn close_when_done(&mut self, env: &mut Env<'_>) -> std::result::Result<(), Down> {
        if matches!(self.phase, Phase::Closing) {
            if self.out.is_empty() && !self.fin.sent {
                self.fin.sent = true;
                self.stream.shutdown().map_err(Down::Lost)?;
            }
            if self.fin.sent && self.fin.received {
                self.phase = Phase::Over;
            }
            return Ok(());
        }
        if self.fin.received && self.owes_nothing() {
            return Err(Down::Closed);
        }
        if self.draining && self.has_no_request_open() {
            self.draining = false;
            if let Some(qp) = &self.qp {
                let event = AsyncEvent::SqDrained { qp_num: qp.num };
                qp.raise(event, env.wakes);
            }
        }
        if self.fin.wanted && !self.fin.sent && self.is_drained() {
            self.fin.sent = true;
            self.stream.shutdown().map_err(Down::Lost)?;
        }
        Ok(())
    }

    /// The application disconnects.
    pub(crate) fn start_close(&mut self, env: &mut Env<'_>) {
        if !matches!(self.phase, Phase::Open) || self.fin.wanted {
            return;
        }
        self.fin.wanted = true;
        if let Some(qp) = &self.qp {
            qp.set_state(QpState::Sqd);
            qp.sq.lock().stop_at_end();
        }
        self.set_timer(TimerKind::Close, self.options.close_timeout, env);
        self.serve_sends(env);
    }
}

/// Flushes the receives that nobody will fill, and says so for a shared queue.
fn flush_receive_queue(qp: &Arc<QpInner>, token: llp::Token, reason: Option<WireReason>, env: &mut Env<'_>) {
    match &qp.rq {
        RecvSource::Own(rq) => qp.flush_receives(&mut rq.lock(), reason, env.wakes),
        RecvSource::Shared(srq) => {
            srq.forget(token);
            qp.raise(AsyncEvent::LastWqeReached { qp_num: qp.num }, env.wakes);
        }
    }
}

/// `ibv_modify_qp` of the state.
pub(super) fn modify(qp: &Arc<QpInner>, to: QpState) -> Result<()> {
    let mut busy = qp.driver.lock();
    let (core, driver) = busy.parts();
    let from = qp.state();
    if !from.may_become(to) {
        return Err(Error::Transition { from, to });
    }
    let token = qp.conn();
    match to {
        QpState::Err => {
            let ended = token.and_then(|t| core.with_conn(driver, t, |c, env| c.fall(Down::Asked, env)));
            if ended.is_none() || qp.state() != QpState::Err {
                let mut wakes = std::mem::take(&mut core.wakes);
                flush_unconnected(qp, &mut wakes);
                core.wakes = wakes;
            }
        }
        QpState::Reset => {
            if let Some(token) = token {
                core.with_conn(driver, token, |c, env| {
                    c.fall(Down::Asked, env);
                    c.qp = None;
                });
            }
            qp.send_cq.forget_qp(qp.num);
            qp.recv_cq.forget_qp(qp.num);
            reset_queues(qp);
            qp.set_conn(None);
            qp.attrs.lock().stream = driver.next_stream();
            qp.set_state(QpState::Reset);
        }
        QpState::Init => {
            if let RecvSource::Own(rq) = &qp.rq {
                rq.lock().closed = false;
            }
            qp.set_state(QpState::Init);
        }
        QpState::Rtr => qp.set_state(QpState::Rtr),
        QpState::Rts if !token.is_some_and(|token| core.is_established(token)) => {
            // Its connection brings the queue pair here, and lets the requests go.
            if from != QpState::Rtr && from != QpState::Rts {
                return Err(Error::NotConnected);
            }
            qp.sq.lock().mode = SqMode::Waiting;
            qp.set_state(QpState::Rts);
        }
        QpState::Rts => {
            let token = token.ok_or(Error::NotConnected)?;
            let resumed = core.with_conn(driver, token, |c, env| {
                // Neither one that is being set up nor one that is being closed.
                if !matches!(c.phase, Phase::Open) || c.fin.wanted {
                    return false;
                }
                qp.sq.lock().resume();
                qp.set_state(QpState::Rts);
                c.draining = false;
                c.serve_sends(env);
                true
            });
            if resumed != Some(true) {
                return Err(Error::NotConnected);
            }
        }
        QpState::Sqd => {
            let token = token.ok_or(Error::NotConnected)?;
            qp.set_state(QpState::Sqd);
            core.with_conn(driver, token, |c, env| {
                // An orderly close sends what was posted before it.
                if !c.fin.wanted {
                    qp.sq.lock().stop_after(c.is_inside_request());
                }
                c.draining = true;
                c.serve_sends(env);
            });
        }
        QpState::Sqe => return Err(Error::Transition { from, to }),
    }
    Ok(())
}

fn flush_unconnected(qp: &Arc<QpInner>, wakes: &mut Wakes) {
    qp.set_state(QpState::Err);
    qp.flush_sends(&mut qp.sq.lock(), None, wakes);
    if let RecvSource::Own(rq) = &qp.rq {
        qp.flush_receives(&mut rq.lock(), None, wakes);
    }
}

fn reset_queues(qp: &QpInner) {
    qp.sq.lock().reset();
    if let RecvSource::Own(rq) = &qp.rq {
        let mut rq = rq.lock();
        rq.reset();
        rq.closed = true;
    }
}

/// The application gives the peer up.
pub(super) fn fail(qp: &Arc<QpInner>, status: WcStatus) {
    let mut busy = qp.driver.lock();
    let (core, driver) = busy.parts();
    let seq = qp.sq.lock().oldest_open();
    let down = Down::Local { seq, status };
    let ended = qp.conn().and_then(|token| core.with_conn(driver, token, |c, env| c.fall(down, env)));
    if ended.is_none() {
        if let Some(seq) = seq {
            qp.sq.lock().done(seq, status);
        }
        let mut wakes = std::mem::take(&mut core.wakes);
        flush_unconnected(qp, &mut wakes);
        core.wakes = wakes;
    }
}

/// `rdma_disconnect`.
pub(super) fn disconnect(qp: &Arc<QpInner>) -> Result<()> {
    let mut busy = qp.driver.lock();
    let (core, driver) = busy.parts();
    let token = qp.conn().ok_or(Error::NotConnected)?;
    core.with_conn(driver, token, Conn::start_close).ok_or(Error::NotConnected)
}

/// The application lets go of the queue pair: the stream closes in order, unheard; nothing completes any more.
pub(super) fn destroy(qp: &Arc<QpInner>) {
    let mut busy = qp.driver.lock();
    let (core, driver) = busy.parts();
    if let Some(token) = qp.conn() {
        core.with_conn(driver, token, |conn, env| {
            if conn.may_say_farewell() {
                conn.qp = None;
                conn.say_farewell(env);
                return;
            }
            let idle = matches!(conn.phase, Phase::Open) && conn.is_drained();
            conn.fall(if idle { Down::Closed } else { Down::Asked }, env);
            conn.qp = None;
        });
    }
    qp.sq.lock().mode = SqMode::Flushing;
    driver.qps.lock().remove(&qp.num);
    driver.table.unbind_stream(qp.stream());
    qp.send_cq.forget_qp(qp.num);
    qp.recv_cq.forget_qp(qp.num);
}

/// The reason that completions and events carry.
fn wire_reason(down: &Down, ours: Option<&Terminate>) -> Option<WireReason> {
    let (terminate, from_peer, origin) = match down {
        Down::Terminated(terminate, origin) => (&**terminate, true, *origin),
        _ => (ours?, false, Origin::Rfc),
    };
    let (layer, etype, code) = (terminate.layer, terminate.etype, terminate.code);
    Some(WireReason { from_peer, layer, etype, code, origin })
}

/// How the request fares that a peer's Terminate is about. With acknowledged completion (`placed`) it is known that the peer was
/// executing this one when it failed.
fn status_of(reason: TerminateReason, placed: bool) -> WcStatus {
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

fn is_access(fault: &Fault) -> bool {
    matches!(fault, Fault::RemoteProtection(_) | Fault::Ddp(rdmap::DdpFault::Tagged(_)))
}

/// What is wrong with a Write: DDP's to say.
pub(super) fn write_fault(error: &RemoteError) -> Fault {
    match *error {
        RemoteError::InvalidStag { stag } => TaggedError::InvalidStag { stag },
        RemoteError::NotAssociated { stag, .. } => TaggedError::NotAssociated { stag },
        RemoteError::BaseOrBounds { stag, to, len } => TaggedError::BaseOrBounds { stag, to, len },
        RemoteError::ToWrap { stag, to, len } => TaggedError::ToWrap { stag, to, len },
        RemoteError::AccessRights { stag, .. } => TaggedError::AccessRights { stag },
    }
    .into()
}

/// What is wrong with a Read or atomic: RDMAP's to say.
pub(super) fn read_fault(error: &RemoteError) -> Fault {
    match *error {
        RemoteError::InvalidStag { stag } => Protection::InvalidStag { stag },
        RemoteError::NotAssociated { stag, .. } => Protection::NotAssociated { stag },
        RemoteError::BaseOrBounds { stag, to, len } => Protection::BaseOrBounds { stag, to, len },
        RemoteError::ToWrap { stag, to, len } => Protection::ToWrap { stag, to, len },
        RemoteError::AccessRights { stag, .. } => Protection::AccessRights { stag },
    }
    .into()
}

pub(super) fn fpdu_fault(error: &FpduError) -> Fault {
    match error {
        FpduError::Crc { .. } => MpaFault::Crc.into(),
        _ => MpaFault::Marker.into(),
    }
}
