//! Limits for the number of served connections: of all peers, of each address, network and key.

use super::peers::{Grant, Holder, Ledger, Peer};
use crate::shared::text;
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Maximum number of connections.
pub(super) const MAX: usize = 1024;

/// The reserve is one part in this many of all connections (see [`Ledger`]).
const RESERVED_PART: usize = 8;

/// Served connections, which have a thread each. The threads are detached, because a thread that
/// waits to be joined would keep its stack.
pub(super) struct Sessions {
    served: Mutex<Ledger>,
    left: Condvar,
    /// Limit set by the operator. Without it, an address may have as many connections as it leaves
    /// to others.
    per_address: Option<usize>,
    /// Maximum number of connections of all addresses together.
    most: usize,
}

/// Limit because of which a connection is not served. The value is the number of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionLimit {
    /// The server has as many connections as it may have.
    All(usize),
    /// The address of the peer has as many connections as one may have.
    Address(usize),
    /// The network of the peer has as many connections as one may have.
    Network(usize),
    /// The key of the peer has as many connections as one may have.
    Key(usize),
}

impl fmt::Display for SessionLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::All(most) | Self::Address(most) | Self::Network(most) | Self::Key(most)) = *self;
        write!(f, "{}", text::number(most as u64, "connection"))?;
        f.write_str(match self {
            Self::All(_) => "",
            Self::Address(_) => " of its address",
            Self::Network(_) => " of its network",
            Self::Key(_) => " of its key",
        })?;
        write!(f, " {} served already", if most == 1 { "is" } else { "are" })?;
        f.write_str(match self {
            Self::All(most) if *most < MAX => ": the server has no more descriptors (`ulimit -n`)",
            Self::Address(_) => " (`--per-address`)",
            _ => "",
        })
    }
}

impl Sessions {
    /// Creates the limits: at most `per_address` connections of one address, and `most` in total.
    pub(super) fn new(per_address: Option<usize>, most: usize) -> Self {
        let most = most.min(MAX);
        let reserve = if per_address.is_some() { 0 } else { most / RESERVED_PART };
        let served = Mutex::new(Ledger::new((most - reserve) as u64, reserve as u64));
        Self { served, left: Condvar::new(), per_address, most }
    }

    fn served(&self) -> MutexGuard<'_, Ledger> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a new connection of `peer`, unless a limit is reached.
    pub(super) fn enter(&self, peer: &Peer) -> Result<Grant, SessionLimit> {
        let mut served = self.served();
        if served.held() >= self.most as u64 {
            return Err(SessionLimit::All(self.most));
        }
        let grant = match self.per_address {
            Some(most) => served.take_within(peer, 1, most as u64),
            None => served.take(peer, 1),
        };
        grant.map_err(|denied| {
            let own = denied.own as usize;
            match denied.holder {
                Holder::Host(_) => SessionLimit::Address(own),
                Holder::Network(..) => SessionLimit::Network(own),
                Holder::Key(_) => SessionLimit::Key(own),
            }
        })
    }

    /// Counts the end of a connection.
    pub(super) fn leave(&self, grant: &Grant) {
        self.served().release(grant);
        self.left.notify_all();
    }

    /// Waits until all connections have ended.
    pub(super) fn wait_empty(&self) {
        let mut served = self.served();
        while served.held() > 0 {
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

    /// Opens as many sessions as possible for each peer, and returns their numbers.
    fn taken(sessions: &Sessions, peers: impl Iterator<Item = Peer>) -> Vec<usize> {
        peers
            .map(|peer| (0..).take_while(|_: &usize| sessions.enter(&peer).is_ok()).count())
            .collect()
    }

    #[test]
    fn sessions_limited() {
        let sessions = Sessions::new(Some(1), usize::MAX);
        let grants: Vec<_> =
            (0..MAX).map(|number| sessions.enter(&peer(number as u32)).unwrap()).collect();
        assert_eq!(sessions.enter(&peer(5000)).unwrap_err(), SessionLimit::All(MAX));
        sessions.leave(&grants[0]);
        assert!(sessions.enter(&peer(5000)).is_ok());
        assert_eq!(sessions.enter(&peer(5001)).unwrap_err(), SessionLimit::All(MAX));
        for per_address in [Some(MAX), None] {
            let few = Sessions::new(per_address, 1);
            assert!(few.enter(&peer(1)).is_ok());
            assert_eq!(few.enter(&peer(2)).unwrap_err(), SessionLimit::All(1));
        }
        assert!(SessionLimit::All(1).to_string().contains("ulimit -n"));
        assert!(!SessionLimit::All(MAX).to_string().contains("ulimit -n"));
        assert_eq!(SessionLimit::All(MAX).to_string(), "1,024 connections are served already");
        let one = "1 connection of its address is served already (`--per-address`)";
        assert_eq!(SessionLimit::Address(1).to_string(), one);
    }

    #[test]
    fn one_address_leaves_room_for_others() {
        let sessions = Sessions::new(Some(2), MAX);
        let enter = |peer: Peer| sessions.enter(&peer).err();
        let busy = Some(SessionLimit::Address(2));
        let first = sessions.enter(&peer(1)).unwrap();
        assert_eq!(enter(peer(1)), None);
        assert_eq!(enter(peer(1)), busy);
        assert_eq!(enter(at("::ffff:0.0.0.1")), busy, "the same host by IPv6");
        assert_eq!(enter(peer(2)), None);
        sessions.leave(&first);
        assert_eq!(enter(peer(1)), None);
        for last in ["2001:db8::1", "2001:db8::2"] {
            assert_eq!(enter(at(last)), None);
        }
        assert_eq!(enter(at("2001:db8::3:0:0:1")), busy, "a network of one host");
        assert_eq!(enter(at("2001:db8:0:1::1")), None);
    }

    #[test]
    fn greedy_addresses_leave_places_for_others() {
        let sessions = Sessions::new(None, MAX);
        let private = |number: u32| peer(0x0A00_0000 + number);
        assert_eq!(taken(&sessions, (1..=4).map(private)), [448 + 8, 224 + 8, 112 + 8, 56 + 8]);
        let many = taken(&sessions, (5..=12).map(private));
        assert!(many.iter().all(|places| *places >= 8), "{many:?}");
        assert!(sessions.enter(&private(13)).is_ok());
        let networks = (0..300).map(|number| at(&format!("2001:db8:7:{number:x}::1")));
        assert!(taken(&sessions, networks).iter().sum::<usize>() <= 16);
        assert!(sessions.enter(&at("203.0.113.1")).is_ok());
    }

    #[test]
    fn key_at_several_addresses_limited() {
        let sessions = Sessions::new(None, MAX);
        let at = |number: u32, key: &str| {
            Peer::new(
                std::net::Ipv4Addr::from_bits(0x0A00_0000 + number).into(),
                Some(key.to_owned()),
            )
        };
        let taken = (0..).take_while(|number| sessions.enter(&at(*number, "key")).is_ok()).count();
        assert_eq!(taken, 448 + 8);
        assert_eq!(sessions.enter(&at(5000, "key")).unwrap_err(), SessionLimit::Key(448));
        assert!(sessions.enter(&at(5000, "another")).is_ok());
    }

    #[test]
    fn end_waits_for_sessions() {
        let sessions = Arc::new(Sessions::new(Some(MAX), MAX));
        for _ in 0..64 {
            let (own, grant) = (Arc::clone(&sessions), sessions.enter(&peer(1)).unwrap());
            std::thread::spawn(move || own.leave(&grant));
        }
        sessions.wait_empty();
        assert!(sessions.served().is_empty());
    }
}
