//! Connections that linger on a device which only its handles drive.

use parking_lot::Mutex;
use std::sync::Weak;

/// Connection that is kept by its own detached operations.
pub trait Linger: Send + Sync {
    /// Lets go of the connection: nothing completes its operations any more.
    fn end_lingering(&self);
}

/// Lingering connections of a device with [`crate::Progress::Manual`]. The device's handles share
/// it, and with the last of them it ends those connections: no call can drive them any more.
#[derive(Default)]
pub(crate) struct Lingering(Mutex<Vec<Weak<dyn Linger>>>);

impl Lingering {
    pub(crate) fn add(&self, connection: Weak<dyn Linger>) {
        let mut connections = self.0.lock();
        connections.retain(|connection| connection.strong_count() > 0);
        connections.push(connection);
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        for connection in self.0.get_mut().drain(..).filter_map(|connection| connection.upgrade()) {
            connection.end_lingering();
        }
    }
}
