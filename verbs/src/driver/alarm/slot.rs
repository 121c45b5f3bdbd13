//! An alarm among a shard's slots.

use crate::driver::Services;
use crate::notify::Wake;
use std::task::Waker;
use uiw_stream::Time;

/// The shard's side of an alarm.
pub(crate) struct AlarmSlot {
    /// When it is due; [`Time::NEVER`] where it is not set.
    pub(super) at: Time,
    pub(super) waker: Waker,
}

impl AlarmSlot {
    /// An entry of it has come up, which may be stale.
    pub(crate) fn on_timer(&mut self, services: &mut Services) {
        if self.at <= services.now {
            self.at = Time::NEVER;
            services.wakes.push(Wake::Waker(self.waker.clone()));
        }
    }
}
