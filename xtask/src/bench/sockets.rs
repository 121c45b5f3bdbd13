//! `cargo xtask bench sockets`: programs of TCP under the preload library at both ends beside the same programs on TCP.
//!
//! A round has one run of each, over loopback, in an order that changes from round to round; only ratios within a round count. A run before
//! the rounds proves that the bytes go over rsockets.

use super::installed::Installed;
use super::pair::{Server, pair, with_us};
use super::speed::Bar;
use crate::packages;
use serde_json::Value;
use std::process::{Command, ExitCode};

/// What can be asked for.
#[derive(clap::Args)]
#[command(after_help = "\
Prints one line a row: the median of the ratios with its range, the bar, and the medians of both. Of redis and iperf3 the ratio is that of
the rates, of qperf that of the times of a byte one way between ends that wait in read(2). Missing programs are installed by apt-get where this
machine lets us; otherwise a line names the package and the rest is measured.
Exit codes: 0 every bar is reached; 1 a bar is missed or a run failed; 2 no such row; 77 a program is missing.")]
pub(crate) struct Options {
    /// Only rows whose name contains this
    #[arg(long, value_name = "SUBSTR")]
    only: Option<String>,
    /// Print the names of the rows
    #[arg(long)]
    list: bool,
    /// Rounds of each row
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
    /// Lines of a Markdown table
    #[arg(long)]
    markdown: bool,
}

