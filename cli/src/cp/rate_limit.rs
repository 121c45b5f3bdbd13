//! A limit for bytes per second.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use uiw_copy::protocol::BLOCK;

/// Burst that is permitted after a pause, as the time that it takes at the limited rate.
const BURST: Duration = Duration::from_millis(100);

/// Minimum rate in bytes per second. Blocks of 1 MiB are sent as a whole, and at a lower rate the
/// server would close a connection that is silent for too long.
const LEAST: u64 = 64 << 10;
/// Maximum time that a connection should wait until it may send.
const TURN: Duration = Duration::from_secs(20);

/// Rate limit of all connections of a transfer together.
#[derive(Debug)]
pub(super) struct RateLimit {
    bytes_per_second: u64,
    /// Time when all permitted bytes will have been sent at the limited rate.
    busy_until: Mutex<Instant>,
}

impl RateLimit {
    pub(super) fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), busy_until: Mutex::new(Instant::now()) }
    }

    /// Returns the maximum number of connections for which each may send often enough. It is at
    /// least one.
    pub(super) fn max_stripes(&self) -> u16 {
        let blocks = self.bytes_per_second.saturating_mul(TURN.as_secs()) / BLOCK;
        u16::try_from(blocks).unwrap_or(u16::MAX).max(1)
    }

    /// Reserves the time to send these bytes, and returns how long the caller must wait before.
    fn delay(&self, bytes: u64, now: Instant) -> Duration {
        let mut busy_until = self.busy_until.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = (*busy_until).max(now.checked_sub(BURST).unwrap_or(now));
        *busy_until = begin + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        begin.saturating_duration_since(now)
    }

    /// Reserves the time to send these bytes, and returns when it begins.
    pub(super) fn reserve(&self, bytes: u64) -> Instant {
        let now = Instant::now();
        now + self.delay(bytes, now)
    }
}

/// Parses a rate, and returns bytes per second. `25M` means bytes, `200Mbit` means bits.
pub(super) fn parse_rate(text: &str) -> Result<u64, String> {
    let wrong =
        || "expected bytes a second, such as 500K or 25M, or bits, such as 200Mbit".to_owned();
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
        assert_eq!(parse_rate("200Mbit"), Ok(25_000_000));
        assert_eq!(parse_rate("1Gbit"), Ok(125_000_000));
        assert_eq!(parse_rate("500K"), Ok(500 << 10));
        assert_eq!(parse_rate("64K"), Ok(64 << 10));
        for bad in ["0", "x", "Mbit", "7bit", "-1M", "", "63K", "1", "500Kbit"] {
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn small_rate_uses_few_connections() {
        assert_eq!(
            [LEAST, 256 << 10, 25 << 20].map(|rate| RateLimit::new(rate).max_stripes()),
            [1, 5, 500]
        );
    }

    #[test]
    fn delays_add_up_to_the_rate() {
        let now = Instant::now();
        let pace = RateLimit::new(1000);
        let waited: Vec<_> = (0..3).map(|_| pace.delay(500, now)).collect();
        assert_eq!([waited[1] - waited[0], waited[2] - waited[1]], [Duration::from_millis(500); 2]);
        // A pause gives no more credit than one burst.
        let later = now + Duration::from_secs(60);
        assert!(pace.delay(500, later).is_zero());
        assert_eq!(pace.delay(1, later), Duration::from_millis(400));
    }
}
