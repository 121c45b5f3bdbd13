//! Forks: which generation of the process this is, and state of a subsystem that a fork copies
//! consistently.
//!
//! Threads do not survive a fork, and a lock of the engine may be held by one of them at that
//! moment. The child therefore drops its reference to the engine without touching it, and
//! everything made before is inert: calls on it return EIO, destroying it only frees the memory. A
//! new generation begins; the child opens an engine of its own when it opens a device.
//!
//! Each subsystem (engine, devices, objects, connection manager, out-of-band connections) has a
//! static [`ForkSafe`] of its own. Its locks are held while the process is copied, so that the
//! child never finds one in the hands of a thread that it lacks. Invariant: a thread that holds one
//! of these locks takes no other of them, so the order in which a fork takes them is free.
//!
//! A value that is made once in a process is in a cell of `once_cell::race`, where no thread waits
//! for another one: a child would wait for ever for the thread of its parent that was making the
//! value of a `std::sync::OnceLock`. Such cells of other libraries get their values while the
//! engine is opened, under a lock for which a fork waits.

use crate::lock::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(1);

/// Counts the forks between the first process and this one, from 1.
#[inline]
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// State of a subsystem that survives forks.
pub trait ForkState: Send + Sync + 'static {
    /// The state of a process that has not used the subsystem.
    const NEW: Self;

    /// Called in the parent before it is copied.
    fn before_fork(&mut self) {}

    /// Called in the child. Locks inside of the state may be held by threads that the child does
    /// not have: what contains such locks is forgotten (`uiw_mem::forget`), not dropped.
    fn in_child(&mut self);
}

/// Static that holds the state of a subsystem, in `SHARDS` parts with one lock each. Several shards
/// are for look-ups that are made on every call: threads that use different objects then rarely
/// share a lock or its cache line.
pub struct ForkSafe<T: ForkState, const SHARDS: usize = 1> {
    shards: [LockShard<T>; SHARDS],
    registered: AtomicBool,
}

/// Two cache lines, which processors prefetch as a pair.
#[repr(align(128))]
struct LockShard<T>(RwLock<T>);

impl<T: ForkState, const SHARDS: usize> ForkSafe<T, SHARDS> {
    /// Creates the state of a process that has not used the subsystem.
    pub const fn new() -> Self {
        Self {
            shards: [const { LockShard(RwLock::new(T::NEW)) }; SHARDS],
            registered: AtomicBool::new(false),
        }
    }

