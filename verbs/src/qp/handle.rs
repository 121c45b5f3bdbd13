//! The queue pair as the application holds it.

use crate::cq::{Cq, Cqe};
use crate::driver::{Core, Driver, Shard};
use crate::error::{Error, PostError, Result};
use crate::event::AsyncEvent;
use crate::notify::Wakes;
use crate::pd::Pd;
use crate::qp::send_queue::{SendQueue, SqLimits, SqMode};
use crate::qp::{QpState, RecvQueue, RecvWqe};
use crate::srq::Srq;
use crate::wc::{Wc, WcOpcode, WcStatus, WireReason};
use crate::wr::{RecvWr, SendOp, SendWr, Sge};
use llp::Token;
use mem::{Access, StreamId};
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use stream::LocalError;

/// Capacities of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCap {
    /// Requests in the send queue.
    pub max_send_wr: u32,
    /// Requests in the receive queue; ignored with a shared one.
    pub max_recv_wr: u32,
    /// Elements of one send request.
    pub max_send_sge: u32,
    /// Elements of one receive.
    pub max_recv_sge: u32,
    /// Octets of inline data.
    pub max_inline: u32,
}

impl Default for QpCap {
    fn default() -> Self {
        Self { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 16, max_recv_sge: 16, max_inline: 256 }
    }
}

/// What a queue pair is made of.
#[derive(Clone)]
pub struct QpInit {
    /// Where send requests complete.
    pub send_cq: Arc<Cq>,
    /// Where receives complete.
    pub recv_cq: Arc<Cq>,
    /// A shared receive queue instead of one of its own.
    pub srq: Option<Arc<Srq>>,
    /// Capacities.
    pub cap: QpCap,
    /// Every send request produces a completion.
    pub signal_all: bool,
    /// Its number, for callers to whom numbers mean something: 2 to 0xFFFFFF. Without it a random one is taken.
    pub num: Option<u32>,
}

/// What can be set and queried of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttr {
    /// State.
    pub state: QpState,
    /// Rights of peers on this queue pair; memory needs them too.
    pub access: Access,
    /// Reads and atomics we may have outstanding.
    pub ord: u16,
    /// Reads and atomics the peer may have outstanding.
    pub ird: u16,
    /// Capacities.
    pub cap: QpCap,
}

/// How the octets of a standing connection travel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// Octets a TCP segment carries (RFC 5044 section 5.1).
    pub emss: usize,
    /// Octets of the longest ULPDU we send.
    pub max_ulpdu: usize,
    /// Whether the peer turned out to be one of ours; false until its answer is here.
    pub uiw_peer: bool,
    /// What TCP says.
    pub stream: llp::StreamInfo,
}

/// So many bytes posted are worth a call of their own to the socket.
const BATCH: u64 = 256 << 10;

/// A token that no stream has.
const NO_CONN: u64 = u64::MAX;

/// Queue pair numbers have 24 bits.
const MAX_NUM: u32 = 0x00FF_FFFF;

pub(crate) enum RecvSource {
    Own(Mutex<RecvQueue>),
    Shared(Arc<Srq>),
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
    control: Mutex<()>,
    state: AtomicU8,
    cap: QpCap,
    /// Rights of peers, as bits: read for every segment.
    access: AtomicU32,
    /// Its connection's token, or [`NO_CONN`].
    conn: AtomicU64,
    pub(crate) attrs: Mutex<Attrs>,
    /// The device's queue of asynchronous events had one about this queue pair.
    has_raised: AtomicBool,
}

pub(crate) struct Attrs {
    pub(crate) ord: u16,
    pub(crate) ird: u16,
    pub(crate) stream: StreamId,
}

/// A queue pair. Dropping it cuts its connection; what was posted is forgotten.
pub struct Qp(pub(crate) Arc<QpInner>);

