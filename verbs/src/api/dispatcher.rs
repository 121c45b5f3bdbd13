//! From completions back to the operations and receives they belong to.
//!
//! One completion queue a connection, drained by the waker that the engine calls after a push; the drained completions wake the tasks
//! concerned. Buffers live here from post to completion, so a future that is
//! dropped or forgotten never frees memory in flight.

use crate::api::op::WcError;
use crate::api::settings::ConnSettings;
use crate::cm::{CloseReason, CmChannel, CmEventKind, ConnInfo};
use crate::cq::Cq;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::lingering::Linger;
use crate::mr::RawMr;
use crate::qp::{Doorbell, Qp};
use crate::wc::{Wc, WcOpcode, WcStatus};
use crate::wr::{RecvWr, SendFlags, SendOp, SendWr, Sge};
use arrayvec::ArrayVec;
use parking_lot::Mutex;
use slab::Slab;
use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Duration;

/// Buffers of any type.
pub(super) type AnyBuffer = Box<dyn Any + Send>;
/// How an operation ended, and its buffer.
pub(super) type OpDone = (std::result::Result<Wc, WcError>, AnyBuffer);

/// A request that may have to wait for room in the send queue.
pub(super) struct Request {
    pub(super) op: SendOp,
    pub(super) sges: ArrayVec<Sge, 2>,
    pub(super) flags: SendFlags,
}

enum State {
    /// Not posted: waits for room.
    Waiting(Request),
    Posted,
    Done(std::result::Result<Wc, WcError>),
}

/// What takes the outcome of an operation.
enum Caller {
    /// Its future, which is woken by this if it has been polled.
    Waits(Option<Waker>),
    /// The future was dropped. The request is posted and completes as any other; then the slot is freed.
    Detached,
}

struct Slot {
    state: State,
    caller: Caller,
    buffer: AnyBuffer,
}

/// The operations of a connection.
pub(super) struct Ops {
    slots: Slab<Slot>,
    /// Keeps the connection until `slots` is empty, when only detached operations are left of it.
    lingering: Option<Arc<Dispatcher>>,
    /// Room in the send queue.
    room: u32,
    /// Operations that wait for room, first come first served.
    waiting: VecDeque<usize>,
}

/// Received messages.
#[derive(Default)]
struct Inbox {
    messages: VecDeque<Wc>,
    wakers: Vec<Waker>,
    /// Receives were flushed: no message will come.
    closed: Option<WcError>,
    /// No handle is left: messages are dropped, and their receives posted again.
    discards: bool,
}

/// The receive buffers of a connection: one block, one slot a receive.
pub(super) struct Ring {
    pub(super) memory: RawMr,
    pub(super) size: u32,
    pub(super) depth: u32,
}

/// The application's hold on a connection: connections, operations and messages share one.
pub(super) struct Handle {
    dispatcher: Arc<Dispatcher>,
    device: Device,
}

impl Handle {
    pub(super) fn new(
        device: Device,
        qp: Qp,
        cq: Arc<Cq>,
        settings: &ConnSettings,
        ring: Ring,
    ) -> Result<Arc<Self>> {
        let slots = Slab::new();
        let ops = Ops { slots, lingering: None, room: settings.send_depth, waiting: VecDeque::new() };
        let dispatcher = Arc::new_cyclic(|this: &Weak<Dispatcher>| Dispatcher {
            qp,
            cq,
            ops: Mutex::new(ops),
            inbox: Mutex::default(),
            gate: Mutex::new(()),
            again: AtomicBool::new(false),
            ring,
            detached_timeout: settings.detached_timeout,
            channel: Arc::new(CmChannel::default()),
            info: std::sync::OnceLock::new(),
            ending: Mutex::new(None),
            notifier: Waker::from(Arc::new(Notifier(this.clone()))),
        });
        for slot in 0..dispatcher.ring.depth {
            dispatcher.post_slot(slot)?;
        }
        // Registers the notifier.
        dispatcher.drain();
        Ok(Arc::new(Self { dispatcher, device }))
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }
}

