//! `cargo xtask bench siw`: the Linux kernel's siw driver beside `uiw perf` and raw TCP, all three in the same virtual machine.
//!
//! siw is driven by `siwbench` (interop/siw/guest), which posts and signals as `uiw perf` does; both ends of everything are in the
//! guest, over its loopback. Every round has one run of siw and one slice of `uiw perf --compare`, which brings raw TCP along; which
//! begins changes with every round, and only ratios within a round count.

use super::cases::{Case, Pick, ping_pong};
use super::figures::{Measured, Row, Slice};
use crate::process;
use serde_json::Value;
use std::process::ExitCode;
use std::time::Duration;
use uiw_siw::bench::Bench;
use uiw_siw::case::Setting;
use uiw_siw::net::Family;
use uiw_siw::test_vm::{self, SPARE, TestVm};
use uiw_siw::{Error, Result, matrix};

/// What can be asked for.
#[derive(clap::Args)]
#[command(after_help = "\
Prints one table: a line for uiw, raw TCP and siw in each row, medians and quartiles of the rounds, and how many times as good
uiw is, round by round (above 1.00 it is ahead). The guest is emulated in software, so figures are small and noisy: only ratios
say something. CRC is off at both, as the stock driver has it; with --crc it is on at both, with the driver's tunable variant.
In round trips each end has a processor of its own.
Needs what `cargo xtask interop siw` needs, and downloads as much the first time.
Exit codes: 0 every row was measured, whatever the ratios; 1 a run failed; 2 no such row; 77 this machine lacks something, which is named.")]
pub(crate) struct Options {
    #[command(flatten)]
    pick: Pick,
    /// Rounds of each row
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
    /// CRC at both
    #[arg(long)]
    crc: bool,
}

/// Seconds of one run of siw: those of a slice of `uiw perf --compare`.
const SECONDS: &str = "0.2";
/// The longest that one run may take in the emulated guest.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Tries of a run: siw loses a connection at times.
const TRIES: usize = 3;

/// Round trips behind the streams.
const ROUND_TRIPS: [Case; 3] = [ping_pong("write", 64), ping_pong("read", 64), ping_pong("send", 64)];

