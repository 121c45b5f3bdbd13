//! Implementation of [`uiw_stream::StreamHost`] for the queue pair of a connection and the memory
//! of its device.

#[cfg(test)]
mod tests;

use super::{HostState, held_receives};
use crate::cq::Cqe;
use crate::driver::Services;
use crate::notify::Wakes;
use crate::qp::{
    CrcAppender, Gathered, LocalCause, LocalDetail, LongMessages, QpInner, RecvQueue, RecvSource,
    SendQueue, SqMode, Wqe,
};
use crate::wc::{Wc, WcOpcode, WcStatus};
use crate::wr::{Remote, SendFlags, SendOp, Sge};
use parking_lot::MutexGuard;
use std::ops::Range;
use uiw_counters::{TrafficClass, WaitReason};
use uiw_mem::{Access, PinnedSpan, RemoteError, Right, Span, Table, UpdateError};
use uiw_mpa::{Crc32c, Verified};
use uiw_rdmap::AtomicRequest;
use uiw_stream::{
    AccessError, AtomicError, LocalError, Op, Payload, ReceiveError, ReceivedKind, ReceivedMessage,
    Request, RequestRefusal, ResponsePart, SourceGone,
};

/// Maximum number of bytes that are copied while a queue is locked.
const MAX_LOCKED_COPY: usize = 4096;
/// Maximum number of short messages for which a queue stays locked while their completions are
/// collected.
const MAX_LOCKED_MESSAGES: usize = 16;

/// View of a queue pair and of the device's memory during one call of the stream. Dropping it
/// releases all locks and pins that it still holds.
///
/// A queue stays locked from one short message to the next, and its completions are collected
/// meanwhile. They are added to the completion queue before the queue is unlocked, because another
/// thread may then flush the requests that follow.
pub(crate) struct QpHost<'a> {
    qp: Option<&'a QpInner>,
    state: &'a mut HostState,
    table: &'a Table,
    wakes: &'a mut Wakes,
    /// The send queue, while it is locked. Never locked together with `receives`.
    queue: Option<MutexGuard<'a, SendQueue>>,
    /// Number of requests that were done while the send queue was locked, and whose completions
    /// were not added yet.
    done_count: usize,
    /// The queue pair's own receive queue, while it is locked.
    receives: Option<MutexGuard<'a, RecvQueue>>,
    /// True if the completion of the next message is collected in `received`, because it is not the
    /// first message since this view was created.
    collects: bool,
    /// Completions of the receives that were filled while the receive queue was locked.
    received: &'a mut Vec<Cqe>,
}

impl Drop for QpHost<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.unlock();
        self.state.cache.unpin();
    }
}

/// Pinned memory that is the source of a message.
pub(crate) struct Source<'a>(PinnedSpan<'a>);

impl Payload for Source<'_> {
    type Memory = Span;

    #[inline]
    fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn is_stable(&self) -> bool {
        !self.0.is_shared()
    }

    #[inline]
    fn append_to(&self, range: Range<usize>, out: &mut Vec<u8>) -> Result<(), SourceGone> {
        self.0.copy_to_vec(range, out).map_err(|_| SourceGone)
    }

    #[inline]
    fn append_with_crc(
        &self,
        range: Range<usize>,
        out: &mut Vec<u8>,
        crc: Crc32c,
    ) -> Result<Crc32c, SourceGone> {
        self.0.copy_to_vec_with_crc(range, out, crc).map_err(|_| SourceGone)
    }

    #[inline]
    fn update_crc(&self, range: Range<usize>, crc: Crc32c) -> Result<Crc32c, SourceGone> {
        self.0.update_crc(range, crc).map_err(|_| SourceGone)
    }

    fn to_memory(&self) -> Span {
        self.0.to_span()
    }
}

