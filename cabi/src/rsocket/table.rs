//! The descriptors of rsockets. Each is a real one of the process, with nothing behind it: no other file gets its number.

use crate::boundary::Result;
use crate::errno::Errno;
use crate::fork::{ForkSafe, Forked};
use crate::rsocket::epoll::Epoll;
use crate::rsocket::socket::Socket;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// What is behind a descriptor.
#[derive(Clone)]
pub(crate) enum Entry {
    Socket(Arc<Socket>),
    Epoll(Arc<Epoll>),
    /// Made before a fork, in the parent: closing it frees the number.
    Inherited,
}

struct Named {
    entry: Entry,
    /// Closed with the entry.
    fd: OwnedFd,
}

struct Table(BTreeMap<RawFd, Named>);

impl Forked for Table {
    const NEW: Self = Self(BTreeMap::new());

    fn in_child(&mut self) {
        for named in self.0.values_mut() {
            // Locks inside may be held by threads of the parent.
            std::mem::forget(std::mem::replace(&mut named.entry, Entry::Inherited));
        }
    }
}

/// In shards: every call begins with a look-up.
static TABLE: ForkSafe<Table, 64> = ForkSafe::new();

fn shard(fd: RawFd) -> &'static parking_lot::RwLock<Table> {
    TABLE.shard(u64::from(fd.unsigned_abs()))
}

/// A descriptor with nothing behind it. Polling it, which only a program does that takes it for an ordinary one, never finds it ready.
fn placeholder() -> Result<OwnedFd> {
    // SAFETY: makes a descriptor, which has no other owner. A child of exec has no rsockets.
    unsafe {
        match libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) {
            -1 => Err(Errno::last()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// Gives `entry` a descriptor.
///
/// # Errors
/// EMFILE
pub(crate) fn add(entry: Entry) -> Result<RawFd> {
    Ok(add_as(placeholder()?, entry))
}

/// Gives `entry` the descriptor `fd`.
pub(crate) fn add_as(fd: OwnedFd, entry: Entry) -> RawFd {
    let number = fd.as_raw_fd();
    let before = shard(number).write().0.insert(number, Named { entry, fd });
    if let Some(Named { entry, fd }) = before {
        // The program closed the number by close(2), and the system gave it away again: it is the new entry's.
        let _ = fd.into_raw_fd();
        end(entry);
    }
    number
}

/// What is behind a descriptor, if it is one of these.
pub(crate) fn get(fd: RawFd) -> Option<Entry> {
    Some(shard(fd).read().0.get(&fd)?.entry.clone())
}

/// The socket behind a descriptor.
///
/// # Errors
/// EBADF for a descriptor that is no rsocket; EIO for one that came through a fork.
pub(crate) fn socket(fd: RawFd) -> Result<Arc<Socket>> {
    match get(fd) {
        Some(Entry::Socket(socket)) => Ok(socket),
        Some(Entry::Inherited) => {
            Err(Errno::INHERITED.because("the rsocket was made in the parent, before a fork"))
        }
        Some(Entry::Epoll(_)) | None => Err(Errno(libc::EBADF).because("a descriptor that is no rsocket")),
    }
}

/// Closes a descriptor.
///
/// # Errors
/// EBADF
pub(crate) fn close(fd: RawFd) -> Result<()> {
    let removed = shard(fd).write().0.remove(&fd);
    let Named { entry, fd } =
        removed.ok_or_else(|| Errno(libc::EBADF).because("a descriptor that is no rsocket"))?;
    end(entry);
    // After the connection, so that the number is not another's while it ends.
    drop(fd);
    Ok(())
}

fn end(entry: Entry) {
    if let Entry::Socket(socket) = entry {
        socket.close();
    }
}

/// Every socket, at the end of the process.
pub(crate) fn all() -> Vec<Arc<Socket>> {
    let mut all = Vec::new();
    TABLE.each(|table| {
        all.extend(table.0.values().filter_map(|named| match &named.entry {
            Entry::Socket(socket) => Some(Arc::clone(socket)),
            _ => None,
        }));
    });
    all
}
