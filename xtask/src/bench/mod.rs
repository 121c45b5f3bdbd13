//! `cargo xtask bench`: rows of measurements, each with a bar that it should reach.
//!
//! A row runs several programs in rounds, in an order that rotates, and compares the figures of the
//! same round. The machine is shared, so only these ratios are meaningful.

mod examples;
mod hostile;
mod instructions;
mod paths;
mod peers;
mod perftest;
pub(crate) mod programs;
mod scaling;
mod siw;
mod sockets;
mod speed;
mod stacks;
mod wan;

use clap::builder::{PossibleValue, PossibleValuesParser};
use programs::Lab;
use serde_json::json;
use std::process::ExitCode;
use uiw_siw::{Error, Result};

/// Options of `cargo xtask bench`.
#[derive(clap::Args)]
#[command(after_help = "\
Prints a line for each ratio of a row: its bar, the median with quartiles of the rounds, the noise, and both figures. A ratio without a bar is
information. The noise is the reference over itself in the same rounds, or one and the share of the processors' time that other work had; a row is
measured up to five times until its noise is within 0.95 to 1.05. \"no less\" is reached when the upper quartile is at least 1, as the median of a program
beside itself is below 1 in half of all runs. Programs that are missing are installed by apt-get where this machine lets us.
Exit codes: 0 every bar is reached; 1 a bar is missed, a row is too noisy or a program fails; 2 no such row; 77 something is missing, which is named.")]
pub(crate) struct Options {
    /// What to measure
    #[arg(value_parser = groups())]
    group: String,
    /// Only rows whose name contains this
    #[arg(long, value_name = "SUBSTR")]
    only: Option<String>,
    /// Print the names of the rows
    #[arg(long)]
    list: bool,
    /// Rounds of each row [default: 3 to 31, by group]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Seconds of a slice of `stacks` (1), `scaling` (0.5) and `wan` (10)
    #[arg(long)]
    seconds: Option<f64>,
    /// A Markdown table
    #[arg(long)]
    markdown: bool,
    /// One JSON object a line of the table
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// `speed`, `perftest` beside iperf3: congestion control of all streams [default: that of the system]
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// `instructions`: print the file of committed figures, with those of 02b5a5a as they are
    #[arg(long)]
    tsv: bool,
    /// `siw`: CRC at both ends, with the tunable variant of the driver
    #[arg(long)]
    crc: bool,
    /// `wan`: seeds of each path of cubic with loss
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    seeds: u32,
    /// `wan`: MiB of the file that is copied
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(8..))]
    mebibytes: u32,
    /// `wan`: seconds for which the path is cut
    #[arg(long, value_name = "N", default_value_t = 300)]
    cut_seconds: u32,
}

/// Group of rows that are measured in the same way: name, default number of rounds, function that
/// returns the rows, and help text.
type Group = (&'static str, u32, fn() -> Vec<TableRow>, &'static str);

const GROUPS: [Group; 14] = [
    ("speed", 31, speed::rows, "`uiw perf` beside raw TCP"),
    (
        "stacks",
        9,
        stacks::rows,
        "over AF_XDP and AF_PACKET, beside bare smoltcp and kernel TCP (root)",
    ),
    ("hostile", 3, hostile::rows, "a server under attack: its speed and memory"),
    ("instructions", 3, instructions::rows, "instructions a round, beside the committed figures"),
    ("scaling", 7, scaling::rows, "second threads, neighbours, sleepers and control calls"),
    ("connects", 31, examples::connects, "connections set up a second, beside TCP"),
    (
        "clients",
        15,
        examples::clients,
        "a hundred tokio tasks and their server, beside tokio's TCP",
    ),
    ("datagrams", 9, examples::datagrams, "UD queue pairs beside a UDP socket"),
    ("sockets", 12, sockets::rows, "redis, iperf3 and qperf over rsockets, beside TCP"),
    ("tls", 15, examples::tls, "Writes over TLS beside bare rustls"),
    ("wan", 5, wan::rows, "emulated long paths: streams, copied files, cuts (root; five hours)"),
    (
        "perftest",
        7,
        perftest::rows,
        "Debian's perftest on the C libraries, beside `uiw perf` and iperf3",
    ),
    ("peers", 7, peers::rows, "UCX and libfabric over TCP, beside `uiw perf`"),
    ("siw", 5, siw::rows, "the siw driver beside `uiw perf`, in a virtual machine"),
];