/// Runs the rows.
pub(crate) fn run(options: &Options) -> ExitCode {
    let cases = match options.pick.cases(&ROUND_TRIPS) {
        Ok(cases) => cases,
        Err(code) => return code,
    };
    process::on_interrupt(test_vm::sweep);
    match measure(options, &cases) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(Error::Missing(what)) => {
            eprintln!("xtask: this machine lacks {what}");
            ExitCode::from(77)
        }
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// False when a row could not be measured.
fn measure(options: &Options, cases: &[Case]) -> Result<bool> {
    let uiw = matrix::build_uiw("release")?;
    let vm = TestVm::boot_with(&uiw)?;
    let mut guest = Both { bench: Bench::new(vm, uiw), crc: options.crc };
    guest.ready()?;
    let kernel = guest.bench.guest().must("uname -r")?;
    let format = options.pick.format();
    format.head(&format!(
        "In a guest under software emulation (QEMU TCG, Nehalem, 2 processors; Linux {}), loopback, siw {}, CRC {}; {} rounds of \
         {SECONDS} s.",
        kernel.trim(),
        if options.crc { "with its constants as parameters" } else { "as it is" },
        if options.crc { "on" } else { "off" },
        options.rounds
    ));
    let mut fine = true;
    for case in cases {
        let rounds: Result<Vec<_>> = (0..options.rounds).map(|number| guest.round(case, number)).collect();
        match rounds {
            Ok(rounds) => {
                Row { name: case.name(), kind: case.kind(), size: case.size, rounds }.print(format);
            }
            Err(error) => {
                eprintln!("xtask: {}: {error}", case.name());
                fine = false;
            }
        }
    }
    Ok(fine)
}

/// The guest with both in it.
struct Both {
    bench: Bench,
    crc: bool,
}

impl Both {
    /// A guest with the driver; another one if there is none.
    fn ready(&mut self) -> Result<()> {
        self.bench.apply(&Setting::USUAL)?;
        if self.crc { self.bench.tunable(&[("mpa_crc_required", "1")]) } else { Ok(()) }
    }

    fn round(&mut self, case: &Case, number: u8) -> Result<Vec<Measured>> {
        let (siw, slice) = if number.is_multiple_of(2) {
            let siw = self.siw(case)?;
            (siw, self.uiw(case)?)
        } else {
            let slice = self.uiw(case)?;
            (self.siw(case)?, slice)
        };
        let mut all = slice.measured();
        all.push(Measured { stack: "siw", value: siw, ours: slice.ours() });
        Ok(all)
    }

    /// `uiw perf` and raw TCP.
    fn uiw(&self, case: &Case) -> Result<Slice> {
        let Case { op, size, depth, latency } = case;
        let spin = if *size < 4096 { "--spin " } else { "" };
        let how = if *latency { "--latency".to_owned() } else { format!("{spin}--depth {depth}") };
        let crc = if self.crc { "on" } else { "off" };
        let own = self.bench.guest_own(Family::V4)?;
        let [client, server] = pins(case);
        let command = format!("{server}uiw perf serve --listen {own}:{SPARE}");
        let server = self.bench.serve_guest(&command, SPARE, TIMEOUT)?;
        let script = format!(
            "{client}uiw perf --compare --slices 1 --json --crc {crc} --op {op} --size {size} {how} {own}:{SPARE} 2>&1"
        );
        let output = self.bench.guest().run(&script, TIMEOUT)?;
        let _ = server.kill();
        let slice = Slice::read(&output.out, *size).filter(|slice| slice.kind == case.kind());
        slice.ok_or_else(|| Error::Failed(format!("uiw perf in the guest: {}", output.last_line())))
    }

    /// Messages a second, or microseconds of a round trip, on siw.
    fn siw(&mut self, case: &Case) -> Result<f64> {
        let mut why = None;
        for _ in 0..TRIES {
            match self.try_siw(case) {
                Ok(figure) => return Ok(figure),
                Err(Error::Failed(error)) => {
                    why = Some(error);
                    self.bench.renew();
                    self.ready()?;
                }
                Err(missing) => return Err(missing),
            }
        }
        Err(Error::Failed(format!("siwbench, {TRIES} times: {}", why.unwrap_or_default())))
    }

    fn try_siw(&self, case: &Case) -> Result<f64> {
        let Case { op, size, depth, latency } = case;
        let own = self.bench.guest_own(Family::V4)?;
        let [client, server] = pins(case);
        let command = format!("{server}siwbench serve {own} {SPARE}");
        let server = self.bench.serve_guest(&command, SPARE, TIMEOUT)?;
        let how = if *latency { "lat" } else { "bw" };
        let script = format!("{client}siwbench run {own} {SPARE} {op} {size} {depth} {how} {SECONDS} 2>&1");
        let output = self.bench.guest().run(&script, TIMEOUT)?;
        let Some(figure) = figure(&output.out).filter(|_| output.is_ok()) else {
            let server = server.kill();
            return Err(Error::Failed(format!("{}; its server: {}", output.last_line(), server.last_line())));
        };
        let server = server.finish();
        if server.is_ok() {
            return Ok(figure);
        }
        Err(Error::Failed(format!("the server: {}", server.last_line())))
    }
}

/// What stands before the commands of client and server: in a ping-pong each has a processor of its own.
fn pins(case: &Case) -> [&'static str; 2] {
    if case.latency { ["taskset -c 0 ", "taskset -c 1 "] } else { ["", ""] }
}

/// What `siwbench run` says: the median round trip, or messages a second.
fn figure(said: &str) -> Option<f64> {
    let value: Value = said.lines().find_map(|line| serde_json::from_str(line).ok())?;
    let rate = || Some(value["messages"].as_f64()? / value["seconds"].as_f64()?);
    value["p50_us"].as_f64().or_else(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siwbench_is_understood() {
        let rounds = "{\"rounds\": 1234, \"p50_us\": 81.25, \"avg_us\": 90.10, \"p99_us\": 400.00}\n";
        assert_eq!(figure(rounds), Some(81.25));
        assert_eq!(figure("{\"messages\": 500, \"seconds\": 0.250000}\n"), Some(2000.0));
        assert_eq!(figure("error: completion: Work Request Flushed Error\n"), None);
    }
}
