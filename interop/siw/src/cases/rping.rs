//! Stock rping in the guest against `uiw ping --rping` and `uiw serve`. rping takes sizes from 23 to 65,535 bytes.

use crate::Result;
use crate::bench::Bench;
use crate::case::{Axes, Case, Direction, Setting, Verdict};
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
        let case = Case::new(format!("rping {size}, 20 rounds"), move |b, s, d| rping(b, s, d, size, 20));
        cases.push(if size == 65_535 { case.axes(Axes::All).short() } else { case.axes(Axes::Crc) });
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
    let crc = if setting.crc { "on" } else { "off" };
    let (size, rounds) = (size.to_string(), rounds.to_string());
    match direction {
        Direction::Ours => {
            let own = bench.guest_own(setting.family)?;
            let server =
                bench.serve_guest(&format!("rping -s -P -a {own} -p {RPING} -S {size}"), RPING, TIMEOUT)?;
            let to = bench.guest_at(setting.family, RPING)?;
            let mut args = vec!["ping", &to, "--rping", "-c", &rounds, "-s", &size, "--crc", crc, "--json"];
            args.extend(super::profile(setting));
            let output = bench.run_uiw(&args, TIMEOUT)?;
            drop(server);
            let summary = output.out.lines().last().unwrap_or_default();
            let whole =
                summary.contains("\"verified\":true") && summary.contains(&format!("\"rounds\":{rounds}"));
            Ok(Verdict::of(
                output.is_ok() && whole,
                if whole { String::new() } else { output.last_line().to_owned() },
            ))
        }
        Direction::Theirs => {
            let mut args = vec!["serve", "--crc", crc];
            args.extend(super::profile(setting));
            let (_server, port) = bench.serve_uiw(&args, setting.family)?;
            let host = bench.host(setting.family)?;
            // -V: the client compares what comes back. With -v it would print every round.
            let script = format!("rping -c -a {host} -p {port} -C {rounds} -S {size} -V");
            let output = bench.guest().run(&script, TIMEOUT)?;
            // rping's exit code says whether its teardown went well; what it prints are mismatches and errors.
            let complaint = output.out.lines().find(|line| !line.contains("DISCONNECT"));
            Ok(match complaint {
                Some(line) => Verdict::Fail(line.to_owned()),
                None if output.is_ok() => Verdict::pass(),
                None => Verdict::Fail(format!("exit code {}", output.status)),
            })
        }
    }
}
