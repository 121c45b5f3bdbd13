//! Statistics of round-trip times, in a constant amount of memory.

use crate::perf::histogram;
use crate::shared::fail::Result;
use hdrhistogram::Histogram;
use std::time::Duration;

/// Statistics of round-trip times: a histogram with three significant digits, and the exact
/// extremes and sum.
pub(super) struct RoundTripTimes {
    histogram: Histogram<u64>,
    sum: Duration,
    extremes: Option<(Duration, Duration)>,
}

impl RoundTripTimes {
    pub(super) fn new() -> Result<Self> {
        Ok(Self { histogram: histogram()?, sum: Duration::ZERO, extremes: None })
    }

    pub(super) fn add(&mut self, time: Duration) {
        // The histogram counts times above a minute as a minute.
        self.histogram.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        self.sum += time;
        let (least, most) = self.extremes.unwrap_or((time, time));
        self.extremes = Some((least.min(time), most.max(time)));
    }

    pub(super) fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the minimum, mean, median, 99th percentile and maximum in microseconds, or `None` if
    /// there are no times.
    pub(super) fn micros(&self) -> Option<[f64; 5]> {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let (least, most) = self.extremes.map(|(least, most)| (us(least), us(most)))?;
        // The histogram rounds up, so its quantiles can lie outside the exact extremes.
        let at =
            |quantile| (self.histogram.value_at_quantile(quantile) as f64 / 1e3).clamp(least, most);
        Some([least, us(self.sum) / self.count() as f64, at(0.5), at(0.99), most])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ping_memory_stays_bounded() {
        let mut times = RoundTripTimes::new().unwrap();
        assert_eq!(times.micros(), None);
        let buckets = times.histogram.distinct_values();
        for us in (1..=1000).cycle().take(100_000) {
            times.add(Duration::from_micros(us));
        }
        times.add(Duration::from_secs(1000));
        assert_eq!((times.count(), times.histogram.distinct_values()), (100_001, buckets));
        let [least, mean, median, late, most] = times.micros().unwrap();
        assert_eq!((least, most), (1.0, 1e9));
        assert!((mean - 10_500.4).abs() < 1.0, "{mean}");
        assert!((median - 501.0).abs() < 2.0 && (late - 991.0).abs() < 2.0, "{median} {late}");
    }
}
