//! Whether bars are reached, and the lines of the table.

use super::super::figures::{Format, Spread};
use super::others::QUIET;
use super::slices::{Bar, Check, Round, Row};
use serde_json::json;

/// A ratio, or a figure, of all rounds.
#[derive(Debug, PartialEq)]
struct Measured {
    spread: Spread,
    least: f64,
    most: f64,
}

impl Measured {
    fn of(values: Vec<f64>) -> Self {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Self { spread: Spread::of(values), least, most }
    }
}

impl Bar {
    fn is_reached(self, measured: &Measured) -> bool {
        match self {
            Self::AtLeast(bar) => measured.spread.median >= bar,
            Self::AtMost(bar) => measured.spread.median <= bar,
            Self::NoLess => measured.spread.q3 >= 1.0,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtLeast(bar) => format!(">= {bar}"),
            Self::AtMost(bar) => format!("<= {bar}"),
            Self::NoLess => "no less".to_owned(),
        }
    }
}

/// The table's head.
pub(super) fn head(format: Format) {
    match format {
        Format::Plain => println!("{:<63} {:<20} {:>8}  {:>9}  range", "row", "ratio", "bar", "median"),
        Format::Markdown => {
            println!("| row | ratio | bar | median | range | | |\n|---|---|---|---|---|---|---|");
        }
        Format::Json => {}
    }
}

/// Prints the lines of a row; true when it reached its bars on a quiet machine.
pub(super) fn print(row: &Row, rounds: &[Round], format: Format) -> bool {
    let lines = row.checks.iter().map(|check| match line(row, check, rounds, format) {
        Ok(reached) => reached,
        Err(why) => {
            eprintln!("xtask: {}: {why}", row.name);
            false
        }
    });
    // Every line is printed, also behind one that misses its bar.
    lines.fold(true, |all, reached| all & reached)
}

fn line(row: &Row, check: &Check, rounds: &[Round], format: Format) -> Result<bool, String> {
    let measured = Measured::of(check.values(rounds)?);
    let reached = check.bar.map(|bar| bar.is_reached(&measured));
    let median = |variant: usize| -> Result<f64, String> {
        let figures = rounds.iter().map(|round| check.figure_of(round, variant));
        Ok(Spread::of(figures.collect::<Result<_, _>>()?).median)
    };
    let (ours, theirs) = (median(check.of)?, check.over.map(median).transpose()?);
    let unit = |value: f64| figure(check.figure, value);
    let mut note = match theirs {
        Some(theirs) => format!("{} beside {}", unit(ours), unit(theirs)),
        None => unit(ours),
    };
    // Without vectors to pin, the row says nothing about two shards.
    if row.variants[check.of].args.contains("pinned") {
        note += &format!("; vectors {}", rounds[0].outputs[check.of]["vectors"]);
    }
    let others = Spread::of(rounds.iter().map(|round| round.others).collect()).median;
    // Load changes ratios of times and rates; a figure by itself is a count.
    let quiet = check.over.is_none() || others <= QUIET;
    if !quiet {
        note += &format!("; other work {:.0} %", others * 100.0);
    }
    let verdict = match (reached, quiet) {
        (Some(true), true) => "reached",
        (Some(true), false) => "reached, too noisy",
        (Some(false), true) => "MISSED",
        (Some(false), false) => "MISSED, too noisy",
        (None, _) => "",
    };
    let (name, what, bar) = (&row.name, check.what, check.bar.map_or(String::new(), Bar::text));
    let Measured { spread, least, most } = &measured;
    let range = format!("{} to {}", number(*least), number(*most));
    let middle = number(spread.median);
    match format {
        Format::Plain => {
            println!("{name:<63} {what:<20} {bar:>8}  {middle:>9}  {range:<20} {verdict:<18} {note}");
        }
        Format::Markdown => println!("| {name} | {what} | {bar} | {middle} | {range} | {verdict} | {note} |"),
        Format::Json => println!(
            "{}",
            json!({
                "row": name, "ratio": what, "figure": check.figure, "rounds": rounds.len(), "bar": check.bar.map(Bar::text),
                "median": spread.median, "least": least, "most": most, "reached": reached, "others": others, "of": ours, "over": theirs,
            })
        ),
    }
    // Without a bar there is nothing that noise could spoil.
    Ok(reached.is_none_or(|reached| reached && quiet))
}

/// Three decimals, none for large values.
fn number(value: f64) -> String {
    if value.abs() < 100.0 { format!("{value:.3}") } else { format!("{value:.0}") }
}

/// A figure with its unit.
fn figure(name: &str, value: f64) -> String {
    match name {
        "rate" => format!("{:.1} k/s", value / 1e3),
        "bytes_per_second" => format!("{:.2} GB/s", value / 1e9),
        "bytes" => format!("{:.1} MB", value / 1e6),
        _ => format!("{value:.1} us"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(values: &[f64]) -> Measured {
        Measured::of(values.to_vec())
    }

    #[test]
    fn bars_are_kept() {
        let ratios = measured(&[0.8, 0.9, 1.0]);
        assert!(Bar::AtLeast(0.9).is_reached(&ratios) && !Bar::AtLeast(0.91).is_reached(&ratios));
        assert!(Bar::AtMost(0.9).is_reached(&ratios) && !Bar::AtMost(0.89).is_reached(&ratios));
        assert!(!Bar::AtLeast(0.0).is_reached(&measured(&[f64::NAN])));
    }

    #[test]
    fn no_less_allows_for_noise() {
        assert!(Bar::NoLess.is_reached(&measured(&[0.97, 0.99, 0.99, 1.0, 1.02])));
        assert!(!Bar::NoLess.is_reached(&measured(&[0.93, 0.95, 0.96, 0.97, 1.02])));
    }

    #[test]
    fn a_ratio_is_of_one_round() {
        let round = |ours: f64, theirs: f64| Round {
            outputs: vec![json!({"rate": ours}), json!({"rate": theirs})],
            others: 0.0,
        };
        let rounds = [round(10.0, 5.0), round(3.0, 1.0)];
        let check = Check { what: "", figure: "rate", of: 0, over: Some(1), bar: None };
        assert_eq!(check.values(&rounds), Ok(vec![2.0, 3.0]));
        let check = Check { figure: "p99_us", ..check };
        assert!(check.values(&rounds).is_err());
        assert_eq!(
            measured(&[2.0, 3.0]),
            Measured { spread: Spread::of(vec![2.0, 3.0]), least: 2.0, most: 3.0 }
        );
    }
}
