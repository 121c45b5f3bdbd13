//! Forks: the generation of this process, and the state of subsystems, which a fork copies
//! consistently.
//!
//! Threads do not survive a fork, and one of them may hold a lock of the engine at that moment. The
//! child therefore drops its reference to the engine without touching it, and all objects that were
//! created before the fork are inert: calls on them return EIO, and destroying them does nothing.
//! The child begins a new generation and opens its own engine when it opens a device.
//!
//! Each subsystem (engine, devices, objects, connection manager, out-of-band connections) has a
//! static [`ForkSafe`]. The locks of all of them are held while the process is copied, so that no
//! lock in the child is held by a thread that does not exist there. Invariant: a thread that holds
//! one of these locks never takes another one, so a fork may take them in any order.
//!
//! Values that are created once per process are in cells of `once_cell::race`, which never make a
//! thread wait for another one. With a `std::sync::OnceLock`, a child would wait forever for the
//! thread of its parent that was creating the value. Other libraries do use such blocking cells.
//! These are initialized while the engine is opened, under a lock for which a fork waits.

use crate::lock::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(1);

/// Returns the generation of this process: 1 for the first process, and one more for each fork.
#[inline]
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// State of a subsystem, with the actions that a fork requires.
pub trait ForkState: Send + Sync + 'static {
    /// The state of a process that has not used the subsystem.
    const NEW: Self;

    /// Called in the parent before it is copied.
    fn before_fork(&mut self) {}

    /// Called in the child. Locks inside the state may be held by threads that the child does not
    /// have, so values that contain such locks must be forgotten (`uiw_mem::forget`), not dropped.
    fn in_child(&mut self);
}

/// Static that holds the state of a subsystem, in `SHARDS` parts with one lock each. State that is
/// looked up on every call has several shards, so that threads that use different objects rarely
/// share a lock or its cache line.
pub struct ForkSafe<T: ForkState, const SHARDS: usize = 1> {
    shards: [LockShard<T>; SHARDS],
    registered: AtomicBool,
}

/// Lock aligned to two cache lines, because processors prefetch cache lines in pairs.
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

    /// Returns the shard of `key`. Its lock is held only for a look-up or a change, never during a
    /// call of the engine or a system call.
    pub fn shard(&'static self, key: u64) -> &'static RwLock<T> {
        self.register();
        // Multiplication by 2^64 divided by the golden ratio distributes both addresses and
        // counters evenly.
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

    /// Registers the value, so that forks copy it consistently.
    fn register(&'static self) {
        if self.registered.load(Ordering::Acquire) {
            return;
        }
        let mut list = REGISTERED.lock();
        if self.registered.load(Ordering::Acquire) {
            return;
        }
        if list.is_empty() {
            // SAFETY: the handlers take no arguments and may run in any thread that forks. They do
            // not unwind, because a panic in an `extern "C"` function aborts. The C library removes
            // the handlers of a shared library when it unloads the library.
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

/// Interface of a [`ForkSafe`] that is independent of the type of its state.
trait ForkHooks: Sync {
    /// Calls `before_fork` of each shard, and keeps the shard locked.
    fn lock(&'static self) -> LockedState;
}

/// All shards of a [`ForkSafe`], locked until this value is dropped. The function resets the state
/// in the child.
type LockedState = Box<dyn FnMut()>;

impl<T: ForkState, const SHARDS: usize> ForkHooks for ForkSafe<T, SHARDS> {
    fn lock(&'static self) -> LockedState {
        let lock = |shard: &'static LockShard<T>| {
            let mut state = shard.0.write();
            state.before_fork();
            state
        };
        let mut states: Vec<_> = self.shards.iter().map(lock).collect();
        Box::new(move || states.iter_mut().for_each(|state| state.in_child()))
    }
}

/// Every [`ForkSafe`] that has been used. The list is locked while the process is copied.
static REGISTERED: Mutex<Vec<&'static dyn ForkHooks>> = Mutex::new(Vec::new());

/// Locks that the forking thread holds from before the fork until after it, in both the parent and
/// the child.
struct ForkLocks {
    states: Vec<LockedState>,
    _list: MutexGuard<'static, Vec<&'static dyn ForkHooks>>,
}

thread_local! {
    static HELD: RefCell<Option<ForkLocks>> = const { RefCell::new(None) };
}

/// Takes the [`ForkLocks`] that this thread holds. Returns `None` if the thread is ending, because
/// `before_fork` has locked nothing then.
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
        held.states.iter_mut().for_each(|in_child| in_child());
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

    /// The hooks are called on a value that is not registered, because a fork of the test process
    /// would copy the state of other tests' threads.
    #[test]
    fn shards_locked_during_fork() {
        static STATE: ForkSafe<ForkNumbers, 4> = ForkSafe::new();
        let mut held = STATE.lock();
        assert!(STATE.shards.iter().all(|shard| shard.0.try_read().is_none()));
        held();
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
