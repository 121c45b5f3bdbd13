//! Output of a running measurement: intervals, and a progress line on a terminal.

use super::compare::us_at;
use super::run::{MeasurementWatcher, histogram};
use crate::shared::fail::Result;
use crate::shared::text::{self, Progress};
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use std::time::Duration;

/// One interval of a measurement.
#[derive(Clone, Debug)]
pub(super) struct Interval {
    pub(super) from: Duration,
    pub(super) to: Duration,
    pub(super) messages: u64,
    pub(super) bytes: u64,
    /// Minimum, median, 99th percentile and maximum of the round trips of a ping-pong, in
    /// microseconds.
    round_trips: Option<[f64; 4]>,
}

impl Interval {
    /// Returns the bytes per second.
    pub(super) fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds()
    }

    fn seconds(&self) -> f64 {
        (self.to - self.from).as_secs_f64().max(1e-9)
    }

    pub(super) fn line(&self) -> String {
        let span = format!("{:>7.2} to {:>7.2} s", self.from.as_secs_f64(), self.to.as_secs_f64());
        match self.round_trips {
            Some([_, p50, p99, max]) => format!(
                "{span} {:>10} rounds   p50 {}   p99 {}   max {}",
                text::grouped(self.messages),
                text::micros(p50),
                text::micros(p99),
                text::micros(max),
            ),
            None => {
                let messages = text::grouped((self.messages as f64 / self.seconds()) as u64);
                format!("{span} {:>12} {messages:>13} messages/s", text::rate(self.rate()))
            }
        }
    }

    pub(super) fn json(&self) -> Value {
        let mut value = json!({
            "type": "interval",
            "from": self.from.as_secs_f64(),
            "to": self.to.as_secs_f64(),
            "messages": self.messages,
        });
        match self.round_trips {
            Some([min, p50, p99, max]) => {
                value["round_trip_us"] = json!({"min": min, "p50": p50, "p99": p99, "max": max});
            }
            None => {
                value["bytes"] = self.bytes.into();
                value["bytes_per_second"] = self.rate().into();
            }
        }
        value
    }
}

/// Shows the progress of a measurement and splits it into intervals.
pub(super) struct IntervalReporter<F> {
    progress: Progress,
    size: u32,
    /// Length of an interval.
    every: Option<Duration>,
    /// Time at which the current interval began.
    from: Duration,
    /// Number of messages before the current interval.
    before: u64,
    /// Time of the last report, and the number of messages until then.
    last: (Duration, u64),
    round_trips: Option<Histogram<u64>>,
    /// Completed intervals.
    over: Vec<Interval>,
    /// Called with each interval as soon as it is complete.
    show: F,
}

impl<F: FnMut(&Interval)> IntervalReporter<F> {
    /// Creates a reporter for messages of `size` bytes. `latency` means that they belong to a
    /// ping-pong.
    pub(super) fn new(size: u32, latency: bool, every: Option<Duration>, show: F) -> Result<Self> {
        let round_trips = if latency && every.is_some() { Some(histogram()?) } else { None };
        let (from, before, last) = (Duration::ZERO, 0, (Duration::ZERO, 0));
        let progress = Progress::new();
        Ok(Self { progress, size, every, from, before, last, round_trips, over: Vec::new(), show })
    }

    /// Ends the measurement, after `messages` messages in `elapsed`. The last interval may be
    /// shorter than the others.
    pub(super) fn end(mut self, messages: u64, elapsed: Duration) -> Vec<Interval> {
        self.last = (elapsed.max(self.from), messages);
        // A last interval without messages counts only if it lasted for a tenth of an interval.
        if self
            .every
            .is_some_and(|every| messages > self.before || self.last.0 >= self.from + every / 10)
        {
            self.close();
        }
        self.progress.clear();
        self.over
    }

    /// Ends the current interval at the time of the last report.
    fn close(&mut self) {
        self.progress.clear();
        let (to, messages) = self.last;
        let count = messages - self.before;
        let interval = Interval {
            from: std::mem::replace(&mut self.from, to),
            to,
            messages: count,
            bytes: count * u64::from(self.size),
            round_trips: self.round_trips.as_ref().map(|histogram| {
                // Keeping the histograms would take several hundred KiB for each interval.
                [0.0, 0.5, 0.99, 1.0].map(|quantile| us_at(histogram, quantile))
            }),
        };
        self.before = messages;
        if let Some(histogram) = &mut self.round_trips {
            histogram.reset();
        }
        (self.show)(&interval);
        self.over.push(interval);
    }
}

impl<F: FnMut(&Interval)> MeasurementWatcher for IntervalReporter<F> {
    fn on_progress(&mut self, messages: u64, elapsed: Duration) {
        let size = self.size;
        self.last = (elapsed, messages);
        if self.every.is_some_and(|every| elapsed >= self.from + every) {
            self.close();
        }
        self.progress.show(|| {
            let rate = messages as f64 * f64::from(size) / elapsed.as_secs_f64().max(1e-9);
            format!("{size} bytes: {} after {:.1} s", text::rate(rate), elapsed.as_secs_f64())
        });
    }

    fn on_round_trip(&mut self, ns: u64) {
        if let Some(histogram) = &mut self.round_trips {
            histogram.saturating_record(ns);
        }
    }

    fn next_due(&self) -> Option<Duration> {
        self.every.map(|every| self.from + every)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_counts_own_operations() {
        let mut shown = 0;
        let second = Duration::from_secs(1);
        let mut intervals =
            IntervalReporter::new(100, false, Some(second), |_| shown += 1).unwrap();
        assert_eq!(intervals.next_due(), Some(second));
        intervals.on_progress(5, second / 2);
        intervals.on_progress(20, second);
        intervals.on_progress(20, second * 3);
        let over = intervals.end(24, second * 7 / 2);
        assert_eq!(shown, 3);
        let seen: Vec<_> = over.iter().map(|i| (i.from, i.to, i.messages, i.bytes)).collect();
        let expected = [
            (Duration::ZERO, second, 20, 2000),
            (second, second * 3, 0, 0),
            (second * 3, second * 7 / 2, 4, 400),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn interval_has_own_round_trips() {
        let second = Duration::from_secs(1);
        let mut intervals = IntervalReporter::new(64, true, Some(second), |_| ()).unwrap();
        intervals.on_round_trip(1_000_000);
        intervals.on_progress(1, second);
        intervals.on_round_trip(2_000);
        intervals.on_progress(2, second * 2);
        let over = intervals.end(2, second * 2);
        assert_eq!(over.len(), 2);
        let most = |interval: &Interval| interval.json()["round_trip_us"]["max"].as_f64().unwrap();
        assert!(most(&over[0]) >= 999.0 && most(&over[1]) < 3.0, "{over:?}");
    }
}
