//! Atomics and locks of loom or shuttle, with the interface of `verbs/src/driver/sync.rs`.

#[cfg(loom)]
use loom as model;
#[cfg(shuttle)]
use shuttle as model;

use model::sync::atomic;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

pub(super) use super::time::yield_now;
pub(super) use model::sync::{Condvar, MutexGuard};
pub(super) use model::thread;

/// Lock that threads wait for.
#[derive(Default)]
pub(super) struct Mutex<T>(model::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(super) fn new(value: T) -> Self {
        Self(model::sync::Mutex::new(value))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lock that the data path only tries to take: a flag that read-modify-write operations set and
/// clear. With loom's own lock, a thread that is about to try would wait until the holder unlocks,
/// so failed attempts would be missing from some schedules.
pub(super) struct TryMutex<T> {
    held: atomic::AtomicBool,
    /// Accessed only by the thread that has set `held`.
    value: std::sync::Mutex<T>,
}

pub(super) struct TryMutexGuard<'a, T> {
    held: &'a atomic::AtomicBool,
    value: Option<std::sync::MutexGuard<'a, T>>,
}

impl<T> TryMutex<T> {
    pub(super) fn new(value: T) -> Self {
        Self { held: atomic::AtomicBool::new(false), value: std::sync::Mutex::new(value) }
    }

    pub(super) fn try_lock(&self) -> Option<TryMutexGuard<'_, T>> {
        self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).ok()?;
        let value = self.value.try_lock().expect("only the thread that has set `held` takes it");
        Some(TryMutexGuard { held: &self.held, value: Some(value) })
    }

    pub(super) fn is_locked(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }

    pub(super) fn lock(&self) -> TryMutexGuard<'_, T> {
        loop {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            yield_now();
        }
    }
}

impl<T> std::ops::Deref for TryMutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("until drop")
    }
}

impl<T> std::ops::DerefMut for TryMutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("until drop")
    }
}

impl<T> Drop for TryMutexGuard<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        // Unlocking is a read-modify-write, as in parking_lot.
        self.held.swap(false, Ordering::Release);
        super::time::pass();
    }
}

/// Strengthens an access for loom, which treats a sequentially consistent access only as acquire or
/// release. With the fences, such a store is visible to each such load that follows, as on all
/// targets of the engine.
fn fence(order: Ordering) {
    if order == Ordering::SeqCst {
        atomic::fence(Ordering::SeqCst);
    }
}

macro_rules! atomic {
    ($name:ident, $type:ty) => {
        pub(super) struct $name(atomic::$name);

        impl $name {
            pub(super) fn new(value: $type) -> Self {
                Self(atomic::$name::new(value))
            }

            pub(super) fn load(&self, order: Ordering) -> $type {
                fence(order);
                self.0.load(order)
            }

            pub(super) fn store(&self, value: $type, order: Ordering) {
                self.0.store(value, order);
                fence(order);
            }

            pub(super) fn swap(&self, value: $type, order: Ordering) -> $type {
                fence(order);
                let before = self.0.swap(value, order);
                fence(order);
                before
            }
        }
    };
}

atomic!(AtomicBool, bool);
atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);

/// Defines a value for each thread of the model.
macro_rules! per_thread {
    ($name:ident: $type:ty = $init:expr) => {
        #[cfg(loom)]
        loom::thread_local! {
            static $name: $type = $init;
        }
        #[cfg(shuttle)]
        shuttle::thread_local! {
            static $name: $type = $init;
        }
    };
}
pub(super) use per_thread;
