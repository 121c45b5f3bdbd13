//! The operations and received messages of a connection, to which the engine gives completions.
//!
//! The engine calls with its locks held: the lock of a queue of the queue pair comes before those
//! of this module, so none of these is held while a request or a receive is posted. A waker is
//! called, and a buffer dropped, only after the engine's locks are released.
//!
//! A connection's completion queue has no ring: `Completions` consumes each completion in
//! `Cq::push`. A completed send becomes the outcome of its operation and the room of the next; a
//! received message goes to the inbox; a flushed receive ends the inbox. Nothing overflows, because
//! there is at most one completion for each posted request.
//!
//! * Lock order: the engine's locks, then those of `Completions`, `ops` and `inbox`, one at a time.
//!   Nothing is posted, woken or dropped while one of the latter two is held.
//! * `Dispatcher::gate` comes before all of these. It is held from reserving room for an operation
//!   until its request is in the send queue, so that requests are queued in order. The consumer
//!   does not take it, and no foreign code runs under it.
//! * Actions that post or run foreign code are deferred to `Dispatcher::run_deferred`, a waker that
//!   the completion adds.
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

/// Buffers of any type.
pub(crate) type ErasedBuffer = Box<dyn Any + Send>;

/// Marks completions of sends among the `wr_id`s.
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
    /// It was not posted.
    Refused(Error),
}

impl Outcome {
    /// Returns whether the operation was not done because its connection had ended.
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

/// The error of a completion that is none of success.
pub(crate) fn completion_error(wc: &Wc, peer: SocketAddr, qp: Option<&Qp>) -> Error {
    let is_local = matches!(
        wc.status,
        WcStatus::LocalLength | WcStatus::LocalProtection | WcStatus::LocalQpOperation | WcStatus::MwBind
    );
    let detail = qp.filter(|_| is_local).and_then(integration::local_error);
    ErrorKind::Completed { status: wc.status, reason: wc.reason, peer, detail }.into()
}

enum OperationState {
    /// The operation is not posted, and waits for room.
    Waiting(SendRequest),
    Posted,
    Done(Outcome),
}

/// Receiver of the outcome of an operation.
pub(crate) enum Caller {
    /// The future of the operation, with its waker if it has been polled.
    Waits(Option<Waker>),
    /// The future was dropped. The request is posted and completes as any other; then the slot is
    /// freed.
    Detached,
}

pub(crate) struct OperationSlot {
    state: OperationState,
    caller: Caller,
    buffer: ErasedBuffer,
}

/// The operations of a connection.
pub(crate) struct OperationTable {
    slots: Slab<OperationSlot>,
    /// Keeps the connection until `slots` is empty, when only detached operations are left of it.
    pub(crate) lingering: Option<Arc<Dispatcher>>,
    /// Room in the send queue.
    room: u32,
    /// Operations that wait for room, in order: their slots stay until they are posted.
    waiting: VecDeque<usize>,
    /// The program has closed the connection while operations wait: it closes once they are posted.
    closing: bool,
    /// Detached operations that are over, to be dropped without a lock.
    freed: Vec<OperationSlot>,
}

impl OperationTable {
    /// Returns whether a request may be posted now, in front of none that waits.
    pub(crate) fn has_room(&self) -> bool {
        self.room > 0 && self.waiting.is_empty()
    }

    /// Takes in an operation that the caller posts.
    pub(crate) fn add_posted(&mut self, buffer: ErasedBuffer) -> usize {
        self.room -= 1;
        self.slots.insert(OperationSlot {
            state: OperationState::Posted,
            caller: Caller::Waits(None),
            buffer,
        })
    }

    /// Takes in an operation that waits for room.
    pub(crate) fn add_waiting(&mut self, request: SendRequest, buffer: ErasedBuffer) -> usize {
        let state = OperationState::Waiting(request);
        let key = self.slots.insert(OperationSlot { state, caller: Caller::Waits(None), buffer });
        self.waiting.push_back(key);
        key
    }

    /// Takes in an operation that failed before it was posted.
    pub(crate) fn add_failed(&mut self, error: Error, buffer: ErasedBuffer) -> usize {
        let state = OperationState::Done(Outcome::Refused(error));
        self.slots.insert(OperationSlot { state, caller: Caller::Waits(None), buffer })
    }

    /// Has the connection closed once the operations that wait are posted. Returns whether there
    /// are any.
    pub(crate) fn close_later(&mut self) -> bool {
        self.closing = !self.waiting.is_empty();
        self.closing
    }

    /// Returns whether the connection closes behind operations that wait.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing
    }

    /// Returns whether the connection is to be closed now.
    pub(crate) fn take_closing(&mut self) -> bool {
        self.waiting.is_empty() && std::mem::take(&mut self.closing)
    }

