//! `cargo xtask bench scaling`: the cost of a second thread, of busy streams beside a small one, of sleeping, and of control calls on a
//! busy device.
//!
//! A row runs several programs one after the other, in several rounds whose order rotates; only ratios within a round are meaningful.
//! Ceilings are programs on the engine of commit 02b5a5a (`baseline.rs`).

mod baseline;
mod idle;
mod others;
mod rows;
mod slices;
mod table;

use super::figures::Format;
use super::programs::Scratch;
use baseline::Baseline;
use slices::{Engine, Programs, Row};
use std::process::ExitCode;

/// What can be asked for.
#[derive(clap::Args)]
#[command(after_help = "\
Prints a line for each ratio of a row: its bar, the median with the range of all rounds, and whether the bar is reached or MISSED. A ratio
without a bar is information. \"no less\" is reached when the upper quartile of the rounds is at least 1, as the median of a program
beside itself is below 1 in half of all runs. A row is too noisy when other work has
more than a tenth of the processors' time between its slices. Exit code 1 when a bar is missed, a row is too noisy or a program fails.
The first run builds the engine of commit 02b5a5a below the target folder, which needs the git history and some minutes. Needs strace, a C
compiler and librdmacm-dev, and two processors on which nothing else runs.")]
pub(crate) struct Options {
    /// Only rows whose name contains this
    #[arg(long, value_name = "SUBSTR")]
    only: Option<String>,
    /// Rounds of each row
    #[arg(long, value_name = "N", default_value_t = 7)]
    rounds: usize,
    /// Seconds of one program's slice; rows of percentiles take several times as long
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    seconds: f64,
    /// A Markdown table
    #[arg(long)]
    markdown: bool,
    /// One JSON object a line of the table
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Print the names of the rows
    #[arg(long)]
    list: bool,
}

/// Runs the rows.
pub(crate) fn run(options: &Options) -> ExitCode {
    let rows = super::chosen(rows::all(), |row| row.name.clone(), options.only.as_deref(), options.list);
    let rows = match rows {
        Ok(rows) => rows,
        Err(exit) => return exit,
    };
    if options.rounds == 0 || options.seconds <= 0.0 {
        eprintln!("error: --rounds or --seconds is 0\nhint: leave them out");
        return ExitCode::from(2);
    }
    crate::process::handle_interrupts(|| {});
    match measure(&rows, options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}

fn measure(rows: &[Row], options: &Options) -> Result<bool, String> {
    let scratch = Scratch::new()?;
    let needs_base = rows.iter().flat_map(|row| &row.variants).any(|variant| variant.engine == Engine::Base);
    let base = if needs_base { Some(Baseline::build()?) } else { None };
    let programs = Programs::build(&scratch, rows, base)?;
    let format = Format::of(options.markdown, options.json);
    table::head(format);
    let mut all = true;
    for row in rows {
        match row.run(&programs, options.rounds, options.seconds) {
            Ok(rounds) => all &= table::print(row, &rounds, format),
            Err(why) => {
                eprintln!("xtask: {}: {why}", row.name);
                all = false;
            }
        }
    }
    Ok(all)
}
