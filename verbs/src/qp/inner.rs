//! State of a queue pair that the application's handle and the connection share.

use crate::cq::{Cq, Cqe};
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::event::AsyncEvent;
use crate::faults::Faults;
use crate::notify::Wakes;
use crate::pd::Pd;
use crate::qp::send_queue::{SendQueue, SqMode};
use crate::qp::{ConnLocation, LogLimit, LongMessages, QpCap, QpState, RecvQueue, RecvWqe};
use crate::srq::Srq;
use crate::ud::UdState;
use crate::wc::{Wc, WcOpcode, WcStatus, WireReason};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use uiw_datagram::Qpn;
use uiw_llp::Token;
use uiw_mem::{Access, StreamId};
use uiw_stream::LocalError;

/// Queue from which a queue pair takes its receives.
pub(crate) enum RecvSource {
    Own(Mutex<RecvQueue>),
    Shared(Arc<Srq>),
}

/// Access to the posted receives of a queue pair. Holds the lock of the queue pair's own receive
/// queue; an SRQ is locked for each call instead.
pub(crate) enum Receives<'a> {
    Own(MutexGuard<'a, RecvQueue>),
    Shared(&'a Srq),
}

impl Receives<'_> {
    /// Returns the next receives that are contiguous in memory; empty if there is none.
    ///
    /// Receives of the queue pair's own queue stay there until [`Receives::take`]. An SRQ gives
    /// only one receive: it is removed from the SRQ at once and stored in `shared`, and the caller
    /// must use it.
    pub(crate) fn next<'s>(
        &'s mut self,
        shared: &'s mut RecvWqe,
        wakes: &mut Wakes,
    ) -> &'s [RecvWqe] {
        match self {
            Self::Own(rq) => rq.peek(),
            Self::Shared(srq) if srq.take(shared, None, wakes) => std::slice::from_ref(shared),
            Self::Shared(_) => &[],
        }
    }

    /// Removes the first `count` receives that [`Receives::next`] has returned, after they were
    /// used.
    pub(crate) fn take(&mut self, count: usize) {
        if let Self::Own(rq) = self {
            rq.take_many(count);
        }
    }
}

/// Queues and state of a queue pair, shared by the application's handle and the connection.
pub(crate) struct QpInner {
    pub(crate) num: u32,
    pub(crate) driver: Arc<Driver>,
    pub(crate) pd: Pd,
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    pub(crate) sq: Mutex<SendQueue>,
    /// Monotonic time in nanoseconds when the last post of a burst was served (see
    /// [`SendQueue::is_served_at_once`]).
    pub(super) burst_end: AtomicU64,
    pub(crate) rq: RecvSource,
    /// Serializes changes of the state and of the connection: see [`QpInner::control`].
    pub(super) control: Mutex<()>,
    pub(super) state: AtomicU8,
    pub(super) cap: QpCap,
    /// Access rights of the peer, as bits of [`Access`]. Atomic because it is read for every
    /// segment.
    pub(super) access: AtomicU32,
    pub(crate) conn: Arc<ConnLocation>,
    pub(crate) attrs: Mutex<ConnAttrs>,
    /// Additional state if this is a UD queue pair.
    pub(crate) ud: Option<UdState>,
    /// True once an asynchronous event about this queue pair was added to the device's queue.
    pub(super) has_raised: AtomicBool,
    /// Whether [`AsyncEvent::SqDrained`] is raised (see [`crate::Qp::set_reports_drained`]).
    pub(super) reports_drained: AtomicBool,
    /// Faults that the device is configured to inject.
    pub(crate) faults: Option<Arc<Faults>>,
    pub(crate) log_limit: LogLimit,
    /// Text of the last local error, shown in the errors of the safe API.
    pub(super) local_error: Mutex<Option<Arc<str>>>,
    /// True for an unreliable connection (see [`crate::QpInit::unreliable`]).
    pub(crate) unreliable: bool,
    /// Received messages that are longer than their receives; `None` if such messages are refused
    /// (RFC 5041 section 7.1).
    pub(crate) long: Option<LongMessages>,
}

/// Attributes that a connection of the queue pair uses.
pub(crate) struct ConnAttrs {
    pub(crate) ird: u16,
    pub(crate) stream: StreamId,
}

impl QpInner {
    /// Adds an event about this queue pair to the device's queue.
    pub(crate) fn raise(&self, event: AsyncEvent, wakes: &mut Wakes) {
        self.has_raised.store(true, Ordering::Release);
        self.pd.device().events().raise(event, wakes);
    }

