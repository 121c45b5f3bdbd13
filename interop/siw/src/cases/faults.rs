//! Causes errors that the other end must detect: its Terminate must be understood, and all posted
//! requests must complete or be flushed.

use super::conversation::converse;
use crate::Result;
use crate::bench::Bench;
use crate::case::{Case, Direction, Setting, Verdict};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(90);

/// Order that makes the connecting end violate a rule, with the expected answer of the other end.
struct FaultCase {
    name: &'static str,
    order: &'static str,
    /// Texts of which our end reports one for siw's answer, if our end connects.
    siw_says: &'static [&'static str],
    /// Layer, type and code that siw must report for our Terminate, if siw connects.
    siw_logs: &'static str,
}

impl FaultCase {
    const fn new(
        name: &'static str,
        order: &'static str,
        siw_says: &'static [&'static str],
        siw_logs: &'static str,
    ) -> Self {
        Self { name, order, siw_says, siw_logs }
    }
}

const FAULTS: &[FaultCase] = &[
    FaultCase::new(
        "Write with an invalid STag",
        "badwrite",
        &["(1/1/0x00)"],
        "layer 1, type 1, code 0",
    ),
    FaultCase::new("Write beyond the end", "outwrite", &["(1/1/0x01)"], "layer 1, type 1, code 1"),
    // siw reads the two halves of the byte with layer and type in the wrong order.
    FaultCase::new(
        "Read with an invalid STag",
        "badread",
        &["(0/1/0x00)"],
        "layer 1, type 0, code 0",
    ),
    FaultCase::new("Read beyond the end", "outread", &["(0/1/0x01)"], "layer 1, type 0, code 1"),
    FaultCase::new(
        "Write without the right",
        "rowrite",
        &["(1/1/0x00)"],
        "layer 1, type 1, code 0",
    ),
    // siw does not check the right to read (QUIRKS.md).
    FaultCase::new(
        "Read without the right",
        "woread",
        &["(0/1/0x02)", "(0/1/0x00)", "nothing happened"],
        "layer 1, type 0, code 2",
    ),
    FaultCase::new(
        "Send too long for its receive",
        "longsend",
        &["(1/2/0x02)", "(1/2/0x05)"],
        "layer 2, type 1, code 5",
    ),
    FaultCase::new("Send without a receive", "norecv", &["(1/2/0x02)"], "layer 2, type 1, code 2"),
    // siw's receive completes with an error. siw's Terminate arrives only if it is siw that closes
    // the connection after that.
    FaultCase::new(
        "Send with Invalidate of no STag",
        "badinv",
        &["(0/2/0x09)", "closed", "connection lost"],
        "layer 1, type 0, code 9",
    ),
    FaultCase::new(
        "Write with an STag that was invalidated",
        "usedinv",
        &["(1/1/0x00)"],
        "layer 1, type 1, code 0",
    ),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = FAULTS
        .iter()
        .map(|fault| {
            Case::new(fault.name, |bench, setting, direction| run(bench, setting, direction, fault))
                .short()
        })
        .collect();
    for (name, order) in
        [("the other end closes at once", "you.hangup"), ("this end closes at once", "me.hangup")]
    {
        cases.push(
            Case::new(name, move |bench, setting, direction| {
                let output = converse(bench, setting, direction, &["send:64", order], TIMEOUT)?;
                let over = output.out.lines().any(|line| line.starts_with("ended"));
                Ok(Verdict::of(over && complete(&output.out), last(&output.out)))
            })
            .short(),
        );
    }
    cases
}

