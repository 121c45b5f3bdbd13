//! Measurements and statistics as pictures (SVG).

use std::path::Path;

use hdrhistogram::Histogram;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

const SIZE: (u32, u32) = (960, 480);
const COLOURS: [RGBColor; 8] = [
    RGBColor(0x1f, 0x6f, 0xb4),
    RGBColor(0xd6, 0x5f, 0x0e),
    RGBColor(0x2c, 0x8c, 0x2c),
    RGBColor(0xb0, 0x2a, 0x37),
    RGBColor(0x7b, 0x4f, 0xa8),
    RGBColor(0x7a, 0x55, 0x48),
    RGBColor(0xc4, 0x4e, 0x9c),
    RGBColor(0x60, 0x60, 0x60),
];
/// Where a chart with a logarithmic axis of sizes has those of 0.
const ZERO: f64 = 0.5;

/// Why there is no picture: in general, the file cannot be written.
pub type Error = Box<dyn std::error::Error>;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A line with its name; the name of an only line may be empty.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// For the legend.
    pub name: String,
    /// In the units of the axes.
    pub points: Vec<(f64, f64)>,
}

/// A chart without its axes' ranges.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Above it.
    pub title: String,
    /// What is drawn to the right.
    pub x: &'static str,
    /// What is drawn upwards.
    pub y: &'static str,
    /// What is drawn.
    pub lines: Vec<Line>,
    /// How the axes are divided.
    pub axes: Axes,
}

/// How the axes of a chart are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axes {
    /// Evenly, both from 0.
    Linear,
    /// x is of [`percentiles`], with percentiles as labels, and y logarithmic.
    Percentiles,
    /// x is of sizes from 0, logarithmic, and y up to 100.
    Sizes,
}

/// Draws charts, one below the other.
///
/// # Errors
/// The file cannot be written.
pub fn draw(path: &Path, charts: &[Chart]) -> Result<(), Error> {
    let count = u32::try_from(charts.len())?.max(1);
    let area = SVGBackend::new(path, (SIZE.0, SIZE.1 * count)).into_drawing_area();
    area.fill(&WHITE)?;
    for (chart, area) in charts.iter().zip(area.split_evenly((charts.len().max(1), 1))) {
        chart.draw(&area)?;
    }
    area.present()?;
    Ok(())
}

impl Chart {
    fn draw(&self, area: &Area<'_>) -> Result<(), Error> {
        let all = || self.lines.iter().flat_map(|line| line.points.iter().copied());
        let most = |of: fn((f64, f64)) -> f64| all().map(of).fold(f64::MIN_POSITIVE, f64::max);
        match self.axes {
            Axes::Linear => {
                let plain = |value: &f64| value.to_string();
                self.draw_on(area, 0.0..most(|p| p.0), 0.0..most(|p| p.1) * 1.1, &plain)
            }
            Axes::Percentiles => {
                let least = all().map(|point| point.1).fold(f64::INFINITY, f64::min);
                let least = if least.is_finite() { least.max(0.1) } else { 1.0 };
                let label = |of: &f64| format!("{}", 100.0 * (1.0 - 1.0 / of));
                let x = (1.0..most(|p| p.0).max(10.0)).log_scale();
                let y = (least * 0.9..most(|p| p.1).max(least * 2.0) * 1.1).log_scale();
                self.draw_on(area, x, y, &label)
            }
            Axes::Sizes => {
                let x = (ZERO..most(|p| p.0).max(10.0) * 1.1).log_scale();
                self.draw_on(area, x, 0.0..105.0, &|value: &f64| value.to_string())
            }
        }
    }

    fn draw_on<X, Y>(
        &self,
        area: &Area<'_>,
        x: X,
        y: Y,
        x_label: &dyn Fn(&f64) -> String,
    ) -> Result<(), Error>
    where
        X: AsRangedCoord<Value = f64>,
        Y: AsRangedCoord<Value = f64>,
        X::CoordDescType: ValueFormatter<f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let mut chart = ChartBuilder::on(area);
        chart.caption(&self.title, ("sans-serif", 20)).margin(12).x_label_area_size(40).y_label_area_size(80);
        let mut chart = chart.build_cartesian_2d(x, y)?;
        let mut mesh = chart.configure_mesh();
        mesh.max_light_lines(0).x_desc(self.x).y_desc(self.y);
        if self.axes == Axes::Percentiles {
            mesh.x_label_formatter(x_label);
        }
        mesh.draw()?;
        for (line, colour) in self.lines.iter().zip(COLOURS.into_iter().cycle()) {
            let drawn =
                chart.draw_series(LineSeries::new(line.points.iter().copied(), colour.stroke_width(2)))?;
            if !line.name.is_empty() {
                drawn.label(&line.name).legend(move |(x, y)| {
                    PathElement::new(vec![(x, y), (x + 20, y)], colour.stroke_width(2))
                });
            }
        }
        if self.lines.iter().any(|line| !line.name.is_empty()) {
            let mut labels = chart.configure_series_labels();
            labels.position(SeriesLabelPosition::LowerRight).background_style(WHITE.mix(0.8)).draw()?;
        }
        Ok(())
    }
}

/// Times in nanoseconds as microseconds at each percentile, for [`Axes::Percentiles`]: the axis is stretched towards 100, where the long ones are.
#[must_use]
pub fn percentiles(times: &Histogram<u64>) -> Vec<(f64, f64)> {
    // One of so many is longer.
    let one_of = |quantile: f64| 1.0 / (1.0 - quantile);
    let longest = (times.len().max(10)) as f64;
    let mut points: Vec<(f64, f64)> = times
        .iter_quantiles(8)
        .map(|step| (one_of(step.quantile()).min(longest), step.value_iterated_to() as f64 / 1e3))
        .collect();
    points.dedup_by_key(|point| point.0.to_bits());
    points
}

/// How many percent of the sizes are at most so large, for [`Axes::Sizes`]: a step for each size.
#[must_use]
pub fn shares(sizes: &Histogram<u64>) -> Vec<(f64, f64)> {
    let mut share = 0.0;
    let mut points = Vec::new();
    for step in sizes.iter_recorded() {
        let size = (step.value_iterated_to() as f64).max(ZERO);
        points.push((size, share));
        share = step.percentile();
        points.push((size, share));
    }
    points
}
