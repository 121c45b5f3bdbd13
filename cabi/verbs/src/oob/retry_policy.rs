//! Time-outs of an out-of-band connected queue pair, from the attributes of InfiniBand.

use std::time::Duration;
use uiw_cabi_core::settings::Settings;
use uiw_verbs::Qp;

/// Time-outs of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetryPolicy {
    /// Time-out of the connection, which starts with the first post; `None` means no limit.
    pub(super) connection: Option<Duration>,
    /// Time for which an inbound Send waits for a receive.
    pub(super) receive: Duration,
    /// Time-out of acknowledgements according to the attributes (local ACK time-out and retries);
    /// `None` means no limit.
    pub(super) acknowledgement: Option<Duration>,
}

impl RetryPolicy {
    /// Policy until the attributes of RTS are known.
    pub(super) const UNLIMITED: Self =
        Self { connection: None, receive: Duration::MAX, acknowledgement: None };

    /// Policy of unreliable queue pairs, whose attributes contain no time-outs. Messages to a peer
    /// that does not connect are lost after some time. The receive time-out covers the moments in
    /// which a program that polls and posts receives is not running.
    pub(crate) const UNRELIABLE: Self = Self {
        connection: Some(Self::MIN_CONNECTION),
        receive: Duration::from_millis(50),
        acknowledgement: None,
    };

    /// Minimum time-out of a connection. Connecting takes longer than repeating a lost packet on
    /// InfiniBand, because of TCP's own time-outs and the second for which the other end waits.
    const MIN_CONNECTION: Duration = Duration::from_secs(3);

    /// Creates a policy from the attributes of InfiniBand: the local ACK time-out with its number
    /// of retries, and the delay and number of retries for receivers that are not ready.
    pub(crate) fn new(timeout: u8, retry_cnt: u8, min_rnr_timer: u8, rnr_retry: u8) -> Self {
        let acknowledgement = acknowledgement_time(timeout, retry_cnt);
        let connection = acknowledgement.map(|time| time.max(Self::MIN_CONNECTION));
        Self { connection, receive: receive_time(min_rnr_timer, rnr_retry), acknowledgement }
    }

    /// Sets the time-outs of a connected queue pair.
    pub(super) fn apply(&self, qp: &Qp) {
        // If the connection has ended meanwhile, the failure does not matter.
        let _ = qp.set_no_receive_timeout(self.receive);
        if let Ok(settings) = Settings::get() {
            let _ = qp.set_dead_after(settings.dead_after(self.acknowledgement));
        }
    }
}

/// Returns the time for which InfiniBand waits for an acknowledgement, including retries; `None`
/// means no limit.
pub fn acknowledgement_time(timeout: u8, retry_cnt: u8) -> Option<Duration> {
    let once = Duration::from_nanos(4096 << (timeout & 31));
    (timeout & 31 != 0).then(|| once * (u32::from(retry_cnt & 7) + 1))
}

/// Returns the time for which InfiniBand waits for a receiver that is not ready: the sum over all
/// attempts.
pub fn receive_time(min_rnr_timer: u8, rnr_retry: u8) -> Duration {
    match rnr_retry & 7 {
        7 => Duration::MAX,
        times => rnr_delay(min_rnr_timer) * (u32::from(times) + 1),
    }
}

/// Returns the delay for a value of `min_rnr_timer`, from a table in units of ten microseconds
/// (InfiniBand Architecture, table "RNR NAK timer").
fn rnr_delay(value: u8) -> Duration {
    const STEPS: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    Duration::from_micros(STEPS[usize::from(value & 31)] * 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_follow_the_attributes() {
        let policy = RetryPolicy::new(18, 7, 12, 7);
        assert_eq!(policy.connection, Some(Duration::from_nanos(4096 << 18) * 8));
        assert_eq!(policy.receive, Duration::MAX);
        assert_eq!(RetryPolicy::new(14, 0, 12, 7).connection, Some(RetryPolicy::MIN_CONNECTION));
        assert_eq!(RetryPolicy::new(0, 7, 12, 7).connection, None);
        // 12 stands for 0.64 ms. There is one attempt and two retries.
        assert_eq!(RetryPolicy::new(0, 0, 12, 2).receive, Duration::from_micros(640 * 3));
        assert_eq!(rnr_delay(0), Duration::from_micros(655_360));
    }
}
