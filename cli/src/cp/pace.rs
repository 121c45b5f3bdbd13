//! A bound on bytes a second.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use uiw_copy::protocol::BLOCK;

/// Bytes that may go at once after a pause, as time at the rate.
const BURST: Duration = Duration::from_millis(100);

/// Bytes a second at least: blocks of 1 MiB go as a whole, and a server ends a connection that is
/// silent for longer than this takes.
const LEAST: u64 = 64 << 10;
/// How long a connection may have to wait for its turn.
const TURN: Duration = Duration::from_secs(20);

/// Common to all connections of a transfer.
#[derive(Debug)]
pub(super) struct Pace {
    bytes_per_second: u64,
    /// When everything that was let through will have been sent at that rate.
    busy_until: Mutex<Instant>,
}

impl Pace {
    pub(super) fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), busy_until: Mutex::new(Instant::now()) }
    }

    /// So many connections at most that each has its turn soon enough, at least one.
    pub(super) fn stripes(&self) -> u16 {
        let blocks = self.bytes_per_second.saturating_mul(TURN.as_secs()) / BLOCK;
        u16::try_from(blocks).unwrap_or(u16::MAX).max(1)
    }

    /// How long the caller must wait before it sends these bytes.
    fn delay(&self, bytes: u64, now: Instant) -> Duration {
        let mut busy_until = self.busy_until.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = (*busy_until).max(now.checked_sub(BURST).unwrap_or(now));
        *busy_until = begin + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        begin.saturating_duration_since(now)
    }

    /// When these bytes may be sent.
    pub(super) fn turn(&self, bytes: u64) -> Instant {
        let now = Instant::now();
        now + self.delay(bytes, now)
    }
}

/// Bytes a second: `25M` and the like are bytes, `200Mbit` are bits.
pub(super) fn rate(text: &str) -> Result<u64, String> {
    let wrong = || "expected bytes a second, such as 500K or 25M, or bits, such as 200Mbit".to_owned();
    let bytes = if text.ends_with("bit") {
        crate::wan::rate(text).map(|bits| bits / 8)
    } else {
        crate::shared::args::large_bytes(text)
    };
    match bytes {
        Ok(1..LEAST) => Err("expected at least 64K, as blocks of 1 MiB are copied".to_owned()),
        Ok(1..) => bytes,
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        assert_eq!(rate("200Mbit"), Ok(25_000_000));
        assert_eq!(rate("1Gbit"), Ok(125_000_000));
        assert_eq!(rate("500K"), Ok(500 << 10));
        assert_eq!(rate("64K"), Ok(64 << 10));
        for bad in ["0", "x", "Mbit", "7bit", "-1M", "", "63K", "1", "500Kbit"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn small_rate_uses_few_connections() {
        assert_eq!([LEAST, 256 << 10, 25 << 20].map(|rate| Pace::new(rate).stripes()), [1, 5, 500]);
    }

    #[test]
    fn delays_add_up_to_the_rate() {
        let now = Instant::now();
        let pace = Pace::new(1000);
        let waited: Vec<_> = (0..3).map(|_| pace.delay(500, now)).collect();
        assert_eq!([waited[1] - waited[0], waited[2] - waited[1]], [Duration::from_millis(500); 2]);
        // A pause is no credit beyond a burst.
        let later = now + Duration::from_secs(60);
        assert!(pace.delay(500, later).is_zero());
        assert_eq!(pace.delay(1, later), Duration::from_millis(400));
    }
}
