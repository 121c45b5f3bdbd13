//! Parses the output of `cargo test` and counts the results.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Numbers of tests that passed, failed and were skipped. `Display` writes the summary line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// Prints the summary line, and returns whether nothing failed and at least one test was
    /// selected.
    pub(crate) fn conclude(self) -> bool {
        println!("{self}");
        if self == Self::default() {
            eprintln!("error: --only selects nothing: no name contains its text");
        }
        self.failed == 0 && self != Self::default()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Entry of the skip log, in which a test reports that it could not run:
/// `<test name>: <missing capability>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Skip {
    pub(crate) test: String,
    pub(crate) missing: String,
}

impl Skip {
    /// Parses the skip log. If a test has several entries, the first one counts.
    ///
    /// The separator is the first `": "`. The path of a test contains `::`, but never a colon
    /// followed by a space.
    pub(crate) fn read_log(text: &str) -> Vec<Self> {
        let mut seen = BTreeSet::new();
        text.lines()
            .filter_map(|line| line.split_once(": "))
            .filter(|(test, _)| seen.insert(test.to_owned()))
            .map(|(test, missing)| Self { test: test.to_owned(), missing: missing.to_owned() })
            .collect()
    }
}

/// Part of the output from one test binary: from `running N tests` to its `test result:` line.
#[derive(Debug, Default)]
struct BinaryReport {
    announced: u64,
    seen: Tally,
}

/// Parser of the output of `cargo test`, which is passed line by line.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    tally: Tally,
    open: Option<BinaryReport>,
    passed: BTreeMap<String, u64>,
    failed: Vec<String>,
    reasons: FailureReasons,
}

/// Reasons why tests failed: a line of the output of each.
#[derive(Debug, Default)]
struct FailureReasons {
    /// Test to whose output the current line belongs.
    of: Option<String>,
    /// True if the previous line stated the location of a panic.
    is_panic: bool,
    found: BTreeMap<String, String>,
}

impl FailureReasons {
    /// Processes the next line. The reason is the first line of the message of a panic. Without a
    /// panic, it is the first line of the test's output.
    fn line(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" ----")) {
            self.of = Some(name.strip_suffix(" stdout").unwrap_or(name).to_owned());
            self.is_panic = false;
        } else if line == "failures:" || result(line).is_some() {
            self.of = None;
        } else if let Some(name) = &self.of
            && !line.is_empty()
        {
            if self.is_panic {
                self.found.insert(name.clone(), line.to_owned());
            } else {
                self.found.entry(name.clone()).or_insert_with(|| line.to_owned());
            }
            self.is_panic = line.contains(" panicked at ") && line.ends_with(':');
        }
    }
}

impl Parser {
    /// Processes the next line, which is passed without its newline.
    pub(crate) fn line(&mut self, line: &str) {
        self.reasons.line(line);
        if let Some(announced) = running(line) {
            self.end_binary();
            self.open = Some(BinaryReport { announced, seen: Tally::default() });
        } else if let Some(result) = result(line) {
            self.open = None;
            self.tally.add(result);
        } else if let Some((name, verdict)) = verdict(line) {
            let seen = self.open.get_or_insert_with(BinaryReport::default);
            match verdict {
                Verdict::Ok => {
                    seen.seen.passed += 1;
                    *self.passed.entry(name.to_owned()).or_default() += 1;
                }
                Verdict::Failed => {
                    seen.seen.failed += 1;
                    self.failed.push(name.to_owned());
                }
                Verdict::Ignored => seen.seen.skipped += 1,
            }
        }
    }

    /// Returns the number of failed tests in the binaries that have ended.
    pub(crate) fn failed(&self) -> u64 {
        self.tally.failed
    }

    /// Returns the score after the last line.
    ///
    /// libtest reports the tests in `skips` as passed, but they count as skipped. They are counted
    /// even if their names were not seen, because the number of passed tests must not be too high.
    pub(crate) fn finish(mut self, skips: &[Skip]) -> Score {
        self.end_binary();
        for _ in skips.iter().filter(|skip| !self.failed.contains(&skip.test)) {
            self.tally.passed = self.tally.passed.saturating_sub(1);
            self.tally.skipped += 1;
        }
        for skip in skips {
            self.passed.remove(&skip.test);
        }
        Score {
            tally: self.tally,
            passed: self.passed,
            failed: self.failed,
            reasons: self.reasons.found,
        }
    }

    /// Ends the output of a test binary; the next line belongs to another one. If the binary ended
    /// before its result line, by a signal or `exit`, the announced tests that it did not report
    /// have failed.
    pub(crate) fn end_binary(&mut self) {
        if let Some(binary) = self.open.take() {
            let Tally { passed, failed, skipped } = binary.seen;
            let lost = binary.announced.saturating_sub(passed + failed + skipped);
            self.tally.add(binary.seen);
            self.tally.failed += lost;
            if lost > 0 {
                self.failed
                    .push(format!("{lost} test(s) of a test binary that ended without a result"));
            }
        }
    }
}

