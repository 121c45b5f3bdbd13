//! What identifies connections and listeners.

/// One end of one connection, to attribute events. Never used again on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// Identifies a device's listener. Never used again while one of its requests is undecided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId(pub(super) u64);
