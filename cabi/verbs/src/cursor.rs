//! Completion of a queue that a program reads field by field.

use uiw_verbs::Wc;

/// Completion that the program is reading, and the rest of its batch.
#[derive(Default)]
pub(crate) struct Cursor {
    pub(crate) wc: Option<Wc>,
    /// Number of completions of the batch that are still in the queue. `None` after the program was
    /// told that the batch has ended.
    pub(crate) remaining: Option<usize>,
}

impl Cursor {
    /// Counts a completion of the batch. Returns false once at the end of the batch. Completions
    /// that are added while the program handles the batch raise their own event. A program that
    /// waits for that event after the batch must find them in the queue.
    pub(crate) fn continues(&mut self) -> bool {
        let continues = self.remaining != Some(0);
        self.remaining = self.remaining.and_then(|remaining| remaining.checked_sub(1));
        continues
    }
}
