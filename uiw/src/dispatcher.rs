//! Posts the operations and the receives of a connection to its queue pair.
//!
//! The engine passes completions to the connection's [`Completions`] and wakes the task that waits
//! for the operation. Work that a completion causes but may not do itself, such as posting the next
//! request, is left to [`Dispatcher::run_deferred`], which the engine calls through a waker.
//! Buffers stay in the `Completions` from post to completion, so a future that is dropped or
//! forgotten never frees memory in flight.

use crate::completions::{
    Caller, Completions, ErasedBuffer, OperationSlot, OperationTable, Outcome, OwnedCompletions,
    SEND_FLAG, SendRequest, completion_error,
};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::settings::ConnectionConfig;
use crate::waiting::WaitingTasks;
use parking_lot::{Mutex, MutexGuard};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Duration;
use uiw_verbs::cm::{CloseReason, CmChannel, CmEventKind, ConnInfo};
use uiw_verbs::integration::{self, Doorbell, Linger};
use uiw_verbs::{Qp, RawMr, STag, SendFlags, SendOp, SendWr, Sge, Wc, WcOpcode};

/// Result of an operation, together with its buffer.
pub(crate) type OpResult = (Result<()>, ErasedBuffer);

/// Receive buffers of a connection: one memory region of `depth` slots of `size` bytes, one slot
/// for each receive.
pub(crate) struct ReceiveRing {
    pub(crate) memory: RawMr,
    pub(crate) size: u32,
    pub(crate) depth: u32,
}

/// Reference-counted application handle of a connection, shared by its operations and messages.
///
/// Dropping the last reference begins the close of the connection ([`Dispatcher::linger`]).
pub(crate) struct ConnectionHandle {
    dispatcher: Arc<Dispatcher>,
    device: Device,
}

impl ConnectionHandle {
    pub(crate) fn new(
        device: Device,
        qp: Qp,
        completions: Arc<Completions>,
        settings: &ConnectionConfig,
        ring: ReceiveRing,
    ) -> Result<Arc<Self>> {
        let dispatcher = Arc::new(Dispatcher {
            qp,
            completions: OwnedCompletions::new(completions),
            gate: Mutex::new(()),
            ring,
            detached_timeout: settings.detached_timeout,
            close_timeout: settings.options.close_timeout,
            channel: Arc::new(CmChannel::default()),
            info: std::sync::OnceLock::new(),
            ending: Mutex::new(None),
            receivers: Arc::default(),
            end_waiters: Arc::default(),
        });
        let waker = Waker::from(Arc::new(DeferredWaker(Arc::downgrade(&dispatcher))));
        let _ = dispatcher.completions.deferred.set(waker);
        for slot in 0..dispatcher.ring.depth {
            dispatcher.post_receive(slot)?;
        }
        Ok(Arc::new(Self { dispatcher, device }))
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }
}

impl Deref for ConnectionHandle {
    type Target = Dispatcher;

    fn deref(&self) -> &Dispatcher {
        &self.dispatcher
    }
}

impl Drop for ConnectionHandle {
    fn drop(&mut self) {
        Dispatcher::linger(&self.dispatcher, &self.device);
    }
}

/// Queue pair of a connection, with the state that is needed to post to it.
pub(crate) struct Dispatcher {
    /// Declared before `completions` and `ring`, so that the engine stops using the buffers before
    /// they are dropped.
    qp: Qp,
    completions: OwnedCompletions,
    /// Serializes reserving room for a request and queueing it, so that requests are queued in
    /// order. It is never held while user code runs, so any thread may wait for it.
    gate: Mutex<()>,
    pub(crate) ring: ReceiveRing,
    /// See [`ConnectionConfig::detached_timeout`].
    detached_timeout: Duration,
    /// See [`ConnectionConfig::close_timeout`].
    close_timeout: Duration,
    pub(crate) channel: Arc<CmChannel>,
    pub(crate) info: std::sync::OnceLock<ConnInfo>,
    /// Reason for which the connection ended, once it is known.
    ending: Mutex<Option<CloseReason>>,
    /// Tasks that wait for a message.
    receivers: Arc<WaitingTasks>,
    /// Tasks that wait for the end of the connection.
    end_waiters: Arc<WaitingTasks>,
}

