//! Table of the descriptors of rsockets. Each is a real descriptor of the process, often a
//! placeholder with nothing behind it, so that no other file gets its number.

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
use uiw_cabi_core::fork::{ForkSafe, ForkState};

/// Object behind a descriptor.
#[derive(Clone)]
pub(crate) enum Entry {
    Socket(Arc<Socket>),
    Datagram(Arc<Datagram>),
    Epoll(Arc<Epoll>),
    /// Socket of the kernel that may become an rsocket, for the preload library. A fork copies it
    /// to the child.
    Plain(Arc<PlainSocket>),
    /// Object that was created before a fork, in the parent. Closing it frees the number.
    Inherited(Option<DescriptorSockets>),
}

impl Entry {
    /// Returns the sockets of the system behind the descriptor number, or `None` if they are
    /// unknown.
    fn descriptor_sockets(&self) -> Option<DescriptorSockets> {
        match self {
            Self::Socket(socket) => socket.descriptor_sockets(),
            Self::Datagram(socket) => socket.descriptor_sockets(),
            Self::Plain(plain) => plain.descriptor_sockets(),
            Self::Inherited(sockets) => *sockets,
            Self::Epoll(_) => None,
        }
    }

    /// Returns the rsocket, if the entry is one.
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

impl ForkState for SocketTable {
    const NEW: Self = Self(BTreeMap::new());

    fn before_fork(&mut self) {
        process::will_fork();
    }

