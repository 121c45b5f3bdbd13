//! Memory that clients may ask for. One client's orders have bounds of their own; this bounds what all of them hold together.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of memory that all clients hold together at most.
const TOTAL: u64 = 2 << 30;

/// What is left.
#[derive(Debug)]
pub(super) struct Budget(AtomicU64);

impl Default for Budget {
    fn default() -> Self {
        Self(AtomicU64::new(TOTAL))
    }
}

impl Budget {
    /// `bytes` of it for as long as the share lives; what was asked for and what is left when that is too much.
    pub(super) fn take(&self, bytes: u64) -> Result<Share<'_>, String> {
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(bytes))
            .map(|_| Share { budget: self, bytes })
            .map_err(|left| {
                format!("asks for {bytes} bytes of memory; {left} of {TOTAL} for all clients are left")
            })
    }
}

/// Part of a budget, given back when dropped.
#[derive(Debug)]
pub(super) struct Share<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.budget.0.fetch_add(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_clients_together_have_a_bound() {
        let budget = Budget::default();
        let most = budget.take(TOTAL - 1).unwrap();
        let refused = budget.take(2).unwrap_err();
        assert_eq!(refused, "asks for 2 bytes of memory; 1 of 2147483648 for all clients are left");
        assert!(budget.take(u64::MAX).is_err());
        drop(most);
        assert!(budget.take(TOTAL).is_ok());
    }
}
