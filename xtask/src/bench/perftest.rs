//! `cargo xtask bench perftest`: Debian's perftest on our two C libraries beside `uiw perf` and raw TCP, in alternating runs.
//!
//! Every round runs perftest connected by rdma_cm, perftest connected out of band, and one slice of `uiw perf --compare`, which
//! brings raw TCP along; each with the same operation, size, depth and signaling, with CRC. The order changes with every
//! round, and only ratios within a round count.

use super::figures::Spread;
use super::installed::Installed;
use serde_json::Value;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// What can be asked for.
#[derive(clap::Args)]
#[command(after_help = "\
Prints two lines a row, for perftest with -R and without: its messages a second over those of `uiw perf` (median and quartiles of the
rounds), both beside raw TCP, and raw TCP over raw TCP as a measure of noise. Exit code 1 when a median is below 0.90, or a
program failed.")]
pub(crate) struct Options {
    /// Only rows whose name contains this
    #[arg(long, value_name = "SUBSTR")]
    only: Option<String>,
    /// Rounds of each row
    #[arg(long, value_name = "N", default_value_t = 7)]
    rounds: usize,
    /// Lines of a Markdown table
    #[arg(long)]
    markdown: bool,
}

/// How far perftest may be behind `uiw perf`.
const BAR: f64 = 0.90;
/// How long a run of perftest should take: its first bytes are in its figures, those of `uiw perf` are not.
const RUN: f64 = 1.2;
/// Requests under way.
const DEPTH: u32 = 128;
/// The longest that one program may run.
const TIMEOUT: Duration = Duration::from_secs(120);

/// What is measured.
struct Row {
    /// As `uiw perf` calls it; perftest's program is named after it.
    op: &'static str,
    size: u32,
    /// One request in so many asks for a completion.
    signal_every: u32,
}

const fn row(op: &'static str, size: u32, signal_every: u32) -> Row {
    Row { op, size, signal_every }
}

const ROWS: &[Row] = &[
    row("write", 64, 100),
    row("write", 64, 1),
    row("write", 4096, 100),
    row("write", 65536, 1),
    row("write", 1 << 20, 1),
    row("read", 64, 1),
    row("read", 65536, 1),
    row("read", 1 << 20, 1),
    row("send", 64, 100),
    row("send", 64, 1),
    row("send", 65536, 1),
    row("send", 1 << 20, 1),
];

impl Row {
    fn name(&self) -> String {
        format!("{} {}, signaled 1 in {}", self.op, self.size, self.signal_every)
    }
}

/// Messages a second of one round.
struct Round {
    /// perftest with `-R`, and without.
    perftest: [f64; 2],
    uiw: f64,
    raw: f64,
    noise: f64,
}