    fn in_child(&mut self) {
        for (fd, entry) in &mut self.0 {
            // Locks inside the objects may be held by threads of the parent.
            let inherited = Entry::Inherited(entry.descriptor_sockets());
            match std::mem::replace(entry, inherited) {
                // A thread of the parent is converting the socket to an rsocket, and the child has
                // no such thread.
                Entry::Plain(plain) if plain.is_becoming() => {}
                plain @ Entry::Plain(_) => *entry = plain,
                // The number is an ordinary descriptor from now on, because the system's own
                // members are still in the set.
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

/// Table in shards, because every call begins with a look-up.
static TABLE: ForkSafe<SocketTable, 64> = ForkSafe::new();

fn shard(fd: RawFd) -> &'static uiw_cabi_core::lock::RwLock<SocketTable> {
    TABLE.shard(u64::from(fd.unsigned_abs()))
}

/// Creates a descriptor with nothing behind it. A program that polls it as an ordinary descriptor
/// never finds it ready.
pub(crate) fn placeholder() -> Result<OwnedFd> {
    // exec(3) closes it, because the next program has no rsockets.
    sys::eventfd(libc::EFD_NONBLOCK)
}

/// Adds `entry` with a new descriptor.
///
/// # Errors
/// EMFILE.
pub(crate) fn add(entry: Entry) -> Result<RawFd> {
    Ok(add_as(placeholder()?, entry))
}

/// Adds `entry` with the descriptor `fd`.
pub(crate) fn add_as(fd: OwnedFd, entry: Entry) -> RawFd {
    let number = fd.into_raw_fd();
    insert(number, entry);
    number
}

/// Adds `entry` with a number that the program already has.
pub(crate) fn insert(number: RawFd, entry: Entry) {
    count_number(&entry);
    let before = shard(number).write().0.insert(number, entry);
    BITMAP.set(number);
    // The program closed the number with a call that this library does not see, and the system has
    // reused it for the new entry.
    before.into_iter().for_each(uncount_number);
}

/// Adds an epoll set for a number, unless another thread has added one meanwhile. Returns the set
/// of the number.
pub(crate) fn add_epoll(number: RawFd, set: Arc<Epoll>) -> Arc<Epoll> {
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
    before.into_iter().for_each(uncount_number);
    set
}

/// Replaces the entry of a number. Returns false if the program has closed the number meanwhile.
pub(crate) fn replace(number: RawFd, entry: Entry) -> bool {
    count_number(&entry);
    let (before, is_present) = match shard(number).write().0.get_mut(&number) {
        Some(present) => (std::mem::replace(present, entry), true),
        None => (entry, false),
    };
    uncount_number(before);
    is_present
}

/// Removes a number, which is an ordinary descriptor from now on and stays open. Returns whether it
/// had an entry.
pub(crate) fn release(number: RawFd) -> bool {
    BITMAP.clear(number);
    let removed = shard(number).write().0.remove(&number);
    removed.map(uncount_number).is_some()
}

/// Adds another number for the object behind `number`.
pub(crate) fn duplicate(number: RawFd, new: RawFd) {
    if let Some(entry) = get_if_open(number) {
        insert(new, entry);
    }
}

/// Returns the object behind a descriptor, if it is in the table.
pub(crate) fn get(fd: RawFd) -> Option<Entry> {
    shard(fd).read().0.get(&fd).cloned()
}

/// Like [`get`], but checks that the program still has the descriptor. If it has closed the number
/// with a call that this library does not see, the number may refer to another file now, and is
/// ordinary.
pub(crate) fn get_if_open(fd: RawFd) -> Option<Entry> {
    loop {
        let entry = get(fd)?;
        if entry.descriptor_sockets().is_none_or(|sockets| sockets.is_at(fd)) {
            return Some(entry);
        }
        if process::is_vforked() {
            // The table belongs to the parent of vfork(2), which has not closed the number.
            return None;
        }
        let stale = {
            let mut table = shard(fd).write();
            match table.0.get(&fd) {
                Some(present) if present.is_same(&entry) => {
                    BITMAP.clear(fd);
                    table.0.remove(&fd)
                }
                // Another thread has changed the entry.
                _ => None,
            }
        };
        if let Some(stale) = stale {
            tracing::info!(fd, "a socket was closed by a call that was not detected");
            uncount_number(stale);
        }
    }
}

/// Returns the rsocket behind a descriptor.
///
/// # Errors
/// EBADF for a descriptor that is not an rsocket; EIO for one that was inherited through a fork.
pub(crate) fn socket(fd: RawFd) -> Result<AnySocket> {
    let entry = get(fd);
    if let Some(Entry::Inherited(_)) = entry {
        return Err(
            Errno::INHERITED.because("the rsocket was created by the parent, before a fork")
        );
    }
    let socket = entry.and_then(Entry::socket);
    socket.ok_or_else(|| Errno(libc::EBADF).because("the descriptor is not an rsocket"))
}

/// Like [`socket`], for calls that are only possible on streams.
///
/// # Errors
/// The errors of [`socket`]; EOPNOTSUPP for datagrams.
pub(crate) fn stream(fd: RawFd) -> Result<Arc<Socket>> {
    match socket(fd)? {
        AnySocket::Stream(socket) => Ok(socket),
        AnySocket::Datagram(_) => {
            Err(Errno::UNSUPPORTED.because("the call is not supported for datagrams"))
        }
    }
}

/// Closes a descriptor.
///
/// # Errors
/// EBADF.
pub(crate) fn close(fd: RawFd) -> Result<()> {
    // The number is ordinary for the system's calls from now on.
    BITMAP.clear(fd);
    let removed = shard(fd).write().0.remove(&fd);
    let entry =
        removed.ok_or_else(|| Errno(libc::EBADF).because("the descriptor is not an rsocket"))?;
    uncount_number(entry);
    // The number is closed after the connection, so that it is not reused while the connection
    // ends.
    // SAFETY: the program gives the number up with this call (rsocket(7), close(2)), whether this
    // library created it (`add_as`) or the program did (`insert`). The entry was removed above,
    // under a lock, so only this call closes the number, which is not -1, as only open descriptors
    // get an entry.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}

/// Counts another number of the object behind it.
fn count_number(entry: &Entry) {
    match entry {
        Entry::Socket(socket) => socket.numbers().add(),
        Entry::Datagram(socket) => socket.numbers().add(),
        _ => {}
    }
}

/// Counts the removal of a number. Closes the object if it was the last one.
fn uncount_number(entry: Entry) {
    match entry {
        Entry::Socket(socket) if socket.numbers().remove() => socket.close(),
        Entry::Datagram(socket) if socket.numbers().remove() => socket.close(),
        _ => {}
    }
}

/// Returns every socket, at the end of the process.
pub(crate) fn all_sockets() -> Vec<AnySocket> {
    let mut all = Vec::new();
    TABLE.visit_unlocked(|table| {
        all.extend(table.0.values().filter_map(|entry| entry.clone().socket()));
    });
    all
}

/// Returns the numbers whose entries `is` accepts.
pub(crate) fn find_numbers(is: impl Fn(&Entry) -> bool) -> Vec<RawFd> {
    let mut found = Vec::new();
    TABLE.visit_all(|table| {
        found.extend(table.0.iter().filter(|(_, entry)| is(entry)).map(|(fd, _)| *fd));
    });
    found
}

/// Returns every epoll set that has rsockets.
pub(crate) fn epoll_sets() -> Vec<Arc<Epoll>> {
    let mut found = Vec::new();
    TABLE.visit_all(|table| {
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
