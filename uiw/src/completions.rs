//! Operations and received messages of a connection, updated by the engine with each completion.
//!
//! The engine calls this module while it holds its own locks. The locks of a queue pair's queues
//! come before the locks of this module, so none of the latter is held while a request or a receive
//! is posted. Wakers are called and buffers dropped only after the engine's locks are released.
//!
//! A connection's completion queue has no ring: `Completions` consumes each completion in
//! `Cq::push`. A completed send request sets the outcome of its operation and makes room for the
//! next one; a received message is added to the inbox; a flushed receive closes the inbox. Nothing
//! overflows, because there is at most one completion for each posted request.
//!
//! * Lock order: the engine's locks, then either `ops` or `inbox` of `Completions`, but not both.
//!   Nothing is posted, woken or dropped while one of these two is held.
//! * `Dispatcher::gate` comes before all of these. It is held from reserving room for an operation
//!   until its request is in the send queue, so that requests are queued in order. `Completions`
//!   does not take it, and no user code runs while it is held.
//! * Actions that post or that run user code are deferred to `Dispatcher::run_deferred`: the
//!   completion adds its waker to those that the engine calls later.
//! * The engine completes everything before it reports the end of a connection, so all messages are
//!   in the inbox when the end is known. Buffers stay in `Completions` from post to completion, and
//!   are dropped with the dispatcher, after its queue pair.

use crate::dispatcher::Dispatcher;
use crate::error::{Error, ErrorKind, Result};
use arrayvec::ArrayVec;
use parking_lot::Mutex;
use slab::Slab;
use std::any::Any;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use uiw_verbs::integration::{self, CompletionConsumer, Wakes};
use uiw_verbs::{Qp, SendFlags, SendOp, Sge, Wc, WcStatus};

/// Buffer of an operation, of any type.
pub(crate) type ErasedBuffer = Box<dyn Any + Send>;

/// Bit of a `wr_id` that distinguishes send requests from receives.
pub(crate) const SEND_FLAG: u64 = 1 << 63;

/// A request that may have to wait for room in the send queue.
pub(crate) struct SendRequest {
    pub(crate) op: SendOp,
    pub(crate) sges: ArrayVec<Sge, 2>,
    pub(crate) flags: SendFlags,
}

/// Outcome of an operation.
pub(crate) enum Outcome {
    Completed(Wc),
    /// The request could not be posted.
    Refused(Error),
}

impl Outcome {
    /// Returns whether the operation was not performed because its connection had ended.
    fn is_flush(&self) -> bool {
        matches!(self, Self::Completed(wc) if wc.status == WcStatus::Flushed)
    }

    pub(crate) fn into_result(self, peer: SocketAddr, qp: Option<&Qp>) -> Result<()> {
        match self {
            Self::Completed(wc) if wc.status == WcStatus::Success => Ok(()),
            Self::Completed(wc) => Err(completion_error(&wc, peer, qp)),
            Self::Refused(error) => Err(error),
        }
    }
}

/// Returns the error of an unsuccessful completion. `qp` supplies details of local errors.
pub(crate) fn completion_error(wc: &Wc, peer: SocketAddr, qp: Option<&Qp>) -> Error {
    let is_local = matches!(
        wc.status,
        WcStatus::LocalLength
            | WcStatus::LocalProtection
            | WcStatus::LocalQpOperation
            | WcStatus::MwBind
    );
    let detail = qp.filter(|_| is_local).and_then(integration::local_error);
    ErrorKind::Completed { status: wc.status, reason: wc.reason, peer, detail }.into()
}

enum OperationState {
    /// The operation waits for room in the send queue.
    Waiting(SendRequest),
    Posted,
    Done(Outcome),
}

/// Receiver of the outcome of an operation.
pub(crate) enum Caller {
    /// The future of the operation, with its waker if it has been polled.
    Waits(Option<Waker>),
    /// The future was dropped. The request is posted and completes like any other. Then the slot is
    /// freed.
    Detached,
}

/// Operation in progress, or completed but not yet taken by its caller.
pub(crate) struct OperationSlot {
    state: OperationState,
    caller: Caller,
    buffer: ErasedBuffer,
}

