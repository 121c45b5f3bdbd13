//! A queue pair's queues and state: what the application's handle and its connection share.

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
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use uiw_datagram::Qpn;
use uiw_llp::Token;
use uiw_mem::{Access, StreamId};
use uiw_stream::LocalError;

pub(crate) enum RecvSource {
    Own(Mutex<RecvQueue>),
    Shared(Arc<Srq>),
}

/// The receives of a queue pair; its own ones are locked meanwhile.
pub(crate) enum Receives<'a> {
    Own(MutexGuard<'a, RecvQueue>),
    Shared(&'a Srq),
}

impl Receives<'_> {
    /// The next receives, as many as lie one behind the other; [`Receives::take`] says how many of them were used. Of a shared queue the next one alone: it
    /// is taken, put into `shared`, and has to be used.
    pub(crate) fn next<'s>(&'s mut self, shared: &'s mut RecvWqe, wakes: &mut Wakes) -> &'s [RecvWqe] {
        match self {
            Self::Own(rq) => rq.peek(),
            Self::Shared(srq) if srq.try_take(shared, wakes) => std::slice::from_ref(shared),
            Self::Shared(_) => &[],
        }
    }

    /// The first `count` of [`Receives::next`] were used.
    pub(crate) fn take(&mut self, count: usize) {
        if let Self::Own(rq) = self {
            rq.take_many(count);
        }
    }
}

/// Shared by the application's handle and the stream.
pub(crate) struct QpInner {
    pub(crate) num: u32,
    pub(crate) driver: Arc<Driver>,
    pub(crate) pd: Pd,
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    pub(crate) sq: Mutex<SendQueue>,
    pub(crate) rq: RecvSource,
    /// Held while the state or the connection changes, and for nothing else.
    pub(super) control: Mutex<()>,
    pub(super) state: AtomicU8,
    pub(super) cap: QpCap,
    /// Rights of peers, as bits: read for every segment.
    pub(super) access: AtomicU32,
    pub(crate) conn: Arc<ConnLocation>,
    pub(crate) attrs: Mutex<Attrs>,
    /// State of a UD queue pair.
    pub(crate) ud: Option<UdState>,
    /// The device's queue of asynchronous events had one about this queue pair.
    pub(super) has_raised: AtomicBool,
    /// Faults of the device, if there are any.
    pub(crate) faults: Option<Arc<Faults>>,
    pub(crate) log_limit: LogLimit,
    /// The text of the last local error, for the errors of the safe API.
    pub(super) local_error: Mutex<Option<Arc<str>>>,
    /// An unreliable connection: see [`crate::QpInit::unreliable`].
    pub(crate) unreliable: bool,
    /// Messages that are longer than their receives; `None` where they are refused (RFC 5041 section 7.1).
    pub(crate) long: Option<LongMessages>,
}

pub(crate) struct Attrs {
    pub(crate) ord: u16,
    pub(crate) ird: u16,
    pub(crate) stream: StreamId,
}

impl QpInner {
    /// Adds an event about this queue pair to the device's queue.
    pub(crate) fn raise(&self, event: AsyncEvent, wakes: &mut Wakes) {
        self.has_raised.store(true, Ordering::Release);
        self.pd.device().events().raise(event, wakes);
    }

    pub(crate) fn state(&self) -> QpState {
        QpState::from_raw(self.state.load(Ordering::Acquire))
    }

