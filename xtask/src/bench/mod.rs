//! `cargo xtask bench`: measurements beside their bars.

mod cases;
mod connects;
mod datagrams;
mod figures;
mod hostile;
mod instructions;
mod peers;
mod perftest;
pub(crate) mod programs;
mod scaling;
mod siw;
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
    /// UD queue pairs beside a UDP socket with the same calls and CRC
    Datagrams(datagrams::Options),
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

/// Runs a benchmark.
pub(crate) fn run(bench: &Bench) -> ExitCode {
    match bench {
        Bench::Speed(options) => speed::run(options),
        Bench::Stacks(options) => stacks::run(options),
        Bench::Hostile(options) => hostile::run(options),
        Bench::Instructions(options) => instructions::run(options),
        Bench::Scaling(options) => scaling::run(options),
        Bench::Connects(options) => connects::run(options),
        Bench::Datagrams(options) => datagrams::run(options),
        Bench::Tls(options) => tls::run(options),
        Bench::Wan(options) => wan::run(options),
        Bench::Perftest(options) => perftest::run(options),
        Bench::Peers(options) => peers::run(options),
        Bench::Siw(options) => siw::run(options),
    }
}
