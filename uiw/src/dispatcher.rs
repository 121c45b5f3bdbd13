//! The operations of a connection, from the program to the queue pair: what posts requests and
//! receives.
//!
//! The engine gives completions to the connection's [`Completions`] and wakes the task concerned.
//! What a completion leaves to do besides is done by [`Dispatcher::run_deferred`], which is called
//! as a waker is. Buffers stay in the completions from post to completion, so a future that is
//! dropped or forgotten never frees memory in flight.

use crate::completions::{
    Caller, Completions, ErasedBuffer, OperationSlot, OperationTable, Outcome, OwnedCompletions, SEND_FLAG,
    SendRequest, completion_error,
};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::settings::ConnectionConfig;
use parking_lot::{Mutex, MutexGuard};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Duration;
use uiw_verbs::cm::{CloseReason, CmChannel, CmEventKind, ConnInfo};
use uiw_verbs::integration::{self, Doorbell, Linger};
use uiw_verbs::{Qp, RawMr, STag, SendFlags, SendOp, SendWr, Sge, Wc, WcOpcode};

/// Result of an operation, and its buffer.
pub(crate) type OpResult = (Result<()>, ErasedBuffer);

/// The receive buffers of a connection: one block, one slot a receive.
pub(crate) struct ReceiveRing {
    pub(crate) memory: RawMr,
    pub(crate) size: u32,
    pub(crate) depth: u32,
}

/// The application's hold on a connection: connections, operations and messages share one.
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

pub(crate) struct Dispatcher {
    /// Dropped before the buffers: the engine lets go first.
    qp: Qp,
    completions: OwnedCompletions,
    /// Held from where a request has its room to where it is in the send queue, so that requests
    /// are queued in order; never while foreign code runs, so that any thread may wait for it.
    gate: Mutex<()>,
    pub(crate) ring: ReceiveRing,
    /// See [`ConnectionConfig::detached_timeout`].
    detached_timeout: Duration,
    /// See [`ConnectionConfig::close_timeout`].
    close_timeout: Duration,
    pub(crate) channel: Arc<CmChannel>,
    pub(crate) info: std::sync::OnceLock<ConnInfo>,
    ending: Mutex<Option<CloseReason>>,
}