impl<'a> QpHost<'a> {
    /// Appends the bytes `range` of a request.
    #[inline(always)]
    fn gather(
        &mut self,
        id: u32,
        range: Range<u32>,
        out: &mut impl Gathered,
    ) -> Result<(), LocalError> {
        let qp = self.qp.ok_or(LocalError::Protection)?;
        self.queue();
        let queue = self.queue.as_ref().ok_or(LocalError::Protection)?;
        let wqe = queue.get(id).ok_or(LocalError::Protection)?;
        qp.gather(self.table, &mut self.state.cache, wqe, range, out)
    }

    pub(crate) fn new(
        qp: Option<&'a QpInner>,
        state: &'a mut HostState,
        services: &'a mut Services,
    ) -> Self {
        let Services { table, wakes, received, .. } = services;
        Self {
            qp,
            state,
            table,
            wakes,
            queue: None,
            done_count: 0,
            receives: None,
            collects: false,
            received,
        }
    }

    /// Returns whether no queue is locked and no region pinned.
    pub(crate) fn is_released(&self) -> bool {
        self.queue.is_none() && self.receives.is_none() && !self.state.cache.is_pinned()
    }

    /// Reports the collected completions and unlocks the queues.
    #[inline(always)]
    fn unlock(&mut self) {
        self.unlock_sends();
        self.unlock_receives();
    }

    #[inline(always)]
    fn unlock_sends(&mut self) {
        if self.queue.is_some() {
            if self.done_count > 0 {
                self.complete_done();
            }
            self.queue = None;
        }
    }

    #[inline(never)]
    fn complete_done(&mut self) {
        self.done_count = 0;
        if let (Some(queue), Some(qp)) = (&mut self.queue, self.qp)
            && let Err(error) = qp.retire(queue, self.wakes)
        {
            self.state.failure = Some(error);
        }
    }

    #[inline(always)]
    fn unlock_receives(&mut self) {
        if self.receives.is_some() {
            if !self.received.is_empty() {
                self.report_received();
            }
            self.receives = None;
        }
    }

    #[inline(never)]
    fn report_received(&mut self) {
        if let Some(qp) = self.qp {
            let mut completions = qp.recv_cq.appender(self.wakes);
            for cqe in &*self.received {
                if completions.push(cqe).is_none() {
                    self.state.failure = Some(LocalError::CqOverflow);
                }
            }
        }
        self.received.clear();
    }

    /// Takes the error of the completions that were reported last, if there was one.
    #[inline(always)]
    fn take_failure(&mut self) -> Result<(), LocalError> {
        self.state.failure.take().map_or(Ok(()), Err)
    }

    /// Returns the send queue, locked until [`uiw_stream::StreamHost::release`].
    #[inline(always)]
    fn queue(&mut self) -> Option<&mut MutexGuard<'a, SendQueue>> {
        if self.queue.is_none() {
            self.unlock_receives();
            self.queue = self.qp.map(|qp| qp.sq.lock());
        }
        self.queue.as_mut()
    }

    /// Marks requests as done, and completes the done requests at the front of the send queue.
    #[inline(always)]
    fn done(&mut self, ids: impl Iterator<Item = u32>, status: WcStatus) -> Result<(), LocalError> {
        self.queue();
        let (Some(queue), Some(qp)) = (&mut self.queue, self.qp) else { return Ok(()) };
        ids.for_each(|id| queue.done(id, status));
        qp.retire(queue, self.wakes)
    }

    /// Counts a done request. The done requests at the front of the send queue are completed when
    /// the queue is unlocked, after [`MAX_LOCKED_MESSAGES`] of them at the latest. With injected
    /// faults they are completed at once, because the stream must not continue after a fault.
    #[inline(always)]
    fn note_done(&mut self) -> Result<(), LocalError> {
        self.done_count += 1;
        if self.done_count == MAX_LOCKED_MESSAGES || self.qp.is_some_and(|qp| qp.faults.is_some()) {
            self.unlock_sends();
            return self.take_failure();
        }
        Ok(())
    }

    /// Places `bytes` at `offset` of a message that is longer than its receive. At the first call,
    /// the bytes that were placed into the receive are copied.
    #[cold]
    fn place_long(&mut self, qp: &QpInner, offset: u32, bytes: &[u8]) -> Result<(), LocalError> {
        let state = &mut *self.state;
        let limit = qp.long.as_ref().map_or(u32::MAX, LongMessages::max_len);
        state.reserve(&qp.driver.shared, offset as usize + bytes.len(), limit as usize)?;
        let mut from = state.long.len() as u32;
        for sge in &state.receive.sges {
            let taken = sge.length.min(offset - from);
            if taken == 0 {
                break;
            }
            let pin = self
                .table
                .pin_local(&mut state.cache, sge.lkey, qp.pd.id(), (sge.addr, taken), false)
                .map_err(|_| LocalError::Protection)?;
            pin.copy_to_vec(0..pin.len(), &mut state.long).map_err(|_| LocalError::Protection)?;
            from += taken;
        }
        state.long.extend_from_slice(bytes);
        Ok(())
    }
}