/// Operations of a connection.
pub(crate) struct OperationTable {
    slots: Slab<OperationSlot>,
    /// Reference that keeps the connection alive until `slots` is empty. It is set if the last
    /// handle is dropped while detached operations are in progress.
    pub(crate) lingering: Option<Arc<Dispatcher>>,
    /// Number of requests for which the send queue has room.
    room: u32,
    /// Keys of operations that wait for room, oldest first. Their slots are not removed before they
    /// are posted.
    waiting: VecDeque<usize>,
    /// True if the program has closed the connection while operations were waiting. The close
    /// begins once they are posted.
    closing: bool,
    /// Detached operations that have completed, to be dropped without a lock.
    freed: Vec<OperationSlot>,
}

impl OperationTable {
    /// Returns whether a request may be posted now: there is room, and no other operation waits for
    /// it.
    pub(crate) fn has_room(&self) -> bool {
        self.room > 0 && self.waiting.is_empty()
    }

    /// Adds an operation that the caller will post, and reserves its room. Returns its key.
    pub(crate) fn add_posted(&mut self, buffer: ErasedBuffer) -> usize {
        self.room -= 1;
        self.slots.insert(OperationSlot {
            state: OperationState::Posted,
            caller: Caller::Waits(None),
            buffer,
        })
    }

    /// Adds an operation that waits for room. Returns its key.
    pub(crate) fn add_waiting(&mut self, request: SendRequest, buffer: ErasedBuffer) -> usize {
        let state = OperationState::Waiting(request);
        let key = self.slots.insert(OperationSlot { state, caller: Caller::Waits(None), buffer });
        self.waiting.push_back(key);
        key
    }

    /// Adds an operation that has already failed, before it could be posted. Returns its key.
    pub(crate) fn add_failed(&mut self, error: Error, buffer: ErasedBuffer) -> usize {
        let state = OperationState::Done(Outcome::Refused(error));
        self.slots.insert(OperationSlot { state, caller: Caller::Waits(None), buffer })
    }

    /// Schedules the close of the connection for the time when all waiting operations have been
    /// posted. Returns `false` if no operation waits, so that the caller can close the connection
    /// now.
    pub(crate) fn close_later(&mut self) -> bool {
        self.closing = !self.waiting.is_empty();
        self.closing
    }

    /// Returns whether the connection will be closed once all waiting operations are posted.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing
    }

    /// Returns true, once, if a scheduled close is due because no operation waits any more.
    pub(crate) fn take_closing(&mut self) -> bool {
        self.waiting.is_empty() && std::mem::take(&mut self.closing)
    }

    /// Removes the oldest waiting request if there is room for it. The caller must post it.
    pub(crate) fn pop_waiting(&mut self) -> Option<(usize, SendRequest)> {
        if self.room == 0 {
            return None;
        }
        let key = self.waiting.pop_front()?;
        let state = &mut self.slots.get_mut(key)?.state;
        let OperationState::Waiting(request) = std::mem::replace(state, OperationState::Posted)
        else {
            return None;
        };
        self.room -= 1;
        Some((key, request))
    }

    /// Sets the outcome of an operation and frees its room in the send queue. Returns the waker of
    /// its future, if there is one.
    pub(crate) fn finish(&mut self, key: usize, outcome: Outcome) -> Option<Waker> {
        self.room += 1;
        let slot = self.slots.get_mut(key)?;
        match &mut slot.caller {
            Caller::Waits(waker) => {
                slot.state = OperationState::Done(outcome);
                waker.take()
            }
            Caller::Detached => {
                self.freed.extend(self.slots.try_remove(key));
                None
            }
        }
    }

    /// Takes the objects that [`Dispatcher::run_deferred`] drops: the detached operations that have
    /// completed and, after the last operation, the reference that kept the connection alive.
    pub(crate) fn take_freed(&mut self) -> (Vec<OperationSlot>, Option<Arc<Dispatcher>>) {
        let ended = if self.slots.is_empty() { self.lingering.take() } else { None };
        (std::mem::take(&mut self.freed), ended)
    }

    /// Takes the outcome and the buffer of an operation that has completed.
    pub(crate) fn take_done(&mut self, key: usize) -> Option<(Outcome, ErasedBuffer)> {
        if !matches!(self.slots.get(key)?.state, OperationState::Done(_)) {
            return None;
        }
        let slot = self.slots.try_remove(key)?;
        let OperationState::Done(outcome) = slot.state else { return None };
        Some((outcome, slot.buffer))
    }

    /// Returns whether the operation was flushed because its connection has ended.
    pub(crate) fn is_flushed(&self, key: usize) -> bool {
        matches!(self.slots.get(key), Some(OperationSlot { state: OperationState::Done(outcome), .. }) if outcome.is_flush())
    }

    /// Replaces the caller of an operation that has not completed. Returns the previous caller,
    /// which is to be dropped without a lock, because dropping its waker may run user code.
    pub(crate) fn set_caller(&mut self, key: usize, caller: Caller) -> Option<Caller> {
        let slot = self.slots.get_mut(key)?;
        Some(std::mem::replace(&mut slot.caller, caller))
    }

    /// Removes an operation if it has completed.
    pub(crate) fn remove_done(&mut self, key: usize) -> Option<OperationSlot> {
        let is_done = matches!(self.slots.get(key)?.state, OperationState::Done(_));
        is_done.then(|| self.slots.remove(key))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Sets the room, to simulate requests in progress.
    #[cfg(test)]
    pub(crate) fn set_room(&mut self, room: u32) {
        self.room = room;
    }
}

