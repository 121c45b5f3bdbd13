//! A queue pair's queues and state: what the application's handle and its connection share.

use crate::cq::{Cq, Cqe};
use crate::driver::{Driver, Shard};
use crate::error::{Error, PostError, Result};
use crate::event::AsyncEvent;
use crate::faults::{Call, Faults};
use crate::notify::Wakes;
use crate::pd::Pd;
use crate::qp::send_queue::{SendQueue, SqMode};
use crate::qp::{LogLimit, LongMessages, QpCap, QpState, RecvQueue, RecvWqe};
use crate::srq::Srq;
use crate::ud::UdState;
use crate::wc::{Wc, WcOpcode, WcStatus, WireReason};
use crate::wr::{RecvWr, SendOp, SendWr, Sge};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use uiw_datagram::Qpn;
use uiw_llp::Token;
use uiw_mem::{Access, StreamId};
use uiw_stream::LocalError;

/// So many bytes posted are worth a call of their own to the socket.
const BATCH: u64 = 256 << 10;

/// A token that no stream has.
pub(super) const NO_CONN: u64 = u64::MAX;

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
    /// Its connection's token, or [`NO_CONN`].
    pub(super) conn: AtomicU64,
    pub(crate) attrs: Mutex<Attrs>,
    /// Of a UD queue pair.
    pub(crate) ud: Option<UdState>,
    /// The device's queue of asynchronous events had one about this queue pair.
    pub(super) has_raised: AtomicBool,
    /// Those of the device, if there are any.
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

/// What is left to do of a post once the requests are in the queue: it may run foreign code, so no lock may be held.
#[must_use = "without it the requests are not served"]
pub(crate) struct Doorbell {
    wakes: Wakes,
    token: Option<Token>,
    go: bool,
}

impl Doorbell {
    pub(super) fn ring(self, qp: &QpInner) {
        self.wakes.give();
        match self.token {
            Some(token) if self.go => qp.driver.shard(token).serve(token),
            Some(token) => {
                let shard = qp.driver.shard(token);
                shard.ring(token);
                shard.coalesce_timer();
            }
            None if self.go => drop(qp.shard().map(Shard::try_flush)),
            None => {}
        }
    }
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

    pub(crate) fn conn(&self) -> Option<Token> {
        let token = self.conn.load(Ordering::Acquire);
        (token != NO_CONN).then_some(Token(token))
    }

    /// The shard of its connection.
    pub(crate) fn shard(&self) -> Option<&Arc<Shard>> {
        self.conn().map(|token| self.driver.shard(token))
    }

    /// Gives it a connection, or takes it away. Its completion queues are polled on the shard of the connection.
    pub(crate) fn set_conn(&self, token: Option<Token>) {
        let queues = [&self.send_cq, &self.recv_cq];
        if let Some(token) = token {
            queues.iter().for_each(|cq| cq.add_connection(self.driver.shard(token).index()));
        }
        let before = self.conn.swap(token.map_or(NO_CONN, |token| token.0), Ordering::AcqRel);
        if before != NO_CONN {
            queues.iter().for_each(|cq| cq.remove_connection(self.driver.shard(Token(before)).index()));
        }
    }

    /// Whether a connection may be begun: asked with [`QpInner::control`] held.
    pub(crate) fn may_connect(&self, what: &'static str) -> Result<()> {
        let state = self.state();
        let waiting = state == QpState::Rts && self.sq.lock().mode == SqMode::Waiting;
        if !matches!(state, QpState::Init | QpState::Rtr) && !waiting {
            return Err(Error::State { what, state });
        }
        if self.conn().is_some() {
            return Err(Error::AlreadyConnected { qp_num: self.num });
        }
        Ok(())
    }

    pub(crate) fn stream(&self) -> StreamId {
        self.attrs.lock().stream
    }

