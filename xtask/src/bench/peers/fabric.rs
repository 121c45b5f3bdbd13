//! libfabric over TCP: `fi_pingpong`, the one program of fabtests that Debian has.

use super::{Case, Server, pair, with_us};
use std::process::Command;

/// What its messages go through.
#[derive(Clone, Copy)]
pub(super) enum Endpoint {
    /// A connection of the tcp provider.
    Msg,
    /// Reliable datagrams on top of it (`ofi_rxm`).
    Rdm,
}

impl Endpoint {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Msg => "libfabric, tcp (mean)",
            Self::Rdm => "libfabric, tcp;rxm (mean)",
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Msg => "msg",
            Self::Rdm => "rdm",
        }
    }
}

/// Runs it so many times; gives microseconds of a round trip.
pub(super) fn run(endpoint: Endpoint, case: &Case, count: u64) -> Result<f64, String> {
    let said =
        pair("fi_pingpong", Server::Ends, 0, |port, client| command(endpoint, case, count, port, client))?;
    round_trip(&said).ok_or_else(|| format!("fi_pingpong: no figure in: {}", said.trim()))
}

fn command(endpoint: Endpoint, case: &Case, count: u64, port: u16, client: bool) -> Command {
    let mut command = with_us("fi_pingpong", case, client);
    command.args(["-p", "tcp", "-e", endpoint.word()]);
    command.args(["-S", &case.size.to_string(), "-I", &count.to_string()]);
    let port = port.to_string();
    if client {
        command.args(["-P", &port, "127.0.0.1"]);
    } else {
        command.args(["-B", &port]);
    }
    command
}

/// The column "usec/xfer" counts one way.
fn round_trip(said: &str) -> Option<f64> {
    let mut lines = said.lines().skip_while(|line| !line.starts_with("bytes"));
    let place = lines.next()?.split_whitespace().position(|column| column == "usec/xfer")?;
    let one_way: f64 = lines.next()?.split_whitespace().nth(place)?.parse().ok()?;
    (one_way > 0.0).then_some(2.0 * one_way)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_fi_pingpong_is_read() {
        let said = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                    64k     1k      =1k      125m        4.59s     28.55    2295.64       0.00\n";
        assert_eq!(round_trip(said), Some(4591.28));
        assert_eq!(round_trip(said.lines().next().unwrap_or_default()), None);
        assert_eq!(round_trip("fi_getinfo(): util/pingpong.c:1369, ret=-61 (No data available)\n"), None);
    }
}