    /// Held while the state or the connection changes. No other lock is waited for meanwhile but the queues' own.
    pub(crate) fn control(&self) -> MutexGuard<'_, ()> {
        self.control.lock()
    }

    pub(crate) fn set_state(&self, state: QpState) {
        let before = self.state.swap(state as u8, Ordering::AcqRel);
        if before != state as u8 {
            tracing::debug!(qp = %Qpn::from_raw(self.num), from = %QpState::from_raw(before), to = %state, "queue pair state");
        }
    }

    /// Rights of peers on this queue pair.
    pub(crate) fn access(&self) -> Access {
        Access::from_bits_truncate(self.access.load(Ordering::Acquire))
    }

    /// Returns the token of the connection; `None` also while it moves to another shard, where everything that was posted is served.
    #[inline]
    pub(crate) fn conn(&self) -> Option<Token> {
        self.conn.get()
    }

    /// Gives it a connection, or takes it away. Its completion queues are polled on the shard of the connection.
    pub(crate) fn set_conn(&self, token: Option<Token>) {
        if let Some(token) = token {
            self.add_to_queues(token);
        }
        if let Some(before) = self.conn.set(token) {
            self.remove_from_queues(before);
        }
    }

    /// The connection has moved from one shard to another.
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

    /// Returns whether a connection may be begun: asked with [`QpInner::control`] held.
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

    /// Completes the requests at the front of the send queue that are over.
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
        sq.retire(None, |cqe| {
            let place = self.send_cq.push(cqe, wakes);
            room &= place.is_some();
            place
        });
        match room {
            false => Err(LocalError::CqOverflow),
            true if injected => Err(LocalError::GivenUp),
            true => Ok(()),
        }
    }

    /// Completes requests that have succeeded, `count` of them from `first` on, which is at the front of the send queue, as [`SendQueue::retire_sent`].
    /// False: a completion found no room.
    pub(crate) fn retire_sent(
        &self,
        sq: &mut SendQueue,
        (first, count): (u32, usize),
        reported: &[u32],
        wakes: &mut Wakes,
    ) -> bool {
        let mut room = true;
        sq.retire_sent(first, count, reported, |cqe| {
            let place = self.send_cq.push(cqe, wakes);
            room &= place.is_some();
            place
        });
        room
    }

    /// Completes every request that was begun, as the connection of an unreliable queue pair has ended; `all`: those that wait as well.
    pub(crate) fn complete_unreliable(&self, all: bool, wakes: &mut Wakes) {
        let mut sq = self.sq.lock();
        sq.complete_built(all);
        // A completion that finds no room is reported by its queue.
        let _ = self.retire(&mut sq, wakes);
    }

    /// Puts back a receive whose message will not come.
    pub(crate) fn put_back(&self, receive: &mut RecvWqe) {
        match &self.rq {
            RecvSource::Own(rq) => rq.lock().put_back(receive),
            RecvSource::Shared(srq) => srq.put_back(receive),
        }
    }

    /// Ends every posted send as flushed.
    pub(crate) fn flush_sends(&self, sq: &mut SendQueue, reason: Option<WireReason>, wakes: &mut Wakes) {
        sq.flush(reason, |cqe| self.send_cq.push(cqe, wakes));
    }

    pub(crate) fn flush_receives(&self, rq: &mut RecvQueue, reason: Option<WireReason>, wakes: &mut Wakes) {
        rq.flushing = true;
        let mut wqe = RecvWqe::default();
        while rq.take(&mut wqe) {
            self.complete_recv(wqe.wr_id, WcStatus::Flushed, reason, wakes);
        }
    }

    /// A receive that ended without a message.
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

    /// Forgets every request and completion: RESET.
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

    /// Returns the source from which receives are taken, one after the other.
    pub(crate) fn receives(&self) -> Receives<'_> {
        match &self.rq {
            RecvSource::Own(rq) => Receives::Own(rq.lock()),
            RecvSource::Shared(srq) => Receives::Shared(srq),
        }
    }

    /// Takes the next receive, or notes the stream as waiting for one.
    pub(crate) fn take_recv(&self, into: &mut RecvWqe, token: Token, wakes: &mut Wakes) -> bool {
        match &self.rq {
            RecvSource::Own(rq) => {
                let mut rq = rq.lock();
                let taken = self.long.as_ref().is_none_or(LongMessages::has_room) && rq.take(into);
                if !taken && !rq.waiting.contains(&token) {
                    rq.waiting.push(token);
                }
                taken
            }
            RecvSource::Shared(srq) => srq.take(into, token, wakes),
        }
    }
}

impl Drop for QpInner {
    fn drop(&mut self) {
        self.set_conn(None);
        self.driver.shared.counts.release_qp();
        self.send_cq.remove_user();
        self.recv_cq.remove_user();
        if let RecvSource::Shared(srq) = &self.rq {
            srq.remove_user();
        }
        if *self.has_raised.get_mut() {
            // They may never be read, and peers can cause one with every connection.
            self.pd.device().events().forget_qp(self.num);
        }
    }
}