/// Actions deferred until all locks are released, because each of them may run user code.
#[derive(Default)]
struct DeferredActions {
    wakers: Vec<Waker>,
    /// Detached operations that have completed.
    freed: Vec<OperationSlot>,
    /// Slots of dropped messages, whose receives are to be posted again.
    receives: Vec<u32>,
    doorbells: Vec<Doorbell>,
    /// True if the connection is to be closed now, because the last waiting operation was posted.
    closes: bool,
    /// Dispatcher to drop once its last detached operation has completed.
    ended: Option<Arc<Dispatcher>>,
}

impl DeferredActions {
    fn deliver(self, dispatcher: &Dispatcher) {
        let Self { wakers, freed, receives, doorbells, closes, ended } = self;
        for doorbell in doorbells {
            integration::ring(&dispatcher.qp, doorbell);
        }
        if closes {
            // This fails if the connection has ended meanwhile.
            let _ = dispatcher.qp.disconnect();
        }
        dispatcher.release_all(receives);
        drop(freed);
        for waker in wakers {
            waker.wake();
        }
        drop(ended);
    }
}

/// Waker that the engine calls when a completion has deferred actions.
struct DeferredWaker(Weak<Dispatcher>);

/// Maximum depth of nested runs of deferred work on one thread. Runs nest when a doorbell completes
/// requests immediately, which calls another [`DeferredWaker`].
const MAX_NESTED_RUNS: usize = 8;

thread_local! {
    /// Number of nested runs of deferred work on this thread, and the dispatchers that have to wait
    /// because that number has reached [`MAX_NESTED_RUNS`].
    static RUNS: RefCell<(usize, VecDeque<Arc<Dispatcher>>)> = const { RefCell::new((0, VecDeque::new())) };
}

impl Wake for DeferredWaker {
    fn wake(self: Arc<Self>) {
        let Some(dispatcher) = self.0.upgrade() else { return };
        // `Some` if this call does the work itself, `None` if an outer run does it later.
        let guard = RUNS.try_with(|runs| {
            let (depth, postponed) = &mut *runs.borrow_mut();
            if *depth == MAX_NESTED_RUNS {
                postponed.push_back(Arc::clone(&dispatcher));
                return None;
            }
            *depth += 1;
            Some(RunGuard)
        });
        match guard {
            Ok(None) => {}
            Ok(Some(_guard)) => {
                dispatcher.run_deferred();
                while let Some(dispatcher) = RUNS.with(|runs| runs.borrow_mut().1.pop_front()) {
                    dispatcher.run_deferred();
                }
            }
            // The thread is exiting, and its thread-local storage is already destroyed.
            Err(_) => dispatcher.run_deferred(),
        }
    }
}

/// Guard that counts one run of deferred work on this thread.
struct RunGuard;

impl Drop for RunGuard {
    fn drop(&mut self) {
        let _ = RUNS.try_with(|runs| runs.borrow_mut().0 -= 1);
    }
}

impl Linger for Dispatcher {
    fn end_lingering(&self) {
        let lingering = self.ops().lingering.take();
        drop(lingering);
    }
}

