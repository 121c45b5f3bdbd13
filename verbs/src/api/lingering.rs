//! Connections that linger on a device which only its handles drive.

use crate::api::dispatcher::Dispatcher;
use parking_lot::Mutex;
use std::sync::Weak;

/// Connections whose detached operations keep them, on a device with [`crate::Progress::Manual`]. The device's handles share it, and
/// with the last of them it ends those connections: no call can drive them any more.
#[derive(Default)]
pub(crate) struct Lingering(Mutex<Vec<Weak<Dispatcher>>>);

impl Lingering {
    pub(super) fn add(&self, dispatcher: Weak<Dispatcher>) {
        let mut dispatchers = self.0.lock();
        dispatchers.retain(|dispatcher| dispatcher.strong_count() > 0);
        dispatchers.push(dispatcher);
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        for dispatcher in self.0.get_mut().drain(..).filter_map(|dispatcher| dispatcher.upgrade()) {
            dispatcher.end_lingering();
        }
    }
}
