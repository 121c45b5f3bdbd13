//! Size of TCP segments on a path that loses long packets without an ICMP message. An established
//! connection of the kernel's TCP cannot find the right size unless the administrator has enabled
//! `net.ipv4.tcp_mtu_probing`. The next connection can use shorter segments.

use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::Duration;

/// Payload lengths that are tried, for packets that every path supports with IPv6 (1,280 bytes) and
/// with IPv4 (576 bytes).
const SHORTER: [u16; 2] = [1220, 516];
/// A connection that gets no answer for this time is considered stuck. A connection that was cut
/// would be reset or closed.
const STUCK: Duration = Duration::from_secs(5);

/// Segment size of the next connection.
#[derive(Debug)]
pub(super) struct SegmentSize {
    /// Segment size in bytes, 0 if the system chooses it.
    now: AtomicU16,
    /// Number of successive attempts to connect without an answer.
    unanswered: AtomicU32,
}

impl SegmentSize {
    /// Begins with `asked`, the size that the user has chosen.
    pub(super) fn new(asked: Option<u16>) -> Self {
        Self { now: AtomicU16::new(asked.unwrap_or(0)), unanswered: AtomicU32::new(0) }
    }

    /// Returns the segment size for the next connection. While attempts get no answer, every second
    /// one uses shorter segments, because the first message of TLS may be too long for the path.
    pub(super) fn for_next_connection(&self) -> Option<u16> {
        let now = Some(self.now.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0);
        let is_other = !self.unanswered.load(Ordering::Relaxed).is_multiple_of(2);
        if is_other { shorter(now).or(now) } else { now }
    }

    /// Called when a connection was made with the size `used`.
    pub(super) fn on_connected(&self, used: Option<u16>) {
        if self.unanswered.swap(0, Ordering::Relaxed) > 0 {
            self.now.store(used.unwrap_or(0), Ordering::Relaxed);
        }
    }

    /// Called when an attempt to connect has failed after `waited`. Returns whether the next
    /// attempt uses another size.
    pub(super) fn on_connect_failed(&self, waited: Duration) -> bool {
        let is_stuck = waited >= STUCK;
        if is_stuck {
            self.unanswered.fetch_add(1, Ordering::Relaxed);
        }
        is_stuck
    }

    /// Called when a connection with the size `used` has ended after waiting for its first answer
    /// for this time.
    pub(super) fn on_stuck(&self, used: Option<u16>, waited: Duration) {
        let Some(next) = shorter(used).filter(|_| waited >= STUCK) else { return };
        let used = used.unwrap_or(0);
        // The first of several connections with the same size changes it.
        if self.now.compare_exchange(used, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            tracing::warn!(
                segment = next,
                "no answer to long packets; using shorter segments for the next connections"
            );
        }
    }
}

/// Returns the next shorter size to try.
fn shorter(than: Option<u16>) -> Option<u16> {
    SHORTER.into_iter().find(|bytes| than.is_none_or(|than| *bytes < than))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn segments_shortened_once_for_all() {
        let segments = SegmentSize::new(None);
        segments.on_stuck(None, Duration::from_secs(1));
        assert_eq!(segments.for_next_connection(), None, "a connection that was cut");
        (0..8).for_each(|_| segments.on_stuck(None, LONG));
        assert_eq!(segments.for_next_connection(), Some(1220));
        segments.on_stuck(Some(1220), LONG);
        segments.on_stuck(Some(516), LONG);
        assert_eq!(segments.for_next_connection(), Some(516));
        assert_eq!(SegmentSize::new(Some(1000)).for_next_connection(), Some(1000));
        let asked = SegmentSize::new(Some(1000));
        asked.on_stuck(Some(1000), LONG);
        assert_eq!(asked.for_next_connection(), Some(516));
    }

    #[test]
    fn unanswered_attempts_alternate() {
        let segments = SegmentSize::new(None);
        assert!(!segments.on_connect_failed(Duration::from_millis(1)), "refused");
        assert_eq!(segments.for_next_connection(), None);
        assert!(segments.on_connect_failed(LONG));
        assert_eq!(segments.for_next_connection(), Some(1220));
        assert!(segments.on_connect_failed(LONG));
        assert_eq!(segments.for_next_connection(), None);
        // The path was cut.
        segments.on_connected(None);
        assert_eq!(segments.for_next_connection(), None);
        segments.on_connect_failed(LONG);
        segments.on_connected(segments.for_next_connection());
        assert_eq!(segments.for_next_connection(), Some(1220));
    }
}
