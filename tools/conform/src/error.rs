//! Errors of the conformance tool itself. The errors of a listener are in the report.

use std::fmt::Display;

/// Error that ends a run without a report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConformError {
    /// An option or a case file is invalid.
    #[error("{what}: {why}")]
    Usage {
        /// Name of the option, or position in the file.
        what: String,
        /// Description of the error.
        why: String,
        /// Hint for the user.
        fix: &'static str,
    },
    /// The listener cannot be reached, or does not speak iWARP.
    #[error("{what}: {why}")]
    Unreachable {
        /// Description of the attempt, with the address of the listener.
        what: String,
        /// Error of the last attempt.
        why: String,
        /// Hint for the user.
        fix: &'static str,
    },
}

impl ConformError {
    pub(crate) fn usage(what: impl Display, why: impl Display, fix: &'static str) -> Self {
        Self::Usage { what: what.to_string(), why: why.to_string(), fix }
    }
}
