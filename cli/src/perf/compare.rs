//! `uiw perf --compare`: measures uiw and raw TCP in alternating time slices, each on a new
//! connection. Each round has a second slice of raw TCP, which shows how much of a difference is
//! noise.

use super::plan::MeasurementPlan;
use super::raw::{RawMeasurement, RawTcpClient};
use super::run::{PerfOutcome, PerfRun, histogram};
use crate::shared::fail::{Failure, Result};
use crate::shared::text::Progress;
use hdrhistogram::Histogram;
use std::net::SocketAddr;
use std::time::Duration;
use uiw::raw::{Device, Pd};

/// Sizes of raw writes and reads that are tried. The comparison uses the faster one.
const RAW_SIZES: [u32; 2] = [64_000, 256 << 10];
/// Messages smaller than this are also compared with raw TCP that writes each message separately.
const SMALL: u32 = 4096;
/// Number of slices for each of [`RAW_SIZES`].
const TRIES: usize = 5;

/// Median and quartiles.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Quartiles {
    pub(crate) median: f64,
    pub(crate) q1: f64,
    pub(crate) q3: f64,
}

impl Quartiles {
    pub(crate) fn from_values(mut values: Vec<f64>) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        let at = |part: f64| {
            let place = part * values.len().saturating_sub(1) as f64;
            let (low, high) =
                (values.get(place.floor() as usize), values.get(place.ceil() as usize));
            let (low, high) = (low.copied().unwrap_or_default(), high.copied().unwrap_or_default());
            low + (high - low) * place.fract()
        };
        Self { median: at(0.5), q1: at(0.25), q3: at(0.75) }
    }
}

/// Processor time in nanoseconds for each byte, or for each round trip of a ping-pong.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CpuCost {
    pub(crate) client: f64,
    pub(crate) server: f64,
}

/// Result of a comparison.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    pub(crate) slices: usize,
    pub(crate) slice_seconds: f64,
    /// Bytes of a raw write and read.
    pub(crate) raw_size: u32,
    /// Bytes per second, or the median round trip of a slice in microseconds.
    pub(crate) ours: Quartiles,
    pub(crate) raw: Quartiles,
    /// Ratio of uiw to raw TCP, slice by slice.
    pub(crate) ratio: Quartiles,
    /// Ratio of the second slice of raw TCP to the first one.
    pub(crate) noise: Quartiles,
    /// Present for small messages only.
    pub(crate) one_by_one: Option<PerMessageRatio>,
    /// 99th percentiles of a ping-pong in microseconds, of uiw and of raw TCP.
    pub(crate) p99: Option<(Quartiles, Quartiles)>,
    /// Means of a ping-pong in microseconds, of uiw and of raw TCP.
    pub(crate) mean: Option<(Quartiles, Quartiles)>,
    pub(crate) cpu_ours: CpuCost,
    pub(crate) cpu_raw: CpuCost,
    /// Last slice of uiw, which has the properties of the path.
    pub(crate) last: PerfOutcome,
}

/// Comparison with raw TCP that makes one write for each message (TCP_NODELAY).
#[derive(Clone, Copy, Debug)]
pub(crate) struct PerMessageRatio {
    /// Bytes of a raw message: the size of our messages, or a substitute for atomics (see
    /// [`MeasurementPlan::raw_message`]).
    pub(crate) size: u32,
    /// Raw messages per second.
    pub(crate) raw: Quartiles,
    /// Ratio of our messages per second to the raw ones.
    pub(crate) ratio: Quartiles,
}

/// Result of one slice: the figure that is compared, and its processor time.
struct TimeSlice {
    figure: f64,
    /// Messages per second.
    messages: f64,
    tail: Option<LatencyTail>,
    /// Number of bytes, or of round trips of a ping-pong.
    units: f64,
    cpu_client_ns: u64,
    cpu_server_ns: u64,
}

/// Figures of a ping-pong in addition to its median, in microseconds.
#[derive(Clone, Copy)]
struct LatencyTail {
    p99: f64,
    mean: f64,
}

impl LatencyTail {
    fn from_histogram(histogram: &Histogram<u64>) -> Self {
        Self { p99: us_at(histogram, 0.99), mean: histogram.mean() / 1e3 }
    }
}

