//! Ends connections on which nothing moves, so that silent peers do not keep the places of others.

use crate::shared::qp_setup::Link;
use crate::shared::stop::Stop;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use uiw::counters::{ConnectionCounters, Directions};
use uiw::raw::{Device, Qp, QpState};
use uiw_datagram::Qpn;

/// The longest time between reads of the counters.
const TICK: Duration = Duration::from_secs(15);

/// The connections that are watched, by the numbers of their queue pairs.
pub(super) struct Idle {
    limit: Duration,
    watched: Mutex<HashMap<u32, WatchedConnection>>,
}

struct WatchedConnection {
    qp: Weak<Qp>,
    peer: SocketAddr,
    /// Messages and bytes so far, and since when there have been as many.
    moved: u64,
    since: Instant,
}

impl Idle {
    /// Connections may be idle for `limit`, and for the time until the counters are read again.
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, watched: Mutex::default() }
    }

    /// For how long connections may be idle.
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

    /// Reads the counters now and then, until `stop`.
    pub(super) fn run(&self, device: &Device, stop: &Stop) {
        while !stop.sleep_for((self.limit / 4).min(TICK)) {
            for (peer, qp) in self.look(&device.counters().connections, Instant::now()) {
                tracing::warn!(%peer, qp = %Qpn::from_raw(qp.num()), seconds = self.limit.as_secs(), "idle connection closed");
                // In error its requests complete, which ends the session.
                let _ = qp.modify(QpState::Err);
            }
        }
    }

    /// The connections that are idle for too long. They are not watched any more.
    fn look(&self, connections: &[ConnectionCounters], now: Instant) -> Vec<(SocketAddr, Arc<Qp>)> {
        let mut idle = Vec::new();
        let moved: HashMap<u32, u64> = connections.iter().map(|conn| (conn.qp_num, moved(conn))).collect();
        self.lock().retain(|number, watched| {
            let Some(qp) = watched.qp.upgrade() else { return false };
            // Without counters of its own there is nothing to judge it by.
            if moved.get(number).is_none_or(|moved| std::mem::replace(&mut watched.moved, *moved) != *moved) {
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

/// Messages and bytes of a connection, of all operations in both directions.
fn moved(conn: &ConnectionCounters) -> u64 {
    let both = |Directions { sent, received }: Directions| {
        [sent.messages, sent.bytes, received.messages, received.bytes].into_iter().fold(0, u64::wrapping_add)
    };
    conn.traffic.named().into_iter().fold(0, |sum, (_, directions)| sum.wrapping_add(both(directions)))
}
