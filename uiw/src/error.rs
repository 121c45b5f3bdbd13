//! Errors of calls and operations.

use std::io;

pub use uiw_verbs::Error as ErrorKind;

/// Error of a call or an operation that was refused or failed. [`Error::kind`] names the rule.
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

/// Result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns the rule, with the values that it was applied to.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }

    /// Like [`Error::kind`], but consumes the error.
    #[must_use]
    pub fn into_kind(self) -> ErrorKind {
        self.0
    }

    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self(ErrorKind::Io { what, source })
    }
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Converts to the kind that std has for the same failure; the error itself is the source.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.0.io_kind(), error)
    }
}
