//! Unreliable datagrams: UD queue pairs on UDP ports (`docs/datagrams.md`).
//!
//! A [`DatagramPort`] is one UDP port at every address of a network device, and the 256 queue pair numbers that name it. It belongs to
//! one shard, and so do its queue pairs: everything of them that touches a socket happens under that shard's lock.

mod address;
mod binding;
mod control;
mod counts;
mod endpoint;
mod own;
mod port;
mod receive;
mod slot;
mod staging;
mod transmit;
mod way;

pub use address::{AddressHandle, Destination};
pub(crate) use control::{destroy, modify};
pub use counts::DatagramCounts;
pub(crate) use endpoint::Endpoint;
pub(crate) use own::OwnSockets;
pub use port::DatagramPort;
pub(crate) use receive::receive;
pub(crate) use slot::PortSlot;
pub(crate) use staging::Staging;
pub(crate) use transmit::{resume, transmit};

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// State that only UD queue pairs have.
pub(crate) struct UdState {
    pub(crate) port: Arc<DatagramPort>,
    pub(crate) qkey: AtomicU32,
}