    /// The next request that waits, if there is room for it. The caller posts it.
    pub(crate) fn pop_waiting(&mut self) -> Option<(usize, SendRequest)> {
        if self.room == 0 {
            return None;
        }
        let key = self.waiting.pop_front()?;
        let state = &mut self.slots.get_mut(key)?.state;
        let OperationState::Waiting(request) = std::mem::replace(state, OperationState::Posted) else {
            return None;
        };
        self.room -= 1;
        Some((key, request))
    }

    /// An operation is over, and its place in the send queue is free again. Gives what wakes its
    /// future.
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

    /// Returns the objects that [`Dispatcher::run_deferred`] drops: detached operations that are
    /// over, and with the last of them what keeps the connection.
    pub(crate) fn take_freed(&mut self) -> (Vec<OperationSlot>, Option<Arc<Dispatcher>>) {
        let ended = if self.slots.is_empty() { self.lingering.take() } else { None };
        (std::mem::take(&mut self.freed), ended)
    }

    /// The outcome of an operation and its buffer, once it is over.
    pub(crate) fn take_done(&mut self, key: usize) -> Option<(Outcome, ErasedBuffer)> {
        if !matches!(self.slots.get(key)?.state, OperationState::Done(_)) {
            return None;
        }
        let slot = self.slots.try_remove(key)?;
        let OperationState::Done(outcome) = slot.state else { return None };
        Some((outcome, slot.buffer))
    }

    /// Returns whether the operation is over because its connection has ended.
    pub(crate) fn is_flushed(&self, key: usize) -> bool {
        matches!(self.slots.get(key), Some(OperationSlot { state: OperationState::Done(outcome), .. }) if outcome.is_flush())
    }

    /// Another caller for an operation that is not over. Gives the one before, which is foreign
    /// code.
    pub(crate) fn set_caller(&mut self, key: usize, caller: Caller) -> Option<Caller> {
        let slot = self.slots.get_mut(key)?;
        Some(std::mem::replace(&mut slot.caller, caller))
    }

    /// Removes an operation that is over.
    pub(crate) fn remove_done(&mut self, key: usize) -> Option<OperationSlot> {
        let is_done = matches!(self.slots.get(key)?.state, OperationState::Done(_));
        is_done.then(|| self.slots.remove(key))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Sets the room as if more requests were under way.
    #[cfg(test)]
    pub(crate) fn set_room(&mut self, room: u32) {
        self.room = room;
    }
}

/// Received messages.
#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) messages: VecDeque<Wc>,
    pub(crate) wakers: Vec<Waker>,
    /// The first receive that was flushed: no message will come.
    pub(crate) closed: Option<Wc>,
    /// No handle is left: messages are dropped, and their receives posted again.
    pub(crate) discards: bool,
    /// Receives of messages that were dropped.
    pub(crate) discarded: Vec<u32>,
}

/// Consumer of the completions of a connection's queue pair.
pub(crate) struct Completions {
    pub(crate) ops: Mutex<OperationTable>,
    pub(crate) inbox: Mutex<Inbox>,
    /// Called where completions leave something to do that needs the queue pair, or runs foreign
    /// code.
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

    /// Has [`Dispatcher::run_deferred`] called once the engine's locks are released.
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

/// The dispatcher's completions. Dropped behind the queue pair: then nothing completes any more,
/// and buffers are dropped here though the engine may keep the queue, and so the rest, for longer.
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

    /// A waker that counts its calls.
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
        let (first, second, third) =
            (ops.add_posted(none()), ops.add_waiting(request(), none()), ops.add_waiting(request(), none()));
        assert!(ops.pop_waiting().is_none(), "there is no room");
        drop(ops);
        complete(&completions, SEND_FLAG | first as u64, WcStatus::Success);
        assert_eq!(runs.count(), 1);
        let mut ops = completions.ops.lock();
        assert!(!ops.has_room(), "the room is that of the operation that waits");
        assert_eq!(ops.pop_waiting().map(|(key, _)| key), Some(second));
        assert!(ops.pop_waiting().is_none());
        drop(ops);
        complete(&completions, SEND_FLAG | second as u64, WcStatus::Success);
        assert_eq!(runs.count(), 2);
        assert_eq!(completions.ops.lock().pop_waiting().map(|(key, _)| key), Some(third));
        complete(&completions, SEND_FLAG | third as u64, WcStatus::Success);
        assert_eq!(runs.count(), 2, "none waits");
    }

    /// A buffer is foreign code: the engine's locks are held while a completion is taken.
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
        completions.inbox.lock().wakers = wakers.iter().map(|waker| Waker::from(Arc::clone(waker))).collect();
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
        assert_eq!(completions.inbox.lock().closed.as_ref().map(|wc| wc.status), Some(WcStatus::LocalLength));
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

    /// The engine may keep the queue for longer, and a completion may come though its operation is
    /// gone.
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