impl uiw_stream::StreamHost for QpHost<'_> {
    type Memory = Span;
    type Payload<'b>
        = Source<'b>
    where
        Self: 'b;

    #[inline(always)]
    fn is_unreliable(&self) -> bool {
        self.qp.is_some_and(|qp| qp.unreliable)
    }

    fn check_write(&mut self, stag: uiw_ddp::STag, to: u64, len: u32) -> Result<(), AccessError> {
        let qp = self.qp.ok_or(AccessError::InvalidStag)?;
        if !qp.access().contains(Access::REMOTE_WRITE) {
            return Err(AccessError::AccessRights);
        }
        let from = (self.state.stream, qp.pd.id());
        self.table
            .pin_remote(&mut self.state.cache, stag, from, (to, len), Right::Write)
            .map(drop)
            .map_err(|error| access_error(&error))
    }

    #[inline(always)]
    fn write(
        &mut self,
        stag: uiw_ddp::STag,
        to: u64,
        payload: Verified<'_>,
    ) -> Result<(), AccessError> {
        let qp = self.qp.ok_or(AccessError::InvalidStag)?;
        if !qp.access().contains(Access::REMOTE_WRITE) {
            return Err(AccessError::AccessRights);
        }
        if payload.len() > MAX_LOCKED_COPY {
            self.unlock();
        }
        let (from, range) = ((self.state.stream, qp.pd.id()), (to, payload.len() as u32));
        self.table
            .pin_remote(&mut self.state.cache, stag, from, range, Right::Write)
            .map_err(|error| access_error(&error))?
            .copy_from(0, payload.as_bytes())
            .map_err(|_| AccessError::InvalidStag)
    }

    fn read_source(
        &mut self,
        stag: uiw_ddp::STag,
        to: u64,
        len: u32,
    ) -> Result<Source<'_>, AccessError> {
        let qp = self.qp.ok_or(AccessError::InvalidStag)?;
        if !qp.access().contains(Access::REMOTE_READ) {
            return Err(AccessError::AccessRights);
        }
        if len as usize > MAX_LOCKED_COPY {
            self.unlock();
        }
        let from = (self.state.stream, qp.pd.id());
        self.table
            .pin_remote(&mut self.state.cache, stag, from, (to, len), Right::Read)
            .map(Source)
            .map_err(|error| access_error(&error))
    }

    fn atomic(&mut self, request: &AtomicRequest) -> Result<u64, AtomicError> {
        let qp = self.qp.ok_or(AccessError::InvalidStag)?;
        if !qp.access().contains(Access::REMOTE_ATOMIC) {
            return Err(AccessError::AccessRights.into());
        }
        let from = (self.state.stream, qp.pd.id());
        let pin = self
            .table
            .pin_remote(&mut self.state.cache, request.stag, from, (request.to, 8), Right::Atomic)
            .map_err(|error| access_error(&error))?;
        pin.atomic_u64(0, |old| request.apply(old)).map_err(|error| match error {
            UpdateError::Unaligned(_) => AtomicError::Unaligned,
            UpdateError::Gone(_) => AccessError::InvalidStag.into(),
        })
    }

    fn invalidate(&mut self, stag: uiw_ddp::STag) -> Result<(), AccessError> {
        let qp = self.qp.ok_or(AccessError::InvalidStag)?;
        // Invalidating a region waits for its pins, so this thread must hold neither pins nor
        // locks.
        self.release();
        self.table
            .invalidate_remote(stag, qp.stream(), qp.pd.id())
            .map_err(|_| AccessError::AccessRights)
            .map(drop)
    }

    #[inline]
    fn begin_receive(&mut self) -> Option<u32> {
        let qp = self.qp?;
        self.unlock_sends();
        let state = &mut *self.state;
        state.receiving = match &qp.rq {
            RecvSource::Own(rq) => {
                let receives = self.receives.get_or_insert_with(|| rq.lock());
                qp.take_own_receive(receives, &mut state.receive, state.token)
            }
            RecvSource::Shared(srq) => srq.take(&mut state.receive, Some(state.token), self.wakes),
        };
        let room = qp.long.as_ref().map_or(state.receive.len, LongMessages::max_len);
        state.receiving.then_some(room)
    }

    #[inline]
    fn place(&mut self, offset: u32, payload: Verified<'_>) -> Result<(), LocalError> {
        let qp = self.qp.ok_or(LocalError::Protection)?;
        if payload.len() > MAX_LOCKED_COPY {
            self.unlock();
        }
        let state = &mut *self.state;
        if payload.len() as u64 + u64::from(offset) > state.receive.len.into() {
            return self.place_long(qp, offset, &payload);
        }
        qp.scatter(self.table, &mut state.cache, &state.receive.sges, offset, &payload)
    }

    #[inline]
    fn receive(&mut self, message: ReceivedMessage) -> Result<(), LocalError> {
        let (Some(qp), Some(wr_id)) = (self.qp, self.state.end_receive()) else { return Ok(()) };
        if let Some(messages) = &qp.long
            && !self.state.long.is_empty()
        {
            messages.add(wr_id, std::mem::take(&mut self.state.long));
            self.state.charge = None;
        }
        if let Some(faults) = &qp.faults
            && let Some(status) = faults.completion(WcOpcode::Recv)
        {
            self.unlock_receives();
            held_receives::push(&mut self.state.held, usize::MAX, qp, self.wakes);
            qp.complete_recv(wr_id, status, None, self.wakes);
            return Err(LocalError::GivenUp);
        }
        if message.awaits_ack {
            self.state.hold_receive(completion(qp, wr_id, &message));
            return Ok(());
        }
        // The first completion is reported at once, because often there is only one message.
        if !std::mem::replace(&mut self.collects, self.receives.is_some()) {
            let cqe = completion(qp, wr_id, &message);
            return qp.recv_cq.push(cqe, self.wakes).map(drop).ok_or(LocalError::CqOverflow);
        }
        self.received.push(completion(qp, wr_id, &message));
        if self.receives.is_none() || self.received.len() == MAX_LOCKED_MESSAGES {
            self.report_received();
            self.receives = None;
            return self.take_failure();
        }
        Ok(())
    }

    fn fail_receive(&mut self, error: ReceiveError) {
        self.unlock();
        let status = match error {
            ReceiveError::TooLong { .. } => WcStatus::LocalLength,
            ReceiveError::Protection => WcStatus::LocalProtection,
        };
        if let Some(qp) = self.qp {
            let receive = &self.state.receive;
            let detail = match error {
                ReceiveError::TooLong { message } => {
                    let room = qp.long.as_ref().map_or(receive.len, LongMessages::max_len);
                    let text = format_args!(
                        "a message of at least {message} bytes, and there is room for {room}"
                    );
                    LocalDetail::of_receive(receive, LocalCause::Length, text)
                }
                ReceiveError::Protection => {
                    let text = qp.explain_elements(self.table, &receive.sges, true);
                    LocalDetail::of_receive(receive, LocalCause::Protection, text)
                }
            };
            qp.keep_local_error(&detail);
            self.state.detail = Some(detail);
        }
        if let (Some(qp), Some(wr_id)) = (self.qp, self.state.take_receive()) {
            held_receives::push(&mut self.state.held, usize::MAX, qp, self.wakes);
            qp.complete_recv(wr_id, status, None, self.wakes);
        }
    }

    #[inline(always)]
    fn next_request(&mut self) -> Option<Request> {
        let queue = self.queue()?;
        queue.note_read();
        if queue.mode != SqMode::Running {
            return None;
        }
        let (id, wqe) = queue.next_wqe()?;
        Some(Request {
            id,
            op: op(&wqe.op),
            len: wqe.len,
            fence: wqe.flags.contains(SendFlags::FENCE),
            solicited: wqe.flags.contains(SendFlags::SOLICITED),
            inline: wqe.flags.contains(SendFlags::INLINE),
        })
    }

    fn is_awaited(&mut self, _id: u32) -> bool {
        // A program that has received nothing since its last request sends a stream of data, and
        // does not wait for answers.
        let is_awaited =
            self.state.has_received && self.queue().is_some_and(|queue| queue.has_only_awaited());
        self.state.has_received &= !is_awaited;
        is_awaited
    }

    #[inline(always)]
    fn release(&mut self) {
        self.unlock();
        self.state.cache.unpin();
    }

    #[inline(always)]
    fn begun(&mut self, id: u32, msn: u32) {
        let Some(queue) = self.queue() else { return };
        if let Some(sges) = queue.begun(id, msn) {
            self.state.sinks.push_back(sges);
        }
    }

    #[inline(always)]
    fn built(&mut self, _id: u32, msn: u32) {
        if let Some(queue) = self.queue() {
            queue.built(msn);
        }
    }

    #[inline(always)]
    fn copy_request(
        &mut self,
        id: u32,
        range: Range<u32>,
        out: &mut Vec<u8>,
    ) -> Result<(), LocalError> {
        self.gather(id, range, out)
    }

    #[inline]
    fn copies_with_crc(&self) -> bool {
        uiw_mem::recover::copies_with_crc()
    }

    fn copy_request_with_crc(
        &mut self,
        id: u32,
        range: Range<u32>,
        out: &mut Vec<u8>,
        crc: Crc32c,
    ) -> Result<Crc32c, LocalError> {
        let mut out = CrcAppender { out, crc };
        self.gather(id, range, &mut out)?;
        Ok(out.crc)
    }

    fn request_payload(
        &mut self,
        id: u32,
        offset: u32,
        len: u32,
    ) -> Result<Source<'_>, LocalError> {
        let qp = self.qp.ok_or(LocalError::Protection)?;
        let queue = self.queue().ok_or(LocalError::Protection)?;
        let wqe = queue.get(id).ok_or(LocalError::Protection)?;
        let (sge, skip) = element(wqe, offset).ok_or(LocalError::Protection)?;
        // Posting threads need not wait for the copies and CRCs that follow.
        self.unlock_sends();
        let range = (sge.addr.wrapping_add(u64::from(skip)), len.min(sge.length - skip));
        self.table
            .pin_local(&mut self.state.cache, sge.lkey, qp.pd.id(), range, false)
            .map(Source)
            .map_err(|_| LocalError::Protection)
    }

    fn execute_local(&mut self, id: u32) -> Result<(), LocalError> {
        let qp = self.qp.ok_or(LocalError::Protection)?;
        let queue = self.queue().ok_or(LocalError::Protection)?;
        let op = queue.get(id).ok_or(LocalError::Protection)?.op;
        queue.built(0);
        self.release();
        if let Err((error, text)) = execute(qp, self.table, &op) {
            if let Some(wqe) = qp.sq.lock().get(id) {
                self.state.detail = Some(LocalDetail::of_request(wqe, LocalCause::Stag, text));
            }
            return Err(error);
        }
        self.done(std::iter::once(id), WcStatus::Success)
    }

    fn refuse(&mut self, id: u32, refusal: RequestRefusal) -> Result<(), LocalError> {
        let qp = self.qp.ok_or(LocalError::Protection)?;
        let queue = self.queue().ok_or(LocalError::Protection)?;
        let detail =
            queue.get(id).map(|wqe| LocalDetail::of_request(wqe, LocalCause::Unsupported, refusal));
        queue.built(0);
        self.release();
        if let Some(detail) = detail {
            qp.log_local(&detail);
        }
        self.done(std::iter::once(id), WcStatus::LocalQpOperation)
    }

    #[inline]
    fn place_answer(
        &mut self,
        _id: u32,
        offset: u32,
        payload: ResponsePart<'_>,
    ) -> Result<(), LocalError> {
        let qp = self.qp.ok_or(LocalError::Protection)?;
        if let ResponsePart::Read(bytes) = &payload
            && bytes.len() > MAX_LOCKED_COPY
        {
            self.unlock();
        }
        let sges = self.state.sinks.front().ok_or(LocalError::Protection)?;
        let cache = &mut self.state.cache;
        match payload {
            ResponsePart::Read(bytes) => qp.scatter(self.table, cache, sges, offset, &bytes),
            // In the byte order of this machine, as `ibv_post_send` documents.
            ResponsePart::Atomic(value) => {
                qp.scatter(self.table, cache, sges, offset, &value.to_ne_bytes())
            }
        }
    }

    fn answered(&mut self, id: u32, invalidate: Option<uiw_ddp::STag>) -> Result<(), LocalError> {
        let Some(qp) = self.qp else { return Ok(()) };
        let sges = self.state.sinks.pop_front().unwrap_or_default();
        let mut outcome = Ok(());
        if let Some(stag) = invalidate {
            self.release();
            let ended = self.table.invalidate_local(stag, qp.stream(), qp.pd.id());
            outcome = ended.map_err(|_| LocalError::Protection).map(drop);
        }
        let Some(queue) = self.queue() else { return Ok(()) };
        queue.return_sges(id, sges);
        outcome?;
        queue.done(id, WcStatus::Success);
        self.note_done()
    }

    #[inline(always)]
    fn sent(&mut self, ids: impl Iterator<Item = u32>) -> Result<(), LocalError> {
        self.done(ids, WcStatus::Success)
    }

    fn acknowledged(&mut self, id: u32) -> Result<(), LocalError> {
        let Some(queue) = self.queue() else { return Ok(()) };
        queue.acknowledge(id);
        self.note_done()
    }

    #[inline(always)]
    fn count(&mut self, traffic: uiw_stream::Traffic, messages: u32, bytes: u64) {
        self.state.counters.count(counted(traffic), messages, bytes);
    }

    #[inline]
    fn count_wait(&mut self, wait: uiw_stream::Wait) {
        self.state.counters.wait(match wait {
            uiw_stream::Wait::Credit => WaitReason::Credit,
            uiw_stream::Wait::Receive => WaitReason::Receive,
        });
    }

    fn copy_memory(&mut self, memory: &Span, range: Range<usize>, out: &mut Vec<u8>) -> bool {
        memory.pin().and_then(|pin| pin.copy_to_vec(range, out)).is_ok()
    }
}

