//! Moves established connections to the shard of the thread that polls their completion queue.
//!
//! A program decides with its polls which thread drives a connection. Where two threads poll queues whose connections are on one
//! shard, each finds the core held by the other, or serves the other's connections. A thread that sees this repeatedly moves the
//! connections whose receives complete in its queue to its home shard ([`affinity`](super::affinity)), so that each thread drives a
//! shard of its own. A queue that several threads poll stays where it is ([`PollContention`]).
//!
//! A move is two commands: out of one shard, into the other. Between them the connection has no token
//! ([`ConnLocation`](crate::conn::ConnLocation)): posts ring no doorbell, as the second command serves everything that was posted, and
//! control calls wait for it.

use super::{Core, Driver, Shard, Slot};
use crate::conn::{Conn, ConnLocation};
use crate::cq::Cq;
use crate::driver::Services;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use uiw_llp::Token;

/// Number of contended polls of a thread after which its queue's connections move, for each time that the queue's thread has changed.
const MOVE_AFTER: u32 = 64;

/// The thread that polls a completion queue, and its contended polls: those that found that another thread polls the same shard.
#[derive(Default)]
pub(crate) struct PollContention {
    thread: AtomicUsize,
    /// Number of times that another thread polled than before. Threads that share a queue raise it soon to where nothing moves.
    changes: AtomicU32,
    /// Number of contended polls since the thread changed, or since the queue got a connection.
    polls: AtomicU32,
}

impl PollContention {
    /// Notes a poll of the calling thread that found nothing. Returns whether the connections are to be moved: once, as those that are
    /// still elsewhere afterwards cannot move.
    #[inline]
    pub(crate) fn note(&self, contended: bool) -> bool {
        let thread = thread();
        // Not read-modify-write instructions: a poll more or less changes nothing.
        if self.thread.load(Ordering::Relaxed) != thread {
            self.thread.store(thread, Ordering::Relaxed);
            self.changes.store(self.changes.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
            self.reset();
        }
        contended && self.count()
    }

    #[cold]
    fn count(&self) -> bool {
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        polls == MOVE_AFTER.saturating_mul(self.changes.load(Ordering::Relaxed))
    }

    /// The queue has got a connection.
    pub(crate) fn reset(&self) {
        self.polls.store(0, Ordering::Relaxed);
    }
}

/// Returns the number of the calling thread, which no other thread ever has, and which is not 0.
#[inline]
pub(super) fn thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    thread_local!(static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed));
    // A thread that ends may poll once more.
    OWN.try_with(|own| *own).unwrap_or(usize::MAX)
}

impl Driver {
    /// Moves the connections whose receives complete in `cq` to the home shard of the calling thread.
    #[cold]
    pub(crate) fn gather(&self, cq: &Cq) {
        let to = self.shard_at(self.affinity.home());
        let num = cq.num();
        for from in self.shards.iter().filter(|from| from.index() != to.index()) {
            let is_movable = move |conn: &Conn| {
                conn.may_move() && conn.qp.as_ref().is_some_and(|qp| qp.recv_cq.num() == num)
            };
            for token in from.call(move |core| core.conns(is_movable)) {
                move_conn(from, to, token);
            }
        }
    }

    /// Runs `command` with the core of the connection at `location` and its token. Returns the command if there is no connection.
    pub(crate) fn call_at<R, C>(&self, location: &Arc<ConnLocation>, mut command: C) -> Result<R, C>
    where
        R: Send + 'static,
        C: FnOnce(&mut Core, Token) -> R + Send + 'static,
    {
        while let Some(token) = location.settled() {
            let place = Arc::clone(location);
            let called = self.shard(token).call(move |core| {
                if place.has_left(token) { Err(command) } else { Ok(command(core, token)) }
            });
            match called {
                Ok(result) => return Ok(result),
                Err(unused) => command = unused,
            }
        }
        Err(command)
    }

    /// Runs `serve` on the connection at `location`; `None` if there is none.
    pub(crate) fn with_conn_at<R: Send + 'static>(
        &self,
        location: &Arc<ConnLocation>,
        serve: impl FnOnce(&mut Conn, &mut Services) -> R + Send + 'static,
    ) -> Option<R> {
        self.call_at(location, |core, token| core.with_conn(token, serve)).ok().flatten()
    }
}

/// Moves an established connection, if it may move at the moment.
fn move_conn(from: &Arc<Shard>, to: &Arc<Shard>, token: Token) {
    // Without its background thread the shard cannot serve a connection.
    if to.start().is_err() {
        return;
    }
    if let Some(conn) = from.call(move |core| core.take_established(token)) {
        to.call(move |core| core.adopt_established(conn));
    }
}

impl Core {
    /// Takes an established connection out of this shard, for [`Core::adopt_established`] of another one.
    fn take_established(&mut self, token: Token) -> Option<Box<Conn>> {
        let left =
            |conn: &mut Conn, services: &mut Services| conn.may_move() && conn.leave_shard(services).is_ok();
        if !self.with_conn(token, left)? {
            return None;
        }
        match self.remove(token)? {
            Slot::Conn(mut conn) => {
                conn.begin_move();
                Some(conn)
            }
            _ => None,
        }
    }

    /// Takes over an established connection of another shard, and serves what was posted and has arrived meanwhile. If the stack
    /// refuses the socket, the connection is lost.
    fn adopt_established(&mut self, mut conn: Box<Conn>) {
        let token = self.next_token();
        let entered = self.stack.adopt(&mut conn.socket, token);
        conn.end_move(token, &self.services);
        self.fill(token, Slot::Conn(conn));
        self.add_established(token);
        self.read_clock();
        self.with_conn(token, |conn, services| match entered {
            Ok(()) => conn.on_moved(services),
            Err(error) => conn.on_lost(&error, services),
        });
    }
}
