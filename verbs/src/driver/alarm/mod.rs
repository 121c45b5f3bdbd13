//! Alarms: a task that a shard wakes at a time, for what has timers and no connection.

mod slot;

pub(crate) use slot::AlarmSlot;

use super::{Core, Driver, Shard, Slot};
use crate::error::{Error, Result};
use std::sync::Arc;
use std::task::Waker;
use uiw_llp::Token;
use uiw_stream::Time;

/// An alarm on a shard of a device. Dropping it turns it off.
pub(crate) struct Alarm {
    shard: Arc<Shard>,
    token: Token,
}

impl Alarm {
    /// An alarm that wakes `waker`, on a shard of its own choice.
    ///
    /// # Errors
    /// [`Error::Io`] when the shard's thread cannot be started.
    pub(crate) fn new(driver: &Driver, waker: Waker) -> Result<Self> {
        let shard = Arc::clone(driver.shard_for_listener());
        shard.start()?;
        let token = shard.call(move |core| {
            core.insert(|_, _, _| Ok::<_, Error>(Slot::Alarm(Box::new(AlarmSlot { at: Time::NEVER, waker }))))
        })?;
        Ok(Self { shard, token })
    }

    /// The time of the device's clock.
    pub(crate) fn now(&self) -> Time {
        self.shard.call(|core| core.services.now)
    }

    /// Sets it to another time; [`Time::NEVER`] turns it off.
    pub(crate) fn set(&self, at: Time) {
        let token = self.token;
        self.shard.call(move |core| {
            if let Some((slot, services)) = core.alarm(token)
                && slot.at != at
            {
                slot.at = at;
                if at != Time::NEVER {
                    services.timers.add(at, token);
                }
            }
        });
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let token = self.token;
        // The slot is dropped without the lock: its waker is foreign code.
        drop(self.shard.call(move |core: &mut Core| core.remove(token)));
    }
}
