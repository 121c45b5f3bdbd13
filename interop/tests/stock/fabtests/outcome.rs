//! Outcomes of tests, derived from exit codes as `runfabtests.sh` does.

use std::fmt;
use uiw_interop::stock::ProcessEnd;

/// The exit codes by which a test says that the provider does not have what it asks for (errno(3)).
const ENODATA: i32 = 61;
const ENOSYS: i32 = 38;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Pass,
    /// The provider does not offer it, or the test does not ask for it in a way that the provider
    /// has.
    Unsupported,
    /// With what the programs said.
    Fail(String),
    /// One of two programs ended well, and the other one did not end: it waited for a message, or
    /// for the end of the connection.
    OneEnd(String),
}

/// The exit code of a program that was killed as it did not end.
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

    /// Outcome of `fi_ubertest`, whose client counts its cases. One that the provider does not
    /// offer is none of them.
    pub(super) fn of_cases(server: &ProcessEnd, client: &ProcessEnd) -> (Self, Cases) {
        let count = |name: &str| {
            let line = client.said.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_prefix(':'));
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

/// Cases of `fi_ubertest`.
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