/// Returns the completion of a receive.
#[inline(always)]
fn completion(qp: &QpInner, wr_id: u64, message: &ReceivedMessage) -> Cqe {
    let (opcode, byte_len, imm) = match message.kind {
        ReceivedKind::Send { len, imm } => (WcOpcode::Recv, len, imm),
        ReceivedKind::Immediate { imm, write_len } => {
            (WcOpcode::RecvWriteImm, write_len, Some(imm))
        }
    };
    let wc = Wc {
        wr_id,
        status: WcStatus::Success,
        opcode,
        byte_len,
        imm,
        invalidated: message.invalidated,
        qp_num: qp.num,
        datagram_from: None,
        reason: None,
        timestamp_ns: 0,
    };
    Cqe { wc, solicited: message.solicited }
}

/// Returns the counter for the traffic of a stream.
#[inline(always)]
fn counted(traffic: uiw_stream::Traffic) -> TrafficClass {
    match traffic {
        uiw_stream::Traffic::SendSent => TrafficClass::SendSent,
        uiw_stream::Traffic::SendReceived => TrafficClass::SendReceived,
        uiw_stream::Traffic::WriteSent => TrafficClass::WriteSent,
        uiw_stream::Traffic::WriteReceived => TrafficClass::WriteReceived,
        uiw_stream::Traffic::ReadSent => TrafficClass::ReadSent,
        uiw_stream::Traffic::ReadReceived => TrafficClass::ReadReceived,
        uiw_stream::Traffic::AtomicSent => TrafficClass::AtomicSent,
        uiw_stream::Traffic::AtomicReceived => TrafficClass::AtomicReceived,
    }
}

