//! Gives orders to both ends of one connection, and checks that they were carried out.

use crate::Result;
use crate::bench::Bench;
use crate::case::{Direction, Setting, Verdict};
use crate::shell::Output;
use std::time::Duration;

/// Carries out the orders over one connection and returns the output of the end that connected.
pub(super) fn converse(
    bench: &mut Bench,
    setting: &Setting,
    direction: Direction,
    orders: &[&str],
    timeout: Duration,
) -> Result<Output> {
    converse_with(bench, setting, direction, (&[], ""), orders, timeout)
}

/// Like [`converse`], with more arguments for uiw and more keys for siwpeer.
pub(super) fn converse_with(
    bench: &mut Bench,
    setting: &Setting,
    direction: Direction,
    (more, keys): (&[&str], &str),
    orders: &[&str],
    timeout: Duration,
) -> Result<Output> {
    let wire = [&super::wire(setting)[..], more].concat();
    match direction {
        Direction::Ours => {
            let to = bench.partner(setting.family, keys)?;
            let args = [&["siwtest", &to][..], orders, &wire].concat();
            bench.run_uiw(&args, timeout)
        }
        Direction::Theirs => {
            let port = bench.listener(&wire, setting.family)?;
            let host = bench.host(setting.family)?;
            let script = format!("siwpeer run {host} {port} {keys} {}", orders.join(" "));
            bench.guest().run(&script, timeout)
        }
    }
}

/// Passes if both ends report every order as done and all posted requests have completed.
pub(super) fn judge(orders: &[&str], output: &Output) -> Verdict {
    let expected: usize = orders.iter().map(|order| if order.contains('.') { 1 } else { 2 }).sum();
    let done = output.out.lines().filter(|line| line.starts_with("ok ")).count();
    if output.is_ok() && done == expected {
        return Verdict::pass();
    }
    let complaint = output.out.lines().find(|line| line.starts_with("FAIL"));
    Verdict::Fail(format!("{done} of {expected} done: {}", complaint.unwrap_or(output.last_line())))
}
