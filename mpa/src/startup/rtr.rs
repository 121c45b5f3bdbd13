//! Ready-to-receive indications: the first message of a peer-to-peer connection (RFC 6581 section 9.2).

use crate::wire::startup::Enhanced;

/// A zero-length message after which the responder may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rtr {
    /// A zero-length RDMA Write: it uses nothing at either end.
    Write,
    /// A zero-length RDMA Read: it uses one of the initiator's ORD and of the responder's IRD.
    Read,
    /// A zero-length Send: it uses a receive buffer and the first MSN of queue 0.
    Send,
}

/// A set of RTR kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RtrKinds {
    /// [`Rtr::Write`], control flag C.
    pub write: bool,
    /// [`Rtr::Read`], control flag D.
    pub read: bool,
    /// [`Rtr::Send`], control flag B.
    pub send: bool,
}

impl RtrKinds {
    /// The set of all kinds.
    pub const ALL: Self = Self { write: true, read: true, send: true };

    /// The empty set.
    pub const NONE: Self = Self { write: false, read: false, send: false };

    /// Returns whether the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        !(self.write || self.read || self.send)
    }

    /// Returns whether the set contains `kind`.
    #[must_use]
    pub const fn contains(self, kind: Rtr) -> bool {
        match kind {
            Rtr::Write => self.write,
            Rtr::Read => self.read,
            Rtr::Send => self.send,
        }
    }

    /// The kinds in both sets.
    #[must_use]
    pub const fn intersect(self, other: Self) -> Self {
        Self {
            write: self.write && other.write,
            read: self.read && other.read,
            send: self.send && other.send,
        }
    }

    /// The kind to use out of these: the one that costs least.
    #[must_use]
    pub const fn preferred(self) -> Option<Rtr> {
        match self {
            Self { write: true, .. } => Some(Rtr::Write),
            Self { read: true, .. } => Some(Rtr::Read),
            Self { send: true, .. } => Some(Rtr::Send),
            _ => None,
        }
    }

    /// The kind to use at revision 1, which cannot negotiate one. A Read first: Chelsio's driver takes that kind unless it is configured otherwise, and
    /// refuses a Write. No Send, which would use up a receive of a peer that has not agreed to one.
    pub(super) const fn unnegotiated(self) -> Option<Rtr> {
        match self {
            Self { read: true, .. } => Some(Rtr::Read),
            Self { write: true, .. } => Some(Rtr::Write),
            _ => None,
        }
    }

    /// These kinds, less the Read if no Read can be outstanding.
    pub(super) const fn with_reads(self, depth: u16) -> Self {
        Self { read: self.read && depth > 0, ..self }
    }
}

impl From<Enhanced> for RtrKinds {
    /// B, C and D, which mean nothing unless A is set.
    fn from(enhanced: Enhanced) -> Self {
        if !enhanced.peer_to_peer {
            return Self::NONE;
        }
        Self { write: enhanced.rtr_write, read: enhanced.rtr_read, send: enhanced.rtr_send }
    }
}