/// Returns the possible values of [`Options::group`].
fn groups() -> PossibleValuesParser {
    GROUPS.map(|(name, _, _, about)| PossibleValue::new(name).help(about)).into()
}

/// Row of the table.
struct TableRow {
    name: String,
    /// Bar of the first ratio, unless that has its own.
    bar: Option<RatioBar>,
    run: Measure,
}

/// Function that measures a row: it runs the programs and compares their figures.
type Measure = Box<dyn Fn(&Lab) -> Result<Vec<RatioLine>>>;

impl TableRow {
    fn new(
        name: impl Into<String>,
        bar: impl Into<Option<RatioBar>>,
        run: impl Fn(&Lab) -> Result<Vec<RatioLine>> + 'static,
    ) -> Self {
        Self { name: name.into(), bar: bar.into(), run: Box::new(run) }
    }

    fn measure(&self, lab: &Lab) -> Result<Vec<RatioLine>> {
        let mut lines = measure_until_quiet(|| (self.run)(lab))?;
        if let Some(first) = lines.first_mut() {
            first.bar = first.bar.or(self.bar);
        }
        Ok(lines)
    }
}

/// Repeats a measurement until the machine is quiet, at most [`MAX_RUNS`] times. Returns the result
/// with the least noise.
fn measure_until_quiet(mut run: impl FnMut() -> Result<Vec<RatioLine>>) -> Result<Vec<RatioLine>> {
    let noise = |lines: &[RatioLine]| lines.iter().map(RatioLine::disturbance).fold(0.0, f64::max);
    let mut best = run()?;
    for _ in 1..MAX_RUNS {
        if noise(&best) <= MAX_DISTURBANCE {
            break;
        }
        let lines = run()?;
        if noise(&lines) < noise(&best) {
            best = lines;
        }
    }
    Ok(best)
}

/// Maximum number of times that a row is measured.
const MAX_RUNS: usize = 5;
/// Maximum distance of the noise from 1 at which a figure counts.
const MAX_DISTURBANCE: f64 = 0.05;

/// Bound that a ratio should reach.
#[derive(Clone, Copy, Debug, PartialEq)]
enum RatioBar {
    AtLeast(f64),
    AtMost(f64),
    /// At least 1, within the noise of the run.
    NoLess,
}

impl RatioBar {
    fn is_reached(self, spread: RatioSpread) -> bool {
        match self {
            Self::AtLeast(bar) => spread.median >= bar,
            Self::AtMost(bar) => spread.median <= bar,
            Self::NoLess => spread.q3 >= 1.0,
        }
    }
}

impl std::fmt::Display for RatioBar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtLeast(bar) => write!(f, ">= {bar}"),
            Self::AtMost(bar) => write!(f, "<= {bar}"),
            Self::NoLess => f.write_str("no less"),
        }
    }
}

/// Median and quartiles.
#[derive(Clone, Copy, Debug, PartialEq)]
struct RatioSpread {
    median: f64,
    q1: f64,
    q3: f64,
}

impl RatioSpread {
    /// Computes median and quartiles of at least one value.
    fn new(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_unstable_by(f64::total_cmp);
        let at = |part: f64| {
            let place = values.len().saturating_sub(1) as f64 * part;
            let (low, high) =
                (values.get(place.floor() as usize), values.get(place.ceil() as usize));
            low.zip(high).map_or(f64::NAN, |(low, high)| low + (high - low) * place.fract())
        };
        Self { median: at(0.5), q1: at(0.25), q3: at(0.75) }
    }
}

fn median(values: &[f64]) -> f64 {
    RatioSpread::new(values.iter().copied()).median
}

