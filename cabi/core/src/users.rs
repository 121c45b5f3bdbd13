//! Counters of the users of an object, and of the events about it that the program has not
//! acknowledged.

use crate::boundary::Result;
use crate::errno::Errno;
use crate::lock::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of objects that use another object.
#[derive(Default)]
pub struct Users(Arc<AtomicU32>);

/// Token of a user, which counts until it is dropped.
pub struct UserToken(Arc<AtomicU32>);

impl Users {
    /// Adds a user.
    #[must_use]
    pub fn add(&self) -> UserToken {
        self.0.fetch_add(1, Ordering::AcqRel);
        UserToken(Arc::clone(&self.0))
    }

    /// Checks that the object has no users.
    ///
    /// # Errors
    /// EBUSY, for `reason`.
    pub fn check_none(&self, reason: &str) -> Result<()> {
        match self.0.load(Ordering::Acquire) {
            0 => Ok(()),
            _ => Err(Errno::BUSY.because(reason)),
        }
    }
}

impl Drop for UserToken {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Number of events about an object that were delivered and not acknowledged yet. The destruction
/// of the object waits for these events, because the program may still use the object to which an
/// event refers.
#[derive(Default)]
pub struct UnacknowledgedEvents {
    count: Mutex<u32>,
    none: Condvar,
}

impl UnacknowledgedEvents {
    /// Counts a delivered event.
    #[inline]
    pub fn deliver(&self) {
        *self.count.lock() += 1;
    }

    /// Counts acknowledged events. An excess over the delivered events is ignored.
    #[inline]
    pub fn acknowledge(&self, events: u32) {
        let mut count = self.count.lock();
        *count = count.saturating_sub(events);
        if *count == 0 {
            self.none.notify_all();
        }
    }

    /// Waits until every delivered event is acknowledged.
    pub fn wait(&self) {
        let mut count = self.count.lock();
        while *count > 0 {
            count = self.none.wait(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_with_the_last_acknowledgement() {
        let events = Arc::new(UnacknowledgedEvents::default());
        events.wait();
        events.deliver();
        events.deliver();
        let other = Arc::clone(&events);
        let thread = std::thread::spawn(move || other.wait());
        events.acknowledge(1);
        assert!(!thread.is_finished());
        events.acknowledge(1);
        thread.join().unwrap();
    }

    #[test]
    fn users_are_counted_while_they_live() {
        let users = Users::default();
        let one = users.add();
        assert_eq!(users.check_none("in use"), Err(Errno::BUSY));
        drop(one);
        assert_eq!(users.check_none("in use"), Ok(()));
    }
}
