//! The completion of a queue that a program reads field by field.

use uiw_verbs::Wc;

/// The completion that a program reads.
#[derive(Default)]
pub(crate) struct Cursor {
    pub(crate) wc: Option<Wc>,
    /// Number of completions of the batch that are still in the queue. `None` after the program was
    /// told that the batch has ended.
    pub(crate) remaining: Option<usize>,
}

impl Cursor {
    /// Counts a completion of the batch. False once when the batch is at its end: completions that
    /// are added while a program handles the batch have an event of their own, and a program that
    /// sleeps for it after the batch must find them in the queue then.
    pub(crate) fn continues(&mut self) -> bool {
        let continues = self.remaining != Some(0);
        self.remaining = self.remaining.and_then(|remaining| remaining.checked_sub(1));
        continues
    }
}
