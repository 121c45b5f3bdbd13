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

/// Numbers of the events about an object that were delivered and acknowledged. The destruction of
/// the object waits until they are equal, because the program may still use the object to which an
/// event refers.
#[derive(Default)]
pub struct UnacknowledgedEvents {
    counts: Mutex<EventCounts>,
    changed: Condvar,
}

#[derive(Default)]
struct EventCounts {
    delivered: u64,
    acknowledged: u64,
    /// Number of threads that wait for acknowledgements.
    waiting: u32,
}

impl UnacknowledgedEvents {
    /// Counts a delivered event.
    #[inline]
    pub fn deliver(&self) {
        self.counts.lock().delivered += 1;
    }

    /// Counts acknowledged events. An excess over the delivered events is ignored.
    #[inline]
    pub fn acknowledge(&self, events: u32) {
        let mut counts = self.counts.lock();
        counts.acknowledged = (counts.acknowledged + u64::from(events)).min(counts.delivered);
        if counts.waiting > 0 {
            self.changed.notify_all();
        }
    }

    /// Returns the number of events that were delivered so far.
    pub fn delivered(&self) -> u64 {
        self.counts.lock().delivered
    }

    /// Waits until every delivered event is acknowledged.
    pub fn wait(&self) {
        self.wait_while(|counts| counts.acknowledged < counts.delivered);
    }

    /// Waits until `events` events are acknowledged.
    pub fn wait_for(&self, events: u64) {
        self.wait_while(|counts| counts.acknowledged < events);
    }

    fn wait_while(&self, waits: impl Fn(&EventCounts) -> bool) {
        let mut counts = self.counts.lock();
        counts.waiting += 1;
        while waits(&counts) {
            counts = self.changed.wait(counts);
        }
        counts.waiting -= 1;
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
    fn later_events_not_waited_for() {
        let events = UnacknowledgedEvents::default();
        events.deliver();
        let before = events.delivered();
        events.deliver();
        events.acknowledge(1);
        events.wait_for(before);
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