impl Dispatcher {
    fn ops(&self) -> MutexGuard<'_, OperationTable> {
        self.completions.ops.lock()
    }

    pub(crate) fn qp(&self) -> &Qp {
        &self.qp
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.info.get().map_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)), |info| info.peer)
    }

    /// Posts the receive of ring slot `slot`.
    pub(crate) fn post_receive(&self, slot: u32) -> Result<(), ErrorKind> {
        let ReceiveRing { memory, size, .. } = &self.ring;
        let addr = memory.addr() + u64::from(slot) * u64::from(*size);
        let sge = Sge { addr, length: *size, lkey: memory.lkey() };
        // SAFETY: the ring's memory lives as long as the dispatcher, and the queue pair stops using
        // it before that, because `qp` is dropped first. The slot is read through a `Message` only
        // while its receive is not posted.
        unsafe { integration::post_receive(&self.qp, slot.into(), sge) }
    }

    /// Takes the bytes of the message received in ring slot `slot`, if it is longer than the slot.
    pub(crate) fn take_long_message(&self, slot: u32) -> Option<Vec<u8>> {
        integration::take_long_message(&self.qp, slot.into())
    }

    /// Posts the receive of `slot` again, after its message was dropped. `long` has the bytes of a
    /// message that was longer than the slot.
    pub(crate) fn release(&self, slot: u32, long: Option<Vec<u8>>) {
        if let Some(message) = long {
            // The room is released before the receive is posted, because posting wakes a stream
            // that waits for this room.
            integration::release_long_message(&self.qp, message.len());
        }
        // Posting fails only if the queue pair is in the error state, which needs no receives.
        let _ = self.post_receive(slot);
    }

    /// Posts the receives of `slots` again, and drops the messages in them.
    fn release_all(&self, slots: impl IntoIterator<Item = u32>) {
        for slot in slots {
            self.release(slot, self.take_long_message(slot));
        }
    }

    /// Adds an operation: posts it if the send queue has room, lets it fail if the connection is
    /// being closed, and otherwise lets it wait for room. Returns its ticket for [`Self::poll_op`].
    pub(crate) fn submit(&self, request: SendRequest, buffer: ErasedBuffer) -> u64 {
        let gate = self.gate.lock();
        let mut ops = self.ops();
        if ops.has_room() {
            let key = ops.add_posted(buffer);
            drop(ops);
            return self.post_now(gate, key, &request);
        }
        if ops.is_closing() {
            return ops.add_failed(self.closed(), buffer) as u64;
        }
        ops.add_waiting(request, buffer) as u64
    }

    /// Adds a Send of at most `max_inline` bytes, which are copied before this returns.
    pub(crate) fn submit_copy(&self, message: &[u8]) -> u64 {
        let gate = self.gate.lock();
        let mut ops = self.ops();
        if ops.has_room() {
            // The queue copies the message when it is posted.
            let key = ops.add_posted(Box::new(()));
            drop(ops);
            return self.post_now(gate, key, &inline_send(message));
        }
        if ops.is_closing() {
            return ops.add_failed(self.closed(), Box::new(())) as u64;
        }
        let copy = message.to_vec();
        ops.add_waiting(inline_send(&copy), Box::new(copy)) as u64
    }

    /// Adds an operation that has already failed, before it could be posted.
    pub(crate) fn submit_failed(&self, error: Error, buffer: ErasedBuffer) -> u64 {
        self.ops().add_failed(error, buffer) as u64
    }

    /// Posts the request of an operation for which room was reserved. No other operation may be
    /// waiting for room. Returns the ticket of the operation.
    fn post_now(&self, gate: MutexGuard<'_, ()>, key: usize, request: &SendRequest) -> u64 {
        let (posted, doorbell) = self.queue(key, request);
        if let Err(error) = posted {
            // The caller has no future yet, so there is no waker to call.
            let _ = self.ops().finish(key, Outcome::Refused(error.into()));
        }
        drop(gate);
        integration::ring(&self.qp, doorbell);
        key as u64
    }

    /// Queues the request of an operation. The caller holds the gate, and rings the doorbell later.
    fn queue(&self, key: usize, request: &SendRequest) -> (Result<(), ErrorKind>, Doorbell) {
        let wr = SendWr {
            wr_id: SEND_FLAG | key as u64,
            op: request.op,
            sges: &request.sges,
            flags: request.flags | SendFlags::SIGNALED,
        };
        // SAFETY: the elements refer to the slot's buffer, an `Mr` that stays in the slot until the
        // completion was taken or the queue pair was dropped, and the queue pair is dropped before
        // the slots. Nothing else can write its bytes meanwhile. Inline data is in that buffer as
        // well, or is borrowed by the caller of `submit_copy`.
        unsafe { integration::queue_send(&self.qp, wr) }
    }

    /// Posts waiting operations while there is room. The caller holds the gate.
    fn post_waiting(&self, due: &mut DeferredActions) {
        loop {
            let Some((key, request)) = self.ops().pop_waiting() else { break };
            let (posted, doorbell) = self.queue(key, &request);
            due.doorbells.push(doorbell);
            if let Err(error) = posted {
                due.wakers.extend(self.ops().finish(key, Outcome::Refused(error.into())));
            }
        }
    }

    /// Performs the actions that completions have deferred: posts operations that waited for room,
    /// closes the connection after the last of them if a close was requested, posts the receives of
    /// dropped messages, and drops detached operations that have completed.
    fn run_deferred(&self) {
        let mut due = DeferredActions::default();
        let gate = self.gate.lock();
        self.post_waiting(&mut due);
        due.closes = self.ops().take_closing();
        drop(gate);
        (due.freed, due.ended) = self.ops().take_freed();
        due.receives = std::mem::take(&mut self.completions.inbox.lock().discarded);
        // A doorbell may complete requests immediately, which calls this function recursively.
        due.deliver(self);
    }

    /// Polls the operation with this ticket, and takes its result and buffer once it has completed.
    pub(crate) fn poll_op(&self, ticket: u64, cx: &mut Context<'_>) -> Poll<OpResult> {
        let key = ticket as usize;
        let mut ops = self.ops();
        let mut ending = None;
        if ops.is_flushed(key) {
            drop(ops);
            ending = Some(ready!(self.poll_ended(cx)));
            ops = self.ops();
        }
        if let Some((outcome, buffer)) = ops.take_done(key) {
            drop(ops);
            let result = match ending {
                Some(reason) => Err(self.end_error(reason)),
                None => outcome.into_result(self.peer(), Some(&self.qp)),
            };
            return Poll::Ready((result, buffer));
        }
        let before = ops.set_caller(key, Caller::Waits(Some(cx.waker().clone())));
        drop(ops);
        drop(before);
        Poll::Pending
    }

    /// Closes the connection in order, after all operations that were added so far.
    pub(crate) fn close(&self) -> Result<()> {
        let gate = self.gate.lock();
        let waits = self.ops().close_later();
        drop(gate);
        if !waits {
            return Ok(self.qp.disconnect()?);
        }
        // Without a limit, waiting operations might wait forever.
        integration::limit_lifetime(&self.qp, self.close_timeout);
        Ok(())
    }

    /// Returns the error of an operation that was not performed because the connection had ended.
    pub(crate) fn end_error(&self, reason: CloseReason) -> Error {
        if reason.is_closed() {
            return self.closed();
        }
        ErrorKind::Ended { peer: self.peer(), reason }.into()
    }

    fn closed(&self) -> Error {
        ErrorKind::Closed { peer: self.peer() }.into()
    }

    /// Detaches an operation whose future was dropped. Its request is still performed, even if it
    /// currently waits for room.
    pub(crate) fn detach(&self, ticket: u64) {
        let key = ticket as usize;
        let mut ops = self.ops();
        // Dropping the waker or the buffer may run user code, so both are dropped without the lock.
        if let Some(slot) = ops.remove_done(key) {
            drop(ops);
            drop(slot);
        } else {
            let before = ops.set_caller(key, Caller::Detached);
            drop(ops);
            drop(before);
        }
    }

    /// Begins the end of a connection whose last handle was dropped. Detached operations that have
    /// not completed keep the connection open, at most for the detached timeout.
    fn linger(this: &Arc<Self>, device: &Device) {
        let mut ops = this.ops();
        if ops.is_empty() {
            return;
        }
        ops.lingering = Some(Arc::clone(this));
        drop(ops);
        let connection: Weak<Self> = Arc::downgrade(this);
        integration::end_with_last_handle(device.as_raw(), connection);
        // The peer may continue to send meanwhile, and a message without a receive would end the
        // connection.
        let messages = {
            let mut inbox = this.completions.inbox.lock();
            inbox.discards = true;
            std::mem::take(&mut inbox.messages)
        };
        this.release_all(messages.iter().map(|wc| wc.wr_id as u32));
        if !integration::limit_lifetime(&this.qp, this.detached_timeout) {
            // The queue pair has no connection that could complete the operations, and without
            // handles it cannot get one.
            this.end_lingering();
        }
    }

    /// Takes the oldest message, if there is one.
    pub(crate) fn take_message(&self) -> Option<Wc> {
        self.completions.inbox.lock().messages.pop_front()
    }

    /// Returns a future that calls `poll` when a message has arrived or the connection has ended,
    /// until `poll` is ready.
    pub(crate) fn received<T>(
        &self,
        poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> impl Future<Output = T> {
        self.receivers.wait(poll)
    }

    /// Takes the oldest message. Returns an error after the receives were flushed, because no
    /// further message can arrive then.
    pub(crate) fn poll_message(&self, cx: &mut Context<'_>) -> Poll<Result<Wc>> {
        let mut inbox = self.completions.inbox.lock();
        if let Some(wc) = inbox.messages.pop_front() {
            return Poll::Ready(Ok(wc));
        }
        if let Some(wc) = &inbox.closed {
            return Poll::Ready(Err(completion_error(wc, self.peer(), Some(&self.qp))));
        }
        integration::register_waker(&mut inbox.wakers, cx.waker());
        Poll::Pending
    }

    /// Waits for the end of the connection, and returns the reason.
    pub(crate) fn ended(&self) -> impl Future<Output = CloseReason> {
        self.end_waiters.wait(|cx| self.poll_ended(cx))
    }

    /// Returns the reason for the end of the connection, once it has ended. The engine reports the
    /// end after the last completion, so every message is in the inbox then.
    pub(crate) fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<CloseReason> {
        // The lock is held while the event is taken. Otherwise a second caller could miss the event
        // and wait for another one.
        let mut ending = self.ending.lock();
        if let Some(ending) = *ending {
            return Poll::Ready(ending);
        }
        loop {
            if let CmEventKind::Disconnected(reason) = ready!(self.channel.poll_pop(cx)).kind {
                *ending = Some(reason);
                return Poll::Ready(reason);
            }
        }
    }
}

