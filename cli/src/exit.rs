//! How the program ends: one line on standard error that says what and why, and an exit code.

use std::fmt;
use std::process::ExitCode;

/// Why a command failed, by exit code.
#[derive(Debug)]
pub enum Failure {
    /// 1: it ran, and what it was to show is not so: data differs, a capture cannot be followed.
    Verdict(String),
    /// 2: it cannot be run as asked: arguments, files.
    Usage(String),
    /// 3: no connection: refused, rejected, unreachable, no answer in time.
    NoConnection(String),
    /// 4: the connection broke, or the peer broke a rule.
    Broken(String),
}

impl Failure {
    /// The exit code.
    #[must_use]
    pub const fn code(&self) -> u8 {
        match self {
            Self::Verdict(_) => 1,
            Self::Usage(_) => 2,
            Self::NoConnection(_) => 3,
            Self::Broken(_) => 4,
        }
    }

    /// Says it and ends.
    #[must_use]
    pub fn report(&self) -> ExitCode {
        eprintln!("uiw: {self}");
        ExitCode::from(self.code())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verdict(line) | Self::Usage(line) | Self::NoConnection(line) | Self::Broken(line) => {
                f.write_str(line)
            }
        }
    }
}

impl From<verbs::Error> for Failure {
    fn from(error: verbs::Error) -> Self {
        use verbs::Error;
        let line = error.to_string();
        match error {
            Error::Refused { .. }
            | Error::Rejected { .. }
            | Error::TimedOut { .. }
            | Error::Lost { .. }
            | Error::ClosedInStartup { .. }
            | Error::PeerStartup { .. }
            | Error::PeerRefusal { .. } => Self::NoConnection(line),
            Error::NotConnected => Self::Broken(line),
            _ => Self::Usage(line),
        }
    }
}

impl From<verbs::WcError> for Failure {
    fn from(error: verbs::WcError) -> Self {
        match error {
            verbs::WcError::Refused(error) => error.into(),
            error => Self::Broken(error.to_string()),
        }
    }
}
