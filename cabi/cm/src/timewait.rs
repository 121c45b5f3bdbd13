//! RDMA_CM_EVENT_TIMEWAIT_EXIT: on InfiniBand and RoCE the event says that late packets cannot
//! reach the queue pair of a closed connection any more.
//!
//! TCP keeps late packets away by itself, so nothing in this library depends on the event. Programs
//! do: some use or free a queue pair only after it. A thread exists while events are due, and
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

/// Time between the two events. Adapters compute it from the acknowledgement time-out of the path.
const TIMEWAIT: Duration = Duration::from_millis(500);

/// Closed connections whose event is due, and whether a thread waits for them.
struct TimewaitQueue {
    /// The earliest first: all of them wait for the same time.
    due: VecDeque<(Instant, Weak<Id>)>,
    has_thread: bool,
}

impl ForkState for TimewaitQueue {
    const NEW: Self = Self { due: VecDeque::new(), has_thread: false };

    /// The thread and the ids are the parent's.
    fn in_child(&mut self) {
        std::mem::forget(std::mem::replace(self, Self::NEW));
    }
}

static TIMEWAIT_IDS: ForkSafe<TimewaitQueue> = ForkSafe::new();

/// The program has the event of the end of `id`'s connection.
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
        // One that is destroyed, or about to be, has no more events.
        if let Some(id) = id.upgrade() {
            let _ =
                id.post(LocalEvent { event: RDMA_CM_EVENT_TIMEWAIT_EXIT, status: 0, arg: 0, group: None });
        }
    }
}

/// The next event that is due. With none left the thread ends.
fn next() -> Option<(Instant, Weak<Id>)> {
    let mut timewait = TIMEWAIT_IDS.write();
    let next = timewait.due.pop_front();
    timewait.has_thread = next.is_some();
    next
}