/// Returns a request that sends `message`. The bytes are copied when the request is posted.
fn inline_send(message: &[u8]) -> SendRequest {
    let sge =
        Sge { addr: message.as_ptr().addr() as u64, length: message.len() as u32, lkey: STag(0) };
    SendRequest { op: SendOp::Send, sges: [sge].into_iter().collect(), flags: SendFlags::INLINE }
}

/// Returns whether a message is the Immediate Data that follows a Write.
pub(crate) fn is_write_imm(wc: &Wc) -> bool {
    wc.opcode == WcOpcode::RecvWriteImm
}

#[cfg(test)]
mod tests {
    use super::Dispatcher;
    use crate::connection::Connection;
    use crate::device::Device;
    use crate::listener::Listener;
    use crate::settings::ConnectionConfig;
    use std::future::{Future, poll_fn};
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};
    use std::thread;
    use std::time::Duration;

    fn pair(settings: &ConnectionConfig) -> (Device, Connection, Device, Connection) {
        let [client, server] = [(); 2].map(|()| Device::open().unwrap());
        let [client_pd, server_pd] = [&client, &server].map(|device| device.alloc_pd().unwrap());
        let listener =
            Listener::bind(&server_pd, "127.0.0.1:0".parse().unwrap(), settings).unwrap();
        let (connection, accepted) = thread::scope(|scope| {
            let accepted = scope.spawn(|| server.block_on(listener.accept()).unwrap());
            let connection = Connection::connect(&client_pd, listener.local_addr(), settings);
            (client.block_on(connection).unwrap(), accepted.join().unwrap())
        });
        (client, connection, server, accepted)
    }

    /// A program that waits in new tasks keeps no waker of those that are gone.
    #[test]
    fn dropped_futures_leave_no_waker() {
        let (client, connection, _server, accepted) = pair(&ConnectionConfig::default());
        let Dispatcher { receivers, end_waiters, completions, .. } = &**connection.dispatcher;
        for _ in 0..3 {
            begin(pin!(connection.ended()));
            begin(pin!(connection.recv()));
        }
        assert_eq!((receivers.len(), end_waiters.len()), (0, 0));
        assert_eq!(completions.inbox.lock().wakers.len(), 1, "that of all receivers");
        let mut kept = pin!(connection.ended());
        begin(kept.as_mut());
        begin(kept.as_mut());
        assert_eq!(end_waiters.len(), 1);
        drop(accepted);
        assert!(client.block_on(kept).orderly);
    }

    #[test]
    fn message_before_end_delivered() {
        let (client, connection, server, accepted) = pair(&ConnectionConfig::default());
        client.block_on(async {
            connection.send_copy(b"the last one").await.unwrap();
            assert!(connection.disconnect().await.unwrap().orderly);
        });
        assert!(server.block_on(accepted.ended()).orderly);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(matches!(accepted.dispatcher.poll_message(&mut cx), Poll::Ready(Ok(_))));
        assert!(server.block_on(accepted.recv()).unwrap().is_none());
    }

    /// Polls the future of an operation once. The operation cannot be complete yet.
    fn begin(future: Pin<&mut impl Future>) {
        assert!(future.poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }

    async fn receive(connection: &Connection, count: usize) -> Vec<Vec<u8>> {
        let mut messages = Vec::new();
        for _ in 0..count {
            messages.push(connection.recv().await.unwrap().unwrap().to_vec());
        }
        messages
    }

    /// Tests a request that is added after a completion has made room, but before the waiting
    /// request has been posted: it must wait behind that one.
    #[test]
    fn requests_ordered_despite_waiting_for_room() {
        let (client, connection, server, accepted) = pair(&ConnectionConfig::default());
        let dispatcher = &connection.dispatcher;
        dispatcher.ops().set_room(0);
        let mut waiting = pin!(connection.send_copy(b"waits"));
        begin(waiting.as_mut());
        dispatcher.ops().set_room(2);
        let mut behind = pin!(connection.send_copy(b"behind"));
        begin(behind.as_mut());
        dispatcher.run_deferred();
        client.block_on(async { (waiting.await.unwrap(), behind.await.unwrap()) });
        assert_eq!(server.block_on(receive(&accepted, 2)), [b"waits".to_vec(), b"behind".to_vec()]);
    }

    /// The thread that runs the deferred work waits until the other thread has queued its request.
    #[test]
    fn waiting_request_posted_despite_concurrent_post() {
        let (client, connection, server, accepted) = pair(&ConnectionConfig::default());
        let dispatcher = &connection.dispatcher;
        dispatcher.ops().set_room(0);
        let mut waiting = pin!(connection.send_copy(b"waits"));
        begin(waiting.as_mut());
        thread::scope(|scope| {
            let gate = dispatcher.gate.lock();
            dispatcher.ops().set_room(1);
            let run = scope.spawn(|| dispatcher.run_deferred());
            // The run can end here only if it does not wait for the gate, which is the error to
            // detect.
            for _ in 0..20 {
                if run.is_finished() {
                    break;
                }
                thread::sleep(Duration::from_millis(1));
            }
            drop(gate);
            run.join().unwrap();
        });
        assert!(dispatcher.ops().pop_waiting().is_none(), "posted");
        client.block_on(waiting).unwrap();
        assert_eq!(server.block_on(receive(&accepted, 1)), [b"waits".to_vec()]);
    }

    /// The message is borrowed only during the call of `submit_copy`.
    #[test]
    fn waiting_copy_has_own_bytes() {
        let (client, connection, server, accepted) = pair(&ConnectionConfig::default());
        let dispatcher = &connection.dispatcher;
        dispatcher.ops().set_room(0);
        let mut message = *b"as it was";
        let ticket = dispatcher.submit_copy(&message);
        message.fill(0);
        dispatcher.ops().set_room(1);
        dispatcher.run_deferred();
        client.block_on(poll_fn(|cx| dispatcher.poll_op(ticket, cx))).0.unwrap();
        assert_eq!(server.block_on(receive(&accepted, 1)), [b"as it was".to_vec()]);
    }

    #[test]
    fn messages_take_last_released_receive() {
        let (client, connection, server, accepted) = pair(&ConnectionConfig::default());
        let send = |message: &'static [u8]| client.block_on(connection.send_copy(message)).unwrap();
        let receive = || server.block_on(accepted.recv()).unwrap().unwrap();
        send(b"first");
        let first = receive().as_ptr();
        send(b"second");
        let second = receive();
        assert_eq!((&second[..], second.as_ptr()), (&b"second"[..], first));
        send(b"third");
        let third = receive();
        assert_ne!(third.as_ptr(), first, "the second is kept");
        assert_eq!((&second[..], &third[..]), (&b"second"[..], &b"third"[..]));
    }
}
