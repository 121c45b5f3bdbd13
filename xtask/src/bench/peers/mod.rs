//! `cargo xtask bench peers`: what else a user could pick in user space, UCX and libfabric over TCP, beside `uiw perf` and raw TCP.
//!
//! Every round has one slice of `uiw perf --compare`, which brings raw TCP along, and one run of each peer with the same
//! operation, size and depth; all over loopback, client and server as processes of their own. The order changes with every
//! round, and only ratios within a round count.

mod fabric;
mod ucx;

use super::cases::{Case, Pick, ping_pong};
use super::figures::{Kind, Measured, Row, Slice};
use super::pair::{Server, pair};
use crate::packages;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;

/// What can be asked for.
#[derive(clap::Args)]
#[command(after_help = "\
Prints one table: a line for uiw, raw TCP and each peer in each row, medians and quartiles of the rounds, and how many times as good
uiw is, round by round (above 1.00 it is ahead). UCX is Debian's ucx_perftest with UCX_TLS=tcp; libfabric is Debian's
fi_pingpong with the tcp provider, which supports only ping-pongs of messages and prints their mean, so our mean is what it is compared
with. uiw has CRC on, which neither of them has. Messages of 64 bytes are posted by a program that polls (`uiw perf --spin`), larger ones
by one that sleeps; ucx_perftest and fi_pingpong always poll. In round trips each end has a processor of its own.
Missing programs are installed by apt-get where this machine lets us; otherwise a line names the package and the rest is measured.
Exit codes: 0 everything was measured, whatever the ratios; 1 a run failed; 2 no such row; 77 a peer's program is missing.")]
pub(crate) struct Options {
    #[command(flatten)]
    pick: Pick,
    /// Rounds of each row
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
}

/// How long a run of a peer should take, in seconds: a slice of `uiw perf --compare`.
const RUN: f64 = 0.2;

/// Round trips behind the streams.
const ROUND_TRIPS: [Case; 6] = [
    ping_pong("write", 64),
    ping_pong("read", 64),
    ping_pong("send", 64),
    ping_pong("send", 4096),
    ping_pong("send", 65536),
    ping_pong("send", 1 << 20),
];

/// A program that could be picked instead.
#[derive(Clone, Copy)]
enum Peer {
    Ucx,
    Fabric(fabric::Endpoint),
}

const PEERS: [Peer; 3] =
    [Peer::Ucx, Peer::Fabric(fabric::Endpoint::Msg), Peer::Fabric(fabric::Endpoint::Rdm)];

impl Peer {
    const fn name(self) -> &'static str {
        match self {
            Self::Ucx => "UCX, tcp",
            Self::Fabric(endpoint) => endpoint.name(),
        }
    }

    /// Its program and Debian's package of it.
    const fn program(self) -> (&'static str, &'static str) {
        match self {
            Self::Ucx => ("ucx_perftest", "ucx-utils"),
            Self::Fabric(_) => ("fi_pingpong", "libfabric-bin"),
        }
    }

    /// Whether it can do this.
    fn can(self, case: &Case) -> bool {
        match self {
            Self::Ucx => true,
            Self::Fabric(_) => case.latency && case.op == "send",
        }
    }

    /// The figure of ours that its own is compared with.
    fn compared_with(self, slice: &Slice) -> f64 {
        match (self, slice.mean) {
            (Self::Fabric(_), Some(mean)) => mean,
            _ => slice.ours(),
        }
    }

    /// Runs it so many times; gives messages a second or microseconds of a round trip.
    fn run(self, case: &Case, count: u64) -> Result<f64, String> {
        match self {
            Self::Ucx => ucx::run(case, count),
            Self::Fabric(endpoint) => fabric::run(endpoint, case, count),
        }
    }

    /// How often it has to run for a slice.
    fn calibrate(self, case: &Case) -> Result<u64, String> {
        let few = if case.size < 65536 { 1000 } else { 50 };
        let figure = self.run(case, few)?;
        let rate = match case.kind() {
            Kind::Throughput => figure,
            Kind::RoundTrip => 1e6 / figure,
        };
        Ok(((rate * RUN) as u64).clamp(few, 5_000_000))
    }
}

