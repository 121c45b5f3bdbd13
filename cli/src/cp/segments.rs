//! The size of TCP segments, on a path that loses longer packets without a message. A connection of
//! the kernel's TCP that stands cannot find the size by itself unless the administrator has
//! `net.ipv4.tcp_mtu_probing` on; the next connection can have shorter segments.

use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::Duration;

/// Payload lengths that are tried: those of the packets that every path takes with IPv6 (1,280
/// bytes), and with IPv4 (576 bytes).
const SHORTER: [u16; 2] = [1220, 516];
/// A connection that was without an answer for so long was not cut, as one that is cut is reset or
/// closed.
const STUCK: Duration = Duration::from_secs(5);

/// What the next connection has.
#[derive(Debug)]
pub(super) struct Segments {
    /// Bytes; 0: as the system chooses.
    now: AtomicU16,
    /// Attempts to connect that were without an answer, since the last one that was not.
    unanswered: AtomicU32,
}

impl Segments {
    /// `asked`: as the user has it.
    pub(super) fn new(asked: Option<u16>) -> Self {
        Self { now: AtomicU16::new(asked.unwrap_or(0)), unanswered: AtomicU32::new(0) }
    }

    /// For the next connection. Where attempts get no answer each second one is with shorter
    /// segments, as the first message of TLS may be longer than the path takes.
    pub(super) fn next(&self) -> Option<u16> {
        let now = Some(self.now.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0);
        let is_other = !self.unanswered.load(Ordering::Relaxed).is_multiple_of(2);
        if is_other { shorter(now).or(now) } else { now }
    }

    /// A connection was made with `used`.
    pub(super) fn connected(&self, used: Option<u16>) {
        if self.unanswered.swap(0, Ordering::Relaxed) > 0 {
            self.now.store(used.unwrap_or(0), Ordering::Relaxed);
        }
    }

    /// An attempt to connect failed after `waited`. True: the next one is another one.
    pub(super) fn not_connected(&self, waited: Duration) -> bool {
        let is_stuck = waited >= STUCK;
        if is_stuck {
            self.unanswered.fetch_add(1, Ordering::Relaxed);
        }
        is_stuck
    }

    /// A connection with `used` ended after it had waited for its first answer for so long.
    pub(super) fn stuck(&self, used: Option<u16>, waited: Duration) {
        let Some(next) = shorter(used).filter(|_| waited >= STUCK) else { return };
        let used = used.unwrap_or(0);
        // Of several connections with the same segments the first one decides.
        if self.now.compare_exchange(used, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            tracing::warn!(
                segment = next,
                "no answer to long packets: the next connections have shorter segments"
            );
        }
    }
}

/// The next that is tried.
fn shorter(than: Option<u16>) -> Option<u16> {
    SHORTER.into_iter().find(|bytes| than.is_none_or(|than| *bytes < than))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn segments_shortened_once_for_all() {
        let segments = Segments::new(None);
        segments.stuck(None, Duration::from_secs(1));
        assert_eq!(segments.next(), None, "a connection that was cut");
        (0..8).for_each(|_| segments.stuck(None, LONG));
        assert_eq!(segments.next(), Some(1220));
        segments.stuck(Some(1220), LONG);
        segments.stuck(Some(516), LONG);
        assert_eq!(segments.next(), Some(516));
        assert_eq!(Segments::new(Some(1000)).next(), Some(1000));
        let asked = Segments::new(Some(1000));
        asked.stuck(Some(1000), LONG);
        assert_eq!(asked.next(), Some(516));
    }

    #[test]
    fn unanswered_attempts_alternate() {
        let segments = Segments::new(None);
        assert!(!segments.not_connected(Duration::from_millis(1)), "refused");
        assert_eq!(segments.next(), None);
        assert!(segments.not_connected(LONG));
        assert_eq!(segments.next(), Some(1220));
        assert!(segments.not_connected(LONG));
        assert_eq!(segments.next(), None);
        // The path was cut.
        segments.connected(None);
        assert_eq!(segments.next(), None);
        segments.not_connected(LONG);
        segments.connected(segments.next());
        assert_eq!(segments.next(), Some(1220));
    }
}
