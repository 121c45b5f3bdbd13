//! A measurement as a picture.

use super::intervals::Interval;
use crate::fail::{Exit, Failure, Result};
use hdrhistogram::Histogram;
use std::path::Path;
use uiw_cli::plot::{Axes, Chart, Line, draw, percentiles};

fn one(path: &Path, chart: Chart) -> Result<()> {
    draw(path, &[chart]).map_err(|error| {
        Failure::new(Exit::Failed, path.display(), error, "choose a file that can be written")
    })
}

/// Bytes a second over time.
pub(super) fn throughput(path: &Path, title: &str, intervals: &[Interval]) -> Result<()> {
    // A step for each interval.
    let points = intervals.iter().flat_map(|interval| {
        [interval.from, interval.to].map(|time| (time.as_secs_f64(), interval.rate() / 1e6))
    });
    let lines = vec![Line { points: points.collect(), ..Line::default() }];
    one(path, Chart { title: title.to_owned(), x: "seconds", y: "MB/s", lines, axes: Axes::Linear })
}

/// The round trip at each quantile.
pub(super) fn quantiles(path: &Path, title: &str, histogram: &Histogram<u64>) -> Result<()> {
    let lines = vec![Line { points: percentiles(histogram), ..Line::default() }];
    let (x, y) = ("percentile", "round trip, us");
    one(path, Chart { title: title.to_owned(), x, y, lines, axes: Axes::Percentiles })
}
