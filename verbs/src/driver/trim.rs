//! The memory trim: memory of many connections is returned to the system when most of them have closed.
//!
//! glibc keeps what a burst of connections has freed, some 20 KiB of each in every thread's arena. Returning it walks all arenas, so it
//! is done once per burst, [`TRIM_DELAY`] after its last bulk disconnect: other threads free their part of it before then.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Time from the last bulk disconnect to the trim.
const TRIM_DELAY: Duration = Duration::from_millis(500);

/// The memory trim of one device.
#[derive(Default)]
pub(crate) struct Trim {
    /// Bulk disconnects that no trim has followed yet. A thread waits to trim unless this is 0.
    due: AtomicU32,
}

impl Trim {
    /// Many connections have closed and few remain. `waits`: a thread may be started, and trims later.
    pub(crate) fn bulk_disconnect(self: &Arc<Self>, waits: bool) {
        if !waits {
            return uiw_mem::give_back_free_pages();
        }
        if self.due.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let own = Arc::clone(self);
        if let Err(error) = crate::thread::spawn("uiw-trim", move || own.run()) {
            tracing::debug!(%error, "the thread that trims memory cannot be started");
            self.due.store(0, Ordering::Release);
        }
    }

    /// Trims after [`TRIM_DELAY`] without a bulk disconnect.
    fn run(&self) {
        let mut seen = self.due.load(Ordering::Acquire);
        loop {
            std::thread::sleep(TRIM_DELAY);
            let now = self.due.load(Ordering::Acquire);
            if now != seen {
                seen = now;
                continue;
            }
            uiw_mem::give_back_free_pages();
            // A bulk disconnect during the trim causes another one.
            if self.due.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn one_thread_serves_bulk_disconnects_that_follow_each_other() {
        let trim = Arc::new(Trim::default());
        for _ in 0..20 {
            trim.bulk_disconnect(true);
        }
        let until = Instant::now() + Duration::from_secs(60);
        while trim.due.load(Ordering::Acquire) > 0 || Arc::strong_count(&trim) > 1 {
            assert!(Instant::now() < until, "the thread does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        trim.bulk_disconnect(true);
        assert_eq!(trim.due.load(Ordering::Acquire), 1, "the next one starts a thread");
    }
}