/// Received messages that the program has not taken yet.
#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) messages: VecDeque<Wc>,
    pub(crate) wakers: Vec<Waker>,
    /// Completion of the first receive that failed or was flushed. No message arrives after it.
    pub(crate) closed: Option<Wc>,
    /// True if no handle is left. Messages are then dropped, and their receives posted again.
    pub(crate) discards: bool,
    /// Slots of dropped messages, whose receives are to be posted again.
    pub(crate) discarded: Vec<u32>,
}

/// Consumer of the completions of a connection's queue pair.
pub(crate) struct Completions {
    pub(crate) ops: Mutex<OperationTable>,
    pub(crate) inbox: Mutex<Inbox>,
    /// Waker to call when a completion has actions to defer: those that need the queue pair or run
    /// user code.
    pub(crate) deferred: OnceLock<Waker>,
}

impl Completions {
    pub(crate) fn new(send_depth: u32) -> Arc<Self> {
        let ops = OperationTable {
            slots: Slab::new(),
            lingering: None,
            room: send_depth,
            waiting: VecDeque::new(),
            closing: false,
            freed: Vec::new(),
        };
        Arc::new(Self { ops: Mutex::new(ops), inbox: Mutex::default(), deferred: OnceLock::new() })
    }

    /// Schedules a call of [`Dispatcher::run_deferred`] after the engine's locks are released.
    fn wake_deferred(&self, wakes: &mut Wakes) {
        if let Some(waker) = self.deferred.get() {
            wakes.push_waker(waker.clone());
        }
    }
}

impl CompletionConsumer for Completions {
    fn complete(&self, wc: Wc, wakes: &mut Wakes) {
        if wc.wr_id & SEND_FLAG != 0 {
            let mut ops = self.ops.lock();
            let waker = ops.finish((wc.wr_id & !SEND_FLAG) as usize, Outcome::Completed(wc));
            let defers = !ops.waiting.is_empty() || !ops.freed.is_empty();
            drop(ops);
            if let Some(waker) = waker {
                wakes.push_waker(waker);
            }
            if defers {
                self.wake_deferred(wakes);
            }
            return;
        }
        let mut inbox = self.inbox.lock();
        if wc.status != WcStatus::Success {
            inbox.closed.get_or_insert(wc);
        } else if inbox.discards {
            inbox.discarded.push(wc.wr_id as u32);
            drop(inbox);
            return self.wake_deferred(wakes);
        } else {
            inbox.messages.push_back(wc);
        }
        inbox.wakers.drain(..).for_each(|waker| wakes.push_waker(waker));
    }
}

/// Reference of the dispatcher to its completions, which drops all buffers when it is dropped.
///
/// It is dropped after the queue pair, when nothing can complete any more. The engine may keep the
/// completion queue, and with it the [`Completions`], for longer.
pub(crate) struct OwnedCompletions(Arc<Completions>);

