//! Error type of the safe API.

use std::io;

pub use uiw_verbs::Error as ErrorKind;

/// Error of a call or an operation. [`Error::kind`] returns the reason.
///
/// ```
/// use uiw::{ConnectionConfig, Device, ErrorKind, Listener};
///
/// let pd = Device::open()?.alloc_pd()?;
/// let settings = ConnectionConfig::default().recv_depth(0);
/// let refused = Listener::bind(&pd, "127.0.0.1:0".parse()?, &settings).unwrap_err();
/// assert!(matches!(refused.kind(), ErrorKind::Zero { what: "receive depth" }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(thiserror::Error)]
#[error(transparent)]
pub struct Error(#[from] ErrorKind);

/// Result whose error is [`Error`] by default.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns the reason for the failure: the rule that was violated or the event that occurred,
    /// with the values involved.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }

    /// Like [`Error::kind`], but returns the reason by value.
    #[must_use]
    pub fn into_kind(self) -> ErrorKind {
        self.0
    }

    /// Returns a function that converts a system error; `what` names the action that failed.
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self(ErrorKind::Io { what, source })
    }
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Converts to the [`io::ErrorKind`] that matches the failure. The original error is the inner
/// error of the result.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.0.io_kind(), error)
    }
}
