//! `cargo xtask bench`: measurements beside their bars.

mod cases;
mod clients;
mod connects;
mod datagrams;
mod example;
mod figures;
mod hostile;
mod installed;
mod instructions;
mod pair;
mod peers;
mod perftest;
pub(crate) mod programs;
mod scaling;
mod siw;
mod sockets;
mod speed;
mod stacks;
mod tls;
mod wan;

use std::process::ExitCode;

/// What is measured.
#[derive(clap::Subcommand)]
pub(crate) enum Bench {
    /// Our wire beside raw TCP on this machine, row by row, each against its bar
    Speed(speed::Options),
    /// smoltcp over AF_XDP and AF_PACKET beside bare smoltcp and the kernel's TCP
    Stacks(stacks::Options),
    /// A server under attack: its speed to other peers, and the memory it keeps
    Hostile(hostile::Options),
    /// Instructions, locked instructions and system calls a round under callgrind, beside the committed figures: stable on a busy machine
    Instructions(instructions::Options),
    /// Two threads on one device, neighbours, sleepers and control calls, each beside its ceiling
    Scaling(scaling::Options),
    /// Connections set up a second, beside TCP's
    Connects(connects::Options),
    /// A hundred tokio tasks and their server, beside the same program on tokio's TCP
    Clients(clients::Options),
    /// UD queue pairs beside a UDP socket with the same calls and CRC
    Datagrams(datagrams::Options),
    /// redis, iperf3 and qperf over rsockets beside the same programs on TCP, each against its bar
    Sockets(sockets::Options),
    /// Writes of 1 MiB over TLS beside rustls over bare sockets
    Tls(tls::Options),
    /// Emulated long paths: Writes beside bare TCP, `uiw cp` beside rclone and tar, cuts
    Wan(wan::Options),
    /// Debian's perftest on the C libraries beside `uiw perf` and raw TCP
    Perftest(perftest::Options),
    /// UCX and libfabric over TCP beside `uiw perf` and raw TCP
    Peers(peers::Options),
    /// The Linux kernel's siw driver beside `uiw perf` and raw TCP, in one virtual machine
    Siw(siw::Options),
}

/// The rows whose name contains what was asked for; or what to exit with, where the names alone were asked for, or no row has it.
pub(crate) fn chosen<R>(
    rows: impl IntoIterator<Item = R>,
    name: impl Fn(&R) -> String,
    only: Option<&str>,
    list: bool,
) -> Result<Vec<R>, ExitCode> {
    let rows: Vec<R> = rows.into_iter().collect();
    let names = || rows.iter().map(&name).collect::<Vec<_>>();
    let has = |row: &R| only.is_none_or(|only| name(row).contains(only));
    if !rows.iter().any(has) {
        eprintln!(
            "error: no row has `{}` in its name\nhint: the rows are: {}",
            only.unwrap_or_default(),
            names().join("; ")
        );
        return Err(ExitCode::from(2));
    }
    let rows: Vec<R> = rows.into_iter().filter(has).collect();
    if list {
        rows.iter().for_each(|row| println!("{}", name(row)));
        return Err(ExitCode::SUCCESS);
    }
    Ok(rows)
}

/// Runs a benchmark.
pub(crate) fn run(bench: &Bench) -> ExitCode {
    match bench {
        Bench::Speed(options) => speed::run(options),
        Bench::Stacks(options) => stacks::run(options),
        Bench::Hostile(options) => hostile::run(options),
        Bench::Instructions(options) => instructions::run(options),
        Bench::Scaling(options) => scaling::run(options),
        Bench::Connects(options) => connects::run(options),
        Bench::Clients(options) => clients::run(options),
        Bench::Datagrams(options) => datagrams::run(options),
        Bench::Sockets(options) => sockets::run(options),
        Bench::Tls(options) => tls::run(options),
        Bench::Wan(options) => wan::run(options),
        Bench::Perftest(options) => perftest::run(options),
        Bench::Peers(options) => peers::run(options),
        Bench::Siw(options) => siw::run(options),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_chosen_by_a_part_of_their_names() {
        let of = |only, list| chosen(["one", "two"], |row| (*row).to_owned(), only, list);
        assert_eq!(of(None, false), Ok(vec!["one", "two"]));
        assert_eq!(of(Some("w"), false), Ok(vec!["two"]));
        assert_eq!(of(Some("w"), true), Err(ExitCode::SUCCESS));
        // A run that measures nothing is no success.
        assert_eq!(of(Some("three"), false), Err(ExitCode::from(2)));
    }
}
