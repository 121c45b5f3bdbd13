//! Moves established connections to the shard of the thread that polls their completion queue.
//!
//! A connection is driven by the thread that polls its completion queue. If two threads poll queues
//! whose connections are on the same shard, each thread either finds the core locked by the other,
//! or serves the other's connections. A thread that notices this repeatedly moves the connections
//! whose receives complete in its queue to its home shard ([`affinity`](super::affinity)), so that
//! each thread drives a shard of its own. The connections of a queue that several threads poll are
//! not moved ([`PollContention`](super::PollContention)).
//!
//! A move consists of two commands: the first takes the connection out of its shard, the second
//! adds it to the other shard. Between them the connection has no token
//! ([`ConnLocation`]). Posts then ring no doorbell, because the second
//! command serves everything that was posted, and control calls wait until the second command has
//! run.

use super::{Core, Driver, Shard, Slot};
use crate::conn::Conn;
use crate::driver::Services;
use crate::qp::ConnLocation;
use std::sync::Arc;
use uiw_llp::Token;

impl Driver {
    /// Moves the connections whose receives complete in the queue of number `cq` to the home shard
    /// of the calling thread.
    #[cold]
    pub(crate) fn gather(&self, cq: u32) {
        let to = self.shard_at(self.affinity.home());
        for from in self.shards.iter().filter(|from| from.index() != to.index()) {
            let is_movable = move |conn: &Conn| {
                conn.may_move() && conn.qp.as_ref().is_some_and(|qp| qp.recv_cq.num() == cq)
            };
            for token in from.call(move |core| core.conns(is_movable)) {
                move_conn(from, to, token);
            }
        }
    }

    /// Runs `command` on the shard of the connection at `location`, and passes it the shard's core
    /// and the connection's token. Waits while the connection moves. Returns the command if there
    /// is no connection.
    pub(crate) fn call_at<R, C>(&self, location: &Arc<ConnLocation>, mut command: C) -> Result<R, C>
    where
        R: Send + 'static,
        C: FnOnce(&mut Core, Token) -> R + Send + 'static,
    {
        while let Some(token) = location.settled() {
            let location = Arc::clone(location);
            let called = self.shard(token).call(move |core| {
                if location.has_left(token) { Err(command) } else { Ok(command(core, token)) }
            });
            match called {
                Ok(result) => return Ok(result),
                Err(unused) => command = unused,
            }
        }
        Err(command)
    }

    /// Runs `serve` on the connection at `location`. Returns `None` if there is no connection.
    pub(crate) fn with_conn_at<R: Send + 'static>(
        &self,
        location: &Arc<ConnLocation>,
        serve: impl FnOnce(&mut Conn, &mut Services) -> R + Send + 'static,
    ) -> Option<R> {
        self.call_at(location, |core, token| core.with_conn(token, serve)).ok().flatten()
    }
}

/// Moves an established connection, if it can move at the moment.
fn move_conn(from: &Arc<Shard>, to: &Arc<Shard>, token: Token) {
    // A shard cannot serve a connection without its background thread.
    if to.start().is_err() {
        return;
    }
    if let Some(conn) = from.call(move |core| core.take_established(token)) {
        to.call(move |core| core.adopt_established(conn));
    }
}

impl Core {
    /// Takes an established connection out of this shard, for [`Core::adopt_established`] of
    /// another shard. Returns `None` if it cannot move.
    fn take_established(&mut self, token: Token) -> Option<Box<Conn>> {
        if !self.conn(token)?.may_move() {
            return None;
        }
        let mut conn = self.take_conn(token)?;
        conn.begin_move();
        Some(conn)
    }

    /// Takes over an established connection of another shard, and serves the requests posted and
    /// the bytes received meanwhile. If the stack refuses the socket, the connection is lost.
    fn adopt_established(&mut self, mut conn: Box<Conn>) {
        let token = self.next_token();
        let entered = self.stack.adopt(&mut conn.socket, token);
        conn.end_move(token, &self.services);
        self.fill_slot(token, Slot::Conn(conn));
        self.established.push(token);
        self.read_clock();
        self.with_conn(token, |conn, services| match entered {
            Ok(()) => conn.on_moved(services),
            Err(error) => conn.on_lost(&error, services),
        });
    }
}