    /// Reports that the send queue is drained, unless the application does not want the event.
    pub(crate) fn raise_drained(&self, wakes: &mut Wakes) {
        if self.reports_drained.load(Ordering::Acquire) {
            self.raise(AsyncEvent::SqDrained { qp_num: self.num }, wakes);
        }
    }

    pub(crate) fn state(&self) -> QpState {
        QpState::from_raw(self.state.load(Ordering::Acquire))
    }

    /// Acquires the lock that serializes changes of the state and of the connection.
    ///
    /// Lock order: the core of a shard, this lock, then those of the memory table, the stack and
    /// the queues.
    pub(crate) fn control(&self) -> MutexGuard<'_, ()> {
        self.control.lock()
    }

    pub(crate) fn set_state(&self, state: QpState) {
        let before = self.state.swap(state as u8, Ordering::AcqRel);
        if before != state as u8 {
            tracing::debug!(qp = %Qpn::from_raw(self.num), from = %QpState::from_raw(before), to = %state, "queue pair state");
        }
    }

    /// Returns the access rights of the peer.
    pub(crate) fn access(&self) -> Access {
        Access::from_bits_truncate(self.access.load(Ordering::Acquire))
    }

    /// Returns the token of the connection. `None` if there is no connection, or while it moves to
    /// another shard; at the end of the move, that shard serves all requests posted meanwhile.
    #[inline]
    pub(crate) fn conn(&self) -> Option<Token> {
        self.conn.get()
    }

    /// Sets or removes the connection, and with it the shard that polls of the completion queues
    /// drive for it.
    pub(crate) fn set_conn(&self, token: Option<Token>) {
        if let Some(token) = token {
            self.add_to_queues(token);
        }
        if let Some(before) = self.conn.set(token) {
            self.remove_from_queues(before);
        }
    }

    /// Updates the token after the connection has moved from one shard to another.
    pub(crate) fn conn_moved(&self, from: Token, to: Token) {
        self.add_to_queues(to);
        self.conn.set(Some(to));
        self.remove_from_queues(from);
    }

    fn add_to_queues(&self, token: Token) {
        let shard = self.driver.shard(token).index();
        [&self.send_cq, &self.recv_cq].iter().for_each(|cq| cq.add_connection(shard));
    }

    fn remove_from_queues(&self, token: Token) {
        let shard = self.driver.shard(token).index();
        [&self.send_cq, &self.recv_cq].iter().for_each(|cq| cq.remove_connection(shard));
    }

    /// Checks that a connection may be started. The caller holds [`QpInner::control`].
    ///
    /// `what` names the caller's operation in the error.
    pub(crate) fn may_connect(&self, what: &'static str) -> Result<()> {
        let state = self.state();
        let waiting = state == QpState::Rts && self.sq.lock().mode == SqMode::Waiting;
        if !matches!(state, QpState::Init | QpState::Rtr) && !waiting {
            return Err(Error::State { what, state });
        }
        if self.conn.has_conn() {
            return Err(Error::AlreadyConnected { qp_num: self.num });
        }
        Ok(())
    }

    pub(crate) fn stream(&self) -> StreamId {
        self.attrs.lock().stream
    }

    /// Removes finished requests from the front of the send queue and queues their completions.
    pub(crate) fn retire(
        &self,
        sq: &mut SendQueue,
        wakes: &mut Wakes,
    ) -> std::result::Result<(), LocalError> {
        let injected = match &self.faults {
            Some(faults) if self.ud.is_none() => sq.inject(|opcode| faults.completion(opcode)),
            _ => false,
        };
        let mut room = true;
        let mut completions = self.send_cq.appender(wakes);
        sq.retire(None, |cqe| {
            let number = completions.push(&cqe);
            room &= number.is_some();
            number
        });
        match room {
            false => Err(LocalError::CqOverflow),
            true if injected => Err(LocalError::GivenUp),
            true => Ok(()),
        }
    }

    /// Completes the `count` successful requests that start with `first` at the front of the send
    /// queue (see [`SendQueue::retire_sent`]).
    ///
    /// Returns false if the completion queue had no room for a completion.
    pub(crate) fn retire_sent(
        &self,
        sq: &mut SendQueue,
        (first, count): (u32, usize),
        reported: &[u32],
        wakes: &mut Wakes,
    ) -> bool {
        let mut room = true;
        let mut completions = self.send_cq.appender(wakes);
        sq.retire_sent(first, count, reported, |cqe| {
            let number = completions.push(&cqe);
            room &= number.is_some();
            number
        });
        room
    }

    /// Completes every started request with success, because the connection of an unreliable queue
    /// pair has ended.
    pub(crate) fn complete_unreliable(&self, wakes: &mut Wakes) {
        let mut sq = self.sq.lock();
        sq.complete_built(false);
        // If a completion finds no room, the completion queue itself reports the overflow.
        let _ = self.retire(&mut sq, wakes);
    }

    /// Completes every request of an unreliable queue pair with success if requests wait for a
    /// connection. Returns false otherwise.
    pub(crate) fn complete_waiting(&self, wakes: &mut Wakes) -> bool {
        let mut sq = self.sq.lock();
        let waits = sq.mode == SqMode::Waiting;
        if waits {
            sq.complete_built(true);
            // As in `complete_unreliable`.
            let _ = self.retire(&mut sq, wakes);
        }
        waits
    }

    /// Returns a receive to its queue, because its message will not arrive.
    pub(crate) fn put_back(&self, receive: &mut RecvWqe) {
        match &self.rq {
            RecvSource::Own(rq) => rq.lock().put_back(receive),
            RecvSource::Shared(srq) => srq.put_back(receive),
        }
    }

    /// Completes every posted send with a flush error.
    pub(crate) fn flush_sends(
        &self,
        sq: &mut SendQueue,
        reason: Option<WireReason>,
        wakes: &mut Wakes,
    ) {
        let mut completions = self.send_cq.appender(wakes);
        sq.flush(reason, |cqe| completions.push(&cqe));
    }

    /// Completes every posted receive with a flush error. Receives posted later are flushed as
    /// well, also in a queue pair that was in RESET.
    pub(crate) fn flush_receives(
        &self,
        rq: &mut RecvQueue,
        reason: Option<WireReason>,
        wakes: &mut Wakes,
    ) {
        (rq.closed, rq.flushing) = (false, true);
        let mut wqe = RecvWqe::default();
        while rq.take(&mut wqe) {
            self.complete_recv(wqe.wr_id, WcStatus::Flushed, reason, wakes);
        }
    }

    /// Completes a receive that got no message.
    pub(crate) fn complete_recv(
        &self,
        wr_id: u64,
        status: WcStatus,
        reason: Option<WireReason>,
        wakes: &mut Wakes,
    ) {
        let wc = Wc {
            wr_id,
            status,
            opcode: WcOpcode::Recv,
            byte_len: 0,
            imm: None,
            invalidated: None,
            qp_num: self.num,
            datagram_from: None,
            reason,
            timestamp_ns: 0,
        };
        self.recv_cq.push(Cqe { wc, solicited: true }, wakes);
    }

    /// Discards all requests, and all completions that were not polled, when the queue pair enters
    /// RESET.
    pub(crate) fn forget_requests(&self) {
        self.send_cq.forget_qp(self.num);
        self.recv_cq.forget_qp(self.num);
        self.sq.lock().reset();
        if let RecvSource::Own(rq) = &self.rq {
            let mut rq = rq.lock();
            rq.reset();
            rq.closed = true;
        }
    }

    /// Prepares for another connection: with a new stream id, and with the limits of Reads and
    /// atomics that apply before they are negotiated.
    pub(crate) fn forget_connection(&self) {
        let max = self.driver.limits().max_rd_atomic;
        self.sq.lock().ord = max;
        *self.attrs.lock() = ConnAttrs { ird: max, stream: self.driver.shared.next_stream() };
    }

    /// Returns access to the posted receives, for the caller to take several.
    pub(crate) fn receives(&self) -> Receives<'_> {
        match &self.rq {
            RecvSource::Own(rq) => Receives::Own(rq.lock()),
            RecvSource::Shared(srq) => Receives::Shared(srq),
        }
    }

    /// Takes the next receive of the queue pair's own queue, `rq`, into `into`. If there is none, or
    /// unreleased long messages have reached their limit, returns false and registers `token`, whose
    /// connection is served when a receive is posted.
    #[inline]
    pub(crate) fn take_own_receive(
        &self,
        rq: &mut RecvQueue,
        into: &mut RecvWqe,
        token: Token,
    ) -> bool {
        let taken = self.long.as_ref().is_none_or(LongMessages::has_room) && rq.take(into);
        if !taken {
            rq.wait(token);
        }
        taken
    }
}

impl Drop for QpInner {
    fn drop(&mut self) {
        self.set_conn(None);
        self.driver.shared.counts.qp.release();
        self.send_cq.remove_user();
        self.recv_cq.remove_user();
        if let RecvSource::Shared(srq) = &self.rq {
            srq.remove_user();
        }
        if *self.has_raised.get_mut() {
            // A program may never read its events, and peers can cause one with every connection,
            // so they must not accumulate.
            self.pd.device().events().forget_qp(self.num);
        }
    }
}