/// A pair of programs, and where its bar is.
struct Row {
    name: &'static str,
    bar: Bar,
    /// The server; its port stands behind the arguments.
    server: (&'static str, &'static [&'static str]),
    kind: Server,
    /// The client; its port stands between the arguments.
    client: (&'static str, &'static [&'static str], &'static [&'static str]),
    /// The packages of both.
    packages: [&'static str; 2],
    /// The figure of what the client says.
    figure: fn(&str) -> Option<f64>,
    /// By what it is divided for a person, and the unit of that.
    unit: (f64, &'static str),
}

/// How far the ports of rsockets are above those that programs name.
const OFFSET: u16 = 100;

const REDIS_SERVER: (&str, &[&str]) =
    ("redis-server", &["--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--port"]);

/// `redis-benchmark` of this test.
const fn redis(name: &'static str, test: &'static [&'static str]) -> Row {
    Row {
        name,
        bar: Bar::AtLeast(0.8),
        server: REDIS_SERVER,
        kind: Server::Stays,
        client: ("redis-benchmark", &["-h", "127.0.0.1", "-p"], test),
        packages: ["redis-server", "redis-tools"],
        figure: redis_rate,
        unit: (1e3, "k/s"),
    }
}

const ROWS: [Row; 4] = [
    redis(
        "redis GET, 50 clients, pipelines of 16",
        &["-c", "50", "-P", "16", "-n", "2000000", "-t", "get", "--csv"],
    ),
    redis(
        "redis SET, 50 clients, pipelines of 16",
        &["-c", "50", "-P", "16", "-n", "2000000", "-t", "set", "--csv"],
    ),
    Row {
        name: "iperf3, one stream",
        bar: Bar::AtLeast(0.85),
        server: ("iperf3", &["-s", "-1", "-p"]),
        kind: Server::Ends,
        client: ("iperf3", &["-c", "127.0.0.1", "-t", "3", "-J", "-p"], &[]),
        packages: ["iperf3"; 2],
        figure: iperf_rate,
        unit: (1e9, "GB/s"),
    },
    Row {
        name: "qperf tcp_lat, 1 byte",
        bar: Bar::AtMost(1.3),
        server: ("qperf", &["-lp"]),
        kind: Server::Stays,
        client: ("qperf", &["-lp"], &["127.0.0.1", "-m", "1", "-t", "2", "--unify_units", "tcp_lat"]),
        packages: ["qperf"; 2],
        figure: qperf_time,
        unit: (1e3, "us"),
    },
];

/// Requests a second.
fn redis_rate(said: &str) -> Option<f64> {
    let line = said.lines().find(|line| line.starts_with("\"GET\"") || line.starts_with("\"SET\""))?;
    line.split(',').nth(1)?.trim_matches('"').parse().ok()
}

/// Bytes a second that arrived.
fn iperf_rate(said: &str) -> Option<f64> {
    let value: Value = serde_json::from_str(said).ok()?;
    Some(value["end"]["sum_received"]["bits_per_second"].as_f64()? / 8.0)
}

/// Nanoseconds one way.
fn qperf_time(said: &str) -> Option<f64> {
    let mut words = said.lines().find(|line| line.trim_start().starts_with("latency"))?.split_whitespace();
    let time = words.nth(2)?.replace(',', "").parse().ok()?;
    (words.next() == Some("ns")).then_some(time)
}

/// What the programs run on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    Tcp,
    Rsockets,
    /// The same, and the run fails where the client did not use them.
    RsocketsAlone,
}

/// Runs the rows.
pub(crate) fn run(options: &Options) -> ExitCode {
    let rows = match super::chosen(&ROWS, |row| row.name.to_owned(), options.only.as_deref(), options.list) {
        Ok(rows) => rows,
        Err(exit) => return exit,
    };
    let needs = |row: &&Row| [(row.server.0, row.packages[0]), (row.client.0, row.packages[1])];
    let absent = packages::provide(&rows.iter().flat_map(needs).collect::<Vec<_>>());
    let bench = match Bench::new() {
        Ok(bench) => bench,
        Err(why) => {
            eprintln!("xtask: {why}");
            return ExitCode::FAILURE;
        }
    };
    if options.markdown {
        println!("| test | bar | ratio | range | rsockets | TCP | |\n|---|---|---|---|---|---|---|");
    }
    let mut fine = true;
    for row in rows.iter().filter(|row| needs(row).iter().all(|(program, _)| !absent.contains(program))) {
        match bench.measure(row, options.rounds) {
            Ok(rounds) => fine &= print(row, &rounds, options.markdown),
            Err(why) => {
                eprintln!("xtask: {}: {why}", row.name);
                fine = false;
            }
        }
    }
    match (fine, absent.is_empty()) {
        (true, true) => ExitCode::SUCCESS,
        (true, false) => ExitCode::from(77),
        (false, _) => ExitCode::FAILURE,
    }
}

/// Figures of one round.
#[derive(Clone, Copy)]
struct Round {
    rsockets: f64,
    tcp: f64,
}

/// What the programs run with.
struct Bench {
    installed: Installed,
}

impl Bench {
    fn new() -> Result<Self, String> {
        Ok(Self { installed: Installed::new()? })
    }

    fn measure(&self, row: &Row, rounds: u8) -> Result<Vec<Round>, String> {
        self.figure(row, Over::RsocketsAlone)?;
        (0..rounds)
            .map(|number| {
                if number % 2 == 0 {
                    let tcp = self.figure(row, Over::Tcp)?;
                    return Ok(Round { rsockets: self.figure(row, Over::Rsockets)?, tcp });
                }
                Ok(Round { rsockets: self.figure(row, Over::Rsockets)?, tcp: self.figure(row, Over::Tcp)? })
            })
            .collect()
    }

    /// One run.
    fn figure(&self, row: &Row, over: Over) -> Result<f64, String> {
        let command = |port: u16, client: bool| {
            let port = port.to_string();
            if client {
                let (program, before, behind) = row.client;
                let mut command = self.program(program, over);
                command.args(before).arg(port).args(behind);
                return command;
            }
            let (program, arguments) = row.server;
            // It is ended before it could say what it used.
            let over = if over == Over::RsocketsAlone { Over::Rsockets } else { over };
            let mut command = self.program(program, over);
            command.args(arguments).arg(port);
            command
        };
        let said = pair(row.client.0, row.kind, if over == Over::Tcp { 0 } else { OFFSET }, command)?;
        (row.figure)(&said).ok_or_else(|| format!("{}: no figure in: {}", row.client.0, said.trim()))
    }

    fn program(&self, program: &str, over: Over) -> Command {
        if over == Over::Tcp {
            return with_us(program);
        }
        let mut command = with_us(&self.installed.uiw().display().to_string());
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("UIW_")) {
            command.env_remove(name);
        }
        command.args(["run", "--sockets", "--port-offset", &OFFSET.to_string()]);
        command.args((over == Over::RsocketsAlone).then_some("--require"));
        command.args(["--", program]);
        command
    }
}

/// The median, the least and the greatest.
fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    let median = if values.len() % 2 == 1 {
        values[middle]
    } else {
        values[middle - 1..=middle].iter().sum::<f64>() / 2.0
    };
    [median, values[0], values[values.len() - 1]]
}

/// Prints a row; true when it reached its bar.
fn print(row: &Row, rounds: &[Round], markdown: bool) -> bool {
    let of = |figure: fn(&Round) -> f64| spread(rounds.iter().map(figure).collect());
    let [ratio, least, most] = of(|round| round.rsockets / round.tcp);
    let (reached, bar) = match row.bar {
        Bar::AtLeast(bar) => (ratio >= bar, format!(">= {bar}")),
        Bar::AtMost(bar) => (ratio <= bar, format!("<= {bar}")),
    };
    let verdict = if reached { "reached" } else { "MISSED" };
    let text = |figure: fn(&Round) -> f64| {
        let [median, least, most] = of(figure).map(|value| value / row.unit.0);
        let digits = if median < 100.0 { 2 } else { 0 };
        format!("{median:.digits$} {} ({least:.digits$} to {most:.digits$})", row.unit.1)
    };
    let (rsockets, tcp) = (text(|round| round.rsockets), text(|round| round.tcp));
    let name = row.name;
    if markdown {
        println!(
            "| {name} | {bar} | {ratio:.3} | {least:.3} to {most:.3} | {rsockets} | {tcp} | {verdict} |"
        );
    } else {
        println!(
            "{name:<39} {bar:>7}  {ratio:.3} of TCP ({least:.3} to {most:.3})  {verdict:<7}  rsockets {rsockets}, TCP {tcp}"
        );
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_programs_say_is_read() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\"SET\",\"1142857.12\",\"0.400\"\n";
        assert_eq!(redis_rate(csv), Some(1_142_857.12));
        assert_eq!(redis_rate("\"test\",\"rps\"\n"), None);
        let json = r#"{"end":{"sum_sent":{"bits_per_second":9e9},"sum_received":{"bits_per_second":8e9}}}"#;
        assert_eq!(iperf_rate(json), Some(1e9));
        assert_eq!(iperf_rate("{\"error\":\"unable to connect\"}"), None);
        assert_eq!(qperf_time("tcp_lat:\n    latency  =  45,077.5 ns\n"), Some(45_077.5));
        assert_eq!(qperf_time("tcp_lat:\n    latency  =  45.1 us\n"), None);
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_two() {
        assert_eq!(spread(vec![3.0, 1.0, 2.0]), [2.0, 1.0, 3.0]);
        assert_eq!(spread(vec![4.0, 1.0, 2.0, 3.0]), [2.5, 1.0, 4.0]);
        assert_eq!(spread(vec![5.0]), [5.0; 3]);
    }
}
