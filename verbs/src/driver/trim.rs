//! The memory trim: memory of many connections is returned to the OS when most of them have closed.
//!
//! glibc keeps what a burst of connections has freed, some 20 KiB of each in every thread's arena.
//! Returning it walks all arenas, so a burst is followed by as many trims as there are
//! [`TRIM_DELAYS`]: the first returns what the engine and most threads of the application have
//! freed, the later ones what the application's threads free after that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Time from a burst's last bulk disconnect to the first trim, and from each trim to the next.
const TRIM_DELAYS: [Duration; 3] = if cfg!(test) {
    [Duration::from_millis(1), Duration::from_millis(2), Duration::from_millis(4)]
} else {
    [Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(8)]
};

/// The memory trim of one device.
#[derive(Default)]
pub(crate) struct Trim {
    /// Bulk disconnects that no trim has followed yet. A thread waits to trim unless this is 0.
    due: AtomicU32,
    /// Threads that were started.
    #[cfg(test)]
    threads: AtomicU32,
    /// Trims that they have made.
    #[cfg(test)]
    trims: AtomicU32,
}

impl Trim {
    /// Trims the memory because many connections have closed and few remain. If `waits` is true, a
    /// thread trims later; otherwise this call trims.
    pub(crate) fn bulk_disconnect(self: &Arc<Self>, waits: bool) {
        if !waits {
            return uiw_mem::give_back_free_pages();
        }
        if self.due.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        #[cfg(test)]
        self.threads.fetch_add(1, Ordering::AcqRel);
        let own = Arc::clone(self);
        if let Err(error) = crate::thread::spawn("uiw-trim", move || own.run()) {
            tracing::debug!(%error, "the thread that trims memory cannot be started");
            self.due.store(0, Ordering::Release);
        }
    }

    /// Trims after each of [`TRIM_DELAYS`]; another bulk disconnect restarts the delays.
    fn run(&self) {
        loop {
            let seen = self.due.load(Ordering::Acquire);
            let is_over = TRIM_DELAYS.iter().all(|delay| {
                std::thread::sleep(*delay);
                let is_quiet = self.due.load(Ordering::Acquire) == seen;
                if is_quiet {
                    uiw_mem::give_back_free_pages();
                    #[cfg(test)]
                    self.trims.fetch_add(1, Ordering::AcqRel);
                }
                is_quiet
            });
            // A bulk disconnect during the last trim restarts the delays as well.
            if is_over
                && self.due.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire).is_ok()
            {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// Waits for the end of the thread.
    fn quiet(trim: &Arc<Trim>) {
        let until = Instant::now() + Duration::from_secs(60);
        while trim.due.load(Ordering::Acquire) > 0 || Arc::strong_count(trim) > 1 {
            assert!(Instant::now() < until, "the thread does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn one_thread_serves_consecutive_bulk_disconnects() {
        let trim = Arc::new(Trim::default());
        for _ in 0..20 {
            trim.bulk_disconnect(true);
        }
        quiet(&trim);
        let counts = || [&trim.threads, &trim.trims].map(|count| count.load(Ordering::Acquire));
        let [threads, trims] = counts();
        // A thread that has ended in the meantime is followed by another one.
        assert!((1..20).contains(&threads), "{threads} threads");
        assert!(trims >= threads * 3, "{trims} trims of {threads} threads");
        trim.bulk_disconnect(true);
        quiet(&trim);
        assert_eq!(counts(), [threads + 1, trims + 3]);
    }
}
