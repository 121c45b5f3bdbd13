//! Tasks that wait for the same progress.

use parking_lot::Mutex;
use slab::Slab;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

/// Tasks that are woken together, because any of them may have dropped its future.
///
/// Lower layers know them by one waker, that of this type, and so keep no wakers of tasks that no
/// longer wait.
#[derive(Debug, Default)]
pub(crate) struct WaitingTasks(Mutex<Slab<Option<Waker>>>);

/// Key of a task in [`WaitingTasks`]; `None` until it is registered.
pub(crate) type TaskKey = Option<usize>;

impl WaitingTasks {
    /// Registers a task, in place of the one that was registered with `key` before.
    pub(crate) fn register(&self, key: &mut TaskKey, waker: &Waker) {
        let mut tasks = self.0.lock();
        let before = match key.and_then(|key| tasks.get_mut(key)) {
            Some(Some(known)) if known.will_wake(waker) => None,
            Some(known) => known.replace(waker.clone()),
            None => {
                *key = Some(tasks.insert(Some(waker.clone())));
                None
            }
        };
        // Dropping a waker may run user code, so the lock is released before.
        drop(tasks);
        drop(before);
    }

    /// Returns a future that calls `poll` until it is ready. The context of `poll` wakes all
    /// waiting tasks. The task of the future is one of them until the future is dropped.
    pub(crate) fn wait<T, F>(self: &Arc<Self>, poll: F) -> WaitFuture<'_, F>
    where
        F: FnMut(&mut Context<'_>) -> Poll<T>,
    {
        WaitFuture { tasks: self, waker: Waker::from(Arc::clone(self)), key: None, poll }
    }
}

impl Wake for WaitingTasks {
    fn wake(self: Arc<Self>) {
        let mut tasks = self.0.lock();
        let mut wakers = tasks.iter_mut().filter_map(|(_, waker)| waker.take());
        // Usually there is one, for which the list needs no allocation.
        let (first, others) = (wakers.next(), wakers.collect::<Vec<_>>());
        drop(tasks);
        first.into_iter().chain(others).for_each(Waker::wake);
    }
}

/// Future of [`WaitingTasks::wait`].
pub(crate) struct WaitFuture<'a, F> {
    tasks: &'a WaitingTasks,
    /// Waker of all `tasks`.
    waker: Waker,
    key: TaskKey,
    poll: F,
}

// `poll` is never pinned.
impl<F> Unpin for WaitFuture<'_, F> {}

impl<T, F: FnMut(&mut Context<'_>) -> Poll<T>> Future for WaitFuture<'_, F> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Self { tasks, waker, key, poll } = self.get_mut();
        // Registered before the poll, so that progress after it wakes the task.
        tasks.register(key, cx.waker());
        poll(&mut Context::from_waker(waker))
    }
}

impl<F> Drop for WaitFuture<'_, F> {
    fn drop(&mut self) {
        let waker = self.key.map(|key| self.tasks.0.lock().remove(key));
        // Dropping a waker may run user code, so the lock is released before.
        drop(waker);
    }
}

#[cfg(test)]
impl WaitingTasks {
    /// Returns the number of registered tasks.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }
}
