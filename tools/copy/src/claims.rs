//! Exclusive use of paths while entries are created, replaced or removed. A client whose connection
//! broke repeats a request that the server may still be executing. Both requests use the same
//! temporary names, so the second one waits for the first one.

use super::names::RelPath;
use std::collections::HashSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Claimed paths of one session.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    taken: Mutex<HashSet<RelPath>>,
    freed: Condvar,
}

/// Claim of some paths, until dropped.
pub(crate) struct Claim<'a> {
    claims: &'a Claims,
    paths: Vec<RelPath>,
}

impl Claims {
    fn taken(&self) -> MutexGuard<'_, HashSet<RelPath>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until none of these paths is claimed, and then claims all of them.
    pub(crate) fn take(&self, paths: Vec<RelPath>) -> Claim<'_> {
        let is_taken = |taken: &mut HashSet<RelPath>| paths.iter().any(|path| taken.contains(path));
        let mut taken =
            self.freed.wait_while(self.taken(), is_taken).unwrap_or_else(PoisonError::into_inner);
        taken.extend(paths.iter().cloned());
        drop(taken);
        Claim { claims: self, paths }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut taken = self.claims.taken();
        for path in &self.paths {
            taken.remove(path);
        }
        drop(taken);
        self.claims.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn path_claimed_once_at_a_time() {
        let (claims, inside) = (Claims::default(), AtomicUsize::new(0));
        let path = |text: &str| RelPath::new(text.as_bytes()).unwrap();
        std::thread::scope(|scope| {
            for number in 0..4 {
                let (claims, inside) = (&claims, &inside);
                scope.spawn(move || {
                    for round in 0..500 {
                        let other = path(&format!("{number}/{round}"));
                        let _claim = claims.take(vec![path("common"), other]);
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        // Others are not affected.
        let _one = claims.take(vec![path("one")]);
        drop(claims.take(vec![path("two")]));
    }
}
