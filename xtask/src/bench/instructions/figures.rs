//! Committed figures, and the limits for changes of them.

use super::super::{RatioBar, RatioLine, RatioSpread, median};

/// Table with a line for each case: its name, the figures of this commit, and those of 02b5a5a,
/// which are never changed.
const COMMITTED: &str = include_str!("figures.tsv");
/// First line of the table.
pub(in super::super) const HEAD: &str = "case\tinstructions\tlocked\tsystem calls\tall threads\t02b5a5a: instructions\tlocked\tsystem calls";

/// Commits to compare with, and the maximum number of instructions as a multiple of the figure of
/// each. The limit relative to 02b5a5a applies to all changes since then together.
const GATES: [(&str, f64); 2] = [("committed", 1.01), ("02b5a5a", 1.03)];
/// Maximum increase of locked instructions and of system calls per round. A round is a round trip,
/// 128 requests, or a large message.
///
/// Smaller differences are caused by rounding and by the kernel's TCP. The growth of its buffers
/// depends on time, and it splits large messages differently.
const FEWER_THAN_ONE: f64 = 0.5;
/// Additional tolerance for locked instructions and system calls in cases that use the C libraries,
/// as a fraction of the figure that is compared. The background thread of the libraries sometimes
/// holds the lock of the device, and the counted thread has to try again.
const BACKGROUND: f64 = 0.003;

/// Maximum number of instructions of all threads in cases that use the C libraries, as a multiple of
/// the committed figure. In the other cases, all threads have the limit of the first one. Runs of
/// the same program differ by up to 0.8 %, as the threads find different amounts of work.
const ALL_THREADS: f64 = 1.02;

/// Cost of a round for the first thread: instructions, locked instructions, system calls.
pub(super) type ThreadCost = [f64; 3];
/// Cost of a round: that of the first thread, and the instructions of all threads.
pub(super) type Cost = [f64; 4];
/// Committed costs of a case: those of this commit, and those of 02b5a5a.
pub(super) type CommittedCost = (Cost, ThreadCost);

/// Returns the committed costs of a case.
pub(super) fn committed(case: &str) -> Option<CommittedCost> {
    COMMITTED.lines().find_map(|line| read(line.strip_prefix(case)?.strip_prefix('\t')?))
}

fn read(columns: &str) -> Option<CommittedCost> {
    let numbers: Vec<f64> = columns.split('\t').map(str::parse).collect::<Result<_, _>>().ok()?;
    Some((numbers.get(..4)?.try_into().ok()?, numbers.get(4..7)?.try_into().ok()?))
}

/// Compares the costs with those of both commits. `is_c` states whether the case uses the C
/// libraries, which run a background thread at the same time.
pub(super) fn lines((committed, base): CommittedCost, now: Cost, is_c: bool) -> Vec<RatioLine> {
    let mut lines = Vec::new();
    for ((whose, most), before) in GATES.into_iter().zip([&committed[..3], &base]) {
        let ratio = RatioSpread::new([now[0] / before[0]]);
        let note = format!(
            "{:.0} instructions, {:.1} ({:.1}) locked, {:.1} ({:.1}) system calls, {:.0} in all threads",
            now[0], now[1], before[1], now[2], before[2], now[3]
        );
        lines.push(
            RatioLine::new(format!("instructions of {whose}"), ratio, note)
                .bar(RatioBar::AtMost(most)),
        );
        for (at, what) in [(1, "locked"), (2, "system calls")] {
            let more = now[at] - before[at];
            let most = FEWER_THAN_ONE + if is_c { before[at] * BACKGROUND } else { 0.0 };
            // A line is printed only if the limit is exceeded, because almost all cases are below
            // it.
            if more > most {
                let line = RatioLine::new(
                    format!("more {what} than {whose}"),
                    RatioSpread::new([more]),
                    "",
                );
                lines.push(line.bar(RatioBar::AtMost(most)));
            }
        }
    }
    let (ratio, most) = (now[3] / committed[3], if is_c { ALL_THREADS } else { GATES[0].1 });
    if ratio > most {
        let line = RatioLine::new("all threads of committed", RatioSpread::new([ratio]), "");
        lines.push(line.bar(RatioBar::AtMost(most)));
    }
    lines
}