/// Runs a case, and repeats it up to 10 times if it failed because of siw's timing: siw sends its
/// Terminate only if it is not sending anything else at that time, and otherwise closes the
/// connection. Sometimes it does not read the Terminate that our end reports as sent (QUIRKS.md).
fn run(
    bench: &mut Bench,
    setting: &Setting,
    direction: Direction,
    fault: &FaultCase,
) -> Result<Verdict> {
    let is_timing = |verdict: &Verdict| match (verdict, direction) {
        (Verdict::Fail(why), Direction::Ours) => why.ends_with(": closed"),
        (Verdict::Fail(why), Direction::Theirs) => why.starts_with(UNREAD),
        _ => false,
    };
    let mut verdict = once(bench, setting, direction, fault)?;
    for _ in 0..10 {
        if !is_timing(&verdict) {
            break;
        }
        bench.retry();
        verdict = once(bench, setting, direction, fault)?;
    }
    Ok(verdict)
}

/// Beginning of the verdict if our end has terminated the stream and siw does not report it.
const UNREAD: &str = "siw did not read our Terminate";
/// Text that our end prints when it has terminated the stream.
const WE_TERMINATED: &str = "this end terminated the stream";

/// Runs the case once. The connecting end violates the rule; all requests and receives of both ends
/// must be accounted for.
fn once(
    bench: &mut Bench,
    setting: &Setting,
    direction: Direction,
    fault: &FaultCase,
) -> Result<Verdict> {
    let order = format!("me.{}:64", fault.order);
    bench.guest().must("dmesg -c > /dev/null")?;
    let output = converse(bench, setting, direction, &["send:64", &order], TIMEOUT)?;
    let ended = output
        .out
        .lines()
        .find(|line| line.starts_with("ended"))
        .unwrap_or(output.last_line())
        .to_owned();
    // siw never completes a receive that its program posts just after the stream has ended
    // (QUIRKS.md).
    let lost = if direction == Direction::Theirs { 1 } else { 0 };
    if undone(&output.out).is_none_or(|undone| undone > lost) {
        return Ok(Verdict::Fail(format!(
            "not everything was completed: {ended}; {}",
            last(&output.out)
        )));
    }
    Ok(match direction {
        Direction::Ours => {
            let understood = fault.siw_says.iter().any(|words| ended.contains(words));
            let other = bench.partner_line("connection over", Duration::from_secs(60))?;
            Verdict::of(understood && complete(&other), ended)
        }
        Direction::Theirs => {
            let log = bench.guest().must("dmesg")?;
            let received = log
                .lines()
                .find_map(|line| line.split_once("got TERMINATE. "))
                .map(|(_, what)| what.to_owned());
            let other = bench.listener_line("connection over", Duration::from_secs(60))?;
            let right =
                received.as_deref().is_some_and(|received| received.starts_with(fault.siw_logs));
            let said = match received {
                Some(received) => format!("siw: got TERMINATE {received}"),
                None if other.contains(WE_TERMINATED) => format!("{UNREAD}: {other}"),
                None => format!("siw: got TERMINATE never: {other}"),
            };
            Verdict::of(right && complete(&other), said)
        }
    })
}

/// Returns whether as many requests and receives were done as were posted.
pub(super) fn complete(text: &str) -> bool {
    undone(text) == Some(0)
}

/// Returns the number of requests and receives that were posted but not done, according to the last
/// line that counts them.
fn undone(text: &str) -> Option<u64> {
    let line = text.lines().rfind(|line| line.contains("requests and receives done"))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    // The reason in front of the count may contain the word "of" as well.
    let of = words.iter().rposition(|word| *word == "of")?;
    let number = |at: usize| words.get(at)?.parse::<u64>().ok();
    number(of + 1)?.checked_sub(number(of.checked_sub(1)?)?)
}

fn last(text: &str) -> String {
    text.lines().last().unwrap_or("no output").to_owned()
}

#[cfg(test)]
mod tests {
    use super::complete;

    #[test]
    fn everything_posted_is_accounted_for() {
        assert!(complete("x\nover: 6 of 6 requests and receives done"));
        assert!(complete(
            "over: in the bytes of the Linux siw driver; 6 of 6 requests and receives done"
        ));
        assert!(!complete("over: 5 of 6 requests and receives done"));
        assert!(!complete("over"));
    }
}