impl OwnedCompletions {
    pub(crate) fn new(completions: Arc<Completions>) -> Self {
        Self(completions)
    }
}

impl Deref for OwnedCompletions {
    type Target = Completions;

    fn deref(&self) -> &Completions {
        &self.0
    }
}

impl Drop for OwnedCompletions {
    fn drop(&mut self) {
        let mut ops = self.0.ops.lock();
        let left = (std::mem::take(&mut ops.slots), std::mem::take(&mut ops.freed));
        drop(ops);
        drop(left);
        let wakers = std::mem::take(&mut self.0.inbox.lock().wakers);
        drop(wakers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use uiw_verbs::WcOpcode;

    /// Waker that counts its calls.
    #[derive(Default)]
    struct CallCounter(AtomicUsize);

    impl std::task::Wake for CallCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl CallCounter {
        fn count(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    fn completions(send_depth: u32) -> (Arc<Completions>, Arc<CallCounter>) {
        let (completions, runs) = (Completions::new(send_depth), Arc::<CallCounter>::default());
        completions.deferred.set(Waker::from(Arc::clone(&runs))).unwrap();
        (completions, runs)
    }

    fn complete(completions: &Completions, wr_id: u64, status: WcStatus) {
        let mut wakes = Wakes::default();
        let wc = Wc {
            wr_id,
            status,
            opcode: WcOpcode::Recv,
            byte_len: 1,
            imm: None,
            invalidated: None,
            qp_num: 0,
            datagram_from: None,
            reason: None,
            timestamp_ns: 0,
        };
        completions.complete(wc, &mut wakes);
        assert!(completions.ops.try_lock().is_some() && completions.inbox.try_lock().is_some());
        wakes.give();
    }

    fn request() -> SendRequest {
        SendRequest { op: SendOp::Send, sges: ArrayVec::new(), flags: SendFlags::empty() }
    }

    fn none() -> ErasedBuffer {
        Box::new(())
    }

    fn messages(completions: &Completions) -> Vec<u64> {
        completions.inbox.lock().messages.iter().map(|wc| wc.wr_id).collect()
    }

    #[test]
    fn completion_wakes_operation_and_frees_room() {
        let (completions, runs) = completions(2);
        let wakers = [(); 2].map(|()| Arc::<CallCounter>::default());
        let keys = wakers.each_ref().map(|waker| {
            let mut ops = completions.ops.lock();
            let key = ops.add_posted(none());
            ops.set_caller(key, Caller::Waits(Some(Waker::from(Arc::clone(waker)))));
            key
        });
        assert!(!completions.ops.lock().has_room());
        complete(&completions, SEND_FLAG | keys[1] as u64, WcStatus::Success);
        assert_eq!(wakers.each_ref().map(|waker| waker.count()), [0, 1]);
        let mut ops = completions.ops.lock();
        assert!(ops.has_room());
        assert!(ops.take_done(keys[0]).is_none());
        assert!(
            matches!(ops.take_done(keys[1]), Some((Outcome::Completed(wc), _)) if wc.status == WcStatus::Success)
        );
        drop(ops);
        complete(&completions, SEND_FLAG | keys[0] as u64, WcStatus::Flushed);
        let done = completions.ops.lock().take_done(keys[0]);
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let result = done.map(|(outcome, _)| outcome.into_result(peer, None));
        assert!(matches!(result.as_ref().map(|result| result.as_ref().unwrap_err().kind()),
                Some(ErrorKind::Completed { status: WcStatus::Flushed, peer: at, .. }) if *at == peer));
        assert_eq!(runs.count(), 0, "nothing is left to do");
    }

    #[test]
    fn completion_defers_post_of_waiting_operation() {
        let (completions, runs) = completions(1);
        let mut ops = completions.ops.lock();
        let (first, second, third) = (
            ops.add_posted(none()),
            ops.add_waiting(request(), none()),
            ops.add_waiting(request(), none()),
        );
        assert!(ops.pop_waiting().is_none(), "there is no room");
        drop(ops);
        complete(&completions, SEND_FLAG | first as u64, WcStatus::Success);
        assert_eq!(runs.count(), 1);
        let mut ops = completions.ops.lock();
        assert!(!ops.has_room(), "the waiting operation has the room");
        assert_eq!(ops.pop_waiting().map(|(key, _)| key), Some(second));
        assert!(ops.pop_waiting().is_none());
        drop(ops);
        complete(&completions, SEND_FLAG | second as u64, WcStatus::Success);
        assert_eq!(runs.count(), 2);
        assert_eq!(completions.ops.lock().pop_waiting().map(|(key, _)| key), Some(third));
        complete(&completions, SEND_FLAG | third as u64, WcStatus::Success);
        assert_eq!(runs.count(), 2, "no operation waits");
    }

    /// Dropping a buffer may run user code, so it must not happen while the engine's locks are
    /// held, which they are during a completion.
    #[test]
    fn drop_of_detached_buffer_deferred() {
        let (completions, runs) = completions(1);
        let alive = Arc::new(());
        let mut ops = completions.ops.lock();
        let key = ops.add_posted(Box::new(Arc::clone(&alive)));
        ops.set_caller(key, Caller::Detached);
        drop(ops);
        complete(&completions, SEND_FLAG | key as u64, WcStatus::Success);
        assert_eq!((runs.count(), Arc::strong_count(&alive)), (1, 2));
        let mut ops = completions.ops.lock();
        assert!(ops.is_empty() && ops.has_room());
        let (freed, _) = ops.take_freed();
        drop(ops);
        drop(freed);
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    #[test]
    fn messages_ordered_and_wake_receivers() {
        let (completions, runs) = completions(1);
        let wakers = [(); 2].map(|()| Arc::<CallCounter>::default());
        completions.inbox.lock().wakers =
            wakers.iter().map(|waker| Waker::from(Arc::clone(waker))).collect();
        complete(&completions, 2, WcStatus::Success);
        assert_eq!(wakers.each_ref().map(|waker| waker.count()), [1, 1]);
        for slot in [0, 1] {
            complete(&completions, slot, WcStatus::Success);
        }
        assert_eq!(wakers.map(|waker| waker.count()), [1, 1], "they are woken once");
        assert_eq!(messages(&completions), [2, 0, 1]);
        assert_eq!(runs.count(), 0);
    }

    #[test]
    fn first_failed_receive_has_close_reason() {
        let (completions, _) = completions(1);
        complete(&completions, 0, WcStatus::Success);
        let waker = Arc::<CallCounter>::default();
        completions.inbox.lock().wakers.push(Waker::from(Arc::clone(&waker)));
        complete(&completions, 1, WcStatus::LocalLength);
        assert_eq!(waker.count(), 1);
        complete(&completions, 2, WcStatus::Flushed);
        assert_eq!(
            completions.inbox.lock().closed.as_ref().map(|wc| wc.status),
            Some(WcStatus::LocalLength)
        );
        assert_eq!(messages(&completions), [0], "a message that came before is still received");
    }

    #[test]
    fn receives_of_discarded_messages_reposted() {
        let (completions, runs) = completions(1);
        completions.inbox.lock().discards = true;
        for slot in [4, 3] {
            complete(&completions, slot, WcStatus::Success);
        }
        assert_eq!(runs.count(), 2);
        assert_eq!(completions.inbox.lock().discarded, [4, 3]);
        assert!(messages(&completions).is_empty());
    }

    /// The engine may keep the completion queue for longer, so a completion may arrive after its
    /// operation was dropped.
    #[test]
    fn buffers_are_dropped_with_the_dispatcher() {
        let (completions, _) = completions(2);
        let owned = OwnedCompletions::new(Arc::clone(&completions));
        let alive = Arc::new(());
        let mut ops = completions.ops.lock();
        let posted = ops.add_posted(Box::new(Arc::clone(&alive)));
        let detached = ops.add_posted(Box::new(Arc::clone(&alive)));
        ops.set_caller(detached, Caller::Detached);
        drop(ops);
        complete(&completions, SEND_FLAG | detached as u64, WcStatus::Success);
        assert_eq!(Arc::strong_count(&alive), 3);
        drop(owned);
        assert_eq!(Arc::strong_count(&alive), 1);
        complete(&completions, SEND_FLAG | posted as u64, WcStatus::Success);
    }
}