/// Returns the line of the table for a case, with the medians of several counts. A new case uses
/// its own figures as those of 02b5a5a.
pub(super) fn line(case: &str, counts: &[Cost]) -> String {
    let [instructions, locked, calls, all] =
        [0, 1, 2, 3].map(|at| median(&counts.iter().map(|cost| cost[at]).collect::<Vec<_>>()));
    let now = [instructions, locked, calls];
    let columns = |[instructions, locked, calls]: ThreadCost| {
        format!("{instructions:.0}\t{locked:.1}\t{calls:.1}")
    };
    let base = committed(case).map_or(now, |(_, base)| base);
    format!("{case}\t{}\t{all:.0}\t{}", columns(now), columns(base))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: ThreadCost = [1000.0, 70.0, 6.0];

    /// Returns the cost of a round in which only the first thread works.
    fn alone([instructions, locked, calls]: ThreadCost) -> Cost {
        [instructions, locked, calls, instructions]
    }

    fn missed([committed, base]: [ThreadCost; 2], now: ThreadCost, is_c: bool) -> usize {
        lines((alone(committed), base), alone(now), is_c)
            .iter()
            .filter(|line| line.verdict().0 == Some(false))
            .count()
    }

    #[test]
    fn each_gate_checked() {
        let exceeded = |now| missed([COST; 2], now, false);
        assert_eq!([exceeded(COST), exceeded([1010.0, 70.4, 6.4])], [0, 0]);
        assert_eq!([exceeded([1011.0, 70.0, 6.0]), exceeded([1031.0, 70.0, 6.0])], [2, 3]);
        assert_eq!([exceeded([1000.0, 71.0, 6.0]), exceeded([1000.0, 70.0, 7.0])], [2, 2]);
        // The steps are below the limit of each commit, but their sum exceeds that of 02b5a5a.
        assert_eq!(missed([[1031.0, 71.0, 6.0], COST], [1031.0, 71.0, 6.0], false), 2);
    }

    #[test]
    fn background_thread_adds_tolerance() {
        let missed = |locked, is_c| missed([[1000.0, 1000.0, 6.0]; 2], [1000.0, locked, 6.0], is_c);
        assert_eq!([missed(1003.0, true), missed(1003.0, false), missed(1004.0, true)], [0, 2, 2]);
    }

    #[test]
    fn work_of_other_threads_limited() {
        let missed = |all, is_c| {
            let [before, now] = [1000.0, all].map(|all| [1000.0, 70.0, 6.0, all]);
            lines((before, COST), now, is_c).iter().any(|line| line.verdict().0 == Some(false))
        };
        assert_eq!([missed(1010.0, false), missed(1011.0, false)], [false, true]);
        assert_eq!([missed(1020.0, true), missed(1021.0, true)], [false, true]);
    }

    #[test]
    fn lines_of_file_read_back() {
        let counts =
            [[1001.0, 70.0, 5.0, 1100.0], [1000.0, 71.0, 7.0, 1102.0], [999.0, 69.0, 6.0, 1101.0]];
        let columns = "1000\t70.0\t6.0\t1101\t1000\t70.0\t6.0";
        assert_eq!(line("no such case", &counts), format!("no such case\t{columns}"));
        assert_eq!(read(columns), Some(([1000.0, 70.0, 6.0, 1101.0], COST)));
        assert_eq!(read("1000\t70.0\t6.0\t1101"), None);
    }

    #[test]
    fn every_case_has_committed_figures() {
        assert!(super::super::CASES.iter().all(|(case, _)| committed(case).is_some()));
    }
}
