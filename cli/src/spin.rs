//! How whoever polls waits: ours and what it is compared with do it in one way.

/// Polls that find nothing before a spinning thread lets others have its core. `llp/examples/bare.rs` has the same.
const SPINS: u32 = 2000;

/// Counts the polls of one wait that found nothing.
#[derive(Default)]
pub(crate) struct Spin {
    empty: u32,
}

impl Spin {
    /// A poll found nothing: spins, and from the 2,000th on lets others have the core.
    pub(crate) fn empty(&mut self) {
        if self.empty < SPINS {
            self.empty += 1;
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}
