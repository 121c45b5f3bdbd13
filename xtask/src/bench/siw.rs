//! Comparison of the Linux kernel's siw driver with `uiw perf` and raw TCP, all in the same virtual
//! machine over its loopback.
//!
//! `siwbench` (interop/siw/guest) posts and signals requests on siw like `uiw perf`. The guest is
//! emulated in software, so only ratios are meaningful. CRCs are off for both, as in the unmodified
//! driver.

use super::peers::{Case, case_rows};
use super::programs::{Lab, figure, json_object, rotate};
use super::{RatioLine, TableRow};
use std::cell::RefCell;
use std::time::Duration;
use uiw_siw::bench::Bench;
use uiw_siw::case::Setting;
use uiw_siw::net::Family;
use uiw_siw::test_vm::{SPARE, TestVm};
use uiw_siw::{Error, Result, matrix};

/// Length of one run of siw in seconds, which is that of a slice of `uiw perf --compare`.
const SECONDS: &str = "0.2";
/// Maximum time of one run in the emulated guest.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of attempts to run siw, which sometimes loses a connection.
const TRIES: usize = 3;

/// Virtual machine, which is booted for the first row.
pub(super) type Guest = RefCell<Option<Bench>>;

pub(super) fn rows() -> Vec<TableRow> {
    case_rows(&[("write", 64), ("read", 64), ("send", 64)], measure)
}

fn measure(lab: &Lab, case: Case) -> Result<Vec<RatioLine>> {
    let mut guest = lab.guest.borrow_mut();
    if guest.is_none() {
        let uiw = matrix::build_release()?;
        let mut bench = Bench::new(TestVm::boot_with(&uiw)?, uiw);
        ready(&mut bench, lab)?;
        *guest = Some(bench);
    }
    let bench = RefCell::new(guest.as_mut().ok_or_else(|| Error::Failed("no guest".to_owned()))?);
    let siw = |_| {
        let mut tried = siw(&bench.borrow(), case);
        for _ in 1..TRIES {
            if tried.is_ok() {
                break;
            }
            bench.borrow_mut().renew();
            ready(&mut bench.borrow_mut(), lab)?;
            tried = siw(&bench.borrow(), case);
        }
        Ok(vec![("of siw", tried?)])
    };
    Ok(case.lines(&rotate(lab.rounds, &[&|_| uiw(&bench.borrow(), lab, case), &siw])?))
}

/// Loads the driver.
fn ready(bench: &mut Bench, lab: &Lab) -> Result<()> {
    bench.apply(&Setting::USUAL)?;
    if lab.options.crc { bench.tunable(&[("mpa_crc_required", "1")]) } else { Ok(()) }
}

/// Measures `uiw perf` and raw TCP.
fn uiw(bench: &Bench, lab: &Lab, case: Case) -> Result<Vec<(&'static str, f64)>> {
    let own = bench.guest_own(Family::V4)?;
    let [client, server] = pins(case);
    let server =
        bench.serve_guest(&format!("{server}uiw serve --listen {own}:{SPARE}"), SPARE, TIMEOUT)?;
    let crc = if lab.options.crc { "on" } else { "off" };
    let script = format!("{client}uiw perf --crc {crc} {} {own}:{SPARE} 2>&1", case.arguments());
    let output = bench.guest().run(&script, TIMEOUT)?;
    let _ = server.kill();
    case.compared(&output.out)
}

/// Measures siw: messages per second, or microseconds of a round trip.
fn siw(bench: &Bench, case: Case) -> Result<f64> {
    let Case { op, size, depth } = case;
    let own = bench.guest_own(Family::V4)?;
    let [client, server] = pins(case);
    let server =
        bench.serve_guest(&format!("{server}siwbench serve {own} {SPARE}"), SPARE, TIMEOUT)?;
    let how = if case.is_latency() { "lat" } else { "bw" };
    let script =
        format!("{client}siwbench run {own} {SPARE} {op} {size} {depth} {how} {SECONDS} 2>&1");
    let output = bench.guest().run(&script, TIMEOUT)?;
    let Some(figure) = printed_figure(&output.out).filter(|_| output.is_ok()) else {
        let server = server.kill();
        return Err(Error::Failed(format!(
            "siwbench: {}; its server: {}",
            output.last_line(),
            server.last_line()
        )));
    };
    let server = server.finish();
    if server.is_ok() {
        Ok(figure)
    } else {
        Err(Error::Failed(format!("siwbench serve: {}", server.last_line())))
    }
}

/// Returns commands that run each end of a ping-pong on its own processor.
fn pins(case: Case) -> [&'static str; 2] {
    if case.is_latency() { ["taskset -c 0 ", "taskset -c 1 "] } else { ["", ""] }
}

/// Returns the median of the round trips, or the messages per second.
fn printed_figure(printed: &str) -> Option<f64> {
    let value = json_object(printed).ok()?;
    let rate = || Some(figure(&value, "/messages").ok()? / figure(&value, "/seconds").ok()?);
    figure(&value, "/p50_us").ok().or_else(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_siwbench_read() {
        let rounds =
            "{\"rounds\": 1234, \"p50_us\": 81.25, \"avg_us\": 90.10, \"p99_us\": 400.00}\n";
        assert_eq!(printed_figure(rounds), Some(81.25));
        assert_eq!(printed_figure("{\"messages\": 500, \"seconds\": 0.250000}\n"), Some(2000.0));
        assert_eq!(printed_figure("error: completion: Work Request Flushed Error\n"), None);
    }
}
