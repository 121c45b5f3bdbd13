//! UCX over TCP: `ucx_perftest`.

use super::{Case, Server, pair, with_us};
use std::process::Command;

/// Runs it so many times; gives messages a second or microseconds of a round trip.
pub(super) fn run(case: &Case, count: u64) -> Result<f64, String> {
    let test = match (case.op, case.latency) {
        ("write", false) => "ucp_put_bw",
        ("write", true) => "ucp_put_lat",
        // At a depth of 1 this is a latency.
        ("read", _) => "ucp_get",
        (_, false) => "tag_bw",
        (_, true) => "tag_lat",
    };
    let said =
        pair("ucx_perftest", Server::Ends, 0, |port, client| command(test, case, count, port, client))?;
    let figure = if case.latency { round_trip(&said, test) } else { rate(&said) };
    figure.ok_or_else(|| format!("ucx_perftest: no figure of {test} in: {}", said.trim()))
}

fn command(test: &str, case: &Case, count: u64, port: u16, client: bool) -> Command {
    let mut command = with_us("ucx_perftest", case, client);
    command.args(client.then_some("127.0.0.1"));
    command.args(["-t", test, "-p", &port.to_string(), "-f", "-v", "-w", "100"]);
    command.args(["-s", &case.size.to_string(), "-n", &count.to_string(), "-O", &case.depth.to_string()]);
    command.env("UCX_TLS", "tcp").env("UCX_NET_DEVICES", "lo").env("UCX_WARN_UNUSED_ENV_VARS", "n");
    command
}

/// A column of the first line of its CSV.
fn column(said: &str, name: &str) -> Option<f64> {
    // A figure is put to the right of its column.
    let mut lines = said.lines().map(str::trim_start).skip_while(|line| !line.starts_with("iterations,"));
    let place = lines.next()?.split(',').position(|column| column == name)?;
    let figures = lines.find(|line| line.starts_with(|first: char| first.is_ascii_digit()))?;
    figures.split(',').nth(place)?.trim().parse().ok()
}

/// Messages a second, of the whole run.
fn rate(said: &str) -> Option<f64> {
    column(said, "overall_mr").filter(|rate| *rate > 0.0)
}

/// Its ping-pongs count one way, a get counts both.
fn round_trip(said: &str, test: &str) -> Option<f64> {
    let median = column(said, "50.0_percentile_lat").filter(|median| *median > 0.0)?;
    Some(if test == "ucp_get" { median } else { 2.0 * median })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
                        2000,3.472,415.772,415.772,150.32,150.32,2405,2406\n";

    #[test]
    fn a_figure_may_begin_with_spaces() {
        let said = SAID.replace("2000,", "  50,");
        assert_eq!(rate(&said), Some(2406.0));
    }

    #[test]
    fn the_csv_of_ucx_is_read_by_its_columns_names() {
        assert_eq!(rate(SAID), Some(2406.0));
        assert_eq!(round_trip(SAID, "tag_lat"), Some(6.944));
        assert_eq!(round_trip(SAID, "ucp_get"), Some(3.472));
    }

    #[test]
    fn what_is_no_table_gives_nothing() {
        let error = "[1795258402.331366] [vm:4172 :0] perftest.c:405  UCX  ERROR client failed.\n";
        assert_eq!(rate(error), None);
        assert_eq!(rate(SAID.lines().next().unwrap_or_default()), None);
    }
}
