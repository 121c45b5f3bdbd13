//! Thread that accepts connections and waits until closed connections have ended, independently of
//! the program. It runs small tasks, which events of the connection manager wake. The first task
//! starts the thread.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::fork::{ForkSafe, ForkState};
use uiw_verbs::integration::spawn_thread;

type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Queue in which the thread sleeps most of the time. Its lock keeps no list of waiting threads:
/// see `lock.rs`.
#[derive(Default)]
struct TaskQueue {
    state: Mutex<TaskState>,
    any: Condvar,
}

#[derive(Default)]
struct TaskState {
    woken: VecDeque<Arc<ServiceTask>>,
    /// Timers by their time and a unique number.
    timers: BTreeMap<(Instant, u64), Waker>,
    next_timer: u64,
}

impl TaskQueue {
    fn lock(&self) -> MutexGuard<'_, TaskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next task. Due timers wake their tasks first.
    fn next(&self) -> Arc<ServiceTask> {
        let mut state = self.lock();
        loop {
            let first = state.timers.first_entry();
            let left =
                first.as_ref().map(|timer| timer.key().0.saturating_duration_since(Instant::now()));
            if let (Some(timer), Some(Duration::ZERO)) = (first, left) {
                let waker = timer.remove();
                // Waking takes the lock.
                drop(state);
                waker.wake();
                state = self.lock();
                continue;
            }
            if let Some(task) = state.woken.pop_front() {
                return task;
            }
            state = match left {
                None => self.any.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) => {
                    self.any.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// Future that is ready after some time, for tasks of the service.
pub(crate) struct Timer {
    key: (Instant, u64),
    queue: Arc<TaskQueue>,
}

impl Timer {
    /// Creates a timer.
    ///
    /// # Errors
    /// EAGAIN if the thread cannot be started.
    pub(crate) fn after(time: Duration) -> Result<Self> {
        let queue = queue()?;
        let number = {
            let mut state = queue.lock();
            state.next_timer += 1;
            state.next_timer
        };
        // The limit ensures that an `Instant` can represent the sum. No caller needs a longer time.
        let at = Instant::now() + time.min(Duration::from_secs(1 << 31));
        Ok(Self { key: (at, number), queue })
    }
}

impl Future for Timer {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.key.0 {
            return Poll::Ready(());
        }
        // No notification is needed, because the thread checks its timers after it has polled this
        // task.
        self.queue.lock().timers.insert(self.key, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        let timer = self.queue.lock().timers.remove(&self.key);
        drop(timer);
    }
}

/// Task of the service. Its job is `None` after it has ended.
struct ServiceTask {
    job: uiw_cabi_core::lock::Mutex<Option<Job>>,
    queue: Arc<TaskQueue>,
}

impl Wake for ServiceTask {
    fn wake(self: Arc<Self>) {
        let queue = Arc::clone(&self.queue);
        queue.lock().woken.push_back(self);
        queue.any.notify_one();
    }
}

struct TaskService(Option<Arc<TaskQueue>>);

impl ForkState for TaskService {
    const NEW: Self = Self(None);

    fn in_child(&mut self) {
        // The thread, and other threads that may hold locks, exist only in the parent.
        std::mem::forget(self.0.take());
        CLOSING.store(0, Ordering::Relaxed);
    }
}

static SERVICE: ForkSafe<TaskService> = ForkSafe::new();

/// Number of connections that are being closed.
static CLOSING: AtomicUsize = AtomicUsize::new(0);

/// Counter for [`acknowledgement_count`].
static ACKNOWLEDGEMENTS: AtomicUsize = AtomicUsize::new(0);

/// Returns a counter that changes while peers of closed connections acknowledge data.
pub(crate) fn acknowledgement_count() -> usize {
    ACKNOWLEDGEMENTS.load(Ordering::Acquire)
}

/// Records that the peer of a closed connection has acknowledged data.
pub(crate) fn note_acknowledgement() {
    ACKNOWLEDGEMENTS.fetch_add(1, Ordering::AcqRel);
}

/// Token that counts a connection which is being closed, until it is dropped.
pub(crate) struct ClosingToken(u32);

impl ClosingToken {
    pub(crate) fn new() -> Self {
        CLOSING.fetch_add(1, Ordering::AcqRel);
        Self(uiw_cabi_core::fork::generation())
    }
}

impl Drop for ClosingToken {
    fn drop(&mut self) {
        // After a fork the count begins at 0 again.
        if self.0 == uiw_cabi_core::fork::generation() {
            CLOSING.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Returns whether connections are being closed.
pub(crate) fn is_closing() -> bool {
    CLOSING.load(Ordering::Acquire) > 0
}

/// Runs `job` on the service's thread.
///
/// # Errors
/// EAGAIN if the thread cannot be started.
pub(crate) fn spawn(job: impl Future<Output = ()> + Send + 'static) -> Result<()> {
    let queue = queue()?;
    let task =
        Arc::new(ServiceTask { job: uiw_cabi_core::lock::Mutex::new(Some(Box::pin(job))), queue });
    task.wake();
    Ok(())
}

/// Starts the thread, after which [`spawn`] does not fail.
///
/// # Errors
/// EAGAIN if the thread cannot be started.
pub(crate) fn start() -> Result<()> {
    queue().map(drop)
}

fn queue() -> Result<Arc<TaskQueue>> {
    if let Some(queue) = &SERVICE.read().0 {
        return Ok(Arc::clone(queue));
    }
    let mut service = SERVICE.write();
    if let Some(queue) = &service.0 {
        return Ok(Arc::clone(queue));
    }
    let queue = Arc::<TaskQueue>::default();
    let own = Arc::clone(&queue);
    spawn_thread("uiw-rsockets", move || run(&own))?;
    service.0 = Some(Arc::clone(&queue));
    Ok(queue)
}

fn run(queue: &TaskQueue) {
    loop {
        let task = queue.next();
        let waker = Waker::from(Arc::clone(&task));
        let mut job = task.job.lock();
        let ended = job
            .as_mut()
            .is_none_or(|job| job.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
        let done = if ended { job.take() } else { None };
        drop(job);
        drop(done);
    }
}
