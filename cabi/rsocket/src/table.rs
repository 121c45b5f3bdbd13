//! The descriptors of rsockets. Each is a real one of the process, with nothing behind it: no other
//! file gets its number.

use crate::any::AnySocket;
use crate::datagram::Datagram;
use crate::epoll::Epoll;
use crate::preload::{BITMAP, DescriptorSockets, PlainSocket, process, waiting};
use crate::socket::Socket;
use crate::sys;
use std::collections::BTreeMap;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::fork::{ForkSafe, Forked};

/// Object behind a descriptor.
#[derive(Clone)]
pub(crate) enum Entry {
    Socket(Arc<Socket>),
    Datagram(Arc<Datagram>),
    Epoll(Arc<Epoll>),
    /// A socket of the kernel that may become an rsocket: of the preload library. A fork gives it
    /// to the child.
    Plain(Arc<PlainSocket>),
    /// Made before a fork, in the parent: closing it frees the number.
    Inherited(Option<DescriptorSockets>),
}

impl Entry {
    /// Returns the state of the descriptor numbers; `None` if nothing is known of it.
    fn behind(&self) -> Option<DescriptorSockets> {
        match self {
            Self::Socket(socket) => socket.behind(),
            Self::Datagram(socket) => socket.behind(),
            Self::Plain(plain) => plain.behind(),
            Self::Inherited(behind) => *behind,
            Self::Epoll(_) => None,
        }
    }

    /// The rsocket that it is.
    pub(crate) fn socket(self) -> Option<AnySocket> {
        match self {
            Self::Socket(socket) => Some(AnySocket::Stream(socket)),
            Self::Datagram(socket) => Some(AnySocket::Datagram(socket)),
            _ => None,
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Socket(one), Self::Socket(other)) => Arc::ptr_eq(one, other),
            (Self::Datagram(one), Self::Datagram(other)) => Arc::ptr_eq(one, other),
            (Self::Plain(one), Self::Plain(other)) => Arc::ptr_eq(one, other),
            (Self::Inherited(_), Self::Inherited(_)) => true,
            _ => false,
        }
    }
}

struct SocketTable(BTreeMap<RawFd, Entry>);

impl Forked for SocketTable {
    const NEW: Self = Self(BTreeMap::new());

    fn before_fork(&mut self) {
        process::will_fork();
    }

    fn in_child(&mut self) {
        for (fd, entry) in &mut self.0 {
            // Locks inside may be held by threads of the parent.
            let inherited = Entry::Inherited(entry.behind());
            match std::mem::replace(entry, inherited) {
                // A thread of the parent makes an rsocket of it, and the child has no such thread.
                Entry::Plain(plain) if plain.is_becoming() => {}
                plain @ Entry::Plain(_) => *entry = plain,
                // What the system has in it is in it.
                Entry::Epoll(set) => {
                    std::mem::forget(set);
                    BITMAP.clear(*fd);
                }
                Entry::Datagram(socket) => {
                    socket.leave_to_parent();
                    std::mem::forget(socket);
                }
                other => std::mem::forget(other),
            }
        }
        waiting::forked();
        self.0.retain(|fd, _| BITMAP.is_set(*fd));
        process::has_table();
    }
}

/// Table in shards: every call begins with a look-up.
static TABLE: ForkSafe<SocketTable, 64> = ForkSafe::new();

fn shard(fd: RawFd) -> &'static uiw_cabi_core::lock::RwLock<SocketTable> {
    TABLE.shard(u64::from(fd.unsigned_abs()))
}

/// A descriptor with nothing behind it. Polling it, which only a program does that takes it for an
/// ordinary one, never finds it ready.
fn placeholder() -> Result<OwnedFd> {
    // A child of exec has no rsockets.
    sys::eventfd(libc::EFD_NONBLOCK)
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
    let number = fd.into_raw_fd();
    name(number, entry);
    number
}

/// Gives `entry` a number that the program has.
pub(crate) fn name(number: RawFd, entry: Entry) {
    begin(&entry);
    let before = shard(number).write().0.insert(number, entry);
    BITMAP.set(number);
    // The program closed the number by a call that is not seen here, and the system gave it away
    // again: it is the new entry's.
    before.into_iter().for_each(end);
}

/// The epoll set of a number that has one from now on: `set`, unless another thread has given it
/// one meanwhile.
pub(crate) fn follow(number: RawFd, set: Arc<Epoll>) -> Arc<Epoll> {
    let before = {
        let mut table = shard(number).write();
        match table.0.get(&number) {
            Some(Entry::Epoll(known)) => return Arc::clone(known),
            _ => {
                BITMAP.set(number);
                table.0.insert(number, Entry::Epoll(Arc::clone(&set)))
            }
        }
    };
    before.into_iter().for_each(end);
    set
}

/// Another entry for a number that has one. False if the program has closed it meanwhile.
pub(crate) fn exchange(number: RawFd, entry: Entry) -> bool {
    begin(&entry);
    let (before, is_present) = match shard(number).write().0.get_mut(&number) {
        Some(present) => (std::mem::replace(present, entry), true),
        None => (entry, false),
    };
    end(before);
    is_present
}

