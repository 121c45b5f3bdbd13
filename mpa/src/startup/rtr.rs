//! Ready-to-receive (RTR) indications: the first message of a peer-to-peer connection (RFC 6581
//! section 9.2).

use crate::wire::startup::Enhanced;

/// Kind of the initiator's zero-length first message, after which the responder may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rtr {
    /// Zero-length RDMA Write, which uses no resources at either end.
    Write,
    /// Zero-length RDMA Read, which uses one of the initiator's ORD and one of the responder's IRD.
    Read,
    /// Zero-length Send, which uses the first MSN of queue 0. uiw's responder takes no receive for
    /// it, but others may.
    Send,
}

/// Set of RTR kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RtrKinds {
    /// True if the set contains [`Rtr::Write`] (control flag C).
    pub write: bool,
    /// True if the set contains [`Rtr::Read`] (control flag D).
    pub read: bool,
    /// True if the set contains [`Rtr::Send`] (control flag B).
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

    /// Returns the kinds that are in both sets.
    #[must_use]
    pub const fn intersect(self, other: Self) -> Self {
        Self {
            write: self.write && other.write,
            read: self.read && other.read,
            send: self.send && other.send,
        }
    }

    /// Returns the kind of the set that uses the fewest resources: Write before Read before Send.
    /// `None` if the set is empty.
    #[must_use]
    pub const fn preferred(self) -> Option<Rtr> {
        match self {
            Self { write: true, .. } => Some(Rtr::Write),
            Self { read: true, .. } => Some(Rtr::Read),
            Self { send: true, .. } => Some(Rtr::Send),
            _ => None,
        }
    }

    /// Returns the kind to use at revision 1, which cannot negotiate one.
    ///
    /// A Read is preferred, because Chelsio's driver expects it unless configured otherwise, and
    /// refuses a Write. A Send is never used, because it would consume a receive of a peer that has
    /// not agreed to it.
    pub(super) const fn preferred_unnegotiated(self) -> Option<Rtr> {
        match self {
            Self { read: true, .. } => Some(Rtr::Read),
            Self { write: true, .. } => Some(Rtr::Write),
            _ => None,
        }
    }

    /// Returns the set without Read if `depth` (IRD or ORD) allows no outstanding Read.
    pub(super) const fn usable_at_depth(self, depth: u16) -> Self {
        Self { read: self.read && depth > 0, ..self }
    }
}

impl From<Enhanced> for RtrKinds {
    /// Returns the kinds of the flags B, C and D. They have no meaning unless A is set.
    fn from(enhanced: Enhanced) -> Self {
        if !enhanced.peer_to_peer {
            return Self::NONE;
        }
        Self { write: enhanced.rtr_write, read: enhanced.rtr_read, send: enhanced.rtr_send }
    }
}
