//! Finds the completion queues of threads that disturb each other: see [`moves`](super::moves).

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Number of polls that find no completion, of which one is observed: the id of a thread costs as
/// much as the rest of such a poll. A power of two.
const SAMPLE: u32 = 8;
/// Number of contended polls, among the observed ones, after which the connections of a queue move,
/// multiplied by the number of times that the polling thread of the queue has changed (the first
/// poll included).
const MOVE_AFTER: u32 = 8;

/// Detects that the thread that polls a completion queue shares a shard with another polling
/// thread.
///
/// A poll is contended if it finds that another thread polls the same shard.
#[derive(Default)]
pub(crate) struct PollContention {
    /// Number of polls that found no completion (wrapping).
    empty_polls: AtomicU32,
    /// Id of the thread that polled last; 0 before the first poll.
    thread: AtomicUsize,
    /// Number of times that the polling thread has changed. If several threads share the queue, it
    /// grows so fast that the threshold for a move is never reached.
    changes: AtomicU32,
    /// Number of contended polls since the thread changed or the queue got a connection.
    polls: AtomicU32,
}

impl PollContention {
    /// Counts a poll that finds no completion. Returns the id of the calling thread if this poll is
    /// to be observed ([`PollContention::note_empty_poll`]).
    #[inline]
    pub(crate) fn sample(&self) -> Option<usize> {
        // Separate loads and stores are enough, because a lost count does no harm.
        let polls = self.empty_polls.load(Ordering::Relaxed);
        self.empty_polls.store(polls.wrapping_add(1), Ordering::Relaxed);
        polls.is_multiple_of(SAMPLE).then(thread_id)
    }

    /// Records an observed poll of the thread with the id `thread`. `contended` is true if it found
    /// that another thread polls the same shard. Returns whether the connections should move now.
    ///
    /// Returns true only once, because connections that remain on other shards after that cannot
    /// move.
    pub(crate) fn note_empty_poll(&self, thread: usize, contended: bool) -> bool {
        if self.thread.load(Ordering::Relaxed) != thread {
            self.thread.store(thread, Ordering::Relaxed);
            self.changes
                .store(self.changes.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
            self.reset();
        }
        contended && self.count_contended()
    }

    #[cold]
    fn count_contended(&self) -> bool {
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        polls == MOVE_AFTER.saturating_mul(self.changes.load(Ordering::Relaxed))
    }

    /// Restarts counting, because the queue got a connection or another thread polls it.
    pub(crate) fn reset(&self) {
        self.polls.store(0, Ordering::Relaxed);
    }
}

/// Returns the id of the calling thread: not 0, and never used by another thread.
#[inline]
pub(crate) fn thread_id() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    thread_local!(static OWN: Cell<usize> = const { Cell::new(0) });
    OWN.with(|own| {
        if own.get() == 0 {
            own.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        own.get()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contended_polls(contention: &PollContention, count: usize) -> usize {
        let moves =
            || contention.sample().is_some_and(|thread| contention.note_empty_poll(thread, true));
        (0..count).filter(|_| moves()).count()
    }

    #[test]
    fn contended_queue_moves_once() {
        let contention = PollContention::default();
        assert!(!(0..10_000).any(|_| contention.note_empty_poll(thread_id(), false)));
        assert_eq!(contended_polls(&contention, 10_000), 1);
        contention.reset();
        assert_eq!(contended_polls(&contention, 10_000), 1, "after another connection");
    }

    #[test]
    fn shared_queue_stays() {
        let contention = PollContention::default();
        let other = || contended_polls(&contention, 100);
        for round in 0..50 {
            let other = std::thread::scope(|scope| scope.spawn(other).join().unwrap());
            let moves = other + contended_polls(&contention, 100);
            assert!(moves == 0 || round == 0, "round {round}");
        }
    }
}
