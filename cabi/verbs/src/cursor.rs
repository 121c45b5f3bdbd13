//! The completion of a queue that a program reads field by field.

use uiw_verbs::Wc;

/// The completion that a program reads.
#[derive(Default)]
pub(crate) struct Cursor {
    pub(crate) wc: Option<Wc>,
    /// Completions that were in the queue when the batch began and are still there; `None` once the
    /// program has been told that the batch is at its end.
    pub(crate) left: Option<usize>,
}

impl Cursor {
    /// Counts a completion of the batch. False once when the batch is at its end: completions that
    /// are added while a program handles the batch have an event of their own, and a program that
    /// sleeps for it after the batch must find them in the queue then.
    pub(crate) fn continues(&mut self) -> bool {
        let continues = self.left != Some(0);
        self.left = self.left.and_then(|left| left.checked_sub(1));
        continues
    }
}
