//! The connections that are served: how many there are, of all peers, of each address and of each key.

use super::peers::{Holder, Peer, is_fair};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Connections at a time.
pub(super) const MAX: usize = 1024;

/// Connections that have a thread each. The threads are detached: a handle that waits to be joined would keep its stack.
pub(super) struct Sessions {
    served: Mutex<Served>,
    left: Condvar,
    /// Limit set by the operator. Without one an address holds at most as many connections as it leaves to others.
    per_address: Option<usize>,
    /// Of all addresses.
    most: usize,
}

#[derive(Default)]
struct Served {
    all: usize,
    by_holder: HashMap<Holder, usize>,
}

/// Why a connection is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Busy {
    /// There are as many connections as there may be.
    All(usize),
    /// Its address has as many as one may have.
    Address(usize),
    /// Its key has as many as one may have.
    Key(usize),
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(MAX) => write!(f, "{MAX} connections are served already"),
            Self::All(most) => {
                write!(
                    f,
                    "{most} connections are served already: the server has no more descriptors (`ulimit -n`)"
                )
            }
            Self::Address(most) => {
                write!(f, "{most} connections of its address are served already (`--per-address`)")
            }
            Self::Key(most) => write!(f, "{most} connections of its key are served already"),
        }
    }
}

impl Sessions {
    /// At most `per_address` of one address, and of all no more than `most`.
    pub(super) fn new(per_address: Option<usize>, most: usize) -> Self {
        Self { served: Mutex::default(), left: Condvar::new(), per_address, most: most.min(MAX) }
    }

    fn served(&self) -> MutexGuard<'_, Served> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more connection, of `peer`.
    pub(super) fn enter(&self, peer: &Peer) -> Result<(), Busy> {
        let mut served = self.served();
        if served.all >= self.most {
            return Err(Busy::All(self.most));
        }
        let holders = peer.holders();
        for holder in &holders {
            let own = served.by_holder.get(holder).copied().unwrap_or_default();
            let others = served.all - own;
            let is_fair = is_fair(self.most as u64, others as u64, own as u64 + 1);
            match (holder, self.per_address) {
                (Holder::Host(_), Some(most)) if own >= most => return Err(Busy::Address(most)),
                (Holder::Host(_), None) if !is_fair => return Err(Busy::Address(own)),
                (Holder::Key(_), None) if !is_fair => return Err(Busy::Key(own)),
                _ => {}
            }
        }
        served.all += 1;
        for holder in holders {
            *served.by_holder.entry(holder).or_default() += 1;
        }
        Ok(())
    }

    /// One less.
    pub(super) fn leave(&self, peer: &Peer) {
        let mut served = self.served();
        served.all -= 1;
        for holder in peer.holders() {
            if let Some(count) = served.by_holder.get_mut(&holder) {
                *count -= 1;
                if *count == 0 {
                    served.by_holder.remove(&holder);
                }
            }
        }
        self.left.notify_all();
    }

    /// Waits until none is left.
    pub(super) fn over(&self) {
        let mut served = self.served();
        while served.all > 0 {
            served = self.left.wait(served).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn peer(number: u32) -> Peer {
        Peer::new(std::net::Ipv4Addr::from_bits(number).into(), None)
    }

    fn at(address: &str) -> Peer {
        Peer::new(address.parse().unwrap(), None)
    }

    #[test]
    fn no_more_than_the_bound_at_a_time() {
        let sessions = Sessions::new(Some(1), usize::MAX);
        assert!((0..MAX).all(|number| sessions.enter(&peer(number as u32)).is_ok()));
        assert_eq!(sessions.enter(&peer(5000)), Err(Busy::All(MAX)));
        sessions.leave(&peer(0));
        assert_eq!(sessions.enter(&peer(5000)), Ok(()));
        assert_eq!(sessions.enter(&peer(5001)), Err(Busy::All(MAX)));
        let few = Sessions::new(Some(MAX), 1);
        assert_eq!(few.enter(&peer(1)), Ok(()));
        assert_eq!(few.enter(&peer(2)), Err(Busy::All(1)));
        assert!(Busy::All(1).to_string().contains("ulimit -n"));
        assert!(!Busy::All(MAX).to_string().contains("ulimit -n"));
    }

    #[test]
    fn one_address_leaves_room_for_others() {
        let sessions = Sessions::new(Some(2), MAX);
        let busy = Err(Busy::Address(2));
        assert!((0..2).all(|_| sessions.enter(&peer(1)).is_ok()));
        assert_eq!(sessions.enter(&peer(1)), busy);
        assert_eq!(sessions.enter(&at("::ffff:0.0.0.1")), busy, "the same host by IPv6");
        assert_eq!(sessions.enter(&peer(2)), Ok(()));
        sessions.leave(&peer(1));
        assert_eq!(sessions.enter(&peer(1)), Ok(()));
        for last in ["2001:db8::1", "2001:db8::2"] {
            assert_eq!(sessions.enter(&at(last)), Ok(()));
        }
        assert_eq!(sessions.enter(&at("2001:db8::3:0:0:1")), busy, "a network of one host");
        assert_eq!(sessions.enter(&at("2001:db8:0:1::1")), Ok(()));
    }

    #[test]
    fn greedy_addresses_leave_places_for_others() {
        let sessions = Sessions::new(None, MAX);
        let taken = |number| (0..).take_while(|_: &usize| sessions.enter(&peer(number)).is_ok()).count();
        assert_eq!([1, 2, 3, 4].map(taken), [512, 256, 128, 64]);
        assert_eq!(sessions.enter(&peer(5)), Ok(()));
    }

    #[test]
    fn key_at_several_addresses_limited() {
        let sessions = Sessions::new(None, MAX);
        let at = |number: u32, key: &str| {
            Peer::new(std::net::Ipv4Addr::from_bits(number).into(), Some(key.to_owned()))
        };
        let taken = (0..).take_while(|number| sessions.enter(&at(*number, "key")).is_ok()).count();
        assert_eq!(taken, 512);
        assert_eq!(sessions.enter(&at(5000, "key")), Err(Busy::Key(512)));
        assert_eq!(sessions.enter(&at(5000, "another")), Ok(()));
    }

    #[test]
    fn the_end_waits_for_all() {
        let sessions = Arc::new(Sessions::new(Some(MAX), MAX));
        assert!((0..64).all(|_| sessions.enter(&peer(1)).is_ok()));
        for _ in 0..64 {
            let own = Arc::clone(&sessions);
            std::thread::spawn(move || own.leave(&peer(1)));
        }
        sessions.over();
        assert_eq!(sessions.served().all, 0);
        assert!(sessions.served().by_holder.is_empty());
    }
}