/// Returns the element that holds byte `offset` of a request, and the number of its bytes before
/// that offset.
fn element(wqe: &Wqe, offset: u32) -> Option<(Sge, u32)> {
    let mut skip = offset;
    for sge in &wqe.sges {
        if skip < sge.length {
            return Some((*sge, skip));
        }
        skip -= sge.length;
    }
    None
}

/// Converts the operation of a request to the stream's type.
#[inline]
fn op(op: &SendOp) -> Op {
    let place = |remote: Remote| uiw_stream::Remote { stag: remote.rkey, to: remote.addr };
    match *op {
        SendOp::Write { remote } => Op::Write { remote: place(remote) },
        SendOp::WriteImm { remote, imm } => Op::WriteImm { remote: place(remote), imm },
        SendOp::AtomicWrite { remote } => Op::AtomicWrite { remote: place(remote) },
        SendOp::Send => Op::Send,
        SendOp::SendInvalidate { stag } => Op::SendInvalidate { stag },
        SendOp::SendImm { imm } => Op::SendImm { imm },
        SendOp::Read { remote, invalidate } => Op::Read { remote: place(remote), invalidate },
        SendOp::FetchAdd { remote, add, mask } => Op::FetchAdd { remote: place(remote), add, mask },
        SendOp::CmpSwap { remote, compare, compare_mask, swap, swap_mask } => {
            Op::CmpSwap { remote: place(remote), compare, compare_mask, swap, swap_mask }
        }
        // Posting refuses datagrams on a queue pair with a stream.
        SendOp::Datagram { .. } => Op::Local,
        SendOp::LocalInvalidate { .. } | SendOp::Bind(_) | SendOp::FastRegister(_) => Op::Local,
    }
}

