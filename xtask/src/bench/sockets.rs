//! TCP programs with the preload library at both ends, compared with the same programs on TCP, over
//! loopback. A run before the rounds checks that the bytes are sent over rsockets.

use super::programs::{Lab, clean_command, figure, pair, require_programs, rotate};
use super::{RatioBar, RatioLine, TableRow, Unit};
use std::path::Path;
use uiw_siw::{Error, Result};

/// Server and client program.
#[derive(Clone, Copy)]
pub(super) struct ProgramPair {
    /// Command of the server, to which the port is appended.
    server: &'static str,
    /// True if the server exits after its client.
    ends: bool,
    /// Command of the client, in which `PORT` is replaced by the port.
    client: &'static str,
    packages: [&'static str; 2],
    /// Function that finds the figure in the output of the client.
    figure: fn(&str) -> Option<f64>,
    pub(super) unit: Unit,
}

/// Offset that is added to a port of the programs to get the port of its rsocket.
const OFFSET: u16 = 100;

/// iperf3 with one stream. The figure is the received bytes per second.
pub(super) const IPERF: ProgramPair = ProgramPair {
    server: "iperf3 -s -1 -p",
    ends: true,
    client: "iperf3 -c 127.0.0.1 -t 3 -J -p PORT",
    packages: ["iperf3"; 2],
    figure: iperf_rate,
    unit: (1e9, "GB/s"),
};

pub(super) fn rows() -> Vec<TableRow> {
    let redis = |client| ProgramPair {
        server: "redis-server --save  --appendonly no --bind 127.0.0.1 --port",
        ends: false,
        client,
        packages: ["redis-server", "redis-tools"],
        figure: redis_rate,
        unit: (1e3, "k/s"),
    };
    let qperf = ProgramPair {
        server: "qperf -lp",
        ends: false,
        client: "qperf -lp PORT 127.0.0.1 -m 1 -t 2 --unify_units tcp_lat",
        packages: ["qperf"; 2],
        figure: qperf_time,
        unit: (1e3, "us"),
    };
    let [get, set] = [
        "redis-benchmark -h 127.0.0.1 -p PORT -c 50 -P 16 -n 2000000 -t get --csv",
        "redis-benchmark -h 127.0.0.1 -p PORT -c 50 -P 16 -n 2000000 -t set --csv",
    ];
    let row = |name, bar, programs| TableRow::new(name, bar, move |lab| measure(lab, programs));
    vec![
        row("redis GET, 50 clients, pipelines of 16", RatioBar::AtLeast(0.8), redis(get)),
        row("redis SET, 50 clients, pipelines of 16", RatioBar::AtLeast(0.8), redis(set)),
        row("iperf3, one stream", RatioBar::AtLeast(0.85), IPERF),
        // One-way time of a byte between ends that wait in read(2).
        row("qperf tcp_lat, 1 byte", RatioBar::AtMost(1.3), qperf),
    ]
}

/// Returns the requests per second.
fn redis_rate(printed: &str) -> Option<f64> {
    let line =
        printed.lines().find(|line| line.starts_with("\"GET\"") || line.starts_with("\"SET\""))?;
    line.split(',').nth(1)?.trim_matches('"').parse().ok()
}

/// Returns the received bytes per second.
fn iperf_rate(printed: &str) -> Option<f64> {
    let value = serde_json::from_str(printed).ok()?;
    Some(figure(&value, "/end/sum_received/bits_per_second").ok()? / 8.0)
}

/// Returns the one-way time in nanoseconds.
fn qperf_time(printed: &str) -> Option<f64> {
    let mut words =
        printed.lines().find(|line| line.trim_start().starts_with("latency"))?.split_whitespace();
    let time = words.nth(2)?.replace(',', "").parse().ok()?;
    (words.next() == Some("ns")).then_some(time)
}

fn measure(lab: &Lab, programs: ProgramPair) -> Result<Vec<RatioLine>> {
    let name = |command: &'static str| command.split(' ').next().unwrap_or_default();
    let [server, client] = programs.packages;
    require_programs(&[(name(programs.server), server), (name(programs.client), client)])?;
    let uiw = lab.installed()?;
    let slice = |rsockets| slice(&uiw, programs, rsockets, &[]);
    slice(Some("--require"))?;
    let slices = rotate(lab.rounds, &[&|_| slice(Some("")), &|_| slice(None)])?;
    Ok(vec![RatioLine::ratio("of TCP", &slices[0], &slices[1], programs.unit)])
}

/// Runs the programs once, the client with these additional arguments. `rsockets` is an additional
/// option of `uiw run` for the client, or empty for none; with `None`, the programs use TCP.
pub(super) fn slice(
    uiw: &Path,
    programs: ProgramPair,
    rsockets: Option<&str>,
    args: &[&str],
) -> Result<f64> {
    let command = |text: &str, option: Option<&str>| {
        let mut words = text.split(' ');
        let Some(option) = option else {
            let mut command = clean_command(words.next().unwrap_or_default());
            command.args(words);
            return command;
        };
        let mut command = clean_command(uiw);
        command.args(["run", "--sockets", "--port-offset", &OFFSET.to_string()]);
        command.args(Some(option).filter(|option| !option.is_empty())).arg("--").args(words);
        command
    };
    // The server does not get the option: one that does not exit is killed before it can print
    // which sockets it used.
    let server = |port: u16| command(&format!("{} {port}", programs.server), rsockets.map(|_| ""));
    let client = |port: u16| {
        let mut command = command(&programs.client.replace("PORT", &port.to_string()), rsockets);
        command.args(args);
        command
    };
    let printed = pair(if rsockets.is_some() { OFFSET } else { 0 }, programs.ends, server, client)?;
    (programs.figure)(&printed)
        .ok_or_else(|| Error::Failed(format!("no figure in: {}", printed.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_programs_read() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\"SET\",\"1142857.12\",\"0.400\"\n";
        assert_eq!(redis_rate(csv), Some(1_142_857.12));
        assert_eq!(redis_rate("\"test\",\"rps\"\n"), None);
        let json = r#"{"end":{"sum_sent":{"bits_per_second":9e9},"sum_received":{"bits_per_second":8e9}}}"#;
        assert_eq!(iperf_rate(json), Some(1e9));
        assert_eq!(iperf_rate("{\"error\":\"unable to connect\"}"), None);
        assert_eq!(qperf_time("tcp_lat:\n    latency  =  45,077.5 ns\n"), Some(45_077.5));
        assert_eq!(qperf_time("tcp_lat:\n    latency  =  45.1 us\n"), None);
    }
}
