//! Errors of the conformance tool itself; what a listener does wrong is in the report.

use std::fmt::Display;

/// Error that ends a run before its report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConformError {
    /// An option or a case file is wrong.
    #[error("{what}: {why}")]
    Usage {
        /// The option, or the place in the file.
        what: String,
        /// The rule that it breaks.
        why: String,
        /// Hint for the user.
        fix: &'static str,
    },
    /// The listener cannot be reached, or does not speak iWARP.
    #[error("{what}: {why}")]
    Unreachable {
        /// The listener.
        what: String,
        /// The error of the last attempt.
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