impl Qp {
    pub(crate) fn create(pd: &Pd, init: QpInit) -> Result<Self> {
        let driver = Arc::clone(pd.driver());
        let limits = driver.limits();
        let cap = init.cap;
        limits.check("send queue depth", cap.max_send_wr.max(1).into(), limits.max_qp_wr.into())?;
        limits.check("receive queue depth", cap.max_recv_wr.max(1).into(), limits.max_qp_wr.into())?;
        limits.check("send elements", cap.max_send_sge.max(1).into(), limits.max_sge.into())?;
        limits.check("receive elements", cap.max_recv_sge.max(1).into(), limits.max_sge.into())?;
        limits.check("inline octets", cap.max_inline.max(1).into(), limits.max_inline.into())?;
        for cq in [&init.send_cq, &init.recv_cq] {
            if !Arc::ptr_eq(cq.driver(), &driver) {
                return Err(Error::Foreign { what: "completion queue", of: "device" });
            }
        }
        if let Some(srq) = &init.srq
            && !Arc::ptr_eq(srq.pd().driver(), &driver)
        {
            return Err(Error::Foreign { what: "shared receive queue", of: "device" });
        }
        driver.shared.counts.take_qp(limits)?;
        let num = match take_num(&driver, init.num) {
            Ok(num) => num,
            Err(error) => {
                driver.shared.counts.release_qp();
                return Err(error);
            }
        };
        let sq_limits = SqLimits {
            depth: cap.max_send_wr,
            max_sge: cap.max_send_sge,
            max_inline: cap.max_inline,
            signal_all: init.signal_all,
        };
        init.send_cq.add_user();
        init.recv_cq.add_user();
        let rq = match init.srq {
            Some(srq) => {
                srq.add_user();
                RecvSource::Shared(srq)
            }
            None => RecvSource::Own(Mutex::new(RecvQueue::new(cap.max_recv_wr, cap.max_recv_sge))),
        };
        let max_rd_atomic = limits.max_rd_atomic;
        let stream = driver.shared.next_stream();
        let inner = Arc::new(QpInner {
            num,
            pd: pd.clone(),
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            sq: Mutex::new(SendQueue::new(sq_limits, num)),
            rq,
            control: Mutex::new(()),
            state: AtomicU8::new(QpState::Init as u8),
            cap,
            conn: AtomicU64::new(NO_CONN),
            access: AtomicU32::new(
                (Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC).bits(),
            ),
            attrs: Mutex::new(Attrs { ord: max_rd_atomic, ird: max_rd_atomic, stream }),
            has_raised: AtomicBool::new(false),
            driver,
        });
        inner.driver.shared.qps.lock().insert(num, Arc::downgrade(&inner));
        Ok(Self(inner))
    }

    /// Its number: 24 bits, random, unique on the device.
    #[must_use]
    pub fn num(&self) -> u32 {
        self.0.num
    }

    /// Its protection domain.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }

