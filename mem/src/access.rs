//! Access rights, and the protection domains and streams that have them.

use core::fmt;

bitflags::bitflags! {
    /// Access rights of a region, a window or a fast-register STag, with the bits of
    /// `ibv_access_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Access: u32 {
        /// The engine may write for the local program: receives and sinks of RDMA Reads.
        const LOCAL_WRITE = 1;
        /// Peers may write (RDMA Write).
        const REMOTE_WRITE = 2;
        /// Peers may read (RDMA Read).
        const REMOTE_READ = 4;
        /// Peers may execute atomic operations (RFC 7306).
        const REMOTE_ATOMIC = 8;
        /// Memory windows may be bound to the region.
        const MW_BIND = 16;
        /// The TO of the first byte is 0 instead of its address.
        const ZERO_BASED = 32;
    }
}

impl Access {
    /// All remote access rights.
    pub const REMOTE: Self = Self::REMOTE_WRITE.union(Self::REMOTE_READ).union(Self::REMOTE_ATOMIC);

    /// Returns whether a peer can access the memory with these rights, directly or through a window
    /// that is bound to it.
    pub const fn is_peer_reachable(self) -> bool {
        self.intersects(Self::REMOTE.union(Self::MW_BIND))
    }

    /// Returns whether these rights let a peer modify memory. Verbs grant such rights only together
    /// with [`Access::LOCAL_WRITE`].
    pub(crate) const fn changes_memory(self) -> bool {
        self.intersects(Self::REMOTE_WRITE.union(Self::REMOTE_ATOMIC))
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() { f.write_str("(none)") } else { bitflags::parser::to_writer(self, f) }
    }
}

/// Protection domain of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PdId(pub u32);

impl fmt::Display for PdId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PD {}", self.0)
    }
}

/// One connection of a queue pair. A queue pair that is reset and connected again has another
/// stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}", self.0)
    }
}

/// Operation that a peer requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Right {
    /// Placing bytes of an RDMA Write.
    Write,
    /// Reading bytes for an RDMA Read.
    Read,
    /// Executing an atomic operation (RFC 7306).
    Atomic,
}

impl Right {
    /// Returns the access flag that grants the operation.
    pub const fn flag(self) -> Access {
        match self {
            Self::Write => Access::REMOTE_WRITE,
            Self::Read => Access::REMOTE_READ,
            Self::Atomic => Access::REMOTE_ATOMIC,
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Atomic => "atomic",
        })
    }
}

/// Type of a memory window (`ibv_alloc_mw(3)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowType {
    /// Usable on all streams of the protection domain. A bind replaces the previous one and makes a
    /// new key; a bind of length zero revokes it.
    One,
    /// Bound to one stream, with a key byte that the consumer chooses. Revoked by invalidation.
    Two,
}
