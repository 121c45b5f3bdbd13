//! `cargo xtask bench speed`: every row is one `uiw perf --compare` between two processes, alternating slices of ours and raw TCP.
//!
//! A figure counts when raw TCP against raw TCP of the same run lies within 0.95 to 1.05; otherwise the machine was busy with
//! something else, and the row is measured again.

use serde_json::Value;
use std::process::{Command, ExitCode};

/// Runs of one row until its noise is low enough.
pub(super) const TRIES: usize = 5;
/// Raw over raw, where a figure counts.
pub(super) const QUIET: std::ops::RangeInclusive<f64> = 0.95..=1.05;

/// What can be asked for.
#[derive(clap::Args)]
#[command(after_help = "\
Prints one line a row: the ratio with its quartiles, the bar, the noise. A row is repeated up to five times until raw TCP
against raw TCP is within 0.95 to 1.05. Exit code 1 when a row is below its bar or never was quiet.")]
pub(crate) struct Options {
    /// Only rows whose name contains this
    #[arg(long, value_name = "SUBSTR")]
    only: Option<String>,
    /// Print the names of the rows
    #[arg(long)]
    list: bool,
    /// Lines of a Markdown table
    #[arg(long)]
    markdown: bool,
    /// Congestion control of all streams, ours and raw: the system's, unless said
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
}

/// What is read from a comparison.
#[derive(Clone, Copy)]
enum Figure {
    /// Throughput over that of raw TCP.
    Throughput,
    /// Median round trip over that of raw TCP.
    RoundTrip,
    /// Messages a second over raw writes of the same size a second.
    Messages,
    /// Processor time a byte at both ends together, over raw TCP's.
    Processor,
}

/// A row, and where its bar is.
struct Row {
    name: &'static str,
    args: &'static str,
    figure: Figure,
    bar: Bar,
}

/// What a row should reach.
#[derive(Clone, Copy)]
pub(super) enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

const fn row(name: &'static str, args: &'static str, figure: Figure, bar: Bar) -> Row {
    Row { name, args, figure, bar }
}

const ROWS: &[Row] = {
    use Bar::{AtLeast, AtMost};
    use Figure::{Messages, Processor, RoundTrip, Throughput};
    &[
        row("write 64000, CRC off", "--op write --size 64000 --crc off", Throughput, AtLeast(0.97)),
        row("write 1M, CRC off", "--op write --size 1M --crc off", Throughput, AtLeast(0.97)),
        row("write 64000", "--op write --size 64000", Throughput, AtLeast(0.92)),
        row("write 1M", "--op write --size 1M", Throughput, AtLeast(0.92)),
        row("send 64000", "--op send --size 64000", Throughput, AtLeast(0.90)),
        row("send 1M", "--op send --size 1M", Throughput, AtLeast(0.90)),
        row("read 64000", "--op read --size 64000", Throughput, AtLeast(0.80)),
        row("read 1M", "--op read --size 1M", Throughput, AtLeast(0.80)),
        row("write 1M, stable_tx", "--op write --size 1M --stable-tx on", Throughput, AtLeast(0.80)),
        row("write 1M, FPDUs of 1,424 bytes", "--op write --size 1M --fpdu 1418", Throughput, AtLeast(0.75)),
        row("write 1M, Markers", "--op write --size 1M --markers on", Throughput, AtLeast(0.65)),
        row("write ping-pong, polling", "--op write --size 64 --latency", RoundTrip, AtMost(1.12)),
        row("send ping-pong, polling", "--op send --size 64 --latency", RoundTrip, AtMost(1.12)),
        row("send ping-pong, asleep", "--op send --size 64 --latency --wait", RoundTrip, AtMost(1.15)),
        row(
            "send ping-pong, own poll",
            "--op send --size 64 --latency --wait-descriptor",
            RoundTrip,
            AtMost(1.5),
        ),
        row("write 64 one by one", "--op write --size 64 --depth 512 --spin", Messages, AtLeast(20.0)),
        row("send 64 one by one", "--op send --size 64 --depth 512 --spin", Messages, AtLeast(20.0)),
        row(
            "write 64 in chains of 16",
            "--op write --size 64 --depth 512 --chain 16 --spin",
            Messages,
            AtLeast(30.0),
        ),
        row(
            "send 64 in chains of 16",
            "--op send --size 64 --depth 512 --chain 16 --spin",
            Messages,
            AtLeast(30.0),
        ),
        row("read 64, 128 outstanding", "--op read --size 64 --depth 128 --spin", Messages, AtLeast(8.0)),
        row("fetch-add, 128 outstanding", "--op fetch-add --depth 128 --spin", Messages, AtLeast(8.0)),
        row("two directions, write 1M", "--op write --size 1M --bidirectional", Throughput, AtLeast(0.90)),
        row("processor time, write 1M", "--op write --size 1M", Processor, AtMost(1.15)),
    ]
};

/// One measured row.
struct Measured {
    median: f64,
    quartiles: Option<(f64, f64)>,
    noise: f64,
    note: String,
}

