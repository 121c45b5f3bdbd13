//! Memory that clients may request. There is a total, of which a client may hold at most as much as
//! it leaves to others; a reserve for clients that need little; and a limit for each connection.

use super::peers::{Grant, Ledger, Peer};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum memory of all clients together in bytes, without the reserve.
const TOTAL: u64 = 2 << 30;
/// Bytes of the reserve. An address may use 32 MiB of it, a network 64 MiB.
const RESERVE: u64 = 512 << 20;
/// Maximum memory of one connection in bytes.
const CONNECTION: u64 = 512 << 20;

/// Memory that clients hold.
#[derive(Debug)]
pub(super) struct Budget(Mutex<Ledger>);

impl Default for Budget {
    fn default() -> Self {
        Self(Mutex::new(Ledger::new(TOTAL, RESERVE)))
    }
}

impl Budget {
    fn held(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves `bytes` for a connection of `peer` for as long as the share lives.
    ///
    /// # Errors
    /// Returns a text with the requested bytes and those left.
    pub(super) fn take(&self, peer: &Peer, bytes: u64) -> Result<MemoryShare<'_>, String> {
        if bytes > CONNECTION {
            return Err(format!(
                "asks for {bytes} bytes of memory; a connection has at most {CONNECTION}"
            ));
        }
        let grant = self.held().take(peer, bytes).map_err(|denied| {
            let left = denied.limit.saturating_sub(denied.own);
            format!(
                "asks for {bytes} bytes of memory; {left} of {TOTAL} for all clients are left for {}",
                denied.holder.kind()
            )
        })?;
        Ok(MemoryShare { budget: self, grant })
    }
}

/// Part of a budget, which is returned when dropped.
#[derive(Debug)]
pub(super) struct MemoryShare<'a> {
    budget: &'a Budget,
    grant: Grant,
}

impl Drop for MemoryShare<'_> {
    fn drop(&mut self) {
        self.budget.held().release(&self.grant);
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
        for number in 1..=12 {
            let greedy = peer(&format!("192.0.{number}.1"), None);
            while let Ok(share) = budget.take(&greedy, 4 << 20) {
                shares.push(share);
            }
            let other = budget.take(&peer("198.51.100.1", None), 20 << 20);
            assert!(other.is_ok(), "after {number} addresses: {other:?}");
        }
        drop(shares);
        assert!(budget.held().is_empty());
    }

    #[test]
    fn key_at_several_addresses_shares_budget() {
        let budget = Budget::default();
        let shares: Vec<_> = (0..4)
            .map_while(|number| {
                budget.take(&peer(&format!("192.0.{number}.1"), Some("key")), CONNECTION).ok()
            })
            .collect();
        assert_eq!(shares.len(), 2);
        let refused = budget.take(&peer("192.0.9.1", Some("key")), 64 << 20).unwrap_err();
        assert_eq!(
            refused,
            "asks for 67108864 bytes of memory; 0 of 2147483648 for all clients are left for its key"
        );
        assert!(budget.take(&peer("192.0.9.1", Some("another")), CONNECTION).is_ok());
    }

    #[test]
    fn connection_has_a_bound() {
        let budget = Budget::default();
        assert!(budget.take(&peer("192.0.2.1", None), CONNECTION + 1).is_err());
        assert!(budget.take(&peer("192.0.2.1", None), u64::MAX).is_err());
        assert!(budget.take(&peer("192.0.2.1", None), CONNECTION).is_ok());
    }
}