/// Result of [`Parser::finish`].
#[derive(Debug)]
pub(crate) struct Score {
    pub(crate) tally: Tally,
    /// Number of tests with each name that ran and passed.
    pub(crate) passed: BTreeMap<String, u64>,
    pub(crate) failed: Vec<String>,
    /// For each failed test that has printed something, the reason of its failure.
    pub(crate) reasons: BTreeMap<String, String>,
}

enum Verdict {
    Ok,
    Failed,
    Ignored,
}

/// Parses a line such as `running 3 tests`.
fn running(line: &str) -> Option<u64> {
    let rest = line.strip_prefix("running ")?;
    let count = rest.strip_suffix(" tests").or_else(|| rest.strip_suffix(" test"))?;
    count.parse().ok()
}

/// Parses a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered
/// out; finished in 0.01s`.
fn result(line: &str) -> Option<Tally> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut tally = Tally::default();
    for part in counts.split("; ") {
        let Some((number, what)) = part.split_once(' ') else { continue };
        let Ok(number) = number.parse::<u64>() else { continue };
        match what {
            "passed" | "measured" => tally.passed += number,
            "failed" => tally.failed += number,
            "ignored" => tally.skipped += number,
            _ => {}
        }
    }
    Some(tally)
}

/// Parses a line such as `test a::b ... ok`, `test a::b - should panic ... FAILED` or
/// `test a::b ... ignored, reason`.
fn verdict(line: &str) -> Option<(&str, Verdict)> {
    let (name, verdict) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let name = name.strip_suffix(" - should panic").unwrap_or(name);
    let word = verdict.split([',', ' ']).next()?;
    let verdict = match word {
        "ok" => Verdict::Ok,
        "FAILED" => Verdict::Failed,
        "ignored" => Verdict::Ignored,
        _ => return None,
    };
    Some((name, verdict))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(text: &str, skips: &str) -> Score {
        let mut parser = Parser::default();
        text.lines().for_each(|line| parser.line(line));
        parser.finish(&Skip::read_log(skips))
    }

    #[test]
    fn counts_several_binaries() {
        let text = "\nrunning 2 tests\ntest a::x ... ok\ntest a::y ... ok\n\n\
            test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\n\
            running 3 tests\ntest z - should panic ... ok\ntest w ... FAILED\ntest v ... ignored, slow\n\n\
            failures:\n\n---- w stdout ----\nboom\n\n---- u stdout ----\n\nthread 'u' (7) panicked at a.rs:1:2:\n\
            the sum is wrong\nnote: run with\n\nfailures:\n    w\n\n\
            test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 4 filtered out; finished in 0.10s\n";
        let score = score(text, "");
        assert_eq!(score.tally, Tally { passed: 3, failed: 1, skipped: 1 });
        assert_eq!(score.failed, ["w"]);
        let reasons: Vec<_> =
            score.reasons.iter().map(|(name, why)| [&name[..], &why[..]]).collect();
        assert_eq!(reasons, [["u", "the sum is wrong"], ["w", "boom"]]);
        assert_eq!(score.passed.keys().collect::<Vec<_>>(), ["a::x", "a::y", "z"]);
    }

    #[test]
    fn doc_tests_count() {
        let text = "running 1 test\ntest mpa/src/lib.rs - mpa (line 7) ... ok\n\n\
            test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.3s\n";
        assert_eq!(score(text, "").tally, Tally { passed: 1, failed: 0, skipped: 0 });
    }

    #[test]
    fn skipped_test_has_not_passed() {
        let text = "running 2 tests\ntest tshark::agrees ... ok\ntest other ... ok\n\n\
            test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.3s\n";
        let agrees = score(text, "tshark::agrees: tshark\ntshark::agrees: again\n");
        assert_eq!(agrees.tally, Tally { passed: 1, failed: 0, skipped: 1 });
        assert_eq!(agrees.passed.keys().collect::<Vec<_>>(), ["other"]);
        let unknown = score(text, "tshark::agrees: tshark\nmain at a.rs:7: tshark\n");
        assert_eq!(unknown.tally, Tally { passed: 0, failed: 0, skipped: 2 });
    }

    #[test]
    fn died_binary_has_failed_tests() {
        let text = "running 4 tests\ntest a ... ok\ntest b has been running for over 60 seconds\n\
            running 1 test\ntest c ... ok\n\
            test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.3s\n";
        let score = score(text, "");
        assert_eq!(score.tally, Tally { passed: 2, failed: 3, skipped: 0 });
        assert_eq!(score.failed.len(), 1);
    }

    #[test]
    fn last_binary_may_die() {
        assert_eq!(score("running 1 test\n", "").tally, Tally { passed: 0, failed: 1, skipped: 0 });
    }

    #[test]
    fn printed_output_not_counted() {
        let text = "test of a long run\nrunning late\ntest result: maybe\ntest x ... perhaps\n";
        assert_eq!(score(text, "").tally, Tally::default());
    }

    #[test]
    fn summary_line() {
        let tally = Tally { passed: 12, failed: 0, skipped: 3 };
        assert_eq!(tally.to_string(), "12 passed, 0 failed, 3 skipped");
        assert!(tally.conclude() && !Tally { failed: 1, ..tally }.conclude());
        assert!(!Tally::default().conclude(), "nothing was selected");
    }
}