/// Runs the rows.
pub(crate) fn run(options: &Options) -> ExitCode {
    let cases = match options.pick.cases(&ROUND_TRIPS) {
        Ok(cases) => cases,
        Err(code) => return code,
    };
    let absent = packages::provide(&PEERS.map(Peer::program));
    let is_here = |peer: &Peer| !absent.contains(&peer.program().0);
    let peers: Vec<Peer> = PEERS.into_iter().filter(is_here).collect();
    let uiw = match uiw_siw::matrix::build_uiw("release") {
        Ok(uiw) => uiw,
        Err(error) => {
            eprintln!("xtask: {error}");
            return ExitCode::FAILURE;
        }
    };
    let fine = measure(options, &cases, &Bench { uiw, peers });
    match (fine, absent.is_empty()) {
        (true, true) => ExitCode::SUCCESS,
        (true, false) => ExitCode::from(77),
        (false, _) => ExitCode::FAILURE,
    }
}

/// False when a row could not be measured.
fn measure(options: &Options, cases: &[Case], bench: &Bench) -> bool {
    let format = options.pick.format();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?");
    format.head(&format!(
        "Loopback, {cores} processors, Linux {}, load {load} before the first run; {} rounds of {RUN} s.",
        release.trim(),
        options.rounds
    ));
    let mut fine = true;
    for case in cases {
        match bench.row(case, options.rounds) {
            Ok(rounds) => Row { name: case.name(), kind: case.kind(), size: case.size, rounds }.print(format),
            Err(why) => {
                eprintln!("xtask: {}: {why}", case.name());
                fine = false;
            }
        }
    }
    fine
}

/// The programs.
struct Bench {
    uiw: PathBuf,
    peers: Vec<Peer>,
}

impl Bench {
    fn row(&self, case: &Case, rounds: u8) -> Result<Vec<Vec<Measured>>, String> {
        let peers = self.peers.iter().filter(|peer| peer.can(case));
        let peers: Vec<(Peer, u64)> =
            peers.map(|peer| Ok((*peer, peer.calibrate(case)?))).collect::<Result<_, String>>()?;
        (0..rounds).map(|number| self.round(case, &peers, number.into())).collect()
    }

    /// One round. The order changes from round to round.
    fn round(&self, case: &Case, peers: &[(Peer, u64)], number: usize) -> Result<Vec<Measured>, String> {
        let steps = peers.len() + 1;
        let mut slice = None;
        let mut theirs = Vec::new();
        for step in 0..steps {
            match peers.get((number + step) % steps) {
                Some((peer, count)) => theirs.push((*peer, peer.run(case, *count)?)),
                None => slice = Some(uiw(&self.uiw, case)?),
            }
        }
        let slice = slice.ok_or("nothing was measured")?;
        let mut all = slice.measured();
        // Always in the same order, whatever the order of the measurements.
        for (peer, _) in peers {
            let name = peer.name();
            let value = theirs.iter().find(|(other, _)| other.name() == name).map(|(_, value)| *value);
            let value = value.ok_or("nothing was measured")?;
            all.push(Measured { stack: name, value, ours: peer.compared_with(&slice) });
        }
        Ok(all)
    }
}

/// `uiw perf` and raw TCP.
fn uiw(program: &Path, case: &Case) -> Result<Slice, String> {
    let program = program.display().to_string();
    let command = |port: u16, client: bool| {
        let mut command = with_us(&program, case, client);
        if !client {
            command.args(["perf", "serve", "--listen", &format!("127.0.0.1:{port}")]);
            return command;
        }
        command.args(["perf", "--compare", "--slices", "1", "--json", "--op", case.op]);
        command.args(["--size", &case.size.to_string()]);
        if case.latency {
            command.arg("--latency");
        } else {
            command.args(["--depth", &case.depth.to_string()]);
            command.args((case.size < 4096).then_some("--spin"));
        }
        command.arg(format!("127.0.0.1:{port}"));
        command
    };
    let said = pair("uiw perf", Server::Stays, 0, command)?;
    let slice = Slice::read(&said, case.size).filter(|slice| slice.kind == case.kind());
    slice.ok_or_else(|| format!("uiw perf: no figure in: {}", said.trim()))
}

/// A program that dies with us. In a ping-pong each end has a processor of its own, where there are two.
fn with_us(program: &str, case: &Case, client: bool) -> Command {
    if !case.latency || thread::available_parallelism().is_ok_and(|cores| cores.get() < 2) {
        return super::pair::with_us(program);
    }
    let mut command = super::pair::with_us("taskset");
    command.args(["-c", if client { "0" } else { "1" }, program]);
    command
}
