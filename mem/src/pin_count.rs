//! Counts the pins of a region, and lets the end of the region wait for them.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// One pin in the state of a [`PinCount`]. The low 32 bits are the number of pins.
const PIN: u64 = 1;
/// Mask of the number of pins.
const PINS: u64 = WINDOW - 1;
/// One bound window. The 31 bits above the pins are the number of bound windows.
const WINDOW: u64 = 1 << 32;
/// Flag of a region that was revoked.
const REVOKED: u64 = 1 << 63;

/// Number of times that [`PinCount::drain`] spins before it yields. A pin lasts for one copy or one
/// non-blocking system call, so the first few microseconds nearly always suffice.
const SPINS: u32 = 200;
/// Number of times that [`PinCount::drain`] yields before it parks.
const YIELDS: u32 = 50;

#[derive(Debug, Default)]
pub(crate) struct PinCount {
    /// Number of pins, number of bound windows, and the flag for revocation. They share one word,
    /// so that all changes have a single order, and "no pin after revocation" and "no window bound
    /// during deregistration" need no lock.
    state: AtomicU64,
    parked: Mutex<()>,
    drained: Condvar,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseError {
    Closed,
    WindowsBound(u32),
}

impl PinCount {
    /// Takes a pin. Returns false if the region is revoked.
    pub(crate) fn enter(&self) -> bool {
        // Everything that the holder of the pin reads is read after this: either `wait_unpinned`
        // sees this pin, or the holder sees what was stored before that call.
        if self.state.fetch_add(PIN, SeqCst) & REVOKED == 0 {
            return true;
        }
        self.leave();
        false
    }

    /// Releases a pin. The ordering makes the accesses under the pin happen before `drain` returns.
    #[inline]
    pub(crate) fn leave(&self) {
        let before = self.state.fetch_sub(PIN, Release);
        debug_assert!(before & PINS != 0, "a pin was given back twice");
        if before & REVOKED != 0 && before & PINS == PIN {
            // Locking orders this wake-up after the waiter has read the count.
            drop(self.parked.lock());
            self.drained.notify_all();
        }
    }

    /// Waits, for at most `time`, for a moment without a pin. Returns false if there was none.
    pub(crate) fn wait_unpinned(&self, time: Duration) -> bool {
        let mut deadline = None;
        for turn in 0.. {
            if self.state.load(SeqCst) & PINS == 0 {
                return true;
            }
            match turn {
                0..SPINS => core::hint::spin_loop(),
                _ if *deadline.get_or_insert_with(|| Instant::now() + time) <= Instant::now() => {
                    break;
                }
                _ => thread::yield_now(),
            }
        }
        false
    }

    /// Revokes the region, even if windows are bound, unless it is revoked already.
    pub(crate) fn revoke(&self) {
        self.state.fetch_or(REVOKED, SeqCst);
    }

    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.state.load(Relaxed) & REVOKED == 0
    }

    pub(crate) fn pins(&self) -> u32 {
        (self.state.load(Relaxed) & PINS) as u32
    }

    /// Records that a window is bound to this region, whose end must wait for it. Returns false if
    /// the region has ended.
    pub(crate) fn add_window(&self) -> bool {
        self.state
            .fetch_update(Relaxed, Relaxed, |s| (s & REVOKED == 0).then_some(s + WINDOW))
            .is_ok()
    }

    pub(crate) fn remove_window(&self) {
        let before = self.state.fetch_sub(WINDOW, Release);
        debug_assert!(before & !REVOKED >= WINDOW, "a window was unbound twice");
    }

    /// Revokes the region: no further pin is given. [`PinCount::drain`] waits for existing ones.
    pub(crate) fn close(&self) -> Result<(), CloseError> {
        let outcome = self.state.fetch_update(Acquire, Acquire, |s| {
            (s & REVOKED == 0 && s & !REVOKED < WINDOW).then_some(s | REVOKED)
        });
        match outcome {
            Ok(_) => Ok(()),
            Err(s) if s & !REVOKED < WINDOW => Err(CloseError::Closed),
            Err(s) => Err(CloseError::WindowsBound(((s & !REVOKED) >> 32) as u32)),
        }
    }

    /// Waits until no pin is held. Afterwards no byte of the region is accessed any more.
    pub(crate) fn drain(&self) {
        debug_assert!(!self.is_open());
        for turn in 0..SPINS + YIELDS {
            if self.state.load(Acquire) & PINS == 0 {
                return;
            }
            if turn < SPINS { core::hint::spin_loop() } else { thread::yield_now() }
        }
        let mut parked = self.parked.lock();
        while self.state.load(Acquire) & PINS != 0 {
            self.drained.wait(&mut parked);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::Arc, time::Duration};

    #[test]
    fn no_pin_after_close() {
        let pin_count = PinCount::default();
        assert!(pin_count.enter());
        assert_eq!(pin_count.pins(), 1);
        assert_eq!(pin_count.close(), Ok(()));
        assert!(!pin_count.enter());
        assert_eq!(pin_count.pins(), 1, "a refused pin leaves no trace");
        assert_eq!(pin_count.close(), Err(CloseError::Closed));
        pin_count.leave();
        pin_count.drain();
    }

    #[test]
    fn windows_keep_it_open() {
        let pin_count = PinCount::default();
        assert!(pin_count.add_window() && pin_count.add_window());
        assert_eq!(pin_count.close(), Err(CloseError::WindowsBound(2)));
        assert!(pin_count.enter());
        pin_count.remove_window();
        pin_count.remove_window();
        assert_eq!(pin_count.close(), Ok(()));
        assert!(!pin_count.add_window());
        pin_count.leave();
        pin_count.drain();
    }

    #[test]
    fn drain_parks_and_wakes() {
        let pin_count = Arc::new(PinCount::default());
        assert!(pin_count.enter());
        pin_count.close().unwrap();
        let waiter = thread::spawn({
            let pin_count = pin_count.clone();
            move || pin_count.drain()
        });
        thread::sleep(Duration::from_millis(30));
        assert!(!waiter.is_finished());
        pin_count.leave();
        waiter.join().unwrap();
    }
}