/// Runs the rows.
pub(crate) fn run(options: &Options) -> ExitCode {
    let rows = match super::chosen(ROWS, |row| row.name.to_owned(), options.only.as_deref(), options.list) {
        Ok(rows) => rows,
        Err(exit) => return exit,
    };
    if let Err(why) = build() {
        eprintln!("xtask: {why}");
        return ExitCode::FAILURE;
    }
    if options.markdown {
        println!("| row | bar | ratio | quartiles | noise | |\n|---|---|---|---|---|---|");
    }
    let mut all = true;
    for row in rows {
        match measure(row, options.congestion.as_deref()) {
            Ok(measured) => all &= print(row, &measured, options.markdown),
            Err(why) => {
                eprintln!("xtask: {}: {why}", row.name);
                all = false;
            }
        }
    }
    if all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

pub(super) fn build() -> Result<(), String> {
    let status = Command::new(env!("CARGO")).args(["build", "--release", "-p", "uiw-cli"]).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("building uiw: {status}")),
        Err(error) => Err(format!("starting cargo: {error}")),
    }
}

/// Measures until the machine is quiet enough, or no more; then what came nearest to quiet counts.
fn measure(row: &Row, congestion: Option<&str>) -> Result<Measured, String> {
    let mut best: Option<Measured> = None;
    for _ in 0..TRIES {
        let measured = once(row, congestion)?;
        let off = |m: &Measured| (m.noise - 1.0).abs();
        if best.as_ref().is_none_or(|best| off(&measured) < off(best)) {
            best = Some(measured);
        }
        if best.as_ref().is_some_and(|best| QUIET.contains(&best.noise)) {
            break;
        }
    }
    best.ok_or_else(|| "nothing was measured".to_owned())
}

fn once(row: &Row, congestion: Option<&str>) -> Result<Measured, String> {
    let output = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--release", "-p", "uiw-cli", "--", "perf", "--compare", "--json"])
        .args(row.args.split_whitespace())
        .args(congestion.iter().flat_map(|name| ["--congestion", name]))
        .output()
        .map_err(|error| format!("starting uiw perf: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    let value: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("its JSON: {error}"))?;
    read(row.figure, &value).ok_or_else(|| format!("the figure is not in {value}"))
}

fn read(figure: Figure, value: &Value) -> Option<Measured> {
    let noise = value["noise"]["median"].as_f64()?;
    let of = |ratio: &Value, note: String| {
        let quartiles = ratio["q1"].as_f64().zip(ratio["q3"].as_f64());
        Some(Measured { median: ratio["median"].as_f64()?, quartiles, noise, note })
    };
    match figure {
        Figure::Throughput => {
            let rate = |who: &str| Some(value["bytes_per_second"][who]["median"].as_f64()? / 1e9);
            of(&value["ratio"], format!("{:.2} beside {:.2} GB/s", rate("uiw")?, rate("raw")?))
        }
        Figure::RoundTrip => {
            let us = |key: &str, who: &str| value[key][who]["median"].as_f64();
            let (p50, p99) = ("round_trip_us_p50", "round_trip_us_p99");
            let note = format!(
                "{:.1} beside {:.1} us; 99th percentile {:.1} beside {:.1}",
                us(p50, "uiw")?,
                us(p50, "raw")?,
                us(p99, "uiw")?,
                us(p99, "raw")?
            );
            of(&value["ratio"], note)
        }
        Figure::Messages => {
            let one = &value["one_write_a_message"];
            let (raw, ratio) = (one["raw_messages_per_second"]["median"].as_f64()?, &one["ratio"]);
            let bulk = value["ratio"]["median"].as_f64()?;
            let note = format!("raw {:.2} million/s; {bulk:.3} of raw TCP in large writes", raw / 1e6);
            of(ratio, note)
        }
        Figure::Processor => {
            let cost = |who: &str| {
                let cpu = &value["cpu_ns_per_byte"][who];
                Some(cpu["client"].as_f64()? + cpu["server"].as_f64()?)
            };
            let (ours, raw) = (cost("uiw")?, cost("raw")?);
            let note = format!("{ours:.3} beside {raw:.3} ns a byte");
            Some(Measured { median: ours / raw, quartiles: None, noise, note })
        }
    }
}

/// Prints a row; true when it reached its bar in a quiet run.
fn print(row: &Row, measured: &Measured, markdown: bool) -> bool {
    let Measured { median, quartiles, noise, note } = measured;
    let (reached, bar) = match row.bar {
        Bar::AtLeast(bar) => (*median >= bar, format!(">= {bar}")),
        Bar::AtMost(bar) => (*median <= bar, format!("<= {bar}")),
    };
    let quiet = QUIET.contains(noise);
    let verdict = match (reached, quiet) {
        (true, true) => "reached",
        (false, true) => "below",
        (_, false) => "too noisy",
    };
    let range = quartiles.map_or(String::new(), |(q1, q3)| format!("{q1:.3} to {q3:.3}"));
    if markdown {
        println!("| {} | {bar} | {median:.3} | {range} | {noise:.3} | {verdict}; {note} |", row.name);
    } else {
        println!(
            "{:<34} {bar:>8}  {median:>7.3} ({range:<16}) noise {noise:.3}  {verdict:<9}  {note}",
            row.name
        );
    }
    reached && quiet
}
