//! Reads what `cargo test` prints and keeps the score.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// How many tests passed, failed and were skipped. `Display` is the summary line.
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
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// A test that said it could not run, one line of the skip log:
/// `<test name>: <missing capability>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Skip {
    pub(crate) test: String,
    pub(crate) missing: String,
}

impl Skip {
    /// The skip log, one entry a test: the first reason a test gave stands.
    ///
    /// The separator is the first `": "`; a test's path has `::`, never a colon and a space.
    pub(crate) fn read_log(text: &str) -> Vec<Self> {
        let mut seen = BTreeSet::new();
        text.lines()
            .filter_map(|line| line.split_once(": "))
            .filter(|(test, _)| seen.insert(test.to_owned()))
            .map(|(test, missing)| Self { test: test.to_owned(), missing: missing.to_owned() })
            .collect()
    }
}

/// One test binary's part of the output: from `running N tests` to its `test result:` line.
#[derive(Debug, Default)]
struct BinaryReport {
    announced: u64,
    seen: Tally,
}

/// Follows the output of `cargo test`, line by line.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    tally: Tally,
    open: Option<BinaryReport>,
    passed: BTreeMap<String, u64>,
    failed: Vec<String>,
    reasons: FailureReasons,
}

/// Reason why tests failed: a line of what each of them printed.
#[derive(Debug, Default)]
struct FailureReasons {
    /// The test whose output the present line belongs to.
    of: Option<String>,
    /// The line before named the place of a panic.
    is_panic: bool,
    found: BTreeMap<String, String>,
}

impl FailureReasons {
    /// Takes the next line. A panic's message is the reason, otherwise the first line.
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
    /// Takes the next line, without its line end.
    pub(crate) fn line(&mut self, line: &str) {
        self.reasons.line(line);
        if let Some(announced) = running(line) {
            self.close_without_result();
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

    /// Ends the output of a test binary: lines of another one follow, or none.
    pub(crate) fn end_binary(&mut self) {
        self.close_without_result();
    }

    /// How many tests of the binaries that have ended have failed.
    pub(crate) fn failed(&self) -> u64 {
        self.tally.failed
    }

    /// The score, after the last line. libtest calls a test in `skips` passed; it counts as
    /// skipped, also when its name is not among those that were seen: rather one too few passed
    /// than one too many.
    pub(crate) fn finish(mut self, skips: &[Skip]) -> Score {
        self.close_without_result();
        for _ in skips.iter().filter(|skip| !self.failed.contains(&skip.test)) {
            self.tally.passed = self.tally.passed.saturating_sub(1);
            self.tally.skipped += 1;
        }
        for skip in skips {
            self.passed.remove(&skip.test);
        }
        Score { tally: self.tally, passed: self.passed, failed: self.failed, reasons: self.reasons.found }
    }

    /// A test binary died (signal, `exit`) before its result line: what it announced and did not
    /// report has failed.
    fn close_without_result(&mut self) {
        if let Some(binary) = self.open.take() {
            let Tally { passed, failed, skipped } = binary.seen;
            let lost = binary.announced.saturating_sub(passed + failed + skipped);
            self.tally.add(binary.seen);
            self.tally.failed += lost;
            if lost > 0 {
                self.failed.push(format!("{lost} test(s) of a test binary that ended without a result"));
            }
        }
    }
}

/// What [`Parser::finish`] returns.
#[derive(Debug)]
pub(crate) struct Score {
    pub(crate) tally: Tally,
    /// How many tests of each name ran and passed.
    pub(crate) passed: BTreeMap<String, u64>,
    pub(crate) failed: Vec<String>,
    /// Of failed tests that printed something, a line that says why.
    pub(crate) reasons: BTreeMap<String, String>,
}

enum Verdict {
    Ok,
    Failed,
    Ignored,
}

/// `running 3 tests`
fn running(line: &str) -> Option<u64> {
    let rest = line.strip_prefix("running ")?;
    let count = rest.strip_suffix(" tests").or_else(|| rest.strip_suffix(" test"))?;
    count.parse().ok()
}

/// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s`
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

/// `test a::b ... ok`, `test a::b - should panic ... FAILED`, `test a::b ... ignored, reason`
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
        let reasons: Vec<_> = score.reasons.iter().map(|(name, why)| [&name[..], &why[..]]).collect();
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
    }
}