/// Factor from the measured unit to the printed one, and the name of the printed unit.
type Unit = (f64, &'static str);

/// One ratio of a row.
struct RatioLine {
    what: String,
    spread: RatioSpread,
    bar: Option<RatioBar>,
    noise: Option<f64>,
    note: String,
}

impl RatioLine {
    fn new(what: impl Into<String>, spread: RatioSpread, note: impl Into<String>) -> Self {
        Self { what: what.into(), spread, bar: None, noise: None, note: note.into() }
    }

    /// Creates a line with the ratios of our figures and theirs, round by round.
    fn ratio(what: impl Into<String>, ours: &[f64], theirs: &[f64], (scale, unit): Unit) -> Self {
        let note = format!(
            "{} beside {} {unit}",
            number(median(ours) / scale),
            number(median(theirs) / scale)
        );
        Self::new(
            what,
            RatioSpread::new(ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs)),
            note,
        )
    }

    fn bar(self, bar: impl Into<Option<RatioBar>>) -> Self {
        Self { bar: bar.into(), ..self }
    }

    fn noise(self, noise: impl Into<Option<f64>>) -> Self {
        Self { noise: noise.into(), ..self }
    }

    fn disturbance(&self) -> f64 {
        self.noise.map_or(0.0, |noise| (noise - 1.0).abs())
    }

    /// Returns whether the ratio reaches its bar, if it has one, and whether the machine was quiet.
    fn verdict(&self) -> (Option<bool>, bool) {
        (self.bar.map(|bar| bar.is_reached(self.spread)), self.disturbance() <= MAX_DISTURBANCE)
    }

    /// Prints the line. Returns `false` if it has a bar and did not reach it on a quiet machine.
    fn print(&self, row: &str, width: usize, options: &Options) -> bool {
        let Self { what, spread, bar, noise, note } = self;
        let (reached, quiet) = self.verdict();
        let verdict = match (reached, quiet) {
            (None, _) => "",
            (Some(true), true) => "reached",
            (Some(false), true) => "MISSED",
            (Some(_), false) => "too noisy",
        };
        let RatioSpread { median, q1, q3 } = *spread;
        let bar = bar.map(|bar| bar.to_string());
        if options.json {
            let value = json!({
                "group": options.group, "row": row, "ratio": what, "bar": bar, "median": median, "q1": q1, "q3": q3, "noise": noise, "reached": reached, "note": note,
            });
            println!("{value}");
        } else {
            let bar = bar.unwrap_or_default();
            let noise = noise.map_or(String::new(), |noise| format!("{noise:.3}"));
            let (median, range) = (number(median), format!("{} to {}", number(q1), number(q3)));
            if options.markdown {
                println!(
                    "| {row} | {what} | {bar} | {median} | {range} | {noise} | {verdict} | {note} |"
                );
            } else {
                println!(
                    "{row:<width$} {what:<28} {bar:>8} {median:>8} ({range:<16}) {noise:>5} {verdict:<9} {note}"
                );
            }
        }
        reached.is_none_or(|reached| reached && quiet)
    }
}

/// Formats a value with three decimals, or fewer if it is large.
fn number(value: f64) -> String {
    match value.abs() {
        0.0..10.0 => format!("{value:.3}"),
        10.0..1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Returns the rows whose name contains `only`.
fn matching_rows<'a>(rows: &'a [TableRow], only: Option<&str>) -> Vec<&'a TableRow> {
    rows.iter().filter(|row| only.is_none_or(|only| row.name.contains(only))).collect()
}

