//! Examples of `uiw` and `uiw-verbs` that alternate slices of two programs in one process, and
//! print figures of each round as an array of a JSON object: ours, theirs and, where there is noise
//! to measure, theirs again.

use super::programs::{ExampleProgram, Lab, output};
use super::{RatioBar, RatioLine, TableRow, Unit, median};
use serde_json::Value;
use std::process::Command;
use uiw_siw::{Error, Result};

/// Ratio to measure: its name, its bar, the key of its figures, and their unit.
type Figure = (&'static str, RatioBar, &'static str, Unit);

pub(super) fn connects() -> Vec<TableRow> {
    let figures = [("of TCP", RatioBar::AtLeast(0.5), "connects", (1.0, "a second"))];
    row("connections set up, 64 under way", ExampleProgram::Connects, figures)
}

pub(super) fn clients() -> Vec<TableRow> {
    let figures = [("of tokio's TCP", RatioBar::AtLeast(0.9), "requests", (1e3, "k/s"))];
    row("100 clients that are tokio tasks", ExampleProgram::Clients, figures)
}

pub(super) fn tls() -> Vec<TableRow> {
    let figures = [("of bare rustls", RatioBar::AtLeast(0.9), "bytes", (1e9, "GB/s"))];
    row("write 1M over TLS", ExampleProgram::Tls, figures)
}

pub(super) fn datagrams() -> Vec<TableRow> {
    let figures = [
        ("delivered, of UDP", RatioBar::AtLeast(0.8), "delivered", (1e6, "million/s")),
        ("half round trip, of UDP", RatioBar::AtMost(1.2), "half_round_trip_us", (1.0, "us")),
    ];
    row("64-byte datagrams", ExampleProgram::Datagrams, figures)
}

fn row<const N: usize>(name: &str, example: ExampleProgram, ratios: [Figure; N]) -> Vec<TableRow> {
    let run = move |lab: &Lab| {
        let program = lab.example(example)?;
        let printed = output(Command::new(program).arg(lab.rounds.to_string()))?;
        ratios.iter().map(|figure| line(&printed, figure)).collect()
    };
    vec![TableRow::new(name, None, run)]
}

fn line(printed: &str, (what, bar, key, unit): &Figure) -> Result<RatioLine> {
    let [ours, theirs, again] = figures(printed, key);
    if ours.is_empty() || ours.len() != theirs.len() {
        return Err(Error::Failed(format!("no {key} in: {}", printed.trim())));
    }
    let noise: Vec<f64> = again.iter().zip(&theirs).map(|(again, first)| again / first).collect();
    let noise = (!noise.is_empty()).then(|| median(&noise));
    Ok(RatioLine::ratio(*what, &ours, &theirs, *unit).noise(noise).bar(*bar))
}

fn figures(printed: &str, key: &str) -> [Vec<f64>; 3] {
    let rounds = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let rounds: Vec<Value> = rounds.map(|round| round[key].clone()).collect();
    [0, 1, 2].map(|at| rounds.iter().filter_map(|round| round[at].as_f64()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_each_round_read() {
        let printed = "{\"a\": [1.0, 2.0, 4.0], \"b\": [5, 6]}\n{\"a\": [7.0, 8.0, 9.0]}\n";
        assert_eq!(figures(printed, "a"), [vec![1.0, 7.0], vec![2.0, 8.0], vec![4.0, 9.0]]);
        assert_eq!(figures(printed, "b"), [vec![5.0], vec![6.0], vec![]]);
    }
}
