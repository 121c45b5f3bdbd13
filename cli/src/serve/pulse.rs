//! Signs of life of the server of `uiw cp`: while it works on a request of a connection, or the
//! bytes of one arrive, it says so at least every second. So a client tells a long operation, such
//! as fsync(2) of a large file, from a server that is stuck.

use crate::shared::qp_setup::{Link, post};
use crate::shared::stop::Stop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use uiw::raw::{Qp, STag, SendFlags, SendOp, Sge};
use uiw_copy::protocol::Reply;

/// Between two looks. A request that lasts for two of them is reported, so within a second.
const TICK: Duration = Duration::from_millis(450);
/// The number of the message, for which there is no completion.
const WORKING: u64 = 1 << 33;

/// The connections whose clients ask for signs of life.
#[derive(Debug, Default)]
pub(super) struct Pulse(Mutex<Vec<WatchedSession>>);

#[derive(Debug)]
struct WatchedSession {
    qp: Weak<Qp>,
    activity: Arc<Activity>,
    /// The request that was worked on at the last look.
    request: u64,
    /// Bytes that had come until the last look.
    received: Option<u64>,
}

/// Activity of a connection's thread.
#[derive(Debug, Default)]
pub(super) struct Activity {
    /// The number of the request that is worked on, 0 if there is none.
    now: AtomicU64,
    requests: AtomicU64,
}

impl Activity {
    /// Work on a request begins. It ends when the result is dropped.
    pub(super) fn begin(&self) -> Working<'_> {
        let number = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        self.now.store(number, Ordering::Relaxed);
        Working(self)
    }
}

/// Work on one request.
#[derive(Debug)]
pub(super) struct Working<'a>(&'a Activity);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.now.store(0, Ordering::Relaxed);
    }
}

impl Pulse {
    fn watched(&self) -> MutexGuard<'_, Vec<WatchedSession>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a connection from now on.
    pub(super) fn watch(&self, link: &Link, activity: &Arc<Activity>) {
        let (qp, activity) = (Arc::downgrade(&link.qp), Arc::clone(activity));
        self.watched().push(WatchedSession { qp, activity, request: 0, received: None });
    }

    /// Sends signs of life until `stop`.
    pub(super) fn run(&self, stop: &Stop) {
        while !stop.sleep_for(TICK) {
            // Without the lock: whoever begins a connection does not wait for others.
            let mut all = std::mem::take(&mut *self.watched());
            all.retain_mut(WatchedSession::look);
            self.watched().append(&mut all);
        }
    }
}

impl WatchedSession {
    /// False: the connection is gone.
    fn look(&mut self) -> bool {
        let Some(qp) = self.qp.upgrade() else { return false };
        let request = self.activity.now.load(Ordering::Relaxed);
        let is_long = request != 0 && std::mem::replace(&mut self.request, request) == request;
        let received = if is_long { None } else { qp.path().and_then(|path| path.stream.bytes_received) };
        let arrives = received.is_some() && std::mem::replace(&mut self.received, received) != received;
        if is_long || arrives {
            say(&qp);
        }
        true
    }
}

/// Sends the message. Where there is no room for it, the client has not taken earlier ones.
fn say(qp: &Qp) {
    let message = Reply::Working.encode(0);
    let sge = Sge { addr: message.as_ptr() as u64, length: message.len() as u32, lkey: STag(0) };
    let _ = post(qp, WORKING, SendOp::Send, &[sge], SendFlags::INLINE);
}
