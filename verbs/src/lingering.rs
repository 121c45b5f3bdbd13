//! Connections that linger on a device that only the program drives.

use parking_lot::Mutex;
use std::sync::Weak;

/// Connection that is kept by its own detached operations.
pub trait Linger: Send + Sync {
    /// Releases the connection, because its operations can no longer complete.
    fn end_lingering(&self);
}

/// Lingering connections of a device with [`crate::Progress::Manual`]. The handles of the device
/// share it. When the last handle is dropped, these connections are ended, because no call can
/// drive them any more.
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