impl Deref for Handle {
    type Target = Dispatcher;

    fn deref(&self) -> &Dispatcher {
        &self.dispatcher
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        Dispatcher::linger(&self.dispatcher, &self.device);
    }
}

pub(crate) struct Dispatcher {
    /// Dropped before the buffers: the engine lets go first.
    qp: Qp,
    cq: Arc<Cq>,
    ops: Mutex<Ops>,
    inbox: Mutex<Inbox>,
    /// Held while draining and while queueing requests, never while foreign code runs. A notifier that finds it locked
    /// sets `again`, and the holder drains once more.
    gate: Mutex<()>,
    again: AtomicBool,
    pub(super) ring: Ring,
    /// See [`ConnSettings::detached_timeout`].
    detached_timeout: Duration,
    pub(super) channel: Arc<CmChannel>,
    pub(super) info: std::sync::OnceLock<ConnInfo>,
    ending: Mutex<Option<CloseReason>>,
    notifier: Waker,
}

/// What is due after a round, when no lock is held any more: all of it may run foreign code.
#[derive(Default)]
struct Due {
    wakers: Vec<Waker>,
    /// Detached operations that are over.
    freed: Vec<Slot>,
    /// Receives of messages that were dropped.
    receives: Vec<u32>,
    doorbells: Vec<Doorbell>,
    /// The last of [`Ops::lingering`].
    ended: Option<Arc<Dispatcher>>,
}

impl Due {
    fn deliver(self, dispatcher: &Dispatcher) {
        let Self { wakers, freed, receives, doorbells, ended } = self;
        for doorbell in doorbells {
            dispatcher.qp.ring(doorbell);
        }
        dispatcher.post_slots(receives);
        drop(freed);
        for waker in wakers {
            waker.wake();
        }
        drop(ended);
    }
}

/// What the engine wakes when a completion is pushed.
struct Notifier(Weak<Dispatcher>);

/// Notifiers that may be at work inside each other on one thread: a doorbell that completes requests at once wakes the next.
const NESTED: usize = 8;

thread_local! {
    /// Notifiers at work on this thread, and the routers that were put off because there were too many.
    static NOTIFIED: RefCell<(usize, VecDeque<Arc<Dispatcher>>)> = const { RefCell::new((0, VecDeque::new())) };
}

impl Wake for Notifier {
    fn wake(self: Arc<Self>) {
        let Some(dispatcher) = self.0.upgrade() else { return };
        // `Some` when this notifier is to do the work itself.
        let turn = NOTIFIED.try_with(|notified| {
            let (depth, put_off) = &mut *notified.borrow_mut();
            if *depth == NESTED {
                put_off.push_back(Arc::clone(&dispatcher));
                return None;
            }
            *depth += 1;
            Some(Turn)
        });
        match turn {
            Ok(None) => {}
            Ok(Some(_turn)) => {
                dispatcher.drain();
                while let Some(dispatcher) = NOTIFIED.with(|notified| notified.borrow_mut().1.pop_front()) {
                    dispatcher.drain();
                }
            }
            // The thread ends.
            Err(_) => dispatcher.drain(),
        }
    }
}

/// One notifier at work on this thread.
struct Turn;

impl Drop for Turn {
    fn drop(&mut self) {
        let _ = NOTIFIED.try_with(|notified| notified.borrow_mut().0 -= 1);
    }
}

impl Linger for Dispatcher {
    fn end_lingering(&self) {
        let lingering = self.ops.lock().lingering.take();
        drop(lingering);
    }
}

