//! [`Drive`] for a [`Shard`], and the shard's calls into [`progress`](super::progress).

use super::Shard;
use super::progress::{Drive, State};
use super::watch::Watch;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Drive for Shard {
    fn progress(&self) -> &State {
        &self.progress
    }

    fn is_pending(&self) -> bool {
        self.is_pending()
    }

    fn is_held(&self) -> bool {
        self.is_held()
    }

    fn rounds(&self) -> u32 {
        self.rounds.load(Ordering::Relaxed)
    }

    fn try_pump(self: &Arc<Self>) -> Option<usize> {
        self.try_lock().map(|mut locked| locked.pump())
    }

    fn try_poll_stack(self: &Arc<Self>) -> Option<usize> {
        self.try_lock().map(|mut locked| locked.poll_stack())
    }

    fn try_handle_stack_event(self: &Arc<Self>) -> bool {
        self.try_lock().map(|mut locked| locked.pump_all()).is_some()
    }
}

impl Shard {
    /// Makes one round for a poll that found nothing. The round ends early once `enough` returns
    /// true. Never blocks.
    ///
    /// `thread` is the id of the calling thread if the poll is observed. Then this returns whether
    /// another thread has polled the shard since the last observed poll of this thread.
    pub(crate) fn poll_progress(
        self: &Arc<Self>,
        thread: Option<usize>,
        enough: &dyn Fn() -> bool,
    ) -> bool {
        let Some(mut locked) = self.try_lock() else { return thread.is_some() && self.note_held() };
        let contended = thread.is_some_and(|thread| locked.core().record_poller(thread));
        locked.pump_until(enough);
        contended
    }

    /// Records that an observed poll has found another thread holding the core. Returns whether it
    /// is the first such poll since the last round began.
    #[cold]
    fn note_held(&self) -> bool {
        let round = self.rounds.load(Ordering::Relaxed);
        self.contended_round.swap(round, Ordering::Relaxed) != round
    }

    /// Records that a completion queue was armed (see [`State::arm`]).
    pub(crate) fn arm(self: &Arc<Self>, watch: Option<&Arc<Watch>>) {
        if self.is_pending() {
            self.try_flush();
        }
        self.progress.arm(watch);
    }

    /// Like [`Shard::arm`], for a thread that sleeps in its own poll(2) next (see
    /// [`State::arm_waiter`]).
    pub(crate) fn arm_waiter(self: &Arc<Self>, watch: Option<&Arc<Watch>>) {
        if self.is_pending() {
            self.try_flush();
        }
        self.progress.arm_waiter(watch);
    }

    /// Starts the wait of posts that are coalesced with later ones (see [`State::coalesce_timer`]).
    pub(crate) fn coalesce_timer(&self) {
        self.progress.coalesce_timer();
    }

    /// Makes a round that polls the stack, after its descriptor was readable. Returns whether the
    /// stack may have more events, or `None` if another thread drives.
    pub(crate) fn pump_events(self: &Arc<Self>) -> Option<bool> {
        self.try_poll_stack().map(|events| events > 0)
    }
}