/// Executes requests that change only the table of STags. An error is returned with its text.
fn execute(qp: &QpInner, table: &Table, op: &SendOp) -> Result<(), (LocalError, String)> {
    let (pd, stream) = (qp.pd.id(), qp.stream());
    match op {
        SendOp::LocalInvalidate { stag } => table
            .invalidate_local(*stag, stream, pd)
            .map_err(|error| (LocalError::Protection, error.to_string())),
        SendOp::Bind(bind) => crate::mr::bind(table, bind, pd, stream)
            .map(drop)
            .map_err(|error| (LocalError::WindowBind, error.to_string())),
        SendOp::FastRegister(register) => crate::mr::fast_register(table, register, pd, stream)
            .map_err(|error| (LocalError::Protection, error.to_string())),
        _ => Err((LocalError::Protection, "it is no local request".to_owned())),
    }
}

fn access_error(error: &RemoteError) -> AccessError {
    match error {
        RemoteError::InvalidStag { .. } => AccessError::InvalidStag,
        RemoteError::NotAssociated { .. } => AccessError::NotAssociated,
        RemoteError::BaseOrBounds { .. } => AccessError::BaseOrBounds,
        RemoteError::ToWrap { .. } => AccessError::ToWrap,
        RemoteError::AccessRights { .. } => AccessError::AccessRights,
    }
}