/// Number and length of the slices of a comparison.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SliceSettings {
    pub(crate) count: usize,
    /// `None` if the length depends on the round-trip time of the path.
    pub(crate) time: Option<Duration>,
}

/// Returns the length of a slice. Every slice begins with a new connection, whose congestion window
/// needs about ten round trips to grow.
fn slice_time(round_trip: Duration) -> Duration {
    const LEAST: Duration = Duration::from_millis(200);
    const ROUND_TRIPS: u32 = 50;
    (round_trip * ROUND_TRIPS).max(LEAST)
}

/// Measures uiw and raw TCP alternately.
pub(crate) fn compare(
    device: &Device,
    pd: &Pd,
    peer: SocketAddr,
    plan: &MeasurementPlan,
    SliceSettings { count: slices, time }: SliceSettings,
    progress: &mut Progress,
) -> Result<Comparison> {
    let (raw, raw_link) = RawTcpClient::open(device, pd, peer, &plan.peer_options)?;
    let round_trip = raw_link.qp.path().and_then(|path| path.stream.min_rtt_us).unwrap_or(0);
    let time = time.unwrap_or_else(|| slice_time(Duration::from_micros(round_trip.into())));
    let plan = &MeasurementPlan { time, ..plan.clone() };
    let bench = ComparedPair { device, pd, peer, plan, raw };
    let raw_size = bench.choose_raw_size(TRIES.min(slices))?;
    let mut last = None;
    let (mut ours, mut first, mut second, mut small) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let steps = if !plan.latency && plan.size < SMALL { 4 } else { 3 };
    for round in 0..slices {
        progress.show(|| format!("comparing with raw TCP: slice {} of {slices}", round + 1));
        // The order rotates with every round, so that no measurement always follows the same other
        // one.
        for step in 0..steps {
            match (round + step) % steps {
                0 => first.push(bench.measure_raw(raw_size)?),
                1 => {
                    let (slice, outcome) = bench.measure_ours()?;
                    ours.push(slice);
                    last = Some(outcome);
                }
                2 => second.push(bench.measure_raw(raw_size)?),
                _ => small.push(bench.measure_raw(plan.raw_message())?),
            }
        }
    }
    progress.clear();
    let Some(last) = last else {
        return Err(Failure::usage("--slices 0", "nothing to compare", "use at least one slice"));
    };
    let figures =
        |slices: &[TimeSlice]| slices.iter().map(|slice| slice.figure).collect::<Vec<_>>();
    let ratio = |a: &[TimeSlice], b: &[TimeSlice]| {
        Quartiles::from_values(a.iter().zip(b).map(|(a, b)| a.figure / b.figure).collect())
    };
    Ok(Comparison {
        slices,
        slice_seconds: plan.time.as_secs_f64(),
        raw_size,
        ours: Quartiles::from_values(figures(&ours)),
        raw: Quartiles::from_values(figures(&first)),
        ratio: ratio(&ours, &first),
        noise: ratio(&second, &first),
        one_by_one: (steps == 4).then(|| PerMessageRatio {
            size: plan.raw_message(),
            raw: Quartiles::from_values(small.iter().map(|slice| slice.messages).collect()),
            ratio: Quartiles::from_values(
                ours.iter().zip(&small).map(|(a, b)| a.messages / b.messages).collect(),
            ),
        }),
        p99: tail(&ours, |tail| tail.p99).zip(tail(&first, |tail| tail.p99)),
        mean: tail(&ours, |tail| tail.mean).zip(tail(&first, |tail| tail.mean)),
        cpu_ours: cpu(&ours),
        cpu_raw: cpu(&first),
        last,
    })
}

struct ComparedPair<'a> {
    device: &'a Device,
    pd: &'a Pd,
    peer: SocketAddr,
    plan: &'a MeasurementPlan,
    raw: RawTcpClient,
}

