//! Ends idle connections, so that silent peers do not use up the connections of others.

use crate::shared::qp_setup::Link;
use crate::shared::stop::StopFlag;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use uiw::counters::{ConnectionCounters, Directions};
use uiw::raw::{Device, Qp, QpState};
use uiw_datagram::Qpn;

/// Maximum time between two reads of the counters.
const TICK: Duration = Duration::from_secs(15);

/// Monitor that closes connections without traffic. They are stored by the numbers of their queue
/// pairs.
pub(super) struct IdleMonitor {
    limit: Duration,
    watched: Mutex<HashMap<u32, WatchedConnection>>,
}

struct WatchedConnection {
    qp: Weak<Qp>,
    peer: SocketAddr,
    /// Sum of messages and bytes at the last read of the counters.
    moved: u64,
    /// Time since which the sum has not changed.
    since: Instant,
}

impl IdleMonitor {
    /// Creates a monitor that closes a connection when the counters show that it has been idle for
    /// `limit`.
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, watched: Mutex::default() }
    }

    /// Returns the time for which connections may be idle.
    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    pub(super) fn watch(&self, link: &Link) {
        let watched = WatchedConnection {
            qp: Arc::downgrade(&link.qp),
            peer: link.peer(),
            moved: 0,
            since: Instant::now(),
        };
        self.lock().insert(link.qp.num(), watched);
    }

    /// Reads the counters periodically and closes idle connections, until `stop`.
    pub(super) fn run(&self, device: &Device, stop: &StopFlag) {
        while !stop.sleep_for((self.limit / 4).min(TICK)) {
            for (peer, qp) in self.take_idle(&device.counters().connections, Instant::now()) {
                tracing::warn!(%peer, qp = %Qpn::from_raw(qp.num()), seconds = self.limit.as_secs(), "idle connection closed");
                // In the error state all requests of the queue pair complete, which ends the
                // session.
                let _ = qp.modify(QpState::Err);
            }
        }
    }

    /// Removes and returns the connections that have been idle for too long.
    fn take_idle(
        &self,
        connections: &[ConnectionCounters],
        now: Instant,
    ) -> Vec<(SocketAddr, Arc<Qp>)> {
        let mut idle = Vec::new();
        let moved: HashMap<u32, u64> =
            connections.iter().map(|conn| (conn.qp_num, moved(conn))).collect();
        self.lock().retain(|number, watched| {
            let Some(qp) = watched.qp.upgrade() else { return false };
            // A connection without its own counters never counts as idle.
            if moved
                .get(number)
                .is_none_or(|moved| std::mem::replace(&mut watched.moved, *moved) != *moved)
            {
                watched.since = now;
            }
            let is_idle = now.saturating_duration_since(watched.since) >= self.limit;
            if is_idle {
                idle.push((watched.peer, qp));
            }
            !is_idle
        });
        idle
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u32, WatchedConnection>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the sum of messages and bytes of a connection, over all operations and both directions.
fn moved(conn: &ConnectionCounters) -> u64 {
    let both = |Directions { sent, received }: Directions| {
        [sent.messages, sent.bytes, received.messages, received.bytes]
            .into_iter()
            .fold(0, u64::wrapping_add)
    };
    conn.traffic
        .named()
        .into_iter()
        .fold(0, |sum, (_, directions)| sum.wrapping_add(both(directions)))
}