/// Runs `cargo xtask bench`.
pub(crate) fn run(options: Options) -> ExitCode {
    let (rounds, all) = GROUPS
        .iter()
        .find(|group| group.0 == options.group)
        .map_or((0, Vec::new()), |(_, rounds, rows, _)| {
            (options.rounds.unwrap_or(*rounds), rows())
        });
    let rows = matching_rows(&all, options.only.as_deref());
    if rows.is_empty() {
        let names: Vec<_> = all.iter().map(|row| row.name.as_str()).collect();
        eprintln!("error: no row has this in its name\nhint: the rows are: {}", names.join("; "));
        return ExitCode::from(2);
    }
    if options.list {
        rows.iter().for_each(|row| println!("{}", row.name));
        return ExitCode::SUCCESS;
    }
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    if options.tsv {
        println!("{}", instructions::HEAD);
    } else if options.markdown {
        println!(
            "| row | ratio | bar | median | quartiles | noise | | |\n|---|---|---|---|---|---|---|---|"
        );
    } else if !options.json {
        println!(
            "{:<width$} {:<28} {:>8} {:>8}  {:<17} noise",
            "row", "ratio", "bar", "median", "quartiles"
        );
    }
    let lab = match Lab::new(options, rounds) {
        Ok(lab) => lab,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let (mut fine, mut complete) = (true, true);
    for row in rows {
        match row.measure(&lab) {
            Ok(lines) => {
                for line in &lines {
                    fine &= line.print(&row.name, width, &lab.options);
                }
            }
            Err(Error::Missing(what)) => {
                println!("SKIPPED: {}: {what}", row.name);
                complete = false;
            }
            Err(Error::Failed(why)) => {
                println!("FAILED: {}: {why}", row.name);
                fine = false;
            }
        }
    }
    match (fine, complete) {
        (true, true) => ExitCode::SUCCESS,
        (true, false) => ExitCode::from(77),
        (false, _) => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn row_names_distinct() {
        for (_, _, rows, _) in GROUPS {
            let rows = rows();
            assert_eq!(rows.iter().map(|row| &row.name).collect::<BTreeSet<_>>().len(), rows.len());
        }
    }

    #[test]
    fn rows_chosen_by_part_of_name() {
        let rows = ["one", "two"].map(|name| TableRow::new(name, None, |_| Ok(Vec::new())));
        let names = |only| {
            matching_rows(&rows, only).iter().map(|row| row.name.as_str()).collect::<Vec<_>>()
        };
        assert_eq!((names(None), names(Some("w"))), (vec!["one", "two"], vec!["two"]));
        assert!(names(Some("three")).is_empty());
    }

    #[test]
    fn quartiles_interpolated() {
        let spread = RatioSpread::new([5.0, 1.0, 3.0, 2.0, 4.0]);
        assert_eq!(spread, RatioSpread { median: 3.0, q1: 2.0, q3: 4.0 });
        assert_eq!(RatioSpread::new([1.0, 3.0]), RatioSpread { median: 2.0, q1: 1.5, q3: 2.5 });
    }

    #[test]
    fn no_less_bar_tolerates_noise() {
        let spread = |values: &[f64]| RatioSpread::new(values.iter().copied());
        let ratios = spread(&[0.8, 0.9, 1.0]);
        assert!(
            RatioBar::AtLeast(0.9).is_reached(ratios)
                && !RatioBar::AtLeast(0.91).is_reached(ratios)
        );
        assert!(
            RatioBar::AtMost(0.9).is_reached(ratios) && !RatioBar::AtMost(0.89).is_reached(ratios)
        );
        assert!(!RatioBar::AtLeast(0.0).is_reached(spread(&[f64::NAN])));
        assert!(RatioBar::NoLess.is_reached(spread(&[0.97, 0.99, 0.99, 1.0, 1.02])));
        assert!(!RatioBar::NoLess.is_reached(spread(&[0.93, 0.95, 0.96, 0.97, 1.02])));
    }

    #[test]
    fn ratio_compares_same_rounds() {
        let line = RatioLine::ratio("", &[10.0, 3.0], &[5.0, 1.0], (1.0, "k/s"));
        assert_eq!((line.spread.median, line.note.as_str()), (2.5, "6.500 beside 3.000 k/s"));
        assert_eq!(line.bar(RatioBar::AtLeast(2.5)).noise(1.1).verdict(), (Some(true), false));
    }

    #[test]
    fn quietest_run_counts() {
        let mut noises = [1.3, 1.2, 1.4, 1.04, 1.0].into_iter();
        let line = || RatioLine::new("", RatioSpread::new([1.0]), "");
        let lines = measure_until_quiet(|| Ok(vec![line(), line().noise(noises.next())])).unwrap();
        assert_eq!((lines[1].noise, noises.next()), (Some(1.04), Some(1.0)));
    }
}
