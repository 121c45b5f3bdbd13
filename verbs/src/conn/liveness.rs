//! Checks whether the peer still acknowledges, for stacks that report it and do not give up a busy
//! connection by themselves ([`uiw_llp::TransportConfig::dead_after`]).
//!
//! The check runs at a timer that is set while bytes are sent, so an idle connection has none.
//! TCP_USER_TIMEOUT would do the same without this timer, but Linux also applies it to the time for
//! which the peer's window is closed: a receiver that is busy and answers every probe would lose
//! its connection.
//!
//! TCP_INFO is checked eight times within the time, and only while bytes wait for an
//! acknowledgement; the kernel probes idle connections (SO_KEEPALIVE). smoltcp counts from the last
//! segment of the peer by itself. The kernel gives up after `tcp_retries2` retransmissions,
//! whatever the time here.

use std::time::Duration;
use uiw_llp::StreamInfo;
use uiw_stream::Time;

/// Number of checks within the time after which a peer is dead. The last one is made exactly when
/// that time has passed.
const CHECKS: u32 = 8;
/// Minimum time between checks.
const MIN_PAUSE: Duration = Duration::from_millis(10);

/// Observations about one connection between checks.
#[derive(Debug)]
pub(super) struct Liveness {
    /// Time of the next check.
    pub(super) check: Time,
    /// Time since which each check has found bytes that wait for an acknowledgement.
    waiting: Option<Time>,
    /// True if the previous check has found an unanswered probe of a closed window.
    probing: bool,
}

impl Liveness {
    pub(super) const IDLE: Self = Self { check: Time::NEVER, waiting: None, probing: false };

    /// Records that bytes were passed to TCP at `now`, or earlier.
    #[inline]
    pub(super) fn on_sent(&mut self, dead_after: Option<Duration>, now: Time) {
        if self.check == Time::NEVER
            && let Some(dead_after) = dead_after
        {
            self.check = now.after(pause(dead_after));
        }
    }

    /// Makes a check, with the `info` that the stack reports at `now`. Returns whether the peer is
    /// dead: it has acknowledged nothing for `dead_after`.
    pub(super) fn is_dead(&mut self, info: &StreamInfo, dead_after: Duration, now: Time) -> bool {
        let unacked = info.unacked.unwrap_or(0) > 0;
        let outstanding = unacked || info.not_sent.unwrap_or(0) > 0;
        let Some(last_ack) = info.last_ack.filter(|_| outstanding) else {
            *self = Self::IDLE;
            return false;
        };
        if now > self.check.after(pause(dead_after)) {
            // The check is late, and all bytes may have been acknowledged in between.
            self.waiting = None;
        }
        let waiting = *self.waiting.get_or_insert(now);
        // On a connection that was idle, the last acknowledgement is old. So the time counts from
        // when bytes waited for the next one.
        let waited = Duration::from_nanos(now.as_nanos().saturating_sub(waiting.as_nanos()));
        let silent = last_ack.min(waited);
        // While the window is closed, nothing is in flight, and probes are up to two minutes apart,
        // so silence between them means nothing. An unanswered probe may have been sent just now.
        let probing = !unacked && info.probes.unwrap_or(0) > 0;
        let unanswered = unacked || probing && self.probing;
        self.probing = probing;
        if silent >= dead_after && unanswered {
            self.check = Time::NEVER;
            return true;
        }
        let left = dead_after.saturating_sub(silent);
        let next = if left.is_zero() { pause(dead_after) } else { left.min(pause(dead_after)) };
        self.check = now.after(next.max(MIN_PAUSE));
        false
    }
}

fn pause(dead_after: Duration) -> Duration {
    (dead_after / CHECKS).max(MIN_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn at(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    fn info(unacked: u32, not_sent: u32, last_ack: u64, probes: u32) -> StreamInfo {
        let last_ack = Some(Duration::from_secs(last_ack));
        let (unacked, not_sent) = (Some(unacked), Some(not_sent));
        StreamInfo { unacked, not_sent, last_ack, probes: Some(probes), ..StreamInfo::default() }
    }

    /// Runs the checks when they are due, until `end`. `state` returns the state that the stack
    /// reports at a time. Returns the time at which the peer was found dead.
    fn run(end: u64, state: impl Fn(u64) -> StreamInfo) -> Option<u64> {
        let mut liveness = Liveness::IDLE;
        liveness.on_sent(Some(LIMIT), at(0));
        loop {
            let now = liveness.check;
            if now > at(end) {
                return None;
            }
            let seconds = now.as_nanos() / 1_000_000_000;
            if liveness.is_dead(&state(seconds), LIMIT, now) {
                return Some(seconds);
            }
        }
    }

    #[test]
    fn silent_peer_dead_after_timeout() {
        // The transfer runs for five seconds.
        assert_eq!(run(100, |now| info(9, 100, now.saturating_sub(5), 0)), Some(25));
    }

    #[test]
    fn acknowledging_peer_stays_alive() {
        assert_eq!(run(1000, |now| info(9, 0, now % 19, 0)), None);
    }

    #[test]
    fn request_after_silence_gets_full_timeout() {
        // The last acknowledgement is an hour old when the request is sent; the next check is at
        // 2.5 s.
        assert_eq!(run(100, |now| info(1, 0, 3600 + now, 0)), Some(22));
    }

    #[test]
    fn closed_window_with_answered_probes_alive() {
        // A probe is sent and answered every two minutes.
        assert_eq!(run(10_000, |now| info(0, 4096, now % 120, 0)), None);
        // A check may happen between a probe and its answer.
        assert_eq!(run(10_000, |now| info(0, 4096, now % 122, u32::from(now % 122 >= 120))), None);
    }

    #[test]
    fn closed_window_without_answer_dead() {
        let died = run(10_000, |now| info(0, 4096, now, u32::from(now >= 51))).unwrap();
        assert!((51..=57).contains(&died), "{died}");
    }

    /// A program that drives its device itself may have been stopped for a time.
    #[test]
    fn late_check_starts_anew() {
        let mut liveness = Liveness::IDLE;
        liveness.on_sent(Some(LIMIT), at(0));
        assert!(!liveness.is_dead(&info(1, 0, 2, 0), LIMIT, at(2)));
        assert!(!liveness.is_dead(&info(1, 0, 3600, 0), LIMIT, at(3602)));
        assert_eq!(liveness.waiting, Some(at(3602)));
    }

    #[test]
    fn idle_connection_not_checked() {
        let mut liveness = Liveness::IDLE;
        liveness.on_sent(Some(LIMIT), at(0));
        assert!(!liveness.is_dead(&info(0, 0, 3, 0), LIMIT, at(3)));
        assert_eq!(liveness.check, Time::NEVER);
        liveness.on_sent(None, at(4));
        assert_eq!(liveness.check, Time::NEVER);
    }
}
