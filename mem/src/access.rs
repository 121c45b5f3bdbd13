//! The origin and purpose of an access: protection domains, streams, rights.

use core::fmt;

bitflags::bitflags! {
    /// Rights of a region, a window or a fast-register STag. The bits are those of
    /// `ibv_access_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Access: u32 {
        /// The engine may write here for the local program: receives, sinks of RDMA Reads.
        const LOCAL_WRITE = 1;
        /// Peers may write (RDMA Write).
        const REMOTE_WRITE = 2;
        /// Peers may read (RDMA Read).
        const REMOTE_READ = 4;
        /// Peers may execute atomic operations (RFC 7306).
        const REMOTE_ATOMIC = 8;
        /// Memory windows may be bound to the region.
        const MW_BIND = 16;
        /// The TO of the first byte is 0, not its address.
        const ZERO_BASED = 32;
    }
}

impl Access {
    /// Every right that lets a peer reach the memory.
    pub const REMOTE: Self = Self::REMOTE_WRITE.union(Self::REMOTE_READ).union(Self::REMOTE_ATOMIC);

    /// True if a peer can reach the memory with these rights, directly or through a window bound to
    /// it.
    pub const fn is_peer_reachable(self) -> bool {
        self.intersects(Self::REMOTE.union(Self::MW_BIND))
    }

    /// Rights by which a peer changes memory; verbs grant them only on top of
    /// [`Access::LOCAL_WRITE`].
    pub(crate) const fn changes_memory(self) -> bool {
        self.intersects(Self::REMOTE_WRITE.union(Self::REMOTE_ATOMIC))
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() { f.write_str("(none)") } else { bitflags::parser::to_writer(self, f) }
    }
}

/// A protection domain of this device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PdId(pub u32);

impl fmt::Display for PdId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PD {}", self.0)
    }
}

/// One incarnation of a queue pair: a queue pair that is reset and connected anew is another
/// stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}", self.0)
    }
}

/// The operation that a peer requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Right {
    /// Place bytes of an RDMA Write.
    Write,
    /// Fetch bytes for an RDMA Read.
    Read,
    /// Execute an atomic operation (RFC 7306).
    Atomic,
}

impl Right {
    /// The access flag that grants it.
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

/// The two types of memory window (`ibv_alloc_mw(3)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowType {
    /// PD-wide; a bind replaces the last one and gives a new key; a bind of length zero revokes.
    One,
    /// Bound to one stream, with a key byte of the consumer's choice; revoked by invalidation.
    Two,
}
