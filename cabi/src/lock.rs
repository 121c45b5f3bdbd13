//! Locks whose waiting threads are in no list but the kernel's.
//!
//! parking_lot keeps a list of all sleeping threads of the process. A fork copies it, and in the child it names threads that are not there, in
//! memory that other threads get: a thread of the child that has to wait would write there. These locks are for what is used while a
//! process forks. They are held for a look-up or a change, so fairness is nothing that they need.

use parking_lot::lock_api::{self, GuardNoSend};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

/// As parking_lot's.
pub(crate) type Mutex<T> = lock_api::Mutex<Exclusive, T>;
/// As parking_lot's.
pub(crate) type MutexGuard<'a, T> = lock_api::MutexGuard<'a, Exclusive, T>;
/// As parking_lot's.
pub(crate) type RwLock<T> = lock_api::RwLock<Shared, T>;
/// As parking_lot's.
pub(crate) type RwLockReadGuard<'a, T> = lock_api::RwLockReadGuard<'a, Shared, T>;
/// As parking_lot's.
pub(crate) type RwLockWriteGuard<'a, T> = lock_api::RwLockWriteGuard<'a, Shared, T>;

/// A thread has it for itself.
const WRITER: u32 = 1 << 31;
/// A thread waits to have it for itself: no reader begins.
const WANTED: u32 = 1 << 30;
/// Attempts before a thread sleeps: locks are held for less than a switch of threads takes.
const ATTEMPTS: u32 = 100;

/// The lock of readers and writers.
pub(crate) struct Shared {
    /// [`WRITER`], [`WANTED`] and the number of readers.
    state: AtomicU32,
    /// Threads that sleep, or are about to. A fork copies it: the child makes a system call more for it.
    sleepers: AtomicU32,
}

impl Shared {
    /// Sleeps while the state is `seen`.
    #[cold]
    fn sleep(&self, seen: u32) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        // SAFETY: a word of this process, which the kernel compares before the thread sleeps.
        unsafe {
            let (call, for_ever) =
                (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, ptr::null::<libc::timespec>());
            libc::syscall(libc::SYS_futex, self.state.as_ptr(), call, seen, for_ever);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Called behind a change of the state that another thread may wait for. A thread that has counted itself since has seen the change,
    /// or the kernel has.
    fn wake(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // SAFETY: as above.
            unsafe {
                let call = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
                libc::syscall(libc::SYS_futex, self.state.as_ptr(), call, i32::MAX);
            }
        }
    }

    #[cold]
    fn wait_shared(&self) {
        let mut attempts = 0;
        while !lock_api::RawRwLock::try_lock_shared(self) {
            let seen = self.state.load(Ordering::Relaxed);
            if seen & (WRITER | WANTED) == 0 {
                continue;
            }
            attempts += 1;
            if attempts < ATTEMPTS { std::hint::spin_loop() } else { self.sleep(seen) }
        }
    }

    #[cold]
    fn wait_exclusive(&self) {
        let mut attempts = 0;
        loop {
            let seen = self.state.load(Ordering::Relaxed);
            if seen & !WANTED == 0 {
                if self.state.compare_exchange(seen, WRITER, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                    return;
                }
                continue;
            }
            attempts += 1;
            if attempts < ATTEMPTS {
                std::hint::spin_loop();
            } else if seen & WANTED == 0 {
                let _ = self.state.compare_exchange(seen, seen | WANTED, Ordering::SeqCst, Ordering::Relaxed);
            } else {
                self.sleep(seen);
            }
        }
    }
}

// SAFETY: exclusive is the one thread that has changed a state without readers and writer to WRITER, until it stores 0; shared are those
// that have added themselves to a state without WRITER, until they take themselves away.
unsafe impl lock_api::RawRwLock for Shared {
    const INIT: Self = Self { state: AtomicU32::new(0), sleepers: AtomicU32::new(0) };

    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock_shared(&self) {
        if !self.try_lock_shared() {
            self.wait_shared();
        }
    }

