//! Attempts and polling before a thread sleeps until something arrives at a socket.

use crate::settings::polling_time;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};
use uiw_cabi_core::lock::Mutex;

/// Number of successive fruitless attempts before a thread calls `sched_yield`, because the peer
/// may need the processor.
const ATTEMPTS_BEFORE_YIELD: u32 = 32;

/// A call that may wait begins with an attempt that does not wait. After this number of successive
/// fruitless attempts, most calls omit it.
const ATTEMPTS_BEFORE_WAITS: u32 = 4;
/// Number of calls of which one still begins with an attempt, if most calls omit it.
const CALLS_PER_ATTEMPT: u32 = 16;

/// Statistics of attempts at a socket, and whether the last wait was short. They are approximate if
/// several threads wait, and only affect performance.
#[derive(Default)]
pub(crate) struct Attempts {
    /// Number of successive attempts that were fruitless.
    fruitless: AtomicU32,
    /// True if the last wait was no longer than [`polling_time`]. In that case the next wait may
    /// poll before it sleeps, because sleeping and waking up take longer than a peer needs that
    /// answers immediately.
    is_short: AtomicBool,
    choice: Mutex<PollChoice>,
}

impl Attempts {
    /// Counts an attempt, and returns the number of successive fruitless ones.
    pub(crate) fn count(&self, found: bool) -> u32 {
        let count = if found { 0 } else { self.fruitless.load(Ordering::Relaxed).wrapping_add(1) };
        self.fruitless.store(count, Ordering::Relaxed);
        count
    }

    /// Counts the attempt of a call that does not wait, and yields the processor if necessary.
    pub(crate) fn note(&self, found: bool) {
        if self.count(found) > ATTEMPTS_BEFORE_YIELD {
            thread::yield_now();
        }
    }

    /// Returns whether a call that may wait omits its attempt, because the wait also finds what has
    /// arrived. The omitted attempt is counted as fruitless.
    pub(crate) fn is_omitted(&self) -> bool {
        let count = self.fruitless.load(Ordering::Relaxed);
        let omitted = count >= ATTEMPTS_BEFORE_WAITS && !count.is_multiple_of(CALLS_PER_ATTEMPT);
        if omitted {
            self.count(false);
        }
        omitted
    }

    /// Returns whether a wait polls before it sleeps: the last wait was short, and polling makes
    /// such waits shorter.
    pub(crate) fn expect_soon(&self) -> bool {
        // The lock is held only by another thread, or by a call on this thread that a signal
        // handler has interrupted.
        self.is_short.load(Ordering::Relaxed)
            && self.choice.try_lock().is_some_and(|choice| choice.polls)
    }

    /// Repeats `attempt` for a wait that began at `begun`, for at most `most`. Returns `None` if
    /// the thread should sleep.
    pub(crate) fn poll<T>(
        &self,
        begun: Instant,
        most: Duration,
        mut attempt: impl FnMut() -> Poll<T>,
    ) -> Option<T> {
        while begun.elapsed() < most {
            if let Poll::Ready(found) = attempt() {
                self.count(true);
                self.ended(begun.elapsed());
                return Some(found);
            }
            self.note(false);
        }
        None
    }

    /// Records the duration of a wait.
    pub(crate) fn ended(&self, time: Duration) {
        let mut is_short = time <= polling_time();
        if self.is_short.load(Ordering::Relaxed)
            && let Some(mut choice) = self.choice.try_lock()
        {
            choice.note(time);
            is_short |= choice.counts_all_waits();
        }
        self.is_short.store(is_short, Ordering::Relaxed);
    }
}

/// Number of waits in a trial.
const TRIAL: u32 = 256;
/// Number of waits between two pairs of trials.
const BETWEEN_TRIALS: u32 = 1 << 14;
/// Waits of this duration or more are not counted, because they depend on the peer, or on a
/// processor that another program uses.
const LONG: Duration = Duration::from_millis(4);

