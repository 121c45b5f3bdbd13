//! Outcomes of tests, derived from exit codes in the same way as in `runfabtests.sh`.

use std::fmt;
use uiw_interop::stock::ProcessEnd;

/// Exit codes with which a test reports that the provider lacks a requested feature (errno(3)).
const ENODATA: i32 = 61;
const ENOSYS: i32 = 38;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Pass,
    /// The provider lacks the feature, or the test does not request it in a way that the provider
    /// supports.
    Unsupported,
    /// The test failed; contains the output of the programs.
    Fail(String),
    /// One of two programs succeeded, and the other one did not end because it waited for a message
    /// or for the end of the connection.
    OneEnd(String),
}

/// Exit code of a program that was killed because it did not end.
const KILLED: i32 = 128 + 9;

impl Outcome {
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Unsupported => "unsupported",
            Self::Fail(_) | Self::OneEnd(_) => "fail",
        }
    }

    /// Returns the outcome of a single program.
    pub(super) fn of_one(program: &ProcessEnd) -> Self {
        Self::of(&[program])
    }

    /// Returns the outcome of a program that must end with `FI_ENODATA`.
    pub(super) fn of_negative(program: &ProcessEnd) -> Self {
        if program.code == ENODATA { Self::Pass } else { Self::Fail(said(&[program])) }
    }

    /// Returns the outcome of a server and a client.
    pub(super) fn of(ends: &[&ProcessEnd]) -> Self {
        let all = |code| ends.iter().all(|end| end.code == code);
        if all(0) {
            Self::Pass
        } else if all(ENODATA) || all(ENOSYS) {
            Self::Unsupported
        } else if ends.iter().all(|end| [0, KILLED].contains(&end.code))
            && ends.iter().any(|end| end.code == 0)
        {
            Self::OneEnd(said(ends))
        } else {
            Self::Fail(said(ends))
        }
    }

    /// Returns the outcome of `fi_ubertest`, whose client counts the cases. Cases that the provider
    /// does not support do not count as failures.
    pub(super) fn of_cases(server: &ProcessEnd, client: &ProcessEnd) -> (Self, Cases) {
        let count = |name: &str| {
            let line = client
                .said
                .lines()
                .find_map(|line| line.strip_prefix(name)?.trim().strip_prefix(':'));
            line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
        };
        let cases = Cases {
            passed: count("Success"),
            unsupported: count("ENODATA") + count("ENOSYS"),
            failed: count("EIO") + count("ERROR"),
        };
        let ended = [server, client].iter().all(|end| [0, ENODATA, ENOSYS].contains(&end.code));
        let well = ended && cases.passed > 0 && cases.failed == 0;
        (if well { Self::Pass } else { Self::Fail(said(&[server, client])) }, cases)
    }
}

/// Counts of the cases of `fi_ubertest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cases {
    passed: u32,
    unsupported: u32,
    failed: u32,
}

impl fmt::Display for Cases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, unsupported, failed } = self;
        write!(f, "{passed} cases passed, {unsupported} are unsupported, {failed} failed")
    }
}

fn said(ends: &[&ProcessEnd]) -> String {
    ends.iter().map(|end| format!("{end:?}\n")).collect()
}