impl Dispatcher {
    pub(super) fn qp(&self) -> &Qp {
        &self.qp
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.info.get().map_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)), |info| info.peer)
    }

    /// Posts the receive of ring slot `slot`.
    pub(super) fn post_slot(&self, slot: u32) -> Result<()> {
        let Ring { memory, size, .. } = &self.ring;
        let addr = memory.addr() + u64::from(slot) * u64::from(*size);
        let sge = Sge { addr, length: *size, lkey: memory.lkey() };
        let wr = RecvWr { wr_id: slot.into(), sges: &[sge] };
        // SAFETY: the ring's memory lives as long as the dispatcher, which outlives the queue pair's use of it (`qp` is dropped
        // first); the slot is read through a `Message` only while its receive is not posted.
        unsafe { self.qp.post_recv([wr]) }.map_err(|refused| refused.error)
    }

    /// The bytes of the message in ring slot `slot`, where it is longer than the slot.
    pub(super) fn take_long(&self, slot: u32) -> Option<Vec<u8>> {
        self.qp.0.long.as_ref()?.take(slot.into())
    }

    /// The message in `slot` is dropped: the slot is posted again. Refused only when the queue pair is in error: then the receive is
    /// not needed.
    pub(super) fn release(&self, slot: u32, long: Option<Vec<u8>>) {
        if let (Some(messages), Some(message)) = (&self.qp.0.long, long) {
            // Before the receive is posted, which wakes a stream that waits for this room.
            messages.release(message.len());
        }
        let _ = self.post_slot(slot);
    }

    /// Posts receives whose messages are not kept.
    fn post_slots(&self, slots: impl IntoIterator<Item = u32>) {
        for slot in slots {
            self.release(slot, self.take_long(slot));
        }
    }

    /// Takes an operation in: posts it if there is room, else lets it wait.
    pub(super) fn submit(&self, request: Request, buffer: AnyBuffer) -> u64 {
        let mut due = Due::default();
        let gate = self.gate.lock();
        let key = {
            let mut ops = self.ops.lock();
            let key = ops.slots.insert(Slot {
                state: State::Waiting(request),
                caller: Caller::Waits(None),
                buffer,
            });
            ops.waiting.push_back(key);
            self.post_waiting(&mut ops, &mut due);
            key
        };
        drop(gate);
        due.deliver(self);
        if self.again.load(Ordering::SeqCst) {
            self.drain();
        }
        key as u64
    }

    /// Takes an operation in that failed before it was posted.
    pub(super) fn submit_failed(&self, error: Error, buffer: AnyBuffer) -> u64 {
        let state = State::Done(Err(error.into()));
        self.ops.lock().slots.insert(Slot { state, caller: Caller::Waits(None), buffer }) as u64
    }

    /// Posts waiting operations while there is room. The gate is held.
    fn post_waiting(&self, ops: &mut Ops, due: &mut Due) {
        while ops.room > 0
            && let Some(key) = ops.waiting.pop_front()
        {
            let Some(slot) = ops.slots.get_mut(key) else { continue };
            let State::Waiting(request) = &slot.state else { continue };
            let wr = SendWr {
                wr_id: SEND | key as u64,
                op: request.op,
                sges: &request.sges,
                flags: request.flags | SendFlags::SIGNALED,
            };
            // SAFETY: the elements lie in `slot.buffer`, an `Mr` that stays in this slot until the completion was taken (or
            // the queue pair was dropped, which happens before the slots are); nothing else can access its bytes meanwhile. Inline
            // data lies in the slot's buffer too.
            let (posted, doorbell) = unsafe { self.qp.queue_send([wr]) };
            due.doorbells.push(doorbell);
            match posted {
                Ok(()) => {
                    slot.state = State::Posted;
                    ops.room -= 1;
                }
                Err(refused) => ops.finish(key, Err(refused.error.into()), due),
            }
        }
    }

    pub(super) fn poll_op(&self, ticket: u64, cx: &mut Context<'_>) -> Poll<OpDone> {
        let mut ops = self.ops.lock();
        if let Some(done) = ops.take_done(ticket) {
            return Poll::Ready(done);
        }
        // A completion that is in the queue already has called the notifier, or is about to.
        let waker = Some(cx.waker().clone());
        let slot = ops.slots.get_mut(ticket as usize);
        let before = slot.map(|slot| std::mem::replace(&mut slot.caller, Caller::Waits(waker)));
        drop(ops);
        drop(before);
        Poll::Pending
    }

    /// The operation's future was dropped: its request goes on, whether it was posted or waits for room.
    pub(super) fn detach(&self, ticket: u64) {
        let key = ticket as usize;
        let mut ops = self.ops.lock();
        let Some(slot) = ops.slots.get_mut(key) else { return };
        // The waker and the buffer are foreign code: dropped without the lock.
        if matches!(slot.state, State::Done(_)) {
            let slot = ops.slots.remove(key);
            drop(ops);
            drop(slot);
        } else {
            let before = std::mem::replace(&mut slot.caller, Caller::Detached);
            drop(ops);
            drop(before);
        }
    }

    /// The last handle was dropped. Detached operations that are not over keep the connection, at most for the detached timeout.
    fn linger(this: &Arc<Self>, device: &Device) {
        let mut ops = this.ops.lock();
        if ops.slots.is_empty() {
            return;
        }
        ops.lingering = Some(Arc::clone(this));
        drop(ops);
        if let Some(lingering) = device.lingering() {
            let this: Weak<Self> = Arc::downgrade(this);
            lingering.add(this);
        }
        // The peer may go on sending meanwhile: a message without a receive would end the connection.
        let messages = {
            let mut inbox = this.inbox.lock();
            inbox.discards = true;
            std::mem::take(&mut inbox.messages)
        };
        this.post_slots(messages.iter().map(|wc| wc.wr_id as u32));
        if !this.qp.limit_lifetime(this.detached_timeout) {
            // No connection completes them, and no other one can be made.
            this.end_lingering();
        }
    }

    /// The oldest message.
    pub(super) fn poll_message(&self, cx: &mut Context<'_>) -> Poll<std::result::Result<Wc, WcError>> {
        let mut inbox = self.inbox.lock();
        if let Some(wc) = inbox.messages.pop_front() {
            return Poll::Ready(Ok(wc));
        }
        if let Some(WcError::Completed { status, reason, peer }) = &inbox.closed {
            return Poll::Ready(Err(WcError::Completed { status: *status, reason: *reason, peer: *peer }));
        }
        // A completion that is in the queue already has called the notifier, or is about to.
        crate::notify::register(&mut inbox.wakers, cx.waker());
        Poll::Pending
    }

    /// Moves completions to where they belong, until none is left and the notifier is registered.
    fn drain(&self) {
        let mut due = Due::default();
        self.again.store(true, Ordering::SeqCst);
        // The holder of the gate looks at `again` after opening it, so a failed try loses nothing.
        while self.again.load(Ordering::SeqCst)
            && let Some(gate) = self.gate.try_lock()
        {
            while self.again.swap(false, Ordering::SeqCst) {
                self.drain_once(&mut due);
            }
            drop(gate);
            // A doorbell may complete requests at once, and so ask for another round.
            std::mem::take(&mut due).deliver(self);
        }
    }

    /// As [`Dispatcher::drain`], and what another thread drains now is where it belongs when this returns.
    fn drain_now(&self) {
        let mut due = Due::default();
        let gate = self.gate.lock();
        self.drain_once(&mut due);
        drop(gate);
        due.deliver(self);
        if self.again.load(Ordering::SeqCst) {
            self.drain();
        }
    }

    fn drain_once(&self, due: &mut Due) {
        loop {
            // The queue's lock is let go before requests are posted in turn.
            let mut wcs = ArrayVec::<Wc, 16>::new();
            self.cq.pop(wcs.capacity(), &mut |wc| wcs.push(wc));
            for wc in wcs {
                self.route(wc, due);
            }
            let mut cx = Context::from_waker(&self.notifier);
            if self.cq.poll_ready(&mut cx).is_pending() {
                break;
            }
        }
    }

    fn route(&self, wc: Wc, due: &mut Due) {
        if wc.wr_id & SEND != 0 {
            self.send_done(wc, due);
        } else if wc.status == WcStatus::Success {
            let mut inbox = self.inbox.lock();
            if inbox.discards {
                due.receives.push(wc.wr_id as u32);
            } else {
                inbox.messages.push_back(wc);
                due.wakers.append(&mut inbox.wakers);
            }
        } else {
            let mut inbox = self.inbox.lock();
            let (status, reason, peer) = (wc.status, wc.reason, self.peer());
            inbox.closed.get_or_insert(WcError::Completed { status, reason, peer });
            due.wakers.append(&mut inbox.wakers);
        }
    }

    fn send_done(&self, wc: Wc, due: &mut Due) {
        let key = (wc.wr_id & !SEND) as usize;
        let mut ops = self.ops.lock();
        ops.room += 1;
        let peer = self.peer();
        let result = match wc.status {
            WcStatus::Success => Ok(wc),
            status => Err(WcError::Completed { status, reason: wc.reason, peer }),
        };
        ops.finish(key, result, due);
        self.post_waiting(&mut ops, due);
    }

    /// How the connection ended, once it has. Every message is in the inbox then.
    pub(super) fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<CloseReason> {
        let ending = ready!(self.poll_ending(cx));
        // The engine pushes the last completions before it reports the end, and calls the notifier after both.
        self.drain_now();
        Poll::Ready(ending)
    }

    fn poll_ending(&self, cx: &mut Context<'_>) -> Poll<CloseReason> {
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

/// Marks completions of sends among the `wr_id`s.
const SEND: u64 = 1 << 63;

impl Ops {
    /// An operation is over.
    fn finish(&mut self, key: usize, result: std::result::Result<Wc, WcError>, due: &mut Due) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        match &mut slot.caller {
            Caller::Waits(waker) => {
                due.wakers.extend(waker.take());
                slot.state = State::Done(result);
            }
            Caller::Detached => {
                due.freed.extend(self.slots.try_remove(key));
                if self.slots.is_empty() {
                    due.ended = self.lingering.take();
                }
            }
        }
    }

    fn take_done(&mut self, ticket: u64) -> Option<OpDone> {
        let key = ticket as usize;
        if !matches!(self.slots.get(key)?.state, State::Done(_)) {
            return None;
        }
        let slot = self.slots.try_remove(key)?;
        let State::Done(result) = slot.state else { return None };
        Some((result, slot.buffer))
    }
}

