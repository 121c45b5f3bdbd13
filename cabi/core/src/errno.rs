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
    /// The function exists in verbs, but not on this device.
    pub const UNSUPPORTED: Self = Self(libc::EOPNOTSUPP);
    /// The function is not implemented.
    pub const NOSYS: Self = Self(libc::ENOSYS);
    /// A resource is exhausted.
    pub const NOMEM: Self = Self(libc::ENOMEM);
    /// The object is in use.
    pub const BUSY: Self = Self(libc::EBUSY);
    /// The object was inherited through a fork, and its engine runs in the parent.
    pub const INHERITED: Self = Self(libc::EIO);
    /// The program is not permitted to do this.
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
        // SAFETY: the C library gives every thread its own `errno`, whose address is aligned and
        // valid as long as the thread lives. Only this thread accesses it, and no reference to it
        // exists.
        unsafe { *libc::__errno_location() = self.0 };
    }

    /// Returns this error for a refused call, and logs the reason at level debug.
    #[cold]
    #[must_use]
    pub fn because(self, reason: impl fmt::Display) -> Self {
        // Starts the log, if this is the first call of the process.
        log::start_by_variable();
        tracing::debug!("call refused with {}: {reason}", self.name());
        self
    }

    /// Like [`Errno::because`], for a NULL pointer that is not permitted.
    #[cold]
    #[must_use]
    pub fn null_argument(self) -> Self {
        self.because("a required argument is NULL")
    }

    /// Like [`Errno::because`], for a number that is out of range.
    #[cold]
    #[must_use]
    pub fn out_of_range(self) -> Self {
        self.because("a number is negative or too large")
    }

    /// Returns the name of the number in C, or the number itself.
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

    /// Returns the last error of the C library on this thread.
    pub fn last() -> Self {
        // SAFETY: the C library gives every thread its own `errno`, whose address is aligned and
        // valid as long as the thread lives. Only this thread accesses it, and no reference to it
        // exists.
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
    /// Returns the number with which rdma-core's own drivers report the same error.
    fn from(error: Error) -> Self {
        tracing::debug!(%error, "call refused");
        match error {
            Error::Io { what, source } => {
                // An unsupported address family is the expected answer to a probe.
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
