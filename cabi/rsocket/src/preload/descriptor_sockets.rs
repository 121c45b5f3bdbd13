//! Detects which socket of the system is behind a descriptor number.
//!
//! A program may close a number with a call that this library does not see: its own system call, or
//! a function of the C library that closes internally. The system then assigns the number to the
//! next file, whose data would be taken for the rsocket's. The file behind a number is therefore
//! checked before the number is used, which takes one system call for each call on a socket.
//! Placeholders of rsockets have flags that no other file has. A socket of the program itself is
//! compared by its cookie, which takes three times as long.

use crate::sys;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::denied;
use uiw_cabi_core::fork::{ForkSafe, ForkState};

/// Sockets of the system that may be behind a number.
#[derive(Clone, Copy)]
pub(crate) struct DescriptorSockets {
    /// Cookie of the program's socket.
    own: NonZeroU64,
    /// Cookie of the placeholder, after the socket has become an rsocket.
    placeholder: Option<NonZeroU64>,
    /// True if the placeholder has the flags of [`sys::mark`].
    is_marked: bool,
}

impl DescriptorSockets {
    /// Returns the socket that is behind the number now, or `None` if the system does not
    /// distinguish sockets.
    pub(super) fn of(fd: RawFd) -> Option<Self> {
        Some(Self { own: sys::cookie(fd)?, placeholder: None, is_marked: false })
    }

    /// Adds the placeholder, which may be behind the number from now on.
    pub(super) fn or(self, placeholder: Option<&Placeholder>) -> Self {
        let cookie = placeholder.and_then(|placeholder| placeholder.cookie);
        Self {
            placeholder: cookie,
            is_marked: placeholder.is_some_and(|placeholder| placeholder.is_marked),
            ..self
        }
    }

    /// Returns whether one of the sockets is behind the number.
    pub(crate) fn is_at(&self, fd: RawFd) -> bool {
        self.is_marked && sys::is_marked(fd)
            || sys::cookie(fd)
                .is_some_and(|cookie| cookie == self.own || Some(cookie) == self.placeholder)
    }
}

/// Socket that reads as closed. It is behind the numbers of rsockets, for the system's own calls.
#[derive(Clone, Copy)]
pub(crate) struct Placeholder {
    pub(crate) fd: RawFd,
    cookie: Option<NonZeroU64>,
    is_marked: bool,
}

struct KnownPlaceholder(Option<Placeholder>);

impl ForkState for KnownPlaceholder {
    const NEW: Self = Self(None);

    /// A child has the same descriptors.
    fn in_child(&mut self) {}
}

static PLACEHOLDER: ForkSafe<KnownPlaceholder> = ForkSafe::new();

/// Returns the placeholder of the process. The first socket creates it, so that it exists even when
/// no descriptors are left.
///
/// # Errors
/// EMFILE.
pub(crate) fn placeholder() -> Result<Placeholder> {
    // A program may close every number that it has not created, and the number may then belong to
    // another file.
    let is_there =
        |known: &Placeholder| known.cookie.is_none() || sys::cookie(known.fd) == known.cookie;
    let before = PLACEHOLDER.read().0;
    if let Some(known) = before.filter(is_there) {
        return Ok(known);
    }
    let made = sys::closed_socket().and_then(|pair| sys::duplicate(pair.as_raw_fd())).inspect_err(
        |error| {
            denied::report(
                "creating a pair of sockets (socketpair)",
                &io::Error::from_raw_os_error(error.0),
            );
        },
    )?;
    sys::name_placeholder(made.as_raw_fd());
    let (cookie, is_marked) = (sys::cookie(made.as_raw_fd()), sys::mark(made.as_raw_fd()));
    let mut known = PLACEHOLDER.write();
    match known.0 {
        // Another thread was faster.
        Some(other) if before.is_none_or(|before| before.cookie != other.cookie) => Ok(other),
        _ => Ok(*known.0.insert(Placeholder { fd: made.into_raw_fd(), cookie, is_marked })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholder_recognised_by_flags() {
        let own = sys::closed_socket().unwrap();
        let standing = placeholder().unwrap();
        assert!(standing.is_marked);
        let sockets = DescriptorSockets::of(own.as_raw_fd()).unwrap().or(Some(&standing));
        assert!(sockets.is_at(standing.fd) && sockets.is_at(own.as_raw_fd()));
        let other = sys::closed_socket().unwrap();
        assert!(!sockets.is_at(other.as_raw_fd()));
        let file = std::fs::OpenOptions::new().append(true).read(true).open("/dev/null").unwrap();
        assert!(!sockets.is_at(file.as_raw_fd()));
        // A call that this library does not see has changed the flags; the cookie is unchanged.
        let unmarked = sys::closed_socket().unwrap();
        let marked = Placeholder {
            fd: unmarked.as_raw_fd(),
            cookie: sys::cookie(unmarked.as_raw_fd()),
            is_marked: true,
        };
        assert!(
            !sys::is_marked(marked.fd)
                && DescriptorSockets::of(own.as_raw_fd())
                    .unwrap()
                    .or(Some(&marked))
                    .is_at(marked.fd)
        );
    }
}