    #[inline]
    fn try_lock_shared(&self) -> bool {
        let seen = self.state.load(Ordering::Relaxed);
        seen & (WRITER | WANTED) == 0
            && self.state.compare_exchange(seen, seen + 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline]
    unsafe fn unlock_shared(&self) {
        // The last reader leaves a writer that waits.
        if self.state.fetch_sub(1, Ordering::SeqCst) & !WANTED == 1 {
            self.wake();
        }
    }

    #[inline]
    fn lock_exclusive(&self) {
        if !self.try_lock_exclusive() {
            self.wait_exclusive();
        }
    }

    #[inline]
    fn try_lock_exclusive(&self) -> bool {
        self.state.compare_exchange(0, WRITER, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    #[inline]
    unsafe fn unlock_exclusive(&self) {
        self.state.store(0, Ordering::SeqCst);
        self.wake();
    }

    fn is_locked(&self) -> bool {
        self.state.load(Ordering::Relaxed) & !WANTED != 0
    }

    fn is_locked_exclusive(&self) -> bool {
        self.state.load(Ordering::Relaxed) & WRITER != 0
    }
}

/// The lock of one thread.
pub(crate) struct Exclusive(Shared);

// SAFETY: the exclusive half of the lock above.
unsafe impl lock_api::RawMutex for Exclusive {
    const INIT: Self = Self(<Shared as lock_api::RawRwLock>::INIT);

    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        lock_api::RawRwLock::lock_exclusive(&self.0);
    }

    #[inline]
    fn try_lock(&self) -> bool {
        lock_api::RawRwLock::try_lock_exclusive(&self.0)
    }

    #[inline]
    unsafe fn unlock(&self) {
        // SAFETY: the caller's promise.
        unsafe { lock_api::RawRwLock::unlock_exclusive(&self.0) };
    }

    fn is_locked(&self) -> bool {
        lock_api::RawRwLock::is_locked(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    #[test]
    fn one_thread_at_a_time_changes_and_none_reads_meanwhile() {
        let (lock, within) = (RwLock::new((0u64, 0u64)), AtomicUsize::new(0));
        thread::scope(|scope| {
            for writes in [true, true, true, false, false] {
                let (lock, within) = (&lock, &within);
                scope.spawn(move || {
                    for round in 0..20_000 {
                        if writes {
                            let mut pair = lock.write();
                            assert_eq!(within.fetch_add(1, Ordering::Relaxed), 0);
                            pair.0 += 1;
                            if round % 64 == 0 {
                                // Others have time to sleep.
                                thread::yield_now();
                            }
                            pair.1 += 1;
                            within.fetch_sub(1, Ordering::Relaxed);
                        } else {
                            let pair = lock.read();
                            assert_eq!((pair.0, within.load(Ordering::Relaxed)), (pair.1, 0));
                        }
                    }
                });
            }
        });
        assert_eq!(lock.into_inner(), (60_000, 60_000));
    }

    #[test]
    fn readers_share_and_a_writer_waits_for_all_of_them() {
        let lock = RwLock::new(0);
        let (one, two) = (lock.read(), lock.read());
        assert!(lock.try_write().is_none());
        thread::scope(|scope| {
            let writer = scope.spawn(|| *lock.write() = 7);
            // A reader that comes later waits for the writer: it is woken in its turn.
            while lock.try_read().is_some() {
                thread::yield_now();
            }
            let reader = scope.spawn(|| *lock.read());
            drop((one, two));
            writer.join().unwrap();
            assert_eq!(reader.join().unwrap(), 7);
        });
    }

    #[test]
    fn a_mutex_counts() {
        let count = Mutex::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50_000).for_each(|_| *count.lock() += 1));
            }
        });
        assert_eq!(*count.lock(), 200_000);
        let _held = count.lock();
        assert!(count.try_lock().is_none());
    }
}