/// Whether a message is Immediate Data behind a Write.
pub(super) fn is_write_imm(wc: &Wc) -> bool {
    wc.opcode == WcOpcode::RecvWriteImm
}

#[cfg(test)]
mod tests {
    use crate::api::connection::Connection;
    use crate::api::listener::Listener;
    use crate::api::settings::ConnSettings;
    use crate::device::Device;
    use std::future::poll_fn;
    use std::thread;

    #[test]
    fn a_message_before_the_end_is_received_though_it_is_still_to_be_routed() {
        let [client, server] = [(); 2].map(|()| Device::open().unwrap());
        let [client_pd, server_pd] = [&client, &server].map(|device| device.alloc_pd().unwrap());
        let settings = ConnSettings::default();
        let listener = Listener::bind(&server_pd, "127.0.0.1:0".parse().unwrap(), &settings).unwrap();
        let (connection, accepted) = thread::scope(|scope| {
            let accepted = scope.spawn(|| server.block_on(listener.accept()).unwrap());
            let connection = Connection::connect(&client_pd, listener.local_addr(), &settings);
            (client.block_on(connection).unwrap(), accepted.join().unwrap())
        });
        // As a notifier that is not done yet.
        let gate = accepted.dispatcher.gate.lock();
        client.block_on(async {
            connection.send_copy(b"the last one").await.unwrap();
            assert!(connection.disconnect().await.unwrap().orderly);
        });
        assert!(server.block_on(poll_fn(|cx| accepted.dispatcher.poll_ending(cx))).orderly);
        thread::scope(|scope| {
            let received = scope.spawn(|| server.block_on(accepted.recv()).unwrap());
            // Nothing is routed until then, and by no other thread than the receiver.
            drop(gate);
            let received = received.join().unwrap();
            assert_eq!(received.as_deref(), Some(&b"the last one"[..]));
        });
        assert!(server.block_on(accepted.recv()).unwrap().is_none());
    }
}