impl ComparedPair<'_> {
    fn measure_ours(&self) -> Result<(TimeSlice, PerfOutcome)> {
        let outcome =
            PerfRun::connect(self.device, self.pd, self.peer, self.plan)?.measure(&mut ())?;
        let (figure, units) = match &outcome.round_trips {
            Some(histogram) => (us_at(histogram, 0.5), histogram.len() as f64),
            None => (outcome.rate(), outcome.bytes as f64),
        };
        let (cpu_client_ns, cpu_server_ns) = (outcome.cpu_client_ns, outcome.cpu_server_ns);
        let messages = outcome.messages as f64 / outcome.seconds;
        let tail = outcome.round_trips.as_ref().map(LatencyTail::from_histogram);
        Ok((TimeSlice { figure, messages, tail, units, cpu_client_ns, cpu_server_ns }, outcome))
    }

    fn measure_raw(&self, size: u32) -> Result<TimeSlice> {
        let (mut figure, mut tail) = (None, None);
        let measured = if self.plan.latency {
            let mut histogram = histogram()?;
            let measured = self.raw.ping_pong(self.plan.wait, size, self.plan.time, |took| {
                histogram.saturating_record(took.as_nanos() as u64);
            })?;
            figure = Some((us_at(&histogram, 0.5), histogram.len() as f64));
            tail = Some(LatencyTail::from_histogram(&histogram));
            measured
        } else {
            self.raw.measure_slice(
                self.plan.raw_direction(),
                size,
                self.memory(),
                self.plan.time,
            )?
        };
        let RawMeasurement { bytes, cpu_client_ns, cpu_server_ns, .. } = measured;
        let (figure, units) = figure.unwrap_or((measured.rate(), bytes as f64));
        let messages = measured.rate() / f64::from(size);
        Ok(TimeSlice { figure, messages, tail, units, cpu_client_ns, cpu_server_ns })
    }

    /// Returns the size in bytes of the memory that the messages of a connection come from.
    fn memory(&self) -> u32 {
        self.plan.size.saturating_mul(self.plan.depth)
    }

    /// Returns the size of a raw write in bytes: the size of a message in a ping-pong, otherwise
    /// the fastest one of [`RAW_SIZES`].
    fn choose_raw_size(&self, tries: usize) -> Result<u32> {
        if self.plan.latency {
            return Ok(self.plan.size);
        }
        let mut rates = RAW_SIZES.map(|size| (size, Vec::new()));
        for _ in 0..tries {
            for (size, rates) in &mut rates {
                rates.push(
                    self.raw
                        .measure_slice(
                            self.plan.raw_direction(),
                            *size,
                            self.memory(),
                            self.plan.time,
                        )?
                        .rate(),
                );
            }
        }
        let best = rates
            .map(|(size, rates)| (size, Quartiles::from_values(rates).median))
            .into_iter()
            .max_by(|a, b| a.1.total_cmp(&b.1));
        Ok(best.map_or(RAW_SIZES[0], |(size, _)| size))
    }
}

/// Returns a quantile in microseconds of a histogram of nanoseconds.
pub(crate) fn us_at(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    Duration::from_nanos(histogram.value_at_quantile(quantile)).as_secs_f64() * 1e6
}

fn tail(slices: &[TimeSlice], of: fn(&LatencyTail) -> f64) -> Option<Quartiles> {
    let all = slices.iter().map(|slice| slice.tail.as_ref().map(of));
    all.collect::<Option<Vec<_>>>().map(Quartiles::from_values)
}

fn cpu(slices: &[TimeSlice]) -> CpuCost {
    let units: f64 = slices.iter().map(|slice| slice.units).sum();
    let sum =
        |cost: fn(&TimeSlice) -> u64| slices.iter().map(cost).sum::<u64>() as f64 / units.max(1.0);
    CpuCost { client: sum(|slice| slice.cpu_client_ns), server: sum(|slice| slice.cpu_server_ns) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_long_enough_for_path() {
        assert_eq!(slice_time(Duration::from_micros(30)), Duration::from_millis(200));
        assert_eq!(slice_time(Duration::from_millis(100)), Duration::from_secs(5));
    }

    #[test]
    fn quartiles_of_few_and_many() {
        assert_eq!(Quartiles::from_values(vec![]), Quartiles::default());
        assert_eq!(Quartiles::from_values(vec![2.0]), Quartiles { median: 2.0, q1: 2.0, q3: 2.0 });
        assert_eq!(
            Quartiles::from_values(vec![4.0, 1.0, 3.0, 2.0, 5.0]),
            Quartiles { median: 3.0, q1: 2.0, q3: 4.0 }
        );
        assert_eq!(Quartiles::from_values(vec![1.0, 2.0]).median, 1.5);
    }
}
