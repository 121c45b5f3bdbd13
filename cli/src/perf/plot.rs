//! A measurement as a picture.

use super::intervals::Interval;
use crate::fail::{Exit, Failure, Result};
use hdrhistogram::Histogram;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;

const SIZE: (u32, u32) = (960, 480);
const COLOUR: RGBColor = RGBColor(0x1f, 0x6f, 0xb4);

fn failed(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Failed, path.display(), error, "choose a file that can be written")
}

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn canvas(path: &Path) -> Drawn<Canvas<'_>> {
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    Ok(area)
}

/// A chart with room for its title and labels.
fn chart<'a, 'b>(area: &'a Canvas<'b>, title: &str) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut chart = ChartBuilder::on(area);
    chart.caption(title, ("sans-serif", 20)).margin(12).x_label_area_size(40).y_label_area_size(80);
    chart
}

/// Bytes a second over time.
pub(super) fn throughput(path: &Path, title: &str, intervals: &[Interval]) -> Result<()> {
    // A step for each interval.
    let points = intervals.iter().flat_map(|interval| {
        [interval.from, interval.to].map(|time| (time.as_secs_f64(), interval.rate() / 1e6))
    });
    let end = intervals.last().map_or(1.0, |last| last.to.as_secs_f64());
    let most = intervals.iter().map(|interval| interval.rate() / 1e6).fold(f64::MIN_POSITIVE, f64::max);
    let draw = || -> Drawn<()> {
        let area = canvas(path)?;
        let mut chart = chart(&area, title).build_cartesian_2d(0.0..end, 0.0..most * 1.1)?;
        chart.configure_mesh().max_light_lines(0).x_desc("seconds").y_desc("MB/s").draw()?;
        chart.draw_series(LineSeries::new(points, COLOUR.stroke_width(2)))?;
        area.present()?;
        Ok(())
    };
    draw().map_err(|error| failed(path, error))
}

/// The round trip at each quantile; the axis of quantiles is stretched towards 1, where the long ones are.
pub(super) fn quantiles(path: &Path, title: &str, histogram: &Histogram<u64>) -> Result<()> {
    // One of so many round trips is longer.
    let one_of = |quantile: f64| 1.0 / (1.0 - quantile);
    let longest = (histogram.len().max(10)) as f64;
    let mut points: Vec<(f64, f64)> = histogram
        .iter_quantiles(8)
        .map(|step| (one_of(step.quantile()).min(longest), step.value_iterated_to() as f64 / 1e3))
        .collect();
    points.dedup_by_key(|point| point.0.to_bits());
    let least = points.first().map_or(1.0, |point| point.1).max(0.1);
    let most = points.last().map_or(1.0, |point| point.1).max(least * 2.0);
    let label = |of: &f64| format!("{}", 100.0 * (1.0 - 1.0 / of));
    let draw = || -> Drawn<()> {
        let area = canvas(path)?;
        let mut chart = chart(&area, title)
            .build_cartesian_2d((1.0..longest).log_scale(), (least * 0.9..most * 1.1).log_scale())?;
        let mut mesh = chart.configure_mesh();
        mesh.max_light_lines(0)
            .x_desc("percentile")
            .y_desc("round trip, us")
            .x_label_formatter(&label)
            .draw()?;
        chart.draw_series(LineSeries::new(points.iter().copied(), COLOUR.stroke_width(2)))?;
        area.present()?;
        Ok(())
    };
    draw().map_err(|error| failed(path, error))
}
