//! Finds the completion queues of threads that disturb each other: see [`moves`](super::moves).

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Number of contended polls of a thread after which its queue's connections move, for each time that the queue's thread has changed.
const MOVE_AFTER: u32 = 64;

/// The thread that polls a completion queue, and its contended polls: those that found that another thread polls the same shard.
#[derive(Default)]
pub(crate) struct PollContention {
    thread: AtomicUsize,
    /// Number of times that another thread polled than before. Threads that share a queue raise it soon to where nothing moves.
    changes: AtomicU32,
    /// Number of contended polls since the thread changed, or since the queue got a connection.
    polls: AtomicU32,
}

impl PollContention {
    /// Notes a poll of the calling thread that found nothing. Returns whether the connections are to be moved: once, as those that are
    /// still elsewhere afterwards cannot move.
    #[inline]
    pub(crate) fn note(&self, contended: bool) -> bool {
        let thread = thread();
        // Not read-modify-write instructions: a poll more or less changes nothing.
        if self.thread.load(Ordering::Relaxed) != thread {
            self.thread.store(thread, Ordering::Relaxed);
            self.changes.store(self.changes.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
            self.reset();
        }
        contended && self.count()
    }

    #[cold]
    fn count(&self) -> bool {
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        polls == MOVE_AFTER.saturating_mul(self.changes.load(Ordering::Relaxed))
    }

    /// The queue has got a connection.
    pub(crate) fn reset(&self) {
        self.polls.store(0, Ordering::Relaxed);
    }
}

/// Returns the number of the calling thread, which no other thread ever has, and which is not 0.
#[inline]
pub(super) fn thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    thread_local!(static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed));
    // A thread that ends may poll once more.
    OWN.try_with(|own| *own).unwrap_or(usize::MAX)
}