    /// The part that `key` belongs to. Its lock is held for a look-up or a change, never during a
    /// call of the engine or a system call.
    pub fn shard(&'static self, key: u64) -> &'static RwLock<T> {
        self.register();
        // Multiplication by 2^64 divided by the golden ratio spreads addresses and counters alike.
        let hash = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        &self.shards[hash as usize % SHARDS].0
    }

    /// Visits every shard that no thread is changing at the moment. This is for the end of the
    /// process, where other threads may have been stopped while they held a lock.
    pub fn visit_unlocked(&'static self, mut visit: impl FnMut(&T)) {
        self.shards.iter().filter_map(|shard| shard.0.try_read()).for_each(|state| visit(&state));
    }

    /// Visits every shard, one after the other.
    pub fn visit_all(&'static self, mut visit: impl FnMut(&T)) {
        self.register();
        self.shards.iter().for_each(|shard| visit(&shard.0.read()));
    }

    /// Registers the value, which forks then copy consistently.
    fn register(&'static self) {
        if self.registered.load(Ordering::Acquire) {
            return;
        }
        let mut list = REGISTERED.lock();
        if self.registered.load(Ordering::Acquire) {
            return;
        }
        if list.is_empty() {
            // SAFETY: the handlers have no arguments, and live as long as the program: the library
            // is never unloaded, as its threads run in it.
            unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
        }
        list.push(self);
        self.registered.store(true, Ordering::Release);
    }
}

impl<T: ForkState, const SHARDS: usize> Default for ForkSafe<T, SHARDS> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: ForkState> ForkSafe<T> {
    /// Locks the state for reading.
    pub fn read(&'static self) -> RwLockReadGuard<'static, T> {
        self.shard(0).read()
    }

    /// Locks the state for reading, unless a thread is changing it.
    pub(crate) fn try_read(&'static self) -> Option<RwLockReadGuard<'static, T>> {
        self.shard(0).try_read()
    }

    /// Locks the state for a change.
    pub fn write(&'static self) -> RwLockWriteGuard<'static, T> {
        self.shard(0).write()
    }
}

/// A [`ForkSafe`], whatever its state.
trait ForkHooks: Sync {
    /// Calls the hook of each part, and keeps it locked.
    fn lock(&'static self) -> Box<dyn LockedState>;
}

/// The parts of a [`ForkSafe`], locked; dropped, they are unlocked.
trait LockedState {
    /// Resets the value in the child.
    fn in_child(&mut self);
}

impl<T: ForkState, const SHARDS: usize> ForkHooks for ForkSafe<T, SHARDS> {
    fn lock(&'static self) -> Box<dyn LockedState> {
        let lock = |shard: &'static LockShard<T>| {
            let mut state = shard.0.write();
            state.before_fork();
            state
        };
        Box::new(self.shards.iter().map(lock).collect::<Vec<_>>())
    }
}

impl<T: ForkState> LockedState for Vec<RwLockWriteGuard<'static, T>> {
    fn in_child(&mut self) {
        self.iter_mut().for_each(|state| state.in_child());
    }
}

/// Everything that has been used. Locked while the process is copied.
static REGISTERED: Mutex<Vec<&'static dyn ForkHooks>> = Mutex::new(Vec::new());

/// Locks of the forking thread, from before the fork until after it, in the parent and in the
/// child.
struct ForkLocks {
    states: Vec<Box<dyn LockedState>>,
    _list: MutexGuard<'static, Vec<&'static dyn ForkHooks>>,
}

thread_local! {
    static HELD: RefCell<Option<ForkLocks>> = const { RefCell::new(None) };
}

/// Returns the locks of this thread. `None` in a thread that ends: such a one has locked nothing.
fn take_held() -> Option<ForkLocks> {
    HELD.try_with(RefCell::take).ok().flatten()
}

extern "C" fn before_fork() {
    let _ = HELD.try_with(|held| {
        let list = REGISTERED.lock();
        let states = list.iter().map(|state| state.lock()).collect();
        *held.borrow_mut() = Some(ForkLocks { states, _list: list });
    });
}

extern "C" fn in_parent() {
    drop(take_held());
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    if let Some(mut held) = take_held() {
        held.states.iter_mut().for_each(|state| state.in_child());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct ForkNumbers(Vec<u32>);

    impl ForkState for ForkNumbers {
        const NEW: Self = Self(Vec::new());

        fn before_fork(&mut self) {
            self.0.push(7);
        }

        fn in_child(&mut self) {
            self.0.push(9);
        }
    }

    /// The hooks are called on a value that is not registered: a fork of the test process itself
    /// would copy other tests' threads.
    #[test]
    fn shards_locked_during_fork() {
        static STATE: ForkSafe<ForkNumbers, 4> = ForkSafe::new();
        let mut held = STATE.lock();
        assert!(STATE.shards.iter().all(|shard| shard.0.try_read().is_none()));
        held.in_child();
        drop(held);
        assert!(STATE.shards.iter().all(|shard| shard.0.read().0 == [7, 9]));
    }

    #[test]
    fn keys_spread_over_all_shards() {
        static STATE: ForkSafe<ForkNumbers, 64> = ForkSafe::new();
        let places = |step: u64| {
            let all: std::collections::BTreeSet<_> = (0..1024)
                .map(|n| std::ptr::from_ref(STATE.shard(0x7F00_0000_1000 + n * step)).addr())
                .collect();
            all.len()
        };
        // Counters, and addresses of objects of 16, 160 and 4096 bytes.
        for step in [1, 16, 160, 4096] {
            assert!(places(step) > 48, "step {step}: {}", places(step));
        }
    }
}