    /// Its state now.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.0.state()
    }

    /// Posts send requests in order, one doorbell for all.
    ///
    /// # Safety
    /// For every accepted request the memory of its elements stays registered memory that nobody writes (sources) or touches
    /// (targets of Reads and atomics) until its completion was taken from the queue, or the queue pair was dropped. Regions
    /// with remote rights may be touched at any time; what arrives is then unspecified, nothing else. With
    /// [`crate::SendFlags::INLINE`] the elements' `addr` are readable addresses of this process during the call. Memory named by a
    /// [`crate::FastRegister`] stays valid until its STag is invalidated or freed.
    ///
    /// # Errors
    /// [`PostError`] names the first refused request; those before it are posted.
    pub unsafe fn post_send<'a>(
        &self,
        wrs: impl IntoIterator<Item = SendWr<'a>>,
    ) -> std::result::Result<(), PostError> {
        self.0.post_send(wrs)
    }

    /// As [`Qp::post_send`] up to the doorbell, which [`Qp::ring`] gives: it runs wakers, so locks are let go between the two.
    ///
    /// # Safety
    /// As for [`Qp::post_send`].
    pub(crate) unsafe fn queue_send<'a>(
        &self,
        wrs: impl IntoIterator<Item = SendWr<'a>>,
    ) -> (std::result::Result<(), PostError>, Doorbell) {
        self.0.queue_send(wrs)
    }

    pub(crate) fn ring(&self, doorbell: Doorbell) {
        doorbell.ring(&self.0);
    }

    /// Posts receives in order.
    ///
    /// # Safety
    /// The memory of every accepted receive is touched by nobody else until its completion was taken, or the queue pair was
    /// dropped.
    ///
    /// # Errors
    /// [`PostError`] names the first refused receive; those before it are posted.
    pub unsafe fn post_recv<'a>(
        &self,
        wrs: impl IntoIterator<Item = RecvWr<'a>>,
    ) -> std::result::Result<(), PostError> {
        self.0.post_recv(wrs)
    }

    /// What was set, and the state it is really in.
    #[must_use]
    pub fn query(&self) -> QpAttr {
        let attrs = self.0.attrs.lock();
        QpAttr {
            state: self.0.state(),
            access: self.0.access(),
            ord: attrs.ord,
            ird: attrs.ird,
            cap: self.0.cap,
        }
    }

    /// Sets the rights of peers on this queue pair.
    pub fn set_access(&self, access: Access) {
        self.0.access.store(access.bits(), Ordering::Release);
    }

    /// Moves the queue pair to another state (verbs state diagram).
    ///
    /// A connection brings RTS by itself. Asked for in RTR before the connection stands, it lets requests be posted: they wait
    /// for the connection. From SQD it resumes the send queue. ERR ends the connection with a Terminate and flushes; RESET
    /// forgets everything and makes the queue pair new.
    ///
    /// # Errors
    /// [`Error::Transition`]; [`Error::NotConnected`] for RTS of a connection that is being closed.
    pub fn modify(&self, to: QpState) -> Result<()> {
        crate::qp::control::modify(&self.0, to)
    }

    /// Starts the orderly close: what was posted is sent, then FIN both ways, then ERR and the flush (`rdma_disconnect`).
    ///
    /// # Errors
    /// [`Error::NotConnected`].
    pub fn disconnect(&self) -> Result<()> {
        crate::qp::control::disconnect(&self.0)
    }

    /// Ends the queue pair as a failure of its connection: the oldest open request completes with `status`, every other one is
    /// flushed, a standing connection is terminated, and the state is ERR. For callers who decide that a peer is out of reach.
    pub fn fail(&self, status: WcStatus) {
        crate::qp::control::fail(&self.0, status);
    }

    /// How long from now on an inbound Send may wait for a receive (`ConnOptions::no_receive_timeout`); [`Duration::MAX`] =
    /// for ever.
    ///
    /// # Errors
    /// [`Error::NotConnected`].
    pub fn set_no_receive_timeout(&self, timeout: Duration) -> Result<()> {
        let token = self.0.conn().ok_or(Error::NotConnected)?;
        let set = move |core: &mut Core| {
            core.with_conn(token, |conn, services| conn.set_no_receive_timeout(timeout, services))
        };
        self.0.driver.shard(token).call(set).ok_or(Error::NotConnected)
    }

    /// How the octets of its connection travel now; `None` without a connection.
    #[must_use]
    pub fn path(&self) -> Option<Path> {
        let token = self.0.conn()?;
        self.0.driver.shard(token).call(move |core| core.with_conn(token, |conn, _| conn.path()))
    }

    /// Drives the shard of its connection once, if nobody else does.
    pub fn progress(&self) {
        if let Some(shard) = self.0.shard() {
            shard.try_pump();
        }
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        crate::qp::control::destroy(&self.0);
    }
}

/// The number asked for, or one that no living queue pair has: random, so that a number from a former life is met by nobody.
fn take_num(driver: &Driver, asked: Option<u32>) -> Result<u32> {
    let mut qps = driver.shared.qps.lock();
    let num = match asked {
        Some(num) if num <= 1 || num > MAX_NUM => return Err(Error::QpNumber { num }),
        Some(num) if qps.contains_key(&num) => return Err(Error::QpNumberTaken { num }),
        Some(num) => num,
        None => loop {
            let num = getrandom::u32().unwrap_or_else(|_| driver.shared.next_num()) & MAX_NUM;
            // 0 and 1 are special queue pairs in verbs.
            if num > 1 && !qps.contains_key(&num) {
                break num;
            }
        },
    };
    // From now on the number is taken, whoever else asks at the same time.
    qps.insert(num, Weak::new());
    Ok(num)
}

/// What is left to do of a post once the requests are in the queue: it may run foreign code, so no lock may be held.
#[must_use = "without it nobody serves the requests"]
pub(crate) struct Doorbell {
    wakes: Wakes,
    token: Option<Token>,
    go: bool,
}

