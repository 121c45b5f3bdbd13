//! The connections that are served: how many there are, and that what a crowd of them held goes back when it has left.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Connections at a time.
pub(super) const MAX: usize = 1024;
/// So many are a crowd, at a time or one after the other.
const CROWD: usize = 32;
/// So few may still be there when a crowd is said to have left.
const STRAGGLERS: usize = 8;
/// After this, what the crowd held is free.
const SETTLED: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Count {
    now: usize,
    /// What has left since memory was given back.
    gone: usize,
    /// A thread gives it back, until a while has passed in which nobody left.
    is_tidied: bool,
}

/// Connections that have a thread each. The threads are nobody's: a handle that waits to be joined would keep its stack.
#[derive(Default)]
pub(super) struct Sessions {
    count: Mutex<Count>,
    left: Condvar,
}

impl Sessions {
    fn count(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more; false if there are [`MAX`] already.
    pub(super) fn enter(&self) -> bool {
        let mut count = self.count();
        if count.now >= MAX {
            return false;
        }
        count.now += 1;
        true
    }

    /// One less.
    pub(super) fn leave(self: &Arc<Self>) {
        let mut count = self.count();
        count.now -= 1;
        count.gone += 1;
        if count.gone >= CROWD && count.now <= STRAGGLERS {
            self.tidy(count);
        }
        self.left.notify_all();
    }

    /// A crowd of connections has left, of which some or all were never served: no Request came.
    pub(super) fn crowd_has_left(self: &Arc<Self>) {
        let mut count = self.count();
        count.gone += 1;
        self.tidy(count);
    }

    /// What a crowd held is given back, a while later: it is freed by others, too.
    fn tidy(self: &Arc<Self>, mut count: MutexGuard<'_, Count>) {
        if std::mem::replace(&mut count.is_tidied, true) {
            return;
        }
        drop(count);
        let own = Arc::clone(self);
        let tidy = move || {
            while own.is_left_by_more() {
                thread::sleep(SETTLED);
                mem::give_back_free_pages();
            }
        };
        if thread::Builder::new().name("uiw-tidy".to_owned()).spawn(tidy).is_err() {
            // Then the next crowd tries.
            self.count().is_tidied = false;
        }
    }

    /// Whether somebody has left since this was asked last; if not, the tidying is over.
    fn is_left_by_more(&self) -> bool {
        let mut count = self.count();
        count.is_tidied = std::mem::take(&mut count.gone) > 0;
        count.is_tidied
    }

    /// Waits until none is left.
    pub(super) fn over(&self) {
        let mut count = self.count();
        while count.now > 0 {
            count = self.left.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_bound_at_a_time() {
        let sessions = Arc::new(Sessions::default());
        assert!((0..MAX).all(|_| sessions.enter()));
        assert!(!sessions.enter());
        sessions.leave();
        assert!(sessions.enter());
        assert!(!sessions.enter());
    }

    #[test]
    fn tidying_goes_on_until_nobody_leaves() {
        let sessions = Arc::new(Sessions::default());
        assert!(sessions.enter());
        // As if a thread did already: this one asks in its place.
        sessions.count().is_tidied = true;
        sessions.crowd_has_left();
        assert!(sessions.is_left_by_more());
        sessions.leave();
        assert!(sessions.is_left_by_more(), "a straggler's memory is given back, too");
        assert!(!sessions.is_left_by_more());
        assert!(!sessions.count().is_tidied);
        sessions.crowd_has_left();
        assert!(sessions.count().is_tidied, "the next crowd's as well");
    }

    #[test]
    fn those_who_were_served_are_a_crowd_when_most_have_left() {
        let sessions = Arc::new(Sessions::default());
        let tidies = || sessions.count().is_tidied;
        assert!((0..CROWD + STRAGGLERS).all(|_| sessions.enter()));
        (1..CROWD).for_each(|_| sessions.leave());
        assert!(!tidies(), "no crowd yet");
        sessions.leave();
        assert!(tidies());
    }

    #[test]
    fn the_end_waits_for_all() {
        let sessions = Arc::new(Sessions::default());
        assert!((0..2 * CROWD).all(|_| sessions.enter()));
        for _ in 0..2 * CROWD {
            let own = Arc::clone(&sessions);
            thread::spawn(move || own.leave());
        }
        sessions.over();
        assert_eq!(sessions.count().now, 0);
    }
}