/// Actions deferred until all locks are released, because each of them may run user code.
#[derive(Default)]
struct DeferredActions {
    wakers: Vec<Waker>,
    /// Detached operations that are over.
    freed: Vec<OperationSlot>,
    /// Receives of messages that were dropped.
    receives: Vec<u32>,
    doorbells: Vec<Doorbell>,
    /// True if the connection closes after the last operation that waited.
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
            // The connection may have ended meanwhile.
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

/// Waker that the engine wakes when a completion leaves deferred actions.
struct DeferredWaker(Weak<Dispatcher>);

/// Runs of deferred work that may be inside each other on one thread: a doorbell that completes
/// requests at once wakes the next.
const MAX_NESTED_RUNS: usize = 8;

thread_local! {
    /// Runs of deferred work on this thread, and the dispatchers that were put off because there
    /// were too many.
    static RUNS: RefCell<(usize, VecDeque<Arc<Dispatcher>>)> = const { RefCell::new((0, VecDeque::new())) };
}

impl Wake for DeferredWaker {
    fn wake(self: Arc<Self>) {
        let Some(dispatcher) = self.0.upgrade() else { return };
        // `Some` when this call is to do the work itself.
        let turn = RUNS.try_with(|runs| {
            let (depth, put_off) = &mut *runs.borrow_mut();
            if *depth == MAX_NESTED_RUNS {
                put_off.push_back(Arc::clone(&dispatcher));
                return None;
            }
            *depth += 1;
            Some(RunGuard)
        });
        match turn {
            Ok(None) => {}
            Ok(Some(_turn)) => {
                dispatcher.run_deferred();
                while let Some(dispatcher) = RUNS.with(|runs| runs.borrow_mut().1.pop_front()) {
                    dispatcher.run_deferred();
                }
            }
            // The thread ends.
            Err(_) => dispatcher.run_deferred(),
        }
    }
}

/// One run of deferred work on this thread.
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
        // SAFETY: the ring's memory lives as long as the dispatcher, which outlives the queue
        // pair's use of it (`qp` is dropped first); the slot is read through a `Message` only while
        // its receive is not posted.
        unsafe { integration::post_receive(&self.qp, slot.into(), sge) }
    }

    /// The bytes of the message in ring slot `slot`, where it is longer than the slot.
    pub(crate) fn take_long_message(&self, slot: u32) -> Option<Vec<u8>> {
        integration::take_long_message(&self.qp, slot.into())
    }

    /// The message in `slot` is dropped: the slot is posted again. Refused only when the queue pair
    /// is in error: then the receive is not needed.
    pub(crate) fn release(&self, slot: u32, long: Option<Vec<u8>>) {
        if let Some(message) = long {
            // Before the receive is posted, which wakes a stream that waits for this room.
            integration::release_long_message(&self.qp, message.len());
        }
        let _ = self.post_receive(slot);
    }

    /// Posts receives whose messages are not kept.
    fn release_all(&self, slots: impl IntoIterator<Item = u32>) {
        for slot in slots {
            self.release(slot, self.take_long_message(slot));
        }
    }

    /// Takes an operation in: posts it if there is room, else lets it wait.
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

    /// Takes a Send of at most `max_inline` bytes in, which are copied.
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

    /// Takes an operation in that failed before it was posted.
    pub(crate) fn submit_failed(&self, error: Error, buffer: ErasedBuffer) -> u64 {
        self.ops().add_failed(error, buffer) as u64
    }

    /// Posts the request of an operation in front of which none waits.
    fn post_now(&self, gate: MutexGuard<'_, ()>, key: usize, request: &SendRequest) -> u64 {
        let (posted, doorbell) = self.queue(key, request);
        if let Err(error) = posted {
            // Its future is not known yet: there is no waker.
            let _ = self.ops().finish(key, Outcome::Refused(error.into()));
        }
        drop(gate);
        integration::ring(&self.qp, doorbell);
        key as u64
    }

    /// Queues the request of an operation. The gate is held.
    fn queue(&self, key: usize, request: &SendRequest) -> (Result<(), ErrorKind>, Doorbell) {
        let wr = SendWr {
            wr_id: SEND_FLAG | key as u64,
            op: request.op,
            sges: &request.sges,
            flags: request.flags | SendFlags::SIGNALED,
        };
        // SAFETY: the elements lie in the slot's buffer, an `Mr` that stays in the slot until the
        // completion was taken (or the queue pair was dropped, which happens before the slots are);
        // nothing else can access its bytes meanwhile. Inline data lies there too, or is borrowed
        // by the caller of `submit_copy`.
        unsafe { integration::queue_send(&self.qp, wr) }
    }

    /// Posts waiting operations while there is room. The gate is held.
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

    /// Does what completions have left to do: posts operations that waited for room, and receives
    /// of messages that were dropped; drops detached operations that are over.
    fn run_deferred(&self) {
        let mut due = DeferredActions::default();
        let gate = self.gate.lock();
        self.post_waiting(&mut due);
        due.closes = self.ops().take_closing();
        drop(gate);
        (due.freed, due.ended) = self.ops().take_freed();
        due.receives = std::mem::take(&mut self.completions.inbox.lock().discarded);
        // A doorbell may complete requests at once, and so have this function called again inside
        // this call.
        due.deliver(self);
    }

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
                Some(reason) => Err(self.ended(reason)),
                None => outcome.into_result(self.peer(), Some(&self.qp)),
            };
            return Poll::Ready((result, buffer));
        }
        let before = ops.set_caller(key, Caller::Waits(Some(cx.waker().clone())));
        drop(ops);
        drop(before);
        Poll::Pending
    }

    /// Closes the connection in order, behind the operations that were taken in.
    pub(crate) fn close(&self) -> Result<()> {
        let gate = self.gate.lock();
        let waits = self.ops().close_later();
        drop(gate);
        if !waits {
            return Ok(self.qp.disconnect()?);
        }
        // The operations that wait may do so for ever.
        integration::limit_lifetime(&self.qp, self.close_timeout);
        Ok(())
    }

    /// Returns the error of an operation that was not done because the connection had ended.
    pub(crate) fn ended(&self, reason: CloseReason) -> Error {
        if reason.is_closed() {
            return self.closed();
        }
        ErrorKind::Ended { peer: self.peer(), reason }.into()
    }

    fn closed(&self) -> Error {
        ErrorKind::Closed { peer: self.peer() }.into()
    }

    /// The operation's future was dropped: its request goes on, whether it was posted or waits for
    /// room.
    pub(crate) fn detach(&self, ticket: u64) {
        let key = ticket as usize;
        let mut ops = self.ops();
        // The waker and the buffer are foreign code: dropped without the lock.
        if let Some(slot) = ops.remove_done(key) {
            drop(ops);
            drop(slot);
        } else {
            let before = ops.set_caller(key, Caller::Detached);
            drop(ops);
            drop(before);
        }
    }

    /// The last handle was dropped. Detached operations that are not over keep the connection, at
    /// most for the detached timeout.
    fn linger(this: &Arc<Self>, device: &Device) {
        let mut ops = this.ops();
        if ops.is_empty() {
            return;
        }
        ops.lingering = Some(Arc::clone(this));
        drop(ops);
        let connection: Weak<Self> = Arc::downgrade(this);
        integration::end_with_last_handle(device.as_raw(), connection);
        // The peer may go on sending meanwhile: a message without a receive would end the
        // connection.
        let messages = {
            let mut inbox = this.completions.inbox.lock();
            inbox.discards = true;
            std::mem::take(&mut inbox.messages)
        };
        this.release_all(messages.iter().map(|wc| wc.wr_id as u32));
        if !integration::limit_lifetime(&this.qp, this.detached_timeout) {
            // No connection completes them, and no other one can be made.
            this.end_lingering();
        }
    }

    /// The oldest message.
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

    /// Returns the reason for the end of the connection, once it has ended. The engine reports the
    /// end after the last completion, so every message is in the inbox then.
    pub(crate) fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<CloseReason> {
        // Held while the event is taken: a second caller would wait for another one.
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

/// A Send of these bytes, which are copied when it is posted.
fn inline_send(message: &[u8]) -> SendRequest {
    let sge = Sge { addr: message.as_ptr().addr() as u64, length: message.len() as u32, lkey: STag(0) };
    SendRequest { op: SendOp::Send, sges: [sge].into_iter().collect(), flags: SendFlags::INLINE }
}

/// Returns whether a message is Immediate Data behind a Write.
pub(crate) fn is_write_imm(wc: &Wc) -> bool {
    wc.opcode == WcOpcode::RecvWriteImm
}

#[cfg(test)]
mod tests {
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
        let listener = Listener::bind(&server_pd, "127.0.0.1:0".parse().unwrap(), settings).unwrap();
        let (connection, accepted) = thread::scope(|scope| {
            let accepted = scope.spawn(|| server.block_on(listener.accept()).unwrap());
            let connection = Connection::connect(&client_pd, listener.local_addr(), settings);
            (client.block_on(connection).unwrap(), accepted.join().unwrap())
        });
        (client, connection, server, accepted)
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

    /// Polls once, for an operation that cannot be over.
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

    /// A completion has made room, and what waits for it is not posted yet: a request that comes
    /// then waits behind it.
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

    /// The thread that runs the deferred work waits until the other one has queued its request.
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
            // It ends now only if it does not wait.
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

    /// The message is borrowed only for the call that takes it in.
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
