//! Runs stock rping in the guest against `uiw ping --rping` and `uiw serve`. rping accepts sizes
//! from 23 to 65,535 bytes.

use super::sums::repeat_faults_of_siw;
use crate::Result;
use crate::bench::Bench;
use crate::case::{Axes, Case, Direction, Setting, Verdict};
use crate::guest::Job;
use crate::test_vm::RPING;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(120);

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![
        Case::new("rping 64, 20 rounds", |b, s, d| rping(b, s, d, 64, 20)).axes(Axes::All).short(),
        Case::new("rping 23, 1000 rounds", |b, s, d| rping(b, s, d, 23, 1000)),
        Case::new("rping 64, 1000 rounds", |b, s, d| rping(b, s, d, 64, 1000)).axes(Axes::Crc),
    ];
    for size in [100, 1000, 1441, 4096, 16_384, 65_535] {
        let case =
            Case::new(format!("rping {size}, 20 rounds"), move |b, s, d| rping(b, s, d, size, 20));
        cases.push(if size == 65_535 {
            case.axes(Axes::All).short()
        } else {
            case.axes(Axes::Crc)
        });
    }
    cases.push(Case::new("rping 65535, 1000 rounds", |b, s, d| rping(b, s, d, 65_535, 1000)));
    cases
}

fn rping(
    bench: &mut Bench,
    setting: &Setting,
    direction: Direction,
    size: u32,
    rounds: u32,
) -> Result<Verdict> {
    repeat_faults_of_siw(bench, setting, |bench| match direction {
        Direction::Ours => {
            let _server = serve(bench, setting, size)?;
            let to = bench.guest_at(setting.family, RPING)?;
            from_uiw(bench, setting, &[], &to, size, rounds)
        }
        Direction::Theirs => {
            let args = [&["serve"], &super::wire(setting)[..]].concat();
            let (_server, port) = bench.serve_uiw(&args, setting.family)?;
            from_siw(bench, setting, port, size, rounds)
        }
    })
}

/// Starts rping's server in the guest.
pub(super) fn serve(bench: &Bench, setting: &Setting, size: u32) -> Result<Job> {
    let own = bench.guest_own(setting.family)?;
    bench.serve_guest(&format!("rping -s -P -a {own} -p {RPING} -S {size}"), RPING, TIMEOUT)
}

/// Runs `uiw ping --rping`, with the global options `global`, against a server of rping.
pub(super) fn from_uiw(
    bench: &Bench,
    setting: &Setting,
    global: &[&str],
    to: &str,
    size: u32,
    rounds: u32,
) -> Result<Verdict> {
    let (size, rounds) = (size.to_string(), rounds.to_string());
    let ping = ["ping", to, "--rping", "-c", &rounds, "-s", &size, "--json"];
    let output = bench.run_uiw(&[global, &ping, &super::wire(setting)].concat(), TIMEOUT)?;
    let summary = output.out.lines().last().unwrap_or_default();
    let whole =
        summary.contains("\"verified\":true") && summary.contains(&format!("\"rounds\":{rounds}"));
    Ok(Verdict::of(
        output.is_ok() && whole,
        if whole { String::new() } else { output.last_line().to_owned() },
    ))
}

/// Runs rping in the guest against a port of the host.
pub(super) fn from_siw(
    bench: &Bench,
    setting: &Setting,
    port: u16,
    size: u32,
    rounds: u32,
) -> Result<Verdict> {
    let host = bench.host(setting.family)?;
    // With -V the client compares the returned data. With -v it would print every round.
    let script = format!("rping -c -a {host} -p {port} -C {rounds} -S {size} -V");
    let output = bench.guest().run(&script, TIMEOUT)?;
    // rping's exit code only tells whether its teardown succeeded; it reports mismatches and errors
    // in its output.
    let complaint = output.out.lines().find(|line| !line.contains("DISCONNECT"));
    Ok(match complaint {
        Some(line) => Verdict::Fail(line.to_owned()),
        None if output.is_ok() => Verdict::pass(),
        None => Verdict::Fail(format!("exit code {}", output.status)),
    })
}
