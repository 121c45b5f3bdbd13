//! Memory that clients may ask for: a total, of which a client gets at most as much as it leaves to others, and a bound for each connection.

use super::peers::{Holder, Peer, is_fair};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of memory that all clients hold together at most.
const TOTAL: u64 = 2 << 30;
/// Bytes of memory that one connection holds at most.
const CONNECTION: u64 = 512 << 20;

/// Memory that clients hold.
#[derive(Debug, Default)]
pub(super) struct Budget(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    all: u64,
    by_holder: HashMap<Holder, u64>,
}

impl Budget {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves `bytes` for a connection of `peer` for as long as the share lives.
    ///
    /// # Errors
    /// Text that says what was asked for and what is left.
    pub(super) fn take(&self, peer: &Peer, bytes: u64) -> Result<Share<'_>, String> {
        if bytes > CONNECTION {
            return Err(format!("asks for {bytes} bytes of memory; a connection has at most {CONNECTION}"));
        }
        let mut held = self.held();
        let holders = peer.holders();
        for holder in &holders {
            let own = held.by_holder.get(holder).copied().unwrap_or_default();
            let others = held.all - own;
            if !is_fair(TOTAL, others, own + bytes) {
                let left = ((TOTAL - others) / 2).saturating_sub(own);
                return Err(format!(
                    "asks for {bytes} bytes of memory; {left} of {TOTAL} for all clients are left for {}",
                    holder.kind()
                ));
            }
        }
        held.all += bytes;
        for holder in &holders {
            *held.by_holder.entry(holder.clone()).or_default() += bytes;
        }
        drop(held);
        Ok(Share { budget: self, holders, bytes })
    }
}

/// Part of a budget, given back when dropped.
#[derive(Debug)]
pub(super) struct Share<'a> {
    budget: &'a Budget,
    holders: Vec<Holder>,
    bytes: u64,
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        let mut held = self.budget.held();
        held.all -= self.bytes;
        for holder in &self.holders {
            if let Some(own) = held.by_holder.get_mut(holder) {
                *own -= self.bytes;
                if *own == 0 {
                    held.by_holder.remove(holder);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(address: &str, key: Option<&str>) -> Peer {
        Peer::new(address.parse().unwrap(), key.map(str::to_owned))
    }

    #[test]
    fn greedy_addresses_leave_memory_for_others() {
        let budget = Budget::default();
        let mut shares = Vec::new();
        for number in 1..=8 {
            let greedy = peer(&format!("192.0.2.{number}"), None);
            while let Ok(share) = budget.take(&greedy, 4 << 20) {
                shares.push(share);
            }
            let other = budget.take(&peer("198.51.100.1", None), 1 << 20);
            assert!(other.is_ok(), "after {number} addresses: {other:?}");
        }
        let held = |budget: &Budget| budget.held().by_holder.values().copied().max();
        assert_eq!(held(&budget), Some(TOTAL / 2));
        drop(shares);
        let all = budget.held().all;
        assert_eq!((all, held(&budget)), (0, None));
    }

    #[test]
    fn key_at_several_addresses_shares_budget() {
        let budget = Budget::default();
        let shares: Vec<_> = (0..4)
            .map_while(|number| {
                budget.take(&peer(&format!("192.0.2.{number}"), Some("key")), CONNECTION).ok()
            })
            .collect();
        assert_eq!(shares.len(), 2);
        let refused = budget.take(&peer("192.0.2.9", Some("key")), 1).unwrap_err();
        assert_eq!(
            refused,
            "asks for 1 bytes of memory; 0 of 2147483648 for all clients are left for its key"
        );
        assert!(budget.take(&peer("192.0.2.9", Some("another")), CONNECTION).is_ok());
    }

    #[test]
    fn connection_has_a_bound() {
        let budget = Budget::default();
        assert!(budget.take(&peer("192.0.2.1", None), CONNECTION + 1).is_err());
        assert!(budget.take(&peer("192.0.2.1", None), u64::MAX).is_err());
        assert!(budget.take(&peer("192.0.2.1", None), CONNECTION).is_ok());
    }
}