    pub(super) fn post_send<'a>(
        &self,
        wrs: impl IntoIterator<Item = SendWr<'a>>,
    ) -> std::result::Result<(), PostError> {
        let (result, doorbell) = self.queue_send(wrs);
        doorbell.ring(self);
        result
    }

    /// Like [`QpInner::post_send`], but posts nothing if one of the requests is refused.
    pub(super) fn post_send_all<'a>(
        &self,
        wrs: impl IntoIterator<Item = SendWr<'a>>,
    ) -> std::result::Result<(), PostError> {
        let (result, doorbell) = self.queue_send_with(wrs, SendQueue::unpost);
        doorbell.ring(self);
        result
    }

    pub(super) fn queue_send<'a>(
        &self,
        wrs: impl IntoIterator<Item = SendWr<'a>>,
    ) -> (std::result::Result<(), PostError>, Doorbell) {
        self.queue_send_with(wrs, |_, posted| posted)
    }

    /// Queues requests. When one is refused, `refused` gets the number of those before it and returns how many of them stay posted.
    #[inline(always)]
    fn queue_send_with<'a>(
        &self,
        wrs: impl IntoIterator<Item = SendWr<'a>>,
        refused: impl FnOnce(&mut SendQueue, usize) -> usize,
    ) -> (std::result::Result<(), PostError>, Doorbell) {
        let mut wakes = Wakes::default();
        if let Some(faults) = &self.faults
            && let Err(error) = faults.call(Call::PostSend)
        {
            return (Err(PostError { index: 0, error }), Doorbell { wakes, token: None, go: false });
        }
        let mut sq = self.sq.lock();
        let at_once = sq.all_seen(self.send_cq.taken());
        let mut posted = 0usize;
        // Not a loop of `next`: that would move every request through an `Option`, which waits for the stores of its fields.
        let result = wrs.into_iter().try_for_each(|wr| {
            self.post_one(&mut sq, &wr).map_err(|error| PostError { index: posted, error })?;
            posted += 1;
            Ok(())
        });
        if result.is_err() {
            posted = refused(&mut sq, posted);
        }
        if sq.mode == SqMode::Flushing {
            self.flush_sends(&mut sq, None, &mut wakes);
        }
        let mode = sq.mode;
        // One doorbell until the stream reads the queue: it takes all requests then.
        let ring = posted > 0 && mode == SqMode::Running && !std::mem::replace(&mut sq.rung, true);
        // A chain is coalesced as a single request is: chains that were sent at their ends cost a system call each.
        let go = at_once || sq.unpumped >= BATCH;
        if mode == SqMode::Running && posted > 0 && go {
            sq.unpumped = 0;
        }
        drop(sq);
        let token = if ring { self.conn() } else { None };
        (result, Doorbell { wakes, token, go: go && posted > 0 && mode == SqMode::Running })
    }

    #[inline(always)]
    fn post_one(&self, sq: &mut SendQueue, wr: &SendWr<'_>) -> Result<()> {
        if sq.mode == SqMode::Closed {
            return Err(Error::State { what: "posting a send", state: self.state() });
        }
        if let SendOp::Read { .. } | SendOp::FetchAdd { .. } | SendOp::CmpSwap { .. } = wr.op
            && self.attrs.lock().ord == 0
        {
            return Err(Error::Unsupported { what: "Reads or atomics: ORD was negotiated to 0" });
        }
        if self.unreliable && !wr.op.may_be_unreliable() {
            return Err(Error::Unsupported {
                what: "Reads, atomics or Sends with Invalidate on an unreliable connection",
            });
        }
        if matches!(wr.op, SendOp::Datagram { .. }) != self.ud.is_some() {
            return Err(Error::Unsupported {
                what: "datagrams on a queue pair that is not UD, or anything else on one that is",
            });
        }
        sq.post(wr, copy_inline)
    }

    pub(super) fn post_recv<'a>(
        &self,
        wrs: impl IntoIterator<Item = RecvWr<'a>>,
    ) -> std::result::Result<(), PostError> {
        let RecvSource::Own(rq) = &self.rq else {
            let error =
                Error::Misuse("this queue pair takes its receives from a shared receive queue: post there");
            return Err(PostError { index: 0, error });
        };
        if let Some(faults) = &self.faults {
            faults.call(Call::PostRecv).map_err(|error| PostError { index: 0, error })?;
        }
        let mut wakes = Wakes::default();
        let mut rq = rq.lock();
        let mut result = Ok(());
        for (index, wr) in wrs.into_iter().enumerate() {
            let posted = if rq.closed {
                Err(Error::State { what: "posting a receive", state: self.state() })
            } else {
                rq.post(&wr)
            };
            if let Err(error) = posted {
                result = Err(PostError { index, error });
                break;
            }
        }
        if rq.flushing {
            self.flush_receives(&mut rq, None, &mut wakes);
        }
        let waiting = std::mem::take(&mut rq.waiting);
        drop(rq);
        wakes.give();
        if !waiting.is_empty() {
            self.driver.ring_all(&waiting);
        }
        result
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

    /// Where receives are taken from, one after the other.
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

/// Copies inline data out of the caller's memory.
fn copy_inline(sges: &[Sge], out: &mut Vec<u8>) {
    for sge in sges {
        // SAFETY: `post_send` demands that inline elements are readable addresses of this process during the call.
        let bytes = unsafe { uiw_mem::IoVec::from_raw(sge.addr as *const u8, sge.length as usize) };
        bytes.append_to(out);
    }
}
