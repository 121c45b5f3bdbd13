//! Failures because a limit is reached or a sandbox refuses a call. They are reported on standard
//! error, because programs print only the error number, which does not say what was attempted, or
//! nothing at all.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

/// Set of [`DenialReason`]s that were reported.
static REPORTED: AtomicU32 = AtomicU32::new(0);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DenialReason {
    Descriptors,
    Tasks,
    Call,
}

impl DenialReason {
    /// Returns the reason for an error of the attempt `tried`, if a limit or a sandbox caused it.
    fn from_error(tried: &str, error: &io::Error) -> Option<Self> {
        match error.raw_os_error()? {
            libc::EMFILE | libc::ENFILE => Some(Self::Descriptors),
            libc::EAGAIN if tried.contains("thread") => Some(Self::Tasks),
            libc::EPERM | libc::ENOSYS | libc::EAFNOSUPPORT => Some(Self::Call),
            _ => None,
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Self::Descriptors => {
                "raise the limit of open files (ulimit -n, LimitNOFILE= of a service)"
            }
            Self::Tasks => {
                "raise the limit of threads (ulimit -u, TasksMax= of a service, --pids-limit of a container)"
            }
            Self::Call => "`uiw doctor` says what a sandbox refuses",
        }
    }
}

/// Returns advice about an error of the attempt `tried`, if a limit or a sandbox caused it.
pub fn advice(tried: &str, error: &io::Error) -> Option<&'static str> {
    DenialReason::from_error(tried, error).map(DenialReason::advice)
}

/// Reports on standard error why the attempt `tried` failed, if a limit or a sandbox caused it.
/// Each reason is reported once per process.
#[cold]
pub fn report(tried: &str, error: &io::Error) {
    let Some(reason) = DenialReason::from_error(tried, error) else { return };
    let bit = 1 << reason as u32;
    if REPORTED.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        crate::log::note!("uiw: {tried}: {error}: {}", reason.advice());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_distinguished_from_other_errors() {
        let reason =
            |tried, number| DenialReason::from_error(tried, &io::Error::from_raw_os_error(number));
        assert_eq!(reason("opening an eventfd", libc::EMFILE), Some(DenialReason::Descriptors));
        assert_eq!(reason("starting the driver thread", libc::EAGAIN), Some(DenialReason::Tasks));
        assert_eq!(reason("connecting", libc::EAGAIN), None);
        assert_eq!(reason("opening an epoll set", libc::EPERM), Some(DenialReason::Call));
        assert_eq!(reason("listening", libc::EADDRINUSE), None);
        assert_eq!(DenialReason::from_error("", &io::Error::other("of no number")), None);
    }
}
