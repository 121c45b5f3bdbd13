//! Tasks that wait for the same progress.

use parking_lot::Mutex;
use std::sync::Arc;
use std::task::{Wake, Waker};
use uiw_verbs::integration::register_waker;

/// Tasks that are woken together, because any of them may have dropped its future.
#[derive(Debug, Default)]
pub(crate) struct WaitingTasks(Mutex<Vec<Waker>>);

impl WaitingTasks {
    pub(crate) fn register(&self, waker: &Waker) {
        register_waker(&mut self.0.lock(), waker);
    }
}

impl Wake for WaitingTasks {
    fn wake(self: Arc<Self>) {
        let wakers = std::mem::take(&mut *self.0.lock());
        wakers.into_iter().for_each(Waker::wake);
    }
}
