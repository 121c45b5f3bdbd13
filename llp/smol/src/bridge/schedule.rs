//! Scheduling of the bridge: real-time priority, and a check whether frames leave in time.

use std::io;
use std::time::Duration;
use uiw_impair::wan::Counts;

/// Priority above programs that measure with their own priority (`chrt`), and below the kernel's
/// threads.
const PRIORITY: i32 = 5;
/// Interval over which the lateness is averaged.
const EVERY: Duration = Duration::from_secs(1);
/// Average lateness from which the emulated path differs noticeably from the requested one.
const LATE: Duration = Duration::from_millis(1);
/// Minimum time between warnings.
const REMIND: Duration = Duration::from_secs(10);

/// Gives the calling thread the scheduling class SCHED_FIFO. Threads that it starts have the
/// default class.
///
/// # Errors
/// `PermissionDenied` without CAP_SYS_NICE.
pub(super) fn enter_realtime() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: PRIORITY };
    // SAFETY: the call reads `parameters`, which outlives it; 0 means the calling thread.
    match unsafe {
        libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &parameters)
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Monitor of how late frames leave.
#[derive(Debug, Default)]
pub(super) struct Lateness {
    since: Duration,
    late: Duration,
    delivered: u64,
    warned: Option<Duration>,
}

impl Lateness {
    /// Returns the mean lateness of the frames of the last interval, if a warning is due. `counts`
    /// are the counters of both directions at `now`.
    pub(super) fn judge(&mut self, now: Duration, counts: [&Counts; 2]) -> Option<Duration> {
        if now.saturating_sub(self.since) < EVERY {
            return None;
        }
        let late: Duration = counts.iter().map(|counts| counts.late).sum();
        let delivered: u64 = counts.iter().map(|counts| counts.delivered).sum();
        let frames = u32::try_from(delivered - self.delivered).unwrap_or(u32::MAX);
        let mean = (late - self.late).checked_div(frames);
        (self.since, self.late, self.delivered) = (now, late, delivered);
        let mean = mean.filter(|mean| *mean >= LATE)?;
        if self.warned.is_some_and(|at| now - at < REMIND) {
            return None;
        }
        self.warned = Some(now);
        Some(mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(delivered: u64, late_ms: u64) -> Counts {
        Counts { delivered, late: Duration::from_millis(late_ms), ..Counts::default() }
    }

    #[test]
    fn late_frames_reported_every_ten_seconds() {
        let mut lateness = Lateness::default();
        let second = Duration::from_secs;
        let none = counts(0, 0);
        assert_eq!(lateness.judge(Duration::from_millis(900), [&counts(10, 900), &none]), None);
        assert_eq!(lateness.judge(second(1), [&counts(1_000, 500), &none]), None);
        // 500 more frames, with a total lateness of 1 s.
        assert_eq!(
            lateness.judge(second(2), [&counts(1_250, 500), &counts(250, 1_000)]),
            Some(Duration::from_millis(2))
        );
        assert_eq!(lateness.judge(second(3), [&counts(1_250, 500), &counts(260, 9_000)]), None);
        // No frames were carried.
        assert_eq!(lateness.judge(second(13), [&counts(1_250, 500), &counts(260, 9_000)]), None);
        assert_eq!(
            lateness.judge(second(14), [&counts(1_251, 600), &counts(260, 9_000)]),
            Some(Duration::from_millis(100))
        );
    }
}
