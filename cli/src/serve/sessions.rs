//! The connections that are served: how many there are, of all peers and of each address.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Connections at a time.
pub(super) const MAX: usize = 1024;

/// Connections that have a thread each. The threads are detached: a handle that waits to be joined would keep its stack.
pub(super) struct Sessions {
    served: Mutex<Served>,
    left: Condvar,
    per_address: usize,
    /// Of all addresses.
    most: usize,
}

#[derive(Default)]
struct Served {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// Why a connection is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Busy {
    /// There are as many connections as there may be.
    All(usize),
    /// Its address has as many as one may have.
    Address(usize),
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
        }
    }
}

/// One host: of IPv6 a whole /64, as a host may have every address of it.
fn host(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

impl Sessions {
    /// At most `per_address` of one address, and of all no more than `most`.
    pub(super) fn new(per_address: usize, most: usize) -> Self {
        Self { served: Mutex::default(), left: Condvar::new(), per_address, most: most.min(MAX) }
    }

    fn served(&self) -> MutexGuard<'_, Served> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more, of `address`.
    pub(super) fn enter(&self, address: IpAddr) -> Result<(), Busy> {
        let mut served = self.served();
        let host = host(address);
        if served.all >= self.most {
            return Err(Busy::All(self.most));
        }
        if served.by_address.get(&host).is_some_and(|count| *count >= self.per_address) {
            return Err(Busy::Address(self.per_address));
        }
        served.all += 1;
        *served.by_address.entry(host).or_default() += 1;
        Ok(())
    }

    /// One less.
    pub(super) fn leave(&self, address: IpAddr) {
        let mut served = self.served();
        let host = host(address);
        served.all -= 1;
        if let Some(count) = served.by_address.get_mut(&host) {
            *count -= 1;
            if *count == 0 {
                served.by_address.remove(&host);
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

    fn address(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(number).into()
    }

    #[test]
    fn no_more_than_the_bound_at_a_time() {
        let sessions = Sessions::new(1, usize::MAX);
        assert!((0..MAX).all(|number| sessions.enter(address(number as u32)).is_ok()));
        assert_eq!(sessions.enter(address(5000)), Err(Busy::All(MAX)));
        sessions.leave(address(0));
        assert_eq!(sessions.enter(address(5000)), Ok(()));
        assert_eq!(sessions.enter(address(5001)), Err(Busy::All(MAX)));
        let few = Sessions::new(MAX, 1);
        assert_eq!(few.enter(address(1)), Ok(()));
        assert_eq!(few.enter(address(2)), Err(Busy::All(1)));
        assert!(Busy::All(1).to_string().contains("ulimit -n"));
        assert!(!Busy::All(MAX).to_string().contains("ulimit -n"));
    }

    #[test]
    fn one_address_leaves_room_for_others() {
        let sessions = Sessions::new(2, MAX);
        let busy = Err(Busy::Address(2));
        assert!((0..2).all(|_| sessions.enter(address(1)).is_ok()));
        assert_eq!(sessions.enter(address(1)), busy);
        assert_eq!(sessions.enter("::ffff:0.0.0.1".parse().unwrap()), busy, "the same host by IPv6");
        assert_eq!(sessions.enter(address(2)), Ok(()));
        sessions.leave(address(1));
        assert_eq!(sessions.enter(address(1)), Ok(()));
        for last in ["2001:db8::1", "2001:db8::2"] {
            assert_eq!(sessions.enter(last.parse().unwrap()), Ok(()));
        }
        assert_eq!(sessions.enter("2001:db8::3:0:0:1".parse().unwrap()), busy, "a network of one host");
        assert_eq!(sessions.enter("2001:db8:0:1::1".parse().unwrap()), Ok(()));
    }

    #[test]
    fn the_end_waits_for_all() {
        let sessions = Arc::new(Sessions::new(MAX, MAX));
        assert!((0..64).all(|_| sessions.enter(address(1)).is_ok()));
        for _ in 0..64 {
            let own = Arc::clone(&sessions);
            std::thread::spawn(move || own.leave(address(1)));
        }
        sessions.over();
        assert_eq!(sessions.served().all, 0);
        assert!(sessions.served().by_address.is_empty());
    }
}