impl Doorbell {
    fn ring(mut self, qp: &QpInner) {
        self.wakes.give();
        match self.token {
            Some(token) if self.go => qp.driver.shard(token).serve(token),
            Some(token) => {
                let shard = qp.driver.shard(token);
                shard.ring(token);
                shard.deferred();
            }
            None if self.go => drop(qp.shard().map(Shard::try_flush)),
            None => {}
        }
    }
}

impl QpInner {
    /// Tells the device's queue of an event about this queue pair.
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
            tracing::debug!(qp = self.num, from = %QpState::from_raw(before), to = %state, "queue pair state");
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

    fn post_send<'a>(&self, wrs: impl IntoIterator<Item = SendWr<'a>>) -> std::result::Result<(), PostError> {
        let (result, doorbell) = self.queue_send(wrs);
        doorbell.ring(self);
        result
    }

    fn queue_send<'a>(
        &self,
        wrs: impl IntoIterator<Item = SendWr<'a>>,
    ) -> (std::result::Result<(), PostError>, Doorbell) {
        let mut wakes = Wakes::default();
        let mut sq = self.sq.lock();
        let at_once = sq.all_seen(self.send_cq.taken());
        let mut posted = 0usize;
        let mut result = Ok(());
        for (index, wr) in wrs.into_iter().enumerate() {
            if let Err(error) = self.post_one(&mut sq, &wr) {
                result = Err(PostError { index, error });
                break;
            }
            posted = index + 1;
        }
        if sq.mode == SqMode::Flushing {
            self.flush_sends(&mut sq, None, &mut wakes);
        }
        let mode = sq.mode;
        // One ring until the stream looks at the queue: it takes what it finds then.
        let ring = posted > 0 && mode == SqMode::Running && !std::mem::replace(&mut sq.rung, true);
        // A chain waits for company as a single request does: chains that went out at their ends were a system call each.
        let go = at_once || sq.unpumped >= BATCH;
        if mode == SqMode::Running && posted > 0 && go {
            sq.unpumped = 0;
        }
        drop(sq);
        let token = if ring { self.conn() } else { None };
        (result, Doorbell { wakes, token, go: go && posted > 0 && mode == SqMode::Running })
    }

    fn post_one(&self, sq: &mut SendQueue, wr: &SendWr<'_>) -> Result<()> {
        if sq.mode == SqMode::Closed {
            return Err(Error::State { what: "posting a send", state: self.state() });
        }
        if let SendOp::Read { .. } | SendOp::FetchAdd { .. } | SendOp::CmpSwap { .. } = wr.op
            && self.attrs.lock().ord == 0
        {
            return Err(Error::Unsupported { what: "Reads or atomics: ORD was negotiated to 0" });
        }
        sq.post(wr, copy_inline)
    }

    fn post_recv<'a>(&self, wrs: impl IntoIterator<Item = RecvWr<'a>>) -> std::result::Result<(), PostError> {
        let RecvSource::Own(rq) = &self.rq else {
            let error =
                Error::Misuse("this queue pair takes its receives from a shared receive queue: post there");
            return Err(PostError { index: 0, error });
        };
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
        let mut room = true;
        sq.retire(None, |cqe| {
            let place = self.send_cq.push(cqe, wakes);
            room &= place.is_some();
            place
        });
        if room { Ok(()) } else { Err(LocalError::CqOverflow) }
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
            reason,
            timestamp_ns: 0,
        };
        self.recv_cq.push(Cqe { wc, solicited: true }, wakes);
    }

    /// Takes the oldest receive, or notes the stream as waiting for one.
    pub(crate) fn take_recv(&self, into: &mut RecvWqe, token: Token, wakes: &mut Wakes) -> bool {
        match &self.rq {
            RecvSource::Own(rq) => {
                let mut rq = rq.lock();
                let taken = rq.take(into);
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
            // Nobody may ever ask for them, and peers can cause one with every connection.
            self.pd.device().events().forget_qp(self.num);
        }
    }
}

/// Copies inline data out of the caller's memory.
fn copy_inline(sges: &[Sge], out: &mut Vec<u8>) {
    for sge in sges {
        // SAFETY: `post_send` demands that inline elements are readable addresses of this process during the call.
        let octets = unsafe { mem::IoVec::from_raw(sge.addr as *const u8, sge.length as usize) };
        octets.append_to(out);
    }
}
