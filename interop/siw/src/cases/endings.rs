//! Ends connections under traffic: programs are killed, the guest is powered off, packets are lost.
//! All requests complete or are flushed within 30 seconds.

use super::faults::complete;
use crate::bench::Bench;
use crate::case::{Case, Direction, Setting, Verdict};
use crate::shell::Process;
use crate::{Error, Result};
use std::time::{Duration, Instant};

/// Time within which everything must have ended.
const LIMIT: Duration = Duration::from_secs(30);
const TRAFFIC: &[&str] = &["send:20000x10", "write:65536x16", "read:65536x16"];
/// Duration of the traffic before the event.
const BEFORE: Duration = Duration::from_secs(2);

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("siw's program killed under traffic", siw_killed).short(),
        Case::new("uiw killed under traffic", uiw_killed).short(),
        Case::new("1 % loss and 50 ms of delay, every operation", netem).short(),
        Case::new("siw's host without power under traffic", power_off),
    ]
}

/// End that runs the client.
enum ClientSide {
    Ours(Process),
    Theirs(crate::guest::Job),
}

/// Starts the client and waits until it is connected; `options` are additional options of `uiw
/// siwtest`.
fn start(
    bench: &mut Bench,
    setting: &Setting,
    direction: Direction,
    options: &[&str],
) -> Result<ClientSide> {
    let wire = [super::wire(setting).as_slice(), options].concat();
    match direction {
        Direction::Ours => {
            let to = bench.partner(setting.family, "")?;
            let args = [&["siwtest", &to, "--seconds", "60"][..], TRAFFIC, &wire].concat();
            let mut process = Process::start(&mut bench.uiw(&args))?;
            process.wait_for("established", LIMIT)?;
            Ok(ClientSide::Ours(process))
        }
        Direction::Theirs => {
            let port = bench.listener(&wire, setting.family)?;
            let host = bench.host(setting.family)?;
            let script = format!("exec siwpeer run {host} {port} seconds=60 {}", TRAFFIC.join(" "));
            let mut job = bench.guest().start(&script, Duration::from_secs(120))?;
            job.wait_for("established", LIMIT)?;
            Ok(ClientSide::Theirs(job))
        }
    }
}

/// Passes if the surviving end has completed all requests in time. The text of the verdict contains
/// its last output and the time that this took.
fn survivor(text: &str, begun: Instant) -> Verdict {
    let took = begun.elapsed();
    let line = text
        .lines()
        .rfind(|line| line.contains("requests and receives done"))
        .unwrap_or(text)
        .to_owned();
    Verdict::of(
        complete(&line) && took <= LIMIT,
        format!("after {:.1} s: {line}", took.as_secs_f64()),
    )
}

/// Like [`survivor`], for siw's program. siw does not flush a receive that is posted after the end
/// (QUIRKS.md), so it only has to notice the end.
fn noticed(text: &str, begun: Instant) -> Verdict {
    let took = begun.elapsed();
    let line = text.lines().rfind(|line| line.contains("requests and receives done"));
    Verdict::of(
        line.is_some() && took <= LIMIT,
        format!("after {:.1} s: {}", took.as_secs_f64(), line.unwrap_or(text)),
    )
}

fn siw_killed(bench: &mut Bench, setting: &Setting, direction: Direction) -> Result<Verdict> {
    let client = start(bench, setting, direction, &[])?;
    std::thread::sleep(BEFORE);
    let begun = Instant::now();
    match client {
        ClientSide::Ours(process) => {
            bench.guest().must("killall -9 siwpeer")?;
            let verdict = survivor(&process.finish(Duration::from_secs(60)).out, begun);
            bench.renew();
            Ok(verdict)
        }
        ClientSide::Theirs(job) => {
            drop(job.kill());
            Ok(survivor(&bench.listener_line("connection over", Duration::from_secs(60))?, begun))
        }
    }
}

fn uiw_killed(bench: &mut Bench, setting: &Setting, direction: Direction) -> Result<Verdict> {
    let client = start(bench, setting, direction, &[])?;
    std::thread::sleep(BEFORE);
    let begun = Instant::now();
    match client {
        ClientSide::Ours(mut process) => {
            process.kill();
            let line = bench.partner_line("connection over", LIMIT)?;
            Ok(noticed(&line, begun))
        }
        ClientSide::Theirs(job) => {
            bench.kill_listener();
            Ok(noticed(&job.finish().out, begun))
        }
    }
}

fn netem(bench: &mut Bench, setting: &Setting, direction: Direction) -> Result<Verdict> {
    if !bench.net().is_whole() {
        return Err(Error::Missing("TCP end to end (user-mode networking)".to_owned()));
    }
    bench.guest().must(
        "load netem && tc qdisc replace dev eth0 root netem loss 1% delay 50ms limit 10000",
    )?;
    let orders =
        "send:1441x20 send:200000 write:200000 read:200000 read:4096x100 sendinv:64 fence:4096x20";
    let orders: Vec<&str> = orders.split(' ').collect();
    let output =
        super::conversation::converse(bench, setting, direction, &orders, Duration::from_secs(240));
    let lost = bench
        .guest()
        .must("tc -s qdisc show dev eth0 | sed -n 's/.*dropped \\([0-9]*\\).*/\\1/p' | head -n 1");
    bench.guest().must("tc qdisc del dev eth0 root")?;
    Ok(match super::conversation::judge(&orders, &output?) {
        Verdict::Pass(_) => Verdict::Pass(format!("{} packets of siw's dropped", lost?.trim())),
        other => other,
    })
}

/// Uses `--dead-after`, because by default a silent peer is given up only after more than
/// [`LIMIT`].
fn power_off(bench: &mut Bench, setting: &Setting, direction: Direction) -> Result<Verdict> {
    let client = start(bench, setting, direction, &["--dead-after", "20s"])?;
    std::thread::sleep(BEFORE);
    let begun = Instant::now();
    bench.power_off();
    match client {
        ClientSide::Ours(process) => {
            Ok(survivor(&process.finish(Duration::from_secs(90)).out, begun))
        }
        ClientSide::Theirs(job) => {
            drop(job);
            Ok(survivor(&bench.listener_line("connection over", Duration::from_secs(90))?, begun))
        }
    }
}
