//! Atomics and locks of the progress engine.
//!
//! `verbs/models` compiles the engine's files (this folder's `handoff`, `park`, `epoll_waiter`,
//! `progress`) under `cfg(loom)` or `cfg(shuttle)`, with modules of its own in place
//! of this one and of `os`.

pub(super) use parking_lot::{Mutex, MutexGuard};
pub(super) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
pub(super) use std::thread::yield_now;

/// A lock that the data path only tries to take.
pub(super) type TryMutex<T> = Mutex<T>;
/// A [`TryMutex`], held.
pub(super) type TryMutexGuard<'a, T> = MutexGuard<'a, T>;

/// Defines a value of each thread.
macro_rules! per_thread {
    ($name:ident: $type:ty = $init:expr) => {
        thread_local! {
            static $name: $type = const { $init };
        }
    };
}
pub(super) use per_thread;
