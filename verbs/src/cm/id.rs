//! Identifiers of connections and listeners.

/// Identifies one end of a connection in events. It is never reused on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// Identifies a listener of a device. It is not reused while one of its requests is undecided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId(pub(super) u64);
