//! Error numbers of C.

use crate::denied;
use crate::log;
use std::ffi::c_int;
use std::fmt;
use uiw_verbs::Error;

/// An error number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub c_int);

impl Errno {
    /// An argument is invalid.
    pub const INVAL: Self = Self(libc::EINVAL);
    /// The requested function exists in verbs, but not on this device.
    pub const UNSUPPORTED: Self = Self(libc::EOPNOTSUPP);
    /// The function is not offered.
    pub const NOSYS: Self = Self(libc::ENOSYS);
    /// A resource is exhausted.
    pub const NOMEM: Self = Self(libc::ENOMEM);
    /// It is in use.
    pub const BUSY: Self = Self(libc::EBUSY);
    /// The object came through a fork: its engine runs in the parent.
    pub const INHERITED: Self = Self(libc::EIO);
    /// The program must not do it.
    pub const PERM: Self = Self(libc::EPERM);
    /// An internal failure.
    pub const IO: Self = Self(libc::EIO);
    /// The operation would have to wait.
    pub const AGAIN: Self = Self(libc::EAGAIN);
    /// A signal interrupted the call.
    pub const INTR: Self = Self(libc::EINTR);
    /// No such device or address.
    pub const NODEV: Self = Self(libc::ENODEV);

    /// Sets C's `errno`.
    #[inline]
    pub fn set(self) {
        // SAFETY: the C library gives every thread its own `errno`, at an address that is always
        // good.
        unsafe { *libc::__errno_location() = self.0 };
    }

    /// This error, for a call that is refused; the log at level debug says why.
    #[cold]
    #[must_use]
    pub fn because(self, reason: impl fmt::Display) -> Self {
        // Starts the log, if this is the first call of the process.
        log::start_by_variable();
        tracing::debug!("call refused with {}: {reason}", self.name());
        self
    }

    /// Like [`Errno::because`]: a pointer that must not be NULL is.
    #[cold]
    #[must_use]
    pub fn null_argument(self) -> Self {
        self.because("an argument is NULL that must not be")
    }

    /// Like [`Errno::because`]: a number does not fit.
    #[cold]
    #[must_use]
    pub fn out_of_range(self) -> Self {
        self.because("a number is negative or too large")
    }

    /// Like [`Errno::because`]: another thread destroys the id.
    #[cold]
    #[must_use]
    pub fn destroyed(self) -> Self {
        self.because("the id is being destroyed")
    }

    /// The number's name in C, or the number.
    fn name(self) -> impl fmt::Display {
        const NAMES: &[(c_int, &str)] = &[
            (libc::EINVAL, "EINVAL"),
            (libc::EOPNOTSUPP, "EOPNOTSUPP"),
            (libc::ENOSYS, "ENOSYS"),
            (libc::ENOMEM, "ENOMEM"),
            (libc::EBUSY, "EBUSY"),
            (libc::EIO, "EIO"),
            (libc::EPERM, "EPERM"),
            (libc::ENODEV, "ENODEV"),
            (libc::EFAULT, "EFAULT"),
            (libc::ENODATA, "ENODATA"),
            (libc::EADDRINUSE, "EADDRINUSE"),
            (libc::EADDRNOTAVAIL, "EADDRNOTAVAIL"),
            (libc::ENETUNREACH, "ENETUNREACH"),
            (libc::ECONNREFUSED, "ECONNREFUSED"),
            (libc::ECONNRESET, "ECONNRESET"),
        ];
        let known = NAMES.iter().find(|(number, _)| *number == self.0).map(|(_, name)| *name);
        known.map_or_else(|| format!("error {}", self.0), str::to_owned)
    }

    /// The last error of the C library on this thread.
    pub fn last() -> Self {
        // SAFETY: the C library gives every thread its own `errno`, at an address that is always
        // good.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(match error.kind() {
            std::io::ErrorKind::TimedOut => libc::ETIMEDOUT,
            std::io::ErrorKind::ConnectionReset => libc::ECONNRESET,
            std::io::ErrorKind::ConnectionRefused => libc::ECONNREFUSED,
            std::io::ErrorKind::Unsupported => libc::EOPNOTSUPP,
            std::io::ErrorKind::PermissionDenied => libc::EACCES,
            _ => libc::EIO,
        }))
    }
}

impl From<uiw_mem::RegisterError> for Errno {
    fn from(error: uiw_mem::RegisterError) -> Self {
        tracing::debug!(%error, "registration refused");
        match error {
            uiw_mem::RegisterError::TooManyEntries { .. } => Self::NOMEM,
            _ => Self::INVAL,
        }
    }
}

impl From<Error> for Errno {
    /// The number that rdma-core's own drivers give for the same mistake.
    fn from(error: Error) -> Self {
        tracing::debug!(%error, "call refused");
        match error {
            Error::Io { what, source } => {
                // A family that is not there is a probe's answer.
                if source.raw_os_error() != Some(libc::EAFNOSUPPORT) {
                    denied::report(what, &source);
                }
                source.into()
            }
            Error::Lost { source, .. } | Error::Injected { source, .. } => source.into(),
            Error::QueueFull { .. } => Self::NOMEM,
            Error::Register(error) => error.into(),
            Error::Deregister(_) | Error::Busy { .. } => Self::BUSY,
            Error::NotConnected => Self(libc::ENOTCONN),
            Error::AlreadyConnected { .. } => Self(libc::EISCONN),
            Error::Rejected { .. } | Error::Refused { .. } | Error::NoQueuePair { .. } => {
                Self(libc::ECONNREFUSED)
            }
            Error::TimedOut { .. } => Self(libc::ETIMEDOUT),
            Error::PeerStartup { .. } | Error::PeerRefusal { .. } => Self(libc::EPROTO),
            Error::ClosedInStartup { .. } => Self(libc::ECONNRESET),
            Error::Unsupported { .. } => Self::UNSUPPORTED,
            Error::MessageTooLong { .. } => Self(libc::EMSGSIZE),
            _ => Self::INVAL,
        }
    }
}
