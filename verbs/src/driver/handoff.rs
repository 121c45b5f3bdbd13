//! Passes work to the thread that holds a shard's core: queues and flags for threads that cannot
//! lock the core.
//!
//! | step | thread that has work | thread that holds the core |
//! |---|---|---|
//! | 1 | extends `posts` or `commands` | unlocks the core |
//! | 2 | sets `pending` (after `commanded`, for a command) | reads `pending` ([`Handoff::serve_rest`]); not set: done |
//! | 3 | tries the core's lock | tries the core's lock; if another thread has it, that thread does step 2 |
//! | 4 | with the lock: serves; without: returns | clears `pending`, then takes the lists, serves, goes to step 1 |
//!
//! No work is lost. If the try in step 3 fails, another thread holds the core and has not unlocked
//! it, so its step 2 comes after `pending` was set. `pending` is cleared before the lists are
//! taken, and set after they were extended, so it is set for a list that is extended after it was
//! taken.
//!
//! The proof requires that `pending` is stored before the lock is tried, and that the lock is
//! released before `pending` is loaded. The flags are sequentially consistent, and trying and
//! unlocking are read-modify-writes of the lock's word. On x86-64 each is a full barrier. On
//! AArch64, a store-release, or the release of a read-modify-write, is never passed by a later
//! load-acquire.

use super::sync::{AtomicBool, Mutex, TryMutex, TryMutexGuard};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// Work of a control call on the core.
pub(super) type Command<C> = Box<dyn FnOnce(&mut C) + Send>;

/// Maximum number of times that a thread serves posts of other threads after its own work.
const SERVE_OTHERS: usize = if cfg!(any(loom, shuttle)) { 2 } else { 8 };

/// A core `C`, and work `P` that waits for the thread that holds it.
pub(super) struct Handoff<C, P> {
    core: TryMutex<C>,
    posts: Mutex<VecDeque<P>>,
    commands: Mutex<Vec<Command<C>>>,
    /// Set after `posts` or `commands` was extended. The holder of `core` reads it after unlocking.
    pending: AtomicBool,
    /// Set after `commands` was extended. The holder reads it between two connections.
    commanded: AtomicBool,
}

impl<C, P> Handoff<C, P> {
    pub(super) fn new(core: C) -> Self {
        Self {
            core: TryMutex::new(core),
            posts: Mutex::default(),
            commands: Mutex::default(),
            pending: AtomicBool::new(false),
            commanded: AtomicBool::new(false),
        }
    }

    /// Locks the core, waiting for it.
    pub(super) fn lock(&self) -> TryMutexGuard<'_, C> {
        self.core.lock()
    }

    /// Locks the core, waiting for at most `timeout`.
    #[cfg(not(any(loom, shuttle)))]
    pub(super) fn lock_within(&self, timeout: std::time::Duration) -> Option<TryMutexGuard<'_, C>> {
        self.core.try_lock_for(timeout)
    }

    /// Returns whether a thread holds the core.
    pub(super) fn is_held(&self) -> bool {
        self.core.is_locked()
    }

    #[inline]
    pub(super) fn try_lock(&self) -> Option<TryMutexGuard<'_, C>> {
        self.core.try_lock()
    }

    /// Adds a post. The caller then tries the lock, or starts the coalesce timer so that the
    /// background thread does.
    pub(super) fn post(&self, post: P) {
        self.posts.lock().push_back(post);
        self.pending.store(true, Ordering::SeqCst);
    }

    /// Adds a command. The caller then tries the lock, or starts the coalesce timer.
    pub(super) fn command(&self, command: Command<C>) {
        self.commands.lock().push(command);
        self.commanded.store(true, Ordering::SeqCst);
        self.pending.store(true, Ordering::SeqCst);
    }

    /// Returns whether a command waits.
    #[cfg(not(any(loom, shuttle)))]
    pub(super) fn has_commands(&self) -> bool {
        self.commanded.load(Ordering::Relaxed)
    }

    /// Returns whether a post or a command waits.
    #[inline]
    pub(super) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::SeqCst)
    }

    /// Clears `pending`. Returns whether it was set, so that the holder must take the commands and
    /// the posts.
    #[inline]
    pub(super) fn take_pending(&self) -> bool {
        self.pending.load(Ordering::SeqCst) && self.pending.swap(false, Ordering::SeqCst)
    }

    /// Moves the posts to `into`. If that is empty, the two lists are swapped, so that both keep
    /// their allocations.
    pub(super) fn take_posts(&self, into: &mut VecDeque<P>) {
        let mut posts = self.posts.lock();
        if into.is_empty() {
            std::mem::swap(&mut *posts, into);
        } else {
            into.append(&mut posts);
        }
    }

    /// Takes the waiting commands, between two connections.
    #[inline]
    pub(super) fn take_commands(&self) -> Option<Vec<Command<C>>> {
        let waits =
            self.commanded.load(Ordering::Relaxed) && self.commanded.swap(false, Ordering::SeqCst);
        waits.then(|| std::mem::take(&mut *self.commands.lock()))
    }

    /// Serves the work that other threads have added while the caller held the core, which it has
    /// just unlocked. `serve` unlocks it again. Returns true if posts are left, because other
    /// threads post faster than this one serves them.
    #[inline]
    pub(super) fn serve_rest<'a>(&'a self, mut serve: impl FnMut(TryMutexGuard<'a, C>)) -> bool {
        let mut times = 0;
        // Threads wait for the results of commands. Posts can be left to the background thread.
        while times < SERVE_OTHERS || self.commanded.load(Ordering::SeqCst) {
            times += 1;
            if !self.is_pending() {
                return false;
            }
            // Another thread that holds the core serves what is pending.
            let Some(core) = self.core.try_lock() else { return false };
            serve(core);
        }
        true
    }
}
