//! What the program's calls and the turns of a striped connection share: its rules, its operations, its messages.

use super::message::StripedMessage;
use crate::api::completions::AnyBuffer;
use crate::api::listener::Incoming;
use crate::api::op::WcError;
use crate::notify::register;
use crate::wc::{Wc, WcOpcode, WcStatus};
use crate::wr::{SendFlags, SendOp, Sge};
use slab::Slab;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::task::{Context, Poll, Waker};
use uiw_striping::wire::Kind;
use uiw_striping::{Done, Endpoint, Outcome, Start};

/// How an operation ended, and its buffer.
pub(super) type OpDone = (Result<Wc, WcError>, AnyBuffer);

/// What a request sends.
pub(super) enum Body {
    /// A message: the header is made when it starts, as it has the message's number.
    Message {
        kind: Kind,
        flags: SendFlags,
    },
    Other(SendOp),
}

/// A request that is not over.
pub(super) struct Job {
    pub(super) body: Body,
    /// The program's bytes, which lie in `buffer`.
    pub(super) sge: Option<Sge>,
    /// Here unless the request is on a stripe.
    pub(super) buffer: Option<AnyBuffer>,
    /// The operation that the buffer, and the outcome unless this is a part, belong to.
    pub(super) op: Option<usize>,
}

/// An operation of the program's.
struct OpSlot {
    waker: Option<Waker>,
    is_detached: bool,
    opcode: WcOpcode,
    len: u32,
    buffer: Option<AnyBuffer>,
    result: Option<Result<Wc, WcError>>,
}

pub(super) struct State {
    pub(super) endpoint: Endpoint<WcError>,
    jobs: BTreeMap<u64, Job>,
    ops: Slab<OpSlot>,
    inbox: VecDeque<StripedMessage>,
    recv_wakers: Vec<Waker>,
    end_wakers: Vec<Waker>,
    /// Requests of the peer's to replace a stripe that wait for their answers, with the peer's counts of messages.
    pub(super) offers: BTreeMap<u8, (Incoming, u64)>,
    /// It has ended, and no stripe has a connection.
    pub(super) is_over: bool,
    /// What ended a stripe last, or prevented its replacement.
    pub(super) cause: Option<Box<str>>,
    peer: SocketAddr,
}

/// What is to be dropped or woken when no lock is held: all of it may run foreign code.
#[derive(Default)]
pub(super) struct Due {
    pub(super) wakers: Vec<Waker>,
    buffers: Vec<AnyBuffer>,
}

impl Due {
    pub(super) fn deliver(self) {
        drop(self.buffers);
        for waker in self.wakers {
            waker.wake();
        }
    }
}

impl State {
    pub(super) fn new(endpoint: Endpoint<WcError>, peer: SocketAddr) -> Self {
        Self {
            endpoint,
            jobs: BTreeMap::new(),
            ops: Slab::new(),
            inbox: VecDeque::new(),
            recv_wakers: Vec::new(),
            end_wakers: Vec::new(),
            offers: BTreeMap::new(),
            is_over: false,
            cause: None,
            peer,
        }
    }

    // ---- operations ------------------------------------------------------------------------------------------

    pub(super) fn add_op(&mut self, opcode: WcOpcode, len: u32) -> usize {
        let waker = None;
        self.ops.insert(OpSlot { waker, is_detached: false, opcode, len, buffer: None, result: None })
    }

    /// An operation failed before it was posted.
    pub(super) fn refuse(&mut self, op: usize, error: WcError, buffer: AnyBuffer) {
        if let Some(slot) = self.ops.get_mut(op) {
            (slot.result, slot.buffer) = (Some(Err(error)), Some(buffer));
        }
    }

    pub(super) fn add_job(&mut self, number: u64, job: Job) {
        self.jobs.insert(number, job);
    }

    pub(super) fn job(&mut self, number: u64) -> Option<&mut Job> {
        self.jobs.get_mut(&number)
    }

