//! Heartbeats of the server of `uiw cp`. While the server works on a request, or receives the bytes
//! of one, it sends a heartbeat at least every second. Clients can thereby distinguish a long
//! operation, such as fsync(2) of a large file, from a server that is stuck.

use crate::shared::qp_setup::{Link, send_copy_with};
use crate::shared::stop::StopFlag;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use uiw::raw::{Qp, SendFlags};
use uiw_copy::protocol::Reply;

/// Time between two checks. A heartbeat is sent for a request that is under way at two successive
/// checks, which happens within a second.
const TICK: Duration = Duration::from_millis(450);
/// Request number of a heartbeat, which is not signaled.
const WORKING: u64 = 1 << 33;

/// Sender of heartbeats on the connections whose clients have asked for them.
#[derive(Debug, Default)]
pub(super) struct HeartbeatSender(Mutex<Vec<WatchedSession>>);

#[derive(Debug)]
struct WatchedSession {
    qp: Weak<Qp>,
    activity: Arc<Activity>,
    /// Number of the last request that was under way at a check, 0 if there was none.
    request: u64,
    /// Bytes received until the last check at which no long request was under way.
    received: Option<u64>,
}

/// Activity of a connection's thread.
#[derive(Debug, Default)]
pub(super) struct Activity {
    /// Number of the request under way, 0 if there is none.
    now: AtomicU64,
    requests: AtomicU64,
}

impl Activity {
    /// Begins work on a request, which ends when the guard is dropped.
    pub(super) fn begin(&self) -> RequestGuard<'_> {
        let number = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        self.now.store(number, Ordering::Relaxed);
        RequestGuard(self)
    }
}

/// Guard that marks a request as under way until it is dropped.
#[derive(Debug)]
pub(super) struct RequestGuard<'a>(&'a Activity);

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        self.0.now.store(0, Ordering::Relaxed);
    }
}

impl HeartbeatSender {
    fn watched(&self) -> MutexGuard<'_, Vec<WatchedSession>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection.
    pub(super) fn watch(&self, link: &Link, activity: &Arc<Activity>) {
        let (qp, activity) = (Arc::downgrade(&link.qp), Arc::clone(activity));
        self.watched().push(WatchedSession { qp, activity, request: 0, received: None });
    }

    /// Sends heartbeats until `stop`.
    pub(super) fn run(&self, stop: &StopFlag) {
        while !stop.sleep_for(TICK) {
            // Take the list out of the lock, so that a new connection does not have to wait.
            let mut all = std::mem::take(&mut *self.watched());
            all.retain_mut(WatchedSession::check_activity);
            self.watched().append(&mut all);
        }
    }
}

impl WatchedSession {
    /// Sends a heartbeat if the request that was under way at the last check still is, or if bytes
    /// have arrived. Returns false if the connection is gone.
    fn check_activity(&mut self) -> bool {
        let Some(qp) = self.qp.upgrade() else { return false };
        let request = self.activity.now.load(Ordering::Relaxed);
        let is_long = request != 0 && std::mem::replace(&mut self.request, request) == request;
        let received =
            if is_long { None } else { qp.path().and_then(|path| path.stream.bytes_received) };
        let arrives =
            received.is_some() && std::mem::replace(&mut self.received, received) != received;
        if is_long || arrives {
            send_heartbeat(&qp);
        }
        true
    }
}

/// Sends a heartbeat. If the queue has no room for it, the client has not taken earlier heartbeats,
/// so the error is ignored.
fn send_heartbeat(qp: &Qp) {
    let _ = send_copy_with(qp, WORKING, &Reply::Working.encode(0), SendFlags::empty());
}
