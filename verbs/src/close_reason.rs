//! The reason for the end of a connection.

use crate::suspect::Suspect;
use crate::wc::WireReason;
use std::fmt;
use std::io;
use std::time::Duration;

/// Reason for the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseReason {
    /// Codes of the Terminate that ended the connection.
    pub reason: Option<WireReason>,
    /// True if both ends closed in order, or the application has ended the connection.
    pub orderly: bool,
    /// Set if the connection was given up because the peer had acknowledged nothing for this time
    /// ([`ConnConfig::dead_after`](crate::ConnConfig::dead_after)).
    pub silent_for: Option<Duration>,
    /// True if TCP was closed without TLS's close_notify: the process of the peer was ended, or
    /// somebody has cut the stream.
    pub cut: bool,
    /// Set if the peer has ended the connection before it sent anything: the kind of peer that may
    /// have done so, and the options to change.
    pub suspect: Option<Suspect>,
}

impl CloseReason {
    /// Returns whether both ends closed in order, so that the connection was neither aborted nor
    /// lost.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.orderly && self.reason.is_none()
    }

    /// Returns the error kind of std for an operation that failed because of this end.
    pub(crate) fn io_kind(&self) -> io::ErrorKind {
        match (self.reason, self.silent_for) {
            (Some(_), _) => io::ErrorKind::ConnectionAborted,
            (None, Some(_)) => io::ErrorKind::TimedOut,
            (None, None) if self.orderly => io::ErrorKind::BrokenPipe,
            (None, None) => io::ErrorKind::ConnectionReset,
        }
    }
}

/// Formats a description of the cause.
impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.reason, self.silent_for) {
            (Some(_), _) if self.orderly => f.write_str("aborted by this end"),
            (Some(reason), _) => reason.fmt(f),
            (None, Some(time)) => write!(f, "nothing acknowledged for {time:?}"),
            (None, None) if self.orderly => f.write_str("closed in order"),
            (None, None) if self.cut => f.write_str(
                "connection lost: the peer's process was ended, or the stream was cut, without close_notify",
            ),
            (None, None) => f.write_str("connection lost"),
        }
    }
}