/// Runs the rows.
pub(crate) fn run(options: &Options) -> ExitCode {
    let rows = match super::chosen(ROWS, |row| row.name(), options.only.as_deref(), false) {
        Ok(rows) => rows,
        Err(exit) => return exit,
    };
    match measure(&rows, options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}

fn measure(rows: &[&Row], options: &Options) -> Result<bool, String> {
    if options.rounds == 0 {
        return Err("no round is to be run".to_owned());
    }
    let bench = Bench::new()?;
    if options.markdown {
        println!("| row | connected | of uiw perf | quartiles | of raw TCP | uiw perf of raw TCP | noise |");
        println!("|---|---|---|---|---|---|---|");
    }
    let mut all = true;
    for row in rows {
        let first = bench.uiw(row)?;
        let count = ((first.uiw * RUN) as u64).clamp(1000, 20_000_000);
        let rounds: Vec<_> = (0..options.rounds)
            .map(|number| bench.round(row, count, number))
            .collect::<Result<_, _>>()
            .map_err(|why| format!("{}: {why}", row.name()))?;
        all &= print(row, &rounds, options.markdown);
    }
    Ok(all)
}

/// What the programs run with.
struct Bench {
    installed: Installed,
}

impl Bench {
    fn new() -> Result<Self, String> {
        Ok(Self { installed: Installed::new()? })
    }

    fn program(&self) -> Command {
        Command::new(self.installed.uiw())
    }

    /// One round. The order changes from round to round.
    fn round(&self, row: &Row, count: u64, number: usize) -> Result<Round, String> {
        let mut perftest = [0.0; 2];
        let mut uiw = None;
        for step in 0..3 {
            match (number + step) % 3 {
                2 => uiw = Some(self.uiw(row)?),
                how => perftest[how] = self.perftest(row, count, how == 0)?,
            }
        }
        let round = uiw.ok_or("nothing was measured")?;
        Ok(Round { perftest, ..round })
    }

    /// `uiw perf` and raw TCP.
    fn uiw(&self, row: &Row) -> Result<Round, String> {
        let mut command = self.program();
        command.args(["perf", "--compare", "--slices", "1", "--json", "--spin", "--op", row.op]);
        command.args(["--size", &row.size.to_string(), "--depth", &DEPTH.to_string()]);
        command.args(["--signal-every", &row.signal_every.to_string()]);
        // ib_write_bw registers its source for remote writing, so what goes out of it is copied before its CRC is computed.
        if row.op == "write" {
            command.args(["--stable-tx", "on"]);
        }
        let output = command.output().map_err(|error| format!("starting uiw perf: {error}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        let value: Value = serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
        let rate = |who: &str| {
            let bytes = value["bytes_per_second"][who]["median"].as_f64();
            bytes.map(|bytes| bytes / f64::from(row.size))
        };
        let noise = value["noise"]["median"].as_f64();
        let (Some(uiw), Some(raw), Some(noise)) = (rate("uiw"), rate("raw"), noise) else {
            return Err(format!("a figure is not in {value}"));
        };
        Ok(Round { perftest: [0.0; 2], uiw, raw, noise })
    }

    /// Messages a second of perftest.
    fn perftest(&self, row: &Row, count: u64, by_rdma_cm: bool) -> Result<f64, String> {
        let name = format!("ib_{}_bw", row.op);
        let port = free_port()?;
        let command = || {
            let mut command = self.program();
            // On an iWARP device perftest's Sends do more than the row says: the receiver writes credits to the sender, which stops
            // without them (and out of band fails at the very end, as it leaves the region of its credits registered). The wire and
            // what completions say are the same for the other personas, unless they wait for the peer.
            let persona = if by_rdma_cm && row.op != "send" { "iwarp" } else { "roce" };
            command.args([
                "run",
                "--persona",
                persona,
                "--",
                &name,
                "-d",
                "uiw_lo",
                "-F",
                "-p",
                &port.to_string(),
            ]);
            command.args(["-s", &row.size.to_string(), "-n", &count.to_string(), "-t", &DEPTH.to_string()]);
            if row.op != "read" || row.signal_every > 1 {
                command.args(["-Q", &row.signal_every.to_string()]);
            }
            command.args(by_rdma_cm.then_some("-R")).env("UIW_ACK", "off");
            command
        };
        let mut server = command();
        let server = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut server = Running(server.map_err(|error| format!("starting {name}: {error}"))?);
        wait_listening(&mut server.0, port)?;
        let output =
            command().arg("127.0.0.1").output().map_err(|error| format!("starting {name}: {error}"))?;
        let said = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            return Err(format!("{name}: {}\n{said}", output.status));
        }
        wait_end(&mut server.0)?;
        figure(&said, row.size).ok_or_else(|| format!("{name} said no figure:\n{said}"))
    }
}

/// Ended when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Messages a second from perftest's table: bytes, iterations, peak, average, millions of messages a second.
fn figure(said: &str, size: u32) -> Option<f64> {
    let size = size.to_string();
    let line = said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let words = line.into_iter().find(|words| words.len() >= 5 && words[0] == size)?;
    words[4].parse::<f64>().ok().map(|millions| millions * 1e6)
}

/// A port that no connection is given by the system.
fn free_port() -> Result<u16, String> {
    use std::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(0);
    for _ in 0..1000 {
        let port = 20_000 + (std::process::id() as u16 % 5000) + NEXT.fetch_add(1, Ordering::Relaxed) % 5000;
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return Ok(port);
        }
    }
    Err("no free port".to_owned())
}

fn wait_listening(server: &mut Child, port: u16) -> Result<(), String> {
    let until = Instant::now() + TIMEOUT;
    let hex = format!(":{port:04X}");
    let listens = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        words.len() > 3 && words[1].ends_with(&hex) && words[3] == "0A"
    };
    loop {
        let tables =
            ["/proc/net/tcp", "/proc/net/tcp6"].map(|file| fs::read_to_string(file).unwrap_or_default());
        if tables.iter().any(|table| table.lines().any(listens)) {
            return Ok(());
        }
        if let Ok(Some(status)) = server.try_wait() {
            return Err(format!("the server: {status}"));
        }
        if Instant::now() > until {
            return Err("the server does not listen".to_owned());
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn wait_end(server: &mut Child) -> Result<(), String> {
    let until = Instant::now() + TIMEOUT;
    loop {
        match server.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("the server: {status}")),
            Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(2)),
            Ok(None) => return Err("the server does not end".to_owned()),
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Prints a row; true when it reached the bar.
fn print(row: &Row, rounds: &[Round], markdown: bool) -> bool {
    let of = |figure: &dyn Fn(&Round) -> f64| Spread::of(rounds.iter().map(figure).collect());
    let uiw_raw = of(&|round| round.uiw / round.raw).median;
    let noise = of(&|round| round.noise).median;
    let mut reached = true;
    for (how, name) in ["-R", "out of band"].into_iter().enumerate() {
        let Spread { median, q1, q3 } = of(&|round| round.perftest[how] / round.uiw);
        let raw = of(&|round| round.perftest[how] / round.raw).median;
        reached &= median >= BAR;
        let row = row.name();
        if markdown {
            println!(
                "| {row} | {name} | {median:.2} | {q1:.2} to {q3:.2} | {raw:.3} | {uiw_raw:.3} | {noise:.2} |"
            );
        } else {
            let verdict = if median >= BAR { "reached" } else { "below" };
            println!(
                "{row:<30} {name:<8} {median:>5.2} of uiw perf ({q1:.2} to {q3:.2}); of raw TCP {raw:.3}, uiw perf {uiw_raw:.3}; \
                 noise {noise:.2}  {verdict}"
            );
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perftests_table_is_read() {
        let said = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                    64         1000000          0.00               199.25 \t\t   3.264524\n";
        assert_eq!(figure(said, 64), Some(3_264_524.0));
        assert_eq!(figure(said, 65), None);
    }
}
