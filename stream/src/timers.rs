//! Deadlines of a stream.

use crate::Time;
use core::time::Duration;

/// Purpose of a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// Time limit of start-up.
    Startup,
    /// Time limit of a Send that waits for a receive.
    NoReceive,
    /// Time limit of the close.
    Close,
    /// Repetition of the capability request, or the end of waiting for its answer.
    Capabilities,
}

impl Timer {
    const ALL: [Self; 4] = [Self::Startup, Self::NoReceive, Self::Close, Self::Capabilities];
}

/// One deadline for each [`Timer`], and the earliest of them.
#[derive(Debug)]
pub(crate) struct Timers {
    deadlines: [Time; Timer::ALL.len()],
    earliest: Time,
}

impl Timers {
    pub(crate) const fn new() -> Self {
        Self { deadlines: [Time::NEVER; Timer::ALL.len()], earliest: Time::NEVER }
    }

    pub(crate) fn set(&mut self, timer: Timer, now: Time, wait: Duration) {
        self.set_at(timer, now.after(wait));
    }

    pub(crate) fn cancel(&mut self, timer: Timer) {
        if self.deadlines[timer as usize] != Time::NEVER {
            self.set_at(timer, Time::NEVER);
        }
    }

    fn set_at(&mut self, timer: Timer, at: Time) {
        self.deadlines[timer as usize] = at;
        self.earliest = self.deadlines.into_iter().min().unwrap_or(Time::NEVER);
    }

    #[inline]
    pub(crate) fn earliest(&self) -> Time {
        self.earliest
    }

    /// Cancels and returns one timer whose deadline has passed.
    pub(crate) fn expire(&mut self, now: Time) -> Option<Timer> {
        if self.earliest > now {
            return None;
        }
        // [`Time::NEVER`] never passes, even if the clock reaches the end of its range.
        let passed = |at: Time| at <= now && at != Time::NEVER;
        let timer = Timer::ALL.into_iter().find(|timer| passed(self.deadlines[*timer as usize]))?;
        self.cancel(timer);
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earliest_deadline_follows_changes() {
        let (now, ms) = (Time::from_nanos(0), Duration::from_millis);
        let mut timers = Timers::new();
        timers.set(Timer::Close, now, ms(5));
        timers.set(Timer::Startup, now, ms(3));
        assert_eq!(timers.earliest(), now.after(ms(3)));
        timers.cancel(Timer::Startup);
        assert_eq!(timers.earliest(), now.after(ms(5)));
        assert_eq!(timers.expire(now.after(ms(4))), None);
        assert_eq!(timers.expire(now.after(ms(5))), Some(Timer::Close));
        assert_eq!((timers.expire(now.after(ms(9))), timers.earliest()), (None, Time::NEVER));
    }

    #[test]
    fn deadline_beyond_clock_never_expires() {
        let mut timers = Timers::new();
        timers.set(Timer::NoReceive, Time::from_nanos(1), Duration::MAX);
        assert_eq!(
            (timers.earliest(), timers.expire(Time::from_nanos(u64::MAX - 1))),
            (Time::NEVER, None)
        );
        // The timer does not expire even at the last time that the clock can represent.
        assert_eq!(timers.expire(Time::NEVER), None);
        timers.set(Timer::Close, Time::from_nanos(1), Duration::ZERO);
        assert_eq!(
            (timers.expire(Time::NEVER), timers.expire(Time::NEVER)),
            (Some(Timer::Close), None)
        );
    }
}
