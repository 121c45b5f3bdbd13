//! What identifies connections and listeners.

/// One end of one connection, to attribute events. Never used again on its device.
///
/// ```
/// use uiw_verbs::cm::{CmEvent, ConnId};
/// assert_eq!(CmEvent::posted(7).id, ConnId(0), "that of no connection");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// Identifies a device's listener. Never used again while one of its requests is undecided.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// use std::sync::Arc;
/// use uiw_verbs::{ConnOptions, cm};
/// let end = End::new()?;
/// let options = Arc::new(ConnOptions::default());
/// let listen = || cm::Listener::bind(&end.device, ([127, 0, 0, 1], 0).into(), 16, &options, &end.channel);
/// assert_ne!(listen()?.id(), listen()?.id());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId(pub(super) u64);
