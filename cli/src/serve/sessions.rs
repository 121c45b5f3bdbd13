//! The connections that are served: how many there are.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Connections at a time.
pub(super) const MAX: usize = 1024;

/// Connections that have a thread each. The threads are detached: a handle that waits to be joined would keep its stack.
#[derive(Default)]
pub(super) struct Sessions {
    count: Mutex<usize>,
    left: Condvar,
}

impl Sessions {
    fn count(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more; false if there are [`MAX`] already.
    pub(super) fn enter(&self) -> bool {
        let mut count = self.count();
        if *count >= MAX {
            return false;
        }
        *count += 1;
        true
    }

    /// One less.
    pub(super) fn leave(&self) {
        *self.count() -= 1;
        self.left.notify_all();
    }

    /// Waits until none is left.
    pub(super) fn over(&self) {
        let mut count = self.count();
        while *count > 0 {
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
        let sessions = Arc::new(Sessions::default());
        assert!((0..MAX).all(|_| sessions.enter()));
        assert!(!sessions.enter());
        sessions.leave();
        assert!(sessions.enter());
        assert!(!sessions.enter());
    }

    #[test]
    fn the_end_waits_for_all() {
        let sessions = Arc::new(Sessions::default());
        assert!((0..64).all(|_| sessions.enter()));
        for _ in 0..64 {
            let own = Arc::clone(&sessions);
            std::thread::spawn(move || own.leave());
        }
        sessions.over();
        assert_eq!(*sessions.count(), 0);
    }
}