/// Decision whether waits poll first or the thread sleeps immediately. Polling takes longer if both
/// ends share a processor, or if other programs need one: a thread that has used its share of the
/// processor for polling does not preempt them when it is woken.
#[derive(Debug)]
struct PollChoice {
    polls: bool,
    /// Number of waits until the choice is made again, or the next trial begins.
    left: u32,
    trial: PollTrial,
    /// Total duration of the waits of this trial.
    total: Duration,
    /// Total duration of the waits of the last trial with polling.
    with_polling: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PollTrial {
    /// Trial with polling, which comes first.
    Polls,
    /// Trial without polling, which follows it.
    Sleeps,
    /// No trial: the better choice applies.
    None,
}

impl Default for PollChoice {
    fn default() -> Self {
        Self {
            polls: true,
            left: TRIAL,
            trial: PollTrial::Polls,
            total: Duration::ZERO,
            with_polling: Duration::ZERO,
        }
    }
}

impl PollChoice {
    /// Returns whether the next wait is counted regardless of the duration of the last one. This
    /// applies to a trial without polling and, if polling was chosen, to the first wait after it,
    /// because waits that would be short with polling may be longer there.
    fn counts_all_waits(&self) -> bool {
        self.trial == PollTrial::Sleeps || self.polls && self.left == BETWEEN_TRIALS
    }

    /// Records the duration of a wait in which polling would have been possible.
    fn note(&mut self, time: Duration) {
        self.total += time.min(LONG);
        self.left -= 1;
        if self.left > 0 {
            return;
        }
        (self.trial, self.polls, self.left) = match self.trial {
            PollTrial::Polls => {
                self.with_polling = self.total;
                (PollTrial::Sleeps, false, TRIAL)
            }
            PollTrial::Sleeps => (PollTrial::None, self.with_polling < self.total, BETWEEN_TRIALS),
            PollTrial::None => (PollTrial::Polls, true, TRIAL),
        };
        self.total = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_polls_after_short_wait() {
        let attempts = Attempts::default();
        assert!(!attempts.expect_soon());
        attempts.ended(Duration::from_micros(1));
        assert!(attempts.expect_soon());
        attempts.ended(Duration::from_secs(1));
        assert!(!attempts.expect_soon());
    }

    #[test]
    fn polling_ends_with_success_or_timeout() {
        let attempts = Attempts::default();
        let mut tried = 0;
        let found = attempts.poll(Instant::now(), Duration::MAX, || {
            tried += 1;
            if tried == 3 { Poll::Ready(()) } else { Poll::Pending }
        });
        assert_eq!((found, tried), (Some(()), 3));
        assert_eq!(attempts.poll(Instant::now(), Duration::ZERO, || Poll::Ready(())), None);
        assert_eq!(
            attempts.poll(Instant::now(), Duration::from_micros(1), || Poll::<()>::Pending),
            None
        );
    }

    #[test]
    fn attempts_rare_after_failures() {
        let attempts = Attempts::default();
        for _ in 0..ATTEMPTS_BEFORE_WAITS {
            assert!(!attempts.is_omitted());
            attempts.count(false);
        }
        let made = (0..10 * CALLS_PER_ATTEMPT).filter(|_| {
            let made = !attempts.is_omitted();
            if made {
                attempts.count(false);
            }
            made
        });
        assert_eq!(made.count(), 10);
        attempts.count(true);
        assert!(!attempts.is_omitted());
    }

    /// Simulates waits that take these times with and without polling. Returns how many of the last
    /// `BETWEEN_TRIALS` waits poll.
    fn polling(with: Duration, without: Duration) -> usize {
        let mut choice = PollChoice::default();
        let mut wait = || {
            let polls = choice.polls;
            choice.note(if polls { with } else { without });
            polls
        };
        assert_eq!((0..2 * TRIAL).filter(|_| wait()).count(), TRIAL as usize);
        (0..BETWEEN_TRIALS).filter(|_| wait()).count()
    }

    /// Waits that include a sleep are too long for polling.
    #[test]
    fn long_sleeps_do_not_end_trial() {
        let attempts = Attempts::default();
        attempts.ended(Duration::from_micros(1));
        let wait = || {
            let polls = attempts.expect_soon();
            attempts.ended(if polls { polling_time() / 2 } else { polling_time() * 2 });
            polls
        };
        assert_eq!((0..2 * TRIAL).filter(|_| wait()).count(), TRIAL as usize);
        assert!((0..BETWEEN_TRIALS).all(|_| wait()));
    }

    #[test]
    fn waits_poll_if_shorter() {
        let [short, long] = [10, 50].map(Duration::from_micros);
        assert_eq!(polling(short, long), BETWEEN_TRIALS as usize);
        assert_eq!(polling(long, short), 0);
        // A single wait for the peer does not affect the decision.
        let mut choice = PollChoice::default();
        (0..3 * (2 * TRIAL + BETWEEN_TRIALS)).for_each(|_| choice.note(Duration::MAX));
        assert_eq!(choice.trial, PollTrial::Polls);
    }
}