    /// The next request to start, and its job.
    pub(super) fn poll_start(&mut self) -> Option<(Start, &mut Job)> {
        let start = self.endpoint.poll_start()?;
        if Some(start.number) == self.endpoint.close_number() {
            let body = Body::Message { kind: Kind::Close, flags: SendFlags::empty() };
            self.jobs.insert(start.number, Job { body, sge: None, buffer: None, op: None });
        }
        match self.jobs.get_mut(&start.number) {
            Some(job) => Some((start, job)),
            None => unreachable!("a request that starts was posted and is not over"),
        }
    }

    pub(super) fn poll_op(&mut self, op: usize, cx: &mut Context<'_>) -> Poll<OpDone> {
        let Some(slot) = self.ops.get_mut(op) else { return Poll::Pending };
        if slot.result.is_none() {
            if !slot.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                slot.waker = Some(cx.waker().clone());
            }
            return Poll::Pending;
        }
        match self.ops.remove(op) {
            OpSlot { result: Some(result), buffer: Some(buffer), .. } => Poll::Ready((result, buffer)),
            _ => unreachable!("a buffer comes back with the outcome"),
        }
    }

    /// The future of an operation was dropped. Returns what is to be dropped without the lock.
    pub(super) fn detach(&mut self, op: usize) -> impl Sized + use<> {
        let slot = self.ops.get_mut(op)?;
        if slot.result.is_some() {
            return Some((self.ops.remove(op).buffer, None));
        }
        slot.is_detached = true;
        Some((None, slot.waker.take()))
    }

    /// Reports the completions that are due.
    pub(super) fn complete(&mut self, due: &mut Due) {
        while let Some(done) = self.endpoint.poll_done() {
            self.complete_one(done, due);
        }
    }

    fn complete_one(&mut self, done: Done<WcError>, due: &mut Due) {
        // The Close of an end that has failed was never started.
        let Some(job) = self.jobs.remove(&done.number) else { return };
        let Some(op) = job.op else { return };
        let Some(slot) = self.ops.get_mut(op) else { return };
        if let Some(buffer) = job.buffer {
            slot.buffer = Some(buffer);
        }
        if done.part {
            return;
        }
        let peer = self.peer;
        let failed = |status| Err(WcError::Completed { status, reason: None, peer, detail: None });
        let result = match done.outcome {
            Outcome::Placed => Ok(Wc::plain(done.number, WcStatus::Success, slot.opcode, slot.len)),
            Outcome::Failed(error) => Err(error),
            Outcome::Lost => failed(WcStatus::RetryExceeded),
            Outcome::Flushed => failed(WcStatus::Flushed),
        };
        if slot.is_detached {
            due.buffers.extend(self.ops.remove(op).buffer);
        } else {
            slot.result = Some(result);
            due.wakers.extend(slot.waker.take());
        }
    }

    // ---- messages --------------------------------------------------------------------------------------------

    pub(super) fn add_message(&mut self, message: StripedMessage, due: &mut Due) {
        self.inbox.push_back(message);
        due.wakers.append(&mut self.recv_wakers);
    }

    /// The oldest message; `None` when none will come.
    pub(super) fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<StripedMessage>> {
        if let Some(message) = self.inbox.pop_front() {
            return Poll::Ready(Some(message));
        }
        if self.endpoint.peer_has_closed() || self.is_over {
            return Poll::Ready(None);
        }
        register(&mut self.recv_wakers, cx.waker());
        Poll::Pending
    }

    // ---- the end ---------------------------------------------------------------------------------------------

    /// Wakes all that wait where nothing more will come, or where the connection is over.
    pub(super) fn wake_ended(&mut self, due: &mut Due) {
        if self.endpoint.peer_has_closed() || self.is_over {
            due.wakers.append(&mut self.recv_wakers);
        }
        if self.is_over {
            due.wakers.append(&mut self.end_wakers);
        }
    }

    pub(super) fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_over {
            return Poll::Ready(());
        }
        register(&mut self.end_wakers, cx.waker());
        Poll::Pending
    }
}
