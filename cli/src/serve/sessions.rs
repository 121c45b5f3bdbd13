//! The connections that are served: how many there are, and that what a crowd of them held goes back when it has left.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Connections at a time.
pub(super) const MAX: usize = 1024;
/// So many at a time are a crowd.
const CROWD: usize = 32;

#[derive(Default)]
struct Count {
    now: usize,
    /// The most since memory was given back.
    most: usize,
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
        count.most = count.most.max(count.now);
        true
    }

    /// One less.
    pub(super) fn leave(&self) {
        let mut count = self.count();
        let crowd_left = count.most >= CROWD && count.now <= CROWD / 4;
        if crowd_left {
            count.most = count.now;
            drop(count);
            mem::give_back_free_pages();
            count = self.count();
        }
        count.now -= 1;
        self.left.notify_all();
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
    use std::sync::Arc;

    #[test]
    fn no_more_than_the_bound_at_a_time() {
        let sessions = Sessions::default();
        assert!((0..MAX).all(|_| sessions.enter()));
        assert!(!sessions.enter());
        sessions.leave();
        assert!(sessions.enter());
        assert!(!sessions.enter());
    }

    #[test]
    fn the_end_waits_for_all() {
        let sessions = Arc::new(Sessions::default());
        assert!((0..2 * CROWD).all(|_| sessions.enter()));
        for _ in 0..2 * CROWD {
            let own = Arc::clone(&sessions);
            std::thread::spawn(move || own.leave());
        }
        sessions.over();
        assert_eq!(sessions.count().now, 0);
    }
}
