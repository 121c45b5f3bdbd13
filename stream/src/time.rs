//! Points in time, relative to an origin that the host chooses.

use core::time::Duration;

/// Point in time, in nanoseconds since an origin that the host chooses. The stream has no clock; it
/// only compares times and adds durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// Later than all other times: a deadline that never passes.
    pub const NEVER: Self = Self(u64::MAX);

    /// Returns the time that is this many nanoseconds after the origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time that is `wait` later, or [`Time::NEVER`] if that exceeds the range.
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }

    /// Returns the time as an optional deadline: `None` for [`Time::NEVER`].
    #[must_use]
    pub fn deadline(self) -> Option<Self> {
        (self != Self::NEVER).then_some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_beyond_clock_never_ends() {
        assert_eq!(Time::from_nanos(5).after(Duration::MAX), Time::NEVER);
        assert_eq!(Time::from_nanos(5).after(Duration::from_nanos(7)), Time::from_nanos(12));
        assert_eq!(Time::NEVER.deadline(), None);
    }
}