/// The number is an ordinary descriptor from now on, and stays open. Returns whether it was another
/// one.
pub(crate) fn forget(number: RawFd) -> bool {
    BITMAP.clear(number);
    let removed = shard(number).write().0.remove(&number);
    removed.map(end).is_some()
}

/// Another number for what is behind `number`.
pub(crate) fn duplicate(number: RawFd, new: RawFd) {
    if let Some(entry) = present(number) {
        name(new, entry);
    }
}

/// Returns the object behind a descriptor, if it is one of these.
pub(crate) fn get(fd: RawFd) -> Option<Entry> {
    shard(fd).read().0.get(&fd).cloned()
}

/// Like [`get`], of what the program still has: a number that it has closed by a call that is not
/// seen here, and that may be another file's by now, is ordinary.
pub(crate) fn present(fd: RawFd) -> Option<Entry> {
    loop {
        let entry = get(fd)?;
        if entry.behind().is_none_or(|behind| behind.is_at(fd)) {
            return Some(entry);
        }
        if process::is_vforked() {
            // The table is the parent's, which has not closed it.
            return None;
        }
        let stale = {
            let mut table = shard(fd).write();
            match table.0.get(&fd) {
                Some(present) if present.is_same(&entry) => {
                    BITMAP.clear(fd);
                    table.0.remove(&fd)
                }
                // Another thread has changed what it is.
                _ => None,
            }
        };
        if let Some(stale) = stale {
            tracing::info!(fd, "a socket was closed by a call that is not seen");
            end(stale);
        }
    }
}

/// The rsocket behind a descriptor.
///
/// # Errors
/// EBADF for a descriptor that is no rsocket; EIO for one that came through a fork.
pub(crate) fn socket(fd: RawFd) -> Result<AnySocket> {
    let entry = get(fd);
    if let Some(Entry::Inherited(_)) = entry {
        return Err(Errno::INHERITED.because("the rsocket was made in the parent, before a fork"));
    }
    let socket = entry.and_then(Entry::socket);
    socket.ok_or_else(|| Errno(libc::EBADF).because("a descriptor that is no rsocket"))
}

/// Like [`socket`], for calls that only streams have.
///
/// # Errors
/// As [`socket`]; EOPNOTSUPP for datagrams.
pub(crate) fn stream(fd: RawFd) -> Result<Arc<Socket>> {
    match socket(fd)? {
        AnySocket::Stream(socket) => Ok(socket),
        AnySocket::Datagram(_) => Err(Errno::UNSUPPORTED.because("a call that datagrams do not have")),
    }
}

/// Closes a descriptor.
///
/// # Errors
/// EBADF
pub(crate) fn close(fd: RawFd) -> Result<()> {
    // The system's calls on the number are ordinary ones again.
    BITMAP.clear(fd);
    let removed = shard(fd).write().0.remove(&fd);
    let entry = removed.ok_or_else(|| Errno(libc::EBADF).because("a descriptor that is no rsocket"))?;
    end(entry);
    // After the connection, so that the number is not another's while it ends.
    // SAFETY: the descriptor was the entry's, which the table does not have any more.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}

/// A number more for what is behind it.
fn begin(entry: &Entry) {
    match entry {
        Entry::Socket(socket) => socket.numbers().add(),
        Entry::Datagram(socket) => socket.numbers().add(),
        _ => {}
    }
}

/// A number less.
fn end(entry: Entry) {
    match entry {
        Entry::Socket(socket) if socket.numbers().remove() => socket.close(),
        Entry::Datagram(socket) if socket.numbers().remove() => socket.close(),
        _ => {}
    }
}

/// Every socket, at the end of the process.
pub(crate) fn all() -> Vec<AnySocket> {
    let mut all = Vec::new();
    TABLE.each(|table| all.extend(table.0.values().filter_map(|entry| entry.clone().socket())));
    all
}

/// The numbers whose entries `is` accepts.
pub(crate) fn numbers(is: impl Fn(&Entry) -> bool) -> Vec<RawFd> {
    let mut found = Vec::new();
    TABLE.visit(|table| found.extend(table.0.iter().filter(|(_, entry)| is(entry)).map(|(fd, _)| *fd)));
    found
}

/// Every epoll set that has rsockets.
pub(crate) fn sets() -> Vec<Arc<Epoll>> {
    let mut found = Vec::new();
    TABLE.visit(|table| {
        found.extend(table.0.values().filter_map(|entry| match entry {
            Entry::Epoll(set) => Some(Arc::clone(set)),
            _ => None,
        }));
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_ignores_conversion_in_parent() {
        // Numbers that no descriptor of this process has.
        let (becoming, accepted, closed) = (1_048_573, 1_048_574, 1_048_575);
        let mut table = SocketTable::NEW;
        for (fd, is_becoming) in [(becoming, true), (accepted, false), (closed, false)] {
            table.0.insert(fd, Entry::Plain(PlainSocket::of_test(is_becoming)));
        }
        [becoming, accepted].iter().for_each(|fd| BITMAP.set(*fd));
        table.in_child();
        [becoming, accepted].iter().for_each(|fd| BITMAP.clear(*fd));
        assert!(matches!(table.0.get(&becoming), Some(Entry::Inherited(_))));
        assert!(matches!(table.0.get(&accepted), Some(Entry::Plain(_))));
        assert_eq!(table.0.len(), 2);
    }
}
