//! RDMA_CM_EVENT_TIMEWAIT_EXIT. On InfiniBand and RoCE this event reports that late packets cannot
//! reach the queue pair of a closed connection any more.
//!
//! TCP itself discards late packets, so nothing in this library depends on the event. Some programs
//! do: they use or free a queue pair only after it. A thread exists only while events are due, and
//! sleeps until the next one.

use crate::id::{Id, LocalEvent};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};
use uiw_cabi_core::abi::cm::RDMA_CM_EVENT_TIMEWAIT_EXIT;
use uiw_cabi_core::denied;
use uiw_cabi_core::fork::{ForkSafe, ForkState};
use uiw_verbs::integration::spawn_thread;

/// Time between the end of the connection and this event. RDMA adapters compute it from the
/// acknowledgement time-out of the path.
const TIMEWAIT: Duration = Duration::from_millis(500);

/// Closed connections whose event is due, and whether a thread waits for them.
struct TimewaitQueue {
    /// Due events with their times, the earliest first, because the delay is the same for all.
    due: VecDeque<(Instant, Weak<Id>)>,
    has_thread: bool,
}

impl ForkState for TimewaitQueue {
    const NEW: Self = Self { due: VecDeque::new(), has_thread: false };

    /// The thread and the ids belong to the parent.
    fn in_child(&mut self) {
        std::mem::forget(std::mem::replace(self, Self::NEW));
    }
}

static TIMEWAIT_IDS: ForkSafe<TimewaitQueue> = ForkSafe::new();

/// Schedules the event, after the program got the event for the end of `id`'s connection.
pub(crate) fn begin(id: &Arc<Id>) {
    let needs_thread = {
        let mut timewait = TIMEWAIT_IDS.write();
        timewait.due.push_back((Instant::now() + TIMEWAIT, Arc::downgrade(id)));
        !std::mem::replace(&mut timewait.has_thread, true)
    };
    if !needs_thread {
        return;
    }
    if let Err(error) = spawn_thread("uiw-timewait", run) {
        tracing::warn!(%error, "no thread can be started: RDMA_CM_EVENT_TIMEWAIT_EXIT does not come");
        denied::report("starting the thread of RDMA_CM_EVENT_TIMEWAIT_EXIT", &error);
        *TIMEWAIT_IDS.write() = TimewaitQueue::NEW;
    }
}

fn run() {
    while let Some((at, id)) = next() {
        thread::sleep(at.saturating_duration_since(Instant::now()));
        // An id that is being destroyed has no more events.
        if let Some(id) = id.upgrade() {
            let _ = id.post(LocalEvent::new(RDMA_CM_EVENT_TIMEWAIT_EXIT, 0));
        }
    }
}

/// Returns the next due event. If there is none, the thread ends.
fn next() -> Option<(Instant, Weak<Id>)> {
    let mut timewait = TIMEWAIT_IDS.write();
    let next = timewait.due.pop_front();
    timewait.has_thread = next.is_some();
    next
}
