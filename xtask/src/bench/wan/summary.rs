//! Ratios of a row, and whether they reach the bar.

/// What a row's figure is judged by.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

/// The figures of a row.
#[derive(Debug)]
pub(super) struct Figures {
    /// A ratio of each round, or another figure.
    values: Vec<f64>,
    judge: Judge,
    /// Figures behind the ratios, for people.
    note: String,
}

/// Which figure the bar is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judge {
    Median,
    /// The lower bound of the 95 % interval of the geometric mean.
    Interval,
}

impl Figures {
    /// Judged by the median; there is one at least.
    pub(super) fn new(values: Vec<f64>, note: String) -> Self {
        Self { values, judge: Judge::Median, note }
    }

    /// Judged by the interval of the geometric mean.
    pub(super) fn of_many(values: Vec<f64>, note: String) -> Self {
        Self { judge: Judge::Interval, ..Self::new(values, note) }
    }

    /// Prints the row. True when it reaches its bar.
    pub(super) fn print(self, name: &str, bar: Bar, markdown: bool) -> bool {
        let Self { mut values, judge, note } = self;
        values.sort_unstable_by(f64::total_cmp);
        let (middle, low, high) = match judge {
            Judge::Median => (
                median(&values),
                values.first().copied().unwrap_or(f64::NAN),
                values.last().copied().unwrap_or(f64::NAN),
            ),
            Judge::Interval => geometric(&values),
        };
        let judged = if judge == Judge::Median { middle } else { low };
        let (reached, bar) = match bar {
            Bar::AtLeast(bar) => (judged >= bar, format!(">= {bar}")),
            Bar::AtMost(bar) => (judged <= bar, format!("<= {bar}")),
        };
        let verdict = if reached { "reached" } else { "**missed**" };
        if markdown {
            println!("| {name} | {bar} | {middle:.3} | {low:.3} to {high:.3} | {verdict}; {note} |");
        } else {
            let verdict = if reached { "reached" } else { "missed" };
            println!("{name:<48} {bar:>8}  {middle:>7.3} ({low:.3} to {high:.3})  {verdict:<8} {note}");
        }
        reached
    }
}

/// Of sorted values.
fn median(values: &[f64]) -> f64 {
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// The geometric mean and its 95 % interval, by the normal approximation of the logarithms.
fn geometric(values: &[f64]) -> (f64, f64, f64) {
    let count = values.len() as f64;
    let logs: Vec<f64> = values.iter().map(|value| value.ln()).collect();
    let mean = logs.iter().sum::<f64>() / count;
    let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    let half = 1.96 * (variance / count).sqrt();
    (mean.exp(), (mean - half).exp(), (mean + half).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[1.0, 2.0, 9.0]), 2.0);
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), 3.0);
    }

    #[test]
    fn the_geometric_mean_of_a_ratio_and_its_reciprocal_is_one() {
        let (mean, low, high) = geometric(&[0.5, 2.0, 0.8, 1.25]);
        assert!((mean - 1.0).abs() < 1e-12);
        assert!(low < 1.0 && (low * high - 1.0).abs() < 1e-12);
        // Twice as many values of the same spread.
        let (_, closer, _) = geometric(&[0.5, 2.0, 0.8, 1.25, 0.5, 2.0, 0.8, 1.25]);
        assert!(low < closer);
    }
}
